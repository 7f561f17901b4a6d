"""How collecting, coordinating and running grow with the number of cells:
`python -m benchmarks.scaling`, for docs/scaling.md.

    python -m benchmarks.scaling write FOLDER --cells 1000000
    # a matrix of trivial ops, by `gen generate`
    python -m benchmarks.scaling collect FOLDER --shard 7/50      # pytest collects one shard of it
    python -m benchmarks.scaling simulate FOLDER --chart FILE
    # the coordinator with a simulated pool, and the reading of one worker
    python -m benchmarks.scaling cluster FOLDER --cells 100000
    # empty cells on a cluster of this machine

Times are of the processor, because other processes of a machine stretch the clock.
Memory is resident.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.scaling_chart import Row, chart
from gen.cluster.cell_groups import Selection, groups
from gen.cluster.coordinator import Coordinator, Lost
from gen.cluster.job import Answer, Group
from gen.cluster.output import Output
from gen.run.cell_durations import Durations
from gen.run.inventory import find, imported
from gen.run.results import CellResult, line_of

ROOT = Path(__file__).parent.parent
OPS, CHECKS = 100, 25  # ops of a family, checks; with 4 dtypes and 2 layouts 20,000 cells
DTYPES, LAYOUTS = ("float32", "float64", "complex64", "complex128"), ("transposed", "noncontiguous")
FAMILY = OPS * CHECKS * len(DTYPES) * len(LAYOUTS)
HEADER = {
    "matrix": "simulated",
    "target": "torch",
    "device": "cpu",
    "tier": "full",
    "torch": "2.13.0",
    "narrowed": "no",
}
_ADOPT = 36  # prctl's PR_SET_CHILD_SUBREAPER
POINTS = (10_000, 30_000, 100_000, 300_000, 1_000_000)


def write(folder: Path, cells: int) -> None:
    """Write a matrix of about `cells` cells, and generate its modules."""
    folder.mkdir(parents=True, exist_ok=True)
    families = max(1, round(cells / FAMILY))
    ops = OPS if cells >= FAMILY else max(1, cells * OPS // FAMILY)
    lines = ["def double(x):", "    return x + x", ""]
    text = [
        "version: 1",
        "targets: {default: torch, names: [torch]}",
        "devices: {cpu: {}}",
        "dtypes:",
    ]
    text += [f"  all: [{', '.join(DTYPES)}]", "over: {}", "checks:"]
    for check in range(CHECKS):
        text += [
            f"  forward_{check}:",
            f"    claim: Check {check}.",
            "    pipeline: forward",
            "    against: eager",
            "    dtypes: [all]",
        ]
        text += [f"    over: {{layout: [{', '.join(LAYOUTS)}]}}"]
    text += [
        "tiers:",
        "  smoke: {reduce: smoke}",
        "  default: {reduce: smoke}",
        "  full: {reduce: full}",
        "families:",
    ]
    for family in range(families):
        text += [f"  family{family:03}:", "    dtypes: [all]", "    ops:"]
        for op in range(ops):
            name = f"op_{family:03}_{op:03}"
            lines.append(f"{name} = double")
            text += [
                f"      - op: scaled_ops.{name}",
                "        samples: [{args: [{shape: [2, 2]}]}]",
            ]
    (folder / "scaled_ops.py").write_text("\n".join(lines) + "\n")
    (folder / "matrix.yaml").write_text("\n".join(text) + "\n")
    subprocess.run(
        [sys.executable, "-m", "gen", "generate"], cwd=folder, env=_environment(folder), check=True
    )


def collect(folder: Path, shard: str) -> None:
    """Collect one shard with pytest, and print what it took."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "generated_tests",
        "--collect-only",
        "-qq",
        "-p",
        "gen.run.plugin",
        "-p",
        "no:cacheprovider",
    ]
    command += ["--import-mode=importlib", "--tier", "full", "--target", "torch", "--shard", shard]
    begin = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False
    )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    collected = sum(
        int(line.rpartition(": ")[2])
        for line in done.stdout.splitlines()
        if line.startswith("generated_tests")
    )
    print(
        f"shard {shard}: {collected:,} cells collected in {used.ru_utime + used.ru_stime:.1f} "
        f"s of processor time ({time.perf_counter() - begin:.1f} s by the clock), "
        f"{used.ru_maxrss / 1024:.0f} MB"
    )


