"""Per-sample gradients equal a loop over the samples, for every layer kind, reduction and input."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime.expanded_weights import ExpandedWeight, call_for_per_sample_grads
from runtime.expanded_weights.fallback import by_sample
from runtime.expanded_weights.weight import HANDLED

LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (5, 4)),
    "linear_without_bias": (lambda: nn.Linear(4, 3, bias=False), (5, 4)),
    "linear_over_positions": (lambda: nn.Linear(4, 3), (5, 2, 6, 4)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 2), (5, 3, 7)),
    "conv2d_strided_dilated_grouped": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, dilation=2, groups=2), (5, 4, 9, 8)),
    "conv2d_same": (lambda: nn.Conv2d(3, 4, (2, 3), padding="same"), (5, 3, 6, 5)),
    "conv2d_valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid", bias=False), (5, 3, 6, 5)),
    "conv2d_circular": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), (5, 3, 6, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), (5, 2, 4, 3, 4)),
    "layer_norm": (lambda: nn.LayerNorm([3, 4]), (5, 2, 3, 4)),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (5, 6, 3)),
    "group_norm_without_space": (lambda: nn.GroupNorm(2, 6), (5, 6)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), (5, 3, 4, 4)),
    "instance_norm_on_running_statistics": (lambda: nn.InstanceNorm1d(3, affine=True, track_running_stats=True).eval(), (5, 3, 4)),
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


def per_sample(module: nn.Module, x: torch.Tensor, reduction: str = "sum", **options: Any) -> list[torch.Tensor]:
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


@pytest.mark.parametrize("kind", [kind for kind, (_, shape) in LAYERS.items() if "group" not in kind and len(shape) == 4])
def test_a_cotangent_may_lie_in_memory_with_the_channels_last(kind: str) -> None:
    make, shape = LAYERS[kind]
    module = make().double()
    x = torch.randn(shape, dtype=torch.double)
    out = call_for_per_sample_grads(module, loss_reduction="sum")(x)
    arrived: list[torch.Tensor] = []
    out.register_hook(arrived.append)
    (out.permute(0, 2, 3, 1).contiguous() ** 2).sum().backward()
    assert arrived[0].is_contiguous(memory_format=torch.channels_last) and not arrived[0].is_contiguous()
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


class Calls(TorchDispatchMode):
    """Which ATen ops run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: set[Any] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.add(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [f.__name__ for f in HANDLED if f is not F.embedding])
def test_a_function_runs_the_ops_at_which_its_rule_is_listed(name: str) -> None:
    listed = next(set(rule.ops) for f, rule in HANDLED.items() if f.__name__ == name)
    with Calls() as calls:
        for kind in LAYERS:
            if kind.startswith(name):
                make, shape = LAYERS[kind]
                make()(torch.ones(shape))
    assert listed and listed <= calls.ops


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


def test_any_other_function_falls_back_to_vmap_of_vjp_if_asked_to() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(4, dtype=torch.double))
            self.linear = nn.Linear(4, 4).double()

        def forward(self, x: torch.Tensor) -> Any:
            return torch.mul(self.linear(x), self.scale).sin()

    module = Scaled()
    x = torch.randn(5, 4, dtype=torch.double)
    with pytest.raises(RuntimeError, match=r"Expanded Weights encountered but cannot handle function mul.*fallback=True"):
        call_for_per_sample_grads(module)(x)
    torch.testing.assert_close(per_sample(module, x, fallback=True), by_loop(module, x))


def test_the_fallback_takes_the_whole_module_where_an_op_acts_on_weights_alone() -> None:
    class Doubled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(4, dtype=torch.double))

        def forward(self, x: torch.Tensor) -> Any:
            return x * (self.w * 2).exp()

    module = Doubled()
    x = torch.randn(5, 4, dtype=torch.double)
    torch.testing.assert_close(per_sample(module, x, fallback=True), by_loop(module, x))


def test_the_fallback_refuses_what_mixes_samples() -> None:
    w = ExpandedWeight(torch.randn(2, 2, requires_grad=True), 3, "sum", fallback=by_sample)
    with pytest.raises(RuntimeError, match="does not work sample by sample"):
        torch.kron(torch.randn(3, 4), w)


def test_the_fallback_gives_shapes_where_tensors_have_no_values() -> None:
    w = ExpandedWeight(torch.randn(4, device="meta", requires_grad=True), 3, "sum", fallback=by_sample)
    out: Any = torch.mul(torch.randn(3, 4, device="meta"), w)
    assert (out.shape, out.device.type) == ((3, 4), "meta")
    square = ExpandedWeight(torch.randn(2, 2, device="meta", requires_grad=True), 3, "sum", fallback=by_sample)
    with pytest.raises(RuntimeError, match="does not work sample by sample"):
        torch.kron(torch.randn(3, 4, device="meta"), square)


def test_weights_may_be_tensors_of_the_runtime() -> None:
    w: Any = runtime.wrap(torch.randn(3, 4), requires_grad=True)
    x = torch.randn(5, 4)
    out: Any = F.linear(x, ExpandedWeight(w, 5, "sum"))
    (out**2).sum().backward()
    plain = runtime.unwrap(w)
    torch.testing.assert_close(w.grad_sample, 2 * (x @ plain.T).unsqueeze(2) * x.unsqueeze(1))


def test_an_ordinary_parameter_beside_an_expanded_one_is_an_error() -> None:
    w, b = torch.randn(3, 4, requires_grad=True), torch.randn(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="does not support a mixture of ExpandedWeight parameters and normal Parameters"):
        F.linear(torch.randn(5, 4), ExpandedWeight(w, 5, "sum"), b)


def test_a_second_call_without_clearing_is_an_error_that_names_the_parameter() -> None:
    module = nn.Linear(4, 3)
    per_sample(module, torch.randn(5, 4))
    with pytest.raises(RuntimeError, match="grad_sample of weight would be incorrect for multiple calls"):
        call_for_per_sample_grads(module)


def test_one_sample_without_a_batch_is_an_error() -> None:
    w = ExpandedWeight(torch.randn(3, 4, requires_grad=True), 1, "sum")
    with pytest.raises(RuntimeError, match="Expanded Weights need a batch dimension: linear"):
        F.linear(torch.randn(4), w)


def test_normalization_by_running_statistics_needs_them() -> None:
    w = ExpandedWeight(torch.ones(3, requires_grad=True), 2)
    with pytest.raises(RuntimeError, match="needs running_mean and running_var"):
        torch.nn.functional.instance_norm(torch.ones(2, 3, 4), weight=w, use_input_stats=False)
