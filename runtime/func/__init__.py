"""Composable function transforms, with the names and signatures of ``torch.func``.

    vmap(grad(f))(xs)

Each transform has a module of its name. The levels behind them are ``batch`` (``vmap``; also what
runs an op without a batching rule), ``draws`` (random ops under ``vmap``) and ``dual_level``
(forward mode: a tangent beside each primal, as ``jvp``, ``jacfwd`` and ``linearize`` need it). The
package imports ``trace``, ``functionalize``, ``tape``, ``rules`` and ``seam``. Start with
``vmap.py`` and ``batch.py``, or with ``grad.py``.
"""

from ..functionalize.transform import functionalize
from . import grid_sampler_backward as grid_sampler_backward
from .functional_call import functional_call, replace_all_batch_norm_modules_, stack_module_state
from .grad import grad, grad_and_value, vjp
from .jacobians import hessian, jacfwd, jacrev
from .jvp import jvp
from .level_transform import debug_unwrap
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
