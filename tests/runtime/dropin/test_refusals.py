"""What torch's transforms refuse is refused under the drop-in, or gives the value of eager code."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from tests.runtime.dropin.compare import both


def begun(y: Any) -> Any:
    return (y * y.requires_grad_()).sum()


def begun_of_a_result(y: Any) -> Any:
    return (y * 2).requires_grad_().sum()


def begun_of_a_constant(y: Any) -> Any:
    return (y * y.detach().requires_grad_()).sum()


def begun_of_a_factory(y: Any) -> Any:
    return (y * torch.ones(3).requires_grad_()).sum()


def ended(y: Any) -> Any:
    return y.requires_grad_(False).sum()


def retained(y: Any) -> Any:
    z = y * 2
    z.retain_grad()
    return z.sum()


def back(y: Any) -> Any:
    z = y.sin().sum()
    z.backward()
    return z


def hooked(y: Any) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        return y.sin().sum()


def saved_on_cpu(y: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return y.sin().sum()


TRANSFORMS: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: torch.func.grad(f)(torch.ones(3)),
    "vjp": lambda f: torch.func.vjp(f, torch.ones(3))[0],
    "jacrev": lambda f: torch.func.jacrev(f)(torch.ones(3)),
    "hessian": lambda f: torch.func.hessian(f)(torch.ones(3)),
    "grad of grad": lambda f: torch.func.grad(lambda y: torch.func.grad(f)(y).sum())(torch.ones(3)),
    "vmap of grad": lambda f: torch.func.vmap(torch.func.grad(f))(torch.ones(2, 3)),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize(
    "body",
    [
        begun,
        begun_of_a_result,
        begun_of_a_constant,
        begun_of_a_factory,
        ended,
        retained,
        back,
        hooked,
        saved_on_cpu,
    ],
    ids=lambda f: f.__name__,
)
def test_a_transform_has_its_own_leaves_and_saved_tensors(body: Any, transform: str) -> None:
    found, expected = both(lambda: TRANSFORMS[transform](body))
    assert expected[0][0] == found[0][0] == "RuntimeError"


@pytest.mark.parametrize("transform", ["grad", "vjp", "jacrev", "vmap of grad"])
def test_the_flag_may_be_set_where_a_tensor_has_it(transform: str) -> None:
    def body(y: Any) -> Any:
        y.requires_grad = True
        return y.sin().sum()

    found, expected = both(lambda: TRANSFORMS[transform](body))
    assert found == expected and "Error" not in str(expected)


# The product of what a program does to a flag, to which tensor, and in which transform. Each cell
# runs on torch and under the drop-in.

OUTSIDE: dict[str, Any] = {}  # made new for each cell


def _assigned(value: bool) -> Callable[[Any], Any]:
    def act(t: Any) -> None:
        t.requires_grad = value

    return act


ACTS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda t: None,
    "requires_grad_()": lambda t: t.requires_grad_(),
    "requires_grad_(False)": lambda t: t.requires_grad_(False),
    "requires_grad = True": _assigned(True),
    "requires_grad = False": _assigned(False),
    "retain_grad()": lambda t: t.retain_grad(),
    "backward()": lambda t: t.sum().backward(),
    "jacobian": lambda t: torch.autograd.functional.jacobian(torch.sin, t),
}
TARGETS: dict[str, Callable[[Any], Any]] = {
    "argument": lambda y: y,
    "result": lambda y: y * 2,
    "view": lambda y: y[:2],
    "detached": lambda y: y.detach(),
    "like": lambda y: torch.zeros_like(y),
    "fresh": lambda y: torch.ones(3),
    "clone": lambda y: OUTSIDE["constant"].clone(),
    "constant": lambda y: OUTSIDE["constant"],
    "leaf": lambda y: OUTSIDE["leaf"],
}


def _one_of_two(f: Any) -> Any:
    return lambda x: torch.func.vmap(f)(torch.stack([x, 2 * x])).sum(0)


SINGLE: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: torch.func.grad(lambda y: f(y).sum()),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x)[1](torch.ones(3))[0],
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones(3),))[1],
    "jacrev": lambda f: lambda x: torch.func.jacrev(f)(x).sum(0),
    "jacfwd": lambda f: lambda x: torch.func.jacfwd(f)(x).sum(0),
    "hessian": lambda f: lambda x: torch.func.hessian(lambda y: f(y).sum())(x).sum(0),
    "vmap": _one_of_two,
    "functionalize": lambda f: torch.func.functionalize(f),
}
REVERSE, FORWARD = {"grad", "vjp", "jacrev", "hessian"}, {"jvp", "jacfwd"}
OWN = {"argument", "result", "view", "detached", "like"}
FOUND = {"constant", "leaf"}

# (acts, targets, transforms): torch refuses these, and here they have the value of eager code
ANSWERED = [
    ({"requires_grad_()", "requires_grad_(False)"}, FOUND, {*SINGLE}),
    ({"requires_grad_()", "requires_grad_(False)"}, {"fresh", "clone"}, {"vmap"}),
    ({"requires_grad_(False)"}, {*TARGETS}, {*FORWARD, "functionalize"}),
    ({"retain_grad()"}, {"leaf"}, {*SINGLE}),
    ({"backward()"}, {"leaf"}, {*SINGLE} - {"functionalize"}),
    ({"jacobian"}, FOUND, {*SINGLE} - {"functionalize"}),
    ({"jacobian"}, {"fresh", "clone"}, {"vmap"}),
]
# torch answers these, and here they are refused
REFUSED = [
    ({"requires_grad = True"}, OWN, {*FORWARD, "vmap", "functionalize"}),
    ({"requires_grad = True"}, {"fresh", "clone"}, {*FORWARD, "functionalize"}),
    ({"requires_grad = False"}, {"argument"}, REVERSE),
]


def _listed(rows: list[Any], *cell: str) -> bool:
    return any(all(x in names for x, names in zip(cell, row, strict=True)) for row in rows)


def _cell(act: str, target: str, transform: Any) -> Any:
    def body(y: Any) -> Any:
        t = TARGETS[target](y)
        ACTS[act](t)
        return y.sin() * t.sum()

    OUTSIDE["constant"] = torch.tensor([1.0, 2.0, 3.0])
    OUTSIDE["leaf"] = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    try:
        return transform(body)(torch.tensor([0.1, 0.2, 0.3])).tolist()
    except RuntimeError:
        return "refused"


@pytest.mark.parametrize("transform", SINGLE)
def test_flags_of_tensors_in_a_transform(transform: str) -> None:
    cells = list(product(ACTS, TARGETS))
    found, expected = both(lambda: [_cell(act, target, SINGLE[transform]) for act, target in cells])
    plain = dict(zip(cells, expected[0], strict=True))
    for (act, target), ours, theirs in zip(cells, found[0], expected[0], strict=True):
        cell = act, target, transform
        if _listed(ANSWERED, *cell):
            assert theirs == "refused", cell
            assert ours == plain["nothing", target], cell
        elif _listed(REFUSED, *cell):
            assert ours == "refused" != theirs, cell
        else:
            assert ours == theirs, cell


def test_a_composition_has_no_leaves_but_its_inputs() -> None:
    pairs = list(product(SINGLE, SINGLE))

    def program() -> Any:
        return [
            _cell(act, target, lambda f, a=a, b=b: SINGLE[a](SINGLE[b](f)))
            for act in ("requires_grad_()", "retain_grad()", "backward()", "jacobian")
            for target in ("argument", "result")
            for a, b in pairs
        ]

    found, expected = both(program)
    assert set(found[0]) == set(expected[0]) == {"refused"}


# Draws from a distribution that the batch decides. One draw for all elements has no meaning.
BY_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "bernoulli": lambda x, p: torch.bernoulli(x),
    "bernoulli, a generator": lambda x, p: torch.bernoulli(x, generator=torch.Generator()),
    "bernoulli_": lambda x, p: x.clone().bernoulli_(p),
    "bernoulli_ of a constant": lambda x, p: torch.ones(3).bernoulli_(p),
    "binomial": lambda x, p: torch.binomial(torch.floor(5 * x), p),
    "binomial, constant counts": lambda x, p: torch.binomial(torch.ones(3), p),
    "poisson": lambda x, p: torch.poisson(x),
    "multinomial": lambda x, p: torch.multinomial(x, 2),
    "normal": lambda x, p: torch.normal(x, p),
    "normal, a constant scale": lambda x, p: torch.normal(x, 1.0),
    "normal, a constant mean": lambda x, p: torch.normal(0.0, p),
    "gamma": lambda x, p: torch._standard_gamma(x),
    "dirichlet": lambda x, p: torch._sample_dirichlet(x),
    "categorical": lambda x, p: torch.distributions.Categorical(x, validate_args=False).sample(),
    "rrelu": lambda x, p: torch.nn.functional.rrelu(-x, training=True),
    "rrelu_": lambda x, p: torch.nn.functional.rrelu(-x, training=True, inplace=True),
}


def _rrelu_of_a_constant(x: Any, p: Any) -> Any:
    return x + torch.nn.functional.rrelu(-torch.ones(3), training=True, inplace=True)


# Draws whose distribution is that of every element.
BY_SHAPE: dict[str, Callable[[Any, Any], Any]] = {
    "rand": lambda x, p: torch.rand(3),
    "rand_like": lambda x, p: torch.rand_like(x),
    "randn_like": lambda x, p: torch.randn_like(x),
    "randint_like": lambda x, p: torch.randint_like(x, 9),
    "randperm": lambda x, p: torch.randperm(3),
    "dropout": lambda x, p: torch.nn.functional.dropout(x),
    "alpha_dropout": lambda x, p: torch.nn.functional.alpha_dropout(x, training=True),
    "normal_": lambda x, p: x.clone().normal_(),
    "uniform_": lambda x, p: x.clone().uniform_(),
    "random_": lambda x, p: x.clone().random_(9),
    "exponential_": lambda x, p: x.clone().exponential_(),
    "bernoulli_ of a number": lambda x, p: x.clone().bernoulli_(0.5),
}


def _drawn(draw: Any, randomness: str) -> Any:
    torch.manual_seed(0)
    x = torch.tensor([[0.1, 0.5, 0.9], [0.4, 0.4, 0.8]])
    try:
        return torch.func.vmap(draw, randomness=randomness)(x, 1 - x).tolist()
    except RuntimeError:
        return "refused"


def test_one_draw_for_all_elements_needs_one_distribution() -> None:
    found, expected = both(lambda: [_drawn(draw, "same") for draw in BY_VALUES.values()])
    assert found[0] == expected[0] == ["refused"] * len(BY_VALUES)
    found, expected = both(lambda: [_drawn(draw, "same") for draw in BY_SHAPE.values()])
    assert found == expected and "refused" not in expected[0]


def test_nothing_is_drawn_in_error_mode() -> None:
    draws = [*BY_VALUES.values(), *BY_SHAPE.values(), _rrelu_of_a_constant]
    found, expected = both(lambda: [_drawn(draw, "error") for draw in draws])
    assert found[0] == expected[0] == ["refused"] * len(draws)


AUX: dict[str, Callable[[Any], Any]] = {
    "a number": lambda y: 1.0,
    "None": lambda y: None,
    "text": lambda y: "text",
    "a pair with a number": lambda y: (y, 1),
    "a list of numbers": lambda y: [1, 2],
    "an object": lambda y: object(),
    "tensors": lambda y: {"a": y, "b": [y * 2, (y,)]},
    "nothing": lambda y: [],
}
WITH_AUX: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda f, x: torch.func.grad(f, has_aux=True)(x),
    "grad_and_value": lambda f, x: torch.func.grad_and_value(f, has_aux=True)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x, has_aux=True)[2],  # type: ignore[misc]
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,), has_aux=True),
    "jacrev": lambda f, x: torch.func.jacrev(f, has_aux=True)(x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f, has_aux=True)(x),
}


@pytest.mark.parametrize("way", WITH_AUX)
@pytest.mark.parametrize("aux", AUX)
def test_aux_is_made_of_tensors(aux: str, way: str) -> None:
    found, expected = both(
        lambda: WITH_AUX[way](lambda y: (y.sin().sum(), AUX[aux](y)), torch.ones(3))
    )
    refused = aux not in ("tensors", "nothing")
    assert ("RuntimeError" in str(expected)) is refused
    assert "RuntimeError" in str(found) if refused else found == expected


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2


OUTER: list[Any] = []


def adding_to_an_outer_tensor(y: Any) -> Any:
    OUTER[-1].add_(1.0)
    return (OUTER[-1] * y).sum()


@pytest.mark.parametrize("transform", ["grad", "jacrev", "vmap of grad"])
def test_a_function_without_setup_context_takes_no_tensor_of_a_transform(transform: str) -> None:
    found, expected = both(
        lambda: TRANSFORMS[transform](lambda y: Doubled.apply(y).sum())  # type: ignore[no-untyped-call]
    )
    assert expected[0][0] == found[0][0] == "RuntimeError"
    OUTER.append(torch.ones(3))
    found, expected = both(
        lambda: TRANSFORMS[transform](lambda y: (y * Doubled.apply(OUTER[-1])).sum())  # type: ignore[no-untyped-call]
    )
    assert expected[0][0] == "RuntimeError" and "2., 2., 2." in str(found)


# docs/parity.md says why these are answered
@pytest.mark.parametrize(
    ("body", "transform", "value"),
    [
        (adding_to_an_outer_tensor, "grad", torch.ones(3)),
        (adding_to_an_outer_tensor, "jacrev", torch.ones(3)),
        (lambda y: Doubled.apply(y).sum(), "functionalize", torch.tensor(6.0)),  # type: ignore[no-untyped-call]
    ],
    ids=["a write", "a write, jacrev", "a Function"],
)
def test_what_torch_cannot_do_has_the_value_of_eager_code(
    body: Any, transform: str, value: torch.Tensor
) -> None:
    def program() -> Any:
        OUTER.append(torch.zeros(3))
        if transform == "functionalize":
            return torch.func.functionalize(body)(torch.ones(3)).tolist()
        return TRANSFORMS[transform](body).tolist(), OUTER[-1].tolist()

    found, expected = both(program)
    assert expected[0][0] == "RuntimeError"
    if transform == "functionalize":
        assert found[0] == value.tolist()
        return
    assert found[0][0] == value.tolist()
    assert found[0][1] == [float(body is adding_to_an_outer_tensor)] * 3
