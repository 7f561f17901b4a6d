"""``call_for_per_sample_grads``: where it finds the batch, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from runtime.expanded_weights import ExpandedWeight, call_for_per_sample_grads

N = 3


def samples(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Scale(nn.Module):
    w: Any

    def __init__(self, of: Callable[..., Tensor] = lambda x: x) -> None:
        super().__init__()
        self.w, self.of = nn.Parameter(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)), of

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        out: Tensor = self.of(*args, **kwargs) * self.w
        return out


@dataclass
class Inputs:
    x: Tensor
    more: Any = None


@pytest.mark.parametrize(("said", "given"), [(None, 1), (1, 1), (None, 4), (4, 4), (4, 3), (4, 1)])
def test_the_gradients_have_the_rows_that_were_said_or_those_of_the_batch(
    said: int | None, given: int
) -> None:
    module, x = Scale(), samples(given, N)
    call_for_per_sample_grads(module, batch_size=said)(x).sum().backward()
    expected = torch.cat([x, x.new_zeros((said or given) - given, N)])
    torch.testing.assert_close(module.w.grad_sample, expected)


FOUND: dict[str, tuple[Callable[..., Tensor], Callable[[Tensor], tuple[Any, dict[str, Any]]]]] = {
    "by keyword": (lambda *, x: x, lambda x: ((), {"x": x})),
    "in containers": (lambda a, b: a["x"][0] * b, lambda x: (({"x": [x]}, torch.ones_like(x)), {})),
    "beside a number": (lambda x, c: x * c, lambda x: ((x, torch.ones((), dtype=x.dtype)), {})),
    "beside no tensors": (lambda a, x, b: x, lambda x: ((None, x, "mode"), {})),
    "beside a packed sequence": (
        lambda x, p: x,
        lambda x: ((x, pack_sequence(list(x[:, None]))), {}),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_batch_is_found_in_the_arguments(name: str) -> None:
    of, given = FOUND[name]
    module, x = Scale(of), samples(4, N)
    args, kwargs = given(x)
    call_for_per_sample_grads(module)(*args, **kwargs).sum().backward()
    torch.testing.assert_close(module.w.grad_sample, x)


def test_the_size_that_is_said_tells_the_batch_from_constants_before_it() -> None:
    module, x = Scale(lambda c, x: c.sum() * x), samples(4, N)
    call_for_per_sample_grads(module, batch_size=4)(
        torch.ones(5, N, dtype=x.dtype), x
    ).sum().backward()
    torch.testing.assert_close(module.w.grad_sample, 5 * N * x)


def test_a_packed_sequence_is_a_batch() -> None:
    module, rows = Scale(lambda packed: packed.data), [samples(n, N) for n in (1, 3, 2)]
    call_for_per_sample_grads(module)(pack_sequence(rows, enforce_sorted=False)).sum().backward()
    torch.testing.assert_close(module.w.grad_sample, torch.stack([each.sum(0) for each in rows]))


def test_a_data_class_is_a_batch_of_the_size_that_is_said() -> None:
    module, x = Scale(lambda d: d.x * d.more.x), samples(4, N)
    call_for_per_sample_grads(module, batch_size=4)(Inputs(x, Inputs(2 * x))).sum().backward()
    torch.testing.assert_close(module.w.grad_sample, 2 * x * x)


def test_a_batch_in_a_data_class_may_be_smaller_than_what_was_said() -> None:
    module, x = Scale(lambda d: d.x * d.more.x), samples(3, N)
    call_for_per_sample_grads(module, batch_size=4)(
        Inputs(x, Inputs(2 * x, torch.ones(())))
    ).sum().backward()
    torch.testing.assert_close(module.w.grad_sample, torch.cat([2 * x * x, x.new_zeros(1, N)]))


def test_the_batch_may_lie_behind_a_dimension() -> None:
    module, x = Scale(lambda x, c: x * c), samples(5, 4, N)
    call_for_per_sample_grads(module, batch_first=False)(
        x, torch.ones(N, dtype=x.dtype)
    ).sum().backward()
    torch.testing.assert_close(module.w.grad_sample, x.sum(0))


def _graded() -> nn.Module:
    module = Scale()
    module.w.grad_sample = torch.zeros(2, N)
    return module


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a function": (
        lambda: call_for_per_sample_grads(torch.sin),  # type: ignore[arg-type]
        "Module passed must be nn.Module, got builtin_function_or_method",
    ),
    "a size that is no integer": (
        lambda: call_for_per_sample_grads(Scale(), batch_size=2.0),  # type: ignore[arg-type]
        "must be None or an integer, got float",
    ),
    "a size of zero": (
        lambda: call_for_per_sample_grads(Scale(), batch_size=0),
        "Batch size must be positive, got 0",
    ),
    "another reduction": (
        lambda: call_for_per_sample_grads(Scale(), loss_reduction="max"),
        "to be sum or mean, got max",
    ),
    "a parameter that has gradients": (
        lambda: call_for_per_sample_grads(_graded()),
        "grad_sample of w would be incorrect for multiple calls",
    ),
    "no tensors": (
        lambda: call_for_per_sample_grads(Scale())(x=3),
        "cannot compute the batch size from the inputs",
    ),
    "numbers alone": (
        lambda: call_for_per_sample_grads(Scale())(torch.ones(())),
        "cannot compute the batch size from the inputs",
    ),
    "two sizes": (
        lambda: call_for_per_sample_grads(Scale())(samples(4, N), samples(5, N)),
        (
            "at least one input with batch size 4 and one with batch size 5. "
            "Say which it is with batch_size="
        ),
    ),
    "two sizes, one by keyword": (
        lambda: call_for_per_sample_grads(Scale())(samples(4, N), y=samples(5, N)),
        "at least one input with batch size 4 and one with batch size 5",
    ),
    "two sizes, one of a packed sequence": (
        lambda: call_for_per_sample_grads(Scale())(samples(4, N), pack_sequence([samples(2, N)])),
        "at least one input with batch size 4 and one with batch size 1",
    ),
    "a data class of another size": (
        lambda: call_for_per_sample_grads(Scale(lambda x, d: x))(
            samples(4, N), Inputs(samples(3, N))
        ),
        "input batch size of 3 with ExpandedWeight of batch size 4",
    ),
    "a data class within another, of a larger size": (
        lambda: call_for_per_sample_grads(Scale(lambda d: d.x), batch_size=4)(
            Inputs(samples(4, N), Inputs(samples(5, N)))
        ),
        "input batch size of 5 with ExpandedWeight of batch size 4",
    ),
    "a weight that is no tensor": (
        lambda: ExpandedWeight(3, 2),  # type: ignore[arg-type]
        "Can only make Expanded Weights of Tensors, got int",
    ),
    "a weight without a gradient": (
        lambda: ExpandedWeight(torch.ones(2), 2),
        "of tensors that require_grad",
    ),
    "a weight of another reduction": (
        lambda: ExpandedWeight(torch.ones(2, requires_grad=True), 2, "max"),
        "to be sum or mean, got max",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    run, says = REFUSED[name]
    with pytest.raises(RuntimeError, match=says):
        run()


FACTS: dict[str, Callable[[Any], Any]] = {
    "shape": lambda w: w.shape,
    "dim()": lambda w: w.dim(),
    "size(1)": lambda w: w.size(1),
    "numel()": lambda w: w.numel(),
    "len()": len,
    "dtype": lambda w: w.dtype,
    "stride()": lambda w: w.stride(),
    "is_floating_point()": lambda w: w.is_floating_point(),
    "is_complex()": lambda w: w.is_complex(),
    "requires_grad": lambda w: w.requires_grad,
    "is_contiguous()": lambda w: w.is_contiguous(),
    "repr()": repr,
}


@pytest.mark.parametrize("fact", FACTS)
def test_a_weight_tells_the_facts_of_its_original(fact: str) -> None:
    original = torch.ones(2, 3, requires_grad=True)
    weight = ExpandedWeight(original, 4)
    assert FACTS[fact](weight) == FACTS[fact](original)


@pytest.mark.parametrize(
    ("layer", "weight", "sample"),
    [
        (torch.nn.functional.conv2d, (2, N, 1, 1), (N, 5, 5)),
        (torch.nn.functional.conv3d, (2, N, 1, 1, 1), (N, 2, 2, 2)),
        (torch.nn.functional.embedding, (2, N), (5,)),
        (lambda x, w: torch.nn.functional.group_norm(x, 1, w), (N,), (N,)),
        (lambda x, w: torch.nn.functional.instance_norm(x, weight=w), (N,), (N, 5)),
    ],
)
def test_each_layer_has_a_batch_of_some_dimensions(
    layer: Any, weight: tuple[int, ...], sample: tuple[int, ...]
) -> None:
    w = ExpandedWeight(torch.ones(weight, requires_grad=True), 4)
    x = torch.arange(torch.Size((4, *sample)).numel()).reshape(4, *sample) % 2
    x = x if layer is torch.nn.functional.embedding else x.float()
    with pytest.raises(
        RuntimeError, match=f"need a batch dimension: .* got an input of {len(sample)} dimensions"
    ):
        layer(x[0], w)
    layer(x, w).sum().backward()
    assert w.orig_weight.grad_sample.shape == (4, *weight)


@pytest.mark.parametrize("by_keyword", [False, True])
@pytest.mark.parametrize(
    ("layer", "shape", "arguments"),
    [
        (torch.nn.functional.linear, (N, N), {}),
        (torch.nn.functional.layer_norm, (2, N), {"normalized_shape": (2, N)}),
        (torch.nn.functional.conv1d, (2, N, 1), {}),
    ],
)
def test_a_layer_of_one_sample_needs_a_batch_dimension(
    layer: Any, shape: tuple[int, ...], arguments: dict[str, Any], by_keyword: bool
) -> None:
    w = ExpandedWeight(torch.ones(shape, requires_grad=True), 4)
    x = torch.ones({2: (N,), 3: (N, 5)}[len(shape)] if not arguments else shape)
    with pytest.raises(
        RuntimeError,
        match=f"need a batch dimension: {layer.__name__} got an input of {x.dim()} dimensions",
    ):
        layer(input=x, weight=w, **arguments) if by_keyword else layer(x, *arguments.values(), w)
    batch = torch.ones(4, *x.shape)
    out = (
        layer(input=batch, weight=w, **arguments)
        if by_keyword
        else layer(batch, *arguments.values(), w)
    )
    out.sum().backward()
    assert w.orig_weight.grad_sample.shape == (4, *shape)


def test_the_sizes_of_batch_and_weight_are_those_of_the_batch() -> None:
    w = ExpandedWeight(torch.ones(2, N, requires_grad=True), 4)
    with pytest.raises(
        RuntimeError, match="input batch size of 5 with ExpandedWeight of batch size 4"
    ):
        torch.nn.functional.linear(torch.ones(5, N), w)
    w.batch_first = False
    torch.nn.functional.linear(torch.ones(5, 4, N), w).sum().backward()
    torch.testing.assert_close(w.orig_weight.grad_sample, torch.full((4, 2, N), 5.0))


def test_a_packed_sequence_comes_to_the_module_as_one() -> None:
    seen: list[Any] = []

    def rows(packed: Any) -> Tensor:
        seen.append(packed)
        found: Tensor = packed.data
        return found

    module = Scale(rows)
    call_for_per_sample_grads(module)(
        pack_sequence([samples(1, N), samples(1, N)])
    ).sum().backward()
    assert type(seen[0]) is PackedSequence and seen[0].batch_sizes.tolist() == [2]
