"""Merge small pointwise calls of one op into one call of torch's ``_foreach`` kernels.

    m1 = lerp(m1, g1, 0.1); m2 = lerp(m2, g2, 0.1); …
    # becomes _foreach_lerp([m1, m2, …], [g1, g2, …], 0.1)

An optimizer computes the same few ops for each parameter. On the CPU these kernels run the single
ones one after the other, so the bits are the same, and the way from Python to the kernel is taken
once. For six small tensors that is half of the time of ``lerp_``.

:func:`gather` brings independent calls together while the graph writes to nothing. :func:`batch`
makes one call of them after other rewrites have chosen where results lie.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import fx

from ...seam.containers import written_arguments
from ...seam.graph_walks import walk_postorder
from ...torch_private.dispatcher import OpOverload
from ...trace.graph_edits import add_call, replace_each
from ..capture.aliasing import aliased_inputs, fresh, may_alias
from .ordering import NUMBERS_OF_PYTHON, bring_together, movable, successors
from .overloads import SETS, aten, in_place, on_cpu, static, with_out

_DTYPES = (torch.float32, torch.float64)
_ELEMENTS = 1 << 14  # of a tensor, beyond which the kernel takes much longer than the way to it
_BYTES = 1 << 20  # of the results of one batch, which live at the same time

LIST, ONE, NUMBER, NUMBERS = "List[{}]", "{}", "number", "List[number]"
"""How a ``_foreach`` op takes an argument: one for each call, one for all calls, one number, a
number for each call."""

Form = tuple[OpOverload, tuple[str, ...]]
"""An overload of a ``_foreach`` op, and how it takes each argument."""


def gather(graph: fx.Graph) -> list[list[fx.Node]]:
    """Reorder calls so that those of one batch stand together. Return the batches.

    The agenda of Neubig, Goldberg and Dyer, "On-the-fly Operation Batching in Dynamic Computation
    Graphs", 2017: of the calls whose arguments are computed, those with one key are the next batch.
    The key is that of the call that is farthest from the output. All other calls at its distance
    have their arguments then, and the batch stands where the last of them stood. Nearer calls are
    in it if that costs no memory.
    """
    nodes = movable(graph)
    after = successors(nodes)
    place = {node: index for index, node in enumerate(nodes)}
    agenda = _Agenda(place, _distances(nodes, after))
    batches = _Schedule(after, agenda).batches(nodes)
    if batches:
        nodes.sort(key=lambda node: (agenda.earlier.get(node, place[node]), place[node]))
        bring_together(graph, nodes, after, batches)
    return batches


def _distances(
    nodes: Sequence[fx.Node], after: Mapping[fx.Node, Sequence[fx.Node]]
) -> dict[fx.Node, int]:
    """Return for each call how many calls are on the longest way from it to the output."""
    distances: dict[fx.Node, int] = {}
    for node in reversed(nodes):
        distances[node] = 1 + max((distances[user] for user in after[node]), default=0)
    return distances


class _Schedule:
    """Order the calls of a graph as they could run: single calls at once, others in batches of the
    agenda."""

    def __init__(self, after: Mapping[fx.Node, Sequence[fx.Node]], agenda: _Agenda) -> None:
        self._after = after
        self._agenda = agenda
        # how many calls must still run before each
        self._missing = Counter(itertools.chain.from_iterable(after.values()))
        self._ready: list[fx.Node] = []

    def batches(self, nodes: Sequence[fx.Node]) -> list[list[fx.Node]]:
        """Return the batches of at least two calls."""
        batches: list[list[fx.Node]] = []
        # first what needs no other call
        for node in nodes:
            if not self._missing[node]:
                self._reach(node)
        while self._ready or self._agenda:
            if not self._ready:
                # no call of a batch needs another one of it, so they run in any order
                self._ready = self._agenda.take()
                batches.append(_within(sorted(self._ready)))
            self._run(self._ready.pop())
        return [batch for batch in batches if len(batch) > 1]

    def _run(self, node: fx.Node) -> None:
        """Reach the calls that waited for ``node`` alone."""
        for user in self._after[node]:
            self._missing[user] -= 1
            if not self._missing[user]:
                self._reach(user)

    def _reach(self, node: fx.Node) -> None:
        """Note that the arguments of ``node`` are computed."""
        key = _key(node)
        if key is None:
            self._ready.append(node)
        else:
            self._agenda.add(key, node)


class _Agenda:
    """Hold the calls whose arguments are computed, until a batch takes them.

    Each call is looked at a few times, however many wait. The calls of a chain's backward pass all
    wait from its beginning, and one by one they are the farthest.
    """

    def __init__(self, place: Mapping[fx.Node, int], distance: Mapping[fx.Node, int]) -> None:
        self.earlier: dict[fx.Node, int] = {}  # where calls stand that a farther batch has taken
        self._place = place
        self._distance = distance
        self._lifetimes = _Lifetimes(place)
        self._waiting: dict[fx.Node, int] = {}  # how many calls had come before each
        self._n_added = 0
        self._farthest: list[tuple[int, int, Hashable]] = []  # a heap by negative distance
        self._alike: dict[tuple[Hashable, int], list[fx.Node]] = {}  # by key and distance
        self._free_after: dict[Hashable, list[tuple[int, int, fx.Node]]] = {}  # heaps

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, key: Hashable, node: fx.Node) -> None:
        """Let ``node`` wait for a batch of calls with its ``key``."""
        number = self._waiting[node] = self._n_added
        self._n_added += 1
        distance = self._distance[node]
        heapq.heappush(self._farthest, (-distance, number, key))
        self._alike.setdefault((key, distance), []).append(node)
        free = self._free_after.setdefault(key, [])
        heapq.heappush(free, (self._lifetimes.free_after(node), number, node))

    def take(self) -> list[fx.Node]:
        """Return the farthest calls of one key, and the nearer ones that cost no further memory."""
        # an entry of the heap may be for calls that an earlier batch has taken
        farthest: list[fx.Node] = []
        while not farthest:
            distance, _, key = heapq.heappop(self._farthest)
            alike = self._alike.pop((key, -distance), ())
            farthest = [node for node in alike if node in self._waiting]
        taken = {node: self._waiting.pop(node) for node in farthest}
        # the batch runs at the place of its last call; nearer ones may come along
        last = max(self._place[node] for node in farthest)
        free = self._free_after[key]
        while free and free[0][0] < last:
            _, _, node = heapq.heappop(free)
            if node in self._waiting:
                taken[node] = self._waiting.pop(node)
                self.earlier[node] = last
        return sorted(taken, key=taken.__getitem__)


class _Lifetimes:
    """Find where the tensors of a graph are used last."""

    def __init__(self, place: Mapping[fx.Node, int]) -> None:
        self._place = place
        self._never = len(place)  # the output stands here, and no call stands behind it
        self._last_uses: dict[fx.Node, list[tuple[int, fx.Node]]] = {}

    def free_after(self, node: fx.Node) -> int:
        """Return the place behind which ``node`` needs no more memory than at its own.

        There its arguments are computed, and it frees one that is as large as its result.
        """
        size = node.meta["val"].nbytes
        arguments = node.all_input_nodes
        freed = [
            argument
            for argument in arguments
            if fresh(argument) and static(argument) and argument.meta["val"].nbytes >= size
        ]
        if not freed:
            return self._never
        # the memory is free once the other users of an argument have run
        ends = min(self._last_use_beside(node, argument) for argument in freed)
        return max(ends, *(self._place.get(argument, -1) for argument in arguments))

    def _last_use_beside(self, call: fx.Node, node: fx.Node) -> int:
        """Return the place of the last use of ``node`` by another call than ``call``."""
        # only the last two: a tensor may have thousands of uses, and each asks
        if node not in self._last_uses:
            self._last_uses[node] = heapq.nlargest(
                2, ((self._end(user), user) for user in node.users)
            )
        return next((end for end, user in self._last_uses[node] if user is not call), -1)

    def _end(self, user: fx.Node) -> int:
        """Return the place where a use by ``user`` ends; never for one that may make a view."""
        return self._never if may_alias(user) else self._place.get(user, self._never)


def _key(node: fx.Node) -> Hashable | None:
    """Return the key that calls of a batch have in common. None for a call that is in no batch."""
    if not _is_small_with_forms(node) or form(node.target, _ways(node)) is None:
        return None
    options = tuple((name, _constant(option)) for name, option in node.kwargs.items())
    return node.target, node.meta["val"].dtype, tuple(map(_constant, node.args)), options


def _is_small_with_forms(node: fx.Node) -> bool:
    """Return whether ``node`` computes few elements on the CPU by an op with ``_foreach`` forms.

    Its arguments are numbers and tensors of its own dtype.
    """
    func = node.target
    if type(func) is not OpOverload or not _has_forms(func) or not on_cpu(node):
        return False
    value = node.meta["val"]
    if value.dtype not in _DTYPES or value.numel() > _ELEMENTS:
        return False
    return all(
        _is_number(argument) or _has_dtype(argument, value.dtype)
        for argument in node.all_input_nodes
    )


def _is_number(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), NUMBERS_OF_PYTHON)


def _has_dtype(node: fx.Node, dtype: torch.dtype) -> bool:
    return static(node) and node.meta["val"].dtype is dtype


def _ways(node: fx.Node, once: bool = False) -> tuple[str, ...]:
    """Return the way in which a batch with the call ``node`` takes each argument.

    ``once``: its second operand is one tensor for all calls.
    """
    func = node.target
    ways = []
    for index, kind in enumerate(_kinds(func)):
        argument: object = _argument(node, index)
        # a number that the program computes may be another one in each call of the batch
        if isinstance(argument, fx.Node) and _is_number(argument):
            ways.append(NUMBERS)
        elif kind == "Tensor" and isinstance(argument, (int, float)):
            ways.append(NUMBER)
        elif kind != "Tensor" or (once and index == 1):
            ways.append(ONE)
        else:
            ways.append(LIST)
    return tuple(ways)


@cache
def _kinds(func: OpOverload) -> tuple[str, ...]:
    """Return the types of the arguments, as the schema names them: ``Tensor``, ``number``."""
    return tuple(str(argument.type) for argument in func._schema.arguments)


def _argument(node: fx.Node, index: int) -> Any:
    """Return argument ``index`` of ``node``, or its default."""
    if index < len(node.args):
        return node.args[index]
    declared = node.target._schema.arguments[index]  # type: ignore[union-attr]
    return node.kwargs.get(declared.name, declared.default_value)


def _constant(argument: object) -> Hashable:
    """Return an argument as a part of a key. Of a node, only whether it is a number counts."""
    if isinstance(argument, fx.Node):
        return _is_number(argument)
    if isinstance(argument, torch.Tensor):
        return id(argument)
    return type(argument), repr(argument)


def _within(group: Sequence[fx.Node]) -> list[fx.Node]:
    """Return the calls of ``group`` with the smallest results, as many as may live together."""
    # from the smallest one on, so that most of the calls find room
    fitting, total = [], 0
    for node in sorted(group, key=lambda node: node.meta["val"].numel()):
        total += node.meta["val"].nbytes
        if total <= _BYTES:
            fitting.append(node)
    chosen = set(fitting)
    return [node for node in group if node in chosen]


def batch(graph: fx.Graph, batches: Sequence[Sequence[fx.Node]]) -> None:
    """Merge the calls of each batch that take the same form.

    The last batch is merged first. So the arguments of a batch still come from calls of their own,
    and are known to share no memory.
    """
    memories: dict[fx.Node, frozenset[fx.Node]] = {}  # of the graph before any merge
    independent = [group for group in batches if not _conflict(group, memories)]
    results: dict[fx.Node, fx.Node] = {}
    for group in reversed(independent):
        same: dict[Hashable, list[fx.Node]] = {}
        for node in group:
            same.setdefault((node.target, *_common(node)), []).append(node)
        for calls in same.values():
            if len(calls) > 1:
                results.update(_merge(graph, calls, group[-1]))
    # at the end, because one user may take results of thousands of batches
    # the first batch comes first: the result of a write may be that of a write in an earlier batch
    for node in reversed(results):
        results[node] = results.get(results[node], results[node])
    replace_each(results)
    for node in results:
        graph.erase_node(node)


def _common(node: fx.Node) -> tuple[Hashable, ...]:
    """Return the second operand if it is a tensor without dimensions; else nothing.

    Calls with the same one take it once.
    """
    second: Any = node.args[1] if len(node.args) > 1 else None
    if static(second) and second.meta["val"].dim() == 0 and node.meta["val"].dim():
        return (second,)
    return ()


def _conflict(group: Sequence[fx.Node], memories: dict[fx.Node, frozenset[fx.Node]]) -> bool:
    """Return whether a call of ``group`` writes to memory that another one reads or writes.

    ``memories``: see :func:`_memory`.
    """
    reads: list[frozenset[fx.Node]] = []
    for node in group:
        memory_of_each = (_memory(operand, memories) for operand in node.all_input_nodes)
        reads.append(frozenset[fx.Node]().union(*memory_of_each))
    readers = Counter(memory for read in reads for memory in read)
    for node, read in zip(group, reads, strict=True):
        if not node.target._schema.is_mutable:  # type: ignore[union-attr]
            continue
        # a call that writes reads its own memory, too: that is one reader
        if any(readers[memory] > (memory in read) for memory in _memory(node, memories)):
            return True
    return False


def _memory(node: fx.Node, memories: dict[fx.Node, frozenset[fx.Node]]) -> frozenset[fx.Node]:
    """Return the values of whose memory ``node`` may be. ``memories``: those of other nodes."""

    def unknown_sources(value: fx.Node) -> list[fx.Node]:
        """Return the values of whose memory ``value`` may be, and that ``memories`` lacks."""
        return [source for source in _may_show(value) if source not in memories]

    for value in walk_postorder([node], unknown_sources):
        sources = _may_show(value)
        # what needs another value comes after it, so the memories of all sources are known
        memories[value] = frozenset[fx.Node]().union(*(memories[source] for source in sources))
        if not sources:
            memories[value] = frozenset((value,))
    return memories[node]


def _may_show(node: fx.Node) -> Sequence[fx.Node]:
    """Return the arguments whose memory the result of ``node`` may show; none if it is new."""
    sources = aliased_inputs(node)
    func = node.target
    if not sources or type(func) is not OpOverload or not func._schema.is_mutable:
        return sources
    # the result of a write is the tensor that is written to
    position, _ = written_arguments(func._schema)[0]
    return (_argument(node, position),)


def _merge(graph: fx.Graph, calls: Sequence[fx.Node], last: fx.Node) -> Mapping[fx.Node, fx.Node]:
    """Add one call behind ``last`` in place of ``calls``.

    Return for each of them the node that has its result; nothing if they have no common form.
    """
    common = _common_form(calls[0])
    if common is None:
        return {}
    target, ways = common
    arguments = [_argument_of_all(calls, index, way) for index, way in enumerate(ways)]
    # all that a form may lack is a factor at the end
    alpha = arguments[len(target._schema.arguments) :]
    if any(factor != 1 for factor in alpha):
        return {}
    args, kwargs = _split_by_keyword(target, arguments)
    with graph.inserting_after(last):
        merged = add_call(graph, target, args, kwargs)
    merged.meta = {**calls[0].meta, "val": [node.meta["val"] for node in calls]}
    if target._schema.is_mutable:
        # it returns nothing: the result of each call is the tensor that it writes to
        return {call: _argument(call, 0) for call in calls}
    return _add_items(graph, merged, calls)


def _argument_of_all(calls: Sequence[fx.Node], index: int, way: str) -> object:
    """Return the argument ``index`` of the single call that replaces ``calls``."""
    if way in (ONE, NUMBER):
        return _argument(calls[0], index)
    return [_argument(call, index) for call in calls]


def _split_by_keyword(
    target: OpOverload, arguments: Sequence[object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Split the arguments of ``target`` into positional ones and those with a keyword."""
    args: list[object] = []
    kwargs: dict[str, object] = {}
    for parameter, value in zip(target._schema.arguments, arguments, strict=False):
        if parameter.kwarg_only:
            kwargs[parameter.name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


def _add_items(
    graph: fx.Graph, merged: fx.Node, calls: Sequence[fx.Node]
) -> Mapping[fx.Node, fx.Node]:
    """Add for each of ``calls`` the item of ``merged`` that is its result."""
    items: dict[fx.Node, fx.Node] = {}
    for index, node in enumerate(calls):
        with graph.inserting_after(merged):
            items[node] = add_call(graph, operator.getitem, (merged, index))
        items[node].meta = dict(node.meta)
    return items


def _common_form(first: fx.Node) -> Form | None:
    """Return the form of calls like ``first``.

    It takes one second operand for all, if there is such a form, else one for each.
    """
    second = None
    if len(first.args) > 1:
        second = first.args[1]
    is_number = isinstance(second, torch.Tensor) and not second.dim()
    if is_number or _common(first):
        shared_form: Form | None = form(first.target, _ways(first, True))
        if shared_form is not None:
            return shared_form
    return form(first.target, _ways(first))


@cache
def _has_forms(func: OpOverload) -> bool:
    """Return whether there is a ``_foreach`` op that makes several calls of ``func``."""
    if func in SETS or not hasattr(aten, f"_foreach_{func._schema.name.split('::')[1]}"):
        return False
    return bool(in_place(func) or with_out(func) or _is_in_place(func))


@cache
def form(func: object, ways: tuple[str, ...]) -> Form | None:
    """Return the form of the pointwise op ``func`` that takes its arguments in these ways.

    None if there is none. The form of a sum may lack ``alpha``, which must be 1 then.
    """
    if type(func) is not OpOverload or not _has_forms(func) or ways[:1] != (LIST,):
        return None
    packet = getattr(aten, f"_foreach_{func._schema.name.split('::')[1]}")
    # the types of arguments single out the overload, since names of overloads follow no rule
    kinds = [
        way.format(argument.type)
        for way, argument in zip(ways, func._schema.arguments, strict=True)
    ]
    for name in packet.overloads():
        overload: OpOverload = getattr(packet, name)
        taken = [str(argument.type) for argument in overload._schema.arguments]
        if taken == kinds or (taken == kinds[:-1] and func._schema.arguments[-1].name == "alpha"):
            return overload, ways
    return None


def _is_in_place(func: OpOverload) -> bool:
    """Return whether ``func`` is the in-place form of a pointwise op."""
    name = func._schema.name.split("::")[1]
    if not name.endswith("_"):
        return False
    packet = getattr(aten, name[:-1], None)
    return packet is not None and in_place(getattr(packet, func._overloadname, None)) is func
