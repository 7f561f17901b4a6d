"""`python -m benchmarks.per_sample_large`: the memory of a process that asks for gradients of
samples which it could not hold.

Clipped sums of 1,024 samples with models of 50 million parameters; the projection to 4,096 columns
of a batch of GPT-2 small, where ``transformers`` is installed. Each runs in a process of its own,
and the peak is that of the process.
"""

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from runtime.per_sample import per_sample

GB = 1 << 30


def _peak() -> float:
    """GB that the process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GB


def _mlp() -> tuple[nn.Module, Tensor]:
    layers = [layer for _ in range(12) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(1024, 2048)


def _transformer() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(640, 8, 2560, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 10, enable_nested_tensor=False), torch.randn(1024, 8, 640)


def _clip(make: Callable[[], tuple[nn.Module, Tensor]]) -> tuple[nn.Module, int, float]:
    model, x = make()
    before = _peak()
    with per_sample(model.parameters()) as grads:
        model(x).square().flatten(1).mean(1).sum().backward()
    grads.clipped_sum(1.0, keep=False)
    return model, len(x), before


def _project() -> tuple[nn.Module, int, float]:
    transformers: Any = __import__("transformers")
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config()).eval()
    words = torch.randint(0, 50257, (4, 64))
    before = _peak()
    with per_sample(model.parameters()) as grads:
        scores = model(words).logits[:, :-1].transpose(1, 2)
        cross_entropy(scores, words[:, 1:], reduction="none").mean(1).sum().backward()
    assert grads.project(4096, seed=1).shape == (4, 4096)
    return model, len(words), before


PROGRAMS: dict[str, Callable[[], tuple[nn.Module, int, float]]] = {
    "clipped sum, MLP": lambda: _clip(_mlp),
    "clipped sum, transformer of sequences of 8": lambda: _clip(_transformer),
    "projection, GPT-2 small": _project,
}


def _run(name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch, before = PROGRAMS[name]()
    parameters = sum(p.numel() for p in model.parameters())
    dense = batch * parameters * 4 / GB
    held = f"peak {_peak():.2f} GB, {before:.2f} with the model alone"
    print(
        f"{name}: {parameters:,} parameters, batch {batch:,}: {held}; "
        f"dense gradients {dense:.1f} GB"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.per_sample_large", description=__doc__
    )
    parser.add_argument("--only", choices=PROGRAMS, help="one of them, in this process")
    only = parser.parse_args().only
    if only is not None:
        _run(only)
        return 0
    failed = 0
    for name in PROGRAMS:
        if name == "projection, GPT-2 small" and find_spec("transformers") is None:
            print(f"{name}: left out, as transformers is not installed")
            continue
        failed |= subprocess.run(
            [sys.executable, "-m", "benchmarks.per_sample_large", "--only", name], check=False
        ).returncode
    return int(failed != 0)


if __name__ == "__main__":
    sys.exit(main())
