"""Under the drop-in, torch's own API is the runtime's; outside of it, torch's again."""

from __future__ import annotations

import contextlib
import copy
import io
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import runtime
from runtime import dropin
from runtime.func.batch import current_fallback_policy
from tests.commands import python

from .programs import losses

TORCHS: dict[str, Callable[[], Any]] = {
    "torch.ones": lambda: torch.ones,
    "torch.tensor": lambda: torch.tensor,
    "torch.func.grad": lambda: torch.func.grad,
    "torch.func.vmap": lambda: torch.func.vmap,
    "torch.vmap": lambda: torch.vmap,
    "torch.autograd.grad": lambda: torch.autograd.grad,
    "torch.autograd.backward": lambda: torch.autograd.backward,
    "Tensor.backward": lambda: vars(torch.Tensor).get("backward"),
    "Tensor.__new__": lambda: vars(torch.Tensor).get("__new__"),
    "Tensor.requires_grad": lambda: vars(torch.Tensor).get("requires_grad"),
    "Parameter.__new__": lambda: vars(nn.Parameter).get("__new__"),
}


@pytest.mark.parametrize("name", TORCHS)
def test_leaving_restores_what_was_replaced(name: str) -> None:
    find = TORCHS[name]
    before = find()
    with dropin.installed():
        assert find() is not before
    assert find() is before


def test_every_attribute_of_torchs_modules_is_restored_even_after_an_exception() -> None:
    def same(value: Any) -> Any:
        # torch.serialization restores its set by a copy
        return frozenset(value) if type(value) is set else id(value)

    def state() -> dict[str, dict[str, Any]]:
        loaded = {
            n: m
            for n, m in sys.modules.items()
            if n.partition(".")[0] in ("torch", "functorch") and hasattr(m, "__dict__")
        }
        return {
            n: {k: same(v) for k, v in vars(m).items() if not k.startswith("__")}
            for n, m in loaded.items()
        }

    with dropin.installed():
        pass  # imports every module that is routed
    before = state()
    with pytest.raises(KeyError), dropin.installed():
        raise KeyError
    after = state()
    assert {n: after[n] for n in before} == before


@pytest.mark.parametrize("fails", [False, True])
def test_leaving_restores_the_fallback_policy(fails: bool) -> None:
    before = current_fallback_policy()
    with contextlib.suppress(KeyError), dropin.installed():
        torch._C._functorch._set_vmap_fallback_enabled(False)  # type: ignore[attr-defined]
        if fails:
            raise KeyError
    assert current_fallback_policy() == before == "warn"


def test_installing_twice_or_leaving_unentered_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="not installed"):
        dropin.uninstall()
    with dropin.installed(), pytest.raises(RuntimeError, match="installed already"):
        dropin.install()
    assert not dropin.is_installed()


def test_names_taken_from_torch_before_are_routed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = sys.modules[__name__]
    monkeypatch.setattr(module, "taken", torch.func.grad, raising=False)
    with dropin.installed():
        assert module.taken is runtime.func.grad
    assert module.taken is torch.func.grad is not runtime.func.grad


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.ones(2),
        lambda: torch.tensor([1.0]),
        lambda: torch.randn(2, requires_grad=True),
        lambda: torch.from_numpy(__import__("numpy").ones(2)),
        lambda: torch.Tensor(2, 3),
        lambda: torch.fft.fftfreq(4),
        lambda: torch.arange(3),
        lambda: nn.Linear(2, 2).weight,
        lambda: nn.Parameter(torch.zeros(2)),
        lambda: torch.zeros(2).sin(),
    ],
)
def test_what_a_program_makes_is_a_runtime_tensor(made: Any) -> None:
    assert isinstance(made(), runtime.Tensor)


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    "made",
    [
        lambda x: torch.randn_like(x, requires_grad=True),
        lambda x: torch.zeros_like(x, requires_grad=True),
        lambda x: x.new_ones(2, requires_grad=True),
        lambda x: x.new_tensor([1.0, 2.0], requires_grad=True),
        lambda x: x.new_full((2,), 3.0, requires_grad=True),
    ],
)
def test_a_tensor_made_like_another_is_a_leaf_that_requires_grad(made: Any) -> None:
    y = made(torch.ones(2))
    y.sum().backward()
    assert y.is_leaf and y.grad.tolist() == [1.0, 1.0]


