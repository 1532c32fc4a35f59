"use strict";
// The page's behaviour: charts when they come into sight, filter, sorting, unfolding, copying, light and dark, news.
const every = (selector, inside = document) => [...inside.querySelectorAll(selector)];
const one = (selector, inside = document) => inside.querySelector(selector);
const state = { hidden: new Set(), workload: "", choice: {}, pick: {}, sort: {}, open: new Set() };
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

function fill(spec, holes) {
  let text = JSON.stringify(spec);
  for (const [name, value] of Object.entries(holes)) text = text.replaceAll(`@${name}`, JSON.stringify(value).slice(1, -1));
  return JSON.parse(text);
}

function counts(row, only) {
  return Object.entries(only).every(([name, value]) => !(name in row) || row[name] === value);
}

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
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

function rowsOf(chart, figure) {
  const number = figure.dataset.chart;
  const choice = chart.choices[state.choice[number] || 0];
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
  const choice = chart.choices[state.choice[figure.dataset.chart] || 0];
  const datasets = rowsOf(chart, figure);
  const canvas = one(".canvas", figure);
  const spec = { ...fill(chart.spec, choice.holes), datasets, width: Math.max(200, canvas.clientWidth), height: height(chart, datasets),
    autosize: { type: "fit", contains: "padding" }, description: chart.about, config: config() };
  const marks = Object.values(datasets).reduce((sum, rows) => sum + rows.length, 0);
  views.get(figure)?.finalize();
  const embedded = await window.embedChart(canvas, spec, {
    mode: "vega-lite", renderer: marks > 8000 ? "canvas" : "svg", tooltip: { theme: dark() ? "dark" : "light" },
    ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false },
  });
  views.set(figure, embedded);
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

function filter() {
  for (const element of every("[data-engine]")) element.hidden = state.hidden.has(element.dataset.engine);
  for (const button of every(".unfold")) unfold(button, button.getAttribute("aria-expanded") === "true");
  every(".board").forEach(shorten);
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
    document.documentElement.dataset.theme = dark() ? "light" : "dark";
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
  } else if (figure && input.type === "radio") {
    state.choice[figure.dataset.chart] = Number(input.value);
    draw(figure);
  } else if (figure) draw(figure);
});

let width = innerWidth;
let waiting = 0;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => { if (innerWidth !== width) { width = innerWidth; redraw(); } }, 200);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", () => { for (const figure of every("figure.chart:not([data-drawn])")) draw(figure); });

function start() {
  charts = JSON.parse(one("#charts").textContent);
  for (const chart of charts) for (const name of Object.keys(chart.data)) chart.data[name] = unpack(chart.data[name]);
  for (const box of every("#filter input")) box.checked = !state.hidden.has(box.value);
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

function progress(news) {
  const live = one("#live");
  live.hidden = false;
  live.dataset.state = news.state;
  live.replaceChildren();
  const total = news.total ? ` of ${news.total}` : "";
  const left = news.state === "running" && news.left_s ? ` · about ${clock(news.left_s)} left` : "";
  line(live, `${STATES[news.state] || news.state} · ${news.done}${total} trials${left}`).className = "dim";
  if (news.total) Object.assign(line(live, "", "progress"), { max: news.total, value: news.done });
  for (const trial of news.running || []) {
    const step = trial.step ? `, step ${trial.step}${trial.steps ? ` of ${trial.steps}` : ""}` : "";
    line(live, `${trial.title}: ${trial.phase || "starting"}, ${clock(trial.seconds || 0)}${step}`);
    if (trial.log && trial.log.length) line(live, trial.log.join("\n"), "pre");
  }
}

async function renew() {
  const answer = await fetch(location.href, { cache: "no-store" });
  if (!answer.ok) return;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const live = one("#live");
  const [scroll, unfolded] = [scrollY, every(".unfold[aria-expanded=true]").map((button) => button.textContent)];
  one("#page").replaceWith(document.adoptNode(one("#page", fresh)));
  one("#live").replaceWith(live);
  document.title = fresh.title;
  if (one("#workload")) one("#workload").value = state.workload;
  for (const figure of every("figure.chart")) {
    const choice = one(`input[value="${state.choice[figure.dataset.chart] || 0}"]`, figure);
    if (choice) choice.checked = true;
  }
  for (const button of every(".unfold")) if (unfolded.includes(button.textContent)) unfold(button, true);
  views.clear();
  start();
  scrollTo(0, scroll);
}

function listen() {
  const news = new EventSource(`events${location.search}`);
  news.addEventListener("progress", (event) => progress(JSON.parse(event.data)));
  news.addEventListener("records", () => renew());
}

start();
if ("live" in document.documentElement.dataset) listen();
