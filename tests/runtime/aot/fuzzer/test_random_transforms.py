"""Nested transforms of random programs, as graphs or jitted at random places and called in many
ways, give what the same transforms of torch give, on other values and other sizes."""

from __future__ import annotations

import os
import random
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.utils import _pytree as pytree

from runtime import func as ours
from runtime import jit
from runtime.aot import make_fx

from .observations import same
from .programs import ERRORS
from .statements import KINDS, LOCAL, PURE
from .surroundings import values
from .ways import WAYS, Step

NUMBER, FIRST = int(os.environ.get("PROGRAMS", "60")) // 2, int(os.environ.get("SEED", "0"))
Program = Callable[[Any, Any], Any]
REFUSED = (
    # a mask that is written through: its number of elements depends on values
    "while the program is being traced",
    "custom autograd.Function",  # a Function without setup_context
)


def scalar(f: Program) -> Program:
    return lambda x, y: f(x, y).sin().sum()


def linearized(api: Any, f: Callable[[Any], Any], x: Any, tangent: Any) -> Any:
    """Torch's own ``linearize`` forgets writes, so that its reference is ``jvp``."""
    return ours.linearize(f, x)[1](tangent) if api is ours else api.jvp(f, (x,), (tangent,))[1]


def flat(tree: Any) -> Any:
    return torch.cat([t.flatten() for t in pytree.tree_leaves(tree)])


