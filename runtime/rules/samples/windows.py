"""Hold the gradients of the weight of a convolution for each sample as factors.

    Windows(g, x, (O, C, 3, 3), [1], [0], [1], groups=1)

The gradient of a sample is a sum of outer products over the windows of its input: the cotangent at
a place times the window there. In shapes, B is the number of samples. See ``factors.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...huge_pages import empty_in_huge_pages
from ..derive.families import real
from .factors import (
    Grams,
    Scale,
    Tensor,
    Term,
    are_plain,
    scaled_by,
    smaller_way,
    wide,
    with_one_scaled,
)

_BYTES_IN_CACHE = 1 << 21
"""The bytes of operands, with their copies, that stay in a cache of the processor."""


class Windows(Term):
    """The gradients of the weight of a convolution: outer products of the cotangent with the
    windows of the input.

    ``x``: (B, N, C, *sizes). ``g``: (B, N, O, *places), the cotangent. The parameter has ``shape``
    (O, C / groups, *kernel). N is the number of images of one sample. A place is one of a window.
    """

    def __init__(
        self,
        g: Tensor,
        x: Tensor,
        shape: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.g, self.x = g, x
        self.size, self.shape, self.dtype = g.shape[0], torch.Size(shape), g.dtype
        rank = len(shape) - 2
        self.stride = per_dimension(stride, rank)
        self.padding = per_dimension(padding, rank)
        self.dilation = per_dimension(dilation, rank)
        self.groups = groups
        # the vectors of a sample are the windows of all its images
        places = g.shape[1] * math.prod(g.shape[3:])
        self.way = smaller_way(places, shape[0] // groups, math.prod(shape[1:]))

    def held(self) -> Sequence[Tensor]:
        return self.g, self.x

    def part(self, start: int, stop: int) -> Windows:
        return self._with_factors(self.g[start:stop], self.x[start:stop])

    def scaled(self, scale: Scale) -> Windows:
        return self._with_factors(*with_one_scaled(scale, self.g, self.x))

    def _with_factors(self, g: Tensor, x: Tensor) -> Windows:
        """Return the gradients by another cotangent and input, in the same geometry."""
        return Windows(g, x, self.shape, self.stride, self.padding, self.dilation, self.groups)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """Return the cotangent and the windows, of shapes (B, groups, places, O / groups) and (B,
        groups, places, C / groups * kernel)."""
        # `pad` takes the last dimension first, and both ends of each
        rank = len(self.shape) - 2
        ends: list[int] = []
        for width in reversed(self.padding):
            ends += [width, width]
        windows = torch.nn.functional.pad(self.x, ends)
        geometry = zip(self.shape[2:], self.stride, self.dilation, strict=True)
        for dim, (length, stride, dilation) in enumerate(geometry):
            # `unfold` knows no dilation, so it takes the whole span, of which each n-th remains
            span = (length - 1) * dilation + 1
            windows = windows.unfold(3 + dim, span, stride)[..., ::dilation]
        # B, N, groups, C / groups, *places, *kernel
        windows = windows.unflatten(2, (self.groups, -1))
        places, kernel = range(4, 4 + rank), range(4 + rank, 4 + 2 * rank)
        columns = math.prod(self.shape[1:])
        right = (
            windows.permute(0, 2, 1, *places, 3, *kernel)
            .reshape(self.size, self.groups, -1, columns)
            .conj()
        )
        left = self.g.unflatten(2, (self.groups, -1)).permute(0, 2, 1, *places, 3)
        # the number of places by `right`: one -1 alone can be inferred
        return left.reshape(self.size, self.groups, right.shape[2], -1), right

    def dense(self) -> Tensor:
        """Return the gradients, by backward passes of convolutions for some samples each.

        Such a pass copies its operands. There are so few samples in one that these fit into a
        cache.
        """
        # each `max` is for a batch without elements or without samples
        bytes_of_operands = max(1, self.x.nbytes + self.g.nbytes)
        step = max(1, _BYTES_IN_CACHE * max(1, self.size) // bytes_of_operands)
        if step >= self.size:
            return self._dense()
        parts = (
            self.part(index, min(index + step, self.size))._dense()
            for index in range(0, self.size, step)
        )
        if not are_plain(self.x, self.g):
            return torch.cat(list(parts))
        out = empty_in_huge_pages((self.size, *self.shape), self.dtype, self.g.device)
        for target, part in zip(out.split(step), parts, strict=True):
            # at once, as `part` is still in the cache; the replay of a captured program
            # does so as well
            target.copy_(part)
        return out

    def _dense(self) -> Tensor:
        """Return the gradients by one backward pass of a convolution that has the samples as
        groups."""
        # (N, B * C, …): a group of channels for each sample, so that no kernel mixes two of them
        x, g = (tensor.transpose(0, 1).flatten(1, 2) for tensor in (self.x, self.g))
        return self._backward(g, x, self.size).reshape(self.size, *self.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the gradient of one convolution whose cotangents are weighted."""
        return self._backward(
            scaled_by(weights, self.g).flatten(0, 1), wide(self.x).flatten(0, 1), 1
        )

    def _backward(self, g: Tensor, x: Tensor, times: int) -> Tensor:
        """Return the gradient of the weight of a convolution with ``times`` as many groups. Its
        shape is (times * O, C / groups, *kernel)."""
        shape = (times * self.shape[0], *self.shape[1:])
        like = g.new_empty(1).expand(shape)  # of the weight its shape alone matters
        geometry = (
            self.stride,
            self.padding,
            self.dilation,
            False,
            [0] * len(self.stride),
            times * self.groups,
        )
        weight_alone = [False, True, False]
        _, weight_grad, _ = torch.ops.aten.convolution_backward(
            g, x, like, None, *geometry, weight_alone
        )
        return weight_grad  # type: ignore[no-any-return]

    def squared_norms(self, grams: Grams) -> Tensor:
        """Return the norms by the Gram matrices of cotangents and windows, or by the gradients."""
        if self.needs_dense():
            return super().squared_norms(grams)
        left, right = map(wide, self._factors())
        return real(((left.conj() @ left.mT) * (right.conj() @ right.mT)).sum((1, 2, 3)))

    def dot(self, v: Tensor) -> Tensor:
        """Return the product of the cotangent with the convolution of ``v``."""
        no_output_padding = [0] * len(self.stride)
        # convolutions are linear in the weight, and ⟨gradient, v⟩ = ⟨cotangent, tangent along v⟩
        tangent = torch.ops.aten.convolution(
            self.x.flatten(0, 1),
            v,
            None,
            self.stride,
            self.padding,
            self.dilation,
            False,
            no_output_padding,
            self.groups,
        )
        return real((self.g.conj() * tangent.reshape(self.g.shape)).flatten(1).sum(1))


def per_dimension(values: Sequence[int], rank: int) -> list[int]:
    """Return one value for each of ``rank`` dimensions. A list of one holds for all of them."""
    if len(values) == 1:
        return list(values) * rank
    return list(values)
