"""Divide a Python file into units: each function, and what the import of the file runs.

Of ``class Scale: def forward(self): return 1`` the units are ``Scale.forward`` and ``<module>``,
which has all but the bodies of functions. A change of ``forward`` affects the cells that have run
it. A change of ``<module>`` affects all that import the file.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
from collections import defaultdict

__all__ = ["MODULE", "WHOLE", "digest_of", "unit_of", "units_of"]

MODULE = "<module>"
WHOLE = "*"
"""The unit of a file of which nothing is known but that it counts."""


def digest_of(data: bytes | str) -> str:
    """Return a short digest of a text."""
    content = data.encode() if isinstance(data, str) else data
    return hashlib.blake2b(content, digest_size=8).hexdigest()


def unit_of(qualname: str) -> str:
    """Return the unit that code of a qualified name belongs to.

    What is inside of a function is part of it: ``f.<locals>.inner`` belongs to ``f``, and a lambda
    of a class body to the class.
    """
    parts = qualname.split(".")
    named = list(itertools.takewhile(lambda part: not part.startswith("<"), parts))
    return ".".join(named) or MODULE


def units_of(source: bytes) -> dict[str, str]:
    """Return the digest of each unit of a Python file.

    A class has the digest of ``<module>``, since the import runs its body. Comments and the numbers
    of lines do not count. A file with a mistake has the unit :data:`WHOLE` alone.
    """
    whole = {WHOLE: digest_of(source)}
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return whole
    outline = _Outline()
    outline.visit(tree)
    # The tree has no bodies of functions any more: what is left is what the import runs.
    of_import = digest_of(ast.dump(tree))
    return (
        whole
        | dict.fromkeys([MODULE, *outline.classes], of_import)
        | {name: digest_of("\n".join(bodies)) for name, bodies in outline.bodies.items()}
    )


class _Outline(ast.NodeTransformer):
    """Take the bodies of functions out of a tree, by name.

    Several functions may have one name, such as the two parts of a property. Their bodies are one
    unit. Docstrings stay, since they are read without a call.
    """

    def __init__(self) -> None:
        self.bodies: defaultdict[str, list[str]] = defaultdict(list)
        self.classes: list[str] = []
        self._path: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._path.append(node.name)
        self.classes.append(".".join(self._path))
        self.generic_visit(node)
        self._path.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._without_body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._without_body(node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _without_body(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.AST:
        """Note the body of a function, and return the function with its docstring alone."""
        documented = int(ast.get_docstring(node, clean=False) is not None)
        body = node.body[documented:]  # without the docstring, which is the first statement
        name = ".".join([*self._path, node.name])
        self.bodies[name].append("\n".join(map(ast.dump, body)))
        # Python's own marks of a body say whether a call makes a generator
        node.body = node.body[:documented]
        return node
