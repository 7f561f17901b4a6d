"""Faults in rules: each kind does what it says, the runtime's records are restored afterwards, and
the draw is fair."""

import argparse
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.audit.campaign import Finding, Survivors
from gen.audit.generated_modules import eligible, load_modules
from gen.audit.reach import Map, Reach, promising, spread, telling
from gen.audit.rule_faults import RuleFault, Rules
from gen.audit.workers import Job, Tried, Workers
from gen.commands import audit
from gen.targets import load
from gen.targets.faults import KINDS, Auditable, Call, Rule, change, differs
from gen.targets.runtime_target import RuntimeTarget

A = torch.arange(1.0, 5.0, dtype=torch.float64).reshape(2, 2)
Z = torch.complex(A, A + 1)

MODULE = '''
"""Some ops."""

from gen.checks import cases, family, op

FAMILY = family("demo")


@cases(op("torch.sin", smoke="float64 complex128"), op("torch.mul", smoke="float64"))
def test_vjp(case):
    """vjp(f) equals torch's plain engine."""
    case.assert_same("vjp", against="upstream")


@cases(op("torch.sin", smoke="float64"))
def test_vjp_of_vjp(case):
    """vjp(vjp(f)) equals torch's plain engine."""
    case.assert_same("vjp . vjp", against="upstream")


@cases(op("torch.sin", smoke="float64"))
def test_forward(case):
    """Runs no rule."""
    case.assert_same("forward", against="eager")
'''


ORDER = {"mixed", "rolled", "transposed"}


@pytest.fixture(scope="module")
def runtime() -> RuntimeTarget:
    target = load("runtime")
    assert isinstance(target, Auditable) and isinstance(target, RuntimeTarget)
    return target


def call(run: Callable[..., Any], *inputs: Any, roles: str = "seed", **more: Any) -> Call:
    return Call(run, inputs, tuple(roles.split()), **more)


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("sign", A, -A),
        ("scaled", A, A * 1.001),
        ("scaled", A.float(), A.float()),
        ("conjugated", Z, Z.conj()),
        ("conjugated", A, A),
        ("zeroed", A, A * 0),
        ("leaked", A, A + 1),
        ("rolled", A, A.roll(1, -1)),
        ("rolled", A[:, :1], A[:, :1].roll(1, 0)),
        ("transposed", A, A.T),
        ("transposed", A[0], A[0]),
        ("mixed", A, A.roll(-1, 0)),
        ("shared", A, A[:1].expand(2, 2)),
        ("narrowed", A, A.float()),
        ("sign", [A, None, torch.arange(3)], [-A, None, torch.arange(3)]),
    ],
)
def test_a_kind_does_what_its_name_says(kind: str, given: Any, expected: Any) -> None:
    assert not differs(change(call(lambda x: x, given), kind, given), expected)


def test_results_in_sparse_layouts_differ_by_value_and_layout() -> None:
    sparse = A.to_sparse()
    assert differs(sparse, -sparse) and differs(sparse, A) and not differs(sparse, A.to_sparse())


def test_results_that_are_rounded_otherwise_do_not_differ() -> None:
    third = torch.tensor([1.0, 3.0], dtype=torch.float64) / 3
    assert not differs(third * (1 + 4e-16), third) and differs(third * (1 + 4e-15), third)
    assert differs(third * torch.nan, third) and differs(
        torch.tensor([1, 2**40]), torch.tensor([0, 2**40])
    )


def test_a_joint_rule_answers_for_one_of_its_results() -> None:
    joint = call(lambda g: (g, g), A, place=1)
    assert not differs(change(joint, "sign", joint.result()), (A, -A))


def test_a_saved_value_off_leaves_the_seed_alone() -> None:
    product = call(lambda g, x: g * x, A, A, roles="seed saved")
    assert torch.allclose(change(product, "saved", product.result()), A * A * 1.01)


