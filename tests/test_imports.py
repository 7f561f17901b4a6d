"""Who may import whom: the arrows of docs/architecture.md, and what `runtime` may not
take from torch."""

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FORBIDDEN_IN_RUNTIME = (
    "torch.func",
    "functorch",
    "torch._functorch",
    "torch.autograd",
    "torch.nn.utils._expanded_weights",
    "torch.nn.utils._per_sample_grad",
    "torch.utils.checkpoint",
    "torch.fx.experimental.proxy_tensor",
    "torch._subclasses.functional_tensor",
)
TOP_LEVEL = ("benchmarks", "examples", "gen", "programs", "runtime", "tools")
GRAD_MODE_SWITCHES = {"torch.autograd.grad_mode"}
PROJECT = (*TOP_LEVEL, "generated_tests", "tests")
MAY_IMPORT = {
    "runtime": set[str](),
    "gen/language": {"gen.dtypes", "gen.errors", "gen.versions"},
    "gen/reference": {"gen.language.pipeline"},
    "gen/targets": {"gen.language.pipeline", "gen.torch_private", "runtime"},
    "gen/devices": {"gen.outcomes", "gen.torch_private"},
    "gen/samples": {
        "gen.devices",
        "gen.language.pipeline",
        "gen.language.values",
        "gen.outcomes",
        "gen.reference",
        "gen.targets.protocol",
        "gen.torch_private",
        "gen.versions",
    },
    "gen/checks": {
        "gen.devices",
        "gen.dtypes",
        "gen.grammar",
        "gen.severity",
        "gen.samples",
        "gen.reference",
        "gen.targets",
        "gen.language.axes",
        "gen.language.pipeline",
        "gen.outcomes",
        "gen.torch_private",
        "gen.versions",
    },
    "gen/recording": {"gen.torch_private"},
    "programs": {"gen.outcomes", "gen.targets.parts", "runtime.extend"},
    "generated_tests": {"gen.checks"},
    "benchmarks": {"runtime", "gen", "examples"},
    "examples": {"runtime", "gen"},
    # on top of all: a tool writes a part of the matrix from models
    "tools": {"gen.packages", "gen.recording"},
}
# From the ground up. A module imports from its own floor and from lower ones, inside functions and
# for types as well. The rooms of a large folder are floors too.
FLOORS = {
    "runtime": (
        ("torch_private",),
        ("errors", "huge_pages", "stack_room", "facts", "native"),
        ("seam",),
        ("rules",),
        ("tape",),
        ("trace",),
        ("functionalize",),
        ("func",),
        ("session",),
        ("autograd",),
        ("checkpoint",),
        ("aot", "export"),  # the public names of `export` are names of `aot` too
        ("jit", "per_sample"),
        ("expanded_weights",),
        ("dropin",),
        ("__init__", "__main__", "coverage", "extend", "records_page"),
    ),
    "runtime/rules": (
        ("record",),
        ("ops", "functional_forms", "hidden_writes", "overload_bindings"),
        ("derive", "samples"),
        ("elementwise", "shape"),
        ("reduction", "linalg", "layers"),
        ("tensors",),
        ("__init__",),
    ),
    "runtime/aot": (
        ("python_state",),
        ("control_flow",),
        ("capture",),
        ("partition",),
        ("compilers",),
        ("cache",),
        ("calls",),
        ("explain", "__init__"),
    ),
    "gen": (
        ("torch_private",),
        (
            "__init__",
            "dtypes",
            "errors",
            "files",
            "outcomes",
            "package_names",
            "severity",
            "versions",
        ),
        ("language",),
        ("devices", "reference", "targets"),
        ("samples", "facts", "recording", "grammar"),
        ("checks",),
        ("scripts", "dependencies"),
        ("plan", "run", "soak"),
        ("audit", "cluster", "conformance", "dispatcher", "packages", "report", "write"),
        ("commands",),
        ("cli", "__main__"),
    ),
}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written. Empty for what begins with anything but a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


@functools.cache  # several claims read every file
def read(text: str) -> tuple[list[ast.Import | ast.ImportFrom], list[tuple[int, str]]]:
    """The imports of a file, wherever in it, and what it mentions as `a.b`, with its line."""
    imports: list[ast.Import | ast.ImportFrom] = []
    mentioned: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            mentioned.append((node.lineno, dotted(node)))
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(node)
    return imports, mentioned


