"""What becomes of a random module: the same gradients as torch's for each sample, different ones, a
refusal, or an error.

outcome(random_case(7))     # Outcome("same")
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runtime.per_sample import per_sample

from .programs import Case

ERRORS = (
    RuntimeError,
    TypeError,
    IndexError,
    ValueError,
    NameError,
    AttributeError,
    NotImplementedError,
    AssertionError,
)
"""What torch raises for a program that makes no sense."""
Rows = list[Tensor]


@dataclass(frozen=True)
class Outcome:
    """``what``: "same", "different", "refused", "error", or "nothing" (the program does not run in
    torch, or has no gradient). ``kind``: of refusal, or the difference."""

    what: str
    kind: str = ""


def outcome(case: Case) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = reference(case)
        except ERRORS as error:
            return Outcome("nothing", f"{type(error).__name__}: {error}")
        try:
            return (
                Outcome("different", text)
                if (text := difference(expected, found(case)))
                else Outcome("same")
            )
        except Exception as error:
            text = str(error)
            if isinstance(error, RuntimeError) and text.startswith("per_sample"):
                op = re.match(
                    r"per_sample: (\S+) mixes samples in [^:]*: (.*?)\. Gradients of single",
                    text,
                    re.DOTALL,
                )
                return Outcome("refused", " ".join(op.groups()) if op else text[:100])
            return Outcome("error", f"{type(error).__name__}: {text}")


def reference(case: Case) -> list[Rows]:
    """The gradients of all parameters for each sample, by torch's own autograd, with batches of
    one. A program that runs with the whole batch only: by the loss of each sample in it."""
    module, inputs = case.build(), case.inputs()
    params = list(module.parameters())
    loss, per = module(*inputs)
    alone = case.mixes or not case.whole
    losses = (
        [module(*[t[b : b + 1] for t in inputs])[0] for b in range(case.batch)]
        if alone
        else list(per)
    )
    if not params or not any(loss.requires_grad for loss in losses):
        raise RuntimeError("no gradient")
    return [_gradients(loss, params) for loss in losses] + [[loss.detach()]]


def _gradients(loss: Tensor, params: Sequence[Tensor]) -> Rows:
    found = torch.autograd.grad(loss, params, allow_unused=True, retain_graph=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(params, found, strict=True)]


def found(case: Case) -> list[Rows]:
    """As :func:`reference`, by the context. The norms and a weighted sum must fit the gradients."""
    module, inputs = case.build(), case.inputs()
    params: list[nn.Parameter] = list(module.parameters())
    with per_sample(params) as grads:
        loss, _ = module(*inputs)
        loss.backward()
    rows = grads.materialize()
    norms, weights = grads.norms(), torch.linspace(-1, 2, case.batch, dtype=torch.float64)
    squares = sum(g.pow(2).reshape(case.batch, -1).sum(1) for g in rows)
    if not torch.allclose(norms, squares.sqrt(), 1e-7, 1e-7):
        raise ArithmeticError("norms() are not those of materialize()")
    for p, g, total in zip(params, rows, grads.weighted_sum(weights), strict=True):
        if g.shape != (case.batch, *p.shape) or not torch.allclose(
            total, torch.tensordot(weights, g, 1), 1e-7, 1e-7
        ):
            raise ArithmeticError("weighted_sum() is not that of materialize()")
        if p.grad is not None:
            raise ArithmeticError("a parameter got a .grad")
    return [[g[b] for g in rows] for b in range(case.batch)] + [[loss.detach()]]


def difference(expected: list[Rows], got: list[Rows]) -> str:
    for b, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        for i, (a, e) in enumerate(zip(mine, theirs, strict=True)):
            if a.shape != e.shape or not torch.allclose(
                torch.as_tensor(a.tolist(), dtype=e.dtype), e, 1e-7, 1e-7, equal_nan=True
            ):
                return f"sample {b}, parameter {i}: {a.tolist()}, expected {e.tolist()}"
    return ""
