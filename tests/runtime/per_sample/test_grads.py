"""What one can ask of per-sample gradients equals what a loop over the samples gives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

from runtime import unwrap
from runtime.extend import Outer
from runtime.jit import jit
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads

from .models import MODELS, build
from .reference import by_loop, in_one, in_rows, parameters_of, sample_loss, with_gradients


@pytest.fixture(params=MODELS, scope="module")
def both(request: pytest.FixtureRequest) -> tuple[PerSampleGrads, torch.Tensor]:
    module, x = build(request.param)
    return per_sample_grads(sample_loss(module))(parameters_of(module), x), by_loop(module, x)


Both = tuple[PerSampleGrads, torch.Tensor]


def test_the_gradients(both: Both) -> None:
    grads, loop = both
    torch.testing.assert_close(in_rows(grads.materialize()), loop)


def test_the_gradients_in_kept_buffers(both: Both) -> None:
    grads, loop = both
    kept = {name: torch.full_like(t, torch.nan) for name, t in grads.materialize().items()}
    assert grads.materialize(out=kept) is kept
    torch.testing.assert_close(in_rows(kept), loop)


def test_the_losses_and_their_number(both: Both) -> None:
    grads, loop = both
    assert grads.losses.shape == (loop.shape[0],)
    assert len(grads) == loop.shape[0]


def test_norms(both: Both) -> None:
    grads, loop = both
    torch.testing.assert_close(grads.norms(), loop.norm(dim=1))
    each = torch.stack([n.square() for n in grads.norms(per="parameter").values()]).sum(0)
    torch.testing.assert_close(each.sqrt(), loop.norm(dim=1))


def test_weighted_and_clipped_sums(both: Both) -> None:
    grads, loop = both
    weights = torch.linspace(-1, 1, len(grads), dtype=loop.dtype)
    torch.testing.assert_close(in_one(grads.weighted_sum(weights)), weights @ loop)
    bound = float(loop.norm(dim=1).median())
    clipped = loop * (bound / loop.norm(dim=1).clamp_min(bound)).unsqueeze(1)
    torch.testing.assert_close(in_one(grads.clipped_sum(bound)), clipped.sum(0))


@pytest.mark.parametrize("per", ["total", "parameter"])
@pytest.mark.parametrize("name", MODELS)
def test_sums_that_give_up_the_factors(name: str, per: str) -> None:
    module, x = build(name)
    asked = per_sample_grads(sample_loss(module))
    kept, given_up = (asked(parameters_of(module), x) for _ in range(2))
    bound = float(kept.norms().median())
    torch.testing.assert_close(
        in_one(given_up.clipped_sum(bound, per, keep=False)),
        in_one(kept.clipped_sum(bound, per)),
        rtol=0,
        atol=0,
    )
    with pytest.raises(RuntimeError, match="given up by keep=False"):
        given_up.norms()


def test_a_sum_that_keeps_nothing_frees_the_factors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    activations: list[weakref.ref[torch.UntypedStorage]] = []
    model[1].register_forward_hook(
        lambda _, args, out: activations.append(weakref.ref(unwrap(out).untyped_storage()))
    )
    x = torch.randn(5, 3)
    with per_sample(model.parameters()) as grads:
        losses = model(x).square().sum(1)
        losses.sum().backward()
    held = sum(t.nbytes for p in grads._parameters for term in p.terms for t in term.held())
    grads.clipped_sum(1.0, keep=False)
    assert held > 0
    assert all(found() is None for found in activations)
    with pytest.raises(RuntimeError, match="no backward pass"):
        grads.norms()


def test_a_pass_after_a_sum_that_keeps_nothing_counts_alone() -> None:
    model, x = torch.nn.Linear(3, 1), torch.randn(5, 3)
    with per_sample(model.parameters()) as grads:
        loss = model(x).sum()
        loss.backward(retain_graph=True)
        once = grads.weighted_sum(torch.ones(5), keep=False)
        (3 * loss).backward()
    torch.testing.assert_close(grads.weighted_sum(torch.ones(5)), [3 * t for t in once])


def test_sums_that_clip_each_parameter(both: Both) -> None:
    grads, _ = both
    dense = grads.materialize()
    bound = 0.5
    for name, found in grads.clipped_sum(bound, per="parameter").items():
        rows = dense[name].flatten(1)
        want = (rows * (bound / rows.norm(dim=1).clamp_min(bound)).unsqueeze(1)).sum(0)
        torch.testing.assert_close(found.flatten(), want)


def test_sums_that_clip_each_parameter_to_a_norm_of_its_own(both: Both) -> None:
    grads, _ = both
    dense = grads.materialize()
    bounds = {name: 0.2 + 0.3 * index for index, name in enumerate(dense)}
    for name, found in grads.clipped_sum(bounds, per="parameter").items():
        rows, bound = dense[name].flatten(1), bounds[name]
        want = (rows * (bound / rows.norm(dim=1).clamp_min(bound)).unsqueeze(1)).sum(0)
        torch.testing.assert_close(found.flatten(), want)


def test_products(both: Both) -> None:
    grads, loop = both
    vector = {
        name: torch.randn(t.shape[1:], dtype=t.dtype) for name, t in grads.materialize().items()
    }
    torch.testing.assert_close(grads.dot(vector), loop @ in_one(vector))
    torch.testing.assert_close(grads.gram(), loop @ loop.mT)


def test_moments(both: Both) -> None:
    grads, loop = both
    torch.testing.assert_close(in_one(grads.second_moment()), loop.square().mean(0))
    torch.testing.assert_close(in_one(grads.variance()), loop.var(0, correction=0))


def test_projections_are_linear_and_keep_products_on_average(both: Both) -> None:
    grads, loop = both
    columns = torch.cat([grads.project(500, seed=seed) for seed in range(4)], 1) / 2
    scale = loop.norm(dim=1)
    error = (columns @ columns.mT - loop @ loop.mT) / (scale.unsqueeze(1) * scale + 1e-9)
    assert error.abs().max() < 0.25  # of 2,000 columns the deviation is about 0.022
    rank = torch.linalg.matrix_rank(torch.cat([loop, columns], 1), rtol=1e-9)
    # each row is a linear function of the gradient
    assert rank == torch.linalg.matrix_rank(loop, rtol=1e-9)


def test_projections_from_both_sides_are_linear_and_keep_products_on_average(both: Both) -> None:
    grads, loop = both
    columns = torch.cat([grads.project((24, 24), seed=seed) for seed in range(8)], 1) / 8**0.5
    scale = loop.norm(dim=1)
    error = (columns @ columns.mT - loop @ loop.mT) / (scale.unsqueeze(1) * scale + 1e-9)
    assert error.abs().max() < 0.5
    rank = torch.linalg.matrix_rank(torch.cat([loop, columns], 1), rtol=1e-9)
    assert rank == torch.linalg.matrix_rank(loop, rtol=1e-9)


@pytest.mark.parametrize("k", [5, (3, 2)])
def test_projections_of_parameters_add_up(both: Both, k: int | tuple[int, int]) -> None:
    grads, loop = both
    each = grads.project(k, seed=1, per="parameter")
    shape = (loop.shape[0], *(k if isinstance(k, tuple) else (k,)))
    assert all(t.shape == shape for t in each.values())
    torch.testing.assert_close(
        torch.stack(list(each.values())).sum(0).flatten(1), grads.project(k, seed=1)
    )


def test_a_projection_from_both_sides_is_that_of_the_dense_gradients(both: Both) -> None:
    grads, _ = both
    wanted = with_gradients(grads.materialize())
    for k in ((2, 3), 7):
        torch.testing.assert_close(grads.project(k, seed=4), wanted.project(k, seed=4))


def test_explain_names_every_parameter(both: Both) -> None:
    grads, _ = both
    text = grads.explain()
    assert all(name in text for name in (repr(key) for key in grads.materialize()))


@pytest.mark.parametrize("seed", range(4))
def test_gradients_of_small_parameters_do_not_meet_in_one_projection(seed: int) -> None:
    """There are twice as many columns as entries, so random rows are independent."""
    params = [torch.zeros(50, dtype=torch.float64) for _ in range(2)]

    def entry(params: list[torch.Tensor], one: torch.Tensor) -> torch.Tensor:
        return torch.cat(params) @ one

    rows = per_sample_grads(entry)(params, torch.eye(100, dtype=torch.float64)).project(
        200, seed=seed
    )
    assert int(torch.linalg.matrix_rank(rows)) == 100


@pytest.mark.parametrize(("entries", "k"), [(50, 80), (60, 96), (300, 320)])
def test_gradients_of_one_parameter_do_not_meet_in_a_projection(entries: int, k: int) -> None:
    """The first columns of a Hadamard matrix have rows that depend on each other, and random
    columns hardly any."""

    def entry(p: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return p @ one

    rows = per_sample_grads(entry)(
        torch.zeros(entries, dtype=torch.float64), torch.eye(entries, dtype=torch.float64)
    ).project(k)
    assert int(torch.linalg.matrix_rank(rows)) == entries


def _of_two_uses(dtype: torch.dtype, second: float) -> PerSampleGrads:
    """Of a convolution with one place, which is used twice, so that the gradients by both are
    ``1 + second`` times those by one."""
    torch.manual_seed(0)
    w, x = torch.randn(8, 4, 3, 3).to(dtype), torch.randn(16, 1, 4, 3, 3).to(dtype)
    factors = torch.linspace(0.1, 1.3, 8, dtype=dtype).reshape(8, 1, 1)

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ((F.conv2d(x, w) + second * F.conv2d(x, w)) * factors).sum()

    found: PerSampleGrads = per_sample_grads(loss)(w, x)
    return found


@pytest.mark.parametrize("second", [-1.0, -0.5, 2.0])
def test_norms_of_gradients_that_add_up_or_cancel(second: float) -> None:
    grads, once = _of_two_uses(torch.float32, second), _of_two_uses(torch.float64, 0.0)
    torch.testing.assert_close(
        grads.norms().double(), abs(1 + second) * once.norms(), rtol=1e-5, atol=0.05
    )


@pytest.mark.parametrize("steps", [(1, 1), (1, 3), (3, 1), (2, 2)])
@pytest.mark.parametrize("sizes", [(6, 6), (1, 6), (6, 1)])
def test_the_tangent_kernel_computes_no_more_dense_gradients_than_the_limit(
    sizes: tuple[int, int], steps: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    w = torch.randn(7, 9, dtype=torch.float64)
    batches = [torch.randn(b, t, 9, dtype=torch.float64) for b, t in zip(sizes, steps, strict=True)]
    ask = per_sample_grads(lambda w, x: F.linear(x, w).pow(2).sum(), memory_limit=4 * w.nbytes)
    first, second = (ask(w, x) for x in batches)
    rows = [grads.materialize().flatten(1) for grads in (first, second)]
    made: list[int] = []
    dense = Outer.dense

    def measured(term: Outer) -> torch.Tensor:
        found = dense(term)
        made.append(found.nbytes)
        return found

    monkeypatch.setattr(Outer, "dense", measured)
    if steps == (1, 1):  # nothing is dense, so all is computed at once
        monkeypatch.setattr(
            Outer, "part", lambda *_: pytest.fail("a part of the samples was taken")
        )
    torch.testing.assert_close(first.gram(second), rows[0] @ rows[1].mT)
    assert max(made, default=0) <= 2 * w.nbytes
    assert made or steps == (1, 1)


@pytest.mark.parametrize("k", [6, (3, 2)])
@pytest.mark.parametrize("wide", [False, True])
def test_a_projection_computes_no_more_dense_gradients_than_the_limit(
    wide: bool, k: int | tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = (
        torch.randn(*((2, 35) if wide else (14, 5)), dtype=torch.float64),
        torch.randn(12, *((1, 35) if wide else (3, 5)), dtype=torch.float64),
    )
    ask = per_sample_grads(lambda w, x: F.linear(x, w).pow(2).sum(), memory_limit=8 * w.nbytes)
    grads, whole = ask(w, x), per_sample_grads(lambda w, x: F.linear(x, w).pow(2).sum())(w, x)
    made: list[int] = []
    dense = Outer.dense

    def measured(term: Outer) -> torch.Tensor:
        found = dense(term)
        made.append(found.nbytes)
        return found

    monkeypatch.setattr(Outer, "dense", measured)
    found = grads.project(k, seed=3)
    assert max(made, default=0) <= 2 * w.nbytes  # as they are, with signs, padded and transformed
    assert bool(made) is isinstance(k, int)
    monkeypatch.undo()
    torch.testing.assert_close(found, whole.project(k, seed=3))


def test_the_table_tells_the_uses_the_forms_and_the_bytes() -> None:
    model = torch.nn.Sequential(
        torch.nn.Embedding(6, 8),
        torch.nn.Linear(8, 4),
        torch.nn.LayerNorm(4),
        torch.nn.Linear(4, 3),
    )
    model[3].bias.requires_grad_(False)
    params = {name: p.detach() for name, p in model.named_parameters()} | {"unused": torch.zeros(5)}

    def loss(params: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(
            F.linear(params["0.weight"][x], params["1.weight"], params["1.bias"]),
            (4,),
            params["2.weight"],
            params["2.bias"],
        )
        return F.linear(h, params["3.weight"], params["3.bias"]).sum()

    lines = per_sample_grads(loss)(params, torch.randint(0, 6, (10, 2))).explain().splitlines()
    rows = {
        line.split()[0].strip("[]'"): " ".join(line.split()[1:])
        for line in lines
        if line.strip().startswith("['")
    }
    assert lines[0].strip() == "gradients of 10 samples"
    assert rows == {
        "0.weight": "[6, 8] 1 rows ghost 1,920",
        "1.weight": "[4, 8] 1 outer ghost 1,280",
        "1.bias": "[4] 1 dense direct 160",
        "2.weight": "[4] 1 dense direct 160",
        "2.bias": "[4] 1 dense direct 160",
        "3.weight": "[3, 4] 1 dense direct 480",
        "3.bias": "[3] 1 dense direct 120",
        "unused": "[5] 0 unused direct 200",
    }


ASKED: dict[str, tuple[Callable[[PerSampleGrads], object], str]] = {
    "a bound below zero": (
        lambda grads: grads.clipped_sum(-1.0),
        "max_norm must be positive, got -1.0",
    ),
    "a bound that is no number": (
        lambda grads: grads.clipped_sum(float("nan")),
        "max_norm must be positive, got nan",
    ),
    "a norm for each parameter of another structure": (
        lambda grads: grads.clipped_sum([1.0, 2.0], per="parameter"),
        "max_norm must be a number, or with per=.parameter. a tree of numbers",
    ),
    "norms of parameters for the total": (
        lambda grads: grads.clipped_sum([1.0]),
        "max_norm must be a number, or with per=.parameter. a tree of numbers",
    ),
    "a norm of a parameter below zero": (
        lambda _: _in_a_list().clipped_sum([-1.0], per="parameter"),
        r"max_norm must be positive, got \[-1.0\]",
    ),
    "weights in columns": (
        lambda grads: grads.weighted_sum(torch.ones(3, 1)),
        r"weights of shape \[3\], got \[3, 1\]",
    ),
    "a projection per layer": (
        lambda grads: grads.project(2, per="layer"),
        "per must be one of 'total', 'parameter', got 'layer'",
    ),
    "clipping per layer": (lambda grads: grads.clipped_sum(1.0, per="layer"), "got 'layer'"),
    "no columns of one side": (
        lambda grads: grads.project((2, 0)),
        r"k must be positive, got \(2, 0\)",
    ),
    "no columns": (lambda grads: grads.project(-1), "k must be positive, got -1"),
    "columns of complex gradients": (
        lambda _: _complex().project(2),
        "project: parameter is complex",
    ),
    "products with those of other shapes": (
        lambda grads: grads.gram(_complex()),
        "gram: the two batches have gradients of other parameters",
    ),
    "products with another structure": (
        lambda grads: grads.gram(_in_a_list()),
        "gram: the two batches have gradients of other parameters",
    ),
    "buffers of another structure": (
        lambda grads: grads.materialize(out=[torch.zeros(3, 4)]),
        r"out must be a tree of .* shapes \[\(3, 4\)\]",
    ),
    "buffers of fewer samples": (
        lambda grads: grads.materialize(out=torch.zeros(2, 4)),
        r"out must be a tree of .* shapes \[\(3, 4\)\]",
    ),
    "a product with fewer entries": (
        lambda grads: grads.dot(torch.ones(3)),
        r"expected shape \[4\] for parameter, got \[3\]",
    ),
}


def _product() -> PerSampleGrads:
    found: PerSampleGrads = per_sample_grads(lambda w, x: (w * x).sum())(
        torch.ones(4), torch.arange(12.0).reshape(3, 4)
    )
    return found


def _complex() -> PerSampleGrads:
    found: PerSampleGrads = per_sample_grads(lambda w, x: (w * x).abs().sum())(
        torch.ones(3, dtype=torch.complex64), torch.ones(3, 3)
    )
    return found


def _in_a_list() -> PerSampleGrads:
    found: PerSampleGrads = per_sample_grads(lambda w, x: (w[0] * x).sum())(
        [torch.ones(4)], torch.ones(3, 4)
    )
    return found


@pytest.mark.parametrize("name", ASKED)
def test_refused(name: str) -> None:
    ask, says = ASKED[name]
    with pytest.raises(ValueError, match=says):
        ask(_product())


QUESTIONS: dict[str, Callable[[PerSampleGrads], object]] = {
    "norms": lambda grads: grads.norms(),
    "weighted_sum": lambda grads: grads.weighted_sum(torch.ones(3)),
    "clipped_sum": lambda grads: grads.clipped_sum(1.0, per="parameter"),
    "dot": lambda grads: grads.dot(torch.ones(2, 4)),
    "gram": lambda grads: grads.gram(),
    "project": lambda grads: grads.project(2),
    "materialize": lambda grads: grads.materialize(),
    "materialize into buffers": lambda grads: grads.materialize(out=torch.zeros(3, 2, 4)),
    "second_moment": lambda grads: grads.second_moment(),
    "variance": lambda grads: grads.variance(),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_question_is_answered_of_factors_that_were_written_to_or_given_up(name: str) -> None:
    def grads() -> PerSampleGrads:
        found: PerSampleGrads = per_sample_grads(lambda w, x: F.linear(x, w).pow(2).sum())(
            torch.ones(2, 4), x
        )
        return found

    x = torch.ones(3, 4)
    written, given_up = grads(), grads()
    x.add_(1)
    with pytest.raises(
        RuntimeError,
        match=(
            r"a tensor that the gradients are computed of, "
            r"of shape .* has been modified by an inplace"
        ),
    ):
        QUESTIONS[name](written)
    with pytest.raises(RuntimeError, match="modified by an inplace"):
        grads().gram(written)
    x = torch.ones(3, 4)
    given_up = grads()
    given_up.weighted_sum(torch.ones(3), keep=False)
    with pytest.raises(
        RuntimeError,
        match=r"the gradients were given up by keep=False\. Ask for what you need before",
    ):
        QUESTIONS[name](given_up)


def test_a_gradient_of_just_the_bound_stays_as_it_is() -> None:
    grads = _product()
    norms = grads.norms()
    rows = grads.materialize()
    torch.testing.assert_close(grads.clipped_sum(float(norms[2])), rows.sum(0))
    torch.testing.assert_close(
        grads.clipped_sum(float(norms[1])), rows[:2].sum(0) + rows[2] * norms[1] / norms[2]
    )


@pytest.mark.parametrize("k", [5, (3, 2)])
def test_without_a_seed_it_is_zero(k: int | tuple[int, int]) -> None:
    assert _product().project(k).equal(_product().project(k, seed=0))


def test_every_bit_of_a_seed_counts(both: Both) -> None:
    found = [both[0].project(64, seed=seed) for seed in (1, 1 + 2**32, 1 + 2**40)]
    assert len({tuple(columns.flatten().tolist()) for columns in found}) == 3


@pytest.mark.parametrize("k", [5, (3, 2)])
def test_a_projection_is_jitted(k: int | tuple[int, int]) -> None:
    x, w = torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(1, 2, 6).reshape(2, 3)

    def loss(params: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, params[0]).sin().sum()

    def projected(x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = per_sample_grads(loss)([w], x).project(k, seed=3)
        return found

    expected, step = projected(x), jit(projected)
    for _ in range(2):
        torch.testing.assert_close(step(x), expected)
    torch.testing.assert_close(step(x.cos()), projected(x.cos()))
