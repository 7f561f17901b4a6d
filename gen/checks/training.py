"""Train a model by a few steps of unmodified torch code, and compare each of them.

The model is an op. Its first differentiable input is data, and so is each input without a
derivative. The other inputs are its parameters. For example, `weight` and `bias` of
``linear(x, weight, bias)`` learn. If only one input is differentiable, it is the parameter.

Each step gets other data and other labels. Its results have names. They are what the step returns,
and then parameters, gradients, buffers, and the states and learning rates of optimizers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, cast

import torch

from gen.checks.batched_inputs import VARIATIONS, vary
from gen.checks.pipelines import Program
from gen.checks.training_steps import OPTIMIZERS, STEPS, Model, Step, Trainer
from gen.language.axes import Axes
from gen.outcomes import Mismatch, Unsuitable
from gen.reference import Loop
from gen.samples.domains import is_inexact
from gen.samples.seeds import seeded
from gen.targets.protocol import Flat, Target, Training, Values

Tensor = torch.Tensor
Named = tuple[str, Tensor]
_SIZES = (1, 1, 2, 3, 1)  # of the batches of `resized`, in batches of the sample
_INFINITE = 2  # the step of `scaled` whose labels are infinite
_MORE = {"scaled": 5, "grown": 5, "resized": len(_SIZES), "radam": 9}
"""How many steps, where four are too few: RAdam has another formula from the sixth on."""


def trained(program: Program, axes: Axes) -> Program:
    """Return the training of `program`, with axes ``optimizer``, ``step`` and ``trains``.

    Raises Unsuitable if a step changes nothing.
    """
    optimizer, kind, trains = axes.optimizer, axes.step, axes.trains
    active = program.active_inputs
    places = active[1:] or active
    data = [place for place in range(len(program.inputs)) if place not in places]
    # Four calls of jit: the first capture, the one that makes the optimizer's state, and replays.
    count = max(4, *(_MORE.get(word, 0) for word in (optimizer, kind)))
    batches = []
    for number, of_step in enumerate(_data(program, data, count, kind)):
        batches.append((*of_step, *_labels(program, of_step, data, number, kind)))
    # The names of the reference's results. A result that a target lacks is empty, and a result
    # that only the target has comes last.
    names: list[str] = []

    def over(target: Target) -> Flat:
        f = program.over(target)
        names_of_call: list[str] = []

        def model(batch: Sequence[object], weights: Sequence[object]) -> Values:
            outputs = f(*_merge(data, batch, places, weights))
            return tuple(outputs[place] for place in program.active_outputs)

        def g(*values: Any) -> Values:
            # The flat inputs are the parameters, and then data and labels of each step.
            width = len(batches[0])
            parameters, rest = values[: len(places)], values[len(places) :]
            of_steps = [rest[start : start + width] for start in range(0, count * width, width)]
            train = partial(
                _train,
                cast(Training, target),
                model,
                of_steps,
                len(data),
                optimizer,
                kind,
                trains != "eagerly",
            )
            labelled = cast(Training, target).training(
                lambda leaves: _split(train(leaves), names_of_call),
                parameters,
                session=trains != "jitted",
            )
            results = dict(zip(names_of_call, labelled, strict=True))
            names_of_call.clear()
            # The reference runs first, and its names are the order of all later results.
            if not names:
                names.extend(results)
            absent = parameters[0].new_empty(0)
            in_order = [results.pop(name, absent) for name in names]
            return (*in_order, *results.values())

        return g

    inputs = (
        *(program.inputs[place] for place in places),
        *chain.from_iterable(batches),
    )
    program_of_training = Program(
        over,
        inputs,
        tuple(map(_is_inexact, inputs)),
        program.seed,
        f"training({program.label})",
        names=names,
    )
    _require_progress(program_of_training, kind, count)
    return program_of_training


def _is_inexact(x: Tensor) -> bool:
    return is_inexact(x.dtype)


def _split(results: Sequence[Named], names: list[str]) -> Values:
    """Add the names of results to `names`, and return the tensors."""
    names += [name for name, _ in results]
    return tuple(x for _, x in results)


def _merge(
    data: Sequence[int],
    values_of_data: Sequence[object],
    places: Sequence[int],
    weights: Sequence[object],
) -> list[object]:
    """Return the arguments of the op: data and weights, each at its place."""
    by_place = dict(zip(data, values_of_data, strict=True))
    by_place |= zip(places, weights, strict=True)
    return [by_place[place] for place in range(len(by_place))]


def _data(
    program: Program, data: Sequence[int], count: int, kind: str
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the data of each step, which are variations of the sample's data.

    For `resized` they have other sizes along dimension 0.
    """
    data_of_sample = tuple(program.inputs[place] for place in data)
    if kind == "resized" and not any(x.ndim and len(x) > 1 for x in data_of_sample):
        raise Unsuitable(f"{program.label} has no batch of data")
    for step in range(count):
        yield _accepted_data(program, data, data_of_sample, step, kind)


