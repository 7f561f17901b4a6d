"""Provides the names of ``torch.autograd``, for tensors of the session.

``function`` has custom Functions. ``function_recording`` puts them on the tape, ``function_rules``
runs them under the transforms. ``forward_ad``, ``functional``, ``graph`` and ``gradcheck`` are the
modules of these names. The package imports ``session`` and what lies below. Start with
``function.py``.
"""

from __future__ import annotations

from torch.autograd import grad_mode
from torch.autograd.grad_mode import (
    enable_grad,
    inference_mode,
    no_grad,
    set_grad_enabled,
    set_multithreading_enabled,
)

from ..session.backward import backward, grad
from ..tape.anomaly import detect_anomaly, set_detect_anomaly
from ..tape.saved import SavedTensor
from . import function_recording as function_recording
from . import function_rules as function_rules
from . import graph as graph
from . import registered as registered
from .function import Function
from .gradcheck import gradcheck, gradgradcheck
from .variable import Variable

__all__ = [
    "Function",
    "SavedTensor",
    "Variable",
    "backward",
    "detect_anomaly",
    "enable_grad",
    "forward_ad",
    "functional",
    "grad",
    "gradcheck",
    "gradgradcheck",
    "inference_mode",
    "no_grad",
    "set_detect_anomaly",
    "set_grad_enabled",
    "set_multithreading_enabled",
]

if hasattr(grad_mode, "enforce_grad_layout_policy"):  # torch 2.12 always enforces it
    enforce_grad_layout_policy = grad_mode.enforce_grad_layout_policy
    __all__ += ["enforce_grad_layout_policy"]

from . import forward_ad, functional
