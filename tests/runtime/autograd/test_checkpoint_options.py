"""What the options of a checkpoint do, which segments run again, and what a selective one takes from the first run."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
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
    SelectiveCheckpointContext,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_debug_enabled,
    set_checkpoint_early_stop,
)

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
            return {"first": lambda x: x.sin().exp(), "second": lambda x: x[:1].sin().exp(), "early_stop": False}

        with pytest.raises(CheckpointError, match="have different metadata"):
            differing(**pair(), determinism_check="default").sum().backward()
        differing(**pair(), determinism_check="none").sum().backward()  # shapes that broadcast

    def test_how_many_were_saved_is_compared_always(self) -> None:
        y = differing(lambda x: x.sin().exp(), lambda x: x.sin(), determinism_check="none", early_stop=False)
        with pytest.raises(CheckpointError, match=r"saved during forward: 2\n.*saved during recomputation: 1\."):
            y.sum().backward()

    def test_the_message_names_every_tensor_that_differs_and_no_other(self) -> None:
        y = differing(lambda x: x.sin().exp().cos(), lambda x: (x * 1).sin().double().exp().cos(), early_stop=False)
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        text = str(caught.value)
        assert "position 0" not in text and "position 1" in text and "position 2" in text
        assert "torch.float32" in text and "torch.float64" in text and "Tip: checkpoint(..., debug=True)" in text

    @pytest.mark.parametrize(("argument", "around", "logged"), [(True, None, True), (False, True, True), (True, False, False)])
    def test_debugging_is_asked_for_by_the_call_or_around_it(self, argument: bool, around: bool | None, logged: bool) -> None:
        with set_checkpoint_debug_enabled(around):
            y = differing(lambda x: x.sin().exp(), lambda x: x.cos(), debug=argument)
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        assert ("Operations executed during recomputation" in str(caught.value)) is logged
        assert ckpt.POLICY.debug is None

    def test_the_log_numbers_the_ops_of_both_runs_and_shows_results_and_lines(self) -> None:
        y = differing(lambda x: x.mul(2).sin().exp(), lambda x: x.cos(), debug=True)
        with pytest.raises(CheckpointError) as caught:
            y.sum().backward()
        text = str(caught.value)
        assert "float32[3] = aten.mul.Tensor(float32[3], 2)   (1 of 3 in original)" in text
        assert "(3 of 3 in original)" in text and "(1 of 1 in recompute)" in text and "(0 of" not in text
        assert text.count("test_checkpoint_options.py") >= 4
        assert text.index("ops of the original") < text.index("ops of the recomputation") < text.index("4. ERROR")


class TestEarlyStop:
    @pytest.mark.parametrize(
        ("argument", "around", "runs"), [(True, None, 1), (False, None, 2), (True, False, 2), (True, True, 1), (False, True, None)]
    )
    def test_is_asked_for_by_the_call_or_around_it(self, argument: bool, around: bool | None, runs: int | None) -> None:
        """``runs``: of what follows the last saved tensor. Which of two that contradict counts is torch's choice."""

        def count(lib: Any, tensor: Any) -> int:
            calls = []

            def f(x: Any) -> Any:
                y = x.sin().cos()
                calls.append(1)
                return y

            with lib.set_checkpoint_early_stop(around) if around is not None else contextmanager(lambda: iter([None]))():
                y = lib.checkpoint(f, tensor([1.0], requires_grad=True), use_reentrant=False, early_stop=argument)
            y.sum().backward()
            return len(calls)

        found = count(ckpt, runtime.tensor)
        assert found == count(torch.utils.checkpoint, torch.tensor)
        assert runs is None or found == runs

    def test_is_what_it_was_after_an_error(self) -> None:
        before = ckpt.POLICY.early_stop
        with pytest.raises(KeyError), set_checkpoint_early_stop(False):
            raise KeyError
        assert ckpt.POLICY.early_stop is before


def test_groups_do_not_nest_and_end_with_an_error_too() -> None:
    with ckpt.GraphExecGroup() as group:
        assert isinstance(group, ckpt.GraphExecGroup)
        with pytest.raises(RuntimeError, match="GraphExecGroup cannot be nested"), ckpt.GraphExecGroup():
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

    with pytest.raises(CheckpointError, match="Unpack is being triggered for a tensor that was already unpacked once"):
        once(Twice.apply, leaf()).sum().backward()


