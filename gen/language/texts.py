"""Define values of the language of matrix.yaml: names, patterns, pipelines, days, versions.

Each says what is wrong with a bad one: ``_day("2027-13-01")`` raises a :func:`fault` with «month
must be in 1..12». Each type states in the JSON Schema what a schema can say of it.
"""

from __future__ import annotations

import builtins
import difflib
import keyword
import re
from collections.abc import Iterable, Iterator
from datetime import date
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from gen.errors import nearest, one_of
from gen.language import pipeline

# --- regular expressions --------------------------------------------------------------------------
#
# Which patterns of a matrix may run away, and which say nothing.

# By Python's own parser of patterns, which has no public name.
_REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT)
_MANY = 10  # repetitions from which on backtracking may not end


def matches_anything(pattern: str) -> bool:
    """Return whether `pattern` matches messages of any text.

    It is asked about three messages that have nothing in common.
    """
    compiled = re.compile(pattern)
    return all(map(compiled.search, ("", "\x00", "no such message")))


def may_run_away(pattern: str) -> bool:
    """Return whether a repetition has another repetition of varying length or a choice inside, so
    that backtracking is exponential.
    """
    return any(_varies(body) for repeat, body in _repeats(parser.parse(pattern)) if repeat >= _MANY)


def _repeats(tree: object) -> Iterator[tuple[int, Any]]:
    """Yield how often each repetition below `tree` may repeat, and what."""
    for code, argument in _nodes(tree):
        if code in _REPEATS:
            yield int(argument[1]), argument[2]


def _varies(tree: object) -> bool:
    """Return whether what a repetition repeats can match a text in several ways."""
    return any(
        code is codes.BRANCH or (code in _REPEATS and argument[0] != argument[1])
        for code, argument in _nodes(tree)
    )


