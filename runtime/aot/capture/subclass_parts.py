"""Take tensors apart that consist of other tensors, and put them together: a graph takes and
returns the plain tensors inside.

    x = TwoTensor(a, b)      # a class with __torch_dispatch__, __tensor_flatten__ and
                             # __tensor_unflatten__
    compiled(x)              # the graph takes a and b; results are TwoTensor again

While a program is traced, an instance that holds traced values stands for ``x``. It lies between
functionalize and trace. So writes, views and derivatives are those of the whole tensor. The class
turns each call on it into calls on the parts, which the trace records.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...errors import NestedTensor
from ...seam.levels import Value, levels_of
from ...session.tensor import dispatches, unwrap
from ...torch_private.fake_tensors import FakeTensor
from ...torch_private.mode_stacks import is_traceable_wrapper_subclass, no_function_handler
from ...torch_private.pytrees import pytree
from ...trace.symbols import SYMBOLIC

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NO_HANDLERS: tuple[object, ...] = (
    no_function_handler,
    torch.Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]
)


def composed(tensor: object) -> bool:
    """Return whether ``tensor`` is a tensor that consists of others, and no value of a level."""
    kind = type(tensor)
    return (
        kind not in _PLAIN
        and isinstance(tensor, torch.Tensor)
        and not isinstance(tensor, Value)
        and is_traceable_wrapper_subclass(tensor)
    )


def refuse_opaque(tensor: object) -> None:
    """Refuse a tensor that handles its own calls and does not say what it consists of."""
    if (
        type(tensor) in _PLAIN
        or not isinstance(tensor, torch.Tensor)
        or isinstance(tensor, (FakeTensor, Value))
    ):
        return
    kind = type(tensor)
    if not dispatches(kind) or composed(tensor):
        return
    raise RuntimeError(
        f"a {kind.__name__} is among the arguments or closed-over tensors: "
        "a subclass of torch.Tensor that handles its own ATen calls. "
        "Give it __tensor_flatten__ and __tensor_unflatten__, so that a graph can take "
        "the tensors that it consists of, or compile a function of these tensors."
    )


def handles_functions(tensor: object) -> bool:
    """Return whether ``tensor`` is no value of a level, and its class has code that sees calls of
    torch's functions."""
    return class_handles_functions(type(tensor))


def class_handles_functions(kind: Any) -> bool:
    """Return whether ``kind`` is a class of tensors, but of no values of a level, with code that
    sees calls of torch's functions."""
    if kind in _PLAIN or not issubclass(kind, torch.Tensor) or issubclass(kind, Value):
        return False
    handler = kind.__torch_function__
    return handler is not None and getattr(handler, "__func__", handler) not in _NO_HANDLERS


def refuse_functions(tensors: Iterable[object]) -> None:
    """Refuse tensors that consist of others and handle calls of torch's functions, which a trace of
    ATen calls would leave out."""
    for tensor in tensors:
        if composed(tensor) and handles_functions(tensor):
            raise RuntimeError(
                f"a {type(tensor).__name__} is among the arguments or closed-over tensors, "
                "whose __torch_function__ handles calls of torch's functions. A graph has ATen "
                "calls alone. Use torch.compile, which captures what __torch_function__ does, "
                "or let the class handle its calls in __torch_dispatch__ alone."
            )


def flattened(tensor: object) -> Iterator[Any]:
    """Yield the plain tensors of which ``tensor`` consists, in order.

    A plain tensor, or a value that is no tensor, is its own only part.
    """
    if composed(tensor):
        for part in _parts(tensor)[1]:
            yield from flattened(part)
    else:
        yield tensor


def _parts(tensor: Any) -> tuple[list[str], list[torch.Tensor], object]:
    """Return (names, tensors, context) of a composed tensor."""
    names, context = tensor.__tensor_flatten__()
    parts = [unwrap(getattr(tensor, name)) for name in names]
    # a graph takes tensors alone, and each part may consist of others again
    for name, part in zip(names, parts, strict=True):
        if not isinstance(part, torch.Tensor):
            raise TypeError(
                f"__tensor_flatten__ of {type(tensor).__name__} names {name!r}, "
                f"which is a {type(part).__name__} and no tensor"
            )
        refuse_opaque(part)
    return list(names), parts, context


class Context:
    """Compare the context that ``__tensor_flatten__`` returns, as it is now, in keys.

    Two contexts are equal if the class says so, by ``__metadata_guard__``, or if their leaves are
    equal and of the same types.
    """

    __slots__ = ("kind", "leaves", "spec")

    def __init__(self, kind: type, value: object) -> None:
        self.kind = kind
        leaves, self.spec = pytree.tree_flatten(value)
        self.leaves = list(map(_snapshot, leaves))

    @property
    def value(self) -> Any:
        """Return the context for ``__tensor_unflatten__``."""
        return pytree.tree_unflatten(self.leaves, self.spec)

    def __hash__(self) -> int:
        # __metadata_guard__ may call contexts equal whose leaves differ
        return hash(self.kind)

    def __eq__(self, other: object) -> bool:
        """Compare by the class, or by the leaves."""
        if not isinstance(other, Context) or self.kind is not other.kind:
            return False
        guard = getattr(self.kind, "__metadata_guard__", None)
        if guard is not None:
            return bool(guard(self.value, other.value))
        return self.spec == other.spec and all(map(_same_leaf, self.leaves, other.leaves))

    def __repr__(self) -> str:
        return repr(self.value)


