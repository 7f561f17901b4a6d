"""Modules and helpers of ``torch.nn`` whose tensors are made below Python. The same program without
the drop-in is the oracle."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import rnn

from runtime import dropin


def _run(program: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return _plain(program())


def _plain(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x.detach().tolist()
    return [_plain(y) for y in x] if isinstance(x, (list, tuple)) else x


def same(program: Callable[[], Any]) -> None:
    expected = _run(program)
    with dropin.installed():
        found = _run(program)
    torch.testing.assert_close(found, expected)


_nn: Any = nn  # torch's stubs leave out what a tensor without a shape may be given


def _leaf(*shape: int) -> Any:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
def test_sequences_of_several_lengths_are_padded_and_differentiated(
    batch_first: bool, side: str
) -> None:
    def program() -> Any:
        parts = [_leaf(n, 2) for n in (2, 0, 3)]
        padded = rnn.pad_sequence(
            parts, batch_first=batch_first, padding_value=7.0, padding_side=side
        )
        (padded * padded).sum().backward()
        return padded, [p.grad for p in parts]

    same(program)


@pytest.mark.parametrize("batch_first", [False, True])
def test_packed_sequences_go_through_a_recurrent_network_and_back(batch_first: bool) -> None:
    def program() -> Any:
        x = _leaf(3, 4, 2)
        net = nn.LSTM(2, 3, batch_first=batch_first).double()
        lengths = torch.tensor([2, 4, 1] if batch_first else [2, 3, 1, 3])
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=batch_first, enforce_sorted=False)
        y, _ = rnn.pad_packed_sequence(
            net(packed)[0], batch_first=batch_first, padding_value=-1.0, total_length=5
        )
        (y * y).sum().backward()
        return y, x.grad, [p.grad for p in net.parameters()]

    same(program)


def test_packing_has_second_derivatives() -> None:
    def program() -> Any:
        x = _leaf(3, 2, 2)
        packed = rnn.pack_padded_sequence(x**3, torch.tensor([3, 1])).data
        (g,) = torch.autograd.grad((packed**2).sum(), x, create_graph=True)
        return torch.autograd.grad(g.sum(), x)

    same(program)


@pytest.mark.parametrize(
    "pad",
    [lambda: rnn.pad_sequence([]), lambda: rnn.pad_sequence([torch.ones(1, 2), torch.ones(1, 3)])],
)
def test_what_cannot_be_padded_is_an_error(pad: Callable[[], Any]) -> None:
    with dropin.installed(), pytest.raises(RuntimeError):
        pad()


def test_a_lazy_module_becomes_one_that_trains() -> None:
    def program() -> Any:
        net = nn.Sequential(
            nn.LazyConv2d(2, 2), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(1)
        )
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        before = [is_lazy(p) for p in net.parameters()]
        twin: Any = copy.deepcopy(net[0])
        net(torch.randn(2, 1, 3, 3)).sum().backward()
        optimizer.step()
        kinds = [
            (isinstance(p, nn.Parameter), p.is_leaf, p.requires_grad) for p in net.parameters()
        ]
        return (
            before,
            kinds,
            list(net.parameters()),
            list(net.buffers()),
            [p.grad for p in net.parameters()],
            is_lazy(twin.weight),
        )

    same(program)


def test_a_lazy_module_takes_its_sizes_from_a_state_that_it_loads() -> None:
    def program() -> Any:
        net = nn.LazyLinear(3)
        net.load_state_dict(nn.Linear(4, 3).state_dict())
        net(torch.ones(1, 4)).sum().backward()
        return net.weight, net.weight.grad

    same(program)


def test_the_copy_of_a_parameter_has_no_gradient_yet() -> None:
    def program() -> Any:
        net = nn.Linear(2, 1)
        net(torch.ones(1, 2)).sum().backward()
        twin = copy.deepcopy(net)
        return [(isinstance(p, nn.Parameter), p.grad, p) for p in twin.parameters()]

    same(program)


def test_draws_of_distributions_are_differentiated() -> None:
    def program() -> Any:
        rate, concentration = (
            torch.tensor([2.0, 3.0], requires_grad=True),
            torch.tensor([1.5, 0.5], requires_grad=True),
        )
        draw = (
            torch.distributions.Gamma(concentration, rate).rsample()
            + torch.distributions.Beta(concentration, rate).rsample()
        )
        return torch.autograd.grad(draw.sum() + torch.poisson(rate).sum(), [rate, concentration])

    same(program)


def test_rounding_in_training_for_quantization_lets_gradients_through_within_range() -> None:
    def program() -> Any:
        x = torch.tensor([[-9.0, 0.3], [1.2, 9.0]], requires_grad=True)
        scale, zero = torch.tensor([0.1, 0.2]), torch.tensor([0, 1], dtype=torch.int32)
        y = torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -10, 10)
        y = y + torch.fake_quantize_per_tensor_affine(x, scale[0], zero[0], -10, 10)
        y = y + torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -10, 10)
        return y, torch.autograd.grad(y.sum(), x)

    same(program)


def test_a_number_is_formatted_as_one() -> None:
    def program() -> Any:
        loss = torch.tensor([1.0, 2.0], requires_grad=True).sum()
        return f"{loss:.3f}", f"{loss.detach():6.1f}", f"{loss * 2}"

    expected = _run(program)
    assert expected[0] == "3.000"
    with dropin.installed():
        assert _run(program)[:2] == expected[:2]


def assert_equal(program: Callable[[], Any]) -> None:
    expected = _run(program)
    with dropin.installed():
        assert _run(program) == expected


@pytest.mark.parametrize("batch_first", [False, True])
def test_sequences_without_an_element_are_all_padding(batch_first: bool) -> None:
    def program() -> Any:
        parts = [_leaf(0, 3), _leaf(0, 3)]
        padded = rnn.pad_sequence(parts, batch_first=batch_first, padding_value=7.0)
        longer = rnn.pad_sequence([_leaf(0, 3), _leaf(0, 3)], batch_first, 1.0)
        return (
            padded,
            padded.shape,
            longer.dtype,
            rnn.pad_sequence([_leaf(1), _leaf(3)]),
            rnn.pad_sequence([torch.ones(2, 1, 2)]),
        )

    assert_equal(program)


def test_every_option_of_padding_has_torchs_default_and_scalars_are_refused_as_in_torch() -> None:
    def program() -> Any:
        pad = torch._C._nn.pad_sequence
        parts = [torch.ones(1, 2), torch.ones(3, 2, dtype=torch.float64)[:2].float()]
        made = [
            pad(parts),
            pad(parts, True),
            pad(parts, False, 2.0),
            pad(parts, True, 2.0, "left"),
            rnn.pad_sequence(torch.ones(2, 3)),
        ]
        try:
            rnn.pad_sequence([torch.tensor(1.0), torch.ones(2)])
        except (RuntimeError, IndexError) as error:
            return made, type(error).__name__, str(error)

    assert_equal(program)


def test_padding_happens_on_the_device_of_the_sequences() -> None:
    def program() -> Any:
        parts = [torch.ones(2, 2, device="meta"), torch.ones(3, 2, device="meta")]
        padded = rnn.pad_sequence(parts)
        return padded.shape, str(padded.device), str(padded.dtype)

    assert_equal(program)


def test_sequences_from_before_are_padded_too() -> None:
    parts = [torch.ones(1, 2), torch.ones(3, 2)]
    packed = rnn.pack_padded_sequence(torch.arange(6.0).reshape(3, 2), torch.tensor([3, 1]))
    expected = _plain(
        [
            rnn.pad_sequence(parts, padding_value=2.0),
            *rnn.pad_packed_sequence(packed, total_length=4),
        ]
    )
    with dropin.installed():
        assert (
            _plain(
                [
                    rnn.pad_sequence(parts, padding_value=2.0),
                    *rnn.pad_packed_sequence(packed, total_length=4),
                ]
            )
            == expected
        )


def test_a_tensor_without_a_shape_takes_one_with_its_own_or_a_given_device_and_dtype() -> None:
    def program() -> Any:
        parameter, buffer = _nn.UninitializedParameter, _nn.UninitializedBuffer
        made: list[Any] = [
            parameter(),
            parameter(False, "meta", torch.float64),
            buffer(),
            buffer(device="meta", dtype=torch.half),
        ]
        made += [buffer(requires_grad=True), buffer(persistent=False), parameter(device="meta")]
        for t in made:
            t.tag = "kept"
            t.materialize((2, 3), *(["meta", torch.float64] if t is made[-1] else []))
        kinds = [
            (isinstance(t, nn.Parameter), isinstance(t, nn.Buffer), t.requires_grad) for t in made
        ]
        return (
            kinds,
            [(t.device, t.dtype, t.shape, t.tag) for t in made],
            [t.persistent for t in made if isinstance(t, nn.Buffer)],
        )

    assert_equal(program)


def test_whether_a_lazy_buffer_is_saved() -> None:
    def program() -> Any:
        module: Any = nn.Module()
        module.kept, module.lost = (
            nn.UninitializedBuffer(),
            nn.UninitializedBuffer(persistent=False),
        )
        for buffer in (module.kept, module.lost):
            buffer.materialize((2,))
        return (
            [name for name, _ in module.named_buffers()],
            list(module.state_dict()),
            list(nn.LazyBatchNorm1d().state_dict()),
        )

    assert_equal(program)


@pytest.mark.filterwarnings(
    "ignore:The PyTorch API of nested tensors is in prototype stage:UserWarning"
)
@pytest.mark.parametrize("nested", [True, False])
def test_an_encoder_leaves_out_what_is_padded_where_nothing_is_differentiated(nested: bool) -> None:
    def program() -> Any:
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
        x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False] * 3])
        with torch.no_grad():
            short = encoder(x, src_key_padding_mask=padding)
        return (
            short,
            encoder(x, src_key_padding_mask=padding),
            layer(x),
            nn.MultiheadAttention(8, 2, batch_first=True).eval()(x, x, x),
        )

    same(program)
