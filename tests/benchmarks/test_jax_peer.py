"""The programs of the suite `jit` in jax give what they give in torch, so that times of the
two are comparable."""

from __future__ import annotations

import pytest
import torch

from benchmarks import jitted
from benchmarks.cells import difference

pytest.importorskip("jax", reason="jax is not installed; it is an optional peer of the benchmarks")

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # by torch's jvp


@pytest.mark.parametrize("transform", jitted.TRANSFORMS)
@pytest.mark.parametrize("program", ["sines", "MLP", "solve"])
def test_a_program_in_jax_is_that_in_torch(program: str, transform: str) -> None:
    from benchmarks import jax_peer

    f, x = jitted.programs()[program]
    theirs, args = jitted.TRANSFORMS[transform](torch.func, f, x)
    assert not difference(
        jax_peer.as_tensors(jax_peer.jitted(program, transform, f, args)()), theirs(*args)
    )
