"""A backward pass through a compiled program alone treats leaves as any other pass does, hooks and
threads included."""

import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import aot
from runtime.aot.calls.backward_calls import CompiledBackward, _find_in_joint, _return_too
from runtime.autograd.graph import saved_tensors_hooks


def _leaf(*values: float) -> Any:
    return runtime.tensor(list(values), requires_grad=True)


def _weighted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a * 2 + b * 3).sum()


def _loss(a: Any, b: Any) -> Any:
    return aot.aot_function(_weighted, aot.nop)(a, b)


def test_gradients_add_up_over_passes() -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    loss = _loss(a, b)
    loss.backward(retain_graph=True)
    loss.backward()
    assert a.grad.tolist() == [4.0] and b.grad.tolist() == [6.0]


def test_a_backward_that_needs_nothing_from_the_forward_runs_again_as_in_eager_mode() -> None:
    a = _leaf(1.0, 2.0)
    losses = [_weighted(a, a), _loss(a, a)]
    for loss in losses:
        loss.backward()
        loss.backward()
    assert a.grad.tolist() == [20.0, 20.0]
    needs = aot.aot_function(lambda a, b: (a * b).sum(), aot.nop)(a, a)
    needs.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        needs.backward()


def test_a_leaf_given_twice_gets_both_gradients() -> None:
    a = _leaf(1.0)
    _loss(a, a).backward()
    assert a.grad.tolist() == [5.0]


def test_two_leaves_whose_gradient_is_one_tensor_do_not_share_it() -> None:
    a, b = _leaf(1.0, 2.0), _leaf(1.0, 2.0)
    (aot.aot_function(lambda a, b: a + b, aot.nop)(a, b)).backward(torch.ones(2))
    a.grad.add_(1)
    assert a.grad.tolist() == [2.0, 2.0] and b.grad.tolist() == [1.0, 1.0]


def test_a_cotangent_that_becomes_a_gradient_stays_the_callers() -> None:
    a, b = _leaf(1.0, 2.0), _leaf(1.0, 2.0)
    given = torch.ones(2)
    aot.aot_function(lambda a, b: a + b, aot.nop)(a, b).backward(given)
    b.grad.zero_()
    a.grad.zero_()
    assert given.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["tensor", "accumulated", "node before", "node after"])
def test_hooks_of_a_leaf_run(when: str, kind: str) -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    seen: list[str] = []

    def register() -> Any:
        if kind == "tensor":
            return a.register_hook(lambda g: seen.append("a"))
        if kind == "accumulated":
            return a.register_post_accumulate_grad_hook(lambda t: seen.append("a"))
        end = runtime.autograd.graph.get_gradient_edge(a).node
        return (end.register_prehook if kind == "node before" else end.register_hook)(
            lambda *_: seen.append("a")
        ), end

    held = register() if when == "before" else None
    loss = _loss(a, b)
    held = held or register()
    loss.backward()
    assert (
        seen == ["a"] and a.grad.tolist() == [2.0] and b.grad.tolist() == [3.0] and held is not None
    )


@pytest.mark.parametrize("kind", ["register_prehook", "register_hook"])
def test_hooks_of_the_compiled_node_run(kind: str) -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    loss = _loss(a, b)
    seen: list[str] = []
    getattr(loss.grad_fn, kind)(lambda *_: seen.append(kind))
    loss.register_hook(lambda g: 2 * g)
    loss.backward()
    assert seen == [kind] and a.grad.tolist() == [4.0] and b.grad.tolist() == [6.0]


def test_the_graph_shows_the_ends_that_a_pass_runs() -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    loss = _loss(a, b)
    (end, _), (other, _) = loss.grad_fn.next_functions
    assert (
        end.variable is a
        and other.variable is b
        and end is runtime.autograd.graph.get_gradient_edge(a).node
    )
    end.register_prehook(lambda grads: (10 * grads[0],))
    loss.backward()
    assert a.grad.tolist() == [20.0] and b.grad.tolist() == [3.0]


def test_only_the_inputs_asked_for_get_gradients() -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    _loss(a, b).backward(inputs=[b])
    assert a.grad is None and b.grad.tolist() == [3.0]
    (g,) = runtime.autograd.grad(_loss(a, b), [a])
    assert g.tolist() == [2.0] and a.grad is None


def test_a_program_among_other_steps_passes_gradients_on() -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    (_loss(a * 5, b) * 7 + _loss(a, b) + a.sum()).backward()
    assert a.grad.tolist() == [5 * 2 * 7 + 2 + 1] and b.grad.tolist() == [3 * 7 + 3]


def test_a_leaf_that_requires_grad_no_more_gets_none() -> None:
    a, b = _leaf(1.0), _leaf(1.0)
    loss = _loss(a, b)
    a.requires_grad_(False)
    loss.backward()
    assert a.grad is None and b.grad.tolist() == [3.0]


