"""What is written down of torch is true of it, and each fact that changes is named.

Inside: gen.facts.torch_facts. What is written down about torch is changed here one entry at a
time, and private names of torch are collected, while the command shows a summary of them.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gen.cli import main
from gen.facts import torch_facts
from gen.facts.torch_facts import ABSENT, collect, edits, private_names
from gen.facts.without_runtime import lock

Lock = dict[str, dict[str, str]]
_PINNED = yaml.safe_load((Path(__file__).parents[3] / "matrix.yaml").read_text("utf-8"))["torch"]


def _written(version: str) -> Lock:
    facts = lock.read(version)
    del facts["torch"]
    return facts


@pytest.fixture(scope="module")
def installed() -> Lock:
    return collect()


def test_what_is_written_down_of_the_installed_torch_is_true() -> None:
    if lock.installed() not in lock.versions():
        pytest.skip(f"no facts of torch {lock.installed()} are written down")
    written = _written(lock.installed())
    assert list(edits(written, collect(written))) == []


def test_each_private_name_of_the_source_is_written_down() -> None:
    if lock.installed() != _PINNED:
        pytest.skip(f"the source is measured on torch {_PINNED}")
    new = {*private_names()} - {*_written(_PINNED)["names"]}
    assert not new, "`python -m gen facts --write` measures them"


CHANGES: dict[str, tuple[str, Callable[[Lock], Any]]] = {
    "a derivative is added": (
        "formulas  argmax.default: absent -> self",
        lambda f: f["formulas"].update({"argmax.default": "self"}),
    ),
    "a derivative is gone": (
        "formulas  sin.default: self -> absent",
        lambda f: f["formulas"].pop("sin.default"),
    ),
    "an argument has a derivative": (
        "formulas  mul.Tensor: self other -> self",
        lambda f: f["formulas"].update({"mul.Tensor": "self"}),
    ),
    "a schema has a new argument": (
        "schemas  aten.sin.default",
        lambda f: f["schemas"].update({"aten.sin.default": "aten::sin(Tensor x, int n) -> Tensor"}),
    ),
    "an op is gone": (
        "schemas  aten.add.Tensor",
        lambda f: f["schemas"].update({"aten.add.Tensor": ABSENT}),
    ),
    "a tie is split otherwise": (
        "probes  maximum: gradients, equal: 0.5 0.5 -> 1.0 0.0",
        lambda f: f["probes"].update({"maximum: gradients, equal": "1.0 0.0"}),
    ),
    "NaN goes to both": (
        "probes  atan2: gradients, first is NaN",
        lambda f: f["probes"].update({"atan2: gradients, first is NaN": "1.0 1.0"}),
    ),
    "a private name is gone": (
        "names  torch._C._dynamo.guards.dict_version",
        lambda f: f["names"].update({"torch._C._dynamo.guards.dict_version": ABSENT}),
    ),
    "a function has a new argument": (
        "replaced  torch.utils.checkpoint.checkpoint",
        lambda f: f["replaced"].update({"torch.utils.checkpoint.checkpoint": "function(f, fast)"}),
    ),
    "a decomposition is gone": (
        "decompositions  aten.addcmul.default: decomposed -> absent",
        lambda f: f["decompositions"].pop("aten.addcmul.default"),
    ),
    "strides are others": (
        "probes  clone: strides, transposed",
        lambda f: f["probes"].update({"clone: strides, transposed": "(60, 20, 5, 1)"}),
    ),
    "a program is refused": (
        "probes  refused: in-place promotion",
        lambda f: f["probes"].update({"refused: in-place promotion": "runs"}),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_fact_that_changes_is_named_and_nothing_else(what: str, installed: Lock) -> None:
    named, change = CHANGES[what]
    changed = copy.deepcopy(installed)
    change(changed)
    (edit,) = edits(installed, changed)
    assert " ".join(str(edit).split()).startswith(" ".join(named.split()))


def test_an_edit_names_the_record_that_it_touches(installed: Lock) -> None:
    changed = copy.deepcopy(installed)
    changed["probes"]["maximum: gradients, equal"] = "1.0 0.0"
    (edit,) = edits(installed, changed, {"maximum": "pointwise"})
    assert edit.touches == "the record of maximum (family pointwise)"


def test_what_is_known_of_another_version_is_asked_for() -> None:
    known = {"names": {"torch._C._gone": "type"}, "schemas": {"aten.gone.default": "aten::gone()"}}
    found = collect(known)
    assert found["names"] == {"torch._C._gone": ABSENT}
    assert found["schemas"] == {"aten.gone.default": ABSENT}


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Two versions, of which the second differs in one fact."""
    monkeypatch.setattr(lock, "LOCKS", tmp_path)
    # there is no catalog of these versions, whose ops would be facts as well
    monkeypatch.setattr("gen.plan.catalog.load", lambda cache, version: None)
    monkeypatch.setattr("gen.commands.facts._ops", lambda known_ops: {})
    for version, at in (("1.0.0", "1.0"), ("1.1.0", "0.0")):
        facts = {"torch": version, "probes": {"clamp: gradient at its bounds": at}}
        (tmp_path / f"torch-{version}.json").write_text(json.dumps(facts))
    return tmp_path


def test_two_versions_are_compared_by_the_command(
    stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["facts", "1.0.0", "1.1.0"]) == 1
    text = capsys.readouterr().out
    assert "torch 1.1.0 beside 1.0.0: 1 facts differ" in text
    assert "clamp: gradient at its bounds: 1.0 -> 0.0" in text
    assert main(["facts", "1.1.0", "1.0.0", "--json"]) == 1
    (edit,) = json.loads(capsys.readouterr().out)
    assert (edit["old"], edit["new"]) == ("0.0", "1.0")
    assert main(["facts", "1.0.0", "1.0.0"]) == 0


def test_nothing_is_written_where_the_runtime_cannot_be_imported(
    stored: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch_facts, "import_error", lambda: ImportError("no such op"))
    before = sorted(stored.iterdir())
    assert main(["facts", "--write"]) == 2
    assert "no such op" in capsys.readouterr().err and sorted(stored.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["1.0.0", "1.1.0", "1.0.0"], "two versions can be compared, not more"),
        (["1.0.0", "--write"], "--write takes no version"),
        (["1.0.1"], "no facts of torch 1.0.1 are written down, only of 1.0.0, 1.1.0; did you"),
    ],
)
def test_a_mistake_is_named(
    arguments: list[str], what: str, stored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["facts", *arguments]) == 2
    assert what in capsys.readouterr().err


_WITHOUT = """
import sys
import torch
del torch._C._get_deterministic_algorithms, torch._C._functorch.peek_interpreter_stack
from gen import cli
sys.exit(cli.main(["facts"]))
"""


def test_a_torch_without_names_that_the_runtime_imports_is_compared_nevertheless() -> None:
    """Here two names are taken from the installed torch before the command is run."""
    root = Path(__file__).parents[3]
    told = subprocess.run(
        [sys.executable, "-c", _WITHOUT], cwd=root, capture_output=True, text=True, check=False
    )
    lines = [line for line in told.stdout.splitlines() if line.startswith("names ")]
    assert [line.split()[1].rstrip(":") for line in lines] == [
        "torch._C._functorch.peek_interpreter_stack",
        "torch._C._get_deterministic_algorithms",
    ]
    assert told.returncode == 1
    assert "the runtime cannot be imported: AttributeError" in told.stderr
