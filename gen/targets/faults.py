"""Faults in a target's own rules: the interface between `gen audit --rules` and a target, and
the kinds of fault.

A *rule* is the part of a target that computes the gradient, tangent or batch of one op. A target
with the methods of :class:`Auditable` lets the audit put a fault into one rule at a time. The kinds
are mistakes that authors of rules make. They work on a :class:`Call`, which describes one execution
of a rule. So a target only describes its rules and adds no kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch

from gen.targets.protocol import Target

__all__ = [
    "KINDS",
    "OWN",
    "REFUSED",
    "Auditable",
    "Call",
    "Rule",
    "Watch",
    "change",
    "differs",
    "inexact",
    "moves",
]

REFUSED = "refused"
FACTOR = 1.001
_EXACT = (torch.float64, torch.complex128)
_OTHER_DTYPE = {
    torch.float64: torch.float32,
    torch.float32: torch.float64,
    torch.complex128: torch.complex64,
    torch.complex64: torch.complex128,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a target, for `argument` of `op`. `part` is a key of :data:`KINDS`. `family`
    groups ops in tables.

    `harmless` names the kinds that are no faults here, because their result is as right
    as the honest one.
    """

    op: str
    part: str
    argument: str = ""
    family: str = "op"
    harmless: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of fault that fit the rule."""
        return tuple(kind for kind in KINDS[self.part] if kind not in self.harmless)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.op, self.part, self.argument)))


class Watch(Protocol):
    """The rules that ran under a watch."""

    def taken(self) -> dict[str, frozenset[str]]:
        """Return the rules that ran since the last call, by name, each with the kinds of fault that
        would have changed its result.

        `REFUSED` is among the kinds if the rule raised because there is no such
        derivative or batch.
        """
        ...


@runtime_checkable
class Auditable(Target, Protocol):
    """A target that offers its rules to the audit. Its context managers affect everything that the
    process runs inside them."""

    def fingerprint(self) -> str:
        """Return a text that changes with every change of a rule or of the code that runs it."""
        ...

    def rules(self) -> Sequence[Rule]:
        """Every rule that can be given a fault."""
        ...

    def watched(self, kinds: bool = True) -> AbstractContextManager[Watch]:
        """Note which rules run. `kinds`: and which kinds of fault would change their results."""
        ...

    def planted(self, rule: str, kind: str) -> AbstractContextManager[None]:
        """Run with a fault of `kind` in the rule of that name."""
        ...


@dataclass(frozen=True)
class Call:
    """One execution of a rule. ``run(*inputs)`` returns its result: a tensor, None, or a tuple
    or list of these.

    roles:    the role of each input: ``seed`` (a cotangent or tangent), ``saved`` (a value from the
              forward pass) or ``other``.
    place:    which of several results of `run` belongs to the rule.
    others:   results of the kinds that only the target can apply, by kind.
    constant: maps a value to one without derivatives, as ``detach`` does.
    inert:    kinds that the target undoes whatever the rule returns, such as a dtype
              that it casts back.
    """

    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    roles: tuple[str, ...]
    place: int | None = None
    others: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    constant: Callable[[Any], Any] = lambda value: value
    inert: frozenset[str] = frozenset()

    def result(self) -> Any:
        return self.run(*self.inputs)

    def with_inputs(
        self, role: str, change: Callable[[Any], Any], count: int | None = None
    ) -> Call:
        """The call with `count` of its inexact tensors of `role` changed, or all of them. Each
        tensor of a list counts."""
        left = math.inf if count is None else count

        def changed(x: Any) -> Any:
            nonlocal left
            left -= 1
            return change(x) if left >= 0 else x

        inputs = tuple(
            _mapped(x, changed) if has == role else x
            for x, has in zip(self.inputs, self.roles, strict=True)
        )
        return replace(self, inputs=inputs)


def inexact(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _leaves(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (tuple, list)) else (value,)


def moves(kind: str, result: Any) -> bool:
    """Return whether a kind may change a result of these logical shapes. (The tensor behind a
    batched value has more dimensions.)"""
    shapes = [torch.empty(x.shape, device="meta") for x in _leaves(result) if _tensor(x)]
    return kind not in _ARRANGED or any(_OF_RESULT[kind](x) is not x for x in shapes)


def _tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


def _mapped(value: Any, change: Callable[[Any], Any], of: Callable[[Any], bool] = inexact) -> Any:
    """`value` with `change` applied to every tensor for which `of` holds, by default to floating
    and complex ones."""
    if isinstance(value, (tuple, list)):
        changed = [_mapped(x, change, of) for x in value]
        return changed if type(value) is list else tuple(changed)
    return change(value) if of(value) else value


def _changed(value: Any, kind: str) -> Any:
    return _mapped(value, _OF_RESULT[kind], _tensor if kind in _ARRANGED else inexact)


def change(call: Call, kind: str, result: Any) -> Any:
    """The call's result with a fault of `kind`. `result` is the one without."""
    if kind in OWN:
        faulty = call.others[kind]() if kind in call.others else result
    elif kind in _OF_INPUTS:
        faulty = _OF_INPUTS[kind](call).result()
    elif kind == "edge":
        faulty = _edge(call, result)
    elif call.place is not None:
        return tuple(
            _changed(part, kind) if place == call.place else part
            for place, part in enumerate(result)
        )
    else:
        return _changed(result, kind)
    if call.place is None or result is None:
        return faulty
    return tuple(
        part if place == call.place else honest
        for place, (part, honest) in enumerate(zip(faulty, result, strict=True))
    )


