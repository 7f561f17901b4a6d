"""A wheel has our packages inside of one of ours, and works beside others named `gen` and
`runtime`. The lines of a traceback are those of the checkout.

`make release` tries the rest: a clean environment, the command, the smoke tier.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from zipfile import ZipFile

import pytest

from tools.release.renaming import Renaming, RenamingError
from tools.release.trial import FOREIGN, USE
from tools.release.wheel_contents import OUTER, PACKAGES, moved, write_wheel

ROOT = Path(__file__).parents[2]
SUFFIXES = frozenset((".cpp", ".css", ".j2", ".js", ".json", ".py", ".yaml"))
RENAMING = Renaming("ours", ["gen.checks", "gen.run", "runtime.func", "runtime.jit"])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("from gen.checks import cases\n", "from ours.gen.checks import cases\n"),
        ("from gen import checks as c\n", "from ours.gen import checks as c\n"),
        ("import runtime\n", "from ours import runtime\n"),
        ("import os, gen.run as r\n", "import os, ours.gen.run as r\n"),
        ("é = 1; from gen.run import x\n", "é = 1; from ours.gen.run import x\n"),
        ("from .gen.checks import x\n", "from .gen.checks import x\n"),
        ("from genetics.run import x\n", "from genetics.run import x\n"),
        ('a = "gen.run", "x.gen.run"\n', 'a = "ours.gen.run", "x.gen.run"\n'),
        (
            'a = f"{b} gen.run.plugin"  # gen.run\n',
            'a = f"{b} ours.gen.run.plugin"  # ours.gen.run\n',
        ),
        ('a = "python -m gen check"\n', 'a = "python -m ours.gen check"\n'),
        (
            'a = "import runtime\\nruntime.jit(f)"\n',
            'a = "import ours.runtime\\nours.runtime.jit(f)"\n',
        ),
        ('a = "runtime", "gen.nothing", gen.run\n', 'a = "runtime", "gen.nothing", gen.run\n'),
        ('"""See\n\n:mod:`gen.checks`."""\n', '"""See\n\n:mod:`ours.gen.checks`."""\n'),
    ],
)
def test_a_name_of_a_module_changes_in_its_line(before: str, after: str) -> None:
    assert RENAMING.python(before, "file.py") == after


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\nimport gen.checks\n", r"file\.py:2: write `from gen\.checks import …` or give it"),
        ("import os, runtime\n", r"file\.py:1: write `from runtime import …` or give it"),
        (
            "from gen \\\n  import checks\nfrom \\\n  gen import run\n",
            r"file\.py:3: write `from gen",
        ),
        ('a = ("gen."\n     "run")\n', r"file\.py:1: the name of a module is cut: …gen\.run"),
        ('a = f"{runtime.jit}"\n', r"file\.py:1: a package in the braces of an f-string"),
    ],
)
def test_what_cannot_change_in_its_line_is_refused(source: str, message: str) -> None:
    with pytest.raises(RenamingError, match=message):
        RENAMING.python(source, "file.py")


@pytest.fixture(scope="module")
def files() -> Mapping[str, bytes]:
    """The files of the packages, as a wheel of setuptools has them."""
    paths = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*"))]
    return {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in paths
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(files: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return moved(files)


@pytest.fixture(scope="module")
def site(wheel: Mapping[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as of an installation: the packages of the wheel, and two foreign ones."""
    folder = tmp_path_factory.mktemp("site")
    foreign = {f"{name}/__init__.py": FOREIGN.encode() for name in PACKAGES}
    for name, content in {**wheel, **foreign}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def python(site: Path, folder: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_line_stays_in_its_place(
    files: Mapping[str, bytes], wheel: Mapping[str, bytes]
) -> None:
    def plain(line: bytes) -> bytes:
        name = OUTER.encode()
        return line.replace(b"from " + name + b" import ", b"import ").replace(name + b".", b"")

    for name, content in files.items():
        lines = wheel[f"{OUTER}/{name}"].splitlines()
        assert list(map(plain, lines)) == list(map(plain, content.splitlines())), name


def test_the_public_names_work_beside_foreign_packages(site: Path, tmp_path: Path) -> None:
    python(site, tmp_path, "-c", USE)


def test_a_project_of_the_wheel_names_its_package_and_its_cells_pass(
    site: Path, tmp_path: Path
) -> None:
    command = ("-m", f"{OUTER}.gen")
    python(site, tmp_path, *command, "init", "sketch", "--requirement", "the-matrix==1.0")
    project = tmp_path / "sketch"
    generated = (project / "generated_tests/test_mine.py").read_text("utf-8")
    assert f"from {OUTER}.gen.checks import cases, family, op\n" in generated
    assert f"-m {OUTER}.gen generate\n" in (project / "Makefile").read_text("utf-8")
    some = ("-k", "float64 and (gradcheck or vmap)", "--target", "runtime")
    assert "6 passed" in python(site, project, "-m", "pytest", "-q", "generated_tests", *some)


def test_a_traceback_of_the_wheel_names_the_line_of_the_checkout(
    site: Path, tmp_path: Path
) -> None:
    program = f"""
        import torch
        from {OUTER}.runtime.func import vmap
        try:
            vmap(lambda x: x)(1)
        except Exception as error:
            while error.__traceback__.tb_next:
                error.__traceback__ = error.__traceback__.tb_next
            frame = error.__traceback__.tb_frame.f_code
            print(frame.co_filename, error.__traceback__.tb_lineno, sep="\\n")
    """
    file, line = python(site, tmp_path, "-c", textwrap.dedent(program)).splitlines()
    own = (ROOT / Path(file).relative_to(site / OUTER)).read_text("utf-8")
    assert "raise " in own.splitlines()[int(line) - 1]


def test_pip_installs_a_wheel_whose_packages_were_moved(tmp_path: Path) -> None:
    information = {
        "METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "entry_points.txt": "[console_scripts]\nsmall = gen.run:main\n",
        "top_level.txt": "gen\nruntime\n",
        "RECORD": "",
    }
    contents = {f"small-1.dist-info/{name}": text for name, text in information.items()}
    contents |= {"gen/__init__.py": "", "gen/run.py": "def main(): print('runs')\n"}
    contents |= {"runtime/__init__.py": ""}
    (tmp_path / "before").mkdir()
    name = "small-1-py3-none-any.whl"
    with ZipFile(tmp_path / "before" / name, "w") as archive:
        for path, text in contents.items():
            archive.writestr(path, text)
    write_wheel(str(tmp_path / "before" / name), str(tmp_path / name))
    options = ("install", "--quiet", "--no-deps", "--no-index", "--target", "installed")
    python(tmp_path, tmp_path, "-m", "pip", *options, name)
    installed = tmp_path / "installed"
    assert sorted(path.name for path in installed.iterdir()) == ["bin", "small-1.dist-info", OUTER]
    assert (installed / OUTER / "py.typed").is_file()
    assert python(installed, tmp_path, "installed/bin/small") == "runs\n"
