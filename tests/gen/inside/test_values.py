"""Values of arguments that stand behind tags: tuples, slices, dtypes, devices, complex numbers,
generators and tensors in files.

Inside: :mod:`gen.samples.descriptions`, since a cell shows its arguments only by what the op makes
of them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gen.checks import Family
from gen.cli import main
from gen.samples.descriptions import build

MATRIX = """
version: 1
checks: {{forward: {{claim: c, against: eager}}}}
families:
  one:
    ops:
      - {{op: own.f, call: "torch:sin", samples: [{{args: [{value}]}}]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    Path("data").mkdir()
    torch.save(torch.arange(3.0), "data/w.pt")
    torch.save({"w": torch.ones(2)}, "data/state.pt")
    np.save("data/w.npy", np.arange(4))
    return tmp_path


def argument(written: str) -> Any:
    """Return what an argument of a matrix is when its cell runs."""
    Path("m.yaml").write_text(MATRIX.format(value=written))
    assert main(["generate", "--matrix", "m.yaml"]) == 0
    names: dict[str, Any] = {}
    exec(Path("generated_tests/test_one.py").read_text(), names)
    family: Family = names["FAMILY"]
    ((args, *_),) = build(family.ops["own.f"]["samples"], torch.float32, "cpu")
    return args[0]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("!tuple [2, 3]", (2, 3)),
        ("!tuple []", ()),
        ("!tuple [!tuple [1], [2], a]", ((1,), [2], "a")),
        ("[!tuple [0, 1], !tuple [2, 3]]", [(0, 1), (2, 3)]),
        ("!slice [3]", slice(3)),
        ("!slice [1, null, 2]", slice(1, None, 2)),
        ("!tuple [!slice [null], 1]", (slice(None), 1)),
        ("!dtype float64", torch.float64),
        ("!device cpu", torch.device("cpu")),
        ("!device meta", torch.device("meta")),
        ("!complex 1+2j", 1 + 2j),
        ("!complex 1.5 - 2j", 1.5 - 2j),
        ("!complex 2", 2 + 0j),
    ],
)
def test_a_value_behind_a_tag_is_the_argument_of_the_op(written: str, meant: object) -> None:
    found = argument(written)
    assert found == meant and type(found) is type(meant)


def test_tensors_in_files_are_arguments() -> None:
    assert argument("!file data/w.pt").tolist() == [0, 1, 2]
    assert argument("!file data/w.npy").tolist() == [0, 1, 2, 3]
    assert argument("!tuple [{shape: [2]}, !file data/w.npy]")[1].dtype is torch.int64


def test_a_generator_draws_the_same_numbers_from_its_seed() -> None:
    found = torch.rand(3, generator=argument("!generator 7"))
    assert torch.equal(found, torch.rand(3, generator=torch.Generator().manual_seed(7)))


def test_a_file_that_has_no_tensor_is_named_when_the_cell_runs() -> None:
    with pytest.raises(Exception, match=r"state\.pt has a dict, no tensor"):
        argument("!file data/state.pt")
