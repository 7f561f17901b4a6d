"""Notes where a node of a traced graph comes from: the user's line, the modules around it, and for
a call of a backward pass the forward call.

:class:`Provenance` writes this to ``node.meta`` while a program is traced,
:func:`line_of` reads it:

| key | what |
|---|---|
| ``user_line`` | (file, line, function) of the innermost frame that is neither torch's nor ours |
| ``seq_nr`` | a number that a forward call shares with the calls of its backward |
| ``stack_trace`` | if asked for, as torch's: frames of the user and ``torch.nn``, outermost first |
| ``nn_module_stack`` | if asked for, as torch's: paths and classes of the running modules |
| ``torch_fn`` | as torch's: the function of torch that the program called last |

A line is noted as a file, a number and a function, and becomes a text only when somebody asks. That
costs some two microseconds per node.
"""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from bisect import bisect_right
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

from ..seam.ambient import Ambient
from ..seam.graph_walks import inputs_of, walk
from ..tape import engine, graph_task
from ..tape.nodes import LAST, Node, next_number
from ..tape.running import current_node
from .torch_functions import Functions

Line = tuple[str, int, str]  # file, line, function

# kinds of files; the walk for the user's line ends at a frame of one of the last two
_USER, _LAYER, _INSIDE, _CALL, _BACKWARD, _START = range(6)
_TORCH, _LAYERS, PACKAGE = (  # with a separator at the end: torchvision is not torch
    str(folder) + os.sep
    for folder in (
        Path(torch.__file__).parent,
        Path(torch.nn.modules.__file__).parent,
        Path(__file__).parent.parent,
    )
)
_STANDARD = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple(sysconfig.get_paths()[key] + os.sep for key in ("purelib", "platlib"))
# which torch imports with its first symbol
_SYMPY = os.path.dirname(getattr(find_spec("sympy"), "origin", "sympy")) + os.sep
GENERATED = ("<replay", "<guard")
"""How the names of files begin that this package generates."""
_GENERATED = ("<eval_with_key>", "<__array_function__", *GENERATED)
_FROZEN = "<frozen"
_kinds: dict[str, int] = {
    torch.nn.modules.module.__file__: _CALL,
    engine.__file__: _BACKWARD,
    graph_task.__file__: _BACKWARD,
    __file__: _START,
}  # by file name
_PRESERVED = (
    "stack_trace",
    "nn_module_stack",
    "source_fn_stack",
    "fwd_nn_module_stack",
    "fwd_source_fn_stack",
    "torch_fn",
    "custom",
)


def _kind(file: str) -> int:
    """Return what the functions of a file are."""
    if file.startswith(_LAYERS):
        kind = _LAYER
    elif computes_with_symbols(file) or is_of_python(file):
        kind = _INSIDE
    else:
        kind = _USER
    _kinds[file] = kind
    return kind


def is_of_python(file: str) -> bool:
    """Return whether functions of this file are those of Python's own modules."""
    return file.startswith(_FROZEN) or (file.startswith(_STANDARD) and "-packages" not in file)


def computes_with_symbols(file: str) -> bool:
    """Return whether functions of this file know the symbols of sizes: torch's, sympy's and
    ours."""
    return file.startswith((_TORCH, _SYMPY, PACKAGE, *_GENERATED))


def is_of_user(file: str) -> bool:
    """Return whether functions of this file are the user's: neither torch's, nor ours, nor
    Python's."""
    kind = _kinds.get(file)
    if kind is None:
        kind = _kind(file)
    return kind is _USER


def is_installed(file: str) -> bool:
    """Return whether functions of this file are those of an installed package."""
    return file.startswith(_INSTALLED)


def is_of_package(file: str) -> bool:
    """Return whether functions of this file are those of this package."""
    return file.startswith(PACKAGE)


class _Call(Ambient):
    """The call of an op that a thread runs. ``made_by``: the frame of the call, if what dispatches
    calls has said so. The frames between it and a rule of ours are many, and none is the user's."""

    made_by: FrameType | None = None


CALL = _Call()


