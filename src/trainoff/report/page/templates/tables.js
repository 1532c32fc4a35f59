// Tables: sorted, shortened, unfolded, copied.
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
