"""Turn the use of a parameter by a call into the parameter's gradients for each sample.

A call is used once for each sample: of ``F.linear(x, w)`` with x of shape (B, n), sample b uses
``w`` by ``F.linear(x[b], w)``.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..func import vmap
from ..rules.ops import Op
from ..rules.record import parameters
from ..rules.samples.factors import Dense, Tensor, Term, reduced
from ..seam.call_types import Keywords
from ..seam.levels import Level
from ..tape.nodes import Edge, Node
from ..tape.saved import FREED
from ..torch_private.pytrees import pytree
from .general import General

Use = tuple[Edge, Term]
"""Where a parameter, or a tensor computed of parameters, comes from on the tape, and the gradients
that one use of it has."""


NO_SECOND = (
    "per_sample: a backward pass with create_graph passes a use of the parameters, "
    "and the gradients of samples have no second derivatives here. "
    "Use per_sample_grads, which nests with grad."
)


def base_or_self(value: Any) -> object:
    """Return the base of a view, and any other tensor as it is."""
    if value._view is None:
        return value
    return value._view.base


class Writes:
    """The writes to one memory while samples were followed. ``value.detach()`` shares the object.

    ``number``: how many there were.
    """

    __slots__ = ("_left", "number")

    def __init__(self) -> None:
        self.number = 0
        self._left: tuple[weakref.ref[object], object, object] | None = None

    def note(self) -> None:
        """Note one more write, which ends the states of the memory."""
        self.number += 1
        self._left = None

    def leave(self, session: object, state: object, written: Tensor) -> None:
        """Note that the last write has left ``written`` in ``state``, as ``session`` saw."""
        self._left = (weakref.ref(session), state, _geometry(written))

    def left_for(self, session: object, value: Tensor) -> object:
        """Return the state in which the last write has left ``value``. None if it wrote to a part
        of it or through another view, or ``session`` did not see it."""
        if self._left is None:
            return None
        # by strides: another view of the same memory may show its samples in another place
        writer, state, geometry = self._left
        if writer() is not session or geometry != _geometry(value):
            return None
        return state


def _geometry(tensor: Tensor) -> tuple[object, ...]:
    """Return sizes, strides and offset: equal ones show equal elements of a memory."""
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def writes_to(value: Any) -> Writes:
    """Return the writes to the memory of ``value``."""
    whole: Any = base_or_self(value)
    writes: Writes = whole.__dict__.setdefault("_sample_writes", Writes())
    return writes


def versions(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """Return each tensor with its version. A tensor of inference mode has none."""
    return [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]


def refuse_written(tensors: Iterable[tuple[Tensor, int]], what: str) -> None:
    """Raise if one of these ``tensors`` has been written to since. ``what``: its role, for the
    message."""
    for tensor, version in tensors:
        if tensor._version != version:
            raise RuntimeError(
                f"per_sample_grads: {what}, of shape {list(tensor.shape)}, has been modified by "
                f"an inplace operation: it is at version {tensor._version}, and gradients "
                "need version "
                f"{version}. Write to a copy, or compute what you need before."
            )


class Uses:
    """The gradients of all uses of parameters, in the order of a backward pass.

    Those of the last call wait until the next one comes. Only then are they scaled, and exchanged
    for dense ones that take less memory: meanwhile the pass frees what the last call needs itself,
    so there is room for them.
    """

    __slots__ = ("_factor", "_uses", "_versions", "_waiting", "changes")

    def __init__(self) -> None:
        self.changes = 0  # how often uses were added or dropped
        self._uses: list[Use] = []
        self._versions: list[tuple[Tensor, int]] = []
        self._waiting: list[tuple[Use, list[tuple[Tensor, int]]]] = []
        self._factor: Any = 1  # of those that wait

    def add(self, uses: Iterable[Use], factor: object = 1) -> None:
        """Note the uses of one call. Their gradients are to be multiplied by ``factor``: a number,
        or one for each sample, (B,)."""
        self.settle()
        self.changes += 1
        # with their versions, to notice a write before they are settled
        self._waiting = [(use, versions(use[1].held())) for use in uses]
        self._factor = factor

    def settle(self) -> None:
        """Scale the gradients that wait, exchange them for smaller ones, and store them.

        Called when the next call comes, and when somebody reads.
        """
        waiting, self._waiting = self._waiting, []
        # a factor of one, the most frequent, needs no copies
        is_scaled = type(self._factor) is not int or self._factor != 1
        scale = _Scale(self._factor)  # one for all, as they may have the same tensors
        for (edge, term), saved_versions in waiting:
            own = term
            if is_scaled:
                own = own.scaled(scale)
            less = own.smaller()
            if less is term:
                self._versions += saved_versions
            else:
                refuse_written(saved_versions, "a tensor that the gradients are computed of")
                self._versions += versions(less.held())
            self._uses.append((edge, less))

    def settled(self) -> Sequence[Use]:
        """Return all uses, none of which waits."""
        self.settle()
        return self._uses

    def held(self) -> list[tuple[Tensor, int]]:
        """Return the tensors that the gradients are computed of, with versions."""
        self.settle()
        return self._versions

    def clear(self) -> None:
        """Drop all uses."""
        self.changes += 1
        self._uses, self._versions, self._waiting = [], [], []


class _Scale:
    """Multiplies tensors that have the batch in front by ``factor``. One copy serves all views of
    the same elements: the gradients of a bias may be the cotangent itself."""

    def __init__(self, factor: torch.Tensor | float) -> None:
        self.factor = factor
        # with the tensor, whose address is then not reused
        self._copies: dict[tuple[int, int, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __call__(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` times the factor, perhaps a view of an earlier result."""
        # the address of any other tensor does not say which elements it shows
        if type(tensor) is not torch.Tensor or not tensor.is_contiguous():
            return self._multiply(tensor)
        if tensor.is_conj() or tensor.is_neg():
            return self._multiply(tensor)
        key = tensor.data_ptr(), tensor.numel(), tensor.dtype
        if key not in self._copies:
            self._copies[key] = tensor, self._multiply(tensor)
        return self._copies[key][1].view(tensor.shape)

    def _multiply(self, tensor: Tensor) -> Tensor:
        """Return a new tensor: ``tensor`` times the factor of each sample."""
        factor = self.factor
        if isinstance(factor, torch.Tensor):
            factor = factor.reshape(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype)
        return torch.mul(tensor, factor)


