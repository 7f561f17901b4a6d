"""What programs share that call a target's own functions: the stage ``aot.parts`` gives them
by :func:`gen.targets.parts.offered`."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gen.targets.parts import offered

Results = tuple[Any, ...]
Calls = Callable[[], object]


def refused(*calls: Calls, kinds: tuple[type[Exception], ...] = (Exception,)) -> list[bool]:
    """For each call, whether it raises one of `kinds`."""
    return [_raises(call, kinds) for call in calls]


def own_refused(*calls: Calls, kinds: tuple[type[Exception], ...] = (Exception,)) -> list[bool]:
    """The same of functions that only the target has. Each call is to be refused."""
    return refused(*calls, kinds=kinds) if own("unwrap") is not None else [True for _ in calls]


def _raises(call: Calls, kinds: tuple[type[Exception], ...]) -> bool:
    """A name that is not there is a slip in the row, and no refusal."""
    try:
        call()
    except NameError:
        raise
    except kinds:
        return True
    return False


def own(name: str) -> Any:
    """What the target has by this name. None, where plain torch is the reference."""
    return offered(name, None)


def plain(x: Tensor) -> Any:
    """`x` without a history, as a tensor of torch's own class."""
    return offered("unwrap", lambda t: t)(x.detach())


def beside(x: Tensor, *found: Any) -> Results:
    """`found`, and x so that there is something to differentiate."""
    return x * 2, *found


def leaf_of(x: Tensor) -> Tensor:
    """A copy of `x` that requires grad."""
    return x.detach().clone().requires_grad_()


def grad_of(*args: Any, **options: Any) -> Any:
    """``autograd.grad`` of the target."""
    return offered("autograd.grad", torch.autograd.grad)(*args, **options)


def text_number(value: object) -> int:
    """A number for a text, since results are numbers and tensors."""
    return zlib.crc32(str(value).encode())


def transform(name: str) -> Any:
    """A function of ``torch.func``, as the target has it."""
    return offered(f"func.{name}", getattr(torch.func, name))


def graph_of(f: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The graph of `f` on `args` by the target's ``make_fx``; `f` itself, where plain torch
    is the reference."""
    make = own("aot.make_fx")
    return f if make is None else make(f, **options)(*args)


def calls_of(graph: Any) -> list[str]:
    """The ops of a graph in order, without ``aten.`` and ``.default``."""
    return [
        str(n.target).removeprefix("aten.").removesuffix(".default")
        for n in graph.graph.nodes
        if n.op == "call_function"
    ]


def has_calls(graph: Any, *calls: str) -> bool:
    """Whether these are the calls of the graph, if it is one."""
    return own("unwrap") is None or calls_of(graph) == list(calls)
