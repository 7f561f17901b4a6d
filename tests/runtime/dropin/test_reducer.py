"""The reducer of DistributedDataParallel in one process. The test adds the gradients
of a second one."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import runtime
from runtime import dropin

c10d: Any = dist  # torch exports some of its names without saying so

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]


class Other:
    """The other process: ``gives`` holds what it adds in each reduction, and ``groups``
    the group of each."""

    def __init__(self) -> None:
        self.gives: list[Any] = []
        self.groups: list[Any] = []

    def all_reduce(self, t: Any, group: Any = None) -> None:
        assert not isinstance(t, runtime.Tensor)
        self.groups.append(group)
        if self.gives:
            t.add_(runtime.unwrap(self.gives.pop(0)).to(t.dtype))


@pytest.fixture
def two() -> Iterator[None]:
    """The first process of two, of which the second does not run."""
    pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    dist.init_process_group("fake", rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.fixture
def other(two: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    """The drop-in in the first process of two."""
    with dropin.installed():
        found = Other()
        monkeypatch.setattr(dist, "all_reduce", found.all_reduce)
        yield found


class Two(nn.Module):
    """y = a·x + b·x, or without b."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.tensor([1.0, 2.0])), nn.Parameter(torch.tensor([3.0]))
        self.both = True

    def forward(self, x: Any) -> Any:
        return (self.a * x + self.b * x if self.both else self.a * x).sum()


X = [5.0, 7.0]  # the gradient of a; that of b is 12


def parallel(module: Any, **options: Any) -> Any:
    return nn.parallel.DistributedDataParallel(module, **options)


def gradients(module: Any) -> list[Any]:
    return [None if p.grad is None else p.grad.tolist() for p in module.parameters()]


def pass_over(model: Any, both: bool = True, **options: Any) -> None:
    model.module.both = both
    model(torch.tensor(X)).backward(**options)


def test_a_gradient_is_the_mean_over_the_processes(other: Other) -> None:
    model = parallel(Two())
    other.gives = [torch.tensor([10.0, 20.0, 30.0])]
    pass_over(model)
    assert gradients(model) == [[12.5, 23.5], [36.0]]
    assert all(
        isinstance(p.grad, runtime.Tensor) and not p.grad.requires_grad for p in model.parameters()
    )
    pass_over(model)  # adds to what is there, and the sum is averaged
    assert gradients(model) == [[8.75, 15.25], [24.0]]


def test_only_the_pass_that_follows_a_forward_pass_is_reduced_and_only_once(other: Other) -> None:
    model = parallel(Two())
    loss = model(torch.tensor(X))
    loss.backward(retain_graph=True)
    assert len(other.groups) == 1 and gradients(model) == [[2.5, 3.5], [6.0]]
    loss.backward()
    assert len(other.groups) == 1 and gradients(model) == [[7.5, 10.5], [18.0]]


def test_a_pass_without_synchronization_is_not_reduced(other: Other) -> None:
    model = parallel(Two())
    with model.no_sync():
        pass_over(model)
    assert other.groups == [] and gradients(model) == [X, [12.0]]


def test_the_group_that_was_given_reduces_until_another_is(other: Other) -> None:
    mine, next_ = dist.new_group([0]), dist.new_group([0])
    embedding = parallel(nn.Embedding(3, 1, sparse=True), process_group=mine)
    embedding(torch.tensor([1, 1])).sum().backward()
    # the mean over one process
    assert embedding.module.weight.grad.to_dense().tolist() == [[0.0], [2.0], [0.0]]
    model = parallel(Two(), process_group=mine, find_unused_parameters=True)
    pass_over(model)
    assert (
        all(g is mine for g in other.groups)
        and len(other.groups) == 3
        and gradients(model) == [X, [12.0]]
    )
    other.groups.clear()
    model._update_process_group(next_)
    pass_over(model)
    assert all(g is next_ for g in other.groups) and len(other.groups) == 2


def test_a_sparse_gradient_is_the_mean_over_the_processes_too(other: Other) -> None:
    model = parallel(nn.Embedding(3, 1, sparse=True))
    model(torch.tensor([1, 1, 2])).sum().backward()
    grad: Any = model.module.weight.grad
    assert (
        grad.is_sparse
        and isinstance(grad, runtime.Tensor)
        and grad.to_dense().tolist() == [[0.0], [1.0], [0.5]]
    )


class TestParametersWithoutGradient:
    def test_are_named(self, other: Other) -> None:
        with pytest.raises(
            RuntimeError, match=r"these parameters got no gradient: \.b\. The processes would wait"
        ):
            pass_over(parallel(Two()), both=False)
        reducer = c10d.Reducer(
            [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))],
            [[0], [1]],
            [1, 1],
            dist.new_group([0]),
        )
        reducer.prepare_for_forward()
        reducer.prepare_for_backward([])
        with pytest.raises(RuntimeError, match="got no gradient: number 1"):
            (reducer._params[0] * 2).backward()

    @pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
    def test_have_that_of_the_processes_that_use_them(
        self, other: Other, options: dict[str, bool]
    ) -> None:
        model = parallel(Two(), **options)
        other.gives = [torch.tensor([0, 1])]
        pass_over(model, both=False)
        assert gradients(model) == [[2.5, 3.5], [0.0]]
        assert type(model.module.b.grad) is runtime.Tensor
        model.zero_grad()
        other.gives = [torch.tensor([1, 1]), torch.cat([torch.zeros(2), torch.tensor([50.0])])]
        pass_over(model, both=False)
        assert gradients(model) == [[2.5, 3.5], [50.0]]

    def test_have_none_or_what_they_had_where_no_process_uses_them(self, other: Other) -> None:
        model = parallel(Two(), find_unused_parameters=True)
        pass_over(model, both=False)
        assert gradients(model) == [[2.5, 3.5], None]
        model.module.b.grad = torch.tensor([8.0])
        pass_over(model, both=False)
        assert gradients(model)[1] == [8.0]

    def test_have_a_sparse_zero_where_the_gradient_is_sparse(self, other: Other) -> None:
        class Idle(Two):
            def __init__(self) -> None:
                super().__init__()
                self.table = nn.Embedding(3, 2, sparse=True)

        model = parallel(Idle(), find_unused_parameters=True)
        pass_over(model)
        grad: Any = model.module.table.weight.grad
        assert (
            grad.is_sparse
            and grad.sparse_dim() == 1
            and grad.to_dense().tolist() == [[0.0, 0.0]] * 3
        )


