"use strict";
// Charts: unpack the data, fit the specification to the screen, draw when a chart becomes visible.
function unpack(packed) {
  const names = Object.keys(packed.columns);
  const read = names.map((name) => {
    const column = packed.columns[name];
    return column.texts ? (at) => column.texts[column.at[at]] : (at) => column.values[at];
  });
  return Array.from({ length: packed.rows }, (_, at) => Object.fromEntries(names.map((name, i) => [name, read[i](at)])));
}

function eachPart(part, change) {
  if (Array.isArray(part)) return part.map((inner) => change(inner));
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(part).map(([key, inner]) => [key, change(inner, key)]));
}

// Fill placeholders such as @x, as charts/base.py does: lists under `domain` and `sort` are data and stay unchanged.
function fill(part, placeholders) {
  if (typeof part === "string") return part.replace(/@([a-z_]+)/g, (match, name) => placeholders[name] ?? match);
  return eachPart(part, (inner, key) => (Array.isArray(inner) && ["domain", "sort"].includes(key) ? inner : fill(inner, placeholders)));
}

// Shorten labels and legends on a narrow screen; the legend is only as wide as the plot (`legendWidth`), without the labels
// of a list, and names only the engines that are drawn.
function fit(part, width, legendWidth, engines) {
  const fitted = eachPart(part, (inner) => fit(inner, width, legendWidth, engines));
  if (fitted?.labelLimit) fitted.labelLimit = Math.min(fitted.labelLimit, 0.4 * width);
  if (fitted?.legend?.columns) fitted.legend.columns = Math.max(1, Math.min(fitted.legend.columns, Math.floor(legendWidth / 105)));
  if (fitted?.legend && fitted.field === "engine") {
    const values = fitted.scale.domain.filter((engine) => engines.has(engine));
    fitted.legend = values.length ? { ...fitted.legend, values } : null;
  }
  return fitted;
}

function matches(row, only) {
  return Object.entries(only).every(([name, value]) => !(name in row) || row[name] === value);
}

function config() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const text = { labelColor: colour("--ink"), titleColor: colour("--dim"), labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    font: style.fontFamily,
    view: { stroke: null },
    axisX: { labelSeparation: 6 },
    axis: { ...text, gridColor: colour("--line"), domainColor: colour("--line"), tickColor: colour("--line") },
    legend: text,
    rule: { color: colour("--dim") },
    line: { color: colour("--dim") },
    text: { color: colour("--ink") },
    range: { category: ["#3b78c4", "#d9730d", "#2a9d63", "#c2569b", "#7a63c9", "#9a6b45", "#c8483b", "#2aa7c9", "#8f8a1f", "#7d8590"] },
  };
}

function chosen(chart, figure) {
  return chart.choices[one("input[type=radio]:checked", figure)?.value || 0];
}

// The values of the placeholders: those of the selected choice, with a linear axis if `log` is not checked.
function placeholdersOf(chart, figure) {
  const linear = one(".log input", figure)?.checked === false;
  return { ...chosen(chart, figure).placeholders, ...(linear ? { x_scale: "linear" } : {}) };
}

function rowsOf(chart, figure) {
  const choice = chosen(chart, figure);
  const only = { ...choice.only };
  if (chart.pick) only[chart.pick] = one(".pick", figure).value;
  const datasets = {};
  for (const [name, rows] of Object.entries(chart.data)) {
    datasets[name] = rows.filter((row) => matches(row, only) && !state.hidden.has(row.engine));
  }
  return datasets;
}

function height(chart, datasets) {
  if (!chart.listed) return 340;
  return 90 + chart.spec.height.step * new Set(Object.values(datasets).flat().map((row) => row[chart.listed])).size;
}

async function draw(figure) {
  const chart = charts[figure.dataset.chart];
  const datasets = rowsOf(chart, figure);
  const canvas = one(".canvas", figure);
  if (one(".figures", figure).open) figures(figure);
  const [width, engines] = [Math.max(200, canvas.clientWidth), new Set(Object.values(datasets).flat().map((row) => row.engine))];
  const spec = { ...fit(fill(chart.spec, placeholdersOf(chart, figure)), width, chart.listed ? 0.6 * width : width - 60, engines), datasets, width, height: height(chart, datasets),
    autosize: { type: "fit", contains: "padding" }, description: chart.about, config: config() };
  const marks = Object.values(datasets).reduce((sum, rows) => sum + rows.length, 0);
  views.get(figure)?.finalize();
  const embedded = await window.embedChart(canvas, spec, {
    mode: "vega-lite", renderer: marks > 8000 ? "canvas" : "svg", tooltip: { theme: dark() ? "dark" : "light" },
    ast: true, logLevel: 1, actions: { export: true, source: false, compiled: false, editor: false },
  });
  if (!figure.isConnected) { embedded.finalize(); return; } // the page was replaced meanwhile
  views.set(figure, embedded);
  canvas.style.minHeight = "";
  figure.dataset.drawn = "yes";
}

// Reserve the height of charts that are not drawn yet, so that nothing moves when they are.
function reserve() {
  for (const figure of every("figure.chart")) {
    const chart = charts[figure.dataset.chart];
    one(".canvas", figure).style.minHeight ||= `${height(chart, rowsOf(chart, figure))}px`;
  }
}

const visible = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) { visible.unobserve(entry.target); draw(entry.target); }
}, { rootMargin: "300px" });

function redraw() {
  for (const figure of every("figure.chart")) {
    delete figure.dataset.drawn;
    visible.unobserve(figure);
    visible.observe(figure);
  }
}
