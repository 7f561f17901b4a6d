"""Functions under the transforms, freely nested; torch.func with torch.autograd.Function is the
oracle where it is right."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
import runtime.autograd.forward_ad as fw
from runtime import unwrap, wrap
from runtime.aot import make_fx
from runtime.autograd import Function
from runtime.autograd.function import once_differentiable
from runtime.errors import EscapedValue, InplaceError

X, Y = (
    torch.linspace(0.3, 1.2, 4, dtype=torch.float64),
    torch.linspace(-1, 2, 4, dtype=torch.float64),
)


def product_and_sine(base: Any) -> Any:
    """(a·b, sin a), its derivatives by hand."""

    class Both(base):  # type: ignore[misc]
        generate_vmap_rule = True

        @staticmethod
        def forward(a: Any, b: Any) -> Any:
            return a * b, a.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)
            ctx.factor = 1

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            a, b = ctx.saved_tensors
            return g * b * ctx.factor + h * a.cos(), g * a

        @staticmethod
        def jvp(ctx: Any, t: Any, u: Any) -> Any:
            a, b = ctx.saved_tensors
            return t * b * ctx.factor + u * a, t * a.cos()

    return Both


def with_vmap_rule(base: Any) -> Any:
    class Both(product_and_sine(base)):  # type: ignore[misc]
        generate_vmap_rule = False

        @staticmethod
        def vmap(info: Any, in_dims: Any, a: Any, b: Any) -> Any:
            a, b = (
                x.expand(info.batch_size, *x.shape) if d is None else x.movedim(d, 0)
                for x, d in zip((a, b), in_dims, strict=True)
            )
            return Both.apply(a, b), (0, 0)

    return Both


def scalar(fn: Any) -> Callable[..., Any]:
    def f(a: Any, b: Any) -> Any:
        u, v = fn.apply(a, b)
        return (u * v).sum()

    return f


def plainly(a: Any, b: Any) -> Any:
    return (a * b * a.sin()).sum()


PIPELINES: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda lib, f: lib.grad(f)(X, Y),
    "vjp": lambda lib, f: lib.vjp(f, X, Y)[1](torch.tensor(2.0, dtype=torch.float64)),
    "jvp": lambda lib, f: lib.jvp(f, (X, Y), (Y, X)),
    "vmap": lambda lib, f: lib.vmap(f, (0, None))(X[:, None], Y[:1]),
    "grad . grad": lambda lib, f: lib.grad(lambda a: lib.grad(f, 1)(a, Y).sum())(X),
    "grad . jvp": lambda lib, f: lib.grad(lambda a: lib.jvp(f, (a, Y), (Y, a))[1])(X),
    "jvp . grad": lambda lib, f: lib.jvp(lib.grad(f, (0, 1)), (X, Y), (Y, X)),
    "jvp . jvp": lambda lib, f: lib.jvp(lambda a: lib.jvp(f, (a, Y), (Y, a))[1], (X,), (Y,)),
    "vmap . grad": lambda lib, f: lib.vmap(lib.grad(f, (0, 1)), (0, None))(X[:, None], Y[:1]),
    "grad . vmap": lambda lib, f: lib.grad(
        lambda a: lib.vmap(f, (0, None))(a[:, None], Y[:1]).sum()
    )(X),
    "jvp . vmap": lambda lib, f: lib.jvp(
        lambda a: lib.vmap(f, (None, 0))(a, Y[:, None]), (X,), (Y,)
    ),
    "vmap . jvp": lambda lib, f: lib.vmap(lambda a: lib.jvp(f, (a, Y), (a, Y)))(X[:, None]),
    "vmap . vmap . grad": lambda lib, f: lib.vmap(lib.vmap(lib.grad(f), (0, None)), (None, 0))(
        X[:, None], Y[:, None]
    ),
    "grad . vmap . grad": lambda lib, f: lib.grad(
        lambda a: lib.vmap(lib.grad(f), (0, None))(a[:, None], Y[:1]).sin().sum()
    )(X),
    "hessian": lambda lib, f: lib.hessian(f)(X, Y),
    "jacrev . jacfwd": lambda lib, f: lib.jacrev(lib.jacfwd(f))(X, Y),
    "functionalize . grad": lambda lib, f: lib.functionalize(lib.grad(f))(X, Y),
}


@pytest.mark.parametrize("made", [product_and_sine, with_vmap_rule])
@pytest.mark.parametrize("name", PIPELINES)
def test_a_function_nests_as_what_it_computes(name: str, made: Any) -> None:
    found = PIPELINES[name](runtime.func, scalar(made(Function)))
    torch.testing.assert_close(found, PIPELINES[name](torch.func, plainly))


def test_transforms_use_the_derivative_that_the_function_gives() -> None:
    """A factor of 3 that no true derivative has shows which rule ran, at every level of nesting."""

    class Wrong(product_and_sine(Function)):  # type: ignore[misc]
        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            product_and_sine(Function).setup_context(ctx, inputs, output)
            ctx.factor = 3

    f = scalar(Wrong)
    expected = 3 * Y * X.sin() + X * Y * X.cos()
    lib: Any = runtime.func
    torch.testing.assert_close(lib.grad(f)(X, Y), expected)
    torch.testing.assert_close(lib.jacfwd(f)(X, Y), expected)
    torch.testing.assert_close(lib.vmap(lib.grad(f))(X[:, None], Y[:, None])[:, 0], expected)
    torch.testing.assert_close(lib.grad(lib.functionalize(f))(X, Y), expected)
    torch.testing.assert_close(
        lib.grad(lambda a: lib.vmap(f)(a[:, None], Y[:, None]).sum())(X), expected
    )
    traced = make_fx(lib.grad(f))(X, Y)
    torch.testing.assert_close(traced(X, Y), expected)


def test_the_session_outside_a_transform_has_its_own_node() -> None:
    w = wrap(Y.clone(), True)
    g = runtime.func.grad(scalar(product_and_sine(Function)))(X, w)
    g.sum().backward()
    expected = torch.autograd.functional.jacobian(lambda y: torch.func.grad(plainly)(X, y).sum(), Y)
    torch.testing.assert_close(unwrap(w.grad), expected)


def made(**members: Any) -> Any:
    plain = {"generate_vmap_rule"}
    defaults = {
        "forward": lambda x: x * 2,
        "setup_context": lambda ctx, inputs, output: None,
        "backward": lambda ctx, g: g * 2,
    }
    return type(
        "MyFn",
        (Function,),
        {k: v if k in plain else staticmethod(v) for k, v in {**defaults, **members}.items()},
    )


@pytest.mark.parametrize(
    ("members", "call", "message"),
    [
        (
            {},
            lambda lib, f: lib.vmap(f)(X),
            r"You tried to vmap over MyFn, but it does not have vmap support\.",
        ),
        (
            {"generate_vmap_rule": True, "vmap": lambda info, d, x: (x, 0)},
            lambda lib, f: lib.vmap(f)(X),
            "it has both generate_vmap_rule=True and an overridden vmap staticmethod",
        ),
        (
            {"vmap": lambda info, d, x: x},
            lambda lib, f: lib.vmap(f)(X),
            "to have two returns, an output and out_dims .* Got a <class",
        ),
        ({"vmap": lambda info, d, x: (x,)}, lambda lib, f: lib.vmap(f)(X), "Got 1 returns instead"),
        (
            {"vmap": lambda info, d, x: (x, (0, 0))},
            lambda lib, f: lib.vmap(f)(X),
            r"returned an incompatible \(output, out_dims\) tuple",
        ),
        ({}, lambda lib, f: lib.jvp(f, (X,), (X,)), "You must implement the jvp function"),
        (
            {"jvp": lambda ctx, t: (t, t)},
            lambda lib, f: lib.jvp(f, (X,), (X,)),
            r"invalid number of forward gradients \(expected 1 but got 2\)",
        ),
        (
            {"jvp": lambda ctx, t: 3},
            lambda lib, f: lib.jvp(f, (X,), (X,)),
            r"expected Variable or None \(got int\) for grad output 0",
        ),
        (
            {"jvp": lambda ctx, t: t[:2]},
            lambda lib, f: lib.jvp(f, (X,), (X,)),
            "forward gradient that has a different size",
        ),
        (
            {
                "jvp": lambda ctx, t: t,
                "setup_context": lambda ctx, inputs, output: ctx.mark_non_differentiable(output),
            },
            lambda lib, f: lib.jvp(f, (X,), (X,)),
            "the corresponding forward output is not a differentiable Tensor",
        ),
    ],
)
def test_errors_name_the_fault_as_torchs_do(members: Any, call: Any, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call(runtime.func, made(**members).apply)
    members_of_both = {k: v for k, v in vars(made(**members)).items() if not k.startswith("__")}
    theirs: Any = type("MyFn", (torch.autograd.Function,), members_of_both)
    with pytest.raises(RuntimeError, match=message):
        call(torch.func, theirs.apply)


@pytest.mark.parametrize(
    "call",
    [
        lambda lib, f: lib.vmap(f)(X),
        lambda lib, f: lib.grad(lambda x: f(x).sum())(X),
        lambda lib, f: lib.jvp(f, (X,), (X,)),
    ],
)
def test_transforms_need_setup_context(call: Any) -> None:
    class Old(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

    with pytest.raises(
        RuntimeError, match=r"In order to use an autograd.Function .* override the setup_context"
    ):
        call(runtime.func, Old.apply)


def test_a_vmap_staticmethod_is_told_the_batch_and_may_draw() -> None:
    seen: list[Any] = []

    def rule(info: Any, in_dims: Any, x: Any, tree: Any, n: Any) -> Any:
        seen.append((info.batch_size, info.randomness, in_dims))
        return x + torch.rand(x.shape), 1

    fn = made(forward=lambda x, tree, n: x, vmap=rule)
    for randomness in ("error", "same", "different"):
        out = runtime.func.vmap(
            lambda x, y: fn.apply(x, {"y": y, "c": Y}, 3), randomness=randomness
        )(torch.zeros(5, 2), torch.zeros(5))
        assert out.shape == (2, 5) and len(out.unique()) == 10
        assert seen.pop() == (5, randomness, (0, {"y": 0, "c": None}, None))


def test_draws_are_refused_or_made_per_element_again_after_a_vmap_staticmethod() -> None:
    def rule(info: Any, in_dims: Any, x: Any, fails: bool) -> Any:
        if fails:
            raise ZeroDivisionError
        return x + torch.rand(x.shape), 0

    fn = made(forward=lambda x, fails: x, vmap=rule)

    def program(x: Any, fails: bool = False) -> Any:
        if fails:
            with pytest.raises(ZeroDivisionError):
                fn.apply(x, True)
        else:
            fn.apply(x, False)
        return x + torch.rand(2)

    for fails in (False, True):
        with pytest.raises(
            RuntimeError, match="called random operation while in randomness error mode"
        ):
            runtime.func.vmap(program, (0, None))(torch.zeros(5, 2), fails)
        assert (
            len(
                runtime.func.vmap(program, (0, None), randomness="different")(
                    torch.zeros(5, 2), fails
                ).unique()
            )
            == 10
        )
        assert (
            len(
                runtime.func.vmap(program, (0, None), randomness="same")(
                    torch.zeros(5, 2), fails
                ).unique()
            )
            == 2
        )
        assert torch.rand(2).shape == (2,)  # and outside as ever


def test_a_vmap_staticmethod_says_where_the_batch_is_or_that_there_is_none() -> None:
    fn = made(
        forward=lambda x: x, vmap=lambda info, d, x: ((x.movedim(0, 1), Y, "word"), (1, None, None))
    )
    found = runtime.func.vmap(lambda x: fn.apply(x)[:2], out_dims=(0, None))(torch.ones(5, 2))
    torch.testing.assert_close(found, (torch.ones(5, 2), Y))
    same = made(forward=lambda x: x, vmap=lambda info, d, x: (x, 0))

    def program(x: Any) -> Any:
        assert same.apply(x) is x
        return x

    runtime.func.vmap(program)(torch.ones(5, 2))


def test_a_write_to_an_input_cannot_be_taken_back_where_an_outer_transform_differentiates() -> None:
    fn = made(
        forward=lambda x: x.mul_(2),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(output),
        backward=lambda ctx, g: g * 2,
    )
    lib: Any = runtime.func
    torch.testing.assert_close(lib.functionalize(lambda x: fn.apply(x * 1))(X), 2 * X)
    with pytest.raises(
        RuntimeError, match="functionalize: MyFn writes to an input, which cannot be taken back"
    ):
        lib.grad(lambda x: lib.functionalize(lambda y: fn.apply(y * 1).sum())(x))(X)


def test_a_trace_within_a_transform_sees_the_work_of_a_function_of_what_it_captures() -> None:
    fn = product_and_sine(Function)

    def program(x: Any) -> Any:
        return make_fx(lambda y: fn.apply(x, Y)[0] * y)(Y)(Y)

    out, tangent = runtime.func.jvp(program, (X,), (X,))
    torch.testing.assert_close(out, X * Y * Y)
    assert tangent.shape == out.shape


def test_a_generated_rule_of_one_output() -> None:
    fn = made(
        generate_vmap_rule=True,
        forward=lambda x: x.sin(),
        setup_context=lambda ctx, inputs, output: (
            ctx.save_for_backward(*inputs),
            ctx.save_for_forward(*inputs),
        )[0],
        backward=lambda ctx, g: g * ctx.saved_tensors[0].cos(),
        jvp=lambda ctx, t: t * ctx.saved_tensors[0].cos(),
    )
    lib: Any = runtime.func
    batch = torch.stack([X, Y])
    torch.testing.assert_close(lib.vmap(fn.apply)(batch), batch.sin())
    torch.testing.assert_close(
        lib.jvp(lib.vmap(fn.apply), (batch,), (batch,))[1], batch * batch.cos()
    )
    torch.testing.assert_close(lib.grad(lambda x: lib.vmap(fn.apply)(x).sum())(batch), batch.cos())
    torch.testing.assert_close(lib.vmap(lib.vmap(fn.apply))(batch), batch.sin())
    torch.testing.assert_close(lib.vmap(lib.jacfwd(fn.apply))(batch), batch.cos().diag_embed())


def test_a_jvp_may_leave_what_it_writes_to_without_a_tangent() -> None:
    buffer = torch.zeros(4, dtype=torch.float64)
    fn = made(
        forward=lambda x, b: (x * 2, b.add_(1)),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[1]),
        jvp=lambda ctx, t, u: (t * 2, None),
    )

    def program(x: Any) -> Any:
        out, written = fn.apply(x, buffer)
        assert written is buffer
        return out

    torch.testing.assert_close(runtime.func.jvp(program, (X,), (Y,)), (2 * X, 2 * Y))
    assert type(buffer) is torch.Tensor and buffer.tolist() == [1.0] * 4
    tells = made(
        forward=lambda x, b: (x * 2, b.add_(x)),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[1]),
        jvp=lambda ctx, t, u: (t * 2, t),
    )
    with pytest.raises(InplaceError, match="would mutate a captured Tensor"):
        runtime.func.jvp(lambda x: tells.apply(x, buffer)[0], (X,), (Y,))


def test_a_jvp_must_write_to_the_tangent_of_what_forward_writes_to() -> None:
    fn = made(
        forward=lambda x: x.mul_(2),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(output),
        jvp=lambda ctx, t: t * 2,
    )
    with pytest.raises(RuntimeError, match="jvp"):
        runtime.func.jvp(lambda x: fn.apply(x * 1), (X,), (Y,))


def test_a_generated_rule_sums_the_gradient_of_what_the_batch_shares() -> None:
    fn = product_and_sine(Function)
    batch = torch.randn(3, 4, dtype=torch.float64)

    def total(f: Any, lib: Any) -> Any:
        return lambda w: lib.vmap(f, (0, None))(batch, w).sum()

    torch.testing.assert_close(
        runtime.func.grad(total(scalar(fn), runtime.func))(Y),
        torch.func.grad(total(plainly, torch.func))(Y),
    )


def test_a_generated_rule_keeps_attributes_and_marks() -> None:
    class Fn(Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any, k: int) -> Any:
            return x * k, x.argmax()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.mark_non_differentiable(output[1])
            ctx.set_materialize_grads(False)
            ctx.kept = {"x": inputs[0], "k": inputs[1]}

        @staticmethod
        def backward(ctx: Any, g: Any, none: Any) -> Any:
            assert none is None and ctx.needs_input_grad == (True, False)
            return g * ctx.kept["k"] + ctx.kept["x"], None

    x = torch.randn(3, 4, dtype=torch.float64)
    found = runtime.func.grad(
        lambda x: runtime.func.vmap(lambda row: Fn.apply(row, 5)[0])(x).sum()
    )(x)
    torch.testing.assert_close(found, 5 + x)


def test_once_differentiable_is_an_error_under_nested_grad_not_a_zero() -> None:
    class Sine(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x.sin()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0].cos()

    torch.testing.assert_close(runtime.func.grad(lambda x: Sine.apply(x).sum())(X), X.cos())
    with pytest.raises(
        RuntimeError,
        match="differentiate twice a function that was marked with @once_differentiable",
    ):
        runtime.func.jacrev(runtime.func.jacrev(lambda x: Sine.apply(x).sum()))(X)
    with pytest.raises(
        RuntimeError,
        match="differentiate twice a function that was marked with @once_differentiable",
    ):
        runtime.func.grad(lambda x: runtime.func.grad(lambda x: Sine.apply(x).sum())(x).sum())(X)


def test_a_dirty_input_under_transforms() -> None:
    fn = made(
        forward=lambda x: x.mul_(2),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(output),
        backward=lambda ctx, g: g * 7,
        jvp=lambda ctx, t: t.mul_(7),
    )

    def f(x: Any) -> Any:
        y = x * 1
        assert fn.apply(y) is y
        return y.sum()

    torch.testing.assert_close(runtime.func.grad(f)(X), torch.full_like(X, 7))
    out, tangent = runtime.func.jvp(f, (X,), (X,))
    torch.testing.assert_close((out, tangent), (2 * X.sum(), 7 * X.sum()))

    def part(x: Any) -> Any:
        y = x * 1
        fn.apply(y[:2])
        return y.sum()

    torch.testing.assert_close(
        runtime.func.grad(part)(X), torch.tensor([7.0, 7, 1, 1], dtype=torch.float64)
    )
    with pytest.raises(
        InplaceError, match=r"in-place operation \(MyFn.apply\) that would mutate a captured Tensor"
    ):
        buffer = X.clone()
        pair = made(
            forward=lambda x, b: b.add_(x),
            setup_context=lambda ctx, i, o: ctx.mark_dirty(i[1]),
            backward=lambda ctx, g: (g, g),
        )
        runtime.func.grad(lambda x: pair.apply(x, buffer).sum())(X)


@pytest.mark.parametrize("part", [slice(None), slice(2)])
def test_a_jvp_writes_to_a_tangent_that_all_elements_share_as_it_does_to_its_own(part: Any) -> None:
    fn = made(
        forward=lambda x: x.exp_(),
        setup_context=lambda ctx, inputs, output: (
            ctx.mark_dirty(*inputs),
            ctx.save_for_forward(output),
        )[0],
        jvp=lambda ctx, t: t.mul_(ctx.saved_tensors[0]),
        generate_vmap_rule=True,
    )

    def push(x: Any) -> Any:
        y = x.clone()
        fn.apply(y[part])
        return y

    batch, shared = torch.stack([X, Y]), Y.clone()
    found = runtime.func.vmap(lambda x: runtime.func.jvp(push, (x,), (shared,))[1])(batch)
    expected = shared.repeat(2, 1)
    expected[:, part] *= batch[:, part].exp()
    torch.testing.assert_close((found, shared), (expected, Y))


def test_an_output_that_is_an_input_may_not_be_written_under_a_transform() -> None:
    fn = made(forward=lambda x: x, jvp=lambda ctx, t: t)
    runs: list[Any] = [lambda f: runtime.func.grad(f)(X), lambda f: runtime.func.jvp(f, (X,), (X,))]
    for run in runs:
        with pytest.raises(RuntimeError, match="This view was created inside a custom Function"):
            run(lambda x: fn.apply(x * 1).mul_(2).sum())


def test_a_pullback_may_be_called_after_the_transform_and_values_may_not() -> None:
    kept: list[Any] = []
    fn = product_and_sine(Function)

    def f(x: Any) -> Any:
        kept.append(x)
        return scalar(fn)(x, Y)

    _, pull = runtime.func.vjp(f, X)
    torch.testing.assert_close(
        pull(torch.ones((), dtype=torch.float64))[0], torch.func.grad(plainly)(X, Y)
    )
    with pytest.raises(EscapedValue, match="is used by Both after the transform has returned"):
        fn.apply(kept[0], Y)


def test_forward_ad_asks_jvp_with_either_style_and_both_orders_of_nesting() -> None:
    class Old(Function):
        @staticmethod
        def forward(ctx: Any, a: Any, b: Any) -> Any:
            ctx.save_for_backward(a, b)
            ctx.save_for_forward(a, b)
            ctx.factor = 1
            return a * b, a.sin()

        backward = product_and_sine(Function).backward
        jvp = product_and_sine(Function).jvp

    for fn in (Old, product_and_sine(Function)):
        x = wrap(X.clone(), True)
        with fw.dual_level():
            dual = fw.make_dual(x, wrap(Y))
            tangent: Any = fw.unpack_dual(scalar(fn)(dual, wrap(Y))).tangent
            expected: Any
            expected, expected_grad = torch.func.jvp(torch.func.grad(plainly), (X, Y), (Y, 0 * Y))[
                :2
            ]
            torch.testing.assert_close(unwrap(tangent), (expected * Y).sum())
            (g,) = runtime.autograd.grad(tangent, x, retain_graph=True)  # reverse over forward
            torch.testing.assert_close(unwrap(g), expected_grad)
            (g,) = runtime.autograd.grad(scalar(fn)(dual, wrap(Y)), dual)  # forward over reverse
            of_g: Any = fw.unpack_dual(g).tangent
            torch.testing.assert_close(unwrap(of_g), expected_grad)


@pytest.mark.parametrize("in_dims", [(0, None), (None, 0)])
def test_torchs_vmap_of_a_function_goes_before_the_level_around(in_dims: Any) -> None:
    """The argument without a batch is a value of the level, the other one torch's batch of one."""

    class Product(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any, y: Any) -> Any:
            return x * y

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            x, y = ctx.saved_tensors
            return g * y, g * x

    def total(x: Any, apply: Any) -> Any:
        given = [x[0] if dim is None else x for dim in in_dims]
        return torch.func.vmap(apply, in_dims)(*given).sum()

    x = torch.arange(6.0).reshape(2, 3)
    found = runtime.func.grad(lambda x: total(x, Product.apply))(x)
    torch.testing.assert_close(found, torch.func.grad(lambda x: total(x, torch.mul))(x))
