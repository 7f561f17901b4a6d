"""The memory of a cut by the lives of its values, against sums by hand. K is a tensor of 256
numbers of 4 bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from runtime import aot
from runtime.aot import Explanation

from .by_hand import Joint, explained

K = 1024
aten: Any = torch.ops.aten


class Cut:
    """A program of (primals, tangents) that returns one forward result and then gradients."""

    def __init__(self, f: Any, primals: list[torch.Tensor], tangents: list[torch.Tensor]) -> None:
        self.given = (primals, tangents)
        self.module = aot.make_fx(lambda p, t: f(*p, *t))(*self.given)
        self.nodes = list(self.module.graph.nodes)

    def of(self, *names: str) -> list[fx.Node]:
        """The arguments by their numbers and the first call of each op."""
        inputs = {str(i): n for i, n in enumerate(n for n in self.nodes if n.op == "placeholder")}
        calls: dict[str, fx.Node] = {}
        for n in self.nodes:
            if n.op == "call_function":
                calls.setdefault(
                    str(n.target).split(".")[1]
                    if isinstance(n.target, torch._ops.OpOverload)
                    else n.name,
                    n,
                )
        return [(inputs | calls)[name] for name in names]

    def explained(self, nodes: list[fx.Node]) -> Explanation:
        return explained(self.module, 1, nodes, joint_inputs=self.given)

    def saved(self, *names: str) -> int:
        return self.explained(self.of(*names)).saved_bytes

    def computed(self, *names: str) -> int:
        """The bytes of what is saved beside the arguments."""
        return self.explained(self.of(*names)).new_bytes

    def peak(self, *names: str) -> int:
        return self.explained(self.of(*names)).peak_bytes


def chain(p: torch.Tensor, t: torch.Tensor) -> list[torch.Tensor]:
    b = p.sin().exp()
    return [b.sum(), (t * b) * p.cos()]


def vector() -> torch.Tensor:
    return torch.ones(256)


def test_saved_bytes_count_arguments_and_each_memory_once() -> None:
    cut = Cut(chain, [vector()], [vector()])
    assert cut.computed("0") == 0
    assert cut.saved("0") == cut.computed("0", "exp") == K
    assert cut.saved("0", "exp", "exp", "sum") == 2 * K + 4


def test_the_peak_is_that_of_the_forward_or_of_the_backward() -> None:
    cut = Cut(chain, [vector()], [vector()])
    # In the backward the loss (4 bytes), t * b, cos and their product are alive at the end; in the
    # forward at most sin and exp.
    assert cut.peak("0", "exp") == 3 * K + 4
    wide = Cut(lambda p, t: [(p.view(-1, 1) * p.exp()).sum(), t * p], [vector()], [torch.ones(())])
    assert wide.peak("0") == K + 256 * K, "exp and the product of the forward"


def test_a_value_that_is_computed_again_waits_no_longer_than_its_first_use() -> None:
    cut = Cut(lambda p, t: [p.sum(), ((t * p.sin()) * p.exp()) * p.cos()], [vector()], [vector()])
    # loss, t, sin, t * sin; then loss, product, exp, product; the argument counts nothing
    assert cut.peak("0") == 3 * K + 4
    # all three wait for their use
    assert cut.peak("0", "sin", "exp", "cos") == 5 * K + 4


def test_a_result_that_the_forward_returns_stays() -> None:
    cut = Cut(lambda p, t: [p.exp(), (t * p.sin()) * p.cos()], [vector()], [vector()])
    # the result; t, sin and their product; then product, cos and product
    assert cut.peak("0") == 4 * K


def test_a_view_lies_in_the_memory_of_its_base() -> None:
    cut = Cut(
        lambda p, t: [(p.sin().view(16, 16).t() * 2).sum(), t * p.sin().t()],
        [torch.ones(16, 16)],
        [torch.ones(16, 16)],
    )
    assert cut.computed("0", "sin", "view", "t") == K
    assert cut.computed("0", "t") == K
    assert cut.peak("0") == 2 * K + 4 + K


def test_a_cotangent_is_freed_after_its_last_use() -> None:
    early = Cut(lambda p, t: [p.sum(), (t * 2).sin().exp()], [vector()], [vector()])
    late = Cut(lambda p, t: [p.sum(), (t * 2).sin().exp() * t], [vector()], [vector()])
    assert early.peak("0") == 2 * K + 4
    assert late.peak("0") == 3 * K + 4


def test_of_a_call_with_several_results_each_is_a_memory_of_its_own() -> None:
    def program(p: torch.Tensor, t: torch.Tensor) -> list[torch.Tensor]:
        values, places = p.sort()
        return [values.sum(), t * values + places]

    cut = Cut(program, [vector()], [vector()])
    items = [n for n in cut.nodes if n.name.startswith("getitem")]
    given = cut.of("0")
    assert [cut.explained([*given, n]).new_bytes for n in items] == [K, 2 * K]
    assert cut.explained([*given, *items]).new_bytes == 3 * K
    assert cut.peak("0") == (1 + 1 + 2 + 1) * K + 4, "t, values, places, t * values"


def test_the_results_of_a_call_that_nobody_asks_for_take_memory_while_it_runs() -> None:
    whole = Cut(lambda p, t: [p.sort()[0].sum(), t * 2], [vector()], [torch.ones(())])
    assert whole.peak("0") == 3 * K
    norm = Cut(
        lambda p, t: [F.layer_norm(p, (16,)).sum(), t * 2], [torch.ones(16, 16)], [torch.ones(())]
    )
    assert norm.peak("0") == K + 2 * 16 * 4


def test_chunks_lie_in_the_memory_of_the_whole() -> None:
    cut = Cut(
        lambda p, t: [(lambda a, b: (a * b).sum())(*p.sin().chunk(2)), t * 2],
        [vector()],
        [torch.ones(())],
    )
    pieces = [n for n in cut.nodes if n.name.startswith("getitem")]
    assert len(pieces) == 2 and cut.explained(pieces).saved_bytes == K


def test_arguments_constants_and_sizes_belong_to_somebody_else() -> None:
    constant = torch.ones(256)
    cut = Cut(lambda p, t: [(p * constant).sum(), t * p], [vector()], [torch.ones(())])
    assert cut.peak("0") == K + 4 + 4, "the gradient, the loss and its cotangent"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1024.0 KiB"),
        (2**20, "1.0 MiB"),
        (1572864, "1.5 MiB"),
        (2**30, "1.0 GiB"),
        (5 * 2**39, "2560.0 GiB"),
    ],
)
def test_bytes_are_told_in_the_largest_unit_of_which_there_is_one(
    joint: Joint, size: int, text: str
) -> None:
    x, _, t = joint.inputs
    x.meta["val"] = torch.empty(size, dtype=torch.uint8, device="meta")
    assert explained(joint.module([x], [t]), 1, [x]).summary.startswith(f"1 value saved, {text}, ")
