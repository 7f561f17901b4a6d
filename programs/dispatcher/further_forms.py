"""Overloads behind a front of Python, old names, and forms with other arguments."""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor
_aten = torch.ops.aten


def old_norms(x: Tensor) -> list[Tensor]:
    """Return norms of a matrix by the overloads that torch.norm has left behind."""
    return [
        _aten.norm.ScalarOpt_dim(x, 2, [1]),
        _aten.frobenius_norm.dim(x, [0, 1]),
        _aten.nuclear_norm.default(x),
        _aten.nuclear_norm.dim(x, [0, 1]),
        _aten.norm.dtype_out(x, 2, [1], False, dtype=x.dtype, out=x.new_empty(0)),
        _aten.norm.ScalarOpt_dtype(x, 2, dtype=x.dtype),
        _aten.linalg__powsum.default(x, 3, [1]),
        _aten.nuclear_norm.out(x, out=x.new_empty(0)),
        _aten.nuclear_norm.dim_out(x, [0, 1], out=x.new_empty(0)),
        _aten.frobenius_norm.out(x, [0, 1], out=x.new_empty(0)),
    ]


def old_norms_by_definition(x: Tensor) -> list[Tensor]:
    """Return the norms by sums of squares, and by eigenvalues of the Gram matrix."""
    whole, rows = (x * x).sum().sqrt(), (x * x).sum(1).sqrt()
    nuclear = torch.linalg.eigvalsh(x.T @ x).clamp(min=0).sqrt().sum()
    cubes = (x.abs() ** 3).sum(1)
    return [
        rows, whole, nuclear, nuclear, rows, whole, cubes, nuclear, nuclear, whole,
    ]  # fmt: skip


def casts(x: Tensor) -> list[Tensor]:
    """Return a tensor in other dtypes by the ops of each dtype."""
    return [
        _aten._cast_Byte.default(x),
        _aten._cast_Char.default(x),
        _aten._cast_Double.default(x),
        _aten._cast_Float.default(x),
        _aten._cast_Half.default(x),
        _aten._cast_Int.default(x),
        _aten._cast_Long.default(x),
        _aten._cast_Short.default(x),
        _aten.to.other(x, x.int()),
        _aten._autocast_to_reduced_precision.default(
            x.float(), False, True, torch.float16, torch.bfloat16
        ),
        _aten._autocast_to_full_precision.default(x.bfloat16(), False, True),
    ]


def casts_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same element by element."""
    dtypes = [
        torch.uint8, torch.int8, torch.float64, torch.float32, torch.float16, torch.int32,
        torch.int64, torch.int16, torch.int32,
    ]  # fmt: skip
    rows = [torch.tensor([_cast(v, dtype) for v in x.tolist()], dtype=dtype) for dtype in dtypes]
    low = torch.tensor(x.float().tolist(), dtype=torch.bfloat16)
    return [*rows, low, torch.tensor(low.tolist(), dtype=torch.float32)]


def _cast(value: float, dtype: torch.dtype) -> float:
    return value if dtype.is_floating_point else math.trunc(value)


def rectified_sums(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return sums without their negative entries."""
    return [
        _aten._add_relu.Tensor(x, y, alpha=2),
        _aten._add_relu.Scalar(x, 0.5),
        _aten._add_relu_.Tensor(x.clone(), y, alpha=2),
        _aten._add_relu_.Scalar(x.clone(), 0.5),
        _aten._add_relu.out(x, y, out=x.new_empty(0)),
        _aten._add_relu.Scalar_out(x, 0.5, out=x.new_empty(x.shape)),
    ]


def rectified_sums_by_definition(x: Tensor, y: Tensor) -> list[Tensor]:
    """Return the same by a comparison with zero."""
    sums = [x + 2 * y, x + 0.5, x + 2 * y, x + 0.5, x + y, x + 0.5]
    return [torch.where(total > 0, total, torch.zeros_like(total)) for total in sums]


