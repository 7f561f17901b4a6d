"""A traced graph says what the program did, and replays it."""

import inspect
import math
from typing import Any

import pytest
import torch
from torch.fx.experimental import proxy_tensor

from runtime.aot import aot_function, export, make_fx, nop
from runtime.func import jvp, vjp, vmap
from tests.runtime.aot.conftest import generated_at_once  # noqa: F401  programs are called once

aten = torch.ops.aten


def calls(module: torch.fx.GraphModule) -> list[object]:
    return [node.target for node in module.graph.nodes if node.op == "call_function"]


def close(a: object, b: object) -> None:
    torch.testing.assert_close(a, b)


def test_a_graph_replays_the_program_on_other_values() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
        y = (x @ w).sin()
        return {"sum": y.sum(), "scaled": y * torch.tensor([1.0, 2.0, 3.0])}

    module = make_fx(f)(torch.randn(4, 5), torch.randn(5, 3))
    assert calls(module)[:2] == [aten.mm.default, aten.sin.default]
    x, w = torch.randn(4, 5), torch.randn(5, 3)
    close(module(x, w), f(x, w))


def test_factories_and_random_draws_are_calls_and_not_constants() -> None:
    module = make_fx(lambda x: x + torch.rand(3) + torch.arange(3))(torch.zeros(3))
    assert aten.rand.default in calls(module)
    torch.manual_seed(3)
    expected = torch.rand(3) + torch.arange(3)
    torch.manual_seed(3)
    close(module(torch.zeros(3)), expected)


def test_a_closed_over_tensor_is_an_attribute_and_later_changes_of_it_are_seen() -> None:
    scale = torch.ones(3)
    module = make_fx(lambda x: x * scale)(torch.ones(3))
    scale.fill_(5)
    close(module(torch.ones(3)), torch.full((3,), 5.0))


def test_tracing_leaves_a_mutated_argument_alone_and_replay_mutates_it() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x[0].add_(1)
        return x * 2

    x = torch.zeros(2, 2)
    module = make_fx(f)(x)
    close(x, torch.zeros(2, 2))
    close(module(x), torch.tensor([[2.0, 2.0], [0.0, 0.0]]))
    close(x, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))


def test_writing_a_traced_value_into_a_fresh_buffer_is_traced() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(3)
        y[1] = x.sum()
        return y

    close(make_fx(f)(torch.ones(4))(torch.full((4,), 2.0)), torch.tensor([0.0, 8.0, 0.0]))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x * float(x[0]),
        lambda x: x * x.tolist()[0],
        lambda x: x if torch.equal(x, x) else -x,
    ],
)
def test_reading_an_element_of_a_traced_value_is_an_error_that_says_what_to_do(f: object) -> None:
    with pytest.raises(RuntimeError, match=r"while the program is being traced.*torch\.where"):
        make_fx(f)(torch.ones(3))  # type: ignore[arg-type]


def test_an_element_of_a_constant_in_the_text_of_the_program_may_be_read() -> None:
    module = make_fx(lambda x: x * torch.tensor(3.0).item())(torch.ones(2))
    close(module(torch.ones(2)), torch.full((2,), 3.0))


