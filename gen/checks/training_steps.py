"""Define steps of training as users write them: plain torch code that closes over a model and its
optimizer.

Each function of :data:`STEPS` gets a :class:`Trainer` and returns the step, a function of a batch.
What surrounds a step stands there too: hooks, further groups, and what happens between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from gen.outcomes import Unsuitable

Tensor = torch.Tensor
Step = Callable[..., tuple[Any, ...]]
"""A batch to the results of the step, of which the first is the loss."""

_OPTIM = torch.optim
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": partial(_OPTIM.SGD, lr=0.1, weight_decay=0.01),
    "momentum": partial(_OPTIM.SGD, lr=0.1, momentum=0.9, dampening=0.25),
    "nesterov": partial(_OPTIM.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "momentum_foreach": partial(_OPTIM.SGD, lr=0.1, momentum=0.9, maximize=True, foreach=True),
    "adam": partial(_OPTIM.Adam, lr=0.1),
    "adam_foreach": partial(_OPTIM.Adam, lr=0.1, weight_decay=0.01, foreach=True),
    "adam_fused": partial(_OPTIM.Adam, lr=0.1, fused=True),
    "adamw": partial(_OPTIM.AdamW, lr=0.1, weight_decay=0.1),
    "amsgrad": partial(_OPTIM.Adam, lr=0.1, amsgrad=True, maximize=True),
    "adamax": partial(_OPTIM.Adamax, lr=0.1),
    "nadam": partial(_OPTIM.NAdam, lr=0.1),
    "radam": partial(_OPTIM.RAdam, lr=0.1, betas=(0.9, 0.99)),
    "adagrad": partial(_OPTIM.Adagrad, lr=0.1, lr_decay=0.1),
    "adadelta": partial(_OPTIM.Adadelta, lr=0.5),
    "rmsprop": partial(_OPTIM.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "rprop": partial(_OPTIM.Rprop, lr=0.1),
    "asgd": partial(_OPTIM.ASGD, lr=0.1, t0=1),
}


class Model(nn.Module):
    """The op as a module. Its input is a batch of data; `f` takes the data and the weights."""

    def __init__(
        self,
        function: Callable[[Sequence[Any], Sequence[Any]], tuple[Any, ...]],
        weights: Sequence[object],
    ) -> None:
        super().__init__()
        self.f = function
        self.weights = nn.ParameterList(weights)

    def forward(self, *data: object) -> tuple[Any, ...]:
        return self.f(data, list(self.weights))


class _Averaging(Model):
    """Average the outputs of a model in two buffers: one that is written in place, and one that is
    assigned.
    """

    written: Tensor
    assigned: Tensor

    def __init__(self, model: Model) -> None:
        super().__init__(model.f, list(model.weights))
        like = model.weights[0].detach().new_zeros(())
        self.register_buffer("written", like.clone())
        self.register_buffer("assigned", like.clone())

    def forward(self, *data: object) -> tuple[Any, ...]:
        outputs = super().forward(*data)
        if self.training:
            seen = sum(y.detach().mean() for y in outputs)
            self.written.mul_(0.75).add_(seen, alpha=0.25)
            self.assigned = self.assigned + seen
        return outputs


class Trainer:
    """What a step closes over.

    `data`: how many arguments of a step are data; the others are labels. ``between(k)`` follows
    step k.
    """

    def __init__(self, model: Model, make: Callable[[Any], Optimizer], data: int) -> None:
        self.model, self.make, self.data = model, make, data
        self.parameters: list[Any] = list(model.parameters())
        self.optimizer = make(self.parameters)
        self.further: list[Optimizer] = []
        self.scaler: torch.amp.GradScaler | None = None
        self.mean: Any = None  # of losses, and their sum, if the step keeps them
        self.total: Any = None
        # arguments of the step before the batch; their memory is donated if `donates`
        self.state: list[Any] = []
        self.donates = False
        self.between: Callable[[int], None] = lambda k: None  # k counts from 0

    def loss(self, *batch: object, sign: float = 1.0) -> Any:
        """Return the mean of the squared distances between outputs and labels, which are multiplied
        by `sign`.
        """
        return distance(self.model(*batch[: self.data]), batch[self.data :], sign)

    def split(self) -> tuple[list[Any], list[Any]]:
        """Return the parameters in two parts."""
        if len(self.parameters) < 2:
            raise Unsuitable("one parameter makes no two groups")
        return self.parameters[::2], self.parameters[1::2]


def distance(outputs: Sequence[Any], labels: Sequence[Any], sign: float = 1.0) -> Any:
    """Return the sum of the mean squared distances, a real number."""
    total: Any = 0
    for output, label in zip(outputs, labels, strict=True):
        difference = output - sign * label
        # The square of a complex number is complex, and `backward` begins at a real number.
        if difference.is_complex():
            difference = torch.view_as_real(difference)
        total = total + difference.square().mean()
    return total


def _plain_step(t: Trainer) -> Step:
    """Return the usual step: zero the gradients, differentiate the loss, and update."""

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        loss = t.loss(*batch)
        loss.backward()
        t.optimizer.step()
        return (loss,)

    return step


def _clipped(t: Trainer) -> Step:
    """Return a step that clips the norm of the gradients."""

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        loss = t.loss(*batch)
        loss.backward()
        norm = clip_grad_norm_(t.parameters, 0.25)
        t.optimizer.step()
        return loss.detach(), norm

    return step


def _accumulated(t: Trainer) -> Step:
    """Return a step with two backward passes before the optimizer's step."""

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        first, second = t.loss(*batch) / 2, t.loss(*batch, sign=-0.5) / 2
        first.backward()
        second.backward()
        t.optimizer.step()
        return (first.detach() + second.detach(),)

    return step


