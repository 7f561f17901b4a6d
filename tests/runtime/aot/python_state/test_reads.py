"""A graph keeps what its program has found in Python's state. A call that would find something else
makes another program."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import runtime
from runtime import aot
from tests.runtime.aot.capture.boundary_helpers import compiled

FACTOR = 2.0


class Settings:
    shared = 2.0

    def __init__(self) -> None:
        self.rate = 3.0
        self.weight = torch.tensor([5.0])
        self.table = {"a": 7.0}
        self.list = [11.0, 13.0]
        self.call: Callable[[Any], Any] = torch.sin

    @property
    def twice(self) -> float:
        return 2 * self.rate

    def scaled(self, x: Any) -> Any:
        return x * self.rate * self.shared


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.last = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        self.call: Callable[[Any], Any] = torch.tanh

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = self.call(layer(x))
        return self.last(x)


def program(settings: Any, x: Any) -> Any:
    table = settings.table
    return (
        settings.scaled(x)
        + settings.twice
        + table["a"] * settings.weight
        + sum(settings.list)
        + settings.call(x)
    )


CHANGES: dict[str, Callable[[Settings], None]] = {
    "a number": lambda s: setattr(s, "rate", 4.0),
    "the sign of a zero": lambda s: setattr(s, "rate", -0.0),
    "a number of the class": lambda s: setattr(type(s), "shared", 6.0),
    "a number that hides the one of the class": lambda s: setattr(s, "shared", 6.0),
    "a tensor": lambda s: setattr(s, "weight", torch.tensor([1.0])),
    "an item by its key": lambda s: s.table.update(a=1.0),
    "an item of a list": lambda s: s.list.__setitem__(1, 0.0),
    "the length of a list": lambda s: s.list.append(17.0),
    "a function": lambda s: setattr(s, "call", torch.cos),
}


@pytest.mark.parametrize("how", ["argument", "closure", "partial", "method"])
@pytest.mark.parametrize("what", CHANGES)
def test_what_changes_outside_makes_another_program(what: str, how: str) -> None:
    class Mine(Settings):
        def run(self, x: Any) -> Any:
            return program(self, x)

        shared = 2.0

    settings, x = Mine(), torch.ones(1)
    f: Callable[[Any], Any]
    if how == "argument":
        f = functools.partial(compiled(program), settings)
    else:
        ways: dict[str, Any] = {
            "closure": lambda x: program(settings, x),
            "partial": functools.partial(program, settings),
            "method": settings.run,
        }
        f = compiled(ways[how])
    before = [f(x).item() for _ in range(2)]
    assert before == [program(settings, x).item()] * 2
    CHANGES[what](settings)
    assert f(x).item() == program(settings, x).item() != before[0]


MODULES: dict[str, Callable[[Layers], object]] = {
    "a layer of a list": lambda m: m.layers.__setitem__(1, nn.Linear(2, 2)),
    "a layer of a sequence": lambda m: m.last.__setitem__(0, nn.Linear(2, 2)),
    "a further layer": lambda m: setattr(m, "layers", m.layers.append(nn.Linear(2, 2))),
    "a parameter": lambda m: setattr(m.layers[0], "weight", nn.Parameter(torch.ones(2, 2))),
    "a parameter that is None": lambda m: setattr(m.layers[0], "bias", None),
    "a function": lambda m: setattr(m, "call", torch.sin),
    "the rate of a dropout": lambda m: setattr(m.last[1], "p", 0.0),
    "the mode": lambda m: m.eval(),
}


@pytest.mark.parametrize("how", ["argument", "module"])
@pytest.mark.parametrize("what", MODULES)
def test_a_module_that_changes_makes_another_program(what: str, how: str) -> None:
    torch.manual_seed(0)
    module, x = Layers(), torch.randn(4, 2)
    taken = compiled((lambda m, x: m(x)) if how == "argument" else module)

    def run(f: Callable[..., Any], *args: Any) -> list[float]:
        torch.manual_seed(1)
        found: list[float] = runtime.unwrap(f(*args)).detach().flatten().tolist()
        return found

    f = functools.partial(taken, module) if how == "argument" else taken
    before = run(f, x)
    assert before == run(f, x) == run(module, x)
    MODULES[what](module)
    assert run(f, x) == run(module, x) != before


def test_a_name_of_the_module_and_one_of_a_function_around(monkeypatch: pytest.MonkeyPatch) -> None:
    k = 2.0
    f = compiled(lambda x: x * k * FACTOR)
    assert f(torch.ones(1)).item() == 4.0
    k = 3.0
    assert f(torch.ones(1)).item() == 6.0
    monkeypatch.setitem(globals(), "FACTOR", 5.0)
    assert f(torch.ones(1)).item() == 15.0


ASKED: dict[str, tuple[Callable[[Any], bool], Callable[[Any], object]]] = {
    "requires_grad": (lambda w: w.requires_grad, lambda w: w.requires_grad_(False)),
    "is_leaf": (
        lambda w: w.grad_fn is None,
        lambda w: w.requires_grad_(False).mul_(torch.ones(2, 2, requires_grad=True)),
    ),
    "shape": (lambda w: w.shape[0] > 2, lambda w: setattr(w, "data", torch.ones(3, 2))),
    "len": (lambda w: len(w) > 2, lambda w: setattr(w, "data", torch.ones(3, 2))),
    "ndim": (lambda w: w.ndim == 2, lambda w: setattr(w, "data", torch.ones(4))),
    "dtype": (
        lambda w: w.dtype is torch.float64,
        lambda w: setattr(w, "data", torch.ones(2, 2, dtype=torch.float64)),
    ),
    "stride": (lambda w: w.stride()[0] == 1, lambda w: setattr(w, "data", torch.ones(2, 2).t())),
    "is_contiguous": (
        lambda w: w.is_contiguous(),
        lambda w: setattr(w, "data", torch.ones(2, 2).t()),
    ),
    "storage_offset": (
        lambda w: w.storage_offset() == 0,
        lambda w: setattr(w, "data", torch.ones(6)[2:].view(2, 2)),
    ),
}


def _places(w: Any) -> dict[str, Callable[[Callable[[Any], bool]], bool]]:
    """Ways to find ``w`` from a program."""
    module, settings = nn.Module(), Settings()
    module.weight, settings.weight, names, items = w, w, {"w": w}, [w]
    return {
        "closure": lambda ask: ask(w),
        "module": lambda ask: ask(module.weight),
        "all parameters": lambda ask: any(ask(p) for p in module.parameters()),
        "attribute": lambda ask: ask(settings.weight),
        "dictionary": lambda ask: ask(names["w"]),
        "loop": lambda ask: any(ask(p) for p in items),
    }


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("place", _places(None))
@pytest.mark.parametrize("what", ASKED)
def test_a_branch_on_what_a_tensor_says_is_taken_anew_when_it_says_something_else(
    what: str, place: str, mode: Any
) -> None:
    ask, change = ASKED[what]
    w, x = nn.Parameter(torch.ones(2, 2)), torch.ones(1)
    find = _places(w)[place]

    def f(x: Any) -> Any:
        return x * 2 if find(ask) else x

    g = runtime.jit(f)
    with mode():
        before = [g(x).item() for _ in range(2)]
        assert before == [f(x).item()] * 2
    change(w)
    with mode():
        assert [g(x).item() for _ in range(2)] == [f(x).item()] * 2 != before


@pytest.mark.parametrize("asked", ["data_ptr", "_version"])
def test_a_branch_on_where_a_tensor_is_or_how_often_it_was_written_to(asked: str) -> None:
    m, x = nn.Linear(2, 2), torch.ones(1)
    first, version = m.weight.data_ptr(), m.weight._version
    moved: Callable[[Any], Any] = lambda x: x if m.weight.data_ptr() == first else x * 2  # noqa: E731
    written: Callable[[Any], Any] = lambda x: x if m.weight._version == version else x * 2  # noqa: E731
    f = runtime.jit(moved if asked == "data_ptr" else written)
    assert [f(x).item() for _ in range(2)] == [1.0] * 2
    if asked == "data_ptr":
        m.weight.data = torch.ones(2, 2)
    else:
        nn.init.zeros_(m.weight)
    assert f(x).item() == 2.0


def test_in_inference_mode_a_tensor_of_the_program_says_whether_it_requires_grad() -> None:
    w, x = torch.ones(1), torch.ones(1)
    f = runtime.jit(lambda x: x * w * 2 if w.requires_grad else x * w)
    with torch.inference_mode():
        assert [f(x).item() for _ in range(2)] == [1.0] * 2
    w.requires_grad_()
    with torch.inference_mode():
        assert f(x).item() == 2.0


def test_why_a_program_was_captured_names_what_a_tensor_says() -> None:
    m = nn.Linear(2, 2)
    f = runtime.jit(lambda x: x * 2 if m.weight.requires_grad else x)
    f(torch.ones(1))
    m.weight.requires_grad_(False)
    f(torch.ones(1))
    assert (
        f.captured[1].why
        == "what a Parameter says of itself is float32[2, 2], was float32[2, 2] that requires grad"
    )


LONG: dict[str, tuple[Callable[[], Any], Callable[[Any], float], Callable[[Any], object]]] = {
    "append": (lambda: [1.0] * 40, sum, lambda o: o.append(3.0)),
    "item": (lambda: [1.0] * 40, sum, lambda o: o.__setitem__(5, 9.0)),
    "sign of a zero": (
        lambda: [0.0] * 40,
        lambda o: math.copysign(1.0, o[len(o) - 1]),
        lambda o: o.__setitem__(39, -0.0),
    ),
    "class of a number": (
        lambda: [1] * 40,
        lambda o: 1.0 + isinstance(o[len(o) - 1], bool),
        lambda o: o.__setitem__(39, True),
    ),
    "queue": (lambda: deque([1.0] * 40, 40), sum, lambda o: o.append(3.0)),
    "dictionary": (
        lambda: dict.fromkeys(range(40), 1.0),
        lambda o: sum(o.values()),
        lambda o: o.__setitem__(7, 2.0),
    ),
    "set": (lambda: set(range(40)), sum, lambda o: o.add(50)),
    "rows": (
        lambda: [[1.0, 2.0] for _ in range(40)],
        lambda o: sum(row[0] for row in o),
        lambda o: o[33].__setitem__(0, 7.0),
    ),
    "strings": (lambda: ["a"] * 40, lambda o: len("".join(o)), lambda o: o.__setitem__(39, "bc")),
    "tensors": (lambda: [torch.ones(1) for _ in range(40)], sum, lambda o: o.append(torch.ones(1))),
    "flags of tensors": (
        lambda: [torch.ones(1) for _ in range(40)],
        lambda o: sum(t.requires_grad for t in o),
        lambda o: o[39].requires_grad_(),
    ),
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_container_is_compared_with_all_its_items(what: str) -> None:
    make, total, change = LONG[what]
    o, x = make(), torch.ones(1)
    f = runtime.jit(lambda x: x * total(o))
    before = [f(x).item() for _ in range(3)]
    assert before == [total(o)] * 3
    assert len(f.captured) == 1
    change(o)
    assert [f(x).item() for _ in range(2)] == [total(o)] * 2 != before[:2]


def test_equal_items_in_a_long_container_make_no_other_program() -> None:
    o = [i / 7 for i in range(40)]
    f = runtime.jit(lambda x: x * sum(o))
    f(torch.ones(1))
    o[:] = [i / 7 for i in range(40)]
    f(torch.ones(1))
    assert len(f.captured) == 1


def test_a_container_of_any_length_is_compared() -> None:
    o = [1.0] * 20_000
    g = runtime.jit(lambda x: x * sum(o))
    assert g(torch.ones(1)).item() == 20_000
    o[-1] = 2.0
    assert g(torch.ones(1)).item() == 20_001


def test_programs_are_found_again_if_what_they_read_is_as_before() -> None:
    traces: list[int] = []
    settings = Settings()

    def f(x: Any) -> Any:
        traces.append(1)
        return x * settings.rate

    g = compiled(f, ignore=[traces])
    for rate in (1.0, 2.0, 1.0, 2.0, 1.0):
        settings.rate = rate
        assert g(torch.ones(1)).item() == rate
    assert len(traces) == 2


def test_what_the_program_itself_changes_each_call_changes() -> None:
    settings = Settings()
    settings.rate = 1.0

    def f(x: Any) -> Any:
        settings.rate += 1
        return x * settings.rate

    g = compiled(f)
    assert [g(torch.ones(1)).item() for _ in range(3)] == [2.0, 3.0, 4.0]
    assert settings.rate == 4.0


def test_the_way_to_a_number_is_not_called() -> None:
    """Only dictionaries, lists and cells are looked at, so that the question has no effect."""

    @dataclasses.dataclass
    class Lazy:
        asked: int = 0

        def __getattr__(self, name: str) -> Any:
            if name == "factor":
                self.asked += 1
                return 3.0
            raise AttributeError(name)

    lazy = Lazy()
    assert compiled(lambda x: x * lazy.factor)(torch.ones(1)).item() == 3.0 and lazy.asked == 1


class Inner:
    def __init__(self) -> None:
        self.rate, self.bias = 2.0, 1.0

    def comprehended(self, x: Any) -> Any:
        return sum([x * self.bias for _ in range(1)]) * self.rate

    def defining(self, x: Any) -> Any:
        rate = self.rate
        return (lambda y: y * rate * self.bias)(x)


@pytest.mark.parametrize("name", ["comprehended", "defining"])
def test_what_a_method_reads_beside_a_function_inside_that_uses_self_makes_another_program(
    name: str,
) -> None:
    inner = Inner()
    f = compiled(getattr(inner, name))
    assert f(torch.ones(1)).item() == 2.0
    inner.rate = 3.0
    assert f(torch.ones(1)).item() == 3.0
    inner.bias = 5.0
    assert f(torch.ones(1)).item() == 15.0


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (1, 1, True),
        (1, 1.0, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (tuple(range(2)), tuple(range(2)), True),
        ({"a": 1}, {"a": 2}, False),
    ],
)
def test_two_objects_are_the_same_for_a_graph(a: object, b: object, expected: bool) -> None:
    """A graph serves as long as what its program reads is the same."""
    settings = Settings()
    settings.rate = a  # type: ignore[assignment]

    def f(x: Any) -> Any:
        return x + len(repr(settings.rate))

    programs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        programs.append(module)
        return aot.nop(module, inputs)

    kept = aot.aot_function(f, keep)
    assert kept(torch.zeros(1)).item() == len(repr(a))
    settings.rate = b  # type: ignore[assignment]
    assert kept(torch.zeros(1)).item() == len(repr(b))
    assert len(programs) == 1 + (not expected)
