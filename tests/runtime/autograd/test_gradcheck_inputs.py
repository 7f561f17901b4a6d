"""Which inputs, outputs and options gradcheck takes: sparse and MKLDNN tensors, and what
cannot be checked."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import unwrap, wrap
from runtime.autograd import gradcheck, gradgradcheck

from .gradchecks import FAST, GradcheckError, X, hooked, leaf


def test_some_input_must_require_grad() -> None:
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(lambda x: x, wrap(torch.rand(2)), raise_exception=False)


def test_single_precision_warns() -> None:
    x = wrap(torch.rand(2), requires_grad=True)
    with pytest.warns(
        UserWarning,
        match="Input #0 requires gradient and is not a double precision floating point or complex",
    ) as warned:
        assert gradcheck(lambda x: x * 2, x, eps=1e-2, atol=1e-2)
    assert warned[0].filename == __file__  # the caller's line


def test_overlapping_inputs_are_refused() -> None:
    with pytest.raises(RuntimeError, match="The 1th input has a dimension with stride 0"):
        gradcheck(lambda x, y: y, (X, leaf(1).expand(3)), raise_exception=False)
    windows = wrap(torch.rand(4, dtype=torch.float64)).as_strided((3, 2), (1, 1)).requires_grad_()
    with pytest.raises(RuntimeError, match="The 0th input has elements that share memory"):
        gradcheck(lambda x: x * 2, windows)
    apart = wrap(torch.rand(8, dtype=torch.float64)).as_strided((2, 3), (3, 2)).requires_grad_()
    assert gradcheck(lambda x: x * 2, apart)


BETA = pytest.mark.filterwarnings("ignore:Sparse [A-Z]+ tensor support is in beta state")
LAYOUTS = pytest.mark.parametrize(
    "layout",
    [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc],
)


def sparse_leaf(layout: torch.layout, dtype: torch.dtype = torch.float64) -> Any:
    dense = torch.zeros(4, 6, dtype=dtype)
    dense[0, 1], dense[1, 0], dense[1, 3], dense[3, 5] = 2.0, -1.0, 3.0, 0.5
    blocks = (2, 3) if layout in (torch.sparse_bsr, torch.sparse_bsc) else None
    return wrap(dense.to_sparse(layout=layout, blocksize=blocks), requires_grad=True)


@BETA
@FAST
@LAYOUTS
@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_masked_says_whether_unspecified_elements_of_a_sparse_input_count(
    layout: torch.layout, dtype: torch.dtype, fast_mode: bool
) -> None:
    x = sparse_leaf(layout, dtype)
    before = unwrap(x).to_dense()
    for masked in (True, False):
        for masked_grad in (True, False):

            def f(s: Any, y: Any, masked_grad: bool = masked_grad) -> Any:
                return s.to_dense(masked_grad=masked_grad) * y

            right = gradcheck(
                f, (x, leaf(4, 6)), masked=masked, fast_mode=fast_mode, raise_exception=False
            )
            assert right is (masked is masked_grad)
    assert torch.equal(unwrap(x).to_dense(), before)


def test_unspecified_elements_count_by_default() -> None:
    x = sparse_leaf(torch.sparse_coo)
    assert gradcheck(lambda s: s.to_dense(masked_grad=False), x)
    with pytest.raises(
        GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0"
    ):
        gradcheck(lambda s: s.to_dense(masked_grad=True), x)


@pytest.mark.parametrize(
    ("f", "masked"),
    [
        (lambda s: s @ leaf(6, 2), False),
        (lambda s: torch.sum(s * 2), False),
        (lambda s: (s * 2).to_dense(), True),
        (lambda s: s.values().exp(), True),
    ],
    ids=["mm", "sum", "mul", "values"],
)
def test_ops_on_sparse_inputs_are_checked(f: Callable[..., Any], masked: bool) -> None:
    """Which of the two holds is a property of the op's gradient, and as torch's own gradcheck
    finds it for torch's."""
    assert gradcheck(f, sparse_leaf(torch.sparse_coo), masked=masked)
    with pytest.raises(
        (GradcheckError, ValueError),
        match=r"Jacobian mismatch|depends on which elements .* pass masked=True",
    ):
        gradcheck(f, sparse_leaf(torch.sparse_coo), masked=not masked)


@BETA
@FAST
def test_a_wrong_gradient_of_a_sparse_input_is_found_and_the_input_restored(
    fast_mode: bool,
) -> None:
    x = sparse_leaf(torch.sparse_csr)
    before = unwrap(x)
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(
            hooked(lambda s: s.to_dense(), lambda g: g * 2), x, masked=True, fast_mode=fast_mode
        )
    assert unwrap(x) is before


def test_batched_gradients_of_a_sparse_input_are_checked() -> None:
    assert gradcheck(
        lambda s: s.to_dense(), sparse_leaf(torch.sparse_coo), masked=True, check_batched_grad=True
    )


