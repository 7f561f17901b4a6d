"""Define steps of training as users write them.

A step is plain torch code that closes over a model and its optimizer. Each function of
:data:`STEPS` gets a :class:`Trainer` and returns the step, a function of a batch. It also prepares
the surroundings of the step, such as hooks, further groups, and changes between two calls.
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
"""A function from a batch to the results of the step, of which the first is the loss."""

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
    # Averages from step t0 on, which is the millionth by default.
    "asgd": partial(_OPTIM.ASGD, lr=0.1, t0=1),
}


class Model(nn.Module):
    """The op as a module. Its input is a batch of data, and `f` takes the data and the weights.

    ``torch.add`` of two tensors has the second one as its weight: ``f((x,), [w])`` is ``(x + w,)``.
    """

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
    """Average the outputs of a model in two buffers.

    One of them is written in place, and the other one is assigned.
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
            seen = sum(output.detach().mean() for output in outputs)
            # A captured program has different code for a write and for an assignment, so there is
            # a buffer for each.
            self.written.mul_(0.75).add_(seen, alpha=0.25)
            self.assigned = self.assigned + seen
        return outputs


class Trainer:
    """The objects that a step closes over."""

    def __init__(self, model: Model, make: Callable[[Any], Optimizer], data: int) -> None:
        self.model = model
        # makes an optimizer of parameters or groups
        self.make = make
        # the number of arguments of a step that are data; the others are labels
        self.data = data
        self.parameters: list[Any] = list(model.parameters())
        self.optimizer = make(self.parameters)
        # the optimizers besides the first one
        self.further: list[Optimizer] = []
        self.scaler: torch.amp.GradScaler | None = None
        # the mean of losses as a tensor, if the step keeps it
        self.mean: Any = None
        # the sum of losses as a number, if the step keeps it
        self.total: Any = None
        # arguments of the step before the batch; their memory is donated if `donates`
        self.state: list[Any] = []
        self.donates = False
        # runs after each call, with the number of the call from 0
        self.between: Callable[[int], None] = lambda call: None

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
    """Return the sum of the mean squared distances between outputs and labels, a real number."""
    total: Any = 0
    for output, label in zip(outputs, labels, strict=True):
        difference = output - sign * label
        # The square of a complex number is complex, and `backward` begins at a real number.
        if difference.is_complex():
            difference = torch.view_as_real(difference)
        total = total + difference.square().mean()
    return total


def _plain_step(trainer: Trainer) -> Step:
    """Return the usual step: zero the gradients, differentiate the loss, and update."""

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*batch)
        loss.backward()
        trainer.optimizer.step()
        return (loss,)

    return step


def _clipped(trainer: Trainer) -> Step:
    """Return a step that clips the norm of the gradients."""

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*batch)
        loss.backward()
        norm = clip_grad_norm_(trainer.parameters, 0.25)
        trainer.optimizer.step()
        return loss.detach(), norm

    return step


def _accumulated(trainer: Trainer) -> Step:
    """Return a step with two backward passes before the optimizer's step."""

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        # The second loss has other labels, or its gradients would equal those of the first one.
        first, second = trainer.loss(*batch) / 2, trainer.loss(*batch, sign=-0.5) / 2
        first.backward()
        second.backward()
        trainer.optimizer.step()
        return (first.detach() + second.detach(),)

    return step


def _carried(trainer: Trainer) -> Step:
    """Return a step after which the gradients stay.

    The gradients of two calls add up, and are dropped after each second call.
    """

    def between(call: int) -> None:
        if call % 2:
            trainer.optimizer.zero_grad()

    def step(*batch: Any) -> tuple[Any, ...]:
        loss = trainer.loss(*batch)
        loss.backward()
        trainer.optimizer.step()
        return (loss.detach(),)

    trainer.between = between
    return step


def _zeroed(trainer: Trainer) -> Step:
    """Return a step that fills gradients with zeros instead of dropping them."""

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad(set_to_none=False)
        loss = trainer.loss(*batch)
        loss.backward()
        trainer.optimizer.step()
        return (loss.detach(),)

    return step


