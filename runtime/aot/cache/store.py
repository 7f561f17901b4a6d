"""A folder of entries: JSON files with a digest, which one process reads while another writes
or removes them.

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST_ENTRY = 4 << 20  # bytes; a file that is larger is not one of ours
_SUFFIX = ".json"
_UNFINISHED = ".unfinished"
_ABANDONED = 3600.0  # seconds after which nobody completes a file any more


class Damaged(Exception):
    """A file that is not what was written: cut off, changed, or from elsewhere."""


class Folder:
    """``max_bytes``: how much the entries take together. The entries that were not read or written
    for longest make room."""

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        self.path = Path(path)
        self.max_bytes = max_bytes

    def read(self, name: str) -> dict[str, Any] | None:
        """Return the entry, or None if there is none. ``Damaged`` for a file that is no entry,
        ``OSError`` for one that cannot be read."""
        path = self._file(name)
        try:
            with path.open("rb") as file:
                content = file.read(LARGEST_ENTRY + 1)
        except FileNotFoundError:
            return None
        found = _parsed(content)
        # somebody else's folder, or the entry was removed meanwhile
        with contextlib.suppress(OSError):
            os.utime(path)
        return found

    def write(self, name: str, entry: dict[str, Any]) -> None:
        """Write the entry under a name of its own, then rename it, so that a reader finds all of it
        or none. ``OSError`` if that fails."""
        body = json.dumps(entry).encode()
        content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        if len(content) > LARGEST_ENTRY:
            return
        self.path.mkdir(parents=True, exist_ok=True)
        number, unfinished = tempfile.mkstemp(suffix=_UNFINISHED, dir=self.path)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
            os.replace(unfinished, self._file(name))
        except BaseException:
            _remove(unfinished)
            raise
        self._make_room()

    def names(self) -> list[str]:
        return [entry.name.removesuffix(_SUFFIX) for entry in self._files(_SUFFIX)]

    def size(self) -> tuple[int, int]:
        """Return the number of entries, and their bytes."""
        sizes = [known.st_size for known in map(_known, self._files(_SUFFIX)) if known is not None]
        return len(sizes), sum(sizes)

    def clear(self) -> None:
        for entry in self._files(_SUFFIX, _UNFINISHED):
            _remove(entry.path)

    def _make_room(self) -> None:
        now = time.time()
        for entry in self._files(_UNFINISHED):
            known = _known(entry)
            if known is not None and now - known.st_mtime > _ABANDONED:
                _remove(entry.path)
        files = [
            (known.st_mtime, known.st_size, entry.path)
            for entry in self._files(_SUFFIX)
            if (known := _known(entry)) is not None
        ]
        left = sum(size for _, size, _ in files) - self.max_bytes
        for _, size, path in sorted(files):
            if left <= 0:
                break
            _remove(path)
            left -= size

    def _file(self, name: str) -> Path:
        return self.path / (name + _SUFFIX)

    def _files(self, *suffixes: str) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(self.path) as found:
                yield from (entry for entry in found if entry.name.endswith(suffixes))
        except OSError:
            return  # not made yet, or not ours to read


def _parsed(content: bytes) -> dict[str, object]:
    digest, _, body = content.partition(b"\n")
    if len(content) > LARGEST_ENTRY or hashlib.sha256(body).hexdigest().encode() != digest:
        raise Damaged("its digest is not that of its content")
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Damaged("it is no JSON") from error
    if not isinstance(found, dict):
        raise Damaged("it is no JSON object")
    return found


def _known(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return what the file system says of a file; None if another process has removed it."""
    try:
        return entry.stat()
    except FileNotFoundError:
        return None


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
