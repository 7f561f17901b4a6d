"""Whatever an object is of, and whenever it gets an attribute: what a program reads of it is
state."""

from __future__ import annotations

import abc
import collections
import dataclasses
import datetime
import decimal
import functools
import io
import itertools
import logging
import random
import struct
import threading
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import fx

from runtime import jit

X = torch.ones(1)
Case = tuple[Callable[[Any], Any], Callable[[], Any]]
"""A program, and what others do between its calls."""


class TensorOfUser(torch.Tensor):
    scale: float


class NumberOfUser(decimal.Decimal):
    scale: float


class BytesOfUser(bytearray):
    def __bytes__(self) -> bytes:
        return b""


class MissingOfUser(dict[str, int]):
    scale = 2

    def __missing__(self, key: str) -> int:
        return self.scale


class GeneratorOfUser(torch.Generator):
    pass


class ReferenceOfUser(weakref.ref[Any]):
    pass


class ZoneOfUser(datetime.tzinfo):
    hours = 1

    def utcoffset(self, moment: datetime.datetime | None, /) -> datetime.timedelta:
        return datetime.timedelta(seconds=self.hours)

    def dst(self, moment: datetime.datetime | None, /) -> None:
        return None

    def tzname(self, moment: datetime.datetime | None, /) -> str:
        return "of the user"


def attribute_of(x: Any) -> Case:
    """A program that reads an attribute which ``x`` gets, or has another value of, later."""
    return lambda y: y * getattr(x, "scale", 1), functools.partial(setattr, x, "scale", 3)


def of_reference() -> Case:
    return attribute_of(ReferenceOfUser(torch))


def of_class(c: Any) -> Case:
    return lambda y: y * c.scale, functools.partial(setattr, c, "scale", 3)


def of_named_tuple() -> Case:
    kind = collections.namedtuple("kind", "first")
    changed, found = cast("Any", kind), cast("Any", kind(1))
    changed.scale = 2
    return lambda y: y * found.scale, lambda: setattr(changed, "scale", 3)


def of_graph_module() -> Case:
    module: Any = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Identity()))
    module.scale = 2
    return lambda y: module(y) * module.scale, lambda: setattr(module, "scale", 3)


def of_graph_node() -> Case:
    module = fx.symbolic_trace(torch.nn.Sequential(torch.nn.Identity()))
    first = next(iter(module.graph.nodes))
    first.meta["scale"] = 2
    return lambda y: y * first.meta["scale"], lambda: first.meta.update(scale=3)


def of_cached_result() -> Case:
    @functools.cache
    def config() -> dict[str, int]:
        return {"scale": 2}

    return lambda y: y * config()["scale"], lambda: config().update(scale=3)


def of_hits() -> Case:
    @functools.cache
    def config() -> int:
        return 1

    return lambda y: y * config.cache_info().hits, config


def of_record() -> Case:
    record: Any = np.zeros(1, dtype=[("scale", "f8")])[0]
    return lambda y: y * float(record["scale"]), lambda: record.__setitem__("scale", 3)


def of_struct() -> Case:
    layout = struct.Struct("i")
    return lambda y: y * layout.size, lambda: layout.__init__("d")  # type: ignore[misc]


def of_zone() -> Case:
    zone = ZoneOfUser()
    moment = datetime.datetime(2020, 1, 1, tzinfo=zone)
    offset: Any = moment.utcoffset
    return lambda y: y * offset().seconds, lambda: setattr(zone, "hours", 3)


def of_logger() -> Case:
    log = logging.getLogger("runtime.of_logger")
    log.setLevel(logging.WARNING)
    return (
        lambda y: y * (2 if log.isEnabledFor(logging.DEBUG) else 1),
        lambda: log.setLevel(logging.DEBUG),
    )


def of_thread_name() -> Case:
    thread = threading.Thread(name="a")
    return lambda y: y * len(thread.name), lambda: setattr(thread, "name", "abc")


def of_proxy() -> Case:
    own = MissingOfUser(a=1)
    proxy = types.MappingProxyType(own)
    return lambda y: y * proxy["b"], lambda: setattr(own, "scale", 3)


def of_finalizer() -> Case:
    held = [ZoneOfUser()]
    finalizer: Any = weakref.finalize(held[0], int)
    return lambda y: y * (2 if finalizer.alive else 1), held.clear


def of_exception() -> Case:
    error: Any = ValueError(1)
    error.__context__ = KeyError(2)
    later = KeyError(3)
    return lambda y: y * error.__context__.args[0], lambda: setattr(error, "__context__", later)


def of_bytes() -> Case:
    own = BytesOfUser(b"\1")
    return lambda y: y * own[0], lambda: own.__setitem__(0, 3)


def of_context() -> Case:
    one, three = decimal.Decimal(1), decimal.Decimal(3)

    def change() -> None:
        decimal.getcontext().prec = 2

    return lambda y: y * float(one / three), change


