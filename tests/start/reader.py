"""Do what a page says, in a folder of one's own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.start.page import Run, Step, Write

ROOT = Path(__file__).parents[2]


@dataclass
class Reader:
    """A reader in `folder`, whose commands find the project as if it were installed."""

    folder: Path

    def __post_init__(self) -> None:
        self._home = self.folder
        self._commands = self.folder / ".bin"
        self._commands.mkdir()
        program = self._commands / "matrix-gen"
        program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m gen "$@"\n')
        program.chmod(0o755)

    def follow(self, step: Step) -> None:
        """Do one step. Raises AssertionError if a command prints something else."""
        if isinstance(step, Write):
            step.into(self.folder)
        elif step.command.startswith("cd "):
            self.folder = self.folder / step.command.removeprefix("cd ")
        else:
            self._run(step)

    def _run(self, step: Run) -> None:
        tools = [self._commands, Path(sys.executable).parent]
        done = subprocess.run(
            ["/bin/sh", "-c", step.command],
            cwd=self.folder,
            env={
                **os.environ,
                "PATH": os.pathsep.join([*map(str, tools), os.environ["PATH"]]),
                "PYTHONPATH": os.pathsep.join(map(str, (self._home, self.folder, ROOT))),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert step.pattern.search(done.stdout), f"{step.command} prints:\n{done.stdout}"
