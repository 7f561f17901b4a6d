"""``torch.jit.trace``, ``torch.export`` and ONNX export under the drop-in: torch captures the
program while the drop-in stands aside.

The captured program works on tensors of the session. Its parameters are those of the
original module.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

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
    """``torch.jit.trace`` or ``torch.jit.trace_module``. The first argument is the program."""

    def traced(program: object, *args: object, **kwargs: object) -> Any:
        exchange = Exchange()
        args, kwargs = exchange.plain_tree(args), exchange.plain_tree(kwargs)
        with aside(patches), exchange.lent(program), RefuseSession(name):
            made = capture(program, *args, **kwargs)
        if isinstance(made, torch.nn.Module):
            _give_parameters(made, exchange)
        return made

    return traced


def _give_parameters(scripted: Any, exchange: Exchange) -> None:
    """Give a module of TorchScript the parameters of the original one, so that computations with
    them are recorded. One that was loaded gets parameters of the session."""
    for module in scripted.modules():
        attributes = ScriptAttributes(module)
        for name, value in attributes.items():
            attributes[name] = exchange.session(value)


def _frozen(freeze: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """``torch.jit.freeze`` or ``torch.jit.optimize_for_inference``, which make constants of the
    parameters. A constant is a plain tensor, and requires no grad."""

    def frozen(module: object, *args: object, **kwargs: object) -> Any:
        exchange = Exchange()
        with aside(patches), exchange.lent(module):
            made = freeze(module, *args, **kwargs)
        _give_parameters(made, exchange)
        return made

    return frozen


def _loaded(load: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """``torch.jit.load``."""

    def loaded(*args: object, **kwargs: object) -> Any:
        with aside(patches):
            made = load(*args, **kwargs)
        _give_parameters(made, Exchange())
        return made

    return loaded


def _saved(save: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """Return a method of a module of TorchScript that writes it. Torch writes below Python which
    tensors require grad, and finds that on plain ones only."""

    @functools.wraps(save)
    def saved(module: object, *args: object, **kwargs: object) -> Any:
        with aside(patches), Exchange().lent(module):
            return save(module, *args, **kwargs)

    return saved


def _onnx(capture: Callable[..., object], patches: Patches) -> Callable[..., object]:
    """``torch.onnx.export``. It writes a file and returns no program, so there are no tensors
    to exchange back."""

    def exported(model: object, *args: object, **kwargs: object) -> Any:
        exchange = Exchange()
        with aside(patches), exchange.lent(model):
            return capture(model, *exchange.plain_tree(args), **exchange.plain_tree(kwargs))

    return exported


def _of_package(run: Callable[..., object]) -> Callable[..., Any]:
    """The call of a compiled program that was loaded from a file: a library, which takes and
    gives plain tensors."""

    @functools.wraps(run)
    def call(model: object, *args: object, **kwargs: object) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, unwrap, (args, kwargs))
        return pytree.tree_map_only(torch.Tensor, wrap, run(model, *args, **kwargs))

    return call


class Programs:
    """``ExportedProgram`` under the drop-in. Torch's own methods see plain tensors, all other code
    sees those of the session."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._exchanges: weakref.WeakKeyDictionary[Any, Exchange] = weakref.WeakKeyDictionary()

    def _received(self, program: object, exchange: Exchange) -> Any:
        """Turn the tensors of a program that torch has just made into those of the session."""
        self._exchanges[program] = exchange
        self._turn(program, exchange.session_tree)
        return program

    @staticmethod
    def _turn(program: Any, turned: Callable[[Any], object]) -> None:
        for names in (program._state_dict, program._constants):
            for name, value in list(names.items()):
                names[name] = turned(value)
        program._example_inputs = turned(program._example_inputs)

    def _plainly(self, program: object, call: Callable[[], object]) -> Any:
        """``call()`` while the drop-in stands aside and ``program`` has plain tensors."""
        exchange = self._exchanges.setdefault(program, Exchange())
        with aside(self._patches):
            self._turn(program, exchange.plain_tree)
            try:
                return call()
            finally:
                self._turn(program, exchange.session_tree)

    def exporter(self, theirs: Callable[..., object]) -> Callable[..., Any]:
        """``torch.export.export``, or another function with its arguments that returns
        an ``ExportedProgram``."""

        def export(mod: object, args: object, kwargs: object = None, **options: object) -> Any:
            exchange = Exchange()
            with aside(self._patches), exchange.lent(mod):
                program = theirs(
                    mod, exchange.plain_tree(args), exchange.plain_tree(kwargs), **options
                )
            return self._received(program, exchange)

        return export

    def packager(self, theirs: Callable[..., object]) -> Callable[..., Any]:
        """``aoti_compile_and_package``, which compiles a program to a file."""

        def package(exported_program: object, *args: object, **options: object) -> Any:
            return self._plainly(
                exported_program, lambda: theirs(exported_program, *args, **options)
            )

        return package

    def load(self, function: Any, **options: Any) -> Any:
        with aside(self._patches):
            program = _load(function, **options)
        return self._received(program, Exchange())

    def patch(self, lasting: Patches) -> None:
        """The methods of ``ExportedProgram`` that compute with its tensors."""
        original_module, original_decompositions = (
            _ExportedProgram.module,
            _ExportedProgram.run_decompositions,
        )

        def module(program: object, *args: object, **kwargs: object) -> Any:
            made = self._plainly(program, lambda: original_module(program, *args, **kwargs))
            self._exchanges[program].session_module(made)
            return made

        def run_decompositions(program: object, *args: object, **kwargs: object) -> Any:
            exchange = self._exchanges.setdefault(program, Exchange())
            return self._received(
                self._plainly(program, lambda: original_decompositions(program, *args, **kwargs)),
                exchange,
            )

        lasting.set(AOTICompiledModel, "__call__", _of_package(AOTICompiledModel.__call__))
        lasting.set(_ExportedProgram, "module", ours_unless_aside(original_module, module))
        lasting.set(
            _ExportedProgram,
            "run_decompositions",
            ours_unless_aside(original_decompositions, run_decompositions),
        )


def captures(patches: Patches, lasting: Patches) -> dict[int, tuple[Any, Any]]:
    """``{id of a function of torch that captures programs: (function, ours)}``.

    ``lasting`` is not suspended when ``patches`` are. If a thread starts a capture during that of
    another thread, it calls our function, which waits.
    """
    programs = Programs(patches)
    programs.patch(lasting)
    for kind in _SCRIPT_MODULES:
        for name in vars(kind).keys() & _WRITERS:
            lasting.set(kind, name, _saved(getattr(kind, name), patches))
    pairs: list[tuple[Any, Callable[..., Any]]] = [
        (torch.jit.trace, _jit(torch.jit.trace, patches, "torch.jit.trace")),
        (torch.jit.trace_module, _jit(torch.jit.trace_module, patches, "torch.jit.trace_module")),
        (torch.jit.freeze, _frozen(torch.jit.freeze, patches)),
        (torch.jit.optimize_for_inference, _frozen(torch.jit.optimize_for_inference, patches)),
        (torch.jit.load, _loaded(torch.jit.load, patches)),
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
