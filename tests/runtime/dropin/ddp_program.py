"""Two processes train a model with DistributedDataParallel:
``python -m tests.runtime.dropin.ddp_program FOLDER KIND …``.

Each kind runs on torch and under the drop-in, and what every step shows is compared. Exits with
status 1 if it differs."""

from __future__ import annotations

import contextlib
import datetime
import importlib
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runtime import dropin, unwrap


class Model(nn.Module):
    def __init__(self, unused: bool) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.left, self.right, self.never = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)
        self.unused = unused
        if not unused:
            del self.never

    def forward(self, x: Any) -> Any:
        h = self.norm(self.first(x)).relu()
        if self.unused and dist.get_rank() == 0:
            return self.left(h)
        return self.left(h) + self.right(h)


def train(rank: int, kind: str) -> list[Any]:
    # the processes begin with different parameters: construction makes them equal
    torch.manual_seed(rank)
    options = {
        "unused": {"find_unused_parameters": True},
        "static": {"static_graph": True},
        "view": {"gradient_as_bucket_view": True},
    }
    model = nn.parallel.DistributedDataParallel(Model(kind == "unused"), **options.get(kind, {}))  # type: ignore[arg-type]
    if kind == "hook":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        model.register_comm_hook(None, allreduce_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    for step in range(4):
        optimizer.zero_grad()
        if kind == "no_sync":
            with model.no_sync() if step % 2 else contextlib.nullcontext():
                model(torch.randn(5, 3)).pow(2).sum().backward()
        model(torch.randn(5, 3)).pow(2).sum().backward()
        optimizer.step()
        seen += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    total, sent, gathered = (
        torch.full((2,), rank + 1.0),
        torch.full((2,), float(rank)),
        [torch.zeros(2), torch.zeros(2)],
    )
    dist.all_reduce(total)
    dist.broadcast(sent, 1)
    dist.all_gather(gathered, torch.full((2,), float(rank)))
    return [
        *seen,
        total,
        sent,
        *gathered,
        *(p.detach() for p in model.parameters()),
        *model.buffers(),
    ]


def process(rank: int, folder: str, kinds: list[str]) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=200),
    )
    for kind in kinds:
        expected = train(rank, kind)
        with dropin.installed():
            found = [t if t is None else unwrap(t) for t in train(rank, kind)]
        assert [t is None for t in found] == [t is None for t in expected], kind
        both = [(a, b) for a, b in zip(found, expected, strict=True) if a is not None]
        torch.testing.assert_close(
            [a for a, _ in both], [b.detach() for _, b in both], msg=f"{kind}: not torch's numbers"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    processes: Any = importlib.import_module("torch.multiprocessing")
    processes.spawn(process, (sys.argv[1], sys.argv[2:]), nprocs=2)
    print("the same:", *sys.argv[2:])
