"""The programs of the suite `jit` written in jax, with the same constants: what `jax.jit` makes of
the nine transforms.

It is imported only where jax is installed (`pip install jax`, or the extra `jax` of this package).
Numbers are float32, as in jax by default. It computes on one thread, and a call returns when its
results are there.
"""

import inspect
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "")
    + " --xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import jax
import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
# a call computes on the thread that it is made on
jax.config.update("jax_cpu_enable_async_dispatch", False)

Function = Callable[[Any], Any]


def _sines(f: Callable[..., Any]) -> Function:
    length = inspect.getclosurevars(f).nonlocals["length"]

    def g(x: Any) -> Any:
        for _ in range(length):
            x = jnp.sin(x)
        return x

    return g


def _mlp(f: Callable[..., Any]) -> Function:
    layers = [
        (_array(weight), _array(bias))
        for weight, bias in inspect.getclosurevars(f).nonlocals["layers"]
    ]

    def g(x: Any) -> Any:
        for i, (weight, bias) in enumerate(layers):
            x = weight @ x + bias
            x = jnp.tanh(x) if i < len(layers) - 1 else x
        return x

    return g


def _solve(f: Callable[..., Any]) -> Function:
    matrix = _array(inspect.getclosurevars(f).nonlocals["matrix"])
    return lambda x: jnp.linalg.solve(matrix + 0.1 * x[:, None], x)


PROGRAMS: dict[str, Callable[[Callable[..., Any]], Function]] = {
    "sines": _sines,
    "MLP": _mlp,
    "solve": _solve,
}
"""By name, what makes the program of jax from ours, whose constants it takes."""


def _total(g: Function) -> Function:
    return lambda x: g(x).sum()


TRANSFORMS: dict[str, Callable[[Function], Callable[..., Any]]] = {
    "vmap": jax.vmap,
    "grad": lambda g: jax.grad(_total(g)),
    "vmap of grad": lambda g: jax.vmap(jax.grad(_total(g))),
    "vjp": lambda g: lambda x, t: jax.vjp(g, x)[1](t),
    "jvp": lambda g: lambda x, t: jax.jvp(g, (x,), (t,)),
    "jacrev": jax.jacrev,
    "jacfwd": jax.jacfwd,
    "hessian": lambda g: jax.hessian(_total(g)),
    "vmap of grad of grad": lambda g: jax.vmap(jax.grad(_total(jax.grad(_total(g))))),
}


def jitted(
    program: str, transform: str, f: Callable[..., Any], args: tuple[Tensor, ...]
) -> Callable[[], Any]:
    """A call of the jitted transform of a program: the one that ``f`` is in torch, of
    the same arguments."""
    compiled = jax.jit(TRANSFORMS[transform](PROGRAMS[program](f)))
    arrays = tuple(map(_array, args))
    return lambda: jax.block_until_ready(compiled(*arrays))


def as_tensors(results: Any) -> Any:
    """Results of jax as tensors."""
    return pytree.tree_map(lambda array: torch.from_numpy(np.array(array)), results)


def _array(t: Tensor) -> Any:
    return jnp.asarray(t.numpy())
