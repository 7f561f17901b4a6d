"""Test the project's own runtime as a target."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from operator import attrgetter
from typing import Any, cast

import torch

import runtime
from gen.targets import runtime_rules, runtime_watch
from gen.targets.exported import reloaded
from gen.targets.faults import Rule, Watch, leaves
from gen.targets.parametric import Parametric, batch_loss, call_functional, of_samples, or_zeros
from gen.targets.torch_target import OF_ENGINE
from gen.torch_private.loaded_with_torch import pytree
from runtime import aot, checkpoint, expanded_weights, func, jit
from runtime.func.batch import fallbacks
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads

__all__ = ["RuntimeTarget"]

Tensor = torch.Tensor


_CUTS: dict[str, Any] = {
    "default": aot.default_partition,
    "min_cut": aot.min_cut_rematerialization_partition,
    "budget": partial(aot.min_cut_rematerialization_partition, memory_budget=0.5),
}


class RuntimeTarget:
    """Call the runtime's transforms, see :class:`gen.targets.protocol.Target`, and
    :class:`gen.targets.faults.Auditable` for the last methods.
    """

    name = "runtime"
    levels = ("session", "jit")
    # `fake`: torch's own rules run inside of FakeTensorMode, and the check `meta_strides` asks the
    # runtime's. OF_ENGINE: layouts and subclasses that the runtime has no rules for, and
    # optimizers, which the checks of training ask about.
    lacks = frozenset(("fake", "overload", *OF_ENGINE))
    loops = fallbacks
    in_stages = True

    def forward(self, f: Callable[..., Any]) -> Callable[..., Any]:
        """Return `f` on tensors of level zero, so that the forward pass goes through the runtime's
        dispatch too.
        """

        def g(*args: Any) -> Any:
            outputs = f(*[_with_tensor(runtime.wrap, argument) for argument in args])
            return tuple(_with_tensor(runtime.unwrap, output) for output in outputs)

        return g

    def vjp(self, f: Callable[..., object], *primals: object) -> Any:
        return func.vjp(f, *primals)

    def backward(self, f: Callable[..., Any], *primals: Any) -> Any:
        """Return outputs and a pullback by the session's engine."""
        if any(primal.requires_grad for primal in primals):
            return self._backward_inside_another(f, primals)
        leaves = tuple(_leaf(primal, True) for primal in primals)
        outputs = f(*leaves)
        return outputs, lambda cotangents: _unwrap_like(
            _gradients(outputs, leaves, cotangents), primals
        )

    def _backward_inside_another(self, function: Callable[..., Any], xs: tuple[Any, ...]) -> object:
        """Return a backward pass that another one differentiates."""
        # the inputs as they are: new leaves would be cut off from the outer pass
        outputs = function(*xs)
        return outputs, lambda cotangents: _gradients(outputs, xs, cotangents, create_graph=True)

    def jvp(
        self, f: Callable[..., object], primals: tuple[object, ...], tangents: tuple[object, ...]
    ) -> Any:
        return func.jvp(f, primals, tangents)

    def linearize(self, f: Callable[..., object], *primals: object) -> Any:
        outputs, push = func.linearize(f, *primals)
        return outputs, lambda tangents: push(*tangents)

    def dual(
        self, function: Callable[..., Any], primals: tuple[Any, ...], tangents: tuple[Any, ...]
    ) -> Any:
        """Return outputs and tangents by dual tensors of the session."""
        forward_ad = runtime.autograd.forward_ad
        with forward_ad.dual_level():
            duals = map(forward_ad.make_dual, map(_in_session, primals), map(_in_session, tangents))
            pairs = list(map(forward_ad.unpack_dual, function(*duals)))
        outputs = [pair.primal for pair in pairs]
        pushed = [or_zeros(pair.tangent, pair.primal) for pair in pairs]
        return _unwrap_like(outputs, primals), _unwrap_like(pushed, primals)

    def vmap(
        self,
        f: Callable[..., object],
        in_dims: tuple[int | None, ...],
        out_dims: int | tuple[int | None, ...] = 0,
    ) -> Callable[..., Any]:
        """Return `f` mapped over a batch, without the warnings of ops that run in a loop."""
        mapped = func.vmap(f, in_dims=in_dims, out_dims=out_dims, randomness="different")

        def g(*args: object) -> Any:
            with warnings.catch_warnings():  # a loop is slow, not wrong, and `loops` counts it
                warnings.filterwarnings(
                    "ignore",
                    message=".* has no batch rule, so vmap runs it as a loop",
                    category=UserWarning,
                )
                return mapped(*args)

        return g

    def grad(self, f: Callable[..., object]) -> Callable[..., Any]:
        def g(*args: Any) -> Any:
            every = tuple(range(len(args)))
            return func.grad(f, argnums=every)(*args)

        return g

    def jacrev(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return func.jacrev(f, argnums=argnums)

    def jacfwd(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return func.jacfwd(f, argnums=argnums)

    def hessian(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return func.hessian(f, argnums=argnums)

    def functionalize(self, f: Callable[..., object]) -> Callable[..., Any]:
        return func.functionalize(f)

    def trace(
        self, function: Callable[..., object], args: Sequence[Tensor], *, dynamic: bool
    ) -> Any:
        mode = "symbolic" if dynamic else "real"
        return aot.make_fx(function, tracing_mode=mode, _allow_non_fake_inputs=True)(*args)

    def compiled(
        self, function: Callable[..., object], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        return self.part(function, (), partition=partition, dynamic=dynamic, jits=False, cache=None)

    def part(
        self,
        function: Callable[..., object],
        examples: tuple[object, ...],
        *,
        partition: str,
        dynamic: bool,
        jits: bool,
        cache: object,
    ) -> Callable[..., Any]:
        """Compile a function or module, by jit or by the AOT functions."""
        if jits:
            return jit(function)
        options: dict[str, Any] = {
            "fw_compiler": aot.nop,
            "bw_compiler": aot.nop,
            "partition_fn": _CUTS[partition],
            "cache": cache,
        }
        if examples:
            return aot.aot_module_simplified(cast(torch.nn.Module, function), examples, **options)
        if isinstance(function, torch.nn.Module):
            return aot.aot_module(function, dynamic=dynamic, **options)
        return aot.aot_function(function, dynamic=dynamic, **options)

    def offered(self, name: str, otherwise: object) -> Any:
        return attrgetter(name)(runtime)

    def cache(self, folder: str) -> aot.Cache:
        return aot.Cache(folder)

    def checkpoint(
        self,
        f: Callable[..., Any],
        args: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        *,
        reentrant: bool,
    ) -> Any:
        """Return outputs and gradients of a checkpointed program in the session."""
        leaves = [_leaf(x, x.requires_grad) for x in args]
        outputs = checkpoint.checkpoint(f, *leaves, use_reentrant=reentrant)
        runtime.autograd.backward(outputs, tuple(map(runtime.wrap, cotangents)))
        gradients = tuple(or_zeros(x.grad, x) for x in leaves if x.requires_grad)
        return _unwrap_like(outputs, args), _unwrap_like(gradients, args)

    def session(
        self,
        function: Callable[..., Any],
        args: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        kept: Sequence[int],
    ) -> Any:
        """Return outputs, and gradients by the session's engine."""
        leaves = [_leaf(x, x.requires_grad) for x in args]
        outputs = function(*leaves)
        wanted = [x for x in leaves if x.requires_grad]
        gradients = _gradients([outputs[place] for place in kept], wanted, cotangents)
        return _unwrap_like(outputs, args), _unwrap_like(gradients, args)

    def functional(
        self,
        name: str,
        f: Callable[..., object],
        args: tuple[object, ...],
        along: tuple[object, ...],
    ) -> tuple[Any, ...]:
        """Return the flat results of a function of ``runtime.autograd.functional``."""
        result = call_functional(runtime.autograd.functional, name, f, args, along)
        return _unwrap_like(pytree.tree_leaves(result), args)

    def joint(
        self, f: Callable[..., object], args: Sequence[Tensor], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        """Return a function from values and cotangents to outputs and gradients, on tensors of the
        session.
        """
        compiled = self.compiled(f, partition=partition, dynamic=dynamic)

        def g(
            values: Sequence[Tensor], cotangents: Sequence[Tensor]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            inputs = [_leaf(value, value.requires_grad) for value in values]
            outputs = compiled(*inputs)
            wanted = [x for x in inputs if x.requires_grad]
            gradients = _gradients(outputs, wanted, cotangents)
            return _unwrap_like(outputs, values), _unwrap_like(gradients, values)

        return g

    def export(
        self, f: Callable[..., object], args: Sequence[Tensor], *, dynamic: bool
    ) -> Callable[..., Any]:
        return aot.export(f, tuple(args), dynamic=dynamic).module()

    def saved(
        self, function: Callable[..., object], args: Sequence[Tensor], *, dynamic: bool
    ) -> Callable[..., Any]:
        return reloaded(aot.export(function, tuple(args), dynamic=dynamic))

    def jit(self, f: Callable[..., object], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        return jit(f, donate=donate)

    def training(
        self, train: Callable[..., Any], parameters: Sequence[Tensor], *, session: bool
    ) -> tuple[Tensor, ...]:
        """Train copies of the parameters, in the session or as torch's own."""
        copies = [parameter.clone() for parameter in parameters]
        if session:
            trained = [_leaf(parameter, True) for parameter in copies]
        else:
            trained = list(map(torch.nn.Parameter, copies))
        return tuple(map(runtime.unwrap, train(trained)))

    def per_sample(
        self,
        f: Callable[..., object],
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        loss_reduction: str,
        input_grad: bool,
    ) -> tuple[Tensor, ...]:
        """Return per-sample gradients by the runtime's ``call_for_per_sample_grads``."""
        module = Parametric(f, params)
        call = expanded_weights.call_for_per_sample_grads(
            module, batch_size=len(batch), loss_reduction=loss_reduction
        )
        x = runtime.wrap(batch.detach(), input_grad)
        batch_loss(call(x), len(batch), loss_reduction).backward()
        gradients = tuple(runtime.unwrap(weight.grad_sample) for weight in module.weights)
        if input_grad:
            gradients += (of_samples(runtime.unwrap(x.grad), loss_reduction),)
        return gradients

    def per_sample_answer(
        self,
        function: Callable[..., Any],
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        of: str,
        given: Any,
        each: bool,
    ) -> tuple[Tensor, ...]:
        """Answer from per-sample gradients: of a function for each sample, or of a context for a
        batch.
        """

        def of_function(batch: Tensor) -> PerSampleGrads:
            def loss(params: Sequence[Tensor], x: Tensor) -> Tensor:
                return batch_loss(function(x[None], *params), 1, "sum")  # type: ignore[no-any-return]

            return per_sample_grads(loss)(list(params), batch)

        def of_context(batch: Tensor) -> PerSampleGrads:
            leaves_of_parameters = [_leaf(parameter, True) for parameter in params]
            with per_sample(leaves_of_parameters) as grads:
                outputs = function(grads.batch(batch), *leaves_of_parameters)
                batch_loss(outputs, len(batch), "sum").backward()
            return grads

        grads = of_function if each else of_context
        per_sample_gradients = grads(batch)
        if of == "gram":
            return _unwrap_like((per_sample_gradients.gram(grads(given)),), params)
        question = getattr(per_sample_gradients, of)
        answer = question() if given is None else question(given)
        return _unwrap_like(leaves(answer), params)

    # --- for the audit ----------------------------------------------------------------------------

    def fingerprint(self) -> str:
        return runtime_rules.fingerprint()

    def rules(self) -> list[Rule]:
        return runtime_rules.rules()

    def watched(self, kinds: bool = True) -> AbstractContextManager[Watch]:
        return runtime_watch.watched(kinds)

    def planted(self, rule: str, kind: str) -> AbstractContextManager[None]:
        return runtime_rules.planted(rule, kind)


def _with_tensor(change: Callable[[Any], object], value: object) -> object:
    """Return a changed tensor, and anything else as it is."""
    if isinstance(value, Tensor):
        return change(value)
    return value


def _leaf(x: Tensor, requires_grad: bool) -> Tensor:
    """Return `x` as a leaf of the session."""
    if isinstance(x, runtime.Tensor):  # while a program is captured
        return x.detach().requires_grad_(requires_grad)
    return runtime.wrap(x.detach(), requires_grad)


def _in_session(x: Tensor) -> Tensor:
    """Return `x` as a tensor of the session."""
    if isinstance(x, runtime.Tensor):
        return x
    return runtime.wrap(x)


def _unwrap_like(results: Sequence[Any], arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return `results` as plain tensors, if the `arguments` are."""
    if any(isinstance(x, runtime.Tensor) for x in arguments):
        return tuple(results)
    return tuple(map(runtime.unwrap, results))


def _gradients(
    outputs: Sequence[Any], xs: Sequence[Any], cotangents: Sequence[Any], create_graph: bool = False
) -> tuple[object, ...]:
    """Return gradients by the session's engine, with zeros for an input that no output depends
    on.
    """
    tracked, seeds = [], []
    for output, cotangent in zip(outputs, cotangents, strict=True):
        # The engine refuses an output without a history.
        if output.requires_grad:
            tracked.append(output)
            seeds.append(cotangent)
    if not tracked:
        return tuple(map(torch.zeros_like, xs))
    gradients: tuple[Any, ...] = runtime.autograd.grad(
        tuple(tracked),
        tuple(xs),
        tuple(seeds),
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
    return gradients
