"""Control flow by the value of a tensor, in graphs and under transforms.

    cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

A condition that Python can read decides at once. One that is traced or batched cannot be read. Then
the functions are captured, and the graph has one call of an operator in ``torch.ops.higher_order``,
which torch exports and runs.
"""

from . import out_dtype, subgraphs  # noqa: F401 (they declare what torch's operators do on values of ours)
from .associative_scans import associative_scan
from .conditions import cond
from .loops import while_loop
from .scans import map, scan

__all__ = ["associative_scan", "cond", "map", "scan", "while_loop"]
