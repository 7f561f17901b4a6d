"""Runs a program and writes the ATen calls that it makes into a ``torch.fx.Graph``.

A :class:`TracedValue` stands for a node of the graph and has the tensor that the call really
returned, so the program runs while it is traced. That tensor is real by default: small kernels are
many times faster than abstract ones, and a static graph needs no more. In the modes ``fake`` and
``symbolic``, or if an argument is a ``FakeTensor``, it is a ``FakeTensor``.

Transforms entered inside a trace are inner levels, so the ATen calls of their rules arrive here:
a trace of ``vjp(f)`` is a joint graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import torch
from torch import fx

from ..rules.ops import VIEW, generator_of, op_of
from ..seam.call_types import Arguments, Kernel, Keywords
from ..seam.containers import items_of, leaves_of, rewrapped, tensors_of
from ..seam.keys import VIEWS
from ..seam.level_mode import LevelMode
from ..seam.shape_errors import settle_if_of_shapes
from ..seam.surgery import refit
from ..seam.user_code import note_kernel_error
from ..torch_private.dispatcher import OpOverload, set_excluded
from ..torch_private.fake_tensors import DataDependentOutputException, DynamicOutputShapeException
from ..torch_private.mode_stacks import without_dispatch_to_python, without_modes
from .abstract_values import raise_as_kernel, run_abstractly
from .call_facts import OTHERWISE, CallFacts, argument_at, facts_of, size_depends_on_values
from .graph_edits import add_call
from .number_reads import TracedNumber, number_of
from .outside import FOREIGN, foreign_span
from .provenance import Provenance, here, refuse_default_dtype
from .raising_calls import INTEGERS
from .random_states import UndoneDraws
from .symbol_values import has_symbols
from .symbols import Abstraction
from .torch_checks import check_of_torch
from .trace_inputs import TraceInputs
from .trace_value import (
    TracedValue,
    differs_from_inner,
    escape,
    follows_from_arguments,
    literal_of,
    literals_in,
)

aten = torch.ops.aten
_default_dtype = torch.get_default_dtype  # by one look-up
_READS = ("item", "_local_scalar_dense", "is_nonzero")


class Trace(TraceInputs):
    """One running trace. Its graph grows with every call.

    For attributes that are not here see :class:`.trace_inputs.TraceInputs`.
    """

    __slots__ = (
        "composites",
        "decompositions",
        "default_dtype",
        "fixed_sizes",
        "has_integers",
        "leaves_classes",
        "mode",
        "undone_draws",
    )
    what = "trace (make_fx, aot_function or export)"
    leaves_parts = False

    def __init__(
        self,
        *,
        abstraction: Abstraction | None = None,
        decompositions: Mapping[object, Callable[..., object]] | None = None,
        fixed_sizes: bool = False,
        reads: str = "refuse",
        composites: bool = False,
        provenance: Provenance | None = None,
        late: bool = False,
    ) -> None:
        super().__init__(abstraction=abstraction, reads=reads, provenance=provenance, late=late)
        # whether an op whose result has a size that depends on values is refused
        self.fixed_sizes = fixed_sizes
        # whether composite ops are recorded whole
        self.composites = composites
        # whether tensors of a user's class that handles its own calls are taken apart, else they
        # are constants
        self.leaves_classes = False
        self.has_integers = False  # whether the program has read one of a tensor
        self.undone_draws: UndoneDraws | None = None
        # by op, the function that is traced in its place
        self.decompositions = decompositions or {}
        self.mode: Any = LevelMode(self)
        self.default_dtype = _default_dtype()

    def call(self, func: object, args: Any, kwargs: object) -> Any:
        """Run a call and write it into the graph, or decompose it and trace the calls of the
        decomposition. A question about sizes or elements gets its answer at once."""
        # at each call, because a program may set another one back before it returns
        if _default_dtype() is not self.default_dtype:
            refuse_default_dtype()
        facts = facts_of(func)
        # most calls end here: the questions below are of a few ops
        if not facts.special and not self.decompositions:
            return self.record(func, args, kwargs)
        if facts.question is not None:
            return facts.question(self.lowered(args[0]))
        # a literal of the program's text, which the program may write to
        if func is aten.lift_fresh.default:
            return self._copied_literal(args[0], kwargs)
        self._refuse_size_of_values(func, facts, args)
        decomposition = self.decompositions.get(func) or OTHERWISE.get(func)
        if decomposition is not None:
            out = self._decompose(func, decomposition, args, kwargs)
            # as one of torch's decompositions answers for arguments that it does not take
            if out is not NotImplemented:
                return out
        return self._call_whole(func, facts, args, kwargs)

    def _copied_literal(self, literal: torch.Tensor, kwargs: object) -> object:
        """Write a copy of a literal into the graph. A note says where the memory is of one that
        ``torch.from_numpy`` has made, as eager mode makes no copy."""
        args = (self.constant(literal.clone(), literal=True),)
        copied = self.call(aten.lift_fresh_copy.default, args, kwargs)
        copied._node.meta[FOREIGN] = foreign_span(literal)
        return copied

    def _call_whole(
        self, func: Any, facts: CallFacts, args: Sequence[object], kwargs: Any
    ) -> object:
        """Run a call for which the trace has no decomposition of its own."""
        if facts.composite and not self.composites:
            with self.mode:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if facts.reads:
            return self._read(func, args, kwargs)
        if facts.asks_size:
            return func(*self.lowered_args(args))
        return self.record(func, args, kwargs)

    def record(self, func: object, args: Any, kwargs: Any) -> Any:
        """Run the call on the inner tensors and write it into the graph."""
        facts = facts_of(func)
        args, nodes, inner = self._operands(args)
        named, options = {}, {}
        if kwargs:
            values, in_graph, inside = self._operands(kwargs.values())
            kwargs, named, options = (
                dict(zip(kwargs, each, strict=True)) for each in (values, in_graph, inside)
            )
        # the schema of `detach_` says that it writes, and it changes no element
        writes = facts.may_write and func is not aten.detach_.default
        if writes and (self.outside.tensors or self.outside.literals):
            self.outside.before(op_of(func), inner, options)
        if facts.reshapes and isinstance(args[0], TracedValue):
            self._note_sizes_before(func, args[0])
        with self.drawing((generator_of(inner, options),)) if facts.may_draw else _NOTHING:
            out = self._run(func, inner, options, (*args, *kwargs.values()))
        return self._write_call(func, facts, nodes, named, out, args, kwargs)

    def _note_sizes_before(self, func: object, target: TracedValue) -> None:
        """Describe ``target`` in the graph by its sizes before ``func`` changes them. Raise if the
        program closes over it."""
        is_constant = any(target is constant for constant in self.constants.values())
        if is_constant and func is not aten.detach_.default:
            raise RuntimeError(
                "Can't call metadata mutating ops on a tensor that the program closes over: "
                f"{func} changes its sizes or strides in place. "
                f"Pass it as an argument, or use the op that returns a view.{here()}"
            )
        if self.abstraction is not None:
            self.abstraction.read_sizes_of(target._node)
        # a late abstract value is not in `meta` yet
        self.abstract.complete()
        target._node.meta["val"] = self.abstract.snapshot(target._node.meta["val"])

    def _run(
        self,
        func: Any,
        inner: Sequence[object],
        options: dict[str, object],
        given: tuple[object, ...],
    ) -> Any:
        """Run ``func`` on inner tensors, or on what is known of them. ``given``: the arguments of
        the program. Where one is a symbol, ``inner`` may have the value of today, which settles no
        error."""
        if self.abstraction is None:
            try:
                return func(*inner, **options)
            except Exception as error:
                note_kernel_error(error)
                if not has_symbols(given):
                    settle_if_of_shapes(error, func, inner, options)
                raise
        try:
            with self.abstraction.running():
                return run_abstractly(func, inner, options)
        except DynamicOutputShapeException:
            self._refuse_size(func)
        except DataDependentOutputException as error:
            raise escape(f"{error.func}") from None
        except Exception:
            if not (self.abstraction.is_general or has_symbols(given)):
                raise_as_kernel(func, inner, options)
            raise

    def _write_call(
        self,
        func: Any,
        facts: CallFacts,
        operands: Sequence[object],
        named: dict[str, object],
        out: object,
        args: object,
        kwargs: object,
    ) -> object:
        """Write a call that has run into the graph. ``operands`` and ``named``: its arguments
        there. ``out``: what it has returned. Return its results as values."""
        # the seed of a generator, which is that of the trace, may be any integer of the program
        if self.random_states is not None:
            for number in (operand for operand in operands if type(operand) is int):
                self.random_states.refuse_seed(number)
        if self.has_integers:
            _refuse_sizes(func, operands, named)
        node = add_call(self.graph, func, tuple(operands), named, facts.node_name)
        if self.provenance is not None:
            self.provenance.note(node)
        if self.abstraction is not None:
            self.abstraction.bind_results(node, out)
        return self._results(func, facts, node, out, args, kwargs)

    def drawing(self, generators: Sequence[object]) -> AbstractContextManager[None]:
        """Return the context for a call that may draw from ``generators``, see
        :meth:`.random_states.RandomStates.drawing`."""
        states = self.random_states or self.undone_draws
        return _NOTHING if states is None else states.drawing(generators)

    def computed(self, func: Any, args: Sequence[object]) -> Any:
        """Run a call that only computes, of values of plain tensors and literals, as :meth:`call`
        does. Return None for any other call. It needs no modes to be left, and takes half the
        time."""
        facts = facts_of(func)
        if (
            facts.special
            or facts.may_draw
            or facts.may_write
            or self.decompositions
            or self.abstraction is not None
        ):
            return None
        operands: list[Any] = []
        inner: list[Any] = []
        for argument in args:
            if type(argument) is not TracedValue:
                operands.append(argument)
                inner.append(argument)
            elif argument._level is self and type(argument._inner) is torch.Tensor:
                operands.append(argument._node)
                inner.append(argument._inner)
            else:
                return None
        try:
            with without_dispatch_to_python():
                out = func(*inner)
        except Exception as error:
            note_kernel_error(error)
            if not has_symbols(args):
                settle_if_of_shapes(error, func, inner, {})
            raise
        return self._write_call(func, facts, operands, {}, out, args, {})

    def noted(self, func: Kernel, operands: tuple[object, ...], out: object) -> Any:
        """Write a call of ``func`` on ``operands``, nodes and values of the graph, whose results
        ``out`` are known. Return these as values."""
        node = add_call(self.graph, func, operands)
        if self.provenance is not None:
            self.provenance.note(node)
        return self._values_of_results(node, out)

    def _decompose(
        self,
        func: object,
        decomposition: Callable[..., object],
        args: Sequence[object],
        kwargs: Any,
    ) -> object:
        """Run the call by ``decomposition``. The dispatcher marks the result of a view op as a view
        when the call returns to it. The ops of the decomposition must not have marked it before,
        and it must not be an argument itself."""
        if op_of(func).kind is not VIEW:
            with self.mode:
                return decomposition(*args, **kwargs)
        # nobody resets this: the dispatcher's guard does when `__torch_dispatch__` returns
        set_excluded(VIEWS, True)
        with self.mode:
            out = decomposition(*args, **kwargs)

        def renew_argument(tensor: Any, _: int | None) -> Any:
            """Return another value of the same node for an argument, and any other as it is."""
            if any(tensor is argument for argument in args):
                return self._value(tensor._inner, tensor._node)
            return tensor

        return rewrapped(out, renew_argument)

    def _refuse_size_of_values(self, func: object, facts: CallFacts, args: Arguments) -> None:
        """Raise if the graph would keep a size that depends on values."""
        if facts.sized_by_values and self.fixed_sizes and size_depends_on_values(func, args):
            self._refuse_size(func)
        if facts.sized_by_numbers:
            for number in filter(None, map(number_of, args)):
                number.guard_int(here(), 0)
        # how many elements a sparse tensor stores
        if facts.tells_stored and (self.fixed_sizes or self.abstraction is not None):
            self._refuse_size(func)

    def _refuse_size(self, func: object) -> NoReturn:
        """Raise: the size of a result of ``func`` depends on values."""
        raise RuntimeError(
            f"the size of what {func} returns depends on values. "
            "The graph would keep the size that it has for these arguments. Use an op whose "
            "result has one size (torch.where for a choice, a product with the mask for a sum), "
            f"or leave this part out of what is traced.{here()}"
        )

    def _read(self, func: OpOverload, args: Sequence[object], kwargs: Keywords) -> object:
        """Return an answer in Python about elements. That of constants of the program's text is
        known. Else it is a symbol or refused."""
        if any(
            isinstance(argument, TracedValue) and argument._literal is None for argument in args
        ):
            return self._read_variable(func, args, kwargs)
        with without_modes() if self.abstraction is not None else _NOTHING:
            return func(*list(map(literal_of, args)), **kwargs)

    def _read_variable(self, func: Kernel, args: Arguments, kwargs: Keywords) -> object:
        """Answer about elements that depend on the arguments of the program."""
        # a check of torch has one answer with which the program goes on
        if args[0].dtype is torch.bool and (check := check_of_torch()) is not None:
            with self.mode:
                return check.of_graph(args[0])
        if self.reads == "number" and (kind := _kind_of_answer(func, args)) is not None:
            number = self._read_number(func, args, kwargs, kind)
            # a program is for one side of a truth, so Python gets an ordinary `bool`
            return number.guard_bool() if kind is bool else number.as_symbol()
        if self.reads == "symbol" and func is aten._local_scalar_dense.default:
            return self.record(func, args, kwargs)
        if self.reads == "constant" and self.abstraction is None:
            return func(*self.lowered_args(args), **kwargs)
        name = op_of(func).base_name
        raise escape("item(), bool(), int() or float()" if name in _READS else f"{name}()")

    def _read_number(
        self, func: Kernel, args: Arguments, kwargs: Keywords, kind: type
    ) -> TracedNumber:
        """Return what ``func`` tells of elements, of class ``kind``, as a call of the graph."""
        _, nodes, inner = self._operands(args)
        node = add_call(self.graph, func, tuple(nodes), kwargs)
        if self.provenance is not None:
            self.provenance.note(node)
        number = None
        if self.abstraction is None:
            number = func(*inner, **kwargs)
        self.has_integers |= kind is int
        return TracedNumber.read(node, kind, number)

    def _results(
        self,
        func: object,
        facts: CallFacts,
        node: fx.Node,
        out: object,
        args: object,
        kwargs: object,
    ) -> object:
        """Return the results ``out`` of the call at ``node`` as values."""
        if facts.written:
            return self._update_targets(func, node, out, facts, args, kwargs)
        if isinstance(out, torch.Tensor):
            value: Any = self._value(out, node)
            self.abstract.describe(node, out, value._geometry)
            # `item()` reads single numbers, so only these are computed along
            if facts.literal or (facts.follows and not value.dim()):
                value._literal = self._literal_of(func, facts, args, kwargs, value)
                if value._literal is not None:
                    self.outside.literal(value)
            return value
        return self._values_of_results(node, out)

    def _values_of_results(self, node: fx.Node, out: object) -> Any:
        """Return the results ``out`` of the call at ``node``, which are known, as values. Each of
        several results gets a ``getitem`` node."""
        abstract = self.abstract.describe(node, out)
        return rewrapped(
            out,
            lambda tensor, place: self._value(tensor, self.abstract.item(node, place, abstract)),
        )

    def _literal_of(
        self, func: Any, facts: CallFacts, args: Any, kwargs: Any, value: TracedValue
    ) -> torch.Tensor | None:
        """Return the value of ``value`` if it is a number that follows from the text of the program
        alone."""
        if facts.literal and args[0]._node.op == "get_attr":
            literal: torch.Tensor = self.attributes[str(args[0]._node.target)]
            return literal
        if value.dim() or not facts.follows:
            return None
        if any(map(follows_from_arguments, items_of((*args, *kwargs.values())))):
            return None
        with without_modes() if self.abstraction is not None else _NOTHING:
            out: torch.Tensor = func(
                *literals_in(args), **dict(zip(kwargs, literals_in(kwargs.values()), strict=True))
            )
        return out

    def _update_targets(
        self,
        func: object,
        node: fx.Node,
        out: object,
        facts: CallFacts,
        args: object,
        kwargs: object,
    ) -> object:
        """Update the arguments that the call has written to, and return its results. Their values
        stay; where the call returns one, its node becomes the newest name of it."""
        targets = tensors_of(argument_at(func, place, args, kwargs) for place in facts.written)
        written = [target for target in targets if isinstance(target, TracedValue)]
        for target in written:
            if func is not aten.detach_.default:
                target._literal = None
            # the kernel has changed the inner tensor's sizes, as `t_` and `resize_` do
            if differs_from_inner(target):
                refit(target, self._value(target._inner, target._node))
        abstract = self.abstract.describe(node, out)
        returned = (
            None if facts.returned is None else argument_at(func, facts.returned, args, kwargs)
        )
        if isinstance(out, torch.Tensor) and isinstance(returned, TracedValue):
            returned._node = node
            return returned
        # a kernel that writes to several returns those of its inner tensors themselves
        by_inner = {id(target._inner): target for target in written}

        def value_of(tensor: torch.Tensor, place: object) -> torch.Tensor:
            target = by_inner.get(id(tensor))
            if target is not None:
                return target
            return self._value(tensor, self.abstract.item(node, place, abstract))

        return rewrapped(out, value_of)

    def finish(self) -> None:
        """Do nothing. Subclasses write calls here that follow the program's: it has returned, and
        its results are not written into the graph yet."""

    def close(self) -> None:
        """End the trace. What it has written to closed-over tensors is undone: the replay of
        the graph writes."""
        self.outside.restore()
        if self.provenance is not None:
            self.provenance.close()
        super().close()


_NOTHING = nullcontext()


_TAKES_NUMBERS = frozenset(("number", "Tensor"))
"""Types of parameters that take a real number as well as an integer."""


def _kind_of_answer(func: Kernel, args: Arguments) -> type | None:
    """Return the class of the number that a call tells of tensors. None where the program cannot
    compute with it."""
    if func is not aten._local_scalar_dense.default:
        # such as `torch.equal`
        returns = op_of(func).func._schema.returns
        return bool if [str(result.type) for result in returns] == ["bool"] else None
    dtype: torch.dtype = args[0].dtype
    if dtype is torch.bool:
        return bool
    if dtype in INTEGERS:
        return int
    return float if dtype.is_floating_point else None


def _refuse_sizes(func: Kernel, operands: Sequence[object], named: Mapping[str, object]) -> None:
    """Refuse an integer that was read of a tensor as a size, a dimension or an index of ``func``.

    The graph would be for its value: only a parameter that may be a real number as well takes any.
    """
    parameters = op_of(func).func._schema.arguments
    values = dict(zip((parameter.name for parameter in parameters), operands, strict=False))
    values.update(named)
    for parameter in parameters:
        # a product with a number has a parameter for a tensor
        if not _TAKES_NUMBERS.intersection(str(parameter.type).strip("]").split("[")):
            _refuse_integer(values.get(parameter.name))


def _refuse_integer(value: object) -> None:
    """Raise if ``value``, an argument in the graph, has an integer that was read of a tensor."""
    for node in leaves_of((value,)):
        number = None
        if isinstance(node, fx.Node):
            number = number_of(node.meta.get("val"))
        if number is not None and number.kind is int:
            number.guard_int()
