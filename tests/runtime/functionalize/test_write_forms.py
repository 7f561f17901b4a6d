"""Every form of a write, at every level: what the call returns, how the version counts, what else
is written. Torch is the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.aot import aot_function, nop
from runtime.errors import InplaceError
from runtime.func import functionalize, grad, jvp, vmap

aten = torch.ops.aten
Write = Callable[[Any, Any], Any]  # of the tensor that is written, of shape (3, 4), and another one
MASK = torch.arange(12).reshape(3, 4) % 3 == 0
ROW = torch.tensor([2, 0])
WRITES: dict[str, Write] = {
    "add_": lambda y, z: y.add_(z, alpha=2),
    "itself": lambda y, z: y.mul_(y),
    "a row": lambda y, z: y[1].add_(z[0]),
    "a column of another": lambda y, z: y[:, 1].copy_(z[:, 2]),
    "an index": lambda y, z: y.__setitem__((ROW, 1), z[0, :2]),
    "a mask": lambda y, z: y.__setitem__(MASK, 0.5),
    "masked_fill_": lambda y, z: y.masked_fill_(MASK, 2.0),
    "masked_scatter_": lambda y, z: y.masked_scatter_(MASK, z),
    "index_add_": lambda y, z: y.index_add_(0, ROW, z[:2], alpha=3),
    "index_copy_": lambda y, z: y.index_copy_(0, ROW, z[:2]),
    "index_fill_": lambda y, z: y.index_fill_(1, ROW, 7.0),
    "scatter_": lambda y, z: y.scatter_(0, ROW[:, None], z[:2, :1]),
    "scatter_add_": lambda y, z: y.scatter_add_(0, ROW[:, None], z[:2, :1]),
    "put_": lambda y, z: y.put_(ROW, z[0, :2]),
    "addcmul_": lambda y, z: y.addcmul_(z, z, value=0.5),
    "addmm_": lambda y, z: y.addmm_(z @ z.t(), z, beta=2, alpha=0.5),
    "clamp_": lambda y, z: y.clamp_(min=1.0, max=6.0),
    "clamp_ by tensors": lambda y, z: y.clamp_(max=z),
    "lerp_": lambda y, z: y.lerp_(z, 0.25),
    "cumsum_": lambda y, z: y.cumsum_(1),
    "fill_": lambda y, z: y.fill_(z[0, 0]),
    "zero_": lambda y, z: y.zero_(),
    "tril_": lambda y, z: y.tril_(1),
    "fill_diagonal_": lambda y, z: y.fill_diagonal_(9.0),
    "pow_": lambda y, z: y.pow_(2),
    "polygamma_": lambda y, z: y.polygamma_(1),
    "a comparison": lambda y, z: y.gt_(z),
    "a list": lambda y, z: torch._foreach_mul_([y], 3.0),
    "a list with tensors": lambda y, z: torch._foreach_add_([y], [z], alpha=2),
    "a list of two rows": lambda y, z: torch._foreach_add_([y[0], y[1]], [z[0], z[1]]),
    "a list of a row twice": lambda y, z: torch._foreach_add_([y[0], y[0]], [z[0], z[1]]),
    "a list that reads itself": lambda y, z: torch._foreach_add_([y[0], y[1]], [y[1], y[0]]),
    "through a view twice": lambda y, z: (y.view(12)[::5].mul_(2), y.t()[0].add_(1))[1],
    "the diagonal": lambda y, z: y.diagonal().sub_(1),
    "a part of a part": lambda y, z: y[1:][:, 2:].t().mul_(4),
    "an alias of detach": lambda y, z: y.detach().add_(1),
    "the same size": lambda y, z: y.resize_(3, 4),
    "the size of another": lambda y, z: y.resize_as_(z),
}
X = torch.arange(1.0, 13.0, dtype=torch.float64).reshape(3, 4) / 4


def _facts(write: Write) -> Callable[[Any, Any], Any]:
    """The written tensor, the other one, whether the write returned the written tensor,
    and the versions."""

    def f(x: Any, z: Any) -> Any:
        y = x * 1
        returned = write(y, z * 1)
        return y * 1, z * 1, [returned is y, returned is None, y._version]

    return f


def _numbers(found: Any) -> Any:
    return [t for t in found if isinstance(t, torch.Tensor)], found[-1]


ENGINES: dict[str, Callable[[Any], Any]] = {
    "functionalize": functionalize,
    "without views": lambda f: functionalize(f, remove="mutations_and_views"),
    "grad": lambda f: lambda x, z: _inside(grad, f, x, z),
    "grad of functionalize": lambda f: lambda x, z: _inside(grad, functionalize(f), x, z),
    "jvp": lambda f: lambda x, z: _inside(lambda g: lambda x: jvp(g, (x,), (x,))[1], f, x, z),
    "the session": lambda f: lambda x, z: f(runtime.wrap(x), runtime.wrap(z)),
}


def _inside(transform: Any, f: Any, x: torch.Tensor, z: torch.Tensor) -> Any:
    """What ``f`` gives inside a transform, read there."""
    seen: list[Any] = []

    def run(x: Any) -> Any:
        *tensors, facts = f(x, z)
        seen.extend([*(t.tolist() for t in tensors), facts])
        return (x * 1).sum()

    transform(run)(x)
    return *(torch.tensor(t, dtype=torch.float64) for t in seen[:-1]), seen[-1]


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_leaves_and_returns_what_it_does_in_torch(engine: str, name: str) -> None:
    f = _facts(WRITES[name])
    if engine in ("grad", "jvp") and "size" in name:
        with pytest.raises(
            RuntimeError, match=r"cannot resize variables that require grad|has no derivative"
        ):
            ENGINES[engine](f)(X, X)
        return
    expected, facts = _numbers(f(X, X.flip(0)))
    found, seen = _numbers(ENGINES[engine](f)(X.clone(), X.flip(0)))
    assert all(torch.equal(runtime.unwrap(a), b) for a, b in zip(found, expected, strict=True))
    assert seen == facts


@pytest.mark.parametrize("name", WRITES)
def test_a_batch_of_writes_is_that_of_each_element(name: str) -> None:
    def f(x: Any, z: Any) -> Any:
        y = x * 1
        WRITES[name](y, z * 1)
        return y

    if name in ("the same size", "the size of another"):
        with pytest.raises(RuntimeError, match="changes the number of elements"):
            vmap(f)(X[None], X[None])
        return
    x, z = torch.stack([X, -X, X * 2]), torch.stack([X.flip(0), X, X * 3])
    expected = torch.stack([f(a, b) for a, b in zip(x, z, strict=True)])
    torch.testing.assert_close(vmap(f)(x, z), expected)
    torch.testing.assert_close(functionalize(vmap(f))(x, z), expected)


@pytest.mark.parametrize("name", WRITES)
def test_an_argument_is_written_at_the_end_and_its_version_counts_once(name: str) -> None:
    given, expected = X.clone(), X.clone()
    z = X.flip(0)
    functionalize(lambda x: (WRITES[name](x, z), None)[1] or x.sum())(given)
    WRITES[name](expected, z)
    changed = not torch.equal(expected, X)
    assert torch.equal(given, expected) and torch.equal(z, X.flip(0))
    assert given._version == changed


@pytest.mark.parametrize("name", [n for n in WRITES if "size" not in n])
def test_a_compiled_program_writes_to_its_argument_and_to_a_tensor_it_closes_over(
    name: str,
) -> None:
    z = X.flip(0)
    expected = X.clone()
    WRITES[name](expected, z)
    given, held = X.clone(), X.clone()

    def f(x: Any) -> Any:
        WRITES[name](x, z)
        return x.sum()

    assert torch.equal(aot_function(f, nop)(given), expected.sum()) and torch.equal(given, expected)
    functionalize(lambda x: (WRITES[name](held, z), x * 1)[1])(X)
    assert torch.equal(held, expected)


def test_a_write_at_a_dual_level_is_counted_once() -> None:
    """Also one to a tensor that is no value of the level, whether or not something else is one."""

    def f(x: Any) -> Any:
        y, held, given = x * 1, torch.ones(2), torch.ones(2)
        y.mul_(2)
        y.gt_(1)
        y[0].add_(1)
        held.add_(1)
        given.copy_(x.detach())
        seen.append((y._version, held._version, given._version))
        return x * 1

    seen: list[tuple[int, int, int]] = []
    jvp(f, (torch.ones(2),), (torch.ones(2),))
    torch.func.jvp(f, (torch.ones(2),), (torch.ones(2),))
    assert seen == [(3, 1, 1), (3, 1, 1)]


_closed = torch.ones(2, 3)
REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "other memory": (lambda x: x.set_(X * 2), "changes the storage or geometry"),
    "another size": (lambda x: (x * 1).resize_(20), "changes the storage or geometry"),
    "a shape that does not fit": (
        lambda x: (x * 1).add_(torch.ones(2, 3, 4)),
        "doesn't match the broadcast shape",
    ),
    "a transpose of what is closed over": (lambda x: _closed.t_(), "closes over"),
    "a view that is detached in place": (
        lambda x: (x * 1)[0].detach_(),
        "Can't detach views in-place",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_without_a_write_is_refused_and_changes_nothing(name: str) -> None:
    f, message = REFUSED[name]
    given = X.clone()
    with pytest.raises((InplaceError, RuntimeError), match=message):
        functionalize(f)(given)
    assert torch.equal(given, X) and given._version == 0 and _closed.shape == (2, 3)
