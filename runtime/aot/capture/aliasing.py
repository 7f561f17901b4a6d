"""Find what shares memory: values of a graph, or arguments of a call.

sharing([x[:2], y, x[1:]])      # one group, with members (0, 2)
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from ...functionalize.functional_value import FunctionalValue
from ...functionalize.overlap import shows_twice
from ...functionalize.stores import Memory, is_written_in_part
from ...rules.ops import op_of
from ...seam.graph_walks import nodes_among, results_of
from ...seam.memory import storage_of
from ...torch_private.dispatcher import OpOverload
from ...torch_private.native_functions import native_linear
from ...trace.provenance import made_at
from .subclass_parts import composed, flattened

aten = torch.ops.aten
LINEAR = native_linear  # in graphs that are about to run, see :mod:`..compilers.peephole`


# ops whose results share memory with their argument although the schema does not say so
_UNDECLARED = frozenset(
    (aten.unsafe_split.Tensor, aten.unsafe_split_with_sizes.default, aten._unsafe_view.default)
)


def may_alias(node: fx.Node) -> bool:
    """Return whether the result of a call may share memory with an argument."""
    func = node.target
    if type(func) is OpOverload:
        return may_return_argument(func)
    return func is not LINEAR


def aliased_inputs(node: fx.Node) -> list[fx.Node]:
    """Return the inputs of a call with which its result may share memory; none if it is new."""
    if node.op != "call_function" or not may_alias(node):
        return []
    return node.all_input_nodes


@cache
def may_return_argument(func: OpOverload) -> bool:
    """Return whether a result of ``func`` may share memory with an argument."""
    return (
        func in _UNDECLARED
        # a composite op may return its argument itself, as `dropout` does in evaluation
        or func._can_decompose()
        or any(argument.alias_info is not None for argument in func._schema.arguments)
    )


@cache
def functional_pointwise(func: object) -> bool:
    """Return whether ``func`` computes each element of a new tensor from those at the same
    place."""
    if type(func) is not OpOverload or torch.Tag.pointwise not in func.tags:
        return False
    if func._can_decompose() or func._schema.is_mutable:
        return False
    returns = func._schema.returns
    return len(returns) == 1 and returns[0].alias_info is None


def fresh(node: fx.Node) -> bool:
    """Return whether ``node`` is known to be a tensor in memory of its own, laid out without gaps
    or overlaps, and the only name of it."""
    if node.op != "call_function":
        return False
    if node.target is LINEAR or functional_pointwise(node.target):
        return True
    # an item is new if its call makes new tensors, and nobody takes the same item again
    if node.target is operator.getitem:
        several: Any = node.args[0]
        return _fresh(several.target) and not any(_shows(user, node) for user in several.users)
    return _fresh(node.target)


def _shows(user: fx.Node, item: fx.Node) -> bool:
    """Return whether ``user``, a call that takes a tuple, shows ``item`` of the tuple a second
    time."""
    if user is item:
        return False
    return user.target is not operator.getitem or user.args[1] == item.args[1]


def _fresh(func: object) -> bool:
    """Return whether ``func`` makes its results in new memory."""
    if not isinstance(func, OpOverload):
        return False
    record = op_of(func).record
    return record is not None and record.fresh


def within_reach(forward: fx.Graph, n_results: int) -> tuple[int, ...]:
    """List the tensors saved by ``forward`` that the caller can write to.

    These are the tensors after its ``n_results`` results that may share memory with an input or
    with a result. Each is a number among the saved values.
    """
    # the caller has the arguments, the constants, and whatever lies behind a result
    owners = owners_of(forward)
    seen = {node for node in forward.nodes if node.op in ("placeholder", "get_attr")}
    results = results_of(forward)
    for node in nodes_among(results[:n_results]):
        seen |= owners[node]
    return _numbers_sharing(results[n_results:], owners, seen)


def saved_of(forward: fx.Graph, n_results: int, inputs: Collection[int]) -> tuple[int, ...]:
    """List the values after the ``n_results`` results of ``forward`` that may share memory with the
    inputs of these numbers."""
    owners = owners_of(forward)
    placeholders = forward.find_nodes(op="placeholder")
    wanted = {placeholders[index] for index in inputs}
    results = results_of(forward)
    return _numbers_sharing(results[n_results:], owners, wanted)


def _numbers_sharing(
    values: Sequence[fx.Node],
    owners: Mapping[fx.Node, frozenset[fx.Node]],
    others: Set[fx.Node],
) -> tuple[int, ...]:
    """Return the numbers of those ``values`` that are tensors and may share memory with one of
    ``others``. ``owners``: as :func:`owners_of` returns it."""
    return tuple(
        index
        for index, node in enumerate(values)
        if owners[node] & others and isinstance(node.meta.get("val"), torch.Tensor)
    )


def saved_of_results(
    forward: fx.Graph, results: Sequence[Sequence[int]], n_results: int
) -> tuple[int, ...]:
    """List those of ``results`` that may share memory with what comes after all results.

    Each of ``results`` is a list of numbers of results of ``forward``: the parts of one tensor.
    """
    owners = owners_of(forward)
    returned_values = results_of(forward)
    saved: set[fx.Node] = set()
    for node in returned_values[n_results:]:
        if isinstance(node.meta.get("val"), torch.Tensor):
            saved |= owners[node]
    sharing_saved: list[int] = []
    for index, numbers in enumerate(results):
        # a part may be a constant, which has no memory
        nodes = nodes_among(returned_values[index] for index in numbers)
        if not all(saved.isdisjoint(owners[node]) for node in nodes):
            sharing_saved.append(index)
    return tuple(sharing_saved)


def owners_of(graph: fx.Graph) -> dict[fx.Node, frozenset[fx.Node]]:
    """Return for each value the values that may own its memory, itself among them."""
    owners: dict[fx.Node, frozenset[fx.Node]] = {}
    for node in graph.nodes:
        own = frozenset((node,))
        owners[node] = own.union(*(owners[source] for source in aliased_inputs(node)))
    return owners


Place = tuple[torch.Size, tuple[int, ...], int]  # size, stride, offset


@dataclass(frozen=True)
class Group:
    """Describe arguments that share memory, or one argument that shows an element several times.

    A group has no places if several storages have its memory, or if a member has parts.
    """

    # The numbers of the arguments.
    members: tuple[int, ...]
    # Whether they are one tensor.
    identical: bool
    # The part of the storage with all of them begins here, in elements.
    start: int = 0
    length: int = 0
    # Size, stride and offset of each.
    places: tuple[Place, ...] = ()
    # The place of the tensor whose views they are for autograd, if one of them requires grad.
    base_place: Place | None = None
    # A number for each, the same for views of one tensor. Empty if all share the history of one
    # tensor. `x` and `x.detach()` do not: a write to one changes the elements of the other, but not
    # its history.
    histories: tuple[int, ...] = ()
    # For each the first member that is the same tensor. That one stands for both.
    firsts: tuple[int, ...] = ()
    # The class of a member that consists of several tensors, if parts of it share memory with one
    # another or with another argument.
    parts_of: str = ""
    # Whether several storages have the memory, as those of `torch.from_numpy(a)` and
    # `torch.from_numpy(a[1:])` do.
    storages: bool = False

    @property
    def differentiated(self) -> bool:
        """Return whether a gradient goes to the base of the members."""
        return self.base_place is not None

    def first(self, index: int) -> int:
        """Return the first member that is the same tensor as member ``index``."""
        if self.identical:
            return self.members[0]
        if not self.firsts:
            return index
        return self.firsts[self.members.index(index)]

    def alone(self, i: int, histories: Sequence[int]) -> bool:
        """Return whether no other tensor among the members has the history of member ``i``.

        ``histories``: of the members, as for a group.
        """
        own = histories[self.members.index(i)]
        return all(
            self.first(index) == self.first(i)
            for index, history in zip(self.members, histories, strict=True)
            if history == own
        )

    def base(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the vector of all elements that the members share."""
        return tensors[self.members[0]].as_strided((self.length,), (1,), self.start)

    def place(self, index: int) -> Place:
        """Return size, stride and offset of member ``index`` in the base.

        An offset in a base of autograd counts from the start of the storage.
        """
        size, stride, offset = self.places[self.members.index(index)]
        if not self.differentiated:
            offset -= self.start
        return size, stride, offset


