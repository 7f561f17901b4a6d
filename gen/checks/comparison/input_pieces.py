"""Compare an op with itself in ways that take other paths of its kernels.

A kernel computes a row of 64 numbers in whole vectors and then the rest. So the same op on pieces
of the inputs, on inputs with gaps in memory and on the meta device is a reference for it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from gen.checks import forms
from gen.checks.compare import Tally, compare_kinds
from gen.checks.pipelines import Outputs, Program
from gen.outcomes import Mismatch, Unsuitable
from gen.reference import pieces
from gen.samples.descriptions import clone_with_strides
from gen.samples.samples import Sample
from gen.samples.seeds import seeded

Tensor = torch.Tensor


@dataclass(frozen=True)
class Pieces:
    """A program of one op, to be computed from pieces of its inputs."""

    program: Program
    sample: Sample
    # the beginning of each message
    label: str
    # the results on the inputs as a whole
    plain: Outputs

    def results(
        self,
        split: pieces.Split,
        places: Sequence[int],
        change: Callable[[Tensor], Tensor] = clone_with_strides,
    ) -> Outputs:
        """Return the plain results, with those at `places` computed from pieces of the inputs.

        `change` is applied to each input first. Raises Mismatch if the op refuses a piece,
        Unsuitable if the pieces cannot be joined.
        """
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
        # Only some of the pieces are computed. Elsewhere, the results stay those of the whole.
        return tuple(
            whole.to(part.dtype).index_copy(dim, torch.tensor(places), part)
            for whole, part, dim in zip(self.plain, parts, split.outputs, strict=True)
        )


def plain_outputs(program: Program, inputs: Sequence[Tensor]) -> Outputs:
    """Return what the plain op gives for other inputs of a program."""
    return replace(program, inputs=tuple(inputs), _results={}).on_reference()


def splits_of(sample: Sample) -> list[pieces.Split]:
    """Return the pieces that the op treats apart at the sample's own inputs. They are found once
    for all points.
    """
    if "splits" not in sample.memory:
        with seeded(sample.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample.memory["splits"] = pieces.splits(sample, sample.inputs)
    splits: list[pieces.Split] = sample.memory["splits"]
    return splits


def takes_gaps(sample: Sample) -> bool:
    """Return whether the op gives the same at its own inputs if these have gaps in memory. One that
    is about memory, such as ``as_strided``, gives something else.
    """
    if "takes gaps" not in sample.memory:
        gapped = forms.laid_out(sample.inputs, "noncontiguous")
        with seeded(sample.seed), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sample.memory["takes gaps"] = pieces.agree(sample, sample.inputs, gapped)
    return bool(sample.memory["takes gaps"])


def compare_with_abstract_kinds(
    sample: Sample, program: Program, plain: Outputs, tally: Tally
) -> None:
    """Compare shapes and dtypes with those of the meta device, if it takes the sample itself.

    Empty results have no other entries to compare.
    """
    try:
        sample(*map(on_meta, sample.inputs))
    except Exception:  # an op that needs values: kernels raise different errors
        return
    try:
        abstract = program.on_reference(on_meta)
    except Exception as error:
        raise Mismatch(f"the meta device refuses what the CPU takes: {error}") from None
    compare_kinds(abstract, plain, tally)


def on_meta(x: Tensor) -> Tensor:
    """Return a tensor of the meta device: it has the shape, strides and dtype of `x`, no values."""
    return x.to("meta")