def _snapshot(value: object) -> object:
    """Return a copy of ``value`` if the user's code may change it, as it may change a list."""
    # what has a hash is taken for immutable, as a key of a dictionary is
    if isinstance(value, torch.Tensor) or type(value).__hash__ is not None:
        return value
    return copy.deepcopy(value)


def _same_leaf(a: object, b: object) -> bool:
    """Return whether two leaves of contexts are the same for a program."""
    if a is b:
        return True
    if type(a) is not type(b) or isinstance(a, torch.Tensor):
        return False
    if isinstance(a, (float, complex)):  # 0.0 == -0.0
        return repr(a) == repr(b)
    try:
        return bool(a == b)
    except (RuntimeError, ValueError):  # the elements of an array
        return False


@dataclass(frozen=True)
class Layout:
    """Compose a tensor of class ``kind`` of its parts."""

    kind: Any
    names: tuple[str, ...]
    # The layout of each part, None for a plain tensor.
    parts: tuple[Layout | None, ...]
    context: Context
    # Numbers, or (part, dimension) where the size is that of a part.
    size: tuple[Any, ...]
    # Numbers, the number of the part with these strides, or None for a contiguous tensor.
    stride: tuple[int, ...] | int | None

    @property
    def n(self) -> int:
        """Return the number of plain tensors."""
        return count(self.parts)

    def rebuilt(self, tensors: Iterator[object]) -> torch.Tensor:
        """Return the tensor that consists of the next of ``tensors``."""
        parts = rebuilt(self.parts, tensors)
        # a pair names the part and the dimension that have the size in this call
        sizes = [
            entry if isinstance(entry, int) else parts[entry[0]].shape[entry[1]]
            for entry in self.size
        ]
        size = torch.Size(sizes)
        stride: Any = self.stride
        if stride is None:
            stride = _contiguous(size)
        elif isinstance(stride, int):
            stride = parts[stride].stride()
        inner = dict(zip(self.names, parts, strict=True))
        return unwrap(self.kind.__tensor_unflatten__(inner, self.context.value, size, stride))

    def __str__(self) -> str:
        inside = ", ".join(
            f"{name}={part or 'Tensor'}" for name, part in zip(self.names, self.parts, strict=True)
        )
        return f"{self.kind.__name__}({inside}; context {self.context})"


def layout_of(tensor: Any, sized: bool = False) -> Layout | None:
    """Return the layout of ``tensor``; None if it does not consist of other tensors.

    ``sized``: another tensor of this layout may have other sizes. A size is then that of a part if
    there is one with this number, and else a number.
    """
    if not composed(tensor):
        return None
    if tensor.is_nested:
        raise NestedTensor
    names, parts, context = _parts(tensor)
    kind = type(tensor)
    # a call rebuilds the tensor with this context, as it is now
    if any(map(_is_of_program, pytree.tree_leaves(context))):
        raise RuntimeError(
            f"the context of a {kind.__name__} depends on sizes or on tensors "
            "of the program that is traced, and a graph cannot make it. "
            "Let __tensor_flatten__ give tensors by name, or compile without dynamic sizes."
        )
    size = tuple(_size(n, dim, parts, sized, kind) for dim, n in enumerate(tensor.shape))
    stride = _stride(tensor, parts, sized) if tensor.layout is torch.strided else None
    return Layout(
        kind,
        tuple(names),
        tuple(layout_of(part, sized) for part in parts),
        Context(kind, context),
        size,
        stride,
    )


def _is_of_program(value: object) -> bool:
    """Return whether ``value`` is a symbol, or a tensor that the traced program has computed."""
    if isinstance(value, SYMBOLIC):
        return True
    return isinstance(value, torch.Tensor) and any(level.number for level in levels_of(value))


def _size(n: object, dim: int, parts: Sequence[torch.Tensor], sized: bool, kind: type) -> object:
    """Return the numbers of a part and of its dimension that has size ``n``, of dimension ``dim``.

    ``n`` itself, if it is a number and none of theirs.
    """
    if not sized and isinstance(n, int):
        return n
    # first without a guard: a part with the same number or symbol
    places = _places(dim, parts)
    for number, other in places:
        if _same_number(n, parts[number].shape[other]):
            return number, other
    if isinstance(n, int):
        return n
    for number, other in places:
        # the comparison of symbols becomes a guard
        if n == parts[number].shape[other]:
            return number, other
    raise RuntimeError(
        f"a size of a {kind.__name__} is that of none of its parts, "
        "and depends on the sizes of the arguments. Compile it without dynamic sizes."
    )


