"""Tensors saved for the backward pass by the runtime's tape and by torch's engine, for the same
programs on the same values.

Unlike times, counts are exact and do not depend on the machine.
"""

import itertools
import resource
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

import runtime
from benchmarks.programs import Training, leaves, programs, trainings
from gen.samples.opinfo import drawn
from runtime.seam.levels import Value
from runtime.tape.nodes import AccumulateGrad, Node

SLACK = 1.05


@dataclass(frozen=True)
class Held:
    """`references` counts every saved tensor. `storages` and `bytes` count each
    piece of memory once."""

    references: int
    storages: int
    bytes: int

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Held":
        storages = {
            part.untyped_storage()._cdata: part.untyped_storage().nbytes()
            for t in tensors
            for part in _dense_parts(t)
        }
        return cls(len(tensors), len(storages), sum(storages.values()))

    def within(self, peer: "Held") -> bool:
        """Whether this is at most 5% more than the peer."""
        return (
            self.references <= SLACK * peer.references
            and self.storages <= SLACK * peer.storages
            and self.bytes <= SLACK * peer.bytes
        )

    def __str__(self) -> str:
        return f"{self.references} / {self.storages} / {self.bytes:,}"


def _dense_parts(t: Tensor) -> tuple[Tensor, ...]:
    """The dense tensors of `t`: itself, or the indices and values of a sparse one."""
    if t.layout is torch.strided:
        return (t,)
    if t.layout is torch.sparse_coo:
        return t._indices(), t._values()
    if t.layout in (torch.sparse_csr, torch.sparse_bsr):
        return t.crow_indices(), t.col_indices(), t.values()
    if t.layout in (torch.sparse_csc, torch.sparse_bsc):
        return t.ccol_indices(), t.row_indices(), t.values()
    return ()  # oneDNN's own layout shows no storage


def saved_by_torch(f: Callable[..., Any], *args: Any) -> Held:
    """Run `f` and count what torch's engine packs."""
    kept: list[Tensor] = []

    def pack(t: Tensor) -> Tensor:
        kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outs = f(*args)
    held = Held.of([t.detach() for t in kept])
    del outs
    return held


# the modules of nodes and of the objects in them
_HOMES = (
    "runtime.tape",
    "runtime.session",
    "runtime.autograd",
    "runtime.aot",
    "runtime.export",
    "runtime.jit",
)


def saved_by_runtime(f: Callable[..., Any], *args: Any) -> Held:
    """Run `f` and count what the tape behind its results holds."""
    outs = f(*args)
    return Held.of([t for node in _tape(outs) for t in _saved(node)])


def _tape(outs: Any) -> Iterator[Node]:
    stack: list[Any] = [t.grad_fn for t in pytree.tree_leaves(outs) if isinstance(t, Value)]
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            stack.extend(following for following, _ in node.next_functions)


def _saved(thing: Any) -> Iterator[Tensor]:
    """Every tensor that a node holds, at any depth: in lists, in wrappers of saved tensors, and in
    nodes inside the node."""
    if isinstance(thing, Tensor):
        while isinstance(thing, Value):
            thing = thing._inner
        yield thing
    elif isinstance(thing, (list, tuple)):
        for x in thing:
            yield from _saved(x)
    elif isinstance(thing, AccumulateGrad):
        return  # a leaf belongs to the caller
    elif type(thing).__module__.startswith(_HOMES) and not isinstance(thing, type):
        for cls in type(thing).__mro__:
            for slot in cls.__dict__.get("__slots__", ()):
                if slot not in ("edges", "level", "__weakref__"):
                    yield from _saved(getattr(thing, slot, None))


@dataclass(frozen=True)
class Peak:
    """Bytes allocated by a training step: the maximum at any time, and those left after
    the forward pass."""

    peak: int
    kept: int


def peak_of(p: Training, ours: bool) -> Peak:
    """Measure a training step by the events of torch's allocator, which serves both sides."""
    forward, reset = training_pass(p, ours)
    forward()()  # allocates everything that remains between steps
    reset()
    with _measured() as passed:
        backward = forward()
    kept = sum(_changes(passed))
    backward()
    del backward
    reset()
    return Peak(peak_during(lambda: forward()()), kept)


