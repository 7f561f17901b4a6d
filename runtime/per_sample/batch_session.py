"""Follow where the samples of a batch lie: the session of a thread inside ``with per_sample(…)``.

The session's calls of the thread come here. Each runs on the session's tape, on the whole batch,
and each result gets a state (see :mod:`.states`): where the samples lie in it, that it is their sum
or mean, that it follows from parameters alone, or that samples are mixed in it. A tensor without a
state is the same for all samples.

A call with samples and with parameters *uses* the parameters: it runs on constants in their place,
and a tap takes the cotangent of its result. A gradient that reaches a mixture is an error, which
names the op and the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..rules.ops import DIFFERENTIABLE, INPLACE, OUT, Op, op_of
from ..rules.samples.place_table import rule_of
from ..rules.samples.places import ALONE, Mixed, Place, Placed, Pooled, Tensor
from ..seam.levels import Value
from ..seam.surgery import GEOMETRY
from ..session.tensor import SESSION
from ..tape.metas import meta_of
from ..tape.running import current_graph_task_id
from ..tape.values import edge_of
from ..torch_private.dispatcher import OpOverload
from . import whole_layers
from .batch_means import equal, refuse_number_of_samples
from .boundary_nodes import Pool, Refusal
from .filled import filled_by
from .followed_calls import FollowedCall, UsedParameters, apply_rule, leaves_of, without_history
from .sample_states import SampleStates
from .states import PARAMETERS, Inherited, Mixture, base_after_write, state_of_copy
from .uses import (
    ParameterCall,
    Tap,
    Use,
    Uses,
    adapt,
    base_or_self,
    flattened,
    unflattened,
    writes_to,
)

aten = torch.ops.aten
_grad_enabled = torch.is_grad_enabled

# functions that are linear in each tensor, by their names in the schema without `aten::`
_LINEAR = frozenset(
    (
        *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "neg"),
        *("mul.Tensor", "mul.Scalar", "div.Tensor", "div.Scalar"),
        *("clone", "copy", "_to_copy", "detach", "alias"),
        *("view", "_unsafe_view", "squeeze", "unsqueeze", "expand", "sum", "mean", "stack"),
    )
)


class BatchSession(SampleStates):
    """Follow one batch through the calls of a program.

    ``reduction``: how the loss follows from those of the samples, ``"sum"`` or ``"mean"``. None: as
    the program computes it. ``where``: returns the path of the module that runs, for errors.
    """

    __slots__ = (
        "_factor",
        "_of_pass",
        "arrived",
        "parameters",
        "reduction",
        "supposed",
        "uses",
        "where",
    )

    def __init__(self, reduction: str | None, where: Callable[[], str]) -> None:
        super().__init__()
        self.reduction = reduction
        self.where = where
        self.arrived: Callable[[], None] | None = None  # called after a use has got its gradients
        # by id: a batch that was marked because it is an argument of a module
        self.supposed: dict[int, object] = {}
        self.parameters: dict[int, Any] = {}  # by id of a tensor of the user: its value on the tape
        self.uses = Uses()
        self._factor: Any = None
        self._of_pass: int | None = None  # the backward pass that `_factor` is of

    # calls

    def call(self, func: OpOverload, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run a call of the program, and give its results states."""
        # one list, so that lists of tensors need no case of their own
        flat, layout = flattened(args, kwargs)
        states = list(map(self.state_of, flat))
        if all(state is None for state in states):
            return self._run_without_states(func, args, kwargs, flat)
        op = op_of(func)
        # its parts come back here one by one
        if _is_followed_by_its_parts(op):
            return func.decompose(*args, **kwargs)
        call = FollowedCall(op, args, kwargs, flat, layout, states)
        if op.kind in (INPLACE, OUT):
            return self._run_write(call)
        # a function of parameters alone, such as a weight norm, is one more parameter
        if call.is_of_parameters():
            return self._put_parameters(SESSION.record(func, args, kwargs))
        if _grad_enabled() and (used := call.parameters()):
            return self._run_on_constants(call, used)
        return self._run_on_samples(call)

    def _run_without_states(
        self,
        func: OpOverload,
        args: Sequence[object],
        kwargs: dict[str, object],
        flat: list[object],
    ) -> object:
        """Run a call whose arguments have no states."""
        outputs = SESSION.record(func, args, kwargs)
        # later writes of samples to one of the two are seen in the other
        if (
            func is aten.detach.default
            and isinstance(outputs, Value)
            and isinstance(flat[0], Value)
        ):
            self.follow_data(outputs, flat[0])
        return outputs

    def _run_on_samples(self, call: FollowedCall) -> object:
        """Run a call that uses no parameters."""
        op = call.op
        filled = filled_by(op, call.args, call.kwargs)
        outputs = SESSION.record(op.func, call.args, call.kwargs)
        results = leaves_of(outputs)
        try:
            where, placed = self._place_results(call, results)
        except Mixed as error:
            filled.follow(self, {}, error)
            return self._refuse_mixed(outputs, op, error)
        filled.follow(self, placed.places, None)
        if isinstance(where[0], Pooled):
            return self._put_pooled(outputs, where[0])
        # `.data` is a detach, too, and a write to it is no write to the tensor for autograd
        if op.base_name == "detach":
            self.follow_data(outputs, call.flat[0])
        self._put_all(results, where)
        return outputs

    def _run_on_constants(self, call: FollowedCall, used: list[int]) -> object:
        """Run a call on constants in place of the parameters ``used``, with a tap of its
        results."""
        op = call.op
        if call.has_samples() and call.puts_parameters_in_samples():
            # repeat the values, so that each sample has its own
            target, indices, values, *rest = call.args
            each = torch.ones_like(aten.index.Tensor(target, indices)) * values
            return op.func(target, indices, each, *rest, **call.kwargs)
        if not call.has_samples() and not call.has_mixture():
            return self._refuse_mixed(
                SESSION.record(op.func, call.args, call.kwargs),
                op,
                Mixed("it adds a term of parameters alone to the loss of the samples"),
            )
        # the tape must not record a gradient of the whole batch for the parameters
        constants = list(call.flat)
        for index in used:
            constants[index] = SESSION.wrap(call.flat[index]._inner)
        filled = filled_by(op, call.args, call.kwargs)
        outputs = SESSION.record(op.func, *unflattened(constants, call.layout))
        try:
            where, placed = self._place_results(call, leaves_of(outputs))
        except Mixed as error:
            # run it again on the parameters, so that the refusal is before their histories
            filled.restore()
            outputs = SESSION.record(op.func, call.args, call.kwargs)
            filled.follow(self, {}, error)
            return self._refuse_mixed(outputs, op, error)
        filled.follow(self, placed.places, None)
        outputs = self._tap(call, used, placed, outputs, where)
        self._put_all(leaves_of(outputs), where)
        return outputs

    def _put_all(self, results: list[object], where: list[object]) -> None:
        """Give each result the place of its samples, if there is one."""
        for output, place in zip(results, where, strict=True):
            if place is not None and isinstance(output, Value):
                self.put(output, place)

    def _place_results(self, call: FollowedCall, outs: list[object]) -> tuple[list[object], Placed]:
        """Return where the samples lie in the results, and the call with the places of all
        arguments. ``Mixed`` if they lie nowhere."""
        op, states = call.op, call.states
        # an earlier call has mixed samples
        for state in states:
            if isinstance(state, Mixture):
                raise Inherited(state.why)
        if not call.has_samples():
            return [self._state_of_pooled(call)] * len(outs), Placed(op, {}, {}, outs, 0)
        if any(isinstance(state, Pooled) for state in states):
            raise Mixed("it computes with a sum or mean over the samples and with single samples")
        assert self.size is not None
        placed = call.placed(outs, self.size)
        # of a single sample every element of every result, whatever the op is
        if self.size < 2:
            alone: list[object] = [
                ALONE if isinstance(output, torch.Tensor) else None for output in outs
            ]
            return alone, placed
        return apply_rule(op, placed, outs), placed

    def _state_of_pooled(self, call: FollowedCall) -> Pooled:
        """Return the state of a linear function of sums or means over the samples."""
        op = call.op
        pooled = [state for state in call.states if isinstance(state, Pooled)]
        if not _is_linear(op, len(pooled)):
            raise Mixed(
                "it is not linear in a sum or mean over the samples, "
                "so the loss is no sum of those of the samples"
            )
        if not all(equal(other.factor, pooled[0].factor) for other in pooled[1:]):
            raise Mixed(
                "it adds a sum and a mean over the samples. "
                "Say which the gradients are of by reduction='sum' or 'mean'"
            )
        # a sum that the program divides by the number of samples is a mean of its own making
        if self.reduction is None and op.base_name.rstrip("_") in ("mul", "div"):
            assert self.size is not None
            refuse_number_of_samples(op.base_name, call.flat, pooled[0].is_sum, self.size)
        return pooled[0]

    def _put_parameters(self, outs: object) -> object:
        """Note that the results follow from parameters alone. One without a history is a
        constant."""
        for output in leaves_of(outs):
            if isinstance(output, Value) and edge_of(output) is not None:
                self.put(output, PARAMETERS)
        return outs

    def _refuse_mixed(self, outs: object, op: Op, error: Mixed) -> object:
        """Return the results, with a refusal before their histories."""
        return self.refuse(outs, self._why(op, error), op.kind is INPLACE)

    def _why(self, op: Op, error: Mixed) -> str:
        """Return the error for a gradient of what ``op`` has mixed."""
        if isinstance(error, Inherited):
            return str(error)
        return (
            f"per_sample: {op.func} mixes samples in {self.where()}: "
            f"{error}. Gradients of single samples do not exist there. To compute it of each "
            "sample alone, use per_sample_grads, whose loss is that of one sample. "
            "To take its result as a constant, use grads.shared(t.detach())."
        )

    def refuse(self, outs: object, why: str, written: bool = False) -> Any:
        """Return the results of a call, with a refusal before their histories. ``written``: they
        existed before the call."""
        for output in leaves_of(outs):
            if not isinstance(output, Value):
                continue
            # a view that is new follows its base
            whole: Any = base_or_self(output) if written else output
            if output.dtype in DIFFERENTIABLE and (edge := edge_of(whole)) is not None:
                whole._edge = (Refusal(edge, (meta_of(whole, whole.dtype),), why), 0)
            self.put(whole, Mixture(why))
        return outs

    def _put_pooled(self, outs: object, pooled: Pooled) -> object:
        """Return the results, which are sums or means over the samples. A gradient of them is
        noted on its way."""

        def note() -> None:
            """Note the factor of this sum or mean."""
            self.note_pool(pooled.factor)

        # a node on the way, since a backward pass may begin behind the sum and never pass it
        values: list[Any] = [output for output in leaves_of(outs) if isinstance(output, Value)]
        for value in values:
            if value.dtype in DIFFERENTIABLE and (edge := edge_of(value)) is not None:
                value._edge = (Pool(edge, (meta_of(value, value.dtype),), note), 0)
            self.put(value, pooled)
        return outs

    def note_pool(self, factor: object) -> None:
        """Note that a gradient passes a sum or mean over the samples. Raise if it has passed the
        other kind before, in the same backward pass."""
        # of one backward pass: another one may begin at another loss
        number = current_graph_task_id()
        if self.reduction is None and self._of_pass == number and not equal(self._factor, factor):
            raise RuntimeError(
                "per_sample: the loss is a sum over the samples in one term and a mean "
                "in another. Say which the gradients are of by reduction='sum' or 'mean'."
            )
        self._of_pass, self._factor = number, factor

    def factor(self) -> Any:
        """Return the factor from a cotangent of the running backward pass to that of the sample's
        own loss: 1 if the loss is a sum, the number of samples if it is a mean."""
        # of one sample, sum and mean are the same
        if self.size is not None and self.size < 2:
            return 1
        if self.reduction == "sum":
            return 1
        if self.reduction == "mean":
            return self.size
        if self._of_pass != current_graph_task_id():
            raise RuntimeError(
                "per_sample: the backward pass began behind the sum or mean over the samples, "
                "or outside of the with block, so it is not known which of them the loss is. "
                "Compute the loss inside, or say reduction='sum' or 'mean'."
            )
        return self._factor

    # uses of parameters

    def layer(self, func: object, args: Sequence[object]) -> Any:
        """Run a linear or recurrent layer as one node. NotImplemented for any other call."""
        return whole_layers.run(self, func, args)

    def alone(self, place: Place) -> bool:
        """Return whether ``place`` is that of the only sample of a batch of one."""
        return place is ALONE

    def of_samples(self, grad: Tensor, place: Place) -> Tensor:
        """Return the cotangent ``grad``, which has samples in ``place``, with the batch in front.
        :meth:`factor` makes it that of the losses of the samples."""
        assert self.size is not None
        cotangent: Tensor = place.split_gradient(grad, self.size)
        return cotangent

    def note_uses(self, uses: Iterable[Use]) -> None:
        """Note the gradients of the uses of parameters by one call, by cotangents as
        :meth:`of_samples` gives them."""
        self.uses.add(uses, self.factor())
        if self.arrived is not None:
            self.arrived()

    def _tap(
        self, call: FollowedCall, used: list[int], placed: Placed, outs: Any, where: list[object]
    ) -> object:
        """Return the results, each with a history that leads to one tap."""
        op, results = call.op, leaves_of(outs)
        # the results that may get a cotangent
        tapped: list[int] = []
        for index, output in enumerate(results):
            if not isinstance(output, Value) or index in op.nondiff:
                continue
            if output.dtype in DIFFERENTIABLE:
                tapped.append(index)
        edges = tuple(edge_of(results[index]) for index in tapped)
        metas = tuple(meta_of(results[index], results[index].dtype) for index in tapped)
        # one tap for all results, since a formula may need several cotangents
        uses = self._used_parameters(call, used, placed, tapped, where)
        tap = Tap(SESSION, edges, metas, uses.note)
        for position, index in enumerate(tapped):
            results[index] = SESSION.wrap(results[index]._inner, (tap, position))
        if isinstance(outs, torch.Tensor):
            return results[0]
        return type(outs)(results)

    def _used_parameters(
        self,
        call: FollowedCall,
        used: list[int],
        placed: Placed,
        tapped: list[int],
        where: list[object],
    ) -> UsedParameters:
        """Return the gradients of the parameters ``used`` by a call, to be computed from the
        cotangents of its results. The results of the numbers ``tapped`` have any."""
        # the call as one for each sample: its arguments with the batch in front
        plain = list(map(without_history, call.flat))
        places = self._places_in_order(call, placed)
        parts = list(plain)
        for index, place in enumerate(places):
            if isinstance(place, Place):
                parts[index] = place.split(parts[index], placed.size)
        batched = [isinstance(place, Place) for place in places]
        adapt(call.op, parts, batched, call.layout, placed.size)
        sources = {index: edge_of(call.flat[index]) for index in used}
        each = ParameterCall(call.op, parts, batched, call.layout, sources, placed.size)
        # rows: the parameters whose rows meet single samples, with the places of these
        values = {index: plain[index] for index in used}
        rows = {index: places[index] for index in used if isinstance(places[index], Place)}
        return UsedParameters(self, each, values, rows, tapped, where)

    def _places_in_order(self, call: FollowedCall, placed: Placed) -> list[Any]:
        """Return the place in each of the arguments in one list."""
        if placed.size < 2:
            of_samples = [
                isinstance(argument, torch.Tensor) and not self.is_parameter(argument)
                for argument in call.flat
            ]
            return [ALONE if is_of_sample else None for is_of_sample in of_samples]
        # a rule has places by name, one for a tensor and a list for a list of tensors
        places: list[Any] = [None] * len(call.flat)
        # by name, the number in `flat` of each argument, or the numbers of a list
        for name, numbers in call.by_name(range(len(call.flat))).items():
            place = placed.places.get(name)
            if isinstance(numbers, int):
                places[numbers] = place
            elif isinstance(place, list):
                for index, place_of_entry in zip(numbers, place, strict=True):
                    places[index] = place_of_entry
        return places

    # writes

    def _run_write(self, call: FollowedCall) -> object:
        """Run a call that writes to its first argument."""
        op = call.op
        target = self._target(call)
        # places are known for the form that returns what is written
        functional = op.functional
        if functional is None:
            return self._refuse_mixed(
                self._record_write(call),
                op,
                Mixed("nothing is known of where this write leaves the samples"),
            )
        if _grad_enabled() and call.writes_samples_with_parameters():
            # what is written is computed apart, so the parameters are used by a call with a tap
            result = functional.func(target.clone(), *call.args[1:], **call.kwargs)
            return target.copy_(result)
        of_base = self._state_of_base(target)
        if op.base_name == "copy_":
            return self._copy(call, functional, of_base)
        if call.is_of_parameters():
            state = PARAMETERS if _grad_enabled() else call.states[0]
            return self._write(call, state, of_base)
        return self._write_samples(call, functional, of_base, call.states[0])

    def _state_of_base(self, value: Any) -> object:
        """Return the state of the base of ``value``. None if ``value`` is no view."""
        if value._view is None:
            return None
        return self.state(value._view.base)

    def _target(self, call: FollowedCall) -> torch.Tensor:
        """Return the tensor that a call writes to, as a value of the session."""
        op, target = call.op, call.args[0]
        if op.kind is OUT:
            raise RuntimeError(
                f"per_sample: {op.func} writes samples or parameters by out= in {self.where()}, "
                "and has no gradient. Use its result."
            )
        if not isinstance(target, torch.Tensor):
            raise RuntimeError(
                f"per_sample: {op.func} writes samples or parameters to several tensors "
                f"in {self.where()}. Write to one at a time."
            )
        if not isinstance(target, Value):
            self.lift(target, op)
        return target

    def _copy(self, call: FollowedCall, functional: Op, of_base: object) -> object:
        """Run ``target.copy_(source)``. ``of_base``: the state of the target's base."""
        target: Any = call.args[0]
        former, source = call.states[:2]
        if former is PARAMETERS and target._view is None and _grad_enabled():
            target._edge = None  # nothing is left of what was there, nor of its history
        if source is None or source is PARAMETERS:
            return self._write(call, state_of_copy(target, former, source), of_base)
        # the target's own samples are overwritten
        alone = call._replace(states=[None, *call.states[1:]])
        return self._write_samples(alone, functional, of_base, former)

    def _write(self, call: FollowedCall, state: object, of_base: object) -> Any:
        """Run a write that leaves its target with ``state``."""
        outputs = self._record_write(call)
        self.put(outputs, state)
        return self._follow_base(outputs, state, of_base, call.op)

    def _write_samples(
        self, call: FollowedCall, functional: Op, of_base: object, former: object
    ) -> object:
        """Run a write, and follow the samples as through ``functional``, which returns what is
        written. ``former``: the state of the target before."""
        target: Any = call.args[0]
        has_other_history = not _grad_enabled() and target._edge is not None
        # the rule of places reads shapes and indices as they were before the write
        before = [target._inner.detach(), *call.flat[1:]]
        outputs = self._record_write(call)
        try:
            where, _ = self._place_results(call._replace(op=functional, flat=before), [outputs])
            if has_other_history and where[0] != former:
                raise Mixed("the history of what it writes to has the samples in other places")
        except Mixed as error:
            return self._refuse_mixed(outputs, call.op, error)
        self.put(outputs, where[0])
        if target._view is None and isinstance(where[0], Place):
            writes_to(target).leave(self, where[0], target._inner)
        return self._follow_base(outputs, where[0], of_base, call.op)

    def follow_filled(self, value: object, place: Place, op: Op) -> None:
        """Note that a call of ``op`` has filled its argument ``value`` with samples in
        ``place``."""
        of_base = self._state_of_base(value)
        writes_to(value).note()
        self.put(value, place)
        self._follow_base(value, place, of_base, op)

    def refuse_filled(self, value: object, op: Op, error: Mixed) -> None:
        """Note that a call of ``op`` has filled its argument ``value`` with a mixture of
        samples."""
        writes_to(value).note()
        self.refuse(value, self._why(op, error), written=True)

    def _record_write(self, call: FollowedCall) -> object:
        """Run a write on the tape, and count it, since it ends the states of the memory."""
        outputs = SESSION.record(call.op.func, call.args, call.kwargs)
        target = call.args[0]
        if isinstance(target, Value) and call.op.base_name not in GEOMETRY:
            writes_to(target).note()
        return outputs

    def _follow_base(self, value: Any, state: object, of_base: object, op: Op) -> object:
        """Give the base of ``value``, which was written to, a state that fits. ``of_base``: its
        former state. Returns ``value``."""
        if value._view is None:
            return value
        try:
            self.put(value._view.base, base_after_write(value, state, of_base, self.size or 1))
        except Mixed as error:
            self._refuse_mixed(value, op, error)
        return value


def _is_followed_by_its_parts(op: Op) -> bool:
    """Return whether nothing is known of an op but the ops that it consists of."""
    return op.composite and op.record is None and rule_of(op) is None


def _is_linear(op: Op, pooled: int) -> bool:
    """Return whether an op is linear in its arguments, of which ``pooled`` are sums or means."""
    name = op.func.name().removeprefix("aten::")
    # the product of two sums is not linear
    return name in _LINEAR and not (pooled > 1 and name.startswith(("mul", "div")))
