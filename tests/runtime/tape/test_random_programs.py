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


class Program:
    """A random program on tensors of one library, which runs step by step."""

    def __init__(self, lib: Any, seed: int) -> None:
        self.draw = random.Random(seed)
        x = lib.leaf(torch.arange(1.0, 13.0).reshape(3, 4).double() / 7)
        y = lib.leaf(torch.arange(1.0, 5.0).double() / 3)
        self.leaves = (x, y)
        # the tensors that a step may view, write to or use
        self.pool = [x * 1, x.sin()]
        self.loss = (x * 0).sum()

    def run(self) -> str:
        """Run 3 to 9 steps, and return how the program ended: completed, or the error."""
        try:
            for _ in range(self.draw.randint(3, 9)):
                self.step()
        except (RuntimeError, IndexError) as error:
            return told(error)[1]
        return "completed"

    def step(self) -> None:
        kinds = ("view", "write", "geometry", "new", "use", "quietly")
        (kind,) = self.draw.choices(kinds, (5, 7, 1, 2, 1, 1))
        tensor = self.draw.choice(self.pool)
        other = self.draw.choice([*self.pool, self.leaves[1]]).clone()
        match kind:
            case "view":
                self.pool.append(self.draw.choice(VIEWS)(tensor))
            case "write":
                self.draw.choice(WRITES)(tensor, other)
            case "geometry":
                self.draw.choice(GEOMETRY)(tensor)
            case "new":
                self.pool.append(self.draw.choice(NEW)(tensor))
            case "use":
                self.loss = self.loss + (tensor * tensor).sum()
            case "quietly" if not any(member._is_view() for member in self.pool):
                with torch.no_grad():
                    tensor.mul_(2)


def run(lib: Any, seed: int) -> tuple[list[Any], list[torch.Tensor]]:
    """Return facts of a program and its tensors, and their values with the gradients.

    The facts are how it ended, the geometry and version of each tensor, and which leaves have a
    gradient. The gradients are those of a sum over all of the tensors.
    """
    program = Program(lib, seed)
    facts: list[Any] = [program.run()]
    values: list[torch.Tensor] = []
    loss = program.loss
    for weight, tensor in enumerate(program.pool, 1):
        try:
            recorded = tensor.grad_fn is not None
        except RuntimeError as error:
            facts.append(told(error)[1])
            continue
        geometry = (tensor.shape, tensor.stride())
        facts.append((*geometry, tensor._version, tensor._is_view(), recorded))
        values.append(unwrap(tensor).detach())
        if recorded:
            loss = loss + (tensor * weight).cos().sum()
    try:
        gradients = lib.grad(loss, program.leaves, allow_unused=True)
    except RuntimeError as error:
        return [*facts, str(error).partition(":")[0]], values
    present = [unwrap(gradient) for gradient in gradients if gradient is not None]
    return [*facts, [gradient is None for gradient in gradients]], values + present


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
