"""Gradient scalers that a program uses while it is captured.

``torch.amp.GradScaler`` makes its scale when it is first asked for it. In a capture the scale would
be a value of the program, and each call would start from the first one. So the scale is made
outside, and the program is captured once more.

Between ``unscale_()`` and ``update()`` a scaler keeps in Python what it has found. A call would not
do that, so one program does it all."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.amp import GradScaler
from torch.utils._python_dispatch import _disable_current_modes

from ..aot.python_state.reads import Read
from ..seam.levels import Value

_FILE = GradScaler.step.__code__.co_filename


def made_in_capture() -> GradScaler | None:
    """The scaler that calls the present function, if its scale is a value of a program."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    scaler = None if frame is None else frame.f_locals.get("self")
    return scaler if isinstance(scaler, GradScaler) and isinstance(scaler._scale, Value) else None


def make_again(scaler: GradScaler, device: torch.device) -> None:
    """Give ``scaler`` a scale of its own, as if it had been asked for it before the program."""
    states: Any = scaler._per_optimizer_states
    states.clear()
    scaler._scale = scaler._growth_tracker = None
    with _disable_current_modes():
        scaler._lazy_init_scale_growth_tracker(device)


class Scalers:
    """The gradient scalers that one run of a program may use. What it changes in
    them is put back."""

    def __init__(self, known: Iterable[GradScaler]) -> None:
        self.known = [(s, dict(vars(s))) for s in known if s._enabled]

    def __enter__(self) -> Scalers:
        for scaler, _ in self.known:
            states: Any = scaler._per_optimizer_states
            scaler._per_optimizer_states = defaultdict(
                states.default_factory, {k: dict(x) for k, x in states.items()}
            )
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        for scaler, before in self.known:
            vars(scaler).update(before)

    @property
    def made(self) -> GradScaler | None:
        """A scaler whose scale is a value of the program."""
        return next((s for s, _ in self.known if isinstance(s._scale, Value)), None)

    def reads(self) -> list[Read]:
        """What the program has found in them. ``RuntimeError`` if it leaves one
        between two steps."""
        found = []
        for scaler, before in self.known:
            states: Any = before["_per_optimizer_states"]
            if states or scaler._per_optimizer_states:
                raise RuntimeError(
                    "the program leaves a GradScaler in the middle of its work, "
                    "or finds it there. A graph does not do what is left in Python. "
                    "Let one jitted function call unscale_(), step() and update()."
                )
            changed = [
                n
                for n, x in before.items()
                if n != "_per_optimizer_states" and vars(scaler).get(n) is not x
            ]
            if changed:
                raise RuntimeError(
                    f"the program changes {changed[0].lstrip('_')!r} of a GradScaler. "
                    "Do that outside of the jitted function."
                )
            found += [
                Read(vars(scaler), n, x) for n, x in before.items() if n != "_per_optimizer_states"
            ]
        return found
