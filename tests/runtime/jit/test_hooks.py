"""Hooks in a jitted step: those of modules and of what the step computes are part of the graph,
those of leaves are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as of_all
from torch.nn.utils import prune

import runtime.dropin
from runtime import jit

from .training import Wrap, both, deep, left, normal, step_of

Register = Callable[[nn.Module], Any]


def _twice(module: nn.Module, given: Any, of_results: Any) -> Any:
    return tuple(None if g is None else g * 2 for g in given)


def _thrice(module: nn.Module, of_results: Any) -> Any:
    return tuple(g * 3 for g in of_results)


_twice_before: Any = lambda m, args: (args[0] * 2,)  # noqa: E731

REGISTER: dict[str, Register] = {
    "forward": lambda m: m.register_forward_hook(lambda m, args, result: result * 2),
    "before forward": lambda m: m.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    "backward": lambda m: m.register_full_backward_hook(_twice),
    "before backward": lambda m: m.register_full_backward_pre_hook(_thrice),
    "forward of all": lambda m: of_all.register_module_forward_hook(
        lambda m, args, result: result * 2
    ),
    "before forward of all": lambda m: of_all.register_module_forward_pre_hook(_twice_before),
    "backward of all": lambda m: of_all.register_module_full_backward_hook(_twice),
    "before backward of all": lambda m: of_all.register_module_full_backward_pre_hook(_thrice),
}


@pytest.mark.parametrize("name", REGISTER)
def test_hooks_of_modules_are_run_from_the_call_on_at_which_they_are_there(name: str) -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model: Any = deep()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found: list[Tensor | None] = []

        run = wrap(step_of(model, optimizer))
        handle = None
        try:
            for i in range(7):
                if i == 2:
                    handle = REGISTER[name](model[1])
                if i == 5:
                    assert handle is not None
                    handle.remove()
                x = normal(i, 8, 4).requires_grad_()
                run(x)
                found += [x.grad, *left(model)]
        finally:
            if handle is not None:
                handle.remove()
        return found

    both(program)


def test_a_hook_for_gradients_sees_which_results_have_none() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
            return self.layer(x) + y, self.layer(y.repeat(1, 2)), 3

    def program(wrap: Wrap) -> list[Tensor | None]:
        model = Two()

        def hook(module: nn.Module, given: Any, of_results: Any) -> Any:
            more = 0 if of_results[1] is None else 1
            return tuple(None if g is None else g * 2 + more for g in given)

        model.register_full_backward_hook(hook)
        found: list[Tensor | None] = []

        def one(x: Tensor, y: Tensor) -> None:
            model(x, y)[0].sum().backward()

        def two(x: Tensor, y: Tensor) -> Any:
            a, b, _ = model(x, y)
            return torch.autograd.grad(a.sum() + b.sum(), [x])

        run_one, run_two = wrap(one), wrap(two)
        for i in range(3):
            x, y = normal(i, 3, 4).requires_grad_(), normal(-i, 3, 2)
            run_one(x, y)
            found += [x.grad, *run_two(x, y), *left(model)]
        return found

    both(program)


def test_a_hook_of_a_tensor_that_the_step_computes_changes_its_gradient() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        w = torch.ones(3, requires_grad=True)

        def f(x: Tensor) -> None:
            h = w * x
            h.register_hook(lambda g: g * 2)
            h.sum().backward()

        run = wrap(f)
        found: list[Tensor | None] = []
        for i in range(3):
            run(normal(i, 3))
            assert w.grad is not None
            found.append(w.grad.clone())
        return found

    both(program)


@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("calls_before", [0, 2])
def test_hooks_of_a_leaf_are_refused(kind: str, calls_before: int) -> None:
    x = torch.ones(2, requires_grad=True)
    f = jit(lambda: x.sum().backward())
    for _ in range(calls_before):
        f()
    handle = getattr(x, kind)(lambda g: None)
    with pytest.raises(RuntimeError, match="tensor with hooks, which a graph would not call"):
        f()
    assert calls_before == 0 or (x.grad is not None and x.grad.tolist() == [calls_before] * 2)
    handle.remove()
    f()
    assert x.grad is not None and x.grad.tolist() == [calls_before + 1] * 2


@pytest.mark.parametrize("place", [lambda w: w, torch.autograd.graph.get_gradient_edge])
@pytest.mark.parametrize("calls_before", [0, 2])
def test_hooks_of_a_leaf_are_refused_by_torch_autograd_grad(
    calls_before: int, place: Callable[[Tensor], Any]
) -> None:
    w = nn.Parameter(torch.ones(1))

    @jit
    def f(x: Tensor) -> Tensor:
        gradient: Tensor = torch.autograd.grad((x * w).sum(), place(w))[0]
        return gradient

    for _ in range(calls_before):
        assert f(torch.ones(1)).item() == 1.0
    w.register_hook(lambda g: g * 3)
    with pytest.raises(RuntimeError, match=r"autograd\.grad in the program asks.*with hooks"):
        f(torch.ones(1))


@pytest.mark.parametrize("calls_before", [0, 2])
def test_hooks_of_an_argument_that_gets_a_gradient_are_refused(calls_before: int) -> None:
    f = jit(lambda x: (x * x).sum().backward())
    for _ in range(calls_before):
        f(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda g: g * 2)
    with pytest.raises(RuntimeError, match="argument with hooks, which a graph would not call"):
        f(x)
    assert x.grad is None


PASSES: dict[str, Callable[[Tensor], Any]] = {
    "grad": lambda x: torch.autograd.grad((x * x).sum(), x)[0],
    "grad of grad": lambda x: torch.autograd.grad(
        torch.autograd.grad((x**3).sum(), x, create_graph=True)[0].sum(), x
    )[0],
    "grad at an edge": lambda x: torch.autograd.grad(
        (x * x).sum(), torch.autograd.graph.get_gradient_edge(x)
    )[0],
}


@pytest.mark.parametrize("name", PASSES)
def test_hooks_of_an_argument_are_refused_by_torch_autograd_grad(name: str) -> None:
    f = jit(PASSES[name])
    plain = f(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda g: g * 3)
    with pytest.raises(
        RuntimeError, match=r"autograd\.grad.* of an argument with hooks.*test_hooks\.py"
    ):
        f(x)
    assert f(torch.ones(2, requires_grad=True)).equal(plain)
    # no such pass calls a hook for what has been added to `.grad`
    y = torch.ones(2, requires_grad=True)
    y.register_post_accumulate_grad_hook(lambda p: None)
    assert f(y).equal(plain)


def test_a_hook_after_adding_to_the_gradient_of_an_argument_is_refused() -> None:
    f = jit(lambda x: (x * x).sum().backward())
    f(torch.ones(2, requires_grad=True))
    x = torch.ones(2, requires_grad=True)
    x.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(RuntimeError, match="argument with hooks, which a graph would not call"):
        f(x)
    assert x.grad is None


def test_forward_of_a_custom_function_sees_which_arguments_require_grad() -> None:
    class Chosen(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.both = a.requires_grad and b.requires_grad
            return a * b

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g * (10.0 if ctx.both else 20.0), g if ctx.both else None

    def program(wrap: Wrap) -> list[Tensor | None]:
        apply: Any = Chosen.apply
        run = wrap(lambda a, b: apply(a * 1, b * 1).sum().backward())
        found: list[Tensor | None] = []
        for flag in (True, False, True):
            a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=flag)
            run(a, b)
            found += [a.grad, b.grad]
        return found

    both(program)


@pytest.mark.parametrize(
    "accumulates", [False, True], ids=["first gradients", "gradients that add up"]
)
def test_an_argument_that_has_got_a_hook_since_the_capture_is_refused_beside_closed_over_parameters(
    accumulates: bool,
) -> None:
    weight: Any = torch.ones(2, requires_grad=True)

    @jit
    def step(x: Any) -> Any:
        if not accumulates:
            weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        return loss.detach()

    for _ in range(2):
        step(torch.ones(2, requires_grad=True))
    hooked = torch.ones(2, requires_grad=True)
    hooked.register_hook(lambda g: g * 2)
    with pytest.raises(RuntimeError, match="reaches an argument with hooks"):
        step(hooked)
    assert hooked.grad is None


def test_a_step_trains_a_layer_whose_hook_computes_the_weight_anew() -> None:
    def program(wrap: Wrap) -> list[Tensor | None]:
        model: Any = deep()
        # leaves one that torch recorded
        prune.l1_unstructured(
            next(m for m in model.modules() if isinstance(m, nn.Linear)), "weight", 0.4
        )
        step = wrap(step_of(model, torch.optim.SGD(model.parameters(), 0.1)))
        for i in range(3):
            step(normal(i, 8, 4))
        return left(model)

    both(program)


class Decaying(nn.Module):
    """Assigns a state to itself that torch's own autograd has recorded before the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.state = self.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.state * 0.5 + x * self.weight
        return self.state


