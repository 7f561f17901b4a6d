"""Cells that run in processes of their own find what the targets load at the first use."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# what a fresh process loads: by `warm`, and by a cell after it
_PROGRAM = """
import json, sys
import torch
from types import SimpleNamespace
import programs.memory
from gen.checks.compare import Tally
from gen.checks.memory_access import assert_kept, warm
from gen.targets import load

target = load({name!r})
before = set(sys.modules)
warm(target)
warmed = set(sys.modules)
x = torch.tensor([0.5, 1.25], dtype=torch.float64)
sample = SimpleNamespace(inputs=(x, x + 1), op=SimpleNamespace(call=programs.memory.deep_copy))
tally = Tally()
for stages in [("trace",), ("aot.function",), ("jvp",), ("aot.export",)]:
    for shapes in ["static", "dynamic"]:
        assert_kept(target, sample, stages, "value", shapes == "dynamic", tally)
print(json.dumps([len(warmed - before), sorted(set(sys.modules) - warmed), tally.entries]))
"""


@pytest.mark.parametrize("name", ["torch", "runtime"])
def test_a_process_that_is_warm_loads_no_more_for_a_cell(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(name=name)],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded, more, entries = json.loads(done.stdout.splitlines()[-1])
    assert loaded > 100 and entries == 8
    assert not more
