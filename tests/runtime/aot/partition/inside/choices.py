"""The text of what partitions choose for a spread of programs: what is saved, what runs again, and
the bytes and the work of each choice.

``choices.txt`` holds it. A choice is about time and memory alone, so no gradient tells it.

python -m tests.runtime.aot.partition.inside.choices # writes the file anew; its diff says # what
has changed

Inside: ``choices`` of ``runtime.aot.partition.budget``. A budget shows one choice, and the file
has all of them with their bytes and their work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime import aot
from runtime.aot.partition.budget import choices
from runtime.aot.partition.halves import Parts
from runtime.aot.partition.memory import Memory
from runtime.aot.partition.network import Network
from runtime.aot.partition.recompute import again, recomputable, work
from runtime.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from tests.runtime.aot.partition.random_programs import WIDTH, drawn

CHOICES = Path(__file__).with_name("choices.txt")
aten: Any = torch.ops.aten


def _deep(x: Tensor, *weights: Tensor) -> Tensor:
    for w in weights:
        x = F.gelu(F.layer_norm(x @ w, (WIDTH,)))
    return x.sum()


def _attention(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return ((x @ w @ x.t()).softmax(-1) @ (x @ v)).square().mean()


def _images(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    images = x.view(2, 1, 4, 6)
    return F.max_pool2d(F.conv2d(images, w[:3, :3].reshape(1, 1, 3, 3)).relu(), 2).sum() + v.sum()


def _regions(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    y = checkpoint(lambda x: (x @ w).sin().exp(), x, use_reentrant=False)
    return torch.sum(
        checkpoint(lambda y: F.dropout((y @ v).tanh(), 0.5), y, use_reentrant=False) * y
    )


def _selective(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    def policy(ctx: Any, func: Any, *args: Any, **options: Any) -> CheckpointPolicy:
        return (
            CheckpointPolicy.MUST_SAVE
            if func is aten.mm.default
            else CheckpointPolicy.PREFER_RECOMPUTE
        )

    contexts = partial(create_selective_checkpoint_contexts, policy)
    return torch.sum(
        checkpoint(lambda x: (x @ w).sin() @ v, x, use_reentrant=False, context_fn=contexts)
    )


def _pieces(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    a, b = (x @ w).chunk(2, -1)
    values, places = (a * b.sigmoid()).sort(0)
    return (values.exp() * places).sum() + torch.var_mean(x, 0)[0].log().sum()


PROGRAMS: dict[str, Callable[..., Tensor]] = {
    "cheap": lambda x, w, v: x.sin().exp().tanh().sum(),
    "a result": lambda x, w, v: (x @ w).exp(),
    "views": lambda x, w, v: (
        (x.t() * w[:, :1] + x.t()[1]).reshape(-1).view(WIDTH, 8).square().sum()
    ),
    "a sum": lambda x, w, v: (x * x.sum(0)).sin().sum() * v.mean(),
    "layers": _deep,
    "attention": _attention,
    "images": _images,
    "regions": _regions,
    "selective": _selective,
    "pieces": _pieces,
    "a draw": lambda x, w, v: (F.dropout(x @ w, 0.5).relu() @ v).sum(),
    "an index": lambda x, w, v: (x[:, torch.tensor([0, 2])].exp() * x.cumsum(0)[:, :2]).sum(),
    "embedding": lambda x, w, v: (
        (F.embedding(torch.tensor([1, 3, 1]), w) @ v).log_softmax(-1)[:, 0].sum()
    ),
    **{f"random program {seed}": drawn(seed) for seed in range(14)},
}


def given() -> list[Tensor]:
    torch.manual_seed(0)
    return [
        torch.rand(8, WIDTH, requires_grad=True),
        *(torch.rand(WIDTH, WIDTH, requires_grad=True) for _ in range(2)),
    ]


def parts_of(f: Callable[..., Any], dynamic: bool = False) -> Parts:
    found: list[Parts] = []

    def keep(
        module: torch.fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **options: Any
    ) -> Any:
        found.append(Parts(module, num_fwd_outputs))
        return aot.default_partition(module, inputs, num_fwd_outputs=num_fwd_outputs)

    aot.aot_function(f, aot.nop, partition_fn=keep, dynamic=dynamic)(*given())
    return found[0]


def _cut(parts: Parts, network: Network, chosen: list[torch.fx.Node]) -> str:
    saved = parts.saved(chosen)
    memory, ran = Memory(parts), network.recomputed(chosen)
    names = " ".join(n.name for n in saved)
    return (
        f"saves {names} ({memory.saved(saved)} bytes), again {' '.join(n.name for n in ran)}, "
        f"peak {memory.peak(saved)}\n"
    )


def section(title: str) -> str:
    parts = parts_of(PROGRAMS[title])
    network = Network(parts, set(), recomputable)
    calls = [n for n in parts.nodes if n.op == "call_function"]
    text = f"== {title}\n" + ", ".join(f"{n.name} {again(n).name} {work(n)}" for n in calls) + "\n"
    text += "default: " + _cut(
        parts, network, [n for n in parts.forward if any(u in parts.backward for u in n.users)]
    )
    for anything in (True, False):
        for choice in choices(network, anything):
            text += (
                f"{'any' if anything else 'cheap'}, work {choice.work}: "
                f"{_cut(parts, network, list(choice.saved))}"
            )
    static = Network(parts, set(parts.primals[:1]), recomputable)
    text += "static: " + _cut(parts, static, static.cut())
    text += (
        "backward: "
        + " ".join(n.name for n in parts.backward_order(parts.saved(network.cut())))
        + "\n"
    )
    return text


def stored() -> dict[str, str]:
    """The section of each title in the file."""
    found = CHOICES.read_text().split("== ")[1:]
    return {text.partition("\n")[0]: f"== {text}" for text in found}


if __name__ == "__main__":
    CHOICES.write_text("".join(map(section, PROGRAMS)))
