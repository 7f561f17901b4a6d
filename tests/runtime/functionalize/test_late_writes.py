"""What functionalize leaves to the end, and what it writes as one functional op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime.aot import aot_function, make_fx, nop
from runtime.autograd import Function
from runtime.func import functionalize, grad
from tests.runtime.trace.graphs import CallsSeen

aten = torch.ops.aten
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "add_": lambda t: t.add_(1),
    "polygamma_": lambda t: t.polygamma_(1),
    "an index": lambda t: t.__setitem__(0, 5.0),
    "out=": lambda t: torch.add(torch.ones(4, 4), 1, out=t),
    "foreach": lambda t: torch._foreach_add_([t[:2], t[2:]], 1.0),
    "foreach of parts that overlap": lambda t: torch._foreach_add_([t[:3], t[2:]], 1.0),
    "elements shown several times": lambda t: t.unfold(0, 2, 1).mul_(2),
    "a draw into gaps": lambda t: t[:, ::2].normal_(),
    "a long draw into gaps": lambda t: t.view(-1)[::2].repeat(8).view(4, 16)[:, ::2].normal_(),
    "normal_": lambda t: t.normal_(),
    "statistics": lambda t: torch.nn.functional.batch_norm(
        torch.rand(3, 4), t[0], t[1], training=True
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_program_that_fails_has_written_nothing_to_what_it_closes_over(name: str) -> None:
    closed = torch.arange(1.0, 17.0).view(4, 4)

    def f(x: Tensor) -> Tensor:
        WRITES[name](closed)
        raise ValueError("at the end")

    with pytest.raises(ValueError, match="at the end"):
        functionalize(f)(torch.ones(2))
    assert closed.tolist() == torch.arange(1.0, 17.0).view(4, 4).tolist()


@pytest.mark.parametrize(
    "options",
    [{}, {"pre_dispatch": True}, {"tracing_mode": "fake", "_allow_non_fake_inputs": True}],
    ids=str,
)
@pytest.mark.parametrize(
    "name",
    [*WRITES, "a parameter", "an argument", "a tensor of the session", "a leaf of the session"],
)
def test_a_trace_leaves_what_its_program_writes_to_as_it_was(
    name: str, options: dict[str, Any]
) -> None:
    closed = torch.arange(1.0, 17.0).view(4, 4)
    if name == "a parameter":
        closed = torch.nn.Parameter(closed, requires_grad=False)
    if name.endswith("of the session"):
        closed = runtime.wrap(closed, requires_grad=name.startswith("a leaf"))
    write = WRITES.get(name, WRITES["add_"])

    def program(x: Tensor) -> Tensor:
        with torch.set_grad_enabled(name != "a leaf of the session"):
            write(x if name == "an argument" else closed)
        return x * 1

    traced = make_fx(program, **options)
    traced(closed if name == "an argument" else torch.ones(4, 4))
    assert closed.flatten().tolist() == list(range(1, 17)) and closed._version == 0


def test_a_trace_takes_what_was_made_in_inference_mode() -> None:
    with torch.inference_mode():
        closed = torch.ones(2)
    count = torch.zeros(())
    module = make_fx(lambda x: x * closed + count.add_(1))(torch.ones(2))
    assert count == 0 and module(torch.ones(2)).tolist() == [2.0, 2.0] and count == 1


ONE_CALL: dict[str, tuple[Callable[[Tensor], Any], list[str]]] = {
    "foreach": (lambda x: torch._foreach_add_([x, x.exp()], 1.0), ["exp", "_foreach_add"]),
    "foreach of a list": (lambda x: torch._foreach_add_([x], [x.exp()]), ["exp", "_foreach_add"]),
    "foreach of one memory": (lambda x: torch._foreach_add_([x, x], 1.0), ["add", "add"]),
    "foreach of what is written": (
        lambda x: torch._foreach_add_([x, x.exp()], [x.cos(), x]),
        ["cos", "add"],
    ),
    "a draw": (lambda x: x.normal_(), ["normal_functional"]),
    "a size that there is": (lambda x: x.resize_(2, 3), []),
    "the size of another": (lambda x: x.resize_as_(torch.ones(2, 3)), []),
}


@pytest.mark.parametrize("name", ONE_CALL)
def test_a_write_is_the_functional_op_where_each_memory_is_written_once(name: str) -> None:
    f, expected = ONE_CALL[name]

    def program(x: Tensor) -> Tensor:
        y = x * 2
        f(y)
        return y

    graph = make_fx(functionalize(program))(torch.ones(2, 3)).graph
    names = [
        n.target.overloadpacket.__name__
        for n in graph.nodes
        if isinstance(n.target, torch._ops.OpOverload)
    ]
    assert names == ["mul", *expected]


def test_a_sparse_tensor_is_written_to() -> None:
    def f(x: Tensor) -> Tensor:
        return x.clone().mul_(2).to_dense()

    assert functionalize(f)(torch.eye(2).to_sparse()).tolist() == [[2.0, 0.0], [0.0, 2.0]]


def test_the_values_of_a_level_are_views_until_they_are_to_be_copies() -> None:
    for remove, copies in (("mutations", False), ("mutations_and_views", True)):
        with CallsSeen() as seen:
            functionalize(lambda x: x[0] * 2, remove=remove)(torch.ones(2, 3))
        assert any("copy" in name for name in seen.names) is copies


COUNTED: dict[str, Callable[[Tensor], Any]] = {
    "detach_": lambda y: y.detach_(),
    "a write to its data": lambda y: y.data.add_(1),
    "a write to what is detached": lambda y: y.detach().add_(1),
    "foreach": lambda y: torch._foreach_add_([y, y], 1.0),
    "out=": lambda y: torch.add(y, 1, out=y),
    "elements shown several times": lambda y: y.unfold(0, 2, 1).mul_(2),
    "a draw into gaps": lambda y: y.repeat(5, 5)[:, ::2].normal_(),
    "polygamma_": lambda y: y.polygamma_(1),
    "t_": lambda y: y.t_(),
    "transpose_": lambda y: y.transpose_(0, 1),
    "squeeze_": lambda y: y.squeeze_(0),
    "unsqueeze_": lambda y: y.unsqueeze_(0).unsqueeze_(0),
    "swapaxes_": lambda y: y.swapaxes_(0, 1),
    "swapdims_": lambda y: y.swapdims_(0, 1),
    "as_strided_": lambda y: y.as_strided_((3,), (1,)),
    "t_ of a view": lambda y: y[:1].t_(),
    "statistics": lambda y: torch.nn.functional.batch_norm(
        torch.ones(3, 2), y[0], y[1], training=True
    ),
}


COUNTING: dict[str, Callable[[Any, Tensor], Any]] = {
    "functionalize": lambda f, x: functionalize(f)(x),
    "make_fx": lambda f, x: make_fx(f)(x),
    "jit": lambda f, x: runtime.jit(f)(x),
    "aot_function": lambda f, x: aot_function(f, nop)(x),
    "grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "session": lambda f, x: f(runtime.wrap(x, requires_grad=True)),
}


@pytest.mark.parametrize("way", COUNTING)
@pytest.mark.parametrize("name", COUNTED)
def test_a_write_advances_the_versions_that_it_advances_in_torch(name: str, way: str) -> None:
    seen: list[list[int]] = []

    def f(x: Tensor) -> Tensor:
        y = (x * 1).detach()  # without a history, which out= does not take
        row, data, detached = y[0], y.data, y.detach()
        COUNTED[name](y)
        seen.append([t._version for t in (y, row, data, detached)])
        return x * 1

    f(torch.ones(2, 2))
    COUNTING[way](f, torch.ones(2, 2))
    assert len(seen) > 1 and all(found == seen[0] for found in seen)


class Dirty(Function):
    """Returns its argument, which it says that it has written to. ``writes``: whether it has."""

    @staticmethod
    def forward(ctx: Any, x: Any, writes: bool) -> Any:
        if writes:
            x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, None


@pytest.mark.parametrize("writes", [False, True])
def test_what_a_function_says_that_it_has_written_to_has_another_version(writes: bool) -> None:
    def f(x: Tensor) -> Any:
        y = x * 1
        row, before = y[0], y._version
        Dirty.apply(y, writes)
        return before, y._version, row._version

    assert functionalize(f)(torch.ones(2, 2)) == (0, 1 + writes, 1 + writes)  # as in torch


def test_the_data_of_a_value_is_not_set() -> None:
    def f(x: Tensor) -> Tensor:
        x.data = x * 2
        return x

    with pytest.raises(RuntimeError, match=r"mutating directly with `\.data`"):
        functionalize(f)(torch.ones(2))


SPARSE: dict[str, Callable[[Tensor], Tensor]] = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "coo of the session": lambda t: runtime.wrap(t.to_sparse()),
}
INTO_SPARSE: dict[str, Callable[[Tensor], Any]] = {
    "mul_": lambda t: t.mul_(3.0),
    "copy_": lambda t: t.copy_(t * 3),
    "zero_": lambda t: t.zero_(),  # which resizes it
    "its values": lambda t: (t._values() if t.layout is torch.sparse_coo else t.values()).mul_(3.0),
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch's own: in beta
@pytest.mark.parametrize("write", INTO_SPARSE)
@pytest.mark.parametrize("layout", SPARSE)
def test_a_trace_leaves_a_sparse_tensor_as_it_was_and_the_replay_writes_to_it(
    layout: str, write: str
) -> None:
    closed = SPARSE[layout](torch.eye(4))
    traced = make_fx(lambda x: (INTO_SPARSE[write](closed), x * 1)[1])(torch.ones(4))
    assert torch.equal(closed.to_dense(), torch.eye(4)) and closed._version == 0
    traced(torch.ones(4))
    assert torch.equal(closed.to_dense(), (0 if write == "zero_" else 3) * torch.eye(4))


@pytest.mark.parametrize("of_session", [False, True])
def test_a_trace_leaves_an_instance_of_a_class_as_it_was_and_the_replay_writes_to_it(
    of_session: bool,
) -> None:
    parts = torch.ones(2), torch.zeros(2)
    closed = TwoTensor(*map(runtime.wrap, parts)) if of_session else TwoTensor(*parts)
    traced = make_fx(lambda x: (closed.add_(x), x * 1)[1])(torch.ones(2))
    assert (closed.a.tolist(), closed.b.tolist(), closed._version) == ([1.0, 1.0], [0.0, 0.0], 0)
    traced(torch.ones(2))
    assert (closed.a.tolist(), closed.b.tolist(), closed._version) == ([2.0, 2.0], [1.0, 1.0], 1)
    assert make_fx(lambda x: x * closed)(torch.ones(2))(torch.full((2,), 3.0)).b.tolist() == [
        3.0,
        3.0,
    ]


TURNED: dict[str, Callable[[Tensor], Any]] = {
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "as_strided_": lambda x: x.as_strided_((2, 2), (2, 1), 1),
    "t_ and a write": lambda x: x.t_().mul_(torch.arange(6.0).view(3, 2)),
    "a write and t_": lambda x: x.mul_(torch.arange(6.0).view(2, 3)).t_(),
    "a write to a view of before": lambda x: (x[0], x.t_())[0].add_(1),
    "two changes": lambda x: x.t_().unsqueeze_(1).add_(1),
    "a write to its data": lambda x: x.t_().data.mul_(2),
    "t_ of a view": lambda x: x[:1].t_().add_(1),
}
BY: dict[str, Callable[[Any], Any]] = {
    "functionalize": functionalize,
    "copies": lambda f: functionalize(f, remove="mutations_and_views"),
    "twice": lambda f: functionalize(functionalize(f)),
    "a trace": lambda f: make_fx(functionalize(f))(torch.ones(2, 3)),
    "the session": functionalize,
}


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("name", TURNED)
def test_an_argument_has_the_geometry_that_the_program_gave_it(name: str, by: str) -> None:
    def f(x: Tensor) -> Tensor:
        TURNED[name](x)
        return x * 1

    def run(f: Any) -> tuple[Tensor, Tensor]:
        x = torch.arange(6.0).view(2, 3)
        given = runtime.wrap(x) if by == "the session" else x
        return f(given), given * 1

    for found, expected in zip(run(BY[by](f)), run(f), strict=True):
        assert found.shape == expected.shape and found.tolist() == expected.tolist()


def test_the_geometry_of_a_leaf_that_requires_grad_is_not_changed() -> None:
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        grad(functionalize(lambda x: x.t_().sum()))(torch.ones(2, 3))
