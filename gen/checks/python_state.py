"""Compile a program with a state in Python, and assert what plain Python gives.

These are its results and the state that it leaves. A refusal with a line of the program is right
too.

A row gives the texts of programs for a value of the axis ``moment``. A text is run twice, as two
modules. One module's ``step`` is called as it is, the other one's is compiled. Both get the same
calls and the same alterations of the state between them.

| a program that | is |
|---|---|
| gives what plain Python gives, and leaves what it leaves, at each call | right |
| raises an error that names a line of its text, and leaves its state as before the call | right |
| gives another result or state | a mismatch |
| raises an error without a line, or leaves the state changed | a mismatch |

At the end both modules make one more call without a compiler. It shows what no description of an
object says, such as how far a generator is.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import linecache
import random
import sys
import threading
import traceback
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

import numpy as np
import torch

from gen.checks.compare import Tally
from gen.outcomes import ErrorMismatch, Mismatch, Unsuitable
from gen.samples.samples import Sample
from gen.targets.protocol import Jitting, Target

Tensor = torch.Tensor
_OTHER = "OTHER_MODULE"  # the word that stands for the name of another module in a text
_DEEPEST = 6  # levels of objects that a description has; deeper ones count by their class alone


class Grammar(Protocol):
    """A row: how a program comes to its state."""

    def text(self, holder: str, change: str, moment: str) -> str:
        """Return the text of a program."""
        ...

    def programs(self, moment: str) -> list[tuple[str, str]]:
        """Return the holder and the change of each program at a moment."""
        ...

    def calls(self, moment: str) -> str:
        """Return a letter for each step of the caller.

        `programs/state/moments.py` says what each letter stands for.
        """
        ...


class ProgramModule:
    """One run of a program's text, as a module of its own.

    The text defines three functions: ``step`` is called, ``alter`` changes the state, and ``look``
    returns it.
    """

    def __init__(self, text: str, file: str, name: str) -> None:
        # the name of the module while it is in ``sys.modules``
        self.name = name
        self.module: Any = types.ModuleType(name)
        self.other = types.ModuleType(f"{name}_settings")
        self.module.__file__ = self.other.__file__ = file
        sys.modules.update({name: self.module, self.other.__name__: self.other})
        # Each run has its own settings module, or the two runs would share their state.
        text = text.replace(_OTHER, self.other.__name__)
        exec(compile(text, file, "exec"), vars(self.module))
        self.step: Callable[..., Any] = self.module.step

    def close(self) -> None:
        for name in (self.name, self.other.__name__):
            sys.modules.pop(name, None)

    def arguments(self, x: Tensor, *flags: bool) -> tuple[object, ...]:
        """Return the arguments of a call: the tensor, the flag, and those that the text has."""
        own: tuple[object, ...] = getattr(self.module, "arguments", tuple)()
        # The first of the text's arguments is the flag, which the call may replace.
        return (x, *(flags or own[:1]), *own[1:])

    def alter(self) -> str:
        """Change the state. Return the class of the error if Python raises one, else ""."""
        try:
            self.module.alter()
        except Exception as error:
            return type(error).__name__
        return ""

    def state(self) -> Any:
        """Return a description of the state."""
        try:
            return describe(self.module.look())
        except Exception as error:
            return type(error).__name__


def assert_seen(target: Target, sample: Sample, moment: str, tally: Tally) -> None:
    """Raise Mismatch unless each compiled program of a row does what the plain one does.

    A program must give the same results and leave the same state, or be refused with a line of it.
    The error names each program that does not.
    """
    grammar = cast(Grammar, sample.op.call)
    failures: list[tuple[str, Mismatch]] = []
    for holder, change in grammar.programs(moment):
        try:
            run_program(target, sample, holder, change, moment)
        except Mismatch as error:
            failures.append((f"{holder}, {change}, {moment}: {error}", error))
        except Unsuitable:
            continue
        tally.entries += 1
        tally.nonzero += 1
    if failures:
        raise Mismatch("\n".join(text for text, _ in failures)) from failures[0][1]


def run_program(
    target: Target, sample: Sample, holder: str, change: str, moment: str
) -> Exception | None:
    """Compare one program, and return the error by which the target refuses it, if it does."""
    grammar = cast(Grammar, sample.op.call)
    name = "_".join((sample.op.name.rpartition(".")[2], holder, change, moment))
    text = grammar.text(holder, change, moment)
    with two_modules(text, name) as (plain, compiled), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        jit = cast(Jitting, target).jit
        comparison = _Comparison(plain, compiled, jit, sample.inputs[0].detach())
        comparison.run(grammar.calls(moment))
        return comparison.refused


@contextlib.contextmanager
def two_modules(text: str, name: str) -> Iterator[tuple[ProgramModule, ProgramModule]]:
    """Run a text as two modules. Tracebacks show its lines inside of the block."""
    file = f"state/{name}.py"
    # The text is in no file. But tracebacks and compilers look for lines in this cache.
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    modules = []
    try:
        for role in ("plain", "compiled"):
            modules.append(ProgramModule(text, file, f"{name}_{role}"))
        yield modules[0], modules[1]
    finally:
        for module in modules:
            module.close()
        linecache.cache.pop(file, None)


class _Comparison:
    """The steps of a caller, made with the plain module and with the compiled one."""

    def __init__(
        self,
        plain: ProgramModule,
        compiled: ProgramModule,
        jit: Callable[[Callable[..., Any]], Callable[..., object]],
        x: Tensor,
    ) -> None:
        self.plain = plain
        self.compiled = compiled  # the module whose step `jitted` compiles
        self.jitted = jit(compiled.step)
        # A letter `j` calls another program that changes the same state.
        self.altering = jit(_alteration_of(compiled))
        self.x = x
        self.refused: Exception | None = None
        self.ended = False

    def run(self, letters: str) -> None:
        """Make the steps of the caller, one for each letter, and then one more plain call.

        `programs/state/moments.py` says what each letter stands for.
        """
        for place, letter in enumerate(letters):
            where = f"step {place} ({letter}) of {letters}"
            if letter in "gl":
                self._call_and_pass(letter, place, where)
            elif letter in "cof":
                self._call(letter, place, where)
            else:
                self._alter(letter, where)
            if self.ended:
                return
        self._assert_equal(
            _outcome(self.plain.step, *self.plain.arguments(self.x)),
            _outcome(self.compiled.step, *self.compiled.arguments(self.x)),
            "a plain call at the end",
        )

    def _call(self, letter: str, place: int, where: str) -> None:
        """Call both steps, and compare the results and the states."""
        # Each step has other numbers, and a letter `o` another size.
        x = self.x[: len(self.x) - (letter == "o")] + place / 4
        flags = (True,) if letter == "f" else ()
        expected = _outcome(self.plain.step, *self.plain.arguments(x, *flags))
        # A program that fails from the start tests nothing. A later error is a result to compare.
        if place == 0 and isinstance(expected, Exception):
            raise Unsuitable(f"the plain program raises {expected!r}")
        before = self.compiled.state()
        actual = _outcome(self.jitted, *self.compiled.arguments(x, *flags))
        self._assert_outcome(expected, actual, before, where)

    def _call_and_pass(self, letter: str, place: int, where: str) -> None:
        """Call both steps and run the backward passes of the results. Compare the gradients."""
        x = self.x + place / 4
        expected, _ = _gradient_of(self.plain, self.plain.step, x, letter == "l")
        if place == 0 and isinstance(expected, Exception):
            raise Unsuitable(f"the plain program raises {expected!r}")
        actual, before = _gradient_of(self.compiled, self.jitted, x, letter == "l")
        self._assert_outcome(expected, actual, before, where)

    def _assert_outcome(self, expected: object, actual: object, before: object, where: str) -> None:
        """Raise Mismatch unless two steps agree, or the compiled one is refused.

        `before` is the state before the compiled step.
        """
        if isinstance(actual, Exception) and not isinstance(expected, Exception):
            self._assert_refused(actual, before, where)
            return
        self._assert_equal(expected, actual, where)
        self.ended = isinstance(expected, Exception)
        if not self.ended:
            self._assert_state(where)

    def _alter(self, letter: str, where: str) -> None:
        """Alter the states of both modules, and compare them."""
        expected = _alter_module(self.plain, letter)
        # For this letter, another compiled program of the same module makes the alteration.
        if letter == "j":
            before = self.compiled.state()
            actual = _outcome(self.altering, self.x)
            if isinstance(actual, Exception):
                # An error that plain Python raises too is no refusal.
                if not expected:
                    self._assert_refused(actual, before, where)
                return
        elif _alter_module(self.compiled, letter) != expected:
            raise Mismatch(f"{where}: only one of two alterations raises {expected}")
        self._assert_state(where)

    def _assert_refused(self, error: Exception, before: object, where: str) -> None:
        """Raise Mismatch unless a refusal is right.

        The error must name a line of the program, and the state must be as before the step.
        """
        if not names_line_of(self.plain.module.__file__, error):
            raise ErrorMismatch(
                f"{where}: an error without a line of the program: {error!r}"
            ) from error
        if self.compiled.state() != before:
            raise Mismatch(
                f"{where}: refused, but the state is {self.compiled.state()}, it was {before}"
            ) from error
        self.refused, self.ended = error, True

    def _assert_state(self, where: str) -> None:
        """Raise Mismatch unless both modules describe the same state."""
        expected, actual = self.plain.state(), self.compiled.state()
        if actual != expected:
            raise Mismatch(f"{where} leaves the state {actual}, plain Python leaves {expected}")

    def _assert_equal(self, expected: Any, actual: Any, where: str) -> None:
        """Raise Mismatch unless two outcomes agree: tensors by value, exceptions by class."""
        if isinstance(expected, Exception) or isinstance(actual, Exception):
            if type(expected) is not type(actual):
                difference = f"{where} gives {actual!r}, plain Python {expected!r}"
                if isinstance(actual, Exception):
                    raise ErrorMismatch(difference)
                raise Mismatch(difference)
            return
        kind = (actual.dtype, actual.shape, actual.requires_grad)
        wanted = (expected.dtype, expected.shape, expected.requires_grad)
        if kind != wanted or not torch.allclose(actual.detach(), expected.detach(), equal_nan=True):
            raise Mismatch(f"{where} gives {actual}, plain Python {expected}")


def _alteration_of(module: ProgramModule) -> Callable[[Tensor], Tensor]:
    """Return a program of tensors that alters the state of the module."""
    alter = module.module.alter

    def altering(x: Tensor) -> Tensor:
        alter()
        return x * 2

    return altering


def _outcome(function: Callable[..., object], *arguments: object) -> object:
    """Return what a call returns, or the exception that it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        return error


