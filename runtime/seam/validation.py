"""Validates the arguments of torch's distributions in the graph of a program that is captured.

    torch.distributions.Normal(x, x.exp())      # each call asks whether the second is positive

A distribution raises ``ValueError`` unless each argument is in its domain. A capture has no
elements to ask. So the graph has the question, as ``aten::_assert_async``. Where the answer is no,
the graph raises, and the call that runs in eager mode then raises torch's error.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from .ambient import Ambient
from .exchanged_methods import Captures, Method

_MESSAGE = (
    "an argument of a distribution or a value that it is asked about is not in its domain. "
    "In eager mode a ValueError says which"
)

_QUESTIONS = (torch._is_all_true, torch.Tensor.all, torch.all)


class _Running(Ambient):
    """``validates``: whether this thread runs a method of torch's that only validates."""

    validates = False


_RUNNING = _Running()


def make_validating(torchs: Method, captures: Captures) -> Method:
    """Return the method that stands in for ``torchs``, which validates arguments."""

    @functools.wraps(torchs)
    def validate(*args: Any, **kwargs: Any) -> Any:
        around = _RUNNING.validates
        _RUNNING.validates = captures()
        try:
            return torchs(*args, **kwargs)
        finally:
            _RUNNING.validates = around

    return validate


def is_asked_by(func: object, n_arguments: int) -> bool:
    """Return whether torch asks by a call of ``func`` whether all of a tensor is valid."""
    return _RUNNING.validates and n_arguments == 1 and func in _QUESTIONS


def assert_valid(valid: torch.Tensor) -> bool:
    """Let the graph ask whether ``valid`` is true everywhere. Return that it is: else the graph
    raises."""
    torch._assert_async(torch._is_all_true(valid), _MESSAGE)
    return True
