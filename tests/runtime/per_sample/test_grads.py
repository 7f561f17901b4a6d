"""What one can ask of per-sample gradients equals what a loop over the samples gives."""

from __future__ import annotations

import weakref

import pytest
import torch

from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads
from runtime.per_sample.grads import Parameter
from runtime.rules.per_sample import Dense
from runtime.session.tensor import unwrap

from .models import MODELS, build
from .reference import by_loop, in_one, in_rows, parameters_of, sample_loss


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
    torch.testing.assert_close(in_one(given_up.clipped_sum(bound, per, keep=False)), in_one(kept.clipped_sum(bound, per)), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="given up by keep=False"):
        given_up.norms()


def test_a_sum_that_keeps_nothing_frees_the_factors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    activations: list[weakref.ref[torch.UntypedStorage]] = []
    model[1].register_forward_hook(lambda _, args, out: activations.append(weakref.ref(unwrap(out).untyped_storage())))
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


def test_products(both: Both) -> None:
    grads, loop = both
    vector = {name: torch.randn(t.shape[1:], dtype=t.dtype) for name, t in grads.materialize().items()}
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
    assert rank == torch.linalg.matrix_rank(loop, rtol=1e-9)  # each row is a linear function of the gradient


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
    torch.testing.assert_close(torch.stack(list(each.values())).sum(0).flatten(1), grads.project(k, seed=1))


def test_a_projection_from_both_sides_is_that_of_the_dense_gradients(both: Both) -> None:
    grads, _ = both
    dense = [Parameter(p.name, p.value, [Dense(t)]) for p, t in zip(grads._parameters, grads.materialize().values(), strict=True)]
    wanted = PerSampleGrads(dense, grads._spec, grads.losses, (), grads.memory_limit)
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

    rows = per_sample_grads(entry)(params, torch.eye(100, dtype=torch.float64)).project(200, seed=seed)
    assert int(torch.linalg.matrix_rank(rows)) == 100


@pytest.mark.parametrize(("entries", "k"), [(50, 80), (60, 96), (300, 320)])
def test_gradients_of_one_parameter_do_not_meet_in_a_projection(entries: int, k: int) -> None:
    """The first columns of a Hadamard matrix have rows that depend on each other, and random columns hardly any."""

    def entry(p: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        return p @ one

    rows = per_sample_grads(entry)(torch.zeros(entries, dtype=torch.float64), torch.eye(entries, dtype=torch.float64)).project(k)
    assert int(torch.linalg.matrix_rank(rows)) == entries