def place_of(tensor: torch.Tensor) -> Place:
    """Return the extent of the elements of ``tensor`` in its storage."""
    return tensor.shape, tensor.stride(), int(tensor.storage_offset())


def memory_of(tensor: torch.Tensor) -> int | None:
    """Return a number for the storage of ``tensor``; None for a tensor that is not strided."""
    if tensor.layout is not torch.strided:
        return None
    number: int = storage_of(tensor)._cdata
    return number


def sharing(tensors: Sequence[object]) -> tuple[Group, ...]:
    """Return the groups of plain tensors among ``tensors`` that share memory."""
    by_storage: dict[int, list[int]] = {}
    foreign = False
    for index, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
            # a part of it may share memory with any other tensor, so all are taken apart
            if composed(tensor):
                return _sharing_of_parts(tensors)
            storage = storage_of(tensor)
            # memory that torch has not allocated may have several storages
            foreign = foreign or not storage.resizable()
            by_storage.setdefault(storage._cdata, []).append(index)
    groups = _groups_over_storages(tensors, by_storage) if foreign else []
    # most calls end here: each tensor has a storage of its own
    if len(by_storage) == len(tensors) and not groups:
        return ()
    for numbers in by_storage.values():
        if len(numbers) > 1:
            groups += _groups({index: tensors[index] for index in numbers})  # type: ignore[misc]
    return tuple(groups)


