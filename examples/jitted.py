"""Programs that `runtime.jit` captures. Each function is plain; ``GALLERY`` jits it and says with
what to call it.

python -m examples.jitted        # run all, and show what was captured
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from runtime import jit
from runtime.func import grad, jvp, vmap

Weights = tuple[Tensor, ...]


def network(weights: Weights, x: Tensor) -> Tensor:
    """An MLP with tanh: (…, n) to (…, m)."""
    for i, w in enumerate(weights):
        x = x @ w
        x = x.tanh() if i < len(weights) - 1 else x
    return x


def hessian_vector_product(weights: Weights, x: Tensor, y: Tensor, directions: Weights) -> Weights:
    """The Hessian of the loss times ``directions``: forward mode over reverse mode, which never
    forms the Hessian."""

    def slope(*weights: Tensor) -> Any:
        return grad(lambda w: mse_loss(network(w, x), y))(weights)

    _, found = jvp(slope, weights, directions)
    return tuple(found)


def gradients_of_samples(weights: Weights, x: Tensor, labels: Tensor) -> Any:
    """The gradient of each sample's loss: a leading dimension of the batch before each weight."""
    return vmap(
        grad(lambda w, x, label: cross_entropy(network(w, x), label)), in_dims=(None, 0, 0)
    )(weights, x, labels)


def maml_gradient(
    weights: Weights, support: tuple[Tensor, Tensor], query: tuple[Tensor, Tensor], rate: float
) -> Any:
    """The gradient of the loss on ``query`` after one step on ``support``, through that step (Finn,
    Abbeel and Levine 2017)."""

    def adapted_loss(weights: Weights) -> Tensor:
        slopes = grad(lambda w: mse_loss(network(w, support[0]), support[1]))(weights)
        adapted = tuple(w - rate * g for w, g in zip(weights, slopes, strict=True))
        return mse_loss(network(adapted, query[0]), query[1])

    return grad(adapted_loss)(weights)


def dispersion_loss(weights: Weights, t: Tensor, x: Tensor) -> Tensor:
    """The mean square residual of u_t + u u_x + u_xxx = 0 (Korteweg and de Vries 1895) at the
    points (t, x), of shape (n,)."""

    def u(t: Tensor, x: Tensor) -> Tensor:
        return network(weights, torch.stack([t, x])).squeeze(-1)

    def residual(t: Tensor, x: Tensor) -> Any:
        u_x = grad(u, 1)
        return grad(u)(t, x) + u(t, x) * u_x(t, x) + grad(grad(u_x, 1), 1)(t, x)

    residuals: Tensor = vmap(residual)(t, x)
    return residuals.square().mean()


def dispersion_gradient(weights: Weights, t: Tensor, x: Tensor) -> Any:
    """The gradient of :func:`dispersion_loss` by the weights, a fourth derivative."""
    return grad(dispersion_loss)(weights, t, x)


class Training:
    """A classifier and its optimizer. ``step`` is ordinary code of torch, and can be
    jitted as it is."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def step(self, x: Tensor, labels: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = cross_entropy(self.model(x), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()


def _weights(*sizes: int) -> Weights:
    return tuple(torch.randn(m, n) / m**0.5 for m, n in itertools.pairwise(sizes))


def _arguments() -> dict[Callable[..., Any], tuple[Any, ...]]:
    torch.manual_seed(0)
    w, x, y = _weights(4, 8, 3), torch.randn(6, 4), torch.randn(6, 3)
    return {
        hessian_vector_product: (w, x, y, tuple(torch.ones_like(t) for t in w)),
        gradients_of_samples: (w, x, torch.tensor([0, 1, 2, 0, 1, 2])),
        maml_gradient: (w, (x, y), (torch.randn(6, 4), torch.randn(6, 3)), 0.1),
        dispersion_gradient: (_weights(2, 16, 16, 1), torch.rand(32), torch.rand(32)),
    }


GALLERY = _arguments()

if __name__ == "__main__":
    for program, args in GALLERY.items():
        jitted = jit(program)
        jitted(*args)
        print(jit.explain(jitted), end="\n\n")
    step = jit(Training().step)
    for _ in range(3):
        step(torch.randn(6, 4), torch.tensor([0, 1, 2, 0, 1, 2]))
    print(jit.explain(step))
