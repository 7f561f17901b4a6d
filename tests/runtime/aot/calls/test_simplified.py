"""``aot_module_simplified``: one program for example arguments, real or fake, and a refusal
for any other call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime import unwrap
from runtime.aot import aot_module_simplified, nop

pytestmark = pytest.mark.filterwarnings("ignore:the program changes 'n' of Calls")


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: Any, y: Any) -> Any:
        return (self.norm(self.linear(x)) + y,)


def trained(fake: bool | None) -> list[torch.Tensor]:
    """What two training steps show, eagerly if ``fake`` is None."""
    torch.manual_seed(0)
    module: Any = Normed()
    x, y = torch.randn(5, 4, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    mode = FakeTensorMode(shape_env=ShapeEnv())
    examples = (mode.from_tensor(x), mode.from_tensor(y)) if fake else (x, y)
    run: Any = module if fake is None else aot_module_simplified(module, examples, nop)
    seen = []
    for _ in range(2):
        (out,) = run(x, y)
        out.sin().sum().backward()
        seen.append(unwrap(out.detach()))
    grads: list[Any] = [x.grad, y.grad, *(p.grad for p in module.parameters()), *module.buffers()]
    return [*seen, *(unwrap(g).detach().clone() for g in grads)]


@pytest.mark.parametrize("fake", [False, True])
def test_gradients_arrive_at_parameters_and_arguments_and_buffers_change(fake: bool) -> None:
    torch.testing.assert_close(trained(fake), trained(None))


def test_it_is_compiled_before_it_is_called_and_once() -> None:
    graphs = []

    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append(len(examples))
        return graph.forward

    run: Any = aot_module_simplified(Normed(), (torch.ones(2, 4), torch.ones(2, 3)), compiler, nop)
    assert graphs == [9]  # two arguments, four parameters and three buffers
    run(torch.ones(2, 4), torch.ones(2, 3))
    assert len(graphs) == 1 and [n for n, _ in run.named_parameters()] == [
        n for n, _ in Normed().named_parameters()
    ]


def test_an_example_that_requires_grad_stands_for_arguments_that_do_not() -> None:
    x, y = (
        runtime.tensor([1.0, 2.0], requires_grad=True),
        runtime.tensor([3.0, 4.0], requires_grad=True),
    )

    class Product(nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return (a * b,)

    run = aot_module_simplified(Product(), (x, y), nop)
    run(x, y.detach())[0].sum().backward()
    assert x.grad is not None and x.grad.tolist() == [3.0, 4.0] and y.grad is None
    (out,) = run(x.detach(), y.detach())
    assert not out.requires_grad
    with torch.no_grad():
        assert not run(x, y)[0].requires_grad
    run = aot_module_simplified(Product(), (x, y.detach()), nop)
    with pytest.raises(AssertionError, match="argument 1 did not require grad, and now it does"):
        run(x, y)


class TestOtherCalls:
    def test_another_kind_of_argument_is_refused(self) -> None:
        run = aot_module_simplified(Normed(), (torch.ones(2, 4), torch.ones(2, 3)), nop)
        with pytest.raises(
            AssertionError,
            match=r"argument 1 is of another kind than at compilation time: .* shape \[1, 3\]",
        ):
            run(torch.ones(2, 4), torch.ones(1, 3))
        with pytest.raises(
            AssertionError, match=r"argument 0 is of another kind .*strides \[1, 2\]"
        ):
            run(torch.ones(4, 2).t(), torch.ones(2, 3))
        with pytest.raises(TypeError, match="takes 2 arguments, not 1"):
            run(torch.ones(2, 4))

    def test_sizes_that_a_fake_example_fixed_are_checked_and_others_are_free(self) -> None:
        mode = FakeTensorMode(shape_env=ShapeEnv())
        run = aot_module_simplified(
            Normed(), (mode.from_tensor(torch.ones(5, 4)), mode.from_tensor(torch.ones(5, 3))), nop
        )
        assert run(torch.randn(7, 4), torch.ones(7, 3))[0].shape == (7, 3)
        with pytest.raises(AssertionError, match="argument 1 is not like its example"):
            run(torch.randn(7, 4), torch.ones(7, 2))
        with pytest.raises(AssertionError, match="argument 1 is not like its example"):
            run(torch.randn(7, 4), torch.ones(7, 3, dtype=torch.double))

    def test_another_mode_of_the_module_is_refused(self) -> None:
        module = Normed()
        run = aot_module_simplified(module, (torch.ones(2, 4), torch.ones(2, 3)), nop)
        module.eval()
        with pytest.raises(AssertionError, match="in another mode"):
            run(torch.ones(2, 4), torch.ones(2, 3))

    def test_another_default_dtype_is_refused(self) -> None:
        run = aot_module_simplified(Normed(), (torch.ones(2, 4), torch.ones(2, 3)), nop)
        torch.set_default_dtype(torch.double)
        try:
            with pytest.raises(AssertionError, match="default dtype"):
                run(torch.ones(2, 4, dtype=torch.float), torch.ones(2, 3, dtype=torch.float))
        finally:
            torch.set_default_dtype(torch.float)

    def test_arguments_that_share_memory_in_another_way_are_refused_if_one_is_written(self) -> None:
        class Writes(nn.Module):
            def forward(self, a: Any, b: Any) -> Any:
                a.add_(1)
                return (a + b,)

        x, y = torch.zeros(2), torch.zeros(2)
        run = aot_module_simplified(Writes(), (x, x), nop)
        assert run(x, x)[0].tolist() == [2.0, 2.0]
        with pytest.raises(
            AssertionError,
            match="argument 0 and argument 1 shared memory at compilation time, and do not now",
        ):
            run(x, y)
        run = aot_module_simplified(Writes(), (x, y), nop)
        with pytest.raises(
            AssertionError,
            match="argument 0 and argument 1 share memory, and did not at compilation time",
        ):
            run(x, x)

    def test_arguments_may_share_memory_in_any_way_if_none_is_written(self) -> None:
        class Reads(nn.Module):
            def forward(self, a: Any, b: Any) -> Any:
                return (a + 2 * b,)

        x, y = torch.ones(2), torch.ones(2) * 3
        for examples in ((x, x), (x, y)):
            run = aot_module_simplified(Reads(), examples, nop)
            assert run(x, x)[0].tolist() == [3.0, 3.0] and run(x, y)[0].tolist() == [7.0, 7.0]
            assert run(y, x)[0].tolist() == [5.0, 5.0]

    def test_a_change_of_shape_is_a_write(self) -> None:
        """Two arguments get a dimension each. One tensor that is given twice gets two."""

        class Unsqueezes(nn.Module):
            def forward(self, a: Any, b: Any) -> Any:
                a.unsqueeze_(0)
                b.unsqueeze_(0)
                return (a + b,)

        x, y = torch.ones(2), torch.ones(2)
        run = aot_module_simplified(Unsqueezes(), (x.clone(), y.clone()), nop)
        with pytest.raises(AssertionError, match="argument 0 and argument 1 share memory"):
            run(x, x)
        assert x.shape == (2,)
        run = aot_module_simplified(Unsqueezes(), (x, x), nop)
        assert run(y, y)[0].shape == (1, 1, 2) and y.shape == (1, 1, 2)


def test_a_size_may_be_an_argument() -> None:
    class Head(nn.Module):
        def forward(self, x: Any, n: Any) -> Any:
            return (x[:n] * 2,)

    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    symbol = env.create_symbol(4, ConstantSource("n"))
    n = env.create_symintnode(symbol, hint=4)
    run = aot_module_simplified(
        Head(), (mode.from_tensor(torch.ones(7, 3), source=ConstantSource("x")), n), nop
    )
    assert run(torch.ones(7, 3), 4)[0].shape == (4, 3) and run(torch.ones(9, 3), 2)[0].shape == (
        2,
        3,
    )


def test_a_fake_tensor_from_outside_is_refused() -> None:
    mode = FakeTensorMode()
    outside = mode.from_tensor(torch.ones(2))

    class Closed(nn.Module):
        def forward(self, x: Any) -> Any:
            return (x + outside,)

    with pytest.raises(AssertionError, match="Unexpected fake"):
        aot_module_simplified(Closed(), (mode.from_tensor(torch.ones(2)),), nop)
    with mode:
        module = nn.Linear(2, 2)
    with pytest.raises(AssertionError, match="Unexpected fake parameter or buffer 'weight'"):
        aot_module_simplified(module, (torch.ones(2),), nop)


def test_a_module_that_returns_a_tensor_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"returns a tuple or a list, not .*Return \(x,\)"):
        aot_module_simplified(nn.ReLU(), (torch.ones(2),), nop)


def test_graph_modules_are_changed_by_the_passes_before_the_trace() -> None:
    graph = torch.fx.symbolic_trace(Sum())

    def negate(module: torch.fx.GraphModule, examples: Any) -> torch.fx.GraphModule:
        (add,) = (n for n in module.graph.nodes if n.op == "call_function")
        add.target = torch.sub
        module.recompile()
        return module

    run = aot_module_simplified(graph, (torch.ones(2), torch.ones(2)), nop, pre_grad_passes=negate)
    assert run(torch.ones(2), torch.ones(2))[0].tolist() == [0.0, 0.0]


def test_passes_are_for_graph_modules_alone_and_may_be_left_out() -> None:
    def never(module: torch.fx.GraphModule, examples: Any) -> torch.fx.GraphModule:
        raise AssertionError

    for module, passes in ((Sum(), never), (torch.fx.symbolic_trace(Sum()), None)):
        run = aot_module_simplified(
            module, (torch.ones(2), torch.ones(2)), nop, pre_grad_passes=passes
        )
        assert run(torch.ones(2), torch.ones(2))[0].tolist() == [2.0, 2.0]


class Sum(nn.Module):
    def forward(self, a: Any, b: Any) -> Any:
        return (torch.add(a, b),)


class Calls(nn.Module):
    """Calls a function, and counts how often it runs itself."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.f, self.n = f, 0

    def forward(self, *args: Any) -> Any:
        object.__setattr__(self, "n", self.n + 1)
        return (self.f(*args),)


