"""The shards of a run are together one run again."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from gen import cli
from gen.run.results import CellResult, Writer, read

pytest_plugins = "pytester"

Refused = Callable[..., None]

# --- runs -----------------------------------------------------------------------------------------

HEAD = "from gen.checks import cases, family, op\n"
BODY = HEAD + (
    '@cases(*(op(f"op{n}", smoke="float64", full="float32") for n in range(5)))\n'
    "def test_vjp(case): ...\n"
)
PLAIN = "def test_plain(): ...\n"


@pytest.fixture
def folder(pytester: pytest.Pytester) -> Path:
    """Three modules with ten cells each at tier full, one of them with a plain test, and one
    module without cells."""
    pytester.makepyfile(test_a=BODY, test_b=BODY + PLAIN, test_c=BODY, test_d=PLAIN)
    return pytester.path


def sharded(pytester: pytest.Pytester, count: int, *args: str) -> list[pytest.RunResult]:
    base = (
        "-p",
        "gen.run.plugin",
        "-p",
        "no:cacheprovider",
        "--target",
        "torch",
        "--tier",
        "full",
    )
    return [
        pytester.runpytest_inprocess(*base, "--shard", f"{n}/{count}", *args)
        for n in range(1, count + 1)
    ]


def results(folder: Path, count: int) -> list[Path]:
    return [
        folder / f".cache/matrix/results-torch-cpu-{number}of{count}.jsonl"
        for number in range(1, count + 1)
    ]


def merged(paths: list[Path], out: Path) -> int:
    """Return how many cells the shards have together."""
    assert cli.main(["merge", *map(str, paths), "--out", str(out)]) == 0
    return len(read(out).cells)


def test_shards_run_all_cells_and_merge_into_one_run(
    folder: Path, pytester: pytest.Pytester
) -> None:
    runs = sharded(pytester, 3)
    assert [run.ret for run in runs] == [0, 0, 0]
    assert sum(run.parseoutcomes()["passed"] for run in runs) == 30 + 2
    assert merged(results(folder, 3), folder / "whole.jsonl") == 30
    whole = read(folder / "whole.jsonl")
    assert len({cell.node for cell in whole.cells}) == 30
    assert (whole.header["shard"], whole.end["complete"]) == ("1/1", True)


def test_workers_of_pytest_xdist_take_the_same_shard(
    folder: Path, pytester: pytest.Pytester
) -> None:
    sharded(pytester, 1, "--shard", "2/3", "-n", "1")
    distributed = read(results(folder, 3)[1])
    sharded(pytester, 1, "--shard", "2/3")
    alone = read(results(folder, 3)[1])
    assert (
        sorted(cell.node for cell in distributed.cells)
        == sorted(cell.node for cell in alone.cells)
        != []
    )
    assert distributed.header["partition"] == alone.header["partition"]


def test_a_shard_imports_only_the_modules_of_its_part(
    folder: Path, pytester: pytest.Pytester
) -> None:
    counts = "# Cells: smoke 5, default 5, full 10."
    (folder / "test_b.py").write_text(
        f"# a generated module\n{counts}\nraise RuntimeError('imported')\n"
    )
    first, second, third = sharded(pytester, 3, "test_a.py", "test_b.py", "test_c.py")
    first.assert_outcomes(passed=10)
    second.stdout.fnmatch_lines(["*RuntimeError: imported*"])
    third.assert_outcomes(passed=10)


def test_a_shard_without_cells_writes_results_and_is_no_failure(
    folder: Path, pytester: pytest.Pytester
) -> None:
    (folder / "test_a.py").write_text(BODY.replace("range(5)", "range(1)"))
    runs = sharded(pytester, 7, "test_a.py")
    assert {run.ret for run in runs} == {0}
    assert merged(results(folder, 7), folder / "whole.jsonl") == 2


# --- merging --------------------------------------------------------------------------------------


def written(path: Path, number: int, nodes: list[str], **header: object) -> Path:
    common = {
        "target": "torch",
        "device": "cpu",
        "tier": "full",
        "torch": "2.13.0",
        "sample": "usual",
        "narrowed": "no",
    }
    writer = Writer(
        path,
        {**common, "matrix": "m", "partition": "p", "cells": 4, "shard": f"{number}/2", **header},
    )
    for node in nodes:
        entries = ("f:met",) if node == "a" else ()
        writer.cell(
            CellResult(node, "f", "op", "float64", "vjp", {}, "passed", "", 0.1, 1, node, entries)
        )
    writer.close(
        {
            "complete": True,
            "wall_seconds": 1.0,
            "never_happened": [],
            "active": {"f:met": "«x»", "f:never": "«y»"},
        }
    )
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Merge files that are not one run, and look for what the command says."""

    def run(paths: list[Path], says: str, *more: str) -> None:
        out = paths[0].parent / "whole.jsonl"
        capsys.readouterr()
        assert cli.main(["merge", *map(str, paths), "--out", str(out), *more]) == 2
        assert re.search(says, capsys.readouterr().err)
        assert not list(out.parent.glob("whole*"))

    return run