def test_a_gradient_that_comes_to_a_history_of_torch_at_an_assigned_place_is_refused() -> None:
    result = jit(Decaying())(torch.ones(2))
    assert result.tolist() == [2.0, 2.0]
    with pytest.raises(RuntimeError, match="recorded by torch's own autograd"):
        result.sum().backward()
    model = Decaying()
    with pytest.raises(RuntimeError, match=r"history from before the call.*\n?.*model\(x\)"):
        jit(lambda x: model(x).sum().backward())(torch.ones(2))


def _hooked(x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: gradient * 2)
    return x


def _with_base(x: Tensor) -> tuple[Tensor, ...]:
    base = x * 1
    view = _hooked(base.view(-1))
    return base, view, view[1:]


VIEWS: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "a view of an argument": lambda x: (_hooked(x.view(-1)),),
    "a view of a view": lambda x: (_hooked(x.view(-1))[0],),
    "a view and the argument": lambda x: (_hooked(x[0]), x),
    "the base of a view": lambda x: (_hooked(x * 1).view(-1),),
    "a base and its views": _with_base,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_hook_of_a_view_that_the_program_returns_changes_its_gradient(name: str) -> None:
    def gradients(function: Callable[[Tensor], tuple[Tensor, ...]]) -> Tensor:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        results = function(x)
        shared = {result.untyped_storage().data_ptr() for result in results}
        assert len(shared) == 1
        loss = torch.stack([result.sum() * (i + 1) for i, result in enumerate(results)]).sum()
        (found,) = torch.autograd.grad(loss, x)
        return found

    jitted = jit(VIEWS[name])
    with runtime.dropin.installed():
        for _ in range(2):
            assert torch.equal(gradients(jitted), gradients(VIEWS[name]))


