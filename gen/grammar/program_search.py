"""Compare a program with the model and with torch, and make what differs as small as it gets.

    for finding in Search(grammar, levels).until(end, seed=0):
        print(finding.text)

The model says what values and gradients a program has. Torch without a compiler says the rest:
strides, flags, shared memory. A level is wrong where it differs from one of both, and where it
raises an error that torch does not raise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gen.grammar.draw import draw
from gen.grammar.drawn_program import Call, Program, Statement
from gen.grammar.observation import Observation
from gen.grammar.program_levels import LEVELS
from gen.grammar.program_runs import Level, by_model, by_torch
from gen.grammar.word_tables import Grammar
from gen.severity import Severity, severity_of_error

TOLERANCES = {"double": 1e-8, "single": 1e-4}
_FAULTS = ("INTERNAL ASSERT", "invalid gradient")  # no answers to a program


@dataclass(frozen=True)
class Difference:
    """What a level does wrong. `part`: a value, a fact or an error, without its place. `call`: the
    number of the call."""

    level: str
    part: str
    message: str
    call: int
    severity: Severity = Severity.WRONG

    @property
    def cause(self) -> tuple[str, str]:
        return self.level, self.part

    @property
    def says_no_more(self) -> bool:
        """Return whether there is no text of an error that tells one cause from another."""
        return self.severity in (Severity.WRONG, Severity.CRASH)


@dataclass(frozen=True)
class Finding:
    """The smallest program of a difference, and the number of the program that it came from.

    `words`: what the program has that not any program has.
    """

    program: Program
    difference: Difference
    number: int
    words: frozenset[str]

    def explains(self, words: frozenset[str], difference: Difference) -> bool:
        """Return whether a program that has `words` differs by the same cause: by the same error,
        or alike and with all that this program has."""
        if difference.cause != self.difference.cause:
            return False
        return not difference.says_no_more or self.words <= words


@dataclass
class Search:
    """Draw programs by number. `run`: how many. `refused`: those that torch or the model refuses.
    `repeated`: those whose difference is that of a finding before."""

    grammar: Grammar
    levels: Sequence[Level]
    seed: int = 0
    findings: list[Finding] = field(default_factory=list)
    run: int = 0
    refused: int = 0
    repeated: int = 0

    def try_number(self, number: int) -> list[Finding]:
        """Return what is new in the program of a number."""
        self.run += 1
        program = draw(self.grammar, self.seed, number)
        plain = program and settled(program)
        if plain is None:
            self.refused += 1
            return []
        found = [self._try_level(plain, level, number) for level in self.levels]
        new = [one for one in found if one is not None]
        self.findings += new
        return new

    def _try_level(self, program: Program, level: Level, number: int) -> Finding | None:
        difference = difference_of(program, level)
        if difference is None:
            return None
        # before it is made smaller, which takes most of the time
        words = essence(program, self.grammar.groups)
        if any(one.explains(words, difference) for one in self.findings):
            self.repeated += 1
            return None
        small = smallest(program, level, difference)
        words = essence(small, self.grammar.groups)
        return Finding(small, difference_of(small, level) or difference, number, words)


def essence(program: Program, groups: Mapping[str, str]) -> frozenset[str]:
    """Return the words of a program, and of its statements the groups. Those that any program may
    have are left out."""
    words = program.kinds() - _USUAL
    statements = {word for word in words if word.startswith("statement ")}
    of_groups = {f"group {groups[word.removeprefix('statement ')]}" for word in statements}
    return frozenset((words - statements) | of_groups)


_USUAL = frozenset(
    (
        "input fresh",
        "call first",
        "call again",
        "call repeated",
        "result value",
        "result argument",
        "statement scale",
        "statement clone",
        "statement name",
    )
)


def settled(program: Program) -> Program | None:
    """Return the program without the calls that torch refuses. None if it refuses the first."""
    eager = LEVELS["eager"]()
    while True:
        last = by_torch(program, eager)[-1]
        if not isinstance(last, Exception) or _is_fault(last):
            return program
        number = len(by_torch(program, eager)) - 1
        shorter = _without_call(program, number)
        if shorter is None:
            return None
        program = shorter


def _without_call(program: Program, number: int) -> Program | None:
    """Return the program without a call, and those that repeat it. None without a first call."""
    if number == 0:
        return None
    calls = list(program.calls)
    del calls[number]
    # what repeats a call has its inputs, which are gone
    while number < len(calls) and calls[number].repeats and number > 0:
        del calls[number]
    return replace(program, calls=tuple(calls))


def difference_of(program: Program, level: Level) -> Difference | None:
    """Return what a level does wrong. None if nothing. ``Refused`` if the program means nothing."""
    truth = by_model(program)
    eager = by_torch(program, LEVELS["eager"]())
    for number, seen in enumerate(by_torch(program, level)):
        if isinstance(seen, Exception):
            if level.name != "eager" and isinstance(eager[-1], Exception):
                return None
            part, severity = _part_of_error(seen), severity_of_error(seen)
            return Difference(level.name, part, _first_line(seen), number, severity)
        plain = next((one for one in eager[number:][:1] if isinstance(one, Observation)), seen)
        expected = expected_of(level, truth[number], plain)
        message = seen.differs(expected, tolerance_of(program, number))
        if message is not None and not _is_as_wrong(level, seen, plain, number, program):
            return Difference(level.name, _without_places(message), message, number)
    return None


def expected_of(level: Level, truth: Observation, eager: Observation) -> Observation:
    """Return the values of the model, and what it does not know as torch has it."""
    facts = eager.facts if level.keeps_facts else {}
    # the results come first, as the model has them
    return Observation({**truth.values, **eager.values, **truth.values}, facts)


def _is_as_wrong(
    level: Level, seen: Observation, eager: Observation, number: int, program: Program
) -> bool:
    """Return whether a level gives what torch gives without it: a finding of ``eager`` alone."""
    if level.name == "eager":
        return False
    facts = eager.facts if level.keeps_facts else {}
    alike = Observation(eager.values, facts)
    return seen.differs(alike, tolerance_of(program, number)) is None


def tolerance_of(program: Program, number: int) -> float:
    """Return how far numbers of a call may be apart. A module keeps what earlier calls rounded."""
    calls = program.calls[: number + 1]
    if any("float32" in text for text in (program.text(), *[call.text() for call in calls])):
        return TOLERANCES["single"]
    return max(TOLERANCES[call.dtype] for call in calls)


def _is_fault(error: Exception) -> bool:
    return any(word in str(error) for word in _FAULTS)


def _first_line(error: Exception) -> str:
    """Return the first line that says something: that of a compiler names the backend alone."""
    lines = [line for line in str(error).splitlines() if line and not line.endswith("raised:")]
    return f"{type(error).__name__}: {next(iter(lines), '')}"


def _part_of_error(error: Exception) -> str:
    """Return the error without numbers, names and quotations."""
    return re.sub(r"""\d+|'[^']*'|"[^"]*"|\[[^\]]*\]|0x\w+""", "…", _first_line(error))[:100]


