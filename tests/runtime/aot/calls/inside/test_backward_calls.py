"""What a backward takes of a forward, and what its node holds.

Inside: ``runtime.aot.calls``, its ``backward_calls`` and ``backward_graph``. A partition of a user
may give any values in any order, and the node of a pass that is over has nothing that a user can
ask for."""

import threading
from typing import Any

import torch
from torch import fx
from torch.testing._internal.two_tensor import TwoTensor

import runtime
from runtime import aot
from runtime.aot.calls.backward_calls import CompiledBackward
from runtime.aot.calls.backward_graph import _find_in_joint, _return_too


def _node(y: Any) -> CompiledBackward:
    node = y._edge[0]
    assert isinstance(node, CompiledBackward)
    return node


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


def test_a_released_node_holds_nothing() -> None:
    two = TwoTensor(torch.ones(2), torch.ones(2))
    node = _node(aot.aot_function(torch.sin, aot.nop)(runtime.wrap(two, requires_grad=True)))
    assert node.saved and node.watched
    node.release()
    assert not node.saved and not node.watched
    y = aot.aot_function(torch.sin, aot.nop)(runtime.wrap(two, requires_grad=True))
    y.backward(TwoTensor(torch.ones(2), torch.ones(2)))
    assert not _node(y).saved and not _node(y).watched


def test_threads_that_need_a_second_derivative_at_once_make_it_once() -> None:
    a = runtime.tensor([1.0], requires_grad=True)
    backward = _node(aot.aot_function(lambda a: a.exp(), aot.nop)(a)).backward
    made: list[int] = []
    others: list[threading.Thread] = []
    make = backward.again

    def noted(*args: Any) -> Any:
        made.append(1)
        if len(made) == 1:
            others.append(threading.Thread(target=lambda: backward.differentiable(None)))
            others[0].start()
            others[0].join(0.05)  # it waits for this one
        return make(*args)

    backward.again = noted
    backward.differentiable(None)
    others[0].join()
    assert len(made) == 1
