"""Views of tensors whose history begins late, ends early or lies elsewhere in memory.
Torch is the oracle."""

from typing import Any

import pytest
import torch

import runtime

from ..scenarios import same


def _leaf(lib: Any, n: int) -> Any:
    return lib.tensor([1.0 + i for i in range(n)], dtype=torch.float64, requires_grad=True)


def _name(t: Any) -> Any:
    return t.grad_fn and t.grad_fn.name()


@pytest.mark.parametrize(
    "view",
    [lambda b: b[0], lambda b: b.unbind()[0], lambda b: b.split(1)[0]],
    ids=["select", "unbind", "split"],
)
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_view_of_a_plain_buffer_may_be_written_after_the_buffer(mode: Any, view: Any) -> None:
    def scenario(lib: Any) -> Any:
        buffer = lib.tensor([[1.0, 2.0], [3.0, 4.0]])
        with mode():
            v = view(buffer)
        buffer.mul_(2)
        v.add_(1)
        return buffer, v, v.requires_grad

    same(scenario)


def test_a_view_of_what_requires_grad_later_does_so_as_a_leaf_without_a_place_for_it() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0])
        v, whole = x.view(2, 1), x.view(2).view(torch.int32)
        flags = [v.requires_grad]
        x.requires_grad_()
        y = v.squeeze(1) * x
        flags += [v.requires_grad, v.is_leaf, _name(v), whole.requires_grad]
        edges = [node and node.name() for node, _ in v.exp().grad_fn.next_functions]
        y.sum().backward()
        return (
            flags,
            edges,
            x.grad,
            v.grad,
            lib.autograd.grad(v.sum() + x.sum(), [x, v], allow_unused=True),
        )

    same(scenario)


def test_a_view_of_what_requires_grad_later_stands_behind_what_was_written_before() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([1.0, 2.0])
        v = x.view(2, 1)
        x.mul_(2)
        x.requires_grad_()
        return v.requires_grad, lib.autograd.grad((v * v).sum(), x)

    same(scenario)


@pytest.mark.parametrize(
    "use",
    [
        lambda lib, v: lib.autograd.backward(v.sum(0)),
        lambda lib, v: lib.autograd.backward(v),
        lambda lib, v: lib.autograd.grad(v * 1, v),
        lambda lib, v: lib.autograd.grad(v, v),
        lambda lib, v: (v.requires_grad_(False), v.requires_grad, v.is_leaf),
        lambda lib, v: v.requires_grad_().mul_(2),
    ],
    ids=[
        "used",
        "itself",
        "as an input",
        "itself as an input",
        "asked not to",
        "asked to and written",
    ],
)
def test_the_gradient_of_a_view_without_grad_mode_goes_nowhere(use: Any) -> None:
    def scenario(lib: Any) -> Any:
        x = _leaf(lib, 2)
        with torch.no_grad():
            v = x[0]
        return use(lib, v), x.grad, v.grad

    same(scenario)


def test_a_view_of_a_leaf_that_requires_grad_no_more_may_not_be_written() -> None:
    def scenario(lib: Any) -> Any:
        x = _leaf(lib, 2)
        v = x.view(2, 1)
        x.requires_grad_(False)
        return v.mul_(2)

    same(scenario)


def test_a_computed_tensor_is_not_asked_to_require_grad() -> None:
    def scenario(lib: Any) -> Any:
        y = _leaf(lib, 2) * 2
        y.requires_grad_()
        y.requires_grad = True

    same(scenario)


@pytest.mark.parametrize("base", ["a part of a chunk", "a buffer", "a buffer with gaps"])
def test_a_write_through_as_strided_is_undone_at_the_place_it_went_to(base: str) -> None:
    """``as_strided`` counts from the start of the memory, where the base need not begin."""

    def scenario(lib: Any) -> Any:
        x, s = _leaf(lib, 24), _leaf(lib, 1)
        if base == "a part of a chunk":
            b = (x * 1).unsafe_chunk(3)[1]
        else:
            data = lib.tensor([float(i) for i in range(24)]).to(x.dtype)
            b = (data[8:] if base == "a buffer" else data.view(4, 6)[:, 1::2]).detach()
        b.as_strided((2,), (6,), b.storage_offset() + 1 - (base == "a buffer with gaps")).mul_(s)
        weights = lib.tensor([float(i) for i in range(b.numel())]).view(b.shape)
        return b, lib.autograd.grad((b * weights).sum(), [x, s], allow_unused=True)

    same(scenario)


def test_a_write_by_as_strided_beside_the_view_it_is_taken_of_has_a_second_derivative() -> None:
    def scenario(lib: Any) -> Any:
        c = _leaf(lib, 3)
        h = lib.tensor([0.5, 1.5, 2.5]).to(c.dtype)
        h[1:].as_strided((3,), (1,), 0).mul_(c)
        (first,) = lib.autograd.grad((h * h * h).sum(), c, create_graph=True)
        return first, lib.autograd.grad(first.sum(), c)

    same(scenario)


def test_a_write_through_a_view_of_a_transposed_part_is_undone_at_the_place_it_went_to() -> None:
    def scenario(lib: Any) -> Any:
        x, s = _leaf(lib, 24), _leaf(lib, 1)
        b = (x * 1).view(4, 6).unsafe_chunk(2)[1]
        v = b[:, 1:]
        b.t_()
        v[0].mul_(s)
        return b, lib.autograd.grad((b * b.detach()).sum(), [x, s])

    same(scenario)