def peak_during(step: Callable[[], object]) -> int:
    """The most bytes that are allocated at any time of ``step``, beyond those from before."""
    with _measured() as passed:
        step()
    return max(itertools.accumulate(_changes(passed)))


def _measured() -> Any:
    # torch 2.12 warns once that a second cycle would clear the events, unless they are kept
    return profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)


def _changes(measured: Any) -> list[int]:
    return [e.nbytes() for e in measured.profiler.kineto_results.events() if e.name() == "[memory]"]


def training_pass(
    p: Training, ours: bool
) -> tuple[Callable[[], Callable[[], None]], Callable[[], None]]:
    """A forward pass that returns the backward pass, and a function that clears the gradients."""
    x, parameters = leaves(p, ours)

    def forward() -> Callable[[], None]:
        backward: Callable[[], None] = p.loss(x, *parameters).backward
        return backward

    def reset() -> None:
        for t in parameters:
            t.grad = None

    return forward, reset


def sides(
    f: Callable[..., Any], tensors: Sequence[Tensor], differentiable: Callable[[int], bool]
) -> tuple[Held, Held]:
    """The tensors that the runtime and torch's engine save for `f`."""
    ours = [runtime.wrap(t.clone(), requires_grad=differentiable(i)) for i, t in enumerate(tensors)]
    theirs = [t.clone().requires_grad_(differentiable(i)) for i, t in enumerate(tensors)]
    return saved_by_runtime(f, *ours), saved_by_torch(f, *theirs)


def of_programs(only: str = "") -> Iterator[tuple[str, Held, Held]]:
    """(program, runtime, torch) for every training step, and for the other programs with gradients
    by their parameters."""
    for t in trainings():
        if only.lower() in t.name.lower():
            yield t.name, *sides(t.loss, (t.x, *t.parameters), bool)
    for p in programs(("small",)):
        if only.lower() in p.name.lower():
            yield f"{p.name} (small)", *sides(p.loss, (p.x, *p.parameters), bool)


Swept = tuple[str, Held | str, Held | str]
"""An op, and what each side keeps of a sample, or why it cannot run it."""


def of_ops(only: str = "", samples: int = 2) -> Iterator[Swept]:
    """As :func:`of_programs`, for samples of every op of torch's OpInfo database that is
    differentiable in float64.

    A side that cannot run a sample has its error in place of the counts.
    """
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if (
            only.lower() not in name.lower()
            or torch.float64 not in op.supported_dtypes("cpu")
            or not op.supports_autograd
        ):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            given = drawn(op, "cpu", torch.float64, requires_grad=True)
            for sample in given[:: max(1, len(given) // samples)][:samples]:
                yield name, *_of_sample(op, sample)


def _of_sample(op: Any, sample: Any) -> tuple[Held | str, Held | str]:
    flat, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))

    def f(*values: Any) -> Any:
        first, args, kwargs = pytree.tree_unflatten(list(values), spec)
        return op.op(first, *args, **kwargs)

    theirs = [
        t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t
        for t in flat
    ]
    ours = [
        runtime.wrap(t.detach().clone(), t.requires_grad) if isinstance(t, Tensor) else t
        for t in flat
    ]
    return _or_error(saved_by_runtime, f, ours), _or_error(saved_by_torch, f, theirs)


def _or_error(saved: Callable[..., Held], f: Callable[..., Any], args: Sequence[Any]) -> Held | str:
    try:
        return saved(f, *args)
    except Exception as e:  # an op may raise any error; the sweep reports it and continues
        return f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"


def eager_step() -> Callable[[], None]:
    """A forward and backward pass of an MLP in the session."""
    forward, reset = training_pass(next(t for t in trainings() if t.name.startswith("MLP")), True)

    def step() -> None:
        forward()()
        reset()

    return step


def resident(step: Callable[[], object], iterations: int, every: int) -> Iterator[int]:
    """Resident bytes of the process while `step` is called, once per `every` calls."""
    for i in range(1, iterations + 1):
        step()
        if i % every == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            yield pages * resource.getpagesize()


