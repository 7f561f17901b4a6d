"""What the page says of a finding, and in which group of columns a check stands."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gen.cli import main
from gen.run.results import CellResult, Results
from tests.report.made import cell, report, results, text_of, write

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "gen/templates/report"


class Findings(HTMLParser):
    """The addresses of the findings of a page, and the texts of their `pre` elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.texts: list[str] = []
        self._in_text = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if attributes.get("class") == "finding":
            self.ids.append(attributes["id"] or "")
        if tag == "pre":
            self._in_text = True
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._in_text:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre":
            self._in_text = False


def failing(check: str = "vjp", **facts: Any) -> CellResult:
    usual = {"severity": "wrong", "cause": "Mismatch: off by #"}
    return cell("failed", "off by 0.5", check=check, **{**usual, **facts})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the commands in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page(*runs: Results) -> str:
    return report(runs, Path("drawn"))


def data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" class="data">(.*?)</script>', text, re.S)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


# --- findings -------------------------------------------------------------------------------------


def test_one_cause_is_one_entry_and_the_most_severe_stands_first() -> None:
    refused = cell("failed", "no rule", check="jvp", severity="refused", cause="RuntimeError: no")
    text = text_of(page(results(refused, failing(), failing("grad"), cell(check="vmap"))))
    wrong, refusal = text.index("wrong value, without an error"), text.index("refused refused 1")
    assert wrong < refusal < text.index("Ops × checks")
    assert "wrong 1 causes, 2 cells failed torch.sin 2 cells off by 0.5" in text


def test_a_finding_has_both_sides_its_program_and_the_commands() -> None:
    program = 'import torch\nx = "<b>"\nprint(x)\n'
    found = failing(expected="[1.0, <2.0>]", actual="[1.5, 2.0]", program=program, failing=3)
    texts = Findings(page(results(found))).texts
    assert texts == [
        "[1.0, <2.0>]",
        "[1.5, 2.0]",
        program,
        "pytest 't/test_unary.py::test_vjp[torch.sin-float64]' --target runtime --tier full "
        "--sample 3",
    ]


def test_a_finding_shows_the_shortest_program_of_its_cells() -> None:
    cells = [failing(program="a = 1\nb = 2"), failing("jvp"), failing("grad", program="a = 1")]
    text = page(results(*cells))
    assert "a = 1" in Findings(text).texts
    assert "the program that fails of test_grad[torch.sin-float64]" in text_of(text)


def test_without_a_program_the_command_that_writes_one_is_shown() -> None:
    texts = Findings(page(results(failing(failing=1)))).texts
    command = "python -m gen script 'test_unary.py::test_vjp[torch.sin-float64]' --target runtime"
    assert f"{command} --sample 1" in texts


def test_the_address_of_a_finding_is_the_same_in_the_next_run() -> None:
    before = Findings(page(results(failing(), failing("jvp", cause="another")))).ids
    after = Findings(page(results(failing("grad"), began="2026-12-01"))).ids
    assert len(before) == 2 and len(after) == 1
    assert after[0] in before and after[0].startswith("run0/finding-")


def test_a_finding_names_the_versions_and_the_lines_of_the_matrix(folder: Path) -> None:
    places = {"ops": {"torch.sin": "matrix/a.yaml:3"}, "checks": {"vjp": "matrix.yaml:9"}}
    (folder / ".cache/gen").mkdir(parents=True)
    (folder / ".cache/gen/places.json").write_text(json.dumps(places))
    text = text_of(page(results(failing(frame="ops.py:12 in scale"), python="3.11.7")))
    assert (
        "torch 2.13.0 · python 3.11.7 · raised at ops.py:12 in scale · "
        "op: matrix/a.yaml:3 · check: matrix.yaml:9"
    ) in text


# --- history --------------------------------------------------------------------------------------


def earlier(day: int, *cells: CellResult, **header: Any) -> None:
    """A run of the past, in the project's cache."""
    path = Path(f".cache/matrix/earlier/results-runtime-cpu@{day}.jsonl")
    write(path, results(*cells, began=f"2026-11-{day:02}", **header))


