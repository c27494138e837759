// Marks slices in the grid: arrow keys move, space marks, shift marks a range, as does a click with shift or ctrl.
// The marked keys stand in the text field of the form, which works without scripts too.
"use strict";

(() => {
  const marked = new Set();
  let anchor = null; // the key from which shift marks
  let isMarkMode = false; // any click on a slice marks it: a finger has neither shift nor ctrl
  const grid = () => document.querySelector("#act-on-slices ~ .scroll [data-grid], #act-on-slices ~ * [data-grid]");
  const field = () => document.querySelector("input[data-marks]");
  if (!field()) return;
  const cells = () => [...grid().querySelectorAll("[data-key]")];
  const inOrder = () => {
    // Columns give the order within a row; rows are in their order already.
    return cells().map((cell) => cell.dataset.key);
  };

  // Marks that follow one another are written as ranges.
  const asText = () => {
    const keys = inOrder();
    const parts = [];
    let first = null;
    keys.forEach((key, n) => {
      if (!marked.has(key)) return;
      if (first === null) first = key;
      if (n + 1 < keys.length && marked.has(keys[n + 1])) return;
      parts.push(first === key ? key : `${first}..${key}`);
      first = null;
    });
    return parts.join(", ");
  };

  const show = () => {
    cells().forEach((cell) => {
      const isMarked = marked.has(cell.dataset.key);
      cell.classList.toggle("marked", isMarked);
      if (isMarked) cell.setAttribute("aria-current", "true");
      else cell.removeAttribute("aria-current");
    });
    const status = document.querySelector(".marks");
    status.hidden = marked.size === 0;
    const text = marked.size === 0 ? "" : `${marked.size} marked`;
    if (status.textContent !== text) status.textContent = text;
    document.querySelector("[data-clear-marks]").hidden = marked.size === 0;
  };

  const apply = () => {
    field().value = asText();
    show();
  };

  const mark = (cell, isRange) => {
    const key = cell.dataset.key;
    if (isRange && anchor !== null && anchor !== key) {
      const keys = inOrder();
      const [low, high] = [keys.indexOf(anchor), keys.indexOf(key)].sort((a, b) => a - b);
      keys.slice(low, high + 1).forEach((each) => marked.add(each));
    } else if (marked.has(key)) marked.delete(key);
    else marked.add(key);
    anchor = key;
    apply();
  };

  // One cell is in the order of the tab key; the arrow keys move from it.
  const setUp = () => {
    if (!grid()) return;
    const known = cells();
    const current = known.find((cell) => cell.tabIndex === 0 && cell.hasAttribute("tabindex")) || known[known.length - 1];
    known.forEach((cell) => cell.setAttribute("tabindex", cell === current ? "0" : "-1"));
    document.querySelectorAll("[data-script-hint], [data-mark-mode]").forEach((part) => (part.hidden = false));
    document.querySelector("[data-mark-mode]").setAttribute("aria-pressed", String(isMarkMode));
  };

  const move = (from, to) => {
    if (!to) return;
    from.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  };

  const besideInRow = (cell, rows) => {
    const column = cell.closest("td").cellIndex;
    let row = cell.closest("tr");
    do row = rows < 0 ? row.previousElementSibling : row.nextElementSibling;
    while (row && !row.cells[column]?.querySelector("[data-key]"));
    return row?.cells[column].querySelector("[data-key]");
  };

  document.addEventListener("click", (event) => {
    if (event.target.closest("[data-clear-marks]")) {
      marked.clear();
      apply();
      return;
    }
    if (event.target.closest("[data-mark-mode]")) {
      isMarkMode = !isMarkMode;
      setUp();
      return;
    }
    const cell = event.target.closest("[data-key]");
    if (!cell || !grid()?.contains(cell)) return;
    // A slice without a job has no page: a click marks it.
    const isMarking = isMarkMode || event.shiftKey || event.ctrlKey || event.metaKey;
    if (!isMarking && cell.matches("a")) return;
    event.preventDefault();
    mark(cell, event.shiftKey);
  });

  document.addEventListener("keydown", (event) => {
    const cell = event.target.closest?.("[data-key]");
    if (!cell || !grid()?.contains(cell)) return;
    const known = cells();
    const n = known.indexOf(cell);
    const target = {
      ArrowLeft: () => known[n - 1],
      ArrowRight: () => known[n + 1],
      ArrowUp: () => besideInRow(cell, -1),
      ArrowDown: () => besideInRow(cell, 1),
      Home: () => known[0],
      End: () => known[known.length - 1],
    }[event.key];
    if (target) {
      event.preventDefault();
      const to = target();
      if (to && event.shiftKey) {
        if (anchor === null) mark(cell, false);
        mark(to, true);
      }
      move(cell, to);
    } else if (event.key === " ") {
      event.preventDefault();
      mark(cell, event.shiftKey);
    }
  });

  // What a person writes into the field replaces the marks.
  document.addEventListener("input", (event) => {
    if (!event.target.matches("input[data-marks]")) return;
    marked.clear();
    anchor = null;
    show();
  });
  document.addEventListener("htmx:after:swap", () => {
    setUp();
    if (marked.size) apply();
  });
  setUp();
})();
