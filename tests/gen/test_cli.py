"""The command line: what each sub-command prints, writes and returns."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gen.cli import main

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parent / "data"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the example matrix, and in it."""
    for name in ("matrix.yaml", "more.yaml"):
        shutil.copy(DATA / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def edit(project: Path, old: str, new: str) -> None:
    path = project / "matrix.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def cited(project: Path, text: str) -> str:
    """`text` with `<FILE: WORDS>` replaced by the place of the first line of the file
    that has the words."""

    def place(found: re.Match[str]) -> str:
        lines = (project / f"{found['file']}.yaml").read_text().splitlines()
        number = next(n for n, line in enumerate(lines, 1) if found["words"] in line)
        return f"({found['file']}.yaml:{number})"

    return re.sub(r"<(?P<file>\w+): (?P<words>.*)>", place, text)


def state(project: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (path.read_text(), path.stat().st_mtime_ns)
        for path in (project / "generated_tests").glob("*.py")
    }


def test_generate_writes_then_leaves_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate"]) == 0
    assert "4 added" in capsys.readouterr().out
    before = state(project)
    assert main(["generate"]) == 0
    assert "0 added, 0 changed, 0 removed, 4 unchanged" in capsys.readouterr().out
    assert state(project) == before


def test_generate_touches_only_what_an_edit_is_about(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["generate"])
    before = state(project)
    edit(project, "title: Linear algebra", "title: Linear algebra and more")
    capsys.readouterr()
    assert main(["generate"]) == 0
    assert "1 changed (test_linalg.py)" in capsys.readouterr().out
    after = state(project)
    assert {name for name in after if after[name] != before[name]} == {"test_linalg.py"}


def test_a_family_that_is_gone_loses_its_module(project: Path) -> None:
    main(["generate"])
    (project / "more.yaml").write_text("skip: []\n")
    edit(project, "    not_families: [discrete]\n", "")
    assert main(["generate"]) == 0
    assert "test_discrete.py" not in state(project)


def test_bad_input_writes_nothing_and_returns_2(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["generate"])
    before = state(project)
    edit(project, "torch.mul]", "torch.mull]")
    edit(project, "pipeline: vmap . vjp", "pipeline: vmap . vpj")
    assert main(["generate"]) == 2
    errors = capsys.readouterr().err
    assert 'did you mean "torch.mul"?' in errors
    assert 'did you mean "vjp"?' in errors
    assert "2 mistakes; nothing was written" in errors
    assert state(project) == before


def test_a_hand_written_module_in_the_way_returns_2(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["generate"])
    own = project / "generated_tests" / "test_mine.py"
    own.write_text("def test_of_mine(): ...\n")
    before = state(project)
    assert main(["generate"]) == 2
    assert "test_mine.py was not generated" in capsys.readouterr().err
    assert state(project) == before


def git(project: Path, *words: str) -> None:
    subprocess.run(
        ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b", *words],
        check=True,
        capture_output=True,
    )


def test_check_is_content_only_with_what_is_generated_and_tracked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(project, "init", "-q")
    assert main(["check"]) == 1
    assert "stale: 4 added" in capsys.readouterr().err
    main(["generate"])
    assert main(["check"]) == 1
    assert "not known to git: test_discrete.py" in capsys.readouterr().err
    git(project, "add", ".")
    assert main(["check"]) == 0
    assert "generated_tests is what matrix.yaml says (4 modules)" in capsys.readouterr().out


def test_check_names_an_edit_by_hand_and_shows_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["generate"])
    path = project / "generated_tests" / "test_mine.py"
    path.write_text(path.read_text().replace('against="raises"', 'against="eager"'))
    before = path.read_text()
    assert main(["check"]) == 1
    shown = capsys.readouterr()
    assert "edited by hand: test_mine.py" in shown.err
    assert '+    case.assert_same("forward", against="raises")' in shown.out
    assert path.read_text() == before


