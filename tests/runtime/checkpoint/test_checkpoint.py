"""Checkpointing: gradients equal those of the plain function, little is saved, and runs that differ
are an error. Torch's is the oracle."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
import runtime.checkpoint
from runtime import unwrap
from runtime.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)
from runtime.extend import Value
from tests.runtime.of_torch import SECOND_PASS_RUNS

from ..errors import told

OURS = SimpleNamespace(tensor=runtime.tensor, grad=runtime.autograd.grad, ckpt=runtime.checkpoint)
TORCH = SimpleNamespace(tensor=torch.tensor, grad=torch.autograd.grad, ckpt=torch.utils.checkpoint)
Function = Callable[[Any], Any]
once = functools.partial(checkpoint, use_reentrant=False)


def leaf(*data: float) -> Any:
    return runtime.tensor(data or (1.0, 2.0, 3.0), requires_grad=True)


def f(x: Any) -> Any:
    return x.sin().exp().sin()


def derivative(f: Function) -> Function:
    """The function's gradient as a function that can be differentiated again."""

    def g(x: Any) -> Any:
        with torch.enable_grad():
            (found,) = runtime.autograd.grad(f(x).sum(), x, create_graph=True)
        return found

    return g


def wrapped(f: Function) -> Function:
    return lambda x: once(f, x)


def equal_gradients(actual: Function, expected: Function) -> None:
    a, b = leaf(), leaf()
    torch.testing.assert_close(unwrap(actual(a)).detach(), unwrap(expected(b)).detach())
    actual(a).sum().backward()
    expected(b).sum().backward()
    torch.testing.assert_close(unwrap(a.grad), unwrap(b.grad))


def error(scenario: Callable[[Any], Any], lib: Any) -> BaseException:
    """What ``scenario`` ends with."""
    with pytest.raises(Exception) as caught:
        scenario(lib)
    return caught.value


def same_error(scenario: Callable[[Any], Any]) -> BaseException:
    found = error(scenario, OURS)
    assert told(found) == told(error(scenario, TORCH))
    return found


class Runs:
    """Counts how often a function runs."""

    def __init__(self, f: Function) -> None:
        self.f = f
        self.count = 0

    def __call__(self, x: Any) -> Any:
        self.count += 1
        return self.f(x)


@pytest.mark.parametrize("early_stop", [True, False])
class TestGradients:
    @pytest.fixture(autouse=True)
    def stopping(self, early_stop: bool) -> Iterator[None]:
        with set_checkpoint_early_stop(early_stop):
            yield

    @pytest.mark.parametrize(
        ("actual", "expected"),
        [
            (wrapped(f), f),
            (wrapped(wrapped(f)), f),
            (wrapped(lambda x: wrapped(f)(wrapped(f)(x.cos()))), lambda x: f(f(x.cos()))),
            (derivative(wrapped(f)), derivative(f)),
            (wrapped(derivative(wrapped(f))), derivative(f)),
            (derivative(wrapped(derivative(f))), derivative(derivative(f))),
            (derivative(wrapped(derivative(wrapped(wrapped(f))))), derivative(derivative(f))),
        ],
        ids=("once", "twice", "siblings", "second", "within", "both", "deep"),
    )
    def test_nest_with_each_other_and_with_derivatives(
        self, actual: Function, expected: Function
    ) -> None:
        equal_gradients(actual, expected)

    def test_passes_within_the_checkpointed_function(self) -> None:
        def g(x: Any) -> Any:
            a, b = f(x), x.cos().sin()
            (ga,) = runtime.autograd.grad(a.sum(), x)
            (gb,) = runtime.autograd.grad(b.sum(), x)
            return x.sin() * ga * gb.exp()

        equal_gradients(wrapped(g), g)

    def test_writes_within_the_checkpointed_function(self) -> None:
        def g(x: Any) -> Any:
            y = (x * 2).add_(x)
            y[1:].exp_()
            return torch.relu_(y * x) + (y * 3).sigmoid_()

        equal_gradients(wrapped(g), g)
        equal_gradients(wrapped(wrapped(g)), g)

    def test_keyword_and_other_arguments(self) -> None:
        def g(k: int, a: Any, *, b: Any, h: Function) -> Any:
            return h(k * a * b.exp()), "text"

        a, b = leaf(), leaf(0.5, 0.25, 1.0)
        out, text = once(g, 3, a, b=b, h=f)
        got = runtime.autograd.grad(out.sum(), (a, b))
        want = runtime.autograd.grad(g(3, a, b=b, h=f)[0].sum(), (a, b))
        torch.testing.assert_close([unwrap(t) for t in got], [unwrap(t) for t in want])
        assert text == "text"

    def test_a_retained_graph_runs_again_for_each_pass(self) -> None:
        x = leaf()
        run = Runs(f)
        y = once(run, x).sum()
        y.backward(retain_graph=True)
        y.backward()
        assert run.count == 3
        torch.testing.assert_close(unwrap(x.grad), unwrap(2 * derivative(f)(leaf()).detach()))


