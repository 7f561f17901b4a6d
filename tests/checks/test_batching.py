"""The right in_dims patterns are tried, and entries of a batch differ."""

import itertools
from typing import Any

import pytest
import torch

from gen.checks.batched_inputs import choices, grow, patterns, vary
from gen.checks.pipelines import Program
from gen.outcomes import Unsuitable

X = torch.linspace(0.1, 0.9, 6, dtype=torch.float64).reshape(2, 3)


def program(f: Any, *inputs: Any) -> Any:
    return Program(lambda target: f, inputs, tuple(x.is_floating_point() for x in inputs), seed=0)


def test_one_input_is_batched_at_either_end() -> None:
    assert patterns([X]) == [(0,), (-1,)]


def test_two_inputs_take_the_whole_product_but_all_unbatched() -> None:
    assert len(patterns([X, X])) == 8
    assert set(patterns([X, X])) == {(a, b) for a in (0, -1, None) for b in (0, -1, None)} - {
        (None, None)
    }


def test_three_inputs_take_every_mask_and_each_sees_both_ends() -> None:
    found = patterns([X, X, X])
    assert len({tuple(dim is None for dim in dims) for dims in found}) == 7
    for place in range(3):
        assert {0, -1} <= {dims[place] for dims in found}


def test_more_inputs_take_all_each_alone_and_all_but_each() -> None:
    masks = {tuple(dim is not None for dim in dims) for dims in patterns([X] * 5)}
    assert len(masks) == 11
    assert {sum(mask) for mask in masks} == {1, 4, 5}


def test_odd_turns_meet_middle_dimensions_and_scalars_have_only_one_place() -> None:
    assert patterns([X], turn=1) == [(0,), (1,)]
    assert patterns([X[0, 0]]) == [(0,)]


def test_an_input_that_is_written_to_is_batched_wherever_another_is() -> None:
    (choice,) = choices(["vmap"], first=True, turn=0, written=[0])
    assert all(dims[0] is not None for dims in choice([X, X]))


def test_several_vmaps_take_one_pattern_each_at_a_time() -> None:
    found = choices(["vmap", "vjp", "vmap"], first=True, turn=0, written=())
    assert len(found) == 3
    assert all(len(choice([X, X])) == 1 for choice in found)
    assert len({choice([X, X])[0] for choice in found}) == 3


def test_entries_differ_by_exact_factors_and_indices_are_reversed() -> None:
    assert torch.equal(vary(X, 1) / X, torch.full_like(X, 0.9375))
    assert vary(torch.tensor([0, 1, 2]), 1).tolist() == [2, 1, 0]
    assert vary(X, 0) is X


def test_a_batch_lies_where_the_pattern_says() -> None:
    grown = grow(program(lambda x, y: (x * y,), X, X[0]), (-1, None), 3, lambda p: p.on_reference())
    assert grown.inputs[0].shape == (2, 3, 3)
    assert torch.equal(grown.inputs[0][..., 0], X)
    assert grown.on_reference()[0].shape == (3, 2, 3)


def test_indices_that_cannot_be_reversed_are_repeated() -> None:
    def ascending(x: Any, k: Any) -> Any:
        if k[0] > k[-1]:
            raise RuntimeError("must ascend")
        return (x[k],)

    grown = grow(program(ascending, X, torch.tensor([0, 1])), (0, 0), 2, lambda p: p.on_reference())
    assert grown.inputs[1].tolist() == [[0, 1], [0, 1]]


def test_a_batch_that_would_leave_the_domain_is_scaled_the_other_way() -> None:
    grown = grow(program(lambda x: (torch.acosh(x),), X + 0.9), (0,), 2, lambda p: p.on_reference())
    assert (grown.inputs[0][1] > grown.inputs[0][0]).all()


def test_a_pattern_whose_entries_have_different_shapes_is_not_allowed() -> None:
    sizes = itertools.count()
    with pytest.raises(Unsuitable, match=r"in_dims \(0,\): the loop itself fails"):
        grow(
            program(lambda x: (x.reshape(-1)[: next(sizes) % 5],), X),
            (0,),
            2,
            lambda p: p.on_reference(),
        )


def test_an_op_that_fails_on_its_own_sample_says_so_itself() -> None:
    def broken(x: Any) -> None:
        raise RuntimeError("no such kernel")

    with pytest.raises(RuntimeError, match="no such kernel"):
        grow(program(broken, X), (0,), 2, lambda p: p.on_reference())


def test_an_unexpected_error_while_a_batch_grows_is_no_reason() -> None:
    calls = itertools.count()

    def mistaken(x: Any) -> Any:
        if next(calls):
            raise AttributeError("a mistake of the harness")
        return (x,)

    with pytest.raises(AttributeError, match="a mistake of the harness"):
        grow(program(mistaken, X), (0,), 2, lambda p: p.on_reference())
