"""The page in a real browser, where one is installed."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from tests.report.made import cell, report, results

BROWSER = next(
    (
        path
        for name in ("chromium", "chromium-browser", "google-chrome", "chrome")
        if (path := shutil.which(name))
    ),
    None,
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or chrome is installed")


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's tree once its scripts have run, opened by the permalink of a failing cell."""
    cells = [
        cell(op=f"torch.op{number}", check=check)
        for number in range(80)
        for check in ("vjp", "jvp")
    ]
    failing = cell("failed", "largest error 0.5", op="torch.op7", check="vmap", failing=2)
    runs = [results(*cells, failing, device="cuda"), results(*cells, target="torch")]
    places = {"ops": {"torch.op7": "matrix/mine.yaml:12"}, "checks": {"vmap": "matrix.yaml:40"}}
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".cache/gen").mkdir(parents=True)
    (tmp_path / ".cache/gen/places.json").write_text(json.dumps(places))
    report(runs, tmp_path)
    path = tmp_path / "page.html"
    link = f"{path.as_uri()}#run0/torch.op7/vmap"
    command = [
        BROWSER or "",
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
        link,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_permalink_opens_its_cell_with_the_command_of_the_failing_sample_and_its_lines(
    opened: str,
) -> None:
    dialog = re.search(r"<dialog[^>]* open.*?</dialog>", opened, re.S)
    assert dialog is not None
    text = unescape(re.sub(r"<[^>]*>", " ", dialog[0]))
    assert "torch.op7 under vmap" in text
    assert (
        "pytest 't/test_unary.py::test_vmap[torch.op7-float64]' --target runtime --device "
        "cuda --tier full --sample 2"
    ) in text
    assert "op: matrix/mine.yaml:12 · check: matrix.yaml:40" in text
    assert text.count("copy command") == 2 and "copy link" in text


def test_a_family_of_many_ops_is_closed_except_for_the_one_that_is_asked_for(opened: str) -> None:
    first, second = re.findall(r'<tbody data-family="unary"[^>]*>', opened)
    assert 'class="shut"' not in first
    assert 'class="shut"' in second
