"""What containers and objects of Python's own in C have: a node for each kind of them."""

from __future__ import annotations

import array
import functools
import io
import itertools
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from types import GeneratorType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, ClassVar

import numpy as np

from ...trace.provenance import here
from .dictionary_items import DictItems, are_found, require_found
from .iterators import IteratorMark, sources_of
from .nodes import Change, Label, Node, OneByOne
from .values import MISSING, marks_of, same, slot_value


class DefaultFactory(Node):
    """What a ``defaultdict`` calls for a key that it has not. No write to it changes the version
    of the dictionary."""

    __slots__ = ()

    def look(self) -> tuple[Any, ...]:
        return (_FACTORY.__get__(self.owner),)

    def put(self, values: tuple[Any, ...]) -> None:
        _FACTORY.__set__(self.owner, values[0])


_FACTORY: Any = vars(defaultdict)["default_factory"]


class SequenceItems(OneByOne):
    """The items of a list or deque. ``base``: the class of Python's whose methods find them."""

    __slots__ = ("base",)

    def __init__(self, owner: Any, name: str) -> None:
        self.base: Any = list if issubclass(type(owner), list) else deque
        super().__init__(owner, name)

    def look(self) -> list[Any]:
        return [*self.base.__iter__(self.owner)]

    def put(self, values: list[Any]) -> None:
        self.base.clear(self.owner)
        self.base.extend(self.owner, values)

    def at(self, label: Label) -> Any:
        try:
            return self.base.__getitem__(self.owner, label)
        except IndexError:
            return MISSING

    def assign(self, label: Label, value: Any) -> None:
        if value is not MISSING:
            # a program that has found fewer items may have added this one
            if label == self.base.__len__(self.owner):
                self.base.append(self.owner, value)
            else:
                self.base.__setitem__(self.owner, label, value)
            return
        while self.base.__len__(self.owner) > label:  # nothing is there if it is shorter
            self.base.pop(self.owner)

    def holds(self) -> bool:
        now, had = self.look(), self.had
        if len(now) == len(had) and all(map(same, now, had)):
            return True
        return bool(self.free) and not self.differences()

    def differences(self) -> list[tuple[Label, Any, Any]]:
        return [
            (change.label, change.before, change.now)
            for change in self.changes()
            if change.label not in self.free
        ]

    def changes(self) -> list[Change]:
        now, had = self.look(), self.had
        # of another length as a whole: an item that was put in before others moves all of them
        if len(now) != len(had):
            return [Change(self, None, had, now)]
        pairs = enumerate(zip(had, now, strict=True))
        return [Change(self, index, was, now) for index, (was, now) in pairs if not same(was, now)]

    def below(self) -> Iterable[tuple[Any, str]]:
        return ((x, f"{self.name}[{index}]") for index, x in enumerate(self.had))


class SetItems(Node):
    """The items of a set, in the order in which it gives them. A set that was filled again may have
    another order, and is the same nevertheless."""

    __slots__ = ()

    def look(self) -> tuple[Any, ...]:
        return (*set.__iter__(self.owner),)

    def singles(self) -> Iterable[Any]:
        return self.had  # type: ignore[no-any-return]

    def holds(self) -> bool:
        now, had = self.look(), self.had
        return same(now, had) or (len(now) == len(had) and marks_of(now) == marks_of(had))

    def differences(self) -> list[tuple[Label, Any, Any]]:
        return [] if self.holds() else [(None, self.had, self.look())]

    def changes(self) -> list[Change]:
        if self.holds():
            return []
        require_found(set, self)
        return [Change(self, None, self.had, self.look())]

    def restore(self) -> None:
        if not self.puts or self.holds():
            return
        if are_found(set, self.owner):
            self.put(self.had)
            return
        known = set(map(id, self.had))
        for key in self.look():
            if id(key) not in known:
                set.discard(self.owner, key)

    def put(self, values: tuple[Any, ...]) -> None:
        set.clear(self.owner)
        set.update(self.owner, values)


class CachedResults(SetItems):
    """The results in a cache of a function, which ``parts`` finds. A hit puts one before the
    others, which is no change."""

    __slots__ = ("parts",)
    puts = False

    def __init__(self, owner: Any, name: str, parts: Callable[[Any], tuple[Any, ...]]) -> None:
        self.parts = parts
        super().__init__(owner, name)

    def look(self) -> tuple[Any, ...]:
        return self.parts(self.owner)

    def changes(self) -> list[Change]:
        # which results there are is nothing that a call assigns
        return [] if self.holds() else [Change(self, None, (), ())]


