"""One cell of the matrix. Its only action is `assert_same`.

:mod:`gen.samples.choice` says on which samples it runs. Other modules build its pipeline, evaluate
it and compare results."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

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
from gen.checks.compare import Rule, Seen, Tally
from gen.checks.entries import Known
from gen.checks.evaluate import OF_ITSELF, Comparison, may_show_nothing
from gen.checks.instances import instances
from gen.checks.needed_words import lacking_among, needed_words
from gen.checks.pipelines import Program, run_target
from gen.checks.tables import Cell, Family
from gen.devices.host_runs import host_runs
from gen.devices.place import Place, place_of
from gen.language.axes import OF_ARGUMENTS, USUAL, Axes
from gen.language.pipeline import CAPTURES, Pipeline, parse
from gen.outcomes import Lacking, Mismatch, Uncovered, Unsuitable, Vacuous
from gen.samples import choice, opinfo, points, special_points
from gen.samples.samples import STORE, Sample, candidates, make_op
from gen.samples.seeds import stable_seed
from gen.targets.lacking_words import FAMILY
from gen.targets.protocol import Jitting, Target, Values
from gen.versions import is_for_installed

if TYPE_CHECKING:
    from gen.torch_private.test_helpers import OpInfo

__all__ = ["Case", "Lacking", "Mismatch", "SampleFailure", "Unsuitable", "Vacuous"]

_SAMPLES = "cpu"  # the device of samples and references, whatever that of the target is


@dataclass(frozen=True)
class SampleFailure:
    """A sample that failed. `sample` is None if the case as a whole failed. `asks_error`: the call
    had to raise, so that any other error is of the wrong kind.
    """

    sample: int | None
    description: str
    error: Exception
    asks_error: bool = False


@dataclass
class Case:
    """An op × dtype × check × axes on a target and device. `only` is the one sample to run;
    `all_samples` lifts the limits.

    `compared` counts the samples that were compared. `entries` are the known deviations that apply
    to this run. The case itself uses the kinds `vanishes` and `tolerance`. :mod:`gen.run.verdict`
    uses the others.
    """

    cell: Cell
    check: str
    family: Family
    target: Target
    device: str = "cpu"
    entries: Mapping[str, Known] = field(default_factory=dict)
    only: int | None = None
    all_samples: bool = False
    compared: int = 0
    seen: Seen = field(default_factory=Seen)
    asserted: dict[str, Any] = field(default_factory=dict)  # the arguments of `assert_same`
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
    def vanishes(self) -> bool:
        return any(entry.kind == "vanishes" for entry in self.entries.values())

    def finish(self, failures: list[SampleFailure], /) -> None:
        """End an assertion: raise the first failure.

        The plug-in replaces this method by its own.
        """
        for failure in failures:
            failure.error.add_note(
                f"{self.cell.id}, sample {failure.sample}: {failure.description}"
            )
            raise failure.error

    def begin(self, sample: int, description: str, /) -> None:
        """Note that a sample is about to run.

        The plug-in replaces this method by its own, to know where a process died.
        """

    def assert_same(
        self,
        pipeline: str,
        *,
        against: str | Sequence[str],
        form: str = USUAL.form,
        layout: str = USUAL.layout,
        values: str = USUAL.values,
    ) -> None:
        """Assert that the pipeline over the target equals the pipeline over each reference in
        `against`, on every sample.

        An axis of the case takes precedence over the argument of the same name. Failures of samples
        go to :meth:`finish`. Raises Vacuous if nothing was compared, or only zeros with zeros.
        Raises Lacking if the target lacks a stage.
        """
        # for the stand-alone program of a failure, which makes the same assertion again
        self.asserted = {
            "pipeline": pipeline,
            "against": against,
            "form": form,
            "layout": layout,
            "values": values,
        }
        # What the target or the installed torch lacks ends the case before any sample is drawn.
        parsed = parse(pipeline)
        axes = self.axes.fixed(form=form, layout=layout, values=values)
        words = (against,) if isinstance(against, str) else tuple(against)
        self._require(parsed, axes, words)
        self._require_op_of_torch(parsed)
        self._require_own_op(axes, words)
        self._require_device(axes)
        # Failures are collected, so that one sample does not hide another one's error.
        failures: list[SampleFailure] = []
        of_torch = opinfo.may_have(self.op, self.row)
        if words == ("raises",) and axes.form == "functional":
            self._assert_errors(axes, failures)
        else:
            drawing: AbstractContextManager[None] = nullcontext()
            # a graph repeats the draw alone, and a device draws other numbers by a seed of OpInfo's
            if of_torch and (self.place is not None or CAPTURES.intersection(parsed.stages)):
                drawing = opinfo.drawing_from_outside()
            with drawing:
                self._assert_samples(parsed, axes, words, failures)
        self.finish(failures)
        if self._on_host and not failures:
            ops = ", ".join(self._on_host)
            raise Uncovered(f"device {self.device} ran {ops} on the CPU")

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

    def _require(self, pipeline: Pipeline, axes: Axes, words: Sequence[str]) -> None:
        """Raise Lacking if the target lacks a stage or another method that the case needs."""
        needed = [*needed_words(pipeline.stages, axes, words), FAMILY + self.family.name]
        if lacking := lacking_among(needed, self.target.lacks):
            raise Lacking(f"target {self.target.name} lacks {', '.join(lacking)}")

    def _require_op_of_torch(self, pipeline: Pipeline) -> None:
        """Raise Lacking if the installed torch lacks what the row needs.

        The matrix names the version of torch that it was written for. The installed one may lack
        the op, or its derivatives, or samples of the dtype, or a row is for other versions. No text
        names the installed version: runs on two versions that both lack an op are to compare as
        equal.
        """
        if not is_for_installed(self.row.get("torch")):
            raise Lacking(f"the row is for torch {self.row['torch']}, and another one runs")
        if not opinfo.may_have(self.op, self.row):
            return
        of_database = self.row.get("samples", "opinfo") == "opinfo"
        info = opinfo.lookup(self.op)
        if info is None and (of_database or not opinfo.is_there(self.op)):
            raise Lacking(f"this torch has no {self.op}")
        if info is not None and of_database:
            self._require_dtype_of_torch(info, pipeline)

    def _require_dtype_of_torch(self, info: OpInfo, pipeline: Pipeline) -> None:
        """Raise Lacking if the op does not take the dtype, or has no derivative of it."""
        dtype = getattr(torch, self.dtype)
        if dtype not in info.supported_dtypes(_SAMPLES):
            raise Lacking(f"this torch has no {self.op} of {self.dtype}")
        if not pipeline.differentiates:
            return
        if not opinfo.differentiates(info, dtype, _SAMPLES):
            raise Lacking(f"this torch has no derivative of {self.op} of {self.dtype}")

    @property
    def place(self) -> Place | None:
        """Return where the target runs, if that is another device than that of the samples."""
        return place_of(self.device)

    def _require_device(self, axes: Axes) -> None:
        """Raise Lacking if the device does not hold the dtype, or the check is about the CPU."""
        if self.place is None:
            return
        refusal = self.place.refusal_of(getattr(torch, self.dtype))
        if refusal:
            raise Lacking(f"device {self.device} holds no tensors of {self.dtype}: {refusal}")
        if axes.form in ("autocast", "autocast_half"):
            raise Lacking(
                "which ops autocast casts is known of the CPU, and each device has a list"
            )

    def _require_own_op(self, axes: Axes, words: Sequence[str]) -> None:
        """Raise Lacking if a target with ops of its own does not run this case.

        Such a target runs the ops that it has, without effect on their arguments. Error inputs are
        for ops in torch.
        """
        implementation = getattr(self.target, "op", None)
        if implementation is None:
            return
        if implementation(self.op) is None:
            raise Lacking(f"target {self.target.name} has no {self.op}")
        if axes.form != "functional" or axes.values == "ill_formed" or "raises" in words:
            raise Lacking(
                f"target {self.target.name} has ops of its own: "
                "no variants that write, no documented errors"
            )

    # --- samples ----------------------------------------------------------------------------------

    def _assert_samples(
        self,
        pipeline: Pipeline,
        axes: Axes,
        words: tuple[str, ...],
        failures: list[SampleFailure],
    ) -> None:
        """Run the samples in turn, and add each failure to `failures`. Raise Vacuous if they show
        nothing.
        """
        # The reserve is looked at only while the chosen samples show nothing.
        stages = pipeline.stages[::-1]  # innermost first
        reasons: dict[str, None] = {}
        tally = Tally()
        chosen, reserve = self._samples(pipeline, words, axes)
        for turn, sample in enumerate([*chosen, *reserve]):
            if turn >= len(chosen) and not self._needs_reserve(failures, tally):
                break
            if self.only not in (None, turn):
                continue
            before = tally.entries
            self.begin(turn, sample.description)
            try:
                self._assert_sample(sample, turn, stages, axes, words, tally, reasons)
            # says nothing of the other samples, but of a case in which nothing is compared
            except Unsuitable as reason:
                reasons[str(reason)] = None
            # the same for every sample, so it is the outcome of the case
            except Lacking:
                raise
            except Exception as error:
                failures.append(SampleFailure(turn, sample.description, error))
            self.compared += tally.entries > before
        self._require_sample(len(chosen) + len(reserve))
        if not failures and self.only is None:
            self._require_proof(tally, reasons, axes, words)

    def _needs_reserve(self, failures: Sequence[SampleFailure], tally: Tally) -> bool:
        """Return whether the chosen samples have shown nothing yet, though something is due."""
        return not failures and not tally.nonzero and not self.vanishes

    def _require_proof(
        self,
        tally: Tally,
        reasons: Mapping[str, None],
        axes: Axes,
        words: tuple[str, ...],
    ) -> None:
        """Raise Lacking or Vacuous unless the samples together have shown something.

        Lacking is for checks that by their nature apply to some ops only.
        """
        # Words of degenerate points are asked of every op, and most ops have none of them.
        why = "all results are zero on both sides"
        if not tally.entries:
            why = "; ".join(list(reasons)[:3])
        if axes.values in points.WORDS and not tally.nonzero:
            raise Lacking(f"no {axes.values.replace('_', ' ')} to compare at: {why}")
        self._require_rows_that_repeat(tally, axes, why)
        if not tally.entries and may_show_nothing(axes, words):
            raise Lacking(f"nothing to compare: {why}")
        if not (tally.entries and _asks_beside_values(axes, words)):
            self._refuse_vacuity(tally, reasons)

    def _require_rows_that_repeat(self, tally: Tally, axes: Axes, why: str) -> None:
        """Raise Lacking if rows had to repeat, and the op has no result there that is not zero.

        A function of differences is rightly 0 where all numbers are equal.
        """
        if axes.layout == "expanded" and not (tally.nonzero or self.vanishes):
            raise Lacking(f"nothing to compare where rows repeat: {why}")

    def _samples(
        self, pipeline: Pipeline, words: tuple[str, ...], axes: Axes
    ) -> tuple[list[Sample], list[Sample]]:
        """Return the samples to run, and a few more for the case that these compare nothing, or
        only zeros with zeros."""
        dtype = getattr(torch, self.dtype)
        device = _SAMPLES
        pool = STORE.pool(
            self.family.name, self.op, self.row, dtype, device, wrapped=pipeline.differentiates
        )
        if axes.values == "special":
            return special_points.chosen(pool), []
        pool = choice.made_by(pool, axes.made)
        # These checks choose inputs by their numbers, so further calls of the op show more.
        settled = "definition" in words or axes.values in (*points.NUMBERS, *_REFUSED)
        more = self._settings(dtype, device) if settled else []
        if axes.values in points.NUMBERS and pool and points.is_scalar(pool[0]):
            return points.chosen([*pool, *more]), []
        limit = choice.budget(pipeline, words, refused=axes.values in _REFUSED)
        if _asks_beside_values(axes, words):
            limit = limit.at_most(*choice.BESIDE_VALUES)
        if self._few:
            limit = limit.at_most(*choice.JITTED)
        return choice.pick(pool, more, limit, every=self.all_samples)

    def _settings(self, dtype: torch.dtype, device: str) -> list[Sample]:
        """Return the further calls that the row names for checks at degenerate points."""
        if not self.row.get("settings"):
            return []
        return candidates(
            make_op(self.op, self.row),
            {"samples": self.row["settings"]},
            dtype,
            device,
            wrapped=False,
        )

    def _assert_sample(
        self,
        sample: Sample,
        turn: int,
        stages: Sequence[str],
        axes: Axes,
        words: tuple[str, ...],
        tally: Tally,
        reasons: dict[str, None],
    ) -> None:
        """Run the check on one sample. Raises Unsuitable if the check does not apply to it."""
        # The plain op runs first: what torch warns of once is not the target's.
        draws = sample.facts.random
        if "vmap" in stages:
            _require_batchable(sample, stages, draws)
        assert_otherwise = self._assertion_without_comparison(sample, stages, axes, words)
        if assert_otherwise is not None:
            if self.place is not None:
                raise Lacking("this check makes its calls on the CPU alone")
            assert_otherwise(tally)
            return
        for comparison in self._comparisons(sample, turn, stages, axes, reasons):
            if axes.form in forms.REFUSED:
                self._assert_form_refused(comparison, axes.form, tally)
            else:
                self._assert_comparison(comparison, words, tally, reasons)

    def _assertion_without_comparison(
        self, sample: Sample, stages: Sequence[str], axes: Axes, words: tuple[str, ...]
    ) -> Callable[[Tally], None] | None:
        """Return the assertion of a check that compares no results with references.

        None for the other checks, which make comparisons.
        """
        if axes.reach is not None:
            reach, dynamic = axes.reach, axes.dynamic
            return partial(memory_access.assert_kept, self.target, sample, stages, reach, dynamic)
        if axes.moment is not None:
            return partial(python_state.assert_seen, self.target, sample, axes.moment)
        if axes.again is not None:
            return partial(drawn_programs.assert_programs, self.target, sample, axes.again)
        if axes.batch == "mistaken":
            return partial(batch_axis.assert_mistakes, self.target, sample)
        batched = "vmap" in stages
        by_values: dict[str, Callable[[Tally], None]] = {
            "ill_formed": partial(illformed.assert_refused, self.target, sample, axes.form),
            "overloads": partial(overloads.assert_forms_agree, self.target, sample, self._rule()),
            "wrong_call": partial(wrong_calls.assert_same_refusals, self.target, sample, batched),
            "wrong_number": partial(wrong_calls.assert_same_numbers, self.target, sample),
            "neighbours": partial(wrong_calls.assert_memory_kept, self.target, sample),
            "wrong_arguments": partial(kernels.assert_no_faults, self.target, sample),
        }
        if axes.values in by_values:
            return by_values[axes.values]
        if axes.values in ("out_of_range", "no_index") or _asks_for_refusals(axes, words):
            return partial(ranges.assert_in_range, self.target, sample, axes.values, batched)
        return None

    def _assert_form_refused(self, comparison: Comparison, form: str, tally: Tally) -> None:
        """Assert that the target refuses a form in which no result would be right."""
        program, sample = comparison.program, comparison.sample
        inputs = forms.laid_out(program.inputs, "contiguous")
        call = partial(
            run_target,
            self.target,
            program,
            inputs,
            comparison.stages,
            sample,
            place=comparison.place,
        )
        refusals.assert_raises(call, RuntimeError, forms.REFUSED[form])
        tally.entries += 1
        tally.nonzero += 1

    def _assert_comparison(
        self,
        comparison: Comparison,
        words: tuple[str, ...],
        tally: Tally,
        reasons: dict[str, None],
    ) -> None:
        """Compare with each of the references. A form that may be refused counts as compared."""
        axes = comparison.axes
        before = 0 if self.place is None else host_runs(self.place.device.type).count
        for word in words:
            try:
                if axes.refusal is not None:
                    refusals.assert_right_or_refused(comparison, word, tally)
                else:
                    comparison.against(word, tally)
            except Unsuitable as reason:
                reasons[f"against {word}: {reason}"] = None
            except RuntimeError as error:
                if not forms.is_refusal(axes.form, error):
                    raise
                comparison.refusal = error
                tally.entries += 1
                tally.nonzero += 1
        if self.place is not None and host_runs(self.place.device.type).count > before:
            ops = on_device.host_ops(self.place, comparison.run)
            self._on_host.update(dict.fromkeys(ops))
        # The digest of what the target gave lets two runs be compared whose cells both pass.
        if comparison.refusal is not None:
            self.seen.refused(comparison.refusal)
        elif comparison.found is not None:
            self.seen.values(comparison.found)

    def _comparisons(
        self,
        sample: Sample,
        turn: int,
        stages: Sequence[str],
        axes: Axes,
        reasons: dict[str, None],
    ) -> Iterator[Comparison]:
        """Yield each program of the sample, to be compared with references."""
        turn_of_patterns = 0 if turn == 0 else turn + self.seed
        for program, label in instances(
            sample, stages, axes, turn == 0, turn_of_patterns, reasons, self._few
        ):
            if axes.values in ("extreme", *points.WORDS) and not _has_reference(program):
                reasons[f"{label}: the reference itself refuses such values"] = None
                continue
            place = _place(program.label, label)
            yield Comparison(
                self.target,
                self.op,
                sample,
                program,
                stages,
                axes,
                self._rule(),
                place,
                self.device,
            )

    def failing(
        self,
        pipeline: str,
        *,
        against: str | Sequence[str],
        form: str = USUAL.form,
        layout: str = USUAL.layout,
        values: str = USUAL.values,
    ) -> Iterator[tuple[int, Comparison, str, Exception | None]]:
        """Yield ``(sample, comparison, reference, error)`` for each comparison that
        :meth:`assert_same` makes, in its order. The error is None if the two agree.

        For tools that show a comparison. Samples that are not suitable, or on which the op itself
        raises, are left out.
        """
        parsed = parse(pipeline)
        axes = self.axes.fixed(form=form, layout=layout, values=values)
        words = (against,) if isinstance(against, str) else tuple(against)
        # forms of calls are no programs to show: the message names the overload and the difference
        if words == ("raises",) or axes.values in ("overloads", "wrong_arguments"):
            return
        for turn, sample in self._samples_to_show(parsed, words, axes):
            # A failure of the op itself is a finding of `raising`.
            if sample.error is not None:
                continue
            try:
                comparisons = list(self._comparisons(sample, turn, parsed.stages[::-1], axes, {}))
            except Unsuitable:
                continue
            for comparison in comparisons:
                for word in words:
                    try:
                        comparison.against(word, Tally())
                    except Unsuitable:
                        continue
                    except Exception as error:
                        yield turn, comparison, word, error
                    else:
                        yield turn, comparison, word, None

    def raising(
        self,
        pipeline: str,
        *,
        against: str | Sequence[str],
        form: str = USUAL.form,
        layout: str = USUAL.layout,
        values: str = USUAL.values,
    ) -> Iterator[tuple[Sample, type[Exception] | None, str]]:
        """Yield the calls whose error is not what :meth:`assert_same` asks for, as ``(sample,
        exception, pattern)``.

        Without an exception, the op itself raises on plain tensors where a result is due. With one,
        it raises something else or nothing.
        """
        words = (against,) if isinstance(against, str) else tuple(against)
        axes = self.axes.fixed(form=form, layout=layout, values=values)
        if words != ("raises",):
            yield from (
                (sample, None, "")
                for _, sample in self._samples_to_show(parse(pipeline), words, axes)
                if sample.error is not None
            )
        elif axes.form == "functional":
            documented = self._error_inputs()
            self._require_sample(len(documented))
            for sample, kind, match in documented if self.only is None else [documented[self.only]]:
                if not (isinstance(sample.error, kind) and re.search(match, str(sample.error))):
                    yield sample, kind, match

    def _samples_to_show(
        self, pipeline: Pipeline, words: tuple[str, ...], axes: Axes
    ) -> list[tuple[int, Sample]]:
        """Return the samples that a tool shows, with their numbers. If it asks for one, that may be
        of the reserve."""
        chosen, reserve = self._samples(pipeline, words, axes)
        self._require_sample(len(chosen) + len(reserve))
        numbered = list(enumerate([*chosen, *reserve]))
        return numbered[: len(chosen)] if self.only is None else [numbered[self.only]]

    def _require_sample(self, count: int) -> None:
        """Raise Vacuous if the user asked for a sample whose number is `count` or more."""
        if self.only is not None and self.only >= count:
            raise Vacuous(
                f"--sample {self.only}: "
                f"the cell has {count} sample{'s' * (count != 1)}, counted from 0"
            )

    def _rule(self) -> Rule:
        """Return how results are compared: within the bounds of a `tolerance` entry, if there is
        one.
        """
        for entry in self.entries.values():
            if entry.kind == "tolerance":
                return Rule(entry.rtol or 0.0, entry.atol or 0.0)
        if self.place is None:
            return Rule()
        return Rule(least=on_device.tolerances_of(self.place))

    def _refuse_vacuity(self, tally: Tally, reasons: Mapping[str, None]) -> None:
        """Raise Vacuous if nothing was compared, or only zeros that no entry expects."""
        why = "; ".join(list(reasons)[:3])
        # Many ops have no kernel for meta tensors, so this is no fault of the matrix.
        if not tally.entries and self.device == "meta":
            raise Lacking(f"nothing to compare on the meta device: {why}")
        if not tally.entries:
            raise Vacuous(f"nothing was compared: {why or 'every sample is empty'}")
        if self.vanishes and tally.nonzero and self.device != "meta":
            raise Mismatch(
                "an entry says that the results vanish, but some are not zero: "
                "remove the entry or narrow it"
            )
        if not tally.nonzero and not self.vanishes:
            raise Vacuous(
                "all results are zero on both sides; if that is right, "
                "a `vanishes` entry says so with its reason"
            )

    # --- error inputs -----------------------------------------------------------------------------

    def _assert_errors(self, axes: Axes, failures: list[SampleFailure]) -> None:
        """Assert that each documented error input raises its error. Failures are added to
        `failures`.
        """
        if self.device == "meta":
            raise Lacking(
                "kernels of the meta device check their inputs in other "
                "words, and values not at all"
            )
        error_inputs = self._error_inputs()
        if not error_inputs:
            raise Vacuous("the op has no error inputs")
        for index, (sample, kind, match) in enumerate(error_inputs):
            if self.only is not None and index != self.only:
                continue
            self.begin(index, sample.description)
            try:
                refusals.assert_raises(self._call_of(sample, axes.jitted), kind, match)
            except Exception as error:
                failures.append(SampleFailure(index, sample.description, error, asks_error=True))
            self.compared += 1

    def _error_inputs(self) -> list[tuple[Sample, type[Exception], str]]:
        """Return ``(sample, exception, pattern)`` for each documented error."""
        op = make_op(self.op, self.row)
        return list(refusals.documented_errors(op, self.row, getattr(torch, self.dtype)))

    def _call_of(self, sample: Sample, jitted: bool) -> Callable[[], object]:
        """Return the call of the op on the sample as a function, jitted or not."""

        def function(*tensors: object) -> Values:
            raw = sample.raw(sample.op.call, tensors)
            if raw is NotImplemented:
                raise TypeError(
                    f"{sample.op.name} returned NotImplemented, of which Python makes a TypeError"
                )
            return sample.outputs(raw)

        def call() -> object:
            made = cast(Jitting, self.target).jit(function) if jitted else function
            whole = self.target.forward(made)
            if self.place is None:
                return whole(*sample.inputs)
            with self.place.entered():
                return whole(*self.place.moved(sample.inputs))

        return call


def _require_batchable(sample: Sample, stages: Sequence[str], draws: bool) -> None:
    """Raise Unsuitable for calls of which a loop over the batch is no reference.

    `draws`: whether the plain op draws random numbers.
    """
    may_draw = stages == ("vmap",) and sample.draws
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


def _place(program: str, label: str) -> str:
    return f"{program}, {label}" if label else program


_REFUSED = (
    "ill_formed", "out_of_range", "no_index", "wrong_call", "wrong_number", "neighbours",
    "overloads", "wrong_arguments",
)  # fmt: skip


def _asks_for_refusals(axes: Axes, words: Sequence[str]) -> bool:
    """Return whether a case is about points by the kind of an argument, and the plain op decides
    which of them a target refuses.
    """
    return axes.values in OF_ARGUMENTS and set(words) <= {"eager", "loop"}


def _asks_beside_values(axes: Axes, words: Sequence[str]) -> bool:
    """Return whether a case is about something other than the values of an op, such as its memory,
    a mode around it or the batch."""
    if OF_ITSELF.issuperset(words) or axes.form in forms.BESIDE:
        return True
    if axes.values in {*OF_ARGUMENTS, "overloads", "wrong_arguments"}:
        return True
    has_mode = axes.under is not None or axes.refusal is not None
    return has_mode or axes.batch != "ordinary"
