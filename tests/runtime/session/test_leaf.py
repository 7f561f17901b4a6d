"""A plain tensor of torch that requires grad is a leaf of our tape. Its gradient arrives where
torch would put it."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import runtime


class Square(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g * ctx.saved_tensors[0]


def plain() -> torch.Tensor:
    return torch.tensor([1.0, 2.0], requires_grad=True)


def leaf_of(t: torch.Tensor) -> Any:
    """The node that accumulates the gradient of a plain tensor, which its leaf has."""
    return Square.apply(t).grad_fn.next_functions[0][0]


def test_a_plain_tensor_is_the_same_leaf_every_time() -> None:
    t = plain()
    assert leaf_of(t) is leaf_of(t) and leaf_of(t) is not leaf_of(plain())


def test_gradients_add_up_in_the_plain_tensors_grad() -> None:
    t = plain()
    Square.apply(t).sum().backward()
    first = t.grad
    Square.apply(t).sum().backward()
    assert t.grad is first and type(first) is torch.Tensor and first.tolist() == [4.0, 8.0]


def test_hooks_of_the_plain_tensor_run() -> None:
    t, seen = plain(), []
    Square.apply(t)
    handle = t.register_hook(lambda g: g * 10)
    t.register_post_accumulate_grad_hook(lambda p: seen.append(p))
    Square.apply(t).sum().backward()
    handle.remove()
    Square.apply(t).sum().backward()
    assert t.grad is not None and t.grad.tolist() == [22.0, 44.0]
    assert [p is t for p in seen] == [True, True]


def test_other_data_make_another_leaf() -> None:
    t = plain()
    before = leaf_of(t)
    t.data = torch.tensor([3.0, 4.0])
    assert leaf_of(t) is not before
    Square.apply(t).sum().backward()
    assert t.grad is not None and t.grad.tolist() == [6.0, 8.0]


def test_the_leaf_goes_with_the_plain_tensor(without_collector: None) -> None:
    t = plain()
    held = weakref.ref(leaf_of(t).variable)
    out = Square.apply(t).sum()
    del t
    assert held() is not None
    out.backward()
    del out
    assert held() is None


def test_a_tensor_that_is_frozen_before_the_backward_pass_gets_no_gradient() -> None:
    t = plain()
    out = Square.apply(t).sum()
    t.requires_grad_(False)
    out.backward()
    assert t.grad is None


class Times(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.factor, None


class Rows(runtime.autograd.Function):
    """The sum of the second row of a matrix, with a sparse gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x[1].sum()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return runtime.wrap(_sparse(torch.tensor([[1]]), g.detach().expand(1, 2)))


@pytest.mark.parametrize("uses_after", [0, 1])
def test_a_hook_that_is_registered_after_the_first_use_sees_the_gradients_of_all(
    uses_after: int,
) -> None:
    t, seen = plain(), []
    out = Times.apply(t, 2).sum()

    def hook(g: Any) -> Any:
        seen.append(g.tolist())
        return g * 10

    t.register_hook(hook)
    for _ in range(uses_after):
        out = out + Times.apply(t, 3).sum()
    out.backward()
    total = 2.0 + 3 * uses_after
    assert seen == [[total, total]] and t.grad is not None and t.grad.tolist() == [10 * total] * 2


def test_hooks_that_are_assigned_between_two_uses_count_for_both() -> None:
    t = plain()
    t.register_hook(lambda g: g * 10)
    first = Times.apply(t, 2).sum()
    t._backward_hooks = None
    (first + Times.apply(t, 3).sum()).backward()
    assert t.grad is not None and t.grad.tolist() == [5.0, 5.0]


def test_a_hook_that_returns_another_size_is_refused() -> None:
    t = plain()
    out = Times.apply(t, 2).sum()
    t.register_hook(lambda g: torch.ones(3))
    with pytest.raises(RuntimeError, match="has changed the size of value"):
        out.backward()


def test_a_hook_after_the_accumulation_returns_nothing() -> None:
    t = plain()
    t.register_post_accumulate_grad_hook(lambda p: p)
    with pytest.raises(RuntimeError, match="Tensor post accumulate grad hooks should return None"):
        Times.apply(t, 2).sum().backward()


def test_a_hook_after_the_accumulation_runs_for_a_frozen_tensor() -> None:
    t, seen = plain(), []
    t.register_post_accumulate_grad_hook(lambda p: seen.append((p is t, p.grad)))
    out = Times.apply(t, 2).sum()
    t.requires_grad_(False)
    out.backward()
    assert seen == [(True, None)]


def test_gradients_have_the_dtype_that_the_plain_tensor_wants() -> None:
    for before, after in ((torch.float64, torch.float16), (torch.float16, None)):
        t: Any = plain()
        t.grad_dtype = before
        first = Times.apply(t, 2).sum()
        first.backward()
        assert t.grad.dtype is before
        t.grad, t.grad_dtype = None, after
        Times.apply(t, 2).sum().backward()
        assert t.grad.dtype is (after or torch.float32) and t.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("order", ["ds", "sd", "ss"])
