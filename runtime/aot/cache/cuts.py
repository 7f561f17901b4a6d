"""Store cuts of joint graphs in a folder, so that a later process need not search for them again.

    {"key": {"graph": "5c0a…", …}, "saved": [3, 7]}

This is an entry: the parts of its key, and the positions of the nodes of the joint graph that the
cut saves. The program is always traced anew, so its graph, its constants and its code are those of
this process. An entry is checked whatever it says. For example, a value that may not be computed
twice must be among the saved ones. So no entry leads to a wrong program, at worst to one that takes
more time or memory.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from ...seam.graph_walks import results_of
from ...seam.locks import lock_of
from ..capture.joint import Joint
from ..partition.halves import Parts
from ..partition.network import kept_in_forward
from ..partition.partitions import Partition
from ..partition.recompute import is_size
from .key import NoKey, differing, file_name, parts_of_key
from .store import Damaged, Folder

VARIABLE = "RUNTIME_AOT_CACHE"
# A reason may have names of the user's in it. Without a bound, the counters of a long process would
# grow for ever.
_MAX_REASONS = 100
_OTHER = "other reasons"
_Modules = tuple[fx.GraphModule, fx.GraphModule]
"""The module of the forward and that of the backward."""


@dataclass(frozen=True)
class CacheInfo:
    """Report what a cache has done in this process, and what its folder has.

    ``hits``: how many cuts came from the folder. ``misses``: how many were searched for, by reason.
    ``bypasses``: how many programs have no key, by reason. ``entries`` and ``bytes``: those of the
    folder, which other processes may write to as well.
    """

    hits: int = 0
    misses: Mapping[str, int] = field(default_factory=dict)
    bypasses: Mapping[str, int] = field(default_factory=dict)
    entries: int = 0
    bytes: int = 0


class Cache:
    """Store partitions of joint graphs in a folder, for ``aot_function(…, cache=…)``.

    >>> import tempfile
    >>> cache = Cache(tempfile.mkdtemp())
    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> for _ in range(2):  # as two processes would
    ...     cut = min_cut_rematerialization_partition
    ...     f = aot_function(torch.sin, nop, partition_fn=cut, cache=cache)
    ...     y = f(x)
    >>> cache.info().hits, dict(cache.info().misses)
    (1, {'a new graph': 1})

    The first write creates ``folder``. Several processes may use it at a time.
    ``max_bytes``: how much its files take; those that were not used for longest are removed.
    ``ValueError`` for a size below 0.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = 64 << 20) -> None:
        if max_bytes < 0:
            raise ValueError(f"max_bytes={max_bytes}; it is a number of bytes")
        self._folder = Folder(folder, max_bytes)
        self._lock = lock_of(self, "_lock")
        self._warned = False  # each cache warns once that nothing can be written
        self._reset_counts()

    def _reset_counts(self) -> None:
        """Let all counts begin at zero."""
        self._hits = 0
        self._misses: Counter[str] = Counter()
        self._bypasses: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"Cache({str(self._folder.path)!r})"

    def info(self) -> CacheInfo:
        """Return the counts of this process so far, and the size of the folder."""
        entries, size = self._folder.size()
        with self._lock:
            return CacheInfo(self._hits, dict(self._misses), dict(self._bypasses), entries, size)

    def clear(self) -> None:
        """Remove all entries, and start to count anew."""
        self._folder.clear()
        with self._lock:
            self._reset_counts()

    def cut(
        self, partition: Partition, joint: Joint, options: Mapping[str, object], dynamic: bool
    ) -> _Modules:
        """Return ``partition(joint.module, None, **options)``, by the folder's entry if it has one.

        Otherwise the partition runs, and its cut becomes an entry. ``dynamic``: whether the program
        is for sizes of any value, which is part of the key.
        """
        try:
            parts = parts_of_key(partition, joint, options, dynamic)
        except NoKey as why:
            self._count(self._bypasses, str(why))
            return partition(joint.module, None, **options)
        name = file_name(parts)
        modules = self._load(name, parts, joint)
        if modules is not None:
            return modules
        forward, backward = partition(joint.module, None, **options)
        saved = _positions_of_saved(joint, forward)
        if saved is not None:
            self._write(name, {"key": parts, "saved": saved})
        return forward, backward

    def _load(self, name: str, parts: Mapping[str, str], joint: Joint) -> _Modules | None:
        """Return the modules by the entry ``name``, and count a hit.

        None if there is no entry, or a damaged one, which is a miss. ``parts``: the key that the
        entry must have.
        """
        try:
            entry = self._folder.read(name)
            if entry is None:
                self._count(self._misses, self._explain_miss(name, parts))
                return None
            # The name has only a part of the digest, and anybody may rename files.
            if entry.get("key") != parts:
                raise Damaged("it is for another program")
            modules = _cut(joint, entry.get("saved"))
        except Damaged as why:
            self._count(self._misses, f"a damaged entry: {why}")
        except OSError as error:
            self._count(self._misses, f"an entry that cannot be read: {error.strerror}")
        else:
            with self._lock:
                self._hits += 1
            return modules
        return None

    def _explain_miss(self, name: str, parts: Mapping[str, str]) -> str:
        """Name the differences to known programs, such as ``another guards and settings``.

        It is compared with the entries for the same graph. The one that differs least counts.
        """
        graph = name.partition("-")[0]
        differences_by_entry: list[list[str]] = []
        for other in self._folder.names():
            if not other.startswith(graph):
                continue
            # Another process may remove or damage the entry meanwhile. Then it explains nothing.
            try:
                key = (self._folder.read(other) or {}).get("key")
            except (Damaged, OSError):
                continue
            if isinstance(key, dict):
                differences_by_entry.append(differing(parts, key, list(parts)))
        differences = min(differences_by_entry, key=len, default=[])
        if not differences:
            return "a new graph"
        return f"another {' and '.join(differences)}"

    def _write(self, name: str, entry: dict[str, object]) -> None:
        """Write an entry. A folder that cannot be written to is a warning, the first time."""
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
        """Add one for ``reason``. Once there are _MAX_REASONS, a new one counts as _OTHER."""
        with self._lock:
            if reason not in counter and len(counter) >= _MAX_REASONS:
                reason = _OTHER
            counter[reason] += 1


