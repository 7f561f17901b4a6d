"""How a batch level runs a call: at once, by a rule, by a decomposition or as a loop; and how often
each op arrives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runtime.errors import MissingRule
from runtime.extend import Value, register
from runtime.func import vmap
from runtime.func.batch import fallback_policy, fallbacks
from runtime.rules import RECORDS
from tests.runtime.unheard import unheard_op

_LIBRARY = "runtime_test_batch_paths"
torch.library.define(f"{_LIBRARY}::scale_", "(Tensor(a!) x, Tensor y) -> Tensor(a!)")
torch.library.define(f"{_LIBRARY}::offset", "(Tensor x, Tensor y) -> Tensor")
torch.library.define(f"{_LIBRARY}::nudge_", "(Tensor(a!) x, Tensor y) -> Tensor(a!)")
torch.library.define(
    f"{_LIBRARY}::joined", "(Tensor x, Tensor[] ys, *, Tensor? z=None) -> (Tensor, Tensor)"
)
OWN = getattr(torch.ops, _LIBRARY)


def _full(x: torch.Tensor) -> None:
    if not x.numel():
        raise RuntimeError("an empty tensor")


def _scale_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _full(x)
    return x.mul_(y)


def _offset(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    _full(x)
    return x + y


def _joined(
    x: torch.Tensor, ys: list[torch.Tensor], *, z: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([x, *ys], 1), x.sum() if z is None else z * 2


torch.library.impl(f"{_LIBRARY}::scale_", "CompositeExplicitAutograd")(_scale_)
torch.library.impl(f"{_LIBRARY}::offset", "CompositeExplicitAutograd")(_offset)
torch.library.impl(f"{_LIBRARY}::joined", "CompositeExplicitAutograd")(_joined)
torch.library.impl(f"{_LIBRARY}::nudge_", "CompositeExplicitAutograd")(lambda x, y: x.add_(y))


def _batch(func: Any, size: int, batched: Any, args: Any, kwargs: Any) -> Any:
    x, y = args
    return func(x, y.unsqueeze(-1) if batched[1] else y)


@pytest.fixture
def registered() -> Iterator[None]:
    """Both ops have batch rules that call the kernel with the whole batch."""
    register(f"{_LIBRARY}::scale_", batch=_batch, in_place=True)
    register(f"{_LIBRARY}::offset", batch=_batch)
    yield
    for op in (OWN.scale_, OWN.offset):
        del RECORDS[op.default]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("size", [0, 1, 3])
def test_an_op_in_place_that_refuses_empty_tensors_returns_what_it_was_given(size: int) -> None:
    y, seen = torch.full((), 3.0), []

    def f(x: torch.Tensor) -> Any:
        target = x * 1
        seen.append(OWN.scale_(target, y) is target)
        return target, OWN.offset(x, y)

    found = vmap(f)(torch.ones(size, 4))
    assert seen == [True] and [t.shape for t in found] == [(size, 4)] * 2
    assert torch.equal(found[0], torch.full((size, 4), 3.0)) and torch.equal(
        found[1], torch.full((size, 4), 4.0)
    )


@pytest.mark.parametrize("policy", ["warn", "silent", "raise"])
def test_a_loop_in_place_over_elements_is_counted_and_told_as_the_policy_says(policy: str) -> None:
    name = f"{_LIBRARY}.nudge_.default"
    before, x = fallbacks[name], torch.zeros(3, 2)
    y = torch.tensor([1.0, 2.0, 3.0])

    def run() -> Any:
        return vmap(lambda x, y: OWN.nudge_(x * 1, y))(x, y)

    with fallback_policy(policy), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        element_and_line = f"{name} has no batch rule, so vmap runs it as a loop over 3 elements"
        if policy == "raise":
            with pytest.raises(MissingRule, match="nudge_"):
                run()
        else:
            assert run().tolist() == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    assert fallbacks[name] == before + (policy != "raise")
    assert [(str(w.message).startswith(element_and_line), w.filename) for w in caught] == [
        (True, __file__)
    ] * (policy == "warn")


class Arriving(TorchDispatchMode):
    """Lists the names of the ops that arrive at a level of a transform."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if any(isinstance(a, Value) for a in tree_leaves((args, options))):
            self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **options)


X = torch.arange(12.0).reshape(2, 3, 2) / 4
ARRIVING: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "a product": (lambda x: x * x, ["mul"]),
    "a chain": (lambda x: x.sin().exp(), ["sin", "exp"]),
    "a view": (lambda x: x.t()[0], ["t", "select"]),
    "a linear layer": (lambda x: torch.nn.functional.linear(x, torch.ones(3, 2)), ["mm"]),
    "a softmax": (lambda x: x.softmax(0), ["_softmax"]),
    "in place": (lambda x: (x * 1).add_(1), ["mul", "add_"]),
    "a question": (lambda x: x if x.dim() == 2 and x.shape[0] == 3 else -x, []),
    "a list": (lambda x: torch.cat([x, x]), ["cat"]),
    "a square root of a variance": (lambda x: x.std(0), ["std"]),
    "what is shared": (lambda x: x + torch.ones(2).sin(), ["add"]),
}


@pytest.mark.parametrize("name", ARRIVING)
def test_a_program_arrives_at_a_batch_as_these_ops(name: str) -> None:
    f, expected = ARRIVING[name]
    arriving = Arriving()

    def watched(x: Any) -> Any:
        with arriving:
            return f(x)

    found = vmap(watched)(X)
    assert arriving.names == expected
    torch.testing.assert_close(found, torch.stack([f(x) for x in X]))