@pytest.mark.parametrize("name", ["a view of an argument", "a view and the argument"])
def test_a_write_to_a_returned_view_with_a_hook_is_refused(name: str) -> None:
    jitted = jit(VIEWS[name])
    with runtime.dropin.installed():
        for _ in range(2):
            x = torch.arange(6.0).reshape(2, 3).requires_grad_()
            argument = x * 1
            view = jitted(argument)[0]
            assert view._is_view()
            with pytest.raises(RuntimeError, match=r"(?s)is a view and.*with a hook"):
                view.mul_(2)
            assert argument.tolist() == x.tolist()


class Flat(torch.autograd.Function):
    """Returns a view, whose gradient is three times that of a view."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.view(2, 3) * 3


def test_a_write_to_a_view_that_a_function_returns_is_refused_as_in_eager_mode() -> None:
    def error(function: Callable[[Tensor], Tensor]) -> str:
        argument = torch.ones(2, 3, requires_grad=True) * 1
        view = function(argument)
        with pytest.raises(RuntimeError, match="custom Function") as caught:
            view.mul_(2)
        view.sum().backward()
        return str(caught.value).partition("This view")[2]

    with runtime.dropin.installed():
        assert error(jit(Flat.apply)) == error(Flat.apply)


def test_hooks_of_the_caller_for_what_is_saved_see_a_backward_pass_of_the_program() -> None:
    weight = torch.full((2,), 0.7, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad((weight.exp() * x * weight).sum(), weight)
        return gradient

    compiled = jit(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2)), program(torch.ones(2)))
        with torch.autograd.graph.saved_tensors_hooks(torch.round, lambda t: t):
            expected = program(torch.ones(2))
            torch.testing.assert_close(compiled(torch.ones(2)), expected)


def test_hooks_for_what_is_saved_count_as_often_as_in_eager_mode() -> None:
    """Torch's own nodes of a parameter in a capture call none."""
    weight, counts = torch.full((3,), 0.7, requires_grad=True), {"packs": 0, "unpacks": 0}

    def pack(x: Tensor) -> Tensor:
        counts["packs"] += 1
        return x * 2

    def unpack(x: Tensor) -> Tensor:
        counts["unpacks"] += 1
        return x / 2

    def program(x: Tensor) -> Tensor | None:
        weight.grad = None
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = (weight * x).sin().sum()
        loss.backward()
        return weight.grad

    expected = [program(normal(i, 3)) for i in range(3)]
    eager, compiled = dict(counts), jit(program)
    counts.update(packs=0, unpacks=0)
    for i, gradient in enumerate(expected):
        torch.testing.assert_close(compiled(normal(i, 3)), gradient)
    assert counts == eager


