"""How a tensor that consists of others is taken apart and put together again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runtime.aot.subclass_helpers import compiled


class Shaped(torch.Tensor):
    """Says sizes and strides that need not be those of its parts."""

    @staticmethod
    def __new__(cls, size: Any, stride: Any, context: Any, *inside: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=torch.float32)

    def __init__(self, size: Any, stride: Any, context: Any, *inside: torch.Tensor) -> None:
        # tensors of torch 2.12 have an attribute `names`
        self.context, self.parts = context, list("abc"[: len(inside)])
        vars(self).update(zip(self.parts, inside, strict=True))

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return self.parts, self.context

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any
    ) -> Shaped:
        return Shaped(size, stride, context, *inner.values())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*(vars(t)["a"] if isinstance(t, Shaped) else t for t in args), **(kwargs or {}))


@pytest.mark.parametrize(
    ("f", "says"),
    [
        (
            lambda x: Shaped((2,), (1,), {"by": [x * 2]}, x),
            "the context of a Shaped depends on sizes or on tensors of the program",
        ),
    ],
)
def test_what_a_graph_cannot_say_of_a_result_is_refused(f: Any, says: str) -> None:
    with pytest.raises(RuntimeError, match=says):
        compiled(f, dynamic=True)(torch.ones(4))


@pytest.mark.parametrize(
    ("f", "sizes"),
    [
        (lambda x, y: Shaped((y.shape[0] // 2,), (1,), None, x), ((4,), (8,))),
        (lambda x, y: Shaped((x.shape[0], 7), (y.shape[0] // 2, 1), None, x), ((3, 9), (18,))),
    ],
)
def test_a_size_that_is_that_of_a_part_for_these_arguments_makes_a_program_for_such_ones(
    f: Any, sizes: Any
) -> None:
    first, second = sizes
    run = compiled(f, dynamic=True)
    for n in (0, 2):
        x, y = torch.ones(*first[:-1], first[-1] + n), torch.ones(second[0] + 2 * n)
        assert (run(x, y).shape, run(x, y).stride()) == (f(x, y).shape, f(x, y).stride())
    x, y = torch.ones(first), torch.ones(second[0] + 6)  # of none of the parts
    assert (run(x, y).shape, run(x, y).stride()) == (f(x, y).shape, f(x, y).stride())
