"""Target torch keeps the protocol: the shapes of results, and graphs that are graphs."""

import warnings
from typing import Any

import pytest
import torch

from gen.reference import Loop
from gen.targets import load

D = torch.float64
X = torch.linspace(0.5, 2.0, 6, dtype=D).reshape(2, 3)


def f(x: Any, y: Any) -> Any:
    return x.sin() * y, (x + y).sum(0)


@pytest.fixture(scope="module")
def target() -> Any:
    return load("torch")


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


def test_derivatives_are_the_reference_s(target: Any) -> None:
    cotangents = (torch.ones_like(X), torch.ones(3, dtype=D))
    same(target.vjp(f, X, X)[1](cotangents), Loop().vjp(f, X, X)[1](cotangents))
    same(target.jvp(f, (X, X), (X, X))[1], Loop().jvp(f, (X, X), (X, X))[1])
    same(target.grad(lambda x: f(x, x)[0].sum())(X), Loop().grad(lambda x: f(x, x)[0].sum())(X))


@pytest.mark.parametrize("name", ["jacrev", "jacfwd", "hessian"])
def test_jacobians_nest_as_the_protocol_says(target: Any, name: Any) -> None:
    same(getattr(target, name)(f, (0, 1))(X, X), getattr(Loop(), name)(f, (0, 1))(X, X))


def test_vmap_batches_at_the_front(target: Any) -> None:
    same(target.vmap(f, (-1, None))(X, X[:, 0]), Loop().vmap(f, (-1, None))(X, X[:, 0]))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_trace_is_a_graph_that_runs_on_other_values(target: Any, dynamic: Any) -> None:
    traced = target.trace(f, (X, X.clone()), dynamic=dynamic)
    assert isinstance(traced.graph, torch.fx.Graph)
    same(tuple(traced(X + 1, X)), f(X + 1, X))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", ["default", "min_cut"])
def test_a_joint_graph_gives_outputs_and_gradients(
    target: Any, partition: Any, dynamic: Any
) -> None:
    args = (X.clone().requires_grad_(), X.clone())
    cotangents = (torch.ones_like(X), torch.ones(3, dtype=D))
    outputs, gradients = target.joint(f, args, partition=partition, dynamic=dynamic)(
        args, cotangents
    )
    expected_outputs, expected_gradients = Loop().joint(
        f, args, partition=partition, dynamic=dynamic
    )(args, cotangents)
    same(tuple(output.detach() for output in outputs), expected_outputs)
    same(gradients, expected_gradients)


def test_an_export_runs_at_another_size_when_dynamic(target: Any) -> None:
    exported = target.export(f, (X, X), dynamic=True)
    wide = torch.cat([X, X])
    same(tuple(exported(wide, wide)), f(wide, wide))


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("input_grad", [False, True])
def test_per_sample_gradients_are_the_loop_s(target: Any, reduction: Any, input_grad: Any) -> None:
    def linear(x: Any, weight: Any) -> Any:
        return (torch.nn.functional.linear(x, weight),)

    weight = torch.randn(4, 3, dtype=D, generator=torch.Generator().manual_seed(0))
    arguments = (linear, X, (weight,))
    found = target.per_sample(*arguments, loss_reduction=reduction, input_grad=input_grad)
    same(found, Loop().per_sample(*arguments, loss_reduction=reduction, input_grad=input_grad))


def test_the_loops_of_its_vmap_are_counted_and_other_warnings_kept(target: Any) -> None:
    before = target.loops["aten::histc"]

    def counts(x: Any) -> Any:
        warnings.warn("mine", UserWarning, stacklevel=1)
        return (torch.histc(x, 3),)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        same(target.vmap(counts, (0,))(X), Loop().vmap(lambda x: (torch.histc(x, 3),), (0,))(X))
    assert target.loops["aten::histc"] == before + 1
    assert [str(warning.message) for warning in caught] == ["mine"]
