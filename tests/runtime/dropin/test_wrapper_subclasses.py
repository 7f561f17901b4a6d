"""Classes of a program that handle their own ATen calls: what they may leave to ``__init__``, what
torch asks them, what they see. The same program on plain torch is the oracle."""

# mypy: disable-error-code="attr-defined, no-untyped-call, override, union-attr"

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from torch import nn
from torch.masked import as_masked_tensor, masked_tensor
from torch.testing._internal.common_subclass import subclass_db
from torch.testing._internal.logging_tensor import LoggingTensor, capture_logs, log_input
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

from .compare import Program, both

CASES: dict[str, Program] = {}
_MASK = ((True, False, True), (True, True, False))


def case(program: Program) -> Program:
    CASES[program.__name__] = program
    return program


def masked(requires_grad: bool = False) -> Any:
    return masked_tensor(
        torch.arange(1.0, 7).reshape(2, 3), torch.tensor(_MASK), requires_grad=requires_grad
    )


@case
def masked_tensors() -> Any:
    m = masked()
    return [m, m.layout, m.stride(), m.sum(), m.mean(1), m.exp(), m * 2, m + m, m.to_tensor(0.0)]


@case
def masked_gradients() -> Any:
    m, x = masked(True), torch.arange(1.0, 7).reshape(2, 3).requires_grad_()
    (m * 2 + m.exp()).sum().backward()
    (as_masked_tensor(x, torch.tensor(_MASK)) ** 2).mean(1).sum().backward()
    n = masked(True)
    n.get_data().sum().backward()
    return m.grad, x.grad, m.get_data(), n.grad


@case
def masked_tensors_of_sparse_layouts() -> Any:
    m = masked()
    sparse = [m.to_sparse(), m.to_sparse_csr()]
    return [(str(s.layout), s.is_sparse, s.to_dense(), repr(s.sin()), repr(s + s)) for s in sparse]


class Answering(torch.Tensor):
    """Says its sizes, its device and its layout itself, by what ``__init__`` stores."""

    inner: torch.Tensor  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor, policy: Any, requires_grad: bool = False) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            dtype=inner.dtype,
            device=inner.device,
            layout=inner.layout,
            requires_grad=requires_grad,
            **policy,
        )

    def __init__(self, inner: torch.Tensor, policy: Any, requires_grad: bool = False) -> None:
        self.inner = inner
        self.policy = policy

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Answering({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        policy = args[0].policy if isinstance(args[0], cls) else {}
        args, kwargs = tree_map_only(cls, lambda t: t.inner, (args, kwargs or {}))
        return tree_map_only(torch.Tensor, lambda t: cls(t, policy), func(*args, **kwargs))


POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"dispatch_sizes_strides_policy": "sizes"},
    {"dispatch_sizes_strides_policy": "strides"},
    {"dispatch_device": True},
    {"dispatch_layout": True},
    {"dispatch_sizes_strides_policy": "strides", "dispatch_layout": True, "dispatch_device": True},
)


def answering(policy: dict[str, Any]) -> Program:
    def program() -> Any:
        x = Answering(torch.arange(6.0).reshape(2, 3), policy, True)
        w = torch.ones(4, 3, requires_grad=True)
        facts = x.shape, x.stride(), str(x.device), str(x.layout), x.is_contiguous(), x.numel()
        y = nn.functional.linear(x, w).t().reshape(-1)[1:]
        y.pow(2).sum().backward()
        slope = torch.func.grad(lambda t: (t * t).sum())(x.detach())
        return facts, type(y).__name__, y.requires_grad, x.grad.inner, w.grad.inner, slope.inner

    return program


for _policy in POLICIES:
    CASES["policy " + " ".join(_policy)] = answering(_policy)


@case
def sizes_that_change_after_the_tensor_is_made() -> Any:
    policy = {"dispatch_sizes_strides_policy": "sizes"}
    x = Answering(torch.ones(2, 3), policy)
    first = Answering(torch.ones(2, 3), policy)
    x.inner = torch.ones(4)
    return x.shape, first.shape, (x * 2).inner


@case
def the_calls_that_a_class_sees_have_the_tensors_of_the_program() -> Any:
    with capture_logs() as calls:
        x = LoggingTensor(torch.ones(4), requires_grad=True)
        log_input("x", x)
        y = x.split(2)[0] * x[:2]
        torch.stack([y, y]).sum()
    return list(calls)


@case
def tensors_of_a_class_with_slots_are_exchanged() -> Any:
    x, y = LoggingTensor(torch.ones(1)), LoggingTensor(torch.zeros(2))
    torch.utils.swap_tensors(x, y)
    return x.elem, y.elem, x.shape, repr(x)


class Aliasing(torch.Tensor):
    """Results share the storage that torch's results share."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls: Any, elem: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, elem.size(), dtype=elem.dtype)

    def __init__(self, elem: torch.Tensor) -> None:
        self.elem = elem

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inner, options = tree_map_only(cls, lambda t: t.elem, (args, kwargs or {}))
        out = tree_map_only(torch.Tensor, cls, func(*inner, **options))
        return return_and_correct_aliasing(func, args, kwargs or {}, out)


@case
def results_that_share_a_storage() -> Any:
    x = Aliasing(torch.zeros(4))
    y, z = x.view(2, 2), x + 1
    same = [t.untyped_storage()._cdata == x.untyped_storage()._cdata for t in (y, z, x.detach())]
    return same, x.add_(1) is x, y.elem, type(x.data).__name__


class Delegating(Aliasing):
    """Leaves what it does not know to its base class."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args[0].calls = getattr(args[0], "calls", 0) + 1
        return super().__torch_dispatch__(func, types, args, kwargs)


@case
def a_class_that_asks_its_base_class() -> Any:
    x = Delegating(torch.zeros(4))
    return type(x + 1).__name__, (x * 2).elem, x.calls


@case
def a_class_hears_of_its_own_subclasses_alone() -> Any:
    made: list[str] = []

    class Watched(Aliasing):
        def __init_subclass__(cls) -> None:
            made.append(cls.__name__)

    class Named(Watched):
        pass

    return (Named(torch.ones(2)) + 1).elem, made


def _each(kind: Any) -> Program:
    def program() -> Any:
        shape = (3,) if kind.__name__ == "DiagTensorBelow" else (3, 3)
        torch.manual_seed(1)
        x = subclass_db[kind].create_fn(shape)
        p = nn.Parameter(subclass_db[kind].create_fn(shape))
        layer = nn.ParameterList([p])
        other = copy.deepcopy(layer)
        other.load_state_dict(layer.state_dict())
        file = io.BytesIO()
        torch.save({"x": x, "p": p}, file)
        loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
        (p * p).sum().backward()
        torch.optim.SGD([p], lr=0.1).step()
        parameters = [p, other[0], loaded["p"], copy.deepcopy(p)]
        return (
            [repr(t) for t in (x, p, loaded["x"], copy.deepcopy(x))],
            [(isinstance(t, kind), isinstance(t, nn.Parameter)) for t in parameters],
            [t.requires_grad for t in parameters],
            type(p.grad).__name__,
        )

    return program


for _kind in subclass_db:
    if _kind is not torch.Tensor:
        CASES[f"a module with parameters of {_kind.__name__}"] = _each(_kind)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_a_class_does_as_on_torch(name: str) -> None:
    found, expected = both(CASES[name])
    assert found == expected
