"""rearrange: torch.func's is the oracle."""

from typing import Any

import pytest
import torch

from runtime.func import grad, rearrange, vmap

pytestmark = pytest.mark.skipif(not hasattr(torch.func, "rearrange"), reason="torch has no rearrange in torch.func before 2.13")
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
    torch.testing.assert_close(rearrange(X, pattern, **lengths), torch.func.rearrange(X, pattern, **lengths))
    mapped = vmap(lambda x: rearrange(x, pattern, **lengths))(torch.stack([X, X + 1]))
    torch.testing.assert_close(mapped[1], torch.func.rearrange(X + 1, pattern, **lengths))


def test_a_sequence_is_stacked_and_the_result_differentiated() -> None:
    torch.testing.assert_close(rearrange(list(X), "b h w c -> (h b) w c"), rearrange(X, "b h w c -> (h b) w c"))
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
        ("b (h ...) w c -> b h ... w c", {}, r"\.\.\. on the left side of .* must not be in parentheses"),
        ("b h w c -> b h w c -> b h w c", {}, "must have one '->'"),
        ("b h w) c -> b h w c", {}, "unbalanced or nested parentheses"),
        ("b h w c (d -> b h w c d", {}, "unbalanced or nested parentheses"),
        ("b h w c d ... -> b h w c d ...", {}, "is for tensors of 6 dimensions, and this one has 4"),
        ("b h w -> b h", {"c": 1}, r"\['w'\] stand on one side"),
        ("b (h i) w c -> b h i w c", {"i": 0}, "a dimension of size 6 is not"),
        ("b h w c -> b h w c", {"b": 5}, "a dimension of size 4 is not"),
        ("b 1 w c -> b w c", {}, "a dimension of size 6 is not"),
    ],
)
def test_mistakes_are_named(pattern: str, lengths: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rearrange(X, pattern, **lengths)
