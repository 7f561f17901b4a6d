"""Capture programs ahead of time as graphs, differentiate them, cut them in two and replay them.

    aot_function(f, nop)(x)

``python_state`` finds what a program reads of Python's objects; ``capture`` runs it with its
backward pass and gets one joint graph; ``partition`` cuts the joint graph, so that little is saved
between forward and backward; ``compilers`` makes a function of each half; ``calls`` runs them,
behind guards, as one node of the tape; ``cache`` keeps cuts on disk; ``control_flow`` has ``cond``,
``while_loop`` and ``scan``. The package imports ``autograd`` and what lies below. Start with
``calls/compiled_function.py`` and ``capture/joint.py``. See ``docs/aot.md``.

``export`` and ``aot_export_*`` are public names here too. They come from :mod:`runtime.export`, a
floor that imports this one, so they are imported when somebody asks for them.
"""

import importlib
from typing import TYPE_CHECKING

from .cache.cuts import Cache, CacheInfo, cache_clear, cache_info
from .calls.compiled_function import aot_function
from .calls.module import aot_module
from .calls.simplified import aot_module_simplified
from .capture.make_fx import make_fx
from .compilers.boxed import make_boxed_compiler, make_boxed_func, nop
from .compilers.graph_names import (
    get_aot_compilation_context,
    get_aot_graph_name,
    get_graph_being_compiled,
)
from .compilers.inductor import inductor
from .compilers.tiered import tiered
from .control_flow.operators import associative_scan, cond, map, scan, while_loop
from .explain import Explanation, explain
from .partition.partitions import default_partition, min_cut_rematerialization_partition

if TYPE_CHECKING:
    from ..export.exported_program import export
    from ..export.flat_export import aot_export_module
    from ..export.flat_functions import aot_export_joint_simple

compiled_function, compiled_module = aot_function, aot_module
_OF_EXPORT = {
    "aot_export_joint_simple": "flat_functions",
    "aot_export_module": "flat_export",
    "export": "exported_program",
}

__all__ = [
    "Cache",
    "CacheInfo",
    "Explanation",
    "aot_export_joint_simple",
    "aot_export_module",
    "aot_function",
    "aot_module",
    "aot_module_simplified",
    "associative_scan",
    "cache_clear",
    "cache_info",
    "compiled_function",
    "compiled_module",
    "cond",
    "default_partition",
    "explain",
    "export",
    "get_aot_compilation_context",
    "get_aot_graph_name",
    "get_graph_being_compiled",
    "inductor",
    "make_boxed_compiler",
    "make_boxed_func",
    "make_fx",
    "map",
    "min_cut_rematerialization_partition",
    "nop",
    "scan",
    "tiered",
    "while_loop",
]


def __getattr__(name: str) -> object:
    """Import a public name of :mod:`runtime.export`, whose modules import this package."""
    if name not in _OF_EXPORT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"runtime.export.{_OF_EXPORT[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
