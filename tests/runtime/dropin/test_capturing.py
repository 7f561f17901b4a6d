"""torch's own captures (jit.trace, export, ONNX) under the drop-in: they see plain tensors, and
their results work in the session."""

from __future__ import annotations

import importlib
import io
import threading
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export.pt2_archive._package import AOTICompiledModel

import runtime
from runtime import dropin, unwrap

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

Program = Callable[[], Any]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.BatchNorm1d(3), nn.Linear(3, 1)).eval()


def trained(captured: Any, parameters: Any) -> list[torch.Tensor]:
    """Results and parameters over two steps on inputs that the capture did not see."""
    out = []
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for seed in (1, 2):
        torch.manual_seed(seed)
        optimizer.zero_grad()
        y = captured(torch.randn(4, 2))
        y.pow(2).sum().backward()
        optimizer.step()
        out.append(y.detach())
    return [*out, *(p.detach().clone() for p in parameters)]


def traced_module() -> Any:
    m = model()
    return trained(torch.jit.trace(m, torch.ones(4, 2)), list(m.parameters()))


def traced_function_with_a_closure() -> Any:
    scale = torch.tensor([2.0, 3.0])
    f = torch.jit.trace(lambda x: x * scale + x.sum(), (torch.zeros(2),))
    return f(torch.tensor([1.0, 5.0]))


def traced_method() -> Any:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([1.0, 2.0]))

        def forward(self, x: Any) -> Any:
            return x * self.w

        def other(self, x: Any) -> Any:
            return x @ self.w

    t = torch.jit.trace_module(Two(), {"forward": (torch.ones(2),), "other": (torch.ones(2),)})
    x = torch.tensor([3.0, 4.0])
    return t(x), t.other(x)


def traced_and_saved() -> Any:
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model(), torch.ones(4, 2)), file)
    file.seek(0)
    return torch.jit.load(file)(torch.tensor([[1.0, -2.0]]))


def exported_module() -> Any:
    m = model()
    program = torch.export.export(m, (torch.ones(4, 2),))
    return trained(program.module(), list(m.parameters()))


def exported_with_a_dynamic_batch() -> Any:
    program = torch.export.export(
        model(), (torch.ones(4, 2),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    return [program.module()(torch.ones(n, 2)) for n in (2, 7)]


def exported_saved_and_loaded() -> Any:
    file = io.BytesIO()
    torch.export.save(torch.export.export(model(), (torch.ones(4, 2),)), file)
    file.seek(0)
    loaded = torch.export.load(file)
    return loaded.module()(torch.full((4, 2), 0.5)), loaded.run_decompositions().module()(
        torch.full((4, 2), 0.5)
    )


def written_as_onnx() -> Any:
    pytest.importorskip("onnx")
    import onnx

    file = io.BytesIO()
    torch.onnx.export(model(), (torch.ones(4, 2),), file, dynamo=False)  # type: ignore[arg-type]
    graph = onnx.load_from_string(file.getvalue()).graph
    assert [n.op_type for n in graph.node if n.op_type != "Identity"] == [
        "Gemm",
        "Relu",
        "BatchNormalization",
        "Gemm",
    ]
    return {i.name: torch.tensor(onnx.numpy_helper.to_array(i)) for i in graph.initializer}


def with_a_function_of_the_users() -> Any:
    class Tripled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return 3 * g * ctx.saved_tensors[0]

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.tensor([2.0, 5.0]))

        def forward(self, x: Any) -> Any:
            return Tripled.apply(self.w * x)  # type: ignore[no-untyped-call]

    x = torch.tensor([1.0, 3.0])
    return torch.jit.trace(Module(), torch.ones(2))(x), torch.export.export(
        Module(), (torch.ones(2),)
    ).module()(x)


def traced_with_keywords() -> Any:
    f = torch.jit.trace(lambda x: x * 2, example_inputs=(torch.ones(2),))
    g = torch.jit.trace(
        lambda x, y: x - y, example_kwarg_inputs={"y": torch.ones(2), "x": torch.zeros(2)}
    )
    return f(torch.tensor([1.0, 5.0])), g(y=torch.tensor([1.0, 2.0]), x=torch.tensor([5.0, 5.0]))


def exported_with_keywords_and_constants() -> Any:
    class Module(nn.Module):
        seen: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.w, self.constant = nn.Parameter(torch.tensor([1.0, 2.0])), torch.tensor([3.0, 4.0])
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x: Any, *, scale: Any) -> Any:
            self.seen.add_(x.detach())
            return x * self.w * scale + self.constant + torch.tensor([1.0, 5.0])

    m = Module()
    program = torch.export.export(m, (torch.ones(2),), {"scale": torch.ones(2)}, strict=False)
    made = program.module(False)
    x = torch.tensor([2.0, 3.0], requires_grad=True)
    y = made(x, scale=torch.tensor([10.0, 20.0]))
    y.sum().backward()
    assert m.w.grad is not None
    decomposed = program.run_decompositions(None).module()
    return (
        y,
        x.grad,
        m.w.grad,
        m.seen,
        decomposed(x, scale=torch.ones(2)),
        dict(program.state_dict),
        dict(program.constants),
    )


