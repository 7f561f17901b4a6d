"""Find the functional form of an op that writes: ``aten.add`` for ``aten.add_``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ..seam.call_types import Arguments
from ..torch_private.dispatcher import OpOverload
from .ops import FUNCTIONAL, OUT, Op, op_of

_overloads: dict[object, object] = {}  # answers of `functional_of`, by overload
_FACTORY = frozenset(("dtype", "layout", "device", "pin_memory"))


def functional_of(func: object) -> Any:
    """Return the overload with the arguments of ``func`` that returns what ``func`` writes, and
    writes nothing. None if ATen has none."""
    if func not in _overloads:
        _overloads[func] = _find_functional(func)
    return _overloads[func]


def _find_functional(func: Any) -> object:
    """Search the overloads whose names ATen gives to functional forms."""
    namespace, name = func._schema.name.split("::")
    base = _name_without_writing(name)
    makes = op_of(func).kind is OUT  # a factory with out= has no dtype and device of its own
    wanted = names_and_types(
        argument for argument in func._schema.arguments if not _is_out(argument)
    )
    for candidate in (base, f"{base}_functional", f"{name}_functional"):
        packet = getattr(getattr(torch.ops, namespace), candidate, None)
        if packet is None:
            continue
        for overload_name in packet.overloads():
            overload = getattr(packet, overload_name)
            if _writes_nothing(overload) and _takes(overload, wanted, or_options=makes):
                return overload
    return None


def _name_without_writing(name: str) -> str:
    """Return ``add`` for ``add_``, and ``__and__`` for ``__iand__``."""
    if name.startswith("__i"):
        return f"__{name[3:]}"
    if name.endswith("_") and not name.endswith("__"):
        return name[:-1]
    return name


def _is_out(argument: torch.Argument) -> bool:
    """Return whether an argument is an ``out=``."""
    alias = argument.alias_info
    return argument.kwarg_only and alias is not None and alias.is_write


def _writes_nothing(func: object) -> bool:
    """Return whether ``func`` neither writes nor returns a view."""
    op = op_of(func)
    return op.kind is FUNCTIONAL and not op.fills_argument


def _takes(func: Any, wanted: list[tuple[str, str]], *, or_options: bool) -> bool:
    """Return whether ``func`` has the arguments ``wanted``. ``or_options``: whether it may have
    those of a factory as well."""
    arguments = func._schema.arguments
    if names_and_types(arguments) == wanted:
        return True
    if not or_options:
        return False
    without_options = (argument for argument in arguments if argument.name not in _FACTORY)
    return names_and_types(without_options) == wanted


def factory_options(
    func: OpOverload, functional: OpOverload, target: torch.Tensor
) -> dict[str, Any]:
    """Return the dtype and device with which ``functional``, a factory, makes what ``func`` writes
    to ``target``. Nothing if it is no factory."""
    own = {argument.name for argument in func._schema.arguments}
    extra = {argument.name for argument in functional._schema.arguments} - own
    return {name: getattr(target, name) for name in ("dtype", "device") if name in extra}


def names_and_types(arguments: Iterable[torch.Argument]) -> list[tuple[str, str]]:
    """List name and type of each argument of a schema: overloads may differ in the types alone."""
    return [(argument.name, str(argument.type)) for argument in arguments]


def defaults_of(op: Op, functional: OpOverload, args: Arguments) -> dict[str, object]:
    """Return the defaults that the in-place form has and the functional form lacks. Example:
    ``bernoulli_(p=0.5)``."""
    missing = functional._schema.arguments[len(args) :]
    return {
        argument.name: op.defaults[op.positions[argument.name]]
        for argument in missing
        if not (argument.has_default_value() or argument.kwarg_only)
    }


def drops_nothing(input: torch.Tensor, p: float, train: bool) -> bool:
    """Return whether ``dropout`` returns its argument as it is."""
    if not train or p == 0:
        return True
    # the size may be a symbol, and a comparison with zero would fix it
    return any(type(size) is int and size == 0 for size in input.shape)
