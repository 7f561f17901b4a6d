"""Anomaly mode: the first NaN is found, and errors name the line of the forward pass.
Torch is the oracle."""

import gc
import re
import warnings
import weakref
from typing import Any

import pytest
import torch

from runtime import aot
from runtime.autograd import set_detect_anomaly
from runtime.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, linearize, vmap

from ..errors import first_sentence, told
from ..scenarios import OURS, same


def warned(scenario: Any) -> Any:
    """``scenario`` that returns its error with its warnings, without what depends on where torch
    keeps its sources."""

    def run(lib: Any) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                result = scenario(lib)
            except Exception as error:
                result = told(error)
        return result, [
            re.sub(r" \(Triggered internally at .*\)$", "", str(w.message)) for w in caught
        ]

    return run


def root_of_zero(lib: Any) -> Any:
    x = lib.tensor([0.0, 1.0], requires_grad=True)
    return x.sqrt() * 0


@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_the_function_that_returned_nan_is_named_with_its_forward_call() -> None:
    def scenario(lib: Any) -> Any:
        with lib.autograd.detect_anomaly():
            root_of_zero(lib).sum().backward()

    def shown(lib: Any) -> Any:
        result, (enabled, trace) = warned(scenario)(lib)
        return result, first_sentence(enabled), trace

    result, enabled, trace = same(shown)
    assert result == [
        "RuntimeError",
        "Function 'SqrtBackward0' returned nan values in its 0th output",
    ]
    assert enabled == "Anomaly Detection has been enabled"
    assert trace.startswith(
        "Error detected in SqrtBackward0. Traceback of forward call that caused the error:"
    )
    assert trace.rstrip().endswith("return x.sqrt() * 0")


def test_without_a_trace_of_the_forward_pass_it_says_so() -> None:
    def scenario(lib: Any) -> Any:
        y = root_of_zero(lib)
        with lib.autograd.set_detect_anomaly(True):
            y.sum().backward()

    def shown(lib: Any) -> Any:
        result, (text,) = warned(scenario)(lib)
        return result, text.partition(" available.")[0]

    assert same(shown)[1] == "Error detected in SqrtBackward0. No forward pass information"


def test_nan_passes_where_it_is_not_checked() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([0.0], requires_grad=True)
        with lib.autograd.set_detect_anomaly(True, check_nan=False):
            (x.sqrt() * 0).backward()
        return bool(x.grad.isnan().all())

    assert same(warned(scenario)) == [True, []]


def test_an_error_of_a_hook_comes_with_the_forward_call_too() -> None:
    def scenario(lib: Any) -> Any:
        with lib.autograd.set_detect_anomaly(True):
            y = lib.tensor([1.0], requires_grad=True) * 2
            y.register_hook(lambda g: 1 / 0)
            y.backward()

    result, texts = same(warned(scenario))
    assert result[0] == "ZeroDivisionError" and "Error detected in MulBackward0" in texts[0]


def test_a_node_made_by_a_backward_pass_tells_which_node_made_it() -> None:
    def scenario(lib: Any) -> Any:
        class Twice(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                (x,) = ctx.saved_tensors
                return Bad.apply(g * x)

        class Bad(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                return x.clone()

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                raise ValueError("bad")

        with lib.autograd.set_detect_anomaly(True):
            x = lib.tensor([1.0], requires_grad=True)
            # in torch 2.12 the node of a custom Function lasts as long as its result
            y = Twice.apply(x)
            (g,) = lib.autograd.grad(y, x, create_graph=True)
            g.backward()

    def headings(lib: Any) -> Any:
        """Without the frames: torch's traces go on into its own Python."""
        result, texts = warned(scenario)(lib)
        return result, [
            re.findall(r"^.*(?:Error detected|Previous calculation).*$", t, re.M) for t in texts
        ]

    result, _ = same(headings)
    assert result == ["ValueError", "bad"]
    ends = [t.rstrip().splitlines()[-1].strip() for t in warned(scenario)(OURS)[1]]
    assert ends == [
        "return Bad.apply(g * x)",
        "y = Twice.apply(x)",
    ]


@pytest.mark.usefixtures("routed")
def test_the_mode_is_set_and_restored() -> None:
    assert not torch.is_anomaly_enabled()
    with OURS.autograd.set_detect_anomaly(True, check_nan=False):
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
        with OURS.autograd.set_detect_anomaly(False):
            assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        assert torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled()
    assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    OURS.autograd.set_detect_anomaly(True)
    assert torch.is_anomaly_enabled()
    OURS.autograd.set_detect_anomaly(False)
    assert not torch.is_anomaly_enabled()


def test_traces_hold_no_graph() -> None:
    gc.collect()
    gc.disable()
    try:
        with OURS.autograd.set_detect_anomaly(True):
            x = OURS.tensor([1.0, 2.0], requires_grad=True)
            (g,) = OURS.autograd.grad((x**3).sum(), x, create_graph=True)
            gone = weakref.ref(g.grad_fn)
            g.sum().backward()
            del g
        assert gone() is None
    finally:
        gc.enable()


def test_nothing_is_traced_while_the_mode_is_off() -> None:
    assert (OURS.tensor([1.0], requires_grad=True) * 2).grad_fn.metadata == {}
    with torch.no_grad(), OURS.autograd.set_detect_anomaly(True):
        assert (OURS.tensor([1.0], requires_grad=True) * 2).grad_fn is None


@pytest.mark.parametrize("check_nan", [True, False])
def test_transforms_run_in_anomaly_mode(check_nan: bool) -> None:
    def f(x: Any) -> Any:
        return (x * x.sin()).sum()

    x, batch = torch.randn(3), torch.randn(2, 3)
    transforms: list[tuple[Any, torch.Tensor]] = [
        (vmap(grad(f)), batch),
        (grad(lambda x: vmap(f)(x).sum()), batch),
        (vmap(vmap(grad(f))), batch[None]),
        (jacrev(torch.sin), x),
        (jacfwd(grad(f)), x),
        (hessian(f), x),
        (functionalize(grad(f)), x),
        (vmap(functionalize(grad(f))), batch),
        (lambda x: jvp(grad(f), (x,), (x,)), x),
        (lambda x: vmap(lambda x: jvp(grad(f), (x,), (x,)))(x), batch),
        (lambda x: linearize(grad(f), x)[1](x), x),
        (lambda x: aot.make_fx(vmap(grad(f)))(x)(x), batch),
    ]
    for transform, given in transforms:
        expected = transform(given)
        with set_detect_anomaly(True, check_nan):
            torch.testing.assert_close(transform(given), expected)


@pytest.mark.filterwarnings("ignore:Error detected in SqrtBackward0")
def test_a_nan_in_one_element_of_a_batch_is_found() -> None:
    bad = grad(lambda x: x.sqrt().sum() * 0)
    batch = torch.tensor([[1.0], [0.0]])
    runs: list[Any] = [
        lambda: vmap(bad)(batch),
        lambda: vmap(vmap(bad))(batch[None]),
        lambda: aot.make_fx(vmap(bad))(batch),
    ]
    for run in runs:
        with (
            set_detect_anomaly(True),
            pytest.raises(
                RuntimeError, match="Function 'SqrtBackward0' returned nan values in its 0th output"
            ),
        ):
            run()
        with set_detect_anomaly(True, check_nan=False):
            run()


def test_the_question_for_nan_is_no_part_of_a_trace() -> None:
    for mode in ("real", "symbolic"):
        with set_detect_anomaly(True):
            graph = aot.make_fx(grad(lambda x: x.sin().sum()), tracing_mode=mode)(torch.ones(3))
        assert "isnan" not in graph.code
