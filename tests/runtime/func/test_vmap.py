"""vmap: arguments, errors, randomness, fallback."""

import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import runtime.func
from runtime.errors import BatchingError, EscapedValue, MissingRule
from runtime.func import grad, vmap
from runtime.func.batch import (
    current_fallback_policy,
    fallback_policy,
    fallbacks,
    set_fallback_policy,
)
from tests.runtime.unheard import unheard_op


@pytest.mark.parametrize("in_dims", [(0, 0), (1, None), (-1, 1), (None, -1)])
@pytest.mark.parametrize("out_dims", [0, 1, -1])
def test_dims(in_dims: Any, out_dims: int) -> None:
    x, y = torch.randn(3, 3, 3), torch.randn(3, 3, 3)

    def f(x: Any, y: Any) -> Any:
        return x * y.sin()

    torch.testing.assert_close(
        vmap(f, in_dims, out_dims)(x, y), torch.func.vmap(f, in_dims, out_dims)(x, y)
    )


@pytest.mark.parametrize("chunk", [None, 1, 2, 5, 9])
def test_trees_and_chunks(chunk: int | None) -> None:
    args = {"a": torch.randn(5, 2), "b": [torch.randn(2, 5), 3]}

    def f(tree: Any) -> Any:
        return tree["a"] * tree["b"][0], {"sum": tree["a"].sum() * tree["b"][1]}

    dims = ({"a": 0, "b": [1, None]},)
    found = vmap(f, in_dims=dims, out_dims=(1, 0), chunk_size=chunk)(args)
    torch.testing.assert_close(found, torch.func.vmap(f, in_dims=dims, out_dims=(1, 0))(args))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda x: vmap(torch.sin, in_dims=2)(x),
            "Got in_dim=2 for some input, but that input is a Tensor of dimensionality 2",
        ),
        (
            lambda x: vmap(torch.sin, in_dims=(0, 0))(x),
            "in_dims is not compatible with the structure of `inputs`",
        ),
        (
            lambda x: vmap(torch.add, in_dims=(0, 1))(x, x),
            "Expected all tensors to have the same size in the mapped dimension",
        ),
        (
            lambda x: vmap(torch.mul, in_dims=(0, 0))(x, 2),
            "Got in_dim=0 for an input but the input is of type",
        ),
        (lambda x: vmap(torch.sin, in_dims=(None,))(x), "at least one input"),
        (lambda x: vmap(lambda x: (x, 1))(x), "must only return Tensors"),
        (
            lambda x: vmap(torch.sin, out_dims=None)(x),
            "can not return a BatchedTensor when out_dim is None",
        ),
        (lambda x: vmap(torch.sin, chunk_size=0)(x), "chunk_size should be None or greater than 0"),
        (lambda x: vmap(torch.sin, randomness="some")(x), "Only allowed values for randomness"),
        (lambda x: vmap(lambda x: x.sum().item())(x), r"you're calling \.item\(\) on a Tensor"),
        (
            lambda x: vmap(lambda x: x if x.sum() > 0 else -x)(torch.stack([x[0], -x[0]])),
            r"data-dependent control flow",
        ),
        (lambda x: vmap(lambda x: torch.zeros(3).add_(x))(x), "inplace arithmetic"),
        (
            lambda x: vmap(lambda x: x + torch.rand(3))(x),
            "called random operation while in randomness error mode",
        ),
        (
            lambda x: vmap(torch.rand_like)(x),
            "called random operation while in randomness error mode",
        ),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=message):
        call(torch.randn(2, 3))


def test_randomness() -> None:
    x = torch.zeros(4, 3)
    for f in (lambda x: x + torch.rand(3), torch.rand_like):
        same = vmap(f, randomness="same")(x)
        assert same.shape == (4, 3) and (same == same[0]).all()
        different = vmap(f, randomness="different")(x)
        assert different.shape == (4, 3) and not (different[0] == different[1]).all()


def test_in_place_on_batched_values() -> None:
    x = torch.randn(2, 3)
    y = torch.randn(2, 3)

    def f(x: Any, y: Any) -> Any:
        z = x.clone()
        z[0] = y[1]
        z.add_(y).mul_(2)
        return z

    torch.testing.assert_close(
        vmap(f)(x, y), torch.stack([f(a, b) for a, b in zip(x, y, strict=True)])
    )


