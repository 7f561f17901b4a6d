"""Maximum pooling in another memory format gives the same bits, in the same layout, where it is
worth its transpositions."""

import math
import random
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import aot

from .executed import Noting, executed, same_bits

aten = torch.ops.aten
Images = torch.Tensor
COMPARED = 1 << 15  # elements that are compared for each result, below which nothing is saved


def pooled_in_another_format(x: Images, *window: Any) -> bool:
    """Return whether the compiled pooling transposes images. It gives the bits and the layout that
    the pooling of torch gives."""
    ops = executed(lambda x: aten.max_pool2d_with_indices(x, *window), x)
    assert ops.count(aten.max_pool2d_with_indices.default) == 1
    return aten.contiguous.default in ops


def _special(shape: tuple[int, ...], seed: int) -> Images:
    """Few different numbers, so that many are equal, among them NaNs, infinities and
    zeros of both signs."""
    torch.manual_seed(seed)
    x, r = torch.randint(-2, 3, shape).float(), torch.rand(shape)
    for value, low in ((math.nan, 0.0), (-math.inf, 0.1), (math.inf, 0.2), (-0.0, 0.3)):
        x[(r > low) & (r < low + (0.05 if seed % 2 else 0.1))] = value
    return x


@pytest.mark.parametrize("seed", range(40))
def test_both_formats_choose_the_same_elements(seed: int) -> None:
    draw = random.Random(seed)
    channels, height, width = (
        draw.choice((16, 17, 20, 33)),
        draw.randint(4, 9),
        draw.randint(4, 9),
    )
    window, stride = ([draw.randint(1, 3) for _ in range(2)] for _ in range(2))
    padding, dilation = [draw.randint(0, k // 2) for k in window], [1, draw.randint(1, 2)]
    elements = COMPARED * math.prod(stride) / math.prod(window)
    shape = (math.ceil(elements / (channels * height * width)), channels, height, width)
    x = torch.full(shape, -math.inf) if seed == 0 else _special(shape, seed)
    ceil_mode = draw.random() < 0.5
    assert pooled_in_another_format(x, window, stride, padding, dilation, ceil_mode)


WORTH_IT = torch.randn(8, 16, 32, 32)
OTHERS = {
    "few channels": torch.randn(64, 3, 32, 32),
    "few elements": torch.randn(2, 16, 8, 8),
    "more than the caches take": torch.empty(1, 1, 1, 1).expand(65, 64, 32, 32),
    "one row": torch.randn(8, 16, 1, 1024),
    "channels last": WORTH_IT.contiguous(memory_format=torch.channels_last),
    "double precision": WORTH_IT.double(),
    "no batch": WORTH_IT[0],
}


def _window(x: Images) -> list[int]:
    return [min(2, x.shape[-2]), 2]


def test_contiguous_images_of_many_channels_are_pooled_so() -> None:
    assert pooled_in_another_format(WORTH_IT, _window(WORTH_IT))


def test_a_single_element_of_each_channel_has_the_strides_of_contiguous_images() -> None:
    assert pooled_in_another_format(WORTH_IT, [32])


@pytest.mark.parametrize("x", OTHERS.values(), ids=OTHERS)
def test_other_images_are_pooled_as_they_are(x: Images) -> None:
    images = x.contiguous() if 0 in x.stride() else x
    assert not pooled_in_another_format(images, _window(images))


def test_a_program_for_any_size_decides_at_each_call() -> None:
    def pooled(x: Images) -> Any:
        return nn.functional.max_pool2d_with_indices(x, (2, 2))

    noting, transposed = Noting(), []
    compiled = aot.aot_function(pooled, noting, dynamic=True)
    compiled(WORTH_IT)
    for x in (WORTH_IT, WORTH_IT[:2, :, :8, :8].contiguous(), WORTH_IT[:4]):
        same_bits(compiled(x), pooled(x))
        transposed.append(aten.contiguous.default in noting.calls.ops)
    assert transposed == [True, False, True] and len(noting.modules) == 1


def test_the_gradient_of_pooled_images_is_that_of_eager() -> None:
    def f(x: Images) -> torch.Tensor:
        return nn.functional.max_pool2d(x, 3, 2, 1).square().sum()

    x, reference = runtime.wrap(WORTH_IT, requires_grad=True), WORTH_IT.clone().requires_grad_()
    aot.aot_function(f, aot.nop)(x).backward()
    f(reference).backward()
    assert reference.grad is not None and torch.equal(runtime.unwrap(x.grad), reference.grad)


@pytest.mark.parametrize(
    "shape, window, stride, pays",
    [
        ((1, 16, 32, 64), [2, 2], [2, 2], True),  # 2 ** 15 elements, each compared once
        ((1, 16, 31, 64), [2, 2], [2, 2], False),
        ((1, 16, 16, 32), [2, 2], [1, 1], True),  # four times
        ((1, 16, 16, 31), [2, 2], [1, 1], False),
        ((1, 16, 16, 32), [2], [1], True),
        ((1, 16, 32, 64), [2], [], True),
        ((1, 16, 31, 64), [2], [], False),
        ((1, 16, 8, 64), [2, 4], [1, 2], True),
        ((2, 15, 64, 64), [2, 2], [2, 2], False),
        ((2, 16, 2, 1024), [2, 2], [2, 2], True),
        ((2, 16, 1, 2048), [1, 2], [1, 2], False),
        ((2, 16, 2048, 1), [2, 1], [2, 1], False),
        ((64, 16, 64, 64), [2, 2], [2, 2], True),  # 2 ** 22 elements
        ((64, 16, 64, 65), [2, 2], [2, 2], False),
    ],
)
def test_images_are_transposed_where_that_saves_enough(
    shape: tuple[int, ...], window: list[int], stride: list[int], pays: bool
) -> None:
    x = torch.zeros(shape)
    assert pooled_in_another_format(x, window, stride) is pays
    last = x.contiguous(memory_format=torch.channels_last)
    assert not pooled_in_another_format(last, window, stride)
