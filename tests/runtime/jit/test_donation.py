"""A call takes the memory of the arguments that are donated to it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from runtime import jit
from runtime.func import vmap


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
        assert torch.equal(
            jit(lambda x: x.sin(), donate=donate, compiler=watching)(x), torch.ones(1000).sin()
        )
    assert gone == [True, False]


@pytest.mark.parametrize("f", [lambda x: x, lambda x: x.view(-1), lambda x: x.add_(1)])
def test_what_is_returned_or_written_is_not_taken(f: Any) -> None:
    x = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match="is donated"):
        jit(f, donate=0)(x)
    assert x.numel() == 4


@pytest.mark.parametrize(
    "x", [torch.ones(2, requires_grad=True), torch.ones(4)[:2], torch.nn.Parameter(torch.ones(2))]
)
def test_only_plain_tensors_that_own_their_memory_can_be_donated(x: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="a donated argument has a"):
        jit(lambda x: x * 2, donate=0)(x)


def test_a_call_that_cannot_be_captured_takes_nothing() -> None:
    x = torch.ones(2)
    with pytest.raises(RuntimeError):
        jit(lambda x: x if x.tolist()[0] > 0 else -x, donate=0)(x)
    assert x.numel() == 2


def test_a_position_that_is_none_is_an_error() -> None:
    with pytest.raises(ValueError, match="donate=2, but step takes 2 positional arguments"):
        jit(step, donate=2)


@pytest.mark.parametrize("donate", [("a", "b"), "a"])
def test_one_tensor_may_be_given_twice(donate: str | tuple[str, ...]) -> None:
    f = jit(lambda a, b: a[0] * 2 + b, donate=donate)
    for _ in range(3):
        x = torch.ones(4)
        assert f([x, x], x).tolist() == [3.0] * 4
        assert x.numel() == 0


def test_what_has_been_donated_cannot_be_donated_again() -> None:
    f = jit(lambda x: x * 2, donate="x")
    x = torch.ones(4)
    f(x)
    with pytest.raises(ValueError, match="has been donated before"):
        f(x)


def test_a_tensor_that_the_program_closes_over_cannot_be_donated() -> None:
    held = torch.ones(4)
    f = jit(lambda x: x * 2 + held, donate="x")
    with pytest.raises(RuntimeError, match="closes over a tensor that is donated"):
        f(held)
    assert held.tolist() == [1.0] * 4


def test_in_a_transform_and_in_another_program_nothing_is_taken() -> None:
    f = jit(lambda x: x * 2, donate="x")
    x = torch.ones(3, 2)
    assert torch.equal(vmap(f)(x), x * 2)
    assert torch.equal(jit(lambda y: f(y + 1) + f(y))(x), x * 2 + (x + 1) * 2)
    assert x.numel() == 6


def test_a_donated_name_that_is_none_is_an_error() -> None:
    for option in ("donate", "static_argnames"):
        with pytest.raises(ValueError, match=f"{option}='y', but .* takes no such argument"):
            jit(lambda x: x, **{option: "y"})  # type: ignore[call-overload]
    assert jit(lambda x, **more: x + more["y"], donate="y")(
        torch.ones(2), y=torch.ones(2)
    ).tolist() == [2.0, 2.0]


def test_an_error_of_the_graph_says_that_the_donated_tensors_are_empty() -> None:
    f = jit(lambda s, i: s * 2 + torch.nn.functional.embedding(i, torch.ones(3, 4)), donate="s")
    s = f(torch.ones(1, 4), torch.tensor([1]))
    with pytest.raises(IndexError) as raised:
        f(s, torch.tensor([9]))
    assert s.numel() == 0 and "the donated tensors are empty" in raised.value.__notes__[0]
