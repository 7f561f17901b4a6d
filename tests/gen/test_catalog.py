"""A matrix names the version of torch whose ops it is about, whatever torch is installed."""

from __future__ import annotations

import pytest

from gen.cli import main
from tests.gen.conftest import Expand, Mistakes

MATRIX = """\
    version: 1
    torch: {torch}
    checks: {{forward: {{claim: It holds., against: eager}}}}
    families: {{one: {{ops: [{op}]}}}}
    """


@pytest.mark.parametrize("torch", ["2.12.1", "2.13.0"])
def test_a_matrix_names_its_version_and_the_installed_one_does_not_matter(
    expanded: Expand, torch: str
) -> None:
    plan = expanded(MATRIX.format(torch=torch, op="torch.cholesky"))
    assert set(plan.families) == {"torch.cholesky"}


def test_a_version_that_is_neither_stored_nor_installed_is_refused(mistakes: Mistakes) -> None:
    (message,) = mistakes(MATRIX.format(torch="2.13.1", op="torch.sin"))
    assert "no catalog of torch 2.13.1" in message and "did you mean 2.13.0" in message


def test_a_help_text_says_what_the_command_of_the_catalog_writes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["catalog", "--help"])
    assert "for matrices that name this version" in " ".join(capsys.readouterr().out.split())
