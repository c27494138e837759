// Draws what stands in data-chart, again when it changes. The numbers stand in tables below each chart.
"use strict";

(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();
  const timeZone = document.body.dataset.zone || "UTC";
  const told = (options) => new Intl.DateTimeFormat("en-GB", { timeZone, ...options });
  const clock = told({ hour: "2-digit", minute: "2-digit" });
  const day = told({ day: "numeric", month: "short" });
  const full = told({ dateStyle: "medium", timeStyle: "short" });
  const DAY_SEC = 86_400;

  // One colour for one thing, in all charts.
  const COLOURS = {
    good: ["#1a7f37", "#4cc26b"],
    bad: ["#b4232c", "#ff8a84"],
    busy: ["#0b5cad", "#79b8ff"],
    odd: ["#8a6100", "#e3b341"],
    soft: ["#57606a", "#a3aebb"],
  };
  const MEANS = {
    succeeded: "good", failed: "bad", lost: "odd", "tries again": "busy", canceled: "soft", queued: "busy",
    p50: "busy", p95: "odd", ready: "busy", "not due": "soft", "key busy": "odd", running: "good",
  };
  const colour = (name) => COLOURS[MEANS[name] || "busy"][dark.matches ? 1 : 0];

  // The page's zone, not the browser's: beside every other time there must not stand another one.
  const ticks = (_, splits, axis, space, step) =>
    splits.map((at, n) => {
      const moment = new Date(at * 1000);
      if (step >= DAY_SEC) return day.format(moment);
      const first = n === 0 || day.format(new Date(splits[n - 1] * 1000)) !== day.format(moment);
      return first ? `${clock.format(moment)}\n${day.format(moment)}` : clock.format(moment);
    });

  const draw = (place) => {
    const text = place.dataset.chart;
    const before = drawn.get(place.id);
    if (before && before.text === text && before.dark === dark.matches && place.contains(before.plot.root)) return;
    const { names, data } = JSON.parse(text);
    const ink = getComputedStyle(document.body).color;
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    if (before) before.plot.destroy();
    place.replaceChildren();
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: 220,
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), timeZone),
        axes: [{ ...axis, values: ticks }, { ...axis, size: 60 }],
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
        series: [
          { label: "At", value: (_, at) => (at === null ? "--" : full.format(new Date(at * 1000))) },
          ...names.map((name) => ({ label: name, stroke: colour(name), width: 2, spanGaps: false })),
        ],
      },
      data,
      place,
    );
    drawn.set(place.id, { plot, text, dark: dark.matches });
  };

  const all = () => document.querySelectorAll("[data-chart]").forEach(draw);
  document.addEventListener("htmx:after:swap", all);
  dark.addEventListener("change", all);
  window.addEventListener("resize", () =>
    drawn.forEach(({ plot }, id) => plot.setSize({ width: document.getElementById(id).clientWidth, height: 220 })),
  );
  all();
})();
