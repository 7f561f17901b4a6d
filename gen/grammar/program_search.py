"""Compare a program with the model and with torch, and make what differs as small as it gets.

    search = Search(grammar, levels, seed=0)
    for finding in search.try_number(7):
        print(finding.difference.message, finding.program.text())

The model says what values and gradients a program has. Torch without a compiler says the rest:
strides, flags, shared memory. A level is wrong where it differs from one of both, and where it
raises an error that torch does not raise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gen.grammar.draw import draw
from gen.grammar.drawn_program import Program
from gen.grammar.observation import Observation
from gen.grammar.program_levels import LEVELS
from gen.grammar.program_runs import Level, by_model, by_torch
from gen.grammar.smaller_programs import shrunk, without_call
from gen.grammar.word_tables import Grammar
from gen.severity import Severity, severity_of_error

TOLERANCES = {"double": 1e-8, "single": 1e-4}
_FAULTS = ("INTERNAL ASSERT", "invalid gradient")  # torch's own, which are no refusal of a program


@dataclass(frozen=True)
class Difference:
    """A mistake of a level."""

    level: str
    # A value, a fact or an error, without its place.
    part: str
    message: str
    # The number of the call.
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
    """The smallest program of a difference."""

    program: Program
    difference: Difference
    # the number of the program that it came from
    number: int
    # what the program has that not any program has
    words: frozenset[str]

    def explains(self, words: frozenset[str], difference: Difference) -> bool:
        """Return whether a program that has `words` differs by the same cause: by the same error,
        or alike and with all that this program has."""
        if difference.cause != self.difference.cause:
            return False
        return not difference.says_no_more or self.words <= words


@dataclass
class Search:
    """Draw programs by number, and count them."""

    grammar: Grammar
    levels: Sequence[Level]
    seed: int = 0
    findings: list[Finding] = field(default_factory=list)
    # how many programs were drawn
    run: int = 0
    # How many programs torch or the model refused.
    refused: int = 0
    # How many programs differed just as an earlier finding did.
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
        new = [finding for finding in found if finding is not None]
        self.findings += new
        return new

    def _try_level(self, program: Program, level: Level, number: int) -> Finding | None:
        """Return what is new on a level, as small as it gets. None if nothing is."""
        difference = difference_of(program, level)
        if difference is None:
            return None
        # before it is made smaller, which takes most of the time
        words = essence(program, self.grammar.groups)
        if any(finding.explains(words, difference) for finding in self.findings):
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
    # each round drops a call, so this ends
    while True:
        seen = by_torch(program, eager)
        last = seen[-1]
        if not isinstance(last, Exception) or _is_fault(last):
            return program
        # The error is the last outcome, so its place is the number of the call.
        number = len(seen) - 1
        shorter = without_call(program, number)
        if shorter is None:
            return None
        program = shorter


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
        # torch may have stopped at an error before this call
        plain = seen
        for eager_outcome in eager[number : number + 1]:
            if isinstance(eager_outcome, Observation):
                plain = eager_outcome
        expected = expected_of(level, truth[number], plain)
        message = seen.differs(expected, tolerance_of(program, number))
        if message is not None and not _is_as_wrong(level, seen, plain, number, program):
            return Difference(level.name, _without_places(message), message, number)
    return None


def expected_of(level: Level, truth: Observation, eager: Observation) -> Observation:
    """Return the values of the model, and what it does not know as torch has it."""
    facts = eager.facts if level.keeps_facts else {}
    # the model's values twice: first for their order, results first, and last since they prevail
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
    texts = [program.text(), *[call.text() for call in calls]]
    # the default dtype is float32
    if any("float32" in text or "default_dtype" in text for text in texts):
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


def _of_one_call(program: Program, differs: Callable[[Program], bool], last: int) -> Program:
    """Return the program with the calls that matter: the one that differs, perhaps one before."""
    calls = program.calls[: last + 1]
    # most differences need one call; those of a stale program need one before it, with others
    for first in (len(calls) - 1, *range(len(calls) - 1)):
        few = calls[first : first + 1]
        if first != last:
            few = (*few, calls[last])
        if any(call.repeats for call in few):
            continue
        smaller = replace(program, calls=few)
        if differs(smaller):
            return smaller
    return replace(program, calls=calls)


def _differs_alike(program: Program, level: Level, difference: Difference) -> bool:
    """Return whether a smaller program has a meaning, and a difference of the same cause."""
    try:
        eager = by_torch(program, LEVELS["eager"]())[-1]
        if isinstance(eager, Exception) and not _is_fault(eager):
            return False
        found = difference_of(program, level)
    except Exception:  # without its part the program means nothing: a name is missing
        return False
    return found is not None and found.cause == difference.cause
