// The cells of one run, and which of them the filter takes.

// The words of a filter: `sin check:vjp` is [{field: "", text: "sin"}, {field: "check", text: "vjp"}].
const FIELDS = ["op", "check", "family", "dtype", "outcome", "severity", "why"];

function termsOf(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return words.map((word) => {
    const [, field, text] = word.match(/^(\w+):(.+)$/) ?? [];
    return FIELDS.includes(field) ? { field, text } : { field: "", text: word };
  });
}

class Cells {
  // `section`: the element of a run.
  constructor(section) {
    const data = JSON.parse(section.querySelector("script.data").textContent);
    this.key = section.id;
    this.target = section.dataset.target;
    this.device = section.dataset.device;
    this.versions = section.dataset.versions;
    this.texts = data.texts;
    this.checks = data.checks;
    this.groups = data.columns.map(([name, checks]) => ({ name, checks }));
    this.outcomes = data.outcomes; // the best one first, as are glyphs and failing
    this.glyphs = data.glyphs;
    this.failing = data.failing;
    this.earlier = data.earlier;
    this.lines = data.lines;
    this.at = Object.fromEntries(data.fields.map((name, place) => [name, place]));
    this.rows = data.rows.map(([family, op, cells], number) => ({
      family,
      op,
      number,
      cells: new Map(Object.entries(cells).map(([check, some]) => [Number(check), some])),
    }));
    this.count = this.rows.reduce((sum, row) => sum + sizeOf(row.cells), 0);
  }

  // The text of a field of a cell; empty if the cell has none.
  text(cell, field) {
    return this.texts[cell[this.at[field]]] ?? "";
  }

  // The number in a field of a cell; -1 if the cell has none.
  number(cell, field) {
    return cell[this.at[field]] ?? -1;
  }

  outcome(cell) {
    return this.outcomes[cell[this.at.outcome]];
  }

  node(row, check, cell) {
    const file = this.text(cell, "file");
    return `${file}::test_${this.checks[check]}[${row.op}-${this.text(cell, "word")}]`;
  }

  // The command that runs a cell again, with the sample that failed.
  command(row, check, cell) {
    const words = ["pytest", quoted(this.node(row, check, cell)), "--target", quoted(this.target)];
    if (this.device !== "cpu") words.push("--device", quoted(this.device));
    words.push("--tier", "full");
    const sample = this.number(cell, "sample");
    if (sample >= 0) words.push("--sample", sample);
    return words.join(" ");
  }

  // The command that writes the program of a cell.
  script(row, check, cell) {
    const name = this.node(row, check, cell).replace(/^.*\//, "");
    const words = ["python -m gen script", quoted(name), "--target", quoted(this.target)];
    const sample = this.number(cell, "sample");
    if (sample >= 0) words.push("--sample", sample);
    return words.join(" ");
  }

  // The outcomes of a cell in earlier runs, as [run, outcome]. Empty for a run without it.
  history(cell) {
    const letters = this.text(cell, "history");
    const outcome = (letter) => this.outcomes[letter.charCodeAt(0) - "a".charCodeAt(0)] ?? "";
    return [...letters].map((letter, place) => [this.earlier[place], outcome(letter)]);
  }

  // The cells of each row that all terms fit: a list of {row, cells}, without empty rows.
  narrowed(terms) {
    if (!terms.length) return this.rows.map((row) => ({ row, cells: row.cells }));
    const fits = terms.map((term) => this.#fitter(term));
    const found = [];
    for (const row of this.rows) {
      const cells = new Map();
      const ofRow = fits.map((fit) => fit.row(row));
      for (const [check, some] of row.cells) {
        const open = fits.filter((fit, place) => !ofRow[place] && !fit.check(check));
        const taken = open.length ? some.filter((cell) => open.every((fit) => fit.cell(cell))) : some;
        if (taken.length) cells.set(check, taken);
      }
      if (cells.size) found.push({ row, cells });
    }
    return found;
  }

  // Three questions for one term. Each text is searched once, however many cells have it.
  #fitter({ field, text }) {
    const asks = (name) => !field || field === name;
    const has = (other) => other.toLowerCase().includes(text);
    const texts = this.texts.map(has);
    const checks = this.checks.map((check) => asks("check") && has(check));
    // An outcome has to fit whole if the field is named: "outcome:failed" is not "xfailed".
    const outcomes = this.outcomes.map(
      (outcome) => asks("outcome") && (field ? styleOf(outcome) === text : has(styleOf(outcome))),
    );
    const { word, outcome, why, severity } = this.at;
    return {
      row: (row) => (asks("op") && has(row.op)) || (asks("family") && has(row.family)),
      check: (check) => checks[check],
      cell: (cell) =>
        outcomes[cell[outcome]] ||
        (asks("dtype") && texts[cell[word]]) ||
        (asks("why") && texts[cell[why]]) ||
        (asks("severity") && texts[cell[severity]]) ||
        false,
    };
  }
}

const sizeOf = (cells) => [...cells.values()].reduce((sum, some) => sum + some.length, 0);
