"""Each check of the matrix has a group of columns on the page.

Inside: ``gen.report.grid``. The page shows the groups of the checks that ran, and a run of one test
has few of them.
"""

import re
from pathlib import Path

import pytest
import yaml

from gen.plan.matrix_plan import load_plan
from gen.report.grid import column_groups

ROOT = Path(__file__).parents[3]


def test_a_check_that_no_group_names_stands_under_other() -> None:
    assert column_groups(["mine", "vjp"]) == {"First derivatives": ["vjp"], "Other": ["mine"]}


def test_every_check_of_the_matrix_has_a_group() -> None:
    checks = load_plan(ROOT / "matrix.yaml").loaded.matrix.checks
    assert "Other" not in column_groups(checks)


@pytest.mark.parametrize("template", ["project", "package"])
def test_every_check_of_a_new_project_has_a_group(template: str) -> None:
    text = (ROOT / f"gen/templates/{template}/matrix.yaml.j2").read_text("utf-8")
    plain = re.sub(r"\{[{%].*?[}%]\}", "", text)
    section = plain[plain.index("checks:") :].partition("\ntiers:")[0]
    checks = yaml.safe_load(section)["checks"]
    assert len(checks) > 10 and "Other" not in column_groups(checks)
