"""Run `gen explain CASE`: print why a case exists, is excluded, is expected to fail, or was dropped
by reduction.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from itertools import chain, combinations, islice

from gen.dtypes import DTYPES
from gen.errors import Mark, MatrixError, Problem, nearest, one_of
from gen.language import pipeline
from gen.language.axes import complete
from gen.language.globs import Names
from gen.language.selection_specs import Known, ToleranceEntry, Xfail
from gen.plan.cell_sets import Column, Entry, Plan
from gen.plan.expand import axes_of, facts_needed
from gen.plan.matrix_ops import Op
from gen.plan.matrix_plan import add_matrix_arguments, load_plan, node_id
from gen.plan.reduce import bits
from gen.plan.tier_cells import factors

_NODE = re.compile(r"(?:.*::)?test_(?P<check>\w+)\[(?P<id>[^\]]+)\]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the case, by its pytest id or by its own id and a check."""
    add_matrix_arguments(parser)
    parser.add_argument(
        "case",
        metavar="CASE",
        help="a pytest id, as test_unary.py::test_vjp[torch.sin-float64], or op-dtype[-value…]",
    )
    parser.add_argument(
        "--check", help="the check, if CASE does not name it (default: a line for every check)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the explanation. Return 0 if a tier runs the case, 1 if none does."""
    plan = load_plan(args.matrix)
    case, check = _read(args.case, args.check)
    if check is None:
        return _overview(plan, _op(plan, case.split("-")[0]), case)
    op, column = case_of(plan, case, check)
    for line in explain(plan, op, column):
        print(line)
    for position in bits(plan.tiers["full"].chosen[op]):
        if plan.columns[position] == column:
            return 0
    return 1


def _read(case: str, check: str | None) -> tuple[str, str | None]:
    """Return the case and the check that arguments name. The check is None if neither names one."""
    node = _NODE.fullmatch(case)
    if node is None:
        return case, check
    return node["id"], node["check"]


def case_of(plan: Plan, case: str, check: str | None) -> tuple[int, Column]:
    """Return the op and the column of a case, by its pytest id, or by its own id and a check.

    Raises MatrixError, which says what is unknown.
    """
    case, check = _read(case, check)
    op = _op(plan, case.split("-")[0])
    if check is None:
        raise MatrixError(
            [Problem(Mark("CASE"), "", f'"{case}" names no check', "a pytest id, or --check", "")]
        )
    return op, _column(plan, check, case)


def explain(plan: Plan, op: int, column: Column) -> Iterator[str]:
    """Yield everything that the matrix says about one case, each statement with its line."""
    row, check = plan.ops[op], plan.loaded.matrix.checks[column.check]
    yield node_id(plan, op, column)
    yield f"  op: {row.name}, family {row.family} ({_at(plan, row.path)})"
    words = ", ".join(check.against)
    yield (
        f"  check: {column.check}: {check.claim} Pipeline `{check.pipeline}` against {words} "
        f"({_at(plan, ('checks', column.check))})"
    )
    if column not in plan.columns or not _has(plan.possible[op], plan.columns.index(column)):
        yield "  there is no such case:"
        for reason in _reasons(plan, op, column):
            yield f"    {reason}"
        return
    # Exclusions come first: an excluded case has no tier and no expectation.
    position = plan.columns.index(column)
    is_excluded = False
    for entry in plan.entries:
        if entry.kind == "exclude" and _holds(entry, op, position):
            is_excluded = True
            yield f"  excluded ({_at(plan, entry.path)}): {_why(entry)}"
    if not is_excluded:
        yield from _explain_valid(plan, op, position)


def _explain_valid(plan: Plan, op_index: int, position: int) -> Iterator[str]:
    """Yield why a case is valid, which entries it has, and which tiers run it."""
    column = plan.columns[position]
    valid = f"  valid: the op takes {column.dtype}"
    requires = plan.loaded.matrix.checks[column.check].requires
    if requires:
        valid += f" and offers {', '.join(requires)}"
    yield valid
    for entry in plan.entries_of(op_index):
        if _holds(entry, op_index, position):
            yield f"  {_expectation(entry)} ({_at(plan, entry.path)}): {_why(entry)}"
    for name in plan.tiers:
        yield f"  tier {name}: {_in_tier(plan, name, op_index, position)}"


def _overview(plan: Plan, op_index: int, case: str) -> int:
    """Print one line for each check that has the case, or could have it."""
    has_case = False
    for check in plan.loaded.matrix.checks:
        # a case may leave out its last words, and then stands for all that begin so
        values = tuple(case.split("-")[1:])
        start, count = plan.spans[check]
        for position in range(start, start + count):
            column = plan.columns[position]
            if (column.dtype, *column.axes.words)[: len(values)] != values:
                continue
            has_case |= _has(plan.possible[op_index], position)
            if _has(plan.possible[op_index] | plan.valid[op_index], position):
                print(f"{node_id(plan, op_index, column)}: {_fate(plan, op_index, position)}")
    if not has_case:
        raise _no_case(plan.ops[op_index], case.split("-")[1:])
    return 0


def _fate(plan: Plan, op_index: int, position: int) -> str:
    """Return what becomes of a case that the op could have."""
    if not _has(plan.valid[op_index], position):
        return "excluded"
    tier = plan.tier_of(op_index, position)
    if not tier:
        return "dropped by reduction"
    return f"tier {tier}"


def _no_case(op: Op, words: list[str]) -> MatrixError:
    dtypes = sorted(op.dtypes)
    if not words:
        return _unknown(f"no check fits {op.name}", dtypes, "")
    return _unknown(f"{op.name} has no case {'-'.join(words)}", dtypes, words[0])


def _op(plan: Plan, name: str) -> int:
    """Return the place of an op in the plan. Raises MatrixError for an unknown name."""
    names = [op.name for op in plan.ops]
    if name not in names:
        raise _unknown(f'no op "{name}" in the matrix', names, name)
    return names.index(name)


def _column(plan: Plan, check: str, case: str) -> Column:
    """Return the column of a case. Raises MatrixError for a word that the check does not have."""
    checks = plan.loaded.matrix.checks
    if check not in checks:
        raise _unknown(f'unknown check "{check}"', list(checks), check)
    words = case.split("-")[1:]
    over = checks[check].over
    dtype = "".join(words[:1])
    if dtype not in DTYPES:
        raise _unknown(f'"{case}" names no dtype', list(DTYPES), dtype)
    words = [*words[:1], *complete(words[1:], list(over))]
    if len(words) != len(over) + 1:
        first = [values[0] for values in over.values()]
        example = Column(check, words[0], axes_of(checks[check], first)).case(case.split("-")[0])
        raise _unknown(
            f'"{case}" has {len(words) - 1} axis values; the check {check} has {len(over)}',
            [f"an id such as {example}"],
            "",
        )
    for word, (axis, values) in zip(words[1:], over.items(), strict=True):
        if word not in values:
            raise _unknown(f'"{word}" is not a value of {axis} in the check {check}', values, word)
    return Column(check, words[0], axes_of(checks[check], words[1:]))


def _unknown(what: str, names: list[str], word: str) -> MatrixError:
    near = word and nearest(word, names)
    return MatrixError([Problem(Mark("CASE"), "", what, one_of(names), near)])


def _reasons(plan: Plan, index: int, column: Column) -> Iterator[str]:
    """Yield the reasons why there is no such case."""
    op, check = plan.ops[index], plan.loaded.matrix.checks[column.check]
    # every reason, so that nobody mends one and then meets the next
    source = "torch's OpInfo database" if "opinfo" in op.facts else "its row"
    yield from _dtype_reasons(plan, op, column, source)
    lacking = facts_needed(check, column.axes.form) - op.facts
    if lacking:
        yield (
            f"the check needs {', '.join(sorted(lacking))}, which the op lacks, "
            f"says {source} ({_at(plan, ('checks', column.check))})"
        )
    names = Names(dict.fromkeys(plan.loaded.matrix.checks, 0), "check")
    if not any(column.check in names.named(glob) for glob in op.checks):
        there = _at(plan, _path_of(op, "checks", of_row=op.spec.checks is not None))
        yield f"the check is not among those asked for: {', '.join(op.checks)} ({there})"
    for glob in op.not_checks:
        if column.check in names.named(glob):
            yield f"not_checks: {glob} ({_at(plan, ('families', op.family))})"
    yield from _filters(plan, index, column.check)


def _dtype_reasons(plan: Plan, op: Op, column: Column, source: str) -> Iterator[str]:
    """Yield the reasons that lie in the dtype. `source`: what says which dtypes the op takes."""
    check = plan.loaded.matrix.checks[column.check]
    dtypes = {other.dtype for other in plan.columns if other.check == column.check}
    if column.dtype not in dtypes:
        yield (
            f"the check is for {', '.join(sorted(dtypes))}, "
            f"not {column.dtype} ({_at(plan, ('checks', column.check, 'dtypes'))})"
        )
    if column.dtype not in op.dtypes:
        yield f"the op does not take {column.dtype} on the CPU, says {source}"
    elif pipeline.parse(check.pipeline).differentiates and column.dtype not in op.differentiable:
        yield f"the op has no derivative in {column.dtype}, says {source}"
    if op.asked is not None and column.dtype not in op.asked:
        there = _at(plan, _path_of(op, "dtypes", of_row=op.spec.dtypes is not None))
        yield f"only {', '.join(sorted(op.asked))} are asked for ({there})"


def _path_of(op: Op, key: str, *, of_row: bool) -> tuple[str | int, ...]:
    """Return where the matrix has a key: in the op's row, or in its family."""
    if of_row:
        return (*op.path, key)
    return ("families", op.family, key)


def _filters(plan: Plan, index: int, name: str) -> Iterator[str]:
    """Yield the filters of a check that leave the op out."""
    check, op = plan.loaded.matrix.checks[name], plan.ops[index]
    for key, value, positive in (
        ("ops", op.name, True), ("not_ops", op.name, False), ("families", op.family, True),
        ("not_families", op.family, False),
    ):  # fmt: skip
        globs: list[str] = getattr(check, key)
        matched = any(Names({value: 0}, "").named(glob) for glob in globs)
        if matched != positive:
            effect = "leave it out" if positive else "name it"
            place = _at(plan, ("checks", name, key))
            yield f"{key}: {', '.join(globs)} of the check {effect} ({place})"


def _in_tier(plan: Plan, name: str, op_index: int, position: int) -> str:
    """Say why a tier runs a cell, or does not."""
    tier = plan.tiers[name]
    if _has(tier.chosen[op_index], position):
        smaller = plan.tier_of(op_index, position)
        if smaller == name:
            return "runs it"
        return f"runs it, as {smaller} does"
    part = next((part for part in tier.parts if part.has(op_index, position)), None)
    if part is None:
        return f"is not for this op or check ({_at(plan, ('tiers', name))})"
    # Limits come first: a cell may be in a cover and still be one too many.
    spec_at = _at(plan, part.path)
    for index, (limit, columns) in enumerate(part.limits):
        if _has(columns, position):
            where = _at(plan, (*part.path, "limit", index))
            return (
                f"may leave it out: {', '.join(limit.checks)} are limited to {limit.cells} cells, "
                f"drawn by seed {limit.seed} ({where})"
            )
    if part.spec.reduce.sample is not None:
        return (
            f"was not drawn: a sample of {part.spec.reduce.sample} cells by seed "
            f"{part.spec.reduce.seed} ({spec_at})"
        )
    return f"dropped it by reduction ({spec_at}): {_covered_by(plan, name, op_index, position)}"


def _covered_by(plan: Plan, name: str, op_index: int, position: int) -> str:
    """Name cells of the tier that together cover every t-tuple of the dropped cell."""
    size = plan.tiers[name].coverage.t
    own_factors = (f"op={plan.ops[op_index].name}", *factors(plan, position))
    covering_cases: dict[str, None] = {}
    for wanted in combinations(own_factors, size):
        # a tuple without the op may be covered by any op
        ops = [op_index]
        if own_factors[0] not in wanted:
            ops += range(len(plan.ops))
        # One case per tuple is enough, so the search ends at the first one.
        of_ops = (_cases_with(plan, name, index, set(wanted)) for index in ops)
        covering = chain.from_iterable(of_ops)
        covering_cases.update(dict.fromkeys(islice(covering, 1)))
    return f"its {size}-tuples are covered by {', '.join(covering_cases)}"


def _cases_with(plan: Plan, name: str, index: int, wanted: set[str]) -> Iterator[str]:
    """Yield the cases of one op in a tier that have all of `wanted`."""
    op = plan.ops[index].name
    for position in bits(plan.tiers[name].chosen[index]):
        if wanted <= {f"op={op}", *factors(plan, position)}:
            column = plan.columns[position]
            yield f"{column.check}[{column.case(op)}]"


def _expectation(entry: Entry) -> str:
    """Say what an entry expects, and under which conditions."""
    spec = entry.spec
    conditions = []
    if isinstance(spec, Known):
        for key in ("target", "device", "torch", "cpu"):
            value = getattr(spec, key)
            if value:
                conditions.append(f"{key} {value}")
    when = ""
    if conditions:
        when = f" where {' and '.join(conditions)}"
    if isinstance(spec, Xfail):
        return f"expected to fail with {spec.raises} matching {spec.match!r}{when}"
    if isinstance(spec, ToleranceEntry):
        return f"tolerance rtol {spec.rtol:g} atol {spec.atol:g}{when}"
    return {"skip": "skipped", "vanishes": "expected to be zero"}[entry.kind] + when


def _why(entry: Entry) -> str:
    """Return the reason of an entry, with its link and its last day."""
    text = entry.spec.reason
    if entry.spec.link:
        text += f" {entry.spec.link}"
    if entry.spec.until:
        text += f" (until {entry.spec.until})"
    return text


def _holds(entry: Entry, op_index: int, position: int) -> bool:
    return _has(entry.ops, op_index) and _has(entry.columns, position)


def _has(mask: int, position: int) -> bool:
    return bool((mask >> position) & 1)


def _at(plan: Plan, path: tuple[str | int, ...]) -> str:
    return plan.loaded.source.where(path, key=True).short
