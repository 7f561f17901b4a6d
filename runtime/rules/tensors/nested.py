"""Register the ops on nested tensors for which ATen has kernels. Their derivatives follow from
those of dense tensors.

A nested tensor has no shape, but its components are consecutive parts of a buffer. Elementwise
formulas of dense records run on buffers. All other formulas run on one component at a time. So
formulas need only the few ops that convert between nested and dense tensors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ...errors import MissingRule, NestedTensor
from ...torch_private.native_functions import (
    nested_from_list,
    nested_from_padded,
    nested_view_from_buffer,
)
from ..derive.optional import map_optional
from ..elementwise import activation, pointwise  # noqa: F401 - their records are used here
from ..layers import layer_norm  # noqa: F401 - their records are used here
from ..linalg.matmul import adjoint
from ..record import (
    NESTED,
    RECORDS,
    Formula,
    NestedMeta,
    asking,
    kernels,
    overload,
    parameters,
    register,
)
from ..reduction import softmax  # noqa: F401 - their records are used here
from ..shape import joining, views  # noqa: F401 - their records are used here
from . import core  # noqa: F401 - their records are used here

Tensor = torch.Tensor
Gradients = Sequence[Tensor | None]


def values(n: Tensor) -> Tensor:
    """Return the components of ``n``, joined to one vector."""
    buffer: Tensor = n.contiguous().values()
    if len(buffer) > n.numel():  # a leading part of a larger buffer counts as contiguous
        buffer = torch.cat([part.reshape(-1) for part in n.unbind()])
    return buffer


def nest(parts: Iterable[Tensor]) -> Tensor:
    """Return a nested tensor of these components."""
    return nested_from_list(list(parts))


def _within(dim: int) -> int:
    """Return the dimension of the components for the dimension ``dim`` of a nested tensor."""
    if dim > 0:
        return dim - 1
    return dim


def _fill_with_zeros(gs: Gradients, shapes: Iterable[Sequence[int]]) -> list[Tensor]:
    """Return ``gs`` with zeros of these shapes in place of None."""
    some = next(g for g in gs if g is not None)
    defined = []
    for g, shape in zip(gs, shapes, strict=True):
        if g is None:
            g = some.new_zeros(shape)
        defined.append(g)
    return defined


# ---- from dense tensors to nested ones


def _transposed_padding(
    g: Tensor, padded_shape: Sequence[int], fuse_transform_0213: bool
) -> Tensor:
    """Return the cotangent of the padded tensor, with zeros where it was padded."""
    if fuse_transform_0213:
        raise MissingRule(
            "aten._nested_from_padded.default", "vjp", case="with fuse_transform_0213"
        )
    return g.to_padded_tensor(0.0, padded_shape)


def _from_buffer(
    g: Tensor, self_geometry: Any, nested_size: Tensor, nested_strides: Tensor, offsets: Tensor
) -> Tensor:
    """Return the gradient of the buffer: at each place the cotangent of the component elements that
    show it."""
    (n,), (stride,), first = self_geometry
    if first or (stride != 1 and n > 1):
        raise RuntimeError(
            "_nested_view_from_buffer() reads from the start of the buffer's storage. "
            "Pass a buffer that fills its storage (clone())"
        )
    # the same view of the numbers of places says where each element comes from
    buffer = values(g)
    places = nested_view_from_buffer(
        torch.arange(n, device=g.device), nested_size, nested_strides, offsets
    )
    return buffer.new_zeros(n).index_add(0, values(getattr(places, "_inner", places)), buffer)


def _no_batch(*_: object) -> object:
    raise NestedTensor


_no_batch.refuses = True  # type: ignore[attr-defined]  # no rule to be tested

for _name, _vjp in (
    ("_nested_tensor_from_tensor_list", {"list": lambda g: g.unbind()}),
    ("_nested_tensor_from_mask", {"t": lambda g, t_shape: g.to_padded_tensor(0.0, t_shape)}),
    ("_nested_from_padded", {"padded": _transposed_padding}),
    ("_nested_view_from_buffer", {"self": _from_buffer}),
):
    register(_name, vjp=_vjp, batch=_no_batch, family="nested")


# ---- elementwise


def _on_buffers(formula: Formula, target: str) -> Formula:
    """Return an elementwise formula as one of nested tensors, which runs on their buffers.
    ``target``: the argument whose gradient it returns."""

    def buffer_of(argument: object) -> Any:
        if isinstance(argument, Tensor) and argument.is_nested:
            return values(argument)
        return argument

    def gradient(target_nested: NestedMeta | None, *args: object) -> Any:
        g = formula(*map(buffer_of, args))
        if g is None or target_nested is None:  # the engine sums it for a dense target
            return g
        return target_nested.view(g)

    return asking(f"{target}_nested", *parameters(formula))(gradient)


def _derive(names: str, derived: Callable[[Formula, str], Formula]) -> None:
    """Register records for nested tensors, with formulas made from those for dense tensors."""
    for name in names.split():
        table: Any = RECORDS[overload(name)].vjp
        register(
            name,
            into=NESTED,
            vjp={target: derived(formula, target) for target, formula in table.items()},
            family="nested",
        )


_derive(
    "abs cos gelu gelu_backward neg relu sgn silu silu_backward sin sqrt tanh threshold_backward",
    _on_buffers,
)
_derive(
    (
        "add.Tensor div.Scalar div.Tensor masked_fill.Scalar mul.Scalar "
        "mul.Tensor sub.Tensor where.self"
    ),
    _on_buffers,
)
_derive("alias clone copy fill.Scalar fill.Tensor zero _to_copy", _on_buffers)


def _dropout_back(
    g: Tensor, input_nested: NestedMeta, result1: Tensor, p: float, train: bool | None
) -> Tensor:
    """Return the gradient of dropout, by its mask."""
    grad = values(result1) * values(g)
    if train is not False and p != 1:
        grad = grad / (1 - p)
    return input_nested.view(grad)


register("native_dropout", into=NESTED, vjp={"input": _dropout_back}, nondiff=(1,), family="nested")

# Ops for torch's tests of derivative registries. By definition their derivatives are not those of
# the functions that they compute.
register(
    "_test_autograd_multiple_dispatch.fullcoverage",
    into=NESTED,
    vjp={"self": lambda g: g * g},
    family="nested",
)
register(
    "_test_autograd_multiple_dispatch.ntonly",
    into=NESTED,
    vjp={"self": lambda g: g * g + g},
    family="nested",
)


# ---- views


def _of_parts(gs: Gradients, self_nested: NestedMeta) -> Tensor:
    return nest(_fill_with_zeros(gs, self_nested.parts()))


def _select_back(g: Tensor, self_nested: NestedMeta, dim: int, index: int) -> Tensor:
    """Return the gradient of a selected component, or of a selection in each component."""
    shapes = self_nested.parts()
    # dimension 0, also counted from the end, runs over the components
    if dim not in (0, -1 - len(shapes[0])):
        return nest(
            kernels.select_backward(part, shape, _within(dim), index)
            for part, shape in zip(g.unbind(), shapes, strict=True)
        )
    cotangents: list[Tensor | None] = [None] * len(shapes)
    cotangents[index] = g
    return nest(_fill_with_zeros(cotangents, shapes))


def _narrow_back(g: Tensor, self_nested: NestedMeta, start: int, length: int) -> Tensor:
    """Return the gradient of consecutive components."""
    shapes = self_nested.parts()
    cotangents: list[Tensor | None] = [None] * len(shapes)
    start %= len(shapes)
    cotangents[start : start + length] = g.unbind()
    return nest(_fill_with_zeros(cotangents, shapes))


def _join_back(gs: Gradients, result_nested: Sequence[NestedMeta], dim: int) -> Tensor:
    """Return the gradient of pieces along a dimension that all components share."""
    some = next(g for g in gs if g is not None)
    pieces: list[Sequence[Tensor]] = []
    for g, meta in zip(gs, result_nested, strict=True):
        if g is None:
            pieces.append([some.values().new_zeros(shape) for shape in meta.parts()])
        else:
            pieces.append(g.unbind())
    return nest(torch.cat(row, _within(dim)) for row in zip(*pieces, strict=True))


def _buffer(g: Tensor, self: Tensor) -> Tensor:
    """Return the gradient of ``values()`` as a nested tensor. Raise if the values do not fill the
    storage."""
    if len(g) != self.numel():
        raise RuntimeError(
            "values() has a gradient only if the nested tensor fills its storage. "
            "This one is a part of a larger one, and so are its copies. "
            "Use torch.cat([part.flatten() for part in n.unbind()])."
        )
    return nested_view_from_buffer(
        g.contiguous(),
        self._nested_tensor_size(),
        self._nested_tensor_strides(),
        self._nested_tensor_storage_offsets(),
    )


register("unbind.int", into=NESTED, vjp={"self": _of_parts}, family="nested")
register("select.int", into=NESTED, vjp={"self": _select_back}, family="nested")
register("narrow", into=NESTED, vjp={"self": _narrow_back}, family="nested")
register("chunk split_with_sizes", into=NESTED, vjp={"self": _join_back}, family="nested")
register("values", into=NESTED, vjp={"self": _buffer}, family="nested")
register(
    "transpose.int",
    into=NESTED,
    vjp={"self": lambda g, dim0, dim1: g.transpose(dim0, dim1)},
    family="nested",
)
register(
    "view _unsafe_view squeeze.dim squeeze.dims unsqueeze",
    into=NESTED,
    vjp={"self": lambda g, self_nested: self_nested.view(values(g))},
    family="nested",
)


# ---- joins and paddings


def _parts_of_cat(g: Tensor, tensors_nested: Sequence[NestedMeta], dim: int) -> list[Tensor]:
    """Return the components of each joined tensor."""
    if dim != 0:
        raise MissingRule(
            "aten.cat.default",
            "vjp",
            case="for nested tensors along another dimension than the first",
        )
    # the components of the joined tensors follow one another
    parts = iter(g.unbind())
    return [nest(itertools.islice(parts, len(meta.sizes))) for meta in tensors_nested]


register("cat", into=NESTED, vjp={"tensors": _parts_of_cat}, family="nested")
register(
    "to_padded_tensor",
    into=NESTED,
    vjp={
        "self": lambda g, self_nested: nested_from_padded(
            g[: len(self_nested.sizes)], self_nested.sizes
        )
    },
    family="nested",
)


def _rows_of_table(
    g: Tensor,
    indices: Tensor,
    weight_shape: Sequence[int],
    padding_idx: int,
    scale_grad_by_freq: bool,
    sparse: bool,
) -> object:
    """Return the gradient of an embedding table, by the indices of all components."""
    if sparse:
        raise MissingRule(
            "aten.embedding.default", "vjp", case="for nested indices with sparse=True"
        )
    return kernels.embedding_dense_backward(
        values(g).view(-1, weight_shape[1]),
        values(indices),
        weight_shape[0],
        padding_idx,
        scale_grad_by_freq,
    )


register("embedding", into=NESTED, vjp={"weight": _rows_of_table}, family="nested")


# ---- along dimensions of the components


def _by_parts(formula: Formula, target: str) -> Formula:
    """Return the formula applied to each component. ``dim`` is converted to a dimension of the
    component."""
    asks = parameters(formula)

    def column(name: str, argument: Any) -> Any:
        """Return what each component takes as the argument ``name``: a tuple, or one for all."""
        if isinstance(argument, Tensor):
            return argument.unbind()
        if name == "dim":
            return _within(argument)
        return argument

    def gradient(*args: object) -> Tensor:
        """Run the formula for each component, and nest the results."""
        # per argument: a tuple with what each component takes, or one value for all
        columns = [column(name, argument) for name, argument in zip(asks, args, strict=True)]
        n = next(len(entry) for entry in columns if isinstance(entry, tuple))
        for index, entry in enumerate(columns):
            if not isinstance(entry, tuple):
                columns[index] = (entry,) * n
        return nest(formula(*of_component) for of_component in zip(*columns, strict=True))

    return asking(*asks)(gradient)


_derive("_softmax _safe_softmax _softmax_backward_data", _by_parts)
register(
    "sum.dim_IntList",
    into=NESTED,
    vjp={"self": lambda g, self, dim, keepdim: kernels._nested_sum_backward(g, self, dim, keepdim)},
    family="nested",
)
register(
    "_nested_sum_backward",
    into=NESTED,
    vjp={"grad": lambda g, dim, keepdim: g.sum(dim, keepdim), "self": lambda: None},
    family="nested",
)

_layer_norm: Any = RECORDS[overload("native_layer_norm")].vjp[("input", "weight", "bias")]  # type: ignore[index]


def _normalize_back(
    gs: Gradients,
    input: Tensor,
    input_nested: NestedMeta,
    normalized_shape: Sequence[int],
    weight: object,
    bias: object,
    result1: Tensor,
    result2: Tensor,
    needs: object,
) -> tuple[object, ...]:
    """Return the gradients by the dense formula, for the rows of all components together."""
    row, mean = (-1, *normalized_shape), (-1, *(1 for _ in normalized_shape))
    g, *of_statistics = gs
    # the cotangents of the statistics are dense: one number for each row of all components
    gradients = (
        map_optional(lambda nested: values(nested).view(row), g),
        *(map_optional(lambda dense: dense.view(mean), each) for each in of_statistics),
    )
    by_input, *others = _layer_norm(
        gradients,
        values(input).view(row),
        normalized_shape,
        weight,
        bias,
        result1.view(mean),
        result2.view(mean),
        needs,
    )
    return (map_optional(input_nested.view, by_input), *others)


register(
    "native_layer_norm",
    into=NESTED,
    vjp={("input", "weight", "bias"): _normalize_back},
    family="nested",
)


# ---- products


def _rows(n: Tensor, width: int) -> Tensor:
    return values(n).view(-1, width)


register(
    "linear",
    into=NESTED,
    vjp={
        "input": lambda g, weight, input_nested: input_nested.view(
            _rows(g, len(weight)) @ weight.conj()
        ),
        "weight": lambda g, input, weight_shape: (
            _rows(g, weight_shape[0]).t() @ _rows(input, weight_shape[1]).conj()
        ),
        "bias": lambda g, bias_shape: _rows(g, bias_shape[0]).sum(0),
    },
    family="nested",
)


def _nest(parts: Iterable[Tensor], meta: NestedMeta | None) -> Tensor:
    """Return the tensor of these components, nested if a factor with ``meta`` is."""
    if meta is None:
        return torch.stack(list(parts))
    return nest(parts)


def _by_left(g: Tensor, other: Tensor, self_nested: NestedMeta | None) -> Tensor:
    pairs = zip(g.unbind(), other.unbind(), strict=True)
    return _nest((x @ adjoint(y) for x, y in pairs), self_nested)


def _by_right(g: Tensor, self: Tensor, other_nested: NestedMeta | None) -> Tensor:
    pairs = zip(self.unbind(), g.unbind(), strict=True)
    return _nest((adjoint(x) @ y for x, y in pairs), other_nested)


register("matmul", into=NESTED, vjp={"self": _by_left, "other": _by_right}, family="nested")
register(
    "bmm",
    into=NESTED,
    vjp={
        "self": asking("g", "mat2", "self_nested")(_by_left),
        "mat2": asking("g", "self", "mat2_nested")(_by_right),
    },
    family="nested",
)