@pytest.mark.usefixtures("routed")
def test_a_factory_makes_a_leaf_that_requires_grad() -> None:
    x = torch.full((3,), 2.0, requires_grad=True)
    (x * x).sum().backward()
    assert x.is_leaf and x.grad is not None and x.grad.tolist() == [4.0] * 3


def test_a_plain_tensor_becomes_a_runtime_tensor_when_it_shall_require_grad() -> None:
    x, y = torch.ones(2), torch.ones(2)
    with dropin.installed():
        x.requires_grad_()
        y.requires_grad = True
        assert isinstance(x, runtime.Tensor) and isinstance(y, runtime.Tensor)
        (x * y).sum().backward()
        assert x.grad is not None and x.grad.tolist() == [1.0, 1.0]
    assert torch.ones(2).requires_grad_().grad_fn is None and type(torch.ones(2)) is torch.Tensor


@pytest.mark.usefixtures("routed")
def test_functions_and_methods_of_torch_differentiate_with_the_runtime() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (g,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), x)
    assert gg.tolist() == [6.0, 12.0]
    assert torch.func.hessian(lambda x: (x**3).sum())(x.detach()).tolist() == [
        [6.0, 0.0],
        [0.0, 12.0],
    ]
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.ones(1).backward()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    # twice the truth, to tell it from a derived gradient
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return 2 * g * ctx.saved_tensors[0].exp()


@pytest.mark.usefixtures("routed")
def test_a_function_defined_before_is_the_runtimes_while_installed() -> None:
    x = torch.tensor([0.5], requires_grad=True)
    y = Doubled.apply(x)  # type: ignore[no-untyped-call]
    assert (
        isinstance(y.grad_fn, runtime.autograd.graph.Node)
        and type(y.grad_fn).__name__ == "DoubledBackward"
    )
    y.backward()
    torch.testing.assert_close(x.grad, 2 * x.detach().exp())


def test_forward_mode_and_its_level_are_the_runtimes() -> None:
    forward_ad: Any = torch.autograd.forward_ad
    with dropin.installed():
        x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        with forward_ad.dual_level():
            assert forward_ad._current_level == 0
            t = forward_ad.unpack_dual(
                forward_ad.make_dual(x, torch.ones(2, dtype=torch.float64)) ** 2
            ).tangent
            assert isinstance(t, runtime.Tensor) and t.tolist() == [2.0, 2.0]
        assert torch.autograd.gradcheck(
            lambda x: x.sin(), x, check_forward_ad=True, check_batched_grad=True
        )
        assert torch.autograd.functional.jacobian(lambda x: x**2, x).tolist() == [
            [2.0, 0.0],
            [0.0, 2.0],
        ]
    assert forward_ad._current_level == -1 and type(forward_ad) is type(torch)


@pytest.mark.usefixtures("routed")
def test_an_undefined_gradient_arrives_as_none_or_as_zeros() -> None:
    arrived = []

    class Watch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, materialize: bool) -> Any:
            ctx.set_materialize_grads(materialize)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            arrived.append(g)
            return g, None

    x = torch.ones(1, requires_grad=True)
    functions: Any = torch._C._functions
    for materialize in (True, False):
        functions.UndefinedGrad()(Watch.apply(x, materialize)).backward()  # type: ignore[no-untyped-call]
    assert arrived[0].item() == 0 and arrived[1] is None


