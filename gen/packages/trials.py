"""Call a function by guesses until one works, and learn what else it can do.

    attempt(entry)
    # Trial("swish", call="mypackage.swish", samples=[[{"shape": [4, 3]}]], dtypes=["float64", ...])

A call works if it returns finite floating numbers and its backward pass runs. Nothing is said of
whether they are right: this is what the matrix is for.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gen.packages.guesses import (
    constructor_guesses,
    guesses,
    guesses_with_defaults,
    other_arguments,
)
from gen.packages.package_scan import MODULES, Entry, Parameter, takes_tensor
from gen.packages.sampled_calls import (
    Call,
    ModuleCall,
    NotUsableError,
    batch,
    capture,
    differentiate_twice,
    has_floats,
    inner_calls,
    is_flat,
    is_rounded,
    is_same,
    is_step,
    is_zero,
    pull_back,
    push_forward,
    run_under_autocast,
    without_gradient,
    writes_to_buffers,
)

__all__ = [
    "Trial",
    "attempt",
    "attempt_forward",
    "error_of",
    "learn_facts",
    "learn_shapes",
    "require_finite",
    "resolve",
    "run_forward",
]

_DTYPES = ("float64", "float32")
_BRANCHES = (
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "GuardOnDataDependentSymNode",
)
"""Classes of errors of a capture that meets a branch, or a shape, that depends on values."""
_SEEDS = (0, 1, 2)
_ZERO_SEEDS = range(12)
"""Draws for which results may be zero. A cell draws others, so they are more than a few."""
_MOST_SECONDS = 20.0
"""How long guesses are tried, of processor time: a busy machine finds the same rows.

