"""Every tensor that a transform makes is on the device of its arguments and of their dtype: bases,
zeros, ones, copies and draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import runtime
from runtime.aot import make_fx
from runtime.autograd.graph import get_gradient_edge
from runtime.func import (
    functional_call,
    functionalize,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)

Program = Callable[[Any], Any]  # of a tensor of shape (3, 2)


def _two(x: Any) -> Any:
    return x.sum(0), x * 2


def _unused(x: Any) -> Any:
    return x.new_ones(2).sum()


TRANSFORMS: dict[str, Program] = {
    "grad": grad(lambda x: x.sum()),
    "grad of what is not used": grad(_unused),
    "grad_and_value": grad_and_value(lambda x: x.sum()),
    "vjp": lambda x: vjp(_two, x)[1]((x[0], None)),
    "vjp of what is not used": lambda x: vjp(_unused, x)[1](x[0, 0]),
    "jvp": lambda x: jvp(_two, (x,), (x,)),
    "jvp of what is not used": lambda x: jvp(_unused, (x,), (x,)),
    "linearize": lambda x: linearize(_two, x)[1](x),
    "linearize of what is not used": lambda x: linearize(_unused, x)[1](x),
    "jacrev": jacrev(lambda x: x.sum(0)),
    "jacrev of a number": jacrev(lambda x: x.sum()),
    "jacrev of two": jacrev(_two),
    "jacrev in chunks": jacrev(_two, chunk_size=2),
    "jacrev row by row": jacrev(_two, chunk_size=1),
    "jacfwd": jacfwd(lambda x: x.sum(0)),
    "jacfwd by two": lambda x: jacfwd(lambda x, y: x * y[0], argnums=(0, 1))(x, x),
    "hessian": hessian(lambda x: x.pow(3).sum()),
    "vmap": vmap(lambda x: x * torch.ones_like(x)),
    "vmap over nothing": lambda x: vmap(lambda x: x.cumsum(0))(x[:0]),
    "vmap of a draw": vmap(
        lambda x: torch.rand_like(x) + torch.rand(2, dtype=x.dtype, device=x.device),
        randomness="different",
    ),
    "vmap of one draw": vmap(
        lambda x: torch.rand_like(x) * torch.rand(2, dtype=x.dtype, device=x.device),
        randomness="same",
    ),
    "vmap of what is shared": lambda x: vmap(lambda y: x.sum())(x),
    "functionalize": functionalize(lambda x: (x * 1).add_(1)),
    "functionalize of a factory": functionalize(
        lambda x: torch.full((2,), 3.0, out=torch.empty(0, dtype=x.dtype, device=x.device))
    ),
    "functionalize of an overlap": functionalize(
        lambda x: (x.flatten() * 1).unfold(0, 2, 1).mul_(2)
    ),
    "functionalize of a part": functionalize(lambda x: (x * 1)[:, ::2].mul_(2)),
    "functional_call": lambda x: functional_call(
        torch.nn.Linear(2, 1), {"weight": x[:1], "bias": x[0, :1]}, x
    ),
    "stacked modules": lambda x: stack_module_state(
        [torch.nn.Linear(2, 1, device=x.device, dtype=x.dtype)] * 3
    ),
    "a graph": lambda x: make_fx(lambda x: jacrev(_two)(x), tracing_mode="fake")(x)(x),
    "a graph of any size": lambda x: make_fx(lambda x: jacrev(_two)(x), tracing_mode="symbolic")(x)(
        x
    ),
    "a graph of a joint pass": lambda x: make_fx(lambda x: vjp(_two, x)[1]((x[0], x)))(x)(x),
}
PLACES = [("meta", torch.float64), ("meta", torch.float16), ("cpu", torch.float64)]
places = pytest.mark.parametrize(
    ("device", "dtype"), PLACES, ids=lambda p: str(p).removeprefix("torch.")
)


def _check(found: Any, device: str, dtype: torch.dtype) -> None:
    tensors = [t for t in pytree.tree_leaves(found) if isinstance(t, torch.Tensor)]
    assert tensors and {(t.device.type, t.dtype) for t in tensors} == {(device, dtype)}


@places
@pytest.mark.parametrize("name", TRANSFORMS)
def test_results_are_where_the_argument_is(name: str, device: str, dtype: torch.dtype) -> None:
    _check(TRANSFORMS[name](torch.ones(3, 2, device=device, dtype=dtype)), device, dtype)


@places
@pytest.mark.parametrize(
    "name", ["jacrev of two", "hessian", "a graph of a joint pass", "functionalize of an overlap"]
)
def test_every_value_of_its_graph_is_where_the_argument_is(
    name: str, device: str, dtype: torch.dtype
) -> None:
    x = torch.ones(3, 2, device=device, dtype=dtype)
    values = [n.meta.get("val") for n in make_fx(TRANSFORMS[name])(x).graph.nodes]
    _check(
        [v for v in values if isinstance(v, torch.Tensor) and v.dtype.is_floating_point],
        device,
        dtype,
    )


SESSION: dict[str, Program] = {  # of a leaf
    "grad": lambda x: runtime.autograd.grad(x.sum(), x),
    "grad of an edge": lambda x: runtime.autograd.grad(get_gradient_edge((x * 2).sum()), x),
    "grad of an edge of a chain": lambda x: runtime.autograd.grad(
        get_gradient_edge(x.sin().exp().sum()), [get_gradient_edge(x)]
    ),
    "zeros": lambda x: runtime.autograd.grad(
        (x * 2).sum(), [x, x.detach().requires_grad_()], materialize_grads=True
    ),
    "backward": lambda x: ((x * 2).sum().backward(), x.grad),
    "a batch": lambda x: runtime.autograd.grad(
        x * 2, x, torch.ones_like(x)[None], is_grads_batched=True
    ),
    "new tensors": lambda x: [
        x.new_zeros(2),
        x.new_ones(2),
        x.new_full((2,), 3.0),
        x.new_empty(2),
        x.new_tensor([1.0]),
    ],
    "a written element": lambda x: _with_an_element(x * 1),
    "a linear layer": lambda x: torch.nn.functional.linear(x, x[:1], x[0, :1]),
    "a gru cell": lambda x: torch.gru_cell(x, x, *[x.new_ones(6, 2)] * 2, *[x.new_ones(6)] * 2),
    "a pickle": lambda x: x.__reduce_ex__(2)[1][0] if x.device.type == "cpu" else x,
    "a copy": lambda x: x.__deepcopy__({}),
}


def _with_an_element(y: Any) -> Any:
    y[0, 1] = 3.0
    return y


@places
@pytest.mark.parametrize("name", SESSION)
def test_what_the_session_makes_is_where_the_leaf_is(
    name: str, device: str, dtype: torch.dtype
) -> None:
    x = runtime.wrap(torch.ones(3, 2, device=device, dtype=dtype), requires_grad=True)
    found = SESSION[name](x)
    _check(found if name != "a pickle" else x, device, dtype)


def test_a_tensor_is_made_on_the_device_and_of_the_dtype_that_are_asked_for() -> None:
    for device, dtype in PLACES:
        for wanted in (False, True):
            t = runtime.tensor([1.0, 2.0], dtype=dtype, device=device, requires_grad=wanted)
            assert (t.device.type, t.dtype, t.requires_grad) == (device, dtype, wanted)
