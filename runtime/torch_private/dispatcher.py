"""Names of torch's dispatcher: dispatch keys, operators, kernels.

A call of an operator tries the dispatch keys of its tensors and of its thread one after the other,
such as autocast, autograd, CPU. The kernel for a key handles the call, or passes it on.
"""

from __future__ import annotations

import torch
import torch._decomp
import torch._dispatch.python
import torch._higher_order_ops.utils
import torch._library.custom_ops
import torch._ops
import torch._prims_common

DispatchKey = torch._C.DispatchKey
"""A dispatch key: what kernels of an operator are registered for."""
DispatchKeySet = torch._C.DispatchKeySet
"""A set of dispatch keys."""
key_named = torch._C._dispatch_key_parse
"""The dispatch key of a name."""
keys_of = torch._C._dispatch_keys
"""The dispatch keys of a tensor."""
keys_after = torch._C._dispatch_keyset_full_after
"""All dispatch keys that come after one."""
is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
"""Whether calls of this thread skip a dispatch key."""
set_excluded = torch._C._dispatch_tls_set_dispatch_key_excluded
"""Let the calls of this thread skip a dispatch key, or no longer skip it."""
included_keys = torch._C._dispatch_tls_local_include_set
"""The dispatch keys that all calls of this thread have, whatever their tensors are."""
excluded_keys = torch._C._dispatch_tls_local_exclude_set
"""The dispatch keys that all calls of this thread skip."""
without_keys = torch._C._ExcludeDispatchKeyGuard
"""A context in which calls skip a set of dispatch keys."""
with_keys = torch._C._ForceDispatchKeyGuard
"""A context with two other sets of keys, of all calls and to skip, such as another thread's."""
below_autograd = torch._C._AutoDispatchBelowAutograd
"""A context in which calls skip all of autograd."""
without_python_kernels = torch._C._DisablePythonDispatcher
"""A context in which the kernels in Python are not asked."""
with_python_kernels = torch._dispatch.python.enable_python_dispatcher
"""A context in which the kernels in Python come first."""
has_kernel = torch._C._dispatch_has_kernel
"""Whether an operator is registered at all."""
has_kernel_for_key = torch._C._dispatch_has_kernel_for_dispatch_key
"""Whether an operator has a kernel of its own for a dispatch key."""
OpOverload = torch._ops.OpOverload
"""The class of `torch.ops.aten.mul.Tensor`."""
OpOverloadPacket = torch._ops.OpOverloadPacket
"""The class of `torch.ops.aten.mul`."""
OperatorBase = torch._ops.OperatorBase
"""The class of whatever can be called as an operator."""
HigherOrderOperator = torch._ops.HigherOrderOperator
"""The class of operators that are given functions, such as `cond`."""
higher_order_operators = torch._ops._higher_order_ops
"""All operators that are given functions, by name."""
FILE_OF_CALLS = torch._ops.__file__
"""The file of the code that calls an operator. Stacks of programs are shown without it."""
higher_order_utils = torch._higher_order_ops.utils
"""The module with the function through which `torch.cond` and its like call their operator."""
OPDEFS = torch._library.custom_ops.OPDEFS
"""What users have registered with `torch.library.custom_op`, by name."""
decomposition_table = torch._decomp.decomposition_table
"""For each operator that torch can write with simpler ones, the function that does."""
elementwise_dtypes = torch._prims_common.elementwise_dtypes
"""The dtypes that an elementwise operator computes with and returns."""
PromotionKind = torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND
"""The rules by which elementwise operators choose their dtypes."""
REFERENCES = "torch._refs"
"""Where the decompositions are that are written with prims."""
MODULES_OF_CALLS = (
    "torch._ops",
    "torch.utils._python_dispatch",
    "torch._compile",
    "torch._dynamo.eval_frame",
)
"""The modules whose frames are between a call and what it leads to."""