@BETA
@FAST
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("masked", [True, False])
def test_second_derivatives_by_a_sparse_input_are_checked(
    layout: torch.layout, masked: bool, fast_mode: bool
) -> None:
    def cubed(s: Any) -> Any:
        return s.to_dense(masked_grad=masked) ** 3

    def falsified(s: Any) -> Any:
        dense = s.to_dense(masked_grad=masked)
        return dense**2 * dense.detach()

    assert gradgradcheck(cubed, sparse_leaf(layout), masked=masked, fast_mode=fast_mode)
    assert not gradgradcheck(
        falsified, sparse_leaf(layout), masked=masked, fast_mode=fast_mode, raise_exception=False
    )


@FAST
def test_mkldnn_inputs_are_checked(fast_mode: bool) -> None:
    x = wrap(torch.rand(3, 2).to_mkldnn(), requires_grad=True)
    for f, right in (
        (lambda m: m.to_dense() * 2, True),
        (hooked(lambda m: m.to_dense(), lambda g: g * 3), False),
    ):
        with pytest.warns(
            UserWarning, match="Input #0 requires gradient and is not a double precision"
        ):
            assert (
                gradcheck(f, x, eps=1e-2, atol=1e-1, fast_mode=fast_mode, raise_exception=False)
                is right
            )


@pytest.mark.parametrize(
    ("x", "complaint"),
    [
        (
            sparse_leaf(torch.sparse_coo),
            (
                r"^Sparse inputs are not support.*Input #0 has layout "
                r"torch.sparse_coo.*pass x\.to_dense\(\)"
            ),
        ),
        (
            wrap(torch.ones(1).to_mkldnn(), requires_grad=True),
            r"^MKLDNN inputs are not support.*pass x\.to_dense\(\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient")
def test_forward_mode_takes_dense_inputs_only(x: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        gradcheck(lambda s: s.to_dense(), x, check_forward_ad=True)


def test_an_uncoalesced_input_and_a_sparse_output_are_refused() -> None:
    twice = torch.sparse_coo_tensor(
        torch.tensor([[0, 0]]), torch.ones(2, dtype=torch.float64), (2,), check_invariants=True
    )
    with pytest.raises(
        ValueError, match=r"input #0 may specify an element twice; pass x\.coalesce\(\)"
    ):
        gradcheck(lambda s: s.to_dense(), wrap(twice, requires_grad=True), masked=True)
    with pytest.raises(ValueError, match="Sparse output is not supported at gradcheck yet"):
        gradcheck(lambda s: s, sparse_leaf(torch.sparse_coo))


def test_functions_must_return_tensors() -> None:
    with pytest.raises(TypeError, match="there is a float among them"):
        gradcheck(lambda x: (x, 3.0), X)
    with pytest.raises(ValueError, match="no output of func requires grad"):
        gradgradcheck(lambda x: x.detach(), X)


@FAST
@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_outputs_may_not_change_their_kind_with_the_inputs(change: str, fast_mode: bool) -> None:
    def f(x: Any) -> Any:
        if bool((x > 1).any()):
            return torch.cat([x, x]) if change == "shape" else x.float()
        return x * 1

    x = wrap(torch.ones(2, dtype=torch.float64), requires_grad=True)
    with pytest.raises(
        AssertionError,
        match=(
            f"return outputs with the same {change} when inputs are perturbed.* by 1e-06, but got: "
        ),
    ):
        gradcheck(f, x, fast_mode=fast_mode)


def test_errors_of_the_function_are_not_swallowed() -> None:
    def broken(x: Any) -> Any:
        raise RuntimeError("not a GradcheckError")

    with pytest.raises(RuntimeError, match="not a GradcheckError"):
        gradcheck(broken, X, raise_exception=False)


@pytest.mark.parametrize(
    ("call", "options", "message"),
    [
        (
            gradcheck,
            {"check_backward_ad": False},
            "at least one of check_forward_ad or check_backward_ad",
        ),
        (
            gradcheck,
            {"check_backward_ad": False, "check_forward_ad": True, "check_batched_grad": True},
            "check_batched_grad=True requires check_backward_ad",
        ),
        (
            gradcheck,
            {"check_batched_forward_grad": True},
            "check_batched_forward_grad=True requires check_forward_ad",
        ),
        (
            gradgradcheck,
            {"check_rev_over_rev": False},
            "at least one of check_fwd_over_rev or check_rev_over_rev",
        ),
        (
            gradgradcheck,
            {"check_rev_over_rev": False, "check_fwd_over_rev": True},
            "check_undefined_grad=True requires check_rev_over_rev",
        ),
    ],
)
def test_options_that_exclude_each_other(
    call: Callable[..., bool], options: Any, message: str
) -> None:
    with pytest.raises(AssertionError, match=message):
        call(lambda x: x * 2, X, **options)
