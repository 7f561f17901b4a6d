"""Modules of torch.nn that hold arguments, and the function that each of them calls.

    avg_pool_2d(x, made="trained")      # nn.AvgPool2d(2)(x), and F.avg_pool2d(x, 2)

``made`` is the mode of the module. The functions are rows of the matrix themselves. Values and
gradients of inputs and parameters are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from programs.families.tools import Results, Row, detached, gradients, leaves_of

Make = Callable[[], nn.Module]
Definition = Callable[..., Any]
LINE, PLANE, SPACE = (2, 4, 6), (2, 4, 6, 6), (2, 4, 4, 4, 4)


# --- definitions ----------------------------------------------------------------------------------


def _padded(sizes: list[int], mode: str = "constant", value: float = 0.0) -> Definition:
    return lambda x: F.pad(x, sizes, mode, value)


def _lp_pool(x: Tensor, power: float, size: int) -> Any:
    """Return the norms of windows side by side along the last dimension."""
    windows = x.unfold(-1, size, size)
    return (windows**power).sum(-1) ** (1 / power)


def _local_response(x: Tensor) -> Any:
    """Return each number over the mean square of three channels around it."""
    squares = F.pad(x * x, [0, 0, 0, 0, 1, 1])
    total = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    return x / (2 + 0.5 * total / 3) ** 0.75


def _glu(x: Tensor) -> Any:
    first, second = x.chunk(2, 1)
    return first * second.sigmoid()


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Any:
    """Return the sum of x times weight times y, an output at a time."""
    return torch.stack([((x @ one) * y).sum(1) for one in weight], 1) + bias


def _unit_rows(x: Tensor) -> Tensor:
    return x / x.square().sum(1, keepdim=True).sqrt()


def _distance(x: Tensor, y: Tensor) -> Any:
    return (x - y + 1e-6).square().sum(1).sqrt()


def _triplet(x: Tensor, y: Tensor, z: Tensor) -> Any:
    return (_distance(x, y) - _distance(x, z) + 1).clamp_min(0).mean()


def _labels(x: Tensor) -> Tensor:
    """Return a class for each row of `x`."""
    return torch.arange(len(x)) % x.shape[1]


def _shuffled(x: Tensor) -> Any:
    """Return the channels of two groups in turn."""
    return x[:, [0, 2, 1, 3]]


def _recurrent(x: Tensor, h: Tensor, w: Tensor, v: Tensor, b: Tensor, c: Tensor) -> Any:
    return (x @ w.t() + b + h @ v.t() + c).tanh()


def _gated(x: Tensor, h: Tensor, w: Tensor, v: Tensor, b: Tensor, c: Tensor) -> Any:
    """Return the next state of a GRU."""
    (r, z, n), (s, u, m) = (x @ w.t() + b).chunk(3, 1), (h @ v.t() + c).chunk(3, 1)
    update = (z + u).sigmoid()
    return update * h + (1 - update) * (n + (r + s).sigmoid() * m).tanh()


def _long_short(x: Tensor, h: Tensor, w: Tensor, v: Tensor, b: Tensor, c: Tensor) -> Any:
    """Return the next state and cell of an LSTM that begins with the same state and cell."""
    i, f, g, o = (x @ w.t() + b + h @ v.t() + c).chunk(4, 1)
    cell = f.sigmoid() * h + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


# --- the modules ----------------------------------------------------------------------------------

# By row: what makes the module, the shapes of its inputs, how it is called with them, and the
# same from inputs and parameters.
Entry = tuple[Make, tuple[tuple[int, ...], ...], Definition]
ONE: dict[str, Entry] = {
    "elu": (lambda: nn.ELU(0.7), (PLANE,), lambda x: F.elu(x, 0.7)),
    "celu": (lambda: nn.CELU(0.7), (PLANE,), lambda x: F.celu(x, 0.7)),
    "selu": (nn.SELU, (PLANE,), F.selu),
    "glu": (lambda: nn.GLU(1), (PLANE,), _glu),
    "hardshrink": (lambda: nn.Hardshrink(0.4), (PLANE,), lambda x: F.hardshrink(x, 0.4)),
    "softshrink": (lambda: nn.Softshrink(0.4), (PLANE,), lambda x: F.softshrink(x, 0.4)),
    "tanhshrink": (nn.Tanhshrink, (PLANE,), lambda x: x - x.tanh()),
    "hardsigmoid": (nn.Hardsigmoid, (PLANE,), lambda x: (x / 6 + 0.5).clamp(0, 1)),
    "hardswish": (nn.Hardswish, (PLANE,), lambda x: x * (x / 6 + 0.5).clamp(0, 1)),
    "hardtanh": (lambda: nn.Hardtanh(-0.5, 0.7), (PLANE,), lambda x: x.clamp(-0.5, 0.7)),
    "leaky_relu": (lambda: nn.LeakyReLU(0.3), (PLANE,), lambda x: x.relu() - 0.3 * (-x).relu()),
    "prelu": (lambda: nn.PReLU(4), (PLANE,), F.prelu),
    "log_sigmoid": (nn.LogSigmoid, (PLANE,), lambda x: -(1 + (-x).exp()).log()),
    "mish": (nn.Mish, (PLANE,), lambda x: x * (1 + x.exp()).log().tanh()),
    "relu": (nn.ReLU, (PLANE,), lambda x: x.clamp_min(0)),
    "relu_6": (nn.ReLU6, (PLANE,), lambda x: x.clamp(0, 6)),
    "sigmoid": (nn.Sigmoid, (PLANE,), torch.sigmoid),
    "silu": (nn.SiLU, (PLANE,), lambda x: x * x.sigmoid()),
    "gelu": (lambda: nn.GELU("tanh"), (PLANE,), lambda x: F.gelu(x, approximate="tanh")),
    "tanh": (nn.Tanh, (PLANE,), torch.tanh),
    "softplus": (lambda: nn.Softplus(2, 1), (PLANE,), lambda x: F.softplus(x, 2, 1)),
    "softsign": (nn.Softsign, (PLANE,), lambda x: x / (1 + x.abs())),
    "threshold": (lambda: nn.Threshold(0.1, 2), (PLANE,), lambda x: torch.where(x > 0.1, x, 2.0)),
    "softmax": (lambda: nn.Softmax(1), (PLANE,), lambda x: x.exp() / x.exp().sum(1, True)),
    "softmax_2d": (nn.Softmax2d, (PLANE,), lambda x: x.exp() / x.exp().sum(1, True)),
    "softmin": (lambda: nn.Softmin(1), (PLANE,), lambda x: (-x).exp() / (-x).exp().sum(1, True)),
    "log_softmax": (lambda: nn.LogSoftmax(1), (PLANE,), lambda x: x - x.logsumexp(1, True)),
    "identity": (lambda: nn.Identity(7, unused=True), (PLANE,), lambda x: x * 1),
    "flatten": (lambda: nn.Flatten(1, 2), (PLANE,), lambda x: x.reshape(2, 24, 6)),
    "unflatten": (lambda: nn.Unflatten(1, (2, 2)), (PLANE,), lambda x: x.reshape(2, 2, 2, 6, 6)),
    "channel_shuffle": (lambda: nn.ChannelShuffle(2), (PLANE,), _shuffled),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (PLANE,), lambda x: F.pixel_shuffle(x, 2)),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (PLANE,), lambda x: F.pixel_unshuffle(x, 2)),
    "adaptive_avg_pool_1d": (
        lambda: nn.AdaptiveAvgPool1d(3), (LINE,), lambda x: F.adaptive_avg_pool1d(x, 3)
    ),
    "adaptive_avg_pool_2d": (
        lambda: nn.AdaptiveAvgPool2d((3, None)), (PLANE,),
        lambda x: F.adaptive_avg_pool2d(x, (3, 6))
    ),
    "adaptive_avg_pool_3d": (
        lambda: nn.AdaptiveAvgPool3d((2, None, 1)),
        (SPACE,),
        lambda x: F.adaptive_avg_pool3d(x, (2, 4, 1)),
    ),
    "adaptive_max_pool_1d": (
        lambda: nn.AdaptiveMaxPool1d(3), (LINE,), lambda x: F.adaptive_max_pool1d(x, 3)
    ),
    "adaptive_max_pool_2d": (
        lambda: nn.AdaptiveMaxPool2d((3, None)), (PLANE,),
        lambda x: F.adaptive_max_pool2d(x, (3, 6))
    ),
    "adaptive_max_pool_3d": (
        lambda: nn.AdaptiveMaxPool3d(2), (SPACE,), lambda x: F.adaptive_max_pool3d(x, 2)
    ),
    "avg_pool_1d": (
        lambda: nn.AvgPool1d(3, 2, 1, False, False),
        (LINE,),
        lambda x: F.avg_pool1d(x, 3, 2, 1, False, False),
    ),
    "avg_pool_2d": (
        lambda: nn.AvgPool2d(3, 2, 1, True, False, 5),
        (PLANE,),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, 5),
    ),
    "avg_pool_3d": (
        lambda: nn.AvgPool3d(2, 1, 1, False, False, 3),
        (SPACE,),
        lambda x: F.avg_pool3d(x, 2, 1, 1, False, False, 3),
    ),
    "max_pool_1d": (
        lambda: nn.MaxPool1d(2, 1, 1, 2), (LINE,), lambda x: F.max_pool1d(x, 2, 1, 1, 2)
    ),
    "max_pool_2d": (
        lambda: nn.MaxPool2d(2, 2, 1, 1, False, True),
        (PLANE,),
        lambda x: F.max_pool2d(x, 2, 2, 1, 1, True),
    ),
    "max_pool_3d": (lambda: nn.MaxPool3d(2, 1), (SPACE,), lambda x: F.max_pool3d(x, 2, 1)),
    "lp_pool_1d": (lambda: nn.LPPool1d(3, 2), (LINE,), lambda x: _lp_pool(x, 3, 2)),
    "lp_pool_2d": (
        lambda: nn.LPPool2d(3, (1, 2)), (PLANE,), lambda x: _lp_pool(x, 3, 2)
    ),
    "lp_pool_3d": (lambda: nn.LPPool3d(3, (1, 1, 2)), (SPACE,), lambda x: _lp_pool(x, 3, 2)),
    "local_response_norm": (
        lambda: nn.LocalResponseNorm(3, 0.5, 0.75, 2.0), (PLANE,), _local_response
    ),
    "cross_map_norm": (lambda: nn.CrossMapLRN2d(3, 0.5, 0.75, 2.0), (PLANE,), _local_response),
    "fold": (
        lambda: nn.Fold((4, 5), 2),
        ((2, 8, 12),),
        lambda x: F.fold(x, (4, 5), 2),
    ),
    "unfold": (lambda: nn.Unfold(2, 1, 1, 2), (PLANE,), lambda x: F.unfold(x, 2, 1, 1, 2)),
    "upsample": (
        lambda: nn.Upsample(scale_factor=1.5, mode="bilinear", align_corners=True),
        (PLANE,),
        lambda x: F.interpolate(x, (9, 9), mode="bilinear", align_corners=True),
    ),
    "upsampling_nearest": (
        lambda: nn.UpsamplingNearest2d(scale_factor=2),
        (PLANE,),
        lambda x: x.repeat_interleave(2, 2).repeat_interleave(2, 3),
    ),
    "upsampling_bilinear": (
        lambda: nn.UpsamplingBilinear2d((9, 9)),
        (PLANE,),
        lambda x: F.interpolate(x, (9, 9), mode="bilinear", align_corners=True),
    ),
    "zero_pad_1d": (lambda: nn.ZeroPad1d((1, 2)), (LINE,), _padded([1, 2])),
    "zero_pad_2d": (lambda: nn.ZeroPad2d((1, 2, -1, 3)), (PLANE,), _padded([1, 2, -1, 3])),
    "zero_pad_3d": (lambda: nn.ZeroPad3d(1), (SPACE,), _padded([1] * 6)),
    "constant_pad_1d": (lambda: nn.ConstantPad1d(2, 0.5), (LINE,), _padded([2, 2], value=0.5)),
    "constant_pad_2d": (
        lambda: nn.ConstantPad2d((1, 0, 2, -1), 0.5), (PLANE,), _padded([1, 0, 2, -1], value=0.5)
    ),
    "constant_pad_3d": (lambda: nn.ConstantPad3d(1, 0.5), (SPACE,), _padded([1] * 6, value=0.5)),
    "reflection_pad_1d": (lambda: nn.ReflectionPad1d(2), (LINE,), _padded([2, 2], "reflect")),
    "reflection_pad_2d": (
        lambda: nn.ReflectionPad2d((1, 2, 3, 0)), (PLANE,), _padded([1, 2, 3, 0], "reflect")
    ),
    "reflection_pad_3d": (lambda: nn.ReflectionPad3d(1), (SPACE,), _padded([1] * 6, "reflect")),
    "replication_pad_1d": (lambda: nn.ReplicationPad1d(2), (LINE,), _padded([2, 2], "replicate")),
    "replication_pad_2d": (
        lambda: nn.ReplicationPad2d((1, 2, 3, 0)), (PLANE,), _padded([1, 2, 3, 0], "replicate")
    ),
    "replication_pad_3d": (lambda: nn.ReplicationPad3d(1), (SPACE,), _padded([1] * 6, "replicate")),
    "circular_pad_1d": (lambda: nn.CircularPad1d(2), (LINE,), _padded([2, 2], "circular")),
    "circular_pad_2d": (
        lambda: nn.CircularPad2d((1, 2, 3, 0)), (PLANE,), _padded([1, 2, 3, 0], "circular")
    ),
    "circular_pad_3d": (lambda: nn.CircularPad3d(1), (SPACE,), _padded([1] * 6, "circular")),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (PLANE,), lambda x, w, b: F.group_norm(x, 2, w, b)),
    "rms_norm": (
        lambda: nn.RMSNorm(6, 1e-3), (PLANE,),
        lambda x, w: x / (x.square().mean(-1, True) + 1e-3).sqrt() * w,
    ),
    "instance_norm_1d": (
        lambda: nn.InstanceNorm1d(4, affine=True), (LINE,),
        lambda x, w, b: F.group_norm(x, 4, w, b),
    ),
    "instance_norm_2d": (
        lambda: nn.InstanceNorm2d(4, affine=True), (PLANE,),
        lambda x, w, b: F.group_norm(x, 4, w, b),
    ),
    "instance_norm_3d": (
        lambda: nn.InstanceNorm3d(4, affine=True), (SPACE,),
        lambda x, w, b: F.group_norm(x, 4, w, b),
    ),
    "conv_transpose_3d": (
        lambda: nn.ConvTranspose3d(4, 2, 2, 2, 1, 1, 2, True, 1), (SPACE,),
        lambda x, w, b: F.conv_transpose3d(x, w, b, 2, 1, 1, 2, 1),
    ),
    "bilinear": (lambda: nn.Bilinear(3, 4, 5), ((2, 3), (2, 4)), _bilinear),
    "rnn_cell": (lambda: nn.RNNCell(3, 4), ((2, 3), (2, 4)), _recurrent),
    "gru_cell": (lambda: nn.GRUCell(3, 4), ((2, 3), (2, 4)), _gated),
    "cosine_similarity": (
        lambda: nn.CosineSimilarity(1), ((3, 4), (3, 4)),
        lambda x, y: (_unit_rows(x) * _unit_rows(y)).sum(1),
    ),
    "pairwise_distance": (nn.PairwiseDistance, ((3, 4), (3, 4)), _distance),
    "l1_loss": (nn.L1Loss, ((3, 4), (3, 4)), lambda x, y: (x - y).abs().mean()),
    "mse_loss": (
        lambda: nn.MSELoss(reduction="sum"), ((3, 4), (3, 4)), lambda x, y: (x - y).square().sum()
    ),
    "huber_loss": (
        lambda: nn.HuberLoss(delta=0.5), ((3, 4), (3, 4)),
        lambda x, y: F.huber_loss(x, y, delta=0.5)
    ),
    "smooth_l1_loss": (
        lambda: nn.SmoothL1Loss(beta=0.5), ((3, 4), (3, 4)),
        lambda x, y: F.huber_loss(x, y, delta=0.5) / 0.5,
    ),
    "poisson_loss": (
        lambda: nn.PoissonNLLLoss(), ((3, 4), (3, 4)), lambda x, y: (x.exp() - y * x).mean()
    ),
    "kl_loss": (
        lambda: nn.KLDivLoss(reduction="batchmean", log_target=True), ((3, 4), (3, 4)),
        lambda x, y: (y.exp() * (y - x)).sum() / 3,
    ),
    "triplet_loss": (nn.TripletMarginLoss, ((3, 4), (3, 4), (3, 4)), _triplet),
    "triplet_loss_of_distance": (
        lambda: nn.TripletMarginWithDistanceLoss(distance_function=_distance),
        ((3, 4), (3, 4), (3, 4)),
        _triplet,
    ),
}  # fmt: skip
"""Modules that are called with floating tensors alone."""


def _signs(x: Tensor) -> Tensor:
    return torch.where(torch.arange(x.numel()).reshape(x.shape) % 2 == 0, 1.0, -1.0).to(x)


LABELLED: dict[str, tuple[Make, Definition, Definition]] = {
    "nll_loss": (nn.NLLLoss, _labels, lambda x, y: -x[range(3), y].mean()),
    "cross_entropy_loss": (
        lambda: nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1), _labels,
        lambda x, y: F.cross_entropy(x[[0, 2]], y[[0, 2]], label_smoothing=0.1),
    ),
    "multi_margin_loss": (
        lambda: nn.MultiMarginLoss(2, 0.5), _labels,
        lambda x, y: sum(
            (0.5 - x[i, y[i]] + x[i, j]).clamp_min(0) ** 2 / 4
            for i in range(3) for j in range(4) if j != y[i]
        ) / 3,
    ),
    "soft_margin_loss": (nn.SoftMarginLoss, _signs, lambda x, y: (1 + (-y * x).exp()).log().mean()),
    "hinge_embedding_loss": (
        lambda: nn.HingeEmbeddingLoss(0.7), _signs,
        lambda x, y: torch.where(y > 0, x, (0.7 - x).clamp_min(0)).mean(),
    ),
    "bce_with_logits_loss": (
        nn.BCEWithLogitsLoss, lambda x: (_signs(x) + 1) / 2,
        lambda x, y: (x.exp().log1p() - y * x).mean(),
    ),
    "multi_label_soft_margin_loss": (
        nn.MultiLabelSoftMarginLoss, lambda x: (_signs(x) + 1) / 2,
        lambda x, y: (x.exp().log1p() - y * x).mean(),
    ),
    "multi_label_margin_loss": (
        nn.MultiLabelMarginLoss, lambda x: torch.tensor([[3, 0, -1, 1]] * 3),
        lambda x, y: sum(
            (1 - (x[i, j] - x[i, k])).clamp_min(0) / 4
            for i in range(3) for j in (3, 0) for k in (1, 2)
        ) / 3,
    ),
    "gaussian_loss": (
        lambda: nn.GaussianNLLLoss(full=True),
        lambda x: x.detach().sin(),
        lambda x, y: ((x - y) ** 2 / 2 + 0.5 * math.log(2 * math.pi)).mean(),
    ),
}  # fmt: skip
"""Losses of a matrix and labels, which are the second word of each line."""


# --- rows -----------------------------------------------------------------------------------------


def _filled(make: Make, made: str) -> nn.Module:
    """Return the module in double precision, with numbers that depend on their places alone."""
    module = make().double().train(made == "trained")
    with torch.no_grad():
        for place, parameter in enumerate(module.parameters()):
            numbers = torch.arange(parameter.numel(), dtype=torch.float64) * 1.7 + place
            parameter.copy_((numbers.sin() / 2).reshape(parameter.shape))
    return module


def _parts(found: object) -> list[Tensor]:
    return list(found) if isinstance(found, (list, tuple)) else [torch.as_tensor(found)]


def _results(found: object, leaves: list[Tensor]) -> Results:
    parts = _parts(found)
    return *detached(parts), *gradients(parts, leaves)


def _row(make: Make, definition: Definition, label: Definition | None = None) -> Row:
    def further(inputs: list[Tensor]) -> list[Any]:
        if label is None:
            return inputs
        second: Any = label(inputs[0])
        if make().__class__ is nn.GaussianNLLLoss:
            return [*inputs, second, torch.ones_like(inputs[0]).detach()]
        return [*inputs, second]

    def program(*xs: Tensor, made: str) -> Results:
        module, inputs = _filled(make, made), leaves_of(*xs)
        return _results(module(*further(inputs)), [*inputs, *module.parameters()])

    def by_definition(*xs: Tensor, made: str) -> Results:
        module, inputs = _filled(make, made), leaves_of(*xs)
        weights = list(module.parameters())
        given = further(inputs)[: 2 if label else None]
        return _results(definition(*given, *weights), [*inputs, *weights])

    return Row(program, by_definition)


def _samples_of(shapes: tuple[tuple[int, ...], ...]) -> Callable[..., list[dict[str, Any]]]:
    def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
        args = [{"shape": list(shape), "low": -1.5, "high": 1.5} for shape in shapes]
        return [{"args": args, "kwargs": {"made": made}} for made in ("trained", "evaluated")]

    return samples


globals().update({name: _row(make, rule) for name, (make, _, rule) in ONE.items()})
globals().update(
    {f"samples_of_{name}": _samples_of(shapes) for name, (_, shapes, _) in ONE.items()}
)
globals().update({name: _row(make, rule, label) for name, (make, label, rule) in LABELLED.items()})
globals().update({f"samples_of_{name}": _samples_of(((3, 4),)) for name in LABELLED})
