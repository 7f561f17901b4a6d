"""Saved tensors: hooks, what they see, versions, and that nothing saved outlives its graph. Torch's
engine is the oracle."""

import re
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap
from runtime.autograd import graph
from runtime.checkpoint import checkpoint
from runtime.errors import NestedTensor

from ..errors import told

OURS = SimpleNamespace(tensor=runtime.tensor, grad=runtime.autograd.grad, graph=graph)
TORCH = SimpleNamespace(tensor=torch.tensor, grad=torch.autograd.grad, graph=torch.autograd.graph)


def outcome(scenario: Callable[[Any, Any], Any], lib: Any) -> Any:
    """What ``scenario(lib, leaf)`` returns, or the type and the fault of its error."""
    try:
        found = scenario(lib, lib.tensor([1.0, 2.0, 3.0], requires_grad=True))
    except Exception as e:
        return told(e)
    return unwrap(found).detach() if isinstance(found, torch.Tensor) else found


def same(scenario: Callable[[Any, Any], Any]) -> None:
    expected, found = outcome(scenario, TORCH), outcome(scenario, OURS)
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(found, expected)
    else:
        assert found == expected


def slope(lib: Any, y: torch.Tensor, x: torch.Tensor) -> Any:
    return lib.grad(y.sum(), x)[0]


