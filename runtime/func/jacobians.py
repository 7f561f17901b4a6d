"""Compute Jacobians: ``jacrev``, ``jacfwd`` and ``hessian``.

Each is a vmap over a basis: ``jacrev`` maps the pullback over one-hot cotangents, one per element
of the output. ``jacfwd`` maps the pushforward over one-hot tangents, one per element of the input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch

from . import trees
from .grad import normalize_argnums, vjp
from .jvp import jvp
from .outside_writes import OutsideWrites
from .vmap import vmap


def _basis(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return a one-hot tensor for every element of all ``tensors`` together, split by tensor: one
    of shape (total elements, *shape) for each."""
    sizes = [tensor.numel() for tensor in tensors]
    total = sum(sizes)
    if len(tensors) == 1:
        tensor = tensors[0]
        one_hot = tensor.new_ones(total).diag_embed()
        if tensor.dim() == 1:
            return [one_hot]
        return [one_hot.view(total, *tensor.shape)]
    # for each tensor, the rows from `start` on hold an identity matrix of its elements
    out, start = [], 0
    for tensor, size in zip(tensors, sizes, strict=True):
        if type(start) is int:
            one_hot = tensor.new_zeros(total, size)
            one_hot.diagonal(-start).fill_(1)
        else:  # a symbol, which `diagonal` would take for its present value
            rows = torch.arange(total, device=tensor.device).unsqueeze(1) - start
            one_hot = (rows == torch.arange(size, device=tensor.device)).to(tensor.dtype)
        out.append(one_hot.view(total, *tensor.shape))
        start += size
    return out


def _parts(tensor: torch.Tensor, sizes: list[int]) -> Sequence[torch.Tensor]:
    """Return ``tensor`` in pieces of these ``sizes`` along its first dimension."""
    if len(sizes) == 1:
        return (tensor,)
    parts: Sequence[torch.Tensor] = tensor.split(sizes)
    return parts


def _require_real(what: str, which: str, flat: list[object]) -> None:
    """Raise for a complex tensor. Its derivative is linear over the reals only, so its Jacobian has
    more than one meaning."""
    for index, tensor in enumerate(flat):
        if isinstance(tensor, torch.Tensor) and tensor.is_complex():
            raise RuntimeError(
                f"{what}: Expected all {which} to be real but received complex tensor at "
                f"flattened input idx: {index}"
            )


def _select(
    func: Callable[..., object], args: tuple[object, ...], argnums: int | tuple[int, ...]
) -> tuple[Callable[..., Any], Any]:
    """Return ``func`` as a function of the selected arguments alone, and these arguments."""
    which = normalize_argnums(argnums, len(args))
    each = which if isinstance(which, tuple) else (which,)

    def partial(*chosen: object) -> Any:
        full = list(args)
        for index, argument in zip(each, chosen, strict=True):
            full[index] = argument
        return func(*full)

    return partial, tuple(args[index] for index in each)


