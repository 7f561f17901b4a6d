"""Make calls with wrong arguments of a right one, by the kinds of arguments in the schema.

    cat(tensors=[x, y], dim=1)   ->   tensors=[], tensors=[x], dim=-1, dim=2**31, …

Each call differs from the right one in one argument, or in the same way in all tensors. So a report
says which of them a kernel trusts. This module does not say which calls are mistakes. A kernel may
take or refuse any of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from gen.checks.kernels.call_descriptions import Arguments, Described, is_tensor
from gen.checks.kernels.kernel_calls import KernelCall, Parameter

__all__ = ["wrong_calls"]

Change = tuple[str, Described]
"""What is wrong with an argument, and the argument."""
Changes = Iterator[Change]
OfTensor = Callable[[Described], Described]
_HUGE = 2**31  # one more than int32 holds
_HUGEST = 2**62  # the bytes of so many elements are more than 64 bits can count
_DTYPES = {
    "float32": ("float64", "int64", "bool"),
    "float64": ("float32", "int64"),
    "int64": ("int32", "float32"),
    "bool": ("uint8", "float32"),
}
"""The dtypes that a tensor gets in place of its own."""
_OTHER_DTYPES = ("float32", "int64", "bool", "complex64")


def wrong_calls(call: KernelCall) -> Iterator[KernelCall]:
    """Yield the calls that have something wrong, each once.

    ``call``: a right call, which is not among them. Its kernel says the kinds of its arguments.

    A call of :func:`torch.mm` yields some eighty: each of its two tensors with other sizes, of
    another rank, empty, in another dtype, and of special numbers. Each has a label, such as
    ``mat2 with 3 of 4 in dimension 0``. Two changes may lead to the same call, as a list that is
    left out and one that is None do; then the first label counts.
    """
    seen = {repr(call.arguments)}
    for label, arguments in _all_changes(call):
        if repr(arguments) not in seen:
            seen.add(repr(arguments))
            yield KernelCall(call.kernel, arguments, label)


def _all_changes(call: KernelCall) -> Iterator[tuple[str, Arguments]]:
    """Yield the arguments of the calls, each with what is wrong.

    First one argument at a time is changed, in the order of the schema, then all tensors are, and
    then those of one shape. What is beyond all sizes of the call is beyond any dimension, too.
    """
    beyond = max(_sizes(list(call.arguments.values())), default=0)
    for argument in call.kernel.parameters:
        if argument.name not in call.arguments:
            continue
        value = call.arguments[argument.name]
        for label, other in _changes(value, argument, beyond):
            yield f"{argument.name} {label}", {**call.arguments, argument.name: other}
    for label, change in (*_OF_ALL_TENSORS.items(), *_of_equal_shapes(call.arguments)):
        changed = {name: _each_tensor(value, change) for name, value in call.arguments.items()}
        yield f"all tensors {label}", changed


def _sizes(described: Described) -> Iterator[int]:
    """Yield the sizes of all tensors in a description."""
    return chain.from_iterable(_shapes_in(described))


def _shapes_in(described: Described) -> Iterator[tuple[int, ...]]:
    """Yield the shapes of all tensors in a description."""
    if is_tensor(described):
        yield tuple(described["shape"])
    elif isinstance(described, list):
        yield from chain.from_iterable(map(_shapes_in, described))


def _changes(value: Described, argument: Parameter, beyond: int) -> Changes:
    """Yield what an argument may be in place of what it is.

    The value says more than the kind: a tensor in a list of optional tensors is changed as any
    other tensor is. Only what is neither a tensor nor a list is replaced by the table of kinds.
    """
    plain = argument.kind
    if plain.startswith("Optional["):
        plain = plain.removeprefix("Optional[").removesuffix("]")
        if value is not None:
            yield "left out", None
    if value is None:
        yield from ((f"that is {_shown(other)}", other) for other in _GIVEN.get(plain, ()))
    elif is_tensor(value):
        yield from _of_tensor(value, beyond)
    elif isinstance(value, list) and any(map(is_tensor, value)):
        yield from _of_tensors(value, beyond)
    elif isinstance(value, list):
        yield from _of_numbers(value, beyond)
    else:
        others = list(_BY_KIND.get(plain, ()))
        # A number may be a dimension or an index, so it also gets out of range on either side.
        if plain == "int":
            others += [beyond + 1, -1 - beyond]
        for other in others:
            yield f"that is {_shown(other)}", other


_GIVEN: dict[str, tuple[Described, ...]] = {
    "Tensor": (
        {"shape": [1], "dtype": "float32"},
        {"shape": [0], "dtype": "float32"},
        {"shape": [2], "dtype": "int64"},
    ),
    "int": (0, -1, _HUGE),
    "float": (0.0, -1.0, {"float": "nan"}),
    "number": (0, {"float": "nan"}),
    "bool": (True, False),
    "List[int]": ([], [0], [-1], [1, 1]),
    "List[float]": ([], [0.0], [{"float": "nan"}]),
    "str": ("", "none"),
}
"""What an argument may be that is left out, by its kind."""
_BY_KIND: dict[str, tuple[Described, ...]] = {
    "int": (0, -1, 1, 2, _HUGE, -_HUGEST, _HUGEST),
    "float": (0.0, -1.0, {"float": "nan"}, {"float": "inf"}, 1e30),
    "number": (0, -1, {"float": "nan"}, {"float": "inf"}, _HUGEST, True, {"complex": [0.0, 1.0]}),
    "bool": (True, False),
    "str": ("", "none", "nonsense"),
    "ScalarType": tuple({"dtype": name} for name in ("bool", "int8", "float64", "complex64")),
    "Layout": tuple({"layout": name} for name in ("sparse_coo", "sparse_csr", "strided")),
    "MemoryFormat": tuple({"memory_format": name} for name in ("channels_last", "preserve_format")),
}
"""What an argument that is no tensor may be, by its kind."""


def _shown(value: Described) -> str:
    """Return a value as a label has it."""
    if is_tensor(value):
        return f"{value['dtype']}{value['shape']}"
    if isinstance(value, dict):
        ((_, value),) = value.items()
    names = {_HUGE: "2**31", _HUGEST: "2**62", -_HUGEST: "-2**62"}
    if isinstance(value, int) and not isinstance(value, bool):
        return names.get(value, str(value))
    return str(value)


# --- tensors --------------------------------------------------------------------------------------


def _with(described: Described, **changed: Any) -> Described:
    """Return a description with other entries. Numbers that no longer fit are drawn anew."""
    other = {**described, **changed}
    if "shape" in changed and isinstance(other.get("numbers"), list):
        del other["numbers"]
        if described["numbers"]:
            other["numbers"] = described["numbers"][0]
    return other


def _of_tensor(x: Described, beyond: int) -> Changes:
    """Yield a tensor with other sizes, another rank, another dtype and other numbers.

    Tensors of other layouts and quantized ones are made of dense ones, so that they have other
    sizes and ranks alone.
    """
    yield from _of_sizes(x)
    shape = x["shape"]
    if shape:
        yield "with a dimension less", _with(x, shape=shape[1:])
        yield "with no dimension", _with(x, shape=[])
    yield "with a dimension more", _with(x, shape=[1, *shape])
    yield "with two dimensions more", _with(x, shape=[2, 2, *shape])
    yield "that is empty", _with(x, shape=[0])
    if "layout" in x or x["dtype"].startswith("q"):
        return
    for dtype in _DTYPES.get(x["dtype"], ()):
        yield f"in {dtype}", _with(x, dtype=dtype)
    yield from _of_elements(x, beyond)


def _of_sizes(x: Described) -> Changes:
    """Yield a tensor with another size in one dimension.

    One less and one more are the mistakes of a caller. Half is what kernels of pairs may take for
    all, and three times the size leaves the memory of a result by more than its padding.
    """
    shape = x["shape"]
    for dim, size in enumerate(shape):
        # The size itself is no change, and an empty dimension has no size one less.
        others = {0, 1, size // 2, size - 1, size + 1, 3 * size + 1} - {size, -1}
        for other in sorted(others):
            other_shape = [*shape[:dim], other, *shape[dim + 1 :]]
            yield f"with {other} of {size} in dimension {dim}", _with(x, shape=other_shape)


def _of_elements(x: Described, beyond: int) -> Changes:
    """Yield a tensor with other numbers: indices out of range, NaN and infinities.

    What a whole number means, nothing says here. It may be an index, a label, an offset, a length
    or a count, and the first and the last one of a row may mean different things.
    """
    dtype = x["dtype"]
    if dtype.startswith(("float", "bfloat")):
        for word in ("nan", "inf"):
            yield f"of {word}", _with(x, numbers={"float": word})
        yield "of zeros", _with(x, numbers=0)
        yield "of 1e30", _with(x, numbers=1e30)
    if dtype not in ("int64", "int32"):
        return
    far = _HUGEST if dtype == "int64" else _HUGE - 1
    for number in (beyond, -1 - beyond, 0, -1, far):
        yield f"of {_shown(number)} alone", _with(x, numbers=number)
    numbers = x.get("numbers")
    if isinstance(numbers, list) and len(numbers) > 1:
        for number in (beyond, -1 - beyond, far):
            yield f"with {_shown(number)} in front", _with(x, numbers=[number, *numbers[1:]])
            yield f"with {_shown(number)} at the end", _with(x, numbers=[*numbers[:-1], number])
        yield "in the other order", _with(x, numbers=numbers[::-1])


def _of_tensors(tensors: Sequence[Described], beyond: int) -> Changes:
    """Yield lists with other tensors, with fewer and with more of them.

    A kernel of several lists trusts that they are equally long, and one of tensors in pairs that
    the first ones have the shapes of the others. So the first and the last tensor are changed.
    """
    yield "that is an empty list", []
    yield "with one less", list(tensors[:-1])
    yield "with one more", [*tensors, tensors[-1]]
    for place in sorted({0, len(tensors) - 1}):
        if not is_tensor(tensors[place]):
            continue
        for label, other in _of_tensor(tensors[place], beyond):
            yield f"{place} {label}", [*tensors[:place], other, *tensors[place + 1 :]]


# --- numbers --------------------------------------------------------------------------------------


def _of_numbers(numbers: Sequence[Described], beyond: int) -> Changes:
    """Yield lists of other lengths, and with other numbers.

    A number stands in front, at the end, and in each place: a stride of [0, 1] may be refused
    where [1, 0] is not, and [0, 0] may divide by zero where neither does.
    """
    lists: list[list[Described]] = [[]]
    if numbers:
        lists += [list(numbers[:-1]), [*numbers, numbers[-1]], [0] * len(numbers)]
        others = _others_of(numbers[0], beyond)
        lists += [[other, *numbers[1:]] for other in others]
        lists += [[*numbers[:-1], other] for other in others]
        lists += [[other] * len(numbers) for other in others]
    for other_list in lists:
        yield f"that is [{', '.join(map(_shown, other_list))}]", other_list


def _others_of(number: Described, beyond: int) -> tuple[Described, ...]:
    """Return what a number in a list may be.

    ``beyond``: the largest size of the call. One more is in range of no dimension.
    """
    if isinstance(number, bool):
        return (True, False)
    if isinstance(number, int):
        return (0, -1, 1, number + 1, beyond + 1, _HUGE, _HUGEST)
    return (0.0, -1.0, {"float": "nan"}, {"float": "inf"}, 1e30)


# --- all tensors ----------------------------------------------------------------------------------


def _each_tensor(described: Described, change: OfTensor) -> Any:
    """Return a description with a change of each tensor.

    What is no tensor, and no list with tensors, stays as it is.
    """
    if is_tensor(described):
        return change(described)
    if isinstance(described, list):
        return [_each_tensor(each, change) for each in described]
    return described


def _of_equal_shapes(arguments: Arguments) -> Iterator[tuple[str, OfTensor]]:
    """Yield changes of a size that several tensors of one shape get, such as two states.

    A kernel that compares them with one another finds no difference.
    """
    counts = Counter(_shapes_in(list(arguments.values())))
    for shape, count in counts.items():
        # A shape of one tensor alone is changed argument by argument.
        if count == 1:
            continue
        for dim, size in enumerate(shape):
            for other in sorted({0, size - 1, size + 1} - {size, -1}):
                label = f"of {list(shape)} with {other} in dimension {dim}"
                yield label, _replacing(list(shape), [*shape[:dim], other, *shape[dim + 1 :]])


def _replacing(shape: list[int], other: list[int]) -> OfTensor:
    """Return what gives the tensors of a shape another one."""

    def change(x: Described) -> Described:
        """Return a tensor of that shape with the other one, and any other as it is."""
        if x["shape"] != shape:
            return x
        return _with(x, shape=other)

    return change


def _shapes(change: Callable[[list[int]], list[int]]) -> OfTensor:
    """Return what gives a tensor another shape."""
    return lambda x: _with(x, shape=change(x["shape"]))


_OF_ALL_TENSORS: dict[str, OfTensor] = {
    "empty": _shapes(lambda shape: [0] * len(shape)),
    "with 0 in the first dimension": _shapes(lambda shape: [0, *shape[1:]][: len(shape)]),
    "with 0 in the last dimension": _shapes(lambda shape: [*shape[:-1], 0][: len(shape)]),
    "with no dimension": _shapes(lambda shape: []),
    "with a dimension less": _shapes(lambda shape: shape[1:]),
    "with a dimension more": _shapes(lambda shape: [1, *shape]),
}
"""Changes that all tensors of a call get alike, by what a label says."""