def _gradient_of(
    module: ProgramModule, step: Callable[..., Any], x: Tensor, alters: bool
) -> tuple[object, object]:
    """Return the gradient of a step's result, and the state before its last part.

    An exception of the call or of the backward pass stands for the gradient. The state is that
    before the part that raises. With `alters`, the state changes between call and pass.
    """
    leaf, before = x.clone().requires_grad_(), module.state()
    result: Any = _outcome(step, *module.arguments(leaf))
    if isinstance(result, Exception):
        return result, before
    if alters:
        module.alter()
    before = module.state()
    error = _outcome(result.sum().backward)
    return error if isinstance(error, Exception) else leaf.grad, before


def _alter_module(module: ProgramModule, letter: str) -> str:
    """Alter the state of a module, and return what `alter` returns.

    For the letter `t` it is altered in another thread.
    """
    if letter == "t":
        return _in_thread(module.alter)
    return module.alter()


def _in_thread(alter: Callable[[], str]) -> str:
    """Alter the state in another thread, and return what `alter` returns."""
    outcomes: list[str] = []
    thread = threading.Thread(target=lambda: outcomes.append(alter()))
    thread.start()
    thread.join()
    return outcomes[0]


def names_line_of(file: str, error: Exception) -> bool:
    """Return whether the traceback, the message or a note shows a line of ``file``."""
    texts = (str(error), *getattr(error, "__notes__", ()))
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename == file for frame in frames):
        return True
    return any(f"{file}:" in text for text in texts)


