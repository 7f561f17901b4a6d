"""A jitted program has Python's state as in eager mode: what it finds, what it changes, and what
only the capture could do is refused with the user's line."""

from __future__ import annotations

import collections
import datetime
import functools
import itertools
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest
import torch
from torch import Tensor, nn

import runtime
from runtime import jit
from runtime.aot import aot_function, nop
from runtime.jit import explain

WAYS: dict[str, Callable[..., Any]] = {
    "jit": jit,
    "aot_function": lambda f, **options: aot_function(f, nop, **options),
}
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


class Config:
    shared = 2.0

    def __init__(self) -> None:
        self.rate = 2.0
        self.inner = SimpleNamespace(rate=2.0)
        self.rates = [2.0]
        self.by_name = {"rate": 2.0}

    @property
    def doubled(self) -> float:
        return self.rate * 2

    def __getattr__(self, name: str) -> Any:
        if name == "computed":
            return self.rate
        raise AttributeError(name)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.k = 2.0

    def forward(self, x: Any) -> Any:
        return x * self.k


class Below(Layer):
    def forward(self, x: Any) -> Any:
        return super().forward(x)


class Reads(runtime.autograd.Function):
    """A Function that reads a global when it runs."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * CONFIG.rate

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * CONFIG.rate


CONFIG = Config()
LOOK_UP, TEXT = getattr, "{0.rate}"
LAYERS = nn.ModuleList([Below()])

# what finds a number, 2.0 at first, and what makes it 3.0
FINDS: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "an attribute": (lambda x: x * CONFIG.rate, lambda: setattr(CONFIG, "rate", 3.0)),
    "by getattr": (
        lambda x: x * getattr(CONFIG, "ra" + "te" * len(x)),
        lambda: setattr(CONFIG, "rate", 3.0),
    ),
    "by vars": (lambda x: x * vars(CONFIG)["rate"], lambda: setattr(CONFIG, "rate", 3.0)),
    "by attrgetter": (lambda x: x * attrgetter("inner.rate")(CONFIG), lambda: _inner(3.0)),
    "a property": (lambda x: x * CONFIG.doubled / 2, lambda: setattr(CONFIG, "rate", 3.0)),
    "by __getattr__": (lambda x: x * CONFIG.computed, lambda: setattr(CONFIG, "rate", 3.0)),
    "of a class": (lambda x: x * CONFIG.shared, lambda: setattr(Config, "shared", 3.0)),
    "an attribute before that of the class": (
        lambda x: x * CONFIG.shared,
        lambda: setattr(CONFIG, "shared", 3.0),
    ),
    "an item": (lambda x: x * next(iter(CONFIG.rates)), lambda: CONFIG.rates.__setitem__(0, 3.0)),
    "an item by a computed key": (
        lambda x: x * CONFIG.by_name["".join(["ra", "te"])],
        lambda: CONFIG.by_name.update(rate=3.0),
    ),
    "one of two objects": (
        lambda x: x * (CONFIG if x.dim() else CONFIG.inner).rate,
        lambda: setattr(CONFIG, "rate", 3.0),
    ),
    "a method of a layer's base class": (
        lambda x: LAYERS[0](x),
        lambda: setattr(LAYERS[0], "k", 3.0),
    ),
    "in a custom Function": (lambda x: Reads.apply(x), lambda: setattr(CONFIG, "rate", 3.0)),
    "by eval": (lambda x: x * eval("CONFIG.rate"), lambda: setattr(CONFIG, "rate", 3.0)),
    "the environment": (
        lambda x: x * float(os.environ["RATE"]),
        lambda: os.environ.update(RATE="3.0"),
    ),
    "by getattr under another name": (
        lambda x: x * LOOK_UP(CONFIG, "".join(["ra", "te"])),
        lambda: setattr(CONFIG, "rate", 3.0),
    ),
    "by a text that is formatted": (
        lambda x: x * float(TEXT.format(CONFIG)),
        lambda: setattr(CONFIG, "rate", 3.0),
    ),
    "by a bound method of C": (
        lambda x: x * LOOK_UP(CONFIG, "by_name").get("rate"),
        lambda: CONFIG.by_name.update(rate=3.0),
    ),
    "what was missing": (
        lambda x: x * getattr(CONFIG.inner, "other", 2.0),
        lambda: setattr(CONFIG.inner, "other", 3.0),
    ),
    "a chain of mappings": (
        lambda x: x * collections.ChainMap({}, CONFIG.by_name)["rate"],
        lambda: CONFIG.by_name.update(rate=3.0),
    ),
}


def _inner(rate: float) -> None:
    CONFIG.inner.rate = rate


@pytest.fixture(autouse=True)
def _as_at_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("RATE", "2.0")
    monkeypatch.setattr(Config, "shared", 2.0)
    monkeypatch.setitem(globals(), "CONFIG", Config())
    yield
    LAYERS[0].k = 2.0  # type: ignore[assignment]


@each_way
@pytest.mark.parametrize("what", FINDS)
def test_what_changes_between_two_calls_is_found(what: str, way: Callable[..., Any]) -> None:
    f, change = FINDS[what]
    g, x = way(f), torch.ones(1)
    assert (g(x).item(), g(x).item()) == (2.0, 2.0)
    change()
    assert g(x).item() == 3.0


def test_a_static_argument_may_be_an_object_that_changes() -> None:
    config = Config()
    g = jit(lambda x, c: x * c.rate, static_argnums=1)
    assert g(torch.ones(1), config).item() == 2.0
    config.rate = 3.0
    assert g(torch.ones(1), config).item() == 3.0


class Trainer:
    calls = 0

    def __init__(self) -> None:
        self.steps, self.total, self.last = 0, 0.0, None
        self.kinds: set[str] = set()
        self.cells = [0, 0]
        self.queue = collections.deque([1.0, 2.0, 3.0], maxlen=3)
        self.table: dict[Any, Any] = {}


def counts(t: Trainer, x: Any) -> Any:
    t.steps += 1
    return x * t.steps


def counts_for_all(t: Trainer, x: Any) -> Any:
    Trainer.calls += 1
    return x * Trainer.calls


def decays(t: Trainer, x: Any) -> Any:
    t.total = 0.5 * t.total + 1.0
    return x * t.total


def counts_in_a_list(t: Trainer, x: Any) -> Any:
    t.cells[0] += 1
    return x * t.cells[0]


def adds_keys(t: Trainer, x: Any) -> Any:
    t.steps = (t.steps + 1) % 3
    t.table[t.steps] = 1
    return x * t.steps


def tells_types(t: Trainer, x: Any) -> Any:
    t.steps = (t.steps + 1) % 3
    return x * 2 if type(t.steps) is int else x * 3


def goes_round(t: Trainer, x: Any) -> Any:
    t.queue.append(t.queue[0])
    return x * t.queue[-1]


def remembers(t: Trainer, x: Any) -> Any:
    if "mask" not in t.table:
        t.table["mask"] = torch.ones(1) * 3
        t.kinds.add("made")
    return x * t.table["mask"]


def deletes(t: Trainer, x: Any) -> Any:
    if hasattr(t, "last"):
        del t.last
        return x * 2
    return x


def caches(t: Trainer, x: Any) -> Any:
    return x * _doubled(3)


@functools.lru_cache
def _doubled(n: int) -> int:
    return n * 2


@pytest.mark.parametrize(
    "f, programs",
    [
        (counts, 2),
        (counts_for_all, 2),
        (decays, 2),
        (counts_in_a_list, 2),
        (adds_keys, None),
        (tells_types, 3),
        (goes_round, 2),
        (remembers, 2),
        (deletes, 2),
        (caches, 1),
    ],
)
def test_what_a_program_changes_each_call_changes(f: Any, programs: int | None) -> None:
    def seen(wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
        _doubled.cache_clear()
        t, Trainer.calls = Trainer(), 0
        g = wrap(functools.partial(f, t))
        found = [(g(torch.ones(1)).item(), repr(sorted(vars(t).items()))) for _ in range(6)]
        return found, g

    expected, _ = seen(lambda f: f)
    found, g = seen(jit)
    assert found == expected and programs in (None, len(explain(g).programs))


def test_a_number_that_changes_outside_is_an_argument_from_the_third_value_on() -> None:
    config = Config()
    g = jit(lambda x: x * config.rate)
    for i in range(8):
        config.rate = float(i)
        assert g(torch.ones(1)).item() == i
    assert len(explain(g).programs) == 3


@each_way
def test_a_program_that_never_comes_to_an_end_of_its_changes_is_refused(way: Any) -> None:
    history: list[int] = []

    def f(x: Any) -> Any:
        history.append(len(history))
        return x * len(history)

    g = way(f)
    for i in range(8):
        assert g(torch.ones(1)).item() == i + 1
    with pytest.raises(RuntimeError, match=r"captured 8 times in turn.*'history' around.*ignore="):
        g(torch.ones(1))
    assert len(history) == 8


class Flagged:
    flag: int


def test_a_class_gets_a_new_attribute_by_each_call_and_not_by_a_call_that_fails() -> None:
    def f(x: Any, branches: bool) -> Any:
        Flagged.flag = 3
        return x if branches and x.tolist()[0] > 0 else x * Flagged.flag

    g = jit(f)
    for _ in range(3):
        assert g(torch.ones(1), False).item() == 3 and Flagged.flag == 3
        del Flagged.flag
    with pytest.raises(RuntimeError, match="elements"):
        g(torch.ones(1), True)
    assert not hasattr(Flagged, "flag")


def test_the_limit_is_a_number_of_programs_and_the_error_names_what_differs_and_the_line() -> None:
    history: list[int] = []

    def f(x: Any) -> Any:
        history.append(len(history))
        return x * len(history)

    g = jit(f, limit=2)
    for i in range(2):
        assert g(torch.ones(1)).item() == i + 1
    with pytest.raises(RuntimeError) as caught:
        g(torch.ones(1))
    text = str(caught.value)
    assert "captured 2 times in turn" in text and "'history' around" in text
    assert text.endswith("history.append(len(history))") and len(history) == 2


def test_a_larger_limit_finds_the_program_that_a_cycle_comes_back_to() -> None:
    phase = ["0"]

    def f(x: Any) -> Any:
        phase[0] = str((int(phase[0]) + 1) % 10)
        return x * float(phase[0])

    g = jit(f, limit=12)
    for i in range(25):
        assert g(torch.ones(1)).item() == (i + 1) % 10
    assert len(explain(g).programs) == 10


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, "8"])
def test_a_limit_that_is_no_number_of_programs_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit="):
        jit(lambda x: x, limit=limit)


@each_way
def test_what_is_ignored_is_neither_compared_nor_changed(way: Any) -> None:
    history: list[int] = []

    def f(x: Any) -> Any:
        history.append(1)
        return x * len(history)

    g = way(f, ignore=[history])
    assert [g(torch.ones(1)).item() for _ in range(3)] == [1.0] * 3 and history == [1]


@each_way
def test_a_refusal_leaves_every_object_as_it_was(way: Any) -> None:
    t = Trainer()

    def f(x: Any) -> Any:
        t.steps += 1
        t.kinds.add("a")
        t.queue.append(4.0)
        t.table["x"] = x
        t.new = x  # type: ignore[attr-defined]
        del t.last
        os.getcwd()

    before = repr(vars(t))
    with pytest.raises(RuntimeError, match="getcwd"):
        way(f)(torch.ones(1))
    assert repr(vars(t)) == before


def generated() -> Iterator[float]:
    while True:
        yield 1.0


TAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "an iterator": (lambda: iter([1.0, 2.0]), "a list_iterator"),
    "a count": (lambda: itertools.count(), "a count"),
    "a generator": (generated, "a generator"),
    "an iterator of a set": (lambda: iter({1.0, 2.0}), "a set_iterator"),
    "zip": (lambda: (lambda z: map(sum, z))(zip([1.0, 2.0], [1.0, 2.0], strict=True)), "a map"),
}


@each_way
@pytest.mark.parametrize("what", TAKES)
def test_what_is_taken_from_an_iterator_is_refused(what: str, way: Any) -> None:
    make, kind = TAKES[what]
    source = make()
    with pytest.raises(RuntimeError, match=rf"takes items from 'source' around .*{kind}"):
        way(lambda x: x * next(source))(torch.ones(1))


@pytest.mark.parametrize("make", [lambda: iter({1}), lambda: iter({"a": 1}), lambda: iter([1])])
def test_an_iterator_from_which_nothing_is_taken_is_no_reason_to_refuse(make: Any) -> None:
    source = make()
    g = jit(lambda x: x * 2 if source is not None else x)
    assert [g(torch.ones(1)).item() for _ in range(2)] == [2.0] * 2 and next(source)


def test_what_others_draw_between_calls_needs_no_program_of_its_own() -> None:
    g, own = jit(lambda x: x * 2), random.Random(1)
    h = jit(lambda x: x * len(str(type(own))))
    for _ in range(3):
        g(torch.ones(1)), h(torch.ones(1))
        # keeps the second of two numbers for the next time, in an attribute
        random.gauss(0, 1), own.gauss(0, 1)
    assert len(g.captured) == len(h.captured) == 1


def _draw(r: random.Random) -> None:
    r.gauss(0, 1)


def _scale(r: Any) -> None:
    r.scale = getattr(r, "scale", 1) + 1


# what a program reads of a generator, and what others do to this between calls
OF_A_GENERATOR: dict[str, tuple[Callable[[Any], Any], Callable[[Any], None]]] = {
    "its next number": (lambda r: r.gauss_next or 1.0, _draw),
    "whether it has one": (lambda r: 2 if r.gauss_next is None else 3, _draw),
    "its variables": (lambda r: vars(r)["gauss_next"] or 1.0, _draw),
    "a computed name": (lambda r: getattr(r, "_".join(("gauss", "next"))) or 1.0, _draw),
    "an attribute that it gets later": (lambda r: getattr(r, "scale", 1), _scale),
    "whether it has an attribute": (lambda r: 2 if hasattr(r, "scale") else 3, _scale),
}


@each_way
@pytest.mark.parametrize("what", OF_A_GENERATOR)
@pytest.mark.parametrize("whose", ["the user's", "Python's own"])
def test_attributes_of_a_generator_are_state(what: str, whose: str, way: Any) -> None:
    read, change = OF_A_GENERATOR[what]
    name = "_inst"  # which a name in the program may lead to
    generators = {"the user's": random.Random(3), "Python's own": getattr(random, name)}
    own = generators[whose]
    if whose == "the user's":
        f = way(lambda x: x * read(own))
    else:
        f = way(lambda x: x * read(random._inst))
    try:
        for _ in range(4):
            assert f(torch.ones(1)).item() == pytest.approx(read(own), rel=1e-6)
            change(own)
    finally:
        vars(own).pop("scale", None)


SYSTEM: dict[str, Callable[[], Any]] = {
    "posix.getcwd": lambda: len(os.getcwd()),
    "datetime.now": lambda: datetime.datetime.now().year,
    "io.open": lambda: len(open(__file__).read()),  # noqa: SIM115
    "posix.urandom": lambda: len(os.urandom(2)),
}


@each_way
@pytest.mark.parametrize("name", SYSTEM)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_the_system_says_is_refused_with_the_line(name: str, way: Any) -> None:
    ask = SYSTEM[name]
    with pytest.raises(RuntimeError, match=rf"calls {name}, .*test_state\.py:"):
        way(lambda x: x * ask())(torch.ones(1))


def test_a_clock_is_told_of() -> None:
    with pytest.warns(UserWarning, match=r"calls time\.perf_counter.*test_state\.py"):
        jit(lambda x: (time.perf_counter(), x * 2)[1])(torch.ones(1))


def test_ordinary_code_is_neither_refused_nor_told_of() -> None:
    def f(x: Any) -> Any:
        print(f"{len(x):3d}", end="")
        names = sorted({"b": 1, "a": 2}.items(), key=lambda item: item[1])
        return x * sum(n for _, n in names) + float("1.5")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert jit(f)(torch.ones(1)).item() == 4.5


def test_a_profiler_sees_the_program_and_keeps_its_hook() -> None:
    import cProfile

    seen: list[str] = []

    def hook(frame: Any, event: str, argument: Any) -> None:
        seen.append(frame.f_code.co_name)

    def watched_by_the_profiler(x: Any) -> Any:
        return x * CONFIG.rate

    sys.setprofile(hook)
    try:
        g = jit(watched_by_the_profiler)
        g(torch.ones(1))
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)
    assert "watched_by_the_profiler" in seen
    profile = cProfile.Profile()
    profile.enable()
    jit(lambda x: x * CONFIG.rate)(torch.ones(1))
    profile.disable()
    assert profile.getstats()


class Reversed(torch.autograd.Function):
    """torch's own class, which knows nothing of a capture."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * -CONFIG.rate


