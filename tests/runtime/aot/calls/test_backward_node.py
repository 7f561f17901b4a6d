"""What one call of a compiled program keeps for its backward, lets go, compiles for
it, and refuses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime.aot import aot_function, nop
from runtime.autograd.graph import saved_tensors_hooks


def leaf(*values: float, device: str = "cpu") -> Any:
    return runtime.wrap(torch.tensor(values, device=device), requires_grad=True)


class Compiler:
    """Counts the graphs that it gets, with the numbers of their inputs."""

    def __init__(self) -> None:
        self.graphs: list[int] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(len(inputs))
        return nop(module, inputs)


def two(x: Any, y: Any) -> Any:
    return (x * y).sin(), y.exp()


def test_a_pass_lets_go_what_was_kept_unless_it_keeps_the_graph() -> None:
    x = leaf(1.0)
    y = aot_function(lambda x: x.sin(), nop)(x)
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == pytest.approx(2 * torch.tensor(1.0).cos().item())
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_what_needs_nothing_may_run_again_but_has_no_second_derivative_then() -> None:
    x = leaf(1.0)
    y = aot_function(lambda x: x * 2, nop)(x)
    y.backward()
    y.backward()
    assert x.grad.item() == 4.0
    with pytest.raises(RuntimeError, match="second time"):
        runtime.autograd.grad(y, x, create_graph=True)


@pytest.mark.parametrize("f, first", [(lambda x: x.sin(), True), (lambda x: x.exp() * 2, False)])
def test_a_write_to_an_argument_is_noticed_by_the_derivative_that_needs_it(
    f: Any, first: bool
) -> None:
    def passes(create_graph: bool) -> bool:
        x = leaf(1.0)
        given = x * 1
        y = aot_function(f, nop)(given)
        with torch.no_grad():
            given.add_(1)
        try:
            runtime.autograd.grad(y, x, create_graph=create_graph)
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            return False
        return True

    assert passes(False) is not first and not passes(True)


def test_a_write_to_a_result_that_was_kept_is_noticed() -> None:
    y = aot_function(lambda x: x.exp(), nop)(leaf(1.0))
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_each_set_of_cotangents_has_a_graph_of_its_own_made_once() -> None:
    compiler = Compiler()
    f = aot_function(two, nop, compiler)
    for starts, graphs in (((0, 1), 1), ((0,), 2), ((0,), 2), ((1,), 3), ((0, 1), 3), ((1,), 3)):
        x, y = leaf(1.0), leaf(2.0)
        results = f(x, y)
        found = runtime.autograd.grad([results[i] for i in starts], [x, y], allow_unused=True)
        x, y = leaf(1.0), leaf(2.0)
        results = two(x, y)
        expected = runtime.autograd.grad([results[i] for i in starts], [x, y], allow_unused=True)
        assert [None if g is None else g.item() for g in found] == pytest.approx(
            [None if g is None else g.item() for g in expected]
        )
        assert len(compiler.graphs) == graphs


def test_each_set_of_cotangents_has_a_second_derivative_of_its_own() -> None:
    f = aot_function(two, nop)
    for starts in ((0, 1), (0,), (1,), (0,)):

        def second(f: Callable[..., Any], starts: tuple[int, ...] = starts) -> list[float]:
            x, y = leaf(1.0), leaf(2.0)
            results = f(x, y)
            found = runtime.autograd.grad(
                [results[i] for i in starts], [x, y], create_graph=True, allow_unused=True
            )
            total = sum(g.sum() for g in found if g is not None)
            return [
                0.0 if g is None else g.item()
                for g in runtime.autograd.grad(total, [x, y], allow_unused=True)
            ]

        assert second(f) == pytest.approx(second(two))


@pytest.mark.parametrize("create_graph", [False, True])
def test_a_missing_cotangent_is_zeros_on_the_device_of_its_result(create_graph: bool) -> None:
    x, y = leaf(1.0, device="meta"), leaf(2.0, device="meta")
    found = runtime.autograd.grad(
        aot_function(lambda x, y: ((x * y).sin(), x * y), nop)(x, y)[0].sum(),
        [x, y],
        create_graph=create_graph,
    )
    assert [(g.device.type, g.shape, g.dtype) for g in found] == [("meta", (1,), torch.float32)] * 2


COTANGENTS: dict[str, torch.Tensor] = {
    "a plain one": torch.ones(2, 3),
    "transposed": torch.arange(6.0).view(3, 2).t(),
    "a lazy conjugate": (torch.arange(6.0).view(2, 3) * 1j).conj(),
    "a lazy negative": (torch.arange(6.0).view(2, 3) * 1j).conj().imag,
    "a transposed conjugate": (torch.arange(6.0).view(3, 2) * 1j).conj().t(),
}


@pytest.mark.parametrize("name", COTANGENTS)
def test_a_cotangent_is_laid_out_as_the_trace_took_it(name: str) -> None:
    given, taken = COTANGENTS[name], list[torch.Tensor]()

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        def run(*values: Any) -> Any:
            taken.extend(values)
            return module(*values)

        return run

    x = runtime.wrap(torch.ones(2, 3, dtype=given.dtype), requires_grad=True)
    aot_function(lambda x: x * 2, nop, compiler)(x).backward(given)
    (cotangent,) = taken
    assert cotangent.equal(given.clone()) and cotangent.is_contiguous()
    assert not cotangent.is_conj() and not cotangent.is_neg()
    assert (cotangent is given) == (name == "a plain one")
    assert runtime.unwrap(x.grad).equal(given * 2)


def test_hooks_on_saved_tensors_get_what_is_kept_and_give_what_is_used() -> None:
    packed: list[float] = []

    def pack(t: Any) -> Any:
        packed.append(t.item())
        return t + 1

    f = aot_function(lambda x: x.sin(), nop)
    x = leaf(1.0)
    with saved_tensors_hooks(pack, lambda t: t - 1):
        y = f(x)
    assert packed == [1.0]
    y.backward()
    assert x.grad.item() == pytest.approx(torch.tensor(1.0).cos().item())
    f(x)
    assert packed == [1.0]


@pytest.mark.parametrize("packs", [False, True])
def test_a_write_to_what_hooks_have_packed_is_not_noticed(packs: bool) -> None:
    """They have a copy, or know how to make the tensor anew."""
    x = leaf(1.0)
    given = x * 1
    hooks = saved_tensors_hooks(torch.clone, lambda t: t) if packs else nullcontext()
    with hooks:
        y = aot_function(lambda x: x.sin(), nop)(given)
    with torch.no_grad():
        given.add_(1)
    if packs:
        y.backward()
        assert x.grad.item() == pytest.approx(torch.tensor(1.0).cos().item())
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()


def test_a_graph_is_asked_with_all_its_cotangents_after_what_is_kept() -> None:
    compiler, forwards = Compiler(), list[fx.GraphModule]()

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        forwards.append(module)
        return nop(module, inputs)

    x, y = leaf(1.0), leaf(2.0)
    a, b = aot_function(two, keep, compiler)(x, y)
    (a + b).backward()
    results: Any = forwards[0].graph.output_node().args[0]
    kept = len(results) - 2
    assert kept > 0 and compiler.graphs == [kept + 2]


def test_the_backward_is_not_in_autocast_and_leaves_it_as_it_was() -> None:
    x = leaf(1.0, 2.0)
    f = aot_function(lambda x: x.view(1, 2) @ x.view(2, 1), nop)
    y = f(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (g,) = runtime.autograd.grad(y.sum(), x)
        assert torch.is_autocast_enabled("cpu")
    assert g.dtype is torch.float32 and g.tolist() == [2.0, 4.0]
