"""Register ops that return a Python number or bool. For a batch they return the answer if all
elements agree, and raise otherwise."""

from __future__ import annotations

import torch

from ...errors import BatchingError, called_from
from ...seam.call_types import Arguments, BatchFlags, Kernel, Keywords
from ..derive.batch_rules import BatchRule, exact, expand
from ..record import register

ITEM = (
    "vmap: It looks like you're calling .item() on a Tensor. The elements of the batch have "
    "different values there: keep it a tensor, or take the number before vmap."
)
CONTROL_FLOW = (
    "vmap: It looks like you're attempting to use a Tensor in some data-dependent control flow. "
    "The elements of the batch may need different branches: use torch.where or a mask."
)


def agreed_element(batch: torch.Tensor, size: int, refusal: str) -> torch.Tensor:
    """Return the first element of a physical ``batch``. Raise if another one has a different
    number. 0.0 and -0.0 differ, and NaN differs from NaN."""
    numbers = batch.reshape(size)
    # an empty batch has no element that could say a number
    if size == 0 or not _all_same(numbers):
        raise BatchingError(f"{refusal}{called_from()}")
    return numbers[0]


def _all_same(numbers: torch.Tensor) -> bool:
    """Return whether all numbers are equal, signs of zeros included. NaN equals nothing."""
    parts = numbers
    if numbers.is_complex():
        parts = torch.view_as_real(numbers.resolve_conj())
    if not (parts == parts[0]).all():
        return False
    # 0.0 and -0.0 are equal, and a program can distinguish them
    if not parts.is_floating_point():
        return True
    return bool((parts.signbit() == parts[0].signbit()).all())


@exact
def _number(func: Kernel, size: int, batched: object, args: Arguments, kwargs: object) -> object:
    # `item()` of the element would say that the program reads the number, and no function of torch
    return func(agreed_element(args[0], size, f"{ITEM} The op is {func}"))


@exact
def _equal(func: object, size: int, batched: BatchFlags, args: Arguments, kwargs: object) -> bool:
    """Return ``torch.equal`` of each element, if all agree. ATen's own checks of values call it
    (``cov``, ``istft``)."""
    shapes = [
        argument.shape[1:] if flag else argument.shape
        for argument, flag in zip(args, batched, strict=True)
    ]
    if shapes[0] != shapes[1]:
        return False
    x, y = (expand(argument, flag, size) for argument, flag in zip(args, batched, strict=True))
    # one answer for all elements is an answer; a number of Python cannot be a batch
    same = (x == y).reshape(size, -1).all(1)
    for answer in (True, False):
        if torch.equal(same, torch.full_like(same, answer)):
            return answer
    raise BatchingError(
        "vmap: torch.equal answers differently for the elements of the batch; "
        "use (a == b).all() instead."
    )


def refused(why: str) -> BatchRule:
    """Return a batch rule that raises, for ops that cannot answer for a batch. ``why``: a part of
    the message."""

    def rule(func: object, size: int, batched: object, args: object, kwargs: object) -> object:
        raise BatchingError(f"vmap: {why} The op is {func}{called_from()}")

    rule.refuses = True  # type: ignore[attr-defined]  # no rule to be tested
    return exact(rule)


@exact
def _assertion(func: Kernel, size: int, batched: object, args: Arguments, kwargs: Keywords) -> None:
    """Assert on a batch what is asserted of every element."""
    func(args[0].reshape(-1).all(), *args[1:], **kwargs)


register("_assert_async _assert_async.msg", batch=_assertion, nondiff=True, family="reading")
register("_local_scalar_dense", batch=_number, nondiff=True, family="reading")
register("equal", batch=_equal, nondiff=True, family="reading")
register(
    "allclose",
    batch=refused(
        "torch.allclose answers for each element of a batch; use torch.isclose(a, b).all() instead."
    ),
    nondiff=True,
    family="reading",
)
register(
    "is_coalesced",
    batch=refused(
        "one sparse tensor holds the whole batch, "
        "so whether one element is coalesced is not known; call coalesce()."
    ),
    nondiff=True,
    family="reading",
)
register(
    "nonzero",
    batch=refused(
        "aten::nonzero returns a result whose shape depends on the data, "
        "which differs between the elements of a batch. Use the mask itself, as in "
        "torch.where(mask, x, 0)."
    ),
    nondiff=True,
    family="reading",
)
