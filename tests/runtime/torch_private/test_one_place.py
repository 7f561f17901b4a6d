"""Private names of torch stand in one place each, with a line that says what they are for."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SEAMS = ("runtime/torch_private", "gen/torch_private")
FOLDERS = ("runtime", "gen")
_ROUTE = "a module whose functions and classes are replaced"
_METHOD = "methods of it, or of classes in it, are replaced"
_OPERATORS = "it is replaced, as torch's compiler knows no values of ours"
_OWNER = "an attribute of it is replaced"
_ALONE = "the file is a program of its own, which starts without the package"
# Names that stand elsewhere: by file, then by name, with the reason.
OUTSIDE: dict[str, dict[str, str]] = {
    "runtime/aot/compilers/trial_process.py": {
        "torch._C._AutoDispatchBelowAutograd": _ALONE,
        "torch._guards.TracingContext": _ALONE,
        "torch._guards.tracing": _ALONE,
        "torch._inductor.compile_fx": _ALONE,
        "torch._inductor.config": _ALONE,
        "torch._inductor.ir": _ALONE,
        "torch._ops.OpOverload": _ALONE,
        "torch._subclasses.fake_tensor.FakeTensor": _ALONE,
        "torch._subclasses.fake_tensor.FakeTensorMode": _ALONE,
        "torch.fx._graph_pickler": _ALONE,
        "torch.fx._graph_pickler.GraphPickler": _ALONE,
        "torch.fx._graph_pickler.GraphPickler.loads": _ALONE,
        "torch.fx._graph_pickler.Options": _ALONE,
        "torch.fx._graph_pickler._ShapeEnvPickleData": _ALONE,
        "torch.fx._graph_pickler._SymNodePickleData": _ALONE,
        "torch.fx._graph_pickler._TensorPickleData": _ALONE,
    },
    "runtime/dropin/routes.py": {
        "torch._C": _OWNER,
        "torch._C._autograd": _OWNER,
        "torch._C._functions": _OWNER,
        "torch._C._functorch": _OWNER,
        "torch._vmap_internals": _OWNER,
        "torch._functorch.aot_autograd": _ROUTE,
        "torch._functorch.apis": _ROUTE,
        "torch._functorch.partitioners": _ROUTE,
        "torch._higher_order_ops.associative_scan": _ROUTE,
        "torch._higher_order_ops.cond": _ROUTE,
        "torch._higher_order_ops.map": _ROUTE,
        "torch._higher_order_ops.scan": _ROUTE,
        "torch._higher_order_ops.while_loop": _ROUTE,
        "torch.nn.utils._expanded_weights": _ROUTE,
        "torch.nn.utils._expanded_weights.expanded_weights_impl": _ROUTE,
        "torch.nn.utils._expanded_weights.expanded_weights_utils": _ROUTE,
        "torch.nn.utils._per_sample_grad": _ROUTE,
    },
    "runtime/dropin/capturing.py": {
        "torch._inductor": "the function is replaced",
        "torch._inductor.aoti_compile_and_package": "the function is replaced",
        "torch.export.pt2_archive._package.AOTICompiledModel": _METHOD,
        "torch.export.pt2_archive._package.AOTICompiledModel.__call__": _METHOD,
        "torch.jit._script.RecursiveScriptModule": _METHOD,
        "torch.jit._script.ScriptModule": _METHOD,
    },
    "runtime/dropin/classes.py": {
        "torch._tensor": _OWNER,
        "torch._utils": _OWNER,
    },
    "runtime/dropin/compiling.py": {
        "torch._dynamo.convert_frame": _METHOD,
        "torch._dynamo.guards": _METHOD,
        "torch._dynamo.output_graph": _METHOD,
        "torch._dynamo.trace_rules": _METHOD,
        "torch._dynamo.variables.builder": _METHOD,
        "torch._subclasses.meta_utils.MetaTensorDescriber": _METHOD,
        "torch._subclasses.meta_utils.MetaTensorDescriber.describe_tensor": _METHOD,
        "torch._functorch.aot_autograd": _ROUTE,
    },
    "runtime/dropin/distributed.py": {
        "torch.distributed.fsdp._fully_shard._fsdp_state": _METHOD,
    },
    "runtime/dropin/intercept.py": {
        "torch._functorch.eager_transforms": _OWNER,
    },
    "runtime/dropin/modules.py": {
        "torch._C._nn": _OWNER,
        "torch._VF": _OWNER,
    },
    "runtime/dropin/tensor_factories.py": {
        "torch._utils": "the factories in it are replaced",
    },
    "runtime/aot/control_flow/torch_operators.py": {
        "torch._higher_order_ops.utils._hop_compile_and_call": _OPERATORS,
    },
    "gen/facts/torch_facts.py": {
        "torch._decomp.decomposition_table": "it is asked for where the seams cannot be imported",
    },
}


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    """`a.b.c` as it is written. Empty for what begins with anything but a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(names)]) if isinstance(node, ast.Name) else ""


