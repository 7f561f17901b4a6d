"""Switches of torch, Python and NumPy that a program asks for, and that no object of it has."""

from __future__ import annotations

import contextvars
import decimal
import gc
import logging
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, backends, nn

from runtime import jit

Ask = Callable[[], Any]
Set = Callable[[], Any]


def _attribute(owner: Any, name: str, first: Any, second: Any) -> tuple[Ask, Set, Set]:
    return (
        partial(getattr, owner, name),
        partial(setattr, owner, name, first),
        partial(setattr, owner, name, second),
    )


def _set_by(ask: Ask, change: Callable[[Any], Any], *values: Any) -> tuple[Ask, Set, Set]:
    first, second = values
    return ask, partial(change, first), partial(change, second)


def _is_refused(compute: Ask) -> bool:
    try:
        compute()
    except (decimal.DivisionByZero, FloatingPointError):
        return True
    return False


def _allow_hooks(allowed: bool) -> None:
    if allowed:
        C._autograd._saved_tensors_hooks_enable()
    else:
        C._autograd._saved_tensors_hooks_disable("none here")


C: Any = torch._C
Number = decimal.Decimal
RATIO, NOTHING = np.array([1.0]), np.array([0.0])
RATE: contextvars.ContextVar[float] = contextvars.ContextVar("rate")
RATE.set(2.0)
CONTEXT = contextvars.copy_context()
SMALLEST_NORMAL = sys.float_info.min
LOGGER = logging.getLogger("tests.switches")
CUDA = backends.cuda
FUTURE = torch.__future__
SWITCHES: dict[str, tuple[Ask, Set, Set]] = {
    "warn always": _set_by(torch.is_warn_always_enabled, torch.set_warn_always, True, False),
    "anomaly": _set_by(torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True, False),
    "cache of autocast": _set_by(
        torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False, True
    ),
    "dtype of autocast for mps": _set_by(
        lambda: (
            torch.get_autocast_dtype("mps").itemsize
            + (torch.get_autocast_dtype("mps") is torch.float16)
        ),
        partial(torch.set_autocast_dtype, "mps"),
        torch.bfloat16,
        torch.float16,
    ),
    "tf32": _attribute(CUDA.matmul, "allow_tf32", True, False),
    # by C: somebody may have frozen the flags of torch.backends for this process
    "cudnn": _set_by(lambda: backends.cudnn.enabled, torch._C._set_cudnn_enabled, False, True),
    "deterministic cudnn": _set_by(
        lambda: backends.cudnn.deterministic, torch._C._set_cudnn_deterministic, True, False
    ),
    "mkldnn": _set_by(lambda: backends.mkldnn.enabled, torch._C._set_mkldnn_enabled, False, True),
    "fast path of attention": _set_by(
        backends.mha.get_fastpath_enabled, backends.mha.set_fastpath_enabled, False, True
    ),
    "flash attention": _set_by(CUDA.flash_sdp_enabled, CUDA.enable_flash_sdp, False, True),
    "einsum": _attribute(backends.opt_einsum, "enabled", False, True),
    "filled memory": _attribute(
        torch.utils.deterministic, "fill_uninitialized_memory", False, True
    ),
    "conversion of modules": _set_by(
        FUTURE.get_swap_module_params_on_conversion,
        FUTURE.set_swap_module_params_on_conversion,
        True,
        False,
    ),
    "threads": _set_by(torch.get_num_threads, torch.set_num_threads, 2, 1),
    "denormal numbers": _set_by(
        lambda: SMALLEST_NORMAL * 0.5 == 0, torch.set_flush_denormal, True, False
    ),
    "printed digits": (
        lambda: torch._tensor_str.PRINT_OPTS.precision,
        lambda: torch.set_printoptions(precision=2),
        lambda: torch.set_printoptions(precision=4),
    ),
    "precision of products": (
        lambda: torch.get_float32_matmul_precision() == "high",
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: torch.set_float32_matmul_precision("highest"),
    ),
    "recursion": _set_by(sys.getrecursionlimit, sys.setrecursionlimit, 1500, 1400),
    "switch interval": _set_by(
        lambda: sys.getswitchinterval() * 100, sys.setswitchinterval, 0.01, 0.005
    ),
    "collector": _set_by(lambda: gc.get_threshold()[0], gc.set_threshold, 600, 700),
    "tracing of memory": (tracemalloc.is_tracing, tracemalloc.start, tracemalloc.stop),
    "level of a logger": _set_by(lambda: LOGGER.level, LOGGER.setLevel, 10, 20),
    "level that a logger is asked for": _set_by(
        lambda: logging.getLogger("tests.switches").isEnabledFor(15), LOGGER.setLevel, 10, 20
    ),
    "logging": _set_by(lambda: logging.root.manager.disable, logging.disable, 50, 0),
    "digits of decimals": _set_by(
        lambda: decimal.getcontext().prec, partial(setattr, decimal.getcontext(), "prec"), 5, 28
    ),
    "errors of NumPy": (
        lambda: np.geterr()["divide"] == "raise",
        lambda: np.seterr(divide="raise"),
        lambda: np.seterr(divide="warn"),
    ),
    "errors of computing with arrays": (
        lambda: _is_refused(lambda: RATIO / NOTHING),
        lambda: np.seterr(divide="raise"),
        lambda: np.seterr(divide="ignore"),
    ),
    "function at errors of NumPy": _set_by(
        lambda: np.geterrcall() is None, np.seterrcall, print, None
    ),
    "digits of decimals, by another name": _set_by(
        lambda: len(str(Number(1) / Number(3))),
        partial(setattr, decimal.getcontext(), "prec"),
        5,
        28,
    ),
    "errors of decimals": _set_by(
        lambda: _is_refused(lambda: Number(1) / Number(0)),
        partial(decimal.getcontext().traps.__setitem__, decimal.DivisionByZero),
        False,
        True,
    ),
    "a context of decimals": _set_by(
        lambda: decimal.DefaultContext.prec, partial(setattr, decimal.DefaultContext, "prec"), 5, 28
    ),
    "a variable in a context": _set_by(
        lambda: CONTEXT[RATE], lambda value: CONTEXT.run(RATE.set, value), 1.0, 2.0
    ),
    "hooks of saved tensors": _set_by(
        lambda: C._autograd._saved_tensors_hooks_is_enabled(), _allow_hooks, False, True
    ),
    "fallback of vmap": _set_by(
        lambda: C._functorch._is_vmap_fallback_enabled(),
        C._functorch._set_vmap_fallback_enabled,
        False,
        True,
    ),
    "fusion by onednn": _set_by(
        torch.jit.onednn_fusion_enabled, torch.jit.enable_onednn_fusion, True, False
    ),
    "inlining of scripts": _set_by(
        lambda: C._jit_get_inline_everything_mode(), C._jit_set_inline_everything_mode, True, False
    ),
    "forward mode": _set_by(C._is_fwd_grad_enabled, C._set_fwd_grad_enabled, False, True),
    "dtype of autocast for xla": _set_by(
        lambda: torch.get_autocast_dtype("xla") is torch.float16,
        partial(torch.set_autocast_dtype, "xla"),
        torch.float16,
        torch.bfloat16,
    ),
    "buffer of NumPy": _set_by(np.getbufsize, np.setbufsize, 16000, 8192),
    "printed digits of NumPy": (
        lambda: np.get_printoptions()["precision"],
        lambda: np.set_printoptions(precision=3),
        lambda: np.set_printoptions(precision=8),
    ),
}


