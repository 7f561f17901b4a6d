"""``vmap``: what it takes as in_dims, gives as out_dims, and runs in chunks. The work is the level's, in ``batch.py``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from ..errors import NestedTensor
from ..seam.levels import Value
from ..tape.foreign import pass_mark_on
from . import draws, trees
from .batch import BatchLevel, EmptyBatch


def _flatten_in_dims(in_dims: Any, args: tuple[Any, ...], func: Any) -> tuple[list[Any], list[Any], Any, int]:
    name = getattr(func, "__name__", repr(func))
    if not isinstance(in_dims, (int, tuple)):
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): expected `in_dims` to be int or a (potentially nested) tuple matching the "
            f"structure of inputs, got: {type(in_dims)}."
        )
    if not args:
        raise ValueError(
            f"vmap({name})(<inputs>): got no inputs. There is no dimension to map over; call a function without inputs in a loop."
        )
    flat, spec = trees.flatten(args)
    dims = trees.spread(in_dims, flat, spec)
    if dims is None:
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): in_dims is not compatible with the structure of `inputs`. "
            f"Theirs is {trees.torch_spec(spec)}, that of in_dims {trees.structure(in_dims)}."
        )
    sizes = []
    for i, (a, d) in enumerate(zip(flat, dims, strict=True)):
        if d is None:
            continue
        if not isinstance(d, int):
            raise ValueError(
                f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={d} for an input but in_dim must be either an integer "
                "dimension or None."
            )
        if not isinstance(a, torch.Tensor):
            raise ValueError(
                f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={d} for an input but the input is of type {type(a)}. "
                "With in_dim=None every element of the batch gets the same one."
            )
        if a.is_nested:
            raise NestedTensor
        if not -a.dim() <= d < a.dim():
            raise ValueError(
                f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): Got in_dim={d} for some input, but that input is a Tensor of "
                f"dimensionality {a.dim()} so expected in_dim to satisfy -{a.dim()} <= in_dim < {a.dim()}."
            )
        dims[i] = d % a.dim()
        sizes.append(a.shape[dims[i]])
    if not sizes:
        raise ValueError(
            f"vmap({name}, in_dims={in_dims}, ...)(<inputs>): at least one input must be vmapped over: all of in_dims are None."
        )
    if any(s != sizes[0] for s in sizes):
        raise ValueError(
            f"vmap: Expected all tensors to have the same size in the mapped dimension, got sizes {sizes} for the mapped dimension"
        )
    return flat, dims, spec, sizes[0]


def vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", *, chunk_size: int | None = None
) -> Callable[..., Any]:
    """``func`` over every element of a batch at once, as ``torch.func.vmap``.

    >>> vmap(torch.dot)(torch.ones(3, 2), torch.ones(3, 2))
    tensor([2., 2., 2.])

    ``in_dims``: the batch dimension of each argument, an int for all of them or a pytree of ints; None: every element gets the same tensor.
    ``out_dims``: where each output has its batch; None: an output that does not depend on the element is returned as it is.
    ``randomness``: ``"error"``, ``"same"`` (one draw for all elements) or ``"different"``. ``chunk_size``: elements at a time; None: all.

    With an argument of shape (B, *S) and ``in_dims=0``, ``func`` sees the shape S; an output of shape T comes back as (B, *T).
    ``ValueError`` for dims that fit no argument or output and for batches of different sizes. ``RuntimeError`` for draws under ``"error"``,
    and where ``func`` needs the value of an element (``if``, ``.item()``). What an element refuses raises as it does alone.
    """
    if chunk_size is not None and not (isinstance(chunk_size, int) and chunk_size > 0):
        raise ValueError(f"vmap: chunk_size should be None or greater than 0. (got {chunk_size})")

    return _in_pieces(func, in_dims, out_dims, randomness, lambda size: chunk_size)


def chunk_vmap(
    func: Callable[..., Any], in_dims: Any = 0, out_dims: Any = 0, randomness: str = "error", chunks: int = 2
) -> Callable[..., Any]:
    """As ``functorch.experimental.chunk_vmap``: ``vmap`` of ``chunks`` parts of the batch, one after the other.

    The parts are of one size but the last, which may be smaller: 5 elements in 2 chunks are 3 and 2.
    """
    if not (isinstance(chunks, int) and chunks > 0):
        raise ValueError(f"chunk_vmap: chunks should be a number greater than 0, got {chunks!r}")
    return _in_pieces(func, in_dims, out_dims, randomness, lambda size: -(-size // chunks))


def _in_pieces(
    func: Callable[..., Any], in_dims: Any, out_dims: Any, randomness: str, piece_of: Callable[[int], int | None]
) -> Callable[..., Any]:
    """``vmap``, of ``piece_of(batch size)`` elements at a time; None: of all."""
    if randomness not in ("error", "different", "same"):
        raise RuntimeError(f"Only allowed values for randomness are 'error', 'different', or 'same'. Got {randomness}")

    @wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        flat, dims, spec, size = _flatten_in_dims(in_dims, args, func)
        piece = piece_of(size)
        if piece is not None and piece < size:
            return _chunks(func, flat, dims, spec, size, piece, out_dims, randomness, kwargs)
        return _mapped(func, flat, dims, spec, size, out_dims, randomness, kwargs)

    return mapped


def _mapped(func: Any, flat: Any, dims: Any, spec: Any, size: int, out_dims: Any, randomness: str, kwargs: Any) -> Any:
    level = BatchLevel(size, randomness) if size else EmptyBatch(size, randomness)
    try:
        inputs = [a if d is None else level.wrap(a.movedim(d, 0) if d else a) for a, d in zip(flat, dims, strict=True)]
        args = trees.unflatten(inputs, spec)
        with draws.Randomness(level):
            outs = func(*args, **kwargs)
        return _unbatched(func, level, outs, out_dims)
    finally:
        level.close()


def _spread_out_dims(out_dims: Any, flat: list[Any], spec: trees.Spec) -> list[Any] | None:
    """An entry of ``out_dims`` for every output. ``(1,)`` fits one tensor as well as a tuple of one."""
    if spec is None and type(out_dims) is tuple and len(out_dims) == 1 and isinstance(flat[0], torch.Tensor):
        return list(out_dims)
    return trees.spread(out_dims, flat, spec)


def _unbatched(func: Any, level: BatchLevel, outs: Any, out_dims: Any) -> Any:
    flat, spec = trees.flatten(outs)
    dims = _spread_out_dims(out_dims, flat, spec)
    name = getattr(func, "__name__", repr(func))
    if dims is None:
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims})(<inputs>): out_dims is not compatible with the structure of `outputs`. "
            f"Theirs is {trees.torch_spec(spec)}, that of out_dims {trees.structure(out_dims)}."
        )
    if not all(d is None or isinstance(d, int) for d in dims):
        raise ValueError(
            f"vmap({name}, ..., out_dims={out_dims}): `out_dims` must be an int, None or a collection of these with the structure of "
            "the outputs: the dimension at which each output gets its batch."
        )
    results = []
    for o, d in zip(flat, dims, strict=True):
        if not isinstance(o, torch.Tensor):
            if d is None:
                results.append(o)
                continue
            raise ValueError(
                f"vmap({name}, ...): `{name}` must only return Tensors, got type {type(o)}. With None as its out_dim it is returned as it "
                "is."
            )
        mine = isinstance(o, Value) and o._level is level
        if d is None:
            if mine:
                raise ValueError(f"vmap({name}, ...): `{name}` can not return a BatchedTensor when out_dim is None")
            results.append(o)
            continue
        inner = o._inner if isinstance(o, Value) and mine else o.unsqueeze(0).expand(level.size, *o.shape)
        if not -inner.dim() <= d < inner.dim():
            raise IndexError(f"vmap: out_dim {d} is out of range for an output with {inner.dim()} dimensions, batch included")
        results.append(inner.movedim(0, int(d)) if d else inner)
    pass_mark_on(flat, tuple(results))
    return trees.unflatten(results, spec)


def _chunks(func: Any, flat: Any, dims: Any, spec: Any, size: int, chunk: int, out_dims: Any, randomness: str, kwargs: Any) -> Any:
    parts = []
    state = torch.get_rng_state() if randomness == "same" else None
    for start in range(0, size, chunk):
        if state is not None:
            torch.set_rng_state(state)
        n = min(chunk, size - start)
        piece = [a if d is None else a.narrow(d, start, n) for a, d in zip(flat, dims, strict=True)]
        parts.append(_mapped(func, piece, dims, spec, n, out_dims, randomness, kwargs))
    flats, out_spec = zip(*(trees.flatten(p) for p in parts), strict=True)
    where = _spread_out_dims(out_dims, flats[0], out_spec[0])
    joined = [x[0] if d is None else torch.cat(x, dim=d) for x, d in zip(zip(*flats, strict=True), where or (), strict=True)]
    return trees.unflatten(joined, out_spec[0])