def is_private(name: str) -> bool:
    """Whether a dotted name is one of torch's and none that users call. Ops are public: theirs may
    begin with an underscore, too."""
    root, *parts = name.split(".")
    hidden = any(part.startswith("_") and not part.startswith("__") for part in parts)
    return root == "torch" and hidden and parts[0] != "ops"


def chains(node: ast.AST) -> Iterator[ast.Attribute]:
    """Each `a.b.c` in a node, without the `a.b` in it."""
    inner = {id(n.value) for n in ast.walk(node) if isinstance(n, ast.Attribute)}
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute) and id(n) not in inner:
            yield n


# ---------------------------------------------------------------------- outside of the seams


def names_of_seams() -> dict[str, str]:
    """What each name of a seam is called by torch, for the names that are one."""
    found = {}
    for folder in SEAMS:
        for path in sources(folder):
            for node in ast.parse(path.read_text()).body:
                match node:
                    case (
                        ast.Assign(targets=[ast.Name(id=name)], value=value)
                        | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                    ):
                        found[name] = dotted(value)
    return found


def bound_by_imports(tree: ast.AST, seams: dict[str, str]) -> dict[str, tuple[str, bool]]:
    """What the names that a file imports are called by torch, and whether they are of a seam."""
    found: dict[str, tuple[str, bool]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {a.asname: (a.name, False) for a in names if a.asname}
            case ast.ImportFrom(module=str(module), names=names) if of_seam(module):
                found |= {a.asname or a.name: (seams.get(a.name, ""), True) for a in names}
            case ast.ImportFrom(module=str(module), names=names, level=0):
                found |= {a.asname or a.name: (f"{module}.{a.name}", False) for a in names}
    return found


def of_seam(module: str) -> bool:
    return ".torch_private." in f".{module}."


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (a.name for a in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                yield from (f"{module}.{a.name}" for a in names)


def mentioned(tree: ast.AST, seams: dict[str, str]) -> Iterator[str]:
    """Each `a.b` with the name in front as torch calls it. A public part of what a seam names, such
    as `pytree.tree_map`, is left out."""
    bound = bound_by_imports(tree, seams)
    for chain in chains(tree):
        first, _, rest = dotted(chain).partition(".")
        theirs, from_seam = bound.get(first, (first, False))
        if not from_seam or is_private(f"torch.{rest}"):
            yield f"{theirs}.{rest}"


def asked_for(tree: ast.AST) -> Iterator[str]:
    """The name in `getattr(torch._C, "name")` and its like."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name(id="getattr" | "hasattr" | "setattr" | "delattr"),
                args=[owner, ast.Constant(value=str(name)), *_],
            ):
                yield f"{dotted(owner)}.{name}"


def written(tree: ast.AST) -> Iterator[str]:
    """The texts that are a dotted name as a whole."""
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if re.fullmatch(r"torch(\.\w+)+\.?", text):
                yield text.removesuffix(".")


def private_names(text: str, seams: dict[str, str]) -> set[str]:
    """The private names of torch in a file: imported, mentioned, asked for, or written."""
    tree = ast.parse(text)
    names = (imported(tree), mentioned(tree, seams), asked_for(tree), written(tree))
    return {name for name in itertools.chain(*names) if is_private(name)}


def test_private_names_of_torch_stand_in_the_seams_alone() -> None:
    seams = names_of_seams()
    found: dict[str, set[str]] = {}
    for path in (path for folder in FOLDERS for path in sources(folder)):
        file = path.relative_to(ROOT).as_posix()
        if not file.startswith(tuple(f"{seam}/" for seam in SEAMS)):
            found[file] = private_names(path.read_text(), seams)
    stray = {file: names - OUTSIDE.get(file, {}).keys() for file, names in found.items()}
    assert {file: sorted(names) for file, names in stray.items() if names} == {}
    gone = {file: names.keys() - found[file] for file, names in OUTSIDE.items()}
    assert {file: sorted(names) for file, names in gone.items() if names} == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import torch._ops", "torch._ops"),
        ("from torch._ops import OpOverload", "torch._ops.OpOverload"),
        ("from torch.utils import _pytree as trees", "torch.utils._pytree"),
        ("import torch\nf = torch._C._f(3)", "torch._C._f"),
        ("import torch\ndef f(x: torch._ops.OpOverload) -> None: ...", "torch._ops.OpOverload"),
        ("from torch import fx\nfx.graph._snake_case('A')", "torch.fx.graph._snake_case"),
        ("import torch.fx as fx\nfx._lazy.f()", "torch.fx._lazy.f"),
        ("import torch\ngetattr(torch, '_f', None)", "torch._f"),
        ("importlib.import_module('torch._inductor.config')", "torch._inductor.config"),
        ("name = f'torch._C.{part}'", "torch._C"),
        (
            "from ..torch_private.pytrees import pytree\npytree._broadcast(1)",
            "torch.utils._pytree._broadcast",
        ),
        (
            "from gen.torch_private.loaded_with_torch import pytree as p\np._f",
            "torch.utils._pytree._f",
        ),
    ],
)
def test_a_private_name_is_seen(text: str, name: str) -> None:
    assert name in private_names(text, {"pytree": "torch.utils._pytree"})


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.ops.aten._local_scalar_dense.default(x)",
        "import torch\ntorch.Tensor.__dlpack__",
        "x._version, graph._codegen, func._schema.name",
        "from ..torch_private.pytrees import pytree\npytree.tree_map(f, x)",
        "from ..torch_private.native_tensors import TensorBase\nTensorBase.data.__set__",
        'f = 3\n"""As ``torch._C._f`` does."""',
    ],
)
def test_what_is_not_a_private_name_is_not_seen(text: str) -> None:
    seams = {"pytree": "torch.utils._pytree", "TensorBase": "torch._C.TensorBase"}
    assert private_names(text, seams) == set()


# ------------------------------------------------------------------------ inside of the seams


def entries(text: str) -> Iterator[tuple[str, list[str], str]]:
    """What a module of a seam gives a name: the name, the private names of torch in its value, and
    its line."""
    body = ast.parse(text).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, private_values(node), line_of(after)
            case ast.FunctionDef(name=name):
                yield name, private_values(node), ast.get_docstring(node) or ""


def private_values(node: ast.AST) -> list[str]:
    texts = [n.value for n in ast.walk(node) if isinstance(n, ast.Constant)]
    names = [*map(dotted, chains(node)), *(text for text in texts if isinstance(text, str))]
    return [name for name in names if is_private(name)]


def line_of(after: ast.stmt | None) -> str:
    match after:
        case ast.Expr(value=ast.Constant(value=str(line))):
            return line
    return ""


@pytest.mark.parametrize("folder", SEAMS)
def test_each_private_name_has_one_name_of_ours_and_a_line(folder: str) -> None:
    found = [entry for path in sources(folder) for entry in entries(path.read_text())]
    assert len(found) > 0
    assert [name for name, _, line in found if len(line) < 10] == []
    ours = Counter(name for name, _, _ in found)
    theirs = Counter(private for _, names, _ in found for private in names)
    assert [name for name, count in (ours + theirs).items() if count > 1] == []


@pytest.mark.parametrize("folder", SEAMS)
def test_the_modules_of_a_seam_can_be_imported(folder: str) -> None:
    for path in sources(folder):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        module = importlib.import_module(name)
        assert all(hasattr(module, ours) for ours, _, _ in entries(path.read_text()))


def test_a_name_without_a_line_and_a_second_name_are_seen() -> None:
    text = 'import torch\na = torch._C._a\nb = torch._C._a\n"""What it is for."""\n'
    assert list(entries(text)) == [
        ("a", ["torch._C._a"], ""),
        ("b", ["torch._C._a"], "What it is for."),
    ]
    text = 'def a():\n    """Look it up."""\n    return torch._utils._a\nB = ("torch._b", "c")\n'
    assert list(entries(text)) == [
        ("a", ["torch._utils._a"], "Look it up."),
        ("B", ["torch._b"], ""),
    ]
