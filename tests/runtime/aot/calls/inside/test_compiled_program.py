"""Which ways a call takes, and what an error notes of lines that have run.

Inside: ``runtime.aot.calls.compiled_program`` and ``graph_writes``. Each way gives the same
results, and a graph fails between two of its lines only if memory runs out just there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot import aot_function, nop
from runtime.aot.calls.arguments import enter, flatten
from runtime.aot.calls.compiled_function import function_of
from runtime.aot.calls.compiled_program import CompiledProgram
from runtime.aot.calls.graph_writes import count, note_partial_effects
from runtime.aot.calls.known_programs import Programs
from runtime.aot.calls.program_capture import capture
from runtime.aot.capture.boundary import Input
from runtime.aot.capture.joint import joint_graph
from runtime.aot.compilers import boxed
from runtime.aot.compilers.staged import Staged


def leaf(*values: float) -> Any:
    return runtime.wrap(torch.tensor(values), requires_grad=True)


def program_of(f: Callable[..., Any], *args: Any, **options: Any) -> CompiledProgram:
    recipe = aot_function(f, nop, **options).recipe  # type: ignore[attr-defined]
    given, spec = flatten(args, {})
    call = enter(given, True, False)
    assert call is not None
    program: CompiledProgram = capture(recipe, spec, call, True)
    return program


def added(x: Any) -> Any:
    x.add_(1)
    return x * 2


def begun(x: Any) -> Any:
    return x.requires_grad_()


def hooked(x: Any) -> Any:
    x.register_hook(lambda g: g)
    return x * 2


def other_mode(module: nn.Module, x: Any) -> Any:
    module.eval()
    return x * 2


PLAIN: dict[str, tuple[Callable[..., Any], tuple[int, ...] | None]] = {
    "a result": (lambda x: x * 2, (0,)),
    "results in another order": (lambda x: [x * 2, x + 1], (0, 1)),
    "one twice": (lambda x: (lambda y: (y, y))(x * 2), None),
    "an argument": (lambda x: x, None),
    "a number beside it": (lambda x: (x * 2, 1), None),
    "a view": (lambda x: x[0], None),
    "a view of a result and the result": (lambda x: (lambda y: (y, y[0]))(x * 2), None),
    "a leaf": (lambda x: (x * 2).requires_grad_(), None),
    "a write": (added, None),
    "a change of geometry": (lambda x: (x.unsqueeze_(0), x * 2)[1], None),
    "an argument that becomes a leaf": (begun, None),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_program_that_only_computes_gives_the_results_of_its_graph(name: str) -> None:
    f, direct = PLAIN[name]
    assert program_of(f, torch.ones(2)).direct == direct


def test_a_program_with_a_backward_or_that_changes_a_mode_does_more() -> None:
    module = nn.Dropout()
    assert program_of(lambda x: x * 2, leaf(1.0)).direct is None
    found = program_of(lambda x: other_mode(module, x), torch.ones(2))
    (change,) = found.effects.changes
    assert found.direct is None
    assert (change.node.owner, change.label, change.now) == (module, "training", False)


def test_a_program_knows_what_it_does_to_its_arguments() -> None:
    found = program_of(lambda x, y: (added(x), y.t_(), y * 1), torch.ones(2), torch.ones(2, 3))
    changes = found.changes
    assert [i for i, _ in changes.written] == [0]
    assert [i for i, _ in changes.reshaped] == [1] and changes.begun == []
    assert found.history is None and found.results.n_forward == 3
    found = program_of(lambda x, y: (hooked(x), begun(y)), leaf(1.0), torch.ones(1))
    changes = found.changes
    assert [i for i, _ in changes.hooked] == [0] and changes.begun == [1]
    assert changes.replaced == [] and found.history is not None
    assert found.history.tangents == [(0, 0)]


def test_an_exported_graph_takes_plain_tensors() -> None:
    two = TwoTensor(torch.ones(1), torch.ones(1))
    with pytest.raises(
        RuntimeError,
        match="a TwoTensor is among the inputs, and an exported graph takes plain tensors",
    ):
        joint_graph(lambda x, y: x * 2, [two, two], [False, False], whole=True)


def steps(plain: Any) -> None:
    plain.append(1)
    if len(plain) > 2:
        raise ValueError("graph")
    plain.append(2)


FIRST = steps.__code__.co_firstlineno


def notes(forward: Any, error: BaseException, begun: tuple[str, ...] = ()) -> list[str]:
    leaves = [torch.ones(2), torch.ones(2, 3).double(), torch.ones(1), leaf(1.0)]
    note_partial_effects(error, begun, forward, leaves, 2)
    return [note.split("had done: ")[1] for note in getattr(error, "__notes__", [])]


def failed(forward: Any) -> BaseException:
    try:
        forward([1, 2])
    except ValueError as error:
        return error
    raise AssertionError


def test_an_error_tells_the_writes_of_the_lines_that_have_run() -> None:
    forward: Any = lambda plain: steps(plain)  # noqa: E731
    forward.__code__ = steps.__code__
    forward.writes = {0: FIRST + 1, 1: FIRST + 3, 2: FIRST + 3, 3: FIRST + 4}
    first = "an argument, float32[2], has its new value"
    second, third = (
        "an argument, float64[2, 3], has its new value (perhaps in part)",
        "a tensor that the function closes over, float32[1]",
    )
    assert notes(forward, failed(forward)) == [
        f"{first}; {second}; {third}, has its new value (perhaps in part)."
    ]
    assert notes(forward, failed(forward), ("before",))[0].startswith(f"before; {first};")
    forward.writes = {0: FIRST + 4}
    assert notes(forward, failed(forward)) == [] and notes(
        forward, failed(forward), ("before",)
    ) == ["before."]


def test_an_error_of_a_graph_without_lines_tells_all_its_writes_as_perhaps_made() -> None:
    forward: Any = type("Forward", (), {"placed": {3: 1, 1: 0}})()
    third = (
        "a tensor that the function closes over, float32[1], has its new value (perhaps in part)"
    )
    second = "an argument, float64[2, 3], has its new value (perhaps in part)"
    assert notes(forward, ValueError()) == [f"{third}; {second}."]
    assert notes(object(), ValueError()) == []


def test_an_error_of_a_graph_leaves_views_of_what_it_wrote_without_their_old_history() -> None:
    base: Any = leaf(1.0, 2.0) * 1
    view = base[:1]
    forward: Any = type("Forward", (), {"placed": {0: 0}})()
    note_partial_effects(ValueError(), (), forward, [view], 1)
    written: Any = leaf(1.0, 2.0) * 1
    count({0: 1}, [written[:1]])
    assert base._generation == written._generation == 1


def test_a_version_advances_by_what_it_is_behind() -> None:
    leaves = [torch.ones(2), torch.ones(2), torch.ones(2)]
    count({0: 2, 2: 0}, leaves)
    assert [t._version for t in leaves] == [2, 0, 0]


def test_generated_code_takes_the_place_of_what_runs_the_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(boxed, "Staged", Staged)
    recipe = aot_function(lambda x: x.sin(), nop).recipe  # type: ignore[attr-defined]
    programs = Programs(recipe)
    f = function_of(recipe, programs)
    kinds: list[tuple[bool, bool]] = []
    find = programs.find
    found: list[CompiledProgram] = []

    def noted(*args: Any) -> Any:
        program, call = find(*args)
        found.append(program)
        return program, call

    monkeypatch.setattr(programs, "find", noted)
    for _ in range(3):
        f(leaf(1.0)).backward()
        program = found[-1]
        assert program.history is not None
        backward = program.history.backward
        kinds.append((isinstance(program.forward, Staged), isinstance(backward.function, Staged)))
    assert kinds[0] == (True, True) and kinds[-1] == (False, False)


def test_nothing_is_written_where_the_program_writes_nothing() -> None:
    target = torch.zeros(2)
    Input(False).write(target, torch.ones(2), False)
    assert target.tolist() == [0.0, 0.0] and target._version == 0


@pytest.mark.parametrize("size", [2, 3])
def test_a_new_value_of_an_expanded_dimension_must_be_one_number(size: int) -> None:
    base = torch.zeros(2, 1)
    different = torch.tensor([[1.0] * size, [2.0] * (size - 1) + [3.0]])
    with pytest.raises(RuntimeError, match="a part of an expanded argument"):
        Input(False, True, None, 1).write(base.expand(2, size), different, False)
    assert base.tolist() == [[0.0], [0.0]]
