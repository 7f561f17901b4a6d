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


def imported(x):
    import sys

    assert "torch._dynamo" in sys.modules
    return x * 2


def slow(x):
    time.sleep(3)
    return x * 2
"""
MODULE = """
from gen.checks import cases, family, op

SAMPLES = [{"args": [{"shape": [3]}]}]
NAMES = ("double", "slow", "imported")
FAMILY = family("compiled", ops={
    f"compiled.{name}": {"call": f"compiled_ops:{name}", "samples": SAMPLES} for name in NAMES
})

@cases(op("compiled.double", smoke="float64"), op("compiled.slow", smoke="float64"))
def test_backward(case):
    case.assert_same("backward", against="numeric")

@cases(op("compiled.imported", smoke="float64"))
def test_forward(case):
    case.assert_same("forward", against="again")
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(compiled_ops=OPS, test_compiled=MODULE)
    pytester.syspathinsert()
    return pytester


def _outcomes(project: pytest.Pytester, column: str = "backward") -> dict[str, int]:
    result = project.runpytest_subprocess(
        "-p", "gen.run.plugin", "--target", "torch", "--cell-timeout", "2", "-k", column
    )
    return {what: n for what, n in result.parseoutcomes().items() if what != "deselected"}


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


def test_what_torch_imports_late_does_not_count_for_the_first_cell(
    project: pytest.Pytester,
) -> None:
    assert _outcomes(project, "test_forward") == {"passed": 1}
