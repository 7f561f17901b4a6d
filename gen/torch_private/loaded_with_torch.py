"""What importing torch brings along."""

from __future__ import annotations

import torch
import torch._ops
import torch._subclasses.fake_tensor
import torch.nn.utils._per_sample_grad
import torch.utils._python_dispatch
import torch.utils._pytree

pytree = torch.utils._pytree
"""Nested containers: take their leaves out, map over them, put them together again."""
OpOverload = torch._ops.OpOverload
"""The class of `torch.ops.aten.mul.Tensor`."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""The class of `torch.ops.aten.mul`."""
TorchDispatchMode = torch.utils._python_dispatch.TorchDispatchMode
"""The class of a context that sees each ATen call inside of it."""
keys_after_snapshot = torch._C._dispatch_keyset_full_after(torch._C.DispatchKey.PythonTLSSnapshot)
"""The dispatch keys after the first one of tensors with a `__torch_dispatch__`."""
without_modes = torch.utils._python_dispatch._disable_current_modes
"""A context in which no mode on calls sees anything."""
unseen_by_classes = torch._C.DisableTorchFunctionSubclass
"""A context in which classes do not see functions of torch. Modes do."""
FakeTensorMode = torch._subclasses.fake_tensor.FakeTensorMode
"""The mode of tensors that have sizes and no elements."""
neg_view = torch._neg_view
"""A tensor marked as the negative of its elements."""
per_sample_grad = torch.nn.utils._per_sample_grad
"""The module with torch's own gradients per sample."""
OPINFO_DATABASE = "torch.testing._internal.common_methods_invocations"
"""The module with torch's database of operators. Its import is slow and warns."""
DECOMPOSITIONS_OF_JVP = "torch._decomp.decompositions_for_jvp"
"""The module that torch imports at its first `jvp`. Its import warns."""


def dispatch_key_of(device_type: str) -> str:
    """Return the dispatch key of a type of device: `PrivateUse1` for those of other packages."""
    return str(torch._C._dispatch_key_for_device(device_type))


def registered_ops() -> frozenset[str]:
    """Return the names of all ops, such as ``aten::add.Tensor``."""
    return frozenset(torch._C._dispatch_get_all_op_names())


def parameters_of(name: str) -> list[tuple[str, str, bool]]:
    """Return ``(name, type, has a default)`` for each parameter of an op, ``namespace::op``."""
    namespace, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op)
    arguments = packet.default._schema.arguments
    return [(each.name, str(each.type), each.has_default_value()) for each in arguments]