def changes_beside_cache(changes: Sequence[Change]) -> bool:
    """Return whether a run has put a result into the cache of a function, and has changed something
    else, which that function may have done."""
    filled = [change for change in changes if isinstance(change.node, CachedResults)]
    return 0 < len(filled) < len(changes)


class Elements(Node):
    """The elements of a NumPy array, and how it is laid out: dtype, shape, strides, and whether it
    may be written to."""

    __slots__ = ()

    def look(self) -> tuple[Any, ...]:
        x: np.ndarray[Any, Any] = self.owner
        layout = (*_layout_of(x), x.flags.writeable)
        if self._has_objects:
            return (layout, *_items(x))
        mask = getattr(x, "_mask", None)
        masked = mask.tobytes() if isinstance(mask, np.ndarray) else None
        return (layout, np.ndarray.tobytes(x), masked)

    @property
    def _has_objects(self) -> bool:
        """Return whether the memory has references: to objects, or to texts of any length."""
        kind: np.dtype[Any] = self.owner.dtype
        return kind.hasobject or kind.kind == "T"

    def put(self, values: tuple[Any, ...]) -> None:
        x: np.ndarray[Any, Any] = self.owner
        (kind, shape, strides, writeable), *elements = values
        if writeable and not x.flags.writeable:
            _allow_writes(x)
        if (kind, shape, strides) != _layout_of(x):
            self._put_layout(kind, shape, strides)
        if x.flags.writeable:
            self._put_elements(x, shape, elements)
        if not writeable:
            x.flags.writeable = False

    def _put_layout(self, kind: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Let the array be laid out so. ``RuntimeError`` if it cannot be, in place."""
        x: Any = self.owner  # `dtype` can be assigned, whatever NumPy's types say
        try:
            # of one dimension first, since not every shape can have another dtype or size
            x.shape = (x.size,)
            x.dtype = np.dtype(kind)
            x.resize((math.prod(shape),), refcheck=False)
            x.shape = shape
        except (AttributeError, TypeError, ValueError) as error:
            raise RuntimeError(
                f"the program changes the shape or the dtype of {self.name}, which cannot be "
                f"changed back in place: {error} Assign another array.{here()}"
            ) from error
        if x.strides != strides:
            raise RuntimeError(
                f"the program changes the strides of {self.name} in place. Assign another array."
                f"{here()}"
            )

    def _put_elements(
        self, x: np.ndarray[Any, Any], shape: tuple[int, ...], elements: list[Any]
    ) -> None:
        """Let ``x`` have these elements, one text of bytes, or one object for each."""
        if self._has_objects:
            for index, value in enumerate(elements):
                x.flat[index] = value
        else:
            x[...] = np.frombuffer(elements[0], x.dtype).reshape(shape)

    def below(self) -> Iterable[tuple[Any, str]]:
        return ((x, self.name) for x in self.had[1:]) if self._has_objects else ()


def _layout_of(x: np.ndarray[Any, Any]) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """Return the dtype, the shape and the strides. The names of fields can be assigned."""
    kind = x.dtype.str if x.dtype.names is None else repr(x.dtype)
    return kind, x.shape, x.strides


def _items(x: np.ndarray[Any, Any]) -> list[Any]:
    """Return the elements as objects of Python's: one with fields is a tuple."""
    if x.dtype == object:
        return list(x.flat)
    return list(np.ndarray.tolist(x.reshape(-1)))


def _allow_writes(x: np.ndarray[Any, Any]) -> None:
    """Let ``x`` be written to. That of a view has the array below written to meanwhile."""
    base = x.base
    # NumPy sets this flag of a view only while its base may be written to
    if not isinstance(base, np.ndarray) or base.flags.writeable:
        x.flags.writeable = True
        return
    _allow_writes(base)
    x.flags.writeable = True
    base.flags.writeable = False


class Record(Node):
    """The fields of a NumPy scalar. Those of an element of an array are in the array's memory."""

    __slots__ = ()
    owner: np.void

    def look(self) -> tuple[Any, ...]:
        if self.owner.dtype.hasobject:  # the graph then takes the scalar for an object of C
            raise TypeError("objects in the fields of a scalar")
        return (repr(self.owner.dtype), np.void.tobytes(self.owner))

    def put(self, values: tuple[Any, ...]) -> None:
        kind = self.owner.dtype
        (elements,) = np.frombuffer(values[1], kind)
        for field in kind.names or ():
            np.void.__setitem__(self.owner, field, elements[field])


class Buffer(Node):
    """The bytes of an array, a ``bytearray`` or a view of memory."""

    __slots__ = ()

    def look(self) -> bytes | None:
        try:
            return memoryview(self.owner).tobytes()
        except ValueError:  # a view of memory that was released
            return None

    def put(self, values: bytes | None) -> None:
        x = self.owner
        if values is None or self.look() is None:
            return
        if issubclass(type(x), bytearray):
            x[:] = values
        elif issubclass(type(x), array.array):
            x[:] = array.array(x.typecode, values)
        elif x.contiguous:
            x.cast("B")[:] = values
        else:
            elements = memoryview(values).cast(x.format, x.shape)
            for at in itertools.product(*map(range, x.shape)):
                x[at] = elements[at]

    def below(self) -> Iterable[tuple[Any, str]]:
        return ()


class StreamText(Node):
    """What a stream in memory has, and how far it is read. The state for pickles has both, and ends
    of lines as they are."""

    __slots__ = ()
    owner: io.StringIO | io.BytesIO

    def look(self) -> tuple[Any, ...]:
        x = self.owner
        if x.closed:
            return ()
        state: tuple[Any, ...] = self._kind.__getstate__(x)
        return state[:-1]  # without its attributes

    def put(self, values: tuple[Any, ...]) -> None:
        if values and not self.owner.closed:
            self._kind.__setstate__(self.owner, (*values, None))

    @property
    def _kind(self) -> Any:
        """Return the class of Python's, whose methods no other class replaces."""
        return io.StringIO if isinstance(self.owner, io.StringIO) else io.BytesIO

    def below(self) -> Iterable[tuple[Any, str]]:
        return ()


class Cursor(Node):
    """How far something is that gives one value after the other. A program may not move it, and
    others may. ``watched``: whether the program has read how far it is, as
    ``copy.deepcopy(generator)`` does, so that each call asks for it."""

    __slots__ = ("watched",)
    movement: ClassVar[str] = "taken items from"
    """What an error says of a program that has moved it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.watched = False
        super().__init__(owner, name)


class FilePlace(Cursor):
    """How far a file is read. A program may not read it."""

    __slots__ = ()

    def look(self) -> tuple[int, ...]:
        x = self.owner
        if x.closed or not x.readable() or x.writable() or not x.seekable():
            return ()
        try:
            return (x.tell(),)
        except OSError:  # a loop over its lines is under way
            return (x.buffer.tell(),)

    def put(self, values: tuple[Any, ...]) -> None:
        if values and not self.owner.closed:
            self.owner.seek(values[0])

    def below(self) -> Iterable[tuple[Any, str]]:
        return ()


class Variable(Node):
    """What a context variable has in this context."""

    __slots__ = ()
    owner: ContextVar[Any]

    def look(self) -> tuple[Any, ...]:
        return (self.owner.get(MISSING),)

    def singles(self) -> Iterable[Any]:
        if self.had[0] is not MISSING:
            return tuple(self.had)
        try:
            return (self.owner.get(),)  # its default
        except LookupError:
            return ()

    def below(self) -> Iterable[tuple[Any, str]]:
        return ((x, self.name) for x in self.singles())

    def put(self, values: tuple[Any, ...]) -> None:
        # only the token of the program's own `set` could take a value away
        if values[0] is not MISSING:
            self.owner.set(values[0])


class Draws(Cursor):
    """The state of a random generator of Python's or NumPy's."""

    __slots__ = ()
    movement = "drawn from"

    def look(self) -> Any:
        """Return what C compares, and the state that the generator takes back."""
        x = self.owner
        if isinstance(x, random.Random):
            return (random.Random.getstate(x),)  # without code of the user's
        if isinstance(x, np.random.RandomState):
            state = x.get_state(legacy=False)
            return _bytes_of(state), state
        if isinstance(x, np.random.SeedSequence):
            return x.n_children_spawned, None
        bits: Any = x
        if isinstance(x, np.random.Generator):
            bits = x.bit_generator
        # a child that is spawned changes no other part
        spawned = getattr(bits.seed_seq, "n_children_spawned", None)
        return _bytes_of(bits.state), spawned, bits.state

    def holds(self) -> bool:
        # numbers and bytes, which C compares; an array of NumPy comes last
        part = slice(max(len(self.had) - 1, 1))
        return bool(self.look()[part] == self.had[part])

    def differences(self) -> list[tuple[Label, Any, Any]]:
        # in words: a report would print the 624 numbers of a Mersenne twister
        return [] if self.holds() else [(None, "a state", "another state")]

    def changes(self) -> list[Change]:
        return [] if self.holds() else [Change(self, None, self.had, MISSING)]

    def put(self, values: Any) -> None:
        x, state = self.owner, values[-1]
        if isinstance(x, np.random.Generator):
            x.bit_generator.state = state
        elif isinstance(x, np.random.BitGenerator):
            x.state = state
        elif isinstance(x, random.Random):
            random.Random.setstate(x, state)
        elif isinstance(x, np.random.RandomState):
            x.set_state(state)

    def below(self) -> Iterable[tuple[Any, str]]:
        return ()


def _bytes_of(state: Any) -> object:
    """Return the state of a generator of NumPy's with bytes in place of arrays."""
    if isinstance(state, dict):
        return {key: _bytes_of(value) for key, value in state.items()}
    return state.tobytes() if isinstance(state, np.ndarray) else state


class ExceptionParts(Node):
    """The arguments of an exception, the one that has caused it, and what its class has in C: the
    ``errno`` of an ``OSError``, the ``value`` of a ``StopIteration``."""

    __slots__ = ()

    def look(self) -> tuple[Any, ...]:
        return tuple(slot_value(part, self.owner) for part in _parts_of(type(self.owner)))

    def put(self, values: tuple[Any, ...]) -> None:
        parts = zip(_parts_of(type(self.owner)), values, self.look(), strict=True)
        for part, value, now in parts:
            if value is MISSING or same(value, now):
                continue
            part.__set__(self.owner, value)


def _parts_of(kind: type) -> tuple[Any, ...]:
    """Return the descriptors of the parts in C of exceptions of ``kind``, but for the traceback,
    which is another one whenever it is raised."""
    return tuple(
        part
        for cls in kind.__mro__
        for name, part in vars(cls).items()
        if isinstance(part, (MemberDescriptorType, GetSetDescriptorType))
        and name not in ("__traceback__", "__dict__", "__weakref__")
    )


class Fact(Node):
    """What a function of Python's or torch's says: a switch that no object of the graph has. The
    owner is the function."""

    __slots__ = ()
    puts = False

    def look(self) -> Any:
        return self.owner()

    def below(self) -> Iterable[tuple[Any, str]]:
        return ()


class Parts(Node):
    """What an object of Python's in C consists of, by ``parts``: a partial function, a weak
    reference, a cache of results."""

    __slots__ = ("parts",)
    puts = False

    def __init__(self, owner: Any, name: str, parts: Callable[[Any], tuple[Any, ...]]) -> None:
        self.parts = parts
        super().__init__(owner, name)

    def look(self) -> tuple[Any, ...]:
        return self.parts(self.owner)

    def singles(self) -> Iterable[Any]:
        if not isinstance(self.owner, functools.partial):
            return ()
        return (*self.owner.args, *self.owner.keywords.values())


class Position(Cursor):
    """How far an iterator is. ``steps``: how often the program has let a generator go on, which
    does not say how far it is. ``sources``: what it takes items from. ``stays``: whether it is not
    put back, as something takes items from it that cannot be put back, and would get them twice."""

    __slots__ = ("mark", "parts", "sources", "stays", "steps")

    def __init__(self, owner: Any, name: str, parts: Callable[[Any], tuple[Any, ...]]) -> None:
        self.steps = 0
        self.parts = parts
        super().__init__(owner, name)
        self.mark = IteratorMark(owner)
        self.sources = sources_of(owner)
        self.stays = False

    def look(self) -> tuple[Any, ...]:
        return (self.steps, *self.parts(self.owner))

    def restore(self) -> None:
        """Put the iterator back, if Python can do that. :meth:`changes` says whether it did."""
        if not self.stays and self.changes():
            self.mark.rewind()

    def settle(self) -> None:
        self.sources = []

    def below(self) -> Iterable[tuple[Any, str]]:
        return ((x, f"what {self.name} takes items from") for x in self.sources)


class Positions:
    """The iterators that a program comes to. ``of_frames``: generators, by identity of the frame.

    An iterator is put back after a refusal, if Python can do that. One that another takes items
    from, which cannot be put back, stays where it is: else the other would get items twice."""

    def __init__(self) -> None:
        self.of_frames: dict[int, Position] = {}
        self._known: dict[int, Position] = {}  # by identity of the iterator
        self._staying: set[int] = set()  # identities of iterators that are not put back

    def add(self, node: Position) -> None:
        """Add an iterator, and let it stay if it, or what takes items from it, cannot be put
        back."""
        self._known[id(node.owner)] = node
        if isinstance(node.owner, GeneratorType):
            self.of_frames[id(node.owner.gi_frame)] = node
        if id(node.owner) in self._staying or not node.mark.can_rewind:
            self._let_stay(node)

    def _let_stay(self, node: Position) -> None:
        node.stays = True
        for source in node.sources:
            self._staying.add(id(source))
            known = self._known.get(id(source))
            if known is not None and not known.stays:
                self._let_stay(known)


CONTAINERS: tuple[tuple[type, type[Node]], ...] = (
    (dict, DictItems),
    (list, SequenceItems),
    (deque, SequenceItems),
    (set, SetItems),
)
"""The classes whose items are values."""
