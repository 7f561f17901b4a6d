"""Exchanges methods of torch's that ask for the elements of tensors, while a thread captures a
program.

    exchange = ExchangedMethod(nn.TransformerEncoder, "forward", make_forward, captures)
    exchange.enter()        # nn.TransformerEncoder.forward is make_forward(torch's, captures)
    exchange.exit()         # it is torch's once more, if no other capture runs

A capture has no elements to ask. So a method of this package asks by a condition in the graph. Two
of torch's classes have such methods.

*Encoders* in eval mode without gradients leave padded rows out: their layers compute with nested
tensors, and what is padded is zero at the end.

    encoder.eval()
    with torch.no_grad():
        encoder(x, src_key_padding_mask=mask)  # zeros where the mask is true

Torch does so if no mode of functions is on. The gate to memory is such a mode, and a graph takes no
nested tensors. So the rows are computed in a capture, and replaced here. Whether the mask ends each
row, which torch asks first, is a condition in the graph.

*Distributions* raise ``ValueError`` unless each argument is in its domain.

    torch.distributions.Normal(x, x.exp())      # each call asks whether the second is positive

Torch reads a Boolean for it. The graph has the question as ``aten::_assert_async``. Where the
answer is no, the graph raises before it has written anything, and the call that runs in eager mode
then raises torch's error. So it is with a Boolean that a constraint of the user's reads meanwhile.

*Numbers* that are symbols have no array. NumPy would take them for objects, and make arrays of
those.

    self.history = np.append(self.history, self.steps)      # NumPy asks the number for its value
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..torch_private.global_settings import name_of_private_device
from .ambient import Ambient
from .locks import lock_of
from .user_code import watched

Captures = Callable[[], bool]
"""Tells whether this thread captures a program. For any other thread the method is torch's."""
Method = Callable[..., Any]


class ExchangedMethod:
    """A method ``name`` of the class ``owner``.

    ``make``: gives the method that stands in, from torch's and ``captures``.
    """

    def __init__(
        self, owner: type, name: str, make: Callable[[Method, Captures], Method], captures: Captures
    ) -> None:
        self._owner, self._name = owner, name
        self._make, self._captures = make, captures
        self._lock = lock_of(self, "_lock")
        self._running = 0  # captures, in all threads
        self._torchs: Method = getattr(owner, name)

    def enter(self) -> None:
        """Exchange the method, if no other capture has done so."""
        with self._lock:
            if not self._running:
                self._torchs = getattr(self._owner, self._name)
                setattr(self._owner, self._name, self._make(self._torchs, self._captures))
            self._running += 1

    def exit(self) -> None:
        """Put torch's method back, if no other capture runs."""
        with self._lock:
            self._running -= 1
            if not self._running:
                setattr(self._owner, self._name, self._torchs)


# --- numbers -------------------------------------------------------------------------------------


def give_arrays(captures: Captures) -> None:
    """Give numbers that are symbols an ``__array__`` for good, which they have for NumPy while
    their thread captures a program. A method that came and went would be a change of the program's.
    """
    kinds: dict[Any, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    for cls, kind in kinds.items():
        cls.__array__ = property(_find_array(kind, captures))


def _find_array(kind: type, captures: Captures) -> Callable[[Any], Method]:
    """Return what finds ``__array__`` of a number. ``kind``: the class of its values."""

    def find(number: Any) -> Method:
        """Return the method. ``AttributeError`` outside of captures, which says that it is not
        there."""
        if not captures():
            raise AttributeError(f"{type(number).__name__!r} object has no attribute '__array__'")

        def as_array(dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
            return np.array(kind(number), dtype)

        return as_array

    return find


# --- encoders ------------------------------------------------------------------------------------

_DEVICES = ("cpu", "cuda", "xpu", name_of_private_device())


def make_forward(torchs: Method, captures: Captures) -> Method:
    """Return the method that stands in for ``torchs``, the ``forward`` of an encoder."""

    def forward(
        encoder: torch.nn.TransformerEncoder,
        src: torch.Tensor,
        mask: torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = None,
    ) -> object:
        """Run torch's ``forward``. In a capture, put zeros in place of rows that eager mode leaves
        out."""
        padding = src_key_padding_mask
        if padding is None or mask is not None:
            return watched(torchs, encoder, src, mask, padding, is_causal)
        if not captures() or not _leaves_out(encoder, src):
            return watched(torchs, encoder, src, mask, padding, is_causal)
        applies = _ends_rows(encoder, padding)
        if padding.is_floating_point():  # a row that is left out has no weight at all
            dropped = padding.masked_fill(padding != 0, -torch.inf)
            padding = torch.where(applies, dropped, padding)
        # eager mode fills the rows with zeros before the norm runs, so it runs after that here
        output = watched(torchs, _WithoutNorm(encoder), src, None, padding, is_causal)
        left_out = padding.bool() & applies
        output = torch.where(left_out.unsqueeze(-1), torch.zeros_like(output), output)
        if encoder.norm is None:
            return output
        return encoder.norm(output)

    return forward


def _leaves_out(encoder: torch.nn.TransformerEncoder, src: torch.Tensor) -> bool:
    """Return whether the encoder leaves padded rows out in eager mode, if they are the last
    ones."""
    first = encoder.layers[0]
    if not torch.backends.mha.get_fastpath_enabled() or first.training:
        return False
    if not getattr(encoder, "use_nested_tensor", False) or torch.is_autocast_enabled():
        return False
    if src.dim() != 3 or src.device.type not in _DEVICES:
        return False
    weights = (first.self_attn, first.norm1, first.norm2, first.linear1, first.linear2)
    leaves = [src]
    for part in weights:
        leaves += part.parameters()
    # with gradients torch takes the slow way, which leaves nothing out
    return not (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in leaves))


class _WithoutNorm:
    """An encoder without its norm, which comes after the rows are left out."""

    norm = None

    def __init__(self, encoder: object) -> None:
        self._encoder = encoder

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoder, name)


def _ends_rows(encoder: object, padding: torch.Tensor) -> torch.Tensor:
    """Return whether the mask is true only in the last columns of each row, a Boolean tensor. Torch
    asks this unless ``mask_check=False``. Example: False, False, True, True."""
    present = padding.logical_not()
    if not getattr(encoder, "mask_check", True):
        return present.new_ones(())
    return (present[:, 1:] <= present[:, :-1]).all()


# --- distributions -------------------------------------------------------------------------------


class _Running(Ambient):
    """``validates``: whether this thread runs a method of torch's that only validates."""

    validates = False


_RUNNING = _Running()


def make_validating(torchs: Method, captures: Captures) -> Method:
    """Return the method that stands in for ``torchs``, which validates arguments."""

    @functools.wraps(torchs)
    def validate(*args: Any, **kwargs: Any) -> Any:
        """Run torch's method, and let :func:`validates` say so meanwhile."""
        around = _RUNNING.validates
        _RUNNING.validates = captures()
        try:
            return watched(torchs, *args, **kwargs)
        finally:
            _RUNNING.validates = around

    return validate


def validates() -> bool:
    """Return whether a Boolean that this thread reads now is one that tells whether a distribution
    is valid. There is one answer with which the program goes on: that it is."""
    return _RUNNING.validates
