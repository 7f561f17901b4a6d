"""Watches which functions a program enters, and what it asks that no graph of objects has.

    with watching(graph) as seen:
        watched(f, x)                   # graph.enter(code of f, its globals), before its first line
    seen.asked                          # {"posix.getcwd": its line}

How Python tells of that is the matter of :mod:`.python_hooks`. It is on in the user's code alone,
see :mod:`runtime.seam.user_code`."""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import io
import os
import pkgutil
import random
import string
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from ...seam.levels import Value
from ...seam.own_modules import is_own_module
from ...seam.user_code import LeftErrors, capturing, watched
from ...session.captures import CAPTURE
from ...torch_private.native_functions import call_of_layer
from ...torch_private.symbolic_shapes import modules_of_symbols
from ...trace.provenance import Line, happened_at, here, is_of_package, is_of_user
from .contents import Position
from .object_graph import ObjectGraph
from .opaque_objects import refuse_opaque_objects
from .program_code import BackwardEntries
from .python_hooks import FIND_MODULE, IMPORT, watched_by
from .reads import QUESTIONS
from .switches import (
    CODES_OF_ENVIRONMENT,
    FACTS_OF_CODE,
    FACTS_OF_PROGRAM,
    facts_before,
    facts_of_environment,
)
from .trusted import is_followed, is_followed_module
from .values import attributes_of

_OF_SCHEDULERS = lr_scheduler.__file__
_MAKES_OPTIMIZER = Optimizer.__init__.__code__
_RUNS_LAYER = call_of_layer.__code__
_ZEROES_OF_OPTIMIZER = inspect.unwrap(Optimizer.zero_grad).__code__
_ZEROES_OF_LAYER = inspect.unwrap(nn.Module.zero_grad).__code__
_LISTS_PARAMETERS = ("parameters", "named_parameters", "named_modules", "_named_members")
"""Methods of a layer by which ``zero_grad`` finds parameters."""
_CACHE = functools._lru_cache_wrapper

TRUSTED = frozenset(
    [
        "_abc",
        "_ast",
        "_asyncio",
        "_bisect",
        "_codecs",
        "_collections",
        "_collections_abc",
        "_contextvars",
        "_csv",
        "_datetime",
        "_decimal",
        "_functools",
        "_hashlib",
        "_heapq",
        "_json",
        "_operator",
        "_pickle",
        "_sre",
        "_statistics",
        "_string",
        "_struct",
        "_thread",
        "_tracemalloc",
        "_typing",
        "_warnings",
        "_weakref",
        "abc",
        "array",
        "atexit",
        "base64",
        "binascii",
        "bisect",
        "builtins",
        "bz2",
        "cmath",
        "codecs",
        "collections",
        "contextlib",
        "contextvars",
        "copy",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "faulthandler",
        "fractions",
        "functools",
        "gc",
        "hashlib",
        "heapq",
        "inspect",
        "io",
        "itertools",
        "json",
        "logging",
        "lzma",
        "marshal",
        "math",
        "ml_dtypes",
        "numbers",
        "numpy",
        "operator",
        "pickle",
        "pprint",
        "random",
        "re",
        "sre_compile",
        "statistics",
        "string",
        "struct",
        "sys",
        "textwrap",
        "threading",
        "torch",
        "types",
        "typing",
        "unicodedata",
        "warnings",
        "weakref",
        "zlib",
        "zoneinfo",
    ]
)
"""Modules with functions of C that ask for nothing but their arguments, or whose state the graph
has, or that the capture follows itself."""
CLOCKS = frozenset(("time",))
"""Modules that are mostly asked for what a log says, so that a warning is enough."""
ONLY_TELL = frozenset(("importlib", "inspect", "logging", "traceback", "warnings"))
"""Modules of Python's through which a program tells somebody something, or imports. What they ask
the system for does not come back to the program."""
_GIVES_FILES = ("importlib._bootstrap_external", "importlib.readers", "importlib.resources")
"""Modules of ``importlib`` by which a program reads files."""
_LOADS_MODULE = importlib.machinery.SourceFileLoader.exec_module.__code__
"""The code of a loader's that runs a module, for which alone it reads the file."""
_OF_TORCH = {id(torch.save.__code__): "torch.save", id(torch.load.__code__): "torch.load"}
"""Functions of torch's that read or write files, by identity of their code."""
_LOOKUPS = frozenset(
    id(value.__code__)
    for owner in (inspect, pkgutil, string.Formatter)
    for value in vars(owner).values()
    if isinstance(value, FunctionType)
)
"""Functions of Python's library that look attributes up for a program by names that it computes, by
identity of their code."""
_PURE = frozenset(("posix.fspath", "posix._path_normpath", "posix._path_splitroot_ex"))
"""Functions of the system's modules that ask for nothing but their arguments."""
_IMPURE: dict[str, frozenset[str]] = {
    "builtins": frozenset(("open", "input")),
    "io": frozenset(("open", "open_code")),
    "numpy": frozenset(("fromfile", "tofile")),
    "datetime": frozenset(("now", "utcnow", "today")),
    "sys": frozenset(
        (
            "getprofile",
            "getrefcount",
            "setprofile",
            "setrecursionlimit",
            "setswitchinterval",
            "settrace",
        )
    ),
    # a capture has its own stack, and collects nothing
    "gc": frozenset(("isenabled", "enable", "disable", "get_count", "get_stats", "get_objects")),
    "thread": frozenset(("stack_size", "start_new_thread", "start_joinable_thread")),
    "contextvars": frozenset(("copy_context",)),
}
"""Functions of trusted modules that ask for something else."""


