"""The session, while it follows where the samples of a batch lie.

Inside ``with per_sample(…)`` this object handles the session's calls of the thread. It runs each
call on the session's tape, on the whole batch, and gives each result a *state*: where the samples
lie in it (:class:`Place`), that it is their sum or mean (:class:`Pooled`), that it follows from
parameters alone (:data:`PARAMETERS`), or that samples are mixed in it (:class:`Mixture`). A tensor
without a state is the same for all samples.

A call with samples and with parameters *uses* the parameters: it runs on constants in their place,
and a tap takes the cotangent of its result. A gradient that reaches a mixture is an error, which
names the op and the module.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ..rules.ops import DIFFERENTIABLE, INPLACE, OUT, Op, op_of
from ..rules.samples.factors import Dense
from ..rules.samples.place_rules import rule_of
from ..rules.samples.places import (
    ALONE,
    Mixed,
    Place,
    Placed,
    Pooled,
    Tensor,
    fits,
    listed,
    place_in_base,
    place_in_view,
)
from ..seam.levels import Value
from ..seam.surgery import GEOMETRY
from ..session.stand_in import StandIn
from ..session.tensor import SESSION
from ..tape.lift import give_back, lift_in_place
from ..tape.metas import meta_of
from ..tape.running import current_graph_task_id
from ..tape.values import edge_of
from ..torch_private.dispatcher import OpOverload
from . import whole_layers
from .batch_means import equal, refuse_number_of_samples
from .boundary_nodes import WRITTEN_ELSEWHERE, Pool, Refusal
from .filled import Filled, fills
from .general import OwnRows
from .uses import Layout, ParameterCall, Tap, Use, Uses, adapt, flattened, unflattened

aten = torch.ops.aten
_grad_enabled = torch.is_grad_enabled


class Mixture(NamedTuple):
    """Samples are mixed in a tensor. ``why``: a sentence for the error."""

    why: str


class _Inherited(Mixed):
    """An argument is a mixture already."""


PARAMETERS = object()
_LINEAR = {
    *(
        "add.Tensor",
        "add.Scalar",
        "sub.Tensor",
        "sub.Scalar",
        "rsub.Scalar",
        "neg",
        "mul.Tensor",
        "mul.Scalar",
        "div.Tensor",
        "div.Scalar",
    ),
    *(
        "clone",
        "copy",
        "_to_copy",
        "detach",
        "alias",
        "view",
        "_unsafe_view",
        "squeeze",
        "unsqueeze",
        "expand",
        "sum",
        "mean",
        "stack",
    ),
}


class BatchSession(StandIn):
    """Follows one batch. ``size``: the number of samples, None until the first batch is marked.
    ``reduction``: how the loss follows from those of the samples, ``"sum"`` or ``"mean"``;
    None: it is seen where the program computes it. ``where``: the path of the module that runs
    now, for errors."""

    __slots__ = (
        "_factor",
        "_of_pass",
        "arrived",
        "lifted",
        "parameters",
        "reduction",
        "size",
        "supposed",
        "uses",
        "where",
    )

    def __init__(self, reduction: str | None, where: Callable[[], str]) -> None:
        self.size: int | None = None
        self.reduction = reduction
        self.where = where
        self.arrived: Callable[[], None] | None = None  # called after a use has got its gradients
        # by id: a batch that was marked because it is an argument of a module
        self.supposed: dict[int, Any] = {}
        self.parameters: dict[int, Any] = {}  # by id of a tensor of the user: its value on the tape
        self.uses = Uses()
        # plain tensors that became values of the session when samples were written to them
        self.lifted: list[weakref.ref[Any]] = []
        self._factor: Any = None
        self._of_pass: int | None = None  # the backward pass that `_factor` is of

    # states

    def state(self, v: Any) -> Any:
        """Return the state of a tensor of the session, or None."""
        held, view = v.__dict__.get("_samples"), v._view
        if held is not None and held[0]() is self and held[2] == _writes(v)[0]:
            return held[1]
        if view is None:
            writes = v.__dict__.get("_sample_writes")
            return (
                Mixture(WRITTEN_ELSEWHERE)
                if writes and writes[0] and (held is None or held[0]() is self)
                else None
            )
        of_base = self.state(view.base)
        if not isinstance(of_base, Place):
            return of_base
        assert self.size is not None
        found = of_base if self.size < 2 else place_in_view(v, of_base, self.size)
        return found or Mixture(
            "per_sample: a view shows parts of several samples that were written to its "
            "base after it was taken"
        )

    def put(self, v: Any, state: Any) -> None:
        """Give ``v`` a state. It holds until its memory is written to."""
        v.__dict__["_samples"] = (weakref.ref(self), state, _writes(v)[0])

    def follow_data(self, out: Any, of: Any) -> None:
        """``out`` is ``of.data`` or ``of.detach()``, which share the memory of ``of``."""
        state = self.state(of)
        if out._view is None:
            out.__dict__["_sample_writes"] = _writes(of)
        if state is not None and state is not PARAMETERS:
            self.put(out, state)

    def give_back(self) -> None:
        """The plain tensors to which samples were written are plain again, unless
        they have a history."""
        lifted = [t for ref in self.lifted if (t := ref()) is not None]
        for t in [t for t in lifted if edge_of(t if t._view is None else t._view.base) is None]:
            give_back(SESSION, t)
        self.lifted.clear()

    def lift(self, t: Any, op: Op) -> None:
        """Make the plain tensor ``t``, and its base, values of the session until :meth:`give_back`.
        ``op``: what writes to it."""
        v: Any = lift_in_place(SESSION, t, op.func)
        self.lifted += [
            weakref.ref(each) for each in ((v,) if v._view is None else (v, v._view.base))
        ]

    def mark(self, v: Any, dim: int) -> None:
        """The samples lie in dimension ``dim`` of ``v``."""
        n = v.shape[dim]
        if self.size is None:
            self.size = n
        if n != self.size:
            raise RuntimeError(
                f"per_sample: a batch has {n} samples in dimension {dim}, "
                f"and another one has {self.size}"
            )
        self.put(v, ALONE if n < 2 else Place(dim))

    def mark_rows(self, v: Any, owners: Tensor) -> None:
        """Row i of ``v`` belongs to sample ``owners[i]``."""
        n = int(owners.max()) + 1
        if self.size is None:
            self.size = n
        if n > self.size:
            raise RuntimeError(
                f"per_sample: a packed sequence has {n} samples, and another batch has {self.size}"
            )
        self.put(v, ALONE if self.size < 2 else listed(0, owners, self.size, packed=True))

    # calls

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        flat, spec = flattened(args, kwargs)
        states = [
            self.state(a) if isinstance(a, Value) and a._level is SESSION else None for a in flat
        ]
        if not any(s is not None for s in states):
            outs = SESSION.record(func, args, kwargs)
            if (
                func is aten.detach.default
                and isinstance(outs, Value)
                and isinstance(flat[0], Value)
            ):
                self.follow_data(outs, flat[0])
            return outs
        op = op_of(func)
        if op.composite and op.record is None and rule_of(op) is None:
            return func.decompose(*args, **kwargs)
        samples = any(isinstance(s, Place) for s in states)
        if op.kind in (INPLACE, OUT):
            return self._written(op, flat, states, args, kwargs)
        if all(s is None or s is PARAMETERS for s in states):
            return self._with_state(SESSION.record(func, args, kwargs), PARAMETERS)
        used = [i for i, s in enumerate(states) if s is PARAMETERS] if _grad_enabled() else []
        if (
            used
            and samples
            and op.base_name in ("index_put", "_unsafe_index_put")
            and used == [len(args[1]) + 1]
        ):
            # each sample has values of its own then
            values = torch.ones_like(aten.index.Tensor(args[0], args[1])) * args[2]
            return func(args[0], args[1], values, *args[3:], **kwargs)
        if used and not samples and not any(isinstance(s, Mixture) for s in states):
            return self._mixed(
                SESSION.record(func, args, kwargs),
                op,
                Mixed("it adds a term of parameters alone to the loss of the samples"),
            )
        plain = list(flat)
        for i in used:
            plain[i] = SESSION.wrap(flat[i]._inner)
        constant_args, constant_kwargs = unflattened(plain, spec)
        filled = Filled(op, args, kwargs) if fills(op) else None
        outs = SESSION.record(func, constant_args, constant_kwargs)
        results = leaves_of(outs)
        try:
            where, call = self._places(op, flat, states, spec, results, samples)
        except Mixed as error:
            if used:
                if filled is not None:
                    filled.restore()
                outs = SESSION.record(func, args, kwargs)
            if filled is not None:
                filled.follow(self, {}, error)
            return self._mixed(outs, op, error)
        if filled is not None:
            filled.follow(self, call.places, None)
        if isinstance(where[0], Pooled) and not used:
            return self._pooled(outs, where[0].factor)
        if used:
            outs = self._tapped(op, flat, spec, used, call, outs, where)
            results = leaves_of(outs)
        if op.base_name == "detach":
            self.follow_data(outs, flat[0])
        for o, place in zip(results, where, strict=True):
            if place is not None and isinstance(o, Value):
                self.put(o, place)
        return outs

    def _places(
        self,
        op: Op,
        flat: list[Any],
        states: list[Any],
        spec: Layout,
        outs: list[Any],
        samples: bool,
    ) -> tuple[list[Any], Placed]:
        """Where the samples lie in the results, and the call with the places of all arguments.
        ``Mixed`` if they lie nowhere."""
        for s in states:
            if isinstance(s, Mixture):
                raise _Inherited(s.why)
        if not samples:
            return [self._still_pooled(op, flat, states)] * len(outs), Placed(op, {}, {}, outs, 0)
        if any(isinstance(s, Pooled) for s in states):
            raise Mixed("it computes with a sum or mean over the samples and with single samples")
        assert self.size is not None
        plain = [a._inner if isinstance(a, Value) and a._level is SESSION else a for a in flat]
        args, kwargs = unflattened(plain, spec)
        of_args, of_kwargs = unflattened(
            [s if isinstance(s, Place) else None for s in states], spec
        )
        named = (
            dict(zip(op.arg_names, op.defaults, strict=True))
            | dict(zip(op.arg_names, args, strict=False))
            | kwargs
        )
        places = dict(zip(op.arg_names, of_args, strict=False)) | of_kwargs
        call = Placed(
            op, named, places, [o._inner if isinstance(o, Value) else o for o in outs], self.size
        )
        if self.size < 2:
            return [ALONE if isinstance(o, torch.Tensor) else None for o in outs], call
        rule = rule_of(op)
        if rule is None:
            raise Mixed("nothing is known of where it leaves the samples")
        found = rule(call)
        return (found if isinstance(found, list) else [found] * len(outs)), call

    def _still_pooled(self, op: Op, flat: list[Any], states: list[Any]) -> Pooled:
        """Return the state of a linear function of sums or means over the samples."""
        pooled = [s for s in states if isinstance(s, Pooled)]
        name = op.func.name().removeprefix("aten::")
        if name not in _LINEAR or (len(pooled) > 1 and name.startswith(("mul", "div"))):
            raise Mixed(
                "it is not linear in a sum or mean over the samples, "
                "so the loss is no sum of those of the samples"
            )
        if not all(equal(p.factor, pooled[0].factor) for p in pooled[1:]):
            raise Mixed(
                "it adds a sum and a mean over the samples. "
                "Say which the gradients are of by reduction='sum' or 'mean'"
            )
        if self.reduction is None and op.base_name.rstrip("_") in ("mul", "div"):
            assert self.size is not None
            refuse_number_of_samples(
                op.base_name,
                flat,
                isinstance(pooled[0].factor, int) and pooled[0].factor == 1,
                self.size,
            )
        return pooled[0]

    def _with_state(self, outs: Any, state: Any) -> Any:
        for o in leaves_of(outs):
            if isinstance(o, Value) and edge_of(o) is not None:
                self.put(o, state)
        return outs

    def _mixed(self, outs: Any, op: Op, error: Mixed) -> Any:
        """Return the results, with a refusal before their histories."""
        return self.refuse(outs, self._why(op, error), op.kind is INPLACE)

    def _why(self, op: Op, error: Mixed) -> str:
        if isinstance(error, _Inherited):
            return str(error)
        return (
            f"per_sample: {op.func} mixes samples in {self.where()}: "
            f"{error}. Gradients of single samples do not exist there; "
            "if its result is to be a constant, say so by grads.shared(t.detach())."
        )

    def refuse(self, outs: Any, why: str, written: bool = False) -> Any:
        """Return the results of a call, with a refusal before their histories. ``written``: they
        existed before the call."""
        for o in leaves_of(outs):
            if isinstance(o, Value):
                # a view that is new follows its base
                whole: Any = o._view.base if written and o._view is not None else o
                edge = edge_of(whole) if o.dtype in DIFFERENTIABLE else None
                if edge is not None:
                    whole._edge = (Refusal(edge, (meta_of(whole, whole.dtype),), why), 0)
                self.put(whole, Mixture(why))
        return outs

    def _pooled(self, outs: Any, factor: Any) -> Any:
        for o in leaves_of(outs):
            if isinstance(o, Value):
                edge: Any = edge_of(o) if o.dtype in DIFFERENTIABLE else None
                if edge is not None:
                    o._edge = (Pool(edge, (meta_of(o, o.dtype),), lambda: self._passed(factor)), 0)  # type: ignore[attr-defined]
                self.put(o, Pooled(factor))
        return outs

    def _passed(self, factor: Any) -> None:
        """A gradient passes a sum or mean over the samples."""
        number = current_graph_task_id()
        if self.reduction is None and self._of_pass == number and not equal(self._factor, factor):
            raise RuntimeError(
                "per_sample: the loss is a sum over the samples in one term and a mean "
                "in another. Say which the gradients are of by reduction='sum' or 'mean'."
            )
        self._of_pass, self._factor = number, factor

    def factor(self) -> Any:
        """Return what makes a cotangent of the running backward pass that of the sample's own
        loss."""
        if self.size is not None and self.size < 2:
            return 1
        if self.reduction is not None:
            return self.size if self.reduction == "mean" else 1
        if self._of_pass != current_graph_task_id():
            raise RuntimeError(
                "per_sample: the backward pass began behind the sum or mean over the samples, "
                "or outside of the with block, so it is not known which of them the loss is. "
                "Compute the loss inside, or say reduction='sum' or 'mean'."
            )
        return self._factor

    # uses of parameters

    def layer(self, func: Any, args: Sequence[Any]) -> Any:
        return whole_layers.run(self, func, args)

    def alone(self, place: Place) -> bool:
        return place is ALONE

    def of_samples(self, g: Tensor, place: Place) -> Tensor:
        """Return a cotangent with the batch in front. :meth:`factor` makes it that of the losses of
        the samples."""
        assert self.size is not None
        found: Tensor = place.split_gradient(g, self.size)
        return found

    def found(self, uses: Iterable[Use]) -> None:
        """Note the gradients of the uses of parameters by one call, by cotangents as
        :meth:`of_samples` gives them."""
        self.uses.add(uses, self.factor())
        if self.arrived is not None:
            self.arrived()

    def _tapped(
        self,
        op: Op,
        flat: list[Any],
        spec: Layout,
        used: list[int],
        call: Placed,
        outs: Any,
        where: list[Any],
    ) -> Any:
        """Return the results, each with a history that leads to one tap."""
        results = leaves_of(outs)
        at = [
            i
            for i, o in enumerate(results)
            if isinstance(o, Value) and o.dtype in DIFFERENTIABLE and i not in op.nondiff
        ]
        edges = tuple(edge_of(results[i]) for i in at)
        metas = tuple(meta_of(results[i], results[i].dtype) for i in at)
        places = self._places_in_order(op, call, flat, spec)
        rows = {i: p for i in used if isinstance(p := places[i], Place)}
        sources = {i: edge_of(flat[i]) for i in used}
        plain = [
            a._inner
            if isinstance(a, Value) and a._level is SESSION
            else a.detach()
            if isinstance(a, torch.Tensor)
            else a
            for a in flat
        ]
        size, number, count = call.size, {i: k for k, i in enumerate(at)}, len(results)
        parts = [
            p.split(a, size) if isinstance(p, Place) else a
            for a, p in zip(plain, places, strict=True)
        ]
        batched = [isinstance(p, Place) for p in places]
        adapt(op, parts, batched, spec, size)
        of_parameters = ParameterCall(op, parts, batched, spec, sources, size)

        def found(grads: list[Any]) -> None:
            if not size:  # no sample has a gradient
                self.uses.add(
                    (edge, Dense(plain[i].new_zeros(0, *plain[i].shape)))
                    for i, edge in sources.items()
                    if edge is not None
                )
                return
            gs: list[Any] = [None] * count  # the tap must not hold the results
            for i, k in number.items():
                g, place = grads[k], where[i]
                if g is None:
                    continue
                if place is None:
                    raise RuntimeError(
                        f"per_sample: result {i} of {op.func} belongs to no "
                        "sample, and has a gradient"
                    )
                if isinstance(place, Pooled):
                    self._passed(place.factor)
                    gs[i] = g.expand(size) / place.factor
                else:
                    gs[i] = self.of_samples(g, place)
            uses = zip(used, of_parameters.uses(gs), strict=False)
            self.found(
                [
                    (edge, OwnRows(term, rows[i], plain[i].shape) if i in rows else term)
                    for i, (edge, term) in uses
                ]
            )

        tap = Tap(SESSION, edges, metas, found)
        for k, i in enumerate(at):
            results[i] = SESSION.wrap(results[i]._inner, (tap, k))
        return results[0] if isinstance(outs, torch.Tensor) else type(outs)(results)

    def _places_in_order(self, op: Op, call: Placed, flat: list[Any], spec: Layout) -> list[Any]:
        """Return the place in each of the arguments in one list."""
        if call.size < 2:
            return [
                ALONE if isinstance(a, torch.Tensor) and not self.is_parameter(a) else None
                for a in flat
            ]
        args, kwargs = unflattened(range(len(flat)), spec)
        found: list[Any] = [None] * len(flat)
        for name, numbers in (dict(zip(op.arg_names, args, strict=False)) | kwargs).items():
            place = call.places.get(name)
            if isinstance(numbers, int):
                found[numbers] = place
            elif isinstance(place, list):
                for i, p in zip(numbers, place, strict=True):
                    found[i] = p
        return found

    def is_parameter(self, a: Any) -> bool:
        return isinstance(a, Value) and a._level is SESSION and self.state(a) is PARAMETERS

    # writes

    def _written(
        self,
        op: Op,
        flat: list[Any],
        states: list[Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """A call that writes to its first argument."""
        target: Any = args[0]
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
        samples, copies = any(isinstance(s, Place) for s in states), op.base_name == "copy_"
        if (
            samples
            and any(s is PARAMETERS for s in states[copies:])
            and _grad_enabled()
            and op.functional is not None
        ):
            result = op.functional.func(target.clone(), *args[1:], **kwargs)
            return target.copy_(result)
        view: Any = target._view  # type: ignore[attr-defined]
        of_base = None if view is None else self.state(view.base)
        if op.functional is None:
            outs = self._record_write(op, args, kwargs)
            return self._mixed(
                outs, op, Mixed("nothing is known of where this write leaves the samples")
            )
        if copies:
            v: Any = target
            former, *states = states
            if former is PARAMETERS and v._view is None and _grad_enabled():
                v._edge = None  # nothing is left of what was there, nor of its history
            # each row is still that of a sample
            stays = isinstance(former, Place) or (not _grad_enabled() and edge_of(v) is not None)
            states = [None, *states]
            samples = isinstance(states[1], Place)
            if states[1] is PARAMETERS or states[1] is None:
                outs = self._record_write(op, args, kwargs)
                state = former if stays else states[1] if _grad_enabled() else None
                self.put(outs, state)
                return self._follow_base(outs, state, of_base, op)
        if all(s is None or s is PARAMETERS for s in states):
            outs, state = (
                self._record_write(op, args, kwargs),
                PARAMETERS if _grad_enabled() else states[0],
            )
            self.put(outs, state)
            return self._follow_base(outs, state, of_base, op)
        before = [target._inner.detach(), *flat[1:]]  # type: ignore[attr-defined]
        outs = self._record_write(op, args, kwargs)
        spec = flattened(args, kwargs)[1]
        try:
            where, _ = self._places(op.functional, before, states, spec, [outs], samples)
        except Mixed as error:
            return self._mixed(outs, op, error)
        self.put(outs, where[0])
        return self._follow_base(outs, where[0], of_base, op)

    def filled(self, v: Any, place: Place | None, op: Op, error: Mixed) -> None:
        """A call of ``op`` has filled its argument ``v``, beside its results. ``place``: of the
        samples in it. None: they are mixed."""
        of_base = None if v._view is None else self.state(v._view.base)
        _writes(v)[0] += 1
        if place is None:
            self.refuse(v, self._why(op, error), written=True)
        else:
            self.put(v, place)
            self._follow_base(v, place, of_base, op)

    def _record_write(self, op: Op, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        outs = SESSION.record(op.func, args, kwargs)
        if isinstance(args[0], Value):
            _writes(args[0])[0] += op.base_name not in GEOMETRY
        return outs

    def _follow_base(self, v: Any, state: Any, of_base: Any, op: Op) -> Any:
        """Give the base of ``v``, which was written to, a state that fits. ``of_base``: its former
        state. Returns ``v``."""
        view, size = v._view, self.size or 1
        if view is None:
            return v
        found: Any
        if isinstance(of_base, Mixture):
            found = of_base
        elif isinstance(state, Place) and of_base is None:
            found = state if size < 2 else place_in_base(v, state, size)
        elif isinstance(state, Place) and isinstance(of_base, Place):
            found = of_base if size < 2 or fits(v, state, of_base, size) else None
        elif isinstance(state, Pooled) and isinstance(of_base, Pooled):
            found = of_base if equal(of_base.factor, state.factor) else None
        elif state is None or isinstance(state, Mixture):
            found = of_base if state is None else state
        else:  # constants beside parameters, sums or means change no gradient
            found = state if of_base is None or of_base is state else None
        if found is not None or state is None:
            self.put(view.base, found)
        else:
            self._mixed(
                v,
                op,
                Mixed(
                    "it writes to a part of a tensor what does not fit "
                    "the samples in the other parts"
                ),
            )
        return v


def _writes(v: Any) -> list[int]:
    """Return how often the memory of ``v`` was written to while samples were followed, in a list
    that ``v.detach()`` shares."""
    found: list[int] = (v if v._view is None else v._view.base).__dict__.setdefault(
        "_sample_writes", [0]
    )
    return found


def leaves_of(outs: Any) -> list[Any]:
    """Return the results of an ATen call in a list."""
    return list(outs) if isinstance(outs, (list, tuple)) else [outs]
