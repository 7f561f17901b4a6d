"""Clipped sums of per-sample gradients, by the function and by the context, beside one ordinary
step and ``vmap(grad)`` of torch.func."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.cells import Cell
from benchmarks.models import models
from runtime import jit
from runtime.func import functional_call
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads
from runtime.session.tensor import unwrap

Params = dict[str, Tensor]
Both = tuple[Callable[[], object], Callable[[], object]]
_ALL = {
    "CNN of three 3×3": 1.2,
    "transformer block": 1.1,
    "embedding and LSTM": 3.0,
    "GPT-2 tiny": 1.5,
}
_GOALS = {
    "MLP 784-512-512-10": 1.3,
    "CNN of three 3×3": 1.5,
    "transformer block": 1.25,
    "embedding and LSTM": 1.5,
    "GPT-2 tiny": 1.5,
}


class _Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 64)
        self.steps = nn.LSTM(64, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.steps(self.words(x))[0])
        return out


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)
    )


def _cnn() -> nn.Module:
    widths = ((3, 32, 1), (32, 64, 2), (64, 64, 2))
    convolutions = [
        layer
        for a, b, s in widths
        for layer in (nn.Conv2d(a, b, 3, stride=s, padding=1), nn.ReLU())
    ]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(64 * 64, 10))


def _block() -> nn.Module:
    return nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)


def programs() -> dict[str, tuple[Callable[[], nn.Module], Tensor]]:
    """By name, what makes a module, and its batch."""
    torch.manual_seed(0)
    found: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
        "MLP 784-512-512-10": (_mlp, torch.randn(256, 784)),
        "CNN of three 3×3": (_cnn, torch.randn(128, 3, 32, 32)),
        "transformer block": (_block, torch.randn(64, 64, 128)),
        "embedding and LSTM": (_Words, torch.randint(0, 100, (64, 32))),
    }
    return found | {m.name: (m.make, m.x) for m in models() if m.name == "GPT-2 tiny"}


def losses_of(out: Tensor) -> Tensor:
    """The loss of each sample."""
    return out.flatten(1).square().mean(1)


def sides_of(
    make: Callable[[], nn.Module], x: Tensor
) -> tuple[nn.Module, Params, Callable[[Params, Tensor], Tensor]]:
    """A module, its parameters, and the loss of one sample as a function of them."""
    torch.manual_seed(0)
    module = make()

    def loss(params: Params, x: Tensor) -> Tensor:
        return losses_of(functional_call(module, params, (x.unsqueeze(0),)))[0]

    return module, {name: p.detach() for name, p in module.named_parameters()}, loss


def _beside_a_step(
    make: Callable[[], nn.Module],
    x: Tensor,
    *,
    ask: Callable[[PerSampleGrads], object],
    jitted: bool,
) -> Both:
    """The results that are compared are the losses; the peer has no gradients of samples. ``ask``:
    what is asked of the gradients."""
    module, params, loss = sides_of(make, x)

    def found(params: Params, x: Tensor) -> tuple[object, Tensor]:
        grads = per_sample_grads(loss)(params, x)
        return ask(grads), grads.losses

    def step() -> Tensor:
        module.zero_grad()
        losses = losses_of(module(x))
        losses.mean().backward()
        return losses.detach()

    run = jit(found) if jitted else found
    return lambda: run(params, x)[1], step


def _context_beside_a_step(
    make: Callable[[], nn.Module], x: Tensor, *, ask: Callable[[per_sample], object]
) -> Both:
    """The context around the step that is its peer. ``ask``: what is asked of the gradients."""
    torch.manual_seed(0)
    module = make()

    def step() -> Tensor:
        module.zero_grad()
        losses = losses_of(module(x))
        losses.mean().backward()
        return losses.detach()

    def followed() -> Tensor:
        with per_sample(module.parameters()) as grads:
            losses = step()
        ask(grads)
        return unwrap(losses)

    return followed, step


def _beside_torch(make: Callable[[], nn.Module], x: Tensor) -> Both:
    _, params, loss = sides_of(make, x)
    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))

    def theirs() -> Params:
        found = each(params, x)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in found.values()]).norm(dim=0)
        factors = 1.0 / norms.clamp_min(1.0)
        return {name: torch.tensordot(factors, g, 1) for name, g in found.items()}

    return lambda: per_sample_grads(loss)(params, x).clipped_sum(1.0), theirs


def _into_kept_buffers(make: Callable[[], nn.Module], x: Tensor) -> Both:
    """Beside one step that then fills the same buffers, which is what writing B × P numbers
    costs."""
    followed, step = _context_beside_a_step(make, x, ask=lambda grads: grads.materialize(out=kept))
    kept = [torch.empty(len(x), *p.shape) for p in make().parameters()]

    def filling() -> object:
        losses = step()
        for k in kept:
            k.fill_(1.0)
        return losses

    return followed, filling


def _clip(grads: PerSampleGrads) -> object:
    return grads.clipped_sum(1.0)


def _dense(grads: PerSampleGrads) -> object:
    return grads.materialize()


def cells() -> Iterator[Cell]:
    ways: dict[str, Callable[..., Both]] = {
        "by the function": partial(_beside_a_step, jitted=False),
        "in the context": _context_beside_a_step,
        "jitted": partial(_beside_a_step, jitted=True),
    }
    for name, (make, x) in programs().items():
        for way, build in ways.items():
            yield Cell(
                "per_sample",
                "",
                name,
                f"clipped sum, {way}",
                "one step",
                partial(build, make, x, ask=_clip),
                _GOALS[name],
            )
            if name in _ALL:
                yield Cell(
                    "per_sample",
                    "",
                    name,
                    f"all gradients, {way}",
                    "one step",
                    partial(build, make, x, ask=_dense),
                    _ALL[name],
                )
        if name not in _ALL:
            kept = partial(_into_kept_buffers, make, x)
            yield Cell(
                "per_sample",
                "",
                name,
                "all gradients into kept buffers",
                "one step and the filling",
                kept,
                1.4,
            )
        yield Cell(
            "per_sample",
            "",
            name,
            "clipped sum ÷ torch.func",
            "torch.func",
            partial(_beside_torch, make, x),
            1.0,
        )
