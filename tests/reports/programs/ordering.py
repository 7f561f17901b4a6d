"""Orders of numbers among which are NaN, and counts."""

import math

import torch

from tests.reports.report import report


@report("F146.1", "pytorch#46225", kernel=True)
def mode_beside_a_nan():
    """The mode of (2, NaN, 1, 2) is 1.

    2 occurs twice. In another order of the same numbers it is 2.
    """
    x = torch.tensor([2.0, math.nan, 1.0, 2.0])
    return x.mode().values, torch.tensor(2.0)


@report("F146.2", "pytorch#95583", kernel=True)
def distinct_rows_beside_a_nan():
    """Two equal rows are distinct, if a row with NaN is between them.

    Without a dimension torch sorts NaN behind the other numbers, and merges equal ones.
    """
    x = torch.tensor([[1.0, 2.0], [math.nan, 2.0], [1.0, 2.0]])
    counts = x.unique(dim=0, return_counts=True)[1]
    return counts.sort().values, torch.tensor([1, 2])


@report("F146.3", "pytorch#158738", kernel=True)
def place_in_a_line_that_ends_with_nan():
    """The place of 1.5 in (1, 2, NaN, NaN, NaN) is behind all numbers, for searchsorted and for
    bucketize.

    torch.sort has NaN last. 1.5 stands between 1 and 2.
    """
    x, _ = torch.tensor([1.0, math.nan, 2.0, math.nan, math.nan]).sort()
    sought = torch.tensor([0.5, 1.5])
    found = torch.searchsorted(x, sought), torch.bucketize(sought, x)
    return found, (torch.tensor([0, 1]), torch.tensor([0, 1]))


@report("F147.1", "pytorch#174668", kernel=True, rtol=1e-2)
def counts_of_a_histogram_in_half_precision():
    """A histogram of 3,000 ones in bfloat16 counts 256 of them for each thread.

    Each count is rounded, and 256 + 1 is 256. The nearest number that bfloat16 has is 3,008.
    """
    x = torch.ones(3000, dtype=torch.bfloat16)
    return torch.histc(x, 1, 0, 2), torch.tensor([3000.0])