def scripted_function_with_factories() -> Any:
    return torch.jit.script(made_of_factories)(3)


def made_of_factories(n: int) -> torch.Tensor:
    return torch.zeros([n]) + torch.ones([n]) * torch.arange(n)


def written_to_a_file_by_keywords() -> Any:
    pytest.importorskip("onnx")
    file = io.BytesIO()
    torch.onnx.export(
        model(),
        args=(torch.ones(4, 2),),
        f=file,  # type: ignore[arg-type]
        dynamo=False,
        input_names=["given"],
    )
    return file.getvalue()


def symbolically_traced() -> Any:
    m = model()
    return trained(torch.fx.symbolic_trace(m), list(m.parameters()))


def scripted() -> Any:
    m = model()
    return trained(torch.jit.script(m), list(m.parameters()))


@pytest.mark.parametrize(
    "program",
    [
        traced_module,
        traced_function_with_a_closure,
        traced_method,
        traced_and_saved,
        exported_module,
        exported_with_a_dynamic_batch,
        exported_saved_and_loaded,
        written_as_onnx,
        with_a_function_of_the_users,
        traced_with_keywords,
        exported_with_keywords_and_constants,
        scripted_function_with_factories,
        written_to_a_file_by_keywords,
        symbolically_traced,
        scripted,
    ],
    ids=lambda p: p.__name__,
)
def test_a_captured_program_computes_and_trains_as_in_torch(program: Program) -> None:
    expected = program()
    with dropin.installed():
        found = program()
    found = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: unwrap(t.detach()), found)
    torch.testing.assert_close(
        found, torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.detach(), expected)
    )


@pytest.mark.usefixtures("routed")
def test_the_module_that_was_captured_keeps_its_parameters() -> None:
    m = model()
    before = list(m.parameters())
    traced = torch.jit.trace(m, torch.ones(4, 2))
    exported = torch.export.export(m, (torch.ones(4, 2),)).module()
    for module in (m, traced, exported):
        assert all(a is b for a, b in zip(module.parameters(), before, strict=True))


@pytest.mark.usefixtures("routed")
def test_a_tensor_that_the_capture_cannot_exchange_is_refused() -> None:
    hidden = frozenset([torch.ones(2)])
    with pytest.raises(
        RuntimeError,
        match=r"runtime.dropin: torch.jit.trace met a tensor .* Pass it as an argument",
    ):
        torch.jit.trace(lambda x: x * next(iter(hidden)), (torch.zeros(2),))


@pytest.mark.usefixtures("routed")
def test_an_error_in_a_capture_leaves_everything_as_it_was() -> None:
    m = model()
    before = list(m.parameters())
    factory, grad = torch.ones, torch.autograd.grad
    m.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        torch.jit.trace(m, torch.ones(4, 2))
    with pytest.raises(ZeroDivisionError):
        torch.export.export(m, (torch.ones(4, 2),))
    assert torch.ones is factory and torch.autograd.grad is grad and dropin.is_installed()
    assert all(a is b for a, b in zip(m.parameters(), before, strict=True))
    assert isinstance(torch.ones(1), runtime.Tensor)


@pytest.mark.usefixtures("routed")
def test_captures_in_four_threads_wait_for_one_another() -> None:
    results: list[Any] = []

    def capture() -> None:
        f = torch.jit.trace(lambda x: x * torch.ones(2), (torch.zeros(2),))
        results.append(f(torch.ones(2)).tolist())

    for _ in range(10):
        run_at_once(*[capture] * 4)
    assert results == [[1.0, 1.0]] * 40 and isinstance(torch.ones(1), runtime.Tensor)


