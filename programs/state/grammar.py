"""Programs with a state, made of four parts: a path, a holder, a change, a moment.

    print(paths.super_method.text("attribute", "sign", "between"))

A program is a module's text. It defines ``step(x, flag)``, which is what a target compiles;
``alter()``, which changes the value; and ``look()``, which finds it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from string import Template
from typing import Any

from .changes import CHANGES, Change
from .holders import HOLDERS, Holder
from .moments import MOMENTS, PASSES, Moment

_IMPORTS = """\
import collections, contextlib, contextvars, dataclasses, enum, functools, importlib, io
import itertools, operator, queue, random, threading, types, weakref
import numpy as np
import torch
import torch.utils.checkpoint
from torch import nn
GONE = object()
ABSENT = (NameError, AttributeError, LookupError, TypeError, StopIteration)
def first(value):
    return value
def second(value, other):
    return value
"""
_ALL = {**MOMENTS, **PASSES}
_INSIDE = frozenset(("cell",))  # holders that are variables of a function around


@dataclass(frozen=True)
class Path:
    """How a program comes to a value. ``setup``: what it defines. ``read``: the value.
    ``result``: what the program computes, where that is not ``use(x, value)``. ``given``: what the
    caller gives it as the argument ``given``. ``own``: the value's name in the program, if not
    that of its place. ``changes``: those that its programs make."""

    setup: str
    read: str = ""
    result: str = ""
    given: str = ""
    own: str = ""
    changes: Mapping[str, Change] = field(default_factory=lambda: CHANGES)
    number: int = field(default_factory=itertools.count().__next__)

    def __call__(self, x: Any) -> Any:
        """The program without a change, of a number in a global."""
        names: dict[str, Any] = {"__name__": __name__}
        exec(self.text("global", "number", "between"), names)
        return names["step"](x, *names["arguments"]())

    def programs(self, moment: str) -> list[tuple[str, str]]:
        """The holder and the change of each program of this path at ``moment``.

        A path has a program for each holder. Those of all paths and moments have each pair of a
        holder, a change, a moment and a path: holder ``h`` of path ``p`` has the change ``h + p``
        and the moment ``h + 2 p``. The number of moments is odd, so that any of them occurs beside
        each holder and each change. Of the moments at which a value is read in the backward pass
        each has every sixteenth holder, another one for the next path."""
        changes = list(self.changes)
        if moment in PASSES:
            turn = list(PASSES).index(moment) + self.number
            return [
                (holder, changes[(h + 3 * self.number) % len(changes)])
                for h, holder in enumerate(HOLDERS)
                if (h + turn) % (4 * len(PASSES)) == 0
            ]
        moments = list(MOMENTS)
        return [
            (holder, changes[(h + self.number) % len(changes)])
            for h, holder in enumerate(HOLDERS)
            if moments[(h + 2 * self.number) % len(moments)] == moment
        ]

    def text(self, holder: str, change: str, moment: str) -> str:
        """The text of a program."""
        place, when = HOLDERS[holder], _ALL[moment]
        alteration = self.changes.get(change) or CHANGES[change]
        body = "\n".join(
            (_parts(self, place, alteration), _functions(self, place, alteration, when))
        )
        if holder in _INSIDE:
            inner = textwrap.indent(f"{body}\nreturn step, alter, look, arguments", "    ")
            body = f"def make():\n{inner}\nstep, alter, look, arguments = make()\n"
        return f"{_IMPORTS}{alteration.setup}\n{body}"

    def calls(self, moment: str) -> str:
        """The letters of the calls of a program."""
        return _ALL[moment].calls


def _parts(path: Path, place: Holder, change: Change) -> str:
    """What holds the value, and what leads to it."""
    attempt = f"try:\n    return {place.get}\nexcept ABSENT:\n    return 1.0"
    found = _function("found()", [attempt])
    get = "found()" if change.toggles else place.get
    lines = [
        _filled(place.setup, start=change.start),
        f"def use(x, value):\n    return {change.use}",
        found if change.toggles else "",
        _filled(path.setup, get=get),
    ]
    return "\n".join(lines)


def _functions(path: Path, place: Holder, change: Change, moment: Moment) -> str:
    get = "found()" if change.toggles else place.get
    statements = _alteration(place, change)
    own = _alteration(place, change, path.own)
    parameters = "x, flag=False, given=None" if path.given else "x, flag=False"
    result = _filled(path.result or f"use(x, {path.read})", get=get)
    lines = [
        place.declare,
        _filled(moment.before, alter=own),
        _result(moment, result, place.declare),
        _filled(moment.after, alter=own),
        "return result",
    ]
    return "\n".join(
        (
            _function("alter()", [place.declare, statements]),
            moment.setup,
            _function(f"step({parameters})", lines),
            _arguments(path.given, get),
            _function("look()", [f"return {place.get}"]),
        )
    )


def _result(moment: Moment, result: str, declare: str) -> str:
    """What gives the result of a program."""
    if not moment.result:
        return f"result = {result}"
    return _filled(moment.result, result=result, declare=declare or "pass")


def _arguments(given: str, get: str) -> str:
    """What the caller gives a program beside the tensor and the flag."""
    values = f"(False, {_filled(given, get=get)})" if given else "()"
    return _function("arguments()", [f"return {values}"])


def _alteration(place: Holder, change: Change, own: str = "") -> str:
    """The statements that change the value, which a program may have under a name of its own."""
    if change.toggles:
        there = _filled(place.put, new=change.start)
        return (
            f"try:\n    {place.get}\n    there = True\nexcept ABSENT:\n    there = False\n"
            f"if there:\n    {place.drop}\nelse:\n    {there}"
        )
    if change.do:
        return _filled(change.do, get=own or place.get)
    return _filled(place.put, new=_filled(change.new, get=place.get))


def _function(head: str, lines: list[str]) -> str:
    body = "\n".join(line for line in lines if line) or "pass"
    return f"def {head}:\n{textwrap.indent(body, '    ')}"


def _filled(text: str, **words: str) -> str:
    return Template(text).safe_substitute(words)
