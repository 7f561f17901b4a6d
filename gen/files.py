"""Replace files as a whole. A reader never sees half of one, and a failed write leaves the old
one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

__all__ = ["replace"]


def replace(path: Path, text: str) -> None:
    """Write `text` to a new file in the same folder, then give it the name `path`.

    Raises OSError, whose `filename` is `path`.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "Is a directory")
        # a pipe or a device, which has no other file in its place
        if path.exists() and not path.is_file():
            path.write_text(text, "utf-8")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        # in the same folder, since a file cannot take the place of one on another disk at once
        number, unfinished = tempfile.mkstemp(prefix=f".{path.name[:40]}.", dir=path.parent)
    except OSError as error:
        raise _of(path, error) from error
    try:
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
        # mkstemp makes a file for its owner alone
        Path(unfinished).chmod(0o666 & ~_umask())
        Path(unfinished).replace(path)
    except OSError as error:
        raise _of(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(unfinished)


def _of(path: Path, error: OSError) -> OSError:
    return type(error)(error.errno, error.strerror, str(path))


def _umask() -> int:
    # Python tells the mask only when it sets another one
    before = os.umask(0)
    os.umask(before)
    return before
