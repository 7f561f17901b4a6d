"""Assert that a program inside a transform gives the right results, or is refused by an error that
names a line of it.

With the axis ``refusal: named`` a cell passes if the target gives what the reference gives, or
raises an error whose traceback, message or notes show a line of the program. It fails if the error
shows none, if a result is another, or if the process dies or takes too long.
"""

from __future__ import annotations

import builtins
import inspect
import re
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from gen.checks.compare import Tally, compare_kinds
from gen.checks.comparison.comparison import Comparison
from gen.outcomes import ErrorMismatch, Lacking, Mismatch, Unsuitable, refuse_fault
from gen.samples import opinfo
from gen.samples.samples import Op, Sample, candidates, from_call, resolve
from gen.versions import is_for_installed


def assert_right_or_refused(comparison: Comparison, word: str, tally: Tally) -> None:
    """Raise Mismatch if the target gives something else than the reference, or an error without a
    line of the program.

    Of a program that draws random numbers only shapes and dtypes are compared.
    """
    try:
        results = comparison.actual
    except (Lacking, Mismatch, Unsuitable):
        raise
    except Exception as error:
        refuse_fault(error)
        assert_named(comparison.sample, error)
        comparison.refusal = error
        tally.entries += 1
        tally.nonzero += 1
        return
    if comparison.program.deterministic:
        comparison.against(word, tally)
    else:
        compare_kinds(results, comparison.program.on_reference(), tally)


def assert_named(sample: Sample, error: Exception) -> None:
    """Raise Mismatch unless ``error`` shows a line of the program, or of another module of its
    folder.
    """
    if not names_line(sample, error):
        raise ErrorMismatch(
            f"an error without a line of the program: {error!r}",
            expected="the value, or an error that shows a line of the program",
            actual=repr(error),
        ) from error


def names_line(sample: Sample, error: Exception) -> bool:
    """Return whether the traceback, the message or a note shows a line of the program's folder."""
    # Programs of a row may be in several files of one folder and call one another.
    folder = Path(inspect.getsourcefile(sample.op.call) or ".").parent
    frames = traceback.extract_tb(error.__traceback__)
    texts = (str(error), *getattr(error, "__notes__", ()))
    if any(Path(frame.filename).parent == folder for frame in frames):
        return True
    return any(f"{folder}/" in text for text in texts)


def assert_raises(call: Callable[[], object], kind: type[Exception], match: str) -> None:
    """Raise Mismatch unless `call` raises an error of this kind whose text matches."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings before the error are not compared
            call()
    except kind as error:
        if not re.search(match, str(error)):
            raise ErrorMismatch(
                f"{kind.__name__} says {str(error).strip()!r}, which does not match {match!r}",
                expected=f"{kind.__name__} with a message that matches {match!r}",
                actual=f"{kind.__name__}: {str(error).strip()}",
            ) from error
        return
    raise Mismatch(
        f"no {kind.__name__} was raised (expected a message matching {match!r})",
        expected=f"{kind.__name__} with a message that matches {match!r}",
        actual="a value",
    )


# --- documented errors ----------------------------------------------------------------------------

_SAMPLES = "cpu"  # where samples are made, wherever they run


def documented_errors(
    op: Op, row: Mapping[str, Any], dtype: torch.dtype
) -> Iterator[tuple[Sample, type[Exception], str]]:
    """Yield ``(sample, exception, pattern)``: from the row's `errors`, else from OpInfo."""
    if row.get("errors"):
        yield from _of_row(op, row, dtype)
    elif op.info is not None:
        for index, error_input in enumerate(opinfo.errors(op.info, _SAMPLES)):
            call = error_input.sample_input
            sample = from_call(op, index, (call.input, *call.args), dict(call.kwargs))
            yield sample, error_input.error_type, error_input.error_regex


def _of_row(
    op: Op, row: Mapping[str, Any], dtype: torch.dtype
) -> Iterator[tuple[Sample, type[Exception], str]]:
    """Yield the calls that the row says must raise, as samples, each with its error."""
    # A message may differ between versions of torch.
    errors = [error for error in row["errors"] if is_for_installed(error.get("torch"))]
    # what the samples of a row may have, without the error
    described = [
        {key: error[key] for key in ("args", "kwargs") if key in error} for error in errors
    ]
    samples = candidates(op, {**row, "samples": described}, dtype, _SAMPLES, wrapped=False)
    for sample, error in zip(samples, errors, strict=True):
        kind = error["raises"]
        if not isinstance(kind, type):
            kind = _exception(kind)
        yield sample, kind, error.get("match", "")


def _exception(name: str) -> type[Exception]:
    """Return the class of exceptions with this name, built in or ``module.Class``."""
    exception = getattr(builtins, name, None) or resolve(name)
    if not (isinstance(exception, type) and issubclass(exception, Exception)):
        raise TypeError(f"{name!r} names no exception")
    return exception
