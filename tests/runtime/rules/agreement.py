"""Do the rules agree with torch's own engine? One function that runs an OpInfo's samples through
the runtime's transforms.

The references are torch's engine on plain tensors and Python loops over the batch; nothing of
``torch.func`` is involved."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from runtime import func
from runtime.func.batch import fallback_policy
from tests.runtime.opinfo_samples import drawn

forward_ad: Any = torch.autograd.forward_ad
Tensors = tuple[torch.Tensor, ...]
Flat = Callable[..., Tensors]
CHECKS = ("vjp", "jvp", "vmap", "vmap_vjp", "vmap_jvp", "vjp_vmap", "vjp_vjp")


@contextmanager
def strict() -> Iterator[None]:
    """A loop over the batch inside the runtime is a failure; what samples make torch's
    kernels warn of is not."""
    with fallback_policy("raise"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@dataclass(frozen=True)
class Problem:
    """An op at one sample: a function of its tensors, in the order in which they appear, to a
    tuple of tensors."""

    f: Flat
    inputs: Tensors
    differentiable: tuple[int, ...]  # positions of the inputs whose gradient the sample wants
    what: str
    # what torch's engine differentiates in place of ``f``, where it lacks a derivative
    reference: Flat | None = None


def opinfo(name: str, variant: str = "") -> Any:
    for op in op_db:
        if op.name == name and op.variant_test_name == variant:
            return op
    raise LookupError(f"no OpInfo {name!r} {variant!r}")


def has_samples(name: str) -> bool:
    """Whether this torch has an OpInfo of the op."""
    return any(op.name == name for op in op_db)


def problems(name: str, dtype: torch.dtype, variant: str = "", limit: int = 4) -> list[Problem]:
    """At most ``limit`` samples, spread over all of them (their interesting ones are
    rarely the first)."""
    op = opinfo(name, variant)
    torch.manual_seed(0)
    samples = drawn(op, "cpu", dtype, requires_grad=True)
    step = max(1, len(samples) // limit)
    return [_problem(op, sample, i) for i, sample in enumerate(samples) if i % step == 0][:limit]


def _problem(op: Any, sample: Any, number: int) -> Problem:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    where = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def f(*inputs: torch.Tensor) -> Tensors:
        full = list(flat)
        for i, x in zip(where, inputs, strict=True):
            full[i] = x
        first, args, kwargs = pytree.tree_unflatten(full, spec)
        out = sample.output_process_fn_grad(op.op(first, *args, **kwargs))
        return tuple(o for o in pytree.tree_leaves(out) if isinstance(o, torch.Tensor))

    wanted = tuple(k for k, i in enumerate(where) if flat[i].requires_grad)
    inputs = tuple(flat[i].detach().clone() for i in where)
    for i in where:  # what a sample's keyword arguments close over must not record either
        flat[i] = flat[i].detach()
    return Problem(f, inputs, wanted, f"{op.formatted_name} sample {number}: {sample.summary()}")


def _smooth(outs: Tensors) -> list[int]:
    return [i for i, o in enumerate(outs) if o.is_floating_point() or o.is_complex()]


def _only(f: Flat, which: Sequence[int]) -> Flat:
    def chosen(*inputs: torch.Tensor) -> Tensors:
        outs = f(*inputs)
        return tuple(outs[i] for i in which)

    return chosen


def _like(tensors: Tensors, seed: str) -> Tensors:
    """Directions of the same shapes, the same ones for the same seed."""
    generator = torch.Generator().manual_seed(zlib.crc32(seed.encode()))
    return tuple(torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in tensors)


def engine_vjp(
    f: Flat, inputs: Tensors, cotangents: Tensors, create_graph: bool = False
) -> Tensors:
    """By torch's engine, zeros where no gradient arrives."""
    leaves = tuple(
        x if create_graph and x.requires_grad else x.detach().requires_grad_() for x in inputs
    )
    pairs = [(o, g) for o, g in zip(f(*leaves), cotangents, strict=True) if o.requires_grad]
    if not pairs:
        return tuple(torch.zeros_like(x) for x in leaves)
    grads = torch.autograd.grad(
        [o for o, _ in pairs],
        leaves,
        [g for _, g in pairs],
        allow_unused=True,
        create_graph=create_graph,
    )
    return tuple(
        torch.zeros_like(x) if g is None else g for g, x in zip(grads, leaves, strict=True)
    )


