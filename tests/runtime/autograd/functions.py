"""What tests of Function share: classes made of a few methods, and a program run with torch's
Function and with ours."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import runtime
from runtime import unwrap, wrap
from runtime.autograd import Function

from ..errors import told

BASES = {"runtime": Function, "torch": torch.autograd.Function}


def made(base: Any, **methods: Any) -> Any:
    """A Function class of ``base``; ``forward`` doubles and ``backward`` passes the gradient
    on unless given."""
    defaults = {"forward": lambda ctx, x: x * 2, "backward": lambda ctx, g: g}
    plain = {"generate_vmap_rule"}
    return type(
        "MyFn",
        (base,),
        {k: v if k in plain else staticmethod(v) for k, v in {**defaults, **methods}.items()},
    )


def leaf(lib: str, n: int = 3) -> Any:
    x = torch.linspace(0.5, 1.5, n, dtype=torch.float64)
    return x.requires_grad_() if lib == "torch" else wrap(x, True)


def of_both(program: Callable[[Any, Any, Any], Any]) -> None:
    """``program(base class, autograd module, leaf)`` gives the same on both sides, types and faults
    of errors included."""
    found = []
    for lib, autograd in (("torch", torch.autograd), ("runtime", runtime.autograd)):
        try:
            out = program(BASES[lib], autograd, leaf(lib))
        except (RuntimeError, TypeError, NotImplementedError, AssertionError) as e:
            out = ": ".join(told(e))
        found.append(pytree.tree_flatten(out))
    (theirs, their_spec), (ours, our_spec) = found
    assert our_spec == their_spec
    for a, b in zip(ours, theirs, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(unwrap(a), b.detach())
        else:
            assert a == b
