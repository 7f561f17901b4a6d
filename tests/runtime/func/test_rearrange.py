"""rearrange: torch.func's is the oracle."""

import math
from typing import Any

import pytest
import torch

from runtime.func import grad, rearrange, vmap

pytestmark = pytest.mark.skipif(
    not hasattr(torch.func, "rearrange"), reason="torch has no rearrange in torch.func before 2.13"
)
X = torch.arange(4 * 6 * 8 * 3.0).reshape(4, 6, 8, 3)


@pytest.mark.parametrize(
    ("pattern", "lengths"),
    [
        ("b h w c -> b h w c", {}),
        ("b h w c -> (b h) w c", {}),
        ("b h w c -> h (b w) c", {}),
        ("b h w c -> b c h w", {}),
        ("b h w c -> b (c h w)", {}),
        ("b (h1 h) (w1 w) c -> (b h1 w1) h w c", {"h1": 2, "w1": 2}),
        ("b (h h1) (w w1) c -> b h w (c h1 w1)", {"h1": 2, "w1": 4}),
        ("b ... c -> c ... b", {}),
        ("... c -> (... c)", {}),
        ("b ... -> ... b", {}),
        ("b h w c -> b () h w (c) 1", {}),
    ],
)
def test_patterns(pattern: str, lengths: Any) -> None:
    torch.testing.assert_close(
        rearrange(X, pattern, **lengths), torch.func.rearrange(X, pattern, **lengths)
    )
    mapped = vmap(lambda x: rearrange(x, pattern, **lengths))(torch.stack([X, X + 1]))
    torch.testing.assert_close(mapped[1], torch.func.rearrange(X + 1, pattern, **lengths))


@pytest.mark.parametrize(
    ("shape", "pattern", "lengths"),
    [
        ((2, 1, 3), "a 1 b -> b a", {}),
        ((2, 1, 3), "a () b -> a b", {}),
        ((2, 3), "... a b -> b ... a", {}),
        ((2, 3), "a ... b -> (a ... b)", {}),
        ((2, 3), "a b ... -> ... b a", {}),
        ((2, 3, 4, 5), "... -> ...", {}),
        ((2, 3, 4, 5), "a ... -> (... a)", {}),
        ((2, 3, 4, 5), "a ... -> (...) a", {}),
        ((2, 3, 4, 5), "... -> (...)", {}),
        ((2, 3, 4, 5), "a ... b -> b (a ...)", {}),
        ((0, 3), "a b -> (a b)", {}),
        ((0, 3), "(a c) b -> a b c", {"c": 2}),
        ((6, 3), "(a b) c -> b a c", {"a": 2, "b": 3}),
        ((6, 3), "(a b c) d -> c d b a", {"a": 2, "c": 1}),
        ((6, 3), "a b -> a b", {"a": 6}),
        ((), "->", {}),
    ],
)
def test_sizes_of_one_none_and_any_number_of_dimensions(
    shape: Any, pattern: str, lengths: Any
) -> None:
    x = torch.arange(float(math.prod(shape))).reshape(shape)
    torch.testing.assert_close(
        rearrange(x, pattern, **lengths), torch.func.rearrange(x, pattern, **lengths)
    )


def test_what_torch_cannot_rearrange() -> None:
    """It fails for a new dimension of size one beside joined axes, and for a vector of several
    axes; of a number it adds no dimension."""
    x = torch.arange(12.0)
    torch.testing.assert_close(rearrange(x.view(4, 1, 3), "a (1) b -> (a b) 1 1"), x.view(12, 1, 1))
    torch.testing.assert_close(
        rearrange(x, "(a b c) -> a (c b)", b=2, c=3), x.view(2, 2, 3).mT.reshape(2, 6)
    )
    torch.testing.assert_close(rearrange(x[3], "-> 1"), x[3:4])


def test_a_sequence_is_stacked_and_the_result_differentiated() -> None:
    torch.testing.assert_close(
        rearrange(list(X), "b h w c -> (h b) w c"), rearrange(X, "b h w c -> (h b) w c")
    )
    weights = torch.randn(3, 4 * 6 * 8)
    found = grad(lambda x: (rearrange(x, "b h w c -> c (b h w)") * weights).sum())(X)
    torch.testing.assert_close(found, rearrange(weights, "c (b h w) -> b h w c", b=4, h=6))


@pytest.mark.parametrize(
    ("pattern", "lengths", "message"),
    [
        ("b h w c", {}, "must have one '->'"),
        ("b h w c -> b h w", {}, r"\['c'\] stand on one side"),
        ("b h w w -> b h w", {}, r"\['w'\] stand twice"),
        ("b h w -> b h w", {}, "is for tensors of 3 dimensions, and this one has 4"),
        ("b (h w c -> b h w c", {}, "unbalanced or nested parentheses"),
        ("b ((h) w) c d -> b h w c d", {}, "unbalanced or nested parentheses"),
        ("b (h i) w c -> b h i w c", {}, r"the sizes of \['h', 'i'\]"),
        ("b (h i) w c -> b h i w c", {"i": 4}, "a dimension of size 6 is not"),
        ("b h w c -> b h w c", {"z": 4}, r"lengths are given for \['z'\]"),
        ("b h+ w c -> b h w c", {}, "is no axis"),
        (
            "b (h ...) w c -> b h ... w c",
            {},
            r"\.\.\. on the left side of .* must not be in parentheses",
        ),
        ("b h w c -> b h w c -> b h w c", {}, "must have one '->'"),
        ("b h w) c -> b h w c", {}, "unbalanced or nested parentheses"),
        ("b h w c (d -> b h w c d", {}, "unbalanced or nested parentheses"),
        (
            "b h w c d ... -> b h w c d ...",
            {},
            "is for tensors of 6 dimensions, and this one has 4",
        ),
        ("b h w -> b h", {"c": 1}, r"\['w'\] stand on one side"),
        ("b (h i) w c -> b h i w c", {"i": 0}, "a dimension of size 6 is not"),
        ("b h w c -> b h w c", {"b": 5}, "a dimension of size 4 is not"),
        ("b 1 w c -> b w c", {}, "a dimension of size 6 is not"),
        ("b (h i) w c -> b h i w c", {"h": 6, "i": 2}, "a dimension of size 6 is not"),
        ("b (h i j) w c -> b h i j w c", {"i": 2}, r"the sizes of \['h', 'j'\]"),
        ("b (h h) w c -> b h w c", {}, r"\['h'\] stand twice on one side"),
        ("b h w c -> b h w c c a b", {}, r"\['b', 'c'\] stand twice on one side"),
        ("b h w c -> b h w d", {}, r"\['c', 'd'\] stand on one side"),
        ("b h ... w ... -> b h w ...", {}, r"\['\.\.\.'\] stand twice on one side"),
        ("b h w c d -> b h w c d", {}, "is for tensors of 5 dimensions, and this one has 4"),
        ("b h 3d c -> b h 3d c", {}, "'3d' in .* is no axis"),
        ("b h 2 c -> b h 2 c", {}, "'2' in .* is no axis"),
        ("b h w c)", {}, "must have one '->'"),
        ("(b h w c -> (b h w c)", {}, "unbalanced or nested parentheses"),
        ("(b h w c) -> (b h w c", {}, "unbalanced or nested parentheses"),
        ("b h w c -> b h w c", {"z": 4, "a": 4}, r"lengths are given for \['a', 'z'\]"),
    ],
)
def test_mistakes_are_named(pattern: str, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rearrange(X, pattern, **lengths)
