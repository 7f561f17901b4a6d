"""What a function compiles at its first call does not count for the limit of a cell."""

import time

import pytest

pytest_plugins = "pytester"

OPS = """
import time

import torch

compiled = set()


def compile_kernel(name):
    if name not in compiled:
        time.sleep(3)
        compiled.add(name)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        compile_kernel("forward")
        return x * 2

    @staticmethod
    def backward(ctx, g):
        compile_kernel("backward")
        return g * 2


def double(x):
    return Double.apply(x)


def slow(x):
    time.sleep(3)
    return x * 2
"""
MODULE = """
from gen.checks import cases, family, op

SAMPLES = [{"args": [{"shape": [3]}]}]
NAMES = ("double", "slow")
FAMILY = family("compiled", ops={
    f"compiled.{name}": {"call": f"compiled_ops:{name}", "samples": SAMPLES} for name in NAMES
})

@cases(op("compiled.double", smoke="float64"), op("compiled.slow", smoke="float64"))
def test_backward(case):
    case.assert_same("backward", against="numeric")
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(compiled_ops=OPS, test_compiled=MODULE)
    pytester.syspathinsert()
    return pytester


def _outcomes(project: pytest.Pytester) -> dict[str, int]:
    result = project.runpytest_subprocess(
        "-p", "gen.run.plugin", "--target", "torch", "--cell-timeout", "2"
    )
    return result.parseoutcomes()


def test_a_compiled_function_passes_and_a_slow_one_does_not(project: pytest.Pytester) -> None:
    project.mkpydir("numba")
    project.makepyfile(compiled_ops=f"import numba\n{OPS}")
    begin = time.perf_counter()
    assert _outcomes(project) == {"passed": 1, "failed": 1}
    assert time.perf_counter() - begin > 6, "both kernels were compiled"


def test_a_compiler_that_nothing_imports_lets_no_function_run_before_its_cell(
    project: pytest.Pytester,
) -> None:
    project.mkpydir("numba")
    assert _outcomes(project) == {"failed": 2}


def test_without_a_compiler_no_function_runs_before_its_cell(project: pytest.Pytester) -> None:
    assert _outcomes(project) == {"failed": 2}
