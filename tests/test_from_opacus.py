"""The programs of docs/from_opacus.md run, and those of a section leave the same weights."""

from __future__ import annotations

import importlib.util
import re
import textwrap
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

PAGE = Path(__file__).parent.parent / "docs/from_opacus.md"
OPACUS = importlib.util.find_spec("opacus") is not None
ACCOUNTANT = importlib.util.find_spec("dp_accounting") is not None
_BLOCK = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+", re.MULTILINE)


def sections() -> dict[str, str]:
    """The text below each heading."""
    heads = re.split(r"^## (.*)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    return {"": heads[0], **dict(zip(heads[1::2], heads[2::2], strict=True))}


def programs_in(text: str, whose: str) -> list[str]:
    """The programs of a section whose first line begins with `# {whose}`. A program ends where the
    next one begins."""
    blocks = [textwrap.dedent(block) for block in _BLOCK.findall(text)]
    parts = [
        part for block in blocks for part in re.split(r"(?m)^(?=# (?:both|here|Opacus))", block)
    ]
    return [part for part in parts if part.startswith(f"# {whose}")]


SECTIONS = sections()
(START,) = programs_in(SECTIONS[""], "both")
FIRST = "A private step"
PAIRS = [name for name, text in SECTIONS.items() if programs_in(text, "Opacus")]
OURS = [name for name, text in SECTIONS.items() if programs_in(text, "here")]
needs_opacus = pytest.mark.skipif(not OPACUS, reason="opacus is an optional extra")


def run(program: str) -> dict[str, Any]:
    """Run a program after what both begin with."""
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(START + program, str(PAGE), "exec"), names)
    return names


def run_ours(name: str) -> list[dict[str, Any]]:
    """Run the programs of a section. Ghost clipping has none of its own."""
    programs = programs_in(SECTIONS[name], "here") or programs_in(SECTIONS[FIRST], "here")
    if "dp_accounting" in programs[0] and not ACCOUNTANT:
        pytest.skip("dp-accounting is an optional extra")
    return [run(program) for program in programs]


def weights(names: dict[str, Any]) -> list[Tensor]:
    return [p.detach() for p in names["model"].parameters()]


@pytest.fixture(autouse=True)
def one_process(tmp_path: Path) -> Iterator[None]:
    """A group of this process alone, for the programs of several processes."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus and of its backward hooks
        yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", OURS)
def test_our_programs_run(name: str) -> None:
    start = weights(run(""))
    trains = "optimizer.step()" in programs_in(SECTIONS[name], "here")[0]
    for names in run_ours(name):
        changed = [not torch.equal(*pair) for pair in zip(weights(names), start, strict=False)]
        assert all(changed) or not trains


@needs_opacus
@pytest.mark.parametrize("name", PAIRS)
def test_the_programs_of_a_section_agree(name: str) -> None:
    (program,) = programs_in(SECTIONS[name], "Opacus")
    theirs, ours = run(program), run_ours(name)[0]
    if "epsilon" in theirs:
        assert ours["epsilon"] == pytest.approx(theirs["epsilon"], rel=0.05)
        return
    # Opacus adds 1e-6 to each norm
    close: Any = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)
    if "found" in theirs:
        close(ours["found"], theirs["found"])
    assert ours.get("sizes") == theirs.get("sizes")
    assert ours.get("text") == theirs.get("text")
    if "text" not in theirs:  # a model that is made, and not trained
        close(weights(ours), weights(theirs))


def test_each_section_says_what_to_write_here() -> None:
    assert set(PAIRS) - set(OURS) == {"Ghost clipping"}
    assert len(OURS) == 8


def test_the_noise_for_an_epsilon_spends_it() -> None:
    calibrated = run_ours("Accountants")[1]
    from dp_accounting import rdp

    event = calibrated["training"](calibrated["noise_multiplier"])
    assert rdp.RdpAccountant().compose(event).get_epsilon(1e-5) == pytest.approx(3.0, rel=1e-3)


def test_an_empty_batch_takes_the_noise_alone() -> None:
    (program,) = programs_in(SECTIONS["Poisson sampling"], "here")
    names = run(program.replace("12 / len(data), 5,", "0.0, 1,"))
    start = weights(run(""))
    generator = torch.Generator().manual_seed(2)
    noise = [torch.normal(0.0, 0.5, p.shape, generator=generator) for p in start]
    assert names["sizes"] == [0]
    expected = [p - 0.5 * n / 12 for p, n in zip(start, noise, strict=True)]
    torch.testing.assert_close(weights(names), expected)
