"""The pipelines of checks: transforms, outermost first, as in `vmap . vjp`."""

from __future__ import annotations

import re
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
# compiles the op itself, so it is innermost; what is outside differentiates or maps the
# compiled function
COMPILED = "aot.function"
# runs the op itself and compiles what it names (gen.targets.parts), so it is innermost too
PARTS = "aot.parts"
INNERMOST = (COMPILED, PARTS)
# of torch.autograd.functional
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
    `parse`."""
    dot = r"\s*\.\s*"
    nesting, whole, compiled = (
        "|".join(re.escape(word) for word in words) for words in (NESTING, WHOLE, INNERMOST)
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
        """Whether any stage takes a derivative."""
        return not DERIVATIVES.isdisjoint(self.stages)


def parse(text: str) -> Pipeline:
    """`"vmap . vjp"` -> `Pipeline(("vmap", "vjp"))`; raises `PipelineError` at the first
    mistake."""
    stages: list[tuple[str, int]] = []
    expects_stage = True
    position = 0
    end = len(text.rstrip())
    while position < end:
        token = _TOKEN.match(text, position)
        assert token is not None  # `bad` matches everything else
        start = token.start(token.lastgroup or 0)
        position = token.end()
        if token["bad"] or (token["dot"] is not None and expects_stage):
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
    if expects_stage:
        what = f'pipeline "{text}" ends after a ` . `' if stages else "an empty pipeline"
        raise PipelineError(what, max(end - 1, 0), "a transform, or `forward` for the op itself")
    return _checked(text, stages)


def _words(word: str, start: int) -> list[tuple[str, int]]:
    """Split `vmap.vjp`, but not `aot.joint` and `functional.hvp`."""
    found = []
    parts = word.split(".")
    while parts:
        two = ".".join(parts[:2])
        take = 2 if two in WHOLE or parts[0] in ("aot", "functional") else 1
        piece = ".".join(parts[:take])
        found.append((piece, start))
        start += len(piece) + 1
        parts = parts[take:]
    return found


def _checked(text: str, stages: list[tuple[str, int]]) -> Pipeline:
    for index, (stage, offset) in enumerate(stages):
        if stage not in STAGES:
            raise PipelineError(
                f'unknown transform "{stage}" in pipeline "{text}"',
                offset,
                f"one of {', '.join(STAGES)}",
                stage,
            )
        if stage == FORWARD and len(stages) > 1:
            raise PipelineError(
                f'"{FORWARD}" in pipeline "{text}" stands for no transform at all',
                offset,
                f"`{FORWARD}` alone",
            )
        if stage in WHOLE and index:
            raise PipelineError(
                f'"{stage}" in pipeline "{text}" takes a whole program',
                offset,
                f'"{stage}" as the outermost transform',
            )
        if stage in EAGER_STAGES and index and stages[index - 1][0] != BACKWARD:
            what = f'"{stage}" in pipeline "{text}" runs in the eager session'
            raise PipelineError(
                what, offset, f'only "{BACKWARD}" around it, not "{stages[index - 1][0]}"'
            )
        if stage in INNERMOST and index < len(stages) - 1:
            what = "the op itself" if stage == COMPILED else "programs inside of the op"
            raise PipelineError(
                f'"{stage}" in pipeline "{text}" compiles {what}',
                offset,
                f'"{stage}" as the innermost transform',
            )
    return Pipeline(tuple(stage for stage, _ in stages if stage != FORWARD))
