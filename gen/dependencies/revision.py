"""Ask git which files differ from a commit, and what a file was there."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

__all__ = [
    "Revision",
    "RevisionError",
    "files_now",
    "git",
    "line_of_history",
    "repository_of",
]


class RevisionError(ValueError):
    """Raised if git does not know what is asked for. The message says what to do."""


def repository_of(folder: Path) -> Path:
    """Return the top folder of the repository that has `folder`. Raises RevisionError if none
    has.
    """
    return Path(git(folder, "rev-parse", "--show-toplevel").decode().strip())


@dataclass(frozen=True)
class Revision:
    """A commit of a repository, beside the files as they are now."""

    repository: Path
    # what a person calls the commit, such as ``main``
    name: str
    # the id of the commit
    commit: str
    _texts: dict[str, bytes | None] = field(default_factory=dict, repr=False)

    @classmethod
    def named(cls, folder: Path, name: str) -> Revision:
        """Return the commit of a name. Raises RevisionError for one that git does not know."""
        repository = repository_of(folder)
        # ^{commit}: a tag is an object of its own. --end-of-options: a name may begin with a dash.
        asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        known = _answer(repository, *asked)
        if known is None:
            raise RevisionError(
                f"{name!r} is no commit of {repository}; name a branch, a tag or a commit, "
                "and fetch it first"
            )
        return cls(repository, name, known.decode().strip())

    @cached_property
    def changed(self) -> frozenset[str]:
        """Return the paths that differ from the commit, by the names that git has for them.

        Files that git neither has nor ignores count, and those that are deleted.
        """
        # --no-renames: of a file that moved, both of its names differ
        tracked = _paths(self.repository, "diff", "--name-only", "--no-renames", self.commit, "--")
        added = _paths(self.repository, "ls-files", "--others", "--exclude-standard")
        return frozenset(tracked + added)

    def text(self, path: str) -> bytes | None:
        """Return what a file was at the commit. None if it was not there."""
        if path not in self._texts:
            self._texts[path] = _answer(
                self.repository, "cat-file", "blob", f"{self.commit}:{path}"
            )
        return self._texts[path]

    @cached_property
    def files(self) -> frozenset[str]:
        """Return all paths of the commit."""
        return frozenset(_paths(self.repository, "ls-tree", "-r", "--name-only", self.commit))


def line_of_history(good: Revision, bad: Revision) -> list[str]:
    """Return the commits after `good` up to `bad`, oldest first. Of a merge, the line goes on with
    its first parent.

    Raises RevisionError if `bad` does not come after `good`.
    """
    chosen = ("--first-parent", "--reverse", f"{good.commit}..{bad.commit}")
    commits = git(bad.repository, "rev-list", *chosen).decode().split()
    is_before = _answer(bad.repository, "merge-base", "--is-ancestor", good.commit, bad.commit)
    if is_before is None or not commits:
        raise RevisionError(f"{bad.name} does not come after {good.name}")
    return commits


def files_now(repository: Path) -> frozenset[str]:
    """Return the paths of the files that are there, and that git has or does not ignore."""
    asked = ("ls-files", "--cached", "--others", "--exclude-standard")
    return frozenset(path for path in _paths(repository, *asked) if (repository / path).exists())


def _paths(repository: Path, command: str, *words: str) -> list[str]:
    # -z: by default git quotes names with blanks and letters beyond ASCII
    output = git(repository, command, "-z", *words).decode("utf-8", "surrogateescape")
    return [path for path in output.split("\0") if path]


def git(folder: Path, *words: str) -> bytes:
    """Return what a command of git prints. Raises RevisionError if it fails."""
    done = _run(folder, *words)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise RevisionError(f"git {words[0]} failed in {folder}: {said}")
    return done.stdout


def _answer(folder: Path, *words: str) -> bytes | None:
    """Return what a command of git prints. None if it fails."""
    done = _run(folder, *words)
    return None if done.returncode else done.stdout


def _run(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-c", "core.quotepath=off", "-C", str(folder), *words]
    try:
        return subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise RevisionError("git is not installed, and knows what has changed") from error
