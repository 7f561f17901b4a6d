// Which columns the grid has: a check each, or several that are folded into one.

const SPARSE = 0.05; // a check that fewer of the ops have is folded away at first

class Columns {
  constructor(cells) {
    this.groups = cells.groups;
    const counts = cells.checks.map(() => 0);
    for (const row of cells.rows) for (const check of row.cells.keys()) counts[check] += 1;
    this.isSparse = counts.map((count) => count < SPARSE * cells.rows.length);
  }

  // What is folded at first: groups without a frequent check, and the sparse checks of the others.
  usual() {
    const isFolded = ({ checks }) => checks.length > 1 && checks.every((check) => this.isSparse[check]);
    const folded = this.groups.filter(isFolded);
    return { groups: new Set(folded), sparse: new Set(this.groups) };
  }

  nothing() {
    return { groups: new Set(), sparse: new Set() };
  }

  all() {
    return { groups: new Set(this.groups), sparse: new Set(this.groups) };
  }

  // The columns of some checks: a list of {group, checks, name}, where only a folded one has a name.
  list(taken, folded) {
    return this.groups.flatMap((group) => {
      const checks = group.checks.filter((check) => taken.has(check));
      if (!checks.length) return [];
      if (folded.groups.has(group)) return [{ group, checks, name: `${group.name} (${checks.length})` }];
      const sparse = folded.sparse.has(group) ? checks.filter((check) => this.isSparse[check]) : [];
      const columns = checks
        .filter((check) => sparse.length < 2 || !sparse.includes(check))
        .map((check) => ({ group, checks: [check], name: "" }));
      if (sparse.length > 1) columns.push({ group, checks: sparse, name: `${sparse.length} sparse` });
      return columns;
    });
  }

  // Fold or open what a column is the head of: the sparse checks of a group, or the group.
  toggle(folded, { group, checks }, ofGroup) {
    const isWhole = folded.groups.has(group);
    if (isWhole) {
      folded.groups.delete(group);
      if (!checks.every((check) => this.isSparse[check])) folded.sparse.add(group);
      else folded.sparse.delete(group);
    } else if (ofGroup) {
      folded.groups.add(group);
    } else {
      folded.sparse.delete(group);
    }
  }

  // Open the column of a check.
  reveal(folded, check) {
    const group = this.groups.find(({ checks }) => checks.includes(check));
    folded.groups.delete(group);
    if (this.isSparse[check]) folded.sparse.delete(group);
  }
}