def test_a_write_to_a_view_has_the_edges_of_the_base_and_of_what_was_written() -> None:
    def scenario(lib: Any) -> Any:
        x, buffer = _leaf(lib, 1), lib.tensor([1.0, 2.0, 3.0, 4.0]).to(torch.float64)
        buffer[1:2].copy_(x)
        first = [node and node.name() for node, _ in buffer.grad_fn.next_functions]
        buffer[2:3].addcmul_(x, x)
        return first, [node and node.name() for node, _ in buffer.grad_fn.next_functions]

    same(scenario)


@pytest.mark.parametrize(
    "write",
    [
        lambda y, s: y.fill_(s),
        lambda y, s: y.fill_(2.0),
        lambda y, s: y.bernoulli_(0.5),
        lambda y, s: y.bernoulli_(y.detach()),
        lambda y, s: y.normal_(),
        lambda y, s: y.random_(),
        lambda y, s: y.uniform_(),
        lambda y, s: y.exponential_(),
        lambda y, s: y.mul_(2),
    ],
)
def test_an_in_place_op_has_the_node_that_torch_gives_it(write: Any) -> None:
    def scenario(lib: Any) -> Any:
        x, s = _leaf(lib, 2), _leaf(lib, 1)
        y = x / 4
        write(y, s[0])
        return _name(y), lib.autograd.grad(y.sum(), [x, s], allow_unused=True)

    same(scenario)


@pytest.mark.parametrize("seen", [lambda t: t.grad, lambda t: t.is_leaf and t.grad_fn])
def test_the_gradient_of_a_stale_view_may_be_looked_at(seen: Any) -> None:
    def scenario(lib: Any) -> Any:
        buffer, s = lib.tensor([1.0, 2.0]), _leaf(lib, 1)
        with torch.no_grad():
            v = buffer[:1]
        buffer.mul_(s)
        return seen(v)

    same(scenario)


@pytest.mark.parametrize(
    "view",
    [
        lambda y: y.conj(),
        lambda y: torch.view_as_real(y),
        lambda y: y.real,
        lambda y: y.conj().imag,
    ],
)
@pytest.mark.parametrize("use", ["written", "read after a write", "viewed"])
@pytest.mark.parametrize(
    "change",
    [lambda y: y.t_(), lambda y: y.unsqueeze_(0), lambda y: y.transpose_(0, 1).squeeze_(1)],
)
def test_a_view_that_strides_do_not_describe_follows_a_base_that_changes_its_geometry(
    view: Any, use: str, change: Any
) -> None:
    def gradient(x: Any, grad: Any, change: Any) -> Any:
        y = x * 1
        v = view(y)
        change(y)
        if use == "written":
            v.mul_(2)
        elif use == "read after a write":
            y.mul_(2)
        else:
            v = v[..., 1:]
            v.mul_(3)
        return runtime.unwrap(grad(y.abs().sum() + v.abs().square().sum(), x)[0])

    x = torch.tensor([[1.0 + 2j, 3.0 - 1j, 2j]])
    # with the change torch raises in some of these
    expected = gradient(x.clone().requires_grad_(), torch.autograd.grad, lambda y: None)
    torch.testing.assert_close(
        gradient(runtime.wrap(x, requires_grad=True), runtime.autograd.grad, change), expected
    )


@pytest.mark.parametrize(
    "start",
    [lambda x: x, lambda x: x * 1, lambda x: x.detach()],
    ids=["leaf", "result", "constant"],
)
@pytest.mark.parametrize("change", [lambda v: v.t_(), lambda v: v.unsqueeze_(0)])
@pytest.mark.parametrize("of_dtype", [torch.int64, torch.float64])
def test_a_view_of_another_dtype_changes_its_geometry_as_in_torch(
    start: Any, change: Any, of_dtype: torch.dtype
) -> None:
    def scenario(lib: Any) -> Any:
        v = start(_leaf(lib, 4)).view(2, 2).view(of_dtype)
        change(v)
        return list(v.shape), v.requires_grad, _name(v)

    same(scenario)


@pytest.mark.parametrize(
    ("write", "times"),
    [
        (lambda x: x.unfold(0, 2, 1).add_(x.sum()), [[1.0], [2.0], [1.0]]),
        (lambda x: x.t().unfold(1, 2, 1).add_(x.sum()), [[1.0], [2.0], [1.0]]),
        (lambda x: x[1:].unfold(0, 1, 1).add_(x.sum()), [[0.0], [1.0], [1.0]]),
        (lambda x: x.as_strided((2, 2, 2), (2, 2, 1)).add_(x.sum()), [[1.0], [2.0], [1.0]]),
    ],
    ids=["unfold", "transposed", "part", "as_strided"],
)
def test_second_derivatives_of_a_write_that_shows_places_twice_are_those_of_the_sum(
    write: Any, times: list[list[float]]
) -> None:
    """A place takes the number as often as the view shows it. torch is wrong here
    (docs/findings.md, F28)."""

    def second(f: Any) -> Any:
        x = runtime.tensor(
            torch.arange(6, dtype=torch.float64).reshape(3, 2).div(7).tolist(),
            dtype=torch.float64,
            requires_grad=True,
        )
        (first,) = runtime.autograd.grad(f(x).sin().sum(), x, create_graph=True)
        return runtime.autograd.grad(first.square().sum(), x)[0]

    def written(x: Any) -> Any:
        x = x * 1
        write(x)
        return x

    w = torch.tensor(times, dtype=torch.float64)
    torch.testing.assert_close(
        runtime.unwrap(second(written)), runtime.unwrap(second(lambda x: x + x.sum() * w))
    )
