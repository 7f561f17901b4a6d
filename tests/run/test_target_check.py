"""`gen target check` says which members of a target do not fulfil the protocol."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import gen.targets
from gen.cli import main

ROOT = Path(__file__).parents[2]
MODULE = """
import os
import signal

import torch

from gen.targets.lacking_words import WORDS
from gen.targets.torch_target import TorchTarget


class Right(TorchTarget):
    name = "right"
    lacks = frozenset(WORDS) - {"vjp", "vmap"}


class Lists(Right):
    name = "lists"

    def vjp(self, f, *primals):
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda cotangents: list(pullback(cotangents))


class Positional(Right):
    name = "positional"

    def vmap(self, f, in_dims, out_dims):
        return super().vmap(f, in_dims, out_dims)


class Wrong(Right):
    name = "wrong"

    def vjp(self, f, *primals):
        outputs, pullback = super().vjp(f, *primals)
        return outputs, lambda cotangents: tuple(2 * x for x in pullback(cotangents))


class Absent(Right):
    name = "absent"
    vjp = None


class Dies(Right):
    name = "dies"

    def vjp(self, f, *primals):
        os.kill(os.getpid(), signal.SIGSEGV)


class Typo(Right):
    name = "typo"
    lacks = Right.lacks | {"vmpa", "family of_no_matrix"}


class Boxed(Right):
    name = "boxed"

    def forward(self, f):
        return lambda *xs: tuple(x.as_subclass(Own) for x in f(*xs))


class Own(torch.Tensor):
    pass


class Arrays(Right):
    name = "arrays"

    def op(self, name):
        return None


class Misnamed(Right):
    name = "another"


class Broken:
    def __init__(self):
        raise RuntimeError("no driver")
"""
NAMES = (
    *("Right", "Lists", "Positional", "Wrong", "Absent", "Dies", "Typo", "Boxed", "Arrays"),
    *("Misnamed", "Broken"),
)
MATRIX = """\
version: 1
targets:
  names: [torch, {names}]
  import: {{{imports}}}
checks:
  trace: {{claim: As the op., pipeline: trace, against: eager, dtypes: [float64]}}
families:
  unary: {{title: Unary, dtypes: [float64], ops: [torch.sin]}}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with targets, and a matrix that names them."""
    (tmp_path / "own_targets.py").write_text(MODULE)
    imports = ", ".join(f'{name.lower()}: "own_targets:{name}"' for name in NAMES)
    names = ", ".join(name.lower() for name in NAMES)
    (tmp_path / "matrix.yaml").write_text(MATRIX.format(names=names, imports=imports))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    gen.targets.declare({})


def check(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["target", "check", name])
    printed = capsys.readouterr()
    return code, printed.out + printed.err


def test_a_target_that_fulfils_the_protocol_is_tried_by_cells_of_each_member(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = check("right", capsys)
    assert code == 0, said
    assert "target right: own_targets.Right, on cpu" in said
    assert "vjp                ok        4 cells of vjp, vjp . vjp passed" in said
    assert "jvp                lacks" in said
    assert "columns or rows of matrix.yaml that need each:" in said
    assert ", trace (1)," in said
    assert said.splitlines()[-1].startswith("target right fulfils the protocol: 3 ok")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        (
            "lists",
            "vjp: vjp of torch.sin: WrongType: what the second part of the result of `vjp` returns "
            "is a list, and the protocol says a tuple",
        ),
        (
            "positional",
            "vmap: its signature is vmap(f, in_dims, out_dims), and it is called as "
            "vmap(f, in_dims): missing a required argument: 'out_dims'",
        ),
        ("wrong", "vjp: vjp of torch.sin: vjp(torch.sin): output 0 of 1, float64[3, 4]: largest"),
        ("absent", "vjp: the target has no method `vjp`, and `lacks` has no word `vjp`"),
        ("dies", "vjp: the process that tried it: SIGSEGV after"),
        ("typo", "`lacks` has 'vmpa', which is no word; did you mean 'vmap'?"),
        (
            "boxed",
            "forward: forward of torch.sin: WrongType: element 0 of what the result of `forward` "
            "returns is a own_targets.Own, and the protocol says a plain torch.Tensor",
        ),
        ("arrays", "`op` has none of torch.sin, torch.exp, torch.tanh, torch.add, torch.mul"),
        ("misnamed", "its `name` is 'another', and it is known as 'misnamed'"),
    ],
)
def test_what_is_wrong_with_a_target_is_named(
    name: str, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = check(name, capsys)
    assert code == 1
    last = said[said.index(f"target {name} does not fulfil the protocol") :]
    assert fault in last
    assert len(last.splitlines()) == 2  # the summary, and this fault alone


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody"], "target check: no target 'nobody'; known: "),
        (
            ["broken"],
            "target check: target 'broken': `targets: import:` names own_targets:Broken, which "
            "does not load (RuntimeError: no driver)",
        ),
        (["right", "--device", "abacus"], "target check: --device abacus: not present here"),
    ],
)
def test_a_target_or_device_that_is_not_there_is_named(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["target", "check", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_page_about_targets_has_the_table_of_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["target", "words"]) == 0
    table = capsys.readouterr().out
    assert table.startswith("| word |") and len(table.splitlines()) > 30
    assert table in (ROOT / "docs/targets.md").read_text("utf-8")
