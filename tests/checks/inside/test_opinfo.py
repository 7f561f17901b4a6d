"""The rows of torch's OpInfo database, by the names of the matrix.

Inside: gen.samples.opinfo. The whole database is read here: a run of each of its rows as a cell
would take minutes, and what OpInfo's own tests draw is no part of a cell.
"""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import yaml

from gen.samples import opinfo
from tests.checks.gone import gone

D = torch.float64


def test_every_opinfo_row_of_the_matrix_is_found_under_its_name() -> None:
    rows = yaml.safe_load(Path(__file__).parents[3].joinpath("matrix/torch-ops.yaml").read_text())
    ops = [op for family in rows["families"].values() for op in family["ops"]]
    wanted = {op if isinstance(op, str) else op["op"] for op in ops}
    assert wanted - gone() <= set(opinfo.database())


def test_names_no_two_ops_share() -> None:
    assert opinfo.database()["torch.div.floor_rounding"].variant_test_name == "floor_rounding"
    assert opinfo.database()["torch.Tensor.__radd__"].name == "__radd__"
    assert opinfo.lookup("torch.no_such_op") is None


def test_samples_are_those_that_opinfo_gives_to_its_own_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = opinfo.database()["torch.add"]
    ours = [s.input for s in opinfo.samples(info, "cpu", D, ("seed",))]
    monkeypatch.setattr(opinfo, "_without_its_test", nullcontext)
    theirs = [s.input for s in opinfo.samples(info, "cpu", D, ("seed",))]
    assert len(ours) > 2
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
