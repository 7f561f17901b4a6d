"""The eager session: backward, grad, hooks, freeing."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap, wrap

Check = Callable[..., None]


def test_backward_accumulates_into_leaves() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        (x * x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(unwrap(x.grad), torch.tensor([4.0, 8.0]))
    made: Any = x * x
    assert x.is_leaf and x.grad_fn is None and made.grad_fn.name() == "MulBackward0"


def test_gradients_that_share_memory_are_not_shared_by_leaves() -> None:
    a, b = (runtime.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    seed = torch.ones(2)
    (a + b).backward(seed)
    (a + b.view(2)).backward(seed)
    assert a.grad is not None and b.grad is not None
    a.grad.zero_()
    torch.testing.assert_close(unwrap(b.grad), torch.full((2,), 2.0))
    torch.testing.assert_close(seed, torch.ones(2))


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x * y[0]).sum(),
        lambda x, y: (x.sin() * x + x).sum(),
        lambda x, y: (x.expand(2, 4, 3) * y).sum(),
        lambda x, y: x.exp().sum() * y.sum(),
        lambda x, y: (x * 2).sum(),
    ],
)
def test_gradients_agree(f: Any, both: Check) -> None:
    both(f, torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64))


def test_create_graph_records_the_backward_pass() -> None:
    x = runtime.tensor([0.3, 0.7], requires_grad=True)
    (g,) = runtime.autograd.grad(x.sin().sum(), x, create_graph=True)
    (h,) = runtime.autograd.grad(g.sum(), x, create_graph=True)
    (third,) = runtime.autograd.grad(h.sum(), x)
    torch.testing.assert_close(unwrap(third), -unwrap(x).cos())
    assert h.requires_grad and not third.requires_grad


def test_unused_inputs() -> None:
    x, y = (runtime.tensor([1.0], requires_grad=True) for _ in range(2))
    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        runtime.autograd.grad((x * 2).sum(), [x, y])
    assert runtime.autograd.grad((x * 2).sum(), [x, y], allow_unused=True)[1] is None
    zeros = runtime.autograd.grad((x * 2).sum(), [x, y], materialize_grads=True)[1]
    torch.testing.assert_close(unwrap(zeros), torch.zeros(1))


def test_backward_twice_needs_retain_graph() -> None:
    x = runtime.tensor([2.0], requires_grad=True)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        y.backward()


def test_intermediate_inputs_and_batched_cotangents() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    z = y.exp()
    (gy,) = runtime.autograd.grad(z.sum(), y, retain_graph=True)
    torch.testing.assert_close(unwrap(gy), unwrap(z))
    (rows,) = runtime.autograd.grad(z, x, wrap(torch.eye(2)), is_grads_batched=True)
    torch.testing.assert_close(unwrap(rows), torch.diag(unwrap(z) * 2 * unwrap(x)))


def test_hooks_change_gradients_and_can_be_removed() -> None:
    x = runtime.tensor([1.0], requires_grad=True)
    seen: list[Any] = []
    y = x * 3
    y.retain_grad()
    handle = y.register_hook(lambda g: g * 10)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.item()))
    y.sum().backward(retain_graph=True)
    assert seen == [30.0] and y.grad is not None and y.grad.item() == 10.0
    handle.remove()
    y.sum().backward()
    assert seen == [30.0, 33.0]


def test_a_long_chain_of_nodes_runs_and_is_freed(without_collector: None) -> None:
    x = runtime.tensor([1.0], requires_grad=True)
    y: Any = x
    for _ in range(50_000):
        y = y + 1
    y.backward()
    assert x.grad is not None and x.grad.item() == 1.0
    last = weakref.ref(y.grad_fn)
    del y
    assert last() is None


def test_graphs_are_freed_by_reference_counting(without_collector: None) -> None:
    def build() -> list[Any]:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        y = (x.sin() * x).exp() * 1
        part = y[0]
        y.mul_(2)
        z = (y * part).sum()
        (g,) = runtime.autograd.grad(z, x, create_graph=True)
        g.sum().backward()
        return [
            weakref.ref(o)
            for o in (x, y, part, z, g, y.grad_fn, part.grad_fn, z.grad_fn, g.grad_fn)
        ]

    assert all(ref() is None for ref in build())

    seen = []

    def f(x: Any) -> Any:
        y = x.sin() * x
        seen.append(weakref.ref(y))
        return y.sum()

    runtime.func.vmap(runtime.func.grad(f))(torch.randn(3, 2))
    runtime.func.jvp(runtime.func.grad(f), (torch.randn(3),), (torch.randn(3),))
    assert len(seen) == 2 and all(ref() is None for ref in seen)


def test_broadcasting_zero_size_and_promotion(both: Check) -> None:
    d = torch.float64
    both(lambda x, y: (x * y).sum(), torch.randn(0, 3, dtype=d), torch.randn(3, dtype=d))
    both(lambda x, y: (x + y).sum(), torch.randn((), dtype=d), torch.randn(2, 1, 3, dtype=d))
    both(
        lambda x, y: (x / y).sum(), torch.randn(2, 3, dtype=torch.float32), torch.randn(3, dtype=d)
    )
    both(
        lambda x, y: (x * y).abs().sum(),
        torch.randn(2, 3, dtype=d),
        torch.randn(3, dtype=torch.complex128),
    )


def test_complex_gradients_follow_torchs_convention(both: Check) -> None:
    z = torch.randn(3, dtype=torch.complex128)
    both(lambda z: (z.sin() * z.conj()).abs().sum(), z)
    both(lambda z: (torch.view_as_real(z) ** 2).sum() + z.angle().sum() + z.imag.sum(), z)


def test_dispatch_inside_a_rule_respects_lazy_conjugation() -> None:
    z = torch.randn(3, dtype=torch.complex128)
    torch.testing.assert_close(
        runtime.func.vmap(lambda z: (z.conj() * 2).sin())(z), (z.conj() * 2).sin()
    )
    torch.testing.assert_close(unwrap(wrap(z).conj() + 1), z.conj() + 1)


def test_out_buffers_of_any_name_follow_what_they_hold() -> None:
    """torch.svd writes to ``U``, ``S`` and ``Vh`` of linalg_svd, which resizes them, and
    then transposes one."""
    x = torch.randn(4, 5, dtype=torch.float64)
    buffers = tuple(runtime.wrap(x.new_empty(0)) for _ in range(3))
    torch.svd(runtime.wrap(x), out=buffers)
    for found, expected in zip(buffers, torch.svd(x), strict=True):
        torch.testing.assert_close(runtime.unwrap(found), expected)


@pytest.mark.parametrize(
    "args", [(torch.ones(3), 2.0), (1.0, torch.ones(3)), (torch.ones(3), torch.ones(3))]
)
def test_normal_has_a_gradient_of_zero(args: Any) -> None:
    where = [i for i, a in enumerate(args) if isinstance(a, torch.Tensor)]

    def f(*some: Any) -> Any:
        full = list(args)
        for i, x in zip(where, some, strict=True):
            full[i] = x
        return torch.normal(*full)

    inputs = [args[i] for i in where]
    for g in runtime.func.vjp(f, *inputs)[1](torch.ones(3)):
        assert g.tolist() == [0, 0, 0]
    assert runtime.func.jvp(f, tuple(inputs), tuple(inputs))[1].tolist() == [0, 0, 0]
    draws = runtime.func.vmap(f, randomness="different")(*(torch.stack([x] * 4) for x in inputs))
    assert draws.shape == (4, 3) and draws.unique().numel() == 12


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_rrelu(training: bool, inplace: bool) -> None:
    """The same draw gives torch's gradients, in both modes and forms."""
    x = torch.linspace(-2, 2, 7, dtype=torch.float64)

    def f(x: Any) -> Any:
        torch.manual_seed(0)
        return torch.nn.functional.rrelu(x * 1, training=training, inplace=inplace)

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(leaf).sum(), leaf)
    out, pullback = runtime.func.vjp(f, x)
    torch.testing.assert_close(out, f(x))
    torch.testing.assert_close(pullback(torch.ones_like(x))[0], slope)
    torch.testing.assert_close(runtime.func.jvp(f, (x,), (torch.ones_like(x),))[1], slope)


