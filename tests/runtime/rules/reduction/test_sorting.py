"""Sorting, selection and searching agree with torch's engine."""

import pytest

from ..agreement import check


@pytest.mark.parametrize("name", ["sort", "topk", "msort", "argsort", "searchsorted", "bucketize"])
def test_agrees(name: str) -> None:
    check(name, limit=10)
