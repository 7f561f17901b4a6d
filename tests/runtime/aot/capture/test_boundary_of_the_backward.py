"""What the backward pass of a compiled program does beside gradients: writes, hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import tensor
from tests.runtime.aot.capture.boundary_helpers import both, compiled, equal


class TestBackwardWrites:
    """A backward pass may write, too: a custom Function that counts, or a hook."""

    def test_a_write_to_an_argument_is_carried_out_by_every_backward_pass(self) -> None:
        class Counts(runtime.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, count: Any) -> Any:
                ctx.count = count
                return x * count

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                with torch.no_grad():
                    ctx.count.add_(1)
                return g * ctx.count, None

        def program(f: Callable[..., Any]) -> Any:
            x, count = tensor([1.0, 2.0], requires_grad=True), tensor([3.0, 3.0])
            for _ in range(2):
                f(x, count).sum().backward()
            return x.grad, count

        assert equal(*both(Counts.apply, program))

    def test_a_change_of_geometry_is_refused(self) -> None:
        class Turns(runtime.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any, y: Any) -> Any:
                ctx.y = y
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                ctx.y.t_()
                return g, None

        x, y = tensor([[1.0, 2.0]], requires_grad=True), tensor([[3.0, 3.0]])
        with pytest.raises(
            AssertionError, match="input that had its metadata mutated in the backward"
        ):
            compiled(Turns.apply)(x, y)

    def test_a_write_to_a_result_is_refused(self) -> None:
        class Clears(runtime.autograd.Function):
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.result = x * 2
                return ctx.result

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                ctx.result.detach().zero_()
                return g * 2

        with pytest.raises(
            RuntimeError, match="the backward pass writes to a result of the program"
        ):
            compiled(Clears.apply)(tensor([1.0], requires_grad=True))


class TestHooks:
    def test_a_hook_on_a_tensor_of_the_program_is_in_the_graph(self) -> None:
        def f(x: Any) -> Any:
            y = x.sin()
            y.register_hook(lambda g: g * 10)
            return y * x

        def program(f: Callable[..., Any]) -> Any:
            x = tensor([1.0, 2.0], requires_grad=True)
            f(x).sum().backward()
            return x.grad

        assert equal(*both(f, program))

    @pytest.mark.parametrize("given", ["leaf", "result", "closed over", "written after", "twice"])
    def test_a_hook_on_an_argument_sees_the_whole_gradient_of_the_argument(
        self, given: str
    ) -> None:
        def program(f: Callable[..., Any]) -> Any:
            seen: list[Any] = []
            leaf = tensor([1.0, 2.0], requires_grad=True)
            x = leaf if given in ("leaf", "closed over") else leaf * 1

            def hooked(x: Any, y: Any) -> Any:
                x.register_hook(lambda g: seen.append(g.detach()))
                x.register_hook(lambda g: g * 10)
                x.register_hook(lambda g: g * 1000).remove()
                if given == "written after":
                    x.mul_(2)
                return x * y

            called = f((lambda y: hooked(x, y)) if given == "closed over" else hooked)
            for _ in range(2):
                args = {"closed over": (leaf * 2,), "twice": (x, x)}.get(given, (x, leaf * 2))
                before = x * 3
                (called(*args).sum() + before.sum()).backward()
                if given == "written after":
                    break
            return leaf.grad, seen

        assert equal(program(lambda f: f), program(compiled))

    def test_a_hook_on_an_argument_that_holds_values_of_the_program_is_refused(self) -> None:
        def f(x: Any) -> Any:
            y = x * 2
            x.register_hook(lambda g: g * y)
            return y

        with pytest.raises(
            RuntimeError,
            match=r"registers a hook on an argument .* holds values that the program computes",
        ):
            compiled(f)(tensor([1.0], requires_grad=True))

    def test_a_hook_on_one_of_several_views_is_refused(self) -> None:
        def f(a: Any, b: Any) -> Any:
            a.register_hook(lambda g: g * 2)
            b.mul_(3)
            return a * b

        x = tensor([1.0, 2.0, 3.0], requires_grad=True) * 1
        with pytest.raises(
            RuntimeError, match=r"registers a hook on an argument .* shares memory with another one"
        ):
            compiled(f)(x[:2], x[1:])

    def test_hooks_on_saved_tensors_inside_are_in_the_graph(self) -> None:
        def f(x: Any) -> Any:
            with runtime.autograd.graph.saved_tensors_hooks(
                lambda t: (t.half(),), lambda packed: packed[0].float()
            ):
                y = x.exp() * x
            return y * x

        def program(f: Callable[..., Any]) -> Any:
            x = tensor([0.1, 0.2], requires_grad=True)
            f(x).sum().backward()
            return x.grad

        plain, graph = both(f, program)
        exact = program(lambda x: x.exp() * x * x)
        assert equal(plain, graph) and not equal(plain, exact), (
            "the gradient shows the rounding of the saved tensors"
        )

    def test_hooks_around_a_call_see_what_the_program_saves(self) -> None:
        packed: list[Any] = []

        def pack(t: Any) -> Any:
            packed.append(t)
            return t * 2

        x = tensor([1.0, 2.0], requires_grad=True)
        with runtime.autograd.graph.saved_tensors_hooks(pack, lambda t: t / 2):
            y = compiled(lambda x: x.sin() * x)(x)
        y.sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * x.detach() + x.detach().sin())
        assert any(t is x for t in packed), "a leaf comes as it is"
