"""How often a program is captured and run in Python, which compiler gets which graph, and what a
partition is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import runtime
from runtime.aot import aot_function, aot_module_simplified, default_partition, make_fx, nop


class Count:
    """A function that counts its calls."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f, self.n = f, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.n += 1
        return self.f(*args, **kwargs)


def leaf(*shape: int) -> Any:
    return runtime.wrap(torch.ones(*shape), requires_grad=True)


def overlapping_parts() -> list[Any]:
    t = torch.ones(6)
    return [t[:4], t[2:]]


def written(x: Any, y: Any) -> Any:
    x.add_(1)
    return y * 1


def taken_for_one(x: Any, y: Any) -> Any:
    x.unsqueeze_(0)
    return y * 1 if y.dim() == 2 else y[:, :, :]


CAPTURES: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]], int]] = {
    "a program that only computes": (lambda x, y: x * y, lambda: [torch.ones(2), torch.ones(2)], 1),
    "one that writes": (written, lambda: [torch.ones(2), torch.ones(2)], 1),
    "arguments that share memory, and none is written": (
        lambda x, y: x.sum() * y,
        overlapping_parts,
        1,
    ),
    "arguments that share memory, and one is written": (written, overlapping_parts, 2),
    "one twice, which is written": (written, lambda: [torch.ones(2)] * 2, 1),
    "one that shows elements twice and is written": (
        written,
        lambda: [torch.ones(4).unfold(0, 2, 1), torch.ones(1)],
        2,
    ),
    "one twice, which is not traced as two": (taken_for_one, lambda: [torch.ones(2)] * 2, 1),
    "one that shows elements twice and is not": (
        lambda x, y: x * y,
        lambda: [torch.ones(4).unfold(0, 2, 1), torch.ones(1)],
        1,
    ),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_a_program_is_run_once_more_where_a_write_reaches_another_argument(name: str) -> None:
    f, make, n = CAPTURES[name]
    counted = Count(f)
    compiled = aot_function(counted, nop, ignore=[counted])
    given, expected = make(), make()
    assert compiled(*given).tolist() == f(*expected).tolist() and [t.tolist() for t in given] == [
        t.tolist() for t in expected
    ]
    assert counted.n == n
    compiled(*make())
    assert counted.n == n


@pytest.mark.parametrize(
    "make, n",
    [
        (lambda: [torch.ones(2), torch.ones(2)], 1),
        (overlapping_parts, 2),
        (lambda: [torch.ones(2)] * 2, 1),
    ],
)
def test_an_error_of_a_program_is_its_own_and_a_program_of_shared_memory_is_tried_twice(
    make: Any, n: int
) -> None:
    def fails(x: Any, y: Any) -> Any:
        raise ValueError("mine")

    counted = Count(fails)
    with pytest.raises(ValueError, match="mine"):
        aot_function(counted, nop, ignore=[counted])(*make())
    assert counted.n == n


def test_closed_over_memory_that_is_written_and_shared_with_an_argument_is_refused() -> None:
    t = torch.ones(4)

    def f(x: Any) -> Any:
        t.add_(1)
        return x * 1

    with pytest.raises(RuntimeError, match="a tensor that the program closes over share memory"):
        aot_function(f, nop)(t[1:])


class Compilers:
    """Notes which compiler gets which graph."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.examples: list[int] = []

    def named(self, name: str) -> Any:
        def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
            results: Any = module.graph.output_node().args[0]
            self.calls.append(f"{name} {len(inputs)}->{len(results)}")
            return nop(module, inputs)

        return compiler


def test_each_graph_goes_to_its_compiler() -> None:
    seen = Compilers()
    f = aot_function(
        lambda x, w: (x * w).sin(),
        seen.named("forward"),
        seen.named("backward"),
        inference_compiler=seen.named("inference"),
    )
    f(torch.ones(2), torch.ones(2))
    assert seen.calls == ["inference 2->1"]
    y = f(torch.ones(2), leaf(2))
    assert seen.calls == ["inference 2->1", "forward 2->3"]
    y.sum().backward()
    assert seen.calls[2:] == ["backward 3->1"]
    with torch.no_grad():
        f(torch.ones(2), leaf(2))
    assert seen.calls[3:] == ["inference 2->1"]


def test_the_forward_compiler_stands_for_those_that_are_not_given() -> None:
    seen = Compilers()
    f = aot_function(lambda x: x.sin(), seen.named("forward"))
    f(leaf(2)).sum().backward()
    f(torch.ones(2))
    assert seen.calls == ["forward 1->2", "forward 2->1", "forward 1->1"]
    seen = Compilers()
    f = aot_function(lambda x: x.sin(), seen.named("forward"), seen.named("backward"))
    f(torch.ones(2))
    assert seen.calls == ["forward 1->1"]


@pytest.mark.parametrize(
    "dynamic, when", [(True, ["forward 2->3", "backward 3->1"]), (False, ["forward 1->2"])]
)
def test_the_backward_of_a_program_of_any_size_is_compiled_with_its_forward(
    dynamic: bool, when: list[str]
) -> None:
    seen = Compilers()
    aot_function(lambda x: x.sin(), seen.named("forward"), seen.named("backward"), dynamic=dynamic)(
        leaf(3)
    )
    assert [call.split()[0] for call in seen.calls] == [call.split()[0] for call in when]


def test_the_backward_of_a_program_of_any_size_for_nop_is_made_when_it_runs() -> None:
    seen = Compilers()
    f = aot_function(lambda x: x.sin(), seen.named("forward"), nop, dynamic=True)
    f(leaf(3)).sum().backward()
    assert [call.split()[0] for call in seen.calls] == ["forward"]


class Partition:
    """Notes what a partition is told."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []

    def __call__(self, module: Any, inputs: Any, **options: Any) -> Any:
        assert inputs is None
        self.options.append(options)
        return default_partition(module, inputs, num_fwd_outputs=options["num_fwd_outputs"])


@pytest.mark.parametrize(
    "closes, n, expected",
    [
        (False, 0, {}),
        (False, 2, {"static_lifetime_input_indices": [0, 1]}),
        (True, 0, {"static_lifetime_input_indices": [2]}),
    ],
)
def test_a_partition_is_told_how_many_results_there_are_and_which_arguments_stay(
    closes: bool, n: int, expected: Any
) -> None:
    w = torch.ones(2)
    partition = Partition()

    def f(x: Any, y: Any) -> Any:
        return (x * y).sin() * (w if closes else 1), x + 1, y

    aot_function(f, nop, partition_fn=partition, num_params_buffers=n)(leaf(2), torch.ones(2))
    assert partition.options == [{"num_fwd_outputs": 2, **expected}]


def test_a_partition_may_ask_for_the_code_of_the_graph() -> None:
    codes: list[str] = []

    def partition(module: Any, inputs: Any, **options: Any) -> Any:
        codes.append(module.code)
        assert len(module(torch.ones(2, 3), torch.ones(2, 3))) == 2
        return default_partition(module, inputs, **options)

    aot_function(lambda x: x.t().t() * 2, nop, partition_fn=partition)(leaf(2, 3))
    assert "mul" in codes[0] and "aten.t." not in codes[0]


def test_a_compiler_may_call_the_graph_that_it_gets() -> None:
    found: list[Any] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(module(torch.full((2,), 3.0)))
        return nop(module, inputs)

    aot_function(lambda x: (x.cos(), x * 2)[1], compiler)(torch.ones(2))
    aot_function(lambda x: (x.cos(), x * 2)[1], compiler)(leaf(2))
    assert [[t.tolist() for t in results] for results in found] == [[[6.0, 6.0]]] * 2


def test_without_a_backward_nothing_is_cut() -> None:
    partition = Partition()
    aot_function(lambda x: x * 2, nop, partition_fn=partition)(torch.ones(2))
    assert partition.options == []


@pytest.mark.parametrize("keep", [True, False])
def test_arguments_for_second_derivatives_alone_are_kept_unless_asked_not_to(keep: bool) -> None:
    x = leaf(2)
    y = aot_function(lambda x: x.exp(), nop, keep_primals=keep)(x)
    assert len(y._edge[0].saved) == 1 + keep
    if keep:
        assert runtime.autograd.grad(y.sum(), x, create_graph=True)[0].requires_grad
    else:
        with pytest.raises(RuntimeError, match="keep_primals=False"):
            runtime.autograd.grad(y.sum(), x, create_graph=True)


def test_ops_are_decomposed_as_asked_in_the_program_and_not_again_in_its_derivative() -> None:
    aten = torch.ops.aten
    made: list[str] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        made.extend(str(n.target) for n in module.graph.nodes if n.op == "call_function")
        return nop(module, inputs)

    aot_function(
        lambda x: x.tanh(),
        compiler,
        decompositions={aten.tanh.default: lambda x: 2 * (2 * x).sigmoid() - 1},
    )(torch.ones(2))
    assert "aten.sigmoid.default" in made and "aten.tanh.default" not in made


def test_the_function_looks_like_the_one_that_is_compiled() -> None:
    def named(x: Any) -> Any:
        """What it does."""
        return x

    f = aot_function(named, nop)
    assert (f.__name__, f.__doc__, f.recipe.fn) == ("named", "What it does.", named)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "values, runs",
    [([1.5], 1), ([1.5, 1.5], 1), ([1.5, 2.5], 2), ([1.5, 2.5, 3.5, 1.5], 2), ([1, 1.5], 2)],
)
def test_a_number_that_changes_is_captured_once_more_for_all_values(
    values: list[float], runs: int
) -> None:
    counted = Count(lambda x, k: x * k)
    f = aot_function(counted, nop, ignore=[counted])
    assert [f(torch.ones(1), k).item() for k in values] == values and counted.n == runs


