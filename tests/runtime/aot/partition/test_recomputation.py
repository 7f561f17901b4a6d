"""A partition recomputes only the ops that records allow: cheap ones without side
effects or draws."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx, nn

import runtime
from runtime.aot import (
    aot_function,
    aot_module,
    default_partition,
    min_cut_rematerialization_partition,
    nop,
)

from .library_ops import runs

aten: Any = torch.ops.aten


@pytest.mark.parametrize(("name", "times"), [("low", 2), ("high", 1), ("unsaid", 1)])
def test_a_compiled_program_runs_an_op_as_often_as_its_cost_allows(
    library: Any, name: str, times: int
) -> None:
    op = getattr(library, name)
    compiled = aot_function(
        lambda x: op(x.sin()).cos().sum(), nop, partition_fn=min_cut_rematerialization_partition
    )
    x = torch.randn(5, dtype=torch.float64)
    compiled(runtime.wrap(x, requires_grad=True))
    t = runtime.wrap(x, requires_grad=True)
    runs.clear()
    compiled(t).backward()
    assert runs == [name] * times
    torch.testing.assert_close(runtime.unwrap(t.grad), -(2 * x.sin()).sin() * 2 * x.cos())


@pytest.mark.parametrize("budget", [1.0, 0.0])
def test_a_recurrent_layer_is_expensive_and_its_gradients_are_eager_s(budget: float) -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(4, 4, batch_first=True), torch.randn(2, 3, 4)
    layer(x)[0].square().sum().backward()
    expected = [p.grad for p in layer.parameters()]
    layer.zero_grad()
    cut = partial(min_cut_rematerialization_partition, memory_budget=budget)
    aot_function(lambda x: layer(x)[0].square().sum(), nop, partition_fn=cut)(x).backward()
    torch.testing.assert_close([p.grad for p in layer.parameters()], expected)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "op", [torch.linalg.inv, torch.linalg.cholesky, lambda a: torch.linalg.tensorsolve(a, a[0])]
)
def test_a_check_of_the_program_runs_in_every_call(
    op: Any, requires_grad: bool, partition: Any, dynamic: bool
) -> None:
    f = aot_function(op, nop, partition_fn=partition, dynamic=dynamic)
    f(runtime.wrap(torch.eye(3), requires_grad))
    with pytest.raises(RuntimeError, match=r"singular|positive-definite"):
        f(runtime.wrap(-torch.ones(3, 3), requires_grad))


def test_a_batch_norm_may_run_again_and_counts_its_batches_once() -> None:
    """A budget of 0 runs it again in the backward. Its running statistics are those of one
    run, to the bit."""
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    reference = copy.deepcopy(model)
    backwards: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        backwards.append(module)
        return nop(module, inputs)

    compiled = aot_module(
        model,
        nop,
        keep,
        partition_fn=partial(min_cut_rematerialization_partition, memory_budget=0.0),
    )
    for seed in range(3):
        torch.manual_seed(seed)
        images = torch.randn(4, 2, 16, 16)
        compiled(images).square().mean().backward()
        reference(images).square().mean().backward()
    assert aten._native_batch_norm_legit_functional.default in [
        n.target for n in backwards[0].graph.nodes
    ]
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert (
            mine.grad is not None
            and theirs.grad is not None
            and torch.equal(mine.grad, theirs.grad)
        )
    assert all(map(torch.equal, model.buffers(), reference.buffers()))
