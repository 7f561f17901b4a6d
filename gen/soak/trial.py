"""Run one draw over a target and its references."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from gen.checks.case import Case
from gen.checks.compare import Rule, Tally
from gen.checks.comparison.comparison import Comparison
from gen.checks.instances import instances
from gen.checks.tables import Cell, Family
from gen.language.axes import USUAL
from gen.outcomes import Mismatch, stable_part
from gen.samples.samples import Sample, candidates, make_op
from gen.severity import Severity, severity_of_error
from gen.soak.space import Draw, derivatives
from gen.targets import load
from gen.targets.protocol import Target

Tensor = torch.Tensor
_POOLS = 32  # ops whose samples stay in memory
_ELEMENTS = {0: 5_000, 1: 1_000, 2: 200, 3: 60, 4: 30}  # of all inputs, by number of stages
_NUMERIC = 48  # elements for which differences are taken, with two runs for each element
_PROGRAMS = 2  # in_dims patterns of a draw


class Rejected(Exception):
    """The draw is no cell: the op or the reference does not take it."""


@dataclass(frozen=True)
class Failure:
    """What a target did wrong."""

    draw: Draw
    # the reference with which the target was compared
    word: str
    error: Exception
    # the comparison, which can write a script
    comparison: Comparison

    @property
    def kind(self) -> str:
        return type(self.error).__name__

    @property
    def severity(self) -> Severity:
        return severity_of_error(self.error)

    @property
    def cause(self) -> tuple[str, ...]:
        """What draws have in common that fail alike: an error and its text, whatever op shows it.
        Wrong values are of their op."""
        if self.severity is Severity.WRONG:
            return self.draw.subject.name, self.kind, stable_part(self.error)
        return self.kind, stable_part(self.error)


_pools: OrderedDict[tuple[str, str, bool], list[Sample]] = OrderedDict()


def _pool(draw: Draw) -> list[Sample]:
    """Return the samples of the op, smallest first."""
    subject, wrapped = draw.subject, derivatives(draw.stages) > 0
    key = (subject.name, draw.dtype, wrapped)
    if key not in _pools:
        all_samples = candidates(
            make_op(subject.name, subject.row),
            subject.row,
            getattr(torch, draw.dtype),
            "cpu",
            wrapped,
        )
        _pools[key] = sorted(all_samples, key=lambda sample: sample.numel)
        # The pool that was not used for the longest time goes first.
        if len(_pools) > _POOLS:
            _pools.popitem(last=False)
    _pools.move_to_end(key)
    return _pools[key]


def _sample(draw: Draw) -> Sample:
    """Return the sample of the draw, cut and simplified. Raises Rejected if the op does not take
    it.
    """
    fit = [sample for sample in _pool(draw) if sample.numel <= _ELEMENTS[len(draw.stages)]]
    if not fit:
        raise Rejected("no sample is small enough")
    sample = fit[draw.sample % len(fit)]
    if draw.size or draw.numbers != "as given":
        inputs = tuple(_simplify(_cut(x, draw.size), draw.numbers) for x in sample.inputs)
        sample = replace(sample, inputs=inputs, memory={}, _facts=None)
    try:
        _ = sample.facts
    except Exception as error:  # the op refuses the sample, with any error
        raise Rejected(str(error)) from None
    if sample.facts.random:
        raise Rejected("the op draws random numbers")
    return sample


def _cut(x: Tensor, size: int) -> Tensor:
    """Return the first entries in each dimension, at most `size` of them. 0: all."""
    return x[tuple(slice(size or None) for _ in x.shape)]


def _simplify(x: Tensor, numbers: str) -> Tensor:
    """Return the input with whole numbers or halves, where numbers of few digits are asked for."""
    if numbers == "as given" or not (x.is_floating_point() or x.is_complex()):
        return x.contiguous()
    per_unit = 1 if numbers == "whole" else 2
    if x.is_complex():
        return torch.complex(_simplify(x.real, numbers), _simplify(x.imag, numbers))
    return ((x.contiguous() * per_unit).round() / per_unit).to(x.dtype)


def case_of(draw: Draw, target: Target) -> Case:
    """Return the cell under which the draw is reported."""
    subject = draw.subject
    cell = Cell(subject.name, draw.dtype, USUAL, "full", ())
    rows = {}
    if subject.row:
        rows[subject.name] = subject.row
    return Case(cell, "soak", Family(subject.family, rows), target)


def run(draw: Draw, target: Target, running: Callable[[bool], None]) -> Failure | None:
    """Compare the draw with its references. None: all agree, or the matrix knows the error, or it
    is no fault of this target, since torch does the same.

    Raises Rejected if nothing can be compared. `running` is called with True before the target
    runs, and with False after.
    """
    if draw.excluded:
        raise Rejected("the matrix excludes it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compared = False
        for comparison, word in _comparisons(draw, _sample(draw), target):
            try:
                running(True)
                _ = comparison.actual
                running(False)
            except Exception as error:
                running(False)
                return _unless_known(Failure(draw, word, error, comparison))
            try:
                comparison.against(word, Tally())
            except Mismatch as error:
                return _unless_known(Failure(draw, word, error, comparison))
            except Exception:  # the reference does not take the program, with any error
                continue
            compared = True
    if not compared:
        raise Rejected("no reference compares anything")
    return None


def _comparisons(draw: Draw, sample: Sample, target: Target) -> Iterator[tuple[Comparison, str]]:
    """Yield the comparisons of a draw, each with the word of its reference."""
    values = "extreme" if draw.extreme else USUAL.values
    axes = USUAL.fixed(form=USUAL.form, layout=draw.layout, values=values)
    stages = draw.stages[::-1]
    rule = Rule()
    if draw.tolerance is not None:
        rule = Rule(*draw.tolerance)
    try:
        programs = []
        for program, label in instances(sample, stages, axes, False, draw.sample, {}, True):
            program.on_reference()
            programs.append((program, label))
            if len(programs) == _PROGRAMS:
                break
    except Exception as error:  # the reference refuses the program, with any error
        raise Rejected(str(error)) from None
    for program, label in programs:
        shown = f"{program.label} {label}".strip()
        comparison = Comparison(target, sample.op.name, sample, program, stages, axes, rule, shown)
        for word in _words(draw, sum(map(Tensor.numel, program.inputs))):
            yield comparison, word


def _words(draw: Draw, numel: int) -> list[str]:
    """Return the references of a draw. Differences are for few elements and derivatives, as they
    cost most.
    """
    if not draw.stages and draw.extreme:
        return ["float64"]
    if not draw.stages:
        return ["float64", "reference"]
    precise = draw.dtype in ("float64", "complex128") and not draw.extreme
    if precise and numel <= _NUMERIC and 1 <= derivatives(draw.stages) <= 2:
        return ["loop", "numeric"]
    return ["loop"]


def _unless_known(failure: Failure) -> Failure | None:
    """Return the failure, unless the matrix expects it, or torch shows it as well."""
    if _is_of_torch(failure):
        return None
    draw, error = failure.draw, failure.error
    for entry in draw.subject.known:
        if entry.error is None or not entry.covers(draw.dtype, draw.stages):
            continue
        if entry.error.expects(error):
            return None
    return failure


def _is_of_torch(failure: Failure) -> bool:
    """Return whether another target is not alone with a failure.

    Torch may refuse the program, too, or have the same results: those of a program that detaches a
    tensor differ from differences on any target. Or torch's engine is the reference, and
    differences of the values agree with the target, so that the engine is wrong.
    """
    comparison = failure.comparison
    if comparison.target.name == "torch":
        return False
    of_torch = replace(comparison, target=load("torch"), _actual=None, _made=None)
    is_mismatch = isinstance(failure.error, Mismatch)
    try:
        _ = of_torch.actual
    except Exception:  # it refuses the program, with any error
        return not is_mismatch
    if not is_mismatch:
        return False
    return comparison.agrees_with(of_torch) or _has_differences(failure)


def _has_differences(failure: Failure) -> bool:
    """Return whether derivatives that are not those of torch's engine are those by differences."""
    inputs = failure.comparison.program.inputs
    words = _words(failure.draw, sum(map(Tensor.numel, inputs)))
    if failure.word != "loop" or "numeric" not in words:
        return False
    try:
        failure.comparison.against("numeric", Tally())
    except Exception:  # a mismatch, or what differences do not take
        return False
    return True


def text(failure: Failure, target: Target) -> tuple[str | None, str]:
    """Return the failure as a stand-alone program, or None and why there is none."""
    from gen.scripts.python_values import NoScript
    from gen.scripts.standalone import script

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = script(case_of(failure.draw, target), failure.comparison, failure.word)
    except NoScript as error:
        return None, str(error)
    if not program.differs:
        return None, "the program shows no difference"
    return program.text, ""
