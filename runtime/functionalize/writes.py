"""Refuse writes at the functionalize level that a kernel would refuse, and put the results of
functional forms where the writes go.

    x[0].add_(1)               # through a view: a base in which x[0] is replaced
    torch.add(x, 1, out=y)     # to y, the tensor of ``out=``

A result goes through a view into a base, to the tensors of ``out=``, or, when the program has
returned, to a tensor from outside.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from ..errors import InplaceError
from ..rules.functional_forms import factory_options, functional_of
from ..rules.ops import Op, op_of
from ..rules.record import parameters
from ..seam.call_types import Arguments, Kernel, Keywords
from ..seam.containers import items_of, leaves_of, written_arguments
from ..seam.surgery import refit
from ..torch_private.mode_stacks import without_dispatch_to_python
from ..torch_private.pytrees import pytree
from ..trace.provenance import here
from .memory_order import filled
from .overlap import shows_twice

# --- writes that are refused ----------------------------------------------------------------------
#
# A write refuses a result whose dtype does not fit, and memory that it shares with an argument, as
# the kernel does.
#
#     torch.zeros(3, dtype=torch.int64).add_(1.5)
#     # result type Float can't be cast to the desired output type Long
#
#     torch.cat([x, y], out=y)
#     # some elements of the input and the output are at one place of memory
#
# The functional form of the op has no tensor to write to, so it cannot ask. Ops have different
# rules: a pointwise op converts float64 to float32, a matrix product does not; a sum may be written
# to one of its terms, a concatenation not. So the op itself is asked, on zeros.

_OF_MEMORY = ("unsupported operation",)
_OF_DTYPES = ("dtype", "scalar type", "out type", "can't be cast", "tensor out")


def refuse_unfit(
    func: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    targets: Sequence[object],
    results: Sequence[object],
) -> None:
    """Raise the kernel's error if ``func`` cannot write ``results`` to ``targets`` because of their
    dtypes. Lists of tensors may be among both."""
    pairs = zip(leaves_of(targets), leaves_of(results), strict=False)
    tensors = [pair for pair in pairs if pair[0] is not None and pair[1] is not None]
    if all(target.dtype is result.dtype for target, result in tensors):
        return
    # the kernel decides, on zeros of the same dtypes
    with without_dispatch_to_python():
        plain, named = pytree.tree_map_only(torch.Tensor, _zeros, (list(args), kwargs))
        _ask(func, plain, named, _OF_DTYPES)


def refuse_shared(
    func: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    targets: Sequence[Any],
    memory: Callable[[torch.Tensor], object],
) -> None:
    """Raise the kernel's error if ``func`` cannot write to ``targets`` because of the places of
    memory that they share with one another or with other arguments. ``memory``: what the aliases of
    a tensor have in common, or None."""
    leaves = pytree.tree_leaves((list(args), kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if any(tensor.layout is not torch.strided for tensor in tensors):
        return
    # in most calls no two tensors share memory, and nothing is to try
    memories = list(map(memory, tensors))
    shares_nothing = not any(_is_shared(memory(target), memories) for target in targets)
    if any(map(_depends_on_values, tensors)):
        return
    with without_dispatch_to_python():
        if shares_nothing and not any(map(_shows_twice, targets)):
            return
        # the kernel decides, for zeros at the same places of new memory
        places = _ZerosInPlace(memory)
        for tensor, owner in zip(tensors, memories, strict=True):
            places.reserve(tensor, owner)
        plain, named = pytree.tree_map_only(torch.Tensor, places.stand_in, (list(args), kwargs))
        _ask(func, plain, named, _OF_MEMORY)


def _is_shared(memory: object, memories: Sequence[object]) -> bool:
    """Return whether two of the arguments have this memory."""
    return memory is not None and sum(memory is other for other in memories) > 1


def _depends_on_values(tensor: torch.Tensor) -> bool:
    """Return whether a size, a stride or the offset of ``tensor`` depends on values."""
    return None in _hints((*tensor.shape, *tensor.stride(), tensor.storage_offset()))


def _shows_twice(tensor: torch.Tensor) -> bool:
    """Return whether two elements of ``tensor`` have one place in memory."""
    return shows_twice(
        torch.empty_strided(_hints(tensor.shape), _hints(tensor.stride()), device="meta")
    )


class _ZerosInPlace:
    """Tensors of zeros that share memory as the tensors of a call do.

    ``memory``: what the aliases of a tensor have in common, or None. There is one flat tensor per
    memory and dtype."""

    def __init__(self, memory: Callable[[torch.Tensor], object]) -> None:
        self.memory = memory
        self.flat: dict[tuple[int, torch.dtype], torch.Tensor] = {}

    def _key(self, tensor: torch.Tensor, memory: object) -> tuple[int, torch.dtype]:
        """Return what tensors with one flat tensor have in common. None: a memory of its own."""
        owner = tensor if memory is None else memory
        return id(owner), tensor.dtype

    def reserve(self, tensor: torch.Tensor, memory: object) -> None:
        """Make zeros for ``tensor``, or more of them if aliases of ``tensor`` reach less far."""
        key = self._key(tensor, memory)
        if key not in self.flat or len(self.flat[key]) < _reach(tensor):
            self.flat[key] = torch.zeros(_reach(tensor), dtype=tensor.dtype, device=tensor.device)

    def stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the zeros that lie where ``tensor`` does."""
        flat = self.flat[self._key(tensor, self.memory(tensor))]
        (offset,) = _hints([tensor.storage_offset()])
        return flat.as_strided(_hints(tensor.shape), _hints(tensor.stride()), offset)


