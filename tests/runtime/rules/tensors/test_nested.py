"""Derivatives of ops with nested tensors: torch's own where it has them, finite differences of the
components in any case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.nn.functional import (
    embedding,
    gelu,
    layer_norm,
    linear,
    relu,
    scaled_dot_product_attention,
    silu,
)

import runtime
from runtime import wrap
from runtime.autograd import gradcheck, gradgradcheck
from runtime.errors import MissingRule

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage"
)

ROWS = [(2, 3), (1, 3)]  # shapes of components
HEADS = [(2, 4, 3), (2, 2, 3)]
SQUARES = [(3, 2), (3, 4)]
SIZES = torch.tensor(ROWS)
STRIDES = torch.tensor([[3, 1], [3, 1]])
MASK = torch.tensor([[True, True, False], [True, False, False]])
WORDS = [torch.tensor([0, 2, 0]), torch.tensor([1])]
# a function; of each input its shape, a list of shapes for a nested one
Case = tuple[Callable[..., Any], Sequence[Any]]


def words(like: torch.Tensor) -> Any:
    """Nested indices for an op with ``like``."""
    n = torch.nested.nested_tensor(WORDS)
    return wrap(n) if isinstance(like, runtime.Tensor) else n


def first_part(n: Any) -> Any:
    return n.narrow(0, 0, 1)


# torch has these derivatives
KNOWN: dict[str, Case] = {
    "abs": (torch.abs, [ROWS]),
    "neg": (torch.neg, [ROWS]),
    "cos": (torch.cos, [ROWS]),
    "sin": (torch.sin, [ROWS]),
    "relu": (relu, [ROWS]),
    "gelu": (gelu, [ROWS]),
    "gelu by tanh": (lambda n: gelu(n, approximate="tanh"), [ROWS]),
    "silu": (silu, [ROWS]),
    "sqrt": (lambda n: (n * n + n * n).sqrt(), [ROWS]),
    "clone": (torch.clone, [ROWS]),
    "mul": (torch.mul, [ROWS, ROWS]),
    "div": (torch.div, [ROWS, ROWS]),
    "add": (lambda n, m: torch.add(n, m, alpha=3), [ROWS, ROWS]),
    "sub": (lambda n, m: torch.sub(n, m, alpha=3), [ROWS, ROWS]),
    "with numbers": (lambda n: (n * 2 + 1 - 3) / 4, [ROWS]),
    "masked_fill": (lambda n: n.masked_fill(n > 0, 1.5), [ROWS]),
    "zero_": (lambda n: n.clone().zero_() + n, [ROWS]),
    "fill_": (lambda n: n.clone().fill_(2.0) + n, [ROWS]),
    "copy_": (lambda n: n.clone().copy_(n * n), [ROWS]),
    "in place": (lambda n: n.sin().add_(n).mul_(2).relu_(), [ROWS]),
    "transpose": (lambda n: n.transpose(1, 2).contiguous(), [ROWS]),
    "transposed sum": (lambda n: n.transpose(-1, -2) + n.transpose(-1, -2), [ROWS]),
    "unsqueeze": (lambda n: n.unsqueeze(-1), [ROWS]),
    "squeeze": (lambda n: n.unsqueeze(1).squeeze(1), [ROWS]),
    "squeeze of several": (lambda n: n.unsqueeze(1).squeeze((1,)), [ROWS]),
    "view": (lambda n: n.view(2, -1, 3, 1), [ROWS]),
    "reshape": (lambda n: n.transpose(1, 2).reshape(2, 3, -1, 1), [ROWS]),
    "values": (lambda n: n.values(), [ROWS]),
    "transposed values": (lambda n: n.transpose(1, 2).values(), [ROWS]),
    "to_padded_tensor": (lambda n: n.to_padded_tensor(1.0), [ROWS]),
    "unbind": (lambda n: n.unbind(), [ROWS]),
    "one of unbind": (lambda n: n.unbind()[1], [ROWS]),
    "component": (lambda n: n[-1], [ROWS]),
    "split": (lambda n: n.split([1, 2], -1), [ROWS]),
    "one of split": (lambda n: n.split([1, 2], 2)[1], [ROWS]),
    "sum": (lambda n: n.sum(-1, keepdim=True), [ROWS]),
    "softmax": (lambda n: n.softmax(-1), [ROWS]),
    "softmax along the ragged dimension": (lambda n: n.softmax(1), [ROWS]),
    "linear": (linear, [ROWS, (5, 3), (5,)]),
    "linear without bias": (linear, [ROWS, (5, 3)]),
    "matmul": (torch.matmul, [ROWS, SQUARES]),
    "matmul of heads": (lambda n: n @ n.transpose(-1, -2), [HEADS]),
    "bmm": (torch.bmm, [ROWS, SQUARES]),
    "layer_norm": (lambda n, w, b: layer_norm(n, (3,), w, b), [HEADS, (3,), (3,)]),
    "layer_norm over two": (
        lambda n, w, b: layer_norm(n, (4, 3), w, b),
        [[(2, 4, 3), (1, 4, 3)], (4, 3), (4, 3)],
    ),
    "attention": (scaled_dot_product_attention, [HEADS, HEADS, HEADS]),
    "from a mask": (lambda t: torch._nested_tensor_from_mask(t, MASK), [(2, 3, 5)]),
    "from padding": (lambda t: torch._nested_from_padded(t, SIZES), [(2, 4, 5)]),
    "from a buffer": (
        lambda t: torch._nested_view_from_buffer(t, SIZES, STRIDES, torch.tensor([0, 6])),
        [(9,)],
    ),
}

# torch computes these, and has no derivative for nested tensors, or one that fails or
# (overlapping) is wrong
FURTHER: dict[str, Case] = {
    "sgn": (lambda n: n.sgn() * n, [ROWS]),
    "tanh": (torch.tanh, [ROWS]),
    "tanh_": (lambda n: n.clone().tanh_(), [ROWS]),
    "number times": (torch.mul, [(), ROWS]),
    "times number": (torch.mul, [ROWS, ()]),
    "plus number": (torch.add, [ROWS, ()]),
    "number minus": (torch.sub, [(), ROWS]),
    "number over": (torch.div, [(), ROWS]),
    "where": (lambda n, t: torch.where(n > 0, t, n), [ROWS, ()]),
    "padding to a size": (lambda n: n.to_padded_tensor(0.0, (3, 4, 5)), [ROWS]),
    "select": (lambda n: n.select(1, 0), [ROWS]),
    "narrow": (lambda n: n.narrow(0, -1, 1), [ROWS]),
    "part": (lambda n: first_part(n) * 2, [ROWS]),
    "function of a part": (lambda n: first_part(n).sin(), [ROWS]),
    "product with a copy of a part": (lambda n: first_part(n).clone() * first_part(n), [ROWS]),
    "softmax of another part": (lambda n: n.narrow(0, 1, 1).softmax(-1), [ROWS]),
    "chunk": (lambda n: n.chunk(3, -1), [ROWS]),
    "one of chunk": (lambda n: n.chunk(3, 2)[1], [ROWS]),
    "cat": (lambda n, m: torch.cat([n, m, n]), [ROWS, SQUARES]),
    "bmm with dense": (torch.bmm, [ROWS, (2, 3, 5)]),
    "bmm of dense": (torch.bmm, [(2, 4, 2), [(2, 3), (2, 1)]]),
    "embedding": (lambda w: embedding(words(w), w), [(4, 3)]),
    "overlapping buffer": (
        lambda t: torch._nested_view_from_buffer(t, SIZES, STRIDES, torch.tensor([0, 3])),
        [(9,)],
    ),
    "projection and split": (lambda n, w: linear(n, w).chunk(3, -1)[1].softmax(-1), [ROWS, (6, 3)]),
}
ALL = KNOWN | FURTHER
cases = pytest.mark.parametrize


def data(shapes: Sequence[Any]) -> list[torch.Tensor]:
    """One tensor per dense input and per component of a nested one."""
    torch.manual_seed(0)
    flat = [shape for entry in shapes for shape in (entry if isinstance(entry, list) else [entry])]
    return [torch.randn(shape, dtype=torch.float64) for shape in flat]


def outputs(case: Case, flat: Sequence[Any]) -> tuple[Any, ...]:
    """The results by their components, of nested tensors made of ``flat``."""
    f, shapes = case
    rest: Iterator[Any] = iter(flat)
    out = f(
        *(
            torch.nested.as_nested_tensor([next(rest) for _ in s])
            if isinstance(s, list)
            else next(rest)
            for s in shapes
        )
    )
    each = out if isinstance(out, (list, tuple)) else (out,)
    return tuple(part for o in each for part in (o.unbind() if o.is_nested else (o,)))


@cases("name", KNOWN)
def test_values_and_gradients_are_those_of_torch(name: str) -> None:
    case = KNOWN[name]
    given = data(case[1])
    mine, theirs = (
        [wrap(t, requires_grad=True) for t in given],
        [t.clone().requires_grad_() for t in given],
    )
    got, expected = outputs(case, mine), outputs(case, theirs)
    cotangents = [torch.randn_like(t.detach()) for t in expected]
    gradients = runtime.autograd.grad(got, mine, cotangents)
    torch.testing.assert_close(
        [t._inner for t in (*got, *gradients)],
        [*expected, *torch.autograd.grad(expected, theirs, cotangents)],
    )


@cases("name", FURTHER)
def test_values_are_those_of_torch(name: str) -> None:
    given = data(FURTHER[name][1])
    got = outputs(FURTHER[name], [wrap(t) for t in given])
    torch.testing.assert_close([t._inner for t in got], list(outputs(FURTHER[name], given)))


@cases("name", ALL)
def test_first_and_second_derivatives_are_finite_differences(name: str) -> None:
    case = ALL[name]
    leaves = [wrap(t, requires_grad=True) for t in data(case[1])]

    def f(*flat: Any) -> Any:
        return tuple(o for o in outputs(case, flat) if o.requires_grad)

    assert gradcheck(f, leaves)
    assert gradgradcheck(f, leaves)


@cases("train", [True, False, None])
def test_dropout_passes_gradients_where_it_passes_numbers(train: bool | None) -> None:
    n = wrap(torch.nested.nested_tensor([torch.ones(40, 3), torch.ones(1, 3)]), requires_grad=True)
    out, _ = torch.native_dropout(n, 0.25, train)
    out.backward(torch.ones_like(out))
    assert torch.equal(n.grad.values(), out.detach().values())
    assert out.values().unique().tolist() == (
        [1.0] if train is False else [0.0, pytest.approx(4 / 3)]
    )


def test_a_gradient_of_another_dtype_is_cast() -> None:
    n = wrap(torch.nested.nested_tensor([torch.ones(2, 3)]), requires_grad=True)
    y = n.double() * 2
    y.backward(torch.ones_like(y))
    assert n.grad.dtype is torch.float32


def test_the_real_part_is_taken_for_a_real_tensor() -> None:
    n = wrap(torch.nested.nested_tensor([torch.ones(2)]), requires_grad=True)
    y = n * wrap(torch.nested.nested_tensor([torch.tensor([1 + 2j, 3 - 1j])]))
    y.backward(torch.ones_like(y))
    assert n.grad.values().tolist() == [1.0, 3.0]


@cases(
    "call",
    [
        lambda n, t: torch._nested_from_padded_and_nested_example(t, n),
        lambda n, t: torch.cat([n, n], 1),
    ],
    ids=["without a record", "cat along another dimension"],
)
def test_an_op_without_a_derivative_says_so_by_name(call: Callable[[Any, Any], Any]) -> None:
    n = wrap(torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(2, 3)]), requires_grad=True)
    out = call(n, wrap(torch.ones(2, 2, 3), requires_grad=True))
    with pytest.raises(MissingRule, match=r"aten\.\w+\.default has no vjp"):
        out.backward(torch.ones_like(out))


def test_memory_that_a_nested_tensor_does_not_show_has_no_gradient_by_values() -> None:
    n = wrap(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), requires_grad=True)
    with pytest.raises(RuntimeError, match="fills its storage"):
        first_part(n).values().sum().backward()


def test_a_buffer_must_be_all_of_its_memory() -> None:
    t = wrap(torch.arange(12.0), requires_grad=True)[3:]
    n = torch._nested_view_from_buffer(t, SIZES, STRIDES, torch.tensor([0, 6]))
    with pytest.raises(RuntimeError, match="clone"):
        n.unbind()[0].sum().backward()
