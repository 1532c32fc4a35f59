"use strict";
// The page's behaviour: charts when they come into sight, filter, sorting, unfolding, copying, light and dark, news.
const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const one = (selector, inside = document) => inside.querySelector(selector);
const state = { hidden: new Set(), workload: "" };
let charts = [];
const views = new Map();

function unpack(packed) {
  const names = Object.keys(packed.columns);
  const read = names.map((name) => {
    const column = packed.columns[name];
    return column.words ? (at) => column.words[column.at[at]] : (at) => column.values[at];
  });
  return Array.from({ length: packed.rows }, (_, at) => Object.fromEntries(names.map((name, i) => [name, read[i](at)])));
}

function eachPart(part, change) {
  if (Array.isArray(part)) return part.map((inner) => change(inner));
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, change(inner, key)]));
}

// Holes such as @x are filled as in charts.py: the lists under `domain` and `sort` hold data and are left as they are.
function fill(part, holes) {
  if (typeof part === "string") return part.replace(/@([a-z_]+)/g, (hole, name) => holes[name] ?? hole);
  return eachPart(part, (inner, key) => (Array.isArray(inner) && ["domain", "sort"].includes(key) ? inner : fill(inner, holes)));
}

// A narrow screen has less room for labels and legends; and a legend names only engines that are drawn.
function fit(part, width, engines) {
  const made = eachPart(part, (inner) => fit(inner, width, engines));
  if (made?.labelLimit) made.labelLimit = Math.min(made.labelLimit, 0.4 * width);
  if (made?.legend?.columns) made.legend.columns = Math.max(1, Math.min(made.legend.columns, Math.floor(width / 120)));
  if (made?.legend && made.field === "engine") {
    const values = made.scale.domain.filter((engine) => engines.has(engine));
    made.legend = values.length ? { ...made.legend, values } : null;
  }
  return made;
}

function counts(row, only) {
  return Object.entries(only).every(([name, value]) => !(name in row) || row[name] === value);
}

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

// A browser may refuse to keep anything for a file: then the choice lasts as long as the page.
function theme(chosen) {
  try {
    if (chosen) localStorage.setItem("trainoff-theme", chosen);
    else chosen = localStorage.getItem("trainoff-theme");
  } catch { /* refused */ }
  if (["light", "dark"].includes(chosen)) document.documentElement.dataset.theme = chosen;
  one("#theme").setAttribute("aria-pressed", dark());
}

function config() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const words = { labelColor: colour("--ink"), titleColor: colour("--dim"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    font: style.fontFamily,
    view: { stroke: null },
    axis: { ...words, gridColor: colour("--line"), domainColor: colour("--line"), tickColor: colour("--line") },
    legend: words,
    rule: { color: colour("--dim") },
    line: { color: colour("--dim") },
    text: { color: colour("--ink") },
    range: { category: ["#3b78c4", "#d9730d", "#2a9d63", "#c2569b", "#7a63c9", "#9a6b45", "#c8483b", "#2aa7c9", "#8f8a1f", "#7d8590"] },
  };
}

function chosen(chart, figure) {
  return chart.choices[one("input[type=radio]:checked", figure)?.value || 0];
}

function rowsOf(chart, figure) {
  const choice = chosen(chart, figure);
  const only = { ...choice.only };
  if (chart.pick) only[chart.pick] = one(".pick", figure).value;
  const datasets = {};
  for (const [name, rows] of Object.entries(chart.data)) {
    datasets[name] = rows.filter((row) => counts(row, only) && !state.hidden.has(row.engine));
  }
  return datasets;
}

function height(chart, datasets) {
  if (!chart.listed) return 300;
  return (chart.listed === "row" ? 230 : 90) + 21 * new Set(Object.values(datasets).flat().map((row) => row[chart.listed])).size;
}

async function draw(figure) {
  const chart = charts[figure.dataset.chart];
  const choice = chosen(chart, figure);
  const datasets = rowsOf(chart, figure);
  const canvas = one(".canvas", figure);
  const [width, engines] = [Math.max(200, canvas.clientWidth), new Set(Object.values(datasets).flat().map((row) => row.engine))];
  const spec = { ...fit(fill(chart.spec, choice.holes), width, engines), datasets, width, height: height(chart, datasets),
    autosize: { type: "fit", contains: "padding" }, description: chart.about, config: config() };
  const marks = Object.values(datasets).reduce((sum, rows) => sum + rows.length, 0);
  views.get(figure)?.finalize();
  const embedded = await window.embedChart(canvas, spec, {
    mode: "vega-lite", renderer: marks > 8000 ? "canvas" : "svg", tooltip: { theme: dark() ? "dark" : "light" },
    ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false },
  });
  if (!figure.isConnected) { embedded.finalize(); return; } // a new page has come meanwhile
  views.set(figure, embedded);
  canvas.style.minHeight = "";
  figure.dataset.drawn = "yes";
}

