"""Per-sample gradients equal a loop over the samples, for every layer kind, reduction and input."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import handle_torch_function, has_torch_function

import runtime
from runtime.expanded_weights import (
    ExpandedWeight,
    call_for_per_sample_grads,
    implements_per_sample_grads,
)

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (5, 4)),
    "linear_without_bias": (lambda: nn.Linear(4, 3, bias=False), (5, 4)),
    "linear_over_positions": (lambda: nn.Linear(4, 3), (5, 2, 6, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 2), (5, 3, 7)),
    "conv2d_strided_dilated_grouped": (
        lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
        (5, 4, 9, 8),
    ),
    "conv2d_same": (lambda: nn.Conv2d(3, 4, (2, 3), padding="same"), (5, 3, 6, 5)),
    "conv2d_valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid", bias=False), (5, 3, 6, 5)),
    "conv2d_circular": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
        (5, 3, 6, 5),
    ),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), (5, 2, 4, 3, 4)),
    "layer_norm": (lambda: nn.LayerNorm([3, 4]), (5, 2, 3, 4)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (5, 6, 3)),
    "group_norm_without_space": (lambda: nn.GroupNorm(2, 6), (5, 6)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), (5, 3, 4, 4)),
    "instance_norm_on_running_statistics": (
        lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True).eval(),
        (5, 3, 4),
    ),
}


def by_loop(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    rows = []
    for sample in x:
        loss = (module(sample[None]) ** 2).sum()
        rows.append(torch.autograd.grad(loss, list(module.parameters())))
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def samples(module: nn.Module) -> list[torch.Tensor]:
    found: list[Any] = list(module.parameters())
    return [p.grad_sample for p in found]


def per_sample(
    module: nn.Module, x: torch.Tensor, reduction: str = "sum", **options: Any
) -> list[torch.Tensor]:
    out = call_for_per_sample_grads(module, loss_reduction=reduction, **options)(x)
    losses = (out**2).flatten(1).sum(1)
    (losses.sum() if reduction == "sum" else losses.mean()).backward()
    return samples(module)


pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_gives_the_gradients_of_the_samples_own_losses(kind: str, reduction: str) -> None:
    make, shape = LAYERS[kind]
    module = make().double()
    x = torch.randn(shape, dtype=torch.double)
    torch.testing.assert_close(per_sample(module, x, reduction), by_loop(module, x))


@pytest.mark.parametrize(
    "kind", [kind for kind, (_, shape) in LAYERS.items() if "group" not in kind and len(shape) == 4]
)
def test_a_cotangent_may_lie_in_memory_with_the_channels_last(kind: str) -> None:
    make, shape = LAYERS[kind]
    module = make().double()
    x = torch.randn(shape, dtype=torch.double)
    out = call_for_per_sample_grads(module, loss_reduction="sum")(x)
    arrived: list[torch.Tensor] = []
    out.register_hook(arrived.append)
    (out.permute(0, 2, 3, 1).contiguous() ** 2).sum().backward()
    assert (
        arrived[0].is_contiguous(memory_format=torch.channels_last)
        and not arrived[0].is_contiguous()
    )
    torch.testing.assert_close(samples(module), by_loop(module, x))


@pytest.mark.parametrize("kind", LAYERS)
def test_the_input_gets_its_gradient_too(kind: str) -> None:
    make, shape = LAYERS[kind]
    module = make().double()
    x = torch.randn(shape, dtype=torch.double)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    found = per_sample(module, ours)
    (module(theirs) ** 2).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    torch.testing.assert_close(found, by_loop(module, x))


@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"scale_grad_by_freq": True}])
def test_embedding(options: dict[str, Any]) -> None:
    module = nn.Embedding(7, 3, **options).double()
    x = torch.randint(0, 3, (4, 5))
    torch.testing.assert_close(per_sample(module, x), by_loop(module, x))


def test_a_model_of_several_layers_chains() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    x = torch.randn(5, 4, dtype=torch.double)
    torch.testing.assert_close(per_sample(module, x), by_loop(module, x))


def test_a_layer_used_twice_adds_up() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.inner(x) + self.inner(2 * x)

    module = Twice().double()
    x = torch.randn(5, 4, dtype=torch.double)
    torch.testing.assert_close(per_sample(module, x), by_loop(module, x))


def test_the_batch_may_be_the_second_dimension() -> None:
    module = nn.Linear(4, 3).double()
    x = torch.randn(6, 5, 4, dtype=torch.double)
    out = call_for_per_sample_grads(module, batch_first=False)(x)
    (out**2).sum().backward()
    torch.testing.assert_close(samples(module), by_loop(module, x.transpose(0, 1)))


class Scaled(nn.Module):
    """Parameters used directly by functions without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.mul(self.linear(x), (self.scale * 2).exp()).sin() @ self.linear.weight.T


def test_a_module_may_use_its_parameters_by_any_function() -> None:
    module = Scaled().double()
    x = torch.randn(5, 4, dtype=torch.double)
    torch.testing.assert_close(per_sample(module, x), by_loop(module, x))


def test_an_expanded_weight_alone_is_taken_by_layers_only() -> None:
    w = ExpandedWeight(torch.randn(4, requires_grad=True), 3, "sum")
    with pytest.raises(
        RuntimeError,
        match=(
            r"Expanded Weights encountered but cannot handle function "
            r"mul.*implements_per_sample_grads"
        ),
    ):
        torch.mul(torch.randn(3, 4), w)


