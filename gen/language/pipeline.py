"""Read the pipelines of checks: transforms, outermost first, as in `vmap . vjp`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

NESTING = (
    "vmap",
    "vjp",
    "jvp",
    "linearize",
    "grad",
    "jacrev",
    "jacfwd",
    "hessian",
    "functionalize",
)
BACKWARD = "backward"  # runs in the eager session, so only itself may be outside it
DUAL = "dual"  # dual tensors of the eager session, which do not nest
EAGER_STAGES = (BACKWARD, DUAL)
# It compiles the op itself, so it is innermost. The stages outside of it differentiate or map the
# compiled function.
COMPILED = "aot.function"
# It runs the op itself and compiles what the op names (gen.targets.parts), so it is innermost too.
PARTS = "aot.parts"
INNERMOST = (COMPILED, PARTS)
# the functions of torch.autograd.functional
FUNCTIONAL = tuple(
    f"functional.{name}" for name in ("vjp", "jvp", "jacobian", "hessian", "vhp", "hvp")
)
# outputs and gradients of a program that is computed again in the backward pass
CHECKPOINT = "checkpoint"
SESSION = "session"  # outputs and gradients of a program
EAGER_PROGRAMS = (*FUNCTIONAL, CHECKPOINT, SESSION)  # whole programs of the eager session
TRAINING = "training"  # steps of an optimizer, eagerly or each as one captured program
WHOLE = ("trace", "aot.joint", "aot.export", "aot.saved", "per_sample", TRAINING, *EAGER_PROGRAMS)
FORWARD = "forward"
STAGES = (*NESTING, *EAGER_STAGES, *INNERMOST, *WHOLE, FORWARD)

CAPTURES = frozenset((*INNERMOST, *WHOLE)) - {"per_sample", TRAINING, *EAGER_PROGRAMS}
"""Stages that make a graph of a program."""
WRITABLE = CAPTURES - {"aot.joint", PARTS}
"""Stages that may take a program that writes to its own arguments (``form: argument_inplace``)."""

DERIVING = frozenset((*NESTING, *EAGER_STAGES)) - {"vmap", "functionalize"}
"""Transforms that take a derivative."""
DERIVATIVES = DERIVING | {"aot.joint", "per_sample", TRAINING, *EAGER_PROGRAMS}
"""Stages that differentiate: they restrict a check to the dtypes and ops that have derivatives."""

_TOKEN = re.compile(r"\s*(?:(?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)|(?P<dot>\.)|(?P<bad>\S))")


def _pattern() -> str:
    """Return the grammar as one regular expression: for the JSON Schema, whose readers do not run
    `parse`.
    """
    dot = r"\s*\.\s*"
    nesting, whole, compiled = (
        "|".join(map(re.escape, words)) for words in (NESTING, WHOLE, INNERMOST)
    )
    outermost = rf"(?:{whole})|{BACKWARD}(?:{dot}{BACKWARD})*(?:{dot}{DUAL})?|{DUAL}|(?:{nesting})"
    return (
        rf"^\s*(?:{FORWARD}|(?:{outermost})(?:{dot}(?:{nesting}))*(?:{dot}(?:{compiled}))?"
        rf"|{compiled})\s*$"
    )


PATTERN = _pattern()


class PipelineError(ValueError):
    """A pipeline cannot be read. `offset` is the place in the text."""

    def __init__(self, what: str, offset: int, expected: str = "", word: str = "") -> None:
        super().__init__(what)
        self.what, self.offset, self.expected, self.word = what, offset, expected, word


@dataclass(frozen=True)
class Pipeline:
    """Stages, outermost first. `forward` has none."""

    stages: tuple[str, ...]

    def __str__(self) -> str:
        return " . ".join(self.stages) or FORWARD

    @property
    def differentiates(self) -> bool:
        """Return whether any stage takes a derivative."""
        return not DERIVATIVES.isdisjoint(self.stages)


def parse(text: str) -> Pipeline:
    """Return the stages of a text: `"vmap . vjp"` -> `Pipeline(("vmap", "vjp"))`.

    Raises `PipelineError` at the first mistake.
    """
    stages = _read_stages(text)
    _refuse_misplaced_stages(text, stages)
    names = tuple(name for name, _ in stages)
    if names == (FORWARD,):
        return Pipeline(())
    return Pipeline(names)


def _read_stages(text: str) -> list[tuple[str, int]]:
    """Return the words of a pipeline, each with its place in the text."""
    stages: list[tuple[str, int]] = []
    expects_stage = True
    # Words and dots take turns, and each mistake has its place in the text.
    for token, start in _tokens(text):
        if token["bad"] or (token["dot"] and expects_stage):
            raise PipelineError(
                f'pipeline "{text}": {text[start]!r} is out of place',
                start,
                "transforms with ` . ` between them",
            )
        if token["dot"]:
            expects_stage = True
            continue
        if not expects_stage:
            raise PipelineError(
                f'pipeline "{text}": no ` . ` before "{token["word"]}"',
                start,
                "transforms with ` . ` between them",
            )
        stages.extend(_words(token["word"], start))
        expects_stage = False
    if not stages:
        raise _missing_stage(text, "an empty pipeline")
    if expects_stage:
        raise _missing_stage(text, f'pipeline "{text}" ends after a ` . `')
    return stages


def _missing_stage(text: str, what: str) -> PipelineError:
    """Return the mistake of a text that ends where a stage has to stand."""
    last = max(len(text.rstrip()) - 1, 0)
    return PipelineError(what, last, "a transform, or `forward` for the op itself")


def _tokens(text: str) -> Iterator[tuple[re.Match[str], int]]:
    """Yield each word and dot, and the place where it starts behind its blanks."""
    position = 0
    # The pattern takes blanks only in front of something.
    end = len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        assert token is not None  # `bad` matches everything else
        position = token.end()
        yield token, token.start(token.lastgroup or 0)


def _words(word: str, start: int) -> list[tuple[str, int]]:
    """Split `vmap.vjp`, but not `aot.joint` and `functional.hvp`."""
    words = []
    parts = word.split(".")
    while parts:
        # `aot` and `functional` alone are no stages, so a message also has to name the next word.
        two = ".".join(parts[:2])
        take = 2 if two in WHOLE or parts[0] in ("aot", "functional") else 1
        piece = ".".join(parts[:take])
        words.append((piece, start))
        start += len(piece) + 1  # the dot
        parts = parts[take:]
    return words


@dataclass(frozen=True)
class _Place:
    """One stage in the text of its pipeline: `vjp` of `vmap . vjp`, at offset 7 and in `vmap`."""

    pipeline: str
    stage: str
    offset: int
    outer: str | None  # the stage just around it
    is_innermost: bool

    def require_known_stage(self) -> None:
        """Raise PipelineError for a word that is no stage."""
        if self.stage not in STAGES:
            raise PipelineError(
                f'unknown transform "{self.stage}" in pipeline "{self.pipeline}"',
                self.offset,
                f"one of {', '.join(STAGES)}",
                self.stage,
            )

    def require_fit(self) -> None:
        """Refuse a stage that cannot stand here."""
        is_alone = self.outer is None and self.is_innermost
        if self.stage == FORWARD and not is_alone:
            raise self._misfit("stands for no transform at all", f"`{FORWARD}` alone")
        if self.outer is not None:
            self._require_fit_inside(self.outer)
        if self.stage in INNERMOST and not self.is_innermost:
            what = "programs inside of the op"
            if self.stage == COMPILED:
                what = "the op itself"
            raise self._misfit(f"compiles {what}", f'"{self.stage}" as the innermost transform')

    def _require_fit_inside(self, outer: str) -> None:
        """Refuse a stage that cannot stand inside of another one."""
        if self.stage in WHOLE:
            raise self._misfit(
                "takes a whole program", f'"{self.stage}" as the outermost transform'
            )
        if self.stage in EAGER_STAGES and outer != BACKWARD:
            raise self._misfit(
                "runs in the eager session", f'only "{BACKWARD}" around it, not "{outer}"'
            )

    def _misfit(self, what: str, expected: str) -> PipelineError:
        return PipelineError(
            f'"{self.stage}" in pipeline "{self.pipeline}" {what}', self.offset, expected
        )


def _refuse_misplaced_stages(text: str, stages: list[tuple[str, int]]) -> None:
    """Refuse the first stage that is unknown or cannot stand where it does."""
    outer = None
    for position, (stage, offset) in enumerate(stages, 1):
        place = _Place(text, stage, offset, outer, is_innermost=position == len(stages))
        place.require_known_stage()
        place.require_fit()
        outer = stage
