"""Run a function on a batch: ``vmap``, with its in_dims, out_dims and chunks.

This module finds the batch dimension of each argument and puts it back into each output. The level
in ``batch.py`` runs the function between the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..errors import NestedTensor
from ..seam.call_types import Keywords
from ..seam.escapes import living
from ..seam.generator_states import GeneratorStates
from ..seam.level_mode import entered
from ..seam.levels import Value
from ..tape.foreign import pass_mark_on
from . import draws, trees
from .batch import BatchLevel, EmptyBatch


def vmap(
    func: Callable[..., object],
    in_dims: trees.Tree = 0,
    out_dims: trees.Tree = 0,
    randomness: str = "error",
    *,
    chunk_size: int | None = None,
) -> Callable[..., Any]:
    """Return a function that runs ``func`` on all elements of a batch at once, as
    ``torch.func.vmap``.

    >>> vmap(torch.dot)(torch.ones(3, 2), torch.ones(3, 2))
    tensor([2., 2., 2.])

    ``in_dims``: the batch dimension of each argument, an int for all of them or a pytree of ints.
    None: every element gets the same tensor. ``out_dims``: the batch dimension of each output.
    None: an output that does not depend on the element is returned as it is. ``randomness``:
    ``"error"``, ``"same"`` (one draw for all elements) or ``"different"``. ``chunk_size``: elements
    at a time; None: all.

    If an argument has shape (B, *S) and ``in_dims=0``, ``func`` sees the shape S. An output of
    shape T is returned as (B, *T). ``ValueError`` for dims that fit no argument or output and for
    batches of different sizes. ``RuntimeError`` for draws under ``"error"``, and where ``func``
    needs the value of an element (``if``, ``.item()``). If an element alone would raise an error,
    vmap raises that error.
    """
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    return _map(func, in_dims, out_dims, randomness, lambda size: chunk_size)


def chunk_vmap(
    func: Callable[..., object],
    in_dims: trees.Tree = 0,
    out_dims: trees.Tree = 0,
    randomness: str = "error",
    chunks: int = 2,
) -> Callable[..., Any]:
    """Return ``vmap`` of ``func`` over the batch in ``chunks`` parts, one after the other. As
    ``functorch.experimental.chunk_vmap``.

    All parts have the same size, but the last one may be smaller: 5 elements in 2 chunks are 3 and
    2.
    """
    if not (isinstance(chunks, int) and chunks > 0):
        raise ValueError(f"chunk_vmap: chunks should be a number greater than 0, got {chunks!r}")
    return _map(func, in_dims, out_dims, randomness, lambda size: -(-size // chunks))


def _map(
    func: Callable[..., object],
    in_dims: trees.Tree,
    out_dims: trees.Tree,
    randomness: str,
    piece_of: Callable[[int], int | None],
) -> Callable[..., Any]:
    """Return ``vmap`` of ``func``, of ``piece_of(batch size)`` elements at a time. None: all at
    once."""
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(
            "Only allowed values for randomness are 'error', 'different', "
            f"or 'same'. Got {randomness}"
        )
    mapping = MappedFunction(func, in_dims, out_dims, randomness)

    @wraps(func)
    def mapped(*args: object, **kwargs: object) -> object:
        """Run ``func`` on the batch, in pieces if the batch is larger than one."""
        leaves, dims, spec, size = mapping.inputs(args)
        piece = piece_of(size)
        if piece is not None and piece < size:
            return mapping.in_pieces(leaves, dims, spec, size, piece, kwargs)
        return mapping.run(leaves, dims, spec, size, kwargs)

    return mapped


def _batch_along(level: BatchLevel | EmptyBatch, x: torch.Tensor, dim: int | None) -> object:
    """Return ``x`` as a batch along ``dim``, which becomes the first dimension. None: as it is."""
    if dim is None:
        return x
    if dim:
        x = x.movedim(dim, 0)
    return level.wrap(x)


def _join(pieces: tuple[torch.Tensor, ...], dim: int | None) -> Any:
    """Return an output from its pieces along ``dim``. None: it is the same for all elements."""
    if dim is None:
        return pieces[0]
    return torch.cat(pieces, dim=dim)


class MappedFunction:
    """A function with its ``in_dims``, ``out_dims`` and ``randomness``.

    The methods take ``leaves``, ``dims`` and ``spec``: the leaves of the arguments, the batch
    dimension of each (or None), and their structure.
    """

    __slots__ = ("func", "in_dims", "out_dims", "randomness")

    def __init__(
        self,
        func: Callable[..., object],
        in_dims: trees.Tree,
        out_dims: trees.Tree,
        randomness: str,
    ) -> None:
        self.func = func
        self.in_dims = in_dims
        self.out_dims = out_dims
        self.randomness = randomness

    @property
    def name(self) -> str:
        """Return the name of the function, for messages."""
        return getattr(self.func, "__name__", None) or repr(self.func)

    def inputs(
        self, args: tuple[object, ...]
    ) -> tuple[list[Any], list[int | None], trees.Spec, int]:
        """Return the leaves of the arguments, their batch dimensions, their structure, and the size
        of the batch."""
        if not isinstance(self.in_dims, (int, tuple)):
            raise ValueError(
                f"{self._call()}: expected `in_dims` to be int or a (potentially nested) tuple "
                f"matching the structure of inputs, got: {type(self.in_dims)}."
            )
        if not args:
            raise ValueError(
                f"vmap({self.name})(<inputs>): got no inputs. There is no dimension to map over; "
                "call a function without inputs in a loop."
            )
        # an entry of in_dims for each leaf
        leaves, spec = trees.flatten(args)
        dims = trees.spread(self.in_dims, leaves, spec)
        if dims is None:
            raise ValueError(
                f"{self._call()}: in_dims is not compatible with the structure of `inputs`. "
                f"Theirs is {trees.torch_spec(spec)}, "
                f"that of in_dims {trees.structure(self.in_dims)}."
            )
        # the size of each mapped dimension; all must be equal
        sizes = []
        for index, (value, dim) in enumerate(zip(leaves, dims, strict=True)):
            if dim is not None:
                dims[index] = self._dim(value, dim)
                sizes.append(value.shape[dims[index]])
        if not sizes:
            raise ValueError(
                f"{self._call()}: at least one input must be vmapped over: all of in_dims are None."
            )
        if sizes.count(sizes[0]) != len(sizes):
            raise ValueError(
                "vmap: Expected all tensors to have the same size in the mapped dimension, "
                f"got sizes {sizes} for the mapped dimension"
            )
        return leaves, dims, spec, sizes[0]

    def _call(self) -> str:
        return f"vmap({self.name}, in_dims={self.in_dims}, ...)(<inputs>)"

    def _dim(self, value: object, in_dim: object) -> int:
        """Return the batch dimension of the leaf ``value`` for its ``in_dim``. Raise if it does
        not fit."""
        if not isinstance(in_dim, int):
            raise ValueError(
                f"{self._call()}: Got in_dim={in_dim} for an input but in_dim must be either "
                "an integer dimension or None."
            )
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"{self._call()}: Got in_dim={in_dim} for an input but the input is of type "
                f"{type(value)}. "
                "With in_dim=None every element of the batch gets the same one."
            )
        if value.is_nested:
            raise NestedTensor
        if not -value.dim() <= in_dim < value.dim():
            raise ValueError(
                f"{self._call()}: Got in_dim={in_dim} for some input, "
                f"but that input is a Tensor of dimensionality {value.dim()} so expected in_dim "
                f"to satisfy -{value.dim()} <= in_dim < {value.dim()}."
            )
        return in_dim % value.dim()

    def run(
        self,
        leaves: list[Any],
        dims: list[int | None],
        spec: trees.Spec,
        size: int,
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the function on the whole batch."""
        level = self.level(size)
        try:
            # in a program that is captured, the values that stand there for outer tensors
            entering = [
                value if dim is None else entered(value)
                for value, dim in zip(leaves, dims, strict=True)
            ]
            inputs = [_batch_along(level, x, dim) for x, dim in zip(entering, dims, strict=True)]
            args = trees.unflatten(inputs, spec)
            # ops that draw without a batched argument never reach the level
            with draws.Randomness(level):
                outputs = living(self.func(*args, **kwargs))
            return self._outputs(level, outputs)
        finally:
            level.close()

    def level(self, size: int) -> BatchLevel:
        """Return the level of one run. ``per_sample_grads`` has a level of its own."""
        if not size:
            return EmptyBatch(size, self.randomness)
        return BatchLevel(size, self.randomness)

    def in_pieces(
        self,
        leaves: list[Any],
        dims: list[int | None],
        spec: trees.Spec,
        size: int,
        piece: int,
        kwargs: Keywords,
    ) -> Any:
        """Run the function on ``piece`` elements at a time."""
        parts = []
        # each piece draws from the same state, so that its elements draw as those of the others
        states = GeneratorStates() if self.randomness == "same" else None
        for start in range(0, size, piece):
            if states is not None:
                states.restore()
            count = min(piece, size - start)
            part = [
                value if dim is None else value.narrow(dim, start, count)
                for value, dim in zip(leaves, dims, strict=True)
            ]
            parts.append(self.run(part, dims, spec, count, kwargs))
        outputs, specs = zip(*map(trees.flatten, parts), strict=True)
        # each output of the pieces is joined where its batch is; an `out_dims` that fits no output
        # was refused in `run`, so there is always an answer
        where = self._out_dims(outputs[0], specs[0])
        pieces = zip(*outputs, strict=True)
        joined = [_join(outs, dim) for outs, dim in zip(pieces, where or (), strict=True)]
        return trees.unflatten(joined, specs[0])

    def _out_dims(self, flat: list[object], spec: trees.Spec) -> list[Any] | None:
        """Return an entry of ``out_dims`` for every output. ``(1,)`` fits one tensor as well as a
        tuple of one."""
        is_one_tensor = spec is None and isinstance(flat[0], torch.Tensor)
        if is_one_tensor and type(self.out_dims) is tuple and len(self.out_dims) == 1:
            return list(self.out_dims)
        return trees.spread(self.out_dims, flat, spec)

    def _outputs(self, level: BatchLevel, outs: trees.Tree) -> trees.Tree:
        """Return the outputs, with the batch dimension where ``out_dims`` asks for it."""
        flat, spec = trees.flatten(outs)
        dims = self._out_dims(flat, spec)
        if dims is None:
            raise ValueError(
                f"vmap({self.name}, ..., out_dims={self.out_dims})(<inputs>): "
                "out_dims is not compatible with the structure of `outputs`. Theirs "
                f"is {trees.torch_spec(spec)}, that of out_dims {trees.structure(self.out_dims)}."
            )
        wrong = [dim for dim in dims if dim is not None and not isinstance(dim, int)]
        if wrong:
            raise ValueError(
                f"vmap({self.name}, ..., out_dims={self.out_dims}): `out_dims` must be an int, "
                "None or a collection of these with the structure of the outputs: "
                "the dimension at which each output gets its batch."
            )
        results = [self._output(level, output, dim) for output, dim in zip(flat, dims, strict=True)]
        pass_mark_on(flat, tuple(results))
        return trees.unflatten(results, spec)

    def _output(self, level: BatchLevel, output: object, out_dim: int | None) -> Any:
        """Return one output with the batch at dimension ``out_dim``. None: as it is. Raise if
        that does not fit it."""
        mine = isinstance(output, Value) and output._level is level
        if out_dim is None:
            if mine:
                raise ValueError(
                    f"vmap({self.name}, ...): "
                    f"`{self.name}` can not return a BatchedTensor when out_dim is None"
                )
            return output
        if not isinstance(output, torch.Tensor):
            raise ValueError(
                f"vmap({self.name}, ...): `{self.name}` must only return Tensors, "
                f"got type {type(output)}. With None as its out_dim it is returned as it is."
            )
        if mine:
            inner = level.lowered(output)
        else:
            # the output depends on no batched argument, so all elements have the same one
            inner = output.unsqueeze(0).expand(level.size, *output.shape)
        if not -inner.dim() <= out_dim < inner.dim():
            raise IndexError(
                f"vmap: out_dim {out_dim} is out of range for an output with {inner.dim()} "
                "dimensions, batch included"
            )
        if not out_dim:
            return inner
        return inner.movedim(0, int(out_dim))
