"""A program that asks for the class or the flags of a tensor takes the branch that it
takes in eager mode."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot import aot_function, nop
from tests.runtime.aot.subclass_helpers import Scaled, as_in_torch, nested, two


def by_class(x: Any) -> Any:
    return x * 2 if isinstance(x, TwoTensor) else x * 3


def by_class_of_a_result(x: Any) -> Any:
    y = x.sin()
    view = y[0]
    return [t * 2 if isinstance(t, TwoTensor) else t * 3 for t in (y, view, view.sum(), y.detach())]


def by_class_after_a_write(x: Any) -> Any:
    x.mul_(2)
    x.t_()
    return x * 2 if isinstance(x, TwoTensor) else x * 3


def by_class_under_no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x.exp()
    return x * 2 + (y * 2 if isinstance(y, TwoTensor) else y * 3)


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize(
    "program", [by_class, by_class_of_a_result, by_class_after_a_write, by_class_under_no_grad]
)
def test_isinstance_is_as_in_torch(program: Any, make: Any) -> None:
    as_in_torch(program, lambda: [make()])


@pytest.mark.parametrize("dynamic", [False, True])
def test_plain_tensors_and_other_classes_take_the_other_side(dynamic: bool) -> None:
    compiled = aot_function(by_class, nop, dynamic=dynamic)
    x = torch.ones(2, 3)
    assert compiled(x).equal(x * 3)
    assert compiled(TwoTensor(x, x * 5)).b.equal(x * 10)
    scaled = compiled(Scaled(x, 4.0))
    assert (scaled.elements * scaled.scale).equal(x * 12)
    with torch.no_grad():
        assert compiled(TwoTensor(x, x * 5)).b.equal(x * 10)


def test_a_closed_over_tensor_shows_its_class() -> None:
    w = TwoTensor(torch.ones(2), torch.ones(2) * 5)
    found = aot_function(lambda x: by_class(w * x), nop)(torch.ones(2))
    assert found.a.tolist() == [2.0, 2.0] and found.b.tolist() == [10.0, 10.0]


@pytest.mark.parametrize(
    "ask",
    [
        lambda x: x.a,
        lambda x: hasattr(x, "a"),
        lambda x: (x * 2).b,
        lambda x: getattr(x, "a", None),
    ],
)
@pytest.mark.parametrize("recording", [False, True])
def test_other_attributes_of_the_class_are_refused_by_name(ask: Any, recording: bool) -> None:
    def program(x: Any) -> Any:
        ask(x)
        return x * 2

    with (
        torch.set_grad_enabled(recording),
        pytest.raises(
            RuntimeError, match=r"asks a TwoTensor for its attribute '[ab]'.*test_shown\.py"
        ),
    ):
        aot_function(program, nop)(TwoTensor(torch.ones(2), torch.ones(2)))


def test_attributes_that_the_class_does_not_have_are_absent() -> None:
    def program(x: Any) -> Any:
        return x * 2 if hasattr(x, "scale") else x * 3

    found = aot_function(program, nop)(TwoTensor(torch.ones(2), torch.ones(2)))
    assert found.a.tolist() == [3.0, 3.0]


def by_flags(x: Any) -> Any:
    return x * 2 if x.requires_grad else x * 3


def by_leaf(x: Any) -> Any:
    return x * 2 if x.is_leaf else x * 3


ARGUMENTS = {
    "leaf": lambda: torch.ones(2, requires_grad=True),
    "result": lambda: torch.ones(2, requires_grad=True) * 1,
    "view": lambda: torch.ones(2, requires_grad=True)[:],
    "parameter": lambda: torch.nn.Parameter(torch.ones(2)),
    "session's leaf": lambda: runtime.tensor([1.0, 1.0], requires_grad=True),
    "session's result": lambda: runtime.tensor([1.0, 1.0], requires_grad=True) * 1,
    "plain": lambda: torch.ones(2),
    "subclass": lambda: TwoTensor(torch.ones(2), torch.ones(2)).requires_grad_(),
}


def outcome(f: Any, x: Any) -> Any:
    y = runtime.unwrap(f(x))
    return (y.a if isinstance(y, TwoTensor) else y).tolist()


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("first", ARGUMENTS)
@pytest.mark.parametrize("second", ["plain", "leaf", "result"])
def test_without_grad_mode_an_argument_shows_whether_it_requires_grad(
    mode: Any, first: str, second: str
) -> None:
    compiled = aot_function(by_flags, nop)
    for name in (first, second, first):
        x = ARGUMENTS[name]()  # type: ignore[no-untyped-call]
        with mode():
            assert outcome(compiled, x) == outcome(by_flags, x)


@pytest.mark.parametrize("kind", [k for k in ARGUMENTS if k != "subclass"])
def test_in_inference_mode_an_argument_shows_whether_it_is_a_leaf(kind: str) -> None:
    compiled = aot_function(by_leaf, nop)
    for name in (kind, "leaf", "result"):
        x = ARGUMENTS[name]()  # type: ignore[no-untyped-call]
        with torch.inference_mode():
            assert outcome(compiled, x) == outcome(by_leaf, x)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: by_flags(x.view(-1)),
        lambda x: by_flags(x[:1]),
        lambda x: by_flags(x.detach().view(-1)),
        lambda x: by_flags(x.view(-1).view(2, 1)),
    ],
)
@pytest.mark.parametrize("recording", [False, True])
def test_a_view_that_is_taken_without_grad_mode_shows_what_its_base_shows(
    program: Any, recording: bool
) -> None:
    def inside(x: Any) -> Any:
        with torch.no_grad():
            return program(x)

    x = torch.ones(2, requires_grad=True)
    with torch.set_grad_enabled(recording):
        assert aot_function(inside, nop)(x).equal(inside(x))


def test_without_grad_mode_a_product_with_a_transposed_weight_is_eagers() -> None:
    x, w = torch.randn(5, 7, 257).transpose(0, 1), torch.randn(1, 257, requires_grad=True)
    with torch.no_grad():
        assert aot_function(lambda x, w: x @ w.t(), nop)(x, w).equal(x @ w.t())
        assert aot_function(lambda x: torch.nn.functional.linear(x, w), nop)(x).equal(
            torch.nn.functional.linear(x, w)
        )


def test_one_tensor_that_is_given_twice_shows_its_flag() -> None:
    def program(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2 if x.requires_grad and y.requires_grad else y * 3

    x = torch.ones(2, requires_grad=True) * 1
    with torch.no_grad():
        assert aot_function(program, nop)(x, x).tolist() == [4.0, 4.0]


def test_under_no_grad_a_history_that_would_cross_to_torchs_autograd_is_refused() -> None:
    def program(x: Any) -> Any:
        with torch.enable_grad():
            return x * 2

    x = torch.ones(2, requires_grad=True) * 1
    with (
        torch.no_grad(),
        pytest.raises(
            RuntimeError, match=r"the gradient cannot cross.* Pass its detach\(\).*return x \* 2"
        ),
    ):
        aot_function(program, nop)(x)

    def detached(x: Any) -> Any:
        with torch.enable_grad():
            return x.detach() * 2

    with torch.no_grad():
        assert aot_function(lambda x: x * 2, nop)(x).tolist() == [2.0, 2.0]
        assert aot_function(detached, nop)(x).tolist() == [2.0, 2.0]


class Asking(torch.autograd.Function):
    """Takes a branch by the flags of its arguments, which ``forward`` sees as the caller does."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return x * (2 if x.requires_grad else 3) + y * (5 if y.requires_grad else 7)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 11, g * 13


