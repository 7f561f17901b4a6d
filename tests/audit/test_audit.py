"""The audit plants the faults that it names, raises no false alarm, and counts right."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.audit.campaign import Campaign, Fault, Finding, Survivors
from gen.audit.generated_modules import Check, load_modules
from gen.audit.kinds import KINDS, differs
from gen.audit.planted import ANSWERS, WHERE, Planted
from gen.commands import audit
from gen.targets import load

A = torch.arange(1.0, 5.0, dtype=torch.float64).reshape(2, 2)
B = -A - 7
Z = torch.complex(A, B)

MODULE = '''
"""Some ops."""

from gen.checks import cases, family, known, op

FAMILY = family("demo", known={"never": known("xfail", raises="RuntimeError", match="never", \
reason="a stale entry")})


@cases(
    op("torch.mul", smoke="float64", default="complex128"),
    op("torch.sum", smoke="float64"),
    op("torch.cos", smoke="float64", known="never"),
)
def test_vjp(case):
    """vjp(f) equals torch's plain engine."""
    case.assert_same("vjp", against="upstream")


@cases(op("torch.mul", smoke="float64"))
def test_jvp_of_vjp(case):
    """jvp(vjp(f)) equals torch's plain engine."""
    case.assert_same("jvp . vjp", against="upstream")


@cases(op("torch.mul", smoke="float64"), op("torch.exp", smoke="float64"))
def test_vmap(case):
    """vmap(f) equals a loop."""
    case.assert_same("vmap", against="loop")


@cases(op("torch.mul", smoke="float64"))
def test_trace_of_vjp(case):
    """A graph gives what eager gives."""
    case.assert_same("trace . vjp", against="upstream")


@cases(op("torch.mul", smoke="float64:default"), axes={"partition": ["default"]})
def test_joint(case):
    """The joint graph gives the gradients of eager."""
    case.assert_same("aot.joint", against="eager")


@cases(op("torch.mul", smoke="float64"))
def test_per_sample(case):
    """Per-sample gradients equal a loop."""
    case.assert_same("per_sample", against="loop")


@cases(
    op("torch.mul", smoke="float64:norms float64:clipped_sum float64:dot float64:gram \
float64:project"),
    axes={"of": ["norms", "clipped_sum", "dot", "gram", "project"]},
)
def test_per_sample_answers(case):
    """Answers about per-sample gradients follow from the loop."""
    case.assert_same("per_sample", against="loop")


@cases(op("torch.neg", smoke="float64"))
def test_blind(case):
    """Compares the op alone, and so cannot see a fault in its derivative."""
    case.assert_same("forward", against="eager")
    case.target.vjp(lambda x: (x * 2,), \
__import__("torch").ones(3))[1]((__import__("torch").ones(3),))
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_demo.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def checks(folder: Path) -> list[Check]:
    return load_modules(folder)


@pytest.fixture
def campaign(checks: list[Check]) -> Campaign:
    return Campaign(load("torch"), checks, "cpu", "full", seed=0)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("sign", (A,), (-A,)),
        ("factor", (A, Z), (A * 1.001, Z * 1.001)),
        ("factor", (A.float(),), (A.float(),)),
        ("dropped", (A,), (torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=torch.float64),)),
        ("dropped", (A, B), (A, B * 0)),
        ("dropped", (A[0, 0],), (A[0, 0],)),
        ("swapped", (A, B), (B, A)),
        ("swapped", (A, Z), (A, Z)),
        ("swapped", (A,), (A,)),
        ("transposed", (A,), (A.T,)),
        ("transposed", (A[:1],), (A[:1],)),
        ("conjugate", (A, Z), (A, Z.conj())),
        ("zero", (A,), (A * 0,)),
        ("sign", (torch.arange(3),), (torch.arange(3),)),
    ],
)
def test_a_kind_does_what_its_name_says(
    kind: str, given: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...]
) -> None:
    before = tuple(x.clone() for x in given)
    found = KINDS[kind](given)
    assert not differs(found, expected)
    assert not differs(given, before), "the given tensors were changed in place"


