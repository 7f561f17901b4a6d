"""Random modules, each a list of statements that follow the layout of the samples.

print(random_case(7))       # the module as source
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import rnn
from torch.utils.checkpoint import checkpoint

from .endings import LOSSES, MOVES, WHOLE
from .mixing import MIXING, MIXING_OF
from .statements import ANY, FIRST, LAST, OF

DIMS = {"s": 0, "t": 1, "f": 0, "r": 0, "q": 0, "c": 0, "i": 0}
_MARK = re.compile(r"<([PMT]) ([^<>]*)>")
VOCABULARY, CLASSES = 5, 3


@dataclass(frozen=True)
class Step:
    """``text``: the statement, ``kind``: what it is for, ``before`` and ``after``: the layouts."""

    text: str
    kind: str
    before: str
    after: str


@dataclass(frozen=True)
class Case:
    """A module and a batch. ``batch``, ``time``, ``width``: the sizes B, T and N."""

    seed: int
    batch: int
    time: int
    width: int
    steps: tuple[Step, ...]

    @property
    def mixes(self) -> bool:
        return any(step.kind == "mixing" for step in self.steps)

    @property
    def whole(self) -> bool:
        """Whether it runs with the whole batch only."""
        return any(step.kind == "whole" for step in self.steps)

    def __str__(self) -> str:
        made, lines = self._source()
        forward = "\n".join(f"        {line}" for line in lines)
        init = "\n".join(f"        {line}" for line in made)
        sizes = (
            f"BATCH, T, N, V, C = {self.batch}, {self.time}, {self.width}, {VOCABULARY}, {CLASSES}"
        )
        return (
            f"# seed {self.seed}, {'mixing' if self.mixes else 'not mixing'}\n{sizes}\nPERM = [(3 "
            "* j + 1) % N for j in range(N)]\n\nclass Model(nn.Module):\n    def __init__(self):\n"
            f"        super().__init__()\n{init}\n\n    def forward(self, x, ids, lengths, keep, "
            f"target, marked):\n        h = x\n{forward}\n        return loss, per\n"
        )

    def _source(self) -> tuple[list[str], list[str]]:
        made: list[str] = []
        shared: dict[str, str] = {}
        lines: list[str] = []

        def name(match: re.Match[str]) -> str:
            kind, text = match.groups()
            if kind == "T" and text in shared:
                return shared[text]
            own = f"self.{'m' if kind == 'M' else 'p'}{len(made)}"
            shape = text if text.startswith("(") else f"({text},)"
            made.append(
                f"{own} = {text}"
                if kind == "M"
                else f"{own} = nn.Parameter(torch.randn({shape}) * 0.5)"
            )
            if kind == "T":
                shared[text] = own
            return own

        for step in self.steps:
            if step.kind == "mixing":
                lines.append(f"d = {DIMS[step.before]}")
            text = _MARK.sub(name, step.text)
            lines += text.split("\n") if "\n" in text else text.split("; ")
        return made, lines

    def build(self) -> nn.Module:
        """The module, in double precision."""
        scope: dict[str, Any] = {
            "torch": torch,
            "nn": nn,
            "F": F,
            "pack": rnn.pack_padded_sequence,
            "unpack": rnn.pad_packed_sequence,
        }
        scope |= {"checkpoint": checkpoint, "sdpa": F.scaled_dot_product_attention}
        exec(str(self), scope)
        torch.manual_seed(self.seed)
        module: nn.Module = scope["Model"]().double()
        return module

    def inputs(self) -> tuple[Tensor, ...]:
        """``x`` (B, T, N), ``ids`` (B, T), ``lengths`` (B,), ``keep`` (B, T), ``target`` (B,) and
        ``marked`` (B, T), some of it -100."""
        g = torch.Generator().manual_seed(self.seed + 1)
        b, t = self.batch, self.time
        keep = torch.rand(b, t, generator=g) > 0.3
        keep[:, 0] = True
        marked = torch.randint(0, CLASSES, (b, t), generator=g)
        marked[:, 1:][torch.rand(b, t - 1, generator=g) > 0.6] = -100
        return (
            torch.randn(b, t, self.width, generator=g, dtype=torch.float64),
            torch.randint(0, VOCABULARY, (b, t), generator=g),
            torch.randint(1, t + 1, (b,), generator=g),
            keep,
            torch.randint(0, CLASSES, (b,), generator=g),
            marked,
        )

    def shrunk(self, fails: Callable[[Case], bool]) -> Case:
        """The case without statements that do not matter."""
        case, found = self, True
        while found:
            found = False
            for i, step in enumerate(case.steps[:-1]):
                if step.before == step.after:
                    part = replace(case, steps=(*case.steps[:i], *case.steps[i + 1 :]))
                    if fails(part):
                        case, found = part, True
                        break
        return case


def random_case(seed: int) -> Case:
    """The case of this seed. Every third one mixes samples."""
    pick = random.Random(seed)
    batch = pick.choice((2, 3, 4, 4))
    width = pick.choice((4, 4, 6))
    time = pick.choice((2, 3, batch, batch))
    mixes, whole = seed % 3 == 2, pick.random() < 0.1
    steps: list[Step] = []
    layout, number = "s", pick.randint(2, 7)
    at = pick.randrange(number)
    for i in range(number):
        if mixes and i == at:
            steps.append(_chosen(pick, "mixing", layout, MIXING + MIXING_OF[layout] * 3))
        elif whole and not mixes and i == at and WHOLE[layout]:
            steps.append(_chosen(pick, "whole", layout, WHOLE[layout]))
        elif pick.random() < 0.4:
            after, text = pick.choice(MOVES[layout])
            steps.append(Step(text, "move", layout, after))
            layout = after
        else:
            steps.append(_plain(pick, layout))
    losses = LOSSES[layout]
    if whole:
        losses = tuple(text for text in losses if "per = None" not in text) or (
            "per = h.view(T, -1, N).pow(2).sum((0, 2)); loss = per.sum()",
        )
    steps.append(_chosen(pick, "loss", layout, losses))
    return Case(seed, batch, time, width, tuple(steps))


def _plain(pick: random.Random, layout: str) -> Step:
    pools = [OF[layout], OF[layout], ANY]
    if layout in "stfrq":
        pools += [LAST, LAST]
    if layout in "sfrci":
        pools.append(FIRST)
    return _chosen(pick, "plain", layout, pick.choice(pools))


def _chosen(pick: random.Random, kind: str, layout: str, texts: tuple[str, ...]) -> Step:
    return Step(pick.choice(texts), kind, layout, layout)