def _without_places(message: str) -> str:
    """Return what a message is about: ``gradient of leaf``, ``geometry of result``."""
    words = message.partition(":")[0].split()
    kept = [word for word in words if not re.fullmatch(r"[\w.]*\d[\w.]*|[abc]", word)]
    return " ".join(kept)


# --- smaller programs -----------------------------------------------------------------------------


def smallest(program: Program, level: Level, difference: Difference) -> Program:
    """Return the smallest program that differs alike."""

    def differs(smaller: Program) -> bool:
        return _differs_alike(smaller, level, difference)

    return shrunk(_of_one_call(program, differs, difference.call), differs)


def shrunk(program: Program, differs: Callable[[Program], bool]) -> Program:
    """Return the smallest program of which `differs` is true.

    Each step leaves out or simplifies a part, and starts again with what is left.
    """
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(program):
            if differs(smaller):
                program, changed = smaller, True
                break
    return program


def _of_one_call(program: Program, differs: Callable[[Program], bool], last: int) -> Program:
    """Return the program with the calls that matter: the one that differs, perhaps one before."""
    calls = program.calls[: last + 1]
    # most differences need one call; those of a stale program need one before it, with others
    for first in (len(calls) - 1, *range(len(calls) - 1)):
        few = (calls[first], *calls[last:][: first != last])
        if any(call.repeats for call in few):
            continue
        smaller = replace(program, calls=few)
        if differs(smaller):
            return smaller
    return replace(program, calls=calls)


