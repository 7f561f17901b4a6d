"""Build the stages that take a whole program: captured graphs, compiled functions, joint graphs,
exports, per-sample gradients, training and programs of the eager session.

Each becomes a :class:`~gen.checks.pipelines.Program`. A graph is captured on one set of values and
run on another, so that a value that is constant in the graph shows. With dynamic shapes it also
runs at another size, if the sample has one. A program may write to its arguments. Then each run
gets copies of them, and the copies are further results.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch

from gen.checks import per_sample, training
from gen.checks.batched_inputs import VARIATIONS, vary
from gen.checks.forms import is_reference, laid_out
from gen.checks.pipelines import Program, cornered, extend, on_copies, restricted
from gen.language.axes import Axes
from gen.language.pipeline import CHECKPOINT, FUNCTIONAL, SESSION, TRAINING
from gen.outcomes import Mismatch, Unsuitable
from gen.reference import Loop
from gen.reference.loop import sum_of_squares
from gen.samples.descriptions import clone_with_strides
from gen.samples.domains import is_inexact
from gen.samples.seeds import Replay, seeded
from gen.targets.parts import Compile, Part, parts_compiled
from gen.targets.protocol import Compiling, Eager, Flat, Jitting, Target, Values

Tensor = torch.Tensor


# --- programs of the eager session ----------------------------------------------------------------
#
# Checkpoints, ``backward`` in a session, and ``torch.autograd.functional``.


def checkpointed(program: Program, reentrant: bool) -> Program:
    """Return outputs and gradients of `program` with random factors on its outputs, computed again
    in the backward pass.

    The reference computes once. So the gradients differ if the second run draws other
    factors than the first.
    """
    results, flags, count = program.active_outputs, program.differentiable, len(program.inputs)
    # The inputs have cotangents after them, as `vjp` draws them.
    inputs = extend(program, "vjp").inputs

    def over(target: Target) -> Flat:
        inner = restricted(program.over(target), [None] * count, range(count), results)

        def with_random_factors(*values: object) -> Values:
            products = []
            for y in inner(*values):
                # Each device draws other numbers, so all factors come from the CPU.
                factors = torch.rand(y.shape, dtype=torch.float64, device="cpu")
                products.append(y * factors.to(y))
            return tuple(products)

        def g(*values: Any) -> Values:
            outputs, gradients = cast(Eager, target).checkpoint(
                with_random_factors,
                _as_leaves(values[:count], flags),
                values[count:],
                reentrant=reentrant,
            )
            return (*outputs, *gradients)

        return g

    return Program(
        over,
        inputs,
        (*flags, *[True] * len(results)),
        program.seed,
        f"checkpoint({program.label})",
    )


def session(program: Program) -> Program:
    """Return outputs and gradients of `program` in a session.

    Outputs that have no gradient on the reference are compared too.
    """
    results, flags, count = program.active_outputs, program.differentiable, len(program.inputs)
    # The inputs have cotangents after them, as `vjp` draws them.
    inputs = extend(program, "vjp").inputs

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: Any) -> Values:
            outputs, gradients = cast(Eager, target).session(
                f, _as_leaves(values[:count], flags), values[count:], results
            )
            return (*outputs, *gradients)

        return g

    return Program(
        over, inputs, (*flags, *[True] * len(results)), program.seed, f"session({program.label})"
    )


def _as_leaves(values: Sequence[Tensor], flags: Sequence[bool]) -> list[Tensor]:
    """Return `values`, with a leaf that requires grad for each whose flag is set."""
    leaves = []
    for value, flag in zip(values, flags, strict=True):
        if flag:
            # The axis `layout` may be about strides, so the clone has those of the input.
            value = clone_with_strides(value.detach()).requires_grad_()
        leaves.append(value)
    return leaves


def functional(name: str, program: Program) -> Program:
    """Return ``torch.autograd.functional``'s function of this name, of `program`.

    ``hessian``, ``vhp`` and ``hvp`` get the sum of |output|², because they need one number.
    """
    if name in ("jacobian", "hessian"):
        program = cornered(program, {"jacobian": "jacrev"}.get(name, name))
    active, results, count = program.active_inputs, program.active_outputs, len(program.inputs)
    # What the function takes as `v`: a cotangent for each output, or a tangent for each input.
    along: tuple[Tensor, ...] = ()
    if name == "vjp":
        along = program.drawn_like([program.observed[0][place] for place in results], "cotangents")
    elif name not in ("jacobian", "hessian"):
        along = program.drawn_like([program.inputs[place] for place in active], "tangents")

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: object) -> Values:
            inner = restricted(f, values[:count], active, results)

            def sum_of_results(*some: object) -> Values:
                return (sum_of_squares(inner(*some)),)

            flat: Flat = inner
            if name in ("hessian", "vhp", "hvp"):
                flat = sum_of_results
            primals = tuple(values[place] for place in active)
            return tuple(cast(Eager, target).functional(name, flat, primals, tuple(values[count:])))

        return g

    flags = (*program.differentiable, *[True] * len(along))
    return Program(
        over, (*program.inputs, *along), flags, program.seed, f"functional.{name}({program.label})"
    )


# --- captured, compiled and exported programs -----------------------------------------------------


def whole(stage: str, program: Program, axes: Axes) -> Program:
    """Return `stage` of `program`, by the axes that the stage has.

    A captured graph with ``run: jitted`` is jitted itself.
    """
    if stage == "per_sample":
        if axes.of is None:
            return per_sample.gradients(program, axes)
        return per_sample.answers(program, axes.of, axes)
    if stage == TRAINING:
        return training.trained(program, axes)
    if stage == CHECKPOINT:
        return checkpointed(program, axes.reentrant == "reentrant")
    if stage == SESSION:
        return session(program)
    if stage in FUNCTIONAL:
        return functional(stage.removeprefix("functional."), program)
    if stage == "aot.joint":
        return _joint(program, axes)
    return _capture(stage, program, axes.dynamic, axes.layout, axes.jitted)


def compiled(program: Program, axes: Axes) -> Program:
    """Return `program` as a compiled function, by the axes ``layout``, ``shapes``, ``partition``
    and ``run``.

    Each call is preceded by one on other values, and of another size if shapes are dynamic. So the
    call that is compared may not compile, and constants of the graph show. A jitted program is
    called on other values as a whole instead.
    """
    dynamic, layout = axes.dynamic, axes.layout
    # The reference decides which other values and sizes the op takes.
    pure = _without_writes(program)
    variation = _variation(pure)
    size = _doubling(pure) if dynamic else None

    def over(target: Target) -> Flat:
        f = target.compiled(program.over(target), partition=axes.partition, dynamic=dynamic)
        f = on_copies(f, program.written)

        def g(*values: Any) -> Values:
            if not is_reference(target) and not axes.jitted:
                others: tuple[Any, ...] = values
                if size is not None:
                    others = tuple(_double(value, size) for value in values)
                elif variation is not None:
                    others = tuple(vary(x, 1, variation) for x in values)
                f(*laid_out(others, layout))
            # No program that is captured may set the state of a generator.
            if axes.jitted:
                return f(*values)
            # The first call may have drawn numbers, so the generator is seeded once more.
            with seeded(program.seed):
                return f(*values)

        return g

    return Program(
        over, program.inputs, program.differentiable, program.seed, f"aot.function({program.label})"
    )


def _without_writes(program: Program) -> Program:
    """Return `program` on copies of the arguments to which it writes, for the reference.

    The copies are results.
    """
    # `replace` would share the dictionary of results, which belong to the other function.
    return replace(
        program,
        over=lambda target: on_copies(program.over(target), program.written),
        written=(),
        _results={},
    )


def _capture(stage: str, program: Program, dynamic: bool, layout: str, jitted: bool) -> Program:
    """Return `program` as a captured graph, which runs on other values than it was captured on."""
    capture = {"trace": "trace", "aot.export": "export", "aot.saved": "saved"}[stage]
    pure = _without_writes(program)
    # A program that halves a size of 2 or 3 gets 1. Torch makes 1 a constant of the graph, even
    # where sizes are symbols. So sizes below 4 are not doubled.
    groups = [other_values(pure), *other_sizes(pure, dynamic, least=4)]
    count = len(program.inputs)

    def over(target: Target) -> Flat:
        def g(*values: Any) -> Values:
            examples = laid_out(_on_devices_of(values, program.inputs), layout)
            replay = getattr(target, capture)(program.over(target), examples, dynamic=dynamic)
            if capture == "trace" and not is_reference(target):
                _require_graph(replay)
            graph = cast(Jitting, target).jit(replay) if jitted else replay
            run = on_copies(graph, program.written)
            results: list[Any] = []
            for k in range(len(groups)):
                group = values[k * count : (k + 1) * count]
                # The first group has the sizes of the capture, which no guard can refuse.
                if k and not _guards_hold(replay, group):
                    raise Unsuitable(
                        "by its guards the graph is not for another size: "
                        "the program takes a size as a number"
                    )
                # The capture may have drawn numbers, so the generator is seeded once more.
                with seeded(program.seed):
                    results += run(*group)
            return tuple(results)

        return g

    inputs = tuple(chain.from_iterable(groups))
    return Program(
        over,
        inputs,
        program.differentiable * len(groups),
        program.seed,
        f"{stage}({program.label})",
    )


def _require_graph(replay: object) -> None:
    """Raise Mismatch unless a traced function has a graph, which users of make_fx read."""
    if getattr(replay, "graph", None) is None:
        raise Mismatch("the traced function has no attribute `graph`")


def _guards_hold(replay: Any, values: Sequence[Tensor]) -> bool:
    """Return whether a graph is for these values.

    make_fx notes conditions on sizes in ``shape_env``, and leaves it to its caller to ask.
    """
    shape_env = getattr(replay, "shape_env", None)
    if shape_env is None:
        return True
    placeholders = [node.meta["val"] for node in replay.graph.nodes if node.op == "placeholder"]
    guards = shape_env.produce_guards_expression(placeholders, ignore_static=False)
    return guards is None or bool(shape_env.evaluate_guards_expression(guards, values))


def _joint(program: Program, axes: Axes) -> Program:
    """Return outputs and gradients of `program` by its joint graph.

    The graph runs on other values than it was captured on.
    """
    results_with_gradients, flags = program.active_outputs, program.differentiable
    count = len(program.inputs)
    # It raises Unsuitable if no input is differentiable.
    _ = program.active_inputs
    groups = [other_values(program), *other_sizes(program, axes.dynamic)]
    # The inputs of each group have the cotangents of its outputs after them.
    extended = []
    for group in groups:
        of_group = Program(program.over, group, flags, program.seed, program.label)
        extended.append(extend(of_group, "vjp").inputs)

    def over(target: Target) -> Flat:
        inner = program.over(target)

        def g(*values: Any) -> Values:
            examples = _as_leaves(_on_devices_of(values, program.inputs), flags)
            replay = target.joint(
                lambda *xs: restricted(inner, xs, range(count), results_with_gradients)(*xs),
                examples,
                partition=axes.partition,
                dynamic=axes.dynamic,
            )
            results: list[Any] = []
            for start in range(0, len(values), count + len(results_with_gradients)):
                middle = start + count
                primals = _as_leaves(values[start:middle], flags)
                cotangents = values[middle : middle + len(results_with_gradients)]
                # No program that is captured may set the state of a generator.
                with nullcontext() if axes.jitted else seeded(program.seed):
                    outputs, gradients = replay(primals, cotangents)
                results += [*outputs, *gradients]
            return tuple(results)

        return g

    inputs = tuple(chain.from_iterable(extended))
    every = (*flags, *[True] * len(results_with_gradients)) * len(groups)
    return Program(over, inputs, every, program.seed, f"aot.joint({program.label})")


def _on_devices_of(values: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return `inputs`, each on the device of its value.

    Further values belong to other groups.
    """
    return tuple(x.to(value.device) for x, value in zip(inputs, values, strict=False))