def user_line() -> Line | None:
    """Return the user's line that runs now, in a program that :func:`run` has started. Without a
    frame of the user's the line of a layer of ``torch.nn``. None in a rule of a backward pass."""
    layer: Line | None = None
    frame: FrameType | None = CALL.made_by or sys._getframe()
    # the frames of this file that are on top; `run`, which comes later, is where the walk ends
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    while frame is not None:
        code = frame.f_code
        kind = _kinds.get(code.co_filename)
        if kind is None:
            kind = _kind(code.co_filename)
        if kind is _USER:
            return code.co_filename, frame.f_lineno, code.co_name
        # what called the pass, or the program, is not where this call comes from
        if kind >= _BACKWARD:
            break
        if kind is _LAYER and layer is None:
            layer = code.co_filename, frame.f_lineno, code.co_name
        frame = frame.f_back
    return layer


def run(function: Callable[..., object], *args: object) -> Any:
    """Return ``function(*args)``. Frames outside this one are not part of the traced program."""
    return function(*args)


def text_of(line: Line) -> str:
    """Return ``file:line: source``, with the function's name if there is no source."""
    file, number, function = line
    source = linecache.getline(file, number).strip()
    if not source:
        return f"{file}:{number}, in {function}"
    return f"{file}:{number}: {source}"


def line_of(node: fx.Node) -> str | None:
    """Return the user's line that ``node`` comes from, as ``file:line: source``; None if it is not
    known."""
    line = origin_of(node)
    if line is None:
        return None
    return text_of(line)


def made_at(node: fx.Node) -> str:
    """Return the line that computes the value of ``node``, as the end of an error message: that of
    the nearest call before, where a level has added ``node``. Empty for arguments."""
    for candidate in walk([node], inputs_of, breadth_first=True):
        line = origin_of(candidate)
        if line is not None:
            return happened_at(line)
    return ""


def origin_of(node: fx.Node) -> Line | None:
    """Return the user's line that ``node`` comes from. For a call of a backward pass: the line of
    the forward call.

    None if it is not known: for placeholders, constants, and graphs that another program captured
    without stack traces.
    """
    line: Line | None = node.meta.get("user_line")
    if line is not None:
        return line
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', node.meta.get("stack_trace") or "")
    lines = [(file, int(number), name) for file, number, name in frames]
    # frames stand outermost first, and the innermost one of the user is the origin
    users = [line for line in lines if is_of_user(line[0])]
    if users:
        return users[-1]
    if lines:
        return lines[-1]
    return None


def refuse_default_dtype() -> NoReturn:
    """Raise: a program that is captured has set the default dtype, which calls without a dtype
    have. Each call of its graph finds its own."""
    raise RuntimeError(
        "the program computes with a default dtype that it has set. "
        f"Set it outside, or give the dtype to each call.{here()}"
    )


def here() -> str:
    """Return the user's line that runs now, as the end of an error message. Empty if there is
    none."""
    line = user_line()
    if line is None and (tape_node := current_node()) is not None:
        return f" It happened in {tape_node.name()} of a backward pass."
    return happened_at(line)


def happened_at(line: Line | None) -> str:
    """Return ``line`` as the end of an error message. Empty if there is none."""
    if line is None:
        return ""
    return f" It happened at {text_of(line)}"


def begins_at(line: Line | None) -> str:
    """Return ``line``, the first one of a program, as the end of an error message. Empty if there
    is none."""
    if line is None:
        return ""
    return f" The program begins at {text_of(line)}"


