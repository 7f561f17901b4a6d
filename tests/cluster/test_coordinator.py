"""Every cell has exactly one outcome, whatever workers do. The pool is simulated here;
tests/cluster/test_dask.py has a true one."""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gen.checks import Cell
from gen.cluster.cell_groups import Selection, groups
from gen.cluster.coordinator import Coordinator, Lost
from gen.cluster.job import Answer, Group, Job, differences
from gen.cluster.output import Output
from gen.language.axes import USUAL
from gen.run.cell_durations import Durations
from gen.run.inventory import find
from gen.run.results import CellResult, ResultsError, line_of, read

HEADER = {
    "matrix": "m",
    "target": "torch",
    "device": "cpu",
    "tier": "full",
    "torch": "2.13.0",
    "narrowed": "no",
}


def made(count: int, size: int) -> list[Group]:
    cells = [
        ("test_vjp", Cell(f"op{number}", "float64", USUAL, "full", ())) for number in range(count)
    ]
    return [
        Group("test_a.py", tuple(cells[begin : begin + size])) for begin in range(0, count, size)
    ]


def answered(group: Group) -> Answer:
    cells = []
    for node, (_, cell) in zip(group.nodes(), group.cells, strict=True):
        cells.append(
            (
                "passed",
                line_of(
                    CellResult(
                        cell.id, "a", cell.op, cell.dtype, "vjp", {}, "passed", "", 0.01, 1, node
                    )
                ),
            )
        )
    return Answer(tuple(cells), frozenset(), {}, 0.01)


class Simulated:
    """A pool that answers in any order. A group with a deadly cell loses its worker, and so may
    groups that were out with it."""

    def __init__(self, deadly: set[str], random: random.Random, room: int = 6) -> None:
        self.most = 0
        self.ran: list[list[str]] = []
        self._deadly = deadly
        self._random = random
        self._room = room
        self._out: dict[int, Group] = {}

    def room(self) -> int:
        return self._random.randint(1, self._room)  # workers join and leave

    def submit(self, key: int, group: Group) -> None:
        self._out[key] = group
        self.most = max(self.most, len(self._out))

    def finished(self, seconds: float) -> Sequence[tuple[int, Answer | Lost]]:
        key = self._random.choice(list(self._out))
        group = self._out.pop(key)
        self.ran.append([cell.op for _, cell in group.cells])
        if not self._deadly & {cell.op for _, cell in group.cells}:
            return [(key, answered(group))]
        beside = [other for other in self._out if self._random.random() < 0.5]
        for other in beside:
            del self._out[other]
        return [(one, Lost("worker 1")) for one in (key, *beside)]


def outcomes(path: Path) -> dict[str, str]:
    cells = read(path).cells
    assert len({cell.node for cell in cells}) == len(cells), "a cell has two outcomes"
    return {cell.op: cell.outcome for cell in cells}


def silent(_: Coordinator) -> None: ...


@pytest.mark.parametrize("seed", range(5))
def test_cells_that_kill_their_worker_are_found_and_all_others_pass(
    tmp_path: Path, seed: int
) -> None:
    deadly = {"op3", "op4", "op77", "op250"}
    pool, output = (
        Simulated(deadly, random.Random(seed)),
        Output(tmp_path / "r", HEADER, resume=False),
    )
    Coordinator(iter(made(300, 40)), pool, output, silent).run()
    output.close(complete=True, whole=True)
    assert outcomes(tmp_path / "r") == {
        f"op{number}": "crashed" if f"op{number}" in deadly else "passed" for number in range(300)
    }
    assert next(cell.why for cell in read(tmp_path / "r").cells if cell.op == "op77") == (
        "its worker died, each of the 2 times that it ran alone: worker 1"
    )


def test_a_suspect_runs_with_nothing_beside_it_and_is_innocent_if_it_passes(tmp_path: Path) -> None:
    class Once(Simulated):
        """The first worker of every cell is preempted."""

        def finished(self, seconds: float) -> Sequence[tuple[int, Answer | Lost]]:
            key, group = self._out.popitem()
            ops = [cell.op for _, cell in group.cells]
            first = len(ops) > 1 or ops not in self.ran
            self.ran.append(ops)
            if not first:
                assert not self._out
            return [(key, Lost("preempted") if first else answered(group))]

    output = Output(tmp_path / "r", HEADER, resume=False)
    Coordinator(iter(made(20, 5)), Once(set(), random.Random(0)), output, silent).run()
    output.close(complete=True, whole=True)
    assert (
        set(outcomes(tmp_path / "r").values()) == {"passed"} and len(outcomes(tmp_path / "r")) == 20
    )


def test_groups_are_taken_only_when_there_is_room(tmp_path: Path) -> None:
    taken: deque[int] = deque()
    pool = Simulated(set(), random.Random(1), room=4)

    def lazily() -> Iterator[Group]:
        for number, group in enumerate(made(1000, 2)):
            taken.append(number)
            yield group

    ahead = []
    output = Output(tmp_path / "r", HEADER, resume=False)
    Coordinator(lazily(), pool, output, lambda c: ahead.append(len(taken) - len(pool.ran))).run()
    output.close(complete=True, whole=True)
    assert pool.most <= 4 and max(ahead) <= 4 and len(outcomes(tmp_path / "r")) == 1000