def test_a_gradient_is_traced_as_the_calls_of_its_rules() -> None:
    def f(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = vjp(torch.sin, x)[1](g)[0]
        return out

    x, g = torch.randn(3), torch.randn(3)
    module = make_fx(f)(torch.randn(3), torch.randn(3))
    assert aten.cos.default in calls(module)
    close(module(x, g), x.cos() * g)


def test_nested_transforms_are_traced() -> None:
    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = vmap(lambda a, b: jvp(torch.sin, (a,), (b,))[1])(x, t)
        return out

    x, t = torch.randn(4, 3), torch.randn(4, 3)
    close(make_fx(f)(torch.randn(4, 3), torch.randn(4, 3))(x, t), x.cos() * t)


def test_a_symbolic_graph_reads_sizes_from_its_arguments() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        n, m = x.shape
        return torch.cat([x, torch.ones(n, 2)], 1).reshape(-1) * torch.arange(n * (m + 2))

    module = make_fx(f, tracing_mode="symbolic")(torch.randn(4, 5))
    x = torch.randn(7, 3)
    close(module(x), f(x))


def test_lazy_conjugates_are_traced() -> None:
    def f(c: torch.Tensor) -> torch.Tensor:
        return torch.real(c.conj() * 2) - c.conj().imag

    c = torch.randn(3, dtype=torch.complex128)
    close(make_fx(f)(torch.randn(3, dtype=torch.complex128))(c), f(c))


def test_a_decomposition_replaces_its_call() -> None:
    table = {aten.sigmoid.default: lambda x: 1 / (1 + torch.exp(-x))}
    module = make_fx(torch.sigmoid, decomposition_table=table)(torch.randn(3))
    assert aten.sigmoid.default not in calls(module)
    x = torch.randn(3)
    close(module(x), torch.sigmoid(x))


def test_the_values_of_a_trace_cannot_leave_it() -> None:
    kept = []

    def f(x: torch.Tensor) -> torch.Tensor:
        kept.append(x)
        return x + 1

    make_fx(f)(torch.ones(2))
    with pytest.raises(RuntimeError, match="after the transform has returned"):
        kept[0] + 1


def test_a_number_of_the_text_may_be_read_and_one_that_data_was_written_to_may_not() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        return torch.cov(x)  # ATen asks whether the number of its columns is zero

    x = torch.randn(3, 4)
    close(make_fx(counted)(torch.randn(3, 4))(x), torch.cov(x))

    def written(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros(())
        y.copy_(x.sum())
        return x * y.item()

    with pytest.raises(RuntimeError, match="while the program is being traced"):
        make_fx(written)(x)


@torch.library.custom_op("trace_tests::counted_double", mutates_args={"count"})
def counted_double(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    count.add_(1)
    return x * 2


@counted_double.register_fake
def _(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_a_new_result_of_an_op_that_writes_to_an_argument_is_not_that_argument(mode: str) -> None:
    def f(x: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return counted_double(x, count) + 1, count * 10

    module = make_fx(f, tracing_mode=mode)(torch.ones(2), torch.zeros(2))
    close(module(torch.ones(2), torch.zeros(2)), (torch.full((2,), 3.0), torch.full((2,), 10.0)))


def test_the_gradient_of_rrelu_reads_its_noise() -> None:
    def gradient(x: torch.Tensor) -> torch.Tensor:
        g: torch.Tensor = vjp(lambda x: torch.nn.functional.rrelu(x, 0.1, 0.9, training=True), x)[
            1
        ](torch.ones(6))[0]
        return g

    module, x = make_fx(gradient)(torch.randn(6)), -torch.ones(6, requires_grad=True)
    torch.manual_seed(2)
    y = torch.nn.functional.rrelu(x, 0.1, 0.9, training=True)
    torch.manual_seed(2)
    close(module(x.detach()), torch.autograd.grad(y.sum(), x)[0])


def test_a_kernel_without_symbolic_sizes_fixes_them() -> None:
    module = make_fx(lambda x: torch.unsafe_chunk(x, 2)[1], tracing_mode="symbolic")(
        torch.randn(4, 3)
    )
    x = torch.randn(4, 3)
    close(module(x), x[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.uint8])
@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_draw_between_two_numbers_has_a_name_that_python_takes(
    generator: Any, dtype: torch.dtype
) -> None:
    """The overload is called ``random_.from``."""

    def f(x: Any) -> Any:
        return x.clone().random_(2, 90, generator=generator), x.t()[::2].clone().random_(
            0, 50, generator=generator
        )

    x = torch.ones(3, 4).t().to(dtype)
    graph, compiled = make_fx(f)(x), aot_function(f, nop)
    for run in (graph, compiled):
        both = []
        for program in (run, f):
            (generator or torch.default_generator).manual_seed(5)
            both.append([t.detach() for t in program(x)])
        torch.testing.assert_close(*both, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"has no upper end.*test_trace_level\.py"):
        make_fx(lambda x: x.clone().random_(2, None))(x)


def test_an_infinite_complex_number_has_a_text_that_python_takes() -> None:
    for number in (
        complex(1, math.inf),
        complex(math.nan, -math.inf),
        complex(0, math.nan),
        complex(math.inf, 0),
    ):

        def f(x: Any, number: complex = number) -> Any:
            return torch.full((2,), number) * x + torch.mul(x, number)

        def as_text(graph: torch.fx.GraphModule, inputs: Any) -> Any:
            graph.recompile()
            return graph.forward

        x = torch.ones(2)
        for run in (
            make_fx(f)(x),
            make_fx(f, tracing_mode="symbolic")(x),
            aot_function(f, nop),
            aot_function(f, as_text),
        ):
            torch.testing.assert_close(run(x), f(x), equal_nan=True)


def test_what_a_saved_program_cannot_hold_is_refused_with_its_line() -> None:
    generator = torch.Generator()
    for f in (
        lambda x: torch.rand(2, generator=generator) + x,
        lambda x: torch.full((2,), complex(0, math.inf)) * x,
    ):
        with pytest.raises(
            RuntimeError, match=r"which a saved program cannot hold.*test_trace_level\.py"
        ):
            export(f, (torch.ones(2),))


def test_make_fx_has_the_keywords_of_torchs() -> None:
    ours, theirs = (inspect.signature(f).parameters for f in (make_fx, proxy_tensor.make_fx))
    later = {"dynamic_shapes"} - theirs.keys()
    assert [(p.name, p.kind, p.default) for p in ours.values() if p.name not in later] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_make_fx_takes_no_description_of_sizes() -> None:
    with pytest.raises(RuntimeError, match="make_fx has no dynamic_shapes"):
        make_fx(torch.sin, tracing_mode="fake", dynamic_shapes={"input": None})
