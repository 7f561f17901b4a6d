"""Show how the code of each folder reads, in figures.

    python -m tools.house                             one row for each folder of the project
    python -m tools.house runtime/tape gen            only these two folders
    python -m tools.house runtime --worst 20          the 20 most complex functions
    python -m tools.house runtime gen --fragments     short modules that a single module imports
    python -m tools.house runtime gen --names         names of classes and of files that repeat
    python -m tools.house runtime gen --folders       how many modules each folder has

The table sets no limits. The limits are in tests/test_layout.py, which measures with the
functions of this module.
"""

from __future__ import annotations

import argparse
import ast
import gc
import io
import os
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

# Those that a checkout lacks are left out.
DEFAULT_FOLDERS = ("runtime", "gen", "programs", "tests", "benchmarks", "examples")
WIDEST_LINE = 100  # columns
LONGEST_FRAGMENT = 90  # lines

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Scope = FunctionNode | ast.ClassDef
Documented = ast.Module | Scope
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Loop = ast.For | ast.AsyncFor | ast.While
Branch = Loop | ast.If | ast.IfExp | ast.ExceptHandler | ast.Assert | ast.match_case


class HouseError(Exception):
    """The figures cannot be computed. The message says where the mistake is and what to do."""


# ---------------------------------------------------------------------- modules and functions


@dataclass(frozen=True)
class Source:
    """A module: `runtime/errors.py`, its text, and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def functions(self) -> list[Function]:
        """List the functions and methods of the module, nested ones too."""
        nodes = ast.walk(self.tree)
        return [Function(self.path, node) for node in nodes if isinstance(node, FunctionNode)]


@dataclass(frozen=True)
class Function:
    """A function or method, and the file that it is in."""

    path: Path
    node: FunctionNode

    @property
    def length(self) -> int:
        """Count its lines from `def` to the end. Decorators are above `def`."""
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1

    @property
    def complexity(self) -> int:
        """Count its branches, plus one.

        `def f(x): return 1 if x and x > 0 else 0` has 3: one to start with, one for the
        conditional expression and one for `and`. A nested function has a number of its own
        and adds nothing to that of the function around it.
        """
        return 1 + sum(branches(node) for node in nodes_of_scope(self.node))

    @property
    def statements(self) -> int:
        """Count the statements of its body, those of nested functions too."""
        return statements_without_docstrings(self.node)


def branches(node: ast.AST) -> int:
    """Count the branches that a node adds by itself, without the nodes inside it.

    This is McCabe's count, extended by conditional expressions, `and`, `or`, `assert`, and
    the loops and conditions of comprehensions.
    """
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, Branch))


def nodes_of_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside a node. Nested functions and classes are left out as a whole."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Scope):
            yield child
            yield from nodes_of_scope(child)


def statements_without_docstrings(node: ast.AST) -> int:
    """Count the statements inside a node.

    `if x: return 1` counts as two. The node itself does not count, nor do docstrings: a page
    of explanation makes no function longer.
    """
    inside = list(ast.walk(node))
    statements = sum(isinstance(each, ast.stmt) for each in inside if each is not node)
    return statements - len(docstrings(inside))


def docstrings(nodes: Iterable[ast.AST]) -> list[str]:
    """List the docstrings of those nodes that have one."""
    texts = (ast.get_docstring(node) for node in nodes if isinstance(node, Documented))
    return [text for text in texts if text is not None]


# ------------------------------------------------------------------------------ reading files


def read_sources(paths: Iterable[Path]) -> list[Source]:
    """Read the modules of all folders, each module once. Modules without text are left out."""
    files = dict.fromkeys(file for path in paths for file in python_files(path))
    with without_collection():
        sources = [read_source(file) for file in files]
    return [source for source in sources if source.text.strip()]


@contextmanager
def without_collection() -> Iterator[None]:
    """Keep the garbage collector out. It would walk all trees again and again while they grow,
    which takes three times as long as to read them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def python_files(path: Path) -> list[Path]:
    """List the modules of a folder, or the one module that the path names."""
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise HouseError(f"{path}: there is no such folder. Name a folder or a file of Python.")
    files = sorted(path.rglob("*.py"))
    if not files:
        raise HouseError(f"{path}: the folder has no Python files. Name one that has some.")
    return files


