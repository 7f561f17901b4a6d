"""A checkpoint without a function, on a torch whose checkpoint is no decorator.

Inside: ``runtime.checkpoint.checkpoint`` is told that torch is another one than is installed."""

from __future__ import annotations

from importlib import import_module

import pytest

from runtime.checkpoint import checkpoint


def test_a_checkpoint_of_nothing_is_refused_where_it_is_no_decorator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("runtime.checkpoint.checkpoint"), "_DECORATES", False)
    with pytest.raises(TypeError):
        checkpoint(use_reentrant=False)
