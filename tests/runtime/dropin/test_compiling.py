"""``torch.compile`` under the drop-in: compiled programs train to torch's numbers, by the runtime's engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import dropin, unwrap

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Writing(nn.Module):
    """Writes to a buffer and to a view of an intermediate result, and returns a view and a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("seen", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        y = self.norm(x @ self.w)
        self.seen.add_(y.detach().sum(0))
        z = y.view(-1) * 2
        z[0] = 5.0
        return y.t(), z, self.seen


def steps(backend: str | None) -> list[torch.Tensor]:
    """Everything that three training steps show."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    m, x = Writing().double(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    f = m if backend is None else torch.compile(m, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        outs = f(x)
        sum(o.pow(2).sum() for o in outs[:2]).backward()
        optimizer.step()
        seen += [t.detach().clone() for t in (*outs, *m.parameters(), *m.buffers(), x.grad)]
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_module_trains_as_in_torch(backend: str) -> None:
    expected = steps(None)
    with dropin.installed():
        found = steps(backend)
    torch.testing.assert_close([unwrap(t) for t in found], expected)


@pytest.fixture
def routed() -> Iterator[None]:
    torch._dynamo.reset()
    with dropin.installed():
        yield


@pytest.mark.usefixtures("routed")
def test_a_function_is_captured_once_and_recorded_by_the_session() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        graphs.append([type(e) for e in examples])
        return module.forward

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    f = torch.compile(lambda x: (x.sin() * 2).sum() + torch.ones(2).sum(), backend=backend, fullgraph=True)
    for _ in range(2):
        y = f(x)
        (g,) = torch.autograd.grad(y, x)
        torch.testing.assert_close(unwrap(g), 2 * unwrap(x.detach()).cos())
    assert isinstance(y, runtime.Tensor) and graphs == [[torch.Tensor]]


@pytest.mark.usefixtures("routed")
def test_what_dynamo_does_not_capture_runs_under_the_drop_in() -> None:
    @torch.compile(backend="eager")
    def f(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sum() + torch.autograd.grad((x**3).sum(), x)[0].sum()

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = f(x)
    y.backward()
    assert y.item() == 6.0 + 15.0 and x.grad is not None and x.grad.tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("routed")
def test_an_error_of_a_backend_leaves_the_drop_in_installed() -> None:
    def backend(module: Any, examples: Any) -> Any:
        raise KeyError("no such chip")

    with pytest.raises(Exception, match="no such chip"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert isinstance(torch.ones(1), runtime.Tensor) and torch.autograd.grad is runtime.autograd.grad