def read_source(path: Path) -> Source:
    try:
        text = path.read_text(encoding="utf-8")
        return Source(path, text, ast.parse(text))
    except SyntaxError as error:
        raise HouseError(f"{path}:{error.lineno}: this does not parse: {error.msg}.") from error
    except ValueError as error:  # bytes that are not UTF-8, or a null byte
        raise HouseError(f"{path}: this is not Python source: {error}.") from error


# ------------------------------------------------------------------------- figures of a folder


@dataclass(frozen=True)
class TextFigures:
    lines: int
    percent_wide: float  # lines of more than 100 columns
    comments: int


@dataclass(frozen=True)
class FunctionFigures:
    complexity_per_line: float
    percent_over_10: float
    over_15: int
    largest_complexity: int


@dataclass(frozen=True)
class SyntaxFigures:
    statements: int  # with docstrings, unlike the statements that tests/test_layout.py limits
    conditionals: int  # conditional expressions
    nested_conditionals: int  # those with another one inside
    comprehensions: int
    any_names: int  # uses of the name `Any`
    letters_per_name: float  # each use of a name counts
    lines_per_docstring: float


@dataclass(frozen=True)
class Figures:
    """The figures of one folder."""

    files: int
    text: TextFigures
    functions: FunctionFigures
    syntax: SyntaxFigures

    def per_lines(self, lines: int, count: int) -> float:
        """How many there are in so many lines: 3 comments in 60 lines are 5 per 100."""
        return ratio(lines * count, self.text.lines)


def figures_of(sources: Sequence[Source]) -> Figures:
    return Figures(
        files=len(sources),
        text=figures_of_text(sources),
        functions=figures_of_functions([f for source in sources for f in source.functions]),
        syntax=figures_of_syntax([n for source in sources for n in ast.walk(source.tree)]),
    )


def figures_of_text(sources: Sequence[Source]) -> TextFigures:
    lines = [line for source in sources for line in source.lines]
    return TextFigures(
        lines=len(lines),
        percent_wide=100 * mean([len(line) > WIDEST_LINE for line in lines]),
        comments=sum(map(comments, sources)),
    )


def figures_of_functions(functions: Sequence[Function]) -> FunctionFigures:
    complexities = [function.complexity for function in functions]
    lengths = [function.length for function in functions]
    return FunctionFigures(
        complexity_per_line=ratio(sum(complexities), sum(lengths)),
        percent_over_10=100 * mean([number > 10 for number in complexities]),
        over_15=sum(number > 15 for number in complexities),
        largest_complexity=max(complexities, default=0),
    )


def figures_of_syntax(nodes: Sequence[ast.AST]) -> SyntaxFigures:
    conditionals = [node for node in nodes if isinstance(node, ast.IfExp)]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    texts = filter(None, docstrings(nodes))
    return SyntaxFigures(
        statements=sum(isinstance(node, ast.stmt) for node in nodes),
        conditionals=len(conditionals),
        nested_conditionals=sum(map(has_conditional_inside, conditionals)),
        comprehensions=sum(isinstance(node, Comprehension) for node in nodes),
        any_names=names.count("Any"),
        letters_per_name=mean(list(map(len, names))),
        lines_per_docstring=mean([text.count("\n") + 1 for text in texts]),
    )


def has_conditional_inside(node: ast.IfExp) -> bool:
    return sum(isinstance(inner, ast.IfExp) for inner in ast.walk(node)) > 1


def comments(source: Source) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(source.text).readline)
    return sum(token.type == tokenize.COMMENT for token in tokens)


def mean(numbers: Sequence[float]) -> float:
    return ratio(sum(numbers), len(numbers))


def ratio(part: float, whole: float) -> float:
    """Divide. A folder without functions, names or docstrings has 0 of everything in them."""
    return part / whole if whole else 0.0


# ----------------------------------------------------------------------------- the four lists


def most_complex(sources: Iterable[Source], count: int) -> list[tuple[int, Function]]:
    """List the functions of the highest complexity, with that number, the highest first."""
    functions = [function for source in sources for function in source.functions]
    numbered = [(function.complexity, function) for function in functions]
    by_complexity = sorted(numbered, key=lambda pair: (-pair[0], pair[1].path, pair[1].node.lineno))
    return by_complexity[:count]


@dataclass(frozen=True, order=True)
class Fragment:
    """A short module that a single module imports: perhaps it is a part of that module."""

    lines: int
    module: str
    importer: str


