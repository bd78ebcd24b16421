// What a page does in the browser beyond links and forms; it works without any of this, only not by itself.
"use strict";

// Nobody's selection, open list or half-written form is taken away by a refresh: the next change tries again.
document.addEventListener("htmx:beforeRequest", (event) => {
  const place = event.target;
  const selected = document.getSelection();
  const busy = place.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  // An explanation that is there reads the lake again only where somebody sees it; whoever tabs through it keeps the focus.
  const held = place.id === "reasons" && place.querySelector(".answer") && (document.hidden || place.contains(document.activeElement));
  if (held || busy || (selected && !selected.isCollapsed && place.contains(selected.anchorNode))) event.preventDefault();
});

// A browser opens six connections to a server, for all its tabs: a tab that nobody sees gives its own back, and what it has
// missed counts as a change.
const streams = new Set();
class Stream extends EventTarget {
  constructor(address) {
    super();
    [this.address, this.readyState, this.source] = [address, EventSource.CONNECTING, null];
    streams.add(this);
    this.resume();
  }
  resume() {
    if (document.hidden || this.source) return;
    this.source = new EventSource(this.address);
    this.source.addEventListener("changed", () => this.dispatchEvent(new Event("changed")));
    this.source.onopen = (event) => this.onopen?.(event);
    this.source.onerror = (event) => {
      this.readyState = event.target.readyState;
      if (this.readyState === EventSource.CLOSED) this.close(); // What it belongs to opens another one.
      this.onerror?.(event);
    };
  }
  pause() {
    this.source?.close();
    this.source = null;
  }
  close() {
    this.pause();
    streams.delete(this);
  }
}
htmx.createEventSource = (address) => new Stream(address);
document.addEventListener("visibilitychange", () => {
  for (const stream of streams) {
    if (document.hidden) stream.pause();
    else { stream.resume(); stream.dispatchEvent(new Event("changed")); }
  }
});

// The page's own server does not answer: said at the top until it does.
let silentSince = null;
for (const name of ["htmx:sendError", "htmx:timeout", "htmx:responseError"]) {
  document.addEventListener(name, (event) => {
    if (event.target.id !== "standing") return;
    silentSince ??= new Date();
    const said = document.createElement("p");
    said.className = "warning";
    said.setAttribute("role", "alert");
    said.textContent = `The server of this page has not answered since ${silentSince.toISOString().slice(11, 19)} UTC: what is shown is from then.`;
    event.target.replaceChildren(said);
  });
}
document.addEventListener("htmx:afterSwap", (event) => { if (event.target.id === "standing") silentSince = null; });

// Lists that were opened stay open.
const opened = new Set();
document.addEventListener("toggle", (event) => {
  const words = event.target.querySelector("summary")?.textContent.replace(/[0-9]+/g, "").trim();
  if (words === undefined) return;
  if (event.target.open) opened.add(words); else opened.delete(words);
}, true);
document.addEventListener("htmx:afterSettle", () => {
  for (const list of document.querySelectorAll("details")) {
    if (opened.has(list.querySelector("summary").textContent.replace(/[0-9]+/g, "").trim())) list.open = true;
  }
});

