"""Inductor as a compiler: a graph of ATen calls becomes C++ or Triton kernels.

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

from ...torch_private.dispatcher import below_autograd
from ...torch_private.graph_parts import COMPILE_FX, INDUCTOR_DECOMPOSITIONS, INDUCTOR_OPTIONS
from ...trace.graph_capture import module_of, trace_flat
from ...trace.provenance import line_of
from ...trace.symbols import SYMBOLIC
from ..control_flow.torch_operators import transformable
from ..partition.recompute import call_of
from . import inductor_trial
from .boxed import Boxed, examples
from .inductor_graphs import NumberTensors, numbers_of, write_at_the_end
from .inductor_trial import TrialFailed
from .placing import DESTINATIONS
from .trial_process import cause, with_key

ISOLATED = os.name == "posix"
_INSTEAD = (
    'Use compiler="replay" (for aot_function, runtime.aot.nop), '
    "or leave that part out of what is compiled"
)
_HERE = (
    "compiler=functools.partial(runtime.aot.inductor, isolated=False) compiles it in this "
    "process, which a crash ends"
)
_REASONS = {
    "error": "{}",
    "dead": "{}",
    "late": "{}. compiler=functools.partial(runtime.aot.inductor, limit=…) gives it longer",
    "unsent": f"{{}}, when it was to be sent to the process in which Inductor is tried. {_HERE}",
    "unread": f"{{}}, in the process in which Inductor is tried. {_HERE}",
}


def inductor(
    module: fx.GraphModule, inputs: list[Any], *, isolated: bool = ISOLATED, limit: float = 600.0
) -> Boxed:
    """Return the compiler that makes kernels of a graph by ``torch._inductor``. On the CPU it needs
    a C++ compiler, and takes seconds.

    A function on the CPU, a module, and a jitted function for which Inductor has a minute:

        f = aot_function(f, inductor, partition_fn=min_cut_rematerialization_partition)
        model = aot_module(torch.nn.Linear(2, 1), inductor)
        step = jit(step, compiler=functools.partial(inductor, limit=60))

    Random numbers are eager's under the same seed. Results agree with eager's as far as
    rounding goes: sums are added in another order. Inductor keeps kernels on disk by itself,
    see ``TORCHINDUCTOR_CACHE_DIR``.

    ``isolated``: whether another process compiles the graph and runs its code first
    (:mod:`.inductor_trial`). So a crash of Inductor is an error, and so is what takes it longer
    than ``limit`` seconds. ``RuntimeError`` names what it cannot compile.
    """
    given = [index for index, x in enumerate(inputs) if isinstance(x, (torch.Tensor, *SYMBOLIC))]
    try:
        run, placed = _compiled(module, inputs, given, limit if isolated else None)
    except TrialFailed as error:
        raise RuntimeError(
            f"Inductor does not compile {_program(module)}: "
            f"{_REASONS[error.what].format(error)}. {_INSTEAD}"
        ) from error
    except Exception as error:
        raise RuntimeError(
            f"Inductor does not compile {_program(module)}: {cause(error)}. {_INSTEAD}"
        ) from error

    first = [list(placed)]

    def boxed(args: list[Any]) -> Any:
        taken = [args[i] for i in given]
        uncounted = first.pop() if first else ()
        written = [(i, args[i], args[i]._version) for i in uncounted if not args[i].is_inference()]
        args.clear()
        with below_autograd():
            results = run(taken)
        # the first call tells which writes of the code count: those of kernels of ATen
        for i, t, version in written:
            placed[i] -= t._version - version
        return results

    boxed._boxed_call, boxed.placed = True, placed  # type: ignore[attr-defined]
    return boxed


def _compiled(
    module: fx.GraphModule, inputs: list[object], given: Sequence[int], limit: float | None
) -> tuple[Callable[[list[Any]], object], dict[int, int]]:
    """Return the code, and to which arguments it writes, see
    :func:`.inductor_graphs.write_at_the_end`. ``limit``: seconds for a trial in another process, or
    None."""
    if not isinstance(module.graph.output_node().args[0], (list, tuple)):
        raise ValueError("it returns no list")
    if limit is not None:
        inductor_trial.start()
    compile_fx: Any = importlib.import_module(COMPILE_FX)
    config: Any = importlib.import_module(INDUCTOR_OPTIONS)
    with config.patch(fallback_random=True):
        lowered = decomposed(module, inputs)
        _refuse_other_layouts(module, lowered.graph.output_node().args[0])  # type: ignore[arg-type]
        placed = write_at_the_end(lowered.graph, module.meta.get(DESTINATIONS, ()))
        _keep_placeholders(lowered.graph, given)
        lowered.recompile()
        _mark_results_as_visible(lowered.graph)
        values = [_with_known_sizes(inputs[i]) for i in given]
        if limit is not None:
            inductor_trial.tried(lowered, values, limit)
        with with_key(values):
            run: Callable[[list[Any]], Any] = compile_fx.compile_fx_inner(lowered, values)
    numbers = numbers_of(module)
    if numbers:
        run = _with_numbers(run, numbers)
    return run, placed


def _keep_placeholders(graph: fx.Graph, given: Sequence[int]) -> None:
    """Erase the placeholders that are not in ``given``: a number or None, which the graph does not
    use."""
    # a list, because erasing changes the graph's nodes
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    for index, n in enumerate(placeholders):
        if index not in given:
            graph.erase_node(n)


def _mark_results_as_visible(graph: fx.Graph) -> None:
    """Let Inductor give all results the strides of the trace: views are taken of them, and the
    backward expects what the forward saves."""
    output = graph.output_node()
    results: Any = output.args[0]
    numbers = [index for index, r in enumerate(results) if isinstance(r, fx.Node)]
    output.meta["user_visible_output_idxs"] = numbers


def _with_known_sizes(value: object) -> Any:
    """Return a symbol or an abstract tensor, whose sizes are plain numbers where the guards leave
    one value: as another process has them."""
    if not isinstance(value, torch.Tensor) or not any(
        isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset())
    ):
        return value
    sizes, strides, (offset,) = (
        list(map(_known, numbers))
        for numbers in (value.shape, value.stride(), [value.storage_offset()])
    )
    with below_autograd():
        return value.as_strided(sizes, strides, offset)


def _known(n: object) -> Any:
    found = n.node.maybe_as_int() if isinstance(n, torch.SymInt) else None
    return n if found is None else found


def _with_numbers(
    run: Callable[[list[Any]], Any], numbers: Sequence[int]
) -> Callable[[list[Any]], object]:
    """``run``, whose results ``numbers`` are numbers for the program."""

    def returned(args: list[Any]) -> Any:
        results = list(run(args))
        for i in numbers:
            results[i] = results[i].item()
        return results

    return returned


def decomposed(module: fx.GraphModule, inputs: Sequence[object]) -> fx.GraphModule:
    """``module`` in the ops that Inductor lowers, for abstract values ``inputs`` of its
    arguments."""
    table: Any = importlib.import_module(INDUCTOR_DECOMPOSITIONS).select_decomp_table()
    program = NumberTensors(transformable(module))

    def run(_: object, *given: object) -> Sequence[Any]:
        results: Sequence[Any] = program.run(*given)
        return results

    names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    graph, attributes, _ = trace_flat(run, inputs, decompositions=table, names=names)
    for name, branch in attributes.items():
        if isinstance(branch, fx.GraphModule):  # of a condition
            attributes[name] = decomposed(branch, examples(branch))
    return module_of(graph, attributes, "Inductor")


def _refuse_other_layouts(module: fx.GraphModule, lowered: Sequence[object]) -> None:
    """Refuse a graph with an op whose abstract kernel gives another layout than the kernel
    gave in the trace."""
    results: Any = module.graph.output_node().args[0]
    for before, after in zip(results, lowered, strict=True):
        a, b = (
            node.meta.get("val") if isinstance(node, fx.Node) else None for node in (before, after)
        )
        if (
            not isinstance(a, torch.Tensor)
            or not isinstance(b, torch.Tensor)
            or any(type(n) is not int for n in a.shape)
        ):
            continue
        if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
            raise RuntimeError(
                f"torch's abstract kernels say of {call_of(before).target} that "
                f"a result has shape {list(b.shape)} and strides {list(b.stride())}, "
                f"and its kernel gave shape {list(a.shape)} and strides {list(a.stride())}"
            )


def _program(module: fx.GraphModule) -> str:
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    line = next((found for n in calls if (found := line_of(n))), "")
    return (
        f"a graph of {len(calls)} "
        f"call{'s' * (len(calls) != 1)}{f' that begins at {line}' * bool(line)}"
    )
