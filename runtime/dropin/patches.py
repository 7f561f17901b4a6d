"""Replace attributes of other modules and classes, and restore them, finally or for
a ``with`` block."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from ..seam.locks import lock_of
from ..seam.own_modules import is_own_module
from ..torch_private.graph_parts import dict_version

_ABSENT = object()
_TORCH = ("torch", "functorch")
Table = Mapping[int, tuple[object, object]]


def _versions_tell() -> bool:
    """Return whether each write to a module gives its dictionary a version that none had before.
    This Python may keep no versions of dictionaries."""
    module, other, name = ModuleType("module"), ModuleType("other"), "name"
    versions = [dict_version(vars(other)), dict_version(vars(module))]
    for value in (None, versions):
        module.__dict__[name] = value
        versions.append(dict_version(vars(module)))
    setattr(module, name, 0)
    versions.append(dict_version(vars(module)))
    delattr(module, name)
    versions.append(dict_version(vars(module)))
    return len(set(versions)) == len(versions)


VERSIONS_TELL = _versions_tell()


class Unbound:
    """The modules of which no name is bound to an object of a table, as most of torch's thousands
    are. Installed once more, they are not looked through again.

    ``versions``: those of their dictionaries. Each write gives a dictionary another version, and
    no two have the same one.
    """

    def __init__(self) -> None:
        self._objects: list[object] = []
        self.versions: set[int] = set()

    def expect(self, table: Table, new: Collection[int] = ()) -> None:
        """Forget the versions, unless ``table`` has the objects of the last one. ``new``:
        identities of objects that are younger than any version from before."""
        objects = [found for identity, (found, _) in table.items() if identity not in new]
        # with the objects, whose identities then stay theirs
        if len(objects) != len(self._objects) or any(map(operator.is_not, objects, self._objects)):
            self._objects, self.versions = objects, set()


class Patches:
    """A list of replaced attributes. They are restored in reverse order. ``unbound``: what earlier
    lists for the same objects have learned."""

    def __init__(self, unbound: Unbound | None = None) -> None:
        self._unbound = unbound or Unbound()
        self._done: list[tuple[object, str, object]] = []
        self._entered = contextlib.ExitStack()
        # names that modules have imported from torch since then
        self._taken: list[tuple[ModuleType, str, object]] = []
        self._table: Table = {}
        self._back: Table = {}
        self._scanned: dict[str, tuple[ModuleType, int]] = {}
        self._lock = lock_of(self, "_lock", threading.RLock)  # blocks of one thread nest
        self._suspensions = 0

    def enter(self, manager: contextlib.AbstractContextManager[object]) -> None:
        """Enter a context. :meth:`undo` exits it."""
        self._entered.enter_context(manager)

    def callback(self, call: Callable[[], None]) -> None:
        """Call ``call()`` in :meth:`undo`."""
        self._entered.callback(call)

    def set(self, owner: object, name: str, value: object) -> None:
        """Do ``owner.name = value``. ``owner``: a module or a class."""
        self._done.append((owner, name, _current(owner, name)))
        setattr(owner, name, value)

    def replace_everywhere(self, table: Table, new: Collection[int] = ()) -> None:
        """Replace each name that is bound to an object of ``table``, in every imported module
        except our own.

        ``table``: ``{id of an object: (object, replacement)}``. So a name that a module has
        imported before is routed as well. ``new``: identities of those of its objects that were
        made for this list, as is what another list has put in the place of torch's.
        """
        self._table, self._back = table, _invert(table)
        self._unbound.expect(table, new)
        for module, name, replacement in self._bound_to(table):
            self.set(module, name, replacement)

    def replaced(self) -> Iterator[tuple[object, object]]:
        """Yield each object that is replaced, and what is in its place now."""
        for owner, name, old in self._done:
            if old is not _ABSENT:
                yield old, _current(owner, name)

    def replaces(self, value: object) -> bool:
        """Return whether names bound to ``value`` are replaced everywhere."""
        entry = self._table.get(id(value))
        return entry is not None and entry[0] is value

    def replacement(self, value: object) -> Any:
        """Return what replaces ``value`` everywhere, or ``value`` itself. A partial of a function
        is one of its replacement."""
        if isinstance(value, functools.partial) and self.replaces(value.func):
            return functools.partial(self.replacement(value.func), *value.args, **value.keywords)
        if self.replaces(value):
            return self._table[id(value)][1]
        return value

    def original(self, value: object) -> object:
        """Return what ``value`` replaces everywhere, or ``value`` itself."""
        entry = self._back.get(id(value))
        if entry is not None and entry[0] is value:
            return entry[1]
        return value

    def _bound_to(self, table: Table) -> Iterator[tuple[ModuleType, str, object]]:
        """Yield the names of the objects in ``table``: (module, name, replacement). Modules without
        new names since the last call are skipped, and those that had none of the objects before and
        were not written to since."""
        unbound = self._unbound.versions
        # a list, as another thread may import a module meanwhile
        for module_name, module in list(sys.modules.items()):
            # an entry of sys.modules may be any object, and this package needs torch's originals
            names = getattr(module, "__dict__", None)
            if not isinstance(names, dict):
                continue
            version = dict_version(names)
            if version in unbound or is_own_module(module_name):
                continue
            if self._scanned.get(module_name) == (module, len(names)):
                continue
            self._scanned[module_name] = (module, len(names))
            # most modules, and torch has thousands
            if table.keys().isdisjoint(map(id, list(names.values()))):
                # what is put in the place of the objects is younger, or of this package
                if table is self._table and VERSIONS_TELL:
                    unbound.add(version)
                continue
            for name, value in list(names.items()):
                entry = table.get(id(value))
                if entry is not None and entry[0] is value:
                    yield module, name, entry[1]

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Restore the originals for a ``with`` block.

        Modules that are imported in the block get the originals, too. The attributes belong to the
        process. So of two threads that suspend them, one waits for the other. A third thread that
        calls torch in that time calls torch's own functions.
        """
        with self._lock:
            self._suspensions += 1
            # blocks nest: the outermost one restores, and replaces again
            if self._suspensions == 1:
                self._taken += self._bound_to(self._back)
                replaced = [
                    (owner, name, _current(owner, name))
                    for owner, name, _ in (*self._done, *self._taken)
                ]
                self._put_back([*self._done, *self._taken])
            try:
                yield
            finally:
                self._suspensions -= 1
                if self._suspensions == 0:
                    for owner, name, value in replaced:
                        _put(owner, name, value)
                    self.replace_everywhere(self._table)

    def undo(self) -> None:
        """Restore all attributes, and leave the contexts that were entered."""
        self._taken += self._bound_to(self._back)
        # a user's module may have imported the name from us; torch's modules have not
        in_torch = [taken for taken in self._taken if taken[0].__name__.partition(".")[0] in _TORCH]
        self._put_back([*self._done, *in_torch])
        self._done.clear()
        self._taken.clear()
        # last: what is put back may be a replacement of other patches that are undone here
        self._entered.close()

    @staticmethod
    def _put_back(replaced: Sequence[tuple[object, str, object]]) -> None:
        """Restore attributes, the last one first: a name may have been replaced twice."""
        for owner, name, old in reversed(replaced):
            _put(owner, name, old)


def _current(owner: object, name: str) -> object:
    """Return what ``owner`` itself has under ``name``, or a mark that it has nothing."""
    if name == "__class__":
        return type(owner)
    return vars(owner).get(name, _ABSENT)


def _put(owner: object, name: str, value: object) -> None:
    """Set an attribute, or delete it if there was none."""
    if value is not _ABSENT:
        setattr(owner, name, value)
    elif name in vars(owner):
        delattr(owner, name)


def _invert(table: Table) -> Table:
    """Return the table from the replacements to the objects."""
    return {id(ours): (ours, theirs) for theirs, ours in table.values()}
