"""A function with guessed arguments: its results, and what it can do beyond a forward pass.

call = Call(torch.sin, [{"shape": [4, 3]}])
call.gradients(call.arguments(seed=1))
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.func import functional_call

from gen.recording.described import NoDescriptionError, describe_call
from gen.recording.hook import Sample
from gen.samples.descriptions import build
from gen.samples.samples import flat_tensors
from gen.torch_private.loaded_with_torch import pytree

__all__ = [
    "Call",
    "ModuleCall",
    "NotUsableError",
    "OnCopies",
    "batch",
    "capture",
    "differentiate_twice",
    "has_floats",
    "inner_calls",
    "is_flat",
    "is_rounded",
    "is_same",
    "is_step",
    "is_zero",
    "pull_back",
    "push_forward",
    "run_under_autocast",
    "without_gradient",
    "writes_to_buffers",
]

Tensor = torch.Tensor
_SEEDS = (0, 1, 2)
_STEP = 1e-3  # large enough to move the result of a function that has a slope
_SMALL_STEP = 1e-6  # so small that it hardly ever crosses a jump of a step function
# The generator belongs to all threads, so only one of them may draw the buffers of a module.
_DRAWING = threading.Lock()


class NotUsableError(Exception):
    """A call returned nothing that could be compared."""


@dataclass(frozen=True)
class Call:
    """A function with arguments for it, as a sample describes them."""

    function: Callable[..., Any]
    # descriptions of the arguments, as a sample of the matrix has them
    described: list[Any]
    keywords: tuple[str, ...] = ()  # the names of the last arguments
    makes_tensors: bool = False  # whether it makes tensors of numbers alone
    known_sizes: Mapping[str, int] = field(default_factory=dict)  # sizes by name, which cannot vary

    def run(self, arguments: Sequence[Any]) -> Any:
        """Return what the function returns."""
        cut = len(arguments) - len(self.keywords)
        named = dict(zip(self.keywords, arguments[cut:], strict=True))
        return self.function(*arguments[:cut], **named)

    def arguments(self, dtype: str = "float64", seed: int = 0) -> list[Any]:
        """Return the arguments of a draw."""
        torch.manual_seed(seed)
        source = [{"args": self.described}]
        return list(next(build(source, getattr(torch, dtype), "cpu"))[0])

    def results(self, arguments: Sequence[Any]) -> list[Tensor]:
        """Return the floating results.

        Raises NotUsableError if there are none, or one is not finite. Raises TypeError if there
        is an array of another library, which no cell can compare.
        """
        if not (self.makes_tensors or any(map(_is_tensor, pytree.tree_leaves(arguments)))):
            raise NotUsableError("it takes no tensor that could be guessed")
        results = self.run(arguments)
        # It raises an error for a result that no cell can compare.
        flat_tensors(results)
        floating = _floating(results)
        if not floating:
            raise NotUsableError(f"it returned {type(results).__name__}, no floating tensor")
        if not all(bool(result.isfinite().all()) for result in floating):
            raise NotUsableError("its result is not finite")
        return floating

    def gradients(self, arguments: Sequence[Any], create_graph: bool = False) -> list[Tensor]:
        """Return the gradients of a weighted sum of the results, one for each leaf."""
        results = [result for result in self.results(arguments) if result.requires_grad]
        if not results:
            return []
        gradients = torch.autograd.grad(
            _weighted_sum(results),
            _leaves(arguments),
            create_graph=create_graph,
            allow_unused=True,
        )
        return [gradient for gradient in gradients if gradient is not None]


def without_gradient(call: Call) -> list[int]:
    """Return the places of tensors that require grad, and that no gradient reaches."""
    arguments = call.arguments()
    results = [result for result in call.results(arguments) if result.requires_grad]
    places = [place for place, each in enumerate(arguments) if _is_leaf(each)]
    if not (results and places):
        return []
    leaves = [arguments[place] for place in places]
    gradients = torch.autograd.grad(_weighted_sum(results), leaves, allow_unused=True)
    return [place for place, each in zip(places, gradients, strict=True) if each is None]


def _floating(results: Any) -> list[Tensor]:
    several = results if isinstance(results, tuple | list) else [results]
    return [each for each in several if isinstance(each, Tensor) and each.is_floating_point()]


def _weighted_sum(results: Sequence[Tensor]) -> Tensor:
    """Return a sum of all results with weights that differ.

    The gradient of a plain sum is often zero.
    """
    sums = [(result * _weights(result)).sum() for result in results]
    # Results may have several dtypes, and `stack` takes one.
    return torch.stack([each.double() for each in sums]).sum()


def _weights(x: Tensor) -> Tensor:
    """Return numbers between 0.5 and 1.5, in the shape of a result."""
    return torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape)


def _leaves(arguments: Sequence[Any]) -> list[Tensor]:
    return list(filter(_is_leaf, pytree.tree_leaves(arguments)))


def _is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def _is_leaf(value: object) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def has_floats(arguments: Sequence[Any]) -> bool:
    """Return whether an argument is a floating tensor."""
    return bool(_floating(pytree.tree_leaves(arguments)))


def is_same(call: Call, *, backward: bool) -> bool:
    """Return whether two calls on the same numbers give the same bits, and draw no number.

    All that a call returns counts, as it does for a cell. So numbers in a dictionary count too,
    such as the seconds that the call took. With `backward` the gradients count as well, since a
    backward pass may draw by itself.
    """
    runs: list[Callable[[Sequence[Any]], Sequence[Tensor]]] = [
        lambda arguments: flat_tensors(call.run(arguments))
    ]
    if backward:
        runs.append(call.gradients)
    for run in runs:
        # Arguments are drawn first, since each draw seeds the generator of the calls.
        several = [call.arguments(), call.arguments()]
        state = torch.get_rng_state()
        # A draw of both calls could be equal by chance. The state of the generator shows it.
        first, second = map(run, several)
        is_drawn = not torch.equal(state, torch.get_rng_state())
        if is_drawn or len(first) != len(second) or not all(map(_have_same_bits, first, second)):
            return False
    return True


def _have_same_bits(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are equal, and NaN in the same places."""
    if first.shape != second.shape:
        return False
    are_nan = (first != first) & (second != second)
    return bool(((first == second) | are_nan).all())


