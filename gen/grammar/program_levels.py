"""How each target runs a program: the words of ``--level``.

LEVELS["aot_eager"]().compiled(f)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from gen.grammar.program_runs import Level

Tensor = torch.Tensor
_EXPORTED = """
def exported(f):
    module = torch.nn.Module()
    module.forward = f
    return lambda *args: torch.export.export(module, args).module()(*args)
"""
_INSTALLED = "import runtime.dropin\nruntime.dropin.install()"


def _gradients(loss: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    return torch.autograd.grad(loss, list(leaves), create_graph=True, allow_unused=True)


def _first_gradients(loss: Tensor, leaves: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return gradients that are not differentiated again: AOTAutograd has no second ones."""
    return torch.autograd.grad(loss, list(leaves), retain_graph=True, allow_unused=True)


def _itself(f: Callable[..., Any]) -> Callable[..., Any]:
    return f


def _eager() -> Level:
    return Level("eager", _itself, _gradients)


@contextmanager
def _comparable() -> Iterator[None]:
    """Let compiled code draw as eager mode does, and differentiate a call twice."""
    # here, because this imports torch's compilers
    from gen.torch_private.compilers import functorch_config, inductor_config

    with inductor_config.patch(fallback_random=True), functorch_config.patch(donated_buffer=False):
        yield


def _compiled(name: str, backend: str, dynamic: bool | None = None) -> Level:
    """Return the level of torch.compile with a backend."""
    from gen.torch_private.compilers import reset_dynamo

    compiled = partial(torch.compile, backend=backend, dynamic=dynamic)
    options = f"backend={backend!r}, dynamic={dynamic}"
    return Level(
        name,
        compiled,
        _first_gradients,
        reset_dynamo,
        _comparable,
        is_twice_differentiable=False,
        text=f"torch.compile(program, {options})",
        setup="import torch._functorch.config\ntorch._functorch.config.donated_buffer = False",
    )


def _functional() -> Level:
    """Return the level of torch.func.functionalize, which gives results for each write."""
    text = "torch.func.functionalize(program)"
    function = torch.func.functionalize
    return Level("functional", function, _gradients, keeps_facts=False, text=text)


def _exported() -> Level:
    """Return the level of torch.export: each call exports the program for its arguments."""

    def compiled(f: Callable[..., Any]) -> Callable[..., Any]:
        # torch.export takes modules alone
        module = torch.nn.Module()
        module.forward = f
        return lambda *args: torch.export.export(module, args).module()(*args)

    return Level(
        "export",
        compiled,
        _first_gradients,
        is_twice_differentiable=False,
        text="exported(program)",
        setup=_EXPORTED,
    )


def _session() -> Level:
    """Return the level of eager mode with the engine of `runtime` in torch's place."""
    from runtime import dropin

    around = dropin.installed
    return Level("session", _itself, _gradients, around=around, setup=_INSTALLED)


def _jit() -> Level:
    """Return the level of `runtime.jit`, with the drop-in installed around it."""
    from runtime import dropin, jit

    return Level(
        "jit",
        jit,
        _first_gradients,
        around=dropin.installed,
        is_twice_differentiable=False,
        text="runtime.jit(program)",
        setup=_INSTALLED,
    )


LEVELS: dict[str, Callable[[], Level]] = {
    "eager": _eager,
    "dynamo": partial(_compiled, "dynamo", "eager"),
    "aot_eager": partial(_compiled, "aot_eager", "aot_eager"),
    "aot_dynamic": partial(_compiled, "aot_dynamic", "aot_eager", True),
    "inductor": partial(_compiled, "inductor", "inductor"),
    "functional": _functional,
    "export": _exported,
    "session": _session,
    "jit": _jit,
}
