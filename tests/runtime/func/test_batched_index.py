"""Indexing by an integer that differs between the elements of a batch is, for each element,
indexing by a number."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime import aot, wrap
from runtime.errors import BatchingError
from runtime.func import functionalize, grad, hessian, jvp, vmap

N = 4
T = torch.tensor([0, 2])
MASK = torch.tensor([True, False, True])
INDICES: dict[str, Callable[[Any, Any], Any]] = {
    "i": lambda i, j: i,
    "i32": lambda i, j: i.int(),
    "i, 0": lambda i, j: (i, 0),
    ":, i": lambda i, j: (slice(None), i),
    "..., i": lambda i, j: (..., i),
    "i, None": lambda i, j: (i, None),
    "None, i": lambda i, j: (None, i),
    "1:, i": lambda i, j: (slice(1, None), i),
    "i, j": lambda i, j: (i, j),
    "i, mask": lambda i, j: (i, torch.tensor([True, False, True, True])),
    "i, :, mask": lambda i, j: (i, slice(None), MASK),
    "i, [0, 2]": lambda i, j: (i, [0, 2]),
    "i, :, t": lambda i, j: (i, slice(None), T),
    ":, i, :, t": lambda i, j: (slice(None), i, slice(None), T),
    "t, :, i, t": lambda i, j: (T, slice(None), i, T),
    "i, None, t": lambda i, j: (i, None, T),
    "i, :, stack": lambda i, j: (i, slice(None), torch.stack([i, j])),
}


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(N, 3, 4, 3, 3, dtype=torch.double)


I = torch.tensor([0, 2, -1, 1])  # noqa: E741
J = torch.tensor([1, -2, 0, 2])


def _loop(f: Callable[..., Any], *args: Any) -> Any:
    """``f`` of one element after the other, where a tuple marks an argument as shared."""
    found = [f(*(a[0] if isinstance(a, tuple) else a[b] for a in args)) for b in range(N)]
    return (
        tuple(map(torch.stack, zip(*found, strict=True)))
        if isinstance(found[0], tuple)
        else torch.stack(found)
    )


def _written(x: Any, at: Any, v: Any) -> Any:
    x = x.clone()
    x[at] = v
    return x


def _squares(f: Any) -> Any:
    return lambda *args: f(*args).pow(2).sum()


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_reading(index: Any, x: torch.Tensor) -> None:
    def read(x: Any, i: Any, j: Any) -> Any:
        return x[index(i, j)]

    torch.testing.assert_close(vmap(read)(x, I, J), _loop(read, x, I, J))
    torch.testing.assert_close(vmap(read, (None, 0, 0))(x[0], I, J), _loop(read, (x[0],), I, J))
    torch.testing.assert_close(
        vmap(lambda i, j: wrap(x[0])[index(i, j)])(I, J), wrap(_loop(read, (x[0],), I, J))
    )
    torch.testing.assert_close(
        vmap(lambda i: vmap(lambda x, j: read(x, i, j))(x, J))(I),
        _loop(lambda i: _loop(read, x, (i,), J), I),
    )
    torch.testing.assert_close(
        vmap(lambda i: vmap(lambda x: read(x, i, J[1]))(x))(I),
        _loop(lambda i: _loop(read, x, (i,), (J[1],)), I),
    )
    torch.testing.assert_close(
        vmap(lambda x: vmap(lambda i, j: read(x, i, j))(I, J))(x),
        _loop(lambda x: _loop(read, (x,), I, J), x),
    )


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
def test_writing(index: Any, x: torch.Tensor) -> None:
    def write(x: Any, i: Any, j: Any, v: Any) -> Any:
        return _written(x, index(i, j), v)

    one = torch.randn(x[0][index(I[0], J[0])].shape, dtype=torch.double)
    each = torch.randn(N, *one.shape, dtype=torch.double)
    torch.testing.assert_close(
        vmap(write, (0, 0, 0, None))(x, I, J, 7.0), _loop(write, x, I, J, (7.0,))
    )
    torch.testing.assert_close(
        vmap(write, (0, 0, 0, None))(x, I, J, one), _loop(write, x, I, J, (one,))
    )
    torch.testing.assert_close(vmap(write)(x, I, J, each), _loop(write, x, I, J, each))
    nested = vmap(lambda i: vmap(lambda x, j: write(x * i, i, j, one))(x, J))(I)
    torch.testing.assert_close(
        nested, _loop(lambda i: _loop(lambda x, j: write(x * i, i, j, one), x, J), I)
    )


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: grad(_squares(f)),
        lambda f: lambda x, *rest: jvp(lambda x: f(x, *rest), (x,), (x.cos(),))[1],
        lambda f: lambda x, *rest: hessian(lambda x: _squares(f)(x, *rest) * x.sum())(x).sum(0),
        functionalize,
    ],
    ids=["grad", "jvp", "hessian", "functionalize"],
)
@pytest.mark.parametrize("index", ["i", "i, 0", "i, :, t", ":, i, :, t", "i, :, mask"])
def test_transformed(transform: Any, index: str, x: torch.Tensor) -> None:
    at = INDICES[index]
    x = x[:, :, :3, :, 0] if transform is not functionalize else x  # a Hessian of 27 elements each
    if index == ":, i, :, t" and x.dim() == 4:
        x = x.unsqueeze(1)
    read = transform(lambda x, i, j: x[at(i, j)])
    write = transform(lambda x, i, j: _written(x, at(i, j), x[at(i, j)].exp()))
    torch.testing.assert_close(vmap(read)(x, I, J), _loop(read, x, I, J))
    torch.testing.assert_close(vmap(write)(x, I, J), _loop(write, x, I, J))
    torch.testing.assert_close(vmap(read, (None, 0, 0))(x[0], I, J), _loop(read, (x[0],), I, J))


def test_gradients_outside_the_batch(x: torch.Tensor) -> None:
    def read(x: Any, i: Any) -> Any:
        return x[i, :, T].pow(2)

    def batch(x: Any) -> Any:
        return vmap(read)(x, I)

    torch.testing.assert_close(
        grad(lambda x: batch(x).sum())(x), _loop(grad(lambda x, i: read(x, i).sum()), x, I)
    )
    torch.testing.assert_close(jvp(batch, (x,), (x,)), jvp(lambda x: _loop(read, x, I), (x,), (x,)))

    shared: Any = lambda x: vmap(lambda i: x[i])(I)  # noqa: E731
    torch.testing.assert_close(
        grad(_squares(shared))(x[0]), grad(lambda x: x[I].pow(2).sum())(x[0])
    )
    leaf = wrap(x[0], True)
    _squares(shared)(leaf).backward()
    torch.testing.assert_close(leaf.grad._inner, grad(lambda x: x[I].pow(2).sum())(x[0]))


def test_by_what_the_batch_computes() -> None:
    x = torch.tensor([[3.0, 9.0, 1.0], [5.0, 2.0, 4.0]])
    torch.testing.assert_close(vmap(lambda x: x[x.argmax()])(x), x.amax(1))
    torch.testing.assert_close(vmap(lambda x: x[x.sort().indices[0]])(x), x.amin(1))


def test_in_a_trace(x: torch.Tensor) -> None:
    """The graph selects by the integers that it is given."""
    read = vmap(lambda x, i: x[i])
    torch.testing.assert_close(aot.make_fx(read)(x, I)(x, J % 3), read(x, J % 3))
    torch.testing.assert_close(
        vmap(lambda x, i: aot.make_fx(lambda x, i: x[i])(x, i)(x, i))(x, I), read(x, I)
    )


@pytest.mark.parametrize(
    "f",
    [lambda x, i: x[i:], lambda x, i: x[: i + 1], lambda x, i: x[i == 1], lambda x, i: x[int(i)]],
)
def test_what_would_select_other_shapes_is_refused(f: Any, x: torch.Tensor) -> None:
    with pytest.raises(BatchingError, match=r"item\(\) on a Tensor(.|\n)*test_batched_index"):
        vmap(f)(x, I)


def test_out_of_range(x: torch.Tensor) -> None:
    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        vmap(lambda x, i: x[i])(x, I + 5)
    with pytest.raises(IndexError, match="too many indices"):
        vmap(lambda x, i: x[i])(x[:, 0, 0, 0, 0], I)


def test_another_thread_gets_an_error_rather_than_a_wrong_answer() -> None:
    """The integers have a dispatch key of functorch's, which only threads that have run a
    vmap leave alone."""
    found: list[Any] = []

    def work(i: Any) -> Any:
        try:
            found.append(i + 1)
        except RuntimeError as error:
            found.append(error)
        return i

    def f(i: Any) -> Any:
        thread = threading.Thread(target=work, args=(i,))
        thread.start()
        thread.join()
        return i

    vmap(f)(I)
    assert isinstance(found[0], RuntimeError)
    vmap(work)(I)
    assert isinstance(found[1], torch.Tensor)
