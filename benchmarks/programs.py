"""The programs of the benchmarks. Each is a function of tensors, which both sides run on
the same values.

`small` programs are dominated by the cost of calls, `large` ones by kernels of 100 µs and more.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

import runtime

SIZES = ("small", "large")


@dataclass(frozen=True)
class Program:
    """`outputs(x, *parameters)` has the leading dimension of `x`, then about ten numbers. It also
    accepts a single `x[i]`.

    `few` is the position in `(x, *parameters)` of an argument with few elements. Jacobians and
    Hessians are taken by it."""

    name: str
    size: str
    outputs: Callable[..., Tensor]
    x: Tensor
    parameters: tuple[Tensor, ...]
    few: int

    def loss(self, *args: Tensor) -> Tensor:
        """Cross-entropy against class 0, a scalar."""
        out = self.outputs(*args)
        return (out.logsumexp(-1) - out[..., 0]).mean()

    def pooled(self, *args: Tensor) -> Tensor:
        """The outputs averaged over the batch, a vector."""
        return self.outputs(*args).mean(0)


def randoms(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """Normal numbers, scaled so that products with them preserve magnitude."""
    return tuple(torch.randn(shape) / math.sqrt(math.prod(shape[1:]) or 1) for shape in shapes)


def pointwise_chain(size: str, length: int = 10) -> Program:
    def outputs(x: Tensor, scale: Tensor) -> Tensor:
        for _ in range(length):
            x = torch.tanh(x * scale) + torch.sigmoid(x)
        return x.mean(-2)

    rows = 8 if size == "small" else 4096
    return Program(
        "pointwise chain",
        size,
        outputs,
        torch.randn(8, rows, 8),
        (1 + 0.1 * torch.randn(8),),
        few=1,
    )


def mlp(size: str) -> Program:
    """Three layers. The first one also gets a context vector."""

    def outputs(
        x: Tensor,
        context: Tensor,
        w0: Tensor,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        w3: Tensor,
        b3: Tensor,
    ) -> Tensor:
        hidden = torch.relu(F.linear(x, w1, b1) + F.linear(context, w0))
        hidden = torch.relu(F.linear(hidden, w2, b2))
        return F.linear(hidden, w3, b3)

    batch, width = (4, 16) if size == "small" else (32, 512)
    parameters = randoms(
        (8,), (width, 8), (width, width), (width,), (width, width), (width,), (10, width), (10,)
    )
    return Program("MLP", size, outputs, torch.randn(batch, width), parameters, few=1)


def cnn(size: str) -> Program:
    """Two convolutions with group norm, max pooling and a linear head. Each channel of the
    image has a gain."""

    def outputs(
        x: Tensor, gain: Tensor, w1: Tensor, b1: Tensor, n1: Tensor, m1: Tensor, w2: Tensor,
        b2: Tensor, n2: Tensor, m2: Tensor, w3: Tensor, b3: Tensor,
    ) -> Tensor:  # fmt: skip
        image = x.reshape(-1, *x.shape[-3:]) * gain[:, None, None]
        hidden = torch.relu(F.group_norm(F.conv2d(image, w1, b1, padding=1), 4, n1, m1))
        hidden = F.max_pool2d(hidden, 2)
        hidden = torch.relu(F.group_norm(F.conv2d(hidden, w2, b2, padding=1), 4, n2, m2))
        out = F.linear(hidden.mean((-2, -1)), w3, b3)
        by_sample: Tensor = out.reshape(*x.shape[:-3], out.shape[-1])
        return by_sample

    batch, side, first, second = (4, 8, 8, 8) if size == "small" else (8, 32, 32, 64)
    parameters = (
        *(torch.ones(3), *randoms((first, 3, 3, 3), (first,))),
        *(torch.ones(first), torch.zeros(first), *randoms((second, first, 3, 3), (second,))),
        *(torch.ones(second), torch.zeros(second), *randoms((10, second), (10,))),
    )
    return Program("CNN", size, outputs, torch.randn(batch, 3, side, side), parameters, few=1)


def transformer_block(size: str) -> Program:
    """Pre-norm attention and a GELU MLP with residuals, then mean pooling and a linear head. Each
    attention head has a gain."""
    batch, length, width, heads = (2, 8, 16, 2) if size == "small" else (4, 64, 256, 4)

    def outputs(
        x: Tensor, gain: Tensor, n1: Tensor, m1: Tensor, w_qkv: Tensor, w_out: Tensor, n2: Tensor,
        m2: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor,
    ) -> Tensor:  # fmt: skip
        def split(t: Tensor) -> Tensor:
            return t.reshape(*t.shape[:-1], heads, width // heads).transpose(-3, -2)

        q, k, v = map(split, F.linear(F.layer_norm(x, (width,), n1, m1), w_qkv).chunk(3, -1))
        scores = (q * gain[:, None, None]) @ k.transpose(-2, -1) / math.sqrt(width // heads)
        x = x + F.linear((scores.softmax(-1) @ v).transpose(-3, -2).flatten(-2), w_out)
        x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (width,), n2, m2), w1, b1)), w2, b2)
        return F.linear(x.mean(-2), w3, b3)

    parameters = (
        *(
            torch.ones(heads),
            torch.ones(width),
            torch.zeros(width),
            *randoms((3 * width, width), (width, width)),
        ),
        *(
            torch.ones(width),
            torch.zeros(width),
            *randoms((4 * width, width), (4 * width,), (width, 4 * width), (width,)),
        ),
        *randoms((10, width), (10,)),
    )
    return Program(
        "transformer block", size, outputs, torch.randn(batch, length, width), parameters, few=1
    )


def linear_solve(size: str) -> Program:
    """Linear systems. Each matrix of the batch gets an update of rank eight."""

    def outputs(x: Tensor, diagonal: Tensor, u: Tensor, b: Tensor) -> Tensor:
        solution = torch.linalg.solve(x + (u * diagonal) @ u.mT, b.expand(*x.shape[:-2], *b.shape))
        projected: Tensor = u.mT @ solution
        return projected.mean(-1)

    batch, n, columns = (4, 8, 2) if size == "small" else (8, 128, 8)
    x = torch.randn(batch, n, n) / n + 2 * torch.eye(n)
    return Program(
        "linear solve", size, outputs, x, (torch.rand(8), *randoms((n, 8), (n, columns))), few=1
    )


def programs(sizes: tuple[str, ...] = SIZES) -> list[Program]:
    """Every program of the given sizes, with seeded values."""
    torch.manual_seed(0)
    return [
        make(size)
        for size in sizes
        for make in (pointwise_chain, mlp, cnn, transformer_block, linear_solve)
    ]


@dataclass(frozen=True)
class Training:
    """A step of training. The parameters get gradients of `loss(x, *parameters)`."""

    name: str
    loss: Callable[..., Tensor]
    x: Tensor
    parameters: tuple[Tensor, ...]


def chain_of_100() -> Training:
    """A product and a tanh, fifty times, 8×8."""

    def loss(x: Tensor, scale: Tensor) -> Tensor:
        for _ in range(50):
            x = torch.tanh(x * scale)
        return x.sum()

    return Training("chain of 100, 8×8", loss, torch.randn(8, 8), (torch.randn(8, 8),))


def mlp_step() -> Training:
    def loss(
        x: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, w3: Tensor, b3: Tensor
    ) -> Tensor:
        hidden = torch.relu(F.linear(x, w1, b1))
        return F.linear(torch.relu(F.linear(hidden, w2, b2)), w3, b3).square().mean()

    return Training(
        "MLP, batch 32",
        loss,
        torch.randn(32, 64),
        randoms((128, 64), (128,), (128, 128), (128,), (10, 128), (10,)),
    )


def transformer_step(width: int, heads: int) -> Training:
    """A transformer block at batch 4 with sequences of 64 and torch's fused attention."""
    batch, length = 4, 64

    def loss(
        x: Tensor, n1: Tensor, m1: Tensor, w_qkv: Tensor, b_qkv: Tensor, w_out: Tensor,
        b_out: Tensor, n2: Tensor, m2: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor,
    ) -> Tensor:  # fmt: skip
        def split(t: Tensor) -> Tensor:
            return t.view(batch, length, heads, width // heads).transpose(1, 2)

        q, k, v = map(split, F.linear(F.layer_norm(x, (width,), n1, m1), w_qkv, b_qkv).chunk(3, -1))
        attended = (
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        )
        x = x + F.linear(attended, w_out, b_out)
        return (
            (x + F.linear(F.gelu(F.linear(F.layer_norm(x, (width,), n2, m2), w1, b1)), w2, b2))
            .square()
            .mean()
        )

    parameters = (
        *(
            torch.ones(width),
            torch.zeros(width),
            *randoms((3 * width, width), (3 * width,), (width, width), (width,)),
        ),
        *(
            torch.ones(width),
            torch.zeros(width),
            *randoms((4 * width, width), (4 * width,), (width, 4 * width), (width,)),
        ),
    )
    return Training(
        f"transformer block, batch 4, width {width}",
        loss,
        torch.randn(batch, length, width),
        parameters,
    )


def cnn_step(first: int, second: int) -> Training:
    """A CNN of two convolutions with batch normalization, on 8 images of 32×32."""

    def loss(
        x: Tensor,
        w1: Tensor,
        b1: Tensor,
        n1: Tensor,
        m1: Tensor,
        w2: Tensor,
        b2: Tensor,
        n2: Tensor,
        m2: Tensor,
        w3: Tensor,
        b3: Tensor,
    ) -> Tensor:
        hidden = torch.relu(
            F.batch_norm(F.conv2d(x, w1, b1, padding=1), None, None, n1, m1, training=True)
        )
        hidden = F.max_pool2d(hidden, 2)
        hidden = torch.relu(
            F.batch_norm(F.conv2d(hidden, w2, b2, padding=1), None, None, n2, m2, training=True)
        )
        target = torch.arange(x.shape[0]) % 10
        return F.cross_entropy(
            F.linear(F.adaptive_avg_pool2d(hidden, 1).flatten(1), w3, b3), target
        )

    parameters = (
        *(*randoms((first, 3, 3, 3), (first,)), torch.ones(first), torch.zeros(first)),
        *(
            *randoms((second, first, 3, 3), (second,)),
            torch.ones(second),
            torch.zeros(second),
            *randoms((10, second), (10,)),
        ),
    )
    return Training(
        f"CNN, batch 8, {first} and {second} channels", loss, torch.randn(8, 3, 32, 32), parameters
    )


def lstm_step() -> Training:
    """An LSTM layer: 16 steps, batch 8, 32 features."""
    features, hidden = 32, 32

    def loss(x: Tensor, *weights: Tensor) -> Tensor:
        start = x.new_zeros(1, x.shape[0], hidden)
        out: Tensor = torch.lstm(x, (start, start), weights, True, 1, 0.0, True, False, True)[0]
        return out.square().mean()

    weights = randoms((4 * hidden, features), (4 * hidden, hidden), (4 * hidden,), (4 * hidden,))
    return Training("LSTM, batch 8", loss, torch.randn(8, 16, features), weights)


def solve_step() -> Training:
    def loss(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        solution: Tensor = torch.linalg.solve(x + a, b)
        return solution.square().mean()

    return Training(
        "linear solve, 64",
        loss,
        2 * torch.eye(64),
        (0.05 * torch.randn(64, 64), torch.randn(64, 4)),
    )


def trainings() -> list[Training]:
    """Every training step, with seeded values.

    The narrow transformer and CNN show the cost of calls. The wide ones have the sizes of the base
    model of Vaswani et al. (2017) and of the first layers of Simonyan and Zisserman (2015).
    """
    torch.manual_seed(0)
    return [
        *(transformer_step(128, 4), transformer_step(512, 8), cnn_step(16, 32), cnn_step(64, 128)),
        *(lstm_step(), chain_of_100(), mlp_step(), solve_step()),
    ]


def leaves(p: Training, ours: bool) -> tuple[Any, list[Any]]:
    """The input and fresh parameters that require grad, as runtime tensors or torch's own."""
    if ours:
        return runtime.wrap(p.x), [
            runtime.wrap(t.clone(), requires_grad=True) for t in p.parameters
        ]
    return p.x, [t.clone().requires_grad_() for t in p.parameters]
