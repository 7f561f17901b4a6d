"""Which of N shards runs a cell. Shards are balanced by recorded durations; the same record gives the same shards on every machine.

Cells of one op in one module share samples and reference results. So they stay in one shard, unless they would take more than
half of it.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["Shard", "assign", "fingerprint", "parse_shard", "read_durations", "write_durations"]

Shard = tuple[int, int]


def parse_shard(text: str) -> Shard:
    """`2/4` -> (2, 4), counted from one."""
    index, slash, count = text.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise ValueError(f"--shard {text!r}: expected I/N with 1 <= I <= N, as 2/4")
    return int(index), int(count)


def assign(nodes: Sequence[str], durations: Mapping[str, float], count: int) -> dict[str, int]:
    """node id -> shard number, counted from one. A node without a recorded duration counts as the mean of the others."""
    recorded = [durations[node] for node in nodes if node in durations]
    usual = sum(recorded) / len(recorded) if recorded else 1.0
    weights = {node: max(durations.get(node, usual), 1e-6) for node in nodes}
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for node in nodes:
        groups[_group(node)].append(node)
    half = sum(weights.values()) / count / 2
    parts = [part for group in groups.values() for part in ([group] if sum(weights[n] for n in group) <= half else [[n] for n in group])]
    parts.sort(key=lambda part: (-sum(weights[node] for node in part), part[0]))
    loads = [(0.0, number) for number in range(1, count + 1)]
    chosen: dict[str, int] = {}
    for part in parts:
        load, number = heapq.heappop(loads)
        chosen.update(dict.fromkeys(part, number))
        heapq.heappush(loads, (load + sum(weights[node] for node in part), number))
    return chosen


def _group(node: str) -> str:
    module, _, rest = node.partition("::")
    _, _, case = rest.partition("[")
    return f"{module}::{case.partition('-')[0]}" if case else node


def fingerprint(assignment: Mapping[str, int]) -> str:
    """A digest of the assignment. It is equal on two machines exactly when they divide the same cells in the same way."""
    text = "\n".join(f"{node} {number}" for node, number in sorted(assignment.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def read_durations(path: Path) -> dict[str, float]:
    """Seconds by node id. Empty if there is no readable record, since durations only balance the shards."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return {node: float(seconds) for node, seconds in data.items() if isinstance(seconds, int | float)} if isinstance(data, dict) else {}


def write_durations(path: Path, seconds: Mapping[str, float]) -> None:
    """Merge into the record. The file is replaced as a whole, so that a reader never sees half of it."""
    merged = read_durations(path) | {node: round(value, 4) for node, value in seconds.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    aside.write_text(json.dumps(merged, indent=0, sort_keys=True), "utf-8")
    aside.replace(path)
