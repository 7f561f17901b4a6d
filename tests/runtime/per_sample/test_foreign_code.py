"""Custom Functions and hooks of torch in the context: they work, or the gradient that would pass
them is refused by name."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import runtime
from runtime.per_sample import per_sample

Function: Any = torch.autograd.Function


class Square(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class SquareInTwoParts(Square):
    @staticmethod
    def forward(x: Tensor) -> Tensor:  # type: ignore[override]
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)


class Product(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return g @ w.t(), x.t() @ g


def apply(function: Any, *args: Tensor) -> Tensor:
    out: Tensor = function.apply(*args)
    return out


def layer_and_batch() -> tuple[nn.Linear, Tensor]:
    torch.manual_seed(0)
    return nn.Linear(3, 3).double(), torch.randn(4, 3, dtype=torch.float64)


def by_loop(f: Callable[[nn.Linear, Tensor], Tensor]) -> Tensor:
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of hooks, as the batch does not require grad
        for b in range(4):
            layer, x = layer_and_batch()
            f(layer, x[b : b + 1]).pow(2).sum().backward()
            assert layer.weight.grad is not None
            found.append(layer.weight.grad)
    return torch.stack(found)


def test_a_custom_function_of_one_sample_keeps_its_gradient() -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        (apply(Square, layer(grads.batch(x[:1]))) + apply(Centered, layer(grads.batch(x[:1])))).pow(
            2
        ).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(lambda layer, x: layer(x).pow(2))[:1])


class Transposed(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.t()


def test_a_parameter_of_which_a_custom_function_gives_a_view_may_be_used_elsewhere() -> None:
    def f(layer: nn.Linear, x: Tensor) -> Tensor:
        w = layer.weight * 1
        assert apply(Transposed, w).shape == (3, 3)
        return x @ w

    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


@pytest.mark.parametrize("function", [Square, SquareInTwoParts])
@pytest.mark.parametrize("beside", [0.0, 1.0])
def test_a_custom_function_keeps_its_gradient(function: Any, beside: float) -> None:
    def f(layer: nn.Linear, x: Tensor) -> Tensor:
        y: Tensor = layer(x)
        return apply(function, y) + beside * y

    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


def test_the_backward_of_a_custom_function_is_followed_after_the_block_too() -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        loss = apply(Square, layer(grads.batch(x))).pow(2).sum()
    loss.backward()
    torch.testing.assert_close(grads.materialize(), by_loop(lambda layer, x: layer(x).pow(2)))


class Centered(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x - x.mean(0)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g - g.mean(0)


class Normed(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g / g.norm()


class NormedBySaved(Normed):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return g / x.norm()


class CenteredForward(Centered):
    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (Centered, "mixes samples"),
        (CenteredForward, r"aten\.sub\.Tensor mixes samples"),
        (Normed, "Function Normed"),
        (NormedBySaved, "NormedBySaved"),
    ],
)
def test_a_custom_function_that_mixes_samples_is_refused(function: Any, text: str) -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.parameters()):
        y = layer(x)
        with pytest.raises(RuntimeError, match=text):
            (apply(function, y) + y).sum().backward()


def test_a_pass_that_begins_at_a_custom_function_that_mixes_samples_is_refused() -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.parameters(), reduction="sum"):
        out = apply(CenteredForward, layer(x))
        with pytest.raises(RuntimeError, match=r"^per_sample: aten\.sub\.Tensor mixes samples"):
            out.backward(torch.ones(4, 3, dtype=x.dtype))


def test_a_custom_function_of_a_parameter_is_refused_by_its_name() -> None:
    layer, x = layer_and_batch()
    with (
        per_sample(layer.parameters()),
        pytest.raises(RuntimeError, match="custom Function Product of parameters"),
    ):
        (apply(Product, layer(x), layer.weight) + layer(x)).sum().backward()


def test_a_custom_function_of_the_batch_alone_is_a_constant() -> None:
    def f(layer: nn.Linear, x: Tensor) -> Tensor:
        out: Tensor = layer(apply(Square, x))
        return out

    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


def _doubled(_: Any, given: Any, __: Any) -> Any:
    return tuple(None if g is None else 2 * g for g in given)


def doubled_by_a_module_hook(layer: nn.Linear, x: Tensor) -> Tensor:
    layer.register_full_backward_hook(_doubled)
    out: Tensor = layer(layer(x).sin())
    return out


def _tripled(_: Any, given: Any) -> Any:
    return (given[0] * 3,)


def tripled_by_a_module_hook(layer: nn.Linear, x: Tensor) -> Tensor:
    layer.register_full_backward_pre_hook(_tripled)
    out: Tensor = layer(x)
    return out


def doubled_by_a_tensor_hook(layer: nn.Linear, x: Tensor) -> Tensor:
    y: Tensor = layer(x)
    y.register_hook(lambda g: 2 * g)
    y.retain_grad()
    return y.sin()


def changed_by_a_forward_hook(layer: nn.Linear, x: Tensor) -> Tensor:
    layer.register_forward_hook(lambda _, __, out: out.sin())
    layer.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    out: Tensor = layer(x)
    return out


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")
@pytest.mark.parametrize(
    "f",
    [
        doubled_by_a_module_hook,
        tripled_by_a_module_hook,
        doubled_by_a_tensor_hook,
        changed_by_a_forward_hook,
    ],
    ids=lambda f: f.__name__,
)
def test_hooks_do_what_they_do_with_each_sample_alone(
    f: Callable[[nn.Linear, Tensor], Tensor],
) -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


class Absolute(Function):  # type: ignore[misc]
    """Returns the magnitudes, which it gives a gradient, and the signs, which it
    marks as constants."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        signs = x.sign()
        ctx.save_for_backward(signs)
        ctx.mark_non_differentiable(signs)
        return x.abs(), signs

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Any) -> Any:
        return ctx.saved_tensors[0] * g


