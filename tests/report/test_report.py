"""The page says what the results say, stands alone, and holds nothing that a name could break."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gen import cli
from gen.run.results import CellResult, Results, Writer
from tests.report.made import HEADER, cell, report, results, text_of


class Page(HTMLParser):
    """The tags of a page with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page(*runs: Results) -> str:
    """Return the page of some runs."""
    return report(runs, Path("drawn"))


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" class="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


def test_every_cell_stands_in_the_data_of_its_square() -> None:
    found = data(page(results(cell(), cell("failed", "wrong", dtype="float32"), cell(check="jvp"))))
    ((family, op, squares),) = found["rows"]
    assert (family, op) == ("unary", "torch.sin")
    by_check = {found["checks"][int(check)]: cells for check, cells in squares.items()}
    assert {check: len(cells) for check, cells in by_check.items()} == {"jvp": 1, "vjp": 2}
    outcome = found["fields"].index("outcome")
    outcomes = [found["outcomes"][cell[outcome]] for cell in by_check["vjp"]]
    assert outcomes == ["failed", "passed"]
    assert {"float32", "wrong"} <= set(found["texts"])


def test_the_page_asks_nothing_of_the_network() -> None:
    drawn = Page(page(results(cell(), cell("failed", "wrong", dtype="float32"))))
    assert not [
        attributes
        for tag, attributes in drawn.tags
        if "src" in attributes or tag in ("link", "img", "iframe")
    ]
    links = [attributes["href"] for tag, attributes in drawn.tags if "href" in attributes]
    assert links == ["#run0/torch.sin/vjp"]


def test_no_text_of_a_result_becomes_markup() -> None:
    evil = "</script><script>alert(1)</script>&<blink>"
    text = page(
        results(cell("failed", evil, op="torch.<marquee>x", family='a"b'), target="<center>t")
    )
    assert "alert(1)</script>" not in text
    assert not {"blink", "marquee", "center"} & {tag for tag, _ in Page(text).tags}
    assert evil in data(text)["texts"]


def test_reasons_failures_and_lacks_are_counted_by_cause() -> None:
    cells = [
        cell("xfailed", "torch's formula", op=f"torch.op{number}", entries=("unary:gauge",))
        for number in range(3)
    ]
    cells += [
        cell("lacking", "target runtime lacks jvp", check="jvp", dtype=dtype)
        for dtype in ("float32", "float64")
    ]
    cells += [cell("vacuous", "nothing was compared", check="jacrev")]
    text = text_of(page(results(*cells)))
    assert "cells ops reason checks entry 3 3 torch's formula vjp unary:gauge Lacking" in text
    assert "check what cells jvp target runtime lacks jvp 2 Time" in text
    assert "cannot be asked unasked 1 causes, 1 cells vacuous torch.sin 1 cell" in text


def test_a_run_that_did_not_end_is_said_to_be_cut_short() -> None:
    assert "This run did not end" in page(results(cell(), complete=False))
    assert "This run did not end" not in page(results(cell()))


def test_an_empty_run_makes_a_page() -> None:
    assert "0 ops, 0 checks" in page(results())


def test_two_runs_are_compared_cell_by_cell() -> None:
    first = results(cell(), cell(check="jvp"), cell(check="vmap"))
    second = results(
        cell("failed", "wrong"), cell(check="jvp"), cell(check="hessian"), target="torch"
    )
    text = text_of(page(first, second))
    assert "runtime beside torch 2 common cells; besides these: 1 of runtime, 1 of torch" in text
    assert "cells runtime torch 1 passed failed 1 of the 1 cells that differ" in text


def test_the_coverage_proof_is_drawn() -> None:
    proof = {"default": {"tuples": 200, "covered": 150, "cells": 40}}
    Path(".cache/gen").mkdir(parents=True)
    Path(".cache/gen/coverage.json").write_text(json.dumps(proof))
    text = page(results(cell()))
    assert "150 (75.0 %)" in text and ">40<" in text


def write(path: Path, *cells: CellResult, **header: Any) -> Path:
    writer = Writer(path, {**HEADER, **header})
    for one in cells:
        writer.cell(one)
    writer.close({"complete": True, "wall_seconds": 1.0, "never_happened": []})
    return path


def run(*args: object) -> int:
    return cli.main(["report", *map(str, args)])


