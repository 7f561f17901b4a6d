"""``torch.compile`` under the drop-in: compiled programs train to torch's numbers, by the
runtime's engine."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import dropin, unwrap
from runtime.extend import Level

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


class Writing(nn.Module):
    """Writes to a buffer and to a view of an intermediate result, and returns a
    view and a buffer."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("seen", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        y = self.norm(x @ self.w)
        self.seen.add_(y.detach().sum(0))
        z = y.view(-1) * 2
        z[0] = 5.0
        return y.t(), z, self.seen


def steps(backend: str | None) -> list[torch.Tensor]:
    """Everything that three training steps show."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    m, x = Writing().double(), torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    f = m if backend is None else torch.compile(m, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(m.parameters(), lr=0.1)
    seen = []
    for _ in range(3):
        optimizer.zero_grad()
        outs = f(x)
        sum(o.pow(2).sum() for o in outs[:2]).backward()
        optimizer.step()
        seen += [t.detach().clone() for t in (*outs, *m.parameters(), *m.buffers(), x.grad)]
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_a_compiled_module_trains_as_in_torch(backend: str) -> None:
    expected = steps(None)
    with dropin.installed():
        found = steps(backend)
    torch.testing.assert_close([unwrap(t) for t in found], expected)


@pytest.fixture
def routed() -> Iterator[None]:
    torch._dynamo.reset()
    with dropin.installed():
        yield


def optimized(backend: str | None, whole_step: bool) -> list[torch.Tensor]:
    """The parameters after three steps of Adam. What is compiled is the optimizer's step, or the
    whole training step."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    m, x = nn.Linear(3, 2), torch.ones(4, 3)
    optimizer = torch.optim.Adam(m.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        m(x).pow(2).sum().backward()
        (update if not whole_step else optimizer.step)()

    update, run = optimizer.step, step
    if backend is not None:
        update = torch.compile(optimizer.step, backend=backend) if not whole_step else update
        run = torch.compile(step, backend=backend) if whole_step else step
    for _ in range(3):
        run()
    return [p.detach().clone() for p in m.parameters()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("whole_step", [False, True])
def test_a_compiled_optimizer_finds_the_gradients_of_the_session(
    backend: str, whole_step: bool
) -> None:
    expected = optimized(None, whole_step)
    with dropin.installed():
        found = optimized(backend, whole_step)
    torch.testing.assert_close([unwrap(t) for t in found], expected)


@pytest.mark.usefixtures("routed")
def test_a_program_that_reads_a_gradient_is_captured_anew_when_there_is_none_any_more() -> None:
    graphs, backend = counted()

    @torch.compile(backend=backend, fullgraph=True)
    def f(x: Any) -> Any:
        return x * 2 if x.grad is None else x * x.grad

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    assert f(x).tolist() == [2.0, 4.0]
    x.grad = torch.tensor([5.0, 7.0])
    assert f(x).tolist() == [5.0, 14.0] and len(graphs) == 2
    x.grad = None
    assert f(x).tolist() == [2.0, 4.0] and len(graphs) == 2


@pytest.mark.usefixtures("routed")
def test_a_backend_finds_which_sizes_of_its_examples_are_fixed() -> None:
    """A backend that makes fake tensors again, as Inductor's does, would take all sizes for
    symbols without it."""
    found: list[bool] = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        contexts = torch._guards.TracingContext.get().tensor_to_context
        found.extend(e in contexts for e in examples)
        return module.forward

    w = nn.Parameter(torch.ones(3))
    torch.compile(lambda x: (x * w).sum(), backend=backend, fullgraph=True)(
        torch.ones(2, 3, requires_grad=True)
    )
    assert found == [True, True]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.usefixtures("routed")
def test_a_condition_within_a_compiled_function_has_its_gradients(backend: str) -> None:
    f = torch.compile(
        lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        backend=backend,
        fullgraph=True,
    )
    for values, slope in (([1.0, 2.0], torch.cos), ([-1.0, -2.0], lambda x: -torch.sin(x))):
        x = torch.tensor(values, requires_grad=True)
        f(x).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(unwrap(x.grad), slope(unwrap(x.detach())))


def inputs_of_every_kind(compiled: bool) -> list[Any]:
    """Results and gradients of a function of leaves, results, views and written tensors."""
    leaf, weight = torch.arange(6.0).reshape(2, 3).requires_grad_(), nn.Parameter(torch.ones(3))
    result = leaf * 2
    written = leaf * 3
    written[0].mul_(weight)
    with torch.no_grad():
        silent = leaf.view(-1)
    constants = [torch.ones(3), torch.zeros(2, 3)[0], torch.arange(3)]

    def f(*args: Any) -> Any:
        return sum((a * (i + 1)).sum() for i, a in enumerate(args))

    if compiled:
        torch._dynamo.reset()
        f = torch.compile(f, backend="aot_eager", fullgraph=True)
    y: Any = f(
        leaf,
        weight,
        result,
        result.t()[1:],
        result.view(-1),
        written,
        written[0],
        silent,
        leaf[1],
        *constants,
    )
    y.backward()
    return [y.detach(), leaf.grad, weight.grad]


def test_inputs_of_every_kind_have_their_gradients_in_a_compiled_function() -> None:
    expected = inputs_of_every_kind(compiled=False)
    with dropin.installed():
        found = inputs_of_every_kind(compiled=True)
    torch.testing.assert_close([unwrap(t) for t in found], expected)


@pytest.mark.usefixtures("routed")
def test_a_function_is_captured_once_and_recorded_by_the_session() -> None:
    graphs = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        graphs.append([type(e) for e in examples])
        return module.forward

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    f = torch.compile(
        lambda x: (x.sin() * 2).sum() + torch.ones(2).sum(), backend=backend, fullgraph=True
    )
    for _ in range(2):
        y = f(x)
        (g,) = torch.autograd.grad(y, x)
        torch.testing.assert_close(unwrap(g), 2 * unwrap(x.detach()).cos())
    assert isinstance(y, runtime.Tensor) and graphs == [[torch.Tensor]]


@pytest.mark.usefixtures("routed")
def test_what_dynamo_does_not_capture_runs_under_the_drop_in() -> None:
    @torch.compile(backend="eager")
    def f(x: Any) -> Any:
        y = x * 2
        torch._dynamo.graph_break()
        return y.sum() + torch.autograd.grad((x**3).sum(), x)[0].sum()

    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = f(x)
    y.backward()
    assert y.item() == 6.0 + 15.0 and x.grad is not None and x.grad.tolist() == [2.0, 2.0]


@pytest.mark.usefixtures("routed")
def test_an_error_of_a_backend_leaves_the_drop_in_installed() -> None:
    def backend(module: Any, examples: Any) -> Any:
        raise KeyError("no such chip")

    with pytest.raises(Exception, match="no such chip"):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert (
        isinstance(torch.ones(1), runtime.Tensor) and torch.autograd.grad is runtime.autograd.grad
    )


FUNCTION = torch.sin


def counted() -> tuple[list[int], Any]:
    """A backend, and the graphs that it was given."""
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        graphs.append(len(examples))
        return module.forward

    return graphs, backend


@pytest.mark.usefixtures("routed")
def test_what_a_graph_makes_without_a_tensor_is_of_the_session() -> None:
    graphs, backend = counted()
    f = torch.compile(lambda: (torch.ones(2), torch.zeros(1)), backend=backend, fullgraph=True)
    a, b = f()
    assert (
        isinstance(a, runtime.Tensor)
        and isinstance(b, runtime.Tensor)
        and a.tolist() == [1.0, 1.0]
        and graphs == [0]
    )


@pytest.mark.usefixtures("routed")
def test_a_program_is_captured_anew_for_a_changed_name_but_not_for_those_of_the_drop_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graphs, backend = counted()

    @torch.compile(backend=backend, fullgraph=True)
    def f(x: Any) -> Any:
        return FUNCTION(x) + torch.zeros(2) + torch.func.vmap(torch.sin)(x)

    x = torch.tensor([1.0, 2.0])
    for _ in range(2):
        torch.testing.assert_close(unwrap(f(x)), 2 * unwrap(x).sin())
    assert len(graphs) == 1
    monkeypatch.setattr(f"{__name__}.FUNCTION", torch.cos)
    torch.testing.assert_close(unwrap(f(x)), unwrap(x).sin() + unwrap(x).cos())
    assert len(graphs) == 2


def test_dynamo_is_changed_once_and_is_what_it_was_after_leaving() -> None:
    names = [
        "guards.GuardBuilder",
        "convert_frame.ConvertFrame",
        "convert_frame.ConvertFrameAssert",
        "output_graph.OutputGraph",
    ]
    names += ["variables.builder.VariableBuilder", "guards.GuardManager"]
    modules = {name.rpartition(".")[0] for name in names} | {"variables.builder", "trace_rules"}

    def state() -> list[Any]:
        found = {module: importlib.import_module(f"torch._dynamo.{module}") for module in modules}
        classes = [
            getattr(found[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in names
        ]
        owners: list[Any] = [
            *classes,
            found["variables.builder"],
            torch._subclasses.fake_tensor.FakeTensorMode,
        ]
        rules: Any = found["trace_rules"]
        return [
            *(dict(vars(owner)) for owner in owners),
            list(rules.SKIP_DIRS),
            rules.check_file(inspect.getsourcefile(Level)).skipped,
        ]

    def changed(a: list[Any], b: list[Any]) -> int:
        return sum(
            new.get(name) is not value
            for old, new in zip(a[:-2], b[:-2], strict=True)
            for name, value in old.items()
        )

    before = state()
    assert not before[-1]
    with dropin.installed():
        torch.compile(lambda x: x + 1, backend="eager")
        first = state()
        torch.compile(lambda x: x + 2, backend="eager")
        second = state()
        assert first[-1] and len(first[-2]) == len(second[-2]) == len(before[-2]) + 1
        assert changed(before, first) >= 8 and changed(first, second) == 0
    after = state()
    assert changed(before, after) == 0 and after[-2:] == before[-2:]
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1)).item() == 2.0


def test_a_program_that_dynamo_captures_without_the_drop_in_is_torchs_again() -> None:
    with dropin.installed():
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    torch._dynamo.reset()
    graphs, backend = counted()
    x = torch.ones(2, requires_grad=True)
    y = torch.compile(lambda x: (x * torch.ones(2)).sum(), backend=backend, fullgraph=True)(x)
    y.backward()
    assert (
        type(y) is torch.Tensor
        and graphs == [1]
        and x.grad is not None
        and x.grad.tolist() == [1.0, 1.0]
    )


def compiled_by_ours(backend: Any, dynamic: bool = False) -> tuple[int, list[Any]]:
    """How many graphs ``runtime.aot`` compiles of a function with a write and a view, and
    what its calls show. A graph that torch compiles has a node of another name."""
    made: list[torch.fx.GraphModule] = []

    def counted(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        made.append(module)
        compile_graph = torch._dynamo.lookup_backend(backend)
        return compile_graph(module, examples)

    def f(x: Any, y: Any) -> Any:
        y.mul_(2)
        return (x * y).sin().sum(), x.view(-1)

    torch._dynamo.reset()
    seen: list[Any] = []
    run = (
        f if backend is None else torch.compile(f, backend=counted, fullgraph=True, dynamic=dynamic)
    )
    for n in (3, 5, 3):
        x = torch.arange(2.0 * n).reshape(n, 2).clone().requires_grad_()
        y = torch.ones(n, 2)
        out, view = run(x, y)
        assert backend is None or out.grad_fn.name() == "CompiledBackward"
        out.backward()
        assert view._base is x
        seen += [out.detach(), x.grad, y]
    return len(made), [unwrap(t) for t in seen]


def users_backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
    from functorch.compile import aot_module_simplified, min_cut_rematerialization_partition, nop

    return aot_module_simplified(
        module, examples, fw_compiler=nop, partition_fn=min_cut_rematerialization_partition
    )


@pytest.mark.parametrize("backend", ["aot_eager", "aot_eager_decomp_partition", users_backend])
@pytest.mark.parametrize("dynamic", [False, True])
def test_what_backends_hand_to_aot_module_simplified_is_compiled_by_ours(
    backend: Any, dynamic: bool
) -> None:
    _, expected = compiled_by_ours(None)
    with dropin.installed():
        made, found = compiled_by_ours(backend, dynamic)
    assert made == (1 if dynamic else 2)
    torch.testing.assert_close(found, expected)


@pytest.mark.usefixtures("routed")
def test_graphs_with_a_transform_are_compiled_by_torch() -> None:
    f = torch.compile(
        lambda x: torch.func.vmap(lambda row: row.sin().sum())(x),
        backend="aot_eager",
        fullgraph=True,
    )
    x = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(unwrap(f(x)), unwrap(x).sin().sum(1))


@pytest.mark.usefixtures("routed")
def test_a_fake_tensor_of_a_tensor_with_a_history_has_one() -> None:
    mode = torch._subclasses.fake_tensor.FakeTensorMode()
    leaf: Any = torch.ones(2, 3, requires_grad=True)
    result = mode.from_tensor(leaf * 2)
    assert result.requires_grad and not result.is_leaf and result.shape == (2, 3)
    assert mode.from_tensor(leaf).is_leaf and mode.from_tensor(leaf) is mode.from_tensor(leaf)


@pytest.mark.usefixtures("routed")
def test_our_graphs_are_numbered_by_torchs_counter(monkeypatch: pytest.MonkeyPatch) -> None:
    from functorch.compile import aot_function, get_aot_compilation_context, nop

    monkeypatch.setattr(
        importlib.import_module("torch._functorch.aot_autograd"), "AOT_COUNTER", itertools.count(70)
    )
    names: list[str] = []

    def compiler(graph: Any, examples: list[Any]) -> Any:
        names.extend(get_aot_compilation_context()[0])
        return nop(graph, examples)

    for _ in range(2):
        aot_function(torch.sin, compiler)(torch.ones(2))
    assert names == ["70_inference", "71_inference"]


@pytest.mark.usefixtures("routed")
def test_joint_graphs_with_descriptors_are_refused_with_what_to_do() -> None:
    entries: Any = importlib.import_module("torch._functorch.aot_autograd")
    with pytest.raises(RuntimeError, match="Use aot_export_module"):
        entries.aot_export_joint_with_descriptors(None, nn.Linear(2, 1), (torch.ones(2),))