def engine_jvp(f: Flat, inputs: Tensors, tangents: Tensors) -> Tensors:
    """By torch's forward mode, or, for ops without a forward-mode rule, by
    transposing torch's vjp."""
    try:
        with forward_ad.dual_level():
            outs = f(
                *(
                    forward_ad.make_dual(x.detach(), t)
                    for x, t in zip(inputs, tangents, strict=True)
                )
            )
            duals = [forward_ad.unpack_dual(o) for o in outs]
            return tuple(
                torch.zeros_like(d.primal) if d.tangent is None else d.tangent.detach()
                for d in duals
            )
    except NotImplementedError:
        pass

    leaves = tuple(x.detach().requires_grad_() for x in inputs)

    def pullback(*cotangents: torch.Tensor) -> Tensors:
        return engine_vjp(f, leaves, cotangents, create_graph=True)

    outs = f(*inputs)
    return engine_vjp(pullback, tuple(torch.zeros_like(o) for o in outs), tangents)


def _over(f: Flat, values: Tensors, at: Sequence[int]) -> Flat:
    """``f`` as a function of some of its inputs; the others stay as they are in ``values``."""

    def g(*some: torch.Tensor) -> Tensors:
        full = list(values)
        for i, x in zip(at, some, strict=True):
            full[i] = x
        return f(*full)

    return g


def _pullbacks(f: Flat, reference: Flat, n: int, at: Sequence[int]) -> tuple[Flat, Flat]:
    """(inputs, cotangents) -> gradients of the inputs at ``at``, of ``f`` by the runtime, of
    ``reference`` by torch."""

    def ours(*values: torch.Tensor) -> Tensors:
        inputs, cotangents = values[:n], values[n:]
        return tuple(func.vjp(_over(f, inputs, at), *(inputs[i] for i in at))[1](cotangents))

    def theirs(*values: torch.Tensor) -> Tensors:
        inputs, cotangents = values[:n], values[n:]
        some = tuple(inputs[i] for i in at)
        return engine_vjp(
            _over(reference, inputs, at), some, cotangents, any(v.requires_grad for v in values)
        )

    return ours, theirs


def _batches(inputs: Tensors, singly: bool) -> list[tuple[Tensors, tuple[int | None, ...]]]:
    """All inputs batched; and ``singly`` each in turn the only one that is. The second element
    stays inside the domain of the first."""
    stacked = tuple(
        torch.stack([x, 0.875 * x if x.is_floating_point() or x.is_complex() else x])
        for x in inputs
    )
    n = len(inputs)
    patterns: list[tuple[int | None, ...]] = [(0,) * n]
    if n > 1 and singly:
        patterns += [tuple(0 if i == j else None for i in range(n)) for j in range(n)]
    return [
        (tuple(s if d == 0 else x for s, x, d in zip(stacked, inputs, p, strict=True)), p)
        for p in patterns
    ]


def _loop(f: Flat, inputs: Tensors, dims: tuple[int | None, ...]) -> Tensors:
    rows = [
        f(*(x if d is None else x[i] for x, d in zip(inputs, dims, strict=True))) for i in range(2)
    ]
    return tuple(torch.stack(r) for r in zip(*rows, strict=True))


def _same(actual: Tensors, expected: Tensors, what: str) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=1e-7, atol=1e-7, equal_nan=True, msg=lambda m: f"{what}\n{m}"
    )


def check_problem(p: Problem, checks: Sequence[str] = CHECKS, singly: bool = True) -> None:
    """Run one problem through ``checks``; ``singly``: also with a batch in only one of the
    inputs."""
    with strict():
        _check(p, checks, singly)


def _check(p: Problem, checks: Sequence[str], singly: bool) -> None:
    agreement = Agreement.of(p, singly)
    if "vmap" in checks:
        agreement.vmap()
    if not agreement.cotangents or not p.differentiable:
        return
    methods: dict[str, Callable[[], None]] = {
        "vjp": agreement.vjp,
        "jvp": agreement.jvp,
        "vmap_vjp": agreement.vmap_of_vjp,
        "vmap_jvp": agreement.vmap_of_jvp,
        "vjp_vmap": agreement.vjp_of_vmap,
        "vjp_vjp": agreement.vjp_of_vjp,
    }
    for name, compare in methods.items():
        if name in checks:
            compare()