def sum_along(x: torch.Tensor, *, start: torch.Tensor) -> torch.Tensor:
    return start + x.cumsum(0)


SUM_ALONG = "(Tensor x, *, Tensor start) -> Tensor"
looped = unheard_op(SUM_ALONG, sum_along)


@pytest.fixture
def run_sum() -> Any:
    """An op without a record, and so without a batch rule, that no warning has named."""
    return unheard_op(SUM_ALONG, sum_along)


def test_an_op_without_batch_rule_loops_warns_once_counts_and_can_raise(run_sum: Any) -> None:
    name = str(run_sum.default)
    x, start = torch.randn(3, 8), torch.randn(3)
    with pytest.warns(
        UserWarning, match=rf"{re.escape(name)} has no batch rule.*loop over 3 elements"
    ) as caught:
        found = vmap(lambda x, s: run_sum(x, start=s))(x, start)
    assert [warning.filename for warning in caught] == [__file__], (
        "the warning points at the caller's line, not into a library"
    )
    torch.testing.assert_close(found, start[:, None] + x.cumsum(1))
    vmap(lambda x: run_sum(x, start=start[0]))(x)  # a second warning would be an error here
    assert fallbacks[name] == 2
    with (
        fallback_policy("raise"),
        pytest.raises(MissingRule, match=f"{re.escape(name)} has no batch rule"),
    ):
        vmap(lambda x: run_sum(x, start=start[0]))(x)


def test_an_in_place_op_loops_no_more_silently_than_another() -> None:
    run_along_ = unheard_op("(Tensor(a!) x) -> Tensor(a!)", lambda x: x.cumsum_(0))

    def f(x: Any) -> Any:
        y = x.clone()
        run_along_(y)
        return y

    name = str(run_along_.default)
    x = torch.randn(3, 8)
    with pytest.warns(UserWarning, match=f"{re.escape(name)} has no batch rule"):
        torch.testing.assert_close(vmap(f)(x), x.cumsum(1))
    assert fallbacks[name] == 1
    with (
        fallback_policy("raise"),
        pytest.raises(MissingRule, match=f"{re.escape(name)} has no batch rule"),
    ):
        vmap(f)(x)


def test_the_fallback_policy_is_the_threads_and_ends_with_its_block(run_sum: Any) -> None:
    x = torch.randn(3, 8)
    loop = vmap(lambda x: run_sum(x, start=x[0]))
    with warnings.catch_warnings(), ThreadPoolExecutor(1) as pool:
        warnings.simplefilter("ignore")
        with pytest.raises(ZeroDivisionError), fallback_policy("raise"):
            assert current_fallback_policy() == "raise"
            torch.testing.assert_close(pool.submit(loop, x).result(), x.cumsum(1) + x[:, :1])
            raise ZeroDivisionError
        loop(x)
    assert current_fallback_policy() == "warn"


def test_a_silent_policy_within_a_block_is_back_after_a_block_inside(run_sum: Any) -> None:
    x = torch.randn(3, 8)
    loop = vmap(lambda x: run_sum(x, start=x[0]))
    with fallback_policy("silent"):
        loop(x)  # a warning would be an error here
        with fallback_policy("raise"), pytest.raises(MissingRule):
            loop(x)
        loop(x)
    assert current_fallback_policy() == "warn"


def test_a_policy_of_another_name_is_refused() -> None:
    with pytest.raises(
        ValueError, match="fallback policy must be 'warn', 'silent' or 'raise', got 'never'"
    ):
        set_fallback_policy("never")


def test_a_value_that_outlives_its_transform_says_so() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x)
        return x.sum()

    x = torch.randn(3)
    vmap(f)(x.expand(2, 3))
    runtime.func.grad(f)(x)
    runtime.func.jvp(f, (x,), (x,))
    for value in kept:
        with pytest.raises(EscapedValue, match="after the transform has returned"):
            value + 1


def test_a_missing_derivative_names_the_op() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    y = torch.histc(x * 1, 2)
    with pytest.raises(MissingRule, match=r"aten\.histc\.default has no vjp rule"):
        y.sum().backward()
    with pytest.raises(MissingRule, match=r"aten\.histc\.default has no jvp rule"):
        runtime.func.jvp(lambda x: torch.histc(x, 2), (torch.ones(2),), (torch.ones(2),))


