// Put the parts of the page together: runs, filter, keys and addresses.

const WAIT = 100; // ms after the last letter, before the filter works
const panel = new Panel(keepFilterInAddress);
const input = document.getElementById("filter");
const matching = document.getElementById("matching");

// Each run is read when its tab is first shown.
const runs = new Map(
  [...document.querySelectorAll(".run")].map((section) => [section.id, { section }]),
);

function runOf(key) {
  const run = runs.get(key);
  if (run && !run.cells) {
    run.cells = new Cells(run.section);
    run.grid = new Grid(run.section, run.cells, (row, check) => panel.show(run.cells, row, check));
  }
  return run;
}

// --- tabs ----------------------------------------------------------------------------------------

const tabs = [...document.querySelectorAll("[role=tab]")];
const shownKey = () => [...runs].find(([, { section }]) => !section.hidden)[0];

function choose(key) {
  for (const [other, { section }] of runs) section.hidden = other !== key;
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === key;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
  }
  runOf(key);
  narrow();
}

tabs.forEach((tab, place) => {
  tab.onclick = () => choose(tab.getAttribute("aria-controls"));
  tab.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.click();
    next.focus();
  };
});

// --- the filter ----------------------------------------------------------------------------------

let waiting;
input.oninput = () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    narrow();
    keepFilterInAddress();
  }, WAIT);
};

function filterBy(query) {
  input.value = query;
  narrow();
  keepFilterInAddress();
}

function keepFilterInAddress() {
  const query = encodeURIComponent(input.value.trim());
  const filter = query && `#${shownKey()}/filter=${query}`;
  history.replaceState(null, "", location.pathname + location.search + filter);
}

// Narrow all that is shown to what the filter fits: findings, grid and lists.
function narrow() {
  const terms = termsOf(input.value);
  const { section, cells, grid } = runs.get(shownKey());
  const found = cells.narrowed(terms);
  grid.show(found, terms.length > 0);
  const count = found.reduce((sum, one) => sum + sizeOf(one.cells), 0);
  narrowFindings(section, cells, found, terms.length > 0);
  narrowLists(terms);
  matching.textContent = terms.length ? `${count} of ${cells.count} cells` : `${cells.count} cells`;
  const words = input.value.split(/\s+/);
  for (const button of document.querySelectorAll("[data-filter]"))
    button.setAttribute("aria-pressed", String(words.includes(button.dataset.filter)));
}

// A finding stays if one of its cells does.
function narrowFindings(section, cells, found, narrowed) {
  const numbers = new Set();
  for (const { cells: some } of found)
    for (const members of some.values())
      for (const cell of members) numbers.add(cells.number(cell, "finding"));
  for (const finding of section.querySelectorAll(".finding"))
    finding.hidden = narrowed && !numbers.has(Number(finding.dataset.finding));
  for (const severity of section.querySelectorAll(".severity"))
    severity.hidden = !severity.querySelector(".finding:not([hidden])");
}

// A row of a list stays if it has each word. A word of a field is looked for like any other.
function narrowLists(terms) {
  for (const list of document.querySelectorAll(".list")) {
    const rows = [...list.tBodies[0].rows];
    for (const row of rows) {
      const text = terms.length ? row.textContent.toLowerCase() : "";
      row.hidden = !terms.every((term) => text.includes(term.text.replaceAll("-", " ")));
    }
    const block = list.closest("details") ?? list;
    block.hidden = terms.length > 0 && rows.every((row) => row.hidden);
  }
  for (const section of document.querySelectorAll("section:has(.list)")) {
    const lists = [...section.querySelectorAll(".list")];
    section.hidden = terms.length > 0 && lists.every((list) => list.closest("[hidden]"));
  }
}

// --- clicks and keys -----------------------------------------------------------------------------

addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button?.matches(".copy")) copy(textToCopy(button), button);
  if (button?.dataset.filter) toggleWord(button.dataset.filter);
});

// Put a word into the filter, or take it out if it is there.
function toggleWord(word) {
  const words = input.value.split(/\s+/).filter(Boolean);
  const others = words.filter((one) => one !== word);
  filterBy((others.length < words.length ? others : [...words, word]).join(" "));
}

addEventListener("keydown", (event) => {
  if (panel.dialog.open || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && event.target !== input) {
    event.preventDefault();
    input.select();
  } else if (event.key === "Escape" && input.value) {
    event.preventDefault();
    filterBy("");
  } else if (event.target.matches(".finding > summary")) {
    moveAmongFindings(event);
  }
});

function moveAmongFindings(event) {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step) return;
  const shown = [...document.querySelectorAll(".finding > summary")].filter(
    (summary) => !summary.closest("[hidden]"),
  );
  event.preventDefault();
  shown[shown.indexOf(event.target) + step]?.focus();
}

// --- addresses -----------------------------------------------------------------------------------

// #run0/torch.sin/vjp is a square, #run0/finding-3fa9 a finding, #run0/filter=sin a filter.
function follow() {
  const address = decodeURIComponent(location.hash.slice(1));
  const [key, ...rest] = location.hash.slice(1).split("/").map(decodeURIComponent);
  if (!runs.has(key)) return;
  if (panel.dialog.open) panel.dialog.close();
  if (shownKey() !== key) choose(key);
  if (rest[0]?.startsWith("filter=")) {
    input.value = rest.join("/").slice("filter=".length);
    narrow();
  } else if (rest.length === 1) {
    openFinding(document.getElementById(address));
  } else if (rest.length > 1) {
    openSquare(key, ...rest);
  }
}

function openFinding(finding) {
  if (!finding?.matches(".finding")) return;
  finding.open = true;
  finding.scrollIntoView({ block: "start" });
  finding.querySelector("summary").focus({ preventScroll: true });
}

function openSquare(key, op, check) {
  const { cells, grid } = runOf(key);
  if (input.value) {
    input.value = "";
    narrow();
  }
  const row = grid.find(op, check);
  if (!row) return;
  grid.scroller.scrollIntoView({ block: "nearest" });
  grid.table.focus({ preventScroll: true });
  panel.show(cells, row, cells.checks.indexOf(check));
}

choose([...runs.keys()][0]);
addEventListener("hashchange", follow);
follow();
