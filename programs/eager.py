"""Programs about what eager code does with tensors beside computing: flags, gradients that
accumulate, hooks, copies, other libraries.

Each returns x times what it is about, then that without a history, and numbers or flags that eager
code would ask for."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

Results = tuple[Any, ...]


def _leaf(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_()


def _held(t: Tensor) -> Tensor:
    """A copy of the gradient that `t` has now."""
    assert t.grad is not None
    return t.grad * 1


def _raises(call: Callable[[], object]) -> bool:
    try:
        call()
    except RuntimeError:
        return True
    return False


def _seen(x: Tensor, *found: Any) -> Results:
    first, *rest = [part.detach() if isinstance(part, Tensor) else part for part in found]
    return x * first, first, *rest


def flags(x: Tensor) -> Results:
    """What results, their aliases, views and new leaves say of themselves."""
    y, leaf = x * 2, _leaf(x)
    asked = [
        (t.is_leaf, t.requires_grad, t.grad_fn is None, t._is_view())
        for t in (x, y, y.detach(), leaf, y[0], y.t(), leaf[0])
    ]
    return _seen(
        x,
        y,
        *(flag for of_one in asked for flag in of_one),
        y[0]._base is y,
        y.detach()._base is None,
    )


def accumulated(x: Tensor) -> Results:
    """Gradients that are added up, dropped, and added to what the program assigned."""
    leaf, found = _leaf(x), []
    for y in (leaf.sin().sum(), (leaf * leaf).sum()):
        y.backward()
        found.append(_held(leaf))
    leaf.grad = None
    leaf[0].sum().backward()
    found.append(_held(leaf))
    leaf.grad = given = x.detach().cos()
    leaf.exp().sum().backward()
    return _seen(x, leaf.grad, *found, leaf.grad is given)


def of_chosen_inputs(x: Tensor) -> Results:
    """A pass to some of the leaves, with cotangents, and again through a graph that is kept."""
    a, b = _leaf(x), _leaf(x.cos())
    y = a * b.sin()
    y.backward(x.detach(), inputs=[a], retain_graph=True)
    first, none = a.grad, b.grad is None
    y.backward(torch.ones_like(x.detach()), inputs=[b])
    return _seen(x, first, none, a.grad, b.grad, _raises(lambda: y.sum().backward()))


def of_second_order(x: Tensor) -> Results:
    """A gradient with a history: it is differentiated, and the leaf holds what it holds."""
    leaf = _leaf(x)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="Using backward\\(\\) with create_graph=True", category=UserWarning
        )
        (leaf**3).sum().backward(create_graph=True)
    first = leaf.grad
    assert first is not None
    leaf.grad = None
    first.sin().sum().backward()
    return _seen(x, first, first.requires_grad, leaf.grad)


def retained(x: Tensor) -> Results:
    """Gradients of results that keep them, after two passes."""
    leaf = _leaf(x)
    y = leaf * 2
    before = y.retains_grad
    y.retain_grad()
    z = y.sin()
    z.retain_grad()
    z.sum().backward(retain_graph=True)
    first = _held(y), _held(z)
    (z * z).sum().backward()
    return _seen(x, *first, y.grad, z.grad, leaf.grad, before, y.retains_grad, leaf.retains_grad)


def _doubled(t: Tensor) -> None:
    assert t.grad is not None
    t.grad.mul_(2)


def hooked(x: Tensor) -> Results:
    """Hooks on a leaf and on a result, in the order in which they are registered, of
    which one is removed."""
    leaf, seen = _leaf(x), []
    y = leaf.sin()
    first = y.register_hook(lambda g: g * 3)
    y.register_hook(lambda g: g + 1)
    leaf.register_hook(lambda g: seen.append(g * 1))
    leaf.register_post_accumulate_grad_hook(_doubled)
    y.sum().backward(retain_graph=True)
    first.remove()
    y.sum().backward()
    return _seen(x, leaf.grad, *seen, len(seen))


def copied(x: Tensor) -> Results:
    """Copies of a leaf with a gradient, deep, shallow and pickled: which share memory, what
    they carry along."""
    leaf = _leaf(x)
    leaf.sin().sum().backward()
    deep, shallow, read = copy.deepcopy(leaf), copy.copy(leaf), pickle.loads(pickle.dumps(leaf))
    both = copy.deepcopy([leaf, leaf])
    with torch.no_grad():
        leaf.mul_(2)
    flags = [flag for t in (deep, shallow, read) for flag in (t.requires_grad, t.is_leaf)]
    return _seen(
        x,
        shallow,
        deep,
        read,
        deep.grad,
        *flags,
        both[0] is both[1],
        _raises(lambda: copy.deepcopy(leaf * 1)),
    )


def as_arrays(x: Tensor) -> Results:
    """Arrays that share memory with a tensor, and copies of other dtypes; a tensor with a
    history gives none."""
    y = x.detach() * 2
    array = y.numpy()
    array[0] = 7
    narrow = np.asarray(y, dtype=np.float32)
    forced = (x * 1).numpy(force=True)
    plain = [torch.from_numpy(np.array(a)) for a in (array, narrow.astype(np.float64), forced)]
    return _seen(
        x,
        y,
        *plain,
        narrow.dtype == np.float32,
        sum(y.flatten().tolist()),
        y[0, 0].item(),
        _raises(lambda: _leaf(x).numpy()),
    )


def data(x: Tensor) -> Results:
    """Writes through ``.data``, which no version and no history notices, and a new ``.data`` for a
    leaf that has a gradient."""
    leaf = _leaf(x)
    y = leaf * leaf
    leaf.data.mul_(2)
    y.sum().backward()  # by the new values
    version = leaf._version
    leaf.data = x.detach()[:1] * 3
    after = leaf * 2
    return _seen(
        x,
        after,
        leaf.grad,
        version,
        leaf,
        leaf.is_leaf,
        leaf.requires_grad,
        leaf.data.requires_grad,
    )


def versions(x: Tensor) -> Results:
    """The count of writes to a tensor, by itself, its views and its aliases."""
    y = x * 1
    seen = [y._version]
    with torch.no_grad():
        for part in (y, y[0], y.t(), y.detach(), y.view(-1)[:2]):
            part.mul_(2).add_(1)
            seen.append(y._version)
    return _seen(x, y, *seen)


def switched(x: Tensor) -> Results:
    """Recording that modes switch off and on, and flags that are set."""
    leaf = _leaf(x)
    with torch.no_grad():
        a = leaf * 2
        with torch.enable_grad():
            b = leaf * 3
    with torch.set_grad_enabled(False):
        c = leaf * 4
    leaf.requires_grad_(False)
    d = leaf * 5
    leaf.requires_grad = True
    e = leaf * 6
    asked = [t.requires_grad for t in (a, b, c, d, e)]
    return _seen(
        x,
        a,
        b,
        c,
        d,
        e,
        *asked,
        _raises(lambda: setattr(b, "requires_grad", False)),
        torch.is_grad_enabled(),
    )


def made(x: Tensor) -> Results:
    """Tensors made by another one, and what they require."""
    ones = x.new_ones((2,), requires_grad=True)
    (ones * 3).sum().backward()
    others = (
        x.new_zeros(2),
        x.new_full((2,), 4.0),
        x.new_tensor([1.0, 2.0], requires_grad=True),
        torch.ones_like(x).requires_grad_(),
    )
    return _seen(
        x,
        others[-1],
        ones,
        ones.grad,
        *others,
        *(t.requires_grad for t in others),
        *(t.is_leaf for t in others),
    )


def misused(x: Tensor) -> Results:
    """Misuse that raises, after which everything is as before."""
    leaf = _leaf(x)
    y = leaf * 2
    z = y.sin()
    refused = [
        _raises(lambda: leaf.add_(1)),  # a leaf that requires grad
        _raises(lambda: leaf[0].zero_()),  # by a view
        _raises(y.backward),  # no number, and no cotangent
        _raises(lambda: y.detach().sum().backward()),  # no history
        _raises(lambda: y.backward(x.detach()[:1])),  # a cotangent of another shape
        _raises(lambda: leaf.detach().requires_grad_().int().requires_grad_()),  # an integer
        _raises(lambda: setattr(leaf, "grad", x.detach()[:1])),
    ]
    y.mul_(2)  # what the sine needs
    refused.append(_raises(lambda: z.sum().backward()))
    y.sum().backward()
    return _seen(x, leaf.grad, leaf, leaf._version, *refused)
