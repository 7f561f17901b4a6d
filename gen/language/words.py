"""Words of cells: a dtype and axis values, as in ``float64:static:min_cut``, and ids, as
in ``torch.sin-float64-static-min_cut``.

The axis ``run`` comes last, and its value ``plain`` is left out: ``float64`` is the cell of
``run: plain``, ``float64:jitted`` its other."""

from __future__ import annotations

from collections.abc import Sequence

RUN = "run"
PLAIN = "plain"


def said(values: tuple[str, ...]) -> tuple[str, ...]:
    """Axis values as a word has them."""
    return values[:-1] if values[-1:] == (PLAIN,) else values


def complete(values: Sequence[str], axes: Sequence[str]) -> tuple[str, ...]:
    """Return the axis values of a word, one for each of `axes`. A word with a number of values that
    does not fit stays so."""
    return (
        (*values, PLAIN)
        if axes[-1:] and axes[-1] == RUN and len(values) == len(axes) - 1
        else tuple(values)
    )
