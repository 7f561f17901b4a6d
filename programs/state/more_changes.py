"""More of what a value is and how it becomes another one, for the rows of :mod:`.ways`.

    list_sorted:   start [3.0, 1.0, 2.0], use x * value[0], do value.sort()

:mod:`.changes` has the first ones, and says what the parts of a change are."""

from __future__ import annotations

from .changes import CHANGES, Change

_NUMBERS = "[0.5 * i for i in range(1, 41)]"
_SCALES = CHANGES["class_of_object"].setup
_THING = CHANGES["attribute_of_object"].setup
_EITHER = "(Triple() if type($get{0}) is Double else Double())"

_CONTAINERS: dict[str, Change] = {
    "list_inserted": Change("[1.0, 2.0]", "x * value[0]", do="$get.insert(0, $get[0] + 0.5)"),
    "list_sorted": Change(
        "[3.0, 1.0, 2.0]", "x * value[0]", do="$get.sort(reverse=$get[0] < $get[-1])"
    ),
    "list_slice": Change(
        "[1.0, 2.0, 4.0]", "x * value[0]", do="$get[:2] = [$get[1] + 0.5, $get[0], 0.5]"
    ),
    "list_deleted": Change(_NUMBERS, "x * value[0]", do="del $get[0]"),
    "ordered_dict_moved": Change(
        "collections.OrderedDict(a=1.0, b=2.0, c=4.0)",
        "x * next(iter(value.values()))",
        do="$get.move_to_end(next(iter($get)))",
    ),
    "ordered_dict_popped": Change(
        "collections.OrderedDict((str(i), 0.5 * i) for i in range(40))",
        "x * value.popitem(last=False)[1]",
        do="$get.popitem(last=False)",
    ),
    "dict_set_by_default": Change(
        "{}",
        "x * value.setdefault('rate', 0.5)",
        do="$get.update(rate=$get.get('rate', 0.5) + 1.0)",
    ),
    "dict_deleted": Change(
        "{i: 0.5 * i for i in range(1, 41)}",
        "x * next(iter(value.values()))",
        do="del $get[next(iter($get))]",
    ),
    "default_dict_filled": Change(
        "collections.defaultdict(lambda: 0.5)", "x * (1 + len(value))", do="$get[len($get)]"
    ),
    "counter_updated": Change("collections.Counter('a')", "x * value['a']", do="$get.update('a')"),
    "set_discarded": Change("set(range(40))", "x * len(value)", do="$get.discard(len($get) - 1)"),
    "frozen_set": Change("frozenset({1.0})", "x * sum(value)", "($get | {len($get) + 1.0})"),
    "deque_extended": Change(
        "collections.deque([1.0, 2.0], maxlen=3)",
        "x * value[0]",
        do="$get.extendleft([$get[0] + 0.5])",
    ),
    "bytes_reversed": Change("bytearray(b'ab')", "x * value[0]", do="$get.reverse()"),
}

_FUNCTIONS: dict[str, Change] = {
    "defaults_of_function": Change(
        "scaled",
        "value(x)",
        do="$get.__defaults__ = ($get.__defaults__[0] + 0.5,)",
        setup="def scaled(x, n=2.0):\n    return x * n",
    ),
    "method_of_object": Change(
        "Double()",
        "value.scale(x)",
        do="vars($get).pop('scale', None) or setattr($get, 'scale', Triple().scale)",
        setup=_SCALES,
    ),
    "code_of_method": Change(
        "Double()",
        "value.scale(x)",
        do="Double.scale.__code__, Triple.scale.__code__ = "
        "Triple.scale.__code__, Double.scale.__code__",
        setup=_SCALES,
    ),
    "bound_method": Change(
        "Double().scale", "value(x)", f"{_EITHER.format('.__self__')}.scale", setup=_SCALES
    ),
    "registered_function": Change(
        "dispatching()",
        "x * value(1.0)",
        do="$get.register(float, functools.partial(second, $get(1.0) + 0.5))",
        setup="def dispatching():\n    @functools.singledispatch\n    def found(x):\n"
        "        return 2.0\n    return found",
    ),
    "rebound_in_function": Change(
        "counting()",
        "x * value()",
        do="$get()",
        setup="def counting():\n    n = 0\n    def count():\n        nonlocal n\n"
        "        n += 1\n        return n\n    return count",
    ),
}