def is_zero(call: Call, seed: int = 0) -> bool:
    """Return whether all results of a draw are zero."""
    return not any(bool(result.any()) for result in call.results(call.arguments(seed=seed)))


def is_rounded(call: Call) -> bool:
    """Return whether a result for numbers in double precision is in a narrower one."""
    return any(result.dtype != torch.float64 for result in call.results(call.arguments()))


def is_flat(call: Call) -> bool:
    """Return whether the gradients and the differences of a call are 0 for several draws.

    Those of ``round`` are. A gradient of 0 where there are differences is a fault, and cells show
    it.
    """
    return not any(_has_slope(call, seed) for seed in _SEEDS)


def _has_slope(call: Call, seed: int) -> bool:
    """Return whether a gradient of a draw is not 0, or the results move with the leaves."""
    arguments = call.arguments(seed=seed)
    if any(bool(gradient.any()) for gradient in call.gradients(arguments)):
        return True

    def moved(by: float) -> list[Tensor]:
        def move(value: Any) -> Any:
            return value.detach() + by if _is_leaf(value) else value

        return call.results(pytree.tree_map(move, arguments))

    try:
        return not all(map(torch.equal, moved(_STEP), moved(-_STEP)))
    except Exception:  # whatever the function raises outside of its domain
        return True


def is_step(call: Call) -> bool:
    """Return whether the results do not move with a leaf that has a gradient, for several draws.

    A straight-through estimate is such a gradient, and so is a surrogate of a spike.
    """
    places = range(len(_leaves(call.arguments())))
    return any(all(_is_step_of(call, seed, place) for seed in _SEEDS) for place in places)


def _is_step_of(call: Call, seed: int, place: int) -> bool:
    """Return whether a leaf of a draw has a gradient, and its moves change no bit of a result."""
    arguments = call.arguments(seed=seed)
    leaf = _leaves(arguments)[place]
    before = call.results(arguments)
    with_history = [result for result in before if result.requires_grad]
    if not with_history:
        return False
    (gradient,) = torch.autograd.grad(_weighted_sum(with_history), [leaf], allow_unused=True)
    if gradient is None or not bool(gradient.any()):
        return False

    def moved(by: float) -> list[Tensor]:
        def move(value: Any) -> Any:
            return value.detach() + by if value is leaf else value

        return call.results(pytree.tree_map(move, arguments))

    try:
        return all(map(torch.equal, moved(_SMALL_STEP), moved(-_SMALL_STEP)))
    except Exception:  # whatever the function raises outside of its domain
        return False