def _places(dim: int, parts: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    """List all dimensions of ``parts`` as (part, dimension).

    Dimension ``dim`` of each part comes first, as it is the likelier place of a size of dimension
    ``dim``.
    """
    likely = [(index, dim) for index, part in enumerate(parts) if dim < part.dim()]
    others: list[tuple[int, int]] = []
    for index, part in enumerate(parts):
        others += [(index, other) for other in range(part.dim()) if other != dim]
    return likely + others


def _stride(
    tensor: torch.Tensor, parts: Sequence[torch.Tensor], sized: bool
) -> tuple[int, ...] | int | None:
    """Return the strides of ``tensor`` for any sizes.

    They are the number of a part with the same ones, None for those of a new tensor, or numbers.
    """
    own = tensor.stride()
    are_numbers = all(isinstance(step, int) for step in own)
    if not sized and are_numbers:
        return tuple(own)
    # first without a guard: those of a part, or those of a new tensor
    comparable = _strides_of(parts, tensor.dim())
    for number, stride in comparable:
        if all(map(_same_number, own, stride)):
            return number
    if all(map(_same_number, own, _contiguous(tensor.shape))):
        return None
    if are_numbers:
        return tuple(own)
    for number, stride in comparable:
        # the comparisons of symbols become guards
        if all(map(operator.eq, own, stride)):
            return number
    raise RuntimeError(
        f"the strides of a {type(tensor).__name__} are those of none of its parts, "
        "and depend on the sizes of the arguments. Compile it without dynamic sizes."
    )


def _strides_of(parts: Sequence[torch.Tensor], n_dims: int) -> list[tuple[int, tuple[int, ...]]]:
    """List (number, strides) of the strided parts with ``n_dims`` dimensions."""
    return [
        (index, part.stride())
        for index, part in enumerate(parts)
        if part.layout is torch.strided and part.dim() == n_dims
    ]


def _same_number(a: Any, b: int | torch.SymInt) -> bool:
    """Return whether two sizes are the same for all arguments: numbers, or expressions of the same
    symbols."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return bool(a.node.expr == b.node.expr)


def _contiguous(size: Sequence[object]) -> tuple[int | torch.SymInt, ...]:
    """Return the strides of a new tensor of this size."""
    strides: list[Any] = []
    step: Any = 1
    for n in reversed(size):
        strides.insert(0, step)
        # as torch counts a dimension without elements; a symbol has some
        step = step * (n if not isinstance(n, int) else max(n, 1))
    return tuple(strides)


@dataclass(frozen=True)
class Layouts:
    """Hold the layouts of a joint graph whose program takes or returns composed tensors.

    A plain tensor has None. ``gradients``: of gradients, then of what the backward pass writes.
    """

    primals: tuple[Layout | None, ...]
    results: tuple[Layout | None, ...]
    tangents: tuple[Layout | None, ...]
    gradients: tuple[Layout | None, ...]

    @classmethod
    def of(
        cls,
        primals: Sequence[Layout | None],
        results: Sequence[object],
        tangents: Sequence[Layout | None],
        gradients: Sequence[object],
        sized: bool,
    ) -> Layouts | None:
        """Return the layouts, or None if all tensors are plain.

        ``results`` and ``gradients``: the tensors themselves.
        """
        layouts = cls(
            tuple(primals),
            tuple(layout_of(result, sized) for result in results),
            tuple(tangents),
            tuple(layout_of(gradient, sized) for gradient in gradients),
        )
        every = (*layouts.primals, *layouts.results, *layouts.tangents, *layouts.gradients)
        if all(layout is None for layout in every):
            return None
        return layouts


def key_of(layout: Layout | None) -> tuple[object, ...]:
    """Return a key that two tensors share if they and their parts have one class and context.

    The key of a plain tensor is empty.
    """
    if layout is None:
        return ()
    return layout.kind, layout.names, layout.context, tuple(map(key_of, layout.parts))


def count(layouts: Sequence[Layout | None]) -> int:
    """Count the plain tensors (or other values) of the graph for values of these layouts."""
    return sum(1 if layout is None else layout.n for layout in layouts)


def numbers(layouts: Sequence[Layout | None], wanted: Sequence[int]) -> list[int]:
    """Return the numbers in a graph of the plain tensors of the values ``wanted``.

    ``layouts``: of all values.
    """
    starts = [0]
    for layout in layouts:
        starts.append(starts[-1] + count((layout,)))
    places: list[int] = []
    for index in wanted:
        places += range(starts[index], starts[index + 1])
    return places


def rebuilt(layouts: Sequence[Layout | None], tensors: Iterable[object]) -> list[Any]:
    """Put values of these layouts together from their parts ``tensors``."""
    left = iter(tensors)
    return [next(left) if layout is None else layout.rebuilt(left) for layout in layouts]


def names_of_parts(layout: Layout | None) -> list[str]:
    """Return a suffix for each part of a value: ``.a``, ``.a.b``; ``""`` for a plain tensor."""
    if layout is None:
        return [""]
    names: list[str] = []
    for name, part in zip(layout.names, layout.parts, strict=True):
        names += [f".{name}{rest}" for rest in names_of_parts(part)]
    return names
