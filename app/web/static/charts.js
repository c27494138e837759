// Draws what stands in data-chart, again when it changes. The numbers stand in tables below each chart.
"use strict";

(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const drawn = new Map();

  const colours = () =>
    dark.matches ? ["#79b8ff", "#4cc26b", "#ff8a84", "#e3b341"] : ["#0b5cad", "#1a7f37", "#b4232c", "#8a6100"];

  const draw = (place) => {
    const text = place.dataset.chart;
    const before = drawn.get(place.id);
    if (before && before.text === text && before.dark === dark.matches && place.contains(before.plot.root)) return;
    const told = JSON.parse(text);
    const ink = getComputedStyle(document.body).color;
    const line = getComputedStyle(document.documentElement).getPropertyValue("--line").trim();
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
    if (before) before.plot.destroy();
    place.replaceChildren();
    const plot = new uPlot(
      {
        width: place.clientWidth,
        height: 220,
        axes: [axis, { ...axis, size: 60 }],
        scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
        series: [{}, ...told.names.map((name, n) => ({ label: name, stroke: colours()[n], width: 2, spanGaps: false }))],
      },
      told.data,
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
