"""What is made inside a transformed function is the transform's own: it may be viewed, then written
to. torch.func is the oracle.

Under the drop-in, where every factory is seen. Without it a plain buffer with views is refused: see
``test_buffers.py``."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn as nn
import torch.utils.dlpack

import runtime
import runtime.dropin
import runtime.func
from runtime.errors import EscapedValue

X = torch.linspace(0.3, 1.2, 4, dtype=torch.float64)


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def view_before_the_write(x: Any) -> Any:
    b = zeros(4)
    first, second = b[:2], b[2:]
    b.add_(x)
    return (first * second).sum()


def overlapping_views(x: Any) -> Any:
    b = zeros(4)
    v, w = b[1:3], b[2:]
    v.copy_(x[:2])
    return (w * x[2:]).sum() + b.sum()


def transposed(x: Any) -> Any:
    b = zeros(2, 2)
    t = b.t()
    b[0, 1] = x[0]
    b[1] = x[2:]
    return (t * torch.arange(4.0, dtype=torch.float64).view(2, 2)).sum()


def by_several_indices(x: Any) -> Any:
    h = zeros(2, 2)
    for i in range(2):
        for j in range(2):
            h[i][j] = x[i] * x[j + 1]
    return (h**2).sum()


def rows(x: Any) -> Any:
    b = zeros(4, 1)
    each = [b[i] for i in range(4)]
    for i, row in enumerate(each):
        row.add_(x[i])
    return (b**2).sum()


def accumulator(x: Any) -> Any:
    total = zeros()
    seen = total.view(1)
    for i in range(4):
        total += x[i] ** 2
    return (seen * total).sum()


def filled(x: Any) -> Any:
    b = zeros(4)
    v = b[0]
    b.fill_(x[0])
    return v * b.sum()


def scattered(x: Any) -> Any:
    b = zeros(3)
    v = b[1:]
    b.scatter_add_(0, torch.tensor([0, 1, 2, 1]), x)
    return (v**2).sum()


def masked(x: Any) -> Any:
    b = zeros(4)
    v = b[:1]
    b.masked_scatter_(torch.tensor([True, False, True, False]), x)
    return (b * b).sum() + v.sum()


def through_the_real_part(x: Any) -> Any:
    b = zeros(4, dtype=torch.complex128)
    b.real.copy_(x)
    b.imag.add_(x**2)
    return b.abs().sum()


def of_other_factories(x: Any) -> Any:
    b = torch.ones(3, dtype=torch.float64).new_zeros(4)
    v = b[:2]
    b.copy_(x)
    c = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    w = c[::2]
    c.mul_(b)
    return (v * w).sum()


def clone_of_a_tensor_from_outside(x: Any) -> Any:
    b = CAPTURED[0].clone()
    v = b[:2]
    b.mul_(x)
    return (v**2).sum()


def result_of_a_parameter(x: Any) -> Any:
    w = nn.Parameter(torch.eye(4, dtype=torch.float64))
    y = w @ torch.ones(4, dtype=torch.float64)
    y.add_(x)
    return (y * y).sum()


def the_sessions_own_gradient(x: Any) -> Any:
    w = torch.ones(4, dtype=torch.float64, requires_grad=True)
    (g,) = torch.autograd.grad((w**3).sum(), w)
    return (g * x).sum()


def _sums_of_products(x: Any) -> Any:
    return (torch.outer(x[:2], x[1:3]) ** 2).sum()


def new_tensor(x: Any) -> Any:
    b = x.new_tensor([1.0, 2.0, 3.0, 4.0])
    v = b[:2]
    b.mul_(x)
    c = torch.ones(4, dtype=torch.float64).new_tensor([1.0, 2.0, 3.0, 4.0])
    w = c[:2]
    c.mul_(x)
    return (v * w).sum()


def unpickled(x: Any) -> Any:
    b = pickle.loads(pickle.dumps(CAPTURED[0]))
    v = b[:2]
    b.requires_grad = False
    b.mul_(x)
    return (v**2).sum()


def copied_deeply(x: Any) -> Any:
    b = copy.deepcopy(CAPTURED[0])
    v = b[:2]
    b.mul_(x)
    return (v**2).sum()


def data_read(x: Any) -> Any:
    b = x.data
    c = b.data.mul(1)
    c.data.add_(1.0)
    return (b * c * x).sum()


def complex_view_of_a_tangent_without_strides(x: Any) -> Any:
    b = zeros(3, 2)
    b.addcmul_(x.sum(), x[0])
    return torch.view_as_complex(b).abs().sum()


def data_exchanged(x: Any) -> Any:
    b = CAPTURED[0]
    b.data = torch.arange(1.0, 5.0, dtype=torch.float64) + 1
    return (torch.stack([b, b]) * x).sum()


def detached_in_place_beside_a_view(x: Any) -> Any:
    b = x * 2
    v = b[:2]
    b.detach_()
    return (v * b[:2]).sum()


CAPTURED: list[Any] = []
# Each program with one of the same value that writes nothing
PROGRAMS: dict[Callable[[Any], Any], Callable[[Any], Any]] = {
    view_before_the_write: lambda x: (x[:2] * x[2:]).sum(),
    overlapping_views: lambda x: x[1] * x[2] + x[:2].sum(),
    transposed: lambda x: 2 * x[0] + x[2] + 3 * x[3],
    by_several_indices: _sums_of_products,
    rows: lambda x: (x**2).sum(),
    accumulator: lambda x: (x**2).sum() ** 2,
    filled: lambda x: 4 * x[0] ** 2,
    scattered: lambda x: (x[1] + x[3]) ** 2 + x[2] ** 2,
    masked: lambda x: x[0] ** 2 + x[1] ** 2 + x[0],
    through_the_real_part: lambda x: (x**2 + x**4).sqrt().sum(),
    of_other_factories: lambda x: x[0] * x[0] + x[1] * 3 * x[2],
    clone_of_a_tensor_from_outside: lambda x: x[0] ** 2 + 4 * x[1] ** 2,
    result_of_a_parameter: lambda x: ((x + 1) ** 2).sum(),
    the_sessions_own_gradient: lambda x: 3 * x.sum(),
    new_tensor: lambda x: x[0] ** 2 + 4 * x[1] ** 2,
    unpickled: lambda x: x[0] ** 2 + 4 * x[1] ** 2,
    copied_deeply: lambda x: x[0] ** 2 + 4 * x[1] ** 2,
    data_read: lambda x: (x.detach() * (x.detach() + 1) * x).sum(),
    complex_view_of_a_tangent_without_strides: lambda x: 3 * 2**0.5 * x.sum() * x[0],
    data_exchanged: lambda x: 2 * (x * torch.arange(2.0, 6.0, dtype=torch.float64)).sum(),
    detached_in_place_beside_a_view: lambda x: (2 * x[:2] * (2 * x[:2]).detach()).sum(),
}
PIPELINES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda f: torch.func.grad(f)(X),
    "jvp": lambda f: torch.func.jvp(f, (X,), (X + 1,)),
    "jacfwd": lambda f: torch.func.jacfwd(f)(X),
    "grad . grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sin().sum())(X),
    "jvp . grad": lambda f: torch.func.jvp(torch.func.grad(f), (X,), (X,)),
    "hessian": lambda f: torch.func.hessian(f)(X),
}


def plain(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: runtime.unwrap(t).detach(), tree)


@pytest.mark.parametrize("f", PROGRAMS)
@pytest.mark.parametrize("pipeline", PIPELINES)
def test_what_a_transform_makes_may_be_viewed_and_written(
    f: Callable[[Any], Any], pipeline: str
) -> None:
    run = PIPELINES[pipeline]
    expected = run(PROGRAMS[f])
    with runtime.dropin.installed():
        CAPTURED[:] = [torch.arange(1.0, 5.0, dtype=torch.float64)]
        found = plain(run(f))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("f", PROGRAMS)
def test_so_it_is_when_the_derivative_is_recorded(f: Callable[[Any], Any]) -> None:
    """torch's ``linearize`` answers 0 for most of these."""
    with runtime.dropin.installed():
        CAPTURED[:] = [torch.arange(1.0, 5.0, dtype=torch.float64)]
        found = plain(torch.func.linearize(f, X)[1](X))
    torch.testing.assert_close(found, torch.func.jvp(PROGRAMS[f], (X,), (X,))[1])


