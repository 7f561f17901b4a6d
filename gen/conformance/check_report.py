"""Print what a target fulfils of the protocol, and which cells of a matrix its words stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from gen.checks.needed_words import needed_words
from gen.conformance.protocol_check import FAULTY, About, Finding, ProtocolCheck
from gen.conformance.trial_cells import PLAIN_OPS
from gen.language.pipeline import parse
from gen.plan.matrix_plan import load_plan
from gen.targets.lacking_words import FAMILY, word_of

__all__ = ["report"]


def report(name: str, device: str, matrix: Path) -> int:
    """Print what is so of each member and of each word.

    Return 0 if the target fulfils the protocol, else 1. Raises LookupError if there is no such
    target or device, MatrixError for mistakes in the matrix.
    """
    check = ProtocolCheck(name, device)
    try:
        about = check.about()
        print(f"target {name}: {about.kind}, on {device}")
        findings = list(map(_shown, check.findings()))
    finally:
        check.close()
    _print_words(about, matrix)
    faults = list(_faults_of_description(about, name))
    faults += [f"{one.word}: {one.note}" for one in findings if one.state == FAULTY]
    counts = Counter(finding.state for finding in findings)
    said = " · ".join(f"{count} {state}" for state, count in counts.items())
    verb = "does not fulfil" if faults else "fulfils"
    print(f"target {name} {verb} the protocol: {said}")
    for fault in faults:
        print(f"  {fault}")
    return int(bool(faults))


def _shown(finding: Finding) -> Finding:
    """Print a finding as soon as it is there, and return it."""
    print(f"  {finding.word:18} {finding.state:9} {finding.note}".rstrip(), flush=True)
    return finding


def _faults_of_description(about: About, name: str) -> Iterator[str]:
    """Yield what is wrong with the name, the words and the ops of a target."""
    if about.name != name:
        yield f"its `name` is {about.name!r}, and it is known as {name!r}"
    if about.own_ops == ():
        yield f"`op` has none of {', '.join(PLAIN_OPS)}, by which a target is tried"
    for text, near in about.unknown_words():
        hint = f"; did you mean {near!r}?" if near else ""
        yield f"`lacks` has {text!r}, which is no word{hint}"


def _uses_of_words(matrix: Path) -> Counter[str]:
    """Return how many columns of a matrix need each word, and how many rows a family has."""
    if not matrix.is_file():
        return Counter()
    plan = load_plan(matrix)
    counts = Counter(FAMILY + op.family for op in plan.ops)
    for column in plan.columns:
        check = plan.loaded.matrix.checks[column.check]
        stages = parse(check.pipeline).stages
        counts.update(map(word_of, needed_words(stages, column.axes, check.against)))
    return counts


def _print_words(about: About, matrix: Path) -> None:
    """Print the words of a target, and how many columns or rows of the matrix need each."""
    uses = _uses_of_words(matrix)
    words = [f"{text} ({uses[word_of(text)]})" for text in about.lacks]
    print(f"words of `lacks`, with the columns or rows of {matrix} that need each:")
    print(f"  {', '.join(words) or 'none'}")
