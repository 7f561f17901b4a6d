"""Run calls eagerly too, and compare: ``jit(f, check=n)``, for debugging.

    step = jit(step, check=10)          # each tenth call is also run eagerly

The eager run comes first, on the objects themselves. What it changes is noted and put back: the
elements of tensors, gradients, the state of optimizers, objects of Python's, random generators.
Then the program runs, and must return the same and leave the same behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from ..aot.calls.graph_writes import FailedGraph
from ..aot.python_state.closed_over import modules_of
from ..aot.python_state.declared import Holdings
from ..aot.python_state.entry_hook import Seen, is_kept, watching
from ..aot.python_state.object_graph import ObjectGraph
from ..aot.python_state.object_kinds import Registry
from ..seam.generator_states import GeneratorStates
from ..seam.locks import lock_of
from ..seam.scope import SCOPE
from ..seam.transforms_of_torch import transform_of_torch
from ..seam.user_code import watched
from ..tape.running import current_dual
from ..torch_private.mode_stacks import number_of_dispatch_modes
from .compared import Frozen, TensorCopy, differences, freeze
from .outside_calls import Noted, WithCalls, place_of
from .turns import without_captures

_NAMED = 4  # differences that an error names


class CheckedCalls:
    """Calls of ``run``, of which each whose number ``every`` divides is compared with one of ``f``.

    ``name``: of the function, for errors. ``ignore``: objects that are not compared.
    ``RuntimeError`` for a difference, and for what cannot be run twice."""

    def __init__(
        self,
        function: Callable[..., Any],
        run: Callable[..., Any],
        every: int,
        name: str,
        ignore: Iterable[Any],
    ) -> None:
        self._f = function
        self._run = run
        self._every = every
        self._name = name
        self._ignore = ignore
        self._calls = 0
        # a call of the same thread inside an eager run may count, too
        self._lock = lock_of(self, "_lock", threading.RLock)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run a call, and one whose number ``every`` divides also in eager mode."""
        # a transform or a program around would have both runs in its own graph
        if _is_inner_call():
            return self._run(*args, **kwargs)
        with self._lock:
            self._calls += 1
            if self._calls % self._every:
                return self._run(*args, **kwargs)
            what = f"check={self._every}: call {self._calls} of {self._name}"
            check = _Check(what, self._ignore)
            check.run_eagerly(self._f, args, kwargs)
            return check.compare(self._run, args, kwargs)


def _is_inner_call() -> bool:
    """Return whether a transform or another program makes this call."""
    if SCOPE.levels or number_of_dispatch_modes() or transform_of_torch():
        return True
    return current_dual() is not None


class _Snapshot(ObjectGraph):
    """A graph of objects with copies of the tensors in it, made when it comes to them.
    ``generators_before``: the states of generators."""

    def __init__(self, roots: Iterable[object]) -> None:
        self.copies: list[TensorCopy] = []
        self.generators_before: list[tuple[torch.Generator, torch.Tensor]] = []
        super().__init__(roots)

    def _reach(self, value: Any, name: str) -> None:
        """Copy the tensors, and note the states of generators, that the eager run may change."""
        if id(value) not in self._reached:
            if issubclass(type(value), torch.Tensor):
                self.copies.append(TensorCopy(value, name))
            elif issubclass(type(value), torch.Generator):
                self.generators_before.append((value, value.get_state()))
            # whose groups and state a capture follows itself
            elif issubclass(type(value), Optimizer):
                self._pending += [
                    (vars(value)[part], f"{name}.{part}") for part in ("param_groups", "state")
                ]
        super()._reach(value, name)

    def outcome(self, ignored: Holdings) -> dict[Any, tuple[str, Frozen]]:
        """Return what differs from before now, by place, and what the tensors have."""
        found: dict[Any, tuple[str, Frozen]] = {}
        for change in self.changes():
            # an import that only one of the runs needs registers classes with abstract ones
            if isinstance(change.node, Registry) or ignored.has(change.node.owner):
                continue
            found[place_of(change)] = change.what, freeze(change.now, self.knows)
        for copy in (copy for copy in self.copies if not ignored.has(copy.tensor)):
            found[id(copy.tensor), TensorCopy] = copy.name, copy.outcome()
        return found

    def put_back(self) -> list[str]:
        """Put back what was there before. Return the names of what cannot be."""
        self.restore()
        for copy in self.copies:
            copy.restore()
        for generator, state in self.generators_before:
            generator.set_state(state)
        return [change.what for change in self.changes()]