class TestWhatRuns:
    def test_the_second_run_stops_when_it_has_what_is_needed(self) -> None:
        counted = Runs(lambda x: x.clone())
        for enable, runs in ((True, 1), (False, 2)):
            counted.count = 0
            with set_checkpoint_early_stop(enable):
                y = once(lambda x: counted(x.sin().cos()), leaf())
            y.sum().backward()
            assert counted.count == runs

    def test_the_last_op_runs_once_where_only_its_input_is_needed(self) -> None:
        def scenario(lib: Any) -> int:
            with counting(torch.ops.aten.sin.default) as calls:
                lib.ckpt.checkpoint(
                    lambda x: x.sin(), lib.tensor([1.0], requires_grad=True), use_reentrant=False
                ).backward()
            return len(calls)

        assert scenario(OURS) == scenario(TORCH) == 1

    def test_nothing_runs_again_where_nothing_is_needed(self) -> None:
        run = Runs(lambda x: x * 2 + 1)
        once(run, leaf()).sum().backward()
        assert run.count == 1

    def test_random_numbers_are_the_same_unless_told_otherwise(self) -> None:
        def g(x: Any) -> Any:
            drawn.append(unwrap(torch.rand(3)))
            return (x * runtime.wrap(drawn[-1])).sin()

        drawn: list[torch.Tensor] = []
        for preserve in (True, False):
            drawn.clear()
            before = torch.get_rng_state()
            y = once(g, leaf(), preserve_rng_state=preserve)
            between = torch.get_rng_state()
            assert not between.equal(before)
            y.sum().backward()
            assert (
                drawn[0].equal(drawn[1]) is preserve
                and torch.get_rng_state().equal(between) is preserve
            )

    def test_autocast_is_as_it_was(self) -> None:
        seen = []

        def g(x: Any) -> Any:
            seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")))
            return x.sin().exp()

        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = once(g, leaf())
        y.sum().backward()
        assert seen == [(True, torch.bfloat16)] * 2

    def test_contexts_surround_both_runs(self) -> None:
        seen = []

        @contextmanager
        def told(name: str) -> Iterator[None]:
            seen.append(name)
            yield

        once(f, leaf(), context_fn=lambda: (told("first"), told("again"))).sum().backward()
        assert seen == ["first", "again"]

    def test_without_grad_mode_nothing_is_recorded(self) -> None:
        with torch.no_grad():
            y = once(f, leaf())
        assert not y.requires_grad

    def test_passes_of_a_group_share_one_run(self) -> None:
        run = Runs(lambda x: (x.sin().exp(), x.cos().exp()))
        x = leaf()
        with runtime.checkpoint.GraphExecGroup():
            a, b = once(run, x)
            runtime.autograd.grad(a.sum(), x)
            runtime.autograd.grad(b.sum(), x)
        assert run.count == 2