def test_a_gradient_that_comes_as_a_view_keeps_its_memory_only_if_nobody_else_sees_it() -> None:
    w = runtime.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    for seen in (False, True):
        caught: list[torch.Tensor] = []
        made: list[int] = []

        def hook(
            g: Any, caught: list[torch.Tensor] = caught, made: list[int] = made, seen: bool = seen
        ) -> None:
            made.append(g.data_ptr())
            if seen:
                caught.append(g)

        w.grad = None
        turned: Any = w.t()
        turned.register_hook(hook)
        (runtime.tensor([[1.0, 0.0], [2.0, 5.0]]) @ turned).sum().backward()
        grad: Any = w.grad
        assert (grad.data_ptr() == made[0]) is not seen
        assert unwrap(grad)._base is None
        torch.testing.assert_close(unwrap(grad), torch.tensor([[3.0, 5.0], [3.0, 5.0]]))


@pytest.mark.parametrize("turned", [False, True])
def test_outputs_of_the_session_and_of_a_transform_are_differentiated_in_one_pass(
    turned: bool,
) -> None:
    own = runtime.tensor([1.0, 2.0], requires_grad=True)
    found: list[Any] = []

    def energy(x: Any) -> Any:
        outputs = [(x * x).sum(), (own * own * own).sum()]
        grads = runtime.autograd.grad(
            outputs[::-1] if turned else outputs, [x, own], create_graph=True
        )
        found.extend(g.tolist() for g in grads)
        return grads[0].pow(2).sum()

    assert runtime.func.grad(energy)(torch.tensor([3.0, 4.0])).tolist() == [24.0, 32.0]
    assert found == [[6.0, 8.0], [3.0, 12.0]]
