"""Reading YAML: what is accepted, and how each malformed file is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gen.errors import MatrixError
from gen.language import source


def read(tmp_path: Path, text: str | bytes) -> dict[str, Any]:
    path = tmp_path / "m.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return source.load(path, "m.yaml").data


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("1e-12", 1e-12), ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"),
        ("true", True), ("False", False), ("~", None), ("null", None), ("", None), ("0o17", 15),
        ("0x1f", 31), ("017", 17), ("1_000", "1_000"), ("-.5", -0.5), ("1.", 1.0),
        ("2027-01-01", "2027-01-01"), ("12:30:45", "12:30:45"), ('"1"', "1"), ("'on'", "on"),
        ("+3", 3), (".inf", float("inf")), ("-.inf", float("-inf")), ("!!str 1", "1"),
        ("[a, 1]", ["a", 1]), ("{a: {b: 1}}", {"a": {"b": 1}}),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2(tmp_path: Path, written: str, meant: object) -> None:
    found = read(tmp_path, f"a: {written}\n")["a"]
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
        pytest.param("? [a]\n: b\n", "a key that is a list or a mapping", id="list as key"),
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
    tmp_path: Path, text: str | bytes, message: str
) -> None:
    with pytest.raises(MatrixError) as caught:
        read(tmp_path, text)
    assert message in str(caught.value)


def test_aliases_are_fine_but_a_bomb_is_refused(tmp_path: Path) -> None:
    assert read(tmp_path, "a: &x [1, 2]\nb: *x\n") == {"a": [1, 2], "b": [1, 2]}
    bomb = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]\n" for n in range(1, 12))
    with pytest.raises(MatrixError, match=r"aliases make .* values of this file"):
        read(tmp_path, bomb)


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    with path.open("wb") as stream:
        stream.truncate(50 * 1024 * 1024)
    with pytest.raises(MatrixError, match=r"the file has 50\.0 MiB; expected at most 4 MiB"):
        source.load(path)


def test_no_tag_runs_code(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(MatrixError):
        read(tmp_path, f'a: !!python/object/apply:os.system ["touch {trace}"]\n')
    assert not trace.exists()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"there is no file .*absent\.yaml"):
        source.load(tmp_path / "absent.yaml")


def test_includes_merge_by_section_and_remember_their_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").write_text("checks: {two: 2}\nskip: [b]\n")
    (tmp_path / "a.yaml").write_text("include: [sub/b.yaml]\nchecks:\n  one: 1\nskip: [a]\n")
    read_ = source.load(tmp_path / "a.yaml", "a.yaml")
    assert read_.data == {"checks": {"one": 1, "two": 2}, "skip": ["b", "a"]}
    assert read_.where(("checks", "two"), key=True).short == "sub/b.yaml:1"
    assert str(read_.where(("checks", "one"), key=True)) == "a.yaml:3:3"
    assert read_.files == ("a.yaml", "sub/b.yaml")


def test_an_include_cycle_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: [b.yaml]\n")
    (tmp_path / "b.yaml").write_text("include:\n  - c.yaml\n")
    (tmp_path / "c.yaml").write_text("include: a.yaml\n")
    with pytest.raises(
        MatrixError,
        match=r"c\.yaml:1:10: include: include cycle: a\.yaml -> b\.yaml -> c\.yaml -> a\.yaml",
    ):
        source.load(tmp_path / "a.yaml", "a.yaml")


def test_a_file_included_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: [b.yaml, c.yaml]\n")
    (tmp_path / "b.yaml").write_text("include: [c.yaml]\nx: 1\n")
    (tmp_path / "c.yaml").write_text("skip: [1]\n")
    assert source.load(tmp_path / "a.yaml").data == {"skip": [1], "x": 1}


def test_a_name_in_two_files_is_a_duplicate(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("include: [b.yaml]\nchecks: {one: 1}\n")
    (tmp_path / "b.yaml").write_text("checks: {one: 2}\n")
    with pytest.raises(
        MatrixError, match=r'a\.yaml:2:10: checks\.one: duplicate key "one" \(first at b\.yaml:1\)'
    ):
        source.load(tmp_path / "a.yaml", "a.yaml")


def test_a_missing_include_points_at_the_line_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"m\.yaml:2:5: include: there is no file gone\.yaml"):
        read(tmp_path, "include:\n  - gone.yaml\n")


def test_deep_nesting_does_not_crash_the_interpreter(tmp_path: Path) -> None:
    """libyaml's node builder recurses in C; a crash there would take the whole process with it."""
    (tmp_path / "m.yaml").write_text("a:\n" + "- " * 1_000_000)
    code = "import sys; from gen.language import source; source.load(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "m.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "MatrixError" in done.stderr


@pytest.mark.parametrize("included", ["pipe", "loop.yaml", "folder", "/dev/zero"])
def test_what_is_no_regular_file_is_refused_and_not_read(tmp_path: Path, included: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        MatrixError,
        match=(
            f"m.yaml:1:11: include: cannot read {included}: (it is no regular file|Too many levels)"
        ),
    ):
        read(tmp_path, f"include: [{included}]\n")


def test_a_matrix_that_is_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(MatrixError, match="Too many levels"):
        source.load(tmp_path / "loop.yaml")
