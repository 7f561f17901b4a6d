"""A compiler can ask which graph it compiles."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import runtime
from runtime import jit
from runtime.aot import aot_function, get_aot_compilation_context, get_aot_graph_name, nop


def test_each_graph_has_a_name_of_its_own_while_it_is_compiled() -> None:
    seen: list[tuple[str, str]] = []

    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        (name,), _, _ = get_aot_compilation_context()
        seen.append((name, get_aot_graph_name()))
        return nop(graph, examples)

    for x in (runtime.tensor([1.0], requires_grad=True), torch.ones(1)):
        f = aot_function(lambda x: x.sin().sum(), compiler)
        out = f(x)
        if out.requires_grad:
            out.backward()
    kinds = [name.partition("_")[2] for name, _ in seen]
    assert kinds == ["forward", "backward", "inference"]
    numbers = [int(name.partition("_")[0]) for name, _ in seen]
    assert numbers[0] == numbers[1] < numbers[2] and len({whole for _, whole in seen}) == 3
    assert all(name in whole for name, whole in seen)
    assert get_aot_compilation_context()[0] == []


def test_the_graphs_that_a_thread_compiles_are_counted_from_0() -> None:
    seen: list[tuple[int, str]] = []

    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        names, model, number = get_aot_compilation_context()
        assert (get_aot_graph_name(), model) == (f"model__{names[0]}_{number}", "model")
        seen.append((number, names[0].partition("_")[2]))
        return nop(graph, examples)

    def compile() -> None:
        assert get_aot_compilation_context() == ([], "model", 0)
        for n in (1, 2):
            aot_function(lambda x: x.sin().sum(), compiler)(
                runtime.tensor([1.0] * n, requires_grad=True)
            ).backward()

    with ThreadPoolExecutor(1) as thread:
        thread.submit(compile).result()
    assert seen == [(0, "forward"), (1, "backward"), (2, "forward"), (3, "backward")]


def test_a_compiler_that_fails_leaves_no_name_behind() -> None:
    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        raise KeyError("no such chip")

    with pytest.raises(KeyError, match="no such chip"):
        aot_function(torch.sin, compiler)(torch.ones(1))
    assert get_aot_compilation_context()[0] == []


def test_a_compiler_gets_a_graph_with_code_and_the_replay_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The replay makes code of its own, and to generate the other takes time."""
    generated: list[torch.fx.Graph] = []
    python_code = torch.fx.Graph.python_code

    def noted(graph: torch.fx.Graph, *args: Any, **options: Any) -> Any:
        generated.append(graph)
        return python_code(graph, *args, **options)

    monkeypatch.setattr(torch.fx.Graph, "python_code", noted)
    for _ in range(2):
        aot_function(torch.sin, nop)(torch.ones(1))
    assert not generated

    def keep(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        assert module.graph in generated and "aten.sin" in module.code
        return module

    assert aot_function(torch.sin, keep)(torch.zeros(1)).tolist() == [0.0]


def test_a_compiler_gets_a_graph_with_all_that_was_noted_about_it() -> None:
    """Where the new values of arguments belong, for instance."""
    noted: list[dict[str, Any]] = []

    def keep(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        noted.append(module.meta)
        return module

    x = torch.ones(1)
    jit(lambda x: x.add_(1), compiler=keep)(x)
    assert len(noted[0]["destinations"]) == 1 and x.tolist() == [2.0]
