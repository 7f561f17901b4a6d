"""A folder of entries: what is read is what was written, or it is said to be damaged."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.aot import Cache, aot_function, min_cut_rematerialization_partition, nop

ROOT = Path(__file__).parents[4]
LARGEST_ENTRY = 4 << 20  # bytes, with the digest
X = torch.ones(3, requires_grad=True)


def use(cache: Cache, scale: float = 1.0, text: str = "") -> bool:
    """Compile a program of its own for each ``scale``. Return whether its entry was found.
    ``text``: what the key has in addition."""
    before = cache.info().hits
    cut: Any = min_cut_rematerialization_partition
    if text:
        cut = partial(cut, recomputable_ops=[text])
    aot_function(lambda x: x.sin() * scale, nop, partition_fn=cut, cache=cache)(X)
    return cache.info().hits > before


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def path_of(cache: Cache, folder: Path, scale: float) -> Path:
    """Return the file of a program that has no entry yet."""
    before = set(folder.glob("*.json"))
    use(cache, scale)
    (path,) = set(folder.glob("*.json")) - before
    return path


def is_damaged(folder: Path) -> bool:
    """Return whether the entry of the program is refused, which is made again then."""
    cache = Cache(folder)
    found = use(cache)
    return not found and next(iter(cache.info().misses)).startswith("a damaged entry: ")


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    return path_of(Cache(tmp_path), tmp_path, 1.0)


def test_an_entry_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "when needed"
    cache = Cache(folder)
    assert cache.info().entries == cache.info().bytes == 0 and not folder.exists()
    assert not use(cache) and use(cache)
    (path,) = folder.iterdir()
    assert (cache.info().entries, cache.info().bytes) == (1, path.stat().st_size)


def test_a_change_of_a_byte_is_noticed(entry: Path) -> None:
    whole = entry.read_bytes()
    for i in (*range(70), *range(70, len(whole), 7), len(whole) - 1):
        entry.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        assert is_damaged(entry.parent), i


def test_a_file_that_is_cut_off_or_longer_is_noticed(entry: Path) -> None:
    whole = entry.read_bytes()
    parts = [whole[:i] for i in (*range(0, len(whole), 23), 64, 65, 66, len(whole) - 1)]
    for content in (*parts, whole + b" ", whole * 2):
        entry.write_bytes(content)
        assert is_damaged(entry.parent), len(content)


@pytest.mark.parametrize(
    "body",
    [b"[1, 2]", b"no json", b"\xff", b"", b"[" * 100_000, b"1" * 10_000, b" " * LARGEST_ENTRY],
    ids=["a list", "text", "no text", "nothing", "deep", "a number", "large"],
)
def test_a_foreign_file_with_the_right_digest_is_noticed(entry: Path, body: bytes) -> None:
    entry.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert is_damaged(entry.parent)


def test_entries_that_were_not_used_for_longest_make_room(tmp_path: Path) -> None:
    plenty = Cache(tmp_path)
    first = path_of(plenty, tmp_path, 1.0)
    second = path_of(plenty, tmp_path, 2.0)
    for age, path in ((200, first), (100, second)):
        os.utime(path, (time.time() - age,) * 2)
    cache = Cache(tmp_path, max_bytes=first.stat().st_size + second.stat().st_size)
    assert use(cache, 1.0)
    use(cache, 3.0)
    assert first.exists() and not second.exists() and cache.info().entries == 2
    none = Cache(tmp_path, max_bytes=0)
    use(none, 4.0)
    assert none.info().entries == 0


def test_only_as_many_of_the_oldest_entries_go_as_must(tmp_path: Path) -> None:
    plenty = Cache(tmp_path)
    paths = [path_of(plenty, tmp_path, 1.0 + i) for i in range(4)]
    sizes = {path.stat().st_size for path in paths}
    (size,) = sizes
    for i, path in enumerate(paths):
        os.utime(path, (1000 + i,) * 2)
    use(Cache(tmp_path, max_bytes=3 * size), 5.0)
    assert [path.exists() for path in paths] == [False, False, True, True]
    use(Cache(tmp_path, max_bytes=3 * size - 1), 6.0)
    assert [path.exists() for path in paths] == [False, False, False, False]
    assert plenty.info().entries == 2


def test_what_a_killed_process_has_left_is_removed_after_a_while_and_other_files_are_not(
    tmp_path: Path,
) -> None:
    cache = Cache(tmp_path)
    use(cache, 1.0)
    old, young, foreign = (tmp_path / n for n in ("x.unfinished", "y.unfinished", "notes.txt"))
    for path in (old, young, foreign):
        path.write_bytes(b"")
    os.utime(old, (0, 0))
    use(cache, 2.0)
    assert not old.exists() and young.exists()
    cache.clear()
    assert files(tmp_path) == ["notes.txt"]


def test_an_unfinished_file_is_of_nobody_when_it_is_older_than_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    unfinished = tmp_path / "x.unfinished"
    unfinished.write_bytes(b"")
    os.utime(unfinished, (1000, 1000))
    monkeypatch.setattr(time, "time", lambda: 4600.0)
    use(cache, 1.0)
    assert unfinished.exists()
    monkeypatch.setattr(time, "time", lambda: 4600.5)
    use(cache, 2.0)
    assert not unfinished.exists()


def test_a_write_that_fails_leaves_no_file(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(UserWarning, match="No space"):
        use(Cache(entry.parent), 2.0)
    assert files(entry.parent) == [entry.name]


def test_an_entry_is_made_beside_the_others_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    replace = os.replace

    def noted(source: str, target: Path) -> None:
        made.append(Path(source))
        replace(source, target)

    monkeypatch.setattr(os, "replace", noted)
    use(Cache(tmp_path))
    assert [p.parent for p in made] == [tmp_path] and made[0].suffix == ".unfinished"


def test_an_entry_has_four_mebibytes_at_most(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    use(cache, text="x")
    around = cache.info().bytes - 1
    cache.clear()
    fits = "x" * (LARGEST_ENTRY - around)
    assert not use(cache, text=fits) and use(cache, text=fits)
    assert (cache.info().entries, cache.info().bytes) == (1, LARGEST_ENTRY)
    cache.clear()
    use(cache, text=fits + "x")
    assert cache.info().entries == 0 and files(tmp_path) == []


def test_an_entry_in_a_folder_of_somebody_else_is_read(
    entry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "utime", refused)
    assert use(Cache(entry.parent))


def test_processes_that_write_the_same_entries_at_once_disturb_nobody(tmp_path: Path) -> None:
    text = (
        "import sys, torch\n"
        "from runtime import aot\n"
        "cache = aot.Cache(sys.argv[1], 2000)\n"
        "cut = aot.min_cut_rematerialization_partition\n"
        "x = torch.ones(3, requires_grad=True)\n"
        "for i in range(60):\n"
        "    n = i % 7\n"
        "    aot.aot_function(lambda x: x.sin() * n, aot.nop, partition_fn=cut, cache=cache)(x)\n"
        "assert not any('damaged' in why for why in cache.info().misses), cache.info()\n"
    )
    command = [sys.executable, "-W", "error", "-c", text, str(tmp_path)]
    processes = [subprocess.Popen(command, cwd=ROOT) for _ in range(3)]
    assert [p.wait(timeout=200) for p in processes] == [0, 0, 0]
    assert not list(tmp_path.glob("*.unfinished"))
