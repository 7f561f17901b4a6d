"""Run a described call of an overload, and say what it does that no call may do.

    KernelCall(Kernel.of_overload(mm), {"self": …, "mat2": …}).fault()
    "it writes beside mat2"

Each tensor lies in the middle of a larger piece of memory. The rest of it holds zeros in a first
call, and NaN or ones in a second one, as in :mod:`gen.checks.wrong_calls.neighbours`. A fault is

- an assertion of torch's own that fails,
- a result that depends on what lies beside the arguments, or a write there,
- an argument that is another one afterwards, though the schema does not say that it is written to.

An error of any other kind is right.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from gen.checks.kernels.call_descriptions import Arguments, build
from gen.outcomes import ErrorMismatch, refuse_fault
from gen.torch_private.aten_overloads import (
    Overload,
    full_name,
    length_of,
    names_of,
    writes_of,
)
from gen.torch_private.loaded_with_torch import pytree

__all__ = ["Kernel", "KernelCall", "Parameter"]

Tensor = torch.Tensor
Answer = list[object] | Exception
_ROOM = 1 << 12
"""Elements on each side of a tensor: as many as the largest tensor of a right call has, so that a
kernel that leaves a tensor by a row or two meets them."""
_LARGEST = 1 << 20  # elements of a result that is compared


@dataclass(frozen=True)
class Parameter:
    """An argument of a kernel."""

    name: str
    # Its type in the schema, such as `Optional[int]`.
    kind: str
    # whether only a keyword passes it
    by_name: bool = False
    # whether the kernel writes to it
    is_written: bool = False
    has_default: bool = False
    # The length of a list, if the schema gives one.
    length: int | None = None


@dataclass(frozen=True)
class Kernel:
    """What is called, with its name for messages and its arguments in their order."""

    name: str
    call: Callable[..., object]
    parameters: Sequence[Parameter]

    @classmethod
    def of_overload(cls, overload: Overload) -> Kernel:
        """Return the kernel of an overload, whose schema says the kinds of its arguments.

        ``overload``: such as ``torch.ops.aten.mm.default``, or one of a library of one's own. An
        argument with an alias that is written to, ``Tensor(a!)``, may be another one afterwards.
        """
        # An argument without an alias that is written to has to stay as it is, see `_Memory.fault`.
        written = names_of(writes_of(overload))
        parameters = [
            # `real_type` has a dtype as ScalarType, but `type` has it as an int.
            Parameter(
                argument.name,
                str(argument.real_type),
                argument.kwarg_only,
                argument.name in written,
                argument.has_default_value(),
                length_of(argument),
            )
            for argument in overload._schema.arguments
        ]
        return cls(full_name(overload), overload, parameters)

    @classmethod
    def of_function(
        cls,
        name: str,
        call: Callable[..., object],
        args: Sequence[object],
        kwargs: Mapping[str, object],
    ) -> Kernel:
        """Return a function as a kernel, for a call whose values say the kinds of arguments.

        `name` is its name in messages, and `args` and `kwargs` are its right call. The function may
        write to any tensor, since it has no schema. Arguments by place are called by their number,
        such as ``argument 0``.
        """
        numbered = [(f"argument {place}", value) for place, value in enumerate(args)]
        parameters = [Parameter(key, _kind(value), False, True) for key, value in numbered]
        parameters += [Parameter(key, _kind(kwargs[key]), True, True) for key in kwargs]
        return cls(name, call, parameters)

    def run(self, values: dict[str, object]) -> object:
        """Call the kernel with arguments by the names of its parameters, and return the results.

        An argument that `values` leaves out has its default. Raises the error of the kernel.
        """
        args: list[object] = []
        kwargs: dict[str, object] = {}
        for parameter in self.parameters:
            if parameter.name not in values:
                continue
            if parameter.by_name:
                kwargs[parameter.name] = values[parameter.name]
            else:
                args.append(values[parameter.name])
        return self.call(*args, **kwargs)


def _kind(value: object) -> str:
    """Return the kind of an argument as a schema has it: `int` for 2."""
    return _KINDS.get(type(value), type(value).__name__)


_KINDS: dict[type, str] = {torch.dtype: "ScalarType", torch.layout: "Layout", complex: "number"}


@dataclass(frozen=True)
class KernelCall:
    """A call of a kernel."""

    kernel: Kernel
    arguments: Arguments
    # the difference from a right call
    label: str = "the right call"

    def is_taken(self) -> bool:
        """Return whether the overload returns, and raises nothing."""
        return not isinstance(self._answer(_Memory(0, self._written)), Exception)

    def fault(self) -> str:
        """Return what the call does that no call may do. Empty if there is nothing.

        The process may end here. :func:`~gen.checks.kernels.dying_calls.outcomes_of` survives it.
        """
        answers: list[Answer] = []
        # Both memories live until the end, so that no result lies where the other memory was.
        memories = [_Memory(turn, self._written) for turn in range(2)]
        for memory in memories:
            answers.append(self._answer(memory))
            # A buffer that has grown has left its piece, so the second call would show nothing.
            fault = _assertion(answers[-1]) or memory.fault()
            if fault or memory.is_resized:
                return fault
        output = _first_difference(*answers)
        if output is None:
            return ""
        # A result that differs in each call, as that of a draw, says nothing of memory. Nor does
        # memory that the kernel returns without having written to it.
        for turn in range(2):
            again = self._answer(_Memory(turn, self._written))
            if _first_difference(answers[turn], again) is not None:
                return ""
        return f"{output} depends on what lies beside the arguments"

    @property
    def _written(self) -> frozenset[str]:
        """Return the names of the arguments that the kernel may write to."""
        parameters = self.kernel.parameters
        return frozenset(parameter.name for parameter in parameters if parameter.is_written)

    def _answer(self, memory: _Memory) -> Answer:
        """Return copies of the results of a call, or what it raises.

        What has no description as a tensor, such as a compressed one of no dimension, counts as
        refused. Results are copied at once, as they may be views of the arguments.
        """
        # `torch.manual_seed` seeds accelerators as well, and takes longer than most calls.
        torch.default_generator.manual_seed(0)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            try:
                values = memory.built(self.arguments)
                results = self.kernel.run(values)
                return [_copy(result) for result in pytree.tree_leaves(results)]
            # Kernels raise different errors, and some descriptions fit no tensor.
            except Exception as error:
                return error


def _assertion(answer: Answer) -> str:
    """Return the assertion of torch's own that has failed, if one has."""
    if not isinstance(answer, Exception):
        return ""
    try:
        refuse_fault(answer)
    except ErrorMismatch as mismatch:
        return str(mismatch)
    return ""


