"""Tensors that share memory by several storages, such as two of one NumPy array. A program that
writes to one of them is refused; one that only reads them is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.dlpack

from runtime import jit


def _of_slices(array: Any) -> tuple[Any, Any]:
    return torch.from_numpy(array[:3]), torch.from_numpy(array[1:])


def _by_dlpack(array: Any) -> tuple[Any, Any]:
    tensor = torch.from_numpy(array)
    return tensor, torch.utils.dlpack.from_dlpack(tensor)


def _own_and_foreign(array: Any) -> tuple[Any, Any]:
    tensor = torch.from_numpy(array) * 1
    return tensor, torch.from_numpy(tensor.numpy())


WAYS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "from_numpy twice": lambda a: (torch.from_numpy(a), torch.from_numpy(a)),
    "slices of one array": _of_slices,
    "frombuffer": lambda a: (
        torch.frombuffer(a, dtype=torch.float32),
        torch.frombuffer(a, dtype=torch.float32),
    ),
    "DLPack": _by_dlpack,
    "torch's memory and NumPy's": _own_and_foreign,
}


def _array() -> Any:
    return np.arange(4, dtype=np.float32)


def _writes(a: Any, b: Any) -> Any:
    b[1:].add_(1)
    return a.sum()


@pytest.mark.parametrize("way", WAYS)
def test_a_write_is_refused_with_the_line(way: str) -> None:
    compiled = jit(_writes)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"several storages(.|\n)*add_\(1\)"):
            compiled(*WAYS[way](_array()))


@pytest.mark.parametrize("way", WAYS)
def test_a_write_is_refused_also_after_calls_with_memory_apart(way: str) -> None:
    compiled = jit(_writes)
    a, b = WAYS[way](_array())
    for _ in range(3):
        assert compiled(a.clone(), b.clone()) == _writes(a.clone(), b.clone())
    with pytest.raises(RuntimeError, match="several storages"):
        compiled(a, b)
    assert compiled(a.clone(), b.clone()) == _writes(a.clone(), b.clone())


def test_parts_of_an_array_that_do_not_overlap_may_be_written_to() -> None:
    compiled = jit(_writes)
    for _ in range(4):
        ours, right = _array(), _array()
        result = compiled(torch.from_numpy(ours[:2]), torch.from_numpy(ours[2:]))
        assert result == _writes(torch.from_numpy(right[:2]), torch.from_numpy(right[2:]))
        assert ours.tolist() == right.tolist()


def test_a_tensor_of_the_state_and_an_argument() -> None:
    array = _array()
    held = torch.from_numpy(array)

    @jit
    def step(a: Any) -> Any:
        held[1:].add_(1)
        return a.sum()

    assert [step(torch.ones(4)).item() for _ in range(3)] == [4.0, 4.0, 4.0]
    with pytest.raises(RuntimeError, match="several storages"):
        step(torch.from_numpy(array))


@pytest.mark.parametrize("way", WAYS)
def test_what_is_only_read_is_captured(way: str) -> None:
    compiled = jit(lambda a, b: a.sum() + b.sum())
    for _ in range(3):
        a, b = WAYS[way](_array())
        assert compiled(a, b) == a.sum() + b.sum()
