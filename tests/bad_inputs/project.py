"""The small project in which bad inputs are tried, and the commands of the project as functions."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest

from gen import cli, report  # noqa: F401
from gen.commands import probe, script, soak  # noqa: F401

# imported once, before the processes of the trials
from gen.plan import catalog
from gen.plan.catalog import SCHEMA, Catalog, Facts
from gen.run import verdict  # noqa: F401
from gen.targets import runtime_target, torch_target  # noqa: F401
from tests.bad_inputs.trial import HERE, MATRIX

FLOATING = ("complex128", "complex64", "float32", "float64")
FACTS = ("autograd", "forward_ad", "gradgrad", "deterministic", "opinfo")
OPS = Catalog.of(
    "2.13.0",
    [
        Facts("torch.sin", "sin", "", "unary", ("bool", "int64", *FLOATING), FLOATING, FACTS),
        Facts("torch.mul", "mul", "", "binary", ("bool", "int64", *FLOATING), FLOATING, FACTS),
        Facts(
            "torch.bitwise_not",
            "bitwise_not",
            "",
            "unary",
            ("bool", "int64"),
            (),
            ("deterministic", "opinfo"),
        ),
    ],
)


def make(folder: Path) -> Path:
    """The project in its own folder below `folder`, where commands may write. Its modules are
    not generated yet."""
    project = folder / "project"
    cache = project / ".cache" / "gen"
    cache.mkdir(parents=True)
    (folder / "temporary").mkdir()
    (cache / f"opinfo-{catalog.torch_version()}-{SCHEMA}.json").write_text(catalog._as_json(OPS))
    (project / "matrix.yaml").write_text(MATRIX)
    shutil.copy(HERE / "mine.py", project / "mine.py")
    return project


def command(text: str) -> int:
    """As :func:`run`. The catalog of torch's ops is the small one of the project, and none of the
    package."""
    catalog.STORED = Path(".cache/none")  # in a process of this one command
    return run(text)


def run(text: str) -> int:
    """Run `gen …` or `pytest …` in the present folder and return its exit code."""
    program, *arguments = shlex.split(text)
    if program == "gen":
        return cli.main(arguments)
    assert program == "pytest", text
    return int(pytest.main(["-p", "gen.run.plugin", "-p", "no:cacheprovider", *arguments]))
