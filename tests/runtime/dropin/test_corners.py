"""Rare arguments of torch's functions, under the drop-in: the values, flags and errors of torch."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.runtime.dropin.compare import both, described

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


def tried(f: Callable[[], Any]) -> Any:
    """What ``f`` gives, or that it is an error."""
    try:
        return described(f())
    except (RuntimeError, IndexError, TypeError, ValueError):
        return "refused"


# Views and copies of a matrix, each with places counted from the end.
PLACES: dict[str, Callable[[Any], Any]] = {
    "narrow": lambda t: [t.narrow(d, s, n) for d in (0, -1) for s in (-3, -2) for n in (0, 1, 2)],
    "narrow to the end": lambda t: [t.narrow(d, -2, 2) for d in (0, 1, -1, -2)],
    "narrow_copy": lambda t: [
        torch.narrow_copy(t, d, s, n) for d in (0, -1) for s in (-3, -2) for n in (0, 1, 2)
    ],
    "narrow_copy, whole": lambda t: torch.narrow_copy(t, 0, -3, 3),
    "narrow_copy, too long": lambda t: torch.narrow_copy(t, 0, -2, 3),
    "narrow_copy, too early": lambda t: torch.narrow_copy(t, 0, -9, 3),
    "narrow by a tensor": lambda t: t.narrow(0, torch.tensor(-2), 2),
    "select": lambda t: [t.select(-1, -1), t.select(0, -3)],
    "select_copy": lambda t: [torch.select_copy(t, -1, -1), torch.select_copy(t, 0, -3)],
    "slice_copy": lambda t: [torch.slice_copy(t, -1, -3, None), torch.slice_copy(t, 0, -9, -1)],
    "slice_copy by steps": lambda t: torch.slice_copy(t, -2, -3, None, 2),
    "unfold_copy": lambda t: torch.unfold_copy(t, -1, 2, 1),
    "diagonal_copy": lambda t: [torch.diagonal_copy(t, -1, -1, -2), torch.diagonal_copy(t, 1)],
    "split_copy": lambda t: torch.split_copy(t, 2, -1),
    "split_with_sizes_copy": lambda t: torch.split_with_sizes_copy(t, [1, 2], -2),
    "unbind_copy": lambda t: torch.unbind_copy(t, -1),
    "transpose_copy": lambda t: torch.transpose_copy(t, -1, -2),
    "permute_copy": lambda t: torch.permute_copy(t, [-1, -2]),
    "squeeze_copy": lambda t: torch.squeeze_copy(t[:1], -2),
    "unsqueeze_copy": lambda t: [torch.unsqueeze_copy(t, -1), torch.unsqueeze_copy(t, -3)],
    "expand_copy": lambda t: torch.expand_copy(t, [2, -1, -1]),
    "view_copy": lambda t: torch.view_copy(t, [-1, 2]),
    "as_strided_copy": lambda t: torch.as_strided_copy(t, [2, 2], [1, 2], 1),
    "tensor_split": lambda t: t.tensor_split([-2], -1),
    "index by a slice": lambda t: [t[-2:], t[:-1, -3:-1], t[..., -1]],
}


@pytest.mark.parametrize("name", PLACES)
def test_places_that_are_counted_from_the_end(name: str) -> None:
    f = PLACES[name]

    def program() -> Any:
        t = torch.arange(24.0).reshape(2, 3, 4)
        leaf = t[0].clone().requires_grad_()
        return [
            tried(lambda: torch.func.vmap(f)(t)),
            tried(lambda: torch.func.vmap(f, in_dims=2)(t)),
            tried(lambda: f(t[1])),
            tried(lambda: torch.utils._pytree.tree_map(lambda o: o.detach(), f(leaf))),
        ]

    found, expected = both(program)
    assert agrees(found[0], expected[0], "too" in name)


def agrees(found: Any, expected: Any, errors: bool = False) -> bool:
    """Whether two lists of results are the same, where torch gives a result. ``errors``: also
    where it refuses."""
    pairs = zip(found, expected, strict=True)
    return all(a == b or (b == "refused" and not errors) for a, b in pairs)


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "a leaf": lambda x: x,
    "its detach()": lambda x: x.detach(),
    "its data": lambda x: x.data,
    "its view": lambda x: x.view(2),
    "a view of its detach()": lambda x: x.detach().view(2),
    "another": lambda x: torch.ones(2),
}
RETURNED: dict[str, Callable[[Any], Any]] = {
    "as it is": lambda a: a,
    "detach()": lambda a: a.detach(),
    "clone()": lambda a: a.clone(),
    "a product": lambda a: a * 2,
}
# which outputs are marked non-differentiable, of (output, argument) pairs
MARKED: dict[str, Callable[[Any], Any]] = {
    "none": lambda pairs: [],
    "those of constants": lambda pairs: [o for o, a in pairs if not a.requires_grad],
    "the second": lambda pairs: [pairs[1][0]],
    "all": lambda pairs: [o for o, _ in pairs],
}


def flags_of_outputs(returned: Callable[[Any], Any], marked: Callable[[Any], Any]) -> Any:
    """Whether each output of a Function requires grad, for all pairs of arguments, and
    the gradient of their sum."""

    class Returns(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            outs = tuple(map(returned, args))
            ctx.mark_non_differentiable(*marked(list(zip(outs, args, strict=True))))
            return outs

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return grads

    out = []
    for first, second in itertools.product(ARGUMENTS.values(), repeat=2):
        x = torch.ones(2, requires_grad=True)
        outs = Returns.apply(first(x), second(x))  # type: ignore[no-untyped-call]
        out.append([(o.requires_grad, o.is_leaf) for o in outs])
        with_history = [o.sum() for o in outs if o.requires_grad]
        if with_history:
            sum(with_history).backward()
            out.append(x.grad)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("marked", MARKED)
@pytest.mark.parametrize("returned", RETURNED)
def test_outputs_of_a_function_that_share_the_memory_of_several_arguments(
    returned: str, marked: str
) -> None:
    found, expected = both(lambda: flags_of_outputs(RETURNED[returned], MARKED[marked]))
    assert isinstance(expected[0], list)
    assert found == expected


def what_a_module_sees_under_a_backward_hook() -> Any:
    seen = []

    class Product(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            seen.append((a.requires_grad, b.requires_grad))
            return (a * b).sum()

    x = torch.ones(2, requires_grad=True)
    m = Product()
    m.register_full_backward_hook(lambda *args: None)
    m(x, x.detach()).backward()
    return seen, x.grad


class Counting(nn.Module):
    b: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.register_buffer("b", torch.ones(1))

    def forward(self, x: Any) -> Any:
        names = [n for n, _ in self.named_parameters()], [n for n, _ in self.named_buffers()]
        return names, getattr(self, "extra", None), getattr(self.layer, "extra", None)


def names_that_a_module_does_not_have() -> Any:
    m, out = Counting(), []
    for name, make in itertools.product(("extra", "layer.extra"), (torch.ones, nn.Parameter)):
        value = make(torch.ones(1)) if make is nn.Parameter else torch.ones(1)
        out.append(torch.func.functional_call(m, {name: value}, (torch.ones(1),)))
        assert not hasattr(m, "extra") and not hasattr(m.layer, "extra")
        out.append(([n for n, _ in m.named_parameters()], [n for n, _ in m.named_buffers()]))
    return out


def gradcheck_of_a_backward_that_writes() -> Any:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            out = torch.empty_like(x)
            torch.mul(g, x, out=out)
            return out.mul_(2)

    x = torch.ones(2, dtype=torch.double, requires_grad=True)
    return torch.autograd.gradcheck(Square.apply, (x,))


def masked_softmax() -> Any:
    out = []
    for kind in (0, 1, 2):
        x = (torch.arange(60.0).reshape(3, 4, 5) % 7).requires_grad_()
        mask = torch.arange(60).reshape(3, 4, 5) % 3 == 0
        mask[..., 0] = False
        y = torch._masked_softmax(x, mask, 2, kind)
        (y * y).sum().backward()
        out += [y.detach(), x.grad]
    return out


def gradients_through_mkldnn() -> Any:
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this build of torch has no oneDNN")
    x = torch.arange(36.0).reshape(1, 1, 6, 6).requires_grad_()
    y = x.to_mkldnn().to_dense()
    (y * y).sum().backward()
    w = torch.ones(2, 1, 3, 3)
    z = torch.arange(36.0).reshape(1, 1, 6, 6).requires_grad_()
    F.conv2d(z.to_mkldnn(), w, torch.ones(2)).to_dense().sum().backward()
    return x.grad, z.grad


def convolutions_of_nothing() -> Any:
    """Derivatives of convolutions without samples or channels, one at a time and in batches."""
    out: list[Any] = []
    for samples, channels, groups in itertools.product((0, 2), (0, 4), (1, 2)):
        x = torch.ones(samples, channels, 5, dtype=torch.double, requires_grad=True)
        w = torch.ones(8, channels // groups, 3, dtype=torch.double, requires_grad=True)
        out += derivatives(
            functools.partial(F.conv1d, groups=groups),
            (x, w, torch.ones(8, dtype=torch.double, requires_grad=True)),
        )
    return out


def derivatives(f: Callable[..., Any], inputs: Any) -> list[Any]:
    y = f(*inputs)
    cotangents = torch.arange(3.0 * y.numel(), dtype=torch.double).reshape(3, *y.shape)
    plain = tuple(t.detach() for t in inputs)
    batches = [torch.stack([t, 2 * t]) for t in plain]
    grads = torch.func.grad(lambda *a: f(*a).pow(2).sum(), (0, 1, 2))

    def twice() -> Any:
        first = torch.autograd.grad(f(*inputs).pow(2).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum(g.pow(2).sum() for g in first), inputs)

    return [
        tried(lambda: torch.autograd.grad(y.sum(), inputs, retain_graph=True)),
        tried(lambda: torch.autograd.grad(y, inputs, cotangents, is_grads_batched=True)),
        tried(twice),
        tried(lambda: torch.func.jvp(f, plain, plain)),
        tried(lambda: torch.func.vmap(grads)(*batches)),
        tried(lambda: torch.func.jvp(grads, plain, plain)),
    ]


def test_derivatives_of_convolutions_of_nothing() -> None:
    found, expected = both(convolutions_of_nothing)
    assert agrees(found[0], expected[0])
    assert expected[0].count("refused") < len(expected[0]) / 3


@pytest.mark.parametrize(
    "program",
    [
        what_a_module_sees_under_a_backward_hook,
        names_that_a_module_does_not_have,
        gradcheck_of_a_backward_that_writes,
        masked_softmax,
        gradients_through_mkldnn,
    ],
    ids=lambda p: p.__name__,
)
def test_a_program_is_that_of_torch(program: Any) -> None:
    found, expected = both(program)
    assert "Error" not in str(expected[0])
    assert found == expected