class Layout(NamedTuple):
    """How the arguments of an ATen call become one list: for each argument None, or the length of a
    list. ``positional``: how many come before the keywords ``names``.

    Torch's pytrees do as well. But each of their flattenings leaves a reference cycle, which keeps
    the tensors until a collection."""

    shape: tuple[int | None, ...]
    positional: int
    names: tuple[str, ...]


def flattened(args: Sequence[object], kwargs: Keywords) -> tuple[list[Any], Layout]:
    """Return the arguments of an ATen call in one list."""
    flat: list[Any] = []
    shape: list[int | None] = []
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, (list, tuple)):
            flat += argument
            shape.append(len(argument))
        else:
            flat.append(argument)
            shape.append(None)
    return flat, Layout(tuple(shape), len(args), tuple(kwargs))


def unflattened(
    flat: Sequence[object], layout: Layout | pytree.TreeSpec
) -> tuple[list[Any], dict[str, Any]]:
    """Return the inverse of :func:`flattened`, or of a flattening by torch's pytrees."""
    if not isinstance(layout, Layout):
        return pytree.tree_unflatten(flat, layout)  # type: ignore[no-any-return]
    values = iter(flat)
    each: list[Any] = []
    for length in layout.shape:
        if length is None:
            each.append(next(values))
        else:
            each.append(list(itertools.islice(values, length)))
    args, keywords = each[: layout.positional], each[layout.positional :]
    return args, dict(zip(layout.names, keywords, strict=True))


