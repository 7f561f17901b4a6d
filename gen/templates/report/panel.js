// The panel of a square: each of its cells, with both sides, program, history and commands.

class Panel {
  // `closed`: called when the panel closes.
  constructor(closed) {
    this.dialog = document.querySelector("dialog");
    this.title = this.dialog.querySelector("h2");
    this.body = this.dialog.querySelector(".body");
    this.address = "";
    this.dialog.addEventListener("close", () => {
      if (location.hash === this.address) closed(); // else the page has moved on
    });
    this.dialog.addEventListener("click", (event) => {
      if (event.target === this.dialog) this.dialog.close(); // the backdrop
    });
  }

  show(run, row, check) {
    const name = run.checks[check];
    const worstFirst = row.cells
      .get(check)
      .toSorted((one, other) => run.number(other, "outcome") - run.number(one, "outcome"));
    this.title.textContent = `${row.op} under ${name}`;
    this.body.replaceChildren(
      ...worstFirst.map((cell) => this.#cell(run, row, check, cell)),
      this.#foot(run, row, name),
    );
    this.address = addressOf(run, row.op, name);
    history.replaceState(null, "", this.address);
    if (!this.dialog.open) this.dialog.showModal();
    this.dialog.scrollTop = 0;
  }

  #cell(run, row, check, cell) {
    const article = make("article");
    const head = make("p");
    const outcome = run.outcome(cell);
    const samples = run.number(cell, "samples");
    const cost = `${samples} sample${samples === 1 ? "" : "s"}, ${run.number(cell, "ms")} ms`;
    head.append(make("span", outcome, `tag ${styleOf(outcome)}`), " ");
    head.append(make("b", run.text(cell, "word"), "mono"), " ", make("span", cost, "soft"));
    head.append(copyButton("copy command", run.command(row, check, cell)));
    article.append(head);
    const why = run.text(cell, "why");
    if (why) article.append(make("p", why));
    if (run.text(cell, "severity")) this.#addFailure(article, run, row, check, cell);
    const past = run.history(cell);
    if (past.some(([, before]) => before)) article.append(this.#past(past));
    return article;
  }

  #addFailure(article, run, row, check, cell) {
    const [expected, actual] = [run.text(cell, "expected"), run.text(cell, "actual")];
    if (expected || actual) article.append(this.#sides(expected || "–", actual || "–"));
    const program = run.text(cell, "program");
    article.append(
      program
        ? this.#copyable("the program that fails", "copy program", program, "program")
        : this.#copyable("a program, if there is one", "copy command", run.script(row, check, cell)),
    );
    const command = run.command(row, check, cell);
    article.append(this.#copyable("run it again", "copy command", command));
  }

  #sides(expected, actual) {
    const sides = make("div", "", "sides");
    for (const [title, text, style] of [["expected", expected, ""], ["actual", actual, "is"]]) {
      const side = make("div");
      side.append(make("h3", title), make("pre", text, style));
      sides.append(side);
    }
    return sides;
  }

  #copyable(title, label, text, style = "") {
    const block = make("div", "", "copyable");
    const heading = make("h3", `${title} `);
    heading.append(copyButton(label, text));
    const pre = make("pre", text, style);
    if (style) pre.tabIndex = 0; // it may scroll
    block.append(heading, pre);
    return block;
  }

  #past(past) {
    const block = make("div");
    const list = make("ol", "", "past");
    for (const [run, outcome] of past) {
      const item = make("li");
      item.append(make("span", outcome || "no result", `tag ${styleOf(outcome || "soft")}`), ` ${run}`);
      list.append(item);
    }
    block.append(make("h3", "history"), list);
    return block;
  }

  #foot(run, row, check) {
    const foot = make("p", "", "soft mono");
    const lines = [["op", run.lines.ops[row.op]], ["check", run.lines.checks[check]]];
    const known = lines.filter(([, line]) => line).map((line) => line.join(": "));
    foot.textContent = [run.versions, ...known].join(" · ");
    const link = copyButton("copy link", "");
    delete link.dataset.text;
    link.dataset.link = addressOf(run, row.op, check);
    foot.append(link);
    return foot;
  }
}

// The address of a square on this page.
function addressOf(run, op, check) {
  return `#${[run.key, op, check].map(encodeURIComponent).join("/")}`;
}
