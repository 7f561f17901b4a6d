"""The batch level, call by call. A loop over the elements is the oracle."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from runtime.errors import BatchingError, MissingRule
from runtime.extend import random
from runtime.func import functionalize, grad, jvp, vmap
from runtime.func.batch import fallbacks
from runtime.rules import RECORDS
from tests.runtime.unheard import unheard_op

aten = torch.ops.aten
X = torch.arange(6.0).reshape(2, 3) - 2


def loop(f: Callable[..., Any], *args: Any) -> Any:
    return torch.stack([f(*each) for each in zip(*args, strict=True)])


# --- questions about values


def test_equal_compares_a_batch_with_what_its_elements_share() -> None:
    shared = torch.tensor([1.0, 2.0])
    # one place equal in all
    same, other = shared.expand(3, 2).clone(), torch.tensor([[1.0, 3.0], [1.0, 4.0], [1.0, 5.0]])
    seen: list[bool] = []

    def ask(x: Any) -> Any:
        seen.extend([torch.equal(x, shared), torch.equal(shared, x), torch.equal(x, x)])
        seen.extend([torch.equal(x, shared[:1]), torch.equal(shared, x[:1])])
        return x

    vmap(ask)(same)
    assert seen == [True, True, True, False, False]
    seen.clear()
    vmap(ask)(other)
    assert seen == [False, False, True, False, False]
    vmap(ask)(same[:1])
    assert seen[5:] == [True, True, True, False, False]
    partly = torch.stack([shared, shared + 1])
    for f in (
        lambda x: x if torch.equal(x, shared) else -x,
        lambda x: x if torch.equal(shared, x) else -x,
    ):
        with pytest.raises(BatchingError, match="answers differently"):
            vmap(f)(partly)


@pytest.mark.parametrize(
    "f", [lambda x: torch.allclose(x, x), lambda x: torch.allclose(X[0], x), lambda x: x.nonzero()]
)
def test_answers_that_differ_in_kind_are_refused_by_name(f: Any) -> None:
    with pytest.raises(
        BatchingError, match=r"aten\.(allclose|nonzero)\.default at .*test_batch\.py"
    ):
        vmap(f)(X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.sin(x, out=torch.empty(3)),
        lambda x: torch.sin(x, out=torch.empty_like(x)),
        lambda x: torch.sin(X[0], out=torch.empty_like(x)),
    ],
)
def test_out_is_refused(f: Any) -> None:
    with pytest.raises(
        BatchingError,
        match=(
            r"aten\.\w+\.\w+ with out= is not supported under vmap; "
            r"use the form that returns its result"
        ),
    ):
        vmap(f)(X)


def test_a_value_shows_its_batch_and_has_no_data_to_set() -> None:
    seen: list[str] = []

    def f(x: Any) -> Any:
        seen.append(repr(x))
        with pytest.raises(RuntimeError, match=r"mutating directly with `\.data`"):
            x.data = x
        y = x * 1
        y.data.add_(1)
        return y + x.data

    torch.testing.assert_close(vmap(f)(X), 2 * X + 1)
    assert "BatchedValue(level=" in seen[0] and "size=2" in seen[0] and "[-2., -1.,  0.]" in seen[0]


# --- writes


IN_PLACE: dict[str, Callable[[Any, Any], Any]] = {
    "an operand of the same shape": lambda x, y: x.add_(y),
    "an operand of fewer dimensions": lambda x, y: x.mul_(y[0]),
    "a shared operand": lambda x, y: x.sub_(torch.tensor([1.0, 2.0, 3.0])),
    "a shared number": lambda x, y: x.pow_(torch.tensor(2.0)),
    "chained": lambda x, y: x.neg_().cumsum_(0).clamp_(min=y),
    "by a rule that is not in place": lambda x, y: x.cumprod_(0).index_add_(
        0, torch.tensor([0]), y[:1]
    ),
    "by its own index": lambda x, y: x.index_add_(0, y[:1].long().abs() % 3, y[:1]),
    "scatter": lambda x, y: x.scatter_(0, torch.tensor([1]), y),
    "a part": lambda x, y: x[1:].copy_(y[:-1]),
    "comparison": lambda x, y: x.gt_(y),
    "masked": lambda x, y: x.masked_fill_(y > 0, 7.0),
    "lists": lambda x, y: (torch._foreach_add_([x, y], [y.clone(), x.clone()]), x + 10 * y)[1],
    "geometry": lambda x, y: x.unsqueeze_(0).transpose_(0, 1).mul_(y.unsqueeze(1)),
    "fill": lambda x, y: x.fill_(y[0]),
    "zero": lambda x, y: x.zero_().add_(y),
    "another dtype": lambda x, y: x.add_(y.double()),
    "addcmul": lambda x, y: x.addcmul_(y, y, value=0.5),
    "a fill of the diagonal": lambda x, y: (x.outer(y).contiguous().fill_diagonal_(5.0)).sum(0),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_write_in_place_is_that_of_each_element(name: str) -> None:
    f = IN_PLACE[name]

    def both(x: Any, y: Any) -> Any:
        x, y = x.clone(), y.clone()
        out = f(x, y)
        return torch.cat([out.reshape(-1), x.reshape(-1), y.reshape(-1)])

    y = X.flip(0) + 0.5
    torch.testing.assert_close(vmap(both)(X, y), loop(both, X, y))
    torch.testing.assert_close(vmap(vmap(both))(X[None], y[None])[0], loop(both, X, y))
    assert vmap(both)(X[:0], y[:0]).shape == (0, *vmap(both)(X, y).shape[1:])


def test_an_op_that_writes_returns_what_it_wrote_to() -> None:
    def f(x: Any, y: Any) -> Any:
        x = x.clone()
        assert (
            x.add_(y) is x
            and x.cumsum_(0) is x
            and x.gt_(y) is x
            and x.index_add_(0, torch.tensor([0]), y[:1]) is x
        )
        return x

    for n in (2, 0):
        assert vmap(f)(X[:n], X[:n]).shape == (n, 3)


@pytest.mark.parametrize(
    "write",
    [lambda t, x: t.add_(x), lambda t, x: t[0].copy_(x[0]), lambda t, x: t.cumsum_(0).copy_(x)],
)
def test_what_all_elements_share_takes_no_batch(write: Any) -> None:
    shared = torch.zeros(3)
    with pytest.raises(
        BatchingError,
        match=(
            r"vmap: inplace arithmetic aten\.\w+_\.\w+\(self, \*extra_args\) "
            r"is not possible because"
        ),
    ):
        vmap(lambda x: write(shared, x))(X)
    assert not shared.any()


@pytest.mark.parametrize(
    "f", [lambda x: x.resize_(2), lambda x: x.resize_as_(X), lambda x: x.set_(X)]
)
def test_an_element_is_not_resized(f: Any) -> None:
    with pytest.raises(
        BatchingError, match=r"aten\.\w+_\.\w+ changes the number of elements that its argument has"
    ):
        vmap(lambda x: f(x.clone()))(X)


# --- ops without a batch rule


_NAMES = "runtime_test_batch_level"
torch.library.define(
    f"{_NAMES}::both", "(Tensor x, Tensor[] others, *, Tensor? last=None) -> (Tensor, Tensor)"
)
torch.library.define(
    f"{_NAMES}::draw",
    "(Tensor x, *, Generator? generator=None) -> Tensor",
    tags=(torch.Tag.nondeterministic_seeded,),
)
torch.library.define(
    f"{_NAMES}::noise", "(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
torch.library.define(
    f"{_NAMES}::noise_", "(Tensor(a!) x) -> Tensor(a!)", tags=(torch.Tag.nondeterministic_seeded,)
)
torch.library.define(f"{_NAMES}::twice", "(Tensor x) -> Tensor")
torch.library.define(f"{_NAMES}::twice_", "(Tensor(a!) x) -> Tensor(a!)")
torch.library.define(f"{_NAMES}::first", "(Tensor(a) x) -> Tensor(a)")
torch.library.define(f"{_NAMES}::pieces", "(Tensor x) -> Tensor[]")
torch.library.define(f"{_NAMES}::length", "(Tensor x) -> int")
torch.library.define(
    f"{_NAMES}::chosen", "(Tensor x) -> Tensor", tags=(torch.Tag.dynamic_output_shape,)
)
_KERNELS: dict[str, Callable[..., Any]] = {
    "both": lambda x, others, last=None: (
        x + sum(others) + (0 if last is None else last),
        x.cumsum(0),
    ),
    "draw": lambda x, generator=None: x + torch.rand(x.shape, generator=generator),
    "noise": lambda x: x + torch.rand_like(x),
    "noise_": lambda x: x.uniform_(),
    "twice": lambda x: x * 2,
    "twice_": lambda x: x.mul_(2),
    "first": lambda x: x[:1],
    "pieces": lambda x: [x[:1] * 2, x[1:] * 3],
    "length": lambda x: len(x),
    "chosen": lambda x: x[x > 0],
}
for _name, _kernel in _KERNELS.items():
    torch.library.impl(f"{_NAMES}::{_name}", "CompositeExplicitAutograd")(_kernel)
OWN = getattr(torch.ops, _NAMES)
silently = pytest.mark.filterwarnings("ignore:.*has no batch rule:UserWarning")


@silently
def test_a_loop_takes_elements_of_lists_and_keywords_and_stacks_every_result() -> None:
    shared, y = torch.ones(3), X.sin()
    calls: list[Callable[..., Any]] = [
        lambda x, y: OWN.both(x, [shared, y, shared], last=x[0]),
        lambda x, y: OWN.both(shared, [y], last=None),
        lambda x, y: OWN.both(x, [shared], last=shared),
        lambda x, y: OWN.both(shared, [shared], last=x),
        lambda x, y: OWN.pieces(x * y),
    ]
    for call in calls:
        found = vmap(call)(X, y)
        each = [call(a, b) for a, b in zip(X, y, strict=True)]
        torch.testing.assert_close(
            tuple(found), tuple(torch.stack(column) for column in zip(*each, strict=True))
        )
    assert vmap(lambda x: x * OWN.length(x))(X).equal(X * 3)


def test_a_view_without_a_rule_cannot_be_looped_over() -> None:
    with pytest.raises(MissingRule, match=r"first\.default has no batch rule"):
        vmap(OWN.first)(X)


def test_an_op_whose_shape_depends_on_data_is_not_looped_over() -> None:
    with pytest.raises(
        BatchingError,
        match=r"chosen\.default returns a result whose shape depends on the data.* at .*test_batch",
    ):
        vmap(OWN.chosen)(X)


@silently
def test_a_loop_draws_from_the_generator_that_is_given() -> None:
    for size in (1, 2, 5):
        x = torch.zeros(size, 50)
        generator = torch.Generator().manual_seed(7)
        same = vmap(lambda x: OWN.draw(x, generator=generator), randomness="same")(x)  # noqa: B023
        expected = torch.rand(50, generator=torch.Generator().manual_seed(7))
        assert torch.equal(same, expected.expand(size, 50))
        assert not torch.equal(torch.rand(50, generator=generator), expected), (
            "and leaves it where one draw does"
        )
        torch.manual_seed(7)
        assert torch.equal(vmap(OWN.draw, randomness="same")(x), expected.expand(size, 50))
        assert len(vmap(OWN.draw, randomness="different")(x).unique(dim=0)) == size


@pytest.fixture
def noisy() -> Iterator[None]:
    """`noise` and `noise_` have records, as a library's own ops may."""
    random(f"{_NAMES}::noise {_NAMES}::noise_")
    yield
    for op in (OWN.noise, OWN.noise_):
        del RECORDS[op.default]


