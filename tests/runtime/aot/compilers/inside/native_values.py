"""Compares native code with the kernels on the values where code differs:
`python -m tests.runtime.aot.compilers.inside.native_values [OP …]`.

Each op is called with zeros of both signs, infinities, NaN, and tiny and huge numbers, and with all
pairs of them. Differences beyond rounding are printed. Without OP all ops are compared, which
compiles for some minutes.

Inside: runtime.aot.compilers.native_ops, as one compilation is for all ops at once.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch

from runtime.aot import inductor, make_fx
from runtime.aot.compilers.native_ops import ELEMENTWISE, SUMS

VALUES = (
    *(0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, -3.0, 3.7, -3.7, 6.0, -6.0, 0.1),
    *(1e-7, -1e-7, 1e-40, -1e-40, 20.0, -20.0, 88.2, -88.2, 100.0, -100.0, 710.0, 16777217.0),
    *(1e8, -1e8, 1e30, 1.5707963, 3.1415927, 0.9999999, -0.9999999),
    *(torch.inf, -torch.inf, torch.nan),
)
FEW = (0.0, -0.0, 1.0, -0.5, 0.3, 5.0, 1e30, torch.inf, -torch.inf, torch.nan)
HERE = "a tensor"
NUMBERS: dict[str, tuple[object, ...]] = {
    "other": (2, -2.5),
    "exponent": (2, 3, 0.5, -1),
    "self": (2,),
    "min": (-1,),
    "max": (2,),
    "threshold": (0.5,),
    "value": (2,),
    "weight": (0.3,),
    "decimals": (2,),
    "dim": (1, [1]),
    "half_to_float": (False,),
}
"""Values of arguments that are no tensors, and have no default or an uninteresting one."""


@dataclass(frozen=True)
class Call:
    """A call of an op: ``args`` has HERE in the place of each tensor of ``tensors``."""

    op: Any
    args: tuple[object, ...]
    options: tuple[tuple[str, object], ...]
    tensors: tuple[torch.Tensor, ...]

    def __str__(self) -> str:
        given = [x for x in (*self.args, *dict(self.options).values()) if x not in (None, HERE)]
        return f"{self.op} {given} of {self.tensors[0].dtype}"

    def run(self, tensors: Sequence[Any]) -> Any:
        """Call the op with other tensors."""
        rest = iter(tensors)
        args = [self._argument(x, rest) for x in self.args]
        return self.op(*args, **dict(self.options))

    @staticmethod
    def _argument(x: object, rest: Iterator[Any]) -> object:
        if x is HERE:
            return next(rest)
        return x


def op_of(name: str) -> Any:
    """Return the op of a name such as ``add.Tensor``."""
    return reduce(getattr, name.split("."), torch.ops.aten)


def calls_of(name: str, dtype: torch.dtype) -> Iterator[Call]:
    """Yield calls of an op that its kernel takes."""
    op = op_of(name)
    choices: list[tuple[object, ...]] = []
    options: list[tuple[str, object]] = []
    for argument in op._schema.arguments:
        if str(argument.type) == "Tensor":
            choices.append((HERE,))
        elif argument.kwarg_only:
            (value, *_) = NUMBERS.get(argument.name, (argument.default_value,))
            options.append((argument.name, value))
        elif argument.name == "input_dtype":
            choices.append((dtype,))
        else:
            choices.append(NUMBERS.get(argument.name, (argument.default_value,)))
    for args in itertools.product(*choices):
        call = Call(op, args, tuple(options), tensors_of(name, args.count(HERE), dtype))
        try:
            call.run(call.tensors)
        except (RuntimeError, TypeError):
            continue  # a number or a list, where the op takes the other one
        yield call


def tensors_of(name: str, number: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Return arguments with all combinations of values; matrices for an op over dimensions."""
    if name in SUMS:
        generator = torch.Generator().manual_seed(0)
        rows = torch.randn(number, 37, 21, dtype=dtype, generator=generator)
        for row, value in enumerate((torch.nan, torch.inf, -torch.inf, 1e30), 1):
            rows[0, row, row] = value
        rows[0, 6], rows[0, 7] = 0.0, -torch.inf
        if "backward" in name:  # the result of the forward op
            rows[1:] = rows[1:].softmax(-1)
            if "log" in name:
                rows[1:] = rows[1:].log()
        return tuple(rows)
    # the values come at places of whole vectors and behind the last one
    values: tuple[float, ...] = VALUES
    if number > 2:
        values = FEW
    pairs = [*itertools.product(values, repeat=number)]
    columns = zip(*(pairs * 3 + pairs[::-1]), strict=True)
    return tuple(torch.tensor(column, dtype=torch.float64).to(dtype) for column in columns)


