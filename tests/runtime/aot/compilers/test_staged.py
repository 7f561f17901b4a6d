"""The first call of a program runs its graph, the second one generates code, the
others run that."""

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor

import runtime
from runtime import aot, jit
from runtime.aot.compilers import staged
from runtime.aot.compilers.replay import as_python
from runtime.aot.compilers.staged import Staged, run_graph
from runtime.func import hessian
from runtime.trace.graph_module import complete

from . import random_graphs


@pytest.fixture(autouse=True)
def generated_at_once() -> None:
    """Replaces the fixture of this name: here the calls are as users have them."""


@pytest.fixture
def generations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was generated: the results of `as_python`, in order."""
    made: list[Any] = []

    def noted(module: fx.GraphModule) -> Callable[..., Any]:
        run = as_python(module)
        made.append(run)
        return run

    monkeypatch.setattr(staged, "as_python", noted)
    return made


def test_code_is_generated_by_the_second_call_alone(generations: list[Any]) -> None:
    f = jit(lambda x: (x.sin() * 1).cos())
    x = torch.randn(3)
    for call, expected in enumerate([0, 1, 1, 1]):
        assert f(x).equal(x.sin().cos())
        assert len(generations) == expected, f"after call {call}"


def test_without_anybody_to_tell_all_calls_go_through_the_stages(generations: list[Any]) -> None:
    run = Staged(aot.make_fx(lambda x: [x.sin()])(torch.ones(3)))
    for call, expected in enumerate([0, 1, 1, 1]):
        x = torch.full((3,), float(call))
        assert torch.equal(run([x])[0], x.sin()) and len(generations) == expected


def test_code_is_generated_without_autocast_and_without_collections_and_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[bool, bool]] = []
    told: list[Any] = []

    def noted(module: fx.GraphModule) -> Callable[..., Any]:
        seen.append((torch.is_autocast_enabled("cpu"), gc.isenabled()))
        return as_python(module)

    monkeypatch.setattr(staged, "as_python", noted)
    run: Any = Staged(aot.make_fx(lambda x: [x.sin()])(torch.ones(3)))
    run.settled = told.append
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            run([torch.ones(3)])
    assert seen == [(False, False)] and len(told) == 1 and run.settled is None
    assert torch.equal(told[0]([torch.ones(3)])[0], torch.ones(3).sin())


def test_each_program_has_a_first_call_of_its_own(generations: list[Any]) -> None:
    f = jit(lambda x: x.sin(), dynamic=False)
    for n in (2, 3, 2, 3):
        assert f(torch.ones(n)).equal(torch.ones(n).sin())
    assert len(generations) == 2


def test_a_program_that_writes_to_its_arguments_is_generated_at_once() -> None:
    x = torch.zeros(3)
    f = jit(lambda x: x.add_(1))
    for call in range(1, 4):
        before = x._version
        assert f(x) is x and x.tolist() == [call] * 3 and x._version == before + 1


def test_the_backward_has_a_first_call_of_its_own(generations: list[Any]) -> None:
    f = aot.aot_function(lambda x: (x * x).sin().sum(), aot.nop)
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    plain = torch.tensor([1.0, 2.0])
    for expected in (0, 2, 2):
        (g,) = runtime.autograd.grad(f(x), x)
        torch.testing.assert_close(runtime.unwrap(g), 2 * plain * (plain * plain).cos())
        assert len(generations) == expected


def test_all_calls_give_the_same_bits() -> None:
    x = torch.randn(5)
    f = jit(hessian(lambda x: (x.sin().exp() @ x.cos()).tanh()))
    first, second, third = f(x), f(x), f(x)
    assert first.equal(second) and first.equal(third)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_first_calls_of_random_programs_give_the_bits_of_their_graphs() -> None:
    wrong = [
        random_graphs.difference(
            random_graphs.program(seed, 20, writes=seed % 2 == 0), seed, calls=3
        )
        for seed in range(40)
    ]
    assert not any(wrong), next(filter(None, wrong))


def test_random_numbers_are_those_of_eager_mode_in_all_calls() -> None:
    f = jit(lambda x: x + torch.rand(3))
    for _ in range(3):
        torch.manual_seed(7)
        found = f(torch.zeros(3))
        torch.manual_seed(7)
        assert found.equal(torch.rand(3))


def test_threads_generate_once(generations: list[Any]) -> None:
    f = jit(lambda x: x.sin().cos())
    x = torch.randn(3)
    f(x)
    barrier = threading.Barrier(8)

    def call(_: int) -> Any:
        barrier.wait()
        return f(x)

    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(call, range(8)))
    assert all(r.equal(x.sin().cos()) for r in results)
    assert len(generations) == 1


def test_an_error_of_the_first_call_leaves_the_program_as_it_was() -> None:
    f = jit(lambda x: torch.linalg.cholesky(x))
    f(torch.eye(2))
    g = jit(lambda x: torch.linalg.cholesky(x))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="positive-definite"):
            g(-torch.eye(2))
        assert g(torch.eye(2)).equal(torch.eye(2)) and f(torch.eye(2)).equal(torch.eye(2))


def test_what_was_generated_is_called_without_a_way_through_the_stages() -> None:
    f = jit(lambda x: x.sin())
    for _ in range(2):
        f(torch.ones(2))
    (captured,) = f.captured
    assert not isinstance(captured.program.forward, Staged)


def test_a_graph_run_node_by_node_frees_each_value_after_its_last_use() -> None:
    alive: list[bool] = []
    made: list[weakref.ref[Tensor]] = []

    def make(x: Tensor) -> Tensor:
        y = x + 1
        made.append(weakref.ref(y))
        return y

    def look(x: Tensor) -> Tensor:
        alive.append(any(y() is not None for y in made))
        return x + 1

    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(make, (x,))
    z = graph.call_function(look, (y,))
    graph.call_function(make, (z,))
    graph.output([graph.call_function(look, (z,))])
    given = [torch.zeros(2)]
    argument = weakref.ref(given[0])
    (result,) = run_graph(complete(fx.GraphModule(torch.nn.Module(), graph)), given)
    assert result.tolist() == [3.0, 3.0]
    assert alive == [True, False] and given == []
    assert argument() is None and made[1]() is None


def test_the_nodes_of_a_program_that_was_called_once_get_their_abstract_values_later() -> None:
    f = jit(lambda x: (x.t().sin(), x.split(1), x[1:].conj() * 1j))
    x = torch.randn(3, 2)
    f(x)
    (captured,) = f.captured
    nodes = [n for n in captured.program.joint.traced.graph.nodes if n.op == "call_function"]
    assert any("val" not in n.meta for n in nodes)
    f(x)
    values = {n.name: n.meta["val"] for n in nodes}
    assert all(
        isinstance(v, FakeTensor) for v in values.values() if not isinstance(v, (list, tuple))
    )
    assert values["t"].shape == (2, 3) and values["t"].stride() == (1, 2)
    sliced = values["slice_1"]
    assert (
        sliced.storage_offset() == 2 and sliced.dtype is torch.float32 and sliced.device == x.device
    )


def test_another_compiler_gets_all_abstract_values() -> None:
    found: list[Any] = []

    def compiler(module: fx.GraphModule, examples: list[Any]) -> Any:
        found.extend(n.meta.get("val") for n in module.graph.nodes if n.op == "call_function")
        return module

    jit(lambda x: x.sin().cos(), compiler=compiler)(torch.ones(2))
    assert len(found) == 2 and all(isinstance(v, FakeTensor) for v in found)


def test_a_graph_run_node_by_node_takes_constants_and_keywords_and_records_nothing() -> None:
    root, graph = torch.nn.Module(), fx.Graph()
    root.inner = torch.nn.Module()
    root.inner.w = torch.nn.Parameter(torch.full((3,), 4.0))
    x, w = graph.placeholder("x"), graph.get_attr("inner.w")
    graph.call_function(torch.sin, (x,))
    total = graph.call_function(torch.add, (x,), {"other": w, "alpha": 2})
    graph.output([total, 3])
    given = [torch.ones(3)]
    found, three = run_graph(complete(fx.GraphModule(root, graph)), given)
    assert found.tolist() == [9.0] * 3 and not found.requires_grad and three == 3 and given == []
