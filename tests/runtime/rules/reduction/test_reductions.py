"""Reductions agree with torch's engine under every nesting of two transforms."""

from typing import Any

import pytest
import torch

from runtime import func, unwrap, wrap
from runtime.autograd import grad

from ..agreement import Problem, check, check_problem

REAL = """
sum mean nansum nanmean prod var var_mean std std_mean amax amin aminmax median nanmedian mode
kthvalue logsumexp linalg.vector_norm norm renorm dist any all argmax argmin count_nonzero quantile
nanquantile
"""
COMPLEX = """
sum mean prod var var_mean std std_mean logsumexp linalg.vector_norm norm renorm dist any all
count_nonzero
"""
DOUBLE, COMPLEX_DOUBLE = torch.float64, torch.complex128


@pytest.mark.parametrize("name", REAL.split())
def test_real(name: str) -> None:
    check(name, DOUBLE, limit=6)


@pytest.mark.parametrize("name", COMPLEX.split())
def test_complex(name: str) -> None:
    check(name, COMPLEX_DOUBLE, limit=6)


@pytest.mark.parametrize("variant", ["reduction_no_dim", "reduction_with_dim"])
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema(name: str, variant: str) -> None:
    check(name, DOUBLE, variant)


@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, float("inf")])
def test_distances_between_rows_in_all_orders(p: float) -> None:
    """torch has no second derivative of cdist; the norm of all differences has."""

    def reference(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.linalg.vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, -1),)

    inputs = torch.randn(4, 3, dtype=DOUBLE), torch.randn(2, 3, dtype=DOUBLE)
    check_problem(
        Problem(lambda x, y: (torch.cdist(x, y, p),), inputs, (0, 1), f"cdist p={p}", reference)
    )


ROOTS = {
    "std": lambda x: x.std(),
    "std_mean": lambda x: torch.std_mean(x)[0],
    "norm": lambda x: (x - 1).norm(),
    "cdist": lambda x: torch.cdist(x.view(2, 2), x.view(2, 2)).sum(),
    "cdist by a product": lambda x: torch.cdist(
        x.view(2, 2), x.view(2, 2), compute_mode="use_mm_for_euclid_dist"
    ).sum(),
    "pdist": lambda x: torch.nn.functional.pdist(x.view(2, 2)).sum(),
}


@pytest.mark.parametrize("name", ROOTS)
def test_all_derivatives_of_a_root_of_zero_are_zero(name: str) -> None:
    """As torch's first derivatives, and its second one of std. The square root
    alone has none there."""
    x = torch.ones(4)
    f = ROOTS[name]
    assert func.grad(f)(x).tolist() == [0.0] * 4
    assert func.hessian(f)(x).tolist() == [[0.0] * 4] * 4


@pytest.mark.parametrize("op", [torch.amax, torch.amin])
def test_ties_share_the_gradient_equally(op: object) -> None:
    x = torch.tensor([[1.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    (g,) = func.vjp(lambda x: op(x, 1), x)[1](torch.tensor([3.0, 6.0]))  # type: ignore[operator]
    assert g.tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_product_with_zeros(zeros: int) -> None:
    x = torch.arange(1.0, 5.0, dtype=DOUBLE)
    x[:zeros] = 0
    check_problem(Problem(lambda x: (x.prod(), x.cumprod(0)), (x,), (0,), f"{zeros} zeros"))


@pytest.mark.parametrize(
    "op", [torch.sum, torch.mean, torch.prod, torch.var, torch.logsumexp, torch.linalg.vector_norm]
)
def test_zero_size_and_scalars(op: object) -> None:
    """A dimension of no elements, and a 0-d tensor along dimension -1."""
    for shape, dim in (((0, 3), 1), ((), -1)):
        x = torch.randn(shape, dtype=DOUBLE)
        if op is torch.var and not shape:
            continue  # one element has no variance
        check_problem(Problem(lambda x, dim=dim: (op(x, dim=dim),), (x,), (0,), f"{op} of {shape}"))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("op", "name"), [(torch.var_mean, "VarMeanBackward0"), (torch.std_mean, "StdMeanBackward0")]
)
def test_spread_and_mean_are_one_node_with_two_outputs(op: Any, name: str) -> None:
    x = wrap(torch.tensor([[1.0, 3.0], [2.0, 6.0]]), requires_grad=True)
    spread, mean = op(x, 0)
    node = mean.grad_fn
    assert spread.grad_fn is node and (spread.output_nr, mean.output_nr) == (0, 1)
    assert node.name() == name
    only_mean, only_spread = (
        grad(mean.sum(), x, retain_graph=True),
        grad(spread.sum(), x, retain_graph=True),
    )
    assert unwrap(only_mean[0]).tolist() == [[0.5, 0.5]] * 2
    node.register_prehook(lambda grads: (grads[0] * 3, grads[1] * 2))
    both = grad(spread.sum() + mean.sum(), x)
    torch.testing.assert_close(unwrap(both[0]), unwrap(3 * only_spread[0] + 2 * only_mean[0]))


@pytest.mark.parametrize("bounds", ["lengths", "offsets"])
@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
def test_segments(bounds: str, reduce: str) -> None:
    """With a batch in the data, in the bounds, or in both. torch has no second derivative."""
    data = torch.randn(5, 3, dtype=DOUBLE)
    where = torch.tensor([2, 0, 3] if bounds == "lengths" else [0, 2, 2, 5])

    def reduced(data: torch.Tensor, where: torch.Tensor) -> tuple[torch.Tensor, ...]:
        options = {bounds: where, "axis": 0, "unsafe": True, "initial": 1.0}
        return (torch.segment_reduce(data, reduce, **options),)  # type: ignore[arg-type]

    p = Problem(reduced, (data, where), (0,), f"{reduce} by {bounds}")
    check_problem(p, ("vjp", "vmap", "vmap_vjp", "vjp_vmap"))
