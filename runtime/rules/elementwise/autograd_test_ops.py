"""Register ATen's ops for tests of derivative registries. By definition their derivatives are not
those of the functions that they compute."""

from __future__ import annotations

import warnings

import torch

from ..derive.batch_rules import elementwise
from ..derive.families import linear, view
from ..record import register
from ..shape.views import copy_of


def _warn(g: torch.Tensor) -> torch.Tensor:
    warnings.warn("Warn from backward", UserWarning, stacklevel=2)
    return g


linear(
    "_test_autograd_multiple_dispatch.fullcoverage",
    {
        "self": lambda g, self_shape: (
            g.expand(self_shape) * 2 if g.is_cuda else g.expand(self_shape) + 1
        )
    },
    elementwise,
)
view(
    "_test_autograd_multiple_dispatch_view",
    lambda g, self_shape: g.reshape(self_shape) + 1 if g.is_cuda else g.reshape(self_shape),
    lambda func, size, batched, args, kwargs: args[0].view(size, -1),
)
register(
    "_test_autograd_multiple_dispatch_view_copy",
    decomposition=copy_of("_test_autograd_multiple_dispatch_view"),
    family="view",
)
register("_test_warn_in_autograd", vjp={"self": _warn}, batch=elementwise)