# --- faults of results ----------------------------------------------------------------------------


def _rolled(x: Any) -> Any:
    dim = next((dim for dim in reversed(range(x.ndim)) if x.shape[dim] > 1), None)
    return (
        x
        if dim is None
        else torch.cat(
            [x.narrow(dim, x.shape[dim] - 1, 1), x.narrow(dim, 0, x.shape[dim] - 1)], dim
        )
    )


def _mixed(x: Any) -> Any:
    return torch.cat([x[1:], x[:1]]) if x.ndim and len(x) > 1 else x


def _shared(x: Any) -> Any:
    return x[:1].expand(x.shape).clone() if x.ndim and len(x) > 1 else x


def _transposed(x: Any) -> Any:
    return x.transpose(-1, -2) if x.ndim > 1 and x.shape[-1] == x.shape[-2] > 1 else x


_OF_RESULT: dict[str, Callable[[Any], Any]] = {
    "sign": lambda x: -x,
    "scaled": lambda x: x * FACTOR if x.dtype in _EXACT else x,
    "conjugated": lambda x: x.conj() if x.is_complex() else x,
    "zeroed": lambda x: x * 0,
    "leaked": lambda x: x + 1,
    "rolled": _rolled,
    "transposed": _transposed,
    "mixed": _mixed,
    "shared": _shared,
    "narrowed": lambda x: x.to(_OTHER_DTYPE.get(x.dtype, torch.float32)),
}
# these change integers and booleans too
_ARRANGED = frozenset(("rolled", "transposed", "mixed", "shared"))

# --- faults of inputs -----------------------------------------------------------------------------


def _edge(call: Call, result: Any) -> Any:
    """Return the result with NaN where a saved value of its shape is 0 or infinite, as after an
    unguarded division."""
    saved = [
        x
        for value, role in zip(call.inputs, call.roles, strict=True)
        if role == "saved"
        for x in _leaves(value)
        if inexact(x)
    ]

    def edged(x: Any) -> Any:
        of = next((s for s in saved if s.shape == x.shape), None)
        return (
            x
            if of is None
            else torch.where((of == 0) | torch.isinf(of), torch.full_like(x, torch.nan), x)
        )

    return _mapped(result, edged)


_OF_INPUTS: dict[str, Callable[[Call], Call]] = {
    "saved": lambda call: call.with_inputs("saved", lambda x: x * 1.01, count=1),
    "detached": lambda call: call.with_inputs("saved", call.constant),
}

# only the target can apply these; where it does not, they change nothing
OWN = frozenset(("swapped", "dropped", "dim"))

_DERIVATIVE = (
    "sign",
    "scaled",
    "conjugated",
    "zeroed",
    "leaked",
    "rolled",
    "transposed",
    "edge",
    "saved",
    "detached",
)
KINDS: dict[str, tuple[str, ...]] = {
    "vjp": (*_DERIVATIVE, "swapped"),
    "jvp": (*_DERIVATIVE, "dropped"),
    "batch": ("mixed", "shared", "rolled", "transposed", "scaled", "narrowed", "dim"),
    "decomposition": (
        "sign",
        "scaled",
        "conjugated",
        "leaked",
        "rolled",
        "transposed",
        "narrowed",
        "detached",
    ),
    "per_sample": ("sign", "scaled", "zeroed", "leaked", "rolled", "transposed", "mixed", "shared"),
}
"""The kinds of each part.

- sign, scaled (by 1.001), conjugated, zeroed, leaked (one is added), rolled (along the last
  dimension), transposed (the last two dimensions, if of equal size): the result is changed so.
- edge: NaN where a saved value is 0 or infinite.
- saved: one saved value is off by 1 %.
- detached: saved values count as constants, so that only second derivatives are wrong.
- swapped: another argument's gradient.
- dropped: one of several tangents is left out.
- narrowed: another dtype.
- mixed: the batch is rotated.
- shared: all elements of the batch get the first one's result.
- dim: a dimension argument is off by one.
"""


ROUNDINGS = 8  # of the largest element: two results that differ by less are equally right


def differs(a: Any, b: Any) -> bool:
    """Return whether two results, tuples of plain tensors of any layout, differ in any element by
    more than rounding. NaN equals NaN."""
    if isinstance(a, tuple | list):
        return len(a) != len(b) or any(differs(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return (a is None) != (b is None)
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return True
    a, b = (x.detach() if x.layout is torch.strided else x.detach().to_dense() for x in (a, b))
    return not torch.allclose(a, b, rtol=0.0, atol=_rounding(b), equal_nan=True)


def _rounding(x: torch.Tensor) -> float:
    finite = x[x.isfinite()] if inexact(x) else x[:0]
    return (
        float(finite.abs().max()) * torch.finfo(x.dtype).eps * ROUNDINGS if finite.numel() else 0.0
    )
