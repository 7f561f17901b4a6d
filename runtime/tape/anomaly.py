"""Anomaly mode: which forward call caused an error in the backward pass, and where
NaN first appears."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path
from typing import Any

import torch

from ..seam.levels import bottom
from ..torch_private.dispatcher import FILE_OF_CALLS
from ..torch_private.mode_stacks import without_modes
from .node_protocol import TapeNode
from .running import current_node

_INSIDE = (str(Path(__file__).parent.parent), FILE_OF_CALLS)


class _State:
    """One for the whole process, as in torch: the backward pass may run on another thread than the
    one that turned the mode on."""

    __slots__ = ("check_nan", "enabled")

    def __init__(self) -> None:
        self.enabled = False
        self.check_nan = True


STATE = _State()


def is_anomaly_enabled() -> bool:
    return STATE.enabled


def is_anomaly_check_nan_enabled() -> bool:
    return STATE.check_nan


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    STATE.enabled = mode
    STATE.check_nan = check_nan


class set_detect_anomaly:
    """As ``torch.autograd.set_detect_anomaly``: switch the mode on or off, as a function or as a
    context manager."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = STATE.enabled, STATE.check_nan
        set_anomaly_enabled(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        set_anomaly_enabled(*self.before)


class detect_anomaly:
    """As ``torch.autograd.detect_anomaly``. An error in the backward pass comes with the
    traceback of the forward call that made the failing node. With ``check_nan`` a node that
    returns NaN raises."""

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        self.before = STATE.enabled, STATE.check_nan
        warnings.warn(
            (
                "Anomaly Detection has been enabled. Every recorded op now keeps the traceback "
                "of its call, which is slow; turn it off again when the fault is found."
            ),
            stacklevel=2,
        )

    def __enter__(self) -> None:
        self.before = STATE.enabled, STATE.check_nan
        set_anomaly_enabled(True, self.check_nan)

    def __exit__(self, *exc: object) -> None:
        set_anomaly_enabled(*self.before)


def remember(node: TapeNode) -> None:
    """Note the traceback of the call that made ``node``, and, during a backward pass, the node
    whose backward made it."""
    stack = traceback.extract_stack()
    while stack and stack[-1].filename.startswith(_INSIDE):
        stack.pop()  # up to the user's line that called an op
    node.metadata["traceback_"] = stack.format()
    parent = current_node()
    if parent is not None:
        node.metadata["parent_"] = parent


def explain(node: TapeNode) -> None:
    """Warn with the forward call that made the failing ``node``. If another node's backward made
    it, warn with that node's call next."""
    _tell(f"Error detected in {node.name()}.", "caused the error", node)
    while (parent := node.metadata.get("parent_")) is not None:
        _tell(
            f"\n\nPrevious calculation was induced by {parent.name()}.",
            "induced the previous calculation",
            parent,
        )
        node = parent


def _tell(event: str, did: str, node: TapeNode) -> None:
    trace = node.metadata.get("traceback_")
    if trace is None:
        told = (
            "No forward pass information available. The mode notes where an op is called: "
            "turn it on before the forward pass."
        )
    else:
        told = f"Traceback of forward call that {did}:\n{''.join(trace)}"
    warnings.warn(f"{event} {told}", stacklevel=3)


def refuse_nan(node: TapeNode, outs: Any) -> None:
    with without_modes():  # else a trace would record this check
        for index, g in enumerate(outs):
            if isinstance(g, torch.Tensor) and bool(_values(g).isnan().any()):
                raise RuntimeError(
                    f"Function '{node.name()}' returned nan values in its {index}th output."
                )


def _values(g: torch.Tensor) -> torch.Tensor:
    """Return the stored elements of ``g``, of all batch elements."""
    g = bottom(g)
    if type(g) is not torch.Tensor or g.is_meta:
        return torch.empty(0)  # an abstract value has no elements
    if g.is_nested:
        return g.contiguous().values()
    return g.coalesce().values() if g.layout is torch.sparse_coo else g