def resident_line(
    console: Console, what: str, step: Callable[[], object], iterations: int
) -> list[int]:
    """Print ten sizes of the process, in the course of `iterations` calls of `step`,
    and return them."""
    found = list(resident(step, iterations, max(1, iterations // 10)))
    console.print(
        f"resident MiB during {iterations} {what}: {', '.join(f'{b / 2**20:.1f}' for b in found)}"
    )
    return found


def report(console: Console, only: str, iterations: int) -> dict[str, Any]:
    """Print every table, and return the data."""
    data: dict[str, Any] = {
        "saved": _saved_table(console, only),
        "peak": _peak_table(console, only),
    }
    swept = list(of_ops(only))
    return data | {
        "sweep": _more_than_torch_table(console, swept),
        "not compared": _not_compared_table(console, swept),
        "resident": resident_line(console, "training steps of an MLP", eager_step(), iterations)
        if iterations
        else [],
    }


def empty_table(title: str, *columns: str, numbers: bool) -> Table:
    """An empty table. With `numbers`, all columns except the first are aligned to the right."""
    table = Table(title=title, title_justify="left")
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if numbers and place else "left")
    return table


def _saved_table(console: Console, only: str) -> dict[str, Any]:
    table = empty_table(
        "saved for backward: references / storages / bytes",
        "program",
        "runtime",
        "torch",
        "",
        numbers=True,
    )
    data = {}
    for name, mine, theirs in of_programs(only):
        table.add_row(
            name, str(mine), str(theirs), "" if mine.within(theirs) else "[red]more[/red]"
        )
        data[name] = {"runtime": vars(mine), "torch": vars(theirs)}
    console.print(table)
    return data


def _peak_table(console: Console, only: str) -> dict[str, Any]:
    columns = ("program", "peak", "torch", "ratio", "kept", "torch", "ratio")
    table = empty_table(
        "bytes of forward and backward: peak, and kept between the two", *columns, numbers=True
    )
    data = {}
    for p in trainings():
        if only.lower() in p.name.lower():
            a, b = (peak_of(p, ours) for ours in (True, False))
            ratios = a.peak / b.peak, a.kept / b.kept
            table.add_row(
                p.name,
                f"{a.peak:,}",
                f"{b.peak:,}",
                f"{ratios[0]:.3f}",
                f"{a.kept:,}",
                f"{b.kept:,}",
                f"{ratios[1]:.3f}",
            )
            data[p.name] = {"runtime": vars(a), "torch": vars(b)}
    console.print(table)
    return data


def _more_than_torch_table(
    console: Console, swept: Sequence[Swept]
) -> dict[str, list[dict[str, Any]]]:
    compared = [
        (name, mine, theirs)
        for name, mine, theirs in swept
        if isinstance(mine, Held) and isinstance(theirs, Held)
    ]
    more = [(name, mine, theirs) for name, mine, theirs in compared if not mine.within(theirs)]
    title = f"ops that keep more than under torch's engine: {len(more)} of {len(compared)} samples"
    table = empty_table(title, "op", "runtime", "torch", numbers=False)
    data: dict[str, list[dict[str, Any]]] = {}
    for name, mine, theirs in more:
        table.add_row(name, str(mine), str(theirs))
        data.setdefault(name, []).append({"runtime": vars(mine), "torch": vars(theirs)})
    console.print(table)
    return data


def _not_compared_table(console: Console, swept: Sequence[Swept]) -> list[dict[str, str]]:
    errors = [
        {"op": name, "side": side, "error": said}
        for name, *both in swept
        for side, said in zip(("runtime", "torch"), both, strict=True)
        if isinstance(said, str)
    ]
    without = sum(isinstance(mine, str) or isinstance(theirs, str) for _, mine, theirs in swept)
    table = empty_table(
        f"not compared: {without} of {len(swept)} samples", "op", "side", "error", numbers=False
    )
    for error in errors:
        table.add_row(error["op"], error["side"], escape(error["error"]))
    console.print(table)
    return errors