def test_scalars_of_a_batch_promote_as_scalars() -> None:
    x = torch.randn(3, 2, dtype=torch.float32)
    s = torch.randn(3, dtype=torch.float64)
    found = vmap(torch.mul)(x, s)
    assert found.dtype is torch.func.vmap(torch.mul)(x, s).dtype is torch.float32


def test_plain_tensors_inside_vmap_are_read_with_their_conjugate_bit() -> None:
    a = torch.randn(3, 2, dtype=torch.complex128)
    x = torch.ones(2, 3, dtype=torch.complex128)
    batched = vmap(lambda v: v.sum() * 0 + torch.linalg.pinv(a.mH), randomness="different")(x)
    torch.testing.assert_close(batched[0], torch.linalg.pinv(a.mH))


def test_equal_answers_where_all_elements_agree() -> None:
    """ATen's own checks of values (of cov and istft) pass under vmap as they do element by element;
    a batch that disagrees is refused."""

    def same(x: Any) -> Any:
        return x * 2 if torch.equal(x, x.flip(0)) else x

    x, y = torch.tensor([[1.0, 4.0], [9.0, 16.0]]), torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    torch.testing.assert_close(vmap(same)(x), x)
    torch.testing.assert_close(vmap(same)(y), y * 2)
    torch.testing.assert_close(vmap(vmap(same))(y.unsqueeze(0)), y.unsqueeze(0) * 2)
    with pytest.raises(BatchingError, match=r"torch\.equal"):
        vmap(same)(torch.tensor([[1.0, 1.0], [1.0, 2.0]]))
    z = torch.tensor([[1.0, 1.0, 2.0], [3.0, 3.0, 4.0]])
    last = torch.tensor([0.0, 0.0, 1.0])
    # one number of each element differs
    torch.testing.assert_close(vmap(lambda a: a if torch.equal(a, a + last) else -a)(z), -z)
    weights = torch.tensor([[1, 2, 1], [3, 1, 1]])
    data = torch.randn(2, 3)
    expected = torch.stack([torch.cov(data, fweights=w) for w in weights])
    torch.testing.assert_close(vmap(lambda w: torch.cov(data, fweights=w))(weights), expected)


def test_resizing_is_refused() -> None:
    with pytest.raises(BatchingError, match="number of elements"):
        vmap(lambda x: x.clone().resize_(2))(torch.ones(3, 5))


def test_a_result_that_lies_otherwise_in_memory() -> None:
    """ATen composes kron with _unsafe_view on a product that is contiguous for one element, but not
    for a transposed batch."""
    x, y = torch.randn(2, 3), torch.randn(4, 5, 3)
    expected = torch.stack([torch.kron(x, y[..., i]) for i in range(3)])
    torch.testing.assert_close(vmap(torch.kron, (None, -1))(x, y), expected)


@pytest.mark.parametrize(
    "draw",
    [
        torch.rand_like,
        lambda p: torch.normal(p, 1.0),
        lambda p: torch.normal(0.0, p),
        lambda p: torch.bernoulli(p),
    ],
)
def test_a_draw_from_what_the_elements_share(draw: Any) -> None:
    """Under randomness="different" each element has a draw of its own, from a tensor that is
    not batched too."""
    p = torch.full((50,), 0.5)
    a, b = vmap(lambda _: draw(p), randomness="different")(torch.ones(2))
    assert a.shape == (50,) and not torch.equal(a, b)


@pytest.mark.parametrize("in_dims", [(None, 0), (0, 0)])
def test_a_fill_with_a_batched_value_leaves_what_it_fills_alone(in_dims: Any) -> None:
    x, value = torch.zeros(2, 3), torch.tensor([1.0, 2.0])
    filled = vmap(torch.ops.aten.fill.Tensor, in_dims)(x, value)
    assert filled.shape == ((2, 3) if in_dims[0] == 0 else (2, 2, 3))
    assert all((row == v).all() for row, v in zip(filled, value, strict=True))
    assert not x.any()


def test_a_masked_softmax_of_nothing_is_nan_under_vmap_too() -> None:
    x, mask = torch.zeros(2, 3, 4), torch.ones(3, 4, dtype=torch.bool)
    found = vmap(lambda x: torch.ops.aten._masked_softmax(x, mask, 1, 2))(x)
    assert found.isnan().all() and torch.ops.aten._masked_softmax(x[0], mask, 1, 2).isnan().all()


