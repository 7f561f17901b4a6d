"""`gen record` makes a matrix of what a command calls; `gen probe` drafts a row of one function."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import ROOT, python

OPS = """
import torch


class WrongCube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x**2 * g, None


class Cubes(WrongCube):
    pass


class Scale(torch.nn.Module):
    def __init__(self, features, bias=True):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * self.weight


def rows(index, weight, *, scale=1.0):
    assert index.dtype == torch.int64
    return scale * torch.nn.functional.embedding(index, weight)


def root(x):
    assert (x > 0).all(), "a positive x"
    return x.sqrt()


def never(x):
    return x


NUMBER = 3
"""
SCRIPT = """
import sys
import torch
from threefold import rows
from threefold.ops import Cubes, Scale, WrongCube, root

x = torch.rand(700, 4, requires_grad=True)
WrongCube.apply(x, 2.5)
Cubes.apply(x, 2.5)
scale = Scale(512, bias=False)
scale(torch.randn(128, 512))
for _ in range(3):
    rows(torch.tensor([1, 6]), torch.randn(7, 2), scale=3.0)
root(torch.rand(4) + 1)
rows(torch.tensor([1, 6]), torch.randn(7, 2), scale=float("inf"))
"""
TRAINING = """
import torch
from torch.nn import functional as F

model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10),
    torch.nn.Dropout()
)
rates = torch.linspace(0, 1, 5)
weights = torch.tensor([float(n) for n in range(99)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    loss = F.cross_entropy(model(torch.randn(64, 3, 8, 8)), torch.randint(10, (64,)))
    loss.backward()
    optimizer.step()
print("trained")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "threefold").mkdir()
    (folder / "threefold/__init__.py").write_text("from threefold.ops import rows\n")
    (folder / "threefold/ops.py").write_text(OPS)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "train.py").write_text(TRAINING)
    (folder / "fails.py").write_text("import torch\nprint('half way')\nraise SystemExit(7)\n")
    (folder / "other.py").write_text("print('no tensors')\n")
    (folder / "waits.py").write_text("import time, torch\nprint('waits')\ntime.sleep(60)\n")
    return folder


