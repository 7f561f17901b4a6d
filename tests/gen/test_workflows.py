"""The workflows, the hook and the tox file that `init` writes do what they say, step by step.

Each command of the YAML runs in a project, with a folder of results where a runner would have one.
Steps that fetch, store or comment belong to GitHub and GitLab: what they take and give is checked.
"""

import configparser
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gen.cli import main
from gen.run.results import read

ROOT = Path(__file__).parents[2]
GITHUB = ".github/workflows/matrix.yml"
GITLAB = ".gitlab-ci.yml"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project in a repository, whose environment is the one of these tests."""
    folder = tmp_path_factory.mktemp("ci") / "sketch"
    assert main(["init", str(folder), "--requirement", "the-matrix==1.0"]) == 0
    binaries = folder / ".venv/bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    (folder / ".venv/.ready").touch()
    for words in (("init", "-q", "-b", "main"), ("add", "-A"), ("commit", "-q", "-m", "start")):
        identity = ("-c", "user.name=me", "-c", "user.email=me@example.org")
        subprocess.run(["git", *identity, *words], cwd=folder, check=True)
    return folder


def execute(folder: Path, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a runner does: by a shell that stops at the first failure."""
    # the variables of the `make` that runs these tests are not those of the command
    own = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", command],
        cwd=folder,
        env=own | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | variables,
        capture_output=True,
        text=True,
        timeout=900,
    )


def github(folder: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = yaml.safe_load((folder / GITHUB).read_text())["jobs"]
    return found


def commands(job: Mapping[str, Any]) -> Iterator[str]:
    """The commands of a job's steps, in their order."""
    for step in job["steps"]:
        if "run" in step:
            yield step["run"]


def command_with(job: Mapping[str, Any], words: str) -> str:
    (found,) = (command for command in commands(job) if words in command)
    return found


def shard_command(folder: Path, target: str, shard: str) -> str:
    """The command of a cell of GitHub's matrix."""
    text = command_with(github(folder)["matrix"], "make shard")
    text = text.replace("${{ matrix.target }}", target).replace("${{ matrix.shard }}", shard)
    assert "${{" not in text
    return text


@pytest.fixture(scope="module")
def results(project: Path) -> Path:
    """The project after the jobs `matrix` of target torch."""
    for shard in github(project)["matrix"]["strategy"]["matrix"]["shard"]:
        done = execute(project, shard_command(project, "torch", shard))
        assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_the_parts_are_the_whole_matrix(results: Path) -> None:
    parts = sorted(results.glob("results/*.jsonl"))
    assert [path.name for path in parts] == ["torch-1of2.jsonl", "torch-2of2.jsonl"]
    assert sum(len(read(path).cells) for path in parts) == 28
    assert all(set(read(path).counts()) == {"passed"} for path in parts)


def test_the_first_run_draws_a_page_and_has_nothing_to_compare_with(results: Path) -> None:
    job = github(results)["report"]
    assert execute(results, command_with(job, "make report")).returncode == 0
    assert "soft_clip" in (results / "report/index.html").read_text()
    done = execute(results, "rm -rf main; " + command_with(job, "make changes"))
    assert done.returncode == 0, done.stderr
    assert "the main branch has no results yet" in (results / "report/changes.md").read_text()


def test_a_change_is_told_beside_the_results_of_the_main_branch(results: Path) -> None:
    job = github(results)["report"]
    assert execute(results, command_with(job, "cp -r results main")).returncode == 0
    part = results / "results/torch-1of2.jsonl"
    lines = part.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if '"event":"cell"' in line)
    cell = json.loads(lines[place])
    wrong = {"outcome": "failed", "severity": "wrong", "why": "largest error 1"}
    lines[place] = json.dumps(cell | wrong, separators=(",", ":"))
    before = part.read_text()
    try:
        part.write_text("\n".join(lines) + "\n")
        done = execute(results, command_with(job, "make changes"))
        summary = results / "summary.md"
        told = command_with(job, "GITHUB_STEP_SUMMARY")
        assert execute(results, told, GITHUB_STEP_SUMMARY=str(summary)).returncode == 0
    finally:
        part.write_text(before)
    # a failure fails the job `matrix`, and its report is drawn all the same
    assert done.returncode == 0, done.stderr
    text = (results / "report/changes.md").read_text()
    assert text.startswith("### torch\n\n```\n")
    assert re.search(rf"{re.escape(cell['id'])}.*largest error 1", text, re.S)
    assert summary.read_text() == text


def test_results_that_cannot_be_compared_fail_the_job(results: Path) -> None:
    (results / "main").mkdir(exist_ok=True)
    (results / "main/torch-1of2.jsonl").write_text("no results")
    done = execute(results, command_with(github(results)["report"], "make changes"))
    assert done.returncode != 0
    execute(results, "rm -rf main")


