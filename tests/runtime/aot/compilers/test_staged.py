"""The first call of a program runs its graph, the second one generates code, the
others run that."""

import builtins
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

import runtime
from runtime import aot, jit
from runtime.func import hessian

from . import random_graphs


@pytest.fixture(autouse=True)
def generated_at_once() -> None:
    """Replaces the fixture of this name: here the calls are as users have them."""


@pytest.fixture
def generations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files of what was generated, in order."""
    made: list[str] = []
    compile_text = builtins.compile

    def noted(source: Any, filename: Any, *rest: Any, **options: Any) -> Any:
        if str(filename).startswith("<replay"):
            made.append(filename)
        return compile_text(source, filename, *rest, **options)

    monkeypatch.setattr(builtins, "compile", noted)
    return made


def test_code_is_generated_by_the_second_call_alone(generations: list[str]) -> None:
    f = jit(lambda x: (x.sin() * 1).cos())
    x = torch.randn(3)
    for call, expected in enumerate([0, 1, 1, 1]):
        assert f(x).equal(x.sin().cos())
        assert len(generations) == expected, f"after call {call}"


def test_what_nop_returns_goes_through_the_same_stages(generations: list[str]) -> None:
    run: Any = aot.nop(aot.make_fx(lambda x: [x.sin()])(torch.ones(3)), [torch.ones(3)])
    for call, expected in enumerate([0, 1, 1, 1]):
        x = torch.full((3,), float(call))
        assert torch.equal(run([x])[0], x.sin())
        assert len(generations) == expected


def test_each_program_has_a_first_call_of_its_own(generations: list[str]) -> None:
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


def test_the_backward_has_a_first_call_of_its_own(generations: list[str]) -> None:
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


def test_threads_generate_once(generations: list[str]) -> None:
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
