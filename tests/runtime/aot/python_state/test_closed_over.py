"""Tensors that a compiled program closes over, also in calls that act before the
dispatcher sees them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import dropin, tensor
from runtime.aot import aot_function, aot_module, nop
from tests.runtime.aot.capture.boundary_helpers import compiled


class TestClosedOver:
    def test_a_parameter_gets_its_gradient_in_every_call(self) -> None:
        w, x = tensor([2.0, 3.0], requires_grad=True), tensor([1.0, 1.0], requires_grad=True)
        f = compiled(lambda x: (x * w).sum())
        f(x).backward()
        f(x).backward()
        assert w.grad.tolist() == [2.0, 2.0] and x.grad.tolist() == [4.0, 6.0]

    def test_a_buffer_is_written_once_per_call(self) -> None:
        c = torch.zeros(())

        def f(x: Any) -> Any:
            c.add_(1)
            return x * c

        g = compiled(f)
        assert [g(tensor([1.0])).tolist() for _ in range(3)] == [
            [1.0],
            [2.0],
            [3.0],
        ] and c.item() == 3

    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_an_argument_of_any_size_that_is_closed_over_too_or_a_part_of_it(
        self, requires_grad: bool
    ) -> None:
        y = tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], requires_grad=requires_grad)
        f = aot_function(lambda x: x.sin().sum() + y.mean() + y.shape[0], nop, dynamic=True)
        for x in (y, tensor([[1.0, 2.0]] * 5), y[1:], y):
            found, right = f(x), x.sin().sum() + y.mean() + y.shape[0]
            assert found.tolist() == pytest.approx(right.tolist())
            if requires_grad:
                gradients = [runtime.autograd.grad(z, y)[0].tolist() for z in (found, right)]
                assert gradients[0] == [pytest.approx(row) for row in gradients[1]]

    def test_a_module_trains_as_without_the_compiler(self) -> None:
        def train(wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]) -> list[Any]:
            torch.manual_seed(0)
            with dropin.installed():
                model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU())
                optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
                f = wrapped(model)
                for _ in range(3):
                    optimizer.zero_grad()
                    f(torch.randn(5, 3)).square().sum().backward()
                    optimizer.step()
                return [*model.parameters(), *model.buffers()]

        for a, b in zip(train(lambda f: f), train(compiled), strict=True):
            assert torch.allclose(a.detach(), b.detach())

    def test_a_compiled_module_has_the_parameters_and_buffers_of_the_module(self) -> None:
        torch.manual_seed(0)
        with dropin.installed():
            plain = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            module = aot_module(copy.deepcopy(plain), nop)
            x = torch.randn(5, 3)
            for m in (plain, module):
                m(x).square().sum().backward()
        names = [name.removeprefix("orig_module.") for name in module.state_dict()]
        assert (
            names == list(plain.state_dict())
            and dict(module.named_buffers())["orig_module.1.num_batches_tracked"] == 1
        )
        for a, b in zip(plain.parameters(), module.parameters(), strict=True):
            assert a.grad is not None and b.grad is not None and torch.allclose(a.grad, b.grad)

    def test_only_a_module_is_compiled_as_one(self) -> None:
        with pytest.raises(
            TypeError, match="takes a module, not function; for a function use aot_function"
        ):
            aot_module(lambda x: x, nop)  # type: ignore[arg-type]

    def test_a_module_switched_to_eval_is_another_program(self) -> None:
        m = nn.Dropout(0.5)
        f = compiled(lambda x: m(x))
        f(torch.ones(8))
        m.eval()
        assert f(torch.ones(8)).tolist() == [1.0] * 8

    def test_a_name_that_is_bound_to_another_tensor_is_looked_up_again(self) -> None:
        scale, layer = torch.ones(2), nn.Linear(2, 2, bias=False)
        f = compiled(lambda x: layer(x) * scale)
        f(torch.ones(2))
        scale = torch.full((2,), 3.0)
        layer.weight = nn.Parameter(torch.eye(2))
        assert f(torch.ones(2)).tolist() == [3.0, 3.0]

    def test_a_change_between_forward_and_backward_is_an_error(self) -> None:
        w, x = tensor([1.0, 2.0]), tensor([1.0, 1.0], requires_grad=True)
        y = compiled(lambda x: x * w)(x)
        w.zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_memory_that_an_argument_shares_with_a_closed_over_tensor_cannot_be_written_to(
        self,
    ) -> None:
        x = torch.zeros(3)

        def f(y: Any) -> Any:
            y.add_(1)
            return x * 2

        with pytest.raises(
            RuntimeError, match="argument 0 and a tensor that the program closes over share memory"
        ):
            compiled(f)(x[:])
        assert compiled(f)(x).tolist() == [2.0, 2.0, 2.0]  # which is the tensor itself


class Product(runtime.autograd.Function):
    @staticmethod
    def forward(x: Any, w: Any) -> Any:
        return x * w

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, w = ctx.saved_tensors
        return g * w, g * x


class OldProduct(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        ctx.save_for_backward(x, w)
        return x * w

    backward = Product.backward


@pytest.mark.parametrize("kind", [torch.tensor, runtime.tensor])
@pytest.mark.parametrize("function", [Product, OldProduct])
def test_a_custom_function_gives_a_closed_over_tensor_its_gradient(
    function: Any, kind: Any
) -> None:
    w = kind([3.0, 4.0], requires_grad=True)
    x = tensor([1.0, 2.0], requires_grad=True)
    f = compiled(lambda x: function.apply(x, w))
    for _ in range(2):
        f(x).sum().backward()
    assert w.grad.tolist() == [2.0, 4.0] and x.grad.tolist() == [6.0, 8.0]


@pytest.mark.parametrize("old", [False, True])
def test_a_custom_function_may_compute_with_a_tensor_from_outside(old: bool) -> None:
    w, count = tensor([3.0, 4.0], requires_grad=True), tensor([0.0])

    class Scaled(runtime.autograd.Function):
        @staticmethod
        def forward(x: Any) -> Any:
            count.add_(1)
            return x * w

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * w

    class OldScaled(runtime.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return Scaled.forward(x)

        backward = Scaled.backward

    x = tensor([1.0, 2.0], requires_grad=True)
    f = compiled(OldScaled.apply if old else Scaled.apply)
    f(x)
    y = f(x)
    y.sum().backward()
    assert (
        y.tolist() == [3.0, 8.0]
        and x.grad.tolist() == [3.0, 4.0]
        and w.grad is None
        and count.item() == 2
    )


@pytest.mark.parametrize(
    "layer",
    [nn.LSTM(3, 2), nn.GRU(3, 2), nn.RNN(3, 2), nn.LSTMCell(3, 2)],
    ids=lambda m: type(m).__name__,
)
def test_the_weights_of_a_recurrent_layer_get_their_gradients(layer: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3)

    def gradients(run: Any) -> list[Any]:
        layer.zero_grad()
        out = run(x)
        while isinstance(out, tuple):
            out = out[0]
        out.square().sum().backward()
        return [p.grad.clone() for p in layer.parameters()]

    for a, b in zip(gradients(aot_module(layer, nop)), gradients(layer), strict=True):
        torch.testing.assert_close(a, b)


def test_a_closed_over_tensor_is_viewed_in_inference_mode() -> None:
    w = torch.arange(4.0)

    def f(x: Any) -> Any:
        with torch.inference_mode():
            y = w.detach().view(2, 2)[1] * 2
        return x + y.clone()

    assert compiled(f)(torch.ones(2)).tolist() == [5.0, 7.0]


def test_arguments_are_viewed_and_turned_in_inference_mode() -> None:
    def f(x: Any) -> Any:
        with torch.inference_mode():
            x.view(-1)[0].zero_()
            x.t_()
        return x * 2

    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            x = torch.ones(2, 3)
            assert compiled(f)(x).tolist() == [[0.0, 2.0], [2.0, 2.0], [2.0, 2.0]] and x.shape == (
                3,
                2,
            )


@pytest.mark.parametrize(
    "act",
    [
        lambda w: setattr(w, "grad", None),
        lambda w: w.grad is not None and w.grad.zero_(),
        lambda w: w.retain_grad(),
        lambda w: w.register_post_accumulate_grad_hook(lambda p: None),
    ],
    ids=["grad = None", "grad.zero_", "retain_grad", "post accumulate grad hook"],
)
def test_what_would_happen_in_the_first_call_alone_is_refused(act: Any) -> None:
    w = runtime.tensor([2.0], requires_grad=True)

    def f(x: Any) -> Any:
        act(w)
        return x * w

    with pytest.raises(RuntimeError, match="a tensor that it closes over"):
        compiled(f)(torch.ones(1))


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_data_of_a_closed_over_tensor_of_the_session_is_that_of_every_call(
    requires_grad: bool,
) -> None:
    def program(wrapped: Any) -> Any:
        state = runtime.tensor([1.0, 2.0], requires_grad=requires_grad)

        def f(x: Any) -> Any:
            state.data.mul_(2)
            return x * state.data, state.data

        g = wrapped(f)
        first, second = g(torch.ones(2)), g(torch.ones(2))
        flags = [t.requires_grad for t in (*first, *second)]
        return (
            flags,
            [t.tolist() for t in (*first, *second, state)],
            state._version,
            second[1].data_ptr() == state.data_ptr(),
        )

    assert program(compiled) == program(lambda f: f)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_capture_does_not_count_as_a_write_to_the_parts_of_a_closed_over_tensor(
    wrapped: bool,
) -> None:
    def versions(wrap: Callable[[Any], Any]) -> list[tuple[int, int]]:
        w = TwoTensor(torch.ones(2), torch.zeros(2))
        held = runtime.wrap(w) if wrapped else w

        def f(x: Any) -> Any:
            with torch.no_grad():
                held.mul_(2)
            return x * 1

        g = wrap(f)
        found = []
        for _ in range(3):
            g(torch.ones(2))
            found.append((w.a._version, w.b._version))
        return found

    # torch does not count writes that a class makes to its parts
    expected = [(i * wrapped, i * wrapped) for i in (1, 2, 3)]
    assert versions(compiled) == versions(lambda f: f) == expected


def test_a_refused_capture_counts_no_writes_to_tensors_that_it_closes_over() -> None:
    w = TwoTensor(torch.ones(2), torch.zeros(2))
    held: Any = runtime.wrap(w)
    whole = torch.zeros(2, 2)
    view = whole[0]

    def first_whole(x: Any) -> Any:
        whole.mul_(2)
        view.mul_(2)
        return x * 1

    def first_part(x: Any) -> Any:
        held.a.mul_(2)
        held.mul_(2)
        return x * 1

    for f in (first_whole, first_part):
        with pytest.raises(RuntimeError, match=r"share memory|aliased inputs"):
            compiled(f)(torch.ones(2))
    assert (whole._version, w._version, w.a._version, w.b._version) == (0, 0, 0, 0)
