"""Read the elements of a tensor inside a transform, and assert the right elements or a refusal with
the user's line.

A program is a function of `x` and of a tensor `t` that it reaches for. Axis ``reach`` says what `t`
is:

| ``reach`` | `t` |
|---|---|
| ``value`` | computed of `x`, inside the transform |
| ``outside`` | a tensor that the program closes over |
| ``view`` | a view of such a tensor, taken inside |
| ``parameter`` | a parameter that the program closes over |

The reference is the program on plain tensors. The elements of the closed-over tensor after the call
are compared, too. A program that the plain op refuses is left out.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import torch

from gen.checks.compare import Tally
from gen.checks.refusals import names_line
from gen.outcomes import ErrorMismatch, Lacking, Mismatch
from gen.samples.samples import Sample
from gen.targets.protocol import Flat, Jitting, Target

Tensor = torch.Tensor
_CALLS = 2  # of a compiled program: the second is a replay


class _Run:
    """One run of a program: a function of `x` alone, and the tensor that it closes over."""

    def __init__(self, sample: Sample, reach: str) -> None:
        self.sample = sample
        self.reach = reach
        self.tensor = sample.inputs[1].detach().clone()
        if reach == "parameter":
            self.tensor = torch.nn.Parameter(self.tensor)

    def __call__(self, x: Tensor) -> tuple[Tensor, ...]:
        # Inside of the call: a transform has to see what computes the value or takes the view.
        reached = {"value": lambda: x * 2, "view": lambda: self.tensor[:]}
        tensor = reached.get(self.reach, lambda: self.tensor)()
        return (self.sample.op.call(x, tensor),)


# The line of `_Run` that takes a view is a line of the program, but not one of the row.
_TAKES_VIEW = (_Run.__call__.__code__.co_filename, _Run.__call__.__name__)


def _vjp(target: Target, f: Flat, x: Tensor, dynamic: bool) -> object:
    return target.vjp(f, x)[0]


def _vmap(target: Target, f: Flat, x: Tensor, dynamic: bool) -> object:
    return [y[0] for y in target.vmap(f, (0,))(x[None])]


_THROUGH: Mapping[tuple[str, ...], Callable[[Target, Flat, Tensor, bool], Any]] = {
    ("vjp",): _vjp,
    ("jvp",): lambda target, f, x, dynamic: target.jvp(f, (x,), (torch.ones_like(x),))[0],
    ("vmap",): _vmap,
    ("functionalize",): lambda target, f, x, dynamic: target.functionalize(f)(x),
    ("trace",): lambda target, f, x, dynamic: target.trace(f, (x,), dynamic=dynamic)(x),
    ("aot.export",): lambda target, f, x, dynamic: target.export(f, (x,), dynamic=dynamic)(x),
}
"""By stages of a pipeline, how one run goes through them."""


def assert_kept(
    target: Target,
    sample: Sample,
    stages: Sequence[str],
    reach: str,
    dynamic: bool,
    tally: Tally,
) -> None:
    """Assert that the pipeline gives the elements that the plain program gives.

    Raises Mismatch if it gives others, or an error that does not name a line of the program. Raises
    Lacking if the plain program raises. `reach`: a word of the axis of this name.
    """
    x = sample.inputs[0].detach()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of storages, which torch deprecates
        expected = _expected(_Run(sample, reach), x)
        run = _Run(sample, reach)
        before = _bytes(run.tensor)
        # A compiled program is called twice, and the second call replays the first.
        through = _THROUGH.get(tuple(stages))
        compiled: Flat | None = None
        if through is None:
            compiled = _compile(target, run, stages, dynamic)
        # a transform traces the program anew in each call, so one call shows all
        if compiled is None:
            del expected[1:]
        for call, (result, elements) in enumerate(expected):
            try:
                if through is not None:
                    results = through(target, run, x.clone(), dynamic)
                else:
                    results = cast(Flat, compiled)(x.clone())
            except Exception as error:
                _require_line(sample, error)
                # A refused program leaves the tensor as it was, or as the plain program would.
                if not call and _bytes(run.tensor) not in (before, elements):
                    raise Mismatch("refused, but the tensor from outside has changed") from error
                break
            _assert_equal(results[0], result, f"call {call}")
            if _bytes(run.tensor) != elements:
                raise Mismatch(f"call {call} leaves other elements in the tensor from outside")
    tally.entries += 1
    tally.nonzero += 1


def warm(target: Target) -> None:
    """Run a program through every pipeline, so that a process which is forked later has the modules
    that the target loads at the first use.

    The modules take up to four seconds to load, and a cell takes some hundredths. The program fails
    in silence where the target cannot do it: its cells show that.
    """

    def double(*args: Any) -> tuple[Tensor, ...]:
        return (args[0] * 2,)

    x = torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dynamic in (False, True):
            for through in _THROUGH.values():
                with suppress(Exception):
                    through(target, double, x, dynamic)
            for stages in ((), ("aot.function",)):
                with suppress(Exception):
                    _compile(target, double, stages, dynamic)(x)


def _compile(target: Target, run: Flat, stages: Sequence[str], dynamic: bool) -> Flat:
    """Return the program as the target jits it, or as ``aot.function`` compiles it."""
    if stages:
        return target.compiled(run, partition="default", dynamic=dynamic)
    if "jit" in target.lacks:
        raise Lacking(f"target {target.name} lacks jit")
    return cast(Jitting, target).jit(run)


def _expected(run: _Run, x: Tensor) -> list[tuple[Tensor, bytes]]:
    """Return results of calls of the plain program, each with the bytes of the closed-over tensor
    after the call.
    """
    try:
        return [(run(x.clone())[0].detach(), _bytes(run.tensor)) for _ in range(_CALLS)]
    except Exception as error:
        raise Lacking(f"the plain program raises {type(error).__name__}") from None


def _require_line(sample: Sample, error: Exception) -> None:
    """Raise Mismatch unless the error shows a line of the program: of the row, or of the run, which
    takes the view.
    """
    shown = traceback.extract_tb(error.__traceback__)
    takes_view = any((frame.filename, frame.name) == _TAKES_VIEW for frame in shown)
    if not takes_view and not names_line(sample, error):
        raise ErrorMismatch(f"an error without a line of the program: {error!r}") from error


def _assert_equal(actual: Tensor, expected: Tensor, where: str) -> None:
    if actual.shape != expected.shape or not torch.allclose(actual.detach(), expected):
        raise Mismatch(f"{where} gives {actual.detach()}, the plain program {expected}")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().numpy().tobytes()
