"""Which lists of numbers are a cut of a graph, why others are refused, and why a
program is not found."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from runtime import aot
from runtime.aot import Cache, CacheInfo, cache_clear, cache_info

VARIABLE = "RUNTIME_AOT_CACHE"


def read(path: Path) -> dict[str, Any]:
    """Return what a file says behind its digest."""
    found: dict[str, Any] = json.loads(path.read_bytes().partition(b"\n")[2])
    return found


def write(path: Path, entry: object) -> None:
    body = json.dumps(entry).encode()
    path.write_bytes(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)


def program(x: torch.Tensor) -> torch.Tensor:
    values, places = (F.dropout(x.sin(), 0.5) * torch.tensor([1.0, 2.0, 3.0])).sort()
    return (values.exp() * places).sum()


def compile_program(cache: Cache | None) -> list[fx.GraphModule]:
    """Return the graphs of the forward and of the backward."""
    graphs: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(module)
        return aot.nop(module, inputs)

    cut = aot.min_cut_rematerialization_partition
    compiled = aot.aot_function(program, keep, partition_fn=cut, cache=cache)
    compiled(torch.ones(3, requires_grad=True)).backward()
    return graphs


@pytest.fixture(scope="module")
def joint() -> fx.Graph:
    """Return the graph before it is cut."""
    graphs: list[fx.Graph] = []

    def keep(module: fx.GraphModule, inputs: Any, **options: Any) -> Any:
        graphs.append(module.graph)
        return aot.default_partition(module, inputs, **options)

    aot.aot_function(program, aot.nop, partition_fn=keep)(torch.ones(3, requires_grad=True))
    return graphs[0]


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """Return the entry of the program."""
    compile_program(Cache(tmp_path))
    (path,) = tmp_path.iterdir()
    return path


def refusal(path: Path, saved: object) -> str:
    """Return why an entry is refused that says ``saved``. "" if it is not."""
    write(path, {**read(path), "saved": saved})
    cache = Cache(path.parent)
    compile_program(cache)
    return " ".join(cache.info().misses)


def test_an_entry_makes_the_same_modules_again(tmp_path: Path) -> None:
    first = compile_program(cache := Cache(tmp_path))
    second = compile_program(cache)
    assert [str(m.graph) for m in second] == [str(m.graph) for m in first]
    assert (cache.info().hits, len(first)) == (1, 2)
    (path,) = tmp_path.iterdir()
    results: Any = first[0].graph.output_node().args[0]
    assert len(read(path)["saved"]) == len(results) - 1


@pytest.mark.parametrize("saved", [None, {}, "1", 1, [1, 1], [1.0, 1.0], [[1], [1]]])
def test_what_is_no_list_of_different_numbers_is_no_entry(entry: Path, saved: Any) -> None:
    assert refusal(entry, saved) == "a damaged entry: it is no list of nodes"


def test_what_cannot_be_saved_is_refused(entry: Path, joint: fx.Graph) -> None:
    nodes = list(joint.nodes)
    several = [i for i, n in enumerate(nodes) if n.name == "sort"]
    constants = [i for i, n in enumerate(nodes) if n.op == "get_attr"]
    late = [i for i, n in enumerate(nodes) if n.name.startswith("tangents")]
    assert several and constants and late
    for i in (False, True, 0.0, "0", -1, len(nodes), len(nodes) - 1, *several, *constants, *late):
        assert refusal(entry, [i]) == "a damaged entry: it names what cannot be saved"


def test_a_cut_has_what_the_backward_needs_and_may_not_compute(
    entry: Path, joint: fx.Graph
) -> None:
    names = [n.name for n in joint.nodes]
    saved = read(entry)["saved"]
    reasons = {names[i]: refusal(entry, [j for j in saved if j != i]) for i in saved}
    missing = "a damaged entry: a value that must be saved is missing"
    assert {name: why for name, why in reasons.items() if why} == {
        "primals_1": "a damaged entry: a saved value is missing",
        "div": missing,
        "lift_fresh_copy": missing,
    }
    assert refusal(entry, []) == "a damaged entry: a saved value is missing"


OTHERS: list[tuple[list[Any], str]] = [
    ([], "a new graph"),
    (["partition"], "another partition"),
    (["partition versions"], "another partition and versions"),
    (["partition versions", "boundary", "boundary partition"], "another boundary"),
    (["boundary partition", "versions"], "another versions"),
    ([{"saved": []}], "a new graph"),
    ([{"key": "no parts"}, "versions"], "another versions"),
    ([""], "a new graph"),
]


@pytest.mark.parametrize("others, why", OTHERS)
def test_a_new_program_is_told_by_what_differs_from_the_nearest_one(
    tmp_path: Path, others: list[Any], why: str
) -> None:
    """Each of ``others`` is an entry, or the parts of the key in which it differs."""
    cache = Cache(tmp_path)
    gradient(cache)
    (path,) = tmp_path.iterdir()
    entry = read(path)
    graph = path.name.partition("-")[0]
    path.unlink()
    write(tmp_path / f"{graph[::-1]}-0.json", entry)  # of another graph
    for i, other in enumerate(others):
        if isinstance(other, str):
            other = {**entry, "key": {**entry["key"], **dict.fromkeys(other.split(), "0")}}
        write(tmp_path / f"{graph}-{i}.json", other)
    (tmp_path / f"{graph}-broken.json").write_bytes(b"")
    (tmp_path / f"{graph}-folder.json").mkdir()
    gradient(cache)
    assert cache.info().misses == Counter(["a new graph", why])


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


def test_there_is_one_cache_for_each_folder_that_the_environment_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert cache_info() == CacheInfo()
    monkeypatch.setenv(VARIABLE, "")
    cache_clear()
    assert cache_info() == CacheInfo()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a"))
    gradient(None)
    assert cache_info().misses == {"a new graph": 1}
    monkeypatch.setenv(VARIABLE, str(tmp_path / "b"))
    assert cache_info() == CacheInfo()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a"))
    gradient(None)
    info = cache_info()
    assert (info.hits, info.misses, info.entries) == (1, {"a new graph": 1}, 1), "it goes on"
    cache_clear()
    assert cache_info() == CacheInfo()
