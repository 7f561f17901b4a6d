"""Composable function transforms, with the names and signatures of ``torch.func``."""

from . import grid_sampler_backward as grid_sampler_backward
from .debug import debug_unwrap
from .functional_call import functional_call, replace_all_batch_norm_modules_, stack_module_state
from .functionalize import functionalize
from .grad import grad, grad_and_value, vjp
from .jacobians import hessian, jacfwd, jacrev
from .jvp import jvp
from .linearize import linearize
from .rearrange import rearrange
from .vmap import chunk_vmap, vmap

__all__ = [
    "chunk_vmap",
    "debug_unwrap",
    "functional_call",
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "rearrange",
    "replace_all_batch_norm_modules_",
    "stack_module_state",
    "vjp",
    "vmap",
]
