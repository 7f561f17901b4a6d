"""What each option of gradcheck and gradgradcheck decides: how large an error may be, what is
perturbed and where, which checks run."""

import importlib
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import unwrap, wrap
from runtime.autograd import Function, forward_ad, gradcheck, gradgradcheck
from runtime.autograd.gradcheck import GradcheckError

from ..errors import told

gradcheck_module: Any = importlib.import_module("runtime.autograd.gradcheck")

FAST = pytest.mark.parametrize("fast_mode", [False, True])
MODES = pytest.mark.parametrize(
    "mode", [{}, {"check_forward_ad": True, "check_backward_ad": False}], ids=["reverse", "forward"]
)


def leaf(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Any:
    return wrap(
        torch.rand(shape, dtype=dtype, generator=torch.Generator().manual_seed(seed)) + 0.5,
        requires_grad=True,
    )


def off_by(error: Callable[[Any], Any], slope: float = 0.0) -> Callable[..., Any]:
    """``slope * x`` whose derivative, as the tape and the tangent tell it, is wrong by ``error`` of
    what is passed through."""

    class Off(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return slope * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return slope * g + error(g)

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return slope * t + error(t)

    return Off.apply


def everywhere(e: complex) -> Callable[[Any], Any]:
    """An error of ``e`` in every element of the Jacobian."""
    return lambda g: (e * g.sum()).expand(g.shape)


# ---- how large an error may be


@MODES
@FAST
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
def test_every_element_of_the_jacobian_may_be_off_by_atol(
    shape: tuple[int, ...], mode: Any, fast_mode: bool
) -> None:
    cases: list[tuple[float, dict[str, Any]]] = [
        (1e-5, {}),
        (1e-3, {"atol": 1e-3}),
        (1e-8, {"atol": 1e-8}),
    ]
    for atol, options in cases:
        for times, right in ((0.9, True), (1.1, False)):
            f = off_by(everywhere(times * atol))
            assert (
                gradcheck(
                    f,
                    leaf(*shape),
                    rtol=0,
                    fast_mode=fast_mode,
                    raise_exception=False,
                    **options,
                    **mode,
                )
                is right
            )


@MODES
@FAST
def test_every_element_of_the_jacobian_may_be_off_by_rtol_of_itself(
    mode: Any, fast_mode: bool
) -> None:
    cases: list[tuple[float, dict[str, Any]]] = [(1e-3, {}), (1e-2, {"rtol": 1e-2})]
    for rtol, options in cases:
        for times, right in ((0.9, True), (1.2, False)):
            f = off_by(lambda g, e=times * rtol: 3 * e * g, slope=3.0)  # type: ignore[misc]
            assert (
                gradcheck(
                    f,
                    leaf(4),
                    atol=0.0,
                    fast_mode=fast_mode,
                    raise_exception=False,
                    **options,
                    **mode,
                )
                is right
            )


@FAST
@pytest.mark.parametrize("axis", [1, 1j])
@pytest.mark.parametrize("part", [torch.real, torch.imag])
def test_each_derivative_by_a_complex_number_may_be_off_by_atol(
    part: Any, axis: complex, fast_mode: bool
) -> None:
    class Off(Function):
        @staticmethod
        def forward(ctx: Any, z: Any, e: complex) -> Any:
            ctx.e = e
            return part(z) * 0

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (ctx.e * g.sum()).expand(g.shape), None

    for times, right in ((0.9, True), (2.5, False)):
        z = leaf(3, dtype=torch.complex128)
        assert (
            gradcheck(
                lambda z, e=times * axis * 1e-5: Off.apply(z, e),
                z,
                rtol=0,
                fast_mode=fast_mode,
                raise_exception=False,
            )
            is right
        )


def test_second_derivatives_are_held_to_the_tolerances_that_are_given() -> None:
    def f(x: Any) -> Any:
        # so is the derivative of the backward pass
        return x * x + off_by(lambda g: 1e-2 * g)(x) * x

    tolerances: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"atol": 0.1}, True),
        ({"rtol": 0.1}, True),
    ]
    for options, right in tolerances:
        assert gradgradcheck(f, leaf(2), raise_exception=False, **options) is right


