"""Read and write a folder of entries: JSON files with a digest, which other processes may write or
remove meanwhile.

The first line of a file is the SHA-256 of the rest. The rest is a JSON object. It holds numbers and
names and no code, so reading it runs nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

LARGEST_ENTRY = 4 << 20  # bytes of a file, digest included; a larger file is not one of ours
_SUFFIX = ".json"
_UNFINISHED_SUFFIX = ".unfinished"
# An unfinished file that is older belongs to a process that was killed while it wrote.
_ABANDONED_AFTER = 3600.0  # seconds


class Damaged(Exception):
    """Say that a file is not what was written: cut off, changed, or from elsewhere."""


class Folder:
    """Read and write the entries in a folder, which the first write creates.

    The entries that were not read or written for longest are removed to make room. Several
    processes may use the folder at a time. There are no locks: a file is complete or has another
    suffix, and any file may be gone at any moment.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self.path = Path(path)
        # how much the entries may take together
        self.max_bytes = max_bytes

    def read(self, name: str) -> dict[str, object] | None:
        """Return the entry ``name``, or None if there is none.

        ``name`` is that of its file, without the suffix. ``Damaged`` for a file that is no entry,
        ``OSError`` for one that cannot be read.
        """
        path = self._file(name)
        try:
            with path.open("rb") as file:
                # A larger file is not read as a whole. The last byte shows that it is too large.
                content = file.read(LARGEST_ENTRY + 1)
        except FileNotFoundError:
            return None
        entry = _parse(content)
        # The time of the file is that of its last use, for _make_room. It cannot be set in somebody
        # else's folder, or if another process has removed the entry meanwhile.
        with contextlib.suppress(OSError):
            os.utime(path)
        return entry

    def write(self, name: str, entry: Mapping[str, object]) -> None:
        """Write the entry ``name``, in the place of one that has this name already.

        The file has a temporary name until it is complete, so a reader finds all of it or none. An
        entry larger than ``LARGEST_ENTRY`` is not written. ``OSError`` if the write fails.
        """
        body = json.dumps(entry).encode()
        content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        if len(content) > LARGEST_ENTRY:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor, unfinished = tempfile.mkstemp(suffix=_UNFINISHED_SUFFIX, dir=self.path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(unfinished, self._file(name))
        # An interrupt leaves no unfinished file either.
        except BaseException:
            _remove(unfinished)
            raise
        self._make_room()

    def names(self) -> list[str]:
        """Return the names of all entries, in no particular order."""
        return [entry.name.removesuffix(_SUFFIX) for entry in self._files(_SUFFIX)]

    def size(self) -> tuple[int, int]:
        """Return the number of entries, and their bytes."""
        stats = map(_stat, self._files(_SUFFIX))
        sizes = [stat.st_size for stat in stats if stat is not None]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        """Remove all entries, and all files that are not finished. Other files stay."""
        for file in self._files(_SUFFIX, _UNFINISHED_SUFFIX):
            _remove(file.path)

    def _make_room(self) -> None:
        """Remove what killed processes have left, then the oldest entries beyond ``max_bytes``."""
        now = time.time()
        for file in self._files(_UNFINISHED_SUFFIX):
            stat = _stat(file)
            if stat is not None and now - stat.st_mtime > _ABANDONED_AFTER:
                _remove(file.path)
        entries: list[tuple[float, int, str]] = []  # last use, bytes and path
        for file in self._files(_SUFFIX):
            stat = _stat(file)
            if stat is not None:
                entries.append((stat.st_mtime, stat.st_size, file.path))
        excess = sum(size for _, size, _ in entries) - self.max_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                break
            _remove(path)
            excess -= size

    def _file(self, name: str) -> Path:
        """Return the path of the entry ``name``."""
        return self.path / (name + _SUFFIX)

    def _files(self, *suffixes: str) -> Iterator[os.DirEntry[str]]:
        """List the files whose names end with one of ``suffixes``. None if there is no folder."""
        try:
            with os.scandir(self.path) as files:
                yield from (file for file in files if file.name.endswith(suffixes))
        except OSError:
            # No write has created the folder yet, or this user may not read it.
            return


def _parse(content: bytes) -> dict[str, object]:
    """Return the entry in the content of a file. ``Damaged`` if it is none, or is too large."""
    digest, _, body = content.partition(b"\n")
    if len(content) > LARGEST_ENTRY or hashlib.sha256(body).hexdigest().encode() != digest:
        raise Damaged("its digest is not that of its content")
    try:
        entry = json.loads(body)
    # A right digest proves nothing, since anybody can compute one, even for deeply nested lists.
    except (ValueError, RecursionError) as error:
        raise Damaged("it is no JSON") from error
    if not isinstance(entry, dict):
        raise Damaged("it is no JSON object")
    return entry


def _stat(file: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a file, or None if another process has removed it."""
    try:
        return file.stat()
    except FileNotFoundError:
        return None


def _remove(path: str) -> None:
    """Remove a file, unless another process has done so."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