class Tap(Node):
    """Passes the cotangents of the results of one call on, and calls ``note`` with them once."""

    unseen = True
    __slots__ = ("note",)

    def __init__(
        self,
        level: Level,
        edges: tuple[Edge | None, ...],
        metas: object,
        note: Callable[[list[Any]], None],
    ) -> None:
        super().__init__(level, edges, metas)
        self.note: Callable[[list[Any]], None] | None = note

    def apply(
        self, grads: list[torch.Tensor | None], wanted: object, create_graph: bool
    ) -> Sequence[torch.Tensor | None]:
        """Note the cotangents, and pass those on whose edge leads further."""
        if create_graph:
            raise RuntimeError(NO_SECOND)
        if self.note is None:
            raise RuntimeError(FREED)
        self.note(grads)
        # a parameter ends here: its gradient is in what was noted
        passed: list[torch.Tensor | None] = []
        for grad, edge in zip(grads, self.edges, strict=True):
            if edge is None:
                passed.append(None)
            else:
                passed.append(grad)
        return tuple(passed)

    def release(self) -> None:
        """Drop the arguments of the call, which ``note`` refers to."""
        self.note = None


class _Arguments(NamedTuple):
    """The arguments of a call by name."""

    # The number of each argument in one list, or the numbers of its elements.
    numbers: dict[str, Any]
    # The defaults of all arguments.
    defaults: dict[str, object]

    def name_of(self, number: int) -> str | None:
        """Return the name of an argument by its number, None for one of a list."""
        return next((name for name, own in self.numbers.items() if own == number), None)


