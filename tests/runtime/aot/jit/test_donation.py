"""A call takes the memory of the arguments that are donated to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from runtime import jit


def step(state: dict[str, torch.Tensor], x: torch.Tensor) -> dict[str, torch.Tensor]:
    return {name: t * 0.9 + x for name, t in state.items()}


@pytest.mark.parametrize("donate", ["state", 0, ("state",)])
def test_what_is_donated_is_empty_afterwards(donate: Any) -> None:
    run = jit(step, donate=donate)
    x = torch.ones(3)
    for _ in range(3):
        state = {"a": torch.ones(3), "b": torch.zeros(3)}
        new = run(state, x)
        assert [t.numel() for t in state.values()] == [0, 0]
        assert x.numel() == 3
        assert torch.equal(new["a"], torch.full((3,), 1.9)) and torch.equal(new["b"], torch.ones(3))


def test_memory_is_free_after_the_last_use_in_the_graph() -> None:
    gone: list[bool] = []

    def watching(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def boxed(args: list[Any]) -> list[Any]:
            memory, y = StorageWeakRef(args[0].untyped_storage()), args.pop().sin()
            gone.append(memory.expired())
            return [y]

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    for donate in ("x", ()):
        x = torch.ones(1000)
        assert torch.equal(jit(lambda x: x.sin(), donate=donate, compiler=watching)(x), torch.ones(1000).sin())
    assert gone == [True, False]


@pytest.mark.parametrize("f", [lambda x: x, lambda x: x.view(-1), lambda x: x.add_(1)])
def test_what_is_returned_or_written_is_not_taken(f: Any) -> None:
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="is donated"):
        jit(f, donate=0)(x)
    assert x.numel() == 4


@pytest.mark.parametrize("x", [torch.ones(2, requires_grad=True), torch.ones(4)[:2], torch.nn.Parameter(torch.ones(2))])
def test_only_plain_tensors_that_own_their_memory_can_be_donated(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a donated argument has a"):
        jit(lambda x: x * 2, donate=0)(x)


def test_a_call_that_cannot_be_captured_takes_nothing() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError):
        jit(lambda x: x if x.sum() > 0 else -x, donate=0)(x)
    assert x.numel() == 2


def test_a_position_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="donate=2, but step takes 2 positional arguments"):
        jit(step, donate=2)