def fragments(sources: Iterable[Source], root: Path) -> list[Fragment]:
    """List the fragments among some modules, the shortest first. A package is never one.

    Importers count only if they are among these modules. So a test that imports a module of
    `runtime` does not count while `runtime` is asked about alone.
    """
    modules = {module_name(source.path, root): source for source in sources}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for name, source in modules.items():
        for target in imported_names(source, name) & modules.keys() - {name}:
            importers[target].add(name)
    return sorted(
        Fragment(len(source.lines), name, *importers[name])
        for name, source in modules.items()
        if is_short_module(source) and len(importers[name]) == 1
    )


def is_short_module(source: Source) -> bool:
    return not source.is_package and len(source.lines) <= LONGEST_FRAGMENT


def module_name(path: Path, root: Path) -> str:
    """Name a module as imports do: `runtime/tape/__init__.py` is `runtime.tape`."""
    try:
        parts = Path(os.path.abspath(path)).relative_to(root).with_suffix("").parts
    except ValueError as error:
        message = f"{path}: this is not below {root}, so its import name is unknown. "
        raise HouseError(message + "Start from the folder that imports begin at.") from error
    return ".".join(parts).removesuffix(".__init__")


def imported_names(source: Source, name: str) -> set[str]:
    """Collect what a module may import: `from a import b` gives `a` and `a.b`.

    Whether `a.b` is a module or an attribute cannot be seen here. Imports inside functions
    count as well.
    """
    package = name.split(".") if source.is_package else name.split(".")[:-1]
    names: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = imported_module(node, package)
            names.update([base, *(f"{base}.{alias.name}" for alias in node.names)])
    return names


def imported_module(node: ast.ImportFrom, package: Sequence[str]) -> str:
    """Name the module after `from`: `..tape` in the package `runtime.func` is `runtime.tape`."""
    above = package[: len(package) - node.level + 1] if node.level else []
    return ".".join([*above, *filter(None, [node.module])])


def repeated_class_names(sources: Iterable[Source]) -> dict[str, list[Path]]:
    """Map each name of more than one class to the files of these classes.

    Classes inside functions and inside other classes do not count.
    """
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(source.path)
    return repeated(places)


def repeated_file_names(sources: Iterable[Source]) -> dict[str, list[Path]]:
    """Map each name of more than one file to these files. `__init__.py` may repeat."""
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for source in sources:
        places[source.path.name].append(source.path)
    return repeated(places)


def repeated(places: Mapping[str, list[Path]]) -> dict[str, list[Path]]:
    """Select what stands in several places, most places first."""
    several = {name: paths for name, paths in places.items() if len(paths) > 1}
    public = [name for name in several if not name.startswith("__")]
    return {name: several[name] for name in sorted(public, key=lambda n: (-len(several[n]), n))}


def modules_per_folder(sources: Iterable[Source]) -> dict[Path, int]:
    """Count the modules directly in each folder, most modules first.

    `__init__.py` does not count: it comes with the folder.
    """
    counts = Counter(source.path.parent for source in sources if not source.is_package)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# -------------------------------------------------------------------------------- what to print


def table(folders: Sequence[Path]) -> list[str]:
    """One row for each folder, under headings of up to three lines."""
    rows = [cells(folder, figures_of(read_sources([folder]))) for folder in folders]
    headings = {heading: heading.split("\n") for heading in rows[0]}
    height = max(map(len, headings.values()))
    columns = [
        [*[""] * (height - len(words)), *words, *(row[heading] for row in rows)]
        for heading, words in headings.items()
    ]
    widths = [max(map(len, column)) for column in columns]
    return [aligned(line, widths) for line in zip(*columns, strict=True)]


