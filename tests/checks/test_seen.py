"""The digest by which two runs are compared whose cells all pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch

from gen.outcomes import Lacking
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import Answering, case, row_of

DTYPES = """
bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64
complex32 complex64 complex128 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz
"""


class _Real(Answering):
    """A target that gives its results for real tensors only, so that no comparison is made."""

    def forward(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def g(x: torch.Tensor) -> Sequence[Any]:
            if x.is_meta:
                raise RuntimeError("no value")
            return self.results

        return g


def digest(*outputs: Any) -> str:
    """Return the digest of a cell whose target gives these outputs."""
    row = row_of({"args": [torch.ones(2)]}, call="torch:sin")
    made = case("own.seen", "float32", _Real(outputs), ops={"own.seen": row})
    with suppress(Lacking):  # the target has no strides to compare
        made.assert_same("forward", against="strides")
    return made.seen.digest


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES.split())
def test_values_of_each_dtype_have_a_digest(dtype: str) -> None:
    kind = getattr(torch, dtype)
    one, zero = torch.ones(3, dtype=kind), torch.zeros(3, dtype=kind)
    assert digest(one) == digest(one.clone()) != digest(zero)
    assert digest(one) != digest(torch.ones(3, 1, dtype=kind))


def _alike(x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield tensors with the values of `x` in other memory, with lazy bits or of other classes."""
    yield x.t().contiguous().t()
    yield x.conj().resolve_conj().conj()
    yield (-x).neg()
    yield torch.nn.Parameter(x)
    yield x.to_sparse()


def test_what_holds_the_values_does_not_matter() -> None:
    x = torch.tensor([[1 + 2j, 0], [3, 4j]])
    assert [digest(y) for y in _alike(x)] == [digest(x)] * 5


@pytest.mark.parametrize("shape", [(), (0,), (0, 2), (1,), (1, 1)])
def test_tensors_of_few_elements_have_one_whatever_their_strides(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, dtype=torch.int32)
    assert digest(x.as_strided(shape, (0,) * len(shape))) == digest(x) != ""
    assert digest(x.as_strided(shape, (2,) * len(shape))) == digest(x)


def test_nans_are_one_and_signs_of_zeros_are_two() -> None:
    nan = torch.tensor([torch.nan])
    assert digest(nan) == digest(-nan) != digest(torch.tensor([torch.inf]))
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))


def test_there_is_none_of_nothing_and_the_order_counts() -> None:
    assert digest() == digest(torch.empty(2, device="meta")) == ""
    one, two = torch.ones(1), torch.zeros(1)
    assert digest(one, two) != digest(two, one)


class _Refusing(TorchTarget):
    """A target that refuses each call of a program for another reason."""

    lacks = frozenset[str]()

    def __init__(self) -> None:
        super().__init__()
        self.errors = [RuntimeError("a size of 3 is too large"), ValueError("no")]

    def forward(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def g(x: torch.Tensor) -> Any:
            raise self.errors.pop(0)

        return g


def double(x: torch.Tensor) -> torch.Tensor:
    """Double it. The program of a cell that may be refused: its folder is that of the errors."""
    return x * 2


def test_the_first_refusal_is_kept_without_its_numbers() -> None:
    row = row_of(
        {"args": [torch.ones(3)]},
        {"args": [torch.ones(3, 1)]},
        call="tests.checks.test_seen:double",
    )
    target = _Refusing()
    made = case("own.double", "float32", target, {"refusal": "named"}, ops={"own.double": row})
    made.assert_same("forward", against="eager")
    assert target.errors == []
    assert made.seen.refusal == "RuntimeError: is too large"
