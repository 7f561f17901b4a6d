"""Under functionalize, a write through a view lands in the base, whatever the view; torch's own
writes are the oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.aot import make_fx
from runtime.func import functionalize
from tests.runtime.schemas import is_view, writes

aten = torch.ops.aten
X = torch.arange(24.0).reshape(2, 3, 4) / 7 - 1

VIEWS: dict[str, Callable[[Any], Any]] = {
    "the whole": lambda y: y[...],
    "detach": lambda y: y.detach(),
    "alias": lambda y: aten.alias(y),
    "view": lambda y: y.view(4, 6),
    "reshape": lambda y: y.reshape(-1),
    "unsqueeze": lambda y: y.unsqueeze(1),
    "squeeze": lambda y: y[:1].squeeze(0),
    "squeeze of some": lambda y: y[:1, :1].squeeze((0, 1)),
    "transpose": lambda y: y.transpose(0, -1),
    "t": lambda y: y[0].t(),
    "permute": lambda y: y.permute(2, 0, 1),
    "permute from the end": lambda y: y.permute(-1, 0, -2),
    "expand": lambda y: y.expand(2, 3, 4),
    "expand by dimensions of one": lambda y: y.expand(1, 1, 2, 3, 4),
    "select": lambda y: y.select(1, 2),
    "select from the end": lambda y: y.select(-1, -2),
    "slice": lambda y: y[:, 1:],
    "slice in steps": lambda y: y[..., 1:4:2],
    "slice with defaults": lambda y: aten.slice(y),
    "diagonal": lambda y: y.diagonal(),
    "another diagonal": lambda y: y.diagonal(1, 2, 0),
    "as_strided": lambda y: y.as_strided((2, 2), (12, 1), 3),
    "as_strided from where it starts": lambda y: y.as_strided((2, 2), (5, 1)),
    "view as integers": lambda y: y.view(torch.int32),
    "view as bytes": lambda y: y.view(torch.uint8),
    "unbind": lambda y: y.unbind()[1],
    "unbind along": lambda y: y.unbind(2)[3],
    "split": lambda y: y.split(2, 1)[1],
    "split of sizes": lambda y: y.split([1, 3], -1)[1],
    "split at the front": lambda y: y.split(1)[1],
    "chunk": lambda y: y.chunk(2, 2)[1],
    "tensor_split": lambda y: y.tensor_split(3, 1)[2],
    "unfold": lambda y: y.unfold(2, 2, 2),
    "movedim and slice": lambda y: y.movedim(0, 2)[1, 2:],
    "real part": lambda y: torch.view_as_complex(y.view(2, 3, 2, 2)).real,
    "slices of slices": lambda y: y[1:][0, 1:][:, 2].view(2, 1),
}
COMPLEX: dict[str, Callable[[Any], Any]] = {
    "view_as_real": torch.view_as_real,
    "real": lambda y: y.real,
    "imag": lambda y: y.imag,
    "conj": lambda y: y.conj(),
    "imaginary part of the conjugate": lambda y: y.conj().imag,
    "conjugate of a slice": lambda y: y[1:].conj()[0],
}


def doubled(view: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def program(x: Any) -> Any:
        y = x.clone()
        part = view(y)
        part.mul_(2)
        part.add_(1)
        return y, part

    return program


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_write_through_a_view_of_real_numbers(name: str, remove: str) -> None:
    program = doubled(VIEWS[name])
    # integers make NaNs
    torch.testing.assert_close(functionalize(program, remove=remove)(X), program(X), equal_nan=True)


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("name", COMPLEX)
def test_a_write_through_a_view_of_complex_numbers(name: str, remove: str) -> None:
    program, x = doubled(COMPLEX[name]), torch.complex(X, X.flip(0))
    torch.testing.assert_close(functionalize(program, remove=remove)(x), program(x))


@pytest.mark.parametrize("name", [*VIEWS, *COMPLEX])
def test_the_graph_of_a_write_has_no_view_where_views_are_removed(name: str) -> None:
    x, view = (X, VIEWS[name]) if name in VIEWS else (torch.complex(X, X.flip(0)), COMPLEX[name])
    graph = make_fx(functionalize(doubled(view), remove="mutations_and_views"))(x).graph
    ops = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert ops and not [op for op in ops if is_view(op) or writes(op)]


def test_a_write_that_lies_otherwise_in_memory_than_what_it_is_written_to() -> None:
    def program(x: Any) -> Any:
        y = x.clone()
        y.transpose(0, 2)[0].unsqueeze(0).copy_(x[:, :, 0].t()[:, :2])
        y.transpose(1, 2).unsqueeze(0).mul_(x.permute(0, 2, 1))
        return y

    for remove in ("mutations", "mutations_and_views"):
        torch.testing.assert_close(functionalize(program, remove=remove)(X), program(X))


torch.library.define("runtime_test_scatter::halves", "(Tensor(a) x) -> (Tensor(a), Tensor(a))")
torch.library.impl("runtime_test_scatter::halves", "CompositeExplicitAutograd")(
    lambda x: (x[:, :1], x[:, 1:])
)


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
def test_a_write_through_a_view_of_a_librarys_op(remove: str) -> None:
    for which in (0, 1):
        program = doubled(lambda y: torch.ops.runtime_test_scatter.halves(y)[which])  # noqa: B023
        torch.testing.assert_close(functionalize(program, remove=remove)(X), program(X))


def test_the_default_device_has_no_part_in_it() -> None:
    program = doubled(VIEWS["unfold"])
    with torch.device("meta"):
        found = functionalize(program)(X)
    torch.testing.assert_close(found, program(X))


def test_a_read_after_a_write_through_another_view_sees_it() -> None:
    def program(x: Any) -> Any:
        y = x.clone()
        row, column, pieces = y[0], y[:, 1], y.unbind(2)
        row.mul_(3)
        column.neg_()
        pieces[2].zero_()
        return row, column, pieces, y.t() if y.dim() == 2 else y

    torch.testing.assert_close(functionalize(program)(X), program(X))


@pytest.mark.parametrize(
    "view", [lambda y: y[:, :1].expand(2, 5, 4), lambda y: y.sum(1, keepdim=True).expand(2, 3, 4)]
)
def test_a_write_to_elements_that_share_memory_is_refused(view: Any) -> None:
    with pytest.raises(
        RuntimeError,
        match="more than one element of the written-to tensor refers to a single memory location",
    ):
        functionalize(doubled(view))(X)
