"""gradcheck passes what is right and catches what is wrong: values, linearity, determinism,
undefined and batched derivatives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap, wrap
from runtime.autograd import Function, forward_ad, gradcheck, gradgradcheck

from .gradchecks import BOTH_MODES, FAST, GradcheckError, X, Z, hooked, leaf, module

# ---- what is right


@FAST
@pytest.mark.parametrize(
    ("f", "inputs"),
    [
        (lambda x: x.sin(), (X,)),
        (lambda x, y: (x * y, x.exp()), (X, leaf(2, 3, seed=1))),
        (lambda x, k, flag: x * k if flag else x, (X, 3.0, True)),
        (lambda x, i: x[i], (X, wrap(torch.tensor([1, 0, 1])))),
        (lambda x, y: x * 2, (X, leaf(2))),
        (
            lambda x: x.sum(0) * 2,
            (wrap(torch.rand(2, 3, dtype=torch.float64).t(), requires_grad=True),),
        ),
        (lambda x: x * 2, (leaf(0, 3),)),
        (lambda x: x * x, (leaf(),)),
        (lambda z: z * z, (Z,)),
        (lambda z: z.abs(), (Z,)),
        (lambda z: (z * z, z.real), (Z,)),
        (lambda x: x * (1 + 2j), (X,)),
        (lambda x, z: (x[0] * z).exp(), (X, Z)),
        (lambda x: torch.linalg.inv(x @ x.t()), (X,)),
        (lambda x: x, (X,)),
        (lambda x: (x * 2, x.detach(), (x > 0.7)), (X,)),
    ],
)
def test_right_derivatives_pass_in_both_modes(
    f: Callable[..., Any], inputs: Any, fast_mode: bool
) -> None:
    assert gradcheck(f, inputs, fast_mode=fast_mode, **BOTH_MODES)


@FAST
def test_a_write_to_a_view_passes_without_a_cotangent_too(fast_mode: bool) -> None:
    def f(x: Any) -> Any:
        y = x.clone()
        y[0].mul_(y[1])
        return y

    assert gradcheck(f, X, fast_mode=fast_mode, check_forward_ad=True)


@FAST
@pytest.mark.parametrize(
    ("f", "inputs"),
    [
        (lambda x: x.sin(), (X,)),
        (lambda x, y: (x * y, x.exp()), (X, leaf(2, 3, seed=1))),
        (lambda z: z * z, (Z,)),
        (lambda x: x * 2, (X,)),
        (lambda x, y: x * x, (X, leaf(2))),
    ],
)
def test_right_second_derivatives_pass(f: Callable[..., Any], inputs: Any, fast_mode: bool) -> None:
    assert gradgradcheck(
        f, inputs, fast_mode=fast_mode, check_fwd_over_rev=True, check_batched_grad=True
    )
    assert gradgradcheck(f, inputs, fast_mode=fast_mode, gen_non_contig_grad_outputs=True)


def test_grad_outputs_may_be_given() -> None:
    assert gradgradcheck(lambda x: x.sin(), X, leaf(2, 3, seed=2))
    with pytest.raises(
        ValueError, match="1 outputs of func require grad, but there are 2 grad_outputs"
    ):
        gradgradcheck(lambda x: x.sin(), X, (X, X))


def test_nothing_to_check_passes() -> None:
    assert gradcheck(lambda x: (), X)
    assert gradcheck(lambda x: wrap(torch.ones(2)), X)
    assert gradcheck(lambda x: x.long(), X)


def test_inputs_come_back_unchanged() -> None:
    before, version = unwrap(X).clone(), X._version
    gradcheck(lambda x: x.sin(), X)
    assert torch.equal(unwrap(X), before) and X._version == version and X.grad is None


def test_the_global_generator_is_left_alone() -> None:
    state = torch.get_rng_state()
    gradcheck(lambda x: x.sin(), X, fast_mode=True)
    assert torch.equal(torch.get_rng_state(), state)


# ---- what is wrong


class WrongBackward(Function):
    """Twice its input; the backward forgets one element."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * torch.tensor([2.0, 2.0, 0.0], dtype=g.dtype)

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * 2


