"""Sorting, searching and selecting numbers among which are NaN, infinities, zeros and equal ones.

    largest(mark, made="nan_inside", shapes=[(17, "columns")])    # max along a dim, and indices

``made`` says where the special numbers stand in a line of the given width. The definition is plain
Python over the numbers of one line: NaN is greater than all numbers and equal to none, not even to
NaN, and -0 equals 0. An index that torch leaves open is compared by the number that it leads to.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gen.outcomes import Unsuitable
from programs.families.tools import Results, Row

Number = float | int
Line = list[Number]
Found = Sequence[Any]
"""Results of one line: lists of numbers, or numbers."""
OnLines = Callable[[Tensor, int], Sequence[Tensor]]
OnLine = Callable[[Line], Found]

SHAPES = (
    (1, "rows"),
    (2, "columns"),
    (5, "with_gaps"),
    (8, "rows"),
    (8, "columns"),
    (16, "with_gaps"),
    (17, "rows"),
    (17, "columns"),
    (33, "with_gaps"),
    (33, "rows"),
    (257, "columns"),
    (257, "with_gaps"),
)
"""Widths of lines and their layouts. Three of them are a sample, so that a cell runs all."""
INF, NAN = math.inf, math.nan


# --- numbers --------------------------------------------------------------------------------------


def _ordinary(width: int) -> Line:
    """Return halves from -2.5 to 2.5, each of which comes again after eleven."""
    return [((7 * i + 3) % 11 - 5) / 2 for i in range(width)]


def _placed(width: int, places: Sequence[int], numbers: Sequence[float]) -> Line:
    """Return ordinary numbers with others at some places, counted from either end."""
    line = _ordinary(width)
    for turn, place in enumerate(places):
        line[place % width] = numbers[turn % len(numbers)]
    return line


def _third(width: int) -> list[int]:
    return list(range(1, width, 3))


MADE: dict[str, Callable[[int], Line]] = {
    "ordinary": _ordinary,
    "nan_first": lambda width: _placed(width, [0], [NAN]),
    "nan_last": lambda width: _placed(width, [-1], [NAN]),
    "nan_inside": lambda width: _placed(width, [width // 2], [NAN]),
    "nan_often": lambda width: _placed(width, _third(width), [NAN]),
    "all_nan": lambda width: [NAN] * width,
    "infinities": lambda width: _placed(width, _third(width), [INF, -INF]),
    "nan_and_infinities": lambda width: _placed(width, [0, *_third(width)], [INF, NAN, -INF]),
    "zeros": lambda width: _placed(width, range(0, width, 2), [0.0, -0.0]),
    "all_equal": lambda width: [1.0] * width,
    "ends_of_dtype": lambda width: _placed(width, _third(width), [1e300, -1e300]),
}


def _as_python(line: Line, dtype: torch.dtype) -> Line:
    """Return the numbers that a dtype has for these: the nearest ones, or its ends."""
    if dtype.is_floating_point:
        ends = torch.finfo(dtype)
        return [_clipped(number, ends.min, ends.max) for number in line]
    bounds = torch.iinfo(dtype)
    return [int(_clipped(2 * number, bounds.min, bounds.max)) for number in line]


def _clipped(number: Number, low: Number, high: Number) -> Number:
    if math.isnan(number) or math.isinf(number):
        return number
    return min(max(number, low), high)


def _lines(width: int, made: str, dtype: torch.dtype) -> list[Line]:
    """Return three lines: the numbers, the same from behind, and turned by two."""
    line = _as_python(MADE[made](width), dtype)
    return [line, line[::-1], line[2:] + line[:2]]


def _laid_out(x: Tensor, how: str) -> tuple[Tensor, int]:
    """Return the lines of a matrix in another layout, and the dimension along which they go."""
    if how == "columns":
        return x.t().contiguous(), 0
    if how == "with_gaps":
        return x.repeat_interleave(2, 1)[:, ::2], 1
    return x, 1


def samples(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    """Return a tensor that shows the dtype alone, and how lines are made."""
    return [
        {"args": [{"shape": [2]}], "kwargs": {"made": made, "shapes": list(SHAPES[first::4])}}
        for made in MADE
        for first in range(4)
    ]


# --- an order of numbers --------------------------------------------------------------------------


def _rank(number: Number) -> tuple[bool, Number]:
    """Return what sorts a number: NaN behind all others."""
    if math.isnan(number):
        return True, 0
    return False, number


def _order(line: Line, descending: bool = False) -> list[int]:
    """Return the places of the numbers in order, equal ones in the order of the line."""
    # Python keeps equal ones in their order from either side
    return sorted(range(len(line)), key=lambda place: _rank(line[place]), reverse=descending)


def _in_order(line: Line) -> Line:
    return sorted(line, key=_rank)


def _best(line: Line, greatest: bool) -> int:
    """Return the place of the first NaN, or of the first greatest or least number."""
    for place, number in enumerate(line):
        if math.isnan(number):
            return place
    return line.index(max(line) if greatest else min(line))


def _running(line: Line, greatest: bool) -> Line:
    """Return the greatest or least number up to each place."""
    return [line[_best(line[: end + 1], greatest)] for end in range(len(line))]


def _median(line: Line) -> Number:
    """Return the lower median, NaN if there is one."""
    if any(map(math.isnan, line)):
        return NAN
    return sorted(line)[(len(line) - 1) // 2]


def _known(line: Line) -> Line:
    return [number for number in line if not math.isnan(number)]


def _most_frequent(line: Line) -> Number:
    """Return the least of the numbers that occur most often. A NaN occurs once."""
    known = _known(line)
    if not known:
        return NAN
    return min(known, key=lambda number: (-known.count(number), number))


# --- rows -----------------------------------------------------------------------------------------


def _as_rows(result: Tensor, how: str) -> Tensor:
    """Return results with a row for each line."""
    if how == "columns" and result.ndim == 2:
        return result.t()
    return result


def _wide(result: Tensor) -> Tensor:
    """Return numbers in double precision, so that those of each dtype are compared alike."""
    return result.to(torch.float64) if result.is_floating_point() else result.to(torch.int64)


def _row(on_lines: OnLines, on_line: OnLine, turns: bool = True) -> Row:
    """Return the row of an op along a dimension of a matrix. `turns`: whether results have the
    layout of the matrix, and not a row for each line."""

    def program(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        x = torch.tensor(_lines(width, made, mark.dtype), dtype=mark.dtype)
        found = _by_a_kernel(on_lines, *_laid_out(x, how))
        return tuple(_wide(_as_rows(one, how) if turns else one) for one in found)

    def definition(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        found = [on_line(_rounded(line, mark)) for line in _lines(width, made, mark.dtype)]
        return tuple(_wide(_tensor(column, mark.dtype)) for column in zip(*found, strict=True))

    return Row(program, definition)


def _by_a_kernel(f: Callable[..., Sequence[Tensor]], *args: Any) -> Sequence[Tensor]:
    """Call an op. One that has no kernel for a dtype is left out."""
    try:
        return f(*args)
    except NotImplementedError as error:
        raise Unsuitable(f"no kernel: {error}") from error


def _rounded(line: Line, mark: Tensor) -> Line:
    """Return the numbers as a dtype holds them."""
    return torch.tensor(line, dtype=mark.dtype).tolist()


def _tensor(column: Sequence[Any], dtype: torch.dtype) -> Tensor:
    """Return a result of several lines, as a dtype holds it. Integers are indices, or numbers of an
    integer dtype."""
    found = torch.tensor(column)
    if found.is_floating_point():
        return torch.tensor(column, dtype=dtype)
    return found


def _and_what_indices_lead_to(f: Callable[[Tensor, int], Any]) -> OnLines:
    """Return an op that gives values and indices as one that gives values and those at indices."""

    def g(x: Tensor, dim: int) -> Sequence[Tensor]:
        values, indices = f(x, dim)
        if indices.ndim < x.ndim:
            return values, x.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
        return values, x.gather(dim, indices)

    return g


def _twice(f: Callable[[Line], Any]) -> OnLine:
    """Return a definition of values, which are those at indices too."""

    def g(line: Line) -> Found:
        values = f(line)
        return values, values

    return g


def _sorted_row(descending: bool) -> Row:
    def on_lines(x: Tensor, dim: int) -> Sequence[Tensor]:
        values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
        return values, indices, torch.argsort(x, dim=dim, descending=descending, stable=True)

    def on_line(line: Line) -> Found:
        places = _order(line, descending)
        return [line[place] for place in places], places, places

    return _row(on_lines, on_line)


def _unstable_row(descending: bool) -> Row:
    def on_lines(x: Tensor, dim: int) -> Sequence[Tensor]:
        values, indices = torch.sort(x, dim, descending=descending)
        return values, x.gather(dim, indices), indices.sort(dim).values

    def on_line(line: Line) -> Found:
        values = [line[place] for place in _order(line, descending)]
        return values, values, list(range(len(line)))

    return _row(on_lines, on_line)


def _chosen(width: int, share: float) -> int:
    """Return how many numbers of a line are asked for, or which one."""
    return max(1, round(share * width))


def _top_row(share: float, largest: bool, in_order: bool = True) -> Row:
    def on_lines(x: Tensor, dim: int) -> Sequence[Tensor]:
        k = _chosen(x.shape[dim], share)
        values, indices = torch.topk(x, k, dim, largest, in_order)
        at_indices = x.gather(dim, indices)
        if not in_order:
            order = torch.sort(values, dim=dim, descending=largest, stable=True).indices
            values, at_indices = values.gather(dim, order), at_indices.gather(dim, order)
        return values, at_indices

    def on_line(line: Line) -> Found:
        places = _order(line, descending=largest)[: _chosen(len(line), share)]
        values = [line[place] for place in places]
        return values, values

    return _row(on_lines, on_line)


def _kth_row(share: float) -> Row:
    return _row(
        _and_what_indices_lead_to(
            lambda x, dim: torch.kthvalue(x, _chosen(x.shape[dim], share), dim)
        ),
        _twice(lambda line: _in_order(line)[_chosen(len(line), share) - 1]),
    )


def _best_row(greatest: bool) -> Row:
    extreme, argument = (torch.max, torch.argmax) if greatest else (torch.min, torch.argmin)
    alone = torch.amax if greatest else torch.amin

    def on_lines(x: Tensor, dim: int) -> Sequence[Tensor]:
        values, indices = extreme(x, dim)
        return values, indices, argument(x, dim), alone(x, dim)

    def on_line(line: Line) -> Found:
        place = _best(line, greatest)
        return line[place], place, place, line[place]

    return _row(on_lines, on_line)


def _of_all_row(f: Callable[[Tensor], Sequence[Tensor]], on_line: OnLine) -> Row:
    """Return the row of an op that reduces a line without a dimension."""
    return _row(
        lambda x, dim: _stacked([f(line) for line in x.unbind(1 - dim)]), on_line, turns=False
    )


def _stacked(found: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    return [torch.stack(list(column)) for column in zip(*found, strict=True)]


# --- searching ------------------------------------------------------------------------------------

SOUGHT = (-INF, -2.5, -1.0, -0.0, 0.0, 0.25, 1.0, 2.5, 3.0, INF, NAN)


def _sought(dtype: torch.dtype) -> Line:
    numbers = SOUGHT if dtype.is_floating_point else SOUGHT[1:-2]
    return _as_python(list(numbers), dtype)


def _searched_row(right: bool, form: str) -> Row:
    """Return the row of a search in lines that are in order. Lines are rows then."""

    def program(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        lines = [_in_order(line) for line in _lines(width, made, mark.dtype)]
        x, _ = _laid_out(torch.tensor(lines, dtype=mark.dtype), how)
        x = x.t() if how == "columns" else x
        values = torch.tensor(_sought(mark.dtype), dtype=mark.dtype)
        return (_by_a_kernel(SEARCHES[form], x, values, right)[0].to(torch.int64),)

    def definition(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        side = bisect.bisect_right if right else bisect.bisect_left
        places = []
        for line in _lines(width, made, mark.dtype):
            ranks = [_rank(number) for number in _in_order(_rounded(line, mark))]
            sought = _rounded(_sought(mark.dtype), mark)
            places.append([side(ranks, _rank(number)) for number in sought])
        return (torch.tensor(places),)

    return Row(program, definition)


def _searched_by_sorter(x: Tensor, values: Tensor, right: bool) -> Tensor:
    """Search in lines that are given from behind, with the order that sorts them."""
    places = torch.arange(x.shape[1] - 1, -1, -1).expand(x.shape)
    return torch.searchsorted(
        x.flip(1).contiguous(), values.expand(3, -1).contiguous(), right=right, sorter=places
    )


SEARCHES: dict[str, Callable[[Tensor, Tensor, bool], Sequence[Tensor]]] = {
    "lines": lambda x, values, right: [
        torch.searchsorted(x.contiguous(), values.expand(3, -1).contiguous(), right=right)
    ],
    "gaps": lambda x, values, right: [
        torch.searchsorted(
            x, values.expand(3, -1), side="right" if right else "left", out_int32=True
        )
    ],
    "by_sorter": lambda x, values, right: [_searched_by_sorter(x, values, right)],
    "one_line": lambda x, values, right: _stacked(
        [[torch.searchsorted(line.contiguous(), values, right=right)] for line in x]
    ),
    "buckets": lambda x, values, right: _stacked(
        [[torch.bucketize(values, line.contiguous(), right=right)] for line in x]
    ),
}


# --- sets of numbers ------------------------------------------------------------------------------


def _distinct(line: Line) -> tuple[Line, list[int]]:
    """Return the distinct numbers in order, and how often each occurs. Each NaN is another."""
    values: Line = []
    counts: list[int] = []
    for number in _in_order(line):
        if values and values[-1] == number:
            counts[-1] += 1
        else:
            values.append(number)
            counts.append(1)
    return values, counts


def _runs(line: Line) -> tuple[Line, list[int]]:
    """Return the numbers of runs of equal ones, and their lengths."""
    values: Line = []
    counts: list[int] = []
    for number in line:
        if values and values[-1] == number:
            counts[-1] += 1
        else:
            values.append(number)
            counts.append(1)
    return values, counts


def _set_row(of_line: Callable[[Line], tuple[Line, list[int]]], f: Callable[..., Any]) -> Row:
    """Return the row of the distinct numbers of each line: values, those at inverses, counts."""

    def program(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        x = torch.tensor(_lines(width, made, mark.dtype), dtype=mark.dtype)
        laid, dim = _laid_out(x, how)
        results: list[Tensor] = []
        for line in laid.unbind(1 - dim):
            values, inverse, counts = _by_a_kernel(f, line)
            results += [_wide(values), _wide(values[inverse]), counts]
        return tuple(results)

    def definition(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        results: list[Tensor] = []
        for line in _lines(width, made, mark.dtype):
            numbers = _rounded(line, mark)
            values, counts = of_line(numbers)
            results += [_wide(_tensor(one, mark.dtype)) for one in (values, numbers, counts)]
        return tuple(results)

    return Row(program, definition)


def _pairs(line: Line) -> list[tuple[Number, Number]]:
    """Return rows of two numbers: each number with the next but one, in halves of a line."""
    return [(line[i // 2], line[(i + 3) % len(line)]) for i in range(len(line))]


def _distinct_rows_row() -> Row:
    def program(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        rows = torch.tensor(_pairs(_lines(width, made, mark.dtype)[0]), dtype=mark.dtype)
        laid, other = _laid_out(rows, how)
        options: dict[str, Any] = {"return_inverse": True, "return_counts": True, "dim": 1 - other}
        values, inverse, counts = _by_a_kernel(lambda: torch.unique(laid, **options))
        values = _as_rows(values, how)
        return _wide(values), _wide(values[inverse]), counts

    def definition(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        rows = _pairs(_rounded(_lines(width, made, mark.dtype)[0], mark))
        values: list[tuple[Number, Number]] = []
        counts: list[int] = []
        for row in sorted(rows, key=lambda row: [_rank(number) for number in row]):
            if values and all(a == b for a, b in zip(values[-1], row, strict=True)):
                counts[-1] += 1
            else:
                values.append(row)
                counts.append(1)
        columns = (_tensor(one, mark.dtype) for one in (values, rows, counts))
        return tuple(map(_wide, columns))

    return Row(program, definition)


def _contained_row(times: int, invert: bool) -> Row:
    """Return the row of isin. Torch sorts if it has many numbers to look for."""

    def on_lines(x: Tensor, dim: int) -> Sequence[Tensor]:
        tests = torch.tensor(_sought(x.dtype) * times, dtype=x.dtype)
        return [torch.isin(x, tests, invert=invert)]

    def on_line(line: Line) -> Found:
        tests = SOUGHT if isinstance(line[0], float) else _sought(torch.int64)
        return ([(number in _known(list(tests))) != invert for number in line],)

    return _row(on_lines, on_line)


REPEATS = 16
"""So many times a line is counted, for counts that half precision rounds."""


def _counted(line: Line) -> Found:
    """Return the numbers of each fifth of the range from -2 to 2, of which the last is closed."""
    counts = [0] * 5
    for number in _known(line):
        if -2 <= number <= 2:
            counts[min(int((number + 2) / 0.8), 4)] += 1
    return ([float(count) for count in counts],)


QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def _quantile(line: Line, q: float, how: str) -> Number:
    """Return the quantile of numbers of which none is NaN."""
    numbers = sorted(line)
    place = q * (len(numbers) - 1)
    below, above = numbers[math.floor(place)], numbers[math.ceil(place)]
    if how == "linear" and below != above:
        share = place - math.floor(place)
        return below * (1 - share) + above * share
    return above if how == "higher" else below


def _quantile_row(how: str, ignores_nan: bool) -> Row:
    def on_lines(x: Tensor, dim: int) -> Sequence[Tensor]:
        f = torch.nanquantile if ignores_nan else torch.quantile
        q = torch.tensor(QUANTILES, dtype=x.dtype)
        return f(x, q, dim, interpolation=how).unbind()

    def on_line(line: Line) -> Found:
        known = _known(line)
        if not known or (len(known) < len(line) and not ignores_nan):
            return [NAN] * len(QUANTILES)
        return [_quantile(known, q, how) for q in QUANTILES]

    return _row(on_lines, on_line)


# --- gradients of what an index leads to ----------------------------------------------------------


def _gradient_row(f: OnLines, places_of: Callable[[Line], list[int]]) -> Row:
    """Return the row of the gradient of selected numbers: each weight, at the place selected."""

    def program(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        x = torch.tensor(_lines(width, made, mark.dtype), dtype=mark.dtype).requires_grad_()
        laid, dim = _laid_out(x, how)
        (values,) = _by_a_kernel(f, laid, dim)
        weights = _weights(values.numel(), mark).reshape(_as_rows(values, how).shape)
        (found,) = torch.autograd.grad(_as_rows(values, how), x, weights)
        return (_wide(found),)

    def definition(mark: Tensor, *, made: str, width: int, how: str) -> Results:
        lines = [_rounded(line, mark) for line in _lines(width, made, mark.dtype)]
        places = [places_of(line) for line in lines]
        weights = _weights(sum(map(len, places)), mark).tolist()
        slopes = [[0.0] * width for _ in lines]
        for row, chosen in enumerate(places):
            for place in chosen:
                slopes[row][place] += weights.pop(0)
        return (torch.tensor(slopes, dtype=torch.float64),)

    return Row(program, definition)


def _weights(count: int, mark: Tensor) -> Tensor:
    """Return whole numbers, which a sum of few of them does not round."""
    return (torch.arange(count) % 5 + 1).to(mark.dtype)


def _rows() -> dict[str, Row]:
    rows = {
        "sorted_up": _sorted_row(False),
        "sorted_down": _sorted_row(True),
        "unstable_up": _unstable_row(False),
        "unstable_down": _unstable_row(True),
        "largest": _best_row(True),
        "smallest": _best_row(False),
        "median": _row(_and_what_indices_lead_to(torch.median), _twice(_median)),
        "nanmedian": _row(
            _and_what_indices_lead_to(torch.nanmedian),
            _twice(lambda line: _median(_known(line) or [NAN])),
        ),
        "mode": _row(_and_what_indices_lead_to(torch.mode), _twice(_most_frequent)),
        "running_largest": _row(
            _and_what_indices_lead_to(torch.cummax), _twice(lambda line: _running(line, True))
        ),
        "running_smallest": _row(
            _and_what_indices_lead_to(torch.cummin), _twice(lambda line: _running(line, False))
        ),
        "both_ends": _row(
            lambda x, dim: torch.aminmax(x, dim=dim),
            lambda line: (line[_best(line, False)], line[_best(line, True)]),
        ),
        "both_ends_of_all": _of_all_row(
            torch.aminmax, lambda line: (line[_best(line, False)], line[_best(line, True)])
        ),
        "largest_of_all": _of_all_row(
            lambda line: [line.max(), line.argmax()],
            lambda line: (line[_best(line, True)], _best(line, True)),
        ),
        "smallest_of_all": _of_all_row(
            lambda line: [line.min(), line.argmin()],
            lambda line: (line[_best(line, False)], _best(line, False)),
        ),
        "medians_of_all": _of_all_row(
            lambda line: [line.median(), line.nanmedian()],
            lambda line: (_median(line), _median(_known(line) or [NAN])),
        ),
        "distinct": _set_row(
            _distinct, lambda line: torch.unique(line, return_inverse=True, return_counts=True)
        ),
        "distinct_along_dim": _set_row(
            _distinct,
            lambda line: torch.unique(line, return_inverse=True, return_counts=True, dim=0),
        ),
        "runs": _set_row(
            _runs,
            lambda line: torch.unique_consecutive(line, return_inverse=True, return_counts=True),
        ),
        "runs_along_dim": _set_row(
            _runs,
            lambda line: torch.unique_consecutive(
                line, return_inverse=True, return_counts=True, dim=0
            ),
        ),
        "distinct_rows": _distinct_rows_row(),
        "counted": _of_all_row(lambda line: [torch.histc(line, 5, -2, 2)], _counted),
        "counted_often": _of_all_row(
            lambda line: [torch.histc(line.repeat(REPEATS), 5, -2, 2)],
            lambda line: _counted(line * REPEATS),
        ),
        "sort_gradient": _gradient_row(
            lambda x, dim: [x.sort(dim=dim, stable=True).values], _order
        ),
        "largest_gradient": _gradient_row(
            lambda x, dim: [x.max(dim).values], lambda line: [_best(line, True)]
        ),
        "smallest_gradient": _gradient_row(
            lambda x, dim: [x.min(dim).values], lambda line: [_best(line, False)]
        ),
    }
    for end, share in (("first", 0.0), ("half", 0.5), ("all", 1.0)):
        rows[f"top_{end}"] = _top_row(share, True)
        rows[f"bottom_{end}"] = _top_row(share, False)
        rows[f"top_{end}_unsorted"] = _top_row(share, True, False)
        rows[f"kth_{end}"] = _kth_row(share)
    for form in SEARCHES:
        rows[f"searched_{form}_left"] = _searched_row(False, form)
        rows[f"searched_{form}_right"] = _searched_row(True, form)
    for word, times in (("few", 1), ("many", 40)):
        rows[f"in_{word}"] = _contained_row(times, False)
        rows[f"not_in_{word}"] = _contained_row(times, True)
    for how in ("linear", "lower", "higher"):
        rows[f"quantile_{how}"] = _quantile_row(how, False)
        rows[f"nanquantile_{how}"] = _quantile_row(how, True)
    return rows


def _over_shapes(row: Row) -> Row:
    """Return a row as one that takes several widths and layouts."""

    def program(mark: Tensor, *, made: str, shapes: Sequence[tuple[int, str]]) -> Results:
        found = (row.program(mark, made=made, width=width, how=how) for width, how in shapes)
        return tuple(itertools.chain.from_iterable(found))

    def definition(mark: Tensor, *, made: str, shapes: Sequence[tuple[int, str]]) -> Results:
        found = (row.definition(mark, made=made, width=width, how=how) for width, how in shapes)
        return tuple(itertools.chain.from_iterable(found))

    return Row(program, definition)


globals().update({name: _over_shapes(row) for name, row in _rows().items()})