def test_eps_is_by_how_much_inputs_are_perturbed() -> None:
    moves: list[float] = []
    at = leaf()
    where = at.item()

    def f(x: Any) -> Any:
        moves.append(abs(x.item() - where))
        return x * 2

    cases: list[tuple[Any, dict[str, Any], float]] = [
        (gradcheck, {}, 1e-6),
        (gradcheck, {"eps": 1e-3}, 1e-3),
        (gradgradcheck, {}, 1e-6),
        (gradgradcheck, {"eps": 1e-3}, 1e-3),
    ]
    for check, options, eps in cases:
        for fast_mode in (False, True):
            moves.clear()
            assert check(f, at, fast_mode=fast_mode, **options)
            assert max(moves) == pytest.approx(eps)


@FAST
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_a_function_is_called_nowhere_but_next_to_its_inputs(
    dtype: torch.dtype, fast_mode: bool
) -> None:
    """The parts of a complex input that are held fast included."""
    x, k, y = leaf(2, dtype=dtype), 3.0, leaf(2, dtype=dtype, seed=1)
    x.data.mul_(3 if dtype is torch.float64 else 3 - 1j)
    points = [unwrap(t).detach().clone() for t in (x, y)]

    def f(x: Any, k: float, y: Any) -> Any:
        for given, point in zip((x, y), points, strict=True):
            assert given.shape == point.shape and bool(
                ((given.detach() - point).abs() <= 2e-6).all()
            )
        return x * y * k, y.conj() * y

    assert gradcheck(f, (x, k, y), check_forward_ad=True, fast_mode=fast_mode)
    assert gradgradcheck(f, (x, k, y), fast_mode=fast_mode)
    for t, point in zip((x, y), points, strict=True):
        assert torch.equal(unwrap(t).detach(), point)


# ---- dtypes


