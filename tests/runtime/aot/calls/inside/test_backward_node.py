"""What one call of a compiled program keeps for a second derivative, and what its node knows of
leaves.

Inside: ``runtime.aot.calls.backward_calls.CompiledBackward``. What is kept for a second derivative
that nobody takes, and which way a pass to leaves goes, no result shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.calls.backward_calls import CompiledBackward, _with_history


def leaf(*values: float, device: str = "cpu") -> Any:
    return runtime.wrap(torch.tensor(values, device=device), requires_grad=True)


def node_of(y: Any) -> Any:
    node = y._edge[0]
    assert isinstance(node, CompiledBackward)
    return node


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
