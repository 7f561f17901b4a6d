"""Run a program with writes and views without any write, at a functionalize level.

A :class:`FunctionalValue` is a view of a :class:`Store`, or the whole of it. The store has the
present value of one base. A write runs the functional form of the op, puts the result into the base
through the views between them, and increments the generation of the memory. Any other view notices
this when it is next read, and computes its value again. Example: after ``v = x[0]; v.mul_(2)`` the
base of ``x`` is ``select_scatter(x, 2 * x[0], 0, 0)``.

``b.detach()`` shares the memory of ``b`` but not its history. So it is a view of a second store of
the same :class:`Memory`. A write through one store changes the numbers of the other store, but not
its history at outer levels.
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
from ..seam.levels import Level
from ..seam.memory_gate import address_of
from ..seam.nested_views import view_of
from ..seam.shells import faithful_shell
from ..seam.surgery import GEOMETRY, change_geometry, refit
from ..seam.user_code import settled
from ..tape.inplace import METADATA
from ..torch_private.dispatcher import OpOverload
from ..torch_private.pytrees import pytree
from ..trace.provenance import here, user_line
from .functional_value import FunctionalValue, Place
from .memory_order import draws_in_turn, in_order_of_memory, laid_out_as
from .overlap import ViewCall, overlaps, refuse_gaps, same_start, same_strides, through_copy
from .pure_calls import is_pure
from .stores import (
    UNSAFE,
    Chain,
    Pieces,
    Replaced,
    Store,
    WriteWatch,
    agree,
    has_history,
    refuse_overlapping_piece,
    refuse_recorded_write,
    refuse_restrided,
    refuse_taken,
)
from .writes import (
    WrittenBack,
    copying_form,
    grow,
    number_of_own_results,
    pack_results,
    put_back,
    refuse_several_written,
    refuse_shared_by,
    refuse_unfit,
    run_on_copies,
    write_out,
)

aten = torch.ops.aten


class FunctionalLevel(Level):
    """One running functionalization. ``remove``: ``"mutations"`` or ``"mutations_and_views"``."""

    __slots__ = (
        "closed_over",
        "held",
        "mode",
        "overlapped",
        "overtaken",
        "releases",
        "replaced",
        "replaces",
        "turns",
        "views",
        "watches",
        "whole",
    )
    what = "functionalize"

    def __init__(self, remove: str = "mutations", whole: frozenset[object] = frozenset()) -> None:
        super().__init__()
        # composite ops, without writes or results that are views, which are not decomposed
        self.whole = whole
        # whether views are replaced by copies, too
        self.views = remove == "mutations_and_views"
        self.mode = LevelMode(self)
        # by id, the values of tensors from outside, and these tensors with their stores
        self.closed_over: dict[int, FunctionalValue] = {}
        self.held: list[tuple[torch.Tensor, Store]] = []
        self.releases = False  # whether `released` is called
        # whether values may be given other memory by `set_`, and by id those that were
        self.replaces = False
        self.replaced: dict[int, Replaced] = {}
        # by id of an argument's value, the calls that have changed its geometry in place
        self.turns: dict[int, list[Callable[[torch.Tensor], torch.Tensor]]] = {}
        # each is told of every write
        self.watches: list[WriteWatch] = []
        # values that a store took of another store of its memory, in place of its own
        self.overtaken: list[torch.Tensor] = []
        # whether a write went through a view that shows an element several times
        self.overlapped = False

    def wrap(self, inner: torch.Tensor, place: Place | None = None, /) -> FunctionalValue:
        """Return the value at ``place``. None: the base of a new store."""
        value: FunctionalValue = faithful_shell(FunctionalValue, inner)
        value._level = self
        value._inner = inner
        value._store, value._chain, value._unrecorded = place or Place(Store(inner))
        value._seen = value._store.memory.generation
        return value

    def valued(self, result: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return super().valued(result)
        value = self.wrap(result)
        value._store.memory.made_inside = True
        return value

    def present(self, store: Store) -> torch.Tensor:
        """Return the present value of ``store``. Writes through other stores of its memory change
        the value, and are not in its history."""
        memory = store.memory
        if memory.pieces or memory.part_of is not None:
            agree(memory, self)
        old = store.value
        if old is not None and store.seen == memory.generation:
            return old
        # a store with a history keeps that, and takes over the numbers alone
        value: torch.Tensor
        if old is None or not has_history(old):
            value = self._view_op(aten.detach.default)(memory.value)
        else:
            # the clone has the history, and a write to its detached alias changes its numbers
            with torch.enable_grad():
                value = old.clone()
            value.detach().copy_(memory.value.detach())
        if old is not None:
            self.overtaken.append(value)
        store.value = value
        store.seen = memory.generation
        return value

    def read(self, v: FunctionalValue) -> torch.Tensor:
        """Return the present value of ``v``."""
        memory = v._store.memory
        if memory.pieces or memory.part_of is not None:
            agree(memory, self)
        generation = memory.generation
        if v._seen != generation:
            value = self.present(v._store)
            refuse_restrided(memory, v._chain)
            # the result is stored, and the first read may come under no_grad
            with torch.set_grad_enabled(not v._unrecorded):
                value = self.viewed(value, v._chain)
            v._inner = value
            v._seen = generation
        return v._inner

    def write(self, value: FunctionalValue, new: torch.Tensor, counted: bool = True) -> None:
        """Make ``new`` the value of ``value``, and put it into the base of ``value``. ``counted``:
        whether the write increments the version."""
        # a kernel converts what it writes, and a functional form returns what it has computed
        if new.dtype is not value.dtype:
            new = new.to(value.dtype)
        if new.shape != value.shape:
            raise settled(
                RuntimeError(
                    f"output with shape {list(value.shape)} doesn't match the broadcast "
                    f"shape {list(new.shape)}"
                )
            )
        refuse_restrided(value._store.memory, value._chain)
        self._replace(value, self.put_back(value._chain, self.present(value._store), new), counted)

    def _replace(self, value: FunctionalValue, new: torch.Tensor, counted: bool) -> None:
        """Make ``new`` the value of the base of ``value``."""
        store = value._store
        refuse_taken(store.memory)
        refuse_overlapping_piece(store.memory)
        old = self.present(store)
        recorded = torch.is_grad_enabled()
        if value._unrecorded and recorded:
            refuse_recorded_write(old, new)
        if not recorded and has_history(old):  # only the numbers change, not the history
            with torch.enable_grad():
                copied = old.clone()
            new = copied.copy_(new)
        # the functional op may lay its result out otherwise; as_strided refuses such a memory
        memory = store.memory
        memory.restrided = memory.restrided or not same_strides(old, new)
        memory.moved = memory.moved or not same_start(old, new)
        # views are taken anew when somebody reads them, as their generation is an old one
        store.value = new
        store.recorded = store.recorded or recorded
        store.count(counted)
        store.memory.value = new
        store.memory.written_at = user_line()
        store.memory.generation += 1
        store.seen = store.memory.generation
        for watch in self.watches:
            watch.note(store.memory)

    def viewed(self, base: torch.Tensor, chain: Chain) -> torch.Tensor:
        """Return the view of ``base`` to which ``chain`` leads."""
        for func, rest, kwargs, which in chain:
            out = view_of(self._view_op(func), base, rest, kwargs)
            base = out if which is None else out[which]
        return base

    def put_back(self, chain: Chain, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """Return ``old`` with ``new`` in the place that ``chain`` shows."""
        refuse_gaps(old, chain)
        if overlaps(old, chain):
            self.overlapped = True
            return through_copy(old, chain, lambda part, copy: part.copy_(new))
        # the view of each step, and then each put back into the one before, from the inside out
        bases = [old]
        for step in chain[:-1]:
            bases.append(self.viewed(bases[-1], (step,)))
        for (func, rest, kwargs, which), base in zip(
            reversed(chain), reversed(bases), strict=bool(chain)
        ):
            new = put_back(func, base, new, which, rest, kwargs, self.views)
        return laid_out_as(old, new)

    def overtakes(self, address: int) -> bool:
        """Return whether the program has written to the storage at ``address``."""
        return any(
            store.memory.generation and address_of(tensor) == address for tensor, store in self.held
        )

    def has_written(self, value: Any) -> bool:
        """Return whether the program has written to the memory of ``value``."""
        return bool(value._store.memory.generation)

    def settle(self, stores: Iterable[Store]) -> None:
        """Bring the memories of ``stores`` to what was written to pieces of them, when the
        program has returned."""
        for store in stores:
            agree(store.memory, self)

    def written_back(
        self, store: Store, turns: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()
    ) -> WrittenBack:
        """Return what the program has written to ``store``. ``turns``: the calls that have changed
        its geometry."""
        value = self.present(store) if store.memory.generation else None
        return WrittenBack(value, store.recorded, store.counter[0] > len(turns), turns)

    def released(self, value: FunctionalValue) -> FunctionalValue:
        """Return what a Function returns after it wrote to ``value`` without grad mode: ``value``,
        or an alias if ``value`` requires grad outside."""
        result = self.wrap(self.read(value), Place(value._store, value._chain, value._unrecorded))
        result.released_from = value
        return result

    def own(self, tensor: torch.Tensor) -> FunctionalValue:
        """Return ``tensor`` as a value of this level. For a closed-over tensor always the same
        value: later reads see writes to it, and they are carried out at the end."""
        if isinstance(tensor, FunctionalValue) and tensor._level is self:
            return tensor
        value = self.closed_over.get(id(tensor))
        if value is None:
            value = self.closed_over[id(tensor)] = self.wrap(tensor)
            # also so that nothing else gets the id while the level lives
            self.held.append((tensor, value._store))
        return value

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

    def lowered(self, argument: Any) -> Any:
        """Return the present value of ``argument`` if it is a value of this level, or a closed-over
        tensor that the program has viewed or written to. Else ``argument``."""
        if isinstance(argument, torch.Tensor):
            if isinstance(argument, FunctionalValue) and argument._level is self:
                return self.read(argument)
            value = self.closed_over.get(id(argument))
            # a tensor from outside that nobody has written to is its own value
            if value is not None:
                return self.read(value)
        return argument

    def lowered_args(self, args: Iterable[Any]) -> list[Any]:
        """Return the arguments of a call, and the elements of lists among them, each
        :meth:`lowered`."""
        return [
            list(map(self.lowered, argument))
            if isinstance(argument, (list, tuple))
            else self.lowered(argument)
            for argument in args
        ]

    def _view_op(self, func: Kernel) -> Any:
        """Return ``func``, a view op, or its copying form if views are to be removed."""
        if self.views:
            return copying_form(func)
        return func

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
        out = self._view_op(op.func)(self.read(source), *rest, **kwargs)
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
        # the kernel visits elements in an order that shows in the result
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

    def write_each(self, target: Any, new: Any, counted: bool = True) -> None:
        """Make ``new`` the value of ``target``, or of each in a list. Nothing is written to an
        optional argument that is None. ``counted``: see :meth:`write`."""
        if isinstance(target, (list, tuple)):
            for part, value in zip(target, new, strict=True):
                self.write_each(part, value, counted)
        elif target is not None:
            self.write(self.own(target), new, counted)

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
