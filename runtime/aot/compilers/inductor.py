"""Compile a graph of ATen calls to C++ or Triton kernels, by torch's Inductor.

Inductor lowers few ops itself. So a graph is traced once more by :mod:`~runtime.trace.trace_level`,
on abstract values, with the table of decompositions that Inductor selects. Derivatives, cuts and
wrappers are those of any other compiler.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...rules.linalg.factored_solve import SOLVE_FACTORED, solve_by_factors
from ...seam.graph_walks import results_of
from ...torch_private.dispatcher import below_autograd
from ...torch_private.graph_parts import INDUCTOR_DECOMPOSITIONS, INDUCTOR_OPTIONS
from ...trace.graph_capture import module_of, trace_flat
from ...trace.graph_edits import refuses
from ...trace.number_reads import on_side
from ...trace.provenance import line_of
from ...trace.raising_calls import may_raise as call_may_raise
from ...trace.symbols import SYMBOLIC
from ..control_flow.torch_operators import transformable
from ..partition.recompute import call_of
from . import inductor_trial
from .boxed import Boxed, examples
from .graph_effects import may_raise
from .inductor_graphs import NumberTensors, branches_of, numbers_of, write_at_the_end
from .inductor_trial import TrialFailed
from .placing import DESTINATIONS, Destination
from .trial_process import cause, code_of

ISOLATED = os.name == "posix"
_INSTEAD = (
    'Use compiler="replay" (for aot_function, runtime.aot.nop), '
    "or leave that part out of what is compiled"
)
_HERE = (
    "compiler=functools.partial(runtime.aot.inductor, isolated=False) compiles it in this "
    "process, which a crash ends"
)
# by `TrialFailed.what`, the end of the message
_REASONS = {
    "error": "{}",
    "dead": "{}",
    "late": "{}. compiler=functools.partial(runtime.aot.inductor, limit=…) gives it longer",
    "unsent": f"{{}}, when it was to be sent to the process in which Inductor is tried. {_HERE}",
    "unread": f"{{}}, in the process in which Inductor is tried. {_HERE}",
}


def inductor(
    module: fx.GraphModule,
    inputs: list[object],
    *,
    isolated: bool = ISOLATED,
    limit: float = 600.0,
    cpp_wrapper: bool = False,
) -> Boxed:
    """Compile a graph to kernels by ``torch._inductor``.

    On the CPU that needs a C++ compiler, and takes seconds.

    A function on the CPU, a module, and a jitted function for which Inductor has a minute:

        f = aot_function(f, inductor, partition_fn=min_cut_rematerialization_partition)
        model = aot_module(torch.nn.Linear(2, 1), inductor)
        step = jit(step, compiler=functools.partial(inductor, limit=60))

    Random numbers are those of eager mode under the same seed. Results agree with eager mode as far
    as rounding goes: sums are added in another order. Inductor stores kernels on disk by itself,
    see ``TORCHINDUCTOR_CACHE_DIR``.

    ``isolated``: whether another process compiles the graph and runs its code first
    (:mod:`.inductor_trial`). So a crash of Inductor is an error, and so is what takes it longer
    than ``limit`` seconds. ``RuntimeError`` names what it cannot compile.

    ``cpp_wrapper``: whether C++ calls the kernels, and not Python, as the option of Inductor with
    this name. Small graphs take half the time, and compile for twice as long. An error of a kernel
    is then a ``RuntimeError``, whatever its class in torch.
    """
    given = [index for index, x in enumerate(inputs) if isinstance(x, (torch.Tensor, *SYMBOLIC))]
    try:
        run, placed = _compile(
            module, inputs, given, limit if isolated else None, cpp_wrapper=cpp_wrapper
        )
    except TrialFailed as error:
        raise RuntimeError(
            f"Inductor does not compile {_describe(module)}: "
            f"{_REASONS[error.what].format(error)}. {_INSTEAD}"
        ) from error
    except Exception as error:
        raise RuntimeError(
            f"Inductor does not compile {_describe(module)}: {cause(error)}. {_INSTEAD}"
        ) from error

    first = [list(placed)]  # the arguments that the code writes to, for the first call alone
    inner = _inner_code(run)
    takes_all = given == [*range(len(inputs))]

    def boxed(args: list[Any]) -> Any:
        """Run the code below autograd, and empty ``args``."""
        nonlocal run
        noted = _versions(args, first.pop()) if first else ()
        taken = args.copy() if takes_all else [args[index] for index in given]
        args.clear()
        with below_autograd():
            results = run(taken)
        # the first call tells which writes of the code count: those of kernels of ATen
        for index, tensor, version in noted:
            placed[index] -= tensor._version - version
        run = inner
        return results

    boxed._boxed_call, boxed.placed = True, placed  # type: ignore[attr-defined]
    return boxed


def _versions(
    args: Sequence[torch.Tensor], written: Sequence[int]
) -> list[tuple[int, torch.Tensor, int]]:
    """List the arguments ``written`` with their positions and versions. A tensor of inference mode
    has none."""
    versioned = [index for index in written if not args[index].is_inference()]
    return [(index, args[index], args[index]._version) for index in versioned]


def _inner_code(code: Any) -> Callable[[list[Any]], Any]:
    """Return the function in the object that Inductor returns. The object itself ends what a first
    call may store, and asks a profiler, which takes as long as a small kernel."""
    inner: Callable[[list[Any]], Any] = getattr(code, "current_callable", None) or code
    return inner


def _compile(
    module: fx.GraphModule,
    inputs: list[object],
    given: Sequence[int],
    limit: float | None,
    *,
    cpp_wrapper: bool,
) -> tuple[Callable[[list[Any]], object], dict[int, int]]:
    """Return the code, and the arguments to which it writes with the number of writes.

    See :func:`.inductor_graphs.write_at_the_end`. ``limit``: seconds for a trial in another
    process, or None.
    """
    if not isinstance(results_of(module.graph), (list, tuple)):
        raise ValueError("it returns no list")
    # the other process imports torch while this one lowers the graph
    if limit is not None:
        inductor_trial.start()
    config: Any = importlib.import_module(INDUCTOR_OPTIONS)
    # else Inductor draws by a generator of its own, and the numbers are not those of eager mode
    with config.patch(fallback_random=True):
        lowered = decomposed(module, inputs)
        _refuse_other_layouts(module, results_of(lowered.graph))
        # an error of an op would come after a write that belongs behind it
        raises = may_raise(lowered)
        if branches_of(module):
            _refuse_late_branches(lowered)
        destinations = () if raises else _destinations(module)
        placed = write_at_the_end(lowered.graph, destinations)
        _keep_placeholders(lowered.graph, given)
        lowered.recompile()
        _mark_results_as_visible(lowered.graph)
        values = [_with_known_sizes(inputs[index]) for index in given]
        if limit is not None:
            inductor_trial.tried(lowered, values, limit, cpp_wrapper=cpp_wrapper)
        run = code_of(lowered, values, cpp_wrapper=cpp_wrapper)
    numbers, branches = numbers_of(module), branches_of(module)
    if numbers or branches:
        run = _with_numbers(run, numbers, [branch.args[1:] for branch in branches])
    return run, placed


def _refuse_late_branches(lowered: fx.GraphModule) -> None:
    """Refuse a graph with branches if one of its ops may raise for the values of a call."""
    if may_raise(lowered) or any(map(call_may_raise, lowered.graph.nodes)):
        raise RuntimeError(
            "it branches on a number that it computes, and an op may raise. Code of Inductor "
            "runs all ops before it asks for the side"
        )


def _destinations(module: fx.GraphModule) -> Sequence[Destination]:
    """Return which arguments the code may write to. None if the graph may refuse a call: the code
    may write before it has asked."""
    if any(map(refuses, module.graph.nodes)):
        return ()
    destinations: Sequence[Destination] = module.meta.get(DESTINATIONS, ())
    return destinations


def _keep_placeholders(graph: fx.Graph, given: Sequence[int]) -> None:
    """Erase the placeholders that are not in ``given``: numbers and None, which the graph does not
    use."""
    # a list, because erasing changes the graph's nodes
    placeholders = graph.find_nodes(op="placeholder")
    for index, placeholder in enumerate(placeholders):
        if index not in given:
            graph.erase_node(placeholder)


def _mark_results_as_visible(graph: fx.Graph) -> None:
    """Let Inductor give all results the strides of the trace.

    A call takes views of them, and the backward expects the strides of what the forward saves.
    """
    output = graph.output_node()
    results = results_of(graph)
    numbers = [index for index, result in enumerate(results) if isinstance(result, fx.Node)]
    output.meta["user_visible_output_idxs"] = numbers


def _with_known_sizes(value: object) -> Any:
    """Return ``value`` with plain numbers for symbols that the guards leave one value.

    Another process has such a symbol as a number, and must compile the same graph.
    """
    if not isinstance(value, torch.Tensor):
        return value
    numbers = (*value.shape, *value.stride(), value.storage_offset())
    if not any(isinstance(number, torch.SymInt) for number in numbers):
        return value
    # a view of the same tensor, whose sizes are plain numbers
    sizes = list(map(_fixed_number, value.shape))
    strides = list(map(_fixed_number, value.stride()))
    offset = _fixed_number(value.storage_offset())
    with below_autograd():
        return value.as_strided(sizes, strides, offset)


def _fixed_number(number: object) -> Any:
    """Return the number to which guards have fixed a symbol; any other ``number`` as it is."""
    if not isinstance(number, torch.SymInt):
        return number
    fixed = number.node.maybe_as_int()
    if fixed is None:
        return number
    return fixed


def _with_numbers(
    run: Callable[[list[Any]], Any], numbers: Sequence[int], branches: Sequence[Any]
) -> Callable[[list[Any]], object]:
    """Return ``run``, with results ``numbers`` as numbers of Python.

    ``branches``: the arguments of :func:`~runtime.trace.number_reads.on_side` behind the number,
    which is a further result.
    """

    def run_code(args: list[torch.Tensor]) -> object:
        """Run the code, and read the numbers from its tensors."""
        results = list(run(args))
        n_results = len(results) - len(branches)
        # the code has written nothing by then, see `_destinations`
        for number, branch in zip(results[n_results:], branches, strict=True):
            on_side(number.item(), *branch)
        del results[n_results:]
        for index in numbers:
            results[index] = results[index].item()
        return results

    return run_code


_WITH_BOUNDS = (
    torch.ops.aten.index_select.default,
    torch.ops.aten.index_add.default,
    torch.ops.aten.index_copy.default,
)
"""Ops that refuse an index below 0. What Inductor takes for them counts it from the end."""


_PRODUCTS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
)
"""Products of matrices. Of small ones Inductor takes sums of products, in which 0 times NaN counts.
The kernel leaves out what a factor of 0 takes part in."""


def _within_bounds(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return the decomposition ``rule`` of such an op, in which an index below 0 becomes one behind
    the last element, which native code refuses."""

    def run(x: Any, dim: int, index: Any, *others: Any, **options: Any) -> Any:
        size = 1
        if x.dim():
            size = x.shape[dim]
        return rule(x, dim, torch.where(index < 0, size, index), *others, **options)

    return run