def _ask(
    func: Any, args: Sequence[object], kwargs: dict[str, object], about: tuple[str, ...]
) -> None:
    """Call ``func`` and raise its error, if that is about one of the texts ``about``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the program's own call warns
        try:
            func(*args, **kwargs)
        except (RuntimeError, TypeError) as error:  # zeros may be refused as values, too
            if any(text in str(error) for text in about):
                raise


def _zeros(tensor: torch.Tensor) -> torch.Tensor:
    """Return zeros of the shape and dtype of ``tensor``."""
    return torch.zeros(_hints(tensor.shape), dtype=tensor.dtype, device=tensor.device)


def _hints(sizes: Sequence[int | torch.SymInt]) -> list[int]:
    """Return ``sizes`` as they are in the arguments of the capture, without a guard."""
    return [size if isinstance(size, int) else size.node.hint for size in sizes]


def _reach(tensor: torch.Tensor) -> int:
    """Count the elements of its memory that ``tensor`` spans."""
    sizes, strides, (offset,) = (
        _hints(tensor.shape),
        _hints(tensor.stride()),
        _hints([tensor.storage_offset()]),
    )
    if not all(sizes):  # no elements
        return offset
    last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return offset + last + 1


# --- writes through a view ------------------------------------------------------------------------
#
# Out of place: the result is a base in which the part under the view is replaced.

aten = torch.ops.aten


class _Copying:
    """``torch.ops.aten`` with the copying form in place of each view: ``t`` is ``t_copy``. Other
    ops are themselves: ``add`` is ``add``."""

    def __getattr__(self, name: str) -> Any:
        """Find the packet, and note it as an attribute, so that this runs once for each name."""
        copying = f"{name}_copy"
        if name == "reshape":
            copying = "_reshape_copy"
        packet = getattr(aten, copying, None) or getattr(aten, name)
        setattr(self, name, packet)
        return packet


_copying = _Copying()


def copying_form(func: Any) -> Any:
    """Return the op that copies where ``func`` makes a view (``t_copy`` for ``t``). ``func`` itself
    if ATen has none."""
    name, overload = func._schema.name.split("::")[1], func._overloadname
    copying = getattr(getattr(aten, f"{name}_copy", None), overload, None)
    if copying is None:
        return func
    return copying


def put_back(
    func: Kernel,
    base: Any,
    part: torch.Tensor,
    which: int | None,
    args: Arguments,
    kwargs: dict[str, object],
    copying: bool = False,
) -> Any:
    """Return ``base`` with ``part`` in the place that ``func(base, *args, **kwargs)`` shows.
    ``which``: its output number, if it has several.

    ``copying``: use no view ops.
    """
    op = op_of(func)
    ops = _copying if copying else aten
    if op.record is not None and op.record.inverse is not None:
        values = {"base": base, "part": part, "which": which, "ops": ops}
        return _call_inverse(op.record.inverse, op, values, (base, *args), kwargs)
    # Right for any view that only selects or moves elements: a view of the element numbers shows
    # where each comes from.
    view = copying_form(func) if copying else func
    numbers = torch.arange(base.numel(), device=base.device)
    places = view(ops.reshape(numbers, base.shape), *args, **kwargs)
    if which is not None:
        places = places[which]
    flat = ops.reshape(base, [-1]).scatter(0, ops.reshape(places, [-1]), ops.reshape(part, [-1]))
    return ops.reshape(flat, base.shape)


def _call_inverse(
    inverse: Callable[..., object],
    op: Op,
    values: dict[str, object],
    args: Sequence[object],
    kwargs: dict[str, object],
) -> object:
    """Return the result of the formula, called with the values that its parameters name. See
    :class:`runtime.rules.record.Record`."""
    operands = []
    for name in parameters(inverse):
        if name in values:
            operands.append(values[name])
        else:
            operands.append(op.argument(op.positions[name], args, kwargs))
    return inverse(*operands)


# --- writes to tensors from outside ---------------------------------------------------------------


class WrittenBack(NamedTuple):
    """The effect of a program on a tensor from outside."""

    # Its final value. None if only its geometry has changed.
    value: torch.Tensor | None
    # Whether a write to it happened with grad mode.
    recorded: bool
    # Whether a write went another way than through `.data`.
    counted: bool
    # The calls that have changed its geometry in place.
    turns: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()

    def into(self, tensor: torch.Tensor) -> None:
        """Do to ``tensor`` what the program did to its value."""
        if self.value is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.recorded):
                target = tensor
                # a write to .data advances no version
                if not self.counted:
                    target = tensor.data
                target.copy_(self.value)
        for turn in self.turns:
            turn(tensor)


# --- written arguments ----------------------------------------------------------------------------


def number_of_own_results(op: Op) -> int:
    """Count the results of ``op`` that are no written arguments."""
    if not op.fills_argument:
        return 0
    return len(op.func._schema.returns)


def refuse_several_written(op: Op) -> None:
    """Raise if ``op`` writes to further tensors, such as the noise of ``rrelu_with_noise_``. The
    first one shows an element of its memory several times."""
    n_written = len(written_arguments(op.func._schema))
    if n_written > 1:
        raise InplaceError(
            f"{op.func} writes to {n_written} tensors, "
            "and the first shows an element of its memory several times, "
            f"as unfold and expand do. Call it on a clone.{here()}"
        )


def _copy(value: Any) -> object:
    """Return a copy of a tensor, or of each in a list."""
    if isinstance(value, list):
        return [tensor.clone() for tensor in value]
    return value.clone()


def run_on_copies(
    level: FunctionalLevel,
    op: Op,
    args: Sequence[object],
    kwargs: dict[str, object],
    targets: Sequence[object],
) -> tuple[list[Any], list[Any]]:
    """Run ``op``, which has no functional form, on copies of ``targets``. Return its own results,
    and the copies."""
    # the op writes to the copies, and whoever reads a target reads its copy
    copies = list(map(_copy, level.lowered_args(targets)))
    copy_of = dict(zip(map(id, targets), copies, strict=True))
    lowered = zip(args, level.lowered_args(args), strict=True)
    plain = [copy_of.get(id(argument), inner) for argument, inner in lowered]
    named = {
        name: copy_of.get(id(argument), level.lowered(argument))
        for name, argument in kwargs.items()
    }
    results = op.func(*plain, **named)
    if not number_of_own_results(op):
        return [], copies
    if isinstance(results, tuple):
        return list(results), copies
    return [results], copies


def pack_results(values: Sequence[object]) -> object:
    """Return these results as an op does: None, the only one, or a tuple."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return tuple(values)


