"""Data classes among arguments and results are trees of their fields."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import runtime
from tests.runtime.aot.capture.boundary_helpers import compiled


@dataclasses.dataclass
class State:
    position: Any
    step: float = 0.5


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: State
    name: str


def advanced(s: Frozen) -> Frozen:
    return Frozen(State(s.inner.position * s.inner.step, s.inner.step), s.name)


def test_their_tensors_are_arguments_and_results() -> None:
    f = compiled(advanced)
    for number, step in ((1.0, 0.5), (3.0, 0.5), (3.0, 2.0)):
        x = runtime.tensor([number], requires_grad=True)
        out = f(Frozen(State(x, step), "a"))
        assert (
            type(out) is Frozen
            and type(out.inner) is State
            and out.name == "a"
            and out.inner.position.tolist() == [number * step]
        )
        out.inner.position.backward()
        assert x.grad.tolist() == [step]


def test_a_tree_with_them_is_taken_apart_and_made_again() -> None:
    tree = {"a": [Frozen(State(1, 2.0), "n")], "b": 3}
    given, doubled = compiled(lambda t, x: (t, x * 2))(tree, torch.ones(1))
    assert given == tree and given["a"][0].inner is not tree["a"][0].inner  # type: ignore[index]
    assert doubled.item() == 2.0


def test_a_field_that_is_not_set_stays_so() -> None:
    made = object.__new__(Frozen)
    object.__setattr__(made, "name", "a")
    again, one, doubled = compiled(lambda m, n, x: (m, n, x * 2))(made, 1, torch.ones(1))
    assert type(again) is Frozen and vars(again) == {"name": "a"} and one == 1
    assert doubled.item() == 2.0


def test_modules_and_classes_are_leaves() -> None:
    @dataclasses.dataclass(eq=False)
    class Layer(torch.nn.Module):
        size: int

        def __post_init__(self) -> None:
            size = self.__dict__.pop("size")
            super().__init__()
            self.size = size

    layer = Layer(3)
    tree = [layer, State, (2, 3)]
    found, doubled = compiled(lambda t, x: (t, x * 2))(tree, torch.ones(1))
    assert found[0] is layer and found[1] is State and found[2] == (2, 3)
    assert doubled.item() == 2.0


class TestWhatIsLost:
    def test_tensors_that_change_places_are_told(self) -> None:
        def f(d: dict[str, Any]) -> Any:
            d["a"], d["b"] = d["b"], d["a"]
            return d["a"] * 1

        given = {"a": torch.zeros(1), "b": torch.ones(1)}
        with pytest.warns(
            UserWarning, match="changes a list, a dictionary or an object that it is given"
        ):
            assert compiled(f)(given).item() == 1.0
        assert given["a"].item() == 0.0

    @pytest.mark.filterwarnings("error")
    def test_a_program_that_changes_nothing_is_told_nothing(self) -> None:
        s = State(torch.ones(1))
        assert compiled(lambda s, xs: s.position * xs[0])(s, [torch.ones(1)]).item() == 1.0

    def test_a_tensor_assigned_to_an_argument_is_refused(self) -> None:
        def into_field(s: State) -> Any:
            s.position = s.position * 2
            return s.step

        def into_list(xs: list[Any]) -> Any:
            xs.append(xs[0] * 2)
            return xs[0]

        with pytest.raises(
            RuntimeError,
            match="assigns a tensor to a list, a dictionary or a field that it is given",
        ):
            compiled(into_field)(State(torch.ones(1)))
        with pytest.raises(
            RuntimeError,
            match="assigns a tensor to a list, a dictionary or a field that it is given",
        ):
            compiled(into_list)([torch.ones(1)])

    def test_one_that_is_returned_as_well_is_told(self) -> None:
        def f(d: dict[str, Any]) -> Any:
            d["a"] = d["a"] * 2
            return d

        given = {"a": torch.ones(1)}
        with pytest.warns(
            UserWarning, match="changes a list, a dictionary or an object that it is given"
        ):
            assert compiled(f)(given)["a"].item() == 2.0
        assert given["a"].item() == 1.0

    def test_another_change_of_an_argument_is_told(self) -> None:
        batch = {"x": torch.ones(1), "name": "a"}
        with pytest.warns(
            UserWarning, match="changes a list, a dictionary or an object that it is given"
        ):
            compiled(lambda batch: batch["x"] * len(batch.pop("name")))(batch)
        assert batch["name"] == "a"

    def test_an_object_that_holds_tensors_is_no_result(self) -> None:
        class Plain:
            def __init__(self, t: Any) -> None:
                self.t = t

        with pytest.raises(
            RuntimeError, match="returns a Plain that holds tensors which it has computed"
        ):
            compiled(lambda x: Plain(x * 2))(torch.ones(1))
        with pytest.raises(
            RuntimeError, match="returns a function that holds tensors which it has computed"
        ):
            compiled(lambda x: (lambda y: lambda: y)(x * 2))(torch.ones(1))