def of_the_user(x: torch.Tensor, *, other: torch.Tensor) -> Any:
    """A function that lets its arguments override it, as torch's do."""
    if has_torch_function((x, other)):
        return handle_torch_function(of_the_user, (x, other), x, other=other)
    return x * other


def test_a_rule_of_the_user_comes_first() -> None:
    class Rule:
        @staticmethod
        def apply(names: tuple[str, ...], func: Any, *given: Any) -> Any:
            return "mine", names, len(given)

    implements_per_sample_grads(of_the_user)(Rule)
    w = ExpandedWeight(torch.randn(4, requires_grad=True), 3, "sum")
    assert of_the_user(torch.randn(3, 4), other=w) == ("mine", ("other",), 2)


def test_samples_that_mix_are_refused_by_op_and_module() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(
        RuntimeError,
        match=r"native_batch_norm.* mixes samples in 1 \(BatchNorm1d\).*group norm, or eval",
    ):
        per_sample(module, torch.randn(5, 4))


def test_a_smaller_batch_fills_the_rows_of_the_missing_samples_with_zeros() -> None:
    module = nn.Linear(4, 3).double()
    x = torch.randn(3, 4, dtype=torch.double)
    (call_for_per_sample_grads(module, batch_size=5)(x) ** 2).sum().backward()
    wanted = [torch.cat([g, g.new_zeros(2, *g.shape[1:])]) for g in by_loop(module, x)]
    torch.testing.assert_close(samples(module), wanted)


def test_samples_that_are_treated_by_their_position_are_refused() -> None:
    class Halves(Scaled):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.cat([x[:2] * self.scale, self.linear(x[2:])])

    with pytest.raises(
        RuntimeError, match=r"slice.* mixes samples in a Halves: it picks samples by their position"
    ):
        per_sample(Halves(), torch.randn(4, 4))


def test_samples_may_be_put_into_another_order() -> None:
    class Shuffled(Scaled):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x[torch.tensor([2, 0, 3, 1])])

    module = Shuffled().double()
    x = torch.randn(4, 4, dtype=torch.double)
    (call_for_per_sample_grads(module)(x) ** 2).sum().backward()
    each = [
        torch.autograd.grad(
            (Scaled.forward(module, row[None]) ** 2).sum(), list(module.parameters())
        )
        for row in x
    ]
    torch.testing.assert_close(samples(module), [torch.stack(g) for g in zip(*each, strict=True)])


def test_what_follows_the_module_gets_its_ordinary_gradient() -> None:
    first, weight = nn.Linear(3, 3), torch.randn(3, requires_grad=True)
    x = torch.randn(4, 3)
    (wanted,) = torch.autograd.grad((first(x) @ weight).sum(), weight)
    following = runtime.wrap(weight.detach(), requires_grad=True)
    (call_for_per_sample_grads(first)(x) @ following).sum().backward()
    torch.testing.assert_close(runtime.unwrap(following.grad), wanted)


def test_what_was_written_to_before_the_backward_pass_is_noticed() -> None:
    module = nn.Linear(3, 3)
    x = torch.randn(4, 3)
    out = call_for_per_sample_grads(module)(x)
    x.mul_(3)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_weights_may_be_tensors_of_the_runtime() -> None:
    w: Any = runtime.wrap(torch.randn(3, 4), requires_grad=True)
    x = torch.randn(5, 4)
    out: Any = F.linear(x, ExpandedWeight(w, 5, "sum"))
    (out**2).sum().backward()
    plain = runtime.unwrap(w)
    torch.testing.assert_close(w.grad_sample, 2 * (x @ plain.T).unsqueeze(2) * x.unsqueeze(1))


def test_an_ordinary_parameter_beside_an_expanded_one_is_an_error() -> None:
    w, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    with pytest.raises(
        RuntimeError,
        match="does not support a mixture of ExpandedWeight parameters and normal Parameters",
    ):
        F.linear(torch.randn(5, 4), ExpandedWeight(w, 5, "sum"), b)


def test_a_second_call_without_clearing_is_an_error_that_names_the_parameter() -> None:
    module = nn.Linear(4, 3)
    per_sample(module, torch.randn(5, 4))
    with pytest.raises(
        RuntimeError, match="grad_sample of weight would be incorrect for multiple calls"
    ):
        call_for_per_sample_grads(module)


def test_one_sample_without_a_batch_is_an_error() -> None:
    w = ExpandedWeight(torch.randn(3, 4, requires_grad=True), 1, "sum")
    with pytest.raises(RuntimeError, match="Expanded Weights need a batch dimension: linear"):
        F.linear(torch.randn(4), w)


def test_normalization_by_running_statistics_needs_them() -> None:
    w = ExpandedWeight(torch.ones(3, requires_grad=True), 2)
    with pytest.raises(RuntimeError, match="running_mean"):
        torch.nn.functional.instance_norm(torch.ones(2, 3, 4), weight=w, use_input_stats=False)


def test_each_pass_through_a_retained_graph_gives_gradients_of_its_own_cotangents() -> None:
    layer: Any = torch.nn.Linear(3, 2)
    x = torch.randn(4, 3)
    out = call_for_per_sample_grads(layer, loss_reduction="sum")(x)
    found = []
    for cotangent in (torch.ones(4, 2), torch.full((4, 2), 5.0)):
        out.backward(cotangent, retain_graph=True)
        found.append(layer.weight.grad_sample)
        layer.weight.grad_sample = layer.bias.grad_sample = None
    torch.testing.assert_close(found[1], 5 * found[0])
