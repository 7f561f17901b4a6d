"""An object of C is state if it says what it has. A program that has a name for one which does not
say it is refused, with its line."""

from __future__ import annotations

import array
import ast
import csv
import datetime
import decimal
import enum
import hashlib
import importlib
import io
import itertools
import operator
import queue
import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runtime import jit
from runtime.aot import aot_function, nop

X = torch.ones(1)


# an object that does not say what it has, and what a program does with it
class Queue(queue.SimpleQueue[int]):
    """A class of the user's, whose items are in the part that C has."""


OPAQUE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a digest": (hashlib.sha256, lambda h: h.digest()[0]),
    "a compressor": (zlib.compressobj, lambda z: len(z.compress(b"abc"))),
    "a reader of csv": (lambda: csv.reader(["1", "2"]), lambda r: r.line_num),
    "a queue of a class of the user's": (Queue, lambda q: q.qsize() + 1),
    "calls of a function": (lambda: iter(lambda: 1, 2), next),
    "pairs": (lambda: itertools.pairwise([1, 2, 3]), operator.length_hint),
    "matches": (lambda: re.finditer("a", "aaa"), lambda m: next(m).start()),
    "a function for elements": (
        lambda: np.frompyfunc(lambda v: v * 2, 1, 1),
        lambda double: double(3),
    ),
    "elements of an array": (lambda: np.arange(3.0).flat, lambda f: f.index),
}


class Strategy:
    """An object that has no attribute, and no place for one."""

    __slots__ = ()

    def rate(self) -> float:
        return 3.0


class Setting:
    rate = 2.0


CONSTANT: dict[str, tuple[object, Callable[[Any], float]]] = {
    "a pattern": (re.compile("a+"), lambda p: len(p.findall("aba"))),
    "a date": (datetime.date(2020, 1, 2), lambda d: d.day),
    "a format": (struct.Struct("i"), lambda s: s.size),
    "an item of others": (operator.itemgetter(1), lambda get: get([3, 4])),
    "a function of NumPy's": (np.clip, lambda clip: float(clip(5.0, 0.0, 3.0))),
    "a function of NumPy's for texts": (np.strings.str_len, lambda count: int(count("ab"))),
    "a generic class": (list[int], lambda kind: len(kind.__args__)),
    "a function of NumPy": (np.hypot, lambda hypot: float(hypot(3, 4))),
    "a function of NumPy's arrays": (np.sum, lambda total: float(total([1, 2]))),
    "a tree of syntax": (ast.parse("a + b"), lambda tree: len(tree.body)),
    "a dtype of NumPy": (np.dtype("float32"), lambda d: d.itemsize),
    "an object of a class without slots": (Strategy(), lambda s: s.rate()),
    "an enumeration of C++": (torch.nn.attention.SDPBackend.MATH, int),
    "an object without parts": (object(), lambda x: float(x is not None)),
}


@pytest.mark.parametrize("kind", OPAQUE)
def test_a_program_with_a_name_for_an_object_that_does_not_say_what_it_has_is_refused(
    kind: str,
) -> None:
    make, use = OPAQUE[kind]
    holder = SimpleNamespace(part=make())

    def program(x: Any) -> Any:
        return x * use(holder.part)

    with pytest.raises(
        RuntimeError,
        match=r"(?s)can come to .*part, a .* of C, which does not say.*ignore=.*test_objects_of_c",
    ):
        jit(program)(X)


@pytest.mark.parametrize("kind", CONSTANT)
def test_a_constant_of_c_is_part_of_a_program(kind: str) -> None:
    constant, use = CONSTANT[kind]
    f = jit(lambda x: x * use(constant))
    for _ in range(3):
        assert f(X).item() == use(constant)
    assert len(f.captured) == 1


def test_what_a_constant_of_c_holds_is_state() -> None:
    kinds: Any = list[Setting]
    f = jit(lambda x: x * kinds.__args__[0].rate)
    assert f(X).item() == 2
    Setting.rate = 4.0
    assert f(X).item() == 4


def test_what_the_program_does_not_depend_on_may_be_ignored() -> None:
    digest = hashlib.sha256()
    f = jit(lambda x: x * len(digest.name), ignore=[digest])
    assert [f(X).item() for _ in range(3)] == [6, 6, 6]


