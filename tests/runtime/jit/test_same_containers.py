"""Containers that a jitted program returns, leaves and finds: whether they are the caller's, in
which order their items are, and that some may be gone."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit

X = torch.arange(3.0)


@dataclass
class Pair:
    first: Any
    second: Any


HELD: dict[str, Callable[[], Any]] = {
    "a list": lambda: [1],
    "a dictionary": lambda: {"a": 1},
    "an ordered dictionary": lambda: OrderedDict(a=1),
    "a dictionary with a factory": lambda: defaultdict(list, a=1),
    "a deque": lambda: deque([1]),
    "an object of a data class": lambda: Pair(1, 2),
    "a list of tensors": lambda: [torch.ones(3)],
}


@pytest.mark.parametrize("name", HELD)
def test_what_was_there_is_returned_and_not_a_copy(name: str) -> None:
    t = SimpleNamespace(held=HELD[name]())
    f = jit(lambda x: (x * 2, t.held, (t.held, [t.held])))
    for _ in range(3):
        y, held, (again, (inside,)) = f(X)
        assert torch.equal(y, X * 2)
        assert held is t.held and again is t.held and inside is t.held


@pytest.mark.parametrize("name", HELD)
def test_what_was_there_is_left_in_a_new_container_and_not_a_copy(name: str) -> None:
    t = SimpleNamespace(held=HELD[name](), made=None)

    @jit
    def f(x: Tensor) -> None:
        t.made = [x * 2, t.held]

    for _ in range(3):
        f(X)
        assert torch.equal(t.made[0], X * 2) and t.made[1] is t.held


@pytest.mark.parametrize("name", HELD)
def test_what_was_there_is_in_a_new_object_of_a_data_class_and_not_a_copy(name: str) -> None:
    t = SimpleNamespace(held=HELD[name](), made=None)

    @jit
    def f(x: Tensor, given: Any) -> Any:
        t.made = Pair(x * 2, Pair(t.held, given))
        return Pair([t.held], given), {"given": Pair(given, x * 3)}

    for _ in range(3):
        given = HELD[name]()
        pair, more = f(X, given)
        assert t.made.second.first is t.held and t.made.second.second is given
        assert pair.first[0] is t.held and pair.second is given and more["given"].first is given
        assert torch.equal(t.made.first, X * 2) and torch.equal(more["given"].second, X * 3)


def test_an_object_of_a_data_class_in_several_places_is_one_object() -> None:
    t = SimpleNamespace(whole=None)

    @jit
    def f(x: Tensor, given: list[Any]) -> Any:
        pair = Pair(x * 2, [x])
        t.whole = {"pair": pair}
        given.append(pair)
        return pair, [pair, pair.second]

    for _ in range(3):
        given: list[Any] = []
        pair, (again, second) = f(X, given)
        assert pair is again is given[0] and pair.second is second
        assert t.whole["pair"] is pair and torch.equal(pair.first, X * 2)


def test_a_list_in_the_state_and_in_the_result_is_one_list() -> None:
    t = SimpleNamespace(whole=None)

    @jit
    def f(x: Tensor) -> list[Tensor]:
        found = [x * 2]
        t.whole = {"found": found, "n": 3}
        return found

    for _ in range(3):
        found = f(X)
        assert torch.equal(found[0], X * 2)
        assert t.whole["found"] is found


def test_an_object_of_a_data_class_that_moves_stays_the_object() -> None:
    held = [1]
    t = SimpleNamespace(now=Pair(X, held), before=None, also=None)

    @jit
    def f(x: Tensor) -> None:
        t.before = t.now
        t.now = t.also = Pair(t.before.first + x, held)

    for k in range(4):
        now = t.now
        f(X)
        assert t.before is now and t.also is t.now and torch.equal(t.now.first, X * (k + 2))
        assert t.now.second is held and t.before.second is held


def test_a_list_that_moves_from_one_place_to_another_stays_the_list() -> None:
    t = SimpleNamespace(now=[X], before=None)

    @jit
    def f(x: Tensor) -> None:
        t.before = t.now
        t.now = [t.before[0] + x]

    for k in range(4):
        now = t.now
        f(X)
        assert t.before is now and torch.equal(t.now[0], X * (k + 2))


def test_a_list_that_a_program_changes_is_returned_with_the_change() -> None:
    t = SimpleNamespace(held=[X, X])

    @jit
    def f(x: Tensor) -> Any:
        t.held[0] = x * 2
        return t.held

    for k in range(3):
        found = f(X + k)
        assert found is t.held and torch.equal(found[0], (X + k) * 2)


def test_new_keys_and_attributes_come_in_the_order_of_the_program() -> None:
    t = SimpleNamespace(items={})

    @jit
    def f(x: Tensor) -> None:
        for k in "abcd":
            t.items[k] = x * 2 if k in "bd" else k
        t.one, t.two, t.three = 1, x * 2, 3

    for call in range(6):
        if call in (2, 3):
            t.items.clear()
            del t.one, t.two, t.three
        f(X)
        assert list(t.items) == ["a", "b", "c", "d"]
        assert list(vars(t)) == ["items", "one", "two", "three"]


@pytest.mark.parametrize("kind", [list, deque])
@pytest.mark.parametrize("first", [0, torch.zeros(3)], ids=["numbers", "tensors"])
def test_a_list_may_get_shorter_and_longer_between_calls(
    kind: Callable[[Any], Any], first: Any
) -> None:
    def calls(wrap: Callable[[Any], Any]) -> list[Any]:
        held = kind([first, first, first])

        def step(x: Tensor) -> Any:
            for i in range(len(held)):
                held[i] = held[i] + i + 1
            return x * sum(held)

        f, found = wrap(step), []
        for call in range(10):
            if call in (4, 5):
                held.pop()
            if call == 7:
                held.append(first)
            found.append((f(X).tolist(), [float(torch.as_tensor(h).sum()) for h in held]))
        return found

    assert calls(jit) == calls(lambda f: f)


def test_a_slot_may_get_empty_between_calls() -> None:
    class Slotted:
        __slots__ = ("mean",)
        mean: Tensor

    t = Slotted()
    t.mean = torch.zeros(3)

    @jit
    def f(x: Tensor) -> Tensor:
        t.mean = t.mean + x if hasattr(t, "mean") else x * 10
        return t.mean

    assert [f(X)[1].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    del t.mean
    assert [f(X)[1].item() for _ in range(3)] == [10.0, 11.0, 12.0]


def test_numbers_that_another_thread_assigns_together_are_read_together() -> None:
    t = SimpleNamespace(a=1.0, b=1.0)
    f = jit(lambda x: x * t.a - x * t.b)
    for k in range(4):  # until both are arguments
        vars(t).update(a=float(k), b=float(k))
        f(X)
    done = threading.Event()

    def write() -> None:
        k = 0
        while not done.is_set():
            k += 1
            vars(t).update(a=float(k % 5), b=float(k % 5))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert all(torch.equal(f(X), torch.zeros(3)) for _ in range(1000))
    finally:
        done.set()
        writer.join()


def test_a_list_that_a_program_changes_and_moves_has_the_change() -> None:
    t = SimpleNamespace(now=[X], before=None)

    @jit
    def f(x: Tensor) -> None:
        t.before, t.now = t.now, [t.now[0] + x]
        t.before.append(5)

    for k in range(4):
        f(X)
        assert torch.equal(t.before[0], X * (k + 1)) and t.before[1:] == [5]
        assert torch.equal(t.now[0], X * (k + 2)) and len(t.now) == 1


def test_a_number_of_the_state_is_a_key_of_what_a_program_returns_and_leaves() -> None:
    t = SimpleNamespace(n=0, by_rest={})

    @jit
    def f(x: Tensor, k: int) -> dict[int, Tensor]:
        t.n += 1
        t.by_rest = {t.n % 2: x * t.n}
        return {k % 3: x * k}

    for k in range(7):
        found = f(X, k)
        assert list(found) == [k % 3] and torch.equal(found[k % 3], X * k)
        n = k + 1
        assert list(t.by_rest) == [n % 2] and torch.equal(t.by_rest[n % 2], X * n)


@pytest.mark.parametrize("name", HELD)
def test_what_a_call_is_given_is_returned_and_left_and_not_a_copy(name: str) -> None:
    t = SimpleNamespace(kept=None, inside=None)

    @jit
    def f(x: Tensor, given: Any) -> Any:
        t.kept = given["held"]
        t.inside = [x * 2, given["held"]]
        return given, given["held"], (x * 3, [given])

    for n in range(4):
        given = {"held": HELD[name](), "n": n % 2}
        found, held, (y, (inside,)) = f(X, given)
        assert found is given and inside is given and held is given["held"]
        assert t.kept is held and t.inside[1] is held
        assert torch.equal(y, X * 3) and torch.equal(t.inside[0], X * 2)


def _changes_the_state(t: Any, given: list[Any], x: Tensor) -> Any:
    t.held[0] += 1
    return x * given[0]


def _changes_the_state_by_a_tensor(t: Any, given: list[Any], x: Tensor) -> Any:
    t.held[0] = x * 2
    return x * given[0]


def _changes_the_argument(t: Any, given: list[Any], x: Tensor) -> Any:
    given.append(1.0)
    return x * len(t.held)


@pytest.mark.parametrize(
    "change", [_changes_the_state, _changes_the_state_by_a_tensor, _changes_the_argument]
)
def test_a_list_that_is_state_and_an_argument_is_one(change: Any) -> None:
    ours, theirs = SimpleNamespace(held=[2.0]), SimpleNamespace(held=[2.0])
    held = ours.held
    f = jit(lambda given, x: change(ours, given, x))
    for _ in range(3):
        assert torch.equal(f(ours.held, X), change(theirs, theirs.held, X))
        assert ours.held is held and repr(held) == repr(theirs.held)
        # another list is another matter
        assert torch.equal(f([5.0], X), change(theirs, [5.0], X))
        assert ours.held is held and repr(held) == repr(theirs.held)


def test_a_list_that_is_two_arguments_is_one() -> None:
    @jit
    def f(a: list[Any], b: list[Any]) -> Any:
        a.append(1.0)
        return a[0] * len(b)

    for _ in range(3):
        given = [X]
        assert torch.equal(f(given, given), X * 2) and len(given) == 2
        a, b = [X], [X]
        assert torch.equal(f(a, b), X) and (len(a), len(b)) == (2, 1)


def _appends(t: Any, given: list[Any], x: Tensor) -> Any:
    given.append(1.0)
    return x * len(t.held)


def _appends_to_the_state(t: Any, given: list[Any], x: Tensor) -> Any:
    t.held.append(1.0)
    return x * len(given)


def _puts_a_tensor(t: Any, given: list[Any], x: Tensor) -> Any:
    given[0] = x * 2
    return t.held[0] + 1


def _puts_a_tensor_into_the_state(t: Any, given: list[Any], x: Tensor) -> Any:
    t.held[0] = x * 2
    return given[0] + 1


def _moves_and_appends(t: Any, given: list[Any], x: Tensor) -> Any:
    t.held = [x, *t.held[:1]]
    given.append(x)
    return x * len(t.held)


WRITERS = [
    _appends,
    _appends_to_the_state,
    _puts_a_tensor,
    _puts_a_tensor_into_the_state,
    _moves_and_appends,
]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("change", WRITERS)
def test_a_program_for_another_list_is_not_for_a_list_of_the_state(
    change: Any, inside: bool
) -> None:
    def start() -> tuple[Any, Callable[..., Any]]:
        t = SimpleNamespace(held=[X])
        if inside:
            return t, lambda given, x: change(t, given["list"], x)
        return t, lambda given, x: change(t, given, x)

    (ours, f), (theirs, g) = start(), start()
    f = jit(f)
    for n in range(8):
        args = []
        for t in (ours, theirs):
            given = t.held if n in (3, 5) else [X] * len(t.held)
            args.append(({"list": given} if inside else given, X + n))
        assert torch.equal(f(*args[0]), g(*args[1]))
        assert repr((ours.held, args[0])) == repr((theirs.held, args[1]))


def test_a_list_that_is_given_twice_and_read_is_no_matter() -> None:
    @jit
    def f(a: list[Any], b: list[Any], c: list[Any]) -> Any:
        c.append(len(c))
        return a[0] * len(b) + len(c)

    for n in range(6):
        a, c = [X + n], [0] * (n // 2)
        b = a if n % 2 else [X + n]
        assert torch.equal(f(a, b, c), (X + n) + len(c)) and c[-1] == n // 2


def _into_a_list(t: Any, given: Any) -> None:
    t.kept.append(given)


def _into_a_list_in_a_list(t: Any, given: Any) -> None:
    t.kept.append([given])


def _into_an_object(t: Any, given: Any) -> None:
    t.object = SimpleNamespace(held=given)


def _into_a_function(t: Any, given: Any) -> None:
    t.function = lambda: given


def _into_an_iterator(t: Any, given: Any) -> None:
    t.iterator = iter([given])


@pytest.mark.parametrize("given", [[1], {"a": 1}, Pair(1, 2)], ids=repr)
@pytest.mark.parametrize(
    "keep",
    [_into_a_list, _into_a_list_in_a_list, _into_an_object, _into_a_function, _into_an_iterator],
)
def test_what_a_call_is_given_is_not_kept_as_a_copy(keep: Any, given: Any) -> None:
    t = SimpleNamespace(kept=[])

    @jit
    def f(x: Tensor, given: Any) -> Any:
        keep(t, given)
        return x * 2

    text = r"puts a \w+ that it is given as an argument into .*happened at .*containers.py"
    with pytest.raises(RuntimeError, match=text):
        f(X, given)
    assert vars(t) == {"kept": []}


@pytest.mark.parametrize("given", [[1], {"a": 1}, Pair(1, 2)], ids=repr)
def test_what_a_call_is_given_is_kept_in_a_new_container(given: Any) -> None:
    t = SimpleNamespace(kept=None)

    @jit
    def f(x: Tensor, given: Any) -> Any:
        t.kept = [{"it": given}, (given,)]
        if isinstance(given, Pair):
            given.second = 3
        return x * 2

    for _ in range(3):
        f(X, given)
        assert t.kept[0]["it"] is given and t.kept[1][0] is given


def test_an_argument_that_holds_itself_is_refused() -> None:
    history: list[Any] = [1.0]
    history.append(history)
    with pytest.raises(RuntimeError, match="an argument is a container that holds itself"):
        jit(lambda x, history: x * history[0])(torch.ones(1), history)


@pytest.mark.parametrize("known", [False, True])
def test_a_result_that_holds_itself_is_refused(known: bool) -> None:
    held: list[Any] = [1]
    held.append(held)

    @jit
    def f(x: Tensor) -> Any:
        found: list[Any] = [x * 2]
        found.append(found)
        return (x, held) if known else found

    with pytest.raises(RuntimeError, match=r"holds itself.*happened at .*test_same_containers.py"):
        f(X)


@dataclass
class Batch:
    x: Any
    size: int = 0


def _pops(b: Any) -> Any:
    target = b[0].pop("y")
    b[0]["loss"] = (b[0]["x"] - target).sum()
    return b[0]


def _grows(b: Any) -> Any:
    b[1].append(b[0]["x"] * 2)
    b[1].append({"rate": 0.5, "x": b[0]["x"]})
    return b[1]


def _changes_inside(b: Any) -> Any:
    b[2][0]["x"] = b[0]["x"] + 1
    b[2].reverse()
    return b[2][-1]


def _changes_an_object(b: Any) -> Any:
    b[3].x = b[0]["x"].sin()
    b[3].size += 2
    return b[3]


def _takes_turns(b: Any) -> Any:
    b[4].append(b[0]["x"])
    b[4].rotate()
    return b[4][0] * 1


def _shares(b: Any) -> Any:
    both = [b[0]["x"] * 3]
    b[1].append(both)
    b[5]["both"] = both
    return both


def _empties(b: Any) -> Any:
    b[1].clear()
    del b[5]["old"]
    return b[0]["x"] * 1


def _arguments() -> list[Any]:
    x = torch.tensor([1.0, 2.0])
    return [
        {"x": x, "y": x * 5},
        [1.0],
        [{"x": x}, {}],
        Batch(x, 3),
        deque([x * 7, x * 8], maxlen=3),
        OrderedDict(old=1),
    ]


@pytest.mark.parametrize(
    "program",
    [_pops, _grows, _changes_inside, _changes_an_object, _takes_turns, _shares, _empties],
)
def test_a_container_that_a_call_is_given_is_changed_as_in_eager_mode(program: Any) -> None:
    jitted = jit(program)
    for _ in range(3):
        ours, theirs = _arguments(), _arguments()
        result = jitted(ours)
        assert repr((program(theirs), theirs)) == repr((result, ours))
        if program is _shares:
            assert result is ours[1][-1] is ours[5]["both"]
        elif isinstance(result, (list, dict, Batch)):
            assert any(result is x for x in (*ours, *ours[2]))
    assert len(jitted.captured) == 1


def test_a_number_of_an_object_counts_from_call_to_call() -> None:
    batch = Batch(X)

    @jit
    def count(b: Batch) -> Any:
        b.size += 1
        return b.x * b.size

    assert [count(batch).tolist() for _ in range(4)] == [(X * n).tolist() for n in (1, 2, 3, 4)]
    assert batch.size == 4


def test_what_a_call_would_not_make_anew_is_not_put_into_what_it_is_given() -> None:
    @jit
    def f(x: Tensor, found: list[Any]) -> Tensor:
        found.append({1, 2})
        return x

    given: list[Any] = []
    with pytest.raises(RuntimeError, match=r"assigns a set.* a container that it is given.*\.py"):
        f(X, given)
    assert given == []
