"""Programs that Inductor compiles, each beside eager:
`python -m tests.runtime.aot.compilers.inductor_programs [NAME …]`.

It compiles for seconds per program, and Inductor may die of a signal, so tests run it in a
process of its own.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import runtime
from runtime import aot

Program = Callable[..., Any]
PROGRAMS: dict[str, Callable[[], Program]] = {}
X = [[0.1, -0.2, 0.3, 0.5], [1.0, 2.0, -3.0, 0.7], [0.4, 0.6, 0.9, -1.0]]


def function(f: Program) -> Program:
    """Register a function of a matrix."""
    PROGRAMS[f.__name__] = lambda: f
    return f


def model(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Register a module for a matrix."""
    PROGRAMS[make.__name__] = make
    return make


@model
def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@model
def cnn() -> nn.Module:
    layers = [
        nn.Unflatten(1, (1, 2, 2)),
        nn.Conv2d(1, 4, 2, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.3), nn.Linear(4, 3))


class Block(nn.Module):
    """A block of a language model with its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.qkv, self.out = (
            nn.Embedding(11, 8),
            nn.LayerNorm(8),
            nn.Linear(8, 24),
            nn.Linear(8, 8),
        )
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: Any) -> Any:
        h = self.tokens(x.detach().abs().mul(3).long())
        q, k, v = self.qkv(self.norm(h)).chunk(3, -1)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return h + self.mlp(h)


@model
def block() -> nn.Module:
    return Block()


@function
def equal_results(x: Any) -> Any:
    return x.sin(), x.sin(), torch.zeros(3), torch.zeros(3), x.new_zeros(3)


@function
def copies(x: Any) -> Any:
    return x.clone(), x + 0, x * 1, x.contiguous(), x.to(torch.float32)


@function
def views(x: Any) -> Any:
    y = x * 2
    return y.t(), y[0], y.view(-1), x.t(), x[0], x[0].expand(5, 4), (x[0] * 2).expand(5, 4)


@function
def strides(x: Any) -> Any:
    return (
        x.t() * 2,
        torch.empty_like(x.t()).copy_(x.t()),
        x.unsqueeze(0).expand(2, 3, 4) * 1,
        (x * 2).t().contiguous(),
    )


@function
def channels_last(x: Any) -> Any:
    y = x.reshape(1, 3, 2, 2).to(memory_format=torch.channels_last)
    return y * 2, F.conv2d(y, torch.ones(2, 3, 1, 1))


@function
def writes(x: Any) -> Any:
    y = x * 1
    y[0].mul_(3)
    return y, y.sum(0)


@function
def draws(x: Any) -> Any:
    return (
        F.dropout(x, 0.5) + torch.rand(3, 4),
        torch.randn(2),
        torch.bernoulli(torch.full((3,), 0.5)),
        torch.randperm(4),
    )


@function
def constants(x: Any) -> Any:
    return (
        x * torch.tensor([1.0, 2.0, 3.0, 4.0]),
        torch.arange(3),
        torch.full((2,), 7),
        None,
        3,
        "text",
    )


@function
def argument(x: Any) -> Any:
    return x


@function
def no_grad(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
    return y * x, y.detach(), (x * 3).detach()


@function
def autocast(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


@function
def dtypes(x: Any) -> Any:
    return (
        x > 0,
        (x * 10).to(torch.int64),
        x.to(torch.float16),
        torch.view_as_real(torch.view_as_complex(x.reshape(3, 2, 2)) * (1 + 2j)),
    )


@function
def indices(x: Any) -> Any:
    rows, columns = torch.tensor([0, 2]), torch.tensor([[0], [1], [2]])
    return (
        x[rows],
        x.index_add(0, torch.tensor([0, 0]), x[:2]),
        x.scatter(1, columns, 5.0),
        x.gather(1, columns),
    )


@function
def linear_algebra(x: Any) -> Any:
    return (
        torch.linalg.solve(x[:3, :3] + 5 * torch.eye(3), x),
        torch.linalg.qr(x)[1].abs(),
        x.svd()[1],
    )


@function
def orders(x: Any) -> Any:
    return (*x.sort(0), *x.topk(2), x.cumsum(1), x.argmax(1), x.median())


@function
def pools(x: Any) -> Any:
    image = x[None, None]
    return (
        F.max_pool2d(image, 2),
        F.avg_pool2d(image, 2),
        F.interpolate(image, scale_factor=2, mode="bilinear"),
    )


@function
def losses(x: Any) -> Any:
    return F.cross_entropy(x, torch.tensor([0, 1, 3])), F.mse_loss(x, x * 0), F.layer_norm(x, (4,))


W = torch.linspace(-1, 1, 8).reshape(2, 4)


@function
def condition(x: Any) -> Any:
    return aot.cond(
        x.sum() > 0, lambda x: F.linear(x, W).sin(), lambda x: F.linear(x, W).cos(), (x,)
    )


def observed(
    f: Program, state: object, tensor: Callable[..., Any], rows: int
) -> tuple[list[Any], list[torch.Tensor]]:
    """Return facts of a call, and the numbers that belong to it.

    Facts are shapes, strides, flags and shared memory. Numbers are values, gradients, buffers, and
    a random number that is drawn afterwards.
    """
    x = tensor(X * rows, requires_grad=True)
    torch.manual_seed(1)
    result = f(x)
    results = result if isinstance(result, tuple) else (result,)
    tensors = [leaf for leaf in results if isinstance(leaf, torch.Tensor)]
    plain = [runtime.unwrap(t).detach() for t in (x, *tensors)]
    facts = [geometry(leaf) for leaf in results]
    facts.append([[torch._C._is_alias_of(a, b) for b in plain] for a in plain])  # type: ignore[attr-defined]
    values = [*(t.double() for t in plain), torch.rand(2)]
    module = state if isinstance(state, nn.Module) else nn.Module()
    values += gradients(tensors, (x, *module.parameters()))
    values += [buffer.clone() for buffer in module.buffers()]
    return facts, values


def gradients(results: list[Any], leaves: Sequence[Any]) -> list[torch.Tensor]:
    """Return the gradients that leaves have of a sum of the results. `leaves` begin with `x`."""
    loss = weighted_sum([t for t in results if t.requires_grad and t is not leaves[0]])
    # The sum of no results is a number, and then there is no backward pass.
    if not isinstance(loss, torch.Tensor):
        return []
    loss.backward()
    return [runtime.unwrap(leaf.grad) for leaf in leaves if leaf.grad is not None]


def geometry(result: Any) -> Any:
    """Return shape, strides, dtype and flag of a tensor, and any other result itself."""
    if not isinstance(result, torch.Tensor):
        return result
    return result.shape, result.stride(), result.dtype, result.requires_grad


def weighted_sum(tensors: list[Any]) -> Any:
    """Return the sum of all elements, each with a weight of its own, or 0 of no tensors."""
    return sum(
        (t.double() * torch.arange(1.0, t.numel() + 1).reshape(t.shape)).sum() for t in tensors
    )


def compare(name: str, dynamic: bool) -> None:
    """Raise ``AssertionError`` where a compiled program differs from eager."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(PROGRAMS[name]())
    eager, program = made
    options: Any = {"partition_fn": aot.min_cut_rematerialization_partition, "dynamic": dynamic}
    run = aot.aot_function(program, aot.inductor, **options)
    for rows in (1, 2, 1) if dynamic else (1, 1):
        expected, values = observed(eager, eager, torch.tensor, rows)
        found, numbers = observed(run, program, runtime.tensor, rows)
        assert found == expected, f"{found}\n{expected}"
        torch.testing.assert_close(numbers, values, rtol=1e-4, atol=1e-5, check_dtype=False)


