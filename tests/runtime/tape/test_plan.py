"""What the engine reports about a running pass: its number, its node, and which nodes it
runs in which order."""

from typing import Any

import pytest
import torch

from ..scenarios import OURS, same

TORCH_C: Any = torch._C  # the names below have no stubs


def leaf(*values: float) -> Any:
    return OURS.tensor(list(values), requires_grad=True)


@pytest.mark.usefixtures("routed")
def test_the_engine_knows_its_task_node_and_plan() -> None:
    seen: list[Any] = []
    x, unused = leaf(1.0), leaf(1.0)
    a = x * 2
    b = a.exp()
    c = a.sin()

    def hook(g: Any) -> None:
        node = TORCH_C._current_autograd_node()
        assert node is not None
        seen.append(
            (
                TORCH_C._current_graph_task_id(),
                node.name(),
                [torch._C._will_engine_execute_node(t.grad_fn) for t in (a, b, c)],
            )
        )

    b.register_hook(hook)
    b.backward(retain_graph=True)
    OURS.autograd.grad(b, x)
    assert [s[1:] for s in seen] == [("ExpBackward0", [True, True, False])] * 2
    assert seen[1][0] == seen[0][0] + 1
    assert TORCH_C._current_graph_task_id() == -1 and TORCH_C._current_autograd_node() is None
    with pytest.raises(RuntimeError, match="during the backward pass"):
        torch._C._will_engine_execute_node(a.grad_fn)
    assert unused.grad is None


@pytest.mark.usefixtures("routed")
def test_the_plan_is_the_order_in_which_nodes_run() -> None:
    x = leaf(1.0)
    a = x * 2
    b = x.exp()
    out = (a + b).sum()
    planned: list[str] = []
    ran: list[str] = []
    out.register_hook(
        lambda g: planned.extend(
            type(n).__name__ for n in TORCH_C._current_graph_task_execution_order()
        )
    )
    for t in (x, a, b, a.detach() * 1):
        if t.requires_grad:
            t.register_hook(lambda g: ran.append(type(TORCH_C._current_autograd_node()).__name__))
    with OURS.autograd.set_multithreading_enabled(False):
        out.backward(retain_graph=True)
    assert planned == [
        "SumBackward0",
        "AddBackward0",
        "ExpBackward0",
        "MulBackward0",
        "AccumulateGrad",
    ]
    assert ran == planned[2:]
    with pytest.raises(RuntimeError, match="multithreading disabled"):
        out.backward()
    with pytest.raises(RuntimeError, match="during the backward pass"):
        TORCH_C._current_graph_task_execution_order()


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    "asked", ["x", "a", "y", "x and y", "all leaves", "backward of x", "backward of a"]
)
def test_the_plan_of_a_pass_for_some_inputs_leaves_out_what_they_do_not_need(asked: str) -> None:
    x, y = leaf(1.0), leaf(1.0)
    a = x * 2
    out = ((a.exp() + y.sin()) * y).sum()
    planned, ran = list[Any](), list[str]()

    def plan(g: Any) -> None:
        planned.extend(TORCH_C._current_graph_task_execution_order())

    out.register_hook(plan)
    seen, stack = set[Any](), [out.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            node.register_prehook(
                lambda gs: ran.append(type(TORCH_C._current_autograd_node()).__name__)
            )
            stack += [following for following, _ in node.next_functions]
    of = {"x": [x], "a": [a], "y": [y], "x and y": [x, y]}
    with OURS.autograd.set_multithreading_enabled(False):
        if asked == "all leaves":
            out.backward()
        elif asked.startswith("backward"):
            out.backward(inputs=[x if asked.endswith("x") else a])
        else:
            OURS.autograd.grad(out, of[asked])
    names = [type(node).__name__ for node in planned]
    inner = [n for n in names if n != "AccumulateGrad"]
    if asked in ("a", "x"):  # what is asked for is reached, and its node does not run
        inner = inner[:-1] if asked == "a" else inner
    assert [n for n in ran if n != "AccumulateGrad"] == inner
    assert ("SinBackward0" in names) is (asked in ("y", "x and y", "all leaves"))
    assert ("ExpBackward0" in names) is (asked != "y")


def test_a_cotangent_has_the_dtype_of_the_output_before_a_lone_node_runs() -> None:
    def scenario(lib: Any) -> Any:
        w, v = lib.tensor([[1.0, 2.0]], requires_grad=True), lib.tensor([[3.0], [4.0]])
        (w @ v).backward(lib.tensor([[0.5]]).double())
        return w.grad

    assert same(scenario) == [[1.5, 2.0]]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_a_complex_cotangent_of_another_precision_keeps_its_imaginary_part(
    dtype: torch.dtype,
) -> None:
    other = torch.complex64 if dtype is torch.complex128 else torch.complex128

    def scenario(lib: Any) -> Any:
        z = lib.tensor([1.0 + 2j], requires_grad=True)
        y = z.to(dtype) * 1j
        y.backward(lib.tensor([3.0 + 4j]).to(other))
        return z.grad

    assert same(scenario) == [4 - 3j]


def test_a_function_may_free_what_it_saved_while_it_runs_unless_the_graph_is_retained() -> None:
    def scenario(lib: Any) -> Any:
        found = []

        class Freeing(lib.autograd.Function):  # type: ignore[misc]
            @staticmethod
            def forward(ctx: Any, x: Any) -> Any:
                ctx.save_for_backward(x)
                return x * 2

            @staticmethod
            def backward(ctx: Any, g: Any) -> Any:
                ctx.maybe_clear_saved_tensors()
                try:
                    found.append(ctx.saved_tensors)
                except RuntimeError:
                    found.append("freed")
                return g * 2

        x = lib.tensor([1.0], requires_grad=True)
        y = Freeing.apply(x)
        y.backward(retain_graph=True)
        y.backward()
        return found

    assert same(scenario) == [[[1.0]], "freed"]
