"use strict";

// A click on the head of a column sorts the rows of every section by it: numbers from the highest, texts from A;
// a second click the other way round. Cells without a value stay at the end.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  for (const [index, head] of heads.entries()) {
    head.querySelector("button").addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      for (const each of heads) each.setAttribute("aria-sort", each === head ? order : "none");
      for (const body of table.tBodies) sortRows(body, index, order === "ascending" ? 1 : -1);
    });
  }
}

function sortRows(body, index, sign) {
  const rows = [...body.rows].filter((row) => !row.classList.contains("section"));
  const keyed = rows.map((row) => ({ row, key: keyOf(row.cells[index]) }));
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
    return sign * (typeof a.key === "number" ? a.key - b.key : a.key.localeCompare(b.key, "en"));
  });
  body.append(...keyed.map(({ row }) => row));
}

function keyOf(cell) {
  if ("value" in cell.dataset) return Number(cell.dataset.value);
  const text = cell.textContent.trim();
  return text === "–" ? null : text;
}

// A link to a run opens it.
function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target instanceof HTMLDetailsElement) {
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener("hashchange", openTarget);
openTarget();
