"""Faults of ``torch.compile``: each shows in a program that depends on its place, and in none after
its block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from gen.targets import load
from gen.targets.faults import Auditable

TARGET: Any = load("aot_eager")

Program = Callable[..., Any]
Arguments = Callable[[], Sequence[Any]]


def square() -> Tensor:
    return torch.arange(1.0, 10.0, dtype=torch.float64).reshape(3, 3)


def leaf() -> Tensor:
    return square().requires_grad_()


def facts(x: object) -> object:
    """Return what a caller can see of a result: numbers, strides, history, whether it is a view."""
    if isinstance(x, Tensor):
        shown = x.detach().resolve_conj().resolve_neg()
        return shown.tolist(), x.stride(), x.dtype, x.requires_grad, x._is_view()
    if isinstance(x, (tuple, list)):
        return [facts(one) for one in x]
    return x


def seen(program: Program, arguments: Arguments) -> object:
    """Return what a caller sees of a compiled program and of its arguments, or its error."""
    torch.manual_seed(0)
    given = arguments()
    try:
        return facts((TARGET.jit(program)(*given), given))
    except Exception as error:
        return type(error)


def draws_twice(x: Tensor) -> Tensor:
    return torch.rand_like(x) - torch.rand_like(x)


def reads_before_a_write(x: Tensor) -> Tensor:
    y = x.sin()
    x.add_(1)
    return y


def adds_to_places(x: Tensor) -> Tensor:
    places = torch.zeros(3, 3, dtype=torch.long)
    return torch.zeros_like(x).scatter_add(0, places, x)


@pytest.mark.parametrize(
    ("kind", "program", "arguments"),
    [
        ("cast", lambda x: x.to(torch.int32) * 2, lambda: [square() / 2]),
        ("alias", lambda x: x.clone(), lambda: [square()]),
        ("stride", lambda x: x.sin(), lambda: [square()]),
        ("write", lambda x: x.mul_(2) and None, lambda: [torch.ones(())]),
        ("order", reads_before_a_write, lambda: [square()]),
        ("index", lambda x: x[1] * 2, lambda: [square()]),
        ("transpose", lambda x: x.t() * 2, lambda: [square()]),
        ("operands", lambda x: x - x.sin(), lambda: [square()]),
        ("mask", lambda x: torch.where(x > 4, x, -x), lambda: [square()]),
        ("number", lambda x: x * 2.5, lambda: [square()]),
        ("sign", lambda x: -x, lambda: [square()]),
        ("conjugate", lambda x: x.conj() * 2, lambda: [torch.ones(2) * (1 + 2j)]),
        ("zeros", lambda x: x + torch.zeros_like(x), lambda: [square()]),
        ("accumulate", adds_to_places, lambda: [square()]),
        ("precision", lambda x: x.sin(), lambda: [square()]),
        ("draw", draws_twice, lambda: [square()]),
    ],
)
def test_a_mistake_in_a_graph_shows_in_what_it_computes(
    kind: str, program: Program, arguments: Arguments
) -> None:
    right = seen(program, arguments)
    assert right == facts((*_eager(program, arguments),))
    with TARGET.planted("forward_graph graph", kind):
        assert seen(program, arguments) != right
    assert seen(program, arguments) == right


def _eager(program: Program, arguments: Arguments) -> tuple[Any, Any]:
    torch.manual_seed(0)
    given = arguments()
    return program(*given), given


def slope(program: Program) -> object:
    """Return the gradient of a compiled program at a matrix."""
    x = leaf()
    TARGET.jit(program)(x).sum().backward()
    return facts(x.grad)


def test_a_mistake_in_a_backward_graph_shows_in_the_gradient_alone() -> None:
    def program(x: Tensor) -> Tensor:
        return (x * 2.5).cos()

    value, gradient = seen(program, lambda: [leaf()]), slope(program)
    for kind in ("sign", "number"):
        with TARGET.planted("backward_graph graph", kind):
            assert seen(program, lambda: [leaf()]) == value
            assert slope(program) != gradient
    assert slope(program) == gradient


def twice(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1)
    return y * 2


@pytest.mark.parametrize(
    ("rule", "kind", "program", "arguments"),
    [
        ("aliases alias", "copied", lambda x: x.view(-1), lambda: [square()]),
        ("aliases alias", "detached", lambda x: x.view(-1), lambda: [leaf()]),
        (
            "shared_arguments arguments",
            "separate",
            twice,
            lambda: (lambda x: [x[:2], x[1:]])(square()),
        ),
        ("facts facts", "constant", lambda x: x.sin(), lambda: [leaf()]),
        ("facts facts", "write", lambda x: x.mul_(2).sum(), lambda: [square()]),
    ],
)
def test_a_mistake_around_a_graph_shows_in_what_the_caller_has(
    rule: str, kind: str, program: Program, arguments: Arguments
) -> None:
    right = seen(program, arguments)
    with TARGET.planted(rule, kind):
        assert seen(program, arguments) != right
    assert seen(program, arguments) == right


def test_a_version_that_does_not_advance_lets_a_write_to_a_saved_value_pass() -> None:
    def versions() -> int:
        x = torch.ones(())
        TARGET.jit(lambda x: x.mul_(2) and None)(x)
        return x._version

    advanced = versions()
    assert advanced > 0
    with TARGET.planted("versions arguments", "unadvanced"):
        assert versions() < advanced


def test_values_that_are_saved_in_another_order_give_another_gradient() -> None:
    def program(x: Tensor) -> Tensor:
        return x.sin() * x.exp()

    gradient = slope(program)
    with TARGET.planted("saved_values saved_values", "exchanged"):
        assert slope(program) != gradient
    assert slope(program) == gradient


class Counter:
    """Has a number."""

    count = 0


def changes(kind: str) -> tuple[Program, Callable[[], object]]:
    """Return a program that changes an object of Python's, and what is there now."""
    items: list[int] = []
    names: dict[str, int] = {}
    counter = Counter()
    number = 0

    def count() -> None:
        nonlocal number
        number += 1

    change: dict[str, Callable[[], object]] = {
        "list": lambda: items.append(1),
        "dictionary": lambda: names.update(a=1),
        "object": lambda: setattr(counter, "count", 3),
        "cell": count,
    }
    now: dict[str, Callable[[], object]] = {
        "list": lambda: len(items),
        "dictionary": lambda: len(names),
        "object": lambda: counter.count,
        "cell": lambda: number,
    }

    def program(x: Tensor) -> Tensor:
        change[kind]()
        return x * 2

    return program, now[kind]


