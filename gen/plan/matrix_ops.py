"""Resolve families and rows to the ops of the matrix, each with its facts and its family.

An exact name takes precedence over a glob. Among globs, the first family in the file takes the op.
So a last family can collect «all the rest» by `torch.*`.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from gen.dtypes import COMPLEX, DTYPES, FLOATS
from gen.errors import nearest, one_of
from gen.language.globs import Names, is_glob
from gen.language.op_specs import Family, OpRow
from gen.language.sample_specs import Samples, Tensor
from gen.language.validate import Loaded
from gen.plan.callables import missing
from gen.plan.catalog import Catalog, Facts
from gen.targets import built_in

# the dtypes of an op that matrix.yaml describes without dtypes
OWN_DTYPES = ("float32", "float64")
DIFFERENTIABLE = frozenset((*FLOATS, *COMPLEX))
DERIVATIVES = frozenset(("autograd", "forward_ad", "gradgrad"))
# the facts that a row may state one by one
SINGLE_FACTS = ("forward_ad", "gradgrad", "deterministic")
# the keys of a row that run time does not need
OF_THE_EXPANSION = ("op", "dtypes", "checks", "not_checks", "tolerance", *SINGLE_FACTS)

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Op:
    """A row of the matrix."""

    name: str
    family: str
    # the place in the matrix that names the op
    path: Path
    # what checks may require of an op, such as ``forward_ad``
    facts: frozenset[str]
    # the dtypes that the op takes
    dtypes: frozenset[str]
    differentiable: frozenset[str]
    # the dtypes to which the row or its family restricts it; None for all
    asked: frozenset[str] | None
    checks: tuple[str, ...]
    # globs of checks that the op has not, of its family and its row
    not_checks: tuple[str, ...]
    # the facts that run time needs beyond OpInfo
    row: dict[str, Any]
    spec: OpRow


class Dtypes:
    """The dtype groups of a matrix."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self._groups: dict[str, list[str]] = {}
        for group in loaded.matrix.dtypes:
            self._groups[group] = self._members(group, ())

    def _members(self, group: str, within: tuple[str, ...]) -> list[str]:
        """Return the dtypes of a group.

        `within` are the groups that lead to it. It must not contain any of them.
        """
        dtypes: list[str] = []
        for index, word in enumerate(self._loaded.matrix.dtypes[group]):
            path = ("dtypes", group, index)
            if word in (*within, group):
                self._loaded.problem(
                    path,
                    f'the dtype group "{word}" contains itself',
                    "dtypes, and groups that end in dtypes",
                )
            elif word in self._loaded.matrix.dtypes:
                dtypes += self._members(word, (*within, group))
            else:
                dtypes += self._single(word, path)
        return list(dict.fromkeys(dtypes))

    def _single(self, word: str, path: Sequence[str | int]) -> list[str]:
        """Return the dtype of a word, as a list.

        The list is empty for an unknown word, which is noted as a mistake.
        """
        if word in DTYPES:
            return [word]
        groups = list(self._loaded.matrix.dtypes)
        names = [*groups, *DTYPES]
        self._loaded.problem(
            path, f'unknown dtype or dtype group "{word}"', one_of(names), nearest(word, names)
        )
        return []

    @property
    def all(self) -> list[str]:
        """Return every dtype of a group, or every common dtype if there are no groups."""
        of_groups = list(dict.fromkeys(chain.from_iterable(self._groups.values())))
        # The floating dtypes of 16 bits, and complex32 of two such numbers, are left out.
        return of_groups or [*FLOATS[2:], *COMPLEX[1:]]

    def resolve(self, words: Iterable[str], path: Path) -> list[str]:
        """Return the dtypes of words, which are groups or dtypes, in their order.

        Unknown words are noted as mistakes.
        """
        dtypes: list[str] = []
        for index, word in enumerate(words):
            if word in self._groups:
                dtypes += self._groups[word]
            else:
                dtypes += self._single(word, (*path, index))
        return list(dict.fromkeys(dtypes))


def resolve(loaded: Loaded, catalog: Catalog, dtypes: Dtypes) -> list[Op]:
    """Return every op of the matrix, sorted by name."""
    _refuse_names_that_share_a_file(loaded)
    refuse_missing_places(loaded)
    resolver = _Resolver(loaded, catalog, dtypes)
    # Exact names come first, so that a glob of an earlier family does not take their ops.
    for exact in (True, False):
        for name, family in loaded.matrix.families.items():
            for index, row in enumerate(family.ops):
                if is_glob(row.op) != exact:
                    resolver.claim(name, family, row, ("families", name, "ops", index))
    _refuse_former_names_of_no_row(loaded, resolver.found)
    return sorted(resolver.found.values(), key=lambda op: op.name)


def _refuse_former_names_of_no_row(loaded: Loaded, names: Iterable[str]) -> None:
    """Note former names that no row has.

    A slip here would silently change the draws of the rows that it means.
    """
    for start in loaded.matrix.former_names:
        if not any(name.startswith(start) for name in names):
            what = f'no row has a name that begins with "{start}"'
            loaded.problem(("former_names", start), what, "what rows are called now")


