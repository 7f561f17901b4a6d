"""Where elements lie in memory: which views overlap, which order a draw has, which layout a write
leaves, what is copied.

Inside: ``runtime.functionalize`` (``overlap``, ``memory_order``, ``stores``), ``own_memory`` and
``private_copy``. Each is a fact of sizes and strides, of which a program shows a consequence of
many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.func.jvp import own_memory
from runtime.functionalize import memory_order
from runtime.functionalize.functional_level import FunctionalLevel
from runtime.functionalize.overlap import (
    ViewCall,
    has_gaps,
    overlaps,
    refuse_gaps,
    same_strides,
    shows_twice,
)
from runtime.functionalize.stores import Memory
from runtime.trace.outside import private_copy

aten = torch.ops.aten


Make = Callable[[], torch.Tensor]


def _flat(n: int = 24) -> torch.Tensor:
    return torch.arange(float(n))


# whether it shows an element twice, and whether it has gaps
PLACES: dict[str, tuple[Make, bool, bool]] = {
    "plain": (lambda: _flat().view(4, 6), False, False),
    "transposed": (lambda: _flat().view(4, 6).t(), False, False),
    "every second column": (lambda: _flat().view(4, 6)[:, ::2], False, True),
    "all but the last column": (lambda: _flat().view(4, 6)[:, :-1], False, True),
    "rows": (lambda: _flat().view(4, 6)[1:], False, False),
    "expanded": (lambda: _flat(4).view(4, 1).expand(4, 2), True, False),
    "expanded to one": (lambda: _flat(4).view(4, 1).expand(4, 1), False, False),
    "unfolded": (lambda: _flat(5).unfold(0, 2, 1), True, False),
    "unfolded without overlap": (lambda: _flat(6).unfold(0, 2, 2), False, False),
    "unfolded with gaps": (lambda: _flat(6).unfold(0, 2, 3), False, True),
    "meeting ends": (lambda: _flat().as_strided((2, 3), (2, 1)), True, False),
    "parted ends": (lambda: _flat().as_strided((2, 3), (3, 1)), False, False),
    "nothing": (lambda: _flat().view(4, 6)[:0], False, False),
    "a number": (lambda: _flat()[3], False, False),
    "sparse": (lambda: _flat(4).to_sparse(), False, False),
}


@pytest.mark.parametrize("name", PLACES)
def test_overlaps_and_gaps_follow_from_sizes_and_strides(name: str) -> None:
    make, twice, gaps = PLACES[name]
    assert (shows_twice(make()), has_gaps(make())) == (twice, gaps)


CHAINS: dict[str, tuple[tuple[ViewCall, ...], bool]] = {
    "nothing": ((), False),
    "an element": ((ViewCall(aten.select.int, (0, 1), {}, None),), False),
    "expanded": ((ViewCall(aten.expand.default, ([3, 4],), {}, None),), True),
    "expanded and narrowed": (
        (
            ViewCall(aten.expand.default, ([3, 4],), {}, None),
            ViewCall(aten.select.int, (0, 1), {}, None),
        ),
        True,
    ),
    "narrowed and unfolded": (
        (
            ViewCall(aten.slice.Tensor, (0, 1, 4), {}, None),
            ViewCall(aten.unfold.default, (0, 2, 1), {}, None),
        ),
        True,
    ),
    "unfolded apart": ((ViewCall(aten.unfold.default, (0, 2, 2), {}, None),), False),
    "a piece, expanded": (
        (
            ViewCall(aten.split.Tensor, (2,), {}, 1),
            ViewCall(aten.expand.default, ([3, 2],), {}, None),
        ),
        True,
    ),
    "by name": ((ViewCall(aten.as_strided.default, ([2, 2],), {"stride": [1, 1]}, None),), True),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_of_views_overlaps_if_one_of_them_does(name: str) -> None:
    chain, expected = CHAINS[name]
    assert overlaps(_flat(4), chain) is expected


@pytest.mark.parametrize(
    ("sizes", "strides", "offset", "fits"),
    [
        ((2,), (3,), 2, True), ((2,), (3,), 3, False), ((2,), (1,), 1, False),
        ((4,), (1,), 2, True), ((5,), (1,), 2, False), ((0,), (9,), 9, True),
    ],
)  # fmt: skip
def test_as_strided_reaches_from_the_first_element_to_the_last(
    sizes: Any, strides: Any, offset: int, fits: bool
) -> None:
    base = _flat(8)[2:6]
    chain = [ViewCall(aten.as_strided.default, (sizes, strides, offset), {}, None)]
    if fits:
        refuse_gaps(base, chain)
        return
    with pytest.raises(RuntimeError, match="elements beside it"):
        refuse_gaps(base, chain)


@pytest.mark.parametrize(
    ("sizes", "a", "b", "same"),
    [
        ((2, 3), (3, 1), (3, 1), True),
        ((2, 3), (3, 1), (1, 2), False),
        ((1, 3), (9, 1), (3, 1), True),
        ((2, 1), (1, 5), (1, 1), True),
    ],
)
def test_strides_are_the_same_where_there_are_several_elements(
    sizes: Any, a: Any, b: Any, same: bool
) -> None:
    assert same_strides(_flat().as_strided(sizes, a), _flat().as_strided(sizes, b)) is same


@pytest.mark.parametrize(
    ("func", "make", "in_turn"),
    [
        (aten.normal_.default, lambda: torch.zeros(4, 8)[:, ::2], True),
        (aten.normal_.default, lambda: torch.zeros(5, 6)[:, ::2], False),
        (aten.normal_.default, lambda: torch.zeros(4, 4), False),
        (aten.normal_.default, lambda: torch.zeros(4, 8, device="meta")[:, ::2], False),
        (aten.uniform_.default, lambda: torch.zeros(4, 8)[:, ::2], False),
    ],
    ids=["sixteen", "fifteen", "dense", "another device", "another draw"],
)
def test_a_draw_is_made_in_turn_from_sixteen_elements_with_gaps_on(
    func: Any, make: Make, in_turn: bool
) -> None:
    assert memory_order.draws_in_turn(func, make()) is in_turn


LAID_OUT: dict[str, Make] = {
    "plain": lambda: torch.complex(_flat(6), -_flat(6)).view(2, 3),
    "transposed": lambda: torch.complex(_flat(6), -_flat(6)).view(3, 2).t(),
    "conjugate": lambda: torch.complex(_flat(6), -_flat(6)).view(2, 3).conj(),
    "negative": lambda: torch._neg_view(torch.complex(_flat(6), -_flat(6)).view(2, 3)),
    "a conjugate transpose": lambda: torch.complex(_flat(6), -_flat(6)).view(3, 2).mH,
    "every second": lambda: torch.complex(_flat(12), -_flat(12)).view(2, 6)[:, ::2],
    "both, with gaps": lambda: torch._neg_view(
        torch.complex(_flat(12), -_flat(12)).view(2, 6)[:, ::2].conj()
    ),
    "expanded": lambda: torch.complex(_flat(3), -_flat(3)).expand(2, 3),
}


@pytest.mark.parametrize("new", LAID_OUT)
@pytest.mark.parametrize("old", LAID_OUT)
def test_a_write_leaves_strides_and_lazy_bits_and_gives_the_values(old: str, new: str) -> None:
    before, written = LAID_OUT[old](), LAID_OUT[new]()
    found = memory_order.laid_out_as(before, written)
    assert torch.equal(found.resolve_conj().resolve_neg(), written.resolve_conj().resolve_neg())
    assert (found.is_conj(), found.is_neg()) == (before.is_conj(), before.is_neg())
    if old != "expanded":
        assert same_strides(found, before)
    if old == new:
        assert found is written


ORDERS: dict[str, tuple[Make, list[int]]] = {
    "plain": (lambda: torch.zeros(2, 3, 4), [0, 1, 2]),
    "reversed": (lambda: torch.zeros(4, 3, 2).permute(2, 1, 0), [2, 1, 0]),
    "rotated": (lambda: torch.zeros(2, 3, 4).permute(1, 2, 0), [2, 0, 1]),
    "with a dimension of one": (lambda: torch.zeros(4, 1, 2).permute(2, 1, 0), [2, 1, 0]),
    "one in front": (lambda: torch.zeros(4, 2).t()[None], [0, 2, 1]),
}


@pytest.mark.parametrize("name", ORDERS)
def test_dimensions_are_ordered_from_the_largest_stride_to_the_smallest(name: str) -> None:
    make, expected = ORDERS[name]
    assert memory_order._order(make()) == expected


# of the tangent of the caller; whether it is copied
OWNED: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], bool]] = {
    "another": (lambda g: g * 2, False),
    "the same": (lambda g: g, True),
    "a view": (lambda g: g.view(2, 2)[:], True),
    "expanded": (lambda g: torch.ones(1, 2).expand(2, 2), True),
    "expanded to one": (lambda g: torch.ones(1, 2)[:1].expand(1, 2), False),
}


@pytest.mark.parametrize("name", OWNED)
def test_a_tangent_that_others_can_see_is_copied(name: str) -> None:
    make, copied = OWNED[name]
    given = torch.ones(2, 2)
    t = make(given)
    found = own_memory(t, [torch.zeros(2), given], torch.zeros(t.shape))
    assert (found is not t) is copied and torch.equal(found, t)
    if copied:
        found.add_(1)
        assert given.tolist() == [[1.0, 1.0], [1.0, 1.0]] and not shows_twice(found)


def test_a_tangent_of_an_expanded_result_may_be_expanded() -> None:
    t = torch.ones(1, 2).expand(2, 2)
    assert own_memory(t, [], torch.zeros(1, 2).expand(2, 2)) is t


@pytest.mark.parametrize("name", LAID_OUT)
def test_a_private_copy_has_the_layout_and_memory_of_its_own(name: str) -> None:
    t = LAID_OUT[name]()
    found = private_copy(t)
    assert torch.equal(found, t) and found.data_ptr() != t.data_ptr()
    facts = [
        (x.stride(), x.storage_offset(), x.is_conj(), x.is_neg(), x.untyped_storage().nbytes())
        for x in (t, found)
    ]
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    "other",
    [
        lambda: torch.ones(3).to_sparse(),
        lambda: torch._efficientzerotensor(3),
        lambda: torch.nn.Parameter(torch.ones(3)),
    ],
)
def test_a_private_copy_of_another_kind_is_a_plain_one(other: Make) -> None:
    t = other()
    found = private_copy(t)
    assert (
        found is not t
        and torch.equal(found.to_dense(), t.detach().to_dense())
        and not found.requires_grad
    )


def test_the_present_value_of_a_piece_and_of_the_whole_follow_each_others_writes() -> None:
    level = FunctionalLevel()
    try:
        whole: Any = level.wrap(_flat(4))
        first, second = whole.unsafe_split(2)
        assert first._store.memory.whole is whole._store.memory and not first._store.memory.is_at(0)
        whole.add_(1)
        assert level.present(first._store).tolist() == [1.0, 2.0]
        second.mul_(10)
        assert level.present(whole._store).tolist() == [1.0, 2.0, 30.0, 40.0]
        assert not whole._store.memory.is_at(whole._store.memory.generation)
    finally:
        level.close()


@pytest.mark.parametrize(
    ("generation", "asked", "at"), [(0, 0, True), (2, 2, True), (2, 1, False), (0, 1, False)]
)
def test_memory_without_pieces_is_at_its_generation(generation: int, asked: int, at: bool) -> None:
    memory = Memory(_flat(2))
    memory.generation = generation
    assert memory.is_at(asked) is at


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_memory_of_inference_mode_says_so(mode: Any) -> None:
    with mode():
        memory = Memory(_flat(2))
    assert memory.inference is (mode is torch.inference_mode)
    assert not Memory(_flat(2)).inference


@pytest.mark.parametrize(
    ("strides", "twice"),
    [((1, 1), True), ((0, 1), True), ((2, 2), True), ((2, 1), False), ((1, 3), False)],
)
def test_strides_say_whether_a_tensor_shows_an_element_twice(
    strides: tuple[int, int], twice: bool
) -> None:
    places = torch.arange(20).as_strided((3, 2), strides).flatten().tolist()
    assert (
        shows_twice(torch.zeros(20).as_strided((3, 2), strides))
        is twice
        is (len(set(places)) < len(places))
    )


@pytest.mark.parametrize(
    ("shape", "strides", "twice", "gaps"),
    [
        ((3, 1), (1, 0), False, False),
        ((1, 1), (0, 0), False, False),
        ((3, 2), (1, 3), False, False),
        ((3,), (2,), False, True),
        ((2, 2), (3, 1), False, True),
        ((3, 2), (0, 1), True, False),
        ((), (), False, False),
        ((0, 2), (1, 1), False, False),
    ],
)
def test_a_dimension_of_one_element_shows_nothing_twice(
    shape: Any, strides: Any, twice: bool, gaps: bool
) -> None:
    t = torch.zeros(12).as_strided(shape, strides)
    assert (shows_twice(t), has_gaps(t)) == (twice, gaps)


def test_strides_differ_where_there_are_several_elements() -> None:
    t = torch.zeros(12)
    a, b, c = (
        t.as_strided((3, 1), (1, 1)),
        t.as_strided((3, 1), (1, 7)),
        t.as_strided((3, 1), (2, 1)),
    )
    assert same_strides(a, b) and not same_strides(a, c)
    assert (
        same_strides(a, torch.eye(3).to_sparse())
        and same_strides(torch.eye(3).to_sparse(), a)
        and not shows_twice(torch.eye(3).to_sparse())
    )


@pytest.mark.parametrize(
    ("func", "target", "in_turn"),
    [
        (aten.normal_.default, torch.zeros(40)[::2], True),
        (aten.normal_.default, torch.zeros(32)[::2], True),
        (aten.normal_.default, torch.zeros(30)[::2], False),
        (aten.normal_.default, torch.zeros(20), False),
        (aten.normal_.default, torch.zeros(4, 5).t(), False),
        (aten.normal_.default, torch.zeros(40, device="meta")[::2], False),
        (aten.uniform_.default, torch.zeros(40)[::2], False),
    ],
)
def test_only_long_normal_draws_into_gaps_on_the_cpu_are_drawn_in_turn(
    func: Any, target: torch.Tensor, in_turn: bool
) -> None:
    assert memory_order.draws_in_turn(func, target) is in_turn


def test_what_is_written_has_the_strides_of_its_memory() -> None:
    new = torch.arange(6.0).view(2, 3)
    for old in (torch.zeros(3, 2).t(), torch.zeros(2, 6)[:, ::2], torch.zeros(2, 3)):
        found = memory_order.laid_out_as(old, new)
        assert torch.equal(found, new) and (
            found.stride() == old.stride() or not old.is_contiguous()
        )
    sparse = torch.eye(2).to_sparse()
    assert (
        memory_order.laid_out_as(torch.zeros(2, 3), new) is new
        and memory_order.laid_out_as(sparse, sparse * 2).layout is torch.sparse_coo
    )
    assert (
        memory_order.laid_out_as(sparse, torch.eye(2)).layout is torch.strided
        and memory_order.laid_out_as(torch.eye(2), sparse) is sparse
    )
    column = torch.ones(2, 1)
    assert memory_order.laid_out_as(torch.zeros(2, 1).as_strided((2, 1), (1, 7)), column) is column
    assert memory_order.laid_out_as(torch.zeros(1).expand(2, 3), new) is new