def imported_names(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that the file imports, with its line; `from a import b` is `a.b`."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in read(path.read_text())[0]:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            parents = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*parents, *filter(None, [node.module])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def dotted_names(path: Path) -> Iterator[tuple[int, str]]:
    """:func:`imported_names`, and every `torch.a.b` that the file mentions."""
    yield from imported_names(path)
    yield from read(path.read_text())[1]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def violations_of_layers(path: Path, allowed: set[str]) -> list[str]:
    found = []
    for line, name in imported_names(path):
        inside = any(within(name, package) for package in PROJECT)
        if inside and not any(within(name, package) for package in allowed):
            found.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    return found


def violations_of_ours(path: Path) -> list[str]:
    found = []
    for line, name in dotted_names(path):
        switches = any(within(name, allowed) for allowed in GRAD_MODE_SWITCHES)
        if not switches and any(within(name, package) for package in FORBIDDEN_IN_RUNTIME):
            found.append(f"{path.relative_to(ROOT)}:{line}: {name}")
    return found


def imports_within(package: str) -> dict[str, set[str]]:
    """Which modules of a package each of its modules imports, without the name of the
    package: `tape.nodes`."""
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in modules(package)
    }
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        mentioned = {n for _, n in imported_names(path)}
        targets = {n if n in paths else n.rpartition(".")[0] for n in mentioned} & paths.keys() - {
            name
        }
        found[short(name, package)] = {short(target, package) for target in targets}
    return found


def short(module: str, package: str) -> str:
    """The name of a module as it is written within its package."""
    return module.removeprefix(package.replace("/", ".")).removeprefix(".") or "__init__"


def floor_of(module: str, floors: tuple[tuple[str, ...], ...]) -> int:
    return next(number for number, names in enumerate(floors) if module.partition(".")[0] in names)


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """The modules that no order of imports can begin with or end with."""
    left = dict(arrows)
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("package", FLOORS)
def test_arrows_point_downwards(package: str) -> None:
    floors = FLOORS[package]
    upwards = [
        f"{module} -> {target}"
        for module, targets in imports_within(package).items()
        for target in targets
        if floor_of(target, floors) > floor_of(module, floors)
    ]
    assert not upwards


@pytest.mark.parametrize("package", FLOORS)
def test_no_modules_import_one_another_in_a_circle(package: str) -> None:
    assert circles(imports_within(package)) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_dependencies_point_one_way(folder: str) -> None:
    own = (
        folder.split("/")[0]
        if folder in ("runtime", "generated_tests")
        else folder.replace("/", ".")
    )
    assert modules(folder), f"{folder} has no modules"
    assert not [
        v
        for path in modules(folder)
        for v in violations_of_layers(path, MAY_IMPORT[folder] | {own})
    ]


def test_nothing_of_the_product_imports_from_its_tests() -> None:
    paths = [path for folder in (*TOP_LEVEL, "generated_tests") for path in modules(folder)]
    allowed = set(PROJECT) - {"tests"}
    assert not [v for path in paths for v in violations_of_layers(path, allowed)]


# what rows were called before they moved; nothing is looked up under these names
_FORMER_NAMES = re.compile(r"^former_names:\n(  .*\n)+", re.M)


def names_of_tests(text: str) -> list[str]:
    """List what the text of a matrix names in tests."""
    return re.findall(r"\btests\.[a-z][\w.]*", _FORMER_NAMES.sub("", text))


def test_the_matrix_names_nothing_in_tests() -> None:
    files = [ROOT / "matrix.yaml", *(ROOT / "matrix").iterdir()]
    found = {file.name: names_of_tests(file.read_text()) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


def test_a_name_in_tests_is_found() -> None:
    text = "former_names:\n  programs.: tests.old.\nfamilies:\n  - op: tests.rows.sum\n"
    assert names_of_tests(text) == ["tests.rows.sum"]


def test_the_runtime_takes_no_transform_or_engine_from_torch() -> None:
    """Only the drop-in may name torch's own systems, in order to replace them."""
    paths = [p for p in modules("runtime") if p.parent.name != "dropin"]
    assert not [v for path in paths for v in violations_of_ours(path)]


@pytest.mark.parametrize(
    "line",
    [
        "import torch.func",
        "from torch import func",
        "from torch.autograd import Function",
        "torch.autograd.grad(x, y)",
        "import functorch",
    ],
)
def test_the_rule_about_torchs_systems_can_fail(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "module.py").write_text(line + "\n")
    assert violations_of_ours(tmp_path / "module.py")


def test_the_rule_about_layers_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "module.py").write_text("from gen.checks import cases\n")
    assert violations_of_layers(tmp_path / "module.py", {"runtime"})


def test_importing_the_runtime_brings_neither_dynamo_nor_sympy() -> None:
    """Which take several times as long as all of it, and which graphs alone need."""
    heavy = "{'torch._dynamo', 'sympy'}"
    program = (
        "import sys, torch; before = set(sys.modules); import runtime; "
        f"print(*{heavy} & (set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []
