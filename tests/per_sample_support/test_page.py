"""What docs/per_sample_support.md says of the modules and functions of `torch.nn` is what running
them says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.per_sample_support.blocks import PACKAGES, blocks, installed
from tests.per_sample_support.cases import (
    FUNCTIONS_WITHOUT_A_ROW,
    INPUTS,
    WITHOUT_A_ROW,
    B,
    Case,
    functions,
    modules,
)
from tests.per_sample_support.page import BLOCKS_PAGE, PAGE, blocks_section, page
from tests.per_sample_support.trial import FUNCTION_NAMES, Trial, try_case

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the page is of torch 2.13"
)


@pytest.fixture(scope="module")
def of_modules() -> list[Trial]:
    """The rows of modules, each compared with a loop over the samples."""
    return [try_case(case) for case in modules()]


@pytest.fixture(scope="module")
def of_functions() -> list[Trial]:
    """The rows of functions."""
    return [try_case(case) for case in functions()]


def test_the_page_is_current(of_modules: list[Trial], of_functions: list[Trial]) -> None:
    """`python -m tests.per_sample_support` writes it."""
    assert (ROOT / PAGE).read_text("utf-8") == page(of_modules, of_functions)


def test_each_module_of_torch_has_a_row_or_a_reason() -> None:
    tried = {text.partition("(")[0] for text in (case.text for case in modules())}
    assert tried.isdisjoint(WITHOUT_A_ROW)
    assert tried | WITHOUT_A_ROW.keys() == set(nn.modules.__all__)


def test_each_function_of_torch_is_called_by_a_row_or_has_a_reason(
    of_modules: list[Trial], of_functions: list[Trial]
) -> None:
    called = {name for trial in [*of_modules, *of_functions] for name in trial.calls}
    assert called.isdisjoint(FUNCTIONS_WITHOUT_A_ROW)
    assert sorted(called | FUNCTIONS_WITHOUT_A_ROW.keys()) == sorted({*FUNCTION_NAMES.values()})


@pytest.mark.parametrize("name", INPUTS)
def test_the_first_dimension_of_that_size_is_the_batch(name: str) -> None:
    for tensor in INPUTS[name].batch():
        assert tensor.shape.index(B) == INPUTS[name].dim


@pytest.mark.filterwarnings("ignore")  # of these packages
@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_of_blocks_is_current(package: str) -> None:
    version = installed(package)
    if version is None:
        pytest.skip(f"{package} is not installed")
    trials = [try_case(case) for case in blocks(package)]
    text = (ROOT / BLOCKS_PAGE).read_text("utf-8")
    if f"## {package} {version}\n" not in text:
        pytest.skip(f"the page is of another version of {package} than {version}")
    assert blocks_section(package, version, trials) in text


class Wrong(torch.autograd.Function):
    """Twice its argument, with the gradient of three times."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return g * (3 if len(g) == 1 else 2)


class Unsteady(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Wrong.apply(x)  # type: ignore[no-any-return, no-untyped-call]


def test_gradients_that_are_not_those_of_the_loop_are_no_row() -> None:
    with pytest.raises(AssertionError, match="not close"):
        try_case(Case("", "Unsteady()", Unsteady, INPUTS["rows"]))
