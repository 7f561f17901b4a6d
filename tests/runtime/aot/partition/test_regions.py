"""A checkpoint inside a compiled function is honoured: values of the region are computed again,
what a policy saves is saved."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import runtime
from runtime import aot
from runtime.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

CUTS: list[Any] = [aot.default_partition, aot.min_cut_rematerialization_partition]
aten: Any = torch.ops.aten
N = 8


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w).sin() @ w).exp() * 0.1


class Seen:
    """The graphs of one compiled function, and its results beside eager's."""

    def __init__(self, f: Callable[..., torch.Tensor], cut: Any, *plain: torch.Tensor) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        given = [runtime.wrap(t.clone(), requires_grad=True) for t in plain]
        compiled = aot.aot_function(f, self._keep, self._keep, cut)
        torch.manual_seed(0)
        out = compiled(*given)
        out.sum().backward()
        self.out, self.gradients = runtime.unwrap(out), [runtime.unwrap(t.grad) for t in given]

    def _keep(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        self.graphs.append(module)
        return aot.nop(module, inputs)

    def agrees_with(self, f: Callable[..., torch.Tensor], *plain: torch.Tensor) -> None:
        leaves = [t.clone().requires_grad_() for t in plain]
        torch.manual_seed(0)
        out = f(*leaves)
        torch.testing.assert_close(self.out, out.detach())
        torch.testing.assert_close(self.gradients, list(torch.autograd.grad(out.sum(), leaves)))

    @property
    def saved(self) -> list[Any]:
        """The ops that made what is saved; "placeholder" for an argument."""
        results: Any = self.graphs[0].graph.output_node().args[0]
        return [n.target if n.op == "call_function" else n.op for n in results[1:]]

    def backward_calls(self, op: Any) -> int:
        return len(self.graphs[1].graph.find_nodes(op="call_function", target=op))


X, W = torch.randn(N, N), torch.randn(N, N) / 3


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_nothing_inside_of_a_region_is_saved(cut: Any, use_reentrant: bool) -> None:
    seen = Seen(lambda x, w: checkpoint(layer, x, w, use_reentrant=use_reentrant), cut, X, W)
    seen.agrees_with(layer, X, W)
    assert set(seen.saved) == {"placeholder"}
    plain = Seen(layer, cut, X, W)
    assert seen.backward_calls(aten.mm.default) > plain.backward_calls(aten.mm.default)


@pytest.mark.parametrize("cut", CUTS)
def test_what_one_region_hands_to_the_next_is_saved(cut: Any) -> None:
    def thrice(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = checkpoint(layer, x, w, use_reentrant=False)
        return x

    seen = Seen(thrice, cut, X, W)
    seen.agrees_with(lambda x, w: layer(layer(layer(x, w), w), w), X, W)
    assert sorted(map(str, seen.saved)) == [
        "aten.mul.Tensor",
        "aten.mul.Tensor",
        "placeholder",
        "placeholder",
    ]


@pytest.mark.parametrize("cut", CUTS)
def test_a_region_inside_of_a_region_belongs_to_the_outer_one(cut: Any) -> None:
    def outer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return layer(checkpoint(layer, x, w, use_reentrant=False), w)

    seen = Seen(lambda x, w: checkpoint(outer, x, w, use_reentrant=False), cut, X, W)
    seen.agrees_with(lambda x, w: layer(layer(x, w), w), X, W)
    assert set(seen.saved) == {"placeholder"}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("preserve", [False, True])
def test_a_draw_inside_of_a_region_is_made_once(cut: Any, preserve: bool) -> None:
    def dropped(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout((x @ w).sin(), 0.5) @ w

    seen = Seen(
        lambda x, w: checkpoint(dropped, x, w, use_reentrant=False, preserve_rng_state=preserve),
        cut,
        X,
        W,
    )
    seen.agrees_with(dropped, X, W)
    drawn = [t for t in seen.saved if t != "placeholder"]
    assert len(drawn) == 1
    draws = [
        n.target
        for n in seen.graphs[1].graph.nodes
        if n.op == "call_function" and isinstance(n.target, torch._ops.OpOverload)
    ]
    assert not any(torch.Tag.nondeterministic_seeded in func.tags for func in draws)


@pytest.mark.parametrize("cut", CUTS)
def test_what_a_policy_must_save_is_saved_and_the_rest_is_computed_again(cut: Any) -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts([aten.mm.default])

    seen = Seen(
        lambda x, w: checkpoint(layer, x, w, use_reentrant=False, context_fn=contexts), cut, X, W
    )
    seen.agrees_with(layer, X, W)
    assert aten.mm.default in seen.saved
    # exp serves as well as its product
    assert set(seen.saved) <= {aten.mm.default, aten.exp.default, aten.transpose.int, "placeholder"}
    assert seen.backward_calls(aten.sin.default) == 1
    assert seen.backward_calls(aten.mm.default) == 4  # those of the derivatives alone


def test_a_policy_is_asked_in_the_order_of_the_program() -> None:
    asked: list[Any] = []

    def policy(
        context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any
    ) -> CheckpointPolicy:
        assert context.op_output.shape == (N, N)
        asked.append(op)
        return CheckpointPolicy.PREFER_RECOMPUTE

    def contexts() -> Any:
        return create_selective_checkpoint_contexts(policy)

    Seen(
        lambda x, w: checkpoint(layer, x, w, use_reentrant=False, context_fn=contexts),
        CUTS[1],
        X,
        W,
    )
    assert asked[:5] == [
        aten.mm.default,
        aten.sin.default,
        aten.mm.default,
        aten.exp.default,
        aten.mul.Tensor,
    ]


def test_a_policy_that_offloads_is_refused() -> None:
    def contexts() -> Any:
        return create_selective_checkpoint_contexts(lambda *_: CheckpointPolicy.MUST_CPU_OFFLOAD)

    with pytest.raises(RuntimeError, match=r"MUST_CPU_OFFLOAD.*mm.*use MUST_SAVE"):
        Seen(
            lambda x, w: checkpoint(layer, x, w, use_reentrant=False, context_fn=contexts),
            CUTS[1],
            X,
            W,
        )


def test_outside_of_its_regions_a_program_is_cut_as_ever() -> None:
    def mixed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = checkpoint(layer, layer(x, w), w, use_reentrant=False)
        return out

    seen = Seen(mixed, aot.min_cut_rematerialization_partition, X, W)
    seen.agrees_with(lambda x, w: layer(layer(x, w), w), X, W)
    # as of the layer outside alone
    assert seen.saved.count(aten.mm.default) == seen.saved.count(aten.exp.default) == 1
    assert (
        Seen(layer, aot.min_cut_rematerialization_partition, X, W).saved.count(aten.mm.default) == 1
    )


@pytest.mark.parametrize("budget", [0.0, 0.3, 1.0])
def test_a_region_with_draws_is_cut_within_any_budget(budget: float) -> None:
    def regions(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(lambda x: F.dropout(layer(x, w), 0.5), x, use_reentrant=False)
        return x

    def plain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.dropout(layer(F.dropout(layer(x, w), 0.5), w), 0.5)

    cut = functools.partial(aot.min_cut_rematerialization_partition, memory_budget=budget)
    Seen(regions, cut, X, W).agrees_with(plain, X, W)