def test_an_output_that_is_marked_as_a_constant_is_followed_as_one() -> None:
    def f(layer: nn.Linear, x: Tensor) -> Tensor:
        size, signs = apply(Absolute, layer(x))
        out: Tensor = size + layer(x) * signs
        return out

    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


def test_an_output_of_parameters_that_is_marked_as_a_constant_is_followed_as_one() -> None:
    def f(layer: nn.Linear, x: Tensor) -> Tensor:
        _, signs = apply(Absolute, layer.weight * 1)
        out: Tensor = layer(x) @ signs
        return out

    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


def test_a_custom_function_of_constants_is_a_constant() -> None:
    def f(layer: nn.Linear, x: Tensor) -> Tensor:
        size, signs = apply(Absolute, torch.tensor([-1.0, 2.0, 0.5], dtype=torch.float64))
        out: Tensor = layer(x) * size * signs
        return out

    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        f(layer, grads.batch(x)).pow(2).sum().backward()
    torch.testing.assert_close(grads.materialize(), by_loop(f))


def test_a_custom_function_of_parameters_alone_is_refused_where_its_gradient_passes() -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.parameters()) as grads:
        y = grads.batch(x) @ apply(Square, layer.weight * 1)
        with pytest.raises(
            RuntimeError, match="custom Function Square of parameters in the program"
        ):
            y.sum().backward()


@pytest.mark.parametrize("preserved", [False, True])
def test_a_reentrant_checkpoint_draws_again_or_the_same(preserved: bool) -> None:
    layer, x = layer_and_batch()
    with per_sample(layer.weight) as grads:
        loss = checkpoint(
            lambda x: nn.functional.dropout(layer(x), 0.5),
            layer(grads.batch(x)),
            use_reentrant=True,
            preserve_rng_state=preserved,
        ).sum()
        before = torch.get_rng_state()
        loss.backward()
    assert torch.get_rng_state().equal(before) is preserved


class Swapped(Function):  # type: ignore[misc]
    """Its backward returns the gradients of two inputs in the wrong places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return g.mT, g.mT


def test_a_gradient_with_the_samples_in_another_dimension_is_refused_by_its_input() -> None:
    layer, x = layer_and_batch()
    x = torch.cat([x, x[:1]])[:3]  # as many samples as features
    with per_sample(layer.weight) as grads:
        y = apply(Swapped, layer(grads.batch(x)), torch.eye(3, dtype=x.dtype))
        with pytest.raises(
            RuntimeError,
            match=(
                "backward of the custom Function Swapped mixes samples "
                "in the gradient of its input 0"
            ),
        ):
            y.sum().backward()


class DoubledInPlace(Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        return 2 * g


@pytest.mark.parametrize("of", ["constants", "samples"])
def test_a_custom_function_that_writes_to_its_input_leaves_no_cycle_of_references(of: str) -> None:
    layer, x = layer_and_batch()
    w = runtime.wrap(torch.ones(3, dtype=torch.float64), requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        with per_sample(layer.weight) as grads:
            out = apply(DoubledInPlace, layer(grads.batch(x)) if of == "samples" else w * 1)
            seen = weakref.ref(out)
            del out
            assert seen() is None
    finally:
        gc.enable()


def test_a_mask_that_a_model_makes_by_vmap_of_torch_and_a_function() -> None:
    """As Hugging Face's models make it of a mask of the words: ``mask[b, k] & (k <= q)``, each
    index by a vmap."""
    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    torch.manual_seed(0)
    layer = nn.Linear(4, 4, dtype=torch.float64)
    x, there = torch.randn(3, 5, 4, dtype=torch.float64), torch.ones(3, 5, dtype=torch.bool)
    there[0, 3:] = False

    def losses(x: Tensor, there: Tensor) -> Any:
        def allowed(b: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return there[b, k] & (k <= q)

        over_keys = torch.func.vmap(allowed, (None, None, 0))
        over_all = torch.func.vmap(torch.func.vmap(over_keys, (None, 0, None)), (0, None, None))
        with TransformGetItemToIndex():
            mask = over_all(torch.arange(len(x)), torch.arange(5), torch.arange(5))
        h = layer(x)
        scores = (h @ h.mT).masked_fill(~mask, -1e3).softmax(-1)
        return (scores @ x).square().sum((1, 2))

    with per_sample(layer.parameters()) as grads:
        losses(grads.batch(x), grads.batch(there)).sum().backward()
    found = grads.materialize()
    for b in range(3):
        expected = torch.autograd.grad(
            losses(x[b : b + 1], there[b : b + 1]).sum(), tuple(layer.parameters())
        )
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f[b], e)
