"""Samples are flat functions of their tensors, are chosen for diversity, and record the
facts of their op."""

import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from gen.checks.evaluate import run_target
from gen.checks.pipelines import Program
from gen.samples import opinfo
from gen.samples.choice import choose
from gen.samples.samples import (
    STORE,
    Op,
    Store,
    candidates,
    flat_tensors,
    from_call,
    make_op,
    resolve,
)
from gen.targets.torch_target import TorchTarget
from tests.checks.gone import gone

D = torch.float64


def pool(name: Any, dtype: Any = D, wrapped: Any = False, row: Any = None) -> Any:
    return candidates(make_op(name, row or {}), row or {}, dtype, "cpu", wrapped)


def test_every_opinfo_row_of_the_matrix_is_found_under_its_name() -> None:
    rows = yaml.safe_load(Path(__file__).parents[2].joinpath("matrix/torch-ops.yaml").read_text())
    ops = [op for family in rows["families"].values() for op in family["ops"]]
    wanted = {op if isinstance(op, str) else op["op"] for op in ops}
    assert wanted - gone() <= set(opinfo.database())


def test_names_no_two_ops_share() -> None:
    assert opinfo.database()["torch.div.floor_rounding"].variant_test_name == "floor_rounding"
    assert opinfo.database()["torch.Tensor.__radd__"].name == "__radd__"
    assert opinfo.lookup("torch.no_such_op") is None


