"""What is compared on another device than the CPU in addition to values: random draws, memory that
results share, and which ops ran elsewhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch

from gen.devices.host_runs import host_runs
from gen.devices.place import Place
from gen.outcomes import Mismatch, Unsuitable
from gen.samples.descriptions import clone_with_strides
from gen.samples.samples import Sample
from gen.samples.seeds import seeded

__all__ = ["compare_draws", "compare_memory", "host_ops", "tolerances_of"]

Tensor = torch.Tensor
Outputs = Sequence[Tensor]
_SEEDS = 4  # others that are tried: draws of few values may agree by chance


def tolerances_of(place: Place) -> Mapping[torch.dtype, float]:
    """Return the least relative tolerance of each dtype that the matrix names for the device."""
    return {getattr(torch, name): bound for name, bound in place.known.tolerances.items()}


def host_ops(place: Place, run: Callable[[], object]) -> list[str]:
    """Return the ops of a run that the device leaves to the CPU. An op that the second run does not
    repeat has no name.
    """
    return host_runs(place.device.type).ops_of(run) or ["an op"]


def compare_draws(place: Place, run: Callable[[int], Outputs], seed: int) -> None:
    """Raise Mismatch unless the device draws the same numbers by the same seed, and others by
    another. Raise Unsuitable if it takes no seeds.
    """
    if not place.takes_seeds:
        raise Unsuitable(f"device {place.known.name} takes no seeds")
    first = run(seed)
    if not _are_same(first, run(seed)):
        raise Mismatch("the same seed draws other numbers on the device")
    if all(_are_same(first, run(seed + step)) for step in range(1, _SEEDS + 1)):
        raise Mismatch("every seed draws the same numbers on the device")


def _are_same(first: Outputs, second: Outputs) -> bool:
    """Return whether two draws have the same numbers in the same places."""
    pairs = zip(first, second, strict=True)
    return all(torch.allclose(x, y, rtol=0.0, atol=0.0, equal_nan=True) for x, y in pairs)


def compare_memory(place: Place, sample: Sample, inputs: Outputs) -> None:
    """Raise Mismatch unless results of a sample's op share memory with its inputs as on the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # with their strides, on which it depends whether some ops copy
        with seeded(sample.seed):
            plain = tuple(map(clone_with_strides, inputs))
            plain_outputs = sample(*plain)
        with seeded(sample.seed), place.entered():
            moved = place.moved(inputs)
            outputs = sample(*moved)
    _compare_sharing(moved, outputs, plain, plain_outputs)


def _compare_sharing(
    inputs: Outputs, outputs: Outputs, plain_inputs: Outputs, plain_outputs: Outputs
) -> None:
    """Raise Mismatch unless each output shares memory with the inputs with which it does on the
    CPU."""
    for place, (x, plain) in enumerate(zip(outputs, plain_outputs, strict=True)):
        shared = _sharers(x, inputs)
        expected = _sharers(plain, plain_inputs)
        if shared != expected:
            raise Mismatch(
                f"output {place} shares memory with {_named(shared)}, "
                f"and on the CPU with {_named(expected)}"
            )


def _sharers(x: Tensor, inputs: Outputs) -> list[int]:
    """Return the places of the inputs whose memory a tensor has. Empty memory is none."""
    address = x.untyped_storage().data_ptr()
    if not address or not x.numel():
        return []
    # by the storage, since a view may begin elsewhere in it
    addresses = (other.untyped_storage().data_ptr() for other in inputs)
    return [place for place, other in enumerate(addresses) if other == address]


def _named(places: Sequence[int]) -> str:
    """Return places as a message has them: `inputs 0, 2`, or `no input`."""
    if not places:
        return "no input"
    return f"inputs {', '.join(map(str, places))}"
