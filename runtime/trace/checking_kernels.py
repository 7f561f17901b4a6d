"""Replaces, in traces, composite ops whose C++ kernels read elements to check them.

``cov(x, fweights=w)`` reads whether all weights are at least zero. A trace refuses to read. So
the check becomes a call of ``_assert_async`` in the graph, which every later call of the graph
carries out on its own arguments. Calls outside of a trace go on to ATen, and so does a call
that ATen refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..seam.passing_on import BELOW, SNAPSHOT, passing_on
from ..seam.scope import is_floating
from ..torch_private.dispatcher import DispatchKey, DispatchKeySet, OpOverload
from ..torch_private.native_functions import assert_async
from .composite_kernels import Refused, symbolic
from .regions import traced

aten = torch.ops.aten
Tensor = torch.Tensor
_LIBRARY = torch.library.Library("aten", "IMPL")  # its registrations last as long as this object
_istft_unchecked: Callable[..., Tensor] = aten.istft.default.py_kernels[
    DispatchKey.CompositeImplicitAutograd
]
_LOWEST = 1e-11  # the least sum of squares of the windows by which istft divides


def _register_for_traces(
    overload: OpOverload,
) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Use the decorated function for ``overload`` in a trace. It gets every argument by its
    name in the schema."""

    def register(function: Callable[..., object]) -> Callable[..., object]:
        """Add the kernel to the dispatcher's, and return ``function`` as it is."""
        pass_on = passing_on(overload)
        names = [argument.name for argument in overload._schema.arguments]

        def run(keys: DispatchKeySet, *args: object, **kwargs: object) -> Any:
            """Call ``function`` in a trace, and pass the call on where it refuses or there is
            none."""
            if traced(args, kwargs):
                try:
                    return function(**dict(zip(names, args, strict=False)), **kwargs)
                except Refused:
                    pass
            return pass_on(keys & BELOW, *args, **kwargs)

        name = overload._name.removeprefix("aten::")
        _LIBRARY.impl(name, run, SNAPSHOT.name, with_keyset=True)
        return function

    return register


def _require(holds: Tensor, message: str) -> None:
    """Add a call to the graph that raises ``RuntimeError`` unless ``holds``, one element, is
    true."""
    assert_async(holds, message)


@_register_for_traces(aten.cov.default)
def _cov(
    self: Tensor,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Return the covariance of the rows of ``self``, as ``torch.cov``. Without weights ATen checks
    no elements, so it does that itself unless a size is a symbol."""
    if fweights is None and aweights is None and not symbolic(self):
        raise Refused
    if self.dim() > 2 or self.dtype is torch.bool:
        raise Refused
    x = self
    if self.dim() < 2:  # one variable
        x = self.reshape(1, -1)
    observations = x.shape[1]
    if fweights is None and aweights is None:
        centred = x - (x.sum(1) / observations).unsqueeze(1)
        # as ATen, which divides by zero where there are too few observations
        divisor: Any = torch.sym_max(observations - correction, 0)
        return centred.mm(centred.t().conj()).true_divide(divisor).squeeze()
    return _weighted_cov(x, correction, fweights, aweights)


def _weighted_cov(
    x: Tensor, correction: int, fweights: Tensor | None, aweights: Tensor | None
) -> Tensor:
    """Return the covariance of the rows of ``x``, with one or both kinds of weights."""
    observations = x.shape[1]
    checked = [
        _check_weights(name, each, observations)
        for name, each in (("fweights", fweights), ("aweights", aweights))
        if each is not None
    ]
    weights = checked[0]
    if len(checked) == 2:
        weights = weights * checked[1]
    # step by step as ATen's kernel
    total = weights.sum()
    _require(total.ne(0), "cov(): weights sum to zero, can't be normalized")
    centred = x - ((x * weights).sum(1) / total).unsqueeze(1)
    divisor: Any = total - correction
    if aweights is not None and correction != 0:
        divisor = total - correction * (weights * aweights).sum() / total
    divisor = torch.where(divisor <= 0, torch.zeros_like(divisor), divisor)
    return centred.mm((centred * weights).t().conj()).true_divide(divisor).squeeze()


def _check_weights(name: str, weights: Tensor, observations: object) -> Tensor:
    """Return ``weights``, after a check in the graph that none is negative. ``observations``: how
    many there are."""
    if weights.dim() > 1 or weights.numel() != observations:
        raise Refused
    if not _fits_kind(name, weights):
        raise Refused
    if observations != 0:  # of nothing there is no minimum
        _require(weights.min().ge(0), f"cov(): {name} cannot be negative")
    return weights


def _fits_kind(name: str, weights: Tensor) -> bool:
    """Return whether frequencies are integers, and other weights are real."""
    if name != "fweights":
        return weights.is_floating_point()
    return not (is_floating(weights) or weights.dtype is torch.bool)


@_register_for_traces(aten.istft.default)
def _istft(
    self: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    **options: Any,
) -> Tensor:
    """Run ``torch.istft`` by torch's decomposition, and add the check that this leaves out: the
    windows together cover every sample."""
    arguments = (n_fft, hop_length, win_length, window, center)
    hop, width = hop_length, win_length
    if hop is None:
        hop = n_fft // 4
    if width is None:
        width = n_fft
    length = options.get("length")
    try:
        result = _istft_unchecked(self, *arguments, **options)
    except (RuntimeError, AssertionError, IndexError):
        # the C++ kernel says what is wrong in its own words
        raise Refused from None
    frames = self.shape[-1]
    samples = n_fft + hop * (frames - 1)
    padded = window
    if padded is None:
        padded = torch.ones(width, dtype=self.dtype.to_real(), device=self.device)
    left = (n_fft - width) // 2
    if width != n_fft:
        padded = aten.constant_pad_nd(padded, [left, n_fft - width - left])
    # the sum of squares of the windows over each sample, by which istft divides
    squares = padded.square().expand(1, frames, n_fft)
    cover = aten.unfold_backward(squares, [1, samples], 1, n_fft, hop)
    # centred frames begin half a window before the first sample
    start = n_fft // 2 if center else 0
    end = samples - start if length is None else start + length
    covered = cover[:, start:end].abs().min().lt(_LOWEST).logical_not()
    _require(covered, "istft: the windows together leave out a sample (window overlap add min)")
    return result


@_register_for_traces(aten.one_hot.default)
def _one_hot(self: Tensor, num_classes: int = -1) -> Tensor:
    """Return the one-hot rows of ``self``, with the checks that ATen leaves out in a trace. Without
    a number of classes that is the largest class and one, a symbol of the trace."""
    if self.dtype is not torch.long or self.numel() == 0 or num_classes in (0, None):
        raise Refused
    _require(self.min().ge(0), "one_hot: class values must be non-negative")
    count: Any = num_classes
    if num_classes == -1:  # torch's default: as many as there are
        count = self.max().item() + 1
    else:
        in_range = self.max().lt(num_classes)
        _require(in_range, "one_hot: class values must be smaller than num_classes")
    return (self.unsqueeze(-1) == torch.arange(count, device=self.device)).to(torch.long)
