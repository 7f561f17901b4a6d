"""What the process does in which Inductor is tried, in this process, with a compiler in the place
of Inductor that takes no time.

Inside: ``runtime.aot.compilers.trial_process``. What another process does with a request is told
by its answer alone, and Inductor takes minutes."""

from __future__ import annotations

import copyreg
import importlib
import os
import pickle
import signal
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from runtime.aot.compilers import trial_process
from runtime.aot.compilers.trial_process import (
    _number,
    _read,
    _set_state,
    _state,
    _try,
    _zeros,
    cause,
    request,
    with_key,
)

Compiler = Callable[..., Any]


@pytest.fixture
def state() -> Iterator[dict[str, Any]]:
    before = _state()
    yield before
    _set_state(before)


CHANGES = {
    "threads": 2,
    "deterministic": (True, True),
    "precision": "high",
    "dtype": torch.float64,
    "grad": False,
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_state_of_torch_is_taken_over(state: dict[str, Any], name: str) -> None:
    assert state[name] != CHANGES[name] and CHANGES.keys() == state.keys()
    _set_state({**state, name: CHANGES[name]})
    assert _state() == {**state, name: CHANGES[name]}
    _set_state(state)
    assert _state() == state


def test_determinism_may_be_an_error_or_a_warning(state: dict[str, Any]) -> None:
    for deterministic in ((True, False), (True, True), (False, False)):
        _set_state({**state, "deterministic": deterministic})
        assert (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ) == deterministic


def test_a_cause_is_the_first_line_of_the_innermost_error() -> None:
    assert cause(ValueError(" no way.\nat all")) == "ValueError: no way"
    assert cause(ValueError("")) == "ValueError: "
    assert (
        cause(BackendCompilerFailed(lambda: None, KeyError("inner"), None)) == "KeyError: 'inner'"
    )
    odd = ValueError("outer")
    odd.inner_exception = "no error"  # type: ignore[attr-defined]
    assert cause(odd) == "ValueError: outer"


def _fakes(shape_env: ShapeEnv | None = None) -> tuple[FakeTensorMode, list[torch.Tensor]]:
    mode = FakeTensorMode(shape_env=shape_env)
    return mode, [mode.from_tensor(torch.ones(3, 2))]


def test_in_the_context_of_a_key_a_mode_has_an_environment_and_a_format_has_a_name() -> None:
    mode, values = _fakes()
    environments: list[Any] = [mode.shape_env]
    with with_key([1, *values]):
        environments.append(mode.shape_env)
        context = TracingContext.try_get()
        assert context is not None and context.fake_mode is mode
        named: Any = copyreg.dispatch_table[torch.memory_format](torch.channels_last)
        assert named[0](*named[1]) is torch.channels_last
    assert list(map(type, [*environments, mode.shape_env])) == [type(None), ShapeEnv, type(None)]
    assert TracingContext.try_get() is None and torch.memory_format not in copyreg.dispatch_table


def test_the_context_of_a_key_is_left_after_an_error_too_and_keeps_what_was_there() -> None:
    own = ShapeEnv()
    mode, values = _fakes(own)
    copyreg.pickle(torch.memory_format, trial_process._by_name)
    try:
        with pytest.raises(KeyError), with_key(values):
            assert mode.shape_env is own
            raise KeyError
        assert mode.shape_env is own and torch.memory_format in copyreg.dispatch_table
    finally:
        del copyreg.dispatch_table[torch.memory_format]
    with with_key([torch.ones(2), 3]):
        assert TracingContext.try_get() is None


def test_zeros_have_the_layout_and_a_symbol_its_present_value() -> None:
    x = torch.empty(3, 2, dtype=torch.int16, device="meta").t()
    zeros = _zeros(torch.empty(10, dtype=torch.int16)[3:9].view(3, 2).t())
    assert (zeros.shape, zeros.stride(), zeros.storage_offset(), zeros.dtype) == (
        x.shape,
        x.stride(),
        3,
        x.dtype,
    ) and not zeros.any()
    assert zeros.untyped_storage().nbytes() == 2 * (3 + 6)
    assert (
        _zeros(x).device.type == "meta"
        and _zeros(x[:, :0]).device.type == "meta"
        and _zeros(x[:, :0]).shape == (2, 0)
    )
    mode, _ = _fakes(ShapeEnv())
    n: Any = mode.from_tensor(torch.ones(5, 7)).shape[0]
    assert isinstance(n, torch.SymInt) and (_zeros(n), type(_zeros(n)), _number(5)) == (5, int, 5)


def graph_of(f: Callable[..., Any], *args: torch.Tensor) -> tuple[fx.GraphModule, list[Any]]:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    values: list[Any] = [mode.from_tensor(a, static_shapes=True) for a in args]
    with mode:
        traced = torch.fx.experimental.proxy_tensor.make_fx(f)(*values)
    return traced, values


def test_a_request_is_read_as_it_was_made(state: dict[str, Any]) -> None:
    graph, values = graph_of(lambda x: [torch.mm(x, x).sin()], torch.ones(2, 2))
    next(iter(graph.graph.nodes)).meta["own"] = object()
    head, content = request(graph, values, 7.5)
    said = importlib.import_module("pickle").loads(head)
    assert said == {"limit": 7.5, "operators": ["aten"], "state": state, "cpp_wrapper": False}
    _set_state({**state, "grad": False})
    read, inputs, config = _read(said, content)
    assert _state() == state
    assert [str(n.target) for n in read.graph.nodes] == [str(n.target) for n in graph.graph.nodes]
    assert inputs[0].shape == (2, 2) and hasattr(config, "__enter__")
    assert [sorted(n.meta) for n in read.graph.nodes][:2] == [["tensor_meta", "val"]] * 2
    assert torch.equal(read(torch.ones(2, 2))[0], torch.full((2, 2), 2.0).sin())


def test_a_request_may_have_symbols_of_every_kind(state: dict[str, Any]) -> None:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    x: Any = mode.from_tensor(torch.ones(5, 7))
    n, m = x.shape
    given = [x, n, torch.sym_float(n) / 2, n > m]
    env.tracked_fakes = [object(), lambda: None]  # which is no part of a request
    head, content = request(fx.symbolic_trace(lambda x, n, f, b: [x * n]), given, 1.0)
    _, read, _ = _read(importlib.import_module("pickle").loads(head), content)
    assert [type(v) for v in read[1:]] == [torch.SymInt, torch.SymFloat, torch.SymBool]
    assert [v.node.hint for v in read[1:]] == [5, 2.5, False] and [
        s.node.hint for s in read[0].shape
    ] == [5, 7]
    environments = {id(v.node.shape_env) for v in (*read[1:], *read[0].shape)}
    assert environments == {id(read[0].fake_mode.shape_env)} and id(env) not in environments
    assert [str(s) for s in read[0].shape] == [str(n), str(m)] and str(read[1]) == str(n)


def test_a_graph_that_was_read_computes_abstract_values_with_its_constants(
    state: dict[str, Any],
) -> None:
    graph, values = graph_of(lambda x: [x.sin()], torch.ones(2, 2))
    graph.register_buffer("held", torch.full((2, 2), 3.0))
    (sin,) = (n for n in graph.graph.nodes if n.op == "call_function")
    with graph.graph.inserting_before(sin):
        held = graph.graph.get_attr("held")
        sin.replace_input_with(
            sin.args[0], graph.graph.call_function(torch.ops.aten.add.Tensor, (sin.args[0], held))
        )
    graph.recompile()
    head, content = request(graph, values, 1.0)
    read, inputs, _ = _read(importlib.import_module("pickle").loads(head), content)
    with inputs[0].fake_mode:
        (found,) = read(*inputs)
    assert found.shape == (2, 2) and type(found) is type(inputs[0])


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[Compiler], None]:
    def put(compiler: Compiler) -> None:
        module: Any = types.ModuleType("torch._inductor.compile_fx")
        module.compile_fx_inner = compiler
        monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", module)

    return put


