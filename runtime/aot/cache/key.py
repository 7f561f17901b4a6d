"""Compute the key of an entry: everything that decides where a joint graph is cut, as text.

    parts_of_key(partition, joint, options, False)      # {"graph": "5c0a…", "boundary": …}

A program has no key if a part of it has no text, such as a function of the user.
"""

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

import numpy
import scipy
import torch
from torch import fx

from ...torch_private.dispatcher import HigherOrderOperator, OpOverload
from ...torch_private.global_settings import is_autocast_enabled
from ...trace.regions import region_of
from ...trace.symbols import SYMBOLIC
from ...trace.trace_inputs import LITERAL_KINDS
from ..capture.global_state import surroundings
from ..capture.joint import Joint
from ..capture.tangents import marked
from ..partition.partitions import Partition, default_partition, min_cut_rematerialization_partition
from ..partition.recompute import Again, again, flops, hint, policy_of

_PLAIN = (*LITERAL_KINDS, complex)
_OPERATORS = (operator, math, builtins, torch)


class NoKey(Exception):
    """Say why a program has no key."""


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
    """Return a digest of the names and contents of all Python files under ``root``."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def parts_of_key(
    partition: Partition, joint: Joint, options: Mapping[str, object], dynamic: bool
) -> dict[str, str]:
    """Return the parts of the key by name, ``graph`` first.

    ``options``: the keywords of the call of ``partition``. ``NoKey`` if there is no key.
    """
    # The partition comes first, because it takes the least time and may have no key.
    name = _describe_partition(partition, options)
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
    """Return the name of the entry.

    It begins with the graph, because a miss is explained by the entries for the same graph.
    """
    return f"{parts['graph'][:40]}-{_digest(sorted(parts.items()))[:40]}"


def _digest(text: object) -> str:
    """Return the SHA-256 of the text of an object."""
    return hashlib.sha256(repr(text).encode("utf-8", "backslashreplace")).hexdigest()


def _describe_partition(partition: Partition, options: Mapping[str, object]) -> str:
    """Return a text for the partition with its options. ``NoKey`` if it has none."""
    options = dict(options)
    while isinstance(partition, functools.partial):
        if partition.args:
            raise NoKey("a partition with positional arguments")
        # A keyword of the call replaces the same keyword of the partial, as Python does it.
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


def _graph(module: fx.GraphModule) -> Iterator[object] | tuple[object, ...]:
    """Return all nodes of a graph, with the facts that a partition asks for."""
    numbers: dict[fx.Node, int] = {}
    # Regions are numbered across the process, so each gets a number within this graph.
    regions: dict[int, int] = {}
    nodes = []
    tangents = set(marked(module.graph))
    for node in module.graph.nodes:
        region = region_of(node)
        facts: list[object] = [_value(node.meta.get("val")), node in tangents]
        if region is not None:
            facts.append((regions.setdefault(region, len(regions)), str(policy_of(node))))
        if node.op == "call_function":
            why = again(node)
            facts += [why.name, flops(node) if why is Again.HIGH else 0]
        nodes.append(
            (
                node.op,
                _target(node, module),
                _literal(node.args, numbers),
                _literal(node.kwargs, numbers),
                *facts,
            )
        )
        numbers[node] = len(numbers)
    return tuple(nodes)


def _target(node: fx.Node, module: fx.GraphModule) -> object:
    """Name the function or attribute of a node. Raise ``NoKey`` for a function that is no op."""
    if node.op == "call_function":
        func = node.target
        if isinstance(func, OpOverload):
            return str(func)
        # A name identifies a function only if the owner has the function under it.
        name = getattr(func, "__name__", "")
        if any(getattr(owner, name, None) is func for owner in _OPERATORS):
            return name
        if isinstance(func, HigherOrderOperator):
            return f"higher order {func.name()}"
        raise NoKey(f"a call of {name or type(func).__name__}, which is no op")
    if node.op == "get_attr":
        attribute = operator.attrgetter(str(node.target))(module)
        if isinstance(attribute, fx.GraphModule):
            return _graph(attribute)
        # An entry holds none of its elements, so they are no part of the key.
        if isinstance(attribute, torch.Tensor):
            return _value(attribute)
        return type(attribute).__qualname__
    # The names of placeholders do not decide where a graph is cut.
    return ""


def _value(value: object) -> object:
    """Return the facts of a value of the trace, without its elements."""
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
    """Return a number as text. For a symbol, return its expression and its value in the trace."""
    if not isinstance(size, SYMBOLIC):
        return repr(size)
    # A cut weighs bytes by the values that sizes had in the trace, so they are part of the key.
    hinted = hint(size) if size.node.has_hint() else None
    return str(size.node.expr), hinted


def _literal(argument: object, numbers: Mapping[fx.Node, int]) -> object:
    """Return an argument of a call, or an option, with its type. ``NoKey`` if it has no text."""
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
    """Return the texts of several arguments, see :func:`_literal`."""
    return tuple(_literal(argument, numbers) for argument in each)


def _record(value: object) -> object:
    """Return a record of the boundary, with all records in it."""
    if is_dataclass(value):
        named = ((field.name, getattr(value, field.name)) for field in fields(value))
        return type(value).__name__, tuple((name, _record(part)) for name, part in named)
    if isinstance(value, (list, tuple)):
        return tuple(map(_record, value))
    if isinstance(value, Mapping):
        return tuple((key, _record(part)) for key, part in value.items())
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, OpOverload):
        return str(value)
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    if isinstance(value, SYMBOLIC):
        return _size(value)
    # A constant that the program returns belongs to this process, and does not decide the cut.
    return type(value).__qualname__


def differing(a: Mapping[str, str], b: Mapping[str, object], names: Sequence[str]) -> list[str]:
    """Return those of ``names`` whose parts of two keys differ.

    ``a``: the key of this program. ``b``: that of an entry, in which anything may stand.
    """
    return [name for name in names if a[name] != b.get(name)]
