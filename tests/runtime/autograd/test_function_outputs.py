"""What forward of a Function may return: inputs, views of them, and inputs that it wrote to.
torch.autograd.Function is the oracle."""

import warnings
from typing import Any

import pytest
import torch

from runtime.autograd import Function

from .functions import leaf, made, of_both


def dirty(ctx: Any, x: Any) -> Any:
    ctx.mark_dirty(x)
    return x


def write(ctx: Any, x: Any) -> Any:
    return dirty(ctx, x).mul_(2)


def test_a_dirty_input_is_the_output_and_has_new_history() -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        y = x * 1
        z = made(base, forward=write, backward=lambda ctx, g: g * 5).apply(y)
        return z is y, y.grad_fn.name(), y, autograd.grad((y * y).sum(), x)

    of_both(program)


@pytest.mark.parametrize(
    "write",
    [lambda x: x, lambda x: x.mul_(2), lambda x: x.mul_(2).add_(1), lambda x: x.data.mul_(2)],
)
@pytest.mark.parametrize("start", ["leaf", "result", "view"])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("outputs", [lambda x: x, lambda x: (x, x * 3)])
def test_a_dirty_input_has_the_version_and_identity_that_torch_gives_it(
    write: Any, start: str, mode: Any, outputs: Any
) -> None:
    def forward(ctx: Any, x: Any) -> Any:
        write(x)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return outputs(x)

    def program(base: Any, autograd: Any, x: Any) -> Any:
        parent = x * 1
        given = {"leaf": x, "result": parent, "view": parent[1:]}[start]
        before = given._version
        with mode():
            out = made(
                base, forward=forward, backward=lambda ctx, *g: sum(g) * ctx.saved_tensors[0]
            ).apply(given)
        first = out[0] if isinstance(out, tuple) else out
        first_facts = (first is given, first.requires_grad, first._version - before)
        gradient = autograd.grad((first * 2).sum(), x) if first.requires_grad else ()
        return (
            first_facts,
            given._version - before,
            parent._version,
            given.requires_grad,
            first,
            gradient,
        )

    of_both(program)


def test_a_tensor_marked_dirty_that_is_no_input_is_warned_of_only_where_a_node_is_made() -> None:
    def marks_its_own(ctx: Any, x: Any) -> Any:
        return dirty(ctx, x + 1)

    def program(base: Any, autograd: Any, x: Any) -> Any:
        function, told_of = made(base, forward=marks_its_own), []
        for mode, given in (
            (torch.enable_grad, x),
            (torch.no_grad, x),
            (torch.enable_grad, x.detach()),
        ):
            with mode(), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                function.apply(given)
            told_of.append([(w.category, "mark_dirty" in str(w.message)) for w in caught])
        return told_of

    of_both(program)


def test_a_dirty_view_gives_its_base_new_history() -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        y = x * 1
        z = made(base, forward=write, backward=lambda ctx, g: g * 5).apply(y[:2])
        return y, z, autograd.grad((y * y).sum() + z.sum(), x)

    of_both(program)


def two(ctx: Any, x: Any) -> Any:
    return dirty(ctx, x).add_(1), x * 2


def test_a_dirty_view_with_several_outputs_is_refused() -> None:
    of_both(
        lambda base, autograd, x: made(base, forward=two, backward=lambda ctx, g, h: g).apply(
            (x * 1)[:2]
        )
    )


@pytest.mark.parametrize(
    "forward", [lambda ctx, x: x, lambda ctx, x: x[:2], lambda ctx, x: x.view_as(x)]
)
def test_an_input_or_a_view_of_it_may_be_returned_but_not_written(forward: Any) -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        out = made(
            base, forward=forward, backward=lambda ctx, g: torch.ones(3, dtype=g.dtype) * 7
        ).apply(x)
        return out is x, out.grad_fn.name(), autograd.grad(out.sum(), x)

    of_both(program)
    of_both(lambda base, autograd, x: made(base, forward=forward).apply(x * 1).add_(1))

    def written_base(base: Any, autograd: Any, x: Any) -> Any:
        y = x * 1
        out = made(base, forward=forward).apply(y)
        y.mul_(2)
        return out + 1

    of_both(written_base)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize(
    "given", [lambda x: x, lambda x: x * 1, lambda x: x.detach(), lambda x: x.detach()[:2]]
)
def test_an_input_that_is_returned_is_a_view_or_as_detached_without_grad_mode(
    given: Any, mode: Any
) -> None:
    def program(base: Any, autograd: Any, x: Any) -> Any:
        y = given(x)
        with mode():
            out = made(base, forward=lambda ctx, x: x).apply(y)
        return out is y, out.requires_grad, out._is_view(), out._base is y, out

    of_both(program)


@pytest.mark.parametrize("other", [lambda y: y.detach(), lambda y: y[1:], lambda y: y.detach()[1:]])
@pytest.mark.parametrize("forward", [lambda ctx, x, z: x, lambda ctx, x, z: x[:2]])
def test_of_inputs_that_share_memory_the_first_is_what_a_view_is_taken_of(
    forward: Any, other: Any
) -> None:
    y = leaf("runtime") * 1
    out = made(Function, forward=forward, backward=lambda ctx, g: (g, None)).apply(y, other(y))
    assert out._base is y or out._base is None
    y.mul_(2)
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        _ = out + 1


def test_a_view_of_an_output_that_is_a_view_does_not_pass_the_function_by() -> None:
    y = leaf("runtime") * 1
    part = made(Function, forward=lambda ctx, x: x).apply(y)[:2]
    y.mul_(2)
    with pytest.raises(RuntimeError, match="created inside a custom Function"):
        _ = part + 1
