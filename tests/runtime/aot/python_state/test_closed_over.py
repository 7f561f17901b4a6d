"""Tensors that a compiled program closes over, also in calls that act before the
dispatcher sees them."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import dropin, tensor
from runtime.aot import aot_function, aot_module, make_fx, nop
from runtime.aot.python_state.closed_over import at_hand, generators_of, holds_values, modules_of
from tests.runtime.aot.capture.boundary_helpers import compiled

LAYER = nn.Linear(1, 1)
GENERATOR = torch.Generator()


def boxes(depth: int) -> Any:
    """``depth`` lists in one another around a text."""
    return [boxes(depth - 1)] if depth else "inside"


@pytest.mark.parametrize("depth, found", [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_what_is_at_hand_in_some_steps(depth: int, found: bool) -> None:
    assert ("inside" in list(at_hand(boxes(3), depth))) is found


def test_what_holds_itself_is_looked_through_in_some_steps() -> None:
    ring: list[Any] = []
    ring.append(ring)
    assert len(list(at_hand(ring, 3))) == 4


class Owner:
    def method(self, x: Any) -> Any:
        return x


OWNER = Owner()


def uses_layer(x: Any) -> Any:
    return LAYER(x)


def wrapper(x: Any) -> Any:
    return x


wrapper.__wrapped__ = uses_layer  # type: ignore[attr-defined]


def closure_of(value: Any) -> Callable[[], Any]:
    return lambda: value


HAND: dict[str, tuple[Any, list[Any]]] = {
    "partial": (functools.partial(max, 1, key=2), [max, 1, 2]),
    "method": (OWNER.method, [OWNER, Owner.method]),
    "closure": (closure_of(7), [7, None]),
    "function that uses a module": (uses_layer, [None, LAYER]),
    "list": ([1, 2], [1, 2]),
    "tuple": ((1, 2), [1, 2]),
    "dictionary": ({"a": 1}, [1]),
    "wrapper": (wrapper, [uses_layer]),
    "number": (1, []),
}


@pytest.mark.parametrize("name", HAND)
def test_what_is_at_hand_in_one_step(name: str) -> None:
    f, expected = HAND[name]
    assert list(at_hand(f, 1)) == [f, *expected]


@pytest.mark.parametrize("depth, found", [(3, True), (4, False)])
def test_modules_and_generators_are_found_in_three_steps(depth: int, found: bool) -> None:
    def around(x: Any) -> Any:
        for _ in range(depth):
            x = [x]
        return x

    assert (
        modules_of(around(LAYER)) == (LAYER,) * found
        and generators_of(around(GENERATOR)) == [GENERATOR] * found
    )


def test_a_variable_that_is_not_set_yet_is_passed_over() -> None:
    def f() -> Any:
        return later, LAYER

    assert list(at_hand(f, 1)) == [f, None, LAYER] and modules_of(f) == (LAYER,)
    later = 1
    assert list(at_hand(f, 1)) == [f, 1, None, LAYER]


@pytest.mark.parametrize("depth, found", [(5, True), (6, False)])
def test_values_are_found_in_five_steps(depth: int, found: bool) -> None:
    def around(x: Any) -> Any:
        for _ in range(depth):
            x = [x]
        return x

    kept: list[bool] = []

    def f(x: Any) -> Any:
        kept.extend((holds_values(around(x)), holds_values(SimpleNamespace(a=around(x)))))
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert kept == [found, found]


def test_tensors_outside_of_a_trace_are_no_values_and_symbols_are() -> None:
    assert not holds_values([torch.ones(1), runtime.wrap(torch.ones(1)), 1])
    kept: list[bool] = []

    def f(x: Any) -> Any:
        kept.extend((holds_values([x.shape[0]]), holds_values([2])))
        return x * 1

    make_fx(f, tracing_mode="symbolic")(torch.ones(3))
    assert kept == [True, False]


def test_what_a_module_and_a_class_hold_is_not_looked_at() -> None:
    kept: list[bool] = []

    def f(x: Any) -> Any:
        module, kind = nn.Identity(), type("Kind", (), {"held": x})
        module.held = x
        kept.extend((holds_values(module), holds_values(kind), holds_values(kind())))
        return x.sum()

    runtime.func.grad(f)(torch.ones(2))
    assert kept == [False, False, False]


def test_modules_and_generators_at_hand() -> None:
    net = nn.Sequential(LAYER, nn.Identity())
    assert (
        modules_of(net) == (net, net[0], net[1])
        and modules_of(uses_layer) == (LAYER,)
        and modules_of(1) == ()
    )
    assert modules_of(functools.partial(lambda m, x: m(x), net)) == (net, net[0], net[1])
    own = torch.Generator()
    assert generators_of(lambda x: torch.rand(2, generator=GENERATOR)) == [GENERATOR]
    assert (
        generators_of(closure_of(own)) == [own]
        and generators_of(closure_of(torch.default_generator)) == []
    )


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
