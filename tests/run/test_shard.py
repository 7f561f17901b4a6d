"""Shards divide the cells completely, evenly, and the same everywhere; together they
are one run again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gen.checks import Cell
from gen.commands.merge import merge
from gen.language.axes import USUAL
from gen.run.cell_durations import Durations, extended, fit, read_durations, write_durations
from gen.run.inventory import Module, count_line, find, matrix_fingerprint
from gen.run.results import CellResult, ResultsError, Writer, read
from gen.run.shard import Partition, parse_shard

pytest_plugins = "pytester"

OPS = [f"torch.op{number}" for number in range(40)]
CHECKS = ("test_vjp", "test_jvp", "test_vmap")
TABLES = {check: [Cell(op, "float64", USUAL, "full", ()) for op in OPS] for check in CHECKS}
MODULES = [
    Module(Path(f"/m/test_{name}.py"), f"test_{name}.py", {"smoke": 0, "full": 120}, name)
    for name in "abc"
]


def shards_of(count: int, durations: Durations | None = None) -> list[list[tuple[str, str, str]]]:
    """The cells of each shard, as module, check and op."""
    line = Partition(MODULES, durations or Durations(), "full", count)
    return [
        [
            (m.name, check, cell.op)
            for m in MODULES
            for check, cells in line.part(m.path, TABLES, number).items()
            for cell in cells
        ]
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("count", [1, 2, 4, 7, 359, 1000])
def test_every_cell_is_in_exactly_one_shard(count: int) -> None:
    found = [cell for shard in shards_of(count) for cell in shard]
    assert len(found) == len(set(found)) == len(MODULES) * len(CHECKS) * len(OPS)


def test_without_durations_shards_are_balanced_by_count() -> None:
    assert {len(shard) for shard in shards_of(8)} == {45}


def test_durations_balance_what_counts_would_not() -> None:
    durations = Durations(
        {"vmap": 5.0, "vjp": 0.5, "jvp": 0.5}, {"torch.op7": 9.0}, {"a": 4.0, "b": 1.0, "c": 1.0}
    )
    line = Partition(MODULES, durations, "full", 4)
    scale = {m.path: durations.family(m.family) * 120 / (6.0 * (39 + 9)) for m in MODULES}
    loads = [
        sum(
            scale[m.path] * durations.cell(check.removeprefix("test_"), cell.op)
            for m in MODULES
            for check, cells in line.part(m.path, TABLES, number).items()
            for cell in cells
        )
        for number in range(1, 5)
    ]
    assert max(loads) - min(loads) <= 2 * 45 * max(scale.values())


def test_the_checks_of_one_op_stay_together_to_share_its_samples() -> None:
    parts = shards_of(4)
    apart = [
        (m.name, op)
        for m in MODULES
        for op in OPS
        if sum(any(c[0] == m.name and c[2] == op for c in part) for part in parts) > 1
    ]
    assert len(apart) <= 3


def test_a_shard_touches_only_the_modules_that_its_cells_are_in() -> None:
    line = Partition(MODULES, Durations(), "full", 6)
    for number, part in enumerate(shards_of(6), 1):
        assert {name for name, _, _ in part} <= {
            m.name for m in MODULES if line.touches(m.path, number)
        }
    assert sum(line.touches(m.path, number) for m in MODULES for number in range(1, 7)) <= 6 + len(
        MODULES
    )


def test_the_fingerprint_tells_another_matrix_division_or_selection() -> None:
    def fingerprint(
        modules: list[Module] = MODULES,
        durations: Durations | None = None,
        count: int = 3,
        selection: str = "",
    ) -> str:
        return Partition(modules, durations or Durations(), "full", count, selection).fingerprint

    edited = [*MODULES[:2], Module(MODULES[2].path, MODULES[2].name, MODULES[2].counts, "edited")]
    others = [
        fingerprint(edited),
        fingerprint(MODULES[:2]),
        fingerprint(durations=Durations({"vjp": 2.0})),
        fingerprint(count=4),
        fingerprint(selection="-k x"),
    ]
    assert fingerprint() == fingerprint() and len({fingerprint(), *others}) == 6
    assert matrix_fingerprint(edited) != matrix_fingerprint(MODULES)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_is_one_number_of_another(text: str) -> None:
    with pytest.raises(ValueError, match="expected I/N"):
        parse_shard(text)


def test_fitted_durations_have_the_totals_of_each_check_and_op() -> None:
    cells = [
        ("f", check, op, (turn + 1) * (place + 1) / 100)
        for turn, check in enumerate("abc")
        for place, op in enumerate(OPS)
    ]
    found = fit([*cells, ("g", "a", "torch.op0", 0.5)])
    for check in "abc":
        expected = sum(taken for _, c, _, taken in cells if c == check) + (
            0.5 if check == "a" else 0.0
        )
        assert sum(found.cell(check, op) for op in OPS) + (
            found.cell("a", "torch.op0") if check == "a" else 0.0
        ) == pytest.approx(expected)
    assert found.family("g") == 0.5


def test_what_has_no_duration_counts_as_the_mean_of_what_has() -> None:
    durations = Durations(
        {"vjp": 1.0, "jvp": 3.0}, {"torch.sin": 1.0, "torch.cos": 2.0}, {"unary": 4.0}
    )
    assert (
        durations.cell("vmap", "torch.sin"),
        durations.cell("vjp", "torch.exp"),
        durations.family("fft"),
    ) == (2.0, 1.5, 4.0)


def test_a_slower_machine_adds_the_durations_that_are_lacking_and_changes_none() -> None:
    known = Durations({"vjp": 1.0, "jvp": 3.0}, {"sin": 1.0, "cos": 2.0}, {"unary": 4.0})
    ran = [
        ("unary", "vjp", "sin", 10.0),
        ("unary", "vjp", "cos", 20.0),
        ("unary", "hessian", "cos", 100.0),
        ("fft", "jvp", "fft", 60.0),
    ]
    assert extended(known, ran) == Durations(
        {"vjp": 1.0, "jvp": 3.0, "hessian": 5.0},
        {"sin": 1.0, "cos": 2.0, "fft": 2.0},
        {"unary": 4.0, "fft": 6.0},
    )
    with pytest.raises(ValueError, match="the speed of the machine cannot be told"):
        extended(known, ran[2:])


def test_durations_are_read_as_they_were_written_and_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    assert read_durations(path) == Durations()
    write_durations(path, Durations({"vjp": 0.12345}, {"torch.sin": 1.0}, {"unary": 0.01}))
    assert read_durations(path) == Durations({"vjp": 0.123}, {"torch.sin": 1.0}, {"unary": 0.01})
    wrong = [
        f'{{"checks": {{"a": {value}}}, "ops": {{}}, "families": {{}}}}'
        for value in ('"b"', "-1", "NaN", "Infinity", "null")
    ]
    for text in ("{", "[]", '{"checks": {}}', *wrong):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"durations\.json: not"):
            read_durations(path)


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


def test_shards_run_all_cells_and_merge_into_one_run(
    folder: Path, pytester: pytest.Pytester
) -> None:
    runs = sharded(pytester, 3)
    assert [run.ret for run in runs] == [0, 0, 0]
    assert sum(run.parseoutcomes()["passed"] for run in runs) == 30 + 2
    assert merge(results(folder, 3), folder / "whole.jsonl") == 30
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
    counts = count_line({"smoke": 5, "default": 5, "full": 10})
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
    assert merge(results(folder, 7), folder / "whole.jsonl") == 2


def test_the_counts_of_a_generated_module_are_read_without_its_import(folder: Path) -> None:
    (folder / "test_e.py").write_text(
        f"# a generated module\n{count_line({'smoke': 1, 'full': 2})}\nraise RuntimeError\n"
    )
    assert [m.counts for m in find(["test_d.py", "test_e.py", "test_a.py"], folder)] == [
        {"smoke": 5, "default": 5, "full": 10, "all": 10},
        {},
        {"smoke": 1, "full": 2},
    ]


def test_the_repository_s_modules_say_how_many_cells_they_have() -> None:
    root = Path(__file__).parents[2]
    (module,) = find(["generated_tests/test_attention.py"], root)
    text = re.sub(r"# Cells.*\n", "", module.path.read_text())
    assert module.counts["smoke"] <= module.counts["default"] < module.counts["full"]
    assert (
        sum(len(words.split()) for words in re.findall(r'(?:smoke|default|full)="([^"]*)"', text))
        == module.counts["full"]
    )


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


def refused(paths: list[Path], says: str) -> None:
    out = paths[0].parent / "whole.jsonl"
    with pytest.raises(ResultsError, match=says):
        merge(paths, out)
    assert not list(out.parent.glob("whole*"))


def test_entries_that_happened_in_no_shard_are_named(tmp_path: Path) -> None:
    merge(
        [written(tmp_path / "1", 1, ["a", "b"]), written(tmp_path / "2", 2, ["c", "d"])],
        tmp_path / "whole",
    )
    assert read(tmp_path / "whole").end["never_happened"] == ["f:never: «y»"]


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    refused([written(tmp_path / "2", 2, ["a"])], "no results of shard 1/2")


def test_a_shard_that_is_given_twice_is_named(tmp_path: Path) -> None:
    one, two = written(tmp_path / "1", 1, ["a"]), written(tmp_path / "2", 1, ["b"])
    refused([one, two], f"shard 1/2 is in {one} and {two}")


def test_a_cell_of_two_shards_or_twice_in_one_is_named(tmp_path: Path) -> None:
    one, two = written(tmp_path / "1", 1, ["a", "b"]), written(tmp_path / "2", 2, ["c", "b"])
    refused([one, two], f"b is in {one} and {two}")
    refused([one, written(tmp_path / "2", 2, ["c", "c"])], f"c is twice in {two}")


def test_a_shard_that_was_cut_short_is_named(tmp_path: Path) -> None:
    one, two = written(tmp_path / "1", 1, ["a", "b"]), written(tmp_path / "2", 2, ["c", "d"])
    two.write_text("\n".join(two.read_text().splitlines()[:-1]))
    refused([one, two], r"2: shard 2/2 was cut short")


def test_a_missing_cell_is_named_if_the_matrix_is_at_hand(
    folder: Path, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    sharded(pytester, 2)
    first, second = results(folder, 2)
    lines = second.read_text().splitlines()
    lost = json.loads(lines.pop(1))["node"]
    second.write_text("\n".join(lines))
    monkeypatch.chdir(folder)
    with pytest.raises(ResultsError, match=re.escape(f"1 of 30 cells have no result: {lost}")):
        merge([first, second], folder / "whole.jsonl", ".")
    with pytest.raises(ResultsError, match="another matrix, so they cannot be named"):
        merge([first, second], folder / "whole.jsonl", "test_a.py")


@pytest.mark.parametrize("key", ["matrix", "partition", "tier", "device", "torch", "target"])
def test_shards_of_different_runs_are_named_with_what_differs(tmp_path: Path, key: str) -> None:
    one, two = (
        written(tmp_path / "1", 1, ["a", "b"]),
        written(tmp_path / "2", 2, ["c", "d"], **{key: "other"}),
    )
    refused([one, two], f"{one} and {two} are of different runs: {key} .* and other")


def test_a_shard_that_notes_rules_is_not_of_a_run_that_does_not(tmp_path: Path) -> None:
    one, two = (
        written(tmp_path / "1", 1, ["a", "b"]),
        written(tmp_path / "2", 2, ["c", "d"], rules=["sin jvp"]),
    )
    refused([one, two], "are of different runs: rules None and noted")


def test_a_file_of_a_whole_run_is_no_shard(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "1", {"target": "torch", "device": "cpu", "tier": "full"})
    writer.close({"complete": True})
    refused([tmp_path / "1"], "not of a shard")