def extremes(x: Tensor) -> list[Tensor]:
    """Return the least and the largest elements, their places, and stacks."""
    stacked = x.new_empty(0)
    _aten._stack.out([x, x + 1], 1, out=stacked)
    return [
        *_aten._aminmax.default(x),
        *_aten._aminmax.dim(x, 1, True),
        _aten._stack.default([x, x + 1], 1),
        stacked,
        _aten.chain_matmul.default([x, x.T, x]),
        _aten.chain_matmul.out([x, x.T, x], out=x.new_empty(0)),
        *_aten.meshgrid.default([x[0], x[1]]),
        _aten.vander.default(x[0], 3, True),
        _aten.flatten_dense_tensors.default([x, x[0]]),
        *_aten.unflatten_dense_tensors.default(x.flatten(), [x[0], x[1:]]),
        _aten.slice_inverse.default(x[:, :1], x, 1, 0, 1, 1),
        _aten._dim_arange.default(x, 1),
        _aten._shape_as_tensor.default(x),
        _aten._is_all_true.default(x == x),
        *_aten.where.default(x > x.mean()),
        _aten.pad_sequence.default([x, x[:1]], True, -1.0),
        _aten._pad_enum.default(x[None], [1, 1], 1),
        _aten._reshape_from_tensor.default(x, torch.tensor([x.numel(), 1])),
        _aten._lazy_clone.default(x),
        _aten._saturate_weight_to_fp16.default(x.float() * 1e5),
    ]


def _places_above(rows: list[list[float]], bound: float) -> list[list[int]]:
    """Return row and column of each number above a bound."""
    places = []
    for number, row in enumerate(rows):
        places += [[number, column] for column, value in enumerate(row) if value > bound]
    return places


def _saturated(row: list[float]) -> list[float]:
    """Return 100,000 times the numbers, cut off at the largest number of float16."""
    largest = 65504.0
    return [min(max(value * 1e5, -largest), largest) for value in row]


def extremes_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by loops over rows."""
    rows = x.tolist()
    flat = [value for row in rows for value in row]
    low = [[min(row)] for row in rows]
    high = [[max(row)] for row in rows]
    stack = torch.tensor([[row, [v + 1 for v in row]] for row in rows], dtype=x.dtype)
    product = torch.einsum("ij,kj,kl->il", x, x, x)
    grid = [
        torch.tensor([[a for _ in rows[1]] for a in rows[0]], dtype=x.dtype),
        torch.tensor([list(rows[1]) for _ in rows[0]], dtype=x.dtype),
    ]
    vander = torch.tensor([[1.0, a, a * a] for a in rows[0]], dtype=x.dtype)
    found = torch.tensor(_places_above(rows, sum(flat) / len(flat))).T
    below = [[-1.0] * len(rows[0])] * (len(rows) - 1)
    padded = torch.tensor([rows, [rows[0], *below]], dtype=x.dtype)
    replicated = torch.tensor([[[row[0], *row, row[-1]] for row in rows]], dtype=x.dtype)
    return [
        torch.tensor(min(flat), dtype=x.dtype),
        torch.tensor(max(flat), dtype=x.dtype),
        torch.tensor(low, dtype=x.dtype),
        torch.tensor(high, dtype=x.dtype),
        stack, stack, product, product, *grid, vander,
        torch.tensor([*flat, *rows[0]], dtype=x.dtype),
        torch.tensor(rows[0], dtype=x.dtype),
        torch.tensor(rows[1:], dtype=x.dtype).reshape(len(rows) - 1, -1),
        x,
        torch.tensor(range(len(rows[0]))),
        torch.tensor([len(rows), len(rows[0])]),
        torch.tensor(True),
        *found,
        padded,
        replicated,
        torch.tensor([[value] for value in flat], dtype=x.dtype),
        x,
        torch.tensor([_saturated(row) for row in x.float().tolist()], dtype=torch.float32),
    ]  # fmt: skip


def linear_algebra(x: Tensor) -> list[Tensor]:
    """Return ranks and conditions of an invertible matrix, by numbers and by tensors."""
    return [
        _aten.linalg_matrix_rank.default(x, 1e-8),
        _aten.linalg_matrix_rank.tol_tensor(x, torch.tensor(1e-8)),
        _aten.linalg_matrix_rank.out(x, 1e-8, out=torch.empty(0, dtype=torch.int64)),
        _aten.linalg_matrix_rank.out_tol_tensor(
            x, torch.tensor(1e-8), out=torch.empty(0, dtype=torch.int64)
        ),
        _aten.linalg_cond.p_str(x, "fro"),
        _aten.linalg_cond.p_str_out(x, "fro", out=x.new_empty(0)),
        _aten.adjoint.default(x),
        _aten._compute_linear_combination.default(x[None], x.new_ones(2, 1)),
    ]


def linear_algebra_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by the inverse, and by products."""
    count = torch.tensor(len(x))
    inverse = torch.linalg.solve(x, torch.eye(len(x), dtype=x.dtype))
    condition = (x * x).sum().sqrt() * (inverse * inverse).sum().sqrt()
    columns = [list(column) for column in zip(*x.tolist(), strict=True)]
    turned = torch.tensor(columns, dtype=x.dtype)
    return [
        *[count] * 4, condition, condition, turned, torch.stack([x, x]),
    ]  # fmt: skip


