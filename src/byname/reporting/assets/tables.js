// Tables: search and sort.

function searchable(figure) {
  const table = figure.querySelector("table"), body = table.tBodies[0], rows = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").onclick = () => {
      const before = head.getAttribute("aria-sort"), number = head.classList.contains("number");
      const order = before ? (before === "ascending" ? "descending" : "ascending") : number ? "descending" : "ascending";
      for (const one of heads) one.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = row => { const cell = row.cells[column]; return cell.dataset.v === undefined ? cell.textContent : Number(cell.dataset.v); };
      const compare = (a, b) => {
        if ((a === "") !== (b === "")) return a === "" ? 1 : -1;  // empty cells come last
        if (typeof a === "number" && typeof b === "number") return sign * (a - b);
        return sign * String(a).localeCompare(String(b), "en", { numeric: true });
      };
      body.append(...rows.map(row => [key(row), row]).sort((a, b) => compare(a[0], b[0])).map(pair => pair[1]));
    };
  });
  const search = figure.querySelector('input[type="search"]');
  if (!search) return;
  const texts = rows.map(row => row.textContent.toLowerCase()), count = figure.querySelector("output");
  search.oninput = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, i) => { row.hidden = !words.every(word => texts[i].includes(word)); shown += !row.hidden; });
    count.textContent = words.length ? `${shown} of ${rows.length}` : "";
    filterPlaces(rows);
  };
}

/** The search in the table of places also chooses among the plots beside it. */
function filterPlaces(rows) {
  for (const row of rows) {
    const link = row.querySelector('td a[href^="#place-"]'), place = link && document.getElementById(link.hash.slice(1));
    if (place) place.hidden = row.hidden;
  }
}
