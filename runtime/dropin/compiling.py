"""``torch.compile`` under the drop-in: Dynamo captures graphs from programs that hold tensors of the session.

Dynamo interprets the program, and its backends compile the graphs, while the drop-in stands aside. The graphs then run in the session:
a graph of the backend ``eager`` is recorded op by op, and one of AOTAutograd (``aot_eager``, ``inductor``) as one custom function, whose
derivative is the compiled backward graph.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..session.tensor import Tensor, wrap
from .patches import Patches
from .stepping_aside import Exchange, aside, standing_aside, torchs_when_aside

_compile = torch.compile
_OWN_FOLDER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


def _in_session(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """A compiled graph, whose results are tensors of the session even if no argument is."""

    @functools.wraps(compiled, updated=())
    def run(*args: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda t: wrap(t) if type(t) is torch.Tensor else t, compiled(*args))

    return run


def _as_plain_tangent(t: Tensor, metadata: Any, expected: Any = None) -> torch.Tensor:
    """AOTAutograd calls this on a cotangent whose class its compiled backward graph does not expect."""
    return t._inner


Tensor.__coerce_same_metadata_as_tangent__ = _as_plain_tangent  # type: ignore[attr-defined]


def _exchange(mode: Any) -> Exchange:
    """The plain tensors for those of the session, one table per capture, because a capture knows tensors by identity."""
    found: Exchange = vars(mode).setdefault("_session", Exchange())
    return found


@contextlib.contextmanager
def _own_frames_not_captured() -> Iterator[None]:
    """Dynamo leaves the runtime's own code alone, as it does torch's."""
    rules = importlib.import_module("torch._dynamo.trace_rules")
    rules.SKIP_DIRS.append(_OWN_FOLDER)
    rules._recompile_re()
    try:
        yield
    finally:
        rules.SKIP_DIRS.remove(_OWN_FOLDER)
        rules._recompile_re()


def _patch_dynamo(dynamo: Patches, patches: Patches) -> None:
    """Teach Dynamo about tensors of the session. ``dynamo`` stays in force while ``patches`` are suspended."""
    guards: Any = importlib.import_module("torch._dynamo.guards")
    convert_frame: Any = importlib.import_module("torch._dynamo.convert_frame")
    builder: Any = importlib.import_module("torch._dynamo.variables.builder")
    output_graph: Any = importlib.import_module("torch._dynamo.output_graph")
    fake_tensor: Any = importlib.import_module("torch._subclasses.fake_tensor")

    for converter in (convert_frame.ConvertFrame, convert_frame.ConvertFrameAssert):
        dynamo.set(converter, "__call__", _aside_for(converter.__call__, patches))
    original_wrap = builder.VariableBuilder._wrap
    original_class = builder.infer_subclass_type
    original_fake = fake_tensor.FakeTensorMode.from_tensor
    original_backend = output_graph.OutputGraph._call_user_compiler

    def wrap_variable(variable: Any, value: Any) -> Any:
        return variable.wrap_tensor(value) if type(value) is Tensor else original_wrap(variable, value)

    def from_tensor(mode: Any, t: Any, **options: Any) -> Any:
        return original_fake(mode, _exchange(mode).plain(t) if type(t) is Tensor and standing_aside() else t, **options)

    def call_backend(graph: Any, module: Any, examples: list[Any]) -> Any:
        return _in_session(original_backend(graph, module, [_exchange(graph.fake_mode).plain(t) for t in examples]))

    for name in ("id_match_unchecked", "CLOSURE_MATCH"):
        dynamo.set(guards.GuardBuilder, name, _unless_replaced(getattr(guards.GuardBuilder, name), patches))
    dynamo.set(builder.VariableBuilder, "_wrap", wrap_variable)
    dynamo.set(builder, "infer_subclass_type", lambda value: None if type(value) is Tensor else original_class(value))
    dynamo.set(fake_tensor.FakeTensorMode, "from_tensor", from_tensor)
    dynamo.set(output_graph.OutputGraph, "_call_user_compiler", call_backend)
    dynamo.enter(_own_frames_not_captured())


def _aside_for(method: Callable[..., Any], patches: Patches) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with aside(patches):
            return method(*args, **kwargs)

    return call


def _unless_replaced(guard_on: Callable[..., Any], patches: Patches) -> Callable[..., Any]:
    """``guard_on``, without the names that the drop-in replaces: they are torch's in a capture and ours at a call."""

    @functools.wraps(guard_on)
    def guarded(guards: Any, guard: Any, *args: Any, **kwargs: Any) -> Any:
        return None if patches.replaces(guards.get(guard)) else guard_on(guards, guard, *args, **kwargs)

    return guarded


def compiler(patches: Patches) -> dict[int, tuple[Any, Any]]:
    """``{id of torch.compile: (torch.compile, ours)}``. Dynamo is imported, and changed, when it is first asked for."""

    @functools.cache
    def change_dynamo() -> None:
        dynamo = Patches()
        patches.callback(dynamo.undo)
        with aside(patches):
            _patch_dynamo(dynamo, patches)

    def compile(*args: Any, **kwargs: Any) -> Any:
        change_dynamo()
        with aside(patches):
            return _compile(*args, **kwargs)

    return {id(_compile): (_compile, torchs_when_aside(_compile, compile))}
