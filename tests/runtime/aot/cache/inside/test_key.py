"""How parts of a key read.

Inside: ``runtime.aot.cache.key``. The folder shows digests of these texts alone. A text of two
values that a cut may treat differently must differ, for more values than programs have here."""

from __future__ import annotations

import itertools
import operator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import runtime
from runtime import aot
from runtime.aot.cache.key import (
    NoKey,
    _describe_partition,
    _literal,
    _record,
    _size,
    _target,
    _value,
    differing,
    digest_of_source,
    versions,
)

CUT: Any = aot.min_cut_rematerialization_partition
aten: Any = torch.ops.aten
META: Any = {"device": "meta"}
_MODE = FakeTensorMode(shape_env=ShapeEnv())
M, N = cast(Any, _MODE.from_tensor(torch.ones(5, 7)).shape)


class Kind(Enum):
    ONE = 1
    TWO = 2


@dataclass(frozen=True)
class Made:
    how: Kind
    sizes: tuple[Any, ...]


@dataclass(frozen=True)
class Taken:
    how: Kind
    sizes: tuple[Any, ...]


def symbolic(*sizes: Any) -> torch.Tensor:
    with _MODE:
        return torch.empty(*sizes)


VALUES = [
    torch.ones(2, 3, **META),
    torch.ones(3, 2, **META),
    torch.ones(3, 2, **META).t(),
    torch.ones(2, 3),
    torch.ones(2, 3, dtype=torch.float64, **META),
    torch.ones(2, 3, dtype=torch.complex64, **META),
    torch.ones(2, 3, dtype=torch.complex64, **META).conj(),
    torch._neg_view(torch.ones(2, 3, **META)),
    torch.ones(2, 3).to_sparse(),
    symbolic(M, N),
    symbolic(M, M),
    symbolic(2 * M, N),
    [torch.ones(2, 3), torch.ones(2)],
    [torch.ones(2), torch.ones(2, 3)],
    (torch.ones(2), None),
    None,
    0,
    False,
    0.0,
    M,
    N,
    M * 2,
    M * 1.5,
    M > 3,
    object(),
]


def test_values_that_a_cut_may_treat_differently_read_differently() -> None:
    texts = [repr(_value(v)) for v in VALUES]
    assert len(set(texts)) == len(texts)


def test_a_value_reads_as_its_facts_without_its_elements() -> None:
    assert _value(torch.ones(2, 3)) == (
        "torch.float32",
        "cpu",
        "torch.strided",
        ("2", "3"),
        ("3", "1"),
        False,
        False,
    )
    assert _value(torch.ones(2, 3)) == _value(torch.zeros(2, 3))
    assert _value(torch.ones(2, 3).to_sparse()) == (
        "torch.float32",
        "cpu",
        "torch.sparse_coo",
        ("2", "3"),
        None,
        False,
        False,
    )
    assert [_value(v) for v in (None, 3, 0.5, True, "a", object())] == [
        "None",
        "3",
        "0.5",
        "True",
        "'a'",
        "object",
    ]
    assert _value([None, (3,)]) == ("None", ("3",))


def test_a_symbol_reads_as_its_expression_and_what_it_was_in_the_trace() -> None:
    expression = str(M.node.expr)
    assert _size(M) == (expression, 5) and _size(M * 2) == (f"2*{expression}", 10)
    assert _size(7) == "7"
    unknown = ShapeEnv().create_unbacked_symint()
    assert _size(unknown) == (str(unknown.node.expr), None)


LITERALS = [
    (0, 1),
    [0, 1],
    {"a": 0},
    {"a": 1},
    {"b": 0},
    slice(0, 1, None),
    slice(0, None, 1),
    slice(None, 0, 1),
    range(1),
    range(1, 2),
    0,
    False,
    0.0,
    -0.0,
    0j,
    None,
    "None",
    torch.float32,
    torch.device("cpu"),
    torch.device("meta"),
    torch.strided,
    torch.contiguous_format,
    aten.add.Tensor,
    aten.add.Scalar,
    [],
    (),
    [[]],
]


def test_arguments_that_are_not_the_same_read_differently() -> None:
    texts = [repr(_literal(a, {})) for a in LITERALS]
    assert len(set(texts)) == len(texts)


def test_an_argument_reads_as_what_it_is() -> None:
    assert _literal([1, (True,)], {}) == ("list", (("int", "1"), ("tuple", (("bool", "True"),))))
    assert _literal({"a": [None]}, {}) == ("dict", (("a", ("list", (("NoneType", "None"),))),))
    assert _literal(slice(1, None, 2), {}) == (
        "slice",
        (("int", "1"), ("NoneType", "None"), ("int", "2")),
    )
    assert _literal(aten.add.Tensor, {}) == ("op", "aten.add.Tensor")
    n = fx.Graph().placeholder("x")
    assert _literal({"a": [n]}, {n: 7}) == ("dict", (("a", ("list", (("node", 7),))),))


@pytest.mark.parametrize(
    "a, name", [(torch.ones(2), "Tensor"), (object(), "object"), ({1, 2}, "set"), (M, "SymInt")]
)
def test_an_argument_that_no_text_tells_is_no_part_of_a_key(a: Any, name: str) -> None:
    for argument in (a, [a], {"a": a}):
        with pytest.raises(NoKey, match=f"^an argument of type {name}$"):
            _literal(argument, {})


