"""Check a target's own results: the same bits at every call and on every number of threads, and the
strides of abstract tensors.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from gen.checks.compare import Rule, Tally, compare
from gen.outcomes import Mismatch, Unsuitable

Tensor = torch.Tensor
Outputs = tuple[Tensor, ...]
Run = Callable[[], Outputs]
THREADS = 8  # calls at once


def compare_calls(run: Run, tally: Tally) -> None:
    """Raise Mismatch unless a second call gives the same bits, and one with two threads inside each
    kernel the same numbers.

    Two threads may split a sum in another way. So their numbers may differ by rounding.
    """
    first, second = run(), run()
    _require_same_bits(first, second, "a second call", tally)
    # The number of threads is of the process, so it is restored.
    usual = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        threaded = run()
    finally:
        torch.set_num_threads(usual)
    try:
        compare(threaded, first, Rule(), tally)
    except Mismatch as mismatch:
        raise mismatch.reworded(f"a call with two threads: {mismatch}") from None


def compare_threads(run: Run, tally: Tally) -> None:
    """Raise Mismatch unless :data:`THREADS` calls at once give the bits of a single one.

    Warnings of the calls at once are recorded and dropped. Threads share the filters of warnings: a
    thread may record a warning of another one, or lose its own filter as another restores those of
    before.
    """
    alone = run()
    barrier, interval = threading.Barrier(THREADS), sys.getswitchinterval()

    def together(_: int) -> Outputs:
        torch.set_num_threads(1)  # as the single call: some kernels give other bits with more
        barrier.wait()
        return run()

    sys.setswitchinterval(1e-6)  # seconds: threads take turns within a call
    try:
        with warnings.catch_warnings(record=True), ThreadPoolExecutor(THREADS) as pool:
            warnings.simplefilter("ignore")
            every = list(pool.map(together, range(THREADS)))
    finally:
        sys.setswitchinterval(interval)
    for number, results in enumerate(every):
        _require_same_bits(alone, results, f"call {number} of {THREADS} at once", tally)


def compare_strides(
    actual: Sequence[Tensor], abstractly: Callable[[], Outputs], where: str, tally: Tally
) -> None:
    """Raise Mismatch unless abstract results have the strides of results on the CPU. A stride of a
    size 0 or 1 has no meaning.

    `where` the results are, such as ``on the meta device``. Raises Unsuitable if the op needs
    values.
    """
    try:
        results = abstractly()
    except Exception as error:  # kernels that read a value raise different errors
        raise Unsuitable(
            f"the op needs values, but tensors {where} have none ({type(error).__name__})"
        ) from None
    if len(results) != len(actual):
        raise Mismatch(f"{len(results)} outputs {where}, expected {len(actual)}")
    for place, (abstract, real) in enumerate(zip(results, actual, strict=True)):
        tally.entries += 1
        tally.nonzero += 1
        if abstract.shape != real.shape or abstract.dtype != real.dtype:
            raise Mismatch(
                f"output {place} {where} is {abstract.dtype}{list(abstract.shape)}, "
                f"expected {real.dtype}{list(real.shape)}"
            )
        if real.numel() and _strides(abstract) != _strides(real):
            raise Mismatch(
                f"output {place} of shape {list(real.shape)} has strides {abstract.stride()} "
                f"{where}, expected {real.stride()}"
            )


def _strides(x: Tensor) -> tuple[int | None, ...]:
    """Return the strides, with None for that of a dimension of size 1, which no step uses."""
    strides: list[int | None] = list(x.stride())
    for dim, size in enumerate(x.shape):
        if size == 1:
            strides[dim] = None
    return tuple(strides)


def _require_same_bits(first: Outputs, other: Outputs, what: str, tally: Tally) -> None:
    """Raise Mismatch unless two calls gave the same bits. A NaN equals any other one."""
    if len(first) != len(other):
        raise Mismatch(f"{what} gives {len(other)} outputs, the first {len(first)}")
    for place, (x, y) in enumerate(zip(first, other, strict=True)):
        tally.entries += x.numel()
        tally.nonzero += x.numel()  # zeros are the same bits too
        if x.shape != y.shape or x.dtype != y.dtype:
            raise Mismatch(
                f"{what}: output {place} is {y.dtype}{list(y.shape)}, "
                f"the first {x.dtype}{list(x.shape)}"
            )
        are_nan = (x != x) & (y != y)
        differing = ~((x == y) | are_nan)
        if bool(differing.any()):
            raise Mismatch(
                f"{what}: {int(differing.sum())} of {x.numel()} entries of output "
                f"{place} have other bits"
            )
