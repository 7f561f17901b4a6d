"""Build pipelines of transforms over a sample, from the innermost stage outwards.

A :class:`Program` is a function of flat inputs and the inputs to run it on. It can be built over
any target. Each stage maps a program to a program: ``vmap . vjp`` of ``torch.sin`` is
``vjp(torch.sin)``, then ``vmap[0,0](vjp(torch.sin))``.

A stage needs facts about its function: the shapes of its outputs, and which of them are
differentiable. They are observed once on the reference, so the target cannot influence what it is
asked. The same code then builds the pipeline over target and reference.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode

from gen.devices.place import Place
from gen.outcomes import Lacking, Unsuitable
from gen.reference import Loop
from gen.reference.loop import sum_of_squares
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample, by_former_names
from gen.samples.seeds import generator, seeded
from gen.targets.protocol import Flat, Linearizing, Placing, Target, Values
from gen.targets.target_marks import target_runs
from gen.torch_private.loaded_with_torch import TorchDispatchMode

Tensor = torch.Tensor
JACOBIAN_LIMIT = 4096  # entries of a Jacobian or Hessian; a larger one is restricted to a corner
CORNER = 8  # elements of each tensor in such a corner


@dataclass
class Program:
    """A function and the inputs to run it on."""

    # `over(target)` is the function over a target
    over: Callable[[Target], Flat]
    # plain tensors
    inputs: tuple[Tensor, ...]
    # whether each input is differentiable
    differentiable: tuple[bool, ...]
    # with `label` it identifies the program, and so what is drawn for it
    seed: int
    # a description such as ``vmap[0,0](vjp(torch.sin))``
    label: str = "f"
    # the places of the inputs to which the function writes, see :func:`on_copies`
    written: tuple[int, ...] = ()
    # how often the function calls another one, each time on its share of the inputs
    calls: int = 1
    # the names of the outputs, if they have any
    names: Sequence[str] = ()
    # By the change of the inputs. `replace` shares it, so a copy with another function or other
    # inputs has to have a new one.
    _results: dict[Callable[[Tensor], Tensor] | None, tuple[Tensor, ...]] = field(
        default_factory=dict
    )

    @cached_property
    def observed(self) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
        """Return the outputs on the reference, and a flag for each of them.

        The flag says whether the output depends differentiably on the differentiable inputs.
        """
        reference = Loop()
        with seeded(self.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return reference.observe(self.over(reference), self.inputs, self.differentiable)

    def on_reference(self, change: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, ...]:
        """Return the outputs over the loop reference.

        They are computed once for each `change` of the inputs.
        """
        if change not in self._results:
            reference = Loop()
            inputs = self.inputs if change is None else tuple(map(change, self.inputs))
            with seeded(self.seed), warnings.catch_warnings():
                # Warnings of plain torch are not about the target.
                warnings.simplefilter("ignore")
                self._results[change] = tuple(self.over(reference)(*inputs))
        return self._results[change]

    @cached_property
    def deterministic(self) -> bool:
        """Return whether the reference returns the same with another seed."""
        other = replace(self, seed=self.seed + 1, _results={})
        return all(map(torch.equal, self.on_reference(), other.on_reference()))

    def named(self, message: str) -> str:
        """Return `message`, with the name of the output that it begins with."""
        place = re.match(r"output (\d+)", message)
        if place is None or int(place[1]) >= len(self.names):
            return message
        return f"{place[0]} ({self.names[int(place[1])]}){message.removeprefix(place[0])}"

    @property
    def active_inputs(self) -> list[int]:
        """Return the places of the differentiable inputs. Raises Unsuitable if there is none."""
        places = [place for place, flag in enumerate(self.differentiable) if flag]
        if not places:
            raise Unsuitable(f"{self.label} has no differentiable input")
        return places

    @property
    def active_outputs(self) -> list[int]:
        """Return the places of the differentiable outputs. Raises Unsuitable if there is none."""
        places = [place for place, flag in enumerate(self.observed[1]) if flag]
        if not places:
            raise Unsuitable(f"no output of {self.label} depends differentiably on its inputs")
        return places

    def drawn_like(self, tensors: Sequence[Tensor], what: str) -> tuple[Tensor, ...]:
        """Draw seeded normal tensors: cotangents or tangents."""
        # A row that moved keeps its cotangents, since its former name seeds them.
        source = generator(self.seed, by_former_names(self.label), what)
        drawn = []
        for tensor in tensors:
            # Drawn in double precision on the CPU, the numbers are the same for every dtype and
            # device.
            wide = torch.complex128 if tensor.is_complex() else torch.float64
            numbers = torch.randn(tensor.shape, dtype=wide, generator=source)
            drawn.append(numbers.to(tensor.dtype).to(tensor.device))
        return tuple(drawn)


def widened(x: Tensor) -> Tensor:
    """Return `x` in float64 or complex128. Integers and booleans are unchanged."""
    if x.is_complex():
        return x.to(torch.complex128)
    if x.is_floating_point():
        return x.to(torch.float64)
    return x


def nudged(x: Tensor) -> Tensor:
    """Return `x` with every floating or complex element off by about an ulp.

    Elements are off up and down in turn.
    """
    if not is_inexact(x.dtype):
        return x
    signs = torch.ones(x.numel(), dtype=x.dtype, device=x.device)
    signs[1::2] = -1
    return x * (1 + torch.finfo(x.dtype).eps * signs.reshape(x.shape))


def restricted(
    f: Flat,
    values: Sequence[object],
    places: Sequence[int],
    outputs: Sequence[int],
    total: int | None = None,
) -> Flat:
    """Return `f` as a function of the inputs at `places`, which returns the outputs at `outputs`.

    Other inputs are fixed at `values`. `total` is the number of outputs that `f` has to have. It
    may have another number for inputs of another size, and then the result raises Unsuitable.
    """

    def g(*some: object) -> Values:
        full = list(values)
        for place, value in zip(places, some, strict=True):
            full[place] = value
        results = f(*full)
        if total is not None and len(results) != total:
            raise Unsuitable("the number of results depends on a size")
        return tuple(results[place] for place in outputs)

    return g


def on_copies(f: Flat, written: Sequence[int]) -> Flat:
    """Return `f` on copies of the inputs at `written`, to which it writes.

    The copies are further results, so that the writes are compared.
    """
    if not written:
        return f

    def g(*values: Any) -> Values:
        arguments = list(values)
        for place in written:
            arguments[place] = values[place].clone()
        return (*f(*arguments), *(arguments[place] for place in written))

    return g


def extend(program: Program, stage: str) -> Program:
    """Return `stage` of `program`, for every nesting stage except vmap, which needs a pattern
    (:func:`batched`).
    """
    return _STAGES[stage](program)


Dims = tuple[int | None, ...]


def batched(
    program: Program, inputs: tuple[Tensor, ...], in_dims: Dims, out_dims: Dims | None = None
) -> Program:
    """Return vmap of `program`.

    `inputs` are batched at `in_dims`, and outputs at `out_dims`, or at 0.
    """
    over = program.over
    # The label seeds what is drawn for the program, so it does not change for the usual out_dims.
    dims = _show(in_dims)
    if out_dims is not None:
        dims += f" to {_show(out_dims)}"
    label = f"vmap[{dims}]({program.label})"

    def mapped(target: Target) -> Flat:
        f = over(target)
        if out_dims is None:
            return target.vmap(f, in_dims)
        return cast(Placing, target).vmap(f, in_dims, out_dims)

    return Program(mapped, inputs, program.differentiable, program.seed, label)


def _show(dims: Dims) -> str:
    return ",".join("-" if dim is None else str(dim) for dim in dims)


def _reverse(name: str, program: Program) -> Program:
    """Return ``vjp`` or ``backward`` of `program`.

    Cotangents become inputs, and gradients are the outputs.
    """
    active, results, count = program.active_inputs, program.active_outputs, len(program.inputs)
    # Only outputs with a derivative get a cotangent, and only inputs with one get a gradient.
    cotangents = program.drawn_like([program.observed[0][place] for place in results], "cotangents")

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: object) -> Values:
            primals = values[:count]
            inner = restricted(f, primals, active, results, len(program.observed[0]))
            _, pullback = getattr(target, name)(inner, *[primals[place] for place in active])
            return tuple(pullback(tuple(values[count:])))

        return g

    # A cotangent is differentiable, so that vjp of vjp also differentiates along it.
    flags = (*program.differentiable, *[True] * len(cotangents))
    label = f"{name}({program.label})"
    return Program(over, (*program.inputs, *cotangents), flags, program.seed, label)


def _forward_mode(name: str, program: Program) -> Program:
    """Return ``jvp``, ``linearize`` or ``dual`` of `program`.

    Tangents become inputs, and outputs with their tangents are the outputs.
    """
    active, results, count = program.active_inputs, program.active_outputs, len(program.inputs)
    # Each input that has a derivative gets a tangent.
    tangents = program.drawn_like([program.inputs[place] for place in active], "tangents")

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: object) -> Values:
            primals = values[:count]
            inner = restricted(f, primals, active, results, len(program.observed[0]))
            at, along = tuple(primals[place] for place in active), tuple(values[count:])
            if name == "linearize":
                outputs, push = cast(Linearizing, target).linearize(inner, *at)
                return (*outputs, *push(along))
            outputs, pushed = getattr(target, name)(inner, at, along)
            return (*outputs, *pushed)

        return g

    flags = (*program.differentiable, *[True] * len(tangents))
    label = f"{name}({program.label})"
    return Program(over, (*program.inputs, *tangents), flags, program.seed, label)


def _grad(program: Program) -> Program:
    """Return ``grad`` of the sum of |output|², as ``grad`` needs one number."""
    active, results = program.active_inputs, program.active_outputs

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: object) -> Values:
            inner = restricted(f, values, active, results)

            def loss(*some: object) -> Any:
                return sum_of_squares(inner(*some))

            return tuple(target.grad(loss)(*[values[place] for place in active]))

        return g

    return Program(
        over, program.inputs, program.differentiable, program.seed, f"grad({program.label})"
    )


def _jacobian(name: str) -> Callable[[Program], Program]:
    """Return the stage ``jacrev``, ``jacfwd`` or ``hessian``, whose outputs are all blocks."""

    def stage(program: Program) -> Program:
        program = cornered(program, name)
        active, results = program.active_inputs, program.active_outputs

        def over(target: Target) -> Flat:
            f = program.over(target)

            def g(*values: object) -> Values:
                inner = restricted(f, values, active, results)
                transformed = getattr(target, name)(inner, tuple(range(len(active))))
                return _leaves(transformed(*[values[place] for place in active]))

            return g

        return Program(
            over, program.inputs, program.differentiable, program.seed, f"{name}({program.label})"
        )

    return stage


def cornered(program: Program, name: str) -> Program:
    """Return `program`, or a corner of it if its derivative is too large.

    `name` is that of the derivative, which may have at most :data:`JACOBIAN_LIMIT` entries.
    """
    if _jacobian_size(program, name) <= JACOBIAN_LIMIT:
        return program
    return _corner(program)


def _jacobian_size(program: Program, name: str) -> int:
    """Return the number of entries of the Jacobian or Hessian of a program."""
    inputs = sum(program.inputs[place].numel() for place in program.active_inputs)
    outputs = sum(program.observed[0][place].numel() for place in program.active_outputs)
    return inputs * outputs * (inputs if name == "hessian" else 1)


def _corner(program: Program) -> Program:
    """Return `program` as a function of the first elements of its large differentiable inputs.

    The function returns the first elements of its outputs.
    """
    large = [place for place in program.active_inputs if program.inputs[place].numel() > CORNER]

    def over(target: Target) -> Flat:
        f = program.over(target)

        def g(*values: Any) -> Values:
            full = list(values)
            for place in large:
                x = program.inputs[place]
                if not isinstance(values[place], torch.Tensor):
                    raise Lacking("a large Jacobian is that of a corner, which torch.cat puts back")
                # The other elements are constants, so a batch outside differs only in the corner.
                rest = x.reshape(-1)[CORNER:].to(values[place].device)
                full[place] = torch.cat([values[place], rest]).reshape(x.shape)
            return tuple(output.reshape(-1)[:CORNER] for output in f(*full))

        return g

    inputs = list(program.inputs)
    for place in large:
        inputs[place] = inputs[place].reshape(-1)[:CORNER].clone()
    label = f"a corner of {program.label}"
    return Program(over, tuple(inputs), program.differentiable, program.seed, label)


def _functionalize(program: Program) -> Program:
    """Return ``functionalize`` of `program`."""
    over, label = program.over, f"functionalize({program.label})"
    return Program(
        lambda target: target.functionalize(over(target)),
        program.inputs,
        program.differentiable,
        program.seed,
        label,
    )


def _leaves(blocks: object) -> Values:
    if isinstance(blocks, (tuple, list)):
        return tuple(chain.from_iterable(map(_leaves, blocks)))
    return (blocks,)


_STAGES: dict[str, Callable[[Program], Program]] = {
    "vjp": partial(_reverse, "vjp"),
    "backward": partial(_reverse, "backward"),
    "jvp": partial(_forward_mode, "jvp"),
    "linearize": partial(_forward_mode, "linearize"),
    "dual": partial(_forward_mode, "dual"),
    "grad": _grad,
    "jacrev": _jacobian("jacrev"),
    "jacfwd": _jacobian("jacfwd"),
    "hessian": _jacobian("hessian"),
    "functionalize": _functionalize,
}


# --- modes around a program -----------------------------------------------------------------------
#
# Axis ``under``: a program runs inside of a mode, which changes nothing about its results.


class _Dispatching(TorchDispatchMode):
    """Sees each ATen call, and each branch and loop as a whole, and passes it on."""

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


class _Overriding(TorchFunctionMode):
    """Sees each call of a function of torch and passes it on."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Tensor | int, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        return func(*args, **(kwargs or {}))


