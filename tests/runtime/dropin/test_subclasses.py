"""Subclasses of ``Tensor`` and ``Parameter`` that a program defines. The same program on plain
torch is the oracle."""

# mypy: disable-error-code="attr-defined, no-untyped-call, override, union-attr"

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import dropin

from .compare import Program, both

CASES: dict[str, Program] = {}


def case(program: Program) -> Program:
    CASES[program.__name__] = program
    return program


class Length(torch.Tensor):
    unit = "m"

    def doubled(self) -> Any:
        return self * 2


class Tagged(torch.Tensor):
    tag: str

    def __new__(cls, data: Any, tag: str = "") -> Any:
        made = torch.Tensor._make_subclass(cls, data)
        made.tag = tag
        return made


class Held(torch.Tensor):
    """Unwraps and wraps in ``__torch_function__``."""

    _data: Any

    def __init__(self, data: Any) -> None:
        super().__init__()
        self._data = data

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(a._data if isinstance(a, cls) else a for a in args)
        out = func(*args, **(kwargs or {}))
        return cls(out) if isinstance(out, torch.Tensor) else out


CALLED: list[str] = []


class Listening(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Logging(torch.Tensor):
    """Sees ATen calls."""

    elem: torch.Tensor

    @staticmethod
    def __new__(cls: Any, elem: torch.Tensor) -> Any:
        made = torch.Tensor._make_wrapper_subclass(
            cls, elem.size(), dtype=elem.dtype, requires_grad=elem.requires_grad
        )
        made.elem = elem.detach()
        return made

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Logging({self.elem})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        CALLED.append(str(func))
        args, kwargs = torch.utils._pytree.tree_map_only(
            cls, lambda t: t.elem, (args, kwargs or {})
        )
        return torch.utils._pytree.tree_map_only(torch.Tensor, cls, func(*args, **kwargs))


class Scaled(nn.Parameter):
    def __new__(cls, data: Any, requires_grad: bool = True) -> Any:
        return super().__new__(cls, data, requires_grad=requires_grad)

    def hello(self) -> str:
        return "hello"


@case
def an_existing_tensor_as_an_instance_of_a_class() -> Any:
    x = torch.ones(3, requires_grad=True)
    y = x.as_subclass(Length)
    z = y.doubled() + 1
    z.sum().backward()
    back = y.as_subclass(torch.Tensor)
    return (
        y,
        z,
        isinstance(y, Length),
        y.unit,
        x.grad,
        type(y.grad_fn).__name__,
        type(z.grad_fn).__name__,
        back,
    )


@case
def what_is_computed_from_an_instance_is_one() -> Any:
    x = torch.arange(6.0).reshape(2, 3).as_subclass(Length)
    parts = [
        x.T,
        x[0],
        x.data,
        x.detach(),
        x.clone(),
        x.new_zeros(2),
        x.split(1),
        x.max(0),
        torch.stack([x, x]),
        torch.zeros_like(x),
    ]
    return (
        parts,
        x.shape,
        x.tolist(),
        x.sum().item(),
        [type(row).__name__ for row in x],
        2 * x,
        torch.ones(2, 3) + x,
        x == x,
    )


@case
def an_instance_that_requires_grad_gets_a_gradient() -> Any:
    x = torch.ones(2).as_subclass(Length).requires_grad_()
    (x * x).sum().backward()
    optimizer = torch.optim.SGD([x], lr=0.1)
    optimizer.step()
    return x, x.grad, x.is_leaf


@case
def an_instance_is_written_in_place() -> Any:
    x = torch.zeros(3).as_subclass(Length)
    y = x.add_(1)
    x[0] = 5
    return y is x, x, x._version


@case
def attributes_and_own_constructors() -> Any:
    x = Tagged(torch.ones(2), "a")
    return x, x.tag, hasattr(x * 2, "tag"), Tagged(torch.zeros(2)).tag


@case
def the_default_constructor() -> Any:
    made = [
        Length(),
        Length([1.0, 2.0]),
        Length([[1, 2]]),
        Length(torch.ones(2)),
        torch.Tensor.__new__(Length, torch.ones(1)),
    ]
    return Length(2, 3).shape, made


@case
def a_class_that_wraps_what_functions_return() -> Any:
    x = Held(torch.ones(2, 3))
    y = torch.sum(x * 2, 0)
    return isinstance(y, Held), y._data, type(x).__name__


@case
def a_custom_function_that_returns_an_instance_as_it_is() -> Any:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g

    x = Held(torch.ones(2, 3))
    y = Same.apply(x)
    return isinstance(y, Held), y._data is x._data


@case
def a_class_hears_of_functions_and_methods() -> Any:
    CALLED.clear()
    x = torch.ones(2).as_subclass(Listening)
    y = torch.add(x, 1).exp()
    z = x.new_zeros(2)
    x.requires_grad_()
    (x * y).sum().backward()
    return list(CALLED), y, z, x.grad


@case
def a_class_may_leave_functions_alone() -> Any:
    class Quiet(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    x = torch.ones(2).as_subclass(Quiet)
    return type(x).__name__, type(x * 2) is type(torch.ones(1)), (x * 2).tolist()


@case
def a_subclass_of_a_subclass() -> Any:
    class Longer(Length):
        unit = "km"

    x = torch.ones(2).as_subclass(Longer)
    y = torch.ones(2).as_subclass(Length)
    return x * 2, isinstance(x, Length), x.unit, type(x + y).__name__, type(y + x).__name__


@case
def a_wrapper_sees_the_calls_below_the_tape() -> Any:
    CALLED.clear()
    w = torch.ones(2, requires_grad=True)
    x = Logging(torch.tensor([1.0, 2.0], requires_grad=True))
    y = (x * w).exp()
    seen = [name for name in CALLED if "detach" not in name]  # torch saves results detached
    y.sum().backward()
    grads: list[Any] = [x.grad, w.grad]
    return (
        type(y).__name__,
        seen,
        type(y.grad_fn).__name__,
        [(type(g).__name__, g.elem) for g in grads],
        len(CALLED) > len(seen),
    )


class Watching(torch.Tensor):
    """Sees ATen calls, and computes in memory of its own. ``requires_grad_`` below the
    tape is torch's."""

    def __new__(cls, data: Any, requires_grad: bool = False) -> Any:
        return torch.Tensor._make_subclass(cls, data, requires_grad)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = [
            torch.ones(1),
            torch.Tensor([2.0]),
            torch.zeros(1, requires_grad=True),
            torch.ones(1).requires_grad_(),
        ]
        made[1].requires_grad = True
        made += [
            torch.Tensor._make_subclass(Length, torch.ones(1), True),
            torch.Tensor._make_subclass(Length, torch.ones(1)),
        ]
        CALLED.append(
            f"{func}: {[type(t).__name__ for t in made]} {[t.requires_grad for t in made]} "
            f"{[t.tolist() for t in made]}"
        )
        return super().__torch_dispatch__(func, types, args, kwargs or {})


@case
def a_class_that_sees_calls_in_memory_of_its_own() -> Any:
    CALLED.clear()
    data = torch.ones(2)
    x, y = Watching(data, True), Watching(data)
    seen = [x.requires_grad, y.requires_grad, x.is_leaf, type(x).__name__]
    (x * 3).sum().backward()
    return seen, x.grad.tolist(), sorted({call for call in CALLED if "aten.mul" in call})


@case
def a_wrapper_requires_grad_only_if_it_is_told() -> Any:
    class Wrapper(torch.Tensor):
        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise NotImplementedError

    make = torch.Tensor._make_wrapper_subclass
    made = [make(Wrapper, (2,)), make(Wrapper, (2,), requires_grad=True)]
    return [(type(t).__name__, t.requires_grad, t.shape, t.is_leaf) for t in made]


@case
def parts_that_require_grad_have_no_history_inside_the_class() -> Any:
    x, w = (TwoTensor(*(torch.ones(2, 2, requires_grad=True) for _ in range(2))) for _ in range(2))
    y, z = x.view(-1), x * w
    z.mul_(3)
    z.view(-1).add_(1)
    (y.sum() + z.sum()).backward()
    flags = [(t.requires_grad, t.is_leaf, t._version) for t in (x, y, z, x.a, y.a, z.a)]
    return flags, [t.detach().tolist() for t in (x.a, z.a, x.grad.a, w.grad.b)], x.a.grad


@case
def an_instance_over_the_memory_of_another_tensor() -> Any:
    data = torch.zeros(2)
    x, y = (
        torch.Tensor._make_subclass(Length, data),
        torch.Tensor._make_subclass(Length, data, True),
    )
    data.add_(1)
    (y * 2).sum().backward()
    return x, y.detach(), x.requires_grad, y.requires_grad, y.grad


@case
def parameters_of_everything_that_they_are_made_of() -> Any:
    x = torch.ones(2, requires_grad=True)
    made: list[Any] = [
        nn.Parameter(),
        nn.Parameter(torch.ones(1)),
        nn.Parameter(torch.ones(1), False),
        nn.Parameter(x),
    ]
    made += [
        nn.Parameter(x * 2),
        nn.Parameter(nn.Parameter(x)),
        nn.Parameter(torch.ones(1, dtype=torch.long), requires_grad=False),
    ]
    made += [
        Scaled(None),
        Scaled(x),
        Scaled(x, False),
        Scaled(nn.Parameter(x)),
        nn.Parameter(Scaled(x)),
    ]
    made.append(nn.Parameter(x.as_subclass(Length)))
    made[1].sum().backward()
    return (
        made,
        made[1].grad,
        [type(p).__name__ for p in made],
        [isinstance(p, nn.Parameter) for p in made],
    )


@case
def constructing_with_keywords_or_several_arguments() -> Any:
    x = torch.ones(2)
    made = [
        torch.Tensor(x),
        torch.Tensor([1.0], device="cpu"),
        torch.Tensor(2, 0),
        Length(x),
        Length(2, 0),
        Length([1.0], device="cpu"),
    ]
    return made, made[0].data_ptr() == x.data_ptr(), made[3].data_ptr() == x.data_ptr()


@case
def states_of_a_class_that_restores_itself() -> Any:
    x = Restoring([1.0, 2.0])
    x.tag = "a"
    same: Any = pickle.loads(pickle.dumps(x))
    return type(same).__name__, same.tag, same.tolist()


class Restoring(torch.Tensor):
    tag: str

    def __setstate__(self, state: Any) -> None:
        self.tag = str(state)[:6] + " restored" if "tag" in str(state) else "nothing"


@case
def a_wrapper_shares_its_attributes() -> Any:
    x = Logging(torch.ones(2))
    x.extra = 3
    x.elem = torch.zeros(2)
    return x.extra, (x + 1).elem, repr(x), x.shape, x.requires_grad, hasattr(x, "absent")


@case
def a_wrapper_as_a_parameter_of_a_module() -> Any:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight = nn.Parameter(Logging(torch.tensor([[1.0, 2.0]])))
    out = layer(torch.ones(3, 2)).sum()
    out.backward()
    return (
        isinstance(layer.weight, nn.Parameter),
        isinstance(layer.weight, Logging),
        len(list(layer.parameters())),
        layer.weight.grad.elem,
    )


@case
def a_subclass_of_parameter() -> Any:
    layer = nn.Linear(2, 2)
    layer.weight = Scaled(torch.ones(2, 2))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)
    layer(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    w: Any = layer.weight
    kinds = [
        type(p).__name__
        for p in (
            w,
            w * 2,
            w.data,
            w.detach(),
            copy.deepcopy(layer).weight,
            layer.state_dict()["weight"],
        )
    ]
    return (
        w.hello(),
        w,
        w.grad,
        kinds,
        isinstance(w, nn.Parameter),
        isinstance(w, Scaled),
        repr(w),
        copy.deepcopy(w).hello(),
    )


@case
def a_subclass_of_parameter_with_attributes_like_those_of_weight_loaders() -> Any:
    class Loaded(nn.Parameter):
        def __new__(cls, data: Any, **kwargs: Any) -> Any:
            return super().__new__(cls, data=data, requires_grad=False)

        def __init__(self, data: Any, loader: Any) -> None:
            self._loader = loader

        @property
        def loader(self) -> Any:
            return self._loader

    p = Loaded(torch.zeros(2), loader="by column")
    p.data.copy_(torch.ones(2))
    return p.loader, p, p.requires_grad


@case
def copies_and_pickles_of_instances() -> Any:
    x = Tagged(torch.ones(2), "a")
    file = io.BytesIO()
    torch.save({"x": x, "p": Scaled(torch.ones(1))}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()), weights_only=False)
    same = [copy.copy(x), pickle.loads(pickle.dumps(x)), loaded["x"]]
    return [(type(s).__name__, s.tag, s.tolist()) for s in same], loaded["p"]


@case
def copies_of_wrappers() -> Any:
    x = Logging(torch.ones(2))
    y = copy.deepcopy(x)
    return type(y).__name__, y.elem, y.elem is not x.elem, pickle.loads(pickle.dumps(x)).elem


@case
def printing_instances() -> Any:
    x = torch.ones(2).as_subclass(Length)
    return repr(x), repr(x.requires_grad_() * 2), str(Tagged(torch.zeros(1)))


@case
def a_buffer() -> Any:
    module = nn.Module()
    module.b = nn.Buffer(torch.ones(2), persistent=False)
    module.c = nn.Buffer(torch.ones(1))
    return (
        list(module.state_dict()),
        [n for n, _ in module.named_buffers()],
        isinstance(module.b, nn.Buffer),
        repr(module.b),
    )


@case
def whether_a_tensor_without_a_shape_requires_grad() -> Any:
    p, b = nn.UninitializedParameter(), nn.UninitializedBuffer()
    before = p.requires_grad, b.requires_grad
    p.requires_grad, b.requires_grad = False, True
    return (
        before,
        p.requires_grad,
        b.requires_grad,
        nn.Parameter.requires_grad is torch.Tensor.requires_grad,
    )


@pytest.mark.parametrize("name", CASES)
def test_a_subclass_does_as_on_torch(name: str) -> None:
    found, expected = both(CASES[name])
    assert found == expected


def test_an_instance_from_before_takes_part_once_it_requires_grad() -> None:
    x = torch.ones(2).as_subclass(Length)
    with dropin.installed():
        x.requires_grad_()
        (x * x).sum().backward()
        assert (
            isinstance(x, Length)
            and isinstance(x, runtime.Tensor)
            and x.grad is not None
            and x.grad.tolist() == [2.0, 2.0]
        )


def test_without_the_drop_in_a_tensor_of_the_session_is_seen_as_an_instance_too() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    y = x.as_subclass(Length).doubled()
    assert isinstance(y, Length) and isinstance(y, runtime.Tensor) and type(y).__name__ == "Length"
    y.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2.0, 2.0]


