"""Level zero: the eager session, and the tensors that people hold."""

from . import composite as composite
from . import direct as direct
from . import nested_values as nested_values
from . import recurrent as recurrent
from . import subclasses as subclasses
from .tensor import Tensor, tensor, unwrap, wrap

__all__ = ["Tensor", "tensor", "unwrap", "wrap"]
