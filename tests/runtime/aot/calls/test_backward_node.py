"""What one call of a compiled program keeps for its backward, lets go, compiles for
it, and refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.calls.backward_calls import CompiledBackward, _as_traced, _with_history
from runtime.autograd.graph import saved_tensors_hooks


def leaf(*values: float, device: str = "cpu") -> Any:
    return runtime.wrap(torch.tensor(values, device=device), requires_grad=True)


def node_of(y: Any) -> Any:
    node = y._edge[0]
    assert isinstance(node, CompiledBackward)
    return node


class Compiler:
    """Counts the graphs that it gets, with the numbers of their inputs."""

    def __init__(self) -> None:
        self.graphs: list[int] = []

    def __call__(self, module: fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(len(inputs))
        return nop(module, inputs)


def two(x: Any, y: Any) -> Any:
    return (x * y).sin(), y.exp()


# how many tensors a call keeps, how many of them only a second derivative needs, and which the
# caller can write to, of these and of all
KEPT: dict[str, tuple[Callable[[Any], Any], tuple[int, int, int, int]]] = {
    "nothing": (lambda x: x * 2, (0, 0, 0, 0)),
    "an argument": (lambda x: x.sin(), (1, 0, 1, 1)),
    "a result": (lambda x: x.exp(), (1, 1, 1, 2)),
    "an intermediate": (lambda x: x.exp() * 2, (1, 1, 0, 1)),
    "an argument and an intermediate": (lambda x: x.sin().exp() * 2, (2, 0, 1, 1)),
}


@pytest.mark.parametrize("name", KEPT)
def test_a_call_keeps_what_the_first_derivative_needs_and_then_what_the_second_needs(
    name: str,
) -> None:
    f, (saved, more, exposed, exposed_in_all) = KEPT[name]
    node = node_of(aot_function(f, nop)(leaf(1.0)))
    backward = node.backward
    assert (backward.n_saved, len(node.saved) - backward.n_saved) == (saved, more)
    assert (len(backward.first_exposed), len(backward.exposed)) == (
        exposed,
        exposed_in_all,
    ) and len(node.versions) == exposed_in_all


def test_a_pass_lets_go_what_was_kept_unless_it_keeps_the_graph() -> None:
    x = leaf(1.0)
    y = aot_function(lambda x: x.sin(), nop)(x)
    y.backward(retain_graph=True)
    assert node_of(y).saved is not None
    y.backward()
    assert node_of(y).saved is None
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


def test_a_cotangent_is_laid_out_as_the_trace_took_it() -> None:
    plain = torch.ones(2, 3)
    assert _as_traced(plain) is plain
    turned, conjugate = torch.arange(6.0).view(2, 3).t(), (torch.ones(2) * 1j).conj()
    for g in (turned, conjugate, conjugate.imag, conjugate.view(1, 2).t()):
        made = _as_traced(g)
        assert (
            made.equal(g.clone())
            and made.is_contiguous()
            and not made.is_conj()
            and not made.is_neg()
        )


def test_what_was_kept_of_an_argument_has_its_history_again() -> None:
    x, t = leaf(1.0), torch.ones(1)
    y = x * 1
    assert _with_history(t, None) is t and id(_with_history(x._inner, x)) == id(x)
    made: Any = _with_history(t, x)
    assert made is not x and made._inner is t and made._edge[0].variable is x
    of_edge: Any = _with_history(t, y._edge)
    assert of_edge._edge == y._edge


def test_leaves_are_told_where_no_one_else_takes_part() -> None:
    f = aot_function(lambda x, y: x * y, nop)
    x, y = leaf(1.0), leaf(2.0)
    assert [id(t) for t in node_of(f(x, y)).leaves()] == [id(x), id(y)]
    assert (
        node_of(f(x * 1, y)).leaves() is None and node_of(f(x, torch.ones(1))).leaves() is not None
    )
    asked = node_of(f(x, y))
    assert len(asked.edges) == 2 and asked.leaves() is None
    hooked = node_of(f(x, y))
    hooked.register_prehook(lambda g: None)
    assert hooked.leaves() is None
    z = leaf(3.0)
    made = node_of(f(x, z))
    z.register_hook(lambda g: g)
    assert made.leaves() is None
    w = leaf(3.0)
    made = node_of(f(x, w))
    w.register_post_accumulate_grad_hook(lambda t: None)
    assert made.leaves() is None
    v = leaf(3.0)
    made = node_of(f(x, v))
    v.requires_grad_(False)
    assert made.leaves() is None


def test_hooks_on_saved_tensors_get_what_is_kept_and_give_what_is_used() -> None:
    packed: list[float] = []

    def pack(t: Any) -> Any:
        packed.append(t.item())
        return t + 1

    f = aot_function(lambda x: x.sin(), nop)
    x = leaf(1.0)
    with saved_tensors_hooks(pack, lambda t: t - 1):
        y = f(x)
    node = node_of(y)
    assert packed == [1.0] and node.versions is None
    y.backward()
    assert x.grad.item() == pytest.approx(torch.tensor(1.0).cos().item()) and node.saved is None
    z = f(x)
    assert packed == [1.0] and node_of(z).versions is not None


def test_a_graph_is_asked_with_all_its_cotangents_after_what_is_kept() -> None:
    compiler = Compiler()
    x, y = leaf(1.0), leaf(2.0)
    a, b = aot_function(two, nop, compiler)(x, y)
    (a + b).backward()
    kept = node_of(a).backward.n_saved
    assert compiler.graphs == [kept + 2]


def test_the_backward_is_not_in_autocast_and_leaves_it_as_it_was() -> None:
    x = leaf(1.0, 2.0)
    f = aot_function(lambda x: x.view(1, 2) @ x.view(2, 1), nop)
    y = f(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (g,) = runtime.autograd.grad(y.sum(), x)
        assert torch.is_autocast_enabled("cpu")
    assert g.dtype is torch.float32 and g.tolist() == [2.0, 4.0]


def test_what_the_program_writes_over_and_a_second_derivative_needs_is_at_risk() -> None:
    def f(x: Any, y: Any) -> Any:
        found = x.exp(), y.exp()
        y.add_(1)
        return found

    backward = node_of(aot_function(f, nop)(leaf(1.0), leaf(1.0) * 1)[0]).backward
    assert (backward.n_saved, backward.reread, backward.at_risk, backward.exposed) == (
        2,
        (0, 1),
        (3,),
        (0, 1, 2, 3),
    )
    backward = node_of(
        aot_function(lambda x, y: (y.add_(1), x.sin())[1], nop)(leaf(1.0), leaf(1.0) * 1)
    ).backward
    assert (backward.reread, backward.at_risk) == ((), ())


def test_a_number_that_a_second_derivative_needs_is_not_asked_for_its_version() -> None:
    f = aot_function(lambda x, k: (x * k).exp(), nop)
    f(leaf(1.0), 2.5)
    node = node_of(f(leaf(1.0), 3.5))
    numbers = [i for i, t in enumerate(node.saved) if not isinstance(t, torch.Tensor)]
    assert numbers and not set(numbers) & set(node.backward.exposed)
