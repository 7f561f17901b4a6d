"""Run a program over the target and over each reference, and compare the results.

comparison = Comparison(target, "torch.sin", sample, program, ("vjp",), axes, rule, "vjp(f)")
comparison.against("numeric", tally)   # raises Mismatch where the two differ
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from gen.checks import autocasting, forms, on_device, repeating
from gen.checks.compare import Rule, Tally, compare, compare_kinds
from gen.checks.compare_definitions import compare_with_definition
from gen.checks.compare_exact import compare_with_exact, compare_with_standard
from gen.checks.comparison.double_precision import (
    are_wide,
    by_differences,
    coarsest_dtype,
    has_inexact_dtype,
    nudged_and_widened,
    project,
    require_differences,
)
from gen.checks.comparison.input_pieces import (
    Pieces,
    compare_with_abstract_kinds,
    on_meta,
    plain_outputs,
    splits_of,
    takes_gaps,
)
from gen.checks.comparison.own_references import by_own_reference
from gen.checks.comparison.reference_words import OF_ITSELF, PLAIN
from gen.checks.pipelines import Outputs, Program, nudged, run_target, widened
from gen.devices.place import Place, place_of
from gen.language.axes import Axes
from gen.language.pipeline import DERIVING
from gen.outcomes import Mismatch, Unsuitable
from gen.reference import Numeric, pieces
from gen.samples.descriptions import clone_with_strides
from gen.samples.samples import Sample
from gen.targets.protocol import Target
from gen.torch_private.loaded_with_torch import FakeTensorMode

Tensor = torch.Tensor
WRONG_DERIVATIVE = "its derivatives are not those by differences of its values"
"""The cause that mismatches of all programs of derivatives have: a wrong first derivative makes the
second one wrong, and the same formula is wrong in the eager session and in a transform."""
# stages whose results are gradients: a large gradient is compared in random directions
_LINEAR = frozenset({"vjp", "backward", "grad"})


@dataclass
class Comparison:
    """One program of one sample. The target runs it once, for any number of references."""

    target: Target
    # The name of the row.
    op: str
    sample: Sample
    program: Program
    # The transforms, innermost first.
    stages: Sequence[str]
    # the words of the cell
    axes: Axes
    # how results and reference are compared
    rule: Rule
    # Describes the program in messages.
    label: str
    device: str = "cpu"
    # The results of the last reference.
    expected: Outputs | None = None
    # The error of the target in place of results, where it may refuse.
    refusal: Exception | None = None
    _actual: Outputs | None = None  # the target's results, on the CPU
    _made: Outputs | None = None  # the target's results, on its device

    @property
    def found(self) -> Outputs | None:
        """Return the target's results, if it has been run and has not failed."""
        return None if self._made is None else self.actual

    def against(self, word: str, tally: Tally) -> None:
        """Raise Mismatch unless the target agrees with the reference called `word`. Raise
        Unsuitable if they cannot be compared."""
        self._compare_with(word, tally)
        # Whose memory a result has is a fact of torch's op on the device, not of a target.
        is_plain = not self.stages and self.axes.form == "functional"
        if self.place is not None and is_plain and self.target.name == "torch":
            try:
                on_device.compare_memory(self.place, self.sample, self.program.inputs)
            except Mismatch as mismatch:
                raise mismatch.reworded(f"{self.label}: {mismatch}") from None

    def agrees_with(self, other: Comparison) -> bool:
        """Return whether another target has these results of the same program.

        ``other``: the comparison of that target. Its results count as equal within the tolerance of
        this one.
        """
        try:
            self._compare(other.actual, Tally(), self.rule)
        except Mismatch:
            return False
        return True

    def _compare_with(self, word: str, tally: Tally) -> None:
        """Compare with one reference, see :meth:`against`."""
        # First what no reference has the numbers of, whatever it is: the meta device has none,
        # devices and batches draw others, and nobody documents how autocast rounds a user's op.
        if self.device == "meta":
            self._against_kinds(tally)
        elif self.place is not None and self.sample.facts.random and "vmap" not in self.stages:
            self._against_seeds(self.place, tally)
        elif self.sample.draws and "vmap" in self.stages:
            self._against_draws(tally)
        elif self.axes.form == "autocast_near":
            self._against_rounded(tally)
        elif word in PLAIN:
            self._compare(self.program.on_reference(), tally, self.rule)
        elif word in OF_ITSELF:
            self._against_itself(word, tally)
        else:
            self._against_other(word, tally)

    def _against_other(self, word: str, tally: Tally) -> None:
        """Compare with a reference that computes in another way than the target."""
        comparisons = {
            "numeric": self._against_numeric,
            "float64": self._against_float64,
            "reference": self._against_own_reference,
            "exact": self._against_exact,
            "definition": self._against_definition,
            "standard": self._against_standard,
            "pieces": self._against_pieces,
        }
        if word not in comparisons:
            names = (
                "loop, upstream, eager, numeric, float64, reference, exact, definition, standard, "
                "pieces, again, threads, strides, fake, raises"
            )
            raise ValueError(f"no reference {word!r}; known: {names}")
        comparisons[word](tally)

    def _against_exact(self, tally: Tally) -> None:
        compare_with_exact(
            self.program, self.sample, self.actual, tally, self.label, self.axes.values
        )

    def _against_definition(self, tally: Tally) -> None:
        compare_with_definition(self.program, self.sample, self.actual, tally, self.label)

    def _against_standard(self, tally: Tally) -> None:
        compare_with_standard(self.program, self.sample, self.actual, tally, self.label)

    def _against_pieces(self, tally: Tally) -> None:
        """Compare with the plain op in ways that take other paths of its kernels: of pieces of the
        inputs, and of inputs with gaps in memory.
        """
        if self.sample.facts.random or self.stages:
            raise Unsuitable("pieces are of the op itself, without random numbers")
        plain = self.program.on_reference()
        # On the CPU target torch is the plain op, and would be compared with itself.
        if self.target.name != "torch" or self.place is not None:
            self._compare(plain, tally, self.rule)
        compare_with_abstract_kinds(self.sample, self.program, plain, tally)
        if takes_gaps(self.sample):
            gapped = forms.laid_out(self.program.inputs, "noncontiguous")
            self._compare(plain_outputs(self.program, gapped), tally, self.rule)
        of_pieces = Pieces(self.program, self.sample, self.label, plain)
        for split in splits_of(self.sample):
            size = split.size(self.program.inputs)
            if not size or not split.has_results(plain, size):
                continue
            places = pieces.positions(size)
            self._compare(
                of_pieces.results(split, places),
                tally,
                self.rule,
                second=partial(of_pieces.results, split, places, self._for_rounding),
            )

    @property
    def _for_rounding(self) -> Callable[[Tensor], Tensor]:
        """Return the change of inputs by which a second run shows how far rounding goes."""
        return nudged if are_wide(self.program.inputs) else widened

    @property
    def actual(self) -> Outputs:
        if self._actual is None:
            made = self.made
            self._actual = made if self.place is None else self.place.returned(made)
        return self._actual

    @property
    def made(self) -> Outputs:
        """Return the target's results on its device, with the strides that they have there."""
        if self._made is None:
            self._made = self.run()
        return self._made

    @property
    def place(self) -> Place | None:
        """Return where the target runs, if that is another device than that of the references."""
        return place_of(self.device)

    def run(self, seed: int | None = None) -> Outputs:
        """Run the target once more, and return its results on its device."""
        program = self.program if seed is None else replace(self.program, seed=seed, _results={})
        inputs = forms.laid_out(program.inputs, self.axes.layout)
        with warnings.catch_warnings():
            # to be warned of a tensor in place of a number is neither a refusal nor a result
            if self.axes.form == "tensor_number":
                warnings.simplefilter("ignore")
            return run_target(
                self.target, program, inputs, self.stages, self.sample, self.axes.under, self.place
            )

    def _against_seeds(self, place: Place, tally: Tally) -> None:
        """Compare random numbers of a device with those of its own other runs: devices draw other
        numbers than the CPU.
        """
        expected = self.program.on_reference()
        if self.program.deterministic:
            self._compare(expected, tally, self.rule)
            return
        try:
            compare_kinds(self.actual, expected, tally)
            on_device.compare_draws(
                place, lambda seed: place.returned(self.run(seed)), self.program.seed
            )
        except Mismatch as mismatch:
            raise mismatch.reworded(f"{self.label}: {mismatch}") from None

    def _against_kinds(self, tally: Tally) -> None:
        """Compare shapes and dtypes: tensors of the meta device have no values."""
        self._refuse_named_device()
        inputs = tuple(map(on_meta, forms.laid_out(self.program.inputs, self.axes.layout)))
        try:
            actual = run_target(self.target, self.program, inputs, self.stages, self.sample)
        # Only an op that reads values may fail here, and then it fails on the reference as well.
        except Exception as error:
            if self._needs_values():
                raise Unsuitable(
                    "the op needs values, but tensors of the meta device have none "
                    f"({type(error).__name__})"
                ) from None
            raise
        try:
            compare_kinds(actual, self.program.on_reference(), tally)
        except Mismatch as mismatch:
            raise mismatch.reworded(f"{self.label}: {mismatch}") from None

    def _needs_values(self) -> bool:
        """Return whether the reference itself fails on tensors of the meta device."""
        try:
            self.program.on_reference(on_meta)
        except Exception:  # kernels, formulas and loops that read a value raise different errors
            return True
        return False

    def _against_draws(self, tally: Tally) -> None:
        """Compare random draws of a batch with those of a loop, whose numbers differ.

        Shapes and dtypes must agree. Draws must be whole numbers if the loop's are. Elements of
        the batch must not share a draw. If the distribution has no spread, draws are compared like
        any other result.
        """
        expected = self.program.on_reference()
        if self.program.deterministic:
            self._compare(expected, tally, self.rule)
            return
        try:
            compare_kinds(self.actual, expected, tally)
            for place, drawn in enumerate(self.actual):
                if _whole(expected[place]) and not _whole(drawn):
                    raise Mismatch(
                        f"output {place}: draws that are no whole numbers, "
                        "where those of the loop are"
                    )
                if drawn[:1].numel() and any(torch.equal(drawn[0], other) for other in drawn[1:]):
                    raise Mismatch(f"output {place}: elements of the batch share a draw")
        except Mismatch as mismatch:
            raise mismatch.reworded(f"{self.label}: {mismatch}") from None

    def _against_rounded(self, tally: Tally) -> None:
        """Compare with the op without autocast. Results may differ by as much as they do when the
        inputs are rounded to the dtype of autocast.
        """
        low = forms.NEAR_DTYPE
        rule = replace(self.rule, widened=True, dtype=low)

        def second() -> Outputs:
            return self.program.on_reference(partial(autocasting.round_to, low=low))

        self._compare(self.program.on_reference(), tally, rule, second=second, conditioned=True)

    def _against_itself(self, word: str, tally: Tally) -> None:
        """Compare results of the target with one another: of two calls, of several numbers of
        threads, or of real and fake tensors.
        """
        if self.sample.facts.random:
            raise Unsuitable("the op draws random numbers")
        comparisons = {
            "again": self._against_second_call,
            "threads": self._against_threads,
            "strides": self._against_strides_on_meta,
            "fake": self._against_fake_strides,
        }
        try:
            comparisons[word](tally)
        except Mismatch as mismatch:
            raise mismatch.reworded(f"{self.label}: {mismatch}") from None

    def _against_second_call(self, tally: Tally) -> None:
        """Compare the bits of two calls, with results on the CPU."""
        inputs = forms.laid_out(self.program.inputs, self.axes.layout)
        place = self.place

        def run() -> Outputs:
            results = self._run_changed(clone_with_strides, inputs, place)
            if place is None:
                return results
            return place.returned(results)

        repeating.compare_calls(run, tally)

    def _against_threads(self, tally: Tally) -> None:
        """Compare the bits of calls by several threads at once with those of a single call."""
        if self.place is not None:
            raise Unsuitable("threads of the host are not those of the device")
        inputs = forms.laid_out(self.program.inputs, self.axes.layout)
        # Not by `run_target`: filters of warnings are of the process, and threads would restore
        # one another's.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function = self.program.over(self.target)
            if not self.stages:
                function = self.target.forward(function)
            repeating.compare_threads(
                lambda: tuple(function(*map(clone_with_strides, inputs))), tally
            )

    def _against_strides_on_meta(self, tally: Tally) -> None:
        """Compare the strides of results with those on the meta device."""
        self._refuse_named_device()
        inputs = forms.laid_out(self.program.inputs, self.axes.layout)
        repeating.compare_strides(
            self.made, lambda: self._run_changed(on_meta, inputs), "on the meta device", tally
        )

    def _against_fake_strides(self, tally: Tally) -> None:
        """Compare the strides of results with those of fake tensors."""
        self._refuse_named_device()
        inputs = forms.laid_out(self.program.inputs, self.axes.layout)
        mode = FakeTensorMode()

        def run_inside() -> Outputs:
            with mode:
                return self._run_changed(mode.from_tensor, inputs)

        repeating.compare_strides(self.made, run_inside, "as a fake tensor", tally)

    def _run_changed(
        self,
        change: Callable[[Tensor], Tensor],
        inputs: Sequence[Tensor],
        place: Place | None = None,
    ) -> Outputs:
        """Run the target on changed copies of `inputs`, as a program may write to its arguments."""
        changed = tuple(map(change, inputs))
        return run_target(self.target, self.program, changed, self.stages, self.sample, place=place)

    def _refuse_named_device(self) -> None:
        """Raise Unsuitable for a sample such as `torch.zeros(3, device="cpu")`: whatever device its
        inputs have, its result is on that one.
        """
        if "device" in self.sample.rebuild(self.sample.inputs)[1]:
            raise Unsuitable("the sample names the device of its result")

    def _compare(
        self,
        expected: Outputs,
        tally: Tally,
        rule: Rule,
        actual: Outputs | None = None,
        second: Callable[[], Outputs] | None = None,
        conditioned: bool = False,
        cause: str = "",
    ) -> None:
        """Compare with the results of a reference. An error names the label of the program.

        `actual`: results to compare in the place of the target's own. `cause`: that of a mismatch,
        if other programs share it.
        """
        # A second run of a random op would draw other numbers, unless its dtype stays.
        draws_same = are_wide(self.program.inputs) or not self.sample.facts.random
        if second is None and draws_same:
            second = partial(self.program.on_reference, self._for_rounding)
        self.expected = expected
        # An empty batch has no elements. Its results are compared by shape and dtype, and gradients
        # of what is not batched are rightly zeros, so this counts as having shown something.
        if self.axes.batch == "empty":
            tally.entries += len(expected)
            tally.nonzero += len(expected)
        try:
            compare(
                self.actual if actual is None else actual,
                expected,
                rule,
                tally,
                second,
                conditioned,
            )
        except Mismatch as mismatch:
            message = f"{self.label}: {self.program.named(str(mismatch))}"
            raise mismatch.reworded(message, cause) from None

    def _against_numeric(self, tally: Tally) -> None:
        """Compare with derivatives by differences of values. Large gradients are projected
        first.
        """
        require_differences(self.program, self.sample, self.stages)
        is_linear = self.stages[-1] in _LINEAR
        numeric = Numeric(project=is_linear, seed=self.program.seed)
        expected = by_differences(self.program, numeric)
        # A large gradient is compared by its products with random directions on both sides.
        actual = self.actual
        if is_linear:
            actual = project(self.program, numeric, actual)
        # The differences are in double precision, so the rounding of the target's dtype counts.
        narrow = not are_wide(self.program.inputs)
        coarsest = coarsest_dtype(self.actual)
        rule = replace(self.rule, numeric=True, widened=narrow, dtype=coarsest)
        cause = WRONG_DERIVATIVE if DERIVING.issuperset(self.stages) else ""
        self._compare(expected, tally, rule, actual, cause=cause)

    def _against_float64(self, tally: Tally) -> None:
        """Compare with the reference in double precision, rounded to the dtype of the results."""
        inexact = any(map(has_inexact_dtype, self.program.inputs))
        compares_itself = self.target.name == "torch" and self.place is None
        if compares_itself and (not inexact or are_wide(self.program.inputs)):
            raise Unsuitable("target torch in this dtype would be compared with itself")
        if self.sample.facts.random and not are_wide(self.program.inputs):
            raise Unsuitable("the op draws random numbers: other ones in float64")
        narrow = self.program.on_reference()

        def rounded(change: Callable[[Tensor], Tensor]) -> Outputs:
            pairs = zip(self.program.on_reference(change), narrow, strict=True)
            return tuple(wide.to(result.dtype) for wide, result in pairs)

        expected = rounded(widened)
        try:
            self._compare(
                expected,
                tally,
                self.rule,
                second=partial(rounded, nudged_and_widened),
                conditioned=True,
            )
        except Mismatch:
            if self.target.name == "torch" or self.rule.rtol is not None:
                raise
            # a narrow result may be as far off as torch's own kernel is
            self._compare(narrow, tally, self.rule)

    def _against_own_reference(self, tally: Tally) -> None:
        """Compare with the reference that the row or OpInfo has for the op itself."""
        op = self.sample.op
        if self.stages:
            raise Unsuitable("an op's own reference has no transforms")
        if op.reference is None and op.numpy_reference is None:
            raise Unsuitable(f"{self.op} has no reference of its own")
        by_reference = partial(by_own_reference, self.program, self.sample)
        self._compare(
            by_reference(None), tally, self.rule, second=partial(by_reference, self._for_rounding)
        )


def _whole(x: Tensor) -> bool:
    """Return whether all numbers are whole."""
    if x.is_complex():
        return False
    return not x.is_floating_point() or torch.equal(x, x.round())