def test_of_a_list_of_saved_values_one_is_off() -> None:
    quotient = call(lambda xs: xs[0] / xs[1], [A, A + 1], roles="saved")
    assert torch.allclose(change(quotient, "saved", quotient.result()), A / (A + 1) * 1.01)


def test_an_edge_is_where_a_saved_value_is_zero_or_infinite() -> None:
    x = torch.tensor([0.0, 1.0, torch.inf])
    step = call(lambda g, x: g, torch.ones(3), x, roles="seed saved")
    assert change(step, "edge", step.result()).isnan().tolist() == [True, False, True]


def test_a_way_to_be_wrong_of_the_targets_own_is_taken() -> None:
    other = call(lambda g: g, A, others={"swapped": lambda: A + 5})
    assert not differs(change(other, "swapped", A), A + 5)


def test_every_part_has_kinds_and_a_target_has_rules_of_it(runtime: RuntimeTarget) -> None:
    compiler = load("aot_eager")
    assert isinstance(compiler, Auditable)
    assert {rule.part for rule in (*runtime.rules(), *compiler.rules())} == set(KINDS)
    names = [rule.name for rule in runtime.rules()]
    assert len(set(names)) == len(names) > 800


def test_what_only_refuses_and_what_is_a_number_are_no_rules(runtime: RuntimeTarget) -> None:
    names = {rule.name for rule in runtime.rules()}
    assert (
        "histc decomposition" in names
        and "histc vjp self" not in names
        and "histc jvp" not in names
    )
    assert "normal.Tensor_float vjp mean" in names and "normal.Tensor_float vjp std" not in names
    assert not any(name.startswith(("numel ", "size ")) for name in names)
    assert "embedding per_sample weight" in names and "embedding per_sample input" not in names
    assert (
        "_ctc_loss_backward vjp grad" in names and "_ctc_loss_backward vjp log_alpha" not in names
    )


