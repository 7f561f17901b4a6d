"""A compiled program in a global state other than that of its trace does the same
as the function."""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import runtime
from runtime import aot, dropin
from runtime.extend import Value


@contextmanager
def _default_dtype() -> Any:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def _deterministic() -> Any:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _cast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _against_autocast(x: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return x @ x


STATES: dict[str, tuple[Callable[[], AbstractContextManager[Any]], Callable[[Any], Any]]] = {
    "autocast": (_cast, lambda x: x @ x),
    "autocast of another dtype": (
        lambda: torch.autocast("cpu", dtype=torch.float16),
        lambda x: x @ x,
    ),
    "autocast that the program leaves": (_cast, _against_autocast),
    "grad mode": (torch.no_grad, lambda x: x * 2 if torch.is_grad_enabled() else x * 3),
    "inference mode": (
        torch.inference_mode,
        lambda x: x * 2 if torch.is_inference_mode_enabled() else x * 3,
    ),
    "default dtype": (
        _default_dtype,
        lambda x: x.double() + torch.ones(4, dtype=torch.get_default_dtype()) / 3,
    ),
    "default device": (lambda: torch.device("meta"), lambda x: torch.zeros(4) + 1),
    "deterministic algorithms": (
        _deterministic,
        lambda x: x * 2 if torch.are_deterministic_algorithms_enabled() else x * 3,
    ),
}
ELSEWHERE = {
    name: (nullcontext, _cast if name == "autocast of another dtype" else nullcontext)
    for name in STATES
}


@pytest.mark.parametrize("entered_first", [False, True])
@pytest.mark.parametrize("name", STATES)
def test_a_program_is_traced_again_in_another_state(name: str, entered_first: bool) -> None:
    state, f = STATES[name]
    x = torch.randn(4, 4)
    compiled = aot.aot_function(f, aot.nop)
    other = ELSEWHERE[name][1]
    for enter in (state, other, state) if entered_first else (other, state, other):
        with enter():
            expected, found = f(x), compiled(x)
            assert (found.dtype, found.device) == (expected.dtype, expected.device)
            if expected.device.type != "meta":
                torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("backward_within", [False, True])
@pytest.mark.parametrize("f", [lambda x: (x @ x.sin()).softmax(0) ** 3, _against_autocast])
def test_gradients_of_a_program_under_autocast_are_those_of_torch(
    f: Callable[[Any], Any], backward_within: bool
) -> None:
    x = torch.randn(4, 4)
    leaf = x.clone().requires_grad_()
    with _cast():
        expected = f(leaf)
    expected.sum().backward()
    mine = runtime.wrap(x, True)
    with _cast():
        found = aot.aot_function(f, aot.nop)(mine)
    with _cast() if backward_within else nullcontext():
        runtime.autograd.backward(found.sum())
    torch.testing.assert_close(runtime.unwrap(mine.grad), leaf.grad)


def test_a_graph_that_is_captured_under_the_drop_in_holds_no_tensor_of_the_session() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def compiler(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        assert not any(isinstance(t, Value) for t in inputs)
        return aot.nop(module, inputs)

    with dropin.installed():
        layer = torch.nn.EmbeddingBag(10, 4, sparse=True)
        x, offsets = torch.arange(3), torch.arange(3)
        for dynamic in (False, True):
            f = aot.aot_function(lambda x, y: layer(x, y).view(-1) * 0.5, compiler, dynamic=dynamic)
            f(x, offsets).sum().backward()
    assert len(graphs) == 4 and layer.weight.grad is not None and layer.weight.grad.is_sparse
    values = [n.meta["val"] for module in graphs for n in module.graph.nodes if "val" in n.meta]
    assert values and not any(isinstance(t, Value) for t in pytree.tree_leaves(values))


@pytest.fixture
def collections() -> Iterator[list[str]]:
    """The phases of the collections since the test began."""
    before = gc.isenabled()
    phases: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    gc.callbacks.append(note)
    yield phases
    gc.callbacks.remove(note)
    (gc.enable if before else gc.disable)()


def _make_garbage() -> None:
    """Make more cycles than the collector lets there be."""
    for _ in range(3 * gc.get_threshold()[0]):
        cycle: list[Any] = []
        cycle.append(cycle)


def test_garbage_is_collected_without_a_capture(collections: list[str]) -> None:
    gc.enable()
    _make_garbage()
    assert collections


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_waits_for_a_capture_and_goes_on_as_before(
    collects: bool, collections: list[str]
) -> None:
    seen: list[bool] = []

    def f(x: Any, fails: bool) -> Any:
        before = len(collections)
        _make_garbage()
        seen.append(len(collections) > before)
        if fails:
            raise KeyError
        return x * 2

    (gc.enable if collects else gc.disable)()
    compiled = aot.aot_function(f, aot.nop, ignore=[seen, collections])
    compiled(torch.ones(1), False)
    assert seen == [False] and gc.isenabled() is collects
    with pytest.raises(KeyError):
        compiled(torch.ones(1), True)
    assert seen == [False] * 2 and gc.isenabled() is collects


@pytest.mark.parametrize("fails", [False, True])
def test_casts_of_parameters_are_made_anew_in_a_capture_and_forgotten(fails: bool) -> None:
    x, weight = torch.ones(1, 1), torch.ones(1, 1, requires_grad=True)

    def product(value: float) -> float:
        # unseen by autocast, which keeps the cast of a parameter
        weight.data = torch.full((1, 1), value)
        return (x @ weight).item()

    def f(y: Any) -> Any:
        if fails:
            raise KeyError
        return x @ weight * y

    with _cast():
        assert product(1.0) == product(2.0) == 1.0
        weight.data = torch.full((1, 1), 3.0)
        with pytest.raises(KeyError) if fails else nullcontext():
            assert aot.aot_function(f, aot.nop)(torch.ones(1)).item() == 3.0
        assert product(5.0) == product(6.0) == 5.0


@pytest.mark.parametrize("name", STATES)
def test_a_program_is_traced_once_in_each_state(name: str) -> None:
    state, f = STATES[name]
    traces: list[int] = []

    def noted(x: Any) -> Any:
        traces.append(1)
        return f(x)

    compiled = aot.aot_function(noted, aot.nop, ignore=[traces])
    x = torch.randn(4, 4)
    for enter in (state, ELSEWHERE[name][1]) * 3:
        with enter():
            compiled(x)
    assert len(traces) == 2


def test_a_block_that_leaves_inference_mode_is_no_other_state() -> None:
    traces: list[int] = []

    def f(x: Any) -> Any:
        traces.append(1)
        return x * 2

    compiled = aot.aot_function(f, aot.nop, ignore=[traces])
    x = torch.ones(2)
    compiled(x)
    with torch.inference_mode(), torch.inference_mode(False):
        compiled(x)
    assert len(traces) == 1
