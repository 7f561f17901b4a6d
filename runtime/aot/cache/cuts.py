"""Cuts from a folder: which values of a joint graph a partition saves.

An entry is a list of numbers: the nodes of the joint graph that are saved. The program is always
traced anew, so its graph, its constants and its code are those of this process. What a cut must not
do is checked again, whatever the entry says: a value that may not be computed twice is saved. So no
entry makes a wrong program, at worst one that takes more time or memory.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...seam.locks import lock_of
from ..capture.joint import Joint
from ..partition.halves import Parts
from ..partition.network import kept_in_forward
from ..partition.partitions import Partition
from ..partition.recompute import is_size
from .key import NoKey, differing, file_name, parts_of_key
from .store import Damaged, Folder

VARIABLE = "RUNTIME_AOT_CACHE"
_REASONS = 100  # how many different texts are counted apart
_OTHER = "other reasons"
_Modules = tuple[fx.GraphModule, fx.GraphModule]


@dataclass(frozen=True)
class CacheInfo:
    """``misses`` and ``bypasses`` count by reason. ``entries`` and ``bytes`` are those of the
    folder, of all processes."""

    hits: int = 0
    misses: Mapping[str, int] = field(default_factory=dict)
    bypasses: Mapping[str, int] = field(default_factory=dict)
    entries: int = 0
    bytes: int = 0


class Cache:
    """A folder in which partitions of joint graphs are kept, for ``aot_function(…, cache=…)``.

    >>> import tempfile
    >>> cache = Cache(tempfile.mkdtemp())
    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> for _ in range(2):  # as two processes would
    ...     cut = min_cut_rematerialization_partition
    ...     f = aot_function(torch.sin, nop, partition_fn=cut, cache=cache)
    ...     y = f(x)
    >>> cache.info().hits, dict(cache.info().misses)
    (1, {'a new graph': 1})

    ``folder`` is made when the first entry is written. Several processes may use it at a time.
    ``max_bytes``: how much its files take; those that were not used for longest are removed.
    ``ValueError`` for a size below 0.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = 64 << 20) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes={max_bytes}; it is a number of bytes")
        self._folder = Folder(folder, max_bytes)
        self._lock = lock_of(self, "_lock")
        self._warned = False
        self._forget()

    def _forget(self) -> None:
        self._hits = 0
        self._misses: Counter[str] = Counter()
        self._bypasses: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"Cache({str(self._folder.path)!r})"

    def info(self) -> CacheInfo:
        """Return what this process has found so far, and what the folder holds."""
        entries, size = self._folder.size()
        with self._lock:
            return CacheInfo(self._hits, dict(self._misses), dict(self._bypasses), entries, size)

    def clear(self) -> None:
        """Remove all entries, and start to count anew."""
        self._folder.clear()
        with self._lock:
            self._forget()

    def cut(
        self, partition: Partition, joint: Joint, options: Mapping[str, Any], dynamic: bool
    ) -> _Modules:
        """``partition(joint.module, None, **options)``, from the folder if it is there."""
        try:
            parts = parts_of_key(partition, joint, options, dynamic)
        except NoKey as why:
            self._count(self._bypasses, str(why))
            return partition(joint.module, None, **options)
        name = file_name(parts)
        found = self._found(name, parts, joint)
        if found is not None:
            return found
        forward, backward = partition(joint.module, None, **options)
        saved = _saved(joint, forward)
        if saved is not None:
            self._keep(name, {"key": parts, "saved": saved})
        return forward, backward

    def _found(self, name: str, parts: Mapping[str, str], joint: Joint) -> _Modules | None:
        try:
            entry = self._folder.read(name)
            if entry is None:
                self._count(self._misses, self._why_new(name, parts))
                return None
            if entry.get("key") != parts:
                raise Damaged("it is for another program")
            found = _cut(joint, entry.get("saved"))
        except Damaged as why:
            self._count(self._misses, f"a damaged entry: {why}")
        except OSError as error:
            self._count(self._misses, f"an entry that cannot be read: {error.strerror}")
        else:
            with self._lock:
                self._hits += 1
            return found
        return None

    def _why_new(self, name: str, parts: Mapping[str, str]) -> str:
        """Return how the program differs from the one with the same graph that differs least."""
        graph = name.partition("-")[0]
        known: list[list[str]] = []
        for other in self._folder.names():
            if other.startswith(graph):
                try:
                    key = (self._folder.read(other) or {}).get("key")
                except (Damaged, OSError):
                    continue
                if isinstance(key, dict):
                    known.append(differing(parts, key, list(parts)))
        differences = min(known, key=len, default=[])
        if not differences:
            return "a new graph"
        return f"another {' and '.join(differences)}"

    def _keep(self, name: str, entry: dict[str, object]) -> None:
        try:
            self._folder.write(name, entry)
        except OSError as error:
            with self._lock:
                warned, self._warned = self._warned, True
            if not warned:
                warnings.warn(
                    (
                        f"runtime.aot cannot keep a program in {self._folder.path}: "
                        f"{error.strerror}. It goes on without. Make room, or give a folder that "
                        f"can be written to, by cache= or the environment variable {VARIABLE}."
                    ),
                    UserWarning,
                    stacklevel=2,
                )

    def _count(self, counter: Counter[str], reason: str) -> None:
        with self._lock:
            if reason not in counter and len(counter) >= _REASONS:
                reason = _OTHER
            counter[reason] += 1