class Instant:
    """A pool that answers at once with lines as long as true ones. It has 100 workers."""

    def __init__(self) -> None:
        self._out: deque[tuple[int, Group]] = deque()

    def room(self) -> int:
        return 200

    def submit(self, key: int, group: Group) -> None:
        self._out.append((key, group))

    def finished(self, seconds: float) -> Sequence[tuple[int, Answer | Lost]]:
        key, group = self._out.popleft()
        cells = [
            (
                "passed",
                line_of(
                    CellResult(
                        cell.id,
                        "family",
                        cell.op,
                        cell.dtype,
                        "forward",
                        cell.axes.by_name(),
                        "passed",
                        "",
                        0.0123,
                        4,
                        node,
                    )
                ),
            )
            for node, (_, cell) in zip(group.nodes(), group.cells, strict=True)
        ]
        return [(key, Answer(tuple(cells), frozenset(), {}, 3.0))]


def simulate(folder: Path, picture: Path | None) -> None:
    """Coordinate the first cells of the matrix, more and more of them, each time in a process of
    its own. Prints a table, draws a chart."""
    rows: list[Row] = []
    print(
        "| cells | coordinator: time | a cell | memory | with --resume: "
        "time | memory | worker: time | memory |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for cells in POINTS:
        figures = [_measured("_coordinate", folder, cells, flag) for flag in ("new", "resume")] + [
            _measured("_read", folder, cells, "")
        ]
        (new, memory), (again, more), (worker, resident) = figures
        rows.append((cells, new, memory, again, more, worker, resident))
        print(
            (
                f"| {cells:,} | {new:.1f} s | {1e6 * new / cells:.0f} µs | {memory:.0f} MB | "
                f"{again:.1f} s | {more:.0f} MB | {worker:.1f} s | {resident:.0f} MB |"
            ),
            flush=True,
        )
    if picture is not None:
        picture.write_text(chart(rows))


def _measured(name: str, folder: Path, cells: int, flag: str) -> tuple[float, float]:
    """Seconds of processor time and megabytes of a function of this module in a
    process of its own."""
    code = f"from benchmarks.scaling import {name}; {name}({str(folder)!r}, {cells}, {flag!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env=_environment(folder),
    )
    seconds, megabytes = json.loads(done.stdout)
    return seconds, megabytes


def _report() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))


