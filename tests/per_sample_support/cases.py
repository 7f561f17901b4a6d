"""The modules and functions of `torch.nn` that are tried, and on which batches.

A module is written as the page shows it: `"Conv2d(4, 6, 3)"`. So is a function, of the arguments
`x`, `y` and `z`: `"normalize(x)"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

B = 3
"""The number of samples. The first dimension of that size in a tensor is the batch."""
Batch = tuple[Tensor, ...]


class Inputs(NamedTuple):
    """What a module is called with.

    `batch`: makes the tensors. `prepare`: makes the arguments of the module of them, the first of
    which has passed a linear layer. `dim`: where the samples lie. `passes_linear`: whether the
    first tensor passes a linear layer, which row numbers cannot.
    """

    batch: Callable[[], Batch]
    prepare: Callable[..., tuple[Any, ...]] = lambda *batch: batch
    dim: int = 0
    passes_linear: bool = True


class Case(NamedTuple):
    """One row of the page. `make`: the module that is tried, by itself. `single`: whether it
    computes in single precision, in part."""

    group: str
    text: str
    make: Callable[[], nn.Module]
    inputs: Inputs
    single: bool = False


def rows(*shape: int) -> Tensor:
    """Random numbers for a batch."""
    return torch.randn(B, *shape, dtype=torch.float64)


def signs(*shape: int) -> Tensor:
    """1 and -1, for each sample in another order."""
    return torch.where(rows(*shape) > 0, 1.0, -1.0).double()


def numbers(high: int, *shape: int) -> Tensor:
    """Whole numbers from 0 up to `high`."""
    return torch.randint(0, high, (B, *shape))


def _first_as(change: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Any, ...]]:
    return lambda x, *others: (change(x), *others)


def _sequences_first(*widths: int) -> Batch:
    return tuple(torch.randn(5, B, width, dtype=torch.float64) for width in widths)


def _scores_over_time(x: Tensor, targets: Tensor) -> tuple[Any, ...]:
    """The arguments of `ctc_loss`, of scores with the batch in front."""
    scores = x.log_softmax(-1).transpose(0, 1)
    return scores, targets, (5,) * x.shape[0], (2,) * x.shape[0]


INPUTS: dict[str, Inputs] = {
    "rows": Inputs(lambda: (rows(6),)),
    "two rows": Inputs(lambda: (rows(6), rows(6))),
    "three rows": Inputs(lambda: (rows(6), rows(6), rows(6))),
    "rows of two widths": Inputs(lambda: (rows(6), rows(5))),
    "rows and positive rows": Inputs(lambda: (rows(6), rows(6).abs(), rows(6).abs() + 0.1)),
    "rows and signs": Inputs(lambda: (rows(6), signs(6))),
    "two rows and signs": Inputs(lambda: (rows(6), rows(6), signs())),
    "two rows and signs of each": Inputs(lambda: (rows(6), rows(6), signs(6))),
    "rows and zeros or ones": Inputs(lambda: (rows(6), (rows(6) > 0).double())),
    "probabilities": Inputs(lambda: (rows(6), (rows(6) > 0).double()), _first_as(torch.sigmoid)),
    "log-probabilities": Inputs(
        lambda: (rows(6), rows(6).softmax(-1)), _first_as(lambda x: x.log_softmax(-1))
    ),
    "scores and classes": Inputs(lambda: (rows(6), numbers(6))),
    "scores and many classes": Inputs(lambda: (rows(6), numbers(10))),
    "scores and sets of classes": Inputs(
        lambda: (rows(6), torch.cat([numbers(6, 1), numbers(1, 5) - 1], 1))
    ),
    "images of scores and classes": Inputs(lambda: (rows(6, 4, 5), numbers(6, 4, 5))),
    "scores over time": Inputs(lambda: (rows(5, 6), numbers(5, 2) + 1), _scores_over_time),
    "sequences": Inputs(lambda: (rows(5, 6),)),
    "three sequences": Inputs(lambda: (rows(5, 6), rows(4, 6), rows(4, 6))),
    "two sequences": Inputs(lambda: (rows(5, 6), rows(4, 6))),
    "sequences, time first": Inputs(lambda: _sequences_first(6), dim=1),
    "two sequences, time first": Inputs(lambda: _sequences_first(6, 6), dim=1),
    "lines": Inputs(lambda: (rows(4, 8),)),
    "images": Inputs(lambda: (rows(4, 8, 8),)),
    "volumes": Inputs(lambda: (rows(4, 5, 6, 8),)),
    "maxima of lines": Inputs(
        lambda: (rows(4, 8),), lambda x: F.max_pool1d(x, 2, return_indices=True)
    ),
    "maxima of images": Inputs(
        lambda: (rows(4, 8, 8),), lambda x: F.max_pool2d(x, 2, return_indices=True)
    ),
    "maxima of volumes": Inputs(
        lambda: (rows(4, 4, 6, 8),), lambda x: F.max_pool3d(x, 2, return_indices=True)
    ),
    "windows": Inputs(lambda: (rows(16, 9),)),
    "numbers of rows": Inputs(lambda: (numbers(10, 5),), passes_linear=False),
    "images and places": Inputs(lambda: (rows(4, 8, 8), rows(5, 7, 2).tanh())),
    "volumes and places": Inputs(lambda: (rows(4, 5, 6, 8), rows(4, 5, 7, 3).tanh())),
    "transformations": Inputs(lambda: (rows(2, 3),)),
    "attention": Inputs(lambda: (rows(2, 5, 6), rows(2, 4, 6), rows(2, 4, 6))),
}

# by group, by the name of the inputs: modules
MODULES: dict[str, dict[str, list[str]]] = {
    "Linear layers": {
        "rows": ["Identity()", "Linear(6, 4)", "LazyLinear(4)"],
        "rows of two widths": ["Bilinear(6, 5, 4)"],
    },
    "Convolutions": {
        "lines": ["Conv1d(4, 6, 3)", "ConvTranspose1d(4, 6, 3)", "LazyConv1d(6, 3)",
                  "LazyConvTranspose1d(6, 3)"],
        "images": ["Conv2d(4, 6, 3)", "Conv2d(4, 6, 3, groups=2, dilation=2)",
                   "Conv2d(4, 6, 3, padding=1, padding_mode='circular')",
                   "ConvTranspose2d(4, 6, 3, stride=2)", "LazyConv2d(6, 3)",
                   "LazyConvTranspose2d(6, 3)"],
        "volumes": ["Conv3d(4, 6, 3)", "ConvTranspose3d(4, 6, 3)", "LazyConv3d(6, 3)",
                    "LazyConvTranspose3d(6, 3)"],
    },
    "Normalizations": {
        "lines": ["BatchNorm1d(4)", "BatchNorm1d(4, track_running_stats=False)",
                  "BatchNorm1d(4).eval()", "LazyBatchNorm1d()",
                  "InstanceNorm1d(4, affine=True)", "LazyInstanceNorm1d(affine=True)"],
        "images": ["BatchNorm2d(4)", "BatchNorm2d(4).eval()", "LazyBatchNorm2d()",
                   "InstanceNorm2d(4, affine=True)",
                   "InstanceNorm2d(4, affine=True, track_running_stats=True)",
                   "LazyInstanceNorm2d(affine=True)", "GroupNorm(2, 4)",
                   "LocalResponseNorm(2)", "CrossMapLRN2d(2)"],
        "volumes": ["BatchNorm3d(4)", "BatchNorm3d(4).eval()", "LazyBatchNorm3d()",
                    "InstanceNorm3d(4, affine=True)", "LazyInstanceNorm3d(affine=True)"],
        "sequences": ["LayerNorm(6)", "LayerNorm([5, 6])", "RMSNorm(6)"],
    },
    "Recurrent layers": {
        "sequences": ["RNN(6, 4, batch_first=True)", "LSTM(6, 4, batch_first=True)",
                      "LSTM(6, 4, num_layers=2, dropout=0.5, bidirectional=True, "
                      "batch_first=True)",
                      "LSTM(6, 4, proj_size=2, batch_first=True)", "GRU(6, 4, batch_first=True)"],
        "sequences, time first": ["RNN(6, 4)", "LSTM(6, 4)", "GRU(6, 4)"],
        "rows": ["RNNCell(6, 4)", "LSTMCell(6, 4)", "GRUCell(6, 4)"],
    },
    "Tables": {
        "numbers of rows": ["Embedding(10, 6)", "Embedding(10, 6, padding_idx=0)",
                            "Embedding(10, 6, max_norm=1.0)",
                            "Embedding(10, 6, scale_grad_by_freq=True)",
                            "Embedding(10, 6, sparse=True)",
                            "EmbeddingBag(10, 6)", "EmbeddingBag(10, 6, mode='sum')",
                            "EmbeddingBag(10, 6, mode='max')"],
    },
    "Attention": {
        "three sequences": ["MultiheadAttention(6, 2, batch_first=True)",
                            "MultiheadAttention(6, 2, dropout=0.5, batch_first=True)"],
        "sequences": ["TransformerEncoderLayer(6, 2, 8, batch_first=True)",
                      "TransformerEncoder(TransformerEncoderLayer(6, 2, 8, batch_first=True), 2)"],
        "two sequences": ["TransformerDecoderLayer(6, 2, 8, batch_first=True)",
                          "TransformerDecoder(TransformerDecoderLayer(6, 2, 8, "
                          "batch_first=True), 2)",
                          "Transformer(6, 2, 1, 1, 8, batch_first=True)"],
        "two sequences, time first": ["Transformer(6, 2, 1, 1, 8, dropout=0.0)"],
    },
    "Activations": {
        "rows": ["CELU()", "ELU()", "GELU()", "GLU()", "Hardshrink()", "Hardsigmoid()",
                 "Hardswish()", "Hardtanh()", "LeakyReLU()", "LogSigmoid()", "LogSoftmax(1)",
                 "Mish()", "PReLU()", "PReLU(6)", "RReLU()", "ReLU()", "ReLU(inplace=True)",
                 "ReLU6()", "SELU()", "SiLU()", "Sigmoid()", "Softmax(1)", "Softmin(1)",
                 "Softplus()", "Softshrink()", "Softsign()", "Tanh()", "Tanhshrink()",
                 "Threshold(0.1, 0.5)"],
        "images": ["Softmax2d()"],
        "scores and many classes": ["AdaptiveLogSoftmaxWithLoss(6, 10, [3, 6], head_bias=True)"],
    },
    "Pooling": {
        "lines": ["AdaptiveAvgPool1d(2)", "AdaptiveMaxPool1d(2)", "AvgPool1d(2)", "LPPool1d(2, 2)",
                  "MaxPool1d(2)"],
        "images": ["AdaptiveAvgPool2d(2)", "AdaptiveMaxPool2d(2)", "AvgPool2d(2)",
                   "LPPool2d(2, 2)", "MaxPool2d(2)", "FractionalMaxPool2d(2, output_ratio=0.5)"],
        "volumes": ["AdaptiveAvgPool3d(2)", "AdaptiveMaxPool3d(2)", "AvgPool3d(2)",
                    "LPPool3d(2, 2)", "MaxPool3d(2)", "FractionalMaxPool3d(2, output_ratio=0.5)"],
        "maxima of lines": ["MaxUnpool1d(2)"],
        "maxima of images": ["MaxUnpool2d(2)"],
        "maxima of volumes": ["MaxUnpool3d(2)"],
    },
    "Padding, shapes and dropout": {
        "lines": ["CircularPad1d(1)", "ConstantPad1d(1, 2.0)", "ReflectionPad1d(1)",
                  "ReplicationPad1d(1)", "ZeroPad1d(1)", "Dropout1d()"],
        "images": ["CircularPad2d(1)", "ConstantPad2d(1, 2.0)", "ReflectionPad2d(1)",
                   "ReplicationPad2d(1)", "ZeroPad2d(1)", "Dropout2d()", "FeatureAlphaDropout()",
                   "ChannelShuffle(2)", "PixelShuffle(2)", "PixelUnshuffle(2)", "Unfold(2)",
                   "Upsample(scale_factor=2)", "UpsamplingBilinear2d(scale_factor=2)",
                   "UpsamplingNearest2d(scale_factor=2)", "Flatten()"],
        "volumes": ["CircularPad3d(1)", "ConstantPad3d(1, 2.0)", "ReflectionPad3d(1)",
                    "ReplicationPad3d(1)", "ZeroPad3d(1)", "Dropout3d()"],
        "windows": ["Fold(4, 2)"],
        "rows": ["AlphaDropout()", "Dropout()", "Sequential(Linear(6, 4), Tanh())",
                 "Unflatten(1, (2, 3))"],
        "two rows": ["CosineSimilarity()", "PairwiseDistance()"],
    },
    "Losses": {
        "two rows": ["HuberLoss()", "L1Loss()", "MSELoss()", "MSELoss(reduction='sum')",
                     "PoissonNLLLoss()", "SmoothL1Loss()"],
        "three rows": ["TripletMarginLoss()", "TripletMarginWithDistanceLoss()"],
        "rows and positive rows": ["GaussianNLLLoss()"],
        "rows and signs": ["HingeEmbeddingLoss()", "SoftMarginLoss()"],
        "two rows and signs": ["CosineEmbeddingLoss()"],
        "two rows and signs of each": ["MarginRankingLoss()"],
        "rows and zeros or ones": ["BCEWithLogitsLoss()", "MultiLabelSoftMarginLoss()"],
        "probabilities": ["BCELoss()"],
        "log-probabilities": ["KLDivLoss()", "KLDivLoss(reduction='batchmean')"],
        "scores and classes": ["CrossEntropyLoss()", "CrossEntropyLoss(label_smoothing=0.1)",
                               "MultiMarginLoss()", "NLLLoss()"],
        "scores and many classes": ["LinearCrossEntropyLoss(6, 10)"],
        "scores and sets of classes": ["MultiLabelMarginLoss()"],
        "images of scores and classes": ["CrossEntropyLoss()", "NLLLoss2d()"],
        "scores over time": ["CTCLoss()"],
    },
}  # fmt: skip

WITHOUT_A_ROW: dict[str, str] = {
    "Module": "a base class",
    "Container": "a base class",
    "RNNBase": "a base class",
    "RNNCellBase": "a base class",
    "ModuleDict": "it has no forward pass",
    "ModuleList": "it has no forward pass",
    "ParameterDict": "it has no forward pass",
    "ParameterList": "it has no forward pass",
    "LinearCrossEntropyOptions": "it is no module",
    "SyncBatchNorm": "torch runs it on a GPU alone; it computes over the samples as BatchNorm does",
}
"""Names of `torch.nn` that no module of :data:`MODULES` has."""

# by the name of the inputs: functions that no module above calls
FUNCTIONS: dict[str, list[str]] = {
    "rows": ["celu_(x)", "elu_(x)", "gumbel_softmax(x)", "hardtanh_(x)", "leaky_relu_(x)",
             "normalize(x)", "relu_(x)", "relu6(x)", "rrelu_(x, training=True)",
             "selu_(x)", "threshold_(x, 0.1, 0.5)",
             "one_hot((x > 0).long()) * x[..., None]"],
    "lines": ["pad(x, (1, 2))", "pad(x, (1, 2), mode='reflect')",
              "adaptive_max_pool1d_with_indices(x, 2)[0]"],
    "images": ["interpolate(x, scale_factor=2, mode='bicubic')", "interpolate(x, 5, mode='area')",
               "upsample(x, 5)", "upsample_bilinear(x, 5)", "upsample_nearest(x, 5)",
               "adaptive_max_pool2d_with_indices(x, 2)[0]",
               "fractional_max_pool2d_with_indices(x, 2, output_ratio=(0.5, 0.5))[0]"],
    "volumes": ["adaptive_max_pool3d_with_indices(x, 2)[0]",
                "fractional_max_pool3d_with_indices(x, 2, output_ratio=0.5)[0]"],
    "sequences, time first": ["conv_tbc(x, weight, bias)"],
    "images and places": ["grid_sample(x, y, align_corners=False)"],
    "volumes and places": ["grid_sample(x, y, align_corners=False)"],
    "transformations": ["affine_grid(x, (x.shape[0], 4, 5, 6), align_corners=False)"],
    "attention": ["scaled_dot_product_attention(x, y, z)",
                  "scaled_dot_product_attention(x, y, z, is_causal=True)",
                  "scaled_dot_product_attention(x, y, z, dropout_p=0.5)"],
}  # fmt: skip

FUNCTIONS_WITHOUT_A_ROW: dict[str, str] = {
    "pdist": "it computes the distances between all samples",
    "native_channel_shuffle": "torch has no derivative of it",
}
"""Functions of `torch.nn.functional` that no row calls."""

PARAMETERS: dict[str, tuple[int, ...]] = {"weight": (2, 6, 4), "bias": (4,)}
"""Those that a function of :data:`FUNCTIONS` may name, with their shapes."""


class Function(nn.Module):
    """A module whose forward pass is an expression of functions of `torch.nn.functional`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        for name, shape in PARAMETERS.items():
            if name in text:
                self.register_parameter(name, nn.Parameter(torch.randn(shape)))
        self.function = eval(f"lambda x, y=None, z=None, weight=None, bias=None: {text}", vars(F))

    def forward(self, *arguments: Any) -> Any:
        return self.function(*arguments, **dict(self.named_parameters()))


def _module(text: str) -> nn.Module:
    made: nn.Module = eval(text, vars(nn))
    return made


def modules() -> Iterator[Case]:
    """Yield the rows of modules."""
    for group, by_inputs in MODULES.items():
        for name, texts in by_inputs.items():
            for text in texts:
                yield Case(group, text, partial(_module, text), INPUTS[name])


def functions() -> Iterator[Case]:
    """Yield the rows of functions that no module calls."""
    for name, texts in FUNCTIONS.items():
        for text in texts:
            yield Case("Functions", text, partial(Function, text), INPUTS[name])