class Shares(nn.Module):
    """Has one parameter and one buffer under two names each."""

    x: torch.Tensor
    y: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Parameter(torch.ones(1))
        self.register_buffer("x", torch.ones(1))
        self.register_buffer("y", self.x)

    def forward(self, z: Any) -> Any:
        return (z * self.a + 3 * z * self.b + self.x + 5 * self.y,)


def test_a_shared_parameter_or_buffer_is_there_under_each_name() -> None:
    inputs: list[int] = []

    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        inputs.append(len(examples))
        return nop(graph, examples)

    module = Shares()
    run = aot_module_simplified(module, (torch.ones(1),), compiler, nop)
    assert inputs == [5], "two parameters, two buffers, and the argument"
    (out,) = run(torch.full((1,), 2.0))
    out.backward()
    assert out.item() == 14.0 and module.a.grad is not None and module.a.grad.item() == 8.0
    module.get_buffer("y").add_(1)
    assert run(torch.zeros(1))[0].item() == 12.0


def test_the_compiled_module_has_the_state_of_its_module() -> None:
    module = Normed()
    run: Any = aot_module_simplified(module, (torch.ones(2, 4), torch.ones(2, 3)), nop)
    assert [n for n, _ in run.named_buffers()] == [n for n, _ in module.named_buffers()]
    run(torch.randn(2, 4), torch.ones(2, 3))[0].sum().backward()
    assert module.linear.bias.grad is not None
    run.zero_grad()
    assert module.linear.bias.grad is None


