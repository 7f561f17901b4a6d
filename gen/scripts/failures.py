"""Choose the program that shows the failure of a case: a wrong value, or a call that raises or does
not.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor
from torch.overrides import resolve_name

from gen.checks.case import Case, Claim
from gen.checks.case.comparisons import all_comparisons, wrong_errors
from gen.checks.comparison.comparison import Comparison
from gen.samples.samples import Sample, located
from gen.scripts import python_values
from gen.scripts.python_values import NoScript
from gen.scripts.standalone import Script, heading, run, script
from gen.scripts.tracer import Tracer, text_of

# --- calls that raise -----------------------------------------------------------------------------
#
# A call raises where the matrix asks for a value, or does not raise what the matrix asks for.

_TRIED_CALLS = """
def tried(f, *args, **kwargs):  # what f returns, or the error that it raises
    try:
        return f(*args, **kwargs)
    except Exception as error:
        return error
"""


def of_call(case: Case, sample: Sample, kind: type[Exception] | None, match: str) -> Script:
    """Return the program that calls the op itself on a sample of `case`, as
    :func:`wrong_errors` gives them.

    Raises NoScript if it has none. `kind`: the exception that the matrix asks for, with a message
    that `match` matches in part; None if it asks for a value.
    """
    if sample.wrap is not None:
        raise NoScript("the sample is called by a wrapper of OpInfo's")
    op, modules = _name_in_torch(case, sample)
    tracer = Tracer()
    names = [f"x{place}" for place in range(len(sample.inputs))]
    args, kwargs = sample.rebuild(list(map(tracer.named, names, sample.inputs)))
    arguments = list(map(text_of, args))
    arguments += [f"{name}={text_of(value)}" for name, value in kwargs.items()]
    # with a comma in front, as it follows the function in `tried(function, …)`
    arguments_text = ", ".join(["", *arguments])
    if kind is not None:
        named = kind.__name__
        if match:
            named += f", with a message that matches {match!r}"
        right, expected = "what the matrix names as the error of this call", repr(named)
    elif case.row.get("reference"):
        reference, further = _at(case.row["reference"])
        modules |= further
        right, expected = "the op's own reference", f"tried({reference}{arguments_text})"
    else:
        right, expected = "a value, for the matrix has this call as a sample of the op", '"a value"'
    lines = [heading(case)]
    lines += [f"import {module}" for module in sorted({"torch", *modules})]
    lines += [_TRIED_CALLS.rstrip(), ""]
    for name, x in zip(names, sample.inputs, strict=True):
        lines.append(f"{name} = {python_values.tensor(x)}")
    lines += [f"# right: {right}", f"expected = {expected}", 'print("expected", repr(expected))']
    lines += [
        "# the op itself, called directly",
        f"actual = tried({op}{arguments_text})",
        'print("actual  ", repr(actual))',
    ]
    text = "\n".join(lines) + "\n"
    return Script(text, _shows(text, kind, match))


def _shows(text: str, kind: type[Exception] | None, match: str) -> bool:
    """Return whether the program, when it is run, does something else than the matrix asks for."""
    actual = run(text)["actual"]
    if kind is None:
        return isinstance(actual, Exception)
    return not (isinstance(actual, kind) and re.search(match, str(actual)))


def _name_in_torch(case: Case, sample: Sample) -> tuple[str, set[str]]:
    """Return the text of the op, and the modules that it is in."""
    if sample.op.info is None:
        return _at(case.row.get("call") or case.op)
    path = None
    if callable(sample.op.call):
        path = resolve_name(sample.op.call)
    if path is None or not path.startswith("torch."):
        raise NoScript(f"OpInfo calls {case.op} by a function without a name in torch")
    return path, set()


def _at(path: str) -> tuple[str, set[str]]:
    module, attributes = located(path)
    return ".".join([module, *attributes]), {module}


# --- any failure ----------------------------------------------------------------------------------

Found = tuple[Comparison, str, Exception | None]
"""A comparison, its reference and its error, as :func:`all_comparisons` gives them."""


def of_failure(case: Case, sample: int) -> str | None:
    """Return the program of a sample of `case` that failed, if one of at most 40 lines shows the
    failure.

    The text says if writing it failed.
    """
    if case.claim is None:
        return None
    again = replace(case, only=sample)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            script_of_failure = of_case(again, case.claim)
    except NoScript:
        return None
    except Exception as error:  # it must not take the place of the failure that is reported
        return f"# it could not be written: {type(error).__name__}: {error}"
    short = (
        script_of_failure.text.count("\n") <= _LINES and len(script_of_failure.text) <= _CHARACTERS
    )
    if not short or not script_of_failure.differs:
        return None
    return script_of_failure.text


def of_case(case: Case, claim: Claim) -> Script:
    """Return the program of the first call whose error is not the one due, else of the first
    comparison that fails, else of the first one.

    Raises NoScript if there is no program.
    """
    reasons: dict[str, None] = {}
    for call in wrong_errors(case, claim):
        try:
            return of_call(case, *call)
        except NoScript as reason:
            reasons[str(reason)] = None
    comparisons = list(all_comparisons(case, claim))
    if reasons and not comparisons:
        raise NoScript("; ".join(reasons))
    return first(case, comparisons)


def first(case: Case, found: list[Found]) -> Script:
    """Return the first program that shows a difference, else the first one."""
    if not found:
        raise NoScript("nothing is compared on this sample")
    reasons: dict[str, None] = {}
    # A reader wants the smallest inputs on which the failure shows.
    small_failures_first = sorted(found, key=lambda one: (one[2] is None, _size(one[0])))
    shown = list(_scripts(case, small_failures_first, reasons))
    if not shown:
        raise NoScript("; ".join(reasons))
    return next((one for one in shown if one.differs), shown[0])


def _scripts(case: Case, comparisons: list[Found], reasons: dict[str, None]) -> Iterator[Script]:
    """Yield the programs of comparisons, until one shows a difference. Note in `reasons` why one
    has none.
    """
    fails = any(error is not None for *_, error in comparisons)
    for comparison, word, error in comparisons[:_TRIED]:
        if fails and error is None:
            return
        try:
            program = script(case, comparison, word)
        except NoScript as reason:
            reasons[str(reason)] = None
            continue
        yield program
        if program.differs or not fails:
            return


def _size(comparison: Comparison) -> float:
    """Return the elements of all inputs. A program on none shows the least."""
    return sum(map(Tensor.numel, comparison.program.inputs)) or math.inf


_TRIED = 40  # comparisons of a cell
_LINES, _CHARACTERS = 40, 6_000  # of a program in a report of a failure