def test_every_kind_can_change_something() -> None:
    assert all(differs(change((Z, Z + 1)), (Z, Z + 1)) for change in KINDS.values())


def test_nan_does_not_differ_from_nan() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert not differs((nan,), (nan.clone(),))
    assert differs((nan,), (nan + 1,))


def target_of(where: str) -> Any:
    """A target with the transform in which a fault of `where` sits."""
    return load("runtime" if WHERE[where] == "per_sample" else "torch")


def through(where: str, target: Any) -> Any:
    """The result of the transform in which a fault of `where` sits, of x -> x³ at A."""

    def cube(x: Any) -> tuple[Any, ...]:
        return (x * x * x,)

    match where:
        case "gradient":
            return target.vjp(cube, A)[1]((B,))
        case "tangent":
            return target.jvp(cube, (A,), (B,))[1]
        case "batch":
            return target.vmap(cube, (0,))(A)
        case "trace":
            return target.trace(cube, (A,), dynamic=False)(A)
        case "per_sample":
            return target.per_sample(
                lambda x, w: (x * w,), A, (B[0],), loss_reduction="sum", input_grad=False
            )
        case _ if where in ANSWERS:
            given = {"clipped_sum": 1.0, "dot": [B[0]], "gram": A, "project": 2}.get(where)
            return target.per_sample_answer(
                lambda x, w: (x * w,), A, (B[0],), of=where, given=given, each=True
            )
        case _:
            leaf = A.clone().requires_grad_()
            return target.joint(cube, (leaf,), partition="default", dynamic=False)([leaf], (B,))[1]


@pytest.mark.parametrize("where", WHERE)
def test_a_fault_changes_the_result_where_it_is_planted_and_knows_it(where: str) -> None:
    planted = Planted(target_of(where), where, "sign")
    assert not differs(through(where, planted), tuple(-x for x in through(where, target_of(where))))
    assert planted.differed


@pytest.mark.parametrize("where", WHERE)
def test_a_fault_changes_nothing_elsewhere(where: str) -> None:
    for other in set(WHERE) - {where}:
        planted = Planted(target_of(other), where, "sign")
        assert not differs(through(other, planted), through(other, target_of(other)))
        assert not planted.differed


@pytest.mark.parametrize("nest", ["vmap of gradient", "tangent of gradient", "trace of gradient"])
def test_a_fault_inside_a_nest_is_seen_from_outside(nest: str) -> None:
    planted = Planted(load("torch"), "gradient", "factor")

    def gradient(x: Any) -> Any:
        return planted.vjp(lambda y: (y * y,), x)[1]((x,))

    match nest.split()[0]:
        case "vmap":
            planted.vmap(gradient, (0,))(A)
        case "tangent":
            planted.jvp(gradient, (A,), (B,))
        case _:
            planted.trace(gradient, (A,), dynamic=False)(A)
    assert planted.differed


def test_random_draws_are_not_taken_for_a_difference() -> None:
    planted = Planted(load("torch"), "tangent", "sign")
    planted.vmap(lambda x: (torch.rand_like(x),), (0,))(A)
    assert not planted.differed


def test_what_no_two_honest_runs_agree_on_is_not_taken_for_a_difference() -> None:
    planted = Planted(load("torch"), "batch", "sign")
    runs = iter(range(1, 9))
    planted.vmap(lambda x: (x * 0 + next(runs),), (0,))(A)
    assert not planted.differed


def test_the_stages_of_a_check_are_read_from_its_body(checks: list[Check]) -> None:
    assert {check.name: check.stages for check in checks} == {
        "vjp": {"vjp"},
        "jvp_of_vjp": {"jvp", "vjp"},
        "vmap": {"vmap"},
        "trace_of_vjp": {"trace", "vjp"},
        "joint": {"aot.joint"},
        "per_sample": {"per_sample"},
        "per_sample_answers": {"per_sample"},
        "blind": set(),
    }


def test_an_honest_target_is_never_caught(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "sign", lambda tensors: tensors)
    finding = campaign.try_fault(Fault("torch.mul", "gradient", "sign"))
    assert (finding.applied, finding.caught, finding.why) == (False, None, "it changed no value")


