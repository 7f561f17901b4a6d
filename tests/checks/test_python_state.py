"""Programs with a state in Python: each part of the grammar occurs, each change shows, right
targets pass, and each kind of fault of a jit is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch.fx.experimental.proxy_tensor import make_fx

import runtime
from gen.checks.compare import Tally
from gen.checks.python_state import assert_seen, describe, names_line_of, run_program, two_modules
from gen.language.axes import AXES
from gen.outcomes import Mismatch, Unsuitable
from gen.targets import load
from programs.state import paths
from programs.state.changes import CHANGES
from programs.state.grammar import Path
from programs.state.holders import HOLDERS
from programs.state.moments import MOMENTS

PATHS = {name: path for name, path in vars(paths).items() if isinstance(path, Path)}
MATRIX = FilePath(__file__).parent.parent.parent / "matrix/state.yaml"
ROWS = "programs.state.paths."


def programs() -> Iterator[tuple[str, str, str, str]]:
    """The path, holder, change and moment of each program of the family."""
    for name, path in PATHS.items():
        for moment in MOMENTS:
            for holder, change in path.programs(moment):
                yield name, holder, change, moment


def sample_of(path: str) -> Any:
    x = torch.tensor([0.5, 1.25, -0.75, 2.0], dtype=torch.float64)
    return SimpleNamespace(inputs=(x,), op=SimpleNamespace(call=PATHS[path], name=ROWS + path))


def target_of(jit: Callable[..., Any]) -> Any:
    return SimpleNamespace(name="planted", lacks=(), jit=jit)


def test_the_matrix_names_each_path_and_each_moment() -> None:
    family = yaml.safe_load(MATRIX.read_text())
    rows = [row["op"].removeprefix(ROWS) for row in family["families"]["state"]["ops"]]
    assert rows == list(PATHS)
    moments = family["checks"]["state_of_jit"]["over"]["moment"]
    assert moments == list(MOMENTS) == list(AXES["moment"])


def test_each_pair_of_parts_occurs_in_a_program() -> None:
    tables: list[dict[str, Any]] = [PATHS, HOLDERS, CHANGES, MOMENTS]
    found = list(programs())
    assert len(found) == len(set(found)) >= 2000
    for a, b in combinations(range(4), 2):
        pairs = {(program[a], program[b]) for program in found}
        assert len(pairs) == len(tables[a]) * len(tables[b])


def test_each_program_is_one_of_python() -> None:
    for name, holder, change, moment in programs():
        compile(PATHS[name].text(holder, change, moment), f"{name} {holder}", "exec")


def altered_and_not(holder: str, change: str) -> tuple[Any, Any]:
    """Results of a second call of two runs of a program: with an alteration before it, and without
    one."""
    x = torch.ones(3, dtype=torch.float64)
    with two_modules(PATHS["plain"].text(holder, change, "between"), holder) as (altered, plain):
        altered.step(x)
        plain.step(x)
        assert altered.alter() == ""
        return describe(altered.step(x)), describe(plain.step(x))


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_shows_in_the_next_result(change: str) -> None:
    altered, plain = altered_and_not("global", change)
    assert altered != plain


@pytest.mark.parametrize("holder", sorted(HOLDERS.keys() - {"generator"}))
def test_each_holder_has_the_value_that_it_was_given(holder: str) -> None:
    altered, plain = altered_and_not(holder, "number")
    assert plain == describe(torch.ones(3, dtype=torch.float64) * 2.0)
    assert altered == describe(torch.ones(3, dtype=torch.float64) * 2.5)


def outcome(jit: Callable[..., Any], path: str, holder: str, change: str, moment: str) -> str:
    """What the family says of a program under ``jit``."""
    try:
        refused = run_program(target_of(jit), sample_of(path), holder, change, moment)
    except Mismatch as error:
        return str(error)
    except Unsuitable:
        return "unsuitable"
    return "right" if refused is None else "refused"


def test_plain_python_is_right() -> None:
    tally = Tally()
    for path in list(PATHS)[::7]:
        assert_seen(target_of(lambda f: f), sample_of(path), "inside_before", tally)
    assert tally.entries > 30


@pytest.mark.parametrize("path", ["super_method", "function_backward", "training_step"])
def test_the_jit_of_this_package_is_right(path: str) -> None:
    for moment in ("between", "inside_before"):
        assert outcome(runtime.jit, path, "attribute", "number", moment) == "right"


def test_the_jit_of_this_package_refuses_what_no_call_does_again() -> None:
    assert outcome(runtime.jit, "plain", "attribute", "zip", "between") == "refused"


def stale(f: Callable[..., Any]) -> Callable[..., Any]:
    """A jit that goes on with the state of its first call."""
    graphs: dict[Any, Any] = {}

    def run(x: Any, flag: bool = False) -> Any:
        key = (x.shape, flag)
        if key not in graphs:
            graphs[key] = make_fx(lambda x: f(x, flag) if flag else f(x))(x)
        return graphs[key](x)

    return run


STALE = [
    ("plain", "attribute", "number", "between"),
    ("super_method", "class_attribute", "function", "between"),
    ("function_backward", "cell", "sign", "between"),
    ("nested", "dict", "list_grows", "in_thread"),
    ("module_hook", "context_variable", "equal_object", "between_often"),
    ("generator", "weak_reference", "whole_to_float", "by_other_program"),
    ("callback", "slot", "attribute_of_object", "inside_before"),
    ("comprehension", "default", "disappears", "between"),
    ("matched", "partial", "tensor_size", "between_kinds"),
]


@pytest.mark.parametrize("program", STALE, ids=" ".join)
def test_a_jit_that_ignores_state_is_found(program: tuple[str, str, str, str]) -> None:
    assert outcome(lambda f: f, *program) == "right"
    assert "plain Python" in outcome(stale, *program)


def test_a_jit_that_ignores_state_is_found_in_most_programs() -> None:
    chosen = [program for program in programs() if program[3] == "between_often"][::10]
    found = [outcome(stale, *program) for program in chosen]
    asked = [text for text in found if text != "unsuitable"]
    assert sum(text != "right" for text in asked) > 0.9 * len(asked) > 18


def doubled(f: Callable[..., Any]) -> Callable[..., Any]:
    """A jit that runs a program once more than it is called."""

    def run(x: Any, *flags: Any) -> Any:
        result = f(x, *flags)
        f(x, *flags)
        return result

    return run


def test_a_jit_with_effects_too_many_is_found() -> None:
    text = outcome(doubled, "plain", "attribute", "number", "inside_after")
    assert "leaves the state ('float', '3.0'), plain Python leaves ('float', '2.5')" in text


def nameless(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(x: Any, *flags: Any) -> Any:
        raise RuntimeError("no")

    return run


def test_a_refusal_without_a_line_is_found() -> None:
    text = outcome(nameless, "plain", "attribute", "number", "between")
    assert "an error without a line of the program: RuntimeError('no')" in text


def refusing(f: Callable[..., Any]) -> Callable[..., Any]:
    """A jit that refuses a program after it has run."""

    def run(x: Any, *flags: Any) -> Any:
        f(x, *flags)
        raise RuntimeError(f"no {f.__code__.co_filename}:1")

    return run


def test_a_refusal_that_leaves_another_state_is_found() -> None:
    assert outcome(refusing, "plain", "attribute", "number", "between") == "refused"
    text = outcome(refusing, "plain", "attribute", "number", "inside_before")
    assert "refused, but the state is ('float', '2.5'), it was ('float', '2.0')" in text


def test_all_programs_of_a_cell_that_fail_are_named() -> None:
    with pytest.raises(Mismatch) as caught:
        assert_seen(target_of(nameless), sample_of("plain"), "between", Tally())
    named = [line.split(":")[0] for line in str(caught.value).splitlines()]
    cell = [f"{holder}, {change}, between" for holder, change in PATHS["plain"].programs("between")]
    assert named == cell


def test_a_program_that_python_refuses_is_none() -> None:
    with pytest.raises(Unsuitable, match="the plain program raises TypeError"):
        run_program(load("runtime"), sample_of("plain"), "metaclass", "function", "between")


def test_a_line_in_a_note_or_a_traceback_counts() -> None:
    assert names_line_of("a/b.py", RuntimeError("at a/b.py:3: x"))
    assert not names_line_of("a/b.py", RuntimeError("at a/c.py:3: x"))
    noted = RuntimeError("no")
    noted.add_note("at a/b.py:3")
    assert names_line_of("a/b.py", noted)


def test_a_description_tells_equal_objects_apart() -> None:
    values = [1, 1.0, True, 0.0, -0.0, {1}, {1.0}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, [1], (1,)]
    described = [repr(describe(value)) for value in values]
    assert len(set(described)) == len(values)
