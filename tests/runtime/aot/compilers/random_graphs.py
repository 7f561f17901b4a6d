"""Random programs of a few tensors, and what a call of one leaves behind, bit for bit.

A program computes, takes views and writes to its arguments. Its graph is run in two ways: call by
call as it was captured, and by the replay with all its rewrites. Both must give the same bits, the
same layouts, and results that share memory in the same way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

import runtime
from runtime import aot
from runtime.aot import make_boxed_func

_BITS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
UNARY = [
    "neg",
    "sin",
    "tanh",
    "exp",
    "sqrt",
    "abs",
    "relu",
    "sigmoid",
    "clone",
    "square",
    "reciprocal",
    "detach",
    "contiguous",
    "sign",
]
BINARY = ["add", "sub", "mul", "div", "maximum", "add", "mul", "mul"]
WRITES = [
    "add_({b})",
    "mul_({b})",
    "sub_({b}, alpha=0.5)",
    "copy_({b})",
    "neg_()",
    "mul_(0.9)",
    "add_(1)",
    "zero_()",
    "lerp_({c}, 0.1)",
]
WRITES += [
    "addcmul_({c}, {c}, value=0.5)",
    "addcdiv_({c}, {d}, value=-0.1)",
    "mul_(0.5).addcmul_({c}, {d})",
    "sqrt_()",
    "fill_(2.0)",
]
VIEWS = [
    "t()",
    "reshape(-1)",
    "unsqueeze(0)[0]",
    "expand(4, 3)",
    "mT.mT",
    "unsqueeze(0).expand(2, 4, 3)",
    "view(3, 4)",
    "select(0, 1)",
]
NUMBERS = ["1", "1.0", "0", "0.0", "-0.0", "2", "-1", "0.5", "-0.1", "3.0"]
CONSTANTS = ["ones_like", "zeros_like"]


def unoptimized(module: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
    """The compiler that runs a graph node by node, as it is."""
    return make_boxed_func(fx.Interpreter(module).run)


def program(seed: int, length: int = 14, writes: bool = True) -> str:
    """The source of a function ``f`` of four tensors. Lines that torch refuses, as sizes do not
    fit, are left out."""
    draw = random.Random(seed)
    values: dict[str, Any] = {"torch": torch, **dict(zip("abcd", inputs(seed), strict=True))}
    names, lines = list("abcd"), list[str]()
    for i in range(length):
        x, y, z, w = (draw.choice([*names, *names[-3:]]) for _ in range(4))
        if writes and draw.random() < 0.3:
            line = f"{draw.choice(['a', 'b', 'c', x])}.{draw.choice(WRITES).format(b=y, c=z, d=w)}"
        else:
            number, op = draw.choice(NUMBERS), draw.choice(BINARY)
            line = draw.choice([
                f"{x}.{draw.choice(UNARY)}()",
                f"{x}.{draw.choice(VIEWS)}",
                f"torch.{draw.choice(CONSTANTS)}({x}) * {number}",
                f"{x}.{op}({number})" if op != "maximum" else f"{x}.{op}({y})",
                f"{x}.{op}({y})",
                f"{x}.{op}({x})",
                lines[-1].partition(" = ")[2] if lines and " = " in lines[-1] else f"{x} + {y}",
            ])  # fmt: skip
            line = f"v{i} = {line}"
        try:
            exec(line, values)
        except (RuntimeError, IndexError):
            continue
        lines.append(line)
        names += [f"v{i}"] if line.startswith(f"v{i} =") else []
    returned = names[4:]
    draw.shuffle(returned)
    results = ", ".join(
        f"{n}{draw.choice(['', '', '.sum()', '.clone()'])}" for n in returned[: draw.randint(0, 4)]
    )
    return (
        "def f(a, b, c, d):\n"
        + "".join(f"    {line}\n" for line in lines)
        + f"    return [{results}]\n"
    )


def compiled(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"torch": torch}
    exec(text, names)
    f: Callable[..., Any] = names["f"]
    return f


def inputs(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Four tensors with zeros of both signs, infinities and a NaN among their elements."""
    generator = torch.Generator().manual_seed(seed)
    made = [
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((4, 3), (4, 3), (3, 4), (3,))
    ]
    for i, t in enumerate(made[:3]):
        t.view(-1)[i : i + 5] = torch.tensor(
            [0.0, -0.0, float("inf"), -float("inf"), float("nan")]
        ).to(dtype)
    return made


def bits(t: Tensor) -> Tensor:
    """The elements as integers; every NaN is the same."""
    plain = t.detach().clone()
    if not plain.is_floating_point():
        return plain
    return torch.where(plain.isnan(), torch.full_like(plain, torch.nan), plain).view(
        _BITS[plain.dtype]
    )


def observed(f: Callable[..., Any], given: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a call of ``f`` leaves behind: elements and layouts of results and arguments,
    versions of the arguments, and which results are one object with, or share memory with, which
    tensors before them."""
    versions = [t._version for t in given]
    results = list(f(*given))
    every: list[Any] = [*given, *results]
    elements = [(t.shape, t.stride(), t.dtype, bits(t).tolist()) for t in every]
    counted = [t._version - before for t, before in zip(given, versions, strict=True)]
    shared = [
        (i, j, every[i] is every[j])
        for i in range(len(every))
        for j in range(i)
        if _overlap(every[i], every[j])
    ]
    return elements, counted, shared


def _overlap(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def difference(text: str, seed: int, dtype: torch.dtype = torch.float32, calls: int = 2) -> str:
    """Where the replay of a program differs from its graph run node by node, in ``calls`` calls
    with the same arguments, or ""."""
    f = compiled(text)
    sides = [aot.aot_function(f, compiler) for compiler in (aot.nop, unoptimized)]
    given = [inputs(seed, dtype) for _ in sides]
    for call in range(calls):
        mine, theirs = (observed(side, tensors) for side, tensors in zip(sides, given, strict=True))
        for what, a, b in zip(
            ("elements or layouts", "versions", "shared memory"), mine, theirs, strict=True
        ):
            if a != b:
                return f"{what} of call {call}: {a} != {b}\n{text}"
    return ""


def difference_of_gradients(text: str, seed: int, dtype: torch.dtype = torch.float32) -> str:
    """The same of a program that writes to nothing, and of the gradients of the sum of its
    results."""
    f = compiled(text)
    found = []
    for compiler in (aot.nop, unoptimized):
        given = [runtime.wrap(t, requires_grad=True) for t in inputs(seed, dtype)]
        results = aot.aot_function(f, compiler)(*given)
        total = sum(
            (r.sum() for r in results if r.requires_grad),
            runtime.wrap(torch.zeros((), dtype=dtype), requires_grad=True),
        )
        total.backward()
        every = [*results, *(t.grad for t in given)]
        found.append(
            [
                None if t is None else (t.shape, t.stride(), bits(runtime.unwrap(t)).tolist())
                for t in every
            ]
        )
    return "" if found[0] == found[1] else f"{found[0]} != {found[1]}\n{text}"
