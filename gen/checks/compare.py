"""Compare results with those of a reference, entry by entry.

Two right answers may differ by rounding, and no fixed tolerance describes it. So if the quick
comparison fails, the reference runs again.

- In a narrow dtype it runs in float64. A result passes if it is about as near to the float64
  result as the first reference was.
- In float64 it runs on inputs that are off by an ulp. A result passes if its error is about as
  large as the resulting change.

In all functions `a` is an actual tensor and `e` the expected one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import torch

from gen.outcomes import Mismatch, Unsuitable, stable_part
from gen.samples.domains import is_inexact

Tensor = torch.Tensor
Outputs = Sequence[Tensor]

# those of double precision are tight enough to show a step in single precision (6e-8)
_TOLERANCES = {
    torch.float64: 1e-8,
    torch.complex128: 1e-8,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
NUMERIC = 2e-6  # central differences with extrapolation, in float64
SHOWN = 16  # entries of a tensor that a mismatch shows whole
NOISE = 1e-9  # rounding of values of size 1, divided by the smallest step
# a narrow result may be this many times as far from the float64 result as the reference is
FACTOR = 4.0
ULPS = 16.0
# a wide result may be off by this many times the change that an ulp in the inputs makes
CONDITIONING = 64.0


@dataclass
class Tally:
    """Counts of a case: `entries` compared, `nonzero` ones on either side, `unknown` ones that the
    reference could not give."""

    entries: int = 0
    nonzero: int = 0
    unknown: int = 0


@dataclass(frozen=True)
class Rule:
    """How to compare: an explicit tolerance, and what is known of the reference."""

    rtol: float | None = None
    atol: float | None = None
    numeric: bool = False  # NaN in the reference means "unknown"
    widened: bool = False  # the reference has double precision, whatever the target's dtype
    dtype: torch.dtype | None = None  # the dtype whose rounding counts, if not that of the results
    least: Mapping[torch.dtype, float] = field(default_factory=dict)  # tolerances of the device

    def bounds(self, dtype: torch.dtype, expected: Tensor) -> tuple[float, float]:
        """Return ``(rtol, atol)``.

        The default atol grows with the magnitude of the output, so that errors of small outputs
        show.
        """
        base = max(_TOLERANCES.get(dtype, 0.0), _TOLERANCES.get(self.dtype or dtype, 0.0))
        base = max(base, self.least.get(dtype, 0.0))
        if self.numeric:
            base = max(base, NUMERIC)
        rtol = base if self.rtol is None else self.rtol
        if self.atol is not None:
            return rtol, self.atol
        # The floor is for results of size 0, where a relative bound would allow nothing.
        magnitude = _magnitude(expected)
        floor = 0.0
        if self.numeric:
            floor = NOISE
        elif is_inexact(dtype):
            floor = ULPS * torch.finfo(dtype).eps
        return rtol, max(rtol * min(1.0, magnitude) + 1e-4 * base * magnitude, floor)


def compare(
    actual: Outputs,
    expected: Outputs,
    rule: Rule,
    tally: Tally,
    second: Callable[[], Outputs] | None = None,
    conditioned: bool = False,
) -> None:
    """Raise Mismatch unless `actual` agrees with `expected`. Count the comparisons in `tally`.

    `second` returns the reference's results once more: in float64 for a narrow dtype, and on inputs
    off by an ulp for a wide one. With `conditioned`, the inputs are off by an ulp for any dtype. It
    is called only when the quick comparison fails.
    """
    if len(actual) != len(expected):
        raise Mismatch(f"{len(actual)} outputs, expected {len(expected)}")
    other: Outputs | None = None
    for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
        _require_same_kind(place, a, e, rule)
        a, e = a.detach(), e.detach()
        # A numeric reference gives NaN where the function has no derivative.
        is_known = ~e.isnan() if rule.numeric else None
        _count_entries(a, e, is_known, tally)
        difference = _errors(a, e, rule, is_known)
        if difference is None:
            continue
        if second is not None and _allows_rounding(rule, a.dtype):
            # One more run of the reference serves all outputs. Most comparisons need none.
            other = other or _run_or_none(second)
            if other and _differs_by_rounding(a, e, other[place], conditioned):
                continue
        index = _index_of_largest(difference)
        raise Mismatch(
            _describe(place, len(expected), a, e, difference, rule.bounds(a.dtype, e)),
            expected=_shown(e, index),
            actual=_shown(a, index),
        )


def _run_or_none(second: Callable[[], Outputs]) -> Outputs | None:
    """Return the results of a second run; None if the program cannot be asked in its dtype, which
    says nothing of the first run."""
    try:
        return second()
    except Unsuitable:
        return None


def _count_entries(a: Tensor, e: Tensor, is_known: Tensor | None, tally: Tally) -> None:
    """Count the entries of one output.

    `is_known` marks those that the reference could give. None if it gave all.
    """
    compared = e.numel() if is_known is None else int(is_known.sum())
    tally.entries += compared
    tally.unknown += e.numel() - compared
    tally.nonzero += int((a != 0).sum()) + int((e != 0).sum())  # count_nonzero takes no uint64


def _allows_rounding(rule: Rule, dtype: torch.dtype) -> bool:
    """Return whether the rounding of the reference may decide. An explicit tolerance is final."""
    return rule.rtol is None and not rule.numeric and is_inexact(dtype)


def _differs_by_rounding(a: Tensor, e: Tensor, other: Tensor, conditioned: bool) -> bool:
    """Return whether rounding explains the difference of `a` and `e`.

    `other`: the second result of the reference, see :func:`compare`.
    """
    # `other` is then of changed inputs, and nothing is nearer to the truth than `e` itself: with it
    # as the exact result, a few ulps of it are allowed.
    if conditioned:
        return _is_within_conditioning(a, e, other) or _is_as_good(a, e, e)
    if _is_narrow(a.dtype):
        return _is_as_good(a, e, other)
    return _is_within_conditioning(a, e, other)


def compare_kinds(actual: Outputs, expected: Outputs, tally: Tally) -> None:
    """Raise Mismatch unless number, shapes and dtypes of the outputs agree. Each output
    counts as one entry."""
    if len(actual) != len(expected):
        raise Mismatch(f"{len(actual)} outputs, expected {len(expected)}")
    for place, (a, e) in enumerate(zip(actual, expected, strict=True)):
        _require_same_kind(place, a, e, Rule())
        tally.entries += 1
        tally.nonzero += 1


def _require_same_kind(place: int, a: Tensor, e: Tensor, rule: Rule) -> None:
    """Raise Mismatch unless two outputs have the same shape and, where it counts, dtype."""
    if a.shape != e.shape:
        raise Mismatch(
            f"output {place} has shape {list(a.shape)}, expected {list(e.shape)}",
            expected=f"shape {list(e.shape)}",
            actual=f"shape {list(a.shape)}",
        )
    if not rule.widened and a.dtype != e.dtype:
        raise Mismatch(
            f"output {place} has dtype {a.dtype}, expected {e.dtype}",
            expected=f"dtype {e.dtype}",
            actual=f"dtype {a.dtype}",
        )


def _errors(a: Tensor, e: Tensor, rule: Rule, is_known: Tensor | None) -> Tensor | None:
    """Return None if all entries are close. Otherwise return the error of each entry, which is 0
    for a close one.
    """
    common = torch.promote_types(a.dtype, e.dtype)
    rtol, atol = rule.bounds(a.dtype, e)
    a, e = a.to(common), e.to(common)
    close = torch.isclose(a, e, rtol=rtol, atol=atol, equal_nan=True)
    if common.is_complex:  # where one part is infinite, the other still has a tolerance
        parts = torch.isclose(_parts(a), _parts(e), rtol=rtol, atol=atol, equal_nan=True)
        close = close | parts.all(-1)
    if is_known is not None:
        close = close | ~is_known
    if bool(close.all()):
        return None
    # Only for the message: the error in the dtype of the results may overflow.
    wide = torch.complex128 if common.is_complex else torch.float64
    error = (a.to(wide) - e.to(wide)).abs()
    return torch.where(
        close, torch.zeros_like(error), torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf)
    )


def _parts(x: Tensor) -> Tensor:
    """Return the real and imaginary parts of a tensor, in a last dimension."""
    return torch.view_as_real(x.resolve_conj())


def _is_as_good(a: Tensor, e: Tensor, exact: Tensor) -> bool:
    """Return whether `a` is about as near to the float64 result as `e` is. Infinities and NaNs must
    agree.
    """
    wide = torch.complex128 if exact.is_complex() else torch.float64
    a_wide, e_wide, exact = a.to(wide), e.to(wide), exact.to(wide)
    # Where the narrow reference overflows, nothing says how far off a finite result may be.
    finite = torch.isfinite(exact) & torch.isfinite(e_wide)
    if not bool(torch.isclose(a_wide[~finite], e_wide[~finite], equal_nan=True).all()):
        return False
    if not bool(finite.any()):
        return True
    a_wide, e_wide, exact = a_wide[finite], e_wide[finite], exact[finite]
    eps = torch.finfo(a.dtype).eps
    # The largest error of the reference serves all entries: by chance its own may be 0 in one of
    # them. The last term is for results that are rounded to a subnormal number.
    allowed = (
        FACTOR * (e_wide - exact).abs().max() + ULPS * eps * exact.abs() + torch.finfo(a.dtype).tiny
    )
    return bool(((a_wide - exact).abs() <= allowed).all())


def _is_within_conditioning(a: Tensor, e: Tensor, nudged: Tensor) -> bool:
    """Return whether `a` differs from `e` by about as much as rounding of the inputs changes
    `e`.
    """
    finite = torch.isfinite(e) & torch.isfinite(nudged)
    # No finite entry, no change: then the quick comparison, which has failed, decides.
    if not bool(finite.any()):
        return False
    if not bool(torch.isclose(a[~finite], e[~finite], equal_nan=True).all()):
        return False
    # The largest change serves all entries: by chance that of one of them may be 0.
    change = (nudged[finite] - e[finite]).abs().max()
    return bool(((a[finite] - e[finite]).abs() <= CONDITIONING * change).all())


def _is_narrow(dtype: torch.dtype) -> bool:
    """Return whether the reference has a wider dtype, in which it can run again."""
    return is_inexact(dtype) and dtype not in (torch.float64, torch.complex128)


def _magnitude(x: Tensor) -> float:
    """Return the largest size of a finite entry, and 0 if there is none."""
    if not is_inexact(x.dtype) or not x.numel():
        return 0.0
    size = x.abs()
    size = size[torch.isfinite(size)]
    return float(size.max()) if size.numel() else 0.0


def _describe(
    place: int, count: int, a: Tensor, e: Tensor, error: Tensor, bounds: tuple[float, float]
) -> str:
    """Say where the largest error of an output is, and show both values there."""
    index = _index_of_largest(error)
    where = f" at index {list(index)}" if index else ""
    return (
        f"output {place} of {count}, {str(a.dtype).removeprefix('torch.')}{list(a.shape)}: "
        f"largest error {float(error.max()):.3g}{where}: got {a[index].item()}, "
        f"expected {e[index].item()}; {int((error > 0).sum())} of {error.numel()} entries differ "
        f"(rtol {bounds[0]:.2g}, atol {bounds[1]:.2g})"
    )


def _index_of_largest(error: Tensor) -> tuple[int, ...]:
    """Return the index of the largest error of an output. Empty for a scalar."""
    if not error.ndim:
        return ()
    return tuple(map(int, torch.unravel_index(error.argmax(), error.shape)))


def _shown(x: Tensor, index: tuple[int, ...]) -> str:
    """Return a small tensor as text, and of a larger one the entry at `index`."""
    if x.numel() <= SHOWN:
        return str(x.tolist())
    return f"{x[index].item()} at index {list(index)}"


# --- between runs ---------------------------------------------------------------------------------


class Seen:
    """The values that a target gave in a case, in short. By this two runs are compared whose cells
    all pass.

    ``digest``: of all values, in their order; empty if there were none. ``refusal``: the first
    error that the target raised in place of values.
    """

    def __init__(self) -> None:
        self.refusal = ""
        self._digest = blake2b(digest_size=8)
        self._has_values = False

    @property
    def digest(self) -> str:
        """Return the digest of the values so far."""
        return self._digest.hexdigest() if self._has_values else ""

    def values(self, outputs: Sequence[torch.Tensor]) -> None:
        """Add tensors to the digest. They may have any dtype and device. Those of meta have no
        values and are left out.
        """
        for x in outputs:
            if x.device.type == "meta":
                continue
            self._has_values = True
            # The shape counts too: two tensors may have the same bytes.
            self._digest.update(f"{x.dtype} {tuple(x.shape)}".encode())
            self._digest.update(_bits(x))

    def refused(self, error: Exception) -> None:
        """Note an error, of which the part that is the same in each run counts."""
        self.refusal = self.refusal or f"{type(error).__name__}: {stable_part(error)}"


def _bits(x: torch.Tensor) -> bytes:
    """Return the elements of a tensor as bytes. All NaNs are one: their signs and payloads are of
    the kernel.
    """
    x = x.detach().cpu()
    if x.layout is not torch.strided:
        x = x.to_dense()
    x = x.resolve_conj().resolve_neg()
    if x.is_complex():
        x = torch.view_as_real(x)
    elements = torch.empty(x.numel(), dtype=x.dtype)  # of stride 1, as no view has to be
    elements.copy_(x.reshape(-1))
    if elements.dtype in _TOLERANCES:
        elements[elements != elements] = torch.nan
    return elements.view(torch.uint8).numpy().tobytes()
