"""An error that leaves a capture says which line of the program, or which call, it comes from."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import packaging.version
import pytest
import torch
from packaging.version import InvalidVersion, Version
from torch import Tensor, nn

import runtime
from runtime.aot import (
    aot_export_joint_simple,
    aot_function,
    aot_module_simplified,
    export,
    make_fx,
    nop,
)
from runtime.func import functionalize
from runtime.jit import jit

Program = Callable[..., Any]
X = torch.tensor([1.0, 2.0, 3.0])
HERE = re.escape(__file__)


def _exported(f: Program, *args: Any) -> Any:
    return export(f, args)


DOORS: dict[str, Callable[[Program], Program]] = {
    "jit": jit,
    "jit for any sizes": lambda f: jit(f, dynamic=True),
    "aot_function": lambda f: aot_function(f, nop),
    "make_fx": make_fx,
    "make_fx of symbols": lambda f: make_fx(f, tracing_mode="symbolic"),
    "make_fx before dispatch": lambda f: make_fx(f, pre_dispatch=True),
    "export": lambda f: partial(_exported, f),
    "functionalize": functionalize,
}


def wrong_shapes(x: Tensor) -> Tensor:
    y = x * 2
    return y @ torch.ones(4)


def no_such_element(x: Tensor) -> Tensor:
    y = x * 2
    return y[7]


def no_such_attribute(x: Tensor) -> Any:
    y = x * 2
    return y.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("program", [wrong_shapes, no_such_element, no_such_attribute])
def test_an_error_of_torch_keeps_its_class_and_gets_the_line(program: Program, door: str) -> None:
    with pytest.raises(Exception) as eager:
        program(X)
    with pytest.raises(type(eager.value)) as captured:
        DOORS[door](program)(X)
    assert type(captured.value) is type(eager.value)
    line = program.__code__.co_firstlineno + 2
    assert f"{__file__}:{line}: " in str(captured.value)


@pytest.mark.parametrize("door", ["jit", "aot_function", "make_fx", "export", "functionalize"])
@pytest.mark.parametrize("program", [wrong_shapes, no_such_element])
def test_torchs_words_are_the_first_line_of_the_message(program: Program, door: str) -> None:
    with pytest.raises((RuntimeError, IndexError)) as eager:
        program(X)
    with pytest.raises(type(eager.value)) as captured:
        DOORS[door](program)(X)
    assert str(captured.value).splitlines()[0] == str(eager.value)


class Coded(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("error", [ValueError("negative"), Coded(3), KeyError("k")], ids=repr)
def test_an_error_that_the_program_raises_stays_as_it_is(error: Exception, door: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        if y.dim():
            raise error
        return y

    before = error.args
    with pytest.raises(type(error)) as raised:
        DOORS[door](program)(X)
    assert raised.value is error and error.args == before
    line = program.__code__.co_firstlineno + 3
    assert any(f"{__file__}:{line}: raise error" in note for note in error.__notes__)
    del error.__notes__


def test_a_line_is_named_once() -> None:
    inner = aot_function(wrong_shapes, nop)
    with pytest.raises(RuntimeError) as raised:
        make_fx(functionalize(lambda x: inner(x) + 1))(X)
    assert str(raised.value).count(__file__) == 1


@pytest.mark.parametrize("door", DOORS)
def test_a_program_without_a_line_of_its_own_gets_that_of_the_call(door: str) -> None:
    with pytest.raises(RuntimeError, match=rf"\nThe call is at {HERE}:\d+: "):
        DOORS[door](nn.Linear(4, 2).forward)(X)


def test_an_error_beside_a_size_of_any_value_names_the_line_and_the_way_out() -> None:
    def program(x: Any) -> Any:
        return x.shape[0] @ x

    line = program.__code__.co_firstlineno + 1
    with pytest.raises(TypeError) as raised:
        make_fx(program, tracing_mode="symbolic")(X)
    assert str(raised.value).endswith(
        "If that is the cause, int(size) makes one a constant. "
        f"It happened at {__file__}:{line}: return x.shape[0] @ x"
    )


def test_a_later_call_names_the_line_of_the_program_and_not_of_the_generated_code() -> None:
    def program(x: Tensor, i: Tensor) -> Tensor:
        y = x * 2
        return y[i]

    line = program.__code__.co_firstlineno + 2
    for door in (jit, DOORS["aot_function"]):
        f = door(program)
        f(X, torch.tensor([1]))
        with pytest.raises(IndexError) as raised:
            f(X, torch.tensor([7]))
        assert f"{__file__}:{line}: return y[i]" in str(raised.value)


# --- refusals of this package, and what to do -----------------------------------------------------


def refusal(f: Callable[[], Any]) -> str:
    with pytest.raises(RuntimeError) as raised:
        f()
    return str(raised.value)


@pytest.mark.parametrize(
    "capture",
    [
        lambda m: jit(m)(X),
        lambda m: jit(lambda x: m(x))(X),
        lambda m: aot_function(m, nop)(X),
        lambda m: export(m, (X,)),
    ],
    ids=["jit", "jit of a function", "aot_function", "export"],
)
def test_a_lazy_module_is_to_be_called_before(capture: Callable[[nn.Module], Any]) -> None:
    module = nn.LazyLinear(2)
    assert re.search(
        rf"Call the module once before the program is captured\. It happened at {HERE}:",
        refusal(lambda: capture(module)),
    )
    module(X)
    capture(module)


def test_a_write_to_memory_that_is_closed_over_too_names_the_write() -> None:
    shared = torch.ones(3)

    def program(x: Tensor) -> Tensor:
        x.add_(1)
        return x * shared

    line = program.__code__.co_firstlineno + 1
    text = refusal(lambda: jit(program)(shared[:]))
    assert text.endswith(f"Pass them all as arguments. It happened at {__file__}:{line}: x.add_(1)")


def test_a_write_that_no_result_of_an_exported_graph_stands_for_names_the_write() -> None:
    def program(x: Tensor) -> tuple[Tensor]:
        x.add_(1)
        return (x * 2,)

    line = program.__code__.co_firstlineno + 1
    text = refusal(lambda: aot_export_joint_simple(program, (X.clone(),), trace_joint=False))
    assert text.endswith(f"write to a copy. It happened at {__file__}:{line}: x.add_(1)")


def test_a_tensor_or_number_that_is_added_to_a_list_names_the_line_that_computes_it() -> None:
    log: list[Any] = []

    def a_number(x: Tensor) -> Tensor:
        loss = x.sum().item()
        log.append(loss)
        return x

    def a_tensor(x: Tensor) -> Tensor:
        loss = x.sum()
        log.append(loss)
        return x

    for program in (a_number, a_tensor):
        line = program.__code__.co_firstlineno + 1
        text = refusal(lambda f=program: [jit(f)(X) for _ in range(2)])  # type: ignore[misc]
        assert f"It was computed at {__file__}:{line}: loss = " in text
        assert not log


@pytest.mark.parametrize("captured", [False, True])
def test_a_hook_for_torchs_own_engine_is_refused_where_it_is_registered(captured: bool) -> None:
    def program(x: Tensor) -> Tensor:
        a, b = x * 2, x * 3
        torch.autograd.graph.register_multi_grad_hook((a, b), lambda gs: None)
        return a * b

    w = runtime.wrap(torch.ones(3), requires_grad=True)
    f = jit(program) if captured else program
    line = program.__code__.co_firstlineno + 2
    text = refusal(lambda: f(w))
    assert "runtime.autograd.graph" in text and f"{__file__}:{line}" in text


def test_the_hook_of_this_package_is_none_of_torchs_engine() -> None:
    seen: list[Any] = []
    w = runtime.wrap(torch.ones(3), requires_grad=True)
    a, b = w * 2, w * 3
    runtime.autograd.graph.register_multi_grad_hook((a, b), lambda gs: seen.append(gs))
    (a * b).sum().backward()
    assert [g.tolist() for g in seen[0]] == [[3.0] * 3, [2.0] * 3]


# --- what is no error any more --------------------------------------------------------------------


class Keyed:
    """An object whose attributes are items of a dictionary, so that a KeyError says what lacks."""

    def __getattr__(self, name: str) -> Any:
        return {"rate": 2.0}[name]


class KeyedWithoutDict(Keyed):
    __slots__ = ()


@pytest.mark.parametrize("kind", [Keyed, KeyedWithoutDict])
@pytest.mark.parametrize(
    "run",
    [
        lambda f: jit(f)(X),
        lambda f: aot_function(f, nop)(X),
        lambda f: make_fx(f)(X)(X),
        lambda f: export(f, (X,)).module()(X),
    ],
    ids=["jit", "aot_function", "make_fx", "export"],
)
def test_looking_into_an_object_runs_no_getattr_of_the_users(
    run: Callable[[Program], Any], kind: type
) -> None:
    settings = kind()
    assert run(lambda x: x * settings.rate).tolist() == [2.0, 4.0, 6.0]


def test_transforms_of_torch_see_the_program_of_a_jitted_function() -> None:
    f = jit(lambda x: (x * x).sum())
    for _ in range(2):
        assert torch.func.grad(f)(X).tolist() == [2.0, 4.0, 6.0]
        assert torch.func.vmap(f)(X[:, None]).tolist() == [1.0, 4.0, 9.0]
        assert torch.func.jvp(f, (X,), (X,))[1].item() == 28.0
        assert f(X).item() == 14.0  # and a call goes on to be a program
    assert len(f.captured) == 1


def test_transforms_of_torch_see_the_module_of_a_compiled_one() -> None:
    class Squares(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x * x,)

    run = aot_module_simplified(Squares(), (X,), nop)
    assert torch.func.grad(lambda x: run(x)[0].sum())(X).tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("door", ["jit", "aot_function", "functionalize"])
@pytest.mark.parametrize(
    "make",
    [torch.tensor, torch.as_tensor, torch.asarray],
    ids=["tensor", "as_tensor", "asarray"],
)
def test_a_tensor_of_a_list_has_what_the_program_computes(
    make: Callable[..., Tensor], door: str
) -> None:
    t = torch.tensor(3.0)

    def program(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nested = make([[t, x.sum()], [1.5, 2 * t]])
        return x * make([t, 2 * t, t]), nested, make([t, x[0]], dtype=torch.float64)

    captured = DOORS[door](program)
    for x in (X, X + 1):
        for found, wanted in zip(captured(x), program(x), strict=True):
            assert found.dtype is wanted.dtype and torch.equal(found, wanted)


@pytest.mark.parametrize("door", DOORS)
def test_an_error_in_another_package_says_both_lines(door: str) -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        return y * Version("none").major

    with pytest.raises(InvalidVersion) as caught:
        DOORS[door](program)(X)
    text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert re.search(rf"It happened at {re.escape(packaging.version.__file__)}:\d+: ", text)
    line = program.__code__.co_firstlineno + 2
    assert f"\nIt was called at {__file__}:{line}: return y * Version" in text