def other_values(program: Program) -> tuple[Tensor, ...]:
    """Return inputs of the same shapes with other values that the reference accepts.

    Return the inputs themselves if it accepts no others.
    """
    variation = _variation(program)
    if variation is None:
        return program.inputs
    return tuple(vary(x, 1, variation) for x in program.inputs)


def _variation(program: Program) -> int | None:
    """Return the number of a variation of the inputs that the reference accepts.

    The outputs keep their shapes. It is None if there is no such variation.
    """
    for variation in VARIATIONS:
        inputs = tuple(vary(x, 1, variation) for x in program.inputs)
        outputs = _outputs_on_reference(program, inputs)
        if outputs is None:
            continue
        pairs = zip(outputs, program.observed[0], strict=True)
        if all(output.shape == before.shape for output, before in pairs):
            return variation
    return None


def other_sizes(program: Program, dynamic: bool, least: int = 2) -> list[tuple[Tensor, ...]]:
    """Return inputs in which every dimension of one size n >= `least` has become 2n.

    There is one set of inputs, or none. The number of results does not change.
    """
    # Dimensions that are equal may have to stay equal, so a size is doubled wherever it occurs.
    size = _doubling(program, least) if dynamic else None
    if size is None:
        return []
    return [tuple(_double(x, size) for x in program.inputs)]


