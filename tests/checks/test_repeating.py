"""The same bits again and at once, strides of the meta device, lazy bits of layouts, and views and
overlaps as `out=`."""

import itertools
import threading
import warnings
from typing import Any

import pytest
import torch

from gen.outcomes import Mismatch
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import Watching, case, row_of


class Drifting(TorchTarget):
    """A target whose results differ from call to call by one bit."""

    calls = 0

    def forward(self, f: Any) -> Any:
        def g(*args: Any) -> Any:
            self.calls += 1
            return tuple(y * (1 + self.calls * 2**-52) for y in f(*args))

        return g


class Shared(TorchTarget):
    """A target that holds an argument of the call in a field, which another thread overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.barrier = threading.Barrier(8)
        self.held: Any = None
        self.numbers = itertools.count(1)  # no two calls have the same

    def forward(self, f: Any) -> Any:
        def g(x: Any) -> Any:
            self.held = x * next(self.numbers)
            if threading.current_thread() is not threading.main_thread():
                self.barrier.wait(10)
            return f(self.held)

        return g


class Transposing(TorchTarget):
    """A target whose results on the meta device lie in another order in memory."""

    def forward(self, f: Any) -> Any:
        return lambda *args: tuple(
            y.t().contiguous().t() if y.is_meta and y.ndim == 2 else y for y in f(*args)
        )


def test_a_result_that_drifts_is_noticed() -> None:
    case("torch.exp").assert_same("forward", against="again")
    with pytest.raises(Mismatch, match=r"a second call: .* other bits"):
        case("torch.exp", target=Drifting()).assert_same("forward", against="again")


def test_state_that_threads_share_is_noticed() -> None:
    case("torch.exp").assert_same("forward", against="threads")
    with pytest.raises(Mismatch, match="of 8 at once"):
        case("torch.exp", target=Shared(), only=0).assert_same("forward", against="threads")


class WarningLate(TorchTarget):
    """A target that warns in the second of the calls at once, after the first one has restored the
    filters.

    The first restores the filters while the second has its own. So the second changes those of the
    process.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls = itertools.count()
        self.first_is_in, self.second_is_in, self.first_is_out = (
            threading.Event() for _ in range(3)
        )

    def forward(self, f: Any) -> Any:
        def g(x: Any) -> Any:
            number = next(self.calls)  # 0 is the single call
            if number == 1:
                with warnings.catch_warnings(record=True):
                    self.first_is_in.set()
                    assert self.second_is_in.wait(60)
                self.first_is_out.set()
            elif number == 2:
                assert self.first_is_in.wait(60)
                with warnings.catch_warnings(record=True):
                    self.second_is_in.set()
                    assert self.first_is_out.wait(60)
                    warnings.simplefilter("always")
                    warnings.warn("a loop", UserWarning, stacklevel=1)
            return f(x)

        return g


def test_warnings_of_calls_at_once_do_not_escape() -> None:
    target = WarningLate()
    with warnings.catch_warnings(record=True) as heard:
        case("torch.exp", target=target, only=0).assert_same("forward", against="threads")
    assert heard == [] and target.first_is_out.is_set()


def test_other_strides_on_the_meta_device_are_noticed() -> None:
    case("torch.exp").assert_same("forward", against="strides")
    with pytest.raises(Mismatch, match=r"strides .* on the meta device"):
        case("torch.exp", target=Transposing()).assert_same("forward", against="strides")


@pytest.mark.parametrize("layout", ["conjugated", "negated"])
def test_layouts_of_lazy_bits_hold_the_same_values(layout: str) -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    target = Watching()
    row = row_of({"args": [z]}, call="torch:sin")
    made = case("own.sin", "complex64", target, {"layout": layout}, ops={"own.sin": row})
    made.assert_same("forward", against="eager")
    ((x,),) = target.calls
    assert (x.is_conj(), x.is_neg()) == (layout == "conjugated", layout == "negated")
    assert torch.equal(x, z)


def writes_beside(x: Any, *, out: Any = None) -> Any:
    if out is None:
        return x.sin()
    if out._base is not None:
        out._base.fill_(0)
    return out.copy_(x.sin())


def writes_nothing(x: Any, *, out: Any) -> Any:
    return out


def test_a_write_beside_a_view_is_noticed() -> None:
    case("torch.sin").assert_same("forward", against="eager", form="out_view")
    row = {"call": "torch:sin", "samples": [{"args": [{"shape": [2, 3]}]}]}
    beside = {**row, "out": "tests.checks.test_repeating.writes_beside"}
    with pytest.raises(Mismatch):
        case("own.sin", ops={"own.sin": beside}).assert_same(
            "forward", against="eager", form="out_view"
        )
    nothing = {**row, "out": "tests.checks.test_repeating.writes_nothing"}
    with pytest.raises(Mismatch, match="out=overlapping"):
        case("own.sin", ops={"own.sin": nothing}).assert_same(
            "forward", against="eager", form="out_overlapping"
        )


def test_an_op_may_refuse_to_write_to_overlapping_elements() -> None:
    case("torch.sin").assert_same("forward", against="eager", form="out_overlapping")
