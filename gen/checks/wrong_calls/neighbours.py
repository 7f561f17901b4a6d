"""Ask whether an op reads or writes what lies beside its arguments in memory.

    gru(x, h, [w, …])   ->   gru(x, h, [w without its last row, …])

Each tensor lies in the middle of a larger piece of memory. The rest of it holds zeros in a first
call, and NaN or ones in a second one. A result that differs was computed of the rest. The rest must
be as it was after each call. The calls are the sample itself, and the sample with one argument that
is too small, or has an index that is too large. No op is named here, and nothing says which calls
are mistakes: an op may refuse any of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch

from gen.checks.compare import Tally
from gen.checks.illformed import attempt
from gen.checks.wrong_calls.calls import Call, Inputs, as_it_is, of_ranks
from gen.outcomes import Mismatch, Unsuitable
from gen.samples.samples import Sample
from gen.targets.protocol import Target

__all__ = ["assert_memory_kept"]

Tensor = torch.Tensor
Answer = tuple[Tensor, ...] | Exception
ROOM = 1 << 15
"""Elements on each side of a tensor: more than the tensors of a sample have in a row, so that a
kernel that leaves a tensor by a row or two meets them, and not the end of the process."""


def assert_memory_kept(target: Target, sample: Sample, tally: Tally) -> None:
    """Raise Mismatch if a call depends on what lies beside its arguments, or changes that.

    ``target``: what runs the calls. ``sample``: the right call, of which the others are made.
    ``tally``: gets an entry for each call. The message names each call that leaves its arguments,
    by what is other than in the sample: ``input 1 with 3 of 4 in dimension 0``.

    Raises Unsuitable if the op draws, has no tensor on the CPU, or has other results in each call.
    """
    if sample.facts.random:
        raise Unsuitable("it draws random numbers")
    if not any(map(_has_memory, sample.inputs)):
        raise Unsuitable("it has no tensor that lies in memory")
    asked = _Asked(target, sample)
    if asked.differs_by_itself():
        raise Unsuitable("two calls with the same arguments have other results")
    failures: list[str] = []
    for call in _calls(sample):
        failures += asked.faults(call)
        tally.entries += 1
        tally.nonzero += 1
    if failures:
        raise Mismatch("; ".join(failures))


def _calls(sample: Sample) -> Iterator[Call]:
    """Yield the calls to try, the right one first.

    Each of the others has one argument that is not as in the sample, so that a message says which
    of them a kernel trusts.
    """
    yield as_it_is(sample)
    yield from of_ranks(sample)
    for place, x in enumerate(sample.inputs):
        for label, other in (*_smaller(x), *_with_other_index(sample, x)):
            inputs = (*sample.inputs[:place], other, *sample.inputs[place + 1 :])
            yield Call(f"input {place} {label}", sample, inputs)


def _smaller(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor with one dimension shorter by one, and with half of it.

    Half is what kernels of complex numbers or of pairs may take for all.
    """
    for dim, size in enumerate(x.shape):
        for shorter in sorted({size - 1, size // 2} - {size, -1}):
            yield f"with {shorter} of {size} in dimension {dim}", x.narrow(dim, 0, shorter)


def _with_other_index(sample: Sample, x: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield a tensor of integers whose first one is just beyond the largest dimension of the call,
    or as far below zero.

    It may be an index, a label, an offset or a length. What it is, nothing says here.
    """
    if x.dtype not in (torch.int64, torch.int32) or not x.numel():
        return
    beyond = max(chain.from_iterable(tensor.shape for tensor in sample.inputs), default=0)
    for index in (beyond, -1 - beyond):
        other = x.clone(memory_format=torch.contiguous_format)
        other.view(-1)[0] = index
        yield f"with the number {index} in front", other


@dataclass(frozen=True)
class _Asked:
    """A target, and the sample of which it makes calls."""

    target: Target
    sample: Sample

    def differs_by_itself(self) -> bool:
        """Return whether the right call has other results each time, as memory as it was.

        Then nothing is learned of a call whose results differ.
        """
        call = as_it_is(self.sample)
        first, second = (self._answer(call, _Memory(call.inputs, 0)) for _ in range(2))
        return _first_difference(first, second) is not None

    def faults(self, call: Call) -> Iterator[str]:
        """Yield a text for what a call does beside its arguments."""
        answers = []
        for turn in range(2):
            memory = _Memory(call.inputs, turn)
            answers.append(self._answer(call, memory))
            # one is enough: after a write beside an argument, nothing else of the call counts
            for place in memory.changed():
                yield f"{call.label}: it writes beside argument {place}"
                return
        output = _first_difference(*answers)
        # once more with the first memory, to tell an op whose results vary by themselves
        again = self._answer(call, _Memory(call.inputs, 0))
        if output is None or _first_difference(answers[0], again) is not None:
            return  # without a cause, or by memory that it has not written to
        yield f"{call.label}: {output} depends on what lies beside the arguments"

    def _answer(self, call: Call, memory: _Memory) -> Answer:
        run = self.target.forward(call.run)
        return attempt(self.sample, lambda: tuple(y.clone() for y in run(*memory.tensors)))


def _first_difference(first: Answer, second: Answer) -> str | None:
    """Return which result differs, or that only one call was taken. None if there is none.

    Two refusals are no difference, whatever their errors are.
    """
    if isinstance(first, Exception):
        return _taken_once(second)
    if isinstance(second, Exception):
        return _taken_once(first)
    for index, (x, y) in enumerate(zip(first, second, strict=True)):
        # results of two shapes have been computed of two sizes
        if not torch.equal(_bits(x), _bits(y)):
            return f"output {index}"
    return None


def _taken_once(other: Answer) -> str | None:
    """Return that a call was taken once, if it is the other answer to a refusal."""
    if isinstance(other, Exception):
        return None
    return "whether it is taken"


def _bits(x: Tensor) -> Tensor:
    """Return elements that are equal where those of `x` are the same, NaN among them."""
    if x.layout is not torch.strided or x.is_quantized:
        return torch.zeros(())  # what of it lies in memory, ops say in other ways
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return torch.nan_to_num(x.double(), nan=math.pi, posinf=math.e, neginf=-math.e)


class _Memory:
    """Copies of tensors, each in the middle of a larger piece of memory.

    ``turn``: 0 for zeros in the rest of it, 1 for NaN, or ones where there is none.
    """

    def __init__(self, inputs: Inputs, turn: int) -> None:
        self.tensors: list[Tensor] = []
        self._pieces: list[tuple[int, Tensor, Tensor]] = []
        for place, x in enumerate(inputs):
            self.tensors.append(self._placed(place, x, turn) if _has_memory(x) else x)

    def _placed(self, place: int, x: Tensor, turn: int) -> Tensor:
        """Return a copy of a tensor in the middle of a piece, and note the piece."""
        size = x.numel()
        piece = x.new_full((size + 2 * ROOM,), _filler(x.dtype, turn))
        inside = piece[ROOM : ROOM + size].view(x.shape)
        inside.copy_(x)
        self._pieces.append((place, piece, _rest(piece, size)))
        return inside

    def changed(self) -> Sequence[int]:
        """Return the places of the arguments beside which something else lies now."""
        places = []
        for place, piece, before in self._pieces:
            now = _rest(piece, piece.numel() - 2 * ROOM)
            if not torch.equal(_bits(now), _bits(before)):
                places.append(place)
        return places


def _rest(piece: Tensor, size: int) -> Tensor:
    """Return a copy of what lies before and behind the middle of `size` elements, in one row."""
    return torch.cat([piece[:ROOM], piece[ROOM + size :]])


def _filler(dtype: torch.dtype, turn: int) -> float:
    """Return what lies beside a tensor in this turn.

    NaN goes through most arithmetic. Of integers, one is an index that most tensors have, so that
    a kernel that takes it for one goes on.
    """
    if not turn:
        return 0.0
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 1.0


def _has_memory(x: Tensor) -> bool:
    """Return whether a tensor is strided, on the CPU, and of a dtype that copies have."""
    return x.layout is torch.strided and x.device.type == "cpu" and not x.is_quantized
