"""What a program with effects takes and returns beside arguments and results, and what a call does
with it.

The graph has no effects. It takes an :class:`Entry`, what is at certain places before the call, and
returns an :class:`Outcome`. A call puts what is in there where it belongs."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ..aot.calls.call_results import LateEffects
from ..aot.capture import opened
from ..aot.python_state.nodes import Place
from ..aot.python_state.snapshot import Order
from ..session.leaf import OF_TORCH
from ..session.tensor import SESSION, Tensor, unwrap
from ..tape.nodes import Node
from ..tape.saved import FREED
from ..torch_private.mode_stacks import unseen_by_classes
from .given_tensors import Key, owners
from .same_containers import (
    containers_at,
    containers_given,
    is_made,
    put_contents,
    without_marks,
)

NO_LEAF = "backward() in a jitted function reaches an argument that is no leaf. Pass its detach()."

_READS = 1000
"""How often values are read again that another thread changes meanwhile."""


class _Spent(Node):
    """The history of a result that the program itself has differentiated."""

    __slots__ = ()

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> Any:
        raise RuntimeError(FREED)


class _Uncrossable(Node):
    """The history that torch's own autograd has given to what is at a place before a call."""

    __slots__ = ()

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> Any:
        raise RuntimeError(OF_TORCH)


@dataclass(eq=False)
class Float:
    """A ``float`` that the graph reads from a tensor without dimensions, so that it computes with
    any."""

    tensor: torch.Tensor


class Layout:
    """Which gradients and values the programs of one function take. ``asked``: leaves, or keys
    of given tensors. ``places``: of Python's state. It is part of the kind of a call, so that no
    program takes values of other places."""

    def __init__(self, asked: Sequence[Any] = (), places: Sequence[Place] = ()) -> None:
        self.asked = tuple(asked)
        self.places = tuple(places)
        self.is_empty = not self.asked and not self.places


