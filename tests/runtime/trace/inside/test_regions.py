"""Which calls a running trace sees.

Inside: ``runtime.trace.regions.traced``, which control flow, draws and checks ask before they act.
Each of them acts in its own way on the answer, so that no public name tells the answer alone."""

from __future__ import annotations

import torch
from torch import Tensor

from runtime.aot import make_fx
from runtime.func import grad
from runtime.trace.regions import running_traces, traced

X = torch.tensor([1.0, 2.0])


def test_a_trace_sees_a_call_while_it_runs_or_if_a_value_of_it_is_given() -> None:
    found: list[bool] = []

    def program(x: Tensor) -> Tensor:
        found.append(traced((), {}))

        def inner(y: Tensor) -> Tensor:
            with torch.utils._python_dispatch._disable_current_modes():
                found.extend(
                    (
                        traced((), {}),
                        traced((1, x), {}),
                        traced((), {"a": x}),
                        traced((y,), {}),
                        traced((X,), {"b": X}),
                    )
                )
            return y.sum()

        result: Tensor = grad(inner)(x)
        return result

    make_fx(program)(X)
    assert found == [True, False, True, True, True, False]
    assert not traced((X,), {"a": 1})


def test_running_traces_are_listed_from_outside() -> None:
    def program(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            outer, newest = running_traces()
            assert outer.number < newest.number
            return y.sin()

        module = make_fx(inner)(x)
        assert len(running_traces()) == 1
        result: Tensor = module(x)
        return result

    make_fx(program)(X)
    assert running_traces() == []
