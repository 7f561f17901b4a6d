"""Kinds of Python's state that a jitted program follows: names of classes, types of items, streams,
files, modules that a text names, methods of new objects."""

from __future__ import annotations

import functools
import importlib
import io
import sys
import types
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runtime

Tensor = torch.Tensor
X = torch.ones(2)


def line_of(f: Any) -> str:
    """The line after the first one of ``f``, as an error names it."""
    return f"{__file__}:{f.__code__.co_firstlineno + 1}"


def test_a_class_that_is_renamed_is_another_state() -> None:
    class Layer:
        pass

    f = runtime.jit(lambda x: x * len(Layer.__name__))
    assert f(X)[0] == 5
    Layer.__name__ = "Deep"
    assert f(X)[0] == 4


def test_a_class_that_the_program_renames_has_that_name_after_each_call() -> None:
    class Layer:
        pass

    def f(x: Tensor) -> Tensor:
        Layer.__name__ = "Flat" if Layer.__name__ == "Deep" else "Deep"
        return x * 2

    jitted = runtime.jit(f)
    names = []
    for _ in range(4):
        jitted(X)
        names.append(Layer.__name__)
    assert names == ["Deep", "Flat", "Deep", "Flat"]


def test_a_class_that_the_program_gives_another_base_has_it_after_each_call() -> None:
    class Left:
        rate = 2.0

    class Right:
        rate = 3.0

    class Heir(Left):
        pass

    def f(x: Tensor) -> Tensor:
        y = x * Heir.rate
        Heir.__bases__ = (Right,) if Heir.__bases__ == (Left,) else (Left,)
        return y

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(4)] == [2, 3, 2, 3]
    assert Heir.__bases__ == (Left,)


class Double:
    def scale(self, x: Tensor) -> Tensor:
        return x * 2


class Triple:
    def scale(self, x: Tensor) -> Tensor:
        return x * 3


def test_a_call_gives_an_object_its_other_class_and_nothing_else() -> None:
    thing: Any = Double()

    def f(x: Tensor) -> Tensor:
        thing.__class__ = Double if type(thing) is Triple else Triple
        scaled: Tensor = thing.scale(x)
        return scaled

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(4)] == [3, 2, 3, 2]
    assert type(thing) is Double and vars(thing) == {}


def test_equal_items_of_another_type_are_another_set() -> None:
    items: set[float] = {1}
    f = runtime.jit(lambda x: x * (2 if type(next(iter(items))) is int else 3))
    assert f(X)[0] == 2
    items.clear()
    items.add(1.0)
    assert f(X)[0] == 3


def test_equal_items_of_another_type_are_another_frozen_set() -> None:
    box = SimpleNamespace(items=frozenset([1]))
    f = runtime.jit(lambda x: x * (2 if type(next(iter(box.items))) is int else 3))
    assert f(X)[0] == 2
    box.items = frozenset([1.0])
    assert f(X)[0] == 3


class Hashed:
    """Counts what a comparison asks of it."""

    asked = 0

    def __hash__(self) -> int:
        Hashed.asked += 1
        return 1

    def __eq__(self, other: object) -> bool:
        Hashed.asked += 1
        return True


def test_neither_a_capture_nor_a_call_asks_an_item_of_a_set() -> None:
    items = {Hashed()}
    before = Hashed.asked
    f = runtime.jit(lambda x: x * len(items))
    for _ in range(3):
        assert f(X)[0] == 1
    assert Hashed.asked == before


def test_a_stream_in_memory_is_read_from_where_it_is() -> None:
    def read(stream: io.StringIO) -> Any:
        return lambda x: x * float(stream.readline())

    expected, found = (io.StringIO("1\n2\n3\n4\n") for _ in range(2))
    plain, jitted = read(expected), runtime.jit(read(found))
    for _ in range(3):
        assert jitted(X)[0] == plain(X)[0]
        assert found.tell() == expected.tell()


def test_a_stream_in_memory_gets_what_the_program_writes() -> None:
    stream = io.BytesIO()

    def f(x: Tensor) -> Tensor:
        if not stream.getvalue():
            stream.write(b"once")
        return x * len(stream.getvalue())

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(3)] == [4, 4, 4]
    assert stream.getvalue() == b"once"


@pytest.fixture
def numbers(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "numbers").write_text("1\n2\n3\n")
    with (tmp_path / "numbers").open() as file:
        yield file


