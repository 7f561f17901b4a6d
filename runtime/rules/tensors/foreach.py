"""Run ``torch._foreach_add(list, …)``, ``_foreach_add_`` and similar ops as one single op per
tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..ops import FUNCTIONAL, PROVIDERS, Op


def run(op: Op, args: object, kwargs: dict[str, Any]) -> None:
    """Run the in-place op on each tensor of the list, one after the other."""
    name = op.base_name.removeprefix("_foreach_")
    single = getattr(torch.ops.aten, name, None) or _BY_COPY[name]
    for each, options in _calls(op, args, kwargs):
        single(*each, **options)


def _decomposition(op: Op, rule: str) -> Callable[..., list[torch.Tensor]] | None:
    """Return a function that calls the single op for each tensor, for an op that returns a list.
    None for any other op."""
    if op.kind is not FUNCTIONAL or not op.base_name.startswith("_foreach_"):
        return None
    name = op.base_name.removeprefix("_foreach_")
    single = _SINGLE.get(name) or getattr(torch.ops.aten, name)
    return lambda *args, **kwargs: [
        single(*each, **options) for each, options in _calls(op, args, kwargs)
    ]


def _calls(
    op: Op, args: Any, kwargs: dict[str, object]
) -> Iterator[tuple[list[object], dict[str, object]]]:
    """Yield the arguments of each single call. An argument that is a list gives one entry to each
    call. All others are the same for all calls."""
    number = next(len(argument) for argument in args if isinstance(argument, (list, tuple)))
    scaled = op.base_name.removeprefix("_foreach_").removesuffix("_") in ("addcmul", "addcdiv")
    for index in range(number):
        each = list(args)
        for k, argument in enumerate(args):
            if isinstance(argument, (list, tuple)) and len(argument) == number:
                each[k] = argument[index]
        options = dict(kwargs)
        # the fourth argument is the factor, which the single op takes by name
        if scaled and len(each) == 4:
            value = each.pop()
            if isinstance(value, torch.Tensor) and op.arg_names[3] == "scalars":
                value = value[index].item()
            options["value"] = value
        yield each, options


def _maximum(self: torch.Tensor, other: object) -> torch.Tensor:
    return torch.maximum(self, torch.as_tensor(other, dtype=self.dtype))


def _minimum(self: torch.Tensor, other: object) -> torch.Tensor:
    return torch.minimum(self, torch.as_tensor(other, dtype=self.dtype))


def _norm(self: torch.Tensor, ord: object = 2, dtype: torch.dtype | None = None) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(self, ord, dtype=dtype)
    return norm


_SINGLE: dict[str, Callable[..., torch.Tensor]] = {
    "maximum": _maximum,
    "minimum": _minimum,
    "norm": _norm,
}
# ATen has no `maximum_` and no `minimum_` for one tensor.
_BY_COPY = {
    "maximum_": lambda target, other: target.copy_(_maximum(target.clone(), other)),
    "minimum_": lambda target, other: target.copy_(_minimum(target.clone(), other)),
}

PROVIDERS.append(_decomposition)
