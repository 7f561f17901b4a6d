// The grid of one run: ops as rows, checks as columns. Only rows in view are in the document.

const ROW = 24; // px, as the style sheet has it
const BEYOND = 12; // lines and columns that are drawn on each side of those in view
const MANY = 60; // ops above which families are closed at first
const PAGE = 20; // rows of one step by PageUp and PageDown
const HEAD = -1; // the line of the groups of columns
const NAME = -1; // the column of the names of rows

class Grid {
  // `open`: called with a row and a check when a square is chosen.
  constructor(section, cells, open) {
    this.cells = cells;
    this.open = open;
    this.scroller = section.querySelector(".grid");
    this.shaper = new Columns(cells);
    const shut = cells.rows.length > MANY ? cells.rows.map((row) => row.family) : [];
    // Which families are shut and columns folded. A filter begins with all open.
    this.usual = { shut: new Set(shut), folded: this.shaper.usual() };
    this.active = { line: 0, column: NAME };
    this.#build(section);
  }

  #build(section) {
    this.table = make("table");
    this.table.setAttribute("role", "grid");
    this.table.setAttribute("aria-label", "ops and checks");
    this.table.tabIndex = 0;
    this.scroller.append(this.table);
    this.scroller.addEventListener("scroll", () => this.#drawSoon(), { passive: true });
    this.table.addEventListener("click", (event) => this.#click(event));
    this.table.addEventListener("keydown", (event) => this.#key(event));
    const families = this.cells.rows.map((row) => row.family);
    const buttons = {
      ".open-all": () => (this.closed.shut = new Set()),
      ".shut-all": () => (this.closed.shut = new Set(families)),
      ".open-groups": () => (this.closed.folded = this.shaper.nothing()),
      ".shut-groups": () => (this.closed.folded = this.shaper.all()),
    };
    for (const [name, act] of Object.entries(buttons)) {
      section.querySelector(name).onclick = () => {
        act();
        this.#layOut();
      };
    }
  }

  // Show some cells, as Cells.narrowed gives them. `filtered`: they are not all.
  show(found, filtered) {
    this.found = found;
    this.closed = filtered ? { shut: new Set(), folded: this.shaper.nothing() } : this.usual;
    this.taken = new Set(found.flatMap(({ cells }) => [...cells.keys()]));
    this.active = { line: 0, column: NAME };
    this.#layOut();
    this.scroller.scrollTo(0, 0);
  }

  // --- lines and columns -------------------------------------------------------------------------

  // List the lines and columns that are to be seen, and draw them.
  #layOut() {
    this.columns = this.shaper.list(this.taken, this.closed.folded);
    this.lines = [];
    const families = Map.groupBy(this.found, ({ row }) => row.family);
    for (const [family, members] of families) {
      this.lines.push({ family, members });
      if (!this.closed.shut.has(family)) this.lines.push(...members);
    }
    this.active.line = Math.min(this.active.line, this.lines.length - 1);
    this.active.column = Math.min(this.active.column, this.columns.length - 1);
    this.#drawHead();
    this.#draw();
  }

  // The cells of a line in a column. A line of a family has those of all its ops.
  #cellsOf(line, column) {
    const rows = line.members ?? [line];
    return rows.flatMap(({ cells }) => column.checks.flatMap((check) => cells.get(check) ?? []));
  }

  // --- drawing -----------------------------------------------------------------------------------

  #drawHead() {
    const widths = this.columns.map(() => "<col>").join("");
    const groups = this.cells.groups.map((group) => this.#groupHtml(group)).join("");
    const checks = this.columns.map((column) => this.#checkHtml(column)).join("");
    const corner = `<th class="corner" rowspan="2" scope="col">family / op</th>`;
    this.table.innerHTML =
      `<colgroup><col class="name">${widths}</colgroup>` +
      `<thead><tr class="groups">${corner}${groups}</tr><tr class="checks">${checks}</tr></thead>` +
      `<tbody></tbody>`;
    this.body = this.table.tBodies[0];
    this.table.setAttribute("aria-rowcount", this.lines.length + 2);
    this.table.setAttribute("aria-colcount", this.columns.length + 1);
    const styles = getComputedStyle(this.scroller);
    const width = (name) => parseInt(styles.getPropertyValue(name), 10);
    this.width = width("--square");
    this.nameWidth = width("--name");
    this.table.style.width = `${this.nameWidth + this.width * this.columns.length}px`;
  }

  #groupHtml(group) {
    const first = this.columns.findIndex((column) => column.group === group);
    if (first < 0) return "";
    const span = this.columns.filter((column) => column.group === group).length;
    const folded = this.closed.folded.groups.has(group);
    return (
      `<th id="${this.#id(HEAD, first)}" scope="colgroup" colspan="${span}" aria-expanded="${!folded}" ` +
      `title="${escaped(group.name)}: ${group.checks.length} checks" data-column="${first}" ` +
      `aria-label="${escaped(group.name)}, ${group.checks.length} checks">` +
      `<span>${folded ? "▸" : `▾ ${escaped(group.name)}`}</span></th>`
    );
  }

