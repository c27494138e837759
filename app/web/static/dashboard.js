// Refreshing without getting in anybody's way. Everything here is a comfort: the pages work without it.
"use strict";

(() => {
  const live = document.getElementById("live");
  const bar = document.querySelector(".refresh");
  if (!live || !bar) return;
  const told = bar.querySelector("[role=status]");
  const pause = bar.querySelector("button");
  const clock = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium", timeZone: document.body.dataset.zone || "UTC" });
  let seen = "";
  let paused = false;
  let fresh = new Date();

  // Somebody is at work in what would be replaced: in a field, at a button, in an open form, with a selection.
  const busy = () => {
    const at = document.activeElement;
    const selection = document.getSelection();
    return (
      (at && live.contains(at) && at.matches("input, select, textarea, form button") && !at.closest("[data-calm]")) ||
      live.querySelector("details[open] form, form:not([data-calm]):hover") !== null ||
      document.body.dataset.searching !== undefined ||
      (selection && !selection.isCollapsed && live.contains(selection.anchorNode))
    );
  };

  const say = (text, stale = false) => {
    bar.classList.toggle("stale", stale);
    if (told.textContent !== text) told.textContent = text;
  };
  const old = (why) => say(`${why} What you see is of ${clock.format(fresh)}; trying again.`, true);

  bar.hidden = false;
  say("Refreshes by itself.");
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Go on" : "Pause";
    say(paused ? "Paused." : "Refreshes by itself.");
  });

  document.addEventListener("htmx:config:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement !== live) return;
    if (paused || document.hidden || busy()) {
      event.preventDefault();
      if (!paused && !document.hidden) say("Waits while you are at work here.");
      return;
    }
    ctx.request.headers["X-Seen"] = seen;
  });

  document.addEventListener("htmx:after:request", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement !== live || !ctx.response) return;
    const { status, headers } = ctx.response;
    if (status >= 400) {
      old(status === 503 ? "The service cannot read its tables." : `The service answers with ${status}.`);
      return;
    }
    if (live.querySelector("[data-away]")) {
      location.reload(); // what could not be shown is there again, with all that stands around it
      return;
    }
    seen = headers.get("X-Version") || seen;
    fresh = new Date();
    say("Refreshes by itself.");
  });

  // What an error answers with is no part of this page; nor is what comes when somebody has begun to work meanwhile.
  const opened = new Set();
  const name = (details) => `${details.closest("[id]").id} ${details.querySelector("summary").textContent}`;
  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement !== live || !ctx.response) return;
    if (ctx.response.status >= 400 || live.querySelector("[data-away]") || busy()) {
      if (ctx.response.status < 400) seen = "";
      event.preventDefault();
      return;
    }
    opened.clear();
    live.querySelectorAll("details[open]").forEach((details) => opened.add(name(details)));
  });
  // What somebody has opened stays open.
  document.addEventListener("htmx:after:swap", () => {
    live.querySelectorAll("details:not([open])").forEach((details) => {
      if (opened.has(name(details))) details.open = true;
    });
  });
  document.addEventListener("htmx:error", () => old("No answer from the service."));
})();

// The log of a job: follow its end, and show only the lines with a word.
(() => {
  const log = () => document.querySelector("#live .log");
  const field = (id) => document.getElementById(id);
  if (!field("find") || !log()) return;
  let height = 0;

  const apply = () => {
    const word = field("find").value.toLowerCase();
    let shown = 0;
    for (const line of log().children) {
      line.hidden = word !== "" && !line.textContent.toLowerCase().includes(word);
      shown += line.hidden ? 0 : 1;
    }
    field("found").textContent = word ? `${shown} ${shown === 1 ? "line" : "lines"} of these; Enter searches all.` : "";
    if (field("follow").checked) log().scrollTop = log().scrollHeight;
    height = log().scrollHeight;
  };

  document.addEventListener("input", (event) => event.target.id === "find" && apply());
  document.addEventListener("change", (event) => event.target.id === "follow" && apply());
  // Who scrolls back wants to read there; who comes to the end again follows it again.
  log().addEventListener("scroll", () => {
    if (log().scrollHeight !== height) return;
    field("follow").checked = log().scrollTop + log().clientHeight >= log().scrollHeight - 4;
  });
  document.addEventListener("htmx:after:swap", apply);
  apply();
})();

