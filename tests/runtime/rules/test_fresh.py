"""Results that records call fresh are memory of their own: a replay writes over them."""

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.rules import RECORDS
from tests.runtime.opinfo_samples import drawn

FRESH = {func for func, record in RECORDS.items() if record.fresh and func.namespace == "aten"}
PLAIN = (
    "addbmm addmm addmv addr baddbmm bmm dot linalg.vecdot log_softmax mm mv native_batch_norm "
    "native_layer_norm softmax sum"
)
POOLED = (
    "adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d "
    "fractional_max_pool3d max_pool2d max_pool3d"
)
LAYERS = f"batch_norm conv1d conv2d conv_transpose2d embedding layer_norm {POOLED}"
FUNCTIONS = {
    *PLAIN.split(),
    *(f"nn.functional.{name}" for name in LAYERS.split()),
    "torch.ops.aten._safe_softmax.default",
}
seen: set[Any] = set()
_batch_norm = torch.ops.aten._native_batch_norm_legit_functional


class Watched(TorchDispatchMode):
    """Raises where a result of an op with such a record shares memory with anything that the
    call had or gave."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        record = RECORDS.get(func)
        if record is None or not record.fresh:
            return results
        seen.add(func)
        given = [
            _memory(t)
            for t in pytree.tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor) and t.numel()
        ]
        for t in pytree.tree_leaves(results):
            if isinstance(t, torch.Tensor) and t.numel():
                assert _memory(t) not in given, (
                    f"{func} gives memory that it shares with an argument or another result"
                )
                assert torch.ops.aten.is_non_overlapping_and_dense(t), (
                    f"{func} gives strides {t.stride()} for shape {list(t.shape)}"
                )
                given.append(_memory(t))
        return results


def _memory(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def _calls(info: Any) -> Iterator[Any]:
    for requires_grad in (True, False):
        for sample in drawn(info, "cpu", torch.float32, 12, requires_grad=requires_grad):
            yield functools.partial(info, sample.input, *sample.args, **sample.kwargs)
    if info.name == "nn.functional.batch_norm":
        vector = torch.ones(3)
        for training in (True, False):
            yield functools.partial(
                _batch_norm,
                torch.randn(2, 3, 4),
                vector,
                vector,
                vector,
                vector,
                training,
                0.1,
                1e-5,
            )


def test_fresh_results_share_no_memory() -> None:
    infos = [info for info in op_db if info.name in FUNCTIONS]
    for call in (call for info in infos for call in _calls(info)):
        with Watched():  # type: ignore[no-untyped-call]
            results = [
                t
                for t in pytree.tree_leaves(call())
                if isinstance(t, torch.Tensor) and t.requires_grad
            ]
            if results:
                torch.autograd.backward([t.sum() for t in results])
    assert seen == FRESH, "samples of FUNCTIONS call every op with such a record"
