"""`gen bisect` names the first commit at which a cell fails, and changes nothing of the user."""

import subprocess
from pathlib import Path

import pytest

from gen.cli import main
from tests.gen.conftest import KIT_CELLS, KIT_REFERENCE, KIT_SETTINGS

CELL = "tests/test_kit.py::test_forward[kit.double-float64]"
FILES = {
    "pytest.ini": KIT_SETTINGS,
    "tests/test_kit.py": KIT_CELLS,
    "truth.py": KIT_REFERENCE,
}


class Project:
    """A repository with a commit for each text of the op."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = "kit.py"
        for path, text in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        command = ["git", *identity, *words]
        done = subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, result: str) -> str:
        place = self.folder / self.package
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"def double(x):\n    return {result}\n")
        self.git("add", "-A")
        self.git("commit", "-q", "-m", f"return {result}")
        return self.git("rev-parse", "--short", "HEAD")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path)


def test_the_first_commit_that_fails_is_named_and_no_file_changes(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    good = project.commit("2 * x")
    first = project.commit("2 * x + 1")
    project.commit("x * 2 + 1")
    (project.folder / "kit.py").write_text("unsaved work")
    before = project.git("status", "--porcelain"), project.git("for-each-ref")
    assert main(["bisect", CELL, "--good", good, "--target", "torch"]) == 0
    captured = capfd.readouterr()
    assert captured.out.startswith(first)
    assert captured.out.endswith("return 2 * x + 1\n")
    assert [line.split(" ", 1)[1] for line in captured.err.splitlines()] == [
        "failed",
        "passed",
        "failed",
    ]
    assert (project.folder / "kit.py").read_text() == "unsaved work"
    assert (project.git("status", "--porcelain"), project.git("for-each-ref")) == before
    assert not (project.folder / ".cache").exists()


def test_a_failure_that_is_not_committed_is_not_looked_for(
    project: Project, capfd: pytest.CaptureFixture[str]
) -> None:
    good = project.commit("2 * x")
    project.commit("x * 2")
    assert main(["bisect", CELL, "--good", good, "--target", "torch"]) == 2
    assert "does not fail at --bad; commit what makes it fail" in capfd.readouterr().err


def test_a_package_that_is_imported_from_the_users_folder_is_refused(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    project.package = "src/kit.py"
    good = project.commit("2 * x")
    project.commit("2 * x + 1")
    monkeypatch.setenv("PYTHONPATH", f"{project.folder}/src:{Path(__file__).parents[2]}")
    assert main(["bisect", CELL, "--good", good, "--target", "torch"]) == 2
    assert f"the cell runs {project.folder}/src/kit.py at every commit" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("cell", "good", "says"),
    [
        (CELL, "nowhere", "'nowhere' is no commit of"),
        (CELL, "HEAD", "HEAD does not come after HEAD"),
        ("kit.double-float64", "HEAD~1", "no pytest id of a file here"),
        ("tests/gone.py::test_forward", "HEAD~1", "no pytest id of a file here"),
    ],
)
def test_what_cannot_be_searched_is_said_at_once(
    project: Project, cell: str, good: str, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    project.commit("2 * x")
    project.commit("x + x")
    assert main(["bisect", cell, "--good", good, "--target", "torch"]) == 2
    assert says in capfd.readouterr().err