// Charts. Each is a form by which the columns of an address are drawn; null is a gap.
const HUES = ["#4a9fce", "#dd7f1f", "#2f9e6b", "#8b6fc9", "#8a7a12", "#d3689a", "#5f7d95"], LIMIT = "#b3261e";
const percent = (load) => load === null || load === undefined ? "unknown" : `${Math.round(load * 100)} %`;
const plain = (digits) => (value) => value === null || value === undefined ? "unknown" : value.toFixed(digits);
const limitOf = (columns) => ({ label: "split threshold", values: columns.at.map(() => 1), show: percent, stroke: LIMIT, dash: [6, 4] });
const FORMS = {
  fleet: (columns) => ({
    series: [
      { label: "load, in segments", values: columns.load, show: plain(1), stroke: HUES[0], fill: "#4a9fce33" },
      { label: "segments", values: columns.segments, show: plain(0), stroke: HUES[1], stepped: true },
      { label: "topics over their threshold", values: columns.over, show: plain(0), stroke: LIMIT, stepped: true },
      { label: "actions", values: columns.actions, show: plain(0), stroke: HUES[2], bars: true },
    ],
    zero: true,
  }),
  loads: (columns) => ({
    series: [...columns.segments.map((segment, number) => ({
      label: `segment ${segment.id}`, values: segment.load, show: percent, stroke: HUES[number % HUES.length], stepped: true,
      dash: number < HUES.length ? [] : [4, 3],
    })), limitOf(columns)],
    axis: axisPercent, zero: true,
  }),
  active: (columns) => ({
    series: [{ label: "active segments", values: columns.active, show: plain(0), stroke: HUES[0], stepped: true, fill: "#4a9fce33" }],
    zero: true,
  }),
  batches: (columns) => ({
    series: columns.series.map((series, number) => ({
      label: series.label, values: series.values, show: plain(0), stroke: HUES[number % HUES.length], scale: series.label,
    })),
  }),
};
const clock = new Intl.DateTimeFormat("en-GB", { dateStyle: "short", timeStyle: "medium" });
// No two ticks have the same label: there are as many digits, and seconds, as lie between them.
const axisPercent = (_, ticks) => {
  const digits = Math.max(0, Math.ceil(-Math.log10((ticks[1] - ticks[0]) * 100) - 1e-9)) || 0;
  return ticks.map((load) => load === null ? "" : `${(load * 100).toFixed(digits)} %`);
};
const axisClock = (_, ticks) => {
  const range = ticks.at(-1) - ticks[0], step = ticks[1] - ticks[0];
  const form = new Intl.DateTimeFormat("en-GB", {
    ...(range >= 31536000 ? { year: "2-digit" } : {}), ...(range >= 86400 ? { day: "2-digit", month: "2-digit" } : {}),
    hour: "2-digit", minute: "2-digit", ...(step % 60 ? { second: "2-digit" } : {}), ...(step < 1 ? { fractionalSecondDigits: 3 } : {}),
  });
  return ticks.map((at) => form.format(at * 1000));
};
const when = (at) => at === null || at === undefined ? "" : `${clock.format(at * 1000)} (${new Date(at * 1000).toISOString().slice(11, 19)} UTC)`;
function optionsOf(form, columns, width) {
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  const scales = [...new Set(form.series.map((series) => series.scale ?? "y"))];
  return {
    width, height: 260, cursor: { sync: { key: "time" } },
    scales: { x: columns.window ? { range: () => columns.window } : {}, ...(form.zero ? { y: { range: (_, low, high) => [0, Math.max(high ?? 1, 1) * 1.08] } } : {}) },
    series: [{ label: "time", value: (plot, at, _, index) => when(index === null ? plot.data[0].at(-1) : at) }, ...form.series.map((series) => ({
      label: series.label, scale: series.scale ?? "y", stroke: series.stroke, fill: series.fill, dash: series.dash, width: 1.5,
      paths: series.bars ? uPlot.paths.bars({ size: [0.4, 4] }) : series.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: { show: false }, // Without a mouse on the plot: the newest.
      value: (plot, value, number, index) => series.show(index === null ? plot.data[number].at(-1) : value),
    }))],
    axes: [{ ...axis, values: axisClock }, ...scales.map((scale, number) => ({
      ...axis, scale, side: number ? 1 : 3, size: 64, ...(form.axis ? { values: form.axis } : {}),
    }))],
  };
}
// Charts of the same address ask once.
const asked = new Map();
function columnsOf(url) {
  if (!asked.has(url)) {
    const answer = fetch(url).then((reply) => reply.ok ? reply.json() : Promise.reject(new Error(reply.status)));
    asked.set(url, answer.finally(() => asked.delete(url)));
  }
  return asked.get(url);
}
// Draws a chart, or draws it anew: the plot stays while its series do, and so does the mouse on it.
async function draw(chart) {
  let columns;
  try {
    columns = await columnsOf(chart.dataset.url);
  } catch {
    chart.dataset.state = "failed";
    if (!chart.plot) chart.textContent = "This chart cannot be read now; it tries again.";
    return;
  }
  chart.dataset.state = columns.at.length ? "drawn" : "empty";
  if (!columns.at.length) { chart.plot?.destroy(); chart.plot = null; chart.textContent = chart.dataset.empty || "Nothing is on record in this window."; return; }
  const form = FORMS[chart.dataset.chart](columns), rows = [columns.at, ...form.series.map((series) => series.values)];
  const names = form.series.map((series) => series.label).join();
  if (chart.plot && chart.names === names) { chart.columns.window = columns.window; chart.plot.setData(rows); return; }
  chart.plot?.destroy();
  chart.replaceChildren();
  [chart.names, chart.columns] = [names, columns];
  chart.plot = new uPlot(optionsOf(form, columns, chart.clientWidth), rows, chart);
}
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) if (target.plot && target.clientWidth) target.plot.setSize({ width: target.clientWidth, height: 260 });
});
function begin(chart) {
  if (chart.dataset.state) return;
  chart.dataset.state = "asked";
  resized.observe(chart);
  draw(chart);
  if (chart.dataset.every) setInterval(() => { if (!document.hidden) draw(chart); }, chart.dataset.every * 1000);
}
document.addEventListener("DOMContentLoaded", () => {
  for (const chart of document.querySelectorAll("[data-chart]")) if (!chart.closest("details:not([open])")) begin(chart);
});
document.addEventListener("toggle", (event) => {
  if (event.target.open) for (const chart of event.target.querySelectorAll("[data-chart]")) begin(chart);
}, true);
