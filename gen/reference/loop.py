"""Run vmap as a loop over the batch, and derivatives by torch's plain autograd engine, one vector
at a time.

Nothing here uses torch.func. Tangents come from the reverse engine: it transposes the derivative
twice. So they share no formula with forward-mode rules. forward_ad is used only if an op cannot be
differentiated twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, product
from typing import Any, cast

import torch
from torch.autograd import forward_ad

Tensor = torch.Tensor
Flat = Callable[..., tuple[Tensor, ...]]
Push = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


class Loop:
    """Implement every stage in the plainest way.

    See :class:`gen.targets.protocol.Target` for shapes and conventions. It nests in itself to any
    depth.
    """

    name = "loop"
    lacks: frozenset[str] = frozenset()

    def __init__(self) -> None:
        # how many derivatives are running; inside one, results must stay differentiable
        self._depth = 0

    def jit(self, f: Callable[..., object], *, donate: tuple[int, ...] = ()) -> Callable[..., Any]:
        """Return `f`. A call of it takes the memory of the tensors in the lists at `donate`."""
        if not donate:
            return f

        def g(*args: Any) -> Any:
            results = f(*args)
            # what a target does with the memory of a donated tensor
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
        with self._inside():
            return train([torch.nn.Parameter(parameter.clone()) for parameter in parameters])

    # --- derivatives ------------------------------------------------------------------------------

    def forward(self, f: Flat) -> Flat:
        return f

    def vjp(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        """Return the outputs, and the function from cotangents to gradients."""
        xs, outputs = self._record(f, primals)

        def pullback(cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            return self._gradients(outputs, xs, cotangents)

        return self._release(outputs), pullback

    def backward(
        self, f: Flat, *primals: Tensor
    ) -> tuple[tuple[Tensor, ...], Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]]]:
        return self.vjp(f, *primals)

    def jvp(
        self, f: Flat, primals: Sequence[Tensor], tangents: Sequence[Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        outputs, push = self._linearize(f, primals)
        return self._release(outputs), push(tangents)

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
            outputs, pullback = self.vjp(_of(f, args, argnums), *[args[n] for n in argnums])
            blocks = []
            for place, output in enumerate(outputs):
                rows = [pullback(_one_hot(outputs, place, index)) for index in _indices(output)]
                row_of_blocks = []
                for k, n in enumerate(argnums):
                    gradients = [row[k] for row in rows]
                    row_of_blocks.append(_stack(gradients, output.shape, args[n].shape, args[n]))
                blocks.append(tuple(row_of_blocks))
            return tuple(blocks)

        return g

    def jacfwd(
        self, f: Flat, argnums: Sequence[int]
    ) -> Callable[..., tuple[tuple[Tensor, ...], ...]]:
        """Return blocks ``[output][argument]``, column by column."""

        def g(*args: Tensor) -> tuple[tuple[Tensor, ...], ...]:
            primals = [args[n] for n in argnums]
            outputs, push = self._linearize(_of(f, args, argnums), primals)
            columns = []
            for k, primal in enumerate(primals):
                tangents = (_one_hot(primals, k, index) for index in _indices(primal))
                columns.append(list(map(push, tangents)))
            return _blocks(columns, primals, outputs)

        return g

    def hessian(self, f: Flat, argnums: Sequence[int]) -> Callable[..., Any]:
        """Return blocks ``[output][argument][argument]``: forward over reverse mode."""

        def g(*args: Tensor) -> Any:
            count = len(argnums)
            # jacfwd returns blocks without their structure, so the inner call tells the number of
            # outputs.
            outputs_count = 0

            def first(*xs: Tensor) -> tuple[Tensor, ...]:
                nonlocal outputs_count
                rows = self.jacrev(f, argnums)(*xs)
                outputs_count = len(rows)
                return tuple(chain.from_iterable(rows))

            flat = self.jacfwd(first, argnums)(*args)
            return tuple(
                flat[place * count : (place + 1) * count] for place in range(outputs_count)
            )

        return g

    # --- other transforms -------------------------------------------------------------------------

    def vmap(
        self, f: Flat, in_dims: tuple[int | None, ...], out_dims: int | tuple[int | None, ...] = 0
    ) -> Flat:
        """Return a loop over the batch. Each entry is a new contiguous tensor, without a trace of
        the batch in its layout.

        An output whose dimension is None is the same for every entry.
        """

        def g(*args: Tensor) -> tuple[Tensor, ...]:
            pairs = list(zip(args, in_dims, strict=True))
            size = next(arg.shape[dim] for arg, dim in pairs if dim is not None)
            rows = []
            for b in range(size):
                entries = [_entry(arg, dim, b) for arg, dim in pairs]
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
        xs, outputs = self._record(_of(f, args, wanted), [args[place].detach() for place in wanted])
        return self._release(outputs), self._gradients(
            [outputs[place] for place in kept], xs, cotangents
        )

    def functional(
        self, name: str, f: Flat, args: Sequence[Tensor], along: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Return what ``torch.autograd.functional``'s function of this name returns, as a flat
        tuple.
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
        """Return the gradients of each entry of the batch, by a loop over the entries."""

        def loss(entry: Tensor, *params: Tensor) -> Tensor:
            total: Tensor = sum_of_squares(f(entry.unsqueeze(0), *params))
            return total

        def gradients(entry: Tensor) -> tuple[Tensor, ...]:
            if not input_grad:
                return self.grad(lambda *params: loss(entry, *params))(*params)
            # the gradient of the sample comes last, so it is the last argument here
            return self.grad(lambda *inputs: loss(inputs[-1], *inputs[:-1]))(*params, entry)

        rows = list(map(gradients, batch))
        return tuple(map(torch.stack, zip(*rows, strict=True)))

    def per_sample_answer(
        self, f: Flat, batch: Tensor, params: Sequence[Tensor], *, of: str, given: Any, each: bool
    ) -> tuple[Tensor, ...]:
        """Answer from the gradients themselves.

        ``project``: a part of them is the projection, by the identity matrix.
        """

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
        if of == "project":
            return (torch.nn.functional.pad(flat, (0, given - flat.shape[1])),)
        raise ValueError(f"no question {of!r}; known: norms, clipped_sum, dot, gram, project")

    # --- for checks -------------------------------------------------------------------------------

    def observe(
        self, f: Flat, inputs: Sequence[Tensor], differentiable: Sequence[bool]
    ) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
        """Return outputs of `f`, and for each whether it depends differentiably on the
        differentiable inputs.
        """
        xs = []
        for x, flag in zip(inputs, differentiable, strict=True):
            xs.append(x.detach())
            if flag:
                xs[-1].requires_grad_()
        with self._inside():
            outputs = f(*xs)
        depends = tuple(output.requires_grad for output in outputs)
        return tuple(output.detach() for output in outputs), depends

    # --- inside -----------------------------------------------------------------------------------

    @contextmanager
    def _inside(self) -> Iterator[None]:
        """Record what is computed inside, for a derivative that is running."""
        self._depth += 1
        try:
            with torch.enable_grad():
                yield
        finally:
            self._depth -= 1

    def _record(
        self, f: Flat, primals: Sequence[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """Return inputs for the engine, and `f` of them. They are connected to an outer recording
        if there is one."""
        with self._inside():
            xs = list(map(_tracked_clone, primals))
            return xs, tuple(f(*xs))

    def _release(self, outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return outputs without their history, unless an outer derivative needs it."""
        if self._depth:
            return tuple(outputs)
        return tuple(output.detach() for output in outputs)

    def _gradients(
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

    def _linearize(self, f: Flat, primals: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], Push]:
        """Return outputs of `f` and its pushforward, which uses forward_ad if the derivative cannot
        be differentiated.
        """
        xs, outputs = self._record(f, primals)
        transposed: Push | None = None

        def push(tangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            nonlocal transposed
            try:
                transposed = transposed or self._pushforward(outputs, xs)
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
        with self._inside():
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


def sum_of_squares(outputs: Sequence[Tensor]) -> Any:
    """Return the real scalar that ``grad`` and ``per_sample`` differentiate: the sum of |output|²
    over floating and complex outputs.
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
    primal, tangent = forward_ad.unpack_dual(output)
    if tangent is None:
        tangent = torch.zeros_like(primal)
    return cast(Tensor, tangent)


def _of(f: Flat, args: Sequence[Tensor], argnums: Sequence[int]) -> Flat:
    """Return `f` as a function of the arguments `argnums`. The others are fixed."""

    def g(*some: Tensor) -> tuple[Tensor, ...]:
        full = list(args)
        for place, value in zip(argnums, some, strict=True):
            full[place] = value
        return f(*full)

    return g


def _tracked_clone(x: Tensor) -> Tensor:
    """Return a copy that requires grad, as a leaf if `x` does not."""
    # A clone with a history connects this recording to the outer one.
    if x.requires_grad:
        return x.clone()
    return x.detach().clone().requires_grad_()


def _entry(arg: Tensor, dim: int | None, b: int) -> Tensor:
    """Return entry `b` of an argument, or all of one that has no batch."""
    if dim is None:
        return arg
    return arg.select(dim, b).clone(memory_format=torch.contiguous_format)


def _batch(entries: Sequence[Tensor], dim: int | None) -> Tensor:
    """Return one output for all entries. Without a dimension it is the same for each."""
    if dim is None:
        return entries[0]
    return torch.stack(list(entries), dim)


def _indices(x: Tensor) -> Iterator[tuple[int, ...]]:
    return product(*map(range, x.shape))


def _one_hot(like: Sequence[Tensor], place: int, index: tuple[int, ...]) -> tuple[Tensor, ...]:
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
    if not rows:
        return like.new_zeros(shape)
    return torch.stack(list(rows), dim=dim).reshape(shape)


def _blocks(
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
