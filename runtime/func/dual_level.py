"""Compute a tangent for each primal, as forward mode needs it. ``jvp``, ``jacfwd`` and
``linearize`` run a function at a :class:`DualLevel`.

At ``x = 3`` with the tangent 1, ``x * x`` is a value with the primal 9 and the tangent 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..errors import InplaceError, MissingRule, refuse_data_write
from ..rules.ops import DIFFERENTIABLE, INPLACE, OUT, VIEW, Op, decomposition_of, op_of, written_out
from ..rules.tensors import foreach
from ..seam.call_types import Arguments
from ..seam.containers import rewrapped
from ..seam.keys import uncounted
from ..seam.levels import Level, Value
from ..seam.literals import READ_OF_NUMBER, refuse_taken_number
from ..seam.scope import is_floating
from ..seam.shells import same_shape
from ..seam.surgery import GEOMETRY, change_geometry, detach_inner
from ..tape.inplace import METADATA, follow_inner
from ..tape.lift import lift_in_place
from ..tape.metas import refuse_nested
from ..tape.running import computes_tangents
from ..tape.view_history import STALE, WRITTEN, View, aliases, refuse_rebase
from ..torch_private.dispatcher import OpOverload
from .tangent_rules import fit, tangent_rule

_AS_STRIDED = torch.ops.aten.as_strided.default


class DualValue(Value):
    """A primal (``_inner``) and its tangent (``_tangent``): a tensor of the outer levels,
    or None for zero."""

    _tangent: torch.Tensor | None = None
    _generation: int = 0
    # the generation of its last ``detach_``; a view of an earlier generation has lost its tangent
    _detached: int = 0

    def tolist(self) -> Any:
        """Return the numbers of the primal."""
        return self._inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Return the primal as an array, which has no tangent."""
        return self._inner.numpy(force=force)

    @property
    def data(self) -> Any:
        """Return the primal as a value without a tangent."""
        return self._level.wrap(self._inner.data)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        refuse_data_write()

    def _text(self) -> str:
        return (
            f"DualValue(level={self._level.number}, primal={self._inner!r}, "
            f"tangent={self._tangent!r})"
        )


def tangent_of(value: Any) -> torch.Tensor | None:
    """Return the tangent of a dual value, None for zero.

    A view takes its tangent from its base again if the tangent of the base has changed.
    """
    view = value._view
    if view is not None and view.generation != view.base._generation:
        if view.creation == "function":
            refuse_rebase(value, STALE)
        if view.generation < view.base._detached:
            raise RuntimeError(
                "the base of this view was both modified inplace and detached inplace (detach_), "
                "and the tangent of the view is lost. Use detach() instead of detach_(), "
                "or take the view again"
            )
        # take the view of the base's new tangent, by the steps that made the view
        view.generation = view.base._generation
        base = view.base._tangent
        shown: torch.Tensor | None = None
        if base is not None:
            with torch.enable_grad():  # whoever asks first, under no_grad perhaps
                shown = view.replay(view.laid_out(base), value)
        value._tangent = shown
    tangent: torch.Tensor | None = value._tangent
    return tangent