class WrongJvp(WrongBackward):
    """The other way round."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return t * torch.tensor([2.0, 2.0, 0.0], dtype=t.dtype)


@FAST
def test_a_wrong_backward_is_caught(fast_mode: bool) -> None:
    with pytest.raises(
        GradcheckError,
        match=r"^Jacobian mismatch for output 0 with respect to input 0,\nnumerical:",
    ):
        gradcheck(WrongBackward.apply, leaf(3), fast_mode=fast_mode)
    assert not gradcheck(WrongBackward.apply, leaf(3), fast_mode=fast_mode, raise_exception=False)
    assert gradcheck(
        WrongBackward.apply,
        leaf(3),
        fast_mode=fast_mode,
        check_backward_ad=False,
        check_forward_ad=True,
    )


@FAST
def test_a_wrong_jvp_is_caught(fast_mode: bool) -> None:
    assert gradcheck(WrongJvp.apply, leaf(3), fast_mode=fast_mode)
    with pytest.raises(
        GradcheckError,
        match=(
            r"^Jacobian computed with forward mode mismatch for "
            r"output 0 with respect to input 0,"
        ),
    ):
        gradcheck(WrongJvp.apply, leaf(3), fast_mode=fast_mode, check_forward_ad=True)


def test_the_message_shows_both_jacobians() -> None:
    with pytest.raises(GradcheckError) as caught:
        gradcheck(
            hooked(lambda x: x * 2, lambda g: g * 1.5),
            wrap(torch.ones(2, dtype=torch.float64), requires_grad=True),
        )
    assert str(caught.value) == (
        "Jacobian mismatch for output 0 with respect to input 0,\n"
        "numerical:tensor([[2.0000, 0.0000],\n        [0.0000, 2.0000]], dtype=torch.float64)\n"
        "analytical:tensor([[3., 0.],\n        [0., 3.]], dtype=torch.float64)\n"
    )


def test_fast_mode_says_what_the_whole_jacobians_are() -> None:
    wrong = hooked(lambda x: x * 2, lambda g: g * 1.5)
    with pytest.raises(
        GradcheckError, match=r"(?s)The max per-element difference \(slow mode\) is: (1\.0|0\.99)"
    ):
        gradcheck(wrong, leaf(2), fast_mode=True)


@FAST
def test_the_output_and_the_input_are_numbered(fast_mode: bool) -> None:
    wrong = hooked(lambda y: y * y, lambda g: g * 1.5)
    with pytest.raises(GradcheckError, match="for output 1 with respect to input 2,"):
        gradcheck(lambda x, k, y: (x * k, wrong(y)), (X, 2.0, leaf(2)), fast_mode=fast_mode)


@FAST
@pytest.mark.parametrize(
    ("f", "x", "message"),
    [
        (
            hooked(lambda z: z * z, lambda g: g * 1.5),
            Z,
            "While considering the imaginary part of complex outputs only, Jacobian mismatch",
        ),
        (
            hooked(lambda z: z * z, lambda g: g.conj()),
            Z,
            "While considering the imaginary part of complex outputs only, Jacobian mismatch",
        ),
        (
            hooked(lambda x: x * (1 + 1j), lambda g: g.imag * 1j),
            X,
            "While considering the real part of complex outputs only, Jacobian",
        ),
        (
            hooked(lambda z: z.real * 1, lambda g: g * 2),
            Z,
            "^Jacobian mismatch for output 0 with respect to input 0",
        ),
    ],
)
def test_wrong_complex_gradients_are_caught(
    f: Callable[..., Any], x: Any, message: str, fast_mode: bool
) -> None:
    with pytest.raises(GradcheckError, match=message):
        gradcheck(f, x, fast_mode=fast_mode)


@FAST
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_function_that_falsifies_its_tangent_is_caught(
    dtype: torch.dtype, fast_mode: bool
) -> None:
    def bad(x: Any, y: Any) -> Any:
        if forward_ad.current_level() >= 0:
            p, t = forward_ad.unpack_dual(y)
            y = p if t is None else forward_ad.make_dual(p, t * 1.1)
        return x + y, y

    with pytest.raises(
        GradcheckError,
        match="Jacobian computed with forward mode mismatch for output 0 with respect to input 1",
    ):
        gradcheck(
            bad,
            (leaf(2, dtype=dtype), leaf(2, dtype=dtype)),
            check_forward_ad=True,
            fast_mode=fast_mode,
        )


@FAST
def test_a_wrong_second_derivative_is_caught(fast_mode: bool) -> None:
    def bad(x: Any) -> Any:
        out = x.sin()

        def hook(g: Any) -> Any:
            if g is not None and g.requires_grad:
                g = g * 1
                g.register_hook(lambda h: None if h is None else h * 1.3)
                return g
            return None

        out.register_hook(hook)
        return out

    assert gradcheck(bad, X, fast_mode=fast_mode)
    with pytest.raises(GradcheckError, match="Jacobian mismatch for output 0"):
        gradgradcheck(bad, X, fast_mode=fast_mode)


@FAST
def test_an_output_without_derivative_may_not_depend_on_the_input(fast_mode: bool) -> None:
    with pytest.raises(GradcheckError, match="Numerical gradient for function expected to be zero"):
        gradcheck(lambda x: x.detach() * 2, X, fast_mode=fast_mode)
    with pytest.raises(GradcheckError, match="Numerical gradient for function expected to be zero"):
        gradcheck(lambda z: z.detach().imag, Z, fast_mode=fast_mode)


@FAST
def test_a_backward_that_differs_from_call_to_call_is_caught(fast_mode: bool) -> None:
    calls = iter(range(1000))
    f = hooked(lambda x: x * 2, lambda g: g * (1 + 1e-6 * next(calls)))
    with pytest.raises(
        GradcheckError,
        match=r"Backward is not reentrant.*The tolerance for nondeterminism was 0\.0",
    ):
        gradcheck(f, leaf(2), fast_mode=fast_mode)
    assert gradcheck(f, leaf(2), fast_mode=fast_mode, nondet_tol=1e-4)


@FAST
def test_a_second_backward_may_differ_by_nondet_tol(fast_mode: bool) -> None:
    calls = iter(range(10000))

    def differs(g: Any) -> Any:
        if g.requires_grad:
            g = g.clone()
            g.register_hook(lambda gg: gg * (1 + 1e-6 * next(calls)))
        return g

    f = hooked(lambda x: x * x, differs)
    with pytest.raises(GradcheckError, match="Backward is not reentrant"):
        gradgradcheck(f, leaf(2), fast_mode=fast_mode, check_undefined_grad=False)
    assert gradgradcheck(
        f, leaf(2), fast_mode=fast_mode, check_undefined_grad=False, nondet_tol=1e-3
    )


@FAST
def test_a_backward_that_is_not_linear_is_caught(fast_mode: bool) -> None:
    f = hooked(lambda x: x * 2, lambda g: g + 1e-6)
    with pytest.raises(GradcheckError, match="backward not multiplied by grad_output"):
        gradcheck(f, leaf(2), fast_mode=fast_mode)


class Unmaterialized(Function):
    """Twice its input. ``answer`` is what its backward makes of a missing cotangent."""

    answer: Any = None

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2

    @classmethod
    def backward(cls, ctx: Any, g: Any) -> Any:
        return cls.answer if g is None else g * 2


class Inventive(Unmaterialized):
    answer = torch.ones(2, dtype=torch.float64)


def test_a_backward_that_cannot_do_without_a_cotangent_is_caught() -> None:
    def needs(g: Any) -> Any:
        if g is None:
            raise RuntimeError("no gradient")

    def f(x: Any) -> Any:
        out = x.clone()
        out.register_hook(needs)
        return out

    with (
        pytest.warns(UserWarning, match="New undefined gradient support checking feature"),
        pytest.raises(
            GradcheckError, match="Expected backward function to handle undefined output grads"
        ),
    ):
        gradcheck(f, X)
    assert gradcheck(f, X, check_undefined_grad=False)


def test_a_missing_cotangent_may_not_become_a_gradient() -> None:
    assert gradcheck(Unmaterialized.apply, leaf(2))
    with pytest.raises(GradcheckError, match="Expected all input grads to be undefined or zero"):
        gradcheck(Inventive.apply, leaf(2))


def test_an_input_without_tangent_is_one_at_rest() -> None:
    def f(x: Any, y: Any) -> Any:
        if forward_ad.current_level() >= 0 and forward_ad.unpack_dual(x).tangent is None:
            return y * 3
        return x + y

    with pytest.raises(
        GradcheckError, match="Mismatch in tangent values for output with index: 0 when input"
    ):
        gradcheck(f, (leaf(2), leaf(2)), check_forward_ad=True)
    assert gradcheck(f, (leaf(2), leaf(2)), check_forward_ad=True, check_undefined_grad=False)


def test_a_derivative_that_cannot_be_batched_is_caught() -> None:
    looks = hooked(lambda x: x * 2, lambda g: g * min(1.0, abs(g.sum().item()) + 1))
    assert gradcheck(looks, X)
    with pytest.raises(
        GradcheckError,
        match=(
            r"(?s)While computing batched gradients, got: "
            r"vmap.*testing batched gradient computation"
        ),
    ):
        gradcheck(looks, X, check_batched_grad=True)


def test_a_draw_in_a_batched_derivative_is_told_in_words_that_need_no_vmap_of_the_users() -> None:
    draws = hooked(lambda x: x * 2, lambda g: g + 0 * torch.rand_like(g))
    with pytest.raises(
        GradcheckError, match=r"got: vmap: .*random operations inside of vmap"
    ) as caught:
        gradcheck(draws, X, check_batched_grad=True)
    assert "randomness" not in str(caught.value)


def test_a_batched_derivative_that_differs_is_caught() -> None:
    def batched(v: Any) -> bool:
        return (
            type(v).__name__ == "BatchedValue"
            or type(getattr(v, "_inner", None)).__name__ == "BatchedValue"
        )

    backward = hooked(lambda x: x * 2, lambda g: g * 2 if batched(g) else g)
    with pytest.raises(
        GradcheckError,
        match="For output 0 and input 0, the batched derivative is not a batch of the derivatives",
    ):
        gradcheck(backward, X, check_batched_grad=True)

    def forward(x: Any) -> Any:
        if forward_ad.current_level() >= 0:
            p, t = tuple[Any, Any](forward_ad.unpack_dual(x))
            if batched(t):
                return forward_ad.make_dual(p * 2, t * 3)
        return x * 2

    with pytest.raises(
        GradcheckError,
        match="For output 0 and input 0, the batched derivative is not a batch of the derivatives",
    ):
        gradcheck(forward, X, check_forward_ad=True, check_batched_forward_grad=True)


# ---- names


def test_the_function_takes_the_name_of_its_module() -> None:
    assert runtime.autograd.gradcheck is module.gradcheck and callable(gradcheck)
    assert issubclass(GradcheckError, RuntimeError)


def test_the_deprecated_jacobians() -> None:
    a, b = leaf(2, 2), leaf(2, 2, seed=1)
    both: Callable[..., Any] = lambda inputs: (2 * inputs[0] + inputs[1], inputs[0])  # noqa: E731
    eye = torch.eye(4, dtype=torch.float64)
    with pytest.warns(
        FutureWarning, match="`get_numerical_jacobian` was part of PyTorch's private API"
    ):
        found = module.get_numerical_jacobian(both, (a, b), eps=1e-6)
    torch.testing.assert_close(found, (2 * eye, eye))
    with pytest.warns(
        FutureWarning, match="`get_analytical_jacobian` was part of PyTorch's private API"
    ):
        jacobians, reentrant, right_size, right_dtype = module.get_analytical_jacobian(
            (a, b), 2 * a + b
        )
    torch.testing.assert_close(jacobians, (2 * eye, eye))
    assert reentrant and right_size and right_dtype
    with (
        pytest.warns(FutureWarning),
        pytest.raises(ValueError, match=r"Expected grad_out to be 1\.0"),
    ):
        module.get_numerical_jacobian(both, (a, b), grad_out=2.0)
    with (
        pytest.warns(FutureWarning),
        pytest.raises(ValueError, match="Expected output to be non-complex"),
    ):
        module.get_analytical_jacobian((Z,), Z * Z)
    (by_b,) = module.get_numerical_jacobian_wrt_specific_input(
        lambda a, b: 3 * b, 1, (a, b), (b,), 1e-6
    )
    torch.testing.assert_close(by_b, 3 * eye)


@pytest.mark.parametrize("non_contiguous", [False, True])
def test_cotangents_of_second_derivatives_have_gaps_on_request(non_contiguous: bool) -> None:
    seen: list[bool] = []

    class Cube(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            seen.append(g.is_contiguous())
            (x,) = ctx.saved_tensors
            return 3 * g * x * x

    assert gradgradcheck(Cube.apply, leaf(3), gen_non_contig_grad_outputs=non_contiguous)
    assert (False in seen) is non_contiguous