def _coordinate(folder: str, cells: int, flag: str) -> None:
    """A whole run of `cells` cells, or the end of one that had all but a hundredth of them."""
    root = Path(folder)
    modules = find(["generated_tests"], root)[: -(-cells // FAMILY)]
    with tempfile.TemporaryDirectory() as aside:
        path = Path(aside) / "results.jsonl"
        if flag == "resume":
            child = (
                "from benchmarks.scaling import _write_results; "
                f"_write_results({folder!r}, {cells}, {str(path)!r})"
            )
            subprocess.run(
                [sys.executable, "-c", child], cwd=ROOT, check=True, env=_environment(root)
            )
        output = Output(path, HEADER, resume=flag == "resume")
        line = groups(modules, Selection("full"), Durations(), 3.0, output.has)
        Coordinator(_first(line, cells - output.resumed), Instant(), output, lambda _: None).run()
        output.close(complete=True, whole=True)
    _report()


def _write_results(folder: str, cells: int, path: str) -> None:
    """What a run of `cells` cells left that was stopped after all but a hundredth of them."""
    modules = find(["generated_tests"], Path(folder))[: -(-cells // FAMILY)]
    output = Output(Path(path), HEADER, resume=False)
    line = groups(modules, Selection("full"), Durations(), 3.0, lambda node: False)
    Coordinator(_first(line, cells - cells // 100), Instant(), output, lambda _: None).run()
    output.close(complete=False, whole=True)


def _first(line: Iterator[Group], cells: int) -> Iterator[Group]:
    left = cells
    for group in line:
        if left <= 0:
            return
        yield Group(group.module, group.cells[:left])
        left -= len(group.cells)


def _read(folder: str, cells: int, flag: str) -> None:
    """What a worker does beside its cells: it reads the modules of its groups. One of 100 workers
    reads a hundredth of them."""
    loaded: dict[str, object] = {}
    root = Path(folder)
    modules = find(["generated_tests"], root)[: -(-cells // FAMILY)]
    for module in modules[: len(modules) // 100 + 1]:
        loaded.clear()
        loaded[module.name] = imported(module.path)
    _report()


def cluster(folder: Path, workers: int, cells: int, seconds: float) -> None:
    """Run `cells` empty cells on a cluster of this machine, and print the processor time of all its
    processes for each of them."""
    # what workers leave behind comes here, so that its time is counted
    ctypes.CDLL(None).prctl(_ADOPT, 1)
    folder.mkdir(parents=True, exist_ok=True)
    ops = cells // len(DTYPES)
    (folder / "test_empty.py").write_text(
        "from gen.checks import cases, family, op\n"
        f"OPS = [f'op{{number}}' for number in range({ops})]\n"
        "FAMILY = family('empty', ops={name: {} for name in OPS})\n"
        f"@cases(*(op(name, full='{' '.join(DTYPES)}') for name in OPS))\n"
        "def test_forward(case):\n    case.compared = 1\n"
    )
    results = folder / "results.jsonl"
    command = [
        sys.executable,
        "-m",
        "gen",
        "run",
        "test_empty.py",
        "--cluster",
        f"local:{workers}",
        "--tier",
        "full",
        "--target",
        "torch",
    ]
    command += ["--group-seconds", str(seconds), "--results", str(results)]
    print(
        (
            "| cells done | coordinator and scheduler | a Dask worker | its process that starts "
            "cells | the process of a cell |\n"
        )
        + "|---" * 5
        + "|"
    )
    begin = time.perf_counter()
    with subprocess.Popen(command, cwd=folder, env=_environment(folder)) as run:
        shown = 0
        while run.poll() is None:
            time.sleep(0.2)
            done = sum(1 for _ in results.open()) - 1 if results.exists() else 0
            if done * 5 >= cells * (shown + 1):
                shown = done * 5 // cells
                print(
                    f"| {done:,} | "
                    + " | ".join(f"{size:.0f} MB" for size in _resident(run.pid))
                    + " |",
                    flush=True,
                )
    wall = time.perf_counter() - begin
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = used.ru_utime + used.ru_stime
    print(
        f"{cells:,} empty cells on {workers} workers: "
        f"{wall:.0f} s, {busy:.0f} s of processor time, {1000 * busy / cells:.2f} ms a cell"
    )


def _resident(coordinator: int) -> list[float]:
    """Megabytes of the coordinator, and the largest of each kind of process below it: Dask's
    workers, what they start, what that forks."""
    sizes: list[float] = []
    generation = {coordinator}
    while generation:
        sizes.append(max(map(_megabytes, generation)))
        generation = {process for process, parent in _parents().items() if parent in generation}
    return sizes


def _parents() -> dict[int, int]:
    """The parent of each process of this machine."""
    found = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            found[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
    return found


def _megabytes(process: int) -> float:
    try:
        return (
            int(Path(f"/proc/{process}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / 1e6
        )
    except OSError:
        return 0.0


def _environment(folder: Path) -> dict[str, str]:
    paths = [str(ROOT), str(folder), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scaling",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("what", choices=("write", "collect", "simulate", "cluster"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--shard", default="7/50")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--group-seconds", type=float, default=3.0)
    parser.add_argument(
        "--chart", type=Path, metavar="FILE", help="of simulate: write the figures as SVG too"
    )
    given = parser.parse_args()
    folder = given.folder.resolve()
    match given.what:
        case "write":
            write(folder, given.cells)
        case "collect":
            collect(folder, given.shard)
        case "simulate":
            simulate(folder, given.chart)
        case "cluster":
            cluster(folder, given.workers, given.cells, given.group_seconds)


if __name__ == "__main__":
    main()
