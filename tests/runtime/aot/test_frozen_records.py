"""Records that several programs may share cannot be changed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from runtime.aot.cache.cuts import CacheInfo
from runtime.aot.compilers.placing import Destination
from runtime.aot.partition.budget import Choice
from runtime.aot.partition.reasons import SavedValue, Why

RECORDS = [CacheInfo(), Destination(0, 0, 1), Choice((), 0, 0, 0), SavedValue("x", "x", (3,), torch.float32, 12, Why.SIZE)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: type(r).__name__)
def test_a_record_cannot_be_changed_and_is_equal_to_its_copy(record: Any) -> None:
    for field in dataclasses.fields(record):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, field.name, None)
    assert dataclasses.replace(record) == record


def test_a_cache_that_was_not_used_has_zeros_and_a_saved_value_neither_a_line_nor_an_owner() -> None:
    assert CacheInfo() == CacheInfo(0, {}, {}, 0, 0)
    assert RECORDS[-1] == SavedValue("x", "x", (3,), torch.float32, 12, Why.SIZE, None, None)
