// Curves with the range and the quartiles of what each point stands for.

const EDGE = { left: 58, right: 8, top: 8, bottom: 20 };

/** Round steps between two numbers. */
function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most), power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(one => one * power).find(one => one >= rough);
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step) found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

class Plot {
  constructor(place) {
    this.place = place;
    this.box = place.querySelector(".plot");
    this.canvas = this.box.querySelector("canvas");
    this.readout = place.querySelector(".plot + .readout");
    const data = dataOf(place);
    this.axis = data.axis;
    this.curves = data.curves.map(one => ({ ...one, last: one.last || one.first }));
    const ends = this.curves.flatMap(one => [one.first[0], one.last[one.last.length - 1]]);
    this.whole = this.view = [Math.min(...ends), Math.max(...ends)];
    this.log = false;
    this.cursor = null;
    this.tools();
    this.listen();
    redraws.push(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  tools() {
    const lows = this.curves.flatMap(one => one.figures[0]).filter(x => x !== null);
    const bar = make("div", { class: "tools" });
    if (lows.length && lows.every(x => x > 0)) {
      const log = make("button", { type: "button", "aria-pressed": "false", title: "Logarithmic scale" }, "log");
      log.onclick = () => { this.log = !this.log; log.setAttribute("aria-pressed", this.log); this.draw(); };
      bar.append(log);
    }
    this.reset = make("button", { type: "button", hidden: "" }, "whole run");
    this.reset.onclick = () => this.zoom(this.whole);
    bar.prepend(this.reset);
    this.readout.before(bar);
    this.say();
  }

  listen() {
    let from = null;
    const at = event => this.toX(event.clientX - this.box.getBoundingClientRect().left);
    this.box.addEventListener("pointerdown", event => { from = at(event); });
    this.box.addEventListener("pointermove", event => {
      this.cursor = at(event);
      this.drag = event.buttons && from !== null && event.pointerType === "mouse" ? [from, this.cursor].sort((a, b) => a - b) : null;
      this.draw();
    });
    this.box.addEventListener("pointerup", () => { if (this.drag && this.drag[1] - this.drag[0] > (this.view[1] - this.view[0]) / 50) this.zoom(this.drag); this.drag = from = null; });
    this.box.addEventListener("pointerleave", () => { this.cursor = this.drag = from = null; this.draw(); });
    this.box.addEventListener("dblclick", () => this.zoom(this.whole));
    this.box.addEventListener("keydown", event => {
      const all = this.curves[0].first, shown = all.filter(x => x >= this.view[0] && x <= this.view[1]);
      const here = shown.findIndex(x => x >= (this.cursor ?? -Infinity));
      const next = { ArrowRight: here + (this.cursor === null ? 0 : 1), ArrowLeft: here - 1, Home: 0, End: shown.length - 1 }[event.key];
      if (event.key === "Escape") this.zoom(this.whole);
      if (next === undefined || !shown.length) return;
      this.cursor = shown[Math.max(0, Math.min(shown.length - 1, next))];
      event.preventDefault();
      this.draw();
    });
    this.box.addEventListener("blur", () => { this.cursor = null; this.draw(); });
  }

  zoom(view) { this.view = [...view]; this.drag = null; this.reset.hidden = view === this.whole; this.draw(); }

  /** Lowest and highest value in view. */
  range() {
    let low = Infinity, high = -Infinity;
    for (const one of this.curves) {
      const bottom = one.figures[0], top = one.figures[one.figures.length - 1];
      one.first.forEach((x, i) => {
        if (bottom[i] === null || one.last[i] < this.view[0] || x > this.view[1]) return;
        low = Math.min(low, bottom[i]); high = Math.max(high, top[i]);
      });
    }
    if (low > high) return null;
    if (low === high) { const room = Math.abs(low) * .1 || 1; return this.log ? [low / 2, high * 2] : [low - room, high + room]; }
    if (this.log) return [low, high];
    const room = (high - low) * .04;
    return [low - room, high + room];
  }

  toX(pixel) {
    const [a, b] = this.view;
    return Math.max(a, Math.min(b, a + (pixel - EDGE.left) / (this.width - EDGE.left - EDGE.right) * (b - a)));
  }

  draw() {
    this.width = this.box.clientWidth; this.height = this.box.clientHeight;
    if (!this.width) return;
    const ratio = Math.max(2, devicePixelRatio || 1);
    this.canvas.width = this.width * ratio; this.canvas.height = this.height * ratio;
    const pen = this.canvas.getContext("2d"), range = this.range();
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    const [a, b] = this.view, wide = this.width - EDGE.left - EDGE.right, tall = this.height - EDGE.top - EDGE.bottom;
    const x = at => EDGE.left + (b > a ? (at - a) / (b - a) : .5) * wide;
    if (range === null) { pen.fillStyle = colour("--quiet"); pen.fillText("no finite numbers", EDGE.left, this.height / 2); this.marks(pen, x); return; }
    const bend = this.log ? Math.log10 : (v => v), low = bend(range[0]), high = bend(range[1]);
    const y = v => EDGE.top + (1 - (bend(v) - low) / (high - low)) * tall;
    this.grid(pen, x, y, low, high);
    pen.save();
    pen.beginPath(); pen.rect(EDGE.left, 0, wide, this.height); pen.clip();
    this.curves.forEach((one, number) => this.curve(pen, one, colour(`--c${number % 4}`), x, y));
    pen.restore();
    this.marks(pen, x);
    if (this.drag) { pen.globalAlpha = .15; pen.fillStyle = colour("--accent"); pen.fillRect(x(this.drag[0]), EDGE.top, x(this.drag[1]) - x(this.drag[0]), tall); pen.globalAlpha = 1; }
    if (this.cursor !== null) { pen.strokeStyle = colour("--quiet"); pen.lineWidth = .75; pen.beginPath(); pen.moveTo(x(this.cursor), EDGE.top); pen.lineTo(x(this.cursor), this.height - EDGE.bottom); pen.stroke(); }
    this.say();
  }

  grid(pen, x, y, low, high) {
    const values = this.log && high - low >= 1 ? ticks(Math.ceil(low), Math.floor(high), 4).filter(Number.isInteger).map(p => 10 ** p)
      : this.log ? ticks(10 ** low, 10 ** high, 4) : ticks(low, high, 4);
    pen.lineWidth = 1; pen.textBaseline = "middle"; pen.textAlign = "right";
    for (const value of values) {
      const at = Math.round(y(value)) + .5;
      pen.strokeStyle = colour("--line"); pen.beginPath(); pen.moveTo(EDGE.left, at); pen.lineTo(this.width - EDGE.right, at); pen.stroke();
      pen.fillStyle = colour("--quiet"); pen.fillText(said(Number(value.toPrecision(10))), EDGE.left - 6, at);
    }
    pen.textBaseline = "alphabetic"; pen.textAlign = "center";
    pen.textAlign = "right"; pen.fillText(this.axis, EDGE.left - 8, this.height - 5); pen.textAlign = "center";
    const along = this.view[1] > this.view[0] ? ticks(this.view[0], this.view[1], Math.min(6, this.width / 90)).filter(Number.isInteger) : [this.view[0]];
    for (const at of along) pen.fillText(at.toLocaleString("en"), Math.max(EDGE.left + 4, Math.min(this.width - 16, x(at))), this.height - 5);
  }

  curve(pen, one, ink, x, y) {
    const middles = one.first.map((first, i) => x((first + one.last[i]) / 2)), figures = one.figures;
    if (figures.length === 5) {
      for (const [below, above, alpha] of [[0, 4, .13], [1, 3, .24]]) this.band(pen, middles, figures[below].map(v => v === null ? null : y(v)), figures[above].map(v => v === null ? null : y(v)), ink, alpha);
    }
    const centre = figures[figures.length === 5 ? 2 : 0];
    pen.strokeStyle = pen.fillStyle = ink; pen.lineWidth = 1.4; pen.lineJoin = "round";
    pen.beginPath();
    let open = false;
    centre.forEach((value, i) => {
      if (value === null) { open = false; return; }
      if (open) pen.lineTo(middles[i], y(value)); else pen.moveTo(middles[i], y(value));
      open = true;
      const alone = (i === 0 || centre[i - 1] === null) && (i + 1 === centre.length || centre[i + 1] === null);
      if (alone || centre.length <= 24) pen.fillRect(middles[i] - 1.5, y(value) - 1.5, 3, 3);
    });
    pen.stroke();
  }

  /** A filled band between two lines; where there are no numbers it is interrupted. */
  band(pen, xs, below, above, ink, alpha) {
    pen.globalAlpha = alpha; pen.fillStyle = ink;
    for (let start = 0; start < xs.length; start++) {
      if (below[start] === null) continue;
      let stop = start;
      while (stop < xs.length && below[stop] !== null) stop++;
      pen.beginPath();
      if (stop - start === 1) pen.rect(xs[start] - 2, above[start], 4, Math.max(1, below[start] - above[start]));
      for (let i = start; i < stop && stop - start > 1; i++) pen.lineTo(xs[i], above[i]);
      for (let i = stop - 1; i >= start && stop - start > 1; i--) pen.lineTo(xs[i], below[i]);
      pen.fill();
      start = stop;
    }
    pen.globalAlpha = 1;
  }

  /** Red ticks at the upper edge where values are not finite. */
  marks(pen, x) {
    pen.fillStyle = colour("--alarm");
    for (const one of this.curves) for (const [i] of one.bad) {
      const at = (one.first[i] + one.last[i]) / 2;
      if (at >= this.view[0] && at <= this.view[1]) pen.fillRect(x(at) - 1, 0, 2, 6);
    }
  }

  /** What stands at the cursor, in words; without a cursor what the colours mean. */
  say() {
    if (this.cursor === null) {
      const five = this.curves.some(one => one.figures.length === 5);
      const words = [];
      if (this.curves.length > 1) words.push(this.curves.map(one => one.name).join(" and "));
      if (five) words.push("median, quartiles, smallest and largest value");
      if (this.curves.some(one => one.bad.length)) words.push("red: not finite");
      this.readout.textContent = words.join("; ");
      return;
    }
    const words = this.curves.map(one => {
      let at = 0;
      one.first.forEach((x, i) => { if (Math.abs(x - this.cursor) < Math.abs(one.first[at] - this.cursor)) at = i; if (x <= this.cursor && this.cursor <= one.last[i]) at = i; });
      const values = one.figures.map(column => column[at]), bad = one.bad.find(([i]) => i === at);
      const where = one.first[at] === one.last[at] ? one.first[at].toLocaleString("en") : `${one.first[at].toLocaleString("en")}–${one.last[at].toLocaleString("en")}`;
      const range = values[0] === null ? "no finite number" : values.length === 5 ? `median ${said(values[2])}, quartiles ${said(values[1])} to ${said(values[3])}, range ${said(values[0])} to ${said(values[4])}` : said(values[0]);
      return `${one.name} ${this.axis} ${where}: ${range}${bad ? ` (${bad[1]} NaN, ${bad[2]} infinite)` : ""}`.trim();
    });
    this.readout.textContent = words.join("; ");
  }
}
