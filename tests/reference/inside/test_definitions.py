"""Definitions of arrays: they agree with torch where torch is right, and their derivatives are
right to all digits.

Inside: gen.reference.definitions and gen.reference.arrays. A cell compares a target with these
definitions. Here they are held against other formulas, with hundreds of digits.
"""

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from mpmath import mp, mpf

from gen.language.validate import load
from gen.reference.arrays import Definite, bits, exactly
from gen.reference.definitions import DEFINITIONS, MOVED
from gen.reference.scalars import Undefined

D = torch.float64
X, Y = (
    torch.tensor([[0.3, -1.2, 2.0], [1.1, 0.4, -0.7]], dtype=D),
    torch.tensor([[1.0, 0.5, -2.0], [0.2, 0.9, 1.3]], dtype=D),
)


def gradient(f: Any, x: torch.Tensor) -> list[Any]:
    with mp.workprec(bits((x,), 1)):
        target = Definite(lambda v: (numpy.asarray(f(v), dtype=object),))
        _, pullback = target.vjp(target.root, exactly(x))
        return list(pullback((numpy.asarray(mpf(1), dtype=object),))[0].flat)


R, S, T = (
    torch.linspace(-1.0, 1.3, 5, dtype=D),
    torch.tensor(0.7, dtype=D),
    torch.sin(torch.arange(1.0, 25.0, dtype=D)).reshape(2, 3, 4),
)
Z = torch.tensor([0.6 + 0.8j, -1.5 + 0.2j, 2.0 - 1.0j], dtype=torch.complex128)
LOGS = torch.log_softmax(torch.cos(torch.arange(40.0, dtype=D)).reshape(5, 2, 4), 2)
W, B = torch.tensor([0.5, -2.0, 3.0], dtype=D), torch.tensor([1.0, 0.25, -1.0], dtype=D)
NORMS: list[Any] = [1, 2, 3, 0.5, 0, -1, math.inf, -math.inf]
F = "torch.nn.functional"