def _nodes(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the nodes below `tree`, as pairs of a code and its argument."""
    for code, argument in tree:
        yield code, argument
        # An argument is a pattern, or has some among its parts: a repetition has (1, 5, pattern),
        # a choice (None, [pattern, pattern]).
        parts = argument if isinstance(argument, tuple | list) else (argument,)
        for part in parts:
            alternatives = part if isinstance(part, list) else [part]
            for inner in alternatives:
                if isinstance(inner, parser.SubPattern):
                    yield from _nodes(inner)


LONGEST_NAME = 100  # letters: file systems take 255 bytes


def fault(
    what: str,
    expected: str = "",
    nearest: str = "",
    offset: int = -1,
    at: tuple[str | int, ...] = (),
) -> PydanticCustomError:
    """Return a mistake with the fields of `gen.errors.Problem`.

    `offset` is the place in the string, `at` a place below the present one.
    """
    context = {"what": what, "expected": expected, "nearest": nearest, "offset": offset, "at": at}
    return PydanticCustomError("matrix", "{what}", context)


class _Matching:
    """Require a string that a pattern matches as a whole. The JSON Schema has the pattern."""

    def __init__(self, pattern: str, expected: str) -> None:
        self.pattern, self.expected = f"^(?:{pattern})$", expected
        self.compiled = re.compile(pattern, re.ASCII)

    def check(self, text: str) -> str:
        """Return the text if the pattern matches it. Raises a fault otherwise."""
        if not self.compiled.fullmatch(text):
            raise fault(f"{text!r} is not a name that Python source may hold", self.expected)
        return text

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "pattern": self.pattern}


class OneOf:
    """Require a string out of a fixed set.

    The message has the nearest name, and the JSON Schema has an `enum`.
    """

    def __init__(self, names: Iterable[str], what: str) -> None:
        self.names, self.what = tuple(names), what

    def check(self, text: str) -> str:
        """Return the text if it is one of the names. Raises a fault otherwise."""
        if text not in self.names:
            raise fault(
                f'unknown {self.what} "{text}"', one_of(self.names), nearest(text, self.names)
            )
        return text

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "enum": list(self.names)}


def _identifier(text: str) -> str:
    """Return a name that a function and a file may have."""
    if not text.isidentifier() or not text.isascii() or keyword.iskeyword(text):
        raise fault(
            f"{text!r} cannot name a test", "a Python identifier: letters, digits and underscores"
        )
    if len(text) > LONGEST_NAME:
        raise fault(
            f"{text[:20]}… is too long for the name of a test or a file",
            f"at most {LONGEST_NAME} letters",
        )
    return text


def _pipeline(text: str) -> str:
    """Return a pipeline in its usual spelling."""
    try:
        return str(pipeline.parse(text))
    except pipeline.PipelineError as error:
        raise fault(
            error.what, error.expected, nearest(error.word, pipeline.STAGES), error.offset
        ) from None


def _regex(text: str) -> str:
    """Return a pattern that can be compiled, and whose search comes to an end."""
    try:
        re.compile(text)
    except re.error as error:
        raise fault(
            f"{text!r} is not a regular expression: {error}",
            "a pattern for re.search",
            offset=error.pos or -1,
        ) from None
    except (OverflowError, RecursionError):
        raise fault(
            f"{text[:40]!r} is not a regular expression that Python takes",
            "a pattern for re.search",
        ) from None
    if may_run_away(text):
        what = f"{text!r} repeats what has a repetition or a choice in it, and may take for ever"
        raise fault(what, "a pattern without +, *, ? or | inside of a + or *")
    return text


def _telling(text: str) -> str:
    """Return a pattern that some message does not match."""
    if matches_anything(text):
        raise fault(
            f"{text!r} matches every message", "a part of the message (`^$` for an empty one)"
        )
    return text


def _exception(name: str) -> str:
    """Return the name of an exception.

    A dotted name passes, and so does a plain name that is no slip for an exception of Python or of
    the checks.
    """
    # A class of a package need not be installed here, so only what looks like a slip is refused.
    known_exceptions = [*_EXCEPTIONS, "Mismatch", "Vacuous", "Crashed", "TimedOut"]
    near = difflib.get_close_matches(name, known_exceptions, n=1, cutoff=_SLIP)
    if "." in name or name in known_exceptions:
        return name
    is_slip = near or hasattr(builtins, name)
    if not is_slip:
        return name
    raise fault(
        f'there is no exception "{name}"',
        "the class of an exception, or module.Class",
        "".join(near),
    )


# of the letters: TorchRuntimeError is another name than RuntimeError, RuntimeErorr is a slip
_SLIP = 0.88
_EXCEPTIONS = tuple(
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
)


def _specifier(text: str) -> str:
    """Return versions as PEP 440 specifies them."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # few matrices need it

    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise fault(
            f"{text!r} is not a version specifier", 'such as "<2.14" or ">=2.11,!=2.12.0"'
        ) from None
    return text


def _one_line(text: str) -> str:
    """Return a text without line ends, as it stands in one line of a generated module."""
    joined = " ".join(text.split())
    if not joined:
        raise fault("an empty text", "a sentence")
    return joined


def _day(value: object) -> object:
    """Return the date of a text `YYYY-MM-DD`."""
    # Python also takes dates such as 2025-W01-1, which the JSON Schema refuses.
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise fault(f"{value!r} is not a date", "YYYY-MM-DD")
    try:
        return date.fromisoformat(value)
    except ValueError as error:
        raise fault(f"{value!r} is not a date: {error}", "YYYY-MM-DD") from None


def _said(**keywords: object) -> WithJsonSchema:
    """Return what the JSON Schema says of a text."""
    return WithJsonSchema({"type": "string", **keywords})


Identifier = Annotated[
    str, AfterValidator(_identifier), _said(pattern=r"^[A-Za-z_]\w*$", maxLength=LONGEST_NAME)
]
PipelineText = Annotated[str, AfterValidator(_pipeline), _said(pattern=pipeline.PATTERN)]
Dotted = Annotated[
    str, _Matching(r"[A-Za-z_]\w*(\.\w+)*", "a dotted name such as torch.nn.functional.conv2d")
]
Callable_ = Annotated[
    str,
    _Matching(
        r"[A-Za-z_]\w*(\.\w+)*(:[A-Za-z_]\w*(\.\w+)*)?", "package.module:function, or a dotted name"
    ),
]
Glob = Annotated[str, _Matching(r"[\w.*?\[\]!-]+", "a name, or a glob such as torch.linalg.*")]
Word = Annotated[str, _Matching(r"\w+", "a word of letters, digits and underscores")]
Text = Annotated[str, AfterValidator(_one_line), _said(pattern=r"\S")]
Regex = Annotated[str, AfterValidator(_regex), _said(format="regex")]
Telling = Annotated[Regex, AfterValidator(_telling), _said(format="regex", minLength=1)]
Exception_ = Annotated[Dotted, AfterValidator(_exception)]
Specifier = Annotated[str, AfterValidator(_specifier)]
Day = Annotated[
    date,
    BeforeValidator(_day, json_schema_input_type=str),
    _said(pattern=r"^\d{4}-\d\d-\d\d$", format="date"),
]
Positive = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="how long a cell may take")]