def has_own_memory(tensor: torch.Tensor) -> bool:
    """Return whether torch has allocated the memory of ``tensor``, a strided one, so that no other
    storage has it. That of NumPy, DLPack and buffers may have any number of storages."""
    return bool(storage_of(tensor).resizable())


def _groups_over_storages(
    tensors: Sequence[Any], by_storage: Mapping[int, Sequence[int]]
) -> list[Group]:
    """Group tensors that share memory by several storages. ``by_storage``: the numbers of the
    tensors of each storage."""
    spans: list[tuple[int, int, int, int]] = []
    for storage, numbers in by_storage.items():
        for index in numbers:
            start, end = _span(tensors[index])
            # a storage without memory has the address 0
            if tensors[index].numel() and (first := storage_of(tensors[index]).data_ptr()):
                spans.append((first + start, first + end, index, storage))
    groups: list[Group] = []
    # in the order of their addresses: a tensor belongs to the run that has not ended before it
    members: list[int] = []
    storages: set[int] = set()
    reached = 0
    for start, end, index, storage in sorted(spans):
        if start >= reached:
            groups += _group_over(storages, members)
            members, storages = [], set()
        members.append(index)
        storages.add(storage)
        reached = max(reached, end)
    return [*groups, *_group_over(storages, members)]


def _group_over(storages: Collection[int], members: Iterable[int]) -> list[Group]:
    """Return the group of ``members``, if these have several ``storages``."""
    # those of one storage are grouped by their places in it
    if len(storages) <= 1:
        return []
    return [Group(tuple(sorted(members)), False, storages=True)]


def _sharing_of_parts(tensors: Sequence[object]) -> tuple[Group, ...]:
    """Do what :func:`sharing` does where some tensors consist of others."""
    parts: list[object] = []
    whole_of: list[int] = []  # for each part the number of its tensor
    for index, tensor in enumerate(tensors):
        for part in flattened(tensor):
            parts.append(part)
            whole_of.append(index)
    groups = [_group_of_wholes(group, tensors, whole_of) for group in sharing(parts)]
    # two tensors that share several parts are one group
    return tuple(dict.fromkeys(groups))


def _group_of_wholes(group: Group, tensors: Sequence[object], whole_of: Sequence[int]) -> Group:
    """Return the group of those ``tensors`` whose parts are in ``group``.

    ``whole_of``: for each part the number of its tensor.
    """
    members = [whole_of[part] for part in group.members]
    once = tuple(dict.fromkeys(members))
    wholes = [tensors[index] for index in once]
    first_composed = next(filter(composed, wholes), None)
    # plain tensors are their own parts, so only numbers change
    if first_composed is None:
        firsts = tuple([whole_of[part] for part in group.firsts])
        return dataclasses.replace(group, members=once, firsts=firsts)
    identical = len(once) == len(members) and all(whole is wholes[0] for whole in wholes)
    return Group(once, identical, parts_of=type(first_composed).__name__)


def _groups(tensors: dict[int, torch.Tensor]) -> list[Group]:
    """Group tensors of one storage whose spans overlap."""
    groups = _groups_without_elements(tensors)
    spans = sorted((_span(tensor), index) for index, tensor in tensors.items() if tensor.numel())
    # in the order of their starts: a tensor joins the group while it starts before the group's end
    while spans:
        (start, end), first = spans.pop(0)
        members = [first]
        while spans and spans[0][0][0] < end:
            (_, stop), index = spans.pop(0)
            members.append(index)
            end = max(end, stop)
        if len(members) > 1:
            groups.append(_group_of_span(tensors, sorted(members), start, end))
    return groups


