"""Validate plain data as a `spec.Matrix`, with the place of every mistake of form.

Wrong parts are cut out, and the rest is validated again. So mistakes of meaning elsewhere are noted
in the same run. `Loaded.problems` has all mistakes. Only `gen.plan.expand` raises them, together
with its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gen.errors import Mark, MatrixError, Problem, nearest, one_of
from gen.language import source
from gen.language.axes import RUN
from gen.language.globs import Names
from gen.language.spec import SECTIONS_OF_CASES, Matrix
from gen.versions import is_for_version

Loc = tuple[str | int, ...]

# The keys that a matrix needs, used if they were cut out.
MINIMUM: dict[str, Any] = {"version": 1, "families": {}}


@dataclass
class Loaded:
    """A matrix and its source. Its form is right, except for `problems`."""

    matrix: Matrix
    source: source.Source
    problems: list[Problem] = field(default_factory=list)
    cut: set[str] = field(default_factory=set)
    """Names of checks, families and ops that were cut out or misspelt. Other references to them
    are no mistakes."""

    @property
    def cases_are_known(self) -> bool:
        """Return whether the cut-out parts leave the set of cases unchanged.

        If not, «matches no case» would mislead.
        """
        return not any(problem.path.split(".")[0] in SECTIONS_OF_CASES for problem in self.problems)

    def problem(
        self,
        path: Sequence[str | int],
        what: str,
        expected: str = "",
        nearest: str = "",
        mark: Mark | None = None,
    ) -> None:
        """Note a mistake at `path`."""
        self.problems.append(
            Problem(mark or self.source.where(path), shown(path), what, expected, nearest)
        )


def load(path: str | Path, name: str | None = None) -> Loaded:
    """Read and validate a matrix file.

    Raises `MatrixError` only if nothing usable is left of it.
    """
    read = source.load(path, name)
    problems: list[Problem] = []
    cut: set[str] = set()
    # Each round cuts out the mistakes of the round before. Few rounds show them all, since each one
    # reports every mistake that it finds.
    for _ in range(8):
        try:
            return Loaded(_spread(Matrix.model_validate(read.data)), read, problems, cut)
        except ValidationError as error:
            details = error.errors(include_url=False)
        problems += [_problem(detail, read) for detail in details]
        # The parts with mistakes are cut out, and the rest is validated again.
        paths = _with_emptied_families({_whole(detail, read.data) for detail in details}, read.data)
        cut.update(_name(path, read.data) for path in paths)
        read = read.without(paths, MINIMUM)
    raise MatrixError(problems)


def _spread(matrix: Matrix) -> Matrix:
    """Return `matrix` with the axes of its section ``over`` on its checks.

    A check that varies such an axis itself is left as it is.
    """
    names = Names(dict.fromkeys(matrix.checks, 0), "check")
    checks = dict(matrix.checks)
    # The axis `run` comes last, because False sorts before True.
    for axis, spread in sorted(matrix.over.items(), key=lambda item: item[0] == RUN):
        left_out: set[str] = set()
        for glob in spread.not_checks:
            left_out.update(names.named(glob))
        matched = chain.from_iterable(map(names.named, spread.checks))
        for name in dict.fromkeys(matched):
            if name not in left_out and axis not in checks[name].over:
                checks[name] = checks[name].model_copy(
                    update={"over": {**checks[name].over, axis: spread.values}}
                )
    return matrix.model_copy(update={"checks": checks})


def shown(path: Sequence[str | int]) -> str:
    """Return the path as text: `families.mine.ops[0]`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        name = step if step.isprintable() else repr(step)
        text += f".{name}" if text else name
    return text


def _problem(detail: ErrorDetails, read: source.Source) -> Problem:
    """Return a mistake of pydantic's as a problem, in terms of YAML."""
    loc, kind, context = detail["loc"], detail["type"], detail.get("ctx", {})
    path = _data_path(loc, read.data)
    value = detail["input"]
    mark = read.where(path)
    # The modules `texts` and `spec` raise these mistakes themselves, with all of their parts.
    if kind == "matrix":
        path = (*path, *context["at"])
        mark = read.within(path, context["offset"]) if context["offset"] >= 0 else read.where(path)
        return Problem(mark, shown(path), context["what"], context["expected"], context["nearest"])
    if kind == "missing":
        return Problem(
            read.where(path, key=True),
            shown(path),
            f'"{loc[-1]}" is missing',
            _describe_wanted(loc),
        )
    if kind == "extra_forbidden":
        names = _keys(loc[:-1])
        return Problem(
            read.where(path, key=True),
            shown(path),
            f'unknown key "{loc[-1]}"',
            one_of(names),
            nearest(loc[-1], names),
        )
    # Where the table of words has none, pydantic's own words remain.
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return Problem(mark, shown(path), f"{_brief(value)} does not fit", _in_words(kind, message))


