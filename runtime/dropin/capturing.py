"""Serve ``torch.jit.trace``, ``torch.export`` and ONNX export under the drop-in: torch captures
the program while the drop-in is suspended.

The captured program works on tensors of the session. Its parameters are those of the
original module.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from os import PathLike
from typing import IO, Any

import torch
import torch._inductor
import torch.export
import torch.onnx
from torch.export.pt2_archive._package import AOTICompiledModel

from ..session.tensor import Tensor, unwrap, wrap
from ..torch_private.pytrees import pytree
from .patches import Patches
from .stepping_aside import (
    Exchange,
    RefuseSession,
    ScriptAttributes,
    aside,
    ours_unless_aside,
)

_export, _load = torch.export.export, torch.export.load
_SCRIPT_MODULES = (torch.jit._script.ScriptModule, torch.jit._script.RecursiveScriptModule)
_WRITERS = {
    "save",
    "save_to_buffer",
    "_save_for_lite_interpreter",
    "_save_to_buffer_for_lite_interpreter",
}
_ExportedProgram: Any = torch.export.ExportedProgram


def _jit(capture: Callable[..., object], patches: Patches, name: str) -> Callable[..., object]:
    """Return ``torch.jit.trace`` or ``torch.jit.trace_module`` for programs of the session. The
    first argument is the program."""

    def trace(program: object, *args: object, **kwargs: object) -> object:
        """Let torch trace the program on plain tensors, and return it with those of the session."""
        exchange = Exchange()
        args, kwargs = exchange.plain_tree(args), exchange.plain_tree(kwargs)
        with aside(patches), exchange.lent(program), RefuseSession(name):
            scripted = capture(program, *args, **kwargs)
        if isinstance(scripted, torch.nn.Module):
            _give_parameters(scripted, exchange)
        return scripted

    return trace


def _give_parameters(scripted: Any, exchange: Exchange) -> None:
    """Give a module of TorchScript the parameters of the original one, so that computations with
    them are recorded. One that was loaded gets parameters of the session."""
    for module in scripted.modules():
        attributes = ScriptAttributes(module)
        for name, value in attributes.items():
            attributes[name] = exchange.session(value)


def _wrap_freeze(freeze: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return ``torch.jit.freeze`` or ``torch.jit.optimize_for_inference``, which make constants of
    the parameters. A constant is a plain tensor, and requires no grad."""

    def freeze_module(module: object, *args: object, **kwargs: object) -> object:
        exchange = Exchange()
        with aside(patches), exchange.lent(module):
            scripted = freeze(module, *args, **kwargs)
        _give_parameters(scripted, exchange)
        return scripted

    return freeze_module


