"""Check an op on one element of a batch, so that vmap raises the error that the element raises.

``vmap(torch.linalg.inv)(torch.ones(3, 3))`` must fail, because ``inv`` refuses a vector. But the
kernel would accept the whole batch as one matrix. So the op runs on the first element alone before
a batch rule first runs on a signature: shapes, dtypes and all arguments that are no tensors. If the
element raises, vmap raises the same error, which names logical shapes. A signature that an element
has accepted is remembered, so later calls cost one lookup in a set.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from ..errors import NestedTensor
from ..rules.ops import VIEW, Op, generator_of
from ..seam.call_types import Arguments, Keywords
from ..seam.containers import items_of
from ..seam.shells import VALUES
from ..torch_private.mode_stacks import without_modes
from ..trace.symbol_values import has_symbols, symbols_may_occur

# signatures per op; the set is cleared when it is full, since a program may pass a new
# number in every call
REMEMBERED = 4096
SEARCHED = 1024  # elements that are tried to find the error

_random = torch.Tag.nondeterministic_seeded


def check(op: Op, args: Arguments, kwargs: dict[str, object]) -> None:
    """Raise the error that the op raises on the first element. Do nothing if an element has
    accepted this signature before."""
    accepted = op.accepted
    if accepted is None:
        return
    signature: list[object] = []
    # inlined, since most arguments are tensors and this runs for each call
    for argument in args:
        kind = type(argument)
        if kind in VALUES or kind is torch.Tensor:
            signature.append(argument.shape)
            signature.append(argument.dtype)
        else:
            signature.append(_signature_of(argument))
    for name, argument in kwargs.items():
        signature += (name, _signature_of(argument))
    key = tuple(signature)
    if symbols_may_occur() and any(map(has_symbols, key)):
        return  # a hash of such a size would fix it
    if key in accepted:
        return
    run(op, args, kwargs)
    if len(accepted) >= REMEMBERED:
        accepted.clear()
    accepted.add(key)


def _signature_of(argument: object) -> object:
    """Return what a signature says of an argument: shape and dtype of a tensor, any other value as
    it is."""
    if isinstance(argument, torch.Tensor):
        return argument.shape, argument.dtype
    if isinstance(argument, (list, tuple)):
        return tuple(map(_signature_of, argument))
    return argument


def first_error(op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Exception | None:
    """Return the error of the first element that refuses the call. ``None`` if all accept it. For a
    nested tensor: ``NestedTensor``."""
    if any(
        isinstance(argument, torch.Tensor) and argument.is_nested
        for argument in _leaves(args, kwargs)
    ):
        return NestedTensor()
    # one index per batch level; the search gives up after some elements
    sizes = _sizes(args, kwargs)
    for at in itertools.islice(itertools.product(*map(range, sizes.values())), SEARCHED):
        try:
            run(op, args, kwargs, dict(zip(sizes, at, strict=True)))
        except Exception as error:
            return error
    return None


def run(op: Op, args: Sequence[object], kwargs: Keywords, at: dict[int, int] | None = None) -> None:
    """Run the op below all transforms on copies of one element: the first, or the one with index
    ``at[number]`` in each batch level.

    If a batch has no elements, the op runs on the meta device. A kernel that reads the workspace of
    another kernel is not run."""
    if _cannot_run_alone(op, args):
        return
    empty = 0 in _sizes(args, kwargs).values()
    element = functools.partial(_element, at=at or {}, empty=empty, copied=op.kind is not VIEW)
    # no mode sees the call, and the generators are as before
    with ExitStack() as stack:
        stack.enter_context(without_modes())
        stack.enter_context(torch.no_grad())
        if _random in op.func.tags or (op.record is not None and op.record.draws):
            stack.enter_context(torch.random.fork_rng(devices=_accelerators(args)))
            stack.enter_context(_restore_after(generator_of(args, kwargs)))
        try:
            arguments = element(list(args))
            options = {name: element(argument) for name, argument in kwargs.items()}
        except (RuntimeError, NotImplementedError):
            # no element can be taken from some layouts, such as compressed sparse rows
            return
        try:
            op.func(*arguments, **options)
        except NotImplementedError:
            # some ops have no kernel on the meta device, which says nothing of the element
            if not empty:
                raise


def _cannot_run_alone(op: Op, args: Sequence[object]) -> bool:
    """Return whether the op reads the workspace of another kernel, or its rule takes arguments
    that differ from those of an element."""
    if op.record is None:
        return False
    differs = getattr(op.record.batch, "differs", None)
    return op.record.workspace or (differs is not None and differs(args))


@contextmanager
def _restore_after(generator: torch.Generator) -> Iterator[None]:
    """Run the body of a ``with`` block, then put ``generator`` back to where it was."""
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


def _element(argument: object, at: dict[int, int], empty: bool, copied: bool) -> Any:
    """Return one element of nested values, at the index ``at[number]`` of each batch level.

    The loop meets the innermost level first, and each batch dimension is in front. So the
    dimensions of the tensor at the bottom begin with the batch of the outermost level, and the
    indices are applied in reverse.
    """
    if isinstance(argument, (list, tuple)):
        return [_element(item, at, empty, copied) for item in argument]
    if not isinstance(argument, torch.Tensor):
        return argument
    tensor: Any = argument
    index: list[int] = []
    while type(tensor) in VALUES:
        if tensor._level.hidden:
            index.append(at.get(tensor._level.number, 0))
        tensor = tensor._inner
    if empty:
        return torch.empty_strided(
            argument.shape, tensor.stride()[len(index) :], dtype=tensor.dtype, device="meta"
        )
    for place in reversed(index):
        tensor = tensor.select(0, place)
    if copied:
        return tensor.clone()
    return tensor.view_as(tensor)


def _leaves(args: Sequence[object], kwargs: dict[str, object]) -> Iterator[Any]:
    """Iterate over the entries of all arguments, those of lists too."""
    return items_of((*args, *kwargs.values()))


def _sizes(args: Sequence[object], kwargs: dict[str, object]) -> dict[int, int]:
    """Return the size of each batch level among the arguments, by level number."""
    sizes = {}
    for tensor in _leaves(args, kwargs):
        while type(tensor) in VALUES:
            if tensor._level.hidden:
                sizes[tensor._level.number] = tensor._level.size
            tensor = tensor._inner
    return sizes


def _accelerators(args: Sequence[object]) -> list[torch.device]:
    """List the devices of the arguments whose generators the op may move. ``fork_rng`` includes the
    CPU in any case."""
    return list(
        {
            argument.device
            for argument in _leaves(args, {})
            if isinstance(argument, torch.Tensor) and argument.device.type not in ("cpu", "meta")
        }
    )
