"""Hooks of tensors and nodes: when they run, what they see and what they may change. Torch's
engine is the oracle."""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.hooks import RemovableHandle

import runtime.dropin

from ..scenarios import OURS, same


def leaves(lib: Any, n: int = 2) -> list[Any]:
    return [lib.tensor([1.0 + i, 2.0 + i], requires_grad=True) for i in range(n)]


def test_tensor_hooks_change_the_gradient_in_the_order_of_registration() -> None:
    def scenario(lib: Any) -> Any:
        x, y = leaves(lib)
        z = x * y
        z.register_hook(lambda g: g + 1)
        z.register_hook(lambda g: g * 10)
        z.register_hook(lambda g: None)
        x.register_hook(lambda g: -g)
        z.sum().backward()
        return x.grad, y.grad

    assert same(scenario) == [[-40.0, -60.0], [20.0, 40.0]]


def test_every_kind_of_hook_in_torchs_order() -> None:
    def scenario(lib: Any) -> Any:
        order: list[Any] = []

        def note(what: str) -> Callable[..., None]:
            return lambda *args: order.append(what)

        x, y = leaves(lib)
        z = x * y
        z.retain_grad()
        z.grad_fn.register_prehook(lambda gs: order.append(("before z", z.grad is not None)))
        z.grad_fn.register_hook(note("after z"))
        z.register_hook(lambda g: order.append(("z", z.grad is not None)))
        end = x.view_as(x).grad_fn.next_functions[0][0]
        end.register_prehook(lambda gs: order.append(("before x", x.grad is not None)))
        end.register_hook(lambda gi, go: order.append(("after x", len(gi), len(go))))
        x.register_post_accumulate_grad_hook(
            lambda p: order.append(("accumulated", p.grad is not None))
        )
        x.register_hook(note("x"))
        (z * 2).sum().backward()
        return order

    same(scenario)


def test_retained_gradients_are_those_after_all_hooks() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        y = x * 2
        y.register_hook(lambda g: g * 3)
        y.retain_grad()
        y.retain_grad()
        y.register_hook(lambda g: g * 5)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return y.grad, x.grad, y.retains_grad, x.retains_grad

    assert same(scenario)[0] == [30.0, 30.0]


def test_hooks_run_for_gradients_that_are_only_asked_for() -> None:
    def scenario(lib: Any) -> Any:
        ran: list[str] = []
        (x,) = leaves(lib, 1)
        y = x * 2
        y.register_hook(lambda g: ran.append("y"))
        x.register_hook(lambda g: g * 7)
        y.grad_fn.register_prehook(lambda gs: ran.append("node of y"))
        end = x.view_as(x).grad_fn.next_functions[0][0]
        end.register_prehook(lambda gs: ran.append("before x"))
        end.register_hook(lambda gi, go: ran.append("after x"))
        x.register_post_accumulate_grad_hook(lambda p: ran.append("accumulated"))
        loss = y.sum()
        found = (
            lib.autograd.grad(loss, y, retain_graph=True),
            lib.autograd.grad(loss, x, retain_graph=True),
        )
        loss.backward(inputs=[x])
        return found, ran

    same(scenario)


def test_a_hook_stays_with_the_value_from_before_an_in_place_op_and_retain_grad_moves_on() -> None:
    def scenario(lib: Any) -> Any:
        seen: dict[str, Any] = {}
        (x,) = leaves(lib, 1)
        y = x.clone()
        y.register_hook(lambda g: seen.setdefault("before", g))
        y.retain_grad()
        y.mul_(3)
        y.register_hook(lambda g: seen.setdefault("after", g))
        (y * 2).sum().backward()
        return seen, y.grad, x.grad

    assert same(scenario)[0] == {"before": [6.0, 6.0], "after": [2.0, 2.0]}


def test_retain_grad_of_a_view_follows_a_write_to_it() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True).clone()
        view = x[0]
        view.retain_grad()
        view.mul_(2)
        (view * 5).sum().backward()
        return view.grad, view.retains_grad

    assert same(scenario) == [[5.0, 5.0], True]


@pytest.mark.parametrize(
    "change",
    [lambda y: y.t_(), lambda y: y.unsqueeze_(0), lambda y: y.transpose_(0, 1).squeeze_(0)],
)
def test_retain_grad_goes_along_with_a_change_of_geometry(change: Any) -> None:
    """Here torch leaves a gradient of the former sizes."""
    y = OURS.tensor([[1.0, 2.0, 3.0]], requires_grad=True).clone()
    y.retain_grad()
    change(y)
    (y * y).sum().backward()
    assert y.grad.shape == y.shape and torch.equal(y.grad, 2 * y.detach())


