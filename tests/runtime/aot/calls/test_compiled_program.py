"""What one call does: which ways it takes for which programs, what it notes when it fails, and how
writes reach the caller's tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx, nn

import runtime
from runtime.aot import aot_function, nop


def leaf(*values: float) -> Any:
    return runtime.wrap(torch.tensor(values), requires_grad=True)


def added(x: Any) -> Any:
    x.add_(1)
    return x * 2


class TestWrites:
    @pytest.mark.parametrize("counted", [0, 1, 2, 3])
    @pytest.mark.parametrize("recorded", [False, True])
    def test_the_version_advances_as_often_as_the_program_has_written(
        self, counted: int, recorded: bool
    ) -> None:
        def f(x: Any, w: Any) -> Any:
            for _ in range(counted):
                x.add_(w if recorded else 1)
            return w * 1

        x: Any = runtime.wrap(torch.zeros(2))
        aot_function(f, nop)(x, leaf(1.0, 1.0))
        assert x.tolist() == [counted] * 2 and x._version == counted
        assert x.requires_grad is (recorded and counted > 0)

    @pytest.mark.parametrize("counted", [0, 1, 2])
    def test_plain_tensors_are_written_together(self, counted: int) -> None:
        def f(*targets: Any) -> None:
            for i, t in enumerate(targets, 1):
                for _ in range(counted):
                    t.add_(i)

        targets = [torch.zeros(2), torch.zeros(3), nn.Parameter(torch.zeros(1), False)]
        aot_function(f, nop)(*targets)
        assert [t.tolist() for t in targets] == [[counted] * 2, [2 * counted] * 3, [3 * counted]]
        assert [t._version for t in targets] == [counted] * 3

    def test_what_a_list_cannot_take_is_written_alone(self) -> None:
        def f(*targets: Any) -> None:
            for t in targets:
                t.add_(torch.ones(2) * 3)

        def targets() -> list[torch.Tensor]:
            return [
                torch.full((2,), 2j).conj(),
                torch.zeros(2),
                torch.full((2,), 2j).conj().imag,
            ]

        found, expected = targets(), targets()
        aot_function(f, nop)(*found)
        f(*expected)
        assert [t.tolist() for t in found] == [t.tolist() for t in expected]
        assert [t._version for t in found] == [1, 1, 1]

    @pytest.mark.parametrize("size", [2, 3])
    def test_an_expanded_dimension_is_written_once(self, size: int) -> None:
        def by_columns(x: Any, new: Any) -> None:
            for i in range(size):
                x[:, i].copy_(new[:, i])

        base, expected = torch.zeros(2, 1), torch.zeros(2, 1)
        f = aot_function(by_columns, nop)
        for last in (2.0, 3.0):
            new = torch.tensor([[1.0] * size, [2.0] * (size - 1) + [last]])
            f(base.expand(2, size), new)
            by_columns(expected.expand(2, size), new)
            assert base.tolist() == expected.tolist() == [[1.0], [last]]

    def test_an_expanded_dimension_of_one_is_like_any_other(self) -> None:
        base = torch.zeros(3)
        target = base.as_strided((1, 3), (0, 1))
        aot_function(lambda x, new: x.copy_(new), nop)(target, torch.tensor([[1.0, 2.0, 3.0]]))
        assert base.tolist() == [1.0, 2.0, 3.0]


def failing(module: fx.GraphModule, inputs: list[Any]) -> Any:
    """A compiler whose graph fails before it writes."""

    def run(*args: Any) -> Any:
        raise ValueError("graph")

    return run


def test_a_call_whose_graph_fails_leaves_its_arguments_and_says_nothing_of_them() -> None:
    x = torch.zeros(2)
    with pytest.raises(ValueError, match="graph") as caught:
        aot_function(added, failing)(x)
    assert x.tolist() == [0.0, 0.0] and not getattr(caught.value, "__notes__", [])


def test_a_write_without_grad_mode_leaves_the_history_of_an_argument() -> None:
    def f(x: Any, w: Any) -> Any:
        with torch.no_grad():
            x.mul_(2)
        return w * 3

    x, w = leaf(1.0), leaf(1.0)
    given = x * 5
    aot_function(f, nop)(given, w)
    (g,) = runtime.autograd.grad(given, x)
    assert given.tolist() == [10.0] and g.tolist() == [5.0]


def test_an_argument_with_overlaps_may_begin_anywhere_in_its_storage() -> None:
    def f(x: Any) -> Any:
        x[0].add_(1)
        return x * 1

    g = aot_function(f, nop)
    for start in (0, 2, 1, 0):
        base, expected = torch.arange(6.0), torch.arange(6.0)
        f(expected[start : start + 4].unfold(0, 2, 1))
        found = g(base[start : start + 4].unfold(0, 2, 1))
        assert base.equal(expected) and found.equal(expected[start : start + 4].unfold(0, 2, 1))


def test_an_inference_tensor_that_a_derivative_needs_is_refused_as_anywhere() -> None:
    with torch.inference_mode():
        t = torch.ones(1)
    f = aot_function(lambda x, t: x * t, nop)
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        f(leaf(1.0), t)


def test_a_program_that_seeds_draws_and_leaves_the_generator_as_without_the_compiler() -> None:
    def f(x: Any) -> Any:
        torch.manual_seed(3)
        return x * torch.rand(2)

    def run(f: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        return [*(f(torch.ones(2)) for _ in range(3)), torch.rand(2)]

    torch.testing.assert_close(run(aot_function(f, nop)), run(f), rtol=0, atol=0)


def test_a_result_that_the_program_makes_a_leaf_is_one() -> None:
    y: Any = aot_function(lambda x: (x * 2).requires_grad_(), nop)(torch.ones(2))
    assert y.is_leaf and y.requires_grad
    (y * 3).sum().backward()
    assert y.grad.tolist() == [3.0, 3.0]


def test_a_result_that_is_made_outside_of_inference_mode_is_no_inference_tensor() -> None:
    def f(x: Any) -> Any:
        with torch.inference_mode(False):
            y = torch.ones(2) * 2
        return y, x * 2

    with torch.inference_mode():
        expected, found = f(torch.ones(2)), aot_function(f, nop)(torch.ones(2))
    assert (
        [t.is_inference() for t in found] == [t.is_inference() for t in expected] == [False, True]
    )
    assert [t.tolist() for t in found] == [[2.0, 2.0]] * 2


def test_a_result_that_is_made_in_inference_mode_is_an_inference_tensor() -> None:
    def f(x: Any) -> Any:
        with torch.inference_mode():
            y, view, same = x * 2, x[1:], x
            parts = y[:1], y.sum().expand(3), y.conj()
        return (*parts, y, view, same, x * 3)

    x = torch.ones(2, dtype=torch.complex64)
    for expected, found in zip(f(x), aot_function(f, nop)(x), strict=True):
        assert found.is_inference() == expected.is_inference()
        assert found.stride() == expected.stride() and torch.equal(found, expected)


def test_a_failed_call_notes_what_its_graph_may_have_written() -> None:
    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        def run(values: list[Any]) -> Any:
            raise ValueError("graph")

        run._boxed_call, run.placed = True, {0: 1, 1: 1}  # type: ignore[attr-defined]
        return run

    w = torch.zeros(3)

    def f(x: Any) -> Any:
        w.add_(1)
        return added(x)

    with pytest.raises(ValueError, match="graph") as caught:
        aot_function(f, compiler)(torch.zeros(2))
    (note,) = caught.value.__notes__
    assert (
        "an argument, float32[2], has its new value; a tensor that the function closes over, "
        "float32[3], has its new value"
    ) in note
