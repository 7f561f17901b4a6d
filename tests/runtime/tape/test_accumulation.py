"""How gradients add up in the engine and become ``.grad``: whose memory, which layout, which dtype.
Torch's engine is the oracle."""

from typing import Any

import pytest
import torch

import runtime
from tests.runtime.of_torch import RESULTS_HAVE_A_GRAD_DTYPE

from ..scenarios import OURS, same


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
        x: Any = (
            (storage if lib.name == "torch" else OURS.tensor(storage.tolist()))
            .as_strided((3, 3), strides)
            .detach()
        )
        x.requires_grad_()
        x.sum().backward()
        found = [x.grad.stride()]
        for cotangent in (
            torch.ones(3, 3),
            torch.ones(3, 3).t(),
            torch.ones(9, 3)[::3],
            torch.ones(()).expand(3, 3),
        ):
            x.grad = None
            (x * 2).backward(cotangent)
            found.append(x.grad.stride())
            x.grad = None
            x.view_as(x).backward(cotangent)
            found.append(x.grad.stride())
        return found

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


def test_the_dtype_of_gradients_of_a_result_is_told_where_torch_tells_it() -> None:
    result = leaf(1.0) * 2
    if RESULTS_HAVE_A_GRAD_DTYPE:
        assert result.grad_dtype is (torch.ones(1, requires_grad=True) * 2).grad_dtype
        return
    with pytest.raises(RuntimeError, match="can only be accessed on leaf tensors"):
        _ = result.grad_dtype


def test_the_dtype_of_gradients_is_set_of_leaves_and_before_the_first() -> None:
    x = leaf(1.0)
    with pytest.raises(RuntimeError, match="can only be set on leaf tensors"):
        (x * 2).grad_dtype = torch.float64
    with pytest.raises(RuntimeError, match=r"must be a torch\.dtype or None, but got int"):
        x.grad_dtype = 3
    x.sum().backward()
    with pytest.raises(RuntimeError, match="already a gradient with dtype"):
        x.grad_dtype = torch.float64
    with pytest.raises(RuntimeError, match="attempting to assign a gradient with dtype"):
        x.grad = torch.zeros(1, dtype=torch.float64)


@pytest.mark.skipif(
    not hasattr(torch.autograd.grad_mode, "enforce_grad_layout_policy"),
    reason="this torch always enforces the layout of gradients, as 2.12 does",
)
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


def sparse(g: Any) -> Any:
    """The gradient of a table of which some rows were looked up."""
    return g.to_dense() if g.layout is torch.sparse_coo else g


@pytest.mark.parametrize(
    "order", ["sparse first", "dense first", "sparse twice", "both, then both"]
)
@pytest.mark.parametrize("end", ["leaf", "result"])
@pytest.mark.parametrize("passes", [1, 2])
def test_sparse_and_dense_gradients_add_up_in_any_order(order: str, end: str, passes: int) -> None:
    """Within one pass, and from pass to pass."""

    def scenario(lib: Any) -> Any:
        table = lib.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        used = table if end == "leaf" else table * 1
        seen: list[Any] = []
        if end == "result":
            used.register_hook(lambda g: seen.append(str(g.layout)))

        def looked_up() -> Any:
            return torch.nn.functional.embedding(torch.tensor([0, 2, 2]), used, sparse=True).sum()

        def whole() -> Any:
            return (used * used).sum()

        uses = {
            "sparse first": [whole, looked_up],  # the node that was made last runs first
            "dense first": [looked_up, whole],
            "sparse twice": [looked_up, looked_up],
            "both, then both": [whole, looked_up, whole, looked_up],
        }[order]
        if passes == 1:
            torch.stack([use() for use in uses]).sum().backward()
        else:
            for use in reversed(uses):
                use().backward(retain_graph=True)
        return seen, sparse(table.grad), str(table.grad.layout)

    same(scenario)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("end", ["leaf", "result"])
def test_recorded_gradients_add_up_and_can_be_differentiated(end: str) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        y = x if end == "leaf" else x * 3
        (y**3).sum().backward(create_graph=True)
        (y**2 + y**4).sum().backward(create_graph=True)
        found = x.grad, lib.autograd.grad(x.grad.sum(), x)
        x.grad = None
        return found

    same(scenario)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_a_recorded_gradient_is_added_to_one_that_was_not_recorded_and_the_other_way() -> None:
    def scenario(lib: Any) -> Any:
        found = []
        for first, second in ((False, True), (True, False)):
            x = lib.tensor([1.0, 2.0], requires_grad=True)
            for recorded in (first, second):
                (x**3).sum().backward(create_graph=recorded)
            found.append((x.grad, x.grad.requires_grad))
            x.grad = None
        return found

    same(scenario)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_sparse_gradients_are_added_to_recorded_ones() -> None:
    def scenario(lib: Any) -> Any:
        table = lib.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
        torch.nn.functional.embedding(torch.tensor([0, 2]), table, sparse=True).sum().backward()
        before = str(table.grad.layout)
        lib.autograd.backward((table * table).sum(), create_graph=True)
        found = before, str(table.grad.layout), table.grad, table.grad.requires_grad
        table.grad = None
        return found

    same(scenario)


@pytest.mark.parametrize("n", [8, 4096, 5000])
@pytest.mark.parametrize("held", [False, True])
def test_a_sum_in_place_changes_no_gradient_that_somebody_holds(n: int, held: bool) -> None:
    """Large sums go into the memory of the first gradient, unless a hook or a node has it too."""

    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0] * n, requires_grad=True)
        y = x * 1
        kept: list[Any] = []
        parts = [y * 2, y * 3, y.view(n) * 4, y[:n] * 5]
        for part in parts:
            part.grad_fn.register_hook(lambda gi, go: kept.append(gi[0]) if held else None)
        (parts[0] + parts[1] + parts[2] + parts[3]).sum().backward()
        return [g[0] for g in kept], [g[-1] for g in kept], x.grad[0], x.grad[-1]

    same(scenario)


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 0, 2), (2, 0, 1), (0, 2, 1)])
@pytest.mark.parametrize("shape", [(2, 1, 3), (1, 4, 1), (3, 2, 1)])
def test_dimensions_of_one_element_leave_a_gradient_the_layout_of_its_leaf(
    shape: tuple[int, ...], order: tuple[int, ...]
) -> None:
    """The steps of those dimensions themselves are nobody's promise."""

    def scenario(lib: Any) -> Any:
        x = lib.tensor(torch.ones(shape).tolist()).permute(order).detach().requires_grad_()
        (x * x).sum().backward()
        (x * x).sum().backward()
        return [
            (n, step) for n, step in zip(x.shape, x.grad.stride(), strict=True) if n > 1
        ], x.grad

    same(scenario)
