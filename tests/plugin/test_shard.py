"""Shards divide the cells completely, evenly, and the same everywhere."""

from pathlib import Path

import pytest

from gen.checks.shard import assign, fingerprint, parse_shard, read_durations, write_durations

NODES = [f"generated_tests/test_{m}.py::test_{c}[torch.op{o}-float64]" for m in "ab" for c in ("vjp", "jvp", "vmap") for o in range(40)]


def loads(assignment: dict[str, int], durations: dict[str, float]) -> list[float]:
    return [sum(durations.get(node, 1.0) for node, number in assignment.items() if number == shard) for shard in set(assignment.values())]


def test_every_cell_is_in_exactly_one_shard() -> None:
    assert assign(NODES, {}, 4).keys() == set(NODES)
    assert set(assign(NODES, {}, 4).values()) == {1, 2, 3, 4}


def test_without_durations_shards_are_balanced_by_count() -> None:
    assert max(loads(assign(NODES, {}, 4), {})) - min(loads(assign(NODES, {}, 4), {})) <= 3


def test_recorded_durations_balance_what_counts_would_not() -> None:
    durations = {node: 30.0 if "op7-" in node else 0.1 for node in NODES}
    found = loads(assign(NODES, durations, 3), durations)
    assert max(found) <= 1.05 * sum(found) / 3 + 30


def test_the_checks_of_one_op_stay_together_to_share_its_samples() -> None:
    chosen = assign(NODES, {}, 4)
    assert all(len({chosen[n] for n in NODES if "test_a" in n and f"op{o}-" in n}) == 1 for o in range(40))


def test_the_division_does_not_depend_on_the_order_of_collection() -> None:
    assert fingerprint(assign(NODES, {}, 3)) == fingerprint(assign(NODES[::-1], {}, 3))


def test_more_shards_than_cells_leave_some_empty() -> None:
    assert len(set(assign(NODES[:2], {}, 5).values())) == 2


@pytest.mark.parametrize("text", ["", "1", "0/2", "3/2", "a/b", "1/0", "-1/2", "1/2/3"])
def test_a_shard_is_one_number_of_another(text: str) -> None:
    with pytest.raises(ValueError, match="expected I/N"):
        parse_shard(text)


def test_durations_merge_and_survive_a_broken_record(tmp_path: Path) -> None:
    path = tmp_path / "durations.json"
    path.write_text("{")
    assert read_durations(path) == {}
    write_durations(path, {"a": 1.0})
    write_durations(path, {"b": 2.0})
    assert read_durations(path) == {"a": 1.0, "b": 2.0}