ELEMENT = torch.ones(7, 5)
# each is another signature than ELEMENT with the dimension 0
OTHER_SIGNATURES: dict[str, tuple[torch.Tensor, int]] = {
    "another dtype": (ELEMENT.double(), 0),
    "another size": (ELEMENT[:6], 0),
    "another argument that is no tensor": (ELEMENT, -2),
}


class Asked:
    """An op with a batch rule, and a count of how often it has run on an element alone."""

    def __init__(self) -> None:
        self.times = 0
        self.op = unheard_op("(Tensor x, int dim) -> Tensor", self._kernel)
        register(self.op.default.name(), batch=lambda func, size, batched, args, kwargs: args[0])

    def _kernel(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        self.times += 1
        return x.clone()

    def by(self, batch: torch.Tensor, dim: int = 0) -> int:
        """Call the op with a batch. Return how often an element was asked for that."""
        before = self.times
        vmap(lambda x: self.op(x, dim))(batch)
        return self.times - before

    def forget(self) -> None:
        del RECORDS[self.op.default]


@pytest.fixture
def asked() -> Iterator[Asked]:
    op = Asked()
    yield op
    op.forget()


def test_an_element_is_asked_at_the_first_call_alone(asked: Asked) -> None:
    batch = ELEMENT.repeat(2, 1, 1)
    assert [asked.by(batch), asked.by(batch), asked.by(batch + 1)] == [1, 0, 0]


def test_an_element_is_asked_once_for_batches_of_any_size(asked: Asked) -> None:
    batch = ELEMENT.repeat(2, 1, 1)
    assert [asked.by(batch), asked.by(batch[:1])] == [1, 0]


@pytest.mark.parametrize("other", OTHER_SIGNATURES)
def test_an_element_is_asked_for_each_signature(other: str, asked: Asked) -> None:
    element, dim = OTHER_SIGNATURES[other]
    asked.by(ELEMENT.repeat(2, 1, 1))
    assert [asked.by(element.repeat(2, 1, 1), dim) for _ in range(2)] == [1, 0]


def test_an_op_that_is_called_in_ever_new_ways_forgets_the_old_ones(asked: Asked) -> None:
    """Or its memory would grow in a program that passes a new number in every call."""
    batch, many = ELEMENT.repeat(2, 1, 1), 4096
    assert [asked.by(batch, dim) for dim in range(many)] == [1] * many
    assert asked.by(batch, 0) == 0, "so many are remembered"
    assert [asked.by(batch, many), asked.by(batch, 0)] == [1, 1], "and no more"


@pytest.mark.parametrize("level", [1, 2])
def test_an_element_that_refuses_is_found_wherever_it_is(level: int) -> None:
    """The kernel refuses a singular matrix. The error is that of the element alone, with its own
    number of dimensions."""
    each = torch.eye(2).repeat(4, 1, 1)
    each[2, 0, 0] = 0.0
    f: Any = torch.linalg.inv
    x = each
    for _ in range(level - 1):
        f, x = vmap(f), x.expand(3, *x.shape)
    with pytest.raises(RuntimeError) as alone:
        torch.linalg.inv(each[2])
    with pytest.raises(RuntimeError) as found:
        vmap(f)(x)
    assert str(found.value) == str(alone.value)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.clone().index_add_(0, torch.tensor([0]), x[:1]),
        lambda x: x.index_fill(0, torch.tensor([1]), 2.0),
    ],
)
def test_asking_an_element_writes_nothing_and_draws_nothing(f: Callable[[Any], Any]) -> None:
    x = torch.arange(10.0).reshape(2, 5)
    before, state = x.clone(), torch.get_rng_state()
    torch.testing.assert_close(vmap(f)(x), torch.stack([f(row) for row in x]))
    assert torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)


def test_a_draw_of_elements_is_checked_without_a_draw() -> None:
    p = torch.full((3, 4), 0.5)
    torch.manual_seed(1)
    found = vmap(torch.bernoulli, randomness="different")(p)
    torch.manual_seed(1)
    assert torch.equal(found, torch.bernoulli(p))


CHUNKS = [
    (5, 2, [2, 2, 1]),
    (4, 2, [2, 2]),
    (3, 5, [3]),
    (3, 3, [3]),
    (3, 1, [1, 1, 1]),
    (1, 1, [1]),
]


@pytest.mark.parametrize(("size", "chunk", "expected"), CHUNKS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_batch_is_run_in_pieces_of_the_size_that_was_asked_for(
    size: int, chunk: int, expected: list[int], dim: int
) -> None:
    sizes: list[int] = []

    def f(x: Any) -> Any:
        sizes.append(x._level.size)
        return x * 2

    x = torch.arange(float(size * 3)).reshape(size, 3).movedim(0, dim)
    assert torch.equal(vmap(f, in_dims=dim, out_dims=dim, chunk_size=chunk)(x), x * 2)
    assert sizes == expected


@pytest.mark.parametrize("size", [0, 1, 3])
def test_an_op_of_lists_and_with_several_results_is_looped_over(size: int) -> None:
    xs, ys, shared = torch.rand(size, 2, 3), torch.rand(size, 2, 4), torch.rand(2, 5)
    for named in (False, True):

        def f(x: Any, y: Any, named: bool = named) -> Any:
            return OWN.joined(x, [y, shared, y], z=y if named else None)

        with fallback_policy("silent"):
            joined, other = vmap(f)(xs, ys)
        assert torch.equal(joined, torch.cat([xs, ys, shared.expand(size, 2, 5), ys], 2))
        torch.testing.assert_close(other, ys * 2 if named else xs.sum((1, 2)))