def _wrap_load(load: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return ``torch.jit.load`` with parameters of the session in the loaded modules."""

    def load_module(*args: object, **kwargs: object) -> object:
        with aside(patches):
            scripted = load(*args, **kwargs)
        _give_parameters(scripted, Exchange())
        return scripted

    return load_module


def _wrap_save(save: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return a method of a module of TorchScript that writes it. Torch writes below Python which
    tensors require grad, and finds that on plain ones only."""

    @functools.wraps(save)
    def save_module(module: object, *args: object, **kwargs: object) -> object:
        with aside(patches), Exchange().lent(module):
            return save(module, *args, **kwargs)

    return save_module


def _onnx(capture: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return ``torch.onnx.export`` for programs of the session. It writes a file and returns no
    program, so there are no tensors to exchange back."""

    def export(model: object, *args: object, **kwargs: object) -> object:
        exchange = Exchange()
        with aside(patches), exchange.lent(model):
            return capture(model, *exchange.plain_tree(args), **exchange.plain_tree(kwargs))

    return export


def _package_call(run: Callable[..., object]) -> Callable[..., object]:
    """Return the call of a compiled program that was loaded from a file: a library, which takes
    and returns plain tensors."""

    @functools.wraps(run)
    def call(model: object, *args: object, **kwargs: object) -> object:
        args, kwargs = pytree.tree_map_only(Tensor, unwrap, (args, kwargs))
        return pytree.tree_map_only(torch.Tensor, wrap, run(model, *args, **kwargs))

    return call


class Programs:
    """``ExportedProgram`` under the drop-in. Torch's own methods see plain tensors, all other code
    sees those of the session."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        # weak: a program that nobody uses must not keep two sets of tensors
        self._exchanges: weakref.WeakKeyDictionary[object, Exchange] = weakref.WeakKeyDictionary()

    def _receive(self, program: object, exchange: Exchange) -> object:
        """Turn the tensors of a program that torch has just captured into those of the session."""
        self._exchanges[program] = exchange
        self._turn(program, exchange.session_tree)
        return program

    @staticmethod
    def _turn(program: Any, turn: Callable[[Any], object]) -> None:
        """Replace each tensor of ``program`` by ``turn`` of it."""
        for names in (program._state_dict, program._constants):
            for name, value in list(names.items()):
                names[name] = turn(value)
        program._example_inputs = turn(program._example_inputs)

    def _call_on_plain(self, program: object, call: Callable[[], object]) -> Any:
        """Return ``call()`` while the drop-in is suspended and ``program`` has plain tensors."""
        # a program that torch has made by itself has no entry yet
        exchange = self._exchanges.setdefault(program, Exchange())
        with aside(self._patches):
            self._turn(program, exchange.plain_tree)
            try:
                return call()
            finally:
                self._turn(program, exchange.session_tree)

    def exporter(self, theirs: Callable[..., object]) -> Callable[..., object]:
        """Return ``theirs``, which is ``torch.export.export`` or another function with its
        arguments that returns an ``ExportedProgram``, for programs of the session."""

        def export(mod: object, args: object, kwargs: object = None, **options: object) -> object:
            exchange = Exchange()
            with aside(self._patches), exchange.lent(mod):
                program = theirs(
                    mod, exchange.plain_tree(args), exchange.plain_tree(kwargs), **options
                )
            return self._receive(program, exchange)

        return export

    def packager(self, theirs: Callable[..., object]) -> Callable[..., object]:
        """Return ``aoti_compile_and_package``, which compiles a program to a file, for programs of
        the session."""

        def package(exported_program: object, *args: object, **options: object) -> object:
            return self._call_on_plain(
                exported_program, lambda: theirs(exported_program, *args, **options)
            )

        return package

    def load(self, f: str | PathLike[str] | IO[bytes], **options: Any) -> object:
        """Return ``torch.export.load(f, **options)`` with tensors of the session."""
        with aside(self._patches):
            program = _load(f, **options)
        return self._receive(program, Exchange())

    def patch(self, lasting: Patches) -> None:
        """Replace the methods of ``ExportedProgram`` that compute with its tensors."""
        original_module, original_decompositions = (
            _ExportedProgram.module,
            _ExportedProgram.run_decompositions,
        )

        def module(program: object, *args: object, **kwargs: object) -> object:
            result = self._call_on_plain(program, lambda: original_module(program, *args, **kwargs))
            # the module was built of plain tensors
            self._exchanges[program].session_module(result)
            return result

        def run_decompositions(program: object, *args: object, **kwargs: object) -> object:
            """Decompose on plain tensors. The new program shares them, and so their table."""
            exchange = self._exchanges.setdefault(program, Exchange())
            return self._receive(
                self._call_on_plain(
                    program, lambda: original_decompositions(program, *args, **kwargs)
                ),
                exchange,
            )

        lasting.set(AOTICompiledModel, "__call__", _package_call(AOTICompiledModel.__call__))
        lasting.set(_ExportedProgram, "module", ours_unless_aside(original_module, module))
        lasting.set(
            _ExportedProgram,
            "run_decompositions",
            ours_unless_aside(original_decompositions, run_decompositions),
        )


def captures(patches: Patches, lasting: Patches) -> dict[int, tuple[object, object]]:
    """Return ``{id of a function of torch that captures programs: (function, ours)}``.

    ``lasting`` is not suspended when ``patches`` are. If a thread starts a capture during that of
    another thread, it calls our function, which waits.
    """
    # methods of torch's classes, and then functions, which are replaced wherever they are bound
    programs = Programs(patches)
    programs.patch(lasting)
    for kind in _SCRIPT_MODULES:
        for name in vars(kind).keys() & _WRITERS:
            lasting.set(kind, name, _wrap_save(getattr(kind, name), patches))
    pairs: list[tuple[Callable[..., object], Callable[..., object]]] = [
        (torch.jit.trace, _jit(torch.jit.trace, patches, "torch.jit.trace")),
        (torch.jit.trace_module, _jit(torch.jit.trace_module, patches, "torch.jit.trace_module")),
        (torch.jit.freeze, _wrap_freeze(torch.jit.freeze, patches)),
        (torch.jit.optimize_for_inference, _wrap_freeze(torch.jit.optimize_for_inference, patches)),
        (torch.jit.load, _wrap_load(torch.jit.load, patches)),
        (torch.onnx.export, _onnx(torch.onnx.export, patches)),
        (_export, programs.exporter(_export)),
        (torch.export.draft_export, programs.exporter(torch.export.draft_export)),
        (
            torch._inductor.aoti_compile_and_package,
            programs.packager(torch._inductor.aoti_compile_and_package),
        ),
        (_load, programs.load),
    ]
    return {id(theirs): (theirs, ours_unless_aside(theirs, ours)) for theirs, ours in pairs}