def test_a_run_that_stops_at_any_round_goes_on_without_loss(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    def after(rounds: int) -> Callable[[Coordinator], None]:
        def tick(_: Coordinator) -> None:
            nonlocal rounds
            rounds -= 1
            if rounds < 0:
                raise Stop

        return tick

    path = tmp_path / "r"
    generator = random.Random(2)
    for turn in range(30):
        output = Output(path, HEADER, resume=turn > 0)
        left = (
            Group(group.module, cells)
            for group in made(200, 10)
            if (
                cells := tuple(
                    one
                    for one, node in zip(group.cells, group.nodes(), strict=True)
                    if not output.has(node)
                )
            )
        )
        try:
            Coordinator(
                left, Simulated({"op9"}, generator), output, after(generator.randint(0, 9))
            ).run()
        except Stop:
            if turn % 2:
                output.close(complete=False, whole=True)
            else:  # killed in the middle of a line
                output.close(complete=False, whole=True)
                path.write_bytes(path.read_bytes()[: -generator.randint(2, 150)])
            continue
        output.close(complete=True, whole=True)
        break
    assert len(outcomes(path)) == 200
    assert (
        read(path).end["complete"]
        and sum(json.loads(line)["event"] == "end" for line in path.read_text().splitlines()) == 1
    )


def test_a_run_of_other_cells_does_not_go_on_in_the_file(tmp_path: Path) -> None:
    Output(tmp_path / "r", HEADER, resume=False).close(complete=False, whole=True)
    with pytest.raises(
        ResultsError, match=r"is of another run: tier full, now smoke; torch 2\.13\.0, now 2\.14\.0"
    ):
        Output(tmp_path / "r", {**HEADER, "tier": "smoke", "torch": "2.14.0"}, resume=True)


def test_a_run_that_notes_rules_does_not_go_on_in_a_file_of_one_that_did_not(
    tmp_path: Path,
) -> None:
    """The report would say of rules that earlier cells ran that no cell ran them."""
    Output(tmp_path / "r", HEADER, resume=False).close(complete=False, whole=True)
    with pytest.raises(ResultsError, match="is of another run: rules None, now noted"):
        Output(tmp_path / "r", {**HEADER, "rules": ["sin jvp"]}, resume=True)


def test_an_answer_about_other_cells_is_refused(tmp_path: Path) -> None:
    one, two = made(6, 3)
    output = Output(tmp_path / "r", HEADER, resume=False)
    with pytest.raises(ResultsError, match="2 outcomes came for 3 cells"):
        output.take(one.nodes(), answered(Group(two.module, two.cells[:2])))
    output.close(complete=False, whole=True)


def test_a_file_without_even_its_header_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "r").write_text('{"event":"ru')
    Output(tmp_path / "r", HEADER, resume=True).close(complete=False, whole=True)
    assert read(tmp_path / "r").header["tier"] == "full"


MODULE = """from gen.checks import cases, op
@cases(op("a", smoke="float64", full="float32"), op("b", full="float32"))
def test_vjp(case): ...
@cases(op("a", full="float64"), op("c", full="int64"))
def test_vmap(case): ...
"""


def of(folder: Path, seconds: float = 0.0, **selection: tuple[str, ...]) -> list[list[str]]:
    chosen = Selection("full", **selection)  # type: ignore[arg-type]  # tuples of globs
    return [
        group.nodes()
        for group in groups(
            find(["."], folder),
            chosen,
            Durations({"vjp": 1.0, "vmap": 2.0}),
            seconds,
            lambda node: False,
        )
    ]


def test_groups_take_about_the_seconds_asked_for_and_keep_the_cells_of_an_op_together(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_a.py").write_text(MODULE)
    assert of(tmp_path, 4.0) == [
        [
            "test_a.py::test_vjp[a-float32]",
            "test_a.py::test_vjp[a-float64]",
            "test_a.py::test_vmap[a-float64]",
        ],
        ["test_a.py::test_vjp[b-float32]", "test_a.py::test_vmap[c-int64]"],
    ]


def test_globs_narrow_a_run(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(MODULE)
    assert of(tmp_path, op=("[bc]",)) == [
        ["test_a.py::test_vjp[b-float32]"],
        ["test_a.py::test_vmap[c-int64]"],
    ]
    assert of(tmp_path, check=("vm*",), dtype=("float*",)) == [["test_a.py::test_vmap[a-float64]"]]
    assert Selection("full", op=("a", "b")).narrowed() == "--op a b"


def test_many_ids_are_told_apart_in_a_few_words() -> None:
    first, second = (
        Selection("full", ids=frozenset(f"test_a.py::test_vjp[{n}]" for n in range(count, 100)))
        for count in (0, 1)
    )
    assert (
        first.narrowed().startswith("ids 100 with digest ")
        and first.narrowed()[-12:] != second.narrowed()[-12:]
    )


def test_a_worker_with_other_files_or_versions_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(MODULE)
    own = {"code": "c", "torch": "2.13.0", "python": "3.11"}
    modules = find(["."], tmp_path)
    job = Job(
        "j",
        "torch",
        "cpu",
        "2026-01-01",
        (),
        tuple((m.name, m.digest) for m in modules),
        tuple(own.items()),
    )
    assert differences(job, modules, own) == []
    assert differences(job, modules, {**own, "torch": "2.12.0"}) == ["torch 2.12.0, not 2.13.0"]
    (tmp_path / "test_a.py").write_text(MODULE + "\n")
    assert differences(job, find(["."], tmp_path), own) == ["another matrix: test_a.py differs"]
    assert differences(job, [], own) == ["another matrix: test_a.py differs"]
