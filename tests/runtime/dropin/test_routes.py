"""Which of torch's names lead here while the drop-in is installed."""

from __future__ import annotations

import importlib
import sys
import warnings
from types import ModuleType
from typing import Any

import pytest
import torch

import runtime
from runtime import dropin
from runtime.func.batch import current_fallback_policy

ROUTES = {
    "torch.func": "runtime.func",
    "torch._functorch.apis": "runtime.func",
    "torch.autograd": "runtime.autograd",
    "torch.autograd.anomaly_mode": "runtime.autograd",
    "torch.autograd.function": "runtime.autograd.function",
    "torch.autograd.functional": "runtime.autograd.functional",
    "torch.autograd.forward_ad": "runtime.autograd.forward_ad",
    "torch.autograd.gradcheck": "runtime.autograd.gradcheck",
    "torch.autograd.graph": "runtime.autograd.graph",
    "torch.utils.checkpoint": "runtime.checkpoint",
    "torch.fx.experimental.proxy_tensor": "runtime.aot",
    "torch._higher_order_ops.cond": "runtime.aot",
    "torch._higher_order_ops.while_loop": "runtime.aot",
    "torch._higher_order_ops.associative_scan": "runtime.aot",
    "torch._functorch.aot_autograd": "runtime.aot",
    "torch._functorch.partitioners": "runtime.aot",
    "functorch.compile": "runtime.aot",
    "torch.nn.utils._expanded_weights": "runtime.expanded_weights",
    "torch.nn.utils._expanded_weights.expanded_weights_impl": "runtime.expanded_weights",
    "torch.nn.utils._expanded_weights.expanded_weights_utils": "runtime.expanded_weights",
    "torch.nn.utils._per_sample_grad": "runtime.expanded_weights",
}


_NODES: Any = torch._C._functions
ACCUMULATE_GRAD_OF_TORCH = _NODES.AccumulateGrad


@pytest.mark.parametrize("theirs", ROUTES)
def test_a_public_name_of_ours_that_torchs_module_has_is_ours(theirs: str) -> None:
    module, ours = importlib.import_module(theirs), importlib.import_module(ROUTES[theirs])
    shared = [
        name
        for name in ours.__all__
        if hasattr(module, name) and not isinstance(getattr(ours, name), ModuleType)
    ]
    before = [getattr(module, name) for name in shared]
    assert shared
    with dropin.installed():
        assert [name for name in shared if getattr(module, name) is not getattr(ours, name)] == []
    assert all(getattr(module, name) is old for name, old in zip(shared, before, strict=True))


@pytest.mark.parametrize("name", ["scan", "map"])
def test_a_loop_whose_arguments_torch_orders_in_another_way_is_one_of_ours(name: str) -> None:
    module = importlib.import_module(f"torch._higher_order_ops.{name}")
    before = getattr(module, name)
    with dropin.installed():
        assert getattr(module, name).__module__.startswith("runtime.")
    assert getattr(module, name) is before


def test_no_module_of_torch_is_replaced() -> None:
    with dropin.installed():
        replaced = dropin.replaced()
    assert replaced and not any(isinstance(old, ModuleType) for old in replaced)


def looks_for_nan() -> bool:
    """Return whether a pass of ours looks for NaN, as it does in anomaly mode alone."""
    bad = runtime.tensor([0.0], requires_grad=True).sqrt() * 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            bad.backward()
        except RuntimeError as error:
            return "returned nan values" in str(error)
    return False


@pytest.mark.parametrize("between", ["another value of a name", "a further name", "a name less"])
def test_a_module_that_changes_between_two_installations_is_routed(between: str) -> None:
    module = ModuleType("module_of_a_user")
    module.__dict__.update(transform=None, spare=0)
    sys.modules[module.__name__] = module
    try:
        with dropin.installed():
            pass
        if between == "a further name":
            module.__dict__["further"] = 1
        if between == "a name less":
            del module.__dict__["spare"]
        module.__dict__["transform"] = torch.func.vmap
        with dropin.installed():
            assert module.__dict__["transform"] is runtime.func.vmap
        assert module.__dict__["transform"] is torch.func.vmap
    finally:
        del sys.modules[module.__name__]


