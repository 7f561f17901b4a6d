"""Arguments that show an element of their memory several times, and are written to."""

from typing import Any

import pytest
import torch

import runtime
from tests.runtime.aot.capture.boundary_helpers import both, compiled, equal


def test_a_write_to_an_unfolded_argument_is_made_element_by_element() -> None:
    def program(f: Any) -> Any:
        base = torch.arange(4.0)
        return f(base.unfold(0, 2, 1)), base, base._version

    expected, found = both(lambda x: x.mul_(2) * 1, program)
    assert equal(expected, found) and expected[1].tolist() == [0.0, 4.0, 8.0, 6.0]


def test_a_write_to_a_row_of_an_expanded_argument_with_a_history_has_its_gradient() -> None:
    def program(f: Any) -> Any:
        leaf = runtime.tensor([1.0, 2.0, 3.0], requires_grad=True)
        base = leaf * 1
        out = f(base.expand(2, 3))
        return base, runtime.autograd.grad(out.sin().sum() + base.cos().sum(), leaf)

    assert equal(*both(lambda x: x[0].mul_(x[1]) * 1, program))


@pytest.mark.parametrize(
    "source", ["x.detach()", "x.view_as(x)", "x.data", "x", "x[:1]", "x[1] * 1"]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_write_reads_what_it_has_written_before(source: str, dynamic: bool) -> None:
    def f(x: Any) -> Any:
        return x.sub_(eval(source, {"x": x})) * 1

    def program(f: Any) -> Any:
        base = torch.arange(1.0, 6.0)
        return f(base.unfold(0, 3, 1)), base

    assert equal(program(f), program(compiled(f, dynamic=dynamic)))


def test_other_sizes_are_another_program() -> None:
    f = compiled(lambda x: x.add_(1), dynamic=True)
    for size in (2, 3):
        base, expected = torch.arange(6.0), torch.arange(6.0)
        f(base.unfold(0, size, 1))
        expected.unfold(0, size, 1).add_(1)
        assert torch.equal(base, expected)


def test_an_overlapping_leaf_is_refused() -> None:
    leaf = runtime.wrap(torch.arange(4.0).unfold(0, 2, 1), requires_grad=True)

    def f(x: Any) -> Any:
        with torch.no_grad():
            x.mul_(2)
        return x * 2

    with pytest.raises(
        RuntimeError, match="argument 0 shows an element of its memory several times"
    ):
        compiled(f)(leaf)


def test_an_overlapping_closed_over_tensor_is_refused() -> None:
    buffer = torch.arange(4.0).unfold(0, 2, 1)
    with pytest.raises(RuntimeError, match="closes over, and that shows an element"):
        compiled(lambda x: buffer.add_(x))(torch.ones(2))


def test_a_piece_of_a_written_argument_is_refused() -> None:
    def before(x: Any) -> Any:
        x.mul_(2)
        # shares the memory of the caller's tensor, and the graph has only its new value
        return x.unsafe_split(1)[-1]

    def after(x: Any) -> Any:
        y = x.unsafe_split(1)[-1]
        x.mul_(2)
        return y

    for f in (before, after):
        with pytest.raises(RuntimeError, match="shares with a result of unsafe_split"):
            compiled(f)(torch.ones(2, 3))


def test_a_piece_of_an_intermediate_is_a_part_of_it() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        y.mul_(2)
        return y, y.unsafe_split(1)[-1]

    y, piece = compiled(f)(torch.ones(2, 3))
    piece.zero_()
    assert y.tolist() == [[4.0] * 3, [0.0] * 3]


def test_a_write_to_a_piece_of_an_overlapping_argument_is_refused() -> None:
    with pytest.raises(
        RuntimeError,
        match=(
            "a write to a result of unsafe_split or unsafe_chunk that shows "
            "an element of its memory several"
        ),
    ):
        compiled(lambda x: x.unsafe_chunk(2)[0].mul_(3) * 1)(torch.arange(5.0).unfold(0, 2, 1))


def test_no_call_writes_over_memory_that_a_piece_shares() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return (
            y.unsafe_split(1)[-1],
            torch.ops.aten._unsafe_view(y, [4]),
            y.tanh(),
            y.unsafe_chunk(2)[0],
        )

    x = torch.tensor([[0.5, 0.1], [0.7, 0.2]])
    for given in (x, runtime.wrap(x.clone(), requires_grad=True)):
        assert equal(compiled(f)(given), f(given))


def test_an_overlapping_argument_with_an_alias_without_its_history_is_refused() -> None:
    base = runtime.tensor([1.0, 2.0, 3.0], requires_grad=True) * 1
    with pytest.raises(
        RuntimeError, match="share memory, the program writes to it, and one of them requires grad"
    ):
        compiled(lambda x, y: x.add_(1) * 1)(base.unfold(0, 2, 1), base.detach())
