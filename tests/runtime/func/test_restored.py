"""A transform leaves the state of the thread as it was, whether its function returns or fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._ops import _len_torch_dispatch_stack_pre_dispatch

import runtime
from runtime.aot import make_fx
from runtime.autograd import forward_ad
from runtime.func import (
    functional_call,
    functionalize,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    vjp,
    vmap,
)
from runtime.func.batch import current_fallback_policy

Apply = Callable[[Callable[..., Any], torch.Tensor], Any]
APPLIED: dict[str, Apply] = {
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x),
    "a pullback": lambda f, x: vjp(lambda x: (x * 2).sum(), x)[1](f(x[0])),
    "jvp": lambda f, x: jvp(f, (x,), (x,)),
    "linearize": lambda f, x: linearize(f, x),
    "jacrev": lambda f, x: jacrev(f)(x),
    "jacrev row by row": lambda f, x: jacrev(f, chunk_size=1)(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "hessian": lambda f, x: hessian(f)(x),
    "vmap": lambda f, x: vmap(f)(x),
    "vmap in pieces": lambda f, x: vmap(f, chunk_size=1)(x),
    "vmap with one draw": lambda f, x: vmap(f, randomness="same")(x),
    "vmap with draws": lambda f, x: vmap(f, randomness="different")(x),
    "vmap over nothing": lambda f, x: vmap(f)(x[:0]),
    "functionalize": lambda f, x: functionalize(f)(x),
    "functionalize without views": lambda f, x: functionalize(f, remove="mutations_and_views")(x),
    "a graph": lambda f, x: make_fx(f)(x),
    "a fake graph": lambda f, x: make_fx(f, tracing_mode="fake")(x),
    "a symbolic graph": lambda f, x: make_fx(f, tracing_mode="symbolic")(x),
    "a graph before dispatch": lambda f, x: make_fx(f, pre_dispatch=True)(x),
    "a graph with stacks": lambda f, x: make_fx(
        f, record_module_stack=True, record_stack_traces=True
    )(x),
    "grad of vmap": lambda f, x: grad(lambda x: vmap(f)(x).sum())(x),
    "vmap of grad": lambda f, x: vmap(grad(f))(x),
    "a graph of vmap of jvp": lambda f, x: make_fx(vmap(lambda x: jvp(f, (x,), (x,))))(x),
    "grad of functionalize": lambda f, x: grad(functionalize(f))(x),
}
SETTINGS: dict[str, Callable[[], Any]] = {
    "as usual": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "without forward mode": lambda: forward_ad._set_fwd_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


class Failure(Exception):
    """Raised by a function that is transformed."""


def _state() -> dict[str, Any]:
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "forward mode": torch._C._is_fwd_grad_enabled(),
        "autocast": (
            torch.is_autocast_enabled("cpu"),
            torch.get_autocast_dtype("cpu"),
            torch.is_autocast_cache_enabled(),
        ),
        "modes": (
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            _len_torch_dispatch_stack_pre_dispatch(),
        ),
        # a new result is lifted to each transform whose function is said to run
        "levels": type(runtime.tensor(1.0) * 2),
        "excluded": str(torch._C._dispatch_tls_local_exclude_set()),
        "included": str(torch._C._dispatch_tls_local_include_set()),
        "python dispatcher": torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE),
        "fallback": current_fallback_policy(),
    }


def _smooth(x: Any) -> Any:
    return (x.sin() * 2).sum()


def _failing(x: Any) -> Any:
    (x * 1).add_(1).view(-1).cumsum(0)
    raise Failure


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", APPLIED)
def test_the_state_of_the_thread_is_what_it_was(name: str, setting: str) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    vmap(torch.sin)(x)  # excludes a dispatch key for good
    outside = _state()
    with SETTINGS[setting]():
        before = _state()
        APPLIED[name](_smooth, x)
        assert _state() == before
        with pytest.raises(Failure):
            APPLIED[name](_failing, x)
        assert _state() == before
        APPLIED[name](_smooth, x)
    assert _state() == outside


@pytest.mark.parametrize("name", [n for n in APPLIED if "graph" not in n])
def test_draws_advance_the_generator_as_without_the_state_of_a_failed_call(name: str) -> None:
    x = torch.arange(6.0).reshape(3, 2)
    state = torch.get_rng_state()
    APPLIED[name](_smooth, x)
    with pytest.raises(Failure):
        APPLIED[name](_failing, x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "name", ["grad", "vjp", "jacrev", "hessian", "vmap of grad", "grad of functionalize"]
)
@pytest.mark.parametrize("setting", ["no_grad", "inference"])
def test_a_derivative_is_recorded_whatever_the_grad_mode_is(name: str, setting: str) -> None:
    seen: list[tuple[bool, bool]] = []

    def f(x: Any) -> Any:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return _smooth(x)

    with SETTINGS[setting]():
        APPLIED[name](f, torch.ones(3, 2))
    assert set(seen) == {(True, False)}


@pytest.mark.parametrize("enabled", [False, True])
def test_forward_mode_is_switched_for_a_block_and_back_also_after_an_error(enabled: bool) -> None:
    before = torch._C._is_fwd_grad_enabled()
    with forward_ad._set_fwd_grad_enabled(enabled):
        assert torch._C._is_fwd_grad_enabled() is enabled
    assert torch._C._is_fwd_grad_enabled() is before
    with pytest.raises(Failure), forward_ad._set_fwd_grad_enabled(enabled):
        raise Failure
    assert torch._C._is_fwd_grad_enabled() is before


@pytest.mark.parametrize("fails", [False, True])
def test_a_module_has_its_own_tensors_again(fails: bool) -> None:
    layer = torch.nn.Linear(2, 1)
    own = layer.weight, layer.bias
    given = {"weight": torch.ones(1, 2)}
    if fails:
        with pytest.raises(RuntimeError):
            functional_call(layer, given, torch.ones(3))
    else:
        functional_call(layer, given, torch.ones(2))
    assert (layer.weight is own[0], layer.bias is own[1]) == (True, True)