@silently
@pytest.mark.usefixtures("noisy")
@pytest.mark.parametrize("draw", [OWN.noise, lambda x: OWN.noise_(x.clone()), OWN.draw])
def test_a_draw_of_a_librarys_op_is_refused_where_it_is_made_or_made_as_asked(draw: Any) -> None:
    def refused(x: Any) -> Any:
        with pytest.raises(
            BatchingError, match="called random operation while in randomness error mode"
        ):
            draw(x)
        return x

    x = torch.ones(2, 50)
    vmap(refused)(x)
    different = vmap(draw, randomness="different")(x)
    assert different.shape == x.shape and len(different.unique()) == 100
    if draw is OWN.noise:
        with pytest.raises(BatchingError, match="draws from distributions that differ"):
            vmap(draw, randomness="same")(x)
    else:
        same = vmap(draw, randomness="same")(x)
        assert len(same.unique()) == 50 and torch.equal(same[0], same[1])


@silently
def test_a_librarys_op_in_place_is_done_by_its_form_out_of_place() -> None:
    before = fallbacks[f"{_NAMES}.twice.default"]

    def f(x: Any) -> Any:
        y = x.clone()
        assert OWN.twice_(y) is y
        return y

    torch.testing.assert_close(vmap(f)(X), 2 * X)
    assert fallbacks[f"{_NAMES}.twice.default"] == before + 1


