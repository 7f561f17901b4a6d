"""Registers, runs and checks the hooks of tensors and nodes.

The order is torch's: hooks of the tensors that a node made, ``retain_grad``, hooks before the node,
the node, hooks after it. A hook is stored on the node that made the tensor, so it stays there when
the tensor is modified in place. ``retain_grad`` moves with the tensor. A leaf stores its hooks
itself, because its ``AccumulateGrad`` lives only as long as a graph needs it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ..errors import called_from
from ..rules.record import extent
from ..seam.levels import Level, Value
from ..seam.user_code import settled, watched
from .conform import conform
from .node_protocol import Hook as Hook
from .node_protocol import Hooks as Hooks
from .node_protocol import TapeNode


def register(hooks: Hooks, hook: Hook) -> RemovableHandle:
    """Add ``hook`` to ``hooks`` and return the handle that removes it. Refuse hooks of
    ``torch.autograd.graph``, which would wait for calls of another engine for ever."""
    if getattr(hook, "__module__", None) == "torch.autograd.graph":
        raise RuntimeError(
            "a hook of torch.autograd.graph counts the calls of torch's own engine, which does not "
            "run the backward pass of this tensor. Use the function of the same name of "
            f"runtime.autograd.graph, or run the program by python -m runtime.{called_from()}"
        )
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def for_users(level: Level, g: Any) -> Any:
    """Return ``g`` as users see it: a value of ``level``, or of an inner level if it is one (a
    batch of cotangents)."""
    if g is None or (isinstance(g, Value) and g._level.number >= level.number):
        return g
    return level.wrap(g)


def for_engine(level: Level, g: object, create_graph: bool) -> Any:
    """Return ``g`` as the engine computes with it: a value of ``level`` if the pass is recorded,
    else the inner tensor."""
    if create_graph:
        return for_users(level, g)
    return level.lowered(g)


def run_tensor_hooks(
    level: Level, node: TapeNode, grads: list[torch.Tensor | None], create_graph: bool
) -> None:
    """Run the hooks of the tensors that ``node`` made, with None where no gradient arrived. Then
    write retained gradients to ``.grad``.

    ``grads``: one per output of the node. What a hook returns replaces its entry.
    ``create_graph``: whether the pass is recorded, so that gradients are values of ``level``.
    """
    if node.tensor_hooks:
        for index, hooks in node.tensor_hooks.items():
            # a copy, because a hook may remove itself
            for hook in list(hooks.values()):
                replacement = watched(hook, for_users(level, grads[index]))
                if replacement is not None:
                    grads[index] = _check_replacement(
                        level, grads[index], replacement, hook, create_graph
                    )
    # after the hooks, because torch retains what they have made of a gradient
    if node.retained:
        for index, ref in node.retained.items():
            variable = ref()
            gradient = grads[index]
            if variable is not None and gradient is not None:
                _retain(level, variable, gradient)


def _retain(level: Level, variable: torch.Tensor, g: torch.Tensor) -> None:
    """Add a cotangent to the ``.grad`` of a tensor that retains it."""
    if variable._grad is not None:
        variable._grad = variable._grad + for_users(level, g)
    # a copy, as in torch: the program may write to `.grad`, and the pass goes on with `g`
    elif g.is_sparse:
        variable._grad = for_users(level, g.clone())
    else:
        variable._grad = for_users(level, g.clone(memory_format=torch.contiguous_format))


def run_prehooks(
    level: Level, node: TapeNode, grads: list[torch.Tensor | None], create_graph: bool
) -> list[torch.Tensor | None]:
    """Run the hooks before ``node``. Each gets the cotangents ``grads`` of its outputs as a tuple,
    and may return another tuple of as many. Return the cotangents."""
    for hook in list((node.pre_hooks or {}).values()):
        replacements = watched(hook, tuple(for_users(level, grad) for grad in grads))
        if replacements is not None:
            grads = _check_replacements(level, grads, replacements, hook, create_graph)
    return grads


def run_posthooks(
    level: Level,
    node: TapeNode,
    outs: Sequence[torch.Tensor | None],
    grads: Sequence[torch.Tensor | None],
    create_graph: bool,
) -> Sequence[torch.Tensor | None]:
    """Run the hooks after ``node``. Each gets the cotangents of its inputs, in their sizes and
    dtypes, and of its outputs. It may replace those of the inputs. Return these.

    ``outs``: what the node has returned, one per edge. ``grads``: what it got, one per output.
    """
    outs = _conform(node, outs)
    # an argument that needs no gradient has no edge, and is a None for the hooks, as in torch
    inputs = node.inputs()
    cotangents: Sequence[torch.Tensor | None] = [
        None if index is None else outs[index] for index in inputs
    ]
    arrived = tuple(for_users(level, grad) for grad in grads)
    for hook in list((node.post_hooks or {}).values()):
        shown = tuple(for_users(level, cotangent) for cotangent in cotangents)
        replacements = watched(hook, shown, arrived)
        if replacements is not None:
            cotangents = _check_replacements(level, cotangents, replacements, hook, create_graph)
    for at, cotangent in zip(inputs, cotangents, strict=True):
        if at is not None:
            outs[at] = cotangent
    return outs


def _conform(node: TapeNode, outs: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """List the results of ``node``, in the sizes and dtypes of the inputs."""
    results = list(outs)
    for position, gradient in enumerate(outs):
        if gradient is not None and node.edges[position] is not None:
            following, index = node.edges[position]
            results[position] = conform(gradient, following.metas[index], node, position)
    return results


def run_post_accumulate(leaf: object, hooks: Mapping[int, Hook] | None) -> None:
    """Run ``hooks``, after the ``.grad`` of ``leaf`` has changed."""
    for hook in list((hooks or {}).values()):
        if watched(hook, leaf) is not None:
            raise settled(RuntimeError("Tensor post accumulate grad hooks should return None."))


def _check_replacements(
    level: Level,
    old: Sequence[torch.Tensor | None],
    replacements: object,
    hook: Hook,
    create_graph: bool,
) -> list[torch.Tensor | None]:
    """Return what a hook of a node returned in place of the gradients ``old``, each checked. Raise
    unless it is a tuple of the same length."""
    if not isinstance(replacements, tuple):
        raise settled(
            TypeError(f"expected tuple, but hook returned '{type(replacements).__name__}'")
        )
    if len(replacements) != len(old):
        raise settled(
            RuntimeError(
                f"hook '{_name(hook)}' has returned an incorrect number of values "
                f"(got {len(replacements)}, but expected {len(old)})"
            )
        )
    return [
        _check_replacement(level, gradient, replacement, hook, create_graph)
        for gradient, replacement in zip(old, replacements, strict=True)
    ]


def _check_replacement(
    level: Level, old: torch.Tensor | None, replacement: object, hook: Hook, create_graph: bool
) -> Any:
    """Return ``replacement``, which ``hook`` returned in place of the gradient ``old``, as the
    engine computes with it. Raise unless it is None or a tensor of the same type and size."""
    if replacement is None:
        return None
    if not isinstance(replacement, torch.Tensor):
        raise settled(
            TypeError(f"expected Variable, but hook returned '{type(replacement).__name__}'")
        )
    if old is None:
        raise settled(RuntimeError("can't replace a None gradient with a non-None value"))
    if replacement.dtype is not old.dtype or replacement.device.type != old.device.type:
        was, got = map(_type, (old, replacement))
        raise settled(
            RuntimeError(
                f"hook '{_name(hook)}' has changed the type of value (was {was} got {got})"
            )
        )
    if extent(replacement) != extent(old):
        raise settled(RuntimeError(f"hook '{_name(hook)}' has changed the size of value"))
    return for_engine(level, replacement, create_graph)


def _name(hook: Hook) -> str:
    return getattr(hook, "__name__", "<unknown>")


def _type(tensor: torch.Tensor) -> str:
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).type()


def retain(variable: object, node: TapeNode, index: int) -> None:
    """Make a backward pass write the gradient of ``variable``, output ``index`` of ``node``,
    to its ``.grad``."""
    if node.retained is None:
        node.retained = {}
    # a node refers to no value of its level, see `tape/nodes.py`
    node.retained[index] = weakref.ref(variable)


def follow(variable: Any, before: Any) -> None:
    """Move ``retain_grad`` of ``variable`` from the node of the edge ``before`` to its new node.
    Other hooks stay."""
    if before is not None and before[0].retained:
        before[0].retained.pop(before[1], None)
    retain(variable, *variable._edge)
