"""The page in a real browser, with real keys, where one is installed."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest

from gen.run.results import CellResult
from tests.report.browser import PATH, Browser
from tests.report.made import cell, report, results, write

pytestmark = pytest.mark.skipif(not PATH, reason="no chromium or chrome is installed")

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("AXE_CORE", ROOT / "node_modules/axe-core/axe.min.js"))
WIDE, NARROW = (1280, 900), (390, 844)
PROGRAM = "import torch\nexpected = torch.ones(2)\nprint('differs')"


def failing(op: str, check: str = "vmap", **facts: object) -> CellResult:
    usual = {"severity": "wrong", "expected": "[1.0, 1.0]", "actual": "[1.5, 1.5]"}
    why = f"{check}({op}): largest error 0.5"
    return cell("failed", why, op=op, check=check, **{**usual, **facts})


def cells() -> list[CellResult]:
    """80 ops with four checks, of which some have failed; and one check that a single op has."""
    passed = [
        cell(op=f"torch.op{number:02}", check=check)
        for number in range(80)
        for check in ("forward", "vjp", "jvp", "hessian")
    ]
    failed = [
        failing("torch.op07", failing=2, program=PROGRAM),
        failing("torch.op09", "jvp", dtype="float32"),
        cell("crashed", "signal 11", op="torch.op10", check="vjp", dtype="float32"),
        cell("xfailed", "known of torch", op="torch.op11", check="vjp", dtype="float32"),
        cell("lacking", "lacks export", op="torch.op12", check="export"),
    ]
    others = [cell(op=f"torch.nn.act{number}", family="activations") for number in range(3)]
    return [*passed, *failed, *others]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs. The cells of the first one have a history, and lines in the matrix."""
    folder = tmp_path_factory.mktemp("drawn")
    places = {"ops": {"torch.op07": "matrix/mine.yaml:12"}, "checks": {"vmap": "matrix.yaml:40"}}
    before = results(cell(op="torch.op07", check="vmap"), device="cuda", began="2026-11-29T10:00")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / ".cache/gen").mkdir(parents=True)
        (folder / ".cache/gen/places.json").write_text(json.dumps(places))
        write(folder / ".cache/matrix/earlier/results-runtime-cuda@1.jsonl", before)
        now = results(*cells(), device="cuda", began="2026-11-30T10:00")
        report([now, results(*cells()[:320], target="torch")], folder)
    return folder / "page.html"


def lines_shown(browser: Browser) -> list[str]:
    """The names of the rows that are drawn of the grid of the first run."""
    return browser.texts("#run0 .grid tbody th")


def active(browser: Browser) -> str:
    """What a screen reader says of the active place of the grid."""
    told: str = browser.value(
        """(() => {
            const id = document.activeElement.getAttribute("aria-activedescendant");
            const place = id && document.getElementById(id);
            return place ? place.getAttribute("aria-label") ?? place.innerText : "";
        })()"""
    )
    return told


def square(browser: Browser, op: str, check: str) -> tuple[str, str]:
    """The text and the class of a square of the first run, once its family is open."""
    found = browser.value(
        f"""(() => {{
            const start = {json.dumps(f"{op} under {check}:")};
            const all = [...document.querySelectorAll("#run0 .grid td[aria-label]")];
            const one = all.find((td) => td.getAttribute("aria-label").startsWith(start));
            return one && [one.innerText, one.className];
        }})()"""
    )
    return tuple(found)


# --- findings -------------------------------------------------------------------------------------


