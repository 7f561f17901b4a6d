"""Note the calls of torch in this process, and write them to a file when it ends."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import inspect
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from gen.recording.described import NoDescriptionError, describe_call
from gen.recording.hook import FOLDER
from gen.torch_private.loaded_with_torch import TorchDispatchMode

MOST_SAMPLES = 50
"""Calls with other arguments that are kept of one op. The others are only counted."""
CONSTRUCTOR = "_matrix_gen_constructor"
"""The attribute of a module with the arguments of its constructor."""


@dataclasses.dataclass
class Calls:
    """The calls of one op or function."""

    count: int = 0
    samples: Counter[str] = dataclasses.field(default_factory=Counter)  # JSON text -> calls
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)  # reason -> calls
    writes: bool = False  # whether the op writes to an argument

    def note(self, args: Any, kwargs: Mapping[str, Any], constructor: Any = None) -> None:
        """Add one call."""
        self.count += 1
        try:
            sample = describe_call(args, kwargs)
            if constructor is not None:
                sample["constructor"] = describe_call(*constructor)
        except NoDescriptionError as error:
            self.left_out[str(error)] += 1
            return
        text = json.dumps(sample)
        if text in self.samples or len(self.samples) < MOST_SAMPLES:
            self.samples[text] += 1


_calls: dict[tuple[str, str], Calls] = {}
_state = threading.local()


@contextmanager
def _unrecorded() -> Iterator[None]:
    """Let the calls inside pass: those that describe arguments."""
    _state.is_busy = True
    try:
        yield
    finally:
        _state.is_busy = False


def _note(kind: str, name: str, args: Any, kwargs: Any, **more: Any) -> None:
    """Add one call, unless it belongs to the recorder."""
    if getattr(_state, "is_busy", False):
        return
    with _unrecorded(), torch.no_grad():
        _calls.setdefault((kind, name), Calls()).note(args, kwargs or {}, **more)


class _Ops(TorchDispatchMode):
    """Note each ATen op."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = f"torch.ops.{func}"
        _note("op", name, args, kwargs)
        if (calls := _calls.get(("op", name))) is not None:
            calls.writes = func._schema.is_mutable
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Note each public function of torch. ATen ops stand for the methods of tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name(func)
        if name:
            _note("function", name, args, kwargs)
        return func(*args, **(kwargs or {}))


@functools.cache
def _name(function: Callable[..., Any]) -> str:
    """Return the name of a public function of torch; empty for anything else."""
    name = resolve_name(function) or ""
    is_public = name.startswith("torch.") and "._" not in name
    if not is_public or name.startswith(("torch.Tensor.", "torch.ops.")):
        return ""
    return name


def begin(*, every: bool) -> None:
    """Write what is noted when this process ends. ``every``: note all calls of torch."""
    atexit.register(_write, os.getpid())
    if every:
        _Functions().__enter__()
        _Ops().__enter__()


def _write(process: int) -> None:
    """Write the calls to a file of the folder of records."""
    if os.getpid() != process:  # a child by fork, which has the calls of its parent
        return
    records = [
        {
            "kind": kind,
            "name": name,
            "count": calls.count,
            "samples": [json.loads(text) | {"count": n} for text, n in calls.samples.items()],
            "left_out": calls.left_out,
            "writes": calls.writes,
        }
        for (kind, name), calls in _calls.items()
    ]
    path = Path(os.environ[FOLDER], f"{process}.json")
    path.with_suffix(".part").write_text(json.dumps(records))
    path.with_suffix(".part").replace(path)


# --- one function of a package --------------------------------------------------------------------


def wrap(name: str) -> None:
    """Note the calls of a function, as soon as a module that is imported has it."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            value = getattr(value, part, None)
        if value is not None and "_matrix_gen_original" not in vars(value):
            _wrap(name, value)
            return


def _wrap(name: str, value: Any) -> None:
    """Note the calls of a function, a Function or a module."""
    if not inspect.isclass(value):
        _replace(value, _noting(name, value))
        return
    if issubclass(value, torch.nn.Module):
        _wrap_module(name, value)
    elif issubclass(value, torch.autograd.Function):
        _wrap_function_class(name, value)
    value._matrix_gen_original = True


def _noting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def noting(*args: Any, **kwargs: Any) -> Any:
        _note("named", name, args, kwargs)
        return function(*args, **kwargs)

    noting._matrix_gen_original = function  # type: ignore[attr-defined]
    return noting


def _replace(function: Any, other: Any) -> None:
    """Put another function in the place of one, in all modules of its package."""
    package = str(getattr(function, "__module__", "")).partition(".")[0]
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != package:
            continue
        for key, value in list(vars(module).items()):
            if value is function:
                setattr(module, key, other)


def _wrap_function_class(name: str, function: Any) -> None:
    """Note the calls of a Function, and not those of its subclasses."""
    run = function.apply.__func__

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        if cls is function:
            _note("named", name, args, kwargs)
        return run(cls, *args, **kwargs)

    function.apply = classmethod(apply)


def _wrap_module(name: str, module: type[torch.nn.Module]) -> None:
    """Note the calls of a class of modules, with the arguments of its constructor."""
    construct, forward = module.__init__, module.forward

    @functools.wraps(construct)
    def __init__(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **kwargs)
        self.__dict__.setdefault(CONSTRUCTOR, (args, kwargs))

    @functools.wraps(forward)
    def noting(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if type(self) is module:
            _note("named", name, args, kwargs, constructor=self.__dict__.get(CONSTRUCTOR))
        return forward(self, *args, **kwargs)

    module.__init__ = __init__  # type: ignore[method-assign]
    module.forward = noting
