"""Make programs of a call in which a tensor without dimensions stands where the op takes a number.

    add(x, y, alpha=2)   ->   f(t, x, y) = add(x, y, alpha=t), of t = 2.0
    roll(x, 1)           ->   f(p, x) = roll(x, p[0]), of p = [1, 2]

Torch reads the number of such a tensor below Python. So what an op gives depends on ``t``, but a
derivative, a batch or a graph may not see it. The reference calls the op with the number, and its
derivative by ``t`` is one by differences. A number that the sample leaves to its default is asked,
too. No op is named here.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.autograd import forward_ad

from gen.checks.forms.form_program import is_reference
from gen.checks.pipelines import Program
from gen.outcomes import Unsuitable
from gen.reference import Numeric
from gen.samples.samples import Sample
from gen.samples.seeds import seeded
from gen.targets.protocol import Flat, Target, Values
from gen.torch_private.loaded_with_torch import pytree

__all__ = ["with_tensors_for_numbers"]

Tensor = torch.Tensor
Arguments = tuple[list[Any], dict[str, Any]]
Put = Callable[[Arguments, object], Arguments]
_MOST_REAL, _MOST_WHOLE = 3, 1  # numbers of one sample that are asked
_BESIDE = 0.1875  # how far beside a number another one lies, exactly in each floating dtype
_NUMBERS_OF_SCHEMA = frozenset(("float", "number", "int"))
_NO_NUMBERS = frozenset(("generator", "device", "dtype", "layout", "out"))


@dataclass(frozen=True)
class _Number:
    """An argument of a sample that is a number: its value, and what puts another in its place."""

    label: str
    value: float
    put: Put


def with_tensors_for_numbers(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return a program for each of the first numbers among the arguments of a sample.

    Raises Unsuitable if there is none that may be a tensor, or the op draws random numbers.
    """
    if sample.facts.random or sample.facts.mutates:
        raise Unsuitable(f"{sample.description} draws numbers, or writes to its arguments")
    real: list[Program] = []
    whole: list[Program] = []
    for number in _numbers(sample):
        of_real = _real(sample, inputs, number)
        if of_real is not None:
            real.append(of_real)
        elif (of_whole := _whole(sample, inputs, number)) is not None:
            whole.append(of_whole)
    programs = [*real[:_MOST_REAL], *whole[:_MOST_WHOLE]]
    if not programs:
        raise Unsuitable(f"{sample.description} has no number that the op takes a tensor for")
    return programs


# --- the numbers of a call ------------------------------------------------------------------------


def _numbers(sample: Sample) -> Iterator[_Number]:
    """Yield the numbers among the arguments, and those that the sample leaves to their defaults."""
    args, kwargs = sample.rebuild(sample.inputs)
    for place, leaf in enumerate(pytree.tree_leaves((args, kwargs))):
        if type(leaf) in (int, float):
            yield _Number(f"argument {place}", leaf, _replacing(place))
    for name, value in _defaults(sample.op.call, len(args)):
        if name not in kwargs and name not in _NO_NUMBERS:
            yield _Number(name, value, _adding(name))


def _replacing(place: int) -> Put:
    def put(arguments: Arguments, value: object) -> Arguments:
        leaves, spec = pytree.tree_flatten(arguments)
        leaves[place] = value
        replaced: Arguments = pytree.tree_unflatten(leaves, spec)
        return replaced

    return put


def _adding(name: str) -> Put:
    return lambda arguments, value: (arguments[0], {**arguments[1], name: value})


def _defaults(call: Callable[..., object], count: int) -> Iterator[tuple[str, float]]:
    """Yield the names and defaults of the numbers behind the first `count` parameters."""
    try:
        parameters = list(inspect.signature(call).parameters.values())[count:]
    except (TypeError, ValueError):  # a function of C++
        yield from _defaults_of_schemas(call, count)
        return
    for parameter in parameters:
        if type(parameter.default) in (int, float):
            yield parameter.name, parameter.default


def _defaults_of_schemas(call: Callable[..., object], count: int) -> Iterator[tuple[str, float]]:
    """Yield the same for a function of C++, by the schemas of ATen's op of its name."""
    packet = getattr(torch.ops.aten, getattr(call, "__name__", ""), None)
    if packet is None:
        return
    schemas = [getattr(packet, overload)._schema for overload in packet.overloads()]
    found: dict[str, float] = {}
    for argument in chain.from_iterable(schema.arguments[count:] for schema in schemas):
        if str(argument.type) in _NUMBERS_OF_SCHEMA and argument.default_value is not None:
            found.setdefault(argument.name, argument.default_value)
    yield from found.items()


# --- programs -------------------------------------------------------------------------------------


