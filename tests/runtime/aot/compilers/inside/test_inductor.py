"""What is decided around a compilation by Inductor.

Inside: ``runtime.aot.compilers.inductor`` and ``inductor_trial``. A stand-in takes the place of the
trial in a process of its own, which would take minutes for each of these tests."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F

import runtime
from runtime import jit
from runtime.aot import aot_function, cond, inductor, make_fx
from runtime.aot.compilers import inductor_trial
from runtime.aot.compilers.boxed import examples
from runtime.aot.compilers.inductor import _refuse_other_layouts, _with_known_sizes, decomposed
from runtime.aot.compilers.inductor_trial import TrialFailed
from tests.runtime.aot.compilers.by_hand import symbolic

aten = torch.ops.aten
here = partial(inductor, isolated=False)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_graphs_are_decomposed_into_what_inductor_lowers() -> None:
    def program(x: Any, w: Any) -> Any:
        return [F.layer_norm(F.linear(x, w), (2,)).t()]

    module = make_fx(program)(torch.ones(3, 2), torch.eye(2))
    assert {aten.t.default, aten.native_layer_norm.default} <= {
        n.target for n in module.graph.nodes
    }
    lowered = decomposed(module, examples(module))
    assert not {aten.t.default, aten.native_layer_norm.default} & {
        n.target for n in lowered.graph.nodes
    }
    x, w = torch.randn(3, 2), torch.randn(2, 2)
    torch.testing.assert_close(lowered(x, w), program(x, w))


config: Any = importlib.import_module("torch._inductor.config")


class StandIn:
    """Notes the graphs and values that it is given. ``tried``: the limits of trials."""

    def __init__(self) -> None:
        self.graphs: list[fx.GraphModule] = []
        self.values: list[list[Any]] = []
        self.options: list[bool] = []
        self.tried: list[tuple[fx.GraphModule, list[Any], float]] = []
        self.events: list[str] = []
        self.recording: list[bool] = []

    def compile(self, module: fx.GraphModule, values: list[Any]) -> Callable[[list[Any]], Any]:
        self.events.append("compiled")
        self.graphs.append(module)
        self.values.append(values)
        self.options.append(config.fallback_random)

        def run(given: list[Any]) -> Any:
            self.recording.append(torch.ones(1, requires_grad=True).sin().requires_grad)
            return fx.Interpreter(module).run(*given)

        return run

    def trial(
        self, module: fx.GraphModule, values: list[Any], limit: float, *, cpp_wrapper: bool
    ) -> None:
        self.events.append("tried")
        self.tried.append((module, values, limit))


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setattr(
        importlib.import_module("torch._inductor.compile_fx"), "compile_fx_inner", found.compile
    )
    monkeypatch.setattr(inductor_trial, "start", lambda: found.events.append("started"))
    monkeypatch.setattr(inductor_trial, "tried", found.trial)
    return found


def test_a_graph_is_tried_before_it_is_compiled_for_the_same_values(stand_in: StandIn) -> None:
    x = torch.ones(3)
    assert torch.equal(aot_function(torch.sin, inductor)(x), x.sin())
    assert torch.equal(aot_function(torch.sin, partial(inductor, limit=7.0))(x), x.sin())
    assert stand_in.events == ["started", "tried", "compiled"] * 2
    assert [limit for *_, limit in stand_in.tried] == [600.0, 7.0]
    for (module, values, _), graph, given in zip(
        stand_in.tried, stand_in.graphs, stand_in.values, strict=True
    ):
        assert module is graph and values is given


def test_in_this_process_nothing_is_tried(stand_in: StandIn) -> None:
    aot_function(torch.sin, here)(torch.ones(3))
    assert stand_in.events == ["compiled"]


@pytest.mark.parametrize(
    "what, said",
    [
        ("error", r"of 1 call that begins at .*: no way\. Use compiler"),
        ("dead", r"no way\. Use compiler"),
        (
            "late",
            (
                r"no way\. compiler=functools\.partial\(runtime\.aot\.inductor, limit=…\) "
                r"gives it longer\. Use"
            ),
        ),
        (
            "unsent",
            (
                r"no way, when it was to be sent to the process in which Inductor is tried\. "
                r".*isolated=False\) compiles it in this"
            ),
        ),
        (
            "unread",
            (
                r"no way, in the process in which Inductor is tried\. "
                r".*isolated=False\) compiles it in this process"
            ),
        ),
    ],
)
def test_a_trial_that_fails_is_an_error_that_says_what_to_do(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, what: str, said: str
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise TrialFailed("no way", what)

    monkeypatch.setattr(inductor_trial, "tried", failing)
    with pytest.raises(RuntimeError, match=said) as caught:
        aot_function(lambda x: x.sin(), inductor)(torch.ones(2))
    assert isinstance(caught.value.__cause__, TrialFailed) and not stand_in.graphs


def test_random_numbers_are_eager_s_while_a_graph_is_compiled_and_the_option_is_as_before(
    stand_in: StandIn,
) -> None:
    with config.patch(fallback_random=False):
        aot_function(lambda x: x + torch.rand(3), here)(torch.ones(3))
        assert stand_in.options == [True]
        assert config.fallback_random is False


def test_code_runs_below_autograd_and_its_arguments_are_free(stand_in: StandIn) -> None:
    x = runtime.wrap(torch.ones(3), requires_grad=True)
    aot_function(lambda x: x.sin().exp(), here)(x).sum().backward()
    assert stand_in.recording == [False, False]
    torch.testing.assert_close(
        runtime.unwrap(x.grad), torch.ones(3).cos() * torch.ones(3).sin().exp()
    )
    given = [torch.ones(2)]
    here(aot_graph(torch.sin, torch.ones(2)), list(given))(given)
    assert given == []


def aot_graph(f: Callable[..., Any], *args: torch.Tensor) -> fx.GraphModule:
    found: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        found.append(module)
        return here(module, inputs)

    aot_function(f, keep)(*args)
    return found[0]


def test_results_that_are_values_keep_their_strides(stand_in: StandIn) -> None:
    aot_function(lambda x, y: (x.t() * 2, None, y.sin(), 3), here)(torch.ones(2, 3), torch.ones(2))
    output = stand_in.graphs[0].graph.output_node()
    results: Any = output.args[0]
    assert output.meta["user_visible_output_idxs"] == [
        i for i, r in enumerate(results) if isinstance(r, fx.Node)
    ]
    assert len(output.meta["user_visible_output_idxs"]) >= 2


def test_arguments_that_are_no_tensors_are_left_out_and_the_code_is_that_of_the_graph(
    stand_in: StandIn,
) -> None:
    f = aot_function(lambda x, flag, y, n: x - y * n, here)
    assert f(torch.ones(2), None, torch.full((2,), 3.0), 2).tolist() == [-5.0, -5.0]
    (graph,) = stand_in.graphs
    assert (
        len([n for n in graph.graph.nodes if n.op == "placeholder"]) == len(stand_in.values[0]) == 2
    )
    assert graph(torch.ones(2), torch.full((2,), 3.0))[0].tolist() == [-5.0, -5.0]


def test_new_values_are_written_by_the_code_and_counted_as_the_program_counts_them(
    stand_in: StandIn,
) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(y)
        y.add_(1)
        return x * y

    run = aot_function(f, here)
    mine, theirs = [torch.ones(3), torch.full((3,), 2.0)], [torch.ones(3), torch.full((3,), 2.0)]
    for _ in range(3):
        assert torch.equal(run(*mine), f(*theirs))
        assert all(
            torch.equal(a, b) and a._version == b._version
            for a, b in zip(mine, theirs, strict=True)
        )
    (graph,) = stand_in.graphs
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"].count(
        aten.copy_.default
    ) == 2
    results: Any = graph.graph.output_node().args[0]
    assert results[:2] == [None, None] or list(results).count(None) == 2


def test_numbers_among_the_results_are_numbers_for_the_program(stand_in: StandIn) -> None:
    f = jit(lambda x: (x * 2, x.sum().item(), x + x.max().item()), compiler=here)
    for x in (torch.ones(3), torch.arange(4.0)):
        double, total, added = f(x)
        assert (
            torch.equal(double, x * 2)
            and type(total) is float
            and total == x.sum()
            and torch.equal(added, x + x.max())
        )


def test_a_size_that_has_one_value_left_is_a_number(stand_in: StandIn) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] == 3 else x.cos()

    run = aot_function(f, here, dynamic=True)
    for rows in (3, 4):
        x = torch.ones(rows, 5)
        assert torch.equal(run(x), f(x))
    (value,) = (v for v in stand_in.values[0] if isinstance(v, torch.Tensor))
    kinds: list[Any] = [type(n) for n in (*value.shape, *value.stride())]
    assert kinds == [int, torch.SymInt, torch.SymInt, int] and (
        value.shape[0],
        value.stride()[1],
    ) == (3, 1)


def test_values_without_symbols_and_symbols_themselves_are_given_as_they_are() -> None:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    fixed, free = (
        mode.from_tensor(torch.ones(5, 7), static_shapes=True),
        mode.from_tensor(torch.ones(5, 7, requires_grad=True)),
    )
    n: Any = free.shape[0]
    assert (
        _with_known_sizes(fixed) is fixed
        and _with_known_sizes(n) is n
        and _with_known_sizes(3) == 3
    )
    again = _with_known_sizes(free)
    assert again.shape == free.shape and isinstance(again.shape[0], torch.SymInt)
    assert n == 5  # from here on it has one value
    again = _with_known_sizes(free[1:])
    kinds: list[Any] = [type(s) for s in (*again.shape, *again.stride(), again.storage_offset())]
    assert kinds == [int, torch.SymInt, torch.SymInt, int, torch.SymInt]
    assert (again.shape[0], again.stride()[1]) == (4, 1) and again.grad_fn is None


def test_in_inference_mode_new_values_are_written_too(stand_in: StandIn) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2).add_(1)
        return x * 3

    run = aot_function(f, here)
    with torch.inference_mode():
        mine, theirs = torch.ones(3), torch.ones(3)
        for _ in range(2):
            assert torch.equal(run(mine), f(theirs)) and torch.equal(mine, theirs)


def _results(*values: Any) -> fx.GraphModule:
    graph = fx.Graph()
    results = [v if v is None else graph.call_function(aten.sin.default, ()) for v in values]
    for n, value in zip(results, values, strict=True):
        if n is not None:
            n.meta["val"] = value
    graph.output(results)
    return fx.GraphModule({}, graph)


X = torch.ones(2, 3)


@pytest.mark.parametrize(
    "before, after, refused",
    [
        (X, X, False),
        (X, X.t(), True),
        (X, X.t().contiguous().t(), True),
        (X, X.double(), True),
        (symbolic(0), X, False),
        (X, None, False),
        (None, X, False),
        (3, X, False),
        (X, 3, False),
    ],
)
def test_abstract_kernels_are_asked_for_the_layouts_of_the_trace(
    before: Any, after: Any, refused: bool
) -> None:
    lowered: Any = _results(None, after).graph.output_node().args[0]
    if not refused:
        _refuse_other_layouts(_results(None, before), lowered)
        return
    with pytest.raises(
        RuntimeError,
        match=r"abstract kernels say of aten\.sin\.default that a result has shape .* gave shape",
    ):
        _refuse_other_layouts(_results(None, before), lowered)


def test_the_branches_of_a_condition_are_decomposed_too() -> None:
    def program(x: torch.Tensor) -> Any:
        return [cond(x.sum() > 0, lambda x: F.layer_norm(x, (2,)), lambda x: x.t().t() * 2, (x,))]

    modules: list[fx.GraphModule] = []

    def keep(module: fx.GraphModule, inputs: list[Any]) -> Any:
        modules.append(module)
        return module.forward

    jit(program, compiler=keep)(torch.ones(3, 2))
    lowered = decomposed(modules[0], examples(modules[0]))
    branches = [m for name, m in lowered.named_children() if isinstance(m, fx.GraphModule)]
    called = {n.target for m in branches for n in m.graph.nodes}
    assert (
        len(branches) == 2
        and aten.native_layer_norm.default not in called
        and aten.rsqrt.default in called
    )
    for x in (torch.rand(3, 2), -torch.rand(3, 2)):
        torch.testing.assert_close(lowered(x), program(x))


def test_how_many_calls_a_refused_graph_has_is_told(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise KeyError("no")

    monkeypatch.setattr(
        importlib.import_module("torch._inductor.compile_fx"), "compile_fx_inner", failing
    )
    programs: list[tuple[Any, str]] = [
        (torch.sin, "a graph of 1 call: KeyError"),
        (lambda x: x.sin(), "a graph of 1 call that begins at /.*sin"),
    ]
    for f, said in (*programs, (lambda x: x.sin().cos(), "a graph of 2 calls that begins at")):
        with pytest.raises(RuntimeError, match=said):
            aot_function(f, here)(torch.ones(2))
    with pytest.raises(RuntimeError, match="a graph of 0 calls: "):
        aot_function(lambda x: (x, 2), here)(torch.ones(2))
