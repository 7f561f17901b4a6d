"""What a value is, what a program computes with it, and how it becomes another one.

    sign:   start 0.5, use x * value, new -value

An alteration is a function of the value that is there, so that it can be made again and again: by
the caller between calls, or by the program itself."""

from __future__ import annotations

from typing import NamedTuple


class Change(NamedTuple):
    """Text of one kind of change. ``use``: a result of `x` and `value`. ``new``: the next value,
    which is put in its place. ``do``: a statement that changes the object itself. ``toggles``: the
    value goes, and comes again."""

    start: str
    use: str
    new: str = ""
    do: str = ""
    setup: str = ""
    toggles: bool = False


_SCALES = """
class Double:
    def scale(self, x):
        return x * 2.0
class Triple:
    def scale(self, x):
        return x * 3.0
"""
_EQUAL = """
class Equal:
    def __init__(self, number):
        self.number = number
    def __eq__(self, other):
        return isinstance(other, Equal)
    def __hash__(self):
        return 0
"""
_THING = """
class Thing:
    def __init__(self):
        self.number, self.parts = 0.5, [types.SimpleNamespace(number=1.5)]
"""
_LATE = """
class Late:
    def __init__(self):
        self.other = 1.0
def late_of(thing):
    try:
        return thing.late
    except AttributeError:
        return 0.5
def swap(thing):
    try:
        del thing.other
        thing.late = 1.5
    except AttributeError:
        del thing.late
        thing.other = 1.0
"""
_FUNCTIONS = """
def double(x):
    return x * 2.0
def triple(x):
    return x * 3.0
"""
_NUMBERS = "[0.5 * i for i in range(1, 41)]"