@dataclass(eq=False)
class Entry:
    """What the program reads that each call finds anew. ``gradients``: of leaves, from before the
    call. ``values``: what is at places of Python's state."""

    layout: Layout
    gradients: list[Any]
    values: list[Any]

    @property
    def given(self) -> dict[Key, Any]:
        """Return the gradients, by id of the leaf or by key of the given tensor."""
        keys = (id(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in self.layout.asked)
        return dict(zip(keys, self.gradients, strict=True))

    @property
    def inputs(self) -> dict[Key, int]:
        """Return the numbers of the inputs of the graph that are values at places, by key."""
        keys = [
            (place.key, index)
            for place, value in zip(self.layout.places, self.values, strict=True)
            for index in range(len(opened.flatten(value)[0]))
        ]
        # the layout is a leaf of the entry, too, and comes first
        return {key: 1 + len(self.gradients) + index for index, key in enumerate(keys)}


class SameAs:
    """Stands for a container that another place has, too. ``index``: of that place.

    There is one for each index, since objects among arguments are compared by identity."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


_same_as = functools.cache(SameAs)


def without_repetition(values: Iterable[Any]) -> list[Any]:
    """Return ``values``, in which a container that comes once more is :class:`SameAs`."""
    first: dict[int, int] = {}
    found: list[Any] = []
    for index, value in enumerate(values):
        # containers alone: a tensor that comes twice is marked as an argument, by
        # `..aot.calls.identities.Repeat`
        known = first.setdefault(id(value), index) if is_made(value) else index
        found.append(value if known == index else _same_as(known))
    return found


def with_repetition(values: Sequence[Any]) -> list[Any]:
    """Return the reverse of :func:`without_repetition`."""
    return [values[value.index] if type(value) is SameAs else value for value in values]


def values_at(places: Sequence[Place]) -> list[Any]:
    """Return what is at the places, as arguments of the graph. All values were there at one time:
    another thread may assign them meanwhile."""
    found = _read(places)
    if len(places) > 1:
        found = _at_one_time(places, found)
    return list(map(_as_value, without_repetition(found)))


def _at_one_time(places: Sequence[Place], found: list[Any]) -> list[object]:
    """Return what two reads in turn have found. ``found``: by the first one.

    A lock would not do: the other thread assigns in the user's code, which takes none."""
    for _ in range(_READS):
        again = _read(places)
        if all(map(operator.is_, found, again)):
            return found
        found = again
    raise RuntimeError(
        f"another thread goes on changing {places[0].what} and others, which the jitted "
        "function reads. Let one of them wait for the other."
    )


def _read(places: Sequence[Place]) -> list[Any]:
    return [place.current() for place in places]


def _as_value(found: Any) -> Any:
    if type(found) is float:
        return _as_float(found)
    if isinstance(found, torch.Tensor) or found is None:
        return _without_history_of_torch(found)
    return opened.replaced(_as_argument, found)


def _as_argument(value: Any) -> object:
    return _as_float(value) if type(value) is float else _without_history_of_torch(value)


def _as_float(x: float) -> Float:
    # every bit of it, and not on a default device of the user's
    return Float(torch.tensor(x, dtype=torch.float64, device="cpu"))


def _without_history_of_torch(value: Any) -> object:
    """Return ``value``, what is at a place to which the program assigns, with a history that
    raises in place of torch's own. Most often the program does not compute with it, so that only a
    gradient that comes to what torch has recorded of it is an error."""
    if (
        not isinstance(value, torch.Tensor)
        or isinstance(value, Tensor)
        or value.grad_fn is None
        or not torch.is_grad_enabled()
    ):
        return value
    return SESSION.wrap(
        value.detach(), (_Uncrossable(SESSION, (), ((value.shape, value.dtype),)), 0)
    )


class ContainerChanges(NamedTuple):
    """What a program does to containers from before the call. ``places``: those whose values it
    takes. ``found``, ``given``: the numbers of the containers at these and among the arguments that
    it changes. ``marked``: whether its results have marks, see :mod:`.same_containers`."""

    places: Sequence[Place]
    found: Sequence[int]
    given: Sequence[int]
    marked: bool

    def of_call(
        self, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> tuple[list[Any], list[Any]]:
        """Return the containers at places, and those among the arguments of a call, as far as
        somebody asks for them."""
        if not (self.marked or self.found or self.given):
            return [], []
        values = [place.current() for place in self.places]
        return containers_at(values), containers_given(args, kwargs)


class Destinations:
    """Where the tensors of an :class:`Outcome` belong. ``leaves``: tensors, or keys of
    given ones, each with a gradient. ``frozen``: tensors that require no grad afterwards.
    ``spent``: the numbers of the results whose histories have been freed. ``puts``: the places in
    Python's state to which the program assigns, each with the number of its value among those that
    it leaves. The others it has only read, and another thread may have assigned to them since.
    ``orders``: of what is assigned to objects and dictionaries that had nothing there.
    ``containers``: what becomes of those from before.

    No data class, whose objects a capture takes apart: the graph returns this as a constant."""

    def __init__(
        self,
        leaves: Sequence[Any],
        frozen: Sequence[torch.Tensor],
        spent: Sequence[int],
        puts: Sequence[tuple[int, Place]],
        orders: Sequence[Order],
        containers: ContainerChanges,
    ) -> None:
        self.leaves = leaves
        self.frozen = frozen
        self.spent = spent
        self.puts = puts
        self.orders = orders
        self.containers = containers


@dataclass(eq=False)
class Outcome(LateEffects):
    """What a program with effects returns. ``result``: what is for the caller, what belongs to
    places of Python's state, and what the containers among the arguments have by now."""

    result: Any
    gradients: list[Any]
    destinations: Destinations

    def carry_out(self, args: Any, kwargs: Any) -> Any:
        """Put all where it belongs, in a call with these arguments. Return what is for the
        caller."""
        to = self.destinations
        # leaves and containers are found by places, so before anything is put there
        leaves = owners(to.leaves, args, kwargs, to.containers.places)
        # the program has called what sees this of the user's own classes
        with unseen_by_classes():
            for key, leaf, grad in zip(to.leaves, leaves, self.gradients, strict=True):
                # A key stands for an argument. Only the call shows whether that is a leaf.
                if leaf is not key and not leaf.is_leaf:
                    raise RuntimeError(NO_LEAF)
                leaf.grad = grad
            for tensor in to.frozen:
                tensor.requires_grad_(False)
        result = self._with_histories() if to.spent else self.result
        found, given = to.containers.of_call(args, kwargs)
        if to.containers.marked:
            result = without_marks(result, found, given)
        returned, left, in_found, in_given = result
        for index, place in to.puts:
            place.put(left[index])
        for number, value in zip(to.containers.found, in_found, strict=True):
            put_contents(found[number], value)
        for number, value in zip(to.containers.given, in_given, strict=True):
            put_contents(given[number], value)
        # last of all: only what has been put above can be moved
        for node, labels in to.orders:
            node.move_last(labels)
        # what this call has left is no change for its own backward pass
        if self.recorded is not None:
            self.recorded.look()
        return returned

    def _with_histories(self) -> Any:
        """Return the results, of which those whose histories a backward pass has freed get one that
        raises."""
        flat, spec = opened.flatten(self.result)
        for index in self.destinations.spent:
            tensor = unwrap(flat[index])
            flat[index] = SESSION.wrap(
                tensor, (_Spent(SESSION, (), ((tensor.shape, tensor.dtype),)), 0)
            )
        return opened.unflatten(flat, spec)