def probe(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return python(folder, "-m", "gen", "probe", *args)


def row_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    text = "\n".join(line.replace("!tuple", "") for line in done.stdout.splitlines())
    data = yaml.safe_load(text)
    assert data is not None, done.stderr
    row: dict[str, Any] = data["families"]["mine"]["ops"][0]
    return row


# --- a row of one function ------------------------------------------------------------------------


def test_a_sample_becomes_a_row_and_a_wrong_backward_an_entry(folder: Path) -> None:
    done = probe(folder, "threefold.ops.WrongCube", "--sample", "torch.randn(3, 4), 2.0")
    assert done.returncode == 0, done.stderr
    assert "# threefold.ops.WrongCube on target torch: " in done.stdout
    row = row_of(done)
    assert row["call"] == "threefold.ops:WrongCube.apply"
    assert row["samples"][0] == {"args": [{"shape": [3, 4]}, 2.0]}
    assert row["dtypes"] == ["float64", "float32"]
    assert row["not_checks"] == ["func_*"]
    entry, *others = yaml.safe_load(done.stdout)["xfail"]
    assert entry["check"] == ["backward", "backward_layout"]
    assert entry["raises"] == "Mismatch" and entry["reason"] is None
    assert [each["check"] for each in others] == [["backward_layout"]], "where rows repeat"
    assert re.match(r"output 0 of 1, float64\\\[3, 4\\\]: largest error \d", entry["match"])


def test_a_drafted_row_can_be_pasted(folder: Path, tmp_path: Path) -> None:
    check = "{claim: c, pipeline: backward, against: numeric, dtypes: [float64]}"
    head = f"version: 1\nchecks:\n  backward: {check}\n"
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(head + "families:\n  a: {ops: [torch.sin]}\n")
    args = ("--matrix", str(matrix), "--target", "torch")
    done = probe(folder, "threefold.ops.root", "--sample", "torch.rand(3, 4)", *args)
    assert row_of(done)["samples"][0] == {"args": [{"shape": [3, 4], "domain": "positive"}]}
    assert "AssertionError: a positive x" in done.stdout  # what was tried first
    matrix.write_text(head + done.stdout)
    assert "1 passed" in cells_of(folder, tmp_path)


def test_proposed_entries_hold_once_they_have_a_reason(folder: Path, tmp_path: Path) -> None:
    head = (
        "version: 1\nchecks:\n  layouts: {claim: c, pipeline: backward, against: numeric, "
        "dtypes: [float64], over: {layout: [contiguous, expanded]}}\n"
    )
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(head + "families:\n  a: {ops: [torch.sin]}\n")
    args = ("--sample", "torch.rand(3, 4), 2.0", "--matrix", str(matrix), "--target", "torch")
    done = probe(folder, "threefold.ops.WrongCube", *args)
    assert done.stdout.count("    reason:\n") == 2
    matrix.write_text(head + done.stdout.replace("    reason:\n", "    reason: a wrong factor\n"))
    assert "2 xfailed" in cells_of(folder, tmp_path)


def cells_of(packages: Path, project: Path) -> str:
    """Run the cells of a project, and return what pytest says, once none is red."""
    for words in (
        ["gen", "generate"],
        ["pytest", "-p", "gen.run.plugin", "-q", "generated_tests", "--target", "torch"],
    ):
        ran = python(project, "-m", *words, path=(ROOT, packages))
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_a_matrix_of_the_folder_gives_its_checks(folder: Path, tmp_path: Path) -> None:
    check = "{claim: c, pipeline: vjp, against: upstream, dtypes: [float64]}"
    text = f"version: 1\nchecks:\n  own: {check}\nfamilies:\n  a: {{ops: [torch.sin]}}\n"
    matrix = tmp_path / "matrix.yaml"
    matrix.write_text(text)
    args = ("--matrix", str(matrix), "--target", "torch")
    done = probe(folder, "threefold.ops.root", "--sample", "torch.rand(9)", *args)
    assert "# threefold.ops.root on target torch: 1 passed" in done.stdout, done.stderr
    assert row_of(done)["samples"][0]["args"][0]["shape"] == [9], "somebody chose the size"


def test_a_function_of_no_matrix_is_called_by_guesses(folder: Path) -> None:
    done = probe(folder, "threefold.ops.Scale", "--checks", "backward")
    assert "Scale = ModuleCall(lambda: threefold.ops.Scale(3))" in done.stdout, done.stderr
    assert "1 passed" in done.stdout


def test_calls_of_a_run_become_samples(folder: Path) -> None:
    command = ("--record", f"{sys.executable} script.py", "--checks", "forward_precision")
    done = probe(folder, "threefold.ops.rows", *command)  # the script calls it by another name
    assert done.returncode == 0, done.stderr
    index = {"shape": [2], "dtype": "int64", "low": 1, "high": 4}
    sample = {"args": [index, {"shape": [4, 2]}], "kwargs": {"scale": 3.0}}
    assert row_of(done)["samples"][0] == sample
    assert "calls: 4" in done.stdout
    assert "calls left out: the number inf" in done.stdout


def test_calls_of_a_function_class_are_not_those_of_its_subclasses(folder: Path) -> None:
    command = ("--record", f"{sys.executable} script.py", "--checks", "forward_precision")
    done = probe(folder, "threefold.ops.WrongCube", *command)
    assert "calls: 1" in done.stdout, done.stderr
    assert row_of(done)["samples"][0] == {"args": [{"shape": [4, 4]}, 2.5]}


def test_a_module_is_recorded_with_its_constructor(folder: Path) -> None:
    command = ("--record", f"{sys.executable} script.py", "--checks", "forward_precision")
    done = probe(folder, "threefold.ops.Scale", *command)
    assert "Scale = ModuleCall(lambda: threefold.ops.Scale(512, bias=False))" in done.stdout
    assert row_of(done)["call"] == "calls:Scale"


def test_a_function_that_is_not_torchs_needs_no_database_of_torchs(folder: Path) -> None:
    program = (
        "import sys; from gen.cli import main; "
        "main(['probe', 'threefold.ops.root', '--sample', 'torch.rand(3)', '--checks', 'dual']); "
        "print('database:', [name for name in sys.modules if 'common_methods' in name])"
    )
    done = python(folder, "-c", program)
    assert "database: []" in done.stdout, done.stderr
    assert "1 passed" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["threefold.ops.nothing", "--sample", "1"], "threefold.ops.nothing: AttributeError"),
        (["threefold.ops.NUMBER", "--sample", "1"], "is a int, which cannot be called"),
        (["threefold.ops.root", "--sample", "torch.ones(3"], "--sample 'torch.ones(3': SyntaxErr"),
        (["threefold.ops.root", "--sample", "object()"], "has no form for an argument of class"),
        (["threefold.ops.root", "--sample", "3"], "no call works"),
        (["threefold.ops.never", "--record", "PYTHON script.py"], "never called threefold.ops.n"),
        (["threefold.ops.root", "--record", "x", "--sample", "3"], "--sample or --record, not b"),
    ],
)
def test_what_gives_no_row_is_named(folder: Path, args: list[str], message: str) -> None:
    done = probe(folder, *(each.replace("PYTHON", sys.executable) for each in args))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# --- a matrix of a run ----------------------------------------------------------------------------