def scale_of(call: Call, result: torch.Tensor) -> torch.Tensor:
    """Return how large the terms of each element may be: the largest of its arguments."""
    scale = torch.zeros_like(result)
    for tensor in call.tensors:
        if tensor.shape == result.shape and tensor.is_floating_point():
            scale = scale.maximum(tensor.abs().nan_to_num(0.0, 0.0))
    return scale


def difference(kernel: torch.Tensor, native: torch.Tensor, scale: torch.Tensor) -> str:
    """Return how results differ beyond rounding; nothing if they do not.

    ``scale``: how large the terms of each element are. Where they cancel, rounding is that of them.
    """
    if (kernel.shape, kernel.dtype) != (native.shape, native.dtype):
        return "another shape or dtype"
    if not kernel.is_floating_point():
        return "" if kernel.equal(native) else "other elements"
    limits = torch.finfo(kernel.dtype)
    if (native.isfinite() & kernel.isnan() & (scale < limits.max**0.25)).any():
        return "a number where the kernel gives NaN"
    # an intermediate result may be beyond the largest number in one of them
    small = kernel.abs() < limits.max / 16
    kernel, native, scale = kernel[small], native[small], scale[small]
    if not native.isfinite().all():
        return "infinite where the kernel is finite"
    if not (kernel.signbit() == native.signbit())[kernel == 0].all():
        return "a zero of another sign"
    rounding = limits.eps ** (2 / 3) * kernel.abs() + 4 * limits.eps * scale + limits.tiny
    close = (kernel - native).abs() <= rounding
    if close.all():
        return ""
    return f"{native[~close][0].item()} for {kernel[~close][0].item()}"


def differences(names: Sequence[str]) -> dict[str, str]:
    """Return the calls of ops whose native code differs, each with a difference."""
    kinds = itertools.product(names, (torch.float32, torch.float64))
    calls = [call for name, dtype in kinds for call in calls_of(name, dtype)]

    def program(*tensors: Any) -> list[Any]:
        rest = iter(tensors)
        return [call.run([next(rest) for _ in call.tensors]) for call in calls]

    tensors = [tensor for call in calls for tensor in call.tensors]
    native = inductor(make_fx(program)(*tensors), list(tensors), isolated=False, cpp_wrapper=True)
    results = zip(calls, program(*tensors), native(list(tensors)), strict=True)
    found = {
        str(call): difference(kernel, result, scale_of(call, kernel))
        for call, kernel, result in results
    }
    return {call: text for call, text in found.items() if text}


def main(names: Sequence[str]) -> int:
    """Print the differences of ops, of all of them without names."""
    warnings.simplefilter("ignore")
    chosen = list(names) or sorted(ELEMENTWISE | SUMS)
    wrong = 0
    for begin in range(0, len(chosen), 8):
        some = chosen[begin : begin + 8]
        print(*some, flush=True)
        for call, text in differences(some).items():
            print(f"  {call}: {text}", flush=True)
            wrong += 1
    print(f"{len(chosen)} ops, {wrong} calls that differ")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