OWN = """
import sys
from gen.checks.case import Case
from gen.checks.tables import Cell, Family
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


def test_tensors_in_lists_are_inputs() -> None:
    sample = pool("torch.cat")[0]
    assert len(sample.inputs) > 1
    _, kwargs = sample.rebuild(sample.inputs)
    assert torch.equal(sample(*sample.inputs)[0], torch.cat(sample.inputs, **kwargs))


def test_indices_are_inputs_but_not_differentiable() -> None:
    sample = pool("torch.gather")[0]
    assert [x.dtype for x in sample.inputs] == [D, torch.int64]
    assert sample.differentiable == (True, False)


def test_nothing_is_differentiable_in_an_integer_dtype() -> None:
    assert not any(any(sample.differentiable) for sample in pool("torch.add", torch.int64))


def test_samples_are_the_same_on_every_run() -> None:
    first, second = pool("torch.mul"), pool("torch.mul")
    assert all(
        torch.equal(a, b)
        for one, other in zip(first, second, strict=True)
        for a, b in zip(one.inputs, other.inputs, strict=True)
    )


def test_an_op_that_writes_to_its_input_is_a_function_all_the_same() -> None:
    sample = from_call(Op("fill", lambda x: x.fill_(7.0)), 0, (torch.zeros(3),), {})
    assert sample.facts.mutated == (True,)
    assert sample(*sample.inputs)[0].tolist() == [7.0] * 3
    assert sample.inputs[0].tolist() == [0.0] * 3


def test_an_op_may_change_the_size_of_its_input() -> None:
    def shortened(x: torch.Tensor) -> torch.Tensor:
        x.data = torch.ones(2)
        return x * 3

    sample = from_call(Op("shortened", shortened), 0, (torch.zeros(3),), {})
    assert sample.facts.mutated == (True,)
    assert sample.inputs[0].tolist() == [0.0] * 3


def test_drawing_random_numbers_is_noticed_even_where_the_state_is_restored() -> None:
    assert any(sample.facts.random for sample in pool("torch.nn.functional.dropout"))
    assert not pool("torch.sin")[0].facts.random


def test_warnings_of_the_plain_op_are_noted() -> None:
    def warns(x: Any) -> Any:
        warnings.warn("as always", UserWarning, stacklevel=1)
        return x

    sample = from_call(Op("warns", warns), 0, (torch.zeros(3),), {})
    assert sample.facts.warnings == (("as always", UserWarning),)


@pytest.mark.parametrize(
    ("said", "ignored"), [("size s8 of 2", True), ("size 3 of 2", True), ("size x of 2", False)]
)
def test_a_target_may_give_the_warning_of_the_plain_op_with_symbols_for_its_numbers(
    said: str, ignored: bool
) -> None:
    def warns(x: Any) -> Any:
        warnings.warn("size 3 of 2", UserWarning, stacklevel=1)
        return x

    def over(target: Any) -> Any:
        def f(x: Any) -> Any:
            warnings.warn(said, UserWarning, stacklevel=1)
            return (x,)

        return f

    sample = from_call(Op("warns", warns), 0, (torch.zeros(3),), {})
    program = Program(over, (torch.zeros(3),), (True,), 0)
    with nullcontext() if ignored else pytest.warns(UserWarning, match=said):
        run_target(TorchTarget(), program, program.inputs, ("vjp",), sample)


def test_an_op_that_fails_on_a_sample_raises_its_own_error() -> None:
    sample = from_call(Op("mm", torch.mm), 0, (torch.zeros(2, 3), torch.zeros(2, 3)), {})
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        _ = sample.facts


def test_numbers_become_tensors_and_sparse_results_dense() -> None:
    outputs = flat_tensors((True, 2.5, torch.eye(2).to_sparse(), "text", None))
    assert [str(x.dtype) for x in outputs] == ["torch.bool", "torch.float32", "torch.float32"]
    assert outputs[2].tolist() == [[1, 0], [0, 1]]


def test_derivatives_are_those_of_the_wrapped_op_where_it_reads_only_part_of_its_input() -> None:
    sample = pool("torch.linalg.cholesky", wrapped=True)[0]
    x = sample.inputs[0]
    torch.testing.assert_close(
        sample(x)[0],
        torch.linalg.cholesky(x + x.mH) if not sample.rebuild([x])[1] else sample(x)[0],
    )
    assert sample.wrap is not None


def test_the_choice_is_diverse_and_starts_with_one_that_can_tell_values_apart() -> None:
    chosen = choose(pool("torch.add"), 5)
    assert len(chosen) == 5
    assert len({sample.signature for sample in chosen}) == 5
    assert all(x.numel() for x in chosen[0].inputs)
    assert len({tuple(x.ndim for x in sample.inputs) for sample in chosen}) >= 3


def test_a_limit_on_size_leaves_at_least_one_informative_sample() -> None:
    (only,) = choose(
        [s for s in pool("torch.nn.functional.conv2d") if s.numel > 100], 1, largest=10
    )
    assert only.numel > 10


def test_no_limit_takes_all() -> None:
    every = pool("torch.add")
    assert choose(every, None) == every


def test_the_store_builds_once_per_family() -> None:
    store = Store()
    first = store.pool("a", "torch.sin", {}, D, "cpu", wrapped=False)
    # no wrapper: the same samples
    assert store.pool("a", "torch.sin", {}, D, "cpu", wrapped=True) is first
    assert store.pool("b", "torch.sin", {}, D, "cpu", wrapped=False) is not first
    assert isinstance(STORE, Store)


def test_a_row_of_ones_own() -> None:
    row = {
        "call": "torch:hypot",
        "samples": [{"args": [{"shape": [2]}, {"shape": [2], "domain": "positive"}]}],
    }
    (sample,) = pool("mine.hypot", row=row)
    assert sample.description == "float64[2], float64[2]"
    assert torch.equal(sample(*sample.inputs)[0], torch.hypot(*sample.inputs))


def test_paths_that_name_nothing() -> None:
    assert resolve("torch.nn.functional.relu") is torch.nn.functional.relu
    with pytest.raises(ModuleNotFoundError, match="names nothing that can be imported"):
        resolve("no_such_package.function")


def test_samples_are_those_that_opinfo_gives_to_its_own_tests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    info = opinfo.database()["torch.add"]
    ours = [s.input for s in opinfo.samples(info, "cpu", D, ("seed",))]
    monkeypatch.setattr(opinfo, "_without_its_test", nullcontext)
    theirs = [s.input for s in opinfo.samples(info, "cpu", D, ("seed",))]
    assert len(ours) > 2
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_row_that_moved_has_the_samples_of_its_former_name() -> None:
    row = {"samples": [{"args": [{"shape": [3]}]}]}
    (old,), (new,), (moved,) = (
        pool(name, row=row | more)
        for name, more in (
            ("operator.neg", {}),
            ("math.floor", {}),
            ("math.floor", {"former_name": "operator.neg"}),
        )
    )
    assert moved.seed == old.seed != new.seed
    assert torch.equal(moved.inputs[0], old.inputs[0])
    assert not torch.equal(new.inputs[0], old.inputs[0])