class TestMemory:
    def test_intermediate_tensors_are_not_kept(self, without_collector: None) -> None:
        kept = []

        def g(x: Any) -> Any:
            a = x.sin()
            kept.append(weakref.ref(a._inner))
            return a.exp().sin()

        x = leaf()
        y = once(g, x)
        assert kept[0]() is None
        y.sum().backward(retain_graph=True)
        assert len(kept) == 2 and kept[1]() is None

    def test_graphs_are_freed_by_reference_counting(self, without_collector: None) -> None:
        def refs(g: Function) -> list[Any]:
            x = leaf()
            y = g(x)
            y.sum().backward(retain_graph=True)
            return [weakref.ref(o) for o in (x, y, y.grad_fn, y.grad_fn.next_functions[0][0])]

        for g in (wrapped(f), wrapped(wrapped(f)), derivative(wrapped(derivative(wrapped(f))))):
            assert all(ref() is None for ref in refs(g))

    def test_parameters_of_modules(self) -> None:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(4)))
        reference = [p.detach().clone() for p in model.parameters()]
        for layer in model:
            for name, p in list(layer.named_parameters()):
                setattr(layer, name, torch.nn.Parameter(runtime.wrap(p.detach().clone())))
        data = torch.randn(3, 4, dtype=torch.float64)
        for reentrant in (True, False):
            x = runtime.wrap(data.clone(), True)
            checkpoint_sequential(model, 2, x, use_reentrant=reentrant).sin().sum().backward()
            theirs = torch.nn.Sequential(
                *(torch.nn.Linear(4, 4, dtype=torch.float64) for _ in range(4))
            )
            for p, value in zip(theirs.parameters(), reference, strict=True):
                p.data = value
            theirs(data).sin().sum().backward()
            for p, q in zip(model.parameters(), theirs.parameters(), strict=True):
                torch.testing.assert_close(unwrap(p.grad), q.grad)  # type: ignore[arg-type]
                p.grad = None


class TestErrors:
    @pytest.mark.parametrize(
        ("first", "second"),
        [
            (lambda x: x.sin().exp(), lambda x: x[:2].sin().exp()),
            (lambda x: x.sin().exp(), lambda x: x.double().sin().exp()),
            (lambda x: x.sin().cos().exp().sin(), lambda x: x.sin()),
            (lambda x: x.sin(), lambda x: x.sin().cos().exp().sin()),
        ],
        ids=("shape", "dtype", "fewer", "more"),
    )
    def test_runs_that_differ(self, first: Function, second: Function) -> None:
        def scenario(lib: Any) -> None:
            functions = iter((first, second))
            x = lib.tensor([1.0, 2.0, 3.0], requires_grad=True)
            y = lib.ckpt.checkpoint(
                lambda x: next(functions)(x), x, use_reentrant=False, early_stop=False
            )
            y.sum().backward()

        found = same_error(scenario)
        assert isinstance(found, CheckpointError)
        facts, expected = (str(e).partition("\n\n")[0] for e in (found, error(scenario, TORCH)))
        assert facts == expected  # how many tensors, or what each of them is

    def test_debugging_shows_the_ops_of_both_runs(self) -> None:
        functions = iter((lambda x: x.sin().exp(), lambda x: x.cos()))
        y = once(lambda x: next(functions)(x), leaf(), debug=True)
        with pytest.raises(
            CheckpointError,
            match=r"(?s)= aten.sin.default\(float32\[3\]\)\n.*= aten.cos.default\(float32\[3\]\)\n",
        ):
            y.sum().backward()

    @pytest.mark.parametrize(
        "options",
        [
            {"use_reentrant": True, "unknown": 1},
            {"use_reentrant": True, "debug": True},
            {"use_reentrant": True, "context_fn": lambda: ()},
            {"use_reentrant": False, "determinism_check": "strict"},
            {"use_reentrant": False, "debug": True, "context_fn": lambda: ()},
        ],
    )
    def test_options_that_make_no_sense(self, options: dict[str, Any]) -> None:
        def scenario(lib: Any) -> None:
            lib.ckpt.checkpoint(f, lib.tensor([1.0], requires_grad=True), **options)

        same_error(scenario)

    def test_the_form_should_be_named(self) -> None:
        with pytest.warns(
            UserWarning, match="the use_reentrant parameter should be passed explicitly"
        ):
            checkpoint(f, leaf())
        with pytest.warns(
            UserWarning, match="the use_reentrant parameter should be passed explicitly"
        ):
            checkpoint_sequential([f, f, f], 2, leaf())

    def test_a_modified_argument_is_reported(self) -> None:
        def scenario(lib: Any) -> None:
            z = lib.tensor([1.0, 2.0], requires_grad=True) + 1
            y = lib.ckpt.checkpoint(f, z, use_reentrant=False)
            z.detach().add_(1)
            y.sum().backward()

        assert "is at version 1; expected version 0" in str(same_error(scenario))

    def test_a_tensor_modified_within_the_function_is_reported(self) -> None:
        def g(x: Any) -> Any:
            y = x.sin()
            z = y * y
            y.add_(1)
            return z

        y = once(g, leaf(), early_stop=False)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()

    def test_disabled_hooks_forbid_it(self) -> None:
        with (
            runtime.autograd.graph.disable_saved_tensors_hooks("not here"),
            pytest.raises(RuntimeError, match="not here"),
        ):
            once(f, leaf())

    @pytest.mark.parametrize("segments", [0, 4])
    def test_as_many_segments_as_functions_at_most(self, segments: int) -> None:
        with pytest.raises(
            ValueError, match=r"segments must be between 1 and the number of functions, 3, but got"
        ):
            checkpoint_sequential([f, f, f], segments, leaf(), use_reentrant=False)