def test_a_file_that_the_program_reads_is_refused_and_put_back(numbers: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return x * float(numbers.readline())

    with pytest.raises(RuntimeError, match="takes items from 'numbers' around") as caught:
        runtime.jit(f)(X)
    assert line_of(f) in str(caught.value)
    assert numbers.readline() == "1\n"


@pytest.fixture
def settings() -> Iterator[Any]:
    module: Any = types.ModuleType("settings_by_name")
    module.rate = 2.0
    sys.modules[module.__name__] = module
    yield module
    del sys.modules[module.__name__]


def test_a_module_that_a_computed_text_names_is_state(settings: Any) -> None:
    f = runtime.jit(lambda x: x * importlib.import_module("_".join(["settings", "by_name"])).rate)
    assert f(X)[0] == 2
    settings.rate = 3.0
    assert f(X)[0] == 3


def test_a_module_that_takes_the_place_of_another_is_state(settings: Any) -> None:
    def f(x: Tensor) -> Any:
        import settings_by_name  # type: ignore[import-not-found]

        return x * settings_by_name.rate

    def g(x: Tensor) -> Any:
        return x * importlib.import_module("_".join(["settings", "by_name"])).rate

    jitted = [runtime.jit(f), runtime.jit(g)]
    assert [h(X)[0].item() for h in jitted] == [2, 2]
    other: Any = types.ModuleType(settings.__name__)
    other.rate = 3.0
    sys.modules[settings.__name__] = other
    assert [h(X)[0].item() for h in jitted] == [3, 3]
    other.rate = 4.0
    assert [h(X)[0].item() for h in jitted] == [4, 4]


def test_a_module_that_was_missing_and_then_there_is_state() -> None:
    def f(x: Tensor) -> Any:
        try:
            import settings_to_come as settings  # type: ignore[import-not-found]
        except ImportError:
            return x
        return x * settings.rate

    jitted = runtime.jit(f)
    assert jitted(X)[0] == 1
    module: Any = types.ModuleType("settings_to_come")
    module.rate = 2.0
    sys.modules[module.__name__] = module
    try:
        assert jitted(X)[0] == 2
    finally:
        del sys.modules[module.__name__]
    assert jitted(X)[0] == 1


def test_keywords_of_a_partial_function_are_put_back_after_a_refusal() -> None:
    scale = functools.partial(torch.mul, other=2.0)

    def f(x: Tensor) -> Tensor:
        scale.keywords["other"] = 3.0
        return scale(x) * torch.tensor(x.tolist())

    with pytest.raises(RuntimeError, match=r"being traced|elements"):
        runtime.jit(f)(X)
    assert scale.keywords == {"other": 2.0}


def test_keywords_of_a_partial_function_change_in_each_call() -> None:
    scale = functools.partial(torch.mul, other=2.0)

    def f(x: Tensor) -> Tensor:
        scale.keywords["other"] += 1.0
        scaled: Tensor = scale(x)
        return scaled

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(4)] == [3, 4, 5, 6]
    assert scale.keywords == {"other": 6.0}


class Held:
    def __init__(self, value: Any) -> None:
        self.value = value

    def read(self) -> Any:
        return self.value


def test_a_method_of_a_new_object_with_a_computed_tensor_is_refused() -> None:
    box = SimpleNamespace(read=None)

    def f(x: Tensor) -> Tensor:
        box.read = Held(x * 2).read
        return x * 3

    with pytest.raises(RuntimeError, match="assigns a method") as caught:
        runtime.jit(f)(X)
    assert line_of(f) in str(caught.value)
    assert box.read is None


def test_two_states_of_named_defaults_have_two_programs() -> None:
    def scale(x: Tensor, *, by: float = 2.0) -> Tensor:
        return x * by

    function: Any = scale

    def f(x: Tensor) -> Tensor:
        y = scale(x)
        function.__kwdefaults__ = {"by": 5.0 - function.__kwdefaults__["by"]}
        return y

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(12)] == [2, 3] * 6


def test_a_program_with_another_state_after_each_call_is_refused_by_its_line() -> None:
    seen: list[float] = []

    def f(x: Tensor) -> Tensor:
        seen.append(0.5)
        return x * sum(seen)

    jitted = runtime.jit(f)
    with pytest.raises(RuntimeError, match="captured 8 times in turn") as caught:
        for _ in range(9):
            jitted(X)
    line = f.__code__.co_firstlineno + 1
    assert str(caught.value).endswith(f" It happened at {__file__}:{line}: seen.append(0.5)")
    assert len(seen) == 8


@pytest.mark.parametrize(
    "items",
    [iter([1.0, 2.0]), zip([1.0, 2.0], [3, 4], strict=True), enumerate([1.0, 2.0])],
    ids=["iter", "zip", "enumerate"],
)
def test_an_item_that_is_taken_is_refused_by_the_line_that_takes_it(items: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.tensor(next(items)).sum()

    with pytest.raises(RuntimeError, match="takes items from 'items' around") as caught:
        runtime.jit(f)(X)
    assert line_of(f) in str(caught.value)


def test_a_call_deletes_and_makes_a_class_attribute() -> None:
    class Box:
        rate = 2.0

    def f(x: Tensor) -> Tensor:
        if hasattr(Box, "rate"):
            rate = Box.rate
            del Box.rate
            return x * rate
        Box.rate = 3.0
        return x * 5

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(6)] == [2, 5, 3, 5, 3, 5]


