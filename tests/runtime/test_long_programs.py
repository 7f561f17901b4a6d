"""Programs of more calls in a row than Python has frames for: no pass calls itself once a call."""

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
from runtime.checkpoint.checkpoint import checkpoint

LENGTH = 1100  # Python has 1,000 frames
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


def _of_torch(program: Callable[[Tensor, int], Tensor]) -> tuple[Tensor, Tensor]:
    x = X.clone().requires_grad_()
    return _derivatives(lambda x: program(x, LENGTH), x, torch.autograd.grad)


@each_program
def test_the_session_differentiates_twice(program: Callable[[Tensor, int], Tensor]) -> None:
    def f(x: Tensor) -> Tensor:
        return program(x, LENGTH)

    found = _derivatives(f, _leaf(), runtime.autograd.grad)
    assert_close([runtime.unwrap(t) for t in found], list(_of_torch(program)))


@each_program
def test_transforms_differentiate_twice_and_batch(
    program: Callable[[Tensor, int], Tensor],
) -> None:
    def f(x: Tensor) -> Tensor:
        return program(x, LENGTH)

    expected = _of_torch(program)
    assert_close(func.jvp(func.grad(f), (X,), (V,)), expected)
    assert_close(func.vmap(f)(torch.stack([X, V])), torch.stack([f(X), f(V)]))
    assert_close(func.functionalize(f)(X), f(X))


@each_program
def test_checkpoints_compute_again(program: Callable[[Tensor, int], Tensor]) -> None:
    x = _leaf()
    checkpoint(lambda x: program(x, LENGTH), x, use_reentrant=False).backward()
    assert x.grad is not None
    assert_close(runtime.unwrap(x.grad), _of_torch(program)[0])


@each_program
def test_traced_graphs_are_copied_and_pickled(program: Callable[[Tensor, int], Tensor]) -> None:
    module = aot.make_fx(lambda x: program(x, LENGTH))(X)
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert_close(again(V), program(V, LENGTH))


@pytest.mark.parametrize("program", [_products_with_one_weight, _views_of_views])
def test_compiled_programs_have_second_derivatives(
    program: Callable[[Tensor, int], Tensor],
) -> None:
    compiled = aot.aot_function(lambda x: program(x, LENGTH), aot.nop)
    found = _derivatives(compiled, _leaf(), runtime.autograd.grad)
    assert_close([runtime.unwrap(t) for t in found], list(_of_torch(program)))


@pytest.mark.parametrize("program", [_sines, _writes])
def test_jitted_steps_go_on(program: Callable[[Tensor, int], Tensor]) -> None:
    weight = _leaf()

    def step() -> None:
        weight.grad = None
        program(weight, LENGTH).backward()

    jitted = jit(step)
    for _ in range(2):
        jitted()
        assert weight.grad is not None
        assert_close(runtime.unwrap(weight.grad), _of_torch(program)[0])


def test_an_exported_program_is_saved_and_loaded() -> None:
    class Sines(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return _sines(x, LENGTH)

    file = io.BytesIO()
    torch.export.save(aot.export(Sines(), (X,)), file)
    file.seek(0)
    assert_close(torch.export.load(file).module()(V), _sines(V, LENGTH))


def _calls_of_python(run: Callable[[], object]) -> int:
    """How many functions of Python ``run`` calls."""
    count = Counter[str]()
    sys.setprofile(lambda frame, event, arg: count.update((event,)))
    try:
        run()
    finally:
        sys.setprofile(None)
    return count["call"]


PARTITIONS = {"default": aot.default_partition, "cut": aot.min_cut_rematerialization_partition}


@pytest.mark.parametrize("partition", PARTITIONS.values(), ids=PARTITIONS)
@pytest.mark.parametrize(
    "program", [_sines, _products_with_one_weight, _views_of_views, _writes, _many_results]
)
def test_twice_as_many_calls_are_compiled_in_twice_as_many_steps(
    program: Callable[[Tensor, int], Tensor], partition: Any
) -> None:
    """A pass that looks at every call for every call makes about three times as many."""

    def steps(n: int) -> int:
        f = aot.aot_function(lambda x: program(x, n), aot.nop, partition_fn=partition)
        return _calls_of_python(lambda: f(_leaf()).backward())

    steps(10)  # what is remembered of each op is not counted
    assert steps(400) < 2.4 * steps(200)
