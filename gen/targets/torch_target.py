"""Test torch itself as a target: torch.func, make_fx, AOTAutograd, torch.export and
ExpandedWeights.
"""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.utils.checkpoint
from torch import nn
from torch.autograd import forward_ad

from gen.targets.exported import reloaded
from gen.targets.lacking_words import FAMILY
from gen.targets.parametric import Parametric, batch_loss, call_functional, of_samples, or_zeros
from gen.torch_private.aten_overloads import overload_by_name
from gen.torch_private.loaded_with_torch import DECOMPOSITIONS_OF_JVP, per_sample_grad, pytree

__all__ = ["OF_ENGINE", "TorchTarget", "gradients", "with_gradients"]

Tensor = torch.Tensor


_LOOP = "There is a performance drop because we have not yet implemented the batching rule for "
_loops: Counter[str] = Counter()


@contextmanager
def _fallback_is_expected() -> Iterator[None]:
    """Silence two warnings of vmap: an op without a batching rule, which is counted in `loops`, and
    a kernel that resizes a buffer.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message=_LOOP, category=UserWarning)
        warnings.filterwarnings(
            "ignore",
            message="An output with one or more elements was resized",
            category=UserWarning,
        )
        try:
            yield
        finally:
            for warning in caught:
                if _is_of_loop(warning):
                    text = str(warning.message).removeprefix(_LOOP)
                    _loops[text.partition(". ")[0]] += 1
    # The block has recorded every warning, so the others are given to the caller's filters here.
    for warning in caught:
        if not _is_of_loop(warning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )


def _is_of_loop(warning: warnings.WarningMessage) -> bool:
    return str(warning.message).startswith(_LOOP)


class _Module(nn.Module):
    """Hold `f` as a module without parameters, for torch.export."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.f = function

    def forward(self, *args: object) -> Any:
        return self.f(*args)


OF_ENGINE = tuple(
    FAMILY + name
    for name in (
        "nested_tensors",
        "masked_tensors",
        "sparse_layouts",
        "wrapper_subclasses",
        "optimizers",
        "modes_of_modules",
        "copies",
        "schedules",
        "module_calls",
        "library",
        "lists",
        "registration",
        "small_models",
    )
)
"""The families whose programs ask torch's engine for gradients, or tensors of its own other kinds,
as targets without that engine lack them."""


