"""Call an op in its forms, and lay out and fill its inputs.

Forms are functional, out=, in-place, on a view, writing to ``.data``, under autocast, and a round
trip through a file.

``form_program`` makes a program of a call. ``out_forms`` and ``inplace_forms`` have what writes.
``input_fillings`` has the values and layouts of inputs. It imports how samples are made, and what
records a program. Start with :func:`programs`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from functools import partial

import torch

from gen.checks import autocasting
from gen.checks.forms import inplace_forms, out_forms
from gen.checks.forms.form_program import as_program, functional, is_reference
from gen.checks.forms.input_fillings import fillings, laid_out, repeating
from gen.checks.forms.number_forms import with_tensors_for_numbers
from gen.checks.pipelines import Program
from gen.outcomes import Lacking, Mismatch, Unsuitable, refuse_fault
from gen.samples.samples import Sample
from gen.targets.protocol import Values

__all__ = [
    "BESIDE",
    "DATA_WRITE",
    "MAY_REFUSE",
    "NEAR_DTYPE",
    "OVERLAP",
    "REFUSED",
    "fillings",
    "is_reference",
    "is_refusal",
    "laid_out",
    "programs",
    "repeating",
]

Tensor = torch.Tensor
OVERLAP = (
    r"single memory location|internal overlap|resize|as_strided|expanded|"
    r"fallback doesn't currently support"
)
"""What ops say of a buffer that overlaps with itself or with an input, that is too small, or that
is one of a list and has a lazy bit."""
DATA_WRITE = (
    r"mutating directly with `\.data` (inside functorch|under vmap) transform is not|the program "
    r"assigns to \.data of a tensor"
)
"""What torch documents for an assignment to ``.data`` under a transform; a target words its
own error likewise."""
REFUSED = {"data_write": DATA_WRITE}
"""Forms that an op must refuse, with the error."""
NEAR_DTYPE = torch.bfloat16
"""What form ``autocast_near`` casts to."""
MAY_REFUSE = frozenset(
    (
        "out_overlapping",
        "out_of_input",
        "out_small",
        "out_lazy",
        "inplace_overlapping",
        "inplace_of_input",
        "tensor_number",
    )
)
"""Forms that an op may refuse: with an error about memory, or any error about a tensor in place of
a number. Otherwise its answer must be right."""
BESIDE = MAY_REFUSE | {"out_view", "reloaded"}
"""Forms that are about something other than values."""


def is_refusal(form: str, error: Exception) -> bool:
    """Return whether an op may say this of its buffer or of a tensor for a number, instead of an
    answer."""
    if form == "tensor_number":
        refuse_fault(error)
        # what was compared is no refusal, and who is only warned goes on
        return not isinstance(error, (Mismatch, Lacking, Unsuitable, Warning))
    return (
        form in MAY_REFUSE
        and isinstance(error, RuntimeError)
        and re.search(OVERLAP, str(error)) is not None
    )


def programs(sample: Sample, form: str, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op in `form`, as programs to transform. A reference runs the functional op
    instead. Raises Unsuitable if there is no program."""
    return _FORMS[form](sample, inputs)


def _reload(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the results after a round trip through a file. The call raises Mismatch if that
    changes their strides."""

    def call(*values: object) -> Values:
        """Run the op, and return what a file gives back of its results."""
        results = sample(*values)
        # Strides and lazy bits are compared here, as values would not show them.
        file = io.BytesIO()
        torch.save(results, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        for place, (before, after) in enumerate(zip(results, loaded, strict=True)):
            has_strides = before.stride() == after.stride()
            has_bits = (before.is_conj(), before.is_neg()) == (after.is_conj(), after.is_neg())
            if not (has_strides and has_bits):
                raise Mismatch(
                    f"output {place} has strides {after.stride()} or lazy bits other than before "
                    f"it was saved: {before.stride()}"
                )
        return tuple(loaded)

    return [as_program(sample, inputs, f"{sample.op.name}, saved and loaded", call, sample)]


def _autocast(low: torch.dtype, sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op under autocast. The reference casts inputs and results as
    :mod:`gen.checks.autocasting` says."""

    return _under_autocast(low, sample, inputs, partial(autocasting.cast_by_hand, low, sample))


def _autocast_near(sample: Sample, inputs: tuple[Tensor, ...]) -> list[Program]:
    """Return the op under autocast. The reference is the op without it: torch documents no casts
    of somebody's own op."""
    return _under_autocast(NEAR_DTYPE, sample, inputs, sample)


def _under_autocast(
    low: torch.dtype,
    sample: Sample,
    inputs: tuple[Tensor, ...],
    plain: Callable[..., object],
) -> list[Program]:
    """Return the op under autocast as one program, whose reference calls `plain`."""

    def call(*values: object) -> Values:
        with torch.autocast("cpu", dtype=low):
            return sample(*values)

    label = f"{sample.op.name} under autocast to {str(low).removeprefix('torch.')}"
    return [as_program(sample, inputs, label, call, plain)]


_FORMS: dict[str, Callable[[Sample, tuple[Tensor, ...]], list[Program]]] = {
    "functional": functional,
    **out_forms.FORMS,
    **inplace_forms.FORMS,
    "tensor_number": with_tensors_for_numbers,
    "reloaded": _reload,
    "autocast": partial(_autocast, torch.bfloat16),
    "autocast_half": partial(_autocast, torch.float16),
    "autocast_near": _autocast_near,
}
