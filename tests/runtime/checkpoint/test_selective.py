"""What a selective checkpoint saves, what it runs again, and what its policy is asked."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch

import runtime
import runtime.checkpoint
from runtime import unwrap
from runtime.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)
from tests.runtime.of_torch import HOOKS_ARE_AN_OPTION

aten = torch.ops.aten
once = functools.partial(checkpoint, use_reentrant=False)
saving = functools.partial(create_selective_checkpoint_contexts, [aten.sin.default])


def leaf(*data: float) -> Any:
    return runtime.tensor(data or (1.0, 2.0, 3.0), requires_grad=True)


class TestSelective:
    @staticmethod
    def calls_again(policy: Any, f: Any, x: Any) -> tuple[list[str], Any]:
        """The kernels that the second run calls, and the gradient. ``policy`` says what the
        first run saves."""
        first, second = create_selective_checkpoint_contexts(policy)
        called: list[str] = []
        run_kernel = second.run_kernel  # type: ignore[attr-defined]

        def noted(func: Any, call: Any, args: Any, kwargs: Any) -> Any:
            if call not in second.results.cached:  # type: ignore[attr-defined]
                called.append(str(func))
            return run_kernel(func, call, args, kwargs)

        second.run_kernel = noted  # type: ignore[attr-defined]
        once(f, x, context_fn=lambda: (first, second), early_stop=False).sum().backward()
        return called, x.grad

    @staticmethod
    def f(x: Any) -> Any:
        return x.sin().view(3, 1).mul(2).t().exp().sort()[0].cos()

    @pytest.mark.parametrize(
        "wish", [True, *(p for p in CheckpointPolicy if "RECOMPUTE" not in p.name)]
    )
    def test_what_is_saved_does_not_run_again_views_excepted(self, wish: Any) -> None:
        called, gradient = self.calls_again(
            lambda context, op, *args, **kwargs: wish, self.f, leaf()
        )
        assert called == ["aten.view.default", "aten.t.default"]
        x = leaf()
        self.f(x).sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(x.grad))

    @pytest.mark.parametrize(
        "wish", [False, CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE]
    )
    def test_what_is_not_runs_again(self, wish: Any) -> None:
        called, gradient = self.calls_again(
            lambda context, op, *args, **kwargs: wish, self.f, leaf()
        )
        assert [name.split(".")[1] for name in called] == [
            "sin",
            "view",
            "mul",
            "t",
            "exp",
            "sort",
            "cos",
        ]
        x = leaf()
        self.f(x).sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(x.grad))

    def test_of_several_calls_of_one_op_each_has_its_result(self) -> None:
        x = leaf()
        called, gradient = self.calls_again(
            [aten.sin.default], lambda x: x.sin().exp().sin().exp().sin(), x
        )
        assert [name.split(".")[1] for name in called] == ["exp", "exp"]
        y = leaf()
        y.sin().exp().sin().exp().sin().sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(y.grad))

    def test_views_of_what_is_saved_follow_a_write_to_their_base(self) -> None:
        def f(x: Any) -> Any:
            y = x * 2
            y[1:].mul_(x[:2])
            return y.view(-1).sin() * y

        called, gradient = self.calls_again(
            lambda context, op, *args, **kwargs: op is not aten.mul.Tensor, f, leaf()
        )
        x = leaf()
        f(x).sum().backward()
        torch.testing.assert_close(unwrap(gradient), unwrap(x.grad))
        # a write runs again whatever the policy says
        assert "aten.mul_.Tensor" in called and "aten.sin.default" not in called
        # now the base is what was saved
        with pytest.raises(RuntimeError, match="has been mutated"):
            self.calls_again(lambda context, op, *args, **kwargs: True, f, leaf())

    def test_the_policy_is_told_which_run_it_is_and_the_result(self) -> None:
        context = SelectiveCheckpointContext(is_recompute=True)
        assert context.is_recompute and context.op_output is None

    @pytest.mark.parametrize(
        "options",
        [
            {"debug": True},
            {"context_fn": lambda: create_selective_checkpoint_contexts([aten.exp.default])},
        ],
    )
    def test_keywords_of_ops_are_passed_on(self, options: Any) -> None:
        def f(x: Any) -> Any:
            return torch.add(x, x.exp(), alpha=3).var(dim=0, correction=0) * x.sum(
                dtype=torch.float64
            )

        x, y = leaf(), leaf()
        found, expected = once(f, x, **options), f(y)
        torch.testing.assert_close(unwrap(found.detach()), unwrap(expected.detach()))
        found.backward()
        expected.backward()
        torch.testing.assert_close(unwrap(x.grad), unwrap(y.grad))

    def test_a_second_run_that_failed_counts_anew_when_it_is_tried_again(self) -> None:
        failing, sines = [False], [0]

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
            sines[0] += op is aten.sin.default
            return op is aten.sin.default and sines[0] == 2

        def f(x: Any) -> Any:
            y = x.sin()
            if failing[0]:
                raise KeyError
            return y.sin().exp()

        x, y = leaf(), leaf()
        out = once(f, x, context_fn=lambda: create_selective_checkpoint_contexts(policy)).sum()
        failing[0] = True
        with pytest.raises(KeyError):
            out.backward(retain_graph=True)
        failing[0] = False
        out.backward()
        f(y).sum().backward()
        torch.testing.assert_close(unwrap(x.grad), unwrap(y.grad))

    def test_the_policy_is_not_asked_about_ops_that_compute_nothing(self) -> None:
        asked: list[str] = []
        plain = torch.tensor([2.0, 3.0, 4.0])

        def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
            asked.append(str(op))
            return True

        called, gradient = self.calls_again(policy, lambda x: x.sin() * plain.detach(), leaf())
        assert asked == ["aten.sin.default", "aten.mul.Tensor"] and called == []
        torch.testing.assert_close(unwrap(gradient), torch.tensor([1.0, 2.0, 3.0]).cos() * plain)

    @pytest.mark.parametrize("bad", [[torch.ops.aten.sin], ["sin"], None, 3])
    def test_a_policy_is_a_function_or_a_list_of_overloads(self, bad: Any) -> None:
        with pytest.raises((TypeError, ValueError)) as caught:
            create_selective_checkpoint_contexts(bad)
        packet = isinstance(bad, list) and bad[0] is torch.ops.aten.sin
        assert (
            "Please update the OpOverloadPacket to a specific OpOverload" in str(caught.value)
        ) is packet


class Stored:
    """A pair of hooks, and what they stored and gave back."""

    def __init__(self, lib: Any) -> None:
        self.packed: list[Any] = []
        self.unpacked = 0
        self.hooks = lib.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def pack(self, t: Any) -> list[Any]:
        self.packed.append(t.tolist())
        return [t * 2]

    def unpack(self, stored: list[Any]) -> Any:
        self.unpacked += 1
        return stored[0] / 2


@pytest.mark.skipif(
    not HOOKS_ARE_AN_OPTION, reason="torch's checkpoint has no respect_saved_tensors_hooks"
)
class TestHooks:
    @staticmethod
    def run(lib: Any, ckpt: Any, wrap: Any = lambda f: f, **options: Any) -> list[Any]:
        x = lib.tensor([1.0, 2.0], requires_grad=True)
        stored = Stored(lib)
        contexts = functools.partial(ckpt.create_selective_checkpoint_contexts, [aten.sin.default])
        with warnings.catch_warnings(record=True) as said, stored.hooks:
            warnings.simplefilter("always")
            y = ckpt.checkpoint(
                wrap(lambda x: x.sin().exp().sin().cos()),
                x,
                use_reentrant=False,
                context_fn=contexts,
                **options,
            )
        y.sum().backward()
        kinds = [w.category for w in said]
        return [x.grad.tolist(), stored.packed, stored.unpacked, kinds]

    @pytest.mark.parametrize(
        "options", [{"respect_saved_tensors_hooks": wish} for wish in (True, False, None)] + [{}]
    )
    def test_hooks_see_what_the_policy_saves_if_they_are_to(self, options: Any) -> None:
        found = self.run(runtime, runtime.checkpoint, **options)
        assert found == self.run(torch, torch.utils.checkpoint, **options)
        respected = options.get("respect_saved_tensors_hooks")
        assert len(found[1]) == (3 if respected else 1)  # the argument, and two sines
        assert bool(found[3]) is (respected is None)

    def test_hooks_around_a_checkpoint_within_another_see_it(self) -> None:
        def nested(ckpt: Any) -> Any:
            return lambda f: lambda x: ckpt.checkpoint(f, x, use_reentrant=False)

        options = {"respect_saved_tensors_hooks": True}
        found = self.run(runtime, runtime.checkpoint, nested(runtime.checkpoint), **options)
        assert found == self.run(
            torch, torch.utils.checkpoint, nested(torch.utils.checkpoint), **options
        )
        assert len(found[1]) == 3

    @pytest.mark.parametrize("lib", [runtime, torch])
    def test_what_hooks_store_may_not_be_written_to(self, lib: Any) -> None:
        ckpt = runtime.checkpoint if lib is runtime else torch.utils.checkpoint
        stored: list[Any] = []

        def pack(t: Any) -> Any:
            stored.append(t.clone())
            return stored[-1]

        x = lib.tensor([1.0], requires_grad=True)
        with lib.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            y = ckpt.checkpoint(
                lambda x: x.sin().exp(),
                x,
                use_reentrant=False,
                context_fn=functools.partial(
                    ckpt.create_selective_checkpoint_contexts, [aten.sin.default]
                ),
                respect_saved_tensors_hooks=True,
            )
        stored[-1].add_(1)
        with pytest.raises(RuntimeError, match="has been mutated"):
            y.backward()

    def test_what_hooks_give_back_is_a_tensor(self) -> None:
        with runtime.autograd.graph.saved_tensors_hooks(
            lambda t: t,
            lambda t: t if t.requires_grad else "word",  # type: ignore[arg-type, return-value]
        ):
            y = once(
                lambda x: x.sin().exp(), leaf(), context_fn=saving, respect_saved_tensors_hooks=True
            )
        with pytest.raises(TypeError, match="expected to be a Tensor but got result of type str"):
            y.sum().backward()
