"""Run a program at a functionalize level, and do its writes at the end: ``functionalize``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from itertools import product
from typing import Any

import torch

from ..seam.escapes import living
from ..seam.memory_gate import memory_gate
from ..seam.transforms_of_torch import refuse_value_of_torch
from ..torch_private.pytrees import pytree
from ..trace.error_lines import naming_line
from ..trace.provenance import happened_at
from .functional_level import FunctionalLevel
from .overlap import share_elements
from .stores import Store
from .writes import WrittenBack


def _run(
    function: Callable[..., Sequence[object]],
    inputs: Sequence[torch.Tensor | float],
    remove: str = "mutations",
) -> tuple[list[Any], list[tuple[int, WrittenBack]], list[tuple[torch.Tensor, WrittenBack]]]:
    """Run ``function`` on functional values of ``inputs``.

    Return three things: its results, at the next outer level; the inputs that were written
    to, each as its number and what was written; the closed-over tensors that were written to, each
    with what was written.
    """
    for x in inputs:
        refuse_value_of_torch(x)
    level = FunctionalLevel(remove)
    try:
        values = {
            index: level.wrap(x) for index, x in enumerate(inputs) if isinstance(x, torch.Tensor)
        }
        # `set_` gives a value another store, and the caller's tensor has the first one
        stores = {index: value._store for index, value in values.items()}
        level.turns = {id(value): [] for value in values.values()}
        with memory_gate() as gate, level.mode:
            outputs = living(function(*(values.get(index, x) for index, x in enumerate(inputs))))
        # what the program has returned, and then what it has written
        results = list(map(level.lowered, outputs))
        level.settle((*stores.values(), *(store for _, store in level.held)))
        changed = _list_changed(level, values, stores)
        _refuse_shared(inputs, changed, stores)
        outside = _written_outside(level)
        for tensor, _ in outside:
            gate.refuse_written(tensor)
    finally:
        level.close()
    return results, changed, outside


def _list_changed(
    level: FunctionalLevel, values: Mapping[int, object], stores: Mapping[int, Store]
) -> list[tuple[int, WrittenBack]]:
    """List the inputs that were written to or turned, each with what the caller's tensor gets.

    ``values``, ``stores``: by the number of an input, what the program saw, and its first store.
    """
    changed: list[tuple[int, WrittenBack]] = []
    for index, value in values.items():
        turns = level.turns[id(value)]
        if turns or stores[index].memory.generation:
            changed.append((index, level.written_back(stores[index], turns)))
    return changed


def _written_outside(level: FunctionalLevel) -> list[tuple[torch.Tensor, WrittenBack]]:
    """List the closed-over tensors that the program has written to, each with what was written."""
    return [
        (tensor, level.written_back(store))
        for tensor, store in level.held
        if store.memory.generation
    ]


def _refuse_shared(
    inputs: Sequence[Any],
    changed: Sequence[tuple[int, WrittenBack]],
    stores: Mapping[int, Store],
) -> None:
    """Refuse a change of an input if another input shows an element of its memory: that one has
    not followed the change."""
    # the level takes inputs one by one, and does not know that two have one memory
    for (written, _), (index, other) in product(changed, enumerate(inputs)):
        if index == written or not isinstance(other, torch.Tensor):
            continue
        if share_elements(inputs[written], other):
            raise RuntimeError(
                f"functionalize: the program writes to argument {written}, which shares memory "
                f"with argument {index}. Pass one of them, or a clone."
                f"{happened_at(stores[written].memory.written_at)}"
            )


def functionalize(func: Callable[..., object], *, remove: str = "mutations") -> Callable[..., Any]:
    """Return ``func`` without writes inside, as ``torch.func.functionalize``.

    >>> functionalize(lambda x: x.clone().add_(1))(torch.zeros(2))
    tensor([1., 1.])

    Results and gradients are those of ``func``. Each write becomes a functional op, whose result is
    put into the base. With ``remove="mutations_and_views"`` views become copies, too. An argument
    that ``func`` writes to gets its final value at the end, by one ``copy_``. Then the calls follow
    that have changed its geometry, such as ``t_()``. ``RuntimeError`` for another ``remove``.
    """
    if remove not in ("mutations", "mutations_and_views"):
        raise RuntimeError(
            "functionalize(f, remove='mutations'): "
            f"received invalid argument for remove={remove}. "
            "'mutations' leaves no write in the function, 'mutations_and_views' no view either."
        )

    @wraps(func)
    def functional(*args: object, **kwargs: object) -> object:
        """Run ``func`` without writes, and do them at the end."""
        flat, spec = pytree.tree_flatten((args, kwargs))
        out_spec: Any = None

        def run(*values: object) -> list[object]:
            """Call ``func`` with these leaves, and return the flat results."""
            nonlocal out_spec
            own_args, own_kwargs = pytree.tree_unflatten(list(values), spec)
            outputs, out_spec = pytree.tree_flatten(func(*own_args, **own_kwargs))
            return outputs

        with naming_line():
            results, changed, outside = _run(run, flat, remove)
            # after the level is closed, so that an outer transform sees these writes
            for index, final in changed:
                final.into(flat[index])
            for tensor, final in outside:
                final.into(tensor)
        return pytree.tree_unflatten(results, out_spec)

    return functional
