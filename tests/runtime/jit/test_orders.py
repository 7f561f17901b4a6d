"""The order of keys is state: a key that a program sets anew comes last, also if others were
missing in a later call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from runtime import jit

Keys = dict[str, Any]


def sets_anew(d: Keys, x: Tensor) -> None:
    d["c"] = x * 2
    d["a"] = d.pop("a", 0) + x


def clears(d: Keys, x: Tensor) -> None:
    d.clear()
    for key in "abc":
        d[key] = x * 2


def fills(d: Keys, x: Tensor) -> None:
    d["c"] = x * 2
    d["a"] = x + d.get("a", 0)


PROGRAMS = (sets_anew, clears, fills)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("lost", ["a", "c"])
def test_keys_are_in_the_order_of_eager_mode(
    kind: Callable[[], Keys], program: Callable[[Keys, Tensor], None], lost: str
) -> None:
    eager, jitted = kind(), kind()
    f = jit(lambda x: program(jitted, x))
    for number in range(6):
        x = torch.full((1,), float(number))
        program(eager, x)
        f(x)
        assert list(jitted) == list(eager)
        if number == 2:
            del eager[lost], jitted[lost]
        if number == 3:  # the same keys in another order
            for d in (eager, jitted):
                d["a"] = d.pop("a")


def test_buffers_are_in_the_order_of_eager_mode() -> None:
    eager, jitted = nn.Module(), nn.Module()

    def program(module: nn.Module, x: Tensor) -> None:
        module._buffers.clear()
        for name in ("mean", "std"):
            module.register_buffer(name, x * 2)

    f = jit(lambda x: program(jitted, x))
    for number in range(4):
        program(eager, torch.ones(1))
        f(torch.ones(1))
        assert list(jitted.state_dict()) == list(eager.state_dict())
        if number == 1:
            del eager.mean, jitted.mean