def test_a_program_that_makes_classes_may_register_a_hook_in_each_call() -> None:
    """A class body looks names up, and the number of the next hook is torch's own."""

    def program(wrap: Wrap) -> list[Tensor | None]:
        layer = nn.Identity()

        def step(x: Tensor) -> Tensor:
            class Reader:
                value = layer

            result: Tensor = getattr(Reader, "value")(x)  # noqa: B009
            layer.register_forward_hook(lambda m, args, result: result * 2)
            return result

        run = wrap(step)
        return [run(normal(i, 2)) for i in range(4)]

    both(program)


@pytest.mark.parametrize("has_pass", [False, True])
def test_a_hook_for_what_is_saved_is_called_as_often_as_in_eager_mode(has_pass: bool) -> None:
    weight, packed = nn.Parameter(torch.ones(3)), []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tuple(tensor.shape))
        return tensor * 1

    def step(x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            y = (weight * x).sin()
        if has_pass:
            y.sum().backward()
        return y.detach()

    step(torch.ones(3))
    eager, compiled = list(packed), jit(step)
    packed.clear()
    for calls in range(1, 4):
        compiled(torch.ones(3))
        assert packed == eager * calls


def test_a_pair_of_hooks_of_the_caller_packs_beside_that_of_the_program() -> None:
    weight, packed = nn.Parameter(torch.ones(3)), []

    def pack(name: str) -> Callable[[Tensor], Tensor]:
        def note(tensor: Tensor) -> Tensor:
            packed.append(name)
            return tensor * 1

        return note

    hooks = torch.autograd.graph.saved_tensors_hooks
    inner, outer = pack("inner"), pack("outer")

    def step(x: Tensor) -> Tensor:
        with hooks(outer, lambda tensor: tensor):
            y = (weight * x).sin()
            with hooks(inner, lambda tensor: tensor):
                y = y.exp()
            y = y.cos()
        y.sum().backward()
        return y.detach()

    step(torch.ones(3))
    eager = list(packed)
    packed.clear()
    jit(step)(torch.ones(3))
    assert packed == eager
