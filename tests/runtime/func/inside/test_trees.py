"""Pytrees of the transforms have the same leaves and structures as torch's, with every shortcut.

Inside: ``runtime.func.trees``. A transform takes one path of it for each kind of tree, and its
result does not tell which. Torch's pytree is the oracle for every path."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from runtime.func import trees

Point = namedtuple("Point", "x y")
T = torch.ones(2)
TREES: tuple[Any, ...] = (
    *(T, 3, None, "a", (T, None, 2.0), (), (T,), [T, T]),
    *((T, (T, 1)), {"a": T, "b": (T, T)}, Point(T, 1), (Point(T, T), T)),
)


@pytest.mark.parametrize("tree", TREES, ids=repr)
def test_leaves_and_structure_are_those_of_torch(tree: Any) -> None:
    leaves, spec = trees.flatten(tree)
    want, want_spec = pytree.tree_flatten(tree)
    assert len(leaves) == len(want) and all(a is b for a, b in zip(leaves, want, strict=True))
    assert trees.torch_spec(spec) == want_spec
    back = trees.unflatten(list(leaves), spec)
    assert type(back) is type(tree) and pytree.tree_structure(back) == want_spec


def test_equal_structures_have_equal_specs() -> None:
    assert trees.flatten((T, object()))[1] == trees.flatten((1, T))[1]
    assert trees.flatten((T, T))[1] != trees.flatten([T, T])[1]
    assert trees.flatten((T,))[1] != trees.flatten(T)[1]


@pytest.mark.parametrize(
    "prefix", (0, None, (0, None), (0, (1, None)), (0, 1, 2), [0, 1]), ids=repr
)
@pytest.mark.parametrize(
    "tree", ((T, T), (T, (T, T)), T, [T, T]), ids=("pair", "nested", "leaf", "list")
)
def test_a_prefix_is_spread_as_in_torch(prefix: Any, tree: Any) -> None:
    leaves, spec = trees.flatten(tree)
    assert trees.spread(prefix, leaves, spec) == pytree._broadcast_to_and_flatten(
        prefix, pytree.tree_structure(tree)
    )


def test_only_tensors_are_mapped() -> None:
    assert trees.map_tensors(lambda t: "seen", (T, 1, None)) == ("seen", 1, None)
    assert trees.map_tensors(lambda t: "seen", {"a": [T, 2]}) == {"a": ["seen", 2]}