def test_a_number_that_the_program_asks_for_is_a_constant_of_each_program() -> None:
    counted = Count(lambda x, k, m: x.sum(k) * m)
    f = aot_function(counted, nop, ignore=[counted])
    x = torch.arange(6.0).view(2, 3)
    for k, m in ((0, 2.0), (1, 3.0), (0, 4.0), (1, 5.0), (0, 2.0)):
        assert f(x, k, m).tolist() == (x.sum(k) * m).tolist()
    before = counted.n
    assert f(x, 1, 9.0).tolist() == (x.sum(1) * 9).tolist() and counted.n == before


def first_above(x: Any, k: Any) -> Any:
    for i in range(8):
        if k < i + 0.5:
            return x * (i + 1)
    return x * k


@pytest.mark.parametrize("kind", [int, float])
def test_programs_for_the_sides_of_a_branch_are_limited(kind: Any) -> None:
    """Of the first value alone, of four sides for any value, and then of each value."""
    counted = Count(first_above)
    f = aot_function(counted, nop, ignore=[counted])
    for values, runs in (
        (range(5), 5),
        (range(1, 5), 5),
        (range(5, 9), 9),
        (range(5), 10),  # the guards of the four sides are tried first
        (range(9), 11),
        (range(9), 13),
        (range(9), 13),
    ):
        for k in map(kind, values):
            assert f(torch.ones(1), k).item() == first_above(1, k)
        assert counted.n == runs, list(values)