def test_each_op_without_a_rule_warns_on_its_own_and_once() -> None:
    pieces = unheard_op("(Tensor x) -> Tensor[]", lambda x: [x[:1] * 2, x[1:] * 3])
    joined = unheard_op(
        "(Tensor x, Tensor[] more) -> Tensor", lambda x, more: torch.cat([x, *more])
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            vmap(pieces)(X)
            vmap(lambda x: joined(x, [x]))(X)
    assert [str(w.message).split()[0] for w in caught] == [
        str(pieces.default),
        str(joined.default),
    ]


# --- in inference mode composite ops reach the levels whole


COMPOSITE: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda x: x.reshape(-1, 1) * 2,
    "a copy by reshape": lambda x: x.unsqueeze(0).expand(2, 3).reshape(-1) * x.sum(),
    "linear": lambda x: torch.nn.functional.linear(
        x, torch.arange(6.0).reshape(2, 3), torch.ones(2)
    ),
    "einsum": lambda x: torch.einsum("i,j->ij", x, x),
    "in place": lambda x: x.clone().multiply_(3.0).subtract_(x),
    "a buffer of its own": lambda x: torch.block_diag(x, x),
    "out of place": lambda x: torch.cov(torch.stack([x, x.sin()])),
    "narrow": lambda x: x.narrow(0, 1, 2) + x.flatten()[:2],
}


