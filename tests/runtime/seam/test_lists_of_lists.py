"""An operator that takes lists of lists of tensors, as those of ``torch.distributed``, gets the
tensors that values hold."""

from __future__ import annotations

from typing import Any

import torch

import runtime


def test_values_in_lists_of_lists_are_lowered() -> None:
    library = torch.library.Library("lists_of_lists", "FRAGMENT")
    library.define("first(Tensor[][] parts, Tensor[] more) -> Tensor")
    seen: list[Any] = []

    def first(parts: list[list[torch.Tensor]], more: list[torch.Tensor]) -> torch.Tensor:
        seen.extend([parts[0][1], more[0]])
        return parts[0][0].clone()

    library.impl("first", first, "CompositeExplicitAutograd")
    x = runtime.wrap(torch.ones(2))
    result = torch.ops.lists_of_lists.first([[x, x + 1], [x]], [x])
    assert torch.equal(runtime.unwrap(result), torch.ones(2))
    assert len(seen) == 2 and not any(isinstance(t, runtime.Tensor) for t in seen)
    library._destroy()