def test_the_tests_and_the_hook_pass_and_the_hook_notices_a_change(project: Path) -> None:
    assert execute(project, command_with(github(project)["matrix"], "make test")).returncode == 0
    (hook,) = yaml.safe_load((project / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert execute(project, hook["entry"]).returncode == 0
    matrix = project / "matrix.yaml"
    before = matrix.read_text()
    assert re.search(hook["files"], "matrix.yaml")
    assert re.search(hook["files"], "generated_tests/test_mine.py")
    try:
        matrix.write_text(before.replace("limit: 0.5", "limit: 0.25"))
        assert execute(project, hook["entry"]).returncode != 0
    finally:
        matrix.write_text(before)


def test_the_nightly_job_soaks_into_the_folder_that_it_uploads(project: Path) -> None:
    job = github(project)["nightly"]
    (uploads,) = (step["with"]["path"] for step in job["steps"] if "upload" in step.get("uses", ""))
    command = command_with(job, "make soak").replace("MINUTES=30", "MINUTES=0.02")
    done = execute(project, command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "target torch, 0.02 minutes" in done.stdout
    assert uploads == "soak"
    assert f"--out {uploads}" in (project / "Makefile").read_text()


def test_both_systems_run_the_same_commands(project: Path) -> None:
    lab = yaml.safe_load((project / GITLAB).read_text())
    hub = github(project)
    axes, (lab_axes,) = hub["matrix"]["strategy"]["matrix"], lab["matrix"]["parallel"]["matrix"]
    assert lab_axes == {"TARGET": axes["target"], "SHARD": axes["shard"]}
    for job in ("matrix", "report", "nightly"):
        made = [" ".join(command.split()[:2]) for command in commands(hub[job])]
        of_make = [command for command in made if command.startswith("make ")]
        script = [" ".join(each.split()[:2]) for each in lab[job]["script"]]
        assert [each for each in script if each.startswith("make ")] == of_make


def test_gitlab_takes_the_part_from_its_variables(project: Path) -> None:
    lab = yaml.safe_load((project / GITLAB).read_text())
    command = next(each for each in lab["matrix"]["script"] if "shard" in each)
    shown = execute(project, f"{command} -n", TARGET="torch", SHARD="2/2")
    assert "--target torch" in shown.stdout
    assert "--shard 2/2" in shown.stdout
    assert "results/torch-2of2.jsonl" in shown.stdout


def test_gitlab_takes_the_results_of_the_main_branch_from_its_artifacts(
    project: Path, tmp_path: Path
) -> None:
    fetch, *_ = yaml.safe_load((project / GITLAB).read_text())["report"]["script"]
    # a curl that gives what GitLab gives: the artifacts of the job
    (tmp_path / "bin").mkdir()
    (tmp_path / "results").mkdir()
    (tmp_path / "results/torch-1of2.jsonl").write_text("{}")
    curl = tmp_path / "bin/curl"
    curl.write_text("#!/bin/sh\nexec python -m zipfile -c main.zip results\n")
    curl.chmod(0o755)
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert execute(tmp_path, fetch, PATH=path).returncode == 0
    assert (tmp_path / "main/torch-1of2.jsonl").read_text() == "{}"
    curl.write_text("#!/bin/sh\nexit 22\n")
    assert execute(tmp_path, f"rm -rf main; {fetch}", PATH=path).returncode == 0


def test_what_is_cached_and_uploaded_is_what_the_commands_write(project: Path) -> None:
    jobs = github(project)
    for job in jobs.values():
        (cache,) = (step for step in job["steps"] if step.get("uses", "") == "actions/cache@v4")
        assert cache["with"]["path"] == ".venv"
        assert "hashFiles('requirements.txt')" in cache["with"]["key"]
    stored = [
        step["with"]["path"]
        for step in [*jobs["matrix"]["steps"], *jobs["report"]["steps"]]
        if "upload" in step.get("uses", "") or "/save" in step.get("uses", "")
    ]
    assert stored == ["results", "report", "main"]
    ignored = (project / ".gitignore").read_text().split()
    assert {"/results/", "/report/", "/main/", "/soak/"} <= set(ignored)


def test_tox_has_an_environment_for_each_version_of_torch(project: Path) -> None:
    settings = configparser.ConfigParser()
    settings.read(project / "tox.ini")
    section = "testenv:torch{2.12,2.13,2.14,2.15}"
    assert "torch2.14: torch==2.14.*" in settings[section]["deps"]
    shown = execute(project, f"{sys.executable} -m tox config -e torch2.14 -k deps commands")
    assert shown.returncode == 0, shown.stderr
    deps = shown.stdout.partition("deps =")[2].partition("commands")[0].split()
    assert deps == ["the-matrix==1.0", "pytest-xdist", "torch==2.14.*"]