def in_session(t: Any) -> bool:
    return isinstance(t, runtime.Tensor)


def test_a_plain_tensor_from_before_stays_plain_until_it_requires_grad() -> None:
    x: Any = torch.ones(2)
    y: Any = torch.ones(2, requires_grad=True)
    z = nn.Parameter(torch.ones(2))
    with dropin.installed():
        x.requires_grad_(False)
        assert not in_session(x) and not x.requires_grad
        assert (
            isinstance(nn.Parameter(x), runtime.Tensor)
            and isinstance(nn.Parameter(z), runtime.Tensor)
            and not in_session(z)
        )
        assert y.requires_grad_(False) is y and not y.requires_grad
        assert x.requires_grad_() is x and x.requires_grad and in_session(x)
        plain = runtime.unwrap(torch.ones(2))
        assert in_session(torch.Tensor(plain)) and in_session(Scaled(plain))


def test_in_a_transformed_function_a_parameter_is_a_leaf_and_what_is_made_is_a_value() -> None:
    made: list[Any] = []

    def f(x: Any) -> Any:
        made.extend(
            [
                nn.Parameter(torch.ones(2)),
                Scaled(torch.ones(2)),
                torch.Tensor([1.0, 2.0]),
                torch.zeros(2),
            ]
        )
        return (x * made[0] * made[1] + made[2]).sum()

    with dropin.installed():
        assert torch.func.grad(f)(torch.ones(2)).tolist() == [1.0, 1.0]
        assert all(
            isinstance(p, runtime.Tensor) and p.is_leaf and p.requires_grad for p in made[:2]
        )
        assert not any(isinstance(t, runtime.Tensor) for t in made[2:])
        assert torch.func.grad(lambda x: torch.Tensor([1.0, 2.0]).mul_(x).sum())(
            torch.ones(2)
        ).tolist() == [1.0, 2.0]


def test_a_tensor_without_a_shape_refuses_methods() -> None:
    with (
        dropin.installed(),
        pytest.raises(ValueError, match="Attempted to use an uninitialized parameter"),
    ):
        nn.UninitializedParameter().requires_grad_()