@pytest.mark.filterwarnings("ignore:.*has no batch rule:UserWarning")
def test_a_number_about_the_elements_is_the_one_on_which_they_agree() -> None:
    counted = vmap(lambda x: x * x.to_sparse()._nnz())(torch.eye(3).expand(2, 3, 3).clone())
    torch.testing.assert_close(counted, 3 * torch.eye(3).expand(2, 3, 3))
    with pytest.raises(
        BatchingError, match=r"_nnz.* answers differently for the elements of the batch: \[3, 9\]"
    ):
        vmap(lambda x: x.to_sparse()._nnz())(torch.stack([torch.eye(3), torch.ones(3, 3)]))


@pytest.mark.filterwarnings("ignore:.*has no batch rule:UserWarning")
def test_whether_an_element_is_coalesced_is_refused_by_name() -> None:
    with pytest.raises(BatchingError, match="is_coalesced"):
        vmap(lambda x: x.to_sparse().is_coalesced())(torch.eye(3).expand(2, 3, 3).clone())


def test_a_number_on_which_all_elements_agree_may_be_asked_for() -> None:
    x = torch.arange(6.0).reshape(3, 2)
    one = torch.ones(3)
    torch.testing.assert_close(vmap(lambda x, a: x * a.item())(x, one * 2), x * 2)
    torch.testing.assert_close(vmap(lambda x, a: x * (float(a) + int(a)))(x, one), x * 2)
    torch.testing.assert_close(vmap(lambda x, a: x if a > 0 else -x)(x, one), x)
    torch.testing.assert_close(vmap(lambda x, a: x if a.reshape(1) < 0 else -x)(x, one), -x)
    torch.testing.assert_close(vmap(lambda x, a: x[: int(a)])(x, one), x[:, :1])
    torch.testing.assert_close(vmap(lambda x, a: x * a.item().imag)(x, one * 2j), x * 2)
    nested = vmap(lambda y: vmap(lambda x, a: x * a.item() if y.isfinite() else x)(x, one * 2))(one)
    torch.testing.assert_close(nested, (x * 2).expand(3, 3, 2))
    torch.testing.assert_close(
        vmap(grad(lambda x, a: (x * a.item()).sum()))(x, one * 2), torch.full_like(x, 2)
    )


@pytest.mark.filterwarnings("ignore:.*has no batch rule:UserWarning")
def test_a_batch_of_one_element_always_agrees() -> None:
    x = torch.eye(3).unsqueeze(0)
    torch.testing.assert_close(
        vmap(lambda x, a: x * a.item() if a > 1 else x)(x, torch.tensor([2.0])), 2 * x
    )
    torch.testing.assert_close(vmap(lambda x: x * x.to_sparse()._nnz())(x), 3 * x)


@pytest.mark.parametrize(
    "numbers",
    [
        torch.tensor([1.0, 2.0]),
        torch.tensor([0.0, -0.0]),
        torch.tensor([float("nan")] * 2),
        torch.tensor([1 + 1j, 1 - 1j]),
        torch.tensor([True, False]),
        torch.ones(0),
    ],
)
def test_a_number_that_differs_is_refused_with_the_line_that_asked(numbers: torch.Tensor) -> None:
    with pytest.raises(BatchingError, match=r"item\(\) on a Tensor(.|\n)*test_vmap"):
        vmap(lambda a: a.item())(numbers)
    with pytest.raises(BatchingError, match=r"data-dependent control flow(.|\n)*test_vmap"):
        vmap(lambda a: a if a else a + 1)(numbers)
    with pytest.raises(BatchingError, match=r"tolist(.|\n)*test_vmap"):
        vmap(lambda a: a.tolist())(numbers)
    with pytest.raises(
        RuntimeError, match="Boolean value of Tensor with more than one value is ambiguous"
    ):
        vmap(lambda a: a if a.expand(2) else a + 1)(numbers)
    with pytest.raises(BatchingError, match="vmap: It looks like"):
        vmap(lambda _: vmap(lambda a: a.item())(numbers))(torch.ones(2))


