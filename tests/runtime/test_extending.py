"""docs/extending.md: its modules work as a package of a third party, outside of the project, and
mistakes are named."""

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime
from runtime import extend
from runtime.aot import aot_function
from runtime.func import grad

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/extending.md").read_text("utf-8")
MODULES = dict(re.findall(r"```python\n# softops/(\w+)\.py\n(.*?)```", PAGE, re.DOTALL))

PROGRAMS = {
    "ops": """
        from runtime.aot import make_fx
        from softops.ops import gaussian, gram
        x, m = torch.randn(4, 3, dtype=torch.float64), torch.randn(5, 4, 3, dtype=torch.float64)
        def first(x): return -x / 4 * torch.exp(-x * x / 8)
        def second(x): return (x * x / 16 - 1 / 4) * torch.exp(-x * x / 8)
        def f(x): return gaussian(x, 2.0).sum()
        same(vmap(grad(f))(x), first(x))
        same(jvp(lambda x: gaussian(x, 2.0), (x,), (x,))[1], first(x) * x)
        same(vmap(vmap(grad(grad(lambda n: gaussian(n, 2.0)))))(x), second(x))
        same(make_fx(grad(f))(x)(x), first(x))
        t = runtime.wrap(x, requires_grad=True)
        gaussian(t, 2.0).sum().backward()
        same(runtime.unwrap(t.grad), first(x))
        def trace(m): return (gram(m) * torch.ones(3, 3, dtype=m.dtype).triu()).sum()
        def plain(m): return ((m.mT @ m) * torch.ones(3, 3, dtype=m.dtype).triu()).sum()
        same(vmap(grad(trace))(m), torch.stack([torch.func.grad(plain)(each) for each in m]))
        same(jvp(trace, (m[0],), (m[1],))[1], torch.func.jvp(plain, (m[0],), (m[1],))[1])
        same(vmap(hessian(trace))(m), torch.stack([torch.func.hessian(plain)(each) for each in m]))
    """,
    "family": """
        from softops.family import direction
        x = torch.randn(5, 3)
        def plain(x): return x / x.norm()
        same(vmap(jacrev(direction))(x), torch.stack([torch.func.jacrev(plain)(each) for each in \
x]))
        same(vmap(jacfwd(direction))(x), torch.stack([torch.func.jacrev(plain)(each) for each in \
x]))
        same(vmap(hessian(lambda x: direction(x)[0]))(x), torch.stack([torch.func.hessian(lambda \
x: plain(x)[0])(each) for each in x]))
    """,
    "rounding": """
        from softops.rounding import rounding
        x = torch.randn(4, 3)
        def rounded(t): return t.bfloat16().float()
        def f(x): return (x * x).sin()
        same(rounding(f)(x), rounded(rounded(x * x).sin()), rtol=0, atol=0)
        assert not torch.equal(rounding(f)(x), f(x))
        same(vmap(rounding(f))(x), rounding(f)(x), rtol=0, atol=0)
        slope = torch.stack([grad(rounding(lambda x: f(x).sum()))(each) for each in x])
        same(slope, 2 * x * rounded(x * x).cos(), rtol=1e-2, atol=1e-2)
        assert not torch.equal(slope, 2 * x * (x * x).cos())
        same(vmap(grad(rounding(lambda x: f(x).sum())))(x), slope, rtol=0, atol=0)
        values, indices = rounding(lambda tree: tree["x"].sort())({"x": x})
        same((values, indices), (rounded(x).sort(-1).values, x.sort(-1).indices))
        inner = rounding(grad(lambda x: (x * x).sum()))(x)
        same(inner, rounded(2 * x))
    """,
    "compiler": """
        from runtime.aot import aot_function
        from softops.compiler import compiler, used
        x = torch.rand(7, dtype=torch.float64) / 2
        t = runtime.wrap(x, requires_grad=True)
        out = aot_function(lambda x: torch.tanh(x) * 3, compiler)(t)
        out.sum().backward()
        same(runtime.unwrap(out), x * (15 + x * x) / (15 + 6 * x * x) * 3, rtol=0, atol=0)
        same(runtime.unwrap(out), 3 * x.tanh(), rtol=0, atol=1e-3)
        same(runtime.unwrap(t.grad), 3 * (1 - x.tanh() ** 2), rtol=0, atol=1e-2)
        assert used == [(7,)]
    """,
    "per_sample": """
        from runtime.per_sample import per_sample, per_sample_grads
        from softops.per_sample import scores
        weight, x = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
        wanted = torch.stack([torch.autograd.grad((torch.tanh(row[None]) @ \
weight.t()).pow(2).sum(), weight)[0] for row in x])
        with per_sample(weight) as grads:
            scores(grads.batch(x), weight).pow(2).sum().backward()
        same(grads.materialize(), wanted)
        found = per_sample_grads(lambda w, row: scores(row[None], \
w).pow(2).sum())(weight.detach(), x)
        same(found.materialize(), wanted)
        same(found.norms(), wanted.flatten(1).norm(dim=1))
    """,
}
START = """
import torch
import runtime
from runtime.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.testing import assert_close as same
torch.manual_seed(0)
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the page, and nothing else."""
    folder = tmp_path_factory.mktemp("third_party")
    (folder / "softops").mkdir()
    (folder / "softops/__init__.py").touch()
    for name, text in MODULES.items():
        (folder / f"softops/{name}.py").write_text(text, "utf-8")
    return folder