def _real(sample: Sample, inputs: tuple[Tensor, ...], number: _Number) -> Program | None:
    """Return the program of a tensor of a real number. None if the op takes none there.

    Where the op has no derivative by the number, as at a kink, there is no reference.
    """
    value = float(number.value)
    dtype = next((x.dtype for x in inputs if x.is_floating_point()), torch.float64)
    t = torch.tensor(value, dtype=dtype)
    call = _caller(sample, number.put)
    if not (_takes(sample, call, t, inputs) and _moves(sample, call, value, inputs)):
        return None

    def plain(t: Tensor, *values: Tensor) -> Values:
        """Return results of the number, with the slope by it as their derivative."""
        results = call(float(t), *values)
        if not _is_differentiated(t):
            return results
        slopes = _slopes(call, t, values)
        assert slopes is not None, "the number has slopes at the sample itself"
        return tuple(map(_along(t), results, slopes))

    with seeded(sample.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if _slopes(call, t, inputs) is None:
            return None
    return _program(sample, number, (t, *inputs), (True, *sample.differentiable), call, plain)


def _whole(sample: Sample, inputs: tuple[Tensor, ...], number: _Number) -> Program | None:
    """Return the program of a tensor of a whole number. None if the op takes none there, or has no
    other whole number with results of the same shapes.

    The input is a pair of numbers, of which the first one counts: a batch turns the pairs around.
    """
    if type(number.value) is not int:
        return None
    call, value = _caller(sample, number.put), number.value
    if not _takes(sample, call, torch.tensor(value), inputs):
        return None
    other = _other_whole(sample, call, value, inputs)
    if other is None:
        return None

    def of_first(pair: Tensor, *values: Tensor) -> Values:
        return call(pair[0], *values)

    def plain(pair: Tensor, *values: Tensor) -> Values:
        return call(int(pair[0]), *values)

    pair = torch.tensor([value, other])
    return _program(
        sample, number, (pair, *inputs), (False, *sample.differentiable), of_first, plain
    )


def _program(
    sample: Sample,
    number: _Number,
    inputs: tuple[Tensor, ...],
    differentiable: tuple[bool, ...],
    call: Flat,
    plain: Flat,
) -> Program:
    """Return a program that runs `call` on a target and `plain` on a reference."""

    def over(target: Target) -> Flat:
        return plain if is_reference(target) else call

    label = f"{sample.op.name} of a tensor for {number.label}"
    return Program(over, inputs, differentiable, sample.seed, label)


def _caller(sample: Sample, put: Put) -> Flat:
    """Return the op as a function of the number, and of the inputs of the sample."""

    def call(number: object, *values: Any) -> Values:
        args, kwargs = put(sample.rebuild(values), number)
        if sample.wrap is not None:
            return sample.outputs(sample.wrap(sample.op.call, *args, **kwargs))
        return sample.outputs(sample.op.call(*args, **kwargs))

    return call


# --- what the op makes of numbers ----------------------------------------------------------------


def _results(
    sample: Sample, call: Flat, number: object, inputs: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    """Return results of the plain op for a number. None if it refuses that."""
    with seeded(sample.seed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return tuple(call(number, *(x.clone() for x in inputs)))
        except Exception:  # functions in Python and C++ raise different ones
            return None


def _takes(sample: Sample, call: Flat, t: Tensor, inputs: Sequence[Tensor]) -> bool:
    """Return whether the plain op takes a tensor there, and gives results of the same kinds.

    Results of other kinds are those of another overload: of `max` by a dimension, and of two
    tensors.
    """
    of_tensor = _results(sample, call, t, inputs)
    of_number = _results(sample, call, t.item(), inputs)
    if of_tensor is None or of_number is None:
        return False
    return list(map(_kind, of_tensor)) == list(map(_kind, of_number))


def _moves(sample: Sample, call: Flat, value: float, inputs: Sequence[Tensor]) -> bool:
    """Return whether the op takes a real number there, and gives other results of another one."""
    first = _results(sample, call, value, inputs)
    second = _results(sample, call, value * (1 - _BESIDE) or _BESIDE, inputs)
    return first is not None and second is not None and not _are_equal(first, second)


def _other_whole(sample: Sample, call: Flat, value: int, inputs: Sequence[Tensor]) -> int | None:
    """Return another whole number, of which the op gives other results of the same shapes."""
    first = _results(sample, call, value, inputs)
    for other in (value + 1, value - 1, 0, 1, 2, -1):
        second = _results(sample, call, other, inputs)
        if first is None or second is None or list(map(_kind, first)) != list(map(_kind, second)):
            continue
        if not _are_equal(first, second):
            return other
    return None


def _kind(x: Tensor) -> tuple[torch.Size, torch.dtype]:
    return x.shape, x.dtype


def _are_equal(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    if len(first) != len(second):
        return False
    return all(map(torch.equal, first, second))


# --- derivatives of the reference ----------------------------------------------------------------


def _is_differentiated(t: Tensor) -> bool:
    """Return whether the reference asks for a derivative by a number."""
    return t.requires_grad or forward_ad.unpack_dual(t).tangent is not None


def _slopes(call: Flat, t: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
    """Return the derivatives of all results by a number. None if one of them is not known."""
    number, inputs = t.detach(), [x.detach() for x in values]
    with torch.no_grad():
        try:
            _, slopes = Numeric().jvp(
                lambda t: call(float(t), *inputs), (number,), (torch.ones_like(number),)
            )
        except Exception:  # a number beside this one is refused, or gives other sizes
            return None
    if any(slope.isnan().any() for slope in slopes):
        return None
    return slopes


def _along(t: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return what gives a result its slope by `t`, and keeps its value."""

    def add(result: Tensor, slope: Tensor) -> Tensor:
        if not result.is_floating_point():
            return result
        return result + slope.to(result.dtype) * (t - float(t))

    return add
