"""Compositions of ops, for rules that no other row of the matrix reaches: behind a sparse tensor,
in an in-place form, or at values that samples do not have.

Each takes and returns dense tensors. Those that take no sparsity pattern have their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from programs.tools import refused


def ctc_of_log_softmax(
    x: Tensor, targets: Tensor, input_lengths: Tensor, target_lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """CTC of normalized probabilities, of which alone its gradient is that of the loss. x (T, N,
    C), targets (N, S); results (N,), by ATen's overload for lengths (N,) and by the one for
    numbers, where all of T and S counts."""
    log_probs, (steps, count, _), longest = x.log_softmax(-1), x.shape, targets.shape[1]
    by_tensors = torch.ops.aten._ctc_loss.Tensor(log_probs, targets, input_lengths, target_lengths)[
        0
    ]
    return by_tensors, torch.ops.aten._ctc_loss.default(
        log_probs, targets, [steps] * count, [longest] * count
    )[0]


def coalesced_values(values: Tensor) -> Tensor:
    """What a sparse tensor of `values` (4,), of which two share a place, holds after
    adding these up: (3,)."""
    indices = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 1]], device=values.device)
    return (
        torch.sparse_coo_tensor(indices, values, (3, 4), check_invariants=True).coalesce().values()
    )


def _sparse(values: Tensor) -> Tensor:
    """A sparse 3 × 4 matrix of four `values` (4,)."""
    indices = torch.tensor([[0, 0, 1, 2], [1, 3, 2, 0]], device=values.device)
    return torch.sparse_coo_tensor(indices, values, (3, 4), check_invariants=True).coalesce()


def sparse_product(values: Tensor, dense: Tensor) -> Tensor:
    """A sparse 3 × 4 matrix of four `values` times a dense one (4, K): (3, K)."""
    return _sparse(values) @ dense


def sparse_times_sparse(left: Tensor, right: Tensor) -> Tensor:
    """The product of two sparse 3 × 4 matrices of four values each, the second
    transposed: (3, 3)."""
    product: Tensor = torch.sparse.mm(_sparse(left), _sparse(right).t())
    return product.to_dense()


def sparse_product_plus(x: Tensor, values: Tensor, dense: Tensor) -> Tensor:
    """x (3, K) / 2 plus twice a sparse 3 × 4 matrix of four `values` times a dense
    one (4, K): (3, K)."""
    product: Tensor = torch.sparse.addmm(x, _sparse(values), dense, beta=0.5, alpha=2)
    return product


def sparse_softmaxes(values: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax and its logarithm over the places of four `values` in each row of a sparse
    matrix: (3, 4) each."""
    x = _sparse(values)
    return torch.sparse.softmax(x, 1).to_dense(), torch.sparse.log_softmax(x, 1).to_dense()


def sparse_sums(values: Tensor) -> tuple[Tensor, Tensor]:
    """The sums over the rows and over the columns of a sparse 3 × 4 matrix of four
    `values`: (4,) and (3,)."""
    x = _sparse(values)
    return torch.sparse.sum(x, 0).to_dense(), torch.sparse.sum(x, 1).to_dense()


def masked_by_sparse(x: Tensor) -> Tensor:
    """The diagonal of x (N, M), zero elsewhere."""
    pattern = torch.eye(*x.shape, dtype=x.dtype, device=x.device).to_sparse()
    return x.sparse_mask(pattern).to_dense()


