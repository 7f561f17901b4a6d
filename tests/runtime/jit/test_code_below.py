"""User code that this package calls while a program is captured: what it reads of Python's state is
asked by each call, as what the program reads itself."""

from __future__ import annotations

import cProfile
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime import func, jit
from runtime.aot import cond
from runtime.checkpoint import checkpoint


class Settings:
    """What the code below reads, by names that are nowhere else in the program."""

    def __init__(self) -> None:
        self.rate = 2.0


SETTINGS = Settings()


def _rate() -> float:
    return SETTINGS.rate


class Scaled(runtime.autograd.Function):
    """Reads the rate in its backward alone."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * _rate()


class ScaledOfTorch(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * _rate()


class ScaledForward(runtime.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return x * _rate()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.rate = SETTINGS.rate

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.rate


class ScaledTangent(runtime.autograd.Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return x * 1

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * _rate()


def _scales(g: Any) -> Any:
    return g * _rate()


def _stepping_ours(loss_of: Callable[[Any, Any], Any]) -> Any:
    return _stepping(loss_of, runtime.wrap(torch.ones(3), True))


def _stepping(loss_of: Callable[[Any, Any], Any], w: Any = None) -> Any:
    """A program that calls backward() itself, for the gradient of ``w``."""
    w = nn.Parameter(torch.ones(3)) if w is None else w

    def f(x: Any) -> Any:
        w.grad = None
        loss_of(w, x).backward()
        assert w.grad is not None
        return w.grad.clone()

    return f


def _hooked(w: Any, x: Any) -> Any:
    y = w * x
    y.register_hook(_scales)
    return y.sum()


def _prehooked(w: Any, x: Any) -> Any:
    y = (w * x).sin()
    y.grad_fn.register_prehook(lambda grads: tuple(g * _rate() for g in grads))
    return y.sum()


def _posthooked(w: Any, x: Any) -> Any:
    y = (w * x).sin()
    y.grad_fn.register_hook(lambda inputs, grads: tuple(g * _rate() for g in inputs))
    return y.sum()


class Hooked(nn.Module):
    def __init__(self, register: Callable[[nn.Module], object]) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        nn.init.constant_(self.inner.weight, 0.5)
        nn.init.constant_(self.inner.bias, 0.5)
        register(self.inner)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def _each(grads: Any) -> tuple[Any, ...]:
    return tuple(grads)


def _by_module(register: Callable[[nn.Module], object]) -> Any:
    model = Hooked(register)
    scale: Any = nn.Parameter(torch.ones(3))

    def f(x: Any) -> Any:
        model.zero_grad()
        scale.grad = None
        out = model(x * scale)
        out.sum().backward()
        return torch.cat([out.detach(), scale.grad.clone()])

    return f


def _saved(w: Any, x: Any) -> Any:
    pack, unpack = (lambda t: t), (lambda t: t * _rate())
    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        return (w * w * x).sum()


LIBRARY = torch.library.Library("code_below", "FRAGMENT")
LIBRARY.define("scaled(Tensor x) -> Tensor")
LIBRARY.impl("scaled", lambda x: x * _rate(), "CompositeImplicitAutograd")


class Scaling(TorchDispatchMode):
    """Scales what the calls inside of it give."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {}) * _rate()


class ScalingFunctions(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **kwargs or {}) * _rate()


def _under(mode: Callable[[], Any]) -> Callable[[Any], Any]:
    def f(x: Any) -> Any:
        with mode():
            return x.sin()

    return f


class Chosen:
    """The inputs of a backward pass, which depend on the rate."""

    def __init__(self, *tensors: Any) -> None:
        self.tensors = tensors

    def __iter__(self) -> Any:
        return iter(self.tensors[:1] if _rate() == 2.0 else self.tensors)


def _by_inputs(x: Any) -> Any:
    v, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    (v * w * x).sum().backward(inputs=Chosen(v, w))
    return torch.zeros(3) if w.grad is None else w.grad.clone()


PROGRAMS: dict[str, Callable[[], Any]] = {
    "a backward that runs inside": lambda: _stepping_ours(lambda w, x: Scaled.apply(w * x).sum()),
    "a backward of torch's class": lambda: _stepping(
        lambda w, x: ScaledOfTorch.apply(w * x).sum()  # type: ignore[no-untyped-call]
    ),
    "a forward": lambda: _stepping_ours(lambda w, x: ScaledForward.apply(w * x).sum()),
    "a hook of a tensor": lambda: _stepping(_hooked),
    "a hook before a node": lambda: _stepping(_prehooked),
    "a hook after a node": lambda: _stepping(_posthooked),
    "a hook for what is saved": lambda: _stepping(_saved),
    "a forward hook of a module": lambda: _by_module(
        lambda m: m.register_forward_hook(lambda m, args, out: out * _rate())
    ),
    "a forward prehook of a module": lambda: _by_module(
        lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * _rate(),))
    ),
    "a backward hook of a module": lambda: _by_module(
        lambda m: m.register_full_backward_hook(
            lambda m, inputs, grads: tuple(g * _rate() for g in _each(inputs))
        )
    ),
    "a backward prehook of a module": lambda: _by_module(
        lambda m: m.register_full_backward_pre_hook(
            lambda m, grads: tuple(g * _rate() for g in _each(grads))
        )
    ),
    "vmap": lambda: lambda x: func.vmap(lambda y: y * _rate())(x),
    "grad": lambda: lambda x: func.grad(lambda y: (y * _rate()).sum())(x),
    "grad of a custom backward": lambda: (
        lambda x: func.grad(lambda y: ScaledForward.apply(y).sum())(x)
    ),
    "vmap of grad of a custom backward": lambda: (
        lambda x: func.vmap(func.grad(lambda y: ScaledForward.apply(y).sum()))(x)
    ),
    "a hook under grad": lambda: lambda x: func.grad(lambda y: _hooked(y, x))(x),
    "jvp": lambda: lambda x: func.jvp(lambda y: y * _rate(), (x,), (x,))[1],
    "a custom jvp": lambda: lambda x: func.jvp(ScaledTangent.apply, (x,), (x,))[1],
    "a checkpoint": lambda: _stepping_ours(
        lambda w, x: checkpoint(lambda y: (y * _rate()).sin(), w * x, use_reentrant=False).sum()
    ),
    "a reentrant checkpoint": lambda: _stepping_ours(
        lambda w, x: checkpoint(lambda y: (y * _rate()).sin(), w * x, use_reentrant=True).sum()
    ),
    "cond": lambda: lambda x: cond(x.sum() > 0, lambda y: y * _rate(), lambda y: y - _rate(), (x,)),
    "a kernel in Python": lambda: lambda x: torch.ops.code_below.scaled(x) * 1,
    "a mode of the dispatcher": lambda: _under(Scaling),
    "a mode of functions": lambda: _under(ScalingFunctions),
    "the inputs of a backward pass": lambda: _by_inputs,
    "an index": lambda: lambda x: x[: Last()] * 1,
}


