"""``per_sample_grads``: how it composes, what it takes, and what it refuses."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from runtime import jit
from runtime.extend import Dense
from runtime.func import grad, hessian, jvp, vmap
from runtime.per_sample import PerSampleGrads, per_sample_grads

W, X = (
    torch.linspace(0.5, 1.5, 6, dtype=torch.float64),
    torch.linspace(-1, 2, 24, dtype=torch.float64).reshape(4, 6),
)


def _loss(w: Tensor, x: Tensor) -> Tensor:
    return (torch.tanh(w * x) + w @ x).square().sum()


def _norms(w: Tensor, x: Tensor) -> Tensor:
    found: Tensor = per_sample_grads(_loss)(w, x).norms()
    return found


def _loop(loss: Any, w: Tensor, x: Tensor) -> Tensor:
    leaves = [w.clone().requires_grad_() for _ in x]
    return torch.stack(
        [torch.autograd.grad(loss(leaf, row), leaf)[0] for leaf, row in zip(leaves, x, strict=True)]
    )


LOSSES: dict[str, Any] = {
    "an assignment": lambda w, x: _assigned(x, w),
    "data": lambda w, x: (x * w.data).sum() + (x * w).sum(),
    "a weighted mean with a parameter in place": lambda w, x: (x * 1).lerp_(w, 0.3).square().sum(),
    "a number of a parameter at an index": lambda w, x: (
        (x * 1).index_fill_(0, torch.tensor([1]), w[0]).square().sum()
    ),
    "a number of a parameter": lambda w, x: (x * w[0].item() * w).sum(),
    "foreach": lambda w, x: torch.stack(torch._foreach_mul([x, x], [w, w])).sum(),
    "einsum": lambda w, x: torch.einsum("ij,jk->", x.reshape(2, 3), w.reshape(3, 2)),
    "sort": lambda w, x: (w.sort()[0] * x).sum(),
    "cumsum": lambda w, x: (torch.cumsum(w, 0) * x).sum(),
    "stack": lambda w, x: torch.stack([w, x, w]).pow(2).sum(),
    "complex": lambda w, x: (torch.fft.fft(w) * x).abs().sum(),
    "a real parameter times complex numbers": lambda w, x: (
        torch.view_as_real(w * torch.complex(x, x * x)).square().sum()
    ),
    "a parameter of another dtype": lambda w, x: (w.float() * x).square().sum(),
    "no derivative": lambda w, x: (torch.div(x, w, rounding_mode="floor") + x * w).square().sum(),
    "svd": lambda w, x: (torch.linalg.svdvals(w.reshape(2, 3)) * x[:2]).sum(),
    "a penalty on the parameter": lambda w, x: (w * x).sum() ** 2 + 0.1 * w.square().sum(),
    "a checkpoint": lambda w, x: checkpoint(
        lambda x, w: (x * w).sin(), x, w, use_reentrant=False
    ).sum(),
}


def _assigned(x: Tensor, w: Tensor) -> Tensor:
    z = x.clone()
    z[0:3] = w[:3]
    return z.square().sum()


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with(name: str) -> None:
    grads, loop = per_sample_grads(LOSSES[name])(W, X), _loop(LOSSES[name], W, X)
    torch.testing.assert_close(grads.materialize(), loop)
    torch.testing.assert_close(grads.norms(), loop.norm(dim=1))
    torch.testing.assert_close(grads.weighted_sum(X[:, 1]), X[:, 1] @ loop)


@pytest.mark.parametrize("dims", [(0, 1), (-1, 0), (0, 0), (1, -1)])
def test_a_square_matrix_that_is_transposed_or_not(dims: tuple[int, int]) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(24, 24, dtype=torch.float64), torch.randn(3, 24, dtype=torch.float64)

    def loss(w: Tensor, x: Tensor) -> Tensor:
        return (x @ w.transpose(*dims)).pow(3).sum()

    torch.testing.assert_close(per_sample_grads(loss)(w, x).materialize(), _loop(loss, w, x))


WITHOUT_GRAD: dict[str, Any] = {
    "a product": lambda w, x: w.reshape(2, 3) @ x[:3],
    "a linear layer": lambda w, x: F.linear(x[None, :3], w.reshape(2, 3))[0],
    "an elementwise op": lambda w, x: w * x,
    "a parameter written into a value": lambda w, x: (x * 1).add_(w),
    "dropout": lambda w, x: F.dropout(w * x, 0.0) + F.dropout(w, 0.0),
}


@pytest.mark.parametrize("name", WITHOUT_GRAD)
def test_what_is_computed_without_grad_mode_is_constant(name: str) -> None:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            constant = WITHOUT_GRAD[name](w, x)
        found: Tensor = (w * x).sum() * constant.sum()
        return found

    torch.testing.assert_close(per_sample_grads(loss)(W, X).materialize(), _loop(loss, W, X))


IN_INFERENCE: dict[str, Any] = {
    "an outer product": lambda w, x: torch.outer(w, x),
    "an inner product": lambda w, x: torch.inner(w, x),
    "a linear layer": lambda w, x: F.linear(x[None, :3], w.reshape(2, 3)),
    "a parameter alone": lambda w, x: torch.outer(w, w),
}


@pytest.mark.parametrize("name", IN_INFERENCE)
def test_what_is_computed_in_inference_mode_is_constant(name: str) -> None:
    def loss(w: Tensor, x: Tensor) -> Tensor:
        with torch.inference_mode():
            constant: Tensor = IN_INFERENCE[name](w, x).sum()
        return (w * x).sum() + constant

    grads = per_sample_grads(loss)(W, X)
    torch.testing.assert_close(grads.materialize(), X)
    torch.testing.assert_close(grads.losses, torch.stack([loss(W, x) for x in X]))


NESTED: dict[str, Any] = {
    "grad by the input": lambda w, x: grad(lambda x: torch.tanh(w * x).sum())(x).square().sum(),
    "vmap over parts of a sample": lambda w, x: (
        vmap(lambda a: (a * w).sum())(x.reshape(2, 3, 1)).square().sum()
    ),
    "jvp": lambda w, x: jvp(lambda x: torch.tanh(x * w), (x,), (x,))[1].sum(),
    "hessian": lambda w, x: hessian(lambda x: torch.tanh(x * w).sum())(x).sum(),
}


@pytest.mark.parametrize("name", NESTED)
def test_a_loss_with_a_transform(name: str) -> None:
    want = torch.stack([grad(NESTED[name])(W, x) for x in X])
    torch.testing.assert_close(per_sample_grads(NESTED[name])(W, X).materialize(), want)


def test_jit_captures_norms() -> None:
    norms = jit(_norms)
    for x in (X, X + 1):
        torch.testing.assert_close(norms(W, x), _loop(_loss, W, x).norm(dim=1))


def test_vmap_over_batches_and_grad_of_norms() -> None:
    batches = torch.stack([X, X * 2])
    torch.testing.assert_close(
        vmap(_norms, in_dims=(None, 0))(W, batches), torch.stack([_norms(W, x) for x in batches])
    )
    torch.testing.assert_close(
        grad(lambda w: _norms(w, X).sum())(W),
        grad(lambda w: vmap(grad(_loss), (None, 0))(w, X).norm(dim=1).sum())(W),
    )


def test_the_batch_may_lie_elsewhere_and_the_loss_return_more() -> None:
    grads = per_sample_grads(
        lambda w, x, c: (_loss(w, x) * c, x * 2), in_dims=(1, None), has_aux=True
    )(W, X.mT, torch.tensor(3.0))
    torch.testing.assert_close(grads.materialize(), 3 * _loop(_loss, W, X))
    torch.testing.assert_close(grads.aux, X * 2)


def test_each_sample_draws_its_own_dropout() -> None:
    torch.manual_seed(0)
    grads = per_sample_grads(lambda w, x: (F.dropout(w, 0.5) * x).sum())(
        W, torch.ones(64, 6, dtype=torch.float64)
    )
    dense = grads.materialize()
    assert set(dense.unique().tolist()) == {0.0, 2.0}
    assert len(dense.unique(dim=0)) > 16


def test_a_draw_around_a_parameter_is_that_of_the_forward_pass() -> None:
    def loss(w: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        kept = F.dropout(w, 0.5)
        return (kept * x).sum(), kept

    torch.manual_seed(0)
    grads = per_sample_grads(loss, has_aux=True)(W, X)
    torch.testing.assert_close(grads.materialize(), grads.aux / W * X)
    assert len(grads.aux.unique(dim=0)) > 1
    normal = per_sample_grads(lambda w, x: (torch.normal(w, 1.0) * x).sum())(W, X)
    torch.testing.assert_close(normal.materialize(), torch.zeros_like(X))


def test_parts_within_the_memory_limit_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    loss, w, x = (
        (lambda w, x: (x @ w).square().sum()),
        torch.randn(5, 7, dtype=torch.float64),
        torch.randn(6, 9, 5, dtype=torch.float64),
    )
    whole = per_sample_grads(loss)(w, x)
    limit = 2 * w.nbytes
    small = per_sample_grads(loss, memory_limit=limit)(w, x)
    sizes = []
    dense = Dense.dense

    def measured(term: Dense) -> Tensor:
        found = dense(term)
        sizes.append(found.nbytes)
        return found

    monkeypatch.setattr(Dense, "dense", measured)
    found = [small.norms(), small.variance(), small.gram(), small.project(8, seed=1)]
    assert max(sizes) <= limit
    monkeypatch.undo()
    for mine, other in zip(
        found,
        [whole.norms(), whole.variance(), whole.gram(), whole.project(8, seed=1)],
        strict=True,
    ):
        torch.testing.assert_close(mine, other)


def test_gradients_are_written_to_kept_buffers() -> None:
    grads = per_sample_grads(_loss)(W, X)
    kept = torch.full((4, 6), torch.nan, dtype=torch.float64)
    assert grads.materialize(out=kept) is kept
    torch.testing.assert_close(kept, _loop(_loss, W, X))
    with pytest.raises(ValueError, match=r"shapes \[\(4, 6\)\]"):
        grads.materialize(out=kept[:2])


def test_the_tangent_kernel_of_two_batches() -> None:
    first, second = per_sample_grads(_loss)(W, X), per_sample_grads(_loss)(W, X[:2] + 1)
    torch.testing.assert_close(
        first.gram(second), _loop(_loss, W, X) @ _loop(_loss, W, X[:2] + 1).mT
    )


def test_projections_of_two_batches_belong_together() -> None:
    a, b = (per_sample_grads(_loss)(W, x).project(5, seed=7) for x in (X, X[1:3]))
    torch.testing.assert_close(a[1:3], b)
    assert not torch.allclose(a, per_sample_grads(_loss)(W, X).project(5, seed=8))


def _grads() -> PerSampleGrads:
    found: PerSampleGrads = per_sample_grads(_loss)(W, X)
    return found


def _written_before_its_use(w: Tensor, x: Tensor) -> Tensor:
    h = x * 2
    y = (h * w).sum()
    h.add_(1)
    return y + h.sum()


def _normalized(w: Tensor, x: Tensor) -> Tensor:
    return F.batch_norm(x.reshape(2, 3), torch.zeros(3), torch.ones(3), w[:3], training=True).sum()


class _Scaled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor) -> Tensor:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x


_scaled: Any = _Scaled.apply


def _refuses(loss: Any, *args: Any, **options: Any) -> Any:
    return lambda: per_sample_grads(loss, **options)(*(args or (W, X)))


REFUSALS: dict[str, tuple[Any, type[Exception], str]] = {
    "a loss of all samples alike": (
        _refuses(lambda w, x: w.sum()),
        RuntimeError,
        "does not depend on the sample",
    ),
    "a vector": (
        _refuses(lambda w, x: w * x),
        RuntimeError,
        r"shape \(\), got a tensor of dtype torch.float64 and shape \[6\]",
    ),
    "a number": (_refuses(lambda w, x: 1.0), RuntimeError, "got float"),
    "integer parameters": (
        _refuses(_loss, W.long(), X),
        RuntimeError,
        "parameter must be a real or complex tensor",
    ),
    "no batch": (lambda: per_sample_grads(_loss)(W), ValueError, "expected a batch"),
    "no samples": (_refuses(_loss, W, X[:0]), ValueError, "no samples"),
    "a value that is written to": (
        _refuses(_written_before_its_use),
        RuntimeError,
        "aten.mul.Tensor.* modified by an inplace operation",
    ),
    "batch norm with running statistics": (
        _refuses(
            lambda w, x: F.batch_norm(
                x.reshape(2, 3), torch.zeros(3), torch.ones(3), w[:3], training=True
            ).sum(),
            W.float(),
            X.float(),
        ),
        RuntimeError,
        "running_mean or running_var .* use group norm",
    ),
    "a parameter that is written to": (
        _refuses(lambda w, x: w.mul_(x).sum()),
        RuntimeError,
        "inplace arithmetic",
    ),
    "a Function that makes its own vmap": (
        _refuses(lambda w, x: _scaled(x, w).sum()),
        RuntimeError,
        "cannot be told apart",
    ),
    "other norms": (
        lambda: _grads().norms(per="layer"),
        ValueError,
        "'total', 'parameter', got 'layer'",
    ),
    "weights of another size": (
        lambda: _grads().weighted_sum(torch.ones(3)),
        ValueError,
        r"shape \[4\], got \[3\]",
    ),
    "a bound of zero": (lambda: _grads().clipped_sum(0.0), ValueError, "positive"),
    "a vector of another shape": (lambda: _grads().dot(W[:2]), ValueError, r"expected shape \[6\]"),
    "a vector of another structure": (
        lambda: _grads().dot({"w": W}),
        ValueError,
        "another structure",
    ),
    "no columns": (lambda: _grads().project(0), ValueError, "positive"),
    "a list that is written to": (
        _refuses(lambda w, x: [z := x.clone(), torch._foreach_mul_([z], [w])][0].sum()),
        RuntimeError,
        "_foreach_mul_.* writes in place and takes a parameter. Use an op that returns its result",
    ),
    "another randomness": (
        _refuses(_loss, randomness="none"),
        RuntimeError,
        "'error', 'different', or 'same'. Got none",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused(name: str) -> None:
    run, error, text = REFUSALS[name]
    with pytest.raises(error, match=text):
        run()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sums_of_narrow_gradients_are_those_of_wide_ones(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(8, 64).to(dtype), (torch.randn(256, 4, 64) * 8).to(dtype)
    grads = per_sample_grads(lambda w, x: F.linear(x, w).float().square().sum())(w, x)
    rows = grads.materialize().double().flatten(1)
    assert rows.square().sum(1).max() > 65504  # which a half cannot hold
    torch.testing.assert_close(grads.norms().double(), rows.norm(dim=1), rtol=1e-2, atol=0)
    weights = torch.linspace(0, 1e-3, 256)
    torch.testing.assert_close(
        grads.weighted_sum(weights).double(),
        (weights.double() @ rows).reshape(8, 64),
        rtol=2e-2,
        atol=1.0,
    )
    assert grads.weighted_sum(weights).dtype is dtype


def test_what_gradients_are_computed_of_must_stay() -> None:
    x = X.clone()
    layer = nn.Linear(6, 2).double()
    grads = per_sample_grads(lambda w, x: F.linear(x, w).square().sum())(layer.weight.detach(), x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        grads.norms()


def test_a_frozen_layer_keeps_nothing_of_its_input(without_collector: None) -> None:
    kept: list[bool] = []

    def loss(w: Tensor, x: Tensor) -> Tensor:
        h: Any = x * 2
        held = weakref.ref(h._inner)
        out = F.linear(h, W.reshape(1, 6))
        del h
        kept.append(held() is not None)
        return (out * w).sum()

    per_sample_grads(loss)(W, X)
    assert kept == [False]


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_no_cycle_of_references(fails: bool, without_collector: None) -> None:
    seen: list[weakref.ref[Tensor]] = []

    def loss(w: Tensor, x: Tensor) -> Tensor:
        seen.append(weakref.ref(w))
        return (w * x).sum() if not fails else w * x

    with (
        pytest.raises(RuntimeError, match="the loss of a sample must be")
        if fails
        else contextlib.nullcontext()
    ):
        per_sample_grads(loss)(W, X)
    assert seen[0]() is None


def test_a_gradient_that_is_not_finite_shows_in_the_sum() -> None:
    x = X.clone()
    x[1] = torch.inf
    grads = per_sample_grads(lambda w, x: (w * x).sum())(W, x)
    assert grads.clipped_sum(1.0).isnan().any()