@pytest.fixture(params=SWITCHES)
def switch(request: pytest.FixtureRequest) -> Iterator[str]:
    _, _, second = SWITCHES[request.param]
    before = (sys.getrecursionlimit(), gc.get_threshold(), torch.get_num_threads())
    yield request.param
    second()
    np.seterr(divide="warn")
    sys.setrecursionlimit(before[0])
    gc.set_threshold(*before[1])
    torch.set_num_threads(before[2])


def test_a_switch_that_a_program_asks_for_is_state(switch: str) -> None:
    ask, first, second = SWITCHES[switch]
    compiled = jit(lambda x: x * (float(ask()) + 3))
    for change in (second, first, second, second, first):
        change()
        assert compiled(torch.ones(1)).item() == pytest.approx(float(ask()) + 3)
    # NumPy makes another dictionary each time
    n_states = 5 if switch == "printed digits of NumPy" else 2
    assert len(jit.explain(compiled).programs) == n_states


def _warn_by_another_name() -> object:
    return _tell("old", DeprecationWarning, stacklevel=1)


def _warn_by_torch() -> object:
    return nn.functional.mse_loss(torch.ones(1), torch.ones(1, 1))


def _warn_by_numpy() -> object:
    return _ZERO / _ZERO


_tell = warnings.warn
_ZERO = np.zeros(1)
WARNINGS: dict[str, Callable[[], object]] = {
    "of the program": lambda: warnings.warn("old", DeprecationWarning, stacklevel=1),
    "by another name": _warn_by_another_name,
    "of torch": _warn_by_torch,
    "of NumPy": _warn_by_numpy,
}


