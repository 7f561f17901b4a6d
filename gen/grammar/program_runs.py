"""Run a program by the model, by torch, and by a level of a target.

truth = by_model(program)
eager = by_torch(program, LEVELS["eager"]())
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gen.grammar.drawn_program import Call, Program
from gen.grammar.model_world import ModelWorld
from gen.grammar.observation import (
    Gradients,
    Observation,
    add_gradients,
    add_numbers,
    flat,
    of_torch,
    version,
    weight_of,
)
from gen.grammar.prelude import World
from gen.reference.model import chain_rule
from gen.reference.model.cell_geometry import Refused
from gen.reference.model.model_tensor import Tensor as ModelTensor
from gen.reference.model.stored_cells import recording

LARGEST = 1e6  # above, the rounding of float32 is more than a comparison tolerates
SEED = 5  # of the generator, the same before each run of a program
AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "torch.no_grad()": torch.no_grad,
    "torch.inference_mode()": torch.inference_mode,
}
"""What a call may run in, by its text."""


@dataclass(frozen=True)
class Level:
    """How a target runs a program. `compiled`: what is called in place of the function.
    `gradients`: of a loss by leaves. `reset`: forgets what was compiled
    before. `around`: what all of the program runs in. `text` and `setup`:
    what is called, and lines before it, in a script. `keeps_facts`: whether results share memory,
    have strides and classes, as without the transform."""

    name: str
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    gradients: Gradients
    reset: Callable[[], None] = lambda: None
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    is_twice_differentiable: bool = True
    keeps_facts: bool = True
    text: str = "program"
    setup: str = ""


@lru_cache(maxsize=64)
def by_model(program: Program) -> list[Observation]:
    """Return what each call gives by the model. ``Refused`` if it has no meaning there."""
    world = ModelWorld()
    seen = []
    function = _defined(program, world.names)
    # Calls run in turn with the same layers, so what one leaves there is what the next one finds.
    for call, arguments in _made(program, world, world.leaves):
        torch.default_generator.manual_seed(SEED)
        with recording(not call.around):
            results = function(*arguments.values())
        found = of_model(world, arguments, results, not call.around)
        _require_small(found)
        seen.append(found)
    # Kept for the other levels, so no caller may change it.
    return seen


def of_model(
    world: ModelWorld, arguments: Mapping[str, ModelTensor], results: Any, records: bool
) -> Observation:
    """Return what a call of the model gives. `records`: derivatives are asked for."""
    seen = Observation()
    found = [x for _, x in flat(results, ModelTensor)]
    for place, x in flat(results, ModelTensor):
        seen.values[f"result {place[1:]}"] = list(map(chain_rule.value_of, x.numbers()))
    for name, x in arguments.items():
        seen.values[f"argument {name} afterwards"] = list(map(chain_rule.value_of, x.numbers()))
    add_numbers(seen, results)
    if records:
        _add_derivatives(seen, [leaf.memory.leaves for leaf in world.leaves], found)
    return seen


def _add_derivatives(
    seen: Observation, leaves: Sequence[Sequence[chain_rule.Number]], results: Sequence[ModelTensor]
) -> None:
    """Add first and second derivatives of the loss by each leaf."""
    numbers = list(itertools.chain.from_iterable(leaves))
    roots: list[tuple[chain_rule.Cell, chain_rule.Cell]] = []
    for number, x in enumerate(results):
        if x.kind != "bool":
            for index, cell in enumerate(x.numbers()):
                roots.append((cell, weight_of(number, index)))
    first = chain_rule.derivatives(roots, numbers)
    weighted = [(gradient, weight_of(0, index)) for index, gradient in enumerate(first)]
    second = chain_rule.derivatives(weighted, numbers)
    for word, gradients in (("gradient", first), ("second gradient", second)):
        rest = map(chain_rule.value_of, gradients)
        for number, own in enumerate(leaves):
            seen.values[f"{word} of leaf {number}"] = list(itertools.islice(rest, len(own)))


def _require_small(seen: Observation) -> None:
    """Refuse numbers that are too large to compare, and NaN, which is below no bound."""
    numbers = itertools.chain.from_iterable(seen.values.values())
    if not all(abs(number) < LARGEST for number in numbers):
        raise Refused("numbers that are too large to compare")


def by_torch(program: Program, level: Level) -> list[Observation | Exception]:
    """Return what each call gives by a level, up to the first error, which comes last."""
    if level.name == "eager":
        return _by_eager(program, level)
    return _by_level(program, level)


# Each level is compared with it, and so is each smaller program.
@lru_cache(maxsize=64)
def _by_eager(program: Program, level: Level) -> list[Observation | Exception]:
    return _by_level(program, level)


def _by_level(program: Program, level: Level) -> list[Observation | Exception]:
    """Run all calls of a program by a level, up to the first error."""
    seen: list[Observation | Exception] = []
    level.reset()
    with warnings.catch_warnings(), _default_dtype_kept(), level.around():
        warnings.simplefilter("ignore")
        world = World()
        function = level.compiled(_defined(program, world.names))
        try:
            for call, arguments in _made(program, world, world.leaves):
                versions = {name: version(x) for name, x in arguments.items()}
                torch.default_generator.manual_seed(SEED)
                with AROUND[call.around]():
                    results = function(*arguments.values())
                found = of_torch(arguments, versions, results)
                if not call.around:
                    add_gradients(found, world.leaves, results, level)
                seen.append(found)
        except Exception as error:  # whatever a target raises is what it gives
            seen.append(error)
    return seen


@contextmanager
def _default_dtype_kept() -> Iterator[None]:
    """Let the next program have the default dtype of this one, which may set another."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _defined(program: Program, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of a program, which sees `names` as globals."""
    found: dict[str, Any] = dict(names)
    exec(compile(program.text(), "<program>", "exec"), found)
    function: Callable[..., Any] = found["program"]
    return function


def _made(program: Program, world: Any, leaves: list[Any]) -> Iterator[tuple[Call, dict[str, Any]]]:
    """Yield each call with its arguments, made by the names of `world`."""
    own = len(leaves)
    names: dict[str, Any] = dict(world.names)
    for call in program.calls:
        if not call.repeats:
            # those of the layers stay, the inputs of former calls are nobody's any more
            del leaves[own:]
            world.set_dtype(call.dtype)
        exec(call.text(), names)
        yield call, {name: names[name] for name in program.names}
