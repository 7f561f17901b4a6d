"""Views, and writes through them: flags, history, versions and errors are torch's, which is the
oracle of every claim here."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime.errors import InplaceError

from ..view_scenarios import OURS, TORCH, Scenario, gradients, name, no_grad_view, outcome, same

# ---- flags


def test_views_know_their_base_and_detached_tensors_have_none() -> None:
    def scenario(lib: Any) -> Any:
        y = lib.leaf(4, 3) * 1
        views = [y[0], y[1:], y.t(), y.view(12), y[1:][0].view(3, 1), y.unbind()[1]]
        others = [y, y.clone(), y.detach(), y.data, y.detach()[0].detach()]
        return [(v._is_view(), v._base is y) for v in views], [
            (t._is_view(), t._base is None) for t in others
        ]

    same(scenario)


def test_versions_count_each_write_once_and_are_shared_with_views() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0, 3.0])
        seen = []
        v, d, e = x[1:], x.detach(), x.data
        other = lib.tensor([0.0, 0.0])

        def out(into: Any) -> Any:
            return torch.mul(other, 2, out=into)

        writes: list[Any] = [
            lambda: x.add_(1), lambda: v.mul_(2), lambda: d.zero_(), lambda: e.fill_(3),
            lambda: x.copy_(x * 2), lambda: x.t_(), lambda: out(x[1:]), lambda: x.unsqueeze_(0),
            lambda: x.squeeze_(0), lambda: x.resize_(2), lambda: x.set_(other),
            lambda: torch._foreach_add_([x], 1.0), lambda: x.uniform_(),
        ]  # fmt: skip
        for write in writes:
            write()
            seen.append((x._version, v._version, d._version, e._version))
        return seen, other._version, (x.mm(x.t()) if x.dim() == 2 else x * 2)._version

    same(scenario)


# ---- history


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: y[0].mul_(2),
        lambda x, y: y.view(16)[3:7].copy_(x[0]),
        lambda x, y: y.t()[1].add_(x[2]),
        lambda x, y: y.diagonal().mul_(x[0]),
        lambda x, y: y.unfold(0, 2, 2).mul_(2),
        lambda x, y: y.unsqueeze(0).squeeze(0)[1, 1:].sub_(x[0, :3]),
        lambda x, y: y[1:].copy_(y[:-1].clone()),
        lambda x, y: y[0][1].zero_(),
        lambda x, y: y[1:3][1][2:].exp_(),
        lambda x, y: y.__setitem__(slice(1, 3), x[:2] * 2),
        lambda x, y: y.__setitem__(y.detach() > 5, 0.5),
        lambda x, y: y.view(2, 8).t()[2].index_add_(0, torch.tensor([0]), x[0, :1]),
        lambda x, y: y[2].masked_fill_(y.detach()[2] > 10, 1.5),
        lambda x, y: y[3].uniform_().mul_(0),
        lambda x, y: [y[i].mul_(y[(i + 1) % 4].detach().clone()) for i in range(4)],
        lambda x, y: [y[:, i].sub_(x[i]) for i in range(4)],
    ],
)
def test_a_write_to_a_view_is_a_write_to_its_base_and_to_its_other_views(
    write: Callable[[Any, Any], Any],
) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(4, 4)
        y = x * 1
        before, after = y[1:], y.view(16)[2:9]
        write(x, y)
        z = (y * y).sum() + (before.sin() * 3).sum() + after.cos().sum()
        return y, before, after, name(y), name(before), gradients(lib, z, x)

    same(scenario)


def test_second_derivatives_through_writes_to_views() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2, 3)
        y = (x / 3).sin()
        y[:, 1].mul_(x[:, 0])
        y[0].sub_(x[1])
        y.view(6)[1:].exp_()
        (g,) = lib.grad((y * y).sum(), x, create_graph=True)
        return gradients(lib, g * g, x)

    expected, found = outcome(scenario, TORCH), outcome(scenario, OURS)
    torch.testing.assert_close(torch.tensor(found[0][0]), torch.tensor(expected[0][0]))


@pytest.mark.parametrize(
    "reshape",
    [
        lambda y: y.t_(),
        lambda y: y.unsqueeze_(0),
        lambda y: y.transpose_(0, 1).unsqueeze_(1),
        lambda y: y.as_strided_((4,), (1,)),
    ],
)
def test_views_stay_where_they_are_when_their_base_changes_its_geometry(
    reshape: Callable[[Any], Any],
) -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2, 2)
        y = x * 1
        row = y[0]
        reshape(y)
        flags = [name(y), y._is_view(), row._base is y]
        row.mul_(10)
        y.mul_(3)
        return flags, row, y, name(row), gradients(lib, (row * row).sum() + y.sum(), x)

    same(scenario)


def test_a_view_may_change_its_own_geometry() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(2, 3)
        y = x * 1
        v = y[:, :2]
        v.t_()
        flags = [name(v), v._base is y]
        v[0].mul_(5)
        return flags, name(y), name(v), gradients(lib, (y * y).sum() + v.sum(), x)

    same(scenario)


def test_history_begins_with_what_is_written_into_a_plain_tensor() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.leaf(3)
        buffer = lib.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]).double()
        row, other = buffer[1], buffer[0]
        row.mul_(x)
        return (
            buffer.requires_grad,
            other.requires_grad,
            name(buffer),
            name(row),
            gradients(lib, buffer * buffer, x),
        )

    same(scenario)


def test_complex_views() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.plain(torch.tensor([1 + 2j, 3 - 1j])).requires_grad_()
        y = x * 1
        y.real.mul_(3)
        torch.view_as_real(y)[0].add_(1)
        y.conj().mul_(2j)
        return name(y), gradients(lib, (y * y.conj()).real, x)

    same(scenario)


@pytest.mark.parametrize(
    "write",
    [
        lambda x, y: y.copy_(x[0]),
        lambda x, y: y.copy_(x[0, :1]),
        lambda x, y: y.zero_(),
        lambda x, y: y.fill_(x[0, 0]),
        lambda x, y: y.index_put_((torch.tensor([0, 1]),), x[0]),
        lambda x, y: y.index_put_((torch.tensor([0, 0]),), x[0], accumulate=True),
        lambda x, y: y.scatter_(0, torch.tensor([[0, 1, 0]]), x[:1]),
        lambda x, y: y.masked_fill_(y.detach() > 2, x[1, 1]),
        lambda x, y: y.masked_scatter_(y.detach() > 2, x * 2),
        lambda x, y: y.normal_().mul_(0),
        lambda x, y: y.index_copy_(0, torch.tensor([1]), x[:1]).index_fill_(
            1, torch.tensor([0]), 2.0
        ),
    ],
)
def test_writes_of_whole_tensors(write: Callable[[Any, Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        x, start = lib.leaf(2, 3), lib.leaf(2, 3)
        y = start * 1
        write(x, y)
        return y, gradients(lib, y * y, x, start)

    same(scenario)


@pytest.mark.parametrize(
    "view",
    [
        lambda b: b.t().view(6)[1:3],
        lambda b: b.t()[0][:2],
        lambda b: b.view(3, 2)[1:],
        lambda b: b.as_strided((2,), (2,), 1),
    ],
    ids=["view of the transposed", "row of the transposed", "rows", "strides"],
)
def test_a_write_through_views_that_only_the_layout_of_the_base_allows(view: Any) -> None:
    def scenario(lib: Any) -> Any:
        x, s = lib.leaf(2, 3), lib.leaf(2)
        base = x.t() * 2  # as transposed as x.t()
        weights = lib.plain(torch.arange(6.0, dtype=torch.float64).view(3, 2))
        view(base).mul_(s)
        return base.stride(), gradients(lib, base * base * weights, x, s)

    same(scenario)


def test_numbers_without_gradient_take_no_history() -> None:
    def scenario(lib: Any) -> Any:
        counts = lib.tensor([0, 0, 0])
        counts.copy_(lib.leaf(3))
        return counts, counts.requires_grad

    same(scenario)


@pytest.mark.parametrize(
    "write",
    [
        lambda a, b, x: torch._foreach_add_([a, b], 1.0),
        lambda a, b, x: torch._foreach_mul_([a, b], [2.0, 3.0]),
        lambda a, b, x: torch._foreach_sub_([a, b], [x, x * 2], alpha=3),
        lambda a, b, x: torch._foreach_mul_([a, b], x[0]),
        lambda a, b, x: torch._foreach_addcmul_([a, b], [x, x], [x, x.sin()], 0.5),
        # exact quotients: the formula divides twice, where torch's squares the divisor
        # and may overflow
        lambda a, b, x: torch._foreach_addcdiv_(
            [a, b], [x, x], [x - x.detach() + 2, x - x.detach() + 4], [0.5, 2.0]
        ),
        lambda a, b, x: torch._foreach_lerp_([a, b], [x, x * 2], 0.25),
        lambda a, b, x: torch._foreach_exp_([a]),
        lambda a, b, x: torch._foreach_maximum_([a, b], [x + 1, x - 1]),
        lambda a, b, x: torch._foreach_clamp_max_([a, b], 2.5),
        lambda a, b, x: torch._foreach_zero_([a]),
    ],
)
def test_foreach_ops_in_place(write: Callable[[Any, Any, Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        x, y = lib.leaf(3), lib.leaf(3)
        a, b = x * 1, y * 2
        write(a, b, x)
        return gradients(lib, a * a + b * b * b, x, y)

    same(scenario)


def test_a_write_to_a_plain_tensor_gives_that_tensor() -> None:
    plain, x = torch.ones(2), runtime.tensor([1.0, 2.0])
    assert torch.ops.aten.add_.Tensor(plain, x) is plain and plain.add_(x) is plain
    assert plain.tolist() == [3.0, 5.0]


def test_an_in_place_op_whose_gradient_nobody_knows_is_refused() -> None:
    library = torch.library.Library("runtime_tests", "FRAGMENT")
    library.define("quartered_(Tensor(a!) x) -> Tensor(a!)")
    library.impl("quartered_", lambda x: x.div_(4), "CPU")
    x = OURS.leaf(2)
    for target in (x * 1, (x * 1)[:1]):
        with pytest.raises(
            InplaceError,
            match=(
                r"quartered_.* has no functional form with "
                r"a record, so its gradient is not known"
            ),
        ):
            torch.ops.runtime_tests.quartered_(target)
    assert torch.ops.runtime_tests.quartered_(x.detach().clone()).tolist() == [0.25, 0.5]


@pytest.mark.parametrize("on_view", [False, True])
def test_custom_functions_that_write(on_view: bool) -> None:
    def scenario(lib: Any) -> Any:
        base = torch.autograd.Function if lib is TORCH else runtime.autograd.Function

        class Double(base):  # type: ignore[misc,valid-type]
            @staticmethod
            def forward(ctx: Any, a: Any) -> Any:
                ctx.mark_dirty(a)
                return a.mul_(2)

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                return g * 2

        x = lib.leaf(3)
        y = x * 1
        target = y[1:] if on_view else y
        out = Double.apply(target)
        return out is target, name(y), name(target), gradients(lib, y * y, x)

    same(scenario)


# ---- refusals


def _inference_view(y: Any) -> Any:
    with torch.inference_mode():
        return y[1:]


REFUSED: dict[str, Scenario] = {
    "leaf": lambda lib: lib.leaf(3).add_(1),
    "leaf_geometry": lambda lib: lib.leaf(3, 2).t_(),
    "leaf_as_strided": lambda lib: lib.leaf(4).as_strided_((2,), (2,)),
    "no_grad_view_set": lambda lib: no_grad_view(lib.tensor([1.0,
        2.0]).double()).set_(lib.leaf(2) * 1),
    "leaf_set": lambda lib: lib.leaf(2).set_(lib.tensor([1.0]).double()),
    "leaf_view": lambda lib: lib.leaf(3)[0].add_(1),
    "leaf_view_of_view": lambda lib: lib.leaf(3, 2)[0][1].add_(1),
    "leaf_item": lambda lib: lib.leaf(3).__setitem__(0, 1.0),
    "leaf_split": lambda lib: lib.leaf(4).split(2)[0].add_(1),
    "leaf_foreach": lambda lib: torch._foreach_add_([lib.leaf(2)], 1.0),
    "leaf_that_is_a_view": lambda lib: lib.tensor([1.0, 2.0])[1:].requires_grad_().mul_(2),
    "leaf_no_grad_view": lambda lib: no_grad_view(lib.leaf(3)).mul_(2),
    "split": lambda lib: (lib.leaf(4) * 1).split(2)[0].mul_(2),
    "unbind": lambda lib: (lib.leaf(4) * 1).unbind()[1].mul_(2),
    "view_of_split": lambda lib: (lib.leaf(4, 2) * 1).chunk(2)[1][0].mul_(2),
    "split_plain": lambda lib: lib.tensor([1.0, 2.0, 3.0,
        4.0]).double().split(2)[0].mul_(lib.leaf(2)),
    "no_grad_view": lambda lib: no_grad_view(lib.leaf(3) * 1).mul_(2),
    "no_grad_view_plain": lambda lib: no_grad_view(lib.tensor([1.0, 2.0,
        3.0]).double()).mul_(lib.leaf(2)),
    "view_of_no_grad_view": lambda lib: no_grad_view(lib.tensor([1.0, 2.0,
        3.0])).requires_grad_()[:1].mul_(2),
    "inference_view": lambda lib: _inference_view(lib.leaf(3) * 1).mul_(2),
    "expanded": lambda lib: (lib.leaf(1, 3) * 1).expand(4, 3).mul_(2),
    "too_small": lambda lib: (lib.leaf(1) * 1).add_(lib.leaf(3)),
    "resize": lambda lib: lib.leaf(3).resize_(2),
    "resize_made": lambda lib: (lib.leaf(3) * 1).resize_(2),
    "resize_as": lambda lib: lib.leaf(3).resize_as_(lib.tensor([1.0])),
    "detach_view": lambda lib: (lib.leaf(3) * 1)[0].detach_(),
    "out": lambda lib: torch.mul(lib.leaf(2), 2, out=lib.tensor([0.0, 0.0]).double()),
    "out_leaf": lambda lib: torch.add(lib.tensor([0.0, 0.0]).double(), 1, out=lib.leaf(2)),
    "requires_grad_false": lambda lib: (lib.leaf(3) * 1).requires_grad_(False),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_history_could_not_follow_is_refused(case: str) -> None:
    same(REFUSED[case], error=True)


def _written_output(lib: Any, on_view: bool) -> Any:
    base = runtime.autograd.Function if lib is OURS else torch.autograd.Function
    members = {
        "forward": staticmethod(lambda ctx, x: x[1:] if on_view else x),
        "backward": staticmethod(lambda ctx, g: g),
    }
    fn: Any = type("F", (base,), members)
    return fn.apply(lib.leaf(4) * 1).mul_(2)


@pytest.mark.parametrize("lib", [TORCH, OURS], ids=("torch", "runtime"))
@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (
            lambda lib: (lib.leaf(4) * 1).split(2)[0].mul_(2),
            "is the output of a function that returns multiple views",
        ),
        (
            lambda lib: _written_output(lib, False),
            r"was created inside a custom Function \(or because an input was returned as-is\)",
        ),
        (
            lambda lib: _written_output(lib, True),
            r"was created inside a custom Function \(or because an input was returned as-is\)",
        ),
    ],
)
def test_why_a_view_may_not_be_written_is_told(lib: Any, write: Scenario, reason: str) -> None:
    with pytest.raises(
        RuntimeError, match=f"is a view and is being modified inplace. This view {reason}"
    ):
        write(lib)


@pytest.mark.parametrize(
    "view",
    [no_grad_view, _inference_view, lambda y: y.split(2)[0], lambda y: y.unbind()[1]],
    ids=("no_grad", "inference", "split", "unbind"),
)
def test_views_that_may_not_follow_their_base_say_so_when_asked(view: Callable[[Any], Any]) -> None:
    def scenario(lib: Any) -> Any:
        y = lib.leaf(4) * 1
        v = view(y)
        y.mul_(2)
        assert v.requires_grad
        return v.grad_fn

    same(scenario, error=True)


def test_views_of_inference_tensors_are_none_to_autograd() -> None:
    def scenario(lib: Any) -> Any:
        with torch.inference_mode():
            x = lib.leaf(2, 3) * 1
            inside = x.view(6)
            x.resize_(2, 2)
        outside = x.view(4)
        return [
            (v.is_inference(), v._is_view(), v.requires_grad, v.is_leaf)
            for v in (x, inside, outside)
        ]

    same(scenario)


def test_inference_tensors_cannot_be_saved() -> None:
    def scenario(lib: Any) -> Any:
        with torch.inference_mode():
            y = lib.tensor([1.0, 2.0]).double() * 1
        return lib.leaf(2) * y

    same(scenario, error=True)


@pytest.mark.parametrize("view", [no_grad_view, lambda y: y.split(2)[0]], ids=("no_grad", "split"))
@pytest.mark.parametrize(
    "write",
    [
        lambda y, v: y.add_(1),
        lambda y, v: v.add_(1),
        lambda y, v: torch._foreach_add_([y], 1.0),
        lambda y, v: torch.mul(y, 2, out=y),
    ],
)
def test_a_view_that_may_not_follow_its_base_says_so_after_a_write_that_nothing_recorded(
    view: Any, write: Any
) -> None:
    def scenario(lib: Any) -> Any:
        y = lib.leaf(4) * 1
        v = view(y)
        with torch.no_grad():
            write(y, v)
        return v.grad_fn

    same(scenario, error=True)


def test_a_view_whose_history_is_lost_prints_as_invalid() -> None:
    x = runtime.wrap(torch.ones(1), True)
    with torch.no_grad():
        v = x[:]
        v.mul_(2)
    assert repr(v) == "tensor([2.], grad_fn=<Invalid>)"


def test_a_foreach_op_may_not_write_to_a_view_that_has_no_history() -> None:
    same(lambda lib: torch._foreach_mul_([no_grad_view(lib.leaf(4) * 1)], 2.0), error=True)


@pytest.mark.parametrize("op", ["sqrt_", "reciprocal_", "exp_", "sigmoid_", "tanh_"])
def test_an_in_place_op_whose_result_is_saved_may_write_to_a_lazily_conjugated_or_negated_tensor(
    op: str,
) -> None:
    """The dispatcher runs it on a resolved copy, which it does not count as written."""

    def found(lib: Any, view: Callable[[Any], Any]) -> Any:
        x = lib.tensor([1 + 2j, 3 + 0.5j], requires_grad=True)
        y = view(x * (0.2 - 0.7j))
        getattr(y, op)()
        (g,) = lib.autograd.grad(y.abs().pow(3).sum(), x, create_graph=True)
        (h,) = lib.autograd.grad(g.abs().pow(2).sum(), x)
        return [runtime.unwrap(t).detach().resolve_conj().resolve_neg() for t in (y, g, h)]

    for view in (lambda x: x.conj(), lambda x: x.conj().imag):
        torch.testing.assert_close(found(runtime, view), found(torch, view), equal_nan=True)
