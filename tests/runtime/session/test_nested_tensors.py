"""Nested tensors on the tape of the session. The derivatives themselves:
``tests/runtime/rules/tensors/test_nested.py``."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import autograd, unwrap, wrap
from runtime.checkpoint import checkpoint
from runtime.dropin import installed
from runtime.errors import InplaceError

from .nested import backward, leaf, nested, numbers, parts, plain

pytestmark = pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage"
)
cases = pytest.mark.parametrize


# ---- making them


def test_a_nested_tensor_that_was_wrapped_is_a_leaf() -> None:
    n = nested()
    assert (
        n.is_leaf
        and n.requires_grad
        and n.grad_fn is None
        and n.is_nested
        and isinstance(n, runtime.Tensor)
    )
    backward(n * n)
    assert numbers(n.grad) == [2.0 * x for x in range(1, 10)]


def test_a_nested_tensor_of_parts_has_their_history() -> None:
    a, b = (wrap(p, requires_grad=True) for p in parts())
    n = torch.nested.as_nested_tensor([a * 2, b])
    assert "NestedTensorFromTensorList" in repr(n)
    backward(n * n)
    assert torch.equal(a.grad, 8 * a.detach()) and torch.equal(b.grad, 2 * b.detach())


def test_parts_of_which_some_require_no_gradient() -> None:
    a, b = leaf(2), wrap(torch.ones(3))
    backward(torch.nested.as_nested_tensor([a, b]).sin())
    assert torch.equal(a.grad, torch.ones(2).cos()) and b.grad is None


def test_a_program_with_nested_tensors_runs_on_the_runtime_under_the_drop_in() -> None:
    def program() -> list[Any]:
        torch.manual_seed(0)
        layer = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.GELU(), torch.nn.Linear(4, 3)
        )
        of_parts: list[Any] = [
            torch.randn(2, 3, requires_grad=True),
            torch.randn(1, 3, requires_grad=True),
        ]
        data = torch.nested.nested_tensor(
            [torch.randn(2, 3), torch.randn(1, 3)], requires_grad=True
        )
        optimizer = torch.optim.SGD([*layer.parameters(), data], 0.1)
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            out = layer(torch.nested.as_nested_tensor(of_parts) + data)
            loss = torch.nested.to_padded_tensor(out.softmax(-1), 0.0)[..., 0].sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return [
            *losses,
            *numbers(data.detach()),
            *of_parts[0].grad.reshape(-1).tolist(),
            type(data),
        ]

    expected = program()
    with installed():
        got = program()
    assert got[:-1] == pytest.approx(expected[:-1], rel=1e-5) and issubclass(
        got[-1], runtime.Tensor
    )


@cases("without_grad", [torch.no_grad, torch.inference_mode])
def test_an_encoder_from_before_skips_padding_under_the_drop_in(
    without_grad: Callable[[], Any],
) -> None:
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    x = torch.linspace(-1, 1, 96).reshape(3, 4, 8)
    padding = torch.tensor([[False] * 2 + [True] * 2, [False] * 4, [False] * 3 + [True]])
    with without_grad():
        expected = encoder(x, src_key_padding_mask=padding)
    with installed(), without_grad():
        result = encoder(wrap(x), src_key_padding_mask=padding)
    assert torch.equal(unwrap(result), expected)
    assert not expected[0, 2:].any() and expected[0, :2].all()


@pytest.mark.usefixtures("routed")
@cases(
    "data",
    [[[1.0, 2.0], [3.0]], [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]],
    ids=["numbers", "plain tensors"],
)
def test_under_the_drop_in_a_nested_tensor_of_data_is_a_leaf(data: Any) -> None:
    n: Any = torch.nested.nested_tensor(data, requires_grad=True)
    backward(n * n)
    assert n.is_leaf and numbers(n.grad) == [2.0, 4.0, 6.0]


@pytest.mark.usefixtures("routed")
def test_nested_tensor_copies_and_as_nested_tensor_does_not() -> None:
    x: Any = torch.ones(2, requires_grad=True)
    copied: Any = torch.nested.nested_tensor([x, x], requires_grad=True)
    backward(copied * 3)
    assert x.grad is None and numbers(copied.grad) == [3.0] * 4
    backward(torch.nested.as_nested_tensor([x, x]) * 3)
    gradient: Any = x.grad
    assert gradient.tolist() == [6.0, 6.0]


def test_a_nested_tensor_from_before_may_require_grad_under_the_drop_in() -> None:
    n: Any = plain()
    with installed():
        n.requires_grad_()
        backward(n * 2)
        assert numbers(n.grad) == [2.0] * 9


def test_a_nested_tensor_can_be_pickled() -> None:
    n = pickle.loads(pickle.dumps(nested()))
    assert n.requires_grad and numbers(n.detach()) == numbers(plain())


def test_it_is_printed_with_its_history() -> None:
    assert repr(nested()).endswith("requires_grad=True)") and repr(nested().sin()).endswith(
        "grad_fn=<SinBackward0>)"
    )


# ---- the tape


def test_gradients_add_up() -> None:
    n = nested()
    backward(n * 2)
    backward((n.transpose(1, 2) * 3).transpose(1, 2) + n)
    assert numbers(n.grad) == [6.0] * 9


def test_a_gradient_is_kept_contiguous() -> None:
    n = nested()
    backward(n.transpose(1, 2).contiguous())
    assert n.grad.is_contiguous()


def test_grad_of_grad() -> None:
    n = nested()
    (g,) = autograd.grad((n * n * n).values().sum(), n, create_graph=True)
    (h,) = autograd.grad(g.values().sum(), n)
    assert numbers(g.detach()) == [3.0 * x * x for x in range(1, 10)] and numbers(h) == [
        6.0 * x for x in range(1, 10)
    ]


def test_a_gradient_that_is_missing_can_be_zeros() -> None:
    n, m = nested(), nested()
    _, zeros = autograd.grad(n * 2, [n, m], torch.ones_like(n), materialize_grads=True)
    assert numbers(zeros) == [0.0] * 9


def test_a_graph_is_freed_without_the_collector() -> None:
    gc.disable()
    try:
        n = nested()
        y = (n * n).softmax(-1)
        node = weakref.ref(y.grad_fn)
        backward(y)
        del y
        assert node() is None
    finally:
        gc.enable()


def test_hooks_see_nested_gradients() -> None:
    n, seen = nested(), []
    y = n * 2
    y.retain_grad()
    n.register_hook(lambda g: g * 3)
    y.grad_fn.register_hook(lambda inputs, outputs: seen.append((inputs[0], outputs[0])))
    backward(y)
    assert numbers(n.grad) == [6.0] * 9 and numbers(y.grad) == [1.0] * 9
    assert [numbers(g) for g in seen[0]] == [[2.0] * 9, [1.0] * 9]


def test_a_hook_keeps_the_sizes() -> None:
    n = nested()
    n.register_hook(lambda g: g.unbind()[0])
    with pytest.raises(RuntimeError, match="changed the size of value"):
        backward(n * 2)


def test_a_node_knows_the_sizes_of_its_output() -> None:
    (meta,) = (nested() * 2).grad_fn._input_metadata
    assert meta.shape.parts() == [(2, 3), (1, 3)]


def test_a_saved_nested_tensor_may_not_be_modified() -> None:
    x = nested().clone()
    y = x.sum(-1, keepdim=True)
    x.add_(x)
    with pytest.raises(
        RuntimeError,
        match=(
            r"modified by an inplace operation: "
            r"\[torch.FloatTensor nested \[\[2, 3\], \[1, 3\]\]\]"
        ),
    ):
        backward(y)


def test_a_write_that_nothing_saved_is_recorded() -> None:
    n = nested()
    x = n.clone()
    x.mul_(3).add_(n)
    backward(x)
    assert numbers(n.grad) == [4.0] * 9


def test_a_leaf_cannot_be_written() -> None:
    n = nested()
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        n.add_(1)
    with torch.no_grad():
        n.add_(1)
    assert numbers(n.detach()) == [float(x) for x in range(2, 11)]


@cases(
    "write",
    [
        lambda n: n.values().add_(1),
        lambda n: n.transpose(1, 2).zero_(),
        lambda n: n.select(0, 0).mul_(2),
        lambda n: n.detach().values().mul_(leaf(9)),
        lambda n: torch._nested_view_from_buffer(
            n.values().clone(), torch.tensor([[9]]), torch.tensor([[1]]), torch.tensor([0])
        ).mul_(2),
    ],
    ids=[
        "values",
        "transpose",
        "select",
        "history written into one without",
        "nested view of a buffer",
    ],
)
def test_a_write_to_a_view_is_refused_where_history_is_at_stake(
    write: Callable[[Any], Any],
) -> None:
    n = nested().clone()
    with pytest.raises(InplaceError, match="view of a nested tensor"):
        write(n)
    assert numbers(n.detach()) == numbers(plain())


def test_a_write_to_a_view_without_history_shows() -> None:
    n = wrap(plain())
    n.values().zero_()
    assert numbers(n) == [0.0] * 9


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled", "ignore:Error detected")
def test_anomaly_mode_looks_for_nan() -> None:
    n = nested()
    with autograd.detect_anomaly():
        backward(n.sqrt())
        with pytest.raises(RuntimeError, match="'SqrtBackward0' returned nan values"):
            backward((n * 0 - 1).sqrt())


@cases("use_reentrant", [False, True])
def test_checkpoint(use_reentrant: bool) -> None:
    n = nested()
    backward(checkpoint(lambda x: (x * x).relu(), n, use_reentrant=use_reentrant))
    assert numbers(n.grad) == [2.0 * x for x in range(1, 10)]


def test_saved_tensor_hooks() -> None:
    n, packed = nested(), []

    def pack(t: Any) -> int:
        packed.append(unwrap(t).clone())
        return len(packed) - 1

    with autograd.graph.saved_tensors_hooks(pack, lambda i: packed[i]):
        y = n * n
    backward(y)
    assert len(packed) == 2 and numbers(n.grad) == [2.0 * x for x in range(1, 10)]


class Twice(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return g * 2 + h * 3


def test_a_function_of_a_nested_tensor() -> None:
    n = nested()
    # of whose outputs the second gets no gradient, and backward sees zeros
    first, _ = Twice.apply(n)
    backward(first)
    assert numbers(n.grad) == [2.0] * 9


class Wrong(autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return wrap(plain())


def test_a_nested_gradient_of_a_dense_tensor_is_an_error() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"got nested \[\[2, 3\], \[1, 3\]\] but expected shape compatible with \[3\]",
    ):
        backward(Wrong.apply(leaf(3)))


@cases(
    ("given", "message"),
    [
        (
            lambda: torch.ones(2, 3),
            r"shape of torch.Size\(\[2, 3\]\) and output\[0\] has a shape of nested",
        ),
        (
            lambda: plain().transpose(1, 2),
            (
                r"shape of nested \[\[3, 2\], \[3, "
                r"1\]\] and output\[0\] has a shape of nested \[\[2, 3\], \[1, 3\]\]"
            ),
        ),
        (lambda: plain(torch.jagged), "Mismatch in shape"),
        (lambda: None, "only for scalar outputs"),
    ],
    ids=["dense", "other sizes", "jagged", "none"],
)
def test_a_cotangent_has_the_sizes_of_the_output(given: Callable[[], Any], message: str) -> None:
    y = nested() * 2
    with pytest.raises(RuntimeError, match=message):
        y.backward(given())


def test_a_nested_cotangent_of_a_dense_output_is_an_error() -> None:
    with pytest.raises(
        RuntimeError, match=r"shape of nested .* output\[0\] has a shape of torch.Size\(\[2, 3\]\)"
    ):
        leaf(2, 3).sin().backward(plain())


def test_grads_of_nested_outputs_are_not_batched() -> None:
    n = nested()
    y = n * 2
    with pytest.raises(RuntimeError, match="Batched grads are not supported with Nested Tensor"):
        autograd.grad(y, n, torch.ones_like(y), is_grads_batched=True)


def test_a_nested_batch_of_cotangents_of_a_dense_output_is_refused() -> None:
    x = leaf(2, 3)
    with pytest.raises(RuntimeError, match="Batched grads are not supported with Nested Tensor"):
        autograd.grad(x.sin(), x, plain(), is_grads_batched=True)


def test_grad_can_be_set_to_what_has_the_sizes() -> None:
    n = nested()
    n.grad = plain()
    assert numbers(n.grad) == numbers(plain())
    with pytest.raises(RuntimeError, match=r"size '\[2, 3\]' to a tensor of size 'nested"):
        n.grad = torch.ones(2, 3)


def test_data_can_be_set_to_what_has_the_sizes() -> None:
    n = nested()
    n.data = plain() * 2
    assert numbers(n.detach()) == [2.0 * x for x in range(1, 10)]
    backward(n * n)
    assert numbers(n.grad) == [4.0 * x for x in range(1, 10)]
    with pytest.raises(RuntimeError, match="same sizes"):
        n.data = torch.nested.nested_tensor([torch.ones(4)])
