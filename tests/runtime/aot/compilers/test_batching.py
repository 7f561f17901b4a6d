"""Independent small calls of one op are one call of its ``_foreach`` form, of the same bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from runtime import aot, jit

from .rewritten_graphs import calls, rewrites, runs

aten = torch.ops.aten
X, Y = torch.randn(4, 3), torch.rand(4, 3)


def test_numbers_that_a_program_reads_are_taken_together() -> None:
    def f(x: torch.Tensor, y: torch.Tensor, s: torch.Tensor, t: torch.Tensor) -> Any:
        return x / (1 - 0.9 ** s.item()), y / (1 - 0.9 ** t.item())

    compiled = jit(f)
    for s, t in ((1.0, 2.0), (3.0, 5.0)):
        given = X, Y, torch.tensor(s), torch.tensor(t)
        assert all(torch.equal(a, b) for a, b in zip(compiled(*given), f(*given), strict=True))


def _adam(p: Any, q: Any, m: Any, n: Any, v: Any, w: Any, g: Any, h: Any, step: Any) -> None:
    step.add_(1)
    first, second = 1 - 0.9**step, (1 - 0.999**step).sqrt()
    for param, mean, square, grad in ((p, m, v, g), (q, n, w, h)):
        mean.lerp_(grad, 0.1)
        square.mul_(0.999).addcmul_(grad, grad, value=0.001)
        param.addcdiv_(mean / first * -0.01, (square.sqrt() / second).add_(1e-8))


def test_an_optimizer_takes_all_parameters_together() -> None:
    shapes = [(4, 3), (5,)] * 4
    given = [torch.rand(s) for s in shapes]
    names = calls(_adam, *given, torch.tensor(0.0))
    batched = [
        "_foreach_lerp_",
        "_foreach_mul_",
        "_foreach_addcmul_",
        "_foreach_sqrt",
        "_foreach_div",
        "_foreach_addcdiv_",
    ]
    assert all(name in names for name in batched) and not {
        "lerp_",
        "addcmul_",
        "addcdiv_",
        "copy_",
    } & set(names)


def test_calls_at_several_distances_from_the_output_are_taken_together() -> None:
    def slope(x: torch.Tensor) -> torch.Tensor:
        """Of six sines of one another."""
        values = [x]
        for _ in range(5):
            values.append(values[-1].sin())
        product = values.pop().cos()
        while values:
            product = product * values.pop().cos()
        return product

    names = calls(slope, X)
    # in place, but for that of the argument
    assert [name for name in names if "cos" in name] == ["_foreach_cos_", "cos"]
    assert names.count("sin") == 5


def test_calls_that_need_one_another_are_not_batched() -> None:
    assert not [
        name for name in calls(lambda x, y: ((x * y) * y).sin().sin(), X, Y) if "foreach" in name
    ]


def test_large_tensors_are_not_batched() -> None:
    large = torch.randn(200, 200)
    assert not [
        name
        for name in calls(lambda x, y: (x.sin(), y.sin()), large, large + 1)
        if "foreach" in name
    ]
    assert calls(lambda x, y: (x.sin(), y.sin()), X, Y)[0] == "_foreach_sin"


def test_other_numbers_and_dtypes_are_other_batches() -> None:
    assert "_foreach_mul" not in calls(lambda x, y: (x * 2, y * 3), X, Y)
    assert "_foreach_sin" not in calls(lambda x, y: (x.sin(), y.sin()), X, Y.double())
    assert "_foreach_sin" not in calls(lambda x, y: (x.sin(), y.sin()), X.half(), Y.half())


def test_numbers_that_stay_numbers_are_batched() -> None:
    large = (1 << 24) + 1  # no number of float32
    calls(lambda x, y: (x + large, y + large), X, Y)
    calls(lambda x, y: (torch.add(x, y, alpha=3), torch.add(y, x, alpha=3)), X, Y)
    calls(lambda x, y: (torch.add(x, large, alpha=2), torch.add(y, large, alpha=2)), X, Y)


def test_a_boolean_is_a_number() -> None:
    assert "_foreach_mul" in calls(lambda x, y: (x * True, y * True), X, Y)
    assert "_foreach_add_" in calls(lambda x, y: (x.sin() + False, y.sin() + False), X, Y)


def test_operands_of_several_sizes_are_expanded_as_by_single_calls() -> None:
    assert "_foreach_mul" in calls(
        lambda x, y, z: (x * z, y * z[0], y[0] * z), X, Y, torch.randn(4, 3)
    )


def test_a_call_that_writes_what_another_one_reads_is_not_in_its_batch() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> None:
        new = x + y
        y.add_(x)
        x.copy_(new)

    calls(f, X, Y)


def test_draws_keep_their_order() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = torch.bernoulli(x.sigmoid())
        b = torch.rand_like(y)
        return a.sin(), b.sin(), (torch.rand_like(x) + a).sin()

    torch.manual_seed(3)
    ours = aot.aot_function(f, aot.nop)(X, Y)
    torch.manual_seed(3)
    assert all(torch.equal(a, b) for a, b in zip(ours, f(X, Y), strict=True))


def sines(*each: Tensor) -> list[Tensor]:
    return [x.sin() for x in each]


def test_tensors_are_batched_up_to_2_to_the_14_elements() -> None:
    for dtype in (torch.float32, torch.float64):
        assert runs(sines, (1 << 14,), (1 << 14,), dtype=dtype)[0] == "_foreach_sin"
        assert runs(sines, (1 << 14 | 1,), (1 << 14 | 1,), dtype=dtype) == ["sin", "sin"]


def test_a_batch_takes_the_smallest_results_up_to_a_mebibyte() -> None:
    assert runs(sines, *[(1 << 14,)] * 16).count("sin") == 0
    assert runs(sines, *[(1 << 14,)] * 17).count("sin") == 1
    found = rewrites(sines, *[(1 << 14,)] * 16, (5,), (3,))
    made = list(zip(found.ops, found.results, strict=True))
    (alone,) = (result for op, result in made if op is aten.sin.default)
    assert alone.shape == (1 << 14,)
    assert sum(len(results) for op, results in made if op is aten._foreach_sin.default) == 17
