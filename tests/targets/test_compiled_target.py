"""Targets dynamo, aot_eager and inductor: whole pipelines are compiled, not taken apart."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.reference import Loop
from gen.targets import load

ROOT = Path(__file__).parents[2]
D = torch.float64
X = torch.linspace(0.5, 2.0, 6, dtype=D).reshape(2, 3)


def f(x: Any, y: Any) -> Any:
    return x.sin() * y, (x + y).sum(0)


def same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(tuple(actual), tuple(expected), rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def target() -> Any:
    return load("aot_eager")


@pytest.fixture
def graphs(target: Any) -> Any:
    """How many graphs Dynamo has made since the last reset."""
    return lambda: torch._dynamo.utils.counters["stats"]["unique_graphs"]


def vjp(target: Any) -> Any:
    return lambda x, y, *cotangents: tuple(target.vjp(f, x, y)[1](cotangents))


def vmap_of_jvp(target: Any) -> Any:
    return target.vmap(lambda x, y: tuple(target.jvp(f, (x, y), (y, x))[1]), (0, 0))


@pytest.mark.parametrize(("program", "stages"), [(vjp, ("vjp",)), (vmap_of_jvp, ("jvp", "vmap"))])
def test_a_pipeline_is_one_graph_with_the_reference_s_results(
    target: Any, program: Any, stages: Any, graphs: Any
) -> None:
    inputs = (
        (X, X + 1, torch.ones_like(X), torch.ones(3, dtype=D))
        if stages == ("vjp",)
        else (torch.stack([X, X]), torch.stack([X, X + 1]))
    )
    compiled = target.pipeline(program(target), stages)
    before = graphs()
    same(compiled(*inputs), program(Loop())(*inputs))
    assert graphs() == before + 1


def test_what_one_graph_cannot_hold_is_an_error(target: Any) -> None:
    def breaks(x: Any) -> Any:
        torch._dynamo.graph_break()
        return (x.sin(),)

    with pytest.raises(torch._dynamo.exc.Unsupported):
        target.pipeline(breaks, ("vjp",))(X)
    with pytest.raises(torch._dynamo.exc.Unsupported):
        target.forward(breaks)(X)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_op_is_differentiated_by_the_engine(
    target: Any, dynamic: bool, graphs: Any
) -> None:
    before = graphs()

    def backward(xs: Any) -> Any:
        compiled = target.compiled(f, partition="default", dynamic=dynamic)
        return target.backward(compiled, *xs)[1]((torch.ones_like(xs[0]), torch.ones(3, dtype=D)))

    g = target.pipeline(lambda *xs: backward(xs), ("aot.function", "backward"))
    same(g(X, X + 1), Loop().vjp(f, X, X + 1)[1]((torch.ones_like(X), torch.ones(3, dtype=D))))
    assert graphs() == before + 1


def test_the_innermost_backward_compiles_its_function(target: Any, graphs: Any) -> None:
    before = graphs()
    g = target.pipeline(
        lambda *xs: target.backward(f, *xs)[1]((torch.ones_like(X), torch.ones(3, dtype=D))),
        ("backward",),
    )
    same(g(X, X + 1), Loop().vjp(f, X, X + 1)[1]((torch.ones_like(X), torch.ones(3, dtype=D))))
    assert graphs() == before + 1


def test_inductor_compiles_and_keeps_its_kernels_in_files(tmp_path: Path) -> None:
    program = (
        "import torch\nfrom gen.targets import load\n"
        "from torch._dynamo.utils import counters\nx = torch.linspace(0.5, 2.0, 6)\n"
        "(y,) = load('inductor').forward(lambda x: (x.sin() + 1,))(x)\n"
        "assert torch.allclose(y, x.sin() + 1)\nprint(counters['inductor']['fxgraph_cache_hit'] + "
        "counters['aot_autograd']['autograd_cache_hit'])\n"
    )
    environment = os.environ | {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    found = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert [int(text) > 0 for text in found] == [False, True]


class Doubling:
    """A program that Dynamo takes in two parts, with a state in Python."""

    def __init__(self) -> None:
        self.calls = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = x * 2
        # a number of a tensor ends a graph
        if y.sum().item() > 0:
            y = y + self.calls
        return y


@pytest.mark.parametrize("name", ["dynamo", "aot_eager"])
def test_a_program_with_a_state_is_compiled_in_parts(name: str) -> None:
    plain, compiled = Doubling(), Doubling()
    jitted = load(name).jit(compiled.step)  # type: ignore[attr-defined]
    for _ in range(4):
        assert torch.equal(jitted(X), plain.step(X))
    assert compiled.calls == 4


def part(target: Any, f: Any) -> Any:
    return target.part(f, (), partition="default", dynamic=False, jits=False, cache=None)


def test_a_part_of_a_program_is_a_graph_that_the_engine_differentiates(
    target: Any, graphs: Any
) -> None:
    def program(x: Any) -> Any:
        compiled = part(target, lambda a, *, k: (a * k).sin())
        return compiled(x, k=2), compiled(x.cos(), k=2)

    g = target.pipeline(program, ("aot.parts", "session"))
    before, x = graphs(), X.clone().requires_grad_()
    outputs, (found,) = target.session(g, (x,), (torch.ones_like(X),), (1,))
    same(outputs, ((2 * X).sin(), (2 * X.cos()).sin()))
    same((found,), (-2 * X.sin() * (2 * X.cos()).cos(),))
    assert graphs() == before + 1


def test_a_loop_is_compiled_by_itself_and_in_the_graph_of_a_part(target: Any, graphs: Any) -> None:
    loop = target.offered("aot.while_loop", None)

    def doubled(x: Any) -> Any:
        return loop(lambda t: t.sum() < 100, lambda t: (2 * t,), (x,))[0]

    expected = X
    while expected.sum() < 100:
        expected = 2 * expected
    g = target.pipeline(lambda x: (doubled(x), part(target, doubled)(x)), ("aot.parts",))
    before = graphs()
    same(g(X), (expected, expected))
    assert graphs() == before + 2


def test_what_torch_compile_has_no_name_for_is_the_caller_s_own(target: Any) -> None:
    assert target.offered("aot.make_fx", None) is None


def test_a_target_has_the_name_of_its_own_and_the_backend_of_dynamo() -> None:
    target: Any = load("dynamo")
    assert (target.name, target.backend, target.levels) == ("dynamo", "eager", ("dynamo",))
