"""vmap's randomness: an error, one draw for all elements, or one for each, for every random op and
kind of argument."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime.aot import make_fx
from runtime.errors import BatchingError
from runtime.func import functionalize, grad, jacfwd, jvp, vjp, vmap

X = torch.ones(2, 200)
SHARED = torch.full((200,), 0.5)

DRAWS: dict[str, Callable[[Any], Any]] = {
    "rand": lambda x: x + torch.rand(200),
    "randn": lambda x: x + torch.randn(200),
    "randint": lambda x: x + torch.randint(2, 9, (200,)),
    "randperm": lambda x: x + torch.randperm(200),
    "normal of a size": lambda x: x + torch.normal(0.0, 1.0, (200,)),
    "rand_like": torch.rand_like,
    "rand_like of what is shared": lambda x: x + torch.rand_like(SHARED),
    "bernoulli of what is shared": lambda x: x + torch.bernoulli(SHARED),
    "multinomial of what is shared": lambda x: torch.multinomial(SHARED, 20) + 0 * x[:20],
    "bernoulli of the session's": lambda x: x + torch.bernoulli(runtime.wrap(SHARED)),
    "dropout": lambda x: F.dropout(x, 0.5),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "bernoulli_ of a tensor": lambda x: torch.empty_like(x).bernoulli_(SHARED),
    "uniform_": lambda x: x.clone().uniform_(2, 3),
    "normal_": lambda x: x.clone().normal_(),
    "exponential_": lambda x: x.clone().exponential_(),
    "inside grad": lambda x: grad(lambda y: (y * torch.rand_like(y)).sum())(x),
    "dropout of what is shared": lambda x: x + F.dropout(SHARED, 0.5),
    "alpha_dropout of what is shared": lambda x: x + F.alpha_dropout(SHARED, 0.5, training=True),
    "feature dropout of what is shared": lambda x: (
        x + F.dropout1d(SHARED.view(200, 1), 0.5).view(200)
    ),
    "native_dropout of what is shared": lambda x: x + torch.native_dropout(SHARED, 0.5, True)[0],
    "gamma draws of what is shared": lambda x: x + torch._standard_gamma(SHARED),
    "a Dirichlet draw of what is shared": lambda x: x + torch._sample_dirichlet(SHARED),
    "uniform, out of place": lambda x: x + torch.ops.aten.uniform(SHARED),
    "randint between numbers": lambda x: x + torch.randint(3, 99, (200,), dtype=torch.int64),
    "rrelu with a noise of its own": lambda x: (
        x + torch.ops.aten.rrelu_with_noise_functional(-SHARED, torch.zeros(200), training=True)[0]
    ),
    "binomial of what is shared": lambda x: x + torch.binomial(torch.full_like(SHARED, 99), SHARED),
    "a buffer filled": lambda x: x + torch.empty(200).normal_(),
    "inside grad, of what is shared": lambda x: (
        x + grad(lambda w: (w * torch.rand_like(w)).sum())(SHARED)
    ),
    "dropout inside grad, of what is shared": lambda x: (
        x + grad(lambda w: F.dropout(w).sum())(SHARED)
    ),
    "dropout inside jvp, of what is shared": lambda x: x + jvp(F.dropout, (SHARED,), (SHARED,))[1],
    "dropout inside two grads": lambda x: (
        x + grad(lambda v: grad(lambda w: (F.dropout(w) * v * w).sum())(v).sum())(SHARED)
    ),
    "dropout of what is shared, inside vmap": lambda x: (
        x + vmap(lambda n: F.dropout(SHARED) * n, randomness="same")(torch.ones(3))
    )[0],
}


@pytest.mark.filterwarnings("ignore:.*has no batch rule")
@pytest.mark.parametrize("name", DRAWS)
def test_randomness_is_what_was_asked_for(name: str) -> None:
    draw = DRAWS[name]
    with pytest.raises(
        RuntimeError, match="called random operation while in randomness error mode"
    ):
        vmap(draw)(X)
    for randomness, equal in (("same", True), ("different", False)):
        first, second = runtime.unwrap(vmap(draw, randomness=randomness)(X))
        assert torch.equal(first, second) is equal and len(first.unique()) > 1


@pytest.mark.filterwarnings("ignore:.*has no batch rule")
@pytest.mark.parametrize(
    "draw",
    [lambda x: F.rrelu(-x, training=True), torch.poisson, lambda x: torch.multinomial(x, 50)],
)
def test_a_draw_by_the_values_of_an_element_is_its_own_or_refused(draw: Any) -> None:
    with pytest.raises(
        RuntimeError, match="called random operation while in randomness error mode"
    ):
        vmap(draw)(X)
    with pytest.raises(BatchingError, match="distributions that differ between the elements"):
        vmap(draw, randomness="same")(X)
    first, second = vmap(draw, randomness="different")(X)
    assert not torch.equal(first, second)
    torch.testing.assert_close(vmap(F.rrelu)(-X), F.rrelu(-X))  # draws nothing, so it is no error


class Noisy(runtime.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any) -> Any:
        return torch.rand_like(x) + torch.rand(200)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)


def test_a_function_with_a_generated_rule_draws_as_asked() -> None:
    with pytest.raises(
        RuntimeError, match="called random operation while in randomness error mode"
    ):
        vmap(Noisy.apply)(X)
    first, second = vmap(Noisy.apply, randomness="same")(X)
    assert torch.equal(first, second)
    first, second = vmap(Noisy.apply, randomness="different")(X)
    assert not torch.equal(first, second)


def test_chunks_of_a_batch_share_one_draw_if_the_elements_do() -> None:
    first, *others = vmap(lambda x: x + torch.rand(200), randomness="same", chunk_size=2)(
        X.repeat(3, 1)
    )
    assert all(torch.equal(first, other) for other in others)
    chunks = vmap(lambda x: x + torch.rand(200), randomness="different", chunk_size=2)(
        X.repeat(3, 1)
    )
    assert len(chunks.unique(dim=0)) == 6


def test_derivatives_of_draws_by_their_parameters() -> None:
    """A Poisson draw is constant, positions have no derivative, and a gamma draw has
    the implicit one."""
    torch.testing.assert_close(grad(lambda x: torch.poisson(x).sum())(X), torch.zeros_like(X))
    torch.testing.assert_close(jvp(torch.poisson, (X,), (X,))[1], torch.zeros_like(X))
    assert (
        jvp(lambda x: (torch.multinomial(x, 3), x), (SHARED,), (SHARED,))[0][0].dtype is torch.int64
    )
    torch.manual_seed(0)
    expected = torch.func.grad(lambda x: torch._standard_gamma(x).sum())(X)
    torch.manual_seed(0)
    torch.testing.assert_close(grad(lambda x: torch._standard_gamma(x).sum())(X), expected)


def test_in_place_draws_follow_their_parameters() -> None:
    p = torch.tensor([[0.1], [0.9]])
    means = vmap(lambda x, p: x.clone().bernoulli_(p), randomness="different")(X, p).mean(1)
    assert means[0] < 0.3 and means[1] > 0.7
    with pytest.raises(
        RuntimeError, match="draws from distributions that differ between the elements"
    ):
        vmap(lambda x, p: x.clone().bernoulli_(p), randomness="same")(X, p)
    with pytest.raises(
        RuntimeError, match="Cannot ask for different inplace randomness on an unbatched tensor"
    ):
        vmap(lambda x: torch.zeros(200).uniform_() + x, randomness="different")(X)


PASSED_ON: dict[str, Callable[[Any], Any]] = {
    "bernoulli": torch.bernoulli,
    "bernoulli_ of a tensor": lambda p: torch.zeros_like(p).bernoulli_(p),
    "the mean of normal": lambda p: torch.normal(p, 1.0),
    "the deviation of normal": lambda p: torch.normal(0.0, p),
}


@pytest.mark.parametrize("name", PASSED_ON)
def test_a_draw_passes_a_gradient_of_zero_on_to_its_parameters(name: str) -> None:
    draw = PASSED_ON[name]
    p = runtime.wrap(SHARED.clone(), requires_grad=True)
    sample = draw(p)
    assert sample.requires_grad
    (g,) = runtime.autograd.grad(sample.sum(), p)
    assert g.shape == p.shape and not g.any()
    tangent = jvp(draw, (SHARED,), (torch.ones_like(SHARED),))[1]
    assert tangent.shape == SHARED.shape and not tangent.any()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda x: x.sum().item(),
            r"calling \.item\(\) on a Tensor.*aten\._local_scalar_dense\.default",
        ),
        (lambda x: float(x.sum()), r"calling \.item\(\) on a Tensor"),
        (lambda x: x if x.sum() > X.sum() else -x, "data-dependent control flow"),
        (lambda x: x.nonzero(), r"shape depends on the data.*aten\.nonzero\.default"),
        (lambda x: x.tolist(), r"tolist\(\) was asked"),
        (lambda x: x.numpy(), r"numpy\(\) would leave the transform"),
    ],
)
def test_questions_about_elements_name_the_op_and_the_users_line(ask: Any, message: str) -> None:
    line = ask.__code__.co_firstlineno
    for f in (ask, lambda x: grad(lambda y: (ask(x), y.sum())[1])(x)):
        with pytest.raises(
            BatchingError, match=rf"(?s){message}.* at .*test_draws\.py:{line} in <lambda>: `"
        ):
            vmap(f)(X.cumsum(0) * 2)  # elements that differ


def test_requires_grad_has_no_meaning_under_vmap() -> None:
    with pytest.raises(
        RuntimeError,
        match=(
            r"attempting to call Tensor.requires_grad_\(\) inside "
            r"of a function being transformed"
        ),
    ):
        vmap(lambda x: x.requires_grad_())(X)


def gradient_of_dropout(x: Any) -> Any:
    out, pull, mask = vjp(lambda x: torch.native_dropout(x, 0.25, True), x, has_aux=True)
    return pull(torch.ones_like(x))[0], out, mask


@pytest.mark.parametrize(
    "run",
    [gradient_of_dropout, lambda x: make_fx(gradient_of_dropout, tracing_mode="symbolic")(x)(x)],
)
def test_native_dropout_scales_what_its_mask_leaves(run: Callable[[Any], Any]) -> None:
    x = torch.rand(50, dtype=torch.float64) + 1
    gradient, out, mask = run(x)
    assert 0 < mask.sum() < 50
    torch.testing.assert_close(gradient, mask.double() / 0.75)
    torch.testing.assert_close(out, x * mask.double() / 0.75)


def test_data_of_a_tensor_from_outside_leaves_versions_as_they_are() -> None:
    t = torch.ones(3)
    vmap(lambda x: x * t.data, randomness="different")(torch.ones(2, 3))
    view = t[:2]
    t.add_(1)
    assert view._version == 1


def test_a_factory_draws_for_all_elements_at_once() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2, 3), torch.randn(2, 3), torch.randint(2, 9, (2, 3))
    torch.manual_seed(0)
    found = vmap(
        lambda x: (torch.rand(3), torch.randn(3), torch.randint(2, 9, (3,))), randomness="different"
    )(X)
    assert all(map(torch.equal, found, expected))


ALONE: dict[str, Callable[[Any], Any]] = {
    "rand_like": torch.rand_like,
    "dropout": F.dropout,
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.3),
    "uniform_": lambda x: x.clone().uniform_(),
}


@pytest.mark.filterwarnings("ignore:.*has no batch rule")
@pytest.mark.parametrize("name", ALONE)
def test_all_elements_draw_what_one_alone_draws_if_they_share_a_draw(name: str) -> None:
    torch.manual_seed(0)
    expected = ALONE[name](X[0])
    for n in (1, 2):
        torch.manual_seed(0)
        found = vmap(ALONE[name], randomness="same")(X[:n])
        assert torch.equal(found, expected.expand(n, *expected.shape))


G = torch.Generator()
P = torch.tensor([[0.2, 0.5, 0.8], [0.3, 0.6, 0.9]])
# Each draws from the generator that it is given. torch draws the whole batch by one call.
FROM_GIVEN: dict[str, Callable[[Any], Any]] = {
    "rand": lambda x: torch.rand(len(x), generator=G),
    "randn": lambda x: torch.randn(len(x), generator=G),
    "randint": lambda x: torch.randint(100, (len(x),), generator=G),
    "randint between numbers": lambda x: torch.randint(5, 100, (len(x),), generator=G),
    "randperm": lambda x: torch.randperm(len(x), generator=G),
    "normal of numbers": lambda x: torch.normal(0.0, 1.0, (len(x),), generator=G),
    "normal": lambda x: torch.normal(x, x, generator=G),
    "normal with one mean": lambda x: torch.normal(0.5, x, generator=G),
    "bernoulli": lambda x: torch.bernoulli(x, generator=G),
    "bernoulli of a number": lambda x: torch.bernoulli(x, 0.3, generator=G),
    "poisson, which takes it by position": lambda x: torch.poisson(x * 9, generator=G),
    "multinomial": lambda x: torch.multinomial(x, 2, generator=G),
    "multinomial with replacement": lambda x: torch.multinomial(x, 9, True, generator=G),
    "binomial": lambda x: torch.binomial(torch.full_like(x, 99), x, generator=G),
    "gamma": lambda x: torch._standard_gamma(x, generator=G),
    "Dirichlet": lambda x: torch._sample_dirichlet(x, generator=G),
    "uniform_": lambda x: x.clone().uniform_(2, 3, generator=G),
    "normal_": lambda x: x.clone().normal_(generator=G),
    "exponential_": lambda x: x.clone().exponential_(generator=G),
    "random_": lambda x: x.clone().random_(9, generator=G),
}
# from the default generator
FROM_DEFAULT: dict[str, Callable[[Any], Any]] = {
    "rand_like": torch.rand_like,
    "dropout": F.dropout,
    "categorical": lambda x: torch.distributions.Categorical(x, validate_args=False).sample(),
    "multinomial, default": lambda x: torch.multinomial(x, 2),
    "poisson, default": lambda x: torch.poisson(x * 9),
    "normal of numbers, default": lambda x: torch.normal(0.0, 1.0, (len(x),)),
}


UNHEARD_SIZES = itertools.count(101)


def twice(f: Callable[[Any], Any], transform: Any, x: Any) -> list[Any]:
    """Results of a transform at its first and second call, and where the generators stand then."""
    out: list[Any] = []
    for _ in range(2):
        torch.manual_seed(3)
        G.manual_seed(3)
        made = runtime.unwrap(transform(f)(x))
        out += [made.tolist(), torch.get_rng_state().tolist(), G.get_state().tolist()]
    return out


NESTED: dict[str, Any] = {
    "one vmap": lambda vmap: lambda f: vmap(f, randomness="different"),
    "one of another dimension": lambda vmap: (
        lambda f: vmap(lambda x: f(x[0]), randomness="different", in_dims=1)
    ),
    "two": lambda vmap: (
        lambda f: vmap(
            vmap(lambda x: f(x) + 0 * x[0], randomness="different"), randomness="different"
        )
    ),
}


@pytest.mark.parametrize("nested", NESTED)
@pytest.mark.parametrize("name", [*FROM_GIVEN, *FROM_DEFAULT])
def test_a_batch_draws_torchs_numbers_from_the_first_call_on(name: str, nested: str) -> None:
    f = (FROM_GIVEN | FROM_DEFAULT)[name]
    # no call before this one had that size, so the first one tries an element, as in a new process
    p = P.repeat(1, next(UNHEARD_SIZES))
    x = p if nested == "one vmap" else torch.stack([p, p])
    assert twice(f, NESTED[nested](vmap), x) == twice(f, NESTED[nested](torch.func.vmap), x)


@pytest.mark.parametrize("name", FROM_GIVEN)
def test_a_draw_from_a_generator_leaves_the_default_one(name: str) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    vmap(FROM_GIVEN[name], randomness="different")(P)
    assert torch.equal(torch.get_rng_state(), before)


def noise(x: torch.Tensor) -> torch.Tensor:
    """An operator of somebody else's that draws. The runtime has no record of it."""
    return x + torch.rand(x.shape)


