"""Compare results with those of a reference, entry by entry.

Two right answers may differ by rounding, and no fixed tolerance describes it. So if the quick
comparison fails, the reference runs again.

- In a narrow dtype it runs in float64. A result passes if it is about as near to the float64
  result as the first reference was.
- In float64 it runs on inputs that are off by an ulp. A result passes if its error is about as
  large as the resulting change.
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

# Those of double precision are tight enough to show a step in single precision (6e-8).
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
# A narrow result may be this many times as far from the float64 result as the reference is.
FACTOR = 4.0
# Both may also be off by this many ulps: a reference may be exact by chance, and the target not.
ULPS = 16.0
# A wide result may be off by this many times the change that an ulp in the inputs makes.
CONDITIONING = 64.0


@dataclass
class Tally:
    """Counts of a case, over all of its comparisons."""

    # entries that were compared
    entries: int = 0
    # entries that are not 0, on either side; a case without any has shown nothing
    nonzero: int = 0
    # entries that the reference could not give
    unknown: int = 0


@dataclass(frozen=True)
class Rule:
    """How to compare: an explicit tolerance, and what is known of the reference."""

    # explicit bounds, which are final; without them the dtype and the reference decide
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
    for place, (output, reference) in enumerate(zip(actual, expected, strict=True)):
        _require_same_kind(place, output, reference, rule)
        output, reference = output.detach(), reference.detach()
        # A numeric reference gives NaN where the function has no derivative.
        is_known = ~reference.isnan() if rule.numeric else None
        _count_entries(output, reference, is_known, tally)
        difference = _errors(output, reference, rule, is_known)
        if difference is None:
            continue
        if second is not None and _allows_rounding(rule, output.dtype):
            # One more run of the reference serves all outputs. Most comparisons need none.
            other = other or _run_or_none(second)
            if other and _differs_by_rounding(output, reference, other[place], conditioned):
                continue
        index = _index_of_largest(difference)
        raise Mismatch(
            _describe(
                place,
                len(expected),
                output,
                reference,
                difference,
                rule.bounds(output.dtype, reference),
            ),
            expected=_shown(reference, index),
            actual=_shown(output, index),
        )


def _run_or_none(second: Callable[[], Outputs]) -> Outputs | None:
    """Return the results of a second run, or None if the program has no results in its dtype.

    The missing results say nothing of the first run.
    """
    try:
        return second()
    except Unsuitable:
        return None


def _count_entries(actual: Tensor, expected: Tensor, is_known: Tensor | None, tally: Tally) -> None:
    """Count the entries of one output.

    `is_known` marks those that the reference could give. It is None if it gave all.
    """
    compared = expected.numel() if is_known is None else int(is_known.sum())
    tally.entries += compared
    tally.unknown += expected.numel() - compared
    tally.nonzero += int((actual != 0).sum()) + int(
        (expected != 0).sum()
    )  # count_nonzero takes no uint64


def _allows_rounding(rule: Rule, dtype: torch.dtype) -> bool:
    """Return whether the rounding of the reference may decide. An explicit tolerance is final."""
    return rule.rtol is None and not rule.numeric and is_inexact(dtype)


def _differs_by_rounding(
    actual: Tensor, expected: Tensor, other: Tensor, conditioned: bool
) -> bool:
    """Return whether rounding explains the difference of `actual` and `expected`.

    `other` is the second result of the reference, see :func:`compare`.
    """
    # With `conditioned`, `other` belongs to changed inputs. So nothing is nearer to the truth than
    # `expected` itself. As the exact result it allows a few of its own ulps.
    if conditioned:
        return _is_within_conditioning(actual, expected, other) or _is_as_good(
            actual, expected, expected
        )
    if _is_narrow(actual.dtype):
        return _is_as_good(actual, expected, other)
    return _is_within_conditioning(actual, expected, other)


def compare_kinds(actual: Outputs, expected: Outputs, tally: Tally) -> None:
    """Raise Mismatch unless number, shapes and dtypes of the outputs agree.

    Each output counts as one entry.
    """
    if len(actual) != len(expected):
        raise Mismatch(f"{len(actual)} outputs, expected {len(expected)}")
    for place, (output, reference) in enumerate(zip(actual, expected, strict=True)):
        _require_same_kind(place, output, reference, Rule())
        tally.entries += 1
        tally.nonzero += 1


def _require_same_kind(place: int, actual: Tensor, expected: Tensor, rule: Rule) -> None:
    """Raise Mismatch unless two outputs have the same shape and, where it counts, dtype."""
    if actual.shape != expected.shape:
        raise Mismatch(
            f"output {place} has shape {list(actual.shape)}, expected {list(expected.shape)}",
            expected=f"shape {list(expected.shape)}",
            actual=f"shape {list(actual.shape)}",
        )
    if not rule.widened and actual.dtype != expected.dtype:
        raise Mismatch(
            f"output {place} has dtype {actual.dtype}, expected {expected.dtype}",
            expected=f"dtype {expected.dtype}",
            actual=f"dtype {actual.dtype}",
        )


def _errors(actual: Tensor, expected: Tensor, rule: Rule, is_known: Tensor | None) -> Tensor | None:
    """Return the error of each entry, which is 0 for a close one. Return None if all are close."""
    common = torch.promote_types(actual.dtype, expected.dtype)
    rtol, atol = rule.bounds(actual.dtype, expected)
    actual, expected = actual.to(common), expected.to(common)
    close = torch.isclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)
    # Where one part is infinite, the other still has a tolerance.
    if common.is_complex:
        parts = torch.isclose(
            _parts(actual), _parts(expected), rtol=rtol, atol=atol, equal_nan=True
        )
        close = close | parts.all(-1)
    if is_known is not None:
        close = close | ~is_known
    if bool(close.all()):
        return None
    # Only for the message: the error in the dtype of the results may overflow.
    wide = torch.complex128 if common.is_complex else torch.float64
    error = (actual.to(wide) - expected.to(wide)).abs()
    return torch.where(
        close, torch.zeros_like(error), torch.nan_to_num(error, nan=torch.inf, posinf=torch.inf)
    )


def _parts(x: Tensor) -> Tensor:
    """Return the real and imaginary parts of a tensor, in a last dimension."""
    return torch.view_as_real(x.resolve_conj())


def _is_as_good(actual: Tensor, expected: Tensor, exact: Tensor) -> bool:
    """Return whether `actual` is about as near to the float64 result as `expected` is.

    Infinities and NaNs must agree.
    """
    wide = torch.complex128 if exact.is_complex() else torch.float64
    actual_wide, expected_wide, exact = actual.to(wide), expected.to(wide), exact.to(wide)
    # Where the narrow reference overflows, nothing says how far off a finite result may be.
    finite = torch.isfinite(exact) & torch.isfinite(expected_wide)
    if not bool(torch.isclose(actual_wide[~finite], expected_wide[~finite], equal_nan=True).all()):
        return False
    if not bool(finite.any()):
        return True
    actual_wide, expected_wide, exact = actual_wide[finite], expected_wide[finite], exact[finite]
    eps = torch.finfo(actual.dtype).eps
    # The largest error of the reference serves all entries, because the error of one entry may be
    # 0 by chance. The last term is for results that are rounded to a subnormal number.
    allowed = (
        FACTOR * (expected_wide - exact).abs().max()
        + ULPS * eps * exact.abs()
        + torch.finfo(actual.dtype).tiny
    )
    return bool(((actual_wide - exact).abs() <= allowed).all())


def _is_within_conditioning(actual: Tensor, expected: Tensor, nudged: Tensor) -> bool:
    """Return whether the difference is about what rounding of the inputs makes.

    `nudged` is the expected result of inputs that are off by an ulp.
    """
    finite = torch.isfinite(expected) & torch.isfinite(nudged)
    # Without a finite entry there is no change. Then the quick comparison decides, and it failed.
    if not bool(finite.any()):
        return False
    if not bool(torch.isclose(actual[~finite], expected[~finite], equal_nan=True).all()):
        return False
    # The largest change serves all entries, because the change of one may be 0 by chance.
    change = (nudged[finite] - expected[finite]).abs().max()
    return bool(((actual[finite] - expected[finite]).abs() <= CONDITIONING * change).all())


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
    place: int,
    count: int,
    actual: Tensor,
    expected: Tensor,
    error: Tensor,
    bounds: tuple[float, float],
) -> str:
    """Say where the largest error of an output is, and show both values there."""
    index = _index_of_largest(error)
    where = f" at index {list(index)}" if index else ""
    kind = f"{str(actual.dtype).removeprefix('torch.')}{list(actual.shape)}"
    differing = int((error > 0).sum())
    return (
        f"output {place} of {count}, {kind}: "
        f"largest error {float(error.max()):.3g}{where}: got {actual[index].item()}, "
        f"expected {expected[index].item()}; {differing} of {error.numel()} entries differ "
        f"(rtol {bounds[0]:.2g}, atol {bounds[1]:.2g})"
    )


def _index_of_largest(error: Tensor) -> tuple[int, ...]:
    """Return the index of the largest error of an output, which is empty for a scalar."""
    if not error.ndim:
        return ()
    return tuple(map(int, torch.unravel_index(error.argmax(), error.shape)))


def _shown(x: Tensor, index: tuple[int, ...]) -> str:
    """Show a small tensor as a whole, and of a larger one the entry at `index`."""
    if x.numel() <= SHOWN:
        return str(x.tolist())
    return f"{x[index].item()} at index {list(index)}"


# --- between runs ---------------------------------------------------------------------------------


class Seen:
    """A digest of the values that a target gave in a case.

    Two runs whose cells all pass may still differ in their values. Their digests show that.
    """

    def __init__(self) -> None:
        # the first error that the target raised in place of values, or empty
        self.refusal = ""
        self._digest = blake2b(digest_size=8)
        self._has_values = False

    @property
    def digest(self) -> str:
        """Return the digest of the values so far, in their order. It is empty without any."""
        return self._digest.hexdigest() if self._has_values else ""

    def values(self, outputs: Sequence[torch.Tensor]) -> None:
        """Add tensors of any dtype and device to the digest.

        Tensors of the device meta have no values and are left out.
        """
        for x in outputs:
            if x.device.type == "meta":
                continue
            self._has_values = True
            # The shape counts too, because two tensors may have the same bytes.
            self._digest.update(f"{x.dtype} {tuple(x.shape)}".encode())
            self._digest.update(_bits(x))

    def refused(self, error: Exception) -> None:
        """Note an error, of which the part that is the same in each run counts."""
        self.refusal = self.refusal or f"{type(error).__name__}: {stable_part(error)}"


def _bits(x: torch.Tensor) -> bytes:
    """Return the elements of a tensor as bytes.

    All NaNs have the same bytes, because a kernel may choose their signs and payloads.
    """
    x = x.detach().cpu()
    if x.layout is not torch.strided:
        x = x.to_dense()
    x = x.resolve_conj().resolve_neg()
    if x.is_complex():
        x = torch.view_as_real(x)
    # The elements are copied, since a view as bytes needs the stride 1.
    elements = torch.empty(x.numel(), dtype=x.dtype)
    elements.copy_(x.reshape(-1))
    if elements.dtype in _TOLERANCES:
        elements[elements != elements] = torch.nan
    return elements.view(torch.uint8).numpy().tobytes()
