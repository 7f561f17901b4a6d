"""Literals: tensors made of numbers in the text of a traced program. Their elements may be read
until a write changes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import batch_norm

from runtime import jit
from runtime.aot import aot_function, make_fx
from runtime.func import grad

X = torch.tensor([1.0, 2.0, 3.0])
READERS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda c: c.numpy(),
    "numpy, forced": lambda c: c.numpy(force=True),
    "asarray": np.asarray,
    "asarray of a dtype": lambda c: np.asarray(c, dtype=np.float64),
    "array": lambda c: np.array(c, copy=None),
    "tolist": lambda c: c.tolist(),
}
TRACERS: dict[str, Callable[[Any], Any]] = {
    "make_fx": lambda f: make_fx(f)(X),
    "make_fx, symbolic": lambda f: make_fx(f, tracing_mode="symbolic")(X),
    "make_fx, pre_dispatch": lambda f: make_fx(f, pre_dispatch=True)(X),
    "make_fx of grad": lambda f: make_fx(grad(lambda x: f(x).sum()))(X),
    "jit": lambda f: jit(f)(X),
    "aot_function": lambda f: aot_function(f, fw_compiler=lambda graph, _: graph)(X),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("tracer", TRACERS)
def test_the_elements_of_a_literal_are_those_of_the_text(tracer: str, reader: str) -> None:
    found: list[Any] = []

    def program(x: Tensor) -> Tensor:
        c = torch.tensor([1.5, -2.5, 3.5])
        found.append(READERS[reader](c))
        return x * c

    TRACERS[tracer](program)
    assert found
    for each in found:
        np.testing.assert_array_equal(each, READERS[reader](torch.tensor([1.5, -2.5, 3.5])))


def test_no_array_of_a_literal_writes_to_the_constants_of_the_graph() -> None:
    def program(x: Tensor) -> Tensor:
        c = torch.tensor([1.0, 2.0, 3.0])
        y = x * c
        with pytest.raises(ValueError, match="read-only"):
            c.numpy()[0] = 9.0
        copied = c.numpy().copy()
        copied[0] = 9.0
        return y + c

    torch.testing.assert_close(make_fx(program)(X)(X), X * X + X)


WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "itself": lambda c, x: c.fill_(5.0),
    "an element": lambda c, x: c.__setitem__(0, 9.0),
    "an element of the input": lambda c, x: c.__setitem__(0, x[1]),
    "a view": lambda c, x: c.view(3, 1).copy_(x[:, None]),
    "data": lambda c, x: c.data.fill_(5.0),
    "an alias": lambda c, x: c.detach().add_(1.0),
    "an argument out": lambda c, x: torch.sin(x, out=c[:]),
    "a list": lambda c, x: torch._foreach_add_([x.clone(), c[1:]], 1.0),
    "running statistics": lambda c, x: batch_norm(
        x[None].repeat(2, 1), c, torch.ones(3), training=True
    ),
}


@pytest.mark.parametrize("reader", ["asarray", "tolist"])
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("tracer", ["make_fx", "make_fx, pre_dispatch", "jit"])
def test_what_is_written_over_is_no_literal_of_the_text(
    tracer: str, write: str, reader: str
) -> None:
    def program(x: Tensor) -> Tensor:
        c = torch.tensor([1.0, 2.0, 3.0])
        WRITES[write](c, x)
        READERS[reader](c)
        return x * c

    with pytest.raises(RuntimeError, match="asks for the elements of a tensor"):
        TRACERS[tracer](program)


@pytest.mark.parametrize("tracer", ["make_fx", "make_fx, pre_dispatch", "make_fx, symbolic"])
def test_a_number_that_was_written_over_through_a_view_is_no_literal(tracer: str) -> None:
    def program(x: Tensor) -> Tensor:
        c = torch.tensor(2.0) + 1.0
        assert float(c) == 3.0
        c.view(1).copy_(x[:1])
        return x * float(c)

    with pytest.raises(
        RuntimeError,
        match=r"float\(\) asks for the elements of a tensor|data-dependent|a value of its own",
    ):
        TRACERS[tracer](program)


def test_other_literals_stay_literals_when_one_is_written_over() -> None:
    def program(x: Tensor) -> Tensor:
        b, c = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0])
        c[0] = 5.0
        batch_norm(x[None].repeat(2, 1), b, torch.ones(3), training=False)
        third: float = b.tolist()[2]
        return x * third + c

    torch.testing.assert_close(make_fx(program)(X)(X), X * 3.0 + 5.0)
