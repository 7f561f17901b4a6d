"""``torch.compile`` under the drop-in is compiled again when anything changes that the session
keeps of a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from runtime import dropin
from tests.runtime.dropin.compare import outcome

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)
# How a program compiles a function, or leaves it as it is.
Compile = Callable[[Any], Any]


def leaf(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, requires_grad=True)


def an_input_that_begins_to_require_grad(compile: Compile) -> Any:
    f = compile(lambda x: x * 3)
    first, x = f(torch.ones(2)), leaf(2)
    y = f(x)
    y.sum().backward()
    return first, y, x.grad, f(torch.ones(2))


def an_input_in_a_container(compile: Compile) -> Any:
    f = compile(lambda xs: xs[0] * xs[1]["a"])
    f([torch.ones(2), {"a": torch.ones(2)}])
    a = leaf(2)
    f([torch.ones(2), {"a": a}]).sum().backward()
    return a.grad


def a_tensor_of_a_closure(compile: Compile) -> Any:
    w = torch.ones(2)
    f = compile(lambda x: x * w)
    f(torch.ones(2))
    w.requires_grad_()
    f(torch.ones(2)).sum().backward()
    return w.grad


def an_input_that_is_written_to(compile: Compile) -> Any:
    def program(x: Any, y: Any) -> Any:
        z = x * 2
        z.mul_(y)
        return z + 1

    f = compile(program)
    f(torch.ones(2), torch.ones(2))
    y = leaf(2)
    f(torch.ones(2), y).sum().backward()
    return y.grad


def one_of_two_results_is_detached(compile: Compile) -> Any:
    f, x, w = compile(lambda x, w: (x.detach() * w, x * w)), leaf(2), torch.ones(2)
    before = f(x, w)
    w.requires_grad_()
    after = f(x, w)
    (after[0] + after[1]).sum().backward()
    return before, after, x.grad, w.grad


def cells_in_a_loop(compile: Compile) -> Any:
    out = []
    for cell in (nn.RNNCell(2, 3), nn.GRUCell(2, 3)):
        torch.manual_seed(0)
        for p in cell.parameters():
            nn.init.normal_(p)
        f, h = compile(cell), torch.zeros(1, 3)
        for i in range(4):
            h = f(torch.full((1, 2), float(i)), h)
        h.pow(2).sum().backward()
        out += [h.detach(), *(p.grad for p in cell.parameters())]
    return out


def weights_that_are_frozen_and_unfrozen(compile: Compile) -> Any:
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    f, out = compile(m), []
    m[0].requires_grad_(False)
    for step in range(4):
        if step == 1:
            m.requires_grad_(True)
        if step == 2:
            m[2].weight.requires_grad_(False)
        if step == 3:
            m.requires_grad_(True)
        m.zero_grad()
        f(torch.ones(2, 2)).pow(2).sum().backward()
        out += [None if p.grad is None else p.grad.clone() for p in m.parameters()]
    return out


def attributes_of_a_module(compile: Compile) -> Any:
    class Scaled(nn.Module):
        b: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.t = torch.ones(2)
            self.register_buffer("b", torch.ones(2))

        def forward(self, x: Any) -> Any:
            return x * self.t * self.b

    m = Scaled()
    f = compile(m)
    f(torch.ones(2))
    m.t.requires_grad_()
    f(torch.ones(2)).sum().backward()
    m.b.requires_grad_()
    f(torch.ones(2)).sum().backward()
    return m.t.grad, m.b.grad


def grad_and_inference_mode(compile: Compile) -> Any:
    torch.manual_seed(0)
    m = nn.Linear(2, 1)
    f, x = compile(m), torch.ones(1, 2)
    with torch.no_grad():
        out = [f(x).requires_grad]
    y = f(x)
    y.sum().backward()
    with torch.inference_mode():
        z = f(x)
    return out, y, m.weight.grad, z.requires_grad, z.is_inference(), f(x).requires_grad


def an_inference_tensor(compile: Compile) -> Any:
    f = compile(lambda x: (x * 2, x.is_inference()))
    with torch.inference_mode():
        x = torch.ones(2)
    return f(torch.ones(2))[1], f(x)[1], f(torch.ones(2))[1]


def a_branch_by_requires_grad(compile: Compile) -> Any:
    f = compile(lambda x: x * 2 if x.requires_grad else x * 3)
    return f(torch.ones(1)), f(leaf(1)), f(torch.ones(1))


def a_branch_by_is_leaf(compile: Compile) -> Any:
    f, x = compile(lambda x: x * 2 if x.is_leaf else x * 3), leaf(1)
    return f(x), f(x * 1), f(x)


def a_branch_by_grad_fn(compile: Compile) -> Any:
    f, x = compile(lambda x: x * 2 if x.grad_fn is None else x * 3), leaf(1)
    return f(x), f(x * 1), f(x)


def dual_tensors(compile: Compile) -> Any:
    forward_ad = torch.autograd.forward_ad
    f, out = compile(lambda x: x.sin() * 2), []
    for _ in range(2):
        with forward_ad.dual_level():
            y = f(forward_ad.make_dual(torch.ones(2), torch.ones(2)))
            out += [y.detach().clone(), forward_ad.unpack_dual(y).tangent.clone()]
            out.append(forward_ad.unpack_dual(f(torch.ones(2))).tangent)
        out.append(f(torch.ones(2)))
    return out


def names_of_torch_in_a_closure(compile: Compile) -> Any:
    zeros, like, tensor = torch.zeros, torch.ones_like, torch.tensor

    def program(x: Any, full: Any = torch.full, others: Any = (torch.rand_like,)) -> Any:
        made = x + zeros(2) + like(x) + tensor([1.0, 2.0]) + full((2,), 3.0)
        return made * others[0](x).ge(0)

    f, x = compile(program), leaf(2)
    y = f(x)
    y.sum().backward()
    return y, x.grad, f(torch.ones(2))


def names_of_torch_in_a_module(compile: Compile) -> Any:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make = torch.ones
            self.others = {"zeros": torch.zeros}

        def forward(self, x: Any) -> Any:
            return x * self.make(2) + self.others["zeros"](2)

    f = compile(Made())
    return f(torch.ones(2)), f(torch.ones(2))


def a_name_of_a_closure_that_changes(compile: Compile) -> Any:
    make = torch.zeros
    f = compile(lambda x: x + make(2))
    before = f(torch.ones(2))
    make = torch.ones
    return before, f(torch.ones(2))


PROGRAMS = [
    an_input_that_begins_to_require_grad,
    an_input_in_a_container,
    a_tensor_of_a_closure,
    an_input_that_is_written_to,
    one_of_two_results_is_detached,
    cells_in_a_loop,
    weights_that_are_frozen_and_unfrozen,
    attributes_of_a_module,
    grad_and_inference_mode,
    an_inference_tensor,
    a_branch_by_requires_grad,
    a_branch_by_is_leaf,
    a_branch_by_grad_fn,
    dual_tensors,
    names_of_torch_in_a_closure,
    names_of_torch_in_a_module,
    a_name_of_a_closure_that_changes,
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_a_compiled_program_is_that_of_eager_torch(program: Any, backend: str) -> None:
    expected = outcome(lambda: program(lambda f: f))[0]
    torch._dynamo.reset()
    with dropin.installed():
        found = outcome(lambda: program(lambda f: torch.compile(f, backend=backend)))[0]
    assert "Error" not in str(expected)
    assert found == expected


def test_inductor_trains_a_weight_that_is_unfrozen_and_an_input_that_begins_to_require_grad() -> (
    None
):
    def program(compile: Compile) -> Any:
        m = nn.Linear(2, 2)
        nn.init.constant_(m.weight, 0.5)
        nn.init.zeros_(m.bias)
        m.requires_grad_(False)
        f, out = compile(m), []
        for step in range(3):
            m.weight.requires_grad_(step > 0)
            x = torch.ones(2, 2, requires_grad=step != 1)
            y = f(x)
            out.append(y.requires_grad)
            y.pow(2).sum().backward()
            out += [x.grad, None if m.weight.grad is None else m.weight.grad.clone()]
        return out

    expected = outcome(lambda: program(lambda f: f))[0]
    torch._dynamo.reset()
    with dropin.installed():
        found = outcome(lambda: program(lambda f: torch.compile(f, backend="inductor")))[0]
    assert "Error" not in str(expected)
    assert found == expected
