"""What the tape saves for the backward pass, compared with torch's engine. All of it is
freed in the end."""

import weakref
from typing import Any

import pytest
import torch

import runtime
from benchmarks.memory import (
    Held,
    eager_step,
    of_ops,
    of_programs,
    peak_of,
    resident,
    saved_by_runtime,
)
from benchmarks.programs import leaves, trainings

# Ops that keep more than torch's engine, and why.
KEEP_MORE = {
    "ormqr": "differentiated through the product of its reflectors",
    "linalg.householder_product": "a product of reflectors, each of them saved",
    "as_strided_scatter": "the positions that are written are a tensor of indices",
    "nn.functional.multi_margin_loss": "differentiated through its decomposition",
    "nn.functional.linear_cross_entropy.chunked": (
        "torch's own makes its gradients in the forward pass, out of sight of hooks"
    ),
    "nn.functional.linear_cross_entropy.chunked_none": (
        "torch's own makes its gradients in the forward pass, out of sight of hooks"
    ),
    "nn.functional.ctc_loss": "lengths are saved as the tensors that they are",
    "sparse.mm.reduce": "differentiated through its decomposition",
    "polar": (
        "the angle is kept beside the result: "
        "from the result alone the derivative is wrong where the magnitude is not positive"
    ),
}


def _lacking(name: str) -> bool:
    """Whether this torch has no such op: 2.12 has no linear_cross_entropy."""
    loss = "linear_cross_entropy"
    return loss in name and not hasattr(torch.nn.functional, loss)


def test_programs_keep_no_more_than_under_torchs_engine() -> None:
    compared = list(of_programs())
    assert len(compared) == 13
    assert [
        f"{name}: {mine} against {theirs}"
        for name, mine, theirs in compared
        if not mine.within(theirs)
    ] == []


def test_peaks_of_training_are_those_of_torchs_engine() -> None:
    for p in trainings():
        mine, theirs = peak_of(p, True), peak_of(p, False)
        assert mine.peak <= 1.05 * theirs.peak and mine.kept <= 1.05 * theirs.kept, p.name


def test_ops_keep_no_more_than_under_torchs_engine() -> None:
    more: dict[str, str] = {}
    compared = 0
    not_compared: list[str] = []
    for name, mine, theirs in of_ops():
        if not isinstance(mine, Held) or not isinstance(theirs, Held):
            not_compared.append(f"{name}: {mine} against {theirs}")
        elif not mine.within(theirs):
            more[name] = f"{mine} against {theirs}"
        compared += 1
    assert not_compared == []
    assert compared > 900
    assert {name: text for name, text in more.items() if name not in KEEP_MORE} == {}
    assert {name for name in KEEP_MORE if not _lacking(name)} <= set(more), (
        "an op of the list keeps no more than torch's engine: take it out"
    )


def test_a_sample_that_a_side_cannot_run_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(f: Any, *args: Any) -> Held:
        raise ValueError("not today\nnor tomorrow")

    monkeypatch.setattr("benchmarks.memory.saved_by_runtime", refuse)
    swept = list(of_ops("erfinv"))
    assert swept and all(
        mine == "ValueError: not today" and isinstance(theirs, Held) for _, mine, theirs in swept
    )


def test_a_tensor_that_two_formulas_need_is_counted_as_one_storage() -> None:
    x = runtime.tensor([1.0, 2.0], requires_grad=True)
    held = saved_by_runtime(lambda x: x * x, x)
    assert (held.references, held.storages, held.bytes) == (2, 1, 8)


def test_training_leaves_nothing_behind(without_collector: None) -> None:
    """Reference counting alone frees every step's graph, saved tensors and gradients."""
    for p in trainings():
        x, parameters = leaves(p, True)
        seen: list[weakref.ref[Any]] = []
        for _ in range(3):
            loss: Any = p.loss(x, *parameters)
            seen += [
                weakref.ref(loss),
                weakref.ref(loss.grad_fn),
                weakref.ref(loss.grad_fn.next_functions[0][0]),
            ]
            loss.backward()
            seen += [weakref.ref(t.grad) for t in parameters]
            del loss
            for t in parameters:
                t.grad = None
        assert [ref() for ref in seen if ref() is not None] == [], p.name


def test_a_graph_that_is_never_run_backward_is_freed(without_collector: None) -> None:
    x = runtime.tensor([1.0], requires_grad=True)
    kept = torch.ones(1)
    alive = weakref.ref(kept)
    out: Any = x * kept
    del kept
    assert alive() is not None
    del out
    assert alive() is None


def test_resident_memory_stays_flat() -> None:
    sizes = list(resident(eager_step(), 300, 100))
    assert sizes[-1] - sizes[0] < 2**20
