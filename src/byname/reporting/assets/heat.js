// Heat maps: pictures of single values with sliders, and strips of labelled rows.

/** The numbers of all pictures, from the upper halves of 32-bit floats. */
function unpacked(text) {
  const raw = Uint8Array.from(atob(text), letter => letter.charCodeAt(0)), halves = new Uint16Array(raw.buffer);
  const whole = new Uint32Array(halves.length);
  for (let i = 0; i < halves.length; i++) whole[i] = halves[i] << 16;
  return new Float32Array(whole.buffer);
}

function span(numbers) {
  let low = Infinity, high = -Infinity;
  for (const x of numbers) if (Number.isFinite(x)) { if (x < low) low = x; if (x > high) high = x; }
  return low > high ? [0, 0] : [low, high];
}

function slider(words, labels, at, changed) {
  const label = make("label", {}, `${words} `), value = make("b");
  const input = make("input", { type: "range", min: 0, max: labels.length - 1, value: at, "aria-label": words });
  const show = () => { value.textContent = labels[input.value]; input.setAttribute("aria-valuetext", labels[input.value]); };
  input.oninput = () => { show(); changed(); };
  label.append(value, input);
  show();
  return { label, input };
}

class Heat {
  constructor(place) {
    this.data = dataOf(place).picture;
    this.box = place.querySelector(".heat");
    this.canvas = this.box.querySelector("canvas");
    this.numbers = unpacked(this.data.cells);
    this.size = this.data.height * this.data.width;
    const { height, width, labels, slices, moments } = this.data, controls = this.box.querySelector(".controls");
    this.canvas.width = width; this.canvas.height = height;
    this.box.classList.toggle("wide", Boolean(moments));
    if (!moments) this.canvas.style.aspectRatio = `${Math.max(width, height / 2)} / ${Math.max(height, width / 3)}`;
    const changed = () => this.draw();
    if (labels.length > 1) { this.moment = slider("iteration", labels, labels.length - 1, changed); controls.append(this.moment.label); }
    else if (labels[0]) controls.append(make("span", {}, `iteration ${labels[0]}`));
    if (slices.length > 1) { this.slice = slider("slice", slices, 0, changed); controls.append(this.slice.label); }
    else if (slices[0]) controls.append(make("span", {}, `slice ${slices[0]}`));
    if (labels.length > 1) {
      this.each = make("input", { type: "checkbox" });
      this.each.checked = this.pale();
      this.each.onchange = changed;
      const label = make("label", {}, " colours for each picture alone");
      label.prepend(this.each);
      controls.append(label);
    }
    this.key = make("div"); this.readout = make("output", { class: "readout" });
    controls.append(this.key, make("span", {}, this.words()), this.readout);
    this.canvas.addEventListener("pointermove", event => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.readout.textContent = ""; });
    this.draw();
  }

  /** What the picture leaves out. */
  words() {
    const { rows, columns, height, width, labels, of, slices, there, moments } = this.data;
    const bad = this.numbers.every(Number.isFinite) ? "" : "; pink: not finite";
    if (moments) return `each column is one record (${moments.length} of ${of.toLocaleString("en")}), index 0 at the top` + (rows > height ? `; ${rows} numbers averaged to ${height}` : "") + bad;
    const words = [`${rows}×${columns}` + (rows > height || columns > width ? `, averaged to ${height}×${width}` : "")];
    if (labels.length < of) words.push(`${labels.length} of ${of.toLocaleString("en")} records`);
    if (slices.length < there) words.push(`${slices.length} of ${there.toLocaleString("en")} slices`);
    return words.join("; ") + bad;
  }

  /** Whether the first picture would be of one colour among all: gradients at the end of a run are small. */
  pale() {
    const start = this.start(), reach = of => { const [low, high] = span(of); return low < 0 ? Math.max(-low, high) : high - low; };
    return reach(this.numbers.subarray(start, start + this.size)) < reach(this.numbers) / 8;
  }

  start() {
    const moment = this.moment ? Number(this.moment.input.value) : 0, slice = this.slice ? Number(this.slice.input.value) : 0;
    return (moment * this.data.slices.length + slice) * this.size;
  }

  draw() {
    const start = this.start(), shown = this.numbers.subarray(start, start + this.size);
    this.all ??= span(this.numbers);
    const colours = scale(...(this.each?.checked ? span(shown) : this.all));
    const pen = this.canvas.getContext("2d"), image = pen.createImageData(this.data.width, this.data.height);
    shown.forEach((x, i) => image.data.set([...(Number.isFinite(x) ? colours.colour(x) : NOT_FINITE), 255], 4 * i));
    pen.putImageData(image, 0, 0);
    legend(this.key, colours);
  }

  point(event) {
    const { width, height, rows, columns, moments } = this.data, edge = this.canvas.getBoundingClientRect();
    const column = Math.min(width - 1, Math.max(0, Math.floor((event.clientX - edge.left) / edge.width * width)));
    const row = Math.min(height - 1, Math.max(0, Math.floor((event.clientY - edge.top) / edge.height * height)));
    const value = said(Number(this.numbers[this.start() + row * width + column].toPrecision(3)));
    const part = (at, size, all) => { const low = Math.floor(at * all / size), high = Math.floor((at + 1) * all / size) - 1; return low >= high ? `${low}` : `${low}–${high}`; };
    const where = moments ? `iteration ${moments[column]}, index ${part(row, height, rows)}` : `row ${part(row, height, rows)}, column ${part(column, width, columns)}`;
    this.readout.textContent = `${where}: about ${value}`;
  }
}

/** Labelled rows of colours. */
function strips(figure) {
  const { columns, cells, log } = dataOf(figure), canvases = [...figure.querySelectorAll("li canvas")];
  const known = cells.flat().filter(x => x !== null && (!log || x > 0)), [low, high] = span(known);
  const colours = scale(low, high, log && known.length > 0), readout = figure.querySelector(":scope > .readout");
  canvases.forEach((canvas, row) => {
    canvas.width = columns.length;
    const pen = canvas.getContext("2d"), image = pen.createImageData(columns.length, 1);
    cells[row].forEach((x, i) => { if (x !== null) image.data.set([...colours.colour(x), 255], 4 * i); });
    pen.putImageData(image, 0, 0);
    const name = canvas.getAttribute("aria-label");
    canvas.onpointermove = event => {
      const edge = canvas.getBoundingClientRect(), at = Math.max(0, Math.min(columns.length - 1, Math.floor((event.clientX - edge.left) / edge.width * columns.length)));
      readout.textContent = `${name}, ${columns[at]}: ${said(cells[row][at])}`;
    };
    canvas.onpointerleave = () => { readout.textContent = ""; };
  });
  if (known.length) legend(figure.querySelector(".legend"), colours, log ? " (logarithmic)" : "");
}
