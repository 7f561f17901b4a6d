// What a square of the grid shows of its cells.

// The worst outcome of some cells: {outcome, count, of}, where `of` is the number of all cells.
function worstOf(cells, at) {
  let outcome = -1;
  let count = 0;
  for (const cell of cells) {
    const one = cell[at];
    if (one > outcome) [outcome, count] = [one, 0];
    if (one === outcome) count += 1;
  }
  return { outcome, count, of: cells.length };
}

// What a family shows: its failures, or else its most frequent outcome, so that one exception does not
// colour a hundred passes.
function usualOf(cells, at, failing) {
  const worst = worstOf(cells, at);
  if (failing[worst.outcome]) return worst;
  const counts = new Map();
  for (const cell of cells) counts.set(cell[at], (counts.get(cell[at]) ?? 0) + 1);
  const [outcome, count] = [...counts].reduce((most, one) => (one[1] > most[1] ? one : most));
  return { outcome, count, of: cells.length };
}

// A square as text of HTML. `name`: what a screen reader says before the outcome.
function squareHtml(square, run, id, name, style) {
  const outcome = run.outcomes[square.outcome];
  const glyph = run.glyphs[square.outcome];
  const text = `${glyph}${square.count}`;
  // What is seen has to be a part of what is read: one may be asked for by the other.
  const seen = glyph ? `, ${text}` : "";
  const label = escaped(`${name}: ${square.count} of ${square.of} ${outcome}${seen}`);
  return `<td id="${id}" class="${styleOf(outcome)}${style}" aria-label="${label}">${text}</td>`;
}
