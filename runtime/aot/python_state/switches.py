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
import re
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import torch

from ...torch_private.global_settings import library_in_c
from .values import SIMPLE

_NAMES: dict[Any, str] = {
    f: name for name, f in vars(library_in_c).items() if type(f) is BuiltinFunctionType
}
"""Torch's functions of C, each with its name."""
Facts = dict[str, Callable[[], object]]
"""Questions without arguments, by name."""
_GETTER = re.compile(r"_?(get|is|are|check)_")
_SETTER = re.compile(r"_?(set|enable|disable)_")
# of what a capture itself changes
_PASSED = re.compile("dispatch|torch_function|functorch|trac|tls|grad_enabled|inference")
_EVERYWHERE = frozenset(("set", "get", "is", "use", "enabled", "enable", "allow", "setter"))
"""Words that say nothing of which switch it is."""


def settings_of_decimals() -> str:
    """Return the context of Python's decimals, without the flags that computing sets."""
    return repr(decimal.getcontext()).partition(", flags")[0]


def settings_of_numpy() -> tuple[object, ...]:
    """Return what NumPy does at errors, and the size of its buffers."""
    return (*np.geterr().items(), np.getbufsize())


_DEVICES: list[tuple[str, ...]] = [(kind,) for kind in ("cpu", "cuda", "mps", "xpu")]
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
        return {_name_of_python(f): ask for f, ask in _OF_PYTHON.items()}
    name = _NAMES.get(function)
    if name is None or _PASSED.search(name):
        return {}
    return _facts_of_torch(name)


def _name_of_python(function: Any) -> str:
    return f"{function.__module__}.{function.__name__}()"


@functools.cache
def _facts_of_torch(name: str) -> Facts:
    """Return the questions of the function of torch's C of this name."""
    if _GETTER.match(name):
        found = dict(_questions(name))
        if found:
            return found
    elif not _SETTER.match(name):
        return {}
    words = _words_of(name)
    related = [
        other
        for other in _NAMES.values()
        if _GETTER.match(other) and not _PASSED.search(other) and words & _words_of(other)
    ]
    return dict(itertools.chain.from_iterable(map(_questions, related)))


def _words_of(name: str) -> frozenset[str]:
    return frozenset(name.strip("_").split("_")) - _EVERYWHERE


def _questions(name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield the questions of a function of torch's C: with each of its arguments, if it takes
    some. None of a function whose arguments are not known here, nor of a deprecated one."""
    function = vars(library_in_c)[name]
    for args in _ARGUMENTS.get(name, [()]):
        question = functools.partial(_answer, function, args)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                question()
        except (TypeError, RuntimeError, Warning):  # it takes others, or has no such device
            continue
        yield f"{library_in_c.__name__}.{name}({', '.join(args)})", question


def _answer(function: Callable[..., object], args: Iterable[str]) -> object:
    """Return what a function tells, in a form that can be compared."""
    found = function(*args)
    if type(found) in SIMPLE or isinstance(found, torch.dtype):
        return found
    return repr(found)


def levels_of_loggers() -> tuple[object, ...]:
    """Return which levels the loggers of Python's have that somebody has given one."""
    manager = logging.Logger.manager
    named = [
        (name, logger.level, logger.disabled)
        for name, logger in sorted(manager.loggerDict.items())
        if isinstance(logger, logging.Logger) and (logger.level or logger.disabled)
    ]
    return (manager.disable, logging.root.level, *named)
