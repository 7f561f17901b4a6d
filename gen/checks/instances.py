"""List the programs that one sample runs as: one for each form, filling and in_dims pattern.

    torch.add of two matrices, ("vmap",)   ->   vmap[0,0](torch.add), vmap[0,-1](torch.add), …

With ``run: jitted`` each of them becomes calls of one jitted function.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, cast

from gen.checks import batch_axis, batched_inputs, forms, program_stages
from gen.checks.pipelines import Program, extend
from gen.checks.program_stages import doubled_again, other_sizes, other_values
from gen.language.axes import Axes
from gen.language.pipeline import COMPILED, INNERMOST, WHOLE
from gen.outcomes import Unsuitable
from gen.samples.samples import Sample
from gen.samples.seeds import Replay
from gen.targets.protocol import Flat, Jitting, Target, Values

# --- pipelines under jit --------------------------------------------------------------------------
#
# A jitted function is called several times, and each call is compared.


def jitted(program: Program, others: bool, sizes: bool) -> Program:
    """Return `program` jitted and called twice, so that the second call replays what the first has
    captured.

    With `others` the first call is on other values. With `sizes` the function is also called at two
    other sizes, if the reference accepts those. The first of these may capture a program for any
    size, and the second replays it. A reference runs the same calls without jit.
    """
    # The second group is the sample itself, and its call a replay.
    groups = [program.inputs, program.inputs]
    if others:
        groups[0] = other_values(program)
    if sizes and (larger := other_sizes(program, True)):
        groups += [*larger, *doubled_again(program, larger[0])]
    count = len(program.inputs)

    def over(target: Target) -> Flat:
        f = cast(Jitting, target).jit(program.over(target))

        def g(*values: object) -> Values:
            results: list[Any] = []
            draws = Replay()
            for index in range(len(groups)):
                draws.rewind()  # a capture draws too
                results += f(*values[index * count : (index + 1) * count])
            return tuple(results)

        return g

    inputs = tuple(chain.from_iterable(groups))
    # The label is that of the plain form, so that an entry that names it holds for both.
    return Program(
        over,
        inputs,
        program.differentiable * len(groups),
        program.seed,
        program.label,
        calls=len(groups),
    )


# --- the programs of a sample ---------------------------------------------------------------------

CAPTURED = frozenset(("trace", "aot.export", "aot.saved"))  # a graph, which is jitted itself
# a larger size costs much, or is a matter of the stage
SLOW = frozenset(("jacrev", "jacfwd", "hessian", *INNERMOST, *WHOLE))


def instances(
    sample: Sample,
    stages: Sequence[str],
    axes: Axes,
    first: bool,
    turn: int,
    reasons: dict[str, None],
    fewest: bool = False,
) -> Iterator[tuple[Program, str]]:
    """Yield the programs of the pipeline `stages`, innermost first, over one sample.

    Each comes with a label that distinguishes it. Patterns that the sample does not allow are noted
    in `reasons`. Raises Unsuitable if it allows none. `fewest`: one pattern. For `first` and `turn`
    see :func:`gen.checks.batched_inputs.choices`.
    """
    has_instance = False
    captures = not CAPTURED.isdisjoint(stages)
    # a program for any size costs ten times a call
    sizes = first and axes.is_plain_call and len(stages) <= 1 and SLOW.isdisjoint(stages)
    for root, label in _roots(sample, axes):
        for program in _over_root(sample, root, stages, axes, first, turn, reasons, fewest):
            if axes.jitted and not captures:
                program = jitted(program, axes.values == "ordinary", sizes and not has_instance)
            yield program, label
            has_instance = True
    if not has_instance:
        raise Unsuitable(next(reversed(reasons), "no instance"))


def _roots(sample: Sample, axes: Axes) -> list[tuple[Program, str]]:
    """Return the op as programs to transform: one for each filling and each program of its form."""
    form, values = axes.form, axes.values
    repeats = axes.layout == "expanded"
    key = ("roots", form, values, repeats)
    if key not in sample.memory:
        programs = []
        for label, inputs in forms.fillings(sample, values):
            if repeats:
                inputs = forms.repeating(sample, inputs)
            for program in forms.programs(sample, form, inputs):
                programs.append((program, label))
        sample.memory[key] = programs
    roots: list[tuple[Program, str]] = sample.memory[key]
    return roots


def _over_root(
    sample: Sample,
    root: Program,
    stages: Sequence[str],
    axes: Axes,
    first: bool,
    turn: int,
    reasons: dict[str, None],
    fewest: bool,
) -> Iterator[Program]:
    """Yield the programs of `stages` over the program `root`."""
    if stages and stages[0] in INNERMOST:
        root, stages = _compile(sample, root, stages[0], axes), stages[1:]
    nesting = [stage for stage in stages if stage not in WHOLE]
    outer = [stage for stage in stages if stage in WHOLE]
    for program in _nest(sample, root, nesting, axes, first, turn, reasons, fewest):
        if outer:
            yield program_stages.whole(outer[0], program, axes)
        else:
            yield program


def _nest(
    sample: Sample,
    root: Program,
    stages: Sequence[str],
    axes: Axes,
    first: bool,
    turn: int,
    reasons: dict[str, None],
    fewest: bool,
) -> Iterator[Program]:
    """Yield the programs of `stages` that nest, one for each choice of batched inputs."""
    if "vmap" not in stages:
        yield _plain(sample, root, stages)
        return
    writes = _written_places(sample, axes.form)
    for choice in batched_inputs.choices(stages, first, turn, writes, fewest):
        yield from _branches(sample, root, stages, choice, reasons, axes.batch)


def _written_places(sample: Sample, form: str) -> list[int]:
    """Return the places of the inputs to which a call of this form writes."""
    if form in ("inplace", "view_inplace"):
        return [0]
    return [place for place, flag in enumerate(sample.facts.mutated) if flag]


def _compile(sample: Sample, root: Program, stage: str, axes: Axes) -> Program:
    """Return the program as its innermost stage compiles it. All checks with the same axes share
    it.
    """
    # By identity: what is stored holds its root, so that no other program gets this id.
    axes_of_stage = (axes.shapes, axes.partition, axes.layout, axes.run, axes.by, axes.cuts)
    key = (stage, id(root), *axes_of_stage)
    if key not in sample.memory:
        compile_stage = program_stages.compiled if stage == COMPILED else program_stages.of
        sample.memory[key] = compile_stage(root, axes)
    compiled: Program = sample.memory[key]
    return compiled


def _plain(sample: Sample, root: Program, stages: Sequence[str]) -> Program:
    """Return the pipeline without vmap. All checks that contain it share it."""
    program = root
    for end in range(1, len(stages) + 1):
        key = ("program", id(root), tuple(stages[:end]))
        if key not in sample.memory:
            sample.memory[key] = extend(program, stages[end - 1])
        program = sample.memory[key]
    return program


def _branches(
    sample: Sample,
    program: Program,
    stages: Sequence[str],
    choice: batched_inputs.Choice,
    reasons: dict[str, None],
    batch: str,
) -> Iterator[Program]:
    """Yield the programs of the remaining stages, with a branch for each choice of in_dims."""
    if "vmap" not in stages:
        for stage in stages:
            program = extend(program, stage)
        yield program
        return
    cut = stages.index("vmap")
    program = _plain(sample, program, stages[:cut])
    outermost = cut == len(stages) - 1
    if not program.inputs:
        raise Unsuitable(f"{program.label} has no tensor input to batch")
    # Inner batches are smaller, because sizes of nested batches multiply.
    size = 3 if outermost and "vmap" not in program.label else 2
    for in_dims in choice(program.inputs):
        try:
            inner, dims = batch_axis.around(program, in_dims, batch)
            mapped = batched_inputs.grow(
                inner, dims, size, _reference_outputs if outermost else _observed_outputs
            )
            yield from _branches(
                sample,
                batch_axis.changed(inner, mapped, dims, batch),
                stages[cut + 1 :],
                choice,
                reasons,
                batch,
            )
        except Unsuitable as reason:
            reasons[str(reason)] = None


def _reference_outputs(program: Program) -> Any:
    """Return the reference's result of the last stage. It is stored with the program that is
    compared with it."""
    return program.on_reference()


def _observed_outputs(program: Program) -> Any:
    return program.observed[0]
