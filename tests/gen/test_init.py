"""`gen init` makes a project that passes its tests at once, and finds a fault."""

import re
import shlex
import shutil
import subprocess
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from gen.cli import main
from tests.commands import ROOT, python

FAULT = """

# without limit, which is right for a limit of 1
class _SoftClip(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, limit):
        return limit * torch.tanh(x / limit)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (1 - torch.tanh(x) ** 2), None


def soft_clip(x, limit=1.0):
    return _SoftClip.apply(x, limit)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("init")
    done = python(folder, "-m", "gen", "init", "sketch", "--requirement", "the-matrix==1.0")
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout.splitlines()[-1]
        == "sketch: a project with one op. Next: cd sketch && make matrix && make test"
    )
    return folder / "sketch"


def test_its_tests_and_cells_pass(project: Path) -> None:
    assert (project / "requirements.txt").read_text().splitlines()[0] == "the-matrix==1.0"
    assert python(project, "-m", "gen", "check").returncode == 0
    done = python(
        project,
        "-m",
        "pytest",
        "-q",
        "tests",
        "generated_tests",
        "--tier",
        "smoke",
        "--target",
        "torch",
    )
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_the_commands_that_its_matrix_names_answer(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project)
    named = re.findall(r"`matrix-gen ([^`]*)`", (project / "matrix.yaml").read_text())
    assert len(named) == 2
    for command in named:
        assert main(shlex.split(command)) == 0, capsys.readouterr().err


def test_the_fault_of_the_tutorial_is_what_its_entry_expects(project: Path, tmp_path: Path) -> None:
    shutil.copytree(
        project, tmp_path / "sketch", ignore=shutil.ignore_patterns(".cache", "__pycache__")
    )
    made = tmp_path / "sketch"
    pages = re.split(r"\n(?!    |\n)", (ROOT / "docs/tutorial.md").read_text())
    shown = [textwrap.dedent(page.partition("\n\n")[2]) for page in pages]
    fault, entry, said = (
        next(text for text in shown if word in text)
        for word in ("class _Soft", "xfail:\n", "largest error")
    )
    ops = (made / "sketch/ops.py").read_text()
    (made / "sketch/ops.py").write_text(ops[: ops.index("def soft_clip")] + fault)
    (made / "matrix.yaml").write_text((made / "matrix.yaml").read_text() + entry)
    assert python(made, "-m", "gen", "generate").returncode == 0
    done = python(
        made, "-m", "pytest", "-q", "generated_tests", "-k", "test_gradcheck", "--target", "torch"
    )
    assert "1 xfailed" in done.stdout, done.stdout
    assert re.search(yaml.safe_load(entry)["xfail"][0]["match"], said)


def test_a_planted_fault_is_found_and_shown(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project, tmp_path / "sketch")
    ops = tmp_path / "sketch/sketch/ops.py"
    ops.write_text(ops.read_text() + FAULT)
    case = "generated_tests/test_mine.py::test_gradcheck[sketch.ops.soft_clip-float64]"
    found = python(tmp_path / "sketch", "-m", "pytest", "-q", case, "--target", "torch")
    assert found.returncode == 1
    assert "under gradcheck, target torch on cpu, sample 1 float64[5], limit=0.5" in found.stdout
    shown = python(tmp_path / "sketch", "-m", "gen", "script", case)
    assert shown.returncode == 0, shown.stderr
    assert "sketch.ops._SoftClip.apply(" in shown.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2fast", "'2fast' is no name for a package"),
        ("class", "'class' is no name for a package"),
        ("json", "a package 'json' is installed already"),
        ("torch", "a package 'torch' is installed already"),
        ("full", "full has notes.txt: choose an empty folder"),
        ("file.txt/x", "file.txt: File exists"),
    ],
)
def test_what_is_in_the_way_is_named(
    name: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("mine")
    (tmp_path / "file.txt").write_text("mine")
    assert main(["init", name, "--requirement", "x"]) == 2
    assert message in capsys.readouterr().err
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "file.txt",
        "full",
        "full/notes.txt",
    ]


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        (None, "torch-transform-matrix==1.5"),
        (
            '{"url": "file:///home/me/matrix", "dir_info": {"editable": true}}',
            "torch-transform-matrix @ file:///home/me/matrix",
        ),
        (
            '{"url": "https://example.org/m.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}',
            "torch-transform-matrix @ git+https://example.org/m.git@abc",
        ),
    ],
)
def test_the_requirement_says_where_this_package_came_from(
    origin: str | None, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Installed:
        version = "1.5"

        def read_text(self, name: str) -> Any:
            return origin if name == "direct_url.json" else None

    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    monkeypatch.chdir(tmp_path)
    assert main(["init", "sketch_of_a_line"]) == 0
    written = (tmp_path / "sketch_of_a_line/requirements.txt").read_text()
    assert written.splitlines()[0] == line


def test_the_wheel_has_two_packages_and_all_their_files(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("gen", "runtime", "tools", "programs/third_party"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, source)
    command = (
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--disable-pip-version-check",
        ".",
    )
    done = python(source, *command, "--wheel-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    top_level = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert top_level == {"torch_transform_matrix"}
    tracked = subprocess.run(
        ["git", "ls-files", "gen", "runtime"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = {f"torch_transform_matrix/{name}" for name in tracked.stdout.split()}
    assert files - set(names) == set()
