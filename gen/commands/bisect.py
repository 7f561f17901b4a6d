"""Run `gen bisect`: find the first commit at which a cell fails.

The commits are checked out in a clone in a temporary folder, which shares the objects of the
repository. So neither the user's files nor his repository change.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gen.dependencies.cell_record import Record
from gen.dependencies.revision import Revision, RevisionError, git, line_of_history
from gen.run.project_defaults import declared
from gen.run.results import CellResult, ResultsError, read
from gen.severity import Severity, severity_of_row

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `gen bisect`."""
    add = parser.add_argument
    add("cell", help="the pytest id of the cell, as the line «reproduce» of a failure has it")
    add("--good", required=True, metavar="REF", help="a commit at which the cell does not fail")
    add("--bad", default="HEAD", metavar="REF", help="one at which it does (default: HEAD)")
    add("--target", help="as of pytest (default: the matrix's targets.default)")
    add("--device", default="cpu", help="as of pytest (default: cpu)")


class BisectError(Exception):
    """The search cannot begin or go on. The message says what to do."""


def run(args: argparse.Namespace) -> int:
    """Print the first commit at which the cell fails.

    Return 0 if there is one, 1 if several may be it, 2 if the input is wrong.
    """
    root = Path.cwd()
    try:
        bad, good = Revision.named(root, args.bad), Revision.named(root, args.good)
        commits = line_of_history(good, bad)
        target = args.target or declared(root).target
        with tempfile.TemporaryDirectory(prefix="bisect-") as folder:
            trial = _Trial.prepared(Path(folder), root, args.cell, (target, args.device))
            last = search([good.commit, *commits], trial.fails)
    except (BisectError, RevisionError, ResultsError) as error:
        print(f"gen bisect: {error}", file=sys.stderr)
        return 2
    for commit in last:
        text = git(bad.repository, "show", "--no-patch", "--format=%h %as %s", commit)
        print(text.decode(errors="replace").strip())
    if len(last) > 1:
        print("one of these is the first at which it fails: the others cannot be asked")
    return int(len(last) > 1)


def search(commits: Sequence[str], fails: Callable[[str], bool | None]) -> list[str]:
    """Return the first commit that fails, with those before it that cannot be asked.

    The first of `commits` must not fail, and the last one must. `fails` returns None for a commit
    that cannot be asked. Raises BisectError if the ends are not as they must be.
    """
    if fails(commits[-1]) is not True:
        raise BisectError("the cell does not fail at --bad; commit what makes it fail")
    if fails(commits[0]) is not False:
        raise BisectError("the cell fails or cannot be asked at --good; name another commit")
    # `low` does not fail and `high` does. Between them are the places that can still be asked: one
    # without an answer is dropped, and the search goes on beside it.
    low, high = 0, len(commits) - 1
    open_places = set(range(1, high))
    while open_places:
        middle = (low + high) / 2
        place = min(open_places, key=lambda one: abs(one - middle))
        answer = fails(commits[place])
        open_places.discard(place)
        if answer is True:
            high = place
        elif answer is False:
            low = place
        open_places = {each for each in open_places if low < each < high}
    return list(commits[low + 1 : high + 1])


@dataclass(frozen=True)
class _Trial:
    """A clone in which one cell runs at one commit after the other.

    The module of the cell is that of the user's folder, so the cell is the same at each commit.
    """

    clone: Path
    root: Path  # the folder of the matrix, in the clone
    repository: Path  # the user's
    module: Path  # of the cell, in the user's folder
    cell: str
    settings: tuple[str, str]  # target and device

    @classmethod
    def prepared(cls, folder: Path, root: Path, cell: str, settings: tuple[str, str]) -> _Trial:
        """Return a trial in a new clone below `folder`.

        The clone shares the objects of the repository, so it takes no time and little space. A
        second working tree of the repository would leave an entry in it if the search is killed.
        """
        module, _, node = cell.partition("::")
        if not node or not (root / module).is_file():
            raise BisectError(f"{cell}: no pytest id of a file here, as FILE::TEST[CELL]")
        repository = Revision.named(root, "HEAD").repository
        clone = folder / "clone"
        git(repository, "clone", "--quiet", "--shared", "--no-checkout", ".", str(clone))
        place = clone / os.path.relpath(root.resolve(), repository)
        return cls(clone, place, repository, (root / module).resolve(), cell, settings)

    def fails(self, commit: str) -> bool | None:
        """Return whether the cell fails at a commit. None if it cannot be asked there."""
        git(self.clone, "checkout", "--quiet", "--force", "--detach", commit)
        git(self.clone, "clean", "--quiet", "--force", "-d", "-x")
        result = self._result()
        word = "cannot be asked" if result is None else result.outcome
        severity = None if result is None else severity_of_row(result.outcome, result.severity)
        print(f"{commit[:10]} {word}", file=sys.stderr, flush=True)
        if result is None or severity is Severity.UNASKED:
            return None
        return severity is not None

    def _result(self) -> CellResult | None:
        """Run the cell. Return what came of it, or None if pytest did not come to it.

        That is so if the commit lacks the package, or a module of the cell does not import there.
        """
        module = self.root / self.cell.partition("::")[0]
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_bytes(self.module.read_bytes())
        target, device = self.settings
        results = self.clone.parent / "results.jsonl"
        results.unlink(missing_ok=True)
        words = ("--target", target, "--device", device, "--results", str(results))
        command = ("pytest", "-q", "-p", "gen.run.plugin", "-p", "no:cacheprovider", *words)
        subprocess.run(
            # --since HEAD: to learn which files the cell has run
            [sys.executable, "-m", *command, "--since", "HEAD", self.cell],
            cwd=self.root,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            check=False,
        )
        if not results.is_file():
            return None
        self._require_own_files()
        cells = [cell for cell in read(results).cells if cell.node == self.cell]
        return cells[0] if cells else None

    def _require_own_files(self) -> None:
        """Raise BisectError if the cell has run files of the user's folder, not of the commit.

        A package that is installed from that folder is imported from there, whatever is checked
        out in the clone. Then each commit would give the same answer.
        """
        for path in (self.root / ".cache/matrix").glob("dependencies-*.json"):
            for place, _, _ in Record.read(path).facts:
                if Path(place).is_absolute() and Path(place).is_relative_to(self.repository):
                    raise BisectError(
                        f"the cell runs {place} at every commit, since it is installed from there; "
                        "put the folder of the package under `pythonpath` in pytest's settings"
                    )