def test_what_became_of_a_leaf_after_the_forward_gets_no_gradient_of_before() -> None:
    a, b, c = _leaf(1.0), _leaf(1.0), _leaf(2.0)
    loss = _loss(a, b)
    a.requires_grad_(False)
    a.mul_(c)
    with pytest.raises(RuntimeError, match="leaf variable has been moved into the graph interior"):
        loss.backward()
    assert c.grad is None and a.is_leaf is False


def test_anomaly_mode_finds_a_nan_from_a_compiled_backward() -> None:
    a = _leaf(0.0)
    loss = aot.aot_function(lambda a: (a.sqrt() * 0).sum(), aot.nop)(a)
    with (
        pytest.warns(UserWarning),
        runtime.autograd.detect_anomaly(),
        pytest.raises(RuntimeError, match="nan"),
    ):
        loss.backward()


def test_threads_that_share_leaves_lose_no_gradient() -> None:
    a, b = _leaf(*[1.0] * 64), _leaf(*[1.0] * 64)
    f = aot.aot_function(_weighted, aot.nop)
    f(a, b).backward()
    a.grad = b.grad = None

    def work() -> None:
        for i in range(50):
            (f(a, b) if i % 3 else f(a, b) * 1).backward()  # alone, and through the engine's loop

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert a.grad.tolist() == [8 * 50 * 2.0] * 64 and b.grad.tolist() == [8 * 50 * 3.0] * 64