def tried(
    f: Callable[..., Any] = lambda x: [x.sin()], **changes: Any
) -> tuple[tuple[str, str], list[str]]:
    head, content = request(*graph_of(f, torch.ones(2, 2)), 1.0)
    said: list[str] = []
    answer = _try(
        {**importlib.import_module("pickle").loads(head), **changes}, content, said.append
    )
    return answer, said


def _raises(error: BaseException) -> Callable[..., Any]:
    def run(*_: Any, **__: Any) -> Any:
        raise error

    return run


def test_a_trial_compiles_and_runs_on_zeros_below_autograd(
    stand_in: Callable[[Compiler], None],
) -> None:
    ran: list[tuple[list[Any], bool]] = []

    def compiler(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        assert inputs[0].shape == (2, 2) and not ran
        return lambda given: ran.append(
            (given, torch.ones(1, requires_grad=True).sin().requires_grad)
        )

    stand_in(compiler)
    assert tried() == (("done", ""), ["compiled"])
    (((zeros,), recorded),) = ran
    assert torch.equal(zeros, torch.zeros(2, 2)) and not recorded


@pytest.mark.parametrize(
    "compiler, answer, said",
    [
        (_raises(KeyError("no kernel")), ("error", "KeyError: 'no kernel'"), []),
        (lambda *_, **__: _raises(ValueError("of zeros")), ("done", ""), ["compiled"]),
        (
            lambda *_, **__: _raises(AssertionError(" other strides\nat 7")),
            ("error", "its code expects another layout than a kernel gives: other strides"),
            ["compiled"],
        ),
    ],
)
def test_a_trial_answers_what_has_happened(
    stand_in: Callable[[Compiler], None],
    compiler: Compiler,
    answer: tuple[str, str],
    said: list[str],
) -> None:
    stand_in(compiler)
    assert tried() == (answer, said)


def test_code_with_a_wrapper_in_cpp_is_compiled_of_a_graph_that_was_right_without(
    stand_in: Callable[[Compiler], None],
) -> None:
    compiled: list[tuple[bool, bool, fx.GraphModule]] = []
    options: Any = importlib.import_module("torch._inductor.config")

    def compiler(graph: fx.GraphModule, inputs: list[Any], *, cpp_wrapper: bool = False) -> Any:
        assert options.cpp_wrapper == cpp_wrapper
        compiled.append((cpp_wrapper, options.size_asserts, graph))
        return lambda given: None

    stand_in(compiler)
    assert tried(cpp_wrapper=True) == (("done", ""), ["compiled", "ran", "compiled"])
    assert [kind for *kind, _ in compiled] == [[False, True], [True, False]]
    # Inductor changes the graph that it compiles
    assert compiled[0][2] is not compiled[1][2]
    stand_in(lambda *_, **__: _raises(AssertionError("strides")))
    answer, said = tried(cpp_wrapper=True)
    assert answer[0] == "error" and said == ["compiled"]


def test_a_loop_is_compiled_and_not_run(stand_in: Callable[[Compiler], None]) -> None:
    def loop(x: torch.Tensor) -> Any:
        return torch.while_loop(lambda y: y.sum() < 3, lambda y: (y + 1,), (x.clone(),))

    stand_in(lambda *_, **__: _raises(AssertionError("it ran")))
    assert tried(loop) == (("done", ""), ["compiled"])


def test_what_cannot_be_read_is_told(stand_in: Callable[[Compiler], None]) -> None:
    stand_in(_raises(AssertionError("not asked")))
    (word, text), said = tried(state={})
    assert (word, text, said) == ("unread", "KeyError: 'threads'", [])


def test_the_operators_of_a_request_are_looked_for_in_a_library_of_their_name(
    monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[Compiler], None]
) -> None:
    sought: list[str] = []
    original = importlib.import_module

    def seeking(name: str, package: str | None = None) -> Any:
        sought.append(name)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", seeking)
    stand_in(lambda *_, **__: lambda given: None)
    monkeypatch.setitem(trial_process._MODULES, "a_library_elsewhere", "no.such.place")
    assert tried(operators=["aten", "no_such_library", "a_library_elsewhere"])[0] == ("done", "")
    assert "no_such_library" in sought and "no.such.place" in sought
    assert not {"aten", "a_library_elsewhere"} & set(sought)


