"""Run the ops of a program on a whole batch, as ``vmap`` needs it.

A value of the level has the shape of one element. Its inner tensor has the batch in front: under a
``vmap`` of size 3, a value of shape (2,) holds a tensor of shape (3, 2).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ..errors import (
    OWN_ERRORS,
    BatchingError,
    MissingRule,
    called_from,
    refuse_data_write,
    users_frame,
)
from ..rules.derive.batch_rules import elementwise
from ..rules.ops import _OPS, INPLACE, OUT, VIEW, Op, decomposition_of, op_of
from ..rules.tensors import foreach
from ..rules.tensors.reading import CONTROL_FLOW, ITEM, agreed_element
from ..seam.ambient import Ambient
from ..seam.call_types import Arguments, BatchFlags
from ..seam.dispatch import run_elementwise
from ..seam.levels import Level, Value
from ..seam.shells import BATCHED, VALUES, shell
from ..seam.surgery import GEOMETRY, change_geometry, detach_inner
from ..tape.inplace import METADATA
from ..torch_private.dispatcher import OpOverload, set_excluded
from ..trace.torch_checks import check_of_torch
from . import draws, element_check, trees

# per op, in all threads: how many calls ran as a Python loop over the batch
fallbacks: Counter[str] = Counter()
_warned: set[str] = set()  # the ops that a warning has named


class _Fallback(Ambient):
    """The policy of this thread for ops without a batch rule. See :func:`set_fallback_policy`."""

    policy = "warn"


_FALLBACK = _Fallback()


def current_fallback_policy() -> str:
    """Return the policy of this thread: ``"warn"``, ``"silent"`` or ``"raise"``."""
    return _FALLBACK.policy


def set_fallback_policy(policy: str) -> None:
    """Set what this thread does when an op has no batch rule.

    ``"warn"``: warn once per op, then loop over the batch. ``"silent"``: loop. ``"raise"``: raise
    ``MissingRule``."""
    if policy not in ("warn", "silent", "raise"):
        raise ValueError(f"fallback policy must be 'warn', 'silent' or 'raise', got {policy!r}")
    _FALLBACK.policy = policy


@contextmanager
def fallback_policy(policy: str) -> Iterator[None]:
    """Call :func:`set_fallback_policy` for the block of a ``with``, and restore the previous
    policy after it."""
    before = _FALLBACK.policy
    set_fallback_policy(policy)
    try:
        yield
    finally:
        _FALLBACK.policy = before


class BatchedValue(Value):
    """A batch of tensors, which has the shape of one of them. ``_inner`` holds the batch
    along dimension 0."""

    _level: BatchLevel

    def __bool__(self) -> bool:
        """Return the truth on which all elements agree. Raise if they differ."""
        if self.numel() != 1:
            return bool(super().__bool__())  # raises torch's error about the number of values
        # a check of torch's raises for one bad element, so the elements need not agree
        if self._inner.dtype is torch.bool and (check := check_of_torch()) is not None:
            return bool(check.of_batch(self._inner))
        return bool(
            agreed_element(self._inner, self._level.size, f"{CONTROL_FLOW} bool() was asked")
        )

    def tolist(self) -> Any:
        """Raise: each element has numbers of its own."""
        raise BatchingError(f"{ITEM} tolist() was asked{called_from()}")

    def numpy(self, *, force: bool = False) -> Any:
        """Raise: no level would see what is computed from an array."""
        raise BatchingError(
            "vmap: numpy() would leave the transform; compute with tensors instead. "
            f"It was asked{called_from()}"
        )

    def requires_grad_(self, requires_grad: bool = True) -> torch.Tensor:
        """Raise: a batch has no history of its own."""
        self._refuse_leaf()

    def _set_requires_grad(self, requires_grad: bool) -> None:
        Value.requires_grad_(self, requires_grad)  # to assign False changes nothing

    @property
    def data(self) -> Any:
        """Return the same batch without its histories at outer levels."""
        return self._level.wrap(self._inner.data)

    @data.setter
    def data(self, new: torch.Tensor) -> None:
        refuse_data_write()

    def _text(self) -> str:
        return f"BatchedValue(level={self._level.number}, size={self._level.size}, {self._inner!r})"


class BatchLevel(Level):
    """One running ``vmap`` over ``size`` elements."""

    __slots__ = ("randomness", "size")
    what = "vmap"
    hidden = 1
    shows_strides = True

    def __init__(self, size: int, randomness: str) -> None:
        super().__init__()
        self.size = size
        self.randomness = randomness
        # never undone: functorch includes the key again where it runs its own vmap
        set_excluded(BATCHED, True)

    def wrap(self, inner: torch.Tensor, history: None = None, /) -> Any:
        """Return ``inner``, of shape (size, *S), as a value of shape S. The batch level records no
        history."""
        value = shell(BatchedValue, inner, 1)
        value._level = self
        value._inner = inner
        return value

    def spread(self, tensor: torch.Tensor) -> Any:
        """Return ``tensor``, which all elements share, as a batch."""
        return self.wrap(tensor.expand(self.size, *tensor.shape))

    def call(self, func: OpOverload, args: Sequence[object], kwargs: dict[str, Any]) -> Any:
        """Run an op of the program on whole batches, by its batch rule if it has one."""
        op = _OPS.get(id(func)) or op_of(func)  # inlined: most calls are of ops that are known
        try:
            rule = op.batch
            if rule is None:
                rule = op.batch = _plain_rule(op)
            if not rule:
                return self._call_otherwise(op, args, kwargs)
            # the kernel may accept a batch of elements that it would refuse one by one
            if op.accepted is not None:
                element_check.check(op, args, kwargs)
            if kwargs:
                named, flags = self.physical(kwargs.values())
                kwargs = dict(zip(kwargs, named, strict=True))
                if getattr(rule, "takes_flags_of_keywords", False):
                    rule = partial(rule, named=dict(zip(kwargs, flags, strict=True)))
            lined_up = self.line_up(args)[0] if rule is elementwise else None
            if lined_up is not None:
                # the batch dimension is the first of all batched tensors, so they broadcast
                result = op.run(lined_up, kwargs)
            else:
                physical, batched = self.physical(args)
                result = rule(func, self.size, batched, physical, kwargs)
            if isinstance(result, torch.Tensor):
                return self.wrap(result)
            return self.valued(result)
        except OWN_ERRORS:
            raise
        except Exception:
            # the kernel's own message would name shapes with the batch in front
            error = element_check.first_error(op, args, kwargs)
            if error is None:
                raise
            raise error from None  # it names logical shapes

    def _call_otherwise(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Run an op whose call needs more than a batch rule."""
        func = op.func
        record = op.record
        # a composite op is its decomposition, whose ops have rules
        if record is None and op.composite and op.kind is not OUT:
            return func.decompose(*args, **kwargs)
        if op.kind is INPLACE:
            written = self._inplace(op, args, kwargs)
            if op.n_results:
                return written
            return None
        if op.kind is OUT:
            raise BatchingError(
                f"{func} with out= is not supported under vmap; "
                "use the form that returns its result"
            )
        if record is not None and record.batch is not None:
            return draws.draw(self, op, args, kwargs)
        # no rule: the op in terms of others, else one call per element
        decomposed = decomposition_of(op, "batch")
        if decomposed is None:
            return self.valued(self._loop(op, args, kwargs))
        if op.decomposed:  # a decomposition of a record checks its own arguments
            element_check.check(op, args, kwargs)
        return decomposed(*args, **kwargs)

    def physical(self, args: Any) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the arguments with the physical tensor in place of each batched value, and a flag
        per argument: whether it was batched.

        A list has a tuple of flags, one per entry.
        """
        out = list(args)
        flags: list[object] = [False] * len(out)
        for index, argument in enumerate(out):
            kind = type(argument)
            if kind in VALUES:
                if argument._level is self:
                    out[index] = argument._inner
                    flags[index] = True
            elif kind is list or kind is tuple:
                mine = tuple(type(item) in VALUES and item._level is self for item in argument)
                if any(mine):
                    out[index] = [
                        item._inner if is_mine else item
                        for item, is_mine in zip(argument, mine, strict=True)
                    ]
                    flags[index] = mine
        return out, tuple(flags)

    def line_up(self, args: Arguments) -> tuple[list[object] | None, int]:
        """Return the physical arguments and the rank of the batched ones, if the arguments
        broadcast as they are. Else ``None`` and a rank.

        They broadcast as they are if all batched tensors have the same rank and every other tensor
        has fewer dimensions. A batch of 0-d tensors with another tensor is left out: two 0-d
        tensors promote each other, but a vector and a 0-d tensor do not.
        """
        out = []
        rank = widest = -1
        for argument in args:
            kind = type(argument)
            if kind in VALUES and argument._level is self:
                argument = argument._inner
                own_rank = argument.dim()
                if own_rank != rank:
                    if rank >= 0:
                        return None, rank
                    rank = own_rank
            elif isinstance(argument, torch.Tensor):
                widest = max(widest, argument.dim())
            elif kind in (list, tuple):
                return None, rank
            out.append(argument)
        # a batch of 0-d tensors has rank 1, and promotes as a vector does
        promotes_alike = rank > 1 or widest < 0
        if widest < rank and promotes_alike:
            return out, rank
        return None, rank

    def elementwise(self, formula: Callable[..., object], args: Arguments) -> Any:
        """Run an elementwise formula on the physical tensors, if they broadcast as they are.

        Else the formula runs on the values, and each of its ops is a call of the level.
        """
        physical, rank = self.line_up(args)
        if physical is None:
            return formula(*args)
        result = run_elementwise(formula, physical)
        results = [result]
        if isinstance(result, tuple):
            results = list(result)
        for index, part in enumerate(results):
            # a result of lower rank depends on no batched argument
            if isinstance(part, torch.Tensor) and part.dim() == rank:
                results[index] = self.wrap(part)
        if isinstance(result, tuple):
            return tuple(results)
        return results[0]

    def batchwise(self, formula: Callable[..., Any], args: object) -> Any:
        """Return ``formula(*physical, batched)`` as a batch. ``batched``: see :meth:`physical`."""
        physical, batched = self.physical(args)
        return self.wrap(formula(*physical, batched))

    def _agree(self, op: Op, answers: list[object]) -> object:
        """Return the answer of an op that returns no tensor. Raise unless all elements give the
        same answer."""
        if any(answer != answers[0] for answer in answers):
            raise BatchingError(
                f"vmap: {op.func} answers differently for the elements of the batch: "
                f"{answers}{called_from()}"
            )
        return answers[0]

    def _inplace(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Run an op that writes to its first argument, which must be a batch of this level."""
        target = args[0]
        if not isinstance(target, torch.Tensor):
            return foreach.run(op, args, kwargs)
        if not (isinstance(target, Value) and target._level is self):
            raise BatchingError(
                f"vmap: inplace arithmetic {op.func}(self, *extra_args) is not possible because "
                "there exists a Tensor `other` in extra_args that has more elements than `self`. "
                "`other` has the batch dimension and `self` has not: use the out-of-place op, "
                "or make `self` with new_zeros or zeros_like of a batched input."
            )
        # ops that change no numbers, but the history, the shape or the memory
        if op.base_name == "detach_":
            detach_inner(target)
            return target
        if op.base_name in GEOMETRY and op.functional is not None:
            return change_geometry(op.functional.func, target, args[1:], kwargs)
        if op.base_name in METADATA:
            raise BatchingError(
                f"vmap: {op.func} changes the number of elements that its argument has, "
                "and elements of a batch share one storage. Use new_empty or reshape instead."
            )
        if draws.is_random(op, args, kwargs):
            return draws.fill(self, op, args, kwargs)
        if _needs_check(op, target, args):
            element_check.check(op, args, kwargs)
        return self._write_batch(op, target, args, kwargs)

    def _write_batch(
        self, op: Op, target: Value, args: Sequence[object], kwargs: dict[str, object]
    ) -> Value:
        """Run an in-place op by its rule for batches, by its functional form, or for one element
        after the other."""
        record = op.record
        physical, batched = self.physical(args)
        kwargs = self.lowered_kwargs(kwargs)
        if record is not None and record.batch is not None:
            if record.in_place:
                record.batch(op.func, self.size, batched, physical, kwargs)
                return target
            # other rules return a new batch, which is copied over the old one
            func = (op.functional or op).func
            written = record.batch(func, self.size, batched, physical, kwargs)
            target._inner.copy_(written)
            return target
        if op.functional is not None:
            out = op.functional.func(*args, **kwargs)
            target._inner.copy_(out._inner)
            return target
        self._count_fallback(op)
        for index in range(self.size):
            op.func(*self.element(physical, batched, index), **kwargs)
        return target

    def element(self, physical: list[object], batched: BatchFlags, b: int) -> list[Any]:
        """List the arguments of element ``b`` of a call. ``batched``: see :meth:`physical`."""
        pairs = zip(physical, batched, strict=True)
        return [_element_of(argument, flag, b) for argument, flag in pairs]

    def _count_fallback(self, op: Op) -> None:
        """Count a loop over the batch. Warn of it or refuse it, as the policy says."""
        name = str(op.func)
        # the stacked results of a loop would be no view
        if op.kind is VIEW or _FALLBACK.policy == "raise":
            raise MissingRule(name, "batch")
        fallbacks[name] += 1
        if _FALLBACK.policy == "warn" and name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"{name} has no batch rule, so vmap runs it as a loop over {self.size} elements; "
                "add one to its record in runtime/rules/ (docs/rules.md shows how)",
                stacklevel=users_frame()[1],
            )

    def _loop(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Run the op once per element and stack the results. This is the last resort."""
        # results of different shapes could not be stacked
        if torch.Tag.dynamic_output_shape in op.func.tags:
            raise BatchingError(
                f"vmap: {op.func} returns a result whose shape depends on the data, "
                f"which differs between the elements of a batch{called_from()}"
            )
        random = draws.is_random(op, args, kwargs)
        if random and self.randomness == "error":
            raise draws.DrawError()
        self._count_fallback(op)
        physical, batched = self.physical(args)
        named, named_batched = self.physical(kwargs.values())
        calls = []
        for index in range(self.size):
            options = self.element(named, named_batched, index)
            calls.append(
                (self.element(physical, batched, index), dict(zip(kwargs, options, strict=True)))
            )
        # the generator is put back before each element, so that all draw alike
        if random and self.randomness == "same":
            results = draws.with_one_draw(op, calls)
        else:
            results = [op.func(*element, **options) for element, options in calls]
        return self._stack(op, results)

    def _stack(self, op: Op, results: list[Any]) -> object:
        """Return the results of a call from those of each element."""
        if isinstance(results[0], torch.Tensor):
            return torch.stack(results)
        if not isinstance(results[0], (tuple, list)):
            return self._agree(op, results)
        stacked: list[object] = []
        for per_element in zip(*results, strict=True):
            if isinstance(per_element[0], torch.Tensor):
                stacked.append(torch.stack(per_element))
            else:
                stacked.append(per_element[0])
        return tuple(stacked)


class EmptyBatch(BatchLevel):
    """A batch without elements.

    Some kernels refuse empty tensors, and a size of ``-1`` is ambiguous for them. Then the op runs
    on one element of zeros, whose result has the right shape.
    """

    __slots__ = ()

    def call(self, func: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> Any:
        """Run an op as any batch does. If its kernel refuses an empty batch, run it on one element
        of zeros.

        A random op is not run again, since the generator would move.
        """
        try:
            return super().call(func, args, kwargs)
        except OWN_ERRORS:
            raise
        except Exception:
            op = op_of(func)
            if draws.is_random(op, args, kwargs):
                raise
            result = self._loop(op, args, kwargs)
            if op.kind is INPLACE:
                return args[0]  # there is no element to write to
            return self.valued(result)

    def _loop(self, op: Op, args: Sequence[object], kwargs: dict[str, object]) -> object:
        """Run the op on one element of zeros, and return empty batches of its results' shapes."""
        result = op.func(
            *self._zeros(args), **dict(zip(kwargs, self._zeros(kwargs.values()), strict=True))
        )
        if not isinstance(result, (torch.Tensor, tuple, list)):
            raise BatchingError(
                f"vmap: {op.func} reads the elements of an empty batch{called_from()}"
            )
        return trees.map_tensors(lambda tensor: tensor.new_empty((0, *tensor.shape)), result)

    def _zeros(self, args: object) -> list[object]:
        """Return ``args`` with one element of zeros in place of each batch."""
        physical, batched = self.physical(args)
        pairs = zip(physical, batched, strict=True)
        one = [_one_of_zeros(argument, flag) for argument, flag in pairs]
        return self.element(one, batched, 0)


def _needs_check(op: Op, target: Value, args: Sequence[object]) -> bool:
    """Return whether a write must be tried on one element: an element would not fit, and the batch
    might."""
    if op.record is None or not op.record.in_place:
        return True
    return any(
        isinstance(argument, torch.Tensor) and argument.dim() > target.dim() for argument in args
    )


def _element_of(argument: Any, flag: Any, index: int) -> object:
    """Return element ``index`` of an argument, with its flag of :meth:`BatchLevel.physical`."""
    if flag is True:
        return argument[index]
    if flag:
        return [
            item[index] if is_batched else item
            for item, is_batched in zip(argument, flag, strict=True)
        ]
    return argument


def _one_of_zeros(argument: Any, flag: Any) -> object:
    """Return an argument with one element of zeros in place of each batch in it."""
    if flag is True:
        return argument.new_zeros((1, *argument.shape[1:]))
    if type(flag) is tuple:
        return [_one_of_zeros(x, is_batched) for x, is_batched in zip(argument, flag, strict=True)]
    return argument


def _plain_rule(op: Op) -> object:
    """Return the batch rule of an op if a call runs that rule and nothing else. Else ``False``.

    ``False`` and not None, because the level stores the answer in ``op.batch``, where None means
    that nobody has asked.
    """
    record = op.record
    writes = op.kind in (INPLACE, OUT)
    if writes or record is None:
        return False
    if record.batch is None or record.draws:
        return False
    # a rule that raises what an element would raise needs no check on one element
    if getattr(record.batch, "exact", False):
        op.accepted = None
    return record.batch
