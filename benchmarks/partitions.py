"""What compiled models keep between forward and backward, and the peak memory of a training step,
beside torch's AOTAutograd and eager.

Both sides are counted alike: the memories that the forward graph hands to the backward graph,
without those of arguments, which their owner holds anyway; and the events of torch's
allocator during a step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console

from benchmarks import memory
from benchmarks.compiled import MeanSquare
from benchmarks.models import Model, models
from runtime import aot

Partition = Callable[..., Any]
BUDGETS = (1.0, 0.5, 0.0)
_NONE = memory.Held(0, 0, 0)


@dataclass(frozen=True)
class Kept:
    """``held``: what the forward hands over; ``peak``: the most bytes allocated at any time of a
    step, beside arguments."""

    held: memory.Held
    peak: int


class _Watch:
    """A partition and a compiler of the forward graph that note what the graph hands
    over when it runs."""

    def __init__(self, partition: Partition, make_boxed: Callable[..., Any]) -> None:
        self.partition, self.make_boxed = partition, make_boxed
        self.n_results = 0
        self.held = _NONE

    def cut(self, *args: Any, **kwargs: Any) -> Any:
        self.n_results = kwargs["num_fwd_outputs"]
        return self.partition(*args, **kwargs)

    def compile(self, module: torch.fx.GraphModule, _: Sequence[Any]) -> Any:
        n = self.n_results

        def forward(*args: Any) -> Any:
            outs = module(*args)
            given = {a.untyped_storage()._cdata for a in args if isinstance(a, torch.Tensor)}
            saved = [
                t for t in outs[n:] if isinstance(t, torch.Tensor) and t.layout is torch.strided
            ]
            self.held = memory.Held.of(
                [t for t in saved if t.untyped_storage()._cdata not in given]
            )
            return outs

        return self.make_boxed(forward)


def ours(model: Model, partition: Partition) -> Kept:
    watch, module = _Watch(partition, aot.make_boxed_func), MeanSquare(model.make())
    aot.aot_module(module, watch.compile, aot.nop, watch.cut)(model.x).backward()
    return Kept(
        watch.held, _peak(model, lambda m: aot.aot_module(m, aot.nop, partition_fn=partition))
    )


def torchs(model: Model, name: str) -> Kept | str:
    """What torch's partition of that name keeps, or why it cannot."""
    import functorch.compile as theirs

    partition = {
        "default": theirs.default_partition,
        "min cut": theirs.min_cut_rematerialization_partition,
    }[name]
    watch, module = _Watch(partition, theirs.make_boxed_func), MeanSquare(model.make())
    try:
        theirs.aot_module(module, watch.compile, theirs.nop, watch.cut)(model.x).backward()
    except AssertionError as error:  # its forward graph of an LSTM saves a None
        return str(error).partition(",")[0]
    return Kept(
        watch.held, _peak(model, lambda m: theirs.aot_module(m, theirs.nop, partition_fn=partition))
    )


def _peak(model: Model, compile: Callable[[torch.nn.Module], Callable[..., Any]]) -> int:
    module = MeanSquare(model.make())
    run = compile(module)

    def step() -> None:
        run(model.x).backward()

    def reset() -> None:
        for p in module.parameters():
            p.grad = None

    step()
    reset()
    step()
    reset()
    return memory.peak_during(step)


@dataclass(frozen=True)
class Row:
    """One model: our default partition, our min cut at each of ``BUDGETS``, torch's two partitions,
    and the peak of torch eager."""

    name: str
    default: Kept
    budgets: tuple[Kept, ...]
    torch_default: Kept | str
    torch_min_cut: Kept | str
    eager: int


def rows(only: str = "") -> Iterator[Row]:
    for model in models():
        if only.lower() in model.name.lower():
            cut = aot.min_cut_rematerialization_partition
            mine = tuple(ours(model, partial(cut, memory_budget=budget)) for budget in BUDGETS)
            default = ours(model, aot.default_partition)
            theirs = torchs(model, "default"), torchs(model, "min cut")
            yield Row(model.name, default, mine, *theirs, _peak(model, lambda m: m))


def tables(console: Console, only: str) -> dict[str, Any]:
    """Print what is saved and the peaks, and return the data."""
    found = list(rows(only))
    budgets = [f"min cut, {budget:g}" for budget in BUDGETS]
    saved = memory.empty_table(
        "bytes handed to the backward",
        "model",
        "default",
        *budgets,
        "torch default",
        "torch min cut",
        "",
        numbers=True,
    )
    peaks = memory.empty_table(
        "peak bytes of a step",
        "model",
        "default",
        *budgets,
        "torch default",
        "torch min cut",
        "torch eager",
        "",
        numbers=True,
    )
    for r in found:
        each: list[Kept | str] = [r.default, *r.budgets, r.torch_default, r.torch_min_cut]
        more = (
            isinstance(r.torch_min_cut, Kept)
            and r.budgets[0].held.bytes > r.torch_min_cut.held.bytes
        )
        rising = [k.peak for k in r.budgets] != sorted((k.peak for k in r.budgets), reverse=True)
        saved.add_row(
            r.name,
            *(f"{k.held.bytes:,}" if isinstance(k, Kept) else "fails" for k in each),
            "[red]more[/red]" if more else "",
        )
        peaks.add_row(
            r.name,
            *(f"{k.peak:,}" if isinstance(k, Kept) else "fails" for k in each),
            f"{r.eager:,}",
            "[red]rising[/red]" if rising else "",
        )
    console.print(saved)
    console.print(peaks)
    return {
        r.name: {
            "default": _data(r.default),
            "min cut": {
                f"{budget:g}": _data(kept) for budget, kept in zip(BUDGETS, r.budgets, strict=True)
            },
            "torch default": _data(r.torch_default),
            "torch min cut": _data(r.torch_min_cut),
            "torch eager peak": r.eager,
        }
        for r in found
    }


def _data(kept: Kept | str) -> dict[str, Any]:
    return (
        {"error": kept} if isinstance(kept, str) else {"saved": vars(kept.held), "peak": kept.peak}
    )
