"""Reading YAML: what is accepted, and how each malformed file is refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gen.checks import Family
from gen.cli import main

Captured = pytest.CaptureFixture[str]


MATRIX = """
version: 1
checks: {{forward: {{claim: c, against: eager}}}}
families:
  one:
    ops:
      - {{op: own.f, call: "torch:sin", samples: [{{args: [1.0], kwargs: {{{value}}}}}]}}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def value_of(written: str) -> object:
    """Return what the value of a key in a matrix becomes in the generated module."""
    Path("m.yaml").write_text(MATRIX.format(value=f"a: {written}"))
    assert main(["generate", "--matrix", "m.yaml"]) == 0
    names: dict[str, Any] = {}
    exec(Path("generated_tests/test_one.py").read_text(), names)
    family: Family = names["FAMILY"]
    return family.ops["own.f"]["samples"][0]["kwargs"]["a"]


def refusal(text: str | bytes, capsys: Captured, path: str = "m.yaml") -> str:
    """Return what the command says of a file that it refuses."""
    Path(path).write_bytes(text.encode() if isinstance(text, str) else text)
    return refusal_of(path, capsys)


def refusal_of(path: str, capsys: Captured) -> str:
    assert main(["list", "--matrix", path]) == 2
    return capsys.readouterr().err


def checks_of(path: str, capsys: Captured) -> set[str]:
    """Return the checks of a matrix."""
    capsys.readouterr()
    assert main(["list", "--matrix", path, "--json", "--all"]) == 0
    return {case["check"] for case in json.loads(capsys.readouterr().out)["cases"]}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-12", 1e-12), ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("true", True), ("False", False), ("~", None), ("null", None), ("", None), ("0o17", 15),
        ("0x1f", 31), ("017", 17), ("1_000", "1_000"), ("-.5", -0.5), ("1.", 1.0),
        ("2027-01-01", "2027-01-01"), ("12:30:45", "12:30:45"), ('"1"', "1"), ("'on'", "on"),
        ("+3", 3), (".inf", float("inf")), ("-.inf", float("-inf")), ("!!str 1", "1"),
        ("[a, 1]", ["a", 1]),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(written: str, meant: object) -> None:
    found = value_of(written)
    assert found == meant
    assert type(found) is type(meant)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            "a:\n\tb: 1\n", "m.yaml:2:1: a tab in the indentation; expected spaces", id="tab"
        ),
        pytest.param(
            "a:\n  b: 1\n\tc: 2\n", "m.yaml:3:1: a tab in the indentation", id="tab in a later line"
        ),
        pytest.param(
            "a: {b: 1, b: 2}\n",
            'm.yaml:1:11: b: duplicate key "b" (first at m.yaml:1)',
            id="duplicate key",
        ),
        pytest.param(
            "a: 1\nc: 2\na: 3\n",
            'm.yaml:3:1: a: duplicate key "a" (first at m.yaml:1)',
            id="duplicate section",
        ),
        pytest.param(
            "a: !!python/object/apply:os.system [ls]\n",
            "m.yaml:1:4: the tag !!python/object/apply:os.system is not",
            id="object",
        ),
        pytest.param("a: !own {b: 1}\n", "m.yaml:1:4: the tag !own is not allowed", id="own tag"),
        pytest.param("a: !!set {b}\n", "the tag !!set is not allowed", id="set"),
        pytest.param(
            "a: !!int abc\n",
            'm.yaml:1:4: "abc" is not a value of type int',
            id="wrong explicit type",
        ),
        pytest.param("", "m.yaml: the file is empty", id="empty"),
        pytest.param("# nothing\n", "m.yaml: the file is empty", id="only a comment"),
        pytest.param("[1, 2]\n", "m.yaml:1:1: the file is not a mapping", id="list"),
        pytest.param(b"a: 1\nb: \xff\n", "m.yaml:2:4: byte 0xff is not UTF-8", id="latin 1"),
        pytest.param(b"a: \x00", "control characters are not allowed", id="null byte"),
        pytest.param("a: [1,\nb: 2\n", "(begun in line 1)", id="bracket left open"),
        pytest.param("a: &x [*x]\n", "an alias that contains itself", id="endless alias"),
        pytest.param(
            "? [a]\n: b\n", "a key that is a list, a mapping or has a tag", id="list as key"
        ),
        pytest.param("a: 1\n---\nb: 2\n", "a second document begins", id="two documents"),
        pytest.param("- " * 100_000, "nested deeper than 60 levels", id="deep block"),
        pytest.param("a: " + "[\n" * 100_000, "nested deeper than 60 levels", id="deep brackets"),
        # PyYAML reads ahead to the end of a line, and since 6.0.4 has a limit of its own
        pytest.param(
            "a: " + "[" * 900, "nested deeper than 60 levels", id="deep brackets on a line"
        ),
        pytest.param("a: " + "[" * 100_000, "m.yaml:1:", id="a line of brackets"),
    ],
)
def test_a_malformed_file_is_refused_with_its_place(
    text: str | bytes, message: str, capsys: Captured
) -> None:
    assert message in refusal(text, capsys)


