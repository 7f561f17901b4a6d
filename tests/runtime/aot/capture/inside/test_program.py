"""What one run of a program writes into its joint graph: results, cotangents, gradients, what it
closes over, its seeds.

Inside: ``runtime.aot.capture.joint`` and ``boundary``. What is written down before a graph is cut
and compiled reaches no compiler of a user."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot.capture.joint import Joint, joint_graph
from tests.runtime.aot.capture.inside.boundary_text import boundary_of, text


class WritesInBackward(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.y = y
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        ctx.y.add_(1)
        return g * 2, None


def placeholders(joint: Joint) -> list[str]:
    return [n.name for n in joint.module.graph.find_nodes(op="placeholder")]


def test_a_cotangent_for_each_result_with_a_history() -> None:
    joint = joint_graph(
        lambda x, y: (y * 2, x.sin(), x.detach(), x * y),
        [torch.ones(2), torch.ones(2)],
        [True, False],
    )
    assert text(joint.boundary) == "d _ -> r0 r1 i0.detach-unrecorded r2 | - 0 1 reach=(3,)"
    assert placeholders(joint) == ["primals_1", "primals_2", "tangents_1", "tangents_2"]
    x, y, g, h = (torch.tensor([float(i), 2.0]) for i in range(1, 5))
    *results, gradient = joint.module(x, y, g, h)
    assert [r.tolist() for r in results] == [(y * 2).tolist(), x.sin().tolist(), (x * y).tolist()]
    torch.testing.assert_close(gradient, x.cos() * g + y * h)


@pytest.mark.parametrize("loss", [0, 1, -1])
def test_the_gradients_of_one_result_take_no_cotangents(loss: int) -> None:
    def f(x: Any) -> Any:
        return [x.sin().sum(), x.sum()], (x * x).sum(), x.exp().sum()

    joint = joint_graph(f, [torch.ones(3)], [True], loss=loss)
    assert (
        placeholders(joint) == ["primals_1"]
        and joint.boundary.tangents == (None,) * 4
        and joint.boundary.n_tangents == 0
    )
    x = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    (expected,) = torch.autograd.grad((f(x)[0][0], f(x)[1], f(x)[2])[loss], x)
    torch.testing.assert_close(joint.module(x.detach())[-1], expected)


def test_no_gradient_is_computed_without_a_history() -> None:
    joint = joint_graph(lambda x, y: x.detach() * 2, [torch.ones(2), torch.ones(2)], [True, True])
    assert [*joint.module(torch.ones(2), torch.ones(2))][1:] == [
        None,
        None,
    ] and joint.boundary.reach == ()


MODES: dict[tuple[bool, bool, bool], tuple[bool, bool, bool]] = {
    # grad mode of the caller, whether a gradient is wanted, whether the program sees that mode:
    # the grad mode of the program, whether its argument requires grad, and what it computes
    (False, False, False): (False, False, False),
    (False, False, True): (False, False, False),
    (False, True, False): (True, True, True),
    (False, True, True): (False, True, False),
    (True, False, False): (True, False, False),
    (True, False, True): (True, False, False),
    (True, True, False): (True, True, True),
    (True, True, True): (True, True, True),
}


@pytest.mark.parametrize("given", MODES)
def test_the_grad_mode_that_a_program_sees(given: tuple[bool, bool, bool]) -> None:
    mode, wanted, tracked = given
    seen: list[Any] = []

    def f(x: Any) -> Any:
        seen.append((torch.is_grad_enabled(), x.requires_grad, (x * 2).requires_grad))
        return x

    with torch.set_grad_enabled(mode):
        joint_graph(f, [torch.ones(2)], [wanted], tracked=tracked)
        assert torch.is_grad_enabled() is mode
    assert seen == [MODES[given]]


class TestTensorsFromOutside:
    def test_are_primals_if_they_are_lifted_and_constants_if_not(self) -> None:
        w = torch.full((2,), 3.0)
        joint = joint_graph(lambda x: x * w, [torch.ones(2)], [True])
        assert joint.closed_over == (w,) and placeholders(joint) == [
            "primals_1",
            "primals_2",
            "tangents_1",
        ]
        fixed = joint_graph(lambda x: x * w, [torch.ones(2)], [True], lift=False)
        assert fixed.closed_over == () and placeholders(fixed) == ["primals_1", "tangents_1"]
        assert fixed.module(torch.ones(2), torch.ones(2))[1].tolist() == [3.0, 3.0]

    def test_are_results_that_nothing_has_computed_with(self) -> None:
        w, v = torch.ones(2, 3), torch.ones(2)
        assert (
            boundary_of(lambda x: (w, w[0], x * w, v), [True])
            == "d _ _ -> i1 i1.select-unrecorded r0 i2 | 0 reach=(1,)"
        )

    def test_are_not_written_to_if_they_are_constants(self) -> None:
        w = torch.ones(2, 3)
        with pytest.raises(
            RuntimeError, match=r"writes to a tensor that it closes over\. Pass it as an argument"
        ):
            boundary_of(lambda x: w.add_(x.detach()), [True], lift=False)
        assert w.sum() == 6


def test_results_of_the_other_mode_count_after_the_new_values_of_arguments() -> None:
    def f(x: Any) -> Any:
        x.add_(1)
        with torch.inference_mode(False):
            z = x.clone() * 3
        return x * 2, z, z + 1

    with torch.inference_mode():
        assert boundary_of(f, [False]) == "_w*1 -> r0 r1 r2 | - - - other_mode=(2,)"
    assert boundary_of(f, [False]) == "_w*1 -> r0 r1 r2 | - - -"


@pytest.mark.parametrize("how", ["of all", "of one"])
def test_seeds_of_a_program_are_set_by_each_call(how: str) -> None:
    own = torch.Generator()

    def f(x: Any) -> Any:
        if how == "of all":
            torch.manual_seed(7)
            return x * torch.rand(2)
        own.manual_seed(7)
        return x * torch.rand(2, generator=own)

    (seeding,) = joint_graph(f, [torch.ones(2)], [True]).boundary.seedings
    seeding.generator.manual_seed(11)  # another object for the same generator
    assert (
        seeding.first == 7
        and (torch.default_generator if how == "of all" else own).initial_seed() == 11
    )
    assert joint_graph(lambda x: x * torch.rand(2), [torch.ones(2)], [True]).boundary.seedings == ()


WRITTEN_BACK: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "an argument": (
        lambda x, y: WritesInBackward.apply(x, y),
        "d _ -> r0 | 0 backward_written=(1,) reach=(1,)",
    ),
    "a view of one": (
        lambda x, y: WritesInBackward.apply(x, y[0]),
        "d _ -> r0 | 0 backward_written=(1,) reach=(1,)",
    ),
    "one of which a view is returned": (
        lambda x, y: (WritesInBackward.apply(x, y), y[0]),
        "d _ -> r0 i1.select-unrecorded | 0 backward_written=(1,) reach=(1,)",
    ),
    "an intermediate": (lambda x, y: WritesInBackward.apply(x, y * 1), "d _ -> r0 | 0 reach=(1,)"),
}


@pytest.mark.parametrize("name", WRITTEN_BACK)
def test_what_the_backward_pass_writes_to(name: str) -> None:
    f, expected = WRITTEN_BACK[name]
    assert boundary_of(f) == expected


ONCE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda x: x * 2, ""),
    "a hook on an argument": (lambda x: (x.register_hook(lambda g: g * 2), x * 2)[1], ""),
    "a hook on a tensor": (
        lambda x: (lambda y: (y.register_hook(lambda g: g * 2), y)[1])(x * 2),
        "it registers a hook on a tensor",
    ),
    "a hook before a node": (
        lambda x: (lambda y: (y.grad_fn.register_prehook(lambda gs: gs), y * 2)[1])(x * 2),
        "it registers a hook on a tensor",
    ),
    "a hook after a node": (
        lambda x: (lambda y: (y.grad_fn.register_hook(lambda gs, _: gs), y * 2)[1])(x * 2),
        "it registers a hook on a tensor",
    ),
    "a hook on what no result depends on": (
        lambda x: ((x * 3).register_hook(lambda g: g * 2), x * 2)[1],
        "",
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_why_a_program_is_differentiated_once(name: str) -> None:
    f, expected = ONCE[name]
    assert joint_graph(f, [torch.ones(2)], [True]).boundary.once == expected


def test_a_program_with_a_subclass_is_differentiated_once_with_a_cotangent_per_part() -> None:
    given = TwoTensor(torch.ones(2, 3), torch.ones(2, 3))
    joint = joint_graph(lambda x, t: (x * t).t(), [torch.ones(2, 3), given], [True, False])
    assert joint.boundary.once == "a tensor subclass is among its arguments or results"
    assert placeholders(joint) == [
        "primals_1",
        "primals_2",
        "primals_3",
        "tangents_1",
        "tangents_2",
    ]


LEAVES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "alone": (lambda z: z, False),
    "what depends on it": (lambda z: z * 2, False),
    "both": (lambda z: (z, z * 2), True),
    "a view of it beside what depends on it": (lambda z: (z[0], (z * 2).sum()), False),
    "its detach() beside what depends on it": (lambda z: (z.detach(), z * 2), False),
}


@pytest.mark.parametrize("name", LEAVES)
def test_a_leaf_that_the_program_makes_is_not_returned_beside_what_depends_on_it(name: str) -> None:
    use, refused = LEAVES[name]

    def capture() -> Joint:
        return joint_graph(
            lambda x: use((x.detach() * 2).requires_grad_()), [torch.ones(2)], [True]
        )

    if not refused:
        assert capture().boundary.inputs[0].differentiated
        return
    with pytest.raises(
        RuntimeError, match="returns it or a view of it beside a result that depends on it"
    ):
        capture()


def test_a_program_is_not_entered_after_it_has_ended() -> None:
    kept: list[Any] = []
    w = torch.ones(2)

    def f(x: Any) -> Any:
        kept.append(x)
        w.add_(1)
        return x * 2

    joint_graph(f, [torch.ones(2)], [True])
    with pytest.raises(RuntimeError, match="after the transform has returned"):
        kept[0] + 1
    assert w._version == 0
