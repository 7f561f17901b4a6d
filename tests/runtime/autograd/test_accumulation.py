"""How gradients add up in the engine and become ``.grad``: whose memory, which layout, which dtype. Torch's engine is the oracle."""

from typing import Any

import pytest
import torch

import runtime

from .scenarios import OURS, same


def leaf(*values: float) -> Any:
    return OURS.tensor(list(values), requires_grad=True)


def test_gradients_that_arrive_by_several_ways_are_added_without_touching_those_of_others() -> None:
    def scenario(lib: Any) -> Any:
        x, y = (lib.tensor([1.0] * 5000, requires_grad=True) for _ in range(2))
        seed = lib.tensor([1.0] * 5000)
        (x + x + y + x).backward(seed)
        x.grad.mul_(2)
        return x.grad[0], y.grad[0], seed[0]

    assert same(scenario) == [6.0, 1.0, 1.0]


@pytest.mark.parametrize("n", [3, 5000])
def test_leaves_do_not_share_memory_through_their_gradients(n: int) -> None:
    def scenario(lib: Any) -> Any:
        leaves = [lib.tensor([1.0] * n, requires_grad=True) for _ in range(3)]
        total = leaves[0] + leaves[1] + leaves[2].view(n)
        total.backward(lib.tensor([1.0] * n))
        for t in leaves:
            t.grad.add_(1)
        return [t.grad[0] for t in leaves]

    assert same(scenario) == [2.0, 2.0, 2.0]


@pytest.mark.parametrize("layout", ["contiguous", "with gaps"])
def test_a_large_sum_is_added_up_in_the_memory_of_its_first_part(layout: str) -> None:
    parts: list[int] = []

    class Part(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            found = g * 1 if layout == "contiguous" else g.repeat(1, 2)[:, ::2]
            parts.append(found.data_ptr())
            return found

    x = runtime.wrap(torch.ones(80, 100), True)
    y = x * 1  # so that the sum belongs to a node, not to a leaf
    seen: list[int] = []
    y.register_hook(lambda g: seen.append(g.data_ptr()))
    (Part.apply(y) + Part.apply(y)).sum().backward()
    assert x.grad is not None and bool((x.grad == 2).all())
    assert (seen == parts[:1]) is (layout != "with gaps")


def test_a_gradient_nobody_else_holds_becomes_grad_without_a_copy() -> None:
    x = OURS.tensor(torch.randn(8, 8).tolist(), requires_grad=True)
    pointers = []
    y = x * 2
    y.grad_fn.register_hook(lambda gi, go: pointers.append(gi[0].data_ptr()))
    y.sum().backward()
    assert x.grad.data_ptr() == pointers[0]


@pytest.mark.parametrize(
    "strides",
    [(1, 3), (8, 2), (0, 1)],
    ids=["transposed, dense", "with gaps", "overlapping"],
)
def test_gradients_are_laid_out_as_torch_lays_them_out(strides: tuple[int, int]) -> None:
    def scenario(lib: Any) -> Any:
        storage = torch.arange(40.0)
        x: Any = (storage if lib.name == "torch" else OURS.tensor(storage.tolist())).as_strided((3, 3), strides).detach()
        x.requires_grad_()
        x.sum().backward()
        first = x.grad.stride()
        x.grad = None
        (x * 2).backward(torch.ones(3, 3).t())
        return first, x.grad.stride()

    same(scenario)


def test_accumulation_is_in_place() -> None:
    x = leaf(1.0, 2.0)
    (x * x).sum().backward()
    grad, pointer = x.grad, x.grad.data_ptr()
    (x * x).sum().backward()
    assert x.grad is grad and x.grad.data_ptr() == pointer and grad.tolist() == [4.0, 8.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, None], ids=str)
def test_leaves_may_ask_for_gradients_of_another_dtype(dtype: Any) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x * 2
        before = str(x.grad_dtype)
        x.grad_dtype = dtype
        (y + x * 3).sum().backward()
        (g,) = lib.autograd.grad((x * 3).sum(), x)
        found = [before, str(x.grad_dtype), str(x.grad.dtype), x.grad, str(g.dtype)]
        x.grad = None
        x.grad = torch.zeros(2, dtype=dtype or torch.float16)
        return found

    same(scenario)


def test_the_dtype_of_gradients_belongs_to_leaves_and_is_settled_before_the_first() -> None:
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="can only be accessed on leaf tensors"):
        _ = (x * 2).grad_dtype
    with pytest.raises(RuntimeError, match="can only be set on leaf tensors"):
        (x * 2).grad_dtype = torch.float64
    with pytest.raises(RuntimeError, match=r"must be a torch\.dtype or None, but got int"):
        x.grad_dtype = 3
    x.sum().backward()
    with pytest.raises(RuntimeError, match="already a gradient with dtype"):
        x.grad_dtype = torch.float64
    with pytest.raises(RuntimeError, match="attempting to assign a gradient with dtype"):
        x.grad = torch.zeros(1, dtype=torch.float64)


@pytest.mark.parametrize("enforced", [True, False])
def test_the_layout_of_gradients_need_not_be_enforced(enforced: bool) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        with lib.autograd.enforce_grad_layout_policy(enforced):
            x.exp().backward(torch.ones(2, 2).t() * torch.ones(2, 2).t())
            (x.t() * lib.tensor([1.0, 2.0])).t().sum().backward()
        y = lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        with lib.autograd.enforce_grad_layout_policy(enforced):
            (y.t() * lib.tensor([[1.0, 2.0], [3.0, 4.0]])).sum().backward()
        return x.grad.stride(), y.grad.stride(), y.grad

    same(scenario)