class _Memory:
    """Tensors of a call, each in the middle of a larger piece of memory.

    The storage of a tensor is only its part of the piece, and no op can make it larger. If it were
    a view of the piece, ops of views could read the rest, and a buffer could grow into it. A tensor
    without elements has memory of its own.
    """

    def __init__(self, turn: int, written: Collection[str]) -> None:
        # 0 for zeros in the rest of a piece, 1 for NaN, or for ones where there is no NaN
        self._turn = turn
        self._written = written
        self._name = ""
        self._pieces: list[_Piece] = []

    def built(self, arguments: Arguments) -> dict[str, object]:
        """Return the arguments of a description, with their tensors in this memory.

        Each argument draws its numbers from a seed of its own place, so that one that changes
        leaves the others as they are.
        """
        values: dict[str, object] = {}
        for place, (name, described) in enumerate(arguments.items()):
            self._name = name
            values[name] = build(described, self._placed, 100 * place)
        return values

    def _placed(self, x: Tensor) -> Tensor:
        """Return a copy of a tensor in the middle of a piece, and note the piece."""
        size = x.numel()
        if not size:
            return x.clone()
        whole = x.new_full((size + 2 * _ROOM,), _filler(x.dtype, self._turn))
        middle = whole[_ROOM : _ROOM + size]
        middle.copy_(x.reshape(-1))
        # NumPy's array of a slice becomes a storage that ends where the slice does.
        raw = torch.from_numpy(middle.view(torch.uint8).numpy())
        inside = raw.view(x.dtype).view(x.shape)
        self._pieces.append(_Piece(self._name, whole, inside, x))
        return inside

    @property
    def is_resized(self) -> bool:
        """Return whether an argument has another size now, and with it other memory."""
        return any(piece.inside.shape != piece.before.shape for piece in self._pieces)

    def fault(self) -> str:
        """Say which argument the call has changed, or which memory beside an argument.

        An argument that may be written to may have other elements and another size. The memory
        beside it must stay as it is, even if the call has raised an error.
        """
        for piece in self._pieces:
            is_written = piece.name in self._written
            if piece.inside.shape != piece.before.shape:
                if is_written:
                    continue
                return f"it gives {piece.name} another size"
            if piece.is_written_beside(self._turn):
                return f"it writes beside {piece.name}"
            if not is_written and piece.is_changed:
                return f"it changes {piece.name}, which the schema does not say"
        return ""


