"""Print what a target fulfils of the protocol, and which cells of a matrix its words stand for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
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
    columns = _columns_by_word(matrix)
    check = ProtocolCheck(name, device)
    try:
        about = check.about()
        print(f"target {name}: {about.kind}, on {device}")
        findings = list(map(_shown, check.findings()))
    finally:
        check.close()
    _print_words(about, columns)
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


def _columns_by_word(matrix: Path) -> Mapping[str, int] | None:
    """Return how many columns of a matrix need each word. None if there is no matrix."""
    if not matrix.is_file():
        return None
    plan = load_plan(matrix)
    counts = Counter(FAMILY + family for family in plan.loaded.matrix.families)
    for column in plan.columns:
        check = plan.loaded.matrix.checks[column.check]
        axes = column.axes.fixed(form=check.form, layout=check.layout, values=check.values)
        needed = needed_words(parse(check.pipeline).stages, axes, tuple(check.against))
        counts.update({word_of(word) or word for word in needed})
    return counts


def _print_words(about: About, columns: Mapping[str, int] | None) -> None:
    """Print the words of a target, and how many columns of the matrix need each."""
    if columns is None:
        print("there is no matrix here that could know words of `lacks`")
        return
    known = {text: columns.get(word_of(text) or text, 0) for text in about.lacks}
    used = [f"{text} ({_columns(text, count)})" for text, count in known.items() if count]
    unused = [text for text, count in known.items() if not count]
    print(f"words of `lacks` that this matrix knows: {', '.join(used) or 'none'}")
    print(f"words that nothing in this matrix needs: {', '.join(unused) or 'none'}")


def _columns(text: str, count: int) -> str:
    """Return how many columns need a word. A word about a family stands for all of its cells."""
    if text.startswith(FAMILY):
        return "a family"
    return f"{count} column{'s' * (count != 1)}"
