"""Ahead-of-time: programs captured as graphs, differentiated, cut in two, replayed and exported.
See ``docs/aot.md``."""

from ..trace.make_fx import make_fx
from .cache.cuts import Cache, CacheInfo, cache_clear, cache_info
from .calls.function import aot_function
from .calls.module import aot_module
from .calls.simplified import aot_module_simplified
from .compilers.boxed import make_boxed_compiler, make_boxed_func, nop
from .compilers.graph_names import (
    get_aot_compilation_context,
    get_aot_graph_name,
    get_graph_being_compiled,
)
from .compilers.inductor import inductor
from .control_flow.operators import associative_scan, cond, map, scan, while_loop
from .explain import Explanation, explain
from .exporting.flat_export import aot_export_joint_simple, aot_export_module
from .exporting.program import export
from .partition.partitions import default_partition, min_cut_rematerialization_partition

compiled_function, compiled_module = aot_function, aot_module

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
    "while_loop",
]
