"""What a call of a compiled program leaves behind: objects, versions, layouts, flags."""

from __future__ import annotations

import gc
import warnings
import weakref
from typing import Any

import pytest
import torch

import runtime
from runtime import tensor
from runtime.aot import aot_function, default_partition, min_cut_rematerialization_partition, nop

PARTITIONS = (default_partition, min_cut_rematerialization_partition)


def test_a_view_that_is_returned_twice_is_one_object() -> None:
    def f(x: Any) -> Any:
        v = x[0]
        return v, x[0], v

    a, b, c = aot_function(f, nop)(torch.zeros(2, 3))
    assert a is c and a is not b


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_trace_does_not_count_as_a_write_to_what_the_program_closes_over(
    requires_grad: bool,
) -> None:
    w = tensor([1.0, 2.0], requires_grad=requires_grad)

    def f(x: Any) -> Any:
        with torch.no_grad():
            w.mul_(2)
        return x * 1

    g = aot_function(f, nop)
    assert [(g(torch.ones(2)), w._version)[1] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_number_among_the_arguments_costs_the_partition_nothing(partition: Any) -> None:
    x = tensor([1.0, 2.0], requires_grad=True)
    aot_function(lambda x, s, none: x * s, nop, partition_fn=partition)(
        x, 2.5, None
    ).sum().backward()
    assert x.grad.tolist() == [2.5, 2.5]


def test_a_program_of_any_size_takes_arguments_that_share_memory_and_a_closed_over_tensor() -> None:
    w = torch.tensor([1.0, 10.0])

    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * w[: y.shape[0]]

    x = torch.zeros(3)
    assert aot_function(f, nop, dynamic=True)(x, x[1:]).tolist() == [1.0, 10.0]


def test_a_generator_is_where_the_call_leaves_it() -> None:
    def drawn(wrapped: Any) -> Any:
        generator = torch.Generator().manual_seed(3)
        f = wrapped(lambda x: x * torch.rand(3, generator=generator))
        return [*(f(torch.ones(3)) for _ in range(3)), torch.rand(3, generator=generator)]

    for a, b in zip(drawn(lambda f: aot_function(f, nop)), drawn(lambda f: f), strict=True):
        assert torch.equal(a, b)


def test_an_expanded_argument_can_be_filled() -> None:
    x = torch.zeros(1, 2)
    assert aot_function(lambda y: y.fill_(3), nop)(x.expand(2, 2)).tolist() == [
        [3.0, 3.0]
    ] * 2 and x.tolist() == [[3.0, 3.0]]


def test_a_result_that_was_detached_in_place_has_no_history() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.detach_()
        return y, x * y

    y, z = aot_function(f, nop)(tensor([1.0, 2.0], requires_grad=True))
    assert not y.requires_grad and z.requires_grad


def test_a_write_leaves_the_strides_of_what_it_writes_to() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.t().bernoulli_(0.5)
        return y, y + torch.rand_like(y)

    for wrapped in (f, aot_function(f, nop)):
        torch.manual_seed(0)
        y, z = wrapped(torch.ones(2, 3))
        assert y.stride() == z.stride() == (3, 1)


def test_a_list_that_is_written_and_read_is_written_one_after_the_other() -> None:
    def f(x: Any, y: Any) -> Any:
        torch._foreach_add_([x, y], [y, x])
        return x * y

    for wrapped in (f, aot_function(f, nop)):
        x, y = torch.ones(2), torch.full((2,), 2.0)
        assert wrapped(x, y).tolist() == [15.0, 15.0] and y.tolist() == [5.0, 5.0]


def test_arguments_that_share_memory_may_lie_anywhere_in_their_storage() -> None:
    def f(a: Any, b: Any) -> Any:
        v = a.unsqueeze(0)
        a.mul_(10)
        return v, b + 1

    for wrapped in (f, aot_function(f, nop)):
        x = torch.arange(6.0)
        v, c = wrapped(x[3:5], x[2:])
        assert (
            v.tolist() == [[30.0, 40.0]]
            and c.tolist() == [3.0, 31.0, 41.0, 6.0]
            and x.tolist() == [0.0, 1.0, 2.0, 30.0, 40.0, 5.0]
        )


def test_a_leaf_that_the_program_makes_is_a_leaf() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y.detach().requires_grad_(), y

    leaf, y = aot_function(f, nop)(tensor([1.0, 2.0], requires_grad=True))
    assert leaf.is_leaf and leaf.requires_grad and not y.is_leaf
    (leaf * leaf).sum().backward()
    assert leaf.grad.tolist() == [4.0, 8.0]


@pytest.mark.parametrize("make", [tensor, lambda values: tensor([0.0, *values])[1:]])
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
def test_an_argument_may_be_made_a_leaf_by_the_program(make: Any, partition: Any) -> None:
    def f(x: Any, w: Any) -> Any:
        before = (x + 1) * w
        x.mul_(2)
        x.requires_grad_()
        return before, x.sin() * w, x

    def program(f: Any) -> Any:
        x, w = make([1.0, 2.0]), tensor([3.0, 4.0], requires_grad=True)
        found = []
        for _ in range(2):
            try:
                before, after, same = f(x, w)
            except RuntimeError as error:  # a leaf that requires grad is written to
                found.append("in-place" in str(error))
                continue
            assert x.requires_grad and x.is_leaf and same.requires_grad
            loss = before.sum() + after.sum() + (same * 5).sum()
            (g,) = runtime.autograd.grad(loss, w, retain_graph=True)
            loss.backward()
            found += [g, x.grad]
        return found

    (g, gx, again), (h, hx, also) = (
        program(f),
        program(aot_function(f, nop, partition_fn=partition)),
    )
    assert torch.equal(g, h) and torch.equal(gx, hx) and again and also


def test_a_plain_argument_that_the_program_makes_a_leaf_gets_its_gradient() -> None:
    x = torch.tensor([1.0, 2.0])
    aot_function(lambda x: x.requires_grad_().sin().sum(), nop)(x).backward()
    assert x.requires_grad and torch.equal(x.grad, torch.tensor([1.0, 2.0]).cos())  # type: ignore[arg-type]


def test_what_an_argument_was_before_it_became_a_leaf_is_constant_in_second_derivatives() -> None:
    def f(x: Any) -> Any:
        before = x.sin()
        return before * x.requires_grad_().sin()

    x = tensor([1.0, 2.0])
    (g,) = runtime.autograd.grad(aot_function(f, nop)(x).sum(), x, create_graph=True)
    (gg,) = runtime.autograd.grad(g.sum(), x)
    plain = x.detach()
    torch.testing.assert_close(gg, -plain.sin() * plain.sin())


def test_a_leaf_that_the_program_makes_and_keeps_ends_the_history_of_a_result() -> None:
    def f(x: Any) -> Any:
        return x.detach().requires_grad_() * x, (x.detach().requires_grad_() * 2).view(-1)

    for x in (tensor([1.0, 2.0]), tensor([1.0, 2.0], requires_grad=True)):
        y, z = aot_function(f, nop)(x)
        assert y.requires_grad and z.requires_grad and not y.is_leaf and z.tolist() == [2.0, 4.0]
        (y.sum() + z.sum()).backward()
        assert x.grad is None if not x.requires_grad else x.grad.tolist() == [1.0, 2.0]


def leaf_and_product(x: Any) -> Any:
    leaf = x.detach().requires_grad_()
    return leaf, leaf * 2


@pytest.mark.parametrize("f", [leaf_and_product, lambda x: x[1:].requires_grad_()[0]])
def test_a_leaf_that_is_returned_beside_what_depends_on_it_is_refused(f: Any) -> None:
    with pytest.raises(
        RuntimeError, match=r"calls requires_grad_\(\) on a tensor, and returns it or a view of it"
    ):
        aot_function(f, nop)(tensor([1.0, 2.0]))


def test_a_write_to_a_part_of_an_expanded_argument_changes_what_it_shows_elsewhere() -> None:
    base = torch.zeros(1, 2)
    aot_function(lambda y: y[0].add_(1), nop)(base.expand(2, 2))
    assert base.tolist() == [[1.0, 1.0]]


def test_an_argument_may_change_its_geometry_and_become_a_leaf() -> None:
    x = tensor([[1.0, 2.0], [3.0, 4.0]])
    (y,) = aot_function(lambda x: (x.t_().requires_grad_(),), nop)(x)
    assert y is x and x.requires_grad and x.tolist() == [[1.0, 3.0], [2.0, 4.0]]


def test_a_program_of_any_size_is_made_again_where_a_condition_divides_by_a_size_of_zero() -> None:
    def f(x: Any) -> Any:
        return x.unsafe_chunk(2)[0] * 3

    g = aot_function(f, nop, dynamic=True)
    for n in (4, 0, 6):
        assert g(torch.ones(n)).tolist() == f(torch.ones(n)).tolist()


MOST = 64  # programs of one function


def test_what_a_dropped_program_was_called_with_is_let_go() -> None:
    class Name:
        """A key of a dictionary of arguments, by which programs are told apart."""

    f = aot_function(lambda d: next(iter(d.values())) * 2, nop)
    names: list[Any] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(MOST + 3):
            name = Name()
            names.append(weakref.ref(name))
            assert f({name: torch.ones(i + 1)}).tolist() == [2.0] * (i + 1)
            del name
    gc.collect()
    assert [r() is None for r in names] == [True] * 3 + [False] * MOST
    said = [w for w in caught if "has been compiled for more than 64 kinds" in str(w.message)]
    assert len(said) == 1


def test_the_program_that_was_not_called_for_longest_makes_room() -> None:
    made: list[int] = []

    def counting(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        made.append(int(inputs[0].numel()))
        return nop(module, inputs)

    f = aot_function(lambda x: x * 2, counting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (*range(1, MOST + 1), 1, MOST + 1, 1, 3, 2):  # the last one was dropped
            f(torch.ones(n))
    assert made == [*range(1, MOST + 2), 2]
