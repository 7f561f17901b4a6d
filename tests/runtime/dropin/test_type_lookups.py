"""What libraries ask of the type of a tensor, to choose what they do with it."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import copyreg
import functools
import pickle
import sys
from typing import Any

import pytest
import torch
from torch import nn

from runtime import dropin
from runtime.func import grad, vmap

from .compare import Program, both

CASES: dict[str, Program] = {}


def case(program: Program) -> Program:
    CASES[program.__name__] = program
    return program


class Length(torch.Tensor):
    pass


def tensors() -> list[torch.Tensor]:
    x = torch.ones(2, requires_grad=True)
    return [torch.ones(2), x, x * 2, torch.ones(2).as_subclass(Length), nn.Parameter(x)]


@case
def the_package_of_the_class() -> Any:
    return [
        (type(t).__module__.split(".")[0], t.__class__.__module__.split(".")[0]) for t in tensors()
    ]


@case
def the_class_that_a_tensor_tells() -> Any:
    table = {torch.Tensor: "tensor", Length: "length", nn.Parameter: "parameter"}
    return [table[t.__class__] for t in tensors()]


@case
def the_name_of_the_class() -> Any:
    return [(t.__class__.__name__, str(t.__class__)) for t in tensors()], str(type(tensors()[0]))


@case
def a_function_that_dispatches_on_its_argument() -> Any:
    @functools.singledispatch
    def kind(x: Any) -> str:
        return "object"

    @kind.register
    def _(x: torch.Tensor) -> str:
        return "tensor"

    @kind.register
    def _(x: nn.Parameter) -> str:
        return "parameter"

    return [kind(t) for t in tensors()], kind(1)


@case
def the_backend_that_has_been_imported() -> Any:
    module = sys.modules["torch"]
    return [(isinstance(t, module.Tensor), issubclass(type(t), module.Tensor)) for t in tensors()]


@case
def a_class_is_pickled_by_its_name() -> Any:
    classes = [pickle.loads(pickle.dumps(type(t))) for t in tensors()[:4]]
    return [c is torch.Tensor for c in classes], classes[3] is Length


@case
def a_function_that_is_registered_to_pickle_tensors() -> Any:
    copyreg.pickle(torch.Tensor, lambda t: (list, (t.tolist(),)))  # type: ignore[arg-type,return-value]
    try:
        return pickle.loads(pickle.dumps(torch.ones(2)))
    finally:
        del copyreg.dispatch_table[torch.Tensor]


@case
def the_class_makes_another_tensor() -> Any:
    made = [type(t)(torch.zeros(2)) for t in tensors()[:4]]
    parameter = type(nn.Parameter(torch.ones(1)))(torch.zeros(2), requires_grad=True)
    return made, parameter, [t.__class__(torch.zeros(2)) for t in tensors()]


@case
def a_class_is_assigned() -> Any:
    x: Any = torch.ones(2)
    x.__class__ = torch.Tensor
    a, b = torch.ones(1).as_subclass(Length), torch.zeros(2).as_subclass(Length)
    torch.utils.swap_tensors(a, b)
    return x, a, b


@case
def opt_einsum_finds_the_backend() -> Any:
    oe = pytest.importorskip("opt_einsum")
    a, b = torch.ones(2, 3, requires_grad=True), torch.ones(3, 4)
    out = oe.contract("ij,jk->ik", a, b)
    out.sum().backward()
    return out, a.grad, oe.contract("ij,jk,kl->il", b.t(), b, b.t())


@case
def methods_and_properties_of_the_class() -> Any:
    x = torch.ones(2, requires_grad=True)
    y = x * 2
    read = [
        torch.Tensor.requires_grad.__get__(x),  # type: ignore[attr-defined]
        torch.Tensor.is_leaf.__get__(y),  # type: ignore[attr-defined]
        type(torch.Tensor.grad_fn.__get__(y)).__name__,  # type: ignore[union-attr]
        torch.Tensor.tolist(y.detach()),
        torch.Tensor.numpy(y.detach()).tolist(),
        torch.Tensor.__repr__(y),
    ]
    torch.Tensor.backward(y.sum())
    return read, torch.Tensor.grad.__get__(x), torch.Tensor.data.__get__(x)  # type: ignore[union-attr, attr-defined]


@case
def what_is_written_through_the_class() -> Any:
    x: Any = torch.Tensor
    leaf, other = torch.ones(2), torch.ones(2, requires_grad=True)
    x.requires_grad.__set__(leaf, True)
    (leaf * other).sum().backward()
    grads = leaf.grad, other.grad
    x.grad.__set__(other, None)
    x.data.__set__(leaf, torch.zeros(3))
    return grads, other.grad, leaf.detach(), x.detach_(other * 2).requires_grad


@pytest.mark.parametrize("name", CASES)
def test_a_type_is_found_as_on_torch(name: str) -> None:
    found, expected = both(CASES[name])
    assert found == expected


def test_a_value_of_a_transform_tells_the_class_that_it_stands_for() -> None:
    seen: list[Any] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(x.__class__)
        return (x * x).sum()

    vmap(grad(f))(torch.ones(2, 3))
    assert seen == [torch.Tensor]


def test_the_names_of_classes_are_restored() -> None:
    import runtime

    before = runtime.Tensor.__module__
    with dropin.installed():
        assert runtime.Tensor.__module__ == "torch"
    assert runtime.Tensor.__module__ == before == "runtime.session.tensor"


def test_a_mode_sees_the_functions_that_a_program_calls_and_no_others() -> None:
    class Seeing(torch.overrides.TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with dropin.installed(), Seeing() as mode:
        x = torch.ones(2)
        x.requires_grad_()
        (x * 2).sum().backward()
    assert mode.names == ["ones", "requires_grad_", "mul", "sum", "backward"]
