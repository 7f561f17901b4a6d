"""An integer that a program reads of a tensor by ``item()`` is a number of the graph."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit
from runtime.jit import explain

INPUTS = [torch.arange(4.0) - shift for shift in (0, 3, 0, 1, 4)]


def positive(x: Tensor) -> Any:
    """Return how many elements are positive."""
    return (x > 0).sum().item()


ARITHMETIC: dict[str, Callable[[Tensor], Any]] = {
    "a sum": lambda x: positive(x) + 1 - positive(x - 1),
    "a product": lambda x: (positive(x) * 3, 2 * positive(x), positive(x) * 2.5),
    "a quotient": lambda x: (positive(x) / 2, 3 / (positive(x) + 1)),
    "whole quotients": lambda x: (positive(x) // 2, positive(x) % 2, 7 // (positive(x) + 1)),
    "a division by zero": lambda x: 7 % positive(x),
    "powers": lambda x: (positive(x) ** 2, 2 ** positive(x), (positive(x) + 1) ** -1),
    "bits": lambda x: (positive(x) & 1, positive(x) | 4, positive(x) ^ 1, 1 << positive(x)),
    "signs": lambda x: (-positive(x), abs(-positive(x)), +positive(x)),
    "extremes": lambda x: (max(positive(x), 1), min(positive(x), 2)),
    "comparisons": lambda x: (positive(x) > 1, positive(x) == 2, positive(x) < 1.5),
    "a branch": lambda x: x * 2 if positive(x) > 1 else x,
    "a truth": lambda x: x * 2 if positive(x) else x,
    "with a size": lambda x: (positive(x) / x.shape[0], positive(x) * x.numel()),
    "with a real number": lambda x: positive(x) * x.sum().item(),
    "with a tensor": lambda x: (x * positive(x), positive(x) - x, x > positive(x)),
    "of integers": lambda x: x.long() * positive(x),
    "a number of an op": lambda x: torch.add(x, x, alpha=positive(x)).clamp(max=positive(x)),
    "a place": lambda x: x.argmax().item(),
    "beyond 53 bits": lambda x: (x.long() + 2**53).max().item() + 1,
    "its class": lambda x: isinstance(positive(x), int),
}


@pytest.mark.parametrize("name", ARITHMETIC)
def test_its_arithmetic_is_that_of_python(name: str) -> None:
    def run(wrap: Callable[..., Any]) -> list[object]:
        program, found = wrap(ARITHMETIC[name]), []
        for x in INPUTS:
            try:
                found.append(program(x))
            except ZeroDivisionError:
                found.append(None)
        return found

    actual, expected = run(jit), run(lambda f: f)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)
    assert list(map(repr, actual)) == list(map(repr, expected))


def test_answers_of_an_evaluation_are_counted_in_a_jitted_step() -> None:
    def run(wrap: Callable[..., Any]) -> tuple[list[float], Any, Any]:
        torch.manual_seed(0)
        layer, state = nn.Linear(4, 3), SimpleNamespace(right=0, seen=0)

        @torch.no_grad()
        def step(x: Tensor, labels: Tensor) -> Any:
            state.right += (layer(x).argmax(1) == labels).sum().item()
            state.seen += labels.size(0)
            return state.right / state.seen

        step = wrap(step)
        sizes = (5, 5, 5, 3, 7, 5)
        shares = [step(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in sizes]
        return shares, state.right, type(state.right)

    assert run(jit) == run(lambda f: f)


def test_one_program_serves_any_number() -> None:
    compiled = jit(lambda x: x * positive(x))
    for x in INPUTS:
        compiled(x)
    assert len(explain(compiled).programs) == 1


VALUES: dict[str, Callable[[Tensor], Any]] = {
    "a size": lambda x: torch.zeros(positive(x)),
    "a size among others": lambda x: x.new_zeros([2, positive(x)]),
    "a size by keyword": lambda x: torch.full(size=(positive(x),), fill_value=1.0),
    "a bound": lambda x: x[: positive(x)],
    "an index": lambda x: x[positive(x)],
    "a dimension": lambda x: x[None].sum(positive(x) % 2),
    "a range": lambda x: torch.arange(positive(x)),
    "a number of rows": lambda x: x.topk(positive(x)).values,
    "a shift": lambda x: x.roll(positive(x)),
    "a repetition": lambda x: [x] * positive(x),
    "a loop": lambda x: [x for _ in range(positive(x))],
    "a key": lambda x: {0: x}.get(positive(x)),
    "a text": lambda x: f"{positive(x)}",
    "a real number": lambda x: float(positive(x)),
    "a seed": lambda x: torch.manual_seed(positive(x)) and x,
}


@pytest.mark.parametrize("name", VALUES)
def test_what_has_to_be_known_is_refused_with_its_line(name: str) -> None:
    with pytest.raises(RuntimeError, match=r"asks for the value of .*test_integers_of_tensors.py"):
        jit(VALUES[name])(INPUTS[0])


def _filled(x: Tensor, i: Tensor) -> Tensor:
    x = x.clone()
    x[[0, i],] = 9.0
    return x


PLACES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "in a tuple": lambda x, i: x[[0, i],],
    "of a later dimension": lambda x, i: x[:, [0, i]],
    "several": lambda x, i: x[[0, 1], [0, i]],
    "in a list of many": lambda x, i: x[[0, i] * 20],
    "written to": _filled,
}


@pytest.mark.parametrize("name", PLACES)
def test_a_list_of_places_may_have_a_tensor(name: str) -> None:
    program, x = PLACES[name], torch.arange(9.0).view(3, 3)
    compiled = jit(program)
    for place in (1, 0, 2):
        i = torch.tensor(place)
        assert torch.equal(compiled(x, i), program(x, i))
