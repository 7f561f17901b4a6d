"""The gate to memory, by the doors of the transforms. The ways one by one, in every transform, are
the family `memory` of the matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import aot_function, make_fx, nop
from runtime.func import functionalize, grad, vmap

X = torch.ones(2)
CAPTURES: dict[str, Callable[[Any], Any]] = {
    "jit": jit,
    "aot_function": lambda f: aot_function(f, nop),
    "make_fx": lambda f: lambda x: make_fx(f)(x)(x),
    "functionalize": functionalize,
}
READS: dict[str, Callable[[Tensor], Any]] = {
    "numpy": lambda b: float(b.numpy().sum()),
    "asarray": lambda b: float(np.asarray(b).sum()),
    "tolist": lambda b: sum(b.tolist()),
    "dlpack": lambda b: float(np.from_dlpack(b).sum()),
    "text": lambda b: len(str(b)),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("door", CAPTURES)
def test_a_capture_reads_the_elements_of_a_tensor_from_outside(door: str, read: str) -> None:
    b = torch.tensor([2.0, 3.0])
    assert CAPTURES[door](lambda x: x * READS[read](b))(X).tolist() == [READS[read](b)] * 2


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("door", ["jit", "aot_function"])
def test_a_compiled_program_notices_that_elements_which_it_has_read_change(
    door: str, read: str
) -> None:
    b = torch.tensor([2.0, 3.0])
    f = CAPTURES[door](lambda x: x * READS[read](b))
    first = f(X).tolist()
    assert f(X).tolist() == first
    b.mul_(2.125)
    assert f(X).tolist() == [READS[read](b)] * 2 != first


def test_a_write_into_the_array_of_a_tensor_is_made_by_every_call() -> None:
    b = torch.tensor([2.0, 3.0])

    @jit
    def f(x: Tensor) -> Tensor:
        b.numpy()[:] += 1
        return x * float(b.numpy().sum())

    for expected in (7.0, 9.0, 11.0):
        assert f(X).tolist() == [expected] * 2
        assert b.sum().item() == expected


@pytest.mark.parametrize("door", CAPTURES)
@pytest.mark.parametrize("first", ["the write", "the array"])
def test_an_array_beside_a_write_is_refused_by_line(door: str, first: str) -> None:
    b = torch.tensor([2.0, 3.0])

    def program(x: Tensor) -> Tensor:
        if first == "the write":
            b.add_(1)
        array = b.numpy()
        if first == "the array":
            b.add_(1)
        return x * float(array.sum())

    if (door, first) in (("make_fx", "the write"), ("make_fx", "the array")):
        # a trace without functionalization writes to the memory itself, and puts it back
        assert CAPTURES[door](program)(X).tolist() == [7.0, 7.0]
        return
    with pytest.raises(RuntimeError, match=r"array|memory") as raised:
        CAPTURES[door](program)(X)
    assert __file__ in str(raised.value)
    assert b.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("door", [*CAPTURES, "vmap", "grad of vmap"])
def test_a_tensor_from_outside_keeps_its_memory(door: str) -> None:
    """It would take that of a value, which has none, and the next kernel would die."""
    b = torch.tensor([2.0, 3.0])
    doors = CAPTURES | {
        "vmap": lambda f: lambda x: vmap(f)(x[None]),
        "grad of vmap": lambda f: grad(lambda x: vmap(f)(x[None]).sum()),
    }

    def program(x: Tensor) -> Tensor:
        b.data = x * 3
        return x + b

    with pytest.raises(RuntimeError, match=r"assigns to .data of a tensor") as raised:
        doors[door](program)(X)
    assert __file__ in str(raised.value)
    assert b.tolist() == [2.0, 3.0]


METHODS: dict[str, Callable[[Tensor], Any]] = {
    "untyped_storage": lambda x: x.untyped_storage(),
    "storage": lambda x: x.storage(),
    "data_ptr": lambda x: x.data_ptr(),
    "share_memory_": lambda x: x.share_memory_(),
    "apply_": lambda x: x.apply_(lambda v: v),
    "map_": lambda x: x.map_(x, lambda a, b: a),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("door", [*CAPTURES, "vmap"])
def test_a_value_without_memory_refuses_what_reaches_for_it(door: str, name: str) -> None:
    def program(x: Tensor) -> Tensor:
        METHODS[name](x * 2)
        return x

    doors = CAPTURES | {"vmap": vmap}
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=rf"{name}\(\)") as raised:
        warnings.simplefilter("ignore", UserWarning)  # of typed storages
        doors[door](program)(X)
    assert __file__ in str(raised.value)


def test_a_kernel_that_gets_a_shell_by_another_way_raises() -> None:
    """The floor under the rest: torch's own storage of a value cannot be read."""
    seen: list[str] = []

    def program(x: Tensor) -> Tensor:
        with pytest.raises(RuntimeError, match=r"not allocated|data pointer|storage"):
            torch._C.TensorBase.untyped_storage(x)[0]
        seen.append("asked")
        return x * 1.0

    vmap(program)(X)
    assert seen == ["asked"]


def test_assignments_of_data_between_tensors_are_torchs() -> None:
    a, b = torch.zeros(2), torch.ones(3, requires_grad=True)
    a.data = b
    assert a.shape == (3,) and a.data_ptr() == b.data_ptr()
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        a.data = torch.ones(3).to_sparse()
    with torch.inference_mode():
        c = torch.zeros(2)
        c.data = torch.ones(2)
        assert c.tolist() == [1.0, 1.0]