A call that has begun is not interrupted here.
"""
_MOST_ALIKE = 500
"""How many guesses are tried while all fail alike. It is more than all those of one domain."""
_NUMBER = 0.5
_SLOW_FIRST_CALL = 1.0
"""A first call that takes longer, and a second one that does not, has compiled a kernel."""


@dataclass
class Trial:
    """What was learned of one entry."""

    name: str
    call: str = ""  # Python text of what is called
    samples: list[Any] = field(default_factory=list)  # args, or args and kwargs
    dtypes: list[str] = field(default_factory=list)
    differentiable: bool = False
    # whether it has derivatives in forward mode
    forward_ad: bool = False
    # whether its gradients can be differentiated
    gradgrad: bool = False
    # whether two calls on the same numbers give the same bits
    deterministic: bool = True
    is_rounded: bool = False  # to a dtype narrower than float64
    is_step: bool = False  # it has a gradient where its results do not move
    is_zero_somewhere: bool = False  # all results of some draw
    takes_transforms: bool = False  # of torch.func
    takes_vmap: bool = False
    takes_layouts: bool = True  # of memory, other than contiguous
    takes_capture: bool = True  # ahead of time
    takes_autocast: bool = True  # a forward pass of it
    compiles: bool = False  # the first call compiles a kernel
    is_deadly: bool = False  # a pass ended the process that tried it, or took too long
    remarks: list[str] = field(default_factory=list)  # sentences for the file
    reason: str = ""  # why there is no row
    covered_by: str = ""  # the row of a caller, for a private Function without one
    reaches: dict[str, Any] = field(default_factory=dict)  # Functions, and samples of them

    @property
    def reason_for_no_row(self) -> str:
        """Return why a project has no row of it; empty if it has one."""
        if not (self.reason or self.deterministic or self.differentiable):
            return "its results differ from call to call, and no column compares such results"
        return self.reason


def attempt(entry: Entry, inner: Sequence[Entry] = ()) -> Trial:
    """Try to call an entry, and return what was learned.

    ``inner``: Functions of which it is also learned whether the call reaches them.
    """
    trial = Trial(entry.name)
    try:
        trial.call, call, seconds = _first_call(entry)
    except NotUsableError as error:
        trial.reason = str(error)
        return trial
    learn_shapes(trial, call, entry.parameters)
    learn_facts(trial, call, entry)
    trial.compiles = seconds > _SLOW_FIRST_CALL
    # A Function reaches itself, which says nothing.
    others = [function for function in inner if function.name != entry.name]
    functions = {
        function.name: resolve(function.expression.removesuffix(".apply")) for function in others
    }
    trial.reaches = inner_calls(call, functions)
    return trial


def attempt_forward(entry: Entry) -> Trial:
    """Try the forward pass of an entry alone, after a trial of all has ended its process."""
    trial = Trial(entry.name, is_deadly=True, differentiable=True)
    errors: dict[str, None] = {}  # each once, in the order in which they came
    end = time.process_time() + _MOST_SECONDS
    for text, call in itertools.islice(_calls(entry), _MOST_ALIKE):
        error = error_of(run_forward, call)
        if error is None:
            trial.call, trial.samples = text, [call.described]
            _learn_dtypes(trial, call, backward=False)
            trial.remarks.append(
                "no other column: its backward pass, or another trial of it, ended the process "
                "or took too long"
            )
            return trial
        errors[error] = None
        if time.process_time() > end:
            break
    trial.reason = next(iter(errors), "no arguments could be guessed")
    return trial


def _first_call(entry: Entry) -> tuple[str, Call, float]:
    """Return the text of what is called, a call that works, and the seconds that it compiled.

    Raises NotUsableError with the first error if no guess works.
    """
    end = time.process_time() + _MOST_SECONDS
    second_best = None
    errors: dict[str, None] = {}
    for count, (text, call) in enumerate(_calls(entry)):
        all_fail_alike = count > _MOST_ALIKE and len(errors) == 1
        if all_fail_alike or time.process_time() > end:
            break
        error, seconds = _problem(call)
        if not error:
            return text, _with_numbers(entry, call), seconds
        errors[error] = None
        if second_best is None and error_of(_require_some_result, call) is None:
            second_best = text, call, 0.0
    # An op without a formula for its derivative is tested all the same, and so is one whose result
    # is sometimes zero.
    if second_best is not None:
        return second_best
    raise NotUsableError(next(iter(errors), "no arguments could be guessed"))


def _with_numbers(entry: Entry, call: Call) -> Call:
    """Return the call of a Function with numbers for tensors that nothing says are tensors.

    Such a tensor has no gradient, as in ``return slope * g, None``, and a number does as well.
    """
    if not entry.is_function:
        return call
    for place in without_gradient(call):
        if takes_tensor(entry.parameters[place]):
            continue
        described = [*call.described[:place], _NUMBER, *call.described[place + 1 :]]
        other = dataclasses.replace(call, described=described)
        if not _problem(other)[0]:
            call = other
    return call


def _problem(call: Call) -> tuple[str, float]:
    """Return why a call does not work, empty if it does, and the seconds that it compiled."""
    begin = time.monotonic()
    error = error_of(require_finite, call)
    if error is not None:
        return error, 0.0
    between = time.monotonic()
    # a second time, when nothing is left to compile
    require_finite(call)
    seconds = (between - begin) - (time.monotonic() - between)
    if _is_zero_somewhere(call):
        return "its result is zero", seconds
    return "", seconds


def _is_zero_somewhere(call: Call) -> bool:
    """Return whether all results of some draw are zero."""
    return any(is_zero(call, seed) for seed in _ZERO_SEEDS)


def _require_some_result(call: Call) -> None:
    """Raise unless a draw has a result that is not zero."""
    if all(is_zero(call, seed) for seed in _ZERO_SEEDS):
        raise NotUsableError("its result is zero")


def _calls(entry: Entry) -> Iterator[tuple[str, Call]]:
    """Yield the calls of an entry that may work, with the text of what is called."""
    if entry.kind == "module":
        yield from _module_calls(entry)
        return
    function = resolve(entry.expression)
    guessed = guesses(entry.parameters)
    if entry.is_function:
        guessed = itertools.chain(guesses_with_defaults(entry.parameters), guessed)
    for described in guessed:
        yield entry.expression, Call(function, described)


def _module_calls(entry: Entry) -> Iterator[tuple[str, Call]]:
    """Yield the calls of a module, for each guess of the arguments of its constructor."""
    module = resolve(entry.expression)
    for arguments in constructor_guesses(entry.constructor):
        try:
            function = ModuleCall(functools.partial(module, *arguments))
        except Exception:  # whatever a constructor raises on a guess
            continue
        text = f"ModuleCall(lambda: {entry.expression}({', '.join(map(repr, arguments))}))"
        parameters = [{"shape": shape} for shape in function.shapes]
        known = _known_sizes(entry.constructor, arguments)
        for described in guesses(entry.parameters, known):
            yield text, Call(function, [*described, *parameters], known_sizes=known)


def _known_sizes(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> dict[str, int]:
    """Return the whole numbers that a constructor was given, by name. They may be sizes."""
    numbers: dict[str, Any] = {parameter.name: parameter.default for parameter in parameters}
    chosen = [parameter.name for parameter in parameters if not parameter.has_default]
    numbers |= dict(zip(chosen, arguments, strict=True))
    # not isinstance: a flag is no size
    return {name: number for name, number in numbers.items() if type(number) is int and number > 0}


def resolve(expression: str) -> Any:
    """Return the object that a dotted name leads to, once its modules are imported.

    ``sys.modules["a.b"].c`` leads to what is hidden: where ``a.b`` is no module.
    """
    if expression.startswith(MODULES):
        _, module, rest = expression.split('"')
        return functools.reduce(getattr, rest.split(".")[1:], importlib.import_module(module))
    top, *attributes = parts = expression.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        # A function may hide the module of its name, so the last module is no place to begin.
        return functools.reduce(getattr, attributes, sys.modules[top])
    raise ModuleNotFoundError(expression)


def require_finite(call: Call) -> None:
    """Raise unless results and gradients of a call are finite, whatever is drawn."""
    for seed in _SEEDS:
        gradients = call.gradients(call.arguments(seed=seed))
        if not all(bool(gradient.isfinite().all()) for gradient in gradients):
            raise NotUsableError("its gradient is not finite")


def run_forward(call: Call) -> None:
    """Raise unless the results of a call are finite."""
    call.results(call.arguments())


def learn_shapes(trial: Trial, call: Call, parameters: Sequence[Parameter] = ()) -> None:
    """Add samples of other shapes, empty and of one element among them, as far as they work.

    ``parameters``: what is known of the first arguments.
    """
    trial.samples = [call.described]
    require = require_finite
    if error_of(require_finite, call) is not None:  # there is a forward pass alone
        require = run_forward
    for odd, described in other_arguments(parameters, call.described, call.known_sizes):
        if described in trial.samples:
            continue
        error = error_of(require, dataclasses.replace(call, described=described))
        if error is None:
            trial.samples.append(described)
        elif odd:
            trial.remarks.append(f"{odd} is no sample: {error}")
    if len(trial.samples) == 1:
        trial.samples *= 2  # two draws: the first may have gradients of zero


def learn_facts(trial: Trial, call: Call, entry: Entry) -> None:
    """Learn dtypes and derivatives that the function has."""
    has_backward = _works(trial, "backward pass", require_finite, call)
    _learn_dtypes(trial, call, backward=has_backward)
    trial.deterministic = is_same(call, backward=has_backward)
    trial.is_zero_somewhere = _is_zero_somewhere(call)
    if trial.is_zero_somewhere:
        trial.remarks.append("results of layouts and precisions may all be zero: some draws give 0")
    why = _reason_for_no_derivative(trial, call, backward=has_backward)
    trial.differentiable = not why
    if trial.differentiable:
        _learn_derivatives(trial, call, entry)
    else:
        trial.remarks.append(f"no derivative is tested{why}")
    # where the transforms of torch.func are refused, no column has a vmap either
    is_refused = trial.differentiable and not trial.takes_transforms
    if not is_refused and not call.makes_tensors:
        trial.takes_vmap = _works(trial, "vmap", batch, call)


def _learn_dtypes(trial: Trial, call: Call, *, backward: bool) -> None:
    """Learn the dtypes for which a pass runs."""
    run = call.results
    if backward:
        run = call.gradients
    for dtype in _dtypes(call):
        error = error_of(run, call.arguments(dtype))
        if error is None:
            trial.dtypes.append(dtype)
        else:
            trial.remarks.append(f"no {dtype}: {error}")


def _reason_for_no_derivative(trial: Trial, call: Call, *, backward: bool) -> str:
    """Return why no derivative can be tested, as the end of a sentence; empty if one can be."""
    if not backward or not call.gradients(call.arguments()):
        return ", since no backward pass reaches an input"
    if not trial.deterministic:
        return ": its results differ from call to call"
    if is_flat(call):
        return ": it and differences are 0, wherever it was tried"
    return ""


def _dtypes(call: Call) -> Sequence[str]:
    """Return the dtypes to try. Without a floating argument, a second one changes nothing."""
    if has_floats(call.arguments()):
        return _DTYPES
    return _DTYPES[:1]


def _learn_derivatives(trial: Trial, call: Call, entry: Entry) -> None:
    """Learn which derivatives a function has, and what they can be compared with."""
    trial.takes_capture = _takes_capture(trial, call)
    trial.is_rounded = "float64" in trial.dtypes and is_rounded(call)
    if trial.is_rounded:
        trial.remarks.append("no differences: a result for float64 is in a narrower dtype")
    trial.is_step = not trial.is_rounded and (entry.is_estimate or is_step(call))
    if entry.is_estimate:
        trial.remarks.append("no differences: its gradient is an estimate, as its docstring says")
    elif trial.is_step:
        trial.remarks.append(
            "no differences: a gradient is not 0 where differences are, as those of a "
            "straight-through estimate"
        )
    if "float32" in trial.dtypes:
        trial.takes_autocast = _works(trial, "autocast", run_under_autocast, call)
    trial.forward_ad = entry.has_jvp
    if not entry.is_function:
        trial.forward_ad = error_of(push_forward, call) is None
    trial.gradgrad = _works(trial, "second derivative", differentiate_twice, call)
    trial.takes_transforms = _works(trial, "transform of torch.func", pull_back, call)


def _takes_capture(trial: Trial, call: Call) -> bool:
    """Return whether a function of the arguments alone can be captured ahead of time."""
    if writes_to_buffers(call):
        trial.remarks.append("no capture ahead of time: a call writes to a buffer")
        return False
    try:
        capture(call)
    except Exception as error:  # whatever torch raises; the cells show any other
        if type(error).__name__ in _BRANCHES:
            trial.remarks.append(f"no capture ahead of time: {_line(error)}")
            return False
    return True


def _works(trial: Trial, what: str, function: Callable[[Call], None], call: Call) -> bool:
    """Return whether `function` takes the call, and remark what it raises."""
    error = error_of(function, call)
    if error is not None:
        trial.remarks.append(f"no {what}: {error}")
    return error is None


def error_of(function: Callable[..., object], *arguments: object) -> str | None:
    """Return the first line of what a call raises. None if it raises nothing."""
    try:
        function(*arguments)
    except Exception as error:  # whatever the function of the package raises
        return _line(error)
    return None


def _line(error: BaseException) -> str:
    """Return the class and the first line of an error."""
    text = str(error).strip().partition("\n")[0][:160]
    if isinstance(error, NotUsableError):
        return text
    return f"{type(error).__name__}: {text}".removesuffix(": ")
