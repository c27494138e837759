// Filters the rows of a table while a text is typed. Without scripts the form asks the server.
"use strict";

(() => {
  const field = document.querySelector("[data-filters]");
  if (!field) return;
  const apply = () => {
    const text = field.value.trim().toLowerCase();
    document.querySelectorAll(`${field.dataset.filters} tbody tr[data-text]`).forEach((row) => {
      row.hidden = text !== "" && !row.dataset.text.toLowerCase().includes(text);
    });
  };
  field.addEventListener("input", apply);
  document.addEventListener("htmx:after:swap", apply);
  apply();
})();
