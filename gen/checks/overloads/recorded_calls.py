"""Find the calls of the dispatcher that an op makes on a sample.

    torch.nn.functional.gelu(x)   ->   aten::gelu(x), and aten::gelu_backward(…) of its gradient

An op that is composed of others is found by its name, since a mode sees only what it is made of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeVar

import torch

from gen.samples import opinfo
from gen.samples.samples import Sample
from gen.samples.seeds import seeded
from gen.torch_private.aten_overloads import (
    Overload,
    bound,
    full_name,
    is_there,
    names_of,
    outputs_of,
    writes_of,
)
from gen.torch_private.loaded_with_torch import OpOverload, TorchDispatchMode, pytree

__all__ = ["OverloadCall", "calls_of", "copied"]

Tensor = torch.Tensor
T = TypeVar("T")


@dataclass(frozen=True)
class OverloadCall:
    """A call of an overload, all its arguments by name."""

    overload: Overload
    values: dict[str, object] = field(hash=False)

    @property
    def base(self) -> str:
        """Return the name of the op without that of the overload."""
        return full_name(self.overload).removeprefix("aten::").partition(".")[0]

    @property
    def first(self) -> object:
        """Return the first argument, or None if the call leaves it out."""
        return self.values.get(self.overload._schema.arguments[0].name)

    def with_values(self, values: dict[str, object]) -> OverloadCall:
        """Return the call with other values for some of its arguments.

        `add(x, y)` with `{"other": z}` is `add(x, z)`.
        """
        return OverloadCall(self.overload, {**self.values, **values})

    def run(self, call: Callable[..., object] | None = None) -> object:
        """Run the call on copies of its tensors. `call` runs in the place of the overload."""
        return self.on(copied(self.values), call)

    def on(self, values: dict[str, object], call: Callable[..., object] | None = None) -> object:
        """Run the call on these arguments, each by place or by name as the schema has it.

        With `{"self": x, "other": y, "alpha": 2}` it runs `add(x, y, alpha=2)`.
        """
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for argument in self.overload._schema.arguments:
            if argument.name not in values:
                continue
            if argument.kwarg_only:
                kwargs[argument.name] = values[argument.name]
            else:
                args.append(values[argument.name])
        return (call or self.overload)(*args, **kwargs)


def copied(value: T) -> T:
    """Return copies of the tensors and generators in a value, with their strides and states."""
    copies: T = pytree.tree_map(_copy, value)
    return copies


def _copy(value: object) -> object:
    """Return a copy of a tensor or a generator, and anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.clone_state()
    return value


def calls_of(sample: Sample) -> Iterator[OverloadCall]:
    """Yield the calls that are the op's own: by its name, and of kernels that no row is about.

    `torch.nn.functional.gelu` has `gelu` by its name, and `gelu_backward` that no row is about. It
    calls `mul` too, which has a row of its own.
    """
    # By its name first, since a mode never sees an op that is composed of others.
    own = _names(sample)
    seen: set[str] = set()
    for call in _calls_by_name(sample, own):
        seen.add(full_name(call.overload))
        yield call
    # a program of a project's own is about each call that it makes
    is_program = not sample.op.name.startswith("torch.")
    for call in _recorded(sample):
        name = full_name(call.overload)
        if name in seen:
            continue
        if is_program or call.base in own or not _has_row(call.base):
            seen.add(name)
            yield call


def _calls_by_name(sample: Sample, bases: Sequence[str]) -> Iterator[OverloadCall]:
    """Yield the call of each op of these names that takes the sample and writes to nothing."""
    args, kwargs = sample.rebuild(sample.inputs)
    for base in bases:
        overload = bound(base, args, kwargs)
        if overload is None or writes_of(overload):
            continue
        call = _call(overload, tuple(args), kwargs)
        if call is not None:
            yield call


def _names(sample: Sample) -> list[str]:
    """Return what the dispatcher may call the op of a sample, one name at most.

    It is `linalg_norm` for `torch.linalg.norm`, and `div` for `torch.div.floor_rounding`.
    """
    op = sample.op.call
    if isinstance(op, OpOverload):
        return [full_name(op).removeprefix("aten::").partition(".")[0]]
    path = sample.op.name.removeprefix("torch.")
    if path.startswith("ops.aten."):
        return [path.split(".")[2]]
    for module in ("nn.functional.", "Tensor."):
        path = path.removeprefix(module)
    parts = path.split(".")
    names = ["_".join(parts[:end]) for end in range(len(parts), 0, -1)]
    return [name for name in names if is_there(name)][:1]


def _has_row(base: str) -> bool:
    """Return whether the database has a row for an op of the dispatcher, which has its own cell."""
    return base.removesuffix("_") in _rows() or base in _PLUMBING


_PLUMBING = frozenset(
    {"detach", "lift_fresh", "_to_copy", "alias", "_unsafe_view", "_reshape_alias"}
)
"""Ops that nearly every op calls, which have rows of their own in the matrix."""


@cache
def _rows() -> frozenset[str]:
    """Return the names of ops that rows of the database are about.

    torch.div.floor_rounding is about div, and torch.linalg.norm about linalg_norm.
    """
    rows: set[str] = set()
    for name in opinfo.database():
        parts = name.removeprefix("torch.").split(".")
        # Which part names the op cannot be told: each may, and so may each beginning.
        rows.update("_".join(parts[:end]) for end in range(1, len(parts) + 1))
        rows.update(parts)
    return frozenset(rows)


def _call(
    overload: Overload, args: Sequence[object], kwargs: dict[str, object]
) -> OverloadCall | None:
    """Return the call with its arguments by name. None if there are too many.

    What is left out has its default: `add(x, y)` is `add(self=x, other=y, alpha=1)`.
    """
    arguments = overload._schema.arguments
    positional = [argument.name for argument in arguments if not argument.kwarg_only]
    names = set(names_of(arguments))
    if len(args) > len(positional) or not names.issuperset(kwargs):
        return None
    values: dict[str, object] = dict(zip(positional, args, strict=False))
    values.update(kwargs)
    for argument in arguments:
        if argument.has_default_value():
            values.setdefault(argument.name, argument.default_value)
    return OverloadCall(overload, pytree.tree_map_only(Tensor, Tensor.detach, values))


class _Recorder(TorchDispatchMode):
    """Note each call of the dispatcher that is not composed of others."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, OverloadCall] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Note the call of an overload of ATen before it runs."""
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and func.namespace == "aten":
            self._note(func, args, kwargs)
        return func(*args, **kwargs)

    def _note(
        self, overload: Overload, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> None:
        """Note the first call of each overload, unless it has buffers for its results."""
        name = full_name(overload)
        if name in self.calls or outputs_of(overload):
            return
        call = _call(overload, args, kwargs)
        if call is not None:
            # what the call is given is copied, since it or a later one may write
            self.calls[name] = OverloadCall(overload, copied(call.values))


def _recorded(sample: Sample) -> list[OverloadCall]:
    """Return the calls of the op and of its backward pass, one for each overload."""
    recorder = _Recorder()
    with seeded(sample.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = [x.clone() for x in sample.inputs]  # outside, since clones are no calls of the op
        try:
            with recorder:
                sample.raw(sample.op.call, inputs)
                if any(sample.differentiable):
                    sample.run_backward()
        # what the op lacks, such as a derivative, is for other checks to say
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            pass
    return list(recorder.calls.values())
