"""Compute per-sample gradients of modules in ``.grad_sample``, by the names of torch.

``call`` has ``call_for_per_sample_grads``, ``weight`` the parameter that stands for one and the
helpers of users' rules. The package imports ``per_sample``. Start with ``call.py``. See
``docs/expanded_weights.md``.
"""

from .call import call_for_per_sample_grads
from .weight import (
    ExpandedWeight,
    forward_helper,
    implements_per_sample_grads,
    set_grad_sample_if_exists,
    standard_kwargs,
    sum_over_all_but_batch_and_last_n,
    unpack_expanded_weight_or_tensor,
)

__all__ = [
    "ExpandedWeight",
    "call_for_per_sample_grads",
    "forward_helper",
    "implements_per_sample_grads",
    "set_grad_sample_if_exists",
    "standard_kwargs",
    "sum_over_all_but_batch_and_last_n",
    "unpack_expanded_weight_or_tensor",
]
