"""Turn arguments that share memory into views of one base, if the program writes to one of them.

    def f(a, b):
        a.add_(1)
        return b * 2
    f(x[:2], x[1:])     # the graph takes x, views it twice, and gives its new value

If one of them requires grad, the base is the tensor whose views they are for autograd, so that the
write is a part of its history. If there is no such tensor, as for ``x`` and ``x.detach()``, each
has its own history, and a write to one is in no history of the others.
"""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import fx

from ...functionalize.overlap import shows_twice
from ...seam.graph_walks import nodes_among, results_of
from ...session.tensor import Tensor, unwrap
from ...tape.values import edge_of
from ...trace.outside import FOREIGN, foreign_span
from ...trace.provenance import Line, happened_at, origin_of
from ..capture.aliasing import Group, owners_of, place_of
from ..capture.boundary import Input, Made
from ..capture.joint import Joint
from ..python_state.contents import Buffer, Elements
from ..python_state.nodes import Node
from ..python_state.reads import extent_of
from .arguments import Call, Kind, Target


def refuse_untangled(
    groups: Sequence[Group], call: Call, n_arguments: int, inputs: Sequence[Input] = ()
) -> None:
    """Refuse arguments that share memory where a write to one of them cannot be carried over to the
    others.

    ``inputs``: what the program does to the arguments, if that is known.
    """
    for group in groups:
        where = happened_at(_line_of_write(group, inputs))
        if group.storages:
            raise RuntimeError(
                f"{_names_of(group, n_arguments)} share memory by several storages, as tensors of "
                "one array of NumPy do, and the program writes to it. "
                f"Make one tensor of the memory, and take views of it.{where}"
            )
        if len(group.members) == 1 and not group.parts_of:
            _refuse_overlapping(group, call, n_arguments, where)
            continue
        what = _names_of(group, n_arguments)
        if group.parts_of and not group.identical:
            raise RuntimeError(
                "Encountered aliased inputs that are mutated in the graph, but one of them "
                f"is a tensor subclass. This is not supported today: parts of a {group.parts_of} "
                f"share memory ({what}), and the program writes to it. Pass a clone.{where}"
            )
        # the members are in order, and tensors that the program closes over come last
        if group.members[-1] >= n_arguments:
            raise RuntimeError(
                f"{what} share memory, and the program writes to it. "
                f"Pass them all as arguments.{where}"
            )
        if not group.identical:
            _refuse_unlike(group, call, what, where)


def _line_of_write(group: Group, inputs: Sequence[Input]) -> Line | None:
    """Return the user's line that writes to a member of ``group``, if that is known."""
    for index in group.members:
        if index < len(inputs) and inputs[index].written_at:
            return inputs[index].written_at
    return None


def _names_of(group: Group, n_arguments: int) -> str:
    """Name the members of ``group`` in a message: ``argument 0 and argument 2``."""
    names = []
    for index in group.members:
        if index < n_arguments:
            names.append(f"argument {index}")
        else:
            names.append("a tensor that the program closes over")
    return " and ".join(names)


def _refuse_unlike(group: Group, call: Call, what: str, where: str) -> None:
    """Refuse members of ``group`` that are no views of one base.

    ``what``: their names in the message. ``where``: the end of the message.
    """
    plain = [call.plain[index] for index in group.members]
    if len({tensor.dtype for tensor in plain}) > 1:
        raise RuntimeError(
            f"{what} share memory and have different dtypes, "
            f"and the program writes to it. Pass one of them.{where}"
        )
    if len(set(map(_lazy_form, plain))) > 1:
        raise RuntimeError(
            f"{what} share memory, one is a lazy conjugate, and the program writes to it. "
            f"Pass its resolve_conj().{where}"
        )
    # without a gradient any base will do
    if not any(call.wanted[index] for index in group.members):
        return
    base = _autograd_base(group, call)
    if base is not None and _lazy_form(base) != _lazy_form(plain[0]):
        raise RuntimeError(
            f"{what} share memory, the program writes to it, and one of them requires grad. "
            f"They show a {_form_text(base)} tensor as {_form_text(plain[0])}, which the graph "
            f"of the write cannot say. Pass one tensor and take views inside.{where}"
        )
    if base is None and not _have_own_histories(group, call):
        raise RuntimeError(
            f"{what} share memory, the program writes to it, and one of them requires grad. "
            "Some are views of one tensor that were made with grad mode, others are not, so "
            "the write cannot be a part of its history. "
            f"Pass one tensor and take views inside.{where}"
        )


