"""Explain what a partition saves, and why: a table for people, fields for programs, a drawing.

report = explain(compiled, x)
print(report)
report.svg("cut.svg")
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..seam.graph_walks import results_of
from ..torch_private.pytrees import pytree
from ..trace.provenance import line_of
from .calls.arguments import enter, flatten
from .calls.compiled_function import aot_function
from .calls.module import AOTModule
from .calls.program_capture import capture
from .calls.recipe import Recipe
from .capture.joint import Joint
from .capture.subclass_parts import names_of_parts
from .compilers.boxed import nop
from .compilers.graph_names import Compilers
from .partition.drawing import drawn
from .partition.halves import Parts
from .partition.memory import Memory, in_units
from .partition.partitions import min_cut_rematerialization_partition
from .partition.reasons import SavedValue, saved_values
from .partition.recompute import is_item, work


@dataclass(frozen=True)
class Recomputed:
    """One call of the forward that the backward runs again.

    ``name``: of its node. ``op``: such as ``aten.sin.default``. ``work``: its estimated cost, as
    bytes moved. ``line``: the user's line of the call; None if it is not known.
    """

    name: str
    op: str
    work: int
    line: str | None = None


@dataclass(frozen=True)
class Explanation:
    """Describe the partition of a joint graph. ``str()`` is a table.

    ``saved``: the values that the forward hands to the backward. ``recomputed``: the calls that the
    backward runs again. ``saved_bytes``: the memory of the saved values; values that share memory
    count once. ``new_bytes``: the same without arguments, which stay alive in any case.
    ``peak_bytes``: the most memory at any time of forward and backward without the arguments,
    estimated from the lives of the values; kernels may take more for themselves. ``forward`` and
    ``backward``: the two modules.
    """

    saved: tuple[SavedValue, ...]
    recomputed: tuple[Recomputed, ...]
    saved_bytes: int
    new_bytes: int
    peak_bytes: int
    forward: fx.GraphModule = field(repr=False)
    backward: fx.GraphModule = field(repr=False)
    _parts: Parts = field(repr=False)
    _names: dict[fx.Node, str] = field(repr=False)

    @classmethod
    def of(
        cls,
        joint_module: fx.GraphModule,
        forward: fx.GraphModule,
        backward: fx.GraphModule,
        *,
        num_fwd_outputs: int,
        joint_inputs: object = None,
        names: Sequence[str] = (),
        arguments: int | None = None,
    ) -> Explanation:
        """Return the explanation of two modules that a partition cut out of ``joint_module``.

        ``num_fwd_outputs`` and ``joint_inputs``: as the partition gets them. ``names``: what to
        call its primals. ``arguments``: how many of the primals are arguments of the program; it
        closes over the others. None: all are arguments.

        ``ValueError`` if ``forward`` saves a node whose name the joint graph does not have. A
        partition is to leave names as they are.
        """
        parts = Parts(joint_module, num_fwd_outputs, joint_inputs)
        saved = _saved_nodes(forward, parts, num_fwd_outputs)
        again = _recomputed_nodes(backward, parts, saved)
        memory, name_of = Memory(parts), dict(zip(parts.primals, names, strict=False))
        closed_over: set[fx.Node] = set()
        if arguments is not None:
            closed_over.update(parts.primals[arguments:])
        saved_bytes = memory.saved(saved)
        # a saved view keeps the memory of its base alive, so the base is what counts
        homes: dict[fx.Node, None] = {}
        for node in saved:
            homes.update(dict.fromkeys(memory.homes[node]))
        bytes_of_arguments = memory.saved(home for home in homes if home.op == "placeholder")
        return cls(
            saved=saved_values(parts, memory, saved, name_of, closed_over, bool(again)),
            # getting one of several results is no call of an op
            recomputed=tuple(
                Recomputed(node.name, str(node.target), work(node), line_of(node))
                for node in again
                if not is_item(node)
            ),
            saved_bytes=saved_bytes,
            new_bytes=saved_bytes - bytes_of_arguments,
            peak_bytes=memory.peak(saved),
            forward=forward,
            backward=backward,
            _parts=parts,
            _names=name_of,
        )

    def svg(self, path: str | Path | None = None) -> str:
        """Return a drawing of the joint graph with the cut, as the text of an SVG file.

        With ``path`` the text is also written to that file.

        The forward runs down on the left, the backward up on the right. Between them are the
        saved values with their bytes. Calls that run again have dashed borders. Pointing at a
        box shows its line.
        """
        text = drawn(
            self._parts,
            self.saved,
            {call.name for call in self.recomputed},
            self.backward,
            self._names,
            self.summary,
        )
        if path is not None:
            Path(path).write_text(text)
        return text

    @property
    def summary(self) -> str:
        """State the totals in one line."""
        count, calls = len(self.saved), len(self.recomputed)
        return (
            f"{count} value{'s' * (count != 1)} saved, {in_units(self.saved_bytes)}, "
            f"of which {in_units(self.new_bytes)} beside arguments; "
            f"{calls} call{'s' * (calls != 1)} run{'s' * (calls == 1)} again; "
            f"peak about {in_units(self.peak_bytes)} beside arguments"
        )

    def __str__(self) -> str:
        """Return a table: a row for each saved value, and the ops that run again."""
        rows = [("bytes", "value", "made by", "why", "line"), *map(_row_of, self.saved)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        # numbers stand at the right of their column, and the last column has no padding
        lines = []
        for size, *texts, line in rows:
            columns = [f"{size:>{widths[0]}}"]
            columns += [f"{text:<{width}}" for text, width in zip(texts, widths[1:-1], strict=True)]
            lines.append("  ".join([*columns, line]).rstrip())
        if self.recomputed:
            counts = Counter(call.op for call in self.recomputed)
            ops = [f"{op} ×{count}" if count > 1 else op for op, count in counts.items()]
            lines += ["", f"run again: {', '.join(ops)}"]
        return "\n".join([self.summary, "", *lines])


def _saved_nodes(forward: fx.GraphModule, parts: Parts, num_fwd_outputs: int) -> list[fx.Node]:
    """List the nodes of the joint graph that ``forward`` returns after its results, once each."""
    by_name = {node.name: node for node in parts.nodes}
    results = results_of(forward.graph)
    saved = results[num_fwd_outputs:]
    # a partition may rename nodes, and then nobody can say which values it saves
    missing = [node.name for node in saved if node.name not in by_name]
    if missing:
        raise ValueError(
            f"the forward saves {', '.join(missing)}, "
            "which the joint graph does not have by that name"
        )
    return list(dict.fromkeys(by_name[node.name] for node in saved))


def _recomputed_nodes(
    backward: fx.GraphModule, parts: Parts, saved: Sequence[fx.Node]
) -> list[fx.Node]:
    """List the nodes of the forward that ``backward`` computes once more, in its order."""
    inputs = {node.name for node in (*saved, *parts.tangents)}
    forward_only = {node.name: node for node in parts.forward if node.name not in inputs}
    calls = [node.name for node in backward.graph.nodes if node.op == "call_function"]
    return [forward_only[name] for name in calls if name in forward_only]


def explain(f: Callable[..., object], *args: object, **kwargs: object) -> Explanation:
    """Explain what ``f`` saves between forward and backward when it is called like this.

    >>> cut = min_cut_rematerialization_partition
    >>> f = aot_function(lambda x, w: (x @ w).square().sum(), nop, partition_fn=cut)
    >>> report = explain(f, torch.ones(2, 3), torch.ones(3, 4, requires_grad=True))
    >>> [(v.source, v.shape, v.bytes, v.why.name) for v in report.saved]
    [('args[0]', (2, 3), 24, 'ARGUMENT'), ('aten.mm.default', (2, 4), 32, 'EXPENSIVE')]
    >>> report.recomputed
    ()

    ``f``: a result of :func:`aot_function` or :func:`aot_module`, explained with its own partition.
    Any other function or module is explained as if compiled with
    :func:`min_cut_rematerialization_partition`. The program is traced once more. No compiler is
    called. ``ValueError`` if no gradient is wanted for these arguments.
    """
    if isinstance(f, AOTModule):
        f = f._compiled
    recipe: Recipe | None = getattr(f, "recipe", None)
    if recipe is None:
        recipe = aot_function(f, nop, partition_fn=min_cut_rematerialization_partition).recipe  # type: ignore[attr-defined]
    partitions: list[tuple[fx.GraphModule, fx.GraphModule, fx.GraphModule, int]] = []

    def partition_and_note(
        joint_module: fx.GraphModule, joint_inputs: object = None, **options: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Cut as the recipe does, and remember the modules."""
        forward, backward = recipe.partition(joint_module, joint_inputs, **options)
        partitions.append((joint_module, forward, backward, options["num_fwd_outputs"]))
        return forward, backward

    # enter the arguments as a call of the compiled function does
    leaves, spec = flatten(args, kwargs)
    tracked = torch.is_grad_enabled()
    call = enter(recipe.outside.marked(leaves), tracked, recipe.dynamic)
    if call is None:
        raise ValueError(
            "an argument is a value of a transform. Explain the function outside of it"
        )
    # capture the program once more, but compile nothing
    no_compilers = Compilers(forward=_interpret, backward=_interpret, inference=_interpret)
    recipe_that_notes = dataclasses.replace(
        recipe, partition=partition_and_note, compilers=no_compilers
    )
    program = capture(recipe_that_notes, spec, call, tracked)
    if not partitions:
        raise ValueError(
            "no gradient is wanted for these arguments, so nothing is saved. "
            "Give an argument that requires grad"
        )
    # a program that has to be captured again has a partition for each capture; the last one counts
    joint_module, forward, backward, num_fwd_outputs = partitions[-1]
    names, arguments = _names_of_primals(program.joint, recipe, args, kwargs)
    return Explanation.of(
        joint_module,
        forward,
        backward,
        num_fwd_outputs=num_fwd_outputs,
        names=names,
        arguments=arguments,
    )


