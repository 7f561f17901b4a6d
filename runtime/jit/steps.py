"""Programs that change Python's state beside what they return: gradients of leaves, and optimizers.

    @jit
    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

What is captured is a function without these effects. It takes the gradients that ``step`` reads and
that are there before the call, and returns an :class:`Outcome`: the result, gradients, and the
state that an optimizer makes. A call puts them where they belong."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from operator import attrgetter
from typing import Any
from weakref import ref

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ..aot.calls.arguments import Call
from ..aot.calls.compiled_function import Beside
from ..aot.capture import opened
from ..aot.capture.global_state import autocast_enabled, surroundings
from ..aot.capture.joint import Joint
from ..aot.capture.leaf_gradients import HOOKS, LeafGradients, hooked
from ..aot.python_state.nodes import Place
from ..aot.python_state.program_state import Held, ProgramState
from ..aot.python_state.reads import Read, Slots
from ..seam.ambient import Ambient
from ..seam.generator_states import GeneratorStates
from ..seam.level_mode import entering
from ..session.captures import CAPTURE
from ..session.leaf import OF_TORCH
from ..session.tensor import SESSION, Tensor, unwrap
from ..tape.nodes import Node
from ..tape.saved import FREED
from ..tape.values import GradValue
from ..trace.number_reads import AskedForNumber, OtherSide, on_side
from ..trace.provenance import line_in
from ..trace.symbols import SYMBOLIC
from .donation import take
from .groups import Cell, Number, Numbers
from .known import Known
from .optimizers import Assigned, Optimizers, StatePlace, Unknown, Watched, put
from .scalers import Scalers, make_again
from .state_numbers import StateNumbers

_BACKWARD_HOOKS, _POST_HOOKS = (
    attrgetter("_backward_hooks"),
    attrgetter("_post_accumulate_grad_hooks"),
)


_NOTHING = nullcontext()


class _Again(BaseException):
    """The program has to be captured once more, with further arguments. No ``Exception``, since
    nothing is wrong with it."""


class _Spent(Node):
    """The history of a result that the program itself has differentiated."""

    __slots__ = ()

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> Any:
        raise RuntimeError(FREED)


class _Uncrossable(Node):
    """The history that torch's own autograd has given to what is at a place before a call."""

    __slots__ = ()

    def apply(self, grads: list[Any], wanted: Any, create_graph: bool) -> Any:
        raise RuntimeError(OF_TORCH)


def _without_history_of_torch(x: Any) -> Any:
    """``x``, what is at a place to which the program assigns. Most often the program
    does not compute with it, so that only a gradient that comes to what torch has
    recorded of it is an error."""
    if (
        not isinstance(x, torch.Tensor)
        or isinstance(x, Tensor)
        or x.grad_fn is None
        or not torch.is_grad_enabled()
    ):
        return x
    return SESSION.wrap(x.detach(), (_Uncrossable(SESSION, (), ((x.shape, x.dtype),)), 0))


class _Effects:
    """Where the tensors of an :class:`Outcome` belong. ``leaves``: tensors, or numbers of
    arguments, each with a gradient. ``state``: places in optimizers. ``assigned``: items of their
    groups. ``frozen``: tensors that require no grad afterwards. ``spent``: the numbers of the
    results whose histories have been freed. ``places``: in Python's state."""

    def __init__(
        self,
        leaves: Sequence[Any],
        state: Sequence[StatePlace],
        assigned: Sequence[Assigned],
        frozen: Sequence[Any],
        spent: Sequence[int],
        places: Sequence[Place],
    ) -> None:
        self.places = places
        self.leaves = leaves
        self.state = state
        self.assigned = assigned
        self.frozen = frozen
        self.spent = spent


@dataclass(eq=False)
class Outcome:
    """What a program with effects returns. ``result``: what is for the caller, and what belongs to
    places in Python's state."""

    result: Any
    gradients: list[Any]
    made: list[Any]
    assigned: list[Any]
    effects: _Effects


@dataclass(eq=False)
class _Entry:
    """What the program reads that each call finds anew: gradients, and what is at the places to
    which it assigns tensors."""

    gradients: list[Any]
    values: list[Any]


class _Draws(Ambient):
    """``before``: the states of the generators before the graph of this thread's call, if that may
    turn out to be for another side."""

    before: GeneratorStates | None = None


_DRAWS = _Draws()


class _Leaves:
    """Leaves to whose gradients a program adds."""

    def __init__(self, leaves: Sequence[torch.Tensor]) -> None:
        self._plain = [x for x in leaves if not isinstance(x, Tensor)]
        self._others = [x for x in leaves if isinstance(x, Tensor)]

    @property
    def hooked(self) -> bool:
        """Whether one of them has hooks, which the graph would not call."""
        plain = self._plain  # asked at each call, of each parameter
        return (
            any(map(_BACKWARD_HOOKS, plain))
            or any(map(_POST_HOOKS, plain))
            or any(map(hooked, self._others))
        )


