"""An exported program takes the sizes that its Dims say, and refuses all others, also when
torch has loaded it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.export import Dim
from torch.utils._pytree import tree_map_only

from runtime.aot import export

N, M = Dim("n", min=2, max=40), Dim("m", min=3, max=7)
AUTO = Dim.AUTO


def ones(*sizes: int) -> torch.Tensor:
    return torch.arange(1.0, 1.0 + torch.Size(sizes).numel()).view(sizes)


@dataclass
class Case:
    """``f`` with ``dims`` for its arguments x and y. ``sizes``: of the example, of other arguments,
    of refused ones."""

    f: Callable[..., Any]
    dims: tuple[Any, Any]
    example: tuple[int, int]
    others: tuple[int, int]
    refused: tuple[int, int]


def by_size(x: Any, y: Any) -> Any:
    return x.sum() + y.sum() if y.shape[0] == 2 * x.shape[0] else x.sum() - y.sum()


CASES = {
    "a multiple": Case(lambda x, y: y.view(2, -1).sum(0) + x, (N, 2 * N), (4, 8), (6, 12), (6, 11)),
    "before its root": Case(
        lambda x, y: x.view(2, -1).sum(0) + y, (2 * N, N), (8, 4), (12, 6), (12, 5)
    ),
    "a sum": Case(lambda x, y: x[1:] * y, (N + 1, N), (5, 4), (9, 8), (9, 9)),
    "a sum of a multiple": Case(
        lambda x, y: torch.cat([x, x, x[:1]]) * y, (N, 2 * N + 1), (4, 9), (6, 13), (6, 12)
    ),
    "a Dim of a derived Dim": Case(
        lambda x, y: x.sum() * y, (N, (2 * N + 1) + 2), (4, 11), (7, 17), (7, 16)
    ),
    "what the program does not need": Case(
        lambda x, y: x.sum() + y.sum(), (N, 2 * N), (4, 8), (6, 12), (6, 11)
    ),
    "siblings without their root": Case(
        lambda x, y: x.sum() * y, (2 * N, 3 * N), (8, 12), (6, 9), (6, 12)
    ),
    "siblings of a sum without their root": Case(
        lambda x, y: x.sum() * y, (2 * N + 1, 3 * N), (9, 12), (7, 9), (7, 12)
    ),
    "a multiple of three and one": Case(
        lambda x, y: x * y.sum(), (3 * N + 1, None), (7, 2), (10, 2), (9, 2)
    ),
    "one without its root": Case(
        lambda x, y: x * y.sum(), (2 * N + 1, None), (9, 2), (13, 2), (12, 2)
    ),
    "the range of the root": Case(lambda x, y: x.sum() * y, (N, 2 * N), (4, 8), (40, 80), (41, 82)),
    "the range of a root that is no size": Case(
        lambda x, y: x * y.sum(), (2 * N, None), (8, 2), (80, 2), (82, 2)
    ),
    "a relation that the program finds": Case(by_size, (AUTO, AUTO), (4, 8), (6, 12), (6, 11)),
}


@pytest.mark.parametrize("what", CASES)
def test_sizes_that_are_computed_from_others(what: str) -> None:
    case = CASES[what]
    x, y = case.dims
    shapes = {"x": {0: x}, "y": None if y is None else {0: y}}
    program = export(case.f, tuple(map(ones, case.example)), dynamic_shapes=shapes)
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    for module in (program.module(), torch.export.load(buffer).module()):
        for sizes in (case.example, case.others):
            given = tuple(map(ones, sizes))
            torch.testing.assert_close(module(*given), case.f(*given))
        with pytest.raises((RuntimeError, AssertionError)):
            module(*map(ones, case.refused))


def test_a_condition_on_several_sizes_names_each() -> None:
    program = export(
        lambda x, y: x.sin().sum() * y if x.shape[0] + y.shape[0] > 6 else y,
        (ones(5), ones(4)),
        dynamic=True,
    )
    says = (
        r"right for .* alone; s\d+ is dimension 0 of argument \[0\], "
        r"s\d+ is dimension 0 of argument \[1\]"
    )
    with pytest.raises(RuntimeError, match=says):
        program.module()(ones(2), ones(3))


def test_the_condition_names_the_dimensions() -> None:
    case = CASES["what the program does not need"]
    program = export(case.f, (ones(4), ones(8)), dynamic_shapes={"x": {0: N}, "y": {0: 2 * N}})
    with pytest.raises(
        RuntimeError,
        match=(
            r"dimension 0 of argument \[1\] is 2\*s\d+ alone; "
            r"s\d+ is dimension 0 of argument \[0\]"
        ),
    ):
        program.module()(ones(6), ones(11))


@pytest.mark.parametrize(
    ("dims", "sizes"), [((N, 2 * N), (4, 9)), ((2 * N, None), (9, 2)), ((2 * N, 3 * N), (8, 13))]
)
def test_an_example_that_is_not_what_a_dim_says_is_refused(
    dims: tuple[Any, Any], sizes: tuple[int, int]
) -> None:
    shapes = {"x": {0: dims[0]}, "y": None if dims[1] is None else {0: dims[1]}}
    with pytest.raises(
        ValueError, match=r"Dim '\d\*n', dimension 0 of argument .* has size \d+ in the example"
    ):
        export(lambda x, y: x.sum() + y.sum(), tuple(map(ones, sizes)), dynamic_shapes=shapes)


def test_a_program_that_needs_another_relation_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the program is right for size|the program needs it to be"
    ):
        export(lambda x, y: x[: y.shape[0]] + y[: x.shape[0]] if y.shape[0] == 8 else x,
            (ones(4), ones(8)),
               dynamic_shapes={"x": {0: N}, "y": {0: 2 * N}})  # fmt: skip


def test_a_size_of_which_the_program_makes_a_number_is_the_only_one() -> None:
    program = export(lambda x: x * int(x.shape[1]), (ones(3, 4),), dynamic=True)
    assert program.module()(ones(5, 4)).equal(ones(5, 4) * 4)
    with pytest.raises(RuntimeError, match=r"right if dimension 1 of argument .* is 4 alone$"):
        program.module()(ones(3, 8))


@pytest.mark.parametrize(
    "f", [lambda x: x.chunk(3), lambda x: x.unsafe_chunk(3)], ids=["chunk", "unsafe_chunk"]
)
def test_a_size_with_too_few_pieces_is_refused_by_its_condition(f: Any) -> None:
    program = export(f, (torch.ones(12),), dynamic_shapes={"x": {0: Dim.AUTO}})
    loaded = io.BytesIO()
    torch.export.save(program, loaded)
    loaded.seek(0)
    for module in (program.module(), torch.export.load(loaded).module()):
        assert [t.shape[0] for t in module(torch.ones(13))] == [5, 5, 3]
        with pytest.raises(
            RuntimeError,
            match=r"the exported program is right for .* is dimension 0 of argument \[0\]",
        ):
            module(torch.ones(4))  # two pieces


def f_of_all(x: Any, y: Any = None, *rest: Any, scale: Any = None, **more: Any) -> Any:
    return x


T = torch.ones(2, 3)
# the sizes that a dimension may have
OF_N, OF_M, OF_AUTO = (2, 40), (3, 7), (2, None)


def sizes_that_vary(program: torch.export.ExportedProgram) -> list[Any]:
    """Return for each argument which of its sizes are in which range. ``None`` for what is no
    tensor."""
    ranges = {str(size): range_ for size, range_ in program.range_constraints.items()}

    def varying(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return None
        return {i: _bounds(ranges[str(n)]) for i, n in enumerate(x.shape) if str(n) in ranges}

    return [varying(n.meta["val"]) for n in program.graph.nodes if n.op == "placeholder"]


def _bounds(range_: Any) -> tuple[int, int | None]:
    return int(range_.lower), int(range_.upper) if range_.upper < 10**6 else None


@pytest.mark.parametrize(
    ("args", "kwargs", "shapes", "expected"),
    [
        ((T, 3, [T, None]), {}, None, [{}, None, {}, None]),
        ((T, T), {}, ({0: N}, None), [{0: OF_N}, {}]),
        ((T, T), {}, [None, {1: AUTO}], [{}, {1: OF_AUTO}]),
        ((T,), {"scale": T}, ({0: N}, {1: M}), [{0: OF_N}, {1: OF_M}]),
        ((T,), {"scale": T}, {"scale": {0: N}}, [{}, {0: OF_N}]),
        ((T, T), {}, {"y": {0: N}}, [{}, {0: OF_N}]),
        ((T, T, T, T), {}, {"rest": [None, {0: N}]}, [{}, {}, {}, {0: OF_N}]),
        ((T, T, T), {}, {"x": {0: N}}, [{0: OF_N}, {}, {}]),
        ((T,), {"a": T, "b": T}, {"more": {"b": {0: N}}}, [{}, {}, {0: OF_N}]),
        ((T,), {}, ((N, None),), [{0: OF_N}]),
        ((T,), {}, ([None, AUTO],), [{1: OF_AUTO}]),
        (({"p": T, "q": [T, T]},), {}, ({"q": [None, {0: N}]},), [{}, {}, {0: OF_N}]),
        (((T, (T, 5)),), {}, (({0: N}, ({1: M}, None)),), [{0: OF_N}, {1: OF_M}, None]),
    ],
)
def test_dynamic_shapes_say_something_of_each_tensor(
    args: Any, kwargs: Any, shapes: Any, expected: Any
) -> None:
    args, kwargs = tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
    program = export(f_of_all, args, kwargs, dynamic_shapes=shapes)
    assert sizes_that_vary(program) == expected


@pytest.mark.parametrize(
    ("args", "shapes", "error", "says"),
    [
        (
            (T,),
            3,
            TypeError,
            "dict by name of argument, or a tuple with an item per argument, not <class 'int'>",
        ),
        ((T,), (None, None), ValueError, "has 2 items for 1 arguments"),
        (
            ([T, T],),
            ([{0: N}],),
            ValueError,
            "says .* of an argument of type list, which does not have that structure",
        ),
        (({"p": T},), ([{0: N}],), ValueError, "of an argument of type dict"),
        (([T],), ({0: N},), ValueError, "of an argument of type list"),
        ((5,), ({0: N},), ValueError, "of an argument of type int"),
        (
            (T,),
            {"x": None, "z": None, "a": None},
            ValueError,
            r"has \['a', 'z'\], which are no parameters",
        ),
    ],
)
def test_dynamic_shapes_of_another_structure_are_refused(
    args: Any, shapes: Any, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        export(f_of_all, args, dynamic_shapes=shapes)


def test_a_size_of_one_is_constant_in_an_automatic_dimension_and_refused_in_a_named_one() -> None:
    program = export(lambda x: x * 2, (ones(1, 3),), dynamic_shapes=({0: AUTO, 1: AUTO},))
    assert program.module()(ones(1, 5)).equal(ones(1, 5) * 2)
    with pytest.raises((RuntimeError, AssertionError)):
        program.module()(ones(2, 3))
    with pytest.raises(
        ValueError,
        match=(
            r"Dim 'n', dimension 0 of argument \[0\] has size 1 in the example. "
            r"Sizes 0 and 1 are constants"
        ),
    ):
        export(lambda x: x * 2, (ones(1, 3),), dynamic_shapes=({0: N},))
    with pytest.raises(
        ValueError,
        match=r"the dimension marked .*DYNAMIC.*, dimension 0 of .* has size 1 in the example",
    ):
        export(lambda x: x * 2, (ones(1, 3),), dynamic_shapes=({0: Dim.DYNAMIC},))


@pytest.mark.parametrize(
    ("dim", "sizes", "refused"),
    [
        (Dim("m", min=3, max=6), (3, 6), (2, 7)),
        (Dim("m", max=6), (2, 6), (1, 7)),
        (Dim("m", min=3), (3, 60), (2,)),
        (Dim("m", min=0), (2, 60), ()),
        (2 * Dim("m", min=2, max=3), (4, 6), (2, 8, 5)),
        (Dim("m", max=5) + 1, (4, 6), (7,)),
    ],
)
def test_a_program_takes_the_sizes_between_the_bounds_of_its_dim(
    dim: Any, sizes: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    run = export(lambda x: x * 2, (ones(4),), dynamic_shapes=({0: dim},)).module()
    for n in sizes:
        assert run(ones(n)).equal(ones(n) * 2)
    for n in refused:
        with pytest.raises((RuntimeError, AssertionError)):
            run(ones(n))


@pytest.mark.parametrize(
    ("f", "dim", "says"),
    [
        (
            lambda x: x.sin() if x.shape[0] < 9 else x,
            Dim("n", min=2, max=20),
            r"needs 2 <= size <= 8. Say Dim\('n', max=8\)",
        ),
        (
            lambda x: x.sin() if x.shape[0] < 9 else x,
            Dim("n", max=20),
            r"needs 2 <= size <= 8. Say Dim\('n', max=8\)",
        ),
        (
            lambda x: x.sin() if x.shape[0] >= 4 else x,
            Dim("n", min=3, max=20),
            r"needs 4 <= size <= 20. Say Dim\('n', min=4\)",
        ),
        (lambda x: x.sin() if x.shape[0] % 2 else x, Dim("n", max=20), None),
        (lambda x: x.sin() if x.shape[0] <= 8 else x, Dim("n", max=8), None),
        (lambda x: x.sin() if x.shape[0] >= 2 else x, Dim("n"), None),
    ],
)
def test_a_program_that_takes_fewer_sizes_than_its_dim_says_is_refused_with_the_bound(
    f: Any, dim: Any, says: str | None
) -> None:
    if says is None:
        assert export(f, (ones(4),), dynamic_shapes=({0: dim},)).module()(ones(6)).equal(f(ones(6)))
        return
    with pytest.raises(ValueError, match=says):
        export(f, (ones(4),), dynamic_shapes=({0: dim},))


def test_a_number_that_is_the_size_and_a_static_dimension_are_constants() -> None:
    program = export(lambda x: x * 2, (ones(4, 3),), dynamic_shapes=({0: 4, 1: Dim.STATIC},))
    assert not program.range_constraints
    for other in ((5, 3), (4, 5)):
        with pytest.raises((RuntimeError, AssertionError)):
            program.module()(ones(*other))


def test_a_dimension_below_zero_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"has dimension -1 of argument \[0\], which has 2 dimensions"
    ):
        export(lambda x: x, (ones(3, 4),), dynamic_shapes=({-1: N},))


def reloaded(program: Any) -> Any:
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    return torch.export.load(buffer).module()


def test_a_tensor_from_outside_keeps_its_sizes_beside_arguments_of_any_size() -> None:
    outside = ones(3)
    program = export(lambda x: x * outside, (ones(4, 3),), dynamic_shapes=({0: N},))
    for run in (program.module(), reloaded(program)):
        assert run(ones(7, 3)).equal(ones(7, 3) * outside)


def test_an_argument_with_gaps_may_have_any_size() -> None:
    program = export(lambda x: x * 2, (ones(4, 8)[:, :4],), dynamic_shapes=({0: AUTO, 1: AUTO},))
    for run in (program.module(), reloaded(program)):
        for x in (ones(4, 8)[:, :4], ones(5, 9)[:, :3]):
            assert run(x).equal(x * 2)


def _unused_view(x: Any) -> Any:
    x.view(x.shape)
    return x * 1


@pytest.mark.parametrize(
    "f",
    [
        _unused_view,
        lambda x: x.view(x.shape) * 1,
        lambda x: (x * 2, x.new_zeros(x.shape[0] * 2).sum())[0],
    ],
)
def test_a_size_that_only_removed_calls_use_is_still_checked(f: Any) -> None:
    program = export(f, (ones(4, 3),), dynamic=True)
    for run in (program.module(), reloaded(program)):
        assert run(ones(7, 5)).equal(f(ones(7, 5)))
        with pytest.raises(RuntimeError, match=r"2 alone|to be >= 2"):
            run(ones(1, 5))


def test_an_example_beyond_a_computed_dim_is_told_the_sizes_that_this_may_have() -> None:
    with pytest.raises(ValueError, match="has size 5 in the example, which is not between 0 and 2"):
        export(lambda x: x.sum(), (ones(5),), dynamic_shapes={"x": {0: Dim("n", max=4) - 2}})
