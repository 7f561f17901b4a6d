"""Declare the methods that an implementation needs so that a matrix can test it.

A target is any object with the methods of :class:`Target`. It need not inherit from it.

- At the boundary, where a check calls a transform, inputs and results are plain tensors of
  class ``torch.Tensor``.
- A function that a transform gets takes and returns the values of the enclosing transform of
  the same target. That is how transforms nest.
- Functions return tuples of tensors. The only exception is the function that
  :meth:`Target.grad` gets, which returns a real zero-dimensional tensor.

A target may have an attribute ``loops``, a ``Counter`` of op names. It counts the runs of each op
that `vmap` ran one element at a time. Each cell records by how much it grew.

Two more attributes are optional. ``pipeline(f, stages)`` gets a whole pipeline before it is called,
and returns what is called in its place, such as a compiled form. ``slow = True`` asks for as few
samples as a jitted case has.

A target with values of its own, such as jax's arrays, converts inputs and results in ``forward``
and ``pipeline``. It has two methods more: ``op(name)`` gives its implementation of an op of the
matrix, or None, and ``flat(result)`` gives the values in an op's result as a tuple.

A third party registers a target under the entry point group ``matrix.targets``, as a class or as a
function that returns an instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

__all__ = [
    "Answering",
    "Compiling",
    "Dispatching",
    "Eager",
    "Flat",
    "Jitting",
    "Joint",
    "Linearizing",
    "Placing",
    "Pullback",
    "Target",
    "Training",
    "Values",
]

Tensor = torch.Tensor
Values = tuple[Any, ...]
"""What functions of a pipeline take and return: tensors, or what the target's enclosing transform
passes in their place."""
Flat = Callable[..., Values]
Pullback = Callable[[Values], Values]
"""Cotangents, one per output, to gradients, one per primal."""
Joint = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Values, Values]]
"""Arguments and cotangents to outputs and gradients."""


class Target(Protocol):
    """The protocol. ``lacks`` names the stages that the target does not offer. Cells that need one
    are reported as lacking."""

    name: str
    lacks: frozenset[str]

    def forward(self, f: Flat) -> Flat:
        """Return ``g(*args)``: `f` on the target's own values."""
        ...

    def vjp(self, f: Flat, *primals: Any) -> tuple[Values, Pullback]:
        """Return the outputs of ``f(*primals)`` and the pullback.

        The pullback maps cotangents, one per output, to gradients, one per primal. Complex
        gradients follow torch's convention: the conjugate of the holomorphic derivative times the
        cotangent.
        """
        ...

    def backward(self, f: Flat, *primals: Any) -> tuple[Values, Pullback]:
        """Return what :meth:`vjp` returns, but by the engine of the eager session instead of a
        transform.

        `f` runs on leaves that require grad. Inside the function of an outer `backward`, the
        primals are tensors of the outer one, and the pullback is recorded (``create_graph``).
        """
        ...

    def jvp(self, f: Flat, primals: Values, tangents: Values) -> tuple[Values, Values]:
        """Return the outputs of ``f(*primals)`` and their tangents."""
        ...

    def vmap(self, f: Flat, in_dims: tuple[int | None, ...]) -> Flat:
        """Return `f` mapped over the dimensions `in_dims`; negative ones count from the end.

        Outputs are batched at 0. Random draws differ.
        """
        ...

    def grad(self, f: Callable[..., Tensor]) -> Flat:
        """Return ``g(*args)``: gradients of the real scalar ``f(*args)``, one per argument."""
        ...

    def jacrev(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., tuple[Values, ...]]:
        """Return ``g(*args)[output][argument]``: blocks of shape ``output.shape + argument.shape``,
        row by row through vjp.
        """
        ...

    def jacfwd(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., tuple[Values, ...]]:
        """Return ``g(*args)[output][argument]``: blocks of shape ``output.shape + argument.shape``,
        column by column through jvp.
        """
        ...

    def hessian(
        self, f: Flat, argnums: tuple[int, ...]
    ) -> Callable[..., tuple[tuple[Values, ...], ...]]:
        """Return ``g(*args)[output][argument][argument]``: jacfwd of jacrev."""
        ...

    def functionalize(self, f: Flat) -> Flat:
        """Return ``g(*args)``: `f` with its mutations and views replaced by functional ops."""
        ...

    def trace(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        """Return a callable that replays the graph captured on `args`. Its attribute ``graph`` is a
        ``torch.fx.Graph``; a reference needs none."""
        ...

    def joint(self, f: Flat, args: Sequence[Tensor], *, partition: str, dynamic: bool) -> Joint:
        """Return ``g(args, cotangents) -> (outputs, grads)`` from a joint graph cut by `partition`
        (``default``, ``min_cut`` or ``budget``).

        The `args` that require grad are differentiated. `f` returns only differentiable outputs,
        with one cotangent each.
        """
        ...

    def compiled(self, f: Flat, *, partition: str, dynamic: bool) -> Flat:
        """Return ``g(*args)``: `f` compiled at its first call.

        `f` may write to its arguments, and `g` then writes to the caller's. Inside the function of
        :meth:`backward`, the arguments are tensors of the eager session, and so are the results of
        `g`.
        """
        ...

    def export(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        """Return ``g(*args)``: the exported program."""
        ...

    def saved(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        """Return ``g(*args)``: the exported program, after it was saved and loaded."""
        ...

    def per_sample(
        self,
        f: Flat,
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        loss_reduction: str,
        input_grad: bool,
    ) -> tuple[Tensor, ...]:
        """Return the per-sample gradients of ``params``, each of shape ``(len(batch),
        *param.shape)``.

        The loss of a sample is the sum of |output|² over its slice of every output of ``f(batch,
        *params)``. The loss of the batch is their sum or mean, by `loss_reduction`. The gradients
        are those of the samples' own losses either way. With `input_grad` `batch` then requires
        grad, and the gradient of its samples, of its shape, comes last.
        """
        ...


class Jitting(Target, Protocol):
    """A target that offers `jit` too, which ``run: jitted`` asks for, and programs with a state in
    Python. Any other target lists ``jit`` or ``state`` in ``lacks``, or both."""

    def jit(self, f: Flat) -> Flat:
        """Return ``g(*args)``: `f`, captured at its first call and replayed by the next ones.

        `f` may contain every other stage.
        """
        ...


class Training(Jitting, Protocol):
    """A target that trains by unmodified torch code. Any other target lists
    ``training`` in ``lacks``."""

    def training(
        self,
        train: Callable[[Sequence[Any]], Values],
        parameters: Sequence[Tensor],
        *,
        session: bool,
    ) -> Values:
        """Return the results of ``train(leaves)``, as plain tensors.

        `leaves` are copies of `parameters` that require grad. With `session` they are tensors of
        the target's eager session: ``backward()`` and optimizers of ``train`` work on them.
        Otherwise they are torch's parameters, and ``train`` calls only steps that :meth:`jit` has
        jitted.
        """
        ...

    def jit(self, f: Callable[..., object], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Return what :meth:`Jitting.jit` returns.

        `f` may change parameters, their gradients and optimizers that it closes over, and each call
        does that. The arguments at `donate` are lists of tensors whose memory a call takes. They
        have no elements afterwards.
        """
        ...


class Answering(Target, Protocol):
    """A target that answers questions about per-sample gradients too, which axis ``of`` asks. Any
    other target lists ``per_sample_answer`` in ``lacks``."""

    def per_sample_answer(
        self,
        f: Flat,
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        of: str,
        given: object,
        each: bool,
    ) -> tuple[Tensor, ...]:
        """Return what `of` asks of the gradients of ``params`` for B samples, whose losses are
        those of :meth:`Target.per_sample`.

        - ``norms``: (B,), of all parameters together.
        - ``clipped_sum``: the sum of the gradients, one tensor per parameter, each sample's with a
          norm of at most ``given``.
        - ``dot``: (B,), the products with ``given``, one tensor per parameter.
        - ``gram``: (B, n), the products with the gradients of the samples of ``given``,
          another batch of n.
        - ``project``: (B, n), the gradients times a random matrix of ``given`` = n columns, each
          entry ± 1 / √n. It is the same for all calls with these parameters.

        `each`: the target calls `f` for one sample, as a batch of one. Otherwise it calls `f` for
        the whole batch."""
        ...


class Placing(Target, Protocol):
    """A target whose vmap takes ``out_dims``, which axis ``batch`` gives. Any other target lists
    ``out_dims`` in ``lacks``."""

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        """Return what :meth:`Target.vmap` returns, with outputs batched at `out_dims`: one for all,
        or one for each.

        None: the output is the same for every entry of the batch, and has no such dimension.
        """
        ...


class Dispatching(Target, Protocol):
    """A target that runs single overloads of torch's dispatcher, which ``values: overloads`` asks
    for. Any other target lists ``overload`` in ``lacks``."""

    def overload(self, name: str) -> Callable[..., Any]:
        """Return the overload of this name, such as ``aten::add.Tensor``."""
        ...


class Linearizing(Target, Protocol):
    """A target with the other ways to forward-mode derivatives. Any other target lists
    ``linearize`` or ``dual`` in ``lacks``."""

    def linearize(self, f: Flat, *primals: object) -> tuple[Values, Callable[[Values], Values]]:
        """Return the outputs of ``f(*primals)`` and the pushforward.

        The pushforward maps tangents, one per primal, to tangents of the outputs, without `f`.
        """
        ...

    def dual(self, f: Flat, primals: Values, tangents: Values) -> tuple[Values, Values]:
        """Return what :meth:`Target.jvp` returns, but by dual tensors of the eager session.

        Inside the function of :meth:`Target.backward`, the primals and tangents are tensors of the
        session, and so are the results.
        """
        ...


class Compiling(Target, Protocol):
    """A target that compiles functions and modules for any caller, which the stage ``aot.parts``
    asks for. Any other target lists ``part`` in ``lacks``. It lists ``cuts`` if it keeps no
    partitions on disk."""

    def part(
        self,
        function: Callable[..., object],
        examples: Values,
        *,
        partition: str,
        dynamic: bool,
        jits: bool,
        cache: object,
    ) -> Callable[..., Any]:
        """Return `function`, a function or a module, compiled at its first call, or at once for
        arguments like `examples` if there are any.

        `jits`: by `jit`, and else with the partition. `cache`: what :meth:`cache` gave, or None.
        """
        ...

    def offered(self, name: str, otherwise: object) -> Any:
        """Return what the target has by this name of its own, such as ``func.vmap``; `otherwise`,
        which stands for it in torch, if it has none."""
        ...

    def cache(self, folder: str) -> Any:
        """Return a cache of partitions in this folder. Its ``info()`` has ``hits`` and ``misses``,
        of which the one is a number."""
        ...


class Eager(Target, Protocol):
    """A target with an eager session. Any other target lists the stages ``checkpoint``,
    ``functional`` and ``session`` in ``lacks``."""

    def checkpoint(
        self, f: Flat, args: Sequence[Tensor], cotangents: Sequence[Tensor], *, reentrant: bool
    ) -> tuple[Values, Values]:
        """Return the outputs of ``f(*args)``, and gradients of the `args` that require grad.

        The backward pass runs `f` again.
        """
        ...

    def session(
        self, f: Flat, args: Sequence[Tensor], cotangents: Sequence[Tensor], kept: Sequence[int]
    ) -> tuple[Values, Values]:
        """Return the outputs of ``f(*args)``, and gradients of the `args` that require grad, from
        one cotangent for each of the outputs `kept`.
        """
        ...

    def functional(self, name: str, f: Flat, args: Values, along: Values) -> Values:
        """Return ``torch.autograd.functional``'s ``vjp``, ``jvp``, ``jacobian``, ``hessian``,
        ``vhp`` or ``hvp`` of `f` at `args`, flattened.

        `along` is its ``v``. `f` returns one number for the last three. Results are the outputs, if
        the function gives them, and then the product, or the blocks by output and input.
        """
        ...
