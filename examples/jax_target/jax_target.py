"""jax on the CPU as a target: its own arrays, its own ops, and its transforms.

A check calls `pipeline` or `forward` with torch's tensors. They convert these to arrays of jax,
and the results back. In between a function gets and returns arrays, so that the transforms of jax
nest as they are. `op` gives the implementation of an op by its name in the matrix; cells of other
ops are lacking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy
import torch
from jax_ops import OPS

__all__ = ["JaxTarget"]

jax.config.update("jax_enable_x64", True)

Flat = Callable[..., tuple[Any, ...]]


class JaxTarget:
    """See :class:`gen.targets.protocol.Target`."""

    name = "jax"
    lacks = frozenset(
        {
            "backward",
            "checkpoint",
            "compiled",
            "cuts",
            "dual",
            "export",
            "fake",
            "functional",
            "functionalize",
            "grad",
            "joint",
            "overload",
            "part",
            "per_sample",
            "per_sample_answer",
            "refusal",
            "saved",
            "session",
            "state",
            "trace",
            "training",
        }
    )

    def op(self, name: str) -> Callable[..., Any] | None:
        """The implementation of an op of the matrix; None if there is none."""
        implementation: Callable[..., Any] | None = OPS.get(name)
        return implementation

    def flat(self, result: Any) -> tuple[Any, ...]:
        """The arrays of an op's result."""
        return tuple(map(jnp.asarray, jax.tree.leaves(result)))

    def forward(self, f: Flat) -> Flat:
        return lambda *tensors: tuple(map(_to_torch, f(*map(_to_jax, tensors))))

    def pipeline(self, f: Flat, stages: Sequence[str]) -> Flat:
        return self.forward(f)

    def vjp(
        self, f: Flat, *primals: Any
    ) -> tuple[tuple[Any, ...], Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
        """jax pulls back linearly; torch's convention for complex values is the
        conjugate of that."""
        outputs, pull = jax.vjp(f, *primals)

        def pullback(cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(map(jnp.conj, pull(tuple(map(jnp.conj, cotangents)))))

        return outputs, pullback

    def jvp(
        self, f: Flat, primals: tuple[Any, ...], tangents: tuple[Any, ...]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        outputs, pushed = jax.jvp(f, primals, tangents)
        return outputs, pushed

    def linearize(
        self, f: Flat, *primals: Any
    ) -> tuple[tuple[Any, ...], Callable[[tuple[Any, ...]], tuple[Any, ...]]]:
        outputs, push = jax.linearize(f, *primals)
        return outputs, lambda tangents: push(*tangents)

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        mapped: Flat = jax.vmap(f, in_dims, out_dims)
        return mapped

    def jacrev(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        made: Callable[..., Any] = jax.jacrev(f, argnums)
        return made

    def jacfwd(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        made: Callable[..., Any] = jax.jacfwd(f, argnums)
        return made

    def hessian(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        made: Callable[..., Any] = jax.hessian(f, argnums)
        return made

    def jit(self, f: Flat) -> Flat:
        made: Flat = jax.jit(f)
        return made


def _to_jax(x: torch.Tensor) -> Any:
    """NumPy has no bfloat16, so it goes through float32."""
    plain = x.detach().resolve_conj().resolve_neg()
    if plain.dtype is torch.bfloat16:
        return jnp.asarray(plain.float().numpy()).astype(jnp.bfloat16)
    return jnp.asarray(plain.numpy())


def _to_torch(x: Any) -> torch.Tensor:
    if x.dtype == jnp.bfloat16:
        return torch.from_numpy(numpy.array(x.astype(jnp.float32))).bfloat16()
    return torch.from_numpy(numpy.array(x))
