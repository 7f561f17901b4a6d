"""`compiler="auto"`: the replay serves at once, and Inductor's code once it is right and faster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import tiered
from runtime.jit import explain

ROOT = Path(__file__).parents[4]


REPLAYED: dict[str, tuple[Callable[[Tensor], Tensor], dict[str, Any], str]] = {
    "random numbers": (lambda x: torch.rand_like(x), {}, "it draws random numbers"),
    "any sizes": (lambda x: x * 2, {"dynamic": True}, "its sizes are symbols"),
    "an index, which may be wrong": (lambda x: x[x.long()], {}, "it calls aten._to_copy.default"),
    "a small error": (lambda x: x.erf(), {}, "it calls aten.erf.default, whose kernel was not"),
    "integers": (lambda x: x.argmax(0, True) * 2, {}, "it calls aten.argmax.default"),
    "a factor": (lambda x: torch.addmm(x, x[None], x.diag(), beta=2), {}, "it calls aten.addmm"),
    "a bound of 0": (lambda x: x.clamp(0, 1), {}, "it calls aten.clamp.default with sizes or num"),
    "an exponent": (lambda x: x**-0.5, {}, "it calls aten.pow.Tensor_Scalar with sizes or num"),
    "half precision": (lambda x: (x.half() + 256) - 256, {}, "a tensor has torch.float16"),
}


@pytest.mark.parametrize("name", REPLAYED)
def test_some_graphs_stay_with_the_replay(name: str) -> None:
    function, options, said = REPLAYED[name]
    f = jit(function, compiler=partial(tiered, calls=1), **options)
    f(torch.ones(3))
    assert f"forward: the replay: {said}" in str(explain(f))


def test_a_graph_is_not_compiled_before_it_is_called_often() -> None:
    f = jit(torch.sin, compiler="auto")
    f(torch.ones(3))
    f(torch.ones(3))
    assert "program 0 forward: the replay\n" in str(explain(f))


def _output_of(code: str, kernels: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        cwd=ROOT,
        env={
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": str(kernels),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


HEAD = """
import os, time, torch
from functools import partial
from runtime import jit
from runtime.jit import explain
import runtime.aot.compilers.tiered as tiers
f = jit(lambda x: x.sin() * 2, compiler=partial(tiers.tiered, calls=2))
x = torch.ones(3)
"""


def test_the_interpreter_waits_for_no_compilation_at_its_exit(kernels: Path) -> None:
    hanging = "tiers.inductor = lambda *_, **__: time.sleep(1000)\n"
    begin = "f = jit(lambda x: x.cos(), compiler=partial(tiers.tiered, calls=2))\n"
    code = HEAD + hanging + begin + "f(x); f(x); f(x); print('end')\n"
    assert _output_of(code, kernels) == "end\n"


def test_a_fork_is_served_by_the_replay(kernels: Path) -> None:
    code = """
tiers.inductor = lambda *_, **__: time.sleep(1000)
f = jit(lambda x: x.sin() * 2, compiler=partial(tiers.tiered, calls=2))
f(x); f(x)
child = os.fork()
if not child:
    ok = all(f(x).equal(x.sin() * 2) for _ in range(5))
    os._exit(0 if ok else 1)
print(os.waitpid(child, 0)[1])
"""
    assert _output_of(HEAD + code, kernels) == "0\n"


def test_inductor_compiles_in_the_background_also_what_writes(kernels: Path) -> None:
    code = """
while "native code" not in str(explain(f)):
    assert f(x).equal(x.sin() * 2)
    time.sleep(0.01)
print(torch.allclose(f(x), x.sin() * 2))
state, other = torch.zeros(3), torch.zeros(3)
g = jit(lambda x: state.mul_(0.5).add_(x.sin()).sum(), compiler=partial(tiers.tiered, calls=2))
while "native code takes" not in str(explain(g)) and "native code, " not in str(explain(g)):
    found, right = g(x), other.mul_(0.5).add_(x.sin()).sum()
    assert torch.allclose(found, right) and torch.allclose(state, other)
    time.sleep(0.01)
"""
    assert _output_of(HEAD + code, kernels) == "True\n"


def test_an_error_of_native_code_is_that_of_the_kernel(kernels: Path) -> None:
    code = """
def g(a, x):
    return (torch.linalg.solve(a, x).sin() * 2).cos()
f = jit(g, compiler=partial(tiers.tiered, calls=2))
a, x = 2 * torch.eye(3), torch.ones(3)
while "native code takes" not in str(explain(f)) and "native code, " not in str(explain(f)):
    assert torch.allclose(f(a, x), (torch.full((3,), 0.5).sin() * 2).cos())
    time.sleep(0.01)
try:
    f(torch.zeros(3, 3), x)
except torch.linalg.LinAlgError as error:
    print("singular" in str(error))
print(torch.allclose(f(a, x), (torch.full((3,), 0.5).sin() * 2).cos()))
"""
    assert _output_of(HEAD + code, kernels) == "True\nTrue\n"