class TestDefaultHooks:
    def test_what_backward_uses_is_what_unpack_returns(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: 2 * t.detach(), lambda t: t + 1):
                y = x * x
            return slope(lib, y, x)

        same(scenario)

    def test_of_nested_pairs_the_innermost_applies(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: 3 * t, lambda t: t):
                with lib.graph.saved_tensors_hooks(lambda t: 5 * t, lambda t: t):
                    y = x * x
                z = x * x
            return slope(lib, y + 10 * z + x * x, x)

        same(scenario)

    def test_pack_sees_each_saved_tensor_with_its_history_and_in_no_grad_mode(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            seen: list[Any] = []

            def pack(t: Any) -> Any:
                seen.append(
                    (
                        t is x,
                        t.requires_grad,
                        t.grad_fn.name() if t.grad_fn else None,
                        t.is_leaf,
                        torch.is_grad_enabled(),
                    )
                )
                return t.detach()

            with lib.graph.saved_tensors_hooks(pack, lambda t: t):
                y = x.sin().exp() * lib.tensor([1.0, 1.0, 1.0])
                _ = y * 2.5
            return seen

        same(scenario)

    def test_second_derivatives_go_through_hooks_of_both_passes(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: 2 * t, lambda t: t):
                (g,) = lib.grad((x**3).sum(), x, create_graph=True)
            return slope(lib, g, x)

        same(scenario)

    @pytest.mark.parametrize("bad", [3, None, "a"])
    def test_unpack_must_return_a_tensor(self, bad: Any) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: t.detach(), lambda _: bad):
                y = x * x
            return slope(lib, y, x)

        assert outcome(scenario, OURS)[0] == "TypeError"
        same(scenario)

    def test_pack_may_not_write_to_its_input(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: t.detach().add_(1), lambda t: t):
                return x * x

        assert outcome(scenario, OURS)[0] == "RuntimeError"
        same(scenario)

    def test_errors_of_hooks_reach_the_caller(self) -> None:
        def fail(_: Any) -> Any:
            raise ZeroDivisionError("mine")

        def packing(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(fail, lambda t: t):
                return x * x

        def unpacking(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: t.detach(), fail):
                y = x * x
            return slope(lib, y, x)

        for scenario in (packing, unpacking):
            assert outcome(scenario, OURS) == ("ZeroDivisionError", "mine")

    def test_hooks_must_be_callable(self) -> None:
        with (
            pytest.raises(TypeError, match="incompatible function arguments"),
            graph.saved_tensors_hooks(3, lambda t: t),  # type: ignore[arg-type]
        ):
            pass

    def test_disabling_forbids_entering_and_being_active(self) -> None:
        def entering(lib: Any, x: Any) -> Any:
            with (
                lib.graph.disable_saved_tensors_hooks("outer"),
                lib.graph.disable_saved_tensors_hooks("inner"),
                lib.graph.save_on_cpu(),
            ):
                return x * x

        def active(lib: Any, x: Any) -> Any:
            with lib.graph.save_on_cpu(), lib.graph.disable_saved_tensors_hooks("active"):
                return x * x

        def afterwards(lib: Any, x: Any) -> Any:
            with lib.graph.disable_saved_tensors_hooks("over"):
                pass
            with lib.graph.save_on_cpu():
                return x * x

        for scenario in (entering, active, afterwards):
            same(scenario)
        assert outcome(entering, OURS) == ("RuntimeError", "inner") and outcome(active, OURS) == (
            "RuntimeError",
            "active",
        )

    @pytest.mark.parametrize("pin_memory", [False, True])
    def test_save_on_cpu_leaves_gradients_alone(self, pin_memory: bool) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with lib.graph.save_on_cpu(pin_memory):
                y = x.sin().exp() * x
            return slope(lib, y, x)

        same(scenario)


X = torch.tensor([1.0, 2.0, 3.0])
WAYS: dict[str, Callable[..., Any]] = {
    "session": lambda f: runtime.autograd.grad(f(x := runtime.wrap(X).requires_grad_()).sum(), x)[
        0
    ],
    "jitted": lambda f: runtime.autograd.grad(
        runtime.jit(f)(x := runtime.wrap(X).requires_grad_()).sum(), x
    )[0],
    "jitted step": lambda f: runtime.jit(
        lambda x: runtime.autograd.grad(f(y := x.clone().requires_grad_()).sum(), y)[0]
    )(X),
}


@pytest.mark.parametrize("way", WAYS)
class TestHooksOfTorchWithoutTheDropIn:
    def test_they_pack_what_is_saved(self, way: str) -> None:
        def program(x: Any) -> Any:
            with torch.autograd.graph.saved_tensors_hooks(
                lambda t: 2 * t.detach(), lambda t: t + 1
            ):
                y = x * x
            return y + x * x

        assert unwrap(WAYS[way](program)).tolist() == [8.0, 14.0, 20.0]  # 2 (2x + 1) + 2x

    def test_those_of_its_checkpoint_change_no_value(self, way: str) -> None:
        def program(x: Any) -> Any:
            return torch.utils.checkpoint.checkpoint(lambda x: x.sin() * x, x, use_reentrant=False)

        torch.testing.assert_close(unwrap(WAYS[way](program)), X.sin() + X * X.cos())


def test_hooks_of_torch_around_a_call_are_not_traced_into_its_program() -> None:
    f = runtime.jit(lambda x: x.sin() * x)
    x = runtime.wrap(X).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        first = f(x)
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    torch.testing.assert_close(unwrap(slope(OURS, first, x)), X.sin() + X * X.cos())
    torch.testing.assert_close(unwrap(slope(OURS, f(x), x)), X.sin() + X * X.cos())


class TestHandles:
    def test_hooks_of_one_saved_tensor(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            y = x * x.sin()
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t.detach() * 2, lambda t: t + 1)
            torch.testing.assert_close(
                unwrap(y.grad_fn._saved_self.detach()), torch.tensor([3.0, 5.0, 7.0])
            )
            return slope(lib, y, x)

        same(scenario)

    def test_hooks_are_registered_once_and_before_freeing(self) -> None:
        def twice(lib: Any, x: Any) -> Any:
            y = x.sin()  # torch's handles do not keep their graph alive
            raw = y.grad_fn._raw_saved_self
            raw.register_hooks(lambda t: t, lambda t: t)
            raw.register_hooks(lambda t: t, lambda t: t)

        def over_default(lib: Any, x: Any) -> Any:
            with lib.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
                y = x.sin()
            y.grad_fn._raw_saved_self.register_hooks(lambda t: t, lambda t: t)

        def freed(lib: Any, x: Any) -> Any:
            y = x.sin()
            raw = y.grad_fn._raw_saved_self
            slope(lib, y, x)
            raw.register_hooks(lambda t: t, lambda t: t)

        def writes(lib: Any, x: Any) -> Any:
            y = x.exp()
            y.grad_fn._raw_saved_result.register_hooks(lambda t: t.add_(1), lambda t: t)

        for scenario in (twice, over_default, freed, writes):
            assert outcome(scenario, OURS)[0] == "RuntimeError"
            same(scenario)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            runtime.tensor([1.0], requires_grad=True).sin().grad_fn._raw_saved_self.register_hooks(  # type: ignore[union-attr]
                1, 1
            )

    def test_handles_show_what_is_kept(self) -> None:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        with graph.saved_tensors_hooks(lambda t: "payload", lambda _: torch.zeros(2)):
            packed: Any = x.sin().grad_fn
        plain: Any = x.sin().grad_fn
        assert (
            packed._raw_saved_self.data == "payload"
            and packed._raw_saved_self.unpack().tolist() == [0.0, 0.0]
        )
        assert (
            plain._raw_saved_self.data is x
            and plain._raw_saved_self.unpack_hook is None
            and plain._saved_self is x
        )

    @pytest.mark.parametrize("name", ["self", "other"])
    def test_a_saved_argument_has_the_history_of_the_argument(self, name: str) -> None:
        x = runtime.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        arguments = {"self": x.sin(), "other": x.cos()}
        product: Any = (arguments["self"] * arguments["other"]).grad_fn
        raw = getattr(product, f"_raw_saved_{name}")
        for saved in (getattr(product, f"_saved_{name}"), raw.unpack()):
            assert saved.grad_fn is arguments[name].grad_fn
            assert saved.equal(arguments[name])
        assert raw.data.grad_fn is arguments[name].grad_fn

    def test_a_saved_output_has_the_history_of_the_output(self) -> None:
        x = runtime.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        node: Any = x.sin().exp().grad_fn
        raw = node._raw_saved_result
        for saved in (node._saved_result, raw.unpack(), raw.data):
            assert saved.grad_fn is node
            assert saved.output_nr == 0

    def test_a_saved_output_of_several_has_its_number(self) -> None:
        parts: Any = torch.linalg.qr(runtime.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True))
        node = parts.R.grad_fn
        names = [name for name in dir(node) if name.startswith("_saved_")]
        tensors = [name for name in names if isinstance(getattr(node, name), torch.Tensor)]
        saved = [getattr(node, f"_raw{name}").unpack() for name in tensors]
        own = {output.output_nr: output for output in saved if output.grad_fn is node}
        for number, part in enumerate(parts):
            assert own[number].equal(part)

    def test_a_saved_output_is_another_tensor_with_the_same_history(self) -> None:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        y: Any = x.exp()
        again = y.grad_fn._saved_result
        assert (
            again is not y
            and again.grad_fn is y.grad_fn
            and again.equal(y)
            and again._version == y._version
        )

    def test_reading_after_freeing_is_an_error(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            y = x.sin()
            slope(lib, y, x)
            return y.grad_fn._saved_self

        assert outcome(scenario, OURS)[0] == "RuntimeError"
        same(scenario)


class TestVersions:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
    def test_a_modified_leaf_or_constant_is_reported_with_versions(
        self, dtype: torch.dtype
    ) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            x = x.detach().to(dtype).requires_grad_()
            y = x * x
            with torch.no_grad():
                x.add_(1)
            return slope(lib, y.abs(), x)

        assert outcome(scenario, OURS)[0] == "RuntimeError"
        same(scenario)

    def test_a_modified_intermediate_is_reported_with_the_op_it_came_from(self) -> None:
        def through_an_alias(lib: Any, x: Any) -> Any:
            y = x.sin()
            z = y * y
            y.detach().add_(1).add_(1)
            return slope(lib, z, x)

        def result(lib: Any, x: Any) -> Any:
            y = x.exp()
            y.add_(1)
            return slope(lib, y, x)

        for scenario in (through_an_alias, result):
            assert outcome(scenario, OURS)[0] == "RuntimeError"
            same(scenario)
        assert re.search(
            "which is output 0 of Sin(Backward0)?, is at version 2; expected version 0",
            outcome(through_an_alias, OURS)[1],
        )

    def test_versions_told_by_hand_count(self) -> None:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        y = x * x
        graph.increment_version(x)
        with pytest.raises(
            RuntimeError,
            match=re.escape("[torch.FloatTensor [2]] is at version 1; expected version 0 instead"),
        ):
            y.sum().backward()


class TestMutationOnSaved:
    @pytest.mark.parametrize(
        "write",
        [
            lambda lib, b: b.sin_(),
            lambda lib, b: b[:1].mul_(10),
            lambda lib, b: b.view_as(b).zero_(),
            lambda lib, b: torch.mul(lib.tensor([1.0, 1.0, 1.0]), 3, out=b.detach()),
        ],
        ids=("inplace", "view", "alias", "out"),
    )
    def test_backward_sees_the_values_from_before(self, write: Callable[[Any, Any], Any]) -> None:
        x = runtime.tensor([1.0, 2.0, 3.0], requires_grad=True)
        with graph.allow_mutation_on_saved_tensors() as context:
            b = x.clone()
            y = (b**2).sum() + (b[1:] ** 2).sum()
            write(OURS, b)
            assert len(context.cloned) == 2
            assert slope(OURS, y, x).tolist() == [2.0, 8.0, 12.0]
            del y
            assert len(context.cloned) == 0

    @pytest.mark.parametrize(
        "write",
        [
            lambda a, b: torch._foreach_mul_([a, b], 3.0),
            lambda a, b: torch._foreach_add_((b, a), [1.0, 2.0]),
            lambda a, b: (a.zero_(), b.zero_()),
            lambda a, b: (torch.add(b.detach()[0], 1, out=b.detach()[0]), a.fill_(7)),
        ],
        ids=["list", "tuple", "one by one", "out"],
    )
    def test_each_tensor_that_a_call_writes_is_copied_first(
        self, write: Callable[[Any, Any], Any]
    ) -> None:
        a, b = (
            runtime.tensor(3.0, requires_grad=True),
            runtime.tensor([[1.0, 2.0]], requires_grad=True),
        )
        with graph.allow_mutation_on_saved_tensors() as context:
            x, y = a.clone(), b.clone()
            loss = x**2 + (y**2).sum()
            write(x, y)
            assert len(context.cloned) == 2 and len(context.original) == 0
            found = runtime.autograd.grad(loss, (a, b))
        assert [g.tolist() for g in found] == [6.0, [[2.0, 4.0]]]

    def test_what_is_not_written_is_not_copied(self) -> None:
        x = runtime.tensor([1.0, 2.0], requires_grad=True).clone()
        with graph.allow_mutation_on_saved_tensors() as context:
            y, other = x**2, x.detach().clone()
            other.mul_(x.detach()).add_(1)
            assert len(context.cloned) == 0 and len(context.original) == 1
        assert len(context.original) == 0 and y.requires_grad

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype stage")
    def test_nested_tensors_are_refused(self) -> None:
        n = runtime.wrap(
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), requires_grad=True
        )
        with graph.allow_mutation_on_saved_tensors(), pytest.raises(NestedTensor):
            _ = n * n

    def test_one_copy_per_version(self) -> None:
        a = runtime.tensor([1.0, 2.0], requires_grad=True).clone()
        with graph.allow_mutation_on_saved_tensors() as context:
            first, again = a**2, a**3
            assert len(context.tid_to_weakhandle) == 1
            a.sin_()
            second = a**2
            a.sin_()
            assert len(context.cloned) == 2
            del second
            assert len(context.cloned) == 1
            del first, again
            assert len(context.cloned) == 0

    def test_backward_after_the_context_is_an_error(self) -> None:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        with graph.allow_mutation_on_saved_tensors():
            y = (x**2).sum()
        with pytest.raises(
            AssertionError,
            match="Trying to backward outside of the 'allow_mutation_on_saved_tensors' context",
        ):
            y.backward()

    def test_contexts_do_not_nest(self) -> None:
        def scenario(lib: Any, x: Any) -> Any:
            with (
                lib.graph.allow_mutation_on_saved_tensors(),
                lib.graph.allow_mutation_on_saved_tensors(),
            ):
                return x

        assert outcome(scenario, OURS)[0] == "RuntimeError"
        same(scenario)


