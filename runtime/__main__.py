"""`python -m runtime coverage`: what the records know of each op."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m runtime", description="Facts about the runtime.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    coverage = commands.add_parser("coverage", help="a table of ATen ops against vjp, jvp, batch and per-sample rules, from the records")
    coverage.add_argument("--out", type=Path, help="write the page there instead of to the terminal")
    options = parser.parse_args(arguments)
    from .coverage import markdown

    page = markdown()
    if options.out is None:
        print(page)
    else:
        options.out.write_text(page, "utf-8")
        print(f"wrote {options.out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