def _carried(t: Trainer) -> Step:
    """Return a step after which the gradients stay. Those of two calls add up, and are dropped
    after each second one.
    """

    def between(k: int) -> None:
        if k % 2:
            t.optimizer.zero_grad()

    def step(*batch: Any) -> tuple[Any, ...]:
        loss = t.loss(*batch)
        loss.backward()
        t.optimizer.step()
        return (loss.detach(),)

    t.between = between
    return step


def _zeroed(t: Trainer) -> Step:
    """Return a step that fills gradients with zeros instead of dropping them."""

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad(set_to_none=False)
        loss = t.loss(*batch)
        loss.backward()
        t.optimizer.step()
        return (loss.detach(),)

    return step


def _scheduled(t: Trainer) -> Step:
    """Return a step with a scheduler between the calls, which also changes another number of the
    optimizer.
    """
    scheduler = torch.optim.lr_scheduler.ExponentialLR(t.optimizer, 0.5)

    def between(k: int) -> None:
        scheduler.step()
        for group in t.optimizer.param_groups:
            group["weight_decay"] = 0.125 * (k + 1)

    t.between = between
    return _plain_step(t)


def _assigned(t: Trainer) -> Step:
    """Return a step that sets the learning rate itself."""
    plain = _plain_step(t)

    def step(*batch: Any) -> tuple[Any, ...]:
        for group in t.optimizer.param_groups:
            group["lr"] = 0.75 * group["lr"]
        return plain(*batch)

    return step


def _scaled(t: Trainer) -> Step:
    """Return a step with a gradient scaler, which leaves out the third step, as its labels are
    infinite.
    """
    # Two good steps let the scale grow, and the infinite third one makes it smaller.
    scaler = t.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        loss = t.loss(*batch)
        scaler.scale(loss).backward()
        scaler.unscale_(t.optimizer)
        norm = clip_grad_norm_(t.parameters, 0.5)
        scaler.step(t.optimizer)
        scaler.update()
        return loss.detach(), norm

    return step


def _groups(t: Trainer) -> Step:
    """Return a step of an optimizer with two groups of parameters."""
    first, second = t.split()
    t.optimizer = t.make([{"params": first}, {"params": second, "lr": 0.025, "weight_decay": 0.25}])
    return _plain_step(t)


def _grown(t: Trainer) -> Step:
    """Return a step of an optimizer that gets a further group after the second call."""
    first, second = t.split()
    t.optimizer = t.make(first)

    def between(k: int) -> None:
        if k == 1:
            t.optimizer.add_param_group({"params": second})

    t.between = between
    return _plain_step(t)


def _two_optimizers(t: Trainer) -> Step:
    """Return a step of two optimizers, each with half of the parameters."""
    first, second = t.split()
    t.optimizer, other = t.make(first), torch.optim.SGD(second, lr=0.05, momentum=0.5)
    t.further = [other]
    plain = _plain_step(t)

    def step(*batch: Any) -> tuple[Any, ...]:
        other.zero_grad()
        results = plain(*batch)
        other.step()
        return results

    return step


def _loaded(t: Trainer) -> Step:
    """Return a step between whose second and third call other weights and another state of the
    optimizer are loaded.
    """

    def between(k: int) -> None:
        if k != 1:
            return
        # Halved, so that a program that goes on with the old state gives other numbers.
        state = deepcopy(t.optimizer.state_dict())
        for of_parameter in state["state"].values():
            for name, value in list(of_parameter.items()):
                # One without dimensions is no moment: Adam's `step` counts the calls.
                if isinstance(value, Tensor) and value.ndim:
                    of_parameter[name] = 0.5 * value
        t.optimizer.load_state_dict(state)
        t.model.load_state_dict(
            {name: 0.5 * x.detach() for name, x in t.model.state_dict().items()}
        )

    t.between = between
    return _plain_step(t)


def _frozen(t: Trainer) -> Step:
    """Return a step whose first of two backward passes leaves out some parameters."""
    some, _ = t.split()

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        for p in some:
            p.requires_grad_(False)
        first = t.loss(*batch)
        first.backward()
        for p in some:
            p.requires_grad_(True)
        t.loss(*batch, sign=-1.0).backward()
        t.optimizer.step()
        return (first.detach(),)

    return step


