"""Replaces kernels of torch's Python dispatcher, which symbolic traces switch on, where they differ
from the C++ kernels.

``dropout(x, 0.5, train=False)`` is ``x`` itself for the C++ kernel. Torch's decomposition in Python
returns a copy, and a write to the copy would not reach ``x``. ``dropout(x, 1.0)`` draws in the
decomposition alone. A level that takes ``dropout`` apart in inference mode runs that one, too.
``native_batch_norm`` does not count its writes to running statistics, and torch's decomposition
does. That of ``multilabel_margin_loss`` adds margins of the targets after the first -1. The
decompositions of recurrent nets have no dropout between layers, and those of interpolations do not
ask whether sizes are positive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..rules.functional_forms import drops_nothing
from ..seam.dispatch import run_layer
from ..seam.level_mode import LevelMode
from ..seam.levels import Value
from ..torch_private.dispatcher import DispatchKey, OpOverload, without_python_kernels
from ..torch_private.mode_stacks import current_dispatch_mode

_DROPOUT = torch.ops.aten.dropout.default


_drop: Callable[[torch.Tensor, float, bool], torch.Tensor] = _DROPOUT.py_kernels[
    DispatchKey.CompositeImplicitAutograd
]


def _dropout(input: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Run dropout as the C++ kernel does where a level of ours sees the call. Other calls go on to
    torch's decomposition."""
    if sees_ours((input,)):
        if drops_nothing(input, p, train):
            return input
        # as the C++ kernel: no draw, and NaN where the input is infinite or NaN
        if p == 1:
            return input * input.new_zeros(())
    return _drop(input, p, train)


# torch has a kernel for the second key already, so `py_impl` would refuse another one
for _key in (DispatchKey.PythonTLSSnapshot, DispatchKey.CompositeImplicitAutograd):
    _DROPOUT.py_kernels[_key] = _dropout
    _DROPOUT._uncache_dispatch(_key)


def _run_as_kernel(overload: OpOverload) -> None:
    """Run an op as without the Python dispatcher where a level of ours sees the call, as torch's
    decomposition does something else than its C++ kernel."""

    @overload.py_impl(DispatchKey.PythonTLSSnapshot)
    def run(*args: object, **kwargs: object) -> object:
        if sees_ours(args):
            with without_python_kernels():
                return overload(*args, **kwargs)
        return overload.py_kernels[DispatchKey.Autograd](*args, **kwargs)


def _layer_by_layer(overload: OpOverload) -> None:
    """Run a recurrent net with dropout as one net per layer: torch's decomposition has no
    dropout between layers."""
    theirs = overload.py_kernels[DispatchKey.Autograd]

    @overload.py_impl(DispatchKey.PythonTLSSnapshot)
    def run(x: torch.Tensor, *rest: Any) -> Any:
        """Let the innermost level run the net, or run it layer by layer if it drops between
        them."""
        result = run_layer(overload, (x, *rest))
        if result is not NotImplemented:
            return result
        hx, params, has_biases, layers, dropout, train, bidirectional, batch_first = rest
        drops_between_layers = sees_ours((x, *params)) and train and dropout
        if not drops_between_layers or layers < 2:
            return theirs(x, *rest)
        of_layers = _states_of_layers(hx, layers)
        size = len(params) // layers  # each layer has as many weights
        states = []
        for index in range(layers):
            own = params[index * size : (index + 1) * size]
            # a net of one layer, which has no place for a dropout
            x, *state = overload(
                x, of_layers[index], own, has_biases, 1, 0.0, train, bidirectional, batch_first
            )
            states.append(state)
            if index < layers - 1:
                x = torch.dropout(x, dropout, train)
        return (x, *(map(torch.cat, zip(*states, strict=True))))


def _states_of_layers(hx: Any, layers: int) -> Sequence[object]:
    """Return the states of each of so many ``layers``: a pair for an LSTM, else a tensor."""
    # along dimension 0 torch has the layers one after the other, each with its directions
    if isinstance(hx, (list, tuple)):
        return list(zip(*(state.chunk(layers) for state in hx), strict=True))
    states: Sequence[object] = hx.chunk(layers)
    return states


def sees_ours(args: Sequence[object]) -> bool:
    """Return whether a level of ours sees a call: an argument is a value, or its mode runs."""
    return any(isinstance(argument, Value) for argument in args) or isinstance(
        current_dispatch_mode(), LevelMode
    )


def _refuse_no_size(overload: OpOverload) -> None:
    """Let an interpolation raise for an image or a result without elements, as its C++ kernel
    does."""
    theirs = overload.py_kernels[DispatchKey.Autograd]
    names = [argument.name for argument in overload._schema.arguments]

    @overload.py_impl(DispatchKey.PythonTLSSnapshot)
    def run(*args: object, **kwargs: object) -> object:
        given: dict[str, Any] = {**dict(zip(names, args, strict=False)), **kwargs}
        x = given[names[0]]
        if sees_ours((x,)):
            _require_sizes(x, given["output_size"], given.get("scale_factors"))
        return theirs(*args, **kwargs)


def _require_sizes(
    images: torch.Tensor, after: Sequence[object] | None, scales: Sequence[float] | None
) -> None:
    """Raise ``RuntimeError`` unless all sizes of ``images`` are positive, before and ``after`` an
    interpolation. The graph of symbolic sizes is for such ones from then on."""
    before: Sequence[Any] = images.shape[2:]
    if after is None:
        after = [torch.sym_int(size * by) for size, by in zip(before, scales or (), strict=True)]
    if not all(size > 0 for size in (*before, *after)):
        raise RuntimeError(
            "Input and output sizes should be greater than 0, but got input "
            f"{list(before)} and output {list(after)}"
        )


for _name in (
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
):
    _packet = getattr(torch.ops.aten, _name)
    for _overload in (_packet.vec, _packet.default):
        # any other overload runs the C++ kernel, which asks
        if DispatchKey.Autograd in _overload.py_kernels:
            _refuse_no_size(_overload)

for _overload in (
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten.multilabel_margin_loss_forward.default,
):
    _run_as_kernel(_overload)

for _net in (
    torch.ops.aten.lstm,
    torch.ops.aten.gru,
    torch.ops.aten.rnn_tanh,
    torch.ops.aten.rnn_relu,
):
    _layer_by_layer(_net.input)
