"""Up to which size what a program reads is compared by each call, and what of many items
is taken for data."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import torch

from runtime.aot.python_state.reader import reads_of
from runtime.aot.python_state.reads import WHOLE

scale = types.SimpleNamespace(rate=1.0)
w = torch.ones(2)


@pytest.mark.parametrize("n, noted", [(2**14, True), (2**14 + 1, False)])
def test_a_long_list_is_compared_up_to_a_length(
    n: int, noted: bool, recwarn: pytest.WarningsRecorder
) -> None:
    items = [0.0] * n
    reads = reads_of(lambda x: [x * i for i in items], (), {}, [])
    assert any(r.owner is items and r.name is WHOLE for r in reads) is noted
    assert [f"a list of {n} items" in str(w.message) for w in recwarn] == ([] if noted else [True])


@pytest.mark.parametrize("n, noted", [(2**21, True), (2**21 + 1, False)])
def test_an_array_is_compared_up_to_a_size(
    n: int, noted: bool, recwarn: pytest.WarningsRecorder
) -> None:
    items = np.zeros(n)
    reads = reads_of(lambda x: [x * items[0], x * items.sum()], (), {}, [])
    assert any(r.owner is items and r.name is WHOLE for r in reads) is noted
    assert [f"{n * 8} bytes" in str(w.message) for w in recwarn] == ([] if noted else [True])


@pytest.mark.parametrize("n, noted", [(32, True), (33, False)])
@pytest.mark.parametrize("item", [scale, torch.sin])
def test_many_objects_are_a_registry_and_few_are_read(n: int, noted: bool, item: Any) -> None:
    items = [item] * n
    reads = reads_of(lambda x: [x for i in items], (), {}, [])
    assert any(r.owner is items and r.name is WHOLE for r in reads) is noted


@pytest.mark.parametrize(
    "items",
    [[1.0] * 40, [w] * 40, [(1.0,)] * 40, [None] * 40, dict.fromkeys(range(40), "a")],
    ids=lambda x: str(type(x)),
)
def test_many_numbers_texts_and_tensors_are_data(items: Any) -> None:
    reads = reads_of(lambda x: [x for i in items], (), {}, [])
    assert any(r.owner is items and r.name is WHOLE for r in reads)


@pytest.mark.parametrize(
    "items, noted",
    [
        ([1.0] * 40, True),
        ([w] * 40, True),
        (["a"] * 40, False),
        ([(1.0,)] * 40, False),
        (dict.fromkeys(range(40), 1.0), False),
    ],
)
def test_of_an_object_that_is_handed_on_many_numbers_and_tensors_are_data_alone(
    items: Any, noted: bool
) -> None:
    """Any function that reads ``items`` of its argument makes the program ask for those of each
    object that is handed on."""
    holder = types.SimpleNamespace(items_of_it=items)

    def loops(h: Any, x: Any) -> Any:
        return [x for i in h.items_of_it]

    def program(x: Any) -> Any:
        return loops(holder, x)

    assert any(r.owner is items and r.name is WHOLE for r in reads_of(program, (), {}, [])) is noted


def test_a_copy_of_a_container_is_compared_and_not_the_container_itself() -> None:
    items, inner = [1.0, [2.0]], [2.0]
    items[1] = inner
    (read,) = [r for r in reads_of(lambda x: [x for i in items], (), {}, []) if r.owner is items]
    assert read.holds()
    items.append(3.0)
    assert not read.holds()
    values = np.ones(2)
    (read,) = [r for r in reads_of(lambda x: x * values[0], (), {}, []) if r.owner is values]
    values[0] = 2.0
    assert not read.holds()


def test_what_is_too_long_is_told_once(recwarn: pytest.WarningsRecorder) -> None:
    items = [0.0] * (2**14 + 1)
    reads_of(
        lambda x: [x * i for i in items] + [x * i for i in items] + [x for i in [*items]],
        (),
        {},
        [],
    )
    assert len(recwarn) == 1


def test_a_program_that_reads_thousands_of_places_asks_for_the_first_4096() -> None:
    items = [0.0] * 4200
    source = f"lambda items: lambda x: [{', '.join(f'items[{i}]' for i in range(4200))}]"
    program = eval(compile(source, __file__, "eval"))(items)
    assert len(reads_of(program, (), {}, [])) == 4096
