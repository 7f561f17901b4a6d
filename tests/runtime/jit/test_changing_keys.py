"""Keys of dictionaries and items of sets whose hash or equality changes between calls."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime


class Key:
    """A key that is equal to others with the same number, until it raises."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.raises = False

    def __hash__(self) -> int:
        if self.raises:
            raise ValueError("no hash")
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and self.number == other.number


Program = Callable[[torch.Tensor, Any], torch.Tensor]
READS: list[Program] = [
    lambda x, found: x * (Key(1) in found),
    lambda x, found: x * len([key for key in found if key.number == 2]),
    lambda x, found: x * len(found),
]
NUMBERS = [1, 1, 2, 2, 1, 2, 1]


@pytest.mark.parametrize("program", READS)
@pytest.mark.parametrize("make", [lambda *k: dict.fromkeys(k, 2.0), lambda *k: set(k)])
def test_a_key_with_another_hash_is_not_found_and_is_there(program: Program, make: Any) -> None:
    key = Key(1)
    found = make(key, Key(5))
    run = runtime.jit(lambda x: program(x, found))
    for number in NUMBERS:
        key.number = number
        assert torch.equal(run(torch.ones(2)), program(torch.ones(2), found))


def test_values_behind_such_keys_are_those_of_the_call() -> None:
    key = Key(1)
    found = {key: 2.0, "other": 3.0}
    run = runtime.jit(lambda x: x * sum(found.values()))
    for number in NUMBERS:
        key.number = number
        assert torch.equal(run(torch.ones(2)), torch.full((2,), sum(found.values())))
        found["other"] += 1.0


def _put(found: Any) -> None:
    if isinstance(found, set):
        found.add(Key(1))
    else:
        found[Key(1)] = 4.0


@pytest.mark.parametrize("make", [lambda *k: dict.fromkeys(k, 2.0), lambda *k: set(k)])
def test_a_change_beside_a_lost_key_is_refused_and_undone(make: Any) -> None:
    key = Key(1)
    found = make(key)

    def program(x: torch.Tensor) -> torch.Tensor:
        _put(found)
        return x * len(found)

    run = runtime.jit(program)
    assert torch.equal(run(torch.ones(2)), torch.ones(2))
    key.number = 2
    with pytest.raises(RuntimeError, match="another one than when it was put in"):
        run(torch.ones(2))
    assert list(found) == [key]
    # the key is as lost as it was
    assert key not in found


def test_a_key_that_goes_is_no_lost_one() -> None:
    first, second = {Key(1): 2.0, Key(2): 3.0}, {Key(1), Key(2)}

    def program(x: torch.Tensor) -> torch.Tensor:
        first.pop(Key(1), None)
        second.discard(Key(1))
        return x * len(first) * len(second)

    run = runtime.jit(program)
    for _ in range(3):
        assert torch.equal(run(torch.ones(2)), torch.ones(2))
        first[Key(1)] = 2.0
        second.add(Key(1))


def test_keys_that_cannot_be_compared_are_refused_with_the_line() -> None:
    key = Key(1)
    found = {key: 2.0, Key(5): 3.0}
    run = runtime.jit(lambda x: x * found[Key(5)])
    expected = torch.full((2,), 3.0)
    for _ in range(2):
        assert torch.equal(run(torch.ones(2)), expected)
    key.raises = True
    with pytest.raises(RuntimeError, match=r"raises ValueError: no hash(.|\n)*test_changing_keys"):
        run(torch.ones(2))
    key.raises = False
    assert torch.equal(run(torch.ones(2)), expected)
    key.number = 5
    with pytest.raises(RuntimeError, match=r"two keys that are equal(.|\n)*test_changing_keys"):
        run(torch.ones(2))
