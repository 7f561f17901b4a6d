"""Define what a soak can draw. Simpler choices stand first, because hypothesis shrinks towards
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from gen.checks.entries import Known
from gen.language.pipeline import DERIVATIVES, Pipeline

MOST_STAGES = 4  # of a drawn pipeline; each is a loop of its own in the reference
LAYOUTS = ("contiguous", "transposed", "noncontiguous", "expanded")
NUMBERS = ("whole", "halves", "as given")
_DTYPES = ("float64", "float32", "complex128", "complex64", "int64", "bool", "bfloat16", "float16")
_STAGES = ("vmap", "vjp", "jvp", "grad", "functionalize", "jacrev", "jacfwd", "hessian")
# their loops cost a call for each element, so one of them is enough
_WIDE = frozenset(("jacrev", "jacfwd", "hessian"))
_SIZES = (1, 2, 3, *(0,) * 6)  # mostly as given


@dataclass(frozen=True)
class Entry:
    """An exception of the matrix for some cells of an op.

    They are left out, or an error or a tolerance is expected of them.
    """

    # Of the pipelines, outermost first.
    stages: tuple[str, ...]
    dtypes: frozenset[str]
    # Of the inputs.
    layout: str = "contiguous"
    # the entry that expects an error; None for an exclusion or a tolerance
    error: Known | None = None
    # rtol and atol that the matrix allows
    tolerance: tuple[float, float] = (0.0, 0.0)

    def covers(self, dtype: str, stages: Sequence[str]) -> bool:
        """Return whether a pipeline has these stages, perhaps with others around, between or inside
        them.
        """
        # `in` takes from the iterator all up to what it finds, so that the order counts
        rest = iter(stages)
        return dtype in self.dtypes and all(stage in rest for stage in self.stages)


@dataclass(frozen=True)
class Subject:
    """An op that can be drawn, with what the matrix says of it."""

    name: str
    family: str
    row: Mapping[str, Any]
    dtypes: tuple[str, ...]
    differentiable: frozenset[str]
    excluded: tuple[Entry, ...] = ()
    known: tuple[Entry, ...] = ()
    tolerances: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Draw:
    """A cell of a soak."""

    subject: Subject = field(repr=False)
    dtype: str
    # Outermost first.
    stages: tuple[str, ...]
    layout: str = "contiguous"
    # whether the inputs have the values of the word ``extreme``
    extreme: bool = False
    numbers: str = "as given"
    # Its place among the samples of the op by size.
    sample: int = 0
    # The largest dimension. 0: any.
    size: int = 0

    @property
    def excluded(self) -> bool:
        """Return whether the matrix leaves out such cells."""
        return any(map(self._is_left_out_by, self.subject.excluded))

    def _is_left_out_by(self, entry: Entry) -> bool:
        """Return whether an entry leaves out such cells.

        What it says of the op alone holds for the op alone; of a layout, for all stages.
        """
        if entry.layout != "contiguous":
            return self.dtype in entry.dtypes and entry.layout == self.layout
        if bool(entry.stages) != bool(self.stages):
            return False
        return entry.covers(self.dtype, self.stages)

    @property
    def tolerance(self) -> tuple[float, float] | None:
        """Return the largest tolerance that the matrix allows the op in this dtype, if it has
        one.
        """
        of_dtype = [entry for entry in self.subject.tolerances if self.dtype in entry.dtypes]
        tolerances = [entry.tolerance for entry in of_dtype]
        if not tolerances:
            return None
        relative, absolute = zip(*tolerances, strict=True)
        return max(relative), max(absolute)

    def __str__(self) -> str:
        parts = [self.subject.name, self.dtype, str(Pipeline(self.stages)), f"sample {self.sample}"]
        if self.layout != "contiguous":
            parts.append(self.layout)
        if self.extreme:
            parts.append("extreme values")
        if self.numbers != "as given":
            parts.append(f"{self.numbers} numbers")
        if self.size:
            parts.append(f"sizes up to {self.size}")
        return ", ".join(parts)


def subject_dtypes(names: frozenset[str]) -> tuple[str, ...]:
    """Return the dtypes that can be drawn, simplest first."""
    return tuple(name for name in _DTYPES if name in names)


@st.composite
def draws(draw: st.DrawFn, subjects: Sequence[Subject], lacks: Set[str] = frozenset()) -> Draw:
    """Draw any cell of one of `subjects`, without stages that the target `lacks`."""
    subject = draw(st.sampled_from(subjects))
    dtype = draw(st.sampled_from(subject.dtypes))
    offered = [stage for stage in _STAGES if stage not in lacks]
    allowed = [stage for stage in offered if _takes(subject, dtype, stage)]
    stages = draw(st.lists(st.sampled_from(allowed), max_size=MOST_STAGES).filter(_is_affordable))
    extreme = draw(st.booleans()) and len(stages) <= 1
    return Draw(
        subject,
        dtype,
        tuple(stages),
        draw(st.sampled_from(LAYOUTS)),
        extreme,
        draw(st.sampled_from(NUMBERS)),
        draw(st.integers(0, 60)),
        draw(st.sampled_from(_SIZES)),
    )


def _takes(subject: Subject, dtype: str, stage: str) -> bool:
    if stage in ("vmap", "functionalize"):
        return True
    return dtype in subject.differentiable and not _is_for_reals(stage, dtype)


def _is_for_reals(stage: str, dtype: str) -> bool:
    return stage in _WIDE and dtype.startswith("complex")


def _is_affordable(stages: Sequence[str]) -> bool:
    return sum(stage in _WIDE for stage in stages) <= 1 and stages.count("vmap") <= 2


def derivatives(stages: Sequence[str]) -> int:
    """Return how many derivatives a pipeline takes."""
    return sum(2 if stage == "hessian" else stage in DERIVATIVES for stage in stages)
