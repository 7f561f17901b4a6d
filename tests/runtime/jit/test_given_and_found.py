"""Tensors that a call is given and that its program also comes to by itself: as a variable of a
function around, an attribute, a key, a default."""

import functools
import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import pytest
import torch

import runtime
from runtime.aot import aot_function

Run = Callable[..., Any]
FRONT_DOORS = [runtime.jit, lambda f: aot_function(f, lambda graph, _: graph)]


@pytest.fixture(params=FRONT_DOORS, ids=["jit", "aot_function"])
def compiled(request: pytest.FixtureRequest) -> Any:
    return request.param


class Slotted:
    __slots__ = ("b",)
    b: torch.Tensor


class Pair(NamedTuple):
    b: torch.Tensor
    size: int


class Model:
    def __init__(self) -> None:
        self.w = torch.tensor([2.0, 3.0], requires_grad=True)
        self.b = torch.tensor([5.0, 7.0])
        self.names = {self.b: 1}
        self.layer = torch.nn.Module()
        self.layer.register_buffer("b", self.b)
        self.layer.register_parameter("w", torch.nn.Parameter(torch.ones(2)))


def _found(model: Model) -> dict[str, Run]:
    w, b, names, layer = model.w, model.b, model.names, model.layer
    slotted, pair, pairs = Slotted(), Pair(b, 2), {(b, 1): 2}
    slotted.b = b
    variable = ContextVar("variable", default=b)
    reference = weakref.ref(b)

    def by_default(x: torch.Tensor, found: torch.Tensor = b) -> torch.Tensor:
        return x * 2 if x is found else x * 3

    return {
        "computed with": lambda x: x * b if x is b else x + b,
        "a variable": lambda x: x * 2 if x is b else x * 3,
        "an attribute": lambda x: x * 2 if x is model.b else x * 3,
        "a leaf": lambda x: (x * w).detach() if x is w else x * 3,
        "a key": lambda x: x * names.get(x, 3),
        "a default": by_default,
        "a partial function": functools.partial(lambda x, found: x * (2 + (x is found)), found=b),
        "a slot": lambda x: x * (2 + (x is slotted.b)),
        "a field of a tuple": lambda x: x * (2 + (x is pair.b)),
        "a part of a key": lambda x: x * pairs.get((x, 1), 3),
        "a context variable": lambda x: x * (2 + (x is variable.get())),
        "a weak reference": lambda x: x * (2 + (x is reference())),
        "a buffer": lambda x: x * (2 + (x is layer.b)),
        "one of the buffers": lambda x: x * (2 + any(x is y for y in layer.buffers())),
        "written to": lambda x: (b.add_(1), x * b)[1],
        "written to by the argument": lambda x: (x.add_(1), x * b)[1],
    }


@pytest.mark.parametrize("first", ["found", "other"])
@pytest.mark.parametrize("kind", list(_found(Model())))
def test_the_argument_is_what_the_program_finds(compiled: Any, kind: str, first: str) -> None:
    mine, theirs = Model(), Model()
    run, expected = compiled(_found(mine)[kind]), _found(theirs)[kind]
    calls = ["w" if kind == "a leaf" else "b", "ones"]
    for call in (calls if first == "found" else calls[::-1]) * 3:
        x, y = (torch.ones(2) if call == "ones" else getattr(m, call) for m in (mine, theirs))
        assert torch.equal(run(x), expected(y)), call
        assert torch.equal(mine.b, theirs.b)


def test_a_gradient_counts_both_ways_to_the_tensor() -> None:
    w = torch.tensor([2.0, 3.0], requires_grad=True)

    @runtime.jit
    def step(x: torch.Tensor) -> None:
        (x * w).sum().backward()

    for x, slope in ((w, w * 2), (torch.ones(2), torch.ones(2)), (w, w * 2), (w, w * 2)):
        w.grad = None
        step(x)
        assert torch.equal(w.grad, slope.detach())  # type: ignore[arg-type]


def test_a_gradient_by_the_argument_is_one_by_the_closure() -> None:
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    run = runtime.jit(lambda d: torch.autograd.grad((d["x"] * w).sum(), d["x"])[0])
    for _ in range(3):
        assert torch.equal(run({"x": w}), 2 * w.detach())
        assert torch.equal(run({"x": torch.ones(2, requires_grad=True)}), w.detach())


def test_attributes_of_the_tensor_are_asked_for() -> None:
    b = torch.ones(2)
    run = runtime.jit(lambda x: x * b * getattr(x, "scale", 1))
    for scale in (2, 2, 3):
        b.scale = scale  # type: ignore[attr-defined]
        assert torch.equal(run(b), torch.full((2,), float(scale)))
        assert torch.equal(run(torch.ones(2)), torch.ones(2))


def test_items_of_a_data_set_are_arguments_of_one_program() -> None:
    batches = [torch.full((2,), float(n)) for n in range(6)]
    run = runtime.jit(lambda x: x / len(batches))
    for batch in batches:
        assert torch.equal(run(batch), batch / 6)
    assert len(run.captured) == 1


def test_the_report_says_which_argument_the_program_finds() -> None:
    b = torch.ones(2)
    run = runtime.jit(lambda x: x * b)
    run(b)
    assert "float32[2], which the program comes to by itself" in str(runtime.jit.explain(run))
