// Refreshes the live part of a page every two seconds. All pages work without scripts.
"use strict";

(() => {
  const live = document.getElementById("live");
  const bar = document.querySelector(".refresh");
  if (!live || !bar) return;
  const status = bar.querySelector("[role=status]");
  const pauseButton = bar.querySelector("button");
  const format = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: document.body.dataset.zone || "UTC" });
  const REFRESHING = "Refreshing every 2 s";
  let version = "";
  let paused = false;
  let refreshedAt = new Date();

  // True while the user works in the live part: in a field, at a button, in an open form, with selected text, or with a
  // changed check box in a form that changes something.
  const isInUse = () => {
    const focused = document.activeElement;
    const selection = document.getSelection();
    return (
      (focused && live.contains(focused) && focused.matches("input, select, textarea, form button") && !focused.closest("[data-keep-refreshing]")) ||
      live.querySelector("details[open] form, form:not([data-keep-refreshing]):hover") !== null ||
      live.querySelector("tbody .pick :checked") !== null ||
      [...live.querySelectorAll("form[method=post] [type=checkbox]")].some((box) => box.checked !== box.defaultChecked) ||
      document.body.dataset.searching !== undefined ||
      (selection && !selection.isCollapsed && live.contains(selection.anchorNode))
    );
  };

  const showStatus = (text, stale = false) => {
    bar.classList.toggle("stale", stale);
    status.classList.toggle("vh", text === REFRESHING || paused);
    if (status.textContent !== text) status.textContent = text;
  };
  const showStale = (reason) => showStatus(`${reason} Data from ${format.format(refreshedAt)}; retrying.`, true);

  bar.hidden = false;
  showStatus(REFRESHING);
  pauseButton.addEventListener("click", () => {
    paused = !paused;
    pauseButton.textContent = paused ? "Resume" : "Pause";
    showStatus(paused ? "Paused" : REFRESHING);
  });

  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement !== live) return;
    if (paused || document.hidden || isInUse()) {
      event.preventDefault();
      if (!paused && !document.hidden) showStatus(document.body.dataset.searching ? "Paused: a search is shown" : "Paused while you edit");
      return;
    }
    ctx.request.headers["X-Seen"] = version;
  });

  document.addEventListener("htmx:after:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement !== live || !ctx.response) return;
    const { status: code, headers } = ctx.response;
    if (code >= 400) {
      showStale(code === 503 ? "Database unavailable." : `Server error ${code}.`);
      return;
    }
    if (live.querySelector("[data-unavailable]")) {
      location.reload(); // the data is available again: load the whole page, not only its live part
      return;
    }
    version = headers.get("X-Version") || version;
    refreshedAt = new Date();
    showStatus(REFRESHING);
  });

  // An error response is not part of the page, and a response that arrives while the user edits is dropped.
  const openDetails = new Set();
  const detailsKey = (details) => `${details.closest("[id]").id} ${details.querySelector("summary").textContent}`;
  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement !== live || !ctx.response) return;
    if (ctx.response.status >= 400 || live.querySelector("[data-unavailable]") || isInUse()) {
      if (ctx.response.status < 400) version = "";
      event.preventDefault();
      return;
    }
    openDetails.clear();
    live.querySelectorAll("details[open]").forEach((details) => openDetails.add(detailsKey(details)));
  });
  // Sections that the user opened stay open.
  document.addEventListener("htmx:after:swap", () => {
    live.querySelectorAll("details:not([open])").forEach((details) => {
      if (openDetails.has(detailsKey(details))) details.open = true;
    });
  });
  document.addEventListener("htmx:error", () => showStale("No response from the server."));
})();

// The clock of the header shows the time of the server in the zone of the page, whatever this machine's clock says.
(() => {
  const clock = document.getElementById("clock");
  if (!clock) return;
  const aheadMs = Date.parse(clock.dateTime) - Date.now();
  const zone = clock.textContent.trim().slice("16:42:10".length);
  const format = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: document.body.dataset.zone });
  setInterval(() => {
    clock.textContent = format.format(Date.now() + aheadMs) + zone;
  }, 1000);
})();

