"""Run a module by `per_sample`, by `per_sample_grads`, and by a loop over the samples with torch's
own engine.

A module stands behind a linear layer, so a gradient has to pass through it as well.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.overrides
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from runtime.extend import fallback_policy
from runtime.func import functional_call, grad, vmap
from runtime.func.batch import fallbacks
from runtime.per_sample import PerSampleGrads, per_sample, per_sample_grads
from tests.per_sample_support.cases import Case, Inputs

Gradients = dict[str, Tensor]
SEED = 1
FUNCTION_NAMES: dict[Any, str] = {
    function: function.__name__
    for function in torch.overrides.get_overridable_functions()[torch.nn.functional]
    if not function.__name__.startswith("_")
}
"""The names of `torch.nn.functional`, by the function. A private function has none."""


@dataclass(frozen=True)
class Outcome:
    """What one way does with a module. `refusal`: the error, or nothing. `loops`: the ops that ran
    one sample at a time."""

    refusal: str = ""
    loops: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """Say it in one word: yes, slow or refused."""
        if self.refusal:
            return "refused"
        if self.loops:
            return "slow"
        return "yes"

    def __str__(self) -> str:
        """Say it in a sentence."""
        details = {
            "yes": "",
            "slow": f": {', '.join(self.loops)} runs one sample at a time",
            "refused": f": {first_sentence(self.refusal)}",
        }
        return self.answer + details[self.answer]


@dataclass
class Trial:
    """One row of the page.

    `context`, `function`: what `per_sample` and `per_sample_grads` do. `calls`: the functions of
    `torch.nn.functional` that the module calls.
    """

    case: Case
    context: Outcome
    function: Outcome
    calls: tuple[str, ...]


class Behind(nn.Module):
    """A module behind a linear layer."""

    def __init__(self, module: nn.Module, inputs: Inputs, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.module = module
        self.inputs = inputs

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        if self.inputs.passes_linear:
            x = self.first(x)
        return self.module(*self.inputs.prepare(x, *others))


def try_case(case: Case) -> Trial:
    """Run a case in all ways, and compare.

    `AssertionError` if gradients, norms or a clipped sum are not those of the loop.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: nested tensors, names that are old
        program = Program(case)
        expected = program.by_loop()
        context = outcome(program.in_context, expected, case.single)
        if program.draws:
            expected = program.by_vmap()  # whose samples draw in another order than a batch
        function = outcome(program.by_function, expected, case.single)
        return Trial(case, context, function, program.calls())


