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


class PlannedPass:
    """A backward pass for some inputs of ``(exp(x * 2) + sin(y)) * y``, its plan and what ran."""

    def __init__(self) -> None:
        self.x, self.y = leaf(1.0), leaf(1.0)
        self.product = self.x * 2
        self.out = ((self.product.exp() + self.y.sin()) * self.y).sum()
        self.planned: list[str] = []
        self.ran: list[str] = []
        self.out.register_hook(self.note_plan)
        for node in nodes_below(self.out.grad_fn):
            node.register_prehook(self.note_node)

    def note_plan(self, cotangent: Any) -> None:
        nodes = TORCH_C._current_graph_task_execution_order()
        self.planned += [type(node).__name__ for node in nodes]

    def note_node(self, cotangents: Any) -> None:
        self.ran.append(type(TORCH_C._current_autograd_node()).__name__)

    def run(self, asked: str) -> None:
        """Run backward or grad for the inputs that the words name."""
        with OURS.autograd.set_multithreading_enabled(False):
            match asked:
                case "all leaves":
                    self.out.backward()
                case "backward of x":
                    self.out.backward(inputs=[self.x])
                case "backward of a product":
                    self.out.backward(inputs=[self.product])
                case "x":
                    OURS.autograd.grad(self.out, [self.x])
                case "a product":
                    OURS.autograd.grad(self.out, [self.product])
                case "y":
                    OURS.autograd.grad(self.out, [self.y])
                case "x and y":
                    OURS.autograd.grad(self.out, [self.x, self.y])


def nodes_below(root: Any) -> set[Any]:
    """Return a node of a graph and all that it leads to."""
    seen, stack = set[Any](), [root]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [following for following, _ in node.next_functions]
    return seen


def inner(names: list[str]) -> list[str]:
    """Leave out the nodes of leaves, which take a gradient and compute none."""
    return [name for name in names if name != "AccumulateGrad"]


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    ("asked", "needs_sin", "needs_exp"),
    [
        ("x", False, True),
        ("a product", False, True),
        ("y", True, False),
        ("x and y", True, True),
        ("all leaves", True, True),
        ("backward of x", False, True),
        ("backward of a product", False, True),
    ],
)
def test_the_plan_of_a_pass_for_some_inputs_leaves_out_what_they_do_not_need(
    asked: str, needs_sin: bool, needs_exp: bool
) -> None:
    backward_pass = PlannedPass()
    backward_pass.run(asked)
    assert ("SinBackward0" in backward_pass.planned) is needs_sin
    assert ("ExpBackward0" in backward_pass.planned) is needs_exp


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    "asked", ["x", "y", "x and y", "all leaves", "backward of x", "backward of a product"]
)
def test_the_nodes_of_the_plan_run_in_its_order(asked: str) -> None:
    backward_pass = PlannedPass()
    backward_pass.run(asked)
    assert inner(backward_pass.ran) == inner(backward_pass.planned)


@pytest.mark.usefixtures("routed")
def test_the_node_of_an_inner_input_is_in_the_plan_and_does_not_run() -> None:
    backward_pass = PlannedPass()
    backward_pass.run("a product")
    assert inner(backward_pass.ran) == inner(backward_pass.planned)[:-1]


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
