"""The text of a tensor has its elements. A program that asks for it is refused, since its results
and state would keep the text of the capture."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from runtime import jit
from runtime.func import vmap

TEXTS: dict[str, Callable[[Tensor], object]] = {
    "str": str,
    "repr": repr,
    "f-string": lambda x: f"{x}",
    "list": lambda x: str([x]),
    "result": lambda x: str(x * 2),
    "print": print,
    "log": lambda x: logging.getLogger(__name__).critical("loss %s", x),
    "constant": lambda x: str(torch.tensor([1, 2])),
    "transform": lambda x: vmap(lambda row: (print(row), row)[1])(x),
    "attribute": lambda x: SimpleNamespace(name=f"{x}"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_text_of_an_argument_is_refused_with_its_line(name: str) -> None:
    f = jit(lambda x: (x * 2, TEXTS[name](x)))
    with pytest.raises(RuntimeError, match=r"str\(\), print\(\) or an f-string asks for the elem"):
        f(torch.ones(3))


@pytest.mark.parametrize("name", ["str", "f-string", "list"])
def test_a_call_that_is_refused_for_a_text_runs_in_eager_mode(name: str) -> None:
    f = jit(lambda x: TEXTS[name](x), on_break="eager")
    with pytest.warns(UserWarning, match=r"asks for the elements of a tensor"):
        texts = [f(torch.full((2,), value)) for value in (1.0, 2.0)]
    assert texts == [TEXTS[name](torch.full((2,), value)) for value in (1.0, 2.0)]


def test_the_text_of_a_tensor_of_the_state_is_that_of_its_elements() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    f = jit(lambda x: (x * weight, str(weight)))
    for _ in range(3):
        assert f(torch.ones(2))[1] == str(weight)
        with torch.no_grad():
            weight.add_(1)


WITHOUT_ELEMENTS_IN_A_ROW: dict[str, Callable[[], Tensor]] = {
    "meta": lambda: torch.ones(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("name", WITHOUT_ELEMENTS_IN_A_ROW)
def test_the_text_of_a_tensor_that_is_not_strided_in_memory_is_known(name: str) -> None:
    tensor = WITHOUT_ELEMENTS_IN_A_ROW[name]()
    f = jit(lambda x: (x * 2, str(tensor)))
    assert f(torch.ones(3))[1] == str(tensor)


def test_how_torch_writes_texts_is_state() -> None:
    third = torch.tensor([1 / 3])
    f = jit(lambda x: (x * 2, f"{third!r}"))
    try:
        for options in ({"precision": 2}, {"sci_mode": True}, {"profile": "default"}):
            torch.set_printoptions(**options)
            assert f(torch.ones(1))[1] == repr(third)
    finally:
        torch.set_printoptions(profile="default", sci_mode=None)


def test_a_program_writes_texts_its_own_way() -> None:
    third = torch.tensor([1 / 3])

    def program(x: Tensor) -> tuple[Tensor, str]:
        torch.set_printoptions(precision=2)
        text = str(third)
        torch.set_printoptions(profile="default")
        return x * 2, text

    compiled = jit(program)
    for _ in range(10):
        assert compiled(torch.ones(1))[1] == "tensor([0.33])"
        assert str(third) == "tensor([0.3333])"
    assert len(jit.explain(compiled).programs) == 1


def test_how_texts_are_written_after_a_program_is_as_in_eager_mode() -> None:
    @jit
    def program(x: Tensor) -> Tensor:
        torch.set_printoptions(precision=2)
        return x * 2

    try:
        for _ in range(3):
            torch.set_printoptions(profile="default")
            program(torch.ones(1))
            assert str(torch.tensor([1 / 3])) == "tensor([0.33])"
    finally:
        torch.set_printoptions(profile="default")


def test_the_text_of_a_shape_is_known() -> None:
    f = jit(lambda x: (x * 2, str(x.shape), f"{x.dtype}"))
    assert f(torch.ones(3))[1:] == ("torch.Size([3])", "torch.float32")


def test_a_transform_without_a_capture_shows_what_a_tensor_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    vmap(lambda row: (print(row), row)[1])(torch.ones(2, 3))
    assert "size=2" in capsys.readouterr().out
