"""Function: one operation with a derivative of its own, at level zero.
torch.autograd.Function is the oracle."""

import gc
import weakref
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap
from runtime.autograd import Function
from runtime.autograd.function import once_differentiable

from ..scenarios import same
from .functions import BASES, leaf, made, of_both


def dirty(ctx: Any, x: Any) -> Any:
    ctx.mark_dirty(x)
    return x


def saves_a_number(ctx: Any, x: Any) -> Any:
    ctx.save_for_backward(3)


def times(ctx: Any, x: Any, y: int = 4) -> Any:
    return x * y


class Styles:
    """The same operation in both styles."""

    @staticmethod
    def with_ctx(base: Any) -> Any:
        def forward(ctx: Any, x: Any, y: Any, power: int) -> Any:
            ctx.save_for_backward(x, y)
            ctx.power = power
            return x**power * y

        return made(base, forward=forward, backward=Styles.backward)

    @staticmethod
    def with_setup(base: Any) -> Any:
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs[:2])
            ctx.power = inputs[2]

        return made(
            base,
            forward=lambda x, y, power: x**power * y,
            setup_context=setup_context,
            backward=Styles.backward,
        )

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        return g * ctx.power * x ** (ctx.power - 1) * y, g * x**ctx.power, None


@pytest.mark.parametrize("style", [Styles.with_ctx, Styles.with_setup])
def test_both_styles_differentiate_twice(style: Any) -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        y = (x + 1).detach().requires_grad_()
        fn = style(base)
        out = fn.apply(x, y, 3)
        first = autograd.grad(out.sum(), (x, y), create_graph=True)
        second = autograd.grad(first[0].sum(), (x, y))
        return (
            out,
            first,
            second,
            out.grad_fn.name(),
            out.grad_fn.needs_input_grad,
            len(out.grad_fn.next_functions),
        )

    of_both(program)


def test_ctx_is_the_node() -> None:
    seen = []

    def forward(ctx: Any, x: Any) -> Any:
        ctx.note = "kept"
        seen.append(ctx)
        ctx.save_for_backward(x)
        return x * 2

    x = leaf("runtime")
    y = made(Function, forward=forward).apply(x)
    assert y.grad_fn is seen[0]
    assert y.grad_fn.note == "kept" and y.grad_fn.saved_tensors[0] is x
    assert "grad_fn=<MyFnBackward>" in repr(y) and type(y.grad_fn).__name__ == "MyFnBackward"
    calls: list[Any] = []
    y.grad_fn.register_hook(lambda inputs, outputs: calls.append(len(inputs)))
    y.grad_fn.register_prehook(lambda grads: calls.append("before"))
    y.sum().backward()
    assert calls == ["before", 1]
    with pytest.raises(RuntimeError, match="they have already been freed"):
        _ = y.grad_fn.saved_tensors


@pytest.mark.parametrize(
    "methods",
    [
        {"backward": lambda ctx, g: (g, g)},
        {"backward": lambda ctx, g: (g, None, None)},
        {"backward": lambda ctx, g: ()},
        {"backward": lambda ctx, g: 3},
        {"backward": lambda ctx, g: [g]},
        {"backward": lambda ctx, g: g[:2]},
        {"backward": lambda ctx, g: None},
        {"forward": lambda ctx, x: 3},
        {"forward": lambda ctx, x: (x * 2, 5), "backward": lambda ctx, g, none: g * (none is None)},
        {"forward": times, "backward": lambda ctx, g: (g, None)},
        {"forward": times, "backward": lambda ctx, g: (g, g)},
        {"forward": saves_a_number},
        {"forward": lambda ctx, x: dirty(ctx, x) * 2},
        {"forward": lambda ctx, x: dirty(ctx, x).add_(1)},
        {"vjp": lambda ctx, g: g},
    ],
)
def test_what_backward_may_return_and_forward_may_do(methods: Any) -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        out = made(base, **methods).apply(x)
        out = out[0] if isinstance(out, tuple) else out
        return out if isinstance(out, int) else autograd.grad(out.sum(), x, allow_unused=True)

    of_both(program)


def test_only_tensors_are_saved_for_jvp() -> None:
    for lib, base in BASES.items():
        with pytest.raises(
            AssertionError, match="save_for_forward expects all arguments to be tensors"
        ):
            made(base, forward=lambda ctx, x: ctx.save_for_forward(3)).apply(leaf(lib))


