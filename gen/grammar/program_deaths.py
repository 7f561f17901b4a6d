"""Make a program small that kills its process, each try in a process of its own.

    entry = small_death(program, LEVELS["eager"](), until=time.monotonic() + 60)
    entry.difference.message            # killed by SIGSEGV

Processes are forked, so that each starts with torch in its memory.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import redirect_stderr, redirect_stdout

from gen.grammar.drawn_program import Program
from gen.grammar.program_runs import Level, by_model, by_torch
from gen.grammar.program_search import Difference, Finding, essence
from gen.grammar.smaller_programs import shrunk
from gen.grammar.word_tables import load_grammar
from gen.severity import Severity

_PAUSE = 0.005  # seconds between two questions whether the process has ended


def small_death(
    program: Program, level: Level, number: int, until: float, patience: float = 20.0
) -> Finding | None:
    """Return the finding of a program that kills its process, as small as it gets by a time.

    `until`: of the monotonic clock. `patience`: seconds of one process. None if the program ends
    as a process should.
    """
    death = death_of(program, level, patience)
    if death is None:
        return None

    def dies_alike(smaller: Program) -> bool:
        if time.monotonic() > until or not _has_meaning(smaller):
            return False
        return death_of(smaller, level, patience) == death

    small = shrunk(program, dies_alike)
    last = len(small.calls) - 1
    difference = Difference(level.name, death, death, last, _SEVERITIES.get(death, Severity.CRASH))
    return Finding(small, difference, number, essence(small, load_grammar().groups))


def _has_meaning(program: Program) -> bool:
    """Return whether the model runs a program: without its part it may lack a name."""
    try:
        by_model(program)
    except Exception:
        return False
    return True


_TIME_IS_OVER = "it does not end"
_SEVERITIES = {_TIME_IS_OVER: Severity.SLOW}


def death_of(program: Program, level: Level, patience: float) -> str | None:
    """Return how a process ends that runs a program. None if it ends with or without an error."""
    pid = os.fork()
    if pid == 0:
        _run_and_leave(program, level)  # it does not return
    end = time.monotonic() + patience
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return _words_of(status)
        time.sleep(_PAUSE)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return _TIME_IS_OVER


def _words_of(status: int) -> str | None:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return None


def _run_and_leave(program: Program, level: Level) -> None:
    """Run a program in this process, and end it without what its parent would do at an end.

    The exit status is 0 also after an error: an error is no death.
    """
    faulthandler.disable()  # what it would print is about this process
    try:
        with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere), redirect_stdout(nowhere):
            by_torch(program, level)
    finally:
        os._exit(0)
