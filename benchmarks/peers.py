"""The programs of the suite `jit` beside `torch.compile` and, where it is installed, `jax.jit`,
with what it takes to compile them.

    python -m benchmarks --suite compilers --only solve

Each cell is a process of its own with a time limit, as Inductor may take a minute or end by a
signal. Such a cell is an error in the table."""

import importlib
import importlib.util
import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import jitted
from benchmarks.cells import difference
from benchmarks.timing import compare, geometric_mean
from runtime import jit

JAX = "jax.jit"
BACKENDS = ("aot_eager", "inductor", *((JAX,) if importlib.util.find_spec("jax") else ()))
_LIMIT = 180.0  # seconds for one cell


@dataclass(frozen=True)
class Beside:
    """Seconds per call and for the first call, ours and those of `torch.compile` with a backend, or
    of `jax.jit`; or an error."""

    program: str
    transform: str
    backend: str
    ours: float = math.nan
    theirs: float = math.nan
    capture: float = math.nan
    compilation: float = math.nan
    error: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def shown(self) -> str:
        return "[red]error[/red]" if self.error else f"{self.ratio:.2f} · {self.compilation:.1f} s"


def measured(program: str, transform: str, backend: str, seconds: float) -> dict[str, Any]:
    """Both sides of one cell, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    f, x = jitted.programs()[program]
    mine, theirs, args = jitted.both(transform, f, x)
    jitted_mine = jit(mine)
    capture, ours = _first(lambda: jitted_mine(*args))
    if backend == JAX:
        jax_peer = importlib.import_module("benchmarks.jax_peer")
        call, plain = jax_peer.jitted(program, transform, f, args), jax_peer.as_tensors
    else:
        compiled: Any = torch.compile(theirs, backend=backend)
        call, plain = (lambda: compiled(*args)), (lambda results: results)
    compilation, peer = _first(call)
    different = difference(ours, plain(peer))
    if different:
        return {"error": f"the sides disagree: {different}"}
    found = compare(lambda: jitted_mine(*args), call, seconds=seconds)
    return {
        "ours": found.ours,
        "theirs": found.peer,
        "capture": capture,
        "compilation": compilation,
    }


def _first(call: Callable[[], object]) -> tuple[float, object]:
    """The seconds that the first call takes, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def isolated(program: str, transform: str, backend: str, seconds: float) -> Beside:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.peers", program, transform, backend, str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Beside(program, transform, backend, error=f"takes more than {_LIMIT:.0f} s")
    if done.returncode < 0:
        return Beside(program, transform, backend, error=f"ended by signal {-done.returncode}")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        return Beside(program, transform, backend, error=said[-1] if said else "no result")
    return Beside(program, transform, backend, **json.loads(lines[-1]))


def report(console: Console, only: str, seconds: float) -> list[dict[str, Any]]:
    """Print a table for each backend. Each cell: our time ÷ its time, and the seconds of its first
    call. The cells as data."""
    wanted = [
        (program, transform, backend)
        for backend in BACKENDS
        for program in jitted.programs()
        for transform in jitted.TRANSFORMS
        if only.lower() in f"compilers / {backend} / {program} / {transform}".lower()
    ]
    found = [
        isolated(*cell, seconds)
        for cell in track(wanted, description="compiling", console=Console(stderr=True))
    ]
    for backend in dict.fromkeys(b.backend for b in found):
        group = [b for b in found if b.backend == backend]
        peer = backend if backend == JAX else f"torch.compile(backend={backend!r})"
        table = Table(
            title=f"time of jit ÷ {peer}, and how long that compiles", title_justify="left"
        )
        columns = list(dict.fromkeys(b.transform for b in group))
        for column in ("program", *columns):
            table.add_column(column)
        for program in dict.fromkeys(b.program for b in group):
            row = {b.transform: b.shown for b in group if b.program == program}
            table.add_row(program, *(row.get(column, "") for column in columns))
        console.print(table)
        good = [b for b in group if not b.error]
        console.print(
            f"geometric means: ratio {geometric_mean(b.ratio for b in good):.2f}, first call ours "
            f"÷ theirs {geometric_mean(b.capture / b.compilation for b in good):.3f}"
        )
        for b in group:
            if b.error:
                console.print(
                    f"no ratio for {b.backend} / {b.program} / {b.transform}: {b.error}",
                    style="red",
                    markup=False,
                )
    return [vars(b) for b in found]


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))))