@pytest.mark.usefixtures("routed")
def test_a_delayed_error_is_raised_by_who_needs_the_gradient() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    functions: Any = torch._C._functions
    poisoned, other = functions.DelayedError("no derivative", 2)(x, y * 2)
    assert (
        poisoned.requires_grad and poisoned.tolist() == [1.0, 1.0] and other.tolist() == [2.0, 2.0]
    )
    out = (poisoned * y).sum()
    (g,) = torch.autograd.grad(out, poisoned, retain_graph=True)  # does not go as far as the error
    assert g.tolist() == [1.0, 1.0]
    with pytest.raises(RuntimeError, match="no derivative"):
        out.backward()
    with pytest.raises(TypeError, match="made for 2 tensors, called with 1"):
        functions.DelayedError("no derivative", 2)(x)


@pytest.mark.usefixtures("routed")
def test_full_backward_hooks_of_modules_see_both_gradients() -> None:
    layer, seen = nn.Linear(2, 3), []

    def hook(module: nn.Module, g_in: Any, g_out: Any) -> None:
        seen.append((g_in[0].shape, g_out[0].shape))

    layer.register_full_backward_hook(hook)
    layer(torch.ones(4, 2, requires_grad=True)).sum().backward()
    assert seen == [((4, 2), (4, 3))]


@pytest.mark.usefixtures("routed")
def test_parameters_stay_parameters_through_copies_and_pickles() -> None:
    layer = nn.Linear(2, 3)
    for same in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert isinstance(same.weight, nn.Parameter) and isinstance(same.weight, runtime.Tensor)
        assert (
            same.weight.requires_grad
            and torch.equal(same.weight, layer.weight)
            and same.weight is not layer.weight
        )


@pytest.mark.usefixtures("routed")
def test_copies_of_tensors_that_share_memory_share_it_too() -> None:
    x = torch.zeros(4)
    a, b = copy.deepcopy([x, x[:2]])
    a.fill_(1.0)
    assert b.tolist() == [1.0, 1.0]


def test_a_state_dict_saved_by_torch_loads_under_the_drop_in() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(2, 3)
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    with dropin.installed():
        other = nn.Linear(2, 3)
        other.load_state_dict(torch.load(file))
        assert torch.equal(other.weight, layer.weight) and isinstance(other.weight, runtime.Tensor)


@pytest.mark.usefixtures("routed")
def test_a_runtime_tensor_survives_save_and_load() -> None:
    file = io.BytesIO()
    torch.save({"w": nn.Parameter(torch.ones(2)), "x": torch.zeros(3, requires_grad=True)}, file)
    file.seek(0)
    loaded = torch.load(file)
    assert isinstance(loaded["w"], nn.Parameter) and loaded["w"].tolist() == [1.0, 1.0]
    assert loaded["x"].requires_grad and isinstance(loaded["x"], runtime.Tensor)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "lstm"])
def test_an_unmodified_program_trains_to_the_same_losses(name: str, optimizer: str) -> None:
    expected = losses(name, optimizer, 50)
    with dropin.installed():
        got = losses(name, optimizer, 50)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert expected[-1] < 0.5 * expected[0]


SCRIPT = """
import sys, torch
from torch import nn
layer = nn.Linear(2, 1)
layer(torch.ones(2)).sum().backward()
runtime = sys.modules["runtime"]
print(isinstance(layer.weight.grad, runtime.Tensor), sys.argv[1:], __name__)
"""


