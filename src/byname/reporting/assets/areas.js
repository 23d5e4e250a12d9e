// Treemaps: areas as large as the sizes that they stand for.

/** Squarified layout (Bruls, Huizing, van Wijk 2000): sizes, largest first, as rectangles that fill the box. */
function squarified(sizes, box) {
  const total = sizes.reduce((sum, one) => sum + one, 0), found = [];
  let { x, y, w, h } = box, from = 0, left = total;
  const worst = (row, sum, side) => { const area = w * h / left, long = sum * area / side; return Math.max(...[row[0], row[row.length - 1]].map(one => { const short = one * area / long; return Math.max(long / short, short / long); })); };
  while (from < sizes.length && w > 0 && h > 0) {
    const side = Math.min(w, h), row = [];
    let sum = 0, ratio = Infinity;
    while (from + row.length < sizes.length) {
      const next = sizes[from + row.length], tried = worst([...row, next], sum + next, side);
      if (tried > ratio) break;
      row.push(next); sum += next; ratio = tried;
    }
    const thick = sum / left * (w < h ? h : w);
    let along = w < h ? x : y;
    for (const one of row) {
      const length = one / sum * side;
      found.push(w < h ? { x: along, y, w: length, h: thick } : { x, y: along, w: thick, h: length });
      along += length;
    }
    if (w < h) { y += thick; h -= thick; } else { x += thick; w -= thick; }
    from += row.length; left -= sum;
  }
  return found;
}

const AREA_COLOURS = ["#2b6cb0", "#2f7d5b", "#9a5a1c", "#7650a8", "#a13d52", "#39717d", "#6b6f2a", "#54606c"];

class TreeMap {
  constructor(figure) {
    const data = dataOf(figure);
    this.figure = figure;
    this.ways = data.ways;
    this.text = data.unit === "bytes" ? bytes : said;
    this.map = figure.querySelector(".map");
    this.readout = figure.querySelector(".readout");
    const names = Object.keys(this.ways), controls = figure.querySelector(".controls");
    if (names.length > 1) {
      controls.append(make("span", {}, "by"));
      for (const name of names) {
        const button = make("button", { type: "button", "aria-pressed": String(name === names[0]) }, name);
        button.onclick = () => { for (const one of controls.querySelectorAll("button")) one.setAttribute("aria-pressed", String(one === button)); this.draw(name); };
        controls.append(button);
      }
    }
    this.way = names[0];
    this.map.addEventListener("keydown", event => {
      const areas = [...this.map.querySelectorAll("[role=listitem]")], here = areas.indexOf(document.activeElement);
      const next = { ArrowRight: here + 1, ArrowDown: here + 1, ArrowLeft: here - 1, ArrowUp: here - 1, Home: 0, End: areas.length - 1 }[event.key];
      if (here < 0 || next === undefined || !areas[next]) return;
      event.preventDefault();
      areas[next].focus();
    });
    this.draw(this.way);  // now, and not when the observer is told: before a page is printed there is no later
    new ResizeObserver(() => this.draw(this.way)).observe(this.map);
  }

  draw(way) {
    this.way = way;
    const groups = new Map();
    for (const [group, label, size] of this.ways[way]) groups.set(group, [...(groups.get(group) || []), [label, size]]);
    const sum = of => of.reduce((all, [, size]) => all + size, 0);
    const ordered = [...groups].sort((a, b) => sum(b[1]) - sum(a[1])), whole = sum(this.ways[way].map(([, label, size]) => [label, size]));
    const boxes = squarified(ordered.map(([, of]) => sum(of)), { x: 0, y: 0, w: this.map.clientWidth, h: this.map.clientHeight });
    this.map.replaceChildren();
    boxes.forEach((box, number) => {
      const [group, of] = ordered[number], head = box.h > 44 && box.w > 60 ? 18 : 0, size = sum(of);
      if (head) this.add("group", { ...box, h: head }, `${group} · ${this.text(size)}`);
      squarified(of.map(([, one]) => one), { x: box.x, y: box.y + head, w: box.w - 2, h: box.h - head - 2 }).forEach((inner, at) => {
        const [label, one] = of[at], words = `${group}: ${label}, ${this.text(one)}, ${(100 * one / whole).toPrecision(2)} %`;
        const area = this.add("", inner, inner.w > 34 && inner.h > 14 ? label : "", inner.h > 32 && inner.w > 50 ? this.text(one) : "");
        area.style.background = AREA_COLOURS[number % AREA_COLOURS.length];
        area.title = words; area.setAttribute("aria-label", words); area.setAttribute("role", "listitem");
        area.tabIndex = number === 0 && at === 0 ? 0 : -1;
        area.onfocus = area.onpointerenter = () => { this.readout.textContent = words; };
      });
    });
  }

  add(kind, { x, y, w, h }, ...lines) {
    const area = make("div", { class: kind }), part = of => `${100 * Math.max(0, of) / this.map.clientWidth}%`;  // paper has another width
    Object.assign(area.style, { left: part(x), top: `${y}px`, width: part(w), height: `${Math.max(0, h)}px` });
    if (w < 12 || h < 8) area.style.padding = "0";
    for (const line of lines) if (line) area.append(make("div", {}, line));
    this.map.append(area);
    return area;
  }
}
