"""The text of what the replay runs for a spread of programs: which calls, in which order, over
which memory, and what is freed when.

``plans.txt`` holds it. All of this is about time and memory alone, so no result of a
program tells it.

python -m tests.runtime.aot.compilers.inside.plans # writes the file anew; its diff says # what
has changed

Inside: the code of ``runtime.aot.compilers.replay``. Its text has the order of calls and what is
freed when, which no result of a program tells."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

import runtime
from runtime import aot, jit
from runtime.aot.compilers.replay import as_python
from runtime.func import grad, jacrev, vmap
from tests.runtime.aot.compilers import random_graphs

PLANS = Path(__file__).with_name("plans.txt")
_COMMENT = re.compile(r"  # .*$", re.MULTILINE)


def _adam(p: Tensor, m: Tensor, v: Tensor, g: Tensor, step: Tensor) -> None:
    step.add_(1)
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m / (1 - 0.9**step) * -0.01, (v.sqrt() / (1 - 0.999**step).sqrt()).add_(1e-8))


def _momentum(p: Tensor, q: Tensor, g: Tensor, h: Tensor) -> None:
    for param, gradient in ((p, g), (q, h)):
        param.mul_(0.99).sub_(gradient, alpha=0.1)


def _norms(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(F.linear(x, w, b).view(2, 2, 3).relu().view(4, 3), (3,)).square().mean()


def _attention(x: Tensor) -> Tensor:
    q, k, v = x.view(4, 3, 1).unbind(1)
    return ((q @ k.mT).softmax(-1) @ v).transpose(0, 1).reshape(4)


def _swap(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    x.copy_(y)
    y.copy_(z)
    return x + y


def _chain(x: Tensor, s: Tensor) -> Tensor:
    for _ in range(6):
        x = (x * s).sin()
    return x.sum()


def _written(x: Tensor, y: Tensor) -> Any:
    u = x * y
    x.t().add_(1)
    y[1:].mul_(u[1:])
    return u.t(), x.view(-1)[2:]


A, B, C, S = (4, 3), (4, 3), (3, 3), (3,)
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "adam": (_adam, (A, A, A, A, ())),
    "momentum": (_momentum, (A, A, A, A)),
    "norms": (_norms, (A, C, S)),
    "gradient of norms": (grad(_norms, argnums=(0, 1, 2)), (A, C, S)),
    "attention": (_attention, (A,)),
    "gradient of attention": (grad(lambda x: _attention(x).sum()), (A,)),
    "swap": (_swap, (A, B)),
    "gradient of a chain": (grad(_chain, argnums=1), (A, S)),
    "writes through views": (_written, (A, B)),
    "identities": (jacrev(torch.sin), (S,)),
    "samples": (
        vmap(grad(lambda x, w: (x @ w).tanh().sum(), argnums=1), in_dims=(0, None)),
        (A, C),
    ),
    "pieces": (lambda x: [p.sin() * i for i, p in enumerate(x.split([1, 1, 2]), 1)][1:], (A,)),
    "neutral arithmetic": (
        lambda x: ((x * 1 + 0) / 1 - 0.0) * torch.full_like(x, 2.0) + torch.ones(3),
        (A,),
    ),
    "squares and means": (
        lambda x, y: ((x**2).mean(), (y**3).mean(), x.mean(0), (x + y) ** 2),
        (A, B),
    ),
    "expanded": (
        lambda x, s: (
            s.expand(4, 3) * x,
            s.sum().expand(4, 3) + x,
            s.unsqueeze(1).expand(3, 4) + x.t(),
        ),
        (A, S),
    ),
    "one after the other": (lambda x, y: (x * y).tanh().add(y).neg().mul(x).sum(0), (A, B)),
    "commuting": (lambda x, y: (x * y.sin(), y.exp() + x, x - y.cos(), x / y.neg()), (A, B)),
    "far and near": (
        lambda x, y: (x.sin().sin().sin().cos(), y.cos(), (x + y).sin().cos(), y.sin()),
        (A, B),
    ),
    "draws": (
        lambda x: (torch.bernoulli(x.sigmoid()).sin(), torch.rand_like(x).sin(), x.sin()),
        (A,),
    ),
    "unused": (lambda x, y: (x.max(0).values, x.sort(0)[1], x.aminmax(dim=1)[0]), (A, B)),
    "an unfolded write": (
        lambda x: (
            y := (x.t().t() * 2).clone(),
            y.unfold(0, 2, 1).mul_(3),
            y.square().mean(),
            y * 1,
        )[2:],
        (A,),
    ),
}


def plans(
    f: Callable[..., Any], *args: Tensor, back: bool = False, dynamic: bool = False
) -> list[str]:
    """The text for the forward of ``f``; with ``back`` those for its forward and backward."""
    found: list[str] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        run: Any = as_python(module)
        found.append(
            _text(run)
            + "".join(
                f"# {k}: {getattr(run, k)}\n" for k in ("placed", "writes") if getattr(run, k)
            )
        )
        return aot.nop(module, inputs)

    results = aot.aot_function(f, keep, dynamic=dynamic)(*args)
    losses = [r.sum() for r in torch.utils._pytree.tree_leaves(results) if back and r.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return found


def _text(run: Any) -> str:
    """The source of a function, with its constants, and without the lines of the user's program."""
    known = run.__globals__
    constants = "".join(
        f"# {k} = {v.tolist()}\n" for k, v in known.items() if isinstance(v, Tensor)
    )
    return constants + _COMMENT.sub("", known["__loader__"].get_source(""))


