"""Functions and modules that torch's database of ops lacks, by loops and tables.

affine_grid(x)      # F.affine_grid, and the product of each place with the matrix
pool_places(x)      # values and places of maxima, and a search in each window
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune, rnn
from torch.optim import swa_utils
from torch.utils import data

from programs.families import library
from programs.families.library import Program, seeded_row
from programs.families.tools import Row

# --- functions ------------------------------------------------------------------------------------


def _grid(x: Tensor) -> Sequence[Any]:
    """Return the grid of two lines and three columns, a place at a time."""
    matrix = x[:2, :3]
    rows = [
        torch.stack([matrix @ torch.tensor([a, b, 1.0], dtype=x.dtype) for a in (-1.0, 0.0, 1.0)])
        for b in (-1.0, 1.0)
    ]
    return [torch.stack(rows)[None]]


def _windows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the maxima of windows of two along the last dimension, and where each is."""
    flat = x.reshape(-1, x.shape[-1])
    values = [[max(line[i : i + 2]) for i in range(0, x.shape[-1], 2)] for line in flat.tolist()]
    places = [
        [max(range(i, i + 2), key=line.__getitem__) for i in range(0, x.shape[-1], 2)]
        for line in flat.tolist()
    ]
    shape = (*x.shape[:-1], x.shape[-1] // 2)
    return torch.tensor(values, dtype=x.dtype).reshape(shape), torch.tensor(places).reshape(shape)


def _places(x: Tensor) -> Sequence[Any]:
    line, plane, space = x[None], x[None, :, None], x[None, :, None, None]
    found = [
        F.max_pool1d_with_indices(line, [2]),
        F.adaptive_max_pool1d_with_indices(line, [2]),
        F.max_pool2d_with_indices(plane, (1, 2)),
        F.adaptive_max_pool2d_with_indices(plane, (1, 2)),
        F.max_pool3d_with_indices(space, (1, 1, 2)),
        F.adaptive_max_pool3d_with_indices(space, (1, 1, 2)),
    ]
    return [part for pair in found for part in pair]


def _places_by_search(x: Tensor) -> Sequence[Any]:
    shapes = [x[None]] * 2 + [x[None, :, None]] * 2 + [x[None, :, None, None]] * 2
    return [part for one in shapes for part in _windows(one)]


def _unpooled(x: Tensor) -> Sequence[Any]:
    """Return maxima in their places, and zeros elsewhere."""
    values, places = F.max_pool1d(x[None], 2, return_indices=True)
    plane = F.max_pool2d(x[None, :, None], (1, 2), return_indices=True)
    space = F.max_pool3d(x[None, :, None, None], (1, 1, 2), return_indices=True)
    return [
        nn.MaxUnpool1d(2)(values, places),
        nn.MaxUnpool2d((1, 2))(*plane),
        nn.MaxUnpool3d((1, 1, 2))(*space),
    ]


def _unpooled_by_search(x: Tensor) -> Sequence[Any]:
    pairs = x.reshape(3, 2, 2)
    kept = torch.where(pairs == pairs.amax(2, keepdim=True), pairs, 0.0).reshape(3, 4)
    return [kept[None], kept[None, :, None], kept[None, :, None, None]]


def _norms_of_windows(x: Tensor) -> Sequence[Any]:
    y = x.abs()
    return [
        F.lp_pool1d(y[None], 3, 2),
        F.lp_pool2d(y[None, :, None], 3, (1, 2)),
        F.lp_pool3d(y[None, :, None, None], 3, (1, 1, 2)),
    ]


def _norms_by_loop(x: Tensor) -> Sequence[Any]:
    norms = (x.abs() ** 3).reshape(3, 2, 2).sum(2) ** (1 / 3)
    return [norms[None], norms[None, :, None], norms[None, :, None, None]]


def _numbers(x: Tensor) -> Sequence[Any]:
    return [
        torch.fft.fftfreq(5, 0.5),
        torch.fft.rfftfreq(6, 0.5),
        torch.chain_matmul(x, x.t(), x),
        torch.nuclear_norm(x),
        torch.norm_except_dim(x, 2, 0),
        torch.numel(x),
    ]


def _numbers_by_formula(x: Tensor) -> Sequence[Any]:
    return [
        torch.tensor([0, 1, 2, -2, -1]) / 2.5,
        torch.tensor([0, 1, 2, 3]) / 3.0,
        x @ (x.t() @ x),
        torch.linalg.eigvalsh(x @ x.t()).clamp_min(0).sqrt().sum(),
        x.square().sum(1, keepdim=True).sqrt(),
        12,
    ]


_ORDER = (torch.bool, torch.uint8, torch.int8, torch.int64, torch.bfloat16, torch.float16,
          torch.float32, torch.float64, torch.complex64)  # fmt: skip


def _joined(first: int, second: int) -> int:
    """Return the place of the dtype of a sum, by the rules of promotion."""
    low, high = sorted((first, second))
    if (low, high) == (1, 2):  # bytes with and without a sign are numbers of 16 bits
        return -1
    if (low, high) == (4, 5):  # neither half holds the other one
        return 6
    if (low, high) == (7, 8):  # a complex number of the wider parts
        return -1
    return high


def _promoted(x: Tensor) -> Sequence[Any]:
    places = {dtype: place for place, dtype in enumerate(_ORDER)}
    table = [[places.get(torch.promote_types(a, b), -1) for b in _ORDER] for a in _ORDER]
    of_tensors = [
        [
            places.get(torch.result_type(torch.ones(1, dtype=a), torch.ones(1, dtype=b)), -1)
            for b in _ORDER
        ]
        for a in _ORDER
    ]
    casts = [torch.can_cast(torch.float32, torch.int64), torch.can_cast(torch.int64, torch.float16)]
    return [torch.tensor(table), torch.tensor(of_tensors), torch.tensor(casts)]


def _promoted_by_rules(x: Tensor) -> Sequence[Any]:
    places = range(len(_ORDER))
    table = torch.tensor([[_joined(a, b) for b in places] for a in places])
    return [table, table, torch.tensor([False, True])]


# --- modules --------------------------------------------------------------------------------------


def _losses(x: Tensor) -> Sequence[Any]:
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=x.dtype)
    return [
        nn.MarginRankingLoss(0.5)(x[0], x[1], signs),
        nn.CosineEmbeddingLoss(0.2)(x, x.flip(0), torch.tensor([1.0, -1.0, -1.0])),
        nn.BCELoss()(x.sigmoid(), (x > 0).to(x)),
        nn.CTCLoss(reduction="sum")(x.log_softmax(1)[:, None], torch.tensor([[2, 1]]), [3], [2]),
    ]


