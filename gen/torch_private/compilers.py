"""Torch's compilers. They are slow to import."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch._dynamo
import torch._dynamo.convert_frame
import torch._functorch.config
import torch._inductor.config
from torch._subclasses.fake_tensor import fake_tensor_tls
from torch.utils._python_dispatch import TorchDispatchMode

functorch_config = torch._functorch.config
"""The options of torch's own ahead-of-time autograd."""
inductor_config = torch._inductor.config
"""The options of Inductor."""
frame_compiler = torch._dynamo.convert_frame.__file__
"""The file whose functions run when `torch.compile` reads a function."""
reset_dynamo = torch._dynamo.reset
"""Forget all that `torch.compile` has compiled."""


@cache
def control_flow() -> Mapping[str, Callable[..., Any]]:
    """Return torch's branches, loops and scans by the names that rows ask for, as users call
    them.

    An argument `unroll` says how a target makes its graph. Torch has one way, so it is left out.
    """
    from torch._higher_order_ops import associative_scan, scan
    from torch._higher_order_ops.map import map as mapped

    def scanned(step: Any, init: Any, xs: Any, *, unroll: object = None, **options: Any) -> Any:
        return scan(step, init, xs, **options)

    def each(f: Any, xs: Any, *args: Any, unroll: object = None) -> Any:
        return mapped(f, xs, *args)

    return {
        "aot.cond": torch.cond,
        "aot.while_loop": torch.while_loop,
        "aot.scan": scanned,
        "aot.map": each,
        "aot.associative_scan": associative_scan,
    }


@contextmanager
def outside_tensors_as_constants() -> Iterator[None]:
    """Let a capture in this thread keep tensors that the function closes over, as constants."""
    before = fake_tensor_tls.allow_non_fake_inputs_override
    fake_tensor_tls.allow_non_fake_inputs_override = True
    try:
        yield
    finally:
        fake_tensor_tls.allow_non_fake_inputs_override = before


@cache
def _table() -> Mapping[Any, Callable[..., Any]]:
    """Return Inductor's function for each overload that it takes apart."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


class Decomposed(TorchDispatchMode):
    """Run each op by Inductor's decomposition, at once and without a compiler.

    celu(x, alpha)   ->   where(x > 0, x, expm1(x / alpha) * alpha)

    An op without a decomposition runs its kernel, and so does one whose decomposition declines.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return what the decomposition of `func` gives, which may have decompositions itself."""
        options = kwargs or {}
        decompose = _table().get(func)
        if decompose is None:
            return func(*args, **options)
        # Inside of its own method a mode is off. Entered again, it takes apart what this op calls.
        with self:
            result = decompose(*args, **options)
        if result is NotImplemented:
            return func(*args, **options)
        return result