// Continues a search that ended before a page was full, request by request, and says how far back it is. It begins by
// itself, waits while the tab is hidden, and its link stops it.
(() => {
  const searching = document.body.dataset;
  const whenVisible = () =>
    document.hidden && new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

  const continueSearch = async (link) => {
    const table = document.querySelector("[data-results]");
    const unit = table.dataset.unit;
    const status = document.getElementById("scanned");
    searching.searching = "now";
    link.textContent = "Stop";
    link.setAttribute("role", "button");
    let href = link.href;
    let scanned = Number(table.dataset.scanned);
    let rows = table.querySelectorAll("tbody tr").length;
    const limit = Number(table.dataset.limit);
    const target = rows < limit ? limit : rows + limit;
    while (href && rows < target && searching.searching === "now") {
      await whenVisible();
      const response = await fetch(href, { headers: { "HX-Request": "true" } }).catch(() => null);
      if (!response || !response.ok) {
        status.textContent = "Search interrupted.";
        break;
      }
      const fragment = new DOMParser().parseFromString(await response.text(), "text/html");
      const more = fragment.querySelector("[data-results]");
      scanned += Number(more.dataset.scanned);
      table.querySelector("tbody").append(...more.querySelectorAll("tbody tr"));
      rows = table.querySelectorAll("tbody tr").length;
      table.hidden = rows === 0;
      const next = fragment.querySelector("a[rel=next]");
      href = next ? new URL(next.getAttribute("href"), location.href).href : "";
      const count = scanned.toLocaleString("en").replaceAll(",", "\u202f");
      const end = more.dataset.to ? `Searched back to ${more.dataset.to}` : "Searched all";
      status.textContent = `${end}: ${rows} found in ${count} ${unit}${scanned === 1 ? "" : "s"}.`;
    }
    searching.searching = "over";
    if (href) {
      const address = new URL(href);
      address.searchParams.set("continued", "on");
      link.href = address.href;
      link.textContent = "Search further back";
      link.removeAttribute("role");
    } else link.remove();
  };

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-continue]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    if (searching.searching === "now") searching.searching = "stopped";
    else continueSearch(link);
  });
  const link = document.querySelector("a[data-continue]");
  if (link) continueSearch(link);
})();

// Keeps the input of a form that could not be submitted: the session had expired, the database was unavailable, or a
// value was rejected. The input is kept in this tab only, until another page of the dashboard is opened.
(() => {
  const KEY = "dataloader.draft";
  const inputs = (form) =>
    [...form.elements].filter(
      (input) =>
        input.name &&
        !["csrf_token", "version"].includes(input.name) &&
        !["hidden", "password", "submit"].includes(input.type),
    );
  let submitted = new WeakSet();

  document.addEventListener("submit", (event) => {
    const form = event.target;
    const method = event.submitter?.getAttribute("formmethod") || form.method; // a preview asks by GET
    if (method !== "post" || event.defaultPrevented) return;
    if (submitted.has(form)) {
      event.preventDefault(); // the second click of a double click
      return;
    }
    submitted.add(form);
    const values = inputs(form).map((input) => [input.name, input.type === "checkbox" ? input.checked : input.value]);
    if (!values.length) return;
    try {
      sessionStorage.setItem(KEY, JSON.stringify({ page: location.pathname, action: form.getAttribute("action"), values }));
    } catch {
      // Storage is full or forbidden: the draft is not kept.
    }
  });
  window.addEventListener("pageshow", () => {
    submitted = new WeakSet(); // back on the page: the form may be submitted again
  });

  const draft = JSON.parse(sessionStorage.getItem(KEY) || "null");
  if (document.querySelector("[data-no-draft]")) {
    // An error page or the login page: the form was not submitted.
    if (draft) sessionStorage.setItem(KEY, JSON.stringify({ ...draft, isRefused: true }));
    return;
  }
  sessionStorage.removeItem(KEY);
  const form = draft?.isRefused && draft.page === location.pathname && [...document.forms].find((candidate) => candidate.getAttribute("action") === draft.action);
  if (!form || document.querySelector("main [role=alert]")) return; // the page shows the error and the input itself
  for (const [name, value] of draft.values) {
    const field = form.elements[name];
    if (!field) continue;
    if (field.type === "checkbox") field.checked = value;
    else field.value = value;
  }
  const details = form.closest("details");
  if (details) details.open = true;
  const note = document.createElement("p");
  note.setAttribute("role", "status");
  note.textContent = "Not submitted. Your input was kept.";
  form.prepend(note);
  form.scrollIntoView({ block: "center" });
})();

// The slash key focuses the search, and the question mark shows the keys, unless a field has the focus.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.activeElement.matches("input, select, textarea")) return;
  const search = document.getElementById("q");
  const shortcuts = document.getElementById("shortcuts");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
  }
  if (event.key === "?" && shortcuts) shortcuts.togglePopover();
});
