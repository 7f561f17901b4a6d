"""What a call does by the record of its program, one field at a time.

Inside: ``runtime.aot.capture.boundary``. Programs lead to few combinations of these fields, and
which of them made a write or a view shows in no result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot.capture.aliasing import sharing
from runtime.aot.capture.boundary import (
    Boundary,
    Input,
    Made,
    Output,
    Size,
    ViewStep,
    refuse_hooked_view,
    write,
)
from runtime.aot.capture.joint import Joint, joint_graph
from runtime.session.leaf import as_leaf


def joint_of(f: Callable[..., Any], *differentiate: bool, **options: Any) -> Joint:
    return joint_graph(f, [torch.ones(2, 3) for _ in differentiate], differentiate, **options)


def without_grad(f: Callable[[], Any]) -> Any:
    with torch.no_grad():
        return f()


DIRECT: dict[str, tuple[Callable[..., Any], tuple[int, ...] | None]] = {
    "computed results": (lambda x, y: (x * 2, y * 3), (0, 1)),
    "one of them twice in a computation": (lambda x, y: (lambda z: (z + 1, z * 2))(x + y), (0, 1)),
    "an argument": (lambda x, y: (x * 2, y), None),
    "a constant": (lambda x, y: (x * 2, 1), None),
    "one result twice": (lambda x, y: (lambda z: (z, z))(x * 2), None),
    "views of a result": (lambda x, y: (lambda z: (z, z[0]))(x * 2), None),
    "a leaf": (lambda x, y: (x.detach() * 2).requires_grad_(), None),
    "a view of a leaf": (
        lambda x, y: (lambda z: (z[0], z[1]))((x.detach() * 2).requires_grad_()),
        None,
    ),
    "a write": (lambda x, y: (y.add_(1), x * 2)[1], None),
    "a change of geometry": (lambda x, y: (y.t_(), x * 2)[1], None),
    "other memory": (lambda x, y: (without_grad(lambda: y.set_(torch.ones(2, 3))), x * 2)[1], None),
    "an argument that begins to require grad": (lambda x, y: (y.requires_grad_(), x * 2)[1], None),
    "a hook": (lambda x, y: (x.register_hook(lambda g: g * 2), x * 2)[1], None),
}


@pytest.mark.parametrize("name", DIRECT)
def test_a_program_that_only_computes_returns_results_of_the_graph(name: str) -> None:
    f, expected = DIRECT[name]
    assert joint_of(f, True, False).boundary.direct == expected


CHANGES: dict[str, tuple[Callable[..., Any], bool]] = {
    "nothing": (lambda x, y: x * y, False),
    "a view": (lambda x, y: y[0], False),
    "a hook": (lambda x, y: (x.register_hook(lambda g: g * 2), x * 2)[1], False),
    "a write": (lambda x, y: (y.add_(1), x * 2)[1], True),
    "a change of geometry": (lambda x, y: (y.t_(), x * 2)[1], True),
    "other memory": (lambda x, y: (without_grad(lambda: y.set_(torch.ones(2, 3))), x * 2)[1], True),
    "requires_grad_()": (lambda x, y: (y.requires_grad_(), x * 2)[1], True),
}


@pytest.mark.parametrize("name", CHANGES)
def test_which_programs_change_an_argument(name: str) -> None:
    f, expected = CHANGES[name]
    assert joint_of(f, True, False).boundary.changes_inputs is expected


def test_results_and_cotangents_are_counted() -> None:
    def f(x: Any, y: Any, z: Any) -> Any:
        y.add_(1)
        z.mul_(x)
        return x * 2, y * 2, x.detach() * 3

    joint = joint_of(f, True, False, False)
    found = joint.boundary
    assert (found.written, found.differentiated) == ((1, 2), (0,))
    assert [x.tangent for x in found.inputs] == [None, None, 0] and found.tangents == (
        1,
        None,
        None,
    )
    assert (found.n_forward, found.n_tangents) == (5, 2)
    assert (joint.n_forward, joint.n_primals, joint.in_graph([0, 2])) == (5, 3, [0, 2])
    assert list(joint.whole_primals()) == [(0, 0), (1, 1), (2, 2)]
    assert len(joint.module.graph.find_nodes(op="placeholder")) == 3 + 2


def test_a_value_of_several_tensors_is_one_primal_and_as_many_placeholders() -> None:
    def two() -> TwoTensor:
        return TwoTensor(torch.ones(2), torch.zeros(2))

    joint = joint_graph(
        lambda x, a, y: (x * a, a * 2), [torch.ones(2), two(), torch.ones(2)], [False, False, False]
    )
    assert (joint.n_forward, joint.n_primals, len(joint.boundary.inputs)) == (4, 4, 3)
    assert list(joint.in_graph([1])) == [1, 2] and list(joint.in_graph([2])) == [3]
    assert list(joint.whole_primals()) == [(0, 0), (2, 3)]


@pytest.mark.parametrize("counted", [0, 1, 2, 3])
@pytest.mark.parametrize("how", ["alone", "with others"])
def test_a_write_counts(counted: int, how: str) -> None:
    record, target, new = (
        Input(False, True, None, counted),
        torch.zeros(2),
        torch.tensor([1.0, 2.0]),
    )
    other = torch.zeros(2)
    if how == "alone":
        record.write(target, new, False)
    else:
        write([(record, target, new, False), (Input(False, True, None, 1), other, new, False)])
        assert other.tolist() == [1.0, 2.0] and other._version == 1
    assert (target._version, target.tolist()) == (counted, [1.0, 2.0])


def test_what_is_not_written_stays() -> None:
    target = torch.zeros(2)
    Input(False).write(target, torch.ones(2), False)
    assert target.tolist() == [0.0, 0.0] and target._version == 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_a_write_is_recorded_if_the_new_value_has_a_history(
    plain: bool, recorded: bool, mode: Any
) -> None:
    start = torch.zeros(2)
    leaf: Any = start.clone().requires_grad_() if plain else runtime.wrap(start.clone(), True)
    target: Any = start.clone() if plain else runtime.wrap(start.clone())
    new = leaf * 2 if recorded else torch.ones(2)
    with mode():
        write([(Input(False, True, 0, 1), target, new, recorded)])
    assert target.requires_grad is recorded and target.tolist() == new.tolist()


def test_a_leaf_is_written_without_a_history() -> None:
    for counted in (0, 1, 2):
        target = torch.zeros(2, requires_grad=True)
        if counted:
            write([(Input(True, True, None, counted), target, torch.ones(2), False)])
        else:
            Input(True, True).write(target, torch.ones(2), False)
        assert (
            target.is_leaf
            and target.requires_grad
            and target.tolist() == [1.0, 1.0]
            and target._version == counted
        )


EXPANDED: dict[str, tuple[Callable[[Any], Any], Callable[[], Any]]] = {
    "rows": (lambda x: x.add_(torch.arange(3.0)), lambda: torch.arange(3.0).expand(2, 3)),
    "columns": (
        lambda x: x.add_(torch.arange(2.0)[:, None]),
        lambda: torch.arange(2.0)[:, None].expand(2, 3),
    ),
    "both": (lambda x: x.add_(1), lambda: torch.ones(1, 1).expand(2, 3)),
    "one of three": (
        lambda x: x.add_(torch.arange(4.0)),
        lambda: torch.arange(8.0).view(2, 1, 4).expand(2, 3, 4),
    ),
    "of size one": (
        lambda x: x.add_(torch.arange(3.0)),
        lambda: torch.arange(3.0).as_strided((1, 3), (0, 1)),
    ),
}


@pytest.mark.parametrize("name", EXPANDED)
def test_all_of_an_expanded_tensor_takes_a_new_value(name: str) -> None:
    change, make = EXPANDED[name]
    target = make()
    new = change(target.clone())
    write([(Input(False, True, None, 1), target, new, False)])
    assert torch.equal(target, new)


def test_a_part_of_an_expanded_tensor_takes_no_other_value_than_the_rest() -> None:
    target = torch.zeros(3).expand(2, 3)
    new = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    with pytest.raises(RuntimeError, match="writes to a part of an expanded argument"):
        write([(Input(False, True, None, 1), target, new, False)])
    assert target.count_nonzero() == 0


TARGETS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.ones(2, dtype=torch.complex64),
    "a lazy conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "lazily negated": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "expanded": lambda: torch.ones(1).expand(2),
    "sparse": lambda: torch.ones(2).to_sparse(),
}


@pytest.mark.parametrize(
    "name, counted",
    [(name, counted) for name in TARGETS for counted in (0, 1) if counted or name != "sparse"],
)
def test_a_tensor_of_any_layout_takes_a_new_value(name: str, counted: int) -> None:
    target = TARGETS[name]()
    new = target.clone() * 3
    write([(Input(False, True, None, counted), target, new, False)])
    assert torch.equal(target.to_dense(), new.to_dense()) and target._version == counted


class TestOtherMemory:
    @pytest.mark.parametrize("counted", [1, 2, 3])
    @pytest.mark.parametrize("requires_grad", [False, True])
    def test_of_another_tensor_counts(self, requires_grad: bool, counted: int) -> None:
        target, source = (
            torch.zeros(2, requires_grad=requires_grad),
            torch.ones(2, requires_grad=True) * 3,
        )
        Input(False, counted=counted).replace(target, source)
        assert (
            target.tolist() == [3.0, 3.0]
            and target.data_ptr() == source.data_ptr()
            and target._version == counted
        )
        assert target.is_leaf and target.requires_grad is requires_grad

    @pytest.mark.parametrize("counted", [0, 1, 2])
    def test_of_its_own_counts(self, counted: int) -> None:
        target = torch.ones(2)
        Input(False, counted=counted).replace(target, target)
        assert target.tolist() == [1.0, 1.0] and target._version == counted

    def test_of_a_leaf_of_torchs_own_is_refused(self) -> None:
        with pytest.raises(RuntimeError, match="a leaf of torch's own autograd"):
            Input(True, counted=1).replace(
                as_leaf(torch.ones(2, requires_grad=True)), torch.zeros(2)
            )
        target = runtime.wrap(torch.ones(2), True)
        Input(True, counted=1).replace(target, runtime.wrap(torch.zeros(2)))
        assert target.tolist() == [0.0, 0.0]


HOOKED: dict[str, tuple[Callable[[Any, Any, Any], Any], bool]] = {
    "nothing": (lambda base, part, x: None, False),
    "the tensor that it is a view of": (
        lambda base, part, x: base.register_hook(lambda g: g),
        False,
    ),
    "the view": (lambda base, part, x: x.register_hook(lambda g: g), True),
    "the view between": (lambda base, part, x: part.register_hook(lambda g: g), True),
    "the node of the view, before": (
        lambda base, part, x: x.grad_fn.register_prehook(lambda gs: None),
        True,
    ),
    "the node of the view, after": (
        lambda base, part, x: x.grad_fn.register_hook(lambda gs, _: None),
        True,
    ),
    "the node between, before": (
        lambda base, part, x: part.grad_fn.register_prehook(lambda gs: None),
        True,
    ),
    "the node between, after": (
        lambda base, part, x: part.grad_fn.register_hook(lambda gs, _: None),
        True,
    ),
}


@pytest.mark.parametrize("name", HOOKED)
def test_a_view_that_a_hook_sees_is_not_written_to(name: str) -> None:
    register, refused = HOOKED[name]
    base: Any = runtime.wrap(torch.ones(2, 6), True) * 1
    part = base[:, 1:]
    x = part[:, ::2]
    register(base, part, x)
    for hooked in (False, True):
        if refused or hooked:
            with pytest.raises(
                RuntimeError, match="registers a hook on an argument that is a view"
            ):
                refuse_hooked_view(x, hooked)
        else:
            refuse_hooked_view(x, hooked)


def test_steps_of_a_view_depend_on_sizes_and_on_the_item() -> None:
    aten = torch.ops.aten
    split = ViewStep(aten.split.Tensor, (Size(1), 0), {}, 2)
    x = torch.arange(6.0)
    assert split.sized([None, 2])(x).tolist() == [4.0, 5.0] and split.sized([None, 1])(
        x
    ).tolist() == [2.0]
    found = [
        ViewStep(func, (), {}, None).in_place()
        for func in (aten.t.default, aten.transpose.int, aten.view.default)
    ]
    assert found == [aten.t_.default, aten.transpose_.default, None]


def test_a_result_is_made_of_an_argument_or_of_a_result() -> None:
    step = ViewStep(torch.ops.aten.select.int, (0, 1), {}, None)
    x, y = torch.arange(4.0).view(2, 2), torch.ones(2, requires_grad=True) * 2
    assert Output(Made.CONSTANT, constant="a").of([x], [y]) == "a"
    assert Output(Made.INPUT, 0).of([x], [y]) is x and Output(Made.RESULT, 0).of([x], [y]) is y
    assert Output(Made.INPUT, 0, (step,)).returned([x], [y]).tolist() == [2.0, 3.0]
    assert Output(Made.RESULT, 1).returned([x], [x, y]) is y
    for released, t in ((True, y), (True, x), (False, y)):
        found = Output(Made.RESULT, 0, released=released).of([], [t])
        assert found.requires_grad is (t is y and not released) and found.data_ptr() == t.data_ptr()


@pytest.mark.parametrize(
    "recorded, step_recorded", [(True, True), (True, False), (False, True), (False, False)]
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_views_have_a_history_if_they_and_the_step_are_recorded(
    recorded: bool, step_recorded: bool, mode: Any
) -> None:
    step = ViewStep(torch.ops.aten.select.int, (0, 1), {}, None, step_recorded)
    x = torch.ones(2, 2, requires_grad=True) * 1
    with mode():
        view = Output(Made.INPUT, 0, (step,), recorded).of([x], [])
        assert torch.is_grad_enabled() is (mode is torch.enable_grad)
    assert (view.grad_fn is not None) is (recorded and step_recorded)


def test_nobody_changes_a_record() -> None:
    def f(x: Any, y: Any) -> Any:
        y.t_()
        return (x * 1).view(x.shape[1], -1), y

    joint = joint_of(f, True, False, dynamic=True)
    boundary = joint.boundary
    (group,) = sharing([joint, x := torch.ones(2), x])
    (step,) = boundary.outputs[0].steps
    sizes = [size for size in torch.utils._pytree.tree_leaves(step.rest) if isinstance(size, Size)]
    assert isinstance(boundary, Boundary) and sizes
    for record in (
        joint,
        boundary,
        boundary.inputs[0],
        boundary.outputs[0],
        step,
        sizes[0],
        group,
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, dataclasses.fields(record)[0].name, None)
