"""Programs that change Python's state beside what they return: gradients of leaves, optimizers,
attributes.

    @jit
    def step(x, y):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        return loss

What is captured is a function without these effects. It takes the gradients that ``step`` reads and
that are there before the call, and returns an :class:`.outcome.Outcome`: the result, gradients, and
what belongs to places of Python's state, such as the state that an optimizer makes. A call puts
them there."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial, wraps
from itertools import chain
from typing import Any, NoReturn, TypeVar

import torch

from ..aot.calls.arguments import Call
from ..aot.calls.recipe import Beside
from ..aot.capture import opened
from ..aot.capture.global_state import same_modes
from ..aot.capture.joint import Joint
from ..aot.capture.leaf_gradients import LeafGradients
from ..aot.python_state.contents import changes_beside_cache
from ..aot.python_state.nodes import Change, Place
from ..aot.python_state.program_state import RUN, ProgramState
from ..aot.python_state.snapshot import Order
from ..seam.ambient import Ambient
from ..seam.generator_states import TRACING
from ..seam.user_code import first_error, unwatched, watched
from ..session.captures import CAPTURE
from ..session.tensor import Tensor
from ..torch_private.mode_stacks import unseen_by_classes
from ..torch_private.pytrees import pytree
from ..trace.number_reads import AskedForNumber, OtherSide, going, way_so_far
from .asked_attributes import (
    Attributes,
    TensorAttributes,
    refuse_dictionaries,
    refuse_lost,
)
from .beginning import Beginning, without_hooks
from .entered import Entered
from .given_tensors import Key, owners, tensors_by_key
from .optimizer_steps import refuse_strangers
from .outcome import (
    ContainerChanges,
    Destinations,
    Entry,
    Layout,
    Outcome,
    values_at,
    with_repetition,
    without_repetition,
)
from .result_checks import ResultChecks, refuse_histories, refuse_retained
from .same_containers import (
    SharedContainers,
    Sharing,
    containers_at,
    containers_given,
    is_made,
    mark,
)
from .sides import Side, Sides, undraw
from .state_values import Numbers, StateValues, place_of
from .turns import BesideEager, Turns

# what a program is given before the user's arguments
_BESIDE = (Entry, Sharing, Side, Attributes)
_NO_ENTRY, _NO_SIDE, _NO_ATTRIBUTES = Entry(Layout(), [], []), Side(), Attributes({})
T = TypeVar("T")
# Runs of one capture that in a row find other shared containers than the run before. The first run
# learns which ones are shared, and the second one finds these. More mean that a thread moves them.
_RUNS_FOR_SHARING = 8


def _first(ours: Sequence[object], kind: type[T], default: T) -> T:
    """Return the one of that class among what a program is given before the user's arguments."""
    return next((part for part in ours if isinstance(part, kind)), default)


class _Again(BaseException):
    """The program of ``steps`` has to be captured once more, with further arguments. No
    ``Exception``, since nothing is wrong with it. The program of another function may run inside,
    so each asks whether it is meant."""

    def __init__(self, steps: Steps) -> None:
        super().__init__()
        self.steps = steps


class _ToldArguments(_Again):
    """The program is captured once more, by a call that says which containers it is given: a
    capture has copies of them."""


class _Unlocked(_Again):
    """A capture has to begin, or a program that assigns, and its call runs beside those of other
    threads. A capture puts Python's state back, and with it what these would assign meanwhile."""


class _Given(Ambient):
    """``containers``: those that this thread's call is given, while it captures a program."""

    containers: Sequence[Any] | None = None


_GIVEN = _Given()


