"""Name in words what a target may lack, each with its meaning: the one table of them.

    lacks = frozenset({"vmap", "aot.joint", "family optimizers"})

A word stands for cells. A target with the word in ``lacks`` need not define its method, and these
cells are reported as lacking. docs/targets.md has the table, which `gen target words` prints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gen.language.pipeline import FUNCTIONAL

__all__ = ["FAMILY", "METHODS", "WORDS", "Word", "is_word", "page", "word_of"]

FAMILY = "family "
"""How a word begins that is about a family of the matrix: ``family optimizers``."""


@dataclass(frozen=True)
class Word:
    """A word of ``lacks``."""

    meaning: str
    """What the cells that need it ask of a target."""
    method: str = ""
    """The method of the target that these cells call. Empty if they ask nothing further of it."""
    protocol: str = "Target"
    """The class of ``gen.targets.protocol`` that says what the method takes and returns."""
    stages: tuple[str, ...] = ()
    """The stages of pipelines that it stands for, if they have other names than the word. Each may
    stand in ``lacks`` in its place."""


def _stage(meaning: str, method: str, *stages: str, protocol: str = "Target") -> Word:
    """Return the word of a stage that calls this method."""
    return Word(meaning, method, protocol, stages)


WORDS: dict[str, Word] = {
    # --- stages that nest
    "vjp": _stage("outputs and a pullback: `vjp(f)`", "vjp"),
    "jvp": _stage("outputs and their tangents: `jvp(f)`", "jvp"),
    "linearize": _stage(
        "outputs and a pushforward that runs no `f`", "linearize", protocol="Linearizing"
    ),
    "vmap": _stage("a function mapped over a batch", "vmap"),
    "grad": _stage("gradients of a function with one real number as result", "grad"),
    "jacrev": _stage("Jacobians by rows", "jacrev"),
    "jacfwd": _stage("Jacobians by columns", "jacfwd"),
    "hessian": _stage("Hessians", "hessian"),
    "functionalize": _stage("a program without writes and views", "functionalize"),
    # --- the eager session
    "backward": _stage("backward passes of an eager session", "backward"),
    "dual": _stage("dual tensors of an eager session", "dual", protocol="Linearizing"),
    "checkpoint": _stage(
        "a program that the backward pass runs again", "checkpoint", protocol="Eager"
    ),
    "session": _stage(
        "outputs and gradients of a program in an eager session", "session", protocol="Eager"
    ),
    "functional": _stage(
        "the functions of `torch.autograd.functional`", "functional", *FUNCTIONAL, protocol="Eager"
    ),
    # --- programs that are captured
    "trace": _stage("a graph of `torch.fx` of a program", "trace"),
    "joint": _stage("a joint graph of outputs and gradients, cut in two", "joint", "aot.joint"),
    "compiled": _stage("a function that is compiled at its first call", "compiled", "aot.function"),
    "part": _stage(
        "compiled parts of a program that runs as it is", "part", "aot.parts", protocol="Compiling"
    ),
    "cuts": Word("partitions that are kept in a folder", "cache", "Compiling"),
    "export": _stage("an exported program", "export", "aot.export"),
    "saved": _stage("an exported program after it was saved and loaded", "saved", "aot.saved"),
    "jit": Word(
        "programs that are captured at the first call, and replayed (`run: jitted`)",
        "jit",
        "Jitting",
    ),
    "state": Word("jitted programs that see each change of Python's state", "jit", "Jitting"),
    # --- gradients per sample, and training
    "per_sample": _stage("one gradient for each sample of a batch", "per_sample"),
    "per_sample_answer": Word(
        "norms, sums and products of per-sample gradients (axis `of`)",
        "per_sample_answer",
        "Answering",
    ),
    "training": Word("steps of an optimizer on parameters of the target", "training", "Training"),
    # --- what a check asks beside a stage
    "out_dims": Word(
        "batched outputs at other dimensions than 0 (axis `batch`)", "vmap", "Placing"
    ),
    "overload": Word(
        "single overloads of torch's dispatcher (`values: overloads`)", "overload", "Dispatching"
    ),
    "fake": Word("results on fake tensors with the strides of real ones (`against: fake`)"),
    "refusal": Word("a right result, or an error with a line of the program (axis `refusal`)"),
}
"""Each word, in the order of the table. A word ``family NAME`` is not here: it stands for the cells
of this family of the matrix."""

METHODS: dict[str, str] = {stage: word for word, about in WORDS.items() for stage in about.stages}
"""The word of each stage that has another name: ``aot.joint`` is a stage of ``joint``."""


def word_of(text: str) -> str:
    """Return the word that a text of ``lacks`` stands for: that of a stage, or the text itself."""
    return METHODS.get(text, text)


def is_word(text: str) -> bool:
    """Return whether a text of ``lacks`` is a word of the table, a stage of one, or about a family
    of some matrix."""
    return word_of(text) in WORDS or text.startswith(FAMILY)


def page() -> str:
    """Return the table of the words, as docs/targets.md has it."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| word | cells that need it ask of the target | method |"
    yield "|---|---|---|"
    for word, about in WORDS.items():
        names = ", ".join(f"`{name}`" for name in (word, *about.stages))
        if word == "functional":
            names = "`functional`, or one function of it such as `functional.hvp`"
        yield f"| {names} | {about.meaning} | {_method(about)} |"
    yield "| `family NAME` | the cells of this family of the matrix | |"


def _method(about: Word) -> str:
    return f"`{about.method}`" if about.method else ""
