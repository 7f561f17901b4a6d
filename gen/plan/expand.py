"""Expand ops × checks × dtypes × axes to cells, with the known entries and the tier of each.

The cells of an op are the bits of one integer over the *columns*. A column is a check with a dtype
and axis values. Excluding, expecting failures and reducing then take a few wide bit operations for
each op. So a warm `generate` of some 150,000 cells is fast without a cache of results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from itertools import product

from gen.errors import MatrixError, nearest, one_of
from gen.language import pipeline
from gen.language.axes import AXES, Axes
from gen.language.check_specs import Check
from gen.language.field_types import Tolerance
from gen.language.globs import Names, is_glob
from gen.language.selection_specs import (
    TIERS,
    Known,
    Part,
    Reduce,
    Tier,
    ToleranceEntry,
    Where,
)
from gen.language.validate import Loaded, shown
from gen.plan import entry_names, reduce
from gen.plan import matrix_ops as ops_
from gen.plan.catalog import Catalog
from gen.plan.cell_sets import KNOWN_KINDS, Choice, Column, Entry, Plan
from gen.plan.matrix_ops import Dtypes, Op
from gen.plan.tier_cells import fill_tiers

# Each value occurs at `smoke`, each pair of values at `default`, and every cell at `full`.
DEFAULT_TIERS = {
    "smoke": Tier(reduce=Reduce(t=1)),
    "default": Tier(reduce=Reduce(t=2)),
    "full": Tier(),
}


def expand(loaded: Loaded, catalog: Catalog, today: date | None = None) -> Plan:
    """Return the whole matrix as cells.

    Raises `MatrixError` with every mistake, including mistakes of form.
    """
    dtypes = Dtypes(loaded)
    ops = ops_.resolve(loaded, catalog, dtypes)
    columns, spans = _columns(loaded, dtypes)
    maker = _Maker(loaded, dtypes, ops, columns, spans, today or date.today())
    # Each step notes its mistakes and goes on, so that one run reports them all.
    possible = maker.possible()
    entries = maker.entries(possible)
    tiers = maker.tier_specs()
    if loaded.problems:
        raise MatrixError(loaded.problems)
    # The valid cells are the possible ones without those that the matrix excludes.
    valid = list(possible)
    for entry in entries:
        if entry.kind == "exclude":
            for index in reduce.bits(entry.ops):
                valid[index] &= ~entry.columns
    if any(possible) and not any(valid):
        first = next(entry for entry in entries if entry.kind == "exclude")
        loaded.problem(first.path, "no case is left of any family", "exclusions that leave some")
        raise MatrixError(loaded.problems)
    plan = Plan(loaded, catalog, dtypes, ops, columns, spans, possible, valid, entries)
    fill_tiers(plan, tiers)
    return plan


def _columns(loaded: Loaded, dtypes: Dtypes) -> tuple[list[Column], dict[str, tuple[int, int]]]:
    """Return the columns of all checks, and the first column and the number of columns of each."""
    columns: list[Column] = []
    spans: dict[str, tuple[int, int]] = {}
    for name, check in loaded.matrix.checks.items():
        wanted = dtypes.all
        if check.dtypes is not None:
            wanted = dtypes.resolve(check.dtypes, ("checks", name, "dtypes"))
        # The columns of a check lie side by side: `Plan.of_check` takes them by a shift and a mask.
        start = len(columns)
        combinations = [axes_of(check, words) for words in product(*check.over.values())]
        for dtype, axes in product(wanted, combinations):
            columns.append(Column(name, dtype, axes))
        spans[name] = (start, len(columns) - start)
    return columns, spans


def axes_of(check: Check, words: Sequence[str]) -> Axes:
    """Return the axes of the cells with these words of what the check varies."""
    varying = Axes.varying(dict(zip(check.over, words, strict=True)))
    return varying.fixed(form=check.form, layout=check.layout, values=check.values)


def facts_needed(check: Check, form: str) -> frozenset[str]:
    """Return the facts that an op must have.

    The check may require them, or its form or its reference may imply them.
    """
    needed = set(check.requires)
    if form.startswith("out"):
        needed.add("out")
    if form.endswith("inplace"):
        needed.add("inplace")
    if check.against == ["reference"]:
        needed.add("reference")
    if check.against == ["raises"] and form == "functional":
        needed.add("errors")
    return frozenset(needed)


class _Maker:
    """Make cells, entries and tiers from the sets behind each name, which are made once."""

    def __init__(
        self,
        loaded: Loaded,
        dtypes: Dtypes,
        ops: Sequence[Op],
        columns: list[Column],
        spans: dict[str, tuple[int, int]],
        today: date,
    ) -> None:
        self._loaded = loaded
        self._ops = ops
        self._columns = columns
        self._spans = spans
        self._today = today
        self._all_dtypes = dtypes
        # For each name the set of its columns or ops, as bits: globs become unions of these.
        # A Counter has 0 for a new name, which is the empty set.
        families = dict.fromkeys(loaded.matrix.families, 0)
        by_dtype = Counter[str]()
        axes = {axis: Counter[str]() for axis in AXES}
        for index, op in enumerate(ops):
            families[op.family] |= 1 << index
        for index, column in enumerate(columns):
            by_dtype[column.dtype] |= 1 << index
            for axis, value in column.axes.by_name().items():
                axes[axis][value] |= 1 << index
        self._op_names = Names({op.name: 1 << index for index, op in enumerate(ops)}, "op")
        self._families = Names(families, "family")
        self._checks = Names(
            {name: ((1 << count) - 1) << start for name, (start, count) in spans.items()}, "check"
        )
        self._dtypes = Names(by_dtype, "dtype")
        self._axes = {axis: Names(values, f"value of axis {axis}") for axis, values in axes.items()}

    def _select(self, names: Names, globs: Sequence[str], path: ops_.Path) -> int:
        """Return the union of the sets that `globs` match.

        A glob without a match is a mistake, unless its target was itself a mistake.
        """
        for index, glob in enumerate(globs):
            if names.match(glob) is None and not self._may_be_cut_out(glob, names):
                matches = "matches nothing" if is_glob(glob) else "is unknown"
                self._loaded.problem(
                    (*path, index),
                    f'{names.what} "{glob}" {matches}',
                    one_of(names.sets),
                    nearest(glob, names.sets),
                )
        return names.match_any(globs)

    def _may_be_cut_out(self, glob: str, names: Names) -> bool:
        """Return whether a glob may have matched what a mistake removed."""
        # Dtypes and axis values come from columns, and a check that was cut out may have had them.
        derived = names.what not in ("op", "family", "check")
        if glob in self._loaded.cut:
            return True
        return not self._loaded.cases_are_known and (derived or is_glob(glob))

    # --- which cells there are --------------------------------------------------------------------

    def possible(self) -> list[int]:
        """Return for each op the columns that fit it.

        They fit by its facts and dtypes, and by the filters of checks and families.
        """
        columns_of = self._columns_by_need()
        allowed = self._ops_of_checks()
        masks = []
        suited: dict[tuple[frozenset[str], ...], int] = {}
        asked_for: dict[tuple[tuple[str, ...], tuple[str, ...], str, bool], int] = {}
        for index, op in enumerate(self._ops):
            dtypes = op.dtypes if op.asked is None else op.dtypes & op.asked
            # Thousands of ops share some hundred signatures, so each is computed once.
            signature = (op.facts, dtypes, op.differentiable)
            if signature not in suited:
                suited[signature] = self._columns_that_suit(columns_of, *signature)
            # Mistakes are noted on the way. A mistake of a row is noted at its line, and one of a
            # family once.
            has_own_checks = op.spec.checks is not None or bool(op.spec.not_checks)
            place = str(op.path) if has_own_checks else op.family
            asked = (op.checks, op.not_checks, place, has_own_checks)
            if asked not in asked_for:
                asked_for[asked] = self._columns_of_row(op, has_own_checks)
            mask = suited[signature] & asked_for[asked]
            for check, ops in allowed.items():
                if not (ops >> index) & 1:
                    mask &= ~self._checks.sets[check]
            masks.append(mask)
        return masks

    def _columns_by_need(self) -> dict[tuple[frozenset[str], str, bool], int]:
        """Return columns by the needs that they have of an op.

        These are facts, a dtype, and whether the op must be differentiable in it.
        """
        columns_by_need: dict[tuple[frozenset[str], str, bool], int] = {}
        checks = self._loaded.matrix.checks
        differentiates = {
            name: pipeline.parse(check.pipeline).differentiates for name, check in checks.items()
        }
        for index, column in enumerate(self._columns):
            needed = facts_needed(checks[column.check], column.axes.form)
            key = (needed, column.dtype, differentiates[column.check])
            columns_by_need[key] = columns_by_need.get(key, 0) | (1 << index)
        return columns_by_need

    @staticmethod
    def _columns_that_suit(
        columns_of: Mapping[tuple[frozenset[str], str, bool], int],
        facts: frozenset[str],
        dtypes: frozenset[str],
        differentiable: frozenset[str],
    ) -> int:
        """Return the columns whose needs an op meets."""
        mask = 0
        for (needed, dtype, derivative), columns in columns_of.items():
            takes_dtype = dtype in dtypes and (not derivative or dtype in differentiable)
            if takes_dtype and needed <= facts:
                mask |= columns
        return mask

    def _columns_of_row(self, op: Op, own: bool) -> int:
        """Return the columns of the checks that the op's row or family selects.

        `own` says whether the row itself selects checks.
        """
        family = ("families", op.family)
        checks_path = (*op.path, "checks") if op.spec.checks is not None else (*family, "checks")
        mask = self._select(self._checks, op.checks, checks_path)
        self._select(
            self._checks,
            self._loaded.matrix.families[op.family].not_checks,
            (*family, "not_checks"),
        )
        if own:
            self._select(self._checks, op.spec.not_checks, (*op.path, "not_checks"))
        return mask & ~self._checks.match_any(op.not_checks)

    def _ops_of_checks(self) -> dict[str, int]:
        """Return, for each check that names ops or families, its ops."""
        for axis, spread in self._loaded.matrix.over.items():
            for key in ("checks", "not_checks"):
                self._select(self._checks, getattr(spread, key), ("over", axis, key))
        ops_of_check = {}
        for name, check in self._loaded.matrix.checks.items():
            path = ("checks", name)
            ops = self._select(self._op_names, check.ops, (*path, "ops"))
            ops &= ~self._select(self._op_names, check.not_ops, (*path, "not_ops"))
            ops &= self._select(self._families, check.families, (*path, "families"))
            ops &= ~self._select(self._families, check.not_families, (*path, "not_families"))
            # A check that takes every op restricts nothing.
            if ops != (1 << len(self._ops)) - 1:
                ops_of_check[name] = ops
        return ops_of_check

    # --- what is known of them --------------------------------------------------------------------

    def entries(self, possible: Sequence[int]) -> list[Entry]:
        """Return the entries of the matrix, then the tolerances of rows and checks."""
        written = list(self._entries_as_written())
        names = entry_names.UniqueNames(spec.name for _, spec, _ in written if spec.name)
        named = self._names_of_entries(written, names)
        entries = [self._entry(kind, named[path], spec, path) for kind, spec, path in written]
        exclusions = [entry for entry in entries if entry.kind == "exclude"]
        valid = list(possible)
        for entry in exclusions:
            for index in reduce.bits(entry.ops):
                valid[index] &= ~entry.columns
        for entry in entries:
            if entry.kind == "exclude":
                self._refuse_idle(entry, possible)
            else:
                self._refuse_idle(entry, valid)
        return [*entries, *self._tolerances(names)]

    def _entries_as_written(self) -> Iterator[tuple[str, Where, ops_.Path]]:
        """Yield the kind, the text and the path of each entry that the matrix has."""
        for kind in ("exclude", *KNOWN_KINDS):
            for index, spec in enumerate(getattr(self._loaded.matrix, kind)):
                yield kind, spec, (kind, index)

    def _entry(self, kind: str, name: str, spec: Where, path: ops_.Path) -> Entry:
        """Return an entry with the columns and ops that its globs match. A day that is over is a
        mistake.
        """
        columns = self._select(self._checks, spec.check, (*path, "check"))
        columns &= self._select(self._dtypes, spec.dtype, (*path, "dtype"))
        for axis, globs in spec.axes.items():
            columns &= self._select(self._axes[axis], globs, (*path, "axes", axis))
        ops = self._select(self._op_names, spec.op, (*path, "op"))
        ops &= self._select(self._families, spec.family, (*path, "family"))
        if spec.until is not None and spec.until < self._today:
            what = f"expired on {spec.until}: {spec.reason}"
            self._loaded.problem(
                (*path, "until"),
                what,
                "the cause to be gone and the entry removed, or a later date with a reason",
            )
        if isinstance(spec, Known):
            self._refuse_unknown_run(spec, path)
        return Entry(kind, name, spec, path, columns, ops)

    def _refuse_unknown_run(self, spec: Known, path: ops_.Path) -> None:
        """Note targets and devices of an entry that the matrix does not have."""
        targets = Names(dict.fromkeys(self._loaded.matrix.targets.names, 0), "target")
        devices = Names(dict.fromkeys(self._loaded.matrix.devices, 0), "device")
        for key, names, glob in (
            ("target", targets, spec.target),
            ("device", devices, spec.device),
        ):
            if glob is not None and names.match(glob) is None:
                self._loaded.problem(
                    (*path, key),
                    f'{key} "{glob}" is unknown',
                    one_of(names.sets),
                    nearest(glob, names.sets),
                )
        if isinstance(spec, ToleranceEntry) and not (spec.rtol or spec.atol):
            self._loaded.problem(path, "a tolerance of nothing", "`rtol:` or `atol:`")

    def _refuse_idle(self, entry: Entry, cells: Sequence[int]) -> None:
        """Note an entry that matches none of the `cells`."""
        if not self._loaded.cases_are_known:
            return
        if any(cells[index] & entry.columns for index in reduce.bits(entry.ops)):
            return
        if any(problem.path.startswith(shown(entry.path)) for problem in self._loaded.problems):
            return  # its names are wrong, which is already reported
        what = f"{entry.kind} matches no case: {entry.spec.reason}"
        self._loaded.problem(
            entry.path,
            what,
            "an entry that is about something (`gen list` with the same filters shows cases)",
        )

    def _names_of_entries(
        self, written: Sequence[tuple[str, Where, ops_.Path]], names: entry_names.UniqueNames
    ) -> dict[ops_.Path, str]:
        """Return each entry with its own name, or one from its reason.

        Exclusions come last, as no generated module names them.
        """
        counts_of_names = Counter(spec.name for _, spec, _ in written if spec.name)
        names_by_path: dict[ops_.Path, str] = {}
        for kind, spec, path in sorted(written, key=lambda entry: entry[0] == "exclude"):
            if spec.name and counts_of_names[spec.name] > 1:
                self._loaded.problem(
                    (*path, "name"), f'the name "{spec.name}" is taken', "a name of its own"
                )
            names_by_path[path] = spec.name or names.give(entry_names.words_of(spec.reason, kind))
        return names_by_path

    def _tolerances(self, names: entry_names.UniqueNames) -> Iterator[Entry]:
        """Yield an entry for the tolerance of each row and of each check."""
        # A tolerance of a row or a check is an entry like any other, for all its columns or ops.
        everywhere = (1 << len(self._ops)) - 1
        for index, op in enumerate(self._ops):
            tolerance = op.spec.tolerance
            if tolerance is not None:
                reason = tolerance.reason or f"{op.name} asks for it"
                spec = _tolerance(tolerance, reason)
                yield Entry(
                    "tolerance",
                    names.give(f"of_{op.name.replace('.', '_')}"),
                    spec,
                    op.path,
                    -1,  # every column: of -1 all bits are set
                    1 << index,
                )
        for name, check in self._loaded.matrix.checks.items():
            if check.tolerance is not None:
                reason = check.tolerance.reason or f"the check {name} asks for it"
                spec = _tolerance(check.tolerance, reason)
                yield Entry(
                    "tolerance",
                    names.give(f"of_{name}"),
                    spec,
                    ("checks", name),
                    self._checks.sets[name],
                    everywhere,
                )

    # --- which tier takes them --------------------------------------------------------------------

    def tier_specs(self) -> dict[str, tuple[Tier, list[Choice]]]:
        """Return for each tier its spec, and what it chooses from: itself, and the parts under
        ``also``.
        """
        specs = {}
        for name in TIERS:
            tier = self._loaded.matrix.tiers.get(name, DEFAULT_TIERS[name])
            path = ("tiers", name)
            parts = [self._choice(tier, path)]
            for index, part in enumerate(tier.also):
                parts.append(self._choice(part, (*path, "also", index)))
            specs[name] = (tier, parts)
        return specs

    def _choice(self, part: Part, path: ops_.Path) -> Choice:
        """Return a part of a tier with the columns and ops that its globs match."""
        columns = self._select(self._checks, part.checks, (*path, "checks"))
        columns &= ~self._select(self._checks, part.not_checks, (*path, "not_checks"))
        if part.dtypes is not None:
            columns &= self._dtypes.match_any(
                self._all_dtypes.resolve(part.dtypes, (*path, "dtypes"))
            )
        for axis, globs in part.axes.items():
            columns &= self._select(self._axes[axis], globs, (*path, "axes", axis))
        for axis, globs in part.not_axes.items():
            columns &= ~self._select(self._axes[axis], globs, (*path, "not_axes", axis))
        # `run: plain` of a check that has no other form, for example
        if not columns and "also" in path and self._loaded.cases_are_known:
            self._loaded.problem(
                path, "chooses no column", "a check that has these dtypes and axes"
            )
        ops = self._select(self._op_names, part.ops, (*path, "ops"))
        ops &= self._select(self._families, part.families, (*path, "families"))
        limits = []
        for index, limit in enumerate(part.limit):
            path_of_limit = (*path, "limit", index, "checks")
            of_checks = self._select(self._checks, limit.checks, path_of_limit)
            limits.append((limit, columns & of_checks))
        return Choice(part, path, columns, ops, limits)


def _tolerance(tolerance: Tolerance, reason: str) -> ToleranceEntry:
    """Return a tolerance of a row or a check as an entry."""
    return ToleranceEntry(
        reason=reason, rtol=tolerance.rtol, atol=tolerance.atol, torch=tolerance.torch
    )
