"""The overloads of torch's dispatcher: their schemas, names and kernels, and their calls in a run.

    overloads_of("add")         # torch.ops.aten.add.Tensor, add.Scalar, add.out, …
    bound("add", (x, 2.0))      # the overload that takes these arguments
    with observed_calls() as observed:
        torch.add(x, 2.0)       # observed.calls: aten::add.Tensor

torch's profiler sees what it runs by callbacks in the dispatcher itself, in each thread. So it sees
composed ops, leaf ops and what kernels call, pushes no mode, and needs no compiler. It does not see
the few ops that torch does not observe, such as ``aten::size``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch._C._autograd import _disable_profiler, _enable_profiler, _prepare_profiler
from torch._C._profiler import (
    ProfilerActivity,
    ProfilerConfig,
    ProfilerState,
    _ExperimentalConfig,
    _RecordFunctionFast,
)

from gen.torch_private.loaded_with_torch import OpOverload, registered_ops

Overload = OpOverload
"""An overload of an op, such as ``torch.ops.aten.add.Tensor``."""
Argument = torch._C.Argument
"""An argument in a schema: its name, type and default."""

MKLDNN: Any = torch._mkldnn  # type: ignore[attr-defined]
"""The layout of tensors in oneDNN's own order."""
_KERNELS = (
    "CPU",
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "SparseCPU",
    "SparseCsrCPU",
    "QuantizedCPU",
    "MkldnnCPU",
    "NestedTensorCPU",
    "CompositeImplicitAutogradNestedTensor",
)
"""The keys of the dispatcher under which an op has a kernel that runs on a CPU."""
_ALIAS = re.compile(r"Alias (?:for|of|to) :(?:func|meth|attr):`~?([\w.]+)`", re.IGNORECASE)
"""What the documentation of an alias says of the op whose name it is."""


@cache
def is_there(base: str) -> bool:
    """Return whether the dispatcher has an op of this name."""
    return hasattr(torch.ops.aten, base)


@cache
def overloads_of(base: str) -> tuple[Overload, ...]:
    """Return the overloads of an op by its name without the overload. Empty if there is none."""
    if not is_there(base):
        return ()
    packet = getattr(torch.ops.aten, base)
    every = (getattr(packet, name) for name in packet.overloads())
    return tuple(overload for overload in every if full_name(overload) in _registered())


@cache
def _registered() -> frozenset[str]:
    """Return the names of the dispatcher's ops, without those of TorchScript alone."""
    return registered_ops()


def overload_by_name(name: str) -> Overload:
    """Return the overload of a name such as ``aten::add.Tensor``."""
    base, _, overload = name.removeprefix("aten::").partition(".")
    found: Overload = getattr(getattr(torch.ops.aten, base), overload or "default")
    return found


def full_name(overload: Overload) -> str:
    """Return the name of an overload as the dispatcher has it: ``aten::add.Tensor``."""
    return str(overload.name())


def outputs_of(overload: Overload) -> list[Argument]:
    """Return the arguments of a schema that are buffers for results, as ``out`` is."""
    return [argument for argument in overload._schema.arguments if argument.is_out]


def inputs_of(overload: Overload) -> list[Argument]:
    """Return the other arguments: ``self`` and ``other`` of ``add(self, other, *, out)``."""
    return [argument for argument in overload._schema.arguments if not argument.is_out]


def kinds_of(overload: Overload) -> list[str]:
    """Return the types of the arguments without buffers: ``["Tensor", "number"]``."""
    return [str(argument.type) for argument in inputs_of(overload)]


def writes_of(overload: Overload) -> list[Argument]:
    """Return the arguments that the schema says are written to, buffers for results too."""
    infos = [(argument, argument.alias_info) for argument in overload._schema.arguments]
    return [argument for argument, info in infos if info is not None and info.is_write]


def names_of(arguments: Iterable[Argument]) -> list[str]:
    """Return the names of arguments, such as ``["self", "other", "alpha"]``."""
    return [argument.name for argument in arguments]


def length_of(argument: Argument) -> int | None:
    """Return the length of a list for which a schema says it: 2 for `int[2] stride`."""
    length: int | None = argument.N  # type: ignore[attr-defined]  # the stub lacks it
    return length


def is_generated(overload: Overload) -> bool:
    """Return whether torch has generated the overload from another one."""
    return torch.Tag.generated in overload.tags


