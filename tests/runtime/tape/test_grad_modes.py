"""Grad modes and inference mode: as context managers, functions and decorators, and what they mean
for tensors. Torch is the oracle."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime

from ..scenarios import OURS, same


def leaf(lib: Any) -> Any:
    return lib.tensor([1.0, 2.0], requires_grad=True)


@pytest.mark.parametrize("mode", ["no_grad", "enable_grad", "inference_mode"])
def test_modes_are_context_managers_and_restore_what_was(mode: str) -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        states = []
        for outside in (True, False):
            with lib.autograd.set_grad_enabled(outside):
                with getattr(lib.autograd, mode)():
                    states.append((x * 2).requires_grad)
                states.append((x * 2).requires_grad)
        return states

    same(scenario)


def test_set_grad_enabled_is_a_function_too() -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        lib.autograd.set_grad_enabled(False)
        off = (x * 2).requires_grad
        lib.autograd.set_grad_enabled(True)
        return off, (x * 2).requires_grad

    assert same(scenario) == [False, True]


Recording = Callable[[], bool]  # asks whether what is computed now is recorded


def _function(decorate: Any, records: Recording) -> Any:
    return decorate(records)()


def _generator(decorate: Any, records: Recording) -> Any:
    @decorate  # type: ignore[untyped-decorator]
    def generator() -> Any:
        got = yield records()
        yield got, records()

    steps = generator()
    first = next(steps)
    between = records()
    return first, between, steps.send("sent"), records()


def _coroutine(decorate: Any, records: Recording) -> Any:
    @decorate  # type: ignore[untyped-decorator]
    async def coroutine() -> bool:
        return records()

    return asyncio.run(coroutine())


def _method(decorate: Any, records: Recording) -> Any:
    class Owner:
        @decorate  # type: ignore[untyped-decorator]
        def method(self) -> bool:
            return records()

    return Owner().method()


@pytest.mark.parametrize("mode", ["no_grad", "enable_grad", "inference_mode"])
@pytest.mark.parametrize("decorated", [_function, _generator, _coroutine, _method])
def test_a_mode_is_a_decorator(decorated: Callable[[Any, Recording], Any], mode: str) -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        return decorated(getattr(lib.autograd, mode)(), lambda: bool((x * 2).requires_grad))

    same(scenario)


def test_what_no_grad_makes_is_a_leaf_without_history() -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        with lib.autograd.no_grad():
            y = x * 2
            z = lib.tensor([1.0], requires_grad=True)
        return y.is_leaf, y.requires_grad, y.grad_fn, z.requires_grad, (y * x).requires_grad

    same(scenario)


def test_hooks_and_rules_run_in_the_mode_of_the_pass() -> None:
    def scenario(lib: Any) -> Any:
        modes: list[bool] = []
        x = leaf(lib)
        y = x * x
        y.register_hook(lambda g: modes.append(torch.is_grad_enabled()))
        y.sum().backward(retain_graph=True)
        lib.autograd.grad(y.sum(), x, create_graph=True)
        with lib.autograd.no_grad():
            lib.autograd.grad(y, x, lib.tensor([1.0, 1.0]), create_graph=True)
        return modes, torch.is_grad_enabled()

    assert same(scenario) == [[False, True, True], True]


def test_tensors_of_inference_mode_say_so() -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        with lib.autograd.inference_mode():
            made, got = lib.tensor([1.0], requires_grad=True), x * 2
            inside = [
                made.is_inference(),
                got.is_inference(),
                got.requires_grad,
                got.grad_fn,
                x.is_inference(),
                made.view(1).is_inference(),
            ]
        return (
            inside,
            (got + 1).is_inference(),
            got.clone().is_inference(),
            got.view(2).is_inference(),
            got.detach().is_inference(),
        )

    same(scenario)


@pytest.mark.parametrize(
    "use",
    [
        lambda lib, x, t: x * t,
        lambda lib, x, t: x.clone().mul_(t),
        lambda lib, x, t: t.view(2).add_(1),
        lambda lib, x, t: t.requires_grad_(),
        lambda lib, x, t: t.add_(1),
        lambda lib, x, t: t._version,
        lambda lib, x, t: x + t,
        lambda lib, x, t: (x + t).grad_fn.name(),
        lambda lib, x, t: lib.autograd.grad((x + t).sum(), x),
        lambda lib, x, t: x.clone().add_(t),
        lambda lib, x, t: t.clone().requires_grad_().requires_grad,
    ],
)
def test_tensors_of_inference_mode_outside_of_it(use: Any) -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        with lib.autograd.inference_mode():
            t = x * 2
        return use(lib, x, t)

    same(scenario)


def test_graphs_made_before_inference_mode_stay_whole() -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        y = x * 3
        with lib.autograd.inference_mode():
            _ = y * 2
        y.sum().backward()
        return x.grad, x.grad.is_inference()

    assert same(scenario) == [[3.0, 3.0], False]


def test_inference_mode_can_be_off() -> None:
    x = leaf(OURS)
    with OURS.autograd.inference_mode(False):
        assert (x * 2).requires_grad and not torch.is_inference_mode_enabled()


@pytest.mark.parametrize("mode", ["no_grad", "inference_mode"])
def test_a_view_made_without_history_requires_grad_as_its_base_does_but_passes_nothing_on(
    mode: str,
) -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        y = x * 2
        with getattr(lib.autograd, mode)():
            of_leaf, of_result, of_plain = x.view(2), y.view(2), lib.tensor([1.0]).view(1)
            inside = [t.requires_grad for t in (of_leaf, of_result, of_plain)]
        flags = [
            (t.requires_grad, t.is_leaf, t.grad_fn is None, t.is_inference())
            for t in (of_leaf, of_result)
        ]
        out = (of_leaf * of_result).sum()
        recorded = out.requires_grad, out.grad_fn.name()
        out.backward()
        return inside, flags, recorded, x.grad, of_leaf.grad

    same(scenario)


def test_a_leaf_that_requires_grad_no_more_gets_none() -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        y = x * 2
        x.requires_grad_(False)
        y.sum().backward()
        return x.grad

    assert same(scenario) is None


def test_a_view_of_a_tensor_of_inference_mode_requires_grad_by_itself_only() -> None:
    def scenario(lib: Any) -> Any:
        with lib.autograd.inference_mode():
            made = leaf(lib)
            inside = made.view(2)
        return [(t.requires_grad, t.is_inference()) for t in (made, inside, made.view(2))]

    same(scenario)


@pytest.mark.parametrize("outside", [True, False])
def test_an_op_of_a_transform_leaves_the_mode_of_its_function_as_it_is(outside: bool) -> None:
    """Though it runs in the mode that was on around the transform."""
    seen: list[bool] = []

    def f(x: Any) -> Any:
        y = x * x
        seen.append(torch.is_grad_enabled())
        with torch.no_grad():
            z = x.exp()
            seen.append(torch.is_grad_enabled())
            z = z + 1
        seen.append(torch.is_grad_enabled())
        return (y * z).sum()

    x = torch.tensor([1.0, 2.0])
    with torch.set_grad_enabled(outside):
        found = runtime.func.grad(f)(x)
        assert torch.is_grad_enabled() is outside
    torch.testing.assert_close(found, 2 * x * (x.exp() + 1))
    assert seen == [True, False, True]
