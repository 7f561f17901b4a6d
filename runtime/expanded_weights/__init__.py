"""Per-sample gradients of a batched loss, computed by one rule per kind of layer. See ``docs/expanded_weights.md``."""

from . import conv as conv  # each module registers its rules
from . import embedding as embedding
from . import linear as linear
from . import norms as norms
from .call import call_for_per_sample_grads
from .layer import layer
from .utils import (
    forward_helper,
    set_grad_sample_if_exists,
    standard_kwargs,
    sum_over_all_but_batch_and_last_n,
    unpack_expanded_weight_or_tensor,
)
from .weight import ExpandedWeight, implements_per_sample_grads

__all__ = [
    "ExpandedWeight",
    "call_for_per_sample_grads",
    "forward_helper",
    "implements_per_sample_grads",
    "layer",
    "set_grad_sample_if_exists",
    "standard_kwargs",
    "sum_over_all_but_batch_and_last_n",
    "unpack_expanded_weight_or_tensor",
]