def test_the_modules_of_the_page_give_right_values(package: Path) -> None:
    programs = {name: textwrap.dedent(text) for name, text in PROGRAMS.items()}
    runs = [
        f"exec(compile({text!r}, {name!r}, 'exec'), dict(globals()))"
        for name, text in programs.items()
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(package), str(ROOT)))}
    program = [sys.executable, "-W", "error:.*has no batch rule", "-c", "\n".join([START, *runs])]
    done = subprocess.run(
        program, cwd=package, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_page_has_a_module_for_each_program() -> None:
    assert MODULES.keys() == PROGRAMS.keys()


@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_the_page_imports_torch_and_the_extension_surface_alone(name: str) -> None:
    found = set()
    for node in ast.walk(ast.parse(MODULES[name])):
        found |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        found |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
    assert found <= {"torch", "runtime.extend"}
    longest = max(block.count("\n") for block in re.split(r"\n\n\n", MODULES[name]))
    assert longest <= 12


def test_the_surface_exports_what_it_names() -> None:
    assert sorted(extend.__all__) == list(extend.__all__) and all(
        hasattr(extend, name) for name in extend.__all__
    )


torch.library.define("extending_tests::twice", "(Tensor x) -> Tensor")
torch.library.impl("extending_tests::twice", "CompositeExplicitAutograd")(lambda x: x * 2)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda: extend.pointwise("extending_tests::thrice", x=lambda: 3),
            "extending_tests::thrice .*Define it with torch.library",
        ),
        (
            lambda: extend.pointwise("cosinus", self=lambda self: self),
            "no operator aten::cosinus in torch [0-9.+a-z]*$",
        ),
        (
            lambda: extend.pointwise("extending_tests::twice", input=lambda: 2),
            "vjp for 'input', which is no argument; its arguments are x",
        ),
        (
            lambda: extend.pointwise("extending_tests::twice", x=lambda y: y),
            "asks for 'y', which is neither an argument",
        ),
        (
            lambda: extend.register("extending_tests::twice", vpj={}),
            "a record has no vpj; its parts are abstract, batch, commutes",
        ),
        (
            lambda: extend.pointwise("sin", self=lambda self: self),
            r"aten.sin.default has two records.*from register\('sin', …\)",
        ),
        (
            lambda: extend.register("extending_tests::twice", places=1),
            "places is 1, which is not callable",
        ),
    ],
)
def test_a_mistake_is_refused_where_it_is_made(act: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        act()


def test_an_op_without_a_record_is_named() -> None:
    with pytest.raises(extend.MissingRule, match=r"extending_tests\.twice\.default"):
        grad(lambda x: torch.ops.extending_tests.twice(x).sum())(torch.ones(3))


def test_a_compiler_that_returns_nothing_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"a compiler returned None\. It takes a GraphModule and example inputs"
    ):
        aot_function(torch.sin, lambda module, inputs: None)(torch.ones(3))  # type: ignore[arg-type, return-value]


def test_a_value_of_an_own_level_does_not_outlive_it() -> None:
    class Plain(extend.Value):
        pass

    class PlainLevel(extend.Level):
        what, values = "nothing", Plain

    stored: list[Any] = []

    def f(x: Any, *, by: Any) -> Any:
        stored.append(x)
        return x * by, {"sum": x.sum()}

    out = extend.transform(PlainLevel)(f)(torch.ones(3), by=torch.tensor(2.0))
    assert type(out[0]) is torch.Tensor and out[1]["sum"] == 3 and out[0].sum() == 6
    with pytest.raises(extend.EscapedValue, match="nothing"):
        stored[0] + 1
    inside = runtime.func.vmap(extend.transform(PlainLevel)(lambda x: x.sum()))(torch.ones(2, 3))
    assert inside.equal(torch.full((2,), 3.0))
