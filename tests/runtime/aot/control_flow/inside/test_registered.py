"""Entries in the tables of torch's operators act on values of ours alone.

Inside: ``runtime.aot.control_flow.torch_operators``. Declarations happen once, when the package
is imported, so that a second one needs the function itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._C import DispatchKey

import runtime
from runtime.aot.control_flow import torch_operators
from runtime.extend import Level, Value, transform

COND = torch.ops.higher_order.cond
X = torch.tensor([0.3, 0.4])


def branches(x: Any) -> Any:
    return COND(x.sum() > 0, lambda x: (x.sin(),), lambda x: (x.cos(),), (x,))[0]


@pytest.fixture
def tables() -> Any:
    """The operator's tables are afterwards what they were."""
    before = (
        dict(COND.python_key_table),
        dict(COND.py_kernels),
        COND.non_fallthrough_keys,
        dict(torch_operators.OURS),
    )
    yield
    COND.python_key_table, COND.py_kernels, COND.non_fallthrough_keys = before[:3]
    torch_operators.OURS.clear()
    torch_operators.OURS.update(before[3])
    torch_operators._enter(COND, torch_operators.OURS[COND])


def test_to_declare_an_operator_twice_replaces_the_first_declaration(tables: Any) -> None:
    kernels: Any = COND.py_kernels
    theirs = kernels[DispatchKey.Autograd].theirs
    for number in (1, 2):
        torch_operators.stands_for(COND)(lambda *_, number=number: (torch.full((), float(number)),))
        assert branches(runtime.wrap(X)).item() == number
    assert kernels[DispatchKey.Autograd].theirs is theirs
    assert not hasattr(theirs, "theirs")


def test_tensors_of_torch_have_torchs_rule(tables: Any) -> None:
    def ours(*_: Any) -> Any:
        raise AssertionError("called without a value of ours")

    torch_operators.stands_for(COND)(ours)
    x = X.clone().requires_grad_()
    y = branches(x)
    y.sum().backward()
    assert y.equal(X.sin()) and x.grad is not None and x.grad.equal(X.cos())
    assert torch.func.vmap(lambda x: branches(x))(X[:, None]).equal(X[:, None].sin())


def test_a_level_that_is_written_later_takes_the_operators() -> None:
    class Later(Value):
        pass

    class LaterLevel(Level):
        what = "later"
        values = Later

    assert transform(LaterLevel)(branches)(X).equal(X.sin())
