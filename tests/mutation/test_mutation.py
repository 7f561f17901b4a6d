"""A test that asserts something about a line kills its mutant. A test that only runs
the line does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.__main__ import (
    EQUIVALENT,
    SOURCES,
    _of_folder,
    _reasons,
    draw,
    identity,
    main,
    nearest_first,
    stages,
    within_budget,
)
from tests.mutation.lines import Map
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.trial import Copy

PRICE = '''\
"""Prices."""


def price(count: int, member: bool = False) -> int:
    """In cents, from 1 on."""
    if count > 10 and member:
        return count * 90
    return count * 100


def check(count: int) -> None:
    if count < 0:
        raise ValueError(f"{count + 1} is no count; give {1 + 1}")


def countdown(count: int) -> None:
    while count:
        count -= 1
'''
TESTS = """\
from shop.price import check, countdown, price

def test_claims() -> None:
    assert price(11, True) == 990
    assert price(10, True) == 1000

def test_runs() -> None:
    price(3)
    check(3)

def test_comes_to_an_end() -> None:
    countdown(3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in {
        "shop/price.py": PRICE,
        "shop/__init__.py": "",
        "tests/test_price.py": TESTS,
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["."]\n',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def mutant(root: Path, text: str) -> Mutant:
    [found] = [one for one in mutants_of(root, "shop/price.py") if text in str(one)]
    return found


def changes(tmp_path: Path, source: str) -> set[str]:
    (tmp_path / "module.py").write_text(source)
    return {str(one).partition(": ")[2] for one in mutants_of(tmp_path, "module.py")}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", {"comparison: a < b → a <= b"}),
        (
            "x is None or y",
            {"and/or: x is None or y → x is None and y", "comparison: x is None → x is not None"},
        ),
        ("x[1:]", {"slice: 1: → 1:-1", "constant: 1 → 2", "constant: 1 → 0"}),
        ("f(a, a)", set()),
        (
            "f(a, b, c=d)",
            {
                "arguments exchanged: f(a, b, c=d) → f(b, a, c=d)",
                "keyword dropped: f(a, b, c=d) → f(a, b)",
            },
        ),
        (
            "-a if b else True",
            {
                "branches exchanged: -a if b else True → True if b else -a",
                "sign: -a → a",
                "constant: True → False",
            },
        ),
    ],
)
def test_an_expression_is_changed_in_every_way_that_its_kind_has(
    tmp_path: Path, source: str, expected: set[str]
) -> None:
    assert changes(tmp_path, f"y = {source}\n") == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f(x)", {"statement removed: f(x) → pass"}),
        ("x.y = z", {"statement removed: x.y = z → pass"}),
        ("def f():\n    return x\n", {"returns None: return x → return None"}),
        ("def f():\n    return False\n", {"constant: False → True"}),  # None would be as false
        (
            "if x:\n    y = z\n",
            {"condition negated: x → not (x)", "branch never taken: x → False and (x)"},
        ),
        (
            "with a():\n    y = z\n",
            {"context dropped: a() → __import__('contextlib').nullcontext()"},
        ),
    ],
)
def test_a_statement_is_changed_in_every_way_that_its_kind_has(
    tmp_path: Path, source: str, expected: set[str]
) -> None:
    assert changes(tmp_path, source + "\n") == expected


@pytest.mark.parametrize(
    "source",
    [
        '"""Docstring 1 < 2."""',
        "__all__ = ['f', 'g'][1:]",
        "x: Literal[1]",
        "def f(x: Literal[1]) -> Literal[2]: ...",
        "assert x is not None",
        "if TYPE_CHECKING:\n    f(1)\n",
        "y = f'{1 + 1}'",
        "y = cast(A, b)",
        "for _ in zip(a, strict=True): pass",
    ],
)
def test_what_only_readers_and_type_checkers_see_is_left_alone(tmp_path: Path, source: str) -> None:
    assert changes(tmp_path, source + "\n") == set()


def test_of_an_error_the_raising_is_changed_and_not_the_message(project: Path) -> None:
    lines = PRICE.splitlines()
    at_raise = [
        one for one in mutants_of(project, "shop/price.py") if "raise" in lines[one.line - 1]
    ]
    assert [one.kind for one in at_raise] == ["statement removed"]


