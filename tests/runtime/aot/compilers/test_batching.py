"""Independent small calls of one op are one call of its ``_foreach`` form, of the same bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime import aot, jit
from runtime.aot.compilers.batching import LIST, NUMBERS, ONE, batch, form, gather

from .random_graphs import bits
from .rewritten_graphs import calls

aten = torch.ops.aten
X, Y = torch.randn(4, 3), torch.rand(4, 3)
_OPS = [aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.maximum.default, aten.minimum.default, aten.lerp.Scalar]
_OPS += [
    aten.addcmul.default,
    aten.addcdiv.default,
    aten.lerp.Tensor,
    aten.pow.Tensor_Scalar,
    aten.clamp_min.default,
    aten.clamp_max.default,
]
_OPS += [getattr(aten, name).default for name in (
    "sqrt", "neg", "abs", "exp", "log", "sin", "cos", "tanh", "sigmoid", "reciprocal", "rsqrt", "sign", "floor", "erf", "expm1", "log1p",
)]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("func", _OPS, ids=str)
def test_a_batch_has_the_bits_of_the_single_calls(func: Any, dtype: torch.dtype) -> None:
    """On this torch: sizes around the vectors of a processor, with zeros of both signs, infinities and a NaN."""
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")], dtype=dtype)
    lists = [[torch.cat([special, torch.randn(n, dtype=dtype)]).roll(k) for n in (0, 1, 3, 11, 250)] for k in range(3)]
    ways = tuple(LIST if str(a.type) == "Tensor" else ONE for a in func._schema.arguments)
    found = form(func, ways)
    assert found is not None
    target, _ = found
    given: list[Any] = []
    for i, a in enumerate(func._schema.arguments):
        given.append(lists[i] if ways[i] == LIST else 0.3 if a.name in ("weight", "exponent", "min", "max") else 1)
    arguments = target._schema.arguments
    named = {a.name: x for a, x in zip(arguments, given, strict=True) if a.kwarg_only}
    batch = target(*given[: len(given) - len(named)], **named)
    for i, result in enumerate(batch):
        each = [g[i] if isinstance(g, list) else g for g in given]
        single = func(*(x for x, a in zip(each, func._schema.arguments, strict=True) if not a.kwarg_only))
        assert torch.equal(bits(result), bits(single))


@pytest.mark.parametrize("func", [aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor])
def test_a_batch_with_one_number_has_the_bits_of_the_single_calls(func: Any) -> None:
    target, _ = form(func, (LIST, ONE, ONE)[: len(func._schema.arguments)])  # type: ignore[misc]
    number, lists = torch.tensor(0.1), [torch.randn(n) for n in (1, 7, 100)]
    assert all(torch.equal(bits(a), bits(func(x, number))) for a, x in zip(target(lists, number), lists, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("func", [aten.div_.Tensor, aten.mul_.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.addcdiv_.default], ids=str)
def test_a_batch_with_a_number_for_each_has_the_bits_of_the_single_calls(func: Any, dtype: torch.dtype) -> None:
    numbers, n = [0.1, 1 / 3, -0.0], len([a for a in func._schema.arguments if str(a.type) == "Tensor"])
    ways = (LIST, NUMBERS) if n == 2 else (LIST, LIST, LIST, NUMBERS)
    found = form(func, (*ways, ONE)[: len(func._schema.arguments)])
    assert found is not None
    lists = [[torch.randn(k, dtype=dtype) for k in (3, 8, 100)] for _ in range(ways.count(LIST))]
    expected = []
    for i, number in enumerate(numbers):
        given = [t[i].clone() for t in lists]
        expected.append(func(*given, number) if n == 2 else func(*given, value=number))
    results = found[0](*lists, numbers) or lists[0]
    assert all(torch.equal(bits(a), bits(b)) for a, b in zip(results, expected, strict=True))


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
    batched = ["_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_div", "_foreach_addcdiv_"]
    assert all(name in names for name in batched) and not {"lerp_", "addcmul_", "addcdiv_", "copy_"} & set(names)


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
    assert [name for name in names if "cos" in name] == ["_foreach_cos_", "cos"]  # in place, but for that of the argument
    assert names.count("sin") == 5


def test_calls_that_need_one_another_are_not_batched() -> None:
    assert not [name for name in calls(lambda x, y: ((x * y) * y).sin().sin(), X, Y) if "foreach" in name]


def test_large_tensors_are_not_batched() -> None:
    large = torch.randn(200, 200)
    assert not [name for name in calls(lambda x, y: (x.sin(), y.sin()), large, large + 1) if "foreach" in name]
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
    assert "_foreach_mul" in calls(lambda x, y, z: (x * z, y * z[0], y[0] * z), X, Y, torch.randn(4, 3))


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


def test_a_constant_of_several_elements_is_taken_by_each_call() -> None:
    graph, constant = torch.fx.Graph(), torch.arange(6.0).view(2, 3)
    inputs = [graph.placeholder(name) for name in "ab"]
    products = [graph.call_function(torch.ops.aten.mul.Tensor, (x, constant)) for x in inputs]
    graph.output(products)
    for n in (*inputs, *products):
        n.meta["val"] = torch.ones(2, 3)
    batch(graph, gather(graph))
    found = torch.fx.Interpreter(torch.nn.Module(), graph=graph).run(torch.ones(2, 3), torch.full((2, 3), 2.0))
    assert torch.equal(found[0], constant) and torch.equal(found[1], 2 * constant)
    assert next(n.target for n in graph.nodes if n.op == "call_function") is torch.ops.aten._foreach_mul.List
