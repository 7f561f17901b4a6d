"""Views of views without end: what each is a view of, their version counter, and that none holds
those before it."""

import gc
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.overrides import enable_reentrant_dispatch
from torch.testing import assert_close

import runtime
from runtime import aot, func
from runtime.extend import Value
from tests.runtime.trace.graphs import CallsSeen

X = torch.arange(9.0, dtype=torch.float64).reshape(3, 3)
WAYS: dict[str, Callable[[Callable[[Tensor], Tensor]], object]] = {
    "session": lambda f: f(runtime.wrap(X.clone(), requires_grad=True)),
    "vmap": lambda f: func.vmap(f)(X[None]),
    "grad": lambda f: func.grad(f)(X),
    "jvp": lambda f: func.jvp(f, (X,), (X,)),
    "grad of vmap": lambda f: func.grad(lambda x: func.vmap(f)(x[None]).sum())(X),
    "vmap of grad": lambda f: func.vmap(func.grad(f))(X[None]),
    "functionalize": lambda f: func.functionalize(f)(X),
    "make_fx": lambda f: aot.make_fx(f)(X),
    "symbolic": lambda f: aot.make_fx(f, tracing_mode="symbolic")(X),
    "aot_function": lambda f: aot.aot_function(f, aot.nop)(
        runtime.wrap(X.clone(), requires_grad=True)
    ),
    "jit": lambda f: runtime.jit(f)(runtime.wrap(X.clone(), requires_grad=True)),
}
MOST = 32  # from as many views of views on, a level leaves them unmarked
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def _views(x: Tensor, n: int) -> list[Tensor]:
    views = [x * 1]
    for i in range(n):
        y = views[-1]
        views.append(y.t() if i % 2 else y.unsqueeze(0).select(0, 0))
    return views


@each_way
def test_views_show_their_base_and_share_its_version(way: Any) -> None:
    """As those of torch do, which the same program asks."""
    seen: list[Any] = []

    def f(x: Tensor) -> Tensor:
        views = _views(x, 3 * MOST)
        base, *_, last = views
        before = [v._version for v in views]
        last.mul_(2)
        assert type(base) is torch.Tensor or isinstance(base, Value)
        written = {v._version - was for v, was in zip(views, before, strict=True)}
        seen.append((written, [v._base is base for v in views], [v._is_view() for v in views]))
        return base.sum()

    f(X)
    way(f)
    assert seen[0][0] == {1} and all(found == seen[0] for found in seen)


@each_way
def test_a_tensor_that_is_turned_in_place_is_no_view(way: Any) -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 1
        for _ in range(2 * MOST):
            y.t_()
        assert y._base is None and not y._is_view()
        return y.sum()

    way(f)


@pytest.mark.parametrize("way", [way for name, way in WAYS.items() if name != "symbolic"])
def test_no_view_holds_those_before_it(way: Any) -> None:
    """Not so in a symbolic trace: under torch's Python dispatcher each view is marked."""
    alive: list[int] = []

    def f(x: Tensor) -> Tensor:
        y = x * 1
        made = []
        for i in range(4 * MOST):
            y = y.t() if i % 2 else torch.unsqueeze(y, 0).view(3, 3)
            made.append(weakref.ref(y))
        gc.collect()
        alive.append(sum(ref() is not None for ref in made))
        return y.sum()

    way(f)
    assert max(alive) <= MOST + 1


def test_classes_of_users_handle_views_in_the_same_process() -> None:
    _views(runtime.wrap(X.clone(), requires_grad=True), 2 * MOST)
    calls = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append(func)
            with torch._C._DisableTorchDispatch():
                return func(*args, **kwargs or {})

    x = X.as_subclass(Logged)
    assert_close(torch.Tensor.t(x), X.t())
    torch.split(x, 2)
    assert calls[-2:] == [torch.ops.aten.t.default, torch.ops.aten.split.Tensor]


class Inner(torch.Tensor):
    """Computes by a leaf that torch's engine records, as ``enable_reentrant_dispatch`` allows."""

    held: Tensor
    recorded: ClassVar[list[bool]] = []

    @staticmethod
    def __new__(cls, t: Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, t.shape, dtype=t.dtype)
        made.held = t
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with enable_reentrant_dispatch():
            leaf = args[0].held.clone().requires_grad_()
            result = func(leaf, *args[1:], **kwargs or {})
        cls.recorded.append(result.requires_grad)
        return Inner(result.detach())


def test_classes_of_users_dispatch_again_in_the_state_of_the_thread() -> None:
    _views(runtime.wrap(X.clone(), requires_grad=True), 2 * MOST)
    Inner.recorded.clear()
    x = Inner(X)
    x.t()
    x.view(9)
    x[0]
    torch.narrow(x, 0, 1, 2)
    assert Inner.recorded == [True] * 4


def test_torch_maps_programs_under_modes_of_users_in_the_same_process() -> None:
    _views(runtime.wrap(X.clone(), requires_grad=True), 2 * MOST)
    with CallsSeen():
        assert_close(torch.vmap(lambda v: v.view(3, 1).t().sin())(X), X.sin()[:, None])
        rows = torch.autograd.functional.hessian(
            lambda v: v.sin().sum(), X, vectorize=True, outer_jacobian_strategy="forward-mode"
        )
    assert_close(rows, torch.diag(-X.reshape(9).sin()).view(3, 3, 3, 3))
    with torch.inference_mode():
        assert type(Inner(X).view(9)) is Inner
