"""What torch's own list of derivatives says.

Inside: ``runtime.facts.derivatives``. The list decides which records are compared with torch; no
public name shows the arguments of an entry."""

from __future__ import annotations

from runtime.facts.derivatives import formulas, has_formula


def test_torchs_list_says_which_arguments_have_a_formula() -> None:
    assert formulas()["mul.Tensor"] == ("self", "other")
    assert formulas()["index_select.default"] == ("self",)
    assert has_formula("sum.dim_IntList") and not has_formula("argmax.default")
