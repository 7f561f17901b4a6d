"""Inductor as a compiler: a graph of ATen calls becomes C++ or Triton kernels.

Inductor lowers few ops itself. So a graph is traced once more by :mod:`~runtime.func.trace`, on abstract values, with the table of
decompositions that Inductor selects. Derivatives, cuts and wrappers are those of any other compiler.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ...func.symbols import SYMBOLIC
from ...func.tracing import module_of, trace_flat
from ..control_flow.registered import transformable
from ..partition.recompute import call_of
from .boxed import Boxed, examples
from .number_tensors import NumberTensors, numbers_of

_below_autograd = torch._C._AutoDispatchBelowAutograd


def inductor(module: fx.GraphModule, inputs: list[Any]) -> Boxed:
    """The compiler that makes kernels of a graph by ``torch._inductor``. On the CPU it needs a C++ compiler, and takes seconds.

    A function on the CPU, and a module:

        f = aot_function(f, inductor, partition_fn=min_cut_rematerialization_partition)
        model = aot_module(torch.nn.Linear(2, 1), inductor)

    Random numbers are eager's under the same seed. Results agree with eager's as far as rounding goes: sums are added in another order.
    Inductor keeps kernels on disk by itself, see ``TORCHINDUCTOR_CACHE_DIR``. ``RuntimeError`` names
    what it cannot compile.
    """
    given = [i for i, x in enumerate(inputs) if isinstance(x, (torch.Tensor, *SYMBOLIC))]
    try:
        run = _compiled(module, inputs, given)
    except Exception as error:
        raise RuntimeError(
            f"Inductor does not compile a graph of {_size(module)}: {_cause(error)}. Compile this program with runtime.aot.nop, or leave "
            "that part out of what is compiled."
        ) from error

    def boxed(args: list[Any]) -> Any:
        taken = [args[i] for i in given]
        args.clear()
        with _below_autograd():
            return run(taken)

    boxed._boxed_call = True  # type: ignore[attr-defined]
    return boxed


def _compiled(module: fx.GraphModule, inputs: list[Any], given: Sequence[int]) -> Callable[[list[Any]], Any]:
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    config: Any = importlib.import_module("torch._inductor.config")
    if not isinstance(module.graph.output_node().args[0], (list, tuple)):
        raise ValueError("it returns no list")
    with config.patch(fallback_random=True):
        lowered = decomposed(module, inputs)
        for i, n in enumerate([n for n in lowered.graph.nodes if n.op == "placeholder"]):
            if i not in given:  # a number or None, which the graph does not use
                lowered.graph.erase_node(n)
        lowered.recompile()
        output = lowered.graph.output_node()
        results: Any = output.args[0]
        _refuse_other_layouts(module, results)
        # the strides of all results are those of the trace: views are taken of them, and the backward expects what the forward saves
        output.meta["user_visible_output_idxs"] = [i for i, r in enumerate(results) if isinstance(r, fx.Node)]
        run: Callable[[list[Any]], Any] = compile_fx.compile_fx_inner(lowered, [inputs[i] for i in given])
    numbers = numbers_of(module)
    return run if not numbers else _with_numbers(run, numbers)


def _with_numbers(run: Callable[[list[Any]], Any], numbers: Sequence[int]) -> Callable[[list[Any]], Any]:
    """``run``, whose results ``numbers`` are numbers for the program."""

    def returned(args: list[Any]) -> Any:
        results = list(run(args))
        for i in numbers:
            results[i] = results[i].item()
        return results

    return returned


def decomposed(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """``module`` in the ops that Inductor lowers, for abstract values ``inputs`` of its arguments."""
    table: Any = importlib.import_module("torch._inductor.decomposition").select_decomp_table()

    program = NumberTensors(transformable(module))

    def run(_: Any, *given: Any) -> Sequence[Any]:
        results: Sequence[Any] = program.run(*given)
        return results

    names = [str(n.target) for n in module.graph.nodes if n.op == "placeholder"]
    graph, attributes, _ = trace_flat(run, inputs, decompositions=table, names=names)
    for name, branch in attributes.items():
        if isinstance(branch, fx.GraphModule):  # of a condition
            attributes[name] = decomposed(branch, examples(branch))
    return module_of(graph, attributes, "Inductor")


def _refuse_other_layouts(module: fx.GraphModule, lowered: Sequence[Any]) -> None:
    """Refuse a graph with an op whose abstract kernel gives another layout than the kernel gave in the trace."""
    results: Any = module.graph.output_node().args[0]
    for before, after in zip(results, lowered, strict=True):
        a, b = (n.meta.get("val") if isinstance(n, fx.Node) else None for n in (before, after))
        if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or any(type(n) is not int for n in a.shape):
            continue
        if (a.shape, a.stride(), a.dtype) != (b.shape, b.stride(), b.dtype):
            raise RuntimeError(
                f"torch's abstract kernels say of {call_of(before).target} that a result has shape {list(b.shape)} and strides "
                f"{list(b.stride())}, and its kernel gave shape {list(a.shape)} and strides {list(a.stride())}"
            )


def _size(module: fx.GraphModule) -> str:
    number = sum(n.op == "call_function" for n in module.graph.nodes)
    return f"{number} call{'s' * (number != 1)}"


def _cause(error: Exception) -> str:
    """The error that Inductor's own one wraps, in a line."""
    inner = getattr(error, "inner_exception", None)
    found = inner if isinstance(inner, BaseException) else error
    return f"{type(found).__name__}: {str(found).strip().partition(chr(10))[0].rstrip('.')}"