class Kept(NamedTuple):
    mean: Any
    steps: int


def test_a_named_tuple_of_what_is_computed_is_assigned_by_each_call() -> None:
    def seen(wrap: Callable[[Any], Any]) -> Any:
        t = Trainer()
        t.kept = Kept(torch.zeros(1), 0)  # type: ignore[attr-defined]

        def f(x: Any) -> Any:
            t.kept = Kept(x + t.kept.mean, t.kept.steps + 1)  # type: ignore[attr-defined]
            return x * 1

        g = wrap(f)
        calls = range(4)
        return [(g(torch.ones(1)).item(), repr(vars(t)["kept"])) for _ in calls]

    assert seen(jit) == seen(lambda f: f)


HIDES: dict[str, Callable[[Any], Any]] = {
    "a closure": lambda y: lambda: y,
    "a partial function": lambda y: functools.partial(torch.add, y),
    "an object": lambda y: SimpleNamespace(y=y),
    "a module": lambda y: _module_with(y),
    "an exception": lambda y: ValueError(y),
    "lists in lists": lambda y: [[[[[[[[[frozenset([y])]]]]]]]]],
}


def _module_with(y: Any) -> nn.Module:
    m = nn.Module()
    m.y = y
    return m


@pytest.mark.parametrize("what", HIDES)
def test_what_is_computed_does_not_stay_hidden_in_an_object(what: str) -> None:
    t, hide = Trainer(), HIDES[what]

    def f(x: Any) -> Any:
        t.last = hide(x * 2)
        return x * 1

    with pytest.raises(RuntimeError, match="tensor"):
        jit(f)(torch.ones(1))
    assert t.last is None