def _losses_by_formula(x: Tensor) -> Sequence[Any]:
    signs, flipped = [1.0, -1.0, 1.0, -1.0], x.flip(0)
    margins = [max(0.0, -s * float(a - b) + 0.5) for s, a, b in zip(signs, x[0], x[1], strict=True)]
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(x, flipped, strict=True)]
    pairs = [1 - cosines[0], max(0.0, cosines[1] - 0.2), max(0.0, cosines[2] - 0.2)]
    chance = torch.where(x > 0, x.sigmoid(), 1 - x.sigmoid())
    steps = x.softmax(1)
    # the paths to the labels 2, 1 in three steps, with 0 for a step without a label
    paths = [(2, 1, 0), (2, 0, 1), (0, 2, 1), (2, 2, 1), (2, 1, 1)]
    total = sum(float(steps[0, a] * steps[1, b] * steps[2, c]) for a, b, c in paths)
    numbers = [sum(margins) / 4, sum(pairs) / 3, -math.log(total)]
    ranking, cosine, labels = torch.tensor(numbers, dtype=x.dtype)
    return [ranking, cosine, -chance.log().mean(), labels]


def _dropouts(x: Tensor) -> Sequence[Any]:
    """Return whether a dropout passes all on in eval mode and with p = 0, whether it drops whole
    channels, and whether half of them."""
    kinds: list[Any] = [
        nn.Dropout1d,
        nn.Dropout2d,
        nn.Dropout3d,
        nn.AlphaDropout,
        nn.FeatureAlphaDropout,
    ]
    found = []
    for kind, rank in zip(kinds, (1, 2, 3, 1, 2), strict=True):
        wide = torch.ones(40, 20, *[3] * rank, dtype=x.dtype)
        passed = torch.equal(kind(0.5).eval()(wide), wide) and torch.equal(kind(0.0)(wide), wide)
        channels = kind(0.5)(wide).flatten(2)
        whole = bool((channels == channels[..., :1]).all())
        share = (channels[..., 0] == channels.min()).double().mean().item()
        found.append([passed, whole, abs(share - 0.5) < 0.11])
    return [torch.tensor(found)]


def _updated_norm(x: Tensor) -> Sequence[Any]:
    """Return the statistics of a norm after a pass over two batches."""
    model: Any = nn.Sequential(nn.BatchNorm1d(4)).double()
    model(x * 100)
    swa_utils.update_bn([x, x * 3], model)
    return [model[0].running_mean, model[0].running_var, model[0].num_batches_tracked]


