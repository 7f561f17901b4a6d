"""What a tensor of a class consists of, and how it is made of its parts again.

Inside: ``runtime.aot.capture.subclass_parts``. Programs keep layouts, and no public name shows one
or says when two of them are equal."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from runtime.aot.capture.subclass_parts import (
    Context,
    Layout,
    Layouts,
    composed,
    count,
    flattened,
    key_of,
    layout_of,
    names_of_parts,
    numbers,
    rebuilt,
    refuse_functions,
    refuse_opaque,
)
from tests.runtime.aot.subclass_helpers import Opaque, Scaled, compiled


class Shaped(torch.Tensor):
    """Says sizes and strides that need not be those of its parts."""

    @staticmethod
    def __new__(cls, size: Any, stride: Any, context: Any, *inside: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, size, strides=stride, dtype=torch.float32)

    def __init__(self, size: Any, stride: Any, context: Any, *inside: torch.Tensor) -> None:
        # tensors of torch 2.12 have an attribute `names`
        self.context, self.parts = context, list("abc"[: len(inside)])
        vars(self).update(zip(self.parts, inside, strict=True))

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return self.parts, self.context

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor], context: Any, size: Any, stride: Any
    ) -> Shaped:
        return Shaped(size, stride, context, *inner.values())

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return func(*(vars(t)["a"] if isinstance(t, Shaped) else t for t in args), **(kwargs or {}))


def two(*sizes: int) -> TwoTensor:
    return TwoTensor(torch.ones(sizes), torch.zeros(sizes))


def nested() -> TwoTensor:
    return TwoTensor(two(2, 3), two(2, 3))


def of(t: Any, sized: bool = False) -> Layout:
    found = layout_of(t, sized)
    assert found is not None
    return found


def test_plain_tensors_and_numbers_are_their_own_only_part() -> None:
    x = torch.ones(2)
    for one in (x, 3, None, torch.nn.Parameter(x)):
        assert not composed(one) and layout_of(one) is None and list(flattened(one)) == [one]


def test_parts_come_in_order_down_to_the_plain_tensors() -> None:
    t = nested()
    assert (
        composed(t)
        and [p is q for p, q in zip(flattened(t), (t.a.a, t.a.b, t.b.a, t.b.b), strict=True)]
        == [True] * 4
    )
    assert of(t).n == 4 and of(two(3)).n == 2
    assert names_of_parts(of(t)) == [".a.a", ".a.b", ".b.a", ".b.b"] and names_of_parts(None) == [
        ""
    ]


def test_a_tensor_is_put_together_from_other_parts() -> None:
    made = of(nested()).rebuilt(iter([torch.full((2, 3), float(i)) for i in range(5)]))
    assert [p[0, 0].item() for p in flattened(made)] == [0, 1, 2, 3] and made.shape == (2, 3)
    scaled = of(Scaled(torch.ones(2), 4.0)).rebuilt(iter([torch.full((2,), 2.0)]))
    assert type(scaled) is Scaled and scaled.scale == 4.0 and scaled.elements.tolist() == [2.0, 2.0]


def test_values_of_several_layouts_take_as_many_tensors_as_they_consist_of() -> None:
    layouts = [None, of(two(2)), None, of(nested())]
    assert count(layouts) == 1 + 2 + 1 + 4 and count([]) == 0
    assert numbers(layouts, [0, 1, 2, 3]) == list(range(8))
    assert numbers(layouts, [3, 1]) == [4, 5, 6, 7, 1, 2] and numbers(layouts, [2]) == [3]
    plain = [torch.full((2, 3), float(i)) for i in range(8)]
    first, second, third, fourth = rebuilt(layouts, plain)
    assert first is plain[0] and third is plain[3]
    assert [p[0, 0].item() for p in (*flattened(second), *flattened(fourth))] == [1, 2, 4, 5, 6, 7]


def test_a_layout_for_one_size_has_numbers_and_one_for_any_size_says_whose_they_are() -> None:
    t = TwoTensor(torch.ones(3, 4), torch.ones(3, 4))
    assert of(t).size == (3, 4) and of(t).stride == (4, 1)
    assert of(t, sized=True).size == ((0, 0), (0, 1)) and of(t, sized=True).stride == 0
    other = of(t, sized=True).rebuilt(iter([torch.ones(5, 2), torch.ones(5, 2)]))
    assert other.shape == (5, 2) and other.stride() == (2, 1)
    turned = TwoTensor(torch.ones(4, 3).t(), torch.ones(4, 3).t())
    assert of(turned).stride == (1, 3)


# sizes and strides, those of the parts, and where they come from
SIZED: list[tuple[Any, Any, Any, Any, Any]] = [
    ((3, 2), (2, 1), [(3, 2)], ((0, 0), (0, 1)), 0),
    ((3, 2), (1, 3), [(2, 3)], ((0, 1), (0, 0)), (1, 3)),  # the part is transposed
    ((4, 2), (2, 1), [(3,), (4, 2)], ((1, 0), (1, 1)), 1),
    ((3, 3), (3, 1), [(3,), (3, 3)], ((0, 0), (1, 1)), 1),
    # a size that no part has, and the strides of a contiguous tensor
    ((5, 7), (7, 1), [(5,)], ((0, 0), 7), None),
    ((5, 7), (9, 1), [(5,)], ((0, 0), 7), (9, 1)),
    ((2, 0, 3), (3, 3, 1), [(1,)], (2, 0, 3), None),
    ((), (), [(1,)], (), None),
]


@pytest.mark.parametrize(("size", "stride", "parts", "sizes", "strides"), SIZED)
def test_for_any_size_a_size_is_that_of_the_part_that_has_it(
    size: Any, stride: Any, parts: Any, sizes: Any, strides: Any
) -> None:
    t = Shaped(size, stride, None, *(torch.ones(p) for p in parts))
    assert (of(t, sized=True).size, of(t, sized=True).stride) == (sizes, strides)
    assert (of(t).size, of(t).stride) == (size, stride)
    for sized in (True, False):
        made = of(t, sized).rebuilt(flattened(t))
        assert (made.shape, made.stride()) == (size, stride)


def test_strides_are_not_those_of_a_sparse_part() -> None:
    t = Shaped((2, 3), (3, 1), None, torch.ones(2, 3).to_sparse(), torch.ones(2, 3))
    assert of(t, sized=True).stride == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda x: Shaped((x.shape[0],), (1,), None, torch.ones(2), x),
        lambda x: Shaped((5,), (1,), "text", x),
        # no graph for any size can say these: there is one for each
        lambda x: Shaped((x.shape[0] * 2,), (1,), None, x),
        lambda x: Shaped((x.shape[0],), (x.shape[0],), None, x),
        lambda x: Shaped((2,), (1,), x.shape[0], x),
    ],
)
def test_sizes_of_a_result_are_those_of_a_part_or_numbers(f: Any) -> None:
    run = compiled(f, dynamic=True)
    for n in (4, 6):
        found, expected = run(torch.ones(n)), f(torch.ones(n))
        assert (found.shape, found.stride(), found.context) == (
            expected.shape,
            expected.stride(),
            expected.context,
        )
        assert [p.shape for p in flattened(found)] == [p.shape for p in flattened(expected)]


def test_plain_tensors_alone_have_no_layouts() -> None:
    x = torch.ones(2)
    assert Layouts.of([None], [x], [None], [x], False) is None
    layout = of(two(2))
    for i, one in enumerate(([layout], [two(2)], [layout], [two(2)])):
        given: list[Any] = [[None], [x], [None], [x]]
        given[i] = one
        primals, results, tangents, gradients = given
        found = Layouts.of(primals, results, tangents, gradients, False)
        assert found is not None
        each = [
            layouts[0]
            for layouts in (found.primals, found.results, found.tangents, found.gradients)
        ]
        assert [layout is not None for layout in each] == [i == j for j in range(4)]


def test_layouts_of_one_class_context_and_structure_have_one_key() -> None:
    assert key_of(of(two(2))) == key_of(of(two(5, 3)))
    assert key_of(of(two(2))) != key_of(of(nested())) != key_of(of(Scaled(torch.ones(2), 1.0)))
    assert (
        key_of(of(Scaled(torch.ones(2), 1.0)))
        == key_of(of(Scaled(torch.ones(3), 1.0)))
        != key_of(of(Scaled(torch.ones(2), 2.0)))
    )


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        (2.0, 2.0, True),
        (2.0, 3.0, False),
        (2, 2.0, False),
        (True, 1, False),
        (0.0, -0.0, False),
        (float("nan"), float("nan"), True),
        (0j, -0j, False),
        ("a", "a", True),
        ([1, (2, "x")], [1, (2, "x")], True),
        ([1, 2], (1, 2), False),
        ([1, 2], [1, 2, 3], False),
        ({"k": 1}, {"k": 1}, True),
        ({"k": 1}, {"j": 1}, False),
        (None, None, True),
        (None, 0, False),
    ],
)
def test_contexts_are_equal_if_their_leaves_are_and_of_the_same_types(
    a: Any, b: Any, equal: bool
) -> None:
    assert (Context(Scaled, a) == Context(Scaled, b)) is equal
    assert (Context(Scaled, a) != Context(Scaled, b)) is not equal
    assert Context(Scaled, a) != Context(TwoTensor, a) and Context(Scaled, a) != a


def test_a_tensor_in_a_context_is_equal_to_itself_alone() -> None:
    x = torch.ones(2)
    assert Context(Scaled, [x]) == Context(Scaled, [x]) != Context(Scaled, [x.clone()])


def test_an_object_and_an_array_in_a_context_are_equal_to_themselves_alone() -> None:
    marker, array = object(), np.ones(2)
    assert Context(Scaled, marker) == Context(Scaled, marker) != Context(Scaled, object())
    assert Context(Scaled, array) != Context(Scaled, array)  # which may be written to


def test_contexts_of_one_class_have_one_hash_and_are_told_as_they_are() -> None:
    assert hash(Context(Scaled, 2.0)) == hash(Context(Scaled, 3.0)) != hash(Context(TwoTensor, 2.0))
    assert repr(Context(Scaled, {"by": 2.0})) == "{'by': 2.0}"


def test_a_context_is_as_it_was_when_the_layout_was_made() -> None:
    class Settings:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, value: int) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Settings) and self.value == other.value

    settings = Settings(1)
    context = Context(Scaled, settings)
    settings.value = 2
    assert context == Context(Scaled, Settings(1)) != Context(Scaled, settings)
    assert context.value.value == 1


def test_a_class_may_say_which_contexts_are_equal() -> None:
    class Lenient(Scaled):
        @classmethod
        def __metadata_guard__(cls, old: Any, new: Any) -> bool:
            return bool(new >= old)

    assert Context(Lenient, 1.0) == Context(Lenient, 2.0) and Context(Lenient, 2.0) != Context(
        Lenient, 1.0
    )


def test_a_part_that_is_no_tensor_is_refused_by_its_name() -> None:
    t = two(2)
    t.b = 3
    with pytest.raises(
        TypeError, match="__tensor_flatten__ of TwoTensor names 'b', which is a int and no tensor"
    ):
        list(flattened(t))


def test_a_tensor_that_does_not_say_what_it_consists_of_is_refused_as_a_part_too() -> None:
    for t in (torch.ones(2), torch.nn.Parameter(torch.ones(2)), two(2), Subclass(2), None, 3):
        refuse_opaque(t)
    for run in (
        lambda: refuse_opaque(Opaque(torch.ones(2))),
        lambda: list(flattened(TwoTensor(torch.ones(2), Opaque(torch.ones(2))))),
    ):
        with pytest.raises(
            RuntimeError, match="a Opaque is among the arguments or closed-over tensors"
        ):
            run()


class Subclass(torch.Tensor):
    """Leaves its calls to torch."""


class Talking(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]


class Handling(TwoTensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class Static(TwoTensor):
    @staticmethod
    def __torch_function__(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


class Inheriting(TwoTensor):
    __torch_function__ = torch.Tensor.__torch_function__


class Disabling(TwoTensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("kind", "refused"),
    [(Handling, True), (Static, True), (Inheriting, False), (Disabling, False), (TwoTensor, False)],
)
def test_a_composed_tensor_that_handles_functions_of_torch_is_refused(
    kind: Any, refused: bool
) -> None:
    made = kind(torch.ones(2), torch.ones(2))
    with (
        pytest.raises(RuntimeError, match=f"a {kind.__name__} is among")
        if refused
        else nullcontext()
    ):
        refuse_functions([None, torch.ones(2), Subclass(2), Talking(2), made])


def test_a_layout_is_told_with_its_parts_and_context() -> None:
    assert str(of(Scaled(torch.ones(2), 4.0))) == "Scaled(elements=Tensor; context 4.0)"
    assert str(of(nested())) == "TwoTensor(a={0}, b={0}; context None)".format(
        "TwoTensor(a=Tensor, b=Tensor; context None)"
    )