def _of_program(title: str, dtype: torch.dtype = torch.float32, dynamic: bool = False) -> list[str]:
    f, shapes = PROGRAMS[title]
    torch.manual_seed(0)
    return plans(f, *(torch.rand(shape).to(dtype) for shape in shapes), dynamic=dynamic)


def _reads(x: Tensor, y: Tensor, s: Tensor, t: Tensor) -> Any:
    n, m = s.item(), t.item()
    return (
        x / (1 - 0.9**n),
        y / (1 - 0.9**m),
        (x * n).lerp(y, 0.5).sum().item(),
        torch.sym_max(n, 2.0) * y.pow(2).max(1)[0],
    )


def _of_jitted(f: Callable[..., Any], *args: Tensor) -> list[str]:
    found: list[str] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(_text(as_python(module)))
        return aot.nop(module, inputs)

    jit(f, compiler=keep)(*args)
    return found


def _of_random(seed: int) -> list[str]:
    return plans(random_graphs.compiled(random_graphs.program(seed)), *random_graphs.inputs(seed))


def _of_gradient(seed: int) -> list[str]:
    leaves = [runtime.wrap(t, requires_grad=True) for t in random_graphs.inputs(seed)]
    return plans(
        random_graphs.compiled(random_graphs.program(seed, writes=False)), *leaves, back=True
    )


_ANY_SIZE = ("writes through views", "squares and means", "expanded", "pieces", "far and near")
SECTIONS: dict[str, Callable[[], list[str]]] = {
    **{title: partial(_of_program, title) for title in PROGRAMS},
    **{
        f"{title} of any size": partial(_of_program, title, dynamic=True)
        for title in ("norms", "gradient of norms", "momentum", *_ANY_SIZE)
    },
    **{
        f"{title} in bfloat16": partial(_of_program, title, torch.bfloat16)
        for title in ("adam", "squares and means", "neutral arithmetic")
    },
    **{
        f"{title} in double precision": partial(_of_program, title, torch.float64)
        for title in ("momentum", "gradient of a chain")
    },
    "numbers that are read": partial(
        _of_jitted, _reads, torch.ones(4, 3), torch.ones(4, 3), torch.tensor(1.0), torch.tensor(2.0)
    ),
    **{f"random program {seed}": partial(_of_random, seed) for seed in range(16)},
    **{f"gradient of random program {seed}": partial(_of_gradient, seed) for seed in range(8)},
}


def section(title: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return f"== {title}\n" + "\n".join(SECTIONS[title]())


def stored() -> dict[str, str]:
    """The section of each title in the file."""
    found = PLANS.read_text().split("== ")[1:]
    return {text.partition("\n")[0]: f"== {text}" for text in found}


if __name__ == "__main__":
    PLANS.write_text("".join(map(section, SECTIONS)))
