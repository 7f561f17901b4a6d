"""Two processes with half of the samples each have the gradients that one process has of all."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel

from runtime.per_sample import per_sample

pytestmark = pytest.mark.skipif(
    not dist.is_gloo_available(), reason="this build of torch has no gloo"
)

BOUND = 0.8


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(7, 4), nn.Flatten(), nn.Linear(12, 6), nn.Tanh(), nn.Linear(6, 3)
    ).double()


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 7, (9, 3), generator=generator), torch.arange(9) % 3


def looped(m: nn.Module) -> tuple[Tensor, list[Tensor]]:
    """Norms and clipped sum of all samples, by torch's engine in one process."""
    norms, total = [], [torch.zeros_like(p) for p in m.parameters()]
    for x, y in zip(*batch(), strict=True):
        each = torch.autograd.grad(F.cross_entropy(m(x[None]), y[None]), list(m.parameters()))
        norms.append(torch.cat([g.flatten() for g in each]).norm())
        total = [
            t + g * min(1.0, BOUND / float(norms[-1])) for t, g in zip(total, each, strict=True)
        ]
    return torch.stack(norms), total


def own_rows(rank: int) -> slice:
    return slice(0, 4) if rank == 0 else slice(4, 9)  # batches of two sizes


def of_half(m: nn.Module, rank: int) -> tuple[Tensor, list[Tensor]]:
    x, y = (t[own_rows(rank)] for t in batch())
    with per_sample(m.parameters()) as grads:
        F.cross_entropy(m(x), y).backward()
    total = grads.clipped_sum(BOUND)
    for t in total:
        dist.all_reduce(t)
    return grads.norms(), total


def agree(m: nn.Module, called: nn.Module, rank: int) -> None:
    norms, total = looped(m)
    for _ in range(2):  # DistributedDataParallel treats its second forward pass differently
        own, found = of_half(called, rank)
        torch.testing.assert_close(own, norms[own_rows(rank)])
        for a, b in zip(found, total, strict=True):
            torch.testing.assert_close(a, b)
        assert all(p.grad is None for p in m.parameters())


def wrapped(rank: int) -> None:
    m = model()
    agree(m, DistributedDataParallel(m), rank)
    agree(m, DistributedDataParallel(m, find_unused_parameters=True), rank)
    agree(m, DistributedDataParallel(m, gradient_as_bucket_view=True), rank)


def unwrapped(rank: int) -> None:
    m = model()
    agree(m, DistributedDataParallel(m).module, rank)


def ordinary_step_after(rank: int) -> None:
    m = model()
    ddp = DistributedDataParallel(m)
    of_half(ddp, rank)
    x, y = (t[own_rows(rank)] for t in batch())
    F.cross_entropy(ddp(x), y).backward()
    plain = model()
    halves = [
        torch.autograd.grad(F.cross_entropy(plain(a), b), list(plain.parameters()))
        for a, b in (half(0), half(1))
    ]
    for p, *each in zip(m.parameters(), *halves, strict=True):
        torch.testing.assert_close(p.grad, sum(each) / 2)


def half(rank: int) -> Sequence[Tensor]:
    return [t[own_rows(rank)] for t in batch()]


def refused(rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    m = model()
    with pytest.raises(RuntimeError, match=r"static_graph=True .* ddp\.module\(x\)"):
        of_half(DistributedDataParallel(m, static_graph=True), rank)
    sharded: Any = fully_shard(model(), mesh=init_device_mesh("cpu", (2,)))
    with pytest.raises(RuntimeError, match=r"\[0\] is a DTensor.* FSDP .* clipped_sum"):
        per_sample(sharded.parameters())
    with (
        pytest.raises(RuntimeError, match=r"FSDPSequential spreads .* clipped_sum"),
        per_sample(m.parameters()),
    ):
        sharded(batch()[0])
    older = FullyShardedDataParallel(model(), device_id=torch.device("cpu"))
    with pytest.raises(RuntimeError, match="flat parameter of FullyShardedDataParallel"):
        per_sample(older.parameters())
    older = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=True)
    with (
        pytest.raises(RuntimeError, match="FullyShardedDataParallel spreads its parameters"),
        per_sample(older.parameters()),
    ):
        older(batch()[0])


CLAIMS: tuple[Callable[[int], None], ...] = (wrapped, unwrapped, ordinary_step_after, refused)


def run(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        for claim in CLAIMS:
            try:
                claim(rank)
                said = "holds"
            except Exception:  # the test below shows it
                said = traceback.format_exc()
            Path(folder, f"{claim.__name__}-{rank}").write_text(said)
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes found, started once for all claims."""
    folder = tmp_path_factory.mktemp("ranks")
    spawn(run, args=(str(folder),), nprocs=2)
    return folder


def verdicts(folder: Path, claim: Callable[[int], None]) -> list[str]:
    return [Path(folder, f"{claim.__name__}-{rank}").read_text() for rank in (0, 1)]


def test_a_wrapped_model_has_the_norms_and_the_clipped_sum_of_one_process(said: Path) -> None:
    assert verdicts(said, wrapped) == ["holds", "holds"]


def test_so_has_the_model_inside(said: Path) -> None:
    assert verdicts(said, unwrapped) == ["holds", "holds"]


def test_an_ordinary_step_after_it_averages_gradients_as_ever(said: Path) -> None:
    assert verdicts(said, ordinary_step_after) == ["holds", "holds"]


def test_parameters_that_are_spread_over_the_processes_are_refused_by_name(said: Path) -> None:
    assert verdicts(said, refused) == ["holds", "holds"]
