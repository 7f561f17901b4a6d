"""Tools around modules, each with its definition: initial numbers, norms of gradients, fused
layers, packed sequences, pruning, samplers.

    fuse_conv_bn(x)          # a convolution and a norm as one layer: the same results
    kaiming_normal(x)        # moments of 40,000 draws: those of the formula

Draws have seeds, and a moment of n draws is compared within six of its standard deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn import init
from torch.nn.utils import fusion, parametrizations, parametrize, prune, rnn
from torch.optim import swa_utils
from torch.utils import data

from programs.families.tools import Results, Row

WIDE = 200  # rows and columns of a matrix of draws


Program = Callable[[Tensor], Sequence[Any]]


def seeded_row(program: Program, definition: Program) -> Row:
    """Return a row of a matrix `x`, whose programs have the same draws each time."""

    def seeded(x: Tensor) -> Results:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            return tuple(torch.as_tensor(one).detach() for one in program(x))

    return Row(seeded, lambda x: tuple(torch.as_tensor(one).detach() for one in definition(x)))


# --- initial numbers ------------------------------------------------------------------------------


def _drawn(fill: Callable[[Tensor], object], low: float, high: float, deviation: float) -> Row:
    """Return a row of draws: their bounds hold, and mean and variance are as they should be."""

    def program(x: Tensor) -> Results:
        drawn = torch.empty(WIDE, WIDE * 2, dtype=torch.float64)
        fill(drawn)
        count = math.sqrt(drawn.numel())
        mean_is_near = abs(drawn.mean().item()) < 6 * deviation / count
        spread_is_near = abs(drawn.std().item() / deviation - 1) < 6 / count
        inside = bool(((drawn >= low) & (drawn <= high)).all())
        # draws come near to finite ends
        reached = math.isinf(high) or drawn.max().item() > high - 0.01 * (high - low)
        return x, mean_is_near, spread_is_near, inside, reached

    return seeded_row(program, lambda x: (x, True, True, True, True))


def _uniform(bound: float, fill: Callable[[Tensor], object]) -> Row:
    return _drawn(fill, -bound, bound, bound / math.sqrt(3))


def _normal(deviation: float, fill: Callable[[Tensor], object]) -> Row:
    return _drawn(fill, -math.inf, math.inf, deviation)


_FAN_IN, _FAN_OUT = WIDE * 2, WIDE
# the variance of a normal number between -1 and 1
_CUT = 1 - 2 * math.exp(-0.5) / math.sqrt(2 * math.pi) / math.erf(1 / math.sqrt(2))

DRAWS: dict[str, Row] = {
    "xavier_uniform": _uniform(
        2 * math.sqrt(6 / (_FAN_IN + _FAN_OUT)), lambda w: init.xavier_uniform_(w, 2.0)
    ),
    "xavier_normal": _normal(
        2 * math.sqrt(2 / (_FAN_IN + _FAN_OUT)), lambda w: init.xavier_normal_(w, 2.0)
    ),
    "kaiming_uniform": _uniform(
        math.sqrt(6 / (1 + 0.25) / _FAN_IN), lambda w: init.kaiming_uniform_(w, a=0.5)
    ),
    "kaiming_normal": _normal(
        math.sqrt(2) / math.sqrt(_FAN_OUT),
        lambda w: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"),
    ),
    "truncated_normal": _drawn(
        lambda w: init.trunc_normal_(w, 0.0, 2.0, -2.0, 2.0), -2.0, 2.0, 2 * math.sqrt(_CUT)
    ),
    "uniform": _uniform(0.3, lambda w: init.uniform_(w, -0.3, 0.3)),
    "normal": _normal(0.3, lambda w: init.normal_(w, 0.0, 0.3)),
}


def _gram(matrix: Tensor) -> Any:
    """Return the products of the rows, or of the columns if these are fewer."""
    return matrix @ matrix.t() if matrix.shape[0] <= matrix.shape[1] else matrix.t() @ matrix


def _dirac() -> Tensor:
    """Return the kernel of two groups that passes the first two channels of each on."""
    kernel = torch.zeros(4, 3, 3, 3)
    for place in range(4):
        kernel[place, place % 2, 1, 1] = 1
    return kernel


def _gains() -> Results:
    names: list[Any] = ["linear", "conv2d", "sigmoid", "tanh", "relu", "selu"]
    found = [init.calculate_gain(name) for name in names]
    return torch.tensor([*found, init.calculate_gain("leaky_relu", 0.5)]), torch.zeros(1)


INITIAL: dict[str, Row] = {
    "orthogonal": seeded_row(
        lambda x: [
            _gram(init.orthogonal_(torch.empty(shape, dtype=torch.float64), 2.0).flatten(1))
            for shape in ((3, 5), (5, 3), (4, 2, 2))
        ],
        lambda x: [4 * torch.eye(n, dtype=torch.float64) for n in (3, 3, 4)],
    ),
    "sparse": seeded_row(
        lambda x: [(init.sparse_(torch.empty(10, 4), 0.25) == 0).sum(0)],
        lambda x: [torch.full((4,), 3)],  # 2.5 rows, and no fewer
    ),
    "dirac": seeded_row(lambda x: [init.dirac_(torch.empty(4, 3, 3, 3), 2)], lambda x: [_dirac()]),
    "unit_matrix": seeded_row(
        lambda x: [init.eye_(torch.empty(3, 4))], lambda x: [torch.eye(3, 4)]
    ),
    "constants": seeded_row(
        lambda x: [init.constant_(x.clone(), 0.5), init.ones_(x.clone()), init.zeros_(x.clone())],
        lambda x: [torch.full_like(x, 0.5), torch.ones_like(x), torch.zeros_like(x)],
    ),
    "gains": seeded_row(
        lambda x: _gains(),
        lambda x: (
            torch.tensor([1, 1, 1, 5 / 3, math.sqrt(2), 0.75, math.sqrt(2 / 1.25)]),
            torch.zeros(1),
        ),
    ),
}


# --- gradients and parameters ---------------------------------------------------------------------


def _leaves(x: Tensor) -> list[Tensor]:
    """Return three leaves, of which one has no gradient."""
    leaves = [torch.zeros_like(y).requires_grad_() for y in (x, x[0], x)]
    leaves[0].grad, leaves[1].grad = x * 3, x[0] - 1
    return leaves


def _norm_of(x: Tensor, kind: float) -> Tensor:
    """Return the norm of the gradients of `_leaves` by its definition."""
    entries = torch.cat([(x * 3).flatten(), x[0] - 1]).abs()
    if math.isinf(kind):
        return entries.max()
    return (entries**kind).sum() ** (1 / kind)


def _clipped(kind: float, foreach: bool | None) -> Row:
    def program(x: Tensor) -> Results:
        leaves = _leaves(x)
        norm = nn.utils.clip_grad_norm_(leaves, 1.5, kind, foreach=foreach)
        return norm, *(leaf.grad for leaf in leaves[:2])

    def definition(x: Tensor) -> Results:
        norm = _norm_of(x, kind)
        factor = min(1.0, 1.5 / (float(norm) + 1e-6))
        return norm, x * 3 * factor, (x[0] - 1) * factor

    return seeded_row(program, definition)


def _totals(x: Tensor) -> Sequence[Tensor]:
    found = [leaf.grad for leaf in _leaves(x)[:2] if leaf.grad is not None]
    return [nn.utils.get_total_norm(found, kind) for kind in (1.0, 2.0, 3.0, math.inf)]


def _clipped_by_value(x: Tensor) -> Results:
    leaves = _leaves(x)
    nn.utils.clip_grad_value_(leaves, 0.7)
    return tuple(leaf.grad for leaf in leaves[:2])


def _to_vector_and_back(x: Tensor) -> Results:
    leaves = [x.clone(), x[0].clone(), x.t().clone()]
    vector = nn.utils.parameters_to_vector(leaves)
    nn.utils.vector_to_parameters(vector * 2, leaves)
    return vector, *leaves


def _averaged(average: Any, x: Tensor) -> Results:
    """Return the averages of a parameter over four steps, and of a buffer."""
    module: Any = nn.BatchNorm1d(4).double()
    averages: Any = swa_utils.AveragedModel(module, multi_avg_fn=average, use_buffers=True)
    with torch.no_grad():
        for step in range(1, 5):
            module.weight.copy_(x[0] * step)
            module.running_mean.copy_(x[1] * step)
            averages.update_parameters(module)
    return averages.module.weight, averages.module.running_mean


GRADIENTS: dict[str, Row] = {
    **{f"clipped_{name}": _clipped(kind, False) for name, kind in
       (("1", 1.0), ("2", 2.0), ("3", 3.0), ("inf", math.inf))},
    **{f"clipped_{name}_foreach": _clipped(kind, True) for name, kind in
       (("1", 1.0), ("2", 2.0), ("3", 3.0), ("inf", math.inf))},
    "total_norms": seeded_row(
        _totals, lambda x: [_norm_of(x, kind) for kind in (1.0, 2.0, 3.0, math.inf)]
    ),
    "clipped_by_value": seeded_row(
        _clipped_by_value,
        lambda x: ((x * 3).clamp(-0.7, 0.7), (x[0] - 1).clamp(-0.7, 0.7)),
    ),
    "to_vector": seeded_row(
        _to_vector_and_back,
        lambda x: (torch.cat([x.flatten(), x[0], x.t().flatten()]), 2 * x, 2 * x[0], 2 * x.t()),
    ),
    "averages": seeded_row(
        lambda x: _averaged(swa_utils.get_swa_multi_avg_fn(), x), lambda x: (x[0] * 2.5, x[1] * 2.5)
    ),
    "moving_averages": seeded_row(
        lambda x: _averaged(swa_utils.get_ema_multi_avg_fn(0.5), x),
        lambda x: (x[0] * 3.125, x[1] * 3.125),  # 1/8 + 2/8 + 3/4 + 4/2
    ),
}  # fmt: skip


# --- layers ---------------------------------------------------------------------------------------


def _normed(norm: Any) -> Any:
    """Return a norm in eval mode whose numbers are no ones and zeros."""
    with torch.no_grad():
        for place, one in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
            one.copy_(torch.arange(1.0, 1 + one.numel()).mul(0.3 + place / 5).sin().abs() + 0.1)
    return norm.eval()


def _fused_conv(
    transposed: bool,
) -> tuple[Program, Program]:
    kind: Any = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(2, 3, 2, bias=False).double().eval()
    norm = _normed(nn.BatchNorm2d(3).double())

    def images(x: Tensor) -> Tensor:
        return x.repeat(2, 2).reshape(2, 2, 3, 4)

    def program(x: Tensor) -> Results:
        return (fusion.fuse_conv_bn_eval(layer, norm, transposed)(images(x)),)

    return program, lambda x: (norm(layer(images(x))),)


def _fused_linear() -> tuple[Program, Program]:
    layer, norm = nn.Linear(4, 3).double().eval(), _normed(nn.BatchNorm1d(3).double())
    return (
        lambda x: (fusion.fuse_linear_bn_eval(layer, norm)(x),),
        lambda x: (norm(layer(x)),),
    )


class Doubled(nn.Module):
    """A parametrization: twice what is stored."""

    def forward(self, x: Tensor) -> Any:
        return 2 * x

    def right_inverse(self, x: Tensor) -> Any:
        return x / 2


def _parametrized(x: Tensor) -> Results:
    layer: Any = nn.Linear(4, 3).double()
    parametrize.register_parametrization(layer, "weight", Doubled())
    parametrize.register_parametrization(layer, "weight", Doubled())
    layer.weight = x
    stored = layer.parametrizations.weight.original.detach().clone()
    shown = layer.weight.detach().clone()
    parametrize.remove_parametrizations(layer, "weight")
    return stored, shown, layer.weight, parametrize.is_parametrized(layer)


def _weight_norm(x: Tensor) -> Results:
    layer: Any = parametrizations.weight_norm(nn.Linear(4, 3).double(), dim=0)
    layer.weight = x
    with torch.no_grad():
        layer.parametrizations.weight.original0.mul_(3)
    return (layer.weight,)


def _spectral_norm(x: Tensor) -> Results:
    layer: Any = parametrizations.spectral_norm(nn.Linear(4, 3).double(), n_power_iterations=200)
    with torch.no_grad():
        layer.parametrizations.weight.original.copy_(x)
    layer.weight  # noqa: B018  (a read of the weight takes the steps)
    return (layer.eval().weight,)


def _orthogonal_weight(x: Tensor) -> Results:
    layer: Any = parametrizations.orthogonal(nn.Linear(4, 3).double())
    return (layer.weight @ layer.weight.t(),)


def _pruned(x: Tensor) -> Results:
    """Return weights without the two least ones, then without a row of the rest."""
    layer = nn.Linear(4, 3).double()
    with torch.no_grad():
        layer.weight.copy_(x)
    prune.l1_unstructured(layer, "weight", 2)
    first = layer.weight.detach().clone()
    prune.ln_structured(layer, "weight", 1, 2, 0)
    second = layer.weight.detach().clone()
    prune.remove(layer, "weight")
    return first, second, layer.weight


def _pruned_by_definition(x: Tensor) -> Results:
    least = x.abs().flatten().argsort()[:2]
    first = x.flatten().clone()
    first[least] = 0
    first = first.reshape(x.shape)
    second = first.clone()
    second[x.square().sum(1).mul(1).argmin()] = 0
    return first, second, second


LAYERS: dict[str, Row] = {
    "fuse_conv_bn": seeded_row(*_fused_conv(False)),
    "fuse_transposed_conv_bn": seeded_row(*_fused_conv(True)),
    "fuse_linear_bn": seeded_row(*_fused_linear()),
    "parametrized": seeded_row(_parametrized, lambda x: (x / 4, x, x, False)),
    "weight_norm": seeded_row(_weight_norm, lambda x: (3 * x,)),
    "spectral_norm": seeded_row(
        _spectral_norm, lambda x: (x / torch.linalg.eigvalsh(x @ x.t()).max().sqrt(),)
    ),
    "orthogonal_weight": seeded_row(_orthogonal_weight, lambda x: (torch.eye(3, dtype=x.dtype),)),
    "pruned": seeded_row(_pruned, _pruned_by_definition),
    "gumbel_softmax": seeded_row(
        lambda x: (
            F.gumbel_softmax(x, 0.5, hard=True).sum(1),
            F.gumbel_softmax(x, 0.5).sum(1),
            _is_near(F.gumbel_softmax(x[0].expand(40_000, 4), hard=True).mean(0), x[0].softmax(0)),
        ),
        lambda x: (torch.ones(3, dtype=x.dtype), torch.ones(3, dtype=x.dtype), True),
    ),
}


def _is_near(shares: Tensor, expected: Tensor) -> bool:
    """Return whether shares of 40,000 draws are within six standard deviations."""
    return bool(
        ((shares - expected).abs() <= 6 * (expected * (1 - expected) / 40_000).sqrt()).all()
    )


# --- sequences and samplers -----------------------------------------------------------------------


def _sequences(x: Tensor) -> list[Tensor]:
    """Return sequences of 2, 4 and 1 numbers."""
    return [x[0, :2], x[1], x[2, :1]]


def _packed(x: Tensor) -> Results:
    packed = rnn.pack_sequence(_sequences(x), enforce_sorted=False)
    whole, lengths = rnn.pad_packed_sequence(packed, batch_first=True, padding_value=0.5)
    parts = rnn.unpack_sequence(packed)
    left = rnn.pad_sequence(_sequences(x), batch_first=True, padding_side="left")
    return packed.data, packed.batch_sizes, whole, lengths, *parts, left


def _packed_by_definition(x: Tensor) -> Results:
    a, b, c = _sequences(x)
    half = torch.full((4,), 0.5, dtype=x.dtype)
    whole = torch.stack([torch.cat([one, half])[:4] for one in (a, b, c)])
    left = torch.stack([torch.cat([0 * half, one])[-4:] for one in (a, b, c)])
    steps = torch.stack([b[0], a[0], c[0], b[1], a[1], b[2], b[3]])
    return steps, torch.tensor([3, 2, 1, 1]), whole, torch.tensor([2, 4, 1]), a, b, c, left


def _places(sampler: Any) -> Tensor:
    return torch.tensor([place for batch in sampler for place in _listed(batch)])


def _listed(batch: Any) -> list[int]:
    return list(batch) if isinstance(batch, (list, tuple)) else [int(batch)]


def _sampled(x: Tensor) -> Results:
    seven: Any = range(7)
    generator = torch.Generator().manual_seed(3)
    shuffled = _places(data.RandomSampler(seven, generator=generator))
    weighted = data.WeightedRandomSampler([0.0, 1.0, 0.0, 2.0, 1.0], 3, replacement=False)
    parts = [_places(data.DistributedSampler(seven, 3, rank, shuffle=False)) for rank in range(3)]
    split: Any = data.random_split(seven, [0.5, 0.5], torch.Generator().manual_seed(1))
    return (
        _places(data.SequentialSampler(seven)),
        shuffled.sort().values,
        _places(data.BatchSampler(data.SequentialSampler(seven), 3, True)),
        _places(data.SubsetRandomSampler([4, 2, 6])).sort().values,
        _places(weighted).sort().values,
        torch.stack(parts),
        torch.tensor([len(part) for part in split]),
        torch.tensor(sorted(place for part in split for place in part)),
    )


def _sampled_by_definition(x: Tensor) -> Results:
    every = torch.arange(7)
    # as many places for each of three as for the others: the first ones come again
    rounds = torch.tensor([[0, 3, 6], [1, 4, 0], [2, 5, 1]])
    return (
        every, every, every[:6], torch.tensor([2, 4, 6]), torch.tensor([1, 3, 4]), rounds,
        torch.tensor([4, 3]), every,
    )  # fmt: skip


def _collated(x: Tensor) -> Results:
    rows = [{"a": x[i], "b": (i, float(i))} for i in range(3)]
    batch = data.default_collate(rows)
    both: Any = data.ConcatDataset([data.TensorDataset(x), data.TensorDataset(x * 2)])
    rows_of: Any = data.StackDataset
    stacked = rows_of(x, x + 1)
    chosen: Any = data.Subset(both, [0, 4, -1 % len(both)])
    return (
        batch["a"], *batch["b"], both[-1][0], torch.stack([one[0] for one in chosen]),
        torch.stack(stacked[1]),
        *(part for (part,) in data.DataLoader(data.TensorDataset(x), 2)),
    )  # fmt: skip


SEQUENCES: dict[str, Row] = {
    "packed": seeded_row(_packed, _packed_by_definition),
    "sampled": seeded_row(_sampled, _sampled_by_definition),
    "collated": seeded_row(
        _collated,
        lambda x: (
            x, torch.arange(3), torch.arange(3, dtype=torch.float64), x[2] * 2,
            torch.stack([x[0], x[1] * 2, x[2] * 2]), torch.stack([x[1], x[1] + 1]), x[:2], x[2:],
        ),
    ),
}  # fmt: skip


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a matrix of three rows."""
    return [{"args": [{"shape": [3, 4]}]}]


globals().update({**DRAWS, **INITIAL, **GRADIENTS, **LAYERS, **SEQUENCES})
