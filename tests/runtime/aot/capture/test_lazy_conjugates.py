"""Writes to arguments that are conjugated lazily, and to parts of complex ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import runtime

from .boundary_helpers import compiled

WRITES: dict[str, Callable[[Any], Any]] = {
    "real": lambda x: x.real.mul_(2),
    "imag": lambda x: x.imag.mul_(3),
    "conj": lambda x: x.conj().mul_(2j),
    "imag of conj": lambda x: x.conj().imag.add_(1),
    "neg of imag": lambda x: x.imag.neg().mul_(2),
    "itself": lambda x: x.mul_(1 + 1j),
    "real of a row": lambda x: x[0].real.add_(1),
}
ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda h: h.view(2, 2),
    "conjugated": lambda h: h.view(2, 2).conj(),
    "conjugated with gaps": lambda h: h[::2].conj(),
    "overlapping": lambda h: h.unfold(0, 3, 1),
}
VALUES = torch.tensor([1 + 2j, 3 - 1j, 0.5j, 2.0])


@pytest.mark.parametrize("argument", ARGUMENTS.values(), ids=ARGUMENTS.keys())
@pytest.mark.parametrize("name", WRITES)
def test_a_part_of_a_complex_argument_is_written(name: str, argument: Any) -> None:
    def seen(leaf: Any, f: Any) -> Any:
        base = leaf * 1
        out = f(argument(base))
        return base.detach().clone(), out.detach().clone(), base, leaf

    def f(x: Any) -> Any:
        WRITES[name](x)
        return x * 1

    *expected, base, leaf = seen(VALUES.clone().requires_grad_(), f)
    *found, own_base, own_leaf = seen(runtime.wrap(VALUES.clone(), requires_grad=True), compiled(f))
    torch.testing.assert_close([runtime.unwrap(t) for t in found], expected)
    if argument is ARGUMENTS["overlapping"] and "conj" in name:
        return  # the derivative of such a write depends on how often the kernel writes an element
    (g,) = torch.autograd.grad(base.abs().sum(), leaf)
    (own,) = runtime.autograd.grad(own_base.abs().sum(), own_leaf)
    torch.testing.assert_close(runtime.unwrap(own), g)


@pytest.mark.parametrize(
    "lazy", [lambda t: t.conj(), lambda t: t.conj().imag], ids=["conjugated", "negated"]
)
def test_an_argument_without_a_history_is_written_and_stays_lazy(lazy: Any) -> None:
    mine, theirs = VALUES.clone(), VALUES.clone()
    doubled = runtime.jit(lambda x: x.mul_(2))
    for _ in range(3):  # captured, generated, replayed
        argument = lazy(mine)
        assert (
            doubled(argument) is argument
            and argument.is_conj() is lazy(theirs).is_conj()
            and argument._version == mine._version
        )
        lazy(theirs).mul_(2)
        assert torch.equal(mine, theirs) and mine._version == theirs._version


def test_a_write_to_a_conjugated_overlapping_argument_is_refused() -> None:
    with pytest.raises(
        RuntimeError,
        match=r"argument 0, which shows an element of its memory several times, .* conjugated",
    ):
        compiled(lambda x: x.real.mul_(2))(VALUES.unfold(0, 3, 1).conj())


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "lazy", [lambda x: x.conj(), lambda x: x.conj().imag], ids=["conjugate", "negative"]
)
@pytest.mark.parametrize(
    "change", ["swapaxes_(0, 1)", "swapdims_(0, 1)", "transpose_(0, 1)", "t_()", "unsqueeze_(0)"]
)
def test_the_geometry_of_a_lazy_tensor_changes_in_place(
    change: str, lazy: Any, mode: Any, dynamic: bool
) -> None:
    def f(x: Any) -> Any:
        with mode():
            return changed(x)

    def changed(x: Any) -> Any:
        return eval(f"lazy(x).{change}", {"lazy": lazy, "x": x})

    x = torch.tensor([[1 + 2j, 3 - 1j, 0.5j], [2 - 1j, 4j, 1.0]])
    # not in inference mode, in which torch's swapaxes_ of a lazy conjugate writes
    # to the memory of x
    expected, found = changed(x), compiled(f, dynamic=dynamic)(x)
    assert (
        found.tolist() == expected.tolist()
        and found.stride() == expected.stride()
        and found.data_ptr() == expected.data_ptr()
    )
    assert (found.is_conj(), found.is_neg()) == (expected.is_conj(), expected.is_neg())
