"""Plant one fault in a target: forward every call to the honest target, and corrupt the results of
one transform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import fx

from gen.audit.kinds import KINDS, differs
from gen.targets.protocol import Answering, Flat, Joint, Placing, Pullback, Target, Values

__all__ = ["ANSWERS", "WHERE", "Planted"]

Tensor = torch.Tensor
_Result = TypeVar("_Result")

# The places for a fault, and the pipeline stage that runs each.
WHERE = {
    "gradient": "vjp",
    "tangent": "jvp",
    "batch": "vmap",
    "trace": "trace",
    "joint": "aot.joint",
    "per_sample": "per_sample",
}
# What axis `of` asks of per-sample gradients: each answer is a place of its own.
ANSWERS = ("norms", "clipped_sum", "dot", "gram", "project")
WHERE |= dict.fromkeys(ANSWERS, "per_sample")


class Planted:
    """Forward every call to `inner`, and corrupt what one transform returns, see
    :class:`gen.targets.protocol.Target`.

    Afterwards `differed` says whether the fault ever changed a value. Values inside a nest of
    transforms cannot be inspected. So the outermost call runs once honestly and once with the
    fault, from the same random state, and the plain results are compared. After a first difference
    the honest run is left out.
    """

    def __init__(self, inner: Target, where: str, kind: str) -> None:
        self.inner, self.where, self.kind = inner, where, kind
        self.name = inner.name
        # a jitted cell has the stages of its plain form
        self.lacks = inner.lacks | {
            *("jit", "state", "checkpoint", "functional", "session", "part", "training"),
        }
        self.differed = False
        # an error of the corruption itself, which is no fault of the target
        self.broken: Exception | None = None
        self._depth = 0
        self._honest = False

    def _corrupt(self, where: str, tensors: Values) -> Values:
        """Return the results of a transform, with the fault if it is planted there."""
        if where != self.where or self._honest:
            return tensors
        try:
            return KINDS[self.kind](tuple(tensors))
        except Exception as error:
            self.broken = error
            raise

    @contextmanager
    def _inside(self, *, honest: bool) -> Iterator[None]:
        """Run a call of the target inside, with or without the fault."""
        before = self._honest
        self._honest = honest or before
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            self._honest = before

    def _outermost(
        self, run: Callable[[], _Result], shown: Callable[[_Result], object] = lambda result: result
    ) -> _Result:
        """Call `run`. If it is the outermost call, note whether the fault changes its result.

        `shown` selects the plain tensors of a result.
        """
        if self._depth:
            return run()
        # After a first difference nothing more is to be learned by a second run.
        truth: Any = None
        watched = not self.differed
        state = torch.get_rng_state()
        if watched:
            with self._inside(honest=True):
                truth = shown(run())
            torch.set_rng_state(state)
        with self._inside(honest=False):
            result = run()
        if watched and differs(truth, shown(result)):
            # Two honest runs may differ, as in uninitialized memory. Such a difference is
            # not the fault's.
            torch.set_rng_state(state)
            with self._inside(honest=True):
                self.differed = not differs(truth, shown(run()))
        return result

    def _function(self, where: str, g: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function whose results have the fault. It is noted whether that changes them."""
        return lambda *args: self._outermost(lambda: self._corrupt(where, g(*args)))

    def forward(self, f: Flat) -> Flat:
        return self._function("", self.inner.forward(f))

    def vjp(self, f: Flat, *primals: object) -> tuple[Values, Pullback]:
        return self._reverse(self.inner.vjp, f, *primals)

    def backward(self, f: Flat, *primals: object) -> tuple[Values, Pullback]:
        return self._reverse(self.inner.backward, f, *primals)

    def _reverse(
        self, run: Callable[..., tuple[Values, Pullback]], f: Flat, *primals: object
    ) -> tuple[Values, Pullback]:
        """Return the outputs and a pullback whose gradients have the fault."""
        outputs, pullback = self._outermost(
            lambda: run(f, *primals), shown=lambda result: result[0]
        )

        def corrupted(cotangents: Values) -> Values:
            # the pullback runs once, since a second run may be refused
            with self._inside(honest=False):
                truth = pullback(cotangents)
                gradients = self._corrupt("gradient", truth)
            if not self._depth and not self.differed:
                self.differed = differs(truth, gradients)
            return gradients

        return outputs, corrupted

    def jvp(self, f: Flat, primals: Values, tangents: Values) -> tuple[Values, Values]:
        def run() -> tuple[Values, Values]:
            outputs, pushed = self.inner.jvp(f, primals, tangents)
            return outputs, self._corrupt("tangent", pushed)

        return self._outermost(run)

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        return self._function("batch", cast(Placing, self.inner).vmap(f, in_dims, out_dims))

    def grad(self, f: Callable[..., Tensor]) -> Flat:
        return self._function("", self.inner.grad(f))

    def jacrev(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        return self._function("", self.inner.jacrev(f, argnums))

    def jacfwd(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        return self._function("", self.inner.jacfwd(f, argnums))

    def hessian(self, f: Flat, argnums: tuple[int, ...]) -> Callable[..., Any]:
        return self._function("", self.inner.hessian(f, argnums))

    def functionalize(self, f: Flat) -> Flat:
        return self._function("", self.inner.functionalize(f))

    def trace(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        honest, captured = self._capture(lambda: self.inner.trace(f, args, dynamic=dynamic))
        return _Traced(self._replay("trace", honest, captured), getattr(captured, "graph", None))

    def joint(self, f: Flat, args: Sequence[Tensor], *, partition: str, dynamic: bool) -> Joint:
        """Return a joint program whose gradients have the fault."""
        honest, captured = self._capture(
            lambda: self.inner.joint(f, args, partition=partition, dynamic=dynamic)
        )

        def run(values: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Values, Values]:
            program = honest if self._honest else captured
            outputs, gradients = program(values, cotangents)
            return outputs, self._corrupt("joint", gradients)

        return lambda values, cotangents: self._outermost(lambda: run(values, cotangents))

    def compiled(self, f: Flat, *, partition: str, dynamic: bool) -> Flat:
        return self.inner.compiled(f, partition=partition, dynamic=dynamic)

    def export(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        honest, captured = self._capture(lambda: self.inner.export(f, args, dynamic=dynamic))
        return self._replay("", honest, captured)

    def saved(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        honest, captured = self._capture(lambda: self.inner.saved(f, args, dynamic=dynamic))
        return self._replay("", honest, captured)

    def per_sample(
        self,
        f: Flat,
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        loss_reduction: str,
        input_grad: bool,
    ) -> tuple[Tensor, ...]:
        """Return per-sample gradients, with the fault if it is planted there."""
        honest = partial(
            self.inner.per_sample,
            f,
            batch,
            params,
            loss_reduction=loss_reduction,
            input_grad=input_grad,
        )
        return self._outermost(lambda: self._corrupt("per_sample", honest()))

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
        """Return the answer, with the fault if it is planted in this answer."""
        honest = partial(
            cast(Answering, self.inner).per_sample_answer,
            f,
            batch,
            params,
            of=of,
            given=given,
            each=each,
        )
        return self._outermost(lambda: self._corrupt(of, honest()))

    def _capture(self, capture: Callable[[], _Result]) -> tuple[_Result, _Result]:
        """Return a program captured honestly, and one captured with the fault inside.

        They are the same if the fault is outside the program.
        """
        if self.where in ("trace", "joint") or self.differed:
            with self._inside(honest=False):
                captured = capture()
            return captured, captured
        with self._inside(honest=True):
            honest = capture()
        with self._inside(honest=False):
            return honest, capture()

    def _replay(self, where: str, honest: Flat, captured: Flat) -> Flat:
        return self._function(where, lambda *args: (honest if self._honest else captured)(*args))


class _Traced:
    """A replay with the attribute ``graph`` of the protocol."""

    def __init__(self, call: Flat, graph: fx.Graph | None) -> None:
        self._call, self.graph = call, graph

    def __call__(self, *args: Tensor) -> Values:
        return self._call(*args)
