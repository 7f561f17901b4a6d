"""List the ops of torch's dispatcher and their parameters, for which torch has no public names."""

from __future__ import annotations

import torch


def registered_ops() -> frozenset[str]:
    """Return the names of all ops, such as ``aten::add.Tensor``."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def parameters_of(name: str) -> list[tuple[str, str, bool]]:
    """Return ``(name, type, has a default)`` for each parameter of an op, ``namespace::op``."""
    namespace, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op)
    arguments = packet.default._schema.arguments
    return [(each.name, str(each.type), each.has_default_value()) for each in arguments]