@pytest.mark.parametrize("kind", ["list", "dictionary", "object", "cell"])
def test_a_change_of_an_object_is_lost(kind: str) -> None:
    program, now = changes(kind)
    before = now()
    with TARGET.planted("effects effect", kind):
        TARGET.jit(program)(square())
    assert now() == before
    TARGET.jit(program)(square())
    assert now() != before


def test_a_hook_is_lost() -> None:
    def program(x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 10)
        return x * 2

    gradient = slope(program)
    with TARGET.planted("hooks effect", "hook"):
        assert slope(program) != gradient


@pytest.mark.parametrize(
    ("guard", "program", "first", "then"),
    [
        ("TENSOR_MATCH", lambda x, s: x * x.shape[0], (square(), 0), (square()[:2], 0)),
        ("EQUALS_MATCH", lambda x, s: x * 2 if s == "2" else -x, (square(), "2"), "-"),
        ("SEQUENCE_LENGTH", lambda x, s: x * len(s), (square(), [1]), [1, 2]),
    ],
)
def test_a_guard_that_is_not_asked_lets_a_program_serve_another_call(
    guard: str, program: Program, first: tuple[Any, Any], then: Any
) -> None:
    second = then if isinstance(then, tuple) else (first[0], then)

    def run() -> object:
        compiled = TARGET.jit(program)
        compiled(*first)
        try:
            return facts(compiled(*second))
        except Exception as error:
            return type(error)

    right = run()
    assert right == facts(program(*second))
    with TARGET.planted(f"{guard} guard", "unasked"):
        assert run() != right
    assert run() == right


def test_a_fault_is_undone_when_what_runs_with_it_fails() -> None:
    def program(x: Tensor) -> Tensor:
        return -x

    right = seen(program, lambda: [square()])
    for rule, kind in (("forward_graph graph", "sign"), ("aliases alias", "copied")):
        with pytest.raises(ZeroDivisionError), TARGET.planted(rule, kind):
            raise ZeroDivisionError
    assert seen(program, lambda: [square()]) == right


def test_a_watch_tells_what_ran_and_which_faults_would_show() -> None:
    with TARGET.watched() as watch:
        seen(lambda x: -x * 2.5, lambda: [square()])
        once = watch.taken()
        compiled = TARGET.jit(lambda x: -x)
        compiled(square())
        compiled(square()[:2])
        again = watch.taken()
        nothing = watch.taken()
    assert {"sign", "number", "stride"} <= once["forward_graph graph"]
    assert "mask" not in once["forward_graph graph"]
    assert once["TENSOR_MATCH guard"] == frozenset(), "no call followed"
    assert again["TENSOR_MATCH guard"] == {"unasked"}
    assert not nothing


def test_a_watch_leaves_results_alone() -> None:
    right = seen(draws_twice, lambda: [square()])
    with TARGET.watched():
        assert seen(draws_twice, lambda: [square()]) == right


def test_every_place_has_kinds_and_every_target_of_torch_compile_has_places() -> None:
    for name in ("aot_eager", "dynamo", "inductor"):
        target = load(name)
        assert isinstance(target, Auditable)
        names = [rule.name for rule in target.rules()]
        assert len(set(names)) == len(names) > 50
        assert all(rule.kinds for rule in target.rules())