@dataclass(frozen=True)
class _Piece:
    """A piece of memory around a tensor, which shows writes beside the tensor."""

    name: str
    whole: Tensor
    # the tensor itself
    inside: Tensor
    # a copy of the tensor from before the call
    before: Tensor

    @property
    def is_changed(self) -> bool:
        """Return whether the tensor has other elements than before."""
        middle = self.whole[_ROOM : _ROOM + self.before.numel()]
        return not torch.equal(_bytes(middle), _bytes(self.before))

    def is_written_beside(self, turn: int) -> bool:
        """Return whether the rest of the piece is other than what it was filled with."""
        rest = _filler_bytes(self.before.dtype, turn)
        raw = self.whole.view(torch.uint8)
        sides = (raw[: len(rest)], raw[-len(rest) :])
        return not all(torch.equal(side, rest) for side in sides)


def _bytes(x: Tensor) -> Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


_FILLERS: dict[tuple[torch.dtype, int], Tensor] = {}  # made once: each call compares with them


def _filler_bytes(dtype: torch.dtype, turn: int) -> Tensor:
    """Return the bytes of what lies on one side of a tensor."""
    if (dtype, turn) not in _FILLERS:
        side = torch.full((_ROOM,), _filler(dtype, turn), dtype=dtype)
        _FILLERS[dtype, turn] = side.view(torch.uint8)
    return _FILLERS[dtype, turn]


def _filler(dtype: torch.dtype, turn: int) -> float:
    """Return the number that lies beside a tensor in this turn."""
    if not turn:
        return 0.0
    # NaN spreads through most arithmetic. An integer may be an index, and most tensors have the
    # index 1.
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 1.0


def _copy(result: object) -> object:
    """Return the part of a result that can be compared: a copy of a tensor, or the result itself.

    None stands for a tensor of another layout. It also stands for a tensor with more elements than
    any right result here, such as an expanded one.
    """
    if not isinstance(result, Tensor):
        return result
    is_plain = result.layout is torch.strided and not result.is_quantized and not result.is_nested
    if not is_plain or result.device.type != "cpu" or math.prod(result.shape) > _LARGEST:
        return None
    x = result.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    if x.is_complex():
        x = torch.view_as_real(x)
    # NaN is not equal to itself, so it becomes a number that results hardly have.
    if x.is_floating_point():
        return torch.nan_to_num(x.double(), nan=math.pi, posinf=math.e, neginf=-math.e)
    return x


def _first_difference(first: Answer, second: Answer) -> str | None:
    """Return the first difference between the results of two calls, or None if there is none.

    Two refusals are no difference, whatever their errors are.
    """
    # A call that is refused beside zeros and taken beside NaN has looked there to decide.
    if isinstance(first, Exception) or isinstance(second, Exception):
        both = isinstance(first, Exception) and isinstance(second, Exception)
        return None if both else "whether it is taken"
    for index, (x, y) in enumerate(zip(first, second, strict=False)):
        if not _same(x, y):
            return f"result {index}"
    return None


def _same(x: object, y: object) -> bool:
    """Return whether two results are equal. NaN among numbers of Python is equal to itself."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x.dtype is y.dtype and torch.equal(x, y)
    return repr(x) == repr(y)
