"""Checks stay in the domain of an input: of ops that refuse what lies outside, none is red."""

from pathlib import Path

import pytest

from gen.cli import main

pytest_plugins = "pytester"

DOMAINS = {
    "symmetric": ("[3, 3]", "(x - x.mH).abs().max()"),
    "spd": ("[3, 3]", "(x - x.mH).abs().max() + (torch.linalg.eigvalsh(x) < 0).sum()"),
    "unitary": ("[3, 3]", "(x.mH @ x - torch.eye(3).to(x.dtype)).abs().max()"),
    "rotation": ("[2, 3, 3]", "(torch.linalg.det(x) - 1).abs().max()"),
    "unit_vectors": ("[2, 3]", "(torch.linalg.vector_norm(x, dim=-1) - 1).abs().max()"),
    "probabilities": ("[4]", "(x.sum(-1) - 1).abs().max() + (x < 0).sum()"),
    "sorted": ("[2, 4]", "(x.diff() < 0).sum()"),
    "positive": ("[3]", "(x <= 0).sum()"),
    "nonzero": ("[3]", "(x == 0).sum()"),
}
OPS = """
import torch


def limit(x):
    return 1e-4 if x.dtype == torch.float32 else 1e-8


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x


def labels(x, label):
    if not (label == label.round()).all():
        raise ValueError("no labels")
    return x * label


""" + "".join(
    f"""
def {name}(x):
    with torch.no_grad():
        distance = {distance}
    if distance > limit(x):
        raise ValueError("outside of the domain")
    return x * x.flip(-1) + x.sin()


def wrong_{name}(x):
    return {name}(x) + Wrong.apply(x)

"""
    for name, (_, distance) in DOMAINS.items()
)
MATRIX = """
version: 1
targets: {default: torch, names: [torch]}
dtypes: {double: [float64], real: [float32, float64]}
devices: {cpu: {}}
checks:
  backward: {claim: as differences, pipeline: backward, against: numeric, dtypes: [double]}
  second: {claim: as differences, pipeline: backward . backward, against: numeric, dtypes: [double]}
  vjp: {claim: as differences, pipeline: vjp, against: numeric, dtypes: [double]}
  jvp: {claim: as differences, pipeline: jvp, against: numeric, dtypes: [double]}
  precision: {claim: as in double, pipeline: backward, against: float64, dtypes: [float32]}
  layouts:
    claim: the same for each layout
    pipeline: forward
    against: eager
    dtypes: [real]
    over: {layout: [transposed, noncontiguous, expanded]}
families:
  kept:
    title: Ops that refuse what lies outside of their domain
    dtypes: [real]
    checks: [backward, second, vjp, jvp, precision, layouts]
    ops:
"""
WRONG = """  wrong:
    title: Ops whose backward pass is wrong in the domain too
    dtypes: [double]
    checks: [backward]
    ops:
"""


def _row(name: str, shape: str, domain: str) -> str:
    sample = f"{{args: [{{shape: {shape}, domain: {domain}}}]}}"
    call = f'"domains_under_test:{name}"'
    return f"      - {{op: domains.{name}, call: {call}, samples: [{sample}]}}\n"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    rows = [_row(name, shape, name) for name, (shape, _) in DOMAINS.items()]
    labels = "{args: [{shape: [3]}, {shape: [3], domain: whole}]}"
    rows.append(
        f'      - {{op: domains.labels, call: "domains_under_test:labels", samples: [{labels}]}}\n'
    )
    wrong = [_row(f"wrong_{name}", shape, name) for name, (shape, _) in DOMAINS.items()]
    pytester.makepyfile(domains_under_test=OPS)
    text = MATRIX + "".join(rows) + WRONG + "".join(wrong)
    (pytester.path / "matrix.yaml").write_text(text)
    pytester.syspathinsert()
    return pytester


def test_derivatives_and_layouts_stay_in_the_domain_and_find_a_wrong_backward(
    project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate"]) == 0, capsys.readouterr().err
    result = project.runpytest_subprocess(
        "-p", "gen.run.plugin", "generated_tests/test_kept.py", "-q"
    )
    assert result.ret == pytest.ExitCode.OK
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 60 and not outcomes.get("failed")
    found = project.runpytest_subprocess("-p", "gen.run.plugin", "generated_tests/test_wrong.py")
    assert found.parseoutcomes() == {"failed": len(DOMAINS)}
    found.stdout.fnmatch_lines([f"failed, the most severe first: {len(DOMAINS)} wrong"])


@pytest.mark.parametrize(
    ("domain", "shape", "says"),
    [
        ("rotation", "[3, 2]", "domain rotation with shape*last two sizes are equal"),
        ("probabilities", "[[]]", "shape"),
        ("sorted", "[]", "domain sorted with shape*at least one dimension"),
        ("sored", "[3]", "sorted"),
    ],
)
def test_a_shape_that_a_domain_does_not_have_is_refused(
    domain: str, shape: str, says: str, project: pytest.Pytester, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("matrix.yaml")
    path.write_text(path.read_text() + _row("more", shape, domain))
    assert main(["generate"]) != 0
    shown = capsys.readouterr().err
    for part in says.split("*"):
        assert part in shown


INVERSE = """
version: 1
targets: {default: torch, names: [torch]}
dtypes: {double: [float64]}
devices: {cpu: {}}
checks:
  expanded:
    claim: as differences
    pipeline: backward
    against: numeric
    over: {layout: [transposed, expanded]}
families:
  inverses:
    title: A function without a value where rows repeat
    dtypes: [double]
    checks: [expanded]
    ops:
      - op: domains.solved
        call: "solved_under_test:solved"
        samples: [{args: [{shape: [3, 3]}]}]
"""
SOLVED = """
import torch


def solved(x):
    found, info = torch.linalg.inv_ex(x)
    return torch.where(info > 0, torch.nan, found)
"""


def test_where_rows_repeat_and_nothing_exists_a_cell_is_lacking_and_not_red(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(solved_under_test=SOLVED)
    (pytester.path / "matrix.yaml").write_text(INVERSE)
    pytester.syspathinsert()
    assert main(["generate"]) == 0
    result = pytester.runpytest_subprocess("-p", "gen.run.plugin", "--tier", "full")
    assert result.parseoutcomes() == {"passed": 1, "skipped": 1}
    result.stdout.fnmatch_lines(["*nothing to compare*"])