def _differs_alike(program: Program, level: Level, difference: Difference) -> bool:
    try:
        eager = by_torch(program, LEVELS["eager"]())[-1]
        if isinstance(eager, Exception) and not _is_fault(eager):
            return False
        found = difference_of(program, level)
    except Exception:  # without its part the program means nothing: a name is missing
        return False
    return found is not None and found.cause == difference.cause


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs with one part less, or a simpler one."""
    # the order matters: a call less makes all further tries faster
    for number in reversed(range(1, len(program.calls))):
        shorter = _without_call(program, number)
        if shorter is not None:
            yield shorter
    if len(program.calls) > 1 and not program.calls[1].repeats:
        yield replace(program, calls=program.calls[1:])
    for number in reversed(range(len(program.statements))):
        rest = program.statements[:number] + program.statements[number + 1 :]
        yield replace(program, statements=rest)
    for number in reversed(range(len(program.results))):
        if len(program.results) > 1:
            rest = program.results[:number] + program.results[number + 1 :]
            yield replace(program, results=rest)
    yield from _joined_statements(program)
    yield from _simpler_results(program)
    yield from _fewer_inputs(program)
    yield from _simpler_inputs(program)


def _joined_statements(program: Program) -> Iterator[Program]:
    """Yield programs without a statement, whose result is another variable that it reads."""
    for number, statement in enumerate(program.statements):
        made = re.match(r"([p-z]) = ", statement.text)
        if made is None:
            continue
        for name in sorted(set(re.findall(r"\b[a-z]\b", statement.text[made.end() :]))):
            renamed = partial(_with_name, made[1], name)
            rest = map(renamed, program.statements[number + 1 :])
            results = map(renamed, program.results)
            yield replace(
                program,
                statements=(*program.statements[:number], *rest),
                results=tuple(results),
            )


def _with_name(old: str, new: str, part: Statement) -> Statement:
    return replace(part, text=re.sub(rf"\b{old}\b", new, part.text))


def _simpler_results(program: Program) -> Iterator[Program]:
    """Yield programs that return a plain variable in place of a result."""
    names = re.findall(r"\b[a-cp-z]\b", " ".join(one.text for one in program.results))
    for number, result in enumerate(program.results):
        for name in dict.fromkeys(names):
            if result.text != name and result.kind != "value":
                simple = Statement("value", name)
                results = (*program.results[:number], simple, *program.results[number + 1 :])
                yield replace(program, results=results)


def _fewer_inputs(program: Program) -> Iterator[Program]:
    for name in program.names[1:]:
        calls = []
        for call in program.calls:
            inputs = tuple(one for one in call.inputs if one.name != name)
            before = "\n".join(
                part for part in call.before.split("with ") if f"    {name}." not in part
            )
            calls.append(replace(call, inputs=inputs, before=before))
        yield replace(program, calls=tuple(calls))


def _simpler_inputs(program: Program) -> Iterator[Program]:
    """Yield programs with one input of one call simpler: fresh, and no leaf."""
    for c, call in enumerate(program.calls):
        if call.repeats:
            continue
        for i, one in enumerate(call.inputs):
            for text, kind, grad in _simpler_texts(one.text, one.kind, one.grad):
                simple = replace(one, text=text, kind=kind, grad=grad, other="")
                inputs = (*call.inputs[:i], simple, *call.inputs[i + 1 :])
                calls = (*program.calls[:c], replace(call, inputs=inputs), *program.calls[c + 1 :])
                yield replace(program, calls=_repeated(calls))


def _simpler_texts(text: str, kind: str, grad: str) -> Iterator[tuple[str, str, str]]:
    fresh = "numbers(2, 3, seed=1)"
    if text not in (fresh, f"leaf({fresh})", f"(leaf({fresh}) * 1)"):
        if grad == "computed":
            yield f"(leaf({fresh}) * 1)", "fresh", "computed"
        if grad == "leaf":
            yield f"leaf({fresh})", "fresh", "leaf"
        yield fresh, "fresh", "plain"
    if text == f"(leaf({fresh}) * 1)":
        yield f"leaf({fresh})", "fresh", "leaf"
    if grad != "plain":
        yield fresh, "fresh", "plain"


def _repeated(calls: tuple[Call, ...]) -> tuple[Call, ...]:
    """Return calls of which those that repeat one have its inputs."""
    made: list[Call] = []
    for call in calls:
        made.append(replace(call, inputs=made[-1].inputs) if call.repeats and made else call)
    return tuple(made)
