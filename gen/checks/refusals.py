"""Assert that a program inside a transform gives the right results, or is refused by an error that
names a line of it.

With the axis ``refusal: named`` a cell passes if the target gives what the reference gives, or
raises an error whose traceback, message or notes show a line of the program. It fails if the error
shows none, if a result is another, or if the process dies or takes too long.
"""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path

from gen.checks.compare import Tally, compare_kinds
from gen.checks.evaluate import Comparison
from gen.outcomes import ErrorMismatch, Lacking, Mismatch, Unsuitable
from gen.samples.samples import Sample


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
        raise ErrorMismatch(f"an error without a line of the program: {error!r}") from error


def names_line(sample: Sample, error: Exception) -> bool:
    """Return whether the traceback, the message or a note shows a line of the program's folder."""
    # Programs of a row may be in several files of one folder and call one another.
    folder = Path(inspect.getsourcefile(sample.op.call) or ".").parent
    frames = traceback.extract_tb(error.__traceback__)
    texts = (str(error), *getattr(error, "__notes__", ()))
    return any(Path(frame.filename).parent == folder for frame in frames) or any(
        f"{folder}/" in text for text in texts
    )
