"""The examples in docstrings of public functions give what they show."""

from __future__ import annotations

import doctest
import inspect
from types import ModuleType

import pytest
import torch

import runtime
import runtime.aot
import runtime.checkpoint
import runtime.expanded_weights
import runtime.per_sample

MODULES = (
    runtime,
    runtime.func,
    runtime.autograd,
    runtime.autograd.forward_ad,
    runtime.autograd.functional,
    runtime.autograd.graph,
    runtime.checkpoint,
    runtime.expanded_weights,
    runtime.per_sample,
    runtime.aot,
)
FRONT_DOORS = {
    "runtime.func": (
        "vmap grad grad_and_value vjp jvp jacrev jacfwd hessian linearize functionalize "
        "functional_call rearrange"
    ),
    "runtime.autograd": "backward grad gradcheck gradgradcheck",
    "runtime.autograd.functional": "vjp jvp vhp hvp jacobian hessian",
    "runtime.checkpoint": "checkpoint",
    "runtime.expanded_weights": "call_for_per_sample_grads",
    "runtime.per_sample": "per_sample_grads",
}


def examples(module: ModuleType, name: str) -> list[doctest.DocTest]:
    found = getattr(module, name)
    if not getattr(found, "__module__", "").startswith("runtime"):
        return []  # one of torch's own, such as `no_grad`
    return [t for t in doctest.DocTestFinder(recurse=False).find(found, name) if t.examples]


def public(module: ModuleType) -> list[str]:
    return [name for name in module.__all__ if not inspect.ismodule(getattr(module, name))]


@pytest.mark.parametrize(
    "module, name",
    [(m, n) for m in MODULES for n in public(m) if examples(m, n)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_the_examples_of_a_docstring_give_what_they_show(module: ModuleType, name: str) -> None:
    for test in examples(module, name):
        test.globs = {
            "torch": torch,
            "runtime": runtime,
            **vars(module),
            name: getattr(module, name),
        }
        shown: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=shown.append)
        assert not shown, "".join(shown)


@pytest.mark.parametrize("module", FRONT_DOORS)
def test_every_front_door_has_an_example(module: str) -> None:
    found = {m.__name__: m for m in MODULES}[module]
    assert [name for name in FRONT_DOORS[module].split() if not examples(found, name)] == []