@FAST
@pytest.mark.parametrize("option", [{}, {"check_grad_dtypes": False}, {"check_grad_dtypes": True}])
def test_a_gradient_of_another_dtype_is_an_error_of_its_own_on_request(
    option: Any, fast_mode: bool
) -> None:
    class Coarse(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (g * 2).float()

    x = wrap(torch.ones(2, dtype=torch.float64), requires_grad=True)
    x.grad_dtype = None  # takes gradients of any dtype
    said = (
        "Gradient has dtype mismatch"
        if option.get("check_grad_dtypes")
        else "the gradient of input 0 is incorrect: dtype torch.float32"
    )
    with pytest.raises(GradcheckError, match=said):
        gradcheck(Coarse.apply, x, fast_mode=fast_mode, **option)


# ---- which checks run


def test_the_checks_that_run_by_default_are_torchs() -> None:
    """Seen from the calls: forward mode, batches and missing cotangents each show in one."""

    def seen_by(name: str, base: Any, check: Any, x: Any, **options: Any) -> set[str]:
        seen: set[str] = set()

        class Watched(base):  # type: ignore[misc]
            generate_vmap_rule = False

            @staticmethod
            def forward(x: Any) -> Any:
                return x * 2

            @staticmethod
            def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
                ctx.set_materialize_grads(False)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                seen.add("no cotangent" if g is None else "backward")
                return None if g is None else g * 2

            @staticmethod
            def jvp(ctx: Any, t: Any) -> Any:
                seen.add("no tangent" if t is None else "forward")
                return None if t is None else t * 2

        assert check(Watched.apply, x, **options)
        return seen

    cases: list[dict[str, Any]] = [
        {},
        {"check_undefined_grad": False},
        {"check_forward_ad": True},
        {"check_forward_ad": True, "check_undefined_grad": False},
        {"check_forward_ad": True, "check_backward_ad": False},
    ]
    for options in cases:
        ours = seen_by("runtime", Function, gradcheck, leaf(2), **options)
        theirs = seen_by(
            "torch",
            torch.autograd.Function,
            torch.autograd.gradcheck,
            unwrap(leaf(2)).requires_grad_(),
            **options,
        )
        assert ours - {"no tangent"} == theirs - {"no tangent"}, options


@FAST
def test_batches_are_checked_on_request_only(fast_mode: bool) -> None:
    def f(x: Any) -> Any:
        x = x * 1
        # looks at a value, which a batch of them does not have
        x.register_hook(lambda g: g * min(1.0, abs(g.sum().item()) + 1))
        return x * x

    assert gradcheck(f, leaf(2), fast_mode=fast_mode, check_undefined_grad=False)
    assert gradgradcheck(f, leaf(2), fast_mode=fast_mode, check_undefined_grad=False)
    for check in (gradcheck, gradgradcheck):
        with pytest.raises(GradcheckError, match="check_batched_grad=False"):
            check(
                f, leaf(2), fast_mode=fast_mode, check_undefined_grad=False, check_batched_grad=True
            )


def test_a_batch_that_is_checked_has_several_elements() -> None:
    sizes: list[tuple[str, int]] = []

    class Doubled(Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return Pushed.apply(g, "backward")

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return Pushed.apply(t, "forward")

    class Pushed(Function):
        @staticmethod
        def forward(x: Any, which: str) -> Any:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * 2, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, x: Any, which: str) -> Any:
            sizes.append((which, info.batch_size))
            return x * 2, in_dims[0]

    assert gradcheck(
        Doubled.apply,
        leaf(3),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert {which for which, _ in sizes} == {"backward", "forward"} and all(
        size > 1 for _, size in sizes
    )


@pytest.mark.parametrize("bad", [(1, 2), (0, 2), (1, 0)], ids=str)
def test_what_is_wrong_beside_the_value_is_numbered_as_the_function_does_too(
    bad: tuple[int, int],
) -> None:
    def batched(g: Any) -> bool:
        return (
            type(g).__name__ == "BatchedValue"
            or type(getattr(g, "_inner", None)).__name__ == "BatchedValue"
        )

    def falsified(t: Any, hook: Callable[[Any], Any]) -> Any:
        t = t * 1
        t.register_hook(lambda g: None if g is None else hook(g))
        return t

    def f(x: Any, k: float, y: Any) -> Any:
        outs = []
        for number in (0, 1):
            a, b = (
                falsified(t, lambda g: g * 2 if batched(g) else g) if (number, i) == bad else t
                for i, t in ((0, x), (2, y))
            )
            outs.append(a * b * k)
        return tuple(outs)

    with pytest.raises(
        GradcheckError, match=f"For output {bad[0]} and input {bad[1]}, the batched derivative"
    ):
        gradcheck(f, (leaf(2), 3.0, leaf(2, seed=1)), check_batched_grad=True)

    class Coarse(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (g * 2).float()

    x = leaf(2)
    x.grad_dtype = None
    args = [leaf(2), 3.0, leaf(2)]
    args[bad[1]] = x
    with pytest.raises(GradcheckError, match=f"the gradient of input {bad[1]} is incorrect"):
        gradcheck(
            lambda x, k, y: (Coarse.apply(x) + y if bad[1] == 0 else x + Coarse.apply(y)) * k, args
        )


@pytest.mark.parametrize("times", [0, 1])
def test_a_gradient_that_only_a_batch_has_must_be_zero(times: int) -> None:
    class Constant(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return torch.zeros_like(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * times if type(g).__name__ == "BatchedValue" else None

    assert gradcheck(
        Constant.apply, leaf(2, 2), check_batched_grad=True, raise_exception=False
    ) is (times == 0)


@pytest.mark.parametrize(
    ("check", "f"),
    [
        (gradcheck, off_by(lambda g: g)),
        (gradgradcheck, lambda x: x * x + off_by(lambda g: g)(x) * x),
    ],
    ids=["gradcheck", "gradgradcheck"],
)
def test_a_failure_is_raised_unless_told_otherwise(check: Any, f: Any) -> None:
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        check(f, leaf(2))
    assert check(f, leaf(2), raise_exception=False) is False


def test_gradgradcheck_differentiates_the_backward_pass_in_reverse_mode_by_default() -> None:
    pushed: list[bool] = []

    def f(x: Any) -> Any:
        pushed.append(forward_ad.current_level() >= 0)
        return x * x

    cases: list[tuple[dict[str, Any], bool]] = [
        ({}, False),
        ({"check_fwd_over_rev": True}, True),
        (
            {
                "check_fwd_over_rev": True,
                "check_rev_over_rev": False,
                "check_undefined_grad": False,
            },
            True,
        ),
    ]
    for options, expected in cases:
        pushed.clear()
        assert gradgradcheck(f, leaf(2), **options)
        assert any(pushed) is expected


def test_masked_is_off_by_default_for_second_derivatives() -> None:
    dense = torch.zeros(2, 3, dtype=torch.float64)
    dense[0, 1], dense[1, 2] = 2.0, -1.0

    def cubed(s: Any) -> Any:
        return s.to_dense(masked_grad=False) ** 3

    assert gradgradcheck(cubed, wrap(dense.to_sparse(), requires_grad=True))


def test_the_numerical_jacobian_of_a_sparse_input_counts_all_elements() -> None:
    x = wrap(
        torch.diag(torch.tensor([2.0, 3.0], dtype=torch.float64)).to_sparse(), requires_grad=True
    )
    with pytest.warns(FutureWarning):
        (found,) = gradcheck_module.get_numerical_jacobian(lambda s: s.to_dense(), x, eps=1e-6)
    torch.testing.assert_close(found, torch.eye(4, dtype=torch.float64))
    (found,) = gradcheck_module.get_numerical_jacobian_wrt_specific_input(
        lambda s: s.to_dense(), 0, (x,), None, 1e-6
    )
    torch.testing.assert_close(found, torch.eye(4, dtype=torch.float64))
    (found,) = gradcheck_module.get_numerical_jacobian_wrt_specific_input(
        lambda y: x.to_dense() * y, 0, (3.0,), None, 1e-6, input=x
    )
    torch.testing.assert_close(found, 3 * torch.eye(4, dtype=torch.float64))


def test_the_deprecated_jacobians_say_whether_a_second_pass_differs() -> None:
    calls = iter(range(100))
    x = leaf(2)
    y = x * 2
    y.register_hook(lambda g: g * (1 + 1e-6 * next(calls)))
    with pytest.warns(FutureWarning):
        assert gradcheck_module.get_analytical_jacobian(x, y)[1] is False
        assert gradcheck_module.get_analytical_jacobian(x, y, nondet_tol=1e-3)[1] is True
        assert gradcheck_module.get_analytical_jacobian((x, leaf(0)), y, nondet_tol=1e-3)[1] is True
    with pytest.warns(FutureWarning), pytest.raises(ValueError, match=r"grad_out to be 1\.0"):
        gradcheck_module.get_analytical_jacobian(x, y, grad_out=2.0)


# ---- which inputs and outputs count


# shape, strides, and whether two elements share memory
IN_MEMORY: list[tuple[tuple[int, ...], tuple[int, ...], bool]] = [
    ((2,), (1,), False),
    ((2, 2), (1, 1), True),
    ((2, 2), (2, 1), False),
    ((3, 2), (2, 3), False),
    ((3, 3), (2, 3), False),
    ((4, 3), (2, 3), True),
    ((1, 2), (0, 1), False),
    ((2, 0), (1, 1), False),
    ((1, 1), (5, 5), False),
]


@pytest.mark.parametrize(("shape", "strides", "shared"), IN_MEMORY)
def test_two_elements_that_share_memory_are_found_and_neighbours_are_not(
    shape: tuple[int, ...], strides: tuple[int, ...], shared: bool
) -> None:
    base = torch.rand(16, dtype=torch.float64)
    x = wrap(base.as_strided(shape, strides).detach(), requires_grad=True)
    if not shared:
        assert gradcheck(lambda x: x * 2, x, check_forward_ad=True)
        return
    with pytest.raises(RuntimeError, match="The 0th input has elements that share memory"):
        gradcheck(lambda x: x * 2, x)


def test_only_inputs_that_require_grad_must_be_of_double_precision_and_apart() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gradcheck(lambda x, y: x * y, (leaf(3), wrap(torch.ones(1)).expand(3)))
        assert gradcheck(lambda x, y: x * y, (leaf(3, dtype=torch.complex128), wrap(torch.ones(3))))
    with pytest.warns(
        UserWarning, match="Input #1 requires gradient and is not a double precision"
    ):
        gradcheck(
            lambda x, y: x * y,
            (leaf(3), wrap(torch.ones(3), requires_grad=True)),
            raise_exception=False,
        )


@FAST
def test_each_part_of_a_mixture_is_numbered_as_the_function_does(fast_mode: bool) -> None:
    """Of several outputs, some without gradient, and of several inputs, the wrong pair is named."""
    right: Callable[..., Any] = lambda y: y * 1  # noqa: E731
    wrong = off_by(lambda g: g, slope=2.0)
    for bad_output in (1, 3):
        for bad_input in (0, 2):

            def f(x: Any, k: float, y: Any) -> Any:
                a, b = (wrong if i == bad_input else right for i in (0, 2))  # noqa: B023
                out = a(x) + b(y)
                return tuple(
                    (out if i == bad_output else right(x) * y) if i in (1, 3) else x.detach() > 9  # noqa: B023
                    for i in range(4)
                )

            for mode in ({}, {"check_forward_ad": True, "check_backward_ad": False}):
                with pytest.raises(
                    GradcheckError,
                    match=f"for output {bad_output} with respect to input {bad_input},",
                ):
                    gradcheck(f, (leaf(2), 3.0, leaf(2, seed=1)), fast_mode=fast_mode, **mode)


@FAST
def test_fast_mode_shows_the_jacobians_of_the_pair_that_is_wrong(fast_mode: bool) -> None:
    wrong = off_by(lambda g: g / 2, slope=1.0)
    for mode in ({}, {"check_forward_ad": True, "check_backward_ad": False}):
        with pytest.raises(GradcheckError) as caught:
            gradcheck(
                lambda x, y: (x * 3, wrong(y)), (leaf(2), leaf(2)), fast_mode=fast_mode, **mode
            )
        said = str(caught.value)
        assert "1.5000, 0.0000" in said and ("1.0000, 0.0000" in said)
        assert ("The max per-element difference (slow mode) is: 0.5" in said) is fast_mode
        assert "element-wise differences are small" not in said


def test_fast_mode_says_when_the_whole_jacobians_agree() -> None:
    """An error that is within the tolerance in each element, and not in the sum of them."""
    n = 40
    sign = torch.ones(n, dtype=torch.float64)

    class Off(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x.sum() * 0 + 1e3 * x.mean()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return (1e3 / n) * g * sign * (1 + 0.9e-3)

    assert gradcheck(Off.apply, leaf(n), fast_mode=False)
    assert gradcheck(Off.apply, leaf(n), fast_mode=True)


def test_a_nested_list_or_a_number_is_no_output() -> None:
    for bad in ([[1.0]], None, 3):
        with pytest.raises(TypeError, match="func must return a tensor or a sequence of tensors"):
            gradcheck(lambda x: bad, leaf(2))  # noqa: B023
    assert gradcheck(lambda x: [x * 2, x * 3], leaf(2))


def test_the_point_of_a_single_tensor_and_of_a_list_is_the_same() -> None:
    for inputs in (leaf(2), [leaf(2)], (leaf(2),)):
        assert gradcheck(lambda x: x.exp(), inputs)
        assert gradgradcheck(lambda x: x.exp(), inputs, [leaf(2, seed=3)])


def test_plain_tensors_that_require_grad_are_checked() -> None:
    x = torch.rand(2, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda x: x.exp(), x)
    with pytest.raises(GradcheckError):
        gradcheck(off_by(lambda g: g), x)


def test_the_number_of_cotangents_is_that_of_the_outputs_with_gradient() -> None:
    assert gradgradcheck(
        lambda x: (x.exp(), x > 1, x * x), leaf(2), (leaf(2, seed=1), leaf(2, seed=2))
    )
    with pytest.raises(
        ValueError, match="2 outputs of func require grad, but there are 1 grad_outputs"
    ):
        gradgradcheck(lambda x: (x.exp(), x > 1, x * x), leaf(2), leaf(2, seed=1))


def test_torch_says_the_same_of_what_cannot_be_checked() -> None:
    def of(check: Any, make: Any) -> Any:
        with pytest.raises(Exception) as caught:
            check(lambda x: x * 2, make(torch.ones(2, dtype=torch.float64)))
        return told(caught.value)[0]

    assert of(gradcheck, wrap) == of(torch.autograd.gradcheck, lambda t: t) == "ValueError"