CHANGES: dict[str, Change] = {
    # --- numbers and other constants
    "number": Change("2.0", "x * value", "$get + 0.5"),
    "count": Change("0", "x * (value + 1)", "$get + 1"),
    "count_with_branch": Change("0", "x * 2 if value % 2 == 0 else x * 3", "$get + 1"),
    "sign": Change("0.5", "x * value", "-$get"),
    "sign_of_zero": Change(
        "0.0", "torch.copysign(x.abs() + 1, torch.full_like(x, value))", "-$get"
    ),
    "whole_to_float": Change(
        "2", "(x > 0).long() * value", "(float if type($get) is int else int)($get)"
    ),
    "whole_to_flag": Change("1", "(x > 0) * value", "(bool if type($get) is int else int)($get)"),
    "real_to_complex": Change(
        "2.0",
        "x * (2.0 if (x * value).is_complex() else 3.0)",
        "($get.real if type($get) is complex else $get + 0j)",
    ),
    "flag": Change("True", "x * 2 if value else x * 3", "not $get"),
    "none": Change("None", "x if value is None else x * value", "2.0 if $get is None else None"),
    "text": Change("'add'", "getattr(torch, value)(x, 3.0)", "'mul' if $get == 'add' else 'add'"),
    "tuple": Change("(1.0, 2.0)", "x * value[0]", "($get[1], $get[0])"),
    # --- containers
    "list_grows": Change("[1.0, 2.0]", "x * sum(value)", do="$get.append(0.5)"),
    "list_shrinks": Change(_NUMBERS, "x * sum(value)", do="$get.pop()"),
    "list_reordered": Change("[1.0, 2.0, 4.0]", "x * value[0]", do="$get.reverse()"),
    "list_item": Change("[1.0, 2.0]", "x * value[0]", do="$get[0] += 0.5"),
    "list_replaced": Change("[1.0, 2.0]", "x * sum(value)", "[*$get, 0.5]"),
    "dict_grows": Change("{'a': 1.0}", "x * sum(value.values())", do="$get[str(len($get))] = 0.5"),
    "dict_reordered": Change(
        "{'a': 1.0, 'b': 2.0}",
        "x * next(iter(value.values()))",
        do="$get.update([(key := next(iter($get)), $get.pop(key))][:1])",
    ),
    "dict_key_type": Change(
        "{1: 0.5}",
        "x * (2.0 if type(next(iter(value))) is int else 3.0)",
        do="$get.update([((float if type(next(iter($get))) is int else int)(1), $get.pop(1))])",
    ),
    "set_grows": Change("{1.0}", "x * sum(value)", do="$get.add(len($get) + 1.0)"),
    "set_item_type": Change(
        "{1}",
        "x * (2.0 if type(next(iter(value))) is int else 3.0)",
        do="$get.add((float if type(next(iter($get))) is int else int)($get.pop()))",
    ),
    "deque_rotated": Change(
        "collections.deque([1.0, 2.0, 4.0], maxlen=3)", "x * value[0]", do="$get.rotate(1)"
    ),
    # --- what is there or not
    "disappears": Change("2.0", "x * value", toggles=True),
    # --- functions, classes and objects
    "function": Change(
        "double", "value(x)", "triple if $get is double else double", setup=_FUNCTIONS
    ),
    "function_code": Change(
        "double",
        "value(x)",
        do="double.__code__, triple.__code__ = triple.__code__, double.__code__",
        setup=_FUNCTIONS,
    ),
    "new_lambda": Change(
        "(lambda n: lambda x: x * n)(1.0)",
        "value(x)",
        "(lambda n: lambda x: x * n)($get.__closure__[0].cell_contents + 0.5)",
    ),
    "class_of_object": Change(
        "Double()",
        "value.scale(x)",
        do="$get.__class__ = Triple if type($get) is Double else Double",
        setup=_SCALES,
    ),
    "method_of_class": Change(
        "Double()",
        "value.scale(x)",
        do="Double.scale, Triple.scale = Triple.scale, Double.scale",
        setup=_SCALES,
    ),
    "class_itself": Change(
        "Double", "value().scale(x)", "Triple if $get is Double else Double", setup=_SCALES
    ),
    "name_of_class": Change(
        "Double()",
        "x * len(type(value).__name__)",
        do="Double.__name__ += 'r'",
        setup=_SCALES,
    ),
    "equal_object": Change(
        "Equal(0.5)", "x * value.number", "Equal($get.number + 0.5)", setup=_EQUAL
    ),
    "attribute_of_object": Change(
        "Thing()", "x * value.number", do="$get.number += 1", setup=_THING
    ),
    "part_of_object": Change(
        "Thing()",
        "x * sum(part.number for part in value.parts)",
        do="$get.parts[0].number += 1",
        setup=_THING,
    ),
    "attribute_comes": Change(
        "Thing()",
        "x * getattr(value, 'late', 0.5)",
        do="$get.late = getattr($get, 'late', 1.0) + 0.5",
        setup=_THING,
    ),
    "attribute_swapped": Change("Late()", "x * late_of(value)", do="swap($get)", setup=_LATE),
    # --- tensors, arrays and layers
    "tensor": Change("torch.tensor(2.0)", "x * value", "$get + 0.5"),
    "tensor_written": Change("torch.tensor(2.0)", "x * value", do="$get.add_(0.5)"),
    "tensor_dtype": Change(
        "torch.tensor(2)", "(x > 0).long() * value", "$get.to(torch.result_type($get, 1.0))"
    ),
    "tensor_size": Change("torch.ones(1)", "x * value.sum()", "torch.cat([$get, $get[:1]])"),
    "requires_grad": Change(
        "torch.tensor(2.0)",
        "x * value",
        do="$get.requires_grad_(not $get.requires_grad)",
    ),
    "array": Change("np.ones(2)", "x * float(value.sum())", do="$get.__iadd__(0.5)"),
    "layer": Change(
        "nn.Identity()", "value(x)", "nn.Identity() if type($get) is nn.Tanh else nn.Tanh()"
    ),
    "layer_flag": Change("nn.Dropout(1.0)", "value(x)", do="$get.train(not $get.training)"),
    "layer_hook": Change(
        "nn.Identity()", "value(x)", do="$get.register_forward_hook(lambda m, i, o: o * 2.0)"
    ),
    # --- what is consumed
    "iterator": Change(f"iter({_NUMBERS})", "x * next(value)", do="next($get)"),
    "generator": Change(f"(n for n in {_NUMBERS})", "x * next(value)", do="next($get)"),
    "counter": Change("itertools.count(1)", "x * next(value)", do="next($get)"),
    "cycle": Change("itertools.cycle([0.5, 1.5, 2.5])", "x * next(value)", do="next($get)"),
    "zip": Change(f"zip({_NUMBERS}, range(40))", "x * next(value)[0]", do="next($get)"),
    "enumerate": Change(f"enumerate({_NUMBERS})", "x * next(value)[1]", do="next($get)"),
    "popped": Change(_NUMBERS, "x * value.pop()", do="$get.pop()"),
    "popped_left": Change(
        f"collections.deque({_NUMBERS})", "x * value.popleft()", do="$get.popleft()"
    ),
    "popped_item": Change(
        "{i: 0.5 * i for i in range(40)}", "x * value.popitem()[1]", do="$get.popitem()"
    ),
    "queue": Change(
        "filled()",
        "x * value.get()",
        do="$get.get()",
        setup="""
def filled():
    found = queue.SimpleQueue()
    for i in range(40):
        found.put(0.5 * i)
    return found
""",
    ),
    "file": Change(
        "io.StringIO(''.join(f'{i}\\n' for i in range(40)))",
        "x * float(value.readline())",
        do="$get.readline()",
    ),
    "draw": Change("random.Random(0)", "x * value.random()", do="$get.random()"),
    "draw_of_numpy": Change("np.random.default_rng(0)", "x * value.random()", do="$get.random()"),
    "draw_of_torch": Change(
        "torch.Generator().manual_seed(0)",
        "x * torch.rand((), generator=value)",
        do="torch.rand((), generator=$get)",
    ),
}
