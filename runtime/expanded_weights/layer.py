"""Layer rules: how one function computes per-sample gradients, and the node that runs a rule in the backward pass."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from ..rules.record import overload
from ..seam.levels import Value
from ..session.leaf import as_leaf
from ..session.tensor import SESSION
from ..tape.nodes import Edge, Node
from ..tape.saved import FREED
from ..tape.values import edge_of
from .utils import check_batch_size, check_input, plain, set_grad_sample_if_exists, standard_kwargs, unpack_expanded_weight_or_tensor
from .weight import HANDLED, ExpandedWeight, implements_per_sample_grads

Gradient = Sequence[torch.Tensor | None]  # one entry per result of a call, or one per edge
Gradients = Mapping[str, Callable[[torch.Tensor], torch.Tensor]]  # by parameter name: a formula of the result's gradient


class PerSampleBackward(Node):
    """The node of a layer. It adds per-sample gradients to the original weights and returns the gradient of the input.

    ``deliver(grads)`` adds the per-sample gradients. ``input_grad(grads)`` returns one gradient per edge.
    """

    __slots__ = ("deliver", "input_grad")

    def __init__(
        self,
        edges: tuple[Edge | None, ...],
        outs: Sequence[torch.Tensor],
        deliver: Callable[[Gradient], None],
        input_grad: Callable[[Gradient], Gradient],
    ) -> None:
        super().__init__(SESSION, edges, tuple((o.shape, o.dtype) for o in outs))
        self.deliver: Callable[[Gradient], None] | None = deliver
        self.input_grad: Callable[[Gradient], Gradient] | None = input_grad

    def apply(self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool) -> Gradient:
        if create_graph:
            raise RuntimeError("Expanded Weights have no second derivatives: call backward without create_graph, or use vmap(grad(f))")
        if self.deliver is None or self.input_grad is None:
            raise RuntimeError(FREED)
        self.deliver(grads)
        return tuple(self.input_grad(grads)) if any(e is not None for e in self.edges) else (None,) * len(self.edges)

    def release(self) -> None:
        self.deliver = self.input_grad = None


class LayerFunction:
    """A rule with the method ``apply`` that :func:`implements_per_sample_grads` needs."""

    def __init__(self, rule: Callable[..., Gradients], ops: tuple[torch._ops.OpOverload, ...] = ()) -> None:
        self.rule = rule
        self.ops = ops
        self.signature = inspect.signature(rule)

    def apply(self, kwarg_names: tuple[str, ...], func: Callable[..., Any], *flat: Any) -> Any:
        args, kwargs = standard_kwargs(kwarg_names, flat)
        check_input(func, args[0])
        given = self.signature.bind(*args, **kwargs).arguments
        for value in list(given.values())[1:]:
            unpack_expanded_weight_or_tensor(value)
        actual, named = [plain(a) for a in args], {k: plain(a) for k, a in kwargs.items()}
        bound = self.signature.bind(*actual, **named)
        bound.apply_defaults()
        gradients = by_weight = self.rule(*bound.args, **bound.kwargs)
        self._check(func, gradients, [name for name, a in given.items() if isinstance(a, ExpandedWeight)])
        check_batch_size(args, kwargs)  # after the rule, which has a better error for a missing batch
        out = func(*actual, **named)
        if not torch.is_grad_enabled():
            return SESSION.wrap(out)
        weights = {name: w for name, w in given.items() if isinstance(w, ExpandedWeight)}
        batch_second = any(not w.batch_first for w in weights.values())
        if batch_second:  # formulas of weights expect the batch at dimension 0
            by_weight = self.rule(bound.args[0].transpose(0, 1), *bound.args[1:], **bound.kwargs)
        x = as_leaf(args[0]) if args[0].requires_grad else args[0]

        def deliver(grads: Gradient) -> None:
            g = _only(grads).transpose(0, 1) if batch_second else _only(grads)
            for name, weight in weights.items():
                set_grad_sample_if_exists(weight, partial(_applied, by_weight[name], g))

        edge = edge_of(x) if isinstance(x, Value) else None
        node = PerSampleBackward((edge,), (out,), deliver, lambda grads: (gradients["input"](_only(grads)),))
        return SESSION.wrap(out, (node, 0))

    def _check(self, func: Callable[..., Any], gradients: Gradients, weights: list[str]) -> None:
        """Raise ``ValueError`` unless the rule has a formula for each weight, and only for parameters."""
        known = self.signature.parameters
        for wrong in [name for name in weights if name not in gradients] or [name for name in gradients if name not in known]:
            raise ValueError(
                f"the per-sample rule of {getattr(func, '__name__', func)} gives gradients of {', '.join(gradients)}, and its parameters "
                f"are {', '.join(known)}: {wrong} is in one list only"
            )


def _only(grads: Gradient) -> torch.Tensor:
    """The gradient of the only result of a layer. Its node runs only if there is one."""
    (g,) = grads
    assert g is not None
    return g


def _applied(formula: Callable[[torch.Tensor], torch.Tensor], g: torch.Tensor, _weight: object) -> torch.Tensor:
    return formula(g)


def layer(*functions: Callable[..., Any], ops: str = "") -> Callable[[Callable[..., Gradients]], LayerFunction]:
    """Register a rule for torch functions: ``rule(input, weight, …)`` with the parameters of the function, as plain tensors.

    The rule returns ``{parameter: formula}``. A formula takes the gradient of the result. That of ``"input"`` returns the gradient of the
    input; it may be missing if the input has none. Any other returns the gradient of its parameter per sample, batch first. A function may
    also be an op of ``torch.library``. ``ops``: the ATen ops that use the weights, named as for ``register``. The coverage table shows the
    rule there.
    """

    def decorate(rule: Callable[..., Gradients]) -> LayerFunction:
        made = LayerFunction(rule, tuple(overload(name) for name in ops.split()))
        if next(iter(made.signature.parameters), None) != "input":
            raise ValueError(f"the first parameter of a per-sample rule is the batch, called 'input': {rule.__name__}{made.signature}")
        called = [key for function in functions for key in _called(function)]
        for function in called:
            if function in HANDLED:
                raise ValueError(f"{getattr(function, '__name__', function)} has a per-sample rule already")
        for function in called:
            implements_per_sample_grads(function)(made)
        return made

    return decorate


def _called(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The functions that a tensor subclass may see for a call of ``function``. For an op of ``torch.library``: also its overloads."""
    if isinstance(function, CustomOpDef):
        function = function._opoverload.overloadpacket
    yield function
    if isinstance(function, torch._ops.OpOverloadPacket):
        yield from (getattr(function, name) for name in function.overloads())


def need_batch(name: str, x: torch.Tensor, rank: int) -> None:
    """Raise unless ``x`` has at least ``rank`` dimensions. An input of fewer dimensions is one sample without a batch dimension."""
    if x.dim() < rank:
        raise RuntimeError(
            f"Expanded Weights need a batch dimension: {name} expects an input of at least {rank} dimensions, got one of {x.dim()}"
        )
