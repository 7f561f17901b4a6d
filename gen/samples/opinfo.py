"""Read torch's OpInfo database as a source of ops and samples, under the dotted names of
matrix.yaml.

The database is private to torch and takes seconds to import. So it is imported only here, once,
when it is first needed.
"""

from __future__ import annotations

import importlib
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch

from gen.samples.seeds import has_accelerator, seeded_with_numpy
from gen.torch_private.loaded_with_torch import OPINFO_DATABASE

if TYPE_CHECKING:
    from gen.torch_private.test_helpers import ErrorInput, OpInfo, SampleInput

CANDIDATES = 64  # samples of one op that are stored; a check chooses among them
READ = 512  # samples read from one generator


def dotted_name(info: OpInfo) -> str:
    """Return the name of an op in matrix.yaml.

    It is ``torch.`` + name, ``torch.Tensor.`` + name where only the method exists, + ``.`` +
    variant. Dashes become underscores.
    """
    name: str = info.name
    if name.startswith("torch."):
        base = name
    else:
        base = f"torch.{name}"
        if not _resolves(torch, name) and _resolves(torch.Tensor, name):
            base = f"torch.Tensor.{name}"
    if info.variant_test_name:
        base += f".{info.variant_test_name}"
    return base.replace("-", "_")


def _resolves(root: object, path: str) -> bool:
    """Return whether each part of `path` is an attribute of the one before."""
    for part in path.split("."):
        if not hasattr(root, part):
            return False
        root = getattr(root, part)
    return True


@cache
def database() -> dict[str, OpInfo]:
    """Return every OpInfo by dotted name.

    Warnings during the import are ignored, as they concern torch's test helpers.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module: Any = importlib.import_module(OPINFO_DATABASE)
    return {dotted_name(info): info for info in module.op_db}


def lookup(name: str) -> OpInfo | None:
    """Return the OpInfo called `name`, or None. A name that is not torch's needs no database."""
    if not name.startswith("torch."):
        return None
    return database().get(name)


def may_have(name: str, row: Mapping[str, object]) -> bool:
    """Return whether the database may have the op of a row of the matrix."""
    return "call" not in row and name.startswith("torch.")


def is_there(name: str) -> bool:
    """Return whether the installed torch has an attribute under a dotted name."""
    return _resolves(torch, name.removeprefix("torch."))


def preload(ops: Iterable[tuple[str, Mapping[str, object]]]) -> None:
    """Import the database if it may have one of `ops`, which are pairs ``(name, row)``.

    Processes that are forked later then have it.
    """
    if any(may_have(name, row) for name, row in ops):
        database()


def differentiates(info: OpInfo, dtype: torch.dtype, device: str) -> bool:
    """Return whether torch claims reverse-mode derivatives of the op for `dtype`."""
    if not (dtype.is_floating_point or dtype.is_complex) or not info.supports_autograd:
        return False
    return dtype in info.supported_backward_dtypes(torch.device(device).type)