class Four(nn.Module):
    """One parameter of more than 1 MiB, and small ones of several shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow, self.head = (
            nn.Linear(600, 600),
            nn.Linear(600, 2),
            nn.Linear(2, 3, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return self.head(self.narrow(self.wide(x))).sum()


def hooked(as_list: bool) -> list[Any]:
    """What a communication hook sees in two steps, and the gradients that its answers give."""
    torch.manual_seed(0)
    # by which torch divides into buckets at once
    model = parallel(Four(), bucket_cap_mb=1, find_unused_parameters=True)
    seen: list[Any] = []
    state = object()

    def hook(given, bucket):  # type: ignore[no-untyped-def] # torch reads annotations
        assert given is state and not torch.is_grad_enabled()
        pairs = zip(bucket.gradients(), bucket.parameters(), strict=True)
        parts = [(list(g.shape), list(p.shape)) for g, p in pairs]
        before = bucket.buffer()
        bucket.set_buffer(before * 2)
        seen.append(
            (
                bucket.index(),
                bucket.is_last(),
                list(before.shape),
                parts,
                torch.equal(bucket.buffer(), before + before),
            )
        )
        future: Any = torch.futures.Future()
        future.set_result([before * 3] if as_list else before * 3)
        return future

    model.register_comm_hook(state, hook)
    with pytest.raises(RuntimeError, match="can only be called once"):
        model.register_comm_hook(state, hook)
    model(torch.randn(2, 600)).backward()
    return [seen, [runtime.unwrap(p.grad) for p in model.parameters()]]


def test_a_communication_hook_sees_every_bucket_and_its_answer_is_the_gradient(two: None) -> None:
    expected, grads = hooked(as_list=False)
    with dropin.installed():
        for as_list in (False, True):
            found, ours = hooked(as_list)
            assert found == expected and len(found) > 1
            torch.testing.assert_close(ours, grads)


def test_the_built_in_hook_that_sums_is_what_happens_anyway(other: Other) -> None:
    model = parallel(Two())
    model._register_builtin_comm_hook(c10d.BuiltinCommHookType.ALLREDUCE)
    pass_over(model)
    assert gradients(model) == [[2.5, 3.5], [6.0]]


def test_a_hook_computes_without_recording_in_a_pass_that_records(other: Other) -> None:
    modes: list[bool] = []

    def hook(state, bucket):  # type: ignore[no-untyped-def]
        modes.append(torch.is_grad_enabled())
        future: Any = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model = parallel(Two())
    model.register_comm_hook(None, hook)
    pass_over(model, create_graph=True)
    assert modes == [False] and gradients(model) == [X, [12.0]]


def test_a_pass_that_fails_leaves_no_trace_in_the_next_one(other: Other) -> None:
    model = parallel(Two())
    # after the first parameter's
    handles = [p.register_post_accumulate_grad_hook(lambda p: 1 / 0) for p in model.parameters()]
    with pytest.raises(ZeroDivisionError):
        pass_over(model)
    for handle in handles:
        handle.remove()
    assert other.groups == []
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        model._check_reducer_finalized()
    model.zero_grad()
    pass_over(model)
    model._check_reducer_finalized()
    assert gradients(model) == [[2.5, 3.5], [6.0]]


def test_hooks_are_removed_on_demand_and_parameters_outlive_the_wrapper(other: Other) -> None:
    model = parallel(Two())
    model._remove_autograd_hooks()
    pass_over(model)
    assert other.groups == [] and gradients(model) == [X, [12.0]]
    module = Two()
    model = parallel(module)
    model(torch.tensor(X))
    del model
    gc.collect()
    module(torch.tensor(X)).backward()
    assert other.groups == [] and gradients(module) == [X, [12.0]]


def test_a_new_group_in_the_middle_of_a_step_asks_for_a_forward_pass_first(other: Other) -> None:
    model = parallel(Two())
    loss = model(torch.tensor(X))
    model._update_process_group(dist.new_group([0]))
    loss.backward()
    assert other.groups == [] and gradients(model) == [X, [12.0]]


def test_what_the_reducer_does_not_offer_is_an_error_that_says_so(other: Other) -> None:
    model = parallel(Two())
    with pytest.raises(
        NotImplementedError, match=r"its reducer's '_get_local_used_map' for what it was asked"
    ):
        model.reducer._get_local_used_map()
    assert not hasattr(model.reducer, "__wrapped__")
    with pytest.raises(NotImplementedError, match="keeps no statistics"):
        model._get_ddp_logging_data()
    model._set_ddp_runtime_logging_sample_rate(3)  # there are none to sample
