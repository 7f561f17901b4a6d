"""Programs on torch's fake tensors: sizes and dtypes are computed, elements are not. The same
program on plain torch is the oracle.

A tensor of the session holds the fake one, so it is no ``FakeTensor`` itself: what a program
prints is compared.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from runtime import dropin

from .compare import Program, both

CASES: dict[str, Program] = {}


def case(program: Program) -> Program:
    CASES[program.__name__] = program
    return program


def _model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))


@case
def a_training_step() -> Any:
    with FakeTensorMode():
        model = _model()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 4)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return [repr(p.grad) for p in model.parameters()], sorted(
            map(str, optimizer.state_dict()["state"][0])
        )


@case
def a_leaf_and_second_derivatives() -> Any:
    with FakeTensorMode():
        x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
        (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        g.sum().backward()
        return repr(g.detach()), g.requires_grad, repr(x.grad), x.is_leaf


@case
def writes_and_views() -> Any:
    with FakeTensorMode():
        x = torch.randn(3, 4, requires_grad=True)
        y = x.view(4, 3) * 1
        y[0] = 2
        y[1:].mul_(2)
        y.t_().sum().backward()
        return repr(x.grad), y.shape, y.stride()


@case
def a_recurrent_layer() -> Any:
    with FakeTensorMode():
        layer = nn.LSTM(4, 5, num_layers=2, bidirectional=True)
        out, (h, c) = layer(torch.randn(3, 2, 4))
        out.sum().backward()
        return repr(out.detach()), h.shape, c.shape, [repr(p.grad) for p in layer.parameters()]


@case
def a_checkpoint() -> Any:
    with FakeTensorMode():
        model = _model()
        checkpoint(model, torch.randn(3, 4), use_reentrant=False).sum().backward()
        return [repr(p.grad) for p in model.parameters()]


@case
def forward_mode() -> Any:
    with FakeTensorMode(), forward_ad.dual_level():
        x = forward_ad.make_dual(torch.randn(3, 2), torch.randn(3, 2))
        return repr(forward_ad.unpack_dual(x.sin() @ x.T).tangent)


@case
def transforms() -> Any:
    with FakeTensorMode():
        x = torch.randn(3, 4)
        return [
            repr(f(x))
            for f in (
                torch.func.jacrev(torch.sin),
                torch.func.vmap(torch.func.grad(lambda r: r.prod())),
            )
        ]


@case
def parameters_from_before() -> Any:
    model = _model()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(torch.randn(3, 4)).sum().backward()
    return [repr(p.grad) for p in model.parameters()]


@case
def a_fake_tensor_of_a_real_one() -> Any:
    mode = FakeTensorMode()
    x = mode.from_tensor(torch.ones(3, 4, requires_grad=True))
    with mode:
        (x * torch.randn(4)).sum().backward()
    return x.requires_grad, x.is_leaf, repr(x.grad)


@case
def elements_are_not_there() -> Any:
    with FakeTensorMode():
        return torch.ones(1, requires_grad=True).sum().item()


@case
def a_model_that_outlives_the_mode() -> Any:
    with FakeTensorMode():
        model = nn.Linear(2, 2)
    try:
        model(torch.ones(1, 2))
    except AssertionError as error:
        return str(error).partition(". Found")[0]
    return "no error"


@pytest.mark.parametrize("name", CASES)
def test_a_program_on_fake_tensors_does_as_on_torch(name: str) -> None:
    (found, _), (expected, _) = both(CASES[name])
    assert found == expected


def test_the_elements_of_a_fake_model_take_no_memory() -> None:
    with dropin.installed(), FakeTensorMode():
        layer = nn.Linear(1 << 20, 1 << 16)  # 256 GiB
        layer(torch.randn(1, 1 << 20)).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.shape == (1 << 16, 1 << 20)