@pytest.mark.parametrize(
    "write",
    [
        lambda base, view: base.mul_(2),
        lambda base, view: view.mul_(2),
        lambda base, view: base[1:].mul_(2),
    ],
)
def test_a_view_has_one_node_after_a_write_to_its_base_and_keeps_what_is_registered_there(
    write: Any,
) -> None:
    def scenario(lib: Any) -> Any:
        base = lib.tensor([1.0, 2.0, 3.0], requires_grad=True).clone()
        view, other = base[:2], base[1:]
        write(base, view)
        nodes = view.grad_fn is view.grad_fn, other.grad_fn is other.grad_fn, view.grad_fn.name()
        view.register_hook(lambda g: g * 10)
        other.retain_grad()
        (view * 3).sum().backward(retain_graph=True)
        (other * 5).sum().backward()
        return nodes, other.grad

    assert same(scenario)[0][:2] == [True, True]


def test_removing_a_hook() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        y = x * 2
        handles = [
            y.register_hook(lambda g: g * 100),
            x.register_hook(lambda g: g * 100),
            y.grad_fn.register_hook(lambda gi, go: (gi[0] * 100, None)),
            y.grad_fn.register_prehook(lambda gs: (gs[0] * 100,)),
            x.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(100) and None),
        ]
        for handle in handles:
            handle.remove()
            handle.remove()
        with y.register_hook(lambda g: g * 3):
            y.sum().backward(retain_graph=True)
        y.sum().backward()
        return x.grad, [isinstance(h, RemovableHandle) for h in handles]

    assert same(scenario)[0] == [8.0, 8.0]


def test_a_hook_may_remove_itself_and_register_others() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        calls: list[str] = []

        def once(g: Any) -> None:
            calls.append("once")
            handle.remove()
            x.register_hook(lambda g: calls.append("later"))

        handle = x.register_hook(once)
        for _ in range(2):
            (x * 2).sum().backward()
        return calls

    same(scenario)


def test_hooks_of_a_leaf_outlive_its_graphs() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        x.register_hook(lambda g: g * 2)
        first = x * 1
        x.register_hook(lambda g: g * 3)
        first.sum().backward()
        (x * 1).sum().backward()
        return x.grad

    assert same(scenario) == [12.0, 12.0]


def test_hooks_see_several_outputs_and_inputs() -> None:
    def scenario(lib: Any) -> Any:
        x = lib.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
        seen: list[Any] = []
        values, indices = x.max(0)
        values.grad_fn.register_hook(lambda gi, go: seen.append((list(gi), list(go))))
        a, b = x.unbind()
        a.grad_fn.register_prehook(lambda gs: (gs[0], gs[0]))
        (values.sum() + a.sum() * 3).backward()
        return seen, x.grad, indices.requires_grad, b.requires_grad

    same(scenario)


@pytest.mark.parametrize("kind", ["tensor", "before", "after"])
@pytest.mark.parametrize(
    "replacement",
    [
        lambda g: 1,
        lambda g: g[0],
        lambda g: g.double(),
        lambda g: (g,),
        lambda g: [g],
        lambda g: (g, g),
        lambda g: (g.double(),),
        lambda g: (g[0],),
        lambda g: (None,),
        lambda g: (3,),
        lambda g: (),
    ],
)
def test_replacements_are_checked_as_in_torch(kind: str, replacement: Any) -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        y = x.exp()
        if kind == "tensor":
            y.register_hook(lambda g: replacement(g))
        elif kind == "before":
            y.grad_fn.register_prehook(lambda gs: replacement(gs[0]))
        else:
            y.grad_fn.register_hook(lambda gi, go: replacement(gi[0]))
        y.sum().backward()
        return x.grad

    same(scenario)


def test_an_undefined_gradient_cannot_be_replaced() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        y = x * lib.tensor([1.0, 1.0])
        y.grad_fn.register_hook(lambda gi, go: (gi[0], gi[0]))
        y.sum().backward()

    assert same(scenario)[1] == "can't replace a None gradient with a non-None value"


@pytest.mark.parametrize(
    "misuse",
    [
        lambda lib, x: x.detach().register_hook(print),
        lambda lib, x: x.detach().retain_grad(),
        lambda lib, x: x.detach().register_post_accumulate_grad_hook(print),
        lambda lib, x: (x * 1).register_post_accumulate_grad_hook(print),
    ],
)
def test_hooks_need_a_gradient_to_wait_for(misuse: Any) -> None:
    assert same(lambda lib: misuse(lib, leaves(lib)[0]))[0] == "RuntimeError"


def test_hooks_after_accumulation_return_nothing() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        x.register_post_accumulate_grad_hook(lambda p: p.grad)
        x.sum().backward()

    same(scenario)


def test_hooks_after_accumulation_may_use_and_clear_grad() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)

        def step(p: Any) -> None:
            with torch.no_grad():
                p.sub_(p.grad)
            p.grad = None

        x.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            (x * 2).sum().backward()
        return x, x.grad

    same(scenario)


def test_a_hook_without_a_name_may_be_used() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        x.register_hook(partial(torch.mul, 3))
        x.sum().backward()
        return x.grad

    assert same(scenario) == [3.0, 3.0]


def test_hooks_are_recorded_with_create_graph() -> None:
    def scenario(lib: Any) -> Any:
        (x,) = leaves(lib, 1)
        y = x**3
        y.register_hook(lambda g: g * x)
        (g,) = lib.autograd.grad(y.sum(), x, create_graph=True)
        return g, lib.autograd.grad(g.sum(), x)

    same(scenario)


