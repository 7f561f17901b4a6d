"""What the cut of a joint graph follows from, as text: the key of an entry.

A part of the key that cannot be told by text, such as a function of the user's, makes the program
one without a key."""

from __future__ import annotations

import builtins
import functools
import hashlib
import math
import operator
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy
import scipy
import torch
from torch import fx

from ...torch_private.dispatcher import HigherOrderOperator, OpOverload
from ...torch_private.global_settings import is_autocast_enabled
from ...trace.regions import region_of
from ...trace.symbols import SYMBOLIC
from ..capture.global_state import surroundings
from ..capture.joint import Joint
from ..capture.tangents import marked
from ..partition.partitions import Partition, default_partition, min_cut_rematerialization_partition
from ..partition.recompute import Again, again, flops, hint, policy_of

_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_OPERATORS = (operator, math, builtins, torch)


class NoKey(Exception):
    """Why a program has no key."""


@functools.cache
def versions() -> str:
    """Return the versions of all that decides on a cut, and the digest of this package's source."""
    source = digest_of_source(Path(__file__).parents[2])
    python = f"{platform.python_version()} {platform.machine()}"
    return (
        f"torch {torch.__version__} {torch.version.git_version}, numpy {numpy.__version__}, "
        f"scipy {scipy.__version__}, {python}, runtime {source}"
    )


