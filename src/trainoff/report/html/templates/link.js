// The address carries what a reader has chosen, so that a link shows the same to somebody else.
const fragment = () => location.hash.slice(1);

function choices() {
  const told = new URLSearchParams();
  if (state.at) told.append("at", state.at);
  if (state.workload) told.append("workload", state.workload);
  for (const engine of state.hidden) told.append("without", engine);
  for (const figure of every("figure.chart")) {
    const choice = one("input[type=radio]:checked", figure);
    if (choice && choice.value !== "0") told.append(figure.id, choice.dataset.key.replace("choice ", ""));
    if (one(".log input", figure)?.checked === false) told.append(`${figure.id} scale`, "linear");
    const pick = one(".pick", figure);
    if (pick?.selectedIndex > 0) told.append(`${figure.id} of`, pick.value);
  }
  for (const head of every(".sortable th[aria-sort]")) {
    told.append(head.closest(".board").id, head.dataset.key + (head.getAttribute("aria-sort") === "descending" ? " down" : ""));
  }
  return told;
}

// A browser may refuse to change the address of a file: then the link is without it.
function keep() {
  const told = String(choices());
  try {
    history.replaceState(null, "", told ? `#${told}` : location.pathname + location.search);
  } catch { /* refused */ }
}

// What an address says. One that was written by hand may be just the name of a place.
function follow() {
  const told = new URLSearchParams(fragment().includes("=") ? fragment() : `at=${fragment()}`);
  state.at = told.get("at") || "";
  state.workload = told.get("workload") || "";
  state.hidden = new Set(told.getAll("without"));
  for (const figure of every("figure.chart")) {
    const inputs = every("input[type=radio]", figure);
    const choice = inputs.find((input) => input.dataset.key === `choice ${told.get(figure.id)}`) || inputs[0];
    if (choice) choice.checked = true;
    const log = one(".log input", figure);
    if (log) log.checked = told.get(`${figure.id} scale`) !== "linear";
    const pick = one(".pick", figure);
    if (pick) pick.selectedIndex = Math.max(0, [...pick.options].findIndex((option) => option.value === told.get(`${figure.id} of`)));
  }
  for (const head of every(".sortable th[data-key]")) {
    const wanted = told.get(head.closest(".board").id);
    if (wanted === head.dataset.key || wanted === `${head.dataset.key} down`) sort(head.closest("table"), head.cellIndex, wanted !== head.dataset.key);
  }
}

function go(place) {
  document.getElementById(place)?.scrollIntoView();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (!link) return;
  event.preventDefault();
  state.at = link.getAttribute("href").slice(1);
  go(state.at);
  keep();
});

addEventListener("hashchange", () => { follow(); start(); go(state.at); });
