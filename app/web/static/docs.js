"use strict";
// Sends what a "Try it" form holds, and shows the answer as text.
for (const form of document.querySelectorAll("form.try")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.querySelector("pre");
    shown.hidden = false;
    shown.textContent = "…";
    try {
      shown.textContent = await ask(form);
    } catch (error) {
      shown.textContent = `No answer: ${error.message}`;
    }
  });
}

async function ask(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  for (const input of form.querySelectorAll("input")) {
    if (input.dataset.in === "path") {
      path = path.replace(`{${input.name}}`, encodeURIComponent(input.value));
    } else if (input.value) {
      query.set(input.name, input.value);
    }
  }
  const body = form.querySelector("textarea");
  const response = await fetch(query.size ? `${path}?${query}` : path, {
    method: form.dataset.method,
    headers: { ...(body && { "Content-Type": "application/json" }), ...token() },
    body: body ? body.value : undefined,
  });
  const text = await response.text();
  return `${response.status} ${response.statusText}\n\n${pretty(text)}`;
}

// Of the browser's session: what changes something must show it.
function token() {
  const told = document.querySelector('meta[name="csrf-token"]');
  return told ? { "X-CSRF-Token": told.content } : {};
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