@dataclass(frozen=True)
class Agreement:
    """Compare the transforms of one problem with torch's engine and with loops."""

    problem: Problem
    singly: bool  # also with a batch in only one of the inputs
    smooth: Flat  # the function, with only the outputs that have a derivative
    plain: Flat  # its reference, likewise
    cotangents: Tensors

    @classmethod
    def of(cls, p: Problem, singly: bool) -> Agreement:
        which = _smooth(p.f(*p.inputs))
        smooth, plain = _only(p.f, which), _only(p.reference or p.f, which)
        return cls(p, singly, smooth, plain, _like(smooth(*p.inputs), "cotangents"))

    @property
    def at(self) -> Sequence[int]:
        return self.problem.differentiable

    @property
    def inputs(self) -> Tensors:
        return self.problem.inputs

    @property
    def some(self) -> Tensors:
        """Return the inputs that have a derivative."""
        return tuple(self.inputs[i] for i in self.at)

    def pullbacks(self) -> tuple[Flat, Flat]:
        return _pullbacks(self.smooth, self.plain, len(self.inputs), self.at)

    def same(self, actual: Tensors, expected: Tensors, what: str) -> None:
        _same(actual, expected, f"{what}: {self.problem.what}")

    def vmap(self) -> None:
        function, reference = self.problem.f, self.problem.reference or self.problem.f
        for batch, dims in _batches(self.inputs, self.singly):
            mapped = func.vmap(function, dims)(*batch)
            self.same(mapped, _loop(reference, batch, dims), f"vmap {dims}")

    def vjp(self) -> None:
        ours, theirs = self.pullbacks()
        values = (*self.inputs, *self.cotangents)
        self.same(ours(*values), theirs(*values), "vjp")

    def jvp(self) -> None:
        tangents = _like(self.some, "tangents")
        smooth, plain = (_over(f, self.inputs, self.at) for f in (self.smooth, self.plain))
        actual = func.jvp(smooth, self.some, tangents)[1]
        self.same(actual, engine_jvp(plain, self.some, tangents), "jvp")

    def vmap_of_vjp(self) -> None:
        ours, theirs = self.pullbacks()
        for batch, dims in _batches((*self.inputs, *self.cotangents), self.singly):
            mapped = func.vmap(ours, dims)(*batch)
            self.same(mapped, _loop(theirs, batch, dims), f"vmap(vjp) {dims}")

    def vmap_of_jvp(self) -> None:
        n, at = len(self.inputs), self.at

        def push(*values: torch.Tensor) -> Any:
            primals = tuple(values[i] for i in at)
            return func.jvp(_over(self.smooth, values[:n], at), primals, values[n:])[1]

        def engine_push(*values: torch.Tensor) -> Any:
            primals = tuple(values[i] for i in at)
            return engine_jvp(_over(self.plain, values[:n], at), primals, values[n:])

        for batch, dims in _batches((*self.inputs, *_like(self.some, "tangents")), self.singly):
            mapped = func.vmap(push, dims)(*batch)
            self.same(mapped, _loop(engine_push, batch, dims), f"vmap(jvp) {dims}")

    def vjp_of_vmap(self) -> None:
        for batch, dims in _batches(self.inputs, self.singly):
            gs = _like(_loop(self.smooth, batch, dims), "batched cotangents")
            mapped = _over(func.vmap(self.smooth, dims), batch, self.at)
            looped = _over(lambda *x, dims=dims: _loop(self.plain, x, dims), batch, self.at)
            chosen = tuple(batch[i] for i in self.at)
            actual = func.vjp(mapped, *chosen)[1](gs)
            self.same(actual, engine_vjp(looped, chosen, gs), f"vjp(vmap) {dims}")

    def vjp_of_vjp(self) -> None:
        ours, theirs = self.pullbacks()
        n = len(self.inputs)
        second = _like(self.some, "second")
        both = [*self.at, *range(n, n + len(self.cotangents))]
        values = (*self.inputs, *self.cotangents)
        chosen = tuple(values[i] for i in both)
        actual = func.vjp(_over(ours, values, both), *chosen)[1](second)
        self.same(actual, engine_vjp(_over(theirs, values, both), chosen, second), "vjp(vjp)")


def check(
    name: str,
    dtype: torch.dtype = torch.float64,
    variant: str = "",
    *,
    limit: int = 4,
    checks: Sequence[str] = CHECKS,
    singly: bool = True,
) -> None:
    """``limit`` samples of an OpInfo through ``checks``; ``singly``: also with a batch in only
    one of the inputs."""
    for p in problems(name, dtype, variant, limit):
        check_problem(p, checks, singly)
