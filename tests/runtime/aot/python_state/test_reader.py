"""Which places of Python's state a program is known to read: these, and no others, are asked
for by each call."""

from __future__ import annotations

import functools
import math
import operator
import types
import weakref
from collections import ChainMap, UserDict, defaultdict, deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from runtime.aot.python_state import reader
from runtime.aot.python_state.reader import reads_of, tensors_read
from runtime.aot.python_state.reads import FACTS, MISSING, WHOLE, Read, Slots


class Scale:
    shared = 3.0

    def __init__(self, rate: float = 1.0) -> None:
        self.rate = rate

    def times(self, x: Any) -> Any:
        return x * self.rate

    @property
    def twice(self) -> float:
        return self.rate * 2

    @classmethod
    def of_class(cls, x: Any) -> Any:
        return x * cls.shared

    @staticmethod
    def static(x: Any) -> Any:
        return x * rate

    def __call__(self, x: Any) -> Any:
        return x * self.rate

    def __iter__(self) -> Iterator[float]:
        return iter([self.other])  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return str(rate)

    def by_name(self, x: Any) -> Any:
        return x * config["rate"]

    def ends_as_special__(self) -> Any:
        return config

    __begins_as_special = ends_as_special__  # which no operator calls either
    by_getter = property(operator.attrgetter("rate"))
    of_torch = staticmethod(torch.sin)
    of_python = classmethod(operator.attrgetter("shared"))
    thrice = functools.cached_property(lambda self: self.rate * 3)

    def of_another(self, other: Any) -> Any:
        return other.rate

    def of_all(*those: Any) -> Any:
        return those[0].rate


class Heir(Scale):
    pass


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 1.0


class SlottedHeir(Slotted):
    __slots__ = ()


class Names(dict[str, float]):
    def __getattr__(self, name: str) -> float:
        return self[name]


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Dropout(0.0)
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(1))
        self.factor = 2.0

    def forward(self, x: Any) -> Any:
        return self.inner(x * self.factor * self.weight + self.mean)


class Own(dict[str, float]):
    pass


def calling(h: Any, x: Any) -> Any:
    return h.scale.times(x)


def placed(t: Any) -> Any:
    return t.data_ptr()


def placed_inside(h: Any) -> Any:
    return h.inside.data_ptr()


def versioned(t: Any) -> Any:
    return t._version


def keyed(d: Any) -> Any:
    return d["data_ptr"]


rate = 2.0
config = {"rate": 1.0, "other": 2.0}
pair = [1.0, 2.0]
row = (1.0, [2.0])
pair_of_tensors = (torch.ones(1), torch.ones(1))
queue = deque([1.0])
scale = Scale()
heir = Heir()
slotted = Slotted()
named = Names(rate=2.0)
array = np.ones(2)
long = list(range(40))
registry = {i: Scale() for i in range(40)}
context = ContextVar("context", default=1.0)
unset: ContextVar[float] = ContextVar("unset")
held = ContextVar("held", default=scale)
w = torch.ones(2)
reference = weakref.ref(scale)
users = types.ModuleType("users")
users.__file__ = __file__
users.factor = 2.0  # type: ignore[attr-defined]
own = Own(rate=2.0)
holder = types.SimpleNamespace(scale=scale)
inside_of_box = torch.ones(1)
box = types.SimpleNamespace(inside=inside_of_box)
modules = nn.ModuleList([nn.Identity() for _ in range(33)])
chain = ChainMap({"a": 1.0}, config)
user = UserDict({"a": 1.0})
made = defaultdict(float, {"a": 1.0})
layer = Doubled()
listed = nn.ModuleList([nn.Dropout(0.0)])
mapped = types.MappingProxyType(config)
CLASSES = (
    Scale,
    Heir,
    Doubled,
    nn.Dropout,
    nn.Module,
    nn.ModuleList,
    nn.modules.dropout._DropoutNd,
)
OWNERS: list[tuple[object, str]] = [
    (globals(), "globals"),
    (config, "config"),
    (pair, "pair"),
    (row, "row"),
    (row[1], "row[1]"),
    (queue, "queue"),
    (vars(scale), "scale"),
    (vars(heir), "heir"),
    (slotted, "slotted"),
    (named, "named"),
    (array, "array"),
    (long, "long"),
    (context, "context"),
    (unset, "unset"),
    (held, "held"),
    (w, "w"),
    (chain.maps, "chain.maps"),
    (chain.maps[0], "chain.maps[0]"),
    (user.data, "user.data"),
    (made, "made"),
    (vars(layer), "layer"),
    (layer._parameters, "layer's parameters"),
    (layer._buffers, "layer's buffers"),
    (layer._modules, "layer's modules"),
    (vars(layer.inner), "dropout"),
    (vars(listed), "listed"),
    (listed._modules, "listed's modules"),
    (vars(listed[0]), "listed[0]"),
    (mapped, "mapped"),
    (vars(users), "users"),
    (own, "own"),
    (vars(holder), "holder"),
    (vars(box), "box"),
    (inside_of_box, "what is inside"),
    (modules._modules, "modules' modules"),
]