def test_an_object_that_a_program_has_no_name_for_is_no_matter() -> None:
    holder = SimpleNamespace(rate=2.0, digest=hashlib.sha256())
    assert jit(lambda x: x * holder.rate)(X).item() == 2


def test_an_object_that_a_computed_name_may_lead_to_is_refused() -> None:
    holder = SimpleNamespace(digest_1=hashlib.sha256())
    with pytest.raises(RuntimeError, match="does not say whether"):
        jit(lambda x: x * getattr(holder, f"digest_{len(x)}").digest()[0])(X)


def test_an_object_that_a_member_of_an_enumeration_has_is_refused() -> None:
    kinds = enum.Enum("kinds", {"first": hashlib.sha256()})
    with pytest.raises(RuntimeError, match="does not say whether"):
        jit(lambda x: x * kinds["first"].value.digest()[0])(X)


class Digest:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def next_byte(self) -> int:
        self.digest.update(b"a")
        return self.digest.digest()[0]


DIGEST = Digest()


def test_a_program_that_names_an_opaque_object_runs_eagerly_if_wanted() -> None:
    calls = list[str]()

    def program(x: Any) -> Any:
        calls.append("before")
        return x * DIGEST.next_byte()

    f = jit(program, on_break="eager")
    DIGEST.digest = hashlib.sha256()
    with pytest.warns(UserWarning, match=r"runs eagerly: .* does not say .*self\.digest\.update"):
        first = f(X)
    assert first.item() == hashlib.sha256(b"a").digest()[0]
    assert f(X).item() == hashlib.sha256(b"aa").digest()[0]
    assert calls == ["before"] * 2


def test_a_program_that_catches_the_refusal_of_an_opaque_object_is_refused() -> None:
    def program(x: Any) -> Any:
        for _ in range(2):
            try:
                DIGEST.next_byte()
            except RuntimeError:
                x = x + 1
        return x

    with pytest.raises(RuntimeError, match="does not say") as error:
        jit(program, on_break="eager")(X)
    assert any("gone on after this refusal" in note for note in error.value.__notes__)


@pytest.mark.parametrize("values", [bytearray(b"ab"), array.array("i", [1, 2])])
def test_an_array_of_bytes_that_grows_is_refused_or_grows_in_each_call(values: Any) -> None:
    expected = values[:]

    def program(x: Any) -> Any:
        if len(values) < 5:
            values.append(7)
        return x * len(values)

    f = jit(program)
    for _ in range(5):
        if len(expected) < 5:
            expected.append(7)
        assert f(X).item() == len(expected)
        assert values == expected


@pytest.mark.parametrize("newline", ["\n", "\r\n", ""])
def test_a_stream_in_memory_keeps_its_ends_of_lines(newline: str) -> None:
    stream, expected = (io.StringIO("a\nb\n", newline=newline) for _ in range(2))

    def write(to: io.StringIO) -> int:
        to.seek(0)
        to.truncate()
        to.write("q\n")
        return len(to.getvalue())

    f = jit(lambda x: x * write(stream))
    for _ in range(3):
        assert f(X).item() == write(expected)
        assert stream.getvalue() == expected.getvalue() and stream.tell() == expected.tell()


def test_whether_an_array_may_be_written_to_is_state() -> None:
    values = np.arange(3.0)
    f = jit(lambda x: x * (2 if values.flags.writeable else 3))
    assert f(X).item() == 2
    values.flags.writeable = False
    assert f(X).item() == 3