def test_aliases_are_fine_but_a_bomb_is_refused(capsys: Captured) -> None:
    assert value_of("&x [1, 2], b: *x") == [1, 2]
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12))
    assert re.search(r"aliases make .* values of this file", refusal(bomb, capsys))


def test_a_huge_file_is_refused_unread(capsys: Captured) -> None:
    with Path("m.yaml").open("wb") as stream:
        stream.truncate(50 * 1024 * 1024)
    assert "the file has 50.0 MiB; expected at most 4 MiB" in refusal_of("m.yaml", capsys)


def test_no_tag_runs_code(tmp_path: Path, capsys: Captured) -> None:
    trace = tmp_path / "trace"
    refusal(f'a: !!python/object/apply:os.system ["touch {trace}"]\n', capsys)
    assert not trace.exists()


def test_a_missing_file_is_named(capsys: Captured) -> None:
    assert re.search(r"there is no file .*absent\.yaml", refusal_of("absent.yaml", capsys))


CHECK = "{claim: c, against: eager}"
REST = "version: 1\nfamilies: {one: {ops: [torch.sin]}}\n"


def test_includes_merge_by_section_and_remember_their_file(capsys: Captured) -> None:
    Path("sub").mkdir()
    Path("sub/b.yaml").write_text(f"checks: {{two: {CHECK}}}\n")
    Path("a.yaml").write_text(f"include: [sub/b.yaml]\nchecks:\n  one: {CHECK}\n{REST}")
    assert checks_of("a.yaml", capsys) == {"one", "two"}
    for path, place in (("sub/b.yaml", "sub/b.yaml:1:"), ("a.yaml", "a.yaml:3:")):
        right = Path(path).read_text()
        said = refusal(right.replace("against: eager", "against: eagre"), capsys, path)
        assert place in (said if path == "a.yaml" else refusal_of("a.yaml", capsys))
        Path(path).write_text(right)


def test_an_include_cycle_is_named(capsys: Captured) -> None:
    Path("a.yaml").write_text("include: [b.yaml]\n")
    Path("b.yaml").write_text("include:\n  - c.yaml\n")
    Path("c.yaml").write_text("include: a.yaml\n")
    assert (
        "c.yaml:1:10: include: include cycle: a.yaml -> b.yaml -> c.yaml -> a.yaml"
    ) in refusal_of("a.yaml", capsys)


def test_a_file_included_twice_counts_once(capsys: Captured) -> None:
    Path("a.yaml").write_text(f"include: [b.yaml, c.yaml]\n{REST}")
    Path("b.yaml").write_text("include: [c.yaml]\n")
    Path("c.yaml").write_text(f"checks: {{one: {CHECK}}}\n")
    assert checks_of("a.yaml", capsys) == {"one"}


def test_a_name_in_two_files_is_a_duplicate(capsys: Captured) -> None:
    Path("a.yaml").write_text("include: [b.yaml]\nchecks: {one: 1}\n")
    Path("b.yaml").write_text("checks: {one: 2}\n")
    said = refusal_of("a.yaml", capsys)
    assert 'a.yaml:2:10: checks.one: duplicate key "one" (first at b.yaml:1)' in said


def test_a_missing_include_points_at_the_line_that_names_it(capsys: Captured) -> None:
    said = refusal("include:\n  - gone.yaml\n", capsys)
    assert "m.yaml:2:5: include: there is no file gone.yaml" in said


def test_deep_nesting_does_not_crash_the_interpreter(tmp_path: Path) -> None:
    """libyaml's node builder recurses in C; a crash there would take the whole process with it."""
    Path("m.yaml").write_text("a:\n" + "- " * 1_000_000)
    done = subprocess.run(
        [sys.executable, "-m", "gen", "list", "--matrix", "m.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "nested deeper than 60 levels" in done.stderr


@pytest.mark.parametrize("included", ["pipe", "loop.yaml", "folder", "/dev/zero"])
def test_what_is_no_regular_file_is_refused_and_not_read(included: str, capsys: Captured) -> None:
    os.mkfifo("pipe")
    Path("loop.yaml").symlink_to("loop.yaml")
    Path("folder").mkdir()
    assert re.search(
        f"m.yaml:1:11: include: cannot read {included}: (it is no regular file|Too many levels)",
        refusal(f"include: [{included}]\n", capsys),
    )


def test_a_matrix_that_is_a_loop_of_links_is_refused(capsys: Captured) -> None:
    Path("loop.yaml").symlink_to("loop.yaml")
    assert "Too many levels" in refusal_of("loop.yaml", capsys)