def _old_norms(x: Tensor) -> Sequence[Any]:
    """Return the weights of layers with the older forms of norms, and without them again."""
    first: Any = nn.Linear(4, 3).double()
    first.weight = nn.Parameter(x.clone())
    first = nn.utils.weight_norm(first)
    shown = first.weight.detach().clone()
    with torch.no_grad():
        first.weight_g.mul_(2)
    first = nn.utils.remove_weight_norm(first)
    second: Any = nn.Linear(4, 3).double()
    second.weight = nn.Parameter(x.clone())
    second = nn.utils.spectral_norm(second, n_power_iterations=200)
    second(x)
    second = nn.utils.remove_spectral_norm(second)
    return [shown, first.weight, second.weight]


def _old_norms_by_formula(x: Tensor) -> Sequence[Any]:
    return [x, 2 * x, x / torch.linalg.eigvalsh(x @ x.t()).max().sqrt()]


def _masks(x: Tensor) -> Sequence[Any]:
    """Return weights of two layers that are pruned together, and of one by a mask."""
    layers = [nn.Linear(4, 3).double() for _ in range(3)]
    for place, layer in enumerate(layers):
        layer.weight = nn.Parameter(x * (place + 1))
    pairs = [(layer, "weight") for layer in layers[:2]]
    prune.global_unstructured(pairs, prune.L1Unstructured, amount=5)
    prune.custom_from_mask(layers[2], "weight", x > 0)
    kept = [layer.weight.detach().clone() for layer in layers]
    prune.random_structured(layers[2], "weight", 1, 1)
    columns = (layers[2].weight == 0).all(0).sum() >= 1
    return [*kept, columns, prune.is_pruned(layers[0])]


def _masks_by_rank(x: Tensor) -> Sequence[Any]:
    both = torch.cat([x.flatten(), 2 * x.flatten()])
    both[both.abs().argsort()[:5]] = 0
    return [*both.reshape(2, 3, 4), torch.where(x > 0, 3 * x, 0.0), True, True]


def _tools(x: Tensor) -> Sequence[Any]:
    leaves = [x.clone().requires_grad_(), x[0].clone().requires_grad_()]
    leaves[0].grad, leaves[1].grad = x * 2, x[0] * 2
    nn.utils.clip_grads_with_norm_(leaves, 1.0, torch.tensor(4.0 - 1e-6, dtype=x.dtype))
    chained: Any = data.ChainDataset([_Counted(2), _Counted(3)])
    lengths = torch.tensor([2, 4, 1])
    state, _ = torch.func.stack_module_state([_filled(x), _filled(x + 1)])
    return [
        leaves[0].grad, leaves[1].grad, torch.tensor(list(chained)),
        rnn.invert_permutation(torch.tensor([2, 0, 1])), *rnn.unpad_sequence(x, lengths, True),
        state["weight"], data.default_convert([1, 2.5])[1],
    ]  # fmt: skip


class _Counted(data.IterableDataset[int]):
    """The numbers below a limit."""

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __iter__(self) -> Any:
        return iter(range(self.limit))


def _filled(x: Tensor) -> nn.Module:
    layer = nn.Linear(4, 3).double()
    layer.weight = nn.Parameter(x.clone())
    return layer


def _tools_by_definition(x: Tensor) -> Sequence[Any]:
    return [
        x / 2, x[0] / 2, torch.tensor([0, 1, 0, 1, 2]), torch.tensor([1, 2, 0]), x[0, :2], x[1],
        x[2, :1], torch.stack([x, x + 1]), 2.5,
    ]  # fmt: skip


ROWS: dict[str, tuple[Program, Program]] = {
    "affine_grid": (lambda x: [F.affine_grid(x[None, :2, :3], [1, 1, 2, 3], True)], _grid),
    "pool_places": (_places, _places_by_search),
    "unpooled": (_unpooled, _unpooled_by_search),
    "norms_of_windows": (_norms_of_windows, _norms_by_loop),
    "numbers": (_numbers, _numbers_by_formula),
    "promoted": (_promoted, _promoted_by_rules),
    "losses": (_losses, _losses_by_formula),
    "dropouts": (
        _dropouts,
        lambda x: [torch.tensor([[True] * 3] * 3 + [[True, False, True], [True] * 3])],
    ),
    "updated_norm": (
        _updated_norm, lambda x: [2 * x.mean(0), 5 * x.var(0), torch.tensor(2)]
    ),
    "old_norms": (_old_norms, _old_norms_by_formula),
    "masks": (_masks, _masks_by_rank),
    "tools": (_tools, _tools_by_definition),
}  # fmt: skip
"""A program and its definition, by the name of the row."""

ALL: dict[str, Row] = {name: seeded_row(*pair) for name, pair in ROWS.items()}
globals().update(ALL)

samples = library.samples