def _scheduled(trainer: Trainer) -> Step:
    """Return a step with a scheduler between the calls.

    Another number of the optimizer changes between the calls too.
    """
    scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, 0.5)

    def between(call: int) -> None:
        scheduler.step()
        for group in trainer.optimizer.param_groups:
            group["weight_decay"] = 0.125 * (call + 1)

    trainer.between = between
    return _plain_step(trainer)


def _assigned(trainer: Trainer) -> Step:
    """Return a step that sets the learning rate itself."""
    plain = _plain_step(trainer)

    def step(*batch: Any) -> tuple[Any, ...]:
        for group in trainer.optimizer.param_groups:
            group["lr"] = 0.75 * group["lr"]
        return plain(*batch)

    return step


def _scaled(trainer: Trainer) -> Step:
    """Return a step with a gradient scaler.

    The scaler leaves out the third update, because the labels of that step are infinite.
    """
    # Two good steps let the scale grow, and the infinite third one makes it smaller.
    scaler = trainer.scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*batch)
        scaler.scale(loss).backward()
        scaler.unscale_(trainer.optimizer)
        norm = clip_grad_norm_(trainer.parameters, 0.5)
        scaler.step(trainer.optimizer)
        scaler.update()
        return loss.detach(), norm

    return step


def _groups(trainer: Trainer) -> Step:
    """Return a step of an optimizer with two groups of parameters."""
    first, second = trainer.split()
    groups = [{"params": first}, {"params": second, "lr": 0.025, "weight_decay": 0.25}]
    trainer.optimizer = trainer.make(groups)
    return _plain_step(trainer)


def _grown(trainer: Trainer) -> Step:
    """Return a step of an optimizer that gets a further group after the second call."""
    first, second = trainer.split()
    trainer.optimizer = trainer.make(first)

    def between(call: int) -> None:
        if call == 1:
            trainer.optimizer.add_param_group({"params": second})

    trainer.between = between
    return _plain_step(trainer)


def _two_optimizers(trainer: Trainer) -> Step:
    """Return a step of two optimizers, each with half of the parameters."""
    first, second = trainer.split()
    trainer.optimizer, other = trainer.make(first), torch.optim.SGD(second, lr=0.05, momentum=0.5)
    trainer.further = [other]
    plain = _plain_step(trainer)

    def step(*batch: Any) -> tuple[Any, ...]:
        other.zero_grad()
        results = plain(*batch)
        other.step()
        return results

    return step


def _loaded(trainer: Trainer) -> Step:
    """Return a step with other weights, and another state of the optimizer, from the third call on.

    They are loaded between the second and the third call.
    """

    def between(call: int) -> None:
        if call != 1:
            return
        # All numbers are halved, so that a program that still uses the old state shows.
        state = deepcopy(trainer.optimizer.state_dict())
        for of_parameter in state["state"].values():
            for name, value in list(of_parameter.items()):
                # A tensor without dimensions is no moment. For example, Adam's `step` counts calls.
                if isinstance(value, Tensor) and value.ndim:
                    of_parameter[name] = 0.5 * value
        trainer.optimizer.load_state_dict(state)
        trainer.model.load_state_dict(
            {name: 0.5 * x.detach() for name, x in trainer.model.state_dict().items()}
        )

    trainer.between = between
    return _plain_step(trainer)


def _frozen(trainer: Trainer) -> Step:
    """Return a step whose first of two backward passes leaves out some parameters."""
    some, _ = trainer.split()

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        for parameter in some:
            parameter.requires_grad_(False)
        first = trainer.loss(*batch)
        first.backward()
        for parameter in some:
            parameter.requires_grad_(True)
        trainer.loss(*batch, sign=-1.0).backward()
        trainer.optimizer.step()
        return (first.detach(),)

    return step


def _thawed(trainer: Trainer) -> Step:
    """Return a step that thaws some parameters, and freezes them again at its end.

    Their gradients are dropped while they are frozen.
    """
    some, _ = trainer.split()
    for parameter in some:
        parameter.requires_grad_(False)

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        for parameter in some:
            parameter.requires_grad_(True)
        loss = trainer.loss(*batch)
        loss.backward()
        trainer.optimizer.step()
        for parameter in some:
            parameter.requires_grad_(False)
        return (loss.detach(),)

    return step