def doubled_again(program: Program, inputs: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """Return `inputs` of :func:`other_sizes` at twice their size once more: one set, or none."""
    # The size that was doubled is the one in which the two sets differ.
    sizes = chain.from_iterable(x.shape for x in program.inputs)
    doubled_sizes = chain.from_iterable(x.shape for x in inputs)
    pairs = zip(sizes, doubled_sizes, strict=True)
    size = next(doubled for size, doubled in pairs if size != doubled)
    larger = tuple(_double(x, size) for x in inputs)
    outputs = _outputs_on_reference(program, larger)
    if outputs is None or len(outputs) != len(program.observed[0]):
        return []
    return [larger]


def _doubling(program: Program, least: int = 2) -> int | None:
    """Return the largest size n >= `least` such that the reference accepts 2n in its place.

    It is None if there is no such size.
    """
    sizes = set(chain.from_iterable(x.shape for x in program.inputs))
    for size in sorted(sizes, reverse=True):
        if size < least:
            return None
        outputs = _outputs_on_reference(program, tuple(_double(x, size) for x in program.inputs))
        if outputs is not None and len(outputs) == len(program.observed[0]):
            return size
    return None


def _double(x: Tensor, size: int) -> Tensor:
    """Return `x` with 2n for each dimension of size n.

    Its order in memory stays, because a graph may have a condition on strides.
    """
    # Each index of a permutation must occur once, so those of the second half are larger by n.
    if _has_distinct_indices(x, size):
        return torch.cat([x, x + size])
    doubled = x
    for dim in range(x.ndim):
        if x.shape[dim] == size:
            doubled = torch.cat([doubled, vary(doubled, 1, 1)], dim)
    if doubled is x or x.is_contiguous():
        return doubled
    # Concatenation gives contiguous results, so the order of the dimensions is restored.
    order = sorted(range(x.ndim), key=lambda dim: x.stride(dim), reverse=True)
    back = list(map(order.index, range(x.ndim)))
    return doubled.permute(order).contiguous().permute(back)


def _has_distinct_indices(x: Tensor, size: int) -> bool:
    """Return whether `x` has `size` different indices below `size`: a permutation."""
    if x.shape != (size,) or x.dtype is torch.bool or is_inexact(x.dtype):
        return False
    return sorted(x.tolist()) == list(range(size))


def _outputs_on_reference(
    program: Program, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, ...] | None:
    """Return the outputs of `program` for `inputs`, or None if the reference refuses them."""
    reference = Loop()
    try:
        with seeded(program.seed):
            return reference.observe(program.over(reference), inputs, program.differentiable)[0]
    except Exception:  # the op refuses these inputs, with any error
        return None


# --- the stage aot.parts --------------------------------------------------------------------------
#
# An op runs as it is. The target gives it what it asks for by :mod:`gen.targets.parts`: compiled
# programs, and functions of the target's own.


def of(program: Program, axes: Axes) -> Program:
    """Return `program` with its parts compiled, by ``shapes``, ``partition``, ``by`` and ``cuts``.

    A reference compiles nothing. With ``cuts: loaded`` the program runs twice. The first run leaves
    its partitions in a folder, and the second one has to find them all there.
    """

    def over(target: Target) -> Flat:
        f = program.over(target)
        if is_reference(target):
            return f
        compiling = cast(Compiling, target)

        def g(*values: object) -> Values:
            if axes.cuts != "loaded":
                with parts_compiled(_compile(compiling, axes, None), compiling.offered):
                    return f(*values)
            # The first run draws too, and the second one has to draw what the reference draws.
            draws = Replay()
            with TemporaryDirectory() as folder:
                with parts_compiled(
                    _compile(compiling, axes, compiling.cache(folder)), compiling.offered
                ):
                    f(*values)
                draws.rewind()
                cache = compiling.cache(folder)
                with parts_compiled(_compile(compiling, axes, cache), compiling.offered):
                    results = f(*values)
            _require_loaded(cache.info())
            return results

        return g

    return Program(
        over, program.inputs, program.differentiable, program.seed, f"aot.parts({program.label})"
    )


def _compile(target: Compiling, axes: Axes, cache: object) -> Compile:
    """Return the function that compiles a part for its example arguments, by the axes."""

    def make(f: Part, examples: tuple[object, ...]) -> Part:
        return target.part(
            f,
            examples,
            partition=axes.partition,
            dynamic=axes.dynamic,
            jits=axes.by == "jit",
            cache=cache,
        )

    return make


def _require_loaded(info: Any) -> None:
    """Raise unless every partition came from the folder, and there was one."""
    if info.misses:
        raise Mismatch(
            "a partition of the first run was not found by the second one: "
            f"{', '.join(info.misses)}"
        )
    if not info.hits:
        raise Unsuitable("no part is differentiated, so there is nothing to keep")
