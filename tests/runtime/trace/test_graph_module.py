"""Generated code is made when it is asked for, and its text is freed with it."""

import copy
import gc
import linecache
import pickle
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.graph_module import _loader

import runtime
from runtime import aot
from runtime.trace.graph_module import GraphModule, LateGraphModule, complete

X = torch.ones(3)


def _texts() -> tuple[int, int]:
    gc.collect()
    return len(_loader.eval_cache), len(
        [name for name in linecache.cache if name.startswith("<eval_with_key>")]
    )


def _train(compiler: Any, **options: Any) -> None:
    x = runtime.wrap(X.clone(), requires_grad=True)
    aot.aot_function(lambda x: (x * x).sin().sum(), compiler, **options)(x).backward()


CAPTURES: dict[str, Callable[[], object]] = {
    "the replay": lambda: _train(aot.nop),
    "min cut": lambda: _train(aot.nop, partition_fn=aot.min_cut_rematerialization_partition),
    "another compiler": lambda: _train(lambda module, _: module.forward),
    "make_fx": lambda: aot.make_fx(torch.sin)(X),
    "a branch": lambda: aot.make_fx(lambda x: aot.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))(X),
    "linearize": lambda: runtime.func.linearize(torch.sin, X)[1](X),
}


@pytest.mark.parametrize("capture", CAPTURES.values(), ids=CAPTURES)
def test_twenty_captures_leave_no_text(capture: Callable[[], object]) -> None:
    capture()
    before = _texts()
    for _ in range(20):
        capture()
    assert _texts() == before


def _graph() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.reshape, (x, (5,))))
    return graph


def test_a_replay_generates_no_code_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    monkeypatch.setattr(fx.GraphModule, "recompile", made.append)
    _train(aot.nop)
    assert made == []


def test_a_compiler_takes_a_module_with_code() -> None:
    forwards: list[Any] = []

    def keep(module: fx.GraphModule, _: list[Any]) -> Any:
        forwards.append(type(module).forward)
        return module.forward

    _train(keep)
    assert len(forwards) == 2 and all("<eval_with_key>" in f.__code__.co_filename for f in forwards)


@pytest.mark.parametrize("kind", [GraphModule, LateGraphModule])
def test_a_traceback_shows_the_generated_line(kind: type[fx.GraphModule]) -> None:
    module = kind(torch.nn.Module(), _graph())
    module = complete(module)
    run = type(module).forward
    with pytest.raises(RuntimeError) as caught:
        run(module, X)
    del module, run
    gc.collect()
    assert "reshape = torch.reshape(x, (5,))" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("kind", [GraphModule, LateGraphModule])
def test_code_that_is_generated_again_is_freed_again(kind: type[fx.GraphModule]) -> None:
    before = _texts()
    module = kind(torch.nn.Module(), _graph())
    for _ in range(5):
        module.recompile()
        assert "reshape" in module.code
    assert _texts()[0] == before[0] + 1
    del module
    assert _texts() == before


def test_a_late_module_runs_its_graph_as_it_is_now() -> None:
    module = LateGraphModule(torch.nn.Module(), _graph())
    (reshape,) = (n for n in module.graph.nodes if n.op == "call_function")
    reshape.args = (reshape.args[0], (3, 1))
    module.recompile()
    assert module(X).shape == (3, 1)
    reshape.args = (reshape.args[0], (1, 3))
    module.recompile()
    assert module(X).shape == (1, 3) and "(1, 3)" in module.code


@pytest.mark.parametrize("kind", [GraphModule, LateGraphModule])
def test_copies_and_pickles_run(kind: type[fx.GraphModule]) -> None:
    module = kind(torch.nn.Module(), _graph())
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(again(torch.arange(5)), torch.arange(5))


def test_a_module_with_code_has_the_name_and_the_notes_of_the_late_one() -> None:
    late = LateGraphModule(torch.nn.Module(), _graph(), "Part")
    late.meta["note"] = 3
    made = complete(late)
    assert type(made).__name__ == "Part" and made.meta["note"] == 3 and complete(made) is made


def test_a_compiler_may_change_its_graph_and_script_it() -> None:
    def scripted(module: Any, examples: list[Any]) -> Any:
        for n in module.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default):
            n.target = torch.sin
        module.recompile()
        return torch.jit.script(module)

    with warnings.catch_warnings():
        # torch.jit.script is to go, and warns of attributes without types
        warnings.simplefilter("ignore")
        found = aot.aot_function(lambda x: x.sin(), scripted)(torch.ones(2))
    assert torch.equal(found, torch.ones(2).sin())