ORDINARY: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    # --- rows
    *(
        (op, (x, dim), {})
        for op in ("torch.softmax", "torch.log_softmax", f"{F}.softmin")
        for x, dim in ((X, 0), (X, 1), (T, 1), (R, -1), (S, 0))
    ),
    *(
        (op, (x, dim), {})
        for op in ("torch.logcumsumexp", "torch.cumsum", "torch.cumprod")
        for x, dim in ((X, 0), (T, 1), (R, -1), (S, 0))
    ),
    ("torch.logsumexp", (X, 1), {}),
    ("torch.logsumexp", (X, 1, True), {}),
    ("torch.logsumexp", (T, [0, 2]), {}),
    ("torch.logsumexp", (S, 0, True), {}),
    ("torch.logsumexp", (R, 0, True), {}),
    # --- reductions
    *(
        (op, (x,), kwargs)
        for op in ("torch.sum", "torch.mean")
        for x, kwargs in (
            (X, {}),
            (S, {}),
            (X, {"dim": 1}),
            (X, {"dim": 0, "keepdim": True}),
            (T, {"dim": (0, 2)}),
            (R, {"dim": -1, "keepdim": True}),
            (S, {"dim": 0, "keepdim": True}),
            (T, {"dim": []}),
        )
    ),
    ("torch.prod", (X,), {}),
    ("torch.prod", (X, 1), {"keepdim": True}),
    *(
        (op, args, kwargs)
        for op in ("torch.var", "torch.std")
        for args, kwargs in (
            ((X,), {}),
            ((X, 1), {}),
            ((X, 1, False), {}),
            ((X, False), {}),
            ((X, True), {}),
            ((X, 1), {"correction": 2}),
            ((X, 1), {"correction": 0, "keepdim": True}),
            ((T, (0, 2)), {"keepdim": True}),
        )
    ),
    *(
        (op, (x, q), kwargs)
        for op in ("torch.quantile", "torch.nanquantile")
        for x in (X, T)
        for q in (0.0, 0.4, 0.5, 0.85, 1.0, torch.tensor([0.1, 0.75], dtype=D))
        for kwargs in ({}, {"dim": 1}, {"dim": 1, "keepdim": True}, {"keepdim": True})
    ),
    ("torch.quantile", (S, 0.3), {}),
    ("torch.quantile", (R, 0.625), {}),
    (f"{F}.avg_pool1d", (X, 2, 1), {}),
    (f"{F}.avg_pool1d", (X, 2), {}),
    (f"{F}.avg_pool1d", (T, (2,), (2,)), {}),
    (f"{F}.avg_pool1d", (T, 3, 1), {}),
    *(("torch.linspace.tensor_overload", (S, R[0], steps), {}) for steps in (0, 1, 2, 5)),
    # --- norms and distances
    *(
        ("torch.linalg.vector_norm", (x, ord), kwargs)
        for ord in NORMS
        for x, kwargs in ((X, {}), (X, {"dim": 1}), (T, {"dim": (0, 2), "keepdim": True}))
    ),
    ("torch.linalg.vector_norm", (S,), {}),
    ("torch.linalg.vector_norm", (X,), {}),
    ("torch.linalg.vector_norm", (torch.tensor([0.0, 2.0], dtype=D), 3), {}),
    ("torch.linalg.vector_norm", (torch.tensor([0.0, 2.0], dtype=D), 0), {}),
    ("torch.norm", (X,), {}),
    ("torch.norm", (X, 1), {"dim": 1}),
    ("torch.norm", (X, "fro"), {"dim": (0, 1), "keepdim": True}),
    ("torch.norm.fro", (X, "fro"), {}),
    ("torch.norm.inf", (X, math.inf), {"dim": 0}),
    *(("torch.dist", (X, Y, p), {}) for p in (1, 2, 3)),
    ("torch.dist", (X, Y), {}),
    *(("torch.cdist", (X, Y[:1], p), {}) for p in (1.0, 2.0, 3.0)),
    ("torch.cdist", (T, T.flip(1)[:, :2]), {}),
    *((f"{F}.pdist", (T[0], p), {}) for p in (1.0, 2.0, 3.0)),
    (f"{F}.pdist", (T[0],), {}),
    (f"{F}.pairwise_distance", (X, Y), {}),
    (f"{F}.pairwise_distance", (X, X), {}),
    (f"{F}.pairwise_distance", (X, Y, 1.0, 0.25, True), {}),
    (f"{F}.normalize", (X,), {}),
    (f"{F}.normalize", (T, 3.0, 2), {}),
    (f"{F}.normalize", (X, 2.0, 0, 2.0), {}),
    (f"{F}.normalize", (X * 1e-13,), {}),
    (f"{F}.cosine_similarity", (X, Y), {}),
    (f"{F}.cosine_similarity", (T, T.flip(0), 2), {}),
    (f"{F}.cosine_similarity", (R, R.flip(0), 0), {}),
    (f"{F}.cosine_similarity", (X * 1e-9, Y), {}),
    (f"{F}.cosine_similarity", (X, Y * 1e-9), {}),
    # --- normalizations
    (f"{F}.layer_norm", (X, (3,)), {}),
    (f"{F}.layer_norm", (T, (3, 4), T[0], T[1]), {}),
    (f"{F}.layer_norm", (X, (3,), W), {"eps": 0.5}),
    (f"{F}.layer_norm", (X * 1e-3, (3,), None, B), {}),
    (f"{F}.group_norm", (T.reshape(2, 6, 2), 3), {}),
    (
        f"{F}.group_norm",
        (T[:, [0, 1, 2, 0]], 2, torch.cat([W, S[None]]), torch.cat([B, S[None]])),
        {},
    ),
    (f"{F}.group_norm", (T * 1e-3, 1, W), {}),
    (f"{F}.group_norm", (T, 3, None, B, 0.5), {}),
    (f"{F}.instance_norm", (T,), {}),
    (f"{F}.instance_norm", (T * 1e-3, None, None, W, B), {}),
    (f"{F}.instance_norm", (T,), {"eps": 0.5}),
    (f"{F}.batch_norm", (X, None, None), {"training": True}),
    (f"{F}.batch_norm", (T * 1e-3, None, None, W, B, True), {}),
    (f"{F}.batch_norm", (T, None, None), {"training": True, "eps": 0.5}),
    (f"{F}.batch_norm", (X, B, W.abs()), {}),
    (f"{F}.batch_norm", (T, B, W.abs() * 1e-4, W, B, False), {}),
    (f"{F}.batch_norm", (T, B, W.abs(), W, B, False), {"eps": 0.5}),
    # --- losses
    *(
        (f"{F}.cross_entropy", (x, t), {"reduction": reduction})
        for x, t in (
            (X, torch.tensor([2, 0])),
            (X, torch.tensor([2, 0])),
            (X, Y.abs()),
            (T, torch.tensor([[2, 0, 1, 1], [0, 0, 2, 1]])),
            (T, T.abs()),
            (R, torch.tensor(3)),
        )
        for reduction in ("none", "sum", "mean")
    ),
    *(
        (f"{F}.kl_div", (X, t), {"reduction": reduction, "log_target": log_target})
        for t, log_target in ((Y.abs(), False), (Y, True), (Y.clamp(min=0), False))
        for reduction in ("none", "sum", "mean", "batchmean")
    ),
    *(
        (f"{F}.ctc_loss", (LOGS, targets, steps, lengths), {"reduction": reduction, "blank": blank})
        for blank, targets in ((0, [[1, 1, 2], [3, 1, 3]]), (2, [[1, 3, 0], [0, 0, 1]]))
        for steps, lengths in (([5, 5], [3, 3]), ([5, 4], [2, 1]), ([4, 1], [1, 0]))
        for reduction in ("none", "sum", "mean")
    ),
    (f"{F}.ctc_loss", (LOGS, [[1, 2], [2, 3]], [5, 5], [2, 2]), {}),
    *(
        (f"{F}.{name}", (X, Y), {"reduction": reduction})
        for name in ("mse_loss", "l1_loss")
        for reduction in ("none", "sum", "mean")
    ),
    # --- products
    ("torch.addr", (T[0], W, torch.cat([R[:3], S[None]])), {}),
    ("torch.addr", (T[0], W, torch.cat([R[:3], S[None]])), {"beta": 3, "alpha": -2}),
    ("torch.addr", (T[0], W, torch.cat([R[:3], S[None]])), {"beta": 0}),
    ("torch.outer", (W, R), {}),
    # --- complex numbers
    *(
        (f"torch.{name}", (Z,), {})
        for name in ["angle", "exp", "log", "sqrt", "abs", "reciprocal", "tanh", "sigmoid"]
    ),
    ("torch.pow", (Z, Z.flip(0)), {}),
    ("torch.log", (Z * 0 - 1,), {}),
]


