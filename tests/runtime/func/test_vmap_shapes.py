"""vmap accepts a call if and only if a loop over the elements does, and refuses it with
the loop's message."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from runtime import aot, func
from runtime.func import vmap

ones = torch.ones
REFUSED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "inv of a vector": (torch.linalg.inv, (torch.eye(3),)),
    "qr of a vector": (torch.linalg.qr, (torch.eye(3),)),
    "svd of a vector": (torch.linalg.svd, (torch.eye(3),)),
    "eig of a vector": (torch.linalg.eig, (torch.eye(3),)),
    "lu of a vector": (torch.linalg.lu, (torch.eye(3),)),
    "pinv of a vector": (torch.linalg.pinv, (torch.eye(3),)),
    "trace of three dimensions": (torch.trace, (ones(2, 2, 2, 3),)),
    "bmm of matrices": (torch.bmm, (ones(3, 3, 3), ones(3, 3, 3))),
    "unequal lengths": (lambda a, b: a @ b, (ones(2, 3), ones(2, 4))),
    "sizes that do not broadcast": (torch.add, (ones(2, 3), ones(2, 4))),
    "unsqueeze before the batch": (lambda x: x.unsqueeze(-3), (ones(3, 3),)),
    "squeeze beyond the last": (lambda x: x.squeeze(1), (ones(3),)),
    "sum over a dimension twice": (lambda x: x.sum((0, 0)), (ones(2, 3),)),
    "sum over the batch": (lambda x: x.sum(-2), (ones(2, 3),)),
    "transpose with the batch": (lambda x: x.transpose(0, -2), (ones(2, 3),)),
    "an index beyond the size": (lambda x: x[5], (ones(2, 3),)),
    "topk of more than there are": (lambda x: x.topk(4), (ones(2, 3),)),
    "kthvalue of more than there are": (lambda x: x.kthvalue(4), (ones(2, 3),)),
    "cat of different ranks": (lambda x, y: torch.cat([x, y]), (ones(2, 3), ones(2, 3, 3))),
    "renorm of a vector": (lambda x: x.renorm(2, 0, 1.0), (ones(3, 3),)),
    "fold of four dimensions": (lambda x: F.fold(x, (4, 4), (2, 2)), (ones(2, 1, 1, 4, 9),)),
    "max_unpool1d of a vector": (
        lambda x, i: F.max_unpool1d(x, i, [2]),
        (ones(2, 3), torch.zeros(2, 3).long()),
    ),
    "conv1d of a vector": (F.conv1d, (ones(2, 3), ones(2, 1, 1, 1))),
    "a target of another shape": (F.cross_entropy, (ones(2, 3, 4), torch.zeros(2, 2).long())),
    "unsqueeze in place": (lambda x: x.clone().unsqueeze_(-3), (ones(2, 3),)),
    "a wider operand in place": (lambda x, y: x.clone().add_(y), (ones(2, 3), ones(2, 1, 3))),
    "the rows of the next element": (
        lambda x, i: x.index_add(0, i, ones(1)),
        (ones(2, 3), torch.tensor([[3], [0]])),
    ),
    "a word of the next vocabulary": (F.embedding, (torch.tensor([[3], [0]]), ones(2, 3, 4))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_vmap_refuses_what_an_element_refuses_in_its_words(name: str) -> None:
    f, batch = REFUSED[name]
    with pytest.raises(Exception) as of_element:
        f(*(x[0] for x in batch))
    for _ in range(2):  # a refusal is not remembered as if it were a consent
        with pytest.raises(type(of_element.value)) as of_batch:
            vmap(f)(*batch)
        assert str(of_batch.value) == str(of_element.value)


def test_every_level_of_nested_vmaps_asks_for_logical_shapes() -> None:
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        vmap(vmap(torch.linalg.inv))(ones(3, 3, 3))
    x = torch.eye(2).expand(2, 3, 2, 2)
    assert torch.equal(vmap(vmap(torch.linalg.inv))(x), x)


def test_the_second_element_is_named_by_its_own_shape() -> None:
    with pytest.raises(RuntimeError, match="index 3 is out of bounds for dimension 0 with size 3"):
        vmap(lambda x, i: x.gather(0, i))(ones(2, 3), torch.tensor([[0], [3]]))


def test_a_batch_without_elements_is_as_good_as_its_shapes() -> None:
    assert vmap(torch.linalg.inv)(ones(0, 2, 2)).shape == (0, 2, 2)
    with pytest.raises((RuntimeError, AssertionError), match="at least 2 dimensions"):
        vmap(torch.linalg.inv)(ones(0, 2))


def test_asking_an_element_leaves_no_trace() -> None:
    """Neither in modes, nor in graphs, nor in the generator, nor in buffers that an op writes
    to."""
    seen: list[str] = []

    class Spy(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    x = ones(2, 3, 7)
    with Spy():  # type: ignore[no-untyped-call]
        vmap(lambda x: x.cumsum(1).narrow(0, 1, 1).trace())(x)
    assert seen.count("aten.cumsum.default") == 1
    graph = aot.make_fx(vmap(lambda x: torch.linalg.inv(x + torch.eye(2))))(
        torch.zeros(5, 2, 2)
    ).graph
    assert sum("inv" in str(node.target) for node in graph.nodes) == 1
    torch.manual_seed(0)
    first = vmap(torch.bernoulli, randomness="different")(torch.full((4, 11), 0.5))
    torch.manual_seed(0)
    assert torch.equal(
        first, vmap(torch.bernoulli, randomness="different")(torch.full((4, 11), 0.5))
    )
    mean, expected = torch.zeros(5), torch.zeros(5)
    value = torch.randn(1, 6, 5)
    vmap(lambda x: F.batch_norm(x, mean, ones(5), training=False))(value)
    assert torch.equal(mean, expected)


def test_derivatives_of_what_was_asked_first_are_right() -> None:
    x = torch.randn(4, 3, 3) + 3 * torch.eye(3)
    found = vmap(func.grad(lambda x: torch.linalg.inv(x).sum()))(x)
    expected = torch.stack([func.grad(lambda x: torch.linalg.inv(x).sum())(e) for e in x])
    torch.testing.assert_close(found, expected)


def test_tolerances_of_pinv_may_have_more_dimensions_than_its_matrices() -> None:
    a, unbatched = torch.randn(2, 3, 3), torch.tensor([1e-3, 10.0])
    found = vmap(lambda a: torch.linalg.pinv(a, rtol=unbatched))(a)
    torch.testing.assert_close(
        found, torch.stack([torch.linalg.pinv(e, rtol=unbatched) for e in a])
    )


@pytest.mark.parametrize(
    ("accepted", "refused", "batch"),
    [
        (lambda x: x.sum((-1,)), lambda x: x.sum((-2,)), (ones(2, 3),)),
        (lambda x: x.sum(-1), lambda x: x.sum(-2), (ones(2, 3),)),
        (lambda x: x.flip((0,)), lambda x: x.flip((-2,)), (ones(2, 3),)),
        (lambda x: x.unsqueeze(0), lambda x: x.unsqueeze(-3), (ones(2, 3),)),
        (
            lambda x, y: torch.cat([x, x]),
            lambda x, y: torch.cat([x, y]),
            (ones(2, 3), ones(2, 3, 3)),
        ),
        (
            lambda x, i: x.gather(0, i),
            lambda x, i: x.gather(0, i.float()),
            (ones(2, 3), torch.zeros(2, 3).long()),
        ),
    ],
)
def test_a_call_that_was_accepted_speaks_for_no_other(
    accepted: Any, refused: Any, batch: Any
) -> None:
    vmap(accepted)(*batch)
    with pytest.raises(Exception) as of_element:
        refused(*(x[0] for x in batch))
    with pytest.raises(type(of_element.value)) as of_batch:
        vmap(refused)(*batch)
    assert str(of_batch.value) == str(of_element.value)


def test_an_element_that_is_asked_saves_nothing_for_torchs_gradients() -> None:
    size = 13  # no other test has this one, so the first call asks an element
    weight, saved = (torch.eye(size) * 2).requires_grad_(), []
    for _ in range(2):
        count: list[Any] = []
        with torch.autograd.graph.saved_tensors_hooks(count.append, lambda x: x):
            vmap(lambda x: torch.linalg.solve(weight, x))(ones(3, size))
        saved.append(len(count))
    assert saved[0] == saved[1]
