"""Write the page and the table of who calls which overload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from gen.dispatcher.overload_coverage import STATES, Coverage
from gen.dispatcher.overload_reasons import Reason

__all__ = ["page", "table"]

_HEAD = """# What of torch's dispatcher the matrix calls

`matrix-gen coverage` counts it while cells run. torch's profiler observes each call of the
dispatcher, in each thread, and names ops that are composed of others too. What a check itself
calls, such as to make a buffer, does not count. Written by:

    {command}

An overload is *called* if the target itself calls it, inside of no other op, in a cell that
compares what comes of it. It is *within* if another op of the target calls it, and *other* if a
reference, a sample or a comparison does. `docs/dispatcher.json` has the rows and checks.

"""


def table(coverage: Coverage) -> str:
    """Return the counts by family as text."""
    return "\n".join(_table(coverage.counts()))


def _table(counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    """Yield the lines of the table, the largest family first."""
    yield "| family | overloads | " + " | ".join(STATES) + " |"
    yield "|---|---|" + "---|" * len(STATES)
    total: Counter[str] = Counter()
    for family, states in sorted(counts.items(), key=lambda item: -item[1].total()):
        yield _line(family, states)
        total += states
    yield _line("all", total)


def _line(family: str, states: Counter[str]) -> str:
    """Return the line of a family: `| out= | 749 | 709 | 3 | 0 | 16 | 21 |`."""
    cells = " | ".join(str(states[state]) for state in STATES)
    return f"| {family} | {states.total()} | {cells} |"


def page(coverage: Coverage, command: str) -> str:
    """Return the page: counts, reasons, and the overloads that are open."""
    called, due = coverage.share()
    with_kernel = coverage.share_with_kernel()
    lines = [
        _HEAD.format(command=command) + table(coverage),
        "",
        f"Of the {due} overloads without a reason, the target calls {called} ({called / due:.1%}). "
        f"Of all {with_kernel[1]} that have a kernel for the CPU or one composed of others, it "
        f"calls {with_kernel[0]} ({with_kernel[0] / with_kernel[1]:.1%}).",
        "",
        "## Reasons",
        "",
        *_reasons(coverage),
        "",
        "## Not called by the target itself",
        "",
        *_open(coverage),
    ]
    return "\n".join(lines) + "\n"


def _reasons(coverage: Coverage) -> Iterator[str]:
    """Yield a line for each reason, with the overloads that it excuses."""
    names: dict[str, list[str]] = {}
    for overload in coverage.overloads.values():
        if overload.state == "excused" and overload.reason is not None:
            names.setdefault(_heading(overload.reason), []).append(overload.name)
    yield from _lists(names)


def _heading(reason: Reason) -> str:
    """Return a reason as the page has it, the same one for all forms of ops without a kernel."""
    text = reason.text
    # such a reason names its op, so that each would have a line of its own
    if text.startswith("made from"):
        text = "made from an op that has no kernel for the CPU"
    return f"{reason.kind}: {text}"


def _open(coverage: Coverage) -> Iterator[str]:
    """Yield a line for each family, with the overloads that the target itself does not call."""
    names: dict[str, list[str]] = {}
    for overload in coverage.overloads.values():
        if overload.state in ("within", "other", "open"):
            heading = f"{overload.family}, {overload.state}"
            names.setdefault(heading, []).append(overload.name)
    yield from _lists(names)


def _lists(names: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a line for each heading: `- **out=, open** (2): `sin.out`, `cos.out``."""
    for heading, listed in sorted(names.items()):
        shown = ", ".join(f"`{name.removeprefix('aten::')}`" for name in listed)
        yield f"- **{heading}** ({len(listed)}): {shown}"