def test_what_a_batch_captured_is_cloned_and_written_within_it() -> None:
    def f(x: Any) -> Any:
        def g(y: Any) -> Any:
            z = x.clone()
            v = z[:1]
            z.add_(y)
            return (z * z).sum() * v.sum()

        return lib.grad(g)(X[:2])

    batch = torch.arange(6.0, dtype=torch.float64).reshape(3, 2)
    results = []
    for lib in (torch.func, runtime.func):
        results.append(lib.vmap(f)(batch))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("transform", ["grad", "jvp"])
def test_a_write_to_what_is_captured_is_refused(transform: str) -> None:
    def run(f: Any) -> None:
        torch.func.grad(f)(X) if transform == "grad" else torch.func.jvp(f, (X,), (X,))

    with runtime.dropin.installed():
        captured = torch.zeros(4, dtype=torch.float64)
        writes: list[Any] = [
            lambda x: captured.add_(x).sum(),
            lambda x: captured[:2].add_(x[:2]).sum(),
        ]
        writes.append(lambda x: captured.detach().add_(x).sum())
        for write in writes:
            with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
                run(write)
    assert captured.tolist() == [0.0] * 4


@pytest.mark.parametrize("transform", ["grad", "jvp", "vmap"])
def test_the_data_of_a_tensor_is_no_value_of_a_transform(transform: str) -> None:
    def f(x: Any) -> Any:
        CAPTURED[0].data = x * 2
        return x.sum()

    with runtime.dropin.installed():
        CAPTURED[:] = [torch.ones(4, dtype=torch.float64)]
        with pytest.raises(RuntimeError, match=r"Use copy_\(\) to write its numbers"):
            torch.vmap(f)(X[None]) if transform == "vmap" else PIPELINES[transform](f)
        assert CAPTURED[0].tolist() == [1.0] * 4


