"""Put a whole program together: inputs, what the target computes, what is right and why. It is run
once, to see that it shows the difference.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from gen.checks import forms
from gen.checks.case import Case
from gen.checks.comparison.comparison import Comparison
from gen.samples.descriptions import lay_out_like
from gen.samples.seeds import stable_seed
from gen.scripts import python_values
from gen.scripts.python_values import NoScript
from gen.scripts.stages import HELPERS, Plain, Written
from gen.scripts.tracer import Tracer, text_of, whole_functions

Tensor = torch.Tensor
_SOURCES = {
    "torch": {
        "torch.func": (
            "functionalize",
            "grad",
            "hessian",
            "jacfwd",
            "jacrev",
            "jvp",
            "linearize",
            "vjp",
            "vmap",
        ),
        "torch.fx.experimental.proxy_tensor": ("make_fx",),
        "functorch.compile": (
            "aot_function",
            "default_partition",
            "min_cut_rematerialization_partition",
            "nop",
        ),
    },
    "runtime": {
        "runtime.func": (
            "functionalize",
            "grad",
            "hessian",
            "jacfwd",
            "jacrev",
            "jvp",
            "linearize",
            "vjp",
            "vmap",
        ),
        "runtime.aot": (
            "aot_function",
            "default_partition",
            "make_fx",
            "min_cut_rematerialization_partition",
            "nop",
        ),
    },
}
# helpers that call the engine of torch, by the stages that they stand for
_EAGER = {"engine_vjp": "backward", "dual_jvp": "dual"}
# torch.compile of the whole program, with the backend of each target
_COMPILED = {"dynamo": "eager", "aot_eager": "aot_eager", "inductor": "inductor"}
_WHY = {
    "loop": (
        "transforms one by one: a loop of single calls for vmap, "
        "torch's plain engine for derivatives"
    ),
    "upstream": "the same derivative by torch's plain engine",
    "eager": "the op, called directly",
    "numeric": "central differences in double precision",
    "float64": "the same in double precision, rounded at the end",
}


@dataclass(frozen=True)
class Script:
    """The text of a program."""

    text: str
    # whether it printed two different values when it was run, or an error
    differs: bool


def script(case: Case, comparison: Comparison, word: str) -> Script:
    """Return the program of one comparison of `case` with the reference `word`. Raises NoScript if
    it has none.

    Its numbers have two digits where the difference then still shows.
    """
    inputs = forms.laid_out(comparison.program.inputs, comparison.axes.layout)
    try:
        program = _with(case, comparison, word, inputs)
    except NoScript:
        # What is right has no text, so its values are written down. These are for `inputs` alone,
        # and no number can be rounded.
        return _with(case, comparison, word, inputs, in_full=True)
    short = tuple(map(_round, inputs))
    # Rounded numbers are easier to read, but may lie beside the point where the error shows.
    if program.differs and not all(map(_are_same, short, inputs)):
        with contextlib.suppress(NoScript):
            simpler = _with(case, comparison, word, short)
            if simpler.differs:
                return simpler
    return program


def _round(x: Tensor) -> Tensor:
    """Return an input with two digits of each number, in its layout."""
    if x.dtype is torch.float64:
        return lay_out_like(x, x.round(decimals=2))
    return x


def _are_same(first: Tensor, second: Tensor) -> bool:
    return torch.equal(first, second) and first.stride() == second.stride()


def _with(
    case: Case, comparison: Comparison, word: str, inputs: Sequence[Tensor], in_full: bool = False
) -> Script:
    """Return the program on `inputs`.

    `in_full`: what is right stands there as values, which must be those for `inputs`.
    """
    target = case.target.name
    _require_program_of(target)
    tracer = Tracer()
    names = [f"x{index}" for index in range(len(inputs))]
    # x0, x1, … are the inputs, and the tracer's own names go on behind them
    tracer.skip("x", len(names) - 1)
    used: set[str] = set()
    worst = _worst_result(comparison)
    with _as_no_script(), whole_functions():
        actual = _actual(tracer, comparison, names, inputs, used, worst, target)
        if in_full:
            expected = _literal(comparison, worst, word)
        else:
            expected = _expected(tracer, comparison, word, names, inputs, used, worst)
    lines = [heading(case), "import torch", *_imports(tracer, target, used)]
    lines += [HELPERS[name].rstrip() for name in HELPERS if name in used]
    lines.append("")
    lines += [f"{name} = {python_values.tensor(x)}" for name, x in zip(names, inputs, strict=True)]
    if comparison.sample.facts.random:
        # before either of the two, since they are to draw the same numbers
        seed = f"torch.manual_seed({stable_seed(comparison.program.seed)})"
        expected, actual = [seed, *expected], [seed, *actual]
    why = _WHY.get(word, f"the reference {word} of the matrix")
    lines += [f"# right: {why}", *expected, 'print("expected", expected)']
    lines += [f"# {_describe_stages(comparison, target)}", *actual, 'print("actual  ", actual)']
    text = "\n".join(lines) + "\n"
    return Script(text, _differs(text))


def _require_program_of(target: str) -> None:
    """Raise NoScript if there are no programs for a target."""
    targets = [*_SOURCES, *_COMPILED]
    if target not in targets:
        raise NoScript(f"there are programs for the targets {', '.join(targets)}, not for {target}")


def _imports(tracer: Tracer, target: str, used: set[str]) -> list[str]:
    """Return the lines that import what a program uses, in addition to torch itself."""
    lines = [f"import {module}" for module in sorted(tracer.modules)]
    sources = _SOURCES["torch"]
    if target not in _COMPILED:
        sources = _SOURCES[target]
    for module, offers in sources.items():
        names = sorted(used.intersection(offers))
        if names:
            lines.append(f"from {module} import {', '.join(names)}")
    return lines


def heading(case: Case) -> str:
    """Return the first line of a program."""
    return f"# {case.cell.id} under {case.check}, on torch {torch.__version__.split('+')[0]}"


@contextlib.contextmanager
def _as_no_script() -> Iterator[None]:
    """Raise NoScript for any error inside: a program that fails while it is written down has no
    text.
    """
    try:
        yield
    except NoScript:
        raise
    except Exception as error:
        raise NoScript(
            f"the program fails while it is written down: {type(error).__name__}: {error}"
        ) from error


def _describe_stages(comparison: Comparison, target: str) -> str:
    stages = " of ".join(reversed(comparison.stages)) or "the op"
    return f"{stages}, by {target}"


def _worst_result(comparison: Comparison) -> int | None:
    """Return the number of the result that is furthest off, None for all of them."""
    expected_results, found_results = comparison.expected, comparison.found
    if expected_results is None or found_results is None:
        return None
    if len(expected_results) != len(found_results) or len(expected_results) == 1:
        return None

    def off(pair: tuple[Tensor, Tensor]) -> float:
        """Return the relative error of a result, infinite if only one of the two has a NaN."""
        actual, expected = pair
        if actual.shape != expected.shape or actual.dtype is not expected.dtype:
            return float("inf")
        if not actual.numel():
            return 0.0
        # one dtype for all, so that a difference of integers does not wrap around
        wide_actual, wide_expected = (tensor.to(torch.complex128) for tensor in pair)
        # the small term keeps a right 0 from being divided by itself
        errors = (wide_actual - wide_expected).abs() / (1e-12 + wide_expected.abs())
        error = errors.max().item()
        if error == error:  # it is no NaN
            return error
        if torch.equal(actual.isnan(), expected.isnan()):
            return 0.0
        return float("inf")

    errors_of_results = list(map(off, zip(found_results, expected_results, strict=True)))
    return max(range(len(errors_of_results)), key=errors_of_results.__getitem__)


def _assign_results(
    tracer: Tracer, results_to_assign: Sequence[object], shown: int | None, name: str
) -> list[str]:
    """Return lines that end in an assignment of the results to `name`."""
    if shown is not None:
        results_to_assign = [results_to_assign[shown]]
    lines, results = tracer.scopes[0].written(list(map(text_of, results_to_assign)))
    tracer.scopes[0].lines.clear()
    parts = chain.from_iterable(map(str.splitlines, lines))
    return [*parts, f"{name} = {python_values.one_or_tuple(results)}"]


def _actual(
    tracer: Tracer,
    comparison: Comparison,
    names: Sequence[str],
    inputs: Sequence[Tensor],
    used: set[str],
    shown: int | None,
    target: str,
) -> list[str]:
    """Return the lines that compute what the target gives."""
    stages = Written(tracer)
    f = comparison.program.over(stages)
    arguments = [tracer.named(name, x) for name, x in zip(names, inputs, strict=True)]
    if target in _COMPILED:
        name, outputs = tracer.function(f, arguments)
        compiled = f'torch.compile({name}, backend="{_COMPILED[target]}")'
        text = tracer.assign(f"{compiled}({', '.join(names)})")
        parts = [text]
        if len(outputs) > 1:
            parts = [f"{text}[{index}]" for index in range(len(outputs))]
        results: Sequence[Any] = list(map(tracer.named, parts, outputs))
    else:
        results = f(*arguments)
    lines = _assign_results(tracer, results, shown, "actual")
    # asked only now: which stages the program has is known when it has been written
    if target == "runtime" and (eager := _EAGER.keys() & stages.used):
        raise NoScript(
            f"the stage {_EAGER[min(eager)]} on the runtime needs its drop-in; "
            "run the cell on target torch"
        )
    used |= stages.used
    return lines


def _expected(
    tracer: Tracer,
    comparison: Comparison,
    word: str,
    names: Sequence[str],
    inputs: Sequence[Tensor],
    used: set[str],
    shown: int | None,
) -> list[str]:
    """Return the lines that compute what is right."""
    if word not in _WHY:
        raise NoScript(f"the reference {word} has no text")
    wide = word in ("numeric", "float64")
    stages = Plain(tracer, word == "numeric")
    arguments = []
    for name, x in zip(names, inputs, strict=True):
        if wide:
            name, x = _in_double(name, x)
        arguments.append(tracer.named(name, x))
    results = comparison.program.over(stages)(*arguments)
    wanted = comparison.expected
    if wide and wanted is not None and len(wanted) == len(results):
        pairs = zip(results, wanted, strict=True)
        results = tuple(_cast_text(result, e.dtype) for result, e in pairs)
    lines = _assign_results(tracer, results, shown, "expected")
    used |= stages.used
    return lines


def _in_double(name: str, x: Tensor) -> tuple[str, Tensor]:
    """Return an input and its text in double precision. Integers and booleans stay."""
    if x.is_complex():
        double = torch.complex128
    elif x.is_floating_point():
        double = torch.float64
    else:
        return name, x
    if x.dtype is double:
        return name, x
    return f"{name}.to({double})", x.to(double)


def _cast_text(value: Tensor, dtype: torch.dtype) -> object:
    """Return `value` in a dtype. One that has it already needs no call in the text."""
    if value.dtype is dtype:
        return value
    return value.to(dtype)


def _literal(comparison: Comparison, shown: int | None, word: str) -> list[str]:
    """Return the expected values of the comparison, in full."""
    if comparison.expected is None:
        raise NoScript(f"the reference {word} gave no values")
    every = comparison.expected
    if shown is not None:
        every = (every[shown],)
    texts = list(map(python_values.tensor, every))
    return [f"expected = {python_values.one_or_tuple(texts)}"]


def _differs(text: str) -> bool:
    """Return whether the program, when it is run, raises or has two values that are not close."""
    names = run(text)
    if "actual" not in names:
        return True
    try:
        torch.testing.assert_close(names["actual"], names["expected"], equal_nan=True)
    except AssertionError:
        return True
    return False


def run(text: str) -> dict[str, Any]:
    """Return the names of a program after it has run, without `actual` if it raised there.

    Raises NoScript if it raised before.
    """
    names: dict[str, Any] = {}
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            exec(compile(re.sub(r"^#.*$", "", text, flags=re.MULTILINE), "<script>", "exec"), names)
    except Exception as error:
        # `expected` comes first, so an error after it is what the target did
        if "expected" not in names:
            raise NoScript(
                f"the text that was written does not run: {type(error).__name__}: {error}"
            ) from error
        names.pop("actual", None)
    return names