def _refuse_names_that_share_a_file(loaded: Loaded) -> None:
    """Note families whose names differ in case only.

    Each family is a file, and some file systems do not tell A from a.
    """
    seen: dict[str, str] = {}
    for name in loaded.matrix.families:
        first = seen.setdefault(name.lower(), name)
        if first != name:
            what = f'the families "{first}" and "{name}" differ in case only'
            loaded.problem(("families", name), what, "names that some disks can tell apart")


class _Resolver:
    """Collect the ops of a matrix, family by family."""

    def __init__(self, loaded: Loaded, catalog: Catalog, dtypes: Dtypes) -> None:
        self.found: dict[str, Op] = {}
        self._loaded, self._catalog, self._dtypes = loaded, catalog, dtypes

    @cached_property
    def _names(self) -> Names:
        return Names(dict.fromkeys(self._catalog.ops, 0), "op")

    def claim(self, family_name: str, family: Family, row: OpRow, path: Path) -> None:
        """Add the ops that `row` names to the family, unless another family has them."""
        # A glob matches names of the database alone. A row of one's own is no member of «all the
        # rest».
        if is_glob(row.op):
            names = self._match_names(family, row, path)
        elif self._is_free(row, path) and self._is_known(family, row, path):
            names = [row.op]
        else:
            names = []
        for name in names:
            self.found[name] = self._op(name, family_name, family, row, path)

    def _is_free(self, row: OpRow, path: Path) -> bool:
        """Return whether no earlier row has the op. A second row is noted as a mistake."""
        if row.op not in self.found:
            return True
        first = self._loaded.source.where(self.found[row.op].path).short
        self._loaded.problem(
            path,
            f'the op "{row.op}" stands in the matrix twice (first at {first})',
            "each op in one family",
        )
        return False

    def _match_names(self, family: Family, row: OpRow, path: Path) -> list[str]:
        """Return the ops that the glob of a row adds to its family.

        A glob without any match is noted as a mistake.
        """
        names = self._names.named(row.op)
        if family.kinds:
            names = [name for name in names if self._catalog.ops[name].kind in family.kinds]
        if not names:
            self._loaded.problem(
                path,
                f'no op of torch\'s OpInfo database matches "{row.op}"',
                "a glob such as torch.linalg.*",
            )
        # A glob is no mistake if other rows have all of its ops. So these are left out only now.
        dropped = set(self.found)
        for glob in family.not_ops:
            dropped.update(self._names.named(glob))
        return [name for name in names if name not in dropped]

    def _is_known(self, family: Family, row: OpRow, path: Path) -> bool:
        """Return whether the op of a row exists: in the catalog, or with samples of its own."""
        samples = row.samples or family.samples
        if row.op in self._catalog.ops or (samples and not samples.from_opinfo):
            return self._has_modules(row, samples, path)
        expected = "an op of torch's OpInfo database, or a row with `samples:` of its own"
        where = (*path, "op") if isinstance(_at(self._loaded.source.data, path), dict) else path
        meant = nearest(row.op, self._catalog.ops)
        self._loaded.problem(where, f'unknown op "{row.op}"', expected, meant)
        # Checks that name the op, or the one that was meant, would be reported for the same slip.
        self._loaded.cut.update({row.op, meant})
        return False

    def _has_modules(self, row: OpRow, samples: Samples | None, path: Path) -> bool:
        """Return whether what the row names exists. Nothing is imported."""
        named = {
            "call": row.call,
            "reference": row.reference,
            "inplace": row.inplace,
            "out": row.out,
        }
        if row.call is None and row.op not in self._catalog.ops:
            named["op"] = row.op
        if samples is not None:
            named["samples"] = samples.callable
        has_all = True
        for key, value in named.items():
            # Each missing name is noted, so the loop goes on after the first one.
            if value and _is_missing(self._loaded, path, key, value):
                has_all = False
        if not has_all:
            self._loaded.cut.add(row.op)
        return has_all

    def _op(self, name: str, family_name: str, family: Family, row: OpRow, path: Path) -> Op:
        """Return the op of a row, with the dtypes that it takes and those that are asked for."""
        facts = self._catalog.ops.get(name) if row.call is None else None
        asked = self._dtypes_asked_for(name, family_name, family, row, path, facts)
        # Torch's own facts come first. An op of the user's own takes what its row asks for.
        if facts:
            supported, differentiable = frozenset(facts.dtypes), frozenset(facts.differentiable)
        else:
            supported = frozenset(OWN_DTYPES) if asked is None else asked
            differentiable = supported & DIFFERENTIABLE
        if row.differentiable is False:
            differentiable = frozenset()
        return Op(
            name=name,
            family=family_name,
            path=path,
            facts=_facts(facts, row),
            dtypes=supported,
            differentiable=differentiable,
            asked=asked,
            checks=tuple(family.checks if row.checks is None else row.checks),
            not_checks=(*family.not_checks, *row.not_checks),
            row=self._row(name, family_name, family, row, path),
            spec=row,
        )

    def _dtypes_asked_for(
        self,
        name: str,
        family_name: str,
        family: Family,
        row: OpRow,
        path: Path,
        facts: Facts | None,
    ) -> frozenset[str] | None:
        """Return the dtypes of the row, or of its family if the row has none."""
        if row.dtypes is None:
            if family.dtypes is None:
                return None
            where = ("families", family_name, "dtypes")
            return frozenset(self._dtypes.resolve(family.dtypes, where))
        asked = frozenset(self._dtypes.resolve(row.dtypes, (*path, "dtypes")))
        for index, word in enumerate(row.dtypes):
            if facts and word in DTYPES and word not in facts.dtypes:
                what = f"{name} does not take {word} on the CPU"
                self._loaded.problem(
                    (*path, "dtypes", index),
                    what,
                    one_of(facts.dtypes),
                    nearest(word, facts.dtypes),
                )
        return asked

    def _row(
        self, name: str, family_name: str, family: Family, row: OpRow, path: Path
    ) -> dict[str, object]:
        """Return the facts of a row that run time needs beyond those of OpInfo."""
        data = self._loaded.source.data
        written = _at(data, path)
        row_at_run_time: dict[str, object] = {}
        if isinstance(written, dict):
            for key, value in written.items():
                if key not in OF_THE_EXPANSION:
                    row_at_run_time[key] = value
        if row.samples is None and family.samples is not None:
            row_at_run_time["samples"] = _at(data, ("families", family_name, "samples"))
        # A row without samples means the same.
        if row_at_run_time.get("samples") == "opinfo":
            del row_at_run_time["samples"]
        former = former_name(name, self._loaded.matrix.former_names)
        if former:
            row_at_run_time["former_name"] = former
        return row_at_run_time


