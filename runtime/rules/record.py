"""Define the record of an ATen op: all that the runtime knows of it, one record per op.

``register("sin", vjp={"self": lambda g, self: g * self.cos()})`` makes one.

A record is registered under the names of the overloads that it covers (``"mul.Tensor"``; ``"sin"``
means ``sin.default``). Rules are functions whose *parameter names* say what they need, so that only
this is saved between forward and backward:

==================  ================================================================================
``g``               the cotangent of the only (or first) output; ``None`` is never passed
``gs``              the cotangents of all outputs, ``None`` where there is none
an argument's name  its value, as the ATen schema spells it; an absent optional argument has
                    its schema default
``result``          the only (or first) output; ``result0``, ``result1``, … one of several outputs
``NAME_nested``     the :class:`NestedMeta` of an argument or output, None where it is not nested
``NAME_shape``      the shape of a tensor argument or output, without saving the tensor
                    (``NAME_dtype``, ``NAME_meta`` likewise, ``NAME_geometry`` for (shape,
                    strides or None, storage offset), ``NAME_blocksize`` of a sparse tensor
                    of blocks or None)
``needs``           names of the arguments whose gradient is wanted (for joint formulas)
``NAME_t``          jvp only: the tangent of an argument, ``None`` where there is none
==================  ================================================================================
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from ..torch_private.dispatcher import OpOverload
from ..torch_private.native_functions import nested_view_from_buffer

Formula = Callable[..., Any]
VjpTable = Mapping[str | tuple[str, ...], Formula]
# What helpers take for such a table. Mypy would refuse a dictionary whose keys are all names.
VjpRules = Mapping[Any, Formula]
JvpRules = str | Mapping[str, Formula] | Formula  # see `Record.jvp`


@dataclass(frozen=True, slots=True)
class HiddenWrites:
    """Writes that an op's schema does not mention.

    ``arguments``: the arguments that are written to. ``functional``: the overload that returns the
    results of the op and, after them, the new values of these arguments. ``when``: a formula of the
    arguments that returns whether a call writes.
    """

    arguments: tuple[str, ...]
    functional: str
    when: Formula


@dataclass(frozen=True, slots=True)
class Record:
    """The rules and facts of one op.

    vjp:            ``{argument: formula}``; a formula returns the gradient of that argument, or
                    ``None``. A tuple of arguments as key makes a joint formula that returns a
                    tuple. Gradients are of torch's convention: ``g·conj(d result/d argument)``.
                    They may still have the broadcast shape or a promoted dtype: the engine reduces
                    them to the argument's.
    jvp:            ``"linear"`` (linear in all its differentiable arguments together, like ``add``
                    or ``cat``), ``"multilinear"`` (in each separately, like ``mul`` or ``mm``),
                    ``{argument: formula}`` with ``NAME_t`` (contributions are summed), or one
                    formula that returns the tangent(s). Left out: derived from ``vjp`` by
                    transposing it twice.
    batch:          ``rule(func, size, batched, args, kwargs) -> result(s)``, see
                    ``runtime/rules/derive/batch_rules.py``.
    decomposition:  the op written with other ops; used by every transform that finds no
                    rule of its own.
    elementwise:    every formula consists of broadcasting elementwise ops, so it may run on a
                    whole batch at once.
    nondiff:        outputs without gradient whatever their dtype: ``True`` for all,
                    or their indices.
    inverse:        view ops: the base in which the part that the view shows is replaced. The
                    formula may ask for ``base``, ``part``, ``which`` (the number of the output that
                    became ``part``), arguments, and ``ops``: ``torch.ops.aten``, or the same with
                    every view in its copying form. Left out: found by following the elements, which
                    is slower and right for any view.
    in_place:       ``batch`` serves the in-place forms as well: it calls ``func``, which writes to
                    its first argument.
    draws:          the op draws random numbers. ``"shape"``: of a distribution that shapes alone
                    decide (``rand_like``), so one draw can serve a whole batch. ``"values"``: of
                    one that the values of arguments decide (``bernoulli``).
    unfilled:       the result is memory that nothing has filled (``empty``).
    cost:           ``"low"``: it costs less to run the op again in a backward pass than to save its
                    result; ``"high"``: more. Left out: low for ATen's ops. The ops of other
                    libraries run again only if their record says ``"low"``.
    flops:          how many floating-point operations a call takes, as a formula of arguments and
                    results (see the table above), which should ask for facts of shape alone. For
                    ops of high cost; left out: in proportion to the elements.
    abstract:       the result on tensors without elements, as a formula of arguments. For ops for
                    which torch has no abstract kernel.
    commutes:       the first two arguments may change places.
    fresh:          each result is memory of its own, without gaps or overlaps. (Of an op with
                    torch's tag ``pointwise`` this is known.)
    hidden_writes:  writes that the schema does not mention.
    per_sample:     ``{argument: formula}``; a formula of ``g`` and arguments, all with a batch in
                    front, returns the gradients of that argument for each sample in factors, see
                    ``runtime/rules/samples/factors.py``, or None where there are no factors.
    places:         where the samples of a batch lie in the results, as a rule of
                    ``runtime/rules/samples/place_table.py``. Left out: known from the tables
                    there, or none for an elementwise op.
    workspace:      the kernel reads memory that only another kernel fills, so it cannot be tried on
                    one element of a batch.
    family:         the deriving helper, a word for tables; nothing is decided by it.
    """

    names: tuple[str, ...]
    vjp: VjpTable | None = None
    jvp: JvpRules | None = None
    batch: Callable[..., Any] | None = None
    decomposition: Callable[..., Any] | None = None
    elementwise: bool = False
    nondiff: bool | tuple[int, ...] = ()
    inverse: Formula | None = None
    in_place: bool = False
    draws: str | None = None
    unfilled: bool = False
    cost: str | None = None
    flops: Formula | None = None
    abstract: Formula | None = None
    commutes: bool = False
    fresh: bool = False
    hidden_writes: HiddenWrites | None = None
    per_sample: Mapping[str, Formula] | None = None
    places: Callable[..., object] | None = None
    workspace: bool = False
    family: str = "op"


_FIELDS = frozenset(field.name for field in fields(Record)) - {"names"}
RECORDS: dict[OpOverload, Record] = {}
# the records for calls with a nested tensor among their arguments
NESTED: dict[OpOverload, Record] = {}
listeners: list[Callable[[], None]] = []  # called after a new record, to drop derived facts
# Suffixes for facts of a tensor, asked for in place of the tensor. Then parameters that are no
# arguments, and the words for `jvp`.
FACTS = ("_shape", "_dtype", "_meta", "_nested", "_blocksize", "_geometry")
_WORDS = {
    "vjp": frozenset(("g", "gs", "needs")),
    "jvp": frozenset(),
    "flops": frozenset(),
    "per_sample": frozenset(("g",)),
    "inverse": frozenset(("base", "part", "which", "ops")),
}
# the possible values of these fields
_VALUES = {"draws": ("shape", "values"), "cost": ("low", "high")}
_KINDS = ("linear", "multilinear")


def overload(name: str, namespace: str = "aten") -> OpOverload:
    """Return the OpOverload for ``"mul.Tensor"``, ``"sin"`` or ``"mylib::op"``."""
    if "::" in name:
        namespace, name = name.split("::")
    packet, _, which = name.partition(".")
    try:
        func: OpOverload = getattr(
            getattr(getattr(torch.ops, namespace), packet), which or "default"
        )
        return func
    except AttributeError as error:
        hint = ""
        if namespace != "aten":
            hint = (
                ". Define it with torch.library, and import the module that does, "
                "before its record is made"
            )
        raise ValueError(
            f"no operator {namespace}::{name} in torch {torch.__version__}{hint}"
        ) from error


REMOVED = frozenset(("cholesky",))
"""Ops of ATen that have rules here, and that not every supported version of torch has."""


def of_this_torch(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return ``names``, a list or one string, without those of ``REMOVED`` that the installed torch
    does not have."""
    if isinstance(names, str):
        names = names.split()
    return tuple(
        name
        for name in names
        if name not in REMOVED or hasattr(torch.ops.aten, name.partition(".")[0])
    )


def register(
    names: str | Iterable[str], into: dict[OpOverload, Record] = RECORDS, **rules: Any
) -> Record:
    """Make a record for the overloads in ``names`` (one string, separated by spaces) and store it.
    An overload has one record per table."""
    # A record for a removed op alone is made all the same, so callers need not ask which torch
    # runs.
    each = of_this_torch(names)
    if unknown := sorted(rules.keys() - _FIELDS):
        raise ValueError(
            f"{' '.join(each)}: a record has no {', '.join(unknown)}; "
            f"its parts are {_join_names(_FIELDS)}"
        )
    record = Record(names=each, **rules)
    funcs = list(map(overload, each))
    # the ops of `REMOVED`, in a torch without them
    if not funcs:
        return record
    for func in funcs:
        if func in into:
            raise ValueError(
                f"{func} has two records: {into[func].family} and {record.family}. "
                "An op has one record with all of its rules. "
                f"The first is from register({' '.join(into[func].names)!r}, …) or a family"
            )
    # Before anything is stored, so that a record that is refused leaves no overload behind.
    _check(record, funcs)
    into.update(dict.fromkeys(funcs, record))
    # caches of facts of ops, which may have been computed without this record
    for listener in listeners:
        listener()
    return record


def _check(record: Record, funcs: list[OpOverload]) -> None:
    """Raise ``ValueError`` if ``record`` does not fit its overloads. A rule for a misspelt argument
    would never run."""
    # rules of derivatives first, then the facts, each by its own question
    _check_derivatives(record, funcs)
    _check_values(record, funcs[0])
    if record.flops is not None:
        for func in funcs:
            _check_formula("flops", record.flops, func)
    if record.abstract is not None:
        for func in funcs:
            _require_arguments(func, "abstract asks for", parameters(record.abstract))
    if record.in_place and record.batch is None:
        raise ValueError(
            f"{funcs[0]}: in_place=True needs a batch rule, which the record does not have"
        )
    if record.hidden_writes is not None:
        _check_hidden_writes(record.hidden_writes, funcs)
    if record.inverse is not None:
        _check_inverse(record.inverse, funcs)
    if record.nondiff is not True:
        _check_nondiff(record.nondiff or (), funcs)


def _check_derivatives(record: Record, funcs: list[OpOverload]) -> None:
    """Raise ``ValueError`` if a gradient or tangent is for no argument, or asks for none."""
    for what in ("vjp", "jvp", "per_sample"):
        table = getattr(record, what)
        if isinstance(table, Mapping):
            _check_table(what, table, funcs)
    if isinstance(record.jvp, str) and record.jvp not in _KINDS:
        raise ValueError(
            f"{funcs[0]}: jvp is {record.jvp!r}; "
            f"as a word it is one of {', '.join(map(repr, _KINDS))}"
        )
    if callable(record.jvp):
        for func in funcs:
            _check_formula("jvp", record.jvp, func)


def _check_values(record: Record, func: OpOverload) -> None:
    """Raise ``ValueError`` if a rule is no function, or a word is none of those it may be."""
    for what in ("batch", "decomposition", "inverse", "places"):
        rule = getattr(record, what)
        if rule is not None and not callable(rule):
            raise ValueError(f"{func}: {what} is {rule!r}, which is not callable")
    for what, words in _VALUES.items():
        word = getattr(record, what)
        if word is not None and word not in words:
            raise ValueError(
                f"{func}: {what} is {word!r}; it is one of {', '.join(map(repr, words))}"
            )


def _check_hidden_writes(writes: HiddenWrites, funcs: list[OpOverload]) -> None:
    """Raise if the functional overload does not exist, or an argument does not."""
    for func in funcs:
        overload(writes.functional)
        _require_arguments(
            func, "hidden_writes names", (*writes.arguments, *parameters(writes.when))
        )


def _check_inverse(inverse: Formula, funcs: list[OpOverload]) -> None:
    """Raise ``ValueError`` unless the inverse is that of a view."""
    for func in funcs:
        aliases = (result.alias_info for result in func._schema.returns)
        if not any(alias is not None and not alias.is_write for alias in aliases):
            raise ValueError(
                f"{func}: inverse is for views, but by its schema this op returns no view"
            )
        _check_formula("inverse", inverse, func)


def _check_nondiff(nondiff: Collection[int], funcs: list[OpOverload]) -> None:
    """Raise ``ValueError`` if a result that has no derivative does not exist."""
    for func in funcs:
        number = len(func._schema.returns)
        if beyond := [place for place in nondiff if not 0 <= place < number]:
            raise ValueError(
                f"{func}: nondiff names result {beyond[0]}, but the op has {number}, counted from 0"
            )


def _require_arguments(func: OpOverload, said: str, names: Iterable[str]) -> None:
    """Raise ``ValueError`` unless ``func`` has arguments of these names. ``said``: what the record
    does with them, as ``abstract asks for``."""
    for name in names:
        if name not in _names(func):
            raise ValueError(
                f"{func}: {said} {name!r}, which is no argument; "
                f"its arguments are {_join_names(_names(func))}"
            )


def targets_of(key: str | Iterable[str]) -> tuple[str, ...]:
    """Return the arguments whose gradients the formula with this key gives: one, or several."""
    if isinstance(key, str):
        return (key,)
    return tuple(key)


def _check_table(
    what: str, table: Mapping[Any, Callable[..., object]], funcs: list[OpOverload]
) -> None:
    """Raise ``ValueError`` if a formula is for no argument, or does not fit its overloads."""
    # a formula may be for an argument that only some of the overloads have
    names: set[str] = set()
    for func in funcs:
        names |= _names(func)
    for key, formula in table.items():
        targets = targets_of(key)
        for target in targets:
            if target not in names:
                raise ValueError(
                    f"{funcs[0]}: {what} for {target!r}, which is no argument; "
                    f"its arguments are {_join_names(_names(funcs[0]))}"
                )
        for func in funcs:
            if not _names(func).isdisjoint(targets):
                _check_formula(what, formula, func)


def _check_formula(what: str, formula: Callable[..., object], func: OpOverload) -> None:
    """Raise ``ValueError`` if a formula asks for what is neither argument, result nor a fact of
    these."""
    names = {*_names(func), *_results(func)}
    for name in parameters(formula):
        if name in _WORDS[what] or (what == "jvp" and name.removesuffix("_t") in names):
            continue
        # no facts of shapes: the inverse has the base and the part themselves
        if what == "inverse" and name not in _names(func):
            raise ValueError(
                f"{func}: its inverse asks for {name!r}, which is neither an argument "
                f"({_join_names(_names(func))}) nor one of {_join_names(_WORDS['inverse'])}"
            )
        if not _resolves(name, names):
            tangents = ""
            if what == "jvp":
                tangents = " or _t"
            raise ValueError(
                f"{func}: a formula of its {what} asks for {name!r}, "
                f"which is neither an argument ({_join_names(_names(func))}) nor a result "
                f"({_join_names(_results(func))}), nor one of these with "
                f"{_join_names(FACTS)}{tangents}"
            )


def _resolves(name: str, names: Collection[str]) -> bool:
    """Return whether ``name`` is one of ``names``, or one with suffixes of facts:
    ``self_shape``."""
    return name in names or any(
        _resolves(name.removesuffix(fact), names) for fact in FACTS if name.endswith(fact)
    )


def _names(func: OpOverload) -> set[str]:
    return {argument.name for argument in func._schema.arguments}


def _results(func: OpOverload) -> set[str]:
    return {"result", *(f"result{index}" for index in range(len(func._schema.returns)))}


def _join_names(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


class _Kernels:
    """``kernels.NAME`` is ``torch.ops.aten.NAME`` without the Python frames of each call."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return the kernel of the default overload, and store it for the next access."""
        kernel: Callable[..., Any] = getattr(torch.ops.aten, name)._op
        setattr(self, name, kernel)
        return kernel


kernels = _Kernels()


def parameters(formula: Formula) -> tuple[str, ...]:
    """Return the names that a formula asks for."""
    declared: tuple[str, ...] | None = getattr(formula, "asks", None)
    if declared is not None:
        return declared
    return _signature(formula)


@functools.cache
def _signature(formula: Formula) -> tuple[str, ...]:
    return tuple(inspect.signature(formula).parameters)


def declare(formula: Formula, *names: str) -> Formula:
    """Declare the names that a formula asks for, on the function itself.

    As :func:`asking` without a wrapper, so a function can have only one such declaration.
    """
    formula.asks = names  # type: ignore[attr-defined]
    return formula


def made_of(template: str, plain: Formula, formula: Formula) -> Formula:
    """Return ``formula``, marked with its text for the page of records.

    The text is ``template`` with the author's formula ``plain`` in place of ``{}``.
    """
    formula.made_of = template, plain  # type: ignore[attr-defined]
    return formula


def asking(*names: str) -> Callable[[Formula], Formula]:
    """Declare the names of a formula's parameters, by position, if its own signature
    does not have them."""

    def mark(formula: Formula) -> Formula:
        """Return a formula with these names declared."""
        # another object, since one formula may have several declarations
        named = functools.partial(formula)
        # set on a formula that only refuses
        named.refuses = getattr(formula, "refuses", False)  # type: ignore[attr-defined]
        return declare(named, *names)

    return mark


@dataclass(frozen=True, slots=True)
class Meta:
    """Facts of a tensor that was not saved."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout

    @classmethod
    def of(cls, t: torch.Tensor) -> Meta:
        """Return the facts of ``t``."""
        return cls(t.shape, t.dtype, t.device, t.layout)


@dataclass(frozen=True, slots=True, eq=False)
class NestedMeta:
    """Facts of a nested tensor that was not saved. They take the place of a shape.

    ``sizes``: one row per component. ``dtype``: None if any dtype will do.
    """

    sizes: torch.Tensor
    dtype: torch.dtype | None
    device: torch.device

    @classmethod
    def of(cls, t: torch.Tensor) -> NestedMeta | None:
        """Return the facts of a nested tensor, None for any other."""
        if not t.is_nested:
            return None
        return cls(getattr(t, "_inner", t)._nested_tensor_size(), t.dtype, t.device)

    # A dataclass would compare tuples of fields, and a comparison of tensors is no bool.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, NestedMeta) and torch.equal(self.sizes, other.sizes)

    def parts(self) -> list[tuple[int, ...]]:
        """Return the shape of each component."""
        return list(map(tuple, self.sizes.tolist()))

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the nested tensor whose components are consecutive parts of ``buffer``."""
        buffer = buffer.reshape(-1).contiguous()
        if buffer.storage_offset():  # ATen would ignore the offset
            buffer = buffer.clone()
        lengths = self.sizes.prod(1)
        # The stride of a dimension is the product of the sizes behind it, in the rows of all
        # components at once.
        strides = self.sizes.flip(1).cumprod(1).flip(1).roll(-1, 1)
        strides[:, -1:] = 1
        return nested_view_from_buffer(buffer, self.sizes, strides, lengths.cumsum(0) - lengths)

    def zeros(self) -> torch.Tensor:
        """Return a nested tensor of zeros with these facts."""
        count = int(self.sizes.prod(1).sum())  # of the elements of all components
        return self.view(torch.zeros(count, dtype=self.dtype, device=self.device))

    def __repr__(self) -> str:
        return f"nested {self.sizes.tolist()}"


def extent(t: torch.Tensor) -> Any:
    """Return the shape of a tensor, or the ``NestedMeta`` of a nested one."""
    if t.is_nested and t.layout is torch.strided:
        return NestedMeta.of(t)
    return t.shape
