"""Scan a package or try entries of it: one JSON line on the standard output for each result.

    python -m gen.packages.worker scan entmax
    python -m gen.packages.worker try entmax < entries.json

What the package prints goes to the standard error. The parent process is in ``session``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Sequence

from gen.packages.scan import Entry, Parameter, scan
from gen.packages.trials import attempt


def entry_from(data: dict[str, object]) -> Entry:
    """Return the entry of its JSON form."""
    for key in ("parameters", "constructor"):
        data[key] = tuple(Parameter(**each) for each in data[key])  # type: ignore[attr-defined]
    return Entry(**data)  # type: ignore[arg-type]


def main(arguments: Sequence[str]) -> None:
    """Run one command."""
    command, package = arguments
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        warnings.simplefilter("ignore")
        result = scan(package)
        if command == "scan":
            print(json.dumps(dataclasses.asdict(result)), file=out, flush=True)
            return
        for data in json.load(sys.stdin):
            trial = attempt(entry_from(data))
            print(json.dumps(dataclasses.asdict(trial)), file=out, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
