"""The rules of the levels for Functions, case by case: marks, contexts, dimensions, what is
returned as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import runtime
from runtime.autograd import Function
from runtime.errors import InplaceError
from runtime.func import functionalize, grad, jacfwd, jvp, vjp, vmap

X, Y = (
    torch.linspace(0.3, 1.2, 4, dtype=torch.float64),
    torch.linspace(-1, 2, 4, dtype=torch.float64),
)
BATCH = torch.stack([X, Y, X + Y])


def made(base: Any = Function, **members: Any) -> Any:
    defaults = {
        "forward": lambda x: x * 2,
        "setup_context": lambda ctx, inputs, output: None,
        "backward": lambda ctx, g: g * 2,
    }
    return type(
        "MyFn",
        (base,),
        {
            k: v if k == "generate_vmap_rule" else staticmethod(v)
            for k, v in {**defaults, **members}.items()
        },
    )


# --- a generated rule


def test_an_input_that_is_returned_as_it_is_stays_the_same_value() -> None:
    seen: list[bool] = []

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        seen.append(
            output[0] is inputs[0] and output[1] is inputs[1] and output[2] is not inputs[0]
        )
        ctx.save_for_backward(output[0], output[2])

    def backward(ctx: Any, g: Any, h: Any, k: Any) -> Any:
        x, doubled = ctx.saved_tensors
        torch.testing.assert_close(doubled, 2 * x)
        return g + 2 * k, h

    fn = made(
        generate_vmap_rule=True,
        forward=lambda x, y: (x, y, 2 * x),
        setup_context=setup,
        backward=backward,
    )

    def program(x: Any) -> Any:
        a, b, c = fn.apply(x, Y)
        return (a * b * c).sum()

    torch.testing.assert_close(
        vmap(fn.apply, (0, None), (0, None, 0))(BATCH, Y), (BATCH, Y, 2 * BATCH)
    )
    torch.testing.assert_close(vmap(grad(program))(BATCH), 4 * BATCH * Y)
    torch.testing.assert_close(grad(lambda b: vmap(program)(b).sum())(BATCH), 4 * BATCH * Y)
    assert seen and all(seen)


@pytest.mark.parametrize(
    "transform", [lambda f: grad(lambda b: f(b).sum())(BATCH), lambda f: vjp(f, BATCH)[1](BATCH)]
)
def test_a_backward_may_give_more_gradients_than_there_are_inputs_if_they_are_none(
    transform: Any,
) -> None:
    more = made(generate_vmap_rule=True, backward=lambda ctx, g: (g * 2, None, None))
    transform(vmap(more.apply))
    for wrong in (lambda ctx, g: (g * 2, g), lambda ctx, g: ()):
        with pytest.raises(RuntimeError, match="returned an incorrect number of gradients"):
            transform(vmap(made(generate_vmap_rule=True, backward=wrong).apply))


def test_backward_and_jvp_each_find_what_was_saved_for_them() -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        x, y = inputs
        ctx.save_for_backward(x, y, None, output)
        ctx.save_for_forward(y, x * 1)

    def backward(ctx: Any, g: Any) -> Any:
        x, y, none, output = ctx.saved_tensors
        assert none is None
        torch.testing.assert_close(output, x * x * y)
        return g * 2 * x * y, g * x * x

    def push(ctx: Any, t: Any, u: Any) -> Any:
        y, x = ctx.saved_tensors
        return 2 * x * y * t + x * x * u

    fn = made(
        generate_vmap_rule=True,
        forward=lambda x, y: x * x * y,
        setup_context=setup,
        backward=backward,
        jvp=push,
    )
    plain: Any = lambda x, y: x * x * y  # noqa: E731
    for in_dims, args in (
        ((0, 0), (BATCH, BATCH.flip(0))),
        ((0, None), (BATCH, Y)),
        ((None, 0), (Y, BATCH)),
    ):
        for lib, f in ((torch.func, plain), (runtime.func, fn.apply)):
            lib_any: Any = lib
            batched = lib_any.vmap(f, in_dims)
            found = (
                lib_any.vjp(batched, *args)[1](BATCH.cos()),
                lib_any.jvp(batched, args, tuple(a.sin() for a in args)),
            )
            twice: Any = lambda x, y: f(x, y) + lib_any.jvp(f, (x, y), (y, x))[1]  # noqa: B023, E731
            each = lib_any.vmap(lib_any.jacrev(twice, (0, 1)), in_dims)(*args)
            if lib is torch.func:
                expected = found, each
        torch.testing.assert_close((found, each), expected)


def test_what_was_saved_for_backward_alone_is_not_for_jvp() -> None:
    def push(ctx: Any, t: Any) -> Any:
        assert ctx.saved_tensors == ()
        return 2 * t

    fn = made(
        generate_vmap_rule=True,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        jvp=push,
    )
    torch.testing.assert_close(jvp(vmap(fn.apply), (BATCH,), (BATCH,))[1], 2 * BATCH)
    nothing = made(
        generate_vmap_rule=True, backward=lambda ctx, g: g * (2 + len(ctx.saved_tensors))
    )
    torch.testing.assert_close(
        grad(lambda b: vmap(nothing.apply)(b).sum())(BATCH), torch.full_like(BATCH, 2)
    )


def test_attributes_of_a_context_are_values_of_the_batch_again() -> None:
    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, n = inputs
        ctx.cos, ctx.tree, ctx.shape = x.cos(), {"y": y, "rest": [x * y, n, None, Y]}, x.shape
        ctx.other = output

    def backward(ctx: Any, g: Any) -> Any:
        y, (product, n, none, plain) = ctx.tree["y"], ctx.tree["rest"]
        assert (
            ctx.cos.shape == ctx.shape == ctx.other.shape == product.shape == (4,)
            and none is None
            and n == 3
            and plain is Y
        )
        return g * (ctx.cos * y + product), None, None

    fn = made(
        generate_vmap_rule=True,
        forward=lambda x, y, n: x * n,
        setup_context=setup,
        backward=backward,
    )
    for in_dims, other in (((0, 0, None), BATCH.flip(0)), ((0, None, None), Y)):
        found = grad(lambda b: vmap(fn.apply, in_dims)(b, other, 3).sum())(BATCH)  # noqa: B023
        torch.testing.assert_close(found, BATCH.cos() * other + BATCH * other)


def test_a_gradient_of_broadcast_shape_is_summed_to_that_of_the_input() -> None:
    def members(base: Any) -> Any:
        return made(
            base,
            generate_vmap_rule=True,
            forward=lambda x, y: x * y,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
            backward=lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]),
        )

    fn = members(Function)
    column, row = torch.randn(3, 4, 1, dtype=torch.float64), torch.randn(3, 5, dtype=torch.float64)

    def total(f: Any, lib: Any, in_dims: Any) -> Any:
        return lambda a, b: (lib.vmap(f, in_dims)(a, b) ** 2).sum()

    for in_dims, args in (
        ((0, 0), (column, row)),
        ((None, 0), (column[0], row)),
        ((0, None), (column, row[0])),
        ((0, 0), (row, row)),
    ):
        expected = torch.func.grad(total(torch.mul, torch.func, in_dims), (0, 1))(*args)
        torch.testing.assert_close(
            grad(total(fn.apply, runtime.func, in_dims), (0, 1))(*args), expected
        )


@pytest.mark.parametrize(
    "wrong", [lambda g: g.sum(), lambda g: g[:2], lambda g: g.expand(3, 4)[:, :3]]
)
def test_a_gradient_of_a_shape_that_does_not_fit_is_refused(wrong: Any) -> None:
    fn = made(generate_vmap_rule=True, backward=lambda ctx, g: wrong(g))
    with pytest.raises(RuntimeError, match="shape"):
        grad(lambda b: vmap(fn.apply)(b).sum())(BATCH)
    one = made(generate_vmap_rule=True, backward=lambda ctx, g: g.sum())
    with pytest.raises(RuntimeError, match="shape"):
        grad(lambda b: vmap(one.apply)(b).sum())(BATCH[:, :1])


def test_gradients_that_do_not_arrive_are_none_or_zeros_as_the_function_asked() -> None:
    def of(materialize: bool) -> Any:
        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.set_materialize_grads(materialize)

        def backward(ctx: Any, g: Any, h: Any) -> Any:
            assert (h is None) is not materialize and (h is None or not h.any())
            assert ctx.needs_input_grad == (True, False)
            return g * 2, None

        return made(
            generate_vmap_rule=True,
            forward=lambda x, y: (x * 2, y * x),
            setup_context=setup,
            backward=backward,
        )

    for materialize in (True, False):
        fn = of(materialize)
        found = grad(lambda b: vmap(lambda x: fn.apply(x, Y)[0])(b).sum())(BATCH)  # noqa: B023
        torch.testing.assert_close(found, torch.full_like(BATCH, 2))


def test_the_node_of_a_generated_rule_is_named_after_the_function() -> None:
    fn = made(generate_vmap_rule=True)
    out = vmap(fn.apply)(runtime.wrap(BATCH, True))
    assert "VmappedMyFn" in out.grad_fn.name()


def test_a_generated_rule_takes_words_and_gives_them() -> None:
    fn = made(generate_vmap_rule=True, forward=lambda x, word, tree: (x * len(word), word, None))
    out, word, none = vmap(lambda x: fn.apply(x, "abc", None), out_dims=(0, None, None))(BATCH)
    torch.testing.assert_close(out, 3 * BATCH)
    assert (word, none) == ("abc", None)


def test_a_constant_that_a_generated_rule_returns_belongs_to_every_element() -> None:
    fn = made(
        generate_vmap_rule=True, forward=lambda x: (x * 2, Y * 3), backward=lambda ctx, g, h: 2 * g
    )
    torch.testing.assert_close(vmap(fn.apply)(BATCH), (2 * BATCH, (3 * Y).expand(3, 4)))


# --- a vmap staticmethod


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
def test_the_batch_of_an_output_may_lie_anywhere(dim: int) -> None:
    x = torch.randn(5, 2, 3)
    fn = made(
        forward=lambda x: x * 2,
        vmap=lambda info, in_dims, x: ({"a": [(x * 2).movedim(0, dim)]}, {"a": [dim]}),
    )
    torch.testing.assert_close(vmap(fn.apply)(x)["a"][0], 2 * x)
    spread = made(
        forward=lambda x: x * 2,
        vmap=lambda info, in_dims, x: (((x * 2).movedim(0, dim), (x * 3).movedim(0, dim)), dim),
    )
    torch.testing.assert_close(vmap(spread.apply)(x), (2 * x, 3 * x))


@pytest.mark.parametrize(
    "returned",
    [lambda x: (x, 0.5), lambda x: ((x, x), (0, 0, 0)), lambda x: ([x], (0,)), lambda x: (x, "a")],
)
def test_its_out_dims_have_the_structure_of_the_output_and_are_integers(returned: Any) -> None:
    fn = made(vmap=lambda info, in_dims, x: returned(x))
    with pytest.raises(RuntimeError, match=r"returned an incompatible \(output, out_dims\) tuple"):
        vmap(fn.apply)(BATCH)


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        ((1, 2, 3), "3 returns"),
        ([1, 2], "a <class 'list'>"),
        ((1,), "1 returns"),
        (None, "a <class"),
    ],
)
def test_it_returns_a_pair(returned: Any, what: str) -> None:
    fn = made(vmap=lambda info, in_dims, x: returned)
    with pytest.raises(RuntimeError, match=f"to have two returns, .* Got {what}"):
        vmap(fn.apply)(BATCH)


# --- pushforward


def test_a_written_input_without_a_tangent_gets_the_one_that_jvp_gives() -> None:
    fn = made(
        forward=lambda x, b: b.add_(x),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[1]),
        jvp=lambda ctx, t, u: t if u is None else u.add_(t),
    )
    lazy = made(
        forward=lambda x, b: b.add_(x),
        setup_context=lambda ctx, inputs, output: (
            ctx.mark_dirty(inputs[1]),
            ctx.set_materialize_grads(False),
        )[0],
        jvp=lambda ctx, t, u: t * 1,
    )

    def program(x: Any, f: Any) -> Any:
        b = (x * 0).detach()
        view = b[1:]
        written = f.apply(x, b)
        assert written is b
        return b * x, view, written

    for f in (fn, lazy):
        torch.testing.assert_close(
            jvp(lambda x: program(x, f), (X,), (Y,)),  # noqa: B023
            ((X * X, X[1:], X), (2 * X * Y, Y[1:], Y)),
        )


def test_a_written_input_has_room_for_the_tangent_of_every_element() -> None:
    def push(ctx: Any, t: Any) -> Any:
        (before,) = ctx.saved_tensors
        return t.mul_(2 * before)

    fn = made(
        forward=lambda x: x.mul_(x.clone()),
        setup_context=lambda ctx, inputs, output: (
            ctx.mark_dirty(inputs[0]),
            ctx.save_for_forward(output.sqrt()),
        )[0],
        jvp=push,
    )
    fn.vmap = staticmethod(lambda info, in_dims, x: (fn.apply(x), 0))
    expected = vmap(lambda x: jvp(lambda y: y * y, (x,), (Y,))[1])(BATCH.abs())
    torch.testing.assert_close(
        vmap(lambda x: jvp(lambda y: fn.apply(y * 1), (x,), (Y,))[1])(BATCH.abs()), expected
    )


def test_what_is_marked_dirty_must_be_returned_and_should_be_an_input() -> None:
    lost = made(
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]),
        jvp=lambda ctx, t: 2 * t,
    )
    with pytest.raises(
        RuntimeError,
        match="Some elements marked as dirty during the forward method were not returned as output",
    ):
        jvp(lambda x: lost.apply(x * 1), (X,), (Y,))
    made_here = made(
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(output), jvp=lambda ctx, t: 2 * t
    )
    with pytest.warns(UserWarning, match="received a tensor that was not an input"):
        torch.testing.assert_close(jvp(lambda x: made_here.apply(x * 1), (X,), (Y,))[1], 2 * Y)


def test_outputs_that_are_no_tensors_pass_the_pushforward_by() -> None:
    fn = made(
        forward=lambda x: (x * 2, "word", None, 5), jvp=lambda ctx, t: (t * 2, None, None, None)
    )

    def program(x: Any) -> Any:
        out, *rest = fn.apply(x)
        assert rest == ["word", None, 5]
        return out

    torch.testing.assert_close(jvp(program, (X,), (Y,)), (2 * X, 2 * Y))


def test_of_constants_a_function_is_a_constant() -> None:
    fn = made(forward=lambda x, y: (x * 2, x * y), jvp=lambda ctx, t, u: 1 / 0)
    out, tangent = jvp(lambda x: fn.apply(x.detach(), Y)[1] * x, (X,), (X,))
    torch.testing.assert_close((out, tangent), (X * Y * X, X * Y * X))


def test_tangents_that_do_not_arrive_are_none_or_zeros_as_the_function_asked() -> None:
    for materialize in (True, False):

        def push(ctx: Any, t: Any, u: Any) -> Any:
            assert (u is None) is not materialize and ctx.needs_input_grad == (True, False)  # noqa: B023
            return t * 2

        fn = made(
            forward=lambda x, y: x * 2,
            setup_context=lambda ctx, i, o: ctx.set_materialize_grads(materialize),  # noqa: B023
            jvp=push,
        )
        torch.testing.assert_close(jvp(lambda x: fn.apply(x, Y), (X,), (Y,))[1], 2 * Y)  # noqa: B023
    generated = made(
        generate_vmap_rule=True, jvp=lambda ctx, t: (t * 2,), forward=lambda x: (x * 2,)
    )
    torch.testing.assert_close(
        vmap(jacfwd(generated.apply))(BATCH)[0],
        2 * torch.eye(4, dtype=torch.float64).expand(3, 4, 4),
    )


def test_a_view_of_a_view_follows_the_first_base() -> None:
    fn = made(forward=lambda x: x.view(2, 2), jvp=lambda ctx, t: t.view(2, 2))

    def program(x: Any) -> Any:
        y = x * 1
        seen = fn.apply(y[:].view(4))
        y.mul_(2)
        return seen * 1

    with pytest.raises(RuntimeError, match="custom Function"):
        jvp(program, (X,), (Y,))


# --- functionalize


def test_a_function_runs_on_functional_values_unless_another_transform_needs_it() -> None:
    fn = made(
        forward=lambda x, n: (x.clone().mul_(n), x, "word"),
        backward=lambda ctx, g, h, k: (g * 3 + h, None),
    )

    def program(x: Any) -> Any:
        y = x * 1
        out, same, word = fn.apply(y, 3)
        assert word == "word" and same.shape == y.shape
        out.add_(1)
        return out * same

    torch.testing.assert_close(functionalize(program)(X), (3 * X + 1) * X)
    torch.testing.assert_close(grad(lambda x: functionalize(program)(x).sum())(X), 6 * X + 1)
    torch.testing.assert_close(functionalize(grad(lambda x: program(x).sum()))(X), 6 * X + 1)


def test_a_write_to_what_is_no_value_of_the_transform_is_refused_by_name() -> None:
    fn = made(
        forward=lambda x, b: b.add_(x),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[1]),
        jvp=lambda ctx, t, u: t * 1,
    )
    buffer = torch.zeros_like(X)
    with pytest.raises(
        InplaceError,
        match=(
            r"in-place operation \(a custom Function\).* it writes a value of jvp "
            r"or jacfwd into a tensor"
        ),
    ):
        jvp(lambda x: fn.apply(x, buffer), (X,), (Y,))
