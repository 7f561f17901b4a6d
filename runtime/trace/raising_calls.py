"""Which calls may raise an error for the values of their tensors, so that none is left out of a
graph as unused.

    x[labels]       # for its IndexError, if a label does not fit

Three kinds of calls do: those that take integers as places in another tensor, those that divide
integers, and those that the table names, which refuse numbers outside of a domain. What runs in a
backward pass takes the places of a call that has not raised.
"""

from __future__ import annotations

import torch
from torch import fx

from ..torch_private.dispatcher import OpOverload

__all__ = ["HAS_INTEGERS", "INTEGERS", "may_raise"]

INTEGERS = frozenset((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64))
HAS_INTEGERS = "has_integers"
"""In the ``meta`` of a node: its result is a tensor of integers, whose abstract value is late."""
_DIVISIONS = frozenset(("div", "floor_divide", "remainder", "fmod", "true_divide", "divide"))
_WITHOUT_PLACES = frozenset(
    (
        *("copy", "where", "isin", "searchsorted", "bucketize", "cat", "stack", "equal"),
        *("slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter"),
        *("masked_fill", "masked_scatter", "expand_as", "view_as", "cross", "kron"),
        *("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm", "addr"),
        *("matmul", "outer", "inner", "tensordot", "linear", "convolution"),
    )
)
"""Calls with an integer tensor behind their first argument, which are no places."""
_WITH_DOMAIN = frozenset(
    (
        *("histc", "histogram", "bincount", "quantile", "nanquantile", "binary_cross_entropy"),
        *("bernoulli", "multinomial", "poisson", "normal", "ctc_loss", "_ctc_loss"),
        *("svd", "_linalg_svd", "_linalg_eigh", "linalg_eig", "linalg_eigvals", "_linalg_eigvals"),
        *("linalg_lstsq", "linalg_cholesky", "cholesky", "linalg_inv", "inverse", "linalg_solve"),
        *("cholesky_inverse", "linalg_lu_factor", "linalg_ldl_factor", "linalg_matrix_rank"),
        *("max_unpool2d", "max_unpool3d", "segment_reduce", "_nested_tensor_from_mask"),
    )
)


def may_raise(node: fx.Node) -> bool:
    """Return whether a call of ATen may raise for values of its tensors, other than in a backward
    pass."""
    func = node.target
    if type(func) is not OpOverload or func.namespace != "aten":
        return False
    name: str = func._schema.name.partition("::")[2]
    if name in _WITH_DOMAIN:
        return True
    if name in _DIVISIONS:
        # real numbers divided by zero are infinite or NaN, and nothing is raised
        divisor = node.args[1]
        is_safe = isinstance(divisor, int) and divisor != 0
        return _has_integers(node) and not is_safe
    if torch.Tag.pointwise in func.tags or name in _WITHOUT_PLACES or "backward" in name:
        return False
    # the first argument is the tensor in which the others say places
    return any(_has_integers(argument) for argument in node.args[1:])


def _has_integers(argument: object) -> bool:
    """Return whether an argument or result of a call is a tensor of integers, or a list with
    one."""
    if isinstance(argument, (list, tuple)):
        return any(map(_has_integers, argument))
    if not isinstance(argument, fx.Node):
        return False
    meta = argument.meta
    return HAS_INTEGERS in meta or getattr(meta.get("val"), "dtype", None) in INTEGERS
