"""Make programs smaller: with a part less, or with a simpler one.

    shrunk(program, lambda smaller: "sin" in smaller.text())    # little but a sine

A part is left out, and the program is kept if it still does what it was chosen for. So a part that
others need is tried, too: without it the program means nothing, and is not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gen.grammar.drawn_program import Call, Input, Program, Statement, texts_of

T = TypeVar("T")
_FRESH = "numbers(2, 3, seed=1)"
_SIMPLE_TEXTS = {"plain": _FRESH, "leaf": f"leaf({_FRESH})", "computed": f"(leaf({_FRESH}) * 1)"}
"""The simplest input of each kind of flag."""
_SIMPLER_FLAGS = {"plain": (), "leaf": ("plain",), "computed": ("leaf", "plain")}


def shrunk(program: Program, is_kept: Callable[[Program], bool]) -> Program:
    """Return the smallest program that is kept.

    Each step leaves out or simplifies a part, and starts again with what is left.
    """
    while True:
        smaller = next(filter(is_kept, _smaller(program)), None)
        if smaller is None:
            return program
        program = smaller


def without_call(program: Program, number: int) -> Program | None:
    """Return the program without a call, and those that repeat it. None without a first call."""
    if number == 0:
        return None
    after = number + 1
    # what repeats a call has its inputs, which are gone
    while after < len(program.calls) and program.calls[after].repeats:
        after += 1
    return replace(program, calls=program.calls[:number] + program.calls[after:])


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with one part less, or with a simpler one."""
    # the order matters: a call less makes all further tries faster
    yield from _fewer_calls(program)
    for number in reversed(range(len(program.statements))):
        yield replace(program, statements=_without(program.statements, number))
    if len(program.results) > 1:
        for number in reversed(range(len(program.results))):
            yield replace(program, results=_without(program.results, number))
    # A statement that others need cannot be left out, but what reads it can read its argument.
    yield from _joined_statements(program)
    yield from _simpler_results(program)
    yield from _fewer_inputs(program)
    yield from _simpler_inputs(program)


def _fewer_calls(program: Program) -> Iterator[Program]:
    """Yield programs without one of the calls, the last one first, and without the first."""
    for number in reversed(range(1, len(program.calls))):
        shorter = without_call(program, number)
        if shorter is not None:
            yield shorter
    if len(program.calls) > 1 and not program.calls[1].repeats:
        yield replace(program, calls=program.calls[1:])


def _joined_statements(program: Program) -> Iterator[Program]:
    """Yield programs without a statement, whose result is another variable that it reads."""
    for number, statement in enumerate(program.statements):
        # a drawn program calls its variables p to z, and its arguments a to c
        made = re.match(r"([p-z]) = ", statement.text)
        if made is None:
            continue
        read = statement.text[made.end() :]
        for name in sorted(set(re.findall(r"\b[a-z]\b", read))):
            renamed = partial(_with_name, made[1], name)
            rest = tuple(map(renamed, program.statements[number + 1 :]))
            yield replace(
                program,
                statements=program.statements[:number] + rest,
                results=tuple(map(renamed, program.results)),
            )


def _with_name(old: str, new: str, part: Statement) -> Statement:
    """Return a statement or result with another name for a variable."""
    return replace(part, text=re.sub(rf"\b{old}\b", new, part.text))


def _simpler_results(program: Program) -> Iterator[Program]:
    """Yield programs that return a plain variable in place of a result."""
    names = dict.fromkeys(re.findall(r"\b[a-cp-z]\b", " ".join(texts_of(program.results))))
    for number, result in enumerate(program.results):
        if result.kind == "value":
            continue
        for name in names:
            simple = Statement("value", name)
            yield replace(program, results=_with(program.results, number, simple))


def _fewer_inputs(program: Program) -> Iterator[Program]:
    """Yield programs without one of the inputs, but with the first."""
    for name in program.names[1:]:
        fewer = partial(_without_input, name)
        yield replace(program, calls=tuple(map(fewer, program.calls)))


def _without_input(name: str, call: Call) -> Call:
    """Return a call without an input, and without the blocks before it that are about it."""
    inputs = tuple(argument for argument in call.inputs if argument.name != name)
    blocks = re.split(r"^(?=with )", call.before, flags=re.MULTILINE)
    kept = [block for block in blocks if f"    {name}." not in block]
    return replace(call, inputs=inputs, before="".join(kept).rstrip())


def _simpler_inputs(program: Program) -> Iterator[Program]:
    """Yield programs with one input of one call simpler: fresh, and no leaf."""
    for number, call in enumerate(program.calls):
        if call.repeats:
            continue
        for index, argument in enumerate(call.inputs):
            for simple in _simpler(argument):
                simpler = replace(call, inputs=_with(call.inputs, index, simple))
                yield replace(program, calls=_repeated(_with(program.calls, number, simpler)))


def _simpler(argument: Input) -> Iterator[Input]:
    """Yield the simplest inputs in place of another one, first with the same flag."""
    # An input that was read from a file of findings has no flag.
    flag = argument.grad or "plain"
    flags: tuple[str, ...] = _SIMPLER_FLAGS[flag]
    # one that is simple already would be itself, and the search would not end
    if argument.text not in _SIMPLE_TEXTS.values():
        flags = (flag, *flags)
    for grad in flags:
        yield replace(argument, text=_SIMPLE_TEXTS[grad], kind="fresh", grad=grad, other="")


def _repeated(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return calls of which those that repeat one have its inputs."""
    updated: list[Call] = []
    for call in calls:
        if call.repeats and updated:
            call = replace(call, inputs=updated[-1].inputs)
        updated.append(call)
    return tuple(updated)


def _without(parts: tuple[T, ...], number: int) -> tuple[T, ...]:
    return parts[:number] + parts[number + 1 :]


def _with(parts: tuple[T, ...], number: int, other: T) -> tuple[T, ...]:
    return (*parts[:number], other, *parts[number + 1 :])
