"""Compute the gradients of a loss for each sample of a batch: ``per_sample_grads``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from ..autograd.function_node import is_differentiable
from ..func import trees
from ..func.batch import BatchLevel
from ..func.grad import outside_inference
from ..func.vmap import MappedFunction
from ..rules.samples.factors import Tensor
from ..seam.levels import Value
from ..stack_room import with_room
from ..tape.engine import execute
from ..tape.grad_level import GradLevel
from ..tape.nodes import Input
from ..tape.values import edge_of
from ..torch_private.pytrees import pytree
from .grads import LIMIT, Parameter, PerSampleGrads
from .sample_level import Samples
from .terms import Sources, by_source, terms_of


def per_sample_grads(
    loss: Callable[..., Any],
    in_dims: trees.Tree = 0,
    randomness: str = "different",
    *,
    has_aux: bool = False,
    memory_limit: int = LIMIT,
) -> Callable[..., PerSampleGrads]:
    """Return a function of parameters and a batch: the gradients of the loss of each sample by the
    parameters, in factors.

    >>> loss = lambda w, x, y: (x @ w - y) ** 2
    >>> grads = per_sample_grads(loss)(torch.ones(2), torch.eye(2), torch.zeros(2))
    >>> grads.norms()
    tensor([2., 2.])
    >>> grads.clipped_sum(1.0)
    tensor([1., 1.])

    ``loss(params, *sample)`` returns a real tensor of shape (), as under ``vmap``: it sees one
    sample, so samples cannot mix. ``params``: a pytree of real or complex tensors. ``in_dims``:
    where the batch lies in each further argument, as for ``vmap``. ``randomness``: as for ``vmap``.
    ``has_aux``: ``loss`` returns (loss, aux). ``memory_limit``: how many bytes of dense gradients
    are computed at a time.

    The gradients are those of ``vmap(grad(loss))``, which has all B × P of them in memory. The
    factors are those of the ops that use a parameter (Goodfellow 2015, «Efficient per-example
    gradient computations»; Lee and Kifer 2021 for norms). ``RuntimeError`` for a loss that does not
    depend on the sample, for a parameter that is written to, and for a tensor that is written to
    before it was used."""

    @outside_inference
    @wraps(loss)
    @with_room
    def compute(params: Any, *batch: object) -> PerSampleGrads:
        if not batch:
            raise ValueError("per_sample_grads: expected a batch beside the parameters")
        run = _Run(loss, in_dims, randomness, has_aux)
        return run.grads(params, batch, memory_limit)

    return compute


class _End(Input):
    """Where the tape begins at a parameter. All uses are taps, so no cotangent of a batch comes
    here. ``reached``: whether one did."""

    __slots__ = ("reached",)

    def __init__(self, level: GradLevel, inner: Tensor) -> None:
        super().__init__(level, inner)
        self.reached = False

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note that a cotangent of a whole batch has come to the parameter."""
        self.reached = True
        return ()


class _Mapped(MappedFunction):
    """The loss for all samples, at a level that notes where it uses parameters."""

    __slots__ = ("samples", "tape")

    def __init__(
        self,
        func: Callable[..., Any],
        in_dims: trees.Tree,
        out_dims: trees.Tree,
        randomness: str,
        tape: GradLevel,
    ) -> None:
        super().__init__(func, in_dims, out_dims, randomness)
        self.tape = tape
        self.samples: Samples | None = None

    def level(self, size: int) -> BatchLevel:
        """Return the level of the run, which notes the uses of parameters."""
        if not size:
            raise ValueError("per_sample_grads: the batch has no samples")
        self.samples = Samples(size, self.randomness, self.tape)
        return self.samples


def _refuse_call(*sample: object) -> object:
    """Raise: the run is over. This function replaces its loss."""
    raise RuntimeError("per_sample_grads: the run is over")


