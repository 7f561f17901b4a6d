"""Which way a call of the eager session takes: straight to the inner tensors, or through the
dispatcher, op by op.

Both ways give the same. The short way is for speed, so only the number of calls that arrive
tells them apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime.func import vmap
from tests.runtime.of_torch import WRITE_BY_MASK

from .conftest import names_of_calls

Seen = list[str]


@pytest.fixture
def batched(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """The names of the ops that arrive at a batch level."""
    kinds: list[type] = []

    def note(x: Any) -> Any:
        kinds.append(type(x))
        return x

    vmap(note)(torch.ones(1))
    return names_of_calls(monkeypatch, kinds[0])


def _tensor(*shape: int, wanted: bool = False, dtype: torch.dtype = torch.float64) -> Any:
    values = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).reshape(shape) / 8
    return runtime.wrap(values.to(dtype), requires_grad=wanted)


MATRIX, VECTOR, MASK = (
    torch.ones(3, 3, dtype=torch.float64),
    torch.ones(3, dtype=torch.float64),
    torch.eye(3) > 0,
)
WRITES: dict[str, tuple[Any, ...]] = {
    "__iadd__": (1.5,),
    "__imul__": (MATRIX,),
    "__isub__": (2,),
    "__itruediv__": (4.0,),
    "add_": (MATRIX,),
    "addcdiv_": (MATRIX, MATRIX),
    "addcmul_": (MATRIX, MATRIX),
    "addmm_": (MATRIX, MATRIX),
    "bernoulli_": (0.5,),
    "clamp_": (0.25, 0.75),
    "clamp_max_": (0.5,),
    "clamp_min_": (0.5,),
    "copy_": (MATRIX,),
    "div_": (2,),
    "exp_": (),
    "exponential_": (),
    "fill_": (3.0,),
    "lerp_": (MATRIX, 0.5),
    "log_": (),
    "masked_fill_": (MASK, 0.0),
    "mul_": (2,),
    "neg_": (),
    "normal_": (),
    "pow_": (2,),
    "random_": (9,),
    "reciprocal_": (),
    "relu_": (),
    "round_": (),
    "rsqrt_": (),
    "sigmoid_": (),
    "sign_": (),
    "sqrt_": (),
    "square_": (),
    "sub_": (1,),
    "tanh_": (),
    "tril_": (),
    "triu_": (),
    "uniform_": (),
    "zero_": (),
}


@pytest.mark.parametrize(
    "wrapped", [False, True], ids=["plain operands", "operands of the session"]
)
@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_history_arrives_nowhere(name: str, wrapped: bool, arrived: Seen) -> None:
    target, expected = _tensor(3, 3), _tensor(3, 3)._inner
    operands = [
        runtime.wrap(a) if wrapped and isinstance(a, torch.Tensor) else a for a in WRITES[name]
    ]
    torch.manual_seed(5)
    assert getattr(target, name)(*operands) is target
    torch.manual_seed(5)
    getattr(expected, name)(*WRITES[name])
    assert arrived == [] and target._version == expected._version == 1
    assert runtime.unwrap(target).equal(expected)


def test_the_product_of_a_matrix_is_added_to_a_vector_without_a_call(arrived: Seen) -> None:
    target = _tensor(3)
    assert target.addmv_(MATRIX, VECTOR).tolist() == [3.125, 3.25, 3.375]
    assert arrived == []


# of a product of a leaf of shape (3, 4), and a constant of this shape
Call = Callable[[Any, Any], Any]
CALLS: dict[str, tuple[Call, Seen]] = {
    "an element": (lambda y, c: y[1, 2], []),
    "a part": (lambda y, c: c[None, 1:, ::2], []),
    "an element and nothing else": (lambda y, c: y[0], []),
    "a list": (lambda y, c: y[[0, 1]], ["index"]),
    "a list of flags": (lambda y, c: c[..., [True, False, True, False]], ["index"]),
    "a copy": (lambda y, c: y.clone(), []),
    "a copy of a constant": (lambda y, c: c.clone(), []),
    "a copy in an order": (lambda y, c: y.clone(memory_format=torch.contiguous_format), ["clone"]),
    "a number written to an element": (lambda y, c: y.__setitem__((0, 1), 3.0), []),
    "an element of a constant": (lambda y, c: c.__setitem__((0, 1), 3.0), []),
    "a row of a constant": (lambda y, c: c.__setitem__(0, torch.ones(4, dtype=torch.float64)), []),
    "a row": (lambda y, c: y.__setitem__(0, c[0]), []),
    "a row of one number": (lambda y, c: y.__setitem__(0, c[0, 0]), []),
    "a row of a column": (
        lambda y, c: y.__setitem__(0, c[:1, 0]),
        ["select", "view", "expand", "copy_"],
    ),
    "a mask": (lambda y, c: c.__setitem__(torch.ones(3, 4) > 0, 1.0), [WRITE_BY_MASK]),
    "bool": (lambda y, c: bool(y[0, 0]), []),
    "float": (lambda y, c: float(y[0, 0]), []),
    "int": (lambda y, c: int(c[0, 0]), []),
    "item": (lambda y, c: y[0, 0].item(), []),
    "==": (lambda y, c: y == c, []),
    "!= a number": (lambda y, c: c != 1, []),
    "<": (lambda y, c: y < c, []),
    "> a plain tensor": (lambda y, c: y > torch.ones(4, dtype=torch.float64), []),
    ">=, <=": (lambda y, c: (y >= 1, y <= 1), []),
    "all, any": (lambda y, c: ((y > 0).all(), (c > 0).any(0)), []),
    "any by keyword": (lambda y, c: (c > 0).any(dim=0), ["any"]),
    "a recorded write": (lambda y, c: y.mul_(2), ["mul_"]),
    "a write of what is recorded": (lambda y, c: c.copy_(y), ["copy_"]),
    "a write to a view": (lambda y, c: c[0].mul_(2), ["mul_"]),
    "a write with a tensor by keyword": (
        lambda y, c: c.lerp_(end=torch.ones_like(c._inner), weight=0.5),
        ["lerp_"],
    ),
    "a write with a number by keyword": (lambda y, c: c.add_(c, alpha=2), []),
    "a sum": (lambda y, c: c.sum(), ["sum"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_arrives_as_these_ops(name: str, arrived: Seen) -> None:
    call, expected = CALLS[name]
    y, c = _tensor(3, 4, wanted=True) * 1, _tensor(3, 4)
    arrived.clear()
    call(y, c)
    assert arrived == expected


@pytest.mark.parametrize(
    "name", ["a recorded write", "a write to a view", "a write of what is recorded"]
)
def test_without_grad_mode_only_a_view_asks_for_its_history(name: str, arrived: Seen) -> None:
    call, _ = CALLS[name]
    y, c = _tensor(3, 4, wanted=True) * 1, _tensor(3, 4)
    arrived.clear()
    with torch.no_grad():
        call(y, c)
    assert arrived == []


VIEWS = ("t", "transpose", "detach")
Composite = Callable[[Any, Any, Any], Any]  # of a leaf (2, 5, 3), a leaf (4, 3) and a leaf (4,)
WHOLE: dict[str, Composite] = {
    "a layer": lambda x, w, b: F.linear(x, w, b),
    "a layer of a matrix": lambda x, w, b: F.linear(x[0], w, b),
    "a layer of a transposed matrix": lambda x, w, b: F.linear(x[:, 0].t().contiguous().t(), w, b),
    "a layer of a vector": lambda x, w, b: F.linear(x[0, 0], w, b),
    "a layer of weights that are constants": lambda x, w, b: F.linear(
        x[0], w._inner, b._inner.detach()
    ),
    "a layer without a bias": lambda x, w, b: F.linear(x[0], w),
    "a layer of a stack without a bias": lambda x, w, b: F.linear(x, w),
    "a stack and a matrix": lambda x, w, b: x @ w[:3],
    "a stack and a vector": lambda x, w, b: x @ w[0],
    "a vector and a stack": lambda x, w, b: w[0] @ x.mT,
    "a matrix and a stack": lambda x, w, b: w @ x.mT,
    "a constant stack and a matrix": lambda x, w, b: x.detach() @ w[:3],
    "a normalization": lambda x, w, b: F.layer_norm(x, (3,), w[0], w[1]),
    "a normalization of a constant": lambda x, w, b: F.layer_norm(x.detach(), (3,), w[0]),
    "a normalization without weights": lambda x, w, b: F.layer_norm(x, (3,)),
    "a normalization of constants alone": lambda x, w, b: F.layer_norm(x.detach(), (3,)),
}
IN_PARTS: dict[str, tuple[Composite, Seen]] = {
    "a layer of a transposed stack": (
        lambda x, w, b: F.linear(x.mT, w, b),
        ["clone", "_unsafe_view", "add"],
    ),
    "a layer without a bias of a vector": (
        lambda x, w, b: F.linear(b, w),
        ["unsqueeze", "mm", "squeeze_", "squeeze"],
    ),
    "a stack and a constant": (lambda x, w, b: x @ w.detach(), ["view", "mm", "_unsafe_view"]),
    "two matrices": (lambda x, w, b: x[0] @ w, ["mm"]),
    "a matrix and a vector": (lambda x, w, b: x[0] @ w[0], ["mv"]),
    "two vectors": (lambda x, w, b: b @ b, ["dot"]),
    "two stacks": (
        lambda x, w, b: x @ x,
        ["expand", "view", "expand", "view", "bmm", "_unsafe_view"],
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_composite_op_is_recorded_without_a_call(name: str, arrived: Seen) -> None:
    given = _tensor(2, 5, 3, wanted=True), _tensor(4, 3, wanted=True), _tensor(4, wanted=True)
    assert WHOLE[name](*given).dtype is torch.float64
    assert [n for n in arrived if n not in VIEWS and n != "clone"] == []


@pytest.mark.parametrize("name", IN_PARTS)
def test_any_other_composite_op_arrives_in_these_parts(name: str, arrived: Seen) -> None:
    call, expected = IN_PARTS[name]
    call(_tensor(2, 3, 3, wanted=True), _tensor(3, 3, wanted=True), _tensor(3, wanted=True))
    assert [n for n in arrived if n not in VIEWS] == expected


@pytest.mark.parametrize(
    ("left", "right", "whole"),
    [
        ((2, 3), (3, 4), True),
        ((5, 2, 3), (5, 3, 4), True),
        ((2, 5, 2, 3), (2, 5, 3, 4), True),
        ((1, 2, 3), (5, 3, 4), False),
        ((2, 3), (3,), False),
        ((3,), (3,), False),
        ((5, 2, 3), (3, 4), False),
    ],
    ids=str,
)
def test_a_product_of_two_batches_of_stacks_is_one_product(
    left: tuple[int, ...], right: tuple[int, ...], whole: bool, batched: Seen
) -> None:
    x, y = torch.ones(7, *left), torch.ones(7, *right)
    assert torch.equal(
        vmap(torch.matmul)(x, y), torch.stack([a @ b for a, b in zip(x, y, strict=True)])
    )
    assert (batched == []) is whole


KINDS = {"gru": 3, "rnn_tanh": 1, "rnn_relu": 1, "lstm": 4}  # the number of gates
# the options of a layer, and which kinds arrive in parts
LAYERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, ()),
    "two layers": ({"number": 2}, ()),
    "both ways": ({"both": True}, ()),
    "batch first": ({"batch_first": True}, ()),
    "dropout in evaluation": ({"number": 2, "dropout": 0.5}, ()),
    "of constants": ({"wanted": False}, ()),
    "float32": ({"dtype": torch.float32}, ("lstm",)),
    "float32 of constants": ({"dtype": torch.float32, "wanted": False}, ("lstm",)),
    "without biases": ({"biases": False}, tuple(KINDS)),
    "dropout": ({"number": 2, "dropout": 0.5, "train": True}, tuple(KINDS)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_recurrent_layer_is_recorded_without_a_call(kind: str, name: str, arrived: Seen) -> None:
    options: dict[str, Any] = {
        "number": 1,
        "dropout": 0.0,
        "train": False,
        "both": False,
        "batch_first": False,
        "biases": True,
    }
    options |= {"wanted": True, "dtype": torch.float64} | LAYERS[name][0]
    number, directions = options["number"], 1 + options["both"]
    make = {"wanted": options["wanted"], "dtype": options["dtype"]}
    weights = []
    for i in range(number * directions):
        features, gates = (3 if i < directions else 2 * directions), 2 * KINDS[kind]
        shapes = [(gates, features), (gates, 2), *([(gates,)] * 2 if options["biases"] else [])]
        weights += [_tensor(*shape, **make) for shape in shapes]
    states = [
        _tensor(number * directions, 2, 2, dtype=options["dtype"])
        for _ in range(1 + (kind == "lstm"))
    ]
    x = _tensor(2, 2, 3, dtype=options["dtype"])
    flags = (
        options["biases"],
        number,
        options["dropout"],
        options["train"],
        options["both"],
        options["batch_first"],
    )
    arrived.clear()
    getattr(torch, kind)(x, states if kind == "lstm" else states[0], weights, *flags)
    assert (arrived != []) is (kind in LAYERS[name][1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of_session", ["input", "weights"])
def test_a_recurrent_layer_of_plain_tensors_beside_those_of_the_session_is_recorded_without_a_call(
    kind: str, of_session: str, arrived: Seen
) -> None:
    gates = 2 * KINDS[kind]
    weights = [
        _tensor(*shape, wanted=True) for shape in ((gates, 3), (gates, 2), (gates,), (gates,))
    ]
    states = [_tensor(1, 2, 2)._inner for _ in range(1 + (kind == "lstm"))]
    x = _tensor(4, 2, 3, wanted=True)
    if of_session == "input":
        weights = [w._inner.detach() for w in weights]
    else:
        x = x._inner.detach()
    outs = getattr(torch, kind)(
        x, states if kind == "lstm" else states[0], weights, True, 1, 0.0, False, False, False
    )
    assert arrived == [] and all(o.requires_grad for o in outs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_with_time_first_in_memory_is_recorded_so_with_the_batch_first(
    kind: str, arrived: Seen
) -> None:
    gates = 2 * KINDS[kind]
    weights = [
        _tensor(*shape, wanted=True) for shape in ((gates, 3), (gates, 2), (gates,), (gates,))
    ]
    states = [_tensor(1, 2, 2) for _ in range(1 + (kind == "lstm"))]
    x = _tensor(4, 2, 3, wanted=True).transpose(0, 1)
    arrived.clear()
    getattr(torch, kind)(
        x, states if kind == "lstm" else states[0], weights, True, 1, 0.0, False, False, True
    )
    assert arrived == []


# of the op, the input, the states and the weights; whether it is recorded in one go
CELLS: dict[str, tuple[Callable[..., Any], bool]] = {
    "plain": (lambda run, x, h, w: run(x, h, *w), True),
    "of constants": (lambda run, x, h, w: run(x, h, *(t.detach() for t in w)), True),
    "plain states": (
        lambda run, x, h, w: run(x, [s._inner for s in h] if isinstance(h, list) else h._inner, *w),
        True,
    ),
    "without biases": (lambda run, x, h, w: run(x, h, *w[:2]), False),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CELLS)
def test_a_recurrent_cell_is_recorded_without_a_call(kind: str, name: str, arrived: Seen) -> None:
    call, whole = CELLS[name]
    gates = 2 * KINDS[kind]
    weights = [
        _tensor(*shape, wanted=True) for shape in ((gates, 3), (gates, 2), (gates,), (gates,))
    ]
    states = [_tensor(5, 2) for _ in range(1 + (kind == "lstm"))]
    call(
        getattr(torch, f"{kind}_cell"),
        _tensor(5, 3),
        states if kind == "lstm" else states[0],
        weights,
    )
    assert (not [n for n in arrived if n not in VIEWS]) is whole
