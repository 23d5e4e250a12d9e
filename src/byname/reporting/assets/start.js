// What happens when the page is opened: each part is drawn when it comes into view.

function showTheme(theme) { document.documentElement.dataset.theme = theme; redraw(); }

function start(element) {
  if (element._started) return;
  element._started = true;
  if (element.matches(".place")) {
    if (element.querySelector(".plot")) new Plot(element);
    if (element.querySelector(".heat")) new Heat(element);
  } else if (element.matches(".strips")) strips(element);
  else if (element.matches(".areas")) new TreeMap(element);
}

document.getElementById("theme").onclick = () => {
  const next = dark() ? "light" : "dark";
  try { localStorage.setItem("byname-theme", next); } catch { /* a browser may keep nothing for files */ }
  showTheme(next);
};
try { const kept = localStorage.getItem("byname-theme"); if (kept === "light" || kept === "dark") showTheme(kept); } catch { /* as above */ }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

for (const one of document.querySelectorAll("figure.table")) searchable(one);
const parts = document.querySelectorAll(".place, .strips, .areas");
const seen = new IntersectionObserver(entries => { for (const one of entries) if (one.isIntersecting) { seen.unobserve(one.target); start(one.target); } }, { rootMargin: "600px" });
for (const one of parts) seen.observe(one);

let before = null;
addEventListener("beforeprint", () => { before = document.documentElement.dataset.theme ?? ""; showTheme("light"); parts.forEach(start); redraw(); });
addEventListener("afterprint", () => { if (before) showTheme(before); else { delete document.documentElement.dataset.theme; redraw(); } });

// A place that is led to is shown, also where a search has hidden it.
function unhide() { const place = location.hash.length > 1 && document.getElementById(location.hash.slice(1)); if (place && place.hidden) { place.hidden = false; place.scrollIntoView(); } }
addEventListener("hashchange", unhide);

// While the run goes on the file is written anew; the page follows, unless somebody is using it or nothing has come for long.
const { refresh, written } = document.documentElement.dataset, PATIENCE = 600;
if (refresh) {
  let used = 0;
  for (const kind of ["pointerdown", "keydown", "input"]) addEventListener(kind, () => { used = Date.now(); });
  setInterval(() => {
    const old = Date.now() / 1000 - Number(written) > PATIENCE + Number(refresh);
    if (!document.hidden && !old && Date.now() - used > 10000) location.reload();
  }, 1000 * Number(refresh));
}
