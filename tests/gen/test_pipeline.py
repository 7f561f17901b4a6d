"""Pipelines: any nesting is accepted, and each mistake says where in the text it is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen.language.pipeline import NESTING, WHOLE, PipelineError, parse


@given(
    st.one_of(st.none(), st.sampled_from(WHOLE)),
    st.lists(st.sampled_from(NESTING), max_size=5),
    st.sampled_from([".", " . ", ". ", "  .\t"]),
)
def test_every_nesting_reads_back_as_it_was_written(
    outermost: str | None, nesting: list[str], dot: str
) -> None:
    stages = ([outermost] if outermost else []) + nesting
    pipeline = parse(dot.join(stages) or "forward")
    assert pipeline.stages == tuple(stages)
    assert parse(str(pipeline)) == pipeline


@pytest.mark.parametrize(
    ("text", "message", "offset"),
    [
        ("vmap . vjpp", 'unknown transform "vjpp"', 7),
        ("vmap vjp", 'no ` . ` before "vjp"', 5),
        ("vmap . ", "ends after", 5),
        ("", "an empty pipeline", 0),
        (". vmap", "'.' is out of place", 0),
        ("vmap . . vjp", "'.' is out of place", 7),
        ("vmap (vjp)", "'(' is out of place", 5),
        ("vmap . aot.joint", "takes a whole program", 7),
        ("aot.joinn", 'unknown transform "aot.joinn"', 0),
        ("vmap . backward", "runs in the eager session", 7),
        ("forward . vmap", "stands for no transform", 0),
        ("aot.function . vjp", "compiles the op itself", 0),
    ],
)
def test_a_mistake_says_what_and_where(text: str, message: str, offset: int) -> None:
    with pytest.raises(PipelineError) as caught:
        parse(text)
    assert message in caught.value.what
    assert caught.value.offset == offset


def test_derivatives_are_told_apart_from_maps() -> None:
    assert parse("vmap . vjp").differentiates
    assert parse("aot.joint").differentiates
    assert not parse("vmap . functionalize").differentiates
    assert not parse("trace").differentiates