@pytest.mark.parametrize(
    "partition", [aot.default_partition, aot.min_cut_rematerialization_partition]
)
def test_the_gradient_is_by_an_argument_as_it_was_before_the_program_changed_it(
    partition: Any,
) -> None:
    def f(x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        # of which min cut keeps the state, the smallest, to compute the rest again
        y = (x * state.expand(2).square()).sum()
        state.add_(1)
        return y

    x, state = _leaf(1.0, 2.0), runtime.tensor([5.0])
    aot.aot_function(f, aot.nop, partition_fn=partition)(x, state).backward()
    assert state.tolist() == [6.0] and x.grad.tolist() == [25.0, 25.0]


def test_a_result_of_a_written_argument_without_history_has_a_gradient() -> None:
    def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x.mul_(weight)
        return x.sum()

    weight = _leaf(2.0)
    aot.aot_function(f, aot.nop)(runtime.tensor([3.0]), weight).backward()
    assert weight.grad is not None and weight.grad.tolist() == [3.0]


def test_the_gradient_of_what_the_used_results_do_not_depend_on_is_none() -> None:
    a, b, c = _leaf(1.0), _leaf(2.0), _leaf(3.0)
    first, second = aot.aot_function(lambda a, b, c: (a * b, (b * c, c * 1)[0]), aot.nop)(a, b, c)
    found = runtime.autograd.grad(first, (a, b, c), allow_unused=True, create_graph=True)
    assert found[0].tolist() == [2.0] and found[1].tolist() == [1.0] and found[2] is None
    found = runtime.autograd.grad(second, (a, b, c), allow_unused=True)
    assert found[0] is None and found[1].tolist() == [3.0] and found[2].tolist() == [2.0]


@pytest.mark.parametrize("accumulate", [False, True])
def test_hooks_behind_results_that_take_no_part_do_not_run(accumulate: bool) -> None:
    def program(f: Any) -> Any:
        ran: list[str] = []
        leaves: list[Any] = [_leaf(1.0, 2.0) for _ in range(3)]
        x, y, z = (leaf * 1 for leaf in leaves)
        for name, t in zip("abcxyz", (*leaves, x, y, z), strict=True):
            t.register_hook(lambda g, name=name: ran.append(name))
        x.grad_fn.register_prehook(lambda g: ran.append("node of x"))
        found = f(x, y, z)
        loss = found[1].sum() + (x.sum() if accumulate else 0)
        if accumulate:
            loss.backward()
            return sorted(ran), [leaf.grad for leaf in leaves]
        return sorted(ran), runtime.autograd.grad(loss, leaves, allow_unused=True)

    def f(x: Any, y: Any, z: Any) -> Any:
        return x.sin() * y, y.cos(), z.detach() * 2

    for seen, expected in zip(program(aot.aot_function(f, aot.nop)), program(f), strict=True):
        assert [str(g) for g in seen] == [str(g) for g in expected]


def _node(y: Any) -> CompiledBackward:
    node = y._edge[0]
    assert isinstance(node, CompiledBackward)
    return node


def _boxed(run: Callable[[list[Any]], list[Any]]) -> Any:
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


@pytest.mark.parametrize("keep", [False, True])
def test_what_was_kept_is_freed_while_the_backward_runs_unless_the_graph_is_kept(
    keep: bool,
) -> None:
    alive: list[bool] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        def run(values: list[Any]) -> list[Any]:
            kept, cotangent = values
            values.clear()
            result, known = kept * cotangent * 2, weakref.ref(kept)
            del kept
            alive.append(known() is not None)
            return [result]

        return _boxed(run)

    x = _leaf(0.0)
    y = aot.aot_function(lambda x: x.exp() * 2, aot.nop, compiler, keep_primals=False)(x)
    y.backward(retain_graph=keep)
    assert x.grad.tolist() == [2.0] and alive == [keep]


def test_a_backward_graph_of_one_cotangent_is_let_go_when_it_is_compiled() -> None:
    y = aot.aot_function(lambda x: x * 2, aot.nop)(_leaf(1.0))
    backward = _node(y).backward
    assert backward.module is not None
    y.backward()
    assert backward.module is None


def test_a_compiler_that_changes_its_graph_does_not_change_the_graph_of_other_cotangents() -> None:
    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        run = fx.Interpreter(_copy(module)).run
        for n in reversed(list(module.graph.nodes)):
            module.graph.erase_node(n)
        return run

    f = aot.aot_function(lambda a, b: (a * b, a * 3), aot.nop, compiler)
    for starts, expected in (
        ((0, 1), (8.0, 2.0)),
        ((0,), (5.0, 2.0)),
        ((1,), (3.0, None)),
        ((0, 1), (8.0, 2.0)),
    ):
        a, b = _leaf(2.0), _leaf(5.0)
        results = f(a, b)
        found = runtime.autograd.grad([results[i] for i in starts], (a, b), allow_unused=True)
        assert tuple(None if g is None else g.item() for g in found) == expected


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(graph.graph_copy(module.graph, {}))
    return fx.GraphModule(module, graph)


@pytest.mark.parametrize("which", ["all cotangents", "some", "a second derivative"])
def test_threads_that_need_a_backward_at_once_make_it_once(which: str) -> None:
    f = aot.aot_function(lambda a, b: (a * b, a.exp()), aot.nop)
    a = _leaf(1.0)
    backward = _node(f(a, _leaf(2.0))[0]).backward
    ask: Callable[[], object] = {
        "all cotangents": backward.compiled,
        "some": lambda: backward.partial(1),
        "a second derivative": lambda: backward.differentiable(None),
    }[which]
    made: list[int] = []
    others: list[threading.Thread] = []

    def making(make: Any) -> Any:
        def noted(*args: Any) -> Any:
            made.append(1)
            if len(made) == 1:
                others.append(threading.Thread(target=ask))
                others[0].start()
                others[0].join(0.05)  # it waits for this one
            return make(*args)

        return noted

    backward.again, backward.compiler = making(backward.again), making(backward.compiler)
    ask()
    others[0].join()
    assert len(made) == 1


def _calls(*targets: Any) -> tuple[fx.GraphModule, list[fx.Node]]:
    graph = fx.Graph()
    x = graph.placeholder("x")
    nodes = [
        graph.create_node("call_function", target, (x,), name=name) for name, target in targets
    ]
    return fx.GraphModule(torch.nn.Module(), graph), [x, *nodes]


def test_what_a_forward_saves_is_found_by_name_among_the_same_calls() -> None:
    aten: Any = torch.ops.aten
    joint, (x, sin, *_) = _calls(
        ("sin", aten.sin.default), ("cos", aten.cos.default), ("y", aten.exp.default)
    )
    forward, saved = _calls(
        ("sin", aten.sin.default), ("cos", aten.tan.default), ("other", aten.exp.default)
    )
    y = forward.graph.placeholder("y")
    forward.graph.output((saved[2], saved[0], saved[1], saved[2], saved[3], y))
    assert _find_in_joint(joint, forward, 1) == [x, sin, None, None, None]


def test_a_forward_gives_more_values_after_its_own() -> None:
    aten: Any = torch.ops.aten
    forward, nodes = _calls(("sin", aten.sin.default), ("cos", aten.cos.default))
    forward.graph.output((nodes[1],))
    forward.recompile()
    _, of_joint = _calls(("cos", aten.cos.default))
    _return_too(forward, [of_joint[1], of_joint[0]])
    found = forward(torch.zeros(1))
    assert [t.tolist() for t in found] == [[0.0], [1.0], [0.0]]


def test_a_missing_cotangent_is_zeros_of_the_dtype_and_sizes_of_its_result() -> None:
    x: Any = runtime.wrap(torch.ones(2, 3, dtype=torch.float64, device="meta"), requires_grad=True)
    node = _node(aot.aot_function(lambda x: (x * 2, x.sum(0)), aot.nop)(x)[0])
    zeros = node._zeros(1)
    assert (zeros.dtype, zeros.shape, zeros.device.type) == (torch.float64, (3,), "meta")


def test_a_released_node_holds_nothing() -> None:
    two = TwoTensor(torch.ones(2), torch.ones(2))
    node = _node(aot.aot_function(torch.sin, aot.nop)(runtime.wrap(two, requires_grad=True)))
    assert node.saved and node.watched
    node.release()
    assert not node.saved and not node.watched
    y = aot.aot_function(torch.sin, aot.nop)(runtime.wrap(two, requires_grad=True))
    y.backward(TwoTensor(torch.ones(2), torch.ones(2)))
    assert not _node(y).saved and not _node(y).watched


@pytest.mark.parametrize(
    ("f", "there"),
    [(lambda x: x.sin(), True), (lambda x: x.exp() * 2, False), (lambda x: x * 2, True)],
)
def test_without_kept_arguments_there_is_a_second_derivative_where_the_first_one_needs_the_same(
    f: Any, there: bool
) -> None:
    def second(f: Any) -> Any:
        x = _leaf(1.0)
        (g,) = runtime.autograd.grad(f(x), x, create_graph=True)
        return runtime.autograd.grad(g, x)[0].item() if g.requires_grad else 0.0

    if there:
        assert second(aot.aot_function(f, aot.nop, keep_primals=False)) == pytest.approx(second(f))
    else:
        with pytest.raises(RuntimeError, match="it was compiled with keep_primals=False"):
            second(aot.aot_function(f, aot.nop, keep_primals=False))
    assert second(aot.aot_function(f, aot.nop)) == pytest.approx(second(f))


class _Constant(runtime.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return torch.full((1,), 7.0)


def test_a_second_derivative_takes_cotangents_that_no_gradient_depends_on() -> None:
    x = _leaf(1.0)
    results = aot.aot_function(lambda x: (x.sin(), _Constant.apply(x)), aot.nop)(x)
    (g,) = runtime.autograd.grad(results, x, [torch.ones(1)] * 2, create_graph=True)
    assert g.item() == pytest.approx(7 + torch.tensor(1.0).cos().item())
    (second,) = runtime.autograd.grad(g, x)
    assert second.item() == pytest.approx(-torch.tensor(1.0).sin().item())


def test_a_class_without_a_cotangent_has_no_gradient() -> None:
    x, y = (
        runtime.wrap(TwoTensor(torch.ones(2), torch.ones(2)), requires_grad=True) for _ in range(2)
    )
    out, _ = aot.aot_function(lambda x, y: (x * 3, y * 2), aot.nop)(x, y)
    found = runtime.autograd.grad(out.sum(), (x, y), allow_unused=True)
    whole: Any = runtime.unwrap(found[0])
    assert whole.b.tolist() == [3.0, 3.0] and found[1] is None


class _Counts(runtime.autograd.Function):
    """Adds its cotangent to a tensor in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any, total: Any) -> Any:
        ctx.total = total
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        ctx.total.add_(g)
        return 2 * g, None


def test_gradients_come_before_what_the_backward_writes() -> None:
    a, b, first, second = _leaf(1.0), _leaf(1.0), torch.zeros(1), torch.full((1,), 10.0)
    f = aot.aot_function(
        lambda a, b, s, t: _Counts.apply(a, s) * 3 + _Counts.apply(b, t) * 5, aot.nop
    )
    f(a, b, first, second).backward()
    assert (a.grad.tolist(), b.grad.tolist(), first.tolist(), second.tolist()) == (
        [6.0],
        [10.0],
        [3.0],
        [15.0],
    )
    with pytest.raises(
        RuntimeError, match="whose backward writes to an argument has no second derivative"
    ):
        runtime.autograd.grad(f(a, b, first, second), a, create_graph=True)


def test_a_leaf_that_the_backward_writes_to_may_require_grad() -> None:
    def run(f: Any) -> list[float]:
        x, total = _leaf(1.0), _leaf(10.0)
        f(x, total).backward()
        return [x.grad.item(), total.item()]

    assert (
        run(lambda x, total: _Counts.apply(x, total))
        == run(aot.aot_function(lambda x, t: _Counts.apply(x, t), aot.nop))
        == [2.0, 11.0]
    )


def test_numbers_that_are_kept_are_given_to_no_hook() -> None:
    f = aot.aot_function(lambda x, k: (x * k).exp(), aot.nop)
    packed: list[Any] = []
    for k in (1.0, 0.5):
        x = _leaf(0.0)
        with saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
            y = f(x, k)
        y.backward()
        assert x.grad.tolist() == [k]
    assert packed and all(isinstance(t, torch.Tensor) for t in packed)
