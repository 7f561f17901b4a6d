"""What a program asks of a tensor about the object itself, and not about its elements: each
attribute and each method that torch gives to tensors. A program says what eager mode says, or is
refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from runtime import dropin, jit


def _leaf() -> Any:
    return torch.ones(2, 2, requires_grad=True)


def _changed(x: Any, change: Callable[[Any], object]) -> Any:
    change(x)
    return x


def _of_inference() -> Any:
    with torch.inference_mode():
        return torch.ones(2, 2)


def _with_gradient() -> Any:
    return _changed(_leaf(), lambda x: (x * 2).sum().backward())


KINDS: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.ones(2, 2),
    "rows": lambda: torch.ones(3, 2)[1:],
    "later rows": lambda: torch.ones(4, 2)[2:],
    "of inference": _of_inference,
    "leaf": _leaf,
    "with a gradient": _with_gradient,
    "frozen": lambda: _with_gradient().requires_grad_(False),
    "hooked": lambda: _changed(_leaf(), lambda x: x.register_hook(lambda g: g)),
    "hooked behind": lambda: _changed(
        _leaf(), lambda x: x.register_post_accumulate_grad_hook(lambda x: None)
    ),
    "retains": lambda: _changed(_leaf() * 1, lambda x: x.retain_grad()),
    "another output": lambda: torch.unbind(torch.ones(2, 2, 2, requires_grad=True) * 1)[1],
    "written": lambda: torch.ones(2, 2).fill_(1),
    "any gradient": lambda: _changed(_leaf(), lambda x: setattr(x, "grad_dtype", None)),
    "shared": lambda: torch.ones(2, 2).share_memory_(),
}
OF_PYTHON = frozenset((*dir(object), "__annotations__", "__dict__", "__module__", "__weakref__"))
PLACES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "torch": nullcontext,
    "dropin": dropin.installed,
}


def _shown(x: object) -> object:
    """Return what tells answers apart; of tensors and objects their class alone."""
    if isinstance(x, torch.Tensor):
        return torch.Tensor
    if isinstance(x, (tuple, list)):
        return type(x), tuple(map(_shown, x))
    known = (bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, type(None))
    return (type(x), x) if isinstance(x, known) else type(x).__name__


def _answer(x: Any, name: str) -> object:
    found = getattr(x, name)
    return _shown(found() if callable(found) else found)


def _or_error(f: Callable[[], Any]) -> tuple[Any, str]:
    """Return what ``f`` returns, or None and the text of its error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return f(), ""
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"


def _is_question(name: str) -> bool:
    """Return whether ``name`` is no op: some tensor answers with something else than a tensor."""
    if name in OF_PYTHON or name.startswith("__i") or (name.endswith("_") and name[:2] != "__"):
        return False
    answers = [_or_error(partial(_answer, make(), name)) for make in KINDS.values()]
    return any(not error and found is not torch.Tensor for found, error in answers)


