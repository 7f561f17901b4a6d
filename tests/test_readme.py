"""The commands of README.md do what it says: the cheap ones run in a copy of the project, narrowed;
the others are parsed."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gen import cli
from tests.bad_inputs import project
from tests.bad_inputs.trial import attempt

ROOT = Path(__file__).parent.parent
COMMANDS = re.findall(
    r"^ {4}((?:make|python|pytest|tox) .*?)(?:\s+#.*)?$",
    (ROOT / "README.md").read_text("utf-8"),
    re.MULTILINE,
)
NARROWED = {  # what is run in its place, with a part of its output
    "python -m gen list --op 'torch.fft.*' --check 'vmap*'": (
        "gen list --op 'torch.fft.*' --check 'vmap*' --counts",
        "family: fft",
    ),
    "python -m gen explain 'torch.sin-float64' --check gradcheck": (
        "gen explain 'torch.sin-float64' --check gradcheck",
        "family unary (matrix/torch-ops.yaml",
    ),
    "pytest generated_tests/test_unary.py --target torch --tier full": (
        (
            "pytest 'generated_tests/test_unary.py::test_vjp[torch.sin-float64]' --target torch "
            "--tier full --collect-only -q"
        ),
        "1 test collected",
    ),
}
OTHER_MODULES = {"tests.mutation", "runtime"}  # `python -m` of these has tests of its own
OF_THE_READER = {
    "pytest generated_tests --since main",  # tests/run/test_since.py
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The matrix and one of its modules, in a folder where commands may write."""
    folder = tmp_path_factory.mktemp("readme")
    made = folder / "project"
    (folder / "temporary").mkdir()
    shutil.copytree(ROOT / "matrix", made / "matrix")
    shutil.copytree(
        ROOT / "examples", made / "examples", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "matrix.yaml", made)
    (made / "generated_tests").mkdir()
    shutil.copy(ROOT / "generated_tests/test_unary.py", made / "generated_tests")
    return made


@pytest.mark.parametrize("command", NARROWED)
def test_a_command_of_the_readme_runs(command: str, copy: Path) -> None:
    assert command in COMMANDS, "README.md has it no more"
    narrowed, says = NARROWED[command]
    done = attempt(narrowed, copy, project.run)
    assert done.code == 0, done.text
    assert says in done.text
    assert done.outside == ()


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.startswith("make ")]
)
def test_make_knows_what_the_readme_makes(command: str) -> None:
    """`make -n` prints the recipe without running it. The environment counts as made."""
    words = shlex.split(command)
    done = subprocess.run(
        [words[0], "-n", "-o", ".venv/.ready", *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    asked = [word.partition("=") for word in words[1:] if "=" in word]
    assert all(value in done.stdout for _, _, value in asked)


@pytest.mark.parametrize(
    "command", [command for command in COMMANDS if command.startswith("python -m gen ")]
)
def test_gen_takes_the_options_that_the_readme_gives(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The options are parsed, and the help of the command has them.

    The command itself runs above, or takes too long.
    """
    arguments = shlex.split(command)[3:]
    with pytest.raises(SystemExit) as left:
        cli.main([*arguments, "--help"])
    assert left.value.code == 0
    known_options = capsys.readouterr().out
    for option in (word for word in arguments if word.startswith("-")):
        assert re.search(rf"{option}\b", known_options), option


def test_every_other_command_is_known() -> None:
    others = [
        command
        for command in COMMANDS
        if not command.startswith(("make ", "python -m gen ")) and command not in NARROWED
    ]
    assert [
        command
        for command in others
        if command not in OF_THE_READER
        and not (command.startswith("python -m ") and command.split()[2] in OTHER_MODULES)
        and not (
            command.startswith("tox -e ") and command.split()[2] in (ROOT / "tox.ini").read_text()
        )
    ] == []
