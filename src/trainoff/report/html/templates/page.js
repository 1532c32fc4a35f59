// The page: filters, clicks, light and dark. The other scripts come before this one in the same element.
const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const one = (selector, inside = document) => inside.querySelector(selector);
const state = { hidden: new Set(), workload: "", at: "" };
let charts = [];
const views = new Map();

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// A browser may refuse to store anything for a file: then the choice lasts as long as the page.
function theme(chosen) {
  try {
    if (chosen) localStorage.setItem("trainoff-theme", chosen);
    else chosen = localStorage.getItem("trainoff-theme");
  } catch { /* refused */ }
  if (["light", "dark"].includes(chosen)) document.documentElement.dataset.theme = chosen;
  one("#theme").setAttribute("aria-pressed", dark());
}

// Offer only what the filter leaves to pick; if the picked value is filtered out, the first one that is left.
function updatePick(figure) {
  const [chart, select] = [charts[figure.dataset.chart], one(".pick", figure)];
  if (!select) return;
  const left = new Set(Object.values(chart.data).flat().filter((row) => !state.hidden.has(row.engine)).map((row) => String(row[chart.pick])));
  for (const option of select.options) option.hidden = option.disabled = !left.has(option.value);
  if (!left.has(select.value)) select.value = [...select.options].find((option) => !option.disabled)?.value ?? "";
}

function filter() {
  for (const element of every("[data-engine]")) element.hidden = state.hidden.has(element.dataset.engine);
  for (const button of every(".unfold")) unfold(button, button.getAttribute("aria-expanded") === "true");
  every(".board").forEach(shorten);
  every("figure.chart").forEach(updatePick);
  for (const section of every(".workload")) section.hidden = state.workload !== "" && section.dataset.workload !== state.workload;
  const all = one("#everything");
  if (all) all.hidden = state.hidden.size === 0;
  redraw();
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.id === "theme") {
    theme(dark() ? "light" : "dark");
    redraw();
  } else if (button.id === "everything") {
    state.hidden.clear();
    for (const box of every("#filter input")) box.checked = true;
    filter();
    saveSelection();
  } else if (button.closest("thead")) {
    const head = button.closest("th");
    sort(button.closest("table"), head.cellIndex, head.getAttribute("aria-sort") === "ascending");
    saveSelection();
  } else if (button.classList.contains("unfold")) unfold(button);
  else if (button.classList.contains("copy")) copy(button);
  else if (button.classList.contains("more")) {
    const board = button.closest(".board");
    board.dataset.all = "";
    shorten(board);
  }
});

document.addEventListener("change", (event) => {
  const input = event.target;
  const figure = input.closest("figure.chart");
  if (input.name === "engine") {
    state.hidden[input.checked ? "delete" : "add"](input.value);
    filter();
  } else if (input.id === "workload") {
    state.workload = input.value;
    filter();
  } else if (figure) draw(figure);
  saveSelection();
});

document.addEventListener("toggle", (event) => {
  if (event.target.matches(".figures[open]")) figures(event.target.closest("figure"));
}, true); // it does not bubble

let width = innerWidth;
let waiting = 0;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; redraw(); } }, 200);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(); redraw(); });
addEventListener("beforeprint", () => { for (const figure of every("figure.chart:not([data-drawn])")) draw(figure); });

function start() {
  charts = JSON.parse(one("#charts").textContent);
  for (const chart of charts) for (const name of Object.keys(chart.data)) chart.data[name] = unpack(chart.data[name]);
  const boxes = every("#filter input");
  for (const engine of state.hidden) if (!boxes.some((box) => box.value === engine)) state.hidden.delete(engine);
  for (const box of boxes) box.checked = !state.hidden.has(box.value);
  const choice = one("#workload");
  if (![...(choice?.options || [])].some((option) => option.value === state.workload)) state.workload = "";
  if (choice) choice.value = state.workload;
  theme();
  reserve();
  filter();
}

applyAddress();
start();
scrollToPlace(state.at);
