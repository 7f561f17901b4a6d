"""Attributes that users give to tensors, in jitted functions."""

from typing import Any

import pytest
import torch

import runtime


def _with(scale: Any, x: Any = None) -> Any:
    t: Any = torch.ones(2) if x is None else x
    t.scale = scale
    return t


def _scaled(x: Any) -> Any:
    return x * getattr(x, "scale", 7)


def test_an_attribute_of_an_argument_is_that_of_each_call() -> None:
    run = runtime.jit(_scaled)
    plain = torch.ones(2)
    for x in (_with(3), plain, _with(5.0), plain, _with(3), _with(True), _with(1)):
        assert torch.equal(run(x), _scaled(x)), getattr(x, "scale", None)
    x = _with(3)
    run(x)
    x.scale = 4
    assert run(x).tolist() == [4.0, 4.0]
    del x.scale
    assert run(x).tolist() == [7.0, 7.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Parameter(torch.ones(2)),
        lambda: torch.ones(2, requires_grad=True),
        lambda: runtime.wrap(torch.ones(2), requires_grad=True),
    ],
    ids=["parameter", "leaf", "runtime"],
)
def test_a_leaf_that_has_an_attribute_gets_its_gradient(make: Any) -> None:
    run, x = runtime.jit(lambda d: _scaled(d["x"]).sum()), _with(3, make())
    for scale in (3, 5):
        x.scale, x.grad = scale, None
        run({"x": x}).backward()
        assert torch.equal(x.grad, torch.full((2,), float(scale)))


def test_a_tensor_of_the_state_has_its_attribute_as_an_argument_has() -> None:
    class Model:
        h = _with(2)

    model = Model()

    @runtime.jit
    def step() -> Any:
        result = _scaled(model.h)
        model.h = model.h + 1
        return result

    for n, scale in enumerate((2, 7, 7)):
        assert torch.equal(step(), torch.full((2,), (n + 1.0) * scale))
    model.h = _with(5)
    assert step().tolist() == [5.0, 5.0]


def test_an_attribute_that_may_change_is_refused_by_line() -> None:
    with pytest.raises(RuntimeError, match=r"attribute 'scale', a list.*test_asked_attributes"):
        runtime.jit(_scaled)(_with([1]))


def _marks(x: Any) -> Any:
    x.mark = 1
    return x * 2


def _returns_marked(x: Any) -> Any:
    y = x * 2
    y.mark = 1
    return {"y": y}


@pytest.mark.parametrize("program", [_marks, _returns_marked])
def test_an_attribute_that_a_call_would_lose_is_refused(program: Any) -> None:
    with pytest.raises(RuntimeError, match=r"assigns to the attribute 'mark'.*It happened"):
        runtime.jit(program)(torch.ones(2))


def test_what_a_tensor_has_not_raises_as_in_eager_mode() -> None:
    def program(x: Any) -> Any:
        try:
            return x.mark
        except AttributeError as error:
            return x * (2 if "mark" in str(error) else 3)

    assert runtime.jit(program)(torch.ones(1)).item() == 2.0


def test_a_jitted_function_inside_asks_for_the_one_around_it() -> None:
    def product(a: Any, b: Any) -> Any:
        return _scaled(a * 1) * b if a is b else _scaled(a) * b

    inner = runtime.jit(product)
    run = runtime.jit(lambda x, y: inner(x, x) + inner(x, y))
    x, y = _with(3), torch.full((2,), 5.0)
    for _ in range(2):
        assert torch.equal(run(x, y), product(x, x) + product(x, y))


def test_a_class_of_values_has_no_such_method_outside_of_a_capture() -> None:
    """Dynamo would know nothing of tensors of such a class."""
    runtime.jit(_scaled)(_with(3))
    assert not hasattr(runtime.Tensor, "__getattr__")


def test_a_parameter_among_the_arguments_is_one_for_the_program() -> None:
    def f(x: Any) -> Any:
        return x * (2 if isinstance(x, torch.nn.Parameter) else 3)

    run = runtime.jit(f)
    parameter, tensor = torch.nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True)
    for x in (parameter, tensor, parameter, tensor.detach(), parameter):
        assert torch.equal(run(x), f(x))
    assert len(runtime.jit.explain(run).programs) <= 3
