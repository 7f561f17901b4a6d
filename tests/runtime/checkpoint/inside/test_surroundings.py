"""What a checkpoint notes of devices and brings back, on devices that this machine does not have.

Inside: ``runtime.checkpoint.state``. No tensor can be on such a device, so no call of
``checkpoint`` comes to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime.checkpoint import get_device_states, set_device_states
from runtime.checkpoint.state import Surroundings


class Devices:
    """Two devices of a type that this machine does not have, and the states of their generators."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, initialized: bool | None = True) -> None:
        self.states, self.current = {0: torch.tensor([10]), 1: torch.tensor([11])}, 0
        if initialized is not None:
            self._initialized = initialized
        monkeypatch.setattr(torch, "xpu", self)
        monkeypatch.setattr("runtime.checkpoint.state._module", lambda kind: {"xpu": self}[kind])
        monkeypatch.setattr(
            "runtime.checkpoint.state._on_devices",
            lambda args: [a for a in args if hasattr(a, "get_device")],
        )

    @contextmanager
    def device(self, number: int) -> Iterator[None]:
        before, self.current = self.current, number
        yield
        self.current = before

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self.states[self._number(device)]

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self.states[self._number(device)] = state

    def _number(self, device: Any) -> int:
        return self.current if device is None else getattr(device, "index", device)

    @property
    def numbers(self) -> list[int]:
        return [int(state) for state in self.states.values()]


def on_device(number: int, kind: str = "xpu") -> Any:
    return SimpleNamespace(get_device=lambda: number, device=SimpleNamespace(type=kind))


class TestStates:
    def test_of_devices_are_taken_on_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Devices(monkeypatch)
        numbers, found = get_device_states(on_device(1), on_device(0), on_device(1))
        assert numbers == [0, 1]
        assert [s.item() for s in found] == [10, 11]

    def test_of_devices_are_given_back_on_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices = Devices(monkeypatch)
        set_device_states([0, 1], [torch.tensor([20]), torch.tensor([21])], device_type="xpu")
        assert devices.numbers == [20, 21]

    def test_of_the_cpu_are_not_given_back(self, monkeypatch: pytest.MonkeyPatch) -> None:
        devices = Devices(monkeypatch)
        set_device_states([0], [torch.tensor([30])], device_type="cpu")
        assert devices.numbers == [10, 11]


class TestSurroundings:
    def test_the_generators_of_devices_are_as_they_were_and_afterwards_as_they_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices = Devices(monkeypatch)
        for preserve, within in ((True, [10, 11]), (False, [20, 21])):
            devices.states = {0: torch.tensor([10]), 1: torch.tensor([11])}
            around = Surroundings((on_device(1), "word", on_device(0)), preserve)
            devices.states = {0: torch.tensor([20]), 1: torch.tensor([21])}
            with around.restored():
                assert devices.numbers == within
            assert devices.numbers == [20, 21]

    @pytest.mark.parametrize("initialized", [False, None])
    def test_a_device_that_was_not_used_yet_has_no_state(
        self, initialized: bool | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        devices = Devices(monkeypatch, initialized)
        around = Surroundings((on_device(1),), True)
        devices.states = {0: torch.tensor([20]), 1: torch.tensor([21])}
        with around.restored():
            assert devices.numbers == [20, 21]

    def test_the_first_argument_on_a_device_says_which_type_it_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Devices(monkeypatch)
        assert Surroundings((1, on_device(0), on_device(0, "cuda")), True).device_type == "xpu"

    def test_autocast_is_as_it_was_on_the_device_and_on_the_cpu(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def state() -> list[Any]:
            kinds = ("cpu", "xpu")
            return [
                torch.is_autocast_cache_enabled(),
                *((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds),
            ]

        Devices(monkeypatch)
        outside = state()
        with torch.autocast("cpu", dtype=torch.half, cache_enabled=False):
            torch.set_autocast_enabled("xpu", True)
            torch.set_autocast_dtype("xpu", torch.bfloat16)
            try:
                around, expected = Surroundings((on_device(0),), False), state()
            finally:
                torch.set_autocast_enabled("xpu", outside[2][0])
                torch.set_autocast_dtype("xpu", outside[2][1])
        assert (
            expected == [False, (True, torch.half), (True, torch.bfloat16)] and state() == outside
        )
        with around.restored():
            assert state() == expected
        assert state() == outside