@pytest.mark.parametrize("names", [(), ("forward",), ("forward", "vjp")])
def test_a_class_needs_forward_and_backward_or_vjp(names: tuple[str, ...]) -> None:
    methods = {"forward": lambda ctx, x: x * 2, "vjp": lambda ctx, g: g * 7}

    def program(base: Any, autograd: Any, x: Any) -> Any:
        fn: Any = type("F", (base,), {n: staticmethod(methods[n]) for n in names})
        return autograd.grad(fn.apply(x).sum(), x)

    of_both(program)


def test_a_number_has_no_gradient() -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        return autograd.grad(
            made(base, forward=lambda ctx, x, k: x * k, backward=lambda ctx, g: (g, g))
            .apply(x, 3)
            .sum(),
            x,
        )

    of_both(program)


@pytest.mark.parametrize("materialize", [True, False])
def test_missing_gradients_are_zeros_or_none(materialize: bool) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(materialize)
        return x * 2, x * 3

    def program(base: Any, autograd: Any, x: Any) -> Any:
        seen = []

        def backward(ctx: Any, g: Any, h: Any) -> Any:
            seen.append(None if h is None else h.detach())
            return g

        first, _ = made(base, forward=forward, backward=backward).apply(x)
        autograd.grad(first.sum(), x)
        return seen[0]

    of_both(program)


def test_outputs_marked_non_differentiable_do_not_require_grad() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        a, b, i = x * 2, x * 3, x.argsort()
        ctx.mark_non_differentiable(b, i)
        return a, b, i

    def program(base: Any, autograd: Any, x: Any) -> Any:
        a, b, i = made(base, forward=forward, backward=lambda ctx, g, h, k: g + h).apply(x)
        return (
            a.requires_grad,
            b.requires_grad,
            b.grad_fn,
            i.requires_grad,
            autograd.grad(a.sum(), x),
        )

    of_both(program)


def write(ctx: Any, x: Any) -> Any:
    return dirty(ctx, x).mul_(2)


def saving(ctx: Any, x: Any) -> Any:
    out = x.exp()
    ctx.save_for_backward(out, None, x)
    return out


def test_saved_tensors_are_checked_for_writes() -> None:
    y = made(Function, forward=saving, backward=lambda ctx, g: g * ctx.saved_tensors[0]).apply(
        leaf("runtime")
    )
    y.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_saved_tensors_pass_through_pack_hooks() -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        packed = []

        def pack(t: Any) -> Any:
            packed.append(t.requires_grad)
            return t * 2

        with autograd.graph.saved_tensors_hooks(pack, lambda t: t + 1):
            y = made(base, forward=saving, backward=lambda ctx, g: g * ctx.saved_tensors[0]).apply(
                x
            )
        return autograd.grad(y.sum(), x), packed

    of_both(program)


def test_once_differentiable_refuses_the_second_derivative() -> None:
    @once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0].cos()

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    x = leaf("runtime")
    fn = made(Function, forward=forward, backward=backward)
    torch.testing.assert_close(
        unwrap(runtime.autograd.grad(fn.apply(x).sum(), x)[0]), unwrap(x).cos()
    )
    (g,) = runtime.autograd.grad(fn.apply(x).sum(), x, create_graph=True)
    with pytest.raises(
        RuntimeError,
        match="trying to differentiate twice a function that was marked with @once_differentiable",
    ):
        runtime.autograd.grad(g.sum(), x)


def test_torchs_own_once_differentiable_refuses_the_second_derivative_without_the_drop_in() -> None:
    backward = torch.autograd.function.once_differentiable(
        lambda ctx, g: g * ctx.saved_tensors[0].cos()
    )

    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x.sin()

    x = leaf("runtime")
    fn = made(torch.autograd.Function, forward=forward, backward=backward)
    (g,) = runtime.autograd.grad(fn.apply(x).sum(), x, create_graph=True)
    torch.testing.assert_close(unwrap(g.detach()), unwrap(x.detach()).cos())
    with pytest.raises(
        RuntimeError,
        match="trying to differentiate twice a function that was marked with @once_differentiable",
    ):
        runtime.autograd.grad((g * x).sum(), x)


def test_instances_and_legacy_functions_are_refused() -> None:
    fn = made(Function)
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = fn()
    with pytest.raises(
        RuntimeError, match="Legacy autograd function with non-static forward method is deprecated"
    ):
        instance(torch.ones(2))