def called(op: str) -> Any:
    """The function of torch that an op of the matrix calls."""
    call: Any = torch
    parts = op.split(".")[1:]
    for part in parts[: len(parts) - (parts[-1] in ("tensor_overload", "fro", "inf"))]:
        call = getattr(call, part)
    return call


def as_tensor(found: Any) -> torch.Tensor:
    array = numpy.asarray(found, dtype=object)
    numbers = [complex(v) for v in array.flat]
    plain = all(v.imag == 0 for v in numbers)
    values: list[Any] = [v.real for v in numbers] if plain else numbers
    return torch.tensor(values, dtype=D if plain else torch.complex128).reshape(array.shape)


def targets_of(args: tuple[Any, ...]) -> list[Any]:
    """The arguments as torch takes them: targets of ``ctc_loss`` are a tensor."""
    return [torch.tensor(a) if isinstance(a, list) and isinstance(a[0], list) else a for a in args]


def by_definition(op: str, args: Any, kwargs: Any) -> torch.Tensor:
    given = [exactly(a) if isinstance(a, torch.Tensor) else a for a in targets_of(args)]
    return as_tensor(DEFINITIONS[op](*given, **kwargs))


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides:UserWarning")
@pytest.mark.parametrize(("op", "args", "kwargs"), ORDINARY)
def test_definitions_agree_with_torch_at_ordinary_points(op: str, args: Any, kwargs: Any) -> None:
    found = by_definition(op, args, kwargs)
    wanted = called(op)(*targets_of(args), **kwargs)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, check_dtype=False)


REFUSED: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("torch.softmax", (X,), {}),
    ("torch.softmax", (X, 1, torch.float32), {}),
    ("torch.sum", (X,), {"dtype": torch.float32}),
    ("torch.std", (-X[:1, :1],), {}),
    ("torch.var", (X, 1), {"correction": 3}),
    ("torch.var", (X, 1), {"correction": 4}),
    ("torch.quantile", (X, 0.5), {"interpolation": "lower"}),
    ("torch.linalg.vector_norm", (torch.zeros(2, dtype=D), -1), {}),
    ("torch.linalg.vector_norm", (X, 2), {"dtype": torch.float32}),
    ("torch.norm", (X, "nuc"), {}),
    (f"{F}.avg_pool1d", (X, 2, 1, 1), {}),
    (f"{F}.avg_pool1d", (X, 2, 1), {"ceil_mode": True}),
    (f"{F}.instance_norm", (T, B, W.abs()), {"use_input_stats": False}),
    (f"{F}.batch_norm", (X, B, W.abs() - 1), {}),
    (f"{F}.cross_entropy", (X, torch.tensor([2, -100])), {}),
    (f"{F}.cross_entropy", (X, torch.tensor([2, -1])), {}),
    (f"{F}.cross_entropy", (X, torch.tensor([2, 1])), {"ignore_index": 1}),
    (f"{F}.cross_entropy", (X, torch.tensor([2, 1])), {"label_smoothing": 0.1}),
    (f"{F}.cross_entropy", (X, torch.tensor([2, 1]), exactly(W)), {}),
    (f"{F}.ctc_loss", (LOGS, torch.tensor([1, 2, 3]), [5, 5], [2, 1]), {}),
    (f"{F}.ctc_loss", (LOGS, [[1, 2], [2, 3]], [5, 5], [2, 2]), {"zero_infinity": True}),
    (f"{F}.mse_loss", (X, Y), {"weight": exactly(X)}),
    ("torch.angle", (Z * 0,), {}),
    ("torch.pow", (Z * 0, Z), {}),
    ("torch.log_softmax", (X, 1), {"half_to_float": True}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), REFUSED)
