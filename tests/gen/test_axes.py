"""The axes of a cell: their words, their defaults, and the words of an id."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import FrozenInstanceError, fields

import pytest

from gen.checks import Case, Cell, Family
from gen.language.axes import AXES, USUAL, Axes, complete
from gen.outcomes import Lacking, Mismatch, Vacuous
from gen.targets import load


def test_a_default_is_a_word_of_its_axis_or_stands_for_none_of_them() -> None:
    assert [axis.name for axis in fields(Axes)] == [*AXES, "varied"]
    for axis, words in AXES.items():
        default = getattr(USUAL, axis)
        assert default is None or default in words
        assert words and len(set(words)) == len(words)


@pytest.mark.parametrize(
    ("words", "spoken"),
    [
        ({}, ()),
        ({"shapes": "dynamic", "partition": "min_cut"}, ("dynamic", "min_cut")),
        ({"partition": "min_cut", "shapes": "dynamic"}, ("min_cut", "dynamic")),
        ({"shapes": "static", "run": "plain"}, ("static",)),
        ({"shapes": "static", "run": "jitted"}, ("static", "jitted")),
        ({"run": "plain"}, ()),
        ({"step": "plain"}, ("plain",)),  # a word of another axis, which ids have
        ({"step": "plain", "run": "plain"}, ("plain",)),
    ],
)
def test_the_words_of_an_id_are_read_as_they_are_written(
    words: dict[str, str], spoken: tuple[str, ...]
) -> None:
    axes = Axes.varying(words)
    assert axes.by_name() == words
    assert axes.words == tuple(words.values())
    assert axes.spoken == spoken
    assert complete(axes.spoken, list(words)) == axes.words


def test_an_axis_that_does_not_vary_has_its_default() -> None:
    axes = Axes.varying({"shapes": "dynamic"})
    assert (axes.shapes, axes.partition, axes.reach) == ("dynamic", "default", None)
    assert axes.dynamic and not axes.jitted


def test_what_a_check_fixes_holds_where_it_does_not_vary() -> None:
    axes = Axes.varying({"layout": "transposed"})
    fixed = axes.fixed(form="inplace", layout="expanded", values="extreme")
    assert (fixed.form, fixed.layout, fixed.values) == ("inplace", "transposed", "extreme")
    assert fixed.by_name() == axes.by_name() == {"layout": "transposed"}
    assert axes.is_plain_call is False and USUAL.is_plain_call


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ({"shape": "static"}, "no axis 'shape'; known: form, layout, "),
        ({"varied": "static"}, "no axis 'varied'; known: form, layout, "),
        ({"shapes": "dynmic"}, "no word 'dynmic' of axis shapes; known: static, dynamic"),
    ],
)
def test_what_no_axis_has_is_refused(words: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Axes.varying(words)
    with pytest.raises(ValueError, match="no word 'upside_down' of axis layout; known: contiguous"):
        USUAL.fixed(form="functional", layout="upside_down", values="ordinary")


def test_a_number_of_words_that_does_not_fit_stays() -> None:
    assert complete(["static"], ["shapes", "partition", "run"]) == ("static",)
    assert complete(["static", "jitted", "more"], ["shapes", "run"]) == ("static", "jitted", "more")


def test_the_axes_of_a_cell_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        USUAL.shapes = "dynamic"  # type: ignore[misc]


@pytest.mark.parametrize("axis", ["form", "layout", "values"])
def test_each_word_has_its_code(axis: str) -> None:
    """Some words say nothing of this op, and say so. Some are refused by torch's vmap."""
    for word in AXES[axis]:
        cell = Cell("torch.mul", "float32", Axes.varying({axis: word}), "full", ())
        with suppress(Lacking, Vacuous, Mismatch, RuntimeError):
            Case(cell, "forward", Family("words"), load("torch")).assert_same(
                "vmap", against="loop"
            )