  #checkHtml({ checks, name: folded }) {
    const name = folded || this.cells.checks[checks[0]];
    const style = folded ? ` class="folded"` : "";
    return `<th scope="col"${style} title="${escaped(name)}"><span>${escaped(name)}</span></th>`;
  }

  #drawSoon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      const { top, bottom, left, right } = this.#inView();
      const { rows, columns } = this.drawn;
      const isDrawn = rows.first <= top && bottom <= rows.last;
      if (!isDrawn || left < columns.first || columns.last < right) this.#draw();
    });
  }

  // The first line and column in view, and those behind the last ones.
  #inView() {
    const { scrollTop, scrollLeft, clientWidth } = this.scroller;
    const height = Math.max(this.scroller.clientHeight, 0.82 * innerHeight); // it grows with its rows
    return {
      top: Math.min(Math.floor(scrollTop / ROW), this.lines.length),
      bottom: Math.min(Math.ceil((scrollTop + height) / ROW), this.lines.length),
      left: Math.min(Math.floor(scrollLeft / this.width), this.columns.length),
      right: Math.min(Math.ceil((scrollLeft + clientWidth) / this.width), this.columns.length),
    };
  }

  // Draw the squares in view and some around them. Space stands for all others.
  #draw() {
    const { top, bottom, left, right } = this.#inView();
    const rows = widened(top, bottom, this.lines.length);
    const columns = widened(left, right, this.columns.length);
    this.drawn = { rows, columns };
    const html = [this.#space(rows.first)];
    for (let number = rows.first; number < rows.last; number += 1)
      html.push(this.#lineHtml(this.lines[number], number, columns));
    html.push(this.#space(this.lines.length - rows.last));
    this.body.innerHTML = html.join("");
    this.#mark();
  }

  #space(rows) {
    if (rows <= 0) return "";
    const span = this.columns.length + 1;
    const space = `<td colspan="${span}" style="height:${rows * ROW}px"></td>`;
    return `<tr class="space" aria-hidden="true">${space}</tr>`;
  }

  #lineHtml(line, number, { first, last }) {
    const gap = (columns) => (columns > 0 ? `<td class="gap" colspan="${columns}"></td>` : "");
    const html = [line.members ? this.#familyHtml(line, number) : this.#opHtml(line, number)];
    html.push(gap(first));
    for (let place = first; place < last; place += 1)
      html.push(this.#square(line, number, this.columns[place], place));
    html.push(gap(this.columns.length - last));
    const style = line.members ? ` class="family"` : "";
    return `<tr aria-rowindex="${number + 3}"${style}>${html.join("")}</tr>`;
  }

  #familyHtml({ family, members }, number) {
    const open = !this.closed.shut.has(family);
    return (
      `<th scope="row" id="${this.#id(number, NAME)}" aria-expanded="${open}">` +
      `${open ? "▾" : "▸"} ${escaped(family)}<small>${members.length}</small></th>`
    );
  }

  #opHtml({ row }, number) {
    const name = escaped(row.op);
    // The end of a long name tells more than its beginning, so the text overflows on the left.
    return `<th scope="row" id="${this.#id(number, NAME)}" title="${name}"><bdi>${name}</bdi></th>`;
  }

  #square(line, number, column, place) {
    const cells = this.#cellsOf(line, column);
    const style = column.name ? " folded" : "";
    if (!cells.length) return `<td class="none${style}"></td>`;
    const { at, checks, failing } = this.cells;
    const square = line.members ? usualOf(cells, at.outcome, failing) : worstOf(cells, at.outcome);
    const check = column.name || checks[column.checks[0]];
    const name = `${line.members ? line.family : line.row.op} under ${check}`;
    return squareHtml(square, this.cells, this.#id(number, place), name, style);
  }

  // --- choosing ----------------------------------------------------------------------------------

  #id(line, column) {
    return `${this.cells.key}.${line}.${column}`;
  }

  #click(event) {
    const element = event.target.closest("[id]");
    if (!element || element === this.table) return;
    const [line, column] = element.id.slice(this.cells.key.length + 1).split(".").map(Number);
    this.active = { line, column };
    this.#choose();
  }

  // Open the active square, or fold what the active place is the head of.
  #choose() {
    const { line, column } = this.active;
    const { name, checks } = this.columns[column] ?? {};
    const { family, row } = this.lines[line] ?? {};
    if (line === HEAD || name) this.#fold(this.columns[column]);
    else if (family !== undefined) this.#shut(family);
    else if (column !== NAME) this.open(row, checks[0]);
    this.#mark();
  }

  // Fold or open a column. The active place stays in the group.
  #fold(column) {
    this.shaper.toggle(this.closed.folded, column, this.active.line === HEAD);
    this.#layOut();
    this.active.column = this.columns.findIndex(({ group }) => group === column.group);
    this.#reveal();
  }

  // Shut or open a family. Its line stays the active one.
  #shut(family) {
    if (!this.closed.shut.delete(family)) this.closed.shut.add(family);
    this.#layOut();
    this.active.line = this.lines.findIndex((line) => line.family === family);
    this.#reveal();
  }

  #key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (event.altKey || event.metaKey || !this.lines.length) return;
    if (event.key in step) this.active = this.#next(...step[event.key]);
    else if (event.key === "Home") this.active = this.#home();
    else if (event.key === "End") this.active = this.#end();
    else if (event.key === "PageDown") this.active = this.#next(PAGE, 0);
    else if (event.key === "PageUp") this.active = this.#next(-PAGE, 0);
    else if (event.key === "Enter" || event.key === " ") this.#choose();
    else return;
    event.preventDefault();
    if (event.key !== "Enter" && event.key !== " ") this.#reveal();
  }

  // The next place in a direction that has something. The active one if there is none.
  #next(down, right) {
    let { line, column } = this.active;
    const last = this.lines.length - 1;
    if (Math.abs(down) > 1) return { line: Math.min(Math.max(line + down, 0), last), column: NAME };
    if (down && line + down === HEAD) return { line: HEAD, column: this.#headOf(column) };
    do {
      line += down;
      column += right;
      if (line < HEAD || line > last || column < NAME || column >= this.columns.length) return this.active;
    } while (!this.#has(line, column));
    return { line, column };
  }

  // The first and the last place of the active line that have something.
  #home() {
    const { line } = this.active;
    return { line, column: line === HEAD ? 0 : NAME };
  }

  #end() {
    const { line } = this.active;
    let column = this.columns.length - 1;
    while (column > NAME && !this.#has(line, column)) column -= 1;
    return { line, column };
  }

  // The column where the head of a column's group stands: the first of the group.
  #headOf(column) {
    const { group } = this.columns[Math.max(column, 0)];
    return this.columns.findIndex((other) => other.group === group);
  }

  #has(line, column) {
    if (line === HEAD) return column !== NAME && this.#headOf(column) === column;
    return column === NAME || this.#cellsOf(this.lines[line], this.columns[column]).length > 0;
  }

  // Scroll until the active place is in view, and mark it.
  #reveal() {
    const { line, column } = this.active;
    const head = this.table.tHead.offsetHeight;
    const top = line * ROW;
    const { scrollTop, clientHeight } = this.scroller;
    if (line !== HEAD && top < scrollTop) this.scroller.scrollTop = top;
    const lowest = top + ROW - (clientHeight - head);
    if (lowest > scrollTop) this.scroller.scrollTop = lowest;
    if (column !== NAME) this.#revealColumn(column);
    this.#draw();
  }

  #revealColumn(column) {
    const start = column * this.width;
    const end = start + this.width + this.nameWidth - this.scroller.clientWidth;
    if (start < this.scroller.scrollLeft) this.scroller.scrollLeft = start;
    if (end > this.scroller.scrollLeft) this.scroller.scrollLeft = end;
  }

  // Tell a screen reader which place is active.
  #mark() {
    const { line, column } = this.active;
    this.table.querySelector(".active")?.classList.remove("active");
    const element = document.getElementById(this.#id(line, column));
    element?.classList.add("active");
    if (element) this.table.setAttribute("aria-activedescendant", element.id);
    else this.table.removeAttribute("aria-activedescendant");
  }

  // Make the square of an op and a check the active one. Returns its row, or undefined.
  find(op, check) {
    const number = this.cells.checks.indexOf(check);
    const row = this.cells.rows.find((one) => one.op === op && one.cells.has(number));
    if (!row) return undefined;
    this.closed.shut.delete(row.family);
    this.shaper.reveal(this.closed.folded, number);
    this.#layOut();
    this.active = {
      line: this.lines.findIndex((line) => line.row === row),
      column: this.columns.findIndex(({ checks }) => checks.includes(number)),
    };
    this.#reveal();
    return row;
  }
}

// The numbers from `first` to before `last`, and some more on both sides of them.
function widened(first, last, count) {
  return { first: Math.max(0, first - BEYOND), last: Math.min(count, last + BEYOND) };
}
