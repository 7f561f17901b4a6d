"""Random generators that a trace can watch, whatever the version of torch."""

from __future__ import annotations

import torch


class _OfPython(torch.Generator):
    """A generator with weak references."""


HAVE_NATIVE = bool(torch.Generator.__weakrefoffset__)
"""Whether torch's own generators take weak references; those of 2.12 do not."""
Generator: type[torch.Generator] = torch.Generator if HAVE_NATIVE else _OfPython