def test_a_finding_says_since_when_its_cell_fails() -> None:
    now = results(failing(), began="2026-11-30")
    assert "1 cell off by 0.5" in text_of(page(now))
    earlier(27, failing())
    assert "1 cell in all 2 runs off by 0.5" in text_of(page(now))
    earlier(26, cell())
    assert "1 cell since 2026-11-27 off by 0.5" in text_of(page(now))
    earlier(28, cell())
    assert "1 cell new in this run off by 0.5" in text_of(page(now))


def test_the_history_names_runs_outcomes_and_the_versions_that_changed() -> None:
    earlier(27, cell(), torch="2.12.0")
    earlier(28, cell(check="jvp"))
    earlier(29, cell("crashed", "signal 11"))
    text = text_of(page(results(failing(), began="2026-11-30")))
    assert (
        "history of test_vjp[torch.sin-float64] passed 2026-11-27 · torch 2.12.0 "
        "no result 2026-11-28 · torch 2.13.0 crashed 2026-11-29 failed this run"
    ) in text


def test_the_history_is_of_earlier_runs_of_the_same_target() -> None:
    earlier(28, cell(), target="torch")
    write(Path(".cache/matrix/results-runtime-cpu.jsonl"), results(cell(), began="2026-12-24"))
    text = page(results(failing(), began="2026-11-30"))
    assert data(text)["earlier"] == []


def test_a_file_of_the_past_that_cannot_be_read_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    earlier(28, cell())
    Path(".cache/matrix/earlier/results-x@1.jsonl").write_text("[]\n[]\n")
    assert len(data(page(results(cell(), began="2026-11-30")))["earlier"]) == 1
    assert "left out of the history: .cache/matrix/earlier/results-x@1.jsonl:1" in (
        capsys.readouterr().err
    )


def test_the_page_of_several_runs_has_the_history_of_each_cell() -> None:
    runs = [results(cell(), began="2026-11-28"), results(failing(), began="2026-11-30")]
    for number, run in enumerate(runs):
        write(Path(f"{number}.jsonl"), run)
    assert main(["diff", "0.jsonl", "1.jsonl", "--page", "d.html"]) == 1
    assert "1 cell new in this run" in text_of(Path("d.html").read_text("utf-8"))


# --- columns --------------------------------------------------------------------------------------


def test_columns_stand_in_groups_from_values_to_misuse() -> None:
    checks = ["errors", "per_sample", "vmap_of_vjp", "vjp_of_vjp", "vjp", "export", "forward"]
    groups = data(page(results(*(cell(check=check) for check in checks))))
    named = {name: [groups["checks"][one] for one in some] for name, some in groups["columns"]}
    assert list(named.items()) == [
        ("Values", ["forward"]),
        ("First derivatives", ["vjp"]),
        ("Higher derivatives", ["vjp_of_vjp"]),
        ("Batches", ["vmap_of_vjp"]),
        ("Capture and export", ["export"]),
        ("Per-sample", ["per_sample"]),
        ("Misuse", ["errors"]),
    ]


# --- sizes ----------------------------------------------------------------------------------------


def test_a_cell_takes_few_bytes_of_the_page() -> None:
    cells = [
        cell(op=f"torch.op{number // 50}", check=f"check{number % 50}") for number in range(15_000)
    ]
    assert len(page(results(*cells)).encode()) < 150_000 + 40 * len(cells)


def test_a_finding_of_many_cells_has_few_programs() -> None:
    cells = [failing(f"check{number:02}", program=f"n = {number}\n") for number in range(60)]
    texts = data(page(results(*cells)))["texts"]
    assert len([text for text in texts if text.startswith("n = ")]) == 3


@pytest.mark.parametrize("path", sorted(ASSETS.iterdir()), ids=lambda path: path.name)
def test_scripts_and_style_sheets_read_like_the_code(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert len(lines) <= 500
    if path.suffix in (".js", ".css"):
        assert max(map(len, lines)) <= 110