def run_under_autocast(call: Call) -> None:
    """Run the call in single precision under autocast to bfloat16.

    Raises the error of the call if it does not work under autocast.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        call.results(call.arguments("float32"))


def capture(call: Call) -> None:
    """Capture the call ahead of time. Raises the error of the capture if there is one."""
    flat, structure = pytree.tree_flatten(call.arguments())
    places = [index for index, each in enumerate(flat) if _is_tensor(each)]
    function = _function_of_places(call, flat, structure, places)

    # The import takes a second, and few commands need it.
    from functorch.compile import aot_function, nop

    from gen.torch_private.compilers import outside_tensors_as_constants

    with outside_tensors_as_constants():
        aot_function(function, nop)(*(flat[index] for index in places))


def writes_to_buffers(call: Call) -> bool:
    """Return whether a call of a module writes to one of its buffers in place."""
    return isinstance(call.function, ModuleCall) and call.function.writes(call.arguments())


def push_forward(call: Call) -> None:
    """Run the call on dual tensors. Raises the error of the call if it takes none."""
    with forward_ad.dual_level():
        call.results(pytree.tree_map(_dual, call.arguments()))


def _dual(value: Any) -> Any:
    """Return a leaf with a tangent of ones, and anything else as it is."""
    if not _is_leaf(value):
        return value
    return forward_ad.make_dual(value.detach(), torch.ones_like(value))


def differentiate_twice(call: Call) -> None:
    """Differentiate the gradients. Raises the error of the second pass if there is one.

    A gradient without a history is no error here. It may be wrong, and then a cell shows it.
    """
    arguments = call.arguments()
    gradients = call.gradients(arguments, create_graph=True)
    with_history = [each for each in gradients if each.requires_grad]
    if not with_history:
        return
    total = torch.stack([(each * each).sum().double() for each in with_history]).sum()
    torch.autograd.grad(total, _leaves(arguments), allow_unused=True)


def pull_back(call: Call) -> None:
    """Call torch.func.vjp. Raises its error if it refuses the function."""
    arguments = call.arguments()
    flat, structure = pytree.tree_flatten(arguments)
    places = [index for index, each in enumerate(flat) if _is_leaf(each)]
    function = _function_of_places(call, flat, structure, places)
    leaves = [each.detach() for each in _leaves(arguments)]
    results, pull = torch.func.vjp(function, *leaves)[:2]
    pull(tuple(map(torch.ones_like, results)))


def batch(call: Call) -> None:
    """Call torch.vmap over each tensor alone, and over all of them.

    Raises its error if it refuses the function.
    """
    flat, structure = pytree.tree_flatten(call.arguments())
    places = [index for index, each in enumerate(flat) if _is_tensor(each)]
    alone = [[place] for place in places]
    for chosen in (*alone, places):
        _batch_over(call, flat, structure, chosen)


def _batch_over(call: Call, flat: Sequence[Any], structure: Any, places: Sequence[int]) -> None:
    """Call torch.vmap over the tensors at some places."""
    batches = []
    for place in places:
        value = flat[place].detach()
        batches.append(torch.stack([value, value]))
    function = _function_of_places(call, flat, structure, places)
    # With torch's default, vmap refuses each op that draws.
    torch.vmap(function, randomness="different")(*batches)


def _function_of_places(
    call: Call, flat: Sequence[Any], structure: Any, places: Sequence[int]
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the call as a function of the flat arguments at `places`. The others are fixed.

    The function returns the floating results, which are all that transforms can differentiate.
    """

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        mixed = list(flat)
        for place, value in zip(places, values, strict=True):
            mixed[place] = value
        return tuple(_floating(call.run(pytree.tree_unflatten(mixed, structure))))

    return function


class OnCopies:
    """Call an op that writes to its arguments on copies of them.

        add = OnCopies(torch.ops.aten.add_.Tensor)
        add(x, y)                        # x + y, and x is as it was

    So the op has derivatives, and a second call has the same arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Return the results of the op. An op without results gives the tensors that it had."""
        arguments, keywords = pytree.tree_map(_copy, (arguments, keywords))
        results = self._function(*arguments, **keywords)
        if any(map(_is_tensor, pytree.tree_leaves(results))):
            return results
        return tuple(filter(_is_tensor, pytree.tree_leaves((arguments, keywords))))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