TRANSFORMS: dict[str, Callable[[Any, Program], Program]] = {
    "grad": lambda api, f: lambda x, y: api.grad(scalar(f))(x, y),
    "vmap": lambda api, f: lambda x, y: api.vmap(f, (0, None))(torch.stack([x, x + 1]), y),
    "vmap of both": lambda api, f: (
        lambda x, y: api.vmap(f, (0, 0), 1)(torch.stack([x, x + 1]), torch.stack([y, y - 1]))
    ),
    "jvp": lambda api, f: lambda x, y: api.jvp(lambda x: f(x, y), (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda api, f: lambda x, y: api.jacrev(f)(x, y),
    "jacfwd": lambda api, f: lambda x, y: api.jacfwd(f, 1)(x, y).sum((-1, -2)),
    "vjp": lambda api, f: lambda x, y: api.vjp(scalar(f), x, y)[1](x.sum())[1],
    "linearize": lambda api, f: lambda x, y: linearized(api, lambda x: f(x, y), x, x.cos()),
    "value and gradients": lambda api, f: (
        lambda x, y: flat(api.grad_and_value(scalar(f), (0, 1))(x, y))
    ),
    "functionalize": lambda api, f: lambda x, y: api.functionalize(f)(x, y),
}


class Random:
    """A program of two matrices, and transforms around it, innermost first."""

    def __init__(self, seed: int) -> None:
        rnd = random.Random(seed)
        self.transforms = [rnd.choice(list(TRANSFORMS)) for _ in range(rnd.randint(1, 3))]
        self.symbolic = rnd.random() < 0.5
        places = random.Random(~seed)
        # how many times jit is inside of each
        self.jitted = [places.choice((0, 0, 0, 1, 1, 2)) for _ in self.transforms]
        self.way = places.choice(WAYS)
        self.dynamic = places.choice([None, None, True, False])
        self.lines = self._lines(rnd)
        self.result = rnd.choice(
            [line.split(" = ")[0] for line in self.lines[-2:] if " = " in line] or ["x * y"]
        )

    def _lines(self, rnd: random.Random) -> list[str]:
        scope: dict[str, Any] = {
            "torch": torch,
            "x": values(0, (4, 3), torch.float64),
            "y": values(1, (4, 3), torch.float64),
            "s": 2.5,
        }
        names, lines = ["x", "y"], ["x = x * 1"]
        for _ in range(rnd.randint(2, 12)):
            kind = rnd.choice((*PURE, "local", "local"))
            name = f"v{len(scope)}"
            template = rnd.choice(LOCAL if kind == "local" else KINDS[kind][0])
            text = template.format(
                t=rnd.choice(names), o=rnd.choice(names), s="2.5", v=name, w=f"w{len(scope)}"
            )
            trial = dict(scope)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # torch warns where a loss broadcasts
                    exec(text, trial)
            except ERRORS:
                continue
            if (
                "Twice" not in text
                and isinstance(trial.get(name), torch.Tensor)
                and trial[name].is_floating_point()
            ):
                scope = trial
                names.append(name)
                lines += text.split("\n")
        return lines

    def __str__(self) -> str:
        body = "\n".join(
            f"    {line}" for line in [*self.lines, f"return ({self.result}) + 0 * x.sum()"]
        )
        around = (
            f"{self.transforms}, innermost first; jits {self.jitted}, {self.way.__name__}, "
            f"dynamic={self.dynamic}"
        )
        return f"# {'symbolic' if self.symbolic else 'real'}, {around}\ndef f(x, y):\n{body}"

    def transformed(self, api: Any, jits: bool = False) -> Program:
        scope: dict[str, Any] = {"torch": torch}
        exec(str(self), scope)
        f: Program = scope["f"]
        for name, jitted in zip(self.transforms, self.jitted, strict=True):
            for _ in range(jitted if jits else 0):
                f = jit(f, dynamic=self.dynamic)
            f = TRANSFORMS[name](api, f)
        return f

    def stepped(self, api: Any, jits: bool = False) -> Step:
        """The program called in its way, as a function of the number of a call and the
        arguments."""
        return self.way(
            self.transformed(api, jits),
            (lambda f: jit(f, dynamic=self.dynamic)) if jits else lambda f: f,
        )

    def arguments(self, call: int, sizes: bool = False) -> tuple[Any, Any]:
        # The number of results of an unbind is a part of the graph. So is a size of 1, which a
        # slice of a smaller matrix would have.
        fixed = any(word in line for line in self.lines for word in ("unbind", "split", "chunk"))
        shape = ((4, 3), (6, 3), (5, 3))[call] if (self.symbolic or sizes) and not fixed else (4, 3)
        return values(2 * call, shape, torch.float64), values(2 * call + 1, shape, torch.float64)


class Senseless(Exception):
    """Torch has no result for the program."""


class Loop:
    """``torch.func`` with a loop in place of vmap."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.func, name)

    def vmap(self, f: Program, in_dims: tuple[int | None, ...], out_dim: int = 0) -> Program:
        def g(*args: Any) -> Any:
            rows = [args[0][k] for k in range(len(args[0]))]
            return torch.stack(
                [
                    f(row, args[1] if in_dims[1] is None else args[1][k])
                    for k, row in enumerate(rows)
                ],
                out_dim,
            )

        return g


def by_formula(x: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """``layer_norm``, of which torch gets derivatives of third order wrong: a rule of its takes the
    saved statistics for constants."""
    dims = tuple(range(-len(shape), 0))
    centred = x - x.mean(dims, keepdim=True)
    return centred / (centred.square().mean(dims, keepdim=True) + 1e-5).sqrt()


Run = Callable[["Random", Any], tuple[list[Any], list[Any]]]


def by_graph(program: Random, reference: Any) -> tuple[list[Any], list[Any]]:
    """What ``reference`` and a graph give for other arguments than those of the capture."""
    plain = program.transformed(reference)
    try:
        _, expected = (plain(*program.arguments(call)) for call in (0, 1))
    except ERRORS as error:
        raise Senseless from error
    graph = make_fx(
        program.transformed(ours), tracing_mode="symbolic" if program.symbolic else "real"
    )(*program.arguments(0))
    return [expected], [graph(*program.arguments(1))]


CALLS = (0, 1, 0, 2, 1)


def by_jit(program: Random, reference: Any) -> tuple[list[Any], list[Any]]:
    """What ``reference`` gives without jit, and the runtime with it, for some arguments, others,
    the first again, and more."""
    plain = program.stepped(reference)
    try:
        expected = [plain(call, *program.arguments(call, True)) for call in CALLS]
    except ERRORS as error:
        raise Senseless from error
    jitted = program.stepped(ours, jits=True)
    return expected, [jitted(call, *program.arguments(call, True)) for call in CALLS]


def alike(expected: list[Any], found: list[Any]) -> bool:
    return all(same(a, b, 1e-3) for a, b in zip(expected, found, strict=True))


def outcome(seed: int, run: Run) -> tuple[str, str]:
    """What becomes of a seed, and its source: "same", "different", "refused", "error", or "nothing"
    if torch has no result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = Random(seed)
        try:
            expected, found = run(program, torch.func)
            # torch's vmap gives NaN for some programs whose rows have numbers
            if not alike(expected, found):
                with patch.object(torch.nn.functional, "layer_norm", by_formula):
                    expected, _ = run(program, Loop())
        except Senseless:
            return "nothing", ""
        except Exception as error:
            what = "refused" if any(text in str(error) for text in REFUSED) else "error"
            return what, f"{program}\n--> {type(error).__name__}: {error}"
    return (
        ("same", "")
        if alike(expected, found)
        else ("different", f"{program}\n--> {expected}\nbut {found}")
    )


@pytest.mark.parametrize("run", [by_graph, by_jit])
def test_transforms_do_what_they_do_in_torch(run: Run) -> None:
    found = {seed: outcome(seed, run) for seed in range(FIRST, FIRST + NUMBER)}
    counts = Counter(what for what, _ in found.values())
    print(counts)
    wrong = [
        f"# seed {seed}\n{text}"
        for seed, (what, text) in found.items()
        if what in ("different", "error")
    ]
    assert not wrong, "\n\n".join(wrong)
    assert counts["same"] > NUMBER / 2 and counts["refused"] <= 0.03 * NUMBER, counts


def test_the_formula_of_layer_norm_is_that_of_torch() -> None:
    x = values(0, (4, 3), torch.float64)
    assert same(by_formula(x, x.shape[1:]), torch.nn.functional.layer_norm(x, x.shape[1:]), 1e-6)


def test_a_difference_would_be_seen() -> None:
    program = Random(next(seed for seed in range(100) if outcome(seed, by_graph)[0] == "same"))
    ((expected,), _) = by_graph(program, torch.func)
    assert same(expected, expected, 1e-3) and not same(expected, expected + 1, 1e-3)
    assert len({any(program.jitted) for program in map(Random, range(20))}) == 2
    assert {program.way for program in map(Random, range(200))} == set(WAYS)
