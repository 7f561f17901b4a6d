"""What the options of a checkpoint do, which segments run again, and what is around both runs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import torch

import runtime
import runtime.checkpoint as ckpt
from runtime import unwrap
from runtime.autograd import Function
from runtime.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)
from tests.runtime.of_torch import CHECKPOINT_DECORATES

aten = torch.ops.aten
once = functools.partial(checkpoint, use_reentrant=False)


def leaf(*data: float) -> Any:
    return runtime.tensor(data or (1.0, 2.0, 3.0), requires_grad=True)


def differing(first: Any, second: Any, **options: Any) -> Any:
    """The result of a checkpoint whose function is ``second`` when it runs again."""
    functions = iter((first, second))
    return once(lambda x: next(functions)(x), leaf(), **options)


class TestDeterminism:
    def test_what_was_saved_is_compared_unless_told_otherwise(self) -> None:
        def pair() -> dict[str, Any]:
            return {
                "first": lambda x: x.sin().exp(),
                "second": lambda x: x[:1].sin().exp(),
                "early_stop": False,
            }

        with pytest.raises(CheckpointError, match="have different metadata"):
            differing(**pair(), determinism_check="default").sum().backward()
        differing(**pair(), determinism_check="none").sum().backward()  # shapes that broadcast

    def test_how_many_were_saved_is_compared_always(self) -> None:
        y = differing(
            lambda x: x.sin().exp(), lambda x: x.sin(), determinism_check="none", early_stop=False
        )
        with pytest.raises(
            CheckpointError, match=r"saved during forward: 2\n.*saved during recomputation: 1\."
        ):
            y.sum().backward()

    def test_the_message_names_every_tensor_that_differs_and_no_other(self) -> None:
        y = differing(
            lambda x: x.sin().exp().cos(),
            lambda x: (x * 1).sin().double().exp().cos(),
            early_stop=False,
        )
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        text = str(caught.value)
        assert "position 0" not in text and "position 1" in text and "position 2" in text
        assert (
            "torch.float32" in text
            and "torch.float64" in text
            and "Tip: checkpoint(..., debug=True)" in text
        )

    @pytest.mark.parametrize(
        ("argument", "around", "logged"),
        [(True, None, True), (False, True, True), (True, False, False)],
    )
    def test_debugging_is_asked_for_by_the_call_or_around_it(
        self, argument: bool, around: bool | None, logged: bool
    ) -> None:
        with set_checkpoint_debug_enabled(around):
            y = differing(lambda x: x.sin().exp(), lambda x: x.cos(), debug=argument)
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        assert ("Operations executed during recomputation" in str(caught.value)) is logged

    @pytest.mark.parametrize("fails", [False, True])
    def test_of_a_block_ends_with_the_block(self, fails: bool) -> None:
        with suppress(KeyError), set_checkpoint_debug_enabled(True):
            if fails:
                raise KeyError
        y = differing(lambda x: x.sin().exp(), lambda x: x.cos())
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        assert "Operations executed during recomputation" not in str(caught.value)

    def test_the_log_numbers_the_ops_of_both_runs_and_shows_results_and_lines(self) -> None:
        y = differing(lambda x: x.mul(2).sin().exp(), lambda x: x.cos(), debug=True)
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        text = str(caught.value)
        assert "float32[3] = aten.mul.Tensor(float32[3], 2)   (1 of 3 in original)" in text
        assert (
            "(3 of 3 in original)" in text
            and "(1 of 1 in recompute)" in text
            and "(0 of" not in text
        )
        assert text.count("test_options.py") >= 4
        assert (
            text.index("ops of the original")
            < text.index("ops of the recomputation")
            < text.index("4. ERROR")
        )


class TestEarlyStop:
    @pytest.mark.parametrize(
        ("argument", "around", "runs"),
        [(True, None, 1), (False, None, 2), (True, False, 2), (True, True, 1), (False, True, None)],
    )
    def test_is_asked_for_by_the_call_or_around_it(
        self, argument: bool, around: bool | None, runs: int | None
    ) -> None:
        """``runs``: of what follows the last saved tensor. Which of two that contradict counts
        is torch's choice."""

        def count(lib: Any, tensor: Any) -> int:
            calls = []

            def f(x: Any) -> Any:
                y = x.sin().cos()
                calls.append(1)
                return y

            with (
                lib.set_checkpoint_early_stop(around)
                if around is not None
                else contextmanager(lambda: iter([None]))()
            ):
                y = lib.checkpoint(
                    f, tensor([1.0], requires_grad=True), use_reentrant=False, early_stop=argument
                )
            y.sum().backward()
            return len(calls)

        found = count(ckpt, runtime.tensor)
        assert found == count(torch.utils.checkpoint, torch.tensor)
        assert runs is None or found == runs

    def test_is_what_it_was_after_an_error(self) -> None:
        def ends() -> int:
            """How often a checkpointed function comes to its end."""
            calls = []

            def f(x: Any) -> Any:
                y = x.sin().cos()
                calls.append(1)
                return y

            once(f, leaf(1.0)).sum().backward()
            return len(calls)

        before = ends()
        with pytest.raises(KeyError), set_checkpoint_early_stop(False):
            assert ends() == before + 1
            raise KeyError
        assert ends() == before


