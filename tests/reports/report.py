"""What a report is, the program of its own that it becomes, and when two answers are the same."""

from __future__ import annotations

import ast
import importlib
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from packaging.specifiers import SpecifierSet

FOLDER = Path(__file__).parent / "programs"
LONGEST = 40  # lines of a program
_COLLECTED: dict[str, Report] = {}


@dataclass(frozen=True)
class Report:
    """A wrong answer of torch."""

    number: str
    links: tuple[str, ...]
    kernel: bool
    raises: tuple[str, ...]
    rtol: float
    runtime: str
    compiled: bool
    capability: str
    torch: str
    function: Callable[[], Any]

    @property
    def topic(self) -> str:
        """The file of programs that it stands in, such as ``forward_mode``."""
        return self.function.__module__.rpartition(".")[2]

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def is_here(self) -> bool:
        """Whether torch takes the kernels that are wrong on this machine."""
        return self.capability in ("", torch.backends.cpu.get_cpu_capability())

    @property
    def is_mended(self) -> bool:
        """Whether the installed torch is of a version that gives the right answer, or refuses."""
        installed = version("torch").partition("+")[0]
        return not SpecifierSet(self.torch).contains(installed, prereleases=True)

    @property
    def title(self) -> str:
        return " ".join((self.function.__doc__ or "").partition("\n\n")[0].split())

    @property
    def text(self) -> str:
        """What the docstring says below its first paragraph."""
        return inspect.cleandoc("\n" + (self.function.__doc__ or "").partition("\n\n")[2])