class ParameterCall:
    """A call that uses parameters, once for each sample.

    ``arguments``: those of the call in one list, without histories. ``batched``: for each, whether
    it is a batch, which lies in dimension 0. ``edges``: by the number of an argument that comes
    from parameters, where it comes from.
    """

    def __init__(
        self,
        op: Op,
        arguments: list[Any],
        batched: list[bool],
        spec: Layout | pytree.TreeSpec,
        edges: Mapping[int, Edge | None],
        size: int,
    ) -> None:
        self.op, self.arguments, self.batched, self.spec = op, arguments, batched, spec
        self.edges, self.size = edges, size
        self.versions = versions(
            argument for argument in arguments if isinstance(argument, torch.Tensor)
        )

    def uses(self, gs: list[Any]) -> list[Use]:
        """Return the gradients of the parameters by the cotangents of the results. None for a
        result without one."""
        if all(cotangent is None for cotangent in gs):
            return []
        refuse_written(self.versions, f"an argument of {self.op.func}")
        edges = [(index, edge) for index, edge in self.edges.items() if edge is not None]
        return [(edge, self._term(index, gs)) for index, edge in edges]

    def _shape(self, index: int) -> torch.Size:
        """Return the shape of an argument for one sample."""
        shape: torch.Size = self.arguments[index].shape
        if self.batched[index]:
            return shape[1:]
        return shape

    def _term(self, index: int, gs: list[torch.Tensor | None]) -> Term:
        """Return the gradients of argument ``index``: in factors, as dense ones, or by derivatives
        of the op."""
        if self.batched[index]:  # each sample uses a part of its own
            return Dense(self._general(index, gs).dense())
        # of ops with factors, only the first result depends on parameters
        if gs[0] is not None:
            term = self._by_record(index, gs[0])
            if term is not None:
                return term
        general = self._general(index, gs)
        largest = max(cotangent.numel() for cotangent in gs if cotangent is not None)
        # dense gradients take no more memory than the cotangents that they follow from
        if general.shape.numel() * self.size <= largest:
            return _to_dtype(Dense(general.dense()), general.dtype)
        return general

    def _by_record(self, index: int, grad: Tensor) -> Term | None:
        """Return the gradients by the op's record: its factors, or the formula of an elementwise
        op."""
        record = self.op.record
        if record is None:
            return None
        # formulas of factors ask for arguments by name
        call = self._arguments()
        name = call.name_of(index)
        if name is None:  # one of a list
            return None
        # factors take less memory than gradients, so they come before the formula
        factors = None
        if record.per_sample is not None:
            factors = record.per_sample.get(name)
        if factors is not None:
            operands = (self._operand(parameter, call, grad) for parameter in parameters(factors))
            term: Term = factors(*operands)
            return term
        if record.vjp is None or not record.elementwise:
            return None
        formula = record.vjp.get(name)
        if formula is None:
            return None
        return self._by_element(formula, call, index, grad)

    def _by_element(
        self, formula: Callable[..., Any], call: _Arguments, index: int, grad: Tensor
    ) -> Term | None:
        """Return the gradients by the formula of an elementwise op. None if it takes more than the
        cotangent and the arguments."""
        operands: list[Any] = []
        dims: list[int | None] = []
        for name in parameters(formula):
            number = call.numbers.get(name)
            if name == "g":
                operands.append(grad)
                dims.append(0)
            elif name not in call.defaults:
                return None
            elif number is None:
                operands.append(call.defaults[name])
                dims.append(None)
            else:
                operands.append(self.arguments[number])
                dims.append(0 if self.batched[number] else None)
        parameter = self.arguments[index]

        def of_sample(*values: object) -> Tensor:
            gradient: Tensor | None = formula(*values)
            if gradient is None:
                return grad.new_zeros(grad.shape[1:])
            return gradient

        # in the shape of the result; what was broadcast is summed up for each sample
        each = vmap(of_sample, in_dims=tuple(dims))(*operands)
        return _to_dtype(reduced(each, parameter.shape), parameter.dtype)

    def _arguments(self) -> _Arguments:
        """Return the numbers and defaults of the arguments, by name."""
        op = self.op
        args, kwargs = unflattened(range(len(self.arguments)), self.spec)
        numbers = dict(zip(op.arg_names, args, strict=False)) | kwargs
        return _Arguments(numbers, dict(zip(op.arg_names, op.defaults, strict=True)))

    def _operand(self, name: str, call: _Arguments, grad: Tensor) -> object:
        """Return the argument ``name`` of a formula of factors, with a batch in front."""
        if name == "g":
            return grad
        if name not in call.defaults:  # weight_shape
            return self._shape(call.numbers[name.removesuffix("_shape")])
        number = call.numbers.get(name)
        if number is None:
            return call.defaults[name]
        if isinstance(number, int):
            return self._with_batch(number)
        return list(map(self._with_batch, number))

    def _with_batch(self, number: int) -> object:
        """Return an argument, with a batch in front if it is a tensor."""
        argument = self.arguments[number]
        if not isinstance(argument, torch.Tensor) or self.batched[number]:
            return argument
        return argument.expand(self.size, *argument.shape)

    def _general(self, position: int, gs: list[torch.Tensor | None]) -> General:
        """Return the gradients of argument ``position`` by derivatives of the op itself."""
        # vmap takes tensors by position
        tensors = [
            index
            for index, argument in enumerate(self.arguments)
            if isinstance(argument, torch.Tensor)
        ]

        def op(*values: Tensor) -> Any:
            """Run the op on its tensors alone. All other arguments are those of the call."""
            full = list(self.arguments)
            for index, value in zip(tensors, values, strict=True):
                full[index] = value
            args, kwargs = unflattened(full, self.spec)
            return self.op.func(*args, **kwargs)

        dims = [0 if self.batched[index] else None for index in tensors]
        values = [self.arguments[index] for index in tensors]
        return General(op, values, dims, tensors.index(position), gs)


def _to_dtype(term: Dense, dtype: torch.dtype) -> Dense:
    """Return gradients in the dtype of the parameter.

    The gradients of a real parameter are real. A complex cotangent comes from another operand,
    which is complex.
    """
    values = term.values
    if term.dtype.is_complex and not dtype.is_complex:
        values = values.real
    return Dense(values.to(dtype))


def adapt(
    op: Op, parts: list[torch.Tensor | float | None], batched: list[bool], spec: Layout, size: int
) -> None:
    """Make arguments that count samples, or elements of them, those of one sample."""
    args, _ = unflattened(range(len(parts)), spec)
    if op.base_name == "native_group_norm":
        # its N counts the images of the batch; of one sample they are behind the batch dimension
        parts[args[3]] = parts[args[0]].shape[1]
    elif op.base_name in ("_embedding_bag", "_embedding_bag_forward_only") and size > 1:
        # offsets count from the first index of the sample, not of the batch
        offsets, length = parts[args[2]], parts[args[1]].shape[1]
        starts = torch.arange(size, device=offsets.device).unsqueeze(1) * length
        parts[args[2]], batched[args[2]] = offsets.reshape(size, -1) - starts, True
