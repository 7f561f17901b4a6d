"""A small catalogue, so that no test waits for torch's, and a way to try a matrix given as text."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path
from textwrap import dedent

import pytest

from gen.errors import MatrixError
from gen.language import validate
from gen.plan import catalog, expand
from gen.plan.catalog import Catalog, Facts
from gen.plan.expand import Plan

DATA = Path(__file__).parent / "data"
TODAY = date(2026, 6, 1)
FLOATING = ("complex128", "complex64", "float32", "float64")
SMOOTH = ("autograd", "forward_ad", "gradgrad", "deterministic", "opinfo")


def facts(
    name: str, kind: str, dtypes: tuple[str, ...], differentiable: tuple[str, ...], *more: str
) -> Facts:
    have = (*(SMOOTH if differentiable else ("deterministic", "opinfo")), *more)
    return Facts(name, name.removeprefix("torch."), "", kind, dtypes, differentiable, have)


SMALL = Catalog.of(
    "2.13.0",
    [
        facts("torch.sin", "unary", ("bool", "int64", *FLOATING), FLOATING, "inplace", "out"),
        facts("torch.mul", "binary", ("bool", "int64", *FLOATING), FLOATING, "inplace", "errors"),
        facts("torch.linalg.eig", "other", FLOATING, FLOATING, "errors"),
        facts("torch.linalg.det", "other", FLOATING, FLOATING),
        facts("torch.bitwise_not", "unary", ("bool", "int64"), (), "inplace"),
    ],
)

Expand = Callable[[str], Plan]
Mistakes = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def _small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "load", lambda cache, wanted=None: SMALL)


@pytest.fixture
def small() -> Catalog:
    """The small catalogue itself."""
    return SMALL


@pytest.fixture
def plan() -> Plan:
    """The example matrix of tests/gen/data, expanded."""
    return expand.expand(validate.load(DATA / "matrix.yaml"), SMALL, TODAY)


@pytest.fixture
def expanded(tmp_path: Path) -> Expand:
    """Text of a matrix -> its cells."""

    def run(text: str) -> Plan:
        path = tmp_path / "matrix.yaml"
        path.write_text(dedent(text))
        return expand.expand(validate.load(path, "matrix.yaml"), SMALL, TODAY)

    return run


@pytest.fixture
def mistakes(expanded: Expand) -> Mistakes:
    """Text of a matrix -> every message about it."""

    def run(text: str) -> list[str]:
        try:
            expanded(text)
        except MatrixError as error:
            return str(error).splitlines()
        return []

    return run
