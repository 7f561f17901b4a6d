"""Provides level zero: the tensors of users, and ``backward``.

A tensor of the session is a value of a tape that is always open. ``tensor`` has its class,
``session`` the level, ``backward`` the front door of the engine, ``dual`` forward mode at level
zero. ``composite``, ``direct`` and ``recurrent_layers`` record whole layers at once, because that
is faster. The package imports ``func``, ``tape``, ``rules`` and ``seam``. Start with
``session.py``.
"""

from . import composite as composite
from . import direct as direct
from . import nested_values as nested_values
from . import recurrent_layers as recurrent_layers
from . import subclasses as subclasses
from .tensor import Tensor, tensor, unwrap, wrap

__all__ = ["Tensor", "tensor", "unwrap", "wrap"]
