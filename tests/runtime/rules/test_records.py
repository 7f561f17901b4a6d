"""A record is checked when it is made: what does not fit its op is refused by name, and nothing is entered."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.library import Library

from runtime.rules.record import Record, register


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
        ({"vjp": {"input": lambda g: g}}, "vjp for 'input', which is no argument; its arguments are by, x, y"),
        ({"vjp": {("x", "z"): lambda g: (g, g)}}, "vjp for 'z', which is no argument"),
        ({"vjp": {"x": lambda g, z: g}}, "asks for 'z', which is neither an argument"),
        ({"vjp": {"x": lambda g, x_t: g}}, "its vjp asks for 'x_t'"),
        ({"vjp": {"x": lambda g, result2: g}}, "asks for 'result2'"),
        ({"vjp": {"x": lambda g, x_size: g}}, "asks for 'x_size'"),
        ({"jvp": "bilinear"}, "jvp is 'bilinear'; as a word it is one of 'linear', 'multilinear'"),
        ({"jvp": {"z": lambda x_t: x_t}}, "jvp for 'z', which is no argument"),
        ({"jvp": {"x": lambda x_t, g: x_t}}, "its jvp asks for 'g'"),
        ({"jvp": lambda z_t: z_t}, "its jvp asks for 'z_t'"),
        ({"nondiff": (2,)}, "nondiff names result 2, and there are 2, counted from 0"),
        ({"batch": "elementwise"}, "batch is 'elementwise', which cannot be called"),
        ({"decomposition": 3}, "decomposition is 3, which cannot be called"),
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


def test_one_of_several_overloads_may_lack_an_argument() -> None:
    table: dict[Any, Record] = {}
    record = register("add.Tensor add_.Scalar sin", table, vjp={"self": lambda g: g, "other": lambda g, other_shape: g})
    assert len(table) == 3 and all(entered is record for entered in table.values())
    with pytest.raises(ValueError, match="vjp for 'other'"):
        register("cos sinh", table, vjp={"self": lambda g: g, "other": lambda g: g})
    assert len(table) == 3