@pytest.mark.usefixtures("routed")
class TestSwitches:
    def test_anomaly_mode_is_ours(self) -> None:
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
            assert not looks_for_nan()
        assert not torch.is_anomaly_enabled()
        torch.set_anomaly_enabled(True)
        assert looks_for_nan() and torch.is_anomaly_check_nan_enabled()
        torch.set_anomaly_enabled(False)
        assert not looks_for_nan()

    def test_questions_about_the_pass_that_runs_are_answered_by_ours(self) -> None:
        c: Any = torch._C
        seen: list[Any] = []
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        z = y.sum()

        def look(grad: Any) -> None:
            node = c._current_autograd_node()
            seen.append(
                (
                    c._current_graph_task_id(),
                    node,
                    c._will_engine_execute_node(x.grad_fn or y.grad_fn),
                )
            )
            seen.append(c._current_graph_task_execution_order())

        y.register_hook(look)
        assert c._current_graph_task_id() == -1 and c._current_autograd_node() is None
        with torch.autograd.set_multithreading_enabled(False):
            z.backward()
        (task, node, will), order = seen
        assert task >= 0 and node is y.grad_fn and will is True
        assert order[:2] == [z.grad_fn, y.grad_fn] and [type(node) for node in order[2:]] == [
            c._functions.AccumulateGrad
        ]
        assert c._functions.AccumulateGrad is not ACCUMULATE_GRAD_OF_TORCH

    def test_whether_hooks_on_saved_tensors_are_allowed(self) -> None:
        autograd: Any = torch._C._autograd
        allowed = autograd._saved_tensors_hooks_is_enabled
        assert allowed()
        with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
            assert not allowed()
        assert allowed()

    @pytest.mark.parametrize("name", ["vmap", "_vmap"])
    def test_the_old_vmap_is_ours(self, name: str) -> None:
        vmap: Any = getattr(torch._vmap_internals, name)
        x = torch.arange(6.0).reshape(2, 3)
        assert vmap(lambda row: row.sum())(x).tolist() == [3.0, 12.0]
        assert vmap(lambda column: column * 2, 1, 1)(x).tolist() == (2 * x).tolist()
        with pytest.raises(RuntimeError, match="vmap"):
            vmap(lambda row: bool(row.sum()))(x)

    def test_the_fallback_is_switched_for_ours(self) -> None:
        functorch: Any = torch._C._functorch
        assert functorch._is_vmap_fallback_enabled() and functorch._is_vmap_fallback_enabled()
        assert functorch._set_vmap_fallback_enabled(False) is None
        assert not functorch._is_vmap_fallback_enabled() and current_fallback_policy() == "raise"
        functorch._set_vmap_fallback_enabled(True)
        assert functorch._is_vmap_fallback_enabled() and current_fallback_policy() == "warn"

    def test_an_undefined_gradient_of_several_tensors(self) -> None:
        functions: Any = torch._C._functions
        x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
        a, b = functions.UndefinedGrad()(x, y)
        assert a.tolist() == b.tolist() == [1.0, 1.0] and a is not x
        (a * b * y).sum().backward()
        assert x.grad is None and y.grad is not None and y.grad.tolist() == [1.0, 1.0]

    def test_a_delayed_error_of_one_tensor_with_a_message_of_bytes(self) -> None:
        functions: Any = torch._C._functions
        out = functions.DelayedError(b"not yet", 1)(torch.ones(2, requires_grad=True))
        with pytest.raises(RuntimeError, match=r"^not yet$"):
            out.sum().backward()


@pytest.mark.usefixtures("routed")
def test_parameters_and_buffers_without_a_shape_require_grad_as_in_torch() -> None:
    nn: Any = torch.nn
    assert (
        nn.UninitializedParameter().requires_grad
        and not nn.UninitializedParameter(requires_grad=False).requires_grad
    )
    assert (
        not nn.UninitializedBuffer().requires_grad
        and nn.UninitializedBuffer(requires_grad=True).requires_grad
    )
    assert (
        nn.UninitializedBuffer().persistent
        and not nn.UninitializedBuffer(persistent=False).persistent
    )