const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { sight.unobserve(entry.target); draw(entry.target); }
}, { rootMargin: "300px" });

function redraw() {
  for (const figure of every("figure.chart")) {
    delete figure.dataset.drawn;
    sight.unobserve(figure);
    sight.observe(figure);
  }
}

// Of what can be picked, only what the filter leaves; the first of it where the picked one is left out.
function offer(figure) {
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
  every("figure.chart").forEach(offer);
  for (const section of every(".workload")) section.hidden = state.workload !== "" && section.dataset.workload !== state.workload;
  const all = one("#everything");
  if (all) all.hidden = state.hidden.size === 0;
  redraw();
}

// A long board shows the first 25 of whatever order and filter it has, until somebody asks for all.
function shorten(board) {
  const rows = every("tbody > tr:not(.details)", board).filter((row) => !row.hidden);
  const short = rows.length > 25 && !("all" in board.dataset);
  rows.forEach((row, at) => row.toggleAttribute("data-far", short && at >= 25));
  const more = one(".more", board);
  more.hidden = !short;
  more.textContent = `show all ${rows.length}`;
}

// What is not known is null, and stands last whichever way a board is sorted.
function valueOf(cell) {
  const value = cell.dataset.value ?? cell.textContent.trim();
  if (["inf", "-", ""].includes(value)) return null;
  return isNaN(value) ? value : Number(value);
}

function sort(table, column, descending) {
  const body = one("tbody", table);
  const pairs = every("tbody > tr:not(.details)", table).map((row) => [row, row.nextElementSibling, valueOf(row.cells[column])]);
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  pairs.sort(([, , a], [, , b]) => (a === null || b === null ? (a === null) - (b === null) : compare(a, b) * (descending ? -1 : 1)));
  body.append(...pairs.flatMap(([row, details]) => [row, details]));
  every("thead th", table).forEach((head, at) => {
    if (at === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
  shorten(table.closest(".board"));
}

async function copy(button) {
  const table = one("table", button.closest(".board"));
  const parts = (cell) => [...cell.childNodes].map((part) => (part.nodeName === "SMALL" ? ` (${part.textContent})` : part.textContent));
  const cells = (row) => [...row.cells].map((cell) => parts(cell).join("").trim().replace(/\s+/g, " ")).join("\t");
  const text = every("tr:not(.details)", table).filter((row) => !row.hidden).map(cells).join("\n");
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = Object.assign(document.createElement("textarea"), { value: text });
    document.body.append(area); area.select(); document.execCommand("copy"); area.remove();
  }
  const said = button.textContent;
  button.textContent = "copied";
  setTimeout(() => { button.textContent = said; }, 1500);
}

function unfold(button, open = button.getAttribute("aria-expanded") !== "true") {
  button.setAttribute("aria-expanded", open);
  const row = button.closest("tr");
  row.nextElementSibling.hidden = !open || row.hidden;
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
  } else if (button.closest("thead")) {
    const head = button.closest("th");
    sort(button.closest("table"), head.cellIndex, head.getAttribute("aria-sort") === "ascending");
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
});

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
  filter();
}

// While a study runs: how far it is, and the page anew when there is a new record.
function clock(seconds) {
  const whole = Math.round(seconds);
  return whole < 90 ? `${whole} s` : `${Math.floor(whole / 60)} min`;
}

function line(parent, words, kind = "p") {
  const made = document.createElement(kind);
  made.textContent = words;
  parent.append(made);
  return made;
}

const STATES = { running: "running", waiting: "waiting for a run", ended: "the run has ended", stopped: "the run was stopped" };

// Only what has changed is written: whoever listens is told the state and the trials done, and a log stays where it is.
function say(element, words) {
  if (element.textContent !== words) element.textContent = words;
  element.hidden = words === "";
}

