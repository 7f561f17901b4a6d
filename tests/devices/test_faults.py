"""The matrix names each fault that is planted in a device, and is seldom wrong about a right one.

The cells are those of `named.yaml`, which the wide run writes: `python -m tests.devices.campaign`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAMED = yaml.safe_load(Path(__file__).with_name("named.yaml").read_text("utf-8"))
LEVELS = {
    "copy_of_gaps": "copies",
    "view_that_copies": "views",
    "lost_write": "elementwise",
    "alias": "elementwise",
    "lost_resize": "elementwise",
    "tail": "elementwise",
    "lost_nan": "elementwise",
    "integer_quotient": "elementwise",
    "number_promotion": "elementwise",
    "lost_error": "elementwise",
    "missing_synchronization": "reductions",
    "negative_dimension": "reductions",
    "empty_product": "reductions",
    "number_as_vector": "reductions",
    "stale_cache": "matmul",
    "transposed_factor": "matmul",
    # strides and views of these show in derivatives alone
    "wrong_stride": "autograd",
    "reallocation_in_place": "autograd",
    "wrong_gradient": "autograd",
    "ignored_seed": "modules",
}
"""The first level with a red cell, of each fault."""
SOME = 40  # cells on the right device


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run of its own found: a device cannot be taken out of a process again."""
    path = tmp_path_factory.mktemp("campaign") / "found.json"
    words = ["--named", "--levels", "--cells", str(SOME), "--json", str(path)]
    command = [sys.executable, "-m", "tests.devices.campaign", *words]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert path.exists(), run.stdout[-2000:] + run.stderr[-2000:]
    return json.loads(path.read_text("utf-8"))


@pytest.mark.parametrize("fault", NAMED)
def test_a_cell_of_the_faulty_op_fails_and_passes_without_the_fault(fault: str, found: Any) -> None:
    assert found["named"].get(fault) == NAMED[fault]


@pytest.mark.parametrize("fault", LEVELS)
def test_the_level_of_the_faulty_op_is_the_first_red_one(fault: str, found: Any) -> None:
    assert found["levels"].get(fault) == LEVELS[fault]


def test_at_most_3_percent_of_the_cells_fail_on_the_right_device_alone(found: Any) -> None:
    assert len(found["alarms"]) <= 0.03 * SOME, found["alarms"]
    assert found["right"]["passed"] > SOME / 2  # most cells compare something


def test_each_of_the_twenty_faults_is_named(found: Any) -> None:
    assert sorted(found["faults"]) == sorted(NAMED) == sorted(LEVELS)
    assert len(NAMED) == 20