def _interpret(module: fx.GraphModule, _: list[object]) -> Callable[..., object]:
    """Compile nothing: return what runs the module as it is."""
    return module.forward


def _names_of_primals(
    joint: Joint, recipe: Recipe, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[list[str], int]:
    """Return a name for each primal of the graph, and how many of them are arguments.

    The order is that of :class:`Joint`: arguments, bases of arguments that share memory, tensors
    that the program closes over.
    """
    name_of_state = _names_of_state(recipe)
    names = _names_of_arguments(args, kwargs)
    n_bases = len(joint.boundary.inputs) - len(names) - len(joint.closed_over)
    names += ["arguments that share memory"] * n_bases
    arguments = len(names)
    names += [
        name_of_state.get(id(tensor), "a tensor from outside") for tensor in joint.closed_over
    ]
    if joint.layouts is None:
        return names, arguments
    # a value of a subclass is one primal, and a placeholder for each of its parts
    parts = []
    for name, layout in zip(names, joint.layouts.primals, strict=True):
        parts += [name + part for part in names_of_parts(layout)]
    return parts, len(joint.in_graph(range(arguments)))


def _names_of_arguments(args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
    """List the names of the leaves of the arguments, such as ``args[0]`` or ``kwargs['k'][1]``."""
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    return [
        ("args" if path[0].idx == 0 else "kwargs") + pytree.keystr(path[1:])  # type: ignore[attr-defined]
        for path, _ in leaves
    ]


def _names_of_state(recipe: Recipe) -> dict[int, str]:
    """Return the names of parameters and buffers by the ids of their tensors.

    Those of a module that is compiled itself have their path, such as ``layers.0.weight``. Those of
    a module that the function uses have its class, such as ``Linear.weight``.
    """
    names: dict[int, str] = {}
    if isinstance(recipe.fn, torch.nn.Module):
        for name, tensor in (*recipe.fn.named_parameters(), *recipe.fn.named_buffers()):
            names[id(tensor)] = name
    for module in recipe.modules:
        for name, value in (*module._parameters.items(), *module._buffers.items()):
            names.setdefault(id(value), f"{type(module).__name__}.{name}")
    return names


def _row_of(value: SavedValue) -> tuple[str, str, str, str, str]:
    """Return the cells of a saved value in the table: bytes, value, made by, why, line."""
    size = f"{value.bytes:,}"
    if value.shares:
        size = f"in {value.shares}"
    name = f"{value.name}: {_type_text(value)}"
    return size, name, value.source, value.why.value, value.line or ""


def _type_text(value: SavedValue) -> str:
    """Return dtype and shape, such as ``float32[2, 3]``, or ``number``."""
    if value.dtype is None:
        return "number"
    return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
