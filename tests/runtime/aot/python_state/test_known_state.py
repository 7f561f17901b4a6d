"""What a program changes in Python's state: a run that does not count leaves nothing behind, and a
tensor is assigned by each call."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Callable
from types import CellType
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import jit
from runtime.aot import aot_function, make_fx, nop
from runtime.aot.python_state.known_state import Held, Place, PythonState, holds_values
from runtime.aot.python_state.reads import MISSING, WHOLE, Read, Slots

WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "jit": jit,
    "aot_function": lambda f: aot_function(f, nop),
}


def rounded(t: Any) -> list[float]:
    return [round(x, 5) for x in t.detach().flatten().tolist()]


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS.keys())
def test_each_call_leaves_the_training_flags_that_the_program_leaves(wrap: Any) -> None:
    def seen(wrapped: Callable[[Any], Any]) -> Any:
        m = nn.Dropout(0.5)

        def f(x: Any) -> Any:
            y = m(x)
            m.eval()
            z = m(x)
            m.train()
            return y, z

        g, found = wrapped(f), []
        for flag in (False, True, False, False, True):
            m.train(flag)
            torch.manual_seed(0)
            y, z = g(torch.ones(8))
            found.append((y.tolist(), z.tolist(), m.training))
        return found

    assert seen(wrap) == seen(lambda f: f)


class Counting:
    """A step that reads a gradient from before the call, so that it is captured twice, and a number
    that it changes."""

    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)
        self.model = nn.Sequential(self.layer, nn.Dropout(0.5))
        self.calls = 0
        self.seen: list[int] = []

    def step(self, x: Any) -> Any:
        self.calls += 1
        self.seen.append(self.calls)
        scale = 10.0 if self.calls == 1 else 1.0
        self.model(x).sum().mul(scale).backward()
        self.model.eval()
        value = self.model(x).sum()
        self.model.train()
        return value.detach()


def test_a_program_that_is_captured_again_finds_the_state_from_before_the_first_capture() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        x, owner = torch.ones(3, 2), Counting()
        owner.model.eval()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the number that is read and changed
            value = wrap(owner.step)(x)
        return (
            rounded(value),
            rounded(owner.layer.weight.grad),
            owner.calls,
            owner.seen,
            owner.model.training,
        )

    assert seen(jit) == seen(lambda f: f)


def test_a_capture_that_fails_leaves_python_as_it_was() -> None:
    owner, log = Counting(), []

    def f(x: Any) -> Any:
        owner.calls += 1
        owner.model.eval()
        owner.seen.append(3)
        owner.last = x * 2  # type: ignore[attr-defined]
        log.append(x)
        return x * 2 if x.sum() > 0 else x

    for wrap in WRAPPERS.values():
        with pytest.raises(RuntimeError, match="asks for the elements"):
            wrap(f)(torch.ones(2))
        assert (owner.calls, owner.model.training, owner.seen, log, hasattr(owner, "last")) == (
            0,
            True,
            [],
            [],
            False,
        )


class Running(nn.Module):
    """Assigns a buffer, an attribute that is None at first, and one that is not there at first."""

    mean: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("mean", torch.zeros(3))
        self.state: Any = None

    def forward(self, x: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        self.state = (x, x.sum()) if self.state is None else (self.state[0] * 0.5 + x, x.sum())
        self.last = self.layer(x)
        return (self.last - self.mean + self.state[0]).sum()


@pytest.mark.parametrize("whole", [True, False], ids=["the step", "the module"])
def test_jit_assigns_the_tensors_that_the_program_assigns(whole: bool) -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        torch.manual_seed(0)
        m = Running()
        optimizer = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
        f = m if whole else wrap(m)

        def step(x: Any) -> Any:
            optimizer.zero_grad()
            loss = f(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        run, found = wrap(step) if whole else step, []
        for i in range(4):
            loss = run(torch.randn(2, 3, generator=torch.Generator().manual_seed(i)))
            flags = m.last.requires_grad, m.mean.requires_grad, "mean" in m._buffers
            found.append(
                (
                    rounded(loss),
                    rounded(m.mean),
                    *map(rounded, m.state),
                    rounded(m.last),
                    rounded(m.layer.weight),
                    flags,
                )
            )
        return found

    assert seen(jit) == seen(lambda f: f)


def test_jit_assigns_a_variable_of_a_function_around_and_an_item() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        total, table = torch.zeros(2), {"last": torch.zeros(2)}

        def f(x: Any) -> Any:
            nonlocal total
            total = total + x
            table["last"] = total * table["last"].cos()
            return total * 2

        g = wrap(f)
        return [
            (g(torch.tensor([1.0, i])).tolist(), total.tolist(), rounded(table["last"]))
            for i in range(4)
        ]

    assert seen(jit) == seen(lambda f: f)


def test_a_tensor_that_a_program_hands_to_its_next_call_has_its_history() -> None:
    def gradient(wrap: Callable[[Any], Any], wrapped: Callable[[Any], Any]) -> Any:
        w = wrapped(torch.tensor([0.5, 0.7]))

        class Cell:
            h: Any = torch.ones(2)

        def f(x: Any) -> Any:
            Cell.state.h = (Cell.state.h * w + x).sin()  # type: ignore[attr-defined]
            return Cell.state.h  # type: ignore[attr-defined]

        Cell.state = Cell()  # type: ignore[attr-defined]
        Cell.state.h = torch.ones(2)  # type: ignore[attr-defined]
        g = wrap(f)
        for i in range(3):
            y = g(torch.tensor([1.0, i]))
        y.sum().backward()
        return rounded(w.grad)

    expected = gradient(lambda f: f, lambda t: t.requires_grad_())
    assert gradient(jit, lambda t: runtime.wrap(t, requires_grad=True)) == expected


def test_aot_function_refuses_a_tensor_that_the_program_reads_and_assigns() -> None:
    m = Running()
    with pytest.raises(
        RuntimeError, match=r"reads and assigns 'mean' of a Running.*copy_\(\).*runtime\.jit"
    ):
        aot_function(m, nop)(torch.ones(2, 3))
    assert m.mean.tolist() == [0.0] * 3 and m.state is None and not hasattr(m, "last")


def test_aot_function_leaves_what_the_program_assigns_and_does_not_read_as_it_was() -> None:
    class Holder(nn.Module):
        last: Any = None

        def forward(self, x: Any) -> Any:
            y = x * 2
            self.note(y)
            return y

        def note(self, y: Any) -> None:
            self.last = y

    m = Holder()
    with pytest.warns(UserWarning, match="assigns a tensor that it computes to 'last' of a Holder"):
        assert aot_function(m, nop)(torch.ones(2)).tolist() == [2.0, 2.0]
    assert m.last is None


def test_a_tensor_that_is_added_to_a_list_from_outside_is_refused() -> None:
    losses: list[Any] = []

    def f(x: Any) -> Any:
        losses.append(x.sum())
        return x * 2

    for wrap in WRAPPERS.values():
        with pytest.raises(
            RuntimeError, match="adds a tensor that it computes to a list from outside"
        ):
            wrap(f)(torch.ones(2))
        assert losses == []


def test_jit_assigns_a_number_that_the_program_adds_to() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        totals = {"first": 0.0}

        def f(x: Any) -> Any:
            totals["first"] += x.sum().item()
            return x * 2

        g = wrap(f)
        return [
            (g(torch.ones(2) * i).tolist(), totals["first"], type(totals["first"]))
            for i in range(4)
        ]

    assert seen(jit) == seen(lambda f: f)


class Slotted:
    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 1


def a_cell() -> CellType:
    value = 1
    return (lambda: value).__closure__[0]  # type: ignore[index]


PLACES: dict[str, Callable[[], Place]] = {
    "an item": lambda: Place({"held": 1}, "held", ""),
    "a slot": lambda: Place(Slots(Slotted()), "held", ""),
    "a variable of a function around": lambda: Place(a_cell(), None, ""),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_is_at_a_place_can_be_replaced_and_removed(name: str) -> None:
    place = PLACES[name]()
    assert place.current() == 1
    for value in (2, None, MISSING, 3):
        place.put(value)
        assert place.current() is value
    assert place.key == (id(place.owner), place.name)


def test_an_item_that_is_not_there_may_be_removed() -> None:
    place = Place({}, "held", "")
    place.put(MISSING)
    assert place.owner == {}


def test_values_are_at_the_first_places_while_they_are_held() -> None:
    places = [Place({"held": i}, "held", "") for i in range(3)]
    with Held(places, [7, MISSING]) as held:
        assert [p.current() for p in places] == [7, MISSING, 2]
        places[1].put(8)
        assert held.left == []
    assert held.left == [7, 8] and [p.current() for p in places] == [0, 1, 2]


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))
        self.weight = nn.Parameter(torch.ones(1))
        self.items: list[Any] = [1, 2]
        self.table: dict[str, Any] = {"a": 1, "deeper": []}
        self.queue, self.names, self.long = deque([1], 3), {1, 2}, [0] * 1024
        self.longer = [0] * 1025
        self.pair, self.number = ([1], 2), 1


def change(m: Any) -> None:
    m.mean, m.more = torch.ones(1), 1
    m.register_buffer("other", torch.zeros(1))
    del m.weight
    m.items[0] = 3
    m.table.pop("a")
    m.table["b"] = 1
    m.queue.append(2)
    m.names.remove(1)
    m.long.clear()
    m.eval()


def test_what_a_program_changes_in_its_modules_is_put_back() -> None:
    m = Holder()
    mean, weight, items, table, queue, names = m.mean, m.weight, m.items, m.table, m.queue, m.names
    state = PythonState([], [m])
    change(m)
    m.items = []
    assert state.flags == [(m, False)]
    state.restore()
    assert (
        m.mean is mean
        and m.weight is weight
        and list(m._buffers) == ["mean"]
        and not hasattr(m, "more")
    )
    assert (m.items, m.table, m.names, list(m.queue), m.queue.maxlen) == (
        [1, 2],
        {"a": 1, "deeper": []},
        {1, 2},
        [1],
        3,
    )
    assert m.items is items and m.table is table and m.queue is queue and m.names is names
    assert m.training and state.flags == [] and m.long == [0] * 1024


def test_long_containers_and_what_is_deeper_stay_changed() -> None:
    m = Holder()
    state = PythonState([], [m])
    m.longer.clear()
    m.number = 2
    m.table["deeper"].append(1)
    m.pair[0].append(2)
    state.restore()
    assert m.number == 1 and m.longer == [] and m.table["deeper"] == [1] and m.pair == ([1, 2], 2)


def test_equal_objects_in_place_of_others_are_put_back() -> None:
    first, second = [1.0], [1.0]
    owner = {"held": first}
    state = PythonState([Read(owner, "held", first)], [])
    owner["held"] = second
    first.append(2.0)
    state.restore()
    assert owner["held"] is first and first == [1.0]


def test_what_a_program_reads_and_changes_is_put_back() -> None:
    cell, slotted, names, items = a_cell(), Slotted(), {"held": 1, "__builtins__": 1}, [1, 2]
    gone: list[Any] = [1]
    reads = [
        Read(cell, None, 1),
        Read(Slots(slotted), "held", 1),
        Read(names, "held", 1),
        Read(names, "absent", MISSING),
        Read(items, -1, 2),
        Read(gone, 0, 1),
        Read(items, WHOLE, [1, 2]),
    ]
    state = PythonState(reads, [])
    cell.cell_contents = slotted.held = names["held"] = names["absent"] = names["unread"] = items[
        1
    ] = 5
    gone.clear()
    state.restore()
    assert (cell.cell_contents, slotted.held, items, gone) == (1, 1, [1, 2], [])
    # the names of a module, of which only what is read is put back
    assert names == {"held": 1, "__builtins__": 1, "unread": 5}


def test_what_is_forgotten_stays_changed() -> None:
    names, others = {"held": [1], "number": 1}, {"held": 1}
    state = PythonState(
        [Read(names, "number", 1), Read(names, "held", names["held"]), Read(others, "held", 1)], []
    )
    state.forget(names)
    names["number"] = others["held"] = 2
    names["held"].append(2)  # type: ignore[attr-defined]
    state.restore()
    assert names == {"held": [1, 2], "number": 2} and others == {"held": 1}


def traced(use: Callable[[Any], None]) -> None:
    """Call ``use`` with a value of a trace."""

    def f(x: Any) -> Any:
        use(x)
        return x * 1

    make_fx(f)(torch.ones(2))


def test_a_value_of_a_trace_is_known_wherever_it_is_held() -> None:
    plain, parameter = torch.ones(1), nn.Parameter(torch.ones(1))

    def use(x: Any) -> None:
        deep = {"a": ([x],)}
        for held in (x, [x], (1, x), {x}, deque([x]), {"a": x}, deep, [[[x]]], [1] * 1023 + [x]):
            assert holds_values(held)
        other: Any
        for other in (
            plain,
            parameter,
            3,
            "text",
            None,
            [],
            {},
            [deep],
            [[[[x]]]],
            [1] * 1024 + [x],
        ):
            assert not holds_values(other)
        assert not holds_values({**dict.fromkeys(range(1024)), "a": x}) and holds_values(
            {**dict.fromkeys(range(1023)), "a": x}
        )

    traced(use)
    assert not holds_values(runtime.wrap(torch.ones(1)))


def test_a_symbol_is_a_value_of_a_trace() -> None:
    found: list[bool] = []

    def f(x: Any) -> Any:
        found.append(holds_values(x.shape[0]) and holds_values({"size": x.shape[0]}))
        return x * 1

    make_fx(f, tracing_mode="symbolic")(torch.ones(3))
    assert found == [True]


def test_places_to_which_a_program_assigns_a_value_of_a_trace_are_named() -> None:
    m, cell, names = Holder(), a_cell(), {"held": 1, "__builtins__": 1}
    state = PythonState(
        [
            Read(cell, None, 1),
            Read(names, "held", 1),
            Read(names, "kept", MISSING),
            Read([1], WHOLE, [1]),
        ],
        [m],
    )

    def use(x: Any) -> None:
        m.mean, m.table["b"], m.last, m.number = x, [x], x, 3
        cell.cell_contents = names["held"] = x
        assert [(place.what, place.name) for place in state.assigned()] == [
            ("'mean' of a Holder", "mean"),
            ("'last' of a Holder", "last"),
            ("'b' of 'table' of a Holder", "b"),
            ("a variable of a function around", None),
            ("the 'held' of a dict", "held"),
        ]
        with pytest.raises(
            RuntimeError,
            match=r"reads and assigns 'mean' of a Holder, .* the 'held' of a dict, and",
        ):
            state.leave_assigned()

    traced(use)