def _positions_of_saved(joint: Joint, forward: fx.GraphModule) -> list[int] | None:
    """List the positions in the joint graph of the nodes that ``forward`` saves.

    None if one of them is a node of the partition's own, which an entry cannot name.
    """
    positions = {node.name: index for index, node in enumerate(joint.module.graph.nodes)}
    # The results of the program come first, and then the values that are saved for the backward.
    results = results_of(forward.graph)
    names = [result.name for result in results[joint.n_forward :]]
    if not all(name in positions for name in names):
        return None
    return [positions[name] for name in names]


def _cut(joint: Joint, positions: object) -> _Modules:
    """Return the modules of a cut.

    ``positions`` of the saved nodes may be anything that JSON can have. ``Damaged`` if they are no
    cut of this graph.
    """
    # Items are compared by their texts, because an item may be a list, which has no hash.
    if not isinstance(positions, list) or len(set(map(repr, positions))) < len(positions):
        raise Damaged("it is no list of nodes")
    parts = Parts(joint.module, joint.n_forward)
    chosen = _nodes_at(parts, positions)
    try:
        order = parts.backward_order(parts.saved(chosen))
    except RuntimeError as error:
        raise Damaged("a saved value is missing") from error
    # An entry may be forged, and a draw that runs twice would be a wrong program.
    for node in order:
        if node in parts.forward_set and kept_in_forward(node, parts):
            raise Damaged("a value that must be saved is missing")
    return parts.cut(chosen)


def _nodes_at(parts: Parts, positions: list[object]) -> list[fx.Node]:
    """List the nodes at these positions of the joint graph.

    ``Damaged`` if there is none at one of them, or one that cannot be saved.
    """
    candidates = set(parts.candidates)
    nodes: list[fx.Node] = []
    for position in positions:
        # True and False are no positions, but isinstance() would take them for integers.
        if type(position) is not int or not 0 <= position < len(parts.nodes):
            raise Damaged("it names what cannot be saved")
        node = parts.nodes[position]
        if node not in candidates or not _is_saveable(node):
            raise Damaged("it names what cannot be saved")
        nodes.append(node)
    return nodes


def _is_saveable(node: fx.Node) -> bool:
    """Return whether ``node`` is a tensor or a number."""
    # The module of the backward has the attribute too, so it need not be saved.
    if node.op == "get_attr":
        return False
    return isinstance(node.meta.get("val"), torch.Tensor) or is_size(node)


@functools.lru_cache(maxsize=8)
def _cache_at(folder: str) -> Cache:
    """Return the one cache of this process for ``folder``, so that its counts go on."""
    return Cache(folder)


def default_cache() -> Cache | None:
    """Return the cache in the folder that the environment variable ``RUNTIME_AOT_CACHE`` names.

    It is None if the variable is not set.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    return _cache_at(folder)


def cache_info() -> CacheInfo:
    """Return :meth:`Cache.info` of the folder that ``RUNTIME_AOT_CACHE`` names.

    All counts are zero if the variable is not set.

    >>> cache_info().hits
    0
    """
    cache = default_cache()
    if cache is None:
        return CacheInfo()
    return cache.info()


def cache_clear() -> None:
    """Remove all entries of the folder that ``RUNTIME_AOT_CACHE`` names, as :meth:`Cache.clear`."""
    cache = default_cache()
    if cache is not None:
        cache.clear()
