"""Run autograd and composable function transforms over torch's kernels, in Python that one can
read.

    from runtime.func import grad, vmap
    vmap(grad(lambda x: x.sin()))(torch.zeros(3))       # tensor([1., 1., 1.])

This is the top floor. It has the public names and may import everything below. The folders are
floors, and a module imports from its own floor and from lower ones: torch_private, facts, seam,
rules, tape, trace, functionalize, func, session, autograd, checkpoint, aot and export, jit,
per_sample, expanded_weights, dropin. Start with ``seam/levels.py``, which every call of ATen
passes, or with ``docs/levels.md``, the core in one page.
"""

from . import facts as facts
from . import rules as rules
from .jit import jit
from .session import Tensor, tensor, unwrap, wrap

from . import autograd, func  # isort: skip
from .dropin.intercept import intercept_torch_autograd  # isort: skip

intercept_torch_autograd()

__all__ = ["Tensor", "autograd", "func", "jit", "tensor", "unwrap", "wrap"]
