"""``make_fx`` takes tensors that consist of others as they are: their calls are in the graph, not
those on their parts."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from runtime.aot import make_fx


def test_a_subclass_that_a_traced_program_makes_is_refused() -> None:
    for f in (lambda x: TwoTensor(x, x * 2), lambda x: TwoTensor(x, x * 2) + 1):
        with pytest.raises(
            RuntimeError, match="the program makes a TwoTensor of tensors that are traced"
        ):
            make_fx(f)(torch.ones(2))


def test_a_trace_on_abstract_values_takes_no_subclass() -> None:
    for mode in ("fake", "symbolic"):
        with pytest.raises(
            RuntimeError, match="a TwoTensor is an input of a trace on abstract values"
        ):
            make_fx(torch.sin, tracing_mode=mode)(TwoTensor(torch.ones(2), torch.ones(2)))


def test_a_trace_on_real_values_takes_a_subclass_whole() -> None:
    x = TwoTensor(torch.ones(2), torch.zeros(2))
    out = make_fx(lambda y: y * x)(TwoTensor(torch.ones(2), torch.full((2,), 3.0)))(x + 1)
    assert out.a.tolist() == [2.0, 2.0] and out.b.tolist() == [0.0, 0.0]