def test_groups_do_not_nest_and_end_with_an_error_too() -> None:
    with ckpt.GraphExecGroup() as group:
        assert isinstance(group, ckpt.GraphExecGroup)
        with (
            pytest.raises(RuntimeError, match="GraphExecGroup cannot be nested"),
            ckpt.GraphExecGroup(),
        ):
            pass
    with pytest.raises(KeyError), ckpt.GraphExecGroup():
        raise KeyError
    with ckpt.GraphExecGroup():
        pass


def test_a_saved_tensor_is_read_once_per_pass() -> None:
    class Twice(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x.exp())
            return x.exp()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return g * ctx.saved_tensors[0] * ctx.saved_tensors[0]

    with pytest.raises(
        CheckpointError,
        match="Unpack is being triggered for a tensor that was already unpacked once",
    ):
        once(Twice.apply, leaf()).sum().backward()


class TestSequential:
    @pytest.mark.parametrize(
        ("count", "segments", "again"),
        [(5, 2, [0, 1]), (6, 3, [0, 1, 2, 3]), (5, 3, [0, 1]), (3, 1, []), (3, 3, [0, 1])],
    )
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_all_segments_but_the_last_run_again(
        self, count: int, segments: int, again: list[int], reentrant: bool
    ) -> None:
        runs: list[int] = []

        def layer(i: int) -> Any:
            def f(x: Any) -> Any:
                runs.append(i)
                return x.sin()

            return f

        x = leaf()
        y = checkpoint_sequential(
            [layer(i) for i in range(count)], segments, x, use_reentrant=reentrant
        )
        assert runs == list(range(count))
        y.sum().backward()
        assert sorted(runs[count:]) == again

    def test_the_state_of_generators_is_kept_unless_told_otherwise(self) -> None:
        drawn: list[Any] = []

        def noise(x: Any) -> Any:
            drawn.append(torch.rand(1).item())
            return (x * drawn[-1]).sin()

        for preserve in (True, False):
            drawn.clear()
            checkpoint_sequential(
                [noise, torch.sin], 2, leaf(), use_reentrant=False, preserve_rng_state=preserve
            ).sum().backward()
            assert len(drawn) == 2 and (drawn[0] == drawn[1]) is preserve

    def test_unknown_options_are_refused(self) -> None:
        with pytest.raises(ValueError, match="Unexpected keyword arguments: early_stopping"):
            checkpoint_sequential([torch.sin], 1, leaf(), use_reentrant=False, early_stopping=True)


class TestReentrant:
    def test_draws_are_the_same_unless_told_otherwise(self) -> None:
        drawn: list[Any] = []

        def noise(x: Any) -> Any:
            drawn.append(torch.rand(1).item())
            return x * drawn[-1]

        for preserve in (True, False):
            drawn.clear()
            checkpoint(
                noise, leaf(), use_reentrant=True, preserve_rng_state=preserve
            ).sum().backward()
            assert len(drawn) == 2 and (drawn[0] == drawn[1]) is preserve

    def test_arguments_that_are_no_tensors_or_need_no_gradient(self) -> None:
        x, constant = leaf(), runtime.tensor([2.0, 3.0, 4.0])
        seen = []

        def f(a: Any, number: int, b: Any, word: str) -> Any:
            seen.append((torch.is_grad_enabled(), number, b.requires_grad, word))
            return a * b * number

        checkpoint(f, x, 3, constant, "w", use_reentrant=True).sum().backward()
        assert seen == [(False, 3, False, "w"), (True, 3, False, "w")]
        assert x.grad.tolist() == [6.0, 9.0, 12.0] and constant.grad is None

    def test_detached_variables_are_leaves_that_share_memory(self) -> None:
        x, plain = leaf(), runtime.tensor([1.0])
        a, b, c = ckpt.detach_variable((x * 1, plain, "word"))
        assert a.is_leaf and a.requires_grad and not b.requires_grad and c == "word"
        b.add_(1)
        assert plain.item() == 2.0
        with pytest.raises(
            RuntimeError,
            match=r"Only tuple of tensors is supported. Got Unsupported input type: list",
        ):
            ckpt.detach_variable([x])  # type: ignore[arg-type]

    def test_inputs_are_checked_for_one_that_requires_grad(self) -> None:
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            ckpt.check_backward_validity([torch.ones(1), 3])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ckpt.check_backward_validity([torch.ones(1), leaf(), 3])


