"""Composite ops that return their argument, or a view of it, do so in traces of any size as
well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx as torch_make_fx
from torch.nn import functional as F

from runtime.aot import aot_export_module, aot_function, make_fx, nop

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "dropout in eval": lambda x: F.dropout(x, 0.5, training=False),
    "dropout of nothing": lambda x: F.dropout(x, 0.0),
    "dropout in eval of a view": lambda x: F.dropout(x.flatten(), 0.5, training=False).view(4, 6),
    "alpha_dropout in eval": lambda x: F.alpha_dropout(x, 0.5, training=False),
    "contiguous": lambda x: x.contiguous(),
    "contiguous of a transpose": lambda x: x.t().contiguous(),
    "to": lambda x: x.to(torch.float32),
    "type_as": lambda x: x.type_as(torch.ones(1)),
    "reshape": lambda x: x.reshape(-1),
    "reshape of a transpose": lambda x: x.t().reshape(-1),
    "flatten": lambda x: x.flatten(),
    "chunk": lambda x: x.chunk(2)[0],
    "tensor_split": lambda x: x.tensor_split(3)[1],
    "atleast_3d": torch.atleast_3d,
    "expand_as": lambda x: x.expand_as(torch.ones(4, 6)),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x, torch.ones(4, 6))[0],
    "einsum": lambda x: torch.einsum("ij->ji", x),
    "movedim": lambda x: x.movedim(0, 1),
    "resolve_conj": lambda x: x.resolve_conj(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_write_to_the_result_of_a_composite_op_reaches_what_it_reaches_in_torch(
    name: str, dynamic: bool
) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = PROGRAMS[name](x)
        y.mul_(2)
        return y + 1

    x, y = (torch.arange(24.0).reshape(4, 6) for _ in range(2))
    assert torch.equal(aot_function(f, nop, dynamic=dynamic)(x), f(y))
    assert torch.equal(x, y)


@pytest.mark.parametrize("dynamic", [False, True])
def test_dropout_that_drops_nothing_returns_its_argument(dynamic: bool) -> None:
    for program, x in (
        ("dropout in eval", torch.ones(4, 6)),
        ("dropout of nothing", torch.ones(4, 6)),
        ("dropout", torch.ones(0, 3)),
    ):
        assert aot_function(PROGRAMS.get(program, F.dropout), nop, dynamic=dynamic)(x) is x


def test_an_exported_write_to_the_result_of_dropout_in_eval_is_a_new_value_of_the_buffer() -> None:
    class Doubled(torch.nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            F.dropout(self.seen, 0.5, training=False).mul_(2)
            return x + 1

    graph, signature = aot_export_module(
        Doubled(), (torch.zeros(4),), trace_joint=False, dynamic_shapes=True
    )
    assert list(signature.buffers_to_mutate.values()) == ["seen"]
    assert torch.equal(graph(torch.ones(3), torch.zeros(5))[0], torch.full((3,), 2.0))


def test_traces_of_torch_keep_its_own_decomposition() -> None:
    """It draws for a dropout of everything, and the C++ kernel, which ours is like, does not."""
    drawing: dict[Any, bool] = {}
    for trace in (torch_make_fx, make_fx):
        graph = trace(lambda x: F.dropout(x, 1.0), tracing_mode="symbolic")(torch.ones(4, 6)).graph
        drawing[trace] = torch.ops.aten.native_dropout.default in {n.target for n in graph.nodes}
    assert drawing == {torch_make_fx: True, make_fx: False}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_batch_norm_counts_no_writes_to_running_statistics(
    dtype: torch.dtype, grad: bool, dynamic: bool
) -> None:
    norm, reference = (torch.nn.BatchNorm1d(3, affine=False) for _ in range(2))
    x = torch.arange(15.0).sin().reshape(5, 3).to(dtype)
    with torch.set_grad_enabled(grad):
        expected, found = reference(x), aot_function(lambda x: norm(x), nop, dynamic=dynamic)(x)
    assert torch.allclose(expected, found, atol=1e-3)
    for old, new in zip(reference.buffers(), norm.buffers(), strict=True):
        assert torch.allclose(old, new, atol=1e-5)
        assert old._version == new._version
