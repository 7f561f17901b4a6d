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
from runtime.aot.compilers import memory_rewrites
from runtime.aot.compilers.peephole import rewritten

aten = torch.ops.aten
Images = torch.Tensor


def _special(shape: tuple[int, ...], seed: int) -> Images:
    """Few different numbers, so that many are equal, among them NaNs, infinities and
    zeros of both signs."""
    torch.manual_seed(seed)
    x, r = torch.randint(-2, 3, shape).float(), torch.rand(shape)
    for value, low in ((math.nan, 0.0), (-math.inf, 0.1), (math.inf, 0.2), (-0.0, 0.3)):
        x[(r > low) & (r < low + (0.05 if seed % 2 else 0.1))] = value
    return x


@pytest.mark.parametrize("seed", range(40))
def test_both_formats_choose_the_same_elements(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_rewrites, "_COMPARED", 0)
    draw = random.Random(seed)
    shape = (
        draw.randint(1, 3),
        draw.choice((16, 17, 20, 33)),
        draw.randint(4, 9),
        draw.randint(4, 9),
    )
    window = [draw.randint(1, 3) for _ in range(2)]
    rest: list[Any] = [
        [draw.randint(1, 3) for _ in range(2)],
        [draw.randint(0, k // 2) for k in window],
        [1, draw.randint(1, 2)],
        draw.random() < 0.5,
    ]
    x = torch.full(shape, -math.inf) if seed == 0 else _special(shape, seed)
    assert memory_rewrites.pays(x, window, rest[0])
    for mine, theirs in zip(
        memory_rewrites.max_pool2d(x, window, *rest),
        aten.max_pool2d_with_indices(x, window, *rest),
        strict=True,
    ):
        assert mine.stride() == theirs.stride()
        assert torch.equal(mine.view(torch.int32), theirs.view(torch.int32))


WORTH_IT = torch.randn(8, 16, 32, 32)
OTHERS = {
    "few channels": torch.randn(64, 3, 32, 32),
    "few elements": torch.randn(2, 16, 8, 8),
    "more than the caches take": torch.empty(1, 1, 1, 1).expand(80, 64, 32, 32),
    "one row": torch.randn(8, 16, 1, 1024),
    "channels last": WORTH_IT.contiguous(memory_format=torch.channels_last),
    "double precision": WORTH_IT.double(),
    "no batch": WORTH_IT[0],
}


def _targets(f: Any, *args: torch.Tensor, **options: Any) -> list[Any]:
    seen: list[list[Any]] = []

    def keep(module: Any, inputs: list[Any]) -> Any:
        seen.append([n.target for n in rewritten(module.graph)[0].nodes if n.op == "call_function"])
        return aot.nop(module, inputs)

    aot.aot_function(f, keep, **options)(*args)
    return seen[0]


def _pooled(x: Images) -> Any:
    return nn.functional.max_pool2d_with_indices(x, (min(2, x.shape[-2]), 2))


def test_contiguous_images_of_many_channels_are_pooled_so() -> None:
    assert memory_rewrites.max_pool2d in _targets(_pooled, WORTH_IT)
    for mine, theirs in zip(
        aot.aot_function(_pooled, aot.nop)(WORTH_IT), _pooled(WORTH_IT), strict=True
    ):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()


def test_a_single_element_of_each_channel_has_the_strides_of_contiguous_images() -> None:
    for mine, theirs in zip(
        memory_rewrites.max_pool2d(WORTH_IT, [32]),
        aten.max_pool2d_with_indices(WORTH_IT, [32]),
        strict=True,
    ):
        assert torch.equal(mine, theirs) and mine.stride() == theirs.stride()


@pytest.mark.parametrize("x", OTHERS.values(), ids=OTHERS)
def test_other_images_are_pooled_as_they_are(x: Images) -> None:
    assert memory_rewrites.max_pool2d not in _targets(
        _pooled, x.contiguous() if 0 in x.stride() else x
    )


def test_a_program_for_any_size_decides_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def pays(x: Images, *window: Any) -> bool:
        asked.append(original(x, *window))
        return asked[-1]

    original = memory_rewrites.pays
    monkeypatch.setattr(memory_rewrites, "pays", pays)
    pooled = aot.aot_function(_pooled, aot.nop, dynamic=True)
    for x in (WORTH_IT, WORTH_IT[:2, :, :8, :8].contiguous(), WORTH_IT[:4]):
        assert all(map(torch.equal, pooled(x), _pooled(x)))
    assert asked == [True, False, True]


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
    x = torch.empty(shape, device="meta")
    assert memory_rewrites.pays(x, window, stride) is pays
    assert not memory_rewrites.pays(x.contiguous(memory_format=torch.channels_last), window, stride)
