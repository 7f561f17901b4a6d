"""Describe faults in a target's own rules: the interface between `gen audit --rules` and a target,
and the kinds of fault.

A *rule* is the part of a target that computes the gradient, tangent or batch of one op. A target
with the methods of :class:`Auditable` lets the audit put a fault into one rule at a time. The kinds
are mistakes that authors of rules make. They work on a :class:`Call`, which describes one execution
of a rule. So a target only describes its rules and adds no kinds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch

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
    "leaves",
    "moves",
]

REFUSED = "refused"
FACTOR = 1.001  # of the kind `scaled`: an error of a thousandth
_EXACT = (torch.float64, torch.complex128)
_OTHER_DTYPE = {
    torch.float64: torch.float32,
    torch.float32: torch.float64,
    torch.complex128: torch.complex64,
    torch.complex64: torch.complex128,
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a target, for one argument of an op."""

    op: str
    # a key of :data:`KINDS`
    part: str
    argument: str = ""
    # groups ops in tables
    family: str = "op"
    # the kinds that are no faults here, because their result is as right as the honest one
    harmless: tuple[str, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """List the kinds of fault that fit the rule."""
        return tuple(kind for kind in KINDS[self.part] if kind not in self.harmless)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (self.op, self.part, self.argument)))


class Watch(Protocol):
    """The rules that ran under a watch."""

    def taken(self) -> dict[str, frozenset[str]]:
        """Return the rules that ran since the last call, by name, each with the kinds of fault that
        would have changed its result.

        `REFUSED` is among the kinds if the rule raised because there is no such derivative or
        batch.
        """
        ...


@runtime_checkable
class Auditable(Protocol):
    """What a target has, besides the methods of :class:`gen.targets.protocol.Target`, that offers
    its rules to the audit. Its context managers affect everything that the process runs inside
    them. ``in_stages``: whether rules run only in cells whose pipeline has a stage."""

    in_stages: bool

    def fingerprint(self) -> str:
        """Return a text that changes with every change of a rule or of the code that runs it."""
        ...

    def rules(self) -> Sequence[Rule]:
        """List every rule into which a fault can be planted."""
        ...

    def watched(self, kinds: bool = True) -> AbstractContextManager[Watch]:
        """Note which rules run. `kinds`: and which kinds of fault would change their results."""
        ...

    def planted(self, rule: str, kind: str) -> AbstractContextManager[None]:
        """Run with a fault of `kind` in the rule of that name."""
        ...


@dataclass(frozen=True)
class Call:
    """One execution of a rule."""

    # ``run(*inputs)`` returns the result: a tensor, None, or a tuple or list of these
    run: Callable[..., Any]
    inputs: tuple[Any, ...]
    # the role of each input: ``seed`` (a cotangent or tangent), ``saved`` (a value from the forward
    # pass) or ``other``
    roles: tuple[str, ...]
    # which of several results of `run` belongs to the rule
    place: int | None = None
    # results of the kinds that only the target can apply, by kind
    others: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    # maps a value to one without derivatives, as ``detach`` does
    constant: Callable[[Any], Any] = lambda value: value
    # kinds that the target undoes whatever the rule returns, such as a dtype that it casts back
    inert: frozenset[str] = frozenset()

    def result(self) -> Any:
        return self.run(*self.inputs)

    def saved(self) -> Iterator[Any]:
        """Yield the inputs that are values from the forward pass, each part of a list by itself."""
        for value, role in zip(self.inputs, self.roles, strict=True):
            if role == "saved":
                yield from leaves(value)

    def with_inputs(
        self, role: str, change: Callable[[Any], object], count: int | None = None
    ) -> Call:
        """Return the call with `count` of its inexact tensors of `role` changed, or all of them.

        Each tensor of a list counts.
        """
        # the tensors that are still to be changed
        left = math.inf if count is None else count

        def change_first(value: object) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                return value
            return change(value)

        inputs = list(self.inputs)
        for place, role_of_input in enumerate(self.roles):
            if role_of_input == role:
                inputs[place] = _map(inputs[place], change_first)
        return replace(self, inputs=tuple(inputs))


def inexact(value: object) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def leaves(value: object) -> Sequence[Any]:
    """Return the parts of a tuple or list, or a value as its only part."""
    if isinstance(value, (tuple, list)):
        return value
    return (value,)


def moves(kind: str, result: object) -> bool:
    """Return whether a kind may change a result of these logical shapes.

    The tensor behind a batched value has more dimensions.
    """
    if kind not in _ARRANGED:
        return True
    shapes = [torch.empty(value.shape, device="meta") for value in leaves(result) if _tensor(value)]
    # A kind that has nothing to arrange returns its argument itself.
    return any(_OF_RESULT[kind](x) is not x for x in shapes)


def _tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _map(
    value: object, change: Callable[[Any], object], of: Callable[[Any], bool] = inexact
) -> Any:
    """Return `value` with `change` applied to every tensor for which `of` holds, by default to
    floating and complex ones.
    """
    if type(value) is list:
        return [_map(part, change, of) for part in value]
    if isinstance(value, (tuple, list)):
        return tuple(_map(part, change, of) for part in value)
    if not of(value):
        return value
    return change(value)