class TestSavedTensorsWithoutAGradient:
    """What has no gradient has no history when it comes back for a second derivative: integers, and
    outputs that are declared so."""

    def twice(self, lib: Any, f: Callable[[Any], Any]) -> Any:
        x = lib.tensor([3.0, 1.0, 2.0, 5.0], requires_grad=True)
        (g,) = lib.grad(f(x), x, create_graph=True)
        return unwrap(lib.grad((g * g).sum(), x)[0])

    @pytest.mark.parametrize("hooked", [False, True])
    @pytest.mark.parametrize(
        "f",
        [
            lambda x: (x.sort().values ** 3 * torch.arange(4.0)).sum(),
            lambda x: (x.topk(2).values ** 3).sum(),
            lambda x: (x.cummax(0).values ** 3).sum(),
            lambda x: x.quantile(0.3) ** 3,
            lambda x: (torch.nn.functional.max_pool1d(x[None], 2) ** 3).sum(),
            lambda x: torch.nn.functional.cross_entropy(x[None], torch.tensor([1])),
        ],
        ids=["sort", "topk", "cummax", "quantile", "max_pool", "cross_entropy"],
    )
    def test_an_index_among_the_results_of_an_op(
        self, f: Callable[[Any], Any], hooked: bool
    ) -> None:
        def of(lib: Any) -> Any:
            hooks = (
                lib.graph.saved_tensors_hooks(lambda t: t, lambda t: t) if hooked else nullcontext()
            )
            with hooks:
                return self.twice(lib, f)

        torch.testing.assert_close(of(OURS), of(TORCH))

    def test_neither_does_it_require_grad_in_the_eyes_of_users(self) -> None:
        seen = []

        def pack(t: Any) -> Any:
            seen.append(t.requires_grad)
            return t

        with graph.saved_tensors_hooks(pack, lambda t: t):
            runtime.tensor([3.0, 1.0], requires_grad=True).clone().sort()
        assert seen == [False]
        node = runtime.tensor([3.0, 1.0], requires_grad=True).clone().sort().values.grad_fn
        assert (
            not node._saved_result1.requires_grad  # type: ignore[union-attr]
            and not node._raw_saved_result1.unpack().requires_grad  # type: ignore[union-attr]
        )

    def test_outputs_that_a_function_marks_as_not_differentiable(self) -> None:
        def make(base: Any, log: list[bool]) -> Any:
            class Sorted(base):  # type: ignore[misc]
                @staticmethod
                def forward(ctx: Any, x: Any) -> Any:
                    values, indices = x.sort()
                    rounded = x.round()
                    ctx.mark_non_differentiable(indices, rounded)
                    ctx.save_for_backward(x, indices, rounded)
                    return values, indices, rounded

                @staticmethod
                def backward(ctx: Any, g: Any, *_: Any) -> Any:
                    log.extend(t.requires_grad for t in ctx.saved_tensors)
                    x, indices, rounded = ctx.saved_tensors
                    return torch.zeros_like(x).scatter(0, indices, g) * rounded / x

            return Sorted

        log: list[bool] = []
        ours, theirs = make(runtime.autograd.Function, log), make(torch.autograd.Function, [])
        found = self.twice(OURS, lambda x: (ours.apply(x)[0] ** 3).sum())
        assert log == [True, False, False] * 2  # once for each derivative
        torch.testing.assert_close(
            found, self.twice(TORCH, lambda x: (theirs.apply(x)[0] ** 3).sum())
        )

    def test_what_a_checkpoint_computes_again(self) -> None:
        def f(x: Any) -> Any:
            return (x.sort().values ** 3 * torch.arange(4.0)).sum()

        found = self.twice(OURS, lambda x: checkpoint(f, x, use_reentrant=False))
        torch.testing.assert_close(found, self.twice(TORCH, f))


def test_what_is_saved_is_freed_with_its_graph_by_reference_counting(
    without_collector: None,
) -> None:
    def refs(hooked: bool) -> list[Any]:
        x = runtime.tensor([1.0, 2.0], requires_grad=True)
        if hooked:
            with graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
                y = x.exp()
        else:
            y = x.exp()
        z = (y.tanh() * y).sum()
        with graph.save_on_cpu():
            w = z.exp()
        raw = y.grad_fn._raw_saved_result  # type: ignore[union-attr]
        return [weakref.ref(o) for o in (x, y, z, w, y.grad_fn, w.grad_fn, raw._node)]

    assert all(ref() is None for ref in refs(False) + refs(True))