@pytest.mark.parametrize("name", WARNINGS)
def test_a_warning_that_becomes_an_error_is_state(name: str) -> None:
    warn = WARNINGS[name]

    def warns(x: Tensor) -> Tensor:
        try:
            warn()
        except Warning:
            return x * 3
        return x * 2

    compiled = jit(warns)
    for action, factor in (("ignore", 2), ("error", 3), ("ignore", 2), ("error", 3)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # type: ignore[arg-type]
            assert compiled(torch.ones(1)) == factor
    assert len(jit.explain(compiled).programs) == 2


def test_filters_that_a_program_leaves_are_those_of_each_call() -> None:
    @jit
    def program(x: Tensor) -> Tensor:
        warnings.simplefilter("error", ResourceWarning)
        return x * 2

    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program(torch.ones(1))
            assert warnings.filters[0][:3] == ("error", None, ResourceWarning)


def test_a_warning_of_a_kernel_that_the_program_catches_is_no_answer_for_ever() -> None:
    def program(x: Tensor) -> Tensor:
        try:
            return x[:1].std().nan_to_num() + x
        except UserWarning:
            return x * 3

    compiled = jit(program)
    for action, expected in (("error", 3), ("ignore", 1), ("error", 3)):
        with warnings.catch_warnings():
            warnings.simplefilter(action, UserWarning)  # type: ignore[arg-type]
            # jit says that it runs in eager mode
            warnings.filterwarnings("ignore", message=".*in which this call ran", append=False)
            assert compiled(torch.ones(2)).tolist() == [expected] * 2


def test_a_program_that_records_its_warnings_finds_them() -> None:
    def records(x: Tensor) -> Tensor:
        with warnings.catch_warnings(record=True) as caught:
            warnings.warn("old", DeprecationWarning, stacklevel=1)
        return x * len(caught)

    compiled = jit(records)
    for action, factor in (("ignore", 0), ("always", 1), ("ignore", 0)):
        with warnings.catch_warnings():
            warnings.simplefilter(action)  # type: ignore[arg-type]
            assert compiled(torch.ones(1)) == factor


def test_a_switch_that_a_program_leaves_changed_is_changed_by_each_call() -> None:
    set_benchmark = torch._C._set_cudnn_benchmark

    @jit
    def program(x: Tensor) -> Tensor:
        set_benchmark(True)
        return x * 2

    before = backends.cudnn.benchmark
    try:
        for _ in range(3):
            set_benchmark(False)
            assert program(torch.ones(1)) == 2
            assert backends.cudnn.benchmark
    finally:
        set_benchmark(before)


def test_a_switch_that_a_program_puts_back_needs_one_program() -> None:
    @jit
    def program(x: Tensor) -> Tensor:
        with backends.cudnn.flags(enabled=False), torch.autocast("cpu", enabled=False):
            return x * (2 + backends.cudnn.enabled + torch.is_autocast_enabled("cpu"))

    for _ in range(4):
        assert program(torch.ones(1)) == 2
    assert len(jit.explain(program).programs) == 1


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("gc.isenabled", gc.isenabled),
        ("sys.getprofile", sys.getprofile),
        ("contextvars.copy_context", contextvars.copy_context),
        ("torch.Generator.initial_seed", torch.initial_seed),
    ],
)
def test_what_a_capture_changes_itself_is_refused(name: str, ask: Ask) -> None:
    compiled = jit(lambda x: x * (2 if ask() else 3))
    with pytest.raises(RuntimeError, match=f"calls {name}.*test_switches"):
        compiled(torch.ones(1))


@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")
@pytest.mark.parametrize("door", [lambda f: f, jit])
def test_a_backward_pass_looks_for_nan_where_its_caller_says_so(door: Any) -> None:
    x = torch.zeros(2, requires_grad=True)
    y = door(lambda x: x.sqrt() * 0)(x)
    with (
        pytest.raises(RuntimeError, match="returned nan values in its 0th output"),
        torch.autograd.detect_anomaly(),
    ):
        y.sum().backward()