def _in_words(kind: str, message: str) -> str:
    """Return what pydantic expected, in terms of YAML."""
    return {
        "string_type": "a text (quote it if it looks like a number)",
        "list_type": "a list",
        "dict_type": "a mapping",
        "model_type": "a mapping",
        "model_attributes_type": "a mapping",
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "too_short": "at least one item",
        "too_long": message.removeprefix("List should have ").partition(" after")[0],
    }.get(kind, message.replace("Input should be ", ""))


def _brief(value: object) -> str:
    """Return a wrong value as a message has it: in full only if it is short."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    return "an empty value" if value is None else f"{value!r}"[:60]


def _data_path(loc: Sequence[str | int], data: object) -> Loc:
    """Return `loc` without the steps that pydantic adds.

    It adds steps for the tags of unions, and for short forms that are widened.
    """
    path: list[str | int] = []
    for position, step in enumerate(loc):
        if step == "[key]":
            continue
        if isinstance(data, dict) and str(step) in data:
            data = data[str(step)]
            path.append(str(step))
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
            path.append(step)
        elif isinstance(data, dict) and position == len(loc) - 1:
            path.append(step)  # a missing key
    return tuple(path)


def _whole(detail: ErrorDetails, data: dict[str, object]) -> Loc:
    """Return the path of the smallest unit with the mistake.

    It is an unknown key, an entry, an op, a check or a family.
    """
    path = _data_path(detail["loc"], data)
    # Without the unknown key, what stands beside it may be right.
    if detail["type"] == "extra_forbidden":
        return path
    if len(path) >= 4 and path[0] == "families" and path[2] == "ops":
        return path[:4]
    return path[:2]


def _with_emptied_families(paths: set[Loc], data: Any) -> set[Loc]:
    """Return `paths`, and the families of which they name every op.

    Without its ops a family would be empty, and that would be a second mistake.
    """
    # Paths of four steps are those of ops: `families`, its name, `ops`, the number of the op.
    counts = Counter(path[:2] for path in paths if len(path) == 4)
    emptied = set(paths)
    for family, count in counts.items():
        if count == len(data[family[0]][family[1]]["ops"]):
            emptied.add(family)
    return emptied


def _name(path: Loc, data: Any) -> str:
    """Return the name by which other parts refer to the value at `path`.

    It is the name of an op, or else the key.
    """
    # A missing key is a step that leads to nothing.
    for step in path:
        data = data[step] if isinstance(data, list) or step in data else None  # type: ignore[index]
    named = data.get("op") if isinstance(data, dict) else None
    return str(named or path[-1])


def _model_at(loc: Sequence[str | int]) -> object:
    """Return the type of the language at `loc`, by walking its models."""
    kind: Any = Matrix
    for step in loc:
        kind = _inner_type(kind, str(step))
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            if str(step) in kind.model_fields:
                field_ = kind.model_fields[str(step)]
                kind = field_.annotation
        elif get_origin(kind) is list and isinstance(step, int):
            kind = get_args(kind)[0]
        elif get_origin(kind) is dict:
            kind = get_args(kind)[1]
    return _inner_type(kind, "")


def _inner_type(kind: object, tag: str) -> object:
    """Return `kind` without `Annotated` and `None`.

    For a tagged union, the member with `tag`, or else the first.
    """
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif get_origin(kind) in (Union, UnionType):
            # The text of a member has its tag, as `Annotated[Tensor, Tag(tag='<tensor>')]`.
            members = [member for member in get_args(kind) if member is not type(None)]
            kind = next((member for member in members if tag and tag in str(member)), members[0])
        else:
            return kind


def _keys(loc: Sequence[str | int]) -> list[str]:
    """Return the keys that the language has at `loc`."""
    model = _model_at(loc)
    if isinstance(model, type) and issubclass(model, BaseModel):
        return list(model.model_fields)
    return []


def _describe_wanted(loc: Sequence[str | int]) -> str:
    """Say what a missing key should have been."""
    return {
        "reason": "`reason: …`, a sentence that says why",
        "raises": "`raises: …`, the exception's class",
        "match": "`match: …`, a pattern that its message matches",
        "claim": "`claim: …`, a sentence that says what the check holds",
        "against": "`against: …`, what the pipeline is compared with",
        "version": "`version: 1`",
        "families": "`families: …`, the ops by module",
        "shape": "`shape: [...]`",
        "op": "`op: …`, a dotted name",
    }.get(str(loc[-1]), "")


def refuse_unmet(loaded: Loaded, versions: Sequence[str]) -> None:
    """Note every ``torch:`` of an entry, row, sample or tolerance that is for none of ``versions``.

    Such a condition belongs to something that never runs.
    """
    for path, specifier in _conditions(loaded.source.data, ()):
        if not any(is_for_version(specifier, version) for version in versions):
            what = f'"{specifier}" is for none of the versions {", ".join(versions)}'
            loaded.problem(path, what, "a condition that one of them meets, or no entry")


def _conditions(data: object, path: Loc) -> Iterator[tuple[Loc, str]]:
    """Yield the path and the text of every ``torch:`` below a place."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            # The matrix's own `torch:` is one version, and no condition.
            if key == "torch" and path and isinstance(value, str):
                yield (*path, key), value
            yield from _conditions(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _conditions(value, (*path, index))