def test_what_is_not_defined_is_refused(op: str, args: Any, kwargs: Any) -> None:
    with pytest.raises(Undefined):
        by_definition(op, args, kwargs)


def test_arguments_that_change_nothing_are_taken() -> None:
    for kwargs in ({"dtype": None}, {"_stacklevel": 5}, {"half_to_float": False}):
        torch.testing.assert_close(by_definition("torch.softmax", (X, 1), kwargs), X.softmax(1))


def test_logarithms_and_roots_at_the_edge_of_what_is_real() -> None:
    zero = torch.zeros(1, dtype=D)
    assert by_definition("torch.logsumexp", (zero - 0, 0), {}).item() == 0
    assert by_definition("torch.std", (X[:, :1] * 0 + 1,), {}).item() == 0
    assert mp.isinf(DEFINITIONS["torch.log"](exactly(zero))[0])


def test_a_power_of_zero_is_one_where_the_exponent_is_zero() -> None:
    assert by_definition("torch.pow", (Z * 0, Z * 0), {}).tolist() == [1.0, 1.0, 1.0]


def test_the_moved_are_the_functions_of_differences() -> None:
    """A shift of the first inputs, as many as ``MOVED`` says, changes nothing."""
    rows = {op: (args, kwargs) for op, args, kwargs in ORDINARY if op in MOVED}
    assert rows.keys() | {f"{op}.unbiased" for op in ("torch.var", "torch.std")} >= MOVED.keys()
    unmoved = {f"{F}.cosine_similarity"}  # rounding counts all the same
    for op, (args, kwargs) in rows.items():
        if op in unmoved or kwargs.get("training") is False or op == f"{F}.batch_norm":
            continue
        moved = [
            a + 3 if i < MOVED[op] and isinstance(a, torch.Tensor) else a
            for i, a in enumerate(args)
        ]
        torch.testing.assert_close(
            by_definition(op, tuple(moved), kwargs), by_definition(op, args, kwargs)
        )


def test_a_derivative_keeps_its_tail() -> None:
    first, second = gradient(
        lambda v: DEFINITIONS["torch.softmax"](v, 0)[0], torch.tensor([40.0, 0.0], dtype=D)
    )
    assert float(first) == pytest.approx(math.exp(-40) / (1 + math.exp(-40)) ** 2, rel=1e-14)
    assert first == pytest.approx(-second, rel=1e-14)


def test_a_kink_has_no_derivative_and_a_smooth_minimum_has_zero() -> None:
    assert mp.isnan(
        gradient(lambda v: DEFINITIONS["torch.linalg.vector_norm"](v), torch.zeros(2, dtype=D))[0]
    )
    assert abs(gradient(lambda v: (v * v).sum(), torch.zeros(2, dtype=D))[0]) < 1e-20


def test_second_derivatives_are_differences_of_differences() -> None:
    x = torch.tensor([2.0, 3.0], dtype=D)
    with mp.workprec(bits((x,), 2)):
        target = Definite(lambda v: (numpy.asarray(v[0] ** 3 * v[1], dtype=object),))
        one = exactly(torch.tensor([1.0, 0.0], dtype=D))

        def inner(v: Any) -> tuple[Any, ...]:
            return target.vjp(target.root, v)[1]((numpy.asarray(mpf(1), dtype=object),))

        pushed = target.jvp(inner, (exactly(x),), (one,))[1][0]
    assert [float(v) for v in pushed] == pytest.approx([36.0, 12.0])


def test_a_complex_gradient_follows_the_convention_of_torch() -> None:
    z = torch.tensor([0.6 + 0.8j], dtype=torch.complex128, requires_grad=True)
    (right,) = torch.autograd.grad(torch.angle(z).sum(), z)
    (found,) = gradient(lambda v: DEFINITIONS["torch.angle"](v)[0], z.detach())
    assert complex(found) == pytest.approx(right.item())


def test_checks_against_definitions_name_every_op_with_one() -> None:
    checks = load(Path(__file__).parents[3] / "matrix.yaml").matrix.checks
    assert {
        op for check in checks.values() if check.against == ["definition"] for op in check.ops
    } == set(DEFINITIONS)