def test_every_mutant_is_a_program() -> None:
    root = Path(__file__).parents[2]
    for path in ("runtime/tape/engine.py", "runtime/func/vmap.py"):
        source = (root / path).read_bytes()
        for one in draw(mutants_of(root, path), 100, 0):
            compile(one.applied(source), path, "exec")


def test_the_draw_depends_on_the_seed_alone_and_takes_a_line_once(project: Path) -> None:
    mutants = mutants_of(project, "shop/price.py")
    drawn = draw(mutants, 5, 0)
    assert drawn == draw(reversed(mutants), 5, 0) != draw(mutants, 5, 1)
    assert len({one.line for one in drawn}) == len(drawn) == 5


def test_an_identity_survives_lines_that_are_added_above(project: Path) -> None:
    before = identity(mutant(project, "comparison: count > 10 →"))
    (project / "shop/price.py").write_text("# a line\n\n" + PRICE)
    assert identity(mutant(project, "comparison: count > 10 →")) == before


def test_the_first_tests_are_run_within_the_budget_and_at_least_one() -> None:
    assert within_budget({"a": 1, "b": 2, "c": 3}, 3) == {"a": 1, "b": 2}
    assert within_budget({"a": 5, "b": 6}, 3) == {"a": 5}


def test_tests_of_files_that_are_about_the_line_come_first(tmp_path: Path) -> None:
    known = Map(tmp_path / "lines.json", tmp_path)
    for path, number in (("a.py", 4), ("b.py", 1), ("tests/test_c.py", 9)):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
        known.learn(path, {f"{path}::{i}": {"seconds": 1, "lines": {}} for i in range(number)}, [])
    tests = {"a.py::0": 1.0, "a.py::1": 1.0, "b.py::0": 2.0}
    assert known.near("c.py", tests, 1) == {"b.py"}
    assert known.near("c.py", {**tests, "tests/test_c.py::0": 3.0}, 1) == {
        "b.py",
        "tests/test_c.py",
    }
    assert known.near("c/__init__.py", {**tests, "tests/test_c.py::0": 3.0}, 1) == {
        "b.py",
        "tests/test_c.py",
    }
    assert list(nearest_first(tests, {"b.py"})) == ["b.py::0", "a.py::0", "a.py::1"]
    assert stages(tests, {"b.py"}) == [{"b.py::0": 2.0}, {"a.py::0": 1.0, "a.py::1": 1.0}]
    assert stages({"b.py::0": 2.0}, {"b.py"}) == [{"b.py::0": 2.0}]


def test_a_trial_tells_claims_from_mere_runs_and_leaves_the_tree_alone(
    project: Path, tmp_path: Path
) -> None:
    one = Copy(project, tmp_path / "copy", [], patience=5)
    trace = one.trace("tests/test_price.py", ["shop"])
    known = Map(tmp_path / "lines.json", project)
    known.learn("tests/test_price.py", trace, ["shop"])
    negated, ninety = (
        mutant(project, "comparison: count > 10 →"),
        mutant(project, "arithmetic: count * 90 →"),
    )

    def tests_of(which: Mutant) -> set[str]:
        return {
            test.partition("::")[2]
            for test in known.tests(which.path, which.lines, ["tests/test_price.py"])
        }

    assert tests_of(negated) == {"test_claims", "test_runs"}
    assert tests_of(ninety) == {"test_claims"}
    claims, runs, ends = (
        f"tests/test_price.py::test_{name}" for name in ("claims", "runs", "comes_to_an_end")
    )
    assert not one.trial(None, {claims: 0.1, runs: 0.1}).killed
    assert one.trial(negated, {runs: 0.1, claims: 0.1}).by == claims
    assert not one.trial(negated, {runs: 0.1}).killed
    assert one.trial(mutant(project, "count -= 1 → pass"), {ends: 0.1}).by == "time-out"
    assert not one.trial(negated, {"tests/test_price.py::test_unknown": 0.1}).killed
    assert (
        (project / "shop/price.py").read_text()
        == (one.place / "shop/price.py").read_text()
        == PRICE
    )


STARTING = """\
import multiprocessing
import subprocess
import sys
from pathlib import Path

import shop
from shop.price import countdown

def test_a_program() -> None:
    root = str(Path(shop.__file__).parents[1])
    subprocess.run([sys.executable, "-c", "from shop.price import price; price(11, True)"], \
env={"PYTHONPATH": root}, cwd="/", check=True)

def test_a_process() -> None:
    process = multiprocessing.get_context("spawn").Process(target=countdown, args=(3,))
    process.start()
    process.join()
"""


