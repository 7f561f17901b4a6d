"""Custom Functions that write to an input (mark_dirty): whose history, whose tangent, and what is
refused. Torch is the oracle."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import export, make_fx
from runtime.errors import InplaceError
from runtime.func import functionalize, grad, jvp, vmap

from ..scenarios import OURS, outcome, same


def writing(lib: Any, **methods: Any) -> Any:
    """A Function that doubles its last argument in place, whose gradient it takes five times."""

    def forward(ctx: Any, *args: Any) -> Any:
        ctx.mark_dirty(args[-1])
        return args[-1].mul_(2)

    defaults = {
        "forward": forward,
        "backward": lambda ctx, g: g * 5,
        "jvp": lambda ctx, t: t.mul_(2),
    }
    return type(
        "Doubled",
        (lib.autograd.Function,),
        {k: staticmethod(v) for k, v in {**defaults, **methods}.items()},
    )


def leaf(lib: Any, n: int = 4) -> Any:
    return lib.tensor([1.0 + i for i in range(n)], requires_grad=True)


def no_grad_view(y: Any) -> Any:
    with torch.no_grad():
        return y[1:]


@pytest.mark.parametrize(
    "target",
    [
        lambda x: x,
        lambda x: x[1:],
        lambda x: x.view(2, 2)[0],
        lambda x: (x * 1).unbind()[0],
        lambda x: (x * 1).split(2)[1],
        lambda x: x.detach(),
        lambda x: x.detach()[1:],
    ],
    ids=["leaf", "view of a leaf", "view of a view", "unbind", "split", "detached", "view of it"],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
def test_what_may_be_written_is_what_an_op_may_write(
    target: Callable[[Any], Any], mode: Any
) -> None:
    def scenario(lib: Any) -> Any:
        x = leaf(lib)
        t = target(x)
        with mode():
            out = writing(lib).apply(t)
        return out is t, t, out.requires_grad

    same(scenario)


@pytest.mark.parametrize(
    "target", [no_grad_view, lambda t: t.unbind()[1]], ids=["no_grad", "unbind"]
)
@pytest.mark.parametrize("base", ["leaf", "result", "buffer"])
def test_a_view_that_history_cannot_follow_is_refused_as_written(target: Any, base: str) -> None:
    def refusal(write: Any) -> str:
        x = leaf(OURS)
        view = target({"leaf": x, "result": x * 1, "buffer": x.detach()}[base])
        with pytest.raises(RuntimeError) as caught:
            write(x.sum(), view)
        return str(caught.value)

    def forward(ctx: Any, x: Any, t: Any) -> Any:
        ctx.mark_dirty(t)
        return t.mul_(x)

    by_function, by_op = (
        refusal(writing(OURS, forward=forward).apply),
        refusal(lambda x, t: t.mul_(x)),
    )
    assert by_function == by_op and "is being modified inplace" in by_op


@pytest.mark.parametrize("factor", ["tensor", "constant", "number"])
@pytest.mark.parametrize("part", [slice(None), slice(1, 3), slice(2, 4)], ids=str)
def test_an_input_that_is_not_the_first_may_be_written(factor: str, part: slice) -> None:
    """Torch takes what is written for the first input; the oracle is the same program
    without a write."""

    def forward(ctx: Any, w: Any, y: Any) -> Any:
        ctx.mark_dirty(y)
        ctx.save_for_backward(w if isinstance(w, torch.Tensor) else None, y.clone())
        return y.mul_(w)

    def backward(ctx: Any, g: Any) -> Any:
        w, old = ctx.saved_tensors
        return (None, g * 3) if w is None else ((g * old).sum(), g * w)

    x, w = leaf(OURS), OURS.tensor(3.0, requires_grad=True)
    y = x * x
    writing(OURS, forward=forward, backward=backward).apply(
        {"tensor": w, "constant": w.detach(), "number": 3.0}[factor], y[part]
    )
    edges = [None if node is None else node.name() for node, _ in y.grad_fn.next_functions]
    assert edges == [
        "MulBackward0",
        *(
            []
            if factor == "number"
            else ["torch::autograd::AccumulateGrad"]
            if factor == "tensor"
            else [None]
        ),
    ]
    found = OURS.autograd.grad((y * y).sum(), [x, w], allow_unused=True)
    a, b = torch.arange(1.0, 5, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    mask = torch.zeros(4)
    mask[part] = 1
    z = a * a * (1 + mask * ((b if factor == "tensor" else b.detach()) - 1))
    wanted = torch.autograd.grad((z * z).sum(), [a, b], allow_unused=True)
    assert [g if g is None else g.tolist() for g in found] == [
        g if g is None else g.tolist() for g in wanted
    ]


def test_a_buffer_that_is_written_gets_the_history_of_what_is_written_there() -> None:
    def forward(ctx: Any, x: Any, buffer: Any) -> Any:
        ctx.mark_dirty(buffer)
        return buffer.add_(x)

    x, buffer = leaf(OURS), OURS.tensor([1.0] * 6)
    add = writing(OURS, forward=forward, backward=lambda ctx, g: (g * 3, g))
    for part in (buffer[:4], buffer[2:]):
        add.apply(x, part)
    (found,) = OURS.autograd.grad((buffer * buffer).sum(), x)
    written = [2.0, 3.0, 1 + 3 + 1, 1 + 4 + 2, 1.0 + 3, 1.0 + 4]
    assert buffer.tolist() == written
    assert found.tolist() == [3 * 2 * (written[i] + written[i + 2]) for i in range(4)]


def test_a_plain_buffer_takes_what_has_no_history_and_nothing_else() -> None:
    def forward(ctx: Any, x: Any, buffer: Any) -> Any:
        ctx.mark_dirty(buffer)
        return buffer.add_(x)

    add, x, buffer = writing(OURS, forward=forward), leaf(OURS), torch.zeros(4)
    assert add.apply(x.detach(), buffer) is buffer and buffer.tolist() == [1.0, 2.0, 3.0, 4.0]
    with torch.no_grad():
        assert add.apply(x, buffer) is buffer
    with pytest.raises(
        InplaceError,
        match=r"Doubled.apply writes a value of the session that requires grad into a tensor",
    ):
        add.apply(x, buffer)


def test_the_gradient_of_what_was_written_must_have_its_shape_and_becomes_of_its_dtype() -> None:
    x = leaf(OURS)
    cases: list[tuple[Any, list[float]]] = [
        (lambda g: g.double() * 3, [1.0, 3.0, 3.0, 1.0]),
        (lambda g: g.expand(5, 2), [1.0, 5.0, 5.0, 1.0]),  # summed, as where nothing was written
        (lambda g: g * (2 + 1j), [1.0, 2.0, 2.0, 1.0]),
    ]
    for answer, expected in cases:
        y = x * 1
        writing(OURS, backward=lambda ctx, g: answer(g)).apply(y[1:3])  # noqa: B023
        (found,) = OURS.autograd.grad(y.sum(), x)
        assert found.tolist() == expected and found.dtype == torch.float32
    bad_ones: list[Any] = [
        lambda g: g[:1],
        lambda g: g.sum(),
        lambda g: g.expand(2, 2)[:, :1],
        lambda g: torch.ones(3),
    ]
    for bad in bad_ones:
        y = x * 1
        writing(OURS, backward=lambda ctx, g: bad(g)).apply(y[1:3])  # noqa: B023
        with pytest.raises(
            RuntimeError,
            match=(
                r"returned an invalid gradient at index 0 .* "
                r"expected shape compatible with \[2\]"
            ),
        ):
            OURS.autograd.grad(y.sum(), x)


def test_a_write_whose_backward_returns_nothing_has_a_gradient_of_zeros() -> None:
    x = leaf(OURS)
    y = x * 1
    writing(OURS, backward=lambda ctx, g: None).apply(y[1:3])
    assert OURS.autograd.grad(y.sum(), x)[0].tolist() == [1.0, 0.0, 0.0, 1.0]


# ---- tangents


@pytest.mark.parametrize(
    "jvp",
    [
        lambda ctx, t: t.mul_(2),
        lambda ctx, t: t * 2,
        lambda ctx, t: t,
        lambda ctx, t: t.mul_(2).view_as(t),
        lambda ctx, t: None,
        lambda ctx, t: (t.mul_(2), t),
        lambda ctx, t: 3,
    ],
    ids=["written", "another", "untouched", "a view", "none", "two", "number"],
)
def test_the_tangent_of_what_is_written_must_be_written(jvp: Any) -> None:
    def scenario(lib: Any) -> Any:
        fw = lib.autograd.forward_ad
        with fw.dual_level():
            d = fw.make_dual(lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0])) * 1
            out = writing(lib, jvp=jvp).apply(d)
            return out is d, d, fw.unpack_dual(d).tangent

    expected = outcome(scenario, OURS)
    if isinstance(expected[0], bool):
        assert expected == [True, [2.0, 4.0], [6.0, 8.0]]
    same(scenario)


def test_a_copy_of_the_tangent_that_was_written_is_not_that_tangent() -> None:
    fw = OURS.autograd.forward_ad
    with (
        fw.dual_level(),
        pytest.raises(RuntimeError, match="is not returning the forward mode gradients as-is"),
    ):
        writing(OURS, jvp=lambda ctx, t: t.mul_(2).clone()).apply(
            fw.make_dual(OURS.tensor([1.0]), OURS.tensor([3.0]))
        )


def test_the_tangent_of_another_input_is_not_the_one_that_was_written() -> None:
    def scenario(lib: Any) -> Any:
        fw = lib.autograd.forward_ad
        with fw.dual_level():
            a, b = (fw.make_dual(lib.tensor([v, 2.0]), lib.tensor([v, 4.0])) for v in (1.0, 3.0))
            out = writing(lib, jvp=lambda ctx, t, u: u.add_(t)).apply(a, b)
            return out is b, fw.unpack_dual(a).tangent, fw.unpack_dual(b).tangent

    assert same(scenario) == [True, [1.0, 4.0], [4.0, 8.0]]


def test_a_dual_input_that_is_returned_as_it_is_keeps_its_tangent() -> None:
    def scenario(lib: Any) -> Any:
        passing: Any = type("Passing", (lib.autograd.Function,), {
            "forward": staticmethod(lambda ctx, x: x), "backward": staticmethod(lambda ctx, g: g),
            "jvp": staticmethod(lambda ctx, t: t.view_as(t)),
        })  # fmt: skip
        fw = lib.autograd.forward_ad
        with fw.dual_level():
            x = fw.make_dual(lib.tensor([1.0, 2.0]), lib.tensor([3.0, 4.0]))
            return list(fw.unpack_dual(passing.apply(x)))

    assert same(scenario) == [[1.0, 2.0], [3.0, 4.0]]


def _doubled_apart(lib: Any) -> Any:
    """Of both styles the one that transforms take."""

    def batch(info: Any, in_dims: Any, x: Any) -> Any:
        return apart.apply(x), 0

    apart: Any = writing(
        lib,
        forward=lambda x: x.mul_(2),
        setup_context=lambda ctx, inputs, output: ctx.mark_dirty(inputs[0]),
        vmap=batch,
    )
    return apart


@pytest.mark.parametrize(
    "through",
    [
        lambda f, x: make_fx(f)(x)(x),
        lambda f, x: runtime.jit(f)(x),
        lambda f, x: export(f, (x,)).module()(x),
        lambda f, x: functionalize(f)(x),
        lambda f, x: tuple(t[0] for t in vmap(f)(x[None])),
        lambda f, x: jvp(f, (x,), (x,))[0],
    ],
    ids=["make_fx", "jit", "export", "functionalize", "vmap", "jvp"],
)
def test_a_level_counts_the_writes_of_a_function_as_torch_does(through: Any) -> None:
    """One for the write, one for the mark; those to a view are those of its base."""

    def times_versions(x: torch.Tensor) -> Any:
        whole, base = x * 1, x * 1
        doubled = _doubled_apart(torch)
        doubled.apply(whole)
        doubled.apply(base[1:])
        return whole * whole._version, base * base._version

    x = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(through(times_versions, x), times_versions(x))


@pytest.mark.parametrize("nested", ["vmap of grad", "grad of vmap", "make_fx of grad"])
def test_a_function_in_a_transform_overwrites_no_saved_tensor_in_silence(nested: str) -> None:
    def lost(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        saved = y.sin()
        _doubled_apart(torch).apply(y)
        return saved.sum()

    ways: dict[str, Callable[[Any], Any]] = {
        "vmap of grad": vmap(grad(lost)),
        "grad of vmap": grad(lambda x: vmap(lost)(x).sum()),
        "make_fx of grad": make_fx(grad(lost)),
    }
    with pytest.raises(RuntimeError, match="has been modified by an inplace operation"):
        ways[nested](torch.ones(2, 3))
