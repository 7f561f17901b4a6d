"""The samples of torch's OpInfo database, the same in each process: OpInfo seeds each draw."""

from __future__ import annotations

from itertools import islice
from typing import Any
from unittest.mock import patch

import torch
from torch.testing._internal import common_utils
from torch.testing._internal.opinfo import core


def _no_test() -> None:
    """Say that no test of OpInfo's own asks, for which it would search the stack."""


def drawn(
    info: Any,
    device: str,
    dtype: torch.dtype,
    count: int | None = None,
    *,
    requires_grad: bool = False,
) -> list[Any]:
    """The first ``count`` samples that OpInfo draws, or all of them."""
    with (
        patch.object(common_utils, "extract_test_fn", _no_test),
        patch.object(core, "extract_test_fn", _no_test),
    ):
        samples = info.sample_inputs(device, dtype, requires_grad=requires_grad)
        return list(islice(samples, count))
