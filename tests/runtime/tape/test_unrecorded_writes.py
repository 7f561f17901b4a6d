"""Writes that nothing records: without grad mode, under a detached tensor, to ``.data`` and to
``.grad``. Torch is the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap

from ..view_scenarios import OURS, gradients, name, no_grad_view, same


@pytest.mark.parametrize("view", [lambda y: y[1:], lambda y: y.view(2, 2)[0]])
def test_a_write_that_nothing_recorded_leaves_a_view_the_history_of_its_base(view: Any) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(4)
        y = x * x
        v = view(y)
        with torch.no_grad():
            y.add_(1)
        return v, v.requires_grad, gradients(lib, v * 3, x)

    same(scenario)


def test_parts_of_what_has_no_history_may_be_used_after_a_write_to_the_whole() -> None:
    def scenario(lib: Any) -> Any:
        whole = lib.tensor([1.0, 2.0, 3.0, 4.0]).double()
        first, _ = whole.split(2)
        whole.zero_()
        x = lib.leaf(2)
        return first.requires_grad, first.grad_fn, gradients(lib, (first + 1) * x, x)

    same(scenario)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_change_of_geometry_without_grad_mode_keeps_the_gradient(mode: Any) -> None:
    """Torch keeps the history as well, but its gradient then has the sizes from before."""
    x = OURS.leaf(2, 3)
    y = x * x
    with mode():
        y.transpose_(0, 1)
        assert y.requires_grad and y.view(-1, 1, 2).requires_grad
    weights = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    (found,) = OURS.grad((y * weights).sum(), (x,))
    torch.testing.assert_close(unwrap(found), 2 * unwrap(x).detach() * weights.T)


def test_a_view_of_another_dtype_transposed_in_place_has_the_gradient_of_one_out_of_place() -> None:
    """Torch forgets the transpose there, and returns the gradient at the wrong places."""

    def gradient(transpose: Callable[[Any], Any]) -> Any:
        x = runtime.wrap(torch.arange(9.0).reshape(3, 3).to(torch.complex64), True)
        b = transpose(torch.view_as_real(x.clone()))
        b += 1
        weights = torch.arange(18.0).reshape(3, 3, 2)
        return unwrap(OURS.grad((b * weights).sum(), (x,))[0])

    expected = torch.view_as_complex(torch.arange(18.0).reshape(3, 3, 2)).T
    torch.testing.assert_close(gradient(lambda b: b.transpose(0, 1)), expected)
    torch.testing.assert_close(gradient(lambda b: b.transpose_(0, 1)), expected)


def test_without_grad_mode_leaves_and_their_views_may_be_written() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(4)
        with torch.no_grad():
            x.add_(1)
            x[0].mul_(5)
            x.view(2, 2)[1].sub_(1)
            x.split(2)[0].mul_(2)
            x[1:].copy_(x[:3] * 2)
        return x, x._version, x.is_leaf, x.requires_grad, gradients(lib, x * x, x)

    same(scenario)


def test_detaching_in_place_leaves_views_their_history() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3)
        y = x * 1
        v = y[1:]
        y.detach_()
        leaf = lib.leaf(3).detach_()
        return (
            y.requires_grad,
            y.is_leaf,
            v.requires_grad,
            name(v),
            leaf.requires_grad,
            gradients(lib, v * v, x),
        )

    same(scenario)


@pytest.mark.parametrize("write_first", [True, False])
def test_a_view_whose_base_was_written_and_detached_has_no_history_to_give(
    write_first: bool,
) -> None:
    """Torch gives a history that leads nowhere."""
    y = OURS.leaf(3) * 1
    v = y[1:]
    if write_first:
        y.mul_(2)
    y.detach_()
    if not write_first:
        y.mul_(2)
    with pytest.raises(
        RuntimeError, match=r"both modified inplace and detached inplace \(detach_\)"
    ):
        v.sum().backward()
    fresh = y[:2]
    y.add_(1)
    assert not (fresh * 2).requires_grad


def test_a_view_that_is_made_a_leaf_has_a_gradient_of_its_own() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0, 3.0])
        v = x[1:].requires_grad_()
        return v.is_leaf, v._is_view(), x.requires_grad, gradients(lib, v * v, v)

    same(scenario)


@pytest.mark.parametrize(
    "new",
    [
        lambda lib: lib.tensor([5.0, 6.0]).double(),
        lambda lib: lib.tensor([5.0, 6.0, 7.0]).double(),
        lambda lib: lib.tensor([5.0, 6.0, 7.0]),
        lambda lib: lib.leaf(3),
    ],
    ids=("same", "shape", "dtype", "leaf"),
)
def test_assigning_data_replaces_the_tensor_under_a_leaf(new: Callable[[Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2)
        x.data = new(lib)
        return x, x.requires_grad, x.is_leaf, x._version, gradients(lib, x * x, x)

    same(scenario)


def test_assigning_data_of_the_same_kind_leaves_what_was_recorded_before() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2)
        y = x * x
        x.data = lib.tensor([7.0, 8.0]).double()
        return gradients(lib, y, x)

    same(scenario)


def test_set_and_swap_without_grad_mode() -> None:
    def scenario(lib: Any) -> Any:
        x, y = lib.leaf(2), lib.tensor([7.0, 8.0, 9.0])
        with torch.no_grad():
            x.set_(lib.tensor([3.0, 4.0, 5.0]).double())
        found = x, x.requires_grad, gradients(lib, x * x, x)
        torch.utils.swap_tensors(x, y)
        return found, x, y, x.requires_grad, y.requires_grad, gradients(lib, y * y, y)

    same(scenario)


def test_the_gradient_may_be_zeroed_and_is_added_to_in_place() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2)
        (x * x).sum().backward()
        kept = x.grad
        kept.zero_()
        (x * x * x).sum().backward()
        mine = lib.leaf(2).detach()
        x.grad = mine
        (x * x).sum().backward()
        return kept, x.grad, x.grad is mine

    same(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x,
        lambda x: torch.ones(1, dtype=torch.float64),
        lambda x: torch.ones(2, dtype=torch.float64, device="meta"),
    ],
    ids=("itself", "shape", "device"),
)
def test_what_cannot_be_a_gradient(wrong: Callable[[Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2)
        x.grad = wrong(x)

    same(scenario, error=True)


def test_stale_views_may_be_read_where_nothing_is_recorded() -> None:
    def scenario(lib: Any) -> Any:
        y = lib.leaf(4) * 1
        v = no_grad_view(y)
        y.mul_(2)
        with torch.no_grad():
            v.add_(1)
            total = v + v
        return v.detach(), v > 3, total, gradients(lib, y, y)

    same(scenario)