def _without_hooks(leaves: Sequence[torch.Tensor]) -> list[Read]:
    """The question whether ``leaves`` have no hooks, which a graph would not call."""
    return [Read(Slots(_Leaves(leaves)), "hooked", False)] if leaves else []


class _Side:
    """An argument of the program, by which it is captured once for each way through the branches of
    an optimizer or gradient scaler."""


class Steps:
    """The programs of one jitted function ``f``, as functions without effects on Python's state.
    ``program``: what is captured.

    ``asked``: the leaves, or numbers of arguments, whose gradients from before a call the programs
    read. ``places``: to which they assign tensors, and what is there before a call is an argument.
    ``sides``: those that a call tries, in this order; None is the first one's. ``donates``: whether
    calls take the memory of arguments, see :mod:`.donation`."""

    def __init__(self, f: Callable[..., Any], donates: bool) -> None:
        self.f = f
        self.donates = donates
        self.asked: list[Any] = []
        self.places: list[Place] = []
        self.sides: list[_Side | None] = [None]
        self.numbers = Numbers()
        self._lifted = StateNumbers()
        self._assigning = threading.RLock()
        self._known = self._others = Known()
        self._makes_optimizers = False

        @wraps(f)
        def program(*args: Any, **kwargs: Any) -> Any:
            return self._captured(args, kwargs)

        self.program = program

    def beside(self) -> Beside:
        """What belongs to the program that was captured last."""
        return self._beside

    def starting(self, state: ProgramState) -> None:
        """A capture begins, of a program that finds ``state``."""
        self._state = state
        self._beside = Beside()
        self._known = Known(self._others)
        self._known.find(state.early.objects())
        lifted = self._lifted.found(self.places, state)
        self._lifted.begin(state)
        if lifted:
            self.places += lifted
            raise _Again

    def around(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``f`` by ``run``, which runs the programs."""

        def call(*args: Any, **kwargs: Any) -> Any:
            # a number that one call reads and assigns is no other call's meanwhile
            with self._assigning if self.places else _NOTHING:
                return called(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            while True:
                try:
                    if self.asked or self.places or self.sides[0] is not None:
                        result = self._sided(run, self.sides[0], args, kwargs)
                    else:
                        result = run(*args, **kwargs)
                    break
                except _Again:
                    pass
                except OtherSide:
                    self._undraw()
                    result = self._by_another_side(run, args, kwargs)
                    break
            return result if type(result) is not Outcome else _carried_out(result, args, kwargs)

        return call

    def _sided(self, run: Callable[..., Any], side: _Side | None, args: Any, kwargs: Any) -> Any:
        entry = (self._entry(args, kwargs),) if self.asked or self.places else ()
        return run(*entry, *((side,) if side is not None else ()), *args, **kwargs)

    def _by_another_side(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result by another program than the first one, which has done nothing yet. If all are
        wrong, one more is captured."""
        for side in (*self.sides[1:], _Side()):
            while True:
                try:
                    result = self._sided(run, side, args, kwargs)
                except _Again:
                    continue
                except OtherSide:
                    self._undraw()
                    break
                self.sides = [side, *(s for s in self.sides if s is not side)]
                return result
        raise RuntimeError(
            "a branch in an optimizer or gradient scaler takes another side whenever it is run"
        )

    def _undraw(self) -> None:
        if _DRAWS.before is not None:
            _DRAWS.before.restore()

    def _entry(self, args: Any, kwargs: Any) -> _Entry:
        flat = opened.flatten((args, kwargs))[0] if any(type(x) is int for x in self.asked) else ()
        leaves = [flat[x] if type(x) is int else x for x in self.asked]
        gradients = [x._grad if isinstance(x, Tensor) else x.grad for x in leaves]
        return _Entry(
            gradients, [_without_history_of_torch(place.current()) for place in self.places]
        )

    def _captured(self, args: Any, kwargs: Any) -> Any:
        """A run of ``f`` under capture, without its effects. In a transform, or in another function
        that is captured, ``f`` itself runs."""
        if entering() is None or CAPTURE.gradients is not None:
            return self.f(*(x for x in args if not isinstance(x, (_Entry, _Side))), **kwargs)
        given: dict[int, Any] = {}
        values: Sequence[Any] = ()
        self._offset = len(opened.flatten([x for x in args if isinstance(x, (_Entry, _Side))])[0])
        if args and isinstance(args[0], _Entry):
            given = {
                x if type(x) is int else id(x): g
                for x, g in zip(self.asked, args[0].gradients, strict=True)
            }
            values, args = args[0].values, args[1:]
        if args and isinstance(args[0], _Side):
            args = args[1:]
        arguments = opened.flatten((args, kwargs))[0]
        self._known.find(arguments)
        with (
            Held(self.places, values) as held,
            LeafGradients(given, arguments) as gradients,
            Scalers(self._known.scalers) as scalers,
            Optimizers(self.numbers, self._known, self._makes_optimizers) as optimizers,
        ):
            unknown, modes = None, _modes()
            try:
                result = self.f(*args, **kwargs)
            except AskedForNumber as e:
                self._fix(optimizers.pinned(e))
                self._keep_numbers()
                raise
            except TypeError as e:
                self._keep_numbers()
                if "SymFloat" not in str(e):
                    raise
                self._fix(optimizers.opened)  # Python does not say which number it is
                raise RuntimeError(
                    f"{e}. That SymFloat is a number that the program has "
                    "read of a tensor by item(). Compute with tensors instead, "
                    f"or leave this part out of what is jitted.{line_in(e)}"
                ) from e
            except Unknown as e:
                unknown = e.optimizer  # the error itself keeps it alive
            except Exception:
                self._keep_numbers()
                raise
            if unknown is not None:
                self._know(unknown)
                raise _Again
            if _modes() != modes:
                raise RuntimeError(
                    "the program leaves grad mode, autocast, the default dtype or device, "
                    "or deterministic algorithms changed. A graph would not do that. "
                    "Change them in a with statement, or outside of the jitted function."
                )
            if gradients.asked:
                self.asked += gradients.asked
                raise _Again
            scaler = scalers.made or optimizers.scaler
            used = [] if scaler is not None else optimizers.used
            made, assigned = (
                [x for w in used for x in w.made()],
                [x for w in used for x in w.assigned()],
            )
            changed, of_scalers = gradients.changed, [] if scaler is not None else scalers.reads()
        if scaler is not None:
            tensors = [t for t in arguments if isinstance(t, torch.Tensor)]
            self._others.scalers.add(scaler)
            self._state.forget(scaler)
            make_again(scaler, tensors[0].device if tensors else torch.get_default_device())
            raise _Again
        known = [self._know(x) for x in optimizers.unseen]
        if any(known):
            raise _Again
        if self._known.misses(self._state.graph.objects(), self._others):
            raise _Again
        try:
            new = self._state.assigned()
        except RuntimeError:
            self._keep_numbers()
            raise
        if new:
            self.places += new
            raise _Again
        for place, value in zip(self.places, held.left, strict=False):
            for x in opened.flatten(value)[0]:
                if not isinstance(x, (torch.Tensor, *SYMBOLIC)):
                    self._state.refuse_hidden(place, x)
        return self._outcome(
            (result, held.left), gradients, changed, used, made, assigned, of_scalers
        )

    def _know(self, optimizer: ref[Optimizer]) -> bool:
        """Remember an optimizer for captures to come. False for one that only the program has
        had, and has made."""
        gc.collect()
        found = optimizer()
        if found is None:
            self._makes_optimizers = True
            return False
        self._others.optimizers.add(found)
        return True

    def _outcome(
        self,
        result: tuple[Any, list[Any]],
        gradients: LeafGradients,
        changed: Sequence[tuple[Any, Any]],
        used: Sequence[Watched],
        made: Sequence[tuple[StatePlace, Any]],
        assigned: Sequence[tuple[Assigned, Any]],
        of_scalers: Sequence[Read],
    ) -> Any:
        """What the graph returns. ``result``: what the program returns, and what it
        leaves at ``places``."""
        flat, spec = opened.flatten(result)
        if any(isinstance(t, GradValue) and t._retains for t in flat):
            raise RuntimeError(
                "the program calls retain_grad() of a tensor that it returns. "
                "Call it of the result, or return the gradient."
            )
        if not (
            changed or gradients.used or gradients.spent or gradients.frozen or used or self.places
        ):
            begin = partial(self._beginning, (), (), ()) if self.donates else None
            self._beside = Beside([*of_scalers, *_without_hooks(gradients.differentiated)], begin)
            return result[0]
        spent = [i for i, t in enumerate(flat) if gradients.is_spent(t)]
        for i in spent:
            flat[i] = flat[i].detach()
        leaves, values = [leaf for leaf, _ in changed], [g for _, g in changed]
        if any(g is not None and g.requires_grad for g in values):
            raise RuntimeError(
                "backward(create_graph=True) leaves a gradient with a history behind, "
                "which a call cannot assign to .grad. Use torch.autograd.grad, "
                "or set .grad to None before the end."
            )
        added = [x for x in gradients.added if isinstance(x, torch.Tensor)]
        cells = list({id(c): c for w in used for c in w.cells}.values())
        places = [self._offset + x for x in gradients.added if isinstance(x, int)]
        begin = partial(
            self._beginning, cells, [x for x in leaves if isinstance(x, torch.Tensor)], places
        )
        reads = [
            *of_scalers,
            *_without_hooks([*added, *gradients.differentiated]),
            *(read for w in used for read in w.reads()),
        ]
        carried = frozenset(
            [*(place for w in used for place in w.carried), *(place.key for place in self.places)]
        )
        self._beside = Beside(reads, begin, carried)
        effects = _Effects(
            leaves,
            [p for p, _ in made],
            [p for p, _ in assigned],
            gradients.frozen,
            spent,
            list(self.places),
        )
        return Outcome(
            pytree.tree_unflatten(flat, spec),
            values,
            [t for _, t in made],
            [x for _, x in assigned],
            effects,
        )

    def _beginning(
        self,
        cells: Sequence[Cell],
        leaves: Sequence[torch.Tensor],
        places: Sequence[int],
        joint: Joint,
    ) -> Callable[[Call], Sequence[str]] | None:
        """What a call does before the graph runs. It fills ``cells``, takes what is donated, and
        drops the gradients of ``leaves``, which it assigns afterwards. So the memory of the old
        ones is free for the new ones, as in eager mode. Before a graph that may be for another side
        nothing is taken or dropped, and the random numbers that it draws are drawn again. The
        arguments at ``places`` must be leaves without hooks, as they get gradients."""
        nodes = joint.traced.graph.nodes
        sided = any(n.target is on_side for n in nodes)
        draws = sided and any(
            torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in nodes
        )
        dropped = () if sided else leaves
        takes = self.donates and not sided
        if not (cells or dropped or draws or takes or places):
            return None

        lost = ["the donated tensors are empty"] if takes else []
        lost += (
            [f".grad is None of {len(dropped)} tensor{'s' * (len(dropped) != 1)}"]
            if dropped
            else []
        )

        def begin(call: Call) -> Sequence[str]:
            for i in places:
                if hooked(call.leaves[i]):
                    raise RuntimeError(
                        f"backward() in a jitted function reaches an argument with hooks, {HOOKS}"
                    )
                if not call.leaves[i].is_leaf:
                    raise RuntimeError(
                        "backward() in a jitted function reaches an argument that is no "
                        "leaf. Pass its detach()."
                    )
            for cell in cells:
                cell.fill()
            if takes:
                take(call, joint)
            for leaf in dropped:
                leaf.grad = None
            _DRAWS.before = GeneratorStates() if draws else None
            return lost

        return begin

    def _keep_numbers(self) -> None:
        """Let numbers of Python's state be constants again, if some are arguments."""
        kept = self._lifted.keep(self.places)
        if len(kept) < len(self.places):
            self.places = kept
            raise _Again

    def _fix(self, numbers: Sequence[Number]) -> None:
        """Let ``numbers`` of optimizers, for whose values the program has asked, be constants."""
        if numbers:
            self.numbers.fixed.update(numbers)
            raise _Again


def _modes() -> tuple[Any, ...]:
    return torch.is_grad_enabled(), surroundings(torch.is_grad_enabled(), autocast_enabled())


def _carried_out(outcome: Outcome, args: Any, kwargs: Any) -> Any:
    """The result of a call, after its effects."""
    effects = outcome.effects
    for leaf, g in zip(effects.leaves, outcome.gradients, strict=True):
        if type(leaf) is int:
            leaf = opened.flatten((args, kwargs))[0][leaf]
            if not leaf.is_leaf:
                raise RuntimeError(
                    "backward() in a jitted function reaches an argument that is no "
                    "leaf. Pass its detach()."
                )
        leaf.grad = g
    for t in effects.frozen:
        t.requires_grad_(False)
    if effects.state:
        put(effects.state, outcome.made)
    for place, x in zip(effects.assigned, outcome.assigned, strict=True):
        place.group[place.name] = x
    result: Any = outcome.result
    if effects.spent:
        flat, spec = opened.flatten(result)
        for i in effects.spent:
            t = unwrap(flat[i])
            flat[i] = SESSION.wrap(t, (_Spent(SESSION, (), ((t.shape, t.dtype),)), 0))
        result = pytree.tree_unflatten(flat, spec)
    returned, placed = result
    for where, value in zip(effects.places, placed, strict=True):
        where.put(value)
    return returned
