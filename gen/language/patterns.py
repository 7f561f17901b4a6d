"""Regular expressions of a matrix: which may run away, and which say nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator

# no public way to look inside of a pattern
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_MANY = 10  # repetitions from which on backtracking may not end


def matches_anything(pattern: str) -> bool:
    """Whether a message need not have any text for `pattern` to be found in it."""
    compiled = re.compile(pattern)
    return all(compiled.search(text) for text in ("", "\x00", "no such message"))


def may_run_away(pattern: str) -> bool:
    """Whether a repetition has another repetition of varying length or a choice inside, so that
    backtracking is exponential."""
    return any(_varies(body) for repeat, body in _repeats(parser.parse(pattern)) if repeat >= _MANY)


def _repeats(tree: Any) -> Iterator[tuple[int, Any]]:
    """How often each repetition below `tree` may repeat, and what."""
    for code, argument in _nodes(tree):
        if code in _REPEATS:
            yield int(argument[1]), argument[2]


def _varies(tree: Any) -> bool:
    return any(
        code is codes.BRANCH or (code in _REPEATS and argument[0] != argument[1])
        for code, argument in _nodes(tree)
    )


def _nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    for code, argument in tree:
        yield code, argument
        for inner in argument if isinstance(argument, tuple | list) else (argument,):
            if isinstance(inner, parser.SubPattern):
                yield from _nodes(inner)
            elif isinstance(inner, list):
                for one in inner:
                    if isinstance(one, parser.SubPattern):
                        yield from _nodes(one)
