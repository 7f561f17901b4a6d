"""Values of YAML as Python source: each reads back as itself.

Inside: gen.write.literals. Any text, number or table has to read back, so hypothesis draws hundreds
of them, and each would be a run of the generator.
"""

from __future__ import annotations

import ast
import math

from hypothesis import given
from hypothesis import strategies as st

from gen.write.literals import WIDTH, call, docstring, literal, quoted

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def evaluated(source: str) -> object:
    """The value of an expression that may hold `float("inf")` and nothing else that runs."""
    tree = ast.parse(source, mode="eval")
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert all(isinstance(node.func, ast.Name) and node.func.id == "float" for node in calls)
    return eval(compile(tree, "literal", "eval"), {"float": float})


@given(st.text())
def test_a_quoted_text_reads_back_as_itself(text: str) -> None:
    source = quoted(text)
    assert ast.literal_eval(source) == text
    assert "\n" not in source


@given(PLAIN)
def test_a_literal_reads_back_as_itself(value: object) -> None:
    assert evaluated(literal(value)) == value


@given(st.text(min_size=1) | st.text('"\\\\a ', min_size=1))
def test_a_docstring_stays_a_docstring(text: str) -> None:
    text = " ".join(text.split())
    if not text:
        return
    tree = ast.parse(f"def f():\n{docstring(text, '    ')}\n")
    (function,) = tree.body
    assert isinstance(function, ast.FunctionDef)
    assert len(function.body) == 1
    assert isinstance(function.body[0], ast.Expr)
    assert isinstance(function.body[0].value, ast.Constant)
    if text.isprintable():
        assert " ".join(str(function.body[0].value.value).split()) == text


def test_long_data_is_broken_between_words() -> None:
    text = call("known", [("", "xfail"), ("reason", "word " * 60 + "end")], "    ")
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "known(\n" in text
    assert math.isclose(1.5, evaluated(literal(1.5)))  # type: ignore[arg-type]


def test_axes_that_are_too_long_for_a_line_have_one_line_each() -> None:
    axes = {"of": ["norms"] * 12, "cotangents": ["contiguous"] * 4}
    lines = f"    axes={literal(axes, '    ', len('axes=,'))},".split("\n")
    assert (
        lines[0] == "    axes={"
        and lines[-1] == "    },"
        and lines[1].startswith('        "of": [')
    )