def test_requires_grad_is_no_flag_of_what_has_a_history_or_a_tangent() -> None:
    def unset(x: Any) -> Any:
        y = x * 2
        y.requires_grad = False
        return y.sum()

    def set_(x: Any) -> Any:
        y = x * 2
        y.requires_grad = True
        return y.sum()

    with pytest.raises(RuntimeError, match="only the flag of a leaf can be changed"):
        runtime.func.grad(unset)(X)
    for transform in (runtime.func.jacfwd, runtime.func.functionalize):
        with pytest.raises(RuntimeError, match=r"Tensor\.requires_grad_\(\) inside of a function"):
            transform(set_)(X)
    with pytest.raises(RuntimeError, match=r"requires_grad_\(\)"):
        runtime.func.vmap(set_)(X)


def test_a_stale_view_of_what_was_detached_in_place_has_lost_its_tangent() -> None:
    def f(x: Any) -> Any:
        b = x * 2
        v = b[:2]
        b.mul_(x)
        b.detach_()
        return v.sum()

    with pytest.raises(RuntimeError, match="the tangent of the view is lost"):
        runtime.func.jacfwd(f)(X)


@pytest.mark.parametrize("pipeline", ["grad", "grad . grad", "jvp", "hessian"])
def test_a_constant_that_a_transform_made_and_stored_serves_afterwards(pipeline: str) -> None:
    """Positions that a module computes in its first call and keeps."""
    cache: list[Any] = []

    def f(x: Any) -> Any:
        if not cache:
            cache.append(torch.arange(4.0, dtype=torch.float64) * 2)
        return (x * cache[0]).sum()

    with runtime.dropin.installed():
        PIPELINES[pipeline](f)
        (kept,) = cache
        assert (
            kept.tolist()
            == kept.numpy().tolist()
            == copy.deepcopy(kept).tolist()
            == [0.0, 2.0, 4.0, 6.0]
        )
        assert pickle.loads(pickle.dumps(kept)).tolist() == [0.0, 2.0, 4.0, 6.0]
        assert torch.func.grad(f)(X).tolist() == [0.0, 2.0, 4.0, 6.0]
        w = torch.ones(4, dtype=torch.float64, requires_grad=True)
        (w * kept).sum().backward()
        assert w.grad is not None
        assert w.grad.tolist() == [0.0, 2.0, 4.0, 6.0]
        assert kept.add_(1) is kept
        assert kept.tolist() == [1.0, 3.0, 5.0, 7.0]


def test_a_stored_value_with_a_history_has_escaped() -> None:
    kept: list[Any] = []

    def f(x: Any) -> Any:
        kept.append(x * 2)
        return x.sum()

    for transform in (runtime.func.grad, runtime.func.jacfwd):
        transform(f)(X)
        with pytest.raises(EscapedValue, match="after the transform has returned"):
            kept.pop() + 1


def test_of_copies_that_share_memory_none_is_written_with_a_history() -> None:
    def f(x: Any) -> Any:
        b, v = copy.deepcopy([CAPTURED[0], CAPTURED[0][:2]])
        b.mul_(x)
        return v.sum()

    with runtime.dropin.installed():
        CAPTURED[:] = [torch.ones(4, dtype=torch.float64)]
        for transform in (torch.func.grad, torch.func.jacfwd):
            with pytest.raises(RuntimeError, match="mutate a captured Tensor"):
                transform(f)(X)