def test_a_cell_that_fails_anyway_catches_nothing(campaign: Campaign) -> None:
    finding = campaign.try_fault(Fault("torch.cos", "gradient", "sign"))
    assert (finding.applied, finding.caught) == (False, None)


def test_a_fault_that_changes_no_value_is_redrawn(campaign: Campaign) -> None:
    assert (
        campaign.try_fault(Fault("torch.sum", "gradient", "swapped")).why == "it changed no value"
    )


def test_a_corruption_that_cannot_be_done_is_no_catch(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impossible(tensors: Any) -> Any:
        raise NotImplementedError("no such rule")

    monkeypatch.setitem(KINDS, "sign", impossible)
    finding = campaign.try_fault(Fault("torch.mul", "gradient", "sign"))
    assert not finding.applied and finding.why == "the corruption itself raised NotImplementedError"


def test_a_fault_that_no_check_compares_survives(
    checks: list[Check], monkeypatch: pytest.MonkeyPatch
) -> None:
    blind = next(check for check in checks if check.name == "blind")
    monkeypatch.setitem(blind.__dict__, "stages", frozenset(("vjp",)))
    finding = Campaign(load("torch"), [blind], "cpu", "full", 0).try_fault(
        Fault("torch.neg", "gradient", "sign")
    )
    assert finding == Finding(Fault("torch.neg", "gradient", "sign"), applied=True, cells=1)


@pytest.mark.parametrize("where", WHERE)
def test_the_matrix_catches_a_fault_in_each_place(checks: list[Check], where: str) -> None:
    finding = Campaign(target_of(where), checks, "cpu", "full", 0).try_fault(
        Fault("torch.mul", where, "factor")
    )
    assert finding.applied and finding.caught


@pytest.mark.parametrize("of", ANSWERS)
def test_a_fault_in_an_answer_is_tried_on_the_cells_that_ask_for_it(
    checks: list[Check], of: str
) -> None:
    finding = Campaign(target_of(of), checks, "cpu", "full", 0).try_fault(
        Fault("torch.mul", of, "zero")
    )
    assert finding.caught == f"per_sample_answers[torch.mul-float64-{of}]"


def test_a_draw_depends_on_the_seed_alone(checks: list[Check]) -> None:
    def drawn(seed: int) -> list[Fault]:
        return list(Campaign(load("torch"), checks, "cpu", "full", seed)._draw())

    assert drawn(3) == drawn(3) != drawn(4)
    assert {(fault.where, fault.kind) for fault in drawn(3)} >= {(where, "sign") for where in WHERE}


def run(folder: Path, *args: str) -> int:
    parser = argparse.ArgumentParser()
    audit.add_arguments(parser)
    return audit.run(
        parser.parse_args(
            ["--modules", str(folder), "--survivors", str(folder / "survivors.yaml"), *args]
        )
    )


def test_the_command_counts_and_reports(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(folder, "--faults", "6", "--report", str(folder / "audit.json")) == 0
    report = json.loads((folder / "audit.json").read_text())
    assert (report["applied"], report["caught"]) == (6, 6)
    assert "6 of 6 faults caught (100.0%), seed 0" in capsys.readouterr().out


def test_the_command_fails_below_its_mark(folder: Path) -> None:
    assert run(folder, "--faults", "1", "--at-least", "101") == 1


@pytest.mark.parametrize("text", ["- {fault: a}", "- {fault: a, reason: }", "- text"])
def test_a_survivor_without_a_reason_is_refused(folder: Path, text: str) -> None:
    (folder / "survivors.yaml").write_text(text)
    assert run(folder, "--faults", "1") == 2


def test_a_reason_is_found_by_glob(tmp_path: Path) -> None:
    path = tmp_path / "survivors.yaml"
    path.write_text("- {fault: 'torch.nn.* joint transposed', reason: 'symmetric'}")
    survivors = Survivors.read(path)
    assert (
        survivors.reason(Finding(Fault("torch.nn.x", "joint", "transposed"), True)) == "symmetric"
    )
    assert survivors.reason(Finding(Fault("torch.x", "joint", "transposed"), True)) is None
