"""Composable function transforms, with the names and signatures of ``torch.func``."""

from .forward import jvp
from .functionalize import functionalize
from .grad import grad, grad_and_value, vjp
from .jacobians import hessian, jacfwd, jacrev
from .vmap import vmap

__all__ = ["functionalize", "grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "vjp", "vmap"]