def test_fake_tensors_are_of_one_mode() -> None:
    modes = FakeTensorMode(), FakeTensorMode()
    a, b = (mode.from_tensor(torch.ones(2)) for mode in modes)
    for one in (a, runtime.wrap(b)):
        for examples in ((one, one), (torch.ones(2), one), (one, torch.ones(2))):
            run = aot_module_simplified(Sum(), examples, nop)
            assert run(torch.ones(2), torch.ones(2))[0].tolist() == [2.0, 2.0]
    for examples in ((a, b), (a, runtime.wrap(b)), (b, a)):
        with pytest.raises(AssertionError, match="fake tensors of different fake modes"):
            aot_module_simplified(Sum(), examples, nop)


class Weighs(nn.Module):
    """Has buffers of any kind."""

    def __init__(self, **buffers: torch.Tensor) -> None:
        super().__init__()
        for name, t in buffers.items():
            self.register_buffer(name, t)

    def forward(self, x: Any) -> Any:
        return (sum((t * x for t in self.buffers()), x),)


def test_a_fake_parameter_is_refused_unless_it_is_of_the_mode_of_the_arguments() -> None:
    mode = FakeTensorMode()
    a, b = mode.from_tensor(torch.ones(2)), FakeTensorMode().from_tensor(torch.ones(2))
    aot_module_simplified(Weighs(w=a, v=torch.ones(2)), (a,), nop)
    for module, example in ((Weighs(v=a, w=b), a), (Weighs(w=a), torch.ones(2))):
        with pytest.raises(AssertionError, match="Unexpected fake parameter or buffer 'w'"):
            aot_module_simplified(module, (example,), nop)


def test_sizes_of_real_examples_are_numbers_in_the_graph() -> None:
    seen: list[Any] = []

    def compiler(graph: torch.fx.GraphModule, examples: list[Any]) -> Any:
        seen.extend(n for t in examples for n in t.shape)
        return nop(graph, examples)

    aot_module_simplified(Sum(), (torch.ones(3), torch.ones(3)), compiler, decompositions={})
    aot_module_simplified(Normed(), (torch.ones(3, 4), torch.ones(3, 3)), compiler)
    assert seen and {type(n) for n in seen} == {int}


