"""Where nested tensors are refused: next to what torch records, in transforms, forward mode and
traces, and in the jagged layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm, linear, pad

from runtime import aot, autograd, func, wrap
from runtime.autograd import forward_ad
from runtime.dropin import installed
from runtime.errors import MissingRule

from .nested import REFUSED, backward, leaf, nested, numbers, parts, plain

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage"
)
cases = pytest.mark.parametrize


# ---- two engines


@cases(
    "call",
    [
        lambda: linear(nested(), torch.ones(3, 3, requires_grad=True)),
        lambda: layer_norm(nested(), (3,), torch.ones(3, requires_grad=True), torch.ones(3)),
        lambda: nested() * plain(requires_grad=True),
        lambda: wrap(plain()).add_(plain(requires_grad=True)),
        lambda: torch.nested.as_nested_tensor([leaf(2), torch.ones(2, requires_grad=True)]),
    ],
    ids=["linear", "layer_norm", "mul", "add_", "as_nested_tensor"],
)
def test_what_torch_records_does_not_meet_nested_tensors(call: Callable[[], Any]) -> None:
    """Torch's engine would end the process when it asks a nested value for its sizes."""
    with pytest.raises(RuntimeError, match=r"runtime\.wrap\(x, requires_grad=True\)"):
        call()


@cases("requires_grad", [False, True])
def test_a_constructor_of_torch_that_copies_refuses_runtime_tensors(requires_grad: bool) -> None:
    """It would set torch's own ``requires_grad`` on the result. Under the drop-in it
    gets plain tensors."""
    with REFUSED:
        torch.nested.nested_tensor([wrap(p) for p in parts()], requires_grad=requires_grad)


@cases(
    "call",
    [
        lambda n: linear(n, leaf(3, 3)),
        lambda n: n * wrap(torch.tensor(2.0), requires_grad=True),
        lambda n: torch.bmm(n, wrap(torch.ones(2, 3, 3))),
        lambda n: layer_norm(n, (3,), leaf(3), leaf(3)),
        lambda n: leaf(3, 3).mul(2).add_(n),
        lambda n: leaf(3).detach().copy_(n),
    ],
    ids=["linear", "mul", "bmm", "layer_norm", "add_", "copy_"],
)
def test_a_nested_tensor_of_torch_meets_dense_runtime_tensors_once_it_is_wrapped(
    call: Callable[[Any], Any],
) -> None:
    with REFUSED:
        call(plain())


def test_a_nested_tensor_of_torch_is_a_constant_next_to_a_nested_one() -> None:
    n = nested()
    backward(n * plain())
    assert numbers(n.grad) == numbers(plain())


# ---- where they are refused


@cases("make", [torch.nested.nested_tensor, torch.nested.as_nested_tensor])
def test_the_jagged_layout_is_refused(make: Callable[..., Any]) -> None:
    with REFUSED:
        wrap(plain(torch.jagged))
    with installed(), REFUSED:
        make([torch.ones(2), torch.ones(3)], layout=torch.jagged)