def digest_of_source(root: Path) -> str:
    """Another one for each other set of Python files under ``root``, by name and content."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def parts_of_key(
    partition: Partition, joint: Joint, options: Mapping[str, object], dynamic: bool
) -> dict[str, str]:
    """Return the parts of the key by name, ``graph`` first. ``options``: the keywords of the call
    of ``partition``. ``NoKey`` if there is none."""
    name = _partition(partition, options)  # first, as it takes the least
    guards: object = ""
    if joint.abstraction is not None:
        guards = joint.abstraction.guards()
    settings = surroundings(torch.is_grad_enabled(), is_autocast_enabled())
    return {
        "graph": _digest(_graph(joint.module)),
        "boundary": _digest(_record(joint.boundary)),
        "guards": _digest((dynamic, guards)),
        "partition": name,
        "versions": versions(),
        "settings": repr(settings),
    }


def file_name(parts: Mapping[str, str]) -> str:
    """Return the name of the entry: the graph first, so that entries for the same graph are
    found."""
    return f"{parts['graph'][:40]}-{_digest(sorted(parts.items()))[:40]}"


def _digest(text: object) -> str:
    return hashlib.sha256(repr(text).encode("utf-8", "backslashreplace")).hexdigest()


def _partition(partition: Partition, options: Mapping[str, object]) -> str:
    """Return the partition with its options."""
    options = dict(options)
    while isinstance(partition, functools.partial):
        if partition.args:
            raise NoKey("a partition with positional arguments")
        options = {**partition.keywords, **options}
        partition = partition.func
    if partition is default_partition:
        raise NoKey("default_partition, which searches for nothing")
    if partition is not min_cut_rematerialization_partition:
        raise NoKey("a partition that is not of this package")
    if options.get("may_recompute") is not None:
        raise NoKey("a function (may_recompute) decides what runs again")
    ops = options.get("recomputable_ops")
    if ops is not None:
        options["recomputable_ops"] = sorted(map(str, ops))  # type: ignore[call-overload]
    return repr(sorted((key, _literal(value, {})) for key, value in options.items()))


def _graph(module: fx.GraphModule) -> Iterator[Any] | tuple[Any, ...]:
    """All nodes of a graph, with the facts that a partition asks for."""
    numbers: dict[fx.Node, int] = {}
    regions: dict[int, int] = {}  # their numbers count the regions of the process
    described = []
    tangents = set(marked(module.graph))
    for node in module.graph.nodes:
        region = region_of(node)
        facts: list[object] = [_value(node.meta.get("val")), node in tangents]
        if region is not None:
            facts.append((regions.setdefault(region, len(regions)), str(policy_of(node))))
        if node.op == "call_function":
            why = again(node)
            facts += [why.name, flops(node) if why is Again.HIGH else 0]
        described.append(
            (
                node.op,
                _target(node, module),
                _literal(node.args, numbers),
                _literal(node.kwargs, numbers),
                *facts,
            )
        )
        numbers[node] = len(numbers)
    return tuple(described)


def _target(node: fx.Node, module: fx.GraphModule) -> object:
    if node.op == "call_function":
        func: Any = node.target
        if isinstance(func, OpOverload):
            return str(func)
        name = getattr(func, "__name__", "")
        if any(getattr(owner, name, None) is func for owner in _OPERATORS):
            return name
        if isinstance(func, HigherOrderOperator):
            return f"higher order {func.name()}"
        raise NoKey(f"a call of {name or type(func).__name__}, which is no op")
    if node.op == "get_attr":
        held = operator.attrgetter(str(node.target))(module)
        if isinstance(held, fx.GraphModule):
            return _graph(held)
        # an entry holds none of its elements, so they are no part of the key
        if isinstance(held, torch.Tensor):
            return _value(held)
        return type(held).__qualname__
    return ""  # names of placeholders say nothing


def _value(value: Any) -> object:
    """Return a value of the trace: what is known of it without its elements."""
    if isinstance(value, torch.Tensor):
        shape = tuple(map(_size, value.shape))
        strides = tuple(map(_size, value.stride())) if value.layout is torch.strided else None
        return (
            str(value.dtype),
            str(value.device),
            str(value.layout),
            shape,
            strides,
            value.is_conj(),
            value.is_neg(),
        )
    if isinstance(value, (list, tuple)):
        return tuple(map(_value, value))
    if value is None or isinstance(value, (*SYMBOLIC, *_PLAIN)):
        return _size(value)
    return type(value).__qualname__


def _size(size: object) -> object:
    """Return a number; of one that is a symbol the expression, and what it was in the trace."""
    if not isinstance(size, SYMBOLIC):
        return repr(size)
    known = hint(size) if size.node.has_hint() else None
    return str(size.node.expr), known


def _literal(argument: object, numbers: Mapping[fx.Node, int]) -> object:
    """Return an argument of a call, or an option."""
    if isinstance(argument, fx.Node):
        return "node", numbers[argument]
    if isinstance(argument, list):
        return "list", _literals(argument, numbers)
    if isinstance(argument, tuple):
        return "tuple", _literals(argument, numbers)
    if isinstance(argument, Mapping):
        return "dict", tuple(zip(argument, _literals(argument.values(), numbers), strict=True))
    if isinstance(argument, slice):
        return "slice", _literals((argument.start, argument.stop, argument.step), numbers)
    if isinstance(argument, (*_PLAIN, range)):
        return type(argument).__name__, repr(argument)
    if isinstance(argument, OpOverload):
        return "op", str(argument)
    raise NoKey(f"an argument of type {type(argument).__qualname__}")


def _literals(each: Iterable[object], numbers: Mapping[fx.Node, int]) -> tuple[object, ...]:
    return tuple(_literal(a, numbers) for a in each)


def _record(a: object) -> object:
    """Return a record of the boundary, and all in it."""
    if is_dataclass(a):
        return type(a).__name__, tuple((f.name, _record(getattr(a, f.name))) for f in fields(a))
    if isinstance(a, (list, tuple)):
        return tuple(map(_record, a))
    if isinstance(a, Mapping):
        return tuple((k, _record(b)) for k, b in a.items())
    if isinstance(a, Enum):
        return a.name
    if isinstance(a, OpOverload):
        return str(a)
    if isinstance(a, _PLAIN):
        return type(a).__name__, repr(a)
    if isinstance(a, SYMBOLIC):
        return _size(a)
    return type(a).__qualname__  # a constant that the program returns: it is of this process


def differing(a: Mapping[str, str], b: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """Return the names of the parts that differ."""
    return [name for name in names if a[name] != b.get(name)]
