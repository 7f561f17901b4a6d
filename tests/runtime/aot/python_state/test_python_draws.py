"""A program that draws random numbers in Python is refused, and leaves the states of the generators
as they were."""

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
    f"{__name__}.OWN": lambda: OWN.random(),
    f"{__name__}.LEGACY": lambda: LEGACY.rand(),
    f"{__name__}.NEW": lambda: NEW.random(),
}


def seed() -> None:
    for source in (random, np.random, OWN, LEGACY):
        source.seed(3)
    NEW.bit_generator.state = np.random.default_rng(3).bit_generator.state


@pytest.mark.parametrize("way", [runtime.jit, lambda f: aot_function(f, nop)])
@pytest.mark.parametrize("name", DRAWS)
def test_a_draw_in_python_is_refused_with_its_line_and_undone(name: str, way: Any) -> None:
    draw = DRAWS[name]
    seed()
    expected = draw()
    seed()
    with pytest.raises(RuntimeError, match=rf"draws from {name}, a .*test_python_draws\.py:"):
        way(lambda x: x * draw())(torch.ones(1))
    assert draw() == expected


def test_a_program_that_cannot_be_captured_draws_nothing() -> None:
    seed()
    expected = random.random()
    seed()
    with pytest.raises(RuntimeError, match="asks for the elements"):
        aot_function(lambda x: x * random.random() if x.sum() * random.random() > 0 else x, nop)(
            torch.ones(1)
        )
    assert random.random() == expected


def test_a_program_that_draws_by_torch_is_not_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runtime.jit(lambda x: x * torch.rand(1) + OWN.__class__.__name__.count("R"))(torch.ones(1))