def test_data_of_a_batch_is_constant_further_out() -> None:
    batch = torch.stack([X, X + 1])
    for transform in (runtime.func.jacfwd, runtime.func.jacrev):
        found = transform(lambda x: runtime.func.vmap(lambda x: x.data * x)(x).sum())(batch)
        torch.testing.assert_close(found, batch)


@pytest.mark.parametrize("transform", ["vmap", "functionalize", "jacfwd"])
def test_what_only_shows_a_shape_exports_no_memory(transform: str) -> None:
    def f(x: Any) -> Any:
        with pytest.raises(BufferError, match="cannot be exported by DLPack"):
            x.__dlpack__()
        return (
            torch.utils.dlpack.from_dlpack(x.detach()).sum() if transform == "jacfwd" else x.sum()
        )

    getattr(runtime.func, transform)(f)(X[None])


CELLS = [cell(2, 3).double() for cell in (nn.GRUCell, nn.LSTMCell, nn.RNNCell)]
LAYERS = [
    layer.double()
    for layer in (
        nn.GRU(2, 3, bidirectional=True),
        nn.RNN(2, 3, nonlinearity="relu"),
        nn.LSTM(2, 3, 2, proj_size=2),
    )
]


def cells(x: Any) -> Any:
    gru, lstm, rnn = CELLS
    return (
        gru(x.view(2, 2)).sum() + lstm(x.view(2, 2))[0].sin().sum() + rnn(x.view(2, 2)).sin().sum()
    )


def layers(x: Any) -> Any:
    return sum(layer(x.view(2, 1, 2))[0].sin().sum() for layer in LAYERS)


@pytest.mark.parametrize("f", [cells, layers])
@pytest.mark.parametrize("transform", ["grad", "jacfwd", "hessian"])
def test_recurrent_layers_by_their_input(f: Callable[[Any], Any], transform: str) -> None:
    """Their steps write into products of their weights and states, which belong to no transform."""
    expected = plain(getattr(torch.func, transform)(f)(X))
    torch.testing.assert_close(plain(getattr(runtime.func, transform)(f)(X)), expected)
    with runtime.dropin.installed():
        torch.testing.assert_close(plain(getattr(torch.func, transform)(f)(X)), expected)


VIEWS_WITHOUT_GRAD: dict[str, Callable[[Any], Any]] = {
    "an op": lambda v: v.mul_(3), "an index": lambda v: v.__setitem__(0, 3.0),
    "its geometry": lambda v: v.unsqueeze_(0), "a list": lambda v: torch._foreach_mul_([v], 3.0),
}  # fmt: skip


@pytest.mark.parametrize("write", VIEWS_WITHOUT_GRAD.values(), ids=VIEWS_WITHOUT_GRAD)
def test_a_view_without_history_of_what_has_one_is_not_written(write: Callable[[Any], Any]) -> None:
    def f(x: Any) -> Any:
        y = x * 2
        with torch.no_grad():
            v = y[:]
        write(v)
        return (y * y).sum()

    for lib in (torch.func, runtime.func):
        with pytest.raises(
            RuntimeError,
            match="created in no_grad mode and is being modified inplace with grad mode enabled",
        ):
            lib.grad(f)(X)


def _to_a_view(b: Any) -> None:
    b[-1].pow_(2)


NO_GRAD_WRITES: dict[str, Callable[[Any], Any]] = {
    "a view": _to_a_view, "a constant": lambda b: b.fill_(2),
    "a constant in a view": lambda b: b[1:].zero_(), "all": lambda b: b.mul_(3),
}  # fmt: skip


@pytest.mark.parametrize("write", NO_GRAD_WRITES.values(), ids=NO_GRAD_WRITES)
def test_a_write_under_no_grad_leaves_the_history_of_the_tangent(
    write: Callable[[Any], Any],
) -> None:
    """The gradient of a tangent goes past the write, by what was not written too."""

    def f(x: Any) -> Any:
        b = x.sin()
        with torch.no_grad():
            write(b)
        return (b * x).sum()

    for lib in (torch.func, runtime.func):
        found = lib.grad(lambda x, lib=lib: lib.jvp(f, (x,), (x,))[1])(X)
        if lib is torch.func:
            expected = found
    torch.testing.assert_close(found, expected)


def test_a_tangent_that_is_read_first_under_no_grad_has_its_history() -> None:
    def f(x: Any) -> Any:
        b = x.clone().unsqueeze(0)
        part = b[0]
        b.sin_()
        with torch.no_grad():
            part * 2
        return (part * x).sum()

    expected, found = (
        lib.grad(lambda x, lib=lib: lib.jvp(f, (x,), (x,))[1])(X)
        for lib in (torch.func, runtime.func)
    )
    torch.testing.assert_close(found, expected)
