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
CONTEXTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "torch.no_grad()": torch.no_grad,
    "torch.inference_mode()": torch.inference_mode,
}
"""The context managers that a call may run in, by their text in the program."""


@dataclass(frozen=True)
class Level:
    """How a target runs a program: eagerly, compiled, or under a transform."""

    name: str
    # Takes the function of the program, and returns the function that is called in its place.
    compiled: Callable[[Callable[..., Any]], Callable[..., Any]]
    # Differentiates a loss by the leaves.
    gradients: Gradients
    # Forgets earlier compilations, so that each program compiles its own.
    reset: Callable[[], None] = lambda: None
    # Surrounds all calls of a program.
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    is_twice_differentiable: bool = True
    # A transform may lose which results share memory, their strides and their classes.
    keeps_facts: bool = True
    # The script of a finding calls `text`, after the lines of `setup`.
    text: str = "program"
    setup: str = ""


@lru_cache(maxsize=64)
def by_model(program: Program) -> list[Observation]:
    """Run each call by the model, and return one observation per call.

    Raises Refused if the model gives the program no meaning.
    """
    world = ModelWorld()
    observations = []
    function = _define_function(program, world.names)
    # Calls run in turn with the same layers, so what one leaves there is what the next one finds.
    for call, arguments in _calls_with_arguments(program, world, world.leaves):
        torch.default_generator.manual_seed(SEED)
        with recording(not call.around):
            results = function(*arguments.values())
        observation = of_model(world, arguments, results, not call.around)
        _require_small(observation)
        observations.append(observation)
    # The cache shares this list between all levels, so no caller may change it.
    return observations


def of_model(
    world: ModelWorld, arguments: Mapping[str, ModelTensor], results: Any, records: bool
) -> Observation:
    """Observe a call of the model: its results, its arguments afterwards, and its numbers.

    `records`: add derivatives too.
    """
    observation = Observation()
    tensors = []
    for place, tensor in flat(results, ModelTensor):
        tensors.append(tensor)
        observation.values[f"result {place[1:]}"] = _values(tensor)
    for name, tensor in arguments.items():
        observation.values[f"argument {name} afterwards"] = _values(tensor)
    add_numbers(observation, results)
    if records:
        _add_derivatives(observation, [leaf.memory.leaves for leaf in world.leaves], tensors)
    return observation


def _values(tensor: ModelTensor) -> list[Any]:
    return list(map(chain_rule.value_of, tensor.numbers()))


def _add_derivatives(
    observation: Observation,
    leaves: Sequence[Sequence[chain_rule.Number]],
    results: Sequence[ModelTensor],
) -> None:
    """Add first and second derivatives of the loss by each leaf."""
    all_numbers = list(itertools.chain.from_iterable(leaves))
    # The loss is the weighted sum of all entries of all results.
    roots: list[tuple[chain_rule.Cell, chain_rule.Cell]] = []
    for position, result in enumerate(results):
        if result.kind != "bool":
            for index, cell in enumerate(result.numbers()):
                roots.append((cell, weight_of(position, index)))
    first = chain_rule.derivatives(roots, all_numbers)
    # A second derivative needs one number again, so the first derivatives are weighted likewise.
    weighted = [(gradient, weight_of(0, index)) for index, gradient in enumerate(first)]
    second = chain_rule.derivatives(weighted, all_numbers)
    for order, gradients in (("gradient", first), ("second gradient", second)):
        remaining = map(chain_rule.value_of, gradients)
        for position, leaf in enumerate(leaves):
            of_leaf = list(itertools.islice(remaining, len(leaf)))
            observation.values[f"{order} of leaf {position}"] = of_leaf


def _require_small(observation: Observation) -> None:
    """Refuse numbers that are too large to compare, and NaN, which is below no bound."""
    numbers = itertools.chain.from_iterable(observation.values.values())
    if not all(abs(number) < LARGEST for number in numbers):
        raise Refused("numbers that are too large to compare")


def by_torch(program: Program, level: Level) -> list[Observation | Exception]:
    """Run each call by a level, and return one observation per call.

    The first error ends the list.
    """
    if level.name == "eager":
        return _by_eager(program, level)
    return _by_level(program, level)


# Each other level is compared with eager mode, and so is each smaller program.
@lru_cache(maxsize=64)
def _by_eager(program: Program, level: Level) -> list[Observation | Exception]:
    return _by_level(program, level)


def _by_level(program: Program, level: Level) -> list[Observation | Exception]:
    """Run all calls of a program by a level, up to the first error."""
    observations: list[Observation | Exception] = []
    level.reset()
    with warnings.catch_warnings(), _restoring_default_dtype(), level.around():
        warnings.simplefilter("ignore")
        world = World()
        function = level.compiled(_define_function(program, world.names))
        try:
            for call, arguments in _calls_with_arguments(program, world, world.leaves):
                versions = {name: version(tensor) for name, tensor in arguments.items()}
                torch.default_generator.manual_seed(SEED)
                with CONTEXTS[call.around]():
                    results = function(*arguments.values())
                observation = of_torch(arguments, versions, results)
                # Without a recorded history there is nothing to differentiate.
                if not call.around:
                    add_gradients(observation, world.leaves, results, level)
                observations.append(observation)
        except Exception as error:  # the target's answer to this call, whatever its class
            observations.append(error)
    return observations


@contextmanager
def _restoring_default_dtype() -> Iterator[None]:
    """Restore the default dtype, which a program may set, for the next program."""
    before = torch.get_default_dtype()
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _define_function(program: Program, names: Mapping[str, Any]) -> Callable[..., Any]:
    """Return the function of a program, which sees `names` as globals."""
    namespace: dict[str, Any] = dict(names)
    exec(compile(program.text(), "<program>", "exec"), namespace)
    function: Callable[..., Any] = namespace["program"]
    return function


def _calls_with_arguments(
    program: Program, world: Any, leaves: list[Any]
) -> Iterator[tuple[Call, dict[str, Any]]]:
    """Yield each call with its arguments, which the functions of `world` create."""
    layer_leaf_count = len(leaves)
    names: dict[str, Any] = dict(world.names)
    for call in program.calls:
        if not call.repeats:
            # The leaves of the layers stay. Those of former inputs belong to nothing any more.
            del leaves[layer_leaf_count:]
            world.set_dtype(call.dtype)
        exec(call.text(), names)
        yield call, {name: names[name] for name in program.names}
