"""State of torch, Python and NumPy that only functions of C tell.

    torch.backends.cudnn.enabled        # calls torch._C._get_cudnn_enabled()
    gc.get_threshold()

The hook sees that a program calls such a function, or that a library does so for it. A call then
asks the function itself. Before a function that sets something runs, those are asked that may tell
of it: so a program that leaves a switch changed is seen.

    facts_before(torch._C._set_cudnn_enabled)   # … "torch._C._get_cudnn_enabled" …

Torch's functions are told apart by their names, all that there are.
"""

from __future__ import annotations

import decimal
import functools
import gc
import itertools
import logging
import os
import re
import sys
import threading
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch

from ...torch_private.global_settings import library_in_c, print_options
from ...torch_private.native_tensors import printed
from .values import SIMPLE, module_of

_SMALLEST_NORMAL = sys.float_info.min

Facts = dict[str, Callable[[], object]]
"""Questions without arguments, by name."""


def _functions_in_c(modules: tuple[ModuleType, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the functions of C of the last of ``modules``, which the others lead to, and of the
    modules in it, each with its name."""
    root = modules[0].__name__
    module = modules[-1]
    for value in vars(module).values():
        if type(value) is BuiltinFunctionType:
            yield f"{module.__name__}.{value.__name__}", value
            continue
        is_inside = type(value) is ModuleType and value.__name__.startswith(f"{root}.")
        # a module may lead back to one above it
        if is_inside and value not in modules:
            yield from _functions_in_c((*modules, value))


_FUNCTIONS: dict[str, Any] = dict(_functions_in_c((library_in_c,)))
"""Torch's functions of C by name."""
_NAMES: dict[Any, str] = {function: name for name, function in _FUNCTIONS.items()}
_ASKING = frozenset(("get", "is", "are", "check"))
"""First words of a function that tells something, perhaps after that of a part of torch."""
_PARTS_OF_TORCH = ("jit", "debug")
"""Such parts of torch, as in ``_jit_get_inline_everything_mode``."""
_ASKED = frozenset(("enabled", "mode", "allowed"))
"""Last words of such a function."""
_SETTING = frozenset(("set", "enable", "disable"))
"""Words of a function that changes something."""
_MOVING = frozenset(("push", "pop", "enter", "exit", "increment", "decrement", "init", "sequence"))
"""Words of a function that tells where it is, and may go on."""
# Names of what a capture itself changes, and of what torch's own compiler is asked. The modes of
# grad and inference are part of the kind of each call, but for that of forward derivatives. Of
# functorch it only counts whether a fallback is allowed.
_PASSED = re.compile(
    r"dispatch|torch_function|_functorch\.(?!.*fallback)|trac|tls|inference|_dynamo|_time$"
    "|(?<!fwd_)grad_enabled|graph_task"
)
_EVERYWHERE = _ASKING | _SETTING | {"use", "enabled", "allow", "setter", *_PARTS_OF_TORCH}
"""Words that say nothing of which switch it is."""


def settings_of_decimals() -> tuple[str, str]:
    """Return the context of Python's decimals, without the flags that computing sets."""
    return text_of_decimals(decimal.getcontext())


def text_of_decimals(context: decimal.Context) -> tuple[str, str]:
    """Return what a context of decimals says, without the flags that computing sets."""
    before, _, after = repr(context).partition(", flags=")
    return before, after.partition("]")[2]


def settings_of_numpy() -> tuple[object, ...]:
    """Return what NumPy does at errors, which may be to warn, and the size of its buffers."""
    settings = (*np.geterr().items(), np.geterrcall(), np.getbufsize())
    return (*settings, *warnings_that_raise())


def settings_of_texts() -> tuple[object, ...]:
    """Return how torch writes the text of a tensor."""
    return tuple(print_options().items())


def drops_denormals() -> bool:
    """Return whether this thread takes denormal numbers for 0, in Python as in kernels:
    ``torch.set_flush_denormal``, which torch tells by no function."""
    return _SMALLEST_NORMAL * 0.5 == 0


def warnings_that_raise() -> tuple[object, ...]:
    """Return the filters up to the last one by which a warning is an error. Behind that they only
    tell what people see."""
    filters = list(warnings.filters)
    while filters and filters[-1][0] != "error":
        filters.pop()
    return tuple(filters)


def _thread_of_caller() -> tuple[int, str]:
    return threading.get_ident(), threading.current_thread().name


def _threads() -> tuple[object, ...]:
    return (threading.main_thread().name, *(thread.name for thread in threading.enumerate()))


def levels_of_loggers() -> tuple[object, ...]:
    """Return which levels the loggers of Python's have that somebody has given one."""
    manager = logging.Logger.manager
    named = [
        (name, logger.level, logger.disabled)
        for name, logger in sorted(manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and (logger.level or logger.disabled)
    ]
    names = logging.getLevelNamesMapping().items()
    return (manager.disable, logging.root.level, *named, *names)


def _by_code(functions: Iterable[Any], facts: Facts) -> dict[int, Facts]:
    return {
        id(function.__code__): facts for function in functions if type(function) is FunctionType
    }


def _by_identity(functions: Iterable[object], facts: Facts) -> dict[int, Facts]:
    return {id(function): facts for function in functions}


_SPARSE = [function for name, function in vars(torch).items() if name.startswith("sparse_")]
"""Functions that make sparse tensors. A switch decides whether they check what they are given."""
_INVARIANTS: Facts = {
    "torch.sparse.check_sparse_tensor_invariants": (
        torch.sparse.check_sparse_tensor_invariants.is_enabled
    )
}
FACTS_OF_NAMES: Facts = {"sys.modules": lambda: frozenset(sys.modules)}
"""What is to be asked where code has a name."""
FACTS_OF_ALL: Facts = {"torch.set_flush_denormal": drops_denormals}
"""What each program asks, as its arithmetic with Python's numbers does."""
_TEXTS: Facts = {"torch.set_printoptions": settings_of_texts}
_ENVIRONMENT: Facts = {"os.environ": lambda: tuple(os.environ.items())}
_LEVELS: Facts = {"logging levels": levels_of_loggers}
_THREAD: Facts = {"threading.current_thread()": _thread_of_caller}
_THREADS: Facts = {"threading.enumerate()": _threads}
_FILTERS: Facts = {"warnings.filters": lambda: tuple(warnings.filters)}
# not of what only tells something: each message to a log would ask for all levels
_OF_LEVELS = (
    logging.getLogger,
    logging.disable,
    logging.addLevelName,
    logging.getLevelName,
    logging.getLevelNamesMapping,
    logging.Logger.setLevel,
    logging.Logger.isEnabledFor,
    logging.Logger.getEffectiveLevel,
)
_OF_FILTERS = (
    warnings.catch_warnings.__init__,
    warnings.filterwarnings,
    warnings.resetwarnings,
    warnings.simplefilter,
)
FACTS_OF_CODE = _by_code((printed, print_options, torch.set_printoptions), _TEXTS)
"""By identity of the code of a function of torch's in Python: what is to be asked before it runs,
since it reads or changes it in an object that its module has for itself."""
_ENVIRONMENT_CLASS = type(os.environ)
# Only the keys of this table count: these functions are asked with the name of one variable, see
# `facts_of_environment`. So `os.getenv` has no questions without one.
_BY_KEY = _by_code(
    [
        os.getenv,
        *(vars(_ENVIRONMENT_CLASS)[name] for name in ("__getitem__", "__setitem__", "__delitem__")),
    ],
    {},
)
CODES_OF_ENVIRONMENT = _BY_KEY | _by_code(vars(_ENVIRONMENT_CLASS).values(), _ENVIRONMENT)
"""By identity of the code of a function of ``os.environ``: what asks for all variables."""


def facts_of_environment(code: int, key: object) -> Facts:
    """Return what is to be asked before code of the program's, or of a library that runs for it,
    calls a function of ``os.environ``: one variable, or all of them. Nothing of another function.

    ``code``: identity of the code of the function. ``key``: what it is asked for."""
    if code not in _BY_KEY or type(key) is not str:
        return CODES_OF_ENVIRONMENT.get(code, {})
    return {f"os.environ[{key!r}]": functools.partial(_variable, key)}


def _variable(key: str) -> str | None:
    """Return a variable of the environment, of the object that is ``os.environ`` now."""
    return os.environ.get(key)


FACTS_OF_PROGRAM: dict[int, Facts] = {
    **_by_code(_OF_LEVELS, _LEVELS),
    **_by_code((threading.current_thread,), _THREAD),
    **_by_code((threading.main_thread, threading.enumerate, threading.active_count), _THREADS),
    **_by_code(_OF_FILTERS, _FILTERS),
    **_by_identity(_SPARSE, _INVARIANTS),
    **_by_identity((threading.get_ident, threading.get_native_id), _THREAD),
}
"""What is to be asked before code of the program's calls a function of Python's. By identity of the
code of the function, or of one of C. What a library calls it for is another matter: each message to
a log asks for the thread."""

_OF_LIBRARIES: dict[str, Facts] = {
    "decimal": {"decimal.getcontext()": settings_of_decimals},
    "numpy": {"numpy.geterr()": settings_of_numpy},
}
"""What operators of a library's objects ask for, by the name of the library."""


def facts_of(x: Any) -> Facts:
    """Return what is to be asked where a program comes to ``x``, since no hook sees what operators
    ask: the context of a ``decimal.Decimal``, what NumPy's arrays do at errors. So it is with the
    module, a class or a function of these libraries. A function of C may be called by another one,
    as in ``map(torch.get_num_threads, ...)``, of which no hook hears either."""
    kind = type(x)
    name: object = None
    if kind is BuiltinFunctionType:
        asked = {**FACTS_OF_PROGRAM.get(id(x), {}), **facts_before(x)}
        return asked or _facts_of_library(x.__module__)
    if issubclass(kind, ModuleType):
        name = x.__name__
    elif issubclass(kind, FunctionType):
        name = x.__module__
    elif issubclass(kind, type):
        name = module_of(x)
    else:
        name = module_of(kind)
    return _facts_of_library(name)


def _facts_of_library(module: object) -> Facts:
    return _OF_LIBRARIES.get(str(module).partition(".")[0], {})


# types of devices for which torch has a switch of autocast; one that is not built in is passed over
_DEVICES: list[tuple[str, ...]] = [
    (kind,)
    for kind in ("cpu", "cuda", "hpu", "ipu", "maia", "mps", "mtia", "privateuseone", "xla", "xpu")
]
# backends and their ops, as `torch.backends` names them for `fp32_precision`
_PRECISIONS: list[tuple[str, ...]] = [
    ("generic", "all"),
    *itertools.product(("cuda", "mkldnn"), ("all", "conv", "rnn", "matmul")),
]
_ARGUMENTS: dict[str, list[tuple[str, ...]]] = {
    "is_autocast_enabled": _DEVICES,
    "get_autocast_dtype": _DEVICES,
    "_get_fp32_precision_getter": _PRECISIONS,
}
"""What a function of torch's is asked with that takes arguments."""
_OF_PYTHON: dict[Any, Callable[[], object]] = {
    **{
        f: f
        for f in (
            sys.getrecursionlimit,
            sys.getswitchinterval,
            sys.get_int_max_str_digits,
            gc.get_threshold,
            gc.get_debug,
            tracemalloc.is_tracing,
        )
    },
    warnings.warn: warnings_that_raise,
    warnings.warn_explicit: warnings_that_raise,
    # what `geterr`, `errstate` and `getbufsize` of NumPy call in C
    np.getbufsize.__globals__.get("_get_extobj_dict"): settings_of_numpy,
    decimal.getcontext: settings_of_decimals,
}
_SETTERS_OF_PYTHON = frozenset(
    (
        gc.set_threshold,
        gc.set_debug,
        sys.set_int_max_str_digits,
        tracemalloc.start,
        tracemalloc.stop,
    )
)


def facts_before(function: Any) -> Facts:
    """Return what is to be asked before a program calls ``function`` of C: what that tells, or what
    it may change. Nothing of a function that has to do with no switch."""
    if function in _OF_PYTHON:
        return {_name_of_python(function): _OF_PYTHON[function]}
    if function in _SETTERS_OF_PYTHON:
        return {_name_of_python(getter): ask for getter, ask in _OF_PYTHON.items()}
    name = _NAMES.get(function)
    if name is None or _PASSED.search(name):
        return {}
    return _facts_of_torch(name)


def _name_of_python(function: Any) -> str:
    return f"{function.__module__}.{function.__name__}()"


@functools.cache
def _facts_of_torch(name: str) -> Facts:
    """Return the questions of the function of torch's C of this name."""
    if _tells(name):
        found = dict(_questions(name))
        if found:
            return found
        # it takes arguments that are not known here, so others of its subject are asked
    elif _SETTING.isdisjoint(_words_of(name)):
        return {}
    subject = frozenset(_words_of(name)) - _EVERYWHERE
    related = [
        other
        for other in _FUNCTIONS
        if _tells(other) and not _PASSED.search(other) and not subject.isdisjoint(_words_of(other))
    ]
    return dict(itertools.chain.from_iterable(map(_questions, related)))


def _tells(name: str) -> bool:
    """Return whether a function of torch's C of this name only tells something."""
    words = _words_of(name)
    if not _SETTING.isdisjoint(words) or not _MOVING.isdisjoint(words):
        return False
    first = words[0]
    if first in _PARTS_OF_TORCH:
        first = words[1]
    return first in _ASKING or words[-1] in _ASKED


def _words_of(name: str) -> list[str]:
    """Return the words of the last part of a dotted name."""
    return name.rpartition(".")[2].strip("_").split("_")


def _questions(name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the questions of a function of torch's C: with each of its arguments, if it takes
    some. None of a function whose arguments are not known here, nor of a deprecated one, nor of one
    that lists what torch has."""
    function = _FUNCTIONS[name]
    for args in _ARGUMENTS.get(function.__name__, [()]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a deprecated one would warn in each call
                found = function(*args)
        except (TypeError, RuntimeError, Warning):  # it takes others, or has no such device
            continue
        if not isinstance(found, (list, dict)):
            question = functools.partial(_answer, function, args)
            yield f"{name}({', '.join(args)})", question


def _answer(function: Callable[..., object], args: Iterable[str]) -> object:
    """Return what a function tells, in a form that can be compared."""
    found = function(*args)
    if type(found) in SIMPLE or isinstance(found, torch.dtype):
        return found
    return repr(found)
