"""Every op of torch's database that takes two real tensors: one is the parameter, the other one a
batch of samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db

from runtime.func.batch import fallback_policy
from runtime.per_sample import per_sample_grads
from tests.runtime.opinfo_samples import drawn

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.qr is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state:UserWarning"),
    # inside the kernel of prelu
    pytest.mark.filterwarnings(
        "ignore:An output with one or more elements was resized:UserWarning"
    ),
]
_LEFT_OUT = {
    "as_strided_scatter": (
        "torch keeps the gradient of the base where it should drop it (docs/findings.md, F21)"
    ),
    "native_layer_norm": "torch leaves out what comes by the mean and the standard deviation",
    "sparse.sampled_addmm": "vmap has no batches of sparse results",
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"),
        "all samples would update the running statistics, which is refused "
        "(test_per_sample_grads.py)",
    ),
}
Place = tuple[str, Any]


class Use(NamedTuple):
    """A loss of one sample: an op with the parameter and the sample at two of its arguments."""

    loss: Callable[[Tensor, Tensor], Any]
    parameter: Tensor
    batch: Tensor


def _places(sample: Any) -> dict[Place, Tensor]:
    given: dict[Place, Any] = {("input", 0): sample.input}
    given |= {("args", i): a for i, a in enumerate(sample.args)} | {
        ("kwargs", k): a for k, a in sample.kwargs.items()
    }
    return {
        p: a.detach()
        for p, a in given.items()
        if isinstance(a, Tensor) and a.is_floating_point() and a.layout is torch.strided
    }


def _loss(op: Any, sample: Any, parameter: Place, batch: Place) -> Callable[[Tensor, Tensor], Any]:
    def loss(p: Tensor, x: Tensor) -> Any:
        new = {parameter: p, batch: x}
        args = [new.get(("args", i), a) for i, a in enumerate(sample.args)]
        kwargs = {k: new.get(("kwargs", k), a) for k, a in sample.kwargs.items()}
        out = op.op(new.get(("input", 0), sample.input), *args, **kwargs)
        total = x.new_zeros(())
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()):
                real = torch.view_as_real(t) if t.is_complex() else t
                total = total + (real * real + real).sum()
        return total

    return loss


def _uses(op: Any) -> Iterator[Use]:
    """Of the first samples with two such tensors, both ways."""
    for sample in drawn(op, "cpu", torch.float64, 4):
        places = _places(sample) if isinstance(sample.input, Tensor) else {}
        if len(places) > 1:
            first, second = list(places)[:2]
            for parameter, batch in ((first, second), (second, first)):
                x = places[batch]
                yield Use(
                    _loss(op, sample, parameter, batch),
                    places[parameter],
                    torch.stack([x, x * 1.01 + 0.001, x * 0.98]),
                )
            return


def _loop(use: Use) -> Tensor | None:
    """None if the op draws, refuses these values, or gives no derivative."""
    found = []
    for _ in range(2):
        rows = []
        for x in use.batch:
            p = use.parameter.clone().requires_grad_()
            try:
                g: Any = torch.autograd.grad(use.loss(p, x.clone()), p, allow_unused=True)[0]
            except Exception:  # the op refuses these values, with any error
                return None
            if g is None:
                return None
            rows.append(g)
        found.append(torch.stack(rows))
    return found[0] if torch.equal(found[0].nan_to_num(), found[1].nan_to_num()) else None


_OPS = [op for op in op_db if op.supports_dtype(torch.float64, "cpu") and op.supports_autograd]


@pytest.mark.parametrize("op", _OPS, ids=lambda op: f"{op.name}-{op.variant_test_name}".rstrip("-"))
def test_gradients_norms_and_sums_of(op: Any) -> None:
    if op.name in _LEFT_OUT:
        pytest.skip(_LEFT_OUT[op.name])
    torch.manual_seed(0)
    compared = [(use, want) for use in _uses(op) if (want := _loop(use)) is not None]
    if not compared:
        pytest.skip("no two real tensors, or no derivative that is the same twice")
    for use, want in compared:
        with fallback_policy("silent"):
            grads = per_sample_grads(use.loss)(use.parameter, use.batch)
            rows = want.reshape(3, -1)
            weights = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
            torch.testing.assert_close(
                grads.materialize(), want, rtol=1e-6, atol=1e-8, equal_nan=True
            )
            torch.testing.assert_close(
                grads.norms(),
                rows.norm(dim=1),
                rtol=1e-6,
                atol=1e-8,
                equal_nan=True,
                check_dtype=False,
            )
            total = grads.weighted_sum(weights).flatten()
            torch.testing.assert_close(
                total, weights.to(rows.dtype) @ rows, rtol=1e-5, atol=1e-7, equal_nan=True
            )


def test_most_ops_with_two_tensors_are_compared() -> None:
    """Without this the loop above could pass over all of them."""
    layers = {
        "nn.functional.linear",
        "nn.functional.conv2d",
        "nn.functional.layer_norm",
        "nn.functional.bilinear",
    }
    names = layers | {"matmul", "addmm", "mul", "linalg.solve", "where", "cdist"}
    compared = {
        op.name
        for op in _OPS
        if op.name in names and any(_loop(use) is not None for use in _uses(op))
    }
    assert compared == names
