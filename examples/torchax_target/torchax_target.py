"""torchax as a target: torch's ops on tensors that hold arrays of jax, and the transforms of jax.

A check passes plain tensors of torch and takes plain tensors back. `forward` and `pipeline` convert
at this boundary. In between, functions get and return tensors of torchax. Ops run inside of
torchax's environment, and transforms are those of jax by `torchax.interop`, as its README has it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import overloads_of_names  # noqa: F401  before torchax, which needs it
import torch
import torchax
from torchax import interop
from torchax.interop import jax_view, torch_view
from torchax.ops import mappings
from torchax.tensor import OperatorNotFound, Tensor
from torchax.view import View

from gen.targets.torch_target import gradients

__all__ = ["TorchaxTarget"]

torchax.enable_accuracy_mode()  # float64, and the dtypes that torch returns

Flat = Callable[..., tuple[Any, ...]]
Values = tuple[Any, ...]
_environment = torchax.default_env()


class TorchaxTarget:
    """See :class:`gen.targets.protocol.Target`."""

    name = "torchax"
    lacks = frozenset(
        {
            "checkpoint",
            "compiled",
            "cuts",
            "dual",
            "export",
            "fake",
            "functional",
            "functionalize",
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
            *("family registration", "family nested_tensors", "family masked_tensors"),
            *("family sparse_layouts", "family wrapper_subclasses"),
        }
    )

    def forward(self, f: Flat) -> Flat:
        """Return `f` on tensors of torchax: plain tensors in, plain tensors out."""

        def call(*tensors: torch.Tensor) -> Values:
            values = _environment.to_xla(tensors)
            # what a program makes without naming a device is made there
            with _environment, torch.device("jax"), _refusals(), warnings.catch_warnings():
                # torch says it once, and jax at each cast
                warnings.filterwarnings("ignore", message="Casting from complex to real dtypes")
                results = f(*values)
            return tuple(map(_to_torch, results))

        return call

    def pipeline(self, f: Flat, stages: Sequence[str]) -> Flat:
        """Return a whole pipeline of transforms on tensors of torchax."""
        return self.forward(f)

    def backward(self, f: Flat, *primals: Any) -> tuple[Values, Callable[[Values], Values]]:
        """Return outputs and a pullback by torch's engine, which is recorded if the primals are."""
        nested = any(x.requires_grad for x in primals)
        xs = primals if nested else tuple(x.detach().requires_grad_() for x in primals)
        outputs = f(*xs)
        return outputs, lambda cotangents: gradients(outputs, xs, cotangents, create_graph=nested)

    def vjp(self, f: Flat, *primals: Any) -> tuple[Values, Callable[[Values], Values]]:
        """Return outputs and the pullback of jax. Its complex gradients are conjugates of
        torch's."""
        outputs, pull = jax.vjp(jax_view(f), *jax_view(primals))

        def pullback(cotangents: Values) -> Values:
            return _conjugates(torch_view(pull(jax_view(_conjugates(cotangents)))))

        return torch_view(outputs), pullback

    def jvp(self, f: Flat, primals: Values, tangents: Values) -> tuple[Values, Values]:
        outputs, pushed = jax.jvp(jax_view(f), jax_view(primals), jax_view(tangents))
        return torch_view(outputs), torch_view(pushed)

    def linearize(self, f: Flat, *primals: Any) -> tuple[Values, Callable[[Values], Values]]:
        outputs, push = jax.linearize(jax_view(f), *jax_view(primals))
        return torch_view(outputs), lambda tangents: torch_view(push(*jax_view(tangents)))

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        return _with_torch(jax.vmap(jax_view(f), in_dims, out_dims))

    def grad(self, f: Callable[..., Any]) -> Flat:
        def gradients(*args: Any) -> Values:
            places = tuple(range(len(args)))
            return _conjugates(_with_torch(jax.grad(jax_view(f), places))(*args))

        return gradients

    def jacrev(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        return _with_torch(jax.jacrev(jax_view(f), argnums))

    def jacfwd(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        return _with_torch(jax.jacfwd(jax_view(f), argnums))

    def hessian(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        return _with_torch(jax.hessian(jax_view(f), argnums))

    def jit(self, f: Flat) -> Flat:
        made: Flat = interop.jax_jit(f)
        return made


def _with_torch(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of jax as one of tensors of torchax."""
    return lambda *args: torch_view(function(*jax_view(args)))


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise for an op that torchax does not have what torch raises for a kernel that it lacks."""
    try:
        yield
    except OperatorNotFound as error:
        raise NotImplementedError(str(error)) from error


def _conjugates(values: Values) -> Values:
    return tuple(x.conj() if x.dtype.is_complex else x for x in values)


def _to_torch(x: Any) -> Any:
    """Return a plain tensor with the numbers of a tensor of torchax, in memory of its own."""
    if not isinstance(x, (Tensor, View)):
        return x
    with warnings.catch_warnings():  # it is memory of jax, which nobody may write to
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return mappings.j2t(x.jax()).clone()