@pytest.mark.parametrize("how", ["script", "module"])
def test_a_script_or_module_runs_from_the_command_line(how: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    what = ["-m", "program"] if how == "module" else [str(tmp_path / "program.py")]
    done = python(tmp_path, "-m", "runtime", *what, "a", "--b", environment={})
    assert done.stdout == "True ['a', '--b'] __main__\n", done.stderr


def run_script(
    folder: Path, text: str, *arguments: str, beside: str = ""
) -> subprocess.CompletedProcess[str]:
    """``python -m runtime FOLDER/program/main.py`` from another folder, with a module ``sibling``
    beside the script."""
    (folder / "program").mkdir()
    (folder / "program" / "main.py").write_text(text)
    (folder / "program" / "sibling.py").write_text(beside)
    script = str(folder / "program" / "main.py")
    return python(folder, "-m", "runtime", script, *arguments, environment={})


def test_a_script_imports_the_module_beside_it(tmp_path: Path) -> None:
    sibling = "import torch\nfrom torch.func import grad\ncube = lambda x: x**3\n"
    script = """
import sys, torch, runtime
from sibling import cube, grad
print(grad(cube)(torch.tensor(2.0)).item(), grad is runtime.func.grad, sys.argv[1:])
"""
    done = run_script(tmp_path, script, "-m", "x", beside=sibling)
    assert done.stdout == "12.0 True ['-m', 'x']\n", done.stderr


def test_a_script_pickles_its_own_classes(tmp_path: Path) -> None:
    script = """
import pickle, torch
class Model(torch.nn.Linear):
    pass
if __name__ == "__main__":
    same = pickle.loads(pickle.dumps(Model(2, 1)))
    print(type(same) is Model, isinstance(same.weight, torch.nn.Parameter))
"""
    done = run_script(tmp_path, script + "import sys; sys.exit()\n")
    assert (done.stdout, done.returncode) == ("True True\n", 0)


@pytest.mark.parametrize(
    ("leave", "status"), [("sys.exit(3)", 3), ("raise SystemExit('sorry')", 1)]
)
def test_a_script_gives_its_exit_status(leave: str, status: int, tmp_path: Path) -> None:
    done = run_script(tmp_path, f"import sys\n{leave}\n")
    assert done.returncode == status
    assert ("sorry" in done.stderr) == ("sorry" in leave)


def test_a_traceback_begins_at_the_users_script(tmp_path: Path) -> None:
    done = run_script(tmp_path, "def f():\n    raise ValueError('mine')\nf()\n")
    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert (
        lines[0] == "Traceback (most recent call last):"
        and "program/main.py" in lines[1]
        and lines[-1] == "ValueError: mine"
    )


class Unchangeable(list[Any]):
    """A list that refuses another item."""

    def insert(self, place: Any, item: object) -> None:
        raise KeyError("no more finders")


@pytest.mark.skipif(not torch.distributed.is_available(), reason="no finder is wanted")
def test_installing_that_fails_halfway_restores_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {name: find() for name, find in TORCHS.items()}
    with monkeypatch.context() as patched, pytest.raises(KeyError, match="no more finders"):
        patched.setattr(sys, "meta_path", Unchangeable(sys.meta_path))
        dropin.install()
    assert not dropin.is_installed()
    assert all(find() is before[name] for name, find in TORCHS.items())
    with dropin.installed():
        assert dropin.is_installed()


def test_an_unknown_script_is_an_error_that_says_so(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "runtime", "nosuch.py", environment={})
    assert done.returncode == 2 and "no such script: nosuch.py" in done.stderr


def test_the_plug_in_is_installed_before_the_first_conftest_and_left_at_the_end() -> None:
    config: Any = None
    dropin.pytest_load_initial_conftests(config)
    assert dropin.is_installed() and torch.autograd.grad is runtime.autograd.grad
    dropin.pytest_unconfigure(config)
    assert not dropin.is_installed() and torch.autograd.grad is not runtime.autograd.grad
    dropin.pytest_unconfigure(config)
    assert not dropin.is_installed()


def test_the_plug_in_routes_a_test_suite(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import torch\nfrom torch.func import grad\nimport runtime\ndef test_it():\n"
        "    assert isinstance(torch.ones(1), runtime.Tensor) and grad is runtime.func.grad\n"
    )
    root = str(Path(runtime.__file__).parent.parent)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "runtime.dropin",
        "--rootdir",
        str(tmp_path),
        str(tmp_path),
    ]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": root}, capture_output=True, text=True
    )
    assert "1 passed" in done.stdout, done.stdout