def jacrev(
    func: Callable[..., object],
    argnums: int | tuple[int, ...] = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    _preallocate_and_copy: bool = False,
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian of ``func``, one row per element of the output.
    As ``torch.func.jacrev``.

    >>> jacrev(lambda x: x * x)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])

    An output of shape T and an argument of shape S give a block of shape (*T, *S). Blocks are
    nested first as the outputs, then as the arguments. ``argnums``: as for
    :func:`~runtime.func.grad`. ``chunk_size``: rows computed at a time. None computes all in one
    vmap; 1 is a loop without vmap, for functions that vmap cannot run. ``RuntimeError`` for complex
    inputs or outputs, whose Jacobian is ambiguous."""
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size > 0):
        raise ValueError("jacrev: `chunk_size` should be greater than 0.")

    @wraps(func)
    def transformed(*args: object, **kwargs: object) -> Any:
        """Return the Jacobian at ``args``, with aux if ``has_aux``."""
        of_chosen, chosen = _select(lambda *a: func(*a, **kwargs), args, argnums)
        _require_real("jacrev", "inputs", trees.flatten(chosen)[0])
        outputs, pullback, *aux = vjp(of_chosen, *chosen, has_aux=has_aux)
        flat, spec = trees.flatten(outputs)
        _require_real("jacrev", "outputs", flat)

        def pull(*cotangents: object) -> Any:
            return pullback(trees.unflatten(list(cotangents), spec))

        # one vmap for the elements of all outputs, whose rows are then divided among the outputs
        rows = _rows(pull, flat, chunk_size)
        result = _blocks_by_output(rows, flat, spec, isinstance(argnums, tuple))
        if has_aux:
            return result, aux[0]
        return result

    return transformed


def _rows(pull: Callable[..., object], outs: list[torch.Tensor], chunk_size: int | None) -> Any:
    """Return the pullback of every one-hot cotangent of all outputs together. A single one needs no
    batch, which would cost each call of the pass a level and often a view."""
    if len(outs) == 1 and _has_one_element(outs[0]):
        leaves, spec = trees.flatten(pull(outs[0].new_ones(outs[0].shape)))
        return trees.unflatten([tensor.unsqueeze(0) for tensor in leaves], spec)
    if chunk_size == 1:
        return _loop(pull)(*_basis(outs))
    return vmap(pull, chunk_size=chunk_size)(*_basis(outs))


def _has_one_element(tensor: torch.Tensor) -> bool:
    """Return whether ``tensor`` has one element. A symbolic size is not compared: the answer would
    become a condition of the graph."""
    count = tensor.numel()
    return type(count) is int and count == 1


def _loop(pull: Callable[..., object]) -> Callable[..., object]:
    """Return a function with the results of ``vmap(pull)``, computed one row at a time."""

    def rows(*basis: torch.Tensor) -> Any:
        """Pull each one-hot cotangent back, and stack the results."""
        if not len(basis[0]):
            # there is no row from which the structure of the result could be seen
            return vmap(pull)(*basis)
        pulled = [trees.flatten(pull(*cotangents)) for cotangents in zip(*basis, strict=True)]
        each, specs = zip(*pulled, strict=True)
        columns = list(map(torch.stack, zip(*each, strict=True)))
        return trees.unflatten(columns, specs[0])

    return rows


def _blocks_by_output(
    rows: trees.Tree, outs: list[torch.Tensor], spec: trees.Spec, many: bool
) -> trees.Tree:
    """Return a block of shape (*output shape, *input shape) for each output and input.

    ``rows``: per input, the rows of all outputs together. ``many``: whether ``argnums`` is a tuple.
    """
    flat, in_spec = trees.flatten(rows)
    sizes = [output.numel() for output in outs]
    split = [_parts(columns, sizes) for columns in flat]
    per_output = []
    for index, output in enumerate(outs):
        blocks = [parts[index].reshape((*output.shape, *parts[index].shape[1:])) for parts in split]
        tree = trees.unflatten(blocks, in_spec)
        per_output.append(tree if many else tree[0])
    return trees.unflatten(per_output, spec)


def jacfwd(
    func: Callable[..., object],
    argnums: int | tuple[int, ...] = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that returns the Jacobian of ``func``, one column per element of the input.
    As ``torch.func.jacfwd``.

    >>> jacfwd(lambda x: x.sum() * x)(torch.tensor([1.0, 2.0]))
    tensor([[4., 1.],
            [2., 5.]])

    Shapes, ``argnums`` and errors are those of :func:`jacrev`. It costs less than :func:`jacrev` if
    outputs are larger than inputs. ``randomness`` and ``chunk_size``: as for
    :func:`~runtime.func.vmap`, which runs over the columns. ``func`` runs once for each chunk,
    and each run finds the tensors that it writes to as the first one did.
    """

    @wraps(func)
    def transformed(*args: object, **kwargs: object) -> object:
        """Return the Jacobian at ``args``, with aux if ``has_aux``."""
        of_chosen, chosen = _select(lambda *a: func(*a, **kwargs), args, argnums)
        flat, spec = trees.flatten(chosen)
        _require_real("jacfwd", "inputs", flat)

        aux_spec: trees.Spec = None
        writes = None
        run = of_chosen
        if chunk_size is not None:
            # each chunk runs `func` again, and its writes to outer tensors would add up
            writes = OutsideWrites()
            run = writes.noting(of_chosen)

        def push(*tangents: object) -> Any:
            """Return the tangents of the outputs along one basis tangent, the outputs, and aux."""
            nonlocal aux_spec
            if writes is not None:
                writes.undo("jacfwd with a chunk_size")  # those of the chunk before
            outputs, out_t, *aux = jvp(
                run, chosen, trees.unflatten(list(tangents), spec), has_aux=has_aux
            )
            leaves, aux_spec = trees.flatten(aux)
            return out_t, outputs, leaves

        # Outputs and aux do not depend on the batch of tangents, so the first element is right.
        columns, _, aux_tensors = vmap(push, randomness=randomness, chunk_size=chunk_size)(
            *_basis(flat)
        )
        flat_columns, out_spec = trees.flatten(columns)
        _require_real("jacfwd", "outputs", flat_columns)
        # the batch of tangents is dimension 0 of each column, and becomes the input's dimensions
        sizes = [value.numel() for value in flat]
        per_output = []
        for column in flat_columns:
            blocks = [
                part.movedim(0, -1).reshape((*column.shape[1:], *x.shape))
                for part, x in zip(_parts(column, sizes), flat, strict=True)
            ]
            tree = trees.unflatten(blocks, spec)
            per_output.append(tree if isinstance(argnums, tuple) else tree[0])
        result = trees.unflatten(per_output, out_spec)
        if not has_aux:
            return result
        return result, trees.unflatten([tensor[0] for tensor in aux_tensors], aux_spec)[0]

    return transformed


def hessian(func: Callable[..., object], argnums: int | tuple[int, ...] = 0) -> Callable[..., Any]:
    """Return a function that returns the second derivatives of ``func``, by forward over reverse
    mode. As ``torch.func.hessian``.

    >>> hessian(lambda x: x.prod())(torch.tensor([2.0, 3.0]))
    tensor([[0., 1.],
            [1., 0.]])

    Arguments of shapes S and R give a block of shape (*T, *S, *R) for an output of shape T.
    ``argnums`` and errors: as for :func:`jacrev`."""
    return jacfwd(jacrev(func, argnums), argnums)
