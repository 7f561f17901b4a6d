"""Run vmap as a loop over the batch, and derivatives by torch's plain autograd engine, one vector
at a time.

Nothing here uses torch.func. :mod:`gen.reference.plain_engine` differentiates. Blocks of a Jacobian
are stacked from its rows or columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, product
from typing import Any

import torch

from gen.reference.plain_engine import Engine, Flat, Push

Tensor = torch.Tensor


class Loop:
    """Implement every stage in the plainest way.

    See :class:`gen.targets.protocol.Target` for shapes and conventions. It nests in itself to any
    depth.
    """

    name = "loop"
    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self._engine = Engine()

    def jit(self, f: Callable[..., object], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Return `f`. A call of it takes the memory of the tensors in the lists at `donate`."""
        if not donate:
            return f

        def g(*args: Any) -> Any:
            results = f(*args)
            # A target takes the memory of a donated tensor, and leaves it empty.
            for place in donate:
                for x in args[place]:
                    x.data = x.new_empty(0)
            return results

        return g

    def training(
        self,
        train: Callable[[Sequence[Tensor]], tuple[Tensor, ...]],
        parameters: Sequence[Tensor],
        *,
        session: bool,
    ) -> Any:
        """Run the steps on parameters that are copies."""
        with self._engine.recording():
            return train([torch.nn.Parameter(parameter.clone()) for parameter in parameters])

    # --- derivatives ------------------------------------------------------------------------------

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        """Return the outputs, and the function from cotangents to gradients."""
        leaves, outputs = self._engine.record(f, primals)

        def pullback(cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return self._engine.gradients(outputs, leaves, cotangents)

        return self._engine.release(outputs), pullback

    def backward(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        return self.vjp(f, *primals)

    def jvp(
        self, f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        outputs, push = self._engine.linearize(f, primals)
        return self._engine.release(outputs), push(tangents)

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
        """Return blocks ``[output][argument]``, row by row."""

        def g(*args: Tensor) -> tuple[tuple[Tensor, ...], ...]:
            primals = [args[place] for place in argnums]
            outputs, pullback = self.vjp(with_fixed(f, args, argnums), *primals)
            blocks = []
            for place, output in enumerate(outputs):
                rows = [pullback(one_hot(outputs, place, index)) for index in _indices(output)]
                row_of_blocks = []
                for position, primal in enumerate(primals):
                    gradients = [row[position] for row in rows]
                    row_of_blocks.append(_stack(gradients, output.shape, primal.shape, primal))
                blocks.append(tuple(row_of_blocks))
            return tuple(blocks)

        return g

    def jacfwd(
        self, f: Flat, argnums: Sequence[int]
    ) -> Callable[..., tuple[tuple[Tensor, ...], ...]]:
        """Return blocks ``[output][argument]``, column by column."""

        def g(*args: Tensor) -> tuple[tuple[Tensor, ...], ...]:
            primals = [args[place] for place in argnums]
            outputs, push = self._engine.linearize(with_fixed(f, args, argnums), primals)
            columns = []
            for position, primal in enumerate(primals):
                tangents = (one_hot(primals, position, index) for index in _indices(primal))
                columns.append(list(map(push, tangents)))
            return jacobian_blocks(columns, primals, outputs)

        return g

    def hessian(self, f: Flat, argnums: Sequence[int]) -> Callable[..., Any]:
        """Return blocks ``[output][argument][argument]``: forward over reverse mode."""

        def g(*args: Tensor) -> Any:
            count = len(argnums)
            # jacfwd returns flat blocks, so the inner call notes the number of outputs.
            outputs_count = 0

            def first(*xs: Tensor) -> tuple[Tensor, ...]:
                nonlocal outputs_count
                rows = self.jacrev(f, argnums)(*xs)
                outputs_count = len(rows)
                return tuple(chain.from_iterable(rows))

            flat = self.jacfwd(first, argnums)(*args)
            # `count` outputs of the inner Jacobian belong to each output of `f`.
            return tuple(
                flat[place * count : (place + 1) * count] for place in range(outputs_count)
            )

        return g

    # --- other transforms -------------------------------------------------------------------------

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        """Return a loop over the batch.

        Each entry is a new contiguous tensor, without a trace of the batch in its layout. An output
        whose dimension is None is the same for every entry.
        """

        def g(*args: Tensor) -> tuple[Tensor, ...]:
            pairs = list(zip(args, in_dims, strict=True))
            size = next(arg.shape[dim] for arg, dim in pairs if dim is not None)
            rows = []
            for index in range(size):
                entries = [_entry(arg, dim, index) for arg, dim in pairs]
                rows.append(f(*entries))
            columns = list(zip(*rows, strict=True))
            dims = out_dims
            if isinstance(dims, int):
                dims = (dims,) * len(columns)
            return tuple(_batch(column, dim) for column, dim in zip(columns, dims, strict=True))

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
        """Return outputs of `f`, and gradients of those at `kept`."""
        wanted = [place for place, value in enumerate(args) if value.requires_grad]
        primals = [args[place].detach() for place in wanted]
        leaves, outputs = self._engine.record(with_fixed(f, args, wanted), primals)
        kept_outputs = [outputs[place] for place in kept]
        gradients = self._engine.gradients(kept_outputs, leaves, cotangents)
        return self._engine.release(outputs), gradients

    def functional(
        self, name: str, f: Flat, args: Sequence[Tensor], along: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return the results of the function of ``torch.autograd.functional`` of this name.

        They are a flat tuple.
        """
        everywhere = tuple(range(len(args)))
        if name == "vjp":
            outputs, pullback = self.vjp(f, *args)
            return (*outputs, *pullback(tuple(along)))
        if name == "jvp":
            outputs, pushed = self.jvp(f, args, along)
            return (*outputs, *pushed)
        if name == "jacobian":
            return tuple(chain.from_iterable(self.jacrev(f, everywhere)(*args)))
        if name == "hessian":
            return tuple(chain.from_iterable(self.hessian(f, everywhere)(*args)[0]))
        gradient = self.grad(lambda *xs: f(*xs)[0])
        if name == "vhp":
            product = self.vjp(gradient, *args)[1](tuple(along))
        else:
            product = self.jvp(gradient, args, along)[1]
        return (*f(*args), *product)

    def joint(
        self, f: Flat, args: Sequence[Tensor], *, partition: str, dynamic: bool
    ) -> Callable[..., Any]:
        """Return a function from values and cotangents to outputs and gradients."""

        def g(
            values: Sequence[Tensor], cotangents: Sequence[Tensor]
        ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            wanted = [place for place, value in enumerate(values) if value.requires_grad]
            primals = [values[place].detach() for place in wanted]
            outputs, pullback = self.vjp(with_fixed(f, values, wanted), *primals)
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
        """Return the gradients of each entry of the batch, by a loop over the entries."""

        def loss(entry: Tensor, *params: Tensor) -> Tensor:
            total: Tensor = sum_of_squares(f(entry.unsqueeze(0), *params))
            return total

        def gradients(entry: Tensor) -> tuple[Tensor, ...]:
            if not input_grad:
                return self.grad(lambda *params: loss(entry, *params))(*params)
            # The gradient of the sample has to come last, so the sample is the last argument here.
            return self.grad(lambda *inputs: loss(inputs[-1], *inputs[:-1]))(*params, entry)

        rows = list(map(gradients, batch))
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    def per_sample_answer(
        self, f: Flat, batch: Tensor, params: Sequence[Tensor], *, of: str, given: Any, each: bool
    ) -> tuple[Tensor, ...]:
        """Answer a question about per-sample gradients from the gradients themselves."""

        def gradients(batch: Tensor) -> tuple[Tensor, ...]:
            return self.per_sample(f, batch, params, loss_reduction="sum", input_grad=False)

        def as_rows(gradients: Sequence[Tensor]) -> Tensor:
            return torch.cat([gradient.reshape(len(gradient), -1) for gradient in gradients], 1)

        dense = gradients(batch)
        flat = as_rows(dense)
        norms = flat.norm(dim=1)
        if of == "norms":
            return (norms,)
        if of == "clipped_sum":
            factors = torch.where(norms > given, given / norms, torch.ones_like(norms))
            return tuple(
                (gradient * factors.view(-1, *[1] * (gradient.ndim - 1))).sum(0)
                for gradient in dense
            )
        if of == "dot":
            return (flat @ torch.cat([value.flatten() for value in given]),)
        if of == "gram":
            return (flat @ as_rows(gradients(given)).mT,)
        # The matrix of this projection is a part of the identity, so it only appends zeros.
        if of == "project":
            return (torch.nn.functional.pad(flat, (0, given - flat.shape[1])),)
        raise ValueError(f"no question {of!r}; known: norms, clipped_sum, dot, gram, project")

    # --- for checks -------------------------------------------------------------------------------

    def observe(
        self, f: Flat, inputs: Sequence[Tensor], differentiable: Sequence[bool]
    ) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
        """Return outputs of `f`, and a flag for each of them.

        The flag says whether the output depends differentiably on the differentiable inputs.
        """
        leaves = []
        for x, flag in zip(inputs, differentiable, strict=True):
            leaves.append(x.detach())
            if flag:
                leaves[-1].requires_grad_()
        with self._engine.recording():
            outputs = f(*leaves)
        depends = tuple(output.requires_grad for output in outputs)
        return tuple(output.detach() for output in outputs), depends


def sum_of_squares(outputs: Sequence[Tensor]) -> Any:
    """Return the real scalar that ``grad`` and ``per_sample`` differentiate.

    It is the sum of |output|² over floating and complex outputs.
    """
    total: Any = None
    for output in outputs:
        if output.is_complex():
            term = (output * output.conj()).real.sum()
        elif output.is_floating_point():
            term = (output * output).sum()
        else:
            continue
        if total is not None:
            term = total + term
        total = term
    return total


def with_fixed(f: Flat, args: Sequence[Tensor], argnums: Sequence[int]) -> Flat:
    """Return `f` as a function of the arguments `argnums`. The others are fixed."""

    def g(*some: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for place, value in zip(argnums, some, strict=True):
            full[place] = value
        return f(*full)

    return g


def _entry(arg: Tensor, dim: int | None, index: int) -> Tensor:
    """Return an entry of an argument, or all of one that has no batch."""
    if dim is None:
        return arg
    return arg.select(dim, index).clone(memory_format=torch.contiguous_format)


def _batch(entries: Sequence[Tensor], dim: int | None) -> Tensor:
    """Return one output for all entries. Without a dimension it is the same for each."""
    if dim is None:
        return entries[0]
    return torch.stack(list(entries), dim)


def _indices(x: Tensor) -> Iterator[tuple[int, ...]]:
    return product(*map(range, x.shape))


def one_hot(like: Sequence[Tensor], place: int, index: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Return zeros in the shapes of `like`, with a 1 at one index of the tensor at `place`."""
    basis = tuple(torch.zeros_like(x, memory_format=torch.contiguous_format).detach() for x in like)
    basis[place][index] = 1
    return basis


def _stack(
    rows: Sequence[Tensor], outer: torch.Size, inner: torch.Size, like: Tensor, last: bool = False
) -> Tensor:
    """Return rows stacked to the shape ``outer + inner``, or with `last` to ``inner + outer``."""
    shape, dim = (*outer, *inner), 0
    if last:
        shape, dim = (*inner, *outer), -1
    # An empty output has no rows, and torch.stack refuses an empty list.
    if not rows:
        return like.new_zeros(shape)
    return torch.stack(list(rows), dim=dim).reshape(shape)


def jacobian_blocks(
    columns: Sequence[Sequence[Sequence[Tensor]]],
    primals: Sequence[Tensor],
    outputs: Sequence[Tensor],
) -> tuple[tuple[Tensor, ...], ...]:
    """Return blocks of a Jacobian by output and input, from its columns.

    A column has the tangents of the outputs for one coordinate of an input.
    """
    blocks = []
    for place, output in enumerate(outputs):
        row = []
        for index, primal in enumerate(primals):
            tangents = [column[place] for column in columns[index]]
            row.append(_stack(tangents, primal.shape, output.shape, output, last=True))
        blocks.append(tuple(row))
    return tuple(blocks)