class Program:
    """A case with its batch. Two programs of one case have the same numbers."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.dim = case.inputs.dim
        self.batch = case.inputs.batch()
        self.size = self.batch[0].shape[self.dim]
        width = self.batch[0].shape[-1]
        self.module = Behind(case.make(), case.inputs, width)
        if not case.text.endswith(".eval()"):
            self.module.train()
        with torch.no_grad():  # lazy layers get their parameters, which are of single precision
            self.module(*(x.float() if x.is_floating_point() else x for x in self.batch))
        self.module.double()
        self.saved = {key: t.clone() for key, t in self.module.state_dict().items()}
        # after the same numbers of the generator, and after others
        first, second = self._loss(self.batch), self._loss(self.batch, seed=SEED + 1)
        self.draws = not torch.equal(first, second)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The parameters that the loss depends on."""
        named = dict(self.module.named_parameters())
        return {key: p for key, p in named.items() if self._takes_part(key, p)}

    def _takes_part(self, key: str, p: Tensor) -> bool:
        return p.requires_grad and (
            self.module.inputs.passes_linear or not key.startswith("first.")
        )

    def _start(self, seed: int = SEED) -> None:
        """Put the buffers back, and the generator."""
        self.module.load_state_dict(self.saved)
        torch.manual_seed(seed)

    def _loss(self, batch: Sequence[Tensor], sample: int | None = None, seed: int = SEED) -> Tensor:
        """The loss of a batch, or of one sample of a batch that is run as a whole."""
        self._start(seed)
        return self.loss_of(self.module(*batch), sample)

    def loss_of(self, outputs: object, sample: int | None = None) -> Tensor:
        """The loss that the module computes, or a number that depends on each of its results in
        another way."""
        results = tensors_in(outputs)
        losses = [result for result in results if not result.dim()]
        if losses:
            return losses[0]
        total: Any = 0
        for index, result in enumerate(results):
            own = result
            if sample is not None:
                # states of recurrent layers have the batch in dimension 1
                own = own.select(own.shape.index(self.size), sample)
            total = total + (own**3 / (1 + index) + own.square()).sum()
        return total  # type: ignore[no-any-return]

    def by_loop(self) -> Gradients:
        """The gradients of each sample, of shape (B, *parameter): of a batch of one, or of one
        sample among those that draw with it."""
        params = self.parameters
        each = []
        for b in range(self.size):
            if self.draws:
                loss = self._loss(self.batch, b)
            else:
                loss = self._loss([x.narrow(self.dim, b, 1) for x in self.batch])
            found = torch.autograd.grad(loss, list(params.values()), materialize_grads=True)
            each.append([g.to_dense() for g in found])
        return {
            key: torch.stack(grads)
            for key, grads in zip(params, zip(*each, strict=True), strict=True)
        }

    def in_context(self) -> PerSampleGrads:
        """The gradients by `per_sample`, around the ordinary step."""
        self._start()
        with per_sample(self.parameters, self.dim) as grads:
            self.loss_of(self.module(*self.batch)).backward()
        return grads

    def by_function(self) -> PerSampleGrads:
        """The gradients by `per_sample_grads`, of the loss of one sample."""
        params = {key: p.detach() for key, p in self.parameters.items()}
        self._start()
        return per_sample_grads(self._loss_of_sample, in_dims=self.dim)(params, *self.batch)

    def by_vmap(self) -> Gradients:
        """The gradients by `vmap` of `grad`, whose draws are those of :meth:`by_function`."""
        params = {key: p.detach() for key, p in self.parameters.items()}
        self._start()
        dims = (None, *[self.dim] * len(self.batch))
        each = vmap(grad(self._loss_of_sample), in_dims=dims, randomness="different")
        return each(params, *self.batch)  # type: ignore[no-any-return]

    def _loss_of_sample(self, params: Gradients, *sample: Tensor) -> Tensor:
        batch = [x.unsqueeze(self.dim) for x in sample]
        return self.loss_of(functional_call(self.module, params, tuple(batch)))

    def calls(self) -> tuple[str, ...]:
        """The functions of `torch.nn.functional` that the module calls."""
        with _Calls() as calls:
            self.module(*self.batch)
        names = [FUNCTION_NAMES[func] for func in calls.functions if func in FUNCTION_NAMES]
        # the layer in front is no part of the module
        return tuple(dict.fromkeys(names[self.module.inputs.passes_linear :]))


class _Calls(torch.overrides.TorchFunctionMode):
    """Notes the functions that are called from outside of torch's functions."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


def outcome(run: Callable[[], PerSampleGrads], expected: Gradients, single: bool) -> Outcome:
    """Run one way, and compare what it says with `expected`. `single`: see :func:`compare`."""
    before = dict(fallbacks)
    try:
        with fallback_policy("silent"):
            compare(run(), expected, single)
    except RuntimeError as error:
        return Outcome(_without_folders(str(error)))
    loops = [name for name, count in fallbacks.items() if count > before.get(name, 0)]
    return Outcome(loops=tuple(loops))


def _without_folders(error: str) -> str:
    """An error that names files by their place in what Python imports."""
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        error = error.replace(f"{folder}/", "")
    return error


def compare(grads: PerSampleGrads, expected: Gradients, single: bool) -> None:
    """Raise `AssertionError` unless gradients, norms and a clipped sum are those of `expected`.

    `single`: whether the module computes some of its numbers in single precision.
    """
    close: Any = partial(torch.testing.assert_close, rtol=1e-7, atol=1e-7)
    if single:
        close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-4)
    found = grads.materialize()
    norms = torch.cat([g.flatten(1) for g in expected.values()], 1).norm(dim=1)
    bound = float(norms.median()) or 1.0
    clipped = grads.clipped_sum(bound)
    close(grads.norms(), norms)
    for key, each in expected.items():
        total = torch.tensordot(bound / norms.clamp_min(bound), each, 1)
        close(found[key], each, msg=lambda text, key=key: f"{key}: {text}")
        close(clipped[key], total)


def tensors_in(outputs: object) -> list[Tensor]:
    """The results of a module that have gradients."""
    leaves = [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
    return [leaf for leaf in leaves if leaf.is_floating_point()]


def first_sentence(error: str) -> str:
    """The first sentence of an error."""
    return re.split(r"(?<=[^.])\.\s", error.strip(), maxsplit=1)[0].rstrip(".")
