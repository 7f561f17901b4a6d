"""The empirical neural tangent kernel, and what training would make of a model that is
linear in its weights.

python -m examples.tangent_kernel
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from examples.rings import classifier, two_rings
from runtime.func import functional_call
from runtime.per_sample import PerSampleGrads, per_sample_grads


def output_grads(model: nn.Module, x: Tensor) -> PerSampleGrads:
    """The gradients of the first output for each row."""

    def output(params: dict[str, Tensor], x: Tensor) -> Tensor:
        first: Tensor = functional_call(model, params, (x[None],))[0, 0]
        return first

    return per_sample_grads(output)({name: p.detach() for name, p in model.named_parameters()}, x)


def tangent_kernel(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
    """The empirical neural tangent kernel of the first output (Jacot et al. 2018). Shape (rows of
    ``x``, rows of ``z``)."""
    return output_grads(model, x).gram(output_grads(model, z))


def predict(model: nn.Module, x: Tensor, y: Tensor, z: Tensor, ridge: float) -> Tensor:
    """The first output at ``z`` after ridge regression of ``y`` at ``x``, for the model as it is
    linear in its weights near the present ones. Shape (rows of ``z``,)."""
    of_x, of_z = output_grads(model, x), output_grads(model, z)
    before = model(x).detach()[:, 0], model(z).detach()[:, 0]
    own = of_x.gram() + ridge * torch.eye(len(x), dtype=x.dtype)
    fitted: Tensor = before[1] + of_z.gram(of_x) @ torch.linalg.solve(own, y - before[0])
    return fitted


if __name__ == "__main__":
    generator = torch.Generator().manual_seed(0)
    model = classifier(0, width=64)
    (x, y), (z, truth) = two_rings(200, generator), two_rings(1000, generator)
    print(f"tangent kernel: {list(tangent_kernel(model, z, x).shape)}")
    found = predict(model, x, 2.0 * y - 1, z, ridge=0.1) > 0
    print(f"accuracy of the linear model: {float((found == (truth == 1)).double().mean()):.3f}")