def _hooked(trainer: Trainer) -> Step:
    """Return a step with hooks of the module, of its outputs and of the loss."""

    def hook(module: nn.Module, args: Any, outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        for output in outputs:
            output.register_hook(lambda gradient: 0.5 * gradient)
        return tuple(1.5 * output for output in outputs)

    trainer.model.register_forward_hook(hook)

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*batch)
        loss.register_hook(lambda gradient: 3.0 * gradient)
        loss.backward()
        trainer.optimizer.step()
        return (loss.detach(),)

    return step


def _penalized(trainer: Trainer) -> Step:
    """Return a step whose loss has the square of its own gradient."""

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*batch)
        # The penalty is differentiated as well, so its own gradients have a history.
        gradients = torch.autograd.grad(loss, trainer.parameters, create_graph=True)
        penalty: Any = 0
        for gradient in gradients:
            real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
            penalty = penalty + real.square().sum()
        (loss + 0.125 * penalty).backward()
        trainer.optimizer.step()
        return loss.detach(), penalty.detach()

    return step


def _closure(trainer: Trainer) -> Step:
    """Return a step whose optimizer calls a closure for the loss."""

    def step(*batch: Any) -> tuple[Any, ...]:
        def closure() -> Any:
            trainer.optimizer.zero_grad()
            loss = trainer.loss(*batch)
            loss.backward()
            return loss

        loss: Any = trainer.optimizer.step(closure)
        return (loss.detach(),)

    return step


def _stateful(trainer: Trainer) -> Step:
    """Return a step that changes buffers, an attribute and the mode of the module."""
    trainer.model = _Averaging(trainer.model)
    # The mean of losses is real, also where the parameters are complex.
    trainer.mean = trainer.parameters[0].detach().real.new_zeros(())

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        loss = trainer.loss(*batch)
        loss.backward()
        trainer.optimizer.step()
        # In evaluation mode the buffers stay as they are, so the mode shows in the results.
        trainer.model.eval()
        with torch.no_grad():
            after = trainer.loss(*batch)
        trainer.model.train()
        trainer.mean = 0.5 * trainer.mean + 0.5 * after
        return loss.detach(), after

    return step


def _totalled(trainer: Trainer) -> Step:
    """Return a step that adds its loss to a number."""
    trainer.total = 0.0
    plain = _plain_step(trainer)

    def step(*batch: Any) -> tuple[Any, ...]:
        (loss,) = plain(*batch)
        trainer.total += loss.item()
        return (loss,)

    return step


def _drawn(trainer: Trainer) -> Step:
    """Return a step that multiplies the outputs by random factors."""

    def step(*batch: Any) -> tuple[Any, ...]:
        trainer.optimizer.zero_grad()
        outputs = trainer.model(*batch[: trainer.data])
        drawn = [output * (0.5 + torch.rand_like(output)) for output in outputs]
        loss = distance(drawn, batch[trainer.data :])
        loss.backward()
        trainer.optimizer.step()
        return (loss.detach(),)

    return step


def _by_hand(trainer: Trainer) -> Step:
    """Return a step that gets the parameters as arguments.

    It changes them in place, without an optimizer.
    """
    trainer.state = trainer.parameters

    def step(parameters: Sequence[Any], *batch: Any) -> tuple[Any, ...]:
        for parameter in parameters:
            parameter.grad = None
        loss = distance(trainer.model.f(batch[: trainer.data], parameters), batch[trainer.data :])
        loss.backward()
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
        return (loss.detach(),)

    return step


def _donated(trainer: Trainer) -> Step:
    """Return a step to which parameters are donated, and which returns new ones."""
    trainer.donates = True
    trainer.state = [parameter.detach().clone() for parameter in trainer.parameters]

    def step(state: Sequence[Any], *batch: Any) -> tuple[Any, ...]:
        def loss(parameters: Sequence[object]) -> Any:
            return distance(
                trainer.model.f(batch[: trainer.data], parameters), batch[trainer.data :]
            )

        leaves = [parameter.detach().requires_grad_() for parameter in state]
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
    "resized": _plain_step,  # its batches have other sizes, see `gen.checks.training`
    "by_hand": _by_hand,
    "donated": _donated,
}
