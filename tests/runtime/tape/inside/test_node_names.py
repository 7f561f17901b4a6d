"""The names of nodes with a number, such as ``AddBackward1``.

Inside: ``runtime.tape.node_names``, whose table has all ops. A graph shows the names of those that
it has."""

from __future__ import annotations

import torch

from runtime.tape.node_names import _names_by_overload


def test_every_number_of_a_name_is_one_that_torch_has() -> None:
    known = set(dir(torch._C._functions))
    names = _names_by_overload()
    assert len(names) > 500
    assert set(names.values()) <= known
    assert len(set(names.values())) == len(names)
