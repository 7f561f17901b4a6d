"""Containers to which a jitted program comes in several ways: by places of the state that it
replaces, by others, and by its arguments."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit

from .moved_containers import shown

X = torch.arange(3.0)


def _write_to_an_inner_one(t: Any, x: Tensor) -> object:
    t.box = {"inner": t.box["inner"], "n": x}
    t.box["inner"]["h"] = t.box["inner"]["h"] + x
    return t.other["h"] * 2, t.box["inner"] is t.other


def _replace_and_write_by_another_name(t: Any, x: Tensor) -> object:
    same = t.other is t.first
    t.other["h"] = t.other["h"] + x
    t.first = {"h": t.first["h"] * 0.5 + x}
    return t.other["h"] - t.first["h"], same, t.other is t.first


def _put_into_another_and_write(t: Any, x: Tensor) -> object:
    t.box = {"inner": t.other, "n": x * 2}
    t.other["h"] = t.other["h"] + x
    return t.box["inner"]["h"], t.box["inner"] is t.first


def _write_to_a_list_by_two_names(t: Any, x: Tensor) -> object:
    t.items[0] = t.list[0] + x
    same = t.items is t.list
    t.items = [x, t.list[0]]
    t.list[0] = t.list[0] * 0.5
    return t.items[1], same, t.items is t.list


def _swap(t: Any, x: Tensor) -> object:
    t.first, t.other = t.other, t.first
    t.first["h"] = t.first["h"] + x
    return t.other["h"], t.first is t.box["inner"]


PROGRAMS = (
    _write_to_an_inner_one,
    _replace_and_write_by_another_name,
    _put_into_another_and_write,
    _write_to_a_list_by_two_names,
    _swap,
)


def _state() -> Any:
    shared, items = {"h": X * 0}, [X]
    box = {"inner": shared, "n": X}
    return SimpleNamespace(first=shared, other=shared, box=box, items=items, list=items)


def _part(t: Any) -> None:
    t.first = dict(t.first)


def _join(t: Any) -> None:
    t.first = t.box["inner"] = t.other


def _nothing(t: Any) -> None:
    pass


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__.strip("_"))
@pytest.mark.parametrize("change", [_nothing, _part, _join], ids=lambda f: f.__name__.strip("_"))
def test_a_container_of_several_places_is_one(
    program: Callable[[Any, Tensor], object], change: Callable[[Any], None]
) -> None:
    eager, ours = _state(), _state()
    f = jit(lambda x: program(ours, x))
    for i in range(8):
        if i in (3, 6):
            change(eager)
            change(ours)
        x = X * 0.25 + i
        assert shown((f(x), ours), {}) == shown((program(eager, x), eager), {})


def _write_to_both(t: Any, d: Any, e: Any, x: Tensor) -> object:
    d["h"] = d["h"] + x
    e["h"] = e["h"] * 2
    return d["h"] - t.first["h"], d is e, d is t.first


def _keep_an_argument(t: Any, d: Any, e: Any, x: Tensor) -> object:
    same = t.first is d
    t.first = d
    e["h"] = t.first["h"] + x
    return d["h"], same


def _give_and_take(t: Any, d: Any, e: Any, x: Tensor) -> object:
    t.other["h"] = d["h"] + x
    t.first, d["k"] = e, x
    return e["h"], len(e), t.other is d


GIVEN: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "one twice": lambda t: (t.first, t.first),
    "two of the state": lambda t: (t.first, t.other),
    "one of the state": lambda t: (t.other, {"h": X}),
    "an inner one": lambda t: ({"h": X}, t.box["inner"]),
    "two new ones": lambda t: ({"h": X}, {"h": X + 1}),
}


@pytest.mark.parametrize(
    "program",
    [_write_to_both, _keep_an_argument, _give_and_take],
    ids=lambda f: f.__name__.strip("_"),
)
@pytest.mark.parametrize("first", GIVEN)
@pytest.mark.parametrize("second", GIVEN)
def test_an_argument_that_is_also_found_elsewhere_is_one(
    program: Callable[..., object], first: str, second: str
) -> None:
    eager, ours = _state(), _state()
    f = jit(lambda d, e, x: program(ours, d, e, x))
    for i in range(8):
        x, choose = X * 0.25 + i, GIVEN[first if i % 4 < 2 else second]
        theirs, mine = choose(eager), choose(ours)
        expected = program(eager, *theirs, x)
        assert shown((f(*mine, x), ours, mine), {}) == shown((expected, eager, theirs), {})


def test_a_refusal_leaves_all_containers_as_they_were() -> None:
    t = _state()

    @jit
    def f(d: Any, x: Tensor) -> Tensor:
        t.box = {"inner": t.other, "n": x}
        d["h"] = t.other["h"] = x * 2
        return x if x.tolist()[0] > 0 else x * 2

    d = {"h": X}
    before = shown((t, d), {})
    with pytest.raises(RuntimeError, match="asks for the elements"):
        f(d, X)
    assert shown((t, d), {}) == before and t.first is t.other is t.box["inner"]


def _ordered(names: str) -> OrderedDict[str, Tensor]:
    return OrderedDict((name, X) for name in names)


def _with_gaps() -> dict[str, Tensor]:
    made = dict.fromkeys("abcdef", X)
    del made["a"], made["d"]
    return made


@pytest.mark.parametrize("make", [_with_gaps, lambda: _ordered("abc"), lambda: deque([X] * 3)])
@pytest.mark.parametrize("is_state", [False, True])
def test_a_loop_of_the_caller_over_a_container_goes_on(
    make: Callable[[], Any], is_state: bool
) -> None:
    t = SimpleNamespace(held=make(), copy=None)

    @jit
    def f(d: Any, x: Tensor) -> Tensor:
        t.copy = t.held if is_state else None
        return x * len(d)

    given = t.held if is_state else make()
    seen = 0
    for _ in given:
        f(given, X)
        seen += 1
    assert seen == len(given)


def test_another_thread_never_finds_values_of_a_capture_in_an_argument() -> None:
    params = {"w": torch.ones(3), "b": torch.ones(3)}
    kinds: set[type] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            kinds.update(map(type, params.values()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for k in range(10):
            jit(lambda p, x, k=k: p["w"] * x + p["b"] * k)(params, X)
    finally:
        done.set()
        watcher.join()
    assert kinds == {Tensor}


@pytest.mark.parametrize("count", [2, 12])
def test_a_pool_of_batches_of_which_the_state_keeps_the_last_is_for_one_program(count: int) -> None:
    t = SimpleNamespace(last=None)
    pool = [{"x": X + k} for k in range(count)]

    def step(batch: Any) -> Tensor:
        t.last = batch
        batch["y"] = batch["x"] * 2
        result: Tensor = batch["y"] + 1
        return result

    f = jit(step)
    for n in range(3 * count):
        batch = pool[n % count]
        assert torch.equal(f(batch), batch["x"] * 2 + 1) and t.last is batch
    assert len(jit.explain(f).programs) <= 3
