"""The tiers of `compiler="auto"`: what is compared, who serves, and what is said of it.

Inside: runtime.aot.compilers.tiered, with other compilers in place of Inductor: ones whose code is
wrong, slow or an error, which no graph makes of Inductor at will.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from runtime import jit
from runtime.aot.compilers import tiered as tiers
from runtime.aot.compilers.inductor_trial import TrialFailed
from runtime.aot.compilers.replay import as_python
from runtime.jit import explain

auto = partial(tiers.tiered, calls=3)
Native = Callable[[fx.GraphModule, list[Any]], Any]


def _compiled(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
    """Compile as Inductor would: to another function of the same graph."""
    return as_python(module)


def _changed(change: Callable[[Any], Any]) -> Native:
    """Return a compiler whose code returns ``change(result)`` for each result."""

    def compile_changed(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        right: Any = as_python(module)

        def run(args: list[Any]) -> list[Any]:
            return [change(result) for result in right(args)]

        run.placed = right.placed  # type: ignore[attr-defined]
        return run

    return compile_changed


def _raises(error: Exception) -> Native:
    def compile_raising(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        raise error

    return compile_raising


def _slow(result: Any) -> Any:
    time.sleep(0.005)
    return result


def _fails(result: Any) -> Any:
    raise ValueError("no such kernel\nmore lines")


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> Callable[[Native], None]:
    """Let another compiler stand for Inductor."""

    def use(compiler: Native) -> None:
        monkeypatch.setattr(tiers, "inductor", compiler)

    return use


def _serves(f: Any) -> list[str]:
    """Which function serves each graph of the first program."""
    return list(explain(f).programs[0].program.serves)


def _call_until(f: Callable[[], object], settled: Callable[[], bool]) -> None:
    """Call ``f`` until the background is done, for a minute at most."""
    for _ in range(6000):
        f()
        if settled():
            return
        time.sleep(0.01)
    raise AssertionError("the background does not end")


def _is_settled(f: Any) -> bool:
    said = " ".join(_serves(f))
    return "native code, " in said or "the replay: " in said


def _settle(f: Any, *args: Any) -> str:
    _call_until(lambda: f(*args), lambda: _is_settled(f))
    return " ".join(_serves(f))


def test_a_graph_is_served_by_the_replay_and_by_native_code_once_it_is_faster(
    native: Callable[[Native], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    native(_compiled)
    slow_replay = _changed(_slow)
    monkeypatch.setattr(tiers, "nop", slow_replay)
    f = jit(lambda x: x.sin() * 2, compiler=auto)
    x = torch.ones(3)
    expected = x.sin() * 2
    assert f(x).equal(expected) and _serves(f) == ["forward: the replay"]
    assert _settle(f, x).startswith("forward: native code, ")
    assert "µs beside" in str(explain(f))
    assert f(x).equal(expected)


WRONG: dict[str, tuple[Native, str]] = {
    "other elements": (_changed(lambda r: r + 1), "native code gives other elements as result 0"),
    "nothing": (_changed(lambda r: None), "native code gives None for tensor("),
    "another dtype": (_changed(lambda r: r.double()), "gives torch.float64[2, 3] for torch.float"),
    "other strides": (_changed(lambda r: r.t().contiguous().t()), "strides [1, 2] for [3, 1]"),
    "a NaN": (_changed(lambda r: r / 0 * 0), "other elements"),
    "an error": (_changed(_fails), "native code raises ValueError: no such kernel"),
    "slow": (_changed(_slow), "native code takes "),
    "not compiled": (_raises(RuntimeError("Inductor does not compile it")), "does not compile it"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_replay_stays_where_native_code_is_wrong_or_slow(
    name: str, native: Callable[[Native], None]
) -> None:
    compiler, said = WRONG[name]
    native(compiler)
    f = jit(lambda x: x.sin() * 2, compiler=auto)
    x = torch.ones(2, 3)
    assert said in _settle(f, x) and "the replay: " in str(explain(f))
    assert f(x).equal(x.sin() * 2)


def test_rounding_is_no_difference(native: Callable[[Native], None]) -> None:
    native(_changed(lambda r: r * (1 + 2**-20)))
    f = jit(lambda x: x.sum(0), compiler=auto)
    assert "native code gives" not in _settle(f, torch.ones(4, 3))


def test_both_graphs_of_a_training_step_have_tiers_of_their_own(
    native: Callable[[Native], None],
) -> None:
    native(_compiled)
    model = nn.Linear(2, 1)
    f = jit(lambda x: model(x).sum(), compiler=auto)
    x = torch.ones(3, 2)

    def step() -> None:
        model.zero_grad()
        f(x).backward()

    _call_until(step, lambda: _is_settled(f) and len(_serves(f)) == 2)
    step()
    assert model.weight.grad is not None and model.weight.grad.tolist() == [[3.0, 3.0]]
    assert [text.partition(":")[0] for text in _serves(f)] == ["forward", "backward"]


def test_what_the_graph_writes_is_written_once_by_each_call(
    native: Callable[[Native], None],
) -> None:
    native(_compiled)
    count = torch.zeros(2)

    def f(x: Tensor) -> Tensor:
        count.add_(1).mul_(1)
        return x * count

    compiled: Any = jit(f, compiler=auto)
    calls = 0
    while calls < 8 or not _is_settled(compiled):
        version = count._version
        calls += 1
        assert compiled(torch.ones(2)).tolist() == [calls] * 2
        assert count.tolist() == [calls] * 2 and count._version == version + 2
    for _ in range(3):
        calls += 1
        assert compiled(torch.ones(2)).tolist() == [calls] * 2


def test_code_in_which_python_calls_the_kernels_serves_where_there_is_no_other(
    native: Callable[[Native], None],
) -> None:
    asked: list[bool] = []

    def compile_one(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        asked.append(options.get("cpp_wrapper", False))
        if asked[-1]:
            raise RuntimeError("Inductor does not compile it") from TrialFailed("no", "error")
        return as_python(module)

    native(compile_one)
    f = jit(lambda x: x @ x, compiler=auto)
    said = _settle(f, torch.ones(3, 3))
    assert asked == [True, False] and "does not compile" not in said


def test_python_calls_the_code_of_a_graph_without_kernels(native: Callable[[Native], None]) -> None:
    asked: list[dict[str, Any]] = []

    def compile_one(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        asked.append(options)
        return as_python(module)

    native(compile_one)
    for f in (lambda x: x.sin() * 2, lambda x: x @ x):
        _settle(jit(f, compiler=auto), torch.ones(3, 3))
    assert [options.get("cpp_wrapper", False) for options in asked] == [False, True]


def test_an_error_of_native_code_is_that_of_the_replay(
    native: Callable[[Native], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = False

    def compile_failing(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        right: Any = as_python(module)

        def run(args: list[Any]) -> Any:
            if fails:
                args.clear()
                raise ValueError("index out of bounds")
            return right(args)

        run.placed = right.placed  # type: ignore[attr-defined]
        return run

    native(compile_failing)
    monkeypatch.setattr(tiers, "nop", _changed(_slow))
    f = jit(torch.linalg.inv, compiler=auto)
    x = torch.eye(2)
    assert "native code, " in _settle(f, x)
    fails = True
    assert f(x).equal(x)
    with pytest.raises(RuntimeError, match="singular") as caught:
        f(torch.zeros(2, 2))
    assert isinstance(caught.value, vars(torch.linalg)["LinAlgError"])


def test_no_graph_is_compiled_when_the_time_is_spent(
    native: Callable[[Native], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    native(_compiled)
    monkeypatch.setattr(tiers, "BUDGET", 0.0)
    f = jit(lambda x: x.cos(), compiler=auto)
    assert "time for compiling in the background is spent" in _settle(f, torch.ones(2))


def test_threads_that_call_meanwhile_get_right_results(native: Callable[[Native], None]) -> None:
    native(_compiled)
    f = jit(lambda x: x * 2 + 1, compiler=auto)
    wrong: list[float] = []

    def call(number: float) -> None:
        for _ in range(300):
            found = f(torch.full((), number)).item()
            if found != number * 2 + 1:
                wrong.append(found)

    threads = [threading.Thread(target=call, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_code_that_writes_to_an_argument_by_mistake_is_not_taken_and_harms_nothing(
    native: Callable[[Native], None],
) -> None:
    def compile_writing(module: fx.GraphModule, inputs: list[Any], **options: Any) -> Any:
        right: Any = as_python(module)

        def run(args: list[Any]) -> Any:
            given = list(args)
            results = right(args)
            given[0].zero_()
            return results

        run.placed = right.placed  # type: ignore[attr-defined]
        return run

    native(compile_writing)
    f = jit(lambda x, y: x * y, compiler=auto)
    x, y = torch.ones(3), torch.ones(1).expand(3)
    assert "native code gives other elements" in _settle(f, x, y)
    assert x.equal(torch.ones(3)) and f(x, y).equal(x)
