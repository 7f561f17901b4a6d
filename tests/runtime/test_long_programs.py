"""Programs of more calls in a row than Python has frames for: no pass calls itself once a call, and
none looks at every call for every call."""

from __future__ import annotations

import copy
import io
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import runtime
from runtime import aot, func, jit
from runtime.checkpoint import checkpoint

LENGTH = 1100  # Python has 1,000 frames
GROWTH = 1.0001
X = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4)
W = torch.eye(4, dtype=torch.float64) + 1e-4 * X
V = torch.linspace(1, 2, 16, dtype=torch.float64).reshape(4, 4)


def _sines(x: Tensor, n: int) -> Tensor:
    for _ in range(n):
        x = x.sin()
    return x.sum()


def _products_with_one_weight(x: Tensor, n: int) -> Tensor:
    w = W + 1e-4 * x
    for _ in range(n // 2):
        x = (x @ w) * 0.999
    return x.sum()


def _products_with_one_factor(x: Tensor, n: int) -> Tensor:
    factor = 1 + 1e-4 * x
    for _ in range(n):
        x = x * factor
    return x.sum()


def _views_of_views(x: Tensor, n: int) -> Tensor:
    y = x * 2
    for i in range(n):
        y = y.t() if i % 2 else y.view(4, 4)
    return (y * y * V).sum()


def _writes(x: Tensor, n: int) -> Tensor:
    y = x.clone()
    for _ in range(n // 2):
        y.mul_(0.999).add_(x, alpha=1e-3)
    return (y * y).sum()


def _sum_with_one_term(x: Tensor, n: int) -> Tensor:
    y = x * x
    total = y
    for _ in range(n):
        total = total + y * y
    return total.sum()


def _writes_to_nested_views(x: Tensor, n: int) -> Tensor:
    y = x * x
    view = y
    for _ in range(n):
        view = view.t()
        view.mul_(GROWTH)
    return y.sum()


def _writes_below_nested_views(x: Tensor, n: int) -> Tensor:
    y = x * x
    view = y
    for _ in range(n):
        view = view.t()
        y.mul_(GROWTH)
    return view.sum()


def _write_to_a_nested_view(x: Tensor, n: int) -> Tensor:
    y = x.clone()
    view = y
    for _ in range(n):
        view = view.view(4, 4)
    view.mul_(x)
    return (y * y).sum()


def _many_results(x: Tensor, n: int) -> Tensor:
    return torch.stack([x[i % 4] * x[0] * i for i in range(n // 3)]).sum()


PROGRAMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sines": _sines,
    "products with one weight": _products_with_one_weight,
    "views of views": _views_of_views,
    "writes": _writes,
    "a write to a nested view": _write_to_a_nested_view,
    "many results": _many_results,
}


each_program = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


def _leaf() -> Tensor:
    return runtime.wrap(X.clone(), requires_grad=True)


def _derivatives(f: Callable[[Tensor], Tensor], x: Tensor, grad: Any) -> tuple[Tensor, Tensor]:
    """The gradient and its derivative along ``V``."""
    (g,) = grad(f(x), x, create_graph=True)
    (h,) = grad((g * V).sum(), x)
    return g.detach(), h


def _of_torch(program: Callable[[Tensor, int], Tensor], n: int = LENGTH) -> tuple[Tensor, Tensor]:
    x = X.clone().requires_grad_()
    return _derivatives(lambda x: program(x, n), x, torch.autograd.grad)


@each_program
def test_the_session_differentiates_twice(program: Callable[[Tensor, int], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        return program(x, LENGTH)

    found = _derivatives(f, _leaf(), runtime.autograd.grad)
    assert_close([runtime.unwrap(t) for t in found], list(_of_torch(program)))


@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS.values() if p is not _write_to_a_nested_view]
)
def test_transforms_differentiate_twice_and_batch(
    program: Callable[[Tensor, int], Tensor],
) -> None:
    def f(x: Tensor) -> Tensor:
        return program(x, LENGTH)

    expected = _of_torch(program)
    assert_close(func.jvp(func.grad(f), (X,), (V,)), expected)
    assert_close(func.vmap(f)(torch.stack([X, V])), torch.stack([f(X), f(V)]))
    assert_close(func.functionalize(f)(X), f(X))


def test_checkpoints_compute_again() -> None:
    x = _leaf()
    checkpoint(lambda x: _writes(x, LENGTH), x, use_reentrant=False).backward()
    assert x.grad is not None
    assert_close(runtime.unwrap(x.grad), _of_torch(_writes)[0])


@pytest.mark.parametrize("program", [_sines, _writes])
def test_traced_graphs_are_copied_and_pickled(program: Callable[[Tensor, int], Tensor]) -> None:
    module = aot.make_fx(lambda x: program(x, LENGTH))(X)
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_close(again(V), program(V, LENGTH))


def test_compiled_programs_have_second_derivatives() -> None:
    compiled = aot.aot_function(lambda x: _products_with_one_weight(x, LENGTH), aot.nop)
    found = _derivatives(compiled, _leaf(), runtime.autograd.grad)
    assert_close([runtime.unwrap(t) for t in found], list(_of_torch(_products_with_one_weight)))


def test_jitted_steps_go_on() -> None:
    weight = _leaf()

    def step() -> None:
        weight.grad = None
        _writes(weight, LENGTH).backward()

    jitted = jit(step)
    for _ in range(2):
        jitted()
        assert weight.grad is not None
        assert_close(runtime.unwrap(weight.grad), _of_torch(_writes)[0])


def test_an_exported_program_is_saved_and_loaded() -> None:
    class Sines(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _sines(x, LENGTH)

    file = io.BytesIO()
    torch.export.save(aot.export(Sines(), (X,)), file)
    file.seek(0)
    assert_close(torch.export.load(file).module()(V), _sines(V, LENGTH))


@pytest.mark.parametrize("program", [_writes_to_nested_views, _writes_below_nested_views])
def test_nested_views_are_written_to(program: Callable[[Tensor, int], Tensor]) -> None:
    """More than 8 of them are one step, which each level takes as it takes the views."""

    def f(x: Tensor) -> Tensor:
        return program(x, 40)

    expected = _of_torch(program, 40)
    found = _derivatives(f, _leaf(), runtime.autograd.grad)
    assert_close([runtime.unwrap(t) for t in found], list(expected))
    assert_close(func.jvp(func.grad(f), (X,), (V,)), expected)
    assert_close(func.grad(lambda x: (func.grad(f)(x) * V).sum())(X), expected[1])
    assert_close(func.vmap(func.grad(f), 1, 1)(X[:, None]), expected[0][:, None])


def test_five_thousand_calls_are_differentiated() -> None:
    def f(x: Tensor) -> Tensor:
        return _sines(x, 5000)

    x = X.clone().requires_grad_()
    expected = _derivatives(f, x, torch.autograd.grad)
    found = _derivatives(f, _leaf(), runtime.autograd.grad)
    assert_close([runtime.unwrap(t) for t in found], list(expected))
    assert_close(func.vmap(func.grad(f))(X), expected[0])


def _cut(f: Callable[[Tensor], Tensor]) -> None:
    partition = aot.min_cut_rematerialization_partition
    aot.aot_function(f, aot.nop, partition_fn=partition)(_leaf()).backward()


def _compiled(f: Callable[[Tensor], Tensor]) -> None:
    """The graphs of the first call are simplified for the second."""
    compiled = aot.aot_function(f, aot.nop)
    for _ in range(2):
        compiled(_leaf()).backward()


def _compiled_twice(f: Callable[[Tensor], Tensor]) -> None:
    compiled = aot.aot_function(f, aot.nop)
    for _ in range(2):
        _derivatives(compiled, _leaf(), runtime.autograd.grad)


WAYS: dict[str, Callable[[Callable[[Tensor], Tensor]], object]] = {
    "session": lambda f: _derivatives(f, _leaf(), runtime.autograd.grad),
    "jvp of grad": lambda f: func.jvp(func.grad(f), (X,), (V,)),
    "vmap of grad": lambda f: func.vmap(func.grad(f))(torch.stack([X, V])),
    "functionalize": lambda f: func.functionalize(f)(X),
    "make_fx": lambda f: pickle.dumps(aot.make_fx(f)(X)),
    "cut": _cut,
    "compiled twice": _compiled_twice,
    "compiled": _compiled,
}
EAGER = ("session", "jvp of grad", "vmap of grad")
EVERYWHERE = ("session", "jvp of grad", "functionalize", "make_fx", "compiled twice")
STEPS = [
    *((way, program) for way in EVERYWHERE for program in (_sum_with_one_term, _views_of_views)),
    *((way, _writes_to_nested_views) for way in EAGER),
    *((way, _writes_below_nested_views) for way in EAGER),
    ("compiled", _products_with_one_factor),
    ("compiled", _writes),
    *(("cut", program) for program in (_products_with_one_weight, _views_of_views, _many_results)),
]


def _calls_of_python(run: Callable[[], object]) -> int:
    """How many functions of Python ``run`` calls."""
    count = Counter[str]()
    sys.setprofile(lambda frame, event, arg: count.update((event,)))
    try:
        run()
    finally:
        sys.setprofile(None)
    return count["call"]


@pytest.mark.parametrize("way, program", STEPS)
def test_as_many_further_calls_take_as_many_further_steps(
    way: str, program: Callable[[Tensor, int], Tensor]
) -> None:
    """A pass that looks at every call for every call makes about 1,150 more for the last 24."""

    def steps(n: int) -> int:
        return _calls_of_python(lambda: WAYS[way](lambda x: program(x, n)))

    steps(10)  # what is remembered of each op is not counted
    few, some, many = steps(24), steps(48), steps(72)
    assert (many - some) - (some - few) < 150
