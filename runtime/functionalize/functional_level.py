"""Run a program with writes and views without any write, at a functionalize level.

Each kind of op has its way: a pure call runs on the present values, a view becomes one step of a
chain, and a write becomes a call of the functional form, whose result the store takes. See
``store_level.py`` for the values. Example: ``y = x.t(); y.add_(1); return x`` becomes
``x.t().add(1).t()``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ..errors import InplaceError
from ..rules.functional_forms import defaults_of, drops_nothing, functional_of
from ..rules.ops import INPLACE, OUT, VIEW, Op, op_of
from ..rules.record import HiddenWrites, overload, parameters
from ..rules.tensors import foreach
from ..seam.call_types import Arguments, Kernel
from ..seam.containers import rewrapped, tensors_of, written_arguments
from ..seam.level_mode import LevelMode
from ..seam.surgery import GEOMETRY, change_geometry, refit
from ..tape.inplace import METADATA
from ..torch_private.dispatcher import OpOverload
from ..torch_private.pytrees import pytree
from ..trace.provenance import here
from .functional_value import FunctionalValue, Place
from .memory_order import draws_in_turn, in_order_of_memory
from .overlap import ViewCall, overlaps, refuse_gaps, through_copy
from .pure_calls import is_pure
from .store_level import StoreLevel
from .stores import UNSAFE, Pieces, Replaced, Store, has_history, refuse_restrided
from .writes import (
    grow,
    number_of_own_results,
    pack_results,
    refuse_several_written,
    refuse_shared_by,
    refuse_unfit,
    run_on_copies,
    write_out,
)

aten = torch.ops.aten


class FunctionalLevel(StoreLevel):
    """One running functionalization. ``remove``: ``"mutations"`` or ``"mutations_and_views"``."""

    __slots__ = ("mode", "releases", "replaced", "replaces", "turns", "whole")
    what = "functionalize"

    def __init__(self, remove: str = "mutations", whole: frozenset[object] = frozenset()) -> None:
        super().__init__(views=remove == "mutations_and_views")
        # composite ops, without writes or results that are views, which are not decomposed
        self.whole = whole
        self.mode = LevelMode(self)
        self.releases = False  # whether `released` is called
        # whether values may be given other memory by `set_`, and by id those that were
        self.replaces = False
        self.replaced: dict[int, Replaced] = {}
        # by id of an argument's value, the calls that have changed its geometry in place
        self.turns: dict[int, list[Callable[[torch.Tensor], torch.Tensor]]] = {}

    def released(self, value: FunctionalValue) -> FunctionalValue:
        """Return what a Function returns after it wrote to ``value`` without grad mode: ``value``,
        or an alias if ``value`` requires grad outside."""
        result = self.wrap(self.read(value), Place(value._store, value._chain, value._unrecorded))
        result.released_from = value
        return result

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Run one call without a write. Results whose strides follow those of a copy are noted."""
        result = self._run_call(func, args, kwargs)
        # where views become copies, strides differ from those of the program
        if self.views:
            leaves = pytree.tree_leaves((list(args), kwargs))
            if any(map(self._has_strides_of_copy, leaves)):
                # a call that writes returns an argument, whose strides it has not changed
                arguments = set(map(id, leaves))
                self._note_copies(
                    leaf for leaf in pytree.tree_leaves(result) if id(leaf) not in arguments
                )
        return result

    def _note_copies(self, results: Iterable[object]) -> None:
        """Note that the strides of ``results`` follow those of copies."""
        for result in results:
            if isinstance(result, FunctionalValue) and not result._chain:
                result._store.memory.of_copies = True

    def _run_call(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> object:
        """Run a call in the way that its kind of op asks for. Most calls are pure, so these come
        first."""
        op = op_of(func)
        if is_pure(func):
            return self.valued(op.run(self.lowered_args(args), self.lowered_kwargs(kwargs)))
        # before the other composite ops, as it is one
        if func is aten.dropout.default and drops_nothing(*args, **kwargs):
            return args[0]  # as the kernel does; torch's decomposition in Python copies
        # its parts come here one by one
        if op.composite and func not in self.whole:
            with self.mode:
                return func.decompose(*args, **kwargs)
        if func is aten.lift_fresh.default:
            return self._valued_literal(*args)
        if op.kind is VIEW:
            return self._view(op, args, kwargs)
        if func in UNSAFE:
            return self._unsafe_view(func, args, kwargs)
        if op.kind is INPLACE or op.fills_argument:
            return self._mutate(op, args, kwargs)
        if op.kind is OUT:
            return write_out(self, op, args, kwargs)
        if op.record is not None and op.record.hidden_writes is not None:
            return self._hidden_writes(op, op.record.hidden_writes, args, kwargs)
        return self.valued(op.run(self.lowered_args(args), self.lowered_kwargs(kwargs)))

    def _valued_literal(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor``, a literal in the program, as a value of this level. It does not come
        from outside, and the program may write to it."""
        if isinstance(tensor, FunctionalValue) and tensor._level is self:
            return tensor
        value: torch.Tensor = self.valued(aten.lift_fresh.default(tensor))
        return value

    def _view(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> Any:
        """Run a view op. Its results are values of the store of the argument, one step further."""
        source = self.own(args[0])
        rest = tuple(args[1:])
        refuse_restrided(source._store.memory, (ViewCall(op.func, rest, kwargs, None),))
        if op.func is aten.as_strided.default and self._has_strides_of_copy(source):
            raise InplaceError(
                "as_strided of a view, or of what was computed of one: "
                'functionalize(remove="mutations_and_views") has copies for views, whose strides '
                'are others. Take as_strided of an argument, or let remove="mutations" keep '
                f"the views.{here()}"
            )
        out = self.view_op(op.func)(self.read(source), *rest, **kwargs)
        # the same memory without the history, so a store of its own
        if op.func is aten.detach.default:
            return self.wrap(out, Place(Store(None, source._store), source._chain))
        store, chain = source._store, source._chain
        unrecorded = source._unrecorded or not torch.is_grad_enabled()

        def wrap_view(view: torch.Tensor, which: int | None) -> FunctionalValue:
            step = ViewCall(op.func, rest, kwargs, which)
            return self.wrap(view, Place(store, (*chain, step), unrecorded))

        return rewrapped(out, wrap_view)

    def _has_strides_of_copy(self, value: FunctionalValue) -> bool:
        """Return whether the strides of ``value`` may come of a copy that stands for a view, and
        are not those that the program means."""
        if not self.views or not isinstance(value, FunctionalValue) or value._level is not self:
            return False
        store = value._store
        shared = store.value is not store.memory.value  # as that of detach()
        return bool(value._chain) or shared or store.memory.of_copies

    def _unsafe_view(
        self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, object]
    ) -> object:
        """Return the results of ``unsafe_split``, or the one of ``_unsafe_view``, which ATen's own
        kernels take. They share memory with the argument, but a write to one is not in the history
        of the other."""
        source = self.own(args[0])
        out = rewrapped(
            func(self.read(source), *args[1:], **kwargs), lambda tensor, _: self.wrap(tensor)
        )
        values: Any = [out] if isinstance(out, torch.Tensor) else out
        chain = (*source._chain, ViewCall(UNSAFE[func], tuple(args[1:]), kwargs, None))
        Pieces(source._store, chain, [value._store.memory for value in values], values is out)
        return out

    def _mutate(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> Any:
        """Run an op that writes to arguments. Return what it returns: the written arguments, or
        results of its own."""
        name, first = op.base_name, args[0]
        # the op that returns its result takes its arguments in another order
        if op.func is aten.polygamma_.default:
            with self.mode:
                return first.copy_(aten.polygamma.default(args[1], first))
        if name in GEOMETRY and op.functional is not None:
            return self._geometry(op, args, kwargs)
        if name in METADATA:
            return self._change_memory(op, args)
        # a later write of the list reads what an earlier one has written
        if name.startswith("_foreach_") and self._meet(first, args[1:]):
            with self.mode:
                return foreach.run(op, args, kwargs)
        # two cases in which the kernel's order of elements shows in the result: elements that share
        # a place, and draws
        if isinstance(first, FunctionalValue):
            if op.kind is INPLACE and overlaps(self.present(first._store), first._chain):
                self.overlapped = True
                refuse_several_written(op)
                return self._write_in_place(op.func, first, args, kwargs)
            if draws_in_turn(op.func, self.read(first)):
                return self._write_in_place(op.func, first, args, kwargs)
        return self._write_results(op, args, kwargs)

    def _change_memory(self, op: Op, args: Sequence[Any]) -> object:
        """Run an op of ``METADATA``, which writes no element. Raise where functionalize cannot
        follow the change."""
        target = args[0]
        if op.base_name == "detach_":
            return self._detach(self.own(target))
        if op.base_name in ("resize_", "resize_as_"):
            shape = tuple(getattr(args[1], "shape", args[1]))
            if tuple(target.shape) == shape:
                return target
            # of an empty tensor, as an out= that is made for its op is one
            if grow(self, target, self.lowered(target).new_empty(shape)):
                return target
        if op.func is aten.set_.source_Tensor and self.replaces:
            return self._set(*args)
        raise InplaceError(
            f"{op.func} changes the storage or geometry of a tensor, "
            f"which functionalize cannot follow; make a new tensor.{here()}"
        )

    def _write_results(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> object:
        """Compute without a write what ``op`` writes, and put it into the stores of its targets."""
        places = written_arguments(op.func._schema)
        targets = [args[at] if at < len(args) else kwargs[name] for at, name in places]
        self._refuse_shared(op, args, kwargs, targets)
        functional = functional_of(op.func)
        if functional is None:
            own, written = run_on_copies(self, op, args, kwargs, targets)
        else:
            own, written = self._run_functional(op, functional, args, kwargs)
            refuse_unfit(op.func, args, kwargs, targets, written)
        for target, result in zip(targets, written, strict=True):
            self.write_each(target, result)
        return pack_results(self.valued(own) if own else targets[: len(op.func._schema.returns)])

    def _refuse_shared(
        self, op: Op, args: Arguments, kwargs: dict[str, object], targets: Sequence[Any]
    ) -> None:
        """Raise the kernel's error if the first argument shares memory with another one, and
        ``op`` may not write to it then."""
        first = args[0]
        if not isinstance(first, FunctionalValue):
            return
        others = [
            argument._store.memory for argument in args[1:] if isinstance(argument, FunctionalValue)
        ]
        # the question runs the kernel on zeros, which few calls need
        if first._store.memory in others:
            refuse_shared_by(self, op.func, args, kwargs, targets)

    def _run_functional(
        self, op: Op, functional: Any, args: Arguments, kwargs: dict[str, object]
    ) -> tuple[list[object], list[object]]:
        """Run the functional form of ``op``. Return the results that ``op`` has too, and those that
        it writes to arguments."""
        run = in_order_of_memory(functional)
        results = run(
            *self.lowered_args(args),
            **defaults_of(op, functional, args),
            **self.lowered_kwargs(kwargs),
        )
        results = list(results) if isinstance(results, tuple) else [results]
        n_own = number_of_own_results(op)
        return results[:n_own], results[n_own:]

    def _write_in_place(
        self, func: Kernel, target: FunctionalValue, args: Arguments, kwargs: dict[str, object]
    ) -> object:
        """Write to a value that shows an element of its base several times. What the kernel reads
        of the same memory changes while it writes."""
        given, options = self.lowered_args(args), self.lowered_kwargs(kwargs)
        refuse_gaps(self.present(target._store), target._chain)

        def write(part: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
            """Call ``func`` with views of ``copy`` for all arguments in the memory of the
            target."""

            def read(argument: Any, plain: Any) -> Any:
                """Return what ``func`` takes for ``argument``, whose value is ``plain``."""
                if argument is target:
                    return part
                if not isinstance(argument, FunctionalValue):
                    return plain
                if argument._store.memory is not target._store.memory:
                    return plain
                if argument._store is target._store:
                    return self.viewed(copy, argument._chain)
                # another store of the memory: its own history, or none
                if has_history(plain):
                    return plain
                return self.viewed(copy.detach(), argument._chain)

            written: torch.Tensor = func(*map(read, args, given), **options)
            return written

        self._replace(target, through_copy(self.present(target._store), target._chain, write), True)
        return target

    def _meet(self, targets: Sequence[torch.Tensor], others: Iterable[object]) -> bool:
        """Return whether two of ``targets`` may share memory, or one with a tensor in a list of
        ``others``, or one shows an element several times, so that they must be written one after
        the other."""
        memories = {id(self.own(target)._store.memory) for target in targets}
        if len(memories) < len(targets):
            return True
        read = tensors_of(other for other in others if isinstance(other, (list, tuple)))
        if any(id(self.own(tensor)._store.memory) in memories for tensor in read):
            return True
        return any(
            overlaps(self.present(value._store), value._chain) for value in map(self.own, targets)
        )

    def _detach(self, value: FunctionalValue) -> FunctionalValue:
        """Run ``detach_``. Raise for a view, which takes its history from its base."""
        if value._chain:
            raise RuntimeError(
                "Can't detach views in-place. Use detach() instead, which leaves the base as it is."
            )
        # the same memory, and a store without the history
        value._inner = self.read(value).detach()
        value._store = Store(value._inner, value._store)
        return value

    def _set(self, target: FunctionalValue, source: torch.Tensor) -> object:
        """Run ``target.set_(source)``: ``target`` shares the memory of ``source``, and has a
        version of its own."""
        target, source = self.own(target), self.own(source)
        if target.dtype is not source.dtype:
            raise RuntimeError(
                f"Could not set tensor of type {source.dtype} to a tensor of type {target.dtype}"
            )
        # only the first time: its first place is what the end of the program compares
        replaced = self.replaced.setdefault(
            id(target), Replaced(target, target._store, target._chain)
        )
        store = replaced.by(
            source._store, self.present(source._store), target._store.counter[0] + 1
        )
        fresh = self.wrap(self.read(source), Place(store, source._chain, source._unrecorded))
        refit(target, fresh)
        target._inner, target._store, target._chain = fresh._inner, store, fresh._chain
        target._seen, target._unrecorded = fresh._seen, fresh._unrecorded
        return target

    def _geometry(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> object:
        """Run ``t_`` and its like, which write no element, by the view op. A tensor from outside
        would have to be turned when the program returns, which only arguments are."""
        functional: Any = op.functional
        target, *rest = args
        if not (isinstance(target, FunctionalValue) and target._level is self):
            raise InplaceError(
                f"{op.func} changes the geometry of a tensor that the program closes over; "
                "use the out-of-place op"
            )
        target.count_write()  # the dispatcher counts it for the value, which has no version
        if id(target) in self.turns:
            self.turns[id(target)].append(lambda tensor: op.func(tensor, *rest, **kwargs))
        return change_geometry(functional.func, target, rest, kwargs)

    def _hidden_writes(
        self,
        op: Op,
        hidden: HiddenWrites,
        args: Arguments,
        kwargs: dict[str, object],
    ) -> object:
        """Run an op that may write to arguments although its schema does not say so."""
        plain, named = self.lowered_args(args), self.lowered_kwargs(kwargs)
        if not hidden.when(
            *(op.argument(op.positions[name], args, kwargs) for name in parameters(hidden.when))
        ):
            return self.valued(op.func(*plain, **named))
        results = overload(hidden.functional)(*plain, **named)
        for name, new in zip(hidden.arguments, results[op.n_results :], strict=True):
            # the schema does not show this write, so the dispatcher would not count it
            self.write_each(op.argument(op.positions[name], args, kwargs), new, counted=False)
        return self.valued(tuple(results[: op.n_results]))
