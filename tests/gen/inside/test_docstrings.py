"""Docstrings are read in each style, and what they say of a parameter means a domain.

Inside: gen.packages.docstrings. A package for each style and each wording would take a minute by
the public door, which one package of tests/gen/test_init_package.py goes through.
"""

import pytest

from gen.packages.docstrings import descriptions, domain_of

GOOGLE = """Return it.

Args:
    x (torch.Tensor of shape (n, d)): the first
        matrix, symmetric.

        no part of it
    y: the second
Returns:
    z: another
"""
NUMPY = """Return it.

Parameters
----------
x : Tensor
    the first
y, w : Tensor
    the others
"""
SPHINX = """Return it.

:param x: the first
:param torch.Tensor y: the second
"""
DASHES = """Return it.

- x: the first
- **y** (optional): the second
"""


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (GOOGLE, {"x": "the first matrix, symmetric.", "y": "the second"}),
        (NUMPY, {"x": "Tensor the first", "y": "Tensor the others", "w": "Tensor the others"}),
        (SPHINX, {"x": "the first", "y": "the second"}),
        (DASHES, {"x": "the first", "y": "the second"}),
        ("", {}),
    ],
)
def test_each_style_of_a_docstring_is_read(text: str, known: dict[str, str]) -> None:
    assert descriptions(text, ["x", "y", "w"]) == known


@pytest.mark.parametrize(
    ("description", "domain"),
    [
        ("SPD matrix (or batch).", "spd"),
        ("a symmetric positive-definite matrix", "spd"),
        ("First shape parameter. Must be positive.", "positive"),
        ("scale, non-negative", "positive"),
        ("Upper limit of integration. Must be in [0, 1].", "unit"),
        ("rows of probabilities", "probabilities"),
        ("knots in ascending order", "sorted"),
        ("a rotation matrix", "rotation"),
        ("unit vectors", "unit_vectors"),
        ("positive or negative", ""),
        ("need not be sorted", ""),
        ("the input", ""),
    ],
)
def test_a_description_means_a_domain(description: str, domain: str) -> None:
    assert domain_of(description) == domain
