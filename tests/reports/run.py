"""Run reports, each with torch or with the runtime in torch's place, in processes of their own: a
wrong kernel may end the process.

``python -m tests.reports.run torch|runtime NAME …`` is such a process. It prints one line of JSON
for each report."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from tests.reports.report import Report, by_process, program, reports, same

Side = Literal["torch", "runtime"]
ROOT = Path(__file__).parent.parent.parent
TIMEOUT = 300  # seconds of a process


@dataclass(frozen=True)
class Outcome:
    """What became of a report on one side: its answer is right, wrong, or an error."""

    name: str
    verdict: Literal["right", "wrong", "error"]
    text: str


def outcome(entry: Report) -> Outcome:
    """Run a report in this process, as it is printed for others."""
    names: dict[str, Any] = {"__name__": "reported"}
    try:
        torch.manual_seed(0)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(compile(program(entry), f"<{entry.name}>", "exec"), names)
    except Exception as error:
        return Outcome(entry.name, "error", f"{type(error).__name__}: {error}"[:1000])
    return Outcome(
        entry.name,
        "right" if same(names["actual"], names["expected"], entry.rtol) else "wrong",
        said.getvalue()[:1000],
    )


def outcomes(
    entries: Iterable[Report], side: Side, each: Callable[[Outcome], object] = id
) -> dict[str, Outcome]:
    """The outcome of every report, by its name. A process that dies costs its report, and the rest
    go on in another."""
    found: dict[str, Outcome] = {}
    for group in by_process(entries):
        left = [entry.name for entry in group]
        while left:
            for result in _process(left, side):
                found[result.name] = result
                each(result)
            left = [name for name in left if name not in found]
    return found


def _process(names: list[str], side: Side) -> Iterator[Outcome]:
    command = [sys.executable, "-m", "tests.reports.run", side, *names]
    # A program that reads memory which nobody has filled may find the right answer of an earlier
    # call. glibc writes other bytes into memory that is given back.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_PERTURB_": "85"}
    try:
        ended = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT, cwd=ROOT, env=environment
        )
        out, said, how = (
            ended.stdout,
            ended.stderr,
            f"the process ended with status {ended.returncode}",
        )
    except subprocess.TimeoutExpired as late:
        out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        said, how = "", f"the process took more than {TIMEOUT} s"
    done = [Outcome(**json.loads(line)) for line in out.splitlines() if line.startswith('{"name"')]
    yield from done
    if len(done) < len(names):
        yield Outcome(names[len(done)], "error", f"{how}: {said[-500:]}")


def main(side: str, names: list[str]) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    entries = {entry.name: entry for entry in reports()}
    context: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if side == "runtime":
        from runtime import dropin

        context = dropin.installed(compile="jit")
    with context:
        for name in names:
            print(json.dumps(asdict(outcome(entries[name]))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
