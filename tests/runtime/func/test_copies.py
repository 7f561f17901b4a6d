"""A copy of a tensor's object inside of a transform is refused, as torch.func refuses it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import runtime
import runtime.dropin
from runtime.func import grad, vmap

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickling": lambda x: pickle.loads(pickle.dumps(x)),
}
DOORS: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "vmap": lambda f: vmap(f)(torch.ones(2, 2)),
    "grad": lambda f: grad(lambda x: f(x).sum())(torch.ones(2)),
    "jit": lambda f: runtime.jit(f)(torch.ones(2)),
}


@pytest.mark.parametrize("is_installed", [False, True])
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("way", WAYS)
def test_copies_inside_of_a_transform_name_what_to_do(
    way: str, door: str, is_installed: bool
) -> None:
    surrounding = runtime.dropin.installed() if is_installed else nullcontext()

    with surrounding, pytest.raises(NotImplementedError, match=f"{way}.*inside .* Use clone()"):
        DOORS[door](lambda x: WAYS[way](x) * 2)


@pytest.mark.parametrize("way", WAYS)
def test_what_leaves_a_transform_can_be_copied(way: str) -> None:
    x = vmap(torch.sin)(torch.ones(2))

    assert torch.equal(WAYS[way](x), x)