@pytest.mark.parametrize("mode", ["w", "r+", "a"])
def test_a_program_that_writes_to_a_file_is_refused_before_it_does(
    mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_text("first\n")
    with path.open(mode) as file:
        before = path.read_text()

        def program(x: Any) -> Any:
            file.write("second\n")
            return x

        with pytest.raises(RuntimeError, match=r"calls TextIOWrapper\.write, which no call"):
            jit(program)(X)
        file.flush()
        assert path.read_text() == before


def test_an_array_and_its_view_that_a_refused_program_has_locked_may_be_written_to_again() -> None:
    values = np.arange(4.0)
    view = values[:2]

    def program(x: Any) -> Any:
        view.flags.writeable = values.flags.writeable = False
        return x if x.tolist()[0] > 0 else -x  # cannot be captured

    with pytest.raises(RuntimeError, match="asks for the elements"):
        jit(program)(X)
    assert values.flags.writeable and view.flags.writeable


# what a program finds in an exception, and a change of it
PARTS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], None]]] = {
    "its cause": (
        lambda: ValueError("a"),
        lambda e: 1 if e.__cause__ is None else 2,
        lambda e: setattr(e, "__cause__", KeyError()),
    ),
    "its number": (lambda: OSError(3, "a"), lambda e: e.errno, lambda e: setattr(e, "errno", 4)),
    "its value": (lambda: StopIteration(3), lambda e: e.value, lambda e: setattr(e, "value", 4)),
}


@pytest.mark.parametrize("part", PARTS)
def test_what_an_exception_has_is_state(part: str) -> None:
    make, find, change = PARTS[part]
    error = make()
    f = jit(lambda x: x * find(error))
    for _ in range(2):
        assert f(X).item() == find(error)
        change(error)


def test_objects_in_the_fields_of_an_array_are_state() -> None:
    values = np.array([(1, Setting())], dtype=[("count", int), ("setting", object)])
    f = jit(lambda x: x * values[0]["setting"].rate)
    for rate in (2.0, 5.0):
        values[0]["setting"].rate = rate
        assert f(X).item() == rate


def test_the_names_of_the_fields_of_an_array_are_state() -> None:
    values = np.zeros(1, dtype=[("first", int)])
    f = jit(lambda x: x * len(str(values.dtype.names)))
    assert f(X).item() == len("('first',)")
    values.dtype.names = ("second",)
    assert f(X).item() == len("('second',)")


EQUAL: dict[str, tuple[list[Any], Callable[[Any], float]]] = {
    "slices": ([slice(0, 1), slice(0, True), slice(-0.0)], lambda s: len(repr(s))),
    "ranges": ([range(0), range(5, 5), range(0, 0, 3)], lambda r: r.start + r.step),
    "decimals": ([decimal.Decimal("1.0"), decimal.Decimal("1.00")], lambda d: len(str(d))),
    "zeros": ([np.float32(0.0), np.float32(-0.0)], lambda z: float(np.copysign(1, z))),
    "dates": ([np.datetime64("2020-01-01"), np.datetime64("2020-01-01T00")], lambda d: len(str(d))),
}


@pytest.mark.parametrize("kind", EQUAL)
def test_constants_that_are_equal_and_differ_are_two_states_and_two_arguments(kind: str) -> None:
    values, use = EQUAL[kind]
    holder = SimpleNamespace(value=values[0])
    f = jit(lambda x: x * use(holder.value))
    g = jit(lambda x, value: x * use(value))
    for value in values:
        holder.value = value
        assert f(X).item() == use(value) == g(X, value).item()


@pytest.mark.parametrize("way", [jit, lambda f: aot_function(f, nop)])
@pytest.mark.parametrize("place", ["an attribute", "an item", "its elements"])
def test_the_state_of_a_generator_of_torch_is_not_kept(place: str, way: Any) -> None:
    holder = SimpleNamespace(state=None, states=[])

    def program(x: Any) -> Any:
        if place == "an attribute":
            holder.state = torch.get_rng_state()
        elif place == "an item":
            holder.states.append(torch.get_rng_state())
        else:
            x = x * sum(torch.get_rng_state().tolist())
        return x * 2

    with pytest.raises(RuntimeError, match="uses the state of a random generator"):
        way(program)(X)
    assert holder.state is None and not holder.states


def test_an_op_of_the_users_and_functions_of_scipy_are_no_unknown_state() -> None:
    @torch.library.custom_op("test_objects_of_c::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)
    fft = importlib.import_module("scipy.fft")
    held = SimpleNamespace(op_1=twice, other=fft.ihfftn)
    f = jit(lambda x: getattr(held, f"op_{len(x)}")(x))
    assert f(X).item() == 2
