"""``python -m tests.reports``: wrong answers of torch, as programs.

python -m tests.reports list                      number, name, upstream reports and cell of
                                                  the matrix of each
python -m tests.reports show NAME                 its stand-alone program
python -m tests.reports run [NAME …] [--on runtime] what it gives, on torch or with the runtime in
torch's place; 1 if new
python -m tests.reports page [--out PAGE]         docs/findings.md
python -m tests.reports drawn [--out PAGE]        docs/drawn_findings.md
python -m tests.reports drawn NUMBER              a program of it, as a script
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gen.grammar import finding_of, script_of
from tests.reports.cells import noticed, unnoticed
from tests.reports.drawn import drawn, drawn_page
from tests.reports.page import page
from tests.reports.report import Report, program, reports
from tests.reports.run import Outcome, outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reports", usage=(__doc__ or "").partition("\n\n")[2]
    )
    parser.add_argument("command", choices=["list", "show", "run", "page", "drawn"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--on", choices=["torch", "runtime"], default="torch")
    parser.add_argument(
        "--compiled",
        action="store_true",
        help="run those that compile code too, which takes minutes",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.command == "drawn":
        return _drawn(parser, options)
    return _reported(parser, options)


def _reported(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """List, print or run reports, or write their page."""
    chosen = _chosen(parser, options.names)
    if options.command == "page":
        text = page(reports())
        print(text, end="") if options.out is None else options.out.write_text(
            text, encoding="utf-8"
        )
    elif options.command == "list":
        for entry in chosen:
            cell = noticed().get(entry.number) or f"no cell: {unnoticed()[entry.number]}"
            print(
                f"{entry.number:7} {entry.name}; {', '.join(entry.links) or 'unreported'}; {cell}"
            )
    elif options.command == "show":
        print("\n".join(program(entry) for entry in chosen))
    else:
        return _run(
            chosen
            if options.compiled or options.names
            else [entry for entry in chosen if not entry.compiled],
            options.on,
        )
    return 0


def _chosen(parser: argparse.ArgumentParser, names: list[str]) -> list[Report]:
    """Return the reports of some names, numbers or topics; all without one."""
    known = reports()
    if unknown := set(names) - {
        key for entry in known for key in (entry.name, entry.number, entry.topic)
    }:
        parser.error(f"no such report, number or topic: {', '.join(sorted(unknown))}")
    return [
        entry
        for entry in known
        if not names or {entry.name, entry.number, entry.topic} & set(names)
    ]


def _run(chosen: list[Report], side: str) -> int:
    """Run the reports and say what each gives. 1 if torch mends one, or if the runtime is wrong
    without a reason."""
    entries = {entry.name: entry for entry in chosen}
    surprises = []

    def tell(result: Outcome) -> None:
        entry = entries[result.name]
        mended = (
            side == "torch" and result.verdict == "right" and entry.is_here and not entry.is_mended
        )
        wrong = (
            side == "runtime"
            and result.verdict != "right"
            and not entry.kernel
            and not entry.runtime
        )
        surprises.extend([entry.number] if mended or wrong else [])
        print(
            f"{entry.number:7} {result.name}: "
            f"{result.verdict}{', which is new' if mended or wrong else ''}"
        )
        if result.verdict == "error" or len(chosen) < 30:
            print("    " + result.text.strip().replace("\n", "\n    "), flush=True)

    outcomes(chosen, "runtime" if side == "runtime" else "torch", tell)
    return 1 if surprises else 0


def _drawn(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Print or write the page of drawn programs, or print some of them as scripts."""
    if unknown := set(options.names) - set(drawn()):
        parser.error(f"no such drawn program: {', '.join(sorted(unknown))}")
    findings = [finding_of(drawn()[number]) for number in options.names]
    text = "\n".join(script_of(one.program, one.difference) for one in findings) or drawn_page()
    if options.out is None:
        print(text, end="")
    else:
        options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