def test_entries_that_happened_in_no_shard_are_named(tmp_path: Path) -> None:
    shards = [written(tmp_path / "1", 1, ["a", "b"]), written(tmp_path / "2", 2, ["c", "d"])]
    assert merged(shards, tmp_path / "whole") == 4
    assert read(tmp_path / "whole").end["never_happened"] == ["f:never: «y»"]


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_is_one_number_of_another(
    text: str, folder: Path, pytester: pytest.Pytester
) -> None:
    run = pytester.runpytest_inprocess("-p", "gen.run.plugin", f"--shard={text}")
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines(["*expected I/N*"])


def test_a_missing_shard_is_named(tmp_path: Path, refused: Refused) -> None:
    refused([written(tmp_path / "2", 2, ["a"])], "no results of shard 1/2")


def test_a_shard_that_is_given_twice_is_named(tmp_path: Path, refused: Refused) -> None:
    one, two = written(tmp_path / "1", 1, ["a"]), written(tmp_path / "2", 1, ["b"])
    refused([one, two], f"shard 1/2 is in {one} and {two}")


def test_a_cell_of_two_shards_or_twice_in_one_is_named(tmp_path: Path, refused: Refused) -> None:
    one, two = written(tmp_path / "1", 1, ["a", "b"]), written(tmp_path / "2", 2, ["c", "b"])
    refused([one, two], f"b is in {one} and {two}")
    refused([one, written(tmp_path / "2", 2, ["c", "c"])], f"c is twice in {two}")


def test_a_shard_that_was_cut_short_is_named(tmp_path: Path, refused: Refused) -> None:
    one, two = written(tmp_path / "1", 1, ["a", "b"]), written(tmp_path / "2", 2, ["c", "d"])
    two.write_text("\n".join(two.read_text().splitlines()[:-1]))
    refused([one, two], r"2: shard 2/2 was cut short")


def test_a_missing_cell_is_named_if_the_matrix_is_at_hand(
    folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    sharded(pytester, 2)
    first, second = results(folder, 2)
    lines = second.read_text().splitlines()
    lost = json.loads(lines.pop(1))["node"]
    second.write_text("\n".join(lines))
    monkeypatch.chdir(folder)
    lacking = re.escape(f"1 of 30 cells have no result: {lost}")
    refused([first, second], lacking, "--modules", ".")
    other = "another matrix, so they cannot be named"
    refused([first, second], other, "--modules", "test_a.py")


@pytest.mark.parametrize("key", ["matrix", "partition", "tier", "device", "torch", "target"])
def test_shards_of_different_runs_are_named_with_what_differs(
    tmp_path: Path, key: str, refused: Refused
) -> None:
    one, two = (
        written(tmp_path / "1", 1, ["a", "b"]),
        written(tmp_path / "2", 2, ["c", "d"], **{key: "other"}),
    )
    refused([one, two], f"{one} and {two} are of different runs: {key} .* and other")


def test_a_shard_that_notes_rules_is_not_of_a_run_that_does_not(
    tmp_path: Path, refused: Refused
) -> None:
    one, two = (
        written(tmp_path / "1", 1, ["a", "b"]),
        written(tmp_path / "2", 2, ["c", "d"], rules=["sin jvp"]),
    )
    refused([one, two], "are of different runs: rules None and noted")


def test_a_file_of_a_whole_run_is_no_shard(tmp_path: Path, refused: Refused) -> None:
    writer = Writer(tmp_path / "1", {"target": "torch", "device": "cpu", "tier": "full"})
    writer.close({"complete": True})
    refused([tmp_path / "1"], "not of a shard")