class _Check:
    """One call that is run twice. ``what``: the call, for errors."""

    def __init__(self, what: str, ignore: Iterable[Any]) -> None:
        self.what = what
        self._ignore = list(ignore)
        self._result: Frozen = None
        self._error: Exception | None = None

    def run_eagerly(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Run ``function``, note what it returns and changes, and put that back."""
        states = GeneratorStates()
        roots = [function, *modules_of(function), *args, *kwargs.values()]
        # what is ignored is put back, too, and not compared
        self._graph = graph = _Snapshot(roots)
        seen = Seen()
        with Noted() as noted, without_captures():
            try:
                with watching(graph) as seen:
                    self._result = freeze(watched(function, *args, **kwargs), graph.knows)
            except Exception as error:
                self._error = error
        # before `put_back`, which takes away what the run has left
        self._calls = [(name, freeze(values, graph.knows)) for name, values in noted.calls]
        self._ignored = Holdings(self._ignore, (), graph)
        self._state = graph.outcome(self._ignored)
        lost = graph.put_back()
        states.restore()
        asked = [name for name in seen.asked if not is_kept(name)]
        if lost or asked:
            reasons = [f"changes {name}, which cannot be put back" for name in lost]
            reasons += [f"calls {name}" for name in asked]
            raise RuntimeError(
                f"{self.what} cannot be compared with eager mode, as the function would run twice: "
                f"it {' and '.join(reasons[:_NAMED])}. Leave check= out, or do that outside."
            ) from self._error

    def compare(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of ``run``. ``RuntimeError`` if it is not as that of the eager run."""
        try:
            result = run(*args, **kwargs)
        except FailedGraph:
            raise  # the call goes on in eager mode
        except Exception as error:
            if self._error is None:
                error.add_note(f"{self.what}: eager mode raises nothing.")
            raise
        if self._error is not None:
            raise RuntimeError(f"{self.what} raises nothing, and eager mode an error.") from (
                self._error
            )
        with_calls = type(result) is WithCalls
        found = [*differences("the result", self._result, self._frozen(result))]
        if with_calls:
            found += self._compare_calls(result)
        found += self._compare_state()
        if found:
            more = [f"{len(found) - _NAMED} more"] if len(found) > _NAMED else []
            raise RuntimeError(
                f"{self.what} differs from eager mode: {'; '.join([*found[:_NAMED], *more])}."
            )
        return result

    def _frozen(self, result: object) -> Frozen:
        returned = result.result if type(result) is WithCalls else result
        return freeze(returned, self._graph.knows)

    def _compare_calls(self, result: WithCalls) -> list[str]:
        """Say how the calls of functions outside differ: which there are, and their arguments."""
        ours = result.noted()
        if [name for name, _ in ours] != [name for name, _ in self._calls]:
            return ["other functions of jit.outside are called"]
        return [
            text
            for (name, x), (_, eager) in zip(ours, self._calls, strict=True)
            for text in differences(f"an argument of {name}", eager, freeze(x, self._graph.knows))
        ]

    def _compare_state(self) -> list[str]:
        """Say which places only one of both runs changes, and which have other values."""
        ours = self._graph.outcome(self._ignored)
        found = []
        for key in {**self._state, **ours}:
            name = (ours.get(key) or self._state[key])[0]
            if key not in ours or key not in self._state:
                who = "the program" if key in ours else "eager mode"
                found.append(f"only {who} changes {name}")
                continue
            found += differences(name, self._state[key][1], ours[key][1])
        return found
