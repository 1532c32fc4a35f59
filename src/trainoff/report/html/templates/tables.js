// Tables: sort, shorten, unfold and copy the leader board, and show the figures of a chart.
// A long board shows the first 25 rows in its current order and filter, until all are requested.
function shorten(board) {
  const rows = every("tbody > tr:not(.details)", board).filter((row) => !row.hidden);
  const short = rows.length > 25 && !("all" in board.dataset);
  rows.forEach((row, at) => row.toggleAttribute("data-far", short && at >= 25));
  const more = one(".more", board);
  more.hidden = !short;
  more.textContent = `show all ${rows.length}`;
}

// Unknown values are null, and last in either order.
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

// Show the figures of a chart as a table, with the filter and the choice applied.
function figures(figure) {
  const chart = charts[figure.dataset.chart];
  const { data, columns, only, across } = fill(chart.table, placeholdersOf(chart, figure));
  const rows = rowsOf(chart, figure)[data].filter((row) => matches(row, only));
  const heads = columns.map(([, head]) => head);
  let lines = rows.map((row) => columns.map(([name]) => row[name]));
  if (across) {
    const [head, value] = across;
    const [kinds, places] = [[...new Set(rows.map((row) => row[head]))], new Map()];
    rows.forEach((row, at) => places.set(String(lines[at]), places.get(String(lines[at])) || [...lines[at], ...kinds.map(() => null)]));
    rows.forEach((row, at) => { places.get(String(lines[at]))[columns.length + kinds.indexOf(row[head])] = row[value]; });
    heads.push(...kinds);
    lines = [...places.values()];
  }
  one(".scroll", figure).replaceChildren(tableOf(heads, lines));
}

const MOST = 500; // rows of a table; the exports have all

function tableOf(heads, lines) {
  const table = document.createElement("table");
  const forms = heads.map((_, at) => form(lines.map((line) => line[at])));
  const add = (row, kind, scope, text, at) => {
    const cell = Object.assign(document.createElement(kind), { textContent: text });
    if (scope) cell.scope = scope;
    cell.classList.toggle("figure", forms[at].numeric);
    row.append(cell);
  };
  const top = table.createTHead().insertRow();
  heads.forEach((head, at) => add(top, "th", "col", head.replaceAll("_", " "), at));
  const body = table.createTBody();
  for (const line of lines.slice(0, MOST)) {
    const row = body.insertRow();
    line.forEach((value, at) => add(row, at ? "td" : "th", at ? "" : "row", forms[at].text(value), at));
  }
  if (lines.length > MOST) body.insertRow().insertCell().textContent = `${lines.length - MOST} more are in the records`;
  return table;
}

// The format of a column: numbers with equally many decimal places, four significant digits of the largest.
function form(values) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const numeric = known.length > 0 && known.every((value) => typeof value === "number");
  const most = numeric ? Math.max(...known.map(Math.abs)) : 0;
  const places = !most || known.every(Number.isInteger) ? 0 : Math.min(6, Math.max(0, 3 - Math.floor(Math.log10(most))));
  const digits = { minimumFractionDigits: places, maximumFractionDigits: places };
  const text = (value) => {
    if (typeof value === "number") return value.toLocaleString("en", digits);
    return typeof value === "boolean" ? (value ? "yes" : "no") : String(value ?? "-");
  };
  return { numeric, text };
}

async function copy(button) {
  const table = one("table", button.closest(".board, .figures"));
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