def cells(folder: Path, figures: Figures) -> dict[str, str]:
    """The cells of a row, by the headings of their columns."""
    text, functions, syntax = figures.text, figures.functions, figures.syntax
    per_lines = figures.per_lines
    return {
        "folder": str(folder),
        "files": str(figures.files),
        "lines": str(text.lines),
        "statements": str(syntax.statements),
        "complexity\nper line of\nfunctions": f"{functions.complexity_per_line:.2f}",
        "functions of\ncomplexity\nover 10": f"{functions.percent_over_10:.1f} %",
        "functions of\ncomplexity\nover 15": str(functions.over_15),
        "largest\ncomplexity": str(functions.largest_complexity),
        "conditional\nexpressions per\n1,000 lines": f"{per_lines(1000, syntax.conditionals):.1f}",
        "nested\nones": str(syntax.nested_conditionals),
        "comprehensions\nper 1,000 lines": f"{per_lines(1000, syntax.comprehensions):.0f}",
        "Any per\n1,000 lines": f"{per_lines(1000, syntax.any_names):.0f}",
        "letters\nper name": f"{syntax.letters_per_name:.1f}",
        f"lines over\n{WIDEST_LINE} columns": f"{text.percent_wide:.1f} %",
        "comments per\n100 lines": f"{per_lines(100, text.comments):.1f}",
        "lines per\ndocstring": f"{syntax.lines_per_docstring:.1f}",
    }


def aligned(texts: Sequence[str], widths: Sequence[int]) -> str:
    """Join the texts of one line: the first to the left of its column, the others to the right."""
    first = texts[0].ljust(widths[0])
    others = (text.rjust(width) for text, width in zip(texts[1:], widths[1:], strict=True))
    return "  ".join([first, *others]).rstrip()


def lines_of_worst(sources: Iterable[Source], count: int) -> list[str]:
    return [
        f"{number:4d}  {function.path}:{function.node.lineno} {function.node.name}"
        for number, function in most_complex(sources, count)
    ]


def lines_of_fragments(sources: Iterable[Source]) -> list[str]:
    listed = fragments(sources, Path.cwd())
    rows = [f"{each.lines:4d}  {each.module}, imported by {each.importer}" for each in listed]
    return [*rows, f"fragments: {len(rows)}"]


def lines_of_names(sources: Sequence[Source]) -> list[str]:
    return [
        *lines_of_repeated("class", repeated_class_names(sources)),
        *lines_of_repeated("file", repeated_file_names(sources)),
    ]


def lines_of_repeated(kind: str, places: Mapping[str, Sequence[Path]]) -> list[str]:
    rows = [
        f"{len(paths):4d}  {kind} {name}: {', '.join(map(str, paths))}"
        for name, paths in places.items()
    ]
    return [*rows, f"{kind} names that repeat: {len(rows)}"]


def lines_of_folders(sources: Iterable[Source]) -> list[str]:
    return [f"{count:4d}  {folder}" for folder, count in modules_per_folder(sources).items()]


# ------------------------------------------------------------------------------ command line


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is asked for, and return the exit code: 2 after a mistake in the request."""
    options = parser().parse_args(argv)
    try:
        lines = report(options)
    except HouseError as error:
        print(f"house: {error}", file=sys.stderr)
        return 2
    print(*lines, sep="\n")
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m tools.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ", ".join(DEFAULT_FOLDERS)
    result.add_argument(
        "folders", nargs="*", type=Path, help=f"folders or files (default: those of {names})"
    )
    lists = result.add_mutually_exclusive_group()
    lists.add_argument(
        "--worst", type=number_of_rows, metavar="N", help="list the N most complex functions"
    )
    lists.add_argument(
        "--fragments",
        action="store_true",
        help=f"list modules of at most {LONGEST_FRAGMENT} lines that one module imports; "
        "start from the root of the project, where import names begin",
    )
    lists.add_argument(
        "--names", action="store_true", help="list names of classes and files that repeat"
    )
    lists.add_argument(
        "--folders", action="store_true", dest="per_folder", help="count the modules of each folder"
    )
    return result


def number_of_rows(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rows. Give 1 or more.")
    return int(text)


def report(options: argparse.Namespace) -> list[str]:
    folders: list[Path] = options.folders or default_folders()
    if options.worst:
        return lines_of_worst(read_sources(folders), options.worst)
    if options.fragments:
        return lines_of_fragments(read_sources(folders))
    if options.names:
        return lines_of_names(read_sources(folders))
    if options.per_folder:
        return lines_of_folders(read_sources(folders))
    return table(folders)


def default_folders() -> list[Path]:
    present = [Path(name) for name in DEFAULT_FOLDERS if Path(name).is_dir()]
    if not present:
        names = ", ".join(DEFAULT_FOLDERS)
        raise HouseError(f"none of {names} is here. Start from the root, or name a folder.")
    return present


if __name__ == "__main__":
    sys.exit(main())
