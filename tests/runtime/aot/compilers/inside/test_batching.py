"""How calls of one op are made one call over lists.

Inside: ``runtime.aot.compilers.batching``. Graphs that are made by hand have each order and each
kind of argument that decides, and captures of programs have few of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from runtime import aot
from runtime.aot.compilers.batching import LIST, NUMBERS, ONE, _Lifetimes, batch, form, gather
from runtime.aot.compilers.peephole import rewritten
from tests.runtime.aot.compilers.random_graphs import bits
from tests.runtime.aot.compilers.rewritten_graphs import names

aten = torch.ops.aten
X, Y = torch.randn(4, 3), torch.rand(4, 3)
_OPS = [
    aten.add.Tensor,
    aten.sub.Tensor,
    aten.mul.Tensor,
    aten.div.Tensor,
    aten.maximum.default,
    aten.minimum.default,
    aten.lerp.Scalar,
]
_OPS += [
    aten.addcmul.default,
    aten.addcdiv.default,
    aten.lerp.Tensor,
    aten.pow.Tensor_Scalar,
    aten.clamp_min.default,
    aten.clamp_max.default,
]
_OPS += [getattr(aten, name).default for name in (
    "sqrt", "neg", "abs", "exp", "log", "sin", "cos", "tanh", "sigmoid", "reciprocal", "rsqrt",
    "sign", "floor", "erf", "expm1", "log1p",
)]  # fmt: skip


def _special_lists(dtype: torch.dtype) -> list[list[Tensor]]:
    """Return three lists of tensors with zeros of both signs, infinities and a NaN.

    Their sizes lie around the vectors of a processor.
    """
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")], dtype=dtype)

    def tensor(size: int, shift: int) -> Tensor:
        return torch.cat([special, torch.randn(size, dtype=dtype)]).roll(shift)

    return [[tensor(size, shift) for size in (0, 1, 3, 11, 250)] for shift in range(3)]


def _arguments(func: Any, lists: list[list[Tensor]]) -> Iterator[Any]:
    """Yield a list for each argument that is a tensor, and a number for each other one."""
    for place, argument in enumerate(func._schema.arguments):
        if str(argument.type) == "Tensor":
            yield lists[place]
        # An alpha is 1, which the calls of a batch have in common.
        else:
            yield 0.3 if argument.name in ("weight", "exponent", "min", "max") else 1


def _call(func: Any, values: Sequence[Any]) -> Any:
    """Call an op, with those of the values by keyword that its schema wants so."""
    arguments = list(zip(func._schema.arguments, values, strict=True))
    named = {argument.name: value for argument, value in arguments if argument.kwarg_only}
    return func(*(value for argument, value in arguments if not argument.kwarg_only), **named)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("func", _OPS, ids=str)
def test_a_batch_has_the_bits_of_the_single_calls(func: Any, dtype: torch.dtype) -> None:
    values = list(_arguments(func, _special_lists(dtype)))
    found = form(func, tuple(LIST if isinstance(value, list) else ONE for value in values))
    assert found is not None
    target, _ = found
    for i, result in enumerate(_call(target, values)):
        single = _call(func, [value[i] if isinstance(value, list) else value for value in values])
        assert torch.equal(bits(result), bits(single))


@pytest.mark.parametrize("func", [aten.add.Tensor, aten.mul.Tensor, aten.div.Tensor])
def test_a_batch_with_one_number_has_the_bits_of_the_single_calls(func: Any) -> None:
    target, _ = form(func, (LIST, ONE, ONE)[: len(func._schema.arguments)])  # type: ignore[misc]
    number, lists = torch.tensor(0.1), [torch.randn(n) for n in (1, 7, 100)]
    assert all(
        torch.equal(bits(a), bits(func(x, number)))
        for a, x in zip(target(lists, number), lists, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "func",
    [aten.div_.Tensor, aten.mul_.Tensor, aten.add_.Tensor, aten.sub.Tensor, aten.addcdiv_.default],
    ids=str,
)
def test_a_batch_with_a_number_for_each_has_the_bits_of_the_single_calls(
    func: Any, dtype: torch.dtype
) -> None:
    numbers, n = (
        [0.1, 1 / 3, -0.0],
        len([a for a in func._schema.arguments if str(a.type) == "Tensor"]),
    )
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


def test_a_constant_of_several_elements_is_taken_by_each_call() -> None:
    graph, constant = torch.fx.Graph(), torch.arange(6.0).view(2, 3)
    inputs = [graph.placeholder(name) for name in "ab"]
    products = [graph.call_function(torch.ops.aten.mul.Tensor, (x, constant)) for x in inputs]
    graph.output(products)
    for n in (*inputs, *products):
        n.meta["val"] = torch.ones(2, 3)
    batch(graph, gather(graph))
    found = torch.fx.Interpreter(torch.nn.Module(), graph=graph).run(
        torch.ones(2, 3), torch.full((2, 3), 2.0)
    )
    assert torch.equal(found[0], constant) and torch.equal(found[1], 2 * constant)
    assert (
        next(n.target for n in graph.nodes if n.op == "call_function")
        is torch.ops.aten._foreach_mul.List
    )


S, T = torch.tensor(0.5), torch.tensor(0.25)


def batches(f: Callable[..., Any], *args: Tensor) -> list[tuple[str, int]]:
    """The calls of ``_foreach`` ops in ``f``, each with the number of its calls."""
    graph = rewritten(aot.make_fx(f)(*args).graph)[0]
    return [
        (str(n.target), len(n.args[0]))
        for n in graph.nodes
        if n.op == "call_function" and "foreach" in str(n.target)
    ]


FORMS: dict[str, tuple[Callable[..., Any], list[tuple[str, int]]]] = {
    "one tensor for each": (lambda x, y, s, t: (x * y, y * x), [("aten._foreach_mul.List", 2)]),
    "a number for all": (lambda x, y, s, t: (x + 5, y + 5), [("aten._foreach_add.Tensor", 2)]),
    "a tensor of one number for all": (
        lambda x, y, s, t: (x * s, y * s),
        [("aten._foreach_mul.Tensor", 2)],
    ),
    "two tensors of one number": (lambda x, y, s, t: (x * s, y * t), []),
    "two tensors of one number for two each": (
        lambda x, y, s, t: (x * s, y * s, x[0] * t, y[0] * t),
        [("aten._foreach_mul.Tensor", 2), ("aten._foreach_mul.Tensor", 2)],
    ),
    "numbers themselves": (lambda x, y, s, t: (s * t, t * s), [("aten._foreach_mul.List", 2)]),
    "the factor of a sum": (
        lambda x, y, s, t: (torch.add(x, y, alpha=3), torch.add(y, x, alpha=3)),
        [("aten._foreach_add.List", 2)],
    ),
    "other factors of a sum": (
        lambda x, y, s, t: (torch.add(x, y, alpha=3), torch.add(y, x, alpha=2)),
        [],
    ),
    "a factor of a sum with a number": (
        lambda x, y, s, t: (torch.add(x, 5, alpha=2), torch.add(y, 5, alpha=2)),
        [],
    ),
    "a weight": (
        lambda x, y, s, t: (x.lerp(y, 0.5), y.lerp(x, 0.5)),
        [("aten._foreach_lerp.Scalar", 2)],
    ),
    "other weights": (lambda x, y, s, t: (x.lerp(y, 0.5), y.lerp(x, 0.25)), []),
    "an exponent": (lambda x, y, s, t: (x.pow(3), y.pow(3)), [("aten._foreach_pow.Scalar", 2)]),
    "a power of a number": (lambda x, y, s, t: (torch.pow(2, x), torch.pow(2, y)), []),
    "three": (lambda x, y, s, t: (x.sin(), y.sin(), s.sin()), [("aten._foreach_sin.default", 3)]),
    "one": (lambda x, y, s, t: (x.sin(), y.cos()), []),
    "an op without a form": (lambda x, y, s, t: (x.atan2(y), y.atan2(x)), []),
    "a clone": (lambda x, y, s, t: (x.clone(), y.clone()), [("aten._foreach_clone.default", 2)]),
    "another dtype": (lambda x, y, s, t: (x.half().sin(), y.half().sin()), []),
    "a sum over two dtypes": (lambda x, y, s, t: (x + y.half(), y + x.half()), []),
    "a number that torch promotes": (lambda x, y, s, t: (x * s.double(), y * s.double()), []),
}


@pytest.mark.parametrize("f, expected", FORMS.values(), ids=FORMS)
def test_a_batch_takes_the_form_of_its_arguments(f: Any, expected: list[tuple[str, int]]) -> None:
    assert batches(f, X, Y, S, T) == expected


def test_a_batch_tells_of_its_first_call_where_it_is_from_and_of_each_what_it_gives() -> None:
    graph = aot.make_fx(lambda x, y: [x.sin(), y.sin()])(X, Y[:2]).graph
    for n in graph.nodes:
        n.meta["note"] = n.name
    batch(graph, gather(graph))
    merged, *items = (n for n in graph.nodes if n.op == "call_function")
    items.sort(key=lambda n: int(n.args[1]))
    assert merged.meta["note"] == "sin" and [i.meta["note"] for i in items] == ["sin", "sin_1"]
    assert (
        [v.shape for v in merged.meta["val"]]
        == [i.meta["val"].shape for i in items]
        == [(4, 3), (2, 3)]
    )


def test_a_batch_stands_where_its_last_farthest_call_stood() -> None:
    graph = aot.make_fx(lambda x, y: [x.sin(), x.exp(), y.cos(), y.sin()])(X, Y).graph
    assert [len(b) for b in gather(graph)] == [2]
    assert names(graph) == ["exp", "cos", "sin", "sin"]


def test_a_nearer_call_comes_to_the_place_of_the_last_farthest_one_of_its_batch() -> None:
    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        u, far, other = y * 2, x.sin(), x.exp()
        return [far.cos(), other, u.sin()]

    graph = aot.make_fx(f)(X, Y).graph
    assert [len(b) for b in gather(graph)] == [2]
    assert names(graph) == ["mul", "sin", "sin", "exp", "cos"]


def test_a_call_is_in_no_batch_before_its_arguments_are_computed() -> None:
    """``n`` needs ``a``, which is taken together with ``c``, which needs ``far``: so ``n`` cannot
    be taken together with ``far``."""

    def f(x: Tensor, y: Tensor) -> list[Tensor]:
        a, far = x.exp(), y.sin()
        n, c = a.sin(), far.exp()
        return [n.tanh(), c.cos().neg()]

    graph = aot.make_fx(f)(X, Y).graph
    assert [[n.name for n in b] for b in gather(graph)] == [["exp", "exp_1"]]
    found = fx.Interpreter(torch.nn.Module(), graph=graph).run(X, Y)
    assert all(torch.equal(a, b) for a, b in zip(found, f(X, Y), strict=True))


def test_calls_that_are_left_out_of_a_batch_are_the_next_one() -> None:
    graph = aot.make_fx(lambda x, y: [x.sin().cos(), y.sin(), (y + 1).sin()])(X, Y).graph
    assert [[n.name for n in b] for b in gather(graph)] == [["sin_1", "sin_2"]]


def test_calls_that_no_form_takes_stay_where_they_are() -> None:
    graph = aot.make_fx(lambda x, y: [torch.pow(2, x), x.exp(), torch.pow(2, y)])(X, Y).graph
    assert gather(graph) == [] and names(graph) == ["pow", "exp", "pow"]


def test_calls_that_do_not_fit_into_a_batch_stay_where_they_are() -> None:
    sizes = [(1 << 14,)] * 17 + [(3,)]
    graph = aot.make_fx(lambda *each: [x.atan2(x).sin() for x in each])(
        *map(torch.ones, sizes)
    ).graph
    (group,) = gather(graph)
    others = [n for n in graph.nodes if n.target is aten.sin.default and n not in group]
    assert (len(group), len(others)) == (16, 2) and all(n.prev is n.args[0] for n in others)


OPS: dict[str, Any] = {
    name: getattr(aten, name).default for name in ("neg", "exp", "sin", "cos", "t", "sum")
} | {"mul": aten.mul.Tensor}


@pytest.mark.parametrize(
    "program, free",
    [
        pytest.param("u = neg x; far = exp x; n = sin u", True, id="its argument ends"),
        pytest.param("u = neg x; far = exp x; n = mul u x", True, id="one of two arguments ends"),
        pytest.param("far = exp x; n = sin x", False, id="an input does not end"),
        pytest.param("u = sum x; far = exp x; n = mul u x", False, id="what ends is smaller"),
        pytest.param("u = t x; far = exp x; n = sin u", False, id="a view ends"),
        pytest.param(
            "u = neg x; far = exp x; n = sin u; return u", False, id="its argument is a result"
        ),
        pytest.param(
            "u = neg x; c = cos u; far = exp x; n = sin u", True, id="its argument is used before"
        ),
        pytest.param("u = neg x; far = exp u; n = sin u", False, id="its argument is used there"),
        pytest.param(
            "u = neg x; far = exp x; n = sin u; c = cos u", False, id="its argument is used later"
        ),
        pytest.param(
            "u = neg x; v = t u; far = exp x; n = sin u", False, id="its argument has a view"
        ),
        pytest.param(
            "u = neg x; far = exp x; n = mul u far", False, id="it needs what is computed there"
        ),
    ],
)
def test_a_nearer_call_is_taken_where_it_ends_an_argument_of_its_size(
    program: str, free: bool
) -> None:
    graph = fx.Graph()
    values = {"x": graph.placeholder("x")}
    returned = ["n"]
    for line in program.split("; "):
        if line.startswith("return"):
            returned += line.split()[1:]
        else:
            name, _, op, *args = line.split()
            values[name] = graph.call_function(OPS[op], tuple(values[a] for a in args))
            values[name].meta["val"] = X.sum() if op == "sum" else X
    values["x"].meta["val"] = X
    graph.output([values[name] for name in returned])
    place = {n: i for i, n in enumerate(n for n in graph.nodes if n.op == "call_function")}
    assert (_Lifetimes(place).free_after(values["n"]) < place[values["far"]]) is free


def _graph(*calls: tuple[Any, ...]) -> tuple[fx.Graph, list[list[fx.Node]]]:
    """A graph of the inputs ``a``, ``b``, ``c`` and ``d``, and of calls, whose strings name inputs
    and whose numbers name earlier calls. The last two are a batch."""
    graph = fx.Graph()
    values: dict[Any, fx.Node] = {name: graph.placeholder(name) for name in "abcd"}
    for i, (func, *args) in enumerate(calls):
        last = func._schema.arguments[-1]
        kwargs: dict[str, Any] = (
            {last.name: values[args.pop()]}
            if last.alias_info is not None and last.kwarg_only
            else {}
        )
        values[i] = graph.call_function(func, tuple(values[a] for a in args), kwargs)
    for n in values.values():
        n.meta["val"] = torch.empty(3, device="cpu")
    graph.output([values[len(calls) - 2], values[len(calls) - 1]])
    return graph, [[values[len(calls) - 2], values[len(calls) - 1]]]


ADD, MUL_OUT, TANH_OUT = aten.add_.Tensor, aten.mul.out, aten.tanh_backward.grad_input


@pytest.mark.parametrize(
    "calls, together",
    [
        pytest.param([(ADD, "a", "b"), (ADD, "c", "d")], True, id="four arguments"),
        pytest.param([(ADD, "a", "b"), (ADD, "c", "b")], True, id="both read one"),
        pytest.param([(ADD, "a", "a"), (ADD, "c", "c")], True, id="each reads what it writes"),
        pytest.param([(ADD, "a", "b"), (ADD, "a", "c")], False, id="both write one"),
        pytest.param(
            [(ADD, "a", "b"), (ADD, "c", "a")], False, id="the second reads what the first writes"
        ),
        pytest.param(
            [(ADD, "a", "c"), (ADD, "c", "b")], False, id="the first reads what the second writes"
        ),
        pytest.param(
            [(ADD, "a", "b"), (ADD, 0, "c"), (ADD, "d", "a")],
            False,
            id="through the result of a write",
        ),
        pytest.param(
            [(ADD, "a", "b"), (ADD, "c", "b"), (ADD, "d", 0)],
            True,
            id="reads the result of another write",
        ),
        pytest.param(
            [(MUL_OUT, "a", "b", "c"), (ADD, 0, "b"), (ADD, "d", "c")],
            False,
            id="through what a call has written to",
        ),
        pytest.param(
            [(MUL_OUT, "a", "b", "c"), (ADD, 0, "b"), (ADD, "d", "a")],
            True,
            id="what that call has read is free",
        ),
        pytest.param(
            [(TANH_OUT, "a", "b", "c"), (ADD, 0, "b"), (ADD, "d", "c")],
            False,
            id="by another name than out",
        ),
        pytest.param(
            [(TANH_OUT, "a", "b", "c"), (ADD, 0, "b"), (ADD, "d", "a")],
            True,
            id="what was read for another name",
        ),
        pytest.param(
            [(aten.alias.default, "a"), (ADD, 0, "b"), (ADD, "c", "a")], False, id="through a view"
        ),
        pytest.param(
            [(aten.alias.default, "a"), (ADD, "a", "b"), (ADD, "c", 0)], False, id="a view is read"
        ),
        pytest.param(
            [(aten.alias.default, "a"), (aten.alias.default, 0), (ADD, 1, "b"), (ADD, "c", 0)],
            False,
            id="views of views",
        ),
        pytest.param(
            [(aten.neg.default, "a"), (ADD, 0, "b"), (ADD, "c", "a")], True, id="a new tensor"
        ),
        pytest.param(
            [(aten.neg.default, "a"), (aten.neg.default, "b")], True, id="nothing is written"
        ),
        pytest.param(
            [(MUL_OUT, "a", "a", "b"), (MUL_OUT, "c", "c", "d")],
            False,
            id="no form writes to given tensors",
        ),
    ],
)
def test_calls_are_together_where_none_writes_what_another_one_takes(
    calls: list[tuple[Any, ...]], together: bool
) -> None:
    graph, groups = _graph(*calls)
    batch(graph, groups)
    assert any("foreach" in name for name in names(graph)) is together


def test_a_batch_stands_behind_what_its_last_call_takes() -> None:
    graph, _ = _graph((aten.sin.default, "a"), (aten.neg.default, "b"), (aten.sin.default, 1))
    first, _, last = (n for n in graph.nodes if n.op == "call_function")
    batch(graph, [[first, last]])
    assert names(graph) == ["neg", "_foreach_sin", "getitem", "getitem"]
    graph, _ = _graph(
        (aten.sin.default, "a"),
        (aten.sin.default, "b"),
        (aten.neg.default, "c"),
        (aten.sin.default, 2),
    )
    batch(graph, [[n for n in graph.nodes if n.target is aten.sin.default]])
    assert names(graph) == ["neg", "_foreach_sin", "getitem", "getitem", "getitem"]


def test_a_call_with_a_number_that_is_read_is_in_no_batch_with_one_of_two_tensors() -> None:
    graph, _ = _graph((aten.mul.Tensor, "a", "d"), (aten.mul.Tensor, "b", "c"))
    next(n for n in graph.nodes if n.name == "d").meta["val"] = 2.5
    assert gather(graph) == []


def test_batches_are_made_from_the_last_one_to_the_first() -> None:
    """The second reads what the first writes, and not the other way."""
    graph, (second,) = _graph(
        (ADD, "a", "b"), (ADD, "c", "d"), (aten.neg.default, 0), (aten.neg.default, 1)
    )
    first = [n for n in graph.nodes if n.target is ADD]
    batch(graph, [first, second])
    assert names(graph) == ["_foreach_add_", "_foreach_neg", "getitem", "getitem"]


@pytest.mark.parametrize(
    "func, ways",
    [
        (aten.sin.default, ("List[{}]",)),
        (aten.mul.Tensor, ("List[{}]", "List[{}]")),
        (aten.mul.Tensor, ("List[{}]", "{}")),
        (aten.mul_.Tensor, ("List[{}]", "number")),
    ],
)
def test_a_form_begins_with_a_list(func: Any, ways: tuple[str, ...]) -> None:
    assert form(func, ways) is not None
    assert form(func, ("{}", *ways[1:])) is None
    assert form(abs, ways) is None and form("sin", ways) is None
    # of `pow.Scalar` the first argument is the number
    assert form(aten.pow_.Scalar, ("List[{}]", "{}")) is None
    assert form(aten.copy.default, ("List[{}]", "List[{}]", "{}")) is None