def _groups_without_elements(tensors: dict[int, torch.Tensor]) -> list[Group]:
    """Group each tensor without elements that stands several times in ``tensors``. A program may
    change its sizes in place."""
    by_id: dict[int, list[int]] = {}
    for index, tensor in tensors.items():
        if not tensor.numel():
            by_id.setdefault(id(tensor), []).append(index)
    return [Group(tuple(same), True) for same in by_id.values() if len(same) > 1]


def _group_of_span(
    tensors: dict[int, torch.Tensor], members: Sequence[int], start: int, end: int
) -> Group:
    """Group ``members``, which lie between the bytes ``start`` and ``end`` of one storage."""
    each = [tensors[index] for index in members]
    size = each[0].element_size()
    # one tensor that overlaps itself needs a base like two tensors do
    identical = all(tensor is each[0] for tensor in each) and not shows_twice(each[0])
    return Group(
        tuple(members),
        identical,
        start // size,
        (end - start) // size,
        places=tuple(map(place_of, each)),
        firsts=_firsts(tensors, members),
    )


def _firsts(tensors: dict[int, torch.Tensor], members: Sequence[int]) -> tuple[int, ...]:
    """Return for each of ``members`` the first one that is the same tensor; () if all differ."""
    first_of: dict[int, int] = {}
    firsts = tuple([first_of.setdefault(id(tensors[index]), index) for index in members])
    if len(first_of) == len(members):
        return ()
    return firsts


def overlapping(tensors: Sequence[object], shared: Sequence[Group]) -> list[Group]:
    """Return a group for each of ``tensors`` that shows an element of its memory several times and
    is in no group of ``shared``."""
    grouped: set[int] = set()
    for group in shared:
        grouped.update(group.members)
    groups = []
    for index, tensor in enumerate(tensors):
        if index in grouped or not isinstance(tensor, torch.Tensor) or composed(tensor):
            continue
        if not shows_twice(tensor):
            continue
        if tensor.is_conj() or tensor.is_neg():
            raise RuntimeError(
                f"the program writes to argument {index}, which shows an element of its memory "
                "several times, as unfold does, and is conjugated or negated lazily. "
                "Pass what it is a view of, or its clone."
            )
        start, end = _span(tensor)
        size = tensor.element_size()
        groups.append(
            Group((index,), False, start // size, (end - start) // size, (place_of(tensor),))
        )
    return groups


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the bytes of its storage from the first element of ``tensor`` to after the last."""
    first = int(tensor.storage_offset())
    extents = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((count - 1) * stride for count, stride in extents)
    return first * tensor.element_size(), (first + last + 1) * tensor.element_size()


def _at_risk(memory: Memory, known: list[Memory], results: list[Memory]) -> list[Memory]:
    """Return those of the arguments and results with which a piece, whose memory this is, would not
    share it in a graph."""
    if memory.generation:
        return [*known, *results]
    # by way of another piece: a graph returns the whole as that write has made it anew
    if is_written_in_part(memory.whole):
        return [*known, *(other for other in results if other.part_of is None)]
    # a graph splits an intermediate after the write to it
    if memory.whole.generation:
        return known
    # a piece that nobody has written to has the right value in any memory
    return []


def refuse_written_pieces(
    returned: Sequence[FunctionalValue], arguments: Iterable[FunctionalValue]
) -> None:
    """Refuse a written result of ``unsafe_split`` that shares memory with an argument or a result.

    A graph would return its new value alone, and not write to the memory that it shares.
    """
    arguments = list(arguments)
    known = [value._store.memory for value in arguments]
    results = [value._store.memory for value in returned]
    for value in returned:
        memory = value._store.memory
        if memory.part_of is None:
            continue
        others = _at_risk(memory, known, results)
        if any(other is not memory and other.whole is memory.whole for other in others):
            inner: Any = value._inner
            raise RuntimeError(
                "the program writes to memory that an argument or another result shares "
                "with a result of unsafe_split or unsafe_chunk, and returns that. "
                f"Return a clone of it, or use split or chunk.{made_at(inner._node)}"
            )
