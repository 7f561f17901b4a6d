"""Minimum cuts of directed graphs with integer capacities.

scipy's maximum flow takes 32-bit capacities, so larger ones are scaled down; the cut is then found
by a search of the residual graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

INFINITE = -1
_LARGEST = 2**31 - 1


def min_cut(
    n: int, edges: Sequence[tuple[int, int, int]], source: int, sink: int
) -> tuple[int, np.ndarray[Any, Any]]:
    """(value of the cut, which of the ``n`` vertices are on the sink's side).

    ``edges``: (from, to, capacity), capacity a number of bytes or ``INFINITE``. Of several minimum
    cuts, the one nearest to the sink. The value is that of the edges cut, unscaled; scaling may
    miss a cut that is better by less than one part in 2**31 / (number of edges)."""
    start = np.array([e[0] for e in edges], dtype=np.int64)
    end = np.array([e[1] for e in edges], dtype=np.int64)
    capacity = np.array([e[2] for e in edges], dtype=np.int64)
    finite = capacity >= 0
    total = int(capacity[finite].sum())
    limit = _LARGEST - 1 - len(edges)  # room for an infinite capacity above, and for rounding up
    scale = max(1, -(-total // max(limit, 1)))
    scaled = np.where(finite, -(-capacity // scale), 0)
    scaled[~finite] = scaled.sum() + 1
    # parallel edges add up; two infinite ones must not overflow
    dense = csr_array((scaled, (start, end)), shape=(n, n))
    dense.sum_duplicates()
    dense.data = np.minimum(dense.data, _LARGEST)
    network = csr_array((dense.data.astype(np.int32), dense.indices, dense.indptr), shape=(n, n))
    flow = maximum_flow(network, source, sink).flow
    residual = csr_array(network.astype(np.int64) - flow.astype(np.int64))
    residual.data = np.maximum(residual.data, 0)
    residual.eliminate_zeros()
    reaches_sink = np.zeros(n, dtype=bool)
    reaches_sink[breadth_first_order(csr_array(residual.T), sink, return_predecessors=False)] = True
    cut = ~reaches_sink[start] & reaches_sink[end]
    if (cut & ~finite).any() or reaches_sink[source]:
        raise ValueError("source and sink are joined by edges of infinite capacity")
    return int(capacity[cut].sum()), reaches_sink
