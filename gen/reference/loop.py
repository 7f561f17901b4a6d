"""vmap as a loop over the batch; derivatives by torch's plain autograd engine, one
vector at a time.

Nothing here uses torch.func. Tangents come from the reverse engine: it transposes the derivative
twice. So they share no formula with forward-mode rules. forward_ad is used only if an op cannot be
differentiated twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import torch
from torch.autograd import forward_ad

Tensor = torch.Tensor
Flat = Callable[..., tuple[Tensor, ...]]
Push = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


class Loop:
    """See :class:`gen.targets.protocol.Target` for shapes and conventions. It nests in
    itself to any depth."""

    name = "loop"
    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        # how many derivatives are running; inside one, results must stay differentiable
        self._depth = 0

    def jit(self, f: Callable[..., Any], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """`f`, after a call of which the memory of the tensors in the lists at
        `donate` is taken."""
        if not donate:
            return f

        def g(*args: Any) -> Any:
            found = f(*args)
            for place in donate:
                for x in args[place]:
                    x.data = x.new_empty(0)
            return found

        return g

    def training(
        self,
        train: Callable[[Sequence[Tensor]], tuple[Tensor, ...]],
        parameters: Sequence[Tensor],
        *,
        session: bool,
    ) -> Any:
        with self._inside():
            return train([torch.nn.Parameter(p.clone()) for p in parameters])

    # --- derivatives ------------------------------------------------------------------------------

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        xs, outputs = self._recorded(f, primals)

        def pullback(cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return self._gradients(outputs, xs, cotangents)

        return self._released(outputs), pullback

    def backward(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        return self.vjp(f, *primals)

    def jvp(
        self, f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        outputs, push = self._linearized(f, primals)
        return self._released(outputs), push(tangents)

    def linearize(self, f: Flat, *primals: Tensor) -> tuple[tuple[Tensor, ...], Push]:
        return f(*primals), lambda tangents: self.jvp(f, primals, tangents)[1]

    def dual(
        self, f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return self.jvp(f, primals, tangents)

    def grad(self, f: Callable[..., Tensor]) -> Flat:
        def g(*args: Tensor) -> tuple[Tensor, ...]:
            outputs, pullback = self.vjp(lambda *xs: (f(*xs),), *args)
            return pullback((torch.ones_like(outputs[0]),))

        return g

    def jacrev(
        self, f: Flat, argnums: Sequence[int]
    ) -> Callable[..., tuple[tuple[Tensor, ...], ...]]:
        def g(*args: Tensor) -> tuple[tuple[Tensor, ...], ...]:
            outputs, pullback = self.vjp(_of(f, args, argnums), *[args[n] for n in argnums])
            blocks = []
            for place, output in enumerate(outputs):
                rows = [pullback(_one_hot(outputs, place, index)) for index in _indices(output)]
                blocks.append(
                    tuple(
                        _stacked([row[k] for row in rows], output.shape, args[n].shape, args[n])
                        for k, n in enumerate(argnums)
                    )
                )
            return tuple(blocks)

        return g

    def jacfwd(
        self, f: Flat, argnums: Sequence[int]
    ) -> Callable[..., tuple[tuple[Tensor, ...], ...]]:
        def g(*args: Tensor) -> tuple[tuple[Tensor, ...], ...]:
            primals = [args[n] for n in argnums]
            outputs, push = self._linearized(_of(f, args, argnums), primals)
            columns = [
                [push(_one_hot(primals, k, index)) for index in _indices(primal)]
                for k, primal in enumerate(primals)
            ]
            return _blocks(columns, primals, outputs)

        return g

    def hessian(self, f: Flat, argnums: Sequence[int]) -> Callable[..., Any]:
        def g(*args: Tensor) -> Any:
            count = len(argnums)
            outputs_count = 0

            def first(*xs: Tensor) -> tuple[Tensor, ...]:
                nonlocal outputs_count
                rows = self.jacrev(f, argnums)(*xs)
                outputs_count = len(rows)
                return tuple(block for row in rows for block in row)

            flat = self.jacfwd(first, argnums)(*args)
            return tuple(
                flat[place * count : (place + 1) * count] for place in range(outputs_count)
            )

        return g

    # --- other transforms -------------------------------------------------------------------------

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        """A loop over the batch. Each entry is a new contiguous tensor, without a trace of the
        batch in its layout.

        An output whose dimension is None is the same for every entry.
        """

        def g(*args: Tensor) -> tuple[Tensor, ...]:
            size = next(
                arg.shape[dim] for arg, dim in zip(args, in_dims, strict=True) if dim is not None
            )
            rows = [
                f(
                    *[
                        arg if dim is None else _entry(arg, dim, b)
                        for arg, dim in zip(args, in_dims, strict=True)
                    ]
                )
                for b in range(size)
            ]
            columns = list(zip(*rows, strict=True))
            dims = (out_dims,) * len(columns) if isinstance(out_dims, int) else out_dims
            return tuple(
                c[0] if dim is None else torch.stack(c, dim)
                for c, dim in zip(columns, dims, strict=True)
            )

        return g

    def functionalize(self, f: Flat) -> Flat:
        return f

    def trace(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        return f

    def checkpoint(
        self, f: Flat, args: Sequence[Tensor], cotangents: Sequence[Tensor], *, reentrant: bool
    ) -> Any:
        return self.joint(f, args, partition="", dynamic=False)(args, cotangents)

    def session(
        self, f: Flat, args: Sequence[Tensor], cotangents: Sequence[Tensor], kept: Sequence[int]
    ) -> Any:
        wanted = [place for place, value in enumerate(args) if value.requires_grad]
        xs, outputs = self._recorded(
            _of(f, args, wanted), [args[place].detach() for place in wanted]
        )
        return self._released(outputs), self._gradients(
            [outputs[place] for place in kept], xs, cotangents
        )

    def functional(
        self, name: str, f: Flat, args: Sequence[Tensor], along: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        everywhere = tuple(range(len(args)))
        if name == "vjp":
            outputs, pullback = self.vjp(f, *args)
            return (*outputs, *pullback(tuple(along)))
        if name == "jvp":
            return tuple(x for part in self.jvp(f, args, along) for x in part)
        if name == "jacobian":
            return tuple(block for row in self.jacrev(f, everywhere)(*args) for block in row)
        if name == "hessian":
            return tuple(block for row in self.hessian(f, everywhere)(*args)[0] for block in row)
        gradient = self.grad(lambda *xs: f(*xs)[0])
        product = (
            self.vjp(gradient, *args)[1](tuple(along))
            if name == "vhp"
            else self.jvp(gradient, args, along)[1]
        )
        return (*f(*args), *product)

    def joint(
        self, f: Flat, args: Sequence[Tensor], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        def g(
            values: Sequence[Tensor], cotangents: Sequence[Tensor]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            wanted = [place for place, value in enumerate(values) if value.requires_grad]
            outputs, pullback = self.vjp(
                _of(f, values, wanted), *[values[place].detach() for place in wanted]
            )
            return outputs, pullback(tuple(cotangents))

        return g

    def compiled(self, f: Flat, *, partition: str, dynamic: bool) -> Flat:
        return f

    def export(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        return f

    def saved(self, f: Flat, args: Sequence[Tensor], *, dynamic: bool) -> Flat:
        return f

    def per_sample(
        self,
        f: Flat,
        batch: Tensor,
        params: Sequence[Tensor],
        *,
        loss_reduction: str,
        input_grad: bool,
    ) -> tuple[Tensor, ...]:
        def gradients(entry: Tensor) -> tuple[Tensor, ...]:
            def loss(*given: Tensor) -> Tensor:
                *held, x = given if input_grad else (*given, entry)
                total: Tensor = sum_of_squares(f(x.unsqueeze(0), *held))
                return total

            return self.grad(loss)(*params, *([entry] if input_grad else []))

        rows = [gradients(entry) for entry in batch]
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    def per_sample_answer(
        self, f: Flat, batch: Tensor, params: Sequence[Tensor], *, of: str, given: Any, each: bool
    ) -> tuple[Tensor, ...]:
        """From the gradients themselves. ``project``: a part of them is the projection, by the
        identity matrix."""

        def gradients(batch: Tensor) -> tuple[Tensor, ...]:
            return self.per_sample(f, batch, params, loss_reduction="sum", input_grad=False)

        dense = gradients(batch)
        flat = torch.cat([g.reshape(len(g), -1) for g in dense], 1)
        norms = flat.norm(dim=1)
        if of == "norms":
            return (norms,)
        if of == "clipped_sum":
            factors = torch.where(norms > given, given / norms, torch.ones_like(norms))
            return tuple((g * factors.view(-1, *[1] * (g.ndim - 1))).sum(0) for g in dense)
        if of == "dot":
            return (flat @ torch.cat([v.flatten() for v in given]),)
        if of == "gram":
            return (flat @ torch.cat([g.reshape(len(g), -1) for g in gradients(given)], 1).mT,)
        if of == "project":
            return (torch.nn.functional.pad(flat, (0, given - flat.shape[1])),)
        raise ValueError(f"no question {of!r}; known: norms, clipped_sum, dot, gram, project")

    # --- for checks -------------------------------------------------------------------------------

    def observe(
        self, f: Flat, inputs: Sequence[Tensor], differentiable: Sequence[bool]
    ) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
        """Outputs of `f`, and for each whether it depends differentiably on the
        differentiable inputs."""
        xs = [
            x.detach().requires_grad_() if flag else x.detach()
            for x, flag in zip(inputs, differentiable, strict=True)
        ]
        with self._inside():
            outputs = f(*xs)
        return tuple(output.detach() for output in outputs), tuple(
            output.requires_grad for output in outputs
        )

    # --- inside -----------------------------------------------------------------------------------

    @contextmanager
    def _inside(self) -> Iterator[None]:
        self._depth += 1
        try:
            with torch.enable_grad():
                yield
        finally:
            self._depth -= 1

    def _recorded(
        self, f: Flat, primals: Sequence[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Inputs for the engine, and `f` of them. They are connected to an outer recording
        if there is one."""
        with self._inside():
            xs = [
                p.clone() if p.requires_grad else p.detach().clone().requires_grad_()
                for p in primals
            ]
            return xs, tuple(f(*xs))

    def _released(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return tuple(outputs) if self._depth else tuple(output.detach() for output in outputs)

    def _gradients(
        self, outputs: Sequence[Tensor], xs: Sequence[Tensor], cotangents: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(x) for x in xs)
        tracked, seeds = zip(*pairs, strict=True)
        with torch.set_grad_enabled(self._depth > 0):
            return torch.autograd.grad(
                tracked,
                list(xs),
                seeds,
                create_graph=self._depth > 0,
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )

    def _linearized(self, f: Flat, primals: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Push]:
        """Outputs of `f` and its pushforward, which uses forward_ad if the derivative cannot
        be differentiated."""
        xs, outputs = self._recorded(f, primals)
        transposed: Push | None = None

        def push(tangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            nonlocal transposed
            try:
                transposed = transposed or self._pushforward(outputs, xs)
                return transposed(tangents)
            except RuntimeError:
                if self._depth:
                    raise
                return _forward_mode(f, primals, tangents)

        return outputs, push

    def _pushforward(self, outputs: Sequence[Tensor], xs: Sequence[Tensor]) -> Push:
        """Return the map from tangents of `xs` to tangents of `outputs`. It is the pullback of the
        pullback, which is linear in its cotangents."""
        with self._inside():
            tracked = [output for output in outputs if output.requires_grad]
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
            pairs = (
                [(g, t) for g, t in zip(gradients, tangents, strict=True) if g.requires_grad]
                if tracked
                else []
            )
            if not pairs:
                return tuple(torch.zeros_like(output) for output in outputs)
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
            found = iter(pushed)
            return tuple(
                next(found) if output.requires_grad else torch.zeros_like(output)
                for output in outputs
            )

        return push


def sum_of_squares(outputs: Sequence[Any]) -> Any:
    """Return the real scalar that ``grad`` and ``per_sample`` differentiate: the sum of |output|²
    over floating and complex outputs."""
    total: Any = None
    for output in outputs:
        if output.is_complex():
            term = (output * output.conj()).real.sum()
        elif output.is_floating_point():
            term = (output * output).sum()
        else:
            continue
        total = term if total is None else total + term
    return total


def _forward_mode(
    f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    with forward_ad.dual_level(), warnings.catch_warnings():
        # torch scripts its forward-mode formulas at the first use, and warns that
        # scripting is deprecated.
        warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated")
        duals = [
            forward_ad.make_dual(p.detach(), t) for p, t in zip(primals, tangents, strict=True)
        ]
        parts = [forward_ad.unpack_dual(output) for output in f(*duals)]
        return tuple(
            torch.zeros_like(part.primal) if part.tangent is None else part.tangent
            for part in parts
        )


def _of(f: Flat, args: Sequence[Tensor], argnums: Sequence[int]) -> Flat:
    """`f` as a function of the arguments `argnums`. The others are fixed."""

    def g(*some: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for place, value in zip(argnums, some, strict=True):
            full[place] = value
        return f(*full)

    return g


def _entry(batched: Tensor, dim: int, b: int) -> Tensor:
    return batched.select(dim, b).clone(memory_format=torch.contiguous_format)


def _indices(x: Tensor) -> Iterator[tuple[int, ...]]:
    return product(*map(range, x.shape))


def _one_hot(like: Sequence[Tensor], place: int, index: tuple[int, ...]) -> tuple[Tensor, ...]:
    basis = tuple(torch.zeros_like(x, memory_format=torch.contiguous_format).detach() for x in like)
    basis[place][index] = 1
    return basis


def _stacked(
    rows: Sequence[Tensor], outer: torch.Size, inner: torch.Size, like: Tensor, last: bool = False
) -> Tensor:
    """Rows stacked to the shape ``outer + inner``; with `last`, to ``inner + outer``."""
    shape = (*inner, *outer) if last else (*outer, *inner)
    if not rows:
        return like.new_zeros(shape)
    return torch.stack(list(rows), dim=-1 if last else 0).reshape(shape)


def _blocks(
    columns: Sequence[Sequence[Sequence[Tensor]]],
    primals: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[tuple[Tensor, ...], ...]:
    """Blocks of a Jacobian by output and input, from its columns: the tangents of the outputs for
    each coordinate of each input."""
    return tuple(
        tuple(
            _stacked(
                [column[place] for column in columns[k]],
                primal.shape,
                output.shape,
                output,
                last=True,
            )
            for k, primal in enumerate(primals)
        )
        for place, output in enumerate(outputs)
    )
