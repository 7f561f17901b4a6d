"""The cells of a matrix follow from the facts of the op, the selected dtypes and checks, the
entries, and the tier."""

from __future__ import annotations

import pytest

from tests.gen.conftest import Expand, Generate, Listed


def test_forward_runs_in_every_dtype_that_op_and_check_share(plan: Listed) -> None:
    assert plan.words("forward", "torch.bitwise_not") == {"bool", "int64"}
    assert plan.words("forward", "torch.sin") == {
        "float32",
        "float64",
        "complex64",
        "complex128",
        "bool",
        "int64",
    }


def test_derivatives_run_only_where_the_op_has_them(plan: Listed) -> None:
    assert plan.words("vjp", "torch.sin") == {"float32", "float64", "complex64", "complex128"}
    assert plan.words("vjp", "torch.bitwise_not") == set()


def test_a_family_narrows_dtypes_and_checks(plan: Listed) -> None:
    assert plan.words("forward", "torch.linalg.det") == {
        "float32",
        "float64",
        "complex64",
        "complex128",
    }
    assert {cell.split("[")[0] for cell in plan.cells() if "rms_norm" in cell} == {
        "forward",
        "vjp",
        "errors",
    }


def test_form_and_reference_imply_what_the_op_must_offer(plan: Listed) -> None:
    assert plan.words("inplace", "torch.linalg.det") == set()
    assert plan.words("inplace", "torch.mul")
    assert plan.words("errors", "torch.sin") == set()
    assert plan.words("errors", "torch.mul") == {"float64"}
    assert plan.words("errors", "examples.ops.rms_norm") == {"float64"}


def test_axes_multiply_and_exclude_removes(plan: Listed) -> None:
    assert len(plan.words("joint_export", "torch.mul")) == 2 * 2 * 2
    assert plan.words("joint_export", "torch.sin") == {
        "float32-static-default", "float32-dynamic-default", "float64-static-default",
        "float64-dynamic-default",
    }  # fmt: skip


def test_smaller_tiers_are_part_of_larger_ones(plan: Listed) -> None:
    smoke, default, full = (plan.cells(tier) for tier in ("smoke", "default", "full"))
    assert smoke < default < full
    assert full == plan.cells()
    assert all("torch.sin" in cell or "torch.mul" in cell for cell in smoke)


def test_every_tier_that_has_no_limit_is_covered_completely(plan: Listed) -> None:
    assert len(plan.proof) == 3 and all(tier["complete"] for tier in plan.proof.values())


GLOBS = '{ops: ["torch.mu?", "torch.si?", "torch.linalg.[de][ei][tg]"]}'
MATRIX = """\
    version: 1
    checks:
      vjp: {{claim: It holds., pipeline: vjp, against: upstream}}
      forward: {{claim: It holds., against: eager}}
    families:
      {{rest: {{ops: ["torch.mu?", "torch.si?", "torch.linalg.[de][ei][tg]"]}}, \
first: {{ops: [torch.sin]}}}}
    {more}
    """


def test_a_name_claims_its_op_before_any_glob(expanded: Expand) -> None:
    plan = expanded(MATRIX.format(more=""))
    assert plan.families["torch.sin"] == "first"
    assert {*plan.families.values()} == {"rest", "first"}


def test_kinds_narrow_a_glob(expanded: Expand) -> None:
    plan = expanded("""\
        version: 1
        checks: {forward: {claim: It holds., against: eager}}
        families: {some: {ops: ["torch.s*n"], kinds: [unary], not_ops: [torch.s*g*n]}}
        """)
    assert [*plan.families] == ["torch.sin"]


def test_a_limit_draws_by_seed_and_keeps_what_smaller_tiers_need(expanded: Expand) -> None:
    def tier(seed: int) -> tuple[set[str], set[str]]:
        more = f"tiers: {{full: {{limit: [{{checks: vjp, cells: 12, seed: {seed}}}]}}}}"
        plan = expanded(MATRIX.format(more=more))
        return plan.cells("default"), plan.cells("full")

    default, full = tier(1)
    assert sum(cell.startswith("vjp") for cell in full) == 12
    assert default <= full
    assert tier(1)[1] == full
    assert tier(2)[1] != full


