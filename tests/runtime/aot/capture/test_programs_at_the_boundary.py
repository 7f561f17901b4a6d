"""What a compiled program does at its boundary: writes to arguments, results that share memory,
what it closes over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import tensor
from runtime.aot import default_partition, min_cut_rematerialization_partition
from tests.runtime.aot.capture.boundary_helpers import both, compiled, equal

PARTITIONS = (default_partition, min_cut_rematerialization_partition)


def add_one(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 2


class TestWrites:
    @pytest.mark.parametrize("partition", PARTITIONS)
    def test_a_write_to_an_argument_that_requires_grad_is_differentiated(
        self, partition: Any
    ) -> None:
        def f(b: Any) -> Any:
            b.mul_(3)
            return (b * b).sum()

        def gradient(f: Callable[..., Any]) -> Any:
            a = tensor([1.0, 2.0], requires_grad=True)
            b = a * 1
            (f(b) + b.sum()).backward()
            return a.grad, b, b._version

        assert equal(gradient(f), gradient(compiled(f, partition_fn=partition)))

    @pytest.mark.parametrize("how", ["detach", "no_grad", "data"])
    def test_a_write_that_autograd_does_not_see_changes_numbers_alone(self, how: str) -> None:
        def f(b: Any) -> Any:
            if how == "no_grad":
                with torch.no_grad():
                    b.add_(1)
            else:
                (b.detach() if how == "detach" else b.data).add_(1)
            return (b * b).sum()

        def gradient(f: Callable[..., Any]) -> Any:
            a = tensor([1.0, 2.0], requires_grad=True)
            b = a * 1
            (f(b) + b.sum()).backward()
            return a.grad, b

        assert equal(*both(f, gradient))

    def test_a_leaf_may_be_updated_without_grad(self) -> None:
        def f(w: Any, x: Any) -> Any:
            with torch.no_grad():
                w.sub_(0.1)
            return (w * x).sum()

        def gradient(f: Callable[..., Any]) -> Any:
            w = tensor([1.0, 2.0], requires_grad=True)
            f(w, tensor([3.0, 4.0])).backward()
            return w.grad, w, w.is_leaf

        assert equal(*both(f, gradient))

    def test_an_argument_without_history_gets_one_from_what_is_written(self) -> None:
        def f(x: Any, w: Any) -> Any:
            x.add_(w * w)
            return x.sum()

        def gradient(f: Callable[..., Any]) -> Any:
            x, w = tensor([1.0, 2.0]), tensor([3.0, 4.0], requires_grad=True)
            f(x, w)
            (x * x).sum().backward()
            return x, w.grad

        assert equal(*both(f, gradient))

    def test_writes_advance_the_version_as_often_as_the_program_does(self) -> None:
        def f(x: Any) -> Any:
            x.add_(1).mul_(2)
            x[0] = 5
            return x + 1

        def version(f: Callable[..., Any]) -> Any:
            x = tensor([1.0, 2.0])
            return f(x), x, x._version

        assert equal(*both(f, version))

    @pytest.mark.parametrize("change", ["t_", "unsqueeze_"])
    def test_a_change_of_geometry_is_seen_by_the_caller(self, change: str) -> None:
        def f(x: Any) -> Any:
            getattr(x, change)(*([0] if change == "unsqueeze_" else []))
            x.add_(1)
            return x * 2

        def shape(f: Callable[..., Any]) -> Any:
            x = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
            return f(x), x, list(x.shape), list(x.stride())

        assert equal(*both(f, shape))


class TestSharedMemory:
    def test_one_tensor_given_twice_is_one_tensor_inside(self) -> None:
        x = tensor([0.0, 0.0])
        assert equal(compiled(add_one)(x, x), torch.full((2,), 2.0)) and x.tolist() == [1.0, 1.0]

    def test_a_view_of_another_argument_sees_what_is_written_to_that(self) -> None:
        x = tensor([0.0, 1.0, 2.0, 3.0])
        f = compiled(add_one)
        assert f(x, x[1:3]).tolist() == [4.0, 6.0] and x.tolist() == [1.0, 2.0, 3.0, 4.0]
        assert f(x, tensor([5.0, 6.0])).tolist() == [10.0, 12.0], (
            "another program serves arguments of memory of their own"
        )

    @pytest.mark.parametrize("under_no_grad", [False, True])
    @pytest.mark.parametrize("given", ["one view twice", "base and views", "flat and whole"])
    def test_a_write_to_one_of_several_views_that_require_grad_is_differentiated(
        self, given: str, under_no_grad: bool
    ) -> None:
        def f(a: Any, b: Any) -> Any:
            with torch.set_grad_enabled(not under_no_grad):
                a.mul_(3)
            return a.sum() * b, a

        def program(f: Callable[..., Any]) -> Any:
            leaf = tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=True)
            x = leaf * 1
            args = {
                "one view twice": (x[0], x[0]),
                "base and views": (x, x[1:]),
                "flat and whole": (x.view(-1), x),
            }[given]
            result, same = f(*args)
            (result.square().sum() + x.sum()).backward()
            return result, same is args[0], x, x._version, leaf.grad

        assert equal(*both(f, program))

    def test_a_write_that_brings_a_history_gives_it_to_all_views_of_the_base(self) -> None:
        def program(f: Callable[..., Any]) -> Any:
            w = tensor([2.0, 3.0], requires_grad=True)
            x = tensor([[1.0, 2.0], [3.0, 4.0]])
            args = x[0], x.view(-1)[:2]
            result = f(*args, w)
            (result.sum() + x.sum()).backward()
            return result, x, x.requires_grad, [a.requires_grad for a in args], w.grad

        def f(a: Any, b: Any, w: Any) -> Any:
            a.mul_(w)
            return a + b

        assert equal(*both(f, program))

    def test_one_of_several_views_may_change_its_geometry(self) -> None:
        def f(a: Any, b: Any) -> Any:
            a.mul_(2)
            b.t_()
            return a @ b, b.unsqueeze(0)

        def program(f: Callable[..., Any]) -> Any:
            leaf = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            x = leaf * 1
            b = x.view(2, 2)
            product, view = f(x, b)
            (product.sin().sum() + view.sum()).backward()
            return product, view, list(b.stride()), leaf.grad

        assert equal(*both(f, program))

    @pytest.mark.parametrize(
        "alias",
        [lambda x: x.detach(), lambda x: x.data[1:], lambda x: x.detach().t()],
        ids=["detach", "data", "t"],
    )
    @pytest.mark.parametrize(
        "write", ["plain", "of a result", "of the tensor with the history", "both"]
    )
    def test_arguments_that_share_memory_and_no_history_keep_their_own(
        self, alias: Callable[[Any], Any], write: str
    ) -> None:
        def f(x: Any, d: Any, w: Any) -> Any:
            y = x + x.sum()
            if write == "plain":
                d.mul_(2)
            elif write == "of a result":
                d.mul_(w)
            else:
                x.mul_(w)
                if write == "both":
                    d.add_(1)
            return y, d + 1, d.view_as(d), x[0] * 3

        def program(f: Callable[..., Any]) -> Any:
            leaf = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            w = tensor([2.0, 3.0], requires_grad=True)
            x = leaf * 1
            d = alias(x)
            before = x._version, d._version
            results = f(x, d, w)
            loss = sum(r.sum() * i for i, r in enumerate((*results, x, d), 1))
            grads = runtime.autograd.grad(loss, [leaf, w], allow_unused=True)
            counts = x._version - before[0], d._version - before[1]
            return (
                results,
                x,
                d,
                d.requires_grad,
                counts,
                [torch.zeros(()) if g is None else g for g in grads],
            )

        assert equal(*both(f, program))

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_what_is_saved_of_several_views_is_saved_before_the_write(self, dynamic: bool) -> None:
        def f(a: Any, b: Any) -> Any:
            b.copy_(b.flip(0).sin())
            return b

        def program(f: Callable[..., Any]) -> Any:
            leaf = tensor([1.0, 2.0], requires_grad=True)
            x = leaf * 1
            y = f(x, x.t())
            return runtime.autograd.grad((y * y).sum() + x.sum(), leaf)

        assert equal(program(f), program(compiled(f, dynamic=dynamic)))

    def test_an_error_of_a_trace_that_takes_memory_for_apart_is_none(self) -> None:
        def f(x: Any, part: Any) -> Any:
            part.zero_()
            # the indices are in bounds after the write
            return torch.tensor([1.0, 2.0]).gather(0, x)

        def program(f: Callable[..., Any]) -> Any:
            x = torch.tensor([1, 5])
            return f(x, x[1:]), x

        assert equal(*both(f, program))
        with pytest.raises(RuntimeError, match="index 5 is out of bounds"):
            compiled(f)(torch.tensor([1, 5]), torch.tensor([5]))

    def test_a_lazy_conjugate_of_another_argument_is_refused(self) -> None:
        x = tensor([1 + 2j, 3 + 4j])
        with pytest.raises(
            RuntimeError,
            match="share memory, one is a lazy conjugate, and the program writes to it",
        ):
            compiled(add_one)(x, x.conj())

    def test_other_arguments_of_one_memory_get_a_program_of_their_own(self) -> None:
        f = compiled(add_one)
        leaf = tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True)
        for shares_history in (False, True, False):
            x = leaf * 1
            other = x[1:3] if shares_history else x.detach()[1:3]
            (g,) = runtime.autograd.grad(f(other, x[1:3]).sum(), leaf)
            assert g.tolist() == [0.0, 2.0, 2.0, 0.0] and x.tolist() == [0.0, 2.0, 3.0, 3.0]

    def test_several_views_of_one_history_with_an_alias_without_it_are_refused(self) -> None:
        x = tensor([0.0, 1.0, 2.0, 3.0], requires_grad=True) * 1
        with pytest.raises(
            RuntimeError,
            match=r"argument 0 and argument 1 and argument 2 share memory.* others are not",
        ):
            compiled(lambda a, b, c: add_one(a, b) + c)(x[:2], x[1:3], x.detach()[1:3])

    def test_a_result_that_is_an_argument_is_that_object(self) -> None:
        def f(x: Any) -> Any:
            x.add_(1)
            return x

        x = tensor([0.0, 0.0])
        assert compiled(f)(x) is x

    def test_a_view_of_an_argument_keeps_memory_and_history(self) -> None:
        def gradient(f: Callable[..., Any]) -> Any:
            a = tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)
            b = a * 1
            y = f(b)
            y.mul_(10)
            (b * b).sum().backward()
            return a.grad, b

        assert equal(*both(lambda b: b.view(2, 2)[1], gradient))

    def test_two_results_of_one_intermediate_share_memory_and_history(self) -> None:
        def f(x: Any) -> tuple[Any, ...]:
            y = x * 2
            return y, y.view(-1), y[0]

        def gradient(f: Callable[..., Any]) -> Any:
            x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
            y, flat, row = f(x)
            flat.mul_(3)
            row.add_(1)
            (y * y).sum().backward()
            return x.grad, y, flat, row

        assert equal(*both(f, gradient))

    def test_two_views_of_one_intermediate_that_is_not_returned_share_it(self) -> None:
        def f(x: Any) -> Any:
            return (x * 2).unbind(0)[:1] + (x * 3).split(1)

        x = tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        assert equal(*both(f, lambda f: f(x)))

    def test_a_view_of_a_written_intermediate_has_the_gradient_of_both(self) -> None:
        def f(x: Any) -> Any:
            z = x * 2
            v = z.view(-1)
            v.clamp_(0, 1)
            return v

        def gradient(f: Callable[..., Any]) -> Any:
            x = tensor([[0.2, 1.0]], requires_grad=True)
            y = f(x)
            y.sum().backward()
            return y, x.grad

        assert equal(*both(f, gradient))


class TestRandomNumbers:
    def test_the_first_call_draws_what_the_program_draws(self) -> None:
        def drawn(f: Callable[..., Any]) -> Any:
            torch.manual_seed(3)
            return f(torch.ones(64)), torch.rand(2)

        assert equal(*both(lambda x: torch.nn.functional.dropout(x, 0.5), drawn))

    @pytest.mark.parametrize("partition", PARTITIONS)
    def test_draws_that_nothing_uses_are_drawn(self, partition: Any) -> None:
        def f(x: Any) -> Any:
            torch.rand(3)
            return x * torch.rand(3)

        def drawn(f: Callable[..., Any]) -> Any:
            torch.manual_seed(3)
            return f(tensor([1.0, 1.0, 1.0], requires_grad=True))

        assert equal(drawn(f), drawn(compiled(f, partition_fn=partition)))


def test_a_size_that_depends_on_values_is_refused() -> None:
    def f(x: Any) -> Any:
        y = x[x > 0]
        return y.sum() / y.numel()

    with pytest.raises(
        RuntimeError, match=r"size of what aten.index.Tensor returns depends on values"
    ):
        compiled(f)(torch.tensor([1.0, -1.0]))


def test_a_literal_is_new_in_every_call() -> None:
    def f(x: Any) -> Any:
        t = torch.tensor([1.0, 2.0])
        t.add_(x)
        return t

    g, h = compiled(f), runtime.aot.make_fx(f)(torch.ones(2))
    for call in (g, h):
        assert [call(torch.ones(2)).tolist() for _ in range(2)] == [[2.0, 3.0]] * 2


def test_one_tensor_twice_in_a_list_is_written_to_twice() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        torch._foreach_add_([y, y], 1.0)
        return y

    assert compiled(f)(torch.zeros(2)).tolist() == [2.0, 2.0]


def test_a_cotangent_may_have_any_layout() -> None:
    x = tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], requires_grad=True)
    compiled(lambda x: (x * 2).view(3, 2))(x).backward(torch.arange(6.0).reshape(2, 3).t())
    assert x.grad.tolist() == [[0.0, 6.0, 2.0], [8.0, 4.0, 10.0]]


def test_a_function_may_be_written_in_the_old_style() -> None:
    class Square(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            return 2 * x * g

    x = tensor([2.0, 3.0], requires_grad=True)
    compiled(lambda x: Square.apply(x).sum())(x).backward()
    assert x.grad.tolist() == [4.0, 6.0]


def test_another_layout_of_an_argument_is_another_program_of_any_size() -> None:
    def f(x: Any) -> Any:
        x.reshape(-1).add_(1)
        return x * 2

    g = compiled(f, dynamic=True)
    x, y = torch.zeros(3, 2).t(), torch.zeros(2, 3)
    assert g(x).sum() == 0 == x.sum() and g(y).sum() == 12 and y.sum() == 6


def test_a_transform_differentiates_and_batches_a_compiled_function() -> None:
    f = compiled(lambda x: (x * x).sum())
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert runtime.func.vmap(runtime.func.grad(f))(x).equal(2 * x)


def test_a_literal_may_get_a_history_by_a_write() -> None:
    def f(x: Any) -> Any:
        table = torch.tensor([1.0, 2.0, 3.0])
        table[:2].mul_(x)
        return table

    def program(f: Callable[..., Any]) -> Any:
        x = tensor([4.0, 5.0], requires_grad=True)
        y = f(x)
        return y, runtime.autograd.grad(y.square().sum(), x)

    assert equal(*both(f, program))


def test_mark_dirty_counts_as_a_write() -> None:
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.mark_dirty(x)
            return x.mul_(3)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 3

    def program(f: Any) -> Any:
        x = runtime.tensor([1.0], requires_grad=True) * 1
        before = x._version
        f(x)
        return x, x._version - before

    assert equal(*both(Tripled.apply, program))


def test_a_result_of_the_right_size_given_by_out_is_filled() -> None:
    assert equal(
        *both(
            lambda x: x * torch.add(x, 1, out=torch.empty(2).resize_(2)), lambda f: f(torch.ones(2))
        )
    )


def test_a_function_reads_what_was_written_through_another_view() -> None:
    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x / 2, x.detach() > 1

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx: Any, g: Any, _: Any) -> Any:
            return g / 2

    def f(x: Any) -> Any:
        y = x * 1
        row = y[0]
        y.mul_(3)
        return Halves.apply(row)  # type: ignore[no-untyped-call]

    expected, found = both(f, lambda f: f(tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)))
    assert equal(expected, found) and type(found[1]) is torch.Tensor


def test_retain_grad_is_refused_by_its_name() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.retain_grad()
        return y

    with pytest.raises(RuntimeError, match=r"Tensor\.retain_grad\(\) inside of a function"):
        compiled(f)(tensor([1.0], requires_grad=True))


def test_a_write_beside_the_elements_of_an_argument_is_refused() -> None:
    for dynamic in (False, True):
        with pytest.raises(
            RuntimeError,
            match="a write through as_strided of a tensor that does not fill its memory",
        ):
            compiled(lambda x: x.as_strided((2, 2), (1, 1)).fill_(0.5), dynamic=dynamic)(
                torch.zeros(6)[::2]
            )