def describe(x: object, depth: int = 0) -> Any:
    """Return a description of an object, which is equal for equal objects of two modules.

    ``1``, ``1.0`` and ``True`` differ, and so do two orders of a dictionary.
    """
    kind = type(x)
    # Numbers are compared by their text, since NaN is not equal to itself, and 0.0 equals -0.0.
    if x is None or kind in (bool, int, float, complex, str, bytes):
        return (kind.__name__, repr(x))
    # Objects may contain themselves, so the depth has a limit.
    if depth > _DEEPEST:
        return kind.__name__
    for kinds, parts in _PARTS:
        if isinstance(x, kinds):
            return (kind.__name__, *(describe(part, depth + 1) for part in parts(x)))
    own = getattr(x, "__dict__", {})
    return (kind.__name__, *((name, describe(value, depth + 1)) for name, value in own.items()))


def _parts_of_tensor(x: Tensor) -> list[object]:
    return [str(x.dtype), x.detach().tolist(), x.requires_grad]


def _parts_of_set(x: Any) -> list[object]:
    # Items of several types have no order among themselves, so they are sorted by type and text.
    return sorted(x, key=lambda item: (str(type(item)), repr(item)))


def _parts_of_layer(x: torch.nn.Module) -> list[object]:
    """Return the attributes of a layer. Of its hooks only their number counts."""
    # A hook is known by a number that no other hook of the process has: two modules differ in it.
    parts: list[object] = []
    for name, value in vars(x).items():
        if name.endswith("_hooks"):
            parts.append((name, len(value)))
        else:
            parts.append((name, describe(value, _DEEPEST - 2)))
    return parts


def _parts_of_function(x: Any) -> list[object]:
    """Return what makes a function: its name, its code's names and constants, and its cells."""
    code = x.__code__
    return [
        x.__qualname__,
        code.co_names,
        code.co_consts[1:],
        *(cell.cell_contents for cell in x.__closure__ or ()),
    ]


# The first line that fits an object counts.
_PARTS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (torch.Tensor, _parts_of_tensor),
    (np.ndarray, lambda x: [str(x.dtype), x.tolist()]),
    (dict, lambda x: [part for item in x.items() for part in item]),
    ((set, frozenset), _parts_of_set),
    ((list, tuple, collections.deque), list),
    (random.Random, lambda x: [x.getstate()]),
    (np.random.Generator, lambda x: [x.bit_generator.state]),
    (torch.Generator, lambda x: [x.get_state()]),
    (torch.nn.Module, _parts_of_layer),
    (types.FunctionType, _parts_of_function),
    (types.MethodType, lambda x: [x.__func__, x.__self__]),
    (functools.partial, lambda x: [x.func, *x.args, x.keywords]),
    ((torch.dtype, torch.device, bytearray), lambda x: [str(x)]),
    (types.CodeType, lambda x: [x.co_name]),
    (type, lambda x: [x.__name__]),
    (types.ModuleType, lambda x: []),
)