class Steps:
    """The programs of one jitted function ``f``, as functions without effects on Python's state.
    ``program``: what is captured.

    ``asked``: the leaves, or keys of given tensors, whose gradients from before a call the programs
    read. ``values``: the places of Python's state whose values they take. ``layout``: both, for
    the next call. ``sides``: of their branches. ``shared``: what they ask of containers that a
    call is given. ``attributes``: of tensors. ``donates``: whether calls take the memory of
    arguments, see :mod:`.donation`. ``turns``: of the calls of the function."""

    def __init__(self, function: Callable[..., Any], donates: bool, turns: Turns) -> None:
        self.f = function
        self.donates = donates
        self.asked: list[Any] = []
        self.values = StateValues()
        self.layout = Layout()
        self.sides = Sides()
        # through the branches of the last capture
        self._last_way = ""
        self.shared = SharedContainers()
        self.attributes = TensorAttributes()
        # Whether a call may assign to Python's state; None until a program is known. Such calls run
        # one after the other, and so do those that capture.
        self._assigns: bool | None = None
        self._changes = False  # whether the program does that was captured last
        self._is_plain = False  # see :meth:`_gives_nothing`
        self._turns = turns
        self._runs_for_sharing = 0  # in vain, one after the other
        self._found: ProgramState | None = None  # by the program that is captured last
        # Of the capture that runs. Each run sets them anew, and captures run one after the other.
        self._beside = Beside()
        self._offset = 0  # inputs of the graph before the user's arguments
        self._inputs: dict[Key, int] = {}  # the numbers of those that are values at places

        @wraps(function)
        def program(*args: object, **kwargs: object) -> Any:
            return unwatched(self._captured, args, kwargs)

        self.program = program

    def beside(self) -> Beside:
        """Return what belongs to the program that was captured last."""
        return self._beside

    def captures(self, args: Any, kwargs: Any) -> None:
        """See :class:`..aot.calls.compiled_function.Leading`."""
        self._require_alone()
        given = tuple(argument for argument in args if not isinstance(argument, _BESIDE))
        if _GIVEN.containers is None and containers_given(given, kwargs):
            raise _ToldArguments(self)

    def _require_alone(self) -> None:
        if not self._turns.is_mine:
            raise _Unlocked(self)
        self._turns.require_alone()

    def starting(self, state: ProgramState) -> None:
        """Begin a capture of a program that finds ``state``."""
        self._found = state
        self._beside = Beside()
        if self.values.begin(state):
            raise self._again()
        # the run has values of the trace at these places, and would not come to what is there now
        state.graph.reach(self.values.places)

    @property
    def _state(self) -> ProgramState:
        assert self._found is not None
        return self._found

    @property
    def leading(self) -> int:
        """Return how many arguments of a program are gradients and values of places."""
        if self.layout.is_empty:
            return 0
        # the layout itself, the gradients, and all that the values at places consist of
        return 1 + len(self.layout.asked) + sum(self._sizes())

    def pinned(self, positions: Collection[int]) -> None:
        """Note that the program asks for the values of the arguments at ``positions``. Those of
        Python's state are constants from now on."""
        layout = self.layout
        # the layout and the gradients, which are no numbers, belong to no place
        owners: list[Place | None] = [None] * (1 + len(layout.asked))
        for place, size in zip(layout.places, self._sizes(), strict=True):
            owners += [place] * size
        found = [owners[i] for i in positions if i < len(owners)]
        if self.values.fix([place for place in found if place is not None]):
            raise self._again()

    def _sizes(self) -> list[int]:
        """Return how many arguments the value at each place is."""
        return [len(opened.flatten(value)[0]) for value in values_at(self.layout.places)]

    def _again(self) -> _Again:
        """Return what has a capture begin once more, with what the programs take from now on."""
        self.layout = Layout(self.asked, self.values.places)
        return _Again(self)

    # --- calls ------------------------------------------------------------------------------------

    def around(self, run: Callable[..., object]) -> Callable[..., Any]:
        """Return what a call of ``f`` is, by ``run``, which runs the programs."""

        # The fast path needs no lock and looks nothing up. Where it does not fit, the call begins
        # once more by `_call`: a graph that refuses has changed nothing but the generators.
        def call(*args: object, **kwargs: object) -> Any:
            if self._is_plain:
                try:
                    return run(*args, **kwargs)
                except OtherSide:
                    undraw()
                except _Again as again:
                    if again.steps is not self:
                        raise
            return self._call(run, args, kwargs)

        return call

    def _call(self, run: Callable[..., object], args: Any, kwargs: Any) -> Any:
        """Run a call that may assign. No two threads do so at once: what one call finds and assigns
        is no other call's meanwhile."""
        # A part of another program takes no lock: who has it may wait for the end of this trace.
        if self._assigns is False or TRACING.now:
            try:
                return self._result(run, args, kwargs)
            except _Unlocked as unlocked:
                if unlocked.steps is not self:
                    raise
        with self._turns.alone():
            # This call may add to what programs take. Until that is known, no other thread takes
            # the fast path, which would not look it up.
            self._is_plain = False
            try:
                return self._result(run, args, kwargs)
            finally:
                self._is_plain = self._gives_nothing()

    def _gives_nothing(self) -> bool:
        """Return whether programs take the user's arguments alone and assign nothing, so that a
        call is what ``run`` makes of them."""
        return (
            self._assigns is False
            and self.layout.is_empty
            and self.sides.known == [None]
            and not self.shared.matters
            and not self.attributes.asked
        )

    def _result(self, run: Callable[..., object], args: Any, kwargs: Any) -> Any:
        """Return what ``run`` gives and leaves, by the program for the side that the call is on."""
        try:
            return self._by_side(run, args, kwargs, self.sides.known[0])
        except OtherSide as error:
            other = error
        return self.sides.by_another(partial(self._by_side, run, args, kwargs), other)

    def _by_side(
        self, run: Callable[..., Any], args: Any, kwargs: Any, side: Side | None
    ) -> object:
        """Run a call by the program for ``side``, as often as a capture finds that programs have to
        take more."""
        while True:
            layout = self.layout  # another thread may assign it between here and the run
            try:
                asks = side is not None or self.shared.matters or self.attributes.asked
                if layout.is_empty and not asks:
                    result = run(*args, **kwargs)
                else:
                    before = self._before(layout, side, args, kwargs)
                    result = run(*before, *args, **kwargs)
            except _Again as again:
                # `_call` waits for its turn where this call has to be alone
                if again.steps is not self or isinstance(again, _Unlocked):
                    raise
                if isinstance(again, _ToldArguments):
                    return self._told(run, args, kwargs, side)
                continue
            return result.carry_out(args, kwargs) if type(result) is Outcome else result

    def _told(
        self, run: Callable[..., object], args: Any, kwargs: Any, side: Side | None
    ) -> object:
        """Run a call once more, with the containers among its arguments known to the capture."""
        _GIVEN.containers = containers_given(args, kwargs)
        try:
            return self._by_side(run, args, kwargs, side)
        finally:
            _GIVEN.containers = None

    def _before(self, layout: Layout, side: Side | None, args: Any, kwargs: Any) -> list[object]:
        """Return what a program is given before these arguments."""
        before: list[Any] = [] if layout.is_empty else [self._entry(layout, args, kwargs)]
        if side is not None:
            before.append(side)
        if self.shared.matters:
            found = containers_at(place.current() for place in layout.places)
            before += self.shared.of(layout.places, found, containers_given(args, kwargs))
        if self.attributes.asked:
            before.append(self.attributes.of(args, kwargs, layout.places))
        return before

    @staticmethod
    def _entry(layout: Layout, args: Any, kwargs: Any) -> Entry:
        """Return the gradients and values that this call finds where ``layout`` says."""
        leaves = owners(layout.asked, args, kwargs, layout.places)
        with unseen_by_classes():
            gradients = list(map(_gradient_of, leaves))
        return Entry(layout, gradients, values_at(layout.places))

    # --- captures ---------------------------------------------------------------------------------

    def _captured(self, args: Any, kwargs: Any) -> Any:
        """Run ``f`` under capture, without its effects. In a transform, or in another function that
        is captured, ``f`` itself runs."""
        ours = [x for x in args if isinstance(x, _BESIDE)]
        args = args[len(ours) :]
        of_another = self._found is None or RUN.state is not self._found
        if of_another or CAPTURE.gradients is not None:
            return watched(self.f, *args, **kwargs)
        # the numbers of arguments are counted without these, see `_numbers`
        self._offset = len(opened.flatten(ours)[0])
        entry, side = _first(ours, Entry, _NO_ENTRY), _first(ours, Side, _NO_SIDE)
        self._inputs = entry.inputs
        places = entry.layout.places
        if entry.layout is not self.layout and not (entry is _NO_ENTRY and self.layout.is_empty):
            raise _Again(self)  # another thread's capture has changed what programs take
        numbers = Numbers()
        pairs = zip(entry.values, places, strict=True)
        values = with_repetition([numbers.read(value, place) for value, place in pairs])
        attributes = _first(ours, Attributes, _NO_ATTRIBUTES)
        at_places = {place.key: value for place, value in zip(places, values, strict=True)}
        tensors = tensors_by_key((args, kwargs), at_places)
        given = opened.flatten((args, kwargs))[0]
        checks = ResultChecks(self._state, (*given, *tensors.values()))
        sharing = _first(ours, Sharing, None)
        entered = self._entered(places, values, args, kwargs, sharing)
        # copies: a backward pass that comes to one would not see what the caller changes
        made = containers_given(entered.args, entered.kwargs)
        self._state.backward.given = frozenset(map(id, made))
        self._state.graph.on_miss = self._run_beside
        # The order matters. `_with_sharing` reads what `entered` notes when it ends, so it lies
        # around it. `_restarts` lies inside of all, so that a restart puts everything back.
        with (
            going(side.way, self._last_way),
            self.attributes.shown(
                attributes, tensors, self._state.graph.code.may_have, self._again
            ),
            self._with_sharing(places, entered, sharing),
            entered,
            LeafGradients(entry.given, tensors) as gradients,
            refuse_strangers(self._state.graph),
        ):
            with self._restarts(numbers), same_modes():
                result = watched(self.f, *entered.args, **entered.kwargs)
            self._last_way = way_so_far()
            if gradients.asked:
                self.asked += gradients.asked
                raise self._again()
            changed = gradients.changed
            refuse_lost(tensors.values(), "a tensor that it is given", self._state)
        self._state.left = list(zip(places, entered.left, strict=True))
        # a sequence grows item by item, so that none of them may be unknown
        if entered.skipped:
            self.values.places += entered.skipped
            raise self._again()
        return self._with_left(result, places, entered, checks, (gradients, changed))

    def _run_beside(self) -> NoReturn:
        """Let this call run in eager mode. A function behind a cache has no result there yet. It
        may have effects, which are not those of each call. The next call finds the result."""
        raise BesideEager(self._turns)

    def _with_left(
        self,
        result: object,
        places: Sequence[Place],
        entered: Entered,
        checks: ResultChecks,
        gradients: tuple[LeafGradients, Sequence[tuple[object, object]]],
    ) -> object:
        """Return what the graph returns: ``result``, ``gradients``, and what the program leaves."""
        if self._state.seen.has_missed:  # and the program has caught that
            self._run_beside()
        self._state.refuse_returned_cycle(result)
        made, orders = self._made(entered)
        # `_made` has put back what a call assigns. No call would repeat what is still changed with
        # an argument's container inside, of which this run had a copy.
        self._state.refuse_kept(entered.given.containers)
        orders |= entered.orders  # which knows what the run has left at places
        left = [*entered.left, *(change.now for change in made)]
        targets = [*places, *map(place_of, made)]
        values = without_repetition(left)
        self._state.refuse_shared([place.what for place in targets], values, entered.has)
        found, given = entered.found, entered.given
        trees = (result, left, [*found.changed.values()], [*given.changed.values()])
        opened.fix_keys(trees)
        results, marked = mark(trees, found, given, self._state.graph.has)
        returned, at_targets, in_found, in_given = results
        checks.refuse_made(targets, at_targets)
        checks.refuse_put([*in_found, *in_given])
        checks.refuse_returned(returned)
        refuse_lost(opened.flatten(results)[0], "what it returns or leaves", self._state)
        # Names of places where the next call finds another value. One whose value is an argument
        # counts only if its container has grown or shrunk: the argument is then of another kind.
        names = [change.what for change in made]
        # not strict: `left` goes on with what is made, at places that are no arguments
        entries = list(zip(places, entered.values, left, strict=False))
        names += [place.what for place, was, now in entries if _grows(was, now)]
        # what is only read is not assigned: another thread may have put something else there
        same = {index for index, (_, was, now) in enumerate(entries) if was is now}
        puts = [(index, place) for index, place in enumerate(targets) if index not in same]
        puts.sort(key=_in_order)
        carried = chain.from_iterable(entered.originals)
        self._beside = Beside(
            carried=frozenset(place.key for place in places),
            containers=frozenset(map(id, carried)),
            left=names,
        )
        ordered = [order for order in orders.values() if order.labels]
        containers = ContainerChanges(places, [*found.changed], [*given.changed], marked)
        return self._outcome(results, puts, ordered, containers, *gradients)

    def _entered(
        self,
        places: Sequence[Place],
        copies: Sequence[object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        sharing: Sharing | None,
    ) -> Entered:
        """Return what a run is given. ``copies``, ``args``, ``kwargs``: as the inputs of the graph
        make it. ``sharing``: which containers of the call are one."""
        given = _GIVEN.containers or ()
        shared: set[int] = set()
        if sharing is not None:
            found = containers_at(place.current() for place in places)
            shared = self.shared.identities(places, found, given)
        return Entered(places, copies, args, kwargs, given, shared, self._state.graph)

    @contextmanager
    def _with_sharing(
        self, places: Sequence[Place], entered: Entered, sharing: Sharing | None
    ) -> Iterator[None]:
        """Run the program, also if it fails, once more where it finds a container in several ways.
        Such calls have a kind of their own, and the run finds the container itself. ``sharing``:
        the kind of this one."""
        try:
            yield
        except Exception:
            self._learn_sharing(places, entered, sharing)
            raise
        self._learn_sharing(places, entered, sharing)

    def _learn_sharing(
        self, places: Sequence[Place], entered: Entered, sharing: Sharing | None
    ) -> None:
        """Learn the containers of the state. Begin once more if the call is of another kind than
        ``sharing``, by what the run has come to."""
        found, given = entered.originals
        if not found and not given:
            return
        refuse_dictionaries(given, self._state)
        self.shared.learn(self._state.holders(is_made), set(self._state.graph.weak))
        owners = [change.node.owner for change in self._state.changes()]
        owners += [place.node.owner for place in places]
        changes = bool(entered.found.changed or entered.given.changed)
        changes |= any(map(is_made, (*owners, *entered.values)))
        now = self.shared.of(places, found, given, self._state.values_before())
        self.shared.matters |= changes or bool(now)
        known = [] if sharing is None else [sharing]
        if now == known:
            self._runs_for_sharing = 0
            return
        self._runs_for_sharing += 1
        if self._runs_for_sharing > _RUNS_FOR_SHARING:
            raise RuntimeError(
                "which containers of the program's are one changes from run to run of its capture. "
                "Let other threads wait for it."
            )
        raise self._again()

    @contextmanager
    def _restarts(self, numbers: Numbers) -> Iterator[None]:
        """Run the program once more where it fails on a number that is an argument, also if it
        catches the error."""
        try:
            yield
        except AskedForNumber as error:
            self._fix_number(numbers, error)
            raise
        except Exception:
            self._try_constants()
            raise
        caught = first_error()
        if isinstance(caught, AskedForNumber):
            self._fix_number(numbers, caught)
        elif caught is not None:
            self._try_constants()

    def _fix_number(self, numbers: Numbers, error: AskedForNumber) -> None:
        """Begin once more, with a number that the program asks for as a constant, if it is of
        Python's state."""
        if self.values.fix(numbers.places_of(error)):
            raise self._again() from error

    def _try_constants(self) -> None:
        """Begin once more with numbers of Python's state as constants: a run has failed, perhaps
        since they are arguments."""
        if self.values.tries_constants:
            self.values.resume()
        elif self.values.set_aside():
            raise self._again()

    def _made(self, entered: Entered) -> tuple[list[Change], dict[int, Order]]:
        """Return what the program leaves at places that are no arguments: what the graph computes,
        and containers that a call makes anew. And in which order, see :meth:`.ProgramState.orders`.
        """
        try:
            changes = self._state.changes()
            if changes_beside_cache(changes):
                self._run_beside()
            made = self._state.results(changes)
        except RuntimeError:
            self._try_constants()
            raise
        self._changes = bool(changes)
        self._assigns = self._assigns or self._changes
        anew = self._state.made_anew(changes, entered.has)
        made += [change for change in anew if change not in made]
        if self.values.take(made):
            raise self._again()
        # the orders are read while the values are there, which are then put back
        orders = self._state.orders(made)
        self._state.put_back(made)
        return made, orders

    def _outcome(
        self,
        result: tuple[object, list[object], list[object], list[object]],
        puts: Sequence[tuple[int, Place]],
        orders: Sequence[Order],
        containers: ContainerChanges,
        gradients: LeafGradients,
        changed: Sequence[tuple[object, object]],
    ) -> object:
        """Return what the graph returns. ``result``: what the program returns, what it leaves at
        places, and in containers. The others: see :class:`.Destinations`."""
        flat, spec = opened.flatten(result)
        refuse_retained(flat)
        effects = (changed, result[1], containers.given, containers.marked, gradients.has_effects)
        # without effects the graph returns the result alone, and a call has nothing to carry out
        if not any(effects):
            self._beside = Beside(
                without_hooks(_tensors(gradients.differentiated)),
                partial(
                    self._begin,
                    self._numbers(gradients.differentiated),
                    gradients.differentiated_at,
                ),
            )
            return result[0]
        self._assigns = True
        # The program has freed their histories. `Outcome.carry_out` gives them one that raises.
        spent = [index for index, leaf in enumerate(flat) if gradients.is_spent(leaf)]
        for index in spent:
            flat[index] = flat[index].detach()
        if spent:
            result = opened.unflatten(flat, spec)
        leaves = [leaf for leaf, _ in changed]
        values = [gradient for _, gradient in changed]
        refuse_histories(values)
        self._note_gradients(gradients, leaves)
        destinations = Destinations(leaves, gradients.frozen, spent, puts, orders, containers)
        return Outcome(result, values, destinations)

    def _begin(
        self, differentiated: Sequence[int], differentiated_at: str, joint: Joint
    ) -> Callable[[Call], Sequence[str]] | None:
        """Return what a call does before the graph of a program that leaves no gradients and
        returns no value of a place. It may assign objects, or write to tensors of Python's state,
        such as a buffer: of two such calls at once one would write what the other has not seen."""
        # tensors that the program closes over are the last inputs
        n_arguments = len(joint.boundary.inputs) - len(joint.closed_over)
        writes = any(record.written for record in joint.boundary.inputs[n_arguments:])
        self._assigns = self._assigns or writes
        alone = self._require_alone if self._changes or writes else None
        beginning = Beginning(
            (), (), differentiated, self.donates, alone, differentiated_at=differentiated_at
        )
        return beginning.of(joint)

    def _note_gradients(self, gradients: LeafGradients, leaves: Sequence[object]) -> None:
        """Note what a call asks and does of gradients before its graph runs. ``leaves``: those that
        get another gradient."""
        added = _tensors(gradients.added)
        differentiated = _tensors(gradients.differentiated)
        self._beside = replace(
            self._beside,
            reads=without_hooks([*added, *differentiated]),
            begin=Beginning(
                _tensors(leaves),
                self._numbers(gradients.added),
                self._numbers(gradients.differentiated),
                self.donates,
                self._require_alone,
                gradients.added_at,
                gradients.differentiated_at,
            ).of,
        )

    def _numbers(self, leaves: Sequence[object]) -> list[int]:
        """Return the numbers of the leaves that are arguments, among all of the call."""
        keys = (leaf for leaf in leaves if not isinstance(leaf, torch.Tensor))
        return [self._offset + key if isinstance(key, int) else self._inputs[key] for key in keys]


def _tensors(leaves: Sequence[object]) -> list[torch.Tensor]:
    """Return the leaves that are tensors from outside."""
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _gradient_of(leaf: Any) -> Any:
    """Return the gradient that a leaf has now, None if the call has no tensor in its place."""
    if not isinstance(leaf, torch.Tensor):  # this call has none there
        return None
    return leaf._grad if isinstance(leaf, Tensor) else leaf.grad


def _in_order(put: tuple[int, Place]) -> int:
    """Return the number of an item that is put into a sequence, which may grow by it. Anything else
    comes first."""
    label = put[1].label
    return label if type(label) is int else -1


def _grows(before: object, after: object) -> bool:
    """Return whether a container has more or fewer items after the program, so that the next call
    finds another kind of value."""
    return not isinstance(after, torch.Tensor) and (
        pytree.tree_structure(before) != pytree.tree_structure(after)
    )
