// Refreshing without getting in anybody's way. Everything here is a comfort: the pages work without it.
"use strict";

(() => {
  const live = document.getElementById("live");
  const bar = document.querySelector(".refresh");
  if (!live || !bar) return;
  const told = bar.querySelector("[role=status]");
  const pause = bar.querySelector("button");
  let seen = "";
  let paused = false;

  // Somebody is at work in what would be replaced: in a field, in an open form, with a selection.
  const busy = () => {
    const at = document.activeElement;
    const selection = document.getSelection();
    return (
      (at && live.contains(at) && at.matches("input, select, textarea")) ||
      live.querySelector("details[open] form") !== null ||
      (selection && !selection.isCollapsed && live.contains(selection.anchorNode))
    );
  };

  const say = (text) => {
    if (told.textContent !== text) told.textContent = text;
  };

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
    seen = ctx.response.headers.get("X-Version") || seen;
    say(ctx.response.status < 400 ? "Refreshes by itself." : `The service answers with ${ctx.response.status}; trying again.`);
  });

  // What an error answers with is no part of this page.
  document.addEventListener("htmx:before:swap", (event) => {
    const { ctx } = event.detail;
    if (ctx.sourceElement === live && ctx.response && ctx.response.status >= 400) event.preventDefault();
  });
  document.addEventListener("htmx:error", () => say("No answer from the service; trying again."));
})();

// The log of a job: follow its end, and show only the lines with a word.
(() => {
  const follow = document.getElementById("follow");
  const find = document.getElementById("find");
  const log = () => document.querySelector("#live .log");
  if (!log()) return;

  const apply = () => {
    const word = find.value.toLowerCase();
    let shown = 0;
    for (const line of log().children) {
      line.hidden = word !== "" && !line.textContent.toLowerCase().includes(word);
      shown += line.hidden ? 0 : 1;
    }
    document.getElementById("found").textContent = word ? `${shown} lines` : "";
    if (follow.checked) log().scrollTop = log().scrollHeight;
  };

  find.addEventListener("input", apply);
  follow.addEventListener("change", apply);
  document.addEventListener("htmx:after:swap", apply);
  apply();
})();

// A slash goes to the search, unless somebody writes one.
document.addEventListener("keydown", (event) => {
  const search = document.querySelector("[type=search]");
  if (event.key !== "/" || !search || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.activeElement.matches("input, select, textarea")) return;
  event.preventDefault();
  search.focus();
});