def test_plain_tensors_go_through_and_plain_leaves_get_their_gradient() -> None:
    fn = made(Function, backward=lambda ctx, g: g * 5)
    x = torch.ones(3)
    assert type(fn.apply(x)) is torch.Tensor
    x.requires_grad_()
    fn.apply(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 5.0))


def test_no_grad_records_nothing() -> None:
    x = leaf("runtime")
    with torch.no_grad():
        assert made(Function).apply(x).grad_fn is None


@pytest.mark.parametrize("style", [Styles.with_ctx, Styles.with_setup])
def test_a_subclass_of_torchs_class_serves_a_tensor_of_the_session(style: Any) -> None:
    x = leaf("runtime")
    out = style(torch.autograd.Function).apply(x, x, 2)
    assert isinstance(out, runtime.Tensor)
    torch.testing.assert_close(unwrap(runtime.autograd.grad(out.sum(), x)[0]), 3 * unwrap(x) ** 2)


def test_a_generated_vmap_rule_undoes_broadcasting_within_an_element() -> None:
    class Product(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> Any:
            x, y = ctx.saved_tensors
            return g * y, g * x

    x, y = torch.randn(2, 3, 4), torch.randn(2, 4)
    _, pullback = runtime.func.vjp(runtime.func.vmap(Product.apply), x, y)
    torch.testing.assert_close(pullback(torch.ones(2, 3, 4))[1], x.sum(1))


def test_after_a_pass_the_node_shows_its_saved_tensors_as_before() -> None:
    """To the level that recorded it they are values with a history, whatever the
    backward pass was shown."""

    class Squared(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(ctx.saved_tensors[0].requires_grad)
            return 2 * g * ctx.saved_tensors[0]

    def f(x: Any) -> Any:
        y = Squared.apply(x)
        for create_graph in (False, True, False):
            runtime.autograd.grad(y.sum(), x, retain_graph=True, create_graph=create_graph)
            assert y.grad_fn.saved_tensors[0].requires_grad
        return y.sum()

    seen: list[bool] = []
    torch.testing.assert_close(runtime.func.grad(f)(torch.ones(2)), 2 * torch.ones(2))
    assert seen == [False, True, False, False]


@pytest.mark.parametrize("forward", [saving, write, lambda ctx, x: x])
def test_the_graph_is_freed_by_reference_counting(forward: Any) -> None:
    x = leaf("runtime")
    gc.collect()
    gc.disable()
    try:
        node = weakref.ref(made(Function, forward=forward).apply(x * 1).grad_fn)
        assert node() is None
    finally:
        gc.enable()


def test_the_old_name_of_saved_tensors_warns() -> None:
    y = made(Function, forward=saving, backward=lambda ctx, g: g * ctx.saved_variables[0]).apply(
        leaf("runtime")
    )
    with pytest.warns(DeprecationWarning, match="saved_variables"):
        y.sum().backward()


def test_a_part_of_what_forward_made_and_wrote_has_the_functions_history() -> None:
    def forward(ctx: Any, x: Any) -> Any:
        part = x.clone()[:2]
        part += 1
        return part

    for which in BASES:
        x = leaf(which)
        y = made(BASES[which], forward=forward, backward=lambda ctx, g: g).apply(x)
        assert type(y.grad_fn).__name__ == "MyFnBackward"


def test_a_saved_tensor_from_elsewhere_leads_to_its_own_history() -> None:
    def scenario(lib: Any) -> Any:
        w = lib.tensor([3.0], requires_grad=True)
        scale = w * w

        class Scaled(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(scale)
                return x * 9.0

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * ctx.saved_tensors[0]

        x = lib.tensor([2.0], requires_grad=True)
        (g,) = lib.autograd.grad(Scaled.apply(x), x, create_graph=True)
        return g, lib.autograd.grad(g, w)

    assert same(scenario) == [[9.0], [[6.0]]]


def test_a_plain_parameter_is_recorded_beside_numbers_and_tensors_without_gradient() -> None:
    class Weighed(Function):
        @staticmethod
        def forward(ctx: Any, w: Any, factor: float, x: Any) -> Any:
            ctx.save_for_backward(x)
            ctx.factor = factor
            return w * x * factor

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0] * ctx.factor, None, None

    w, x = torch.nn.Parameter(torch.ones(2)), torch.tensor([3.0, 4.0])
    Weighed.apply(w, 2.0, x).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [6.0, 8.0] and not x.requires_grad
