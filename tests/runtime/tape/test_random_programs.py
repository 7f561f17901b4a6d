"""Random programs of views, writes and changes of geometry run as on torch: values, versions,
gradients, errors.

Left out is what differs on purpose (docs/autograd.md): ``detach_`` of a base, writes that read
their own target.
"""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap

from ..errors import told

TORCH = SimpleNamespace(leaf=lambda t: t.clone().requires_grad_(), grad=torch.autograd.grad)
OURS = SimpleNamespace(leaf=lambda t: runtime.wrap(t.clone(), True), grad=runtime.autograd.grad)


def _quietly(t: Any) -> Any:
    with torch.no_grad():
        return t[..., :2]


VIEWS: list[Callable[[Any], Any]] = [
    lambda t: t[0] if t.dim() > 1 else t[1:],
    lambda t: t.t() if t.dim() == 2 else t.unsqueeze(0),
    lambda t: t.view(-1) if t.is_contiguous() else t[..., :2],
    lambda t: t[..., 1:3],
    lambda t: t.diagonal() if t.dim() == 2 else t[::2],
    lambda t: t.narrow(0, 0, 1),
    lambda t: t.chunk(2)[0],
    lambda t: t.expand(2, *t.shape),
    lambda t: t.transpose(0, -1),
    lambda t: t.flatten(),
    lambda t: t.detach(),
    _quietly,
]
WRITES: list[Callable[[Any, Any], Any]] = [
    lambda t, o: t.mul_(1.5),
    lambda t, o: t.add_(0.5),
    lambda t, o: t.exp_(),
    lambda t, o: t.zero_(),
    lambda t, o: t.sin_(),
    lambda t, o: t.clamp_(min=0.3),
    lambda t, o: t.pow_(2),
    lambda t, o: t.fill_(0.7),
    lambda t, o: torch.relu_(t),
    lambda t, o: t.mul_(o),
    lambda t, o: t.add_(o),
    lambda t, o: t.copy_(o),
    lambda t, o: t.sub_(o.detach()),
    lambda t, o: t.div_(o.exp()),
    lambda t, o: torch._foreach_mul_([t], [o]),
    lambda t, o: t.__setitem__((..., 0), o.flatten()[0]),
]
GEOMETRY: list[Callable[[Any], Any]] = [
    lambda t: t.t_() if t.dim() <= 2 else t.swapaxes_(0, 1),
    lambda t: t.unsqueeze_(0),
    lambda t: t.squeeze_(),
    lambda t: t.transpose_(0, -1),
]
NEW: list[Callable[[Any], Any]] = [lambda t: t * t, lambda t: t.cos(), lambda t: t.clone()]


def run(lib: Any, seed: int) -> tuple[list[Any], list[torch.Tensor]]:
    """How the program ended and what its tensors look like then; their values and the gradients of
    a sum over all of them."""
    draw = random.Random(seed)
    x, y = (
        lib.leaf(torch.arange(1.0, 13.0).reshape(3, 4).double() / 7),
        lib.leaf(torch.arange(1.0, 5.0).double() / 3),
    )
    pool, loss = [x * 1, x.sin()], (x * 0).sum()
    end = "completed"
    try:
        for _ in range(draw.randint(3, 9)):
            kind = draw.choices(
                ("view", "write", "geometry", "new", "use", "quietly"), (5, 7, 1, 2, 1, 1)
            )[0]
            t, o = draw.choice(pool), draw.choice([*pool, y]).clone()
            if kind == "view":
                pool.append(draw.choice(VIEWS)(t))
            elif kind == "write":
                draw.choice(WRITES)(t, o)
            elif kind == "geometry":
                draw.choice(GEOMETRY)(t)
            elif kind == "new":
                pool.append(draw.choice(NEW)(t))
            elif kind == "use":
                loss = loss + (t * t).sum()
            elif not any(p._is_view() for p in pool):
                with torch.no_grad():
                    t.mul_(2)
    except (RuntimeError, IndexError) as e:
        end = told(e)[1]
    facts: list[Any] = [end]
    values = []
    for i, t in enumerate(pool):
        try:
            recorded = t.grad_fn is not None
        except RuntimeError as e:
            facts.append(told(e)[1])
            continue
        facts.append((t.shape, t.stride(), t._version, t._is_view(), recorded))
        values.append(unwrap(t).detach())
        if recorded:
            loss = loss + (t * (i + 1)).cos().sum()
    try:
        gradients = [
            None if g is None else unwrap(g) for g in lib.grad(loss, (x, y), allow_unused=True)
        ]
    except RuntimeError as e:
        return [*facts, str(e).partition(":")[0]], values
    return [*facts, [g is None for g in gradients]], values + [
        g for g in gradients if g is not None
    ]


@pytest.mark.parametrize("block", range(8))
def test_random_programs_agree(block: int) -> None:
    completed = 0
    for seed in range(50 * block, 50 * block + 50):
        expected, found = run(TORCH, seed), run(OURS, seed)
        assert found[0] == expected[0], f"seed {seed}"
        for a, b in zip(found[1], expected[1], strict=True):
            assert a.allclose(b, equal_nan=True), f"seed {seed}: {a} is not {b}"
        completed += found[0][0] == "completed" and isinstance(found[0][-1], list)
    assert completed >= 15, "most of the programs end in an error"
