"""Generated code is made when it is asked for, and its text is freed with it."""

import copy
import gc
import linecache
import pickle
import re
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
from tests.runtime.trace.graphs import node

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


def _reshapes(x: torch.Tensor) -> torch.Tensor:
    return x.sin().view(5).cos()


def _traced() -> Any:
    """A module that has its code from the start."""
    return aot.make_fx(_reshapes)(torch.ones(5))


def _half() -> Any:
    """The forward half of a joint graph, whose code is generated when somebody asks for it."""
    halves: list[Any] = []

    def partition(*args: Any, **options: Any) -> Any:
        halves.append(aot.default_partition(*args, **options)[0])
        return aot.default_partition(*args, **options)

    x = runtime.wrap(torch.ones(5), requires_grad=True)
    aot.aot_function(_reshapes, aot.nop, partition_fn=partition)(x).sum().backward()
    return halves.pop()


def _result(module: Any, x: torch.Tensor) -> torch.Tensor:
    """What a module returns first: a half also returns what it saves."""
    result = torch.utils._pytree.tree_leaves(module(x))[0]
    assert isinstance(result, torch.Tensor)
    return result


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


@pytest.mark.parametrize("make", [_traced, _half])
def test_a_traceback_shows_the_generated_line(make: Callable[[], Any]) -> None:
    module = make()
    assert "view" in module.code
    run = type(module).forward
    with pytest.raises(RuntimeError) as caught:
        run(module, X)
    del module, run
    gc.collect()
    shown = "".join(traceback.format_exception(caught.value))
    assert re.search(r"\n    view = torch\.ops\.aten\.view\.default\(.*, \[5\]\)", shown)


@pytest.mark.parametrize("make", [_traced, _half])
def test_code_that_is_generated_again_is_freed_again(make: Callable[[], Any]) -> None:
    make()
    before = _texts()
    module = make()
    for _ in range(5):
        module.recompile()
        assert "view" in module.code
    assert _texts()[0] == before[0] + 1
    del module
    assert _texts() == before


def test_a_late_module_runs_its_graph_as_it_is_now() -> None:
    module = _half()
    view = node(module, "view")
    for shape in ([3, 1], [1, 3]):
        view.args = (view.args[0], shape)
        module.recompile()
        assert list(_result(module, X).shape) == shape
        assert str(shape) in module.code


@pytest.mark.parametrize("make", [_traced, _half])
def test_copies_and_pickles_run(make: Callable[[], Any]) -> None:
    module = make()
    for again in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(_result(again, torch.arange(5.0)), torch.arange(5.0).sin().cos())


def test_a_compiler_gets_the_name_and_the_notes_of_a_half() -> None:
    halves, modules = [], []

    def partition(*args: Any, **options: Any) -> Any:
        cut = aot.default_partition(*args, **options)
        cut[0].meta["note"] = 3
        halves.append(cut[0])
        return cut

    def keep(module: fx.GraphModule, _: list[Any]) -> Any:
        modules.append(module)
        return module.forward

    _train(keep, partition_fn=partition)
    assert modules[0].meta["note"] == 3
    assert type(modules[0]).__name__ == type(halves[0]).__name__
    assert "<eval_with_key>" in type(modules[0]).forward.__code__.co_filename


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
