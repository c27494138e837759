// Draws the charts from their data-chart attributes, and again when these change. A table below each has the data.
"use strict";

(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map();
  const timeZone = document.body.dataset.zone || "UTC";
  const format = (options) => new Intl.DateTimeFormat("en-GB", { timeZone, ...options });
  const clock = format({ hour: "2-digit", minute: "2-digit" });
  const day = format({ day: "numeric", month: "short" });
  const full = format({ dateStyle: "medium", timeStyle: "short" });
  const DAY_SEC = 86_400;

  // One colour per series name, in all charts; the colours of tokens.css.
  const COLORS = {
    good: ["#1a7735", "#4fc36e"],
    bad: ["#b8222b", "#ff8f89"],
    busy: ["#0a5dbd", "#6fb4ff"],
    odd: ["#7f5300", "#e3b552"],
    held: ["#7a2fa0", "#d39af2"],
    late: ["#00696b", "#4cc9c4"],
    soft: ["#5f6873", "#97a2ae"],
  };
  const SERIES_COLORS = {
    succeeded: "good", failed: "bad", lost: "odd", retries: "busy", canceled: "soft", queued: "busy",
    p50: "busy", p95: "odd", ready: "busy", scheduled: "soft", blocked: "odd", limited: "held", waiting: "late", running: "good",
    value: "busy", low: "soft", high: "soft",
  };
  const OTHER_COLORS = ["busy", "odd", "good", "bad", "soft", "held", "late"]; // of names such as those of tasks, in turn
  const color = (name, n) => COLORS[SERIES_COLORS[name] || OTHER_COLORS[n % OTHER_COLORS.length]][dark.matches ? 1 : 0];

  const number = new Intl.NumberFormat("en-US", { notation: "compact", maximumSignificantDigits: 4 });
  // Steps of an axis of durations: those that people count in.
  const DURATIONS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200,
    10_800, 21_600, 43_200, 86_400, 172_800, 432_000, 864_000];
  const duration = (sec) => {
    for (const [size, unit] of [[86_400, "d"], [3_600, "h"], [60, "min"]]) if (sec >= size) return `${+(sec / size).toFixed(1)} ${unit}`;
    return `${+sec.toFixed(2)} s`;
  };

  // Times are in the zone of the page, not of the browser, as all other times on it are.
  const ticks = (_, splits, axis, space, step) =>
    splits.map((at, n) => {
      const time = new Date(at * 1000);
      if (step >= DAY_SEC) return day.format(time);
      const isNewDay = n === 0 || day.format(new Date(splits[n - 1] * 1000)) !== day.format(time);
      return isNewDay ? `${clock.format(time)}\n${day.format(time)}` : clock.format(time);
    });

  const draw = (container) => {
    const text = container.dataset.chart;
    const previous = plots.get(container.id);
    if (previous && previous.text === text && previous.dark === dark.matches && container.contains(previous.plot.root)) return;
    const { unit, names, data, times } = JSON.parse(text); // with times, x counts the points
    const timeOf = (x) => new Date((times ? times[x] : x) * 1000);
    const isOneDay = times && day.format(timeOf(0)) === day.format(timeOf(times.length - 1));
    const pointTicks = (_, splits) => splits.map((x) => (times[x] ? (isOneDay ? clock : day).format(timeOf(x)) : ""));
    const ink = getComputedStyle(document.body).color;
    const line = getComputedStyle(document.querySelector(".top")).borderBottomColor;
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    if (previous) previous.plot.destroy();
    container.replaceChildren();
    const plot = new uPlot(
      {
        width: container.clientWidth,
        height: 220,
        tzDate: (at) => uPlot.tzDate(new Date(at * 1000), timeZone),
        axes: [
          { ...axis, size: 40, values: times ? pointTicks : ticks },
          unit === "seconds"
            ? { ...axis, size: 64, incrs: DURATIONS, values: (_, splits) => splits.map(duration) }
            : { ...axis, size: 64, values: (_, splits) => splits.map((value) => number.format(value)) },
        ],
        legend: { show: false }, // the page has its own, with the figures
        cursor: { y: false },
        scales: { x: { time: !times }, y: { range: (_, low, high) => [Math.min(low, 0) * 1.05, high > 0 ? high * 1.05 : 1] } },
        series: [
          { label: "Time", value: (_, at) => (at === null ? "--" : full.format(timeOf(at))) },
          ...names.map((name, n) => ({ label: name, stroke: color(name, n), width: 2, spanGaps: false, dash: n < OTHER_COLORS.length ? [] : [6, 4] })),
        ],
      },
      data,
      container,
    );
    plots.set(container.id, { plot, text, dark: dark.matches });
  };

  const drawAll = () => document.querySelectorAll("[data-chart]").forEach(draw);
  document.addEventListener("htmx:after:swap", drawAll);
  dark.addEventListener("change", drawAll);
  window.addEventListener("resize", () =>
    plots.forEach(({ plot }, id) => plot.setSize({ width: document.getElementById(id).clientWidth, height: 220 })),
  );
  drawAll();
})();
