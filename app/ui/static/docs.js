"use strict";
// Sends the request of a "Try it" form and shows the response as text.
for (const form of document.querySelectorAll("form.try")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const output = form.querySelector("pre");
    output.hidden = false;
    output.textContent = "…";
    try {
      output.textContent = await send(form);
    } catch (error) {
      output.textContent = `Request failed: ${error.message}`;
    }
  });
}

async function send(form) {
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

// The CSRF token of the session, which requests that change something must send.
function token() {
  const meta = document.querySelector('meta[name="csrf-token"]');
  return meta ? { "X-CSRF-Token": meta.content } : {};
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// Filters the routes while the user types; without scripts the form does so.
(() => {
  const field = document.getElementById("route-search");
  const status = document.getElementById("route-count");
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const route of document.querySelectorAll(".route")) {
      const text = `${route.querySelector("summary").textContent} ${route.id}`.toLowerCase();
      route.hidden = !words.every((word) => text.includes(word));
      shown += route.hidden ? 0 : 1;
    }
    for (const section of document.querySelectorAll(".routes")) {
      section.hidden = section.querySelector(".route:not([hidden])") === null;
    }
    status.textContent = words.length ? `${shown} ${shown === 1 ? "route" : "routes"}` : "";
  });

  // A link to a route opens it.
  const openTarget = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.matches("details")) target.open = true;
  };
  window.addEventListener("hashchange", openTarget);
  openTarget();
})();
