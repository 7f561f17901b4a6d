"""What a custom Function's backward and a hook read of Python's state: the values of the call, or a
refusal where they have changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import runtime.dropin
from runtime import jit

Program = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def _recorded_by_the_runtime() -> Iterator[None]:
    with runtime.dropin.installed():
        yield


class State:
    """Holds a factor in several ways, and programs whose backward pass reads one."""

    def __init__(self) -> None:
        self.number = 2.0
        self.tensor = torch.tensor([2.0])
        self.items = [2.0]
        self.table = {"factor": [2.0]}
        self.holder = SimpleNamespace(factor=2.0)

    def set(self, factor: float) -> None:
        self.number = factor
        self.tensor = torch.tensor([factor])
        self.items[0] = factor
        self.table["factor"] = [factor]
        self.holder.factor = factor

    def read(self, way: str) -> Any:
        readers: dict[str, Callable[[], Any]] = {
            "number": lambda: self.number,
            "tensor": lambda: self.tensor,
            "item": lambda: self.items[0],
            "table": lambda: self.table["factor"][0],
            "held": lambda: self.holder.factor,
            "computed name": lambda: getattr(self, "num" + "ber"),
        }
        return readers[way]()

    def by_function(self, way: str) -> Program:
        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Tensor) -> Tensor:
                return x * 1

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Tensor:
                return gradient * self.read(way)  # type: ignore[no-any-return]

        apply: Any = Scale.apply
        return lambda x: apply(x) * 1

    def by_hook(self, way: str) -> Program:
        def program(x: Tensor) -> Tensor:
            y = x * 1
            y.register_hook(lambda gradient: gradient * self.read(way))
            return y * 1

        return program


WAYS = ["number", "tensor", "item", "table", "held", "computed name"]
FACTORS = [2.0, 2.0, 3.0, 3.0, 4.0, 5.0, 6.0, 2.0]


def leaf() -> Tensor:
    return torch.ones(1, requires_grad=True)


def slope(program: Program) -> float:
    x = leaf()
    program(x).sum().backward()
    assert x.grad is not None
    return x.grad.item()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["by_function", "by_hook"])
def test_a_backward_pass_reads_what_was_there_at_the_call(kind: str, way: str) -> None:
    state = State()
    program = jit(getattr(state, kind)(way))
    found = []
    for factor in FACTORS:
        state.set(factor)
        found.append(slope(program))
    assert found == FACTORS


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["by_function", "by_hook"])
def test_a_backward_pass_is_refused_if_what_it_reads_has_changed_since(kind: str, way: str) -> None:
    state = State()
    program = jit(getattr(state, kind)(way))
    for factor in (3.0, 4.0, 5.0):
        state.set(2.0)
        x = leaf()
        y = program(x)
        state.set(factor)
        with pytest.raises(RuntimeError, match="changed since the call"):
            y.sum().backward()
        assert x.grad is None
    state.set(2.0)
    assert slope(program) == 2.0


def test_a_change_of_what_a_backward_pass_does_not_read_is_none_of_it() -> None:
    holder = SimpleNamespace(factor=2.0, other=1.0)

    def program(x: Tensor) -> Any:
        y = x * holder.other
        y.register_hook(lambda gradient: gradient * holder.factor)
        return y * 1

    x = leaf()
    y = jit(program)(x)
    holder.other = 3.0
    y.sum().backward()
    assert x.grad is not None and x.grad.item() == 2.0


def test_the_refusal_names_the_place_and_the_line() -> None:
    holder = SimpleNamespace(factor=2.0)

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * holder.factor)
        return y * 1

    y = jit(program)(leaf())
    holder.factor = 3.0
    with pytest.raises(RuntimeError, match=r"reads 'factor' of .*\n?.*register_hook"):
        y.sum().backward()


def test_a_second_derivative_reads_what_was_there_at_the_call() -> None:
    state = State()
    scaled = state.by_function("number")
    jitted = jit(lambda x: scaled(x**3))
    found = []
    for factor in FACTORS:
        state.set(factor)
        x = leaf()
        (first,) = torch.autograd.grad(jitted(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        found.append((first.item(), second.item()))
    assert found == [(3 * factor, 6 * factor) for factor in FACTORS]


def test_a_second_derivative_is_refused_if_what_it_reads_has_changed_since_the_first() -> None:
    state = State()
    scaled = state.by_function("number")
    compiled = jit(lambda x: scaled(x**3).sin())
    for factor in (3.0, 4.0, 5.0):
        state.set(2.0)
        x = leaf()
        (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        state.set(factor)
        with pytest.raises(RuntimeError, match="changed since the call"):
            torch.autograd.grad(first.sum(), x)


def test_a_number_that_has_become_an_argument_is_compared_by_the_pass() -> None:
    factor = 2.0

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * factor)
        return y * 1

    compiled = jit(program)
    for later in (3.0, 4.0, 5.0, 6.0):
        assert slope(compiled) == factor
        y = compiled(leaf())
        factor = later
        with pytest.raises(RuntimeError, match="changed since the call"):
            y.sum().backward()


CHANGES: dict[str, Callable[[], tuple[Program, Callable[[], object]]]] = {}


def _change(make: Callable[[], tuple[Program, Callable[[], object]]]) -> Any:
    CHANGES[make.__name__] = make
    return make


@_change
def attribute_of_a_parameter() -> tuple[Program, Callable[[], object]]:
    parameter = torch.nn.Parameter(torch.ones(1))
    parameter.scale = 2.0  # type: ignore[attr-defined]

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * parameter.scale)  # type: ignore[attr-defined]
        return y * 1

    return program, lambda: setattr(parameter, "scale", 3.0)


@_change
def flag_of_a_parameter() -> tuple[Program, Callable[[], object]]:
    parameter = torch.nn.Parameter(torch.ones(1))

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * (2 if parameter.requires_grad else 3))
        return y * 1

    return program, lambda: parameter.requires_grad_(False)


@_change
def method_of_a_function() -> tuple[Program, Callable[[], object]]:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    apply: Any = Scale.apply
    other = staticmethod(lambda ctx, gradient: gradient * 3)
    return lambda x: apply(x) * 1, lambda: setattr(Scale, "backward", other)


@_change
def version_of_a_tensor() -> tuple[Program, Callable[[], object]]:
    tensor = torch.ones(1)

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * (2 + tensor._version))
        return y * 1

    return program, lambda: tensor.add_(1)


@_change
def number_of_a_variable_around() -> tuple[Program, Callable[[], object]]:
    factor = 2.0

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * factor)
        return y * 1

    def change() -> None:
        nonlocal factor
        factor = 3.0

    return program, change


def _hook(gradient: Tensor, factor: float = 2.0, *, other: float = 1.0) -> Tensor:
    return gradient * factor * other


def _with_hook(hook: Callable[[Tensor], Tensor]) -> Program:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(hook)
        return y * 1

    return program


def _copy_of_hook() -> Any:
    copied = FunctionType(_hook.__code__, globals(), "hook", _hook.__defaults__)
    copied.__kwdefaults__ = {"other": 1.0}
    return copied


@_change
def default_of_a_hook() -> tuple[Program, Callable[[], object]]:
    hook = _copy_of_hook()
    return _with_hook(hook), lambda: setattr(hook, "__defaults__", (3.0,))


@_change
def default_by_name_of_a_hook() -> tuple[Program, Callable[[], object]]:
    hook = _copy_of_hook()
    return _with_hook(hook), lambda: setattr(hook, "__kwdefaults__", {"other": 3.0})


@_change
def code_of_a_hook() -> tuple[Program, Callable[[], object]]:
    hook = _copy_of_hook()
    other: Any = lambda gradient, factor=2.0, *, other=1.0: gradient * 3  # noqa: E731
    return _with_hook(hook), lambda: setattr(hook, "__code__", other.__code__)


@_change
def argument_of_a_partial_hook() -> tuple[Program, Callable[[], object]]:
    hook = partial(_copy_of_hook(), other=1.0)
    return _with_hook(hook), lambda: hook.keywords.update(other=3.0)


@_change
def default_of_a_function() -> tuple[Program, Callable[[], object]]:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor, factor: float = 2.0) -> Tensor:
            return gradient * factor

    apply: Any = Scale.apply
    return lambda x: apply(x) * 1, lambda: setattr(Scale.backward, "__defaults__", (3.0,))


@pytest.mark.parametrize("name", CHANGES)
def test_what_else_a_backward_pass_may_read_is_compared(name: str) -> None:
    program, change = CHANGES[name]()
    compiled = jit(program)
    assert slope(compiled) == slope(compiled) == 2.0
    y = compiled(leaf())
    change()
    with pytest.raises(RuntimeError, match="changed since the call"):
        y.sum().backward()


def test_a_container_that_is_given_is_refused_where_the_backward_pass_reads_it() -> None:
    def program(x: Tensor, given: dict[str, float]) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * given["factor"])
        return y * 1

    with pytest.raises(RuntimeError, match="a container that the program is given"):
        jit(program)(leaf(), {"factor": 2.0})

    def by_item(x: Tensor, given: dict[str, float]) -> Tensor:
        factor = given["factor"]
        y = x * 1
        y.register_hook(lambda gradient: gradient * factor)
        return y * 1

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, given: dict[str, float]) -> Tensor:
            ctx.given = given
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            return gradient * ctx.given["factor"], None

    apply: Any = Scale.apply
    with pytest.raises(RuntimeError, match="a container that the program is given"):
        jit(lambda x, given: apply(x, given) * 1)(leaf(), {"factor": 2.0})

    compiled = jit(by_item)
    for factor in (2.0, 3.0, 4.0):
        x = leaf()
        compiled(x, {"factor": factor}).sum().backward()
        assert x.grad is not None and x.grad.item() == factor


def test_a_step_that_runs_its_own_backward_pass_reads_the_present_values() -> None:
    state = State()
    by_hook = state.by_hook("number")

    @jit
    def step(x: Tensor) -> Any:
        (gradient,) = torch.autograd.grad(by_hook(x).sum(), x)
        return gradient

    found = []
    for factor in FACTORS:
        state.set(factor)
        found.append(step(leaf()).item())
    assert found == FACTORS


def test_two_calls_in_a_row_have_their_backward_passes_after_both() -> None:
    state = State()
    program = jit(state.by_function("number"))
    inputs = [leaf(), leaf()]
    results = [program(x) for x in inputs]
    for y in results:
        y.sum().backward()
    assert [x.grad.item() for x in inputs if x.grad is not None] == [2.0, 2.0]


def test_what_a_hook_draws_from_a_generator_is_drawn_by_the_pass() -> None:
    def gradients(compile_: Callable[[Program], Program]) -> list[float]:
        generator = torch.Generator().manual_seed(0)

        def program(x: Tensor) -> Tensor:
            y = x * torch.rand((), generator=generator)
            y.register_hook(lambda gradient: gradient * torch.rand((), generator=generator))
            return y * 1

        return [slope(compile_(program)) for _ in range(1)] + [
            slope(compiled) for compiled in [compile_(program)] for _ in range(4)
        ]

    assert gradients(jit) == gradients(lambda f: f)


class Counting:
    """Counts its calls, and has a mean of its arguments and a rate."""

    def __init__(self) -> None:
        self.calls = 0.0
        self.rate = 2.0
        self.mean = torch.zeros(1)
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def reads_count(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = x * 1
        y.register_hook(lambda gradient: gradient * self.calls)
        return y * 1

    def reads_rate(self, x: Tensor) -> Tensor:
        self.calls += 1
        y = x * 1
        y.register_hook(lambda gradient: gradient * self.rate)
        return y * 1

    def reads_mean(self, x: Tensor) -> Tensor:
        self.mean = self.mean * 0.9 + x.detach()
        y = x * 1
        y.register_hook(lambda gradient: gradient * self.mean)
        return y * 1

    def reads_layer(self, x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * self.layer.weight.detach().sum())
        return y * 1


@pytest.mark.parametrize("name", ["reads_count", "reads_rate", "reads_mean", "reads_layer"])
def test_a_program_that_counts_may_have_hooks(name: str) -> None:
    def slopes(compile_: Callable[[Any], Any]) -> list[float]:
        state = Counting()
        program = compile_(getattr(state, name))
        found = []
        for _ in range(6):
            x = leaf()
            y = program(x)
            state.layer.eval()
            handle = state.layer.register_full_backward_hook(lambda module, before, after: None)
            y.sum().backward()
            state.layer.train()
            handle.remove()
            assert x.grad is not None
            found.append(x.grad.item())
        return found

    assert slopes(jit) == slopes(lambda f: f)


@pytest.mark.parametrize("name", ["reads_count", "reads_mean"])
def test_of_two_calls_the_pass_of_the_first_is_refused(name: str) -> None:
    state = Counting()
    program = jit(getattr(state, name))
    for _ in range(4):  # until the program is captured
        program(leaf()).sum().backward()
    first, second = leaf(), leaf()
    results = [program(first), program(second)]
    with pytest.raises(RuntimeError, match="that has changed since the call"):
        results[0].sum().backward()
    assert first.grad is None
    results[1].sum().backward()
    factor = state.calls if name == "reads_count" else state.mean.item()
    assert second.grad is not None
    assert second.grad.item() == pytest.approx(factor)


@pytest.mark.parametrize("name", ["reads_rate", "reads_layer"])
def test_of_two_calls_each_pass_reads_what_the_calls_have_not_changed(name: str) -> None:
    state = Counting()
    program = jit(getattr(state, name))
    pairs = [(x, program(x)) for x in (leaf(), leaf(), leaf())]
    factor = state.rate if name == "reads_rate" else state.layer.weight.item()
    for x, y in pairs:
        y.sum().backward()
        assert x.grad is not None
        assert x.grad.item() == pytest.approx(factor)


@pytest.mark.parametrize("take", [lambda t: t.item(), float, lambda t: 2.0 if t > 1 else 3.0])
def test_a_number_that_a_hook_takes_from_a_tensor_is_refused(take: Callable[[Tensor], Any]) -> None:
    scale = torch.tensor(2.0)

    def program(x: Tensor) -> Tensor:
        y = x * 1
        y.register_hook(lambda gradient: gradient * take(scale))
        return y * 1

    with pytest.raises(
        RuntimeError, match=r"takes a number from a tensor|a backward pass branches on"
    ):
        jit(program)(leaf())


def test_an_attribute_may_have_the_name_of_a_method_of_tensors() -> None:
    tensor: Any = torch.ones(1)
    tensor.mean = 2.0
    compiled = jit(lambda x: x * tensor.mean)
    for factor in (2.0, 3.0, 4.0, 2.0):
        tensor.mean = factor
        assert compiled(torch.ones(1)).item() == factor


LAYERS: dict[str, tuple[nn.Module, Callable[[Any], object]]] = {
    "a flag": (nn.Dropout(1.0), lambda layer: layer.eval()),
    "a hook": (nn.Identity(), lambda layer: layer.register_forward_hook(lambda m, a, r: r * 2)),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_that_a_custom_backward_runs_may_not_change_before_the_pass(kind: str) -> None:
    layer, change = LAYERS[kind]

    class Through(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            return layer(g)

    through: Any = Through.apply
    f = jit(lambda x: through(x).sum())
    x = torch.ones(2, requires_grad=True)
    f(x).backward()  # nothing has changed
    result = f(x)
    change(layer)
    with pytest.raises(RuntimeError, match="that has changed since the call"):
        result.backward()


@pytest.mark.parametrize("compare", [torch.equal, torch.allclose])
def test_a_comparison_of_tensors_in_a_hook_of_a_result_is_refused(compare: Any) -> None:
    weight, other = torch.ones(2), torch.ones(2)

    def hook(grad: Any) -> Any:
        return grad * 2 if compare(weight, other) else grad * 5

    @jit
    def f(x: Any) -> Any:
        result = x * 1
        result.register_hook(hook)
        return result

    with pytest.raises(RuntimeError, match="takes a number from a tensor"):
        f(torch.ones(1, requires_grad=True))