def test_a_cache_keeps_no_tensor_of_a_capture() -> None:
    @functools.lru_cache
    def table(n: int) -> Any:
        return torch.arange(n).float() + 1

    g = jit(lambda x: x * table(2))
    assert [g(torch.ones(2)).tolist() for _ in range(3)] == [[1.0, 2.0]] * 3
    assert table(2).tolist() == [1.0, 2.0]


def test_threads_count_one_after_the_other() -> None:
    t = Trainer()
    g = jit(functools.partial(counts, t))
    for _ in range(4):
        g(torch.ones(1))
    threads = [
        threading.Thread(target=lambda: [g(torch.ones(1)) for _ in range(50)]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert t.steps == 154


def test_a_program_that_sets_the_profile_hook_is_refused() -> None:
    def f(x: Any) -> Any:
        sys.setprofile(None)
        return x * CONFIG.rate

    with pytest.raises(RuntimeError, match=r"calls sys\.setprofile, .*sys\.setprofile\(None\)"):
        jit(f)(torch.ones(1))


def test_a_custom_function_on_a_parameter_trains_it_with_what_its_backward_finds() -> None:
    def trained(wrap: Callable[[Any], Any]) -> Any:
        w, apply = nn.Parameter(torch.ones(2)), cast(Any, Reversed.apply)
        optimizer = torch.optim.SGD([w], lr=0.1)

        def step() -> None:
            optimizer.zero_grad()
            apply(w).sum().backward()
            optimizer.step()

        run = wrap(step)
        for i in range(4):
            CONFIG.rate = float(i)
            run()
        return w.tolist()

    assert trained(jit) == pytest.approx(trained(lambda f: f))


def test_the_first_attribute_of_a_tensor_is_noticed() -> None:
    table = torch.ones(2)

    @jit
    def f(x: Tensor) -> Tensor:
        return x * table * getattr(table, "scale", 1.0)

    def result() -> Any:
        return f(torch.ones(2)).tolist()

    assert result() == result() == [1.0, 1.0]
    table.scale = 3.0  # type: ignore[attr-defined]
    assert result() == [3.0, 3.0]
    del table.scale  # type: ignore[attr-defined]
    assert result() == [1.0, 1.0]
