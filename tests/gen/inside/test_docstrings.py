"""Docstrings are read in each style, and what they say means a domain, a shape and a dtype.

Inside: gen.packages.docstrings. A package for each style and each wording would take a minute by
the public door, which one package of tests/gen/test_init_right_package.py goes through.
"""

import pytest

from gen.packages.docstrings import descriptions, domain_of, dtype_of, shape_of

GOOGLE = """Return it.

Args:
    x (torch.Tensor of shape (n, d)): the first
        matrix, symmetric.

        no part of it
    y: the second
Returns:
    z: another
"""
TYPE = "torch.Tensor of shape (n, d)"
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
        (GOOGLE, {"x": f"{TYPE} the first matrix, symmetric.", "y": "the second"}),
        (NUMPY, {"x": "Tensor the first", "y": "Tensor the others", "w": "Tensor the others"}),
        (SPHINX, {"x": "the first", "y": "the second"}),
        (DASHES, {"x": "the first", "y": "optional the second"}),
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


@pytest.mark.parametrize(
    ("description", "shape"),
    [
        ("Tensor [n, n]  — transition matrix", ("n", "n")),
        ("torch.Tensor (float), shape (batch_size, n_classes) scores", ("batch_size", "n_classes")),
        ("Float tensor in shape [B,N]. Weights of each point.", ("B", "N")),
        ("The input tensor (..., K).", ("...", "K")),
        ("shape :math:`(N, *)`", ("N", "...")),
        ("Tensor of shape ``(T + 1, n-1)``", ("T + 1", "n-1")),
        ("(B, N, 3) points", ("B", "N", "3")),
        ("an n x n matrix", ("n", "n")),
        ("matrices, NxM", ("N", "M")),
        ('Float[Tensor, "*batch max_len 3"]', ("...", "max_len", "3")),
        ("scalar tensor of shape ()", ()),
        ("a number in [0, 1]", None),
        ("tensor (optional)", None),
        ("the maximum (x, y) of an example", None),
    ],
)
def test_a_description_means_a_shape(description: str, shape: tuple[str, ...] | None) -> None:
    assert shape_of(description) == shape


@pytest.mark.parametrize(
    ("description", "dtype"),
    [
        ("torch.Tensor (int), shape (batch_size,)", "int64"),
        ("LongTensor of shape (n,)", "int64"),
        ("a bool mask", "bool"),
        ("the integral of points", ""),
    ],
)
def test_a_description_means_a_dtype(description: str, dtype: str) -> None:
    assert dtype_of(description) == dtype
