"""Dtypes of results, and integers."""

import torch
from torch.func import jvp, vmap

from tests.reports.report import report


@report("F11.1")
def dtype_of_a_tangent():
    """The tangent of a number minus a Python number is float64.

    The number is float32, and so is its tangent.
    """
    one = torch.tensor(1.0)
    return jvp(lambda x: x - 0.5, (one,), (one,))[1].dtype, torch.float32


@report("F11.2")
def dtype_of_a_batched_addbmm():
    """vmap of addbmm of integers with floating factors gives float32.

    A loop gives integers.
    """
    x, a, b = torch.ones(2, 3).long(), torch.ones(2, 2, 4).long(), torch.ones(3, 2, 4, 3).long()

    def f(b):
        return torch.addbmm(x, a, b, beta=0.6, alpha=0.2)

    return vmap(f)(b).dtype, torch.stack([f(row) for row in b]).dtype


@report("F11.3", kernel=True)
def logspace_of_integers():
    """logspace(1, 1.5, 4, dtype=int16) is 10 four times.

    It truncates the ends before it computes. 10 to the power of 1, 1.17, 1.33 and 1.5 is 10,
    14.7, 21.5 and 31.6.
    """
    return torch.logspace(1, 1.5, 4, dtype=torch.int16), torch.tensor([10, 14, 21, 31])


@report("F11.4")
def vmap_of_linspace():
    """vmap of linspace between tensors of float64 gives float64; so does vmap of logspace.

    Without vmap the result has the default dtype, and with torch.compile too. Only a vmap gives
    that of the ends.
    """
    ends = torch.tensor([0.5, 1.0], dtype=torch.float64)

    def f(end):
        return torch.linspace(0.0, end, 3)

    return vmap(f)(ends).dtype, torch.stack([f(end) for end in ends]).dtype


@report("F93.1", "pytorch#101653", kernel=True)
def comparison_of_bytes_with_a_negative_number():
    """5 > -1 is False for a tensor of uint8, and 44 == 300 is True.

    The number is made a byte first, which -1 and 300 are not.
    """
    five, other = torch.tensor([5], dtype=torch.uint8), torch.tensor([44], dtype=torch.uint8)
    return [(five > -1).item(), (other == 300).item()], [True, False]


@report("F93.2", "pytorch#107702", kernel=True, torch="<2.15")
def bytes_clamped_from_below_by_a_negative_number():
    """clamp(5, min=-1) is 255 for a tensor of uint8.

    The bound is made a byte first.
    """
    return torch.tensor([5], dtype=torch.uint8).clamp(min=-1), torch.tensor([5], dtype=torch.uint8)


@report("F94.1", "pytorch#190651", kernel=True, torch="<2.14")
def fill_of_integers_beyond_their_range():
    """A tensor of int64 is filled with 2.0**63, which becomes -2**63.

    2**63 is no int64. Other numbers that are none are refused.
    """

    def refused(value):
        try:
            torch.zeros(1, dtype=torch.int64).fill_(value)
        except RuntimeError:
            return True
        return False

    return [refused(2.0**63), refused(2.0**64)], [True, True]


@report("F95.1", "pytorch#187338", kernel=True)
def gcd_of_the_smallest_integer():
    """gcd(-2**63, 6) is -2.

    A greatest common divisor is not negative.
    """
    return torch.gcd(torch.tensor([-(2**63)]), torch.tensor([6])), torch.tensor([2])