QUESTIONS = sorted(filter(_is_question, dir(torch.Tensor)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_tensor_says_what_it_says_in_eager_mode_or_is_refused(name: str, place: str) -> None:
    holder = SimpleNamespace(x=torch.ones(2, 2))
    of_argument = jit(lambda x: (x.detach() * 1, _answer(x, name)))
    of_state = jit(lambda x: (x * 1, _answer(holder.x, name)))
    with PLACES[place]():
        for _ in range(3):  # after which it is an argument
            holder.x = torch.ones(2, 2)
            _or_error(lambda: of_state(torch.ones(2)))
        for kind, make in KINDS.items():
            holder.x = make()
            right, wrong = _or_error(partial(_answer, holder.x, name))
            for f, x in ((of_argument, holder.x), (of_state, torch.ones(2))):
                answers, error = _or_error(partial(f, x))
                found = None if error else answers[1]
                refused = error.startswith(("RuntimeError", "BufferError"))
                assert refused or (bool(wrong) if error else found == right), (kind, found, error)


def test_the_list_has_the_questions_that_a_stand_in_would_answer_otherwise() -> None:
    assert {
        *("_backward_hooks", "_cdata", "_grad", "_post_accumulate_grad_hooks", "_version"),
        *("const_data_ptr", "data_ptr", "grad", "grad_dtype", "is_inference", "is_leaf"),
        *("output_nr", "requires_grad", "retains_grad", "shape", "storage_offset"),
    } <= set(QUESTIONS)


ANSWERED = {
    "storage_offset": ("plain", "rows", "later rows", "rows"),
    "is_inference": ("plain", "of inference", "plain"),
    "_version": ("plain", "written", "plain"),
    "grad_dtype": ("leaf", "any gradient", "leaf"),
}


@pytest.mark.parametrize("name", ANSWERED)
def test_what_can_be_answered_is_not_refused(name: str) -> None:
    run = jit(lambda x: (x.detach() * 1, _answer(x, name)))
    for kind in ANSWERED[name]:
        x = KINDS[kind]()
        assert run(x)[1] == _answer(x, name), kind


def test_a_program_that_asks_for_no_offset_is_one_for_all_offsets() -> None:
    run = jit(lambda x: x * getattr(x, "scale", 2))
    x = torch.ones(4, 2)
    for i in range(4):
        run(x[i:])
        run(x[i : i + 1])
    offsets = len(jit.explain(run).programs)
    fresh = jit(lambda x: x * getattr(x, "scale", 2))
    for i in range(4):
        fresh(torch.ones(4 - i, 2))
        fresh(torch.ones(1, 2))
    assert offsets == len(jit.explain(fresh).programs)


@pytest.mark.parametrize("name", ["is_inference", "_version"])
def test_a_view_of_a_tensor_of_inference_mode_is_refused_with_the_line(name: str) -> None:
    x = _of_inference()
    with pytest.raises(RuntimeError, match=rf"asks a tensor for '{name}'.*It happened at"):
        jit(lambda x: (x * 1, _answer(x[1:], name)))(x)


def test_the_view_of_a_tensor_of_inference_mode_in_the_state_is_refused_too() -> None:
    x = _of_inference()
    with pytest.raises(RuntimeError, match=r"asks a tensor for 'is_inference'"):
        jit(lambda y: (y * 1, x[1:].is_inference()))(torch.ones(2))


def test_the_offset_of_a_view_follows_that_of_the_argument() -> None:
    run = jit(lambda x: (x * 1, x[1:].storage_offset()))
    for kind in ("plain", "rows", "later rows"):
        x = KINDS[kind]()
        assert run(x)[1] == x[1:].storage_offset()


CHANGES: dict[str, tuple[str, Callable[[Any], object], Callable[[Any], object]]] = {
    "hooks": ("leaf", lambda x: x.register_hook(lambda g: g), lambda x: not x._backward_hooks),
    "a gradient": ("leaf", lambda x: (x * 2).sum().backward(), lambda x: x._grad is None),
    "its dtype": (
        "leaf",
        lambda x: setattr(x, "grad_dtype", None),
        lambda x: x.grad_dtype is None,
    ),
    "shared memory": ("plain", lambda x: x.share_memory_(), lambda x: x.is_shared()),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", CHANGES)
def test_what_a_tensor_of_the_state_says_may_change(name: str, place: str) -> None:
    kind, change, ask = CHANGES[name]
    with PLACES[place]():
        x = KINDS[kind]()
        run = jit(lambda y: (y * 1, ask(x)))
        for call in range(4):
            if call == 2:
                change(x)
            assert run(torch.ones(2))[1] == ask(x)


def test_an_assigned_dtype_of_gradients_is_refused_with_the_line() -> None:
    def program(x: Any) -> Any:
        x.grad_dtype = None
        return x.detach() * 1

    with pytest.raises(RuntimeError, match=r"assigns to 'grad_dtype'.*It happened at"):
        jit(program)(_leaf())


def test_a_gradient_that_a_given_tensor_is_to_retain_is_refused_with_the_line() -> None:
    def program(x: Any) -> Any:
        x.retain_grad()
        return x * 2

    run = jit(program)
    with dropin.installed():
        with pytest.raises(RuntimeError, match=r"retain_grad\(\) of a tensor that it is given"):
            run(_leaf() * 1)
        run(KINDS["retains"]())


# --- gradients of tensors that have become arguments ----------------------------------------------


def _at_a_place(program: Callable[[Any, Any], Any]) -> tuple[Any, Callable[[], Any]]:
    """Return a holder, and ``program`` of it, which takes what it holds as an argument."""
    holder = SimpleNamespace(x=None)
    run = jit(lambda y: program(holder, y))
    for _ in range(3):
        holder.x = torch.ones(2, 2)
        run(torch.ones(2, 2))
    return holder, lambda: run(torch.ones(2, 2))


@pytest.mark.parametrize("place", PLACES)
def test_a_leaf_at_a_place_has_its_gradient(place: str) -> None:
    with PLACES[place]():
        holder, run = _at_a_place(lambda h, y: y * (2 if h.x.grad is None else 3))
        for kind in ("plain", "with a gradient", "leaf", "frozen", "with a gradient", "plain"):
            holder.x = KINDS[kind]()
            assert torch.equal(run(), torch.full((2, 2), 2.0 if holder.x.grad is None else 3.0))


@pytest.mark.parametrize("place", PLACES)
def test_a_leaf_at_a_place_gets_its_gradient(place: str) -> None:
    def program(holder: Any, y: Any) -> Any:
        if holder.x.requires_grad:
            (holder.x * y * 3).sum().backward()
        return y * 1

    with PLACES[place]():
        holder, run = _at_a_place(program)
        for kind, right in (("leaf", 3.0), ("with a gradient", 5.0), ("leaf", 3.0)):
            holder.x = KINDS[kind]()
            run()
            assert torch.equal(holder.x.grad, torch.full((2, 2), right)), kind
        holder.x = KINDS["hooked"]()
        with pytest.raises(RuntimeError, match=r"argument with hooks.*It happened at .*backward"):
            run()


def test_a_leaf_that_the_program_replaces_keeps_the_gradient_of_its_step() -> None:
    def step(holder: Any, y: Any) -> Any:
        x = holder.x
        (x * x * y).sum().backward()
        holder.x = (x - 0.25 * x.grad).detach().requires_grad_()
        return y * 1

    holders = SimpleNamespace(x=_leaf()), SimpleNamespace(x=_leaf())
    run = jit(lambda y: step(holders[1], y))
    for _ in range(4):
        before = holders[0].x, holders[1].x
        step(holders[0], torch.ones(2, 2))
        run(torch.ones(2, 2))
        assert torch.equal(before[0].grad, before[1].grad)
        assert torch.equal(holders[0].x, holders[1].x) and holders[1].x.grad is None


@pytest.mark.parametrize("kind", ["plain", "frozen", "leaf"])
def test_an_argument_that_requires_no_grad_may_get_a_gradient(kind: str) -> None:
    def program(x: Any) -> Any:
        x.grad = x.detach() * 2
        return x.detach() * 1

    run = jit(program)
    for _ in range(2):
        x = KINDS[kind]()
        run(x)
        assert torch.equal(x.grad, torch.full((2, 2), 2.0))


@pytest.mark.parametrize("kind", ["hooked", "retains"])
def test_a_backward_pass_that_reaches_such_an_argument_is_refused_with_the_line(kind: str) -> None:
    def program(x: Any) -> Any:
        (x * 2).sum().backward()
        return x.detach() * 1

    with dropin.installed():
        run = jit(program)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"an argument.*It happened at .*backward"):
                run(KINDS[kind]())
            run(_leaf())


def test_a_branch_of_a_program_may_ask_its_tensors() -> None:
    scale = torch.full((2,), 3.0)

    def program(x: Any, name: str) -> Any:
        def doubled(x: Any) -> Any:
            return x * scale * (5 if getattr(x * 1, name)() else 2)

        return torch.cond(x.sum() > 0, doubled, lambda x: x * scale, (x,))

    with dropin.installed():
        compiled = jit(program)
        for _ in range(3):
            x = torch.ones(2)
            assert torch.equal(compiled(x, "is_inference"), program(x, "is_inference"))


def test_the_memory_of_a_tensor_of_the_state_may_grow() -> None:
    weight = torch.ones(2)
    compiled = jit(lambda x: x * weight.untyped_storage().nbytes())
    for size in (8, 8, 80):
        weight.untyped_storage().resize_(size)
        assert compiled(torch.ones(1)) == size
