"""Of backward graphs by hand, what is left of each call if one of two cotangents is absent.

Inside: ``runtime.aot.partition.absent``. Graphs by hand have each kind of call, with sizes and
strides that no program's backward pass has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from runtime.aot.capture.origins import ORIGIN, Kind, Origin
from runtime.aot.partition.absent import _have_same_sizes, _have_same_strides, without

aten: Any = torch.ops.aten
X = torch.rand(3, 4)
FIRST, SECOND, BOTH = 0b01, 0b10, 0b11


class Back:
    """A graph of ``x`` and of the cotangents ``t0`` and ``t1`` of two roots, and in it three times
    the first and five times the second."""

    def __init__(self, first: torch.Tensor = X, second: torch.Tensor = X) -> None:
        self.graph = fx.Graph()
        self.x, self.t0, self.t1 = (self.graph.placeholder(name) for name in ("x", "t0", "t1"))
        for n, value in ((self.x, X), (self.t0, first), (self.t1, second)):
            n.meta["val"] = value
        self.first = self.call(aten.mul.Tensor, self.t0, 3, roots=FIRST, val=first)
        self.second = self.call(aten.mul.Tensor, self.t1, 5, roots=SECOND, val=second)

    def call(
        self,
        func: Any,
        *args: Any,
        roots: int = BOTH,
        kind: Kind = Kind.RULE,
        val: Any = X,
        **kwargs: Any,
    ) -> fx.Node:
        n = self.graph.call_function(func, args, kwargs)
        n.meta |= {"val": val, ORIGIN: Origin(roots, kind)}
        return n

    def left(
        self, results: list[Any], present: int, whole: bool = False
    ) -> tuple[list[str], list[str]]:
        """Of the pass that has the cotangents of ``present`` the ops that it calls, and the
        terms of its results."""
        self.graph.output(results)
        made = without(fx.GraphModule({}, self.graph), [0, 1], present, whole)
        assert [n.name for n in made.graph.nodes if n.op == "placeholder"] == ["x", "t0", "t1"]
        self.made = {_op(n): n for n in made.graph.nodes if n.op == "call_function"}
        found: Any = made.graph.output_node().args[0]
        return [_op(n) for n in made.graph.nodes if n.op == "call_function"], list(
            map(_term, found)
        )


def _op(n: fx.Node) -> str:
    return str(n.target).split(".")[1]


def _term(a: Any) -> str:
    return (
        f"{_op(a)}({', '.join(map(_term, a.args))})"
        if isinstance(a, fx.Node) and a.op == "call_function"
        else str(a)
    )


FIRST_TERM, SECOND_TERM, ZEROS = "mul(t0, 3)", "mul(t1, 5)", "full([3, 4], 0)"


@pytest.mark.parametrize("kind", [Kind.SUM, Kind.RULE])
def test_a_sum_or_difference_is_the_one_term_that_is_there(kind: Kind) -> None:
    for func, present, calls, result in (
        (aten.add.Tensor, FIRST, ["mul"], FIRST_TERM),
        (aten.add.Tensor, SECOND, ["mul"], SECOND_TERM),
        (aten.sub.Tensor, FIRST, ["mul"], FIRST_TERM),
        (aten.sub.Tensor, SECOND, ["mul", "neg"], f"neg({SECOND_TERM})"),
    ):
        back = Back()
        assert back.left([back.call(func, back.first, back.second, kind=kind)], present) == (
            calls,
            [result],
        )
        assert all(n.meta["val"] is X for n in back.made.values())


def test_with_all_cotangents_every_call_stays() -> None:
    back = Back()
    total = back.call(aten.add.Tensor, back.first, back.second, kind=Kind.SUM)
    assert back.left([total], BOTH) == (
        ["mul", "mul", "add"],
        [f"add({FIRST_TERM}, {SECOND_TERM})"],
    )


def test_a_sum_of_absent_terms_and_what_follows_from_it_are_absent() -> None:
    back = Back()
    total = back.call(aten.add.Tensor, back.second, back.second, kind=Kind.SUM)
    last = back.call(aten.neg.default, total)
    assert back.left([back.first, total, last], FIRST) == (["mul"], [FIRST_TERM, "None", "None"])


def test_what_follows_from_a_term_that_stands_for_a_sum_depends_on_its_cotangent() -> None:
    back = Back()
    total = back.call(aten.add.Tensor, back.first, back.second, kind=Kind.SUM)
    last = back.call(aten.mul.Tensor, total, back.second)
    assert back.left([last], FIRST) == (["mul", "full", "mul"], [f"mul({FIRST_TERM}, {ZEROS})"])


@pytest.mark.parametrize(
    "present, term", [(FIRST, FIRST_TERM), (SECOND, f"add({ZEROS}, {SECOND_TERM})")]
)
def test_a_rule_s_sum_of_two_sizes_takes_zeros_where_the_term_has_not_its_size(
    present: int, term: str
) -> None:
    back = Back(X, X[0])
    assert back.left([back.call(aten.add.Tensor, back.first, back.second)], present)[1] == [term]


def test_a_scaled_sum_and_a_product_take_zeros() -> None:
    back = Back()
    total = back.call(aten.add.Tensor, back.first, back.second, alpha=2)
    product = back.call(aten.mul.Tensor, back.first, back.second)
    one = back.call(aten.add.Tensor, back.first, 2)
    _, results = back.left([total, product, one], FIRST)
    assert results == [
        f"add({FIRST_TERM}, {ZEROS})",
        f"mul({FIRST_TERM}, {ZEROS})",
        f"add({FIRST_TERM}, 2)",
    ]


def test_a_term_with_other_strides_than_the_sum_is_copied_into_those() -> None:
    turned = X.t().contiguous().t()
    for value, zeros in ((X, ZEROS), (turned, f"copy(empty_strided([3, 4], [1, 3]), {ZEROS})")):
        back = Back(turned if value is X else X)
        total = back.call(aten.add.Tensor, back.first, back.second, kind=Kind.SUM, val=value)
        assert back.left([total], FIRST)[1] == [f"copy({zeros}, {FIRST_TERM})"]
        assert back.made["copy"].meta["val"] is value


def test_a_program_of_the_user_s_runs_with_zeros() -> None:
    back = Back()
    own = back.call(aten.add.Tensor, back.second, 1, kind=Kind.OWN, roots=FIRST)
    user = back.call(aten.mul.Tensor, own, back.second)
    assert back.left([own, user], FIRST)[1] == [
        f"add({ZEROS}, 1)",
        f"mul(add({ZEROS}, 1), {ZEROS})",
    ]
    other = Back()
    assert other.left(
        [other.call(aten.add.Tensor, other.second, 1, kind=Kind.OWN, roots=SECOND)], FIRST
    ) == ([], ["None"])


def test_what_runs_for_an_absent_cotangent_alone_is_absent_even_if_it_takes_none() -> None:
    back = Back()
    mine, other = (back.call(aten.cos.default, back.x, roots=roots) for roots in (FIRST, SECOND))
    assert back.left([mine, other], FIRST) == (["cos"], ["cos(x)", "None"])


def test_a_draw_for_a_present_cotangent_is_made_although_nothing_uses_it() -> None:
    back = Back()
    for roots in (FIRST, SECOND):
        back.call(aten.rand_like.default, back.x, roots=roots)
    back.call(aten.sin.default, back.x, roots=FIRST)
    assert back.left([back.first], FIRST)[0] == ["mul", "rand_like"]


def test_the_sizes_of_an_absent_value_are_known() -> None:
    back = Back()
    like, compared = (
        back.call(aten.ones_like.default, back.second),
        back.call(aten.gt.Scalar, back.second, 0, val=X > 0),
    )
    assert back.left([like, compared], FIRST)[1] == [f"ones_like({ZEROS})", f"gt({ZEROS}, 0)"]


@pytest.mark.parametrize("whole, result", [(False, "None"), (True, ZEROS)])
def test_an_absent_result_is_none_or_zeros_and_a_constant_one_itself(
    whole: bool, result: str
) -> None:
    back = Back()
    assert back.left([back.first, back.second, None, 7], FIRST, whole)[1] == [
        FIRST_TERM,
        result,
        "None",
        "7",
    ]


@pytest.mark.parametrize(
    "value, zeros",
    [
        (X, ZEROS),
        (X.double(), ZEROS),
        (X.t(), "copy(empty_strided([4, 3], [1, 4]), full([4, 3], 0))"),
        (X[:, :1].expand(3, 4), ZEROS),
        (X.to_sparse(), f"zeros_like({SECOND_TERM})"),
    ],
    ids=["plain", "of another dtype", "transposed", "expanded", "sparse"],
)
def test_zeros_are_laid_out_as_the_value_that_is_absent(value: torch.Tensor, zeros: str) -> None:
    back = Back(X, value)
    assert back.left([back.second], FIRST, True)[1] == [zeros]
    for name in ("full", "empty_strided"):
        assert name not in back.made or back.made[name].kwargs == {
            "dtype": value.dtype,
            "device": value.device,
        }
    assert back.made[zeros.partition("(")[0]].meta["val"] is value


def test_zeros_of_one_value_are_made_once() -> None:
    back = Back()
    assert back.left([back.second, back.second], FIRST, True) == (["full"], [ZEROS, ZEROS])


def test_an_absent_cotangent_itself_is_no_result() -> None:
    for present, results in ((FIRST, ["t0", "None", "x"]), (SECOND, ["None", "t1", "x"])):
        back = Back()
        assert back.left([back.t0, back.t1, back.x], present) == ([], results)


def _node(value: Any) -> fx.Node:
    n = fx.Graph().placeholder("x")
    n.meta["val"] = value
    return n


@pytest.mark.parametrize(
    "one, other, alike, same_strides",
    [
        (X, X.clone(), True, True),
        (X, X.t().contiguous().t(), True, False),
        (X, X.double(), False, True),
        (X, X[:2], False, True),
        (X, X[0], False, True),
        (X[:1], X.as_strided((1, 4), (9, 1)), True, True),
        (X, X.to_sparse(), True, True),
        (X.to_sparse(), X, True, True),
        (X, None, False, True),
        (3, X, False, True),
    ],
    ids=[
        "itself",
        "turned",
        "another dtype",
        "fewer rows",
        "a row",
        "one row",
        "sparse",
        "of sparse",
        "nothing",
        "a number",
    ],
)
def test_what_two_values_have_in_common(
    one: Any, other: Any, alike: bool, same_strides: bool
) -> None:
    assert _have_same_sizes(_node(one), _node(other)) is alike
    assert _have_same_strides(_node(one), _node(other)) is same_strides
