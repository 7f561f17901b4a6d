"""What the records of a boundary say together, how they carry out writes, and that
nobody changes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from tests.runtime.aot.capture.boundary_helpers import both, compiled, equal


def without_grad(f: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return f()


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_a_plain_argument_is_written_once_and_its_version_advances_as_often_as_in_the_program(
    n: int,
) -> None:
    def f(x: Any, y: Any) -> Any:
        for _ in range(n):
            x.add_(1)
        y.data.mul_(3)
        return x * y

    x, y = torch.zeros(2), torch.ones(2)
    before = x._version, y._version
    assert compiled(f)(x, y).tolist() == [3.0 * n] * 2
    assert (x._version - before[0], y._version - before[1]) == (n, 0)
    assert (x.tolist(), y.tolist()) == ([float(n)] * 2, [3.0] * 2)


class TestChangesOfGeometry:
    def there_and_back(self, x: Any) -> Any:
        x.unsqueeze_(0)
        x.squeeze_(0)
        return x * 2

    def turned(self, x: Any) -> Any:
        x.t_()
        return x * 2

    def test_a_leaf_takes_none_under_no_grad(self) -> None:
        x = runtime.wrap(torch.ones(2, 3), True)
        with pytest.raises(RuntimeError, match="the argument is a leaf"):
            compiled(lambda x: without_grad(lambda: self.turned(x)))(x)
        assert x.shape == (2, 3)

    @pytest.mark.parametrize("kind", ["leaf that keeps it", "with a history", "without grad"])
    def test_another_argument_takes_one(self, kind: str) -> None:
        f = self.there_and_back if kind == "leaf that keeps it" else self.turned

        def program(f: Callable[[Any], Any]) -> Any:
            leaf = runtime.wrap(torch.arange(6.0).view(2, 3), kind != "without grad")
            x = leaf * 1 if kind == "with a history" else leaf
            y = f(x)
            return y, x, list(x.shape), x.requires_grad, x.is_leaf, x._version

        assert equal(*both(lambda x: without_grad(lambda: f(x)), program))

    def test_one_that_is_recorded_has_its_gradient(self) -> None:
        def program(f: Callable[[Any], Any]) -> Any:
            leaf = runtime.wrap(torch.arange(6.0).view(2, 3), True)
            x = leaf * 1
            y = f(x)
            return list(x.shape), runtime.autograd.grad(
                (y * x * torch.arange(6.0).view(3, 2)).sum(), leaf
            )

        assert equal(*both(self.turned, program))
