"""Which places of torch's own objects a program is known to read: of modules,
optimizers and their like."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from runtime.aot.python_state.reader import reads_of
from runtime.aot.python_state.reads import MISSING, WHOLE

rate = 2.0


def test_hooks_of_modules_are_read() -> None:
    module = nn.Identity()
    module.register_forward_hook(lambda m, args, out: out * rate)
    module.register_forward_pre_hook(lambda m, args: args)
    reads = reads_of(module, (), {}, [])
    assert [r.value for r in reads if r.name == "rate"] == [rate]
    kept = [r.owner for r in reads if r.name is WHOLE]
    assert any(o is module._forward_hooks for o in kept) and any(
        o is module._forward_pre_hooks for o in kept
    )
    assert any(o is nn.modules.module._global_forward_hooks for o in kept)


def test_a_module_with_a_forward_of_its_own_is_asked_for_it() -> None:
    module = nn.Identity()
    module.forward = lambda x: x * rate  # type: ignore[method-assign, assignment]
    reads = reads_of(module, (), {}, [])
    assert [r.value for r in reads if r.owner is vars(module) and r.name == "forward"] == [
        module.forward
    ]
    assert [r.value for r in reads if r.name == "rate"] == [rate]


def test_modules_that_loop_over_themselves_are_asked_for_their_children() -> None:
    for module in (
        nn.Sequential(nn.Identity()),
        nn.ModuleList([nn.Identity()]),
        nn.ModuleDict({"a": nn.Identity()}),
    ):
        assert any(
            r.owner is module._modules and r.name is WHOLE for r in reads_of(module, (), {}, [])
        )
    parameters = nn.ParameterList([nn.Parameter(torch.ones(1))])
    reads = reads_of(lambda x: [x * p for p in parameters], (), {}, [])
    assert any(r.owner is vars(parameters) and r.name == "_size" for r in reads)
    by_name = nn.ParameterDict({"a": nn.Parameter(torch.ones(1))})
    reads = reads_of(lambda x: [x * by_name[k] for k in by_name], (), {}, [])
    assert any(r.owner is by_name._keys and r.name is WHOLE for r in reads)


@pytest.mark.parametrize("step, noted", [(False, ["_enabled", "_growth_factor"]), (True, [])])
def test_numbers_of_an_object_of_torchs_are_read_by_its_methods(
    step: bool, noted: list[str]
) -> None:
    scaler = torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    f: Any = (lambda x: scheduler.step()) if step else (lambda x: scaler.scale(x))
    owner = vars(scheduler if step else scaler)
    names = [r.name for r in reads_of(f, (), {}, []) if r.owner is owner and r.value is not MISSING]
    assert [n for n in noted if n in names] == noted and (noted or not names)