class _Run:
    """One run of a loss, forward and backward."""

    def __init__(
        self, loss: Callable[..., Any], in_dims: trees.Tree, randomness: str, has_aux: bool
    ) -> None:
        if randomness not in ("error", "different", "same"):
            raise RuntimeError(
                "Only allowed values for randomness are 'error', 'different', "
                f"or 'same'. Got {randomness}"
            )
        self.loss, self.has_aux = loss, has_aux
        # outside of the batch level, so its values are parameters without a batch
        self.tape = GradLevel()
        self.batched = _Mapped(self._one, in_dims, 0, randomness, self.tape)
        self.params: Any = None

    def grads(self, params: Any, batch: tuple[Any, ...], memory_limit: int) -> PerSampleGrads:
        """Run the loss forward and backward, and return the gradients."""
        paths, spec = pytree.tree_flatten_with_path(params)
        leaves = [leaf for _, leaf in paths]
        names = [pytree.keystr(path) or "parameter" for path, _ in paths]
        for name, leaf in zip(names, leaves, strict=True):
            if not is_differentiable(leaf):
                raise RuntimeError(
                    f"per_sample_grads: {name} must be a real or complex tensor, got {_kind(leaf)}"
                )
        try:
            # parameters as inputs of the tape, at whose ends no cotangent of a batch may arrive
            inputs = [self.tape.wrap(leaf, (_End(self.tape, leaf), 0)) for leaf in leaves]
            self.params = pytree.tree_unflatten(inputs, spec)
            with torch.enable_grad():
                losses, aux = self.tape.run_inside(self._run_loss, batch, {})
            # the backward pass: the taps note the gradients of each use
            uses = self._uses(losses, inputs, names)
            terms = []
            for value, leaf in zip(inputs, leaves, strict=True):
                end = edge_of(value)
                if end is not None:
                    terms.append(terms_of(self.tape, end, leaf, uses))
            own = self.tape.lowered(losses)
            extra = trees.map_tensors(self.tape.lowered, aux)
        finally:
            self.tape.close()
            # no cycle of references, which would keep all tensors of the run
            self.batched.func = _refuse_call
        parameters = [Parameter(*each) for each in zip(names, leaves, terms, strict=True)]
        return PerSampleGrads(parameters, trees.flatten(params)[1], own, extra, memory_limit)

    def _one(self, *sample: object) -> Any:
        """Return the loss of one sample, and aux."""
        out = self.loss(self.params, *sample)
        value, aux = out, ()
        if self.has_aux:
            value, aux = out
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            raise RuntimeError(
                "per_sample_grads: the loss of a sample must be a real tensor of shape "
                f"(), got {_kind(value)}"
            )
        if not (isinstance(value, Value) and value._level is self.batched.samples):
            raise RuntimeError(
                "per_sample_grads: the loss does not depend on the sample, "
                "so all samples have one gradient. Use grad."
            )
        return value, aux

    def _run_loss(self, *batch: object) -> Any:
        """Return the losses of the batch, and aux."""
        batched = self.batched
        leaves, dims, spec, size = batched.inputs(batch)
        return batched.run(leaves, dims, spec, size, {})

    def _uses(
        self, losses: torch.Tensor, inputs: Sequence[torch.Tensor], names: Sequence[str]
    ) -> Sources:
        """Return the gradients of each use of a parameter, by where the tensor that is used comes
        from."""
        samples = self.batched.samples
        assert samples is not None  # the run of the loss has set it
        # the losses are independent, so ones give each sample the gradient of its own loss
        edge = samples.source(losses)
        if edge is not None:
            roots = [(edge, torch.ones_like(self.tape.lowered(losses)))]
            execute(self.tape, roots, None, create_graph=False, keep_graph=False, accumulate=False)
        for name, value in zip(names, inputs, strict=True):
            end: Any = edge_of(value)
            if end[0].reached:
                raise RuntimeError(
                    f"per_sample_grads: the loss uses {name} by "
                    "an op that computes with the whole batch below vmap, "
                    "so the gradients of the samples cannot be told apart. Use vmap(grad(loss))."
                )
        return by_source(samples.uses.settled())


def _kind(argument: object) -> str:
    """Describe an argument for an error: dtype and shape of a tensor, else its class."""
    if isinstance(argument, torch.Tensor):
        return f"a tensor of dtype {argument.dtype} and shape {list(argument.shape)}"
    return type(argument).__name__