class DualLevel(Level):
    """One forward-mode pass."""

    __slots__ = ()
    what = "jvp or jacfwd"
    keeps_history = shows_strides = True

    def wrap(self, inner: torch.Tensor, tangent: torch.Tensor | None = None, /) -> DualValue:
        """Return ``inner`` as a value with this tangent. None: zero."""
        value: DualValue = same_shape(DualValue, inner)
        value._level = self
        value._tangent = tangent
        return value

    def is_constant(self, value: Value) -> bool:
        """Return whether ``value`` has no tangent."""
        return tangent_of(value) is None

    def call(self, func: OpOverload, args: Sequence[Any], kwargs: dict[str, object]) -> Any:
        """Run an op of the program on primals, and compute the tangents of its results."""
        try:
            op = op_of(func)
            if op.record is None and op.composite and op.kind is not INPLACE:
                return self.run_inside(func.decompose, args, kwargs)
            # a view has the tangent of its base
            if op.kind is not VIEW and not computes_tangents(self.number):
                return self._constant(op, args, kwargs)
            if op.kind is OUT:
                return self._out(op, args, kwargs)
            # formulas exist for positional arguments only
            if kwargs and self._any_dual(kwargs.values()):
                return self.run_inside(written_out(op, "jvp"), args, kwargs)
            if op.kind is INPLACE:
                return self._inplace(op, args, kwargs)
            primals, tangents, any_tangent = self._split(op, args)
            kwargs = self.lowered_kwargs(kwargs)
            # no argument has a tangent, or no result can have one
            if any_tangent and op.func is READ_OF_NUMBER:
                refuse_taken_number()
            if not any_tangent or len(op.nondiff) >= max(op.n_results, 1):
                return self._wrap(op, args, kwargs, op.run(primals, kwargs), None)
            return self._push(op, args, kwargs, primals, tangents)
        except RuntimeError as error:
            refuse_nested(args, error)
            raise

    def _push(
        self,
        op: Op,
        args: Sequence[object],
        kwargs: dict[str, object],
        primals: list[object],
        tangents: list[object],
    ) -> Any:
        """Run a call of arguments with tangents, and compute those of its results."""
        record = op.record
        if record is None or (record.jvp is None and record.vjp is None):
            decomposed = decomposition_of(op, "jvp")
            if decomposed is None:
                raise MissingRule(str(op.func), "jvp")
            return self.run_inside(decomposed, args, kwargs)
        result = op.run(primals, kwargs)
        of_results = tangent_rule(op)(op, primals, tangents, kwargs, result)
        is_argument = any(of_results is tangent for tangent in tangents if tangent is not None)
        if is_argument and op.kind is not VIEW:
            # the caller gets both tangents, and may write to one
            of_results = of_results.clone()
        return self._wrap(op, args, kwargs, result, of_results)

    def _constant(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> object:
        """Run a call while forward mode is off. Its results have no tangent. A tensor that it
        writes to keeps its old tangent."""
        if op.kind is INPLACE and op.base_name in GEOMETRY:
            return self._inplace(op, args, kwargs)
        result = op.func(*self.lowered_args(args), **self.lowered_kwargs(kwargs))
        if op.kind is OUT:
            return kwargs.get("out")
        if op.kind is not INPLACE:
            return self._wrap(op, args, kwargs, result, None)
        if op.n_results:
            return args[0]
        return None

    def _any_dual(self, args: Iterable[object]) -> bool:
        """Return whether an argument of this level has a tangent."""
        return any(
            isinstance(argument, Value)
            and argument._level is self
            and tangent_of(argument) is not None
            for argument in args
        )

    def _split(self, op: Op, args: Sequence[object]) -> tuple[list[Any], list[Any], bool]:
        """Return the primals of a call, their tangents, and whether there is any tangent."""
        primals = list(args)
        tangents: list[Any] = [None] * len(primals)
        any_tangent = False
        for index in op.tensor_args:
            if index >= len(primals):
                break
            argument = primals[index]
            if isinstance(argument, Value):
                if argument._level is self:
                    primals[index] = argument._inner
                    tangents[index] = tangent_of(argument)
                    any_tangent = any_tangent or tangents[index] is not None
            elif type(argument) is list or type(argument) is tuple:
                primals[index], tangents[index] = self._split_list(argument)
                any_tangent = any_tangent or tangents[index] is not None
        return primals, tangents, any_tangent

    def _split_list(self, items: Sequence[Any]) -> tuple[Sequence[object], list[object] | None]:
        """Return the primals of a list of tensors, and their tangents if one has any."""
        mine = [isinstance(item, Value) and item._level is self for item in items]
        if not any(mine):
            return items, None
        primals: list[Any] = []
        tangents: list[Any] = []
        for item, is_mine in zip(items, mine, strict=True):
            if is_mine:
                primals.append(item._inner)
                tangents.append(tangent_of(item))
            else:
                primals.append(item)
                tangents.append(None)
        if all(tangent is None for tangent in tangents):
            return primals, None
        return primals, tangents

    def _wrap(
        self,
        op: Op,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        result: object,
        tangents: Any,
    ) -> object:
        """Return the results with their tangents. A result of integer or Boolean dtype stays a
        tensor of the outer levels, unless it is a view."""
        view = op.kind is VIEW

        def wrap_one(tensor: torch.Tensor, number: int | None) -> torch.Tensor:
            """Return ``tensor``, the result of that number or the only one, with its tangent."""
            if not view and not is_floating(tensor):
                return tensor
            place = number or 0
            tangent = tangents[place] if isinstance(tangents, (tuple, list)) else tangents
            value = self.wrap(tensor, None if place in op.nondiff else fit(tangent, tensor))
            if view and not (number is None and op.nondiff):
                self._mark(value, op, args, kwargs, number)
            return value

        return rewrapped(result, wrap_one)

    def _mark(
        self,
        value: DualValue,
        op: Op,
        args: Sequence[object],
        kwargs: Mapping[str, object],
        which: int | None,
    ) -> None:
        """Note that ``value`` is a view of ``args[0]``, so that a write to either moves both
        tangents.

        ``which``: the number of the result, if the op returns several views.
        """
        source = args[0]
        if isinstance(source, Value) and source._level is self:
            step = ((op.func, tuple(args[1:]), kwargs, which),)
            earlier = source._view
            if earlier is None:
                value._view = View(source, step, "")
            else:
                # a view of a view: its base is that of the first, by one step more
                value._view = View(earlier.base, earlier.chain + step, earlier.creation)
            if op.func is _AS_STRIDED:
                _show_memory_of_base(value)

    def _inplace(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> Any:
        """Run an op that writes to its first argument, and give that value its new tangent."""
        target = args[0]
        if not isinstance(target, torch.Tensor):
            return foreach.run(op, args, kwargs)
        if not (isinstance(target, Value) and target._level is self):
            return self._write_to_foreign(op, args, kwargs)
        if op.base_name in GEOMETRY and op.functional is not None:
            return change_geometry(op.functional.func, target, args[1:], kwargs)
        primals, tangents, any_tangent = self._split(op, args)
        kwargs = self.lowered_kwargs(kwargs)
        # ops that change no numbers come first: history, then memory and shape
        value: DualValue = target  # type: ignore[assignment]
        if op.base_name == "detach_":
            return self._detach(value)
        if op.base_name in METADATA:
            return self._replace(op, value, primals, kwargs, any_tangent)
        if not any_tangent:
            _write(op, primals, kwargs)
            return target
        return self._write_tangent(op, value, primals, tangents, kwargs)

    def _write_tangent(
        self,
        op: Op,
        target: DualValue,
        primals: list[object],
        tangents: list[torch.Tensor | None],
        kwargs: dict[str, object],
    ) -> DualValue:
        """Run an in-place op of arguments with tangents."""
        functional = op.functional or op
        if functional.record is None:
            raise MissingRule(str(op.func), "jvp")
        if functional.nondiff:  # draws, comparisons: what is written has no tangent
            _write(op, primals, kwargs)
            self._set_tangent(target, None)
            return target
        # the rule needs the primals as they were, and the write changes those that share memory
        before = [
            primal.clone()
            if isinstance(primal, torch.Tensor) and aliases(primal, primals[0])
            else primal
            for primal in primals
        ]
        _write(op, primals, kwargs)
        inner = target._inner
        tangent = fit(tangent_rule(functional)(functional, before, tangents, kwargs, inner), inner)
        self._set_tangent(target, tangent)
        return target

    def _detach(self, value: DualValue) -> DualValue:
        """Remove the tangent of a value, as ``detach_`` does. A view is an error, as in torch."""
        if value._view is not None:
            raise RuntimeError(
                "Can't detach views in-place. Use detach() instead, which leaves the base as it is."
            )
        value._tangent = None
        value._detached = value._generation
        if isinstance(value._inner, Value):  # it loses its history at outer levels as well
            detach_inner(value)
        return value

    def _replace(
        self,
        op: Op,
        value: DualValue,
        primals: Sequence[object],
        kwargs: Mapping[str, object],
        any_tangent: bool,
    ) -> DualValue:
        """Run ``set_``, ``resize_`` or ``resize_as_``, which give a tensor other memory or another
        shape. A tangent is an error."""
        if any_tangent:
            raise InplaceError(f"{op.func} has no derivative; make a new tensor instead")
        op.func(*primals, **kwargs)
        follow_inner(value)
        return value

    def _write_to_foreign(self, op: Op, args: Arguments, kwargs: dict[str, object]) -> Any:
        """Write to a tensor that is no value of this level. If an argument has a tangent, the
        tensor first becomes a value in place."""
        primals, _, any_tangent = self._split(op, args)
        if any_tangent and args[0].dtype in DIFFERENTIABLE:
            return self._inplace(op, [lift_in_place(self, args[0], op.func), *args[1:]], kwargs)
        # the dispatcher counts the write on `args[0]`
        uncounted(op.func, *primals, **self.lowered_kwargs(kwargs))
        return args[0]

    def _set_tangent(self, value: DualValue, tensor: torch.Tensor | None) -> None:
        """Give a mutated value its new tangent. It is set out of place, because a rule may give the
        same tangent to several values.

        Example: ``grad`` of ``jvp`` of ``cosine_similarity``. ATen clamps the norms in place under
        ``no_grad``, and the gradient still goes through the norms. So under ``no_grad`` the new
        tangent is copied into a copy of the old one, which has the old history. A new object in its
        place would have none.
        """
        view = value._view
        base: Any = value
        if view is not None:
            if view.creation == "function":
                refuse_rebase(value, WRITTEN)
            base = view.base
        old = base._tangent
        if view is None and (old is None or torch.is_grad_enabled()):
            base._tangent = tensor
        elif old is None and tensor is None:
            return
        else:
            base._tangent = _tangent_after_write(value, base, tensor)
        base._generation += 1

    def _out(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Run an op with ``out=``. Raise if an argument has a tangent, as torch does."""
        _, _, any_tangent = self._split(op, args)
        if any_tangent or self._any_dual(kwargs.values()):
            raise RuntimeError(
                f"{op.base_name}(): functions with out=... "
                "arguments don't support automatic differentiation"
            )
        op.func(*self.lowered_args(args), **self.lowered_kwargs(kwargs))
        return kwargs.get("out")


def _tangent_after_write(value: DualValue, base: Any, tensor: torch.Tensor | None) -> torch.Tensor:
    """Return the tangent of ``base`` after a write to ``value``, a view of it or ``base`` itself:
    its old one, with ``tensor`` in place of the part that ``value`` shows. None: zeros."""
    view, old = value._view, base._tangent
    with torch.enable_grad():
        if tensor is None:
            tangent = old.clone()  # one of the two is a tensor
        else:
            # a method of the new tangent, so that the result is batched if that one is
            tangent = tensor.new_zeros(base.shape, dtype=base.dtype)
            if old is not None:
                tangent = tangent + old
        if view is not None:
            tangent = view.laid_out(tangent)
    part = tangent
    if view is not None:
        part = view.replay(tangent, value)
    if tensor is None:
        part.zero_()
    else:
        part.copy_(tensor)
    return tangent  # type: ignore[no-any-return]


def _show_memory_of_base(value: DualValue) -> None:
    """Take the tangent of a view by ``as_strided`` from the tangent of the base.

    ``as_strided`` reaches elements outside of the view that it is called on. Example:
    ``x.diagonal().as_strided((2,), (1,))`` is the start of the first row of ``x``.
    """
    view = value._view
    if view is None or view.reshaped != view.base._reshaped or view.base._tangent is None:
        return
    memory = view.laid_out(view.base._tangent)
    if memory is not view.base._tangent:
        value._tangent = view.replay(memory, value)


def _write(op: Op, primals: Sequence[object], kwargs: dict[str, object]) -> None:
    """Run the op on primals, of which the first is written to.

    The dispatcher counts the write on the value, and a plain tensor shares that counter. So the
    write to a plain tensor is not counted again. Any other inner tensor has its own counter.
    """
    if type(primals[0]) is torch.Tensor:
        uncounted(op.func, *primals, **kwargs)
    else:
        op.func(*primals, **kwargs)