def _accepted_data(
    program: Program, data: Sequence[int], data_of_sample: tuple[Tensor, ...], step: int, kind: str
) -> tuple[Tensor, ...]:
    """Return the first variation of the data for a step that the program accepts."""
    for variation in VARIATIONS:
        varied = _vary_data(data_of_sample, step, variation, kind)
        if _outputs(program, varied, data) is not None:
            return varied
    raise Unsuitable(f"{program.label} refuses other data")


def _vary_data(
    data_of_sample: Sequence[Tensor], step: int, variation: int, kind: str
) -> tuple[Tensor, ...]:
    """Return the data of a step. For `resized`, all that has the size of the batch grows."""
    # `vary` has three entries, so the data recur after three steps.
    varied = tuple(vary(x, step % 3, variation) for x in data_of_sample)
    if kind != "resized":
        return varied
    size = next((len(x) for x in data_of_sample if x.ndim), 0)
    resized = []
    for x in varied:
        if x.ndim and len(x) == size:
            x = _repeat(x, _SIZES[step])
        resized.append(x)
    return tuple(resized)


def _repeat(x: Tensor, times: int) -> Tensor:
    return torch.cat([vary(x, index, 1) for index in range(times)])


def _outputs(
    program: Program, values_of_data: Sequence[Tensor], data: Sequence[int]
) -> tuple[Tensor, ...] | None:
    """Return the results of the reference for other data, or None if it refuses them."""
    data_by_place = dict(zip(data, values_of_data, strict=True))
    inputs = [data_by_place.get(place, x) for place, x in enumerate(program.inputs)]
    try:
        with seeded(program.seed):
            results = program.over(Loop())(*inputs)
    except Exception:  # the op refuses these inputs, with any error
        return None
    # The places of the outputs with a gradient are those of the sample's own data.
    if len(results) != len(program.observed[0]):
        return None
    return results


def _labels(
    program: Program, values_of_data: Sequence[Tensor], data: Sequence[int], step: int, kind: str
) -> tuple[Tensor, ...]:
    """Draw the labels of a step, in the shapes of the outputs."""
    outputs = _outputs(program, values_of_data, data) or ()
    active = [outputs[place] for place in program.active_outputs]
    labels = program.drawn_like(active, f"labels {step}")
    if kind == "scaled" and step == _INFINITE:
        return tuple(torch.full_like(x, torch.inf) for x in labels)
    return labels


def _train(
    target: Training,
    function: Callable[[Sequence[Any], Sequence[Any]], Values],
    batches: Sequence[Sequence[object]],
    data: int,
    optimizer: str,
    kind: str,
    jitted: bool,
    leaves: Sequence[object],
) -> list[Named]:
    """Run the steps, and return what each leaves behind."""
    trainer = Trainer(Model(function, leaves), OPTIMIZERS[optimizer], data)
    # a lock, since a replay would repeat what the step does to another object
    ran = threading.Lock()
    step = STEPS[kind](trainer)

    def counted(*args: object) -> tuple[Any, ...]:
        ran.acquire(blocking=False)
        return step(*args)

    run: Step = counted
    if jitted:
        run = _compile(target, counted, trainer)
    results: list[Named] = []
    state, parameters = trainer.state, trainer.parameters
    for number, batch in enumerate(batches):
        # The call takes the memory of these tensors, which is a result of the step too.
        donated = state
        if ran.locked():
            ran.release()
        values = run(*_arguments(state, batch))
        if trainer.donates:
            values, state = values[:1], list(values[1])
            parameters = state
            if jitted:
                results += _copies("memory of donated parameter", donated, f"after step {number}")
        results += _copies("result", values, f"of step {number}")
        for name, x in _state_after(trainer, parameters):
            results.append((f"{name} after step {number}", x))
        trainer.between(number)
    if jitted and target.name != "loop":
        _require_replay(ran, len(batches))
    # The next number shows whether the steps have drawn as many numbers as those of plain torch.
    if kind == "drawn":
        results.append(("the next random number", torch.rand(2)))
    return results


