"""Run `gen catalog`: write the facts of the OpInfo database of the installed torch to a file."""

from __future__ import annotations

import argparse
from pathlib import Path

from gen.plan import catalog

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen catalog`."""
    parser.add_argument(
        "--out",
        type=Path,
        default=catalog.stored_at(catalog.torch_version()),
        metavar="FILE",
        help="where to write it (default: the catalogs of this package)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the catalog. Return the exit code 0."""
    facts = catalog.build()
    catalog.write(facts, args.out)
    print(f"{args.out}: {len(facts.ops)} ops of torch {facts.torch}")
    return 0
