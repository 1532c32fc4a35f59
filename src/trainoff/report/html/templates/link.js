// The page's address has all that was selected, so that a link shows the same page to others.
const fragment = () => location.hash.slice(1);

function selection() {
  const params = new URLSearchParams();
  if (state.at) params.append("at", state.at);
  if (state.workload) params.append("workload", state.workload);
  for (const engine of state.hidden) params.append("without", engine);
  for (const figure of every("figure.chart")) {
    const choice = one("input[type=radio]:checked", figure);
    if (choice && choice.value !== "0") params.append(figure.id, choice.dataset.key.replace("choice ", ""));
    if (one(".log input", figure)?.checked === false) params.append(`${figure.id} scale`, "linear");
    const pick = one(".pick", figure);
    if (pick?.selectedIndex > 0) params.append(`${figure.id} of`, pick.value);
  }
  for (const head of every(".sortable th[aria-sort]")) {
    params.append(head.closest(".board").id, head.dataset.key + (head.getAttribute("aria-sort") === "descending" ? " down" : ""));
  }
  return params;
}

// A browser may refuse to change the address of a file: then the link has no selection.
function saveSelection() {
  const params = String(selection());
  try {
    history.replaceState(null, "", params ? `#${params}` : location.pathname + location.search);
  } catch { /* refused */ }
}

// Apply an address. One that was typed may be just the name of a place.
function applyAddress() {
  const params = new URLSearchParams(fragment().includes("=") ? fragment() : `at=${fragment()}`);
  state.at = params.get("at") || "";
  state.workload = params.get("workload") || "";
  state.hidden = new Set(params.getAll("without"));
  for (const figure of every("figure.chart")) {
    const inputs = every("input[type=radio]", figure);
    const choice = inputs.find((input) => input.dataset.key === `choice ${params.get(figure.id)}`) || inputs[0];
    if (choice) choice.checked = true;
    const log = one(".log input", figure);
    if (log) log.checked = params.get(`${figure.id} scale`) !== "linear";
    const pick = one(".pick", figure);
    if (pick) pick.selectedIndex = Math.max(0, [...pick.options].findIndex((option) => option.value === params.get(`${figure.id} of`)));
  }
  for (const head of every(".sortable th[data-key]")) {
    const wanted = params.get(head.closest(".board").id);
    if (wanted === head.dataset.key || wanted === `${head.dataset.key} down`) sort(head.closest("table"), head.cellIndex, wanted !== head.dataset.key);
  }
}

function scrollToPlace(place) {
  document.getElementById(place)?.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link) return;
  event.preventDefault();
  state.at = link.getAttribute("href").slice(1);
  scrollToPlace(state.at);
  saveSelection();
});

addEventListener("hashchange", () => { applyAddress(); start(); scrollToPlace(state.at); });