def test_hooks_are_kept_with_the_tensor_as_a_dict() -> None:
    def scenario(lib: Any) -> Any:
        x, y = leaves(lib)
        z = x * y
        states: list[Any] = [x._backward_hooks is None, z._backward_hooks is None]
        x.register_hook(lambda g: g * 2)
        z.register_hook(lambda g: g * 3)
        states += [len(x._backward_hooks), len(z._backward_hooks)]
        z.sum().backward()
        return states, x.grad, y.grad

    same(scenario)


def test_multi_grad_hooks_wait_for_all_that_the_pass_computes() -> None:
    def scenario(lib: Any) -> Any:
        seen: list[Any] = []
        a, b, c = leaves(lib, 3)
        d, e = a * b, a * c
        handle = lib.graph.register_multi_grad_hook(
            (a, b, c, d, e), lambda gs: seen.append([g is not None for g in gs])
        )
        d.sum().backward(retain_graph=True)
        d.sum().backward(inputs=(a,), retain_graph=True)
        (d + e).sum().backward(retain_graph=True)
        handle.remove()
        d.sum().backward()
        return seen

    assert len(same(scenario)) == 3


def test_multi_grad_hooks_of_any_see_the_first() -> None:
    def scenario(lib: Any) -> Any:
        seen: list[Any] = []
        a, b = leaves(lib)
        d = a * b
        handle = lib.graph.register_multi_grad_hook(
            (a, b, d, lib.tensor([1.0])), seen.append, mode="any"
        )
        d.sum().backward(retain_graph=True)
        (a * 3).sum().backward()
        handle.remove()
        d.sum().backward()
        return seen

    assert same(scenario) == [[1.0, 1.0], [3.0, 3.0]]


def test_multi_grad_hooks_know_two_modes() -> None:
    same(lambda lib: lib.graph.register_multi_grad_hook(leaves(lib), print, mode="some"))


def test_multi_grad_hooks_make_no_cycles(without_collector: None) -> None:
    gone = []
    for mode in ("all", "any"):
        a, b = leaves(OURS)
        d = a * b
        OURS.graph.register_multi_grad_hook((a, b, d), lambda gs: None, mode=mode)
        d.sum().backward(retain_graph=True)
        gone += [weakref.ref(a), weakref.ref(b), weakref.ref(d), weakref.ref(d.grad_fn)]
        del a, b, d
    assert [r() for r in gone] == [None] * len(gone)


def test_hooks_die_with_what_they_are_registered_on(without_collector: None) -> None:
    class Held:
        pass

    def make() -> tuple[Any, weakref.ref[Held]]:
        held = Held()
        (x,) = leaves(OURS, 1)
        y = x * 2
        y.register_hook(lambda g: held and None)
        y.grad_fn.register_prehook(lambda gs: held and None)
        x.register_hook(lambda g: held and None)
        x.register_post_accumulate_grad_hook(lambda p: held and None)
        y.sum().backward()
        return (x, y), weakref.ref(held)

    tensors, gone = make()
    assert gone() is not None
    del tensors
    assert gone() is None


def test_retaining_gradients_makes_no_cycle(without_collector: None) -> None:
    (x,) = leaves(OURS, 1)
    y = x * 2
    y.retain_grad()
    gone = weakref.ref(y)
    loss = y.sum()
    del y
    assert gone() is None
    loss.backward()


def test_backward_hooks_of_modules_work_under_the_drop_in() -> None:
    def run() -> Any:
        seen: list[Any] = []
        model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                p.copy_(torch.arange(p.numel()).reshape(p.shape) / 7 - i / 5)

        def double(module: Any, grad_outputs: Any) -> Any:
            return tuple(g * 2 for g in grad_outputs)

        def note(module: Any, grad_inputs: Any, grad_outputs: Any) -> None:
            seen.append(
                (type(module).__name__, [g.tolist() for g in (*grad_inputs, *grad_outputs)])
            )

        for module in model:
            module.register_full_backward_pre_hook(double)
            module.register_full_backward_hook(note)
        x = torch.tensor([[0.5, -1.0]], requires_grad=True)
        model(x).sum().backward()
        assert x.grad is not None
        return seen, x.grad.tolist()

    expected = run()
    with runtime.dropin.installed():
        found = run()
    assert found == expected


def test_a_hook_after_a_node_sees_gradients_of_the_sizes_and_dtypes_of_its_inputs() -> None:
    def scenario(lib: Any) -> Any:
        x, bias = (
            lib.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
            lib.tensor([1.0], dtype=torch.float64, requires_grad=True),
        )
        y = x + bias
        seen: list[Any] = []
        y.grad_fn.register_hook(lambda gi, go: seen.append([(g, g.dtype) for g in gi]))
        y.grad_fn.register_hook(lambda gi, go: (gi[0], gi[1] * 2))
        y.sum().backward()
        return seen, x.grad, bias.grad

    same(scenario)