def report(
    number: str,
    *links: str,
    kernel: bool = False,
    raises: str | tuple[str, ...] = (),
    rtol: float = 1e-4,
    runtime: str = "",
    compiled: bool = False,
    capability: str = "",
    torch: str = "",
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Add a program to the collection: a function that returns what torch gives and what is right.

        @report("F20.1", "pytorch#12345", kernel=True)
        def polygamma_at_infinity():
            \"\"\"polygamma(2, inf) is NaN.

            polygamma(n, x) goes to 0 as x grows.
            \"\"\"
            return torch.polygamma(2, torch.tensor(math.inf)), torch.tensor(0.0)

    Its statements, with the imports that they use, are a program that needs torch alone: no
    arguments, no names of its file but imports, and one ``return``, at its end, of two expressions.

    number    the section of docs/findings.md; programs of one cause share the number before the dot
    links     upstream reports; none if nobody has reported it
    kernel    whether ATen is wrong below autograd, transforms and compilers, in a kernel or a
              composite op; what is above inherits it
    raises    part of the error that torch raises instead of giving a result; several if versions
              of torch differ
    rtol      how far an answer may be from the right one, as part of the largest element
              of the right one
    runtime   why the runtime of this package does not give the right answer either;
              empty if it does
    compiled  whether it takes a compiler of code: such a program runs in a process of its own
    capability  as ``torch.backends.cpu.get_cpu_capability()`` names it, if only kernels for these
                instructions are wrong
    torch     a specifier such as "<2.14", if later ones give the right answer or an error
    """

    texts = (raises,) if isinstance(raises, str) else raises

    def collect(function: Callable[[], Any]) -> Callable[[], Any]:
        if (
            function.__name__ in _COLLECTED
            and _COLLECTED[function.__name__].function.__module__ != function.__module__
        ):
            raise ValueError(f"two reports are called {function.__name__}")
        _COLLECTED[function.__name__] = Report(
            number, links, kernel, texts, rtol, runtime, compiled, capability, torch, function
        )
        return function

    return collect


@cache
def topics() -> tuple[ModuleType, ...]:
    return tuple(
        importlib.import_module(f"tests.reports.programs.{path.stem}")
        for path in sorted(FOLDER.glob("[a-z]*.py"))
    )


def reports() -> list[Report]:
    """All reports, by their numbers."""
    topics()
    return sorted(
        _COLLECTED.values(), key=lambda r: [int(part) for part in r.number[1:].split(".")]
    )


def program(entry: Report) -> str:
    """The stand-alone program of a report. It leaves the two answers in ``actual`` and ``expected``
    and prints them."""
    body = statements(entry)
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    imports = [line for node in _imports(entry.topic) if (line := _narrowed(node, used))]
    return "\n".join(
        [*imports, "", body, 'print("actual  ", actual)', 'print("expected", expected)', ""]
    )


def statements(entry: Report) -> str:
    """The statements of a report's function; the last one binds ``actual`` and ``expected``."""
    source = textwrap.dedent(inspect.getsource(entry.function))
    node = ast.parse(source).body[0]
    assert isinstance(node, ast.FunctionDef)
    last = node.body[-1]
    if not (
        isinstance(last, ast.Return)
        and isinstance(last.value, ast.Tuple)
        and len(last.value.elts) == 2
    ):
        raise ValueError(f"{entry.name} does not end in `return actual, expected`")
    lines = source.splitlines()
    body = lines[(node.body[0].end_lineno or 0) : last.lineno - 1]
    pair = [_expression(source, value) for value in last.value.elts]
    return "\n".join(
        [
            *textwrap.dedent("\n".join(body)).strip("\n").splitlines(),
            f"actual = {pair[0]}",
            f"expected = {pair[1]}",
        ]
    )


def _expression(source: str, node: ast.expr) -> str:
    """The text of an expression, its further lines without the indentation that
    they have in common."""
    first, *rest = (ast.get_source_segment(source, node) or "").splitlines()
    return "\n".join([first, *textwrap.dedent("\n".join(rest)).splitlines()])


@cache
def _imports(topic: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The imports of a file of programs, without that of `report`."""
    body = ast.parse((FOLDER / f"{topic}.py").read_text("utf-8")).body
    imports = (node for node in body if isinstance(node, (ast.Import, ast.ImportFrom)))
    return tuple(node for node in imports if getattr(node, "module", None) != __name__)


def _narrowed(node: ast.Import | ast.ImportFrom, used: set[str]) -> str:
    """The import as a line, of the names that are used alone."""
    names = [
        alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in used
    ]
    if not names:
        return ""
    return ast.unparse(
        ast.Import(names)
        if isinstance(node, ast.Import)
        else ast.ImportFrom(node.module, names, node.level)
    )


def same(actual: Any, expected: Any, rtol: float) -> bool:
    """Return whether two answers are equal in structure and shape, and nearly so in numbers.

    Infinities and NaNs must be the same. Other numbers may differ by ``rtol`` of the largest one.
    """
    if isinstance(expected, (tuple, list)):
        if not isinstance(actual, (tuple, list)) or len(actual) != len(expected):
            return False
        return all(map(same, actual, expected, [rtol] * len(expected)))
    if isinstance(expected, (float, complex)) and isinstance(actual, (int, float, complex)):
        actual, expected = torch.tensor(actual), torch.tensor(expected)
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        return type(actual) is type(expected) and bool(actual == expected)
    return actual.shape == expected.shape and _nearly_equal(actual, expected, rtol)


def _nearly_equal(actual: torch.Tensor, expected: torch.Tensor, rtol: float) -> bool:
    """Compare two tensors of one shape."""
    a, e = map(_parts, (actual, expected))
    if not (actual.is_complex() or expected.is_complex()):
        a, e = a[..., 0], e[..., 0]
    finite = e.isfinite()
    if not torch.equal(a[~finite].nan_to_num(math.pi), e[~finite].nan_to_num(math.pi)):
        return False
    if not a[finite].isfinite().all():
        return False
    if not finite.any():
        return True
    largest = float(e[finite].abs().max())
    return float((a - e)[finite].abs().max()) <= rtol * largest


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return real and imaginary parts in double precision, in a last dimension."""
    return torch.view_as_real(tensor.detach().resolve_conj().to(torch.complex128))


def by_process(entries: Iterable[Report]) -> Iterable[list[Report]]:
    """The reports that share a process. A report that compiles code has one of its own."""
    groups: dict[str, list[Report]] = {}
    for entry in entries:
        groups.setdefault(entry.name if entry.compiled else "", []).append(entry)
    return groups.values()