class TestSequential:
    @pytest.mark.parametrize(
        ("count", "segments", "again"), [(5, 2, [0, 1]), (6, 3, [0, 1, 2, 3]), (5, 3, [0, 1]), (3, 1, []), (3, 3, [0, 1])]
    )
    @pytest.mark.parametrize("reentrant", [False, True])
    def test_all_segments_but_the_last_run_again(self, count: int, segments: int, again: list[int], reentrant: bool) -> None:
        runs: list[int] = []

        def layer(i: int) -> Any:
            def f(x: Any) -> Any:
                runs.append(i)
                return x.sin()

            return f

        x = leaf()
        y = checkpoint_sequential([layer(i) for i in range(count)], segments, x, use_reentrant=reentrant)
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
            checkpoint_sequential([noise, torch.sin], 2, leaf(), use_reentrant=False, preserve_rng_state=preserve).sum().backward()
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
            checkpoint(noise, leaf(), use_reentrant=True, preserve_rng_state=preserve).sum().backward()
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
        with pytest.raises(RuntimeError, match=r"Only tuple of tensors is supported. Got Unsupported input type: list"):
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
        assert kind.get_device_type() == ("cpu" if expected is None else expected.type) == kind._type
        kind.set_device_type("meta")
        assert kind.get_device_type() == "meta"

    def test_the_states_of_devices_are_taken_and_given_back_on_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        states, current = {0: torch.tensor([10]), 1: torch.tensor([11])}, [0]

        @contextmanager
        def device(number: int) -> Iterator[None]:
            before, current[0] = current[0], number
            yield
            current[0] = before

        module = SimpleNamespace(
            device=device, get_rng_state=lambda: states[current[0]], set_rng_state=lambda s: states.update({current[0]: s})
        )
        monkeypatch.setattr("runtime.checkpoint.state._module", lambda kind: module)
        monkeypatch.setattr("runtime.checkpoint.state._on_devices", lambda args: list(args))
        on = [SimpleNamespace(get_device=lambda n=n: n, device=SimpleNamespace(type="fake")) for n in (1, 0, 1)]
        devices, found = ckpt.get_device_states(*on)
        assert devices == [0, 1] and [s.item() for s in found] == [10, 11]
        ckpt.set_device_states([0, 1], [torch.tensor([20]), torch.tensor([21])], device_type="fake")
        assert [s.item() for s in states.values()] == [20, 21]
        ckpt.set_device_states([0], [torch.tensor([30])], device_type="cpu")
        assert states[0].item() == 20


class TestSelective:
    @staticmethod
    def calls_again(policy: Any, f: Any, x: Any) -> tuple[list[str], Any]:
        """The kernels that the second run calls, and the gradient. ``policy`` says what the first run saves."""
        first, second = create_selective_checkpoint_contexts(policy)
        called: list[str] = []
        kernel = second.kernel  # type: ignore[attr-defined]

        def noted(func: Any, call: Any, args: Any, kwargs: Any) -> Any:
            if call not in second.results.kept:  # type: ignore[attr-defined]
                called.append(str(func))
            return kernel(func, call, args, kwargs)

        second.kernel = noted  # type: ignore[attr-defined]
        once(f, x, context_fn=lambda: (first, second), early_stop=False).sum().backward()
        return called, x.grad

    @staticmethod
    def f(x: Any) -> Any:
        return x.sin().view(3, 1).mul(2).t().exp().sort()[0].cos()

    @pytest.mark.parametrize("wish", [True, *(p for p in CheckpointPolicy if "RECOMPUTE" not in p.name)])
    def test_what_is_saved_does_not_run_again_views_excepted(self, wish: Any) -> None:
        called, gradient = self.calls_again(lambda context, op, *args, **kwargs: wish, self.f, leaf())
        assert called == ["aten.view.default", "aten.t.default"]
        x = leaf()
        self.f(x).sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(x.grad))

    @pytest.mark.parametrize("wish", [False, CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE])
    def test_what_is_not_runs_again(self, wish: Any) -> None:
        called, gradient = self.calls_again(lambda context, op, *args, **kwargs: wish, self.f, leaf())
        assert [name.split(".")[1] for name in called] == ["sin", "view", "mul", "t", "exp", "sort", "cos"]
        x = leaf()
        self.f(x).sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(x.grad))

    def test_of_several_calls_of_one_op_each_has_its_result(self) -> None:
        x = leaf()
        called, gradient = self.calls_again([aten.sin.default], lambda x: x.sin().exp().sin().exp().sin(), x)
        assert [name.split(".")[1] for name in called] == ["exp", "exp"]
        y = leaf()
        y.sin().exp().sin().exp().sin().sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(y.grad))

    def test_views_of_what_is_saved_follow_a_write_to_their_base(self) -> None:
        def f(x: Any) -> Any:
            y = x * 2
            y[1:].mul_(x[:2])
            return y.view(-1).sin() * y

        called, gradient = self.calls_again(lambda context, op, *args, **kwargs: op is not aten.mul.Tensor, f, leaf())
        x = leaf()
        f(x).sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(x.grad))
        assert "aten.mul_.Tensor" in called and "aten.sin.default" not in called  # a write runs again whatever the policy says
        with pytest.raises(RuntimeError, match="has been mutated"):  # now the base is what was saved
            self.calls_again(lambda context, op, *args, **kwargs: True, f, leaf())

    def test_the_policy_is_told_which_run_it_is_and_the_result(self) -> None:
        context = SelectiveCheckpointContext(is_recompute=True)
        assert context.is_recompute and context.op_output is None

    @pytest.mark.parametrize("bad", [[torch.ops.aten.sin], ["sin"], None, 3])
    def test_a_policy_is_a_function_or_a_list_of_overloads(self, bad: Any) -> None:
        with pytest.raises((TypeError, ValueError)) as caught:
            create_selective_checkpoint_contexts(bad)
        packet = isinstance(bad, list) and bad[0] is torch.ops.aten.sin
        assert ("Please update the OpOverloadPacket to a specific OpOverload" in str(caught.value)) is packet
