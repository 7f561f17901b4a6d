"""Find the calls of the dispatcher that an op makes on a sample.

    torch.nn.functional.gelu(x)   ->   aten::gelu(x), and aten::gelu_backward(…) of its gradient

An op that is composed of others is found by its name, since a mode sees only what it is made of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gen.samples import opinfo
from gen.samples.samples import Sample
from gen.samples.seeds import seeded
from gen.torch_private.loaded_with_torch import OpOverload, TorchDispatchMode, pytree
from gen.torch_private.overloads import bound, full_name, is_there, outputs_of, written

__all__ = ["OverloadCall", "calls_of", "copied"]

Tensor = torch.Tensor


@dataclass(frozen=True)
class OverloadCall:
    """A call of an overload, all its arguments by name."""

    overload: Any
    values: dict[str, Any] = field(hash=False)

    @property
    def base(self) -> str:
        """Return the name of the op without that of the overload."""
        return full_name(self.overload).removeprefix("aten::").partition(".")[0]

    def with_values(self, values: dict[str, Any]) -> OverloadCall:
        """Return the call with other values for some of its arguments."""
        return OverloadCall(self.overload, {**self.values, **values})

    def run(self, call: Callable[..., object] | None = None) -> Any:
        """Run the call on copies of its tensors. `call` runs in the place of the overload."""
        return self.on(copied(self.values), call)

    def on(self, values: dict[str, Any], call: Callable[..., object] | None = None) -> Any:
        """Run the call on these arguments."""
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for one in self.overload._schema.arguments:
            if one.name not in values:
                continue
            if one.kwarg_only:
                kwargs[one.name] = values[one.name]
            else:
                args.append(values[one.name])
        return (call or self.overload)(*args, **kwargs)


def copied(value: Any) -> Any:
    """Return copies of the tensors and generators in a value, with their strides and states."""
    return pytree.tree_map(_copy, value)


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator):
        return value.clone_state()
    return value


def calls_of(sample: Sample) -> Iterator[OverloadCall]:
    """Yield the calls that are the op's own: by its name, and of kernels that no row is about."""
    args, kwargs = sample.rebuild(sample.inputs)
    own = _names(sample)
    # a program of a project's own is about each call that it makes
    is_program = not sample.op.name.startswith("torch.")
    seen: set[str] = set()
    for base in own:
        overload = bound(base, args, kwargs)
        if overload is not None and not written(overload):
            call = _call(overload, tuple(args), kwargs)
            if call is not None:
                seen.add(full_name(overload))
                yield call
    for call in _recorded(sample):
        name = full_name(call.overload)
        if name not in seen and (is_program or call.base in own or not _has_row(call.base)):
            seen.add(name)
            yield call


def _names(sample: Sample) -> list[str]:
    """Return what the dispatcher may call the op of a sample."""
    op = sample.op.call
    if isinstance(op, OpOverload):
        return [full_name(op).removeprefix("aten::").partition(".")[0]]
    path = sample.op.name.removeprefix("torch.")
    if path.startswith("ops.aten."):
        return [path.split(".")[2]]
    for module in ("nn.functional.", "Tensor."):
        path = path.removeprefix(module)
    # torch.linalg.norm is linalg_norm, and torch.div.floor_rounding is div
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


def _rows() -> frozenset[str]:
    if not _ROWS:
        for name in opinfo.database():
            # torch.div.floor_rounding is about div, and torch.linalg.norm about linalg_norm
            parts = name.removeprefix("torch.").split(".")
            _ROWS.update("_".join(parts[:end]) for end in range(1, len(parts) + 1))
            _ROWS.update(parts)
    return frozenset(_ROWS)


_ROWS: set[str] = set()


def _call(overload: Any, args: Sequence[object], kwargs: dict[str, object]) -> OverloadCall | None:
    """Return the call with its arguments by name. None if there are too many."""
    arguments = overload._schema.arguments
    positional = [one.name for one in arguments if not one.kwarg_only]
    if len(args) > len(positional):
        return None
    values = dict(zip(positional, args, strict=False))
    names = {one.name for one in arguments}
    if not names.issuperset(kwargs):
        return None
    values.update(kwargs)
    for one in arguments:
        if one.name not in values and one.has_default_value():
            values[one.name] = one.default_value
    return OverloadCall(overload, pytree.tree_map_only(Tensor, Tensor.detach, values))


class _Recorder(TorchDispatchMode):
    """Note each call of the dispatcher that is not composed of others."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, OverloadCall] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if isinstance(func, OpOverload) and func.namespace == "aten":
            name = full_name(func)
            if name not in self.calls and not outputs_of(func):
                call = _call(func, args, kwargs or {})
                if call is not None:
                    # what the call is given is copied, since it or a later one may write
                    self.calls[name] = OverloadCall(func, copied(call.values))
        return func(*args, **(kwargs or {}))


def _recorded(sample: Sample) -> list[OverloadCall]:
    """Return the calls of the op and of its backward pass, one for each overload."""
    recorder = _Recorder()
    with seeded(sample.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        inputs = [x.clone() for x in sample.inputs]
        try:
            with recorder:
                sample.raw(sample.op.call, inputs)
                if any(sample.differentiable):
                    sample.run_backward()
        # what the op lacks, such as a derivative, is for other checks to say
        except (RuntimeError, NotImplementedError, TypeError, ValueError):
            pass
    return list(recorder.calls.values())
