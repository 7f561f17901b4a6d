"""Every bad input gets its message and its exit code. No traceback, no hang, nothing half-written,
nothing touched elsewhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.bad_inputs import page, project
from tests.bad_inputs.trial import BadInput, Outcome, attempt, bad_inputs, prepare, state

INPUTS = bad_inputs()
ROOT = Path(__file__).parents[2]
# of the harness, which tell a user nothing
FRAMES = ("gen/checks/", "gen/run/", "gen/samples/", "gen/commands/", "gen/cli.py", "_pytest/")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project without a mistake, with its generated modules."""
    made = project.make(tmp_path_factory.mktemp("right"))
    done = attempt("gen generate", made, project.run)
    assert done.code == 0, done.text
    return made.parent


@pytest.fixture
def tried(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "inner", symlinks=True)
    return tmp_path / "inner" / "project"


@pytest.mark.parametrize("bad", INPUTS, ids=lambda bad: f"{bad.group}: {bad.what}")
def test_a_bad_input_is_refused_in_words(bad: BadInput, tried: Path) -> None:
    prepare(bad, tried)
    for command in bad.run[:-1]:
        first = attempt(command, tried, project.run)
        assert first.code == 0, first.text
    before = state(tried)
    done = attempt(bad.run[-1], tried, project.run, full_disk=bad.full_disk)
    assert done.code == bad.code, done.text
    assert [text for text in bad.says if text not in done.text] == [], done.text
    assert done.outside == ()
    assert not tells_of_the_harness(bad, done), done.text
    if bad.code in (2, 4):  # refused: nothing was written
        assert state(tried) == before


def tells_of_the_harness(bad: BadInput, done: Outcome) -> bool:
    """Whether the output has a traceback that a user cannot read: one of the project itself."""
    if bad.run[-1].startswith("gen") or bad.code != 1:
        return "Traceback" in done.text or "INTERNALERROR" in done.text
    return "INTERNALERROR" in done.text or any(
        frame in line for frame in FRAMES for line in done.text.splitlines() if "File " in line
    )


def test_a_command_that_hangs_or_writes_elsewhere_would_be_noticed(
    tried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("tests.bad_inputs.trial.LIMIT", 0.3)
        assert attempt("sleep", tried, lambda _: __import__("time").sleep(5)).code is None
    elsewhere = tried.parents[1] / "elsewhere"
    assert attempt("write", tried, lambda _: elsewhere.write_text("x") and 0).outside == (
        f"open {elsewhere}",
    )


def test_there_are_at_least_sixty_and_none_stands_twice() -> None:
    names = [(bad.group, bad.what) for bad in INPUTS]
    assert len(names) >= 60 and len(set(names)) == len(names)


def test_the_page_is_current() -> None:
    """`python -m tests.bad_inputs` writes it."""
    assert (ROOT / page.PAGE).read_text("utf-8") == page.page(INPUTS)
