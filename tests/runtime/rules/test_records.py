"""A record is checked when it is made: what does not fit its op is refused by name, and
nothing is entered."""

import operator
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.library import Library

from runtime.extend import Record, asking, register
from runtime.func import vmap
from runtime.rules import RECORDS
from tests.runtime.schemas import is_view

# of a record of torch's, as rules for users have no other use of it
HiddenWrites: Any = type(RECORDS[torch.ops.aten.native_batch_norm.default].hidden_writes)


@pytest.fixture
def op() -> Iterator[str]:
    """The name of an op of two tensors, without a record."""
    library = Library("record_tests", "FRAGMENT")
    library.define("shifted(Tensor x, Tensor y, float by=1.0) -> (Tensor, Tensor)")
    yield "record_tests::shifted"
    library._destroy()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (
            {"vjp": {"input": lambda g: g}},
            "vjp for 'input', which is no argument; its arguments are by, x, y",
        ),
        ({"vjp": {("x", "z"): lambda g: (g, g)}}, "vjp for 'z', which is no argument"),
        ({"vjp": {"x": lambda g, z: g}}, "asks for 'z', which is neither an argument"),
        ({"vjp": {"x": lambda g, x_t: g}}, "its vjp asks for 'x_t'"),
        ({"vjp": {"x": lambda g, result2: g}}, "asks for 'result2'"),
        ({"vjp": {"x": lambda g, x_size: g}}, "asks for 'x_size'"),
        ({"jvp": "bilinear"}, "jvp is 'bilinear'; as a word it is one of 'linear', 'multilinear'"),
        ({"jvp": {"z": lambda x_t: x_t}}, "jvp for 'z', which is no argument"),
        ({"jvp": {"x": lambda x_t, g: x_t}}, "its jvp asks for 'g'"),
        ({"jvp": lambda z_t: z_t}, "its jvp asks for 'z_t'"),
        ({"nondiff": (2,)}, "nondiff names result 2, but the op has 2, counted from 0"),
        ({"batch": "elementwise"}, "batch is 'elementwise', which is not callable"),
        ({"decomposition": 3}, "decomposition is 3, which is not callable"),
        ({"inverse": "t"}, "inverse is 't', which is not callable"),
        (
            {"inverse": lambda part: part},
            "inverse is for views, but by its schema this op returns no view",
        ),
        ({"in_place": True}, "in_place=True needs a batch rule, which the record does not have"),
        ({"abstract": lambda z: z}, "abstract asks for 'z', which is no argument"),
        (
            {"hidden_writes": HiddenWrites(("z",), "sin", lambda x: True)},
            "hidden_writes names 'z', which is no argument",
        ),
        (
            {"hidden_writes": HiddenWrites(("x",), "sin", lambda z: True)},
            "hidden_writes names 'z', which is no argument",
        ),
        (
            {"hidden_writes": HiddenWrites(("x",), "cosinus", lambda x: True)},
            "no operator aten::cosinus",
        ),
        ({"draws": "uniform"}, "draws is 'uniform'; it is one of 'shape', 'values'"),
        ({"cost": "dear"}, "cost is 'dear'; it is one of 'low', 'high'"),
    ],
)
def test_what_does_not_fit_the_op_is_refused(op: str, rules: dict[str, Any], message: str) -> None:
    table: dict[Any, Record] = {}
    with pytest.raises(ValueError, match=message):
        register(op, table, **rules)
    assert not table


def test_what_fits_is_entered(op: str) -> None:
    table: dict[Any, Record] = {}
    record = register(
        op,
        table,
        vjp={"x": lambda g, y, result1, x_shape: g, ("x", "y"): lambda gs, needs, by: gs},
        jvp={"x": lambda x_t, y_dtype: x_t},
        nondiff=(1,),
    )
    assert table == {torch.ops.record_tests.shifted.default: record}
    with pytest.raises(ValueError, match="has two records"):
        register(op, table, jvp="linear")


def test_the_inverse_of_a_view_asks_for_what_a_write_has() -> None:
    table: dict[Any, Record] = {}
    for wanted in ("g", "result", "self_shape", "dims"):
        with pytest.raises(
            ValueError,
            match=(
                f"its inverse asks for '{wanted}', "
                "which is neither an argument .* nor one of base, ops, part, which"
            ),
        ):
            register("select.int", table, inverse=asking(wanted)(lambda x: x))
    register("select.int", table, inverse=lambda ops, base, part, which, dim, index: part)
    assert len(table) == 1


def test_no_record_says_what_torchs_tags_deny() -> None:
    """An op of ATen's that draws is tagged by torch; one that makes memory which nothing has filled
    says so by its name."""
    seeded = torch.Tag.nondeterministic_seeded
    aten = [func for func in RECORDS if getattr(func, "namespace", "") == "aten"]
    assert not [str(func) for func in aten if RECORDS[func].draws and seeded not in func.tags]
    drawing = {str(func) for func in aten if seeded in func.tags and not RECORDS[func].draws}
    assert drawing == {"aten._scaled_dot_product_flash_attention_for_cpu.default"}, (
        "which draws where it drops something, and then runs on CUDA"
    )
    assert all(RECORDS[func].unfilled == ("empty" in func._schema.name) for func in aten)


def test_which_views_have_no_inverse() -> None:
    """Windows overlap, so a write to them is found by its elements; the others are parts of sparse
    and nested tensors."""
    without = {
        func._schema.name
        for func, r in RECORDS.items()
        if func.namespace == "aten" and is_view(func) and not r.inverse
    }
    of_other_layouts = {
        "aten::_indices",
        "aten::_values",
        "aten::indices",
        "aten::values",
        "aten::_nested_view_from_buffer",
    }
    assert without - of_other_layouts == {
        "aten::unfold",
        "aten::_test_autograd_multiple_dispatch_view",
    }


def test_an_in_place_form_writes_by_the_batch_rule_that_says_so() -> None:
    batch = torch.arange(6.0).reshape(2, 3)
    for name in (
        "copysign.Tensor",
        "masked_fill.Tensor",
        "add.Tensor",
        "zero.default",
        "copy.default",
    ):
        assert RECORDS[operator.attrgetter(name)(torch.ops.aten)].in_place, name
    masked = torch.tensor([True, False, True])

    def write(x: Any) -> Any:
        y = x.clone()
        y.copysign_(-x).masked_fill_(masked, x.sum()).add_(1)
        return y

    assert torch.equal(vmap(write)(batch), torch.stack([write(x) for x in batch]))


def test_one_of_several_overloads_may_lack_an_argument() -> None:
    table: dict[Any, Record] = {}
    record = register(
        "add.Tensor add_.Scalar sin",
        table,
        vjp={"self": lambda g: g, "other": lambda g, other_shape: g},
    )
    assert len(table) == 3 and all(entered is record for entered in table.values())
    with pytest.raises(ValueError, match="vjp for 'other'"):
        register("cos sinh", table, vjp={"self": lambda g: g, "other": lambda g: g})
    assert len(table) == 3
