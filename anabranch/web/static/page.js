// What a page does in the browser beyond links and forms; it works without any of this, only not by itself.
"use strict";

// Nobody's selection, open list or half-written form is taken away by a refresh: the next change tries again.
document.addEventListener("htmx:beforeRequest", (event) => {
  const place = event.target;
  const selected = document.getSelection();
  const busy = place.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (busy || (selected && !selected.isCollapsed && place.contains(selected.anchorNode))) event.preventDefault();
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

// Curves: load of each segment as a part of its split threshold, drawn when their list is opened.
const HUES = ["#4a9fce", "#dd7f1f", "#2f9e6b", "#b3261e", "#8b6fc9", "#8a7a12", "#d3689a", "#5f7d95"];
async function plot(place) {
  if (place.childElementCount) return;
  const found = await (await fetch(place.dataset.loads)).json();
  if (!found.at.length) { place.textContent = "No load is on record in this window."; return; }
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  new uPlot({
    width: place.clientWidth, height: 260, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
    series: [{}, ...found.segments.map((one, number) => ({
      label: `segment ${one.id}`, stroke: HUES[number % HUES.length], width: 1.5, spanGaps: true,
      dash: number < HUES.length ? [] : [4, 3], value: (_, load) => load === null ? "" : `${Math.round(load * 100)} %`,
    }))],
    axes: [axis, { ...axis, values: (_, ticks) => ticks.map((load) => `${Math.round(load * 100)} %`) }],
  }, [found.at, ...found.segments.map((one) => one.load)], place);
}
// How the job does: each series on a scale of its own.
async function plotSeries(place) {
  if (place.childElementCount) return;
  const found = await (await fetch(place.dataset.series)).json();
  if (!found.at.length) { place.textContent = "No batch is on record."; return; }
  const ink = getComputedStyle(document.body).color;
  const axis = { stroke: ink, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
  new uPlot({
    width: place.clientWidth, height: 240, tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
    series: [{}, ...found.series.map((one, number) => ({
      label: one.label, scale: one.label, stroke: HUES[number % HUES.length], width: 1.5,
    }))],
    axes: [axis, ...found.series.map((one, number) => ({ ...axis, scale: one.label, side: number ? 1 : 3 }))],
  }, [found.at, ...found.series.map((one) => one.values)], place);
}
document.addEventListener("toggle", (event) => {
  if (!event.target.open) return;
  const [loads, series] = ["[data-loads]", "[data-series]"].map((one) => event.target.querySelector(one));
  if (loads) plot(loads);
  if (series) plotSeries(series);
}, true);