def record(folder: Path, command: str, out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    words = ("record", command.replace("PYTHON", sys.executable), "--out", str(out))
    return python(folder, "-m", "gen", *words, "--requirement", "the-matrix==1.0", *more)


@pytest.fixture(scope="module")
def project(folder: Path) -> Path:
    done = record(folder, "PYTHON train.py", folder / "checks")
    assert done.returncode == 0, done.stderr
    assert "  | trained" in done.stderr
    assert " rows from " in done.stdout
    return folder / "checks"


def test_ops_and_functions_of_a_run_are_rows(project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    rows = [line.split()[-1] for line in text.splitlines() if line.strip().startswith("- op: ")]
    assert {"torch.nn.functional.conv2d", "torch.ops.aten.addmm.default"} <= set(rows)
    assert "torch.ops.aten.convolution_backward.default" in rows  # of the backward pass
    assert "- args: [{shape: [5, 3, 4, 4]}, {shape: [" in text  # sizes are smaller
    assert "      # 2 calls\n" in text
    assert "torch.ops.aten.add_.Tensor" in rows  # of the optimizer, on copies
    assert "#     torch.randn, 2: its results differ from call to call, and no" in text
    assert "#     torch.nn.functional.dropout, 2: its results differ from" in text


def test_a_row_asks_nothing_that_has_no_answer(project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    data = yaml.safe_load(re.sub(r"!\w+ ", "", text))
    rows = {row["op"]: row for row in data["families"]["package"]["ops"]}
    backward = rows["torch.ops.aten.convolution_backward.default"]
    assert backward["differentiable"] is False and backward["not_checks"] == ["*_layout"]
    assert "transposed" in text and rows["torch.ops.aten.view.default"]["not_checks"] == [
        "*_layout"
    ]
    steps = rows["torch.linspace"]  # of numbers alone
    assert steps["samples"][0]["args"] == [0, 1, 5]
    assert steps["not_checks"] == ["func_*vmap*", "*_layout"]
    assert rows["torch.nn.functional.relu"].keys().isdisjoint({"not_checks", "deterministic"})


def test_the_data_of_a_tensor_is_not_kept(project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    assert "#     torch.tensor, 1: its data is Python's" in text
    assert "98.0" not in text


def test_the_cells_of_a_run_pass(project: Path, folder: Path) -> None:
    assert python(project, "-m", "gen", "check").returncode == 0
    done = python(project, "-m", "pytest", "-q", "tests", "generated_tests")
    assert done.returncode == 0, done.stdout[-3000:]


def test_several_processes_and_another_start_module_are_recorded(folder: Path) -> None:
    hooks = folder / "hooks"
    hooks.mkdir()
    (hooks / "sitecustomize.py").write_text("print('a start module of my own')\n")
    line = "import torch; torch.rand(3).sin()"
    command = f"{sys.executable} -c '{line}'; {sys.executable} -c '{line}'"
    options = ("--out", "twice", "--only", "ops", "--requirement", "x")
    words = ("record", f'sh -c "{command}"', *options)
    done = python(folder, "-m", "gen", *words, path=(ROOT, hooks))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("  | a start module of my own") == 2
    assert "# 2 calls" in (folder / "twice/matrix.yaml").read_text()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("PYTHON fails.py", "ended with status 7:\n  | half way\n"),
        ("PYTHON other.py", "did not import torch"),
        ("PYTHON -I other.py", "started no Python that reads PYTHONPATH"),
        ("echo nothing", "started no Python that reads PYTHONPATH"),
        ("no-such-program", "does not start: No such file or directory"),
        ("'", "is no command: No closing quotation"),
        ("", "the command is empty"),
        ("PYTHON -c 'import torch'", "called nothing of torch"),
        ("PYTHON -c 'import torch; torch.zeros(2)'", "of the command can be a row"),
    ],
)
def test_a_command_without_a_record_is_named(folder: Path, command: str, message: str) -> None:
    done = record(folder, command, folder / "absent")
    assert done.returncode == 2
    assert message in done.stderr and "nothing was written" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "absent").exists()


def test_an_interrupt_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "gen", "record", f"{sys.executable} waits.py", "--out", "stopped"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        # a job in the background of a shell ignores the signal
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "  | waits\n"
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and time.monotonic() - began < 30
    assert rest == "record: interrupted; nothing was written\n"
    assert not (folder / "stopped").exists()
    assert list(tmp_path.iterdir()) == []