@pytest.mark.usefixtures("routed")
def test_a_thread_meets_the_drop_ins_capturing_functions_during_another_threads_capture() -> None:
    met: list[Any] = []

    def functions() -> tuple[Any, ...]:
        return (
            torch.jit.trace,
            torch.jit.trace_module,
            torch.export.export,
            torch.compile,
            torch.export.ExportedProgram.module,
        )

    def traced(x: torch.Tensor) -> torch.Tensor:
        run_at_once(lambda: met.append(functions()))
        return x * 2

    torch.jit.trace(traced, (torch.zeros(2),), check_trace=False)
    assert met == [functions()] * len(met) and met


def run_at_once(*calls: Callable[[], None]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_session(*tensors: Any) -> bool:
    return all(isinstance(t, runtime.Tensor) for t in tensors)


class Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.constant = nn.BatchNorm1d(2), torch.ones(2)

    def forward(self, x: Any) -> Any:
        return self.norm(x) * self.constant


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.usefixtures("routed")
def test_the_buffers_of_a_traced_module_are_those_of_the_module() -> None:
    m = Constant()
    # a view, which is exchanged as well
    traced = torch.jit.trace(m, torch.arange(8.0).reshape(4, 2))
    assert m.norm.running_mean is not None
    before = m.norm.running_mean.clone()
    traced(torch.arange(8.0).reshape(4, 2) + 5)
    assert not torch.equal(m.norm.running_mean, before)
    assert torch.equal(dict(traced.named_buffers())["norm.running_mean"], m.norm.running_mean)


@pytest.mark.usefixtures("routed")
def test_an_exported_program_holds_tensors_of_the_session_whatever_was_done_with_it(
    tmp_path: Any,
) -> None:
    m = Constant()
    x = torch.ones(4, 2)
    program = torch.export.export(m, (x,))

    def holds() -> list[Any]:
        assert program.example_inputs is not None and program.example_inputs[0][0] is x
        assert in_session(*program.state_dict.values(), *program.constants.values())
        assert (
            program.state_dict["norm.weight"] is m.norm.weight
            and program.state_dict["norm.running_mean"] is m.norm.running_mean
        )
        return [*program.state_dict.values(), *program.constants.values()]

    before = holds()
    assert program.constants
    torch.export.save(program, tmp_path / "program.pt2")
    with pytest.raises(Exception, match="nowhere"):
        torch.export.save(program, tmp_path / "nowhere" / "program.pt2")
    made: Any = program.module()
    decomposed = program.run_decompositions()
    assert all(a is b for a, b in zip(holds(), before, strict=True))
    assert in_session(
        *made.parameters(),
        *made.buffers(),
        *decomposed.state_dict.values(),
        *decomposed.constants.values(),
    )
    assert (
        decomposed.state_dict["norm.weight"] is m.norm.weight and made.norm.weight is m.norm.weight
    )
    loaded = torch.export.load(f=tmp_path / "program.pt2")  # by the name that torch gives it
    assert in_session(
        *loaded.state_dict.values(), *loaded.constants.values(), *(loaded.example_inputs or [()])[0]
    )
    torch.testing.assert_close(unwrap(loaded.module()(x).detach()), unwrap(made(x).detach()))


@pytest.mark.parametrize("capture", ["jit.trace", "jit.trace_module"])
@pytest.mark.usefixtures("routed")
def test_a_refusal_names_the_capture(capture: str) -> None:
    hidden = frozenset([torch.ones(2)])

    class Module(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * next(iter(hidden))

    inputs: Any = torch.ones(2) if capture == "jit.trace" else {"forward": torch.ones(2)}
    with pytest.raises(RuntimeError, match=rf"runtime\.dropin: torch\.{capture} met a tensor"):
        getattr(torch.jit, capture.partition(".")[2])(Module(), inputs)


def test_an_exported_program_from_before_works_and_its_methods_are_torchs_after_leaving() -> None:
    methods = [
        vars(torch.export.ExportedProgram)[name] for name in ("module", "run_decompositions")
    ]
    x = torch.ones(4, 2)
    program = torch.export.export(model(), (x,))
    expected = program.module()(x)
    with dropin.installed():
        assert [
            vars(torch.export.ExportedProgram)[name] for name in ("module", "run_decompositions")
        ] != methods
        found = program.module()(torch.ones(4, 2))
        assert isinstance(found, runtime.Tensor)
        assert in_session(*program.run_decompositions().state_dict.values())
    torch.testing.assert_close(unwrap(found.detach()), expected.detach())
    assert [
        vars(torch.export.ExportedProgram)[name] for name in ("module", "run_decompositions")
    ] == methods


def test_an_exported_program_that_was_saved_loads_in_plain_torch(tmp_path: Any) -> None:
    path = tmp_path / "program.pt2"
    with dropin.installed():
        m = model()
        torch.export.save(torch.export.export(m, (torch.ones(4, 2),)), path)
        expected = unwrap(m(torch.ones(4, 2)).detach())
    loaded = torch.export.load(path)
    assert not any(
        in_session(t) for t in (*loaded.state_dict.values(), *(loaded.example_inputs or [()])[0])
    )
    torch.testing.assert_close(loaded.module()(torch.ones(4, 2)).detach(), expected)
    with zipfile.ZipFile(path) as archive:
        assert not any(b"runtime.session" in archive.read(name) for name in archive.namelist())


def test_an_export_to_onnx_is_given_the_model_with_plain_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the package onnx, whose files the tests above read."""
    calls: list[Any] = []

    def export(model: Any, *args: Any, **kwargs: Any) -> str:
        calls.append((model, [type(p) for p in model.parameters()], args, kwargs))
        return "exported"

    monkeypatch.setattr(torch.onnx, "export", export)
    with dropin.installed():
        layer, x = nn.Linear(2, 1), torch.ones(1, 2)
        assert torch.onnx.export(layer, (x,), "file", input_names=["given"]) == "exported"  # type: ignore[comparison-overlap]
        assert all(isinstance(p, runtime.Tensor) for p in layer.parameters())
    ((model, kinds, (given, file), options),) = calls
    assert model is layer and file == "file" and options == {"input_names": ["given"]}
    assert kinds == [nn.Parameter, nn.Parameter] and [type(t) for t in given] == [torch.Tensor]


@pytest.mark.usefixtures("routed")
def test_a_drafted_export_is_one_of_torchs_for_plain_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Torch's own function leaves its log file open, so another one stands for it."""
    given: list[Any] = []

    def drafted(mod: nn.Module, args: Any, **options: Any) -> Any:
        given.extend(map(type, (*mod.parameters(), *args)))
        return torch.export.export(mod, args)

    monkeypatch.setattr(
        importlib.import_module("torch.export._draft_export"), "draft_export", drafted
    )
    m, x = model(), torch.ones(4, 2)
    program = torch.export.draft_export(m, (x,))
    assert not any(issubclass(c, runtime.Tensor) for c in given)
    program.module()(x).sum().backward()
    assert all(p.grad is not None for p in m.parameters())


@pytest.mark.usefixtures("routed")
def test_export_takes_its_arguments_by_name() -> None:
    x = torch.ones(4, 2)
    program = torch.export.export(mod=model(), args=(x,), kwargs={})
    torch.testing.assert_close(unwrap(program.module()(x)), unwrap(model()(x)))


def test_a_program_that_is_packaged_has_plain_tensors_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inductor: Any = torch._inductor
    classes: list[set[type]] = []

    def package(exported: Any, *, package_path: str) -> str:
        classes.append({type(t) for t in exported.state_dict.values()})
        return package_path

    monkeypatch.setattr(inductor, "aoti_compile_and_package", package)
    with dropin.installed():
        program = torch.export.export(model(), (torch.ones(4, 2),))
        path = inductor.aoti_compile_and_package(program, package_path="a.pt2")
    assert path == "a.pt2"
    (found,) = classes
    assert found and not any(issubclass(c, runtime.Tensor) for c in found)
    assert all(isinstance(t, runtime.Tensor) for t in program.state_dict.values())


def test_a_package_is_given_plain_tensors_and_gives_tensors_of_the_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[type] = []

    def run(model: Any, *args: Any) -> Any:
        given.extend(map(type, args))
        return [args[0] * 2]

    monkeypatch.setattr(AOTICompiledModel, "__call__", run)
    with dropin.installed():
        call: Any = AOTICompiledModel.__call__
        (out,) = call(None, torch.ones(2, requires_grad=True))
    assert given == [torch.Tensor]
    assert isinstance(out, runtime.Tensor) and not out.requires_grad
    assert out.tolist() == [2.0, 2.0]