_THREADS = frozenset(("thread.start_new_thread", "thread.start_joinable_thread"))
"""What starts a thread, before Python 3.13 and since."""
_SEED = random.Random.seed.__code__
_ENTROPY = random.SystemRandom.getrandbits.__code__
_SEEDS = {_SEED: "random.Random.seed", _ENTROPY: "random.SystemRandom.getrandbits"}
"""What gives a random generator that the program makes its first state, if the program gives none.
A copy of one asks for it, too, so that a warning has to be enough."""


_OF_TENSORS_IN_PYTHON = {
    id(method.__code__): name
    for name, method in vars(torch.Tensor).items()
    if name in QUESTIONS and isinstance(method, FunctionType)
}
"""Methods of tensors that ask for what may change while a tensor stays. By identity of their code:
the name that the graph has for the question."""
_NOTICED = frozenset(
    (
        id(FIND_MODULE),
        id(_MAKES_OPTIMIZER),
        id(_RUNS_LAYER),
        id(_ZEROES_OF_LAYER),
        id(_ZEROES_OF_OPTIMIZER),
        id(_SEED),
        *CODES_OF_ENVIRONMENT,
        *FACTS_OF_CODE,
        *FACTS_OF_PROGRAM,
        *_LOOKUPS,
        *_OF_TENSORS_IN_PYTHON,
        *_OF_TORCH,
    )
)
"""Identities of the code of functions that matter by themselves. Most are none of these."""


def is_kept(name: str) -> bool:
    """Return whether the graph may keep the answer of a function, named as in :class:`Seen`, with a
    warning: what time it is, and the seed of a generator."""
    return name.partition(".")[0] in CLOCKS or name in _SEEDS.values()


class Seen:
    """What one run has asked. ``asked``: the functions of C, each with the user's line. ``moved``:
    the lines of calls to random generators and the like, by identity. ``advanced``: that of the
    first call of ``next``, which does not say of what. ``cleared``: caches of functions that were
    emptied. ``repeated``: what checkpointed functions enter, which a backward pass runs once more.
    ``has_missed``: whether a function behind a cache was about to run. ``met_opaque``: whether a
    function was refused, before its first line, that has a name for an object of C which says
    nothing of itself. ``goes_on``: whether the program has caught a refusal."""

    def __init__(self) -> None:
        self.asked: dict[str, Line | None] = {}
        self.goes_on = False
        self.met_opaque = False
        self.moved: dict[int, Line] = {}
        self.advanced: Line | None = None
        self.cleared: list[Any] = []
        self.repeated = BackwardEntries()
        self.has_missed = False

    def refuse_asked(self) -> None:
        """Raise ``RuntimeError`` if the program has asked for what no graph of objects has, such as
        files. Not for what may be kept."""
        for name, line in self.asked.items():
            if name in _THREADS:
                raise RuntimeError(
                    "the program starts a thread. No trace has what that does, and no call would "
                    f"start it again. Start it outside, or by jit.outside.{happened_at(line)}"
                )
            if not is_kept(name):
                raise RuntimeError(
                    f"the program calls {name}, which no call would do again: a graph keeps what "
                    f"it has returned. Call it outside, and pass what it returns."
                    f"{happened_at(line)}"
                )