# --- out= -----------------------------------------------------------------------------------------
#
# The result of the functional form is written to the tensors that the call names.


class FunctionalLevel(Protocol):
    """What a functionalize level does for these functions."""

    def lowered(self, argument: Any) -> Any: ...

    def lowered_args(self, args: Iterable[Any]) -> list[Any]: ...

    def lowered_kwargs(self, kwargs: dict[str, object]) -> dict[str, Any]: ...

    def valued(self, result: Any) -> Any: ...

    def present(self, store: Any) -> Any: ...

    def write_each(self, target: Any, new: Any) -> None: ...


def write_out(level: FunctionalLevel, op: Op, args: Sequence[object], kwargs: Keywords) -> object:
    """Run ``op``, an op with ``out=``. Returns what it writes to."""
    names = _names_of_out(op, kwargs)
    targets: list[torch.Tensor] = []
    for name in names:
        out = kwargs[name]
        if isinstance(out, (list, tuple)):
            targets += out
        else:
            targets.append(out)
    results = _results_for_out(level, op, args, kwargs, names, targets)
    for target, new in zip(targets, results, strict=True):
        if target.shape == new.shape:
            level.write_each(target, new)
        # torch resizes an out= of another shape, which the level does for an empty one
        elif not grow(level, target, new):
            raise InplaceError(
                f"{op.func}: out= has shape {list(target.shape)}, "
                f"the result {list(new.shape)}; give it that shape"
            )
    if not op.func._schema.returns:
        return None
    return pack_results(targets)


