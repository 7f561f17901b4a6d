"""The right in_dims patterns are tried, and entries of a batch differ."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from gen.outcomes import Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import case, row_of

HERE = "tests.checks.test_batching"
Tensor = torch.Tensor
X = torch.linspace(0.1, 0.9, 6, dtype=torch.float64).reshape(2, 3)


class Mapping(TorchTarget):
    """A target that notes the in_dims of each vmap, and the batches with which it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.in_dims: list[tuple[int | None, ...]] = []
        self.batches: list[tuple[Tensor, ...]] = []

    def vmap(self, f: Callable[..., Any], in_dims: Sequence[int | None], out_dims: Any = 0) -> Any:
        self.in_dims.append(tuple(in_dims))
        mapped = super().vmap(f, tuple(in_dims), out_dims)

        def g(*inputs: Tensor) -> Any:
            self.batches.append(inputs)
            return mapped(*inputs)

        return g


def total(*inputs: Tensor) -> Tensor:
    """Add the numbers of each input."""
    return torch.stack([x.sum() for x in inputs]).sum()


def mapped(
    *samples: Sequence[Any], call: str = f"{HERE}:total", pipeline: str = "vmap", **more: str
) -> Mapping:
    """Return the target of a cell after it has run these samples."""
    target = Mapping()
    form = more.pop("form", "functional")
    row = row_of(*({"args": list(sample)} for sample in samples), call=call, **more)
    made = case("own.op", target=target, ops={"own.op": row})
    made.assert_same(pipeline, against="loop", form=form)
    assert made.compared
    return target


def masks(target: Mapping) -> set[tuple[bool, ...]]:
    """Return which inputs are batched, for each vmap."""
    return {tuple(dim is not None for dim in dims) for dims in target.in_dims}


def test_one_input_is_batched_at_either_end() -> None:
    assert mapped([X]).in_dims == [(0,), (-1,)]


def test_two_inputs_take_the_whole_product_but_all_unbatched() -> None:
    found = mapped([X, X]).in_dims
    assert len(found) == 8
    assert set(found) == set(itertools.product((0, -1, None), repeat=2)) - {(None, None)}


def test_three_inputs_take_every_mask_and_each_sees_both_ends() -> None:
    found = mapped([X, X, X])
    assert len(masks(found)) == 7
    for place in range(3):
        assert {0, -1} <= {dims[place] for dims in found.in_dims}


def test_more_inputs_take_all_each_alone_and_all_but_each() -> None:
    found = masks(mapped([X] * 5))
    assert len(found) == 11
    assert {sum(mask) for mask in found} == {1, 4, 5}


def test_later_samples_meet_middle_dimensions_and_scalars_have_only_one_place() -> None:
    rows = [[torch.rand(size, 3, dtype=torch.float64)] for size in range(2, 6)]
    assert {dims for (dims,) in mapped(*rows).in_dims} == {0, 1, -1}
    assert mapped([X[0, 0].clone()]).in_dims == [(0,)]


def test_an_input_that_is_written_to_is_batched_wherever_another_is() -> None:
    found = mapped([X, X], call="torch:mul", inplace="torch.Tensor.mul_", form="inplace").in_dims
    assert len(found) > 2 and all(dims[0] is not None for dims in found)


def test_several_vmaps_take_one_pattern_each_at_a_time() -> None:
    found = mapped([X, X], pipeline="vmap . vmap").in_dims
    outer, inner = found[::2], found[1::2]
    assert len(outer) == len(inner) == 3
    assert len(set(zip(outer, inner, strict=True))) == 3


def test_entries_differ_by_exact_factors_and_indices_are_reversed() -> None:
    indices = torch.tensor([0, 1, 2])
    x, k = mapped([X[0], indices], call="torch:take").batches[0]
    assert torch.equal(x[0], X[0])
    assert torch.equal(x[1] / X[0], torch.full_like(X[0], 0.9375))
    assert k.tolist()[:2] == [[0, 1, 2], [2, 1, 0]]


def test_a_batch_lies_where_the_pattern_says() -> None:
    found = mapped([X, X[0]], call="torch:mul")
    x, y = found.batches[found.in_dims.index((-1, None))]
    assert x.shape[:2] == (2, 3) and x.ndim == 3
    assert torch.equal(x[..., 0], X)
    assert torch.equal(y, X[0])


def at_ascending(x: Tensor, k: Tensor) -> Tensor:
    """Take elements by indices, which have to ascend."""
    if k[0] > k[-1]:
        raise RuntimeError("must ascend")
    return x[k]


class Looping(Mapping):
    """A target whose vmap is a loop, for ops that read values."""

    def vmap(self, f: Callable[..., Any], in_dims: Sequence[int | None], out_dims: Any = 0) -> Any:
        def g(*inputs: Tensor) -> Any:
            self.batches.append(inputs)
            size = next(
                x.shape[dim] for x, dim in zip(inputs, in_dims, strict=True) if dim is not None
            )
            rows = [
                f(
                    *(
                        x if dim is None else x.select(dim, entry)
                        for x, dim in zip(inputs, in_dims, strict=True)
                    )
                )
                for entry in range(size)
            ]
            return tuple(map(torch.stack, zip(*rows, strict=True)))

        return g


def looped(call: str, *args: Any) -> list[tuple[Tensor, ...]]:
    """Return the batches with which a cell of an op that reads values calls vmap."""
    target = Looping()
    row = row_of({"args": list(args)}, call=f"{HERE}:{call}")
    case("own.op", target=target, ops={"own.op": row}).assert_same("vmap", against="loop")
    return target.batches


def test_indices_that_cannot_be_reversed_are_repeated() -> None:
    _, k = looped("at_ascending", X, torch.tensor([0, 1]))[0]
    assert [row == [0, 1] for row in k.tolist()] == [True] * len(k)
    assert len(k) >= 2


def test_a_batch_that_would_leave_the_domain_is_scaled_the_other_way() -> None:
    (x,) = mapped([X + 0.9], call="torch:acosh").batches[0]
    assert (x[1] > x[0]).all()


def first_elements(x: Tensor) -> Tensor:
    """Take a number of elements that is another one for each factor of the first element."""
    return x.reshape(-1)[: 1 + round(160 * x.reshape(-1)[0].item()) % 5]


def test_a_pattern_whose_entries_have_different_shapes_is_not_allowed() -> None:
    with pytest.raises(Vacuous, match=r"in_dims \(0,\): the loop itself fails"):
        looped("first_elements", X)


def broken(x: Tensor) -> None:
    raise RuntimeError("no such kernel")


def test_an_op_that_fails_on_its_own_sample_says_so_itself() -> None:
    with pytest.raises(RuntimeError, match="no such kernel"):
        looped("broken", X)


def mistaken(x: Tensor) -> Tensor:
    """Raise an error that no op raises, unless `x` is the sample itself."""
    if not torch.equal(x, X):
        raise AttributeError("a mistake of the harness")
    return x


def test_an_unexpected_error_while_a_batch_grows_is_no_reason() -> None:
    with pytest.raises(AttributeError, match="a mistake of the harness"):
        looped("mistaken", X)
