"""The program of a call that raises where the matrix asks for a value, or that does not raise what
the matrix asks for."""

from __future__ import annotations

import re

from torch.overrides import resolve_name

from gen.checks.case import Case
from gen.samples.samples import Sample, located
from gen.scripts import python_values
from gen.scripts.python_values import NoScript
from gen.scripts.standalone import Script, heading, run
from gen.scripts.tracer import Tracer, text_of

__all__ = ["of_call"]

_TRIED = """
def tried(f, *args, **kwargs):  # what f returns, or the error that it raises
    try:
        return f(*args, **kwargs)
    except Exception as error:
        return error
"""


def of_call(case: Case, sample: Sample, kind: type[Exception] | None, match: str) -> Script:
    """The program that calls the op itself on a sample of `case`, as :meth:`Case.raising` gives
    them. Raises NoScript if it has none.

    `kind`: the exception that the matrix asks for, with a message that `match` is found in; None if
    it asks for a value."""
    if sample.wrap is not None:
        raise NoScript("the sample is called by a wrapper of OpInfo's")
    op, modules = _named(case, sample)
    tracer = Tracer()
    names = [f"x{place}" for place in range(len(sample.inputs))]
    args, kwargs = sample.rebuild(
        [tracer.named(name, x) for name, x in zip(names, sample.inputs, strict=True)]
    )
    given = ", ".join(
        ["", *map(text_of, args), *(f"{name}={text_of(value)}" for name, value in kwargs.items())]
    )
    if kind is not None:
        matching = f", with a message that matches {match!r}" if match else ""
        right, expected = (
            "what the matrix names as the error of this call",
            repr(f"{kind.__name__}{matching}"),
        )
    elif case.row.get("reference"):
        reference, further = _at(case.row["reference"])
        modules |= further
        right, expected = "the op's own reference", f"tried({reference}{given})"
    else:
        right, expected = "a value, for the matrix has this call as a sample of the op", '"a value"'
    lines = [
        heading(case),
        *(f"import {module}" for module in sorted({"torch", *modules})),
        _TRIED.rstrip(),
        "",
    ]
    lines += [
        f"{name} = {python_values.tensor(x)}" for name, x in zip(names, sample.inputs, strict=True)
    ]
    lines += [f"# right: {right}", f"expected = {expected}", 'print("expected", repr(expected))']
    lines += [
        "# the op itself, called directly",
        f"actual = tried({op}{given})",
        'print("actual  ", repr(actual))',
    ]
    text = "\n".join(lines) + "\n"
    return Script(text, _shows(text, kind, match))


def _shows(text: str, kind: type[Exception] | None, match: str) -> bool:
    found = run(text)["actual"]
    if kind is None:
        return isinstance(found, Exception)
    return not (isinstance(found, kind) and re.search(match, str(found)))


def _named(case: Case, sample: Sample) -> tuple[str, set[str]]:
    """The text of the op, and the modules that it is in."""
    if sample.op.info is None:
        return _at(case.row.get("call") or case.op)
    path = resolve_name(sample.op.call) if callable(sample.op.call) else None
    if path is None or not path.startswith("torch."):
        raise NoScript(f"OpInfo calls {case.op} by a function without a name in torch")
    return path, set()


def _at(path: str) -> tuple[str, set[str]]:
    module, attributes = located(path)
    return ".".join([module, *attributes]), {module}
