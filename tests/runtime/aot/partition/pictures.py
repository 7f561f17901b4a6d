"""Drawings of a few cuts as they are stored in ``pictures/``, to be looked at in a browser.

python -m tests.runtime.aot.partition.pictures      # draws them anew; their diff
                                                    says what has moved
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from runtime import aot

FOLDER = Path(__file__).with_name("pictures")
_CUT: Any = aot.min_cut_rematerialization_partition
# of the program, which lies elsewhere on another machine
_LINE = re.compile(r"\n/[^\n]*:\d+: [^\n<]*(?=</title>)")


def _layers(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    for weight in (w, v, w):
        x = F.gelu(F.layer_norm(x @ weight, (4,)))
    return x.sum()


def _shared(x: Tensor, w: Tensor, v: Tensor) -> Any:
    y = (x @ w).exp()
    return (y.view(-1) ** 3).sum() * y.sum().exp() + (y.t() @ y).max(0)[0].sum(), v.sin()


def _wide(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.stack(
        [x.sin(), x.cos() * w.sum(), *x.exp().split(1)[:1], v.tanh()[:1].expand(6, 4)][:2]
    ).prod(0)


PROGRAMS: dict[str, tuple[Callable[..., Any], Any]] = {
    "layers": (_layers, _CUT),
    "layers_in_little_memory": (_layers, partial(_CUT, memory_budget=0.0)),
    "shared": (_shared, aot.default_partition),
    "wide": (_wide, aot.default_partition),
    "nothing": (lambda x, w, v: x + w.sum(), _CUT),
}


def picture(name: str) -> str:
    f, cut = PROGRAMS[name]
    given = [
        torch.zeros(6, 4, requires_grad=True),
        *(torch.zeros(4, 4, requires_grad=True) for _ in range(2)),
    ]
    return _LINE.sub("", aot.explain(aot.aot_function(f, aot.nop, partition_fn=cut), *given).svg())


def stored(name: str) -> str:
    return (FOLDER / f"{name}.svg").read_text()


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PROGRAMS:
        (FOLDER / f"{name}.svg").write_text(picture(name))
