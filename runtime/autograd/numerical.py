"""Computes derivatives by central differences, (f(x + eps) - f(x - eps)) / (2 eps), for
``gradcheck``.

A Jacobian has one row per element of the input and one column per element of the output. Dense
inputs are perturbed in place, below the tape and without a change of their version. A sparse input
has another inner tensor meanwhile. Both get their values back. A real function of a complex number
has two derivatives. They are combined as on the tape: ``d/dx + i d/dy``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any, NamedTuple

import torch

from ..seam.levels import Value
from ..seam.scope import is_floating
from ..session.tensor import unwrap
from ..torch_private.native_tensors import mkldnn_layout

Outputs = Callable[[], Sequence[torch.Tensor]]


class Steps(NamedTuple):
    """Inputs are perturbed by ``eps``. ``masked``: of a sparse input only the elements
    that it specifies."""

    eps: float
    masked: bool = False


def plain(tensor: Any) -> torch.Tensor:
    """Return the tensor under a value of level zero, without history."""
    if isinstance(tensor, Value):
        tensor = unwrap(tensor)
    return tensor.detach()  # type: ignore[no-any-return]


def dense(tensor: Any) -> torch.Tensor:
    """Return the plain tensor under ``tensor`` without a sparse layout."""
    if tensor.layout is torch.strided:
        return plain(tensor)
    return plain(tensor).to_dense()


def _arrange_elements(pattern: torch.Tensor, elements: torch.Tensor, masked: bool) -> torch.Tensor:
    """Return the dense ``elements`` as a tensor in the layout of ``pattern``. ``masked``: only
    those that ``pattern`` specifies."""
    layout = pattern.layout
    if layout is mkldnn_layout:
        return elements.to_mkldnn()
    if not masked:
        if layout is torch.sparse_coo:
            return elements.to_sparse(pattern.sparse_dim())
        blocks = None
        if layout in (torch.sparse_bsr, torch.sparse_bsc):
            blocks = pattern.values().shape[1:3]
        return elements.to_sparse(layout=layout, blocksize=blocks, dense_dim=pattern.dense_dim())
    values = pattern.values()
    n_stored = values.numel()
    numbers = torch.arange(1, n_stored + 1, dtype=torch.float64, device=values.device)
    # the place of each element among the stored ones, counted from 1; 0 if it is not stored
    number = _like(pattern, numbers.reshape(values.shape)).to_dense().reshape(-1)
    # sorted by number, the zeros of elements that are not stored come first
    places = number.argsort(stable=True)[number.numel() - n_stored :]
    return _like(pattern, elements.reshape(-1)[places].reshape(values.shape))


def _like(pattern: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Return a sparse tensor that specifies the elements that ``pattern`` does, with other
    values."""
    layout = pattern.layout
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(
            pattern.indices(), values, pattern.shape, is_coalesced=True, check_invariants=False
        )
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        compressed, other = pattern.crow_indices(), pattern.col_indices()
    else:
        compressed, other = pattern.ccol_indices(), pattern.row_indices()
    return torch.sparse_compressed_tensor(
        compressed, other, values, pattern.shape, layout=layout, check_invariants=False
    )


@contextmanager
def _adder_to(value: Any, masked: bool) -> Iterator[Callable[[torch.Tensor], object]]:
    """Yield a function that adds a dense tensor to ``value``, below the tape and without a new
    version. Afterwards ``value`` gets its values back."""
    tensor = plain(value)
    if tensor.layout is torch.strided:
        data = tensor.data  # writes to it are not counted as versions of the input
        before = data.clone()
        try:
            # always from the first values: adding and taking back would leave rounding errors
            yield lambda step: data.copy_(before + step)
        finally:
            data.copy_(before)
        return
    inner = value._inner
    before = tensor.to_dense()
    try:
        yield lambda step: setattr(
            value, "_inner", _arrange_elements(tensor, before + step, masked)
        )
    finally:
        value._inner = inner


def _snapshot(outputs: Outputs) -> list[torch.Tensor]:
    """Return copies of the outputs. Integers become real, as differences are divided."""
    copies = [plain(output).clone() for output in outputs()]
    return [copy if is_floating(copy) else copy.double() for copy in copies]


def directional_derivatives(
    outputs: Outputs, value: object, direction: torch.Tensor, steps: Steps, where: str = ""
) -> list[torch.Tensor]:
    """Return the derivatives of all outputs by ``value`` along ``direction``, a dense tensor.
    ``where``: the element, for an error."""
    eps = steps.eps
    with _adder_to(value, steps.masked) as move:
        # each move starts from the values before, so this is a step back and then one forth
        move(-eps * direction)
        low = _snapshot(outputs)
        move(eps * direction)
        high = _snapshot(outputs)
    for lower, upper in zip(low, high, strict=True):
        for what in ("shape", "dtype"):
            if getattr(lower, what) != getattr(upper, what):
                raise AssertionError(
                    f"Expected `func` to return outputs with the same {what} "
                    f"when inputs are perturbed {where}by {eps}, but got: "
                    f"{what}s {getattr(lower, what)} and {getattr(upper, what)}."
                )
    return [(upper - lower) / (2 * eps) for lower, upper in zip(low, high, strict=True)]


def zeros(value: torch.Tensor, *shape: int) -> torch.Tensor:
    """Return dense zeros of the dtype and on the device of ``value``."""
    return plain(torch.zeros(shape, dtype=value.dtype, device=value.device))


def one_hots(value: Any) -> Iterator[torch.Tensor]:
    """Yield for each element of ``value`` a dense tensor of the same shape with one at that place
    and zero elsewhere."""
    for index in product(*map(range, value.shape)):
        step = zeros(value, *value.shape)
        step[index] = 1
        yield step


def jacobian(outputs: Outputs, x: Any, steps: Steps) -> list[torch.Tensor]:
    """Return the Jacobian of each output by ``x``, (elements of x, elements of output). With
    complex ``x`` the outputs must be real."""
    rows: list[list[torch.Tensor]] = []
    for index, step in zip(product(*map(range, x.shape)), one_hots(x), strict=True):
        where = f"on index {index} "
        derivatives = directional_derivatives(outputs, x, step, steps, where)
        if x.is_complex():
            imaginary = directional_derivatives(outputs, x, 1j * step, steps, where)
            pairs_of_axes = zip(derivatives, imaginary, strict=True)
            derivatives = [by_real + 1j * by_imaginary for by_real, by_imaginary in pairs_of_axes]
        rows.append([derivative.reshape(-1) for derivative in derivatives])
        pairs = zip(rows[-1], rows[0], strict=True)
        if any(last.numel() != first.numel() for last, first in pairs):
            raise ValueError(
                "the size of an output depends on which elements of a sparse input are "
                "zero; pass masked=True"
            )
    # an input without elements: a call shows the sizes of the outputs
    if not rows:
        return [output.new_zeros(0, output.numel()) for output in _snapshot(outputs)]
    return list(map(torch.stack, zip(*rows, strict=True)))


def vector_product(
    outputs: Outputs, value: torch.Tensor, u: Sequence[torch.Tensor], steps: Steps
) -> list[torch.Tensor]:
    """Return each Jacobian times a direction in the space of ``value``. ``u``: a direction for the
    real axis, and for complex ``value`` one for the imaginary axis. The two derivatives become real
    and imaginary part."""
    real = directional_derivatives(outputs, value, u[0].reshape(value.shape).to(value.dtype), steps)
    if not value.is_complex():
        return real
    imaginary = directional_derivatives(outputs, value, 1j * u[1].reshape(value.shape), steps)
    return [a + 1j * b for a, b in zip(real, imaginary, strict=True)]