class TestState:
    def test_the_cpu_has_no_device_states(self) -> None:
        assert ckpt.get_device_states(torch.ones(1), "word") == ([], [])
        ckpt.set_device_states([], [])

    def test_the_default_device_type_may_be_set(self, monkeypatch: pytest.MonkeyPatch) -> None:
        kind = ckpt.DefaultDeviceType
        monkeypatch.setattr(kind, "_type", None)
        expected = torch.accelerator.current_accelerator()
        assert (
            kind.get_device_type() == ("cpu" if expected is None else expected.type) == kind._type
        )
        kind.set_device_type("meta")
        assert kind.get_device_type() == "meta"


def test_a_call_that_does_not_name_the_form_is_reentrant() -> None:
    modes: list[bool] = []

    def f(x: Any) -> Any:
        modes.append(torch.is_grad_enabled())
        return x.sin()

    with pytest.warns(UserWarning, match=r"checkpoint: the use_reentrant"):
        checkpoint(f, leaf()).sum().backward()
    with pytest.warns(UserWarning, match=r"checkpoint_sequential: the use_reentrant") as told:
        checkpoint_sequential([f, torch.sin], 2, leaf()).sum().backward()
    assert modes == [False, True] * 2 and len(told) == 1  # the first run records nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checkpoint_sequential([f, torch.sin], 2, leaf(), use_reentrant=False).sum().backward()
        checkpoint(f, leaf(), use_reentrant=False).sum().backward()
    assert modes[4:] == [True] * 4


def test_arguments_of_a_transform_and_objects_of_any_kind_are_given_again_as_they_are() -> None:
    class Thing:
        _edge = "of a polygon"

    def f(x: Any, thing: Thing) -> Any:
        assert thing._edge == "of a polygon"
        return x.sin().exp()

    x, y = leaf(), leaf()
    f(y, Thing()).sum().backward()
    once(f, x, Thing()).sum().backward()
    rows = runtime.func.vmap(runtime.func.grad(lambda row: once(f, row, Thing())))(x.detach())
    for found in (x.grad, rows):
        torch.testing.assert_close(unwrap(found), unwrap(y.grad))
    batched = runtime.func.vmap(lambda row: once(f, row, Thing()))(x.detach())
    torch.testing.assert_close(unwrap(batched), unwrap(f(x.detach(), Thing())))


def test_policies_have_the_names_and_numbers_of_torchs() -> None:
    assert {p.name: p.value for p in CheckpointPolicy} == {
        p.name: p.value for p in torch.utils.checkpoint.CheckpointPolicy
    }


def test_without_grad_mode_the_first_context_is_around_the_only_run() -> None:
    entered: list[str] = []

    @contextmanager
    def told(name: str) -> Iterator[None]:
        entered.append(name)
        yield
        entered.append(f"{name} left")

    with torch.no_grad():
        y = once(
            lambda x, *, k: x * k, leaf(), k=3, context_fn=lambda: (told("first"), told("again"))
        )
    assert y.tolist() == [3.0, 6.0, 9.0] and entered == ["first", "first left"]
    contexts = ckpt.noop_context_fn()
    for context in contexts:
        with context as value:
            assert value is None


@pytest.mark.skipif(not CHECKPOINT_DECORATES, reason="torch's checkpoint is no decorator")
class TestDecorator:
    @staticmethod
    def runs(checkpoint: Any, leaf: Any) -> list[Any]:
        calls: list[str] = []

        @checkpoint(use_reentrant=False, early_stop=False)  # type: ignore[untyped-decorator]
        def f(x: Any, *, debug: int) -> Any:
            """Call with a keyword that is an option's name."""
            calls.append("f")
            return x.sin().exp() * debug

        class Layer:
            scale = 2

            @checkpoint(use_reentrant=True)  # type: ignore[untyped-decorator]
            def method(self, x: Any) -> Any:
                calls.append("method")
                return x.sin() * self.scale

        x = leaf([1.0, 2.0], requires_grad=True)
        f(x, debug=3).sum().backward()
        Layer().method(x).sum().backward()
        return [x.grad.tolist(), calls, f.__name__, f.__doc__, Layer.method.__name__]

    def test_a_function_and_a_method_are_checkpointed_in_each_call(self) -> None:
        found = self.runs(checkpoint, runtime.tensor)
        assert found == self.runs(torch.utils.checkpoint.checkpoint, torch.tensor)
        assert found[1] == ["f", "f", "method", "method"]

    @pytest.mark.parametrize("lib", [ckpt, torch.utils.checkpoint])
    def test_other_keywords_need_a_function(self, lib: Any) -> None:
        with pytest.raises(ValueError, match="Unexpected keyword arguments: k"):
            lib.checkpoint(use_reentrant=False, k=3)

    def test_the_caller_is_told_that_the_form_should_be_named(self) -> None:
        with pytest.warns(UserWarning, match="the use_reentrant") as told:
            checkpoint()(torch.sin)(leaf())
        assert [w.filename for w in told] == [__file__]