_MODES: dict[str | None, Callable[[], AbstractContextManager[Any]]] = {
    None: nullcontext,
    "dispatch_mode": _Dispatching,
    "function_mode": _Overriding,
    "inference_mode": torch.inference_mode,
    "no_grad": torch.no_grad,
}


def entered(name: str | None) -> AbstractContextManager[Any]:
    """Return the mode of a word of axis ``under``, or a context without effect for None."""
    return _MODES[name]()


# --- runs of a target ----------------------------------------------------------------------------

Outputs = tuple[Tensor, ...]
_OF_KERNELS = (
    r"(.*is deprecated in favor of|This overload of \w+ is deprecated|.*this will "
    r"lower the performance|An output with one or more elements was resized|The number "
    r"of elements in the out tensor|.*degrees of freedom is <= 0)"
)


def run_target(
    target: Target,
    program: Program,
    inputs: Sequence[Tensor],
    stages: Sequence[str],
    sample: Sample,
    under: str | None = None,
    place: Place | None = None,
) -> Outputs:
    """Return the program's results over `target`, run inside of the mode that `under` names.

    With a `place`, the target runs there, and the results are tensors of its device.

    Warnings that the plain op gives too are ignored. So are warnings of kernels about speed,
    deprecation and buffers, which depend on layout and form. Any other warning is an error under
    pytest.
    """
    with seeded(program.seed), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_OF_KERNELS, category=UserWarning)
        # The target may give the warnings of the plain op, and no others.
        for message, category in sample.facts.warnings:
            # In place of a number, a trace has a symbol such as s77 or u0.
            pattern = re.sub(r"\d+", r"[su]?\\d+", re.escape(message))
            warnings.filterwarnings("ignore", message=pattern, category=category)
        # A target with values of its own converts inputs and results around the whole.
        function = program.over(target)
        whole = getattr(target, "pipeline", None)
        if not stages:
            function = target.forward(function)
        elif whole is not None:
            function = whole(function, stages)
        around = nullcontext() if place is None else place.entered()
        with target_runs(), entered(under), around:
            there = inputs if place is None else place.moved(inputs)
            return _results_of(target, function(*there))


def _results_of(target: Target, results: Any) -> Outputs:
    """Return the results as a tuple.

    Raises TypeError if one is no tensor of torch, because nothing could be compared with it.
    """
    for place, x in enumerate(results):
        if not isinstance(x, torch.Tensor):
            kind = f"{type(x).__module__}.{type(x).__qualname__}"
            raise TypeError(
                f"result {place} of target {target.name} is a {kind}: "
                "where a check calls a target, results are torch.Tensors. A target with values of "
                "its own converts inputs and results in `forward` and `pipeline` (docs/targets.md)"
            )
    return tuple(results)
