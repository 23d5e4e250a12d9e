"use strict";
// Colours of numbers, numbers as text, and the theme of the page.

const VIRIDIS = [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99], [170, 220, 50], [253, 231, 37]];
const SIGNED = [[33, 82, 148], [98, 146, 200], [178, 205, 229], [244, 244, 242], [240, 190, 160], [212, 118, 84], [150, 38, 30]];
const NOT_FINITE = [226, 0, 122];

/** The colour of a share from 0 to 1 in a list of colours. */
function blend(colours, share) {
  const at = Math.min(1, Math.max(0, share)) * (colours.length - 1), low = Math.floor(at), high = Math.min(low + 1, colours.length - 1);
  return colours[low].map((part, i) => part + (colours[high][i] - part) * (at - low));
}

/** A scale for numbers from low to high: around zero if both signs occur. */
function scale(low, high, log) {
  if (log) {
    const from = Math.log10(low), span = Math.log10(high) - from || 1;
    return { low, high, colour: x => x > 0 ? blend(VIRIDIS, (Math.log10(x) - from) / span) : blend(VIRIDIS, 0), ramp: VIRIDIS };
  }
  if (low < 0 && high > 0) {
    const most = Math.max(-low, high);
    return { low: -most, high: most, colour: x => blend(SIGNED, (x + most) / (2 * most)), ramp: SIGNED };
  }
  const span = high - low || 1;
  return { low, high, colour: x => blend(VIRIDIS, (x - low) / span), ramp: VIRIDIS };
}

/** A number as text: four digits, or what the page has in its place. */
function said(x) {
  if (x === null || x === undefined) return "none";
  if (typeof x === "string") return x;
  if (!Number.isFinite(x)) return String(x).replace("Infinity", "inf");
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return x.toLocaleString("en");
  const size = Math.abs(x);
  return size !== 0 && (size < 1e-3 || size >= 1e6) ? x.toExponential(3).replace(/\.?0+e/, "e") : String(Number(x.toPrecision(4)));
}

/** A number of bytes in a unit that people can read. */
function bytes(size) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

/** A new element with text and attributes. */
function make(tag, attributes = {}, text = "") {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

/** The data of a panel, parsed when it is first asked for. */
function dataOf(element) {
  if (element._data === undefined) element._data = JSON.parse(element.querySelector('script[type="application/json"]').textContent);
  return element._data;
}

/** The bar that explains the colours of a scale. */
function legend(into, of, unit = "") {
  const bar = make("canvas", { width: 64, height: 1, "aria-hidden": "true" });
  const pen = bar.getContext("2d"), image = pen.createImageData(64, 1);
  for (let i = 0; i < 64; i++) image.data.set([...blend(of.ramp, i / 63), 255], 4 * i);
  pen.putImageData(image, 0, 0);
  const row = make("div", { class: "scale" });
  row.append(make("span", {}, said(of.low)), bar, make("span", {}, said(of.high) + unit));
  into.replaceChildren(row);
}

const redraws = [];
function dark() {
  const asked = document.documentElement.dataset.theme;
  return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}
function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function redraw() { for (const one of redraws) one(); }