def test_dense_and_sparse_gradients_add_up_as_torchs(order: str) -> None:
    def added(t: torch.Tensor) -> tuple[Any, ...]:
        return t.grad, t.grad.layout, t.grad.to_dense().tolist()  # type: ignore[union-attr]

    of_torch = torch.ones(2, 2, requires_grad=True)
    t = of_torch.detach().clone().requires_grad_()
    found, expected = [], []
    for kind in order:
        (Times.apply(t, 2).sum() if kind == "d" else Rows.apply(t)).backward()
        (
            of_torch * 2
            if kind == "d"
            else torch.nn.functional.embedding(torch.tensor([1]), of_torch, sparse=True)
        ).sum().backward()
        found.append(added(t))
        expected.append(added(of_torch))
    assert [f[1:] for f in found] == [e[1:] for e in expected]
    assert (found[0][0] is found[1][0]) is (expected[0][0] is expected[1][0]) is (order != "sd")


MADE: dict[str, Any] = {
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), 2 * torch.ones(1, 3)]),
    "coo": lambda: torch.eye(2).to_sparse(),
    "csr": lambda: torch.tensor([[1.0, 2.0], [0.0, 3.0]]).to_sparse_csr(),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
@pytest.mark.parametrize("layout", MADE)
def test_a_nested_or_sparse_tensor_is_one_leaf_whose_hooks_see_the_whole_gradient(
    layout: str,
) -> None:
    def total(y: Any) -> Any:
        return torch.nested.to_padded_tensor(y, 0.0).sum() if y.is_nested else y.to_dense().sum()

    def dense(g: Any) -> Any:
        return (
            torch.nested.to_padded_tensor(g, 0.0).tolist() if g.is_nested else g.to_dense().tolist()
        )

    t, seen = MADE[layout]().requires_grad_(), []
    of_torch = MADE[layout]().requires_grad_()
    t.register_hook(lambda g: seen.append(dense(runtime.unwrap(g))))
    t.register_post_accumulate_grad_hook(lambda p: seen.append(p is t))
    assert leaf_of(t) is leaf_of(t)
    (total(Times.apply(t, 2)) + total(Times.apply(t, 3))).backward()
    (total(of_torch * 2) + total(of_torch * 3)).backward()
    assert t.grad.layout is of_torch.grad.layout and dense(t.grad) == dense(of_torch.grad)
    assert seen == [dense(of_torch.grad), True]
    first = t.grad
    total(Times.apply(t, 5)).backward()
    whole = torch.tensor(dense(of_torch.grad))
    assert t.grad is first and dense(t.grad) == (2 * whole).tolist()


OTHER: dict[str, tuple[torch.Tensor, Any]] = {  # data, and others in the same memory
    "dtype": (torch.ones(2, dtype=torch.float16), lambda d: d.view(torch.bfloat16)),
    "shape": (torch.ones(2), lambda d: d[:1]),
    "strides": (torch.arange(4.0).view(2, 2), lambda d: d.t()),
    "conjugate": (torch.tensor([1.0 + 2j]), lambda d: d.conj()),
    "negative": (torch.tensor([1.0, 2.0]), lambda d: torch._neg_view(d)),
    "sizes of a sparse tensor": (
        torch.eye(2).to_sparse(),
        lambda d: _sparse(d._indices(), d._values(), 3),
    ),
}


def _sparse(indices: torch.Tensor, values: torch.Tensor, size: int = 2) -> torch.Tensor:
    return torch.sparse_coo_tensor(indices, values, (size, size), check_invariants=False)


@pytest.mark.parametrize("what", OTHER)
def test_other_data_in_the_same_memory_make_another_leaf(what: str) -> None:
    data, change = OTHER[what]
    t = data.detach().clone().requires_grad_()
    before = leaf_of(t)
    t.data = change(t.data)
    after = leaf_of(t)
    assert after is not before and leaf_of(t) is after
    assert torch.equal(runtime.unwrap(after.variable).to_dense(), t.detach().to_dense())
    assert after.variable.dtype is t.dtype


@pytest.mark.filterwarnings("ignore:Using backward.* with create_graph=True")
def test_a_recorded_pass_leaves_the_former_gradient_as_it_is() -> None:
    t, of_torch = plain(), plain()
    found = []
    for x, times in ((t, Times.apply), (of_torch, torch.mul)):
        former = torch.tensor([1.0, 2.0], requires_grad=True)
        x.grad = former
        times(x, 2).sum().backward(create_graph=True)
        assert x.grad is not None
        found.append((former.tolist(), x.grad.tolist(), x.grad.requires_grad))
    assert found[0] == found[1] == ([1.0, 2.0], [3.0, 4.0], True)


@pytest.mark.parametrize("part", ["indices", "values"])
def test_other_data_make_another_leaf_of_a_sparse_tensor(part: str) -> None:
    t = MADE["coo"]().requires_grad_()
    before, values = leaf_of(t), t.detach()._values()
    t.data = (
        _sparse(torch.tensor([[0, 1], [1, 0]]), values) if part == "indices" else 2 * t.detach()
    )
    assert leaf_of(t) is not before
    total = Times.apply(t, 2).to_dense() * torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    total.sum().backward()
    assert t.grad.to_dense().tolist() == (
        [[0.0, 4.0], [6.0, 0.0]] if part == "indices" else [[2.0, 0.0], [0.0, 8.0]]
    )


def test_a_tensor_of_onednn_is_a_leaf_of_its_own_for_every_use() -> None:
    t = torch.ones(2, 2).to_mkldnn().requires_grad_()
    assert leaf_of(t) is not leaf_of(t)  # it does not tell where its elements are