def gradient(target: Any, x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = target.vjp(lambda y: (y.sin(),), x)[1]((torch.ones_like(x),))[0]
    return found


def test_a_fault_holds_inside_its_block_and_no_longer(runtime: RuntimeTarget) -> None:
    with runtime.planted("sin vjp self", "sign"):
        assert torch.equal(gradient(runtime, A), -A.cos())
    assert torch.equal(gradient(runtime, A), A.cos())


def test_a_fault_is_undone_when_what_runs_with_it_fails(runtime: RuntimeTarget) -> None:
    with pytest.raises(ZeroDivisionError), runtime.planted("sin vjp self", "sign"):
        raise ZeroDivisionError
    assert torch.equal(gradient(runtime, A), A.cos())


@pytest.mark.parametrize(
    ("rule", "run"),
    [
        ("mul.Tensor jvp", lambda t: t.jvp(lambda x: (x * x,), (A,), (A,))[1]),
        ("sin batch", lambda t: t.vmap(lambda x: (x.sin(),), (0,))(A)),
        ("sin batch", lambda t: t.vmap(lambda x: (x.clone().sin_(),), (0,))(A)),
        (
            "native_layer_norm vjp weight",
            lambda t: t.vjp(lambda w: (torch.layer_norm(A, (2,), w),), A[0])[1]((A,)),
        ),
        (
            "mm per_sample mat2",
            lambda t: t.per_sample(
                lambda x, w: (x @ w,), A, [A], loss_reduction="sum", input_grad=False
            ),
        ),
    ],
)
def test_every_part_takes_a_fault(
    runtime: RuntimeTarget, rule: str, run: Callable[[Any], Any]
) -> None:
    honest = run(runtime)
    part = next(known.part for known in runtime.rules() if known.name == rule)
    with runtime.planted(rule, KINDS[part][0]):
        assert differs(run(runtime), honest)
    assert not differs(run(runtime), honest)


def test_a_dropped_tangent_is_one_of_several(runtime: RuntimeTarget) -> None:
    with runtime.planted("mul.Tensor jvp", "dropped"):
        assert torch.equal(runtime.jvp(lambda x, y: (x * y,), (A, A), (A, A))[1][0], A * A)
        assert torch.equal(runtime.jvp(lambda x: (x * A,), (A,), (A,))[1][0], A * A)


def test_a_detached_value_shows_in_a_second_derivative_alone(runtime: RuntimeTarget) -> None:
    def second() -> torch.Tensor:
        found: torch.Tensor = runtime.vjp(
            lambda x: (runtime.vjp(lambda y: (y.sin(),), x)[1]((A,))[0],), A
        )[1]((A,))[0]
        return found

    assert torch.equal(second(), -A.sin() * A * A)
    with runtime.planted("sin vjp self", "detached"):
        assert torch.equal(gradient(runtime, A), A.cos())
        assert not second().any()


def test_a_watch_tells_what_ran_and_which_faults_would_show(runtime: RuntimeTarget) -> None:
    with runtime.watched() as watch:
        gradient(runtime, A)
        seen = watch.taken()
        assert not watch.taken()
        gradient(runtime, Z)
        complex_seen = watch.taken()
    assert seen == {
        "sin vjp self": frozenset(
            ("sign", "scaled", "zeroed", "leaked", "rolled", "transposed", "saved")
        )
    }
    assert complex_seen["sin vjp self"] == seen["sin vjp self"] | {"conjugated"}


def test_a_gradient_that_nobody_asks_for_cannot_be_wrong(runtime: RuntimeTarget) -> None:
    lu, pivots = torch.linalg.lu_factor(A)
    with runtime.watched() as watch:
        runtime.vjp(lambda x: (torch.linalg.lu_solve(lu, pivots, x),), A)[1]((A,))
        seen = watch.taken()
    assert not seen["linalg_lu_solve vjp LU"] and not seen["linalg_lu_solve vjp pivots"]
    assert "sign" in seen["linalg_lu_solve vjp B"]


def test_a_value_that_counts_as_constant_is_a_fault_only_where_the_rule_has_a_derivative_by_it(
    runtime: RuntimeTarget,
) -> None:
    with runtime.watched() as watch:
        for f in (torch.sin, torch.relu):
            runtime.vjp(lambda x, f=f: (runtime.vjp(lambda y: (f(y),), x)[1]((A,))[0],), A)[1]((A,))
        seen = watch.taken()
    assert "detached" in seen["sin vjp self"] and "detached" not in seen["relu vjp self"]


def test_another_arguments_gradient_counts_as_the_engine_takes_it(runtime: RuntimeTarget) -> None:
    with runtime.watched() as watch:
        runtime.vjp(lambda x, y: (x + y,), A[:1], A)[1]((A,))
        same = watch.taken()
        runtime.vjp(lambda x, y: (torch.add(x, y, alpha=2),), A[:1], A)[1]((A,))
        scaled = watch.taken()
    assert (
        "swapped" not in same["add.Tensor vjp self"] and "swapped" in scaled["add.Tensor vjp self"]
    )


def test_one_of_several_results_is_moved_by_its_own_shape(runtime: RuntimeTarget) -> None:
    x, weight, bias = torch.randn(3, 1, 3, 4), torch.randn(3, 3, 3), torch.randn(3)

    def gradients(x: torch.Tensor) -> Any:
        outputs, pullback = runtime.vjp(
            lambda *args: (torch.nn.functional.conv1d(*args),), x, weight, bias
        )
        return pullback((torch.ones_like(outputs[0]),))

    with runtime.watched() as watch:
        runtime.vmap(gradients, (0,))(x)
        seen = watch.taken()
    assert (
        "transposed" in seen["convolution vjp weight"]
        and "transposed" not in seen["convolution vjp bias"]
    )


def test_a_batch_rule_that_runs_for_the_watch_alone_is_not_seen(runtime: RuntimeTarget) -> None:
    with runtime.watched() as watch:
        runtime.jacrev(lambda x: (x.sin() * x.exp(),), (0,))(A)
        seen = watch.taken()
    assert "sin vjp self" in seen and "mul.Tensor vjp self" in seen
    assert "mul.Tensor batch" not in seen


def test_a_watch_and_a_fault_leave_draws_alone(runtime: RuntimeTarget) -> None:
    def drawn() -> torch.Tensor:
        torch.manual_seed(0)
        runtime.jvp(lambda x: (x.sin(),), (A,), (A,))
        gradient(runtime, A)
        return torch.rand(3)

    honest = drawn()
    with runtime.watched():
        assert torch.equal(drawn(), honest)
    with runtime.planted("sin vjp self", "saved"):
        assert torch.equal(drawn(), honest)


def rules_of(*parts: str) -> Rules:
    rules = [Rule(op, part) for op in ("a", "b", "c") for part in parts]
    cells = [Reach(f"m.py::{check}[{op}-float64]", cost,
        {f"{op} {part}": frozenset(("sign", "mixed", "leaked")) for part in parts})
             for op in "ab" for check, cost in (("slow", 2.0), ("quick", 1.0))]  # fmt: skip
    return Rules(rules, cells, seed=0)


def test_each_rule_gets_one_fault_before_any_gets_two() -> None:
    drawn = list(rules_of("vjp", "batch").drawn())
    assert len({fault.rule for fault in drawn[:6]}) == 6
    assert {str(fault) for fault in drawn} == {
        *(f"{op} vjp {kind}" for op in "ab" for kind in ("sign", "leaked")),
        *(f"{op} batch mixed" for op in "abc"),
        "c vjp sign",
    }


def test_what_is_drawn_of_a_rule_depends_on_no_other() -> None:
    both, one = (
        [str(fault) for fault in rules_of(*parts).drawn()] for parts in (("vjp", "jvp"), ("vjp",))
    )
    assert [fault for fault in both if " vjp " in fault] == one
    rules = [Rule(op, "vjp") for op in "abcdefgh"]
    few = Rules(rules[2:], [], seed=0)
    assert list(few.drawn()) == [
        fault for fault in Rules(rules, [], seed=0).drawn() if fault.rule in few.rules
    ]
    assert list(few.drawn()) != list(Rules(rules[2:], [], seed=1).drawn())


def test_a_rule_that_no_cell_runs_is_a_survivor_and_one_that_nothing_changes_is_none() -> None:
    rules = Rules(
        [Rule("a", "vjp"), Rule("b", "vjp")],
        [Reach("m.py::c[b-float64]", 1.0, {"b vjp": frozenset()})],
        seed=0,
    )
    fault = RuleFault(Rule("a", "vjp"), "sign")
    assert (
        list(rules.drawn()) == [fault]
        and rules.inert == [Rule("b", "vjp")]
        and rules.unrun == [Rule("a", "vjp")]
    )
    asked: list[set[Rule]] = []
    found = list(rules.findings([fault], Workers(1, "runtime", "cpu", Path("none")), asked.append))
    assert asked == [{fault.rule}]
    assert found == [Finding(fault, True, why="no cell that passes runs the rule")]


def test_what_nothing_defines_cannot_be_wrong(runtime: RuntimeTarget) -> None:
    harmless = {rule.name: set(KINDS[rule.part]) - set(rule.kinds) for rule in runtime.rules()}
    assert harmless["new_empty batch"] == ORDER | {"shared", "scaled"}
    assert (
        harmless["rand_like batch"]
        == harmless["bernoulli.p batch"]
        == harmless["rand batch"]
        == ORDER
    )
    for name in (
        "bernoulli batch",
        "bernoulli.Tensor batch",
        "normal.Tensor_float batch",
        "uniform vjp self",
        "zeros_like batch",
    ):
        assert not harmless[name], name


def test_a_harmless_kind_is_not_drawn() -> None:
    unrun, run = (
        Rule("a", "batch", harmless=("mixed",)),
        Rule("b", "batch", harmless=("rolled", "shared")),
    )
    rules = Rules(
        [unrun, run],
        [Reach("m.py::c[b-float64]", 1.0, {"b batch": frozenset(("rolled", "narrowed"))})],
        seed=0,
    )
    assert set(rules.drawn()) == {RuleFault(unrun, "shared"), RuleFault(run, "narrowed")}


def test_cheap_cells_of_every_check_come_first() -> None:
    assert rules_of("vjp").cells(RuleFault(Rule("a", "vjp"), "sign")) == [
        "m.py::quick[a-float64]",
        "m.py::slow[a-float64]",
    ]


class Answers(Workers):
    """Workers that need no processes: each cell costs half a second and runs two rules, but
    for one that fails."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def each(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Any]]:
        for job in jobs:
            self.asked.extend(job.arguments)
            yield (
                job,
                [
                    (key, 0.5, {"a vjp": frozenset(("sign",)), "b batch": frozenset()})
                    for key in job.arguments
                    if "fails" not in key
                ],
            )


def test_the_first_cells_are_of_the_widest_dtypes_and_no_programs(tmp_path: Path) -> None:
    (tmp_path / "test_first.py").write_text(
        """
from gen.checks import cases, family, op
FAMILY = family("demo")
@cases(op("torch.sin", smoke="bfloat16 float64 float32 complex64", full="complex128"), \
op("torch.gcd", smoke="int8 int64"))
def test_vmap(case):
    case.assert_same("vmap", against="loop")
@cases(op("torch.sin", smoke="float64"))
def test_trace(case):
    case.assert_same("trace", against="eager")
"""
    )
    keys = {key.split("::")[1] for key in telling(eligible(load_modules(tmp_path), "full"))}
    assert keys == {"vmap[torch.sin-complex64]", "vmap[torch.sin-float64]", "vmap[torch.gcd-int64]"}


def test_what_cells_run_is_kept_for_the_same_content(tmp_path: Path) -> None:
    keys = ["m.py::c[a-float64]", "m.py::fails[a-float64]"]
    workers = Answers()
    for digest in ("one", "one", "other"):
        known = Map(tmp_path / "reach.json", digest)
        known.learn(keys, workers, lambda done, count: None)
        assert known.reached() == [
            Reach(keys[0], 0.5, {"a vjp": frozenset(("sign",)), "b batch": frozenset()})
        ]
    assert workers.asked == keys * 2


def test_cells_of_the_same_op_may_run_a_rule_that_none_ran_yet() -> None:
    rules = Rules(
        [Rule("mm", "jvp"), Rule("mm", "vjp")],
        [Reach("m.py::c[torch.matmul-float64]", 1.0, {"mm vjp": frozenset()})],
        seed=0,
    )
    ops = ["torch.matmul", "torch.mm", "torch.sin"]
    assert rules.related(Rule("mm", "jvp"), ops) == {"torch.matmul"}
    assert rules.related(Rule("sin.out", "jvp"), ops) == {"torch.sin"}


def test_what_survives_the_first_cells_meets_further_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (
        Reach(f"m.py::{check}[a-float64]", 1.0, {"a vjp": frozenset(("sign",))})
        for check in ("blind", "seeing")
    )
    rules = Rules([Rule("a", "vjp")], [first], seed=0)
    fault = RuleFault(Rule("a", "vjp"), "sign")
    tried: list[str] = []

    def each(_: Any, jobs: Sequence[Job]) -> Iterator[tuple[Job, Tried]]:
        for job in jobs:
            tried.extend(job.arguments)
            caught = next((key for key in job.arguments if "seeing" in key), None)
            yield job, Tried(caught, "so", len(job.arguments))

    monkeypatch.setattr(Answers, "each", each)
    found = list(rules.findings([fault], Answers(), lambda _: rules.learn([first, second])))
    assert found == [Finding(fault, True, second.key, "so", 1)] and tried == [first.key, second.key]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "test_demo.py").write_text(MODULE)
    monkeypatch.setattr(audit, "CACHE", tmp_path / "cache")
    return tmp_path


def run(folder: Path, *args: str) -> int:
    parser = argparse.ArgumentParser()
    audit.add_arguments(parser)
    given = [
        "--modules",
        str(folder),
        "--survivors",
        str(folder / "survivors.yaml"),
        "--report",
        str(folder / "audit.json"),
    ]
    return audit.run(
        parser.parse_args([*given, "--rules", "--target", "runtime", "--workers", "1", *args])
    )


def test_the_matrix_catches_faults_in_records_and_survivors_need_reasons(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "survivors.yaml").write_text(
        "- {fault: '*', reason: most rules are not of these two ops}"
    )
    assert run(folder, "--all", "--at-least", "0") == 0
    rows = json.loads((folder / "audit.json").read_text())["faults"]
    fates = {
        (row["fault"]["rule"]["op"], row["fault"]["rule"]["part"], row["fault"]["kind"]): row
        for row in rows
    }
    assert all(fates["sin", "vjp", kind]["caught"] for kind in ("sign", "conjugated", "detached"))
    unrun = fates["cosh", "vjp", "sign"]
    assert (unrun["caught"], unrun["why"]) == (None, "no cell that passes runs the rule")
    assert "which cells run which rules: 4 of 4" in capsys.readouterr().out
    (folder / "survivors.yaml").unlink()
    assert run(folder, "--only", "sin vjp * [cd]*") == 0
    only = {
        row["fault"]["kind"]: row["caught"]
        for row in json.loads((folder / "audit.json").read_text())["faults"]
    }
    assert set(only) == {"conjugated", "detached"} and all(only.values())
    assert run(folder, "--faults", "5", "--at-least", "0") == 1
    said = capsys.readouterr().out
    assert "which cells" not in said, "what cells run was kept"
    assert "survivors have no reason" in said


def test_a_target_that_shows_no_rules_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(folder, "--target", "torch") == 2
    assert "gen.targets.faults.Auditable" in capsys.readouterr().err


def test_reasons_are_matched_by_rule_and_kind(tmp_path: Path) -> None:
    (tmp_path / "survivors.yaml").write_text(
        "- {fault: 'sin * detached', reason: no second derivative}"
    )
    survivors = Survivors.read(tmp_path / "survivors.yaml")
    assert (
        survivors.reason(Finding(RuleFault(Rule("sin", "vjp", "self"), "detached"), True))
        == "no second derivative"
    )
    assert survivors.reason(Finding(RuleFault(Rule("sin", "vjp", "self"), "sign"), True)) is None


class Deadly(Job):
    """Ends the process that receives it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


def test_a_job_that_kills_its_process_costs_no_other_job(folder: Path) -> None:
    cell = f"{folder / 'test_demo.py'}::vjp[torch.sin-float64]"
    jobs = [
        Job("try", (cell,), "sin vjp self", "sign"),
        Deadly("try", ()),
        Job("try", (cell,), "sin vjp self", "scaled"),
    ]
    fates = {job.kind: result for job, result in Workers(1, "runtime", "cpu", folder).each(jobs)}
    assert fates[""] is None
    assert fates["sign"].caught == fates["scaled"].caught == cell


def test_a_draw_of_cells_has_each_check_and_more_of_those_that_show_what_few_show() -> None:
    keys = [
        f"m.py::{check}[op{i}-float64]" for check in ("rare", "common", "other") for i in range(9)
    ]
    first = spread(keys, 6, seed=1)
    assert sorted(key.split("[")[0] for key in first) == sorted(
        ["m.py::rare", "m.py::common", "m.py::other"] * 2
    )
    assert first == spread(keys, 6, seed=1) != spread(keys, 6, seed=2)
    reached = [
        Reach(key, 1.0, {"a vjp": frozenset(("sign", "edge") if "rare" in key else ("sign",))})
        for key in first
    ]
    further = list(promising(keys, reached, 6, seed=1))
    assert not set(further) & set(first)
    counts = {check: sum(check in key for key in further) for check in ("rare", "common", "other")}
    assert counts["rare"] > counts["common"] == counts["other"] > 0