@pytest.mark.parametrize(
    "reduction", ["smoke", "pairwise", "{t: 3}", "{sample: 9, seed: 4}", "full"]
)
def test_every_reduction_stays_within_the_valid_cells(expanded: Expand, reduction: str) -> None:
    plan = expanded(MATRIX.format(more=f"tiers: {{smoke: {{reduce: {reduction}}}}}"))
    found = plan.cells("smoke")
    assert found
    assert found <= plan.cells()
    if "sample" in reduction:
        assert len(found) == 9


SPREAD = """\
    version: 1
    checks:
      vjp: {claim: It holds., pipeline: vjp, against: upstream, dtypes: [float32, float64]}
      joint: {claim: It holds., pipeline: aot.joint, against: eager, dtypes: float64, over: \
{shapes: [static, dynamic]}}
      own: {claim: It holds., pipeline: vjp, against: upstream, dtypes: float64, over: {run: \
[jitted]}}
      gradcheck: {claim: It holds., pipeline: vjp, against: numeric, dtypes: float64}
    over: {run: {values: [plain, jitted], not_checks: [gradcheck]}}
    families: {some: {ops: [torch.sin]}}
    """


def test_an_axis_of_many_checks_comes_last_and_its_plain_value_is_left_out(
    expanded: Expand,
) -> None:
    assert expanded(SPREAD).cells() == {
        *(
            f"vjp[torch.sin-{dtype}{form}]"
            for dtype in ("float32", "float64")
            for form in ("", "-jitted")
        ),
        *(
            f"joint[torch.sin-float64-{shapes}{form}]"
            for shapes in ("static", "dynamic")
            for form in ("", "-jitted")
        ),
        "own[torch.sin-float64-jitted]",
        "gradcheck[torch.sin-float64]",
    }


def jitted(chosen: set[str]) -> set[str]:
    return {cell for cell in chosen if cell.endswith("-jitted]")}


TIERS = (
    "tiers: {{smoke: {{reduce: smoke, not_axes: {{run: jitted}}}}, "
    "{name}: {{reduce: {reduce}, not_axes: {{run: jitted}}, also: [{part}]}}}}"
)


def with_part(name: str, part: str, reduce: str = "full") -> str:
    return SPREAD + TIERS.format(name=name, part=part, reduce=reduce) + "\n    "


def test_a_part_of_a_tier_chooses_by_its_own_reduction(expanded: Expand) -> None:
    plan = expanded(
        with_part(
            "default",
            "{axes: {run: jitted}, reduce: {t: 1}, checks: [vjp, joint], dtypes: float64}",
        )
    )
    chosen = plan.cells("default")
    assert chosen - jitted(chosen) == plan.cells() - jitted(plan.cells())
    assert "vjp[torch.sin-float64-jitted]" in chosen
    assert not any("float32" in cell or "own" in cell for cell in jitted(chosen))


def test_a_limit_of_a_part_counts_the_cells_of_the_part(expanded: Expand) -> None:
    plan = expanded(
        with_part(
            "default", "{axes: {run: jitted}, reduce: full, limit: [{checks: joint, cells: 1}]}"
        )
    )
    joint = {cell for cell in plan.cells("default") if cell.startswith("joint")}
    assert joint - jitted(joint) == {
        "joint[torch.sin-float64-static]",
        "joint[torch.sin-float64-dynamic]",
    }
    assert len(jitted(joint)) == 1


def test_the_plain_form_is_no_value_to_cover(expanded: Expand) -> None:
    spread = expanded(with_part("default", "{axes: {run: jitted}, checks: vjp}", "pairwise"))
    without = expanded(
        SPREAD.replace("values: [plain, jitted], not_checks: [gradcheck]", "values: [plain]")
    )
    chosen = spread.cells("default")
    assert chosen - jitted(chosen) == {
        cell for cell in without.cells("default") if "jitted" not in cell
    }


def test_an_entry_is_named_after_its_reason_and_keeps_its_name(plan: Listed) -> None:
    assert "eigenvectors_no_gauge_invariant_derivative" in plan.names("torch.linalg.eig")
    assert plan.names("torch.bitwise_not") == ["all_true"]


SLOW = "{op: torch.sin, reason: The op is slow}"
HUGE = "{op: torch.mul, reason: The op is huge}"
SLOW_TOO = "{op: torch.mul, reason: The op is slow}"


def test_of_entries_with_one_reason_the_second_is_numbered(expanded: Expand) -> None:
    plan = expanded(MATRIX.format(more=f"skip: [{SLOW}, {SLOW_TOO}]"))
    assert (plan.names("torch.sin"), plan.names("torch.mul")) == (["op_slow"], ["op_slow_2"])