def grids(x: Tensor) -> list[Tensor]:
    """Return points of an affine map and its gradient. x (2, 3)."""
    theta = x[None]
    points = _aten.affine_grid_generator.default(theta, [1, 1, 2, 3], True)
    slope = _aten.affine_grid_generator_backward.default(points, [1, 1, 2, 3], True)
    return [points, slope]


def grids_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same point by point."""
    corners = [[(u, v, 1.0) for u in (-1.0, 0.0, 1.0)] for v in (-1.0, 1.0)]
    base = torch.tensor([corners], dtype=x.dtype)
    points = torch.einsum("nhwk,dk->nhwd", base, x)
    return [points, torch.einsum("nhwd,nhwk->ndk", points, base)]


def bits(x: Tensor) -> list[Tensor]:
    """Return operators of Python on bits, in place and not."""
    results = []
    for word in ("and", "or", "xor", "lshift", "rshift"):
        plain, in_place = getattr(_aten, f"__{word}__"), getattr(_aten, f"__i{word}__")
        for name, other in (("Scalar", 3), ("Tensor", torch.full_like(x, 3))):
            results += [getattr(plain, name)(x, other), getattr(in_place, name)(x.clone(), other)]
    return results


def bits_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same of Python's numbers."""
    numbers = x.tolist()
    rows = [
        [n & 3 for n in numbers],
        [n | 3 for n in numbers],
        [n ^ 3 for n in numbers],
        [n << 3 for n in numbers],
        [n >> 3 for n in numbers],
    ]
    return [torch.tensor(row, dtype=x.dtype) for row in rows for _ in range(4)]


def quasirandom(x: Tensor) -> list[Tensor]:
    """Return the first points of Sobol's sequence in two dimensions, drawn at once and in turn."""
    state = torch.zeros(2, 30, dtype=torch.int64)
    _aten._sobol_engine_initialize_state_.default(state, 2)
    start = torch.zeros(2, dtype=torch.int64)
    points, last = _aten._sobol_engine_draw.default(start, 4, state, 2, 0, x.dtype)
    moved = torch.zeros(2, dtype=torch.int64)
    _aten._sobol_engine_ff_.default(moved, 4, state, 2, 0)
    return [points, (last == moved).all()]


def quasirandom_by_definition(x: Tensor) -> list[Tensor]:
    """Return the points after the origin, in the order of Gray's code."""
    points = [[0.5, 0.5], [0.75, 0.25], [0.25, 0.75], [0.375, 0.375]]
    return [torch.tensor(points, dtype=x.dtype), torch.tensor(True)]


def histograms(x: Tensor) -> list[Tensor]:
    """Return counts of rows with two coordinates, and slopes along unequal steps."""
    counts, edges = _aten.histogramdd.int_bins(x, 2, [0.0, 1.0, 0.0, 1.0])
    steps = torch.arange(len(x), dtype=x.dtype) ** 2
    (along,) = _aten.gradient.tensorarrayint(x, spacing=[steps], dim=0)
    (even,) = _aten.gradient.array(x, dim=[0])
    values, inverse, count = _aten.unique_dim_consecutive.default(x.round(), 0, True, True)
    return [counts, *edges, along, even, values[inverse], count.sum()]


def histograms_by_definition(x: Tensor) -> list[Tensor]:
    """Return the same by counting, and by parabolas through three neighbours."""
    counts = torch.zeros(2, 2, dtype=x.dtype)
    for u, v in x.tolist():
        if 0 <= u <= 1 and 0 <= v <= 1:
            counts[min(int(u * 2), 1), min(int(v * 2), 1)] += 1
    edges = torch.tensor([0, 0.5, 1], dtype=x.dtype)
    steps = [k * k for k in range(len(x))]
    return [
        counts, edges, edges, _slopes(x, [float(t) for t in steps]),
        _slopes(x, [1.0 * k for k in range(len(x))]), x.round(), torch.tensor(len(x)),
    ]  # fmt: skip


def _slopes(x: Tensor, places: list[float]) -> Tensor:
    """Return the slope at each place of the parabola through it and its neighbours."""
    rows = []
    for k in range(len(places)):
        if k in (0, len(places) - 1):
            a, b = (0, 1) if k == 0 else (k - 1, k)
            rows.append((x[b] - x[a]) / (places[b] - places[a]))
            continue
        before, after = places[k] - places[k - 1], places[k + 1] - places[k]
        left = (x[k] - x[k - 1]) / before
        right = (x[k + 1] - x[k]) / after
        rows.append((after * left + before * right) / (before + after))
    return torch.stack(rows)