class TorchTarget:
    """Call torch's transforms, see :class:`gen.targets.protocol.Target`."""

    name = "torch"
    levels = ("eager",)
    # torch.compile is no `jit`: it takes functions apart, and may run parts of them eagerly. It
    # takes no whole step of training, and without it such a step is the reference itself.
    lacks = frozenset(("jit", "state", "per_sample_answer", "training", "cuts", "refusal"))
    loops = _loops

    def __init__(self) -> None:
        # Torch would import and script these at its first jvp, and warn inside of a cell.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
            importlib.import_module(DECOMPOSITIONS_OF_JVP)

    def forward(self, function: Callable[..., object]) -> Callable[..., Any]:
        return function

    def overload(self, name: str) -> Callable[..., Any]:
        """Return the overload of torch's dispatcher of this name."""
        overload: Callable[..., Any] = overload_by_name(name)
        return overload

    def vjp(self, f: Callable[..., object], *primals: object) -> Any:
        return torch.func.vjp(f, *primals)

    def backward(self, f: Callable[..., Any], *primals: Any) -> Any:
        """Return outputs and a pullback by the engine, which is recorded if the primals are."""
        # An outer pass differentiates its own tensors, so new leaves would cut it off.
        nested = any(primal.requires_grad for primal in primals)
        leaves = primals
        if not nested:
            leaves = tuple(primal.detach().requires_grad_() for primal in primals)
        outputs = f(*leaves)
        return outputs, lambda cotangents: gradients(
            outputs, leaves, cotangents, create_graph=nested
        )

    def jvp(
        self, f: Callable[..., object], primals: tuple[object, ...], tangents: tuple[object, ...]
    ) -> Any:
        return torch.func.jvp(f, primals, tangents)

    def linearize(self, f: Callable[..., object], *primals: object) -> Any:
        """Return outputs and the pushforward, without the warnings of its graph."""
        # The warnings are about the graph that linearize makes for itself.
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="Attempted to insert a get_attr Node", category=UserWarning
            )
            outputs, push = torch.func.linearize(f, *primals)
        return outputs, lambda tangents: push(*tangents)

    def dual(
        self,
        function: Callable[..., Any],
        primals: tuple[object, ...],
        tangents: tuple[object, ...],
    ) -> Any:
        """Return outputs and tangents by dual tensors."""
        with forward_ad.dual_level():
            duals = map(forward_ad.make_dual, primals, tangents)
            pairs = list(map(forward_ad.unpack_dual, function(*duals)))
        pushed = tuple(or_zeros(pair.tangent, pair.primal) for pair in pairs)
        return tuple(pair.primal for pair in pairs), pushed

    def vmap(
        self, f: Callable[..., object], in_dims: tuple[int | None, ...], out_dims: Any = 0
    ) -> Callable[..., Any]:
        """Return `f` mapped over a batch. Runs in a loop are counted."""
        mapped = torch.func.vmap(f, in_dims=in_dims, out_dims=out_dims, randomness="different")

        def g(*args: object) -> Any:
            with _fallback_is_expected():
                return mapped(*args)

        return g

    def grad(self, f: Callable[..., object]) -> Callable[..., Any]:
        def g(*args: Any) -> Any:
            every = tuple(range(len(args)))
            return torch.func.grad(f, argnums=every)(*args)

        return g

    def jacrev(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return _quiet(torch.func.jacrev(f, argnums=argnums))

    def jacfwd(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return _quiet(torch.func.jacfwd(f, argnums=argnums))

    def hessian(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return _quiet(torch.func.hessian(f, argnums=argnums))

    def functionalize(self, f: Callable[..., object]) -> Callable[..., Any]:
        return torch.func.functionalize(f)

    def trace(
        self, function: Callable[..., object], args: Sequence[Tensor], *, dynamic: bool
    ) -> Any:
        """Return the graph that make_fx captures."""
        from torch.fx.experimental.proxy_tensor import make_fx

        mode: Literal["symbolic", "real"] = "symbolic" if dynamic else "real"
        with _fallback_is_expected():
            return make_fx(function, tracing_mode=mode)(*args)

    def compiled(
        self, function: Callable[..., object], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        """Return `function` compiled by AOTAutograd, whose graphs return lists."""
        from gen.torch_private.compilers import outside_tensors_as_constants

        g = self.part(function, (), partition=partition, dynamic=dynamic, jits=False, cache=None)

        def call(*args: object) -> tuple[Any, ...]:
            # A package keeps tables and settings as tensors, which are no arguments of its ops.
            with outside_tensors_as_constants():
                return tuple(g(*args))

        return call

    def part(
        self,
        f: Callable[..., object],
        examples: tuple[object, ...],
        *,
        partition: str,
        dynamic: bool,
        jits: bool,
        cache: object,
    ) -> Callable[..., Any]:
        """Compile a function or module by AOTAutograd, without a backend.

        AOTAutograd refuses a tensor that `f` closes over: as a constant of the graph it would have
        no gradient, and the numbers of the first call.
        """
        from functorch import compile as aot

        from gen.torch_private.compilers import functorch_config

        cut = aot.min_cut_rematerialization_partition
        if partition == "default":
            cut = aot.default_partition
        # The budget is a setting of torch, not an argument of the partition.
        budget = 0.5 if partition == "budget" else 1.0
        options: dict[str, Any] = {
            "fw_compiler": aot.nop,
            "bw_compiler": aot.nop,
            "partition_fn": cut,
        }

        @contextmanager
        def compiling() -> Iterator[None]:
            with (
                warnings.catch_warnings(),
                functorch_config.patch(activation_memory_budget=budget),
            ):
                # Torch itself reads `.grad` of the arguments.
                warnings.filterwarnings(
                    "ignore",
                    message="The .grad attribute of a Tensor that is not a leaf",
                    category=UserWarning,
                )
                yield

        with compiling():
            if examples:
                compiled = aot.aot_module_simplified(f, examples, **options)
            elif isinstance(f, nn.Module):
                compiled = aot.aot_module(f, dynamic=dynamic, **options)
            else:
                compiled = aot.aot_function(f, dynamic=dynamic, **options)

        def g(*args: object, **kwargs: object) -> Any:
            # A function is compiled at its first call, so that call needs the settings too.
            with compiling():
                return compiled(*args, **kwargs)

        return g

    def offered(self, name: str, otherwise: object) -> Any:
        return otherwise

    def session(
        self,
        function: Callable[..., Any],
        args: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        kept: Sequence[int],
    ) -> Any:
        """Return outputs, and gradients by the engine."""
        return with_gradients(function, args, cotangents, kept)

    def checkpoint(
        self,
        f: Callable[..., Any],
        args: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        *,
        reentrant: bool,
    ) -> Any:
        """Return outputs and gradients of a checkpointed program."""
        outputs = torch.utils.checkpoint.checkpoint(f, *args, use_reentrant=reentrant)
        # A reentrant checkpoint refuses `torch.autograd.grad`, so `backward` fills `.grad`.
        torch.autograd.backward(outputs, tuple(cotangents))
        return outputs, tuple(or_zeros(x.grad, x) for x in args if x.requires_grad)

    def functional(
        self,
        name: str,
        f: Callable[..., object],
        args: tuple[object, ...],
        along: tuple[object, ...],
    ) -> tuple[Tensor, ...]:
        """Return the flat results of a function of ``torch.autograd.functional``."""
        result = call_functional(torch.autograd.functional, name, f, args, along)
        return tuple(pytree.tree_leaves(result))

    def joint(
        self, f: Callable[..., object], args: Sequence[Tensor], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        """Return a function from values and cotangents to outputs and gradients, by AOTAutograd."""
        compiled = self.compiled(f, partition=partition, dynamic=dynamic)

        def g(
            values: Sequence[Tensor], cotangents: Sequence[Tensor]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            outputs = compiled(*values)
            wanted = [value for value in values if value.requires_grad]
            return outputs, gradients(outputs, wanted, cotangents)

        return g

    def export(
        self, f: Callable[..., object], args: Sequence[Tensor], *, dynamic: bool
    ) -> Callable[..., Any]:
        return _export(f, args, dynamic).module()

    def saved(
        self, function: Callable[..., object], args: Sequence[Tensor], *, dynamic: bool
    ) -> Callable[..., Any]:
        return reloaded(_export(function, args, dynamic))

    def per_sample(
        self,
        f: Callable[..., object],
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        loss_reduction: str,
        input_grad: bool,
    ) -> tuple[Tensor, ...]:
        """Return per-sample gradients by ExpandedWeights."""
        module = Parametric(f, params)
        call = per_sample_grad.call_for_per_sample_grads(
            module, batch_size=len(batch), loss_reduction=loss_reduction
        )
        # The batch is a leaf only if its gradient is a result too.
        x = batch.detach().requires_grad_(input_grad)
        batch_loss(call(x), len(batch), loss_reduction).backward()
        sample_gradients = tuple(weight.grad_sample for weight in module.weights)
        if x.grad is not None:
            sample_gradients += (of_samples(x.grad, loss_reduction),)
        return sample_gradients


def _export(
    function: Callable[..., object], args: Sequence[Tensor], dynamic: bool
) -> torch.export.ExportedProgram:
    """Return the exported program of a function, with automatic shapes if they are dynamic."""
    shapes: Any = None
    if dynamic:
        automatic = torch.export.Dim.AUTO
        shapes = {"args": tuple(dict.fromkeys(range(arg.ndim), automatic) for arg in args)}
    return torch.export.export(_Module(function), tuple(args), dynamic_shapes=shapes, strict=False)


def _quiet(f: Callable[..., object]) -> Callable[..., object]:
    """Return `f` without vmap's warnings of a loop."""

    def g(*args: object) -> Any:
        with _fallback_is_expected():
            return f(*args)

    return g


def with_gradients(
    function: Callable[..., Any],
    args: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    kept: Sequence[int],
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Return outputs of a function, and gradients by the engine of the arguments that require them.

    `kept`: the places of the outputs to which the cotangents belong.
    """
    outputs = function(*args)
    wanted = [x for x in args if x.requires_grad]
    found = gradients([outputs[place] for place in kept], wanted, cotangents)
    return tuple(x.detach() for x in outputs), found


def gradients(
    outputs: Sequence[Tensor],
    xs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    create_graph: bool = False,
) -> tuple[Tensor, ...]:
    """Return the gradient of each of `xs` by torch's engine.

    It is zero for an input that no output depends on.
    """
    tracked, seeds = [], []
    for output, cotangent in zip(outputs, cotangents, strict=True):
        # The engine refuses an output without a history.
        if output.requires_grad:
            tracked.append(output)
            seeds.append(cotangent)
    if not tracked:
        return tuple(map(torch.zeros_like, xs))
    return torch.autograd.grad(
        tuple(tracked),
        tuple(xs),
        tuple(seeds),
        create_graph=create_graph,
        allow_unused=True,
        materialize_grads=True,
    )