def decomposed(module: fx.GraphModule, inputs: Sequence[object]) -> fx.GraphModule:
    """Return ``module`` in the ops that Inductor lowers, for abstract values ``inputs``."""
    table: Any = dict(importlib.import_module(INDUCTOR_DECOMPOSITIONS).select_decomp_table())
    table |= {op: _within_bounds(table[op]) for op in _WITH_BOUNDS}
    table[SOLVE_FACTORED] = solve_by_factors
    for op in _PRODUCTS:
        table.pop(op, None)
    program = NumberTensors(transformable(module))

    def run(_: object, *given: object) -> Sequence[object]:
        """Run the graph on values of the trace."""
        program.asked.clear()
        results: Sequence[object] = program.run(*given)
        return [*results, *program.asked]

    names = [str(node.target) for node in module.graph.find_nodes(op="placeholder")]
    graph, attributes, _ = trace_flat(run, inputs, decompositions=table, names=names)
    for name, branch in attributes.items():
        # the graph of a condition or a loop
        if isinstance(branch, fx.GraphModule):
            attributes[name] = decomposed(branch, examples(branch))
    return module_of(graph, attributes, "Inductor")


def _refuse_other_layouts(module: fx.GraphModule, lowered: Sequence[object]) -> None:
    """Refuse a graph with an op whose abstract kernel returns another layout than its kernel did in
    the trace."""
    results = results_of(module.graph)
    # the numbers on which the graph branches come behind its results
    for before, after in zip(results, lowered, strict=False):
        a, b = _value_of(before), _value_of(after)
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
            continue
        # a comparison of symbols would become a guard
        if any(type(size) is not int for size in a.shape):
            continue
        if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
            raise RuntimeError(
                f"torch's abstract kernels say of {call_of(before).target} that "
                f"a result has shape {list(b.shape)} and strides {list(b.stride())}, "
                f"and its kernel gave shape {list(a.shape)} and strides {list(a.stride())}"
            )


def _value_of(node: object) -> object:
    """Return the abstract value of ``node``; None if it is no node, or has none."""
    if not isinstance(node, fx.Node):
        return None
    return node.meta.get("val")


def _describe(module: fx.GraphModule) -> str:
    """Describe a graph in a message: ``a graph of 2 calls that begins at f.py:3``."""
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    line = next(filter(None, map(line_of, calls)), "")
    text = f"a graph of {len(calls)} call"
    if len(calls) != 1:
        text += "s"
    if line:
        text += f" that begins at {line}"
    return text