def _thawed(t: Trainer) -> Step:
    """Return a step within which alone some parameters learn. Their gradients are dropped while
    they are frozen.
    """
    some, _ = t.split()
    for p in some:
        p.requires_grad_(False)

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        for p in some:
            p.requires_grad_(True)
        loss = t.loss(*batch)
        loss.backward()
        t.optimizer.step()
        for p in some:
            p.requires_grad_(False)
        return (loss.detach(),)

    return step


def _hooked(t: Trainer) -> Step:
    """Return a step with hooks of the module, of its outputs and of the loss."""

    def hook(module: nn.Module, args: Any, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for y in outputs:
            y.register_hook(lambda g: 0.5 * g)
        return tuple(1.5 * y for y in outputs)

    t.model.register_forward_hook(hook)

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        loss = t.loss(*batch)
        loss.register_hook(lambda g: 3.0 * g)
        loss.backward()
        t.optimizer.step()
        return (loss.detach(),)

    return step


def _penalized(t: Trainer) -> Step:
    """Return a step whose loss has the square of its own gradient."""

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        loss = t.loss(*batch)
        gradients = torch.autograd.grad(loss, t.parameters, create_graph=True)
        penalty: Any = 0
        for gradient in gradients:
            real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            penalty = penalty + real.square().sum()
        (loss + 0.125 * penalty).backward()
        t.optimizer.step()
        return loss.detach(), penalty.detach()

    return step


def _closure(t: Trainer) -> Step:
    """Return a step whose optimizer calls a closure for the loss."""

    def step(*batch: Any) -> tuple[Any, ...]:
        def closure() -> Any:
            t.optimizer.zero_grad()
            loss = t.loss(*batch)
            loss.backward()
            return loss

        loss: Any = t.optimizer.step(closure)
        return (loss.detach(),)

    return step


def _stateful(t: Trainer) -> Step:
    """Return a step that changes buffers, an attribute and the mode of the module."""
    t.model = _Averaging(t.model)
    # The mean of losses is real, also where the parameters are complex.
    t.mean = t.parameters[0].detach().real.new_zeros(())

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        loss = t.loss(*batch)
        loss.backward()
        t.optimizer.step()
        # In evaluation mode the buffers stay as they are.
        t.model.eval()
        with torch.no_grad():
            after = t.loss(*batch)
        t.model.train()
        t.mean = 0.5 * t.mean + 0.5 * after
        return loss.detach(), after

    return step


def _totalled(t: Trainer) -> Step:
    """Return a step that adds its loss to a number."""
    t.total = 0.0
    plain = _plain_step(t)

    def step(*batch: Any) -> tuple[Any, ...]:
        (loss,) = plain(*batch)
        t.total += loss.item()
        return (loss,)

    return step


def _drawn(t: Trainer) -> Step:
    """Return a step that multiplies the outputs by random factors."""

    def step(*batch: Any) -> tuple[Any, ...]:
        t.optimizer.zero_grad()
        outputs = t.model(*batch[: t.data])
        loss = distance([y * (0.5 + torch.rand_like(y)) for y in outputs], batch[t.data :])
        loss.backward()
        t.optimizer.step()
        return (loss.detach(),)

    return step


def _by_hand(t: Trainer) -> Step:
    """Return a step that takes the parameters as arguments, and changes them in place without an
    optimizer.
    """
    t.state = t.parameters

    def step(parameters: Sequence[Any], *batch: Any) -> tuple[Any, ...]:
        for p in parameters:
            p.grad = None
        loss = distance(t.model.f(batch[: t.data], parameters), batch[t.data :])
        loss.backward()
        with torch.no_grad():
            for p in parameters:
                p -= 0.1 * p.grad
        return (loss.detach(),)

    return step


def _donated(t: Trainer) -> Step:
    """Return a step to which parameters are donated, and which returns new ones."""
    t.donates = True
    t.state = [parameter.detach().clone() for parameter in t.parameters]

    def step(state: Sequence[Any], *batch: Any) -> tuple[Any, ...]:
        def loss(parameters: Sequence[object]) -> Any:
            return distance(t.model.f(batch[: t.data], parameters), batch[t.data :])

        leaves = [p.detach().requires_grad_() for p in state]
        loss_value = loss(leaves)
        gradients = torch.autograd.grad(loss_value, leaves)
        new_state = []
        for parameter, gradient in zip(state, gradients, strict=True):
            new_state.append(parameter - 0.1 * gradient)
        return loss_value.detach(), new_state

    return step


STEPS: dict[str, Callable[[Trainer], Step]] = {
    "plain": _plain_step,
    "clipped": _clipped,
    "accumulated": _accumulated,
    "carried": _carried,
    "zeroed": _zeroed,
    "scheduled": _scheduled,
    "assigned": _assigned,
    "scaled": _scaled,
    "groups": _groups,
    "grown": _grown,
    "two_optimizers": _two_optimizers,
    "loaded": _loaded,
    "frozen": _frozen,
    "thawed": _thawed,
    "hooked": _hooked,
    "penalized": _penalized,
    "closure": _closure,
    "stateful": _stateful,
    "totalled": _totalled,
    "drawn": _drawn,
    "resized": _plain_step,
    "by_hand": _by_hand,
    "donated": _donated,
}