@pytest.mark.parametrize("mode", ["transform", "dispatch"])
def test_inside_a_transform_or_a_mode_the_function_itself_runs(mode: str) -> None:
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    counted = Count(lambda x, k=1: (x * k).sum())
    f = aot_function(counted, nop, ignore=[counted])
    for _ in range(2):
        if mode == "transform":
            assert runtime.func.grad(f)(torch.ones(2)).tolist() == [1.0, 1.0]
        else:
            with Mode():  # type: ignore[no-untyped-call]
                assert f(torch.ones(2), k=2).item() == 4.0
    assert counted.n == 2


def test_more_kinds_than_there_is_room_for_are_told_once_with_the_line_of_the_call() -> None:
    def mine(x: Any) -> Any:
        return x * 2

    f = aot_function(mine, nop)
    for n in range(64):
        f(torch.ones(n))
    with pytest.warns(UserWarning, match="mine has been compiled for more than 64 kinds") as told:
        f(torch.ones(64))
    assert [w.filename for w in told] == [__file__]
    f(torch.ones(65))  # of which nothing is told: warnings are errors here


def test_the_last_programs_are_found_by_their_guards() -> None:
    counted = Count(lambda x: x * 2)
    f = aot_function(counted, nop, ignore=[counted])
    for n in (1, 2, 3, 4, 5, 6, 5, 6, 1, 2, 3):
        assert f(torch.ones(n)).numel() == n
    assert counted.n == 6