def sampled_product(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x / 2 + a @ b where the lower triangle of x (N, N) is, zero elsewhere."""
    product: Tensor = torch.sparse.sampled_addmm(x.tril().to_sparse_csr(), a, b, beta=0.5)
    return product.to_dense()


def overwritten_by_coins(x: Tensor) -> Tensor:
    """x plus a draw of zeros and ones, which forgets what it is written over."""
    return x.mul(2).bernoulli_(0.25) + x


def overwritten_by_normal(x: Tensor) -> Tensor:
    """x plus a normal draw, which forgets what it is written over."""
    return x.mul(2).normal_() + x


def packed_rows(x: Tensor) -> Tensor:
    """The rows of three sequences x (4, 3, K) of lengths 4, 2 and 1 that exist at
    each step: (7, K)."""
    rows: Tensor = torch.ops.aten._pack_padded_sequence.default(x, torch.tensor([4, 2, 1]), False)[
        0
    ]
    return rows


def averages_of_zeros(x: Tensor) -> Tensor:
    """Averages of blocks of x (N, C, H, W), every second column of which is set to zero: (N,
    C, H / 2, W / 2)."""
    return torch.nn.functional.avg_pool2d(x * (torch.arange(x.shape[-1], device=x.device) % 2), 2)


def reciprocal_of_infinity(x: Tensor) -> Tensor:
    """1 / x (N, M), but 0, with a derivative of 0, on the diagonal, where infinity is added to
    x."""
    infinity = torch.zeros(x.shape, dtype=x.dtype, device=x.device).fill_diagonal_(torch.inf)
    return (x + infinity).reciprocal()


def padded_targets(x: Tensor) -> Tensor:
    """Multilabel margins of x (N, C), C at least 3, whose targets end with a -1 before the last
    of them: (N,)."""
    ends = torch.full((x.shape[1],), 0, dtype=torch.int64, device=x.device)
    ends[0], ends[1] = 2, -1
    targets = ends.expand(x.shape)
    return torch.nn.functional.multilabel_margin_loss(x, targets, reduction="none")


def svd_of_triangle(x: Tensor) -> tuple[Tensor, Tensor]:
    """Singular values (N,) of the lower triangle of x (N, N), and the squares of its left vectors
    (N, N), which have no sign to choose."""
    u, s, _ = torch.linalg.svd(x.tril())
    return s, u * u


def written_through_detach(x: Tensor) -> Tensor:
    """(2x + 1)², where the engine does not see the addition: its derivative is 4 (2x + 1)."""
    b = x * 2
    b.detach().add_(1)
    return b * b


def written_without_grad(x: Tensor) -> Tensor:
    """As :func:`written_through_detach`, but the write is under ``no_grad``."""
    b = x * 2
    with torch.no_grad():
        b.add_(1)
    return b * b


def written_overlapping(x: Tensor) -> Tensor:
    """The sum of x (N, K) added to a view that shows each row but the first and the last one
    twice."""
    y = x * 1
    y.unfold(0, 2, 1).add_(x.sum())
    return y.sin()


def squared_norm(x: Tensor) -> Tensor:
    """The square of the norm, whose second derivative is 2 at 0 too."""
    norm: Tensor = torch.linalg.vector_norm(x)
    return norm * norm


def lu_solve_beside_one(a: Tensor, b: Tensor) -> Tensor:
    """Solutions for matrices a (N, K, K) and right sides b (N, M, K), where the factors have a
    dimension of size 1 in place of M."""
    factors, pivots = torch.linalg.lu_factor(a)
    n, k = pivots.shape
    solved: Tensor = torch.linalg.lu_solve(
        factors.reshape(n, 1, k, k), pivots.reshape(n, 1, k), b[..., None]
    )
    return solved[..., 0]


def plus_zeros(x: Tensor) -> Tensor:
    """1 / (⌈x⌉ + 0), where the sum of two zeros of different signs is 0."""
    return (x.ceil() + torch.zeros_like(x)).reciprocal()


def times_itself(x: Tensor) -> Tensor:
    """x · x, as a write of the product over its own factors."""
    y = x.clone()
    return y.mul_(y)


def combined_with_itself(x: Tensor) -> tuple[Tensor, ...]:
    """x + x², the angle of (x, x), |x|·√2, x·log x and x to the power x, each written over x."""
    return tuple(write(x.clone()) for write in _OVER_ITSELF)


_OVER_ITSELF: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda y: y.addcmul_(y, y),
    lambda y: y.atan2_(y),
    lambda y: y.hypot_(y),
    lambda y: y.xlogy_(y),
    lambda y: y.pow_(y),
)


def times_written_constant(x: Tensor) -> Tensor:
    """x (n,) times a vector that is made inside: zeros, and through views of it a 2 in the first
    place and ones from the third on."""
    factor = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
    factor[0] = 2
    factor[2:].add_(1)
    return x * factor


def answers_of_rows(x: Tensor) -> tuple[Tensor, ...]:
    """Whether some, and whether all, of each row of sin(8 x) are positive, for x (N, M); and its
    elements in order, with their places.

    Other multiples of x, of which a batch is made, have other answers.
    """
    y = (8 * x).sin()
    values, places = y.flatten().sort(stable=True)
    return (y > 0).any(1), (y > 0).all(1), (y > 0).any(0), values, places


def scattered_ones(index: Tensor) -> Tensor:
    """Ones at `index` (N,) in a vector of three zeros, which is made inside."""
    return torch.zeros(3, device=index.device).scatter(0, index, 1.0)


def gelu_backward_at_zero(g: Tensor, x: Tensor) -> Tensor:
    """The gradient of GELU by its kernel, at the positive part of x and from that of a cotangent g.
    Both have zeros."""
    found: Tensor = torch.ops.aten.gelu_backward.default(g * (g > 0), x * (x > 0))
    return found


def log_softmax_backward(g: Tensor, logarithms: Tensor) -> Tensor:
    """The gradient of log_softmax along dimension 1 by its kernel, from a cotangent g and the
    result, both (N, M)."""
    found: Tensor = torch.ops.aten._log_softmax_backward_data.default(g, logarithms, 1, g.dtype)
    return found


def complex_copy(x: Tensor) -> Tensor:
    """Complex numbers of a copy of pairs x (N, 2), which lie side by side as the op asks for."""
    found: Tensor = torch.ops.aten.view_as_complex_copy.default(
        x.clone(memory_format=torch.contiguous_format)
    )
    return found


def beside_zeros(x: Tensor) -> tuple[Tensor, Tensor]:
    """Twice x, and zeros like it that no derivative passes: a row of zeros alone
    would say nothing."""
    return 2 * x, torch.ops.aten.zero.default(x)


# --- what samples of OpInfo do not have: factors that keep a size, exponents and sources of another


def resized_lines(x: Tensor) -> tuple[Tensor, ...]:
    """x (N, C, 3) by nearest at the factors 1.3, which keeps the size, and 2.3, which doubles it;
    and the same of x as a volume."""
    line, volume = x, x[..., None, None].expand(*x.shape, 2, 2).contiguous()
    resize = torch.nn.functional.interpolate
    return tuple(
        resize(y, scale_factor=factor, mode="nearest")
        for y in (line, volume)
        for factor in (1.3, 2.3)
    )


def resized_images(x: Tensor) -> tuple[Tensor, ...]:
    """Images x (N, C, 3, 3) at the factor 1.3, which keeps the size: bicubic, with and without
    antialias, and bilinear with it."""
    resize = torch.nn.functional.interpolate
    return tuple(
        resize(x, scale_factor=1.3, mode=mode, antialias=smooth) for mode, smooth in _RESIZES
    )


_RESIZES = (("bicubic", False), ("bicubic", True), ("bilinear", True))


def resized_to_nearest(x: Tensor) -> Tensor:
    """Images x (N, C, 3, 3) by nearest at the factor 1.3, which keeps the size."""
    return torch.nn.functional.interpolate(x, scale_factor=1.3, mode="nearest")


def by_powers_of_two(x: Tensor) -> Tensor:
    """x (4,) times 2, 1/4, 1 and 1/8, by integers as exponents."""
    return torch.ldexp(x, torch.tensor([1, -2, 0, -3], device=x.device))


def multiplied_at_places(x: Tensor, source: Tensor) -> Tensor:
    """x (3,) with its first element multiplied by the first two of source (3,), and the last
    one by the third."""
    return torch.scatter_reduce(x, 0, torch.tensor([0, 0, 2], device=x.device), source, "prod")


def scattered_beginnings(x: Tensor, source: Tensor) -> tuple[Tensor, ...]:
    """The first two elements of source (3,), put, added to and multiplied with the
    last two of x (3,)."""
    places = torch.tensor([1, 2], device=x.device)
    return (
        x.scatter(0, places, source),
        x.scatter_add(0, places, source),
        *(x.scatter_reduce(0, places, source, how) for how in ("sum", "prod", "amax")),
    )


def added_to_one_row(x: Tensor, index: Tensor) -> Tensor:
    """Rows x (N, M) added at `index` to three rows of zeros that are one in memory."""
    zeros = torch.zeros(1, x.shape[1], dtype=x.dtype, device=x.device).expand(3, -1)
    return zeros.index_add(0, index, x)


def compared_with_numbers(x: Tensor) -> tuple[Tensor, ...]:
    """Bytes x compared with -1 and 300, and from below by -1."""
    return x > -1, x < 300, x == 300, x.clamp(min=-1)


def copied_to_reals(x: Tensor) -> Tensor:
    """The real part of x (N,), as a copy into a real tensor."""
    return torch.zeros(x.shape, dtype=torch.float64, device=x.device).copy_(x)


def of_extreme_integers(x: Tensor) -> tuple[Tensor, ...]:
    """Common divisors, quotients, remainders and comparisons of the least and largest numbers of
    the integer dtype of x (2,), and of x."""
    ends = torch.iinfo(x.dtype)
    y = torch.cat([x.new_tensor([ends.min, ends.min + 1, ends.max - 1, ends.max]), x])
    six, big = x.new_tensor(6), float(ends.max) * 2.5
    return (
        torch.gcd(y, six),
        y // six,
        y % six,
        torch.fmod(y, six),
        y.sign(),
        y > -big,
        y < big,
        y == big,
    )


def fused_steps(x: Tensor) -> tuple[Tensor, ...]:
    """A parameter x (N,) after a step of SGD of each kind, by the gradient 1: by loops, by lists of
    tensors, and fused."""
    found = []
    for kind in ({"foreach": False, "fused": False}, {"foreach": True}, {"fused": True}):
        p = torch.nn.Parameter(x.detach().clone())
        p.grad = torch.ones_like(p)
        torch.optim.SGD([p], lr=0.5, **kind).step()
        found.append(p.detach())
    return tuple(found)


def refused_beyond(x: Tensor) -> Tensor:
    """Whether integers like x (N,) refuse each number next to their least and largest, and beyond:
    none of them is one of these."""
    ends = torch.iinfo(x.dtype)
    beyond = [
        float(ends.max + 1),
        2.0 * (ends.max + 1),
        2.0 * ends.min - 2.0,
        1e30,
        math.inf,
        -math.inf,
    ]

    return torch.tensor(
        refused(
            *(partial(x.clone().fill_, number) for number in beyond),
            kinds=(RuntimeError, OverflowError),
        )
    )
