"""The command `gen diff` and what it is given: files that are not to be lost, runs that were cut,
shards, cells that stand twice, and Pythons."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from gen import cli
from gen.run.results import CellResult, Writer, read
from tests.report.made import cell, results

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(name: str, *cells: CellResult, end: bool = True, **header: Any) -> Path:
    path = Path(name)
    writer = Writer(path, results(**header).header)
    for one in cells:
        writer.cell(one)
    writer.close({"complete": True})
    if not end:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:-1]) + '{"event":"cell","id":"torch.si')
    return path


def diff(*words: object) -> int:
    return cli.main(["diff", *map(str, words)])


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--json", "--page"])
@pytest.mark.parametrize("over", ["a.jsonl", "./b.jsonl", "linked", "runs/c.jsonl"])
def test_an_output_never_replaces_what_is_compared(
    option: str, over: str, capsys: Captured
) -> None:
    write("a.jsonl", cell())
    write("b.jsonl", cell())
    write("runs/c.jsonl", cell())
    Path("linked").symlink_to("a.jsonl")
    before = {path: path.read_bytes() for path in Path().rglob("*.jsonl")}
    assert diff("a.jsonl", "b.jsonl", "runs", option, over) == 2
    assert "which is compared; name another" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path().rglob("*.jsonl")} == before


def test_the_run_that_a_single_one_is_compared_with_is_not_replaced(capsys: Captured) -> None:
    write("a.jsonl", cell())
    newest = write(".cache/matrix/results-torch-cpu.jsonl", cell())
    before = newest.read_bytes()
    assert diff("a.jsonl", "--json", newest) == 2
    assert "which is compared" in capsys.readouterr().err
    assert newest.read_bytes() == before


def _write_tests(folder: str) -> None:
    """Write a module that leaves a trace where it is imported."""
    Path(folder).mkdir()
    Path(folder, "test_x.py").write_text(f"open({str(Path('ran').absolute())!r}, 'w')\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--json", "o", "--page", "./o"), "--json and --page are both o; name two files"),
        (("--json", "folder"), "--json folder: it is a folder; name a file"),
        (("--page", "a.jsonl/x"), "is no folder"),
        (("--page", "other.jsonl"), "results files end so; name another"),
        (("python9.9",), "python9.9: no such file, folder or command"),
        ((sys.executable, "--tests", "gone"), "--tests gone: no such folder; `python -m gen gen"),
        ((sys.executable, "--tests", "folder"), "--tests folder: it has no modules test_*.py"),
    ],
)
def test_a_mistake_is_said_before_anything_runs(
    words: tuple[str, ...], says: str, capsys: Captured
) -> None:
    Path("folder").mkdir()
    _write_tests("generated_tests")
    write("a.jsonl", cell())
    assert diff("a.jsonl", "a.jsonl", *words) == 2
    assert says in capsys.readouterr().err
    assert not Path("ran").exists()


def test_a_python_that_does_not_start_is_one_before_another_one_runs(capsys: Captured) -> None:
    _write_tests("generated_tests")
    program = Path("broken").absolute()
    program.write_bytes(b"\x00")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert diff(sys.executable, program) == 2
    assert "broken: it" in capsys.readouterr().err
    assert not Path("ran").exists()


def test_a_selection_that_matches_nothing_is_said(capsys: Captured) -> None:
    Path("generated_tests").mkdir()
    Path("generated_tests/test_x.py").write_text("def test_one(): pass\n")
    Path("pytest.ini").write_text("[pytest]\naddopts = -p gen.run.plugin\n")
    assert diff(sys.executable, sys.executable, "-k", "nowhere", "--workers", "0") == 2
    assert "no cell ran; -k 'nowhere' matches none" in capsys.readouterr().err


# --- cells that one run alone has ----------------------------------------------------------------


@pytest.mark.parametrize("other", [{"check": "jvp"}, {"op": "torch.new"}])
def test_a_new_cell_that_fails_is_named_and_is_a_failure(
    other: dict[str, Any], capsys: Captured
) -> None:
    write("a.jsonl", cell())
    write("b.jsonl", cell(), cell("crashed", "SIGSEGV", **other))
    assert diff("a.jsonl", "b.jsonl", "--json", "d.json", "--page", "d.html") == 1
    text = capsys.readouterr().out
    assert "1 new cells fail:" in text and ": crashed: SIGSEGV" in text
    assert json.loads(Path("d.json").read_text())["new_failing"][0]["outcome"] == "crashed"
    assert "1 new cells fail" in Path("d.html").read_text()
    assert diff("b.jsonl", "a.jsonl") == 0
    text = capsys.readouterr().out
    assert "1 cells that failed vanished:" in text and ": crashed: SIGSEGV" in text


# --- runs that are not whole ---------------------------------------------------------------------


def test_a_run_that_was_cut_is_called_one_and_nothing_vanishes(capsys: Captured) -> None:
    write("a.jsonl", cell(), cell(check="jvp"), cell(op="torch.cos"))
    write("b.jsonl", cell(), end=False)
    assert diff("a.jsonl", "b.jsonl", "--json", "d.json", "--page", "d.html") == 0
    text = capsys.readouterr().out
    assert "B was cut" in text and "vanished" not in text
    assert "2 cells without a result in B, which was cut:" in text
    told = json.loads(Path("d.json").read_text())
    assert "B was cut" in told["notes"][0]
    assert (told["vanished_cells"], told["vanished_ops"]) == ([], {})
    assert len(told["without_result"][0]["nodes"]) == 2
    page = Path("d.html").read_text()
    assert "B was cut" in page and "2 cells without a result in B" in page


def test_a_failure_that_a_cut_run_did_not_reach_is_one_still(capsys: Captured) -> None:
    write("a.jsonl", cell(), end=False)
    write("b.jsonl", cell(), cell("failed", check="jvp"))
    assert diff("a.jsonl", "b.jsonl") == 1
    text = capsys.readouterr().out
    assert "1 cells without a result in A, which was cut" in text and "1 new cells fail" in text


def test_a_single_run_is_compared_with_the_newest_other_whole_one(capsys: Captured) -> None:
    folder = ".cache/matrix/results-"
    write(f"{folder}torch-cpu.jsonl", cell(), torch="2.1")
    write(f"{folder}torch-cpu-1of2.jsonl", cell(), torch="2.2", shard="1/2")
    write(f"{folder}cut-cpu.jsonl", cell(), end=False, torch="2.3")
    newest = write(f"{folder}runtime-cpu.jsonl", cell(), torch="2.4")
    assert diff(newest) == 0
    text = capsys.readouterr().out
    assert "A: target runtime on cpu, tier full, torch 2.4" in text
    assert "B: target runtime on cpu, tier full, torch 2.1" in text


def test_without_another_whole_run_the_command_says_so(capsys: Captured) -> None:
    path = write(".cache/matrix/results-torch-cpu.jsonl", cell())
    assert diff(path) == 2
    assert "no other whole run in .cache/matrix to compare with" in capsys.readouterr().err


@pytest.mark.parametrize("turned", [False, True])
def test_a_cell_that_stands_twice_is_said_and_counts_once(turned: bool, capsys: Captured) -> None:
    several = [cell("failed", "wrong"), cell()]
    write("a.jsonl", cell())
    write("b.jsonl", *(reversed(several) if turned else several))
    assert diff("a.jsonl", "b.jsonl") == 1
    text = capsys.readouterr().out
    assert "1 cells stand in B more than once, and the worst outcome counts" in text
    assert "1 cells, 1 failing" in text and "passed -> failed: wrong" in text


# --- shards --------------------------------------------------------------------------------------


def _sharded(prefix: str, began: str, *, count: int = 2) -> list[Path]:
    return [
        write(
            f"{prefix}{number}.jsonl",
            cell(op=f"torch.op{number}"),
            shard=f"{number}/{count}",
            began=f"{began}T0{number}",
        )
        for number in range(1, count + 1)
    ]


def test_two_sharded_runs_are_compared(capsys: Captured) -> None:
    first, second = _sharded("a", "2026-11-01"), _sharded("b", "2026-11-02")
    assert diff(*first, *second) == 0
    text = capsys.readouterr().out
    assert "2 cells of both, 0 changed" in text
    assert "A is joined of shards that began at different times: 1/2 at 2026-11-01T01" in text
    assert "B is joined" in text


def test_shards_of_other_totals_are_other_runs(capsys: Captured) -> None:
    first, second = _sharded("a", "2026-11-01"), _sharded("b", "2026-11-02", count=3)
    assert diff(first[0], second[1]) == 0
    text = capsys.readouterr().out
    assert "A has 1 of 2 shards: 1/2" in text and "B has 1 of 3 shards: 2/3" in text
    assert "vanished" not in text and "1 cells without a result in B, which has shard" in text


def test_one_shard_twice_is_refused(capsys: Captured) -> None:
    first = _sharded("a", "2026-11-01")
    assert diff(first[0], first[0]) == 2
    assert "stands in two files; give each shard once" in capsys.readouterr().err


# --- numbers -------------------------------------------------------------------------------------


def test_seconds_that_json_does_not_have_are_null() -> None:
    for name, seconds in (("a", 1.0), ("b", float("inf")), ("c", float("nan"))):
        write(f"{name}.jsonl", cell(seconds=seconds))
    assert diff("a.jsonl", "b.jsonl", "--json", "d.json") == 0
    assert diff("a.jsonl", "c.jsonl", "--json", "e.json") == 0

    def never(word: str) -> None:
        raise AssertionError(word)

    told = json.loads(Path("d.json").read_text(), parse_constant=never)
    assert told["slower"][0]["seconds"] is None
    assert json.loads(Path("e.json").read_text(), parse_constant=never)["steps"]


def test_a_file_that_has_no_digests_is_told_from_values_that_are_gone() -> None:
    path = write("a.jsonl", cell(values="aa"))
    text = path.read_text().replace(',"values":"aa"', "")
    Path("old.jsonl").write_text(text)
    write("none.jsonl", cell(values=""))
    assert read(Path("old.jsonl")).cells[0].values is None
    for other, expected in (("old", 0), ("none", 1)):
        assert diff("a.jsonl", f"{other}.jsonl", "--json", "d.json") == 0
        assert len(json.loads(Path("d.json").read_text())["values"]) == expected
