"""Run a program over the target and over each reference, and compare the results."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gen.checks import autocasting, forms, on_device, repeating
from gen.checks.compare import Rule, Tally, compare, compare_kinds
from gen.checks.compare_definitions import compare_with_definition
from gen.checks.compare_exact import compare_with_exact, compare_with_standard
from gen.checks.pipelines import Outputs, Program, nudged, run_target, widened
from gen.devices.place import Place, place_of
from gen.language.axes import Axes
from gen.language.pipeline import DERIVING
from gen.outcomes import Mismatch, Unsuitable
from gen.reference import Numeric, pieces
from gen.samples.descriptions import clone_with_strides
from gen.samples.domains import is_inexact
from gen.samples.samples import Sample, flat_tensors
from gen.samples.seeds import seeded
from gen.targets.protocol import Target, Values
from gen.torch_private.loaded_with_torch import FakeTensorMode

# --- target and references ------------------------------------------------------------------------

Tensor = torch.Tensor
_PLAIN = frozenset({"loop", "upstream", "eager"})
OF_ITSELF = frozenset({"again", "threads", "strides", "fake"})
"""References that compare results of the target with one another. They may be zero."""
_OF_CALLS = frozenset({"wrong_call", "wrong_number", "neighbours", "overloads", "wrong_arguments"})
WRONG_DERIVATIVE = "its derivatives are not those by differences of its values"
"""The cause that mismatches of all programs of derivatives have: a wrong first derivative makes the
second one wrong, and the same formula is wrong in the eager session and in a transform."""
# stages whose results are gradients: a large gradient is compared in random directions
_LINEAR = frozenset({"vjp", "backward", "grad"})


def may_show_nothing(axes: Axes, words: Sequence[str]) -> bool:
    """Return whether a check by its nature applies to some ops only: the words are of references
    that some ops have, the op may refuse the form or the way in which values are made, a call of
    one tensor mixes no dtypes, or rows repeat, as those of a matrix that has no inverse there."""
    if axes.layout == "expanded":
        return True
    if axes.values in _OF_CALLS or axes.made is not None:
        return True
    return OF_ITSELF.issuperset(words) or axes.form in forms.MAY_REFUSE


@dataclass
class Comparison:
    """One program of one sample. The target runs it once, for any number of references.

    `expected`: results of the last reference. `refusal`: what the target raised in place of
    results, where it may.
    """

    target: Target
    op: str
    sample: Sample
    program: Program
    stages: Sequence[str]
    axes: Axes
    rule: Rule
    label: str
    device: str = "cpu"
    expected: Outputs | None = None
    refusal: Exception | None = None
    _actual: Outputs | None = None
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
        if self.device == "meta":
            self._against_kinds(tally)
        elif self.place is not None and self.sample.facts.random and "vmap" not in self.stages:
            self._against_seeds(self.place, tally)
        elif self.sample.draws and "vmap" in self.stages:
            self._against_draws(tally)
        elif self.axes.form == "autocast_near":
            self._against_rounded(tally)
        elif word in _PLAIN:
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
        if self.target.name != "torch" or self.place is not None:
            self._compare(plain, tally, self.rule)
        _compare_with_abstract_kinds(self.sample, self.program, plain, tally)
        if _takes_gaps(self.sample):
            gapped = forms.laid_out(self.program.inputs, "noncontiguous")
            self._compare(_plain_outputs(self.program, gapped), tally, self.rule)
        for split in _splits_of(self.sample):
            size = split.size(self.program.inputs)
            if not size or not split.has_results(plain, size):
                continue
            places = pieces.positions(size)
            self._compare(
                self._of_pieces(split, places, plain),
                tally,
                self.rule,
                second=partial(self._of_pieces, split, places, plain, self._for_rounding),
            )

    @property
    def _for_rounding(self) -> Callable[[Tensor], Tensor]:
        """Return the change of inputs by which a second run shows how far rounding goes."""
        return nudged if _is_wide(self.program.inputs) else widened

    def _of_pieces(
        self,
        split: pieces.Split,
        places: Sequence[int],
        plain: Outputs,
        change: Callable[[Tensor], Tensor] = clone_with_strides,
    ) -> Outputs:
        """Return the plain results, with those at `places` computed from pieces of the inputs."""
        inputs = tuple(map(change, self.program.inputs))
        with seeded(self.program.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                answers = [self.sample(*split.piece(inputs, place)) for place in places]
            except Exception as error:  # kernels refuse a piece by different errors
                refused = f"{self.label}: a piece is refused, not the whole: {error}"
                raise Mismatch(refused) from None
        try:
            parts = pieces.joined(answers, split)
        except RuntimeError:
            raise Unsuitable("the shape of a piece depends on its values") from None
        return tuple(
            x.to(part.dtype).index_copy(dim, torch.tensor(places), part)
            for x, part, dim in zip(plain, parts, split.outputs, strict=True)
        )

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
        # Such a sample asks for a result on the CPU, whatever its inputs are.
        if "device" in self.sample.rebuild(self.sample.inputs)[1]:
            raise Unsuitable("the sample names the device of its result")
        inputs = tuple(map(_on_meta, forms.laid_out(self.program.inputs, self.axes.layout)))
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
            self.program.on_reference(_on_meta)
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
        # Each call gets copies, since a program may write to its arguments.
        inputs = forms.laid_out(self.program.inputs, self.axes.layout)

        def run(
            change: Callable[[Tensor], Tensor] = clone_with_strides, place: Place | None = None
        ) -> Outputs:
            changed = tuple(map(change, inputs))
            return run_target(
                self.target, self.program, changed, self.stages, self.sample, place=place
            )

        try:
            if word == "again":
                repeating.compare_calls(self._repeated(run), tally)
            elif word == "threads" and self.place is not None:
                raise Unsuitable("threads of the host are not those of the device")
            elif word == "threads":
                # filters are of the process, and threads would restore one another's
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    function = self.program.over(self.target)
                    if not self.stages:
                        function = self.target.forward(function)
                    repeating.compare_threads(
                        lambda: tuple(function(*map(clone_with_strides, inputs))), tally
                    )
            elif "device" in self.sample.rebuild(self.sample.inputs)[1]:
                raise Unsuitable("the sample names the device of its result")
            elif word == "strides":
                repeating.compare_strides(
                    self.made, lambda: run(_on_meta), "on the meta device", tally
                )
            else:
                with FakeTensorMode() as mode:
                    fake = mode.from_tensor
                repeating.compare_strides(
                    self.made,
                    lambda: _inside(mode, partial(run, fake)),
                    "as a fake tensor",
                    tally,
                )
        except Mismatch as mismatch:
            raise mismatch.reworded(f"{self.label}: {mismatch}") from None

    def _repeated(self, run: Callable[..., Outputs]) -> Callable[[], Outputs]:
        """Return `run` on the device of the target, with its results on the CPU."""
        place = self.place
        if place is None:
            return run
        return lambda: place.returned(run(place=place))

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
        wide = _is_wide(self.program.inputs)
        if second is None and (wide or not self.sample.facts.random):
            second = partial(self.program.on_reference, nudged if wide else widened)
        self.expected = expected
        # results are compared by shape and dtype, and gradients of what is not batched are zeros
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
        self._require_differences()
        is_linear = self.stages[-1] in _LINEAR
        numeric = Numeric(project=is_linear, seed=self.program.seed)
        expected = self._differences(numeric)
        # A large gradient is compared by its products with random directions on both sides.
        actual = self.actual
        if is_linear:
            actual = self._project(numeric, actual)
        # The differences are in double precision, so the rounding of the target's dtype counts.
        narrow = not _is_wide(self.program.inputs)
        coarsest = _coarsest_dtype(self.actual)
        rule = replace(self.rule, numeric=True, widened=narrow, dtype=coarsest)
        cause = WRONG_DERIVATIVE if DERIVING.issuperset(self.stages) else ""
        self._compare(expected, tally, rule, actual, cause=cause)

    def _require_differences(self) -> None:
        """Raise Unsuitable if differences of values in float64 say nothing about the program."""
        if self.sample.facts.random and not _is_wide(self.program.inputs):
            raise Unsuitable("the op draws random numbers: other ones in float64")
        if DERIVING.isdisjoint(self.stages):
            raise Unsuitable("no derivative to take differences for")
        if _is_wide(self.sample.inputs) and not _is_wide(self.sample.facts.outputs):
            raise Unsuitable(
                "the op rounds to a narrower dtype: differences of its values say nothing"
            )

    def _differences(self, numeric: Numeric) -> Outputs:
        """Return the results by differences of values, in double precision."""
        inputs = tuple(map(widened, self.program.inputs))
        try:
            with seeded(self.program.seed), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the reference's own
                return tuple(self.program.over(numeric)(*inputs))
        except ValueError as error:
            if "too large for differences" not in str(error):
                raise
            raise Unsuitable(str(error)) from None

    def _project(self, numeric: Numeric, results: Outputs) -> Outputs:
        """Return the projections of the results of each call of the program."""
        share = len(results) // self.program.calls
        projections: list[Tensor] = []
        for k in range(self.program.calls):
            projections += numeric.project(results[k * share : (k + 1) * share])
        return tuple(projections)

    def _against_float64(self, tally: Tally) -> None:
        """Compare with the reference in double precision, rounded to the dtype of the results."""
        inexact = any(map(_is_inexact, self.program.inputs))
        compares_itself = self.target.name == "torch" and self.place is None
        if compares_itself and (not inexact or _is_wide(self.program.inputs)):
            raise Unsuitable("target torch in this dtype would be compared with itself")
        if self.sample.facts.random and not _is_wide(self.program.inputs):
            raise Unsuitable("the op draws random numbers: other ones in float64")
        narrow = self.program.on_reference()

        def rounded(change: Callable[[Tensor], Tensor]) -> Outputs:
            return tuple(
                wide.to(result.dtype)
                for wide, result in zip(self.program.on_reference(change), narrow, strict=True)
            )

        expected = rounded(widened)
        try:
            self._compare(
                expected,
                tally,
                self.rule,
                second=partial(rounded, _nudged_and_widened),
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
        change = nudged if _is_wide(self.program.inputs) else widened
        self._compare(
            self._own_reference(None), tally, self.rule, second=partial(self._own_reference, change)
        )

    def _own_reference(self, change: Callable[[Tensor], Tensor] | None) -> Outputs:
        """Return the results of the op's own reference, in the shapes and dtypes of the op's
        results.

        `change` is applied to the inputs.
        """
        share = len(self.program.inputs) // self.program.calls
        results: list[Tensor] = []
        # A jitted program has the inputs of all of its calls. An op without inputs has calls only.
        starts = range(self.program.calls)
        if share:
            starts = range(0, self.program.calls * share, share)
        for start in starts:
            inputs = self.program.inputs[start : start + min(share, len(self.sample.inputs))]
            if change is not None:
                inputs = tuple(map(change, inputs))
            results += self._call_own_reference(inputs)
        # References may give other dtypes, and shapes that only differ in dimensions of size 1.
        plain = self.program.on_reference(change)
        if len(results) < len(plain):
            raise Unsuitable("the reference gives only some of the outputs")
        adapted = []
        for result, of_op in zip(results, plain, strict=False):
            # One of another size stays as it is, and the comparison reports its shape.
            if result.numel() == of_op.numel():
                result = result.to(of_op.device, of_op.dtype).reshape(of_op.shape)
            adapted.append(result)
        return tuple(adapted)

    def _call_own_reference(self, inputs: tuple[Tensor, ...]) -> Values:
        """Return the results of one call of the op's own reference."""
        reference = self.sample.op.reference
        if reference is None:
            return _by_numpy(self.sample, inputs)
        args, kwargs = self.sample.rebuild(inputs)
        return flat_tensors(reference(*args, **kwargs))


