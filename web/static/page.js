// What a page does in the browser beyond links and forms; it works without any of this, only not by itself.
"use strict";

// Nobody's selection, open list or half-written form is taken away by a refresh: the next change tries again.
document.addEventListener("htmx:beforeRequest", (event) => {
  const place = event.target;
  const selected = document.getSelection();
  const busy = place.contains(document.activeElement) && /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (busy || (selected && !selected.isCollapsed && place.contains(selected.anchorNode))) event.preventDefault();
});

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
