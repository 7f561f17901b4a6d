"""The tables of generated modules that cannot be meant are refused on import."""

from typing import Any

import pytest

from gen.checks import Cell, TableError, cases, family, known, op
from gen.language.axes import USUAL


def table(*rows: Any, axes: Any = None) -> None:
    """Define a check with these rows."""

    @cases(*rows, axes=axes)
    def test_check(case: object) -> None: ...


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: op("not a name", smoke="float64"), "dotted name"),
        (lambda: op("f"), "no dtype at any tier"),
        (lambda: op("f", smoke="float46"), "'float46' is not a dtype"),
        (lambda: op("f", smoke="float64", full="float64"), "stands twice"),
        (lambda: op("f", smoke="float64", known="a@"), "entry@dtype"),
        (lambda: table(), "no ops"),
        (lambda: table(op("f", smoke="float64"), op("f", smoke="float32")), "stands on two lines"),
        (lambda: table(op("f", smoke="float64:static")), "takes dtype alone"),
        (lambda: table(op("f", smoke="float64"), axes={"q": ["x"]}), "no axis 'q'; known: form, "),
        (
            lambda: table(op("f", smoke="float64"), axes={"shapes": ["dynmic"]}),
            "no word 'dynmic' of axis shapes; known: static, dynamic",
        ),
        (
            lambda: table(op("f", smoke="float64"), axes={"shapes": ["static"]}),
            "takes dtype:shapes",
        ),
        (
            lambda: table(op("f", smoke="float64:z"), axes={"by": ["aot", "jit"]}),
            "not a value of axis 'by' (aot, jit)",
        ),
        (
            lambda: table(
                op("f", smoke="float64"),
                axes={"layout": ["contiguous"], "cotangents": ["contiguous"]},
            ),
            "unique within a check",
        ),
        (lambda: table(op("f", smoke="float64", known="a@float32")), "matches no word"),
        (lambda: cases(op("f", smoke="float64"))(lambda: None), "exactly one argument, case"),
        (lambda: family("f", known={"a": "xfail"}), "not made by known"),  # type: ignore[dict-item]
        (lambda: family("f", ops={"g": 1}), "not a mapping"),  # type: ignore[dict-item]
        (
            lambda: family("f").entries(Cell("g", "float64", USUAL, "smoke", ("a",))),
            "has no entry a",
        ),
        (lambda: known("xfial", reason="r"), "one of xfail, skip, vanishes, tolerance"),
        (lambda: known("skip", reason="  "), "a reason is needed"),
        (lambda: known("xfail", reason="r"), "names the exception"),
        (lambda: known("skip", raises="E", reason="r"), "only an xfail takes raises="),
        (lambda: known("xfail", raises="E", match="(", reason="r"), "not a regular expression"),
        (lambda: known("tolerance", reason="r"), "rtol= or atol="),
        (lambda: known("skip", rtol=1.0, reason="r"), "rtol= or atol="),
        (lambda: known("tolerance", rtol=float("nan"), reason="r"), "at least 0"),
        (lambda: known("skip", torch="new", reason="r"), "version specifier"),
        (lambda: known("skip", until="tomorrow", reason="r"), "not a date"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(make: Any, says: str) -> None:
    with pytest.raises(TableError) as refused:
        make()
    assert says in str(refused.value)


def test_every_mistake_of_an_entry_is_told_at_once() -> None:
    with pytest.raises(TableError) as refused:
        known("xfail", match="(", until="soon", reason="")
    assert str(refused.value).count(";") == 3