def test_the_process_says_when_it_is_ready_and_limits_the_time_of_each_trial(
    monkeypatch: pytest.MonkeyPatch, stand_in: Callable[[Compiler], None]
) -> None:
    timers: list[tuple[int, float]] = []
    filters: list[Any] = []
    seen: list[tuple[Any, bytes]] = []

    def trying(head: Any, content: bytes, report: Callable[[str], None]) -> tuple[str, str]:
        seen.append((head, content))
        report("compiled")
        return "done", str(len(timers))

    stand_in(_raises(AssertionError()))
    monkeypatch.setattr(trial_process, "_try", trying)
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: timers.append((which, seconds)))
    monkeypatch.setattr(warnings, "simplefilter", filters.append)
    mine, other = Pipe()
    monkeypatch.setattr(sys, "argv", ["program", str(os.dup(other.fileno()))])
    other.close()
    thread = threading.Thread(target=trial_process.main)
    thread.start()
    answers = [mine.recv()]
    for content in (b"first", b"second"):
        mine.send_bytes(pickle.dumps({"limit": 7.0}))
        mine.send_bytes(content)
        answers += [mine.recv(), mine.recv()]
    mine.close()
    thread.join(60)
    assert not thread.is_alive() and filters == ["ignore"]
    assert answers == [
        ("ready", ""),
        ("compiled", ""),
        ("done", "1"),
        ("compiled", ""),
        ("done", "3"),
    ]
    assert seen == [({"limit": 7.0}, b"first"), ({"limit": 7.0}, b"second")]
    assert timers == [(signal.ITIMER_REAL, 7.0 + trial_process.GRACE), (signal.ITIMER_REAL, 0)] * 2
