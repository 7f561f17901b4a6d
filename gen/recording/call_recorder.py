"""Note the calls of torch in this process, and write them to a file when it ends."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import inspect
import json
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, resolve_name

from gen.recording.described import NoDescriptionError, describe_call
from gen.recording.hook import FOLDER
from gen.torch_private.loaded_with_torch import TorchDispatchMode

MOST_SAMPLES = 50
"""Calls with other arguments that are kept of one op. The others are only counted."""
MOST_NUMBERS = 64
"""Elements of the lists of one call. Longer lists are data, as those of `torch.tensor`."""
_MARK = "_matrix_gen_is_recorded"
"""The attribute of what is wrapped already."""
CONSTRUCTOR = "_matrix_gen_constructor"
"""The attribute of a module with the arguments of its constructor."""


Arguments = Sequence[object]
Keywords = Mapping[str, object]
Constructor = tuple[Arguments, Keywords]


@dataclasses.dataclass
class Calls:
    """The calls of one op or function."""

    count: int = 0
    samples: Counter[str] = dataclasses.field(default_factory=Counter)  # JSON text -> calls
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)  # reason -> calls
    writes: bool = False  # whether the op writes to an argument

    def note(self, args: Arguments, kwargs: Keywords, constructor: Constructor | None) -> None:
        """Add one call."""
        self.count += 1
        if sum(map(_length, args)) > MOST_NUMBERS:
            self.left_out[f"more than {MOST_NUMBERS} numbers in lists"] += 1
            return
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


def _length(value: object) -> int:
    """Return how many elements the lists of an argument have."""
    if isinstance(value, list | tuple):
        return len(value) + sum(map(_length, value))
    return 0


_calls: dict[tuple[str, str], Calls] = {}
_state = threading.local()  # whether the thread describes arguments, which calls torch itself
_modes = contextlib.ExitStack()  # entered until the process ends


@contextlib.contextmanager
def _unrecorded() -> Iterator[None]:
    """Let the calls inside pass: those that describe arguments."""
    _state.is_busy = True
    try:
        yield
    finally:
        _state.is_busy = False


def _note(
    kind: str,
    name: str,
    args: Arguments,
    kwargs: Keywords | None,
    constructor: Constructor | None = None,
) -> None:
    """Add one call, unless it belongs to the recorder."""
    if getattr(_state, "is_busy", False):
        return
    with _unrecorded(), torch.no_grad():
        _calls.setdefault((kind, name), Calls()).note(args, kwargs or {}, constructor)


class _Ops(TorchDispatchMode):
    """Note each ATen op."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = f"torch.ops.{func}"
        _note("op", name, args, kwargs)
        # It is absent where the recorder itself has made the call.
        if (calls := _calls.get(("op", name))) is not None:
            calls.writes = func._schema.is_mutable
        return func(*args, **(kwargs or {}))


class _Functions(TorchFunctionMode):
    """Note each public function of torch. ATen ops stand for the methods of tensors."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = _name(func)
        if name:
            _note("function", name, args, kwargs)
        return func(*args, **(kwargs or {}))


@functools.cache
def _name(function: Callable[..., object]) -> str:
    """Return the name of a public function of torch; empty for anything else."""
    name = resolve_name(function) or _name_of_factory(function)
    is_public = name.startswith("torch.") and "._" not in name
    if not is_public or name.startswith(("torch.Tensor.", "torch.ops.")):
        return ""
    return name


def _name_of_factory(function: Callable[..., object]) -> str:
    """Return the name of a function that makes tensors; torch lists no such names."""
    name = getattr(function, "__name__", "")
    return f"torch.{name}" if getattr(torch, name, None) is function else ""


def begin(*, every: bool) -> None:
    """Write what is noted when this process ends. ``every``: note all calls of torch."""
    atexit.register(_write, os.getpid())
    if every:
        _modes.enter_context(_Functions())
        _modes.enter_context(_Ops())  # type: ignore[no-untyped-call]


def _write(process: int) -> None:
    """Write the calls to a file of the folder of records."""
    if os.getpid() != process:  # a child by fork, which has the calls of its parent
        return
    records = [
        {
            "kind": kind,
            "name": name,
            "count": calls.count,
            "samples": [
                json.loads(text) | {"count": count} for text, count in calls.samples.items()
            ],
            "left_out": calls.left_out,
            "writes": calls.writes,
        }
        for (kind, name), calls in _calls.items()
    ]
    path = Path(os.environ[FOLDER], f"{process}.json")
    # In two steps, since a process that is killed here would leave half of a JSON file.
    path.with_suffix(".part").write_text(json.dumps(records))
    path.with_suffix(".part").replace(path)


# --- one function of a package --------------------------------------------------------------------


def wrap(name: str) -> None:
    """Note the calls of a function, as soon as a module that is imported has it."""
    # The longest beginning that is a module: `a.b.f` may be `f` of `a.b`, or a method of `a`'s `b`.
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:cut]))
        for part in parts[cut:]:
            value = getattr(value, part, None)
        if value is not None and _MARK not in vars(value):
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
    setattr(value, _MARK, True)


def _noting(name: str, function: Callable[..., object]) -> Callable[..., object]:
    @functools.wraps(function)
    def noting(*args: object, **kwargs: object) -> object:
        _note("named", name, args, kwargs)
        return function(*args, **kwargs)

    setattr(noting, _MARK, True)
    return noting


def _replace(function: object, other: object) -> None:
    """Put another function in the place of one, in all modules of its package."""
    # Other modules may have it by `from … import …`, and would go on calling the old one.
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

    def apply(cls: type, /, *args: object, **kwargs: object) -> object:
        if cls is function:
            _note("named", name, args, kwargs)
        return run(cls, *args, **kwargs)

    function.apply = classmethod(apply)


def _wrap_module(name: str, module: type[torch.nn.Module]) -> None:
    """Note the calls of a class of modules, with the arguments of its constructor.

    Calls of its subclasses are not noted.
    """
    construct, forward = module.__init__, module.forward

    @functools.wraps(construct)
    def __init__(self: torch.nn.Module, *args: object, **kwargs: object) -> None:
        construct(self, *args, **kwargs)
        self.__dict__.setdefault(CONSTRUCTOR, (args, kwargs))

    @functools.wraps(forward)
    def noting(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        if type(self) is module:
            _note("named", name, args, kwargs, constructor=self.__dict__.get(CONSTRUCTOR))
        return forward(self, *args, **kwargs)

    module.__init__ = __init__  # type: ignore[method-assign]
    module.forward = noting