def _compile(target: Training, step: Step, trainer: Trainer) -> Step:
    """Return the step under jit, with the parameters donated if the trainer donates them."""
    if trainer.donates:
        return target.jit(step, donate=(0,))
    return target.jit(step, donate=())


def _arguments(state: object, batch: Sequence[object]) -> Sequence[object]:
    """Return the arguments of a step. One without state takes the batch alone."""
    if state:
        return (state, *batch)
    return batch


def _copies(what: str, tensors: Sequence[Tensor], when: str) -> Iterator[Named]:
    """Yield a copy of each tensor with its name: `result 0 of step 1`."""
    for index, x in enumerate(tensors):
        yield f"{what} {index} {when}", x.detach().clone()


def _require_replay(ran: threading.Lock, steps: int) -> None:
    """Raise Mismatch if the last of the steps ran the code of the step, which locks `ran`."""
    if ran.locked():
        raise Mismatch(
            f"the last of {steps} steps ran the code of the step, "
            "so it is no replay of a captured program"
        )


def _state_after(trainer: Trainer, parameters: Sequence[Tensor]) -> Iterator[Named]:
    """Yield what a step leaves in the model and its optimizers."""
    for index, parameter in enumerate(parameters):
        yield f"parameter {index}", parameter.detach().clone()
        yield f".grad of parameter {index}", _gradient(parameter)
        yield f"flag of parameter {index}", torch.tensor(parameter.requires_grad)
    for name, buffer in trainer.model.named_buffers():
        yield f"buffer {name}", buffer.detach().clone()
    for name, x in (("mean", trainer.mean), ("total", trainer.total)):
        if x is not None:
            yield name, _tensor(x)
    for number, optimizer in enumerate([trainer.optimizer, *trainer.further]):
        yield from _state_of_optimizer(number, optimizer, parameters)
    if trainer.scaler is not None:
        yield "scale", _tensor(trainer.scaler.get_scale())
        yield "growth of the scale", _tensor(trainer.scaler._get_growth_tracker())


def _gradient(parameter: Tensor) -> Tensor:
    """Return a copy of the `.grad` of a parameter, or an empty tensor if it has none."""
    if parameter.grad is None:
        return parameter.detach().new_empty(0)
    return parameter.grad.detach().clone()


def _state_of_optimizer(
    number: int, optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]
) -> Iterator[Named]:
    """Yield the state of each parameter in an optimizer, and the learning rates."""
    for index, parameter in enumerate(parameters):
        for name, value in sorted(optimizer.state.get(parameter, {}).items()):
            yield f"{name} of parameter {index} in optimizer {number}", _tensor(value)
    for index_of_group, group in enumerate(optimizer.param_groups):
        yield f"lr of group {index_of_group} in optimizer {number}", _tensor(group["lr"])


def _tensor(value: object) -> Tensor:
    """Return a copy of a tensor, or a number as a tensor in double precision."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    return torch.tensor(value, dtype=torch.float64)


def _require_progress(program: Program, kind: str, count: int) -> None:
    """Raise Unsuitable unless each step of the reference changes a parameter.

    Without a change, or with infinite parameters, no mistake of a target would show.
    """
    # The run of the reference also fills `program.names`.
    values = program.on_reference()
    results = list(zip(program.names, values, strict=True))
    by_step = [_parameters_after(number, results) for number in range(count)]
    if not all(map(_are_finite, by_step)):
        raise Unsuitable(f"{program.label} diverges")
    for step, (before, after) in enumerate(pairwise(by_step), 1):
        may_stay = kind == "scaled" and step == _INFINITE
        if all(map(torch.equal, before, after)) and not may_stay:
            raise Unsuitable(f"step {step} of {program.label} changes nothing")


def _parameters_after(step: int, results: Sequence[Named]) -> list[Tensor]:
    """List the parameters after a step, among the results of a program."""
    end = f" step {step}"
    return [x for name, x in results if name.startswith("parameter") and name.endswith(end)]


def _are_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(x.isfinite().all()) for x in tensors)
