"""Differentiate by torch's reverse engine, one vector at a time.

Nothing here uses torch.func. A tangent is the pullback of the pullback: the reverse engine
transposes the derivative twice. So tangents share no formula with forward-mode rules. forward_ad is
used only if an op cannot be differentiated twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch.autograd import forward_ad

Tensor = torch.Tensor
Flat = Callable[..., tuple[Tensor, ...]]
Push = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


class Engine:
    """Record functions and differentiate them. A derivative may run inside of another one."""

    def __init__(self) -> None:
        # how many derivatives are running; inside one, results must stay differentiable
        self._depth = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what is computed inside, for a derivative that is running."""
        self._depth += 1
        try:
            with torch.enable_grad():
                yield
        finally:
            self._depth -= 1

    def record(self, f: Flat, primals: Sequence[Tensor]) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Return inputs for the engine, and `f` of them.

        The inputs are copies. They are connected to an outer recording if there is one.
        """
        with self.recording():
            leaves = list(map(_tracked_clone, primals))
            return leaves, tuple(f(*leaves))

    def release(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return outputs without their history, unless an outer derivative needs it."""
        if self._depth:
            return tuple(outputs)
        return tuple(output.detach() for output in outputs)

    def gradients(
        self, outputs: Sequence[Tensor], xs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return gradients of outputs by `xs`, zeros where nothing depends on them."""
        # The engine refuses outputs without a history.
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(outputs, cotangents, strict=True)
            if output.requires_grad
        ]
        if not pairs:
            return tuple(map(torch.zeros_like, xs))
        tracked, seeds = zip(*pairs, strict=True)
        with torch.set_grad_enabled(self._depth > 0):
            return torch.autograd.grad(
                tracked,
                list(xs),
                seeds,
                create_graph=self._depth > 0,
                # a pullback is called once for each row of a Jacobian
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )

    def linearize(self, f: Flat, primals: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Push]:
        """Return outputs of `f` and its pushforward, which uses forward_ad if the derivative cannot
        be differentiated.
        """
        leaves, outputs = self.record(f, primals)
        # made at the first tangent, since an op that cannot be differentiated twice fails there
        transposed: Push | None = None

        def push(tangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            nonlocal transposed
            try:
                transposed = transposed or self._pushforward(outputs, leaves)
                return transposed(tangents)
            except RuntimeError:
                # tangents of forward_ad have no history for an outer derivative
                if self._depth:
                    raise
                return _forward_mode(f, primals, tangents)

        return outputs, push

    def _pushforward(self, outputs: Sequence[Tensor], xs: Sequence[Tensor]) -> Push:
        """Return the map from tangents of `xs` to tangents of `outputs`.

        It is the pullback of the pullback, which is linear in its cotangents.
        """
        with self.recording():
            tracked = [output for output in outputs if output.requires_grad]
            # Their value does not matter, as gradients are linear in them.
            probes = [torch.ones_like(output, requires_grad=True) for output in tracked]
            gradients: Sequence[Tensor] = ()
            if tracked:
                gradients = torch.autograd.grad(
                    tracked,
                    list(xs),
                    probes,
                    create_graph=True,
                    allow_unused=True,
                    materialize_grads=True,
                )

        def push(tangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            # A gradient without a history does not depend on its probe: the function is constant in
            # that input.
            pairs = []
            if tracked:
                for gradient, tangent in zip(gradients, tangents, strict=True):
                    if gradient.requires_grad:
                        pairs.append((gradient, tangent))
            if not pairs:
                return tuple(map(torch.zeros_like, outputs))
            linear, seeds = zip(*pairs, strict=True)
            pushed = torch.autograd.grad(
                linear,
                probes,
                seeds,
                create_graph=self._depth > 0,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )
            tangents_of_tracked = iter(pushed)
            return tuple(
                next(tangents_of_tracked) if output.requires_grad else torch.zeros_like(output)
                for output in outputs
            )

        return push


def _forward_mode(
    f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Return tangents by torch's forward mode."""
    with forward_ad.dual_level(), warnings.catch_warnings():
        # torch scripts its forward-mode formulas at the first use, and warns that
        # scripting is deprecated.
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        duals = [
            forward_ad.make_dual(primal.detach(), tangent)
            for primal, tangent in zip(primals, tangents, strict=True)
        ]
        return tuple(map(_tangent_or_zeros, f(*duals)))


def _tangent_or_zeros(output: Tensor) -> Tensor:
    """Return the tangent of a dual number. None from torch stands for zeros."""
    primal, tangent = forward_ad.unpack_dual(output)
    if tangent is None:
        tangent = torch.zeros_like(primal)
    return cast(Tensor, tangent)


def _tracked_clone(x: Tensor) -> Tensor:
    """Return a copy that requires grad, as a leaf if `x` does not."""
    # A clone with a history connects this recording to the outer one.
    if x.requires_grad:
        return x.clone()
    return x.detach().clone().requires_grad_()
