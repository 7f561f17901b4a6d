"""The programs of the suite `jit` beside `torch.compile` and, where it is installed, `jax.jit`,
with what it takes to compile them.

    python -m benchmarks --suite compilers --only solve

Each cell is a process of its own with a time limit, as Inductor may take a minute or end by a
signal. Such a cell is an error in the table. Each stands twice: for jit's replay, and for its
`compiler="auto"` once that has chosen between the replay and native code."""

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
from runtime.aot.compilers.tiered import CALLS
from runtime.jit import explain

JAX = "jax.jit"
BACKENDS = ("aot_eager", "inductor", *((JAX,) if importlib.util.find_spec("jax") else ()))
COMPILERS = ("replay", "auto")
_LIMIT = 180.0  # seconds for one cell
_PAUSE = 0.05  # seconds between calls while native code is compiled


@dataclass(frozen=True)
class Beside:
    """Seconds per call and for the first call, ours and those of `torch.compile` with a backend, or
    of `jax.jit`; or an error. `compiler`: ours. `tier`: what serves where that is "auto"."""

    program: str
    transform: str
    backend: str
    compiler: str
    ours: float = math.nan
    theirs: float = math.nan
    capture: float = math.nan
    compilation: float = math.nan
    error: str = ""
    tier: str = ""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs

    @property
    def shown(self) -> str:
        return "[red]error[/red]" if self.error else f"{self.ratio:.2f} · {self.compilation:.1f} s"


def measured(
    program: str, transform: str, backend: str, compiler: str, seconds: float
) -> dict[str, Any]:
    """Both sides of one cell, in this process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    f, x = jitted.programs()[program]
    mine, theirs, args = jitted.both(transform, f, x)
    jitted_mine = jit(mine, compiler=compiler)
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
    tier = ""
    if compiler == "auto":
        tier = _settled(jitted_mine, args)
    found = compare(lambda: jitted_mine(*args), call, seconds=seconds)
    return {
        "tier": tier,
        "ours": found.ours,
        "theirs": found.peer,
        "capture": capture,
        "compilation": compilation,
    }


def _settled(f: Any, args: Any) -> str:
    """Call `f` until each of its graphs has chosen a tier. Return what they say."""
    for _ in range(CALLS):
        f(*args)
    while True:
        said = [text for found in explain(f).programs for text in found.program.serves]
        if all("the replay: " in text or "native code, " in text for text in said):
            return "; ".join(said)
        time.sleep(_PAUSE)
        f(*args)


def _first(call: Callable[[], object]) -> tuple[float, object]:
    """The seconds that the first call takes, and its result."""
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def isolated(program: str, transform: str, backend: str, compiler: str, seconds: float) -> Beside:
    """The same in a process of its own."""
    cell = (program, transform, backend, compiler)
    command = [sys.executable, "-m", "benchmarks.peers", *cell, str(seconds)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return Beside(*cell, error=f"takes more than {_LIMIT:.0f} s")
    if done.returncode < 0:
        return Beside(*cell, error=f"ended by signal {-done.returncode}")
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        return Beside(*cell, error=said[-1] if said else "no result")
    return Beside(*cell, **json.loads(lines[-1]))


def report(console: Console, only: str, seconds: float) -> list[dict[str, Any]]:
    """Print a table for each backend. Each cell: our time ÷ its time, and the seconds of its first
    call. The cells as data."""
    wanted = [
        (program, transform, backend, compiler)
        for backend in BACKENDS
        for compiler in COMPILERS
        for program in jitted.programs()
        for transform in jitted.TRANSFORMS
        if only.lower() in f"compilers / {backend} / {compiler} / {program} / {transform}".lower()
    ]
    found = [
        isolated(*cell, seconds)
        for cell in track(wanted, description="compiling", console=Console(stderr=True))
    ]
    for group in _groups(found):
        _print(console, group)
    return [vars(b) for b in found]


def _groups(found: list[Beside]) -> list[list[Beside]]:
    """The cells of each backend and compiler of ours."""
    kinds = dict.fromkeys((cell.backend, cell.compiler) for cell in found)
    return [[cell for cell in found if (cell.backend, cell.compiler) == kind] for kind in kinds]


def _title(cell: Beside) -> str:
    """What the table of a backend and a compiler shows."""
    peer = cell.backend
    if cell.backend != JAX:
        peer = f"torch.compile(backend={cell.backend!r})"
    if cell.compiler != "replay":
        return f"time of jit(compiler={cell.compiler!r}) ÷ {peer}"
    return f"time of jit ÷ {peer}, and how long that compiles"


def _print(console: Console, group: list[Beside]) -> None:
    """Print the table of one backend and compiler, the means, and what has no ratio."""
    table = Table(title=_title(group[0]), title_justify="left")
    columns = list(dict.fromkeys(cell.transform for cell in group))
    for column in ("program", *columns):
        table.add_column(column)
    for program in dict.fromkeys(cell.program for cell in group):
        row = {cell.transform: cell.shown for cell in group if cell.program == program}
        table.add_row(program, *(row.get(column, "") for column in columns))
    console.print(table)
    good = [cell for cell in group if not cell.error]
    first_calls = geometric_mean(cell.capture / cell.compilation for cell in good)
    console.print(
        f"geometric means: ratio {geometric_mean(cell.ratio for cell in good):.2f}, "
        f"first call ours ÷ theirs {first_calls:.3f}"
    )
    for cell in group:
        if cell.error:
            place = f"{cell.backend} / {cell.compiler} / {cell.program} / {cell.transform}"
            console.print(f"no ratio for {place}: {cell.error}", style="red", markup=False)


if __name__ == "__main__":
    named, transformed, beside, by, duration = sys.argv[1:]
    print(json.dumps(measured(named, transformed, beside, by, float(duration))))