def trained(compiler: Any) -> tuple[list[int], list[torch.Tensor]]:
    """Four steps of Adam: by ``compiler``, or eager mode for None. The versions of the parameters,
    and what they and the losses are."""
    torch.manual_seed(0)
    model, x = mlp(), torch.tensor(X)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = step if compiler is None else runtime.jit(step, compiler=compiler)
    losses = [run(x) for _ in range(4)]
    state = [t for s in optimizer.state.values() for t in s.values()]
    return [p._version for p in model.parameters()], [
        p.detach().clone() for p in (*model.parameters(), *state, *losses)
    ]


def compare_steps() -> None:
    """Raise ``AssertionError`` where steps by Inductor differ from those of eager mode, which write
    to their parameters as often."""
    (expected, values), (found, numbers) = trained(None), trained("inductor")
    assert found == expected, f"versions {found}, {expected} in eager mode"
    torch.testing.assert_close(numbers, values, rtol=1e-4, atol=1e-5)


def main() -> int:
    warnings.simplefilter("ignore")  # of torch, about complex numbers
    wrong = 0
    for name in sys.argv[1:] or [*PROGRAMS, "mlp:dynamic", "cnn:dynamic", "block:dynamic", "steps"]:
        started = time.monotonic()
        try:
            compare_steps() if name == "steps" else compare(
                name.partition(":")[0], name.endswith(":dynamic")
            )
        except Exception as error:
            wrong += 1
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"{name}: as eager, {time.monotonic() - started:.1f} s", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main())