class Last:
    def __index__(self) -> int:
        return int(_rate())


@pytest.fixture(autouse=True)
def _as_at_first() -> Any:
    yield
    SETTINGS.rate = 2.0


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_code_below_reads_is_asked_by_each_call(name: str) -> None:
    eager, jitted = PROGRAMS[name](), jit(PROGRAMS[name]())
    x = torch.tensor([0.5, 1.0, 2.0])
    for rate in (2.0, 2.0, 3.0, 3.0, 2.0):
        SETTINGS.rate = rate
        assert torch.allclose(jitted(x), eager(x)), rate


def _of_ours() -> Any:
    return runtime.wrap(torch.ones(3), True)


@pytest.mark.parametrize(
    ("function", "make"),
    [(Scaled, _of_ours), (ScaledOfTorch, lambda: nn.Parameter(torch.ones(3)))],
)
def test_what_the_backward_of_a_returned_loss_reads_is_asked(
    function: Any, make: Callable[[], Any]
) -> None:
    def gradients(wrap: Callable[[Any], Any]) -> list[Any]:
        w = make()
        f = wrap(lambda x: function.apply(w * x).sum())
        found = []
        for rate in (2.0, 2.0, 3.0, 3.0, 2.0):
            SETTINGS.rate = rate
            w.grad = None
            f(torch.ones(3)).backward()
            found.append(w.grad.tolist())
        return found

    assert gradients(jit) == gradients(lambda f: f)


def _enters(name: str, seen: list[str]) -> Callable[..., Any]:
    """A hook that notes the functions that are entered of the program."""

    def hook(frame: Any, event: str, argument: Any) -> Any:
        if event == "call" and frame.f_code.co_name in (name, "_rate"):
            seen.append(frame.f_code.co_name)
        return hook

    return hook


def _profiled(seen: list[str]) -> Any:
    sys.setprofile(_enters("seen_from_outside", seen))
    return lambda: sys.setprofile(None)


def _traced(seen: list[str]) -> Any:
    before = sys.gettrace()
    sys.settrace(_enters("seen_from_outside", seen))
    return lambda: sys.settrace(before)


def _timed(seen: list[str]) -> Any:
    profile = cProfile.Profile()
    profile.enable()

    def end() -> None:
        profile.disable()
        # it pauses in a capture, and sees the call around
        seen.extend(["seen_from_outside", "_rate"] if profile.getstats() else [])

    return end


@pytest.mark.parametrize("begin", [_profiled, _traced, _timed])
def test_a_profiler_or_debugger_sees_its_part_and_the_capture_the_state(
    begin: Callable[[list[str]], Callable[[], None]],
) -> None:
    def seen_from_outside(x: Any) -> Any:
        return _stepping(_hooked)(x)

    seen: list[str] = []
    g = jit(seen_from_outside)
    found = []
    end = begin(seen)
    try:
        for rate in (2.0, 2.0, 3.0):
            SETTINGS.rate = rate
            found.append(g(torch.ones(3)).tolist())
    finally:
        end()
    assert found == [[2.0] * 3] * 2 + [[3.0] * 3]
    assert {"seen_from_outside", "_rate"} <= set(seen)


def test_a_program_that_starts_a_profiler_is_refused_before_it_does() -> None:
    profile, before = cProfile.Profile(), sys.getprofile()

    def f(x: Any) -> Any:
        profile.enable()
        y = x * 2
        profile.disable()
        return y

    with pytest.raises(RuntimeError, match=r"calls cProfile\.enable.*at .*profile\.enable\(\)"):
        jit(f)(torch.ones(3))
    assert sys.getprofile() is before


def test_a_hook_that_starts_a_profiler_is_refused() -> None:
    def f(x: Any) -> Any:
        y = (x * 1).requires_grad_()
        y.register_hook(lambda g: sys.setprofile(None))
        return torch.autograd.grad(y.sum(), y)[0]

    with pytest.raises(RuntimeError, match=r"calls sys\.setprofile, "):
        jit(f)(torch.ones(3))
