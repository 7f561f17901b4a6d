"""In-place ops and views: history follows the data."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime
from runtime import unwrap, wrap

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
V = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)


def write_to_view(x: Any, v: Any) -> Any:
    y = x * 2
    y[0].mul_(v)
    return (y * y).sum()


def write_to_view_of_view(x: Any, v: Any) -> Any:
    y = x * 2
    row = y[1]
    head = row[:2]
    head.mul_(v[:2])
    z = row * 3
    y[0].copy_(v)
    return y.sin().sum() + z.sum() + head.sum()


def write_to_base_then_read_view(x: Any, v: Any) -> Any:
    y = x + 0
    flat = y.view(12)
    y.mul_(2)
    return (flat * flat).sum() + v.sum() * 0


def result_saved(x: Any, v: Any) -> Any:
    y = x.sin()
    y.exp_()
    return (y * v).sum()


def self_saved(x: Any, v: Any) -> Any:
    y = x * 1
    y.mul_(v)
    return y.sum()


def fill_buffer(x: Any, v: Any) -> Any:
    y = x.new_zeros(4, 3)
    y[1] = v
    y[2:] = x[2:] * x[2:]
    return (y * y).sum()


def geometry(x: Any, v: Any) -> Any:
    y = x.t().clone()
    y.t().mul_(2)
    y.t_()
    y.unsqueeze_(0)
    y.squeeze_(0)
    return (y * x).sum() + v.sum()


def through_detach(x: Any, v: Any) -> Any:
    y = (x * 1).detach()
    y.mul_(3)
    return (y * x).sum() + v.sum()


def in_no_grad(x: Any, v: Any) -> Any:
    y = x * 1
    with torch.no_grad():
        y.mul_(2)
    return (y * v).sum()


def through_expand_and_select(x: Any, v: Any) -> Any:
    y = (x * 1).expand(2, 4, 3) + 0
    y[0, 1:, 0].add_(v)
    return (y**2).sum()


@pytest.mark.parametrize(
    "f",
    [
        write_to_view, write_to_view_of_view, write_to_base_then_read_view, result_saved,
        self_saved, fill_buffer, geometry, through_detach, in_no_grad, through_expand_and_select,
    ],
)  # fmt: skip
class TestMutation:
    def test_eager(self, f: Callable[..., Any], both: Callable[..., None]) -> None:
        both(f, X, V)

    @pytest.mark.parametrize("transform", ["grad", "jvp", "vmap_grad", "hessian"])
    def test_under_transforms(self, f: Callable[..., Any], transform: str) -> None:
        if f is in_no_grad and transform in ("jvp", "hessian"):
            pytest.skip("no_grad says nothing about forward mode here")

        def run(lib: Any) -> Any:
            if transform == "grad":
                return lib.grad(f, argnums=(0, 1))(X, V)
            if transform == "jvp":
                return lib.jvp(f, (X, V), (X.sin(), V.cos()))
            if transform == "hessian":
                return lib.jacfwd(lib.grad(f))(X, V)
            return lib.vmap(lib.grad(f, argnums=(0, 1)))(
                torch.stack([X, X + 1]), torch.stack([V, V - 1])
            )

        torch.testing.assert_close(run(runtime.func), run(torch.func))


def test_a_saved_tensor_that_was_modified_is_an_error_with_versions() -> None:
    x = wrap(X.clone(), True)
    y = x.sin()
    z = y * y
    y.add_(1)
    with pytest.raises(
        RuntimeError,
        match=r"modified by an inplace operation.*is at version 1; expected version 0 instead",
    ):
        z.sum().backward()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (
            lambda x: x.add_(1),
            "a leaf Variable that requires grad is being used in an in-place operation",
        ),
        (
            lambda x: x[0].add_(1),
            "a view of a leaf Variable that requires grad is being used in an in-place operation",
        ),
        (
            lambda x: (x * 1).split(2)[0].add_(1),
            "This view is the output of a function that returns multiple views",
        ),
    ],
)
def test_mutations_that_have_no_history_are_errors(write: Callable[..., Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        write(wrap(X.clone(), True))


def test_a_view_made_in_no_grad_mode_may_not_take_history() -> None:
    y = wrap(X.clone(), True) * 1
    with torch.no_grad():
        row = y[0]
    with pytest.raises(RuntimeError, match="A view was created in no_grad mode"):
        row.mul_(wrap(V.clone(), True))


def test_assigning_data_inside_a_transform_is_an_error() -> None:
    def f(x: Any) -> Any:
        x.data = x
        return x.sum()

    transforms: list[Callable[..., Any]] = [
        runtime.func.grad(f),
        runtime.func.vmap(f),
        lambda x: runtime.func.jvp(f, (x,), (x,)),
    ]
    for run in transforms:
        with pytest.raises(
            RuntimeError,
            match=r"mutating directly with `\.data` inside functorch transform is not allowed\.",
        ):
            run(V)
    assert runtime.func.grad(lambda x: (x.data * x).sum())(V).equal(V)


@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.pow_(2),
        lambda y: y.pow_(y.detach() + 1),
        lambda y: y.float_power_(1.5),
        lambda y: y.ldexp_(torch.tensor(3)),
        lambda y: y.polygamma_(1),
        lambda y: y.square_(),
    ],
    ids=("pow_scalar", "pow_tensor", "float_power", "ldexp", "polygamma", "square"),
)
def test_in_place_forms_named_unlike_their_functional_forms(write: Callable[[Any], Any]) -> None:
    """Forward, reverse and batched, where names alone would lead to another overload or to
    TorchScript's op on numbers."""
    x = torch.linspace(0.5, 2, 6, dtype=torch.float64).reshape(2, 3)

    def f(x: Any) -> Any:
        y = x * 1
        write(y)
        return y

    leaf = x.clone().requires_grad_()
    out = f(leaf)
    (slope,) = torch.autograd.grad(out.sum(), leaf)
    torch.testing.assert_close(runtime.func.vjp(f, x)[1](torch.ones_like(x))[0], slope)
    torch.testing.assert_close(
        runtime.func.jvp(f, (x,), (torch.ones_like(x),)), (out.detach(), slope)
    )
    torch.testing.assert_close(runtime.func.vmap(f)(x), out.detach())