class ModuleCall:
    """Call a module in evaluation mode as a function of its inputs and parameters.

        linear = ModuleCall(lambda: torch.nn.Linear(3, 2))
        linear.shapes                    # [[2, 3], [2]]
        linear(x, weight, bias)

    So a row of the matrix tests the derivatives by the parameters too.
    """

    def __init__(self, make: Callable[[], torch.nn.Module]) -> None:
        self._make = make
        # functional_call puts parameters into its module, so each thread and dtype has a module.
        self._modules: dict[tuple[int, torch.dtype], torch.nn.Module] = {}
        template = make()
        self.names = [name for name, _ in template.named_parameters()]
        self.shapes = [list(parameter.shape) for parameter in template.parameters()]

    def __call__(self, *arguments: Any) -> Any:
        """Return the results of the module for inputs and parameters."""
        return self._run(arguments)[0]

    def writes(self, arguments: Sequence[Any]) -> bool:
        """Return whether a call writes to a buffer in place."""
        return any(buffer._version for buffer in self._run(arguments)[1])

    def _run(self, arguments: Sequence[Any]) -> tuple[Any, list[Tensor]]:
        """Return the results of the module, and the buffers that it had."""
        cut = len(arguments) - len(self.names)
        parameters = dict(zip(self.names, arguments[cut:], strict=True))
        tensors = list(filter(_is_tensor, arguments))
        dtype = next(each.dtype for each in tensors if each.is_floating_point())
        module = self._module(dtype)
        # A call may write to a buffer, and the next call must not see that.
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        results = functional_call(module, buffers | parameters, tuple(arguments[:cut]))
        return results, list(buffers.values())

    def _module(self, dtype: torch.dtype) -> torch.nn.Module:
        """Return the module of this thread whose buffers have this dtype.

        A buffer that the constructor draws has the same numbers in each module.
        """
        key = threading.get_ident(), dtype
        if key not in self._modules:
            # Each module draws its buffers from the same seed.
            with _DRAWING, torch.random.fork_rng(devices=()):
                torch.random.manual_seed(0)
                self._modules[key] = self._make().to(dtype).eval()
        return self._modules[key]


# --- calls of Functions by others of the package --------------------------------------------------


def inner_calls(call: Call, functions: Mapping[str, Any]) -> dict[str, Sample]:
    """Run a call, and return a sample of the first call of each Function that it reaches.

    `functions` are the Functions to watch, by name. Guessed arguments of a Function often mean
    nothing, but its callers pass meaningful ones.
    """
    arguments = call.arguments()
    # Arguments are known by identity, since a package often passes one on as it is.
    outer = {}
    for argument, described in zip(arguments, call.described, strict=True):
        if _is_tensor(argument):
            outer[id(argument)] = described
    noted: dict[str, Sample] = {}

    def note(name: str, values: Sequence[Any]) -> None:
        with contextlib.suppress(NoDescriptionError):
            noted.setdefault(name, _sample_inside(values, outer))

    with contextlib.ExitStack() as watched:
        for name, function in functions.items():
            watched.enter_context(_watched(name, function, note))
        call.results(arguments)
    return noted


def _sample_inside(values: Sequence[Any], outer: Mapping[int, Any]) -> Sample:
    """Return the sample of a call. An argument of the outer call is described as it is there."""
    sample = describe_call(values, {})
    sample["args"] = [
        outer.get(id(value), described)
        for value, described in zip(values, sample["args"], strict=True)
    ]
    return sample


@contextlib.contextmanager
def _watched(
    name: str, function: Any, note: Callable[[str, Sequence[Any]], None]
) -> Iterator[None]:
    """Note each call of a Function inside the block.

    A package may have taken ``apply`` from the class before, so ``forward`` is watched.
    """
    forward = vars(function).get("forward")
    # An inherited `forward` belongs to another class, which may be watched itself.
    if forward is None:
        yield
        return
    run = function.forward
    # Without a `setup_context` of its own, `forward` gets `ctx` first.
    begin = int(function.setup_context is torch.autograd.Function.setup_context)

    def noting(*args: Any, **kwargs: Any) -> Any:
        note(name, args[begin:])
        return run(*args, **kwargs)

    function.forward = staticmethod(noting)
    try:
        yield
    finally:
        function.forward = forward