def test_one_out_dim_in_a_tuple_fits_one_result() -> None:
    """As torch's vmap; with no result to fit, or with another collection, it is an error."""
    x = torch.randn(2, 3)
    for chunk in (None, 1):
        torch.testing.assert_close(
            vmap(lambda x: x * 2, out_dims=(1,), chunk_size=chunk)(x), 2 * x.mT
        )
        torch.testing.assert_close(
            vmap(lambda x: (x * 2,), out_dims=(1,), chunk_size=chunk)(x), (2 * x.mT,)
        )
    constant = torch.ones(3)
    torch.testing.assert_close(vmap(lambda x: constant, out_dims=(None,))(x), constant)
    same: Any = lambda x: x  # noqa: E731
    for out_dims, f in [
        ((1,), lambda x: (x, x)),
        ((1,), lambda x: [x]),
        ((1,), lambda x: 5),
        ([1], same),
        ((1, 1), same),
    ]:
        with pytest.raises(
            ValueError, match="out_dims is not compatible with the structure of `outputs`"
        ):
            vmap(f, out_dims=out_dims)(x)
    with pytest.raises(
        ValueError, match="`out_dims` must be an int, None or a collection of these"
    ):
        vmap(lambda x: x, out_dims=((1,),))(x)


@pytest.mark.parametrize("chunk", [None, 1])
def test_what_is_not_batched_is_returned_as_it_is_or_repeated(chunk: int | None) -> None:
    x, c = torch.randn(2, 3), torch.arange(4.0)
    options: Any = {"chunk_size": chunk}
    a, b, n, word, nothing = vmap(
        lambda x: (x, c, 5, "word", None), out_dims=(0, None, None, None, None), **options
    )(x)
    assert b is c and (n, word, nothing) == (5, "word", None)
    torch.testing.assert_close(a, x)
    for d in (0, 1, -1, -2):
        torch.testing.assert_close(
            vmap(lambda x: c, out_dims=d, **options)(x), torch.stack([c, c], d)
        )
    found = vmap(lambda x: {"a": (x, c), "b": [x]}, out_dims={"a": (-1, None), "b": 1}, **options)(
        x
    )
    torch.testing.assert_close(found, {"a": (x.mT, c), "b": [x.mT]})
    for d in (2, -3):
        with pytest.raises(
            IndexError, match=f"out_dim {d} is out of range for an output with 2 dimensions"
        ):
            vmap(lambda x: c, out_dims=d, **options)(x)
    with pytest.raises(ValueError, match="can not return a BatchedTensor when out_dim is None"):
        vmap(lambda x: (x, c), out_dims=(None, None), **options)(x)
    with pytest.raises(ValueError, match="must only return Tensors, got type <class 'int'>"):
        vmap(lambda x: (x, 5), **options)(x)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.reshape(-1),
        lambda x: x.view(3, -1).sin(),
        lambda x: torch.fft.rfft(x),
        lambda x: torch.cov(x),
        lambda x: x.index_select(1, torch.tensor([0, 1])),
        lambda x: torch.bucketize(x, torch.tensor([0.0, 1.0])),
        lambda x: looped(x[0], start=x[0, 0]),
        lambda x: torch.meshgrid(x[0], x[1], indexing="ij"),
        lambda x: torch.nn.functional.cross_entropy(x, x.softmax(1)),
        lambda x: x.clone().index_add_(0, torch.tensor([1]), x[:1]),
        lambda x: torch.linalg.inv(x @ x.mT),
        grad(lambda x: x.reshape(-1).sin().sum()),
    ],
)
def test_a_batch_of_no_elements_has_the_shapes_of_one(f: Any) -> None:
    one, found = f(torch.randn(3, 4)), vmap(f)(torch.empty(0, 3, 4))
    for a, b in zip(
        one if isinstance(one, tuple) else [one],
        found if isinstance(found, tuple) else [found],
        strict=True,
    ):
        assert (b.shape, b.dtype) == ((0, *a.shape), a.dtype)
    nested = vmap(vmap(f))(torch.empty(2, 0, 3, 4))
    assert (nested[0] if isinstance(nested, tuple) else nested).shape[:2] == (2, 0)


