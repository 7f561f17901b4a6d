"""Composable function transforms, with the names and signatures of ``torch.func``.

    vmap(grad(f))(xs)

Most transforms have a module of their name. ``vjp`` is in ``grad.py``; ``hessian``, ``jacfwd`` and
``jacrev`` are in ``jacobians.py``.

Three modules are behind them:

- ``batch``: the level of ``vmap``. It also runs an op that has no batching rule.
- ``draws``: random ops under ``vmap``, as ``randomness=`` says.
- ``dual_level``: the level of forward mode. It computes a tangent for each primal, as ``jvp``,
  ``jacfwd`` and ``linearize`` need it.

A level is one running transform (docs/glossary.md).

The package imports ``trace``, ``functionalize``, ``tape``, ``rules`` and ``seam``. Start with
``vmap.py`` and ``batch.py``, or with ``grad.py``.
"""

from ..functionalize.transform import functionalize
from . import grid_sampler_backward as grid_sampler_backward  # registers records
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
