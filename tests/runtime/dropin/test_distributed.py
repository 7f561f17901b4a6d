"""DistributedDataParallel under the drop-in, and the parts of torch.distributed
that are refused."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import nn

import runtime
from runtime import dropin

c10d: Any = dist  # torch exports some of its names without saying so
ROOT = Path(runtime.__file__).parent.parent

pytestmark = [
    pytest.mark.skipif(
        not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo"
    ),
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
    ),
]


def test_two_processes_train_to_torchs_numbers(tmp_path: Path) -> None:
    kinds = ["plain", "unused", "static", "view", "no_sync", "hook"]
    command = [sys.executable, "-m", "tests.runtime.dropin.ddp_program", str(tmp_path), *kinds]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.stdout == f"the same: {' '.join(kinds)}\n", done.stderr


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """The drop-in, in a process group of one."""
    with dropin.installed():
        dist.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
        yield
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_a_parameter_without_gradient_is_named() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.idle = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    model = nn.parallel.DistributedDataParallel(Half())
    with pytest.raises(RuntimeError, match=r"got no gradient: .*find_unused_parameters=True"):
        model(torch.ones(1, 2)).sum().backward()


@pytest.mark.usefixtures("alone")
def test_a_sparse_gradient_is_reduced() -> None:
    model = nn.parallel.DistributedDataParallel(nn.Embedding(5, 2, sparse=True))
    model(torch.tensor([1, 1, 3])).sum().backward()
    (weight,) = model.parameters()
    assert weight.grad is not None and weight.grad.is_sparse
    assert weight.grad.to_dense().tolist() == [[0, 0], [2, 2], [0, 0], [1, 1], [0, 0]]


@pytest.mark.usefixtures("alone")
def test_sharded_wrappers_are_refused_by_name() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

    with pytest.raises(
        NotImplementedError,
        match=r"runtime\.dropin: FullyShardedDataParallel .* Use DistributedDataParallel",
    ):
        FullyShardedDataParallel(nn.Linear(2, 2))
    with pytest.raises(NotImplementedError, match=r"runtime\.dropin: fully_shard"):
        fully_shard(nn.Linear(2, 2))


@pytest.mark.usefixtures("alone")
def test_a_communication_hook_that_is_not_offered_is_refused() -> None:
    model: Any = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    with pytest.raises(NotImplementedError, match="built-in communication hook"):
        model._register_builtin_comm_hook(c10d.BuiltinCommHookType.FP16_COMPRESS)


def test_leaving_gives_the_reducer_back() -> None:
    names = ["Reducer", "Logger", "_register_comm_hook", "_register_builtin_comm_hook"]
    before = [getattr(c10d, name) for name in names]
    with dropin.installed():
        assert all(getattr(c10d, name) is not old for name, old in zip(names, before, strict=True))
    assert all(getattr(c10d, name) is old for name, old in zip(names, before, strict=True))


def test_data_parallel_on_one_processor_passes_through() -> None:
    with dropin.installed():
        layer = nn.Linear(2, 1)
        nn.DataParallel(layer)(torch.ones(3, 2)).sum().backward()
        assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[3.0, 3.0]]


STAGES = """
import torch

class _PipelineStageBase:
    def __init__(self, module):
        self.module = module

class Other(_PipelineStageBase):
    def __init__(self, module):
        self.made = torch.ones(1)
"""


class Finder:
    """An import hook of the program's, which looks for modules where Python does."""

    asked: ClassVar[list[str]] = []

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        Finder.asked.append(name)
        return PathFinder.find_spec(name, path, target)


@pytest.fixture
def stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Torch's package of stages, with two modules of ours in place of its own."""
    name = "torch.distributed.pipelining"
    package: Any = importlib.import_module(name)
    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    for module in ("stage", "beside"):
        (tmp_path / f"{module}.py").write_text(STAGES)
        monkeypatch.setattr(package, module, None, raising=False)
        monkeypatch.setitem(sys.modules, f"{name}.{module}", ModuleType(module))
        del sys.modules[f"{name}.{module}"]
    return name


@pytest.mark.parametrize("imported_before", [False, True])
def test_a_wrapper_is_refused_wherever_it_is_imported_and_is_torchs_afterwards(
    imported_before: bool, stages: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", [Finder, *sys.meta_path])
    if imported_before:
        importlib.import_module(f"{stages}.stage")
    finders = list(sys.meta_path)
    Finder.asked.clear()
    with dropin.installed():
        stage: Any = importlib.import_module(f"{stages}.stage")
        beside: Any = importlib.import_module(f"{stages}.beside")
        with pytest.raises(
            NotImplementedError,
            match=r"runtime\.dropin: PipelineStage works on nodes of torch's own tape",
        ):
            stage._PipelineStageBase(1)
        assert f"{stages}.beside" in Finder.asked
        assert stage.Other(1).made.item() == 1.0 and beside._PipelineStageBase(1).module == 1
    assert stage._PipelineStageBase(1).module == 1 and sys.meta_path == finders
    monkeypatch.delitem(sys.modules, f"{stages}.stage")
    again: Any = importlib.import_module(f"{stages}.stage")
    assert again is not stage and again._PipelineStageBase(1).module == 1


def test_a_wrapper_that_torch_lacks_cannot_be_imported(
    stages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stage.py").unlink()
    with dropin.installed(), pytest.raises(ModuleNotFoundError, match=f"{stages}.stage"):
        importlib.import_module(f"{stages}.stage")


def test_a_torch_without_distributed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_available", lambda: False)
    reducer, finders = c10d.Reducer, list(sys.meta_path)
    with dropin.installed():
        assert c10d.Reducer is reducer and sys.meta_path == finders