RECORDS = [
    Made(Kind.ONE, (1, 2)),
    Made(Kind.TWO, (1, 2)),
    Made(Kind.ONE, (1, 2.0)),
    Made(Kind.ONE, (1, M)),
    Made(Kind.ONE, (1, N)),
    Made(Kind.ONE, (1, M * 2)),
    Made(Kind.ONE, (1, {"a": 1})),
    Made(Kind.ONE, (1, {"b": 1})),
    Made(Kind.ONE, (1, {"a": 2})),
    Made(Kind.ONE, (1, aten.t.default)),
    Made(Kind.ONE, (1, aten.view.default)),
    Made(Kind.ONE, (1, torch.float32)),
    Made(Kind.ONE, (1, torch.ones(2))),
    Taken(Kind.ONE, (1, 2)),
]


def test_records_of_a_boundary_that_are_not_the_same_read_differently() -> None:
    texts = [repr(_record(a)) for a in RECORDS]
    assert len(set(texts)) == len(texts)


def test_a_record_reads_as_its_fields() -> None:
    assert _record(Made(Kind.TWO, (1, True))) == (
        "Made",
        (("how", "TWO"), ("sizes", (("int", "1"), ("bool", "True")))),
    )
    assert _record([{"a": aten.t.default}, M]) == (
        (("a", "aten.t.default"),),
        (str(M.node.expr), 5),
    )
    assert _record(torch.ones(2)) == "Tensor" == _record(torch.zeros(3)), (
        "a constant that is returned is of this process"
    )


def test_a_call_reads_as_its_op_and_one_of_anything_else_is_no_key() -> None:
    graph = fx.Graph()
    module, calls = (
        fx.GraphModule({}, graph),
        (aten.add.Tensor, operator.getitem, torch.sym_max, max, torch.ops.higher_order.cond),
    )
    texts = [_target(graph.call_function(f, ()), module) for f in calls]
    assert texts == ["aten.add.Tensor", "getitem", "sym_max", "max", "higher order cond"]

    def own(x: Any) -> Any:
        return x

    for f, name in ((own, "own"), (partial(own), "partial")):
        with pytest.raises(NoKey, match=f"^a call of {name}, which is no op$"):
            _target(graph.create_node("call_function", f, name="call"), module)


def test_a_constant_reads_as_its_facts_and_other_attributes_as_their_type() -> None:
    held: Any = torch.nn.Module()
    held.inner, held.other = torch.nn.Module(), slice(1)
    held.inner.register_buffer("tensor", torch.ones(2, 3))
    graph = fx.Graph(held)
    made: Any = fx.GraphModule(torch.nn.Module(), graph)
    made.inner, made.other = held.inner, held.other
    assert _target(graph.create_node("get_attr", "inner.tensor"), made) == _value(torch.ones(2, 3))
    assert _target(graph.create_node("get_attr", "other"), made) == "slice"
    assert _target(graph.placeholder("x"), made) == _target(graph.placeholder("y"), made) == ""


def test_a_partition_reads_as_its_options_by_name_the_outer_ones_first() -> None:
    plain = _describe_partition(CUT, {"num_fwd_outputs": 1})
    assert plain == "[('num_fwd_outputs', ('int', '1'))]"
    assert _describe_partition(partial(CUT, may_recompute=None), {"num_fwd_outputs": 1}) != plain
    options = [
        _describe_partition(partial(CUT, memory_budget=b), {"num_fwd_outputs": 1})
        for b in (0.5, 0.25)
    ]
    assert len({plain, *options}) == 3
    assert (
        _describe_partition(
            partial(partial(CUT, memory_budget=0.25), memory_budget=0.5), {"num_fwd_outputs": 1}
        )
        == options[0]
    )
    assert (
        _describe_partition(
            partial(CUT, memory_budget=0.25), {"num_fwd_outputs": 1, "memory_budget": 0.5}
        )
        == options[0]
    )
    ops = {"recomputable_ops": {aten.sin, aten.cos}}
    assert (
        _describe_partition(CUT, ops)
        == "[('recomputable_ops', ('list', (('str', \"'aten.cos'\"), ('str', \"'aten.sin'\"))))]"
    )


def test_the_parts_that_differ_are_told_in_order() -> None:
    a = {"x": "1", "y": "2", "z": "3"}
    for some in itertools.chain.from_iterable(itertools.combinations("xyz", k) for k in range(4)):
        assert differing(a, {**a, **dict.fromkeys(some, "0")}, "xyz") == list(some)
    assert differing(a, {"x": "1"}, ["z", "y"]) == ["z", "y"] and differing(a, {}, ["x"]) == ["x"]


def test_a_digest_of_source_tells_files_apart_by_name_and_content(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    found: list[str] = []
    for files in (
        {"a.py": "1"},
        {"a.py": "2"},
        {"a.py": ""},
        {"a.py": "1", "b.py": ""},
        {"inner/a.py": "1"},
        {"a.py": "2", "b.py": "1"},
    ):
        for path, content in reversed(files.items()):
            (tmp_path / path).write_text(content)
        (tmp_path / "notes.txt").write_text(str(len(found)))
        found.append(digest_of_source(tmp_path))
        assert digest_of_source(tmp_path) == found[-1]
        for path in files:
            (tmp_path / path).unlink()
    assert len(set(found)) == 6


def test_the_versions_have_the_digest_of_this_whole_package() -> None:
    assert f"runtime {digest_of_source(Path(runtime.__file__).parent)}" in versions()
