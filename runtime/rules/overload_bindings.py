"""Find other forms of an ATen overload: its functional form, its parts, torch's Python binding.

Example: the functional form of ``aten.add_.Tensor`` is ``aten.add.Tensor``, and the binding of that
is a function of ``torch``, whose argument parser takes half the time of the operator's.
"""

from __future__ import annotations

from collections.abc import Callable

from ..torch_private.dispatcher import DispatchKey, OpOverload, has_kernel_for_key
from ..torch_private.native_functions import functions_of_nn, functions_of_torch
from ..torch_private.native_tensors import TensorBase
from .record import overload


def is_composite(name: str) -> bool:
    """Return whether ATen composes the op of others.

    An op that also has a kernel for the CPU is not composite: ``silu_backward`` has one, and the
    composition, which ATen uses on other devices, rounds in another way.
    """
    has = has_kernel_for_key
    return has(name, DispatchKey.CompositeImplicitAutograd) and not has(name, DispatchKey.CPU)


# overloads whose binding never means another one of their op, whatever the arguments are
_BOUND = frozenset(
    (
        "add.Tensor",
        "sub.Tensor",
        "mul.Tensor",
        "div.Tensor",
        "mm.default",
        "bmm.default",
        "addmm.default",
        "view.default",
        "transpose.int",  # another overload, of torch 2.12, takes names of dimensions
    )
)


def _takes_tensors(func: OpOverload) -> bool:
    """Return whether an overload takes tensors, and none of them by ``out=``."""
    arguments = func._schema.arguments
    if any(argument.is_out for argument in arguments):
        return False
    return any("Tensor" in str(argument.type) for argument in arguments)


def binding_of(func: OpOverload) -> Callable[..., object] | None:
    """Return torch's own Python binding of this overload, or None. Its argument parser takes half
    the time of the operator's.

    A call of the binding must mean this overload. That is certain if no other overload takes
    tensors, and for the overloads in ``_BOUND``, which their arguments single out. Apart from
    ``_BOUND``, an op with default arguments has no binding, since a binding may have other defaults
    (``mse_loss`` of the operator does not reduce).
    """
    schema = func._schema
    if func.namespace != "aten" or schema.is_mutable or not _returns_plain_tensors(func):
        return None
    name = schema.name.removeprefix("aten::")
    if f"{name}.{func._overloadname}" not in _BOUND and not _is_alone(func):
        return None
    for place in (functions_of_torch, functions_of_nn, TensorBase):
        if hasattr(place, name):
            return getattr(place, name)  # type: ignore[no-any-return]
    return None


def _returns_plain_tensors(func: OpOverload) -> bool:
    """Return whether a binding returns the tensors as the overload does. Of several with names it
    would return a named tuple."""
    returns = func._schema.returns
    if any(str(result.type) != "Tensor" for result in returns):
        return False
    return len(returns) < 2 or not returns[0].name


def _is_alone(func: OpOverload) -> bool:
    """Return whether no other overload takes tensors, and no argument has a default."""
    if any(argument.has_default_value() for argument in func._schema.arguments):
        return False
    packet = func.overloadpacket
    others = (getattr(packet, name) for name in packet.overloads() if name != func._overloadname)
    return not any(map(_takes_tensors, others))


def functional_overload(func: OpOverload, base: str) -> OpOverload | None:
    """Return the functional form of an in-place overload (``add_.Tensor`` -> ``add.Tensor``,
    ``__iand__`` -> ``__and__``). None if there is none.

    ``base``: the name of the op without its overload, ``add_``.
    """
    if base.startswith("__i") and base.endswith("__"):
        name = "__" + base[3:]
    elif base.endswith("_") and not base.endswith("__"):
        name = base[:-1]
    else:
        return None
    if name == "conj_physical":  # composed of others, and returns a real argument itself
        name = "_conj_physical"
    which = func._overloadname
    n_arguments = len(func._schema.arguments)
    # pow_.Scalar belongs to pow.Tensor_Scalar, ldexp_ to ldexp.Tensor, transpose_ to transpose.int,
    # bernoulli_.float to bernoulli.p
    for suffix in (
        f".{which}",
        ".p",
        "",
        f".Tensor_{which}",
        ".Tensor",
        ".int",
        "_functional",
    ):
        try:
            candidate = overload(f"{func.namespace}::{name}{suffix}")
        except ValueError:  # this torch has no such overload
            continue
        arguments = candidate._schema.arguments
        # pow.Scalar has its tensor second, and TorchScript's pow.int and ldexp.default take numbers
        # alone; bernoulli.default has no p
        if "Tensor" in str(arguments[0].type) and len(arguments) >= n_arguments:
            return candidate
    return None
