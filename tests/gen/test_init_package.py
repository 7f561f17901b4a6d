"""`gen init --package` finds the functions of an installed package, and a wrong backward pass."""

import re
from pathlib import Path

import pytest

from tests.gen.package_commands import init, python

OPS = """
import warnings

import torch

warnings.warn("this package is old", DeprecationWarning)


class Cube(torch.autograd.Function):  # of the old style
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


class WrongCube(Cube):
    @staticmethod
    def forward(ctx, x, factor=2.0):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x**2 * g, None


class WrongUnderAutocast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x @ x.mT
        ctx.save_for_backward(x, y)
        return y * 2

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        factor = 2 if y.dtype == x.dtype else 3
        return factor * ((g + g.mT).to(x.dtype) @ x)


class Square(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Scale(torch.nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(features))

    def forward(self, x):
        return x * self.weight


def rows(weight: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.embedding(index, weight)


def parse(x: torch.Tensor):
    raise LookupError("no file")


def die(x: torch.Tensor):
    import os
    os._exit(3)


@torch.library.custom_op("threefold::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


class WrongAbort(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        import os
        os._exit(3)


def wrong_without_grad(x: torch.Tensor) -> torch.Tensor:
    return x.sin() if torch.is_grad_enabled() else x.cos()


def spin(quaternion):
    return quaternion.square()


def rounded(x: torch.Tensor) -> torch.Tensor:
    return x.round()


def noisy(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5)


def chosen(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x * 3


def twist(rotmat):
    unit = torch.eye(rotmat.shape[-1], dtype=rotmat.dtype)
    defect = (rotmat.mT @ rotmat - unit).abs().detach().sum((-1, -2))
    trace = rotmat.diagonal(dim1=-2, dim2=-1).sum(-1)
    return trace.square() + torch.where(defect > 1e-4, torch.nan, 0.0)


def _private(x: torch.Tensor) -> torch.Tensor:
    return x


def save(path):
    raise AssertionError("a function of no tensor is not called")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages: one has wrong backward passes, one nothing, and one does not import."""
    folder = tmp_path_factory.mktemp("packages")
    for name in ("threefold", "empty_one", "broken"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("")
    (folder / "threefold/ops.py").write_text(OPS)
    (folder / "threefold/extra.py").write_text("import a_library_that_nobody_has\n")
    (folder / "threefold/__main__.py").write_text("raise AssertionError('a program was run')\n")
    (folder / "broken/__init__.py").write_text("raise OSError('no licence')\n")
    return folder


@pytest.fixture(scope="module")
def project(folder: Path) -> Path:
    done = init(folder, "sketch", "--package", "threefold", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "sketch: 13 functions of threefold, 3 not tested yet. Next: cd sketch && make matrix\n"
    )
    assert "threefold.extra does not import: ModuleNotFoundError" in done.stderr
    assert "WrongAbort: works; no other column: its backward pass, or another" in done.stderr
    return folder / "sketch"


def test_picked_functions_are_rows_and_no_others(folder: Path) -> None:
    done = init(folder, "picked", "--package", "threefold", "--pick", "Cube, ops.rows")
    assert done.returncode == 0, done.stderr
    text = (folder / "picked/matrix.yaml").read_text()
    rows = [line.split()[-1] for line in text.splitlines() if line.strip().startswith("- op: ")]
    assert rows == ["threefold.ops.rows", "threefold.ops.Cube"]


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("rounded", "no derivative is tested: it and differences are 0"),
        ("chosen", "no capture ahead of time: DataDependentOutputException"),
    ],
)
def test_a_row_says_what_a_function_cannot_answer(name: str, remark: str, project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    before = text[: text.index(f"- op: threefold.ops.{name}")].splitlines()[-3:]
    assert any(remark in line for line in before)


def test_a_row_says_what_was_learned(project: Path) -> None:
    text = (project / "matrix.yaml").read_text()
    assert "The module threefold.extra does not import" in text
    cube = text[text.index("- op: threefold.ops.Cube") :]
    assert 'not_checks: ["func_*"]' in cube[: cube.index("samples")]
    square = text[text.index("- op: threefold.ops.Square") :]
    assert "not_checks" not in square[: square.index("samples")]
    assert "args: [{shape: [4, 3]}, 2.0]" in text  # the default of WrongCube
    assert "{shape: [3, 3], domain: rotation}" in text, "by the name of its parameter"
    assert "{dtype: int64" in text or "dtype: int64, domain: index" in text
    assert "# no backward pass: RuntimeError: Trying to backward through threefold.triple" in text
    assert "# LookupError: no file. Its parameters: x" in text
    assert "# its results differ from call to call, and no column compares" in text  # noisy
    assert "# its call ended the process, or took too long. Its parameters: x" in text
    calls = (project / "calls.py").read_text()
    assert "Scale = ModuleCall(lambda: threefold.ops.Scale(3))" in calls
    assert "triple = torch.ops.threefold.triple" in calls


def test_its_tests_pass_and_its_cells_find_the_wrong_backward(project: Path, folder: Path) -> None:
    assert python(project, folder, "-m", "gen", "check").returncode == 0
    done = python(project, folder, "-m", "pytest", "-q", "tests", "generated_tests", "-rf")
    failed = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed, done.stdout
    assert all(re.search("[Ww]rong", name) for name in failed), done.stdout
    names = "\n".join(failed)
    assert "::test_backward[threefold.ops.WrongCube-" in names
    assert "::test_autocast[threefold.ops.WrongUnderAutocast-" in names
    died = {name.partition("::")[2] for name in failed if "WrongAbort" in name}
    assert died == {"test_backward[threefold.ops.WrongAbort-float64]"}
    assert "::test_modes[threefold.ops.wrong_without_grad-float64-no_grad]" in names


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--package", "nobody_has_it", "--yes"], "No module named 'nobody_has_it'"),
        (
            ["--package", "PyYAML", "--yes"],
            "; what pip calls PyYAML is --package _y",
        ),
        (["--package", "broken", "--yes"], "it does not import: OSError: no licence"),
        (["--package", "empty_one", "--yes"], "it has nothing to test; looked for torch.autograd"),
        (["--package", "threefold"], "16 functions; choose some by --pick A,B or all by --yes"),
        (["--package", "threefold", "--pick", "Cubes"], "no 'Cubes' (nearest: Cube)"),
        (["--package", "threefold", "--pick", "parse"], "no guess of arguments worked"),
        (["--yes"], "--pick and --yes need --package NAME"),
    ],
)
def test_a_mistake_is_named_and_nothing_written(
    args: list[str], message: str, folder: Path
) -> None:
    done = init(folder, "elsewhere", *args)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (folder / "elsewhere").exists()
