"""The ops of a layer of an LSTM for Inductor do what their kernels do, and say how much memory
the results take."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot import inductor

from .by_hand import aten, node_of, symbolic

LAYER: Any = torch.ops.torch_transform_matrix.lstm_layer.default
KERNEL: Any = aten.mkldnn_rnn_layer.default


def arguments(train: bool, device: str = "cpu") -> list[Any]:
    """Of a layer that maps five steps of two sequences of four numbers to three numbers each."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(5, 2, 4), (12, 4), (12, 3), (12,), (12,), (2, 3), (2, 3)]
    tensors = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    lstm, hidden, layers = 2, 3, 1
    return [*tensors, False, [], lstm, hidden, layers, True, False, False, train]


@pytest.mark.parametrize("train", [False, True])
def test_a_layer_gives_what_its_kernel_gives(train: bool) -> None:
    with torch.no_grad():
        *expected, workspace = KERNEL(*arguments(train))
        *found, mine = LAYER(*arguments(train), 0 if workspace is None else workspace.numel())
    torch.testing.assert_close(found, expected)
    expected_shape = (0,) if workspace is None else workspace.shape
    assert mine.shape == expected_shape and mine.dtype is torch.uint8


def test_a_layer_takes_arguments_of_any_layout() -> None:
    args = arguments(False)
    others = [
        a.mT.contiguous().mT if isinstance(a, torch.Tensor) and a.dim() > 1 else a for a in args
    ]
    assert not others[0].is_contiguous()
    with torch.no_grad():
        torch.testing.assert_close(LAYER(*others, 0), LAYER(*args, 0))


def test_without_memory_a_layer_has_its_results_sizes_and_the_workspace_it_is_told() -> None:
    out, hidden, cell, workspace = LAYER(*arguments(True, "meta"), 7)
    assert [t.shape for t in (out, hidden, cell, workspace)] == [(5, 2, 3), (2, 3), (2, 3), (7,)]
    assert {t.device.type for t in (out, hidden, cell, workspace)} == {"meta"}


@pytest.mark.parametrize("turned", [False, True])
def test_the_backward_of_a_layer_gives_what_its_kernel_gives(turned: bool) -> None:
    *inputs, reverse, sizes, mode, hidden, layers, biases, bidirectional, batch_first, train = (
        arguments(True)
    )
    with torch.enable_grad():
        *results, workspace = KERNEL(*(t.requires_grad_() for t in inputs), *arguments(True)[7:])
    assert workspace is not None
    given = [t.detach() for t in (*inputs, *results)] + [torch.rand_like(t) for t in results]
    facts = (
        reverse,
        mode,
        hidden,
        layers,
        biases,
        train,
        bidirectional,
        sizes,
        batch_first,
        workspace,
    )
    expected = aten.mkldnn_rnn_layer_backward.default(*given, *facts)
    if turned:
        given = [t.mT.contiguous().mT if t.dim() > 1 else t for t in given]
    found = torch.ops.torch_transform_matrix.lstm_layer_backward.default(*given, *facts)
    torch.testing.assert_close(list(found), list(expected))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("which", range(4))
def test_a_layer_of_symbolic_sizes_is_refused(which: int) -> None:
    graph, given = fx.Graph(), arguments(True)
    inputs = [node_of(value, graph, f"x{i}") for i, value in enumerate(given[:7])]
    layer = graph.call_function(KERNEL, (*inputs, *given[7:]))
    layer.meta["val"] = tuple(symbolic(0) if i == which else torch.ones(2) for i in range(4))
    out = graph.call_function(operator.getitem, (layer, 0))
    out.meta["val"] = layer.meta["val"][0]
    graph.output([out])
    with pytest.raises(
        RuntimeError,
        match=r"a layer of an LSTM, has a workspace of unknown size.*: say dynamic=False",
    ):
        inductor(fx.GraphModule({}, graph), given[:7], isolated=False)