def _names_of_out(op: Op, kwargs: dict[str, object]) -> list[str]:
    """List the names of the arguments that ``op`` writes to. Raise if one is not an ``out=``."""
    names = [name for _, name in written_arguments(op.func._schema)]
    if any(name not in kwargs for name in names):  # such as the running statistics of batch norm
        raise InplaceError(
            f"{op.func} writes to more than its out= arguments; "
            "use the form of the op that returns its result"
        )
    return names


def _results_for_out(
    level: FunctionalLevel,
    op: Op,
    args: Sequence[object],
    kwargs: dict[str, object],
    names: Sequence[str],
    targets: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Run the functional form of ``op``, and check its results against ``targets``, which the
    arguments ``names`` hold."""
    functional = functional_of(op.func)
    if functional is None:
        raise InplaceError(
            f"{op.func} has no functional form; use the form of the op that returns its result"
        )
    refuse_shared_by(level, op.func, args, kwargs, targets)
    given = level.lowered_args(args)
    options = level.lowered_kwargs(
        {key: value for key, value in kwargs.items() if key not in names}
    )
    options |= factory_options(op.func, functional, targets[0])
    results = filled(op.func, level.lowered_args(targets), given, options)
    results = results or functional(*given, **options)
    results = list(items_of((results,)))
    if len(results) != len(targets):  # one out= argument may be a list
        raise InplaceError(
            f"{op.func}: out= has {len(targets)} tensors, "
            f"the result has {len(results)}; give as many"
        )
    refuse_unfit(op.func, args, kwargs, targets, results)
    return results


def refuse_shared_by(
    level: FunctionalLevel,
    func: object,
    args: Sequence[object],
    kwargs: dict[str, object],
    targets: Sequence[object],
) -> None:
    """Do :func:`refuse_shared` for values of ``level``."""

    def memory(tensor: Any) -> Any:
        """Return the memory of a value of the level; None for any other tensor."""
        if getattr(tensor, "_level", None) is not level:
            return None
        return tensor._store.memory.whole

    refuse_shared(func, args, kwargs, targets, memory)


def grow(level: FunctionalLevel, target: Any, new: torch.Tensor) -> bool:
    """Make ``new`` the value of ``target``, as ``out=torch.empty(0)`` asks for. Return False unless
    ``target`` is of memory without elements that the program has created. Views of that memory have
    no elements to show, so that they need not follow.
    """
    if getattr(target, "_level", None) is not level:
        return False
    old = target._store
    if not old.memory.made_inside or level.present(old).numel():
        return False
    # the version goes on, as for any write
    fresh = level.valued(new.to(target.dtype))
    fresh._store.counter = [old.counter[0] + 1]
    refit(target, fresh)
    target._inner, target._store, target._chain = fresh._inner, fresh._store, ()
    target._seen, target._unrecorded = fresh._seen, False
    return True