def test_a_second_derivative_is_there_by_default() -> None:
    x = runtime.tensor([1.0], requires_grad=True)
    (y,) = aot_module_simplified(Calls(lambda x: x.exp()), (x,), nop)(x)
    (g,) = runtime.autograd.grad(y, x, create_graph=True)
    (second,) = runtime.autograd.grad(g, x)
    assert second.item() == pytest.approx(torch.tensor(1.0).exp().item())


@pytest.mark.parametrize("fake", [False, True])
def test_a_program_of_no_grad_has_no_gradient(fake: bool) -> None:
    x = torch.ones(2, requires_grad=True)
    graphs: list[str] = []

    def named(name: str) -> Any:
        return lambda graph, examples: graphs.append(name) or nop(graph, examples)  # type: ignore[func-returns-value]

    with torch.no_grad():
        example = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(x) if fake else x
        run = aot_module_simplified(
            Calls(lambda x: x * 2),
            (example,),
            named("forward"),
            inference_compiler=named("inference"),
        )
        assert run(x)[0].tolist() == [2.0, 2.0]
    assert graphs == ["inference"]
    with pytest.raises(AssertionError, match="argument 0 did not require grad, and now it does"):
        run(x)


@pytest.mark.parametrize("how", ["transform", "mode"])
def test_inside_a_transform_or_a_mode_the_module_itself_runs(how: str) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    module = Calls(lambda x: (x * 2).sum())
    run = aot_module_simplified(module, (torch.ones(2),), nop)
    run(torch.ones(2))
    assert module.n == 1
    if how == "transform":
        assert runtime.func.grad(lambda x: run(x)[0])(torch.ones(2)).tolist() == [2.0, 2.0]
    else:
        with Mode():  # type: ignore[no-untyped-call]
            assert run(torch.ones(2))[0].item() == 4.0
    assert module.n == 2


def multiplied(x: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return x @ x


def test_what_a_program_computes_without_autocast_it_computes_so_in_a_region_of_autocast() -> None:
    x = torch.full((2, 2), 1.001)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run = aot_module_simplified(Calls(multiplied), (x,), nop)
        for _ in range(2):
            (y,) = run(x)
            assert y.dtype is torch.float32 and torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(y, x @ x, rtol=0, atol=0)


def test_a_module_with_another_constant_is_told_apart() -> None:
    class Closed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.constant = torch.ones(2)

        def forward(self, x: Any, y: Any) -> Any:
            x.add_(1)
            return (x + y + self.constant,)

    module = Closed()
    run = aot_module_simplified(module, (torch.zeros(2), module.constant), nop)
    assert run(torch.zeros(2), module.constant)[0].tolist() == [3.0, 3.0]
    for y in (torch.ones(2), module.constant):
        with pytest.raises(
            AssertionError,
            match=r"^at compilation time (the arguments and the tensors that|'constant' of)",
        ):
            run(torch.zeros(2), y)
        module.constant = torch.ones(2)


def test_a_class_is_described_by_what_it_consists_of() -> None:
    two = TwoTensor(torch.ones(2), torch.ones(2))
    run = aot_module_simplified(Sum(), (torch.ones(2), torch.ones(2)), nop)
    with pytest.raises(
        AssertionError,
        match=r"argument 1 .*: a TwoTensor\(a=Tensor, b=Tensor.* of torch.float32, shape \[2\]",
    ):
        run(torch.ones(2), two)
    with pytest.raises(
        AssertionError,
        match=r"argument 0 .*: a tensor of torch.float64, shape \[2\], strides \[1\] on cpu",
    ):
        run(torch.ones(2).double(), torch.ones(2))
    with pytest.raises(
        AssertionError, match=r"argument 1 is of another kind than at compilation time: 3\. Compile"
    ):
        run(torch.ones(2), 3)


def test_beside_a_fake_example_numbers_are_those_of_compilation_time() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    run = aot_module_simplified(
        Calls(lambda x, n: x * n), (mode.from_tensor(torch.ones(3)), 2), nop
    )
    assert run(torch.ones(5), 2)[0].tolist() == [2.0] * 5
    for x, n, i in (
        (torch.ones(5), 3, 1),
        (torch.ones(5), 2.0, 1),
        (torch.ones(5), torch.ones(5), 1),
        (2, 2, 0),
        (torch.ones(5, 1), 2, 0),
    ):
        with pytest.raises(AssertionError, match=f"argument {i} is not like its example"):
            run(x, n)
    with pytest.raises(AssertionError, match="argument 0 is not like its example"):
        run(torch.ones(5, device="meta"), 2)