class Provenance:
    """Note where the nodes of one graph come from."""

    def __init__(
        self,
        *,
        stacks: bool = False,
        root: torch.nn.Module | None = None,
        functions: Functions | None = None,
    ) -> None:
        # whether each node gets a ``stack_trace``
        self.stacks = stacks
        # the module whose submodules are named in ``nn_module_stack``; None for no such notes
        self.root = root
        # what knows the last torch function that the program called; None for no ``torch_fn``
        self.functions = functions
        self.paths: dict[int, list[str]] = {}
        self.calls: dict[str, list[FrameType]] = {}  # by path of a module, the frames of its calls
        self.numbers: list[int] = []  # of the forward calls, ascending
        self.origins: list[dict[str, object]] = []
        if root is not None:
            for path, module in root.named_modules(remove_duplicate=False):
                self.paths.setdefault(id(module), []).append(path)

    def note(self, node: fx.Node) -> None:
        """Write down where ``node`` comes from, right after it was created."""
        line = user_line()
        # a hook of the user's runs in a pass, too, and has a line of its own
        tape_node = None
        if line is None:
            tape_node = current_node()
        number = next_number()
        if tape_node is not None:
            origin = self._forward(tape_node)
        else:
            origin = {"seq_nr": number}
            if line is not None:
                origin["user_line"] = line
            if self.stacks or self.root is not None:
                self._walk(origin)
            if fx_traceback.should_preserve_node_meta:
                current = fx_traceback.get_current_meta()
                origin.update((key, current[key]) for key in _PRESERVED if current.get(key))
        self.numbers.append(number)
        self.origins.append(origin)
        node.meta.update(origin)

    def _forward(self, tape_node: Node) -> dict[str, object]:
        """Return the origin of the last call before ``tape_node``: the call that it differentiates.
        The last node of a path, for the sum of two gradients for instance, has none of its own: it
        belongs to the call before it."""
        at = len(self.numbers)
        if tape_node.seq < LAST:
            at = bisect_right(self.numbers, tape_node.seq)
        if not at:
            return {}
        return self.origins[at - 1]

    def _walk(self, origin: dict[str, object]) -> None:
        """Add the frames and modules that run now to ``origin``, as far as they are asked for."""
        frames: list[str] = []
        modules: list[tuple[FrameType, torch.nn.Module]] = []
        frame: FrameType | None = sys._getframe(2)  # that of the caller of `note`
        while frame is not None:
            code = frame.f_code
            kind = _kinds.get(code.co_filename)
            if kind is None:
                kind = _kind(code.co_filename)
            if kind is _START:
                break
            if kind is _USER or kind is _LAYER:
                frames.append(_frame_text(code.co_filename, frame.f_lineno, code.co_name))
            # each call of a module passes through `Module._call_impl`
            elif kind is _CALL and self.root is not None and code.co_name == "_call_impl":
                modules.append((frame, frame.f_locals["self"]))
            frame = frame.f_back
        if self.stacks and frames:
            origin["stack_trace"] = "\n  ".join(reversed(frames))
        if self.root is not None:
            self._note_modules(origin, modules[::-1])

    def _note_modules(
        self, origin: dict[str, object], running: list[tuple[FrameType, torch.nn.Module]]
    ) -> None:
        """Add the running modules and the last function of torch's to an origin."""
        origin["nn_module_stack"] = self._module_stack(running)
        if self.functions is not None and self.functions.last is not None:
            origin["torch_fn"] = self.functions.last

    def _module_stack(
        self, running: list[tuple[FrameType, torch.nn.Module]]
    ) -> dict[str, tuple[str, str]]:
        """Return ``{path: (path, class)}`` of the running modules, from outside. The second call of
        a module has the key ``path@1``."""
        stack: dict[str, tuple[str, str]] = {}
        # the program may be `forward` of the root, so that the root itself is not called
        if not running or running[0][1] is not self.root:
            stack[""] = ("", _class_of(self.root))
        around = ""
        for frame, module in running:
            paths = self.paths.get(id(module))
            if paths is None:
                continue  # no submodule of the root
            # a module may have several paths: the one inside the module that called it
            path = next((inside for inside in paths if inside.startswith(around)), paths[0])
            around = path
            times = _number_of_call(frame, self.calls.setdefault(path, []))
            key = path
            if times:
                key = f"{path}@{times}"
            stack[key] = (path, _class_of(module))
        return stack

    def close(self) -> None:
        """Forget the frames, and with them the tensors of the program."""
        self.calls.clear()
        self.numbers.clear()
        self.origins.clear()


def _number_of_call(frame: FrameType, calls: list[FrameType]) -> int:
    """Return the place of ``frame`` among ``calls``. A new one is added."""
    # frames are kept, so that no later call gets the frame object of an earlier one
    for index, counted in enumerate(calls):
        if counted is frame:
            return index
    calls.append(frame)
    return len(calls) - 1


def _class_of(module: object) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _frame_text(file: str, number: int, function: str) -> str:
    """Return a frame as tracebacks show it."""
    text = f'File "{file}", line {number}, in {function}'
    source = linecache.getline(file, number).strip()
    if source:
        text += f"\n    {source}"
    return text
