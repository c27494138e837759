// The page of a job: follow new log lines, show only those that contain a text, copy the args.
"use strict";

(() => {
  const field = (id) => document.getElementById(id);
  const log = () => field("log");
  let height = 0;

  const apply = () => {
    if (!log() || !field("follow")) return;
    const text = field("search").value.toLowerCase();
    let shown = 0;
    for (const line of log().querySelectorAll("tbody tr")) {
      line.hidden = text !== "" && !line.lastElementChild.textContent.toLowerCase().includes(text);
      shown += line.hidden ? 0 : 1;
    }
    field("match-count").textContent = text
      ? `${shown} matching ${shown === 1 ? "line" : "lines"} shown; press Enter to search the full log`
      : "";
    if (field("follow").checked) log().scrollTop = log().scrollHeight;
    height = log().scrollHeight;
  };

  document.addEventListener("input", (event) => event.target.id === "search" && apply());
  document.addEventListener("change", (event) => event.target.id === "follow" && apply());
  // Scrolling back stops following; scrolling to the end starts it again. A scroll event does not bubble.
  document.addEventListener("scroll", (event) => {
    if (event.target !== log() || !field("follow") || log().scrollHeight !== height) return;
    field("follow").checked = log().scrollTop + log().clientHeight >= log().scrollHeight - 4;
  }, true);
  document.addEventListener("htmx:after:swap", apply);
  apply();
  // A line that the address names stays in view.
  if (location.hash.startsWith("#L")) document.querySelector(location.hash)?.scrollIntoView({ block: "center" });

  // A part that is read every two seconds while it is open. What the user has opened in it stays open.
  const refreshPanel = async (panel) => {
    const isPaused = document.querySelector(".refresh button")?.textContent === "Resume";
    const selection = document.getSelection();
    const isInUse = selection && !selection.isCollapsed && panel.contains(selection.anchorNode);
    if (panel.dataset.loading || document.hidden || isPaused || isInUse) return;
    panel.dataset.loading = "true";
    const part = panel.lastElementChild;
    try {
      const response = await fetch(panel.dataset.panel, { headers: { "HX-Request": "true" } });
      const page = new DOMParser().parseFromString(await response.text(), "text/html");
      const found = response.ok && page.getElementById(part.id);
      const opened = [...part.querySelectorAll("details[open][id]")].map((details) => details.id);
      if (found) part.replaceChildren(...found.childNodes);
      opened.forEach((id) => field(id)?.setAttribute("open", ""));
      part.classList.toggle("stale", !found);
    } catch {
      part.classList.add("stale"); // the service does not answer; the next request may be answered
    } finally {
      delete panel.dataset.loading;
    }
  };
  setInterval(() => document.querySelectorAll("details[data-panel][open]").forEach(refreshPanel), 2000);
  // The event does not bubble.
  document.addEventListener("toggle", ({ target }) => target.matches("details[data-panel][open]") && refreshPanel(target), true);

  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    try {
      await navigator.clipboard.writeText(field(button.dataset.copy).textContent);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy"; // the browser allows it on secure pages only
    }
  });
})();
