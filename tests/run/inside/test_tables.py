"""What the tables of generated modules say: the cells of each tier, and the entries of each cell.

Inside: gen.checks.tables.Cells and gen.checks.entries.Settings. The plug-in hands a cell to a check
with its axes and entries, but shows neither of a table as a whole. Conditions of entries name
versions of torch and CPUs that no one machine has.
"""

import datetime
from typing import Any

import pytest
import torch

from gen.checks import Cell, cases, known, op
from gen.checks.entries import Settings
from gen.checks.tables import Cells, cells_of
from gen.language.axes import Axes

TODAY = datetime.date(2026, 5, 1)
TORCH_ON_CPU = Settings("torch", "cpu", "2.13.0+cpu", TODAY, "AVX2")


def table(*rows: Any, axes: Any = None) -> Cells:
    @cases(*rows, axes=axes)
    def test_check(case: object) -> None: ...

    found = cells_of(test_check)
    assert found is not None
    return found


def test_a_tier_takes_the_cells_of_the_tiers_before_it() -> None:
    rows = table(op("torch.sin", smoke="float64", default="complex128", full="bfloat16 float32"))
    assert [cell.id for cell in rows.at("smoke")] == ["torch.sin-float64"]
    assert [cell.dtype for cell in rows.at("default")] == ["complex128", "float64"]
    assert [cell.dtype for cell in rows.at("full")] == [
        "bfloat16",
        "complex128",
        "float32",
        "float64",
    ]


def test_axis_values_stand_in_the_id_in_the_order_of_the_axes() -> None:
    rows = table(
        op("f", smoke="float64:static:min_cut"),
        axes={"shapes": ["static", "dynamic"], "partition": ["default", "min_cut"]},
    )
    assert list(rows.at("smoke")) == [
        Cell(
            "f", "float64", Axes.varying({"shapes": "static", "partition": "min_cut"}), "smoke", ()
        )
    ]
    assert [cell.id for cell in rows.at("smoke")] == ["f-float64-static-min_cut"]


def test_the_plain_form_of_a_cell_is_left_out_of_words_and_ids() -> None:
    rows = table(
        op("f", full="float64:static float64:static:jitted", known="a@jitted b@plain"),
        axes={"shapes": ["static", "dynamic"], "run": ["plain", "jitted"]},
    )
    plain, jitted = rows.at("full")
    assert (plain.id, plain.axes, plain.known) == (
        "f-float64-static",
        Axes.varying({"shapes": "static", "run": "plain"}),
        ("b",),
    )
    assert (jitted.id, jitted.axes, jitted.known) == (
        "f-float64-static-jitted",
        Axes.varying({"shapes": "static", "run": "jitted"}),
        ("a",),
    )


def test_a_known_entry_applies_where_every_word_of_its_narrowing_holds() -> None:
    rows = table(
        op(
            "f",
            full="float32:sum float64:sum float64:mean",
            known="a b@float64 c@mean b@float32:sum",
        ),
        axes={"loss_reduction": ["sum", "mean"]},
    )
    assert {cell.id: cell.known for cell in rows.at("full")} == {
        "f-float32-sum": ("a", "b"),
        "f-float64-sum": ("a", "b"),
        "f-float64-mean": ("a", "b", "c"),
    }


@pytest.mark.parametrize(
    ("conditions", "active"),
    [
        ({}, True),
        ({"target": "torch"}, True),
        ({"target": "runtime"}, False),
        ({"target": "t*"}, True),
        ({"device": "cpu"}, True),
        ({"device": "cuda"}, False),
        ({"torch": "<2.14"}, True),
        ({"torch": ">=2.14"}, False),
        ({"target": "torch", "torch": ">=2.14"}, False),
        ({"cpu": "AVX2"}, True),
        ({"cpu": "AVX512"}, False),
    ],
)
def test_an_entry_is_active_when_all_its_conditions_hold(
    conditions: dict[str, str], active: bool
) -> None:
    assert known("skip", reason="r", **conditions).active(TORCH_ON_CPU) is active  # type: ignore[arg-type]


def test_a_device_with_an_index_is_of_its_kind() -> None:
    assert known("skip", device="cuda", reason="r").active(
        Settings("torch", "cuda:1", "2.13.0", TODAY)
    )


def test_the_cpu_of_a_run_is_the_one_that_torch_names() -> None:
    assert Settings("torch", "cpu", "2.13.0", TODAY).cpu == torch.backends.cpu.get_cpu_capability()


def test_until_is_the_last_day_on_which_an_entry_holds() -> None:
    entry = known("skip", until="2026-05-01", reason="r")
    assert not entry.expired(TODAY)
    assert entry.expired(TODAY + datetime.timedelta(1))
