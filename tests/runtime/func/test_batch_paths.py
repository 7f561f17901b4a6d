"""How a batch level runs a call: at once, by a rule, by a decomposition or as a loop; and how often
each op arrives."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from runtime.errors import MissingRule
from runtime.extend import register
from runtime.func import element_check, vmap
from runtime.func.batch import BatchLevel, fallback_policy, fallbacks
from runtime.rules import RECORDS

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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops that arrive at a batch level."""
    seen: list[str] = []
    real = BatchLevel.call

    def call(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        seen.append(func._schema.name.removeprefix("aten::"))
        return real(self, func, args, kwargs)

    monkeypatch.setattr(BatchLevel, "call", call)
    return seen


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
def test_a_program_arrives_at_a_batch_as_these_ops(name: str, calls: list[str]) -> None:
    f, expected = ARRIVING[name]
    found = vmap(f)(X)
    assert calls == expected
    torch.testing.assert_close(found, torch.stack([f(x) for x in X]))


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the ops that were run on one element, to see whether it accepts them."""
    seen: list[str] = []
    real = element_check.run

    def run(op: Any, *rest: Any) -> None:
        seen.append(op.base_name)
        real(op, *rest)

    monkeypatch.setattr(element_check, "run", run)
    return seen


def test_an_element_is_asked_once_for_each_signature(checked: list[str]) -> None:
    def asked(f: Callable[..., Any], *args: torch.Tensor) -> int:
        before = len(checked)
        vmap(f)(*args)
        return len(checked) - before

    def gather(x: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return x.gather(dim, torch.zeros(1, 5, dtype=torch.int64))

    x = torch.ones(2, 7, 5)
    assert [asked(gather, x), asked(gather, x), asked(gather, x + 1)] == [1, 0, 0]
    assert [
        asked(gather, x.double()),
        asked(gather, x[:, :6]),
        asked(lambda x: gather(x, -2), x),
        asked(gather, x[:1]),
    ] == [1, 1, 1, 0]


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
