"""Compile functions ahead of time: capture, cut and compile one program for each kind of call.

f = aot_function(lambda x: x.sin(), nop)
f(torch.ones(2))        # captures a program for two floats
f(torch.zeros(2))       # runs it
f(torch.ones(3))        # captures another one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch

from ...seam.scope import SCOPE
from ...seam.transforms_of_torch import transform_of_torch
from ...tape.running import STAND_INS, current_dual
from ...tape.saved import HOOKS
from ...torch_private.dispatcher import OpOverload
from ...torch_private.global_settings import (
    is_autocast_enabled,
    keeps_parametrized_weights,
    without_autocast,
)
from ...torch_private.mode_stacks import (
    all_handlers_enabled,
    number_of_dispatch_modes,
    number_of_function_modes,
    unseen_by_classes,
)
from ...torch_private.pytrees import pytree
from ...trace.error_lines import naming_line
from ..cache.cuts import Cache
from ..capture.global_state import mode_of_caller, surroundings
from ..capture.tree_structure import structure_of
from ..compilers.boxed import Compiler
from ..compilers.graph_names import named_compilers
from ..partition.partitions import Partition, default_partition
from ..python_state.closed_over import modules_of
from .arguments import Call, Kind, enter, flags_of, flatten
from .compiled_program import CompiledProgram
from .identities import MetOutside
from .known_programs import Finder, Programs
from .recipe import Recipe

# global names, as each call would pay for a look-up in a module
_hooks_of_caller = HOOKS.innermost
_grad_enabled, _inference = torch.is_grad_enabled, torch.is_inference_mode_enabled


def aot_function(
    fn: Callable[..., object],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Partition = default_partition,
    decompositions: Mapping[OpOverload, Callable[..., object]] | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    enable_log: bool = True,
    disable_functionalization: bool = False,
    keep_primals: bool = True,
    cache: Cache | None = None,
    ignore: Sequence[object] = (),
) -> Callable[..., Any]:
    """Compile ``fn`` ahead of time: a forward and a backward graph, each by its own compiler.

    Return a function with the signature of ``fn``.

    >>> f = aot_function(lambda x: (x * x).sum(), nop)
    >>> x = runtime.tensor([1.0, 2.0], requires_grad=True)
    >>> f(x).backward()
    >>> x.grad
    tensor([2., 4.])

    A program is traced once for each kind of arguments (shapes, strides, dtypes, devices, which
    require grad, and all that is not a tensor), each mode of the modules that it calls, and each
    state of torch's that it may ask for (grad and inference mode, autocast, default dtype and
    device, deterministic algorithms). With ``dynamic`` it is traced once for all sizes for which
    the same graph is right. A number that changes from call to call is traced once more, for all
    values for which the same graph is right.

    What ``fn`` does at its boundary happens as without the compiler: writes to arguments and to
    closed-over tensors, changes of their geometry, results that are arguments or views, random
    draws. Results are ``runtime.Tensor`` where a gradient flows through them. Inside a transform, a
    mode or a dual level of ``forward_ad`` ``fn`` itself runs.

    ``num_params_buffers``: how many leading arguments stay alive in any case, so that min cut saves
    them for nothing. ``keep_primals``: whether a call keeps arguments and random numbers that only
    a second derivative needs. ``cache``: a folder that stores the choices of ``partition_fn`` for
    later processes; without it the one that the environment variable ``RUNTIME_AOT_CACHE``
    names, if any. ``ignore``: objects that calls neither compare nor change: what ``fn`` does to
    them happens when it is captured, and its graphs keep what it has read there.
    The graphs never write to anything, so ``keep_inference_input_mutations`` and
    ``disable_functionalization`` change nothing; they and ``enable_log`` are there for torch's
    callers. ``RuntimeError`` for arguments that share memory where a write cannot be carried over,
    for control flow by the values of tensors, and for sizes that depend on values.
    """
    compilers = named_compilers(
        fw_compiler, bw_compiler or fw_compiler, inference_compiler or fw_compiler
    )
    recipe = Recipe(
        fn=fn,
        again=function_of,
        compilers=compilers,
        modules=modules_of(fn),
        partition=partition_fn,
        decompositions=decompositions,
        num_params_buffers=num_params_buffers,
        dynamic=dynamic,
        keep_primals=keep_primals,
        cache=cache,
        ignore=tuple(ignore),
    )
    compiled = wraps(fn)(function_of(recipe))
    compiled.recipe = recipe  # type: ignore[attr-defined]  # for `explain`
    return compiled


def function_of(recipe: Recipe, programs: Finder | None = None) -> Callable[..., Any]:
    """Return the function that captures and runs the programs of ``recipe``.

    ``programs``: finds them; None for a new :class:`Programs`.
    """
    fn, modules = recipe.fn, recipe.modules
    # a backward pass in a program of jit would not call hooks for what is saved
    may_save = recipe.retries
    programs = programs or Programs(recipe)

    def compiled(*args: object, **kwargs: object) -> object:
        """Run the program for these arguments, or ``fn`` itself where others see its calls."""
        leaves, spec = flatten(args, kwargs)
        recording, autocast = _grad_enabled(), is_autocast_enabled()
        # others would see the calls of the graph, which are not those of `fn`
        if _is_seen(may_save):
            return fn(*args, **kwargs)
        flags = () if recording else flags_of(leaves)
        around = (
            None if spec is None else structure_of(spec),
            surroundings(recording, autocast),
            tuple([module.training for module in modules]) if modules else None,
            flags,
        )
        # the guards of the last programs first, and a look-up if none of them takes the call
        for take, recent in programs.recent.get(around, ()):
            call = take(leaves)
            if call is not None:
                program = recent
                break
        else:
            with unseen_by_classes(), naming_line():
                program_and_call = _find(recipe, programs, around, spec, leaves)
            if program_and_call is None:
                return fn(*args, **kwargs)
            program, call = program_and_call
        if not autocast:
            return program(call)
        # the graph has the casts of autocast already
        with without_autocast():
            return program(call)

    return compiled


def _is_seen(may_save: bool) -> bool:
    """Return whether a transform, a mode or a dual level sees the calls of the program, or a class
    that would see them does not. Hooks for saved tensors see a backward pass in it, if it
    ``may_save``."""
    if SCOPE.levels or number_of_dispatch_modes() or transform_of_torch():
        return True
    if number_of_function_modes() and mode_of_caller() is not None:
        return True
    if may_save and _hooks_of_caller() is not None:
        return True
    return not all_handlers_enabled() or bool(STAND_INS and current_dual() is not None)


def _find(
    recipe: Recipe,
    programs: Finder,
    around: Kind,
    spec: pytree.TreeSpec | None,
    leaves: Sequence[object],
) -> tuple[CompiledProgram, Call] | None:
    """Return the program for a call with these ``leaves``, and what it takes.

    None if one of them is a value of a transform, or if the caller lets torch keep the weights that
    layers compute, which would be values of the trace.
    """
    if keeps_parametrized_weights():
        return None
    # a program may reach an argument by itself too; the call begins again with that one marked
    while True:
        marked = recipe.outside.marked(leaves)
        entered = enter(marked, _grad_enabled() or not _inference(), recipe.dynamic)
        if entered is None:
            return None
        entered.given = marked
        entered.flags = () if _grad_enabled() else flags_of(marked)
        try:
            return programs.find(around, spec, marked, entered)
        except MetOutside as met:
            recipe.outside.learn(met.tensors)
