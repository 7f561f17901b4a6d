"""What a program sees of a group of an optimizer is a dictionary, and which of its numbers are
read from cells."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from runtime.aot.python_state.values import MISSING
from runtime.jit.groups import Cell, Group, Kinds, Numbers

USES: dict[str, Callable[[Any], Any]] = {
    "an item": lambda g: g["decay"],
    "no item": lambda g: _error(lambda: g["none"]),
    "get": lambda g: (g.get("decay"), g.get("decay", 7), g.get("none"), g.get("none", 7)),
    "in": lambda g: ("decay" in g, "none" in g, "none" not in g),
    "setdefault of an item": lambda g: g.setdefault("decay", 7),
    "setdefault of none": lambda g: (g.setdefault("none", 7), g["none"]),
    "setdefault without a value": lambda g: (g.setdefault("none"), g["none"]),
    "update by a dictionary": lambda g: g.update({"decay": 7, "none": 8}),
    "update by pairs and names": lambda g: g.update([("decay", 7)], none=8),
    "assignment": lambda g: g.__setitem__("decay", 7),
    "assignment to none": lambda g: g.__setitem__("none", 7),
    "values": lambda g: list(g.values()),
    "items": lambda g: list(g.items()),
    "a name that is no text": lambda g: (3 in g, g.get(3), 3 not in g),
    "keys": lambda g: (list(g), list(g.keys()), len(g)),
    "a copy": lambda g: dict(g),
    "keywords": lambda g: (lambda **more: more)(**g),
    "its own item again": lambda g: (g.__setitem__("decay", g["decay"] * 2), g["decay"]),
}


def _error(f: Callable[[], Any]) -> str:
    try:
        f()
    except KeyError as e:
        return repr(e)
    return "none"


def _plain() -> dict[str, Any]:
    return {"params": [], "decay": 0.5, "nesterov": True, "betas": (0.9, 0.99), "count": 3}


def _group(group: dict[str, Any], numbers: Numbers | None = None) -> Group:
    return Group(group, numbers or Numbers(), lambda cell: f"{cell.name} {cell.at}")


@pytest.mark.parametrize("name", USES)
def test_a_group_is_used_as_a_dictionary_and_the_callers_stays_as_it_is(name: str) -> None:
    expected, caller = _plain(), _plain()
    seen = _group(caller)
    assert USES[name](seen) == USES[name](expected)
    assert dict(seen.items()) == expected and caller == _plain()


ASKED: dict[str, tuple[Callable[[Any], Any], set[str], set[str]]] = {
    "nothing": (lambda g: len(g), set(), set()),
    "an item": (lambda g: g["decay"], {"decay"}, set()),
    "a name that is none": (lambda g: "none" in g, {"none"}, set()),
    "a name": (lambda g: "decay" in g, set(), set()),
    "get of none": (lambda g: g.get("none", 3), {"none"}, set()),
    "an assignment": (lambda g: g.update(decay=1), set(), {"decay"}),
    "what is assigned": (lambda g: (g.update(decay=1), g["decay"]), set(), {"decay"}),
    "an item before its assignment": (
        lambda g: g.update(decay=g["decay"] + 1),
        {"decay"},
        {"decay"},
    ),
    "setdefault of an item": (lambda g: g.setdefault("decay", 1), {"decay"}, set()),
    "setdefault of none": (lambda g: g.setdefault("none", 1), {"none"}, {"none"}),
    "all values": (lambda g: g.values(), set(_plain()), set()),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_group_notes_what_is_read_and_assigned(name: str) -> None:
    use, asked, assigned = ASKED[name]
    group = _plain()
    seen = _group(group)
    use(seen)
    assert (seen.asked, seen.assigned) == (asked, assigned)
    assert seen.changes().keys() == assigned
    kept = dict(seen.constants())
    assert kept.keys() == (asked | group.keys()) - (assigned - asked)
    assert all(x is group.get(n, MISSING) for n, x in kept.items())


def test_an_item_that_the_group_lacks_is_kept_as_missing() -> None:
    seen = _group(_plain())
    assert seen.get("none") is None and dict(seen.constants())["none"] is MISSING


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda g: g.pop("decay"), "deletes an item"),
        (lambda g: g.__setitem__("params", []), "changes the parameters"),
        (lambda g: g["params"].append(1), "changes the parameters"),
    ],
)
def test_changes_that_a_call_would_not_make_are_refused(
    change: Callable[[Any], Any], says: str
) -> None:
    seen = _group(_plain())
    change(seen)
    with pytest.raises(RuntimeError, match=f"the program {says} of a group of an optimizer"):
        seen.changes()


def test_the_code_of_a_scheduler_is_refused_and_what_it_calls_is_not() -> None:
    seen = _group(_plain())

    def run(source: str) -> Any:
        return eval(
            compile(source, lr_scheduler.__file__, "eval"),
            {"group": seen, "read": lambda: seen["decay"]},
        )

    for source in ("group['decay']", "group.__setitem__('decay', 1)"):
        with pytest.raises(
            RuntimeError, match="the program steps or makes a learning-rate scheduler"
        ):
            run(source)
    assert run("read()") == 0.5 and seen.assigned == set()


def test_another_thread_has_the_callers_dictionary() -> None:
    group, found = _plain(), []
    seen = _group(group)
    seen["decay"] = 7

    def other() -> None:
        found.append(seen["decay"])
        seen["count"] = 4

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [0.5] and group["count"] == 4 and group["decay"] == 0.5
    assert seen["count"] == 3 and seen.assigned == {"decay"} and seen["decay"] == 7


def test_a_learning_rate_and_what_has_changed_are_read_from_cells() -> None:
    group, numbers = _plain() | {"lr": 0.1}, Numbers()
    first = _group(group, numbers)
    assert (first["lr"], first["decay"], first["betas"], first["count"]) == (
        "lr None",
        0.5,
        (0.9, 0.99),
        3,
    )
    assert [(c.name, c.at) for c in first.cells] == [("lr", None)] and "lr" not in dict(
        first.constants()
    )
    group |= {"decay": 0.25, "betas": (0.9, 0.5), "count": 4}
    second = _group(group, numbers)
    assert (second["lr"], second["decay"], second["betas"], second["count"]) == (
        "lr None",
        "decay None",
        ("betas 0", "betas 1"),
        4,
    )
    assert [(c.name, c.at) for c in second.cells] == [
        ("lr", None),
        ("decay", None),
        ("betas", 0),
        ("betas", 1),
    ]
    assert second.cells[0] is first.cells[0]
    assert dict(second.constants()).keys() == {"params", "nesterov", "count"}
    group["decay"] = 0.5  # a number that has changed once stays in its cell
    assert _group(group, numbers)["decay"] == "decay None"


def test_a_number_is_read_from_its_cell_once_and_what_is_assigned_is_none() -> None:
    seen = _group(_plain() | {"lr": 0.1})
    assert seen["lr"] == seen["lr"] == "lr None" and len(seen.cells) == 1
    seen["lr"] = 0.7
    assert seen["lr"] == 0.7
    assigned = _group(_plain() | {"lr": 0.1})
    assigned["lr"] = 0.7
    assert assigned["lr"] == 0.7 and assigned.cells == []


@pytest.mark.parametrize("rate", [1, True, "0.1", None, torch.tensor(0.1), (), (0.1, 1), [0.1]])
def test_what_is_no_float_stays_a_constant(rate: Any) -> None:
    seen = _group({"params": [], "lr": rate})
    assert seen["lr"] is rate and seen.cells == []


@pytest.mark.parametrize(("rate", "at"), [(0.1, None), ((0.1, 0.2), 0), ((0.1, 0.2), 1)])
def test_a_number_for_whose_value_the_program_asks_stays_a_constant(
    rate: Any, at: int | None
) -> None:
    group, numbers = {"params": [], "lr": rate}, Numbers()
    numbers.fixed.add((id(group), "lr", at))
    assert _group(group, numbers)["lr"] is rate


def test_numbers_of_one_name_in_two_groups_have_cells_of_their_own() -> None:
    numbers, groups = Numbers(), [{"params": [], "lr": x} for x in (0.1, 0.2)]
    cells = [numbers.opened(group, "lr")[0] for group in groups]
    assert [c.tensor.item() for c in cells] == [0.1, 0.2]
    assert all(
        c.tensor.dtype is torch.float64 and c.tensor.device.type == "cpu" and c.tensor.dim() == 0
        for c in cells
    )
    groups[1]["lr"] = 0.3
    for c in cells:
        c.fill()
    assert [c.tensor.item() for c in cells] == [0.1, 0.3]


def test_what_stays_a_constant_has_no_cells() -> None:
    numbers, group = Numbers(), _plain() | {"lr": 0.1}
    assert [
        numbers.opened(group, name) for name in ("count", "nesterov", "decay", "betas", "params")
    ] == [[]] * 5
    numbers.fixed.add((id(group), "lr", None))
    assert numbers.opened(group, "lr") == []


def test_cells_are_on_the_cpu_whatever_the_default_device_is() -> None:
    with torch.device("meta"):
        (cell,) = Numbers().opened({"params": [], "lr": 0.5}, "lr")
    assert cell.tensor.device.type == "cpu" and cell.tensor.item() == 0.5


class Referred(dict[str, Any]):
    """A dictionary that may have weak references."""


def test_a_group_lives_as_long_as_what_is_known_of_its_numbers() -> None:
    numbers, group = Numbers(), Referred(params=[], decay=0.5)
    reference = weakref.ref(group)
    assert numbers.opened(group, "decay") == []
    del group
    gc.collect()
    assert reference() is not None


def test_a_cell_of_a_tuple_has_its_position() -> None:
    group = {"betas": (0.9, 0.99)}
    cell = Cell(group, "betas", 1, torch.zeros((), dtype=torch.float64))
    cell.fill()
    assert cell.tensor.item() == 0.99


@pytest.mark.parametrize(
    ("now", "floats"),
    [
        ({"lr": 0.5, "betas": (0.1, 0.2)}, True),
        ({"lr": 1, "betas": (0.1, 0.2)}, False),
        ({"lr": torch.tensor(0.5), "betas": (0.1, 0.2)}, False),
        ({"lr": 0.5, "betas": (0.1, 1)}, False),
        ({"lr": 0.5, "betas": [0.1, 0.2]}, False),
        ({"betas": (0.1, 0.2)}, False),
    ],
)
def test_a_graph_depends_on_the_types_of_the_numbers_in_its_cells(
    now: dict[str, Any], floats: bool
) -> None:
    group: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.99)}
    tensor = torch.zeros((), dtype=torch.float64)
    kinds = Kinds([Cell(group, "lr", None, tensor), Cell(group, "betas", 0, tensor)])
    assert kinds.floats
    group.clear()
    group |= now
    assert kinds.floats is floats
