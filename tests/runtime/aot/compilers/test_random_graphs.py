"""The replay with all its rewrites gives the bits, layouts, versions and shared memory of the graph
run node by node.

PROGRAMS=1000 SEED=5000 pytest tests/runtime/aot/compilers/test_random_graphs.py      # more of them
"""

from __future__ import annotations

import os

import pytest
import torch

from . import random_graphs

PROGRAMS, SEED = int(os.environ.get("PROGRAMS", "60")), int(os.environ.get("SEED", "0"))
SEEDS = range(SEED, SEED + PROGRAMS)

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def _none(found: list[str]) -> None:
    wrong = [text for text in found if text]
    assert not wrong, f"{len(wrong)} of {PROGRAMS} differ\n" + "\n".join(wrong[:2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_random_programs_give_the_bits_of_their_graphs(dtype: torch.dtype) -> None:
    _none([random_graphs.difference(random_graphs.program(seed), seed, dtype) for seed in SEEDS])


def test_long_random_programs_that_write_to_nothing() -> None:
    _none(
        [
            random_graphs.difference(random_graphs.program(seed, 30, writes=False), seed)
            for seed in SEEDS
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_random_programs_give_the_bits_of_their_graphs(dtype: torch.dtype) -> None:
    _none(
        [
            random_graphs.difference_of_gradients(
                random_graphs.program(seed, writes=False), seed, dtype
            )
            for seed in SEEDS
        ]
    )


def test_a_difference_is_seen() -> None:
    """A comparison that finds nothing proves nothing."""
    zeros = torch.zeros(2)
    same = random_graphs.observed(lambda x: [x * 1], [zeros])
    assert same != random_graphs.observed(lambda x: [x * -1], [zeros])  # -0.0
    assert same != random_graphs.observed(lambda x: [x], [zeros])
    assert same != random_graphs.observed(lambda x: [x.mul_(1) * 1], [zeros])
    assert same != random_graphs.observed(lambda x: [x[:1] * 1], [zeros])
