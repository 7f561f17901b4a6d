"""Large tensors in huge pages of memory.

    gradients = empty_in_huge_pages((256, 512, 784), torch.float32, device)
    # 411 MB: 200 pages of 2 MB instead of 100,000 of 4 kB

Linux gives new memory to a process page by page, when each is first written to. For a tensor that
is written and read once, that takes several times as long as the writing. It gives huge pages where
it is asked to (``madvise(2)``, ``MADV_HUGEPAGE``). Elsewhere these are ordinary tensors.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence

import torch

from .torch_private.functorch_state import is_functorch_wrapped
from .torch_private.native_functions import native_empty

LARGE = 1 << 23
"""Bytes from which a tensor is worth the question."""
_PAGE = 1 << 21  # the huge pages of x86 and of most ARM kernels; of others a multiple or a fraction


def empty_in_huge_pages(
    shape: Sequence[int], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a contiguous tensor whose elements are not set. It is a plain one in a session too,
    where ``torch.empty`` makes tensors of that."""
    found: torch.Tensor = native_empty(shape, dtype=dtype, device=device)
    wrapped = type(found) is not torch.Tensor or is_functorch_wrapped(found)
    if not wrapped and found.is_cpu and found.nbytes >= LARGE and (advise := _advise()) is not None:
        start = -(-found.data_ptr() // _PAGE) * _PAGE
        # no page is shared with another tensor
        stop = (found.data_ptr() + found.nbytes) // _PAGE * _PAGE
        advise(start, stop - start, mmap.MADV_HUGEPAGE)
    return found


@functools.cache
def _advise() -> Callable[[int, int, int], int] | None:
    """``madvise`` of the C library. None where there are no such pages. Nobody looks at what it
    returns: without them all is the same."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes, function.restype = (
        (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
        ctypes.c_int,
    )
    return function