class TestReentrant:
    def test_gradients(self) -> None:
        equal_gradients(lambda x: checkpoint(f, x * 2, use_reentrant=True), lambda x: f(x * 2))
        equal_gradients(
            lambda x: checkpoint(
                lambda x: checkpoint(f, x, use_reentrant=True), x * 2, use_reentrant=True
            ),
            lambda x: f(x * 2),
        )

    def test_several_and_other_outputs(self) -> None:
        x = leaf()
        a, number, b = checkpoint(lambda x, k: (x.sin(), k, x.exp()), x, 3, use_reentrant=True)
        (a * b).sum().backward()
        y = leaf()
        (y.sin() * y.exp()).sum().backward()
        assert number == 3
        torch.testing.assert_close(unwrap(x.grad), unwrap(y.grad))

    @pytest.mark.parametrize(
        "scenario",
        [
            lambda lib, x: lib.grad(lib.ckpt.checkpoint(f, x, use_reentrant=True).sum(), x),
            lambda lib, x: lib.ckpt.checkpoint(f, x, use_reentrant=True).sum().backward(inputs=[x]),
            lambda lib, x: (
                lib.ckpt.checkpoint(lambda x: x.detach(), x, use_reentrant=True).sum().backward()
            ),
        ],
        ids=("grad", "inputs", "detached"),
    )
    def test_errors(self, scenario: Callable[[Any, Any], Any]) -> None:
        def run(lib: Any) -> None:
            scenario(lib, lib.tensor([1.0, 2.0], requires_grad=True))

        same_error(run)

    def test_inputs_without_gradient_are_warned_of(self) -> None:
        with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
            checkpoint(f, runtime.tensor([1.0]), use_reentrant=True)


@contextmanager
def counting(op: Any) -> Iterator[list[Any]]:
    """The calls of ``op`` that reach its kernel."""
    calls: list[Any] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(isinstance(a, Value) for a in args):  # the tape comes first
                with self:
                    return Value.__torch_dispatch__(func, types, args, kwargs)
            if func is op:
                calls.append(args)
            return func(*args, **(kwargs or {}))

    with Count():  # type: ignore[no-untyped-call]
        yield calls


