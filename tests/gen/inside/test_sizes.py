"""Smaller forms of a sample, which a draft of a row is tried with first.

Inside: gen.packages.sizes, whose forms `probe` and `init` try one after another and do not show.
"""

from __future__ import annotations

import pytest

from gen.packages.sizes import smaller


@pytest.mark.parametrize("size", [3, 5, 9, 12])
def test_integers_of_a_smaller_form_are_below_its_new_sizes(size: int) -> None:
    sample = {"args": [{"shape": [size], "low": 0, "high": 30}]}
    *forms, last = list(smaller(sample))
    assert last == sample
    assert (size > 4) is bool(forms)
    for form in forms:
        (tensor,) = form["args"]
        assert tensor["high"] <= 4
        assert 0 <= tensor["low"] < tensor["high"]
