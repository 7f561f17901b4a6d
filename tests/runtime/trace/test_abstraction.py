"""Sizes of any value: where a graph reads them, and the conditions under which it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.aot import make_fx
from runtime.func import vmap
from tests.runtime.trace.graphs import targets

aten = torch.ops.aten


def two_conditions(x: Tensor) -> Any:
    return x.shape[0] > 3, x.shape[1] < 5


# a question that the program asks, shapes that have the same answer as (4, 3), and others
CONDITIONS: dict[str, tuple[Callable[[Any], Any], list[tuple[int, ...]], list[tuple[int, ...]]]] = {
    "none but that it is no 0 or 1": (lambda x: None, [(4, 3), (9, 9)], [(1, 3), (4, 0)]),
    "equal sizes": (lambda x: x.shape[0] == x.shape[1], [(4, 3), (7, 2)], [(5, 5)]),
    "a size as a number": (lambda x: int(x.shape[0]), [(4, 3), (4, 8)], [(5, 3)]),
    "a quotient": (lambda x: 12 // x.shape[0] == 3, [(4, 9)], [(5, 3)]),
    "a stride": (lambda x: x.stride(0) == 3, [(4, 3), (9, 3)], [(4, 5)]),
    "two conditions": (two_conditions, [(4, 3), (9, 4)], [(3, 3), (4, 5)]),
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_graph_holds_for_the_sizes_that_meet_its_conditions(name: str) -> None:
    ask, passed, refused = CONDITIONS[name]

    def program(x: Tensor) -> Tensor:
        answers = ask(x)
        for answer in answers if isinstance(answers, tuple) else (answers,):
            if answer:
                x = x + 1
        return x * 2

    for shape in passed:
        assert number_of_programs(program, (4, 3), shape) == 1
    for shape in refused:
        assert number_of_programs(program, (4, 3), shape) == 2


def number_of_programs(program: Callable[[Tensor], Tensor], *shapes: tuple[int, ...]) -> int:
    jitted = jit(program, dynamic=True)
    for shape in shapes:
        assert torch.equal(jitted(torch.ones(shape)), program(torch.ones(shape)))
    return len(jitted.captured)


def _changed(x: Tensor) -> Any:
    n = x.shape[0]
    x.t_()
    return x.new_ones(n), x.new_zeros(x.shape[0])


# program, the calls that read, another input than ones of (4, 3)
READ: dict[str, tuple[Callable[..., Any], list[Any], list[Tensor]]] = {
    "sizes of two inputs": (lambda x: x.new_ones(x.shape[0] + x.shape[1]), [aten.sym_size.int] * 2,
        [torch.ones(2, 5)]),
    "a stride": (lambda x: x * x.stride(0), [aten.sym_stride.int],
        [torch.ones(9, 2).as_strided((4, 3), (4, 1))]),
    "an offset": (lambda x: x * x.storage_offset(), [aten.sym_storage_offset.default],
        [torch.ones(20)[3:].as_strided((4, 3), (4, 1), 5)]),
    "a size before it changes": (_changed, [aten.sym_size.int] * 2, [torch.ones(2, 5)]),
    "the number of elements": (lambda x: x * x.numel(), [aten.sym_size.int] * 2,
        [torch.ones(2, 5)]),
    "a choice": (
        lambda x: x.new_ones(torch.sym_ite(x.shape[0] > 5, x.shape[0],
            torch.sym_ite(x.shape[0] > 3, 11, 2))),
        [aten.sym_size.int],
        [torch.ones(2, 5), torch.ones(7, 5), torch.ones(4, 4)],
    ),
    "a size that depends on values": (
        lambda x: x.new_ones(x.nonzero().shape[0] * 2), [aten.sym_size.int],
        [torch.eye(3), torch.zeros(2, 2)],
    ),
    "a number that depends on values": (
        lambda x: x * x.sum().long().item(), [], [torch.eye(3), 2 * torch.ones(2, 2)],
    ),
    "a number of a size that cancels": (lambda x: x.new_ones(x.shape[0] - x.shape[0] + 2), [],
        [torch.ones(2, 5)]),
}  # fmt: skip
READS = (
    aten.sym_size.int,
    aten.sym_stride.int,
    aten.sym_storage_offset.default,
    aten.sym_numel.default,
)


EXAMPLE = torch.ones(4, 3)
STRIDED = torch.ones(40)[2:].as_strided((4, 3), (5, 1), 3)


@pytest.mark.parametrize("name", READ)
def test_a_graph_reads_the_numbers_of_its_inputs_when_it_runs(name: str) -> None:
    program, reads, others = READ[name]
    example = STRIDED if name in ("a stride", "an offset") else EXAMPLE
    # one of the programs transposes its input in place
    traced = make_fx(program, tracing_mode="symbolic")(example.detach())
    assert [target for target in targets(traced) if target in READS] == reads
    for x in (example, *others):
        torch.testing.assert_close(traced(x.detach()), program(x.detach()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_in_a_batch_a_trace_of_any_size_sees_an_element_of_its_dtype_and_device(
    dtype: torch.dtype,
) -> None:
    seen: list[Any] = []

    def f(x: Tensor) -> Tensor:
        def inner(y: Tensor) -> Tensor:
            seen.append((y.dtype, y.device))
            return y * y.shape[0]

        out: Tensor = make_fx(inner, tracing_mode="symbolic")(x)(x)
        return out

    found = vmap(f)(torch.ones(2, 3, dtype=dtype, device="meta"))
    assert (found.shape, found.dtype, found.device.type) == ((2, 3), dtype, "meta")
    assert [(d, device.type) for d, device in seen] == [(dtype, "meta")]