_OBJECTS: dict[str, Change] = {
    "property_of_class": Change(
        "Rated()",
        "x * value.rate",
        do="Rated.rate = property(functools.partial(second, $get.rate + 0.5))",
        setup="class Rated:\n    rate = property(lambda self: 2.0)",
    ),
    "attribute_of_derived_class": Change(
        "Derived()",
        "x * value.rate",
        do="Derived.rate = $get.rate + 0.5",
        setup="class Rated:\n    rate = 2.0\nclass Derived(Rated):\n    pass",
    ),
    "length_of_class": Change(
        "Sized()",
        "x * len(value)",
        do="Sized.__len__ = (lambda n: lambda self: n)(len($get) + 1)",
        setup="class Sized:\n    def __len__(self):\n        return 1",
    ),
    "cached_property": Change(
        "Lazy()",
        "x * value.found",
        do="vars($get).pop('found', None); $get.number += 1",
        setup="class Lazy:\n    number = 2.0\n    @functools.cached_property\n"
        "    def found(self):\n        return self.number",
    ),
    "written_by_descriptor": Change(
        "Owner()",
        "x * value.rate",
        do="$get.rate = $get.rate + 0.5",
        setup="class Field:\n    def __get__(self, owner, kind):\n"
        "        return vars(owner).get('_rate', 2.0)\n"
        "    def __set__(self, owner, new):\n        vars(owner)['_rate'] = new\n"
        "class Owner:\n    rate = Field()",
    ),
    "decorated_class": Change(
        "Decorated",
        "x * value.rate",
        do="$get.rate += 0.5",
        setup="def rated(kind):\n    kind.rate = 2.0\n    return kind\n"
        "@rated\nclass Decorated:\n    pass",
    ),
    "default_factory": Change(
        "Config()",
        "x * sum(value.parts)",
        do="$get.parts.append(0.5)",
        setup="@dataclasses.dataclass\nclass Config:\n"
        "    parts: list = dataclasses.field(default_factory=lambda: [2.0])",
    ),
    "named_tuple": Change(
        "Couple(1.0, 2.0)",
        "x * value.left",
        "$get._replace(left=$get.left + 1)",
        setup="Couple = collections.namedtuple('Couple', 'left right')",
    ),
    "enum_member": Change(
        "Speed.SLOW",
        "x * value.value",
        "(Speed.SLOW if $get is Speed.FAST else Speed.FAST)",
        setup="class Speed(enum.Enum):\n    SLOW = 2.0\n    FAST = 3.0",
    ),
    "same_object": Change(
        "Couple()",
        "x * (2.0 if value.left is value.right else 3.0)",
        do="$get.right = Thing() if $get.left is $get.right else $get.left",
        setup=f"{_THING}class Couple:\n    def __init__(self):\n"
        "        self.left = self.right = Thing()",
    ),
    "error_attribute": Change(
        "Numbered('found')",
        "x * caught(value)",
        do="$get.number += 0.5",
        setup="class Numbered(ValueError):\n    number = 2.0\ndef caught(error):\n    try:\n"
        "        raise error\n    except ValueError as found:\n        return found.number",
    ),
    "entered_object": Change(
        "Level()",
        "x * entered(value)",
        do="entered($get)",
        setup="class Level:\n    number = 0\n    def __enter__(self):\n"
        "        self.number += 1\n        return self.number\n"
        "    def __exit__(self, *error):\n        pass\n"
        "def entered(level):\n    with level as number:\n        return number",
    ),
}

_KINDS: dict[str, Change] = {
    "instance_check": Change(
        "0.5",
        "x * (2.0 if isinstance(value, Kind) else 3.0)",
        do="Kind.yes = not Kind.yes",
        setup="class Meta(type):\n    def __instancecheck__(cls, other):\n        return cls.yes\n"
        "class Kind(metaclass=Meta):\n    yes = True",
    ),
    "protocol": Change(
        "Double()",
        "x * (2.0 if isinstance(value, Scaling) else 3.0)",
        "(0.5 if isinstance($get, Scaling) else Double())",
        setup=f"{_SCALES}import typing\n@typing.runtime_checkable\n"
        "class Scaling(typing.Protocol):\n    def scale(self, x):\n        ...",
    ),
    "union": Change(
        "1",
        "x * (2.0 if isinstance(value, int | str) else 3.0)",
        "(float if type($get) is int else int)($get)",
    ),
    "three_kinds_of_number": Change(
        "1",
        "torch.full_like(x, value) * len(repr(value))",
        "{int: float, float: bool, bool: int}[type($get)]($get)",
    ),
    "formatted": Change("1.5", "x * float(f'{value:.1f}')", "$get + 0.26"),
    "size": Change("torch.Size([2, 3])", "x * value.numel()", "torch.Size([*$get, 2])"),
    "dtype": Change(
        "torch.float64",
        "x.to(value)",
        "(torch.float16 if $get is torch.float64 else torch.float64)",
    ),
    "device": Change(
        "torch.device('cpu')",
        "x * (2.0 if value.type == 'cpu' else 3.0)",
        "torch.device('meta' if $get.type == 'cpu' else 'cpu')",
    ),
    "stride": Change("torch.ones(2, 3)", "x * value.stride(0)", "$get.t()"),
    "made_of_a_size": Change("(2,)", "x * x.new(torch.Size(value)).numel()", "(*$get, 2)"),
    "copied": Change(
        "Thing()",
        "x * copy.deepcopy(value).number",
        do="$get.number += 1",
        setup=f"{_THING}import copy",
    ),
}

MORE_CHANGES: dict[str, Change] = _CONTAINERS | _FUNCTIONS | _OBJECTS | _KINDS
