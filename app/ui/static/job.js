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
