"""What an entry cannot say, and counts that threads wait for.

Inside: ``runtime.aot.cache.cuts``. No partition of this package saves a node under a name of its
own today, and whether a thread waits shows in no count that comes out right."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime import aot
from runtime.aot import Cache
from runtime.aot.cache import cuts


def joint_and_forward(f: Any, *args: torch.Tensor) -> tuple[Any, Any]:
    """Return what a partition is given, and the forward that it makes."""
    found: list[Any] = []

    def keep(module: Any, inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        parts = aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)
        found[:] = SimpleNamespace(module=module, n_forward=num_fwd_outputs), parts[0]
        return parts

    aot.aot_function(f, aot.nop, partition_fn=keep)(*args)
    return found[0], found[1]


def test_a_forward_with_nodes_of_other_names_has_no_positions() -> None:
    joint, forward = joint_and_forward(torch.sin, torch.ones(3, requires_grad=True))
    assert cuts._positions_of_saved(joint, forward) == [0]
    results: Any = forward.graph.output_node().args[0]
    results[1].name = "another"
    assert cuts._positions_of_saved(joint, forward) is None


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