def test_what_fails_for_one_element_fails_for_none() -> None:
    x = torch.empty(0, 3, 4)
    with pytest.raises(RuntimeError, match=r"shape .\[5, -1\]. is invalid"):
        vmap(lambda x: x.reshape(5, -1))(x)
    with pytest.raises(BatchingError, match=r"equal\.default reads the elements of an empty batch"):
        vmap(lambda x: x if torch.equal(x, x + 1) else -x)(x)
    with pytest.raises(RuntimeError, match="random"):
        vmap(lambda x: torch.bernoulli(x.reshape(-1)))(x)


@pytest.mark.parametrize("dim", ["0", 1.0])
def test_a_dimension_to_map_over_is_an_integer(dim: Any) -> None:
    with pytest.raises(ValueError, match="in_dim must be either an integer"):
        vmap(torch.add, in_dims=(dim, None))(torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("in_dims", [[0], "0", None, 1.0, {"x": 0}])
def test_in_dims_are_an_integer_or_a_tuple(in_dims: Any) -> None:
    with pytest.raises(ValueError, match="expected `in_dims` to be int or a"):
        vmap(torch.sin, in_dims=in_dims)(torch.ones(2))


def test_there_must_be_something_to_map_over() -> None:
    with pytest.raises(ValueError, match="got no inputs"):
        vmap(lambda: torch.ones(2))()
    for args in ((torch.ones(()),), (torch.ones(2), torch.ones(()))):
        with pytest.raises(ValueError, match="that input is a Tensor of dimensionality 0"):
            vmap(lambda *a: a[0])(*args)
    with pytest.raises(ValueError, match=r"Got in_dim=-3 for some input, but .* -2 <= in_dim < 2"):
        vmap(torch.sin, in_dims=-3)(torch.ones(2, 2))


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_any_dimension_may_be_mapped_and_be_that_of_the_output(dim: int) -> None:
    x = torch.randn(2, 3, 4)
    for out in range(-3, 3):
        for chunk in (None, 1, x.shape[dim]):
            found = vmap(lambda x: x.cumsum(0) * 2, dim, out, chunk_size=chunk)(x)
            torch.testing.assert_close(
                found, torch.func.vmap(lambda x: x.cumsum(0) * 2, dim, out)(x)
            )


def test_what_is_the_same_for_all_parts_is_that_of_the_first() -> None:
    count = iter(range(10))
    _, number = vmap(lambda x: (x, next(count)), out_dims=(0, None), chunk_size=2)(torch.ones(5))
    assert (number, next(count)) == (0, 3)


def test_an_integer_is_not_cast_by_a_write_in_place() -> None:
    with pytest.raises(RuntimeError, match="can't be cast to the desired output type"):
        vmap(lambda x, y: x.clone().add_(y))(torch.arange(3), torch.rand(3))


@pytest.mark.parametrize("write", ["round_", "detach_", "zero_", "sin_", "t_", "relu_"])
def test_an_op_in_place_returns_its_argument_at_every_level(write: str) -> None:
    op = getattr(torch.ops.aten, write).default

    def f(x: Any) -> Any:
        y = x * 1
        assert op(y) is y
        return y.sum()

    x = torch.randn(2, 3, 3)
    vmap(f)(x)
    transforms: list[Any] = [
        runtime.func.grad(f),
        runtime.func.functionalize(f),
        lambda x: runtime.func.jvp(f, (x,), (x,)),
    ]
    for transform in transforms:
        transform(x[0])
        vmap(transform)(x)


def test_one_part_of_all_elements_is_the_batch_itself() -> None:
    x = torch.randn(3, 2)
    for chunk in (None, 3, 4):
        assert vmap(lambda x: x, chunk_size=chunk)(x).data_ptr() == x.data_ptr()
    assert vmap(lambda x: x, chunk_size=2)(x).data_ptr() != x.data_ptr()


def test_a_vector_of_a_batch_and_a_number_promote_as_the_elements_do() -> None:
    for scalar in (torch.tensor(2.0, dtype=torch.float64), torch.tensor(2), 2.0):
        for x in (torch.ones(3), torch.ones(3, 2), torch.arange(3)):
            fs: list[Any] = [
                lambda x: x * scalar,  # noqa: B023
                lambda x: torch.add(scalar, x),  # noqa: B023
                lambda x: torch.where(x > 0, x, scalar),  # noqa: B023
            ]
            for f in fs:
                torch.testing.assert_close(vmap(f)(x), torch.stack([f(e) for e in x]))
