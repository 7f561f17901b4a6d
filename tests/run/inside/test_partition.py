"""Shards divide the cells completely, evenly, and the same everywhere.

Inside: gen.run.selection.shard.Partition, gen.run.cell_durations and gen.run.inventory. Hundreds of
shards of one matrix are divided here, by durations of which no run has a measure.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gen.checks import Cell
from gen.language.axes import USUAL
from gen.run.cell_durations import Durations, extended, fit, read_durations, write_durations
from gen.run.inventory import Module, count_line, find, matrix_fingerprint
from gen.run.selection.shard import Partition, parse_shard

OPS = [f"torch.op{number}" for number in range(40)]
CHECKS = ("test_vjp", "test_jvp", "test_vmap")
TABLES = {check: [Cell(op, "float64", USUAL, "full", ()) for op in OPS] for check in CHECKS}
MODULES = [
    Module(Path(f"/m/test_{name}.py"), f"test_{name}.py", {"smoke": 0, "full": 120}, name)
    for name in "abc"
]


def shards_of(count: int, durations: Durations | None = None) -> list[list[tuple[str, str, str]]]:
    """The cells of each shard, as module, check and op."""
    line = Partition(MODULES, durations or Durations(), "full", count)
    return [
        [
            (m.name, check, cell.op)
            for m in MODULES
            for check, cells in line.part(m.path, TABLES, number).items()
            for cell in cells
        ]
        for number in range(1, count + 1)
    ]


@pytest.mark.parametrize("count", [1, 2, 4, 7, 359, 1000])
def test_every_cell_is_in_exactly_one_shard(count: int) -> None:
    found = [cell for shard in shards_of(count) for cell in shard]
    assert len(found) == len(set(found)) == len(MODULES) * len(CHECKS) * len(OPS)


def test_without_durations_shards_are_balanced_by_count() -> None:
    assert {len(shard) for shard in shards_of(8)} == {45}


def test_durations_balance_what_counts_would_not() -> None:
    durations = Durations(
        {"vmap": 5.0, "vjp": 0.5, "jvp": 0.5}, {"torch.op7": 9.0}, {"a": 4.0, "b": 1.0, "c": 1.0}
    )
    line = Partition(MODULES, durations, "full", 4)
    scale = {m.path: durations.family(m.family) * 120 / (6.0 * (39 + 9)) for m in MODULES}
    loads = [
        sum(
            scale[m.path] * durations.cell(check.removeprefix("test_"), cell.op)
            for m in MODULES
            for check, cells in line.part(m.path, TABLES, number).items()
            for cell in cells
        )
        for number in range(1, 5)
    ]
    assert max(loads) - min(loads) <= 2 * 45 * max(scale.values())


def test_the_checks_of_one_op_stay_together_to_share_its_samples() -> None:
    parts = shards_of(4)
    apart = [
        (m.name, op)
        for m in MODULES
        for op in OPS
        if sum(any(c[0] == m.name and c[2] == op for c in part) for part in parts) > 1
    ]
    assert len(apart) <= 3


def test_a_shard_touches_only_the_modules_that_its_cells_are_in() -> None:
    line = Partition(MODULES, Durations(), "full", 6)
    for number, part in enumerate(shards_of(6), 1):
        assert {name for name, _, _ in part} <= {
            m.name for m in MODULES if line.touches(m.path, number)
        }
    assert sum(line.touches(m.path, number) for m in MODULES for number in range(1, 7)) <= 6 + len(
        MODULES
    )


def test_the_fingerprint_tells_another_matrix_division_or_selection() -> None:
    def fingerprint(
        modules: list[Module] = MODULES,
        durations: Durations | None = None,
        count: int = 3,
        selection: str = "",
    ) -> str:
        return Partition(modules, durations or Durations(), "full", count, selection).fingerprint

    edited = [*MODULES[:2], Module(MODULES[2].path, MODULES[2].name, MODULES[2].counts, "edited")]
    others = [
        fingerprint(edited),
        fingerprint(MODULES[:2]),
        fingerprint(durations=Durations({"vjp": 2.0})),
        fingerprint(count=4),
        fingerprint(selection="-k x"),
    ]
    assert fingerprint() == fingerprint() and len({fingerprint(), *others}) == 6
    assert matrix_fingerprint(edited) != matrix_fingerprint(MODULES)


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_is_one_number_of_another(text: str) -> None:
    with pytest.raises(ValueError, match="expected I/N"):
        parse_shard(text)


def test_fitted_durations_have_the_totals_of_each_check_and_op() -> None:
    cells = [
        ("f", check, op, (turn + 1) * (place + 1) / 100)
        for turn, check in enumerate("abc")
        for place, op in enumerate(OPS)
    ]
    found = fit([*cells, ("g", "a", "torch.op0", 0.5)])
    for check in "abc":
        expected = sum(taken for _, c, _, taken in cells if c == check) + (
            0.5 if check == "a" else 0.0
        )
        assert sum(found.cell(check, op) for op in OPS) + (
            found.cell("a", "torch.op0") if check == "a" else 0.0
        ) == pytest.approx(expected)
    assert found.family("g") == 0.5


def test_what_has_no_duration_counts_as_the_mean_of_what_has() -> None:
    durations = Durations(
        {"vjp": 1.0, "jvp": 3.0}, {"torch.sin": 1.0, "torch.cos": 2.0}, {"unary": 4.0}
    )
    assert (
        durations.cell("vmap", "torch.sin"),
        durations.cell("vjp", "torch.exp"),
        durations.family("fft"),
    ) == (2.0, 1.5, 4.0)


def test_a_slower_machine_adds_the_durations_that_are_lacking_and_changes_none() -> None:
    known = Durations({"vjp": 1.0, "jvp": 3.0}, {"sin": 1.0, "cos": 2.0}, {"unary": 4.0})
    ran = [
        ("unary", "vjp", "sin", 10.0),
        ("unary", "vjp", "cos", 20.0),
        ("unary", "hessian", "cos", 100.0),
        ("fft", "jvp", "fft", 60.0),
    ]
    assert extended(known, ran) == Durations(
        {"vjp": 1.0, "jvp": 3.0, "hessian": 5.0},
        {"sin": 1.0, "cos": 2.0, "fft": 2.0},
        {"unary": 4.0, "fft": 6.0},
    )
    with pytest.raises(ValueError, match="the speed of the machine cannot be told"):
        extended(known, ran[2:])


def test_durations_are_read_as_they_were_written_and_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    assert read_durations(path) == Durations()
    write_durations(path, Durations({"vjp": 0.12345}, {"torch.sin": 1.0}, {"unary": 0.01}))
    assert read_durations(path) == Durations({"vjp": 0.123}, {"torch.sin": 1.0}, {"unary": 0.01})
    wrong = [
        f'{{"checks": {{"a": {value}}}, "ops": {{}}, "families": {{}}}}'
        for value in ('"b"', "-1", "NaN", "Infinity", "null")
    ]
    for text in ("{", "[]", '{"checks": {}}', *wrong):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"durations\.json: not"):
            read_durations(path)


HEAD = "from gen.checks import cases, family, op\n"
BODY = HEAD + (
    '@cases(*(op(f"op{n}", smoke="float64", full="float32") for n in range(5)))\n'
    "def test_vjp(case): ...\n"
)


def test_the_counts_of_a_generated_module_are_read_without_its_import(tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "test_a.py").write_text(BODY)
    (folder / "test_d.py").write_text("def test_plain(): ...\n")
    (folder / "test_e.py").write_text(
        f"# a generated module\n{count_line({'smoke': 1, 'full': 2})}\nraise RuntimeError\n"
    )
    assert [m.counts for m in find(["test_d.py", "test_e.py", "test_a.py"], folder)] == [
        {"smoke": 5, "default": 5, "full": 10, "all": 10},
        {},
        {"smoke": 1, "full": 2},
    ]


def test_the_repository_s_modules_say_how_many_cells_they_have() -> None:
    root = Path(__file__).parents[3]
    (module,) = find(["generated_tests/test_attention.py"], root)
    text = re.sub(r"# Cells.*\n", "", module.path.read_text())
    assert module.counts["smoke"] <= module.counts["default"] < module.counts["full"]
    assert (
        sum(len(words.split()) for words in re.findall(r'(?:smoke|default|full)="([^"]*)"', text))
        == module.counts["full"]
    )