@pytest.mark.parametrize(
    ("write", "derivative"),
    [
        (lambda y: y.mul_(y), lambda x: 2 * x),
        (lambda y: y.addcmul_(y, y), lambda x: 1 + 2 * x),
        (lambda y: y.div_(y), lambda x: 0 * x),
    ],
)
def test_a_write_that_reads_its_target_is_differentiated_at_the_value_from_before(
    write: Any, derivative: Any
) -> None:
    """Torch refuses it in reverse mode; in forward mode its formula reads what has been
    written already."""

    def f(x: Any) -> Any:
        y = x.clone()
        write(y)
        return y

    x = torch.rand(3, dtype=torch.float64)
    leaf = wrap(x, True)
    torch.testing.assert_close(unwrap(runtime.autograd.grad(f(leaf).sum(), leaf)[0]), derivative(x))
    torch.testing.assert_close(runtime.func.grad(lambda x: f(x).sum())(x), derivative(x))
    torch.testing.assert_close(runtime.func.jvp(f, (x,), (torch.ones_like(x),))[1], derivative(x))


def test_a_view_that_was_made_a_leaf_is_protected_like_other_leaves() -> None:
    leaf = wrap(torch.rand(3))[:2].requires_grad_()
    with pytest.raises(
        RuntimeError,
        match=r"a leaf Variable that requires grad is being used in an in-place operation",
    ):
        leaf.mul_(2)
    with pytest.raises(
        RuntimeError,
        match=(
            r"a view of a leaf Variable that requires grad "
            r"is being used in an in-place operation"
        ),
    ):
        leaf[:1].mul_(2)


def test_a_plain_buffer_stays_plain_while_it_takes_what_has_no_history() -> None:
    buffer = torch.zeros(3)
    buffer[1:].copy_(runtime.tensor([1.0, 2.0]))
    assert buffer.tolist() == [0.0, 1.0, 2.0] and type(buffer) is torch.Tensor
    buffer.add_(runtime.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert buffer.tolist() == [1.0, 3.0, 5.0] and buffer.requires_grad


def test_an_op_on_lists_writes_to_plain_tensors_and_to_those_of_the_session() -> None:
    plain, ours = torch.ones(2), runtime.tensor([2.0, 3.0])
    torch._foreach_mul_([plain, ours], [ours, ours])
    assert plain.tolist() == [2.0, 3.0] and ours.tolist() == [4.0, 9.0]


@pytest.mark.parametrize(
    ("write", "slope"),
    [
        (lambda b, x: b.addcmul_(x, x), lambda x: 2 * x),
        (lambda b, x: b.addcmul_(x, x.detach() * 3, value=2), lambda x: 6 * x),
        (lambda b, x: b.index_put_((torch.tensor([2, 1, 0]),), x * x), lambda x: 2 * x),
        (
            lambda b, x: b.index_put_((torch.tensor([0, 0, 0]),), x, accumulate=True),
            torch.ones_like,
        ),
        (
            lambda b, x: b.scatter_(0, torch.tensor([1, 0, 2]), x * 3),
            lambda x: torch.full_like(x, 3),
        ),
    ],
)
def test_a_plain_buffer_takes_on_history_by_a_write_with_several_arguments(
    write: Callable[[Any, Any], Any], slope: Any
) -> None:
    def f(x: Any) -> Any:
        buffer = torch.zeros(3, dtype=torch.float64)
        write(buffer, x)
        return buffer.sum()

    torch.testing.assert_close(runtime.func.grad(f)(V), slope(V))
    x = wrap(V, True)
    f(x).backward()
    assert x.grad is not None
    torch.testing.assert_close(unwrap(x.grad), slope(V))


COMPOSED: dict[str, Callable[[Any], Any]] = {
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5, inplace=True),
    "dropout1d": lambda x: torch.nn.functional.dropout1d(x, 0.5, inplace=True),
    "selu": lambda x: torch.nn.functional.selu(x, inplace=True),
    "relu6": lambda x: torch.nn.functional.relu6(x, inplace=True),
    "rrelu": lambda x: torch.nn.functional.rrelu(x, training=True, inplace=True),
    "clip": lambda x: x.clip_(0.0, 0.5),
    "fix": lambda x: x.fix_(),
    "mul": lambda x: x.mul_(2),
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("write", COMPOSED.values(), ids=COMPOSED.keys())
def test_a_write_without_grad_mode_by_an_op_that_aten_composes_is_counted_and_noticed(
    write: Callable[[Any], Any], mode: Any
) -> None:
    def written(leaf: Any) -> tuple[Any, int]:
        x = leaf * 1
        y, before = x.sin(), x._version
        with mode():
            write(x)
        return y, x._version - before

    _, expected = written(torch.ones(2, 3, requires_grad=True))
    y, found = written(runtime.wrap(torch.ones(2, 3), requires_grad=True))
    assert found == expected > 0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
