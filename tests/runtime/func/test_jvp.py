"""The dual level, branch by branch: how rules are chosen and called, what writes do to tangents,
and forward mode switched off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime.func
from runtime.autograd import forward_ad as fw
from runtime.errors import InplaceError, MissingRule
from runtime.extend import linear, register
from runtime.func import jacfwd, jvp, linearize, vmap
from runtime.rules import RECORDS

aten = torch.ops.aten
X = torch.tensor([[1.0, -2.0, 3.0], [-4.0, 5.0, 6.0]], dtype=torch.float64)
T = torch.tensor([[0.5, 1.5, 2.5], [3.5, 4.5, -5.5]], dtype=torch.float64)
SINGLE = torch.tensor([[2.0], [3.0]])  # of float32
SQUARE = X @ X.mT + torch.eye(2, dtype=torch.float64)


def tree_map(f: Callable[[Any], Any], tree: Any) -> Any:
    return torch.utils._pytree.tree_map(f, tree)


def differences(f: Callable[..., Any], primals: Any, tangents: Any) -> Any:
    """The derivative of ``f`` along ``tangents``, by central differences."""
    step = 1e-6
    ahead, behind = (
        f(*(p + sign * step * t for p, t in zip(primals, tangents, strict=True)))
        for sign in (1, -1)
    )
    return torch.utils._pytree.tree_map(lambda a, b: (a - b) / (2 * step), ahead, behind)


def check(f: Callable[..., Any], primals: Any, tangents: Any, expected: Any = None) -> None:
    """Values and tangents are those of ``f``, or ``expected``, also for a batch of tangents, which
    gives what a loop over it gives."""
    value, tangent = expected or (f(*primals), differences(f, primals, tangents))
    found = jvp(f, primals, tangents)
    torch.testing.assert_close(found[0], value)
    torch.testing.assert_close(found[1], tangent, rtol=1e-5, atol=1e-5)
    batch = tree_map(lambda t: torch.stack([t, -2 * t]), tangents)
    each = vmap(lambda *t: jvp(f, primals, t)[1])(*batch)
    torch.testing.assert_close(
        each, tree_map(lambda t: torch.stack([t, -2 * t]), tangent), rtol=1e-5, atol=1e-5
    )


# --- rules that are made of the pullback


TRANSPOSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "dist": (torch.dist, (X, T)),
    "dist to itself": (lambda x: torch.dist(x, x.detach(), 0), (X,)),
    "cdist": (torch.cdist, (X, T)),
    "a norm that counts": (lambda x, y: torch.cdist(x, y, p=0.0), (X, T)),
    "pdist": (torch.pdist, (X,)),
    "aminmax": (lambda x: tuple(torch.aminmax(x, dim=1)), (X,)),
    "the smaller of aminmax": (lambda x: torch.aminmax(x).min, (X,)),
    "var_mean": (lambda x: torch.var_mean(x, 1), (X,)),
    "the mean of var_mean": (lambda x: torch.var_mean(x, 0, correction=0)[1], (X,)),
    "std_mean": (torch.std_mean, (X,)),
    "cholesky_solve": (lambda b, c: torch.cholesky_solve(b, c.tril()), (X, SQUARE)),
    "cholesky_inverse": (lambda c: torch.cholesky_inverse(c.tril()), (SQUARE,)),
    "lu_solve, by the right side": (
        lambda b: torch.linalg.lu_solve(*torch.linalg.lu_factor(SQUARE), b),
        (X,),
    ),
    "scatter_reduce": (
        lambda x, y: x.scatter_reduce(1, torch.tensor([[0, 0, 2], [1, 1, 1]]), y, "prod"),
        (X, T),
    ),
    "index_reduce": (lambda x, y: x.index_reduce(0, torch.tensor([1, 1]), y, "mean"), (X, T)),
    "grid_sample": (
        lambda x, g: F.grid_sample(x[None, None], g[None, :, None] / 9, align_corners=True),
        (X, T[:, :2]),
    ),
    "the nearest of a grid": (
        lambda x, g: F.grid_sample(x[None, None], g[None, None] / 9, "nearest", align_corners=True),
        (X, T[:, :2]),
    ),
    "packing": (
        lambda x: (
            torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True).data
        ),
        (X,),
    ),
}


@pytest.mark.filterwarnings("ignore:index_reduce.*is in beta", "ignore:.*has no batch rule")
@pytest.mark.parametrize("name", TRANSPOSED)
def test_a_pullback_transposed_is_the_pushforward(name: str) -> None:
    f, primals = TRANSPOSED[name]
    tangents = tuple(p.flip(0).cos() for p in primals)
    check(f, primals, tangents)
    torch.testing.assert_close(linearize(f, *primals)[1](*tangents), jvp(f, primals, tangents)[1])
    if len(primals) == 2:  # along one argument alone
        a, b = primals
        check(lambda x: f(x, b), (a,), tangents[:1])
        check(lambda y: f(a, y), (b,), tangents[1:])


def test_a_second_pushforward_runs_through_a_transposed_pullback() -> None:
    f: Any = lambda x: torch.var_mean(x, 1)[0] * torch.dist(x, T)  # noqa: E731
    torch.testing.assert_close(jacfwd(jacfwd(f))(X), torch.func.jacrev(torch.func.jacrev(f))(X))
    torch.testing.assert_close(
        runtime.func.jacrev(jacfwd(f))(X), torch.func.jacrev(torch.func.jacrev(f))(X)
    )


# --- arguments


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: torch.cat([x, y, X]),
        lambda x, y: torch.cat([X, x * y, SINGLE], 1),
        lambda x, y: torch.stack([y, X, x]),
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: torch.addmm(x[:, :2], y, x.mT),
        lambda x, y: torch.clamp(x, min=y),
        lambda x, y: torch.clamp(x, max=y),
        lambda x, y: torch.clamp(x, min=X - 1, max=y),
        lambda x, y: torch.bmm(x[None], y.mT[None]) * torch.bmm(X[None], x.mT[None]),
        lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, X + 1, y),
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
        lambda x, y: F.binary_cross_entropy_with_logits(x, y),
        lambda x, y: F.embedding_bag(
            torch.tensor([[0, 1, 1]]), x, per_sample_weights=y[:1], mode="sum"
        ),
        lambda x, y: (
            torch.index_put(x, (torch.tensor([0]),), y[1:]),
            x.max(1)[0],
            y.sort(1).values,
        ),
        lambda x, y: (
            torch.special.xlogy(x.abs(), y.abs())
            + torch.atan2(y, x)
            + x.abs() ** y
            + torch.pow(2.0, y)
        ),
    ],
)
def test_every_argument_gives_its_part_of_the_tangent(f: Any) -> None:
    check(f, (X, T), (T.cos(), X.sin()))
    check(lambda x: f(x, T), (X,), (T.cos(),))
    check(lambda y: f(X, y), (T,), (X.sin(),))


def test_a_tangent_of_an_omitted_weight_is_none_and_of_a_given_one_is_refused() -> None:
    p, target = X.sigmoid(), T.sigmoid()
    found = jvp(lambda p, w: F.binary_cross_entropy(p, target, w.detach()), (p, p), (T, T))
    torch.testing.assert_close(
        found, torch.func.jvp(lambda p: F.binary_cross_entropy(p, target, p.detach()), (p,), (T,))
    )
    with pytest.raises(MissingRule, match=r"weight.*self"):
        jvp(lambda w: F.binary_cross_entropy(p, target, w), (p,), (T,))


torch.library.define("runtime_test_jvp::weighted", "(Tensor x, Tensor? count_t=None) -> Tensor")
torch.library.define("runtime_test_jvp::plus", "(Tensor x, Tensor? y=None) -> Tensor")
torch.library.impl("runtime_test_jvp::weighted", "CompositeExplicitAutograd")(
    lambda x, count_t=None: x * (2 if count_t is None else count_t)
)
torch.library.impl("runtime_test_jvp::plus", "CompositeExplicitAutograd")(
    lambda x, y=None: x * 1 if y is None else x + y
)
torch.library.define("runtime_test_jvp::scaled", "(Tensor x, *, Tensor by) -> Tensor")
torch.library.impl("runtime_test_jvp::scaled", "CompositeExplicitAutograd")(lambda x, *, by: x * by)
OWN = torch.ops.runtime_test_jvp


@pytest.fixture
def library() -> Iterator[None]:
    register(
        "runtime_test_jvp::weighted",
        jvp={"x": lambda x_t, count_t: x_t * (2 if count_t is None else count_t)},
    )
    linear("runtime_test_jvp::plus", {"x": lambda g: g, "y": lambda g: g})
    register("runtime_test_jvp::scaled", decomposition=lambda x, *, by: x * by)
    yield
    for op in (OWN.weighted, OWN.plus, OWN.scaled):
        del RECORDS[op.default]


@pytest.mark.usefixtures("library")
def test_a_keyword_argument_gives_its_part_of_the_tangent_where_the_op_can_be_taken_apart() -> None:
    check(lambda x, y: OWN.scaled(x, by=y), (X, T), (T.cos(), X.sin()))
    check(lambda y: OWN.scaled(X, by=y), (T,), (X.sin(),))


@pytest.mark.usefixtures("library")
def test_optional_arguments_of_a_librarys_op_may_be_left_out() -> None:
    with_both: list[Any] = [
        lambda x: OWN.weighted(x, X),
        lambda x: OWN.plus(x, X),
        lambda x: OWN.plus(X, x),
    ]
    for f in (OWN.weighted, OWN.plus, *with_both):
        torch.testing.assert_close(
            jvp(f, (X,), (T,)), (f(X), differences(f, (X,), (T,))), rtol=1e-5, atol=1e-5
        )
    with pytest.raises(MissingRule, match="count_t"):
        jvp(lambda x: OWN.weighted(X, x), (X,), (T,))


def test_a_value_can_be_read_and_shown_as_a_tensor() -> None:
    seen: list[Any] = []

    def f(x: Any) -> Any:
        seen.extend(
            [
                x.tolist(),
                x.numpy().tolist(),
                x.conj().numpy(force=True).tolist(),
                repr(x),
                repr(x.detach()),
            ]
        )
        with pytest.raises(RuntimeError, match="conj"):
            x.conj().numpy()
        with pytest.raises(RuntimeError, match=r"mutating directly with `\.data`"):
            x.data = x
        return x * x.data

    x = torch.tensor([1.0 + 2j, 3.0])
    _, tangent = jvp(f, (x,), (torch.ones(2),))
    torch.testing.assert_close(tangent, x)  # `.data` is a constant
    assert seen[:3] == [x.tolist(), x.tolist(), x.conj().tolist()]
    assert (
        "DualValue(level=" in seen[3]
        and "primal=tensor([1.+2.j" in seen[3]
        and "tangent=tensor([1.+0.j" in seen[3]
    )
    assert seen[4].endswith("tangent=None)")


# --- writes


def _of_base_and_views(x: Any) -> Any:
    y = x * 1
    row, column = y[0], y[:, 1]
    row.mul_(2)
    column.mul_(row[0])
    y.add_(x)
    return y, row, column, y[1]


def _view_without_a_tangent(x: Any) -> Any:
    y = (x * 1).detach() * 2
    row = y[0]
    row.neg_()
    row.mul_(x[1])
    other = y[1]
    other.zero_()
    other.logical_not_()
    constant = (x * 1).detach()
    constant[0].gt_(x[1])
    return y, row, other, constant


def _chained(x: Any) -> Any:
    y = x * 1
    return y.mul_(2).logical_not_().add_(x).sin_(), y


def _constants_only(x: Any) -> Any:
    y = x.detach().clone()
    return y.mul_(2).add_(1) * x, y


def _part_becomes_constant(x: Any) -> Any:
    y = x * 1
    y[0].gt_(0)
    y[1:].copy_(X[1:])
    return y * x


def _from_another_dtype(x: Any) -> Any:
    y = x.float() * 1
    y.mul_(x.sum())
    y[0].add_(x[1].sum())
    return y


def _of_itself(x: Any) -> Any:
    y = x * 1
    y[:, 1:].mul_(y[:, :1])
    y.addcmul_(y, y, value=0.5)
    y.div_(y[0] + 10)
    return y


def _lists_of_constants(x: Any) -> Any:
    a, b = x * 1, X.clone()
    torch._foreach_mul_([a, b], 2.0)
    return a * b


def _reshaped(x: Any) -> Any:
    y = x * 1
    y.t_().unsqueeze_(0)
    y.mul_(2)
    return y.squeeze_(0).transpose_(0, 1) * x


def _by_out(x: Any) -> Any:
    held = torch.empty_like(X)
    assert torch.sin(x.detach(), out=held) is held
    return held * x


@pytest.mark.parametrize(
    "f",
    [
        _of_base_and_views,
        _chained,
        _part_becomes_constant,
        _of_itself,
        _lists_of_constants,
        _reshaped,
    ],
)
def test_a_program_that_writes_has_its_own_derivative(f: Any) -> None:
    check(f, (X,), (T,))


@pytest.mark.parametrize(
    "f", [_view_without_a_tangent, _constants_only, _from_another_dtype, _by_out]
)
def test_a_program_that_writes_to_constants_has_torchs_derivative(f: Any) -> None:
    check(f, (X,), (T,), torch.func.jvp(f, (X,), (T,)))


def test_a_captured_tensor_takes_constants_as_they_are() -> None:
    held = torch.zeros_like(X)

    def f(x: Any) -> Any:
        assert held.add_(x.detach()) is held
        assert aten.add_.Tensor(held, 1.0 + 0 * x.detach()) is held
        return x * held

    torch.testing.assert_close(jvp(f, (X,), (T,)), (X * (X + 1), T * (X + 1)))
    torch.testing.assert_close(held, X + 1)
    assert type(held) is torch.Tensor


def test_out_takes_no_result_that_has_a_tangent_and_none_of_another() -> None:
    for f in (
        lambda x: torch.sin(x, out=X.clone()),
        lambda x: torch.sin(X, out=x * 1),
        lambda x: torch.add(X, x, out=X.clone()),
    ):
        with pytest.raises(
            RuntimeError,
            match=(
                r"\w+\(\): functions with out=\.\.\. "
                r"arguments don't support automatic differentiation"
            ),
        ):
            jvp(f, (X,), (T,))


def test_a_write_to_what_a_custom_function_views_is_refused() -> None:
    class Flat(runtime.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            return x.view(-1)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def jvp(ctx: Any, t: Any) -> Any:
            return t.view(-1)

    def writes_to_the_view(x: Any) -> Any:
        return Flat.apply(x * 1).mul_(2)

    def writes_to_its_view(x: Any) -> Any:
        y = x.view(6)[:3] * 1
        return Flat.apply(y.view(3))[1:].mul_(2)

    def reads_it_after_a_write_to_the_base(x: Any) -> Any:
        y = x * 1
        view = Flat.apply(y.view(3, 2))
        y.mul_(2)
        return view * 1

    for f in (writes_to_the_view, writes_to_its_view, reads_it_after_a_write_to_the_base):
        with pytest.raises((RuntimeError, InplaceError), match=r"custom Function|modified"):
            jvp(f, (X,), (T,))
    torch.testing.assert_close(
        jvp(lambda x: Flat.apply(x) * 2, (X,), (T,)), (2 * X.view(-1), 2 * T.view(-1))
    )


# --- forward mode switched off


def _switched_off(lib: Any) -> dict[str, Callable[[Any], Any]]:
    """Programs of which a part runs with forward mode off. ``lib``: forward_ad of torch, or
    ours."""
    off = lib._set_fwd_grad_enabled

    def calls(x: Any) -> Any:
        with off(False):
            y = x * 2
            parts = torch.split(x, 1)
        return y * x, torch.cat(parts) * x, y

    def a_view(x: Any) -> Any:
        with off(False):
            row = x[0]
        return row * 1

    def in_place(x: Any) -> Any:
        y = x * 1
        with off(False):
            assert y.mul_(3) is y
        return y * 1

    def several_in_place(x: Any) -> Any:
        y, z = x * 1, x * 2
        with off(False):
            torch._foreach_mul_([y, z], 3.0)
        return y + z

    def out(x: Any) -> Any:
        held = X.clone()
        with off(False):
            found = torch.sin(x, out=held)
            assert found is held
        return held * x

    return {f.__name__: f for f in (calls, a_view, in_place, several_in_place, out)}


@pytest.mark.parametrize("name", _switched_off(fw))
def test_what_runs_with_forward_mode_off_is_constant(name: str) -> None:
    expected = torch.func.jvp(_switched_off(torch.autograd.forward_ad)[name], (X,), (T,))
    torch.testing.assert_close(jvp(_switched_off(fw)[name], (X,), (T,)), expected)


def test_a_tensor_that_is_reshaped_with_forward_mode_off_has_its_tangent_reshaped() -> None:
    def f(x: Any) -> Any:
        y = x * 1
        with fw._set_fwd_grad_enabled(False):
            assert y.t_() is y
        return y * X.t()

    torch.testing.assert_close(jvp(f, (X,), (T,)), ((X * X).t(), (X * T).t()))


@pytest.mark.parametrize(
    "op",
    [
        lambda x: aten.unbind.int(x),
        lambda x: aten.topk.default(x, 2),
        lambda x: aten.split.Tensor(x, 1),
    ],
)
def test_several_results_come_as_what_the_op_returns(op: Callable[[Any], Any]) -> None:
    kinds: list[type] = []

    def f(x: Any) -> Any:
        kinds.append(type(op(x)))
        return x

    jvp(f, (X,), (T,))
    assert kinds == [type(op(X))]


def test_a_tangent_that_follows_from_the_gradient_alone_needs_no_grad_mode() -> None:
    def f(x: Any) -> Any:
        return torch.cholesky_solve(X[:, :1], torch.linalg.cholesky(x @ x.mT))

    expected = torch.func.jvp(f, (SQUARE,), (SQUARE + 1,))
    with torch.no_grad():
        torch.testing.assert_close(jvp(f, (SQUARE,), (SQUARE + 1,)), expected)


def test_an_in_place_op_without_a_record_is_named() -> None:
    library = torch.library.Library("jvp_tests", "FRAGMENT")
    library.define("doubled_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("doubled_", lambda x: x.mul_(2), "CPU")
    try:
        with pytest.raises(MissingRule, match=r"jvp_tests\.doubled_"):
            jvp(lambda x: torch.ops.jvp_tests.doubled_(x * 1), (X,), (T,))
    finally:
        library._destroy()
