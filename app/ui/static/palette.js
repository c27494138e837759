// The command palette: Ctrl-K opens a list of pages, tasks, queues and schedules. Without scripts the search does the same.
"use strict";

(() => {
  const dialog = document.getElementById("palette");
  if (!dialog) return;
  const field = document.getElementById("palette-text");
  const list = document.getElementById("palette-list");
  const MAX_SHOWN = 12;
  let entries = null;
  let chosen = 0;

  const load = async () => {
    if (entries) return;
    const response = await fetch("/palette").catch(() => null);
    entries = response && response.ok ? (await response.json()).entries : [];
    show();
  };

  // Matches that begin with the text come before those that contain it; each word of the text must occur.
  const matching = (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = (entries || []).filter((entry) => {
      const name = `${entry.title} ${entry.kind}`.toLowerCase();
      return words.every((word) => name.includes(word));
    });
    const starts = (entry) => (words.length && entry.title.toLowerCase().startsWith(words[0]) ? 0 : 1);
    return found.sort((a, b) => starts(a) - starts(b));
  };

  const option = (entry, index) => {
    const item = document.createElement("li");
    item.id = `palette-${index}`;
    item.setAttribute("role", "option");
    item.dataset.path = entry.path;
    const kind = document.createElement("span");
    kind.textContent = entry.kind;
    item.append(entry.title, " ", kind);
    return item;
  };

  const choose = (index) => {
    const items = [...list.children];
    chosen = items.length ? (index + items.length) % items.length : 0;
    items.forEach((item, n) => item.setAttribute("aria-selected", String(n === chosen)));
    if (items.length) {
      field.setAttribute("aria-activedescendant", items[chosen].id);
      items[chosen].scrollIntoView({ block: "nearest" });
    } else field.removeAttribute("aria-activedescendant");
  };

  const show = () => {
    const text = field.value.trim();
    const found = matching(text).slice(0, MAX_SHOWN);
    if (text) found.push({ kind: "job id, key or text", title: `Search for ${text}`, path: `/search?q=${encodeURIComponent(text)}` });
    list.replaceChildren(...found.map(option));
    choose(0);
  };

  const open = () => {
    if (dialog.open) return;
    field.value = "";
    list.replaceChildren();
    dialog.showModal();
    load();
    show();
  };

  const go = () => {
    const item = list.children[chosen];
    if (item) location.assign(item.dataset.path);
  };

  field.addEventListener("input", show);
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") choose(chosen + 1);
    else if (event.key === "ArrowUp") choose(chosen - 1);
    else return;
    event.preventDefault();
  });
  dialog.querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    go();
  });
  list.addEventListener("click", (event) => {
    const item = event.target.closest("li");
    if (item) location.assign(item.dataset.path);
  });
  dialog.addEventListener("mousedown", (event) => {
    const box = dialog.getBoundingClientRect();
    const isInside = event.clientX >= box.left && event.clientX <= box.right && event.clientY >= box.top && event.clientY <= box.bottom;
    if (!isInside) dialog.close();
  });
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey || event.key.toLowerCase() !== "k") return;
    event.preventDefault();
    open();
  });
})();
