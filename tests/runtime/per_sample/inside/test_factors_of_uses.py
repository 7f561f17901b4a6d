"""Which uses of a parameter have factors.

Inside: ``runtime.per_sample.uses``. Where factors take more memory than dense gradients they are
not kept, so the table of ``explain`` does not tell."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.per_sample import per_sample_grads
from runtime.per_sample.uses import ParameterCall
from tests.runtime.per_sample.parameter_uses import USES, loss_of_use


@pytest.mark.parametrize("name", USES)
def test_the_gradients_come_in_factors_where_they_can(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use, parameter, batch, factored = USES[name]
    made = []
    general = ParameterCall._general

    def noted(call: ParameterCall, i: int, gs: list[Any]) -> Any:
        made.append(i)
        return general(call, i, gs)

    monkeypatch.setattr(ParameterCall, "_general", noted)
    per_sample_grads(loss_of_use(use))(parameter, batch).norms()
    assert bool(made) is not factored