@cache
def has_kernel(name: str) -> bool:
    """Return whether an overload has a kernel for the CPU, or one that is composed of others."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has(name, key) for key in _KERNELS)


def with_kernel(base: str) -> list[Overload]:
    """Return the overloads of an op that have a kernel, by its name without the overload."""
    return [overload for overload in overloads_of(base) if has_kernel(full_name(overload))]


def functional_form(overload: Overload) -> str | None:
    """Return the name of the overload without buffers from which torch has generated one.

    It is ``aten::add.Tensor`` of ``aten::add.out``, and None if there is no such overload.
    """
    base = full_name(overload).removeprefix("aten::").partition(".")[0].removesuffix("_")
    mine = kinds_of(overload)
    for other in overloads_of(base):
        if other is overload or outputs_of(other):
            continue
        if kinds_of(other)[: len(mine)] == mine:
            return full_name(other)
    return None


def every_overload() -> list[str]:
    """Return the names of all overloads of ATen, in order."""
    return sorted(name for name in _registered() if name.startswith("aten::"))


def bound(base: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Overload | None:
    """Return the overload of an op that takes these arguments, or None."""
    if not is_there(base):
        return None
    try:
        name = torch._C._jit_resolve_packet(f"aten::{base}", *args, **kwargs)
    except (RuntimeError, TypeError):
        return None
    overload = getattr(getattr(torch.ops.aten, base), name or "default")
    return overload if full_name(overload) in _registered() else None


@cache
def _groups() -> dict[str, frozenset[str]]:
    """Return the names that torch's documentation calls aliases of one another, by each name."""
    groups: dict[str, set[str]] = {}
    for name, other in _documented():
        joined = groups.get(name, {name}) | groups.get(other, {other})
        groups.update(dict.fromkeys(joined, joined))
    return {name: frozenset(group) for name, group in groups.items()}


def _documented() -> Iterator[tuple[str, str]]:
    """Yield ``(name, alias)`` for each alias that a docstring of torch names.

    That of ``torch.special.expit`` yields ``("special_expit", "sigmoid")``.
    """
    for module, prefix in _MODULES:
        for name in dir(module):
            alias = _alias_in(getattr(module, name, None))
            if alias is None:
                continue
            pair = (prefix + name, _base_of(alias, prefix))
            if all(map(is_there, pair)):
                yield pair


_MODULES: tuple[tuple[object, str], ...] = (
    (torch, ""),
    (torch.special, "special_"),
    (torch.linalg, "linalg_"),
    (torch.Tensor, ""),
)
"""Where functions of torch are, and how their names begin in the dispatcher."""


def _alias_in(function: object) -> str | None:
    """Return the path that a docstring names as an alias, such as ``torch.sigmoid``."""
    text = getattr(function, "__doc__", None)
    found = _ALIAS.search(text) if isinstance(text, str) else None
    return found and found.group(1)


def _base_of(path: str, prefix: str) -> str:
    """Return the name in the dispatcher of a function that a docstring names."""
    path = path.removeprefix("torch.").removeprefix("Tensor.")
    path = path.replace("nn.functional.", "")
    base = path.replace(".", "_")
    return base if is_there(base) else prefix + base


@cache
def aliases_of(base: str) -> frozenset[str]:
    """Return the other names of an op, by torch's documentation."""
    plain = base.removeprefix("special_")
    # torch.special has each of its functions that torch has, too
    names = set(_groups().get(base, ())) | {plain, f"special_{plain}"}
    # the operators of Python: __and__ is bitwise_and
    names |= _OPERATORS.get(base, frozenset())
    return frozenset(name for name in names if name != base and is_there(name))


_OPERATORS = {
    f"bitwise_{word}": frozenset({f"__{short}__"})
    for word, short in (
        ("and", "and"),
        ("or", "or"),
        ("xor", "xor"),
        ("left_shift", "lshift"),
        ("right_shift", "rshift"),
    )
}
"""Python's operators that are ops, by the name of the function."""


def name_in_place(base: str) -> str:
    """Return the name of the op in place: ``add_`` of ``add``, ``__iand__`` of ``__and__``."""
    if base.startswith("__"):
        return f"__i{base[2:]}"
    return f"{base}_"


# --- calls in a run -----------------------------------------------------------------------------

MARK = "matrix: the target runs"
"""The name of a span in which the target runs."""


@dataclass(frozen=True)
class OperatorCall:
    """A call of an op, such as ``aten::add.Tensor``, or a span with the name :data:`MARK`.

    A call that begins and ends within another one of its thread is made by it.
    """

    name: str
    thread: int
    # nanoseconds
    begin: int
    end: int


@dataclass
class Observed:
    """The calls of a block, once it has ended."""

    calls: list[OperatorCall] = field(default_factory=list)


@contextmanager
def observed_calls() -> Iterator[Observed]:
    """Observe the calls inside a block, those of other threads too."""
    details = _ExperimentalConfig(capture_overload_names=True, profile_all_threads=True)
    # neither shapes, nor memory, stacks, operations or modules
    settings = ProfilerConfig(ProfilerState.KINETO, False, False, False, False, False, details, "")
    activities = {ProfilerActivity.CPU}
    observed = Observed()
    _prepare_profiler(settings, activities)
    _enable_profiler(settings, activities)
    try:
        yield observed
    finally:
        results = _disable_profiler()
    for event in results.events():
        name = event.name()
        if not (name.startswith("aten::") or name == MARK):
            continue
        overload = event.overload_name()
        # the overload `default` has no name in the dispatcher
        full = f"{name}.{overload}" if overload else name
        call = OperatorCall(full, event.start_thread_id(), event.start_ns(), event.end_ns())
        observed.calls.append(call)


def marked() -> AbstractContextManager[object]:
    """Return a context that is seen as a span of the name :data:`MARK`."""
    span: AbstractContextManager[object] = _RecordFunctionFast(MARK)
    return span
