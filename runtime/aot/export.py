"""Export: a program as a functional graph with an explicit signature and the conditions under which it is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from ..seam.levels import Value
from ..session.tensor import unwrap
from .joint import Joint, joint_graph


@dataclass(frozen=True)
class Argument:
    """One leaf of the arguments: a tensor (dtype, shape as traced) or a constant, which must be given again as it was."""

    name: str
    path: str
    dtype: torch.dtype | None
    shape: tuple[int, ...] | None
    constant: Any = None


@dataclass(frozen=True)
class Signature:
    """``inputs``: the leaves of the arguments in order; ``mutated``: names of the inputs that the program changes;
    ``outputs``: names of the results; ``constants``: tensors that the program closes over, by the name of the placeholder or attribute;
    ``guards``: what must hold of the sizes, as Python source (dynamic only)."""

    inputs: tuple[Argument, ...]
    mutated: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[str, ...]
    guards: str


class ExportedGraph:
    """An exported program. Call it, or take :meth:`module`, :attr:`graph_module` and :attr:`signature`."""

    def __init__(self, joint: Joint, signature: Signature, in_spec: pytree.TreeSpec, dynamic: bool) -> None:
        self.joint = joint
        self.graph_module: fx.GraphModule = joint.module
        self.signature = signature
        self.in_spec = in_spec
        self.dynamic = dynamic

    @property
    def graph(self) -> fx.Graph:
        return self.graph_module.graph

    def module(self) -> ExportedGraph:
        """What runs: the exported program itself checks its arguments, restores mutations and rebuilds the results."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise RuntimeError(f"the exported program takes arguments of the structure {self.in_spec}, not {spec}")
        plain = [unwrap(x) if isinstance(x, Value) else x for x in flat]
        self._check(plain)
        with torch.no_grad():
            arguments = [*plain, *(unwrap(t) if isinstance(t, Value) else t.detach() for t in self.joint.closed_over)]
            results = self.graph_module.forward(*arguments)
            written = self.joint.boundary.written
            for i, new in zip(written, results, strict=False):
                self.joint.boundary.inputs[i].write(arguments[i], new, False)
        return pytree.tree_unflatten(list(results[len(written) :]), self.joint.out_spec)

    def _check(self, flat: Sequence[Any]) -> None:
        for x, a in zip(flat, self.signature.inputs, strict=True):
            if a.dtype is None:
                if isinstance(x, torch.Tensor) or x != a.constant:
                    raise RuntimeError(f"argument {a.path} was {a.constant!r} at export and is a constant of the program; got {x!r}")
                continue
            if not isinstance(x, torch.Tensor) or x.dtype is not a.dtype:
                raise RuntimeError(f"argument {a.path} must be a tensor of {a.dtype}; got {getattr(x, 'dtype', type(x))}")
            assert a.shape is not None
            if len(x.shape) != len(a.shape) or not (self.dynamic or x.shape == a.shape):
                hint = "" if self.dynamic else "; export with dynamic=True for a program of other sizes"
                raise RuntimeError(f"argument {a.path} must have shape {list(a.shape)}, as exported; got {list(x.shape)}{hint}")
        abstraction = self.joint.abstraction
        tensors = [x for x in flat if isinstance(x, torch.Tensor)]
        if abstraction is not None and not abstraction.holds(*tensors):
            raise RuntimeError(
                f"arguments of shapes {[list(t.shape) for t in tensors]} break a condition of the exported program: {self.signature.guards}"
            )


def export(
    f: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: bool = False,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., Any]] | None = None,
) -> ExportedGraph:
    """``f`` on ``args`` as a graph without mutation. Sizes are constants, checked at every call; with ``dynamic`` they are free up to
    the conditions that ``f`` itself puts on them (``signature.guards``)."""
    paths, in_spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs or {})))
    flat = [unwrap(x) if isinstance(x, Value) else x for _, x in paths]

    def call(*values: Any) -> Any:
        a, k = pytree.tree_unflatten(list(values), in_spec)
        return f(*a, **k)

    with torch.no_grad():
        joint = joint_graph(call, flat, [False] * len(flat), dynamic=dynamic, decompositions=decompositions, whole=True)
    reshaped = [i for i, x in enumerate(joint.boundary.inputs) if x.reshaped]
    if reshaped:
        raise RuntimeError(f"the program changes sizes or strides of its argument {reshaped[0]} in place; use the op that returns a view")
    names = [n.name for n in joint.module.graph.nodes if n.op == "placeholder"]
    inputs = tuple(_argument(name, path, x) for name, (path, _), x in zip(names, paths, flat, strict=False))
    written = joint.boundary.written
    output = next(n for n in joint.module.graph.nodes if n.op == "output")
    results = list(output.args[0])[len(written) :]
    signature = Signature(
        inputs,
        tuple(names[i] for i in written),
        tuple(r.name if isinstance(r, fx.Node) else repr(r) for r in results),
        (*names[len(flat) :], *(str(n.target) for n in joint.module.graph.nodes if n.op == "get_attr")),
        joint.abstraction.guards() if joint.abstraction is not None else "",
    )
    return ExportedGraph(joint, signature, in_spec, dynamic)


def _argument(name: str, path: pytree.KeyPath, x: object) -> Argument:
    where = pytree.keystr(path[1:])
    if isinstance(x, torch.Tensor):
        return Argument(name, where, x.dtype, tuple(x.shape))
    return Argument(name, where, None, None, x)