def text(read: Read) -> str:
    """Where the program reads, and with ``!`` that nothing is there."""
    owner = read.owner
    of = owner.of if isinstance(owner, Slots) else owner
    name = next((name for known, name in OWNERS if known is of), "")
    if not name and isinstance(owner, types.MappingProxyType):
        name = next((c.__name__ for c in CLASSES if vars(c) == owner), "another class")
    name = name or (of.__name__ if isinstance(of, types.FunctionType) else type(of).__name__)
    item = (
        "whole"
        if read.name is WHOLE
        else "facts"
        if read.name is FACTS
        else ""
        if read.name is None
        else str(read.name)
    )
    return f"{name}:{item}{'!' if read.value is MISSING else ''}"


def found(f: Any, *args: Any, modules: Any = (), **kwargs: Any) -> list[str]:
    """Without what tensors say of themselves."""
    return sorted(
        {text(read) for read in reads_of(f, args, kwargs, modules) if read.name is not FACTS}
    )


def with_defaults(x: Any, k: Any = scale, *, z: Any = config) -> Any:
    return x * k.rate * z["rate"]


def wrapping(f: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(f)
    def inner(*args: Any) -> Any:
        return f(*args)

    return inner


def assigned_before(x: Any) -> Any:
    s = scale
    return x * s.rate


def assigned_twice(x: Any) -> Any:
    s = scale
    if x is None:
        s = heir
    return x * s.shared


def inside(x: Any) -> Any:
    def g(y: Any) -> Any:
        return y * config["rate"]

    return g(x)


def called(s: Any, x: Any) -> Any:
    return x * s.rate


def handed(x: Any) -> Any:
    return called(scale, x)


READS: dict[str, tuple[Callable[..., Any], str]] = {
    "a name": (lambda x: x * rate, "globals:rate"),
    "an item": (lambda x: x * config["rate"], "config:rate, globals:config"),
    "an item that is not there": (lambda x: x * config["absent"], "config:absent!, globals:config"),
    "whether an item is there": (
        lambda x: x if "rate" in config else x * 2,
        "config:whole, globals:config",
    ),
    "an item by get": (lambda x: x * config.get("rate", 1.0), "config:whole, globals:config"),
    "an item of a list": (lambda x: x * pair[1], "globals:pair, pair:1"),
    "an item from the end": (lambda x: x * pair[-1], "globals:pair, pair:-1"),
    "the last item but too far": (lambda x: x * pair[-3], "globals:pair"),
    "an item behind the end": (lambda x: x * pair[2], "globals:pair"),
    "an item of a deque": (lambda x: x * queue[0], "globals:queue, queue:0"),
    "an item of a list in a tuple": (lambda x: x * row[1][0], "globals:row, row:1, row[1]:0"),
    "a loop": (lambda x: [x * p for p in pair], "globals:pair, pair:whole"),
    "a loop over a list in a tuple": (lambda x: [x for p in row], "globals:row, row[1]:whole"),
    "a loop over a long list": (lambda x: [x * p for p in long], "globals:long, long:whole"),
    "a loop over many objects": (lambda x: [registry[r](x) for r in registry], "globals:registry"),
    "an attribute": (lambda x: x * scale.rate, "globals:scale, scale:rate"),
    "an attribute that may be missing": (
        lambda x: x * getattr(scale, "absent", 1.0),
        "Scale:__call__, Scale:__iter__, globals:scale, scale:absent!, scale:rate",
    ),
    "an attribute of the class by the object": (
        lambda x: x * scale.shared,
        "Scale:shared, globals:scale, scale:shared!",
    ),
    "an inherited attribute": (
        lambda x: x * heir.shared,
        "Heir:shared!, Scale:shared, globals:heir, heir:shared!",
    ),
    "an attribute of the class": (lambda x: x * Scale.shared, "Scale:shared"),
    "an attribute of the parent by the class": (
        lambda x: x * Heir.shared,
        "Heir:shared!, Scale:shared",
    ),
    "a slot": (lambda x: x * slotted.rate, "globals:slotted, slotted:rate"),
    "an item by attribute": (lambda x: x * named.rate, "globals:named, named:rate"),
    "a method": (lambda x: scale.times(x), "Scale:times, globals:scale, scale:rate, scale:times!"),
    "an inherited method": (
        lambda x: heir.times(x),
        "Heir:times!, Scale:times, globals:heir, heir:rate, heir:times!",
    ),
    "an inherited method by the class": (
        lambda x: Heir.times(scale, x),
        "Heir:times!, Scale:__call__, Scale:__iter__, Scale:times, globals:scale, scale:rate",
    ),
    "a name in an inherited method by the class": (
        lambda x: Heir.by_name(0, x),  # type: ignore[arg-type]
        "Heir:by_name!, Scale:by_name, config:rate, globals:config",
    ),
    "where a tensor in an object is": (
        lambda x: x * w if placed_inside(box) else x,
        "box:inside, globals:box, globals:placed_inside, globals:w, what is inside:data_ptr",
    ),
    "an object that is handed on and called": (
        lambda x: calling(holder, x),
        "Scale:times, globals:calling, globals:holder, holder:scale, scale:rate, scale:times!",
    ),
    "a property": (lambda x: x * scale.twice, "Scale:twice, globals:scale, scale:rate"),
    "a class method": (lambda x: Scale.of_class(x), "Scale:of_class, Scale:shared"),
    "a class method by the object": (
        lambda x: heir.of_class(x),
        "Heir:of_class!, Heir:shared!, Scale:of_class, Scale:shared, globals:heir",
    ),
    "a static method": (lambda x: Scale.static(x), "Scale:static, globals:rate"),
    "an object that is called": (
        lambda x: scale(x),
        "Scale:__call__, Scale:__iter__, globals:scale, scale:rate",
    ),
    "a variable of a context": (lambda x: x * context.get(), "context:get!, globals:context"),
    "a variable without a value": (lambda x: x * unset.get(1.0), "globals:unset, unset:get!"),
    "an object in a variable of a context": (
        lambda x: x * held.get()(x),
        "Scale:__call__, Scale:__iter__, globals:held, held:get!, scale:rate",
    ),
    "an array": (lambda x: x * array[0], "array:whole, globals:array"),
    "the shape of an array": (lambda x: x * array.shape[0], "globals:array"),
    "a method of an array": (lambda x: x * array.sum(), "array:whole, globals:array"),
    "a tensor": (lambda x: x * w, "globals:w"),
    "how often a tensor was written to": (lambda x: x * w._version, "globals:w, w:_version"),
    "where a tensor is": (lambda x: x if w.data_ptr() else w, "globals:w, w:data_ptr"),
    "an object behind a weak reference": (
        lambda x: x * reference().rate,  # type: ignore[union-attr]
        "Scale:__call__, Scale:__iter__, _Referent:number, globals:reference, scale:rate",
    ),
    "a chain of dictionaries": (lambda x: x * chain["a"], "ChainMap:a, globals:chain"),
    "a loop over a chain of dictionaries": (
        lambda x: [x * v for v in chain.values()],
        "chain.maps:whole, chain.maps[0]:whole, config:whole, globals:chain",
    ),
    "whether a chain has an item": (
        lambda x: x if "rate" in chain else x * 2,
        "chain.maps:whole, chain.maps[0]:whole, config:whole, globals:chain",
    ),
    "a default dictionary": (lambda x: x * made["b"], "globals:made, made:b!"),
    "a dictionary in an object": (lambda x: x * user.get("a"), "globals:user, user.data:whole"),
    "a view of a dictionary": (lambda x: x * mapped["rate"], "globals:mapped, mapped:rate"),
    "a name of Python's module": (lambda x: x * math.pi, ""),
    "a function of torch's": (lambda x: torch.sin(x), ""),
    "a function of torch's that is written in Python": (
        lambda x: nn.functional.dropout(x, 0.5),
        "",
    ),
    "a decorated function": (wrapping(lambda x: x * rate), "cell:, globals:rate"),
    "a method by partial": (
        functools.partial(Scale.times, scale),
        "Scale:__call__, Scale:__iter__, scale:rate",
    ),
    "defaults": (
        with_defaults,
        (
            "config:rate, config:whole, dict:whole, scale:rate, with_defaults:__defaults__, "
            "with_defaults:__kwdefaults__"
        ),
    ),
    "another name of a variable": (assigned_before, "globals:scale, scale:rate"),
    "one of two objects": (
        assigned_twice,
        (
            "Heir:__call__!, Heir:__iter__!, Heir:shared!, Scale:__call__, Scale:__iter__, "
            "Scale:shared, globals:heir, globals:scale, heir:rate, heir:shared!, "
            "scale:rate, scale:shared!"
        ),
    ),
    "a function inside": (inside, "config:rate, globals:config"),
    "an object that is handed on": (
        handed,
        "Scale:__call__, Scale:__iter__, globals:called, globals:scale, scale:rate",
    ),
    "a name of a module of the user's": (lambda x: x * users.factor, "users:factor"),
    "a name of torch's": (lambda x: x.to(torch.float32), ""),
    "a property that is no function of Python": (
        lambda x: x * scale.by_getter,
        "Scale:by_getter, globals:scale",
    ),
    "a static method that is no function of Python": (
        lambda x: Scale.of_torch(x),
        "Scale:of_torch",
    ),
    "a class method that is no function of Python": (
        lambda x: x * Scale.of_python(),
        "Scale:of_python",
    ),
    "a value that is computed once": (lambda x: x * scale.thrice, "globals:scale"),
    "a slot by a class": (lambda x: SlottedHeir.rate.__get__(slotted), "globals:slotted"),  # type: ignore[misc, attr-defined]
    "an attribute of another argument of a method": (
        lambda x: scale.of_another(x),
        "Scale:of_another, globals:scale, scale:of_another!",
    ),
    "an attribute of one of all arguments of a method": (
        lambda x: scale.of_all(x),
        "Scale:of_all, globals:scale, scale:of_all!",
    ),
    "a loop over a dictionary of another class": (
        lambda x: [x * v for v in own.values()],
        "Container:items, globals:own",
    ),
    "whether a dictionary of another class has an item": (
        lambda x: x if "rate" in own else x * 2,
        "Container:items, globals:own",
    ),
    "an item by get of a dictionary of another class": (
        lambda x: x * own.get("rate", 1.0),
        "Container:items, globals:own",
    ),
    "many modules": (
        lambda x: [m(x) for m in modules],
        (
            "Module:forward, ModuleList:forward!, OrderedDict:whole, another class:forward, "
            "dict:forward!, globals:modules, modules' modules:whole"
        ),
    ),
    "where a tensor is, asked by another function": (
        lambda x: x if placed(w) else w,
        "Tensor:data_ptr, globals:placed, globals:w, w:data_ptr",
    ),
    "how often a tensor was written to, asked by another function": (
        lambda x: x if versioned(w) else w,
        "globals:versioned, globals:w",
    ),
    "an item that is named as a method": (lambda x: x * w * keyed({}), "globals:keyed, globals:w"),
    "a module": (
        layer,
        (
            "Doubled:forward, Dropout:forward, OrderedDict:whole, dropout:forward!, "
            "dropout:inplace, dropout:p, dropout:training, layer's buffers:mean, "
            "layer's modules:inner, layer's parameters:weight, layer:factor, layer:forward!"
        ),
    ),
    "a list of modules": (
        lambda x: [m(x) for m in listed],
        (
            "Dropout:forward, Module:forward, ModuleList:forward!, OrderedDict:whole, "
            "globals:listed, listed's modules:whole, listed:forward!, listed[0]:forward!, "
            "listed[0]:inplace, listed[0]:p, listed[0]:training"
        ),
    ),
}


@pytest.mark.parametrize("name", READS)
def test_a_program_is_known_to_read_these_places_and_no_others(name: str) -> None:
    f, expected = READS[name]
    assert ", ".join(found(f, torch.ones(2))) == expected


def test_the_flags_of_known_modules_are_not_asked_for_again() -> None:
    def flags(modules: Any) -> list[str]:
        return [
            place
            for place in found(layer, torch.ones(2), modules=modules)
            if place.endswith("training")
        ]

    assert flags(list(layer.modules())) == [] and flags([layer]) == ["dropout:training"]


ARGUMENTS: dict[str, tuple[Callable[[], list[str]], str]] = {
    "an object": (
        lambda: found(lambda x, s: x * s.rate, w, scale),
        "Scale:__call__, Scale:__iter__, scale:rate",
    ),
    "an object by name": (
        lambda: found(lambda x, s: x * s.rate, w, s=heir),
        "Heir:__call__!, Heir:__iter__!, Scale:__call__, Scale:__iter__, heir:rate",
    ),
    "a dictionary, which each call makes anew": (
        lambda: found(lambda x, c: x * c["rate"], w, config),
        "",
    ),
    "a module": (
        lambda: found(lambda x, m: m(x), w, layer.inner),
        (
            "Dropout:forward, OrderedDict:whole, dropout:forward!, dropout:inplace, "
            "dropout:p, dropout:training"
        ),
    ),
    "a module by name": (
        lambda: found(lambda x, m: m(x), w, m=layer.inner),
        (
            "Dropout:forward, OrderedDict:whole, dropout:forward!, dropout:inplace, "
            "dropout:p, dropout:training"
        ),
    ),
    "what a method belongs to": (lambda: found(scale.times, w), "scale:rate"),
    "an object by partial": (
        lambda: found(functools.partial(lambda s, x, k: x * s.rate * k.rate, scale, k=heir), w),
        "Heir:__call__!, Heir:__iter__!, Scale:__call__, Scale:__iter__, heir:rate, scale:rate",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_is_read_of_an_argument(name: str) -> None:
    read, expected = ARGUMENTS[name]
    assert ", ".join(read()) == expected


def test_the_tensors_of_a_graph_are_found_where_they_have_a_name() -> None:
    inside = torch.ones(1)
    tensors: list[Any] = [w, inside, layer.weight, layer.mean]

    def f(x: Any) -> Any:
        return layer(x) * w * inside

    assert sorted(map(text, tensors_read(tensors, f, [layer]))) == [
        "cell:",
        "globals:w",
        "layer's buffers:mean",
        "layer's parameters:weight",
    ]
    assert sorted(map(text, tensors_read(tensors[:1], f, [layer]))) == ["globals:w"]
    assert sorted(map(text, tensors_read(tensors[2:], layer, [layer]))) == [
        "layer's buffers:mean",
        "layer's parameters:weight",
    ]


def test_what_a_tensor_says_of_itself_is_noted_once_for_those_that_are_found() -> None:
    reads = reads_of(lambda x: x * w * pair_of_tensors[1] * w.sum(), (), {}, [])
    assert [id(r.owner) for r in reads if r.name is FACTS] == [id(w), id(pair_of_tensors[1])]


def test_a_program_asks_for_a_limited_number_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_LIMIT", 2)
    assert len(found(lambda x: x * rate * config["rate"] * scale.rate, torch.ones(2))) == 2


def test_objects_that_are_handed_on_are_looked_into_up_to_that_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    holder = types.SimpleNamespace(rate=1.0)

    def program(x: Any) -> Any:
        return called(holder, x)

    for limit in (2, 3, 4):
        monkeypatch.setattr(reader, "_LIMIT", limit)
        # both names, and what is read of the object
        assert len(found(program, torch.ones(2))) == min(limit, 3)


def test_tensors_are_found_over_functions_that_call_others() -> None:
    inside = torch.ones(1)

    def called(x: Any) -> Any:
        return x * inside

    def second(x: Any) -> Any:
        return called(x)

    def third(x: Any) -> Any:
        return second(x)

    def fourth(x: Any) -> Any:
        return third(x)

    assert [text(r) for r in tensors_read([inside], third, [])] == ["cell:"]
    assert [text(r) for r in tensors_read([inside], fourth, [])] == ["cell:"]
    assert tensors_read([inside], lambda x: fourth(x), []) == []
