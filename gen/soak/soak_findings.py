"""What a soak has found: a cause is one finding, whatever ops show it.

write(Path("soak"), findings, "torch")      # findings.json, rows.yaml, 001_torch_sin.py, …
summary(findings, Path("soak"))             # lines for people, the worst first
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gen.language import pipeline
from gen.severity import Severity
from gen.soak.space import Draw

__all__ = ["Finding", "finding_of", "row", "summary", "write"]

_USUAL = ("contiguous", "ordinary")
_SHOWN = 4  # ops of a cause that a summary names


@dataclass(frozen=True)
class Finding:
    """A cause, by its simplest draw."""

    op: str
    dtype: str
    pipeline: str
    layout: str
    values: str
    against: str
    kind: str
    message: str
    draw: str
    script: str | None = None
    why_no_script: str = ""
    # a word of :class:`gen.severity.Severity`
    severity: str = Severity.WRONG.word
    # the ops that show it
    ops: tuple[str, ...] = ()

    @property
    def is_refusal(self) -> bool:
        """Return whether the target only refuses: it may be right to."""
        return self.severity == Severity.REFUSED.word

    @property
    def first_line(self) -> str:
        """Return the first line of the error."""
        return (self.message.splitlines() or [""])[0]


def finding_of(draw: Draw, against: str = "loop") -> Finding:
    """Return a draw as a finding without an error yet, by the texts that a file has of it."""
    values = "extreme" if draw.extreme else "ordinary"
    return Finding(
        draw.subject.name,
        draw.dtype,
        str(pipeline.Pipeline(draw.stages)),
        draw.layout,
        values,
        against,
        "",
        "",
        str(draw),
    )


def summary(findings: Sequence[Finding], out: Path) -> Iterator[str]:
    """Yield lines for people: how many causes there are, and the ops of each, the worst first."""
    refusals = sum(finding.is_refusal for finding in findings)
    where = f", in {out}" if findings else ""
    yield f"causes: {len(findings) - refusals}, refusals: {refusals}{where}"

    def severity(finding: Finding) -> Severity:
        return Severity.of_word(finding.severity)

    for finding in sorted(findings, key=severity, reverse=True):
        others = finding.ops[_SHOWN:]
        ops = ", ".join(finding.ops[:_SHOWN])
        if others:
            ops = f"{ops} and {len(others)} more"
        yield f"  {finding.severity:8} {ops}: {finding.kind}: {finding.first_line[:120]}"


def write(out: Path, findings: Sequence[Finding], target: str) -> None:
    """Write `findings.json`, `rows.yaml`, and a program for each finding that has one."""
    out.mkdir(parents=True, exist_ok=True)
    data = json.dumps(list(map(asdict, findings)), indent=1)
    (out / "findings.json").write_text(data, encoding="utf-8")
    rows = []
    for number, finding in enumerate(findings, 1):
        rows.append(row(finding, target, number))
        if finding.script is not None:
            name = re.sub(r"\W+", "_", finding.op)
            (out / f"{number:03}_{name}.py").write_text(finding.script, encoding="utf-8")
    (out / "rows.yaml").write_text("\n".join(rows), encoding="utf-8")


def row(finding: Finding, target: str, number: int) -> str:
    """Return the YAML of a check that has the finding as a cell. A person writes the reason."""
    axes = []
    for name in ("layout", "values"):
        value = getattr(finding, name)
        # what is usual is the default of a check
        if value not in _USUAL:
            axes.append(f"    {name}: {value}")
    lines = [
        f"# {finding.draw}",
        f"# target {target}: {finding.kind}: {finding.first_line}",
        "checks:",
        f"  soaked_{number}:",
        f"    claim: {finding.pipeline} of {finding.op} agrees with its reference.",
        f"    pipeline: {finding.pipeline}",
        f"    against: {finding.against}",
        f"    dtypes: [{finding.dtype}]",
        f"    ops: [{finding.op}]",
        *axes,
        "",
    ]
    return "\n".join(lines)
