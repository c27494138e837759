// Draws the picture of a graph from its data-graph attribute, and again when that changes. The table below it has the same content.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const WIDTH = 236, HEIGHT = 52, MARGIN = 8, MAX_TEXT = 31;
  // Each state has a shape of its own, as in the rest of the dashboard, so that colour is never alone.
  const SHAPES = {
    succeeded: "M0 7 2 5 5 8 10 1 12 3 5 12Z",
    running: "M1 0 11 6 1 12Z",
    failed: "M2 0 6 4 10 0 12 2 8 6 12 10 10 12 6 8 2 12 0 10 4 6 0 2Z",
    lost: "M2 0 6 4 10 0 12 2 8 6 12 10 10 12 6 8 2 12 0 10 4 6 0 2Z",
    canceled: "M0 5H12V7H0Z",
    skipped: "M0 5H12V7H0Z",
    ready: "M6 1A5 5 0 1 1 5.99 1Z",
    waiting: "M1 0H11L7 6 11 12H1L5 6Z",
  };
  const drawn = new Map();

  const element = (name, attributes, ...children) => {
    const made = document.createElementNS(SVG, name);
    Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
    made.append(...children);
    return made;
  };
  const text = (content, x, y, css) => element("text", { x, y, class: css }, content);
  const shorten = (content) => (content.length > MAX_TEXT ? `${content.slice(0, MAX_TEXT - 1)}…` : content);

  const layout = ({ nodes, edges }) => {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "LR", nodesep: 22, ranksep: 80, marginx: MARGIN, marginy: MARGIN });
    graph.setDefaultEdgeLabel(() => ({}));
    nodes.forEach((node) => graph.setNode(node.id, { width: WIDTH, height: HEIGHT }));
    edges.forEach((edge) => graph.setEdge(edge.from, edge.to, { ...edge }));
    dagre.layout(graph);
    return graph;
  };

  const drawEdge = (edge, from, to) => {
    const [x1, x2] = [from.x + WIDTH / 2, to.x - WIDTH / 2];
    const middle = (x1 + x2) / 2;
    const between = edge.points.slice(1, -1).map(({ x, y }) => ` ${x} ${y}`).join("");
    const line = between.trim() && edge.points.length > 3
      ? `M${x1} ${from.y} L${between} ${x2} ${to.y}`
      : `M${x1} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${x2} ${to.y}`;
    const kind = edge.hot ? " hot" : edge.met === false ? " off" : "";
    return element("path", { class: `edge on-${edge.on}${kind}`, d: line });
  };

  const drawNode = (node, { x, y }) => {
    const [left, top] = [x - WIDTH / 2, y - HEIGHT / 2];
    const box = element("rect", { class: "soft", x: left, y: top, width: WIDTH, height: HEIGHT, rx: 6 });
    const mark = element("g", { transform: `translate(${left + 14} ${top + 14})` },
      element("path", { class: "f", d: SHAPES[node.state] || SHAPES.waiting }));
    const title = element("title", {}, `${node.label}: ${node.about}`);
    const parts = [title, box, mark, text(shorten(node.label), left + 32, top + 23, node.hot ? "ink node hot" : "node mono"),
      text(shorten(node.line || node.about), left + 32, top + 41, "")];
    const attributes = { class: node.state, "data-node": node.id };
    return node.link ? element("a", { ...attributes, href: node.link }, ...parts) : element("g", attributes, ...parts);
  };

  const draw = (container) => {
    const data = container.dataset.graph;
    if (drawn.get(container) === data && container.firstChild) return;
    const focused = document.activeElement?.closest?.("[data-node]")?.dataset.node;
    const picture = JSON.parse(data);
    const graph = layout(picture);
    const { width, height } = graph.graph();
    const label = container.dataset.label;
    const svg = element("svg", { class: "pic graph", width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": label });
    svg.append(...graph.edges().map((edge) => drawEdge(graph.edge(edge), graph.node(edge.v), graph.node(edge.w))));
    svg.append(...picture.nodes.map((node) => drawNode(node, graph.node(node.id))));
    const { scrollLeft } = container;
    container.replaceChildren(svg);
    container.scrollLeft = scrollLeft;
    drawn.set(container, data);
    if (focused) container.querySelector(`a[data-node="${CSS.escape(focused)}"]`)?.focus();
  };

  const drawAll = () => document.querySelectorAll("[data-graph]").forEach(draw);
  document.addEventListener("htmx:after:swap", drawAll);
  drawAll();
})();
