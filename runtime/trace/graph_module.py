"""Makes modules of graphs, and frees the generated text with the module.

``torch.fx`` keeps the text of all code that it has generated, for tracebacks, and keeps it when the
module is gone. Here the text is freed with the code. A traceback refers to the code, so it shows
the generated line for as long as anybody can look at it.
"""

from __future__ import annotations

import linecache
import weakref
from collections.abc import Callable
from typing import Any

from torch import fx

from ..torch_private.graph_parts import LazyGraphModule, code_loader

# how the names begin that torch gives to generated code; another name may belong to several modules
_GENERATED = "<eval_with_key>"


class GraphModule(fx.GraphModule):
    """A module of a graph, whose source text is freed with its code."""

    def recompile(self) -> Any:
        """Generate the code again, as ``fx.GraphModule.recompile``."""
        code = super().recompile()
        _free_with_code(self)
        return code


class LateGraphModule(LazyGraphModule):
    """The same, with code that is generated when somebody asks for it or calls the module.

    Of most graphs of a compiled program nobody does, as a compiler works on the graph. ``values``:
    what makes the abstract values of the nodes, if they are late, see :func:`with_values`.
    """

    values: Callable[[], None] | None = None

    def _real_recompile(self) -> Any:
        code = super()._real_recompile()
        _free_with_code(self)
        return code


def with_values(module: fx.GraphModule) -> fx.GraphModule:
    """Return ``module``, after all of its nodes have got their abstract values."""
    if isinstance(module, LateGraphModule) and module.values is not None:
        module.values()
        module.values = None
    return module


def complete(module: fx.GraphModule) -> fx.GraphModule:
    """Return ``module`` with values and code, also after ``recompile()``: what a compiler may pass
    on, to ``torch.jit.script`` for instance."""
    if not isinstance(module, LateGraphModule):
        return module
    completed = GraphModule(with_values(module), module.graph, type(module).__name__)
    completed.meta.update(module.meta)
    return completed


def _free_with_code(module: fx.GraphModule) -> None:
    """Free the text of the code that ``module`` has now, when nobody refers to the code."""
    code = type(module).forward.__code__
    if code.co_filename.startswith(_GENERATED):
        weakref.finalize(code, _forget, code.co_filename).atexit = False


def _forget(name: str) -> None:
    code_loader.eval_cache.pop(name, None)
    linecache.cache.pop(name, None)
