"""Runs custom ops of ``torch.library.custom_op`` by the formulas that their authors registered.

``register_autograd`` and ``register_vmap`` register formulas with torch's own engine. An op that
has such formulas and no record runs here as a :class:`Function` that is made of them. A record
takes precedence, because it also serves forward mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..rules.ops import PROVIDERS, Op
from ..torch_private.dispatcher import OPDEFS, OpOverload
from .function import Function
from .function_node import as_outputs

_FORMULAS = {"vjp": "_backward_fn", "batch": "_vmap_fn"}  # attributes of an op's definition
# of each argument: the number of tensors if it is a list, because a Function takes each tensor
# as an argument
Lengths = tuple[int | None, ...]
# by op and lengths of lists: the Function with the formulas that torch.library registered
_functions: dict[tuple[OpOverload, Lengths], type[Function]] = {}


def _function_for(op: Op, rule: str) -> Callable[..., object] | None:
    """Return a function that runs ``op`` as a Function. None if its author registered no formula
    for ``rule``."""
    definition = OPDEFS.get(op.func._name)
    if definition is None or rule not in _FORMULAS or getattr(definition, _FORMULAS[rule]) is None:
        return None
    arguments = op.func._schema.arguments
    lists = [
        "List" in str(argument.type) and "Tensor" in str(argument.type) for argument in arguments
    ]

    def run(*args: object, **kwargs: object) -> Any:
        every = [op.argument(index, args, kwargs) for index in range(len(op.arg_names))]
        lengths = _lengths_of(every, lists)
        key = op.func, lengths
        if key not in _functions:
            _functions[key] = _function(op, definition, lengths)
        return _functions[key].apply(*_spread(every, lengths))

    return run


def _lengths_of(every: Sequence[Any], lists: Sequence[bool]) -> Lengths:
    """Return the number of tensors of each argument that is a list. ``lists``: which are."""
    lengths: list[int | None] = []
    for argument, is_list in zip(every, lists, strict=True):
        lengths.append(len(argument) if is_list and argument is not None else None)
    return tuple(lengths)


def _spread(every: Sequence[Any], lengths: Lengths) -> list[object]:
    """Return one entry per tensor, from one entry per argument. The entry of a list may be None,
    which stands for None for each of its tensors."""
    entries: list[Any] = []
    for entry, length in zip(every, lengths, strict=True):
        if length is None:
            entries.append(entry)
        elif entry is None:
            entries += [None] * length
        else:
            entries += entry
    return entries


def _gather(flat: Iterable[object], lengths: Lengths) -> tuple[object, ...]:
    """Return one entry per argument, from one entry per tensor."""
    each = iter(flat)
    every: list[object] = []
    for length in lengths:
        if length is None:
            every.append(next(each))
        else:
            every.append([next(each) for _ in range(length)])
    return tuple(every)


def _function(op: Op, definition: Any, lengths: Lengths) -> type[Function]:
    """Return the Function that runs ``op`` with lists of these lengths, and whose methods are the
    registered formulas."""
    arguments = op.func._schema.arguments
    positional = sum(not argument.kwarg_only for argument in arguments)
    names = [argument.name for argument in arguments[positional:]]

    class Registered(Function):
        """The op as a Function of single tensors. The formulas get lists where the op has them."""

        @staticmethod
        def forward(*flat: object) -> object:
            every = _gather(flat, lengths)
            return op.func(*every[:positional], **dict(zip(names, every[positional:], strict=True)))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[object, ...], output: object) -> None:
            # the formulas read it per argument of the op, not per tensor
            ctx.needs_input_grad = _gather(ctx.needs_input_grad, lengths)
            if definition._setup_context_fn is None:
                return
            inputs = _gather(inputs, lengths)
            keywords = {}
            if names:
                # torch passes this argument only to ops that have keyword-only arguments
                keywords["keyword_only_inputs"] = dict(zip(names, inputs[positional:], strict=True))
            definition._setup_context_fn(
                ctx=ctx, inputs=inputs[:positional], output=output, **keywords
            )

        @staticmethod
        def backward(ctx: object, *grads: object) -> Any:
            result = definition._backward_fn(ctx, *grads)
            # the formula returns no gradients of keyword-only arguments
            each = (*as_outputs(result), *[None] * len(names))
            if len(each) != len(lengths):
                return each  # the engine complains of the wrong number
            return tuple(_spread(each, lengths))

        if definition._vmap_fn is not None:

            @staticmethod
            def vmap(info: object, in_dims: tuple[object, ...], *flat: object) -> Any:
                every, in_dims = _gather(flat, lengths), _gather(in_dims, lengths)
                keywords = dict(zip(names, every[positional:], strict=True))
                return definition._vmap_fn(
                    info, in_dims[:positional], *every[:positional], **keywords
                )

    # the name of the node, and of the op in errors
    Registered.__name__ = Registered.__qualname__ = op.base_name
    return Registered


PROVIDERS.append(_function_for)