def of_dictionary_of_tensor() -> Case:
    scales: Any = torch.ones(1)
    later = {"scale": 3}
    return lambda y: y * getattr(scales, "scale", 1), lambda: setattr(scales, "__dict__", later)


def of_hooks() -> Case:
    layer = torch.nn.Identity()

    def scaled(y: Any) -> Any:
        return y * getattr(layer._forward_hooks, "scale", 1)

    # the layer is reached before the program enters the code that has the name
    return lambda y: scaled(layer(y)), lambda: setattr(layer._forward_hooks, "scale", 3)


def of_hooks_around() -> Case:
    layer = torch.nn.Identity()
    hooks = layer._forward_hooks
    return lambda y: layer(y) * getattr(hooks, "scale", 1), lambda: setattr(hooks, "scale", 3)


CASES: dict[str, Callable[[], Case]] = {
    "a class of tensors": lambda: attribute_of(X.as_subclass(TensorOfUser)),
    "a class of numbers": lambda: attribute_of(NumberOfUser(2)),
    "an exception": lambda: attribute_of(ValueError(1)),
    "a generator": lambda: attribute_of(GeneratorOfUser()),
    "a function behind a cache": lambda: attribute_of(functools.cache(int)),
    "a partial function": lambda: attribute_of(functools.partial(int)),
    "a weak reference": of_reference,
    "a class that make_dataclass has made": lambda: of_class(
        dataclasses.make_dataclass("A", [("scale", int, 2)])
    ),
    "a class that a metaclass has made": lambda: of_class(abc.ABCMeta("A", (), {"scale": 2})),
    "a class of tuples": of_named_tuple,
    "a graph module": of_graph_module,
    "a node of a graph": of_graph_node,
    "a result that a cache keeps": of_cached_result,
    "how often a cache was asked": of_hits,
    "a NumPy scalar with fields": of_record,
    "a layout of bytes": of_struct,
    "a time zone": of_zone,
    "a logger": of_logger,
    "a thread": of_thread_name,
    "a mapping behind a proxy": of_proxy,
    "a finalizer": of_finalizer,
    "an exception's context": of_exception,
    "bytes of a class with its own text": of_bytes,
    "the context of decimals": of_context,
    "another dictionary of a tensor": of_dictionary_of_tensor,
    "the hooks of a layer": of_hooks,
    "the hooks of a layer, by another name": of_hooks_around,
}


@pytest.mark.parametrize("name", CASES)
def test_a_call_follows_what_others_have_changed(name: str) -> None:
    with decimal.localcontext():
        program, change = CASES[name]()
        f = jit(program)
        for _ in range(2):
            assert torch.equal(f(X), program(X))
            assert torch.equal(f(X), program(X))
            change()


def test_no_node_runs_the_code_of_a_mapping() -> None:
    class Counting(Mapping[str, int]):
        asked = 0

        def __getitem__(self, key: str) -> int:
            return 2

        def __iter__(self) -> Any:
            Counting.asked += 1
            return iter("a")

        def __len__(self) -> int:
            return 1

    proxy = types.MappingProxyType(Counting())
    f = jit(lambda x: x * proxy["a"])
    assert [f(X).item() for _ in range(3)] == [2, 2, 2] and Counting.asked == 0


def test_no_node_runs_the_getstate_of_a_generator() -> None:
    class Own(random.Random):
        def getstate(self) -> tuple[Any, ...]:
            return ()

    own = Own(1)
    with pytest.raises(RuntimeError, match="draws from 'own'"):
        jit(lambda x: x * own.random())(X)


def test_a_view_of_memory_with_gaps_is_put_back_and_written() -> None:
    memory, expected = bytearray(b"\1\2\3\4"), bytearray(b"\1\2\3\4")

    def program(x: Any, view: Any) -> Any:
        view[0] = view[0] + 1
        return x * view[0]

    view, other = memoryview(memory)[::2], memoryview(expected)[::2]
    f = jit(lambda x: program(x, view))
    for _ in range(3):
        assert torch.equal(f(X), program(X, other)) and memory == expected


def test_a_view_of_memory_that_is_released_is_another_state() -> None:
    view, flags = memoryview(bytearray(b"\2")), {"open": True}
    f = jit(lambda x: x * view[0] if flags["open"] else x)
    assert f(X).item() == 2
    flags["open"] = False
    view.release()
    assert f(X).item() == 1


def test_a_refusal_leaves_what_several_iterators_share() -> None:
    first, second = itertools.tee(iter(range(4)))

    def program(x: Any) -> Any:
        next(first)
        return x

    with pytest.raises(RuntimeError, match="takes items from"):
        jit(program)(X)
    assert list(second) == [0, 1, 2, 3]


def test_a_stream_of_the_users_class_is_no_unknown_state() -> None:
    class Tee(io.TextIOBase):
        scale = 2

    tee = Tee()
    f = jit(lambda x: x * tee.scale)
    assert f(X).item() == 2
    Tee.scale = 3
    assert f(X).item() == 3
