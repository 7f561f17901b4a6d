"""An operator that runs through torch's Python binding of its name: the same call reaches
the level below.

Inside: ``kernel`` of ``runtime.rules.ops.op_of``. Operators with a binding and without one give
the same results, so that only the table of kernels tells which have one."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.rules import RECORDS
from runtime.rules.ops import op_of
from tests.runtime.opinfo_samples import drawn

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]
BOUND = {
    func
    for func in RECORDS
    if type(func) is torch._ops.OpOverload and op_of(func).kernel is not func._op
}
# those that run on a CPU
HERE = [info for info in op_db if info.dtypes and not info.name.startswith("jiterator")]
COMMON = (
    "tanh relu mul.Tensor add.Tensor mm addmm convolution native_layer_norm native_batch_norm t "
    "transpose.int _softmax"
)


class Heard(TorchDispatchMode):
    """Writes down the operators that are called, with their arguments."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append((func, args, kwargs or {}))
        return func(*args, **(kwargs or {}))


def same(a: Any, b: Any) -> bool:
    """Equal in structure and kind, with the same tensors."""
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is b
    return type(a) is type(b) and (a == b or a != a)


def calls_of(info: Any) -> list[Call]:
    """What the first samples of an OpInfo come to, of operators that have a binding."""
    heard = Heard()
    dtype = torch.float32 if torch.float32 in info.dtypes else next(iter(info.dtypes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in drawn(info, "cpu", dtype, 6):
            with heard, torch.no_grad():
                info.op(sample.input, *sample.args, **sample.kwargs)
    return [call for call in heard.calls if call[0] in BOUND]


def test_the_commonest_operators_have_one() -> None:
    # whose defaults a binding could change
    assert {torch.ops.aten.mse_loss.default, torch.ops.aten.gelu.default}.isdisjoint(BOUND)
    assert set(COMMON.split()) <= {
        str(func).removeprefix("aten.").removesuffix(".default") for func in BOUND
    }


@pytest.mark.parametrize("part", range(8))
def test_makes_the_same_call(part: int) -> None:
    seen = 0
    for info in HERE[part::8]:
        for func, args, kwargs in calls_of(info):
            heard = Heard()
            with heard, torch.no_grad():
                op_of(func).kernel(*args, **kwargs)
            assert len(heard.calls) == 1, (func, heard.calls)
            assert heard.calls[0][0] is func, (func, heard.calls[0][0])
            assert same(heard.calls[0][1], args) and heard.calls[0][2].keys() == kwargs.keys(), (
                func,
                args,
                heard.calls[0][1:],
            )
            assert all(same(heard.calls[0][2][name], kwargs[name]) for name in kwargs), (
                func,
                kwargs,
            )
            seen += 1
    assert seen > 50