def test_shards_of_one_run_are_joined(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", cell(), shard="1/2")
    two = write(tmp_path / "2.jsonl", cell(check="jvp"), shard="2/2")
    assert run("--results", one, two, "--out", tmp_path / "out/index.html") == 0
    text = (tmp_path / "out/index.html").read_text()
    assert "1 ops, 2 checks" in text and "1/2, 2/2" in text and "beside" not in text


def test_shards_of_different_matrices_are_different_runs(tmp_path: Path) -> None:
    one = write(tmp_path / "1.jsonl", cell(), shard="1/2", matrix="a")
    two = write(tmp_path / "2.jsonl", cell(check="jvp"), shard="2/2", matrix="b")
    assert run("--results", one, two, "--out", tmp_path / "out/index.html") == 0
    assert "1/2, 2/2" not in (tmp_path / "out/index.html").read_text()


def test_a_shard_that_stands_in_two_files_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, again = (write(tmp_path / f"{name}.jsonl", cell(), shard="1/2") for name in ("1", "again"))
    assert run("--results", one, again, "--out", tmp_path / "out/index.html") == 2
    assert (
        "shard 1/2 of runtime on cpu stands in two files; give each shard once"
        in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_rules_that_no_cell_ran_are_named() -> None:
    rules = ["cos vjp self", "sin batch", "sin jvp", "sin vjp self"]
    ran = results(
        cell(rules=("sin batch", "sin vjp self")),
        cell(check="vmap", rules=("sin batch",)),
        rules=rules,
    )
    text = page(ran)
    assert (
        "jvp: 1 that no cell ran" in text
        and "vjp: 1 that no cell ran" in text
        and "batch: 1 that" not in text
    )
    assert '<td class="mono">sin batch</td><td class="n">2</td>' in text and "cos vjp self" in text
    assert 'class="rules"' not in page(results(cell()))


def test_the_newest_whole_run_is_taken_when_none_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / ".cache/matrix/results-torch-cpu.jsonl", cell(op="torch.whole"))
    write(tmp_path / ".cache/matrix/results-torch-cpu-part.jsonl", cell(op="torch.part"))
    assert run() == 0
    assert "torch.whole" in (tmp_path / "report/index.html").read_text()


def test_a_run_that_was_cut_is_taken_only_if_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = tmp_path / "report/index.html"
    cut = write(tmp_path / ".cache/matrix/results-torch-cpu.jsonl", cell(op="torch.cut"))
    lines = cut.read_text("utf-8").splitlines(keepends=True)
    cut.write_text("".join(lines[:-1]), "utf-8")
    assert run() == 0 and "This run did not end" in shown.read_text("utf-8")
    whole = write(tmp_path / ".cache/matrix/results-runtime-cpu.jsonl", cell(op="torch.whole"))
    os.utime(whole, (0, 0))  # the older one
    assert run() == 0 and "torch.whole" in shown.read_text("utf-8")


def test_without_results_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run() == 2
    assert "run `pytest generated_tests` first" in capsys.readouterr().err


def test_a_broken_coverage_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cache/gen").mkdir(parents=True)
    (tmp_path / ".cache/gen/coverage.json").write_text("{")
    assert run("--results", write(tmp_path / "r.jsonl", cell())) == 2
    assert "coverage.json: not JSON" in capsys.readouterr().err


def test_the_whole_matrix_fits_a_page_of_a_few_megabytes() -> None:
    cells = [
        cell(
            op=f"torch.nn.functional.op{number}",
            check=f"vmap_of_check{check}",
            dtype=dtype,
            family=f"family{number % 20}",
        )
        for number in range(640)
        for check in range(50)
        for dtype in ("float64", "complex128")
    ]
    assert len(page(results(*cells)).encode()) < 3_000_000


def test_loops_are_listed_by_op_beside_those_of_another_target() -> None:
    ours = results(
        cell(loops={"aten.histc.default": 2}), cell(check="jvp", loops={"aten.histc.default": 3})
    )
    theirs = results(cell(loops={"aten::histc": 1, "aten::put_": 4}), target="torch")
    write(Path(".cache/matrix/results-torch-cpu.jsonl"), *theirs.cells, target="torch")
    text = text_of(page(ours))
    assert (
        "op runtime on cpu, tier full torch on cpu, tier full ops in all 1 2 "
        "aten.histc 5 in 2 1 in 1 aten.put_ – 4 in 1"
    ) in text
    Path(".cache/matrix/results-torch-cpu.jsonl").unlink()
    assert "torch on cpu" not in text_of(page(ours))


def test_the_loops_of_the_other_target_are_read_from_its_last_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(
        tmp_path / ".cache/matrix/results-torch-cpu.jsonl",
        cell(loops={"aten::put_": 4}),
        target="torch",
    )
    assert run("--results", write(tmp_path / "ours.jsonl", cell())) == 0
    text = (tmp_path / "report/index.html").read_text()
    assert "4 in 1" in text and "torch on cpu, tier full" in text
