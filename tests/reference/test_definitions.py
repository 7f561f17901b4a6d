"""Definitions of arrays: they agree with torch where torch is right, and their derivatives are
right to all digits."""

import math
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from mpmath import mp, mpf

from gen.language.validate import load
from gen.reference.arrays import Definite, bits, exactly
from gen.reference.definitions import DEFINITIONS

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


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("torch.softmax", (X, 1), {}),
        ("torch.log_softmax", (X, 0), {}),
        ("torch.logsumexp", (X, 1), {}),
        ("torch.logcumsumexp", (X, 1), {}),
        ("torch.cumprod", (X, 1), {}),
        ("torch.mean", (X,), {"dim": 1, "keepdim": True}),
        ("torch.var", (X,), {"dim": 1}),
        ("torch.quantile", (X, 0.4), {"dim": 1}),
        ("torch.linalg.vector_norm", (X, 3), {}),
        ("torch.cdist", (X, Y), {}),
        ("torch.nn.functional.cosine_similarity", (X, Y), {}),
        ("torch.nn.functional.layer_norm", (X, (3,)), {}),
        ("torch.nn.functional.batch_norm", (X, None, None), {"training": True}),
        ("torch.nn.functional.avg_pool1d", (X, 2, 1), {}),
        ("torch.nn.functional.cross_entropy", (X, torch.tensor([2, 0])), {}),
        ("torch.nn.functional.cross_entropy", (X, Y.abs()), {"reduction": "sum"}),
        ("torch.nn.functional.kl_div", (X, Y.abs()), {"reduction": "batchmean"}),
        (
            "torch.nn.functional.ctc_loss",
            (X[:, None].log_softmax(2), torch.tensor([[1]]), [2], [1]),
            {"reduction": "sum"},
        ),
    ],
)
def test_definitions_agree_with_torch_at_ordinary_points(op: str, args: Any, kwargs: Any) -> None:
    call: Any = torch
    for part in op.split(".")[1:]:
        call = getattr(call, part)
    found = DEFINITIONS[op](
        *(exactly(a) if isinstance(a, torch.Tensor) else a for a in args), **kwargs
    )
    flat = torch.tensor([float(v) for v in numpy.asarray(found, dtype=object).flat], dtype=D)
    torch.testing.assert_close(flat, call(*args, **kwargs).reshape(-1))


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
    checks = load(Path(__file__).parents[2] / "matrix.yaml").matrix.checks
    assert {
        op for check in checks.values() if check.against == ["definition"] for op in check.ops
    } == set(DEFINITIONS)
