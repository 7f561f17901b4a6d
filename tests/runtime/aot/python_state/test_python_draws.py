"""A program that draws random numbers in Python is told of, and leaves the states that it
leaves in eager mode."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import runtime
from runtime.aot import aot_function, nop

OWN, LEGACY, NEW = random.Random(), np.random.RandomState(), np.random.default_rng(3)
DRAWS: dict[str, Callable[[], float]] = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "a Random of random": lambda: OWN.random(),
    "a RandomState of numpy": lambda: LEGACY.rand(),
    "a Generator of numpy": lambda: NEW.random(),
}


def seed() -> None:
    for source in (random, np.random, OWN, LEGACY):
        source.seed(3)
    NEW.bit_generator.state = np.random.default_rng(3).bit_generator.state


@pytest.mark.parametrize("way", [runtime.jit, lambda f: aot_function(f, nop)])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_in_python_warns_and_is_made_once(name: str, way: Any) -> None:
    draw, seen = DRAWS[name], []

    def program(x: Any) -> Any:
        return x * draw()

    for f in (program, way(program)):
        seed()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            seen.append((f(torch.ones(1)), draw()))
    assert seen[0] == seen[1]
    assert [str(w.message).split(" when")[0] for w in told] == [f"the program draws from {name}"]


def test_a_program_that_cannot_be_captured_draws_nothing() -> None:
    seed()
    expected = random.random()
    seed()
    with pytest.raises(RuntimeError, match="asks for the elements"):
        aot_function(lambda x: x * random.random() if x.sum() * random.random() > 0 else x, nop)(
            torch.ones(1)
        )
    assert random.random() == expected


def test_a_program_that_draws_by_torch_is_not_told_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.jit(lambda x: x * torch.rand(1) + OWN.__class__.__name__.count("R"))(torch.ones(1))
