"""``torch._foreach_add_(list, …)`` and its like as the single ops that they stand for."""

from __future__ import annotations

from typing import Any

import torch

from .rules.ops import Op


def run(op: Op, args: Any, kwargs: dict[str, Any]) -> None:
    """The in-place op on one tensor of the list after the other. Arguments that are lists go along, others are the same for all."""
    targets = args[0]
    names = op.arg_names
    name = op.base_name.removeprefix("_foreach_")
    single = getattr(torch.ops.aten, name, None) or _BY_COPY[name]
    for i, target in enumerate(targets):
        rest = [a[i] if isinstance(a, (list, tuple)) and len(a) == len(targets) else a for a in args[1:]]
        options = dict(kwargs)
        if name in ("addcmul_", "addcdiv_") and len(rest) == 3:
            value = rest.pop()
            options["value"] = value[i].item() if isinstance(value, torch.Tensor) and names[3] == "scalars" else value
        single(target, *rest, **options)


def _maximum(target: Any, other: Any) -> None:
    target.copy_(torch.maximum(target.clone(), torch.as_tensor(other, dtype=target.dtype)))


def _minimum(target: Any, other: Any) -> None:
    target.copy_(torch.minimum(target.clone(), torch.as_tensor(other, dtype=target.dtype)))


_BY_COPY = {"maximum_": _maximum, "minimum_": _minimum}
