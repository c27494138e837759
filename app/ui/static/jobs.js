// The list of jobs: how many rows are selected, ranges by shift-click, and saved views, which stay in this browser.
"use strict";

(() => {
  const live = document.getElementById("live");
  let lastPicked = null;

  const showCount = () => {
    const shown = document.getElementById("selected-count");
    if (!shown) return;
    const count = live.querySelectorAll("tbody .pick :checked").length;
    const text = `${count} selected`;
    if (shown.textContent !== text) shown.textContent = text;
    shown.hidden = count === 0;
  };

  live.addEventListener("click", (event) => {
    if (!event.target.matches(".pick input")) return;
    const boxes = [...live.querySelectorAll("tbody .pick input")];
    const from = boxes.indexOf(lastPicked);
    const to = boxes.indexOf(event.target);
    if (event.shiftKey && from >= 0) {
      boxes.slice(Math.min(from, to), Math.max(from, to) + 1).forEach((box) => {
        box.checked = event.target.checked;
      });
    }
    lastPicked = event.target;
    showCount();
  });
  document.addEventListener("htmx:after:swap", showCount);
  window.addEventListener("pageshow", showCount);
})();

(() => {
  const KEY = "dataloader.views";
  const list = document.getElementById("saved-views");
  const form = document.getElementById("save-view");

  const load = () => {
    try {
      const views = JSON.parse(localStorage.getItem(KEY) || "[]");
      return Array.isArray(views) ? views.filter((view) => typeof view.name === "string" && typeof view.query === "string") : [];
    } catch {
      return []; // not readable, or what another program has written
    }
  };
  const store = (views) => {
    try {
      localStorage.setItem(KEY, JSON.stringify(views));
    } catch {
      // Storage is full or forbidden: the views stay as they were.
    }
    show();
  };
  // What was deleted last can be put back at its place, until the page is left.
  const offerUndo = (views, name) => {
    const undo = document.createElement("button");
    undo.type = "button";
    undo.className = "sm";
    undo.textContent = "Undo";
    undo.addEventListener("click", () => store(views));
    const text = document.createElement("span");
    text.setAttribute("role", "status");
    text.textContent = `Deleted ${name}.`;
    const row = document.createElement("li");
    row.append(text, undo);
    list.append(row);
    list.hidden = false;
    undo.focus();
  };
  const item = (view) => {
    const link = document.createElement("a");
    link.className = "btn";
    link.href = `/jobs?${view.query}`;
    link.textContent = view.name;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "sm quiet";
    remove.textContent = "Delete";
    remove.setAttribute("aria-label", `Delete the view ${view.name}`);
    remove.addEventListener("click", () => {
      const views = load();
      store(views.filter((other) => other.name !== view.name));
      offerUndo(views, view.name);
    });
    const row = document.createElement("li");
    row.append(link, remove);
    return row;
  };
  const show = () => {
    const views = load();
    list.replaceChildren(...views.map(item));
    list.hidden = views.length === 0;
  };

  form.hidden = false;
  show();
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const name = form.elements.name.value.trim();
    const fields = new URLSearchParams(location.search);
    for (const field of [...fields.keys()]) if (field === "after" || !fields.get(field)) fields.delete(field);
    if (!name) return;
    store([...load().filter((view) => view.name !== name), { name, query: fields.toString() }]);
    form.reset();
  });
})();
