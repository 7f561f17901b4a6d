"""Trace a program to a ``GraphModule`` of ATen calls, by ``make_fx``.

A module among the inputs is a proxy in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import wraps
from inspect import Parameter, signature, unwrap
from typing import Any

import torch
from torch import fx
from torch.fx.proxy import GraphAppendingTracer

from ...seam.transforms_of_torch import refuse_value_of_torch
from ...torch_private.graph_parts import PyTreeCodeGen, PyTreeInfo
from ...torch_private.pytrees import pytree
from ...trace.error_lines import naming_line
from ...trace.graph_capture import module_of, run_trace
from ...trace.pre_dispatch import PreDispatchTrace
from ...trace.provenance import Provenance
from ...trace.symbols import Abstraction, Given
from ...trace.torch_functions import Functions
from ...trace.trace_level import Trace
from .recording import Recording

# --- modules as inputs ----------------------------------------------------------------------------
#
# The program gets a proxy for a module. What it does with the proxy is in the graph.


class _Tracer(GraphAppendingTracer):
    """Append the calls of proxies to a graph.

    ``lowered``: returns the node of a tensor that is an argument of such a call.
    """

    def __init__(self, graph: fx.Graph, lowered: Callable[[torch.Tensor], object]) -> None:
        super().__init__(graph)
        self.lowered = lowered

    def create_arg(self, argument: object) -> Any:
        """Return ``argument`` as it stands in the graph, a tensor as its node."""
        if isinstance(argument, torch.Tensor):
            return self.lowered(argument)
        return super().create_arg(argument)


class ModuleProxies:
    """Replace the modules among the inputs of ``level`` by proxies.

    ``lowered``: returns the node of a tensor of the program.
    """

    def __init__(self, level: Trace, lowered: Callable[[torch.Tensor], object]) -> None:
        self.level = level
        self.tracer = _Tracer(level.graph, lowered)

    def instead_of_modules(self, values: Sequence[object]) -> tuple[object, ...]:
        """Return ``values``, the inputs of the program, with a proxy in place of each module."""
        placeholders = self.level.graph.find_nodes(op="placeholder")
        inputs = list(values)
        for index, (node, value) in enumerate(zip(placeholders, values, strict=True)):
            if isinstance(value, torch.nn.Module):
                inputs[index] = fx.Proxy(node, self.tracer)
        return tuple(inputs)

    def lowered(self, outs: Sequence[object]) -> list[object]:
        """Return the results, with the node of each one that is a proxy."""
        lowered = list(outs)
        for index, output in enumerate(outs):
            if isinstance(output, fx.Proxy):
                lowered[index] = output.node
        return lowered


# --- the front door -------------------------------------------------------------------------------

_MODES = ("real", "fake", "symbolic")


def make_fx(
    f: Callable[..., object],
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
    tracing_mode: str = "real",
    _allow_non_fake_inputs: bool = False,
    *,
    pre_dispatch: bool = False,
    record_module_stack: bool = False,
    _allow_fake_constant: bool = False,
    _error_on_data_dependent_ops: bool = True,
    record_stack_traces: bool = False,
    proxy_module_inputs: bool = False,
    _disable_torch_fn_metadata_mode: bool = False,
    dynamic_shapes: object = None,
) -> Callable[..., fx.GraphModule]:
    """Return a function that traces ``f``.

    ``make_fx(f)(*args)`` runs ``f`` on ``args``. It returns the ATen calls of ``f`` as a
    ``GraphModule`` of the same signature.

    >>> module = make_fx(lambda x: x.sin() + 1)(torch.zeros(2))
    >>> [node.name for node in module.graph.nodes]
    ['x_1', 'sin', 'add', 'output']
    >>> module(torch.zeros(2))
    tensor([1., 1.])

    ``f`` is a function or a module. Arguments and results may be any pytree. Tensors that ``f``
    closes over are attributes of the module. So are generators. Python numbers are constants.

    - ``decomposition_table``: ``{ATen overload: function}``. A call of the overload is replaced by
      the calls that the function makes.
    - ``tracing_mode``: ``"real"`` runs ``f`` on copies of the arguments. ``"fake"`` runs it on fake
      tensors, without memory or kernels. ``"symbolic"`` does so too, and the sizes of the arguments
      and ``int`` arguments are symbols, which the graph computes. Fake tensors among the arguments
      are used as they are, in every mode.
    - ``pre_dispatch``: composite ops such as ``linear`` are recorded whole, and changes of grad
      mode and autocast are calls.
    - ``record_module_stack``: ``nn_module_stack`` and ``torch_fn`` in the ``meta`` of nodes, for a
      module and its submodules.
    - ``record_stack_traces``: ``stack_trace`` in the ``meta`` of nodes.
    - ``_error_on_data_dependent_ops``: False makes a number that ``f`` reads from a tensor a
      constant of the graph. It is for values that are the same in every call.
    - ``proxy_module_inputs``: a module among the arguments is an input of the graph, and ``f``
      gets a proxy of it.
    - ``_allow_non_fake_inputs``: in the modes ``"fake"`` and ``"symbolic"`` real tensors that ``f``
      closes over become constants. Without it they are refused.
    - ``_allow_fake_constant``: it changes nothing. ``f`` may always close over fake tensors of the
      mode of the trace.
    - ``_disable_torch_fn_metadata_mode``: no ``torch_fn``.
    - ``dynamic_shapes``, which torch has since 2.14, is refused.

    ``node.meta["val"]`` is a fake tensor in every mode. The generator of random numbers advances as
    by a call of ``f``, except on fake tensors. In the modes ``fake`` and ``symbolic`` a size or a
    number that depends on values (``x.nonzero()``, ``x.sum().item()``) is a symbol of its own.
    ``ValueError`` for another ``tracing_mode``. ``RuntimeError`` with the line of ``f`` if ``f``
    reads a value in Python.
    """
    if dynamic_shapes is not None:
        raise RuntimeError(
            "make_fx has no dynamic_shapes. tracing_mode='symbolic' makes each size a symbol"
        )
    if tracing_mode not in _MODES:
        raise ValueError(f"tracing_mode must be 'real', 'fake' or 'symbolic', got {tracing_mode!r}")
    symbolic = tracing_mode == "symbolic"

    def level_of(abstraction: Abstraction | None, provenance: Provenance) -> Trace:
        """Return a new level for one trace."""
        kind = PreDispatchTrace if pre_dispatch else Trace
        # what `item()` returns
        if abstraction is not None:
            reads = "symbol"
        elif _error_on_data_dependent_ops:
            reads = "refuse"
        else:
            reads = "constant"
        return kind(
            abstraction=abstraction,
            decompositions=decomposition_table,
            reads=reads,
            provenance=provenance,
        )

    @wraps(f)
    @naming_line()
    def traced(*args: object) -> fx.GraphModule:
        """Trace ``f`` for these arguments."""
        flat, spec = pytree.tree_flatten((args, {}))
        for value in flat:
            refuse_value_of_torch(value, line=False)
        out_spec: Any = None
        # the levels at which the program runs
        abstraction = _abstraction_of(flat, tracing_mode, _allow_non_fake_inputs)
        provenance = _provenance_of(
            f,
            stack_traces=record_stack_traces,
            module_stack=record_module_stack,
            torch_functions=not _disable_torch_fn_metadata_mode,
        )
        level = level_of(abstraction, provenance)
        recording = Recording(level)
        proxies: ModuleProxies | None = None
        if proxy_module_inputs:
            proxies = ModuleProxies(level, lambda t: level.lower_output(recording.lowered(t)))

        def call_flat(*values: object) -> list[object]:
            """Call ``f`` with values in place of its arguments, and return the flat results."""
            nonlocal out_spec
            if proxies is not None:
                values = proxies.instead_of_modules(values)
            given, _kwargs = pytree.tree_unflatten(list(values), spec)
            outputs, out_spec = pytree.tree_flatten(f(*given))
            if proxies is not None:
                return proxies.lowered(outputs)
            return outputs

        def run(_: Trace, *values: object) -> list[object]:
            """Run the program on values of the trace, with a tape if that sees ATen calls."""
            if pre_dispatch:
                return call_flat(*values)
            return list(map(recording.lowered, recording.run(call_flat, flat, values)))

        # the trace, and then the signature of its graph
        names = _names(f, args)
        with ExitStack() as stack:
            if provenance.functions is not None:
                stack.enter_context(provenance.functions)
            stack.enter_context(_uncached_autocast())
            stack.callback(recording.close)
            run_trace(
                level,
                run,
                flat,
                _placeholders_of(names, args),
                unknown=_integers_of(flat) if symbolic else [],
                dispatcher=symbolic or pre_dispatch,
            )
        _set_signature(level.graph, names, spec, out_spec)
        module = module_of(level.graph, level.attributes, _name(f))
        if abstraction is not None and symbolic:
            module.shape_env = abstraction.shape_env
        return module

    return traced


def _provenance_of(
    function: Callable[..., object],
    *,
    stack_traces: bool,
    module_stack: bool,
    torch_functions: bool,
) -> Provenance:
    """Return the provenance that notes where the nodes of a trace of ``function`` come from.

    It notes the user's lines, with ``module_stack`` also the modules, and with ``torch_functions``
    also the functions of torch that they call.
    """
    root: torch.nn.Module | None = None
    if module_stack:
        root = _root(function)
    functions: Functions | None = None
    if root is not None and torch_functions:
        functions = Functions()
    # torch has stack traces wherever it has a module stack
    return Provenance(stacks=stack_traces or module_stack, root=root, functions=functions)


def _integers_of(flat: Sequence[object]) -> list[int]:
    """Return the places of the arguments that are integers."""
    return [index for index, value in enumerate(flat) if type(value) is int]


def _abstraction_of(
    flat: Sequence[object], mode: str, allows_real_constants: bool
) -> Abstraction | None:
    """Return the abstraction for a trace of ``flat``, or None if it runs on real tensors.

    ``allows_real_constants``: whether real tensors may be constants where all values are abstract.
    """
    abstraction = Abstraction.of(
        [value for value in flat if isinstance(value, torch.Tensor)],
        dynamic=mode == "symbolic",
        fake=mode == "fake",
    )
    if abstraction is None:
        return None
    if mode != "real":
        abstraction.allows_real_constants = allows_real_constants
    # the graph has no guards, so nothing asks whether they hold
    if not isinstance(abstraction, Given):
        abstraction.shape_env.checked = False
    return abstraction


def _placeholders_of(names: Sequence[str], args: Sequence[object]) -> list[str]:
    """Name the placeholders: ``x_1``, ``x_2``, … for the leaves of argument ``x``."""
    placeholders: list[str] = []
    for name, argument in zip(names, args, strict=True):
        n_leaves = len(pytree.tree_leaves(argument))
        placeholders += [f"{name}_{index + 1}" for index in range(n_leaves)]
    return placeholders


class _uncached_autocast:
    """Let autocast cast a parameter at each use.

    Else it has one copy for all uses, which may be older than the trace, and the trace must see
    each cast.
    """

    def __enter__(self) -> None:
        self.before = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)

    def __exit__(self, *exc: object) -> None:
        torch.set_autocast_cache_enabled(self.before)


def _root(function: object) -> torch.nn.Module | None:
    """Return the module whose submodules a module stack names.

    It is ``function``, or the module in its attribute ``_orig_mod``.
    """
    if isinstance(function, torch.nn.Module):
        return function
    root = getattr(function, "_orig_mod", None)
    return root if isinstance(root, torch.nn.Module) else None


def _name(function: object) -> str:
    """Return the name for the class of the graph."""
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    name = getattr(function, "__name__", "")
    return name if name.isidentifier() else "Traced"


def _set_signature(
    graph: fx.Graph, names: list[str], in_spec: pytree.TreeSpec, out_spec: pytree.TreeSpec
) -> None:
    """Give the graph the signature of the program.

    Flat arguments need no code generation of their own, nor do results in tuples, lists and dicts.
    Without it, graph passes can copy the nodes of the graph.
    """
    output = graph.output_node()
    generated: pytree.TreeSpec | None = out_spec  # what the code has to make of the results
    if _is_plain(out_spec):
        results: Any = output.args[0]
        output.args = (pytree.tree_unflatten(list(results), out_spec),)
        generated = None
    if generated is not None or not all(spec.is_leaf() for spec in in_spec.child(0).children()):
        graph.set_codegen(PyTreeCodeGen(PyTreeInfo(names, in_spec, generated)))


def _is_plain(spec: pytree.TreeSpec) -> bool:
    """Return whether fx can write results of this structure without help."""
    if spec.is_leaf():
        return True
    return spec.type in (tuple, list, dict) and all(map(_is_plain, spec.children()))


def _names(function: Callable[..., object], args: Sequence[object]) -> list[str]:
    """Name the arguments: as ``function`` does, and else ``arg0``, ``arg1``, as torch does."""
    names = _positional_names(function)[: len(args)]
    return [*names, *(f"arg{index}" for index in range(len(names), len(args)))]


def _positional_names(function: Callable[..., object]) -> list[str]:
    """Return the names of the positional parameters of ``function``.

    The list is empty for a module, for code that is not Python, and for a function that takes any
    number of arguments.
    """
    if isinstance(function, torch.nn.Module) or not hasattr(unwrap(function), "__code__"):
        return []
    parameters = signature(function).parameters.values()
    if any(parameter.kind is Parameter.VAR_POSITIONAL for parameter in parameters):
        return []
    positional = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional]
