"""docs/levels.md: its code runs, and a level that overrides nothing but `call`
behaves as it says."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.errors import EscapedValue, InplaceError
from runtime.func import grad, jvp, vmap

PAGE = (Path(__file__).parents[3] / "docs/levels.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
X = torch.tensor([1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    """The names of the page's code, which has run from top to bottom."""
    names: dict[str, Any] = {"__name__": "levels_page"}
    for block in BLOCKS:
        exec(block, names)
    return names


def test_the_code_of_the_page_runs(page: dict[str, Any]) -> None:
    assert len(BLOCKS) == 3 and issubclass(page["Counted"], torch.Tensor)


def programs() -> dict[str, Any]:
    def several(y: Any) -> Any:
        a, b, c = (y * 2).unbind()
        values, indices = torch.stack([c, a, b]).sort()
        return (values * indices).sum()

    def out(y: Any) -> Any:
        z = torch.empty_like(y)
        assert torch.mul(y.detach(), 3, out=z) is z
        return (z * y).sum()

    def in_place(y: Any) -> Any:
        z = y * 1
        z += y
        z[0] = y[1]
        assert z.add_(1).relu_() is z
        return (z * z).sum()

    def geometry(y: Any) -> Any:
        z = (y * 1).unsqueeze_(0)
        assert z.t_().shape == (3, 1)
        return (z @ z.mT).sum()

    def matmul(y: Any) -> Any:
        return torch.outer(y, y).matmul(y).softmax(0)[0]

    return {f.__name__: f for f in (several, out, in_place, geometry, matmul)}


@pytest.mark.parametrize("name", programs())
def test_a_counting_level_changes_no_result_in_any_nesting(name: str, page: dict[str, Any]) -> None:
    f, calls = programs()[name], Counter[str]()
    g, batch = page["counting"](f, calls), torch.stack([X, X * 0.5 + 1])
    torch.testing.assert_close(g(X), f(X))
    torch.testing.assert_close(grad(g)(X), torch.func.grad(f)(X))
    if name != "out":  # which vmap refuses
        torch.testing.assert_close(vmap(grad(g))(batch), torch.func.vmap(torch.func.grad(f))(batch))
    torch.testing.assert_close(page["counting"](grad(f), calls)(X), torch.func.grad(f)(X))
    torch.testing.assert_close(jvp(g, (X,), (X,)), torch.func.jvp(f, (X,), (X,)))
    assert calls.total() > 0


def test_a_stored_value_has_escaped(page: dict[str, Any]) -> None:
    stored: list[Any] = []

    def store(y: Any) -> Any:
        stored.append(y)
        return y.sum()

    page["counting"](store, Counter())(X)
    with pytest.raises(EscapedValue, match="a value of counting"):
        stored[0] + 1


def test_a_value_keeps_its_size(page: dict[str, Any]) -> None:
    with pytest.raises(InplaceError, match="changes the size of a value of counting"):
        page["counting"](lambda y: y.clone().resize_(7).sum(), Counter())(X)
