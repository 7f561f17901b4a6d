"""Compile one program now, for example arguments, as a backend of ``torch.compile`` does.

    def backend(module, examples):
        return aot_module_simplified(module, examples, compiler)

Parameters and buffers of the module become leading inputs of the graphs. The result takes the other
arguments alone.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from ...func.functional_call import functional_call
from ...seam.scope import SCOPE
from ...seam.transforms_of_torch import transform_of_torch
from ...session.tensor import unwrap
from ...tape.running import current_dual
from ...torch_private.dispatcher import OpOverload
from ...torch_private.fake_tensors import FakeTensor, FakeTensorMode
from ...torch_private.global_settings import is_autocast_enabled, without_autocast
from ...torch_private.mode_stacks import number_of_dispatch_modes
from ...trace.error_lines import naming_line
from ...trace.symbols import SYMBOLIC, Given
from ..cache.cuts import Cache
from ..capture.aliasing import Group, sharing
from ..capture.global_state import surroundings
from ..capture.subclass_parts import flattened, key_of, layout_of
from ..compilers.boxed import Compiler
from ..compilers.graph_names import named_compilers
from ..partition.partitions import Partition, default_partition
from ..python_state.closed_over import modules_of
from .arguments import Call, Kind, enter
from .compiled_function import function_of
from .program_capture import capture
from .recipe import Recipe


def state_of(mod: torch.nn.Module) -> tuple[dict[str, torch.nn.Parameter], dict[str, torch.Tensor]]:
    """Return parameters and buffers of ``mod`` by name, a shared one under each of its names."""
    parameters = dict(mod.named_parameters(remove_duplicate=False))
    buffers = dict(mod.named_buffers(remove_duplicate=False))
    return parameters, buffers


def of_state(mod: torch.nn.Module, names: Sequence[str]) -> Callable[..., object]:
    """Return ``mod`` as a function of the tensors of these names, then of its arguments."""

    def lifted(*values: torch.Tensor, **kwargs: object) -> object:
        """Call ``mod`` with the first of ``values`` in place of its parameters and buffers."""
        state = dict(zip(names, values, strict=False))
        return functional_call(mod, state, tuple(values[len(names) :]), kwargs, tie_weights=False)

    return lifted


def plain(value: object) -> Any:
    """Return the plain tensor inside a tensor of the session, and anything else as it is."""
    if isinstance(value, torch.Tensor):
        return unwrap(value)
    return value


def fake_mode_of(leaves: Sequence[object]) -> FakeTensorMode | None:
    """Return the fake mode of the fake tensors among ``leaves``; None if there are none."""
    modes: dict[int, FakeTensorMode] = {}
    for leaf in leaves:
        for part in flattened(plain(leaf)):
            if isinstance(part, FakeTensor):
                modes[id(part.fake_mode)] = part.fake_mode
    if len(modes) > 1:
        raise AssertionError(
            "the arguments are fake tensors of different fake modes; make them with one mode"
        )
    return next(iter(modes.values()), None)


def refuse_fake_state(state: Mapping[str, torch.Tensor], arguments: Sequence[object]) -> None:
    """Refuse a module of fake parameters: there is nothing to run it on."""
    mode = fake_mode_of(arguments)
    for name, tensor in state.items():
        if any(
            isinstance(part, FakeTensor) and part.fake_mode is not mode
            for part in flattened(plain(tensor))
        ):
            raise AssertionError(
                f"Unexpected fake parameter or buffer {name!r}. "
                "Make the module outside of the fake mode."
            )


@naming_line()
def aot_module_simplified(
    mod: torch.nn.Module,
    args: Sequence[object],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partition = default_partition,
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    compiler_config_extra: object = None,
    ignore_shape_env: bool = False,
    disable_functionalization: bool = False,
    pre_grad_passes: Callable[[fx.GraphModule, Sequence[Any]], fx.GraphModule] | None = None,
    compile_region_name: str | None = None,
    cache: Cache | None = None,
) -> Callable[..., Any]:
    """Compile ``mod`` now, for arguments like ``args``, and return a function of such arguments.

    The function runs on the parameters and buffers of ``mod``.

    >>> class Doubled(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (2 * x,)
    >>> run = aot_module_simplified(Doubled(), (torch.ones(2),), nop)
    >>> run(torch.tensor([1.0, 2.0]))
    (tensor([2., 4.]),)

    ``forward`` returns a tuple or a list. ``args`` may be fake tensors, of symbolic sizes too. What
    the program requires of the sizes is then a guard of the shape environment of their mode.
    ``pre_grad_passes``: changes a ``GraphModule`` before the trace. The compilers, ``partition_fn``
    and ``cache`` are those of ``aot_function``. There is one program, so an argument of another
    kind than its example is an ``AssertionError``. An example that requires grad stands for
    arguments that do not as well.

    ``keep_inference_input_mutations``, ``disable_functionalization``,
    ``compiler_config_extra``, ``ignore_shape_env`` and ``compile_region_name`` are there for
    torch's callers and change nothing.
    """
    if pre_grad_passes is not None and isinstance(mod, fx.GraphModule):
        mod = pre_grad_passes(mod, args)
    params, buffers = state_of(mod)
    state = {**params, **buffers}
    refuse_fake_state(state, args)
    compilers = named_compilers(
        fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    )
    recipe = Recipe(
        fn=_require_tuple(of_state(mod, list(state))),
        again=function_of,
        compilers=compilers,
        modules=modules_of(mod),
        partition=partition_fn,
        decompositions=decompositions,
        num_params_buffers=len(state),
        cache=cache,
        single=True,
    )
    run = OneProgram(recipe, list(state), list(state.values()), args, mod)

    def forward(*arguments: object) -> object:
        """Run the program on the parameters and buffers of ``mod`` and these arguments."""
        return run(arguments)

    forward.zero_grad = mod.zero_grad  # type: ignore[attr-defined]
    forward.named_parameters = mod.named_parameters  # type: ignore[attr-defined]
    forward.named_buffers = mod.named_buffers  # type: ignore[attr-defined]
    return forward


def _require_tuple(function: Callable[..., object]) -> Callable[..., object]:
    """Return ``function``, with a ``RuntimeError`` if it returns no tuple and no list."""

    def checked(*args: object) -> object:
        """Call ``function``, and refuse results that are neither a tuple nor a list."""
        out = function(*args)
        if not isinstance(out, (tuple, list)):
            raise RuntimeError(
                "aot_module_simplified takes modules whose forward returns a tuple or a list, "
                f"not {type(out).__name__}. Return (x,) instead of x, or use aot_module."
            )
        return out

    return checked


class OneProgram:
    """Run the one program that is compiled of a module, and refuse calls of another kind."""

    def __init__(
        self,
        recipe: Recipe,
        names: Sequence[str],
        state: Sequence[object],
        args: Sequence[object],
        mod: torch.nn.Module,
    ) -> None:
        """Compile ``mod`` for ``args``. ``names`` and ``state``: its parameters and buffers."""
        self.names, self.state, self.mod = names, state, mod
        leaves = [*state, *args]
        mode = fake_mode_of(leaves)
        self.dynamic = mode is not None or any(isinstance(value, SYMBOLIC) for value in leaves)
        recording = torch.is_grad_enabled()
        entered = _enter_examples(leaves, recording, self.dynamic)
        self.modules = recipe.modules
        # the settings of the compilation, as guards of all calls
        self.flags = [module.training for module in self.modules]
        self.surroundings = surroundings(True, is_autocast_enabled())
        # the sizes of fake tensors are symbols of the shape environment of their mode
        abstraction = None
        if mode is not None:
            abstraction = Given(mode)
        self.program = capture(recipe, None, entered, recording, abstraction)
        _refuse_fakes(self.program.joint.closed_over)
        self.wanted = entered.wanted
        self.expected: list[object] = []
        if self.dynamic:  # after the trace, which may fix sizes
            self.expected = list(map(_expectation, entered.plain))
        self.kinds = entered.kinds

    def __call__(self, arguments: Sequence[object]) -> object:
        """Return the results of the program. ``AssertionError`` for another kind of arguments."""
        recording, autocast = torch.is_grad_enabled(), is_autocast_enabled()
        leaves = [*self.state, *arguments]
        # a transform, a mode or a dual level sees the calls of the program
        if (
            SCOPE.levels
            or number_of_dispatch_modes()
            or transform_of_torch()
            or current_dual() is not None
        ):
            return self.mod(*arguments)
        entered = enter(leaves, recording, self.dynamic)
        # a value of a transform that is over
        if entered is None:
            return self.mod(*arguments)
        self._check_settings(autocast)
        self._check_arguments(entered)
        call = self.program.guard.takes(self._align(entered), recording)
        if call is None:
            raise AssertionError(self._why_not_taken(entered))
        if not autocast:
            return self.program(call)
        with without_autocast():
            return self.program(call)

    def _align(self, call: Call) -> Call:
        """Return ``call`` with a target, or None, for each gradient that the program returns.

        An argument that does not require grad may have an example that does.
        """
        wanted = call.wanted
        if wanted == self.wanted or not call.targets:
            return call
        targets = iter(call.targets)
        by_leaf = [next(targets) if is_wanted else None for is_wanted in wanted]
        # from here on a kind only says whether a gradient is wanted
        kinds: list[Kind] = [(is_wanted,) for is_wanted in self.wanted]
        of_program = list(itertools.compress(by_leaf, self.wanted))
        return dataclasses.replace(call, targets=of_program, kinds=kinds)

    def _check_settings(self, autocast: bool) -> None:
        """Refuse a call in other modes than those of the compilation."""
        if self.modules and [module.training for module in self.modules] != self.flags:
            raise AssertionError(
                "a module is in another mode than at compilation time. "
                "Compile it again after train() or eval()."
            )
        if surroundings(True, autocast) != self.surroundings:
            raise AssertionError(
                "the default dtype, autocast or another mode of torch is not what it "
                "was at compilation time."
            )

    def _check_arguments(self, call: Call) -> None:
        """Refuse arguments that are not like their examples."""
        if len(call.plain) != len(self.wanted):
            raise TypeError(
                f"the compiled module takes {len(self.wanted) - len(self.state)} arguments, "
                f"not {len(call.plain) - len(self.state)}"
            )
        for index, (kind, example) in enumerate(zip(call.kinds, self.kinds, strict=True)):
            # the graph has no gradient for it; the other way round it computes one for nothing
            if kind[0] and not example[0]:
                raise AssertionError(
                    f"at compilation time {self._name(index)} did not require grad, and now "
                    "it does. "
                    "Compile with one that does."
                )
            if self.dynamic:
                if not _matches(call.plain[index], self.expected[index]):
                    raise AssertionError(
                        f"{self._name(index)} is not like its example: "
                        f"{_describe(call.plain[index])}"
                    )
            elif kind[1:] != example[1:]:
                raise AssertionError(
                    f"{self._name(index)} is of another kind than at compilation time: "
                    f"{_describe(call.plain[index])}. Compile the module for it, or use "
                    "aot_module, "
                    "which compiles for each kind of argument."
                )

    def _why_not_taken(self, call: Call) -> str:
        """Return why the program is not right for ``call``.

        Each argument is like its example. So it is memory that they share, or Python's state.
        """
        # the memory that arguments share, if that matters to the program
        of_program = self.program.guard.sharing
        if of_program is not None:
            # tensors that the program closes over come last, and have no name in a message
            n_leaves = len(call.plain)
            before, now = _pairs(of_program, n_leaves), _pairs(sharing(call.plain), n_leaves)
            for pairs, what in (
                (now - before, "share memory, and did not at compilation time"),
                (before - now, "shared memory at compilation time, and do not now"),
            ):
                for first, second in sorted(pairs):
                    return (
                        f"{self._name(first)} and {self._name(second)} {what}. "
                        "The program writes to an argument, so its results depend on that. "
                        "Compile the module for these arguments, "
                        "or use aot_module, which compiles for each kind of arguments."
                    )
        # what the program has read of Python's objects
        moved = [what for what, _, _ in self.program.guard.moved()]
        if moved:
            return (
                f"at compilation time {', '.join(moved[:4])} was something else. "
                "Compile the module again, or use aot_module, which does."
            )
        return (
            "at compilation time the arguments and the tensors that the module closes "
            "over shared memory in another way, or the module had other tensors. "
            "Compile the module for these arguments."
        )

    def _name(self, index: int) -> str:
        """Name leaf ``index`` in a message: ``'linear.weight'`` or ``argument 0``."""
        if index < len(self.names):
            return repr(self.names[index])
        return f"argument {index - len(self.names)}"


def _pairs(groups: Sequence[Group], n_tensors: int) -> set[tuple[int, int]]:
    """Return the pairs among the first ``n_tensors`` tensors that share memory."""
    pairs: set[tuple[int, int]] = set()
    for group in groups:
        members = sorted(index for index in group.members if index < n_tensors)
        pairs.update(itertools.combinations(members, 2))
    return pairs


def _enter_examples(leaves: Sequence[object], recording: bool, abstract: bool) -> Call:
    """Return the example arguments as they enter a trace. ``RuntimeError`` for values of a
    transform."""
    if abstract:
        return _enter_fakes(leaves, recording)
    entered = enter(leaves, recording, False)
    if entered is None:
        raise RuntimeError(
            "aot_module_simplified was given values of a transform. "
            "Compile the module outside, and call it inside."
        )
    return entered


def _refuse_fakes(closed_over: Iterable[object]) -> None:
    """Refuse a module that closes over a fake tensor."""
    for tensor in closed_over:
        if any(isinstance(part, FakeTensor) for part in flattened(plain(tensor))):
            raise AssertionError(
                "Unexpected fake tensor: the module closes over one. Pass it as an argument."
            )


def _enter_fakes(leaves: Sequence[object], recording: bool) -> Call:
    """Return abstract example arguments as they enter a trace.

    Their gradients go nowhere, as nobody can ask a fake tensor for one.
    """
    wanted = [
        recording and isinstance(value, torch.Tensor) and value.requires_grad for value in leaves
    ]
    arguments = list(map(plain, leaves))
    return Call(arguments, arguments, [None] * sum(wanted), [(flag,) for flag in wanted])


def _expectation(value: object) -> object:
    """Return what an argument must have in common with its example; None for a symbol.

    Of a tensor these are its dtype, its device, those sizes that are no symbols, and the layout of
    its parts.
    """
    if isinstance(value, torch.Tensor):
        sizes = tuple(map(_fixed_size, value.shape))
        return value.dtype, value.device, sizes, key_of(layout_of(value))
    if isinstance(value, SYMBOLIC):
        return None
    return (type(value), value)


def _fixed_size(size: Any) -> int | None:
    """Return a size, or the number to which the program has fixed a symbol, or None."""
    fixed: int | None = size
    if isinstance(size, SYMBOLIC):
        fixed = size.node.maybe_as_int()
    return fixed


def _matches(value: object, expected: Any) -> bool:
    """Return whether ``value`` has what :func:`_expectation` says of its example."""
    if expected is None:
        return True
    if not isinstance(value, torch.Tensor):
        return bool(expected == (type(value), value))
    # the example may have been no tensor
    if len(expected) != 4:
        return False
    dtype, device, sizes, key = expected
    if (value.dtype, value.device, value.dim()) != (dtype, device, len(sizes)):
        return False
    if key_of(layout_of(value)) != key:
        return False
    return all(fixed in (None, size) for fixed, size in zip(sizes, value.shape, strict=True))


def _describe(value: object) -> str:
    """Describe an argument in a message: ``a tensor of torch.float32, shape [2], …``."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    what = str(layout_of(value) or "tensor")
    return (
        f"a {what} of {value.dtype}, shape {list(value.shape)}, strides "
        f"{list(value.stride())} on {value.device}"
    )