def test_check_names_an_orphan(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["generate"])
    folder = project / "generated_tests"
    shutil.copy(folder / "test_mine.py", folder / "test_gone.py")
    assert main(["check"]) == 1
    assert "1 removed (test_gone.py)" in capsys.readouterr().err


def test_list_filters_and_counts(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            ["list", "--op", "torch.s*", "--check", "joint*", "--axis", "shapes=dynamic", "--json"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == 2
    assert found["counts"]["dtype"] == {"float32": 1, "float64": 1}
    assert (
        found["cases"][0]["id"]
        == "generated_tests/test_pointwise.py::test_joint_export[torch.sin-float32-dynamic-default]"
    )
    assert found["cases"][0]["axes"] == {"shapes": "dynamic", "partition": "default"}


def test_list_of_a_smaller_tier_is_smaller(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    totals = {}
    for tier in ("smoke", "default", "full"):
        main(["list", "--tier", tier, "--json", "--counts"])
        totals[tier] = json.loads(capsys.readouterr().out)["total"]
    assert totals["smoke"] < totals["default"] < totals["full"]


def test_list_shows_known_cases_and_the_coverage_proof(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["list", "--known", "--check", "vjp"])
    assert "[torch.linalg.eig-complex64]" in capsys.readouterr().out
    main(["list", "--coverage", "--json"])
    proof = json.loads(capsys.readouterr().out)
    assert proof["default"]["t"] == 2
    assert proof["default"]["complete"]
    assert proof["default"]["tuples"] == proof["default"]["covered"]
    main(["generate"])
    assert json.loads((project / ".cache" / "gen" / "coverage.json").read_text()) == proof


def test_a_filter_that_means_nothing_is_a_mistake(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--op", "torch.sni"]) == 2
    assert 'did you mean "torch.sin"?' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (
            ["generated_tests/test_pointwise.py::test_vjp[torch.sin-float64]"],
            0,
            ["family pointwise <matrix: ops: [torch.sin, torch.mul]>", "tier full: runs it"],
        ),
        (
            ["torch.sin-float64-static-min_cut", "--check", "joint_export"],
            1,
            ["excluded <matrix: op: torch.sin, check: joint>: sin has nothing to cut"],
        ),
        (
            ["torch.linalg.eig-complex64", "--check", "vjp"],
            0,
            [
                (
                    "expected to fail with RuntimeError matching 'gauge' where target torch "
                    "<more: op: torch.linalg.eig>"
                ),
                "until 2999-01-01",
            ],
        ),
        (
            ["torch.bitwise_not-bool", "--check", "vjp"],
            1,
            [
                "there is no such case",
                "the op has no derivative in bool",
                "the check needs autograd",
            ],
        ),
        (
            ["torch.sin-float64", "--check", "errors"],
            1,
            ["the check needs errors, which the op lacks"],
        ),
        (
            ["torch.linalg.det-bool", "--check", "forward"],
            1,
            ["does not take bool on the CPU", "<matrix: dtypes: [real, complex]>"],
        ),
        (
            ["examples.ops.rms_norm-float32", "--check", "vmap_of_vjp"],
            1,
            [
                (
                    "not among those asked for: forward, vjp, errors <matrix: checks: "
                    "[forward, vjp, errors]>"
                )
            ],
        ),
        (
            ["torch.bitwise_not-bool", "--check", "forward"],
            0,
            ["expected to be zero <more: {op: torch.bitwise_not>: The samples are all true"],
        ),
        (
            ["torch.mul-float64"],
            0,
            [
                "test_vjp[torch.mul-float64]: tier",
                "test_joint_export[torch.mul-float64-static-default]: tier",
            ],
        ),
        (["torch.mull-float64", "--check", "vjp"], 2, ['did you mean "torch.mul"?']),
        (["torch.mul-float64", "--check", "vpj"], 2, ['did you mean "vjp"?']),
        (["torch.mul-float46", "--check", "vjp"], 2, ['did you mean "float64"?']),
        (
            ["torch.mul-float64", "--check", "joint_export"],
            2,
            ["expected an id such as torch.mul-float64-static-default"],
        ),
        (
            ["torch.mul-float64-static-mincut", "--check", "joint_export"],
            2,
            ['did you mean "min_cut"?'],
        ),
    ],
)
def test_explain_cites_the_line(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: list[str]
) -> None:
    assert main(["explain", *words]) == code
    shown = capsys.readouterr()
    for text in said:
        assert cited(project, text) in shown.out + shown.err


def test_explain_names_what_covers_a_dropped_case(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(project, "full: {reduce: full}", "full: {reduce: pairwise}")
    main(["list", "--all", "--json"])
    dropped = next(
        case["id"] for case in json.loads(capsys.readouterr().out)["cases"] if case["tier"] is None
    )
    assert main(["explain", dropped]) == 1
    said = cited(
        project,
        "tier full: dropped it by reduction <matrix: full: {reduce>: its 2-tuples are covered by",
    )
    assert said in capsys.readouterr().out


def test_schema_is_written_once(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    assert main(["schema"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "wrote matrix.schema.json",
        "wrote included.schema.json",
        "matrix.schema.json is up to date",
        "included.schema.json is up to date",
    ]


def test_help_explains_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    for command in ("generate", "check", "list", "explain", "probe", "schema", "report", "audit"):
        assert f"\n    {command} " in shown
    assert "Exit codes" in shown


def test_a_run_imports_no_torch(project: Path) -> None:
    """Importing torch alone would take longer than the whole of a run may."""
    code = (
        "import sys; from gen.cli import main; code = main(['generate']); "
        "assert 'torch' not in sys.modules; sys.exit(code)"
    )
    # for the examples, which are not installed
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(state(project)) == 4


def test_where_the_command_runs_does_not_change_what_it_writes(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["generate"])
    before = state(project)
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    assert main(["generate", "--matrix", "../matrix.yaml"]) == 0
    monkeypatch.chdir(project.parent)
    assert main(["generate", "--matrix", f"{project.name}/matrix.yaml"]) == 0
    assert state(project) == before


def test_a_file_in_the_place_of_the_folder_is_left_alone(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "mine").write_text("precious")
    assert main(["generate", "--out", "mine"]) == 2
    assert "mine is a file" in capsys.readouterr().err
    assert (project / "mine").read_text() == "precious"
    assert not [path for path in project.iterdir() if path.name.startswith(".mine")]


def test_a_name_that_the_disk_refuses_is_an_error(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--out", "n" * 300]) == 2
    assert "File name too long" in capsys.readouterr().err


def test_an_include_from_outside_of_the_folder_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inner = project / "inner"
    inner.mkdir()
    (inner / "matrix.yaml").write_text(
        (project / "matrix.yaml").read_text().replace("more.yaml", "../more.yaml")
    )
    assert main(["generate", "--matrix", "inner/matrix.yaml"]) == 0
    assert "included from outside of this folder" not in capsys.readouterr().err
    os.chdir(inner)
    assert main(["generate"]) == 0
    assert "included from outside of this folder: ../more.yaml" in capsys.readouterr().err


def test_a_family_of_which_no_case_is_left_is_named(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        project,
        "families:\n",
        "families:\n  extra: {ops: [{op: own.sin, call: 'torch:sin', samples: [{args: [1.0]}]}]}\n",
    )
    edit(project, "exclude:\n", "exclude:\n  - {family: extra, reason: none of it}\n")
    main(["generate"])
    assert "no case is left of extra" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["torch.sin-floot16", "torch.sin-int8-static"])
def test_explain_of_a_case_that_no_check_has_is_a_mistake(
    project: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    assert main(["explain", case]) == 2
    assert f"torch.sin has no case {case.partition('-')[2]}" in capsys.readouterr().err


def test_a_results_file_that_is_no_text_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "results.jsonl").write_bytes(b"\x8d\xff")
    assert main(["report", "--results", "results.jsonl", "--out", "page.html"]) == 2
    assert "byte 0 is not UTF-8" in capsys.readouterr().err
    assert not (project / "page.html").exists()