def _saved(joint: Joint, forward: fx.GraphModule) -> list[int] | None:
    """Return the numbers of the nodes that ``forward`` saves."""
    numbers = {n.name: i for i, n in enumerate(joint.module.graph.nodes)}
    results: Any = forward.graph.output_node().args[0]
    names = [n.name for n in results[joint.n_forward :]]
    if not all(name in numbers for name in names):  # the partition has made a node of its own
        return None
    return [numbers[name] for name in names]


def _cut(joint: Joint, numbers: object) -> _Modules:
    """Return the modules for an entry. ``Damaged`` if it is none for this graph."""
    if not isinstance(numbers, list) or len(set(map(repr, numbers))) < len(numbers):
        raise Damaged("it is no list of nodes")
    parts = Parts(joint.module, joint.n_forward)
    chosen = _chosen(parts, numbers)
    try:
        order = parts.backward_order(parts.saved(chosen))
    except RuntimeError as error:
        raise Damaged("a saved value is missing") from error
    for n in order:
        if n in parts.forward_set and kept_in_forward(n, parts):
            raise Damaged("a value that must be saved is missing")
    return parts.cut(chosen)


def _chosen(parts: Parts, numbers: list[object]) -> list[fx.Node]:
    """Return the nodes with the numbers of an entry. ``Damaged`` if one of them cannot be saved."""
    candidates = set(parts.candidates)
    chosen: list[fx.Node] = []
    for i in numbers:
        if type(i) is not int or not 0 <= i < len(parts.nodes):
            raise Damaged("it names what cannot be saved")
        n = parts.nodes[i]
        if n not in candidates or not _is_saveable(n):
            raise Damaged("it names what cannot be saved")
        chosen.append(n)
    return chosen


def _is_saveable(n: fx.Node) -> bool:
    """Return whether ``n`` is a tensor or a number that a call or the caller has made."""
    if n.op == "get_attr":
        return False
    return isinstance(n.meta.get("val"), torch.Tensor) or is_size(n)


@functools.lru_cache(maxsize=8)
def _of_folder(folder: str) -> Cache:
    return Cache(folder)


def default_cache() -> Cache | None:
    """Return the cache in the folder that the environment variable ``RUNTIME_AOT_CACHE`` names;
    None if it names none."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    return _of_folder(folder)


def cache_info() -> CacheInfo:
    """:meth:`Cache.info` of the folder that ``RUNTIME_AOT_CACHE`` names; zeros if it names none.

    >>> cache_info().hits
    0
    """
    cache = default_cache()
    if cache is None:
        return CacheInfo()
    return cache.info()


def cache_clear() -> None:
    """:meth:`Cache.clear` of the folder that ``RUNTIME_AOT_CACHE`` names."""
    cache = default_cache()
    if cache is not None:
        cache.clear()
