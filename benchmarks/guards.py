"""What jit's guards take of a call, in µs beside the whole call, torch eager and the same guards
without the native part; and what the first call takes.

A guard asks whether the call is one for a program that is there: of the arguments, of the tensors
that the program closes over, and of all objects of Python's that it comes to. It is called many
times in a row, so that its objects are in the processor's cache."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import memory
from runtime import jit
from runtime.aot.calls.arguments import flatten
from runtime.jit.jitted import Jitted, JittedModule
from runtime.native.library import VARIABLE, library

Made = tuple[Callable[..., Any], tuple[Tensor, ...]]
_TURNS = 10
_WARM_UP = 4  # calls after which an optimizer has its state, and a number that changes is an input


@dataclass(frozen=True)
class Program:
    """`make()` gives a function and its arguments. `goal`: microseconds of the guard."""

    name: str
    make: Callable[[], Made]
    goal: float


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: Tensor = self.dropout(self.out(attended.transpose(1, 2).reshape(x.shape)))
        return result


class Block(nn.Module):
    """Attention and two linear layers, each behind a norm and beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, 4)
        self.norm2, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.act, self.down = nn.GELU(), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        result: Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return result


class GPT(nn.Module):
    """126 modules with 149 parameters."""

    def __init__(self, depth: int = 12, width: int = 64, words: int = 128, length: int = 16):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _two() -> Made:
    return lambda x, y: x.sin() * y, (torch.randn(8), torch.randn(8))


def _mlp() -> Made:
    layers = nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 16)
    return nn.Sequential(*layers), (torch.randn(4, 32),)


def _gpt() -> Made:
    return GPT(), (torch.randint(128, (1, 16)),)


def _layers() -> Made:
    return nn.Sequential(*(nn.Linear(8, 8) for _ in range(1000))), (torch.randn(1, 8),)


def _step() -> Made:
    model, args = _gpt()
    assert isinstance(model, nn.Module)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step(ids: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(ids).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, args


PROGRAMS = (
    Program("two tensors", _two, 1),
    Program("MLP of 3 layers", _mlp, 4),
    Program("GPT of 12 blocks", _gpt, 35),
    Program("1,000 linear layers", _layers, 220),
    Program("Adam step of the GPT", _step, 45),
)


def jitted(f: Callable[..., Any], args: tuple[Tensor, ...]) -> Callable[..., Any]:
    """A jitted function after its first calls."""
    made = jit(f)
    for _ in range(_WARM_UP):
        made(*args)
    return made


@contextmanager
def without_native_part() -> Iterator[None]:
    """Guards that are made inside compare in Python."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = "0"
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if before is not None:
            os.environ[VARIABLE] = before


def guard_of(made: Callable[..., Any], args: tuple[Tensor, ...]) -> Callable[[], object]:
    """The guard that such a call passes, without arguments."""
    function = made._jitted if isinstance(made, JittedModule) else made
    assert isinstance(function, Jitted)
    given, _ = flatten(args, {})
    ways = [
        take
        for captures in function._captures.values()
        for recent in captures.recent.values()
        for take, _ in recent
    ]
    take = next(take for take in ways if take(given) is not None)
    return partial(take, given)


def time_of(call: Callable[[], object], seconds: float) -> float:
    """Seconds of processor time of one call, by calls in a row for about ``seconds``."""
    start = time.process_time()
    call()
    once = time.process_time() - start
    count = max(1, int(seconds / max(once, 1e-7)))
    start = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - start) / count


def first_call(make: Callable[[], Made], repeats: int) -> float:
    """The median of the seconds of processor time that the first call takes."""
    found = []
    for _ in range(repeats):
        f, args = make()
        g = jit(f)
        start = time.process_time()
        g(*args)
        found.append(time.process_time() - start)
    return statistics.median(found)


def measure(program: Program, seconds: float) -> dict[str, float]:
    """The figures of one program: the least seconds of each side, the medians of ratios."""
    torch.manual_seed(0)
    f, args = program.make()
    native = jitted(f, args)
    # of the same objects: of others it may take twice the time, because of where they lie
    with without_native_part():
        plain = jitted(f, args)
    # in turns, so that a slow phase of the machine meets all of them
    sides: dict[str, Callable[[], object]]
    sides = {
        "guard": guard_of(native, args),
        "in Python": guard_of(plain, args),
        "call": partial(native, *args),
        "eager": partial(f, *args),
    }
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(_TURNS):
        for name, side in sides.items():
            times[name].append(time_of(side, seconds / _TURNS / len(sides)))
    guards = times["guard"]
    found = {name: min(taken) for name, taken in times.items()}
    for name in ("in Python", "call", "eager"):
        ratios = [a / b for a, b in zip(guards, times[name], strict=True)]
        found[f"guard ÷ {name}"] = statistics.median(ratios)
    return found | {"first call": first_call(program.make, 3)}


def report(console: Console, only: str, seconds: float) -> dict[str, dict[str, float]]:
    """Print the table, and return it."""
    chosen = [p for p in PROGRAMS if only.lower() in f"guards / {p.name}".lower()]
    found = {p.name: measure(p, seconds) for p in chosen}
    table = memory.empty_table(
        f"guards of jitted functions, µs, which compare {library().describe()}",
        "program",
        "guard (goal)",
        "in Python",
        "call",
        "eager",
        "guard ÷ in Python",
        "guard ÷ call",
        "guard ÷ eager",
        "first call, ms",
        numbers=True,
    )
    for p in chosen:
        row = found[p.name]
        table.add_row(
            p.name,
            f"{1e6 * row['guard']:.2f} ({p.goal:g})",
            f"{1e6 * row['in Python']:.2f}",
            f"{1e6 * row['call']:,.1f}",
            f"{1e6 * row['eager']:,.1f}",
            f"{row['guard ÷ in Python']:.3f}",
            f"{row['guard ÷ call']:.3f}",
            f"{row['guard ÷ eager']:.3f}",
            f"{1e3 * row['first call']:,.1f}",
        )
    console.print(table)
    return found
