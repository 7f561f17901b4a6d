"""Run one cell of the matrix. Its only action is `assert_same`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gen.checks import (
    batch_axis,
    drawn_programs,
    forms,
    illformed,
    kernels,
    memory_access,
    on_device,
    overloads,
    python_state,
    ranges,
    refusals,
    wrong_calls,
)
from gen.checks.case.chosen_samples import Subject, chosen_samples
from gen.checks.case.claim import Claim
from gen.checks.case.documented_errors import call_of, documented_errors
from gen.checks.case.evidence import Evidence
from gen.checks.case.preconditions import (
    require_device,
    require_op_of_target,
    require_op_of_torch,
    require_words,
)
from gen.checks.compare import Rule, Seen, Tally
from gen.checks.comparison.comparison import Comparison
from gen.checks.entries import Known
from gen.checks.instances import instances
from gen.checks.pipelines import Program, run_target
from gen.checks.tables import Cell, Family
from gen.devices.host_runs import host_runs
from gen.devices.place import Place, place_of
from gen.language.axes import OF_ARGUMENTS, USUAL, Axes
from gen.language.pipeline import CAPTURES
from gen.outcomes import Lacking, Uncovered, Unsuitable, Vacuous
from gen.samples import opinfo, points
from gen.samples.samples import Sample
from gen.samples.seeds import stable_seed
from gen.targets.protocol import Target

__all__ = ["Case", "SampleFailure"]


@dataclass(frozen=True)
class SampleFailure:
    """A sample that failed."""

    # None if the case as a whole failed
    sample: int | None
    description: str
    error: Exception
    # whether the call had to raise, so that any other error is of the wrong kind
    asks_error: bool = False


def _ignore_sample(sample: int, description: str) -> None:
    """Do nothing when a sample is about to run."""


@dataclass
class Case:
    """An op × dtype × check × axes on a target and device."""

    cell: Cell
    check: str
    family: Family
    target: Target
    device: str = "cpu"
    # The known deviations that apply to this run. The case itself uses those of the kinds
    # `vanishes` and `tolerance`, and :mod:`gen.run.verdict` the others.
    entries: Mapping[str, Known] = field(default_factory=dict)
    # the one sample to run, or None for all
    only: int | None = None
    # whether the limits on the number of samples are lifted
    all_samples: bool = False
    # gets the number and the description of each sample that is about to run
    on_sample: Callable[[int, str], object] = _ignore_sample
    # gets the samples that failed; without it the first failure is raised
    on_failures: Callable[[Sequence[SampleFailure]], object] | None = None
    # the number of samples that were compared
    compared: int = 0
    seen: Seen = field(default_factory=Seen)
    # what the case has asserted
    claim: Claim | None = None
    _failures: list[SampleFailure] = field(default_factory=list)
    _on_host: dict[str, None] = field(default_factory=dict)  # ops that the device left to the CPU

    @property
    def op(self) -> str:
        return self.cell.op

    @property
    def dtype(self) -> str:
        return self.cell.dtype

    @property
    def axes(self) -> Axes:
        return self.cell.axes

    @property
    def row(self) -> Mapping[str, Any]:
        """Return the op's row in the family's table. It is empty if everything comes from
        OpInfo.
        """
        return self.family.ops.get(self.op, {})

    @property
    def seed(self) -> int:
        """Return the seed of the choices that a case makes, from its id.

        Samples are seeded by op and dtype, so that cases share them. A jitted case makes the
        choices of its plain form, and a row that moved those of its former name.
        """
        name = self.row.get("former_name", self.op) + self.cell.id.removeprefix(self.op)
        return stable_seed(self.family.name, self.check, name.removesuffix("-jitted"))

    @property
    def place(self) -> Place | None:
        """Return where the target runs, if that is another device than that of the samples."""
        return place_of(self.device)

    @property
    def vanishes(self) -> bool:
        return any(entry.kind == "vanishes" for entry in self.entries.values())

    @property
    def _few(self) -> bool:
        """Return whether the case runs fewer and smaller samples, because a capture costs more than
        a call.

        A case with an expected failure runs those that its plain form runs: the failure may be in
        any of them.
        """
        if getattr(self.target, "slow", False):
            return True
        return self.axes.jitted and not any(
            entry.kind == "xfail" for entry in self.entries.values()
        )

    def begin(self, sample: int, description: str) -> None:
        """Note that a sample is about to run."""
        self.on_sample(sample, description)

    def finish(self, failures: Sequence[SampleFailure]) -> None:
        """End an assertion: hand the failures over, or raise the first one."""
        if self.on_failures is not None:
            self.on_failures(failures)
            return
        for failure in failures:
            failure.error.add_note(
                f"{self.cell.id}, sample {failure.sample}: {failure.description}"
            )
            raise failure.error

    def runs(self, turn: int) -> bool:
        """Return whether the sample with this number is to run."""
        return self.only in (None, turn)

    def assert_same(
        self,
        pipeline: str,
        *,
        against: str | Sequence[str],
        form: str = USUAL.form,
        layout: str = USUAL.layout,
        values: str = USUAL.values,
    ) -> None:
        """Assert that a pipeline over the target gives what it gives over each reference.

        A generated check makes one such assertion::

            def test_vmap_of_vjp(case):
                case.assert_same("vmap . vjp", against="loop")

        The claim holds on every sample, or the failures of samples go to :meth:`finish`.

        Args:
            pipeline: The transforms over the op, outermost first, as `matrix.yaml` writes them.
            against: The words of one reference or several.
            form: How the op is called, such as ``inplace``. An axis of the case takes precedence
                over this argument, and over the next two.
            layout: How the memory of the inputs lies, such as ``transposed``.
            values: Which numbers the inputs have, such as ``special``.

        Raises:
            Vacuous: Nothing was compared, or only zeros with zeros.
            Lacking: The target, the installed torch or the device lacks something that is needed.
            Uncovered: The device has left an op to the CPU.
        """
        # for the stand-alone program of a failure, which makes the same assertion again
        self.claim = claim = Claim(pipeline, against, form, layout, values)
        axes = claim.axes_of(self.cell)
        # What the target or the installed torch lacks ends the case before any sample is drawn.
        require_words(self.target, self.family.name, claim.parsed, axes, claim.references)
        require_op_of_torch(self.op, self.row, self.dtype, claim.parsed)
        require_op_of_target(self.target, self.op, axes, claim.references)
        require_device(self.place, self.device, self.dtype, axes)
        self._failures = []
        if claim.is_of_errors(axes):
            self._assert_errors(axes)
        else:
            with self._drawing(claim):
                self._assert_samples(claim, axes)
        self.finish(self._failures)
        if self._on_host and not self._failures:
            ops = ", ".join(self._on_host)
            raise Uncovered(f"device {self.device} ran {ops} on the CPU")

    def _drawing(self, claim: Claim) -> AbstractContextManager[None]:
        """Return the context in which a sample of torch's database draws its numbers.

        A graph repeats the draw alone, and a device draws other numbers by a seed of OpInfo's.
        """
        is_apart = self.place is not None or bool(CAPTURES.intersection(claim.parsed.stages))
        if is_apart and opinfo.may_have(self.op, self.row):
            return opinfo.drawing_from_outside()
        return nullcontext()

    def _assert_errors(self, axes: Axes) -> None:
        """Assert that each documented error input of the op raises its error."""
        if self.device == "meta":
            raise Lacking(
                "kernels of the meta device check their inputs in other words, "
                "and values not at all"
            )
        documented = documented_errors(self.op, self.row, self.dtype)
        if not documented:
            raise Vacuous("the op has no error inputs")
        for turn, (sample, kind, match) in enumerate(documented):
            if not self.runs(turn):
                continue
            self.begin(turn, sample.description)
            try:
                call = call_of(sample, self.target, self.place, axes.jitted)
                refusals.assert_raises(call, kind, match)
            except Exception as error:
                failure = SampleFailure(turn, sample.description, error, asks_error=True)
                self._failures.append(failure)
            self.compared += 1

    # --- samples ----------------------------------------------------------------------------------

    def _assert_samples(self, claim: Claim, axes: Axes) -> None:
        """Run the samples in turn. Raise Vacuous if they show nothing."""
        evidence = Evidence(axes, claim.references, self.vanishes, self.device == "meta")
        chosen, reserve = chosen_samples(self.subject, claim, axes)
        for turn, sample in enumerate([*chosen, *reserve]):
            # The reserve is looked at only while the chosen samples show nothing.
            if turn >= len(chosen) and (self._failures or not evidence.is_missing):
                break
            if not self.runs(turn):
                continue
            before = evidence.tally.entries
            self.begin(turn, sample.description)
            try:
                self._assert_sample(sample, turn, claim, evidence)
            # says nothing of the other samples, but of a case in which nothing is compared
            except Unsuitable as reason:
                evidence.note_reason(reason)
            # the same for every sample, so it is the outcome of the case
            except Lacking:
                raise
            except Exception as error:
                # One sample does not hide another one's error.
                self._failures.append(SampleFailure(turn, sample.description, error))
            self.compared += evidence.tally.entries > before
        self.require_sample(len(chosen) + len(reserve))
        if not self._failures and self.only is None:
            evidence.require()

    @property
    def subject(self) -> Subject:
        """Return what decides on which samples the case runs."""
        return Subject(self.family.name, self.op, self.row, self.dtype, self._few, self.all_samples)

    def require_sample(self, count: int) -> None:
        """Raise Vacuous if the user asked for a sample whose number is `count` or more."""
        if self.only is not None and self.only >= count:
            raise Vacuous(
                f"--sample {self.only}: "
                f"the cell has {count} sample{'s' * (count != 1)}, counted from 0"
            )

    def _assert_sample(self, sample: Sample, turn: int, claim: Claim, evidence: Evidence) -> None:
        """Run the check on one sample. Raises Unsuitable if the check does not apply to it."""
        axes, stages = evidence.axes, claim.stages
        # The plain op runs first: what torch warns of once is not the target's.
        draws = sample.facts.random
        if "vmap" in stages:
            _require_batchable(sample, stages, draws)
        assert_otherwise = _assertion_without_comparison(
            self.target, sample, claim, axes, self.rule()
        )
        if assert_otherwise is not None:
            if self.place is not None:
                raise Lacking("this check makes its calls on the CPU alone")
            assert_otherwise(evidence.tally)
            return
        for comparison in self.comparisons(sample, turn, stages, axes, evidence.reasons):
            if axes.form in forms.REFUSED:
                self._assert_form_refused(comparison, evidence)
            else:
                self._assert_comparison(comparison, evidence)

    def comparisons(
        self,
        sample: Sample,
        turn: int,
        stages: Sequence[str],
        axes: Axes,
        reasons: dict[str, None],
    ) -> Iterator[Comparison]:
        """Yield each program of the sample, to be compared with references.

        `stages` are innermost first. `reasons` gets why a program is left out.
        """
        # The first sample begins with the plainest pattern. Others begin where the seed says, so
        # that cases of one op differ.
        turn_of_patterns = 0 if turn == 0 else turn + self.seed
        for program, label in instances(
            sample, stages, axes, turn == 0, turn_of_patterns, reasons, self._few
        ):
            if axes.values in ("extreme", *points.WORDS) and not _has_reference(program):
                reasons[f"{label}: the reference itself refuses such values"] = None
                continue
            place = f"{program.label}, {label}" if label else program.label
            yield Comparison(
                self.target,
                self.op,
                sample,
                program,
                stages,
                axes,
                self.rule(),
                place,
                self.device,
            )

    def rule(self) -> Rule:
        """Return how results are compared: within the bounds of a `tolerance` entry, if there is
        one.
        """
        # the reference of a number has its derivative by differences
        numeric = self.axes.form == "tensor_number"
        for entry in self.entries.values():
            if entry.kind == "tolerance":
                return Rule(entry.rtol or 0.0, entry.atol or 0.0, numeric=numeric)
        if self.place is None:
            return Rule(numeric=numeric)
        return Rule(least=on_device.tolerances_of(self.place))

    # --- comparisons ------------------------------------------------------------------------------

    def _assert_form_refused(self, comparison: Comparison, evidence: Evidence) -> None:
        """Assert that the target refuses a form in which no result would be right."""
        inputs = forms.laid_out(comparison.program.inputs, "contiguous")

        def call() -> object:
            return run_target(
                self.target,
                comparison.program,
                inputs,
                comparison.stages,
                comparison.sample,
                place=comparison.place,
            )

        refusals.assert_raises(call, RuntimeError, forms.REFUSED[evidence.axes.form])
        evidence.count_refusal()

    def _assert_comparison(self, comparison: Comparison, evidence: Evidence) -> None:
        """Compare with each of the references. A form that may be refused counts as compared."""
        before = self._host_count()
        for word in evidence.references:
            try:
                if comparison.axes.refusal is not None:
                    refusals.assert_right_or_refused(comparison, word, evidence.tally)
                else:
                    comparison.against(word, evidence.tally)
            except Unsuitable as reason:
                evidence.note_reason(f"against {word}: {reason}")
            # functions in Python and C++ raise different errors
            except Exception as error:
                if not forms.is_refusal(comparison.axes.form, error):
                    raise
                comparison.refusal = error
                evidence.count_refusal()
        if self.place is not None and self._host_count() > before:
            ops = on_device.host_ops(self.place, comparison.run)
            self._on_host.update(dict.fromkeys(ops))
        # The digest of what the target gave lets two runs be compared whose cells both pass.
        if comparison.refusal is not None:
            self.seen.refused(comparison.refusal)
        elif comparison.found is not None:
            self.seen.values(comparison.found)

    def _host_count(self) -> int:
        """Return how many ops the device has left to the CPU so far."""
        if self.place is None:
            return 0
        return host_runs(self.place.device.type).count


def _require_batchable(sample: Sample, stages: Sequence[str], draws: bool) -> None:
    """Raise Unsuitable for calls of which a loop over the batch is no reference.

    `draws`: whether the plain op draws random numbers.
    """
    may_draw = tuple(stages) == ("vmap",) and sample.draws
    if draws and not may_draw:
        raise Unsuitable("the op draws random numbers: no loop draws what a batch does")
    if any(text.startswith("torch.channels_last") for text in sample.signature[2]):
        raise Unsuitable(
            "channels_last is a format of whole tensors of one rank, "
            "and a batch has another; values do not show it"
        )


def _has_reference(program: Program) -> bool:
    """Return whether the reference runs the program without an error."""
    try:
        program.on_reference()
    except Exception:  # for example a decomposition that does not converge on NaN
        return False
    return True


# --- checks that make no comparison --------------------------------------------------------------


def _assertion_without_comparison(
    target: Target, sample: Sample, claim: Claim, axes: Axes, rule: Rule
) -> Callable[[Tally], None] | None:
    """Return what asserts the claim on the sample, and counts in a tally what it has looked at.

    None for the checks that make comparisons.
    """
    stages = claim.stages
    if axes.reach is not None:
        return partial(memory_access.assert_kept, target, sample, stages, axes.reach, axes.dynamic)
    if axes.moment is not None:
        return partial(python_state.assert_seen, target, sample, axes.moment)
    if axes.again is not None:
        return partial(drawn_programs.assert_programs, target, sample, axes.again)
    if axes.batch == "mistaken":
        return partial(batch_axis.assert_mistakes, target, sample)
    batched = "vmap" in stages
    by_values: dict[str, Callable[[Tally], None]] = {
        "ill_formed": partial(illformed.assert_refused, target, sample, axes.form),
        "overloads": partial(overloads.assert_forms_agree, target, sample, rule),
        "wrong_call": partial(wrong_calls.assert_same_refusals, target, sample, batched),
        "wrong_number": partial(wrong_calls.assert_same_numbers, target, sample),
        "neighbours": partial(wrong_calls.assert_memory_kept, target, sample),
        "wrong_arguments": partial(kernels.assert_no_faults, target, sample),
    }
    if axes.values in by_values:
        return by_values[axes.values]
    if axes.values in ("out_of_range", "no_index") or _asks_for_refusals(axes, claim.references):
        return partial(ranges.assert_in_range, target, sample, axes.values, batched)
    return None


def _asks_for_refusals(axes: Axes, references: Sequence[str]) -> bool:
    """Return whether a case is about points by the kind of an argument, and the plain op decides
    which of them a target refuses.
    """
    return axes.values in OF_ARGUMENTS and set(references) <= {"eager", "loop"}