@cases(
    "transform",
    [
        lambda n: func.vmap(torch.sin)(n),
        lambda n: func.grad(lambda x: x.values().sum())(n),
        lambda n: func.vjp(torch.sin, n),
        lambda n: func.jvp(torch.sin, (n,), (n,)),
        lambda n: func.jacrev(torch.sin)(n),
        lambda n: func.linearize(torch.sin, n),
        lambda n: func.functionalize(torch.sin)(n),
        lambda n: aot.make_fx(torch.sin)(n),
        lambda n: aot.aot_function(torch.sin, fw_compiler=lambda module, inputs: module)(n),
        lambda n: autograd.functional.jacobian(torch.sin, n),
    ],
    ids=[
        "vmap",
        "grad",
        "vjp",
        "jvp",
        "jacrev",
        "linearize",
        "functionalize",
        "make_fx",
        "aot_function",
        "jacobian",
    ],
)
@cases("make", [plain, nested])
def test_a_nested_tensor_cannot_be_transformed(
    transform: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    with REFUSED:
        transform(make())


def test_gradcheck_takes_the_parts() -> None:
    def f(*given: Any) -> Any:
        return torch.nested.as_nested_tensor(list(given)).sin().values()

    with REFUSED:
        autograd.gradcheck(torch.sin, (wrap(plain().double(), requires_grad=True),))
    assert autograd.gradcheck(f, [wrap(p.double(), requires_grad=True) for p in parts()])


@cases(
    "transform",
    [
        lambda n: func.vmap(lambda x: n * x)(torch.ones(2)),
        lambda n: func.vmap(lambda w: linear(n, w))(torch.ones(4, 3, 3)),
        lambda n: func.grad(lambda w: linear(n, w).values().sum())(torch.ones(3, 3)),
        lambda n: func.jvp(lambda w: linear(n, w), (torch.ones(3, 3),), (torch.ones(3, 3),)),
        lambda n: aot.make_fx(lambda w: linear(n, w))(torch.ones(3, 3)),
        lambda n: func.functionalize(lambda w: n.values().sum() * w)(torch.ones(3)),
        lambda n: func.vmap(lambda w: torch.einsum("bij,jk->bik", n, w))(torch.ones(2, 3, 3)),
        lambda n: func.grad(lambda w: w.clone().__setitem__(0, n))(torch.ones(3, 3)),
    ],
    ids=[
        "vmap",
        "vmap of linear",
        "grad",
        "jvp",
        "make_fx",
        "functionalize",
        "composed of others",
        "item assignment",
    ],
)
def test_a_captured_nested_tensor_does_not_meet_the_values_of_a_transform(
    transform: Callable[[Any], Any],
) -> None:
    with REFUSED:
        transform(nested())


@cases(
    "transform",
    [
        lambda n: func.grad(lambda w: (n * w).values().sum())(torch.ones(3)),
        lambda n: func.vmap(lambda w: n * w)(torch.ones(2, 3)),
        lambda n: func.vmap(lambda w: torch.cat([n, w]))(torch.ones(2, 3)),
        lambda n: func.jvp(lambda w: n * w, (torch.ones(3),), (torch.ones(3),)),
    ],
    ids=["grad", "vmap", "vmap of a list", "jvp"],
)
def test_nor_does_one_of_torch_whose_kernel_would_speak_of_something_else(
    transform: Callable[[Any], Any],
) -> None:
    with REFUSED:
        transform(plain())


@cases(
    "transform",
    [
        lambda f: func.vmap(f)(torch.ones(2, 3)),
        lambda f: func.grad(lambda x: f(x).values().sum())(torch.ones(3)),
        lambda f: func.jvp(f, (torch.ones(3),), (torch.ones(3),)),
    ],
    ids=["vmap", "grad", "jvp"],
)
def test_no_nested_tensor_is_made_in_a_transform(transform: Callable[[Any], Any]) -> None:
    with REFUSED:
        transform(lambda x: torch.nested.as_nested_tensor([x, x]))


def test_a_dual_tensor_does_not_meet_nested_ones() -> None:
    n = nested()
    with forward_ad.dual_level():
        with REFUSED:
            forward_ad.make_dual(n, n)
        dual = forward_ad.make_dual(torch.ones(3, 3), torch.ones(3, 3))
        with REFUSED:
            torch.nested.as_nested_tensor([dual])
        with pytest.raises(MissingRule, match=r"aten\.linear\.default has no jvp"):
            linear(n, dual)
        backward(n * 2)
    assert numbers(n.grad) == [2.0] * 9


def test_the_advice_works() -> None:
    first, second = leaf(2), leaf(1)
    padded = torch.stack([pad(p, (0, 2 - len(p))) for p in (first, second)])
    mask = torch.tensor([[True, True], [True, False]])
    (padded.exp() * mask).sum().backward()
    assert torch.equal(first.grad, torch.ones(2).exp()) and torch.equal(
        second.grad, torch.ones(1).exp()
    )
