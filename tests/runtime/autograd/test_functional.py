"""Jacobians, Hessians and their products: values, structure, history and errors as torch's."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import functional as oracle

import runtime
from runtime import unwrap, wrap
from runtime.autograd import forward_ad, functional

from ..errors import told

close = torch.testing.assert_close


def rand(*shape: int, seed: int = 0) -> Any:
    return torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


X, Y = rand(3), rand(2, seed=1)
CUBES = lambda x: x**3  # noqa: E731
TWO = lambda x, y: (x.exp(), y.sum() * x.sum())  # noqa: E731
SCALAR = lambda x, y: (x**3).sum() * y.sin().sum()  # noqa: E731


def plain(tree: Any) -> Any:
    return tuple(map(plain, tree)) if isinstance(tree, (tuple, list)) else unwrap(tree).detach()


def tracked(tree: Any) -> Any:
    return tuple(map(tracked, tree)) if isinstance(tree, (tuple, list)) else tree.requires_grad


def wrapped(tree: Any) -> Any:
    return (
        tuple(map(wrapped, tree))
        if isinstance(tree, tuple)
        else wrap(tree.detach().clone(), tree.requires_grad)
    )


def agree(name: str, f: Callable[..., Any], *args: Any, **options: Any) -> None:
    want, got = (
        getattr(oracle, name)(f, *args, **options),
        getattr(functional, name)(f, *map(wrapped, args), **options),
    )
    close(plain(got), plain(want))
    assert tracked(got) == tracked(want)


JACOBIAN_CASES: list[tuple[Callable[..., Any], Any]] = [
    (CUBES, X),
    (CUBES, (X,)),
    (lambda x: (x.sum(),), X),
    (TWO, (X, Y)),
    (lambda x, y: x.sum() * y, (X, Y)),
    (lambda x: x.detach() * 2, X),
    (lambda x: torch.ones(2, dtype=torch.float64), X),
    (lambda x, y: (x.sum(), y.sum()), (X, Y)),
    (lambda x: x * x * x, torch.tensor(2.0, dtype=torch.float64)),
    (lambda x: (x * x.conj()).real, torch.complex(X, X + 1)),
    (lambda x: x @ x, rand(2, 2)),
    (lambda x: x * x.clone().requires_grad_(), X.clone().requires_grad_()),
]


@pytest.mark.parametrize(
    "options",
    [{}, {"create_graph": True}, {"vectorize": True}, {"vectorize": True, "create_graph": True}],
)
@pytest.mark.parametrize(("f", "inputs"), JACOBIAN_CASES)
def test_jacobians_in_reverse_mode(f: Callable[..., Any], inputs: Any, options: Any) -> None:
    got = functional.jacobian(f, wrapped(inputs), **options)
    want = oracle.jacobian(f, inputs, create_graph=options.get("create_graph", False))
    close(plain(got), plain(want))
    assert tracked(got) == tracked(want)


@pytest.mark.parametrize(
    ("f", "inputs"), [c for i, c in enumerate(JACOBIAN_CASES) if i not in (6, 9, 11)]
)
def test_jacobians_in_forward_mode(f: Callable[..., Any], inputs: Any) -> None:
    got = functional.jacobian(f, wrapped(inputs), vectorize=True, strategy="forward-mode")
    want = oracle.jacobian(f, inputs)
    close(plain(got), plain(want))


def test_a_column_of_a_real_function_of_complex_numbers_is_along_the_real_axis() -> None:
    """Here torch fails with an internal assertion."""
    z = torch.tensor([1 + 2j, 3.0], dtype=torch.complex128)
    got = functional.jacobian(
        lambda z: (z * z.conj()).real, wrap(z), vectorize=True, strategy="forward-mode"
    )
    close(unwrap(got), torch.diag(2 * z.real))


def test_jacobians_of_empty_tensors_are_empty() -> None:
    """Here torch fails in stack."""
    x = wrap(torch.zeros(0, 2, dtype=torch.float64))
    for vectorize in (False, True):
        assert functional.jacobian(lambda x: x * 2, x, vectorize=vectorize).shape == (0, 2, 0, 2)
        assert functional.jacobian(lambda x: x.sum(), x, vectorize=vectorize).shape == (0, 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"create_graph": True},
        {"vectorize": True},
        {"vectorize": True, "create_graph": True},
        {"vectorize": True, "outer_jacobian_strategy": "forward-mode"},
    ],
)
@pytest.mark.parametrize(
    ("f", "inputs"),
    [
        (lambda x: (x**4).sum(), X),
        (SCALAR, (X, Y)),
        (lambda x, y: x.sum() * 2, (X, Y)),
        (lambda x: x.prod(), (X,)),
        (lambda x: x * x * x, torch.tensor(2.0, dtype=torch.float64)),
        (lambda x: torch.linalg.det(x), rand(2, 2) + torch.eye(2, dtype=torch.float64)),
    ],
)
def test_hessians(f: Callable[..., Any], inputs: Any, options: Any) -> None:
    got = functional.hessian(f, wrapped(inputs), **options)
    want = oracle.hessian(f, inputs, create_graph=options.get("create_graph", False))
    close(plain(got), plain(want))
    if "outer_jacobian_strategy" not in options:
        assert tracked(got) == tracked(want)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    ("name", "f", "inputs", "v"),
    [
        ("vjp", CUBES, X, rand(3, seed=2)),
        ("vjp", TWO, (X, Y), (rand(3, seed=2), rand(seed=3))),
        ("vjp", lambda x: x.sum(), X, None),
        ("vjp", lambda x: x.detach(), X, rand(3, seed=2)),
        ("jvp", CUBES, X, rand(3, seed=2)),
        ("jvp", TWO, (X, Y), (rand(3, seed=2), rand(2, seed=3))),
        ("jvp", CUBES, torch.tensor(2.0, dtype=torch.float64), None),
        ("jvp", lambda x: torch.ones(2, dtype=torch.float64), X, rand(3, seed=2)),
        ("jvp", lambda x: x * 2, X.clone().requires_grad_(), rand(3, seed=2)),
        ("vhp", SCALAR, (X, Y), (rand(3, seed=2), rand(2, seed=3))),
        ("vhp", lambda x: x**3, torch.tensor(2.0, dtype=torch.float64), None),
        ("hvp", SCALAR, (X, Y), (rand(3, seed=2), rand(2, seed=3))),
        ("hvp", lambda x: (2 * x).sum(), X, rand(3, seed=2)),
    ],
)
def test_products(
    name: str, f: Callable[..., Any], inputs: Any, v: Any, create_graph: bool
) -> None:
    args = (inputs,) if v is None else (inputs, v)
    agree(name, f, *args, create_graph=create_graph)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda x, v: functional.vjp(CUBES, x, v, create_graph=True)[1],
            lambda x, v: (6 * x * v, 3 * x**2),
        ),
        (
            lambda x, v: functional.jvp(CUBES, x, v, create_graph=True)[1],
            lambda x, v: (6 * x * v, 3 * x**2),
        ),
        (
            lambda x, v: functional.vhp(lambda x: (x**4).sum(), x, v, create_graph=True)[1],
            lambda x, v: (24 * x * v, 12 * x**2),
        ),
        (
            lambda x, v: functional.hvp(lambda x: (x**4).sum(), x, v, create_graph=True)[1],
            lambda x, v: (24 * x * v, 12 * x**2),
        ),
        (
            lambda x, v: functional.jacobian(CUBES, x, create_graph=True) @ v,
            lambda x, v: (6 * x * v, 3 * x**2),
        ),
        (
            lambda x, v: functional.jacobian(CUBES, x, create_graph=True, vectorize=True) @ v,
            lambda x, v: (6 * x * v, 3 * x**2),
        ),
        (
            lambda x, v: functional.hessian(lambda x: (x**4).sum(), x, create_graph=True) @ v,
            lambda x, v: (24 * x * v, 12 * x**2),
        ),
    ],
)
def test_with_create_graph_results_can_be_differentiated(
    call: Callable[..., Any], expected: Callable[..., Any]
) -> None:
    x, v = wrap(X.clone(), True), wrap(rand(3, seed=2), True)
    found = runtime.autograd.grad(call(x, v).sum(), (x, v))
    close(plain(found), expected(X, rand(3, seed=2)))


def test_plain_tensors_are_welcome() -> None:
    close(unwrap(functional.jacobian(CUBES, X)), torch.diag(3 * X**2))


def test_inputs_and_their_grads_are_left_alone() -> None:
    x = wrap(X.clone(), True)
    functional.hessian(lambda x: (x**3).sum(), x, vectorize=True)
    functional.jvp(CUBES, x, wrap(X.clone()))
    assert x.grad is None and x.is_leaf


def test_forward_mode_does_not_nest_in_a_dual_level() -> None:
    with (
        forward_ad.dual_level(),
        pytest.raises(RuntimeError, match="Nested forward mode AD is not supported"),
    ):
        functional.jacobian(CUBES, wrap(X), vectorize=True, strategy="forward-mode")
    assert forward_ad.current_level() == -1


LINEAR = lambda x: (2 * x).sum()  # noqa: E731
FIRST = lambda x, y: (x**3).sum()  # noqa: E731
V, PAIR = rand(3, seed=2), (rand(3, seed=2), rand(2, seed=3))


@pytest.mark.parametrize(
    ("name", "args", "options"),
    [
        ("jacobian", (CUBES, [X]), {}),
        ("jacobian", (CUBES, (X, 3.0)), {}),
        ("jacobian", (lambda x: 3.0, X), {}),
        ("jacobian", (lambda x: [x], X), {}),
        ("jacobian", (lambda x: (x, 3.0), X), {}),
        ("jacobian", (CUBES, X), {"strategy": "sideways"}),
        ("jacobian", (CUBES, X), {"strategy": "forward-mode", "create_graph": True}),
        ("jacobian", (CUBES, X), {"strategy": "forward-mode", "strict": True, "vectorize": True}),
        ("jacobian", (CUBES, X), {"strict": True, "vectorize": True}),
        ("jacobian", (lambda x: x.detach(), X), {"strict": True}),
        ("jacobian", (FIRST, (X, Y)), {"strict": True}),
        ("jacobian", (LINEAR, X), {"strict": True, "create_graph": True}),
        ("jacobian", (lambda x: x * 1j, X), {}),
        ("hessian", (CUBES, X), {}),
        ("hessian", (lambda x: (x.sum(),), X), {}),
        ("hessian", (FIRST, [X, Y]), {}),
        ("hessian", (LINEAR, X), {"strict": True}),
        ("hessian", (FIRST, (X, Y)), {"strict": True}),
        ("hessian", (lambda x: x.detach().sum(), X), {"strict": True}),
        ("hessian", (LINEAR, X), {"outer_jacobian_strategy": "sideways"}),
        ("vjp", (CUBES, X), {}),
        ("vjp", (lambda x: (x.sum(), x.sum()), X), {}),
        ("vjp", (CUBES, X, 3.0), {}),
        ("vjp", (CUBES, (X,), (Y,)), {}),
        ("vjp", (lambda x: (x * 2,), X, (X, X)), {}),
        ("vjp", (lambda x: x.detach(), X, V), {"strict": True}),
        ("vjp", (CUBES, X, rand(2)), {}),
        ("vjp", (CUBES, X, PAIR), {}),
        ("vjp", (TWO, (X, Y), (X,)), {}),
        ("vjp", (TWO, (X, Y), (X, X)), {}),
        ("vjp", (FIRST, (X, Y)), {"strict": True}),
        ("vjp", (LINEAR, X), {"strict": True, "create_graph": True}),
        ("jvp", (CUBES, X), {}),
        ("jvp", (lambda x, y: x * y, (X[0], Y[0])), {}),
        ("jvp", (CUBES, X, PAIR), {}),
        ("jvp", (CUBES, (X, X), (X,)), {}),
        ("jvp", (lambda x: x.detach(), X, V), {"strict": True}),
        ("jvp", (CUBES, (X,), PAIR), {}),
        ("jvp", (CUBES, (X,), (Y,)), {}),
        ("jvp", (FIRST, (X, Y), PAIR), {"strict": True}),
        ("jvp", (LINEAR, X, V), {"strict": True, "create_graph": True}),
        ("vhp", (CUBES, X, V), {}),
        ("vhp", (LINEAR, X), {}),
        ("vhp", (lambda x: x.detach().sum(), X, V), {"strict": True}),
        ("hvp", (lambda x: x.detach().sum(), X, V), {"strict": True}),
        ("vhp", (LINEAR, X, V), {"strict": True}),
        ("vhp", (FIRST, (X, Y), PAIR), {"strict": True}),
        ("vhp", (lambda x: (x * x).sum(), X, V), {"strict": True, "create_graph": True}),
        ("hvp", (TWO, (X, Y), PAIR), {}),
        ("hvp", (LINEAR, X, V), {"strict": True}),
        ("hvp", (lambda x: (x * x).sum(), X, V), {"strict": True, "create_graph": True}),
    ],
)
def test_errors_are_those_of_torch(name: str, args: Any, options: Any) -> None:
    def failure(module: Any, args: Any) -> BaseException:
        with pytest.raises(
            (RuntimeError, TypeError, AssertionError, NotImplementedError)
        ) as caught:
            getattr(module, name)(*args, **options)
        return caught.value

    def ours(a: Any) -> Any:
        return (
            wrap(a.clone())
            if isinstance(a, torch.Tensor)
            else type(a)(map(ours, a))
            if isinstance(a, (tuple, list))
            else a
        )

    want, got = failure(oracle, args), failure(functional, tuple(map(ours, args)))
    assert told(got) == told(want)


def test_forward_mode_needs_vectorize() -> None:
    with pytest.raises(NotImplementedError, match=r"is only implemented for `vectorize=True`"):
        functional.jacobian(CUBES, X, strategy="forward-mode")
    with pytest.raises(NotImplementedError, match=r"is only implemented for `vectorize=True`"):
        functional.hessian(LINEAR, X, outer_jacobian_strategy="forward-mode")


def test_a_function_that_writes_its_input_is_refused() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"a leaf Variable that requires grad is being used in an in-place operation",
    ):
        functional.jacobian(lambda x: x.mul_(2), wrap(X.clone()))


def test_integers_are_refused() -> None:
    with pytest.raises(
        RuntimeError, match=r"only Tensors of floating point .* can require gradients"
    ):
        functional.jacobian(lambda x: x.sum(), wrap(torch.arange(3)))


@pytest.mark.parametrize("options", [{}, {"strict": True}, {"create_graph": True}], ids=str)
@pytest.mark.parametrize(
    ("name", "f"),
    [
        ("vjp", LINEAR),
        ("jvp", LINEAR),
        ("jacobian", LINEAR),
        ("vhp", "squares"),
        ("hvp", "squares"),
    ],
)
def test_a_constant_derivative_is_refused_only_if_strict_and_to_be_differentiated(
    name: str, f: Any, options: Any
) -> None:
    of = (lambda x: (x * x).sum()) if f == "squares" else f
    agree(name, of, X, *(() if name in ("vjp", "jacobian") else (V,)), **options)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian", "vhp", "hvp", "hessian"])
def test_what_depends_on_all_inputs_and_is_not_linear_passes_the_strict_mode(
    name: str, create_graph: bool, strict: bool
) -> None:
    two = name in ("vhp", "hvp", "hessian")
    f = (
        (lambda x, y: (x**3).sum() * (y**3).sum())
        if two
        else (lambda x, y: (x**3 * y.sum() ** 3, (x * x).sum() * y**3))
    )
    v = {"vjp": (V, Y), "jacobian": (), "hessian": ()}.get(name, PAIR)
    agree(name, f, (X, Y), *([v] if v else []), create_graph=create_graph, strict=strict)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize(
    "inputs",
    [X[0], X[:1], (X[0],), (X[:1],)],
    ids=["number", "vector of one", "tuple", "tuple of a vector"],
)
@pytest.mark.parametrize("name", ["vjp", "jvp", "vhp", "hvp"])
def test_of_one_element_the_direction_is_one_by_default(
    name: str, inputs: Any, create_graph: bool
) -> None:
    agree(name, lambda x: x**4, inputs, create_graph=create_graph)
    if name in ("vjp", "jvp"):
        agree(name, lambda x: (x**4,), inputs, create_graph=create_graph)


def test_a_tensor_that_requires_grad_as_the_direction_is_not_differentiated_unless_asked() -> None:
    for name in ("vjp", "jvp", "vhp", "hvp"):
        f = CUBES if name in ("vjp", "jvp") else lambda x: (x**4).sum()
        for create_graph in (False, True):
            agree(name, f, X, V.clone().requires_grad_(), create_graph=create_graph)


@pytest.mark.parametrize(
    "options", [{}, {"vectorize": True}, {"vectorize": True, "strategy": "forward-mode"}], ids=str
)
def test_jacobians_of_tensors_on_another_device_live_there(options: Any) -> None:
    x, y = (wrap(torch.ones(n, dtype=torch.float64, device="meta"), True) for n in (3, 2))
    (by_x, by_y), (none, also_by_y) = functional.jacobian(
        lambda x, y: (x.sum() * y, y * y), (x, y), **options
    )
    found = [(t.device.type, tuple(t.shape), t.dtype) for t in (by_x, by_y, none, also_by_y)]
    assert found == [("meta", shape, torch.float64) for shape in ((2, 3), (2, 2), (2, 3), (2, 2))]


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", ["vjp", "jvp", "jacobian", "hvp", "vhp", "hessian"])
def test_results_have_a_history_as_asked_for_in_no_grad_mode_too(
    name: str, create_graph: bool
) -> None:
    x, f = (
        X.clone().requires_grad_(),
        CUBES if name in ("vjp", "jvp", "jacobian") else lambda x: (x**3).sum(),
    )
    direction = () if name in ("jacobian", "hessian") else (X + 1,)
    for enabled in (False, True):
        with torch.set_grad_enabled(enabled):
            agree(name, f, x, *direction, create_graph=create_graph)
            assert torch.is_grad_enabled() is enabled