def change(call: Call, kind: str, result: Any) -> Any:
    """Return the call's result with a fault of `kind`. `result` is the one without."""
    if kind in _OF_RESULT:
        return _change_result(call, kind, result)
    if kind in _OF_INPUTS:
        faulty = _OF_INPUTS[kind](call).result()
    elif kind == "edge":
        faulty = _edge(call, result)
    elif kind in call.others:
        faulty = call.others[kind]()
    else:
        # A kind of OWN that this target does not apply changes nothing.
        faulty = result
    if call.place is None or result is None:
        return faulty
    # The other results belong to other rules, so they stay right.
    parts = [honest for _, honest in zip(faulty, result, strict=True)]
    parts[call.place] = faulty[call.place]
    return tuple(parts)


def _change_result(call: Call, kind: str, result: Any) -> object:
    """Return a result with a fault in the part that belongs to the rule."""
    of = _tensor if kind in _ARRANGED else inexact
    if call.place is None:
        return _map(result, _OF_RESULT[kind], of)
    parts = list(result)
    parts[call.place] = _map(parts[call.place], _OF_RESULT[kind], of)
    return tuple(parts)


# --- faults of results ----------------------------------------------------------------------------


def _scale(value: Any) -> object:
    # In a coarser dtype an error of a thousandth is within rounding.
    if value.dtype not in _EXACT:
        return value
    return value * FACTOR


def _conjugate(value: Any) -> object:
    if not value.is_complex():
        return value
    return value.conj()


def _roll(value: Any) -> object:
    """Return the value rotated by one along its last dimension that is longer than 1."""
    for dim in reversed(range(value.ndim)):
        size = value.shape[dim]
        if size > 1:
            return torch.cat([value.narrow(dim, size - 1, 1), value.narrow(dim, 0, size - 1)], dim)
    return value


def _mix(value: Any) -> object:
    """Return the batch rotated, so that each element has the result of another one."""
    # A batch of one element has nothing to rotate.
    if value.ndim == 0 or len(value) <= 1:
        return value
    return torch.cat([value[1:], value[:1]])


def _share(value: Any) -> object:
    """Return the result of the first element of a batch for all of them."""
    if value.ndim == 0 or len(value) <= 1:
        return value
    return value[:1].expand(value.shape).clone()


def _transpose(value: Any) -> object:
    """Return the last two dimensions exchanged."""
    # Only square matrices keep their shape, and another shape would show at once.
    if value.ndim > 1 and value.shape[-1] == value.shape[-2] > 1:
        return value.transpose(-1, -2)
    return value


_OF_RESULT: dict[str, Callable[[Any], Any]] = {
    "sign": lambda x: -x,
    "scaled": _scale,
    "conjugated": _conjugate,
    "zeroed": lambda x: x * 0,
    "leaked": lambda x: x + 1,
    "rolled": _roll,
    "transposed": _transpose,
    "mixed": _mix,
    "shared": _share,
    "narrowed": lambda x: x.to(_OTHER_DTYPE.get(x.dtype, torch.float32)),
}
# These move elements, and so they change integers and booleans too.
_ARRANGED = frozenset(("rolled", "transposed", "mixed", "shared"))

# --- faults of inputs -----------------------------------------------------------------------------


def _edge(call: Call, result: object) -> Any:
    """Return the result with NaN where a saved value of its shape is 0 or infinite, as after an
    unguarded division."""

    def edged(x: Any) -> Any:
        for value in call.saved():
            if inexact(value) and value.shape == x.shape:
                at_edge = (value == 0) | torch.isinf(value)
                return torch.where(at_edge, torch.full_like(x, torch.nan), x)
        return x

    return _map(result, edged)


_OF_INPUTS: dict[str, Callable[[Call], Call]] = {
    "saved": lambda call: call.with_inputs("saved", lambda x: x * 1.01, count=1),
    "detached": lambda call: call.with_inputs("saved", call.constant),
}

# Only the target can apply these kinds. They change nothing where it does not.
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
    # of compilers, see gen.targets.compiler_faults
    "graph": (
        "cast",
        "alias",
        "stride",
        "write",
        "order",
        "index",
        "transpose",
        "operands",
        "mask",
        "number",
        "sign",
        "conjugate",
        "zeros",
        "accumulate",
        "precision",
        "draw",
    ),
    "alias": ("copied", "detached"),
    "arguments": ("separate", "unadvanced"),
    "saved_values": ("exchanged",),
    "facts": ("constant", "write", "hidden", "untracked"),
    "effect": ("hook", "list", "dictionary", "cell", "object"),
    "guard": ("unasked",),
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


# Two results are equally right if they differ by fewer ulps of the largest element.
ROUNDINGS = 8


def differs(a: Any, b: Any) -> bool:
    """Return whether two results differ in any element by more than rounding.

    They are plain tensors of any layout, None, or tuples of these. NaN equals NaN.
    """
    if isinstance(a, tuple | list):
        if len(a) != len(b):
            return True
        return any(differs(x, y) for x, y in zip(a, b, strict=True))
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return (a is None) != (b is None)
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return True
    a, b = a.detach(), b.detach()
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    return not torch.allclose(a, b, rtol=0.0, atol=_rounding(b), equal_nan=True)


def _rounding(x: torch.Tensor) -> float:
    """Return how much equally right results may differ."""
    if not inexact(x):
        return 0.0
    finite = x[x.isfinite()]
    if finite.numel() == 0:
        return 0.0
    return float(finite.abs().max()) * torch.finfo(x.dtype).eps * ROUNDINGS