def test_a_name_that_a_module_gets_is_another_state(settings: Any) -> None:
    del settings.rate

    def f(x: Tensor) -> Tensor:
        import settings_by_name

        try:
            rate: float = settings_by_name.rate
        except AttributeError:
            return x * 7
        return x * rate

    jitted = runtime.jit(f)
    assert jitted(X)[0] == 7
    settings.rate = 4.0
    assert jitted(X)[0] == 4


def test_a_call_makes_a_name_of_a_module(settings: Any) -> None:
    del settings.rate

    def f(x: Tensor) -> Tensor:
        import settings_by_name as found

        rate: float = getattr(found, "rate", 0.0) + 1.0
        found.rate = rate
        return x * rate

    jitted = runtime.jit(f)
    assert [jitted(X)[0].item() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert settings.rate == 5.0


def test_a_cache_that_the_program_empties_has_the_results_of_plain_python() -> None:
    def made() -> Any:
        box = SimpleNamespace(flag=True)

        @functools.lru_cache
        def held() -> bool:
            return bool(box.flag)

        def f(x: Tensor) -> Tensor:
            box.flag = not held()
            held.cache_clear()
            return x * (2 if held() else 3)

        return f, held

    (plain, expected), (f, found) = made(), made()
    jitted = runtime.jit(f)
    for _ in range(5):
        assert jitted(X)[0] == plain(X)[0]
        assert found() == expected()


def test_what_only_a_generator_holds_is_put_back_after_a_refusal() -> None:
    items = [1.0]

    def generate() -> Iterator[list[float]]:
        held = items
        while True:
            yield held

    generator = generate()
    del generate

    def f(x: Tensor) -> Tensor:
        next(generator).append(2.0)
        return x * 2

    with pytest.raises(RuntimeError, match="takes items from 'generator' around") as caught:
        runtime.jit(f)(X)
    assert line_of(f) in str(caught.value)
    assert items == [1.0]


@pytest.mark.parametrize("kind", ["object", "class"])
def test_an_attribute_in_the_place_of_another_is_another_state(kind: str) -> None:
    class Box:
        first = 1.0

    box: Any = Box
    if kind == "object":
        box = Box()
        box.first = 1.0

    def f(x: Tensor) -> Tensor:
        try:
            rate: float = box.late
        except AttributeError:
            rate = 7.0
        return x * rate

    jitted = runtime.jit(f)
    assert jitted(X)[0] == 7
    del box.first
    box.late = 3.0
    assert jitted(X)[0] == 3


def test_a_cache_that_was_emptied_keeps_no_value_of_a_capture() -> None:
    box = SimpleNamespace(rate=torch.ones(1))

    @functools.lru_cache
    def held() -> Tensor:
        return torch.cat([box.rate, box.rate[:1]])

    def f(x: Tensor) -> Tensor:
        box.rate = held()
        held.cache_clear()
        return x * held().sum()

    assert held().sum() == 2
    jitted = runtime.jit(f)
    for n in (3, 4, 5):
        assert jitted(X)[0] == n
        assert held().sum() == n


@pytest.mark.parametrize("most", [None, 4])
def test_a_cache_that_was_filled_again_is_another_state(most: int | None) -> None:
    box = SimpleNamespace(rates=(2.0, 3.0))

    @functools.lru_cache(most)
    def held() -> Any:
        return box.rates

    def f(x: Tensor, turns: bool) -> Tensor:
        if turns:
            box.rates = held()[::-1]
            held.cache_clear()
        rate: float = held()[0]
        return x * rate

    jitted = runtime.jit(f)
    expected = (2.0, 3.0)
    for turns in (False, False, True, False, False, True, False, False, True, False):
        expected = expected[::-1] if turns else expected
        assert jitted(X, turns)[0] == expected[0]
        assert held() == expected


def test_another_default_factory_is_another_state() -> None:
    counts: defaultdict[str, Any] = defaultdict(int)

    @runtime.jit
    def f(x: torch.Tensor) -> Any:
        return x * counts["new"]

    x = torch.ones(2)
    assert f(x).tolist() == [0.0, 0.0]
    del counts["new"]
    counts.default_factory = lambda: 3
    assert f(x).tolist() == [3.0, 3.0] and counts["new"] == 3
