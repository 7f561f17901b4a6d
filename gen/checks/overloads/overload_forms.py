"""Make from the schemas of the dispatcher the calls that are to give what one call gives.

    aten::sin(x)   ->   aten::sin.out(x, out=buffer), aten::sin_(x), aten::_foreach_sin([x, x])
    aten::acos(x)  ->   aten::arccos(x)
    aten::add.Tensor(x, y of one element)  ->  aten::add.Scalar(x, number)

No op is named here: the names and types of arguments say what belongs together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gen.checks.overloads.recorded_calls import OverloadCall, copied
from gen.outcomes import Mismatch
from gen.torch_private.loaded_with_torch import pytree
from gen.torch_private.overloads import (
    MKLDNN,
    aliases_of,
    full_name,
    has_kernel,
    name_in_place,
    outputs_of,
    overloads_of,
    written,
)

__all__ = ["Form", "forms_of", "plain_calls"]

Tensor = torch.Tensor
Run = Callable[[Callable[..., object]], Any]
_SCALARS = ("number", "Scalar")
_FRESH = 3  # tensors in a list
_OF_BUFFERS = frozenset({"dtype", "layout", "device", "pin_memory"})
"""Arguments of factories that a buffer for the result says in their place."""


@dataclass(frozen=True)
class Form:
    """A call in another form. `run` gets the overload as the target has it, makes the call on fresh
    arguments, and returns the results. It raises Mismatch for what a result alone does not show.

    `truth` is the plain call whose results are expected. `may_refuse`: a refusal is right too.
    """

    name: str
    label: str
    run: Run
    truth: Callable[[], Any]
    may_refuse: bool = False


def plain_calls(call: OverloadCall) -> Iterator[tuple[OverloadCall, OverloadCall]]:
    """Yield calls of functional overloads, each with the call that gives the expected results."""
    functional = _functional(call)
    if functional is None:
        return
    yield functional, functional
    bases = [functional.base, *sorted(aliases_of(functional.base))]
    for base in bases:
        for overload in overloads_of(base):
            if overload is functional.overload or written(overload):
                continue
            for values, expected in _converted(functional, overload):
                yield OverloadCall(overload, values), expected


def _functional(call: OverloadCall) -> OverloadCall | None:
    """Return the call without writes: itself, or that of the op whose name has no underscore."""
    if not written(call.overload):
        return call
    base = call.base.removesuffix("_")
    for overload in overloads_of(base):
        if not written(overload) and _kinds(overload) == _kinds(call.overload):
            return OverloadCall(overload, _renamed(call, overload))
    return None


def _kinds(overload: Any, *, of_results: bool = False) -> list[str]:
    """Return the types of the arguments of an overload, without buffers for results."""
    return [str(one.type) for one in overload._schema.arguments if of_results or not one.is_out]


def _renamed(call: OverloadCall, overload: Any) -> dict[str, Any]:
    """Return the arguments of a call by the names that another overload has for them."""
    names = [one.name for one in call.overload._schema.arguments if not one.is_out]
    others = [one.name for one in overload._schema.arguments if not one.is_out]
    if len(others) < len(names):
        return {name: call.values[name] for name in others if name in call.values}
    return {
        other: call.values[name]
        for name, other in zip(names, others, strict=False)
        if name in call.values
    }


def _converted(call: OverloadCall, overload: Any) -> Iterator[tuple[dict[str, Any], OverloadCall]]:
    """Yield the arguments of a call as another overload takes them, and the call that is to give
    the same: with a number in place of a tensor, or the other way round.
    """
    sources = [one for one in call.overload._schema.arguments if not one.is_out]
    wanted = [one for one in overload._schema.arguments if not one.is_out]
    if len(wanted) > len(sources) and not all(
        one.has_default_value() for one in wanted[len(sources) :]
    ):
        return
    values: dict[str, Any] = {}
    changed: dict[str, Any] = {}
    for source, one in zip(sources, wanted, strict=False):
        if source.name not in call.values:
            if one.has_default_value():
                continue
            return
        # a schema has one type for whole numbers, layouts and dtypes
        if "int" in (_bare(str(one.type)), _bare(str(source.type))) and one.name != source.name:
            return
        found = _as_kind(call.values[source.name], str(source.type), one)
        if found is None:
            return
        values[one.name], original = found
        if original is not None:
            changed[source.name] = original
    if not _are_default(call, sources[len(wanted) :]):
        return
    if _promotes_alike(call, overload, values):
        yield values, call.with_values(changed)


def _promotes_alike(call: OverloadCall, overload: Any, values: dict[str, Any]) -> bool:
    """Return whether the dtype of a result is the same with numbers in place of tensors: another
    tensor says it. Ops that ask for dtypes give no tensors.
    """
    given = {id(value) for value in call.values.values()}
    if all(id(value) in given for value in values.values()):
        return True
    if any(str(one.type) != "Tensor" for one in overload._schema.returns):
        return False
    shared = [value for name, value in values.items() if call.values.get(name) is value]
    kinds = [value.dtype for value in shared if isinstance(value, Tensor)]
    others = [one for one in (*values.values(), *call.values.values()) if _is_number(one)]
    return any(all(_category(kind) >= _category_of(one) for one in others) for kind in kinds)


def _is_number(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.ndim == 0
    return isinstance(value, (bool, int, float, complex))


def _category_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return _category(value.dtype)
    return (bool, int, float, complex).index(type(value))


def _category(dtype: torch.dtype) -> int:
    """Return the place of a dtype among truths, whole, real and complex numbers."""
    if dtype is torch.bool:
        return 0
    return 1 + dtype.is_floating_point + 2 * dtype.is_complex


def _are_default(call: OverloadCall, arguments: list[Any]) -> bool:
    """Return whether a call says nothing with these arguments."""
    for one in arguments:
        value = call.values.get(one.name)
        if value is not None and not (one.has_default_value() and value == one.default_value):
            return False
    return True


def _as_kind(value: Any, source: str, one: Any) -> tuple[Any, Any] | None:
    """Return a value as another argument takes it, and what the original call is to have in its
    place. None if it has no such form.
    """
    wanted = str(one.type)
    if source.startswith("Optional[") and value is None:
        return (None, None) if wanted.startswith("Optional[") else None
    source, wanted = _bare(source), _bare(wanted)
    if source == wanted:
        return value, None
    if source == "Tensor" and wanted in _SCALARS:
        return _number_of(value)
    if source in _SCALARS and wanted == "Tensor":
        return _as_tensor(value), None
    if one.name != "dim" or {source, wanted} != {"int", "List[int]"}:
        return None
    if wanted == "List[int]":
        return [value], None
    return (value[0], None) if len(value) == 1 else None


def _as_tensor(number: Any) -> Tensor:
    """Return a number as a tensor without dimensions, in double precision."""
    kinds = {float: torch.float64, complex: torch.complex128}
    return torch.tensor(number, dtype=kinds.get(type(number)))


def _number_of(value: Any) -> tuple[Any, Any] | None:
    """Return an element of a tensor as a number, and a tensor of it without dimensions."""
    if not isinstance(value, Tensor) or not value.numel() or value.layout is not torch.strided:
        return None
    if value.is_quantized:
        return None
    first = value.flatten()[0].clone()
    return first.item(), first


def _bare(kind: str) -> str:
    return kind.removeprefix("Optional[").removesuffix("]") if kind[:9] == "Optional[" else kind


# --- forms of a plain call ------------------------------------------------------------------------


def forms_of(call: OverloadCall, truth: Callable[[], Any], results: Any) -> Iterator[Form]:
    """Yield the forms of a plain call whose results are like `results`."""
    name = full_name(call.overload)
    yield Form(name, name, call.run, truth)
    gaps = not (_is_about_memory(call) or draws(call.overload))
    if gaps:
        yield _itself_with_gaps(call, truth)
    for base in (call.base, name_in_place(call.base)):
        for overload in overloads_of(base):
            if not has_kernel(full_name(overload)):
                continue
            if outputs_of(overload) and _takes(call, overload):
                yield from _with_buffers(call, overload, truth, results, gaps)
            elif base != call.base and _may_write(call, overload, results):
                yield _in_place(call, overload, truth, results)
    yield from _of_lists(call)


def draws(overload: Any) -> bool:
    """Return whether an overload draws random numbers, whose order is that of memory."""
    return torch.Tag.nondeterministic_seeded in overload.tags


def _is_about_memory(call: OverloadCall) -> bool:
    """Return whether a call names places in memory, which depend on strides."""
    names = {one.name for one in call.overload._schema.arguments}
    return {"size", "stride"} <= names or "storage_offset" in names


def _may_write(call: OverloadCall, overload: Any, results: Any) -> bool:
    """Return whether an overload is the call in place, and its first argument takes the result."""
    return _takes(call, overload) and (_is_view(call.overload) or _fits(call, results))


def _is_view(overload: Any) -> bool:
    """Return whether a result is the memory of an argument. In place, such an op changes what its
    argument is, and not the numbers in it.
    """
    return any(one.alias_info is not None for one in overload._schema.arguments)


def _takes(call: OverloadCall, overload: Any) -> bool:
    """Return whether an overload has the arguments of a call. It may lack those that a buffer for
    the result says, such as a dtype.
    """
    if _kinds(overload) == _kinds(call.overload):
        return True
    if not outputs_of(overload):
        return False
    mine = _named(call.overload)
    return _named(overload) == [one for one in mine if one[0] not in _OF_BUFFERS]


def _named(overload: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in overload._schema.arguments if not one.is_out]


def _itself_with_gaps(call: OverloadCall, truth: Callable[[], Any]) -> Form:
    """Return the call on tensors with gaps between their elements."""
    name = full_name(call.overload)

    def run(overload: Callable[..., object]) -> Any:
        return call.on(pytree.tree_map_only(Tensor, _with_gaps, copied(call.values)), overload)

    return Form(name, f"{name} (of inputs with gaps)", run, truth, may_refuse=True)


def _with_gaps(x: Tensor) -> Tensor:
    """Return a copy of a tensor whose elements lie apart in memory."""
    if not _is_plain(x) or not x.ndim or not x.numel() or not x.is_contiguous():
        return copied(x)  # type: ignore[no-any-return]
    wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
    wide[..., ::2] = x
    return wide[..., ::2]


def _is_plain(x: Tensor) -> bool:
    return x.layout is torch.strided and not x.is_quantized and not x.is_conj() and not x.is_neg()


def _with_buffers(
    call: OverloadCall, overload: Any, truth: Callable[[], Any], results: Any, gaps: bool
) -> Iterator[Form]:
    """Yield the call with buffers for its results: of the right size with a NaN or an odd number
    in each place, empty ones, and ones with gaps. The op may refuse the last two.
    """
    outs = outputs_of(overload)
    parts = _parts(results)
    if len(outs) == 1 and "List" in str(outs[0].type):
        # an op that also writes to other arguments gives them back behind its results
        parts = [parts[0] if parts and isinstance(parts[0], (list, tuple)) else parts]
    if len(parts) != len(outs) or any(part is None for part in parts):
        return
    name = full_name(overload)
    kinds = [("filled", _filled, False), ("empty", _empty, True)]
    if gaps:
        kinds.append(("filled and with gaps", _with_gaps_filled, True))
    for label, make, may_refuse in kinds:
        run = _run_with(call, overload, parts, make)
        yield Form(name, f"{name} ({label})", run, truth, may_refuse)


def _run_with(
    call: OverloadCall, overload: Any, parts: list[Any], make: Callable[[Tensor], Tensor]
) -> Run:
    names = [one.name for one in outputs_of(overload)]
    others = [name for name in _written_names(overload) if name not in names]

    def run(target: Callable[..., object]) -> Any:
        buffers = [pytree.tree_map_only(Tensor, make, part) for part in parts]
        values = {**copied(_renamed(call, overload)), **dict(zip(names, buffers, strict=True))}
        given = OverloadCall(overload, values).on(values, target)
        if given is not None:
            for got, buffer in zip(
                pytree.tree_leaves(given), pytree.tree_leaves(buffers), strict=False
            ):
                if got is not buffer and got.data_ptr() != buffer.data_ptr():
                    raise Mismatch("the result is not the buffer")
        return [*buffers, *(values[name] for name in others)]

    return run


def _written_names(overload: Any) -> list[str]:
    return [overload._schema.arguments[place].name for place in written(overload)]


def _parts(results: Any) -> list[Any]:
    if isinstance(results, (tuple, list)):
        return list(results)
    return [results]


def _empty(x: Tensor) -> Tensor:
    if _is_plain(x):
        return x.new_empty(0)
    if x.is_quantized or x.layout in (
        *_COMPRESSED,
        MKLDNN,
    ):  # such a buffer has the size of the result
        return _filled(x)
    return torch.zeros_like(x)


_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def _filled(x: Tensor) -> Tensor:
    """Return a buffer of the size and dtype of a result, whose elements are wrong."""
    if x.layout in _COMPRESSED:
        full = x.clone()
        full.values().fill_(1)
        return full
    if x.is_quantized:
        return x.clone().copy_(torch.zeros(x.shape, device=x.device))
    if x.layout is MKLDNN:
        return torch.zeros(x.shape, dtype=x.dtype).to_mkldnn()
    if not _is_plain(x):
        return torch.zeros_like(x)
    return torch.full_like(x, _wrong(x.dtype), memory_format=torch.contiguous_format)


def _with_gaps_filled(x: Tensor) -> Tensor:
    return _with_gaps(_filled(x))


def _wrong(dtype: torch.dtype) -> float:
    return float("nan") if dtype.is_floating_point or dtype.is_complex else 1


def _fits(call: OverloadCall, results: Any) -> bool:
    """Return whether the first argument can hold the result."""
    first = _first(call)
    if isinstance(first, Tensor) and isinstance(results, Tensor):
        same = first.layout is results.layout and first.shape == results.shape
        # a truth is written as a number, and an op may refuse what else it would have to round
        return same and results.dtype in (first.dtype, torch.bool)
    return isinstance(first, list) and isinstance(results, (list, tuple))


def _holds_its_result(call: OverloadCall) -> bool:
    try:
        return _fits(call, call.run())
    except RuntimeError:  # a call that the plain op refuses
        return False


def _first(call: OverloadCall) -> Any:
    return call.values.get(call.overload._schema.arguments[0].name)


def _in_place(call: OverloadCall, overload: Any, truth: Callable[[], Any], results: Any) -> Form:
    """Return the call that writes to its first argument, of which only a view with gaps is given:
    what lies in the gaps must stay.
    """
    name = full_name(overload)
    place = overload._schema.arguments[0].name
    original = call.values[call.overload._schema.arguments[0].name]
    gaps = isinstance(original, Tensor) and not _is_view(call.overload) and not draws(overload)
    gaps = gaps and _is_plain(original) and original.ndim > 0

    def run(target: Callable[..., object]) -> Any:
        values = copied(_renamed(call, overload))
        if gaps:
            wide = original.new_ones((*original.shape[:-1], 2 * original.shape[-1]))
            wide[..., ::2] = original
            values[place] = wide[..., ::2]
        OverloadCall(overload, values).on(values, target)
        if gaps and not bool((wide[..., 1::2] == 1).all()):
            raise Mismatch("it writes beside the view that it is given")
        return [values[written_to] for written_to in _written_names(overload)]

    def rounded() -> Any:
        """Return the result in the dtype of the argument, such as ones for true."""
        expected = truth()
        if isinstance(original, Tensor) and isinstance(expected, Tensor):
            return expected.to(original.dtype)
        return expected

    return Form(name, name, run, rounded)


# --- lists ----------------------------------------------------------------------------------------


def _of_lists(call: OverloadCall) -> Iterator[Form]:
    """Yield the call for each of several tensors at once: what a loop over them gives."""
    first = _first(call)
    if not isinstance(first, Tensor) or not _is_plain(first):
        return
    for base in (f"_foreach_{call.base}", f"_foreach_{call.base}_"):
        for overload in overloads_of(base):
            if not has_kernel(full_name(overload)):
                continue
            rows = _rows_of(call, overload)
            if rows is not None:
                yield from _list_forms(overload, *rows)


def _rows_of(call: OverloadCall, overload: Any) -> tuple[dict[str, Any], list[OverloadCall]] | None:
    """Return the arguments of an overload of lists, and the single calls that a loop makes."""
    sources = [one for one in call.overload._schema.arguments if not one.is_out]
    wanted = [one for one in overload._schema.arguments if not one.is_out]
    if len(wanted) > len(sources) or not _are_default(call, sources[len(wanted) :]):
        return None
    lists: dict[str, Any] = {}
    singles: list[dict[str, Any]] = [dict(call.values) for _ in range(_FRESH)]
    for source, one in zip(sources, wanted, strict=False):
        if source.name not in call.values:
            return None
        row = _row(call.values[source.name], str(source.type), one)
        if row is None:
            return None
        lists[one.name], elements = row
        for single, element in zip(singles, elements, strict=True):
            single[source.name] = element
    numbers = [one for one in lists.values() if not isinstance(one, list)]
    numbers += [one for row in lists.values() if isinstance(row, list) for one in row]
    tensors = [one for row in lists.values() if isinstance(row, list) for one in row]
    kinds = [_category(one.dtype) for one in tensors if isinstance(one, Tensor)]
    highest = min(kinds, default=0)
    if any(_is_number(one) and _category_of(one) > highest for one in numbers):
        return None
    return lists, [OverloadCall(call.overload, single) for single in singles]


def _row(value: Any, source: str, one: Any) -> tuple[Any, list[Any]] | None:
    """Return an argument for a list of tensors, and that of each single call."""
    wanted = str(one.type)
    if wanted == "List[Tensor]":
        if not isinstance(value, Tensor):
            return None
        elements = [value, _other(value), value]
        return elements, elements
    if wanted in ("List[number]", "List[Scalar]") or (one.name, wanted) == ("scalars", "Tensor"):
        return _row_of_numbers(value, packed=wanted == "Tensor")
    if wanted == "Tensor":
        return _row_of_one(value)
    converted = _as_kind(value, source, one)
    if converted is None:
        return None
    given, original = converted
    return given, [value if original is None else original] * _FRESH


def _row_of_one(value: Any) -> tuple[Any, list[Any]] | None:
    """Return one tensor without dimensions for all tensors."""
    if isinstance(value, Tensor):
        found = _number_of(value)
        return None if found is None else (found[1], [found[1]] * _FRESH)
    if not isinstance(value, (int, float, complex)):
        return None
    one = _as_tensor(value)
    return one, [value] * _FRESH


def _row_of_numbers(value: Any, *, packed: bool) -> tuple[Any, list[Any]] | None:
    """Return a number for each tensor, as a list or a tensor, and that of each single call."""
    if isinstance(value, Tensor):
        found = _number_of(value)
        if found is None or packed:
            return None
        return [found[0]] * _FRESH, [found[1]] * _FRESH
    if not isinstance(value, (int, float, complex)):
        return None
    numbers = [value, value + 1, value]
    return (_as_tensor_of(numbers) if packed else numbers), numbers


def _as_tensor_of(numbers: list[Any]) -> Tensor:
    return torch.stack([_as_tensor(number) for number in numbers])


def _other(x: Tensor) -> Tensor:
    """Return a tensor of the same kind with its elements in another order."""
    return x.flip(0).contiguous() if x.ndim else x.clone()


def _list_forms(
    overload: Any, lists: dict[str, Any], singles: list[OverloadCall]
) -> Iterator[Form]:
    """Yield the forms of a call of lists: with results, with buffers, or in place."""
    name = full_name(overload)

    def truth() -> Any:
        return [single.run() for single in singles]

    first = overload._schema.arguments[0].name
    places = written(overload)
    if outputs_of(overload):
        (out,) = [one.name for one in outputs_of(overload)]

        def with_buffers(target: Callable[..., object]) -> Any:
            buffers = [_filled(result) for result in truth()]
            values = {**copied(lists), out: buffers}
            OverloadCall(overload, values).on(values, target)
            return buffers

        yield Form(name, name, with_buffers, truth)
    elif places:

        def in_place(target: Callable[..., object]) -> Any:
            values = copied(lists)
            OverloadCall(overload, values).on(values, target)
            return values[first]

        if all(map(_holds_its_result, singles)):
            yield Form(name, name, in_place, truth)
    else:

        def plain(target: Callable[..., object]) -> Any:
            values = copied(lists)
            return OverloadCall(overload, values).on(values, target)

        yield Form(name, name, plain, truth)