class _KnownCode(NamedTuple):
    """Code that runs. ``is_program``: it is the user's. ``is_library``: it asks on behalf of its
    caller, see :func:`_is_of_library`."""

    # which keeps its identity from being that of another one
    code: CodeType
    is_program: bool
    is_library: bool


class _Watcher:
    """What one run of a program does. ``known``: by identity, the code that has run.
    ``libraries``: identities of code of libraries that ran for the program. ``finding``: the frame
    that asks where a module is, while it does. ``imports``: names of modules that were not loaded
    when the program asked for them."""

    def __init__(self, graph: ObjectGraph) -> None:
        self.graph = graph
        self.seen = Seen()
        # what calls a program, which may be a function of C, counts as a part of it
        self.known = {id(watched.__code__): _KnownCode(watched.__code__, True, False)}
        self.libraries: set[int] = set()
        self.finding: FrameType | None = None
        self.imports: list[str] = []
        self.repeats = 0  # how many checkpointed functions run

    @contextmanager
    def repeat(self, function: object) -> Iterator[None]:
        """Let what runs in this block count as run once more by a backward pass."""
        self.seen.repeated.add(function)
        self.repeats += 1
        try:
            yield
        finally:
            self.repeats -= 1

    def entered(self, frame: FrameType) -> None:
        """Learn that a function begins, or that a generator goes on."""
        # what looks for a module, such as finders of other packages, is no part of the program
        if self.finding is not None:
            return
        code = frame.f_code
        resumed = self.graph.iterators.of_frames.get(id(frame))
        if resumed is not None:
            self._resumed(resumed, frame.f_back)
        if id(code) in _NOTICED:
            self._notice(frame)
        known = self.known.get(id(code))
        if known is None:
            known = self._note_code(frame)
            self._learn_code(frame)
        if not known.is_program:
            self._learn_library(frame)
            return
        # each time: functions of one code may have different variables around them
        if code.co_freevars:
            self.graph.enter_closure(code, frame.f_locals)
        if self.graph.on_miss is not None and self._is_missed(frame):
            self.seen.has_missed = True
            self.graph.on_miss()
        if self.graph.backward is not None:
            self.graph.backward.enter(code, frame.f_globals, frame.f_locals)
        if self.repeats:
            self.seen.repeated.enter(code, frame.f_globals, frame.f_locals)

    def _note_code(self, frame: FrameType) -> _KnownCode:
        """Note whose the code is that runs for the first time."""
        code = frame.f_code
        known = _KnownCode(code, _is_followed(frame), _is_of_library(frame))
        self.known[id(code)] = known
        return known

    def _learn_code(self, frame: FrameType) -> None:
        """Let the graph learn the names in code that runs for the first time."""
        code = frame.f_code
        if self._is_programs(frame):
            self.graph.enter(code, frame.f_globals)
            self._refuse_opaque()
            return
        if code.co_filename == _OF_SCHEDULERS:
            self.graph.enter_scheduler(code)
            self._refuse_opaque()

    def _learn_library(self, frame: FrameType) -> None:
        """Let the graph learn the names in code of a library that the program calls, or that
        another library calls for it. What this package calls is no part of the program."""
        code = frame.f_code
        if id(code) in self.libraries or is_of_package(code.co_filename):
            return
        if not code.co_flags & inspect.CO_NEWLOCALS:  # of a module that is imported
            return
        if not self._is_of_program(frame.f_back):
            return
        # it computes with sizes for the capture, and not for the program
        if str(frame.f_globals.get("__name__")).startswith(modules_of_symbols):
            return
        self.libraries.add(id(code))
        module = sys.modules.get(str(frame.f_globals.get("__name__")))
        # another module may have come under that name
        if isinstance(module, ModuleType) and vars(module) is frame.f_globals:
            self.graph.enter_library(code, module)

    def _is_of_program(self, caller: FrameType | None) -> bool:
        """Return whether code is the program's, or of a library that runs for it. A program whose
        first function is a library's is called by this package."""
        if caller is None:
            return False
        return self._is_programs(caller) or id(caller.f_code) in self.libraries

    def _notice(self, frame: FrameType) -> None:
        """Learn that a function of torch's or Python's begins which matters by itself."""
        code = frame.f_code
        if code is FIND_MODULE:
            self.finding = frame
        if code is _MAKES_OPTIMIZER:
            self.graph.made.add(id(frame.f_locals["self"]))
        if code is _RUNS_LAYER and self.graph.backward is not None:
            layer = frame.f_locals["self"]
            self.graph.backward.layers[id(layer)] = layer
        # `a` is what `Random.seed` calls its argument; None asks the system for a seed
        if code is _SEED and frame.f_locals.get("a") is None:
            self._ask(_SEEDS[code], frame.f_back)
        if code is _ZEROES_OF_LAYER or code is _ZEROES_OF_OPTIMIZER:
            _drop_gradients(frame.f_locals)
        self._notice_question(frame)

    def _notice_question(self, frame: FrameType) -> None:
        """Let count what a function of torch's or Python's asks for."""
        key = id(frame.f_code)
        if key in FACTS_OF_CODE:
            self.graph.ask(FACTS_OF_CODE[key])
        if key in CODES_OF_ENVIRONMENT and self._is_of_program(frame.f_back):
            self._ask_environment(frame)
        if key in FACTS_OF_PROGRAM and self._is_asked_by_program(frame.f_back):
            self.graph.ask(FACTS_OF_PROGRAM[key])
        if key in _OF_TENSORS_IN_PYTHON and self._is_asked_by_program(frame.f_back):
            self.graph.code.learn((_OF_TENSORS_IN_PYTHON[key],), ())
        if key in _LOOKUPS and self._is_asked_by_program(frame.f_back):
            self.graph.reach_object(getattr, "getattr")
        if key in _OF_TORCH:
            self._ask(_OF_TORCH[key], frame.f_back)

    def _ask_environment(self, frame: FrameType) -> None:
        """Let variables of the environment count, or what another object of its class has."""
        owner = frame.f_locals.get("self", os.environ)
        if owner is os.environ:
            self.graph.ask(facts_of_environment(id(frame.f_code), frame.f_locals.get("key")))
        else:
            self.graph.reach_object(vars(owner), type(owner).__name__)

    def _is_missed(self, frame: FrameType) -> bool:
        """Return whether a cache has no result, so that its function begins. Not where that is
        given a tensor of the trace, which no later call has."""
        if not any(_is_of_cache(cache, frame) for cache, _ in self.graph.caches):
            return False
        return not any(isinstance(x, Value) for x in frame.f_locals.values())

    def _refuse_opaque(self) -> None:
        """Refuse what code has a name for, now that the graph has grown and before the code may
        change it."""
        try:
            refuse_opaque_objects(self.graph)
        except RuntimeError:
            self.seen.met_opaque = True
            raise

    def left(self, frame: FrameType, result: object) -> None:
        """Learn that a function ends. ``result``: None if by an exception."""
        if frame is self.finding:
            self.finding = None
            self.imports.append(frame.f_locals["name"])
        elif self.finding is None and frame.f_code is IMPORT and isinstance(result, ModuleType):
            self.graph.enter_module(result)
            self._refuse_opaque()

    def _resumed(self, node: Position, caller: FrameType | None) -> None:
        """Learn that a generator from outside goes on."""
        if not node.steps:  # before its first step, which may change what its variables hold
            self.graph.enter_generator(node.owner, node.name)
            self._refuse_opaque()
        node.steps += 1
        line = self._user_line(caller)
        if line is not None:
            self.seen.moved.setdefault(id(node.owner), line)

    def called(self, frame: FrameType, function: object) -> None:
        """Learn that the code of ``frame`` is about to call a function of C."""
        if self.finding is not None:
            return
        owner = getattr(function, "__self__", None)
        self._note_movement(frame, function, owner)
        known = self.known.get(id(frame.f_code)) or self._note_code(frame)
        if known.is_program or id(frame.f_code) in self.libraries:
            self._ask_before(frame, function, owner)
        if known.is_program:
            name = _asks(function, owner)
            if name is None and _is_file(owner) and not self.graph.knows(owner):
                name = f"{type(owner).__name__}.{_name_of(function)}"  # the program has opened it
            if name is not None:
                self._ask(name, frame)
        elif known.is_library:
            name = _asks(function, owner)
            # a library asks for the time for itself, as that of queues does
            if name is not None and not is_kept(name):
                self._ask(name, frame)

    def _ask_before(self, frame: FrameType, function: Any, owner: object) -> None:
        """Let the graph ask for state that ``function`` of C, of ``owner``, reads or changes."""
        if isinstance(owner, torch.Generator) and function.__name__ == "initial_seed":
            self._refuse_seed(frame, owner)
        of_tensor = issubclass(type(owner), torch.Tensor) and function.__name__ in QUESTIONS
        # code need not have the name of the method: `ask = w.data_ptr` outside, and `ask()` inside
        if of_tensor and self._is_programs(frame):
            self.graph.code.learn((function.__name__,), ())
        if id(function) in FACTS_OF_PROGRAM and self._is_asked_by_program(frame):
            self.graph.ask(FACTS_OF_PROGRAM[id(function)])
        if type(owner) is ContextVar:  # it may be a library's, which no name leads to
            self.graph.reach_object(owner, owner.name)
        facts = facts_before(function)
        if facts:
            self.graph.ask(facts)

    def _refuse_seed(self, frame: FrameType, generator: torch.Generator) -> None:
        """Refuse a program that asks a generator from outside for its seed, which is another one
        while the program is captured."""
        outside = (torch.default_generator, *self.graph.generators)
        line = self._user_line(frame)
        if line is not None and any(generator is other for other in outside):
            self.seen.asked.setdefault("torch.Generator.initial_seed", line)
            self.seen.refuse_asked()

    def _note_movement(self, frame: FrameType, function: Any, owner: object) -> None:
        """Note that a call may move an iterator or a generator, or empties a cache."""
        if type(owner) is _CACHE and function.__name__ == "cache_clear":
            self.seen.cleared.append(owner)
        if id(owner) in self.graph.moving and not is_of_package(frame.f_code.co_filename):
            line = self._user_line(frame)
            if line is not None:
                self.seen.moved.setdefault(id(owner), line)
        if function is next and self.seen.advanced is None and is_of_user(frame.f_code.co_filename):
            self.seen.advanced = self._user_line(frame)

    def _ask(self, name: str, frame: FrameType | None) -> None:
        """Refuse a question that the code of ``frame`` is about to ask, if the program asks it: it
        calls the function itself, or one of Python's library or NumPy's that does."""
        while frame is not None and _is_of_library(frame):
            name = _SEEDS.get(frame.f_code, name)
            frame = frame.f_back
        if frame is None or not self._is_programs(frame):
            return
        code = frame.f_code
        line: Line | None = (code.co_filename, frame.f_lineno, code.co_name)
        if code is watched.__code__:
            line = self._user_line(frame)
        self.seen.asked.setdefault(name, line)
        self.seen.refuse_asked()  # before it is called: nobody could undo it

    def _is_asked_by_program(self, caller: FrameType | None) -> bool:
        """Return whether a function is called by the program's own code, or by one of Python's
        library or NumPy's for it."""
        while caller is not None and _is_of_library(caller):
            caller = caller.f_back
        return caller is not None and self._is_programs(caller)

    def _is_programs(self, frame: FrameType) -> bool:
        known = self.known.get(id(frame.f_code))
        return known is not None and known.is_program

    @staticmethod
    def _user_line(frame: FrameType | None) -> Line | None:
        while frame is not None and not is_of_user(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        return frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _drop_gradients(names: Mapping[str, Any]) -> None:
    """Drop the gradients to which ``zero_grad`` of torch, with the variables ``names``, is about to
    assign None. So its question whether there are some makes them no arguments of the graph."""
    gradients, owner = CAPTURE.gradients, names["self"]
    if gradients is None or names["set_to_none"] is not True:
        return
    if isinstance(owner, nn.Module):
        # a list of the user's own may come from code with effects
        if all(_is_of_torch(owner, name) for name in _LISTS_PARAMETERS):
            gradients.drop(owner.parameters())
    else:
        gradients.drop([p for group in owner.param_groups for p in group["params"]])


def _is_of_torch(layer: nn.Module, name: str) -> bool:
    """Return whether method ``name`` of ``layer`` is that of all layers."""
    return name not in vars(layer) and getattr(type(layer), name) is getattr(nn.Module, name)


def _is_of_cache(cache: Any, frame: FrameType) -> bool:
    """Return whether the function of ``frame`` is the one behind ``cache``."""
    return getattr(cache.__wrapped__, "__code__", None) is frame.f_code


def _is_followed(frame: FrameType) -> bool:
    """Return whether the code of a function is the program's. Code that is generated has no file,
    as that of data classes, so its module tells."""
    if not is_followed(frame.f_code.co_filename):
        return False
    name = frame.f_globals.get("__name__")
    if not isinstance(name, str):
        return True
    if is_own_module(name):
        return False
    module = sys.modules.get(name)
    of_a_file = not frame.f_code.co_filename.startswith("<")
    # a module that is loaded by its file may have the name of one of Python's
    if module is None or (of_a_file and attributes_of(module) is not frame.f_globals):
        return True
    return is_followed_module(name)


def _is_of_library(frame: FrameType) -> bool:
    """Return whether the code of ``frame`` asks on behalf of its caller: it is of Python's library,
    as ``pathlib``, or of NumPy."""
    module = frame.f_globals.get("__name__")
    if type(module) is not str:
        return False
    if module.startswith(_GIVES_FILES):
        return frame.f_code is not _LOADS_MODULE
    root = module.partition(".")[0]
    return root == "numpy" or (root in sys.stdlib_module_names and root not in ONLY_TELL)


def _asks(function: object, owner: object) -> str | None:
    """Return the name of a function of C that asks for what no object of Python's has. None for any
    other."""
    if owner is sys.stdout or owner is sys.stderr:
        return None
    name = _name_of(function)
    if _is_written_file(owner):
        return f"{type(owner).__name__}.{name}"
    # a function says its module; a method is of the module of its class
    if owner is None or issubclass(type(owner), ModuleType):
        origin = getattr(function, "__module__", None)
    else:
        origin = (owner if issubclass(type(owner), type) else type(owner)).__module__
    root = str(origin or "builtins").partition(".")[0]
    module = root.lstrip("_")  # what `io.open` says of itself differs between Pythons
    if root in TRUSTED or f"_{root}" in TRUSTED or module in TRUSTED:
        asks = name in _IMPURE.get(module, ())
        return f"{module}.{name}" if asks else None
    if root not in sys.stdlib_module_names or not isinstance(function, BuiltinFunctionType):
        return None
    return f"{root}.{name}" if f"{root}.{name}" not in _PURE else None


def _name_of(function: object) -> str:
    return str(getattr(function, "__name__", ""))


def _is_written_file(x: Any) -> bool:
    """Return whether ``x`` is a file to which others may write. How far one is that is only read is
    in the graph, as is all of one in memory."""
    return _is_file(x) and not x.closed and bool(x.writable())


def _is_file(x: Any) -> bool:
    return issubclass(type(x), io.IOBase) and not issubclass(type(x), (io.StringIO, io.BytesIO))


@contextmanager
def watching(graph: ObjectGraph, errors: LeftErrors | None = None) -> Iterator[Seen]:
    """Let ``graph`` learn, while entered, of each function that the program enters. The program is
    run by :func:`~runtime.seam.user_code.watched`. ``errors``: refuses those that the program
    catches; None for a run in eager mode, which may catch any."""
    watcher = _Watcher(graph)
    left = errors or LeftErrors(here)
    refusing = nullcontext() if errors is None else errors.refusing()
    with watched_by(watcher) as hook, capturing(hook, left, graph.mark, watcher.repeat):
        with refusing:
            yield watcher.seen
        # now, when it shows which of them Python has found
        graph.enter_imports(watcher.imports)
        # a refusal that the program has caught; Python drops a profile hook that raises
        asked = any(not is_kept(name) for name in watcher.seen.asked)
        watcher.seen.goes_on = asked or watcher.seen.met_opaque
        watcher.seen.refuse_asked()
        if watcher.seen.met_opaque:
            refuse_opaque_objects(graph)
        hook.refuse_replaced()
