"""Make from the schemas of the dispatcher the calls that are to give what one call gives.

    aten::sin(x)   ->   aten::sin.out(x, out=buffer), aten::sin_(x), aten::_foreach_sin([x, x])

No op is named here: the names and types of arguments say what belongs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from gen.checks.overloads.form_buffers import (
    Form,
    empty,
    filled,
    filled_with_gaps,
    fits,
    is_strided,
    spread,
    with_gaps,
)
from gen.checks.overloads.list_forms import forms_of_lists
from gen.checks.overloads.plain_calls import values_for
from gen.checks.overloads.recorded_calls import OverloadCall, copied
from gen.outcomes import Mismatch
from gen.torch_private.aten_overloads import (
    Overload,
    full_name,
    inputs_of,
    kinds_of,
    name_in_place,
    names_of,
    outputs_of,
    with_kernel,
    writes_of,
)
from gen.torch_private.loaded_with_torch import pytree

__all__ = ["FormsOfCall"]

Tensor = torch.Tensor
Target = Callable[..., object]  # an overload as the target has it
_OF_BUFFERS = frozenset({"dtype", "layout", "device", "pin_memory"})
"""Arguments of factories that a buffer for the result says in their place."""


@dataclass(frozen=True)
class FormsOfCall:
    """The forms of a plain call."""

    call: OverloadCall
    # runs the call whose results are expected
    truth: Callable[[], object]
    # such results, by which buffers get their sizes and dtypes
    results: object

    def __iter__(self) -> Iterator[Form]:
        """Yield the call itself, then with gaps in its inputs, buffers, in place and for lists."""
        name = full_name(self.call.overload)
        yield Form(name, name, self.call.run, self.truth)
        if self._may_have_gaps():
            yield self._with_gaps()
        for base in (self.call.base, name_in_place(self.call.base)):
            for overload in with_kernel(base):
                yield from self._written(overload, base)
        yield from forms_of_lists(self.call)

    def _written(self, overload: Overload, base: str) -> Iterator[Form]:
        """Yield the forms of an overload that writes its results: to buffers, or in place."""
        if not _takes(overload, self.call.overload):
            return
        if outputs_of(overload):
            yield from self._with_buffers(overload)
        elif base != self.call.base and self._fits_in_place():
            yield self._in_place(overload)

    def _may_have_gaps(self) -> bool:
        """Return whether the results are the same for tensors with other strides.

        They are not if a call names places in memory, as `as_strided` does, or draws numbers.
        """
        names = set(names_of(self.call.overload._schema.arguments))
        is_about_memory = {"size", "stride"} <= names or "storage_offset" in names
        return not is_about_memory and not _draws(self.call.overload)

    def _fits_in_place(self) -> bool:
        """Return whether the first argument of the call takes the result."""
        return _is_view(self.call.overload) or fits(self.call.first, self.results)

    def _with_gaps(self) -> Form:
        """Return the call on tensors with gaps between their elements."""
        name = full_name(self.call.overload)

        def run(target: Target) -> object:
            values = pytree.tree_map_only(Tensor, with_gaps, copied(self.call.values))
            return self.call.on(values, target)

        return Form(name, f"{name} (of inputs with gaps)", run, self.truth, may_refuse=True)

    def _with_buffers(self, overload: Overload) -> Iterator[Form]:
        """Yield the call with buffers for its results: of the right size with a NaN or an odd
        number in each place, empty ones, and ones with gaps. The op may refuse the last two.
        """
        parts = _parts(self.results, overload)
        if len(parts) != len(outputs_of(overload)) or any(part is None for part in parts):
            return
        name = full_name(overload)
        kinds = [("filled", filled, False), ("empty", empty, True)]
        if self._may_have_gaps():
            kinds.append(("filled and with gaps", filled_with_gaps, True))
        for label, make, may_refuse in kinds:
            form = _BufferCall(self.call, overload, parts, make)
            yield Form(name, f"{name} ({label})", form.run, self.truth, may_refuse)

    def _in_place(self, overload: Overload) -> Form:
        """Return the call that writes to its first argument, of which only a view with gaps is
        given: what lies in the gaps must stay.
        """
        name = full_name(overload)
        place = overload._schema.arguments[0].name
        original = self.call.first
        whole = self._tensor_for_gaps(overload)

        def run(target: Target) -> object:
            values = copied(values_for(overload, self.call))
            # a fresh one for each run, since the call writes to it
            wide = spread(whole, 1) if whole is not None else None
            if wide is not None:
                values[place] = wide[..., ::2]
            # What it returns is not looked at: the arguments have the results.
            OverloadCall(overload, values).on(values, target)
            if wide is not None and not bool((wide[..., 1::2] == 1).all()):
                raise Mismatch("it writes beside the view that it is given")
            return [values[written_to] for written_to in names_of(writes_of(overload))]

        def rounded() -> object:
            """Return the result in the dtype of the argument, such as ones for true."""
            expected = self.truth()
            if isinstance(original, Tensor) and isinstance(expected, Tensor):
                return expected.to(original.dtype)
            return expected

        return Form(name, name, run, rounded)

    def _tensor_for_gaps(self, overload: Overload) -> Tensor | None:
        """Return the first argument, if a view with gaps can stand in its place."""
        if _is_view(self.call.overload) or _draws(overload):
            return None
        first = self.call.first
        if not isinstance(first, Tensor) or not is_strided(first) or not first.ndim:
            return None
        return first


@dataclass(frozen=True)
class _BufferCall:
    """The call of an overload that writes its results to buffers."""

    call: OverloadCall
    overload: Overload
    # results that have the sizes of the buffers
    parts: list[object]
    # makes the buffer for a result
    make: Callable[[Tensor], Tensor]

    def run(self, target: Target) -> object:
        """Run the overload of a target, and return the buffers and what else it writes to."""
        names = names_of(outputs_of(self.overload))
        buffers = [pytree.tree_map_only(Tensor, self.make, part) for part in self.parts]
        values = copied(values_for(self.overload, self.call))
        values.update(zip(names, buffers, strict=True))
        results = OverloadCall(self.overload, values).on(values, target)
        if results is not None:
            _assert_same_memory(results, buffers)
        others = [name for name in names_of(writes_of(self.overload)) if name not in names]
        return [*buffers, *(values[name] for name in others)]


def _assert_same_memory(results: object, buffers: list[object]) -> None:
    """Raise Mismatch unless the results are the buffers, which an op is to return."""
    pairs = zip(pytree.tree_leaves(results), pytree.tree_leaves(buffers), strict=False)
    for result, buffer in pairs:
        # A target may return another object that shows the same memory.
        if result is not buffer and result.data_ptr() != buffer.data_ptr():
            raise Mismatch("the result is not the buffer")


def _draws(overload: Overload) -> bool:
    """Return whether an overload draws random numbers, whose order is that of memory."""
    return torch.Tag.nondeterministic_seeded in overload.tags


def _is_view(overload: Overload) -> bool:
    """Return whether a result is the memory of an argument. In place, such an op changes what its
    argument is, and not the numbers in it.
    """
    return any(argument.alias_info is not None for argument in overload._schema.arguments)


def _takes(overload: Overload, plain: Overload) -> bool:
    """Return whether an overload has the arguments of a plain one. It may lack those that a buffer
    for the result says, such as a dtype.
    """
    if kinds_of(overload) == kinds_of(plain):
        return True
    if not outputs_of(overload):
        return False
    needed = [pair for pair in _signature(plain) if pair[0] not in _OF_BUFFERS]
    return _signature(overload) == needed


def _signature(overload: Overload) -> list[tuple[str, str]]:
    """Return the names and types of arguments, such as `[("self", "Tensor")]`."""
    return list(zip(names_of(inputs_of(overload)), kinds_of(overload), strict=True))


def _parts(results: object, overload: Overload) -> list[object]:
    """Return for each buffer of an overload the result that it is for.

    One buffer may be a list: `unbind_copy.int_out(x, out=[y, z])`.
    """
    parts = list(results) if isinstance(results, (tuple, list)) else [results]
    outputs = outputs_of(overload)
    if len(outputs) != 1 or "List" not in str(outputs[0].type):
        return parts
    # an op that also writes to other arguments gives them back behind its results
    if parts and isinstance(parts[0], (list, tuple)):
        return [parts[0]]
    return [parts]