function progress(news) {
  const live = one("#live");
  live.hidden = false;
  live.dataset.state = news.state;
  const total = news.total ? ` of ${news.total}` : "";
  say(one(".state", live), `${STATES[news.state] || news.state} · ${news.done}${total} trials`);
  say(one(".left", live), news.state === "running" && news.left_s ? `· about ${clock(news.left_s)} left` : "");
  say(one(".note", live), news.note || "");
  Object.assign(one("progress", live), { hidden: !news.total, max: news.total || 1, value: news.done });
  const running = news.running || [];
  for (const part of every(".trial", live)) if (!running.some((trial) => trial.trial_id === part.dataset.trial)) part.remove();
  for (const trial of running) underWay(live, trial);
}

function underWay(live, trial) {
  let part = every(".trial", live).find((known) => known.dataset.trial === trial.trial_id);
  if (!part) {
    part = line(live, "", "div");
    part.className = "trial";
    part.dataset.trial = trial.trial_id;
    line(part, "");
    line(part, "", "pre");
  }
  const step = trial.step ? `, step ${trial.step}${trial.steps ? ` of ${trial.steps}` : ""}` : "";
  const log = one("pre", part);
  const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
  say(one("p", part), `${trial.title}: ${trial.phase || "starting"}, ${clock(trial.seconds || 0)}${step}`);
  say(log, (trial.log || []).join("\n"));
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// What a reader has chosen and opened outlives a new page by its name: of the workload, the chart, and the thing itself.
function nameOf(element) {
  const within = (selector, name) => element.closest(selector)?.dataset[name];
  return JSON.stringify([within("[data-workload]", "workload"), within("[data-name]", "name"), element.dataset.key || element.id]);
}

function remember() {
  const named = (selector) => new Map(every(selector).map((element) => [nameOf(element), element]));
  return {
    opened: named("details[data-key][open], .unfold[aria-expanded=true], input[type=radio]:checked, .board[data-all]"),
    picked: named("select.pick"),
    sorted: named("th[aria-sort]"),
    moved: new Map(every(".scroll").map((box) => [nameOf(box), box.scrollLeft])),
    drawn: new Map(every("figure.chart").map((figure) => [nameOf(figure), one(".canvas", figure).offsetHeight])),
    focused: document.activeElement === document.body ? "" : nameOf(document.activeElement),
    at: scrollY,
  };
}

function recall(known) {
  for (const element of every("details[data-key], .unfold, input[type=radio], .board")) {
    if (!known.opened.has(nameOf(element))) continue;
    if (element.matches("details")) element.open = true;
    else if (element.matches("input")) element.checked = true;
    else if (element.matches(".board")) element.dataset.all = "";
    else unfold(element, true);
  }
  for (const select of every("select.pick")) {
    const before = known.picked.get(nameOf(select))?.value;
    if ([...select.options].some((option) => option.value === before)) select.value = before;
  }
  for (const head of every(".sortable th[data-key]")) {
    const before = known.sorted.get(nameOf(head))?.getAttribute("aria-sort");
    if (before) sort(head.closest("table"), head.cellIndex, before === "descending");
  }
  for (const box of every(".scroll")) box.scrollLeft = known.moved.get(nameOf(box)) || 0;
  for (const figure of every("figure.chart")) one(".canvas", figure).style.minHeight = `${known.drawn.get(nameOf(figure)) || 0}px`;
}

async function renew() {
  const answer = await fetch(location.href, { cache: "no-store" }).catch(() => null); // the view may have ended
  if (!answer?.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const [live, known] = [one("#live"), remember()];
  one("#page").replaceWith(document.adoptNode(one("#page", fresh)));
  one("#live").replaceWith(live);
  document.title = fresh.title;
  for (const view of views.values()) view.finalize();
  views.clear();
  recall(known);
  start();
  if (known.focused) every("button, input, select, summary, .scroll, details[data-key]").find((element) => nameOf(element) === known.focused)?.focus({ preventScroll: true });
  scrollTo(0, known.at);
}

function listen() {
  const news = new EventSource(`events?${new URLSearchParams([...new URLSearchParams(location.search), ["seen", document.documentElement.dataset.live]])}`);
  news.addEventListener("progress", (event) => progress(JSON.parse(event.data)));
  let renewed = Promise.resolve(); // one after the other: the newest page is the one that stays
  news.addEventListener("records", () => { renewed = renewed.then(renew); });
}

start();
if ("live" in document.documentElement.dataset) listen();
