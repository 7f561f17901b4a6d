"""Which lists of numbers are a cut of a graph, why others are refused, and why a
program is not found."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from runtime import aot
from runtime.aot import Cache, CacheInfo, cache_clear, cache_info
from runtime.aot.cache import cuts
from runtime.aot.cache.cuts import VARIABLE, _cut, _positions_of_saved, default_cache
from runtime.aot.cache.store import Damaged, Folder


def joint(f: Any, *args: torch.Tensor) -> Any:
    """What a partition is given, with the number of its forward results."""
    found: list[Any] = []

    def keep(module: Any, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        found.append(SimpleNamespace(module=module, n_forward=num_fwd_outputs))
        return aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)

    aot.aot_function(f, aot.nop, partition_fn=keep)(*args)
    return found[0]


def program(x: torch.Tensor) -> torch.Tensor:
    values, places = (F.dropout(x.sin(), 0.5) * torch.tensor([1.0, 2.0, 3.0])).sort()
    return (values.exp() * places).sum()


@pytest.fixture(scope="module")
def dropped() -> Any:
    return joint(program, torch.ones(3, requires_grad=True))


def numbers(given: Any, *names: str) -> list[int]:
    every = [n.name for n in given.module.graph.nodes]
    return [every.index(name) for name in names]


def test_the_numbers_of_what_a_forward_saves_make_the_same_modules_again(dropped: Any) -> None:
    for cut in (aot.default_partition, aot.min_cut_rematerialization_partition):
        forward, backward = cut(dropped.module, None, num_fwd_outputs=1)
        found = _positions_of_saved(dropped, forward)
        assert found is not None and len(found) == len(forward.graph.output_node().args[0]) - 1  # type: ignore[arg-type]
        again = _cut(dropped, found)
        assert [str(m.graph) for m in again] == [str(forward.graph), str(backward.graph)]


def test_a_forward_with_nodes_of_other_names_has_no_numbers(dropped: Any) -> None:
    forward, _ = aot.default_partition(dropped.module, None, num_fwd_outputs=1)
    results: Any = forward.graph.output_node().args[0]
    results[1].name = "another"
    assert _positions_of_saved(dropped, forward) is None


@pytest.mark.parametrize("saved", [None, {}, "1", 1, (1,), [1, 1], [1.0, 1.0], [[1], [1]]])
def test_what_is_no_list_of_different_numbers_is_no_entry(dropped: Any, saved: Any) -> None:
    with pytest.raises(Damaged, match=r"^it is no list of nodes$"):
        _cut(dropped, saved)


def test_what_cannot_be_saved_is_refused(dropped: Any) -> None:
    nodes = list(dropped.module.graph.nodes)
    (several,) = numbers(dropped, "sort")
    constants = [i for i, n in enumerate(nodes) if n.op == "get_attr"]
    late = [i for i, n in enumerate(nodes) if n.name.startswith("tangents")]
    assert constants and late
    for i in (True, 1.0, "1", -1, len(nodes), len(nodes) - 1, several, *constants, *late):
        with pytest.raises(Damaged, match=r"^it names what cannot be saved$"):
            _cut(dropped, [i])


def test_a_cut_has_what_the_backward_needs_and_may_not_compute(dropped: Any) -> None:
    found = _positions_of_saved(
        dropped, aot.min_cut_rematerialization_partition(dropped.module, None, num_fwd_outputs=1)[0]
    )
    assert found is not None
    nodes = list(dropped.module.graph.nodes)
    reasons: dict[str, str] = {}
    for i in found:
        try:
            _cut(dropped, [j for j in found if j != i])
        except Damaged as why:
            reasons[nodes[i].name] = str(why)
    missing = "a value that must be saved is missing"
    assert reasons == {
        "primals_1": "a saved value is missing",
        "div": missing,
        "lift_fresh_copy": missing,
    }
    with pytest.raises(Damaged, match=r"^a saved value is missing$"):
        _cut(dropped, [])


def _entry(**parts: str) -> dict[str, Any]:
    return {
        "key": {"graph": "g", "boundary": "b", "partition": "p", "versions": "v", **parts},
        "saved": [],
    }


@pytest.mark.parametrize(
    "others, why",
    [
        ([], "a new graph"),
        ([_entry(partition="q")], "another partition"),
        ([_entry(partition="q", versions="w")], "another partition and versions"),
        (
            [
                _entry(partition="q", versions="w"),
                _entry(boundary="c"),
                _entry(boundary="c", partition="q"),
            ],
            "another boundary",
        ),
        ([_entry(boundary="c", partition="q"), _entry(versions="w")], "another versions"),
        ([{"saved": []}], "a new graph"),
        ([{"key": "no parts"}, _entry(versions="w")], "another versions"),
        ([_entry()], "a new graph"),
    ],
)
def test_a_new_program_is_told_by_what_differs_from_the_nearest_one(
    tmp_path: Path, others: list[Any], why: str
) -> None:
    cache = Cache(tmp_path)
    folder = Folder(tmp_path, 1 << 20)
    folder.write("h-0", _entry())  # of another graph
    for i, other in enumerate(others):
        folder.write(f"g-{i}", other)
    (tmp_path / "g-broken.json").write_bytes(b"")
    (tmp_path / "g-folder.json").mkdir()
    assert cache._explain_miss("g-new", _entry()["key"]) == why


def gradient(cache: Cache | None) -> Any:
    f = aot.aot_function(
        lambda x: x.sin().exp(),
        aot.nop,
        partition_fn=aot.min_cut_rematerialization_partition,
        cache=cache,
    )
    return f(torch.ones(3, requires_grad=True))


def test_what_is_counted_begins_anew_when_a_cache_is_cleared(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    assert repr(cache) == f"Cache({str(tmp_path)!r})"
    for _ in range(3):
        gradient(cache)
    info = cache.info()
    assert (info.hits, info.misses, info.entries) == (2, {"a new graph": 1}, 1)
    assert info.bytes == sum(p.stat().st_size for p in tmp_path.iterdir()) > 0
    cache.clear()
    assert cache.info() == CacheInfo() and not list(tmp_path.iterdir())
    gradient(cache)
    assert (cache.info().hits, cache.info().misses) == (0, {"a new graph": 1})
    assert info.hits == 2, "what was told stays as it was"


def test_an_entry_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    gradient(cache)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    with pytest.warns(
        UserWarning, match=r"cannot keep a program in .*: Is a directory\. It goes on without"
    ):
        gradient(cache)
    assert cache.info().misses == {
        "a new graph": 1,
        "an entry that cannot be read: Is a directory": 1,
    }


def test_a_folder_of_no_bytes_keeps_nothing_and_the_default_is_64_mebibytes(tmp_path: Path) -> None:
    cache = Cache(tmp_path, max_bytes=0)
    gradient(cache)
    gradient(cache)
    assert cache.info().entries == 0 and cache.info().misses == {"a new graph": 2}
    assert Cache(tmp_path)._folder.max_bytes == 64 * 1024 * 1024


def test_a_hundred_reasons_are_counted_apart_and_known_ones_go_on(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for i in range(101):
        cache._count(cache._misses, f"reason {i}")
    cache._count(cache._misses, "reason 0")
    found = cache.info().misses
    assert (
        len(found) == 101
        and found["reason 99"] == 1
        and found["reason 0"] == 2
        and found["other reasons"] == 1
    )


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    cuts._cache_at.cache_clear()
    yield
    cuts._cache_at.cache_clear()


def test_there_is_one_cache_for_each_folder_that_the_environment_names(
    folders: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("", None):
        monkeypatch.delenv(VARIABLE) if name is None else monkeypatch.setenv(VARIABLE, name)
        assert default_cache() is None and cache_info() == CacheInfo()
        cache_clear()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a"))
    first = default_cache()
    assert first is not None and first is default_cache()
    gradient(None)
    assert cache_info().misses == {"a new graph": 1}
    monkeypatch.setenv(VARIABLE, str(tmp_path / "b"))
    assert default_cache() is not first and cache_info() == CacheInfo()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a"))
    assert default_cache() is first and cache_info().entries == 1
    cache_clear()
    assert cache_info() == CacheInfo()


COUNTED: dict[str, Callable[[Any], object]] = {
    "told": lambda cache: cache.info(),
    "cleared": lambda cache: cache.clear(),
    "a miss": lambda cache: cache._count(cache._misses, "why"),
    "a hit": lambda cache: cache._load("name", {}, None),
    "a write that fails": lambda cache: cache._write("name", {}),
}


@pytest.mark.parametrize("what", COUNTED)
@pytest.mark.filterwarnings("ignore:runtime.aot cannot keep:UserWarning")
def test_counts_of_several_threads_are_taken_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    cache: Any = Cache(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache._folder, "write", full)
    monkeypatch.setattr(cache._folder, "read", lambda name: {"key": {}, "saved": []})
    monkeypatch.setattr(cuts, "_cut", lambda joint, saved: None)
    thread = threading.Thread(target=COUNTED[what], args=(cache,))
    with cache._lock:
        thread.start()
        thread.join(0.05)
        assert thread.is_alive(), "it waits"
    thread.join()