def test_findings_stand_above_the_grid_the_most_severe_first(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    titles = browser.texts("#run0 h2, #run0 h3")
    assert titles[1].startswith("Findings")
    assert [title.split()[0] for title in titles[2:4]] == ["wrong", "crash"]
    assert titles[4].startswith("Ops × checks")


def test_arrows_go_from_finding_to_finding_and_enter_opens_one(
    browser: Browser, drawn: Path
) -> None:
    browser.open(drawn)
    browser.value("document.querySelector('.finding > summary').focus()")
    browser.press("ArrowDown", 2)
    browser.press("ArrowUp")
    browser.press("Enter")
    (opened,) = browser.texts(".finding[open] > summary")
    assert "torch.op09" in opened
    sides = browser.texts(".finding[open] .sides pre")
    assert sides == ["[1.0, 1.0]", "[1.5, 1.5]"]


def test_the_program_of_a_finding_is_copied_as_it_is(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    browser.click(".finding > summary")
    browser.click(".finding[open] .copy")
    browser.value("document.body.append(document.createElement('textarea'))")
    browser.value("document.querySelector('body > textarea').focus()")
    browser.paste()
    assert browser.value("document.querySelector('body > textarea').value") == PROGRAM


def test_a_finding_has_an_address_of_its_own(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    link = browser.value("document.querySelector('[data-link]').dataset.link")
    browser.open(drawn, link)
    (opened,) = browser.texts(".finding[open] > summary")
    assert "torch.op07" in opened and "new in this run" in opened


# --- the grid -------------------------------------------------------------------------------------


def test_a_square_shows_its_worst_outcome_and_a_family_what_failed(
    browser: Browser, drawn: Path
) -> None:
    browser.open(drawn)
    assert square(browser, "unary", "vjp") == ("C1", "crashed")
    assert square(browser, "activations", "vjp") == ("3", "passed")
    browser.click("#run0 .open-all")
    browser.value("document.querySelector('#run0 .grid').scrollTop = 160")
    browser.settle()
    assert square(browser, "torch.op10", "vjp") == ("C1", "crashed")
    assert square(browser, "torch.op11", "vjp") == ("x1", "xfailed")
    assert square(browser, "torch.op12", "vjp") == ("1", "passed")


def test_one_exception_does_not_colour_a_family_of_passes(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    passes = [cell(op=f"torch.op{number}") for number in range(5)]
    report([results(*passes, cell("xfailed", "known"))], tmp_path)
    browser.open(tmp_path / "page.html")
    assert square(browser, "unary", "vjp") == ("5", "passed")


def test_families_are_closed_at_first_and_checks_of_few_ops_are_folded(
    browser: Browser, drawn: Path
) -> None:
    browser.open(drawn)
    assert [line.split()[1][:5] for line in lines_shown(browser)] == ["activ", "unary"]
    shown = browser.texts("#run0 .grid .checks th")
    assert shown == ["forward", "jvp", "vjp", "hessian", "vmap", "export"]


def test_arrows_move_in_the_grid_and_enter_opens_what_is_there(
    browser: Browser, drawn: Path
) -> None:
    browser.open(drawn)
    browser.value("document.querySelector('#run0 .grid table').focus()")
    browser.press("ArrowDown")
    assert active(browser).startswith("▸ unary")
    browser.press("Enter")  # opens the family
    assert "torch.op00" in lines_shown(browser)
    browser.press("ArrowDown")
    browser.press("ArrowRight", 2)
    assert active(browser) == "torch.op00 under jvp: 1 of 1 passed"
    browser.press("PageDown")
    browser.press("End")
    browser.press("Enter")
    browser.press("Escape")
    assert browser.value("document.querySelector('dialog').open") is False
    assert browser.value("document.activeElement.getAttribute('role')") == "grid"


def test_enter_on_the_head_of_a_group_folds_its_columns(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    browser.value("document.querySelector('#run0 .grid table').focus()")
    browser.press("ArrowRight", 2)
    browser.press("ArrowUp")
    assert active(browser) == "First derivatives, 2 checks"
    browser.press("Enter")
    assert "First derivatives (2)" in browser.texts("#run0 .grid .checks th")
    assert square(browser, "unary", "First derivatives (2)") == ("C1", "crashed folded")
    browser.press("Enter")
    assert "vjp" in browser.texts("#run0 .grid .checks th")


def test_arrows_go_from_group_to_group_above_the_grid(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    browser.value("document.querySelector('#run0 .grid table').focus()")
    browser.press("ArrowUp")
    heard = [active(browser)]
    for key in ("ArrowRight", "ArrowRight", "Home", "Enter", "Enter", "End"):
        browser.press(key)
        heard.append(active(browser))
    groups = [text.partition(",")[0] for text in heard]
    assert groups[:3] == ["Values", "First derivatives", "Higher derivatives"]
    assert groups[3:] == ["Values", "Values", "Values", "Capture and export"]


def test_a_filter_that_nothing_fits_leaves_a_grid_that_no_key_breaks(
    browser: Browser, drawn: Path
) -> None:
    browser.open(drawn)
    browser.press("/")
    browser.type("nowhere")
    assert browser.texts("#matching") == ["0 of 328 cells"]
    browser.value("document.querySelector('#run0 .grid table').focus()")
    for key in ("ArrowDown", "ArrowUp", "Enter", "End", "PageDown"):
        browser.press(key)
    browser.press("Escape")
    assert browser.texts("#matching") == ["328 cells"]


def test_an_address_opens_the_panel_of_its_square(browser: Browser, drawn: Path) -> None:
    browser.open(drawn, "#run0/torch.op07/vmap")
    (text,) = browser.texts("dialog[open]")
    assert "torch.op07 under vmap" in text
    command = (
        "pytest 't/test_unary.py::test_vmap[torch.op07-float64]' "
        "--target runtime --device cuda --tier full --sample 2"
    )
    assert command in text and PROGRAM in text
    assert "torch 2.13.0 · op: matrix/mine.yaml:12 · check: matrix.yaml:40" in text
    assert "passed 2026-11-29 10:00" in text
    assert browser.texts("dialog .sides pre") == ["[1.0, 1.0]", "[1.5, 1.5]"]
    browser.press("Escape")
    assert browser.value("location.hash") == ""


# --- the filter -----------------------------------------------------------------------------------


def test_the_filter_narrows_findings_grid_columns_and_lists(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    browser.press("/")
    browser.type("op09 jvp")
    (finding,) = browser.texts("#run0 .finding > summary")
    assert "torch.op09" in finding
    assert lines_shown(browser)[1:] == ["torch.op09"]
    assert browser.texts("#run0 .grid .checks th") == ["jvp"]
    assert all("op09" in row for row in browser.texts("#run0 .list tbody tr"))
    assert browser.texts("#matching") == ["2 of 328 cells"]
    browser.press("Escape")
    assert len(browser.texts("#run0 .finding > summary")) == 3
    assert browser.texts("#matching") == ["328 cells"]


def test_a_total_filters_by_its_outcome_and_the_address_keeps_the_filter(
    browser: Browser, drawn: Path
) -> None:
    browser.open(drawn)
    browser.click("[data-filter='outcome:crashed']")
    assert browser.texts("#matching") == ["1 of 328 cells"]
    address = browser.value("location.hash")
    browser.open(drawn, address)
    assert browser.value("document.getElementById('filter').value") == "outcome:crashed"
    assert lines_shown(browser)[1:] == ["torch.op10"]


def test_the_tabs_of_runs_are_changed_by_arrows(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    browser.value("document.querySelector('[role=tab]').focus()")
    browser.press("ArrowRight")
    assert browser.texts("#matching") == ["320 cells"]
    assert browser.texts("#run0") == []


# --- for all eyes and screens ---------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_nothing_is_wider_than_the_window(
    browser: Browser, drawn: Path, size: tuple[int, int], dark: bool
) -> None:
    browser.open(drawn, width=size[0], height=size[1], dark=dark)
    browser.value("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    browser.click("#run0 .open-all")
    widest = "Math.max(...[document.documentElement, document.body].map((e) => e.scrollWidth))"
    assert browser.value(widest) <= size[0]
    browser.open(drawn, "#run0/torch.op07/vmap", width=size[0], height=size[1], dark=dark)
    assert browser.value("document.querySelector('dialog').scrollWidth") <= size[0]


@pytest.mark.skipif(not AXE.is_file(), reason="axe-core is not installed (AXE_CORE, node_modules)")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("address", ["", "#run0/torch.op07/vmap"], ids=["page", "panel"])
def test_axe_finds_nothing_serious(
    browser: Browser, drawn: Path, size: tuple[int, int], dark: bool, address: str
) -> None:
    browser.open(drawn, address, width=size[0], height=size[1], dark=dark)
    if not address:
        browser.click(".finding > summary")
        browser.click("#run0 .open-all")
    browser.value(AXE.read_text("utf-8") + "; 0")
    found = browser.value("axe.run()")
    assert found["passes"]
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []


def test_the_focus_is_seen(browser: Browser, drawn: Path) -> None:
    browser.open(drawn)
    browser.press("Tab")  # the filter
    width = "parseFloat(getComputedStyle({}).outlineWidth)"
    assert browser.value(width.format("document.activeElement")) >= 2
    browser.value("document.querySelector('#run0 .grid table').focus()")
    browser.press("ArrowDown")
    assert browser.value(width.format("document.querySelector('.grid .active')")) >= 2


def test_dark_mode_is_dark(browser: Browser, drawn: Path) -> None:
    colours = []
    for dark in (False, True):
        browser.open(drawn, dark=dark)
        colours.append(browser.value("getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(251, 251, 249)", "rgb(20, 23, 26)"]


# --- large runs -----------------------------------------------------------------------------------


def large(count: int) -> list[CellResult]:
    """Cells of many ops in twenty families under fifty checks, one in 500 of which fails."""
    return [
        cell(
            "passed" if number % 500 else "failed",
            "" if number % 500 else f"largest error {number}",
            op=f"torch.nn.functional.op{number // 50:05}",
            check=f"check_{number % 50:02}",
            family=f"family{number // 50 % 20:02}",
        )
        for number in range(count)
    ]


@pytest.mark.parametrize(("count", "seconds"), [(15_000, 1), (100_000, 5)])
def test_a_large_run_opens_at_once_and_draws_what_is_in_view(
    browser: Browser,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    seconds: float,
) -> None:
    monkeypatch.chdir(tmp_path)
    report([results(*large(count))], tmp_path)
    page = tmp_path / "page.html"
    assert median(browser.open(page) for _ in range(5)) <= seconds
    browser.click(".open-all")
    browser.value("document.querySelector('.grid').scrollTop = 1e9")
    browser.settle()
    last = max(one.op for one in large(count) if one.family == "family19")
    assert browser.texts(".grid tbody th")[-1] == last
    assert browser.value("document.querySelectorAll('.grid tbody tr').length") < 100