def test_the_map_has_the_lines_of_processes_that_a_test_starts(
    project: Path, tmp_path: Path
) -> None:
    (project / "tests/test_starting.py").write_text(STARTING)
    one = Copy(project, tmp_path / "copy", [])
    trace = {
        test.partition("::test_")[2]: facts["lines"]
        for test, facts in one.trace("tests/test_starting.py", ["shop"]).items()
    }
    ran = {
        test: {i for i in range(25) if int(lines["shop/price.py"], 16) >> i & 1}
        for test, lines in trace.items()
    }
    program, process = {6, 7}, {17, 18}
    assert program <= ran["a_program"] and not process & ran["a_program"]
    assert process <= ran["a_process"] and not program & ran["a_process"]
    assert not (one.place / "sitecustomize.py").exists() and not (one.place / ".lines").exists()


def test_a_line_that_runs_at_import_is_asked_of_every_test_that_runs_the_file_whichever_came_first(
    project: Path, tmp_path: Path
) -> None:
    (project / "shop/price.py").write_text(
        PRICE + "\n\ndef table() -> list[int]:\n    return [price(1)]\n\n\nTABLE = table()\n"
    )
    (project / "tests/test_price.py").write_text(
        TESTS.replace("from shop.price import check, countdown, price\n", "") + LATER
    )
    one = Copy(project, tmp_path / "copy", [])
    known = Map(tmp_path / "lines.json", project)
    known.learn("tests/test_price.py", one.trace("tests/test_price.py", ["shop"]), ["shop"])
    asked = {
        test.partition("::")[2]
        for test in known.tests("shop/price.py", (22, 22), ["tests/test_price.py"])
    }
    assert asked == {"test_first", "test_second"}


LATER = """
def test_first() -> None:
    import shop.price
    shop.price.check(3)

def test_second() -> None:
    import shop.price
    assert shop.price.price(1) == shop.price.TABLE[0]
"""


def test_a_default_is_asked_of_who_calls_the_function_and_what_runs_at_import_of_all(
    project: Path,
) -> None:
    default = mutant(project, "constant: False")
    assert default.lines == (4, 8)
    (project / "shop/price.py").write_text("class Shop:\n    open = True\n")
    assert mutant(project, "constant: True").lines == (0, 0)


def test_a_map_follows_lines_that_move_and_forgets_test_files_that_change(
    project: Path, tmp_path: Path
) -> None:
    trace = {
        "tests/test_price.py::test_claims": {
            "seconds": 0.1,
            "lines": {"shop/price.py": f"{1 << 7:x}"},
        }
    }
    (project / "tests/test_other.py").touch()
    Map(tmp_path / "lines.json", project).learn("tests/test_price.py", trace, ["shop"])
    (project / "shop/price.py").write_text("# a line\n\n" + PRICE)
    known = Map(tmp_path / "lines.json", project)
    assert known.tests("shop/price.py", (9, 9), ["tests/test_price.py"]) == {
        "tests/test_price.py::test_claims": 0.1
    }
    assert known.stale(["tests/test_price.py"]) == []
    known.learn(
        "tests/test_other.py",
        {"tests/test_other.py::test": {"seconds": 0.2, "lines": {"shop/price.py": f"{1 << 9:x}"}}},
        ["shop"],
    )
    # traced before and after the edit
    both = {"tests/test_price.py::test_claims": 0.1, "tests/test_other.py::test": 0.2}
    assert (
        known.tests("shop/price.py", (9, 9), ["tests/test_price.py", "tests/test_other.py"]) == both
    )
    (project / "tests/test_price.py").write_text(TESTS + "\n")
    assert known.stale(["tests/test_price.py"]) == ["tests/test_price.py"]


def test_the_mutants_are_listed_without_running_anything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["runtime/func/trees.py", "--list", "--mutants", "3"]) == 0
    assert capsys.readouterr().out.count("runtime/func/trees.py:") == 3


def test_every_equivalent_mutant_is_one_that_could_be_drawn() -> None:
    """An entry whose line has changed has no effect. Write the present line, or
    remove the entry."""
    drawable = {identity(mutant) for source in SOURCES for mutant in _of_folder(source)}
    assert [mutant for mutant in _reasons(EQUIVALENT) if mutant not in drawable] == []
