"""Compute what an op's own reference gives: that of its row, or OpInfo's NumPy function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from gen.checks.comparison.double_precision import has_inexact_dtype
from gen.checks.pipelines import Outputs, Program, widened
from gen.outcomes import Unsuitable
from gen.samples.samples import Sample, flat_tensors
from gen.targets.protocol import Values

Tensor = torch.Tensor


def by_own_reference(
    program: Program, sample: Sample, change: Callable[[Tensor], Tensor] | None
) -> Outputs:
    """Return the results of the op's own reference, in the shapes and dtypes of the op's results.

    `change` is applied to the inputs, None leaves them. Raises Unsuitable if the reference does not
    take them, or gives fewer results than the op.
    """
    share = len(program.inputs) // program.calls
    results: list[Tensor] = []
    # A jitted program has the inputs of all of its calls. An op without inputs has calls only.
    starts = range(program.calls)
    if share:
        starts = range(0, program.calls * share, share)
    for start in starts:
        inputs = program.inputs[start : start + min(share, len(sample.inputs))]
        if change is not None:
            inputs = tuple(map(change, inputs))
        results += _call_own_reference(sample, inputs)
    # References may give other dtypes, and shapes that only differ in dimensions of size 1.
    plain = program.on_reference(change)
    if len(results) < len(plain):
        raise Unsuitable("the reference gives only some of the outputs")
    adapted = []
    for result, of_op in zip(results, plain, strict=False):
        # One of another size stays as it is, and the comparison reports its shape.
        if result.numel() == of_op.numel():
            result = result.to(of_op.device, of_op.dtype).reshape(of_op.shape)
        adapted.append(result)
    return tuple(adapted)


def _call_own_reference(sample: Sample, inputs: tuple[Tensor, ...]) -> Values:
    """Return the results of one call of the op's own reference."""
    reference = sample.op.reference
    if reference is None:
        return _by_numpy(sample, inputs)
    args, kwargs = sample.rebuild(inputs)
    return flat_tensors(reference(*args, **kwargs))


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
    are_integers = len(dtypes) == 1 and not any(map(has_inexact_dtype, inputs))
    if are_integers and any(map(has_inexact_dtype, sample.facts.outputs)):
        return [x.to(torch.int64) for x in inputs]
    return list(map(widened, inputs))
