"""What a call gives and leaves by the model: elements and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gen.grammar.model_world import ModelWorld
from gen.grammar.observation import Observation, flat, weight_of
from gen.reference.model import numbers as n
from gen.reference.model.tensors import Tensor


def of_model(
    world: ModelWorld, arguments: Mapping[str, Tensor], results: Any, records: bool
) -> Observation:
    """Return what a call of the model gives. `records`: derivatives are asked for."""
    seen = Observation()
    found = list(flat(results, Tensor))
    for place, x in found:
        seen.values[f"result {place[1:]}"] = list(map(n.value_of, x.numbers()))
    for name, x in arguments.items():
        seen.values[f"argument {name} afterwards"] = list(map(n.value_of, x.numbers()))
    if not records:
        return seen
    roots = [
        (cell, weight_of(r, i))
        for r, (_, x) in enumerate(found)
        if x.kind != "bool"
        for i, cell in enumerate(x.numbers())
    ]
    leaves = [leaf.memory.leaves for leaf in world.leaves]
    flat_leaves = [number for numbers in leaves for number in numbers]
    first = n.derivatives(roots, flat_leaves)
    second = n.derivatives([(g, weight_of(0, i)) for i, g in enumerate(first)], flat_leaves)
    for word, gradients in (("gradient", first), ("second gradient", second)):
        rest = iter(gradients)
        for k, numbers in enumerate(leaves):
            seen.values[f"{word} of leaf {k}"] = [n.value_of(next(rest)) for _ in numbers]
    return seen