def _is_missing(loaded: Loaded, path: Path, key: str, name: str) -> bool:
    """Return whether nothing has the name that stands under `key`. It is noted as a mistake."""
    lack = missing(name, pathlib.Path(loaded.source.name).parent)
    if lack is not None:
        written = _at(loaded.source.data, path)
        where = (*path, key) if isinstance(written, dict) and key in written else path
        loaded.problem(
            where,
            lack.what,
            lack.expected,
            nearest(name.replace(":", ".").rpartition(".")[2], lack.names),
        )
    return lack is not None


def refuse_missing_places(loaded: Loaded) -> None:
    """Note the targets and devices whose `import` or `available` names nothing."""
    for name, maker in loaded.matrix.targets.imports.items():
        place = ("targets", "import", name)
        if built_in(name):
            loaded.problem(place, f'"{name}" is a target of this generator', "another name")
        _is_missing(loaded, place, "", maker)
    for name, device in loaded.matrix.devices.items():
        if device.backend is not None:
            _is_missing(loaded, ("devices", name), "import", device.backend)
        if device.available is not None:
            _is_missing(loaded, ("devices", name), "available", device.available)


def _facts(facts_of_catalog: Facts | None, row: OpRow) -> frozenset[str]:
    """Return the facts of an op, from its catalog and from what its row states."""
    facts = {"own", "deterministic", *DERIVATIVES}
    if facts_of_catalog:
        facts = {*facts_of_catalog.facts, facts_of_catalog.kind}
    if row.differentiable is False:
        facts -= DERIVATIVES
    for fact in SINGLE_FACTS:
        if getattr(row, fact) is True:
            facts.add(fact)
        elif getattr(row, fact) is False:
            facts.discard(fact)
    stated = {
        "reference": row.reference,
        "errors": row.errors,
        "inplace": row.inplace,
        "out": row.out,
    }
    facts |= _kinds_of_arguments(row)
    return frozenset(facts | {fact for fact, value in stated.items() if value})


def _kinds_of_arguments(row: OpRow) -> set[str]:
    """Return the kinds of arguments that the described samples of a row have.

    Samples that a function makes are not known here, since nothing is imported.
    """
    if row.samples is None or row.samples.rows is None:
        return set()
    described: list[Tensor] = []
    for sample in row.samples.rows:
        for value in (*sample.args, *sample.kwargs.values()):
            if isinstance(value, Tensor):
                described.append(value)
    kinds = {
        "indices": any(map(_is_index, described)) and not all(map(_is_index, described)),
        "several": len(described) > len(row.samples.rows),
        "masks": any(map(_is_mask, described)),
    }
    return {kind for kind, holds in kinds.items() if holds}


def _is_index(tensor: Tensor) -> bool:
    return tensor.domain in ("index", "permutation") or tensor.dtype in ("int64", "int32")


def _is_mask(tensor: Tensor) -> bool:
    return "bool" in (tensor.dtype, tensor.domain)


def former_name(name: str, former_names: Mapping[str, str]) -> str | None:
    """Return the name that a row had before it moved, by the longest beginning that fits.

    >>> former_name("mine.relu.leaky", {"mine.": "ours.", "mine.relu.": "ours.old."})
    'ours.old.leaky'
    """
    fitting = list(filter(name.startswith, former_names))
    if not fitting:
        return None
    longest = max(fitting, key=len)
    return former_names[longest] + name.removeprefix(longest)


def _at(data: Any, path: Path) -> object:
    """Return the value at a path of the matrix."""
    for step in path:
        data = data[step]
    return data
