"""Programs with a state in Python: each part of the grammar occurs, each change shows, right
targets pass, and each kind of fault of a jit is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
import yaml
from torch.fx.experimental.proxy_tensor import make_fx

import runtime
from gen.language.axes import AXES
from gen.outcomes import Mismatch, Vacuous
from gen.targets.torch_target import TorchTarget
from programs.state import paths, ways
from programs.state.changes import CHANGES, Change
from programs.state.grammar import Path
from programs.state.holders import HOLDERS
from programs.state.moments import MOMENTS, PASSES
from programs.state.more_changes import MORE_CHANGES
from tests.checks.cells import case, row_of

PATHS = {name: path for name, path in vars(paths).items() if isinstance(path, Path)}
WAYS = {name: path for name, path in vars(ways).items() if isinstance(path, Path)}
GROUPS = [(PATHS, CHANGES), (WAYS, MORE_CHANGES)]  # rows, and the changes that they make
MATRIX = FilePath(__file__).parent.parent.parent / "matrix/state.yaml"
ROWS = "programs.state.paths."


def programs(rows: Mapping[str, Path] = PATHS) -> Iterator[tuple[str, str, str, str]]:
    """The path, holder, change and moment of each program of some rows of the family."""
    for name, path in rows.items():
        for moment in (*MOMENTS, *PASSES):
            for holder, change in path.programs(moment):
                yield name, holder, change, moment


class One:
    """One program of a path, or one that a test writes, as the op of a row."""

    path: Path
    program: tuple[str, str] = ("global", "number")
    written: str | None = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def programs(self, moment: str) -> list[tuple[str, str]]:
        return [self.program]

    def text(self, holder: str, change: str, moment: str) -> str:
        return self.written or self.path.text(holder, change, moment)

    def calls(self, moment: str) -> str:
        return self.path.calls(moment)


one = One()


class Jitting(TorchTarget):
    """A target with a jit of its own. It notes the errors of jitted calls."""

    lacks = frozenset[str]()

    def __init__(self, jit: Callable[..., Any]) -> None:
        super().__init__()
        self._jit = jit
        self.errors: list[Exception] = []

    def jit(self, f: Callable[..., Any]) -> Callable[..., Any]:
        jitted = self._jit(f)

        def run(*args: Any) -> Any:
            try:
                return jitted(*args)
            except Exception as error:
                self.errors.append(error)
                raise

        return run


def run_one(jit: Callable[..., Any], moment: str) -> str:
    """Return what a cell says of :data:`one` under `jit`: ``right``, ``refused``, ``unsuitable`` or
    the message."""
    x = torch.tensor([0.5, 1.25, -0.75, 2.0], dtype=torch.float64)
    row = row_of({"args": [x]}, call="tests.checks.test_python_state:one")
    target = Jitting(jit)
    made = case("own.one", target=target, axes={"moment": moment}, ops={"own.one": row})
    try:
        made.assert_same("forward", against="eager")
    except Mismatch as error:
        return str(error)
    except Vacuous:
        return "unsuitable"
    return "refused" if target.errors else "right"


def outcome(jit: Callable[..., Any], path: str, holder: str, change: str, moment: str) -> str:
    """Return what a cell says of one program under `jit`."""
    one.path, one.program, one.written = PATHS[path], (holder, change), None
    return run_one(jit, moment)


def check_path(jit: Callable[..., Any], path: str, moment: str) -> None:
    """Compare all programs of a row of the matrix."""
    name = f"{ROWS}{path}"
    row = {"samples": [{"args": [{"shape": [4]}]}]}
    made = case(name, target=Jitting(jit), axes={"moment": moment}, ops={name: row})
    made.assert_same("forward", against="eager")


def test_the_matrix_names_each_path_and_each_moment() -> None:
    family = yaml.safe_load(MATRIX.read_text())
    rows = [row["op"].removeprefix("programs.state.") for row in family["families"]["state"]["ops"]]
    assert rows == [*(f"paths.{name}" for name in PATHS), *(f"ways.{name}" for name in WAYS)]
    moments = family["checks"]["state_of_jit"]["over"]["moment"]
    passes = family["checks"]["state_of_backward"]["over"]["moment"]
    assert (moments, passes) == (list(MOMENTS), list(PASSES))
    assert list(AXES["moment"]) == [*moments, *passes]


@pytest.mark.parametrize(("rows", "changes"), GROUPS, ids=["paths", "ways"])
def test_each_pair_of_parts_occurs_in_a_program(
    rows: dict[str, Path], changes: dict[str, Change]
) -> None:
    tables: list[dict[str, Any]] = [rows, HOLDERS, changes, MOMENTS]
    found = [program for program in programs(rows) if program[3] in MOMENTS]
    assert len(found) == len(set(found)) >= 2000
    for a, b in combinations(range(4), 2):
        pairs = {(program[a], program[b]) for program in found}
        assert len(pairs) == len(tables[a]) * len(tables[b])


@pytest.mark.parametrize("rows", [PATHS, WAYS], ids=["paths", "ways"])
def test_each_program_is_one_of_python(rows: dict[str, Path]) -> None:
    for name, holder, change, moment in programs(rows):
        compile(rows[name].text(holder, change, moment), f"{name} {holder}", "exec")


def results_of(plain: Path, change: str, more: str = "") -> list[tuple[Any, ...]]:
    """Return the results of the calls of a program, to whose text `more` is added."""
    one.path, one.program = plain, ("global", change)
    one.written = plain.text("global", change, "between") + more
    results: list[tuple[Any, ...]] = []

    def noting(f: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any) -> Any:
            y = f(x)
            results.append((y.tolist(), y.dtype, y.requires_grad))
            return y

        return run

    assert run_one(noting, "between") == "right"
    return results


@pytest.mark.parametrize("change", [*CHANGES, *MORE_CHANGES])
def test_each_change_shows_in_the_next_result(change: str) -> None:
    path = PATHS["plain"] if change in CHANGES else WAYS["plain"]
    altered, plain = results_of(path, change), results_of(path, change, "\ndef alter(): pass\n")
    assert altered[:2] == plain[:2]  # the third call is the first one after an alteration
    assert altered[2] != plain[2]


def test_each_place_and_each_row_is_read_in_each_backward_pass() -> None:
    found = [program for program in programs() if program[3] in PASSES]
    tables: list[dict[str, Any]] = [PATHS, HOLDERS]
    for place, table in enumerate(tables):
        pairs = {(program[place], program[3]) for program in found}
        assert len(pairs) == len(table) * len(PASSES)
    assert {change for _, _, change, _ in found} == set(CHANGES)


def baked(f: Callable[..., Any]) -> Callable[..., Any]:
    """A jit whose backward pass goes on with the gradient of its first call."""
    slopes: list[Any] = []

    class Baked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient * slopes[0]

    def run(x: Any, flag: bool = False) -> Any:
        if not slopes:
            leaf = x.detach().requires_grad_()
            slopes.extend(torch.autograd.grad(f(leaf).sum(), leaf))
        apply: Any = Baked.apply
        return apply(x)

    return run


@pytest.mark.parametrize("moment", PASSES)
def test_a_jit_whose_backward_pass_ignores_state_is_found(moment: str) -> None:
    for holder, change in (("attribute", "number"), ("cell", "sign"), ("dict", "list_grows")):
        assert outcome(lambda f: f, "plain", holder, change, moment) == "right"
        assert "plain Python" in outcome(baked, "plain", holder, change, moment)


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
        check_path(nameless, "plain", "between")
    named = [line.split(":")[0] for line in str(caught.value).splitlines()]
    cell = [f"{holder}, {change}, between" for holder, change in PATHS["plain"].programs("between")]
    assert named == cell


def test_a_program_that_python_refuses_is_none() -> None:
    assert outcome(runtime.jit, "plain", "metaclass", "function", "between") == "unsuitable"


@pytest.mark.parametrize("noted", [False, True])
def test_a_line_in_a_note_or_a_message_counts(noted: bool) -> None:
    def refusing_at(other: str) -> Callable[..., Any]:
        def jit(f: Callable[..., Any]) -> Callable[..., Any]:
            def run(x: Any, *flags: Any) -> Any:
                place = f"at {f.__code__.co_filename}{other}:3: x"
                error = RuntimeError("no" if noted else place)
                if noted:
                    error.add_note(place)
                raise error

            return run

        return jit

    program = ("plain", "attribute", "number", "between")
    assert outcome(refusing_at(""), *program) == "refused"
    assert "without a line of the program" in outcome(refusing_at(".other"), *program)


EQUAL = ["1", "1.0", "True", "0.0", "-0.0", "{1}", "{1.0}", "{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}",
         "[1]", "(1,)"]  # fmt: skip


@pytest.mark.parametrize("value", EQUAL)
def test_a_state_that_is_another_equal_object_is_found(value: str) -> None:
    """A jit leaves each of the values in the place of one."""
    one.path = PATHS["plain"]
    one.written = (
        f"value = {value}\ndef step(x): return x * 2\ndef alter(): pass\ndef look(): return value\n"
    )

    def leaving(other: str) -> Callable[..., Any]:
        def jit(f: Callable[..., Any]) -> Callable[..., Any]:
            def run(x: Any) -> Any:
                f.__globals__["value"] = eval(other)
                return f(x)

            return run

        return jit

    for other in EQUAL:
        found = run_one(leaving(other), "between")
        assert (found == "right") == (other == value), other
        assert found == "right" or "leaves the state" in found
