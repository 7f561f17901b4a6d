"""Target decomposed: each op runs by the ops that Inductor makes of it."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from gen.targets import load

X = torch.linspace(-1.0, 1.0, 6, dtype=torch.float64).reshape(2, 3)


class Names(TorchDispatchMode):
    """The names of the ops whose kernels run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.add(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def target() -> Any:
    return load("decomposed")


def silu(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x)


def test_an_op_runs_by_other_ops_and_gives_its_own_results(target: Any) -> None:
    with Names() as plain:
        expected = silu(X)
    with Names() as decomposed:
        actual = target.forward(silu)(X)
    torch.testing.assert_close(actual, expected)
    assert "silu.default" in plain.names
    assert "silu.default" not in decomposed.names


def test_a_gradient_runs_by_other_ops_too(target: Any) -> None:
    def slope(x: torch.Tensor) -> Any:
        return torch.func.grad(lambda y: silu(y).sum())(x)

    with Names() as decomposed:
        actual = target.pipeline(slope, ("grad",))(X)
    torch.testing.assert_close(actual, slope(X))
    assert not {name for name in decomposed.names if name.startswith("silu")}


def test_an_op_that_inductor_leaves_whole_runs_its_kernel(target: Any) -> None:
    with Names() as decomposed:
        torch.testing.assert_close(target.forward(torch.sin)(X), X.sin())
    assert "sin.default" in decomposed.names
