"""Samples are flat functions of their tensors, are chosen for diversity, and record the
facts of their op."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from gen.checks import Family
from gen.outcomes import Vacuous
from gen.targets.torch_target import TorchTarget
from tests.checks.cells import Row, Watching, case, row_of

D = torch.float64
HERE = "tests.checks.test_samples"
Tensor = torch.Tensor


def calls(op: str, dtype: str = "float64", row: Row | None = None, **settings: Any) -> list[Any]:
    """Return the inputs of each sample with which a cell of `op` calls a target."""
    target = Watching()
    ops = None if row is None else {op: row}
    made = case(op, dtype, target, ops=ops, **settings)
    made.assert_same("forward", against="eager")
    assert made.compared
    return target.calls


def own(name: str, *samples: Sequence[Any]) -> Row:
    """Return a row of a function of this file."""
    return row_of(*({"args": list(args)} for args in samples), call=f"{HERE}:{name}")


OWN = """
import sys
from gen.checks import Case, Cell, Family
from gen.language.axes import USUAL
from gen.targets.torch_target import TorchTarget

family = Family("mine", {"operator.neg": {"samples": [{"args": [{"shape": [3]}]}]}})
for pipeline, against in (("trace", "eager"), ("vmap . vjp", "loop")):
    Case(Cell("operator.neg", "float64", USUAL, "full", ()), "check", family, \
TorchTarget()).assert_same(pipeline, against=against)
print([name for name in sys.modules if name.startswith("torch.testing._internal.common_methods")])
"""


def test_the_checks_of_an_op_of_ones_own_need_no_opinfo() -> None:
    """Whose import takes seconds."""
    done = subprocess.run(
        [sys.executable, "-c", OWN],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


class Differentiating(TorchTarget):
    """A target that notes by which inputs it differentiates."""

    def __init__(self) -> None:
        super().__init__()
        self.primals: list[tuple[Tensor, ...]] = []

    def vjp(self, f: Callable[..., Any], *primals: Any) -> Any:
        self.primals.append(primals)
        return super().vjp(f, *primals)


def test_tensors_in_lists_are_inputs() -> None:
    assert len(calls("torch.cat")[0]) > 1


def test_indices_are_inputs_but_not_differentiable() -> None:
    assert [x.dtype for x in calls("torch.gather")[0]] == [D, torch.int64]
    target = Differentiating()
    case("torch.gather", target=target).assert_same("vjp", against="upstream")
    assert [[x.dtype for x in primals] for primals in target.primals] == [[D]] * 5


def test_nothing_is_differentiable_in_an_integer_dtype() -> None:
    row: Row = {"call": "torch:add", "samples": [{"args": [{"shape": [2]}, {"shape": [2]}]}]}
    with pytest.raises(Vacuous, match="no differentiable input"):
        case("own.add", "int64", ops={"own.add": row}).assert_same("vjp", against="upstream")


def test_samples_are_the_same_on_every_run() -> None:
    first = calls("torch.mul", family=Family("one"))
    second = calls("torch.mul", family=Family("other"))
    assert all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one, other, strict=True)
    )


def fill_with_seven(x: Tensor) -> Tensor:
    return x.fill_(7.0)


def change_size(x: Tensor) -> Tensor:
    x.data = torch.ones(2, dtype=x.dtype)
    return x * 3


@pytest.mark.parametrize("name", ["fill_with_seven", "change_size"])
def test_an_op_that_writes_to_its_input_is_a_function_all_the_same(name: str) -> None:
    ((x,),) = calls("own.op", row=own(name, [torch.zeros(3, dtype=D)]))
    assert x.tolist() == [0.0] * 3


def add_draws(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        return x + torch.rand_like(x)


def test_drawing_random_numbers_is_noticed_even_where_the_state_is_restored() -> None:
    row = own("add_draws", [torch.ones(3, dtype=D)])
    with pytest.raises(Vacuous, match="draws random numbers"):
        case("own.op", ops={"own.op": row}).assert_same("vmap", against="loop")
    case("torch.sin", only=0).assert_same("vmap", against="loop")


def warn_of_size(x: Tensor) -> Tensor:
    warnings.warn("size 3 of 2", UserWarning, stacklevel=1)
    return x


class WarningTarget(TorchTarget):
    """A target that gives a warning of its own."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def forward(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def g(x: Tensor) -> Any:
            warnings.warn(self.text, UserWarning, stacklevel=1)
            return (x,)

        return g


@pytest.mark.parametrize(
    ("said", "ignored"),
    [
        ("size 3 of 2", True),
        ("size s8 of 2", True),
        ("size x of 2", False),
        ("another one", False),
    ],
)
def test_a_target_may_give_the_warning_of_the_plain_op_with_symbols_for_its_numbers(
    said: str, ignored: bool
) -> None:
    row = own("warn_of_size", [torch.ones(3, dtype=D)])
    made = case("own.op", target=WarningTarget(said), ops={"own.op": row})
    with nullcontext() if ignored else pytest.warns(UserWarning, match=said):
        made.assert_same("forward", against="eager")


