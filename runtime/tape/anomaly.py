"""Finds the forward call that caused an error in the backward pass, and the node whose result has
the first NaN. This is torch's anomaly mode.

With it on, each node notes the traceback of its call in ``metadata["traceback_"]``.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch

from ..seam.levels import bottom
from ..seam.user_code import is_capturing, noted
from ..torch_private.dispatcher import FILE_OF_CALLS
from ..torch_private.mode_stacks import without_modes
from .node_protocol import TapeNode
from .running import current_node

# files whose frames are not the user's: those of this package, and of the dispatcher's calls
_INSIDE = (str(Path(__file__).parent.parent), FILE_OF_CALLS)


class _State:
    """The mode's switches. There is one object for the whole process, as in torch: the backward
    pass may run on another thread than the one that turned the mode on."""

    __slots__ = ("check_nan", "enabled")

    def __init__(self) -> None:
        self.enabled = False
        self.check_nan = True


STATE = _State()


def is_anomaly_enabled() -> bool:
    """Return whether anomaly mode is on, as ``torch.is_anomaly_enabled``."""
    return STATE.enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether the mode looks for NaN, as ``torch.is_anomaly_check_nan_enabled``. The answer
    does not depend on whether the mode is on."""
    return STATE.check_nan


def looks_for_nan() -> bool:
    """Return whether a backward pass is to look for NaN. The switch may be torch's."""
    if torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled():
        return True
    return STATE.enabled and STATE.check_nan


def set_anomaly_enabled(mode: bool, check_nan: bool = True) -> None:
    """Turn anomaly mode on or off, as ``torch.set_anomaly_enabled``."""
    STATE.enabled = mode
    STATE.check_nan = check_nan


class set_detect_anomaly:
    """Switch the mode on or off, as a function or as a context manager. The semantics are those of
    ``torch.autograd.set_detect_anomaly``."""

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self.before = STATE.enabled, STATE.check_nan
        set_anomaly_enabled(mode, check_nan)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exc: object) -> None:
        set_anomaly_enabled(*self.before)


class detect_anomaly:
    """Turn the mode on for a ``with`` block, as ``torch.autograd.detect_anomaly``.

    An error in the backward pass comes with the traceback of the forward call that belongs to the
    node that fails. With ``check_nan`` a node that returns NaN raises.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self.check_nan = check_nan
        # as in torch: what was set when the object was made, not when its block was entered
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
    """Note the traceback of the call that created ``node``. During a backward pass, also note the
    node that runs and so created it."""
    stack = traceback.extract_stack()
    while stack and stack[-1].filename.startswith(_INSIDE):
        stack.pop()  # up to the user's line that called an op
    node.metadata["traceback_"] = stack.format()
    parent = current_node()
    if parent is not None:
        node.metadata["parent_"] = parent


def explain(node: TapeNode) -> None:
    """Warn with the forward call that created ``node``, which fails. If another node created it in
    its backward, warn with that node's call next, and so on."""
    _warn_with_traceback(f"Error detected in {node.name()}.", "caused the error", node)
    while (parent := node.metadata.get("parent_")) is not None:
        _warn_with_traceback(
            f"\n\nPrevious calculation was induced by {parent.name()}.",
            "induced the previous calculation",
            parent,
        )
        node = parent


def _warn_with_traceback(event: str, did: str, node: TapeNode) -> None:
    """Warn that ``event`` happened, with the traceback of the forward call of ``node``. ``did``:
    what that call did, ``"caused the error"``."""
    trace = node.metadata.get("traceback_")
    if trace is None:
        origin = (
            "No forward pass information available. The mode notes where an op is called: "
            "turn it on before the forward pass."
        )
    else:
        origin = f"Traceback of forward call that {did}:\n{''.join(trace)}"
    warnings.warn(f"{event} {origin}", stacklevel=3)


def refuse_nan(node: TapeNode, outs: Sequence[object]) -> None:
    """Raise if a result of ``node`` has a NaN, with its position among the results. A program that
    is captured is refused: only the capture would look."""
    if is_capturing():
        raise noted(
            RuntimeError(
                "anomaly mode looks for NaN in the gradients of each call, and a graph would not. "
                "Say detect_anomaly(check_nan=False), or run this part by jit.outside."
            )
        )
    with without_modes():  # else a trace would record this check
        for index, gradient in enumerate(outs):
            if isinstance(gradient, torch.Tensor) and bool(_values(gradient).isnan().any()):
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
    if g.layout is torch.sparse_coo:
        return g.coalesce().values()
    return g