@pytest.mark.parametrize("name", COMPOSITE)
def test_composite_ops_in_inference_mode(name: str) -> None:
    f = COMPOSITE[name]
    tangents = torch.func.vmap(lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1])(X)
    with torch.inference_mode():
        torch.testing.assert_close(vmap(f)(X), loop(f, X))
        torch.testing.assert_close(functionalize(f)(X[0]), f(X[0]))
        torch.testing.assert_close(vmap(vmap(f))(X[None])[0], loop(f, X))
        torch.testing.assert_close(vmap(f)(X[:0]).shape, torch.Size((0, *f(X[0]).shape)))
    torch.testing.assert_close(vmap(lambda x: jvp(f, (x,), (x.cos(),))[1])(X), tangents)


def test_statistics_in_a_view_are_written_by_a_composite_op_in_inference_mode() -> None:
    def f(x: Any) -> Any:
        table = x.new_ones(2, 3)
        y = torch.nn.functional.batch_norm(x, table[0], table[1], training=True)
        return y, table

    with torch.inference_mode():
        for remove in ("mutations", "mutations_and_views"):
            torch.testing.assert_close(functionalize(f, remove=remove)(X), f(X))


def test_derivatives_through_a_batch_are_those_of_the_loop() -> None:
    f: Any = lambda x: (x.cumsum(0) * x).sin().sum()  # noqa: E731
    torch.testing.assert_close(vmap(grad(f))(X), loop(grad(f), X))