def samples(
    info: OpInfo, device: str, dtype: torch.dtype, seed_parts: tuple[object, ...]
) -> Iterator[SampleInput]:
    """Draw at most about :data:`CANDIDATES` SampleInputs.

    OpInfo marks inputs that torch would differentiate by ``requires_grad``.
    """
    with seeded_with_numpy(*seed_parts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sampling itself is not under test
        inputs = drawn(info, device, dtype, READ, requires_grad=differentiates(info, dtype, device))
    return iter([*_thin_out(inputs), *_small(info, inputs)])


def drawn(
    info: OpInfo,
    device: str,
    dtype: torch.dtype,
    count: int | None = None,
    *,
    requires_grad: bool = False,
) -> list[SampleInput]:
    """Return the first `count` samples that OpInfo itself draws, or all of them."""
    with _without_its_test():
        return list(islice(info.sample_inputs(device, dtype, requires_grad=requires_grad), count))


def _thin_out(inputs: list[SampleInput]) -> list[SampleInput]:
    """Return as many samples as the limit allows: the first ones, then others spread evenly,
    because neighbours are alike.
    """
    if len(inputs) <= CANDIDATES:
        return inputs
    half = CANDIDATES // 2
    rest = inputs[half:]
    step = math.ceil(len(rest) / half)
    return inputs[:half] + rest[::step]


def _small(info: OpInfo, inputs: list[SampleInput]) -> Iterator[SampleInput]:
    """Yield parts of the first sample of an elementwise op of one tensor.

    OpInfo's own samples of these are too large for a Jacobian.
    """
    from gen.torch_private.test_helpers import opinfo_classes

    if not inputs or not isinstance(info, opinfo_classes.UnaryUfuncInfo):
        return
    first = inputs[0]
    # the largest part has six elements
    if first.input.numel() < 6:
        return
    flat = first.input.detach().reshape(-1)
    for piece in (flat[:6].reshape(2, 3), flat[:4], flat[0]):
        small_input = piece.clone().requires_grad_(first.input.requires_grad)
        yield opinfo_classes.SampleInput(small_input, args=first.args, kwargs=first.kwargs)


def errors(info: OpInfo, device: str) -> list[ErrorInput]:
    """Return the ErrorInputs of the op, which may be none."""
    written: object = info.error_inputs_func
    if written is None:
        return []
    with seeded_with_numpy("errors", info.name), _without_its_test(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(info.error_inputs(device))


@contextmanager
def _without_its_test() -> Iterator[None]:
    """Let OpInfo not look through the stack for the test that asks, which takes longer than a
    check, and seed without a trace.
    """
    from gen.torch_private.test_helpers import common_utils, opinfo_classes

    # `_set_seed` seeds the CPU alone, so torch's own function stays where there is an accelerator
    seeding: dict[str, Any] = {}
    if not has_accelerator():
        seeding["set_rng_seed"] = _set_seed
    with (
        patch.multiple(common_utils, extract_test_fn=_no_test, **seeding),
        patch.object(opinfo_classes, "extract_test_fn", _no_test),
    ):
        yield


def _no_test() -> None:
    """Say that what asks for samples is no test of OpInfo's own."""


def _set_seed(seed: int | None = None) -> None:
    """Seed as OpInfo does on a machine without accelerators."""
    from gen.torch_private.test_helpers import common_utils

    if seed is None:
        seed = int(common_utils.SEED)
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


@contextmanager
def drawing_from_outside() -> Iterator[None]:
    """Let random ops of OpInfo draw from the state of the generator, inside.

    OpInfo calls such an op with a seed of its own, and restores the state afterwards. A graph
    repeats only the draw.
    """
    with patch.object(importlib.import_module(OPINFO_DATABASE), "wrapper_set_seed", _as_it_is):
        yield


def _as_it_is(op: Callable[..., object], *args: object, **kwargs: object) -> object:
    return op(*args, **kwargs)


def gradcheck_wrapper(info: OpInfo) -> Callable[..., Any]:
    """Return OpInfo's wrapper for derivatives.

    It is looked up at each call, so that :func:`drawing_from_outside` has effect.
    """
    wrapper: Callable[..., Any] = info.gradcheck_wrapper
    if wrapper.__name__ != "wrapper_set_seed":
        return wrapper
    module: Any = importlib.import_module(OPINFO_DATABASE)
    return lambda op, *args, **kwargs: module.wrapper_set_seed(op, *args, **kwargs)


def has_own_wrapper(info: OpInfo) -> bool:
    """Return whether OpInfo differentiates a wrapped op, such as ``cholesky(x + xᴴ)``, because the
    op reads only part of its input.
    """
    from gen.torch_private.test_helpers import opinfo_classes

    return (
        info.gradcheck_wrapper
        is not opinfo_classes.OpInfo.__dataclass_fields__["gradcheck_wrapper"].default
    )