def _carries_write(base: Any, shown: Any) -> bool:
    """Return whether a write to ``shown`` is a write to ``base``, by strides alone."""
    if base is None or shows_twice(base._inner):
        return False
    return _lazy_form(base) == _lazy_form(shown)


def _lazy_form(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    """Return the dtype and flags of a tensor's memory, which are the same for all strided views."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def _form_text(tensor: torch.Tensor) -> str:
    """Return how a tensor reads its memory, for a message."""
    words = (("conjugate", tensor.is_conj()), ("negative", tensor.is_neg()))
    lazy = [word for word, is_on in words if is_on]
    return " ".join([*lazy, str(tensor.dtype).removeprefix("torch.")])


def _refuse_overlapping(group: Group, call: Call, n_arguments: int, where: str) -> None:
    """Refuse a tensor that shows elements several times where a write to it cannot be carried over.

    ``where``: the end of the message.
    """
    (index,) = group.members
    if index >= n_arguments:
        raise RuntimeError(
            "the program writes to a tensor that it closes over, "
            "and that shows an element of its memory several times. "
            f"Pass it as an argument.{where}"
        )
    # the gradient goes to the tensor whose view it is, and that must have its elements once
    base = _autograd_base(group, call)
    if call.wanted[index] and not _carries_write(base, call.plain[index]):
        raise RuntimeError(
            f"argument {index} shows an element of its memory several times, the program writes "
            "to it, and it requires grad. It is no view of a tensor of its dtype that was made "
            "with grad mode, so the write cannot be a part of its history. "
            f"Pass that tensor and view it inside.{where}"
        )


def with_autograd_base(group: Group, call: Call) -> Group:
    """Return ``group`` with the place of its base, if autograd must know that.

    ``call`` has passed :func:`refuse_untangled`.
    """
    if group.identical:
        return group
    if not any(call.wanted[index] for index in group.members):
        if not _may_separate_histories(group, call):
            return group
        return dataclasses.replace(group, histories=_histories(group, call))
    base = _autograd_base(group, call)
    if base is None:
        return dataclasses.replace(group, histories=_histories(group, call))
    return dataclasses.replace(group, base_place=place_of(base._inner))


class _Base(NamedTuple):
    """Hold the tensor whose views the members of a group are: for the history, and plain for the
    graph."""

    leaf: torch.Tensor
    plain: torch.Tensor


def with_bases(call: Call, groups: Sequence[Group]) -> Call | None:
    """Return ``call`` with the bases of ``groups`` as further arguments.

    The gradient of a member goes to its base. None if a group has no base, or has it at another
    place than in the call that was captured.
    """
    # members that are one tensor need no base: each is one
    groups = [group for group in groups if not group.identical]
    through_base: set[int] = set()
    for group in groups:
        if group.differentiated:
            through_base.update(group.members)
    # a member whose base gets the gradient is no more differentiated itself
    leaves, plain = [*call.leaves], [*call.plain]
    targets = _targets_except(call, through_base)
    kinds: list[Kind] = [
        (kind[0] and index not in through_base, *kind[1:]) for index, kind in enumerate(call.kinds)
    ]
    for group in groups:
        base = _base_of(group, call)
        if base is None:
            return None
        leaves.append(base.leaf)
        plain.append(base.plain)
        if group.differentiated:
            targets.append(edge_of(base.leaf))
        kinds.append((group.differentiated,))
    return Call(leaves, plain, targets, kinds)


def _targets_except(call: Call, members: set[int]) -> list[Target | None]:
    """Return the edges for the gradients of ``call``, except those of ``members``."""
    wanted = [index for index, kind in enumerate(call.kinds) if kind[0]]
    return [
        target for index, target in zip(wanted, call.targets, strict=True) if index not in members
    ]


def _base_of(group: Group, call: Call) -> _Base | None:
    """Return the base of ``group``, or None if this call has none, or has it at another place."""
    if group.differentiated:
        return _base_for_autograd(group, call)
    if group.histories:
        if _histories(group, call) != group.histories:
            return None
        plain = group.base(call.plain)
        return _Base(plain, plain)
    if _may_separate_histories(group, call):
        return None
    # If a write may give all members a history, the base has to be a view of which autograd knows.
    if _common_base(group, call) is None:
        leaf = group.base([*map(unwrap, call.leaves)])
    else:
        with torch.enable_grad():
            leaf = group.base(call.leaves)
    return _Base(leaf, group.base(call.plain))


def _base_for_autograd(group: Group, call: Call) -> _Base | None:
    """Return the base of ``group`` through which gradients go to its members."""
    base = _autograd_base(group, call)
    if base is None or place_of(base._inner) != group.base_place:
        return None
    leaf: Any = base
    # a member may change its geometry in place, and the base must not change with it
    if any(base is call.leaves[index] for index in group.members):
        with torch.enable_grad():
            leaf = base.view_as(base)
    return _Base(leaf, base._inner)


def _histories(group: Group, call: Call) -> tuple[int, ...]:
    """Return a number for each member of ``group``. Views of one tensor have the same."""
    bases: dict[int, int] = {}
    tensors = [call.leaves[index] for index in group.members]
    histories = []
    for tensor in tensors:
        whole = tensor
        if isinstance(tensor, Tensor) and tensor._view is not None:
            whole = tensor._view.base
        histories.append(bases.setdefault(id(whole), len(bases)))
    return tuple(histories)


def _may_separate_histories(group: Group, call: Call) -> bool:
    """Return whether a recorded write to one of several members without history gives it one that
    others do not take part in, as for ``x`` and ``x.data``."""
    if len(group.members) < 2 or not any(call.wanted):
        return False
    if not all(isinstance(call.leaves[index], Tensor) for index in group.members):
        return False
    return _common_base(group, call) is None


def _have_own_histories(group: Group, call: Call) -> bool:
    """Return whether each member of ``group`` that requires grad shares its history with no other
    tensor, and shows each element once."""
    histories = _histories(group, call)
    return all(
        group.alone(index, histories) and not shows_twice(call.plain[index])
        for index in group.members
        if call.wanted[index]
    )


def _autograd_base(group: Group, call: Call) -> Tensor | None:
    """Return the common base of the members, if it requires grad."""
    base = _common_base(group, call)
    if base is None or edge_of(base) is None:
        return None
    return base


def _common_base(group: Group, call: Call) -> Tensor | None:
    """Return the tensor of which all members are views for autograd, or which they are, if writes
    to them may be recorded."""
    common: Tensor | None = None
    for index in group.members:
        tensor = call.leaves[index]
        if not isinstance(tensor, Tensor):
            return None
        view = tensor._view
        # a view of a no_grad block or of several results: autograd refuses a write to it
        if view is not None and view.creation:
            return None
        base: Tensor = tensor
        if view is not None:
            base = view.base
        if common is not None and base is not common:
            return None
        common = base
    return common


# --- arrays over the memory of tensors ------------------------------------------------------------

Range = tuple[int, int]
_ARRAYS = (np.ndarray, array.array, bytearray, memoryview)


def refuse_shared_writes(
    nodes: Iterable[Node],
    given: Iterable[object],
    tensors: Sequence[tuple[torch.Tensor, object]],
    changed: Collection[tuple[int, object]],
    line: Line | None,
) -> None:
    """Refuse a program that changes a tensor or an array, and comes to the other one in the same
    memory. ``nodes``: of the objects that it finds. ``given``: its arguments. ``tensors``: of its
    graph, each with the input that it is. ``changed``: by identity, the objects that it changes.
    ``line``: of the program."""
    arrays = [node.owner for node in nodes if isinstance(node, (Elements, Buffer))]
    arrays += [argument for argument in given if isinstance(argument, _ARRAYS)]
    # most programs have none, and then no memory need be compared
    if not arrays:
        return
    identities = {identity for identity, _ in changed}
    places = [(_place_of(unwrap(tensor)), entry) for tensor, entry in tensors]
    for owner in arrays:
        for entry in _sharing(_place_of_array(owner), places):
            if entry.written or id(owner) in identities:
                _refuse_array(owner, entry.written_at or line)


def refuse_results_over_arrays(
    joint: Joint,
    nodes: Iterable[Node],
    given: Sequence[object],
    known: Container[int],
    line: Line | None,
) -> None:
    """Refuse a program that returns or assigns a tensor which it has made over the memory of an
    array, as by ``torch.from_numpy``: in eager mode a write to one shows in the other.

    ``nodes``: of the objects that it finds. ``given``: its arguments. ``known``: identities of the
    tensors that it finds. ``line``: of the program.
    """
    found = [node.owner for node in nodes if isinstance(node, (Elements, Buffer))]
    arguments = [argument for argument in given if isinstance(argument, _ARRAYS)]
    spans = [(_place_of_array(owner), owner) for owner in (*found, *arguments)]
    # a copy in the graph; that of an array which only the program has is as new as the array
    for literal in _literals_in_results(joint):
        if spans and _sharing(literal.meta[FOREIGN], spans):
            _refuse_result(origin_of(literal) or line)
    # a tensor that the graph takes and that is there for all calls, as of `torch.frombuffer`
    of_found = spans[: len(found)]
    for tensor in _returned_of_closed_over(joint):
        place = foreign_span(unwrap(tensor))
        if place is None or id(tensor) in known:
            continue
        if not _sharing(place, of_found):
            _refuse_result(line)


def _returned_of_closed_over(joint: Joint) -> Iterator[torch.Tensor]:
    """Yield the tensors that the program closes over and returns, or of which it returns a view."""
    first = len(joint.boundary.inputs) - len(joint.closed_over)
    for output in joint.boundary.outputs:
        if output.made is Made.INPUT and output.number >= first:
            yield joint.closed_over[output.number - first]


def _literals_in_results(joint: Joint) -> list[fx.Node]:
    """Return the literals over foreign memory in which a result of the program lies, or may lie."""
    graph = joint.traced.graph
    if not any(node.meta.get(FOREIGN) for node in graph.nodes):
        return []
    owners = owners_of(graph)
    computed = results_of(graph)[len(joint.boundary.written) : joint.n_forward]
    returned = nodes_among(computed)
    return [owner for node in returned for owner in owners[node] if owner.meta.get(FOREIGN)]


def _refuse_result(line: Line | None) -> NoReturn:
    raise RuntimeError(
        "the program returns or assigns a tensor in the memory of an array or a buffer, which it "
        "has made there by torch.from_numpy, torch.as_tensor or torch.frombuffer. A graph would "
        "give another memory. Make the tensor before the program, or let it return a "
        f"clone().{happened_at(line)}"
    )


def _sharing(place: Range, places: Iterable[tuple[Range, object]]) -> list[Any]:
    """Return what is at those of ``places`` that have memory of ``place``."""
    begin, end = place
    return [entry for (first, last), entry in places if first < end and begin < last]


def _refuse_array(x: object, line: Line | None) -> NoReturn:
    raise RuntimeError(
        f"the program changes a tensor or an array ({type(x).__name__}), and comes to the other "
        "one, which has the same memory. A graph would not tell one of the write to the other. "
        f"Let it use the tensor alone, or a copy.{happened_at(line)}"
    )


def _place_of(tensor: torch.Tensor) -> Range:
    """Return the first and last address of a tensor's memory, if it has memory on the CPU."""
    # no array has memory of another device
    if tensor.device.type != "cpu":
        return 0, 0
    return extent_of(tensor) or (0, 0)


def _place_of_array(owner: Any) -> Range:
    """Return where the memory of the array ``owner`` begins and ends, which may have gaps."""
    try:
        x = owner if isinstance(owner, np.ndarray) else np.asarray(memoryview(owner))
    except ValueError:  # a view of memory that was released
        return 0, 0
    first = x.__array_interface__["data"][0]
    if not x.size:
        return 0, 0
    steps = [(size - 1) * stride for size, stride in zip(x.shape, x.strides, strict=True)]
    # a negative stride, as of ``x[::-1]``, leads to memory before the first element
    below = sum(step for step in steps if step < 0)
    above = sum(step for step in steps if step > 0)
    return first + below, first + above + x.itemsize