// A search that ended because its time was over goes on, question by question, until a page is full.
document.addEventListener("click", async (event) => {
  const link = event.target.closest("a[data-onward]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  const place = document.getElementById("found-jobs");
  const told = document.getElementById("looked");
  if (document.body.dataset.searching === "now") {
    document.body.dataset.searching = "stopped";
    return;
  }
  document.body.dataset.searching = "now";
  link.textContent = "Stop";
  link.setAttribute("role", "button");
  let href = link.href;
  let looked = Number(place.dataset.looked);
  let rows = place.querySelectorAll("tbody tr").length;
  const wanted = rows + Number(place.dataset.limit);
  while (href && rows < wanted && document.body.dataset.searching === "now") {
    const answer = await fetch(href, { headers: { "HX-Request": "true" } }).catch(() => null);
    if (!answer || !answer.ok) {
      told.textContent = "The search was interrupted; it can go on.";
      break;
    }
    const part = new DOMParser().parseFromString(await answer.text(), "text/html");
    const more = part.getElementById("found-jobs");
    looked += Number(more.dataset.looked);
    place.querySelector("tbody").append(...more.querySelectorAll("tbody tr"));
    rows = place.querySelectorAll("tbody tr").length;
    place.hidden = rows === 0;
    const next = part.querySelector("a[rel=next]");
    href = next ? new URL(next.getAttribute("href"), location.href).href : "";
    told.textContent = `${looked.toLocaleString("en").replaceAll(",", "\u202f")} ${looked === 1 ? "job" : "jobs"} looked at${more.dataset.to ? `, back to ${more.dataset.to}` : ": all there are"}; ${rows} found.`;
  }
  document.body.dataset.searching = "over";
  if (href) {
    link.href = href;
    link.textContent = "Search on";
    link.removeAttribute("role");
  } else link.remove();
});

// What somebody wrote is not lost when it could not be sent: because the session was over, the database away, or the
// value refused. It is kept in this tab alone, and gone as soon as another page of the service is reached.
(() => {
  const KEY = "dataloader.draft";
  const texts = (form) =>
    [...form.elements].filter((it) => it.name && it.name !== "csrf_token" && it.name !== "version" && !["hidden", "password", "submit"].includes(it.type));
  let sent = new WeakSet();

  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.method !== "post" || event.defaultPrevented) return;
    if (sent.has(form)) {
      event.preventDefault(); // the second of two quick presses
      return;
    }
    sent.add(form);
    const values = texts(form).map((it) => [it.name, it.type === "checkbox" ? it.checked : it.value]);
    if (!values.length || form.closest("[data-undrafted]")) return;
    try {
      sessionStorage.setItem(KEY, JSON.stringify({ page: location.pathname, action: form.getAttribute("action"), values }));
    } catch {
      // No room or not allowed: then it is not kept.
    }
  });
  window.addEventListener("pageshow", () => {
    sent = new WeakSet(); // somebody came back, and may send it again
  });

  if (document.querySelector("[data-drafts]")) return; // a page in between: of a refusal, or to log in
  const draft = JSON.parse(sessionStorage.getItem(KEY) || "null");
  sessionStorage.removeItem(KEY);
  const form = draft && draft.page === location.pathname && [...document.forms].find((it) => it.getAttribute("action") === draft.action);
  if (!form || document.querySelector("main [role=alert]")) return; // the page itself says what is wrong, and has it
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
  note.textContent = "This was not sent. What you wrote is still here.";
  form.prepend(note);
  form.scrollIntoView({ block: "center" });
})();

// A slash goes to the search, unless somebody writes one.
document.addEventListener("keydown", (event) => {
  const search = document.querySelector("[type=search]");
  if (event.key !== "/" || !search || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.activeElement.matches("input, select, textarea")) return;
  event.preventDefault();
  search.focus();
});
