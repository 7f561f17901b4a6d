"""Call compiled graphs with tensors that consist of others: take them apart before the graph, and
put them together after it.

forward(TwoTensor(a, b))      # the graph is called with a and b
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from ...seam import factories
from ...session.tensor import unwrap
from ...torch_private.mode_stacks import unseen_by_handlers
from ..capture.aliasing import saved_of, saved_of_results
from ..capture.joint import Joint
from ..capture.subclass_parts import (
    Layout,
    Layouts,
    count,
    flattened,
    handles_functions,
    key_of,
    layout_of,
    numbers,
    rebuilt,
)
from ..compilers.boxed import Boxed

Part = tuple[torch.Size, torch.dtype, torch.device]


def of_whole_tensors(forward: Boxed, layouts: Layouts) -> Boxed:
    """Return ``forward`` as a function of the primals of a program.

    It returns the results of the program, then what is saved, which is plain.
    """
    n_parts = count(layouts.results)

    def boxed(primals: list[object]) -> list[object]:
        """Call ``forward`` with the parts of ``primals``, a list that is emptied."""
        plain: list[object] = []
        for tensor in primals:
            plain += flattened(tensor)
        primals.clear()
        results = forward(plain)
        return [*rebuilt(layouts.results, results[:n_parts]), *results[n_parts:]]

    return boxed


def without_handlers(forward: Boxed, primals: Sequence[object]) -> Boxed:
    """Return ``forward`` for primals like these, whose classes may handle torch's functions.

    What a class does to the calls of the program is in the graph. It is not to do the same to the
    calls of the graph. So this gets an alias of the tensor, which has no such class.
    """
    places = [at for at, primal in enumerate(primals) if handles_functions(primal)]
    if not places:
        return forward

    def boxed(given: list[Any]) -> Any:
        """Call ``forward``. The list ``given`` is emptied."""
        with unseen_by_handlers():
            for at in places:
                given[at] = given[at].as_subclass(torch.Tensor)
        return forward(given)

    # a compiled program asks its function what that writes itself
    for name in ("placed", "writes"):
        setattr(boxed, name, getattr(forward, name, {}))
    return boxed


def backward_of_whole_tensors(backward: Boxed, layouts: Layouts, n_saved: int) -> Boxed:
    """Return ``backward`` as a function of what is saved and of the cotangents of a program.

    It returns the gradients.
    """

    def boxed(values: list[Any]) -> list[torch.Tensor | None]:
        """Call ``backward`` with the parts of ``values``, a list that is emptied."""
        plain, cotangents = values[:n_saved], values[n_saved:]
        values.clear()
        for tensor, layout in zip(cotangents, layouts.tangents, strict=True):
            parts = flattened(_as_traced(tensor, layout))
            # the trace takes contiguous cotangents
            plain += [part if part.is_contiguous() else part.contiguous() for part in parts]
        # so that the graph can free each part after its last use
        del cotangents
        return rebuilt(layouts.gradients, backward(plain))

    return boxed


def parts_of(tensor: torch.Tensor) -> list[Part]:
    """Return what :func:`zeros_of` must know of a tensor that has the layout."""
    return [(part.shape, part.dtype, part.device) for part in flattened(tensor)]


def zeros_of(layout: Layout, parts: Sequence[Part]) -> torch.Tensor:
    """Return zeros, for a cotangent that is missing.

    ``torch.zeros_like`` computes them, as the class decides what its zeros consist of.
    """
    example: Any = layout.rebuilt(
        iter([factories.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in parts])
    )
    return torch.zeros_like(example)


def _as_traced(tensor: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """Return cotangent ``tensor`` as a tensor of the class and context that the trace had."""
    if _has_layout(tensor, layout):
        return tensor
    coerced = _coerce(tensor, layout)
    if coerced is not None and _has_layout(coerced, layout):
        return coerced
    raise RuntimeError(
        "During the backward, we encountered a tensor subclass where we guessed its metadata "
        f"incorrectly. The graph takes a cotangent that is a {layout or 'plain tensor'}, "
        f"as the result is, and got a {layout_of(tensor) or 'plain tensor'}. "
        "Convert the result before it is mixed with tensors of another kind, "
        "or give the class __coerce_same_metadata_as_tangent__."
    )


def _has_layout(tensor: torch.Tensor, layout: Layout | None) -> bool:
    return key_of(layout) == key_of(layout_of(tensor))


def _coerce(tensor: torch.Tensor, layout: Layout | None) -> torch.Tensor | None:
    """Convert ``tensor`` to ``layout`` by its class, as torch does; None if the class cannot."""
    coerce: Any = getattr(tensor, "__coerce_same_metadata_as_tangent__", None)
    if coerce is None:
        return None
    kind: type[torch.Tensor] = torch.Tensor
    context = None
    if layout is not None:
        kind, context = layout.kind, layout.context.value
    if type(tensor) is kind:
        return coerce(context)  # type: ignore[no-any-return]
    return coerce(context, kind)  # type: ignore[no-any-return]


def _numbers_of_composed(layouts: Sequence[Layout | None]) -> list[int]:
    """Return the numbers of the tensors that consist of others."""
    return [index for index, layout in enumerate(layouts) if layout is not None]


class Watch:
    """Find the composed tensors of a call that have parts which the program saves.

    A write to one of them advances the version of the whole tensor, not those of its parts.

    ``primals`` and ``results``: their numbers.
    """

    def __init__(self, joint: Joint, forward: fx.Graph) -> None:
        assert joint.layouts is not None
        written, n = joint.boundary.written, joint.n_forward
        # an argument that the program writes to has another value when the call is over
        composed = _numbers_of_composed(joint.layouts.primals)
        unwritten = [primal for primal in composed if primal not in written]
        self.primals = tuple(
            primal for primal in unwritten if saved_of(forward, n, joint.in_graph([primal]))
        )
        results = joint.layouts.results
        parts: list[list[int]] = [[] for _ in results]
        for number in _numbers_of_composed(results):
            parts[number] = numbers(results, [number])
        self.results = tuple(
            index for index in saved_of_results(forward, parts, n) if index >= len(written)
        )

    def of(self, leaves: Sequence[Any], results: Sequence[Any]) -> list[tuple[torch.Tensor, int]]:
        """Return these tensors of one call, with their versions."""
        tensors = [unwrap(leaves[index]) for index in self.primals]
        tensors += [unwrap(results[index]) for index in self.results]
        return [(tensor, tensor._version) for tensor in tensors if not tensor.is_inference()]
