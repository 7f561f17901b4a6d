"""Per-sample gradients of modules in ``.grad_sample``, by the names of torch. See
``docs/expanded_weights.md``."""

from .call import call_for_per_sample_grads
from .utils import (
    forward_helper,
    set_grad_sample_if_exists,
    standard_kwargs,
    sum_over_all_but_batch_and_last_n,
)
from .weight import ExpandedWeight, implements_per_sample_grads, unpack_expanded_weight_or_tensor

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
