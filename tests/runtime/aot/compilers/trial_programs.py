"""Programs for which Inductor fails, and what a program that goes on sees: ``main`` prints it as
JSON. A test runs it as a process."""

from __future__ import annotations

import atexit
import json
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters
from torch._inductor import config

from runtime import jit
from runtime.aot import inductor
from tests.runtime.aot.compilers.failing_pass import WAYS, Failing

X = torch.tensor([0.5, 1.0, 2.0])


def outcome(f: Any) -> str:
    """The error of a call, or what it gives."""
    try:
        return str([round(v, 5) for v in f(X).tolist()])
    except RuntimeError as error:
        return f"RuntimeError: {error}"


def process() -> int:
    """The process for trials that this one has started, or 0."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text()
        except OSError:  # it has ended meanwhile
            continue
        if parent == os.getpid() and "trial_process.py" in command:
            return int(entry.name)
    return 0


def in_a_fork() -> int:
    """The process for trials that a fork of this one has when it exits."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        child = os.fork()
    if not child:
        atexit._run_exitfuncs()
        os.write(write, str(process()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    return int(os.read(read, 100))


def main() -> None:
    seen: dict[str, Any] = {"healthy": outcome(jit(lambda x: x.cos() + 1, compiler="inductor"))}
    seen["process"], seen["in a fork"] = process(), in_a_fork()
    seen["another"] = outcome(jit(lambda x: x.cos() + 2, compiler="inductor"))
    seen["process of another"] = process()
    seen["cache"] = {
        k: v
        for k, v in counters["inductor"].items()
        if k in ("fxgraph_cache_hit", "fxgraph_cache_miss")
    }
    for way in WAYS:
        compiler = partial(inductor, limit=6) if way == "never ends" else "inductor"
        with config.patch(post_grad_custom_post_pass=Failing(way)):
            seen[way] = outcome(jit(lambda x: x.sin() + 1, compiler=compiler))
    with config.patch(post_grad_custom_post_pass=lambda graph: None):
        seen["cannot be sent"] = outcome(jit(lambda x: x.sin() + 1, compiler="inductor"))
    with config.patch(post_grad_custom_post_pass=Failing("raises")):
        seen["raises here"] = outcome(
            jit(lambda x: x.sin() + 1, compiler=partial(inductor, isolated=False))
        )
    seen["afterwards"] = outcome(jit(lambda x: x.sin() + 1, compiler="inductor"))
    seen["last process"] = process()
    print(json.dumps(seen))
