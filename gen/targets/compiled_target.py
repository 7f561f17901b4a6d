"""Test ``torch.compile`` as a target: a whole pipeline is one compiled function, with Inductor,
with AOTAutograd alone, or with Dynamo alone.

Dynamo has to take the pipeline as one graph (``fullgraph``). Where it does not, the cell fails: the
rest would run eagerly and prove nothing. Every function is compiled afresh. Inductor keeps its
kernels in files (``.cache/inductor``), so that another cell or run with the same graph compiles no
C++.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from gen.language.pipeline import COMPILED, PARTS
from gen.targets.faults import Rule, Watch
from gen.targets.lacking_words import FAMILY
from gen.targets.torch_target import OF_ENGINE, gradients, with_gradients

__all__ = ["CompiledTarget"]

_OF_OTHERS = tuple(
    FAMILY + name
    for name in (
        "transforms",
        "graphs",
        "exports",
        "partitions",
        "jits",
        "per_sample_modules",
        "per_sample_programs",
        "sessions",
        "engines",
        "functions",
        "writes",
        "eager_code",
    )
)
"""The families whose programs call functions by other names than those of ``torch.compile``, as
``make_fx``. There nothing would be compiled."""

Tensor = torch.Tensor
_CACHE = Path(".cache/inductor")


class CompiledTarget:
    """Compile whole pipelines, see :class:`gen.targets.protocol.Target`."""

    # Every pipeline is compiled, so `jit` of it would be a second time. The others are not what
    # torch.compile offers.
    lacks = frozenset(
        ("jit", "functionalize", "trace", "joint", "export", "saved", "per_sample", "fake")
    ) | {
        "linearize",
        "overload",
        "refusal",
        "dual",
        "checkpoint",
        "functional",
        "cuts",
        "training",
        *OF_ENGINE,  # inside of what would be compiled
        *_OF_OTHERS,
    }
    slow = True
    in_stages = False  # every cell compiles

    def __init__(self, backend: str, name: str = "") -> None:
        # a name that ``torch.compile`` takes; a fault puts a function in its place
        self.backend: str | Callable[..., Any] = backend
        self.name = name or backend
        if backend == "eager":
            # What a part shares with its caller is the work of AOTAutograd, which is left out here.
            self.lacks = self.lacks | {"part"}
        self.levels = (self.name,)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CACHE.resolve()))
        # A pool of processes would outlive the cell that started it.
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
        # how many stages `backward` are still to be entered until one compiles its function
        self._backwards = 0

    def pipeline(
        self, function: Callable[..., object], stages: Sequence[str]
    ) -> Callable[..., Any]:
        """Return `function`, a pipeline of `stages`, as one compiled function.

        `aot.function` compiles the op itself, and `aot.parts` what the op names. The innermost
        `backward` compiles its function and calls the engine eagerly.
        """
        if PARTS in stages:
            from gen.torch_private.compilers import reset_dynamo

            # Later would be too late, since the parts of one program are compiled together.
            reset_dynamo()
        if COMPILED in stages or PARTS in stages:
            # It counts down from here and never reaches 0, so that no `backward` compiles.
            self._backwards = -1
            # A program with parts may ask for gradients, which compiles their backward passes.
            return _quiet(function) if PARTS in stages else function
        self._backwards = stages.count("backward")
        if self._backwards:
            return function
        return self._compile(function)

    def _compile(self, f: Callable[..., object], dynamic: bool = False) -> Callable[..., object]:
        """Return `f` compiled afresh, without the warnings of the compiler."""
        from gen.torch_private.compilers import inductor_config, reset_dynamo

        # Programs of other samples have the same code, and Dynamo compiles one code only a few
        # times before it gives up.
        reset_dynamo()
        # The draws are those of eager mode, so that they can be compared.
        inductor_config.fallback_random = True
        return _quiet(torch.compile(f, backend=self.backend, fullgraph=True, dynamic=dynamic))

    def jit(self, f: Callable[..., object]) -> Callable[..., Any]:
        """Return a program with a state in Python, compiled as users compile one: in parts, where
        Dynamo cannot take it as one graph.
        """
        from gen.torch_private.compilers import reset_dynamo

        reset_dynamo()
        return _quiet(torch.compile(f, backend=self.backend))

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
        """Return a function or module, compiled as users compile one: in parts of its own, where
        Dynamo cannot take it as one graph. `examples` are not needed, as Dynamo sees each call.
        """
        from gen.torch_private.compilers import functorch_config, inductor_config

        # The draws are those of eager mode, so that they can be compared.
        inductor_config.fallback_random = True
        # The compiler chooses its partition, unless a budget changes what it keeps.
        budget = 0.5 if partition == "budget" else 1.0
        with warnings.catch_warnings():  # torch imports the compiler here
            warnings.simplefilter("ignore")
            compiled = _quiet(torch.compile(f, backend=self.backend, dynamic=dynamic))

        def g(*args: object, **options: object) -> Any:
            with functorch_config.patch(activation_memory_budget=budget):
                return compiled(*args, **options)

        return g

    def offered(self, name: str, otherwise: object) -> Any:
        """Return torch's branch, loop or scan of this name, compiled; else `otherwise`."""
        from gen.torch_private.compilers import control_flow

        operator = control_flow().get(name)
        if operator is None:
            return otherwise
        compiled = _quiet(torch.compile(operator, backend=self.backend, fullgraph=True))

        def call(*args: object, **options: object) -> Any:
            # A part that is compiled has the operator in its own graph.
            if torch.compiler.is_compiling():
                return operator(*args, **options)
            return compiled(*args, **options)

        return call

    def session(
        self,
        f: Callable[..., Any],
        args: Sequence[Tensor],
        cotangents: Sequence[Tensor],
        kept: Sequence[int],
    ) -> Any:
        """Return outputs, and gradients by the engine, of a program with compiled parts."""
        # A backward pass is compiled when it first runs, so its warnings come there.
        return _quiet(with_gradients)(f, args, cotangents, kept)

    def forward(self, function: Callable[..., object]) -> Callable[..., Any]:
        return self._compile(function)

    def compiled(
        self, function: Callable[..., object], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        return self._compile(function, dynamic)

    def backward(self, f: Callable[..., Any], *primals: Any) -> Any:
        """Return outputs and a pullback by the engine, which is nested if the primals require
        grad.
        """
        # The primals of an inner `backward` are tensors of the outer one.
        nested = any(primal.requires_grad for primal in primals)
        leaves = primals
        if not nested:
            leaves = tuple(primal.detach().requires_grad_() for primal in primals)
        self._backwards -= 1
        try:
            if self._backwards == 0:
                f = self._compile(f)
            outputs = f(*leaves)
        finally:
            self._backwards += 1
        return outputs, lambda cotangents: gradients(
            outputs, leaves, cotangents, create_graph=nested
        )

    def vjp(self, f: Callable[..., object], *primals: object) -> Any:
        return torch.func.vjp(f, *primals)

    def jvp(
        self, f: Callable[..., object], primals: tuple[object, ...], tangents: tuple[object, ...]
    ) -> Any:
        return torch.func.jvp(f, primals, tangents)

    def vmap(
        self, f: Callable[..., object], in_dims: tuple[int | None, ...], out_dims: Any = 0
    ) -> Callable[..., Any]:
        return torch.func.vmap(f, in_dims=in_dims, out_dims=out_dims, randomness="different")

    def grad(self, f: Callable[..., object]) -> Callable[..., Any]:
        def g(*args: Any) -> Any:
            every = tuple(range(len(args)))
            return torch.func.grad(f, argnums=every)(*args)

        return g

    def jacrev(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return torch.func.jacrev(f, argnums=argnums)

    def jacfwd(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return torch.func.jacfwd(f, argnums=argnums)

    def hessian(self, f: Callable[..., object], argnums: tuple[int, ...]) -> Callable[..., Any]:
        return torch.func.hessian(f, argnums=argnums)

    # --- faults for the audit, see gen.targets.faults; Dynamo is slow to import

    def fingerprint(self) -> str:
        from gen.targets.compiler_faults import compiler_rules

        return compiler_rules.fingerprint()

    def rules(self) -> list[Rule]:
        from gen.targets.compiler_faults import compiler_rules

        return compiler_rules.rules()

    def watched(self, kinds: bool = True) -> AbstractContextManager[Watch]:
        from gen.targets.compiler_faults import compiler_rules

        return compiler_rules.watched(self)

    def planted(self, rule: str, kind: str) -> AbstractContextManager[None]:
        from gen.targets.compiler_faults import compiler_rules

        return compiler_rules.planted(self, rule, kind)


def _quiet(compiled: Callable[..., object]) -> Callable[..., Any]:
    """Return a compiled function without the warnings of the compiler."""

    def call(*args: object, **options: object) -> Any:
        with warnings.catch_warnings():
            # The warnings are about speed and the compiler's own code.
            warnings.simplefilter("ignore")
            return compiled(*args, **options)

    return call