def _plain_outputs(program: Program, inputs: Sequence[Tensor]) -> Outputs:
    """Return what the plain op gives for other inputs of a program."""
    return replace(program, inputs=tuple(inputs), _results={}).on_reference()


def _splits_of(sample: Sample) -> list[pieces.Split]:
    """Return the pieces that the op treats apart at the sample's own inputs. They are found once
    for all points.
    """
    if "splits" not in sample.memory:
        with seeded(sample.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample.memory["splits"] = pieces.splits(sample, sample.inputs)
    splits: list[pieces.Split] = sample.memory["splits"]
    return splits


def _takes_gaps(sample: Sample) -> bool:
    """Return whether the op gives the same at its own inputs if these have gaps in memory. One that
    is about memory, such as ``as_strided``, gives something else.
    """
    if "takes gaps" not in sample.memory:
        gapped = forms.laid_out(sample.inputs, "noncontiguous")
        with seeded(sample.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample.memory["takes gaps"] = pieces.agree(sample, sample.inputs, gapped)
    return bool(sample.memory["takes gaps"])


def _compare_with_abstract_kinds(
    sample: Sample, program: Program, plain: Outputs, tally: Tally
) -> None:
    """Compare shapes and dtypes with those of the meta device, if it takes the sample itself.

    Empty results have no other entries to compare.
    """
    try:
        sample(*map(_on_meta, sample.inputs))
    except Exception:  # an op that needs values: kernels raise different errors
        return
    try:
        abstract = program.on_reference(_on_meta)
    except Exception as error:
        raise Mismatch(f"the meta device refuses what the CPU takes: {error}") from None
    compare_kinds(abstract, plain, tally)


def _on_meta(x: Tensor) -> Tensor:
    return x.to("meta")


def _inside(mode: AbstractContextManager[object], run: Callable[[], Outputs]) -> Outputs:
    with mode:
        return run()


def _eps(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps


def _is_inexact(x: Tensor) -> bool:
    return is_inexact(x.dtype)


def _is_wide(inputs: Sequence[Tensor]) -> bool:
    return all(x.dtype in (torch.float64, torch.complex128) for x in filter(_is_inexact, inputs))


def _coarsest_dtype(tensors: Sequence[Tensor]) -> torch.dtype | None:
    """Return the dtype of the largest rounding errors; None if all tensors are exact."""
    dtypes = (x.dtype for x in filter(_is_inexact, tensors))
    return max(dtypes, key=_eps, default=None)


def _whole(x: Tensor) -> bool:
    """Return whether all numbers are whole."""
    if x.is_complex():
        return False
    return not x.is_floating_point() or torch.equal(x, x.round())


def _nudged_and_widened(x: Tensor) -> Tensor:
    """Return `x` in double precision, off by an ulp of its narrow dtype."""
    return widened(nudged(x))


def _by_numpy(sample: Sample, inputs: Sequence[Tensor]) -> Values:
    """Return the results of OpInfo's NumPy reference on wide copies of the inputs.

    Raises Unsuitable if it does not accept the arguments.
    """
    import numpy

    from gen.torch_private.test_helpers import SampleInput

    args, kwargs = sample.rebuild(_for_numpy(sample, inputs))
    arguments = SampleInput(args[0], args=tuple(args[1:]), kwargs=kwargs).numpy()
    assert sample.op.numpy_reference is not None
    try:
        with warnings.catch_warnings():
            # NumPy warns of overflow and invalid values; these are compared too
            warnings.simplefilter("ignore")
            results: Any = sample.op.numpy_reference(
                arguments.input, *arguments.args, **arguments.kwargs
            )
    except (TypeError, ValueError, RuntimeError, AttributeError, ArithmeticError) as error:
        # some references are compositions of torch's own ops
        raise Unsuitable(
            f"the NumPy reference does not take the sample ({type(error).__name__}: {error})"
        ) from None
    parts = results if isinstance(results, (tuple, list)) else (results,)
    tensors = []
    for part in parts:
        if not isinstance(part, torch.Tensor):
            # a copy: NumPy may return a number, or memory that is read-only
            part = torch.from_numpy(numpy.array(part))
        tensors.append(part)
    return flat_tensors(tuple(tensors))


def _for_numpy(sample: Sample, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return wide copies of the inputs.

    Integers are widened too if all inputs have one integer dtype and results are not integers: from
    8 bits, NumPy computes in float16.
    """
    dtypes = {x.dtype for x in inputs}
    are_integers = len(dtypes) == 1 and not any(map(_is_inexact, inputs))
    if are_integers and any(map(_is_inexact, sample.facts.outputs)):
        return [x.to(torch.int64) for x in inputs]
    return list(map(widened, inputs))