class TestSelective:
    @pytest.mark.parametrize("policy", list(CheckpointPolicy))
    def test_policies_leave_gradients_alone(self, policy: CheckpointPolicy) -> None:
        def g(x: Any) -> Any:
            return (
                x.sin().mul(2).view(3, 1).squeeze().exp().mm(x.new_ones(3, 3)).sum(0)
                if x.dim() > 1
                else f(x) * x.view(3, 1).squeeze()
            )

        contexts = functools.partial(
            create_selective_checkpoint_contexts, lambda context, op, *args, **kwargs: policy
        )
        equal_gradients(lambda x: once(g, x, context_fn=contexts), g)

    def test_saved_ops_do_not_run_again(self) -> None:
        def g(x: Any) -> Any:
            return x.sin().mm(x).exp().mm(x)

        for ops, runs in (([], 3), ([torch.ops.aten.mm.default], 2)):
            x = runtime.wrap(torch.rand(3, 3), True)
            with counting(torch.ops.aten.mm.default) as calls:
                y = once(
                    g, x, context_fn=functools.partial(create_selective_checkpoint_contexts, ops)
                )
                forward = len(calls)
                assert y.grad_fn._saved_self.shape == x.shape
                assert len(calls) == runs and forward == 2

    def test_views_run_again_whatever_the_policy_says(self) -> None:
        contexts = functools.partial(
            create_selective_checkpoint_contexts, lambda *args, **kwargs: CheckpointPolicy.MUST_SAVE
        )
        x = runtime.wrap(torch.rand(3), True)
        for op, runs in ((torch.ops.aten.unsqueeze.default, 2), (torch.ops.aten.sin.default, 1)):
            with counting(op) as calls:
                once(lambda x: x.sin().unsqueeze(0).exp(), x, context_fn=contexts).sum().backward()
            assert len(calls) == runs

    def test_a_view_written_in_place_has_the_gradient_of_the_second_run(self) -> None:
        def g(x: Any) -> Any:
            y = x.sin()
            y.view(3, 1).mul_(2)
            return y.exp()

        contexts = functools.partial(
            create_selective_checkpoint_contexts, [torch.ops.aten.view.default]
        )
        equal_gradients(lambda x: once(g, x, context_fn=contexts), g)

    def test_the_policy_sees_op_arguments_and_result_of_the_first_run(self) -> None:
        seen = []

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
            seen.append(
                (str(op), len(args), type(context.op_output) is torch.Tensor, context.is_recompute)
            )
            return CheckpointPolicy.PREFER_RECOMPUTE

        y = once(
            lambda x: (x * 2).sin().view(3, 1).exp_(),
            leaf(),
            context_fn=functools.partial(create_selective_checkpoint_contexts, policy),
        )
        y.sum().backward()
        last = [("aten.view.default", 2, True, False), ("aten.exp_.default", 1, True, False)]
        assert seen == [
            ("aten.mul.Tensor", 2, True, False),
            ("aten.sin.default", 1, True, False),
            *last,
        ]

    def test_results_serve_one_pass(self) -> None:
        def scenario(lib: Any) -> None:
            contexts = functools.partial(
                lib.ckpt.create_selective_checkpoint_contexts, [torch.ops.aten.sin.default]
            )
            y = lib.ckpt.checkpoint(
                f, lib.tensor([1.0], requires_grad=True), use_reentrant=False, context_fn=contexts
            )
            y.backward(retain_graph=True)
            y.backward()

        if SECOND_PASS_RUNS:
            scenario(TORCH)  # with a wrong gradient
            assert "Trying to backward an extra time" in str(error(scenario, OURS))
            return
        same_error(scenario)

    def test_saved_results_may_not_be_written_to(self) -> None:
        def scenario(lib: Any, allow: bool = False) -> None:
            contexts = functools.partial(
                lib.ckpt.create_selective_checkpoint_contexts, [torch.ops.aten.sin.default], allow
            )
            x = lib.tensor([1.0], requires_grad=True)
            lib.ckpt.checkpoint(
                lambda x: x.sin().mul_(2).cos().exp(), x, use_reentrant=False, context_fn=contexts
            ).backward()

        same_error(scenario)
        scenario(OURS, allow=True)

    @pytest.mark.parametrize("bad", [2, [2], [torch.ops.aten.sin]])
    def test_lists_are_of_overloads(self, bad: Any) -> None:
        with pytest.raises(
            (TypeError, ValueError),
            match=(
                r"either a function or a list of ops|Expected op "
                r"in `op_list` to be an OpOverload"
            ),
        ):
            create_selective_checkpoint_contexts(bad)