def test_an_op_that_fails_on_a_sample_raises_its_own_error() -> None:
    row = row_of({"args": [torch.zeros(2, 3), torch.zeros(2, 3)]}, call="torch:mm")
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        case("own.mm", "float32", ops={"own.mm": row}).assert_same("forward", against="eager")


def several(x: Tensor) -> Any:
    return True, 2.5, torch.eye(2).to_sparse(), "text", None


class Receiving(TorchTarget):
    """A target that notes the results of ops."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[tuple[Any, ...]] = []

    def forward(self, f: Callable[..., Any]) -> Callable[..., Any]:
        def g(*inputs: Tensor) -> Any:
            self.results.append(f(*inputs))
            return self.results[-1]

        return g


def test_numbers_become_tensors_and_sparse_results_dense() -> None:
    target = Receiving()
    row = own("several", [torch.ones(2, dtype=D)])
    case("own.op", target=target, ops={"own.op": row}).assert_same("forward", against="eager")
    (outputs,) = target.results
    assert [str(x.dtype) for x in outputs] == ["torch.bool", "torch.float32", "torch.float32"]
    assert outputs[2].tolist() == [[1, 0], [0, 1]]


def test_derivatives_are_those_of_the_wrapped_op_where_it_reads_only_part_of_its_input() -> None:
    """The gradient of cholesky by one triangle alone is no gradient by the matrix."""
    case("torch.linalg.cholesky").assert_same("vjp", against="numeric")


def test_the_choice_is_diverse_and_starts_with_one_that_can_tell_values_apart() -> None:
    target = Differentiating()
    case("torch.add", target=target).assert_same("vjp", against="upstream")
    shapes = [tuple(tuple(x.shape) for x in primals) for primals in target.primals]
    assert len(shapes) == 5
    assert all(x.numel() for x in target.primals[0])
    assert len({tuple(map(len, sample)) for sample in shapes}) >= 3


def test_a_limit_on_size_leaves_at_least_one_informative_sample() -> None:
    row = row_of(*({"args": [torch.ones(size, dtype=D)]} for size in (70, 60)), call="torch:sin")
    target = Differentiating()
    made = case("own.sin", target=target, ops={"own.sin": row})
    made.assert_same("vjp", against="numeric")
    assert [len(x) for (x,) in target.primals] == [60]


def test_no_limit_takes_all() -> None:
    sizes = range(1, 31)
    row = row_of(*({"args": [torch.ones(size, dtype=D)]} for size in sizes), call="torch:sin")
    few, every = calls("own.sin", row=row), calls("own.sin", row=row, all_samples=True)
    assert len(few) == 12
    assert [len(x) for (x,) in every] == list(sizes)


_built: list[str] = []


def counted(dtype: torch.dtype, device: str) -> list[dict[str, Any]]:
    _built.append(str(dtype))
    return [{"args": [torch.ones(3, dtype=dtype)]}]


def test_samples_are_built_once_per_family() -> None:
    _built.clear()
    ops = {"own.sin": {"call": "torch:sin", "samples": f"{HERE}:counted"}}
    for pipeline in ("forward", "vjp"):
        case("own.sin", family=Family("a", ops)).assert_same(pipeline, against="eager")
    assert len(_built) == 1
    case("own.sin", family=Family("b", ops)).assert_same("forward", against="eager")
    assert len(_built) == 2


def test_a_row_of_ones_own() -> None:
    row: Row = {
        "call": "torch:hypot",
        "samples": [{"args": [{"shape": [2]}, {"shape": [2], "domain": "positive"}]}],
    }
    made = case("mine.hypot", ops={"mine.hypot": row})
    described: list[str] = []
    made.on_sample = lambda _, text: described.append(text)
    made.assert_same("forward", against="eager")
    assert described == ["float64[2], float64[2]"]


def test_paths_that_name_nothing() -> None:
    row = row_of({"args": [torch.ones(3, dtype=D)]}, call="torch.nn.functional.relu")
    assert len(calls("own.op", row=row)) == 1
    with pytest.raises(ModuleNotFoundError, match="names nothing that can be imported"):
        calls("own.op", row={**row, "call": "no_such_package.function"})


def test_a_row_that_moved_has_the_samples_of_its_former_name() -> None:
    described: Row = {"call": "torch:neg", "samples": [{"args": [{"shape": [3]}]}]}
    ((old,),) = calls("operator.neg", row=described)
    ((new,),) = calls("math.floor", row=described)
    ((moved,),) = calls("math.floor", row={**described, "former_name": "operator.neg"})
    assert torch.equal(moved, old)
    assert not torch.equal(new, old)
