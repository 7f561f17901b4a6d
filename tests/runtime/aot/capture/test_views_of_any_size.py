"""A compiled program of any size returns views of its arguments and of its intermediates as torch
does, where their sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import (
    aot_function,
    default_partition,
    make_fx,
    min_cut_rematerialization_partition,
    nop,
)


def written(x: Any) -> Any:
    x.add_(1)
    return x.flatten()


def without_grad(x: Any) -> Any:
    with torch.no_grad():
        return x.flatten()


def of_one_intermediate(x: Any) -> Any:
    y = x * 2
    return y.flatten(), y.view(-1, x.shape[0])


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "flatten": lambda x: x.flatten(),
    "flatten after a write": written,
    "flatten without grad": without_grad,
    "flatten of a detached tensor": lambda x: x.detach().flatten(),
    "narrow": lambda x: x.narrow(0, 1, x.shape[0] - 2),
    "slice": lambda x: x[:, : x.shape[1] // 2],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "split": lambda x: x.split(x.shape[0] // 2)[1],
    "as_strided": lambda x: x.as_strided((x.shape[0],), (x.shape[1],)),
    "unflatten": lambda x: x.unflatten(0, (2, x.shape[0] // 2)),
    "two views of an intermediate": of_one_intermediate,
}


def seen(f: Callable[..., Any], leaf: Any, grad: Callable[..., Any]) -> list[Any]:
    """The results, what a later write to the last one changes, and the gradient."""
    x = leaf * 1
    results = f(x)
    every = results if isinstance(results, tuple) else (results,)
    found: list[Any] = [(o.shape, o.stride(), o.requires_grad, o._base is x) for o in every]
    try:
        every[-1].mul_(3)
    except RuntimeError:  # torch refuses to record a write to one of several views
        found.append("refused")
    loss = (x * x).sum() + sum((o * o).sum() for o in every if o.requires_grad)
    return [*found, x.tolist(), *(o.tolist() for o in every), grad(loss, leaf)[0].tolist()]


@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_to_a_returned_view_is_a_part_of_the_history_of_its_base(
    name: str, partition: Any
) -> None:
    f = PROGRAMS[name]
    compiled = aot_function(f, nop, partition_fn=partition, dynamic=True)
    for shape in ((4, 6), (6, 4), (8, 2)):
        x = torch.arange(float(shape[0] * shape[1])).reshape(shape)
        expected = seen(f, x.clone().requires_grad_(), torch.autograd.grad)
        assert seen(compiled, runtime.wrap(x, True), runtime.autograd.grad) == expected


def test_views_of_symbolic_sizes_share_one_graph() -> None:
    graphs: list[Any] = []

    def keep(graph: Any, args: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = aot_function(PROGRAMS["flatten"], keep, dynamic=True)
    for shape in ((4, 6), (6, 4), (8, 2)):
        x = torch.ones(shape)
        assert compiled(x).shape == (shape[0] * shape[1],)
        assert compiled(x)._base is x
    assert len(graphs) == 1


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "order",
    [
        (0, 1),
        (1, 0),
        (0, 1, 2),
        (2, 1, 0),
        (0, 2, 1),
        (0, 1, 2, 3),
        (0, 3, 1, 2),
        (3, 2, 1, 0),
        (0, 4, 1, 2, 3),
    ],
)
def test_a_batch_norm_has_the_strides_of_its_kernel(order: tuple[int, ...], training: bool) -> None:
    def f(x: Any) -> Any:
        y = torch.nn.functional.batch_norm(
            x, torch.zeros(x.shape[1]), torch.ones(x.shape[1]), training=training
        )
        return y, y.sin()

    x = torch.randn((3, 4, 5, 6, 2)[: len(order)]).permute(order)
    expected = [t.stride() for t in f(x)]
    assert [t.stride() for t in aot_function(f, nop, dynamic=True)(x)] == expected
    traced: Any = make_fx(f, tracing_mode="fake")(x).graph.output_node().args[0]
    assert [n.meta["val"].stride() for n in traced] == expected
