"""What the kernel says of the memory of a tensor."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
needs_huge_pages = pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(),
    reason="this kernel gives no huge pages",
)


def lies_in_huge_pages(t: torch.Tensor) -> bool:
    """Whether the kernel was asked for huge pages where the middle of ``t`` lies."""
    place = t.data_ptr() + t.nbytes // 2
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(found[1], 16) <= place < int(found[2], 16)
        elif inside and line.startswith("VmFlags"):
            return " hg" in line
    raise AssertionError("no memory there")