def test_the_state_around_a_call_is_a_part_of_its_kind() -> None:
    counted = Count(lambda x: x * 2)
    f = aot_function(counted, nop, ignore=[counted])
    x = torch.ones(2)
    f(x)
    with torch.no_grad():
        f(x)
    with torch.inference_mode():
        f(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f(x)
    assert counted.n == 4
    f(x)
    with torch.no_grad():
        f(x)
    assert counted.n == 4


class Turned(TwoTensor):
    """Takes the cosine where the program asks for the sine."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return torch.cos(args[0]) if func is torch.sin else func(*args, **(kwargs or {}))


def test_a_subclass_that_handles_functions_of_torch_is_refused() -> None:
    x: Any = Turned(torch.zeros(2), torch.zeros(2))  # type: ignore[no-untyped-call]
    for f, args in ((torch.sin, (x,)), (lambda: torch.sin(x), ())):
        with pytest.raises(
            RuntimeError,
            match=r"a Turned is among .* whose __torch_function__ handles calls.*Use torch.compile",
        ):
            aot_function(f, nop)(*args)
    # captured before
    run: Any = aot_module_simplified(make_fx(lambda x: (x * 2,))(torch.ones(2)), (x,), nop)
    whole: Any = runtime.unwrap(run(x)[0])
    assert whole.b.tolist() == [0.0, 0.0]


def multiplied(x: Any) -> Any:
    with torch.autocast("cpu", enabled=False):
        return x @ x


def test_what_a_program_computes_without_autocast_it_computes_so_in_a_region_of_autocast() -> None:
    x = torch.full((2, 2), 1.001)
    f = aot_function(multiplied, nop)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(2):
            y = f(x)
            assert y.dtype is torch.float32 and torch.is_autocast_enabled("cpu")
    torch.testing.assert_close(y, x @ x, rtol=0, atol=0)


def test_compilers_run_without_autocast() -> None:
    seen: list[bool] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(torch.is_autocast_enabled("cpu"))
        return nop(module, inputs)

    f = aot_function(lambda x: x.sin(), compiler)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        f(torch.ones(2))
        f(leaf(2)).sum().backward()
        assert seen == [False] * 3 and torch.is_autocast_enabled("cpu")


def test_a_derivative_is_captured_without_what_is_of_the_program_alone() -> None:
    decomposed: list[int] = []

    def cosine(x: Any) -> Any:
        decomposed.append(1)
        return (x + torch.pi / 2).sin()

    class Sine(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.sin()

    partition, seen, module = Partition(), Compilers(), Sine()
    cos: Any = torch.ops.aten.cos.default
    f = aot_function(
        module,
        seen.named("graph"),
        partition_fn=partition,
        decompositions={cos: cosine},
        num_params_buffers=1,
    )
    x = leaf(2)
    y = f(x).sum()
    assert partition.options == [{"num_fwd_outputs": 1, "static_lifetime_input_indices": [0]}]
    before = len(decomposed)
    for training in (True, False):
        module.train(training)
        (g,) = runtime.autograd.grad(y, x, create_graph=True)
        torch.testing.assert_close(runtime.unwrap(g.detach()), torch.ones(2).cos())
    assert len(decomposed) == before and partition.options[1:] == [{"num_fwd_outputs": 1}]
    assert len(seen.calls) == 2, "the program, and one derivative in both modes"


def test_a_graph_without_a_backward_has_no_calls_that_no_result_needs() -> None:
    graphs: list[fx.GraphModule] = []

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        return nop(module, inputs)

    aot_function(lambda x: (x.cos(), x.sin())[1], compiler)(torch.ones(2))
    assert [n.target for n in graphs[0].graph.nodes if n.op == "call_function"] == [
        torch.ops.aten.sin.default
    ]


def test_a_value_that_has_left_its_transform_is_given_to_the_function_itself() -> None:
    escaped: list[Any] = []

    def inside(v: Any) -> Any:
        escaped.append(v)
        return v.sum()

    runtime.func.grad(inside)(torch.ones(1))
    counted = Count(lambda x: 3)
    f = aot_function(counted, nop, ignore=[counted])
    assert [f(escaped[0]) for _ in range(2)] == [3, 3] and counted.n == 2


def test_without_grad_mode_a_program_may_switch_it_on() -> None:
    def f(x: Any) -> Any:
        with torch.enable_grad():
            return x * 2

    compiled = aot_function(f, nop)
    for _ in range(2):
        with torch.no_grad():
            y = compiled(x := leaf(2))
        assert y.requires_grad
        y.sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