def test_entries_that_are_added_behind_change_no_name(expanded: Expand) -> None:
    before = expanded(MATRIX.format(more=f"skip: [{SLOW}]")).names("torch.sin")
    more = (
        f"exclude: [{HUGE.replace('mul', 'linalg.det')}]\n"
        f"    skip: [{SLOW}, {HUGE.replace('mul', 'sin')}, {SLOW_TOO}]"
    )
    after = expanded(MATRIX.format(more=more))
    assert after.names("torch.sin")[:1] == before == ["op_slow"]
    names = [*after.names("torch.sin"), *after.names("torch.mul")]
    assert len(names) == len({*names, "op_huge"}) == 3


def test_an_entry_keeps_the_name_that_it_is_given(expanded: Expand) -> None:
    plan = expanded(
        MATRIX.format(more=f"skip: [{SLOW}, {SLOW_TOO.replace('op:', 'name: op_slow, op:')}]")
    )
    assert (plan.names("torch.sin"), plan.names("torch.mul")) == (["op_slow_2"], ["op_slow"])


def test_the_order_of_families_does_not_change_the_cells(expanded: Expand) -> None:
    text = MATRIX.format(more="")
    turned = text.replace(
        f"rest: {GLOBS}, first: {{ops: [torch.sin]}}",
        f"first: {{ops: [torch.sin]}}, rest: {GLOBS}",
    )
    assert turned != text
    first, second = expanded(text), expanded(turned)
    for tier in ("smoke", "default", "full"):
        assert first.cells(tier) == second.cells(tier)


@pytest.mark.parametrize(
    ("stated", "kept"),
    [
        ("", {"vjp", "jvp", "twice", "again"}),
        ("forward_ad: false, ", {"vjp", "twice", "again"}),
        ("gradgrad: false, ", {"vjp", "jvp", "again"}),
        ("deterministic: false, ", {"vjp", "jvp", "twice"}),
        ("differentiable: false, ", {"again"}),
    ],
)
def test_an_own_op_states_its_facts_one_by_one(
    expanded: Expand, generated: Generate, stated: str, kept: set[str]
) -> None:
    text = f"""\
        version: 1
        checks:
          vjp: {{claim: c., pipeline: vjp, against: upstream, requires: [autograd]}}
          jvp: {{claim: c., pipeline: jvp, against: upstream, requires: [autograd, forward_ad]}}
          twice: {{claim: c., pipeline: vjp . vjp, against: upstream, requires: [autograd, \
gradgrad]}}
          again: {{claim: c., against: again, requires: [deterministic]}}
        families:
          own: {{dtypes: [float64], ops: [{{op: own.f, call: 'torch:sin', {stated}samples: \
[{{args: [1.0]}}]}}]}}
        """
    assert {case["check"] for case in expanded(text).cases} == kept
    (module,) = generated(text).values()
    facts = ("forward_ad", "gradgrad", "deterministic")
    assert not [fact for fact in facts if fact in module]


MOVED = """\
    version: 1
    checks:
      vjp: {{claim: It holds., pipeline: vjp, against: upstream}}
      forward: {{claim: It holds., against: eager}}
    tiers: {{smoke: {{reduce: {{sample: 2, seed: 1}}}}}}
    families:
      mine:
        ops: [{{op: {name}, call: "operator:neg", samples: [{{args: [{{shape: [3]}}]}}]}}]
    {more}
    """


def cells_after_a_move(expanded: Expand, name: str, more: str = "") -> set[str]:
    """The cells of the drawn tier, without the name of their op."""
    plan = expanded(MOVED.format(name=name, more=more))
    return {cell.replace(name, "op") for cell in plan.cells("smoke")}


def test_a_row_that_moves_keeps_the_cells_drawn_for_its_former_name(expanded: Expand) -> None:
    before = {name: cells_after_a_move(expanded, name) for name in ("old.neg", "old.part.neg")}
    moved = cells_after_a_move(expanded, "new.neg", "former_names: {new.: old.}")
    assert moved == before["old.neg"]
    former = "former_names: {new.: other., new.part.: old.part.}"  # the longest one counts
    assert cells_after_a_move(expanded, "new.part.neg", former) == before["old.part.neg"]
    names = [f"name{i}.neg" for i in range(8)]
    assert len({frozenset(cells_after_a_move(expanded, name)) for name in names}) > 1
