"""``python -m tests.third_party_programs``: run each program on torch and under the drop-in, in two
processes, and compare.

A program whose packages are missing is listed and left out. The exit status is 1 if a program
differs or fails under the drop-in, or if no program ran. The extra ``third-party`` in
pyproject.toml lists the packages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import torch

from .programs import PROGRAMS

ROOT = Path(__file__).parent.parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.third_party_programs", description=__doc__
    )
    parser.add_argument("names", nargs="*", help="run these programs alone (default: all)")
    parser.add_argument(
        "--list", action="store_true", help="list the programs and the packages they need"
    )
    parser.add_argument(
        "--rtol",
        type=float,
        default=1e-4,
        help="relative tolerance of all numbers but tokens (default 1e-4)",
    )
    parser.add_argument(
        "--timeout", type=float, default=300, help="seconds for a program on one side (default 300)"
    )
    options = parser.parse_args()
    unknown = set(options.names) - set(PROGRAMS)
    if unknown:
        parser.error(f"no such program: {', '.join(sorted(unknown))} (--list shows them)")
    ran = bad = 0
    for name, (packages, _) in PROGRAMS.items():
        if options.names and name not in options.names:
            continue
        missing = [p for p in packages if find_spec(p) is None]
        if options.list or missing:
            lacks = "needs " if options.list else "not installed: "
            print(
                f"{name:48} {lacks}{', '.join(packages if options.list else missing)}", flush=True
            )
            continue
        verdict, seconds = compared(name, options.rtol, options.timeout)
        ran, bad = ran + 1, bad + (not verdict.startswith("same"))
        print(
            f"{name:48} {verdict:60} torch {seconds[0]:5.1f} s, runtime {seconds[1]:5.1f} s",
            flush=True,
        )
    if options.list:
        return 0
    print(f"{ran - bad} of {ran} programs give torch's numbers")
    return 1 if bad or not ran else 0


def compared(name: str, rtol: float, timeout: float) -> tuple[str, list[float]]:
    """The result of a comparison of both sides, and the seconds that each took."""
    seconds, results = [], []
    with tempfile.TemporaryDirectory() as folder:
        for side in ("torch", "runtime"):
            file, begin = Path(folder, side), time.perf_counter()
            runner = ["-m", "runtime"] if side == "runtime" else []
            command = [
                sys.executable,
                *runner,
                "-m",
                "tests.third_party_programs.run",
                name,
                str(file),
            ]
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(ROOT),
                "HF_HUB_OFFLINE": "1",
            }
            try:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                )
            except subprocess.TimeoutExpired:
                return f"{side}: more than {timeout:g} s", [0.0, 0.0]
            seconds.append(time.perf_counter() - begin)
            if done.returncode:
                return (
                    f"fails on {side}: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}",
                    [*seconds, 0.0],
                )
            results.append(torch.load(file))
    try:
        torch.testing.assert_close(results[1], results[0], rtol=rtol, atol=rtol / 10)
    except AssertionError as error:
        return f"differs: {' '.join(str(error).split())[:200]}", seconds
    exact = all(
        torch.equal(a, b) for a, b in zip(*results, strict=True) if isinstance(a, torch.Tensor)
    )
    return f"same{', bit for bit' if exact else ''} ({len(results[0])} tensors)", seconds


if __name__ == "__main__":
    raise SystemExit(main())