_library = torch.library.Library("draws_of_a_test", "DEF")
_library.define("noise(Tensor x) -> Tensor", tags=torch.Tag.nondeterministic_seeded)
_library.impl("noise", noise, "CompositeExplicitAutograd")


@pytest.mark.filterwarnings("ignore:.*has no batch rule")
def test_elements_share_the_draw_of_an_operator_that_has_no_record() -> None:
    torch.manual_seed(0)
    first, second = vmap(torch.ops.draws_of_a_test.noise, randomness="same")(X)
    torch.manual_seed(0)
    assert torch.equal(first, noise(X[0])) and torch.equal(first, second)


INNER: dict[str, Callable[[Any], Any]] = {
    "grad": grad(lambda t: (t * t * torch.rand(())).sum()),
    "grad of a draw that is written to": grad(lambda t: torch.rand(200).mul_(t).sum()),
    "jvp": lambda x: jvp(lambda t: t * torch.rand(200), (x,), (x,)),
    "vjp of a draw for what is shared": lambda x: vjp(lambda t: t * torch.bernoulli(SHARED), x)[1](
        x
    )[0],
}
OUTER: dict[str, Callable[[Any], Any]] = {
    "functionalize": functionalize,
    "jit": runtime.jit,
    "make_fx": lambda f: make_fx(f)(X),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("name", INNER)
def test_a_draw_for_each_element_inside_of_a_derivative_is_of_the_batch_under_an_outer_level(
    name: str, outer: str
) -> None:
    f, found = vmap(INNER[name], randomness="different"), []
    for g in (f, OUTER[outer](f)):
        torch.manual_seed(0)
        found.append(g(X))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*has no batch rule")
@pytest.mark.parametrize("way", [lambda f: make_fx(f)(X), lambda f: runtime.jit(f)(X)])
def test_a_graph_does_not_draw_again_from_the_same_state(
    way: Callable[..., Any],
) -> None:
    with pytest.raises(
        BatchingError,
        match="runs for each element from the same state of the generator, "
        "and a graph sets no state",
    ):
        way(vmap(torch.ops.draws_of_a_test.noise, randomness="same"))


@pytest.mark.parametrize("randomness", ["error", "same", "different"])
def test_an_error_of_the_program_stays_what_it_is(randomness: str) -> None:
    def f(x: Any) -> Any:
        raise RuntimeError("of the program")

    with pytest.raises(RuntimeError, match="of the program") as found:
        vmap(f, randomness=randomness)(X)
    assert type(found.value) is RuntimeError and found.value.__cause__ is None


@pytest.mark.parametrize("transform", [vmap, jacfwd], ids=["vmap", "jacfwd"])
def test_a_refused_draw_names_its_line(transform: Any) -> None:
    """A program that vmap runs for it is deep below the line that has called jacfwd."""
    with pytest.raises(BatchingError, match=r"randomness error mode(?s:.*)test_draws.py:"):
        transform(DRAWS["rand"])(torch.ones(200, 200) if transform is vmap else torch.ones(200))


@pytest.mark.parametrize("unbatched", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_of_sequences_needs_no_draws(reduction: str, unbatched: bool) -> None:
    scores = torch.randn(3, 5, 6, dtype=torch.float64).log_softmax(-1)
    targets = torch.randint(1, 6, (3, 2))

    ctc_loss: Any = F.ctc_loss  # whose stub has no lengths in tuples

    def loss(scores: torch.Tensor, targets: torch.Tensor) -> Any:
        if unbatched:
            return ctc_loss(scores, targets, (5,), (2,), reduction=reduction)
        return ctc_loss(scores[:, None], targets[None], (5,), (2,), reduction=reduction).sum()

    found = vmap(loss, randomness="different")(scores, targets)
    expected = [loss(*each) for each in zip(scores, targets, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))
