"""Each overload with a kernel for the CPU is asked with wrong arguments, or has a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gen.checks.kernels import RIGHT_CALLS
from gen.dispatcher.overload_reasons import reason_of, uncalled_reason_of
from gen.torch_private.aten_overloads import every_overload, has_kernel, is_there
from gen.versions import is_for_installed
from tests.kernel_calls.record import rows

ROOT = Path(__file__).parent.parent.parent
OF_THE_MATRIX = yaml.safe_load((ROOT / "matrix.yaml").read_text())["torch"]


def with_calls() -> list[str]:
    lines = RIGHT_CALLS.read_text().splitlines()
    return [name for line in lines for name in json.loads(line)]


@pytest.mark.skipif(
    not is_for_installed(f"=={OF_THE_MATRIX}"),
    reason="the calls are of the torch that the matrix names",
)
def test_each_kernel_has_a_right_call_or_a_reason() -> None:
    left = {name for name in every_overload() if has_kernel(name)} - set(with_calls())
    assert [
        name for name in sorted(left) if not (reason_of(name) or uncalled_reason_of(name))
    ] == []


def test_no_kernel_with_a_right_call_has_a_reason_why_it_has_none() -> None:
    assert [name for name in with_calls() if uncalled_reason_of(name)] == []


def test_each_op_with_a_right_call_has_a_row() -> None:
    assert (ROOT / "matrix/kernels.yaml").read_text() == rows(with_calls())


def test_rows_are_of_ops_of_the_dispatcher() -> None:
    bases = {name.removeprefix("aten::").partition(".")[0] for name in with_calls()}
    assert len(bases) > 1400
    assert {base for base in bases if not is_there(base)} == set()
