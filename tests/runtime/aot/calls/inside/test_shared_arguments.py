"""How arguments that share memory enter a program.

Inside: ``runtime.aot.calls.shared_arguments`` and ``arguments``. What a call groups and which bases
it makes is undone before it returns, so results show only that it was right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import unwrap
from runtime.aot.calls.arguments import Call, enter
from runtime.aot.calls.shared_arguments import refuse_untangled, with_autograd_base, with_bases
from runtime.aot.capture.aliasing import Group, overlapping, place_of, sharing


def leaf(n: int = 4) -> Any:
    return runtime.wrap(torch.ones(n), requires_grad=True)


def entered(*given: Any) -> Call:
    call = enter(given, True, False)
    assert call is not None
    return call


def grouped(*given: Any) -> tuple[Call, list[Group]]:
    call = entered(*given)
    shared = sharing(call.plain)
    return call, [*shared, *overlapping(call.plain, shared)]


def parts(t: Any) -> list[Any]:
    return [t[:3], t[1:]]


def silent(t: Any) -> list[Any]:
    """A view that was made without grad mode, and its base."""
    with torch.no_grad():
        return [t[:3], t]


REFUSED: dict[str, tuple[Callable[[], Sequence[Any]], str | None]] = {
    "plain parts": (lambda: parts(torch.ones(4)), None),
    "parts of the session": (lambda: parts(runtime.wrap(torch.ones(4))), None),
    "parts of a result": (lambda: parts(leaf() * 1), None),
    "a result and its part": (lambda: (lambda t: [t, t[:3]])(leaf() * 1), None),
    "one twice": (lambda: [leaf()] * 2, None),
    "dtypes": (
        lambda: (lambda t: [t, t.view(torch.int32)])(torch.ones(4)),
        "have different dtypes",
    ),
    "a lazy conjugate": (
        lambda: (lambda t: [t, t.conj()])(torch.ones(4, dtype=torch.complex64)),
        "one is a lazy conjugate",
    ),
    "a lazy negative": (
        lambda: (lambda t: [t, torch._neg_view(t)])(torch.ones(4)),
        "one is a lazy conjugate",
    ),
    "lazy conjugates": (lambda: parts(torch.ones(4, dtype=torch.complex64).conj()), None),
    "views without grad mode": (
        lambda: silent(leaf() * 1),
        "Some are views of one tensor that were made with grad mode, others are not",
    ),
    "views without grad mode of what has no gradient": (
        lambda: silent(runtime.wrap(torch.ones(4))),
        None,
    ),
    "a leaf and its detached view": (lambda: (lambda t: [t, t.detach()])(leaf()), None),
    "detached parts beside one of a result": (
        lambda: (lambda t: [t[:3], t.detach()[1:]])(leaf() * 1),
        None,
    ),
    "two parts of a result beside a detached one": (
        lambda: (lambda t: [*parts(t), t.detach()])(leaf() * 1),
        "Some are views of one tensor that were made with grad mode, others are not",
    ),
    "parts of a class": (
        lambda: (lambda t: [TwoTensor(t, t), t])(torch.ones(4)),
        (
            "parts of a TwoTensor share memory .argument 0 and argument 1., "
            "and the program writes to it"
        ),
    ),
    "a class twice": (lambda: [TwoTensor(torch.ones(2), torch.ones(2))] * 2, None),
    "an overlap": (lambda: [torch.ones(4).unfold(0, 2, 1)], None),
    "an overlap of a result": (lambda: [(leaf() * 1).unfold(0, 2, 1)], None),
    "an overlap of a leaf of torch": (
        lambda: [torch.ones(4).unfold(0, 2, 1).requires_grad_()],
        (
            "argument 0 shows an element of its memory several times, "
            "the program writes to it, and it requires grad"
        ),
    ),
    "an overlap of an overlap": (
        lambda: [runtime.wrap(torch.ones(4).unfold(0, 2, 1), True)[:2]],
        "argument 0 shows an element of its",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_are_refused_where_a_write_to_one_cannot_be_carried_over(name: str) -> None:
    make, says = REFUSED[name]
    call, groups = grouped(*make())
    assert len(groups) == 1
    if says is None:
        refuse_untangled(groups, call, len(call.plain))
    else:
        with pytest.raises(RuntimeError, match=says):
            refuse_untangled(groups, call, len(call.plain))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: parts(torch.ones(4)),
            (
                "^argument 0 and a tensor that the program closes over share memory, "
                "and the program writes to it"
            ),
        ),
        (
            lambda: [torch.ones(4)] * 2,
            "^argument 0 and a tensor that the program closes over share memory",
        ),
        (
            lambda: [torch.ones(1), torch.ones(4).unfold(0, 2, 1)],
            "^the program writes to a tensor that it closes over, and that shows",
        ),
    ],
)
def test_what_the_program_closes_over_is_no_argument(
    make: Callable[[], Sequence[Any]], says: str
) -> None:
    call, groups = grouped(*make())
    refuse_untangled(groups, call, 2)
    with pytest.raises(RuntimeError, match=says):
        refuse_untangled(groups, call, 1)


def test_a_group_of_one_history_knows_the_place_of_its_base() -> None:
    base = leaf() * 1
    call, (group,) = grouped(*parts(base))
    assert with_autograd_base(group, call) == dataclasses.replace(
        group, base_place=place_of(unwrap(base))
    )
    call, (group,) = grouped(*parts(torch.ones(4)))
    assert with_autograd_base(group, call) is group
    x = leaf()
    call, (group,) = grouped(x, x)
    assert with_autograd_base(group, call) is group


@pytest.mark.parametrize(
    ("make", "histories"),
    [
        (lambda: (lambda t: [t, t.detach()])(leaf()), (0, 1)),
        (lambda: (lambda t: [t.detach(), t])(leaf()), (0, 1)),
        (lambda: (lambda t: [t, t.detach(), t])(leaf() * 1), (0, 1, 0)),
        (lambda: (lambda t: [t[:2], t.detach(), t[1:]])(runtime.wrap(torch.ones(4))), (0, 1, 0)),
    ],
)
def test_members_of_other_histories_are_numbered_by_history(
    make: Callable[[], Sequence[Any]], histories: tuple[int, ...]
) -> None:
    given = make()
    call, (group,) = grouped(*given, leaf())
    assert with_autograd_base(group, call).histories == histories


@pytest.mark.parametrize("wanted", [False, True])
def test_members_without_history_may_part_only_where_something_requires_grad(wanted: bool) -> None:
    t = runtime.wrap(torch.ones(4))
    call, (group,) = grouped(t, t.detach(), *([leaf()] if wanted else []))
    assert with_autograd_base(group, call).histories == ((0, 1) if wanted else ())
    mixed, (group,) = grouped(t, unwrap(t), *([leaf()] if wanted else []))
    assert with_autograd_base(group, mixed).histories == (), "a tensor of torch's gets no history"
    with torch.no_grad():
        overlap = t.unfold(0, 2, 1)
    single, (group,) = grouped(overlap, *([leaf()] if wanted else []))
    assert with_autograd_base(group, single).histories == (), "there is no other one"
    common, (group,) = grouped(*parts(t), *([leaf()] if wanted else []))
    assert with_autograd_base(group, common).histories == ()


def with_groups(*given: Any) -> tuple[Call, list[Group], Call]:
    call, groups = grouped(*given)
    groups = [with_autograd_base(g, call) for g in groups]
    based = with_bases(call, groups)
    assert based is not None
    return call, groups, based


def test_gradients_of_views_of_one_tensor_go_to_it_alone() -> None:
    base, w = leaf() * 1, leaf(1)
    call, _, based = with_groups(base[:3], w, base[1:], 2)
    assert (
        based.leaves[:4] == call.leaves
        and based.leaves[4] is base
        and based.plain[4] is unwrap(base)
    )
    assert based.targets == [w, base._edge] and [kind[0] for kind in based.kinds] == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert [kind[1:] for kind in based.kinds[:4]] == [kind[1:] for kind in call.kinds]


def test_a_leaf_that_is_the_base_is_the_target_and_a_view_stands_for_one_that_is_a_member() -> None:
    base = leaf()
    _, _, based = with_groups(*parts(base))
    target: Any = based.targets[0]
    assert len(based.targets) == 1 and target[0].variable is base and based.leaves[2] is base
    result = leaf() * 1
    _, _, based = with_groups(result, result[1:])
    assert based.leaves[2] is not result and based.leaves[2]._view.base is result
    assert based.plain[2] is unwrap(result) and based.targets == [based.leaves[2]._edge]
    part = result[1:]
    with torch.no_grad():
        _, _, based = with_groups(result, part)
    assert based.leaves[2].requires_grad and based.targets == [based.leaves[2]._edge], (
        "the view has the history in any mode"
    )


@pytest.mark.parametrize("requires_grad", [False, True])
def test_the_base_of_plain_members_is_all_that_they_share(requires_grad: bool) -> None:
    t = torch.arange(9.0)
    others = [leaf()] if requires_grad else []
    call, _, based = with_groups(t[2:5], t[4:8], *others)
    assert based.plain[-1].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0] and based.leaves[-1] is not t
    assert based.targets == call.targets and based.kinds[-1][0] is False
    base = runtime.wrap(t)
    _, _, based = with_groups(base[2:5], base[4:8], *others)
    assert (
        based.plain[-1].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
        and based.leaves[-1]._view.base is base
    )
    _, _, based = with_groups(base[2:5], base.detach()[4:8], *others)
    assert based.plain[-1].tolist() == [2.0, 3.0, 4.0, 5.0, 6.0, 7.0] and not isinstance(
        based.leaves[-1], runtime.Tensor
    )


def test_each_group_has_a_base_of_its_own() -> None:
    a, b = leaf(), leaf()
    _, _, based = with_groups(a, a.detach(), b, b.detach())
    assert [t.data_ptr() for t in based.plain[4:]] == [unwrap(t).data_ptr() for t in (a, b)]
    assert all(mine is own for mine, own in zip(based.leaves[4:], based.plain[4:], strict=True))


def test_one_tensor_that_is_given_twice_has_no_base() -> None:
    x = leaf()
    call, _, based = with_groups(x, x)
    assert (
        based.leaves == call.leaves and based.targets == call.targets and based.kinds == call.kinds
    )


def of_result(n: int = 4, start: int = 0) -> list[Any]:
    return parts((leaf(n) * 1)[start:]) if start else parts(leaf(n) * 1)


OTHERS: dict[str, tuple[Callable[[], Sequence[Any]], Callable[[], Sequence[Any]], bool]] = {
    "a base of the same place": (of_result, of_result, True),
    "a larger base": (of_result, lambda: of_result(5), False),
    "no base": (of_result, lambda: parts(runtime.wrap(torch.ones(4))), False),
    "the same histories": (
        lambda: (lambda t: [t, t.detach()])(leaf()),
        lambda: (lambda t: [t * 1, t.detach()])(leaf()),
        True,
    ),
    "other histories": (
        lambda: (lambda t: [t, t.detach(), t])(leaf() * 1),
        lambda: (lambda t: [t, t.detach(), t.detach()])(leaf() * 1),
        False,
    ),
    "no histories": (
        lambda: [*parts(torch.ones(4)), leaf()],
        lambda: [*parts(torch.zeros(4)), leaf()],
        True,
    ),
    "members that may part": (
        lambda: [*parts(runtime.wrap(torch.ones(4))), leaf()],
        lambda: (lambda t: [t[:3], t.detach()[1:], leaf()])(runtime.wrap(torch.ones(4))),
        False,
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_program_takes_calls_whose_groups_have_their_histories_alike(name: str) -> None:
    first, second, taken = OTHERS[name]
    call, groups = grouped(*first())
    groups = [with_autograd_base(g, call) for g in groups]
    assert (with_bases(entered(*second()), groups) is not None) is taken
