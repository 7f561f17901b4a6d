"""What a partition saves, and why: a table for people, fields for programs, a drawing.

report = explain(compiled, x)
print(report)
report.svg("cut.svg")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..torch_private.pytrees import pytree
from ..trace.provenance import line_of
from .calls.arguments import enter, flatten
from .calls.compiled_function import aot_function
from .calls.module import AOTModule
from .calls.program_capture import capture
from .calls.recipe import Recipe
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
    """One call of the forward that the backward runs again. ``work``: its estimated
    cost, as bytes moved."""

    name: str
    op: str
    work: int
    line: str | None = None


@dataclass(frozen=True)
class Explanation:
    """What a partition of a joint graph does. ``str()`` is a table.

    ``saved_bytes``: the memory of the saved values; values that share memory count once.
    ``new_bytes``: the same without arguments, which their owner holds anyway. ``peak_bytes``:
    the most memory at any time of forward and backward beside the arguments, estimated from
    the lives of the values; kernels may take more for themselves. ``forward`` and
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
        """Return the explanation of two modules that a partition made of ``joint_module``.

        ``names``: what to call its primals. ``arguments``: how many of them the program takes; the
        others it closes over.

        ``ValueError`` if a saved value is not found in the joint graph, whose names of nodes a
        partition is to leave as they are."""
        parts = Parts(joint_module, num_fwd_outputs, joint_inputs)
        saved = _saved_by(forward, parts, num_fwd_outputs)
        again = _calls_again(backward, parts, saved)
        memory, called = Memory(parts), dict(zip(parts.primals, names, strict=False))
        outside = set(parts.primals[arguments:]) if arguments is not None else set()
        values = saved_values(parts, memory, saved, called, outside, bool(again))
        calls = tuple(
            Recomputed(n.name, str(n.target), work(n), line_of(n)) for n in again if not is_item(n)
        )
        whole = memory.saved(saved)
        homes = dict.fromkeys(home for n in saved for home in memory.homes[n])
        new = whole - memory.saved(home for home in homes if home.op == "placeholder")
        return cls(values, calls, whole, new, memory.peak(saved), forward, backward, parts, called)

    def svg(self, path: str | Path | None = None) -> str:
        """Return a drawing of the joint graph with the cut, as the text of an SVG file, which is
        written to ``path`` if given.

        The forward runs down on the left, the backward up on the right. Between them are the
        saved values with their bytes. Calls that run again have dashed borders. Pointing at a
        box shows its line.
        """
        text = drawn(
            self._parts,
            self.saved,
            {r.name for r in self.recomputed},
            self.backward,
            self._names,
            self.summary,
        )
        if path is not None:
            Path(path).write_text(text)
        return text

    @property
    def summary(self) -> str:
        """The totals in one line."""
        count, calls = len(self.saved), len(self.recomputed)
        return (
            f"{count} value{'s' * (count != 1)} saved, {in_units(self.saved_bytes)}, "
            f"of which {in_units(self.new_bytes)} beside arguments; "
            f"{calls} call{'s' * (calls != 1)} run{'s' * (calls == 1)} again; "
            f"peak about {in_units(self.peak_bytes)} beside arguments"
        )

    def __str__(self) -> str:
        rows = [("bytes", "value", "made by", "why", "line")]
        for v in self.saved:
            size = f"in {v.shares}" if v.shares else f"{v.bytes:,}"
            rows.append((size, f"{v.name}: {_kind(v)}", v.source, v.why.value, v.line or ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{a:>{widths[0]}}  {b:<{widths[1]}}  {c:<{widths[2]}}  {d:<{widths[3]}}  {e}".rstrip()
            for a, b, c, d, e in rows
        ]
        if self.recomputed:
            counts: dict[str, int] = {}
            for r in self.recomputed:
                counts[r.op] = counts.get(r.op, 0) + 1
            lines += [
                "",
                "run again: "
                + ", ".join(op if count == 1 else f"{op} ×{count}" for op, count in counts.items()),
            ]
        return "\n".join([self.summary, "", *lines])


def _saved_by(forward: fx.GraphModule, parts: Parts, num_fwd_outputs: int) -> list[fx.Node]:
    """List the nodes of the joint graph that ``forward`` gives after its results, once each."""
    by_name = {n.name: n for n in parts.nodes}
    results: Any = forward.graph.output_node().args[0]
    given = results[num_fwd_outputs:]
    missing = [n.name for n in given if n.name not in by_name]
    if missing:
        raise ValueError(
            f"the forward saves {', '.join(missing)}, "
            "which the joint graph does not have by that name"
        )
    return list(dict.fromkeys(by_name[n.name] for n in given))


def _calls_again(backward: fx.GraphModule, parts: Parts, saved: Sequence[fx.Node]) -> list[fx.Node]:
    """List the nodes of the forward that ``backward`` computes once more."""
    names = {n.name for n in (*saved, *parts.tangents)}
    of_forward = {n.name: n for n in parts.forward if n.name not in names}
    calls = [n.name for n in backward.graph.nodes if n.op == "call_function"]
    return [of_forward[name] for name in calls if name in of_forward]


def explain(f: Callable[..., object], *args: object, **kwargs: object) -> Explanation:
    """Return what ``f`` saves between forward and backward when it is called with these arguments,
    and why.

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
    found: list[tuple[Any, ...]] = []

    def seen(
        joint_module: fx.GraphModule, joint_inputs: object = None, **options: object
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        forward, backward = recipe.partition(joint_module, joint_inputs, **options)
        found.append((joint_module, forward, backward, options["num_fwd_outputs"]))
        return forward, backward

    given, spec = flatten(args, kwargs)
    tracked = torch.is_grad_enabled()
    call = enter(recipe.outside.marked(given), tracked, recipe.dynamic)
    if call is None:
        raise ValueError(
            "an argument is a value of a transform. Explain the function outside of it"
        )
    idle = Compilers(forward=_idle, backward=_idle, inference=_idle)
    seeing = dataclasses.replace(recipe, partition=seen, compilers=idle)
    program = capture(seeing, spec, call, tracked)
    if not found:
        raise ValueError(
            "no gradient is wanted for these arguments, so nothing is saved. "
            "Give an argument that requires grad"
        )
    joint_module, forward, backward, count = found[-1]
    closed_over = program.joint.closed_over
    known = _names_of_state(recipe)
    names = _names(args, kwargs)
    names += ["arguments that share memory"] * (
        len(program.joint.boundary.inputs) - len(names) - len(closed_over)
    )
    arguments = len(names)
    names += [known.get(id(t), "a tensor from outside") for t in closed_over]
    if program.joint.layouts is not None:
        arguments = len(program.joint.in_graph(range(arguments)))
        names = [
            name + part
            for name, layout in zip(names, program.joint.layouts.primals, strict=True)
            for part in names_of_parts(layout)
        ]
    return Explanation.of(
        joint_module, forward, backward, num_fwd_outputs=count, names=names, arguments=arguments
    )


def _idle(module: fx.GraphModule, _: list[object]) -> Callable[..., object]:
    return module.forward


def _names(args: tuple[object, ...], kwargs: dict[str, object]) -> list[str]:
    """``args[0]`` and the like for the leaves of the arguments."""
    leaves, _ = pytree.tree_flatten_with_path((args, kwargs))
    return [
        ("args" if path[0].idx == 0 else "kwargs") + pytree.keystr(path[1:])  # type: ignore[attr-defined]
        for path, _ in leaves
    ]


def _names_of_state(recipe: Recipe) -> dict[int, str]:
    """Return the names of parameters and buffers by the ids of their tensors: with their path in a
    module, else with the class of their own."""
    found: dict[int, str] = {}
    if isinstance(recipe.fn, torch.nn.Module):
        for name, t in (*recipe.fn.named_parameters(), *recipe.fn.named_buffers()):
            found[id(t)] = name
    for m in recipe.modules:
        for name, held in (*m._parameters.items(), *m._buffers.items()):
            found.setdefault(id(held), f"{type(m).__name__}.{name}")
    return found


def _kind(v: SavedValue) -> str:
    dtype = "number" if v.dtype is None else str(v.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, v.shape))}]" if v.dtype is not None else dtype