class AskingOurs(runtime.autograd.Function):
    forward = Asking.forward
    backward = Asking.backward


@pytest.mark.parametrize("flags", [(True, True), (True, False), (False, True)])
def test_in_the_forward_of_a_custom_function_an_argument_says_whether_it_requires_grad(
    flags: tuple[bool, bool],
) -> None:
    def program(function: Any) -> Any:
        def f(x: Any, y: Any) -> Any:
            x, y = x * 1, y * 1
            return function.apply(x, y) + function.apply(y, y)

        return f

    def run(f: Any, given: list[Any]) -> list[Any]:
        out = f(*given)
        out.sum().backward()
        return [
            runtime.unwrap(t).detach().tolist() if t is not None else None
            for t in (out, given[0].grad, given[1].grad)
        ]

    expected = run(program(Asking), [torch.ones(2, requires_grad=flag) for flag in flags])
    found = run(
        aot_function(program(AskingOurs), nop),
        [runtime.tensor([1.0, 1.0], requires_grad=flag) for flag in flags],
    )
    assert found == expected


class Keeps(runtime.autograd.Function):
    """Notes what its argument says of itself, and keeps it."""

    kept: list[Any] = []  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x: Any, fails: bool) -> Any:
        Keeps.kept.append((x, x.requires_grad, isinstance(x, torch.Tensor)))
        if fails:
            raise KeyError
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None


def test_values_say_that_they_require_grad_for_as_long_as_is_asked() -> None:
    def f(x: Any) -> Any:
        Keeps.kept.clear()
        y = x * 1
        for fails in (False, True):
            with suppress(KeyError):
                Keeps.apply(y, fails)
        assert [flag for _, *flags in Keeps.kept for flag in flags] == [True] * 4
        assert [value.requires_grad for value, *_ in Keeps.kept] == [False] * 2
        return x * 2

    x = runtime.tensor([1.0, 1.0], requires_grad=True)
    assert aot_function(f, nop, ignore=[Keeps.kept])(x).tolist() == [2.0, 2.0]


def test_special_attributes_of_the_class_are_absent() -> None:
    def program(x: Any) -> Any:
        return x * 2 if hasattr(x, "__tensor_flatten__") else x * 3

    found = aot_function(program, nop)(TwoTensor(torch.ones(2), torch.ones(2)))
    assert found.a.tolist() == [3.0, 3.0]


def test_what_a_plain_tensor_lacks_is_said_of_a_plain_tensor() -> None:
    def program(x: Any) -> Any:
        return x * 2 if hasattr(x, "scale") or hasattr(x * 2, "scale") else x * 3

    x: Any = torch.ones(2)
    assert aot_function(program, nop)(x).tolist() == [3.0, 3.0]
    x.scale = 2.0  # of this object, which the program does not see
    assert aot_function(lambda x: x * getattr(x, "scale", 5.0), nop)(x).tolist() == [5.0, 5.0]
